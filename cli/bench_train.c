/* cli/bench_train.c -- the suite train: whole training steps of networks
** A step is forward, backward, clipping of the gradients' norm and AdamW, one program; PyTorch's is its modules, clip_grad_norm_ and
** its AdamW. The work of a step is counted as three times the operations of the loss, whatever either side does.
*/
#include "bench.h"

#include "quern/models.h"
#include "quern/optim.h"

enum { FEW_ROUNDS = 5 };
#define LONG_STEP 0.2 /* seconds from which on few rounds are enough */

static const struct bench_case cases[] = {
    {"lm", "layers=12 C=768 H=12 V=50257 B=4 T=64", 0, "torch", NULL}, /* GPT-2 of 124 million parameters */
    {"lm", "layers=6 C=256 H=8 V=256 B=16 T=128", 0, "torch", NULL},
    {"resnet", "depth=18 size=32 classes=10 B=16", 0, "torch", NULL},
    {"lstm", "layers=2 C=256 V=1000 B=16 T=64", 0, "torch", NULL},
    {"mlp", "layers=3 in=784 C=1024 out=10 B=128", 0, "torch", NULL},
    {0},
};

/* Operations of the loss, from a program that is planned only. */
static quern_status count_loss(const struct bench_net *net, double *flops) {
  quern_program *program = NULL;
  quern_program_options options = QUERN_INIT(quern_program_options);
  quern_program_stats counts = QUERN_INIT(quern_program_stats);
  options.device = "null";
  options.threads = 1;
  quern_tensor *loss = net->y;
  quern_status status = quern_program_compile(&program, net->ctx, 1, &loss, &options);
  if (status == QUERN_STATUS_OK) status = quern_program_get_stats(program, &counts);
  *flops = counts.flops;
  quern_program_free(program);
  return status;
}

/* The program of a step, its states filled. */
static quern_status begin(struct bench_side *side, const struct bench_net *net, quern_step **step, int threads) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  quern_optim_options how = QUERN_INIT(quern_optim_options);
  how.clip_norm = 1;
  how.weight_decay = 0.01;
  quern_status status = quern_step_new(step, net->model, net->y, &how);
  if (status != QUERN_STATUS_OK) return status;
  options.threads = threads;
  options.n_updates = quern_step_updates(*step, &options.updates);
  quern_tensor *outputs[] = {net->y, quern_step_norm(*step)};
  status = bench_side_open(side, net->ctx, 2, outputs, &options);
  return status == QUERN_STATUS_OK ? bench_net_fill(net, side) : status;
}

static int race(struct bench_run *run, const struct bench_case *c, struct bench_row *row, struct bench_side *side) {
  struct bench_racer racers[] = {{"quern", bench_side_run, side, 1}, {"torch", bench_peer_run, NULL, 1}};
  char kind[48];
  size_t n = 1;
  snprintf(kind, sizeof kind, "train_%s", c->kind);
  struct bench_peer *peer = bench_peer_get(run, "torch", row->threads);
  if (peer != NULL && bench_peer_prepare(peer, kind, c->params, "")) racers[n++].self = peer;
  int rounds = run->rounds;
  double seconds = bench_side_run(side, 1);
  if (run->rounds > FEW_ROUNDS && seconds > LONG_STEP) run->rounds = FEW_ROUNDS;
  int status = bench_race(run, row, n, racers);
  run->rounds = rounds;
  return status;
}

static int run_case(struct bench_run *run, const struct bench_case *c) {
  struct bench_row row = {.threads = run->threads};
  struct bench_net net = {0};
  struct bench_side side = {0};
  quern_step *step = NULL;
  double flops = 0;
  snprintf(row.name, sizeof row.name, "%s", c->kind);
  snprintf(row.params, sizeof row.params, "%s", c->params);
  quern_status status = bench_net_begin(&net, c->kind, c->params, true);
  if (status == QUERN_STATUS_OK) status = count_loss(&net, &flops);
  if (status == QUERN_STATUS_OK) status = begin(&side, &net, &step, row.threads);
  int result = status == QUERN_STATUS_OK ? race(run, c, &row, &side) : cli_fail_last(c->kind);
  if (result == CLI_OK) result = bench_rate(&row, 3 * flops, 2 * (double)side.memory.state);
  row.planned = bench_side_planned(&side);
  bench_row_add(&row, "parameters", (double)quern_model_element_count(net.model));
  bench_row_add(&row, "samples_s", (double)net.samples / row.median);
  bench_row_add(&row, "tokens_s", (double)net.tokens / row.median);
  bench_side_end(&side);
  quern_step_free(step);
  bench_net_end(&net);
  return result == CLI_OK ? bench_row_keep(run, &row) : result;
}

int bench_run_train(struct bench_run *run) {
  int status = CLI_OK;
  for (const struct bench_case *c = cases; c->kind != NULL && status == CLI_OK; c++)
    if (bench_wanted(run, c->kind, c->params)) status = run_case(run, c);
  return status;
}
