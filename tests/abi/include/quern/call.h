/* quern/call.h -- one layer on the caller's memory in one call: for programs that have buffers and a queue of their own
** The first call of a function with some sizes compiles it; later ones find it again. Addresses are of the device's memory (of "cpu"
** the host's), dense, row-major and aligned to 256 bytes; the result overlaps no operand, operands may overlap each other. Calls
** may come from any thread. Without a queue a call is done in one of its own, which does not wait for CUDA's default stream: what
** that is still writing is not seen. Pass it as queue (cudaStreamLegacy, cudaStreamPerThread), or wait for it first.
*/
#ifndef QUERN_CALL_H
#define QUERN_CALL_H
#include <stdbool.h>

#include "quern/dtype.h"
#include "quern/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct quern_call_options {
  size_t size;
  const char *device; /* its name (device.h): "cuda:1", "cpu"; NULL: "cuda" */
  void *queue;        /* the caller's CUstream: the call returns before it is done there. NULL: it is done on return */
  bool fast;          /* numerics=fast: libraries may vary the last bits, f32 products may use tf32 */
} quern_call_options;

/* y[i] = gelu(x[i]), n elements: x Phi(x), or by tanh. options may be NULL in all of these. */
QUERN_API quern_status quern_call_gelu(quern_dtype dtype, int64_t n, bool by_tanh, const void *x, void *y,
                                       const quern_call_options *options) QUERN_NODISCARD;

/* y (rows, to) = gelu(x (rows, from) weight (to, from)^T + bias (to)), the gelu by tanh or not; bias may be NULL. */
typedef struct quern_call_linear {
  size_t size;
  int64_t rows, from, to;
  bool by_tanh;
} quern_call_linear;
QUERN_API quern_status quern_call_linear_gelu(quern_dtype dtype, const quern_call_linear *sizes, const void *x,
                                              const void *weight, const void *bias, void *y,
                                              const quern_call_options *options) QUERN_NODISCARD;

/* y = (x - mean) / sqrt(variance + eps) weight + bias over rows of `width`; weight and bias may be NULL. */
typedef struct quern_call_norm {
  size_t size;
  int64_t rows, width;
  double eps; /* 0: 1e-5 */
} quern_call_norm;
QUERN_API quern_status quern_call_layer_norm(quern_dtype dtype, const quern_call_norm *sizes, const void *x,
                                             const void *weight, const void *bias, void *y,
                                             const quern_call_options *options) QUERN_NODISCARD;

/* y (batch, heads, queries, width) of q (the same), k and v (batch, kv_heads, keys, width). */
typedef struct quern_call_heads {
  size_t size;
  int64_t batch, heads, kv_heads, queries, keys, width;
  double scale; /* 0: 1 / sqrt(width) */
  bool causal;  /* query i sees keys up to i + (keys - queries) */
} quern_call_heads;
QUERN_API quern_status quern_call_attention(quern_dtype dtype, const quern_call_heads *sizes, const void *q,
                                            const void *k, const void *v, void *y,
                                            const quern_call_options *options) QUERN_NODISCARD;

/* Frees what the calls of this process have compiled. */
QUERN_API void quern_call_clear(void);

#ifdef __cplusplus
}
#endif
#endif
