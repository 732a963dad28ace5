/* cli/dynamic_batch.c -- --dynamic-batch and --rows: inputs whose first dimension is given at each run, and how many rows a run has */
#include "cli.h"

int cli_leading_read(struct cli_values *v) {
  int status = cli_values_named(v, "--dynamic-batch", &v->n_dynamic_batch, &v->leading);
  for (size_t k = 0; k < v->n_dynamic_batch && status == CLI_OK; k++) {
    const quern_tensor *x = v->leading[k];
    if (quern_tensor_rank(x) == 0) return cli_fail("--dynamic-batch %s: a scalar has no rows", quern_tensor_name(x));
    for (size_t i = 0; i < v->n_ins; i++)
      if (quern_graph_input(v->graph.graph, i) == x) v->ins[i].type.dynamic_batch = true;
  }
  return status;
}

/* Leaves so many rows of a slot that has `most`. */
static int cut(struct cli_values *v, struct cli_slot *slot, int64_t most) {
  if (slot->type.dims[0] % most != 0)
    return cli_fail("--rows: %lld rows are no part of a first dimension of %lld HINT: reshape the output",
                    (long long)v->rows, (long long)slot->type.dims[0]);
  for (int k = 0; k < slot->type.rank; k++) slot->dims[k] = slot->type.dims[k];
  slot->dims[0] = slot->dims[0] / most * v->rows;
  slot->type.dims = slot->dims;
  slot->type.bytes = slot->type.bytes / (size_t)most * (size_t)v->rows;
  return CLI_OK;
}

int cli_dynamic_batch_inputs(struct cli_values *v, int64_t most) {
  int64_t rows = most;
  int status = cli_number(v->call, "--rows", 0, INT64_MAX, &rows);
  v->rows = rows;
  if (status != CLI_OK || !cli_has(v->call, "--rows", NULL)) return status;
  if (most == 0)
    return cli_usage(v->call->command, "--rows: there is no dynamic batch HINT: name its inputs with --dynamic-batch");
  if (rows > most) return cli_fail("--rows %lld: the dynamic batch has at most %lld", (long long)rows, (long long)most);
  for (size_t i = 0; i < v->n_ins && status == CLI_OK; i++)
    if (v->ins[i].type.dynamic_batch) status = cut(v, &v->ins[i], most);
  return status;
}

int cli_dynamic_batch_outputs(struct cli_values *v, const quern_program *program) {
  int64_t most = quern_program_dynamic_batch(program);
  int status = CLI_OK;
  for (size_t i = 0; i < v->n_outs && status == CLI_OK && v->rows < most; i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    if (quern_program_output(program, i, &slot) != QUERN_STATUS_OK) return cli_fail_last(v->call->files[0]);
    if (slot.dynamic_batch) status = cut(v, &v->outs[i], most);
  }
  return status;
}
