/* cli/eval.c -- the command eval: evaluate a graph with the reference evaluator */
#include "cli.h"

#include <stdlib.h>

/* Inputs that are not set are left out: the evaluator names those that it misses. */
static int evaluate(struct cli_values *v) {
  quern_feed *feeds = calloc(v->n_ins + 1, sizeof *feeds);
  void **results = calloc(v->n_outs + 1, sizeof *results);
  size_t n = 0;
  int status = CLI_OK;
  bool room = feeds != NULL && results != NULL;
  if (!room) status = cli_fail("no memory");
  for (size_t i = 0; i < v->n_ins && room; i++)
    if (v->ins[i].data != NULL) feeds[n++] = (quern_feed){quern_graph_input(v->graph.graph, i), v->ins[i].data};
  for (size_t i = 0; i < v->n_outs && room; i++) results[i] = v->outs[i].fill;
  if (room && quern_eval(v->graph.ctx, v->n_outs, v->outputs, results, n, feeds) != QUERN_STATUS_OK) {
    status = cli_fail_last(v->call->files[0]);
    if (quern_last_status() == QUERN_STATUS_UNBOUND)
      fprintf(stderr, "  HINT: --set NAME=VALUE, or --set NAME=@FILE.npy\n");
  }
  free(feeds);
  free(results);
  return status;
}

/* Simplifies; the outputs are others then. */
static int rewrite(struct cli_values *v) {
  if (quern_graph_rewrite(v->graph.graph, false) != QUERN_STATUS_OK) return cli_fail_last(v->call->files[0]);
  for (size_t i = 0; i < v->n_outs; i++) v->outputs[i] = quern_graph_output(v->graph.graph, i);
  return CLI_OK;
}

static int run(const struct cli_call *call) {
  struct cli_values v;
  int status = cli_values_begin(&v, call);
  if (status == CLI_OK && cli_has(call, "--rewrite", NULL)) status = rewrite(&v);
  if (status == CLI_OK) status = evaluate(&v);
  if (status == CLI_OK) status = cli_values_show(&v);
  cli_values_end(&v);
  return status;
}

static const struct cli_option options[] = {
    CLI_VALUE_OPTIONS,
    {"--rewrite", 0, NULL, "simplify by the exact rules first"},
    {0},
};

const struct cli_command cli_command_eval = {
    .name = "eval",
    .usage = "FILE.qir [--set NAME=VALUE ...] [--out NAME=FILE.npy ...] [--out-dir DIR] [--rewrite]",
    .help = "evaluate a graph and show its outputs",
    .more = "FILE - is standard input. An output without a name goes by its number: --out 0=y.npy.\n",
    .options = options,
    .least_files = 1,
    .most_files = 1,
    .run = run,
};
