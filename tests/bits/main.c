/* bits/main.c -- quernbits: large programs give the same bits whatever their threads, fusion and memory
** quernbits [--full] [NAME ...]
**   gemm       twelve products            reduce     the sum of 10^7 elements
**   attention  S = 2048, and its gradient gpt2       one training step: loss, gradients, AdamW
** Each is compiled for several ways to run, and run twice with threads that yield and sleep at random. Without --full
** products, heads and the model are smaller, for `make test`. The operations one by one: querntest --mode bits.
*/
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "gpt2.h"

enum { MOST_OUTPUTS = 16, MOST_UPDATES = 3 * GPT2_MOST_PARAMETERS, TOKENS = 61 };

static bool full; /* --full */

struct graph {
  quern_context *ctx;
  size_t n, n_updates;
  quern_tensor *outputs[MOST_OUTPUTS];
  quern_update updates[MOST_UPDATES];
};

/* ---- graphs ---------------------------------------------------------------------------------------------------- */

static void build_gemm(struct graph *g) {
  static const int64_t shapes[][3] = {{1000, 1000, 1000}, {1024, 1024, 1024}, {2048, 2048, 2048}, {4096, 1024, 1024},
                                      {256, 768, 2304},   {256, 768, 3072},   {256, 3072, 768},   {256, 768, 50257},
                                      {1024, 768, 2304},  {1024, 768, 3072},  {1024, 3072, 768},  {1024, 768, 50257}};
  for (size_t i = 0; i < BASE_COUNT(shapes); i++) {
    int64_t part = full ? 1 : 8, m = shapes[i][0] / part, k = shapes[i][1], n = shapes[i][2] / part;
    quern_tensor *x = quern_input(g->ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(m, k));
    quern_tensor *w = quern_input(g->ctx, "w", QUERN_DTYPE_F32, QUERN_LIST(k, n));
    g->outputs[g->n++] = quern_matmul(x, w);
  }
}

static void build_reduce(struct graph *g) {
  quern_tensor *x = quern_input(g->ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(10000000));
  g->outputs[g->n++] = quern_sum(x, QUERN_ALL, false);
  g->outputs[g->n++] = quern_sum(quern_exp(x), QUERN_ALL, false);
}

static void build_attention(struct graph *g) {
  quern_attention_options causal = {.size = sizeof causal, .causal = true};
  const int64_t dims[] = {1, full ? 12 : 1, 2048, 64};
  quern_tensor *qkv[3], *y, *dy;
  for (int i = 0; i < 3; i++) qkv[i] = quern_input(g->ctx, "qkv", QUERN_DTYPE_F32, 4, dims);
  dy = quern_input(g->ctx, "dy", QUERN_DTYPE_F32, 4, dims);
  y = g->outputs[g->n++] = quern_attention(qkv[0], qkv[1], qkv[2], NULL, &causal, NULL);
  if (quern_vjp(1, &y, &dy, 3, qkv, g->outputs + g->n) == QUERN_STATUS_OK) g->n += 3;
}

static void build_gpt2(struct graph *g) {
  struct gpt2 model = gpt2_small(g->ctx);
  model.B = 2;
  model.T = 256;
  if (!full) model = (struct gpt2){.layers = 2, .B = 2, .T = 32, .C = 64, .H = 2, .V = 101, .ctx = g->ctx};
  if (gpt2_build(&model) != QUERN_STATUS_OK) return;
  g->outputs[g->n++] = model.loss;
  g->n_updates = gpt2_update(&model, g->updates);
}

static const struct subject {
  const char *name;
  void (*build)(struct graph *g);
} subjects[] = {{"gemm", build_gemm}, {"reduce", build_reduce}, {"attention", build_attention}, {"gpt2", build_gpt2}};

/* ---- values ---------------------------------------------------------------------------------------------------- */

/* Numbers of a slot: floats of [-1, 1) times a factor, small integers; 1 for a float that is alone. */
static void fill(const quern_slot *slot, void *data, uint64_t seed, float factor) {
  size_t n = slot->bytes / quern_dtype_size(slot->dtype);
  uint64_t s = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
  for (size_t i = 0; i < n; i++) {
    s = s * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    if (slot->dtype == QUERN_DTYPE_F32)
      ((float *)data)[i] = slot->rank == 0 ? 1 : factor * ((float)(s >> 40) / 8388608 - 1);
    else
      base_store_int(slot->dtype, data, i, (s >> 40) % TOKENS);
  }
}

/* What a run left: a number for each output and state. */
struct result {
  size_t n;
  uint64_t hash[MOST_OUTPUTS + MOST_UPDATES];
};

static void add_result(struct result *result, const void *data, size_t bytes) {
  result->hash[result->n++] = base_hash_bytes(BASE_HASH_SEED, data, bytes);
}

/* ---- running --------------------------------------------------------------------------------------------------- */

struct way {
  const char *name;
  int threads;
  const char *passes;
  bool tight;
};

struct memory {
  void **inputs, **outputs;
  size_t n_inputs, n_outputs;
};

static void *grab(size_t bytes) {
  void *memory = calloc(1, bytes + 1);
  if (memory != NULL) return memory;
  fprintf(stderr, "quernbits: no memory\n");
  exit(EXIT_FAILURE);
}

static quern_status memory_open(struct memory *m, const quern_program *program) {
  quern_slot slot = QUERN_INIT(quern_slot);
  m->n_inputs = quern_program_input_count(program);
  m->n_outputs = quern_program_output_count(program);
  m->inputs = grab(m->n_inputs * sizeof *m->inputs);
  m->outputs = grab(m->n_outputs * sizeof *m->outputs);
  for (size_t i = 0; i < m->n_inputs; i++) {
    QUERN_TRY(quern_program_input(program, i, &slot));
    m->inputs[i] = grab(slot.bytes);
    fill(&slot, m->inputs[i], i + 1, 1);
  }
  for (size_t i = 0; i < m->n_outputs; i++) {
    QUERN_TRY(quern_program_output(program, i, &slot));
    m->outputs[i] = grab(slot.bytes);
  }
  return QUERN_STATUS_OK;
}

static void memory_close(struct memory *m) {
  for (size_t i = 0; i < m->n_inputs; i++) free(m->inputs[i]);
  for (size_t i = 0; i < m->n_outputs; i++) free(m->outputs[i]);
  free(m->inputs);
  free(m->outputs);
}

/* Sets or reads all states; those of parameters begin at random, moments at 0. */
static quern_status states(quern_instance *instance, struct result *result) {
  const quern_program *program = instance->program;
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < quern_program_state_count(program) && status == QUERN_STATUS_OK; i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    QUERN_TRY(quern_program_state(program, i, &slot));
    void *data = grab(slot.bytes);
    if (result != NULL) {
      status = quern_instance_get_state(instance, i, data);
      if (status == QUERN_STATUS_OK) add_result(result, data, slot.bytes);
    } else {
      if (slot.name[0] == 'p') fill(&slot, data, 1000 + i, 0.05f);
      status = quern_instance_set_state(instance, i, data);
    }
    free(data);
  }
  return status;
}

/* An output must say something: all of it finite, not all of it 0. */
static quern_status look_at(const quern_slot *slot, const float *x) {
  bool any = false;
  for (size_t i = 0; i < slot->bytes / sizeof *x; i++) {
    QUERN_CHECK(isfinite(x[i]), INTERNAL, "element %zu is %g", i, (double)x[i]);
    any = any || x[i] != 0;
  }
  QUERN_CHECK(any, INTERNAL, "all elements are 0");
  return QUERN_STATUS_OK;
}

static quern_status run_once(quern_instance *instance, struct memory *m, struct result *result) {
  quern_slot slot = QUERN_INIT(quern_slot);
  result->n = 0;
  QUERN_TRY(states(instance, NULL));
  QUERN_TRY(quern_instance_run(instance, (const void *const *)m->inputs, m->outputs));
  for (size_t i = 0; i < m->n_outputs; i++) {
    QUERN_TRY(quern_program_output(instance->program, i, &slot));
    QUERN_TRY(look_at(&slot, m->outputs[i]));
    add_result(result, m->outputs[i], slot.bytes);
  }
  return states(instance, result);
}

static quern_status compare(const struct result *first, const struct result *result) {
  QUERN_CHECK(first->n == result->n, INTERNAL, "%zu results, not %zu", result->n, first->n);
  for (size_t i = 0; i < first->n; i++)
    QUERN_CHECK(first->hash[i] == result->hash[i], INTERNAL, "result %zu has other bits", i);
  return QUERN_STATUS_OK;
}

/* Runs twice, and compares with the first way when there was one. */
static quern_status run_way(quern_instance *instance, const struct way *way, struct result *first) {
  struct memory m = {0};
  struct result *result = grab(sizeof *result);
  quern_status status = memory_open(&m, instance->program);
  for (int time = 0; time < 2 && status == QUERN_STATUS_OK; time++) {
    if (way->threads > 1) rt_pool_disturb(instance->pool, (uint64_t)(way->threads + 100 * time));
    status = run_once(instance, &m, first->n == 0 ? first : result);
    if (status == QUERN_STATUS_OK && result->n > 0) status = compare(first, result);
  }
  free(result);
  memory_close(&m);
  return status;
}

/* Compiles again with less memory than the program has, as far as that is possible. */
static quern_status tighten(quern_program **program, const struct graph *g, quern_program_options *options, char *note,
                            size_t bytes) {
  static const int percent[] = {60, 70, 80, 90, 95, 99};
  quern_memory_plan memory = QUERN_INIT(quern_memory_plan);
  QUERN_TRY(quern_program_get_memory(*program, &memory));
  snprintf(note, bytes, " (it cannot do with less memory)");
  for (size_t i = 0; i < BASE_COUNT(percent) && memory.arena > 0; i++) {
    quern_program *less;
    options->memory_limit = memory.scratch + memory.arena * percent[i] / 100;
    if (quern_program_compile(&less, g->ctx, g->n, g->outputs, options) != QUERN_STATUS_OK) continue;
    quern_program_free(*program);
    *program = less;
    snprintf(note, bytes, " (%d %% of the arena)", percent[i]);
    break;
  }
  return QUERN_STATUS_OK;
}

static quern_status try_way(const struct graph *g, const struct way *way, struct result *first, char *note,
                            size_t bytes) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  quern_program *program;
  quern_instance *instance = NULL;
  options.threads = way->threads;
  options.passes = way->passes;
  options.n_updates = g->n_updates;
  options.updates = g->updates;
  QUERN_TRY(quern_program_compile(&program, g->ctx, g->n, g->outputs, &options));
  quern_status status = way->tight ? tighten(&program, g, &options, note, bytes) : QUERN_STATUS_OK;
  if (status == QUERN_STATUS_OK) status = quern_instance_new(&instance, program);
  if (status == QUERN_STATUS_OK) status = run_way(instance, way, first);
  quern_instance_free(instance);
  quern_program_free(program);
  return status;
}

/* How many ways fail. */
static int check_subject(const struct subject *subject) {
  static const struct way ways[] = {{"1 thread", 1, NULL, false},
                                    {"2 threads", 2, NULL, false},
                                    {"3 threads", 3, NULL, false},
                                    {"8 threads", 8, NULL, false},
                                    {"2 threads, not fused", 2, "-fuse", false},
                                    {"3 threads, less memory", 3, NULL, true}};
  struct graph *g = grab(sizeof *g);
  struct result *first = grab(sizeof *first);
  int failed = 0;
  if (quern_context_new(&g->ctx, NULL) != QUERN_STATUS_OK) exit(EXIT_FAILURE);
  subject->build(g);
  for (size_t w = 0; w < BASE_COUNT(ways); w++) {
    char note[64] = "";
    quern_status status = quern_context_check(g->ctx);
    if (status == QUERN_STATUS_OK) status = try_way(g, &ways[w], first, note, sizeof note);
    if (status == QUERN_STATUS_OK)
      printf("ok   %-9s  %s%s\n", subject->name, ways[w].name, note);
    else
      printf("FAIL %-9s  %s: %s\n", subject->name, ways[w].name, quern_last_error());
    failed += status != QUERN_STATUS_OK;
    fflush(stdout);
  }
  quern_context_free(g->ctx);
  free(first);
  free(g);
  return failed;
}

static bool is_wanted(const char *name, int argc, char **argv) {
  bool any = false;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], name) == 0) return true;
    any = any || argv[i][0] != '-';
  }
  return !any;
}

int main(int argc, char **argv) {
  int passed = 0, failed = 0;
  for (int i = 1; i < argc; i++) {
    bool known = strcmp(argv[i], "--full") == 0;
    full = full || known;
    for (size_t k = 0; k < BASE_COUNT(subjects); k++) known = known || strcmp(argv[i], subjects[k].name) == 0;
    if (known) continue;
    fprintf(stderr, "quernbits: unknown argument %s\nusage: quernbits [--full] [gemm] [reduce] [attention] [gpt2]\n",
            argv[i]);
    return 2;
  }
  for (size_t i = 0; i < BASE_COUNT(subjects); i++) {
    if (!is_wanted(subjects[i].name, argc, argv)) continue;
    int wrong = check_subject(&subjects[i]);
    failed += wrong;
    passed += wrong == 0;
  }
  printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
