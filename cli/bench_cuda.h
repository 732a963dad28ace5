/* cli/bench_cuda.h -- what the files of the suite cuda share */
#ifndef CLI_BENCH_CUDA_H
#define CLI_BENCH_CUDA_H
#include "bench.h"

/* ---- graphs (bench_cuda_cases.c) --------------------------------------------------------------------------------- */

/* A graph whose operands and results are states, so that a run moves nothing between the card and the host. */
enum { CUDA_RESULTS = 16, CUDA_STATES = 32 };
struct cuda_graph {
  quern_context *ctx;
  quern_model *model; /* of parameters; NULL: none */
  quern_dtype dtype;  /* of operands */
  size_t n_updates, n_states;
  quern_update updates[CUDA_RESULTS];
  char names[CUDA_STATES][24];
  int64_t below;       /* of operands that are integers: they are from 0 to below this */
  double flops, bytes; /* that must be done, read and written */
};

struct cuda_case {
  const char *section; /* "kernels", "attention", "loss", "lstm" */
  const char *kind,
      *params; /* as the peer has them; bf16=1: of that dtype, else f32; fast=1: numerics fast; back=1: gradients, too */
  const char *modes; /* ways in which the peer does it */
  bool quick;        /* part of --quick */
};
extern const struct cuda_case cuda_cases[]; /* ended by one without a kind */
quern_status cuda_graph_begin(struct cuda_graph *graph, const struct cuda_case *c);
void cuda_graph_end(struct cuda_graph *graph);

/* ---- the peer (bench_peer.c): PyTorch on the same card ------------------------------------------------------------ */

/* A way of the peer to do the case that is prepared; a racer's self. */
struct cuda_mode {
  struct bench_peer *peer;
  char name[16];
};
bench_timed cuda_mode_run;

/* ---- the step (bench_cuda_step.c) ---------------------------------------------------------------------------------- */

int cuda_run_steps(struct bench_run *run);
/* The losses of 200 steps from the same parameters and tokens as PyTorch's. */
int cuda_run_losses(struct bench_run *run);

/* True when --only wants a section, or a row of it. */
bool cuda_wanted(const struct bench_run *run, const char *section, const char *name, const char *params);
/* The row, in the table and kept. */
int cuda_row_keep(struct bench_run *run, const struct bench_row *row);

#endif
