/* quern/dtype.h -- element types
** f16, bf16, f8e4m3 and f8e5m2 are storage formats with round-to-nearest-even conversions. f8e4m3 has no infinity: what is
** too large becomes NaN. bool is one byte, 0 or 1.
*/
#ifndef QUERN_DTYPE_H
#define QUERN_DTYPE_H
#include <stddef.h>
#include <stdint.h>

#include "quern/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum quern_dtype {
  QUERN_DTYPE_F32, /* zero, as a member that is not set: of options it is the default */
  QUERN_DTYPE_F64,
  QUERN_DTYPE_F16,
  QUERN_DTYPE_BF16,
  QUERN_DTYPE_F8E4M3,
  QUERN_DTYPE_F8E5M2,
  QUERN_DTYPE_I8,
  QUERN_DTYPE_I16,
  QUERN_DTYPE_I32,
  QUERN_DTYPE_I64,
  QUERN_DTYPE_U8,
  QUERN_DTYPE_U16,
  QUERN_DTYPE_U32,
  QUERN_DTYPE_U64,
  QUERN_DTYPE_BOOL,
  QUERN_DTYPE_COUNT
} quern_dtype;

/* "f32", "bool", ...; "?" when out of range. */
QUERN_API const char *quern_dtype_name(quern_dtype dtype);

/* Bytes an element takes; 0 when out of range. */
QUERN_API size_t quern_dtype_size(quern_dtype dtype);

/* The dtype of that name. */
QUERN_API quern_status quern_dtype_from_name(const char *name, quern_dtype *dtype) QUERN_NODISCARD;

/* Converts n elements, each with one rounding; src and dst must not overlap unless they are equal and of one size. */
QUERN_API quern_status quern_dtype_convert(void *dst, quern_dtype dst_dtype, const void *src, quern_dtype src_dtype,
                                           size_t n) QUERN_NODISCARD;

#ifdef __cplusplus
}
#endif
#endif
