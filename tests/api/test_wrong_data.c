/* tests/api/test_wrong_data.c -- wrong calls of tokenizer.h and data.h */
#include <unistd.h>

#include "api/wrong.h"

/* ---- tokenizers ---------------------------------------------------------------------------------------- */

static quern_tokenizer *tokenizer;
static quern_status during_status;

/* A tokenizer of bytes, for the time of a call. */
static quern_tokenizer *with_bytes(void) {
  assert_int_equal(quern_tokenizer_bytes(&tokenizer, 0, NULL, NULL), QUERN_STATUS_OK);
  return tokenizer;
}
#define BYTES(call) (with_bytes(), during_status = (call), quern_tokenizer_free(tokenizer), during_status)
#define BYTES_HOLD(condition) (with_bytes(), held = (condition), quern_tokenizer_free(tokenizer), held)
static bool held;

static quern_tokenizer *left = (quern_tokenizer *)&left;
static size_t size_left = 7;

static quern_status drop(void *self, size_t n, const uint32_t *ids) {
  (void)self, (void)n, (void)ids;
  return QUERN_STATUS_OK;
}

static quern_status train(size_t size, size_t vocab, size_t n, const quern_text *texts, size_t n_special,
                          const char *const *special) {
  quern_tokenizer_training training = QUERN_INIT(quern_tokenizer_training);
  training.size = size;
  training.vocab = vocab;
  training.n_special = n_special;
  training.special = special;
  return quern_tokenizer_train(&left, n, texts, &training, NULL);
}

/* ---- tokens -------------------------------------------------------------------------------------------- */

static const uint16_t some_ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};

static quern_tokens_options tokens_options(size_t size, quern_dtype dtype) {
  quern_tokens_options options = QUERN_INIT(quern_tokens_options);
  options.size = size;
  options.raw = true;
  options.dtype = dtype;
  return options;
}
#define RAW (&(quern_tokens_options){sizeof(quern_tokens_options), true, QUERN_DTYPE_U16, 0, {NULL, NULL, NULL}})
#define WRONG_SIZE (&(quern_tokens_options){1, true, QUERN_DTYPE_U16, 0, {NULL, NULL, NULL}})
#define WRONG_DTYPE                                                                                                    \
  (&(quern_tokens_options){sizeof(quern_tokens_options), true, QUERN_DTYPE_F64, 0, {NULL, NULL, NULL}})

static quern_tokens *tokens;
static quern_tokens *tokens_left;
static quern_tokens_writer *writer_left;

static quern_tokens *with_tokens(void) {
  quern_tokens_options options = tokens_options(sizeof options, QUERN_DTYPE_U16);
  assert_int_equal(quern_tokens_wrap(&tokens, some_ids, sizeof some_ids, &options), QUERN_STATUS_OK);
  return tokens;
}
#define TOKENS(call) (with_tokens(), during_status = (call), quern_tokens_free(tokens), during_status)

/* A call with a writer of a file that never comes to be; or after its end. */
static quern_status with_writer(int which) {
  quern_tokens_writer *writer;
  char path[64];
  snprintf(path, sizeof path, "/tmp/quern_wrong_%ld.bin", (long)getpid());
  assert_int_equal(quern_tokens_writer_new(&writer, path, NULL), QUERN_STATUS_OK);
  quern_status status = QUERN_STATUS_OK;
  if (which == 0) status = quern_tokens_writer_add(writer, 1, NULL);
  if (which == 1) status = quern_tokens_writer_add(writer, 1, &(uint32_t){70000});
  if (which >= 2) status = quern_tokens_writer_end(writer);
  if (which == 2) status = quern_tokens_writer_end(writer);
  if (which == 3) status = quern_tokens_writer_add(writer, 0, NULL);
  quern_tokens_writer_free(writer);
  (void)unlink(path);
  return status;
}

/* ---- sources and loaders ------------------------------------------------------------------------------- */

static quern_source *source, *source_left;
static quern_loader *loader_left;

static quern_status zero(void *self, int64_t index, void *const *fields) {
  (void)self;
  *(int32_t *)fields[0] = (int32_t)index;
  return QUERN_STATUS_OK;
}

static const quern_field one_field[] = {{.name = "x", .dtype = QUERN_DTYPE_I32}};
static const void *const one_array[] = {some_ids};

static quern_status call_field(quern_field field) {
  return quern_source_call(&source_left, 4, 1, &field, zero, NULL, NULL);
}

static quern_source *with_source(void) {
  assert_int_equal(quern_source_call(&source, 4, 1, one_field, zero, NULL, NULL), QUERN_STATUS_OK);
  return source;
}
#define SOURCE(call) (with_source(), during_status = (call), quern_source_free(source), during_status)

static quern_status window(size_t size, int64_t length, int64_t stride, quern_dtype dtype) {
  quern_token_window options = QUERN_INIT(quern_token_window);
  options.size = size;
  options.length = length;
  options.stride = stride;
  options.dtype = dtype;
  with_tokens();
  quern_status status = quern_source_tokens(&source_left, 1, &tokens, &options, NULL);
  quern_tokens_free(tokens);
  return status;
}
#define WINDOW sizeof(quern_token_window)

/* A loader with one option that is wrong. */
static quern_loader_options options;

static quern_status loader(void) {
  with_source();
  quern_status status = quern_loader_new(&loader_left, source, &options);
  quern_loader_free(loader_left);
  quern_source_free(source);
  return status;
}
#define LOADER(field, value) (options = QUERN_INIT(quern_loader_options), options.field = (value), loader())

static quern_status seek(int64_t position) {
  quern_loader_options plain = QUERN_INIT(quern_loader_options);
  quern_loader *made;
  with_source();
  assert_int_equal(quern_loader_new(&made, source, &plain), QUERN_STATUS_OK);
  quern_status status = quern_loader_seek(made, (quern_cursor){0, position});
  quern_loader_free(made);
  quern_source_free(source);
  return status;
}

static quern_status next_without_place(void) {
  quern_loader_options plain = QUERN_INIT(quern_loader_options);
  quern_loader *made;
  with_source();
  assert_int_equal(quern_loader_new(&made, source, &plain), QUERN_STATUS_OK);
  quern_status status = quern_loader_next(made, NULL);
  quern_loader_free(made);
  quern_source_free(source);
  return status;
}

static bool no_fields(void) {
  const quern_field *fields = one_field;
  return quern_source_fields(NULL, &fields) == 0 && fields == NULL;
}

#define ROWS "api/wrong_data.def"
#include "api/rows.h"
