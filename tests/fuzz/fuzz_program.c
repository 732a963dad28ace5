/* tests/fuzz/fuzz_program.c -- saved programs whose numbers were changed, past their checksum: one that is accepted is explained, and run
** An input is a program's number and edits of its bytes: the programs are made here, so that they are what codec.c writes today.
** Compiled code is trusted, so kernels are none: a launch touches the ends of each memory that it is given.
*/
#include "engine/codec.h"
#include "fuzz/fuzz.h"
#include "quern/quern.h"

enum { MOST_STEPS = 10000, MOST_BYTES = 1 << 22, MOST_TEXT = 1 << 16, EDIT = 11 };

/* ---- programs -------------------------------------------------------------------------------------------- */

static void turn(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_tanh(quern_add(args[1], quern_mul(args[2], args[3])));
  results[1] = quern_sum(args[1], QUERN_ALL, false);
}

static void is_small(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_lt(quern_sum(args[0], QUERN_ALL, false), quern_sum(args[1], QUERN_ALL, false));
}

static void grow(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_add(args[0], args[1]);
}

static void turned(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_flip(args[0], QUERN_LIST(0));
}

/* A loop with all kinds of operands, a loop of unknown length, a branch, a state, constants and a contraction. */
static size_t build_control(quern_context *ctx, quern_tensor **roots, quern_program_options *options) {
  static float weights[6 * 5];
  static quern_update update;
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(4, 6));
  quern_tensor *s = quern_state(ctx, "s", QUERN_DTYPE_F32, QUERN_LIST(4, 5));
  quern_tensor *w = quern_tensor_wrap(ctx, QUERN_DTYPE_F32, QUERN_LIST(6, 5), weights), *y, *rows, *results[2];
  y = quern_softmax(quern_add(quern_matmul(x, w), s), 1);
  rows = quern_broadcast_to(quern_reshape(y, QUERN_LIST(1, 4, 5)), QUERN_LIST(3, 4, 5));
  quern_loop_options loop = {
      .size = sizeof loop, .trip = 3, .n_carries = 1, .n_scanned = 1, .n_captures = 1, .n_stacked = 1};
  REQUIRE(quern_loop(ctx, &loop, (quern_tensor *[]){y, rows, s}, turn, NULL, results) == QUERN_STATUS_OK);
  roots[0] = results[0];
  roots[1] = results[1];
  REQUIRE(quern_while(ctx, 1, 1, (quern_tensor *[]){y, s}, is_small, grow, NULL, &roots[2]) == QUERN_STATUS_OK);
  quern_tensor *less = quern_lt(quern_sum(y, QUERN_ALL, false), quern_sum(s, QUERN_ALL, false));
  REQUIRE(quern_if(less, 2, (quern_tensor *[]){y, s}, 1, turned, grow, NULL, &roots[3]) == QUERN_STATUS_OK);
  update = (quern_update){s, y};
  options->n_updates = 1;
  options->updates = &update;
  return 4;
}

/* Rows of a dynamic batch. */
static size_t build_rows(quern_context *ctx, quern_tensor **roots, quern_program_options *options) {
  static quern_tensor *leading[1];
  leading[0] = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(8, 6));
  quern_tensor *w = quern_state(ctx, "w", QUERN_DTYPE_BF16, QUERN_LIST(6, 5));
  roots[0] = quern_softmax(quern_matmul(leading[0], quern_cast(w, QUERN_DTYPE_F32)), 1);
  options->n_dynamic_batch = 1;
  options->dynamic_batch = leading;
  return 1;
}

/* A product that a library computes. */
static size_t build_call(quern_context *ctx, quern_tensor **roots, quern_program_options *options) {
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(64, 64));
  roots[0] = quern_relu(quern_add(quern_matmul(x, x), x));
  options->target = "sm_90+blas";
  return 1;
}

typedef size_t builder(quern_context *ctx, quern_tensor **roots, quern_program_options *options);
static builder *const builders[] = {build_control, build_rows, build_call};

/* Each program's bytes and what it is for. */
static struct made {
  struct cg_target target;
  size_t n;
  char *text;
} made[sizeof builders / sizeof builders[0]];

static void make(builder *build, struct made *out) {
  quern_context *ctx;
  quern_program *program;
  quern_tensor *roots[4];
  quern_program_options options = QUERN_INIT(quern_program_options);
  REQUIRE(quern_context_new(&ctx, NULL) == QUERN_STATUS_OK);
  options.device = "interp";
  options.threads = 1;
  size_t n = build(ctx, roots, &options);
  REQUIRE(quern_program_compile(&program, ctx, n, roots, &options) == QUERN_STATUS_OK);
  struct base_str str;
  base_str_init(&str, &program->heap);
  codec_program(&(struct codec){.out = &str}, program);
  REQUIRE(base_str_status(&str) == QUERN_STATUS_OK && str.n < MOST_TEXT);
  out->target = program->target;
  out->n = str.n;
  out->text = malloc(str.n);
  REQUIRE(out->text != NULL);
  memcpy(out->text, str.at, str.n);
  base_str_fini(&str);
  quern_program_free(program);
  quern_context_free(ctx);
}

/* ---- a device that computes nothing ---------------------------------------------------------------------- */

static const quern_program *running;
static int launches;

/* Reads or clears both ends of so many bytes. */
static void touch(volatile char *at, size_t bytes, bool write) {
  const size_t ends[] = {0, bytes - 1};
  for (int i = 0; i < 2 && bytes > 0; i++) {
    if (write)
      at[ends[i]] = 0;
    else
      (void)at[ends[i]];
  }
}

static quern_status launch(struct rt_module *module, size_t k, const struct kern_launch *what, struct rt_pool *pool,
                           char *scratch, size_t stride) {
  (void)module, (void)pool;
  const struct kern *kern = running->kernels[k];
  if (launches++ > MOST_STEPS) return QUERN_STATUS_DEVICE;
  for (int i = 0; i < kern->n_phases; i++) (void)kern_task_count(&kern->phases[i], what->scalars);
  for (int i = 0; i < kern->n_mems; i++)
    touch(what->mems[i], (size_t)kern->mems[i].count * base_dtypes[kern->mems[i].dtype].size,
          kern->mems[i].role != KERN_IN);
  touch(scratch, stride * (size_t)running->target.base.threads, true);
  return QUERN_STATUS_OK;
}

static void free_module(struct rt_module *module) { (void)module; }

static const struct rt_backend backend = {.name = "fuzz", .launch = launch, .free = free_module};
static const quern_device device = {.backend = &backend, .name = "fuzz"};

/* ---- what is accepted ------------------------------------------------------------------------------------ */

/* Steps of a part when it runs, at most MOST_STEPS + 1; a WHILE runs until its condition's kernel, which it must have, has been launched
** too often. */
static int64_t count_steps(const quern_program *p, int part) {
  int64_t n = 0;
  for (int i = 0; i < p->subprograms[part].n_steps && n <= MOST_STEPS; i++) {
    const struct engine_step *step = &p->subprograms[part].steps[i];
    const struct engine_control *c = step->control;
    n++;
    if (c == NULL) continue;
    int64_t other = c->other >= 0 ? count_steps(p, c->other) : 0, body = count_steps(p, c->body);
    bool launched = false;
    for (int k = 0; step->kind == PLAN_WHILE && k < p->subprograms[c->other].n_steps; k++)
      launched = launched || p->subprograms[c->other].steps[k].kind == PLAN_KERNEL;
    if (step->kind == PLAN_WHILE && !launched) return MOST_STEPS + 1;
    int64_t turns = step->kind == PLAN_LOOP ? c->trip : 1;
    n = turns > MOST_STEPS ? MOST_STEPS + 1 : n + other + turns * (body + 1);
  }
  return n;
}

static bool is_small_enough(const quern_program *p) {
  const quern_memory_plan *m = &p->memory;
  size_t bytes = (size_t)(m->arena + m->state + m->constants + m->staging) + engine_scratch_bytes(p);
  for (size_t i = 0; i < p->n_inputs; i++) bytes += p->inputs[i].bytes;
  for (size_t i = 0; i < p->n_outputs; i++) bytes += p->outputs[i].bytes;
  return bytes <= MOST_BYTES && count_steps(p, 0) <= MOST_STEPS;
}

/* Memory of its own for each slot, so that what is behind it is noticed. */
static void **slots_new(size_t n, const quern_slot *slots) {
  void **at = calloc(n + 1, sizeof *at);
  REQUIRE(at != NULL);
  for (size_t i = 0; i < n; i++) REQUIRE((at[i] = calloc(1, slots[i].bytes + (slots[i].bytes == 0))) != NULL);
  return at;
}

static void slots_free(size_t n, void **at) {
  for (size_t i = 0; i < n; i++) free(at[i]);
  free(at);
}

static void run(quern_program *p) {
  quern_instance *instance;
  p->constants = base_alloc_zero(&p->heap, (size_t)p->memory.constants);
  REQUIRE(p->constants != NULL && engine_upload_constants(p) == QUERN_STATUS_OK);
  REQUIRE(quern_instance_new(&instance, p) == QUERN_STATUS_OK);
  for (size_t i = 0; i < p->n_states; i++) touch(quern_instance_state(instance, i), p->states[i].bytes, true);
  void **in = slots_new(p->n_inputs, p->inputs), **out = slots_new(p->n_outputs, p->outputs);
  running = p;
  for (int64_t rows = p->dynamic_batch; rows >= 0; rows = rows > 0 ? rows / 2 : -1) {
    launches = 0;
    if (p->dynamic_batch > 0 && quern_instance_set_dynamic_batch(instance, rows) != QUERN_STATUS_OK) continue;
    quern_status status = quern_instance_run(instance, (const void *const *)in, out);
    REQUIRE(status == QUERN_STATUS_OK || status == QUERN_STATUS_DEVICE);
  }
  slots_free(p->n_inputs, in);
  slots_free(p->n_outputs, out);
  quern_instance_free(instance);
}

static void explain(const quern_program *p) {
  engine_explain *const all[] = {engine_explain_plan, engine_explain_fusion, engine_explain_dot};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    char *text = NULL;
    REQUIRE(all[i](p, NULL, &text) == QUERN_STATUS_OK);
    quern_free_text(text);
  }
}

/* ---- inputs ---------------------------------------------------------------------------------------------- */

/* Eight bytes somewhere become a number, one that lies near, or one of those that are wrong in many places; or the rest is cut off. */
static void edit(char *text, size_t *n, const uint8_t *data) {
  static const int64_t numbers[] = {0, 1, -1, 2, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, INT64_C(1) << 48};
  size_t at = data[1] + 256u * data[2];
  int64_t number, value;
  if (*n < sizeof number) return;
  at %= *n - (sizeof number - 1);
  memcpy(&number, text + at, sizeof number);
  memcpy(&value, data + 3, sizeof value);
  switch (data[0] % 4) {
  case 0: number = value; break;
  case 1: number = (int64_t)((uint64_t)number + (uint64_t)(int64_t)(int8_t)data[3]); break;
  case 2: number = numbers[data[3] % (sizeof numbers / sizeof numbers[0])]; break;
  default: *n = at; return;
  }
  memcpy(text + at, &number, sizeof number);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static char text[MOST_TEXT];
  const size_t n_made = sizeof made / sizeof made[0];
  for (size_t i = 0; i < n_made && made[i].text == NULL; i++) make(builders[i], &made[i]);
  if (size == 0) return 0;
  const struct made *from = &made[data[0] % n_made];
  size_t n = from->n;
  memcpy(text, from->text, n);
  for (size_t at = 1; at + EDIT <= size; at += EDIT) edit(text, &n, data + at);
  char *exact = malloc(n + 1); /* what is behind it is noticed */
  REQUIRE(exact != NULL);
  memcpy(exact, text, n);
  quern_program *program;
  REQUIRE(engine_program_empty(&program, NULL) == QUERN_STATUS_OK);
  static char no_module; /* the device makes nothing of it */
  program->device = &device;
  program->module = (struct rt_module *)(void *)&no_module;
  program->target = from->target;
  struct codec c = {.reading = true, .at = exact, .end = exact + n, .arena = &program->arena, .heap = &program->heap};
  codec_program(&c, program);
  bool fits = !c.failed && codec_valid(program);
  REQUIRE(fits || size > 1);
  free(exact);
  if (fits) explain(program);
  if (fits && is_small_enough(program)) run(program);
  quern_program_free(program);
  return 0;
}
