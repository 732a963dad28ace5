/* io/safetensors.h -- what the parts of the safetensors reader and writer share */
#ifndef IO_SAFETENSORS_H
#define IO_SAFETENSORS_H
#include "io/io.h"
#include "quern/safetensors.h"

enum {
  IO_SAFETENSORS_ALIGNMENT = 64,          /* of the first element in a file, and of all that can have it */
  IO_SAFETENSORS_HEADER_MOST = 100000000, /* bytes: the format's own limit */
  IO_SAFETENSORS_LENGTH = 8,              /* bytes of the header's length */
};

/* The format's name of each dtype. */
extern const char *const io_safetensors_dtypes[QUERN_DTYPE_COUNT];

/* A file: mapped, or bytes of the caller's. */
struct io_shard {
  const char *path;
  int fd; /* -1: bytes of the caller's */
  const unsigned char *bytes;
  uint64_t size;
  uint64_t data; /* where the elements begin */
};

struct io_entry {
  const char *name;
  quern_dtype dtype;
  int rank;
  const int64_t *dims;
  uint64_t begin, end; /* from the beginning of the elements */
  size_t shard, order; /* order: in the header */
};

struct quern_safetensors {
  struct base_heap heap;
  struct base_arena arena; /* names, dims, paths */
  BASE_VEC(struct io_shard) shards;
  BASE_VEC(struct io_entry) entries;
  BASE_VEC(quern_string_pair) pairs;
  struct base_map names; /* of entries */
};

/* The number of a pair, as json_t or text; kept in the arena. */
quern_status io_safetensors_add_pair(quern_safetensors *file, const char *key, const char *value) QUERN_NODISCARD;

/* Bytes of a shard, read from its file. */
quern_status io_shard_read(const struct io_shard *shard, uint64_t at, void *dst, size_t n) QUERN_NODISCARD;

/* Opens and maps a file as a new shard. */
quern_status io_shard_open(quern_safetensors *file, const char *path) QUERN_NODISCARD;

/* Reads and checks the header of the last shard; its entries are added in the order of their elements. pairs: and its metadata. */
quern_status io_safetensors_read_header(quern_safetensors *file, bool pairs) QUERN_NODISCARD;

/* Reads an index and opens all of its shards. */
quern_status io_safetensors_read_index(quern_safetensors *file, const char *path) QUERN_NODISCARD;

/* FAILS unless this machine's numbers are little-endian, as the format's are. */
quern_status io_safetensors_check_machine(void) QUERN_NODISCARD;

/* A header as io_safetensors_header makes it: what a file begins with, and the order of the tensors in it. */
struct io_layout {
  struct base_str header; /* with its length before it */
  size_t *order;          /* place -> tensor */
  size_t n;
  uint64_t bytes; /* of elements */
};

/* Checks tensors and metadata of a call; what names it. given: a tensor's elements may come from elsewhere than its data. */
quern_status io_safetensors_check(const char *what, struct base_heap *heap, size_t n, const quern_safetensor *tensors,
                                  bool given, size_t n_pairs, const quern_string_pair *pairs) QUERN_NODISCARD;

/* Lays out those n tensors whose numbers stand in `which` (NULL: all). io_layout_fini whatever happened. */
quern_status io_layout_make(struct io_layout *layout, struct base_heap *heap, size_t n, const size_t *which,
                            const quern_safetensor *tensors, size_t n_pairs,
                            const quern_string_pair *pairs) QUERN_NODISCARD;
void io_layout_fini(struct io_layout *layout);

/* Bytes of a tensor's elements; its dtype and shape must have been checked. */
uint64_t io_safetensor_bytes(const quern_safetensor *tensor);

#endif
