/* tests/grad/test_fault.c -- each allocation fails once while a graph with every kind of subgraph is built, differentiated both
** ways, verified and evaluated: a clean error each time, nothing held after the context is freed
*/
#include "grad/grad_test.h"

#include "grad/grad.h"

static void scaled(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_mul(quern_sin(args[0]), args[1]);
  results[1] = quern_add(args[0], args[1]);
}

static void scaled_rule(void *user, int n, quern_tensor *const *x, int n_results, quern_tensor *const *y,
                        quern_tensor *const *dy, quern_tensor **dx) {
  (void)user, (void)n, (void)n_results, (void)y;
  dx[0] = quern_add(quern_mul(quern_mul(dy[0], quern_cos(x[0])), x[1]), dy[1]);
  dx[1] = quern_add(quern_mul(dy[0], quern_sin(x[0])), dy[1]);
}

static void turn(void *user, quern_tensor *const *args, quern_tensor **results) {
  quern_tensor *out[2] = {&ir_poison, &ir_poison};
  quern_status status = quern_composite(ctx, user, 2, (quern_tensor *[]){args[1], args[3]}, 2, scaled, NULL, out);
  if (status != QUERN_STATUS_OK) ir_fail_last(ctx);
  results[0] = quern_add(out[0], args[2]);
  results[1] = out[1];
}

static void negative(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_neg(args[0]);
}

static void doubled(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_add(args[0], args[0]);
}

static quern_status build(quern_tensor *x, quern_tensor **loss) {
  quern_tensor *parts[2], *branch[1], *index = NULL;
  quern_tensor *c = quern_slice(x, 0, 0, 2, 1), *w = quern_tanh(quern_slice(x, 0, 1, 3, 1)),
               *rows = quern_reshape(quern_concat(2, (quern_tensor *[]){x, x}, 0), QUERN_LIST(3, 2));
  quern_loop_options options = {
      .size = sizeof options, .trip = 3, .n_carries = 1, .n_scanned = 1, .n_captures = 1, .n_stacked = 1};
  QUERN_TRY(quern_composite_rule(ctx, "ruled", scaled_rule, NULL));
  QUERN_TRY(quern_loop(ctx, &options, (quern_tensor *[]){c, rows, w}, turn, "ruled", parts));
  quern_tensor *stacked = parts[1];
  QUERN_TRY(quern_loop(ctx, &options, (quern_tensor *[]){parts[0], rows, w}, turn, "plain", parts));
  quern_tensor *yes = quern_gt(quern_sum(x, QUERN_ALL, false), quern_scalar(ctx, QUERN_DTYPE_F64, 0));
  QUERN_TRY(quern_context_check(ctx));
  QUERN_TRY(quern_if(yes, 1, parts, 1, negative, doubled, NULL, branch));
  quern_tensor *dot =
      quern_einsum_over("ij,kj->ik", 2, (quern_tensor *[]){stacked, rows}, QUERN_REDUCE_MAX, QUERN_COMBINE_ADD);
  quern_tensor *scanned = quern_cumprod(quern_gelu(dot), 0), *sorted = quern_sort(scanned, 1, true, &index);
  quern_tensor *picked =
      quern_gather(sorted, quern_constant(ctx, QUERN_DTYPE_I32, QUERN_LIST(2), (int32_t[]){2, 0}), 0);
  quern_tensor *prod = quern_prod(quern_softmax(picked, 1), QUERN_LIST(1), false);
  *loss = quern_add(quern_sum(prod, QUERN_ALL, false),
                    quern_sum(quern_mul(branch[0], quern_max(stacked, QUERN_LIST(0), false)), QUERN_ALL, false));
  return quern_context_check(ctx);
}

enum { PHASES = 4 };
static const double at[3] = {0.5, -0.75, 1.25};

/* Called before the graph is built, before each derivative, and before the rest. */
static void nothing(int phase) { (void)phase; }
static void (*before_phase)(int phase) = nothing;

/* All of it; the gradient, the tangent along (1, 2, 3), and the gradient of the tangent go to values. */
static quern_status everything(double values[7]) {
  before_phase(0);
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F64, QUERN_LIST(3)), *loss = NULL, *results[3] = {0};
  QUERN_TRY(quern_context_check(ctx));
  QUERN_TRY(build(x, &loss));
  before_phase(1);
  QUERN_TRY(quern_grad(loss, 1, &x, &results[0]));
  quern_tensor *tx = quern_constant(ctx, QUERN_DTYPE_F64, QUERN_LIST(3), (double[]){1, 2, 3});
  QUERN_TRY(quern_context_check(ctx));
  before_phase(2);
  QUERN_TRY(quern_jvp(1, &x, &tx, 1, &loss, &results[1]));
  before_phase(3);
  QUERN_TRY(quern_grad(results[1], 1, &x, &results[2]));
  before_phase(PHASES);
  QUERN_TRY(ir_verify(ctx, 3, results));
  QUERN_TRY(ir_inline_composites(ctx, 3, results, results));
  void *dst[] = {values, values + 3, values + 4};
  struct ir_binding binding = {x, at};
  return ir_eval(ctx, 3, results, dst, 1, &binding);
}

static void test_values(void **state) {
  (void)state;
  double values[7], slope;
  EXPECT_OK(everything(values));
  slope = values[0] + 2 * values[1] + 3 * values[2];
  assert_true(isfinite(slope) && fabs(slope) > 1e-3);
  assert_true(fabs(values[3] - slope) < 1e-11 * (1 + fabs(slope)));
}

static uint64_t built; /* allocations before the graph is verified and evaluated */

static void note_built(int phase) {
  if (phase == PHASES) built = ctx->heap.count;
}

static void test_every_allocation_fails(void **state) {
  (void)state;
  double expected[7], values[7];
  before_phase = note_built;
  EXPECT_OK(everything(expected));
  before_phase = nothing;
  uint64_t before = 0;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    test_renew();
    before = ctx->heap.count;
    fault_begin(&fault);
    quern_status status = everything(values);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK); /* the error was reported */
    if (!fault.met) assert_memory_equal(values, expected, sizeof values);
    if (fault.alone && before + fault.n >= built) fault.n += 16; /* evaluation has a test of its own in tests/ir */
  }
  assert_true(fault.n > 200);
}

/* ---- nodes are made in chunks of memory: leave some bytes of a chunk, and give no other ------------------------ */

enum { BLOCK = 16, CHUNK = 64 << 10, STRIDE = 41 };
static bool chunks_fail;
static int tight_phase;
static size_t tight_blocks; /* that are left when that phase begins */

static void *small_alloc(void *self, size_t bytes) {
  return chunks_fail && bytes >= CHUNK ? NULL : memory_alloc(self, bytes);
}

static int small_setup(void) {
  quern_context_options options = {.size = sizeof options, .allocator = {small_alloc, memory_free, NULL}};
  chunks_fail = false;
  return quern_context_new(&ctx, &options) == QUERN_STATUS_OK ? 0 : -1;
}

/* Uses up a new chunk but for some blocks. */
static void tighten(int phase) {
  if (phase != tight_phase) {
    chunks_fail = false;
    return;
  }
  struct base_arena *arena = &ctx->arena;
  struct base_arena_chunk *newest = arena->chunks;
  while (arena->chunks == newest) assert_non_null(base_arena_alloc(arena, BLOCK));
  size_t start = arena->used;
  struct base_arena probe = *arena; /* a copy does not use anything up */
  chunks_fail = true;
  while (base_arena_alloc(&probe, BLOCK) != NULL) {}
  size_t room = probe.used - start;
  assert_true(room >= CHUNK / 2);
  while (arena->used - start + BLOCK * tight_blocks < room) assert_non_null(base_arena_alloc(arena, BLOCK));
}

static void test_chunks_fail(void **state) {
  (void)state;
  double expected[7], values[7];
  EXPECT_OK(everything(expected));
  test_teardown(NULL);
  before_phase = tighten;
  for (tight_phase = 0; tight_phase < PHASES; tight_phase++) {
    quern_status status = QUERN_STATUS_MEMORY;
    int failures = 0;
    for (tight_blocks = 1; status != QUERN_STATUS_OK && tight_blocks < CHUNK / BLOCK; tight_blocks += STRIDE) {
      assert_int_equal(small_setup(), 0);
      status = everything(values);
      chunks_fail = false;
      if (status == QUERN_STATUS_OK) {
        assert_memory_equal(values, expected, sizeof values);
      } else {
        EXPECT_ERROR(status, MEMORY, "no memory");
        assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
        failures++;
      }
      quern_context_free(ctx);
      ctx = NULL;
      assert_int_equal(memory_live, 0);
    }
    assert_true(failures > 20);
  }
  before_phase = nothing;
  assert_int_equal(test_setup(NULL), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_values), TEST(test_every_allocation_fails), TEST(test_chunks_fail)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
