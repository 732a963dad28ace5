/* io/checkpoint.h -- what the parts of checkpoints share */
#ifndef IO_CHECKPOINT_H
#define IO_CHECKPOINT_H
#include "io/safetensors.h"
#include "quern/checkpoint.h"

#define IO_CHECKPOINT_JSON "checkpoint.json"
#define IO_CHECKPOINT_MODEL "model.safetensors"
enum { IO_CHECKPOINT_FORMAT = 1, IO_CHECKPOINT_JSON_MOST = 100000000 };

/* A tensor's name and the digest of its elements. */
struct io_sum {
  const char *name;
  uint64_t digest;
};

struct quern_checkpoint {
  struct base_heap heap;
  struct base_arena arena;
  quern_checkpoint_info info;
  BASE_VEC(quern_string_pair) config;
  BASE_VEC(struct io_sum) sums; /* as they stand in the JSON; after opening, in the order of the model's tensors */
  uint64_t model_bytes;         /* of the file */
  uint64_t model_header;        /* digest of what is before the elements */
  quern_safetensors *model;
};

/* Opens tensors by a path: the newest whole checkpoint of a folder, a checkpoint's own folder, or what quern_safetensors_open takes. One of
** the two is set, and to be closed; elements of a checkpoint have been compared with their digests. */
quern_status io_tensors_open(quern_checkpoint **checkpoint, quern_safetensors **file, const char *path,
                             const quern_allocator *allocator) QUERN_NODISCARD;

/* The JSON of contents; sums and model are given, and contents are checked. */
quern_status io_checkpoint_print(struct base_str *str, const quern_checkpoint_contents *contents,
                                 const struct io_sum *sums, uint64_t model_bytes,
                                 uint64_t model_header) QUERN_NODISCARD;

/* Reads the JSON of a file into a checkpoint that has nothing else yet. */
quern_status io_checkpoint_parse(quern_checkpoint *checkpoint, const char *path, const char *text,
                                 size_t n) QUERN_NODISCARD;

/* A checkpoint without anything, or MEMORY; and the whole of quern_checkpoint_open, whose path is checked. */
quern_status io_checkpoint_make(quern_checkpoint **checkpoint, const quern_allocator *allocator) QUERN_NODISCARD;
quern_status io_checkpoint_open(quern_checkpoint **checkpoint, const char *path,
                                const quern_allocator *allocator) QUERN_NODISCARD;

/* ---- folders of checkpoints (checkpoint_list.c) ----------------------------------------------------------------- */

enum { IO_CHECKPOINT_NAME_MOST = 64 };

/* step-00001234, or step-00001234.1 when it replaces one: then the highest number counts. */
struct io_saved {
  uint64_t step, number;
  char name[IO_CHECKPOINT_NAME_MOST];
};
struct io_saved_list {
  struct base_heap *heap;
  BASE_VEC(struct io_saved) list;
};

/* The checkpoints of a folder, newest first, whole or not; none when it is not there. io_saved_fini whatever happened. */
quern_status io_saved_list(struct io_saved_list *saved, struct base_heap *heap, const char *dir) QUERN_NODISCARD;
void io_saved_fini(struct io_saved_list *saved);

/* dir/name, or IO when that is too long. */
quern_status io_path_join(char path[IO_PATH_MOST], const char *dir, const char *name) QUERN_NODISCARD;

#endif
