/* tests/fuzz/fuzz_tokenizer.c -- any bytes as a tokenizer.json: one that is accepted encodes any text, and its ids decode */
#include "fuzz/fuzz.h"
#include "quern/quern.h"

enum { IDS_MOST = 1 << 16 };

struct ids {
  uint32_t at[IDS_MOST];
  size_t n;
  const quern_tokenizer *tokenizer;
};

static quern_status take(void *self, size_t n, const uint32_t *ids) {
  struct ids *all = self;
  for (size_t i = 0; i < n; i++) {
    REQUIRE(ids[i] < quern_tokenizer_vocab(all->tokenizer) && quern_tokenizer_token(all->tokenizer, ids[i]).at != NULL);
    if (all->n < IDS_MOST) all->at[all->n++] = ids[i];
  }
  return QUERN_STATUS_OK;
}

static void use(const quern_tokenizer *tokenizer, const void *text, size_t n) {
  static struct ids ids;
  static char bytes[1 << 20];
  for (unsigned flags = 0; flags < 4; flags++) {
    size_t n_bytes;
    ids.n = 0;
    ids.tokenizer = tokenizer;
    quern_status status = quern_tokenizer_encode_to(tokenizer, text, n, flags, take, &ids);
    REQUIRE(status == QUERN_STATUS_OK || status == QUERN_STATUS_OVERFLOW);
    status = quern_tokenizer_decode(tokenizer, ids.n, ids.at, flags, sizeof bytes, bytes, &n_bytes);
    REQUIRE(status == QUERN_STATUS_OK || status == QUERN_STATUS_OVERFLOW);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char text[] = "ab a <s>x y  it's <e>12345 \xc3\xa9\xff A\n\n the end ";
  quern_tokenizer *tokenizer;
  quern_status status = quern_tokenizer_parse(&tokenizer, data, size, NULL);
  REQUIRE(status == QUERN_STATUS_OK || status == QUERN_STATUS_PARSE || status == QUERN_STATUS_UNSUPPORTED ||
          status == QUERN_STATUS_OVERFLOW);
  REQUIRE((tokenizer != NULL) == (status == QUERN_STATUS_OK));
  if (tokenizer == NULL) return 0;
  use(tokenizer, text, sizeof text - 1);
  use(tokenizer, data, size < 2000 ? size : 2000);
  for (uint32_t id = 0; id < quern_tokenizer_vocab(tokenizer); id++) {
    quern_text token = quern_tokenizer_token(tokenizer, id);
    if (token.at != NULL && token.n > 0) use(tokenizer, token.at, token.n);
    if (id > 20) break;
  }
  quern_tokenizer_free(tokenizer);
  return 0;
}
