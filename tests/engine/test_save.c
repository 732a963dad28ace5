/* tests/engine/test_save.c -- programs in files: the same bits without compiler and cache; cut and damaged files
** refused */
#include "engine/codec.h"
#include "engine/engine_test.h"

#include <fcntl.h>
#include <unistd.h>

#define PATH "build-test-save.qprg"

static void body(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_tanh(quern_add(args[1], args[2]));
  results[1] = quern_sum(args[1], QUERN_ALL, false);
}

/* Something of everything: a contraction, rows, a loop, a state, constants, several outputs. */
static void build(quern_tensor **roots, quern_update *update) {
  static float weights[6 * 5];
  for (int i = 0; i < 30; i++) weights[i] = (float)(i % 7) - 3;
  quern_tensor *x = F32_INPUT("x", 4, 6), *s = F32_STATE("s", 4, 5);
  quern_tensor *w = quern_tensor_wrap(ctx, QUERN_DTYPE_F32, QUERN_LIST(6, 5), weights), *results[2];
  quern_tensor *y = quern_softmax(quern_add(quern_matmul(x, w), s), 1);
  quern_tensor *rows = quern_broadcast_to(quern_reshape(y, QUERN_LIST(1, 4, 5)), QUERN_LIST(3, 4, 5));
  quern_loop_options options = {.size = sizeof options, .trip = 3, .n_carries = 1, .n_scanned = 1, .n_stacked = 1};
  EXPECT_OK(quern_loop(ctx, &options, (quern_tensor *[]){y, rows}, body, NULL, results));
  roots[0] = results[0];
  roots[1] = results[1];
  roots[2] = quern_argmax(y, 1, false);
  *update = (quern_update){s, y};
}

static void open_saved(void) {
  quern_tensor *roots[3];
  quern_update update;
  build(roots, &update);
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "cpu";
  options.threads = 2;
  options.n_updates = 1;
  options.updates = &update;
  open_program(3, roots, &options);
  EXPECT_OK(quern_program_save(program, PATH));
}

static void saved_programs_run(void **state) {
  (void)state;
  static char want[2][3][MOST_BYTES];
  open_saved();
  quern_memory_plan memory = QUERN_INIT(quern_memory_plan), again = QUERN_INIT(quern_memory_plan);
  EXPECT_OK(quern_program_get_memory(program, &memory));
  for (int time = 0; time < 2; time++) {
    run_program();
    for (int i = 0; i < 3; i++) memcpy(want[time][i], outputs.at[i], program->outputs[i].bytes);
  }
  close_program();
  quern_context_free(ctx);
  ctx = NULL;
  setenv("PATH", "/nowhere", 1); /* no compiler */
  EXPECT_OK(quern_program_load(&program, PATH));
  EXPECT_OK(quern_program_get_memory(program, &again));
  assert_memory_equal(&memory, &again, sizeof memory);
  EXPECT_OK(quern_instance_new(&instance, program));
  for (size_t i = 0; i < states.n; i++) EXPECT_OK(quern_instance_set_state(instance, i, states.at[i]));
  for (int time = 0; time < 2; time++) {
    run_program();
    for (int i = 0; i < 3; i++) assert_memory_equal(want[time][i], outputs.at[i], program->outputs[i].bytes);
  }
  quern_slot slot = QUERN_INIT(quern_slot);
  EXPECT_OK(quern_program_input(program, 0, &slot));
  assert_string_equal(slot.name, "x");
  close_program();
  unlink(PATH);
}

static size_t read_file(char *bytes, size_t most) {
  FILE *file = fopen(PATH, "rb");
  assert_non_null(file);
  size_t n = fread(bytes, 1, most, file);
  fclose(file);
  return n;
}

static void write_file(const char *bytes, size_t n) {
  FILE *file = fopen(PATH, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, n, file), n);
  fclose(file);
}

/* The same graph gives the same file, whatever was in memory before and however long it took; and so does what was loaded. */
static void files_repeat(void **state) {
  (void)state;
  enum { MOST = 1 << 20 };
  static char first[MOST], bytes[MOST];
  open_saved();
  close_program();
  size_t n = read_file(first, MOST);
  assert_true(n > 100 && n < MOST);
  test_renew();
  memory_fill = 0x3c;
  open_saved();
  memory_fill = 0xa5;
  assert_true(read_file(bytes, MOST) == n && memcmp(first, bytes, n) == 0);
  EXPECT_OK(quern_program_save(program, PATH));
  assert_true(read_file(bytes, MOST) == n && memcmp(first, bytes, n) == 0);
  close_program();
  EXPECT_OK(quern_program_load(&program, PATH));
  EXPECT_OK(quern_program_save(program, PATH));
  assert_true(read_file(bytes, MOST) == n && memcmp(first, bytes, n) == 0);
  close_program();
  unlink(PATH);
}

static void expect_refused(const char *bytes, size_t n) {
  quern_program *loaded = (quern_program *)bytes;
  write_file(bytes, n);
  quern_status status = quern_program_load(&loaded, PATH);
  assert_true(status == QUERN_STATUS_PARSE || status == QUERN_STATUS_UNSUPPORTED);
  assert_null(loaded);
}

static void damaged_files_are_refused(void **state) {
  (void)state;
  enum { MOST = 1 << 20 };
  static char bytes[MOST], other[MOST];
  open_saved();
  close_program();
  size_t n = read_file(bytes, MOST);
  assert_true(n > 100 && n < MOST);
  for (size_t cut = 0; cut < n; cut += cut < 256 ? 1 : 997) expect_refused(bytes, cut);
  for (size_t at = 0; at < n; at += at < 256 ? 1 : 499) {
    memcpy(other, bytes, n);
    other[at] = (char)(other[at] ^ 0x10);
    expect_refused(other, n);
  }
  unlink(PATH);
}

/* Past the checksum: every number of the program's own bytes changed, in turn; nothing is run. */
static void wrong_numbers_are_refused(void **state) {
  (void)state;
  open_saved();
  struct base_str str;
  base_str_init(&str, &program->heap);
  EXPECT_OK(engine_program_bytes(program, &str));
  for (size_t at = 0; at + 8 <= BASE_MIN(str.n, 6000); at++) {
    char kept[8];
    memcpy(kept, str.at + at, 8);
    memset(str.at + at, at % 2 == 0 ? 0x7f : 0xff, 8);
    quern_program *made;
    size_t used;
    EXPECT_OK(engine_program_empty(&made, NULL));
    (void)!engine_program_read(made, "bytes", str.at, BASE_MIN(str.n, 6000), &used);
    quern_program_free(made);
    memcpy(str.at + at, kept, 8);
  }
  base_str_fini(&str);
  close_program();
  unlink(PATH);
}

/* One field is another number: what was read would not hold together. */
#define EXPECT_INVALID(field, wrong)                                                                                   \
  do {                                                                                                                 \
    __typeof__(field) right = (field);                                                                                 \
    (field) = (wrong);                                                                                                 \
    if (codec_valid(program)) fail_msg("fits: %s = %s", #field, #wrong);                                               \
    (field) = right;                                                                                                   \
    assert_true(codec_valid(program));                                                                                 \
  } while (0)

static struct engine_step *find_step(struct engine_subprogram *part, enum plan_step_kind kind) {
  for (int i = 0; i < part->n_steps; i++)
    if (part->steps[i].kind == kind) return &part->steps[i];
  fail();
  return NULL;
}

static struct engine_buffer *find_buffer(struct engine_subprogram *part, enum plan_memory_kind place) {
  for (int i = 0; i < part->n_buffers; i++)
    if (part->buffers[i].place == place && part->buffers[i].bytes > 0) return &part->buffers[i];
  fail();
  return NULL;
}

/* Slots, states and memories. */
static void expect_slots_checked(void) {
  EXPECT_INVALID(program->inputs[0].bytes, program->inputs[0].bytes - 4);
  EXPECT_INVALID(program->inputs[0].dtype, QUERN_DTYPE_F64);
  EXPECT_INVALID(((int64_t *)program->inputs[0].dims)[0], INT64_MAX / 2);
  EXPECT_INVALID(program->outputs[0].dynamic_batch, true);
  EXPECT_INVALID(program->states[0].name, NULL);
  EXPECT_INVALID(program->state_at[0], 64);
  EXPECT_INVALID(program->memory.state, program->memory.state + 64);
  EXPECT_INVALID(program->memory.staging, 64);
  EXPECT_INVALID(program->memory.arena, program->subprograms[0].memory.arena - 1);
  EXPECT_INVALID(program->memory.constants, INT64_MAX);
  EXPECT_INVALID(program->scratch_stride, SIZE_MAX / 2);
  EXPECT_INVALID(program->dynamic_batch, -1);
  EXPECT_INVALID(program->n_states, 0);
}

/* Buffers and what lists them. */
static void expect_buffers_checked(struct engine_subprogram *part) {
  struct engine_buffer *param = find_buffer(part, PLAN_PARAM), *state = find_buffer(part, PLAN_STATE);
  struct engine_buffer *arena = find_buffer(part, PLAN_ARENA), *result = find_buffer(part, PLAN_RESULT);
  EXPECT_INVALID(param->at, part->n_params);
  EXPECT_INVALID(param->bytes, param->bytes + 1);
  EXPECT_INVALID(result->at, -1);
  EXPECT_INVALID(result->bytes, result->bytes + 1);
  EXPECT_INVALID(state->bytes, state->bytes + 1);
  EXPECT_INVALID(state->at, state->at + 4);
  EXPECT_INVALID(arena->at, INT64_MAX - 1);
  EXPECT_INVALID(arena->bytes, part->memory.arena + 1);
  EXPECT_INVALID(arena->rows, true);
  EXPECT_INVALID(part->n_outside, part->n_outside - 1);
  EXPECT_INVALID(part->outside[0], part->outside[0] + 1);
  EXPECT_INVALID(part->most_buffers, part->most_buffers + 1);
  EXPECT_INVALID(part->n_params, -1);
}

static void expect_steps_checked(struct engine_subprogram *part) {
  struct engine_step *loop = find_step(part, PLAN_LOOP), *step = find_step(part, PLAN_KERNEL);
  struct engine_control *c = loop->control;
  struct kern *kern = program->kernels[step->kernel];
  EXPECT_INVALID(step->kernel, program->n_kernels);
  EXPECT_INVALID(step->control, c);
  EXPECT_INVALID(step->buffers[0], part->n_buffers);
  EXPECT_INVALID(kern->mems[0].count, INT64_MAX);
  EXPECT_INVALID(kern->mems[0].count, kern->mems[0].count + 1);
  EXPECT_INVALID(kern->mems[0].alias, kern->n_mems);
  EXPECT_INVALID(kern->phases[0].tasks.div, 0);
  EXPECT_INVALID(kern->phases[0].min_blocks_per_sm, -1);
  EXPECT_INVALID(kern->n_scalars, 1);
  EXPECT_INVALID(loop->control, NULL);
  EXPECT_INVALID(loop->kind, PLAN_WHILE);
  EXPECT_INVALID(loop->kind, PLAN_IF);
  EXPECT_INVALID(loop->kind, PLAN_COPY);
  EXPECT_INVALID(c->body, 0);
  EXPECT_INVALID(c->other, 1);
  EXPECT_INVALID(c->other, -2);
  EXPECT_INVALID(c->trip, c->trip + 1);
  EXPECT_INVALID(c->trip, -1);
  EXPECT_INVALID(c->src_stride[1], c->src_stride[1] + 4);
  EXPECT_INVALID(c->src_stride[1], c->src_stride[1] - 4);
  EXPECT_INVALID(c->out_stride[1], c->out_stride[1] + 4);
  EXPECT_INVALID(c->carries, 2);
  EXPECT_INVALID(c->n_src, c->n_src + 1);
  EXPECT_INVALID(c->scanned, INT32_MAX);
  EXPECT_INVALID(program->subprograms[c->body].memory.arena, MOST_BYTES * MOST_BYTES);
}

/* A body that runs itself would have no end of frames. */
static void expect_depth_checked(void) {
  struct engine_control control = {.body = 1, .other = -1, .trip = 1};
  struct engine_buffer works[2] = {{PLAN_ARENA, .bytes = 8}, {PLAN_ARENA, .bytes = 8}};
  struct engine_step loop = {PLAN_LOOP,           .kernel = -1, .n_buffers = 2, .buffers = (int[]){0, 1},
                             .kind_name = "loop", .ops = "",    .layer = "",    .control = &control};
  struct engine_subprogram part = {.n_steps = 1, .n_buffers = 2, .steps = &loop, .buffers = works, .most_buffers = 2};
  struct engine_subprogram parts[2] = {part, part}, *kept = program->subprograms;
  int n_subprograms = program->n_subprograms;
  parts[0].memory.arena = parts[1].memory.arena = 8;
  parts[0].n_params = (int)program->n_inputs;
  parts[0].n_results = (int)program->n_outputs;
  parts[1].n_params = 1;
  program->subprograms = parts;
  program->n_subprograms = 2;
  assert_false(codec_valid(program));
  parts[1].n_steps = parts[1].most_buffers = 0;
  assert_true(codec_valid(program));
  program->subprograms = kept;
  program->n_subprograms = n_subprograms;
}

static void wrong_programs_do_not_fit(void **state) {
  (void)state;
  open_saved();
  unlink(PATH);
  assert_true(codec_valid(program));
  expect_slots_checked();
  expect_buffers_checked(&program->subprograms[0]);
  expect_steps_checked(&program->subprograms[0]);
  expect_depth_checked();
  close_program();
}

/* Saves and loads a program with these outputs. */
static void expect_kept(size_t n, quern_tensor *const *roots, int optimize) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "cpu";
  options.optimize = optimize > 0 ? QUERN_OPTIMIZE_DEFAULT : QUERN_OPTIMIZE_NONE;
  open_program(n, roots, &options);
  EXPECT_OK(quern_program_save(program, PATH));
  close_program();
  EXPECT_OK(quern_program_load(&program, PATH));
  close_program();
  unlink(PATH);
}

static void swap(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_neg(args[2]);
  results[1] = quern_add(args[1], args[2]);
  results[2] = args[3];
}

/* Loops that turn once or never have no second place for what they carry; what is empty may be long otherwise. */
static void edges_are_kept(void **state) {
  (void)state;
  for (int64_t trip = 0; trip < 3; trip++)
    for (int optimize = 0; optimize < 2; optimize++) {
      quern_tensor *results[3], *x = F32_INPUT("x", 3), *y = F32_INPUT("y", 3), *rows = F32_INPUT("rows", trip, 2);
      quern_loop_options options = {
          .size = sizeof options, .trip = trip, .n_carries = 2, .n_scanned = 1, .n_stacked = 1};
      EXPECT_OK(quern_loop(ctx, &options, (quern_tensor *[]){x, y, rows}, swap, NULL, results));
      expect_kept(3, results, optimize);
    }
  quern_tensor *none = F32_INPUT("none", INT64_C(1) << 40, INT64_C(1) << 20, 0);
  expect_kept(1, (quern_tensor *[]){quern_neg(none)}, 1);
}

static void interpreted_programs_are_not_saved(void **state) {
  (void)state;
  open_program(TENSORS(quern_neg(F32_INPUT("x", 3))), NULL);
  assert_int_equal(quern_program_save(program, PATH), QUERN_STATUS_UNSUPPORTED);
  assert_int_not_equal(access(PATH, F_OK), 0);
  close_program();
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(interpreted_programs_are_not_saved),
                                     TEST(damaged_files_are_refused),
                                     TEST(wrong_numbers_are_refused),
                                     TEST(wrong_programs_do_not_fit),
                                     TEST(edges_are_kept),
                                     TEST(files_repeat),
                                     TEST(saved_programs_run)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
