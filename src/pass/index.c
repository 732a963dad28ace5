/* pass/index.c -- index expressions in normal form: which element of a tensor a point of a space means
** keeps: equal expressions are the same pointer; lo and hi enclose every value over the space
** tests: tests/pass/test_index.c (against plain evaluation at every point)
*/
#include "pass/pass_int.h"

/* Wrap-around arithmetic: sizes that overflow belong to tensors without elements, where no value matters. */
static int64_t add(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
static int64_t mul(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }
static int64_t floor_div(int64_t a, int64_t n) { return a / n - (a % n < 0); }
static int64_t floor_mod(int64_t a, int64_t n) { return a % n + (a % n < 0 ? n : 0); }

static int64_t gcd(int64_t a, int64_t b) {
  while (b != 0) {
    int64_t r = a % b;
    a = b;
    b = r;
  }
  return a < 0 ? -a : a;
}

/* ---- spaces --------------------------------------------------------------------------------------------- */

quern_status pass_space_new(struct pass_space **space, struct base_heap *heap) {
  *space = base_alloc_zero(heap, sizeof **space);
  if (*space == NULL) return QUERN_STATUS_MEMORY;
  (*space)->heap = heap;
  base_arena_init(&(*space)->arena, heap);
  (*space)->arena.first = 4096; /* there are thousands of spaces, and most are small */
  base_map_init(&(*space)->indices, heap);
  base_map_init(&(*space)->atoms, heap);
  return QUERN_STATUS_OK;
}

void pass_space_free(struct pass_space *space) {
  if (space == NULL) return;
  base_map_fini(&space->indices);
  base_map_fini(&space->atoms);
  base_vec_fini(space->heap, &space->extents);
  base_arena_fini(&space->arena);
  base_free(space->heap, space, sizeof *space);
}

int pass_space_add(struct pass_space *space, int64_t extent) {
  if (!base_vec_push(space->heap, &space->extents, extent)) {
    space->failed = true;
    return 0;
  }
  return (int)space->extents.n - 1;
}

/* ---- making expressions and atoms ----------------------------------------------------------------------- */

static const struct pass_index zero; /* what a builder returns when there is no memory */

static bool same_index(const void *item, const void *key) {
  const struct pass_index *a = item, *b = key;
  if (a->constant != b->constant || a->n_terms != b->n_terms) return false;
  for (int i = 0; i < a->n_terms; i++)
    if (a->terms[i].coef != b->terms[i].coef || a->terms[i].atom != b->terms[i].atom) return false;
  return true;
}

static bool same_atom(const void *item, const void *key) {
  const struct pass_atom *a = item, *b = key;
  return a->kind == b->kind && a->var == b->var && a->of == b->of && a->by == b->by;
}

static void atom_range(const struct pass_space *space, const struct pass_atom *atom, int64_t *lo, int64_t *hi) {
  if (atom->kind == PASS_ATOM_VAR) {
    int64_t extent = space->extents.at[atom->var];
    *lo = 0;
    *hi = extent > 0 ? extent - 1 : 0;
  } else if (atom->kind == PASS_ATOM_DIV) {
    *lo = floor_div(atom->of->lo, atom->by);
    *hi = floor_div(atom->of->hi, atom->by);
  } else if (atom->kind == PASS_ATOM_MOD) {
    *lo = 0;
    *hi = atom->by - 1;
  } else {
    *lo = BASE_MIN(BASE_MAX(atom->of->lo, 0), atom->by - 1);
    *hi = BASE_MIN(BASE_MAX(atom->of->hi, 0), atom->by - 1);
  }
}

/* The interned expression of terms that are sorted, distinct and not 0. */
static const struct pass_index *intern(struct pass_space *space, int64_t constant, int n, struct pass_term *terms) {
  struct pass_index key = {.constant = constant, .n_terms = n, .terms = terms, .lo = constant, .hi = constant};
  uint64_t hash = base_hash_u64(BASE_HASH_SEED, (uint64_t)constant);
  for (int i = 0; i < n; i++) hash = base_hash_u64(base_hash_u64(hash, (uint64_t)terms[i].coef), terms[i].atom->id);
  const struct pass_index *found = base_map_find(&space->indices, hash, same_index, &key);
  if (found != NULL) return found;
  for (int i = 0; i < n; i++) {
    int64_t lo, hi;
    atom_range(space, terms[i].atom, &lo, &hi);
    key.lo = add(key.lo, mul(terms[i].coef, terms[i].coef > 0 ? lo : hi));
    key.hi = add(key.hi, mul(terms[i].coef, terms[i].coef > 0 ? hi : lo));
  }
  key.id = space->n_indices;
  struct pass_index *made = base_arena_copy(&space->arena, &key, sizeof key);
  struct pass_term *copy = base_arena_copy(&space->arena, terms, (size_t)n * sizeof *terms);
  if (made == NULL || copy == NULL || !base_map_add(&space->indices, hash, made)) {
    space->failed = true;
    return &zero;
  }
  made->terms = copy;
  space->n_indices++;
  return made;
}

static const struct pass_index *of_atom(struct pass_space *space, enum pass_atom_kind kind, int var,
                                        const struct pass_index *of, int64_t by) {
  struct pass_atom key = {.kind = kind, .var = var, .of = of, .by = by, .id = space->n_atoms};
  uint64_t hash = base_hash_u64(base_hash_u64(BASE_HASH_SEED, (uint64_t)kind), (uint64_t)var);
  if (of != NULL) hash = base_hash_u64(base_hash_u64(hash, of->id), (uint64_t)by);
  struct pass_atom *atom = base_map_find(&space->atoms, hash, same_atom, &key);
  if (atom == NULL) {
    atom = base_arena_copy(&space->arena, &key, sizeof key);
    if (atom == NULL || !base_map_add(&space->atoms, hash, atom)) {
      space->failed = true;
      return &zero;
    }
    space->n_atoms++;
  }
  return intern(space, 0, 1, &(struct pass_term){1, atom});
}

/* a + by * b, term by term: both are sorted. */
static const struct pass_index *add_scaled(struct pass_space *space, const struct pass_index *a,
                                           const struct pass_index *b, int64_t by) {
  size_t room = (size_t)a->n_terms + (size_t)b->n_terms;
  struct pass_term few[16], *terms = few;
  if (room > BASE_COUNT(few)) {
    terms = base_arena_alloc(&space->arena, room * sizeof *terms);
    if (terms == NULL) {
      space->failed = true;
      return &zero;
    }
  }
  int n = 0, i = 0, j = 0;
  while (i < a->n_terms || j < b->n_terms) {
    bool from_a = i < a->n_terms && (j == b->n_terms || a->terms[i].atom->id <= b->terms[j].atom->id);
    bool from_b = j < b->n_terms && (i == a->n_terms || b->terms[j].atom->id <= a->terms[i].atom->id);
    struct pass_term t = {0, from_a ? a->terms[i].atom : b->terms[j].atom};
    if (from_a) t.coef = a->terms[i++].coef;
    if (from_b) t.coef = add(t.coef, mul(by, b->terms[j++].coef));
    if (t.coef != 0) terms[n++] = t;
  }
  return intern(space, add(a->constant, mul(by, b->constant)), n, terms);
}

const struct pass_index *pass_index_const(struct pass_space *space, int64_t value) {
  return intern(space, value, 0, NULL);
}

const struct pass_index *pass_index_var(struct pass_space *space, int var) {
  if (var < 0 || (size_t)var >= space->extents.n) return &zero; /* pass_space_add had no memory */
  if (space->extents.at[var] <= 1) return pass_index_const(space, 0);
  return of_atom(space, PASS_ATOM_VAR, var, NULL, 0);
}

const struct pass_index *pass_index_scale(struct pass_space *space, const struct pass_index *a, int64_t by) {
  return add_scaled(space, pass_index_const(space, 0), a, by);
}

/* How far from plain: terms that are not variables count most. */
static int weight(const struct pass_index *e) {
  int sum = 0;
  for (int i = 0; i < e->n_terms; i++) sum += e->terms[i].atom->kind == PASS_ATOM_VAR ? 1 : 1000;
  return sum;
}

/* k (x mod n) + k n floor(x / n) = k x: takes the left side back where that is plainer. */
static const struct pass_index *recombine(struct pass_space *space, const struct pass_index *e) {
  for (int i = 0; i < e->n_terms; i++) {
    const struct pass_term *t = &e->terms[i];
    if (t->atom->kind != PASS_ATOM_MOD) continue;
    const struct pass_index *x = t->atom->of;
    const struct pass_index *quotient = pass_index_div(space, x, t->atom->by);
    const struct pass_index *rest =
        add_scaled(space, e, intern(space, 0, 1, &(struct pass_term){1, t->atom}), -t->coef);
    rest = add_scaled(space, rest, x, t->coef);
    rest = add_scaled(space, rest, quotient, mul(-t->coef, t->atom->by));
    bool wider = rest->lo < e->lo || rest->hi > e->hi; /* what is known of its range would be lost */
    if (weight(rest) < weight(e) && !wider) {
      e = rest;
      i = -1;
    }
  }
  return e;
}

const struct pass_index *pass_index_add(struct pass_space *space, const struct pass_index *a,
                                        const struct pass_index *b) {
  return recombine(space, add_scaled(space, a, b, 1));
}

/* ---- division ------------------------------------------------------------------------------------------- */

/* The terms of e whose coefficients are multiples of n, divided by n, and what is left: e = n * whole + rest, with
** 0 <= the constant of rest < n. */
static void split(struct pass_space *space, const struct pass_index *e, int64_t n, const struct pass_index **whole,
                  const struct pass_index **rest) {
  const struct pass_index *w = pass_index_const(space, floor_div(e->constant, n));
  const struct pass_index *r = pass_index_const(space, floor_mod(e->constant, n));
  for (int i = 0; i < e->n_terms; i++) {
    const struct pass_index *one = intern(space, 0, 1, &(struct pass_term){1, e->terms[i].atom});
    int64_t coef = e->terms[i].coef;
    if (coef % n == 0)
      w = add_scaled(space, w, one, coef / n);
    else
      r = add_scaled(space, r, one, coef);
  }
  *whole = w;
  *rest = r;
}

/* The largest g that divides n, 1 < g < n, such that rest = g * y + r with 0 <= r < g throughout; 0 when there is
** none. */
static int64_t common_factor(struct pass_space *space, const struct pass_index *rest, int64_t n,
                             const struct pass_index **y, const struct pass_index **r) {
  int64_t best = 0;
  for (int i = 0; i < rest->n_terms; i++) {
    int64_t g = gcd(rest->terms[i].coef, n);
    if (g <= 1 || g >= n || g <= best) continue;
    const struct pass_index *whole, *left;
    split(space, rest, g, &whole, &left);
    if (left->lo < 0 || left->hi >= g) continue;
    best = g;
    *y = whole;
    *r = left;
  }
  return best;
}

static bool is_atom(const struct pass_index *e, enum pass_atom_kind kind) {
  return e->n_terms == 1 && e->terms[0].coef == 1 && e->terms[0].atom->kind == kind;
}

const struct pass_index *pass_index_div(struct pass_space *space, const struct pass_index *a, int64_t by) {
  QUERN_ASSERT(by > 0);
  if (by == 1) return a;
  const struct pass_index *whole, *rest, *y, *r;
  split(space, a, by, &whole, &rest);
  if (floor_div(rest->lo, by) == floor_div(rest->hi, by))
    return pass_index_add(space, whole, pass_index_const(space, floor_div(rest->lo, by)));
  int64_t g = common_factor(space, rest, by, &y, &r);
  if (g != 0) return pass_index_add(space, whole, pass_index_div(space, y, by / g));
  if (is_atom(rest, PASS_ATOM_DIV)) { /* floor((floor(e / n) + c) / by) = floor((e + c n) / (n by)) */
    const struct pass_atom *atom = rest->terms[0].atom;
    const struct pass_index *e = pass_index_const(space, mul(rest->constant, atom->by));
    e = pass_index_add(space, atom->of, e);
    return pass_index_add(space, whole, pass_index_div(space, e, mul(atom->by, by)));
  }
  if (is_atom(rest, PASS_ATOM_MOD) && rest->constant == 0 && rest->terms[0].atom->by % by == 0) {
    const struct pass_atom *atom = rest->terms[0].atom; /* floor((e mod n) / by) = floor(e / by) mod (n / by) */
    const struct pass_index *e = pass_index_div(space, atom->of, by);
    return pass_index_add(space, whole, pass_index_mod(space, e, atom->by / by));
  }
  return pass_index_add(space, whole, of_atom(space, PASS_ATOM_DIV, 0, rest, by));
}

const struct pass_index *pass_index_mod(struct pass_space *space, const struct pass_index *a, int64_t by) {
  QUERN_ASSERT(by > 0);
  const struct pass_index *whole, *rest, *y, *r;
  split(space, a, by, &whole, &rest);
  int64_t turns = floor_div(rest->lo, by);
  if (turns == floor_div(rest->hi, by)) return pass_index_add(space, rest, pass_index_const(space, mul(-turns, by)));
  int64_t g = common_factor(space, rest, by, &y, &r);
  if (g != 0) return pass_index_add(space, pass_index_scale(space, pass_index_mod(space, y, by / g), g), r);
  if (is_atom(rest, PASS_ATOM_MOD) && rest->constant == 0 && rest->terms[0].atom->by % by == 0)
    return pass_index_mod(space, rest->terms[0].atom->of, by);
  return of_atom(space, PASS_ATOM_MOD, 0, rest, by);
}

const struct pass_index *pass_index_clamp(struct pass_space *space, const struct pass_index *a, int64_t n) {
  QUERN_ASSERT(n > 0);
  if (a->lo >= 0 && a->hi < n) return a;
  if (a->hi <= 0) return pass_index_const(space, 0);
  if (a->lo >= n - 1) return pass_index_const(space, n - 1);
  return of_atom(space, PASS_ATOM_CLAMP, 0, a, n);
}

/* ---- elements of tensors -------------------------------------------------------------------------------- */

const struct pass_index *pass_index_flat(struct pass_space *space, int rank, const int64_t *dims,
                                         const struct pass_index *const *at) {
  const struct pass_index *flat = pass_index_const(space, 0);
  for (int k = 0; k < rank; k++) flat = pass_index_add(space, pass_index_scale(space, flat, dims[k]), at[k]);
  return flat;
}

void pass_index_unflat(struct pass_space *space, const struct pass_index *flat, int rank, const int64_t *dims,
                       const struct pass_index **out) {
  for (int k = rank - 1; k >= 0; k--) {
    int64_t dim = dims[k] > 0 ? dims[k] : 1;
    out[k] = k > 0 || flat->lo < 0 || flat->hi >= dim ? pass_index_mod(space, flat, dim) : flat;
    flat = pass_index_div(space, flat, dim);
  }
}

bool pass_index_source(struct pass_space *space, const struct ir_node *node, int src_number,
                       const struct pass_index *const *at, const struct pass_index **in) {
  const quern_tensor *out = &node->out[0], *src = node->src[src_number];
  const struct ir_attrs *attrs = node->attrs;
  if (pass_ops[node->op].elementwise) {
    for (int k = 0; k < out->rank; k++) in[k] = at[k];
    return true;
  }
  switch ((int)node->op) {
  case IR_RESHAPE:
    pass_index_unflat(space, pass_index_flat(space, out->rank, out->dims, at), src->rank, src->dims, in);
    return true;
  case IR_PERMUTE:
    for (int k = 0; k < out->rank; k++) in[attrs->axes.at[k]] = at[k];
    return true;
  case IR_BROADCAST:
    for (int k = 0; k < out->rank; k++) in[k] = src->dims[k] == 1 ? pass_index_const(space, 0) : at[k];
    return true;
  case IR_SLICE:
    for (int k = 0; k < out->rank; k++) {
      in[k] = pass_index_scale(space, at[k], attrs->step.at[k]);
      in[k] = pass_index_add(space, in[k], pass_index_const(space, attrs->lo.at[k]));
    }
    return true;
  case IR_FLIP:
    for (int k = 0; k < out->rank; k++) in[k] = at[k];
    for (int i = 0; i < attrs->axes.n; i++) {
      int64_t k = attrs->axes.at[i];
      in[k] = pass_index_scale(space, at[k], -1);
      in[k] = pass_index_add(space, in[k], pass_index_const(space, out->dims[k] - 1));
    }
    return true;
  case IR_WINDOW:
    for (int k = 0; k < src->rank; k++) in[k] = at[k];
    for (int i = 0; i < attrs->axes.n; i++) {
      int64_t k = attrs->axes.at[i];
      const struct pass_index *o = pass_index_scale(space, at[k], attrs->step.at[i]);
      in[k] = pass_index_add(space, o, pass_index_scale(space, at[src->rank + i], attrs->dilate.at[i]));
    }
    return true;
  default: return false;
  }
}

/* ---- looking at expressions ----------------------------------------------------------------------------- */

bool pass_index_affine(const struct pass_space *space, const struct pass_index *e, int64_t *coef, int64_t *constant) {
  for (size_t v = 0; v < space->extents.n; v++) coef[v] = 0;
  for (int i = 0; i < e->n_terms; i++) {
    if (e->terms[i].atom->kind != PASS_ATOM_VAR) return false;
    coef[e->terms[i].atom->var] = e->terms[i].coef;
  }
  *constant = e->constant;
  return true;
}

bool pass_index_uses(const struct pass_index *e, int var) {
  for (int i = 0; i < e->n_terms; i++) {
    const struct pass_atom *atom = e->terms[i].atom;
    if (atom->kind == PASS_ATOM_VAR ? atom->var == var : pass_index_uses(atom->of, var)) return true;
  }
  return false;
}

bool pass_index_stride(const struct pass_space *space, const struct pass_index *e, int var, int64_t *stride) {
  (void)space;
  *stride = 0;
  for (int i = 0; i < e->n_terms; i++) {
    const struct pass_atom *atom = e->terms[i].atom;
    if (atom->kind == PASS_ATOM_VAR && atom->var == var)
      *stride = e->terms[i].coef;
    else if (atom->kind != PASS_ATOM_VAR && pass_index_uses(atom->of, var))
      return false;
  }
  return true;
}

const struct pass_index *pass_index_replace(struct pass_space *space, const struct pass_index *e,
                                            const struct pass_index *const *by) {
  const struct pass_index *out = pass_index_const(space, e->constant);
  for (int i = 0; i < e->n_terms; i++) {
    const struct pass_atom *atom = e->terms[i].atom;
    const struct pass_index *x;
    if (atom->kind == PASS_ATOM_VAR) {
      x = by[atom->var] != NULL ? by[atom->var] : pass_index_var(space, atom->var);
    } else {
      x = pass_index_replace(space, atom->of, by);
      x = (atom->kind == PASS_ATOM_DIV   ? pass_index_div
           : atom->kind == PASS_ATOM_MOD ? pass_index_mod
                                         : pass_index_clamp)(space, x, atom->by);
    }
    out = pass_index_add(space, out, pass_index_scale(space, x, e->terms[i].coef));
  }
  return out;
}

void pass_index_print(struct base_str *str, const struct pass_index *e) {
  for (int i = 0; i < e->n_terms; i++) {
    const struct pass_atom *atom = e->terms[i].atom;
    base_str_add(str, i == 0 ? "" : " + ");
    if (e->terms[i].coef != 1) base_str_printf(str, "%lld*", (long long)e->terms[i].coef);
    if (atom->kind == PASS_ATOM_VAR) {
      base_str_printf(str, "i%d", atom->var);
    } else {
      static const char *const signs[] = {[PASS_ATOM_DIV] = "/", [PASS_ATOM_MOD] = "%", [PASS_ATOM_CLAMP] = "<"};
      base_str_add(str, "(");
      pass_index_print(str, atom->of);
      base_str_printf(str, ")%s%lld", signs[atom->kind], (long long)atom->by);
    }
  }
  if (e->n_terms == 0 || e->constant != 0)
    base_str_printf(str, "%s%lld", e->n_terms == 0 ? "" : " + ", (long long)e->constant);
}
