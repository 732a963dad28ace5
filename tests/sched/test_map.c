/* tests/sched/test_map.c -- kernels of MAP groups: values, bits, bounds, races, memory taken over, cost, lack of
** memory */
#include "run.h"
#include "sched/sched_int.h"

static const int64_t sizes[] = {1, 15, 16, 17, 63, 64, 65, 1000};

/* ---- elementwise ------------------------------------------------------------------------------------------- */

static void flat_sizes(void **state) {
  (void)state;
  for (size_t i = 0; i < BASE_COUNT(sizes); i++) {
    quern_tensor *x = DATA(F32, sizes[i]), *y = DATA(F32, sizes[i]);
    EXPECT_SAME(quern_gelu(x), quern_add(quern_mul(x, y), x));
  }
  EXPECT_SAME(quern_exp(run_data(QUERN_DTYPE_F32, 0, NULL, 1)));
}

static void shapes(void **state) {
  (void)state;
  quern_tensor *x = DATA(F32, 3, 5, 7), *y = DATA(F32, 70, 65), *z = DATA(F32, 1, 33, 1);
  EXPECT_SAME(quern_add(x, x));
  EXPECT_SAME(quern_tanh(y), quern_neg(y));
  EXPECT_SAME(quern_mul(z, z));
}

static void broadcasts(void **state) {
  (void)state;
  quern_tensor *x = DATA(F32, 9, 33), *row = DATA(F32, 33), *column = DATA(F32, 9, 1), *one = DATA(F32, 1, 1);
  EXPECT_SAME(quern_add(x, row));
  EXPECT_SAME(quern_mul(quern_sub(x, column), row));
  EXPECT_SAME(quern_add(quern_mul(x, one), quern_exp(column)));
  quern_tensor *image = DATA(F32, 2, 3, 5, 6), *channel = DATA(F32, 3, 1, 1), *few = DATA(F32, 50, 3);
  EXPECT_SAME(quern_mul(image, channel));
  EXPECT_SAME(quern_mul(few, DATA(F32, 3)));
  EXPECT_SAME(quern_broadcast_to(row, QUERN_LIST(4, 33)));
}

/* Every dtype, alone and mixed with others. */
static void dtypes(void **state) {
  (void)state;
  for (int d = 0; d < QUERN_DTYPE_COUNT; d++) {
    quern_tensor *x = run_data((quern_dtype)d, 1, (int64_t[]){77}, 5),
                 *y = run_data((quern_dtype)d, 1, (int64_t[]){77}, 6);
    EXPECT_SAME(quern_maximum(x, y), quern_eq(x, y), quern_where(quern_lt(x, y), x, y));
    if (d != QUERN_DTYPE_BOOL) EXPECT_SAME(quern_add(quern_mul(x, y), x));
    EXPECT_SAME(quern_cast(x, QUERN_DTYPE_F32), quern_cast(y, QUERN_DTYPE_I64), quern_cast(x, QUERN_DTYPE_U8));
  }
  quern_tensor *a = DATA(F16, 35), *b = DATA(I64, 35), *c = DATA(BOOL, 35);
  EXPECT_SAME(quern_where(c, quern_cast(a, QUERN_DTYPE_F64), quern_cast(b, QUERN_DTYPE_F64)));
}

static void optimizer(void **state) {
  (void)state;
  quern_tensor *p = DATA(F32, 19, 21), *g = DATA(F32, 19, 21), *m = DATA(F32, 19, 21),
               *v = quern_square(DATA(F32, 19, 21));
  quern_tensor *rate = quern_square(run_data(QUERN_DTYPE_F32, 0, NULL, 3));
  EXPECT_SAME(quern_neg(p), quern_exp(p), quern_add(p, g));
  m = quern_add(quern_mul_scalar(m, 0.9), quern_mul_scalar(g, 0.1));
  v = quern_add(quern_mul_scalar(v, 0.99), quern_mul_scalar(quern_square(g), 0.01));
  quern_tensor *step = quern_div(m, quern_add_scalar(quern_sqrt(v), 1e-3));
  EXPECT_SAME(quern_sub(p, quern_mul(step, rate)), m, v);
}

/* ---- movement ---------------------------------------------------------------------------------------------- */

static void transposes(void **state) {
  (void)state;
  static const int64_t pairs[][2] = {{16, 16}, {17, 33}, {5, 40}, {64, 20}, {35, 16}, {3, 3}};
  for (size_t i = 0; i < BASE_COUNT(pairs); i++) {
    quern_tensor *x = DATA(F32, pairs[i][0], pairs[i][1]), *y = DATA(F32, pairs[i][1], pairs[i][0]);
    EXPECT_SAME(quern_transpose(x, 0, 1));
    EXPECT_SAME(quern_add(quern_transpose(x, 0, 1), y), quern_exp(y));
  }
  EXPECT_SAME(quern_permute(DATA(F32, 3, 18, 5, 20), QUERN_LIST(0, 2, 3, 1)));
  EXPECT_SAME(quern_permute(DATA(U8, 4, 33, 18), QUERN_LIST(2, 1, 0)));
  EXPECT_SAME(quern_permute(DATA(F64, 17, 3, 18), QUERN_LIST(0, 2, 1)));
  EXPECT_SAME(quern_permute(DATA(F32, 6, 4, 20), QUERN_LIST(1, 0, 2)));
}

static void moves(void **state) {
  (void)state;
  quern_tensor *x = DATA(F32, 7, 21), *y = DATA(F32, 7, 12), *wide = DATA(F32, 40);
  EXPECT_SAME(quern_pad(x, QUERN_LIST(1, 2), (int64_t[]){2, 3}, 0.5));
  EXPECT_SAME(quern_concat(2, (quern_tensor *[]){x, y}, 1), quern_concat(2, (quern_tensor *[]){x, quern_neg(x)}, 0));
  EXPECT_SAME(quern_slice(x, 1, 3, 19, 2), quern_slice(x, 0, 1, 6, 1));
  EXPECT_SAME(quern_flip(x, QUERN_LIST(1)), quern_flip(x, QUERN_LIST(0, 1)));
  EXPECT_SAME(quern_roll(quern_exp(wide), 0, 7));
  EXPECT_SAME(quern_tile(x, QUERN_LIST(2, 3)));
  EXPECT_SAME(quern_reshape(quern_slice(x, 1, 0, 20, 1), QUERN_LIST(28, 5)));
  EXPECT_SAME(quern_window(DATA(F32, 2, 30), QUERN_LIST(1), (int64_t[]){5}, (int64_t[]){2}, (int64_t[]){3}));
  EXPECT_SAME(quern_iota(ctx, QUERN_DTYPE_I32, QUERN_LIST(5, 19), 1),
              quern_iota(ctx, QUERN_DTYPE_F32, QUERN_LIST(5, 19), 0));
  EXPECT_SAME(quern_triu(DATA(F32, 19, 22), 1));
  EXPECT_SAME(quern_pad(quern_concat(3, (quern_tensor *[]){x, y, x}, 1), QUERN_LIST(0, 5), (int64_t[]){1, 40}, 2));
  quern_tensor *many[12];
  for (int i = 0; i < 12; i++) many[i] = DATA(F32, 2, 5 + i);
  EXPECT_SAME(quern_concat(12, many, 1));
  for (int64_t n = 30; n < 70; n += 3)
    EXPECT_SAME(quern_slice(DATA(F32, 3, n), 1, 0, n, 2), quern_slice(DATA(F32, n), 0, 1, n, 3));
}

static void run_time_places(void **state) {
  (void)state;
  quern_tensor *table = DATA(F32, 11, 18), *index = DATA(I32, 9),
               *start = quern_abs(run_data(QUERN_DTYPE_I64, 0, NULL, 5));
  EXPECT_SAME(quern_gather(table, index, 0), quern_mul_scalar(quern_gather(table, index, 1), 2));
  EXPECT_SAME(quern_slice_at(table, 2, (quern_tensor *[]){start, start}, (int64_t[]){4, 17}));
  EXPECT_SAME(quern_update_at(table, DATA(F32, 3, 17), 2, (quern_tensor *[]){start, start}));
}

static void random_numbers(void **state) {
  (void)state;
  quern_tensor *seed = quern_scalar_int(ctx, QUERN_DTYPE_U64, 7), *step = run_data(QUERN_DTYPE_U64, 0, NULL, 2);
  quern_random from = {.seed = seed, .step = step, .stream = 3};
  EXPECT_SAME(quern_random_bits(ctx, QUERN_LIST(3, 37), &from), quern_dropout(DATA(F32, 3, 37), 0.25, &from));
}

static void nothing(void **state) {
  (void)state;
  EXPECT_SAME(quern_exp(DATA(F32, 0)), quern_neg(DATA(F32, 4, 0)));
  EXPECT_SAME(quern_broadcast_to(DATA(F32, 1, 3), QUERN_LIST(0, 3)));
}

/* ---- schedules --------------------------------------------------------------------------------------------- */

static struct pass_groups groups;
static const struct run_way wide = {"64 bytes", true, 1, 64, 2, 0, false, false};
static const struct run_way gpu = {"gpu", true, 1, 4, 16384, 0, false, true};

/* The kernel of an expression that is one group. */
static struct kern *kernel_for(quern_tensor *root, const struct run_way *way) {
  struct pass_options options = {0};
  struct base_target target = run_target(way);
  struct sched sched;
  struct kern *kern = NULL;
  struct pass_graph graph = {.ctx = ctx, .n_roots = 1, .roots = &root};
  EXPECT_OK(pass_options_parse(&options, 1, NULL));
  options.target = &target;
  EXPECT_OK(pass_fuse(&groups, &graph, &options));
  assert_int_equal(groups.groups.n, 1);
  sched_choose(&sched, groups.groups.at[0], &target, 1);
  EXPECT_OK(sched_lower(&kern, &ctx->heap, ctx, groups.groups.at[0], &target, &sched));
  return kern;
}

static struct kern *kernel_of(quern_tensor *root) { return kernel_for(root, &wide); }

static void drop(struct kern *kern) {
  kern_free(kern);
  pass_groups_fini(&groups);
}

static int count(const struct kern *kern, enum kern_op op, int lanes) {
  int n = 0;
  for (size_t f = 0; f < kern->fns.n; f++)
    for (size_t i = 0; i < kern->fns.at[f]->insts.n; i++) {
      const struct kern_inst *inst = &kern->fns.at[f]->insts.at[i];
      n += inst->op == op && (lanes == 0 || inst->lanes == lanes);
    }
  return n;
}

/* An elementwise group is one loop over all elements, without divisions. */
static void one_loop(void **state) {
  (void)state;
  struct kern *kern = kernel_of(quern_exp(DATA(F32, 8, 4, 64)));
  assert_int_equal(count(kern, KERN_FOR, 0), 1);
  assert_int_equal(count(kern, KERN_IDIV, 0) + count(kern, KERN_IMOD, 0), 0);
  assert_true(count(kern, KERN_LOAD, 16) > 0);
  assert_int_equal(count(kern, KERN_GATHER, 0), 0);
  assert_true(strncmp(kern->name, "k_", 2) == 0 && strstr(kern->name, "_exp_8x4x64") != NULL);
  drop(kern);
  kern = kernel_of(quern_add(DATA(F64, 300), DATA(F64, 300)));
  assert_true(count(kern, KERN_LOAD, 8) > 0 && count(kern, KERN_LOAD, 16) == 0);
  drop(kern);
}

/* Both sides of a transposition are read and written in whole vectors. */
static void transposed_in_registers(void **state) {
  (void)state;
  struct kern *kern = kernel_of(quern_exp(quern_transpose(DATA(F32, 48, 64), 0, 1)));
  assert_int_equal(count(kern, KERN_GATHER, 0), 0);
  assert_int_equal(count(kern, KERN_SHUFFLE, 16), 64);
  assert_int_equal(count(kern, KERN_STORE, 0), 16);
  drop(kern);
}

/* Rows that paddings and concatenations cut are computed part by part, in whole vectors; so is every second element. */
static void cut_rows(void **state) {
  (void)state;
  quern_tensor *x = DATA(F32, 6, 64), *y = DATA(F32, 6, 48);
  struct kern *kern = kernel_of(quern_pad(x, QUERN_LIST(0, 16), (int64_t[]){0, 16}, 1));
  assert_int_equal(kern->n_phases, 3);
  assert_int_equal(count(kern, KERN_GATHER, 0) + count(kern, KERN_SELECT, 0), 0);
  drop(kern);
  kern = kernel_of(quern_abs(quern_concat(2, (quern_tensor *[]){x, quern_neg(y)}, 1)));
  assert_int_equal(kern->n_phases, 2);
  assert_int_equal(count(kern, KERN_GATHER, 0) + count(kern, KERN_SELECT, 0), 0);
  drop(kern);
  kern = kernel_of(quern_slice(x, 1, 1, 64, 2));
  assert_int_equal(count(kern, KERN_GATHER, 0), 0);
  drop(kern);
}

/* So are other loops, where the parts are large: no part asks which one it is. */
static void cut_loops(void **state) {
  (void)state;
  for (int64_t n = 4; n <= 64; n += 60) {
    quern_tensor *x = quern_permute(DATA(F32, 4, 8, n, 64), QUERN_LIST(0, 2, 1, 3));
    quern_tensor *y = quern_permute(DATA(F32, 4, 6, n, 64), QUERN_LIST(0, 2, 1, 3));
    quern_tensor *z = quern_concat(2, (quern_tensor *[]){x, y}, 2);
    struct kern *kern = kernel_of(z);
    assert_int_equal(kern->n_phases, n == 4 ? 1 : 2);
    assert_int_equal(count(kern, KERN_IF, 0) > 0, n == 4);
    drop(kern);
    EXPECT_SAME(z);
  }
}

static void tasks_by_traffic(void **state) {
  (void)state;
  struct kern *kern = kernel_of(quern_neg(DATA(F32, 1000)));
  assert_int_equal(kern->phases[0].tasks.mul, 1);
  drop(kern);
  kern = kernel_of(quern_neg(DATA(F32, 100, 1000)));
  int64_t tasks = kern->phases[0].tasks.mul;
  assert_true(tasks >= 8 && tasks <= 64);
  assert_true(kern->cost.bytes == 800000 && kern->cost.flops == 100000);
  drop(kern);
}

/* An out may lie in an in that is read at the out's own place only. */
static void takes_memory_over(void **state) {
  (void)state;
  quern_tensor *x = DATA(F32, 6, 40), *y = DATA(F32, 40), *square = DATA(F32, 20, 20);
  struct kern *kern = kernel_of(quern_add(quern_exp(x), y));
  assert_int_equal(kern->mems[2].alias, groups.groups.at[0]->ins[0] == x ? 0 : 1);
  drop(kern);
  kern = kernel_of(quern_add(x, quern_flip(x, QUERN_LIST(0))));
  assert_int_equal(kern->mems[1].alias, -1);
  drop(kern);
  kern = kernel_of(quern_transpose(square, 0, 1));
  assert_int_equal(kern->mems[1].alias, -1);
  drop(kern);
  kern = kernel_of(quern_cast(x, QUERN_DTYPE_I32));
  assert_int_equal(kern->mems[1].alias, -1);
  drop(kern);
}

/* ---- GPUs ---------------------------------------------------------------------------------------------------- */

/* The bits of the first way; lanes of the stores, vectors a task, and tasks. */
static void expect_gpu(quern_tensor *root, int lanes, int vectors, int64_t tasks) {
  size_t bytes = ir_bytes(root);
  void *first = malloc(bytes + 64), *got = malloc(bytes + 64);
  run_way(&run_ways[0], 1, &root, &first);
  run_way(&gpu, 1, &root, &got);
  for (int64_t k = 0; k < ir_count(root); k++)
    if (!run_equal(root->dtype, first, got, k)) fail_msg("element %lld has other bits", (long long)k);
  free(first);
  free(got);
  struct kern *kern = kernel_for(root, &gpu);
  int stores = 0;
  for (size_t i = 0; i < kern->fns.at[0]->insts.n; i++) {
    const struct kern_inst *inst = &kern->fns.at[0]->insts.at[i];
    stores += inst->op == KERN_STORE && kern->fns.at[0]->insts.at[inst->arg[2]].lanes == lanes;
  }
  if (stores != vectors || kern->phases[0].tasks.mul != tasks)
    fail_msg("%s: %d stores of %d lanes, %lld tasks", kern->name, stores, lanes, (long long)kern->phases[0].tasks.mul);
  drop(kern);
}

/* A thread stores 16 bytes, and waits for 32 at a time where it can. Rows that are no multiples have fewer lanes, or one. */
static void gpu_vectors(void **state) {
  (void)state;
  expect_gpu(quern_exp(DATA(F32, 32, 64)), 4, 2, 32 * 64 / 8);
  expect_gpu(quern_add(DATA(F32, 32, 64), DATA(F32, 32, 64)), 4, 1, 32 * 64 / 4);
  expect_gpu(quern_neg(DATA(BF16, 32, 64)), 8, 2, 32 * 64 / 16);
  expect_gpu(quern_cast(DATA(BF16, 32, 64), QUERN_DTYPE_F32), 4, 2, 32 * 64 / 8);
  expect_gpu(quern_cast(DATA(F32, 32, 64), QUERN_DTYPE_BF16), 8, 1, 32 * 64 / 8);
  expect_gpu(quern_add(DATA(BF16, 6, 24), DATA(BF16, 24)), 8, 2, 6 * 24 / 16);
  expect_gpu(quern_add(DATA(F32, 6, 6), DATA(F32, 6)), 2, 2, 6 * 6 / 4);
  expect_gpu(quern_add(DATA(F32, 5, 7), DATA(F32, 7)), 1, 1, 5 * 7);
  expect_gpu(quern_neg(DATA(F32, 1021)), 4, 1, 255); /* and what is left, one by one */
  expect_gpu(quern_permute(DATA(BF16, 3, 4, 5, 16), QUERN_LIST(0, 2, 1, 3)), 8, 2, 3 * 4 * 5 * 16 / 16);
  expect_gpu(quern_slice(DATA(F32, 8, 64), 1, 1, 64, 2), 4, 2, 8 * 32 / 8);
  expect_gpu(quern_slice(DATA(F32, 8, 96), 1, 1, 96, 3), 1, 1, 8 * 32);
}

/* Squares go through memory of a group: loops of 16 rows. */
static void gpu_squares(void **state) {
  (void)state;
  expect_gpu(quern_exp(quern_transpose(DATA(F32, 64, 96), 0, 1)), 32, 2 * 16, 2 * 3);
  expect_gpu(quern_transpose(DATA(BF16, 3, 128, 64), 1, 2), 64, 2 * 16, 3 * 2);
  expect_gpu(quern_add(quern_transpose(DATA(F64, 32, 32), 0, 1), DATA(F64, 32, 32)), 32, 2 * 16, 1);
  expect_gpu(quern_transpose(DATA(F32, 40, 33), 0, 1), 1, 1, 40 * 33);
}

/* A gather must not be charged for the whole table. */
static void cost_of_picking(void **state) {
  (void)state;
  struct kern *kern = kernel_of(quern_gather(DATA(F32, 1000, 8), DATA(I32, 4), 0));
  assert_true(kern->cost.bytes == 4 * 8 * 4 + 4 * 4 + 4 * 8 * 4);
  drop(kern);
}

/* ---- lack of memory ---------------------------------------------------------------------------------------- */

static quern_tensor *make_turned(int64_t side) {
  quern_tensor *x = DATA(F32, side, 32), *y = DATA(F32, side);
  return quern_add(quern_exp(quern_transpose(x, 0, 1)), y);
}
static quern_tensor *make_square(void) { return make_turned(32); }
static quern_tensor *make_odd(void) { return make_turned(33); }

static void faults(void **state) {
  (void)state;
  run_faults(&wide, make_odd);
  run_faults(&gpu, make_square);
}

/* A kernel of too many instructions is refused, with its node. */
static void too_long(void **state) {
  (void)state;
  struct kern *kern;
  struct pass_group group = {.anchor = quern_exp(DATA(F32, 8))->node, .n_nodes = 3};
  for (int over = 0; over < 2; over++) {
    EXPECT_OK(kern_new(&kern, &ctx->heap));
    struct kern_builder b = {kern, kern_add_phase(kern, KERN_FIXED_TASKS(1))};
    while (b.fn->insts.n < (size_t)SCHED_MOST_INSTS + (size_t)over) kern_index(&b, 1);
    EXPECT_OK(kern_finish(kern, "long", NULL));
    if (over)
      EXPECT_ERROR(sched_check_size(kern, &group), UNSUPPORTED, "(exp, with 2 others) became 65537 instructions");
    else
      EXPECT_OK(sched_check_size(kern, &group));
    kern_free(kern);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(flat_sizes),
      TEST(shapes),
      TEST(broadcasts),
      TEST(dtypes),
      TEST(optimizer),
      TEST(transposes),
      TEST(moves),
      TEST(run_time_places),
      TEST(random_numbers),
      TEST(nothing),
      TEST(one_loop),
      TEST(transposed_in_registers),
      TEST(cut_rows),
      TEST(cut_loops),
      TEST(tasks_by_traffic),
      TEST(takes_memory_over),
      TEST(cost_of_picking),
      TEST(gpu_vectors),
      TEST(gpu_squares),
      TEST(too_long),
      TEST(faults),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
