/* nn/model.c -- a model: the list of its parameters and buffers, and what a step changes
** keeps: memory is the context's; scopes and names live in the model's arena
** tests: tests/nn/test_model.c
*/
#include "nn/nn.h"

static bool same_name(const void *item, const void *key) {
  return strcmp(((const quern_parameter *)item)->name, key) == 0;
}

/* An ir_pinned. */
static quern_status pinned(void *holder, struct ir_live *live) {
  const quern_model *m = holder;
  for (size_t i = 0; i < m->parameters.n; i++) QUERN_TRY(ir_live_add(live, m->parameters.at[i]->tensor));
  for (size_t i = 0; i < m->changes.n; i++) QUERN_TRY(ir_live_add(live, m->changes.at[i].value));
  for (size_t i = 0; i < m->forgotten.n; i++) QUERN_TRY(ir_live_add(live, m->forgotten.at[i].state));
  return ir_live_add(live, m->micro_step);
}

quern_status quern_model_new(quern_model **model, quern_context *ctx, const quern_model_options *options) {
  QUERN_CHECK(model != NULL, INVALID, "model_new: the place for the model is null");
  *model = NULL;
  QUERN_CHECK(ctx != NULL, INVALID, "model_new: the context is null");
  quern_model_options o;
  QUERN_TRY(base_take(quern_model_options, &o, options, "model_new"));
  QUERN_CHECK((unsigned)o.dtype < QUERN_DTYPE_COUNT && base_dtype_is(o.dtype, BASE_FLOAT), DTYPE,
              "model_new: parameters of %s; they must be floats", quern_dtype_name(o.dtype));
  quern_model *m = base_alloc_zero(&ctx->heap, sizeof *m);
  if (m == NULL) return QUERN_STATUS_MEMORY;
  m->ctx = ctx;
  m->dtype = o.dtype;
  m->train = !o.inference;
  m->seed = o.seed;
  base_arena_init(&m->arena, &ctx->heap);
  base_map_init(&m->scopes, &ctx->heap);
  base_map_init(&m->names, &ctx->heap);
  m->root = base_arena_new(&m->arena, quern_scope);
  m->pin = ir_pin_add(ctx, pinned, m);
  if (m->root == NULL || m->pin == 0 || !base_vec_push(&ctx->heap, &m->places, m->root)) {
    quern_model_free(m);
    return QUERN_STATUS_MEMORY;
  }
  *m->root = (quern_scope){m, "", 0, 0};
  *model = m;
  return QUERN_STATUS_OK;
}

void quern_model_free(quern_model *model) {
  if (model == NULL) return;
  struct base_heap *heap = &model->ctx->heap;
  ir_pin_remove(model->ctx, model->pin);
  base_vec_fini(heap, &model->changes);
  base_vec_fini(heap, &model->changed);
  base_vec_fini(heap, &model->forgotten);
  base_vec_fini(heap, &model->dropped);
  base_vec_fini(heap, &model->parameters);
  base_vec_fini(heap, &model->places);
  base_map_fini(&model->names);
  base_map_fini(&model->scopes);
  base_arena_fini(&model->arena);
  base_free(heap, model, sizeof *model);
}

quern_context *quern_model_context(const quern_model *model) { return model != NULL ? model->ctx : NULL; }

/* Keeps what is about to be forgotten, for nn_forgotten. Without memory for it a mistake would go unseen, which is no reason to fail. */
static void remember(quern_model *m) {
  size_t from = m->began;
  m->began = m->ctx->n_nodes;
  if (m->changes.n == 0) return;
  m->forgotten.n = m->dropped.n = 0;
  m->forgotten_from = from;
  m->forgotten_to = m->began;
  for (size_t i = 0; i < m->changes.n; i++)
    if (!base_vec_push(&m->ctx->heap, &m->forgotten, m->changes.at[i])) return;
  for (size_t i = 0; i < m->changed.n; i++)
    if (!base_vec_push(&m->ctx->heap, &m->dropped, m->changed.at[i])) return;
}

/* A buffer whose change was forgotten and not asked for again; NULL: none. */
static const char *forgotten_buffer(const quern_model *model) {
  for (size_t i = 0; i < model->forgotten.n; i++) {
    bool again = false;
    for (size_t k = 0; k < model->changes.n; k++)
      again = again || model->changes.at[k].state == model->forgotten.at[i].state;
    if (!again) return quern_tensor_name(model->forgotten.at[i].state);
  }
  return NULL;
}

/* Whether x was made from what a layer gave whose changes were dropped. */
static bool uses_dropped(const quern_model *model, quern_tensor *x) {
  struct ir_order order = {0};
  bool found = false;
  if (ir_topo(model->ctx, 1, &x, &order) == QUERN_STATUS_OK)
    for (size_t i = 0; i < order.n && !found; i++)
      for (size_t k = 0; k < model->dropped.n && !found; k++) found = order.at[i]->id == model->dropped.at[k];
  ir_order_fini(model->ctx, &order);
  return found;
}

const char *nn_forgotten(const quern_model *model, quern_tensor *x) {
  const char *name = forgotten_buffer(model);
  if (name == NULL) return NULL;
  bool among = x->node->id >= model->forgotten_from && x->node->id < model->forgotten_to;
  return among || uses_dropped(model, x) ? name : NULL;
}

void nn_changed(quern_model *model, quern_tensor *y) {
  if (ir_is_poison(y)) return;
  if (!base_vec_push(&model->ctx->heap, &model->changed, (size_t)y->node->id)) ir_fail_last(model->ctx);
}

void quern_model_begin(quern_model *model, bool train) {
  if (model == NULL) return;
  model->train = train;
  remember(model);
  model->changes.n = model->changed.n = 0;
  for (size_t i = 0; i < model->places.n; i++) model->places.at[i]->calls = 0;
}

quern_scope *quern_model_scope(quern_model *model) { return model != NULL ? model->root : NULL; }

quern_tensor *quern_model_step(quern_model *model) {
  if (model == NULL) return ir_fail(NULL, QUERN_STATUS_INVALID, "model_step: the model is null");
  return nn_state(model->root, "model_step", "step", QUERN_DTYPE_U64, 0, NULL, (quern_parameter){.saved = true});
}

void quern_model_iteration(quern_model *model, quern_tensor *micro_step, int64_t n_micro_steps) {
  if (model == NULL) return;
  model->micro_step = NULL;
  if (micro_step == NULL || ir_is_poison(micro_step)) return;
  bool scalar = micro_step->rank == 0 && base_dtype_is(micro_step->dtype, BASE_INT);
  if (micro_step->node->ctx != model->ctx || !scalar || n_micro_steps < 1) {
    ir_fail(model->ctx, QUERN_STATUS_INVALID, "model_iteration: %s%s of %lld; must be an integer scalar of 1 at least",
            TENSOR_TYPE(micro_step), micro_step->node->ctx != model->ctx ? " of another context" : "",
            (long long)n_micro_steps);
    return;
  }
  model->micro_step = micro_step;
  model->n_micro_steps = n_micro_steps;
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

size_t quern_model_parameter_count(const quern_model *model) { return model != NULL ? model->parameters.n : 0; }

quern_status quern_model_parameter(const quern_model *model, size_t i, quern_parameter *parameter) {
  QUERN_CHECK(model != NULL, INVALID, "model_parameter: the model is null");
  QUERN_CHECK(parameter != NULL, INVALID, "model_parameter: the place for the parameter is null");
  QUERN_CHECK(i < model->parameters.n, INVALID, "model_parameter: number %zu of %zu", i, model->parameters.n);
  return base_give(quern_parameter, parameter, model->parameters.at[i], "model_parameter");
}

const quern_parameter *quern_model_find(const quern_model *model, const char *name) {
  if (model == NULL || name == NULL) return NULL;
  return base_map_find(&model->names, base_hash_string(BASE_HASH_SEED, name), same_name, name);
}

int64_t quern_model_element_count(const quern_model *model) {
  int64_t sum = 0;
  for (size_t i = 0; model != NULL && i < model->parameters.n; i++) {
    const quern_parameter *p = model->parameters.at[i];
    int64_t count = p->trained ? ir_count(p->tensor) : 0;
    sum = count > INT64_MAX - sum ? INT64_MAX : sum + count;
  }
  return sum;
}

quern_tensor *quern_model_initial(quern_model *model, size_t i) {
  if (model == NULL) return ir_fail(NULL, QUERN_STATUS_INVALID, "model_initial: the model is null");
  TENSOR_CHECK(model->ctx, i < model->parameters.n, INVALID, "model_initial: number %zu of %zu", i,
               model->parameters.n);
  const quern_parameter *p = model->parameters.at[i];
  /* The seed is memory, not a constant: parameters of one shape are then the same program. */
  uint64_t key = base_hash_string(base_hash_u64(BASE_HASH_SEED, model->seed), p->name);
  quern_tensor *seed =
      p->init.kind == QUERN_INIT_CONSTANT ? NULL : quern_tensor_copy(model->ctx, QUERN_DTYPE_U64, 0, NULL, &key);
  return nn_init_value(model->ctx, p->init, p->tensor->dtype, p->tensor->rank, p->tensor->dims, seed);
}

/* ---- changes ----------------------------------------------------------------------------------------------------- */

size_t quern_model_change_count(const quern_model *model) { return model != NULL ? model->changes.n : 0; }

quern_update quern_model_change(const quern_model *model, size_t i) {
  return model != NULL && i < model->changes.n ? model->changes.at[i] : (quern_update){0};
}
