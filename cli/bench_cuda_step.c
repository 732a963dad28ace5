/* cli/bench_cuda_step.c -- the suite cuda: training steps of GPT-2 124M, how soon the first comes, and 200 losses, beside PyTorch's
** Steps are those of quern_train: the card is waited for at the end of a timing window, and PyTorch runs while Quern waits.
*/
#include "bench_cuda.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "quern/data.h"
#include "train.h"

enum { LENGTH = 1024, VOCABULARY = 50304, IDS = 50257, TURN = 10, MOST = BENCH_MOST_ROUNDS, PATH = BENCH_PATH };

/* ---- data and configurations ------------------------------------------------------------------------------------- */

/* Tokens that follow each other in a way that can be learned: mostly one after another in a fixed order, sometimes any. */
static quern_status write_tokens(const char *path, size_t n) {
  enum { KINDS = 2000, PIECE = 4096 };
  quern_tokens_options options = QUERN_INIT(quern_tokens_options);
  quern_tokens_writer *writer;
  uint32_t ids[PIECE], x = 1, id = 0;
  options.vocab = VOCABULARY;
  quern_status status = quern_tokens_writer_new(&writer, path, &options);
  for (size_t at = 0; at < n && status == QUERN_STATUS_OK; at += PIECE) {
    for (size_t i = 0; i < PIECE; i++) {
      x = x * 1664525u + 1013904223u;
      id = (x >> 28) == 0 ? (x >> 8) % KINDS : (id * 7 + 11) % KINDS;
      ids[i] = id * (IDS / KINDS);
    }
    status = quern_tokens_writer_add(writer, n - at < PIECE ? n - at : PIECE, ids);
  }
  if (status == QUERN_STATUS_OK) status = quern_tokens_writer_end(writer);
  quern_tokens_writer_free(writer);
  return status;
}

struct setting {
  const char *key, *value;
};

static quern_status configure(quern_config **config, const char *data, int64_t batch, int64_t steps, int64_t log) {
  static const struct setting settings[] = {
      {"model", "gpt2:124M"}, {"vocabulary", "50304"},  {"length", "1024"},  {"precision", "bf16"}, {"device", "cuda"},
      {"eval_part", "0"},     {"eval_every", "0"},      {"save_every", "0"}, {"profile", "0"},      {"report", "false"},
      {"lr", "1e-4"},         {"schedule", "constant"}, {"out", ""},         {"seed", "1"}};
  char numbers[3][24];
  quern_status status = quern_train_config(config, NULL);
  for (size_t i = 0; i < sizeof settings / sizeof *settings && status == QUERN_STATUS_OK; i++)
    status = quern_config_set(*config, settings[i].key, settings[i].value);
  snprintf(numbers[0], sizeof numbers[0], "%lld", (long long)batch);
  snprintf(numbers[1], sizeof numbers[1], "%lld", (long long)steps);
  snprintf(numbers[2], sizeof numbers[2], "%lld", (long long)log);
  const struct setting more[] = {
      {"data", data}, {"batch", numbers[0]}, {"steps", numbers[1]}, {"log_every", numbers[2]}};
  for (size_t i = 0; i < sizeof more / sizeof *more && status == QUERN_STATUS_OK; i++)
    status = quern_config_set(*config, more[i].key, more[i].value);
  return status;
}

/* ---- steps ------------------------------------------------------------------------------------------------------ */

struct race {
  const quern_train_info *info;
  struct cuda_mode *mode; /* of the peer; NULL: it has none */
  int rounds, n;
  double own[MOST], its[MOST], ratios[MOST];
  int64_t planned, used;
  double flops;
};

static void on_begin(void *user, const quern_train_info *info) { ((struct race *)user)->info = info; }

static bool on_step(void *user, const quern_train_record *record) {
  struct race *race = user;
  if (!record->known || record->step <= TURN || record->step % TURN != 0) return !cli_interrupted();
  race->planned = race->info->planned;
  race->used = race->info->used;
  race->flops = race->info->flops;
  race->own[race->n] = record->seconds;
  double its = race->mode != NULL ? cuda_mode_run(race->mode, TURN) : -1;
  if (cli_interrupted()) return false; /* with the rounds before */
  if (its <= 0) race->mode = NULL;
  race->its[race->n] = its;
  race->ratios[race->n] = its / record->seconds;
  race->n++;
  return race->n < race->rounds;
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Sorts them. */
static double median(int n, double *values) {
  qsort(values, (size_t)n, sizeof *values, compare);
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static int run_race(struct bench_run *run, const char *data, int64_t batch, struct race *race) {
  char params[64];
  struct cuda_mode mode = {bench_peer_get(run, "cuda", 1), "compile"};
  snprintf(params, sizeof params, "B=%lld T=%d V=%d", (long long)batch, LENGTH, VOCABULARY);
  if (mode.peer != NULL && bench_peer_prepare(mode.peer, "step", params, "")) race->mode = &mode;
  race->rounds = run->quick ? 3 : run->rounds;
  quern_config *config = NULL;
  quern_train_callbacks callbacks = QUERN_INIT(quern_train_callbacks);
  callbacks.user = race;
  callbacks.begin = on_begin;
  callbacks.step = on_step;
  quern_status status = configure(&config, data, batch, TURN * (race->rounds + 2), TURN);
  if (status == QUERN_STATUS_OK) status = quern_train(config, &callbacks, NULL);
  quern_config_free(config);
  race->mode = NULL;
  return status == QUERN_STATUS_OK ? CLI_OK
                                   : cli_fail("bench cuda: step of B=%lld: %s", (long long)batch, quern_last_error());
}

/* ---- how soon the first step comes ------------------------------------------------------------------------------- */

/* Seconds from the start of a process that trains to the end of its first step, and what it reports they were spent on. */
struct first {
  double step, context, libraries, compiler;
};

static bool time_first(const struct bench_room *room, const char *data, int64_t batch, struct first *first) {
  char command[4096], line[512], self[1024];
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  if (n <= 0) return false;
  self[n] = 0;
  *first = (struct first){0};
  snprintf(command, sizeof command,
           "QUERN_CACHE='%s/cache%lld' '%s' train model=gpt2:124M vocabulary=%d data='%s' length=%d batch=%lld steps=1 "
           "precision=bf16 device=cuda eval_part=0 profile=0 out= 2>/dev/null",
           room->path, (long long)batch, self, VOCABULARY, data, LENGTH, (long long)batch);
  double start = cli_seconds();
  FILE *out = popen(command, "r");
  while (out != NULL && fgets(line, sizeof line, out) != NULL) {
    const char *at = strstr(line, "; device ");
    if (at != NULL)
      (void)sscanf(at, "; device %lf s, libraries %lf s, compiler %lf s", &first->context, &first->libraries,
                   &first->compiler);
    if (strncmp(line, "step 1/1 ", 9) == 0) first->step = cli_seconds() - start;
  }
  return out != NULL && pclose(out) == 0 && first->step > 0;
}

/* Cold: nothing is in the cache, which is this batch's own; then warm. */
static void add_first(struct bench_row *row, const struct bench_room *room, const char *data, int64_t batch) {
  struct first cold, warm;
  if (!time_first(room, data, batch, &cold) || cli_interrupted() || !time_first(room, data, batch, &warm)) return;
  bench_row_add(row, "first_cold_s", cold.step);
  bench_row_add(row, "first_warm_s", warm.step);
  bench_row_add(row, "context_s", warm.context);
  bench_row_add(row, "libraries_s", warm.libraries);
  bench_row_add(row, "compile_cold_s", cold.compiler);
}

/* ---- rows ------------------------------------------------------------------------------------------------------- */

static int run_step(struct bench_run *run, const struct bench_room *room, const char *data, int64_t batch) {
  struct bench_row row = {0};
  struct race race = {0};
  snprintf(row.name, sizeof row.name, "step");
  snprintf(row.params, sizeof row.params, "gpt2:124M B=%lld T=%d bf16", (long long)batch, LENGTH);
  if (!cuda_wanted(run, "step", row.name, row.params)) return CLI_OK;
  int status = run_race(run, data, batch, &race);
  if (status != CLI_OK || race.n == 0) return status;
  bool peer = race.its[race.n - 1] > 0;
  double ratio = median(race.n, race.ratios);
  row.median = median(race.n, race.own);
  row.spread = (race.own[race.n * 3 / 4] - race.own[race.n / 4]) / row.median;
  row.gflops = race.flops / row.median * 1e-9;
  row.planned = race.planned;
  if (peer) row.results[row.n_results++] = (struct bench_result){"compile", median(race.n, race.its), ratio};
  bench_row_add(&row, "tokens_s", (double)(batch * LENGTH) / row.median);
  bench_row_add(&row, "planned_mib", (double)race.planned / 1048576);
  bench_row_add(&row, "used_mib", (double)race.used / 1048576);
  if (!run->quick && !cli_interrupted()) add_first(&row, room, data, batch);
  return cuda_row_keep(run, &row);
}

int cuda_run_steps(struct bench_run *run) {
  static const int64_t batches[] = {4, 64};
  struct bench_room room;
  char data[PATH];
  bool any = false;
  for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
    char params[64];
    snprintf(params, sizeof params, "gpt2:124M B=%lld T=%d bf16", (long long)batches[i], LENGTH);
    any = any || cuda_wanted(run, "step", "step", params);
  }
  if (!any) return CLI_OK;
  int status = bench_room_make(&room);
  if (status != CLI_OK) return status;
  snprintf(data, sizeof data, "%.200s/tokens.bin", room.path);
  if (write_tokens(data, (size_t)1 << 21) != QUERN_STATUS_OK) status = cli_fail_last("bench cuda");
  for (size_t i = 0; i < sizeof batches / sizeof *batches && status == CLI_OK && !cli_interrupted(); i++)
    status = run_step(run, &room, data, batches[i]);
  bench_room_remove(&room);
  return status;
}

/* ---- losses ----------------------------------------------------------------------------------------------------- */

enum { STEPS = 200, BATCH = 8 };

struct losses {
  int n;
  double own[STEPS], its[STEPS];
};

static bool on_loss(void *user, const quern_train_record *record) {
  struct losses *losses = user;
  if (losses->n < STEPS) losses->own[losses->n++] = record->loss;
  return !cli_interrupted();
}

/* The batches of the run, for the peer: inputs and labels of each, one after another. */
static quern_status write_batches(const char *data, const char *path) {
  quern_tokens *tokens = NULL;
  quern_source *source = NULL;
  quern_loader *loader = NULL;
  quern_token_window window = QUERN_INIT(quern_token_window);
  quern_loader_options options = QUERN_INIT(quern_loader_options);
  quern_batch batch = QUERN_INIT(quern_batch);
  window.length = LENGTH;
  options.batch = BATCH;
  options.order = QUERN_ORDER_SHUFFLED;
  options.seed = 1;
  FILE *out = fopen(path, "wb");
  quern_status status = out != NULL ? quern_tokens_open(&tokens, data, NULL) : QUERN_STATUS_IO;
  if (status == QUERN_STATUS_OK) status = quern_source_tokens(&source, 1, &tokens, &window, NULL);
  if (status == QUERN_STATUS_OK) status = quern_loader_new(&loader, source, &options);
  for (int i = 0; i < STEPS && status == QUERN_STATUS_OK; i++) {
    size_t n = (size_t)BATCH * LENGTH;
    status = quern_loader_next(loader, &batch);
    for (int k = 0; k < 2 && status == QUERN_STATUS_OK; k++)
      if (fwrite(batch.fields[k], sizeof(int32_t), n, out) != n) status = QUERN_STATUS_IO;
  }
  quern_loader_free(loader);
  quern_source_free(source);
  quern_tokens_free(tokens);
  if (out != NULL && fclose(out) != 0) status = QUERN_STATUS_IO;
  return status;
}

/* The parameters that the run begins with, in a checkpoint of step 0; then its losses. */
static quern_status train_losses(const struct bench_room *room, const char *data, struct losses *losses) {
  char out[PATH];
  quern_config *config = NULL;
  quern_trainer *trainer = NULL;
  quern_train_callbacks callbacks = QUERN_INIT(quern_train_callbacks);
  callbacks.user = losses;
  callbacks.step = on_loss;
  snprintf(out, sizeof out, "%.200s/run", room->path);
  quern_status status = configure(&config, data, BATCH, STEPS, 1);
  if (status == QUERN_STATUS_OK) status = quern_config_set(config, "out", out);
  if (status == QUERN_STATUS_OK) status = quern_trainer_new(&trainer, config, NULL);
  if (status == QUERN_STATUS_OK) status = quern_trainer_save(trainer, NULL);
  quern_trainer_free(trainer);
  if (status == QUERN_STATUS_OK) status = quern_config_set(config, "keep", "0");
  if (status == QUERN_STATUS_OK) status = quern_train(config, &callbacks, NULL);
  quern_config_free(config);
  return status;
}

static int compare_losses(struct bench_run *run, struct losses *losses) {
  struct bench_row row = {.name = "loss200", .median = 1};
  double worst = 0;
  int at = 0;
  for (int i = 0; i < STEPS; i++) {
    double off = fabs(losses->own[i] - losses->its[i]) / fabs(losses->its[i]);
    if (!(off <= worst)) worst = off, at = i;
    if (i % 25 == 0 || i == STEPS - 1)
      printf("step %3d: loss %.4f, PyTorch's %.4f, %.3f%% off\n", i + 1, losses->own[i], losses->its[i], 100 * off);
  }
  printf("the greatest distance is %.3f%%, at step %d: %s\n", 100 * worst, at + 1,
         worst <= 0.01 ? "within 1%" : "MORE than 1%");
  snprintf(row.params, sizeof row.params, "gpt2:124M B=%d T=%d bf16", BATCH, LENGTH);
  bench_row_add(&row, "worst_pct", 100 * worst);
  bench_row_add(&row, "worst_step", at + 1);
  bench_row_add(&row, "last_loss", losses->own[STEPS - 1]);
  bench_row_add(&row, "last_loss_torch", losses->its[STEPS - 1]);
  int status = bench_row_store(run, &row);
  return status == CLI_OK && !(worst <= 0.01) ? cli_fail("bench cuda: losses are not those of PyTorch") : status;
}

int cuda_run_losses(struct bench_run *run) {
  struct bench_room room;
  struct losses losses = {0};
  char data[PATH], batches[PATH], params[PATH + 64];
  struct bench_peer *peer = bench_peer_get(run, "cuda", 1);
  if (peer == NULL) return cli_fail("bench cuda: losses are compared with PyTorch's, which is not there");
  int status = bench_room_make(&room);
  if (status != CLI_OK) return status;
  snprintf(data, sizeof data, "%.200s/tokens.bin", room.path);
  snprintf(batches, sizeof batches, "%.200s/batches.bin", room.path);
  if (write_tokens(data, (size_t)BATCH * LENGTH * STEPS / 2) != QUERN_STATUS_OK ||
      write_batches(data, batches) != QUERN_STATUS_OK || train_losses(&room, data, &losses) != QUERN_STATUS_OK)
    status = cli_fail_last("bench cuda");
  snprintf(params, sizeof params, "B=%d T=%d V=%d dir=%.200s", BATCH, LENGTH, VOCABULARY, room.path);
  if (status == CLI_OK && !cli_interrupted() && !bench_peer_prepare(peer, "losses", params, ""))
    status = cli_fail("bench cuda: PyTorch cannot train from the same parameters");
  for (int i = 0; i < STEPS && status == CLI_OK && !cli_interrupted(); i++) losses.its[i] = bench_peer_run(peer, 1);
  bench_room_remove(&room);
  if (status == CLI_OK && cli_interrupted()) status = CLI_INTERRUPTED;
  return status == CLI_OK ? compare_losses(run, &losses) : status;
}
