/* io/data.h -- what the files of the data loader share */
#ifndef IO_DATA_H
#define IO_DATA_H
#include "base/base.h"
#include "io/io.h"
#include "quern/data.h"

/* ---- tokens (tokens.c) --------------------------------------------------------------------------------- */

struct quern_tokens {
  struct base_heap heap;
  struct io_map map;       /* path NULL: of a caller's memory */
  const unsigned char *at; /* ids, the lowest byte first */
  int64_t n;
  quern_dtype dtype;
  uint64_t vocab;
};

/* Ids that there are, from a file or memory. */
quern_status io_tokens_read(const quern_tokens *tokens, int64_t first, size_t n, uint32_t *ids) QUERN_NODISCARD;
/* For messages. */
const char *io_tokens_path(const quern_tokens *tokens);
/* What a writer wrote, as tokens; the file never gets its name, and is gone when they are freed or the process ends.
** The writer has ended. */
quern_status io_tokens_writer_take(quern_tokens_writer *writer, quern_tokens **tokens) QUERN_NODISCARD;

/* ---- sources (source.c) -------------------------------------------------------------------------------- */

/* An array whose rows are a field. */
struct io_rows {
  struct io_map map;
  size_t first; /* byte of the first row */
  size_t bytes; /* of a row */
  size_t size;  /* of an element whose bytes are in the other order; 0: they are in order */
};

struct quern_source {
  struct base_heap heap;
  struct base_arena arena; /* of names, rows, tables */
  int64_t samples;
  size_t n_fields;
  quern_field fields[QUERN_MAX_FIELDS];
  size_t bytes[QUERN_MAX_FIELDS]; /* of a sample */
  quern_source_read *read;
  void *self;
  /* tokens */
  size_t n_tokens;
  quern_tokens *const *tokens;
  int64_t *first; /* sample of each file, and behind the last */
  quern_token_window window;
  /* arrays in memory */
  const void *arrays[QUERN_MAX_FIELDS];
  /* arrays in files */
  size_t n_rows;
  struct io_rows *rows;
};
/* A sample; a function of the caller's that fails without a reason, or with what is no status, is IO. */
quern_status io_source_read(const quern_source *source, int64_t index, void *const *fields) QUERN_NODISCARD;

/* ---- orders (sample_order.c) ---------------------------------------------------------------------------------- */

/* Which sample is where. Made of a caller's storage. */
struct io_sample_order {
  quern_order kind;
  uint64_t seed;
  int64_t n;           /* samples of the source */
  uint64_t rows, cols; /* SHUFFLED: rows * cols >= n */
  double *keep;        /* WEIGHTED: of each column, the part that is its own; */
  uint32_t *other;     /* and whose the rest is */
};
quern_status io_sample_order_init(struct io_sample_order *order, struct base_heap *heap, quern_order kind,
                                  uint64_t seed, int64_t n, const double *weights) QUERN_NODISCARD;
void io_sample_order_fini(struct io_sample_order *order, struct base_heap *heap);
/* The sample at a position of an epoch. */
int64_t io_sample_order_at(const struct io_sample_order *order, uint64_t epoch, int64_t position);

#endif
