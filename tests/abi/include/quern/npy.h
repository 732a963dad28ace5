/* quern/npy.h -- NumPy's .npy files (format versions 1 to 3)
** f64 f32 f16, i8 to i64, u8 to u64 and bool are NumPy's f8 f4 f2, i1 to i8, u1 to u8 and b1. bf16 and the 8-bit floats
** have no NumPy dtype: quern_npy_write refuses them; cast first.
*/
#ifndef QUERN_NPY_H
#define QUERN_NPY_H
#include "quern/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reads a file as a tensor that the context owns. Fortran order and big-endian files are converted. */
QUERN_API quern_status quern_npy_read(quern_context *ctx, const char *path, quern_tensor **x) QUERN_NODISCARD;
/* The same from memory. */
QUERN_API quern_status quern_npy_parse(quern_context *ctx, const void *bytes, size_t n,
                                       quern_tensor **x) QUERN_NODISCARD;
/* Writes elements to a temporary name beside path, then renames: the file is whole or not there. */
QUERN_API quern_status quern_npy_write(const char *path, quern_dtype dtype, int rank, const int64_t *dims,
                                       const void *data) QUERN_NODISCARD;

#ifdef __cplusplus
}
#endif
#endif
