/* train/network.c -- the loss of a network: what a task's function builds, looked at
** in:    a task, or the spec of a built-in model           out: the loss of a batch and what evaluations report
** keeps: built-in models are networks like a user's own: one path leads from the loss to the step
** tests: tests/train/test_own.c
*/
#include <stdio.h>

#include "ir/ir.h"
#include "train/train.h"

/* ---- tasks ---------------------------------------------------------------------------------------------- */

/* Letters, digits, _ . and -, fewer than TRAIN_NAME of them. */
static bool is_name(const char *name) {
  static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
  size_t n = strspn(name, letters);
  return n > 0 && n < TRAIN_NAME && name[n] == 0;
}

quern_status train_task_take(quern_train_task *task, const quern_train_task *callers) {
  QUERN_TRY(base_take(quern_train_task, task, callers, "task"));
  QUERN_CHECK(task->name != NULL, INVALID, "task: the name is null");
  QUERN_CHECK(is_name(task->name), INVALID,
              "task: the name is '%.80s'; must be 1 to %d letters, digits, '_', '.' and '-'", task->name,
              TRAIN_NAME - 1);
  QUERN_CHECK(task->loss != NULL, INVALID, "task: the function that builds the loss is null");
  QUERN_CHECK(task->data != NULL, INVALID, "task: the source of samples is null");
  return QUERN_STATUS_OK;
}

quern_status train_network_open(struct train_network *network, const quern_train_task *task, struct train_spec *spec,
                                const struct train_data *data) {
  static const char *const names[TRAIN_FIELDS] = {"inputs", "labels"};
  const quern_field *fields;
  *network = (struct train_network){.loss = train_builtin_loss, .user = spec};
  network->n_fields = quern_source_fields(data->train, &fields);
  memcpy(network->fields, fields, network->n_fields * sizeof *fields);
  if (task != NULL) {
    network->loss = task->loss;
    network->user = task->user;
    snprintf(network->name, sizeof network->name, "%s", task->name);
    return QUERN_STATUS_OK;
  }
  for (int i = 0; i < TRAIN_FIELDS; i++) { /* fields of files are named by their paths */
    QUERN_CHECK(fields[i].rank + 1 < QUERN_MAX_RANK, SHAPE, "data: samples of rank %d", fields[i].rank);
    network->fields[i].name = names[i];
  }
  return QUERN_STATUS_OK;
}

/* ---- while a loss is built ------------------------------------------------------------------------------ */

quern_scope *quern_train_graph_scope(const quern_train_graph *graph) {
  return graph != NULL ? quern_model_scope(graph->model) : NULL;
}

quern_tensor *quern_train_graph_input(const quern_train_graph *graph, const char *name) {
  const char *names[QUERN_MAX_FIELDS];
  if (graph == NULL) return ir_fail(NULL, QUERN_STATUS_INVALID, "train_graph_input: the graph is null");
  const struct train_network *network = graph->network;
  quern_context *ctx = quern_model_context(graph->model);
  if (name == NULL) return ir_fail(ctx, QUERN_STATUS_INVALID, "train_graph_input: the name is null");
  for (size_t i = 0; i < network->n_fields; i++) {
    names[i] = network->fields[i].name;
    if (strcmp(names[i], name) == 0) return graph->inputs[i];
  }
  const char *near = base_nearest(name, names, network->n_fields);
  return ir_fail(ctx, QUERN_STATUS_INVALID, "train_graph_input: the samples have no field \"%.64s\" HINT: %s \"%s\"%s",
                 name, near != NULL ? "did you mean" : "the first is", near != NULL ? near : names[0],
                 near != NULL ? "?" : "");
}

/* Samples in a batch of the graph. */
static int64_t rows_of(const struct quern_train_graph *graph) { return quern_tensor_dim(graph->inputs[0], 0); }

/* Why values cannot be reported; NULL: they can. */
static const char *find_wrong(const struct quern_train_graph *graph, const char *name, const quern_tensor *values) {
  static const char *const taken[] = {"step", "eval_loss", "samples", "ms"};
  if (!is_name(name)) return "is no name of letters, digits, '_', '.' and '-'";
  for (size_t i = 0; i < BASE_COUNT(taken); i++)
    if (strcmp(name, taken[i]) == 0) return "is a name that lines of metrics have";
  for (size_t i = 0; i < graph->n_reports; i++)
    if (strcmp(name, graph->names[i]) == 0) return "is reported twice";
  if (graph->n_reports == TRAIN_REPORTS) return "is one more than can be reported";
  if (values == NULL) return "is reported as null";
  return NULL;
}

void quern_train_graph_report(quern_train_graph *graph, const char *name, quern_tensor *values) {
  if (graph == NULL || name == NULL) {
    (void)ir_fail(graph != NULL ? quern_model_context(graph->model) : NULL, QUERN_STATUS_INVALID,
                  "train_graph_report: the %s is null", graph == NULL ? "graph" : "name");
    return;
  }
  quern_context *ctx = quern_model_context(graph->model);
  const char *wrong = find_wrong(graph, name, values);
  if (wrong != NULL) {
    (void)ir_fail(ctx, QUERN_STATUS_INVALID, "train_graph_report: \"%.64s\" %s", name, wrong);
    return;
  }
  if (ir_is_poison(values)) return; /* the context has the error */
  if (values->node->ctx != ctx || values->rank != 1 || values->dims[0] != rows_of(graph)) {
    (void)ir_fail(ctx, QUERN_STATUS_SHAPE, "train_graph_report: \"%.64s\" is %s; must be (%lld,), a number per sample",
                  name, ir_type_text((char[IR_TYPE_TEXT]){0}, values), (long long)rows_of(graph));
    return;
  }
  if (!base_dtype_is(values->dtype, BASE_FLOAT)) values = quern_cast(values, QUERN_DTYPE_F32);
  snprintf(graph->names[graph->n_reports], TRAIN_NAME, "%s", name);
  graph->reports[graph->n_reports++] = graph->eval ? quern_sum(values, QUERN_ALL, false) : NULL;
}

quern_status train_network_loss(struct quern_train_graph *graph, quern_tensor **loss) {
  quern_context *ctx = quern_model_context(graph->model);
  graph->n_reports = 0;
  *loss = graph->network->loss(graph, graph->network->user);
  QUERN_TRY(quern_context_check(ctx));
  const quern_tensor *made = *loss;
  const char *name = graph->network->name;
  QUERN_CHECK(made != NULL && !ir_is_poison(made), INVALID, "task '%s': the function that builds the loss gave none",
              name);
  QUERN_CHECK(made->node->ctx == ctx, INVALID, "task '%s': the loss belongs to another context", name);
  QUERN_CHECK(made->rank == 0 && base_dtype_is(made->dtype, BASE_FLOAT), SHAPE,
              "task '%s': the loss is %s; must be a scalar of floats HINT: quern_mean(x, QUERN_ALL, false)", name,
              ir_type_text((char[IR_TYPE_TEXT]){0}, made));
  return QUERN_STATUS_OK;
}
