/* io/tokenizer.h -- what the files of the tokenizer share
** A text is cut at added tokens (encode.c), normalized, split into words (split.c); the merges make the ids of each word
** (bpe.c). tokenizer.c has the vocabulary, tokenizer_json.c and tokenizer_write.c its file, bpe_train.c makes one from texts.
*/
#ifndef IO_TOKENIZER_H
#define IO_TOKENIZER_H
#include "base/base.h"
#include "quern/tokenizer.h"

/* ---- characters (unicode.c) ---------------------------------------------------------------------------- */

enum io_kind { IO_KIND_OTHER, IO_KIND_LETTER, IO_KIND_NUMBER, IO_KIND_SPACE };
#define IO_UTF8_BAD UINT32_MAX

/* The same with letters by case (BOTH: they have none) and marks apart. */
enum io_case { IO_CASE_OTHER, IO_CASE_UPPER, IO_CASE_LOWER, IO_CASE_BOTH, IO_CASE_MARK, IO_CASE_NUMBER, IO_CASE_SPACE };

enum io_kind io_unicode_kind(uint32_t c);
enum io_case io_unicode_case(uint32_t c);
/* The character at the beginning of n > 0 bytes, and how many it takes; a byte that begins none is IO_UTF8_BAD. */
size_t io_utf8_get(const unsigned char *at, size_t n, uint32_t *c);
size_t io_utf8_put(uint32_t c, unsigned char out[4]);

/* ---- words (split.c) ----------------------------------------------------------------------------------- */

enum io_split {
  IO_SPLIT_WHOLE,
  IO_SPLIT_GPT2,
  IO_SPLIT_GPT4,
  IO_SPLIT_QWEN2,
  IO_SPLIT_GPT4O,
  IO_SPLIT_DIGITS,
  IO_SPLIT_DIGIT,
  IO_SPLIT_META
};

/* The bytes of the first word of n > 0. */
size_t io_split_next(enum io_split how, const unsigned char *at, size_t n);
/* How a regular expression splits; false: it is none of those known. */
bool io_split_find(const char *regex, enum io_split *how);
/* The expression of that number, or NULL behind the last. */
const char *io_split_regex(size_t i);

/* The mark of SentencePiece that stands for a space: U+2581. */
#define IO_META "\xe2\x96\x81"

/* ---- the tokenizer ------------------------------------------------------------------------------------- */

enum { IO_STEPS = 8 };
#define IO_NO_TOKEN UINT32_MAX
#define IO_NO_RANK UINT32_MAX

enum io_token_flags {
  IO_TOKEN_MODEL = 1,   /* the merges may make it */
  IO_TOKEN_WHOLE = 2,   /* they do, of its own bytes */
  IO_TOKEN_SPECIAL = 4, /* and added */
  IO_TOKEN_ADDED = 8,   /* found in texts before they are split */
  IO_TOKEN_BYTE = 16,   /* "<0x41>" of a model with byte fallback */
  IO_TOKEN_LISTED = 32  /* in the vocabulary of the file */
};
struct io_token {
  const unsigned char *at; /* NULL: the id is not used */
  uint32_t n;
  uint8_t flags;
};

/* Bytes to ids: open addressing over the tokens. */
struct io_vocab {
  uint32_t *slots; /* id + 1; 0: empty */
  size_t n, cap;   /* cap is 0 or a power of two */
};

/* Merging left with right gives made; the rank is the place in the list. */
struct io_merge {
  uint32_t left, right, made;
};
/* Pairs to ranks. */
struct io_pairs {
  struct io_pair {
    uint64_t pair; /* left << 32 | right */
    uint32_t rank; /* IO_NO_RANK: empty */
  } * slots;
  size_t n, cap;
};

/* A token that is looked for in the text itself. */
struct io_added {
  uint32_t id;
  bool lstrip, rstrip; /* takes the white space before or after it */
  bool normalized;     /* looked for after normalizing */
};
/* Those that are looked for at the same time. */
struct io_added_set {
  struct io_vocab vocab;
  bool first[256];            /* bytes they begin with */
  BASE_VEC(uint32_t) lengths; /* of them, the longest first */
};

enum io_step_kind {
  IO_STEP_SPLIT,      /* by a regular expression */
  IO_STEP_DIGITS,     /* numbers alone */
  IO_STEP_BYTE_LEVEL, /* bytes for characters, then perhaps words as GPT-2's */
  IO_STEP_META,       /* IO_META for spaces, then perhaps words that begin with it */
  IO_STEP_PREPEND,    /* a text before a text that is not empty */
  IO_STEP_REPLACE,    /* a text for another */
  IO_STEP_FALLBACK,   /* "<0x41>" for its byte */
  IO_STEP_FUSE,       /* no effect on bytes */
  IO_STEP_STRIP       /* at most that many of a character at the front */
};
enum io_scheme { IO_SCHEME_NEVER, IO_SCHEME_FIRST, IO_SCHEME_ALWAYS };

/* A part of the normalizer, the pre-tokenizer or the decoder. */
struct io_step {
  enum io_step_kind kind;
  enum io_split split;
  bool prefix_space, trim, use_regex; /* of byte level */
  enum io_scheme scheme;              /* of meta: when it stands before the text */
  const char *regex;                  /* of split, as written */
  quern_text from, to;                /* of replace; to of prepend; from of strip */
  size_t most;                        /* of strip */
};
struct io_steps {
  struct io_step at[IO_STEPS];
  size_t n;
};

struct quern_tokenizer {
  struct base_heap heap;
  struct base_arena arena; /* of texts */
  BASE_VEC(struct io_token) tokens;
  struct io_vocab vocab; /* of the model */
  size_t longest;        /* bytes of a token of the model */
  BASE_VEC(struct io_merge) merges;
  struct io_pairs pairs;
  uint32_t bytes[256]; /* byte level: the id of each; else of byte fallback */
  BASE_VEC(struct io_added) added;
  struct io_added_set sets[2][2];   /* normalized or not; without and with special tokens */
  BASE_VEC(uint32_t) before, after; /* the frame */
  struct io_steps normal, words, decode;
  bool byte_level, byte_fallback, fuse_unk, ignore_merges;
  uint32_t unk; /* IO_NO_TOKEN: none */
};

/* A tokenizer without tokens. */
quern_status io_tokenizer_new(quern_tokenizer **tokenizer, const quern_allocator *allocator) QUERN_NODISCARD;
/* Gives an id of the vocabulary its text; of a byte-level model in the alphabet of 256 characters. */
quern_status io_tokenizer_add(quern_tokenizer *tokenizer, uint64_t id, const char *text, size_t n) QUERN_NODISCARD;
/* Gives an id its bytes. flags: io_token_flags. */
quern_status io_tokenizer_add_bytes(quern_tokenizer *tokenizer, uint64_t id, const void *bytes, size_t n,
                                    unsigned flags) QUERN_NODISCARD;
/* Adds the next merge, of two tokens as texts, or as ids. */
quern_status io_tokenizer_add_merge(quern_tokenizer *tokenizer, const char *left, size_t n_left, const char *right,
                                    size_t n_right) QUERN_NODISCARD;
quern_status io_tokenizer_add_pair(quern_tokenizer *tokenizer, uint32_t left, uint32_t right,
                                   uint32_t made) QUERN_NODISCARD;
/* A token that is looked for in texts, by the id it has or is to have; its text in the vocabulary must be the same. */
quern_status io_tokenizer_add_added(quern_tokenizer *tokenizer, const struct io_added *added, const char *text,
                                    size_t n, bool special) QUERN_NODISCARD;
/* A special token that is in the vocabulary too. */
quern_status io_tokenizer_add_special(quern_tokenizer *tokenizer, uint32_t id, const char *text) QUERN_NODISCARD;
/* Steps of GPT-2: byte level, with its words or without. */
void io_tokenizer_set_gpt2(quern_tokenizer *tokenizer, bool prefix_space, bool use_regex);
/* After the last token and merge: what encoding needs. */
quern_status io_tokenizer_finish(quern_tokenizer *tokenizer) QUERN_NODISCARD;
/* The id of bytes in a table; IO_NO_TOKEN: none. */
uint32_t io_vocab_find(const quern_tokenizer *tokenizer, const struct io_vocab *vocab, const unsigned char *at,
                       size_t n);

/* A byte as the character that stands for it in a byte-level vocabulary, and back (-1: none). */
uint32_t io_alphabet_char(unsigned char byte);
int io_alphabet_byte(uint32_t c);

/* ---- encoding (encode.c, bpe.c) ------------------------------------------------------------------------ */

enum { IO_OUT = 4096, IO_CACHE_TEXT = 30, IO_CACHE_IDS = 8, IO_CACHE = 4096 };

/* A word of several tokens that was met. */
struct io_cached {
  uint8_t n, n_ids; /* n 0: empty */
  unsigned char text[IO_CACHE_TEXT];
  uint32_t ids[IO_CACHE_IDS];
};

/* One encoding under way. */
struct io_encoder {
  const quern_tokenizer *tokenizer;
  struct base_heap *heap;
  quern_token_sink *sink;
  void *self;
  size_t n_out;
  uint32_t out[IO_OUT];
  struct io_cached *cache;                       /* NULL: none */
  BASE_VEC(uint32_t) ids, next, prev, ranks;     /* symbols of a long word */
  BASE_VEC(uint64_t) heap_items;                 /* rank << 32 | symbol */
  BASE_VEC(unsigned char) scratch[2 + IO_STEPS]; /* normalized text (two, in turn), and that of each step */
};
quern_status io_encoder_put(struct io_encoder *encoder, uint32_t id) QUERN_NODISCARD;
/* What a piece of text is normalized to: at, n, or memory of the encoder until the next call. */
quern_status io_encoder_normalize(struct io_encoder *encoder, const unsigned char **at, size_t *n) QUERN_NODISCARD;
/* The ids of a word. */
quern_status io_bpe_word(struct io_encoder *encoder, const unsigned char *at, size_t n) QUERN_NODISCARD;
/* Whether the merges make one id, that one, of its own bytes. */
quern_status io_bpe_is_whole(struct io_encoder *encoder, uint32_t id, bool *whole) QUERN_NODISCARD;
void io_encoder_fini(struct io_encoder *encoder); /* not the memory of the struct itself */

/* ---- files (tokenizer_json.c, bpe_train.c) ------------------------------------------------------------- */

/* Fills a tokenizer from the text of a tokenizer.json. what begins the messages. */
quern_status io_tokenizer_from_json(quern_tokenizer *tokenizer, const char *what, const char *text,
                                    size_t n) QUERN_NODISCARD;
/* The same from GPT-2's two files. */
quern_status io_tokenizer_from_gpt2(quern_tokenizer *tokenizer, const char *vocab_path,
                                    const char *merges_path) QUERN_NODISCARD;

#endif
