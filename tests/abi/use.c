/* tests/abi/use.c -- a program as people have it: headers of one version, and the library of another
** tests/abi/run.sh compiles it against the frozen headers of tests/abi/include and against headers whose structs grew,
** and runs each with today's library and with one whose structs grew. Behind every struct that the library fills lies a
** canary.
*/
#include <stdio.h>
#include <string.h>

#include "quern/quern.h"

static int failures, checks;

static void check(bool good, const char *what, int line) {
  checks++;
  if (good) return;
  failures++;
  printf("use.c:%d: %s: the last error is: %s\n", line, what, quern_last_error());
}
#define CHECK(cond) check((cond), #cond, __LINE__)
#define OK(call) check((call) == QUERN_STATUS_OK, #call, __LINE__)

enum { CANARY = 128 };

/* A struct that the library fills, as the caller has it, and what lies behind it. */
#define FILLED(type, name)                                                                                             \
  struct {                                                                                                             \
    type it;                                                                                                           \
    unsigned char canary[CANARY];                                                                                      \
  } name = {.it = QUERN_INIT(type)};                                                                                   \
  memset(name.canary, 0xa5, CANARY)

static bool untouched(const unsigned char canary[CANARY]) {
  for (int i = 0; i < CANARY; i++)
    if (canary[i] != 0xa5) return false;
  return true;
}
#define FILLS(name, call)                                                                                              \
  do {                                                                                                                 \
    OK(call);                                                                                                          \
    CHECK(untouched((name).canary) && (name).it.size == sizeof(name).it);                                              \
  } while (0)

/* What a program that is newer than the library (NEWER) asks of it is refused by name; what it leaves zero is not. */
#ifdef NEWER
#define REFUSED(options, type, call)                                                                                   \
  do {                                                                                                                 \
    (options).abi_grown[39] = 1;                                                                                       \
    check((call) == QUERN_STATUS_INVALID && strstr(quern_last_error(), type " has ") != NULL, "refused: " #call,       \
          __LINE__);                                                                                                   \
    (options).abi_grown[39] = 0;                                                                                       \
  } while (0)
#else
#define REFUSED(options, type, call) (void)0
#endif

static void programs(quern_context *ctx) {
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(2, 3)), *y = quern_exp(x);
  quern_program_options options = QUERN_INIT(quern_program_options, .device = "interp", .threads = 1);
  const char *const names[] = {"y"};
  quern_program *program = NULL;
  quern_instance *instance = NULL;
  float in[6] = {0}, out[6] = {0};
  options.output_names = names;
  REFUSED(options, "quern_program_options", quern_program_compile(&program, ctx, 1, &y, &options));
  OK(quern_program_compile(&program, ctx, 1, &y, &options));
  OK(quern_instance_new(&instance, program));
  OK(quern_instance_bind(instance, "x", in, sizeof in));
  OK(quern_instance_bind_output(instance, "y", out, sizeof out));
  OK(quern_instance_run_bound(instance, NULL));
  CHECK(out[0] == 1 && out[5] == 1);
  FILLED(quern_slot, slot);
  FILLS(slot, quern_program_output(program, 0, &slot.it));
  CHECK(slot.it.role == QUERN_SLOT_OUTPUT && slot.it.bytes == 24 && slot.it.rank == 2 && slot.it.dims[1] == 3);
  FILLED(quern_memory_plan, memory);
  FILLS(memory, quern_program_get_memory(program, &memory.it));
  CHECK(memory.it.total >= memory.it.arena);
  FILLED(quern_program_stats, stats);
  FILLS(stats, quern_program_get_stats(program, &stats.it));
  CHECK(stats.it.steps == 1 && stats.it.kernels == 1);
  FILLED(quern_run_stats, runs);
  FILLS(runs, quern_instance_get_stats(instance, &runs.it));
  CHECK(runs.it.runs == 1 && runs.it.interpreted == 1);
  struct {
    quern_curve_point it[4];
    unsigned char canary[CANARY];
  } curve = {.it = {QUERN_INIT(quern_curve_point)}};
  memset(curve.canary, 0xa5, CANARY);
  size_t n = 0;
  quern_tensor *deep = quern_softmax(quern_matmul(quern_exp(x), quern_transpose(x, 0, 1)), 1);
  OK(quern_program_curve(ctx, 1, &deep, &options, 4, curve.it, &n));
  CHECK(n >= 1 && n <= 4 && untouched(curve.canary));
  for (size_t i = 0; i < n; i++) CHECK(curve.it[i].size == sizeof *curve.it && curve.it[i].bytes >= curve.it[i].arena);
  quern_instance_free(instance);
  quern_program_free(program);
}

static void networks(quern_context *ctx) {
  quern_model_options of_model = QUERN_INIT(quern_model_options);
  quern_nn_linear_options linear = QUERN_INIT(quern_nn_linear_options, .no_bias = true);
  quern_cross_entropy_options loss_options = QUERN_INIT(quern_cross_entropy_options, .label_smoothing = 0.1);
  quern_scaler_options scaler = QUERN_INIT(quern_scaler_options);
  quern_optim_options optim = QUERN_INIT(quern_optim_options, .clip_norm = 1, .scaler = &scaler);
  quern_model *model = NULL;
  quern_step *step = NULL;
  REFUSED(of_model, "quern_model_options", quern_model_new(&model, ctx, &of_model));
  OK(quern_model_new(&model, ctx, &of_model));
  quern_scope *scope = quern_model_scope(model);
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(4, 3));
  quern_tensor *labels = quern_input(ctx, "labels", QUERN_DTYPE_I32, QUERN_LIST(4));
  REFUSED(linear, "quern_nn_linear_options", (quern_nn_linear(scope, x, 5, &linear), quern_context_check(ctx)));
  quern_tensor *loss = quern_cross_entropy(quern_nn_linear(scope, x, 5, &linear), labels, &loss_options);
  OK(quern_context_check(ctx));
  REFUSED(optim, "quern_optim_options", quern_step_new(&step, model, loss, &optim));
  REFUSED(scaler, "quern_scaler_options", quern_step_new(&step, model, loss, &optim));
  OK(quern_step_new(&step, model, loss, &optim));
  FILLED(quern_parameter, parameter);
  FILLS(parameter, quern_model_parameter(model, 0, &parameter.it));
  CHECK(strcmp(parameter.it.name, "weight") == 0 && parameter.it.trained);
  FILLED(quern_lm_options, lm);
  FILLS(lm, quern_lm_named(&lm.it, "modern:64x2"));
  CHECK(lm.it.width == 64 && lm.it.layers == 2);
  quern_step_free(step);
  quern_model_free(model);
}

static void data(void) {
  static const uint16_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  quern_tokens_options of_tokens = QUERN_INIT(quern_tokens_options, .raw = true);
  quern_token_window window = QUERN_INIT(quern_token_window, .length = 2);
  quern_loader_options of_loader = QUERN_INIT(quern_loader_options, .batch = 2, .workers = -1);
  quern_tokens *tokens = NULL;
  quern_source *source = NULL;
  quern_loader *loader = NULL;
  REFUSED(of_tokens, "quern_tokens_options", quern_tokens_wrap(&tokens, ids, sizeof ids, &of_tokens));
  OK(quern_tokens_wrap(&tokens, ids, sizeof ids, &of_tokens));
  OK(quern_source_tokens(&source, 1, &tokens, &window, NULL));
  REFUSED(of_loader, "quern_loader_options", quern_loader_new(&loader, source, &of_loader));
  OK(quern_loader_new(&loader, source, &of_loader));
  FILLED(quern_batch, batch);
  FILLS(batch, quern_loader_next(loader, &batch.it));
  CHECK(batch.it.samples == 2 && batch.it.n_fields == 2 && ((const int32_t *)batch.it.fields[0])[0] == 1);
  quern_loader_free(loader);
  quern_source_free(source);
  quern_tokens_free(tokens);
}

static void others(quern_context *ctx) {
  FILLED(quern_context_stats, stats);
  FILLS(stats, quern_context_get_stats(ctx, &stats.it));
  CHECK(stats.it.live_bytes > 0 && stats.it.peak_bytes >= stats.it.live_bytes);
  FILLED(quern_pool_stats, pool);
  FILLS(pool, quern_pool_get_stats(ctx, &pool.it));
  CHECK(pool.it.limit_bytes == (size_t)1 << 30);
  FILLED(quern_env_entry, entry);
  FILLS(entry, quern_env_get(0, &entry.it));
  CHECK(strncmp(entry.it.name, "QUERN_", 6) == 0);
  quern_sampling sampling = QUERN_INIT(quern_sampling);
  static const float logits[] = {0, 3, 1};
  uint32_t id = 9;
  REFUSED(sampling, "quern_sampling", quern_sample(&sampling, 0, 3, logits, &id));
  OK(quern_sample(&sampling, 0, 3, logits, &id));
  CHECK(id == 1);
}

int main(void) {
  quern_context_options options = QUERN_INIT(quern_context_options, .seed = 1);
  quern_context *ctx = NULL;
  REFUSED(options, "quern_context_options", quern_context_new(&ctx, &options));
  OK(quern_context_new(&ctx, &options));
  programs(ctx);
  networks(ctx);
  data();
  others(ctx);
  quern_context_free(ctx);
  printf("%d passed, %d failed\n", checks - failures, failures);
  return failures > 0;
}
