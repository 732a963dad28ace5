/* optim/accumulate.c -- a step whose batch is taken in micro-batches, one after another, in one program
** in:    what builds the loss of a micro-batch, a batch                out: a step from the mean of the gradients of micro-batches
** A counted loop: micro-batches of the inputs are scanned; sums of losses and gradients and the buffers that layers change are carried;
** whatever else the loss reaches is captured.
** keeps: with one micro-batch there is no loop, and the step is that of step.c
** tests: tests/optim/test_accumulate.c
*/
#include "optim/optim_int.h"
#include "quern/grad.h"

typedef BASE_VEC(quern_tensor *) tensors;

struct accumulate {
  struct base_heap *heap;
  quern_context *ctx;
  quern_model *model;
  int64_t micro_batches;
  size_t n_inputs;
  quern_tensor *const *inputs;
  const quern_optim_options *options; /* the caller's */
  struct optim_taken taken;
  quern_tensor *loss; /* of a micro-batch */
  tensors slices;     /* of the inputs: what the loss is built on */
  tensors trained, gradients;
  /* The loop: leaves of its body, beginning with the iteration's; what they are at the start, without the iteration's; what an iteration gives. */
  tensors params, operands, results;
  size_t n_carries, n_changes;
};

static void fini(struct accumulate *a) {
  tensors *all[] = {&a->slices, &a->trained, &a->gradients, &a->params, &a->operands, &a->results};
  for (size_t i = 0; i < BASE_COUNT(all); i++) base_vec_fini(a->heap, all[i]);
}

static quern_status push(struct accumulate *a, tensors *list, quern_tensor *t) {
  if (ir_is_poison(t)) return ir_poison_error(a->ctx);
  return base_vec_push(a->heap, list, t) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

/* ---- the loss of a micro-batch --------------------------------------------------------------------------------- */

static quern_status check_inputs(const struct accumulate *a) {
  QUERN_CHECK(a->n_inputs == 0 || a->inputs != NULL, INVALID, "step_accumulate: the list of %zu inputs is null",
              a->n_inputs);
  for (size_t i = 0; i < a->n_inputs; i++) {
    const quern_tensor *x = a->inputs[i];
    QUERN_CHECK(x != NULL && !ir_is_poison(x), INVALID,
                "step_accumulate: input %zu is the result of a call that failed", i);
    QUERN_CHECK(x->node->ctx == a->ctx, INVALID, "step_accumulate: input %zu belongs to another context", i);
    QUERN_CHECK(x->rank >= 1 && x->dims[0] % a->micro_batches == 0, SHAPE,
                "step_accumulate: input %zu is %s; its first axis must be a multiple of the %lld micro-batches", i,
                ir_type_text((char[IR_TYPE_TEXT]){0}, x), (long long)a->micro_batches);
  }
  return QUERN_STATUS_OK;
}

/* A leaf like a micro-batch of an input. */
static quern_tensor *slice_of(const struct accumulate *a, const quern_tensor *x) {
  int64_t dims[QUERN_MAX_RANK];
  memcpy(dims, x->dims, (size_t)x->rank * sizeof *dims);
  dims[0] /= a->micro_batches;
  return ir_leaf(a->ctx, x->dtype, x->rank, dims);
}

/* The loss that the caller builds on inputs or slices. */
static quern_status build(struct accumulate *a, quern_tensor *const *inputs, quern_loss_of *loss, void *user) {
  a->loss = loss(a->model, a->n_inputs, inputs, user);
  QUERN_TRY(quern_context_check(a->ctx));
  QUERN_CHECK(a->loss != NULL && !ir_is_poison(a->loss), INVALID,
              "step_accumulate: the loss is the result of a call that failed");
  QUERN_CHECK(a->loss->node->ctx == a->ctx, INVALID, "step_accumulate: the loss belongs to another context");
  return QUERN_STATUS_OK;
}

static quern_status differentiate(struct accumulate *a) {
  quern_tensor *loss = a->loss, *scale = optim_scale(a->model, &a->taken.options);
  if (scale != NULL) loss = quern_mul(loss, quern_cast(scale, loss->dtype));
  for (size_t i = 0; i < quern_model_parameter_count(a->model); i++) {
    quern_parameter parameter = QUERN_INIT(quern_parameter);
    QUERN_TRY(quern_model_parameter(a->model, i, &parameter));
    if (!parameter.trained) continue;
    QUERN_TRY(push(a, &a->trained, parameter.tensor));
    QUERN_TRY(push(a, &a->gradients, parameter.tensor));
  }
  QUERN_CHECK(a->trained.n > 0, INVALID, "step_accumulate: the model has no parameters that are trained");
  QUERN_TRY(quern_grad(loss, a->trained.n, a->trained.at, a->gradients.at));
  return optim_check_reach("step_accumulate", a->gradients.n, a->gradients.at, quern_tensor_name(a->trained.at[0]));
}

/* ---- the loop ------------------------------------------------------------------------------------------- */

static quern_status carry(struct accumulate *a, quern_tensor *param, quern_tensor *start, quern_tensor *next) {
  QUERN_TRY(push(a, &a->params, param));
  QUERN_TRY(push(a, &a->operands, start));
  a->n_carries++;
  return push(a, &a->results, next);
}

/* sum + t. Of what t is a sum of each is added by itself, and rows where they belong, so that no t is held beside the sum. */
static quern_tensor *add_to(quern_tensor *sum, quern_tensor *t) {
  enum { MOST = 16 };
  quern_tensor *left[MOST];
  const struct ir_node *scattered[MOST];
  int n = 0, n_scattered = 0;
  left[n++] = t;
  while (n > 0) {
    quern_tensor *term = left[--n];
    const struct ir_node *node = term->node;
    bool rows = node->op == IR_SCATTER && node->attrs->reduce == IR_SUM && n_scattered < MOST;
    if (rows) scattered[n_scattered++] = node;
    if (rows) left[n++] = node->src[0];
    if (!rows && node->op == IR_ADD && n + 2 <= MOST) {
      left[n++] = node->src[1];
      left[n++] = node->src[0];
    } else if (!rows && !ir_is_const(term, 0)) {
      sum = quern_add(sum, term);
    }
  }
  while (n_scattered > 0 && !ir_is_poison(sum)) {
    const struct ir_node *node = scattered[--n_scattered];
    sum = IR_MAKE(node->ctx, IR_SCATTER, node->attrs, sum, node->src[1], node->src[2]);
  }
  return sum;
}

/* The sum over iterations, in the dtype that steps are computed in. */
static quern_status carry_sum(struct accumulate *a, quern_tensor *t) {
  quern_dtype dtype = optim_wide(t->dtype);
  quern_tensor *start = quern_zeros(a->ctx, dtype, t->rank, t->dims), *param = ir_leaf_like(start);
  if (ir_is_poison(start) || ir_is_poison(param)) return ir_poison_error(a->ctx);
  t = quern_cast(t, dtype);
  return carry(a, param, start, ir_is_poison(t) ? t : add_to(param, t));
}

static quern_status carry_all(struct accumulate *a) {
  QUERN_TRY(carry_sum(a, a->loss));
  for (size_t i = 0; i < a->gradients.n; i++) QUERN_TRY(carry_sum(a, a->gradients.at[i]));
  a->n_changes = quern_model_change_count(a->model);
  for (size_t i = 0; i < a->n_changes; i++) {
    quern_update change = quern_model_change(a->model, i);
    QUERN_TRY(carry(a, change.state, change.state, change.value));
  }
  return QUERN_STATUS_OK;
}

static quern_status scan_all(struct accumulate *a) {
  for (size_t i = 0; i < a->n_inputs; i++) {
    const quern_tensor *slice = a->slices.at[i];
    int64_t dims[QUERN_MAX_RANK + 1] = {a->micro_batches};
    memcpy(dims + 1, slice->dims, (size_t)slice->rank * sizeof *dims);
    QUERN_TRY(push(a, &a->params, a->slices.at[i]));
    QUERN_TRY(push(a, &a->operands, quern_reshape(a->inputs[i], slice->rank + 1, dims)));
  }
  return QUERN_STATUS_OK;
}

/* Leaves that an iteration reaches beside those there are. */
static quern_status capture_all(struct accumulate *a) {
  struct ir_order order;
  QUERN_TRY(ir_topo(a->ctx, a->results.n, a->results.at, &order));
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < order.n && status == QUERN_STATUS_OK; i++) {
    struct ir_node *node = order.at[i];
    bool leaf = node->op == IR_INPUT || node->op == IR_STATE || node->op == IR_BUFFER;
    for (size_t k = 0; k < a->params.n && leaf; k++) leaf = a->params.at[k]->node != node;
    if (!leaf) continue;
    status = push(a, &a->params, &node->out[0]);
    if (status == QUERN_STATUS_OK) status = push(a, &a->operands, &node->out[0]);
  }
  ir_order_fini(a->ctx, &order);
  return status;
}

/* Result 0 of the loop. */
static quern_status make_loop(struct accumulate *a, quern_tensor **loop) {
  const struct ir_graph *body;
  QUERN_TRY(carry_all(a));
  QUERN_TRY(scan_all(a));
  QUERN_TRY(capture_all(a));
  QUERN_TRY(ir_graph_make(a->ctx, (int)a->params.n, a->params.at, (int)a->results.n, a->results.at, &body));
  struct ir_attrs attrs = {
      .trip = a->micro_batches, .carries = (int64_t)a->n_carries, .scanned = (int64_t)a->n_inputs, .body = body};
  *loop = ir_make(a->ctx, IR_LOOP, (int)a->operands.n, a->operands.at, &attrs);
  return ir_is_poison(*loop) ? ir_poison_error(a->ctx) : QUERN_STATUS_OK;
}

/* ---- the step ------------------------------------------------------------------------------------------- */

static quern_status make_micro_batches(struct accumulate *a, quern_loss_of *loss, void *user) {
  quern_tensor *micro_step = ir_leaf(a->ctx, QUERN_DTYPE_I64, 0, NULL);
  QUERN_TRY(push(a, &a->params, micro_step));
  for (size_t i = 0; i < a->n_inputs; i++) QUERN_TRY(push(a, &a->slices, slice_of(a, a->inputs[i])));
  quern_model_iteration(a->model, micro_step, a->micro_batches);
  quern_status status = build(a, a->slices.at, loss, user);
  quern_model_iteration(a->model, NULL, 0);
  return status;
}

/* The means, and changes of buffers by all iterations. */
static quern_status make_means(struct accumulate *a, quern_tensor *loop, quern_tensor **mean_loss) {
  quern_tensor *sum = quern_div_scalar(ir_result(loop, 0), (double)a->micro_batches);
  if (mean_loss != NULL) *mean_loss = quern_cast(sum, a->loss->dtype);
  for (size_t i = 0; i < a->gradients.n; i++)
    a->gradients.at[i] = quern_div_scalar(ir_result(loop, (int)(1 + i)), (double)a->micro_batches);
  quern_scope *scope = quern_model_scope(a->model);
  for (size_t i = 0; i < a->n_changes; i++) {
    quern_tensor *state = quern_model_change(a->model, i).state;
    quern_scope_change(scope, state, ir_result(loop, (int)(1 + a->gradients.n + i)));
  }
  return quern_context_check(a->ctx);
}

static quern_status make(struct accumulate *a, quern_loss_of *loss, void *user, quern_step **step,
                         quern_tensor **mean_loss) {
  quern_tensor *loop;
  QUERN_TRY(make_micro_batches(a, loss, user));
  QUERN_TRY(differentiate(a));
  QUERN_TRY(make_loop(a, &loop));
  QUERN_TRY(make_means(a, loop, mean_loss));
  return quern_step_from(step, a->model, a->gradients.at, a->options);
}

quern_status quern_step_accumulate(quern_step **step, quern_model *model, int64_t micro_batches, size_t n,
                                   quern_tensor *const *inputs, quern_loss_of *loss, void *user,
                                   const quern_optim_options *options, quern_tensor **mean_loss) {
  QUERN_CHECK(step != NULL, INVALID, "step_accumulate: the place for the step is null");
  *step = NULL;
  QUERN_CHECK(model != NULL, INVALID, "step_accumulate: the model is null");
  QUERN_CHECK(loss != NULL, INVALID, "step_accumulate: the function that builds the loss is null");
  QUERN_CHECK(micro_batches >= 1, INVALID, "step_accumulate: a batch of %lld micro-batches; there must be 1 at least",
              (long long)micro_batches);
  struct accumulate a = {.ctx = quern_model_context(model),
                         .model = model,
                         .micro_batches = micro_batches,
                         .n_inputs = n,
                         .inputs = inputs,
                         .options = options};
  a.heap = &a.ctx->heap;
  QUERN_TRY(optim_take(&a.taken, options));
  QUERN_TRY(quern_context_check(a.ctx));
  QUERN_TRY(check_inputs(&a));
  if (micro_batches == 1) {
    QUERN_TRY(build(&a, inputs, loss, user));
    if (mean_loss != NULL) *mean_loss = a.loss;
    return quern_step_new(step, model, a.loss, options);
  }
  QUERN_CHECK(quern_model_change_count(model) == 0, INVALID,
              "step_accumulate: the model has changes of an expression that was built before HINT: quern_model_begin");
  quern_status status = make(&a, loss, user, step, mean_loss);
  fini(&a);
  return status;
}

/* ---- how many micro-batches ------------------------------------------------------------------------------------- */

/* The smallest divisor of batch that is greater than d; batch has one. */
static int64_t next_divisor(int64_t batch, int64_t d) {
  do d++;
  while (batch % d != 0);
  return d;
}

quern_status quern_step_parts(int64_t *micro_batches, int64_t *bytes, int64_t batch, int64_t limit,
                              quern_parts_bytes *plan, void *user) {
  QUERN_CHECK(micro_batches != NULL && bytes != NULL && plan != NULL, INVALID, "step_parts: the %s is null",
              micro_batches == NULL ? "place for the micro-batches"
              : bytes == NULL       ? "place for the bytes"
                                    : "function that plans");
  QUERN_CHECK(batch >= 1 && limit >= 0, INVALID, "step_parts: a batch of %lld in %lld bytes; must be 1 at least, and 0",
              (long long)batch, (long long)limit);
  for (*micro_batches = 1;; *micro_batches = next_divisor(batch, *micro_batches)) {
    QUERN_TRY(plan(user, *micro_batches, bytes));
    if (limit == 0 || *bytes <= limit || *micro_batches == batch) return QUERN_STATUS_OK;
  }
}
