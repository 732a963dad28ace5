/* tests/tensor/test_einsum.c -- einsum against loops over all indices, its graphs, and wrong specs */
#include "tensor/compound_test.h"
#include "tensor/einsum.h"

#define XS(...)                                                                                                        \
  (int)(sizeof((quern_tensor *[]){__VA_ARGS__}) / sizeof(quern_tensor *)), (quern_tensor *[]) { __VA_ARGS__ }

/* ---- random specs -------------------------------------------------------------------------------------- */

static uint64_t seed = 1;
static int draw(int n) {
  seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (int)(seed >> 33) % n;
}

enum { LETTERS = 4, DOTS = 2, LABELS = LETTERS + DOTS, OPERANDS = 4 }; /* labels from LETTERS on are places of "..." */

struct problem {
  char spec[200];
  int n, n_out, out[LABELS];
  int64_t size[LABELS];
  bool used[LABELS];
  struct {
    int rank, labels[8];
    int64_t dims[8];
    double data[300];
  } x[OPERANDS];
};

static void put(struct problem *p, const char *text) { strcat(p->spec, text); }

/* An index as a letter or in brackets, with a blank now and then. */
static void put_letter(struct problem *p, int label) {
  static const char *const forms[] = {"%c", "%c ", "[%c]", " [%c]"};
  char text[8];
  snprintf(text, sizeof text, forms[draw(8) < 6 ? 0 : draw(4)], "jbAi"[label]);
  put(p, text);
}

static void add_axis(struct problem *p, int i, int label, int64_t size) {
  p->x[i].labels[p->x[i].rank] = label;
  p->x[i].dims[p->x[i].rank++] = size;
  p->used[label] = true;
}

static void add_operand(struct problem *p, int i) {
  int letters = draw(4), dots_at = draw(3) == 0 ? draw(letters + 1) : -1, dots = draw(DOTS + 1);
  if (i > 0) put(p, ",");
  for (int k = 0; k <= letters; k++) {
    if (k == dots_at) {
      put(p, "...");
      for (int place = dots - 1; place >= 0; place--)
        add_axis(p, i, LETTERS + place, draw(4) == 0 ? 1 : p->size[LETTERS + place]);
    }
    if (k == letters) break;
    int label = draw(LETTERS);
    int64_t size = draw(5) == 0 ? 1 : p->size[label];
    for (int j = 0; j < p->x[i].rank; j++) size = p->x[i].labels[j] == label ? p->x[i].dims[j] : size; /* a diagonal */
    put_letter(p, label);
    add_axis(p, i, label, size);
  }
  size_t count = 1;
  for (int k = 0; k < p->x[i].rank; k++) count *= (size_t)p->x[i].dims[k];
  for (size_t k = 0; k < count; k++) p->x[i].data[k] = (double[]){-2, -1, 1, 2}[draw(4)];
}

static void add_result(struct problem *p) {
  int dots = p->used[LETTERS + 1] ? 2 : p->used[LETTERS] ? 1 : 0;
  if (draw(3) == 0) { /* implicit: "...", then letters that occur once, in the order of ASCII: A b i j */
    for (int place = dots - 1; place >= 0; place--) p->out[p->n_out++] = LETTERS + place;
    static const int alphabet[] = {2, 1, 3, 0};
    for (int k = 0; k < LETTERS; k++) {
      int times = 0;
      for (int i = 0; i < p->n; i++) {
        for (int j = 0; j < p->x[i].rank; j++) times += p->x[i].labels[j] == alphabet[k];
      }
      if (times == 1) p->out[p->n_out++] = alphabet[k];
    }
    return;
  }
  put(p, "->");
  int order[LETTERS] = {0, 1, 2, 3}, dots_at = draw(LETTERS + 1);
  for (int k = LETTERS - 1; k > 0; k--) {
    int j = draw(k + 1), t = order[k];
    order[k] = order[j], order[j] = t;
  }
  for (int k = 0; k <= LETTERS; k++) {
    if (k == dots_at && dots > 0) {
      put(p, "...");
      for (int place = dots - 1; place >= 0; place--) p->out[p->n_out++] = LETTERS + place;
    }
    if (k == LETTERS || !p->used[order[k]] || draw(2) == 0) continue;
    put_letter(p, order[k]);
    p->out[p->n_out++] = order[k];
  }
}

/* The size that a label has over all operands. */
static int64_t joint_size(const struct problem *p, int label) {
  int64_t size = 1;
  for (int i = 0; i < p->n; i++) {
    for (int k = 0; k < p->x[i].rank; k++) {
      if (p->x[i].labels[k] == label && p->x[i].dims[k] != 1) size = p->x[i].dims[k];
    }
  }
  return size;
}

static double combined(quern_combine combine, double a, double b) {
  switch (combine) {
  case QUERN_COMBINE_MUL: return a * b;
  case QUERN_COMBINE_ADD: return a + b;
  case QUERN_COMBINE_MAX: return fmax(a, b);
  default: return fmin(a, b);
  }
}

static double reduced(quern_reduce reduce, double a, double b) {
  switch (reduce) {
  case QUERN_REDUCE_SUM: return a + b;
  case QUERN_REDUCE_PROD: return a * b;
  case QUERN_REDUCE_MAX: return fmax(a, b);
  default: return fmin(a, b);
  }
}

/* The result by one loop over all combinations of indices. */
static size_t joint_loop(const struct problem *p, quern_reduce reduce, quern_combine combine, double *y) {
  static const double neutral[] = {0, 1, -(double)INFINITY, (double)INFINITY};
  int64_t size[LABELS], total = 1, n_y = 1, at[LABELS];
  for (int k = 0; k < LABELS; k++) total *= size[k] = p->used[k] ? joint_size(p, k) : 1;
  for (int k = 0; k < p->n_out; k++) n_y *= size[p->out[k]];
  for (int64_t i = 0; i < n_y; i++) y[i] = neutral[reduce];
  for (int64_t c = 0; c < total; c++) {
    int64_t rest = c, to = 0;
    for (int k = 0; k < LABELS; k++) at[k] = rest % size[k], rest /= size[k];
    double value = 0;
    for (int i = 0; i < p->n; i++) {
      int64_t from = 0;
      for (int k = 0; k < p->x[i].rank; k++) {
        from = from * p->x[i].dims[k] + (p->x[i].dims[k] == 1 ? 0 : at[p->x[i].labels[k]]);
      }
      value = i == 0 ? p->x[i].data[from] : combined(combine, value, p->x[i].data[from]);
    }
    for (int k = 0; k < p->n_out; k++) to = to * size[p->out[k]] + at[p->out[k]];
    y[to] = reduced(reduce, y[to], value);
  }
  return (size_t)n_y;
}

static void check_problem(quern_reduce reduce, quern_combine combine) {
  static struct problem p;
  static double want[5000];
  memset(&p, 0, sizeof p);
  p.n = 1 + draw(OPERANDS);
  for (int k = 0; k < LABELS; k++) p.size[k] = draw(30) == 0 ? 0 : 1 + draw(3);
  for (int i = 0; i < p.n; i++) add_operand(&p, i);
  add_result(&p);
  size_t n = joint_loop(&p, reduce, combine, want);
  quern_tensor *xs[OPERANDS];
  for (int i = 0; i < p.n; i++) {
    size_t count = 1;
    for (int k = 0; k < p.x[i].rank; k++) count *= (size_t)p.x[i].dims[k];
    xs[i] = ARRAY(F64, ((struct ir_ints){p.x[i].rank, p.x[i].dims}), count, p.x[i].data);
  }
  quern_tensor *y = quern_einsum_over(p.spec, p.n, xs, reduce, combine);
  double *got = VALUES(y);
  bool same = (size_t)ir_count(y) == n && y->rank == p.n_out;
  for (int k = 0; k < p.n_out && same; k++) same = y->dims[k] == joint_size(&p, p.out[k]);
  for (size_t i = 0; i < n && same; i++) same = got[i] == want[i] || fabs(got[i] - want[i]) <= 1e-12 * fabs(want[i]);
  free(got);
  if (same) return;
  print_error("reduce %d, combine %d: \"%s\"", (int)reduce, (int)combine, p.spec);
  for (int i = 0; i < p.n; i++) print_error(" %s", base_shape_text((char[100]){0}, 100, p.x[i].rank, p.x[i].dims));
  print_error("\n");
  fail();
}

static void every_semiring_equals_the_loop(void **state) {
  for (int reduce = 0; reduce < 4; reduce++) {
    for (int combine = 0; combine < 4; combine++) {
      int rounds = reduce == 0 && combine == 0 ? 1200 : 250;
      for (int i = 0; i < rounds; i++) {
        if (i % 100 == 99) assert_int_equal(test_teardown(state) | test_setup(state), 0);
        check_problem((quern_reduce)reduce, (quern_combine)combine);
      }
    }
  }
}

/* ---- chosen cases -------------------------------------------------------------------------------------- */

static void values(void **state) {
  (void)state;
  quern_tensor *a = REALS(F32, DIMS(2, 2), 1, 2, 3, 4), *v = REALS(F32, DIMS(2), 10, 20), *s = REALS(F32, SCALAR, 3);
  EXPECT(quern_einsum("ij,jk->ik", XS(a, a)), 7, 10, 15, 22);
  EXPECT(quern_einsum("ij,jk", XS(a, a)), 7, 10, 15, 22);
  EXPECT(quern_einsum("ba", XS(a)), 1, 3, 2, 4);
  EXPECT(quern_einsum("ii", XS(a)), 5);
  EXPECT(quern_einsum("ii->i", XS(a)), 1, 4);
  EXPECT(quern_einsum("ij->", XS(a)), 10);
  EXPECT(quern_einsum(",ij", XS(s, a)), 3, 6, 9, 12);
  EXPECT(quern_einsum("", XS(s)), 3);
  EXPECT(quern_einsum("->", XS(s)), 3);
  EXPECT(quern_einsum("i,j->ij", XS(v, v)), 100, 200, 200, 400);
  EXPECT(quern_einsum("i,i->i", XS(v, v)), 100, 400);
  EXPECT(quern_einsum("...i,...i->...", XS(a, a)), 5, 25);
  EXPECT(quern_einsum("[batch][in],[out][in]->[batch][out]", XS(a, a)), 5, 11, 11, 25);
  EXPECT(quern_einsum(" [row] [k], [k] [column] -> [row] [column] ", XS(a, a)), 7, 10, 15, 22);
  EXPECT(quern_einsum("[b2][a1]", XS(a)), 1, 3, 2, 4);
  EXPECT(quern_einsum("[ab][a]", XS(a)), 1, 3, 2, 4); /* a shorter name comes first */
  EXPECT(quern_einsum("[i]j,jk->ik", XS(a, a)), 7, 10, 15, 22);
  EXPECT(quern_einsum("aB", XS(a)), 1, 3, 2, 4);
  quern_tensor *cube = quern_reshape(quern_arange(ctx, QUERN_DTYPE_F32, 27, 0, 1), QUERN_LIST(3, 3, 3));
  EXPECT(quern_einsum("iii->i", XS(cube)), 0, 13, 26);
  EXPECT(quern_einsum("iji->ji", XS(cube)), 0, 10, 20, 3, 13, 23, 6, 16, 26);
  EXPECT(quern_einsum("jii->ij", XS(cube)), 0, 9, 18, 4, 13, 22, 8, 17, 26);
  EXPECT(quern_einsum("ij,jk,kl,lm->im", XS(a, a, a, a)), 199, 290, 435, 634);
  EXPECT(quern_einsum_over("ij,jk->ik", XS(a, a), QUERN_REDUCE_MAX, QUERN_COMBINE_ADD), 5, 6, 7, 8);
  EXPECT(quern_einsum_over("ij,jk->ik", XS(a, a), QUERN_REDUCE_MIN, QUERN_COMBINE_ADD), 2, 3, 4, 5);
  /* of nothing: the neutral element, to which nothing is added */
  quern_tensor *empty = ZEROS(I32, 0), *some = REALS(I32, DIMS(2), -5, 7);
  EXPECT(quern_einsum_over("i,j->j", XS(empty, some), QUERN_REDUCE_MAX, QUERN_COMBINE_ADD), INT32_MIN, INT32_MIN);
  quern_tensor *m = REALS(BOOL, DIMS(2, 2), 0, 1, 0, 0), *l = REALS(BOOL, DIMS(2), 0, 1);
  EXPECT(quern_einsum_over("ij,j->i", XS(m, l), QUERN_REDUCE_MAX, QUERN_COMBINE_MIN), 1, 0);
  EXPECT(quern_einsum("ij,jk->ik", XS(REALS(I32, DIMS(1, 2), 2, 3), REALS(I32, DIMS(2, 1), 4, 5))), 23);
}

static void graphs(void **state) {
  (void)state;
  quern_tensor *a = INPUT(4, 5), *b = INPUT(5, 6), *c = INPUT(7, 5), *x = INPUT(2, 4, 5), *y = INPUT(2, 5, 6),
               *v = INPUT(4);
  assert_ptr_equal(quern_einsum("ij,jk->ik", XS(a, b)), quern_matmul(a, b));
  assert_ptr_equal(quern_einsum("ij,kj->ik", XS(a, c)), quern_linear(a, c, NULL));
  assert_ptr_equal(quern_einsum("bij,bjk->bik", XS(x, y)), quern_matmul(x, y));
  assert_ptr_equal(quern_einsum("bij,jk->bik", XS(x, b)), quern_matmul(x, b));
  assert_ptr_equal(quern_einsum("...ij,jk->...ik", XS(x, b)), quern_matmul(x, b));
  assert_ptr_equal(quern_einsum("ij,ij->ij", XS(a, a)), quern_mul(a, a));
  assert_ptr_equal(quern_einsum("ij->ji", XS(a)), quern_transpose(a, 0, 1));
  assert_ptr_equal(quern_einsum("ij->j", XS(a)), quern_sum(a, QUERN_LIST(0), false));
  assert_ptr_equal(quern_einsum("ij->ij", XS(a)), a);
  quern_tensor *turned = quern_einsum("ij,jk->ki", XS(a, b));
  assert_int_equal(turned->node->op, IR_DOT);
  assert_ptr_equal(turned->node->src[0], b);
  quern_tensor *outer = quern_einsum("i,j->ij", XS(v, v));
  assert_int_equal(outer->node->op, IR_MUL);
  assert_int_equal(test_count_ops(outer, IR_DOT), 0);
  /* an index of one operand that the result lacks is summed before the product */
  quern_tensor *early = quern_einsum("ij,k->k", XS(a, v));
  assert_int_equal(early->node->op, IR_MUL);
  assert_int_equal(test_count_ops(early, IR_REDUCE), 1);
  /* a batch axis of size 1 is not stretched */
  quern_tensor *thin = quern_einsum("bij,bjk->bik", XS(INPUT(1, 4, 5), y));
  assert_int_equal(test_count_ops(thin, IR_BROADCAST), 0);
  assert_int_equal(test_count_ops(thin, IR_DOT), 1);
  /* mul under max is not distributive: the product of three comes first, then one reduction */
  quern_tensor *joint = quern_einsum_over("i,i,i->", XS(v, v, v), QUERN_REDUCE_MAX, QUERN_COMBINE_MUL);
  assert_int_equal(joint->node->op, IR_REDUCE);
  assert_int_equal(test_count_ops(joint, IR_DOT), 0);
  assert_int_equal(quern_einsum_over("ij,jk->ik", XS(a, b), QUERN_REDUCE_PROD, QUERN_COMBINE_MAX)->node->op, IR_DOT);
}

/* (10, 2) (2, 100) (100, 1): from the right, though the result is the same. */
static void the_cheap_order_is_taken(void **state) {
  (void)state;
  quern_tensor *a = INPUT(10, 2), *b = INPUT(2, 100), *c = INPUT(100, 1), *d = INPUT(1, 50);
  quern_tensor *y = quern_einsum("ij,jk,kl->il", XS(a, b, c));
  assert_ptr_equal(y, quern_matmul(a, quern_matmul(b, c)));
  quern_tensor *z = quern_einsum("ij,jk,kl,lm->im", XS(a, b, c, d));
  assert_ptr_equal(z, quern_matmul(quern_matmul(a, quern_matmul(b, c)), d));
}

static void many_operands(void **state) {
  (void)state;
  enum { N = 40 };
  quern_tensor *xs[N];
  char spec[5 * N] = "";
  double product[4] = {1, 0, 0, 1};
  for (int i = 0; i < N; i++) {
    double x[4], next[4];
    test_fill(4, x, (uint64_t)i);
    xs[i] = ARRAY(F64, DIMS(2, 2), 4, x);
    for (int k = 0; k < 4; k++) next[k] = product[k / 2 * 2] * x[k % 2] + product[k / 2 * 2 + 1] * x[2 + k % 2];
    memcpy(product, next, sizeof next);
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    char term[5];
    snprintf(term, sizeof term, "%s%c%c", i > 0 ? "," : "", letters[i], letters[i + 1]);
    strcat(spec, term);
  }
  quern_tensor *y = quern_einsum(spec, N, xs); /* letters[40] is O, which comes before a */
  const double want[4] = {product[0], product[2], product[1], product[3]};
  EXPECT_ARRAY(y, 1e-10, 4, want);
}

static void wrong_specs(void **state) {
  (void)state;
  quern_tensor *a = INPUT(2, 3), *b = INPUT(4, 5), *v = INPUT(3);
  EXPECT_POISON(quern_einsum("ij,jk->ik", XS(a, b)), SHAPE,
                "einsum: index j is 3 in operand 0, (2, 3), and 4 in operand 1, (4, 5)");
  EXPECT_POISON(quern_einsum("[row][in],[in][out]", XS(a, b)), SHAPE, "einsum: index in is 3 in operand 0");
  EXPECT_POISON(quern_einsum("...,...", XS(a, b)), SHAPE, "einsum: axis 2 from the end of \"...\" is 2 in operand 0");
  EXPECT_POISON(quern_einsum("ii", XS(a)), SHAPE,
                "einsum: index i is 2 and 3 in operand 0, (2, 3); a diagonal needs equal sizes");
  EXPECT_POISON(quern_einsum("ii", XS(INPUT(1, 3))), SHAPE, "a diagonal needs equal sizes");
  EXPECT_POISON(quern_einsum("ijk", XS(a)), SHAPE, "einsum: operand 0 is (2, 3) of rank 2, \"ijk\" names 3 axes of it");
  EXPECT_POISON(quern_einsum("i", XS(a)), SHAPE, "\"i\" names 1 axes of it");
  EXPECT_POISON(quern_einsum("...ijk->...", XS(a)), SHAPE, "names 3 axes beside \"...\"");
  EXPECT_POISON(quern_einsum("ij->ik", XS(a)), PARSE, "einsum: \"ij->ik\", character 6: no operand has this index");
  EXPECT_POISON(quern_einsum("ij->ii", XS(a)), PARSE, "einsum: \"ij->ii\": the result has index i twice");
  EXPECT_POISON(quern_einsum("ij,jk->ik", XS(a)), INVALID, "einsum: \"ij,jk->ik\" is for 2 operands, there are 1");
  EXPECT_POISON(quern_einsum("ij->ij", XS(a, a)), INVALID, "is for 1 operands, there are 2");
  EXPECT_POISON(quern_einsum("ij,ij,ij", XS(a, a)), INVALID, "is for 3 operands, there are 2");
  EXPECT_POISON(quern_einsum("i!", XS(a)), PARSE, "character 2: expected an index");
  EXPECT_POISON(quern_einsum("i1", XS(a)), PARSE, "character 2: expected an index");
  EXPECT_POISON(quern_einsum("ij-ij", XS(a)), PARSE, "character 3: expected \"->\"");
  EXPECT_POISON(quern_einsum("ij->ij->", XS(a)), PARSE, "character 7: expected the end");
  EXPECT_POISON(quern_einsum("ij->i,j", XS(a)), PARSE, "character 6: expected the end");
  EXPECT_POISON(quern_einsum("i..j", XS(a)), PARSE, "character 2: expected \"...\"");
  EXPECT_POISON(quern_einsum("...i...", XS(a)), PARSE, "character 5: a second \"...\"");
  EXPECT_POISON(quern_einsum("...j->j", XS(a)), PARSE, "the result lacks the \"...\" of the operands");
  EXPECT_POISON(quern_einsum("[i", XS(v)), PARSE, "a name in brackets");
  EXPECT_POISON(quern_einsum("[i j]", XS(v)), PARSE, "character 3: a name in brackets");
  EXPECT_POISON(quern_einsum("[]", XS(v)), PARSE, "the name is empty");
  EXPECT_POISON(quern_einsum("ijklmnopqrstuvwxyz", XS(v)), PARSE, "more indices than a tensor can have axes");
  EXPECT_POISON(quern_einsum(NULL, XS(a)), INVALID, "einsum: the spec is null");
  EXPECT_POISON(quern_einsum("ij,ij", XS(a, NULL)), INVALID, "einsum: operand 1 is null");
  EXPECT_POISON(quern_einsum("i,i", XS(v, ZEROS(F64, 3))), DTYPE, "einsum: dtypes differ");
  EXPECT_POISON(quern_einsum("i,i", XS(ZEROS(BOOL, 2), ZEROS(BOOL, 2))), DTYPE, "einsum: does not admit bool");
  EXPECT_NULL_ERROR(quern_einsum("i", 0, NULL), "einsum: no operands");
  EXPECT_NULL_ERROR(quern_einsum("i", 1, NULL), "einsum: the list of operands is null");
  EXPECT_POISON(quern_einsum_over("i,i", XS(v, v), (quern_reduce)4, QUERN_COMBINE_MUL), INVALID,
                "einsum_over: 4 is no reduction");
  EXPECT_POISON(quern_einsum_over("i,i", XS(v, v), QUERN_REDUCE_SUM, (quern_combine)-1), INVALID, "is no combination");
  quern_tensor *t = ZEROS(BOOL, 2);
  EXPECT_POISON(quern_einsum_over("i,i", XS(t, t), QUERN_REDUCE_MAX, QUERN_COMBINE_MUL), DTYPE,
                "einsum_over: does not admit bool");
  EXPECT_POISON(quern_einsum_over("i,i", XS(t, t), QUERN_REDUCE_PROD, QUERN_COMBINE_MAX), DTYPE,
                "einsum_over: does not admit bool");
  quern_tensor *none = INPUT(INT64_C(1) << 40, INT64_C(1) << 40, 0);
  EXPECT_POISON(quern_einsum("iij->ij", XS(none)), OVERFLOW, "einsum: a diagonal of 1099511627776 by 1099511627776 in");
  quern_tensor *d = INPUT(1, 1, 1, 1, 1, 1, 1, 1, 1);
  EXPECT_POISON(quern_einsum("abcdefghi,jklmnopqr", XS(d, d)), PARSE, "the result has more than 16 axes");
  EXPECT_POISON(quern_einsum_over("abcdefghi,jklmnopqr->", XS(d, d), QUERN_REDUCE_PROD, QUERN_COMBINE_ADD), SHAPE,
                "needs a product of 18 axes, at most 16");
  assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
}

/* There is no limit to operands and indices: a chain of 100 matrices, all 0.5, has 101 indices and is 0.5 again. */
static void many_indices(void **state) {
  (void)state;
  enum { N = 100 };
  quern_tensor *xs[N];
  char spec[32 * N] = "";
  for (int i = 0; i < N; i++) {
    char names[40];
    xs[i] = quern_full(ctx, QUERN_DTYPE_F64, QUERN_LIST(2, 2), 0.5);
    snprintf(names, sizeof names, "%s[n%d][n%d]", i > 0 ? "," : "", i, i + 1);
    strcat(spec, names);
  }
  strcat(spec, "->[n100][n0]");
  quern_tensor *y = quern_einsum(spec, N, xs);
  EXPECT_TYPE(y, F64, DIMS(2, 2));
  double got[4];
  void *dst = got;
  assert_int_equal(quern_eval_reference(ctx, 1, &y, &dst, 0, NULL), QUERN_STATUS_OK);
  for (int i = 0; i < 4; i++) assert_true(got[i] == 0.5);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(every_semiring_equals_the_loop),
                                     TEST(values),
                                     TEST(graphs),
                                     TEST(the_cheap_order_is_taken),
                                     TEST(many_operands),
                                     TEST(wrong_specs),
                                     TEST(many_indices)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
