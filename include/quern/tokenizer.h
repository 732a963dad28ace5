/* quern/tokenizer.h -- texts as token ids, and back
** A tokenizer is immutable once made: any number of threads may use it at the same time. Texts are bytes; they need not be
** valid UTF-8. Supported: bytes as ids, byte-level BPE (GPT-2, GPT-4, Llama 3, ...) and character BPE with byte fallback
** (SentencePiece's), from HuggingFace's tokenizer.json or GPT-2's two files; docs/data.md lists the parts.
*/
#ifndef QUERN_TOKENIZER_H
#define QUERN_TOKENIZER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quern/context.h"
#include "quern/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct quern_tokenizer quern_tokenizer;

/* A text that need not end with 0. */
typedef struct quern_text {
  const char *at;
  size_t n; /* bytes */
} quern_text;

/* ---- making -------------------------------------------------------------------------------------------- */

/* Reads a tokenizer.json; or a folder with tokenizer.json, with vocab.json and merges.txt, or with encoder.json and
** vocab.bpe; or, when path is "bytes", quern_tokenizer_bytes with "<|endoftext|>" as 256. allocator may be NULL, here and
** below: the C library's. */
QUERN_API quern_status quern_tokenizer_read(quern_tokenizer **tokenizer, const char *path,
                                            const quern_allocator *allocator) QUERN_NODISCARD;
/* A tokenizer.json in memory. */
QUERN_API quern_status quern_tokenizer_parse(quern_tokenizer **tokenizer, const void *json, size_t n,
                                             const quern_allocator *allocator) QUERN_NODISCARD;
/* GPT-2's vocabulary (JSON) and merges (a line each); "<|endoftext|>", where the vocabulary has it, is special. */
QUERN_API quern_status quern_tokenizer_read_gpt2(quern_tokenizer **tokenizer, const char *vocab_path,
                                                 const char *merges_path,
                                                 const quern_allocator *allocator) QUERN_NODISCARD;
/* Each byte is its own id; special tokens follow from 256 on. */
QUERN_API quern_status quern_tokenizer_bytes(quern_tokenizer **tokenizer, size_t n_special, const char *const *special,
                                             const quern_allocator *allocator) QUERN_NODISCARD;

typedef struct quern_tokenizer_training {
  size_t size;
  size_t vocab;       /* ids in the end, special tokens and the 256 bytes included */
  uint64_t min_count; /* pairs that are there fewer times are not merged; 0: 2 */
  size_t n_special;   /* special tokens have the first ids */
  const char *const *special;
  bool add_prefix_space; /* a text begins with a space, if it has none */
} quern_tokenizer_training;

/* Trains byte-level BPE with GPT-2's splitting into words. The most frequent pair is merged first; of equally frequent ones
** that of the lower ids. Fewer ids come out when there is nothing left to merge. */
QUERN_API quern_status quern_tokenizer_train(quern_tokenizer **tokenizer, size_t n, const quern_text *texts,
                                             const quern_tokenizer_training *training,
                                             const quern_allocator *allocator) QUERN_NODISCARD;

/* Writes a tokenizer.json that gives the same ids here and in HuggingFace's library; the file is whole or not there. */
QUERN_API quern_status quern_tokenizer_write(const quern_tokenizer *tokenizer, const char *path) QUERN_NODISCARD;

/* NULL is fine. */
QUERN_API void quern_tokenizer_free(quern_tokenizer *tokenizer);

/* ---- use ----------------------------------------------------------------------------------------------- */

typedef enum quern_encode {
  QUERN_ENCODE_PLAIN = 0,   /* the text of a special token is text like any other */
  QUERN_ENCODE_SPECIAL = 1, /* it is the token */
  QUERN_ENCODE_FRAME = 2    /* the tokens that the file wants before and after a text are added, such as <s> */
} quern_encode;

typedef enum quern_decode {
  QUERN_DECODE_ALL = 0,
  QUERN_DECODE_SKIP_SPECIAL = 1, /* special tokens give no text */
  QUERN_DECODE_CONTINUE = 2      /* the ids follow others: a blank that the tokenizer put before the text is kept */
} quern_decode;

/* Gets some ids in order; a status other than OK ends the encoding with it. */
typedef quern_status quern_token_sink(void *self, size_t n, const uint32_t *ids);

/* The ids of a text, in a caller's array with room for that many; *n_ids is how many there are. When they are more than
** there is room for: OVERFLOW, and the first of them are there. A text of n bytes gives at most n ids, plus what the file's
** normalizer and frame add. flags: quern_encode. */
QUERN_API quern_status quern_tokenizer_encode(const quern_tokenizer *tokenizer, const void *text, size_t n,
                                              unsigned flags, size_t room, uint32_t *ids,
                                              size_t *n_ids) QUERN_NODISCARD;
/* The same to a function, some thousand at a time: for texts of any length. */
QUERN_API quern_status quern_tokenizer_encode_to(const quern_tokenizer *tokenizer, const void *text, size_t n,
                                                 unsigned flags, quern_token_sink *sink, void *self) QUERN_NODISCARD;

/* The bytes of ids, in a caller's buffer with that much room; *n_bytes is how many there are, OVERFLOW as above. No 0 is
** added, and the end may be in the middle of a character. flags: quern_decode. */
QUERN_API quern_status quern_tokenizer_decode(const quern_tokenizer *tokenizer, size_t n, const uint32_t *ids,
                                              unsigned flags, size_t room, char *bytes,
                                              size_t *n_bytes) QUERN_NODISCARD;

/* How many ids there are: one more than the largest. */
QUERN_API size_t quern_tokenizer_vocab(const quern_tokenizer *tokenizer);
/* The bytes of an id as they stand in the vocabulary (of byte-level ones: that they stand for); at is NULL for an id that is
** not used. */
QUERN_API quern_text quern_tokenizer_token(const quern_tokenizer *tokenizer, uint32_t id);
/* The id of those bytes, special or not; -1: there is none. */
QUERN_API int64_t quern_tokenizer_find(const quern_tokenizer *tokenizer, const void *bytes, size_t n);
QUERN_API bool quern_tokenizer_is_special(const quern_tokenizer *tokenizer, uint32_t id);
/* The token that ends a document: "<|endoftext|>", "<|end_of_text|>", "</s>" or "<eos>", the first of them that is there and
** special; -1: none. */
QUERN_API int64_t quern_tokenizer_end(const quern_tokenizer *tokenizer);

#ifdef __cplusplus
}
#endif
#endif
