/* pass/constant_folding.c -- constant folding: what depends on constants only becomes a constant, up to 64 KiB
** keeps: every bit: of floats only operations that round once on every device are computed here; with
**        numerics=fast also sums, products and functions that devices approximate. Nothing grows: a constant that is
**        stretched stays one
** tests: tests/pass/test_passes.c
*/
#include "pass/pass_int.h"

/* Ops whose values are the same wherever they are computed, of floats too. */
static const bool exact[IR_OP_COUNT] = {
    [IR_NEG] = true,    [IR_ABS] = true,       [IR_SIGN] = true,    [IR_FLOOR] = true,    [IR_CEIL] = true,
    [IR_ROUND] = true,  [IR_TRUNC] = true,     [IR_SQRT] = true,    [IR_NOT] = true,      [IR_STOP_GRAD] = true,
    [IR_CAST] = true,   [IR_BITCAST] = true,   [IR_ADD] = true,     [IR_SUB] = true,      [IR_MUL] = true,
    [IR_DIV] = true,    [IR_MAX] = true,       [IR_MIN] = true,     [IR_AND] = true,      [IR_OR] = true,
    [IR_XOR] = true,    [IR_SHL] = true,       [IR_SHR] = true,     [IR_EQ] = true,       [IR_LT] = true,
    [IR_LE] = true,     [IR_SELECT] = true,    [IR_RESHAPE] = true, [IR_PERMUTE] = true,  [IR_PAD] = true,
    [IR_SLICE] = true,  [IR_FLIP] = true,      [IR_CONCAT] = true,  [IR_SLICE_AT] = true, [IR_UPDATE_AT] = true,
    [IR_GATHER] = true, [IR_ARGREDUCE] = true, [IR_SORT] = true,
};

/* Ops whose values are the same wherever they are computed when they are of integers, or with numerics=fast. */
static const bool otherwise[IR_OP_COUNT] = {
    [IR_EXP] = true,    [IR_EXPM1] = true,  [IR_LOG] = true,  [IR_LOG1P] = true, [IR_SIN] = true,     [IR_COS] = true,
    [IR_TANH] = true,   [IR_ERF] = true,    [IR_ERFC] = true, [IR_MOD] = true,   [IR_POW] = true,     [IR_ATAN2] = true,
    [IR_COL2IM] = true, [IR_REDUCE] = true, [IR_SCAN] = true, [IR_DOT] = true,   [IR_SCATTER] = true,
};

static bool is_choice(const struct ir_node *node) {
  return (node->op == IR_REDUCE || node->op == IR_SCAN || node->op == IR_SCATTER) &&
         (node->attrs->reduce == IR_REDUCE_MAX || node->attrs->reduce == IR_REDUCE_MIN);
}

static bool may_fold(const struct ir_node *node, quern_tensor *const *src, bool approximate) {
  if (node->n_src == 0) return false;
  size_t from = 0, to = 0;
  for (int i = 0; i < node->n_src; i++) {
    if (src[i]->node->op != IR_CONST) return false;
    from += ir_bytes(src[i]);
  }
  for (int i = 0; i < node->n_out; i++) {
    if (ir_bytes(&node->out[i]) > IR_CONST_BYTES) return false;
    to += ir_bytes(&node->out[i]);
  }
  if (to > 4096 && to > 2 * from) return false;
  if (exact[node->op]) return true;
  return otherwise[node->op] && (approximate || is_choice(node) || !base_dtype_is(node->out[0].dtype, BASE_FLOAT));
}

static quern_tensor *make_const(const quern_tensor *like, const void *data) {
  struct ir_attrs attrs = {.dtype = like->dtype, .shape = {like->rank, like->dims}, .data = {ir_bytes(like), data}};
  return ir_make(like->node->ctx, IR_CONST, 0, NULL, &attrs);
}

static quern_status visit(void *user, struct ir_node *node, quern_tensor *const *src, quern_tensor **out) {
  const struct pass_options *options = user;
  QUERN_TRY(ir_rebuild(node, src, out));
  if (!may_fold(node, src, options->approximate)) return QUERN_STATUS_OK;
  quern_context *ctx = node->ctx;
  size_t bytes = 0, at = 0;
  for (int i = 0; i < node->n_out; i++) bytes += (ir_bytes(out[i]) + 63) / 64 * 64 + 64;
  char *data = base_alloc(&ctx->heap, bytes);
  if (data == NULL) return QUERN_STATUS_MEMORY;
  void *dst[2] = {NULL, NULL};
  QUERN_ASSERT(node->n_out <= 2);
  for (int i = 0; i < node->n_out; i++) {
    dst[i] = data + at;
    at += (ir_bytes(out[i]) + 63) / 64 * 64 + 64;
  }
  quern_status status = ir_eval(ctx, (size_t)node->n_out, out, dst, 0, NULL);
  for (int i = 0; i < node->n_out && status == QUERN_STATUS_OK; i++) {
    out[i] = make_const(out[i], dst[i]);
    if (ir_is_poison(out[i])) status = ir_poison_error(ctx);
  }
  base_free(&ctx->heap, data, bytes);
  return status;
}

quern_status pass_constant_folding(struct pass_graph *graph, const struct pass_options *options) {
  struct pass_options copy = *options;
  return pass_subgraphs(graph, visit, &copy);
}
