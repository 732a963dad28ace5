/* cli/bench_cuda.c -- the suite cuda: kernels, attention, losses and training steps on a card, beside PyTorch on the same card
** Both sides have their operands on the card and are asked for many runs at a time; a time is that of all of them until the card has
** done the last, by the number of runs. Rounds alternate, so that a card that slows down slows both.
** see: bench_cuda_cases.c (graphs), bench_cuda_step.c (training), bench/peers/cuda_peer.py
*/
#include "bench_cuda.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train.h"

/* ---- programs --------------------------------------------------------------------------------------------------- */

struct side {
  quern_program *program;
  quern_instance *instance;
  quern_memory_plan memory;
  int64_t below;
};

/* Numbers of a state: floats in [-1, 1), integers in range. A few million of them again and again. */
static void fill(const quern_slot *slot, char *at, int64_t below) {
  enum { MANY = 1 << 20 };
  size_t size = quern_dtype_size(slot->dtype), n = slot->bytes / size, some = n < MANY ? n : MANY;
  uint32_t x = 1;
  for (size_t i = 0; i < some; i++) {
    x = x * 1664525u + 1013904223u;
    float value = (float)(x >> 8) * 0x1p-23f - 1;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (slot->dtype == QUERN_DTYPE_BF16) bits >>= 16;
    if (slot->dtype == QUERN_DTYPE_I32) bits = (x >> 8) % (uint32_t)(below > 0 ? below : 1);
    memcpy(at + i * size, &bits, size < sizeof bits ? size : sizeof bits);
  }
  for (size_t done = some; done < n; done += some)
    memcpy(at + done * size, at, (n - done < some ? n - done : some) * size);
}

static quern_status fill_states(const struct side *side) {
  size_t most = 1;
  quern_slot slot = QUERN_INIT(quern_slot);
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < quern_program_state_count(side->program) && status == QUERN_STATUS_OK; i++) {
    status = quern_program_state(side->program, i, &slot);
    if (slot.bytes > most) most = slot.bytes;
  }
  char *data = malloc(most);
  if (data == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < quern_program_state_count(side->program) && status == QUERN_STATUS_OK; i++) {
    status = quern_program_state(side->program, i, &slot);
    if (status == QUERN_STATUS_OK) fill(&slot, data, side->below);
    if (status == QUERN_STATUS_OK) status = quern_instance_set_state(side->instance, i, data);
  }
  free(data);
  return status;
}

static quern_status side_begin(struct side *side, const struct cuda_graph *graph, const char *params) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  *side = (struct side){.below = graph->below};
  options.device = "cuda";
  options.numerics = bench_value(params, "fast", 0) != 0 ? QUERN_NUMERICS_FAST : QUERN_NUMERICS_EXACT;
  options.n_updates = graph->n_updates;
  options.updates = graph->updates;
  quern_status status = quern_program_compile(&side->program, graph->ctx, 0, NULL, &options);
  side->memory = QUERN_INIT(quern_memory_plan);
  if (status == QUERN_STATUS_OK) status = quern_program_get_memory(side->program, &side->memory);
  if (status == QUERN_STATUS_OK) status = quern_instance_new(&side->instance, side->program);
  return status == QUERN_STATUS_OK ? fill_states(side) : status;
}

static void side_end(struct side *side) {
  quern_instance_free(side->instance);
  quern_program_free(side->program);
}

/* A bench_timed. */
static double side_run(void *self, long n) {
  struct side *side = self;
  if (quern_instance_wait(side->instance) != QUERN_STATUS_OK) return -1;
  double start = cli_seconds();
  for (long i = 0; i < n; i++)
    if (quern_instance_run(side->instance, NULL, NULL) != QUERN_STATUS_OK) return -1;
  if (quern_instance_wait(side->instance) != QUERN_STATUS_OK) return -1;
  return (cli_seconds() - start) / (double)n;
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

bool cuda_wanted(const struct bench_run *run, const char *section, const char *name, const char *params) {
  return run->only == NULL || strcmp(run->only, section) == 0 || bench_wanted(run, name, params);
}

int cuda_row_keep(struct bench_run *run, const struct bench_row *row) {
  if (run->n_rows == 0)
    printf("%-12s %-44s %10s %7s %9s %9s %7s  %s\n", "case", "params", "ms", "spread", "TFLOP/s", "GB/s", "floor",
           "peers: ms, ratio (above 1: Quern is faster)");
  printf("%-12s %-44s %10.4f %6.1f%% %9.1f %9.1f ", row->name, row->params, row->median * 1e3, 100 * row->spread,
         row->gflops * 1e-3, row->gbs);
  char floor[16] = "";
  if (row->limit > 0) snprintf(floor, sizeof floor, "%.1f%%", row->limit);
  printf("%7s", floor);
  for (int i = 0; i < row->n_results; i++)
    printf("  %s %.4f, %.2f", row->results[i].peer, row->results[i].median * 1e3, row->results[i].ratio);
  putchar('\n');
  for (int i = 0; i < row->n_more; i++) printf("%14s%s %.6g\n", "", row->more[i].key, row->more[i].value);
  fflush(stdout);
  return bench_row_store(run, row);
}

/* ---- cases ------------------------------------------------------------------------------------------------------ */

/* The ways in which the peer does a case, as racers after the first; how many there are then. */
static size_t add_modes(struct bench_run *run, const struct cuda_case *c, struct cuda_mode modes[BENCH_RESULTS],
                        struct bench_racer *racers) {
  struct bench_peer *peer = bench_peer_get(run, "cuda", 1);
  size_t n = 1;
  const char *at = c->modes;
  if (peer == NULL || !bench_peer_prepare(peer, c->kind, c->params, "")) return n;
  while (*at != 0 && n <= BENCH_RESULTS) {
    struct cuda_mode *mode = &modes[n - 1];
    int length = (int)strcspn(at, " ");
    mode->peer = peer;
    snprintf(mode->name, sizeof mode->name, "%.*s", length, at);
    racers[n++] = (struct bench_racer){mode->name, cuda_mode_run, mode, 1};
    at += length + (at[length] == ' ');
  }
  return n;
}

/* Names of ways last as long as the program. */
static const char *lasting(const char *name) {
  static const char *const names[] = {"eager", "compile", "replay", "cudnn", "flash", "efficient"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(names[i], name) == 0) return names[i];
  return "peer";
}

/* Bytes a second that copying reaches: as the card was calibrated, or the first row if that is more; 0: not known. */
static double copy_rate(const struct bench_run *run) {
  quern_limits limits = QUERN_INIT(quern_limits);
  double rate = quern_device_limits_of(&limits, "cuda", false) == QUERN_STATUS_OK ? limits.copy : 0;
  for (size_t i = 0; i < run->n_rows; i++)
    if (strcmp(run->rows[i].name, "copy") == 0) rate = fmax(rate, run->rows[i].gbs * 1e9);
  return rate;
}

static int run_case(struct bench_run *run, const struct cuda_case *c) {
  struct bench_row row = {0};
  struct cuda_graph graph;
  struct side side = {0};
  struct cuda_mode modes[BENCH_RESULTS];
  struct bench_racer racers[BENCH_RESULTS + 1];
  snprintf(row.name, sizeof row.name, "%s", c->kind);
  snprintf(row.params, sizeof row.params, "%s", c->params);
  quern_status status = cuda_graph_begin(&graph, c);
  if (status == QUERN_STATUS_OK) status = side_begin(&side, &graph, c->params);
  int result = CLI_OK;
  if (status != QUERN_STATUS_OK) { /* the others can be measured all the same */
    fprintf(stderr, "quern: %s %s: %s\n", c->kind, c->params, quern_last_error());
  } else {
    racers[0] = (struct bench_racer){"quern", side_run, &side, 1};
    size_t n = add_modes(run, c, modes, racers);
    result = cli_interrupted() ? CLI_INTERRUPTED : bench_race(run, &row, n, racers);
    for (int i = 0; i < row.n_results; i++) row.results[i].peer = lasting(row.results[i].peer);
    row.planned = side.memory.arena + side.memory.state + side.memory.constants + side.memory.scratch;
    row.gflops = graph.flops / row.median * 1e-9;
    row.gbs = graph.bytes / row.median * 1e-9;
    double rate = graph.flops == 0 ? copy_rate(run) : 0;
    if (rate > 0) row.limit = 100 * graph.bytes / rate / row.median;
    if (result == CLI_OK) result = cuda_row_keep(run, &row);
  }
  side_end(&side);
  cuda_graph_end(&graph);
  return result;
}

/* ---- the suite -------------------------------------------------------------------------------------------------- */

/* Whether there is a card; else the error names what is missing. */
static int find_card(struct bench_run *run) {
  quern_device *device;
  quern_device_info info = {.size = sizeof info};
  if (quern_device_open(&device, "cuda") != QUERN_STATUS_OK || quern_device_get_info(device, &info) != QUERN_STATUS_OK)
    return cli_fail("bench cuda: %s", quern_last_error());
  snprintf(run->device, sizeof run->device, "%s", info.detail);
  quern_device_free(device);
  struct cuda_graph graph;
  struct side side = {0};
  const struct cuda_case probe = {"", "add", "count=64", "", true};
  quern_status status = cuda_graph_begin(&graph, &probe);
  if (status == QUERN_STATUS_OK) status = side_begin(&side, &graph, probe.params);
  side_end(&side);
  cuda_graph_end(&graph);
  return status == QUERN_STATUS_OK ? CLI_OK : cli_fail("bench cuda: %s", quern_last_error());
}

int bench_run_cuda(struct bench_run *run) {
  int status = find_card(run);
  if (status == CLI_OK) printf("%s\n", run->device);
  for (const struct cuda_case *c = cuda_cases; c->kind != NULL && status == CLI_OK && !cli_interrupted(); c++)
    if ((c->quick || !run->quick) && cuda_wanted(run, c->section, c->kind, c->params)) status = run_case(run, c);
  if (status == CLI_OK && !cli_interrupted()) status = cuda_run_steps(run);
  if (status == CLI_OK && run->only != NULL && strcmp(run->only, "loss200") == 0) status = cuda_run_losses(run);
  return status;
}
