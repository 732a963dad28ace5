/* tests/pass/test_index.c -- index expressions against plain evaluation at every point of small spaces */
#include "pass/pass_int.h"
#include "quern/tensor.h"
#include "unit.h"

enum { MAX_VARS = 4, STEPS = 40 };

static uint64_t seed = 1;
static int64_t pick(int64_t n) { /* 0 .. n - 1 */
  seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (int64_t)((seed >> 33) % (uint64_t)n);
}

static int64_t floor_div(int64_t a, int64_t n) { return a / n - (a % n < 0); }

static int64_t eval(const struct pass_index *e, const int64_t *vars) {
  int64_t sum = e->constant;
  for (int i = 0; i < e->n_terms; i++) {
    const struct pass_atom *atom = e->terms[i].atom;
    int64_t x = atom->kind == PASS_ATOM_VAR ? vars[atom->var] : eval(atom->of, vars);
    if (atom->kind == PASS_ATOM_DIV) x = floor_div(x, atom->by);
    if (atom->kind == PASS_ATOM_MOD) x -= atom->by * floor_div(x, atom->by);
    if (atom->kind == PASS_ATOM_CLAMP) x = x < 0 ? 0 : x >= atom->by ? atom->by - 1 : x;
    sum += e->terms[i].coef * x;
  }
  return sum;
}

static bool next_point(const struct pass_space *space, int64_t *vars) {
  for (size_t v = space->extents.n; v-- > 0;) {
    if (++vars[v] < space->extents.at[v]) return true;
    vars[v] = 0;
  }
  return false;
}

static struct pass_space *new_space(int n, const int64_t *extents) {
  static struct base_heap heap;
  base_heap_init(&heap, NULL);
  struct pass_space *space;
  assert_int_equal(pass_space_new(&space, &heap), QUERN_STATUS_OK);
  for (int i = 0; i < n; i++) assert_int_equal(pass_space_add(space, extents[i]), i);
  return space;
}

static void check_range(const struct pass_index *e, int64_t value) {
  if (value < e->lo || value > e->hi)
    fail_msg("value %lld is not within %lld .. %lld", (long long)value, (long long)e->lo, (long long)e->hi);
}

/* Random expressions: each step's meaning is computed beside it from the meanings of its arguments. */
static void test_random_expressions(void **state) {
  (void)state;
  for (int round = 0; round < 400; round++) {
    int64_t extents[MAX_VARS], vars[MAX_VARS] = {0}, values[STEPS];
    int n = 1 + (int)pick(MAX_VARS);
    for (int i = 0; i < n; i++) extents[i] = 1 + pick(5);
    struct pass_space *space = new_space(n, extents);
    const struct pass_index *e[STEPS];
    struct {
      int op, a, b;
      int64_t k;
    } step[STEPS];
    for (int s = 0; s < STEPS; s++) {
      step[s].op = s < n ? 0 : 1 + (int)pick(5);
      step[s].a = s < n ? s : (int)pick(s);
      step[s].b = s < n ? 0 : (int)pick(s);
      step[s].k = step[s].op == 2 ? pick(13) - 6 : 1 + pick(8);
      const struct pass_index *a = step[s].op == 0 ? NULL : e[step[s].a];
      if (step[s].op == 2 && (a->hi > 4000 || a->lo < -4000)) step[s].k = 1;
      e[s] = step[s].op == 0   ? pass_index_var(space, s)
             : step[s].op == 1 ? pass_index_add(space, a, e[step[s].b])
             : step[s].op == 2 ? pass_index_scale(space, a, step[s].k)
             : step[s].op == 3 ? pass_index_div(space, a, step[s].k)
             : step[s].op == 4 ? pass_index_mod(space, a, step[s].k)
                               : pass_index_clamp(space, a, step[s].k);
    }
    do {
      for (int s = 0; s < STEPS; s++) {
        int64_t a = step[s].op == 0 ? 0 : values[step[s].a], k = step[s].k;
        values[s] = step[s].op == 0   ? vars[s]
                    : step[s].op == 1 ? a + values[step[s].b]
                    : step[s].op == 2 ? a * k
                    : step[s].op == 3 ? floor_div(a, k)
                    : step[s].op == 4 ? a - k * floor_div(a, k)
                    : a < 0           ? 0
                    : a >= k          ? k - 1
                                      : a;
        assert_int_equal(eval(e[s], vars), values[s]);
        check_range(e[s], values[s]);
      }
    } while (next_point(space, vars));
    pass_space_free(space);
  }
}

/* Splitting a flat index and putting it together again, under other shapes on the way, gives the same pointer. */
static void test_reshape_round_trip(void **state) {
  (void)state;
  static const struct {
    int rank;
    int64_t dims[4];
  } shapes[] = {{1, {24}}, {2, {4, 6}}, {3, {2, 2, 6}}, {3, {4, 3, 2}}, {4, {2, 2, 3, 2}}, {2, {24, 1}}, {2, {3, 8}}};
  for (size_t i = 0; i < BASE_COUNT(shapes); i++) {
    for (size_t j = 0; j < BASE_COUNT(shapes); j++) {
      struct pass_space *space = new_space(shapes[i].rank, shapes[i].dims);
      const struct pass_index *at[4], *mid[4], *back[4];
      for (int k = 0; k < shapes[i].rank; k++) at[k] = pass_index_var(space, k);
      const struct pass_index *flat = pass_index_flat(space, shapes[i].rank, shapes[i].dims, at);
      pass_index_unflat(space, flat, shapes[j].rank, shapes[j].dims, mid);
      const struct pass_index *again = pass_index_flat(space, shapes[j].rank, shapes[j].dims, mid);
      if (again != flat) {
        struct base_str t;
        base_str_init(&t, space->heap);
        pass_index_print(&t, flat);
        base_str_add(&t, "   ->  ");
        pass_index_print(&t, again);
        fail_msg("shapes %zu, %zu: %s", i, j, t.at);
      }
      pass_index_unflat(space, again, shapes[i].rank, shapes[i].dims, back);
      for (int k = 0; k < shapes[i].rank; k++) assert_ptr_equal(back[k], at[k]);
      pass_space_free(space);
    }
  }
}

static void test_simplifies(void **state) {
  (void)state;
  struct pass_space *space = new_space(3, (const int64_t[]){4, 8, 16});
  const struct pass_index *i = pass_index_var(space, 0), *j = pass_index_var(space, 1), *k = pass_index_var(space, 2);
  const struct pass_index *e = pass_index_add(space, pass_index_scale(space, i, 8), j); /* 8 i + j, j < 8 */
  assert_ptr_equal(pass_index_div(space, e, 8), i);
  assert_ptr_equal(pass_index_mod(space, e, 8), j);
  assert_ptr_equal(pass_index_div(space, e, 16), pass_index_div(space, i, 2));
  e = pass_index_add(space, pass_index_scale(space, e, 16), k);
  assert_ptr_equal(pass_index_mod(space, pass_index_div(space, e, 16), 8), j);
  assert_ptr_equal(pass_index_div(space, pass_index_div(space, e, 4), 8), pass_index_div(space, e, 32));
  assert_ptr_equal(pass_index_clamp(space, k, 16), k);
  int64_t coef[3], constant, stride;
  assert_true(pass_index_affine(space, e, coef, &constant));
  assert_int_equal(coef[0], 128);
  assert_int_equal(coef[1], 16);
  assert_int_equal(coef[2], 1);
  const struct pass_index *odd = pass_index_add(space, pass_index_mod(space, j, 3), k);
  assert_false(pass_index_affine(space, odd, coef, &constant));
  assert_true(pass_index_stride(space, odd, 2, &stride));
  assert_int_equal(stride, 1);
  assert_false(pass_index_stride(space, odd, 1, &stride));
  assert_true(pass_index_uses(odd, 1));
  assert_false(pass_index_uses(odd, 0));
  pass_space_free(space);
}

/* Replacing variables is the same as evaluating at the replaced values. */
static void test_replace(void **state) {
  (void)state;
  struct pass_space *space = new_space(3, (const int64_t[]){3, 4, 12});
  const struct pass_index *flat = pass_index_var(space, 2);
  const struct pass_index *by[3] = {pass_index_div(space, flat, 4), pass_index_mod(space, flat, 4), NULL};
  const struct pass_index *i = pass_index_var(space, 0), *j = pass_index_var(space, 1);
  const struct pass_index *e = pass_index_add(space, pass_index_scale(space, i, 4), j);
  assert_ptr_equal(pass_index_replace(space, e, by), flat);
  struct base_str text;
  base_str_init(&text, space->heap);
  pass_index_print(&text, pass_index_add(space, pass_index_mod(space, flat, 5), pass_index_const(space, 7)));
  assert_string_equal(text.at, "(i2)%5 + 7");
  base_str_fini(&text);
  pass_space_free(space);
}

/* Ops are elementwise in the table of fusion when their kind of inference is. */
static void test_elementwise(void **state) {
  (void)state;
  static const char *const kinds[] = {"SAME", "CAST", "BITCAST", "PAIR", "COMPARE", "SELECT"};
  static const char *const infer[IR_OP_COUNT] = {
#define OP(NAME, text, src, out, INFER, ...) [IR_##NAME] = #INFER,
#include "ir/ops.def"
#undef OP
  };
  for (int op = 0; op < IR_OP_COUNT; op++) {
    bool expected = false;
    for (size_t i = 0; i < BASE_COUNT(kinds); i++) expected = expected || strcmp(infer[op], kinds[i]) == 0;
    if (pass_ops[op].elementwise != expected) fail_msg("%s: %d", ir_ops[op].name, !expected);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_expressions), cmocka_unit_test(test_reshape_round_trip),
      cmocka_unit_test(test_simplifies),         cmocka_unit_test(test_replace),
      cmocka_unit_test(test_elementwise),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
