/* tensor/context.c -- a context with every composite that tensor/ defines
** tests: tests/ir/test_context.c
*/
#include "tensor/tensor.h"

quern_status quern_context_new(quern_context **ctx, const quern_context_options *options) {
  QUERN_TRY(ir_context_new(ctx, options));
  for (const struct ir_composite *const *kind = tensor_composites; *kind != NULL; kind++) {
    quern_status status = ir_composite_add(*ctx, *kind);
    if (status != QUERN_STATUS_OK) {
      quern_context_free(*ctx);
      *ctx = NULL;
      return status;
    }
  }
  return QUERN_STATUS_OK;
}
