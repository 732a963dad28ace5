/* tests/engine/test_dynamic_batch_random.c -- random graphs with a dynamic batch: every row by itself, whatever the others are
** Ops are chosen without regard to the rows most of the time to be legal, and sometimes not: what mixes rows must be refused,
** or a run shows it.
*/
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "engine/dynamic_batch_test.h"

enum { ROWS = 5, GRAPHS = 400, STEPS = 7, POOL = 3 + STEPS };

static uint64_t seed;

static int64_t below(int64_t n) {
  seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (int64_t)((seed >> 33) % (uint64_t)n);
}

/* A tensor and the axis that has its rows: -1 when it has none. */
struct item {
  quern_tensor *x;
  int axis;
};

/* An axis; seldom that of the rows. */
static int any_axis(const struct item *t) {
  int rank = quern_tensor_rank(t->x), k = (int)below(rank);
  return k == t->axis && below(40) > 0 ? (k + 1) % rank : k;
}

static struct item permuted(struct item t) {
  int rank = quern_tensor_rank(t.x), shift = (int)below(rank);
  int64_t axes[QUERN_MAX_RANK];
  for (int k = 0; k < rank; k++) axes[k] = (k + shift) % rank;
  if (rank > 1 && below(2) == 0) {
    int64_t first = axes[0];
    axes[0] = axes[1];
    axes[1] = first;
  }
  struct item out = {quern_permute(t.x, rank, axes), -1};
  for (int k = 0; k < rank; k++)
    if (axes[k] == t.axis) out.axis = k;
  return out;
}

/* Two neighboring axes become one; or one becomes two. */
static struct item reshaped(struct item t) {
  int rank = quern_tensor_rank(t.x), k = (int)below(rank);
  int64_t dims[QUERN_MAX_RANK + 1];
  if (rank > 1 && k < rank - 1) return (struct item){quern_flatten(t.x, k, k + 1), t.axis > k ? t.axis - 1 : t.axis};
  for (int i = 0; i < rank; i++) dims[i] = quern_tensor_dim(t.x, i);
  if (rank > 4 || dims[k] % 2 != 0) return t;
  dims[rank] = 2;
  dims[k] /= 2;
  return (struct item){quern_reshape(t.x, rank + 1, dims), t.axis};
}

static struct item reduced(struct item t) {
  if (quern_tensor_rank(t.x) < 2) return t;
  int k = any_axis(&t);
  const int64_t axes[] = {k};
  switch (below(4)) {
  case 0: return (struct item){quern_softmax(t.x, k), t.axis};
  case 1: return (struct item){quern_cumsum(t.x, k), t.axis};
  case 2: return (struct item){quern_sort(t.x, k, below(2) == 0, NULL), t.axis};
  default: break;
  }
  quern_tensor *y = below(2) == 0 ? quern_sum(t.x, 1, axes, false) : quern_max(t.x, 1, axes, false);
  return (struct item){y, t.axis > k ? t.axis - 1 : t.axis == k ? -1 : t.axis};
}

static struct item moved(struct item t) {
  int k = any_axis(&t);
  int64_t n = quern_tensor_dim(t.x, k), axes[] = {k};
  switch (below(4)) {
  case 0: return (struct item){quern_flip(t.x, 1, axes), t.axis};
  case 1: return (struct item){quern_slice(t.x, k, n / 3, n, 1), t.axis};
  case 2: return (struct item){n < 9 ? quern_concat(2, (quern_tensor *[]){t.x, quern_neg(t.x)}, k) : t.x, t.axis};
  default: return (struct item){quern_roll(t.x, k, 1), t.axis};
  }
}

/* The last axis by a matrix of constants; or the tensor by itself, turned. */
static struct item multiplied(struct item t) {
  static float weights[1 << 12];
  int rank = quern_tensor_rank(t.x);
  int64_t n = quern_tensor_dim(t.x, rank - 1);
  for (size_t i = 0; i < BASE_COUNT(weights); i++) weights[i] = (float)(i % 13) / 8 - 0.7f;
  if (rank == 3 && t.axis == 0 && below(2) == 0) return (struct item){quern_matmul(t.x, quern_transpose(t.x, 1, 2)), 0};
  if (n > 64 || (t.axis == rank - 1 && below(20) > 0)) return t;
  quern_tensor *w = quern_tensor_wrap(ctx, QUERN_DTYPE_F32, QUERN_LIST(n, 17), weights);
  return (struct item){quern_matmul(t.x, w), t.axis};
}

static struct item computed(const struct item *pool, int n, struct item t) {
  const struct item *other = &pool[below(n)];
  bool same = quern_tensor_rank(t.x) == quern_tensor_rank(other->x);
  for (int k = 0; same && k < quern_tensor_rank(t.x); k++)
    same = quern_tensor_dim(t.x, k) == quern_tensor_dim(other->x, k);
  if (same) return (struct item){quern_sub(t.x, other->x), t.axis >= 0 ? t.axis : other->axis};
  return (struct item){below(2) == 0 ? quern_tanh(t.x) : quern_mul(t.x, quern_sigmoid(t.x)), t.axis};
}

static struct item next(const struct item *pool, int n) {
  struct item t = pool[n - 1 - below(BASE_MIN(n, 3))];
  if (quern_tensor_rank(t.x) == 0) return pool[0];
  switch (below(6)) {
  case 0: return permuted(t);
  case 1: return reshaped(t);
  case 2: return reduced(t);
  case 3: return moved(t);
  case 4: return multiplied(t);
  default: return computed(pool, n, t);
  }
}

/* The tensor with its rows first. */
static quern_tensor *with_rows_first(struct item t) {
  int64_t axes[QUERN_MAX_RANK];
  int rank = quern_tensor_rank(t.x);
  for (int k = 0; k < rank; k++) axes[k] = t.axis > 0 ? (k == 0 ? t.axis : k <= t.axis ? k - 1 : k) : k;
  return quern_permute(t.x, rank, axes);
}

/* Runs graph number `number` on a device, optimized or not; false when it was refused. */
static bool expect_graph(uint64_t number, const char *device, int optimize) {
  char name[64];
  struct item pool[POOL];
  quern_program_options options = {sizeof options, device, .threads = 1,
                                   .optimize = optimize > 0 ? QUERN_OPTIMIZE_DEFAULT : QUERN_OPTIMIZE_NONE};
  seed = number * 7919 + 17;
  quern_tensor *leading[] = {F32_INPUT("x", ROWS, 2, 6), F32_INPUT("y", ROWS, 4)};
  pool[0] = (struct item){leading[0], 0};
  pool[1] = (struct item){leading[1], 0};
  pool[2] = (struct item){F32_INPUT("fixed", 2, 6), -1};
  for (int i = 3; i < POOL; i++) pool[i] = next(pool, i);
  quern_tensor *outs[] = {with_rows_first(pool[POOL - 1]), with_rows_first(pool[POOL - 2]),
                          quern_add(leading[0], leading[0]), quern_exp(leading[1])};
  if (quern_tensor_bytes(outs[0]) > LEADING_BYTES || quern_tensor_bytes(outs[1]) > LEADING_BYTES) return false;
  options.n_dynamic_batch = 2;
  options.dynamic_batch = leading;
  quern_status status = quern_program_compile(&program, ctx, 4, outs, &options);
  if (status == QUERN_STATUS_UNSUPPORTED) {
    assert_non_null(strstr(quern_last_error(), "dynamic batch: "));
    return false;
  }
  EXPECT_OK(status);
  EXPECT_OK(quern_instance_new(&instance, program));
  snprintf(name, sizeof name, "graph %llu on %s, optimize %d", (unsigned long long)number, device, optimize);
  expect_independent(instance, name);
  close_program();
  return true;
}

static void rows_are_independent(void **state) {
  (void)state;
  int run = 0, refused = 0;
  for (uint64_t i = 0; i < GRAPHS; i++) {
    bool ran = expect_graph(i, "interp", i % 4 != 0);
    run += ran;
    refused += !ran;
    test_renew();
  }
  if (run < GRAPHS / 3 || refused < GRAPHS / 40) fail_msg("%d graphs ran, %d were refused", run, refused);
}

static void rows_are_independent_on_the_cpu(void **state) {
  (void)state;
  for (uint64_t i = 0; i < 6; i++) {
    (void)expect_graph(1000 + i, "cpu", 1);
    test_renew();
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(rows_are_independent), TEST(rows_are_independent_on_the_cpu)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
