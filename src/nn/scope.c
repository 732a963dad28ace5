/* nn/scope.c -- places in a model: names, parameters, buffers, changes, random streams
** keeps: a name is one state; streams depend on the seed, the step, the path and the number of the call alone
** tests: tests/nn/test_model.c
*/
#include "nn/nn.h"

#include <math.h>
#include <stdio.h>

static bool same_path(const void *item, const void *key) { return strcmp(((const quern_scope *)item)->path, key) == 0; }

const char *nn_path(const quern_scope *scope) { return scope->path[0] != '\0' ? scope->path : "the outermost scope"; }

/* NULL, or what is wrong with a name: a part of it is empty. */
static const char *name_wrong(const char *name) {
  if (name == NULL) return "null";
  if (name[0] == '\0') return "empty";
  size_t n = strlen(name);
  return name[0] == '.' || name[n - 1] == '.' || strstr(name, "..") != NULL ? "a name with an empty part" : NULL;
}

/* "path.name" in the arena, or NULL with the error recorded in the context. */
static const char *join(const quern_scope *scope, const char *name) {
  quern_model *m = scope->model;
  size_t n = strlen(scope->path), more = strlen(name);
  char *text = base_arena_alloc(&m->arena, n + more + 2);
  if (text == NULL) return ir_fail_last(m->ctx), NULL;
  memcpy(text, scope->path, n);
  if (n > 0) text[n++] = '.';
  memcpy(text + n, name, more + 1);
  return text;
}

/* ---- scopes ------------------------------------------------------------------------------------------------------ */

/* The scope of that name inside another. */
static quern_scope *enter(const char *what, quern_scope *scope, const char *name) {
  if (scope == NULL) return ir_fail(NULL, QUERN_STATUS_INVALID, "%s: the scope is null", what), NULL;
  quern_model *m = scope->model;
  const char *wrong = name_wrong(name);
  if (wrong != NULL) {
    ir_fail(m->ctx, QUERN_STATUS_INVALID, "%s: in %s: the name is %s", what, nn_path(scope), wrong);
    return NULL;
  }
  const char *path = join(scope, name);
  if (path == NULL) return NULL;
  uint64_t hash = base_hash_string(BASE_HASH_SEED, path);
  quern_scope *inner = base_map_find(&m->scopes, hash, same_path, path);
  if (inner != NULL) return inner;
  inner = base_arena_new(&m->arena, quern_scope);
  if (inner == NULL || !base_vec_reserve(&m->ctx->heap, &m->places, 1) || !base_map_add(&m->scopes, hash, inner))
    return ir_fail_last(m->ctx), NULL;
  *inner = (quern_scope){m, path, 0, 0};
  m->places.at[m->places.n++] = inner;
  return inner;
}

quern_scope *quern_scope_in(quern_scope *scope, const char *name) { return enter("scope_in", scope, name); }

quern_scope *quern_scope_at(quern_scope *scope, const char *name, int64_t i) {
  char text[256];
  if (scope == NULL || name == NULL || name[0] == '\0') return enter("scope_at", scope, name);
  int n = snprintf(text, sizeof text, "%s.%lld", name, (long long)i);
  if (i < 0 || (size_t)n >= sizeof text) {
    ir_fail(scope->model->ctx, QUERN_STATUS_INVALID, "scope_at: in %s: %s number %lld%s", nn_path(scope),
            i < 0 ? name : "a name too long,", (long long)i, i < 0 ? ", must be at least 0" : "");
    return NULL;
  }
  return enter("scope_at", scope, text);
}

const char *quern_scope_path(const quern_scope *scope) { return scope != NULL ? scope->path : ""; }

quern_model *quern_scope_model(const quern_scope *scope) { return scope != NULL ? scope->model : NULL; }

bool quern_scope_train(const quern_scope *scope) { return scope != NULL && scope->model->train; }

/* ---- parameters and buffers -------------------------------------------------------------------------------------- */

/* The one of that name again: it must be the same. */
static quern_tensor *again(quern_context *ctx, const char *what, const quern_parameter *known, quern_dtype dtype,
                           int rank, const int64_t *dims, bool trained) {
  const quern_tensor *t = known->tensor;
  TENSOR_CHECK(ctx, known->trained == trained, INVALID, "%s: %s is a %s already", what, known->name,
               known->trained ? "parameter" : "buffer");
  bool same = t->dtype == dtype && t->rank == rank;
  for (int k = 0; same && k < rank; k++) same = t->dims[k] == dims[k];
  TENSOR_CHECK(ctx, same, SHAPE, "%s: %s is %s already, asked for again as %s%s", what, known->name, TENSOR_TYPE(t),
               base_dtypes[dtype].name, TENSOR_DIMS(rank, dims));
  return known->tensor;
}

quern_tensor *nn_state(quern_scope *scope, const char *what, const char *name, quern_dtype dtype, int rank,
                       const int64_t *dims, quern_parameter about) {
  quern_model *m = scope->model;
  const char *wrong = name_wrong(name);
  TENSOR_CHECK(m->ctx, wrong == NULL, INVALID, "%s: in %s: the name is %s", what, nn_path(scope), wrong);
  if (!tensor_type_ok(what, m->ctx, dtype, rank, dims)) return &ir_poison;
  about.name = join(scope, name);
  if (about.name == NULL) return &ir_poison;
  const quern_parameter *known = quern_model_find(m, about.name);
  if (known != NULL) return again(m->ctx, what, known, dtype, rank, dims, about.trained);
  wrong = nn_init_wrong(about.init, rank);
  TENSOR_CHECK(m->ctx, wrong == NULL, INVALID, "%s: %s %s: %s", what, about.name, TENSOR_DIMS(rank, dims), wrong);
  about.tensor = quern_state(m->ctx, about.name, dtype, rank, dims);
  if (ir_is_poison(about.tensor)) return &ir_poison;
  about.size = sizeof about;
  quern_parameter *kept = base_arena_copy(&m->arena, &about, sizeof about);
  if (kept == NULL || !base_vec_reserve(&m->ctx->heap, &m->parameters, 1) ||
      !base_map_add(&m->names, base_hash_string(BASE_HASH_SEED, about.name), kept))
    return ir_fail_last(m->ctx);
  m->parameters.at[m->parameters.n++] = kept;
  return about.tensor;
}

quern_tensor *quern_scope_parameter(quern_scope *scope, const char *name, int rank, const int64_t *dims,
                                    quern_init init) {
  if (scope == NULL) return ir_fail(NULL, QUERN_STATUS_INVALID, "scope_parameter: the scope is null");
  return nn_state(scope, "scope_parameter", name, scope->model->dtype, rank, dims,
                  (quern_parameter){.trained = true, .saved = true, .init = init});
}

quern_tensor *quern_scope_buffer(quern_scope *scope, const char *name, quern_dtype dtype, int rank, const int64_t *dims,
                                 double value) {
  if (scope == NULL) return ir_fail(NULL, QUERN_STATUS_INVALID, "scope_buffer: the scope is null");
  TENSOR_CHECK(scope->model->ctx, !isnan(value), INVALID, "scope_buffer: in %s: %s begins as %g", nn_path(scope),
               name != NULL ? name : "a buffer without a name", value);
  return nn_state(scope, "scope_buffer", name, dtype, rank, dims,
                  (quern_parameter){.saved = true, .init = {QUERN_INIT_CONSTANT, value, 0}});
}

quern_tensor *nn_cache(quern_scope *scope, const char *name, quern_dtype dtype, int rank, const int64_t *dims) {
  return nn_state(scope, "scope_buffer", name, dtype, rank, dims, (quern_parameter){.saved = false});
}

/* ---- changes ----------------------------------------------------------------------------------------------------- */

/* The model's buffer that a tensor is, or NULL with the error recorded. */
static const quern_parameter *buffer_of(const char *what, quern_scope *scope, const quern_tensor *buffer) {
  quern_context *ctx = scope != NULL ? scope->model->ctx : NULL;
  if (scope == NULL || buffer == NULL) {
    ir_fail(ctx, QUERN_STATUS_INVALID, "%s: the %s is null", what, scope == NULL ? "scope" : "buffer");
    return NULL;
  }
  if (ir_is_poison(buffer)) return NULL;
  const quern_parameter *p = quern_model_find(scope->model, quern_tensor_name(buffer));
  if (p != NULL && p->tensor == buffer && !p->trained) return p;
  ir_fail(ctx, QUERN_STATUS_INVALID, "%s: in %s: %s is no buffer of the model", what, nn_path(scope),
          p != NULL && p->tensor == buffer ? p->name : "the tensor");
  return NULL;
}

void quern_scope_change(quern_scope *scope, quern_tensor *buffer, quern_tensor *value) {
  const quern_parameter *p = buffer_of("scope_change", scope, buffer);
  if (p == NULL) return;
  quern_model *m = scope->model;
  if (value == NULL) {
    ir_fail(m->ctx, QUERN_STATUS_INVALID, "scope_change: the value of %s is null", p->name);
    return;
  }
  if (ir_is_poison(value)) return;
  if (value->node->ctx != m->ctx || !ir_same_type(value, buffer)) {
    ir_fail(m->ctx, value->node->ctx != m->ctx ? QUERN_STATUS_INVALID : QUERN_STATUS_SHAPE,
            "scope_change: %s is %s, its value is %s%s", p->name, TENSOR_TYPE(buffer), TENSOR_TYPE(value),
            value->node->ctx != m->ctx ? " of another context" : "");
    return;
  }
  for (size_t i = 0; i < m->changes.n; i++) {
    if (m->changes.at[i].state != buffer) continue;
    m->changes.at[i].value = value;
    return;
  }
  if (!base_vec_push(&m->ctx->heap, &m->changes, ((quern_update){buffer, value}))) ir_fail_last(m->ctx);
}

quern_tensor *quern_scope_value(quern_scope *scope, quern_tensor *buffer) {
  if (buffer_of("scope_value", scope, buffer) == NULL) return &ir_poison;
  const quern_model *m = scope->model;
  for (size_t i = 0; i < m->changes.n; i++) {
    if (m->changes.at[i].state == buffer) return m->changes.at[i].value;
  }
  return buffer;
}

/* ---- random ------------------------------------------------------------------------------------------------------ */

quern_random quern_scope_random(quern_scope *scope) {
  quern_random none = {&ir_poison, &ir_poison, 1};
  if (scope == NULL) {
    ir_fail(NULL, QUERN_STATUS_INVALID, "scope_random: the scope is null");
    return none;
  }
  quern_model *m = scope->model;
  uint64_t key = base_hash_string(base_hash_u64(BASE_HASH_SEED, m->seed), scope->path);
  key = base_hash_u64(key, ++scope->calls);
  /* 64 bits that depend on the call are the seed, as memory: layers that differ in nothing else share their kernels. */
  quern_tensor *seed = quern_tensor_copy(m->ctx, QUERN_DTYPE_U64, 0, NULL, &key);
  quern_tensor *step = quern_model_step(m);
  if (m->micro_step != NULL) {
    quern_tensor *before = quern_mul(step, quern_scalar_int(m->ctx, QUERN_DTYPE_U64, m->n_micro_steps));
    step = quern_add(before, quern_cast(m->micro_step, QUERN_DTYPE_U64));
  }
  return (quern_random){seed, step, 1};
}
