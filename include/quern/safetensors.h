/* quern/safetensors.h -- safetensors files: read where they lie, written whole or not at all
** A file has names, dtypes and shapes in a header, then all elements: dense, row-major, little-endian. A large set of tensors lies in
** several files, the shards, with an index (*.index.json) that says which tensor is where. See docs/io.md.
*/
#ifndef QUERN_SAFETENSORS_H
#define QUERN_SAFETENSORS_H
#include "quern/context.h"
#include "quern/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct quern_safetensors quern_safetensors;

/* A tensor of an open file, or one to be written. */
typedef struct quern_safetensor {
  const char *name;
  quern_dtype dtype;
  int rank;
  const int64_t *dims;
  const void *data; /* may be NULL when there are no elements */
  /* What follows is not read when a tensor is written. */
  size_t bytes;    /* of the elements */
  uint64_t offset; /* of data from the beginning of its file */
  size_t shard;    /* its file; 0 when there is one */
} quern_safetensor;

/* A line of the metadata: both are UTF-8. */
typedef struct quern_string_pair {
  const char *key, *value;
} quern_string_pair;

/* ---- reading ---------------------------------------------------------------------------------------------------- */

/* Opens a file, an index with its shards, or a folder that has model.safetensors or model.safetensors.index.json, and checks all
** of its structure; elements are read from disk when they are used. The file must not become shorter while it is open.
** allocator: NULL for the C library's. */
QUERN_API quern_status quern_safetensors_open(quern_safetensors **file, const char *path,
                                              const quern_allocator *allocator) QUERN_NODISCARD;

/* The same of a file's bytes, which must stay as they are. */
QUERN_API quern_status quern_safetensors_parse(quern_safetensors **file, const void *bytes, size_t n,
                                               const quern_allocator *allocator) QUERN_NODISCARD;

/* Nothing that was got from it may be used afterwards. NULL is fine. */
QUERN_API void quern_safetensors_close(quern_safetensors *file);

/* How many tensors there are, and each, in the order of the shards and of the elements in them. data points into the file, aligned
** to 64 bytes or less: see quern_safetensors_copy. */
QUERN_API size_t quern_safetensors_count(const quern_safetensors *file);
QUERN_API quern_status quern_safetensors_get(const quern_safetensors *file, size_t i,
                                             quern_safetensor *tensor) QUERN_NODISCARD;
/* The tensor of that name. */
QUERN_API quern_status quern_safetensors_find(const quern_safetensors *file, const char *name,
                                              quern_safetensor *tensor) QUERN_NODISCARD;

/* Copies the elements of tensor i into memory of exactly so many bytes. They are read from the file, not through its mapping: an
** error of the disk is a status. */
QUERN_API quern_status quern_safetensors_copy(const quern_safetensors *file, size_t i, void *dst,
                                              size_t bytes) QUERN_NODISCARD;

/* The metadata: of an index those lines that are strings. */
QUERN_API size_t quern_safetensors_pair_count(const quern_safetensors *file);
QUERN_API quern_status quern_safetensors_pair(const quern_safetensors *file, size_t i,
                                              quern_string_pair *pair) QUERN_NODISCARD;

/* The files: their number, and the path and bytes of each. */
QUERN_API size_t quern_safetensors_shard_count(const quern_safetensors *file);
QUERN_API quern_status quern_safetensors_shard(const quern_safetensors *file, size_t i, const char **path,
                                               uint64_t *bytes) QUERN_NODISCARD;

/* ---- writing ---------------------------------------------------------------------------------------------------- */

typedef struct quern_safetensors_options {
  size_t size;
  size_t n_pairs;
  const quern_string_pair *pairs; /* metadata */
  uint64_t shard_bytes;           /* elements of a shard at most, unless a single tensor has more; 0: one file */
  quern_allocator allocator;      /* of the header; all zero: the C library's */
} quern_safetensors_options;

/* Writes tensors to a file, or with shard_bytes to shards beside an index, whose path must end in ".index.json":
** x.safetensors.index.json has the shards x-00001-of-00003.safetensors and so on. Everything is written under other names and
** synchronized before the first file is renamed: what fails until then leaves the old files as they were. No copy of the elements is
** made.
** Tensors whose bytes are a multiple of 64 come first and begin at multiples of 64; then those of 32, 16 and so on, which begin at
** such multiples: data is always aligned for its dtype. options may be NULL. */
QUERN_API quern_status quern_safetensors_write(const char *path, size_t n, const quern_safetensor *tensors,
                                               const quern_safetensors_options *options) QUERN_NODISCARD;

#ifdef __cplusplus
}
#endif
#endif
