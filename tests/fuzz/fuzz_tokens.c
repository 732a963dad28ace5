/* tests/fuzz/fuzz_tokens.c -- any bytes as a token file, with a header and raw: accepted ones hold the ids they say */
#include "fuzz/fuzz.h"
#include "quern/quern.h"

/* Every id can be read, alone and in windows. */
static void check(quern_tokens *tokens, const uint8_t *data, size_t size) {
  size_t bytes = quern_dtype_size(quern_tokens_dtype(tokens));
  int64_t n = quern_tokens_count(tokens);
  uint32_t id;
  REQUIRE(n >= 0 && (size_t)n * bytes <= size);
  for (int64_t i = 0; i < n; i++) {
    const uint8_t *at = data + (size - (size_t)(n - i) * bytes);
    REQUIRE(quern_tokens_get(tokens, i, 1, &id) == QUERN_STATUS_OK);
    REQUIRE((id & 0xff) == at[0] && (id >> 8 & 0xff) == at[1]);
  }
  REQUIRE(quern_tokens_get(tokens, n, 1, &id) == QUERN_STATUS_INVALID);
  quern_token_window window = QUERN_INIT(quern_token_window);
  quern_source *source;
  window.length = 3;
  quern_status status = quern_source_tokens(&source, 1, &tokens, &window, NULL);
  REQUIRE(status == (n >= 4 ? QUERN_STATUS_OK : QUERN_STATUS_INVALID));
  for (int64_t i = 0; i < quern_source_sample_count(source); i++) {
    int32_t inputs[3], labels[3];
    status = quern_source_get(source, i, (void *[]){inputs, labels});
    bool may_be_large = quern_tokens_vocab(tokens) > 0 || bytes == 4; /* an id that the vocabulary or i32 has not */
    REQUIRE(status == QUERN_STATUS_OK || (status == QUERN_STATUS_PARSE && may_be_large));
  }
  quern_source_free(source);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  quern_tokens *tokens;
  quern_tokens_options options = QUERN_INIT(quern_tokens_options);
  quern_status status = quern_tokens_wrap(&tokens, data, size, NULL);
  REQUIRE(status == QUERN_STATUS_OK || status == QUERN_STATUS_PARSE);
  if (tokens != NULL) check(tokens, data, size);
  quern_tokens_free(tokens);
  options.raw = true;
  options.dtype = size % 3 == 0 ? QUERN_DTYPE_U32 : QUERN_DTYPE_U16;
  status = quern_tokens_wrap(&tokens, data, size, &options);
  REQUIRE(status == (size % quern_dtype_size(options.dtype) == 0 ? QUERN_STATUS_OK : QUERN_STATUS_PARSE));
  if (tokens != NULL) check(tokens, data, size);
  quern_tokens_free(tokens);
  return 0;
}
