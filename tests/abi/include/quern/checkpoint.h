/* quern/checkpoint.h -- checkpoints: tensors and where a run stands, written so that a kill at any moment loses nothing
** A checkpoint is a folder DIR/step-00001234 with model.safetensors (all tensors) and checkpoint.json (the rest, and a digest of
** each tensor). It is written under another name, synchronized, then renamed: what has the name step-... was written whole. What was
** damaged afterwards is found by the digests, which cover every byte of both files. See docs/io.md.
*/
#ifndef QUERN_CHECKPOINT_H
#define QUERN_CHECKPOINT_H
#include "quern/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct quern_checkpoint quern_checkpoint;

/* ---- saving ----------------------------------------------------------------------------------------------------- */

typedef struct quern_checkpoint_contents {
  size_t size;
  uint64_t step;   /* steps done; at most 2^63 - 1 */
  uint64_t seed;   /* of the random streams */
  uint64_t cursor; /* samples or tokens read; at most 2^63 - 1 */
  size_t n_tensors;
  const quern_safetensor *tensors; /* parameters, states of the optimizer, ... */
  size_t n_config;
  const quern_string_pair *config; /* how the run was configured */
  const char *state;               /* a JSON object: whatever else the caller has to know again; NULL: {} */
  size_t keep;                     /* checkpoints that stay in the folder, this one included; 0: all */
  quern_allocator allocator;       /* all zero: the C library's */
  /* (optional) Puts the elements of tensor number i, whose data is NULL, into memory of its bytes: asked for once, when it is that
  ** tensor's turn to be written. */
  quern_status (*read)(void *user, size_t i, void *dst);
  void *user;
} quern_checkpoint_contents;

/* Saves into a folder, which is made if only its last name is missing. A checkpoint of the same step is replaced. On failure the
** others are as they were, and nothing is left of this one. Of older ones, those beyond `keep` are removed; a damaged one does not
** count, and one with a later step stays. One process saves into a folder at a time: STATE while another does. */
QUERN_API quern_status quern_checkpoint_save(const char *dir,
                                             const quern_checkpoint_contents *contents) QUERN_NODISCARD;

/* ---- reading ---------------------------------------------------------------------------------------------------- */

/* Opens a checkpoint by the path of its own folder: checks everything but the elements. allocator: NULL for the C library's. */
QUERN_API quern_status quern_checkpoint_open(quern_checkpoint **checkpoint, const char *path,
                                             const quern_allocator *allocator) QUERN_NODISCARD;

/* Opens the checkpoint of the highest step in a folder that is whole, elements included. For each later one that is damaged, a
** warning on stderr describes it, and it is skipped. *checkpoint is NULL when the folder is not there or has none; PARSE when
** it has some and all are damaged. */
QUERN_API quern_status quern_checkpoint_find(quern_checkpoint **checkpoint, const char *dir,
                                             const quern_allocator *allocator) QUERN_NODISCARD;

/* NULL is fine. */
QUERN_API void quern_checkpoint_close(quern_checkpoint *checkpoint);

/* Compares all elements with their digests. */
QUERN_API quern_status quern_checkpoint_verify(const quern_checkpoint *checkpoint) QUERN_NODISCARD;

/* What was saved; valid until the checkpoint is closed. */
typedef struct quern_checkpoint_info {
  size_t size;
  const char *path;
  uint64_t step, seed, cursor;
  size_t n_config;
  const quern_string_pair *config;
  const char *state; /* a JSON object, without blanks */
  size_t skipped;    /* later ones that quern_checkpoint_find found damaged */
} quern_checkpoint_info;
QUERN_API quern_status quern_checkpoint_get_info(const quern_checkpoint *checkpoint,
                                                 quern_checkpoint_info *info) QUERN_NODISCARD;

/* The value that a key of the configuration has, or NULL. */
QUERN_API const char *quern_checkpoint_config(const quern_checkpoint *checkpoint, const char *key);

/* The tensors, valid until the checkpoint is closed; not to be closed itself. */
QUERN_API const quern_safetensors *quern_checkpoint_tensors(const quern_checkpoint *checkpoint);

/* Copies the elements of the tensor of that name, which must have that dtype and shape, and compares them with their digest. */
QUERN_API quern_status quern_checkpoint_load(const quern_checkpoint *checkpoint, const char *name, quern_dtype dtype,
                                             int rank, const int64_t *dims, void *dst) QUERN_NODISCARD;

#ifdef __cplusplus
}
#endif
#endif
