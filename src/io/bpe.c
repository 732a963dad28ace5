/* io/bpe.c -- the ids of a word: its characters, then merges of neighbors, the lowest rank first, of equal ones the leftmost
** A word that is a token which the merges make of its own bytes is that token. Short words look for the lowest rank each time;
** long ones keep candidates in a heap and symbols in a list, so that n characters take n log n.
** see:   Sennrich, Haddow, Birch, "Neural machine translation of rare words with subword units", ACL 2016
** tests: tests/io/test_tokenizer.c
*/
#include "io/tokenizer.h"

enum { SHORT = 32 };

static uint32_t rank_of(const quern_tokenizer *tokenizer, uint32_t left, uint32_t right) {
  const struct io_pairs *pairs = &tokenizer->pairs;
  uint64_t pair = (uint64_t)left << 32 | right;
  if (pairs->cap == 0) return IO_NO_RANK;
  size_t i = base_hash_u64(BASE_HASH_SEED, pair) & (pairs->cap - 1);
  while (pairs->slots[i].rank != IO_NO_RANK && pairs->slots[i].pair != pair) i = (i + 1) & (pairs->cap - 1);
  return pairs->slots[i].rank;
}

/* ---- characters ---------------------------------------------------------------------------------------- */

/* Ids of characters as they are found; unknown ones wait, because several may become one. */
struct symbols {
  struct io_encoder *encoder;
  bool unknown;
};

static bool push(struct symbols *symbols, uint32_t id) {
  return base_vec_push(symbols->encoder->heap, &symbols->encoder->ids, id);
}

static bool push_unknown(struct symbols *symbols) {
  bool was = symbols->unknown;
  symbols->unknown = false;
  return !was || push(symbols, symbols->encoder->tokenizer->unk);
}

/* The byte tokens of a character that is no token, if all are there. */
static bool has_bytes(const quern_tokenizer *tokenizer, const unsigned char *at, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (tokenizer->bytes[at[i]] == IO_NO_TOKEN) return false;
  }
  return tokenizer->byte_fallback;
}

static bool add_character(struct symbols *symbols, const unsigned char *at, size_t n) {
  const quern_tokenizer *tokenizer = symbols->encoder->tokenizer;
  uint32_t id = io_vocab_find(tokenizer, &tokenizer->vocab, at, n);
  if (id != IO_NO_TOKEN) return push_unknown(symbols) && push(symbols, id);
  if (has_bytes(tokenizer, at, n)) {
    for (size_t i = 0; i < n; i++) {
      if (!push(symbols, tokenizer->bytes[at[i]])) return false;
    }
    return true;
  }
  if (tokenizer->unk == IO_NO_TOKEN) return true;
  if (symbols->unknown && !tokenizer->fuse_unk && !push_unknown(symbols)) return false;
  symbols->unknown = true;
  return true;
}

/* The symbols of a word, in encoder->ids: of a byte-level model its bytes, else its characters. A byte or character that the
** model does not know is left out, unless it has a token for such. */
static bool find_symbols(struct io_encoder *encoder, const unsigned char *at, size_t n) {
  const quern_tokenizer *tokenizer = encoder->tokenizer;
  struct symbols symbols = {encoder, false};
  encoder->ids.n = 0;
  if (!base_vec_reserve(encoder->heap, &encoder->ids, n)) return false;
  for (size_t i = 0, bytes = 1; i < n; i += bytes) {
    uint32_t c;
    if (tokenizer->byte_level && tokenizer->bytes[at[i]] != IO_NO_TOKEN) {
      if (!push_unknown(&symbols)) return false;
      encoder->ids.at[encoder->ids.n++] = tokenizer->bytes[at[i]];
      continue;
    }
    bytes = tokenizer->byte_level ? 1 : io_utf8_get(at + i, n - i, &c);
    if (!add_character(&symbols, at + i, bytes)) return false;
  }
  return push_unknown(&symbols);
}

/* ---- merges -------------------------------------------------------------------------------------------- */

static void merge_short(const quern_tokenizer *tokenizer, uint32_t *ids, size_t *n) {
  uint32_t ranks[SHORT];
  size_t last = *n - 1; /* ranks[i] is that of i and i + 1 */
  for (size_t i = 0; i < last; i++) ranks[i] = rank_of(tokenizer, ids[i], ids[i + 1]);
  while (last > 0) {
    size_t best = 0;
    for (size_t i = 1; i < last; i++) best = ranks[i] < ranks[best] ? i : best;
    if (ranks[best] == IO_NO_RANK) break;
    ids[best] = tokenizer->merges.at[ranks[best]].made;
    last--;
    for (size_t i = best + 1; i <= last; i++) ids[i] = ids[i + 1];
    for (size_t i = best; i < last; i++) ranks[i] = ranks[i + 1];
    if (best > 0) ranks[best - 1] = rank_of(tokenizer, ids[best - 1], ids[best]);
    if (best < last) ranks[best] = rank_of(tokenizer, ids[best], ids[best + 1]);
  }
  *n = last + 1;
}

/* Adds a candidate to the heap, the least first. */
static bool heap_add(struct io_encoder *encoder, uint64_t item) {
  if (!base_vec_reserve(encoder->heap, &encoder->heap_items, 1)) return false;
  uint64_t *at = encoder->heap_items.at;
  size_t i = encoder->heap_items.n++;
  for (; i > 0 && at[(i - 1) / 2] > item; i = (i - 1) / 2) at[i] = at[(i - 1) / 2];
  at[i] = item;
  return true;
}

static uint64_t heap_take(struct io_encoder *encoder) {
  uint64_t *at = encoder->heap_items.at, least = at[0];
  size_t n = --encoder->heap_items.n, i = 0;
  uint64_t item = at[n];
  for (size_t child; (child = 2 * i + 1) < n; i = child) {
    if (child + 1 < n && at[child + 1] < at[child]) child++;
    if (at[child] >= item) break;
    at[i] = at[child];
  }
  at[i] = item;
  return least;
}

/* Notes the rank of a symbol and its next one. */
static bool note_pair(struct io_encoder *encoder, size_t i, size_t n) {
  size_t next = encoder->next.at[i];
  encoder->ranks.at[i] = next < n ? rank_of(encoder->tokenizer, encoder->ids.at[i], encoder->ids.at[next]) : IO_NO_RANK;
  return encoder->ranks.at[i] == IO_NO_RANK || heap_add(encoder, (uint64_t)encoder->ranks.at[i] << 32 | i);
}

/* A candidate holds as long as its symbol has that rank. */
static bool merge_long(struct io_encoder *encoder) {
  size_t n = encoder->ids.n;
  encoder->next.n = encoder->prev.n = encoder->ranks.n = encoder->heap_items.n = 0;
  if (!base_vec_reserve(encoder->heap, &encoder->next, n) || !base_vec_reserve(encoder->heap, &encoder->prev, n) ||
      !base_vec_reserve(encoder->heap, &encoder->ranks, n) || !base_vec_reserve(encoder->heap, &encoder->heap_items, n))
    return false;
  uint32_t *ids = encoder->ids.at, *next = encoder->next.at, *prev = encoder->prev.at, *ranks = encoder->ranks.at;
  for (size_t i = 0; i < n; i++) {
    next[i] = (uint32_t)i + 1;
    prev[i] = (uint32_t)i - 1; /* of the first: UINT32_MAX */
    if (!note_pair(encoder, i, n)) return false;
  }
  while (encoder->heap_items.n > 0) {
    uint64_t item = heap_take(encoder);
    size_t i = (uint32_t)item, right;
    if (ranks[i] != item >> 32) continue;
    right = next[i];
    ids[i] = encoder->tokenizer->merges.at[ranks[i]].made;
    ids[right] = IO_NO_TOKEN;
    ranks[right] = IO_NO_RANK;
    next[i] = next[right];
    if (next[i] < n) prev[next[i]] = (uint32_t)i;
    if (!note_pair(encoder, i, n) || (prev[i] < n && !note_pair(encoder, prev[i], n))) return false;
  }
  size_t kept = 0;
  for (size_t i = 0; i < n; i++) {
    if (ids[i] != IO_NO_TOKEN) ids[kept++] = ids[i];
  }
  encoder->ids.n = kept;
  return true;
}

/* The ids of a word in encoder->ids. */
static quern_status merge(struct io_encoder *encoder, const unsigned char *at, size_t n) {
  QUERN_CHECK(n < UINT32_MAX - 1, OVERFLOW, "a word of %zu bytes is too long", n);
  if (!find_symbols(encoder, at, n)) return QUERN_STATUS_MEMORY;
  if (encoder->ids.n < 2 || encoder->tokenizer->merges.n == 0) return QUERN_STATUS_OK;
  if (encoder->ids.n <= SHORT) {
    merge_short(encoder->tokenizer, encoder->ids.at, &encoder->ids.n);
    return QUERN_STATUS_OK;
  }
  return merge_long(encoder) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

quern_status io_bpe_is_whole(struct io_encoder *encoder, uint32_t id, bool *whole) {
  const struct io_token *token = &encoder->tokenizer->tokens.at[id];
  QUERN_TRY(merge(encoder, token->at, token->n));
  *whole = encoder->tokenizer->ignore_merges || (encoder->ids.n == 1 && encoder->ids.at[0] == id);
  return QUERN_STATUS_OK;
}

/* ---- words met before ---------------------------------------------------------------------------------- */

/* The place of a word in the cache, or NULL: it is too long, or there is no cache. */
static struct io_cached *cache_slot(const struct io_encoder *encoder, const unsigned char *at, size_t n) {
  if (encoder->cache == NULL || n > IO_CACHE_TEXT) return NULL;
  return &encoder->cache[base_hash_bytes(BASE_HASH_SEED, at, n) % IO_CACHE];
}

static void keep(const struct io_encoder *encoder, struct io_cached *slot, const unsigned char *at, size_t n) {
  if (slot == NULL || encoder->ids.n > IO_CACHE_IDS) return;
  slot->n = (uint8_t)n;
  slot->n_ids = (uint8_t)encoder->ids.n;
  memcpy(slot->text, at, n);
  if (encoder->ids.n > 0) memcpy(slot->ids, encoder->ids.at, encoder->ids.n * sizeof *slot->ids);
}

quern_status io_bpe_word(struct io_encoder *encoder, const unsigned char *at, size_t n) {
  const quern_tokenizer *tokenizer = encoder->tokenizer;
  uint32_t id = n <= tokenizer->longest ? io_vocab_find(tokenizer, &tokenizer->vocab, at, n) : IO_NO_TOKEN;
  if (id != IO_NO_TOKEN && (tokenizer->tokens.at[id].flags & IO_TOKEN_WHOLE) != 0) return io_encoder_put(encoder, id);
  struct io_cached *slot = cache_slot(encoder, at, n);
  if (slot != NULL && slot->n == n && memcmp(slot->text, at, n) == 0) {
    for (size_t i = 0; i < slot->n_ids; i++) QUERN_TRY(io_encoder_put(encoder, slot->ids[i]));
    return QUERN_STATUS_OK;
  }
  QUERN_TRY(merge(encoder, at, n));
  keep(encoder, slot, at, n);
  for (size_t i = 0; i < encoder->ids.n; i++) QUERN_TRY(io_encoder_put(encoder, encoder->ids.at[i]));
  return QUERN_STATUS_OK;
}
