/* io/tokenizer_make.c -- the ways to get a tokenizer: bytes, a file, a folder
** tests: tests/io/test_tokenizer.c
*/
#include <stdio.h>
#include <sys/stat.h>

#include "io/io.h"
#include "io/tokenizer.h"

enum { FILE_MOST = 1 << 28, PATH_MOST = 4096 };

/* Finishes or frees what was made. */
static quern_status give(quern_tokenizer **tokenizer, quern_tokenizer *made, quern_status status) {
  if (status == QUERN_STATUS_OK)
    *tokenizer = made;
  else
    quern_tokenizer_free(made);
  return status;
}

/* ---- bytes --------------------------------------------------------------------------------------------- */

static quern_status fill_bytes(quern_tokenizer *tokenizer, size_t n_special, const char *const *special) {
  io_tokenizer_set_gpt2(tokenizer, false, false);
  for (unsigned i = 0; i < 256; i++) {
    unsigned char byte = (unsigned char)i;
    QUERN_TRY(io_tokenizer_add_bytes(tokenizer, i, &byte, 1, IO_TOKEN_LISTED | IO_TOKEN_MODEL));
  }
  for (size_t i = 0; i < n_special; i++)
    QUERN_TRY(io_tokenizer_add_special(tokenizer, (uint32_t)(256 + i), special[i]));
  return io_tokenizer_finish(tokenizer);
}

quern_status quern_tokenizer_bytes(quern_tokenizer **tokenizer, size_t n_special, const char *const *special,
                                   const quern_allocator *allocator) {
  QUERN_CHECK(tokenizer != NULL, INVALID, "tokenizer_bytes: the place for the tokenizer is null");
  *tokenizer = NULL;
  QUERN_CHECK(special != NULL || n_special == 0, INVALID, "tokenizer_bytes: the %zu special tokens are null",
              n_special);
  quern_tokenizer *made;
  QUERN_TRY(io_tokenizer_new(&made, allocator));
  quern_status status = fill_bytes(made, n_special, special);
  if (status != QUERN_STATUS_OK) status = base_error(status, "tokenizer_bytes: %s", quern_last_error());
  return give(tokenizer, made, status);
}

/* ---- files --------------------------------------------------------------------------------------------- */

quern_status quern_tokenizer_parse(quern_tokenizer **tokenizer, const void *json, size_t n,
                                   const quern_allocator *allocator) {
  QUERN_CHECK(tokenizer != NULL, INVALID, "tokenizer_parse: the place for the tokenizer is null");
  *tokenizer = NULL;
  QUERN_CHECK(json != NULL, INVALID, "tokenizer_parse: the %zu bytes are null", n);
  quern_tokenizer *made;
  QUERN_TRY(io_tokenizer_new(&made, allocator));
  return give(tokenizer, made, io_tokenizer_from_json(made, "tokenizer", json, n));
}

quern_status quern_tokenizer_read_gpt2(quern_tokenizer **tokenizer, const char *vocab_path, const char *merges_path,
                                       const quern_allocator *allocator) {
  QUERN_CHECK(tokenizer != NULL, INVALID, "tokenizer_read_gpt2: the place for the tokenizer is null");
  *tokenizer = NULL;
  QUERN_CHECK(vocab_path != NULL && merges_path != NULL, INVALID, "tokenizer_read_gpt2: a path is null");
  quern_tokenizer *made;
  QUERN_TRY(io_tokenizer_new(&made, allocator));
  return give(tokenizer, made, io_tokenizer_from_gpt2(made, vocab_path, merges_path));
}

static quern_status read_json(quern_tokenizer *tokenizer, const char *path) {
  void *text;
  size_t n;
  QUERN_TRY(io_file_read(path, &tokenizer->heap, FILE_MOST, &text, &n));
  quern_status status = io_tokenizer_from_json(tokenizer, path, text, n);
  base_free(&tokenizer->heap, text, n);
  return status;
}

/* The path of a file in a folder; false when there is none. */
static bool in_folder(char path[PATH_MOST], const char *folder, const char *name) {
  struct stat there;
  int n = snprintf(path, PATH_MOST, "%s/%s", folder, name);
  return n > 0 && n < PATH_MOST && stat(path, &there) == 0;
}

static quern_status read_folder(quern_tokenizer *tokenizer, const char *folder) {
  static const char *const pairs[][2] = {{"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}};
  char first[PATH_MOST], second[PATH_MOST];
  if (in_folder(first, folder, "tokenizer.json")) return read_json(tokenizer, first);
  for (size_t i = 0; i < BASE_COUNT(pairs); i++) {
    if (in_folder(first, folder, pairs[i][0]) && in_folder(second, folder, pairs[i][1]))
      return io_tokenizer_from_gpt2(tokenizer, first, second);
  }
  return base_error(QUERN_STATUS_IO,
                    "%s: has neither tokenizer.json, nor vocab.json and merges.txt, nor encoder.json and vocab.bpe",
                    folder);
}

quern_status quern_tokenizer_read(quern_tokenizer **tokenizer, const char *path, const quern_allocator *allocator) {
  static const char *const end = "<|endoftext|>";
  struct stat there;
  QUERN_CHECK(tokenizer != NULL, INVALID, "tokenizer_read: the place for the tokenizer is null");
  *tokenizer = NULL;
  QUERN_CHECK(path != NULL && path[0] != 0, INVALID, "tokenizer_read: the path is %s", path == NULL ? "null" : "empty");
  if (strcmp(path, "bytes") == 0) return quern_tokenizer_bytes(tokenizer, 1, &end, allocator);
  quern_tokenizer *made;
  QUERN_TRY(io_tokenizer_new(&made, allocator));
  bool folder = stat(path, &there) == 0 && S_ISDIR(there.st_mode);
  return give(tokenizer, made, folder ? read_folder(made, path) : read_json(made, path));
}
