/* kern/value.c -- the value of a tensor at a point of a group's space, as instructions
** in:    tensors bound to memories or values; a value for each variable of the space, one of them perhaps a vector
** out:   loads, index arithmetic and the arithmetic of the nodes in between
** keeps: a tensor at an index is computed once a scope; what does not depend on the vector variable stays scalar
** see:   docs/design/002-cpu-compiler.md     tests: tests/kern/test_value.c
*/
#include "kern/kern.h"

struct variable {
  kern_id value;
  int lanes;
  kern_id active;
};
struct memory {
  const quern_tensor *tensor;
  kern_id mem;
};
struct known {                /* a tensor at an index; bound, or computed before */
  const quern_tensor *tensor; /* NULL: forgotten */
  int rank;
  bool bound;
  const struct pass_index *at[QUERN_MAX_RANK];
  kern_id value;
};
struct known_index {
  const struct pass_index *index; /* NULL: forgotten */
  bool first;                     /* of the first lane only */
  kern_id value;
};
struct scope {
  size_t n_known, n_indices;
};

struct kern_values {
  struct kern_builder *b;
  quern_context *ctx;
  struct pass_space *space;
  int vector; /* the variable that has lanes, or -1 */
  bool for_gpu;
  const struct pass_group *shortened; /* or NULL */
  BASE_VEC(struct variable) vars;
  BASE_VEC(const struct pass_index *)
  defined; /* by variable: the index of other variables that it stands for, or NULL */
  BASE_VEC(struct memory) memories;
  BASE_VEC(struct known) known;
  BASE_VEC(struct known_index) indices;
  BASE_VEC(struct scope) scopes;
};

static void fail(struct kern_values *v, quern_status status) {
  if (v->b->kern->failed == QUERN_STATUS_OK) v->b->kern->failed = status;
}

static struct base_heap *heap_of(const struct kern_values *v) { return v->b->kern->heap; }

quern_status kern_values_new(struct kern_values **values, struct kern_builder *b, quern_context *ctx,
                             struct pass_space *space) {
  *values = base_alloc_zero(b->kern->heap, sizeof **values);
  if (*values == NULL) return QUERN_STATUS_MEMORY;
  **values = (struct kern_values){.b = b, .ctx = ctx, .space = space, .vector = -1};
  return QUERN_STATUS_OK;
}

void kern_values_free(struct kern_values *v) {
  if (v == NULL) return;
  struct base_heap *heap = heap_of(v);
  base_vec_fini(heap, &v->vars);
  base_vec_fini(heap, &v->defined);
  base_vec_fini(heap, &v->memories);
  base_vec_fini(heap, &v->known);
  base_vec_fini(heap, &v->indices);
  base_vec_fini(heap, &v->scopes);
  base_free(heap, v, sizeof *v);
}

/* ---- what is known -------------------------------------------------------------------------------------- */

void kern_values_bind_mem(struct kern_values *v, const quern_tensor *t, kern_id mem) {
  if (!base_vec_push(heap_of(v), &v->memories, ((struct memory){t, mem}))) fail(v, QUERN_STATUS_MEMORY);
}

static void remember(struct kern_values *v, const quern_tensor *t, int rank, const struct pass_index *const *at,
                     bool bound, kern_id value) {
  struct known known = {.tensor = t, .rank = rank, .bound = bound, .value = value};
  for (int k = 0; k < rank; k++) known.at[k] = at[k];
  if (!base_vec_push(heap_of(v), &v->known, known)) fail(v, QUERN_STATUS_MEMORY);
}

void kern_values_bind(struct kern_values *v, const quern_tensor *t, int rank, const struct pass_index *const *at,
                      kern_id value) {
  remember(v, t, rank, at, true, value);
}

/* Also forgets what was computed since, because it may have been computed from it. */
void kern_values_unbind(struct kern_values *v, const quern_tensor *t) {
  size_t i = v->known.n;
  while (i > 0 && !(v->known.at[i - 1].tensor == t && v->known.at[i - 1].bound)) i--;
  if (i == 0) return;
  v->known.at[i - 1].tensor = NULL;
  for (; i < v->known.n; i++)
    if (!v->known.at[i].bound) v->known.at[i].tensor = NULL;
}

void kern_values_define(struct kern_values *v, int var, const struct pass_index *index) {
  while (v->defined.n <= (size_t)var) {
    if (!base_vec_push(heap_of(v), &v->defined, NULL)) {
      fail(v, QUERN_STATUS_MEMORY);
      return;
    }
  }
  v->defined.at[var] = index;
}

/* Whether the index uses the variable, itself or by a defined one. Recursion is as deep as definitions use each other. */
static bool depends(const struct kern_values *v, const struct pass_index *e, int var) {
  if (pass_index_uses(e, var)) return true;
  for (size_t i = 0; i < v->defined.n; i++) {
    const struct pass_index *by = v->defined.at[i];
    if (by != NULL && pass_index_uses(e, (int)i) && depends(v, by, var)) return true;
  }
  return false;
}

/* The index without defined variables, as instructions are made from it. */
static const struct pass_index *expand(struct kern_values *v, const struct pass_index *e) {
  if (v->defined.n == 0) return e;
  while (v->defined.n < v->space->extents.n) {
    if (!base_vec_push(heap_of(v), &v->defined, NULL)) {
      fail(v, QUERN_STATUS_MEMORY);
      return e;
    }
  }
  for (const struct pass_index *before = NULL; e != before;) {
    before = e;
    e = pass_index_replace(v->space, e, v->defined.at);
  }
  return e;
}

void kern_values_set(struct kern_values *v, int var, kern_id value, int lanes, kern_id active) {
  while (v->vars.n <= (size_t)var) {
    if (!base_vec_push(heap_of(v), &v->vars, ((struct variable){KERN_NONE, 1, KERN_NONE}))) {
      fail(v, QUERN_STATUS_MEMORY);
      return;
    }
  }
  QUERN_ASSERT(lanes == 1 || v->vector == -1 || v->vector == var);
  v->vars.at[var] = (struct variable){value, lanes, active};
  if (lanes > 1)
    v->vector = var;
  else if (v->vector == var)
    v->vector = -1;
  for (size_t i = 0; i < v->known.n; i++) {
    struct known *known = &v->known.at[i];
    for (int k = 0; k < known->rank && known->tensor != NULL; k++)
      if (depends(v, known->at[k], var)) known->tensor = NULL;
  }
  for (size_t i = 0; i < v->indices.n; i++) {
    struct known_index *known = &v->indices.at[i];
    if (known->index != NULL && pass_index_uses(known->index, var)) known->index = NULL;
  }
}

void kern_values_enter(struct kern_values *v) {
  if (!base_vec_push(heap_of(v), &v->scopes, ((struct scope){v->known.n, v->indices.n}))) fail(v, QUERN_STATUS_MEMORY);
}

void kern_values_leave(struct kern_values *v) {
  if (v->scopes.n == 0) return; /* there was no memory to enter */
  struct scope scope = v->scopes.at[--v->scopes.n];
  v->known.n = scope.n_known;
  v->indices.n = scope.n_indices;
}

/* ---- indices -------------------------------------------------------------------------------------------- */

/* The lanes a value must have that depends on the vector variable. */
static int lanes_of(const struct kern_values *v) { return v->vector < 0 ? 1 : v->vars.at[v->vector].lanes; }

static bool is_vector(const struct kern_values *v, const struct pass_index *e) {
  return v->vector >= 0 && depends(v, e, v->vector);
}

static kern_id expanded_index(struct kern_values *v, const struct pass_index *e, bool first);

/* The vector variable, lane by lane; lanes that do not count repeat the last that does. */
static kern_id vector_variable(struct kern_values *v) {
  const struct variable *var = &v->vars.at[v->vector];
  kern_id lane = kern_lane(v->b, QUERN_DTYPE_I64, var->lanes);
  if (var->active != KERN_NONE) {
    kern_id last = kern_sub(v->b, var->active, kern_index(v->b, 1));
    lane = kern_min(v->b, lane, kern_splat(v->b, last, var->lanes));
  }
  return kern_add(v->b, kern_splat(v->b, var->value, var->lanes), lane);
}

static kern_id atom_of(struct kern_values *v, const struct pass_atom *atom, bool first) {
  struct kern_builder *b = v->b;
  if (b->kern->failed != QUERN_STATUS_OK) return 0;
  if (atom->kind == PASS_ATOM_VAR) {
    QUERN_ASSERT((size_t)atom->var < v->vars.n && v->vars.at[atom->var].value != KERN_NONE);
    if (atom->var == v->vector && !first) return vector_variable(v);
    return v->vars.at[atom->var].value;
  }
  kern_id x = expanded_index(v, atom->of, first);
  if (atom->kind == PASS_ATOM_DIV) return kern_idiv(b, x, atom->by);
  if (atom->kind == PASS_ATOM_MOD) return kern_imod(b, x, atom->by);
  int lanes = b->kern->failed == QUERN_STATUS_OK ? kern_at_id(b, x)->lanes : 1;
  x = kern_max(b, x, kern_const_i(b, QUERN_DTYPE_I64, lanes, 0));
  return kern_min(b, x, kern_const_i(b, QUERN_DTYPE_I64, lanes, atom->by - 1));
}

/* The scalar terms first, then those with lanes. first: the value of lane 0, a scalar. */
static kern_id expanded_index(struct kern_values *v, const struct pass_index *e, bool first) {
  struct kern_builder *b = v->b;
  if (!is_vector(v, e)) first = true;
  for (size_t i = 0; i < v->indices.n; i++) {
    if (v->indices.at[i].index == e && v->indices.at[i].first == first) return v->indices.at[i].value;
  }
  kern_id sum = kern_index(b, e->constant), lanes = KERN_NONE;
  for (int i = 0; i < e->n_terms; i++) {
    const struct pass_term *t = &e->terms[i];
    kern_id x = atom_of(v, t->atom, first);
    if (b->kern->failed != QUERN_STATUS_OK) return 0;
    int n = kern_at_id(b, x)->lanes;
    x = kern_mul(b, x, kern_const_i(b, QUERN_DTYPE_I64, n, t->coef));
    if (n == 1)
      sum = kern_add(b, sum, x);
    else
      lanes = lanes == KERN_NONE ? x : kern_add(b, lanes, x);
  }
  if (lanes != KERN_NONE) sum = kern_add(b, kern_splat(b, sum, lanes_of(v)), lanes);
  if (!base_vec_push(heap_of(v), &v->indices, ((struct known_index){e, first, sum}))) fail(v, QUERN_STATUS_MEMORY);
  return sum;
}

static kern_id index_of(struct kern_values *v, const struct pass_index *e, bool first) {
  return expanded_index(v, expand(v, e), first);
}

kern_id kern_values_index(struct kern_values *v, const struct pass_index *index) { return index_of(v, index, false); }
kern_id kern_values_first(struct kern_values *v, const struct pass_index *index) { return index_of(v, index, true); }

int kern_values_vector(const struct kern_values *v, int *lanes) {
  *lanes = lanes_of(v);
  return v->vector;
}

/* ---- loads ---------------------------------------------------------------------------------------------- */

/* Lane i is element index + 2 i, of the first `active` lanes (a constant, or all): two vectors that lie one behind the other but
** for an element, and end with the last lane. */
static kern_id load_every_second(struct kern_values *v, kern_id mem, kern_id index, int lanes, kern_id active) {
  struct kern_builder *b = v->b;
  int64_t n = active == KERN_NONE ? lanes : kern_at_id(b, active)->imm, behind = 2 * n - lanes;
  int pattern[KERN_MAX_LANES];
  for (int i = 0; i < lanes; i++) pattern[i] = i < lanes / 2 ? 2 * i : 2 * i + 1;
  kern_id first = kern_load_n(b, mem, index, lanes, behind < 1 ? kern_index(b, 2 * n - 1) : KERN_NONE), second = first;
  if (behind > 0) {
    kern_id next = kern_add_i(b, index, lanes - 1);
    second = kern_load_n(b, mem, next, lanes, behind < lanes ? kern_index(b, behind) : KERN_NONE);
  }
  return kern_shuffle(b, first, second, lanes, pattern);
}

/* Element flat + more of a memory; more is an i64 scalar, a vector, or KERN_NONE. */
static kern_id load(struct kern_values *v, kern_id mem, const struct pass_index *flat, kern_id more) {
  struct kern_builder *b = v->b;
  if (b->kern->failed != QUERN_STATUS_OK) return 0;
  int more_lanes = more == KERN_NONE ? 1 : kern_at_id(b, more)->lanes, lanes = lanes_of(v);
  flat = expand(v, flat);
  if (!is_vector(v, flat) && more_lanes == 1) {
    kern_id index = index_of(v, flat, true);
    return kern_load(b, mem, more == KERN_NONE ? index : kern_add(b, index, more), 1);
  }
  kern_id active = v->vars.at[v->vector].active;
  int64_t stride;
  bool affine = pass_index_stride(v->space, flat, v->vector, &stride);
  if (more_lanes == 1 && affine && (stride == 1 || (stride == -1 && active == KERN_NONE && lanes <= KERN_MAX_LANES))) {
    kern_id index = index_of(v, flat, true);
    if (more != KERN_NONE) index = kern_add(b, index, more);
    if (stride == 1) return kern_load_n(b, mem, index, lanes, active);
    kern_id x = kern_load(b, mem, kern_sub(b, index, kern_index(b, lanes - 1)), lanes);
    int pattern[KERN_MAX_LANES];
    for (int i = 0; i < lanes; i++) pattern[i] = lanes - 1 - i;
    return kern_shuffle(b, x, x, lanes, pattern);
  }
  bool counted = active == KERN_NONE || (kern_at_id(b, active)->op == KERN_CONST && kern_at_id(b, active)->imm > 0);
  if (more_lanes == 1 && affine && stride == 2 && counted && lanes <= KERN_MAX_LANES) {
    kern_id index = index_of(v, flat, true);
    return load_every_second(v, mem, more == KERN_NONE ? index : kern_add(b, index, more), lanes, active);
  }
  kern_id index = kern_splat(b, index_of(v, flat, false), lanes);
  if (more != KERN_NONE) index = kern_add(b, index, kern_splat(b, more, lanes));
  return kern_gather(b, mem, index);
}

static const struct memory *find_memory(const struct kern_values *v, const quern_tensor *t) {
  for (size_t i = 0; i < v->memories.n; i++)
    if (v->memories.at[i].tensor == t) return &v->memories.at[i];
  return NULL;
}

/* The memory of a tensor that an op reads at places known at run time only. */
static kern_id memory_of(struct kern_values *v, const quern_tensor *t) {
  const struct memory *memory = find_memory(v, t);
  if (memory != NULL) return memory->mem;
  fail(v, base_error(QUERN_STATUS_INTERNAL, "kernel: the result of %s is read at run-time indices but is not in memory",
                     ir_ops[t->node->op].name));
  return 0;
}

void kern_values_for_gpu(struct kern_values *v) { v->for_gpu = true; }
void kern_values_allow_approx(struct kern_values *v, const struct pass_group *group) { v->shortened = group; }

/* ---- ops ------------------------------------------------------------------------------------------------ */

struct point { /* result number 0 of a node is wanted here */
  const struct ir_node *node;
  int rank;
  const struct pass_index *const *at;
};
typedef kern_id value_rule(struct kern_values *v, const struct point *p);

static kern_id source_value(struct kern_values *v, const struct ir_node *node, int src, const struct pass_index **at) {
  return kern_values_get(v, node->src[src], node->src[src]->rank, at);
}

static kern_id splat(struct kern_values *v, kern_id x, int lanes) { return kern_splat(v->b, x, lanes); }
static int lanes_at(const struct kern_values *v, kern_id x) {
  return v->b->kern->failed == QUERN_STATUS_OK ? kern_at_id(v->b, x)->lanes : 1;
}

/* Whether m at this point is the maximum of a row of x that x at this point is in. */
static bool is_max_of(struct kern_values *v, const struct point *p, const quern_tensor *m, const quern_tensor *x) {
  const struct pass_index *in[2][QUERN_MAX_RANK], *const *at = p->at;
  for (int turn = 0; m->node->op == IR_RESHAPE || m->node->op == IR_BROADCAST || m->node->op == IR_STOP_GRAD;
       turn ^= 1) {
    if (!pass_index_source(v->space, m->node, 0, at, in[turn])) return false;
    at = in[turn];
    m = m->node->src[0];
  }
  const struct ir_node *node = m->node;
  if (node->op != IR_REDUCE || node->attrs->reduce != IR_REDUCE_MAX || node->src[0] != x) return false;
  bool reduced[QUERN_MAX_RANK] = {false};
  for (int i = 0; i < node->attrs->axes.n; i++) reduced[node->attrs->axes.at[i]] = true;
  for (int k = 0, n = 0; k < x->rank; k++)
    if (!reduced[k] && at[n++] != p->at[k]) return false;
  return true;
}

/* Whether it is exp(x - max x) of f32. */
static bool is_exp_below(struct kern_values *v, const struct point *p) {
  if (!v->for_gpu || p->node->op != IR_EXP || p->node->out[0].dtype != QUERN_DTYPE_F32) return false;
  const struct ir_node *less = p->node->src[0]->node;
  return less->op == IR_SUB && is_max_of(v, p, less->src[1], less->src[0]);
}

/* first + lane == s of i32, or i32 that were widened, s the same in all lanes: lane == s - first, modulo 2^32. KERN_NONE: it is
** another comparison. */
static kern_id lane_is(struct kern_values *v, kern_id x, kern_id y) {
  struct kern_builder *b = v->b;
  kern_id of[2] = {x, y};
  quern_dtype dtype = kern_at_id(b, x)->dtype;
  if (dtype != QUERN_DTYPE_I32 && dtype != QUERN_DTYPE_I64) return KERN_NONE;
  for (int i = 0; i < 2; i++) {
    if (kern_at_id(b, of[i])->op == KERN_SPLAT) of[i] = kern_at_id(b, of[i])->arg[0];
    if (kern_at_id(b, of[i])->op == KERN_CAST) of[i] = kern_at_id(b, of[i])->arg[0];
    if (kern_at_id(b, of[i])->dtype != QUERN_DTYPE_I32) return KERN_NONE;
  }
  struct kern_inst sum = *kern_at_id(b, of[0]);
  if (sum.op != KERN_ADD || kern_at_id(b, of[1])->lanes != 1) return KERN_NONE;
  struct kern_inst first = *kern_at_id(b, sum.arg[0]);
  if (first.op != KERN_SPLAT || kern_at_id(b, sum.arg[1])->op != KERN_LANE) return KERN_NONE;
  struct kern_inst from = *kern_at_id(b, first.arg[0]);
  if (from.op == KERN_CAST) from = *kern_at_id(b, from.arg[0]);
  if (from.op != KERN_CONST) return KERN_NONE;
  kern_id number = kern_sub(b, of[1], kern_const_i(b, QUERN_DTYPE_I32, 1, from.imm));
  return kern_bin(b, KERN_EQ, sum.arg[1], kern_splat(b, number, sum.lanes));
}

/* x op y, with the lanes of the wider. */
static kern_id join(struct kern_values *v, enum kern_op op, kern_id x, kern_id y) {
  int lanes = BASE_MAX(lanes_at(v, x), lanes_at(v, y));
  x = splat(v, x, lanes);
  return kern_bin(v->b, op, x, splat(v, y, lanes));
}

static kern_id value_approx(struct kern_values *v, const struct point *p, const struct kern_approx_use *use) {
  quern_dtype dtype = p->node->out[0].dtype;
  kern_id y = kern_approx(v->b, use->f, dtype, kern_values_get(v, use->x, p->rank, p->at));
  if (use->factor != NULL) y = join(v, KERN_MUL, y, kern_values_get(v, use->factor, p->rank, p->at));
  return kern_cast(v->b, y, dtype);
}

static kern_id value_elementwise(struct kern_values *v, const struct point *p) {
  struct kern_approx_use use;
  if (v->shortened != NULL && kern_approx_find(v->shortened, p->node, &use)) return value_approx(v, p, &use);
  kern_id x[3] = {0};
  int lanes = 1, n = p->node->n_src;
  for (int i = 0; i < n; i++) {
    x[i] = kern_values_get(v, p->node->src[i], p->rank, p->at);
    lanes = BASE_MAX(lanes, lanes_at(v, x[i]));
  }
  for (int i = 0; i < n; i++) x[i] = splat(v, x[i], lanes);
  if (is_exp_below(v, p)) return kern_exp_below(v->b, x[0]);
  if (v->for_gpu && p->node->op == IR_EQ && lanes > 1 && v->b->kern->failed == QUERN_STATUS_OK) {
    kern_id same = lane_is(v, x[0], x[1]);
    if (same != KERN_NONE) return same;
  }
  return kern_math(v->b, p->node->op, p->node->out[0].dtype, n, x);
}

static kern_id value_moved(struct kern_values *v, const struct point *p) {
  const struct pass_index *in[QUERN_MAX_RANK];
  if (!pass_index_source(v->space, p->node, 0, p->at, in)) return 0;
  return source_value(v, p->node, 0, in);
}

static kern_id value_const(struct kern_values *v, const struct point *p) {
  const quern_tensor *t = &p->node->out[0];
  size_t size = base_dtypes[t->dtype].size;
  uint64_t bits = 0;
  if (ir_count(t) == 0) return kern_const_bits(v->b, t->dtype, 1, 0);
  for (int64_t i = 1; i < ir_count(t); i++) {
    if (memcmp((const char *)p->node->attrs->data.at + (size_t)i * size, p->node->attrs->data.at, size) == 0) continue;
    fail(v, base_error(QUERN_STATUS_INTERNAL, "kernel: a constant of %lld elements is not in memory",
                       (long long)ir_count(t)));
    return 0;
  }
  memcpy(&bits, p->node->attrs->data.at, size);
  return kern_const_bits(v->b, t->dtype, 1, bits);
}

/* Along the vector variable in 32 bits where they are enough: i64 vectors are slow. */
static kern_id value_iota(struct kern_values *v, const struct point *p) {
  const struct pass_index *e = expand(v, p->at[p->node->attrs->axis]);
  quern_dtype dtype = p->node->out[0].dtype;
  int64_t stride;
  if (is_vector(v, e) && e->hi < INT32_MAX && e->lo > INT32_MIN && pass_index_stride(v->space, e, v->vector, &stride) &&
      stride < INT16_MAX && stride > INT16_MIN) {
    int lanes = lanes_of(v);
    kern_id base = splat(v, kern_cast(v->b, index_of(v, e, true), QUERN_DTYPE_I32), lanes);
    kern_id step = kern_const_i(v->b, QUERN_DTYPE_I32, lanes, stride), lane = kern_lane(v->b, QUERN_DTYPE_I32, lanes);
    kern_id x = kern_add(v->b, base, v->for_gpu && stride == 1 ? lane : kern_mul(v->b, lane, step));
    return kern_cast(v->b, x, dtype);
  }
  return kern_cast(v->b, index_of(v, e, false), dtype);
}

static kern_id value_random(struct kern_values *v, const struct point *p) {
  const struct ir_node *node = p->node;
  kern_id seed = kern_values_get(v, node->src[0], 0, NULL), step = kern_values_get(v, node->src[1], 0, NULL);
  const struct pass_index *flat = pass_index_flat(v->space, p->rank, node->out[0].dims, p->at);
  return kern_random(v->b, seed, step, node->attrs->stream, index_of(v, flat, false));
}

/* The bool "0 <= e < n and n_step divides e", or KERN_NONE when it always holds. */
static kern_id inside(struct kern_values *v, const struct pass_index *e, int64_t n, kern_id also) {
  struct kern_builder *b = v->b;
  kern_id x = KERN_NONE, masks[3];
  int count = 0;
  if (e->lo < 0 || e->hi >= n) x = index_of(v, e, false);
  if (e->lo < 0) masks[count++] = kern_bin(b, KERN_LE, kern_const_i(b, QUERN_DTYPE_I64, lanes_at(v, x), 0), x);
  if (e->hi >= n) masks[count++] = kern_bin(b, KERN_LT, x, kern_const_i(b, QUERN_DTYPE_I64, lanes_at(v, x), n));
  if (also != KERN_NONE) masks[count++] = also;
  if (count == 0) return KERN_NONE;
  kern_id all = masks[0];
  for (int i = 1; i < count; i++) all = join(v, KERN_AND, all, masks[i]);
  return all;
}

/* e must be a multiple of n: the mask, joined with also. */
static kern_id divides(struct kern_values *v, const struct pass_index *e, int64_t n, kern_id also) {
  const struct pass_index *rest = pass_index_mod(v->space, e, n);
  if (rest->lo == 0 && rest->hi == 0) return also;
  kern_id x = index_of(v, rest, false);
  kern_id mask = kern_bin(v->b, KERN_EQ, x, kern_const_i(v->b, QUERN_DTYPE_I64, lanes_at(v, x), 0));
  return also == KERN_NONE ? mask : join(v, KERN_AND, also, mask);
}

/* yes where mask holds, else no; a mask of KERN_NONE holds. */
static kern_id choose(struct kern_values *v, kern_id mask, kern_id yes, kern_id no) {
  if (mask == KERN_NONE) return yes;
  int lanes = BASE_MAX(lanes_at(v, mask), BASE_MAX(lanes_at(v, yes), lanes_at(v, no)));
  mask = splat(v, mask, lanes);
  yes = splat(v, yes, lanes);
  return kern_select(v->b, mask, yes, splat(v, no, lanes));
}

static kern_id value_pad(struct kern_values *v, const struct point *p) {
  const struct ir_attrs *attrs = p->node->attrs;
  const quern_tensor *src = p->node->src[0];
  const struct pass_index *in[QUERN_MAX_RANK];
  kern_id mask = KERN_NONE, fill = kern_values_get(v, p->node->src[1], 0, NULL);
  for (int k = 0; k < p->rank; k++) {
    int64_t step = attrs->mid.at[k] + 1;
    if (src->dims[k] == 0) return fill;
    const struct pass_index *e = pass_index_add(v->space, p->at[k], pass_index_const(v->space, -attrs->lo.at[k]));
    if (step > 1) mask = divides(v, e, step, mask);
    e = pass_index_div(v->space, e, step);
    if (e->hi < 0 || e->lo >= src->dims[k]) return fill;
    mask = inside(v, e, src->dims[k], mask);
    in[k] = pass_index_clamp(v->space, e, src->dims[k]);
  }
  return choose(v, mask, source_value(v, p->node, 0, in), fill);
}

/* The parts that the index can fall into, from the last to the first; where one index serves all lanes only one part
** is computed. */
static kern_id value_concat(struct kern_values *v, const struct point *p) {
  struct kern_builder *b = v->b;
  const struct ir_node *node = p->node;
  int64_t axis = node->attrs->axis, start = node->out[0].dims[axis];
  const struct pass_index *e = p->at[axis], *in[QUERN_MAX_RANK];
  bool scalar = !is_vector(v, e);
  kern_id result = KERN_NONE, var = KERN_NONE;
  for (int k = 0; k < p->rank; k++) in[k] = p->at[k];
  for (int s = node->n_src - 1; s >= 0; s--) {
    int64_t n = node->src[s]->dims[axis];
    start -= n;
    if (n == 0 || e->hi < start || e->lo >= start + n) continue;
    const struct pass_index *local = pass_index_add(v->space, e, pass_index_const(v->space, -start));
    in[axis] = pass_index_clamp(v->space, local, n);
    if (e->lo >= start && e->hi < start + n) return source_value(v, node, s, in);
    kern_id mask = KERN_NONE;
    if (result != KERN_NONE || var != KERN_NONE) {
      kern_id x = index_of(v, e, false);
      mask = kern_bin(b, KERN_LT, x, kern_const_i(b, QUERN_DTYPE_I64, lanes_at(v, x), start + n));
    }
    if (!scalar) {
      kern_id x = source_value(v, node, s, in);
      result = result == KERN_NONE ? x : choose(v, mask, x, result);
    } else {
      quern_dtype dtype = node->out[0].dtype;
      if (var == KERN_NONE) var = kern_var(b, kern_const_bits(b, dtype, lanes_of(v), 0));
      if (mask != KERN_NONE) kern_if(b, mask);
      kern_values_enter(v);
      kern_set(b, var, splat(v, source_value(v, node, s, in), lanes_of(v)));
      kern_values_leave(v);
      if (mask != KERN_NONE) kern_end(b);
    }
  }
  if (var == KERN_NONE && result == KERN_NONE) return kern_const_bits(b, node->out[0].dtype, 1, 0); /* all are empty */
  return scalar ? kern_get(b, var) : result;
}

kern_id kern_values_start(struct kern_values *v, const quern_tensor *t, int64_t last) {
  struct kern_builder *b = v->b;
  kern_id x = kern_values_get(v, t, 0, NULL);
  if (t->dtype == QUERN_DTYPE_U64)
    return kern_cast(b, kern_min(b, x, kern_const_i(b, t->dtype, 1, last)), QUERN_DTYPE_I64);
  x = kern_cast(b, x, QUERN_DTYPE_I64);
  return kern_min_i(b, kern_max_i(b, x, 0), last);
}

static int64_t stride_of(const quern_tensor *t, int axis) {
  int64_t stride = 1;
  for (int k = axis + 1; k < t->rank; k++) stride *= t->dims[k];
  return stride;
}

static kern_id value_slice_at(struct kern_values *v, const struct point *p) {
  const struct ir_node *node = p->node;
  const quern_tensor *src = node->src[0];
  kern_id more = kern_index(v->b, 0);
  for (int k = 0; k < p->rank; k++) {
    kern_id start = kern_values_start(v, node->src[1 + k], src->dims[k] - node->out[0].dims[k]);
    more = kern_add(v->b, more, kern_mul_i(v->b, start, stride_of(src, k)));
  }
  const struct pass_index *flat = pass_index_flat(v->space, p->rank, src->dims, p->at);
  return load(v, memory_of(v, src), flat, more);
}

/* The block's element where the point lies in the block, else a's. */
static kern_id value_update_at(struct kern_values *v, const struct point *p) {
  struct kern_builder *b = v->b;
  const struct ir_node *node = p->node;
  const quern_tensor *block = node->src[1];
  kern_id mask = KERN_NONE, flat = KERN_NONE, outside = kern_values_get(v, node->src[0], p->rank, p->at);
  if (ir_count(block) == 0) return outside;
  for (int k = 0; k < p->rank; k++) {
    kern_id start = kern_values_start(v, node->src[2 + k], node->out[0].dims[k] - block->dims[k]);
    kern_id x = index_of(v, p->at[k], false);
    int lanes = lanes_at(v, x);
    x = kern_sub(b, x, splat(v, start, lanes));
    kern_id zero = kern_const_i(b, QUERN_DTYPE_I64, lanes, 0);
    kern_id above = kern_bin(b, KERN_LE, zero, x);
    kern_id below = kern_bin(b, KERN_LT, x, kern_const_i(b, QUERN_DTYPE_I64, lanes, block->dims[k]));
    kern_id both = kern_bin(b, KERN_AND, above, below);
    x = kern_max(b, x, zero);
    x = kern_min(b, x, kern_const_i(b, QUERN_DTYPE_I64, lanes, block->dims[k] - 1));
    x = kern_mul(b, x, kern_const_i(b, QUERN_DTYPE_I64, lanes, stride_of(block, k)));
    flat = flat == KERN_NONE ? x : join(v, KERN_ADD, flat, x);
    mask = mask == KERN_NONE ? both : join(v, KERN_AND, mask, both);
  }
  kern_id mem = memory_of(v, block);
  if (flat == KERN_NONE) return kern_load(b, mem, kern_index(b, 0), 1); /* scalars */
  kern_id x = lanes_at(v, flat) == 1 ? kern_load(b, mem, flat, 1) : kern_gather(b, mem, flat);
  return choose(v, mask, x, outside);
}

/* y[n, p, i, q] = a[n, p, b[n, i], q], and 0 where the index is outside. */
static kern_id value_gather(struct kern_values *v, const struct point *p) {
  struct kern_builder *b = v->b;
  const struct ir_node *node = p->node;
  const quern_tensor *a = node->src[0], *index = node->src[1];
  int batch = (int)node->attrs->batch, axis = (int)node->attrs->axis, n_i = index->rank - batch;
  const struct pass_index *at_index[QUERN_MAX_RANK], *at_a[QUERN_MAX_RANK];
  for (int k = 0; k < batch; k++) at_index[k] = p->at[k];
  for (int k = 0; k < n_i; k++) at_index[batch + k] = p->at[axis + k];
  for (int k = 0; k < axis; k++) at_a[k] = p->at[k];
  at_a[axis] = pass_index_const(v->space, 0);
  for (int k = axis + 1; k < a->rank; k++) at_a[k] = p->at[k - 1 + n_i];
  if (a->dims[axis] == 0) return kern_const_bits(b, a->dtype, 1, 0);
  kern_id x = kern_cast(b, kern_values_get(v, index, index->rank, at_index), QUERN_DTYPE_I64);
  int lanes = lanes_at(v, x);
  kern_id zero = kern_const_i(b, QUERN_DTYPE_I64, lanes, 0);
  kern_id above = kern_bin(b, KERN_LE, zero, x);
  kern_id below = kern_bin(b, KERN_LT, x, kern_const_i(b, QUERN_DTYPE_I64, lanes, a->dims[axis]));
  kern_id mask = kern_bin(b, KERN_AND, above, below);
  x = kern_max(b, x, zero);
  x = kern_min(b, x, kern_const_i(b, QUERN_DTYPE_I64, lanes, a->dims[axis] - 1));
  kern_id more = kern_mul(b, x, kern_const_i(b, QUERN_DTYPE_I64, lanes, stride_of(a, axis)));
  const struct pass_index *flat = pass_index_flat(v->space, a->rank, a->dims, at_a);
  kern_id y = load(v, memory_of(v, a), flat, more);
  return choose(v, mask, y, kern_const_bits(b, a->dtype, 1, 0));
}

/* The sum over the places w of the window of x[.., (p - w dilate) / step, .., w], where that is a place: w in row-major
** order, accumulated as reductions are. */
static kern_id value_col2im(struct kern_values *v, const struct point *p) {
  struct kern_builder *b = v->b;
  const struct ir_attrs *attrs = p->node->attrs;
  const quern_tensor *src = p->node->src[0];
  const struct pass_index *in[QUERN_MAX_RANK];
  quern_dtype dtype = src->dtype, acc_dtype = kern_acc_dtype(dtype);
  int n = attrs->axes.n, lanes = lanes_of(v);
  if (ir_count(src) == 0) return kern_const_bits(b, dtype, 1, 0);
  kern_id none = kern_neutral(b, IR_SUM, acc_dtype, lanes), acc = kern_var(b, none);
  kern_id any = kern_var(b, kern_const_i(b, QUERN_DTYPE_I32, lanes, 0)); /* a place without terms is 0, not -0 */
  for (int i = 0; i < n; i++) {
    int64_t extent = src->dims[p->rank + i];
    int var = pass_space_add(v->space, extent);
    kern_values_set(v, var, kern_range(b, 0, extent, 1), 1, KERN_NONE);
    in[p->rank + i] = pass_index_var(v->space, var);
  }
  kern_values_enter(v);
  kern_id mask = KERN_NONE;
  for (int k = 0; k < p->rank; k++) in[k] = p->at[k];
  for (int i = 0; i < n; i++) {
    int64_t k = attrs->axes.at[i];
    const struct pass_index *w = pass_index_scale(v->space, in[p->rank + i], -attrs->dilate.at[i]);
    const struct pass_index *e = pass_index_add(v->space, p->at[k], w);
    mask = divides(v, e, attrs->step.at[i], mask);
    e = pass_index_div(v->space, e, attrs->step.at[i]);
    mask = inside(v, e, src->dims[k], mask);
    in[k] = pass_index_clamp(v->space, e, src->dims[k]);
  }
  kern_id x = splat(v, kern_cast(b, source_value(v, p->node, 0, in), acc_dtype), lanes);
  kern_id one = kern_const_i(b, QUERN_DTYPE_I32, lanes, 1);
  kern_id so_far = kern_get(b, acc);
  kern_set(b, acc, kern_add(b, so_far, choose(v, mask, x, none)));
  kern_set(b, any, choose(v, mask, one, kern_get(b, any)));
  kern_values_leave(v);
  for (int i = 0; i < n; i++) kern_end(b);
  kern_id zero = kern_const_i(b, QUERN_DTYPE_I32, lanes, 0), empty = kern_bin(b, KERN_EQ, kern_get(b, any), zero);
  kern_id sum = kern_get(b, acc);
  sum = kern_select(b, empty, kern_const_bits(b, acc_dtype, lanes, 0), sum);
  return kern_cast(b, sum, dtype);
}

static const struct {
  enum ir_op op;
  value_rule *rule;
} rules[] = {
    {IR_RESHAPE, value_moved},       {IR_PERMUTE, value_moved},
    {IR_BROADCAST, value_moved},     {IR_SLICE, value_moved},
    {IR_FLIP, value_moved},          {IR_WINDOW, value_moved},
    {IR_CONST, value_const},         {IR_IOTA, value_iota},
    {IR_RANDOM, value_random},       {IR_PAD, value_pad},
    {IR_CONCAT, value_concat},       {IR_SLICE_AT, value_slice_at},
    {IR_UPDATE_AT, value_update_at}, {IR_GATHER, value_gather},
    {IR_COL2IM, value_col2im},
};

static value_rule *rule_of(enum ir_op op) {
  if (op >= IR_NEG && op <= IR_SELECT) return value_elementwise;
  for (size_t i = 0; i < BASE_COUNT(rules); i++)
    if (rules[i].op == op) return rules[i].rule;
  return NULL;
}

/* Recursion is as deep as the group's longest chain, which fusion limits. */
kern_id kern_values_get(struct kern_values *v, const quern_tensor *t, int rank, const struct pass_index *const *at) {
  if (v->b->kern->failed != QUERN_STATUS_OK) return 0;
  if (v->space->failed) {
    fail(v, QUERN_STATUS_MEMORY);
    return 0;
  }
  QUERN_ASSERT(rank == t->rank);
  for (size_t i = v->known.n; i-- > 0;) {
    const struct known *known = &v->known.at[i];
    if (known->tensor != t) continue;
    if (rank == 0 || memcmp(known->at, at, (size_t)rank * sizeof *at) == 0) return known->value;
  }
  const struct memory *memory = find_memory(v, t);
  value_rule *rule = rule_of(t->node->op);
  kern_id value;
  if (memory != NULL) {
    value = load(v, memory->mem, pass_index_flat(v->space, rank, t->dims, at), KERN_NONE);
  } else if (rule == NULL) {
    fail(v, base_error(QUERN_STATUS_INTERNAL, "kernel: the result of %s is read where it is not known",
                       ir_ops[t->node->op].name));
    return 0;
  } else {
    value = rule(v, &(struct point){t->node, rank, at});
  }
  remember(v, t, rank, at, false, value);
  return value;
}
