/* kern/build.c -- kernels, and the builder of their instructions
** keeps: the first failure is remembered in the kernel; later calls append nothing and return 0
** tests: tests/kern/test_build.c
*/
#include <math.h>
#include <stdio.h>

#include "kern/kern_int.h"

const struct kern_op_info kern_ops[KERN_OP_COUNT] = {
#define KOP(NAME, text, n_args, RESULT, meaning) {#text, n_args, KERN_RESULT_##RESULT, meaning},
#include "kern/ops.def"
#undef KOP
};

static void fail(struct kern *kern, quern_status status) {
  if (kern->failed == QUERN_STATUS_OK) kern->failed = status;
}

/* ---- kernels -------------------------------------------------------------------------------------------- */

quern_status kern_new(struct kern **kern, struct base_heap *heap) {
  *kern = base_alloc_zero(heap, sizeof **kern);
  if (*kern == NULL) return QUERN_STATUS_MEMORY;
  (*kern)->heap = heap;
  (*kern)->failed = QUERN_STATUS_OK;
  base_arena_init(&(*kern)->arena, heap);
  return QUERN_STATUS_OK;
}

void kern_strip(struct kern *kern) {
  struct base_heap *heap = kern->heap;
  for (size_t i = 0; i < kern->fns.n; i++) {
    struct kern_fn *fn = kern->fns.at[i];
    base_vec_fini(heap, &fn->insts);
    base_vec_fini(heap, &fn->pool);
    base_free(heap, fn, sizeof *fn);
  }
  base_vec_fini(heap, &kern->fns);
}

void kern_free(struct kern *kern) {
  if (kern == NULL) return;
  struct base_heap *heap = kern->heap;
  kern_strip(kern);
  base_arena_fini(&kern->arena);
  base_free(heap, kern, sizeof *kern);
}

int kern_add_mem(struct kern *kern, quern_dtype dtype, enum kern_role role, int64_t count) {
  QUERN_ASSERT(kern->n_phases == 0);
  if (kern->n_mems == KERN_MAX_MEMS) {
    fail(kern, base_error(QUERN_STATUS_INTERNAL, "kernel: more than %d memories", KERN_MAX_MEMS));
    return 0;
  }
  kern->mems[kern->n_mems] = (struct kern_mem){.dtype = dtype, .role = role, .count = count, .alias = -1};
  return kern->n_mems++;
}

static struct kern_fn *add_fn(struct kern *kern, const char *name) {
  if (kern->fns.n == KERN_MAX_FNS) {
    fail(kern, base_error(QUERN_STATUS_INTERNAL, "kernel: more than %d functions", KERN_MAX_FNS));
    return NULL;
  }
  struct kern_fn *fn = base_alloc_zero(kern->heap, sizeof *fn);
  if (fn == NULL || !base_vec_push(kern->heap, &kern->fns, fn)) {
    fail(kern, QUERN_STATUS_MEMORY);
    base_free(kern->heap, fn, sizeof *fn);
    return NULL;
  }
  fn->name = base_arena_string(&kern->arena, name, strlen(name));
  if (fn->name == NULL) fail(kern, QUERN_STATUS_MEMORY);
  return fn;
}

struct kern_fn *kern_add_phase(struct kern *kern, struct kern_tasks tasks) {
  if (kern->n_phases == KERN_MAX_PHASES) {
    fail(kern, base_error(QUERN_STATUS_INTERNAL, "kernel: more than %d phases", KERN_MAX_PHASES));
    return NULL;
  }
  if (tasks.mul > KERN_MAX_TASKS) {
    fail(kern, base_error(QUERN_STATUS_UNSUPPORTED,
                          "kernel: %lld tasks, where %lld are the most: tensors of the graph are too large",
                          (long long)tasks.mul, (long long)KERN_MAX_TASKS));
    return NULL;
  }
  char name[32];
  snprintf(name, sizeof name, "phase%d", kern->n_phases);
  struct kern_fn *fn = add_fn(kern, name);
  if (fn == NULL) return NULL;
  fn->n_mems = kern->n_mems;
  fn->n_scalars = kern->n_scalars;
  memcpy(fn->mems, kern->mems, sizeof fn->mems);
  kern->phases[kern->n_phases++] = (struct kern_phase){.fn = (int)kern->fns.n - 1, .tasks = tasks};
  return fn;
}

void kern_phase_copies(struct kern *kern, int from, int to) {
  if (kern->failed != QUERN_STATUS_OK) return;
  QUERN_ASSERT(kern->n_phases > 0 && kern->mems[to].alias == from);
  kern->phases[kern->n_phases - 1].from = from;
  kern->phases[kern->n_phases - 1].to = to;
}

void kern_add_library_call(struct kern *kern, const struct kern_library_call *call) {
  if (kern->failed != QUERN_STATUS_OK) return;
  QUERN_ASSERT(kern->library_call.kind == KERN_LIBRARY_NONE && call->kind != KERN_LIBRARY_NONE);
  if (kern->n_phases == KERN_MAX_PHASES) {
    fail(kern, base_error(QUERN_STATUS_INTERNAL, "kernel: more than %d phases", KERN_MAX_PHASES));
    return;
  }
  kern->library_call = *call;
  kern->phases[kern->n_phases++] = (struct kern_phase){.fn = -1, .library_call = true, .tasks = KERN_FIXED_TASKS(1)};
}

struct kern_fn *kern_add_fn(struct kern *kern, const char *name, int n_mems, const quern_dtype *dtypes, int n_scalars) {
  QUERN_ASSERT(n_mems <= KERN_MAX_MEMS && n_scalars <= KERN_MAX_SCALARS);
  struct kern_fn *fn = add_fn(kern, name);
  if (fn == NULL) return NULL;
  fn->n_mems = n_mems;
  fn->n_scalars = n_scalars;
  for (int i = 0; i < n_mems; i++)
    fn->mems[i] = (struct kern_mem){.dtype = dtypes[i], .role = KERN_OUT, .count = -1, .alias = -1};
  return fn;
}

static uint64_t hash_fn(uint64_t h, const struct kern_fn *fn) {
  h = base_hash_u64(h, (uint64_t)fn->n_mems << 32 | (uint64_t)fn->n_scalars);
  for (int i = 0; i < fn->n_mems; i++) {
    h = base_hash_u64(h, (uint64_t)fn->mems[i].streaming << 16 | base_dtype_code(fn->mems[i].dtype) << 8 |
                             (uint64_t)fn->mems[i].role);
    h = base_hash_u64(h, (uint64_t)fn->mems[i].count);
    h = base_hash_u64(base_hash_u64(h, (uint64_t)fn->mems[i].alias), (uint64_t)fn->mems[i].in_place_class);
  }
  for (size_t i = 0; i < fn->insts.n; i++) {
    const struct kern_inst *x = &fn->insts.at[i];
    h = base_hash_u64(h, (uint64_t)x->op << 32 | base_dtype_code(x->dtype) << 16 | (uint64_t)x->lanes);
    h = base_hash_u64(h, (uint64_t)(uint32_t)x->arg[0] << 32 | (uint32_t)x->arg[1]);
    h = base_hash_u64(h, (uint64_t)(uint32_t)x->arg[2] << 32 | (uint32_t)x->arg[3]);
    h = base_hash_u64(h, (uint64_t)x->imm);
  }
  return base_hash_bytes(h, fn->pool.at, fn->pool.n * sizeof *fn->pool.at);
}

quern_status kern_finish(struct kern *kern, const char *root, const quern_tensor *type) {
  QUERN_TRY(kern->failed);
  uint64_t h = BASE_HASH_SEED;
  for (size_t i = 0; i < kern->fns.n; i++) {
    const struct kern_fn *fn = kern->fns.at[i];
    QUERN_CHECK(fn->depth == 0, INTERNAL, "kernel %s: function %s has %d open blocks", root, fn->name, fn->depth);
    h = hash_fn(h, fn);
  }
  for (int i = 0; i < kern->n_phases; i++) {
    const struct kern_phase *p = &kern->phases[i];
    h = base_hash_u64(h, (uint64_t)p->fn << 32 | (uint32_t)p->tasks.scalar);
    h = base_hash_u64(base_hash_u64(h, (uint64_t)p->tasks.mul), (uint64_t)p->tasks.div);
    if (p->block_threads > 0) h = base_hash_u64(h, (uint64_t)p->block_threads);
    if (p->min_blocks_per_sm > 0) h = base_hash_u64(h, (uint64_t)p->min_blocks_per_sm);
    if (p->batch_tasks.div > 0) h = base_hash_bytes(h, &p->batch_tasks, sizeof p->batch_tasks);
  }
  if (kern->unaligned_base) h = base_hash_u64(h, 1);
  kern->hash = h = kern_hash_library_call(h, kern);
  struct base_str name;
  base_str_init(&name, kern->heap);
  base_str_printf(&name, "k_%08x_%s", (unsigned)(h >> 32), root);
  for (int i = 0; type != NULL && i < type->rank; i++)
    base_str_printf(&name, "%s%lld", i == 0 ? "_" : "x", (long long)type->dims[i]);
  quern_status status = base_str_status(&name);
  for (size_t i = 0; status == QUERN_STATUS_OK && i < name.n; i++) {
    char c = name.at[i];
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))) name.at[i] = '_';
  }
  if (status == QUERN_STATUS_OK) kern->name = base_arena_string(&kern->arena, name.at, name.n);
  if (status == QUERN_STATUS_OK && kern->name == NULL) status = QUERN_STATUS_MEMORY;
  base_str_fini(&name);
  return status;
}

/* ---- instructions --------------------------------------------------------------------------------------- */

kern_id kern_emit(struct kern_builder *b, struct kern_inst inst) {
  if (b->kern->failed != QUERN_STATUS_OK || b->fn == NULL) return 0;
  if (b->fn->insts.n >= INT32_MAX || !base_vec_push(b->kern->heap, &b->fn->insts, inst)) {
    fail(b->kern, QUERN_STATUS_MEMORY);
    return 0;
  }
  return (kern_id)b->fn->insts.n - 1;
}

static bool is_ok(const struct kern_builder *b) { return b->kern->failed == QUERN_STATUS_OK && b->fn != NULL; }

static kern_id emit(struct kern_builder *b, enum kern_op op, quern_dtype dtype, int lanes, kern_id x, kern_id y,
                    kern_id z, kern_id w, int64_t imm) {
  return kern_emit(b, (struct kern_inst){.op = op, .dtype = dtype, .lanes = lanes, .arg = {x, y, z, w}, .imm = imm});
}

#define NONE4 KERN_NONE, KERN_NONE, KERN_NONE, KERN_NONE

kern_id kern_const_bits(struct kern_builder *b, quern_dtype dtype, int lanes, uint64_t bits) {
  return emit(b, KERN_CONST, dtype, lanes, NONE4, (int64_t)bits);
}

kern_id kern_const_f(struct kern_builder *b, quern_dtype dtype, int lanes, double value) {
  uint64_t bits = 0;
  base_store_float(dtype, &bits, 0, value);
  return kern_const_bits(b, dtype, lanes, bits);
}

kern_id kern_const_i(struct kern_builder *b, quern_dtype dtype, int lanes, int64_t value) {
  uint64_t bits = 0;
  base_store_int(dtype, &bits, 0, (uint64_t)value);
  return kern_const_bits(b, dtype, lanes, bits);
}

kern_id kern_index(struct kern_builder *b, int64_t value) { return kern_const_i(b, QUERN_DTYPE_I64, 1, value); }
kern_id kern_lane(struct kern_builder *b, quern_dtype dtype, int lanes) {
  return emit(b, KERN_LANE, dtype, lanes, NONE4, 0);
}
kern_id kern_task(struct kern_builder *b) { return emit(b, KERN_TASK, QUERN_DTYPE_I64, 1, NONE4, 0); }
kern_id kern_scalar(struct kern_builder *b, int number) {
  return emit(b, KERN_SCALAR, QUERN_DTYPE_I64, 1, NONE4, number);
}

kern_id kern_mem(struct kern_builder *b, int number) {
  if (!is_ok(b)) return 0;
  QUERN_ASSERT(number >= 0 && number < b->fn->n_mems);
  return emit(b, KERN_MEM, b->fn->mems[number].dtype, 0, NONE4, number);
}

kern_id kern_local(struct kern_builder *b, quern_dtype dtype, int64_t count) {
  return emit(b, KERN_LOCAL, dtype, 0, NONE4, count);
}
kern_id kern_local_warp(struct kern_builder *b, quern_dtype dtype, int64_t count) {
  kern_id warp = kern_index(b, KERN_WARP);
  return emit(b, KERN_LOCAL, dtype, 0, warp, KERN_NONE, KERN_NONE, KERN_NONE, count);
}

/* The dtype and lanes of a value; of 0 when building has failed, whatever they are then. */
static struct kern_inst type_of(const struct kern_builder *b, kern_id x) {
  if (!is_ok(b)) return (struct kern_inst){.dtype = QUERN_DTYPE_F32, .lanes = 1};
  QUERN_ASSERT(x >= 0 && (size_t)x < b->fn->insts.n);
  return b->fn->insts.at[x];
}

kern_id kern_at(struct kern_builder *b, kern_id mem, kern_id index) {
  return emit(b, KERN_AT, type_of(b, mem).dtype, 0, mem, index, KERN_NONE, KERN_NONE, 0);
}
kern_id kern_load(struct kern_builder *b, kern_id mem, kern_id index, int lanes) {
  return kern_load_n(b, mem, index, lanes, KERN_NONE);
}
kern_id kern_load_n(struct kern_builder *b, kern_id mem, kern_id index, int lanes, kern_id count) {
  return emit(b, KERN_LOAD, type_of(b, mem).dtype, lanes, mem, index, count, KERN_NONE, 0);
}
void kern_store(struct kern_builder *b, kern_id mem, kern_id index, kern_id value) {
  kern_store_n(b, mem, index, value, KERN_NONE);
}
void kern_store_n(struct kern_builder *b, kern_id mem, kern_id index, kern_id value, kern_id count) {
  emit(b, KERN_STORE, type_of(b, value).dtype, 0, mem, index, value, count, 0);
}
kern_id kern_gather(struct kern_builder *b, kern_id mem, kern_id indices) { return kern_gather_n(b, mem, indices, 1); }
kern_id kern_gather_n(struct kern_builder *b, kern_id mem, kern_id indices, int n) {
  return emit(b, KERN_GATHER, type_of(b, mem).dtype, type_of(b, indices).lanes * n, mem, indices, KERN_NONE, KERN_NONE,
              n > 1 ? n : 0);
}
void kern_scatter_n(struct kern_builder *b, kern_id mem, kern_id indices, kern_id value, kern_id mask) {
  struct kern_inst x = type_of(b, value);
  int lanes = BASE_MAX(type_of(b, indices).lanes, 1);
  emit(b, KERN_SCATTER, x.dtype, 0, mem, indices, value, mask, x.lanes / lanes);
}

void kern_prefetch(struct kern_builder *b, kern_id mem, kern_id index) { kern_prefetch_n(b, mem, index, 0); }

void kern_prefetch_n(struct kern_builder *b, kern_id mem, kern_id index, int64_t count) {
  emit(b, KERN_PREFETCH, type_of(b, mem).dtype, 0, mem, index, KERN_NONE, KERN_NONE, count);
}

/* Counts a block that opens (1) or closes (-1). */
static void count_block(struct kern_builder *b, int change) {
  if (!is_ok(b)) return;
  b->fn->depth += change;
  if (b->fn->depth < 0 || b->fn->depth > KERN_MAX_DEPTH)
    fail(b->kern, base_error(QUERN_STATUS_INTERNAL, "kernel: function %s: %d open blocks; 0 to %d can be", b->fn->name,
                             b->fn->depth, KERN_MAX_DEPTH));
}

kern_id kern_for(struct kern_builder *b, kern_id lo, kern_id hi, int64_t step) {
  QUERN_ASSERT(step > 0);
  count_block(b, 1);
  return emit(b, KERN_FOR, QUERN_DTYPE_I64, 1, lo, hi, KERN_NONE, KERN_NONE, step);
}
void kern_if(struct kern_builder *b, kern_id cond) {
  count_block(b, 1);
  emit(b, KERN_IF, QUERN_DTYPE_BOOL, 0, cond, KERN_NONE, KERN_NONE, KERN_NONE, 0);
}
void kern_else(struct kern_builder *b) { emit(b, KERN_ELSE, QUERN_DTYPE_BOOL, 0, NONE4, 0); }
void kern_end(struct kern_builder *b) {
  count_block(b, -1);
  emit(b, KERN_END, QUERN_DTYPE_BOOL, 0, NONE4, 0);
}

kern_id kern_var(struct kern_builder *b, kern_id init) {
  struct kern_inst t = type_of(b, init);
  return emit(b, KERN_VAR, t.dtype, t.lanes, init, KERN_NONE, KERN_NONE, KERN_NONE, 0);
}
kern_id kern_get(struct kern_builder *b, kern_id var) {
  struct kern_inst t = type_of(b, var);
  return emit(b, KERN_GET, t.dtype, t.lanes, var, KERN_NONE, KERN_NONE, KERN_NONE, 0);
}
void kern_set(struct kern_builder *b, kern_id var, kern_id value) {
  emit(b, KERN_SET, type_of(b, var).dtype, 0, var, value, KERN_NONE, KERN_NONE, 0);
}

/* Appends to the function's pool; the place of the first, or 0 when building has failed. */
static int64_t to_pool(struct kern_builder *b, size_t n, const int64_t *items) {
  if (!is_ok(b)) return 0;
  if (!base_vec_reserve(b->kern->heap, &b->fn->pool, n)) {
    fail(b->kern, QUERN_STATUS_MEMORY);
    return 0;
  }
  size_t at = b->fn->pool.n;
  for (size_t i = 0; i < n; i++) b->fn->pool.at[at + i] = items[i];
  b->fn->pool.n += n;
  return (int64_t)at;
}

void kern_call_fn(struct kern_builder *b, const struct kern_fn *fn, int n_mems, const kern_id *mems, int n_scalars,
                  const kern_id *scalars) {
  if (!is_ok(b)) return;
  QUERN_ASSERT(n_mems == fn->n_mems && n_scalars == fn->n_scalars);
  int64_t list[KERN_MAX_MEMS + KERN_MAX_SCALARS];
  int n = 0;
  for (int i = 0; i < n_mems; i++) list[n++] = mems[i];
  for (int i = 0; i < n_scalars; i++) list[n++] = scalars[i];
  int64_t number = -1;
  for (size_t i = 0; i < b->kern->fns.n; i++)
    if (b->kern->fns.at[i] == fn) number = (int64_t)i;
  QUERN_ASSERT(number >= 0);
  int64_t at = to_pool(b, (size_t)n, list);
  emit(b, KERN_CALL, QUERN_DTYPE_BOOL, 0, (kern_id)at, n_mems, KERN_NONE, KERN_NONE, number);
}

/* ---- arithmetic ----------------------------------------------------------------------------------------- */

/* True when x is an i64 constant (of any lanes): its value. */
static bool is_const(const struct kern_builder *b, kern_id x, int64_t *value) {
  if (!is_ok(b)) return false;
  const struct kern_inst *t = kern_at_id(b, x);
  *value = t->imm;
  return t->op == KERN_CONST && t->dtype == QUERN_DTYPE_I64;
}

static int64_t floor_div(int64_t x, int64_t by) { return x / by - (x % by < 0); }

/* The folded form of an i64 operation, or KERN_NONE. */
static kern_id fold(struct kern_builder *b, enum kern_op op, kern_id x, kern_id y) {
  int64_t u = 0, v = 0;
  bool cu = is_const(b, x, &u), cv = is_const(b, y, &v);
  int lanes = type_of(b, x).lanes;
  if (cu && cv) {
    uint64_t wrapped = 0;
    switch ((int)op) {
    case KERN_ADD: wrapped = (uint64_t)u + (uint64_t)v; break;
    case KERN_SUB: wrapped = (uint64_t)u - (uint64_t)v; break;
    case KERN_MUL: wrapped = (uint64_t)u * (uint64_t)v; break;
    case KERN_MAX: wrapped = (uint64_t)BASE_MAX(u, v); break;
    case KERN_MIN: wrapped = (uint64_t)BASE_MIN(u, v); break;
    default: return KERN_NONE;
    }
    return kern_const_i(b, QUERN_DTYPE_I64, lanes, (int64_t)wrapped);
  }
  if (op == KERN_ADD && cu && u == 0) return y;
  if ((op == KERN_ADD || op == KERN_SUB) && cv && v == 0) return x;
  if (op == KERN_MUL && cu && u == 1) return y;
  if (op == KERN_MUL && cv && v == 1) return x;
  if (op == KERN_MUL && ((cu && u == 0) || (cv && v == 0))) return kern_const_i(b, QUERN_DTYPE_I64, lanes, 0);
  return KERN_NONE;
}

/* A float constant, as a double. */
static bool is_float_const(const struct kern_builder *b, kern_id x, double *value) {
  struct kern_inst t = type_of(b, x);
  if (t.op != KERN_CONST || !(t.dtype == QUERN_DTYPE_F32 || t.dtype == QUERN_DTYPE_F64)) return false;
  *value = base_load_float(t.dtype, &t.imm, 0);
  return true;
}

/* (a + c) 2^k with constants is fma(a, 2^k, c 2^k): the same bits, as both are far from what is too large or too small.
** KERN_NONE: it is something else. */
static kern_id fold_scaled_sum(struct kern_builder *b, kern_id sum, kern_id scale) {
  struct kern_inst t = type_of(b, sum);
  double power, c;
  int exponent;
  if (t.op != KERN_ADD || !is_float_const(b, scale, &power) || frexp(power, &exponent) != 0.5) return KERN_NONE;
  int of_const = is_float_const(b, t.arg[1], &c) ? 1 : is_float_const(b, t.arg[0], &c) ? 0 : -1;
  if (of_const < 0 || exponent < -15 || exponent > 1 || !(fabs(c) >= 0x1p-32 && fabs(c) <= 0x1p32)) return KERN_NONE;
  return kern_fma(b, t.arg[1 - of_const], scale, kern_const_f(b, t.dtype, t.lanes, c * power));
}

kern_id kern_un(struct kern_builder *b, enum kern_op op, kern_id x) {
  struct kern_inst t = type_of(b, x);
  return emit(b, op, t.dtype, t.lanes, x, KERN_NONE, KERN_NONE, KERN_NONE, 0);
}

kern_id kern_bin(struct kern_builder *b, enum kern_op op, kern_id x, kern_id y) {
  struct kern_inst t = type_of(b, x);
  QUERN_ASSERT(!is_ok(b) || (t.dtype == type_of(b, y).dtype && t.lanes == type_of(b, y).lanes));
  if (t.dtype == QUERN_DTYPE_I64) {
    kern_id folded = fold(b, op, x, y);
    if (folded != KERN_NONE) return folded;
  }
  if (op == KERN_MUL && base_dtype_is(t.dtype, BASE_FLOAT) && is_ok(b)) {
    kern_id folded = fold_scaled_sum(b, x, y);
    if (folded == KERN_NONE) folded = fold_scaled_sum(b, y, x);
    if (folded != KERN_NONE) return folded;
  }
  quern_dtype dtype = kern_ops[op].result == KERN_RESULT_MASK ? QUERN_DTYPE_BOOL : t.dtype;
  return emit(b, op, dtype, t.lanes, x, y, KERN_NONE, KERN_NONE, 0);
}

kern_id kern_fma(struct kern_builder *b, kern_id x, kern_id y, kern_id z) {
  struct kern_inst t = type_of(b, x);
  return emit(b, KERN_FMA, t.dtype, t.lanes, x, y, z, KERN_NONE, 0);
}

kern_id kern_select(struct kern_builder *b, kern_id mask, kern_id yes, kern_id no) {
  struct kern_inst t = type_of(b, yes);
  return emit(b, KERN_SELECT, t.dtype, t.lanes, mask, yes, no, KERN_NONE, 0);
}

static kern_id convert(struct kern_builder *b, enum kern_op op, kern_id x, quern_dtype dtype, int lanes, int64_t imm) {
  return emit(b, op, dtype, lanes, x, KERN_NONE, KERN_NONE, KERN_NONE, imm);
}

kern_id kern_cast(struct kern_builder *b, kern_id x, quern_dtype dtype) {
  struct kern_inst t = type_of(b, x);
  return t.dtype == dtype ? x : convert(b, KERN_CAST, x, dtype, t.lanes, 0);
}

kern_id kern_bitcast(struct kern_builder *b, kern_id x, quern_dtype dtype) {
  struct kern_inst t = type_of(b, x);
  int bytes = t.lanes * (int)base_dtypes[t.dtype].size;
  return convert(b, KERN_BITCAST, x, dtype, bytes / (int)base_dtypes[dtype].size, 0);
}

kern_id kern_splat(struct kern_builder *b, kern_id x, int lanes) {
  struct kern_inst t = type_of(b, x);
  if (t.lanes == lanes) return x;
  if (t.op == KERN_CONST) return kern_const_bits(b, t.dtype, lanes, (uint64_t)t.imm);
  return convert(b, KERN_SPLAT, x, t.dtype, lanes, 0);
}

kern_id kern_extract(struct kern_builder *b, kern_id x, int lane) {
  return convert(b, KERN_EXTRACT, x, type_of(b, x).dtype, 1, lane);
}
kern_id kern_deinterleave(struct kern_builder *b, kern_id x, int n, int which) {
  struct kern_inst t = type_of(b, x);
  return n == 1 ? x : convert(b, KERN_DEINTERLEAVE, x, t.dtype, t.lanes / n, which);
}
kern_id kern_low(struct kern_builder *b, kern_id x) {
  struct kern_inst t = type_of(b, x);
  return convert(b, KERN_LOW, x, t.dtype, t.lanes / 2, 0);
}
kern_id kern_high(struct kern_builder *b, kern_id x) {
  struct kern_inst t = type_of(b, x);
  return convert(b, KERN_HIGH, x, t.dtype, t.lanes / 2, 0);
}
kern_id kern_join(struct kern_builder *b, kern_id x, kern_id y) {
  struct kern_inst t = type_of(b, x);
  return emit(b, KERN_JOIN, t.dtype, 2 * t.lanes, x, y, KERN_NONE, KERN_NONE, 0);
}

kern_id kern_interleave(struct kern_builder *b, kern_id x, kern_id y) {
  struct kern_inst t = type_of(b, x);
  return emit(b, KERN_INTERLEAVE, t.dtype, 2 * t.lanes, x, y, KERN_NONE, KERN_NONE, 0);
}

kern_id kern_hreduce(struct kern_builder *b, enum kern_op op, kern_id x) {
  return convert(b, KERN_HREDUCE, x, type_of(b, x).dtype, 1, (int64_t)op);
}

kern_id kern_shuffle(struct kern_builder *b, kern_id x, kern_id y, int lanes, const int *pattern) {
  int64_t list[KERN_MAX_LANES];
  QUERN_ASSERT(lanes <= KERN_MAX_LANES);
  for (int i = 0; i < lanes; i++) list[i] = pattern[i];
  int64_t at = to_pool(b, (size_t)lanes, list);
  return emit(b, KERN_SHUFFLE, type_of(b, x).dtype, lanes, x, y, KERN_NONE, KERN_NONE, at);
}

kern_id kern_table(struct kern_builder *b, kern_id index, quern_dtype dtype, const uint64_t bits[16]) {
  int64_t list[16];
  for (int i = 0; i < 16; i++) list[i] = (int64_t)bits[i];
  int64_t at = to_pool(b, 16, list);
  return convert(b, KERN_TABLE, index, dtype, type_of(b, index).lanes, at);
}

kern_id kern_dot4(struct kern_builder *b, kern_id acc, kern_id u8s, kern_id i8s) {
  struct kern_inst t = type_of(b, acc);
  return emit(b, KERN_DOT4, t.dtype, t.lanes, acc, u8s, i8s, KERN_NONE, 0);
}

kern_id kern_shuffle_xor(struct kern_builder *b, kern_id x, int distance) {
  struct kern_inst t = type_of(b, x);
  return convert(b, KERN_SHUFFLE_XOR, x, t.dtype, t.lanes, distance);
}

kern_id kern_mma(struct kern_builder *b, kern_id sums, kern_id x, kern_id y) {
  struct kern_inst t = type_of(b, sums);
  return emit(b, KERN_MMA, t.dtype, t.lanes, sums, x, y, KERN_NONE, 0);
}

static kern_id index_by(struct kern_builder *b, enum kern_op op, kern_id x, int64_t by) {
  QUERN_ASSERT(by > 0);
  struct kern_inst t = type_of(b, x);
  int64_t u;
  if (is_const(b, x, &u)) {
    int64_t q = floor_div(u, by);
    return kern_const_i(b, QUERN_DTYPE_I64, t.lanes, op == KERN_IDIV ? q : u - q * by);
  }
  if (by == 1) return op == KERN_IDIV ? x : kern_const_i(b, QUERN_DTYPE_I64, t.lanes, 0);
  return convert(b, op, x, QUERN_DTYPE_I64, t.lanes, by);
}

kern_id kern_idiv(struct kern_builder *b, kern_id x, int64_t by) { return index_by(b, KERN_IDIV, x, by); }
kern_id kern_imod(struct kern_builder *b, kern_id x, int64_t by) { return index_by(b, KERN_IMOD, x, by); }
