/* io/bpe_train.c -- byte-level BPE from texts
** in:    texts of any bytes       out: a tokenizer with at most the ids asked for
** Words are counted once. Each pair of neighbors has its count and the words it may be in; a heap gives the most frequent one,
** of equally frequent ones that of the lower ids. Merging it changes the counts of its neighbors only. Counts in the heap may be
** old; they are looked at again when they come up, and only ever fall unless the pair is added anew.
** keeps: a pair's count is how often it is in the words now, each as often as the word is in the texts
** see:   Sennrich, Haddow, Birch, ACL 2016; HuggingFace's BpeTrainer has the same order
** tests: tests/io/test_tokenizer.c
*/
#include <inttypes.h>

#include "io/tokenizer.h"

struct word {
  const unsigned char *text; /* in the texts, or in memory of the trainer */
  uint64_t count;
  size_t first; /* of its symbols */
  uint32_t bytes, n;
};

/* A pair of neighbors. */
struct pair {
  uint32_t left, right;
  uint64_t count;
  uint32_t round;           /* the last in which it became more frequent */
  BASE_VEC(uint32_t) words; /* in which it was met */
};

/* A candidate as it was when it was noted. */
struct item {
  uint64_t count;
  uint32_t left, right;
};

struct trainer {
  quern_tokenizer *tokenizer;
  const quern_tokenizer_training *training;
  struct base_heap *heap;
  struct base_arena arena; /* of words that begin with an added space */
  BASE_VEC(struct word) words;
  BASE_VEC(uint32_t) slots; /* of words by hash: number + 1 */
  BASE_VEC(uint32_t) symbols;
  BASE_VEC(struct pair) pairs;
  BASE_VEC(uint32_t) pair_slots; /* of pairs by hash: number + 1 */
  BASE_VEC(struct item) items;   /* a heap, the best first */
  BASE_VEC(uint32_t) risen;      /* pairs that became more frequent in this round */
  uint32_t round;
};

static void fini(struct trainer *trainer) {
  struct base_heap *heap = trainer->heap;
  for (size_t i = 0; i < trainer->pairs.n; i++) base_vec_fini(heap, &trainer->pairs.at[i].words);
  base_vec_fini(heap, &trainer->words);
  base_vec_fini(heap, &trainer->slots);
  base_vec_fini(heap, &trainer->symbols);
  base_vec_fini(heap, &trainer->pairs);
  base_vec_fini(heap, &trainer->pair_slots);
  base_vec_fini(heap, &trainer->items);
  base_vec_fini(heap, &trainer->risen);
  base_arena_fini(&trainer->arena);
}

/* ---- words --------------------------------------------------------------------------------------------- */

static uint64_t word_hash(const unsigned char *at, size_t n) { return base_hash_bytes(BASE_HASH_SEED, at, n); }

/* Twice as many slots, with the words that there are. */
static bool grow_words(struct trainer *trainer) {
  size_t cap = BASE_MAX(1024, 2 * trainer->slots.n);
  trainer->slots.n = 0;
  if (!base_vec_reserve(trainer->heap, &trainer->slots, cap)) return false;
  memset(trainer->slots.at, 0, cap * sizeof *trainer->slots.at);
  trainer->slots.n = cap;
  for (size_t k = 0; k < trainer->words.n; k++) {
    size_t i = word_hash(trainer->words.at[k].text, trainer->words.at[k].bytes) & (cap - 1);
    while (trainer->slots.at[i] != 0) i = (i + 1) & (cap - 1);
    trainer->slots.at[i] = (uint32_t)k + 1;
  }
  return true;
}

static quern_status count_word(struct trainer *trainer, const unsigned char *at, size_t n) {
  QUERN_CHECK(n < UINT32_MAX && trainer->words.n < UINT32_MAX - 1, OVERFLOW, "a word of %zu bytes, after %zu others", n,
              trainer->words.n);
  if (trainer->words.n >= trainer->slots.n / 2 && !grow_words(trainer)) return QUERN_STATUS_MEMORY;
  size_t mask = trainer->slots.n - 1, i = word_hash(at, n) & mask;
  for (; trainer->slots.at[i] != 0; i = (i + 1) & mask) {
    struct word *word = &trainer->words.at[trainer->slots.at[i] - 1];
    if (word->bytes != n || memcmp(word->text, at, n) != 0) continue;
    word->count++;
    return QUERN_STATUS_OK;
  }
  struct word word = {.text = at, .count = 1, .bytes = (uint32_t)n};
  if (!base_vec_push(trainer->heap, &trainer->words, word)) return QUERN_STATUS_MEMORY;
  trainer->slots.at[i] = (uint32_t)trainer->words.n;
  return QUERN_STATUS_OK;
}

static quern_status count_text(struct trainer *trainer, quern_text text) {
  const unsigned char *at = (const unsigned char *)text.at;
  size_t i = 0;
  if (trainer->training->add_prefix_space && text.n > 0 && at[0] != ' ') {
    /* with the space the first word may end elsewhere: it is looked for in a copy of the text's beginning */
    size_t word = io_split_next(IO_SPLIT_GPT2, at, text.n), n = word + 1 + BASE_MIN(text.n - word, 4);
    unsigned char *copy = base_arena_alloc(&trainer->arena, n);
    if (copy == NULL) return QUERN_STATUS_MEMORY;
    copy[0] = ' ';
    memcpy(copy + 1, at, n - 1);
    size_t first = io_split_next(IO_SPLIT_GPT2, copy, n);
    QUERN_TRY(count_word(trainer, copy, first));
    i = first - 1;
  }
  for (size_t n; i < text.n; i += n) {
    n = io_split_next(IO_SPLIT_GPT2, at + i, text.n - i);
    QUERN_TRY(count_word(trainer, at + i, n));
  }
  return QUERN_STATUS_OK;
}

/* ---- pairs --------------------------------------------------------------------------------------------- */

static uint64_t pair_hash(uint32_t left, uint32_t right) {
  return base_hash_u64(BASE_HASH_SEED, (uint64_t)left << 32 | right);
}

static bool grow_pairs(struct trainer *trainer) {
  size_t cap = BASE_MAX(1024, 2 * trainer->pair_slots.n);
  trainer->pair_slots.n = 0;
  if (!base_vec_reserve(trainer->heap, &trainer->pair_slots, cap)) return false;
  memset(trainer->pair_slots.at, 0, cap * sizeof *trainer->pair_slots.at);
  trainer->pair_slots.n = cap;
  for (size_t k = 0; k < trainer->pairs.n; k++) {
    size_t i = pair_hash(trainer->pairs.at[k].left, trainer->pairs.at[k].right) & (cap - 1);
    while (trainer->pair_slots.at[i] != 0) i = (i + 1) & (cap - 1);
    trainer->pair_slots.at[i] = (uint32_t)k + 1;
  }
  return true;
}

/* The pair of two ids, made if it is not there; NULL when there is no memory. */
static struct pair *get_pair(struct trainer *trainer, uint32_t left, uint32_t right) {
  if (trainer->pairs.n >= trainer->pair_slots.n / 2 && !grow_pairs(trainer)) return NULL;
  size_t mask = trainer->pair_slots.n - 1, i = pair_hash(left, right) & mask;
  for (; trainer->pair_slots.at[i] != 0; i = (i + 1) & mask) {
    struct pair *pair = &trainer->pairs.at[trainer->pair_slots.at[i] - 1];
    if (pair->left == left && pair->right == right) return pair;
  }
  struct pair pair = {.left = left, .right = right};
  if (!base_vec_push(trainer->heap, &trainer->pairs, pair)) return NULL;
  trainer->pair_slots.at[i] = (uint32_t)trainer->pairs.n;
  return &trainer->pairs.at[trainer->pairs.n - 1];
}

/* ---- the heap ------------------------------------------------------------------------------------------ */

static bool is_better(const struct item *a, const struct item *b) {
  if (a->count != b->count) return a->count > b->count;
  return a->left != b->left ? a->left < b->left : a->right < b->right;
}

static bool add_item(struct trainer *trainer, struct item item) {
  if (!base_vec_reserve(trainer->heap, &trainer->items, 1)) return false;
  struct item *at = trainer->items.at;
  size_t i = trainer->items.n++;
  for (; i > 0 && is_better(&item, &at[(i - 1) / 2]); i = (i - 1) / 2) at[i] = at[(i - 1) / 2];
  at[i] = item;
  return true;
}

static struct item take_item(struct trainer *trainer) {
  struct item *at = trainer->items.at, best = at[0], item = at[--trainer->items.n];
  size_t n = trainer->items.n, i = 0;
  for (size_t child; (child = 2 * i + 1) < n; i = child) {
    if (child + 1 < n && is_better(&at[child + 1], &at[child])) child++;
    if (!is_better(&at[child], &item)) break;
    at[i] = at[child];
  }
  at[i] = item;
  return best;
}

/* The count of a pair changes by that of a word. */
static bool change_pair(struct trainer *trainer, uint32_t left, uint32_t right, uint32_t word, bool more) {
  struct pair *pair = get_pair(trainer, left, right);
  uint64_t count = trainer->words.at[word].count;
  if (pair == NULL) return false;
  if (!more) {
    pair->count -= BASE_MIN(pair->count, count);
    return true;
  }
  pair->count += count;
  if (pair->round != trainer->round) {
    pair->round = trainer->round;
    if (!base_vec_push(trainer->heap, &trainer->risen, (uint32_t)(pair - trainer->pairs.at))) return false;
  }
  if (pair->words.n > 0 && pair->words.at[pair->words.n - 1] == word) return true;
  return base_vec_push(trainer->heap, &pair->words, word);
}

/* Puts the pairs of this round that became more frequent into the heap, and begins the next. */
static bool note_risen(struct trainer *trainer) {
  for (size_t i = 0; i < trainer->risen.n; i++) {
    const struct pair *pair = &trainer->pairs.at[trainer->risen.at[i]];
    if (pair->count > 0 && !add_item(trainer, (struct item){pair->count, pair->left, pair->right})) return false;
  }
  trainer->risen.n = 0;
  trainer->round++;
  return true;
}

/* ---- training ------------------------------------------------------------------------------------------ */

/* The symbols of all words, and their pairs. */
static quern_status begin_pairs(struct trainer *trainer) {
  const quern_tokenizer *tokenizer = trainer->tokenizer;
  uint32_t ids[256];
  for (unsigned i = 0; i < 256; i++) {
    unsigned char byte = (unsigned char)i;
    ids[i] = io_vocab_find(tokenizer, &tokenizer->vocab, &byte, 1);
  }
  for (size_t k = 0; k < trainer->words.n; k++) {
    struct word *word = &trainer->words.at[k];
    word->first = trainer->symbols.n;
    word->n = word->bytes;
    if (!base_vec_reserve(trainer->heap, &trainer->symbols, word->n)) return QUERN_STATUS_MEMORY;
    uint32_t *at = trainer->symbols.at + word->first;
    for (size_t i = 0; i < word->n; i++) at[i] = ids[word->text[i]];
    trainer->symbols.n += word->n;
    for (size_t i = 0; i + 1 < word->n; i++) {
      if (!change_pair(trainer, at[i], at[i + 1], (uint32_t)k, true)) return QUERN_STATUS_MEMORY;
    }
  }
  return note_risen(trainer) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

/* Merges a pair everywhere in a word, left to right. */
static bool merge_word(struct trainer *trainer, uint32_t number, struct io_merge merge) {
  struct word *word = &trainer->words.at[number];
  uint32_t *at = trainer->symbols.at + word->first, n = 0;
  for (uint32_t i = 0; i < word->n; i++) {
    if (i + 1 == word->n || at[i] != merge.left || at[i + 1] != merge.right) {
      at[n++] = at[i];
      continue;
    }
    if (n > 0 && (!change_pair(trainer, at[n - 1], merge.left, number, false) ||
                  !change_pair(trainer, at[n - 1], merge.made, number, true)))
      return false;
    if (i + 2 < word->n && (!change_pair(trainer, merge.right, at[i + 2], number, false) ||
                            !change_pair(trainer, merge.made, at[i + 2], number, true)))
      return false;
    at[n++] = merge.made;
    i++;
  }
  word->n = n;
  return true;
}

/* The token of a merge: a new one, unless its bytes are one already. */
static quern_status make_token(struct trainer *trainer, struct item item, uint32_t *id) {
  quern_tokenizer *tokenizer = trainer->tokenizer;
  struct io_token left = tokenizer->tokens.at[item.left], right = tokenizer->tokens.at[item.right];
  size_t n = (size_t)left.n + right.n;
  unsigned char *bytes = base_alloc(trainer->heap, n);
  if (bytes == NULL) return QUERN_STATUS_MEMORY;
  memcpy(bytes, left.at, left.n);
  memcpy(bytes + left.n, right.at, right.n);
  quern_status status = QUERN_STATUS_OK;
  *id = io_vocab_find(tokenizer, &tokenizer->vocab, bytes, n);
  if (*id == IO_NO_TOKEN) {
    *id = (uint32_t)tokenizer->tokens.n;
    status = io_tokenizer_add_bytes(tokenizer, *id, bytes, n, IO_TOKEN_LISTED | IO_TOKEN_MODEL);
  }
  base_free(trainer->heap, bytes, n);
  return status;
}

/* Merges a pair in all its words. */
static quern_status apply(struct trainer *trainer, struct io_merge merge) {
  struct pair *pair = get_pair(trainer, merge.left, merge.right);
  if (pair == NULL) return QUERN_STATUS_MEMORY;
  size_t number = (size_t)(pair - trainer->pairs.at);
  for (size_t i = 0; i < trainer->pairs.at[number].words.n; i++) { /* get_pair may move the pairs */
    if (!merge_word(trainer, trainer->pairs.at[number].words.at[i], merge)) return QUERN_STATUS_MEMORY;
  }
  trainer->pairs.at[number].count = 0;
  base_vec_fini(trainer->heap, &trainer->pairs.at[number].words);
  return note_risen(trainer) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static quern_status run(struct trainer *trainer) {
  quern_tokenizer *tokenizer = trainer->tokenizer;
  uint64_t least = trainer->training->min_count;
  while (tokenizer->tokens.n < trainer->training->vocab && trainer->items.n > 0) {
    struct item item = take_item(trainer);
    const struct pair *pair = get_pair(trainer, item.left, item.right);
    if (pair == NULL) return QUERN_STATUS_MEMORY;
    if (item.count != pair->count) { /* it has become rarer since */
      item.count = pair->count;
      if (item.count > 0 && !add_item(trainer, item)) return QUERN_STATUS_MEMORY;
      continue;
    }
    if (item.count < least) break;
    struct io_merge merge = {item.left, item.right, IO_NO_TOKEN};
    QUERN_TRY(make_token(trainer, item, &merge.made));
    QUERN_TRY(io_tokenizer_add_pair(tokenizer, merge.left, merge.right, merge.made));
    QUERN_TRY(apply(trainer, merge));
  }
  return QUERN_STATUS_OK;
}

/* Special tokens, then bytes in the order of the alphabet's characters. */
static quern_status begin_vocab(quern_tokenizer *tokenizer, const quern_tokenizer_training *training) {
  uint32_t id = 0;
  io_tokenizer_set_gpt2(tokenizer, training->add_prefix_space, true);
  for (size_t i = 0; i < training->n_special; i++, id++)
    QUERN_TRY(io_tokenizer_add_special(tokenizer, id, training->special[i]));
  for (uint32_t c = 0; c < 512; c++) {
    int byte = io_alphabet_byte(c);
    if (byte < 0) continue;
    unsigned char text = (unsigned char)byte;
    QUERN_TRY(io_tokenizer_add_bytes(tokenizer, id++, &text, 1, IO_TOKEN_LISTED | IO_TOKEN_MODEL));
  }
  return QUERN_STATUS_OK;
}

static quern_status train(quern_tokenizer *tokenizer, size_t n, const quern_text *texts,
                          const quern_tokenizer_training *training) {
  struct trainer trainer = {.tokenizer = tokenizer, .training = training, .heap = &tokenizer->heap, .round = 1};
  base_arena_init(&trainer.arena, trainer.heap);
  quern_status status = begin_vocab(tokenizer, training);
  for (size_t i = 0; i < n && status == QUERN_STATUS_OK; i++) status = count_text(&trainer, texts[i]);
  if (status == QUERN_STATUS_OK) status = begin_pairs(&trainer);
  if (status == QUERN_STATUS_OK) status = run(&trainer);
  fini(&trainer);
  return status == QUERN_STATUS_OK ? io_tokenizer_finish(tokenizer) : status;
}

quern_status quern_tokenizer_train(quern_tokenizer **tokenizer, size_t n, const quern_text *texts,
                                   const quern_tokenizer_training *training, const quern_allocator *allocator) {
  QUERN_CHECK(tokenizer != NULL, INVALID, "tokenizer_train: the place for the tokenizer is null");
  *tokenizer = NULL;
  QUERN_CHECK(training != NULL, INVALID, "tokenizer_train: the options are null");
  quern_tokenizer_training taken;
  QUERN_TRY(base_take(quern_tokenizer_training, &taken, training, "tokenizer_train"));
  if (taken.min_count == 0) taken.min_count = 2;
  training = &taken;
  QUERN_CHECK(texts != NULL || n == 0, INVALID, "tokenizer_train: the %zu texts are null", n);
  for (size_t i = 0; i < n; i++)
    QUERN_CHECK(texts[i].at != NULL || texts[i].n == 0, INVALID, "tokenizer_train: text %zu of %zu bytes is null", i,
                texts[i].n);
  QUERN_CHECK(training->special != NULL || training->n_special == 0, INVALID,
              "tokenizer_train: the %zu special tokens are null", training->n_special);
  QUERN_CHECK(training->vocab >= 256 && training->vocab - 256 >= training->n_special && training->vocab <= 1 << 22,
              INVALID,
              "tokenizer_train: %zu ids are asked for; there are 256 bytes and %zu special tokens, and at most %d",
              training->vocab, training->n_special, 1 << 22);
  quern_tokenizer *made;
  QUERN_TRY(io_tokenizer_new(&made, allocator));
  quern_status status = train(made, n, texts, training);
  if (status == QUERN_STATUS_OK) {
    *tokenizer = made;
    return QUERN_STATUS_OK;
  }
  quern_tokenizer_free(made);
  return base_error(status, "tokenizer_train: %s", quern_last_error());
}
