/* cli/bench.c -- the command bench: suites against peers, all sides round-robin in one run, as ratios
** A table for people, and with --json an object for machines.
*/
#include "bench.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- cases -------------------------------------------------------------------------------------------------- */

/* What a peer can do in more than one way: oneDNN has two interfaces for plain products. */
static int ways(const char *peer, const struct bench_case *c, const char *more[2]) {
  more[0] = more[1] = "";
  bool plain = strcmp(c->kind, "gemm") == 0 && bench_value(c->params, "packed", 0) == 0;
  if (strcmp(peer, "onednn") != 0 || !plain) return 1;
  more[0] = "api=0";
  more[1] = "api=1";
  return 2;
}

/* The way that is faster, made ready; false when the peer has none. */
static bool prepare_peer(struct bench_peer *peer, const char *name, const struct bench_case *c) {
  const char *more[2];
  int n = ways(name, c, more), best = -1;
  double least = 0;
  for (int i = 0; i < n; i++) {
    if (!bench_peer_prepare(peer, c->kind, c->params, more[i])) continue;
    double seconds = n == 1 ? 0 : bench_peer_run(peer, 1);
    for (int k = 0; k < 4 && n > 1; k++) seconds = fmin(seconds, bench_peer_run(peer, 1));
    if (best < 0 || seconds < least) best = i, least = seconds;
  }
  if (best < 0) return false;
  return best == n - 1 || bench_peer_prepare(peer, c->kind, c->params, more[best]);
}

/* Adds the peers of a case that can do it; how many sides there are then. */
static size_t add_peers(struct bench_run *run, const struct bench_case *c, int threads, struct bench_racer *racers,
                        size_t n) {
  for (int i = 0; i < BENCH_PEERS; i++) {
    const char *name = bench_peer_names[i];
    struct bench_peer *peer = strstr(c->peers, name) != NULL ? bench_peer_get(run, name, threads) : NULL;
    if (peer == NULL || !prepare_peer(peer, name, c)) continue;
    racers[n] = (struct bench_racer){name, bench_peer_run, peer, racers[0].work};
    n++;
  }
  return n;
}

/* One side of a case: its graph and its program. */
struct part {
  struct bench_graph graph;
  struct bench_side side;
};

static quern_status part_begin(struct part *part, const char *kind, const char *params, int threads) {
  quern_status status = bench_graph_begin(&part->graph, bench_kind_find(kind)->build, params);
  return status == QUERN_STATUS_OK ? bench_side_begin(&part->side, &part->graph, threads, NULL) : status;
}

static void part_end(struct part *part) {
  bench_side_end(&part->side);
  bench_graph_end(&part->graph);
}

static int run_case(struct bench_run *run, const struct bench_case *c) {
  struct bench_row row = {.threads = c->threads != 0 ? c->threads : run->threads};
  struct bench_racer racers[BENCH_PEERS + 2];
  struct part own = {0}, other = {0};
  size_t n = 1;
  snprintf(row.name, sizeof row.name, "%s", c->kind);
  snprintf(row.params, sizeof row.params, "%s", c->params);
  int status = CLI_OK;
  if (part_begin(&own, c->kind, c->params, row.threads) != QUERN_STATUS_OK) status = cli_fail_last(c->kind);
  racers[0] = (struct bench_racer){"quern", bench_side_run, &own.side, own.graph.flops};
  if (status == CLI_OK && c->against != NULL) {
    if (part_begin(&other, c->kind, c->against, row.threads) != QUERN_STATUS_OK) status = cli_fail_last(c->kind);
    racers[n++] = (struct bench_racer){"shape", bench_side_run, &other.side, other.graph.flops};
  }
  if (status == CLI_OK) n = add_peers(run, c, row.threads, racers, n);
  if (status == CLI_OK) status = bench_race(run, &row, n, racers);
  if (status == CLI_OK) status = bench_rate(&row, own.graph.flops, own.graph.bytes);
  row.planned = bench_side_planned(&own.side);
  part_end(&own);
  part_end(&other);
  return status == CLI_OK ? bench_row_keep(run, &row) : status;
}

static int run_cases(struct bench_run *run) {
  int status = CLI_OK;
  for (const struct bench_case *c = run->suite->cases; c->kind != NULL && status == CLI_OK; c++)
    if (bench_wanted(run, c->kind, c->params)) status = run_case(run, c);
  return status;
}

/* ---- the command ------------------------------------------------------------------------------------------ */

static const struct bench_suite *find_suite(const char *name) {
  for (size_t i = 0; i < bench_suite_count; i++)
    if (strcmp(bench_suites[i].name, name) == 0) return &bench_suites[i];
  return NULL;
}

static int unknown_suite(const struct cli_call *call) {
  const char *names[16];
  for (size_t i = 0; i < bench_suite_count; i++) names[i] = bench_suites[i].name;
  const char *nearest = cli_nearest(call->files[0], bench_suite_count, names);
  return cli_usage(call->command, "there is no suite '%s'%s%s%s", call->files[0],
                   nearest != NULL ? "; did you mean '" : "", nearest != NULL ? nearest : "",
                   nearest != NULL ? "'?" : "");
}

/* A path of something that is there, or of what can be no suite. */
static bool is_file(const char *word) { return access(word, F_OK) == 0 || strpbrk(word, "/.") != NULL; }

static int run_file(const struct cli_call *call) {
  static const char *const of_suites[] = {"--only", "--quick", "--rounds", "--write"};
  for (size_t i = 0; i < sizeof of_suites / sizeof *of_suites; i++)
    if (cli_has(call, of_suites[i], NULL)) return cli_usage(call->command, "%s is of suites", of_suites[i]);
  return bench_run_file(call);
}

/* What is of files only is not given. */
static int check_suite(const struct cli_call *call, const struct bench_suite *suite) {
  bool zoo = suite->run == bench_run_zoo; /* has networks for devices */
  const char *option = cli_first_given(call, zoo ? "--threads --precision --device" : "--threads --precision");
  if (cli_has(call, "--batch", NULL)) option = "--batch";
  if (cli_has(call, "--seconds", NULL)) option = "--seconds";
  if (option != NULL) return cli_usage(call->command, "%s is of graphs and programs", option);
  if (call->n_files > 1) return cli_usage(call->command, "takes one suite, '%s' is one more", call->files[1]);
  return CLI_OK;
}

static int run_bench(const struct cli_call *call) {
  struct bench_run run = {.suite = find_suite(call->files[0]), .slice = 0.02};
  const char *json = NULL;
  int64_t rounds = 11, threads;
  if (run.suite == NULL) return is_file(call->files[0]) ? run_file(call) : unknown_suite(call);
  if (check_suite(call, run.suite) != CLI_OK) return CLI_USAGE;
  threads = run.suite->threads;
  cli_has(call, "--json", &json);
  cli_has(call, "--only", &run.only);
  run.quick = cli_has(call, "--quick", NULL);
  bool zoo = run.suite->run == bench_run_zoo;
  if (run.quick && run.suite->run != bench_run_cuda && !zoo)
    return cli_usage(call->command, "--quick is of the suites cuda and zoo");
  if (run.suite->run == bench_run_cuda || zoo) rounds = run.quick ? 3 : 7;
  const char *device;
  if (cli_has(call, "--device", &device) && cli_device(call, "--device", device, &run.on) != CLI_OK) return CLI_USAGE;
  if (cli_has(call, "--write", &run.write) && run.suite->run != bench_run_graph && !zoo)
    return cli_usage(call->command, "--write is of the suites graph and zoo");
  int status = cli_number(call, "--threads", 1, 1024, &threads);
  if (status == CLI_OK) status = cli_precision(call, &run.low);
  if (status == CLI_OK && run.low != QUERN_DTYPE_F32 && run.suite->run != bench_run_graph)
    return cli_usage(call->command, "--precision is of the suite graph");
  if (status == CLI_OK) status = cli_number(call, "--rounds", 3, BENCH_MOST_ROUNDS, &rounds);
  if (status != CLI_OK) return status;
  run.threads = (int)threads;
  run.rounds = (int)rounds;
  cli_catch_interrupt();
  if (run.write != NULL) return zoo ? bench_run_zoo(&run) : bench_write_graphs(&run);
  status = run.suite->cases != NULL ? run_cases(&run) : run.suite->run(&run);
  if (cli_interrupted()) {
    fprintf(stderr, "quern: interrupted; what was measured so far:\n");
    status = CLI_INTERRUPTED;
  }
  if (run.n_rows == 0 && status == CLI_OK) status = cli_fail("no case of %s contains '%s'", run.suite->name, run.only);
  bench_print_sums(&run);
  if (status == CLI_OK && bench_interpreted() > 0)
    status = cli_fail("%llu kernels were not run as machine code: these times are not those of compiled programs"
                      "\n  HINT: quern devices shows whether there is a C compiler; QUERN_REF must not be set",
                      (unsigned long long)bench_interpreted());
  if (json != NULL && run.n_rows > 0) {
    int written = bench_write_json(&run, json);
    if (status == CLI_OK) status = written;
  }
  bench_peers_stop(&run);
  free(run.rows);
  return status;
}

static const struct cli_option options[] = {
    {"--json", 0, "FILE", "write the results to FILE as JSON"},
    {"--only", 0, "TEXT", "only cases whose name and params contain TEXT"},
    {"--quick", 0, NULL, "of cuda: the most important cases; of zoo: without torch.compile; both in fewer rounds"},
    {"--rounds", 0, "N", "rounds of all sides, one after another (11; cuda, zoo: 7)"},
    {"--write", 0, "DIR", "of graph and zoo: write the graphs to DIR/NAME.qir, measure nothing"},
    {"--batch", 0, "LIST", "of files: batches such as 1,2,4 or 1..128, which doubles"},
    {"--seconds", 0, "S", "of files: how long each batch is measured (1)"},
    CLI_PROGRAM_OPTIONS,
    {0}};

const struct cli_command cli_command_bench = {
    .name = "bench",
    .usage =
        "SUITE [--json FILE] [--only TEXT] [--quick] [--rounds N] [--threads N] [--write DIR]\n"
        "       quern bench zoo [--device cpu|cuda] [--json FILE] [--only TEXT] [--quick] [--rounds N] [--threads N]\n"
        "       quern bench FILE [--batch LIST] [--seconds S] [--json FILE] " CLI_PROGRAM_USAGE "\n"
        "       quern bench RUN [--batch LIST] [--seconds S] [--json FILE] [--inference] [key=value ...]",
    .help = "measure a graph, a program or a run's checkpoint; or a suite against the peers that are installed",
    .more =
        "FILE is a graph, or a program that quern compile -o saved; with a dynamic batch it is measured with "
        "batches\n"
        "of 1, 2, 4, ... rows. RUN is the folder `out` of a run: the training step from its newest checkpoint, or "
        "with\n"
        "--inference the evaluation. Inputs are made up. The best batch, marked *, is the smallest whose throughput "
        "is\n"
        "within 5 % of the most.\n"
        "suites:\n"
        "  gemm             matrix products: 12 shapes plain and packed, few rows, linear + GELU\n"
        "  gemm-off-by-one  the 12 shapes with each size one less and one more: rates as ratios\n"
        "  ops              elementwise, rows, gradients, attention\n"
        "  conv             convolutions of ResNet-50\n"
        "  fusion           kernels, bytes and time of patterns: fused, not fused, and written by hand\n"
        "  graph            nodes before and after the passes; passes, plan, cold and warm compilation\n"
        "  memory           relu, matmul, softmax: bytes and time with memory shared and not\n"
        "  limit            GPT-2's training step in 60 % of the memory, against all it wants (minutes)\n"
        "  train            whole training steps of networks: forward, backward, clipping, AdamW\n"
        "  infer            networks with batches of 1 to 128: samples a second, latency, bytes (minutes)\n"
        "  cuda             a card: kernels, attention, loss, lstm, step (--only takes these), beside PyTorch on it;\n"
        "                   --only loss200: the losses of 200 steps of GPT-2 124M against PyTorch's\n"
        "  zoo              networks of all kinds: training steps, and answers to batches of 1 and 32, beside PyTorch\n"
        "                   eager and compiled; --device cuda: larger ones, in f32 and bf16 (an hour)\n"
        "\npeers: onednn, openblas, numpy, torch, each in a process of its own.\n"
        "A ratio is peer's time / Quern's time; spread is the distance of the quartiles over the median.\n",
    .options = options,
    .least_files = 1,
    .most_files = SIZE_MAX,
    .run = run_bench,
};
