/* nn/layer.c -- what a call of a layer begins and ends with: checks, and messages that carry the path
** tests: tests/api/wrong_layers.def
*/
#include "nn/nn.h"

#include <stdio.h>

/* "layer: in path: ", or without the path in the outermost scope. */
static void head(char *text, size_t bytes, const struct nn_call *call) {
  const char *path = call->scope->path;
  snprintf(text, bytes, path[0] != '\0' ? "%s: in %.200s: " : "%s: ", call->what, path);
}

static void record(const struct nn_call *call, quern_status status, const char *fmt, va_list args) {
  char begin[300], text[BASE_MESSAGE_BYTES];
  vsnprintf(text, sizeof text, fmt, args);
  head(begin, sizeof begin, call);
  ir_fail(call->ctx, status, "%s%s", begin, text);
}

quern_tensor *nn_fail(const struct nn_call *call, quern_status status, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  record(call, status, fmt, args);
  va_end(args);
  return &ir_poison;
}

bool nn_wrong(const struct nn_call *call, quern_status status, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  record(call, status, fmt, args);
  va_end(args);
  return false;
}

struct nn_call nn_enter(const char *what, quern_scope *scope, int n, quern_tensor *const *xs) {
  struct nn_call call = {NULL, scope, what, false, 0};
  if (scope == NULL) {
    quern_context *ctx = NULL;
    for (int i = 0; i < n && ctx == NULL; i++) ctx = quern_tensor_context(xs[i]);
    ir_fail(ctx, QUERN_STATUS_INVALID, "%s: the scope is null", what);
    return call;
  }
  quern_context *ctx = scope->model->ctx;
  struct nn_call good = {ctx, scope, what, ctx->error == QUERN_STATUS_OK, ctx->label};
  for (int i = 0; i < n; i++) {
    if (xs[i] == NULL) {
      nn_fail(&good, QUERN_STATUS_INVALID, "operand %d is null", i);
      return call;
    }
    if (ir_is_poison(xs[i])) return call;
    if (xs[i]->node->ctx != ctx) {
      nn_fail(&good, QUERN_STATUS_INVALID, "operand %d is of another context than the model", i);
      return call;
    }
  }
  if (scope->label == 0 && scope->path[0] != '\0' &&
      ir_label_find(ctx, scope->path, &scope->label) != QUERN_STATUS_OK) {
    ir_fail_last(ctx);
    return call;
  }
  if (scope->label != 0) ctx->label = scope->label;
  return good;
}

quern_tensor *nn_leave(const struct nn_call *call, quern_tensor *y) {
  quern_context *ctx = call->ctx;
  ctx->label = call->label;
  if (!ir_is_poison(y)) return y;
  if (call->clean && ctx->error != QUERN_STATUS_OK && strncmp(ctx->message, "nn_", 3) != 0) {
    char begin[300], text[BASE_MESSAGE_BYTES];
    memcpy(text, ctx->message, sizeof text);
    head(begin, sizeof begin, call);
    snprintf(ctx->message, sizeof ctx->message, "%s%.*s", begin, (int)(sizeof ctx->message - sizeof begin), text);
  }
  return &ir_poison;
}

bool nn_options(const struct nn_call *call, void *dst, size_t known, const void *options, const char *type) {
  char begin[300];
  head(begin, sizeof begin, call);
  begin[strlen(begin) - 2] = 0; /* the colon is the message's */
  if (base_struct_take(dst, known, options, type, begin) == QUERN_STATUS_OK) return true;
  ir_fail_last(call->ctx);
  return false;
}

bool nn_operand(const struct nn_call *call, const char *name, const quern_tensor *x, int rank, const char *shape) {
  quern_dtype dtype = call->scope->model->dtype;
  if (x->dtype != dtype)
    return nn_wrong(call, QUERN_STATUS_DTYPE,
                    "%s is %s, the model's parameters are %s HINT: quern_cast makes them equal", name, TENSOR_TYPE(x),
                    base_dtypes[dtype].name);
  if (x->rank >= rank) return true;
  return nn_wrong(call, QUERN_STATUS_SHAPE, "%s is %s, must be %s", name, TENSOR_TYPE(x), shape);
}

bool nn_size(const struct nn_call *call, const char *name, int64_t size) {
  if (size >= 1) return true;
  return nn_wrong(call, QUERN_STATUS_INVALID, "%s is %lld, must be at least 1", name, (long long)size);
}

bool nn_rate(const struct nn_call *call, const char *name, double p) {
  if (p >= 0 && p < 1) return true;
  return nn_wrong(call, QUERN_STATUS_INVALID, "%s is %g, must be in [0, 1)", name, p);
}
