/* bytes/main.c -- quernbytes: large programs use the memory that is planned for them
** quernbytes [NAME ...]
** Each is compiled for the cpu, and run twice with one thread and with two. Resident memory grows by what is planned and
** 32 MiB at most, the second run allocates nothing, and no kernel is interpreted. The operations one by one: querntest
** --mode memory --device cpu.
** eager: a million eager operations, collected now and then, do not make the process larger.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpt2.h"
#include "probe/watch.h"
#include "quern/quern.h"

enum { MOST_OUTPUTS = 4, MOST_UPDATES = 3 * GPT2_MOST_PARAMETERS, TOKENS = 61 };

struct graph {
  quern_context *ctx;
  size_t n, n_updates;
  quern_tensor *outputs[MOST_OUTPUTS];
  quern_update updates[MOST_UPDATES];
  bool recompute;
  quern_model *model; /* and what its step is made of; or NULL */
  quern_step *step;
};

/* ---- graphs ---------------------------------------------------------------------------------------------------- */

static quern_tensor *input(struct graph *g, int rank, const int64_t *dims) {
  return quern_input(g->ctx, "x", QUERN_DTYPE_F32, rank, dims);
}

/* Its gradients by n tensors, dy being given, are outputs too. */
static void add_gradients(struct graph *g, quern_tensor *y, size_t n, quern_tensor **x) {
  quern_tensor *dy = input(g, quern_tensor_rank(y), quern_tensor_dims(y));
  g->outputs[g->n++] = y;
  if (quern_vjp(1, &y, &dy, n, x, g->outputs + g->n) == QUERN_STATUS_OK) g->n += n;
}

static void build_gemm(struct graph *g) {
  g->outputs[g->n++] = quern_matmul(input(g, QUERN_LIST(2048, 2048)), input(g, QUERN_LIST(2048, 2048)));
}

static void build_reduce(struct graph *g) {
  g->outputs[g->n++] = quern_sum(quern_exp(input(g, QUERN_LIST(10000000))), QUERN_ALL, false);
}

static void build_attention(struct graph *g) {
  quern_attention_options causal = {.size = sizeof causal, .causal = true};
  quern_tensor *x[3];
  for (int i = 0; i < 3; i++) x[i] = input(g, QUERN_LIST(1, 4, 4096, 64));
  add_gradients(g, quern_attention(x[0], x[1], x[2], NULL, &causal, NULL), 3, x);
}

/* The logits, (1024, 50257), would be 206 MB. */
static void build_loss(struct graph *g) {
  quern_tensor *x[2] = {input(g, QUERN_LIST(1024, 768)), input(g, QUERN_LIST(50257, 768))};
  quern_tensor *labels = quern_input(g->ctx, "labels", QUERN_DTYPE_I32, QUERN_LIST(1024));
  add_gradients(g, quern_linear_cross_entropy(x[0], x[1], labels, NULL), 2, x);
}

static void build_sort(struct graph *g) {
  quern_tensor *order, *x = input(g, QUERN_LIST(64, 32768));
  g->outputs[g->n++] = quern_sort(x, 1, true, &order);
  g->outputs[g->n++] = order;
}

static void build_conv(struct graph *g) {
  quern_conv_options options = {.size = sizeof options, .pad_lo = {1, 1}, .pad_hi = {1, 1}};
  quern_tensor *x[2] = {input(g, QUERN_LIST(8, 64, 56, 56)), input(g, QUERN_LIST(64, 64, 3, 3))};
  add_gradients(g, quern_conv2d(x[0], x[1], NULL, &options), 2, x);
}

static void build_gpt2(struct graph *g) {
  struct gpt2 model = gpt2_small(g->ctx);
  model.B = 4;
  model.T = 64;
  if (gpt2_build(&model) != QUERN_STATUS_OK) return;
  g->outputs[g->n++] = model.loss;
  g->n_updates = gpt2_update(&model, g->updates);
}

/* A step of a language model as quern train makes it: AdamW, gradients clipped. */
static void build_training(struct graph *g, const char *checkpoint) {
  quern_lm_options lm = QUERN_INIT(quern_lm_options);
  quern_optim_options optim = QUERN_INIT(quern_optim_options);
  quern_model_options model = QUERN_INIT(quern_model_options);
  quern_tensor *in[2];
  const quern_update *updates;
  optim.clip_norm = 1;
  optim.weight_decay = 0.01;
  for (int i = 0; i < 2; i++)
    in[i] = quern_input(g->ctx, i == 0 ? "tokens" : "labels", QUERN_DTYPE_I32, QUERN_LIST(8, 128));
  if (quern_lm_named(&lm, "modern:256x6") != QUERN_STATUS_OK ||
      quern_lm_set_checkpointing(&lm, checkpoint) != QUERN_STATUS_OK ||
      quern_model_new(&g->model, g->ctx, &model) != QUERN_STATUS_OK)
    return;
  lm.vocabulary = 4096;
  g->recompute = lm.checkpoint_every > 0;
  quern_model_begin(g->model, true);
  quern_tensor *loss = quern_lm_loss(quern_model_scope(g->model), in[0], in[1], &lm);
  if (quern_step_new(&g->step, g->model, loss, &optim) != QUERN_STATUS_OK) return;
  g->outputs[g->n++] = loss;
  g->n_updates = quern_step_updates(g->step, &updates);
  QUERN_ASSERT(g->n_updates <= MOST_UPDATES);
  memcpy(g->updates, updates, g->n_updates * sizeof *updates);
}
static void build_train(struct graph *g) { build_training(g, "none"); }
static void build_block(struct graph *g) { build_training(g, "block"); }

/* limit: of what the step wants, in percent; LEAST: the smallest that can be met; 0: none. */
enum { LEAST = -1 };
static const struct subject {
  const char *name;
  void (*build)(struct graph *g);
  int limit;
} subjects[] = {{"gemm", build_gemm, 0},
                {"reduce", build_reduce, 0},
                {"attention", build_attention, 0},
                {"loss", build_loss, 0},
                {"sort", build_sort, 0},
                {"conv", build_conv, 0},
                {"gpt2", build_gpt2, 0},
                {"train", build_train, 0},
                {"train100", build_train, 100},
                {"train70", build_train, 70},
                {"trainleast", build_train, LEAST},
                {"block", build_block, 0},
                {"blockleast", build_block, LEAST}};

/* ---- running --------------------------------------------------------------------------------------------------- */

struct memory {
  size_t n;
  void **at;
};

static void *grab(size_t bytes) {
  void *memory = malloc(bytes + 1);
  if (memory != NULL) return memset(memory, 0, bytes + 1);
  fprintf(stderr, "quernbytes: no memory\n");
  exit(EXIT_FAILURE);
}

/* Numbers of a slot: floats in [-1, 1), small integers; 1 for a float that is alone. */
static void fill(const quern_slot *slot, void *data) {
  uint64_t s = 1;
  for (size_t i = 0; i < slot->bytes / quern_dtype_size(slot->dtype); i++) {
    s = s * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    if (slot->dtype == QUERN_DTYPE_F32)
      ((float *)data)[i] = slot->rank == 0 ? 1 : (float)(s >> 40) / 8388608 - 1;
    else
      base_store_int(slot->dtype, data, i, (s >> 40) % TOKENS);
  }
}

static void memory_open(struct memory *m, size_t n, const quern_slot *slots) {
  *m = (struct memory){n, grab(n * sizeof *m->at)};
  for (size_t i = 0; i < n; i++) {
    m->at[i] = grab(slots[i].bytes);
    fill(&slots[i], m->at[i]);
  }
}

static void memory_close(struct memory *m) {
  for (size_t i = 0; i < m->n; i++) free(m->at[i]);
  free(m->at);
}

/* Makes an instance and runs it twice, under watch. */
static quern_status run_program(const quern_program *program, struct watch *watch) {
  struct memory inputs, outputs;
  quern_instance *instance = NULL;
  memory_open(&inputs, program->n_inputs, program->inputs);
  memory_open(&outputs, program->n_outputs, program->outputs);
  watch_begin(watch);
  quern_status status = quern_instance_new(&instance, program);
  if (status == QUERN_STATUS_OK) status = quern_instance_zero_states(instance);
  if (status == QUERN_STATUS_OK) status = quern_instance_run(instance, (const void *const *)inputs.at, outputs.at);
  if (status == QUERN_STATUS_OK) watch_second(watch, instance);
  if (status == QUERN_STATUS_OK) status = quern_instance_run(instance, (const void *const *)inputs.at, outputs.at);
  if (status == QUERN_STATUS_OK) status = watch_end(watch, instance);
  quern_instance_free(instance);
  memory_close(&inputs);
  memory_close(&outputs);
  return status;
}

/* The limit of a subject in bytes. */
static quern_status find_limit(const struct graph *g, const struct subject *subject, quern_program_options *options) {
  quern_curve_point points[2] = {QUERN_INIT(quern_curve_point)};
  size_t n;
  if (subject->limit == 0) return QUERN_STATUS_OK;
  QUERN_TRY(quern_program_curve(g->ctx, g->n, g->outputs, options, 2, points, &n));
  options->memory_limit = subject->limit == LEAST ? points[n - 1].limit : points[0].bytes * subject->limit / 100;
  return QUERN_STATUS_OK;
}

static quern_status run_subject(const struct subject *subject, int threads, struct watch *watch) {
  static struct graph g;
  quern_program *program = NULL;
  quern_program_options options = QUERN_INIT(quern_program_options);
  g = (struct graph){0};
  QUERN_TRY(quern_context_new(&g.ctx, NULL));
  subject->build(&g);
  options.threads = threads;
  options.n_updates = g.n_updates;
  options.updates = g.updates;
  options.gradient_checkpointing = g.recompute;
  quern_status status = find_limit(&g, subject, &options);
  if (status == QUERN_STATUS_OK) status = quern_program_compile(&program, g.ctx, g.n, g.outputs, &options);
  if (status == QUERN_STATUS_OK) status = run_program(program, watch);
  quern_program_free(program);
  quern_step_free(g.step);
  quern_model_free(g.model);
  quern_context_free(g.ctx);
  return status;
}

/* ---- eager use ------------------------------------------------------------------------------------------------- */

/* x = 0.5 x + c, so many times, each realized; c is made anew each time, and forgotten. *grown: the resident bytes. */
static quern_status run_steps(quern_context *ctx, int steps, int64_t *grown) {
  enum { EVERY = 1000, WARM = 10 * EVERY };
  struct probe_bytes first = {0}, last = {0};
  float ones[] = {1, 2, 3, 4};
  quern_tensor *x = quern_tensor_copy(ctx, QUERN_DTYPE_F32, QUERN_LIST(4), ones);
  for (int step = 1; step <= WARM + steps; step++) {
    quern_tensor *c = quern_tensor_copy(ctx, QUERN_DTYPE_F32, QUERN_LIST(4), ones);
    x = quern_add(quern_mul_scalar(x, 0.5), c);
    QUERN_TRY(quern_tensor_realize(&x));
    if (step % EVERY == 0) QUERN_TRY(quern_context_collect(ctx, 1, &x));
    if (step == WARM) (void)probe_read(&first);
  }
  (void)probe_read(&last);
  *grown = last.resident - first.resident;
  const float *y = quern_tensor_data(x);
  for (int i = 0; i < 4; i++) QUERN_CHECK(y[i] == 2 * ones[i], INTERNAL, "element %d is %g", i, (double)y[i]);
  return QUERN_STATUS_OK;
}

static bool run_eager(void) {
  enum { STEPS = 1000000 };
  const int64_t most = INT64_C(20) << 20;
  quern_context *ctx;
  int64_t grown = 0;
  quern_status status = quern_context_new(&ctx, NULL);
  if (status == QUERN_STATUS_OK) {
    status = run_steps(ctx, STEPS, &grown);
    quern_context_free(ctx);
  }
  if (status == QUERN_STATUS_OK && grown > most) status = base_error(QUERN_STATUS_INTERNAL, "that is too much");
  bool good = status == QUERN_STATUS_OK;
  printf("%-4s %-10s %d operations: grown by %8.1f MiB%s%s\n", good ? "ok" : "FAIL", "eager", (int)STEPS,
         (double)grown / (1 << 20), good ? "" : ": ", good ? "" : quern_last_error());
  return good;
}

static bool wanted(int argc, char **argv, const char *name) {
  for (int i = 1; i < argc; i++)
    if (strcmp(argv[i], name) == 0) return true;
  return argc == 1;
}

int main(int argc, char **argv) {
  size_t passed = 0, failed = 0;
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (!probe_counts()) printf("skipped: calls of malloc are not counted in this build; those of the library are\n");
  for (size_t i = 0; i < BASE_COUNT(subjects); i++) {
    for (int threads = 1; threads <= 2 && wanted(argc, argv, subjects[i].name); threads++) {
      struct watch watch = {0};
      bool good = run_subject(&subjects[i], threads, &watch) == QUERN_STATUS_OK;
      ++*(good ? &passed : &failed);
      printf("%-4s %-10s %d threads: planned %8.1f MiB, grown by %8.1f MiB%s%s%s\n", good ? "ok" : "FAIL",
             subjects[i].name, threads, (double)watch.planned / (1 << 20), (double)watch.grown / (1 << 20),
             watch.measured || !good ? "" : " (not measured: the peak cannot be reset here)", good ? "" : ": ",
             good ? "" : quern_last_error());
    }
  }
  if (wanted(argc, argv, "eager")) ++*(run_eager() ? &passed : &failed);
  printf("%zu passed, %zu failed\n", passed, failed);
  return failed == 0 && passed > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
