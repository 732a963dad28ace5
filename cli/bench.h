/* cli/bench.h -- what the files of `quern bench` share
** A suite fills rows. Most suites are a list of cases: a case is a graph built from numbers, the work it must do, and
** what peers call it. The others compare programs of Quern with each other.
*/
#ifndef CLI_BENCH_H
#define CLI_BENCH_H
#include "cli.h"
#include "quern/nn.h"

/* ---- graphs (bench_cases.c, bench_patterns.c, bench_networks.c, bench_models.c) ---------------------------- */

/* "m=1000 k=1000 n=1000" */
int64_t bench_value(const char *params, const char *key, int64_t otherwise);

/* A graph to be compiled: outputs, and how much work it is. */
enum { BENCH_OUTPUTS = 4, BENCH_DATA = 8 };
struct bench_graph {
  quern_context *ctx;
  size_t n_outputs, n_data;
  quern_tensor *outputs[BENCH_OUTPUTS];
  void *data[BENCH_DATA]; /* elements of tensors that the program knows, freed with the graph */
  double flops, bytes;    /* that must be done, read and written */
};
typedef void bench_build(struct bench_graph *graph, const char *params);
quern_status bench_graph_begin(struct bench_graph *graph, bench_build *build, const char *params);
void bench_graph_end(struct bench_graph *graph);

quern_tensor *bench_input(struct bench_graph *graph, const char *name, int rank, const int64_t *dims); /* f32 */
void bench_output(struct bench_graph *graph, quern_tensor *y);
/* A tensor whose elements, in [-1, 1), the program knows: weights that can be packed in advance. */
quern_tensor *bench_known(struct bench_graph *graph, int rank, const int64_t *dims);
/* The same numbers in memory of n floats. */
void bench_fill(float *at, size_t n);

struct bench_kind {
  const char *name; /* also what peers call it */
  bench_build *build;
};
const struct bench_kind *bench_kind_find(const char *name);

/* A pattern that is to become few kernels: with composites, and written out with primitives. */
struct bench_pattern {
  const char *name, *params;
  bench_build *build, *by_hand;
};
extern const struct bench_pattern bench_patterns[]; /* ended by one without a name */

/* A network of quern/models.h (bench_networks.c). */
enum { BENCH_NET_INPUTS = 4 };
struct bench_net {
  quern_context *ctx;
  quern_model *model;
  quern_tensor *y; /* the loss of training, else what the network answers */
  size_t n_inputs;
  quern_tensor *inputs[BENCH_NET_INPUTS];
  int64_t below[BENCH_NET_INPUTS]; /* of inputs that are integers: they are from 0 to below this; else 0 */
  int64_t samples, tokens;         /* in a batch; no tokens: 0 */
};
/* lm, lstm, resnet or mlp in a context of its own, or in the one it has. To be ended also when this fails. */
quern_status bench_net_begin(struct bench_net *net, const char *name, const char *params, bool train);
quern_status bench_net_build(struct bench_net *net, const char *name, const char *params, bool train);
void bench_net_end(struct bench_net *net);

/* A whole model: outputs, and what becomes of its states. */
struct bench_model {
  quern_context *ctx;
  struct bench_net net; /* that states are of, if there are any */
  size_t n_outputs, n_updates;
  quern_tensor **outputs;
  quern_update *updates;
};
struct bench_model_kind {
  const char *name, *params;
  void (*build)(struct bench_model *model, const char *params);
  bool compiled; /* to be compiled for the CPU; else passes and plan only */
};
extern const struct bench_model_kind bench_models[]; /* ended by one without a name */
void bench_model_end(struct bench_model *model);

/* ---- rows (bench_row.c) ----------------------------------------------------------------------------------- */

enum { BENCH_RESULTS = 4, BENCH_MORE = 8, BENCH_MOST_ROUNDS = 101, BENCH_PATH = 256 };

struct bench_result {
  const char *peer;
  double median, ratio; /* seconds; peer's time / Quern's time */
};

struct bench_row {
  char name[32], params[96];
  int threads;
  double median, spread, gflops, gbs, limit; /* seconds; quartiles' distance / median; % of the machine's limit */
  int64_t planned;
  int n_results, n_more;
  struct bench_result results[BENCH_RESULTS];
  struct {
    const char *key;
    double value;
  } more[BENCH_MORE]; /* what else a suite reports; NaN: nobody knows */
  char failed[256];   /* why there are no times; "": there are */
};
void bench_row_add(struct bench_row *row, const char *key, double value);

struct bench_peer;
struct bench_run {
  const struct bench_suite *suite;
  const char *only; /* only rows whose name and params contain it; NULL: all */
  int rounds, threads;
  quern_dtype low;   /* of graph: --precision */
  double slice;      /* seconds of a side in a round */
  const char *write; /* of graph and zoo: a folder for the graphs of the suite; NULL: none */
  size_t n_rows, room;
  struct bench_row *rows;
  bool quick;                   /* of cuda and zoo: less in fewer rounds */
  const char *on;               /* of zoo: --device */
  char device[256];             /* what was measured, when it is not the CPU; "" */
  struct bench_peer *peers[14]; /* running, of bench_peer_get */
};

/* True when --only wants a row of that name. */
bool bench_wanted(const struct bench_run *run, const char *name, const char *params);
/* Keeps a finished row; and shows it first. */
int bench_row_store(struct bench_run *run, const struct bench_row *row);
int bench_row_keep(struct bench_run *run, const struct bench_row *row);
/* Geometric means of the ratios. */
void bench_print_sums(const struct bench_run *run);
int bench_write_json(const struct bench_run *run, const char *path);
/* A JSON object about this machine on its way to a file, which is there whole or not at all. */
struct bench_json {
  FILE *out;
  const char *path;
  char beside[4200];
};
int bench_json_begin(struct bench_json *json, const char *path, const char *device);
int bench_json_end(struct bench_json *json);

/* A folder for files of a suite; removed with what is in it (bench_room.c). */
struct bench_room {
  char path[BENCH_PATH];
};
int bench_room_make(struct bench_room *room);
void bench_room_remove(const struct bench_room *room);

/* ---- measuring (bench_side.c) ----------------------------------------------------------------------------- */

/* Seconds of one run, from n of them; negative when it failed. */
typedef double bench_timed(void *self, long n);
struct bench_racer {
  const char *name;
  bench_timed *run;
  void *self;
  double work; /* a ratio is one of rates when this differs: 1 for all, or operations */
};
/* Round-robin: the median of the first goes to the row, the others become its results. */
int bench_race(struct bench_run *run, struct bench_row *row, size_t n, const struct bench_racer *racers);

/* A program of Quern with an instance and memory for its inputs, states and outputs. */
struct bench_side {
  quern_program *program;
  quern_instance *instance;
  size_t n_inputs, n_outputs;
  void **inputs, **outputs;
  quern_memory_plan memory;
  quern_program_stats counts;
};
quern_status bench_side_begin(struct bench_side *side, const struct bench_graph *graph, int threads,
                              const char *passes);
quern_status bench_side_open(struct bench_side *side, quern_context *ctx, size_t n, quern_tensor *const *outputs,
                             const quern_program_options *options);
void bench_side_end(struct bench_side *side);
bench_timed bench_side_run; /* self: the side */
int64_t bench_side_planned(const struct bench_side *side);
/* Inputs and states of a program of the network that are in range. */
quern_status bench_net_fill(const struct bench_net *net, struct bench_side *side);
/* Kernels of instances and eager use that ended here and were not run as machine code: there must be none. */
uint64_t bench_interpreted(void);
void bench_count_instance(const quern_instance *instance);
void bench_count_eager(const quern_context *ctx, uint64_t before); /* before: that were interpreted to warm up */

/* Fills gflops, gbs and limit of a row that did so much work. */
int bench_rate(struct bench_row *row, double flops, double bytes);

/* ---- suites (bench_suites.c, and a file each) -------------------------------------------------------------- */

struct bench_case {
  const char *kind, *params;
  int threads;         /* 0: those of --threads */
  const char *peers;   /* names, such as "onednn openblas" */
  const char *against; /* params of a case of the same kind whose rate this one's is compared with; NULL: none */
};

struct bench_suite {
  const char *name, *help;
  bool rates;                     /* has rows with operations and bytes a second */
  int threads;                    /* when --threads is not given */
  const struct bench_case *cases; /* ended by a case without a kind; NULL: run does it all */
  int (*run)(struct bench_run *run);
};
extern const struct bench_suite bench_suites[];
extern const size_t bench_suite_count;
int bench_run_fusion(struct bench_run *run);
int bench_run_graph(struct bench_run *run);
int bench_write_graphs(const struct bench_run *run); /* those of the suite graph, as text */
/* Outputs, and new values of states under the names of those, as text; to be freed with quern_free_text. */
quern_status bench_print_graph(quern_context *ctx, size_t n_outputs, quern_tensor *const *outputs, size_t n_updates,
                               const quern_update *updates, char **text);
int bench_run_memory(struct bench_run *run);
int bench_run_limit(struct bench_run *run);
int bench_run_train(struct bench_run *run);
int bench_run_infer(struct bench_run *run);
int bench_run_cuda(struct bench_run *run);
int bench_run_zoo(struct bench_run *run);
int bench_run_file(const struct cli_call *call); /* a graph, a saved program or a run's folder (bench_file.c) */

/* ---- peers (bench_peer.c): processes that do the same work, see bench/peers/peer.h ------------------------- */

enum { BENCH_PEERS = 7 };
/* "onednn", "openblas", "numpy", "torch"; PyTorch: "cuda" on a card, "eager" and "compile" of the suite zoo */
extern const char *const bench_peer_names[BENCH_PEERS];

/* The peer with that many threads, started if need be, or NULL when it is not installed. */
struct bench_peer *bench_peer_get(struct bench_run *run, const char *name, int threads);
void bench_peers_stop(struct bench_run *run);
/* Makes the case ready; false when the peer cannot do it. */
bool bench_peer_prepare(struct bench_peer *peer, const char *kind, const char *params, const char *more);
/* What it answered: "ok key=number ...", "no REASON"; and one of the numbers, NaN when it is not there. */
const char *bench_peer_answer(const struct bench_peer *peer);
double bench_peer_number(const struct bench_peer *peer, const char *key);
const char *bench_peer_version(const struct bench_peer *peer);
/* From now on it may take that many seconds for an answer. */
void bench_peer_patient(struct bench_peer *peer, int seconds);
bench_timed bench_peer_run; /* self: the peer */

#endif
