/* prop/check_autocast.c -- mixed precision of random graphs
** With every low dtype: the graph is whole, its results have the types they had, rewriting it again changes nothing, and the
** passes keep its values.
*/
#include "prop/prop.h"
#include "quern/optim.h"

static quern_status check_low(const struct check *check, quern_model *model, quern_dtype low, size_t n,
                              quern_tensor *const *roots) {
  quern_context *ctx = check->ctx;
  quern_autocast_options options = QUERN_INIT(quern_autocast_options);
  options.low = low;
  quern_tensor **out = base_arena_alloc(&ctx->arena, n * sizeof *out),
               **again = base_arena_alloc(&ctx->arena, n * sizeof *again);
  void **values = base_arena_alloc(&ctx->arena, n * sizeof *values);
  if (out == NULL || again == NULL || values == NULL) return QUERN_STATUS_MEMORY;
  QUERN_TRY(quern_autocast(model, n, roots, out, &options));
  QUERN_TRY(ir_verify(ctx, n, out));
  QUERN_TRY(quern_autocast(model, n, out, again, &options));
  for (size_t i = 0; i < n; i++) {
    QUERN_CHECK(ir_same_type(roots[i], out[i]), INTERNAL, "output %zu has another type", i);
    QUERN_CHECK(out[i] == again[i], INTERNAL, "output %zu is another one the second time", i);
  }
  QUERN_TRY(check_evaluate(ctx, check->seed, n, out, values));
  return check_passes(check, n, out, values);
}

quern_status check_autocast(const struct check *check, size_t n, quern_tensor *const *roots) {
  quern_model *model;
  QUERN_TRY(quern_model_new(&model, check->ctx, NULL));
  quern_status status = check_named(check_low(check, model, QUERN_DTYPE_BF16, n, roots), "autocast to bf16");
  if (status == QUERN_STATUS_OK)
    status = check_named(check_low(check, model, QUERN_DTYPE_F16, n, roots), "autocast to f16");
  quern_model_free(model);
  return status;
}
