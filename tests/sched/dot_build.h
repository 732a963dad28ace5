/* tests/sched/dot_build.h -- contractions to be tested: products of matrices, and what goes before and behind them
** Whoever includes it has check_group(group, what).
*/
#ifndef TESTS_SCHED_DOT_BUILD_H
#define TESTS_SCHED_DOT_BUILD_H

static void check(size_t n, quern_tensor *const *roots, const char *what) {
  struct dot_group g;
  group_init(&g, n, roots);
  check_group(&g.group, what);
  group_fini(&g);
}

#define CHECK(what, ...)                                                                                               \
  check(sizeof((quern_tensor *[]){__VA_ARGS__}) / sizeof(quern_tensor *), (quern_tensor *[]){__VA_ARGS__}, (what))

/* ---- building --------------------------------------------------------------------------------------------- */

/* b products of an m x k matrix and a k x n one; either stored the other way when its letter of `how` is t. */
struct product {
  int64_t b, m, k, n;
  const char *how;
  quern_dtype dtype;
  enum ir_reduce reduce;
  enum ir_combine combine;
};

static const char *name_of(const struct product *p) {
  static char text[128];
  snprintf(text, sizeof text, "%lld of %lldx%lldx%lld %s %s %s %s", (long long)p->b, (long long)p->m, (long long)p->k,
           (long long)p->n, p->how, base_dtypes[p->dtype].name, ir_reduce_names[p->reduce],
           ir_combine_names[p->combine]);
  return text;
}

static quern_tensor *dot(const struct product *p, quern_tensor *x, quern_tensor *y) {
  int64_t x_sum = p->how[0] == 't' ? 1 : 2, y_sum = p->how[1] == 't' ? 2 : 1;
  return IR_MAKE(ctx, IR_DOT,
                 ATTRS(.a_batch = IR_INTS(0), .b_batch = IR_INTS(0), .a_sum = IR_INTS(x_sum), .b_sum = IR_INTS(y_sum),
                       .reduce = p->reduce, .combine = p->combine),
                 x, y);
}

static quern_tensor *left(const struct product *p, quern_dtype dtype) {
  return p->how[0] == 't' ? INPUT(dtype, p->b, p->k, p->m) : INPUT(dtype, p->b, p->m, p->k);
}

static quern_tensor *right(const struct product *p, quern_dtype dtype) {
  return p->how[1] == 't' ? INPUT(dtype, p->b, p->n, p->k) : INPUT(dtype, p->b, p->k, p->n);
}

/* The left one is the first in. */
static quern_tensor *product(const struct product *p) {
  quern_tensor *x = left(p, p->dtype);
  return dot(p, x, right(p, p->dtype));
}

static quern_tensor *op2(enum ir_op op, quern_tensor *x, quern_tensor *y) { return IR_MAKE(ctx, op, ATTRS(0), x, y); }
static quern_tensor *op1(enum ir_op op, quern_tensor *x) { return IR_MAKE(ctx, op, ATTRS(0), x); }
static quern_tensor *cast(quern_tensor *x, quern_dtype dtype) {
  return IR_MAKE(ctx, IR_CAST, ATTRS(.dtype = dtype), x);
}

/* A vector as the last dim of a (b, m, n) tensor. */
static quern_tensor *along(quern_tensor *v, const quern_tensor *like) {
  quern_tensor *x = IR_MAKE(ctx, IR_RESHAPE, ATTRS(.shape = IR_INTS(1, 1, v->dims[0])), v);
  return IR_MAKE(ctx, IR_BROADCAST, ATTRS(.shape = {like->rank, like->dims}), x);
}

/* ---- what every way to compute them is asked ---------------------------------------------------------------- */

/* Sums of products of all dtypes: of small odd sizes, and of these. */
static void check_dtypes(size_t n_ways, const char *const *how, int64_t m, int64_t k, int64_t n) {
  for (int dtype = 0; dtype < QUERN_DTYPE_COUNT; dtype++) {
    if (dtype == QUERN_DTYPE_BOOL) continue;
    for (size_t w = 0; w < n_ways; w++) {
      struct product p = {2, 9, 21, 37, how[w], (quern_dtype)dtype, IR_SUM, IR_COMBINE_MUL};
      CHECK(name_of(&p), product(&p));
      p = (struct product){1, m, k, n, how[w], (quern_dtype)dtype, IR_SUM, IR_COMBINE_MUL};
      CHECK(name_of(&p), product(&p));
      test_renew();
    }
  }
}

/* All that joins two elements with all that joins those, of so many terms; products of many are left out. */
static void check_semirings(size_t n, const int64_t *terms) {
  static const quern_dtype dtypes[] = {QUERN_DTYPE_F32, QUERN_DTYPE_F16, QUERN_DTYPE_I8, QUERN_DTYPE_U32,
                                       QUERN_DTYPE_BOOL};
  static const char *const how[] = {"nn", "nt", "tn", "tt"};
  enum { MANY = 512 };
  for (size_t t = 0; t < BASE_COUNT(dtypes); t++) {
    for (int i = 0; i < 16; i++) {
      enum ir_reduce reduce = (enum ir_reduce)(i / 4);
      enum ir_combine combine = (enum ir_combine)(i % 4);
      bool of_bool = reduce >= IR_REDUCE_MAX && combine >= IR_COMBINE_MAX;
      if (dtypes[t] == QUERN_DTYPE_BOOL && !of_bool) continue;
      for (size_t k = 0; k < n; k++) {
        struct product p = {1, 7, terms[k], 40, how[i % 4], dtypes[t], reduce, combine};
        if (reduce != IR_PROD || terms[k] < MANY) CHECK(name_of(&p), product(&p));
      }
      test_renew();
    }
  }
}

#endif
