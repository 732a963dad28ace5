/* io/tokenizer_write.c -- a tokenizer as HuggingFace's tokenizer.json
** keeps: what tokenizer_json.c reads back gives the same ids
** tests: tests/io/test_tokenizer.c
*/
#include <inttypes.h>
#include <stdio.h>

#include "io/io.h"
#include "io/json.h"
#include "io/tokenizer.h"

struct writer {
  const quern_tokenizer *tokenizer;
  struct base_str text, token; /* the file; a token as it stands there */
};

static quern_status add_string(struct writer *writer, const char *text) {
  return io_json_add_string(&writer->text, text);
}

static void add(struct writer *writer, const char *text) { base_str_add(&writer->text, text); }

/* A token's text in writer->token: of a byte-level model in its alphabet, unless it is none of the model's. */
static quern_status spell(struct writer *writer, uint32_t id) {
  const struct io_token *token = &writer->tokenizer->tokens.at[id];
  bool alphabet = writer->tokenizer->byte_level && (token->flags & IO_TOKEN_MODEL) != 0;
  writer->token.n = 0;
  base_str_add(&writer->token, "");
  for (size_t i = 0; i < token->n; i++) {
    unsigned char c[4] = {token->at[i]};
    size_t n = alphabet ? io_utf8_put(io_alphabet_char(token->at[i]), c) : 1;
    base_str_add_n(&writer->token, (const char *)c, n);
  }
  return base_str_status(&writer->token);
}

static const char *flag(bool value) { return value ? "true" : "false"; }

/* ---- parts --------------------------------------------------------------------------------------------- */

static quern_status add_byte_level(struct writer *writer, const struct io_step *step) {
  base_str_printf(&writer->text,
                  "{\"type\": \"ByteLevel\", \"add_prefix_space\": %s, \"trim_offsets\": %s, \"use_regex\": %s}",
                  flag(step->prefix_space), flag(step->trim), flag(step->use_regex));
  return QUERN_STATUS_OK;
}

static quern_status add_split(struct writer *writer, const struct io_step *step) {
  add(writer, "{\"type\": \"Split\", \"pattern\": {\"Regex\": ");
  QUERN_TRY(add_string(writer, step->regex));
  add(writer, "}, \"behavior\": \"Isolated\", \"invert\": false}");
  return QUERN_STATUS_OK;
}

static quern_status add_digits(struct writer *writer, const struct io_step *step) {
  base_str_printf(&writer->text, "{\"type\": \"Digits\", \"individual_digits\": %s}",
                  flag(step->split == IO_SPLIT_DIGIT));
  return QUERN_STATUS_OK;
}

static quern_status add_meta(struct writer *writer, const struct io_step *step) {
  static const char *const schemes[] = {"never", "first", "always"};
  base_str_printf(&writer->text,
                  "{\"type\": \"Metaspace\", \"replacement\": \"%s\", \"prepend_scheme\": \"%s\", \"split\": %s}",
                  IO_META, schemes[step->scheme], flag(step->split == IO_SPLIT_META));
  return QUERN_STATUS_OK;
}

static quern_status add_prepend(struct writer *writer, const struct io_step *step) {
  add(writer, "{\"type\": \"Prepend\", \"prepend\": ");
  QUERN_TRY(add_string(writer, step->to.at));
  add(writer, "}");
  return QUERN_STATUS_OK;
}

static quern_status add_replace(struct writer *writer, const struct io_step *step) {
  add(writer, "{\"type\": \"Replace\", \"pattern\": {\"String\": ");
  QUERN_TRY(add_string(writer, step->from.at));
  add(writer, "}, \"content\": ");
  QUERN_TRY(add_string(writer, step->to.at));
  add(writer, "}");
  return QUERN_STATUS_OK;
}

static quern_status add_fallback(struct writer *writer, const struct io_step *step) {
  (void)step;
  add(writer, "{\"type\": \"ByteFallback\"}");
  return QUERN_STATUS_OK;
}

static quern_status add_fuse(struct writer *writer, const struct io_step *step) {
  (void)step;
  add(writer, "{\"type\": \"Fuse\"}");
  return QUERN_STATUS_OK;
}

static quern_status add_strip(struct writer *writer, const struct io_step *step) {
  add(writer, "{\"type\": \"Strip\", \"content\": ");
  QUERN_TRY(add_string(writer, step->from.at));
  base_str_printf(&writer->text, ", \"start\": %zu, \"stop\": 0}", step->most);
  return QUERN_STATUS_OK;
}

static quern_status add_steps(struct writer *writer, const char *section, const char *list,
                              const struct io_steps *steps) {
  static quern_status (*const add_step[])(struct writer *, const struct io_step *) = {
      [IO_STEP_SPLIT] = add_split, [IO_STEP_DIGITS] = add_digits,     [IO_STEP_BYTE_LEVEL] = add_byte_level,
      [IO_STEP_META] = add_meta,   [IO_STEP_PREPEND] = add_prepend,   [IO_STEP_REPLACE] = add_replace,
      [IO_STEP_FUSE] = add_fuse,   [IO_STEP_FALLBACK] = add_fallback, [IO_STEP_STRIP] = add_strip};
  base_str_printf(&writer->text, "  \"%s\": ", section);
  if (steps->n == 0) add(writer, "null");
  if (steps->n > 1) base_str_printf(&writer->text, "{\"type\": \"Sequence\", \"%s\": [", list);
  for (size_t i = 0; i < steps->n; i++) {
    if (i > 0) add(writer, ", ");
    QUERN_TRY(add_step[steps->at[i].kind](writer, &steps->at[i]));
  }
  add(writer, steps->n > 1 ? "]},\n" : ",\n");
  return QUERN_STATUS_OK;
}

/* ---- the frame ----------------------------------------------------------------------------------------- */

static quern_status add_frame(struct writer *writer) {
  const quern_tokenizer *tokenizer = writer->tokenizer;
  size_t n = tokenizer->before.n + tokenizer->after.n;
  add(writer, "  \"post_processor\": ");
  if (n == 0) {
    add(writer, "null,\n");
    return QUERN_STATUS_OK;
  }
  add(writer, "{\"type\": \"TemplateProcessing\", \"single\": [");
  for (size_t i = 0; i <= n; i++) {
    size_t text = tokenizer->before.n;
    if (i > 0) add(writer, ", ");
    if (i == text) {
      add(writer, "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}");
      continue;
    }
    QUERN_TRY(spell(writer, i < text ? tokenizer->before.at[i] : tokenizer->after.at[i - text - 1]));
    add(writer, "{\"SpecialToken\": {\"id\": ");
    QUERN_TRY(add_string(writer, writer->token.at));
    add(writer, ", \"type_id\": 0}}");
  }
  add(writer,
      "], \"pair\": [{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"B\", \"type_id\": 1}}],"
      " \"special_tokens\": {");
  bool some = false;
  for (size_t i = 0; i < n; i++) {
    uint32_t id = i < tokenizer->before.n ? tokenizer->before.at[i] : tokenizer->after.at[i - tokenizer->before.n];
    bool again = false;
    for (size_t k = 0; k < i; k++)
      again = again ||
              (k < tokenizer->before.n ? tokenizer->before.at[k] : tokenizer->after.at[k - tokenizer->before.n]) == id;
    if (again) continue;
    if (some) add(writer, ", ");
    some = true;
    QUERN_TRY(spell(writer, id));
    QUERN_TRY(add_string(writer, writer->token.at));
    add(writer, ": {\"id\": ");
    QUERN_TRY(add_string(writer, writer->token.at));
    base_str_printf(&writer->text, ", \"ids\": [%" PRIu32 "], \"tokens\": [", id);
    QUERN_TRY(add_string(writer, writer->token.at));
    add(writer, "]}");
  }
  add(writer, "}},\n");
  return QUERN_STATUS_OK;
}

/* ---- the model ----------------------------------------------------------------------------------------- */

static quern_status add_added(struct writer *writer) {
  const quern_tokenizer *tokenizer = writer->tokenizer;
  add(writer, "  \"added_tokens\": [");
  for (size_t i = 0; i < tokenizer->added.n; i++) {
    const struct io_added *added = &tokenizer->added.at[i];
    const struct io_token *token = &tokenizer->tokens.at[added->id];
    base_str_printf(&writer->text, "%s\n    {\"id\": %" PRIu32 ", \"content\": ", i > 0 ? "," : "", added->id);
    QUERN_TRY(add_string(writer, (const char *)token->at));
    base_str_printf(&writer->text,
                    ", \"single_word\": false, \"lstrip\": %s, \"rstrip\": %s, \"normalized\": %s, \"special\": %s}",
                    flag(added->lstrip), flag(added->rstrip), flag(added->normalized),
                    flag((token->flags & IO_TOKEN_SPECIAL) != 0));
  }
  add(writer, "],\n");
  return QUERN_STATUS_OK;
}

static quern_status add_vocab(struct writer *writer) {
  const quern_tokenizer *tokenizer = writer->tokenizer;
  bool some = false;
  add(writer, "    \"vocab\": {");
  for (uint32_t id = 0; id < tokenizer->tokens.n; id++) {
    if ((tokenizer->tokens.at[id].flags & IO_TOKEN_LISTED) == 0) continue;
    QUERN_TRY(spell(writer, id));
    add(writer, some ? ",\n      " : "\n      ");
    some = true;
    QUERN_TRY(add_string(writer, writer->token.at));
    base_str_printf(&writer->text, ": %" PRIu32, id);
  }
  add(writer, "},\n");
  return QUERN_STATUS_OK;
}

/* Pairs are lists: a token may have a space in it. */
static quern_status add_merges(struct writer *writer) {
  const quern_tokenizer *tokenizer = writer->tokenizer;
  add(writer, "    \"merges\": [");
  for (size_t i = 0; i < tokenizer->merges.n; i++) {
    const uint32_t pair[] = {tokenizer->merges.at[i].left, tokenizer->merges.at[i].right};
    add(writer, i > 0 ? ",\n      [" : "\n      [");
    for (size_t k = 0; k < 2; k++) {
      QUERN_TRY(spell(writer, pair[k]));
      if (k > 0) add(writer, ", ");
      QUERN_TRY(add_string(writer, writer->token.at));
    }
    add(writer, "]");
  }
  add(writer, "]\n");
  return QUERN_STATUS_OK;
}

static quern_status add_model(struct writer *writer) {
  const quern_tokenizer *tokenizer = writer->tokenizer;
  add(writer, "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": ");
  if (tokenizer->unk == IO_NO_TOKEN) {
    add(writer, "null");
  } else {
    QUERN_TRY(spell(writer, tokenizer->unk));
    QUERN_TRY(add_string(writer, writer->token.at));
  }
  base_str_printf(
      &writer->text,
      ",\n    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": %s,\n"
      "    \"byte_fallback\": %s,\n    \"ignore_merges\": %s,\n",
      flag(tokenizer->fuse_unk), flag(tokenizer->byte_fallback), flag(tokenizer->ignore_merges));
  QUERN_TRY(add_vocab(writer));
  QUERN_TRY(add_merges(writer));
  add(writer, "  }\n}\n");
  return QUERN_STATUS_OK;
}

static quern_status add_all(struct writer *writer) {
  const quern_tokenizer *tokenizer = writer->tokenizer;
  add(writer, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n");
  QUERN_TRY(add_added(writer));
  QUERN_TRY(add_steps(writer, "normalizer", "normalizers", &tokenizer->normal));
  QUERN_TRY(add_steps(writer, "pre_tokenizer", "pretokenizers", &tokenizer->words));
  QUERN_TRY(add_frame(writer));
  QUERN_TRY(add_steps(writer, "decoder", "decoders", &tokenizer->decode));
  QUERN_TRY(add_model(writer));
  return base_str_status(&writer->text);
}

quern_status quern_tokenizer_write(const quern_tokenizer *tokenizer, const char *path) {
  QUERN_CHECK(tokenizer != NULL, INVALID, "tokenizer_write: the tokenizer is null");
  QUERN_CHECK(path != NULL && path[0] != 0, INVALID, "tokenizer_write: the path is %s",
              path == NULL ? "null" : "empty");
  struct base_heap heap;
  base_heap_init(&heap, &tokenizer->heap.user);
  struct writer writer = {.tokenizer = tokenizer};
  base_str_init(&writer.text, &heap);
  base_str_init(&writer.token, &heap);
  quern_status status = add_all(&writer);
  if (status == QUERN_STATUS_OK)
    status = io_file_write("tokenizer_write", path, 1, &(struct io_piece){writer.text.at, writer.text.n});
  base_str_fini(&writer.text);
  base_str_fini(&writer.token);
  return status;
}
