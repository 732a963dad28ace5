/* quern/data.h -- data for training: token files, sources of samples, orders, a loader that works ahead
** A source gives samples by number; a loader gives batches of them in an order that is a function of the seed, the epoch and the
** position, so that any batch can be had again. Neither depends on the number of threads.
*/
#ifndef QUERN_DATA_H
#define QUERN_DATA_H
#include "quern/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- token files --------------------------------------------------------------------------------------- */

/* Ids of 2 or 4 bytes, the lowest byte first. With a header: 256 words of 4 bytes, of which the first five are 20240520 and 1
** (2 bytes an id) or 20240801 and 7 (4 bytes), the number of ids (low and high), the ids of the vocabulary (0: not known); as
** llm.c writes them. Raw: nothing but ids, as nanoGPT writes them. */
typedef struct quern_tokens quern_tokens;

typedef struct quern_tokens_options {
  size_t size;
  bool raw;                  /* there is no header */
  quern_dtype dtype;         /* U16 (also 0) or U32, of a raw file, or of one that is written */
  uint64_t vocab;            /* for the header that is written; larger ids are refused. 0: not known */
  quern_allocator allocator; /* all zero: the C library's */
} quern_tokens_options;

/* Opens a file, which is read where it lies. options may be NULL. */
QUERN_API quern_status quern_tokens_open(quern_tokens **tokens, const char *path,
                                         const quern_tokens_options *options) QUERN_NODISCARD;
/* The same of bytes in memory, which must stay. */
QUERN_API quern_status quern_tokens_wrap(quern_tokens **tokens, const void *bytes, size_t n,
                                         const quern_tokens_options *options) QUERN_NODISCARD;
/* NULL is fine. */
QUERN_API void quern_tokens_free(quern_tokens *tokens);
QUERN_API int64_t quern_tokens_count(const quern_tokens *tokens);
QUERN_API quern_dtype quern_tokens_dtype(const quern_tokens *tokens);
/* What the header says of the vocabulary; 0: not known. */
QUERN_API uint64_t quern_tokens_vocab(const quern_tokens *tokens);
/* n ids from a place on. */
QUERN_API quern_status quern_tokens_get(const quern_tokens *tokens, int64_t first, size_t n,
                                        uint32_t *ids) QUERN_NODISCARD;

/* Writes a token file bit by bit, under a temporary name. */
typedef struct quern_tokens_writer quern_tokens_writer;
QUERN_API quern_status quern_tokens_writer_new(quern_tokens_writer **writer, const char *path,
                                               const quern_tokens_options *options) QUERN_NODISCARD;
QUERN_API quern_status quern_tokens_writer_add(quern_tokens_writer *writer, size_t n,
                                               const uint32_t *ids) QUERN_NODISCARD;
/* Makes it the file of that path; nothing can be added after it. */
QUERN_API quern_status quern_tokens_writer_end(quern_tokens_writer *writer) QUERN_NODISCARD;
/* Without an end before, nothing is left of the file. NULL is fine. */
QUERN_API void quern_tokens_writer_free(quern_tokens_writer *writer);

/* ---- sources ------------------------------------------------------------------------------------------- */

typedef struct quern_source quern_source;

/* A part of each sample. */
typedef struct quern_field {
  const char *name;
  quern_dtype dtype;
  int rank;
  int64_t dims[QUERN_MAX_RANK];
  int64_t pad; /* elements of samples that only fill a batch */
} quern_field;
enum { QUERN_MAX_FIELDS = 16 };

/* Writes sample `index` to the fields. Several threads call it at the same time. An error is told with quern_source_fail. */
typedef quern_status quern_source_read(void *self, int64_t index, void *const *fields);

typedef struct quern_token_window {
  size_t size;
  int64_t length;    /* T: ids of a sample */
  int64_t stride;    /* from a sample's beginning to the next one's; 0: length */
  quern_dtype dtype; /* of the fields: I32 (also 0) or I64 */
  uint64_t vocab;    /* ids from here on are an error; 0: as the files' headers say */
} quern_token_window;

/* Windows of T + 1 ids: "inputs", the first T, and "labels", the last T (filled up with -1). No window goes over the end of a
** file. The tokens must stay. */
QUERN_API quern_status quern_source_tokens(quern_source **source, size_t n, quern_tokens *const *tokens,
                                           const quern_token_window *window,
                                           const quern_allocator *allocator) QUERN_NODISCARD;
/* The rows of .npy files with equally many; each is a field that is named by its path. Rows are read as they are needed. */
QUERN_API quern_status quern_source_arrays(quern_source **source, size_t n, const char *const *paths,
                                           const quern_allocator *allocator) QUERN_NODISCARD;
/* The rows of arrays in memory, each an array of `samples` elements of its field, one after another. The arrays must
** stay. */
QUERN_API quern_status quern_source_memory(quern_source **source, int64_t samples, size_t n_fields,
                                           const quern_field *fields, const void *const *arrays,
                                           const quern_allocator *allocator) QUERN_NODISCARD;
/* Samples that a function makes. */
QUERN_API quern_status quern_source_call(quern_source **source, int64_t samples, size_t n_fields,
                                         const quern_field *fields, quern_source_read *read, void *self,
                                         const quern_allocator *allocator) QUERN_NODISCARD;
/* Says why a sample cannot be read; returns the status. */
QUERN_API quern_status quern_source_fail(quern_status status, const char *message);
/* NULL is fine. */
QUERN_API void quern_source_free(quern_source *source);
QUERN_API int64_t quern_source_sample_count(const quern_source *source);
QUERN_API size_t quern_source_fields(const quern_source *source, const quern_field **fields);
/* One sample. */
QUERN_API quern_status quern_source_get(const quern_source *source, int64_t index, void *const *fields) QUERN_NODISCARD;

/* ---- the loader ---------------------------------------------------------------------------------------- */

typedef struct quern_loader quern_loader;

typedef enum quern_order {
  QUERN_ORDER_SEQUENTIAL,
  QUERN_ORDER_SHUFFLED, /* each epoch a permutation of its own */
  QUERN_ORDER_WEIGHTED  /* drawn by weight, with replacement */
} quern_order;

/* What becomes of samples at the end of an epoch that do not fill a batch. */
typedef enum quern_last { QUERN_LAST_DROP, QUERN_LAST_PAD } quern_last;

typedef struct quern_loader_options {
  size_t size;
  int64_t batch; /* samples, of each rank; 0: 1 */
  quern_order order;
  uint64_t seed;
  size_t n_weights; /* WEIGHTED: as many as samples; none negative, one at least not 0 */
  const double *weights;
  int64_t draws;   /* WEIGHTED: samples of an epoch; 0: as many as there are */
  int rank, world; /* a batch of all is cut into `world` batches (0: 1), of which this loader gives number `rank` */
  quern_last last;
  uint64_t epochs;           /* then it ends; 0: never */
  int workers;               /* threads that read; 0: 1; -1: none but the caller's */
  int prefetch;              /* batches ahead of the caller; 0: 2 */
  quern_allocator allocator; /* all zero: the C library's */
  quern_allocator buffers;   /* of batches (memory that a device reads); all zero: allocator */
} quern_loader_options;

/* A batch. Fields are arrays of `batch` samples each; they stay until the next call with the loader. */
typedef struct quern_batch {
  size_t size;
  uint64_t epoch;
  int64_t number;  /* of the epoch, from 0 */
  int64_t samples; /* the first ones are real, the others fill up */
  size_t n_fields;
  void *const *fields;    /* NULL: there are no more batches */
  const int64_t *indices; /* of the samples in the source; -1: fills up */
} quern_batch;

/* Where in the data a loader is: `position` samples of the epoch have been given out, over all ranks. */
typedef struct quern_cursor {
  uint64_t epoch;
  int64_t position;
} quern_cursor;

/* The source must stay. */
QUERN_API quern_status quern_loader_new(quern_loader **loader, const quern_source *source,
                                        const quern_loader_options *options) QUERN_NODISCARD;
/* The next batch. When a sample cannot be read the error is that of its source, with epoch and sample; the next call tries
** again. */
QUERN_API quern_status quern_loader_next(quern_loader *loader, quern_batch *batch) QUERN_NODISCARD;
/* Where the next batch begins. */
QUERN_API quern_cursor quern_loader_tell(const quern_loader *loader);
/* Goes there: batches are the same as those of the loader that told it, with any number of workers. */
QUERN_API quern_status quern_loader_seek(quern_loader *loader, quern_cursor cursor) QUERN_NODISCARD;
/* Batches of an epoch. */
QUERN_API int64_t quern_loader_batch_count(const quern_loader *loader);
/* Ends the workers, at any time. NULL is fine. */
QUERN_API void quern_loader_free(quern_loader *loader);

#ifdef __cplusplus
}
#endif
#endif
