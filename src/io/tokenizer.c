/* io/tokenizer.c -- the tokenizer: tokens, merges, added tokens; its description
** in:    tokens and merges in any number, by the readers of files and the trainer
** keeps: an id has one text; two tokens of the model differ; ids are below TOKENS_MOST
** see:   docs/data.md             tests: tests/io/test_tokenizer.c
*/
#include "io/tokenizer.h"

#include <inttypes.h>
#include <stdio.h>

#include "io/json.h"

enum { TOKENS_MOST = 1 << 22, SHOWN = 48 };

/* ---- the alphabet of byte-level vocabularies ----------------------------------------------------------- */

/* Bytes that print stand for themselves as code points; the 68 others, in order, for 256, 257, ... */
static bool prints(uint32_t c) { return (c > 32 && c < 127) || (c > 160 && c < 173) || (c > 173 && c < 256); }

uint32_t io_alphabet_char(unsigned char byte) {
  if (prints(byte)) return byte;
  return byte <= 32 ? 256u + byte : byte <= 160 ? 256u + 33 + (byte - 127u) : 256u + 33 + 34;
}

int io_alphabet_byte(uint32_t c) {
  if (c < 256) return prints(c) ? (int)c : -1;
  uint32_t i = c - 256;
  return i <= 32 ? (int)i : i < 33 + 34 ? (int)(i - 33 + 127) : i == 33 + 34 ? 173 : -1;
}

/* The bytes of a text of that alphabet, at most as many as the text's; false when a character is not of it. */
static bool to_bytes(const unsigned char *text, size_t n, unsigned char *bytes, size_t *n_bytes) {
  *n_bytes = 0;
  for (size_t i = 0; i < n;) {
    uint32_t c;
    i += io_utf8_get(text + i, n - i, &c);
    int byte = io_alphabet_byte(c);
    if (byte < 0) return false;
    bytes[(*n_bytes)++] = (unsigned char)byte;
  }
  return true;
}

/* ---- tables: texts to ids, pairs to ranks -------------------------------------------------------------- */

static uint64_t hash_text(const unsigned char *at, size_t n) { return base_hash_bytes(BASE_HASH_SEED, at, n); }

uint32_t io_vocab_find(const quern_tokenizer *tokenizer, const struct io_vocab *vocab, const unsigned char *at,
                       size_t n) {
  if (vocab->cap == 0) return IO_NO_TOKEN;
  for (size_t i = hash_text(at, n) & (vocab->cap - 1); vocab->slots[i] != 0; i = (i + 1) & (vocab->cap - 1)) {
    const struct io_token *token = &tokenizer->tokens.at[vocab->slots[i] - 1];
    if (token->n == n && memcmp(token->at, at, n) == 0) return vocab->slots[i] - 1;
  }
  return IO_NO_TOKEN;
}

static void vocab_put(const quern_tokenizer *tokenizer, struct io_vocab *vocab, uint32_t id) {
  const struct io_token *token = &tokenizer->tokens.at[id];
  size_t i = hash_text(token->at, token->n) & (vocab->cap - 1);
  while (vocab->slots[i] != 0) i = (i + 1) & (vocab->cap - 1);
  vocab->slots[i] = id + 1;
}

/* Adds a token whose text is not there; false when there is no memory. */
static bool vocab_add(quern_tokenizer *tokenizer, struct io_vocab *vocab, uint32_t id) {
  if (vocab->n >= vocab->cap / 2) {
    struct io_vocab grown = {.n = vocab->n, .cap = BASE_MAX(64, 2 * vocab->cap)};
    grown.slots = base_alloc_zero(&tokenizer->heap, grown.cap * sizeof *grown.slots);
    if (grown.slots == NULL) return false;
    for (size_t i = 0; i < vocab->cap; i++) {
      if (vocab->slots[i] != 0) vocab_put(tokenizer, &grown, vocab->slots[i] - 1);
    }
    base_free(&tokenizer->heap, vocab->slots, vocab->cap * sizeof *vocab->slots);
    *vocab = grown;
  }
  vocab_put(tokenizer, vocab, id);
  vocab->n++;
  return true;
}

/* The slot of a pair, or the empty one where it would be. */
static struct io_pair *pair_slot(const struct io_pairs *pairs, uint64_t pair) {
  size_t i = base_hash_u64(BASE_HASH_SEED, pair) & (pairs->cap - 1);
  while (pairs->slots[i].rank != IO_NO_RANK && pairs->slots[i].pair != pair) i = (i + 1) & (pairs->cap - 1);
  return &pairs->slots[i];
}

/* Sets the rank of a pair; false when there is no memory. */
static bool pairs_set(struct base_heap *heap, struct io_pairs *pairs, uint64_t pair, uint32_t rank) {
  if (pairs->n >= pairs->cap / 2) {
    struct io_pairs grown = {.n = pairs->n, .cap = BASE_MAX(64, 2 * pairs->cap)};
    grown.slots = base_alloc(heap, grown.cap * sizeof *grown.slots);
    if (grown.slots == NULL) return false;
    for (size_t i = 0; i < grown.cap; i++) grown.slots[i] = (struct io_pair){0, IO_NO_RANK};
    for (size_t i = 0; i < pairs->cap; i++) {
      if (pairs->slots[i].rank != IO_NO_RANK) *pair_slot(&grown, pairs->slots[i].pair) = pairs->slots[i];
    }
    base_free(heap, pairs->slots, pairs->cap * sizeof *pairs->slots);
    *pairs = grown;
  }
  struct io_pair *slot = pair_slot(pairs, pair);
  pairs->n += slot->rank == IO_NO_RANK ? 1 : 0;
  *slot = (struct io_pair){pair, rank};
  return true;
}

/* ---- making -------------------------------------------------------------------------------------------- */

quern_status io_tokenizer_new(quern_tokenizer **tokenizer, const quern_allocator *allocator) {
  struct base_heap heap;
  base_heap_init(&heap, allocator);
  quern_tokenizer *made = base_alloc_zero(&heap, sizeof *made);
  if (made == NULL) return QUERN_STATUS_MEMORY;
  base_heap_init(&made->heap, allocator);
  base_arena_init(&made->arena, &made->heap);
  for (size_t i = 0; i < 256; i++) made->bytes[i] = IO_NO_TOKEN;
  made->unk = IO_NO_TOKEN;
  *tokenizer = made;
  return QUERN_STATUS_OK;
}

void quern_tokenizer_free(quern_tokenizer *tokenizer) {
  if (tokenizer == NULL) return;
  struct base_heap *heap = &tokenizer->heap;
  for (size_t i = 0; i < 4; i++) {
    struct io_added_set *set = &tokenizer->sets[i / 2][i % 2];
    base_free(heap, set->vocab.slots, set->vocab.cap * sizeof *set->vocab.slots);
    base_vec_fini(heap, &set->lengths);
  }
  base_free(heap, tokenizer->vocab.slots, tokenizer->vocab.cap * sizeof *tokenizer->vocab.slots);
  base_free(heap, tokenizer->pairs.slots, tokenizer->pairs.cap * sizeof *tokenizer->pairs.slots);
  base_vec_fini(heap, &tokenizer->tokens);
  base_vec_fini(heap, &tokenizer->merges);
  base_vec_fini(heap, &tokenizer->added);
  base_vec_fini(heap, &tokenizer->before);
  base_vec_fini(heap, &tokenizer->after);
  base_arena_fini(&tokenizer->arena);
  quern_allocator user = heap->user;
  user.free(user.self, tokenizer, sizeof *tokenizer);
}

/* A text as it may stand in a message; not terminated by 0 itself. */
static const char *shown(char buffer[SHOWN], const void *text, size_t n) {
  char copy[SHOWN + 1];
  snprintf(copy, sizeof copy, "%.*s", (int)BASE_MIN(n, SHOWN), (const char *)text);
  return io_json_shown(buffer, SHOWN, copy);
}

/* Room for the token of an id. */
static quern_status reserve(quern_tokenizer *tokenizer, uint64_t id) {
  QUERN_CHECK(id < TOKENS_MOST, PARSE, "a token has the id %" PRIu64 ", ids end at %d", id, TOKENS_MOST - 1);
  if (id < tokenizer->tokens.n) return QUERN_STATUS_OK;
  size_t more = (size_t)id + 1 - tokenizer->tokens.n;
  if (!base_vec_reserve(&tokenizer->heap, &tokenizer->tokens, more)) return QUERN_STATUS_MEMORY;
  memset(tokenizer->tokens.at + tokenizer->tokens.n, 0, more * sizeof *tokenizer->tokens.at);
  tokenizer->tokens.n += more;
  return QUERN_STATUS_OK;
}

quern_status io_tokenizer_add_bytes(quern_tokenizer *tokenizer, uint64_t id, const void *bytes, size_t n,
                                    unsigned flags) {
  char name[SHOWN];
  QUERN_TRY(reserve(tokenizer, id));
  struct io_token *token = &tokenizer->tokens.at[id];
  QUERN_CHECK(token->at == NULL, PARSE, "\"%s\" has the id %" PRIu64 ", which another token has", shown(name, bytes, n),
              id);
  QUERN_CHECK(n < UINT32_MAX, PARSE, "the token of id %" PRIu64 " has %zu bytes", id, n);
  const char *copy = base_arena_string(&tokenizer->arena, bytes, n);
  if (copy == NULL) return QUERN_STATUS_MEMORY;
  *token = (struct io_token){(const unsigned char *)copy, (uint32_t)n, (uint8_t)flags};
  if ((flags & IO_TOKEN_MODEL) == 0) return QUERN_STATUS_OK;
  QUERN_CHECK(io_vocab_find(tokenizer, &tokenizer->vocab, token->at, n) == IO_NO_TOKEN, PARSE, "\"%s\" is there twice",
              shown(name, bytes, n));
  return vocab_add(tokenizer, &tokenizer->vocab, (uint32_t)id) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

quern_status io_tokenizer_add(quern_tokenizer *tokenizer, uint64_t id, const char *text, size_t n) {
  if (!tokenizer->byte_level) return io_tokenizer_add_bytes(tokenizer, id, text, n, IO_TOKEN_LISTED | IO_TOKEN_MODEL);
  unsigned char *bytes = base_alloc(&tokenizer->heap, n);
  size_t n_bytes;
  if (bytes == NULL) return QUERN_STATUS_MEMORY;
  quern_status status = to_bytes((const unsigned char *)text, n, bytes, &n_bytes)
                            ? io_tokenizer_add_bytes(tokenizer, id, bytes, n_bytes, IO_TOKEN_LISTED | IO_TOKEN_MODEL)
                            : io_tokenizer_add_bytes(tokenizer, id, text, n, IO_TOKEN_LISTED); /* no word can be it */
  base_free(&tokenizer->heap, bytes, n);
  return status;
}

quern_status io_tokenizer_add_pair(quern_tokenizer *tokenizer, uint32_t left, uint32_t right, uint32_t made) {
  struct base_heap *heap = &tokenizer->heap;
  QUERN_CHECK(tokenizer->merges.n < IO_NO_RANK - 1, PARSE, "there are %zu merges, too many", tokenizer->merges.n);
  if (!base_vec_push(heap, &tokenizer->merges, ((struct io_merge){left, right, made}))) return QUERN_STATUS_MEMORY;
  uint32_t rank = (uint32_t)tokenizer->merges.n - 1;
  return pairs_set(heap, &tokenizer->pairs, (uint64_t)left << 32 | right, rank) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

/* A text of the file's vocabulary as bytes of the model, in scratch of the same size. */
static bool model_text(const quern_tokenizer *tokenizer, const char *text, size_t n, unsigned char *bytes,
                       size_t *n_bytes) {
  if (tokenizer->byte_level) return to_bytes((const unsigned char *)text, n, bytes, n_bytes);
  memcpy(bytes, text, n);
  *n_bytes = n;
  return true;
}

quern_status io_tokenizer_add_merge(quern_tokenizer *tokenizer, const char *left, size_t n_left, const char *right,
                                    size_t n_right) {
  char names[2][SHOWN];
  size_t bytes = n_left + n_right + 1, n[2] = {0, 0};
  unsigned char *both = base_alloc(&tokenizer->heap, bytes);
  if (both == NULL) return QUERN_STATUS_MEMORY;
  uint32_t ids[3] = {IO_NO_TOKEN, IO_NO_TOKEN, IO_NO_TOKEN};
  bool known =
      model_text(tokenizer, left, n_left, both, &n[0]) && model_text(tokenizer, right, n_right, both + n[0], &n[1]);
  for (size_t i = 0; i < 3 && known; i++) {
    ids[i] = io_vocab_find(tokenizer, &tokenizer->vocab, both + (i == 1 ? n[0] : 0), i == 2 ? n[0] + n[1] : n[i]);
    known = ids[i] != IO_NO_TOKEN;
  }
  base_free(&tokenizer->heap, both, bytes);
  QUERN_CHECK(known, PARSE, "merge %zu of \"%s\" and \"%s\": one of them, or both together, is no token",
              tokenizer->merges.n, shown(names[0], left, n_left), shown(names[1], right, n_right));
  return io_tokenizer_add_pair(tokenizer, ids[0], ids[1], ids[2]);
}

quern_status io_tokenizer_add_added(quern_tokenizer *tokenizer, const struct io_added *added, const char *text,
                                    size_t n, bool special) {
  char name[SHOWN];
  QUERN_CHECK(n > 0, PARSE, "the added token %" PRIu32 " has no text", added->id);
  QUERN_TRY(reserve(tokenizer, added->id));
  unsigned flags = IO_TOKEN_ADDED | (special ? IO_TOKEN_SPECIAL : 0);
  struct io_token *token = &tokenizer->tokens.at[added->id];
  if (token->at == NULL) {
    QUERN_TRY(io_tokenizer_add_bytes(tokenizer, added->id, text, n, flags));
  } else {
    QUERN_CHECK((token->flags & IO_TOKEN_ADDED) == 0, PARSE, "two added tokens have the id %" PRIu32, added->id);
    QUERN_CHECK(token->n == n && memcmp(token->at, text, n) == 0, PARSE,
                "the added token \"%s\" has the id %" PRIu32 ", which stands for other bytes in the vocabulary",
                shown(name, text, n), added->id);
    token->flags |= (uint8_t)flags;
  }
  return base_vec_push(&tokenizer->heap, &tokenizer->added, *added) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

quern_status io_tokenizer_add_special(quern_tokenizer *tokenizer, uint32_t id, const char *text) {
  QUERN_CHECK(text != NULL && text[0] != 0, INVALID, "special token %" PRIu32 " is %s", id,
              text == NULL ? "null" : "empty");
  QUERN_TRY(io_tokenizer_add(tokenizer, id, text, strlen(text)));
  return io_tokenizer_add_added(tokenizer, &(struct io_added){.id = id}, text, strlen(text), true);
}

void io_tokenizer_set_gpt2(quern_tokenizer *tokenizer, bool prefix_space, bool use_regex) {
  struct io_step step = {.kind = IO_STEP_BYTE_LEVEL,
                         .prefix_space = prefix_space,
                         .trim = true,
                         .use_regex = use_regex,
                         .split = use_regex ? IO_SPLIT_GPT2 : IO_SPLIT_WHOLE};
  tokenizer->byte_level = true;
  tokenizer->words = (struct io_steps){{step}, 1};
  tokenizer->decode = (struct io_steps){{step}, 1};
}

/* ---- finishing ----------------------------------------------------------------------------------------- */

/* Puts an added token into a set, its length in order. */
static quern_status set_add(quern_tokenizer *tokenizer, struct io_added_set *set, uint32_t id) {
  const struct io_token *token = &tokenizer->tokens.at[id];
  if (io_vocab_find(tokenizer, &set->vocab, token->at, token->n) != IO_NO_TOKEN) return QUERN_STATUS_OK;
  if (!vocab_add(tokenizer, &set->vocab, id)) return QUERN_STATUS_MEMORY;
  set->first[token->at[0]] = true;
  size_t i = 0;
  while (i < set->lengths.n && set->lengths.at[i] > token->n) i++;
  if (i < set->lengths.n && set->lengths.at[i] == token->n) return QUERN_STATUS_OK;
  if (!base_vec_reserve(&tokenizer->heap, &set->lengths, 1)) return QUERN_STATUS_MEMORY;
  memmove(set->lengths.at + i + 1, set->lengths.at + i, (set->lengths.n++ - i) * sizeof *set->lengths.at);
  set->lengths.at[i] = token->n;
  return QUERN_STATUS_OK;
}

/* An added token that is looked for in normalized texts must be what it is normalized to. */
static quern_status check_normal(struct io_encoder *encoder, const struct io_token *token) {
  char name[SHOWN];
  const unsigned char *at = token->at;
  size_t n = token->n;
  QUERN_TRY(io_encoder_normalize(encoder, &at, &n));
  QUERN_CHECK(n == token->n && memcmp(at, token->at, n) == 0, UNSUPPORTED,
              "the added token \"%s\" is looked for in normalized texts, and normalizing changes it",
              shown(name, token->at, token->n));
  return QUERN_STATUS_OK;
}

/* Puts every added token into the sets in which it is looked for. */
static quern_status fill_sets(struct io_encoder *encoder, quern_tokenizer *tokenizer) {
  for (size_t i = 0; i < tokenizer->added.n; i++) {
    const struct io_added *added = &tokenizer->added.at[i];
    const struct io_token *token = &tokenizer->tokens.at[added->id];
    if (added->normalized) QUERN_TRY(check_normal(encoder, token));
    struct io_added_set *sets = tokenizer->sets[added->normalized];
    QUERN_TRY(set_add(tokenizer, &sets[1], added->id));
    if ((token->flags & IO_TOKEN_SPECIAL) == 0) QUERN_TRY(set_add(tokenizer, &sets[0], added->id));
  }
  return QUERN_STATUS_OK;
}

/* The ids of single bytes. */
static void find_bytes(quern_tokenizer *tokenizer) {
  for (unsigned i = 0; i < 256; i++) {
    unsigned char byte = (unsigned char)i;
    char text[8];
    snprintf(text, sizeof text, "<0x%02X>", i);
    tokenizer->bytes[i] = tokenizer->byte_level
                              ? io_vocab_find(tokenizer, &tokenizer->vocab, &byte, 1)
                              : io_vocab_find(tokenizer, &tokenizer->vocab, (unsigned char *)text, strlen(text));
    if (!tokenizer->byte_level && tokenizer->bytes[i] != IO_NO_TOKEN)
      tokenizer->tokens.at[tokenizer->bytes[i]].flags |= IO_TOKEN_BYTE;
  }
}

quern_status io_tokenizer_finish(quern_tokenizer *tokenizer) {
  struct io_encoder *encoder = base_alloc_zero(&tokenizer->heap, sizeof *encoder);
  if (encoder == NULL) return QUERN_STATUS_MEMORY;
  encoder->tokenizer = tokenizer;
  encoder->heap = &tokenizer->heap;
  find_bytes(tokenizer);
  quern_status status = fill_sets(encoder, tokenizer);
  for (uint32_t id = 0; id < tokenizer->tokens.n && status == QUERN_STATUS_OK; id++) {
    struct io_token *token = &tokenizer->tokens.at[id];
    bool whole = false;
    if ((token->flags & IO_TOKEN_MODEL) == 0 || token->n == 0) continue;
    tokenizer->longest = BASE_MAX(tokenizer->longest, token->n);
    status = io_bpe_is_whole(encoder, id, &whole);
    if (whole) token->flags |= IO_TOKEN_WHOLE;
  }
  io_encoder_fini(encoder);
  base_free(&tokenizer->heap, encoder, sizeof *encoder);
  return status;
}

/* ---- a tokenizer's description ------------------------------------------------------------------------ */

size_t quern_tokenizer_vocab(const quern_tokenizer *tokenizer) { return tokenizer != NULL ? tokenizer->tokens.n : 0; }

quern_text quern_tokenizer_token(const quern_tokenizer *tokenizer, uint32_t id) {
  if (tokenizer == NULL || id >= tokenizer->tokens.n) return (quern_text){NULL, 0};
  return (quern_text){(const char *)tokenizer->tokens.at[id].at, tokenizer->tokens.at[id].n};
}

int64_t quern_tokenizer_find(const quern_tokenizer *tokenizer, const void *bytes, size_t n) {
  if (tokenizer == NULL || bytes == NULL) return -1;
  const struct io_vocab *tables[] = {&tokenizer->sets[0][1].vocab, &tokenizer->sets[1][1].vocab, &tokenizer->vocab};
  for (size_t i = 0; i < BASE_COUNT(tables); i++) {
    uint32_t id = io_vocab_find(tokenizer, tables[i], bytes, n);
    if (id != IO_NO_TOKEN) return id;
  }
  return -1;
}

bool quern_tokenizer_is_special(const quern_tokenizer *tokenizer, uint32_t id) {
  return tokenizer != NULL && id < tokenizer->tokens.n && (tokenizer->tokens.at[id].flags & IO_TOKEN_SPECIAL) != 0;
}

int64_t quern_tokenizer_end(const quern_tokenizer *tokenizer) {
  static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"};
  for (size_t i = 0; i < BASE_COUNT(names); i++) {
    int64_t id = quern_tokenizer_find(tokenizer, names[i], strlen(names[i]));
    if (id >= 0 && quern_tokenizer_is_special(tokenizer, (uint32_t)id)) return id;
  }
  return -1;
}
