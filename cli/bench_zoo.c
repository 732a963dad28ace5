/* cli/bench_zoo.c -- the suite zoo: networks of all kinds, trained and asked, beside PyTorch eager and compiled
** A training step is forward, backward, clipping of the gradients' norm and AdamW. The first step is timed from
** nothing: the network is built, compiled and given its parameters, with empty caches on every side. On a card what is
** read lies there already, and nothing is fetched.
*/
#define _DEFAULT_SOURCE /* setenv */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quern/optim.h"
#include "zoo.h"

enum { FEW_ROUNDS = 3, PATIENCE = 900 }; /* PATIENCE: seconds for a peer that compiles */
#define LONG_RUN 0.5                     /* seconds from which on few rounds are enough */

/* A row of the suite. */
struct task {
  const struct zoo_network *network;
  struct zoo_size size;
  bool train, bf16, cuda;
};

/* ---- Quern's side ------------------------------------------------------------------------------------------------ */

struct own {
  struct zoo zoo;
  quern_step *step;
  struct bench_side side;
  bool cuda;
  void **none; /* no output is wanted */
  double first;
};

static void fill_leaf(const struct zoo_leaf *leaf, void *memory, size_t bytes) {
  if (leaf->below == 0) bench_fill(memory, bytes / sizeof(float));
  uint32_t x = 1;
  for (size_t i = 0; i < bytes / sizeof(int32_t) && leaf->below > 0; i++) {
    x = x * 1664525u + 1013904223u;
    ((int32_t *)memory)[i] = (int32_t)((x >> 8) % (uint32_t)leaf->below);
  }
}

static const struct zoo_leaf *leaf_of(const struct zoo *z, const char *name) {
  for (size_t i = 0; i < z->n_leaves; i++)
    if (strcmp(quern_tensor_name(z->leaves[i].tensor), name) == 0) return &z->leaves[i];
  return NULL;
}

/* Leaves that are states, on a card. */
static quern_status fill_states(const struct own *own) {
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < quern_program_state_count(own->side.program) && status == QUERN_STATUS_OK; i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    status = quern_program_state(own->side.program, i, &slot);
    const struct zoo_leaf *leaf = status == QUERN_STATUS_OK ? leaf_of(&own->zoo, slot.name) : NULL;
    if (leaf == NULL) continue;
    void *memory = malloc(slot.bytes + 1);
    if (memory == NULL) return QUERN_STATUS_MEMORY;
    fill_leaf(leaf, memory, slot.bytes);
    status = quern_instance_set_state(own->side.instance, i, memory);
    free(memory);
  }
  return status;
}

static quern_status fill(const struct own *own) {
  for (size_t i = 0; i < own->side.n_inputs; i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    quern_status status = quern_program_input(own->side.program, i, &slot);
    if (status != QUERN_STATUS_OK) return status;
    const struct zoo_leaf *leaf = leaf_of(&own->zoo, slot.name);
    if (leaf != NULL) fill_leaf(leaf, own->side.inputs[i], slot.bytes);
    if (strcmp(slot.name, "lr") == 0) *(float *)own->side.inputs[i] = 1e-4f;
  }
  return own->zoo.resident ? fill_states(own) : QUERN_STATUS_OK;
}

/* Seconds of one run from n; on a card nothing is fetched, and their end is waited for. */
static double run_own(void *self, long n) {
  struct own *own = self;
  if (!own->cuda) return bench_side_run(&own->side, n);
  double start = cli_seconds();
  for (long i = 0; i < n; i++)
    if (quern_instance_run(own->side.instance, (const void *const *)own->side.inputs, own->none) != QUERN_STATUS_OK)
      return -1;
  if (quern_instance_wait(own->side.instance) != QUERN_STATUS_OK) return -1;
  return (cli_seconds() - start) / (double)n;
}

/* What the program of a row has: the loss with its step, or the answer. */
struct wanted {
  size_t n, n_updates;
  quern_tensor *outputs[2];
  const quern_update *updates;
};

static quern_status build(struct own *own, const struct task *task, struct wanted *wanted) {
  own->cuda = own->zoo.resident = task->cuda;
  own->zoo.train = task->train;
  own->zoo.dtype = task->bf16 && !task->train ? QUERN_DTYPE_BF16 : QUERN_DTYPE_F32;
  quern_status status = zoo_begin(&own->zoo, task->network, &task->size);
  *wanted = (struct wanted){.n = 1, .outputs = {own->zoo.y}};
  if (!task->train || status != QUERN_STATUS_OK) return status;
  quern_optim_options how = QUERN_INIT(quern_optim_options);
  how.clip_norm = 1;
  how.weight_decay = 0.01;
  if (task->bf16) status = quern_autocast(own->zoo.model, 1, &own->zoo.y, wanted->outputs, NULL);
  if (status == QUERN_STATUS_OK) status = quern_step_new(&own->step, own->zoo.model, wanted->outputs[0], &how);
  if (status != QUERN_STATUS_OK) return status;
  wanted->n_updates = quern_step_updates(own->step, &wanted->updates);
  wanted->outputs[wanted->n++] = quern_step_norm(own->step);
  return QUERN_STATUS_OK;
}

static quern_status compile(struct own *own, const struct bench_run *run, const struct task *task,
                            const struct wanted *wanted) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.threads = run->threads;
  options.device = run->on;
  options.inference = !task->train;
  if (task->cuda) options.numerics = QUERN_NUMERICS_FAST;
  options.updates = wanted->updates;
  options.n_updates = wanted->n_updates;
  return bench_side_open(&own->side, own->zoo.ctx, wanted->n, wanted->outputs, &options);
}

/* Everything up to the end of the first step. */
static quern_status begin(struct own *own, const struct bench_run *run, const struct task *task) {
  double start = cli_seconds();
  struct wanted wanted;
  quern_status status = build(own, task, &wanted);
  if (status == QUERN_STATUS_OK) status = compile(own, run, task, &wanted);
  if (status != QUERN_STATUS_OK) return status;
  own->none = calloc(own->side.n_outputs + 1, sizeof *own->none);
  if (own->none == NULL) return QUERN_STATUS_MEMORY;
  status = quern_instance_init_states(own->side.instance, own->zoo.model);
  if (status == QUERN_STATUS_OK) status = fill(own);
  if (status == QUERN_STATUS_OK && run_own(own, 1) < 0) status = QUERN_STATUS_STATE;
  own->first = cli_seconds() - start;
  return status;
}

static void end(struct own *own) {
  bench_side_end(&own->side);
  free(own->none);
  quern_step_free(own->step);
  zoo_end(&own->zoo);
}

/* ---- a row ------------------------------------------------------------------------------------------------------- */

struct peers {
  struct bench_peer *of[2];
  double first[2], bytes[2];
};
static const char *const ways[] = {"eager", "compile"};

/* The peer's way, ready to run; false, with the reason in row->failed when its network is another. */
static bool prepare(struct bench_run *run, struct bench_row *row, const struct task *task, int i, double parameters,
                    struct peers *peers) {
  char kind[64], more[ZOO_PARAMS + 64];
  peers->of[i] = NULL;
  peers->first[i] = peers->bytes[i] = NAN;
  struct bench_peer *peer = bench_peer_get(run, ways[i], run->threads);
  if (peer == NULL || cli_interrupted()) return false;
  bench_peer_patient(peer, PATIENCE);
  snprintf(kind, sizeof kind, "zoo_%s_%s", task->train ? "train" : "infer", task->network->name);
  snprintf(more, sizeof more, "B=%lld bf16=%d cuda=%d", (long long)task->size.batch, task->bf16, task->cuda);
  if (!bench_peer_prepare(peer, kind, task->size.params, more)) {
    if (!cli_interrupted())
      fprintf(stderr, "quern: %s %s: %s: %s\n", row->name, row->params, ways[i], bench_peer_answer(peer));
    return false;
  }
  double theirs = bench_peer_number(peer, "parameters");
  if (theirs != parameters)
    snprintf(row->failed, sizeof row->failed, "the networks differ: %.0f parameters, of %s %.0f", parameters, ways[i],
             theirs);
  peers->of[i] = peer;
  peers->first[i] = bench_peer_number(peer, "first_s");
  peers->bytes[i] = bench_peer_number(peer, "peak_bytes");
  return row->failed[0] == 0;
}

/* The better way of the peer becomes a result of its own. */
static void add_best(struct bench_row *row) {
  struct bench_result best = {.peer = "best"};
  for (int i = 0; i < row->n_results; i++)
    if (i == 0 || row->results[i].ratio < best.ratio)
      best = (struct bench_result){"best", row->results[i].median, row->results[i].ratio};
  if (row->n_results > 0) row->results[row->n_results++] = best;
}

static int race(struct bench_run *run, struct bench_row *row, const struct task *task, struct own *own) {
  struct bench_racer racers[3] = {{"quern", run_own, own, 1}};
  struct peers peers = {{NULL, NULL}, {NAN, NAN}, {NAN, NAN}};
  double parameters = (double)quern_model_element_count(own->zoo.model);
  size_t n = 1;
  for (int i = 0; i < (run->quick ? 1 : 2) && row->failed[0] == 0; i++)
    if (prepare(run, row, task, i, parameters, &peers))
      racers[n++] = (struct bench_racer){ways[i], bench_peer_run, peers.of[i], 1};
  if (cli_interrupted()) return CLI_INTERRUPTED;
  if (row->failed[0] != 0) return CLI_OK;
  int rounds = run->rounds;
  if (run_own(own, 1) > LONG_RUN && rounds > FEW_ROUNDS) run->rounds = FEW_ROUNDS;
  int status = bench_race(run, row, n, racers);
  run->rounds = rounds;
  if (status != CLI_OK) return status;
  add_best(row);
  row->planned = bench_side_planned(&own->side);
  bench_row_add(row, "parameters", parameters);
  bench_row_add(row, "samples_s", (double)task->size.batch / row->median);
  bench_row_add(row, "first_s", own->first);
  bench_row_add(row, "eager_first_s", peers.first[0]);
  bench_row_add(row, "compile_first_s", peers.first[1]);
  bench_row_add(row, "eager_bytes", peers.bytes[0]);
  bench_row_add(row, "compile_bytes", peers.bytes[1]);
  return CLI_OK;
}

/* The graph of a row as DIR/NAME-train-B8-f32.qir. */
static int write_task(const struct bench_run *run, const struct task *task) {
  struct own own = {.cuda = false};
  struct wanted wanted;
  char path[1024], *text = NULL;
  snprintf(path, sizeof path, "%.900s/%s-%s-B%lld-%s.qir", run->write, task->network->name,
           task->train ? "train" : "infer", (long long)task->size.batch, task->bf16 ? "bf16" : "f32");
  quern_status status = build(&own, task, &wanted);
  if (status == QUERN_STATUS_OK)
    status = bench_print_graph(own.zoo.ctx, wanted.n, wanted.outputs, wanted.n_updates, wanted.updates, &text);
  int result = status == QUERN_STATUS_OK ? cli_write(path, text) : cli_fail_last(task->network->name);
  if (text != NULL) quern_free_text(text);
  end(&own);
  if (result == CLI_OK) printf("%s\n", path);
  return result;
}

/* Keeps the row; one whose side of Quern fails is a row with the message, and the suite goes on. */
static int run_task(struct bench_run *run, const struct task *task, const char *params, bool *failed) {
  struct bench_row row = {.threads = run->threads};
  struct own own = {.cuda = false};
  snprintf(row.name, sizeof row.name, "%s", task->network->name);
  snprintf(row.params, sizeof row.params, "%s", params);
  fprintf(stderr, "%s %s\n", row.name, row.params);
  int status = begin(&own, run, task) == QUERN_STATUS_OK ? race(run, &row, task, &own) : CLI_FAILED;
  if (status == CLI_FAILED) snprintf(row.failed, sizeof row.failed, "%.250s", quern_last_error());
  end(&own);
  if (row.failed[0] != 0) *failed = true;
  return status == CLI_INTERRUPTED ? status : bench_row_keep(run, &row);
}

/* ---- the suite --------------------------------------------------------------------------------------------------- */

/* Training, and answers to batches of 1 and 32; on a card in bf16, too. */
static int run_network(struct bench_run *run, const struct zoo_network *network, bool cuda, bool *failed) {
  static const int64_t batches[] = {0, 1, 32}; /* 0: training, with the batch of the table */
  const struct zoo_size *size = cuda ? &network->cuda : &network->cpu;
  int status = CLI_OK;
  for (int bf16 = 0; bf16 <= cuda; bf16++) {
    for (size_t i = 0; i < sizeof batches / sizeof *batches && status == CLI_OK && !cli_interrupted(); i++) {
      struct task task = {network, *size, i == 0, bf16 != 0, cuda};
      char params[ZOO_PARAMS];
      if (i > 0) task.size.batch = batches[i];
      snprintf(params, sizeof params, "%s B=%lld %s %s", task.train ? "train" : "infer", (long long)task.size.batch,
               task.bf16 ? "bf16" : "f32", size->params);
      if (!bench_wanted(run, network->name, params)) continue;
      status = run->write != NULL ? write_task(run, &task) : run_task(run, &task, params, failed);
    }
  }
  return status;
}

/* Caches of both sides are empty folders that are removed afterwards: the first step is one from nothing. */
static int use_caches(const struct bench_room *room) {
  static const char *const names[] = {"QUERN_CACHE", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"};
  char path[BENCH_PATH + 32];
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    snprintf(path, sizeof path, "%s/%s", room->path, names[i]);
    if (setenv(names[i], path, 1) != 0) return cli_fail("no memory");
  }
  return CLI_OK;
}

int bench_run_zoo(struct bench_run *run) {
  struct bench_room room;
  bool cuda = run->on != NULL && strncmp(run->on, "cuda", 4) == 0, failed = false;
  if (run->on == NULL) run->on = "cpu";
  int status = bench_room_make(&room);
  if (status != CLI_OK) return status;
  status = use_caches(&room);
  for (const struct zoo_network *network = zoo_networks; network->name != NULL && status == CLI_OK; network++)
    status = run_network(run, network, cuda, &failed);
  struct bench_peer *peer = run->n_rows > 0 ? bench_peer_get(run, ways[0], run->threads) : NULL;
  snprintf(run->device, sizeof run->device, "%s%s%s", run->on, peer != NULL ? ", PyTorch " : "",
           peer != NULL ? bench_peer_version(peer) : "");
  bench_peers_stop(run);
  bench_room_remove(&room);
  if (failed && status == CLI_OK) status = cli_fail("networks of the zoo failed");
  return status;
}
