/* io/encode.c -- a text to ids, ids to a text
** in:    any bytes                  out: ids to a sink, or bytes into a buffer
** A text is cut at added tokens that are looked for as written; what is between is normalized, cut at those that are looked for
** after that, and given to the steps that make words. The order is that of HuggingFace's library, so that ids are the same.
** see:   docs/data.md             tests: tests/io/test_tokenizer.c, tests/fuzz/fuzz_tokenizer.c
*/
#include "io/tokenizer.h"

#include <inttypes.h>

enum {
  CACHE_FROM = 4096, /* bytes of a text that is worth a cache */
  LOOSE = 4096,      /* bytes of a word of a model without merges */
  GROWTH = 64        /* times that a normalizer may make a text longer */
};

/* ---- out ----------------------------------------------------------------------------------------------- */

static quern_status flush(struct io_encoder *encoder) {
  size_t n = encoder->n_out;
  encoder->n_out = 0;
  return n > 0 ? encoder->sink(encoder->self, n, encoder->out) : QUERN_STATUS_OK;
}

quern_status io_encoder_put(struct io_encoder *encoder, uint32_t id) {
  encoder->out[encoder->n_out++] = id;
  return encoder->n_out == IO_OUT ? flush(encoder) : QUERN_STATUS_OK;
}

void io_encoder_fini(struct io_encoder *encoder) {
  struct base_heap *heap = encoder->heap;
  base_free(heap, encoder->cache, IO_CACHE * sizeof *encoder->cache);
  base_vec_fini(heap, &encoder->ids);
  base_vec_fini(heap, &encoder->next);
  base_vec_fini(heap, &encoder->prev);
  base_vec_fini(heap, &encoder->ranks);
  base_vec_fini(heap, &encoder->heap_items);
  for (size_t i = 0; i < BASE_COUNT(encoder->scratch); i++) base_vec_fini(heap, &encoder->scratch[i]);
}

/* ---- texts changed ------------------------------------------------------------------------------------- */

/* Adds bytes to one of the encoder's texts. */
static bool add_bytes(struct io_encoder *encoder, size_t which, const void *at, size_t n) {
  if (!base_vec_reserve(encoder->heap, &encoder->scratch[which], n)) return false;
  if (n > 0) memcpy(encoder->scratch[which].at + encoder->scratch[which].n, at, n);
  encoder->scratch[which].n += n;
  return true;
}

static bool begins(const unsigned char *at, size_t n, quern_text with) {
  return n >= with.n && memcmp(at, with.at, with.n) == 0;
}

/* How often a text is in another, one behind the other. */
static size_t count(const unsigned char *at, size_t n, quern_text what) {
  size_t times = 0;
  for (size_t i = 0; what.n > 0 && i + what.n <= n;) {
    bool here = begins(at + i, n - i, what);
    times += here ? 1 : 0;
    i += here ? what.n : 1;
  }
  return times;
}

/* The text with every `from` replaced by `to`, which is left in one of the encoder's texts after what is there. */
static bool add_replaced(struct io_encoder *encoder, size_t which, const unsigned char *at, size_t n, quern_text from,
                         quern_text to) {
  size_t start = 0;
  for (size_t i = 0; i < n;) {
    if (from.n == 0 || !begins(at + i, n - i, from)) {
      i++;
      continue;
    }
    if (!add_bytes(encoder, which, at + start, i - start) || !add_bytes(encoder, which, to.at, to.n)) return false;
    start = i += from.n;
  }
  return add_bytes(encoder, which, at + start, n - start);
}

quern_status io_encoder_normalize(struct io_encoder *encoder, const unsigned char **at, size_t *n) {
  const struct io_steps *steps = &encoder->tokenizer->normal;
  size_t most = *n < SIZE_MAX / GROWTH - GROWTH ? (*n + GROWTH) * GROWTH : SIZE_MAX;
  for (size_t i = 0; i < steps->n; i++) {
    const struct io_step *step = &steps->at[i];
    size_t which = i % 2;
    if (*n == 0) continue; /* nothing is put before an empty text */
    size_t times = step->kind == IO_STEP_PREPEND ? 1 : count(*at, *n, step->from);
    QUERN_CHECK(times == 0 || step->to.n <= (most - BASE_MIN(*n, most)) / times, OVERFLOW,
                "normalizing makes much more of a text: %zu bytes %zu times, after %zu", step->to.n, times, *n);
    encoder->scratch[which].n = 0;
    bool good = step->kind == IO_STEP_PREPEND
                    ? add_bytes(encoder, which, step->to.at, step->to.n) && add_bytes(encoder, which, *at, *n)
                    : add_replaced(encoder, which, *at, *n, step->from, step->to);
    if (!good) return QUERN_STATUS_MEMORY;
    *at = encoder->scratch[which].at;
    *n = encoder->scratch[which].n;
  }
  return QUERN_STATUS_OK;
}

/* What a step puts before and into a piece before it is split; first: the piece is at the beginning of the whole text. */
static quern_status change(struct io_encoder *encoder, size_t number, bool first, const unsigned char **at, size_t *n) {
  const struct io_step *step = &encoder->tokenizer->words.at[number];
  static const quern_text space = {" ", 1}, meta = {IO_META, sizeof IO_META - 1};
  size_t which = 2 + number;
  bool good = true;
  if (step->kind == IO_STEP_BYTE_LEVEL) {
    if (!step->prefix_space || (*n > 0 && (*at)[0] == ' ')) return QUERN_STATUS_OK;
    encoder->scratch[which].n = 0;
    good = add_bytes(encoder, which, space.at, space.n) && add_bytes(encoder, which, *at, *n);
  } else if (step->kind == IO_STEP_META) {
    bool before = step->scheme == IO_SCHEME_ALWAYS || (step->scheme == IO_SCHEME_FIRST && first);
    before = before && *n > 0 && (*at)[0] != ' ' && !begins(*at, *n, meta);
    encoder->scratch[which].n = 0;
    good =
        (!before || add_bytes(encoder, which, meta.at, meta.n)) && add_replaced(encoder, which, *at, *n, space, meta);
  } else {
    return QUERN_STATUS_OK;
  }
  if (!good) return QUERN_STATUS_MEMORY;
  *at = encoder->scratch[which].at;
  *n = encoder->scratch[which].n;
  return QUERN_STATUS_OK;
}

/* ---- words --------------------------------------------------------------------------------------------- */

/* The words of a piece from a step on: at most IO_STEPS deep. */
static quern_status add_words(struct io_encoder *encoder, size_t number, bool first, const unsigned char *at,
                              size_t n) {
  const quern_tokenizer *tokenizer = encoder->tokenizer;
  if (number == tokenizer->words.n) {
    /* without merges the words do not matter, and need not be in memory at once */
    size_t most = tokenizer->merges.n == 0 && tokenizer->byte_level && tokenizer->unk == IO_NO_TOKEN ? LOOSE : SIZE_MAX;
    for (size_t i = 0; i < n; i += BASE_MIN(n - i, most))
      QUERN_TRY(io_bpe_word(encoder, at + i, BASE_MIN(n - i, most)));
    return QUERN_STATUS_OK;
  }
  QUERN_TRY(change(encoder, number, first, &at, &n));
  for (size_t i = 0, word; i < n; i += word) {
    word = io_split_next(tokenizer->words.at[number].split, at + i, n - i);
    QUERN_TRY(add_words(encoder, number + 1, first && i == 0, at + i, word));
  }
  return QUERN_STATUS_OK;
}

/* ---- added tokens -------------------------------------------------------------------------------------- */

/* The first added token from i on, the longest there is at its place; IO_NO_TOKEN: none. */
static uint32_t find_added(const quern_tokenizer *tokenizer, const struct io_added_set *set, const unsigned char *at,
                           size_t n, size_t *i) {
  if (set->vocab.n == 0) return IO_NO_TOKEN;
  for (; *i < n; ++*i) {
    if (!set->first[at[*i]]) continue;
    for (size_t k = 0; k < set->lengths.n; k++) {
      if (set->lengths.at[k] > n - *i) continue;
      uint32_t id = io_vocab_find(tokenizer, &set->vocab, at + *i, set->lengths.at[k]);
      if (id != IO_NO_TOKEN) return id;
    }
  }
  return IO_NO_TOKEN;
}

/* Where white space before i begins, not before start. */
static size_t space_before(const unsigned char *at, size_t start, size_t i) {
  while (i > start) {
    size_t k = i - 1;
    uint32_t c;
    while (k > start && i - k < 4 && (at[k] & 0xc0) == 0x80) k--;
    if (io_utf8_get(at + k, i - k, &c) != i - k || io_unicode_kind(c) != IO_KIND_SPACE) break;
    i = k;
  }
  return i;
}

static size_t space_after(const unsigned char *at, size_t n, size_t i) {
  for (uint32_t c; i < n;) {
    size_t bytes = io_utf8_get(at + i, n - i, &c);
    if (io_unicode_kind(c) != IO_KIND_SPACE) break;
    i += bytes;
  }
  return i;
}

static const struct io_added *added_of(const quern_tokenizer *tokenizer, uint32_t id) {
  for (size_t i = 0; i < tokenizer->added.n; i++) {
    if (tokenizer->added.at[i].id == id) return &tokenizer->added.at[i];
  }
  return NULL;
}

static quern_status add_text(struct io_encoder *encoder, bool special, bool first, const unsigned char *at, size_t n);

/* A text cut at the tokens of a set; what is between goes on. */
static quern_status cut(struct io_encoder *encoder, bool normalized, bool special, bool first, const unsigned char *at,
                        size_t n) {
  const quern_tokenizer *tokenizer = encoder->tokenizer;
  const struct io_added_set *set = &tokenizer->sets[normalized][special];
  size_t start = 0, i = 0;
  for (uint32_t id; (id = find_added(tokenizer, set, at, n, &i)) != IO_NO_TOKEN;) {
    const struct io_added *added = added_of(tokenizer, id);
    size_t from = added->lstrip ? space_before(at, start, i) : i;
    size_t to = i + tokenizer->tokens.at[id].n;
    if (added->rstrip) to = space_after(at, n, to);
    if (from > start && normalized) QUERN_TRY(add_words(encoder, 0, first && start == 0, at + start, from - start));
    if (from > start && !normalized)
      QUERN_TRY(add_text(encoder, special, first && start == 0, at + start, from - start));
    QUERN_TRY(io_encoder_put(encoder, id));
    start = i = to;
  }
  if (start == n) return QUERN_STATUS_OK;
  if (normalized) return add_words(encoder, 0, first && start == 0, at + start, n - start);
  return add_text(encoder, special, first && start == 0, at + start, n - start);
}

/* A text without added tokens as they are written. */
static quern_status add_text(struct io_encoder *encoder, bool special, bool first, const unsigned char *at, size_t n) {
  QUERN_TRY(io_encoder_normalize(encoder, &at, &n));
  return cut(encoder, true, special, first, at, n);
}

/* ---- encoding ------------------------------------------------------------------------------------------ */

static quern_status encode(struct io_encoder *encoder, const unsigned char *text, size_t n, unsigned flags) {
  const quern_tokenizer *tokenizer = encoder->tokenizer;
  bool frame = (flags & QUERN_ENCODE_FRAME) != 0;
  for (size_t i = 0; frame && i < tokenizer->before.n; i++) QUERN_TRY(io_encoder_put(encoder, tokenizer->before.at[i]));
  QUERN_TRY(cut(encoder, false, (flags & QUERN_ENCODE_SPECIAL) != 0, true, text, n));
  for (size_t i = 0; frame && i < tokenizer->after.n; i++) QUERN_TRY(io_encoder_put(encoder, tokenizer->after.at[i]));
  return flush(encoder);
}

quern_status quern_tokenizer_encode_to(const quern_tokenizer *tokenizer, const void *text, size_t n, unsigned flags,
                                       quern_token_sink *sink, void *self) {
  QUERN_CHECK(tokenizer != NULL, INVALID, "tokenizer_encode_to: the tokenizer is null");
  QUERN_CHECK(text != NULL || n == 0, INVALID, "tokenizer_encode_to: the text of %zu bytes is null", n);
  QUERN_CHECK(sink != NULL, INVALID, "tokenizer_encode_to: the sink is null");
  QUERN_CHECK(flags <= (QUERN_ENCODE_SPECIAL | QUERN_ENCODE_FRAME), INVALID, "tokenizer_encode_to: the flags are %u",
              flags);
  struct base_heap heap; /* of this call: others may encode at the same time */
  base_heap_init(&heap, &tokenizer->heap.user);
  struct io_encoder *encoder = base_alloc_zero(&heap, sizeof *encoder);
  if (encoder == NULL) return QUERN_STATUS_MEMORY;
  encoder->tokenizer = tokenizer;
  encoder->heap = &heap;
  encoder->sink = sink;
  encoder->self = self;
  quern_status status = QUERN_STATUS_OK;
  if (n >= CACHE_FROM && tokenizer->merges.n > 0) {
    encoder->cache = base_alloc_zero(&heap, IO_CACHE * sizeof *encoder->cache);
    if (encoder->cache == NULL) status = QUERN_STATUS_MEMORY;
  }
  if (status == QUERN_STATUS_OK && n > 0)
    status = encode(encoder, text, n, flags);
  else if (status == QUERN_STATUS_OK)
    status = encode(encoder, (const unsigned char *)"", 0, flags);
  io_encoder_fini(encoder);
  base_free(&heap, encoder, sizeof *encoder);
  return status;
}

struct array {
  uint32_t *ids;
  size_t n, room;
};

static quern_status to_array(void *self, size_t n, const uint32_t *ids) {
  struct array *array = self;
  size_t fits = array->n < array->room ? BASE_MIN(n, array->room - array->n) : 0;
  if (fits > 0) memcpy(array->ids + array->n, ids, fits * sizeof *ids);
  array->n += n;
  return QUERN_STATUS_OK;
}

quern_status quern_tokenizer_encode(const quern_tokenizer *tokenizer, const void *text, size_t n, unsigned flags,
                                    size_t room, uint32_t *ids, size_t *n_ids) {
  QUERN_CHECK(n_ids != NULL, INVALID, "tokenizer_encode: the place for the number of ids is null");
  *n_ids = 0;
  QUERN_CHECK(tokenizer != NULL, INVALID, "tokenizer_encode: the tokenizer is null");
  QUERN_CHECK(ids != NULL || room == 0, INVALID, "tokenizer_encode: the place for %zu ids is null", room);
  struct array array = {ids, 0, room};
  QUERN_TRY(quern_tokenizer_encode_to(tokenizer, text, n, flags, to_array, &array));
  *n_ids = array.n;
  QUERN_CHECK(array.n <= room, OVERFLOW, "tokenizer_encode: the text has %zu ids, there is room for %zu", array.n,
              room);
  return QUERN_STATUS_OK;
}

/* ---- decoding ------------------------------------------------------------------------------------------ */

struct buffer {
  char *at;
  size_t n, room;
  const struct io_step *strip; /* what is still to be taken away at the front, or NULL */
  size_t stripped;
};

static void put_bytes(struct buffer *buffer, const unsigned char *at, size_t n) {
  while (buffer->strip != NULL && n > 0) {
    quern_text what = buffer->strip->from;
    if (buffer->stripped == buffer->strip->most || !begins(at, n, what)) {
      buffer->strip = NULL;
      break;
    }
    buffer->stripped++;
    at += what.n;
    n -= what.n;
  }
  size_t fits = buffer->n < buffer->room ? BASE_MIN(n, buffer->room - buffer->n) : 0;
  if (fits > 0) memcpy(buffer->at + buffer->n, at, fits);
  buffer->n += n;
}

/* A token of a model of characters, with the decoder's one replacement done. */
static void put_token(struct buffer *buffer, const struct io_token *token, quern_text from, quern_text to) {
  size_t start = 0;
  for (size_t i = 0; from.n > 0 && i < token->n;) {
    if (!begins(token->at + i, token->n - i, from)) {
      i++;
      continue;
    }
    put_bytes(buffer, token->at + start, i - start);
    put_bytes(buffer, (const unsigned char *)to.at, to.n);
    start = i += from.n;
  }
  put_bytes(buffer, token->at + start, token->n - start);
}

/* What the steps of the decoder are for single tokens. */
struct decoder {
  quern_text from, to;
  bool bytes;
  const struct io_step *strip;
};

static struct decoder read_decoder(const quern_tokenizer *tokenizer) {
  struct decoder decoder = {0};
  static const struct io_step one_space = {.kind = IO_STEP_STRIP, .from = {" ", 1}, .most = 1};
  for (size_t i = 0; i < tokenizer->decode.n; i++) {
    const struct io_step *step = &tokenizer->decode.at[i];
    if (step->kind == IO_STEP_REPLACE) decoder.from = step->from, decoder.to = step->to;
    if (step->kind == IO_STEP_META)
      decoder.from = (quern_text){IO_META, sizeof IO_META - 1}, decoder.to = one_space.from;
    if (step->kind == IO_STEP_META && step->scheme != IO_SCHEME_NEVER) decoder.strip = &one_space;
    if (step->kind == IO_STEP_FALLBACK) decoder.bytes = true;
    if (step->kind == IO_STEP_STRIP) decoder.strip = step;
  }
  return decoder;
}

/* The value of "<0x41>". */
static unsigned char byte_of(const struct io_token *token) {
  static const char digits[] = "0123456789ABCDEF";
  return (unsigned char)((strchr(digits, token->at[3]) - digits) * 16 + (strchr(digits, token->at[4]) - digits));
}

quern_status quern_tokenizer_decode(const quern_tokenizer *tokenizer, size_t n, const uint32_t *ids, unsigned flags,
                                    size_t room, char *bytes, size_t *n_bytes) {
  QUERN_CHECK(n_bytes != NULL, INVALID, "tokenizer_decode: the place for the number of bytes is null");
  *n_bytes = 0;
  QUERN_CHECK(tokenizer != NULL, INVALID, "tokenizer_decode: the tokenizer is null");
  QUERN_CHECK(ids != NULL || n == 0, INVALID, "tokenizer_decode: the %zu ids are null", n);
  QUERN_CHECK(bytes != NULL || room == 0, INVALID, "tokenizer_decode: the place for %zu bytes is null", room);
  QUERN_CHECK(flags <= (QUERN_DECODE_SKIP_SPECIAL | QUERN_DECODE_CONTINUE), INVALID,
              "tokenizer_decode: the flags are %u", flags);
  struct decoder decoder = read_decoder(tokenizer);
  struct buffer buffer = {bytes, 0, room, (flags & QUERN_DECODE_CONTINUE) == 0 ? decoder.strip : NULL, 0};
  for (size_t i = 0; i < n; i++) {
    QUERN_CHECK(ids[i] < tokenizer->tokens.n && tokenizer->tokens.at[ids[i]].at != NULL, INVALID,
                "tokenizer_decode: id %zu is %" PRIu32 ", which no token has; there are %zu", i, ids[i],
                tokenizer->tokens.n);
    const struct io_token *token = &tokenizer->tokens.at[ids[i]];
    if ((token->flags & IO_TOKEN_SPECIAL) != 0 && (flags & QUERN_DECODE_SKIP_SPECIAL) != 0) continue;
    if (decoder.bytes && (token->flags & IO_TOKEN_BYTE) != 0) {
      unsigned char byte = byte_of(token);
      put_bytes(&buffer, &byte, 1);
    } else {
      put_token(&buffer, token, decoder.from, decoder.to);
    }
  }
  *n_bytes = buffer.n;
  QUERN_CHECK(buffer.n <= room, OVERFLOW, "tokenizer_decode: the text has %zu bytes, there is room for %zu", buffer.n,
              room);
  return QUERN_STATUS_OK;
}
