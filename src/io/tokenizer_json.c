/* io/tokenizer_json.c -- a tokenizer from HuggingFace's tokenizer.json
** in:    any bytes; the parts of the table below, in Sequences or alone
** out:   the tokenizer, or PARSE, or UNSUPPORTED with the name of the part that is not known
** see:   docs/data.md             tests: tests/io/test_tokenizer.c, tests/fuzz/fuzz_tokenizer.c
*/
#include <inttypes.h>
#include <stdio.h>

#include "io/io.h"
#include "io/json.h"
#include "io/tokenizer.h"

enum { SHOWN = 200, DEEP = 4 }; /* bytes of a text in a message; Sequences in Sequences */

enum section { NORMALIZER, PRE_TOKENIZER, POST_PROCESSOR, DECODER, SECTIONS };
static const char *const section_names[SECTIONS] = {"normalizer", "pre_tokenizer", "post_processor", "decoder"};
static const char *const list_names[SECTIONS] = {"normalizers", "pretokenizers", "processors", "decoders"};

/* ---- values -------------------------------------------------------------------------------------------- */

/* A flag of an object, or what it is when it is not there. */
static quern_status get_flag(const json_t *object, const char *key, bool missing, bool *flag) {
  const json_t *value = json_object_get(object, key);
  *flag = value == NULL || json_is_null(value) ? missing : json_is_true(value);
  QUERN_CHECK(value == NULL || json_is_null(value) || json_is_boolean(value), PARSE, "\"%s\" is neither true nor false",
              key);
  return QUERN_STATUS_OK;
}

/* A text of an object, copied to the tokenizer's memory. */
static quern_status get_text(quern_tokenizer *tokenizer, const json_t *object, const char *key, quern_text *text) {
  const json_t *value = json_object_get(object, key);
  QUERN_CHECK(json_is_string(value), PARSE, "\"%s\" is no text", key);
  text->n = json_string_length(value);
  text->at = base_arena_string(&tokenizer->arena, json_string_value(value), text->n);
  return text->at != NULL ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static quern_status get_id(const json_t *value, const char *what, uint32_t *id) {
  QUERN_CHECK(json_is_integer(value) && json_integer_value(value) >= 0 && json_integer_value(value) < UINT32_MAX, PARSE,
              "%s has no id", what);
  *id = (uint32_t)json_integer_value(value);
  return QUERN_STATUS_OK;
}

/* ---- parts of the pipeline ----------------------------------------------------------------------------- */

static quern_status read_prepend(quern_tokenizer *tokenizer, const json_t *part, struct io_step *step) {
  *step = (struct io_step){.kind = IO_STEP_PREPEND};
  return get_text(tokenizer, part, "prepend", &step->to);
}

static quern_status read_replace(quern_tokenizer *tokenizer, const json_t *part, struct io_step *step) {
  const json_t *pattern = json_object_get(part, "pattern");
  *step = (struct io_step){.kind = IO_STEP_REPLACE};
  QUERN_CHECK(json_object_get(pattern, "Regex") == NULL, UNSUPPORTED,
              "Replace by a regular expression is not supported");
  QUERN_TRY(get_text(tokenizer, pattern, "String", &step->from));
  return get_text(tokenizer, part, "content", &step->to);
}

static quern_status read_byte_level(quern_tokenizer *tokenizer, const json_t *part, struct io_step *step) {
  (void)tokenizer;
  *step = (struct io_step){.kind = IO_STEP_BYTE_LEVEL};
  QUERN_TRY(get_flag(part, "add_prefix_space", true, &step->prefix_space));
  QUERN_TRY(get_flag(part, "trim_offsets", true, &step->trim));
  QUERN_TRY(get_flag(part, "use_regex", true, &step->use_regex));
  step->split = step->use_regex ? IO_SPLIT_GPT2 : IO_SPLIT_WHOLE;
  return QUERN_STATUS_OK;
}

static quern_status read_split(quern_tokenizer *tokenizer, const json_t *part, struct io_step *step) {
  const json_t *pattern = json_object_get(part, "pattern");
  const char *behavior = json_string_value(json_object_get(part, "behavior"));
  char text[SHOWN];
  bool invert;
  quern_text regex;
  *step = (struct io_step){.kind = IO_STEP_SPLIT};
  QUERN_TRY(get_flag(part, "invert", false, &invert));
  QUERN_CHECK(json_object_get(pattern, "Regex") != NULL, UNSUPPORTED, "Split by a text is not supported");
  QUERN_TRY(get_text(tokenizer, pattern, "Regex", &regex));
  QUERN_CHECK(behavior != NULL, PARSE, "Split: \"behavior\" is no text");
  /* the expressions match everything: these two keep the matches, the others do not */
  QUERN_CHECK(strcmp(behavior, "Isolated") == 0 || (strcmp(behavior, "Removed") == 0 && invert), UNSUPPORTED,
              "Split with the behavior \"%s\"%s is not supported", io_json_shown(text, sizeof text, behavior),
              invert ? ", inverted," : "");
  step->regex = regex.at;
  QUERN_CHECK(
      io_split_find(regex.at, &step->split), UNSUPPORTED,
      "Split by the expression \"%s\" is not supported; known are those of GPT-2, GPT-4, GPT-4o, Llama 3 and Qwen 2",
      io_json_shown(text, sizeof text, regex.at));
  return QUERN_STATUS_OK;
}

static quern_status read_digits(quern_tokenizer *tokenizer, const json_t *part, struct io_step *step) {
  (void)tokenizer;
  bool single;
  QUERN_TRY(get_flag(part, "individual_digits", false, &single));
  *step = (struct io_step){.kind = IO_STEP_DIGITS, .split = single ? IO_SPLIT_DIGIT : IO_SPLIT_DIGITS};
  return QUERN_STATUS_OK;
}

static quern_status read_metaspace(quern_tokenizer *tokenizer, const json_t *part, struct io_step *step) {
  static const char *const schemes[] = {"never", "first", "always"};
  const char *scheme = json_string_value(json_object_get(part, "prepend_scheme"));
  quern_text mark;
  bool always, split;
  QUERN_TRY(get_text(tokenizer, part, "replacement", &mark));
  QUERN_CHECK(strcmp(mark.at, IO_META) == 0, UNSUPPORTED, "Metaspace with another mark than U+2581 is not supported");
  QUERN_TRY(get_flag(part, "add_prefix_space", true, &always));
  QUERN_TRY(get_flag(part, "split", true, &split));
  *step = (struct io_step){.kind = IO_STEP_META,
                           .split = split ? IO_SPLIT_META : IO_SPLIT_WHOLE,
                           .scheme = always ? IO_SCHEME_ALWAYS : IO_SCHEME_NEVER};
  if (scheme == NULL) return QUERN_STATUS_OK;
  for (size_t i = 0; i < BASE_COUNT(schemes); i++) {
    if (strcmp(scheme, schemes[i]) != 0) continue;
    step->scheme = (enum io_scheme)i;
    return QUERN_STATUS_OK;
  }
  return base_error(QUERN_STATUS_PARSE, "Metaspace: \"prepend_scheme\" is none of never, first, always");
}

static quern_status read_fallback(quern_tokenizer *tokenizer, const json_t *part, struct io_step *step) {
  (void)tokenizer, (void)part;
  *step = (struct io_step){.kind = IO_STEP_FALLBACK};
  return QUERN_STATUS_OK;
}

static quern_status read_fuse(quern_tokenizer *tokenizer, const json_t *part, struct io_step *step) {
  (void)tokenizer, (void)part;
  *step = (struct io_step){.kind = IO_STEP_FUSE};
  return QUERN_STATUS_OK;
}

static quern_status read_strip(quern_tokenizer *tokenizer, const json_t *part, struct io_step *step) {
  const json_t *start = json_object_get(part, "start"), *stop = json_object_get(part, "stop");
  const struct io_steps *before = &tokenizer->decode;
  *step = (struct io_step){.kind = IO_STEP_STRIP};
  QUERN_TRY(get_text(tokenizer, part, "content", &step->from));
  QUERN_CHECK(step->from.n > 0, PARSE, "Strip: \"content\" is empty");
  QUERN_CHECK(json_is_integer(start) && json_integer_value(start) >= 0, PARSE, "Strip: \"start\" is no number");
  QUERN_CHECK(json_is_integer(stop) && json_integer_value(stop) == 0, UNSUPPORTED, "Strip at the end is not supported");
  bool fused = before->n > 0 && before->at[before->n - 1].kind == IO_STEP_FUSE;
  QUERN_CHECK(fused, UNSUPPORTED, "Strip without Fuse before it is not supported");
  step->most = (size_t)json_integer_value(start);
  return QUERN_STATUS_OK;
}

/* ---- what is put around a text ------------------------------------------------------------------------- */

/* The ids of a special token of a template, added to the frame. */
static quern_status add_frame(quern_tokenizer *tokenizer, const json_t *template, const json_t *piece, bool behind) {
  const json_t *name = json_object_get(json_object_get(piece, "SpecialToken"), "id");
  QUERN_CHECK(json_is_string(name), PARSE, "TemplateProcessing: a part is neither a sequence nor a special token");
  const json_t *token = json_object_get(json_object_get(template, "special_tokens"), json_string_value(name));
  const json_t *ids = json_object_get(token, "ids");
  QUERN_CHECK(json_is_array(ids), PARSE, "TemplateProcessing: a special token has no ids");
  for (size_t i = 0; i < json_array_size(ids); i++) {
    uint32_t id;
    QUERN_TRY(get_id(json_array_get(ids, i), "TemplateProcessing: a special token", &id));
    bool good = behind ? base_vec_push(&tokenizer->heap, &tokenizer->after, id)
                       : base_vec_push(&tokenizer->heap, &tokenizer->before, id);
    if (!good) return QUERN_STATUS_MEMORY;
  }
  return QUERN_STATUS_OK;
}

static quern_status read_template(quern_tokenizer *tokenizer, const json_t *part, struct io_step *step) {
  const json_t *single = json_object_get(part, "single");
  bool behind = false;
  (void)step;
  QUERN_CHECK(json_is_array(single), PARSE, "TemplateProcessing: \"single\" is no list");
  for (size_t i = 0; i < json_array_size(single); i++) {
    const json_t *piece = json_array_get(single, i);
    bool text = json_object_get(piece, "Sequence") != NULL;
    QUERN_CHECK(!text || !behind, UNSUPPORTED, "TemplateProcessing with the text twice is not supported");
    if (!text) QUERN_TRY(add_frame(tokenizer, part, piece, behind));
    behind = behind || text;
  }
  return QUERN_STATUS_OK;
}

/* RobertaProcessing and BertProcessing: "cls" before the text, "sep" after it. */
static quern_status read_roberta(quern_tokenizer *tokenizer, const json_t *part, struct io_step *step) {
  uint32_t before, after;
  (void)step;
  QUERN_TRY(get_id(json_array_get(json_object_get(part, "cls"), 1), "\"cls\"", &before));
  QUERN_TRY(get_id(json_array_get(json_object_get(part, "sep"), 1), "\"sep\"", &after));
  bool good = base_vec_push(&tokenizer->heap, &tokenizer->before, before) &&
              base_vec_push(&tokenizer->heap, &tokenizer->after, after);
  return good ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

/* ---- the table ----------------------------------------------------------------------------------------- */

typedef quern_status read_part(quern_tokenizer *tokenizer, const json_t *part, struct io_step *step);
static const struct {
  enum section section;
  const char *type;
  read_part *read; /* NULL: it has no effect */
} parts[] = {
    {NORMALIZER, "Prepend", read_prepend},
    {NORMALIZER, "Replace", read_replace},
    {PRE_TOKENIZER, "ByteLevel", read_byte_level},
    {PRE_TOKENIZER, "Split", read_split},
    {PRE_TOKENIZER, "Digits", read_digits},
    {PRE_TOKENIZER, "Metaspace", read_metaspace},
    {POST_PROCESSOR, "ByteLevel", NULL}, /* offsets only */
    {POST_PROCESSOR, "TemplateProcessing", read_template},
    {POST_PROCESSOR, "RobertaProcessing", read_roberta},
    {POST_PROCESSOR, "BertProcessing", read_roberta},
    {DECODER, "ByteLevel", read_byte_level},
    {DECODER, "Replace", read_replace},
    {DECODER, "Metaspace", read_metaspace},
    {DECODER, "ByteFallback", read_fallback},
    {DECODER, "Fuse", read_fuse},
    {DECODER, "Strip", read_strip},
};

static quern_status unknown_part(enum section section, const char *type) {
  char list[256] = "", shown[SHOWN];
  for (size_t i = 0; i < BASE_COUNT(parts); i++) {
    size_t n = strlen(list);
    if (parts[i].section == section) snprintf(list + n, sizeof list - n, "%s, ", parts[i].type);
  }
  return base_error(QUERN_STATUS_UNSUPPORTED, "the %s \"%s\" is not supported; known are %sSequence",
                    section_names[section], io_json_shown(shown, sizeof shown, type), list);
}

static struct io_steps *steps_of(quern_tokenizer *tokenizer, enum section section) {
  return section == NORMALIZER ? &tokenizer->normal : section == PRE_TOKENIZER ? &tokenizer->words : &tokenizer->decode;
}

/* Reads a part; a Sequence, a few deep, is its parts. */
static quern_status read_section(quern_tokenizer *tokenizer, enum section section, const json_t *part, int depth) {
  if (part == NULL || json_is_null(part)) return QUERN_STATUS_OK;
  const char *type = json_string_value(json_object_get(part, "type"));
  QUERN_CHECK(type != NULL, PARSE, "the %s has no \"type\"", section_names[section]);
  if (strcmp(type, "Sequence") == 0) {
    const json_t *list = json_object_get(part, list_names[section]);
    QUERN_CHECK(json_is_array(list) && depth < DEEP, PARSE, "the %s: a Sequence has no list \"%s\", or is %d deep",
                section_names[section], list_names[section], depth);
    for (size_t i = 0; i < json_array_size(list); i++)
      QUERN_TRY(read_section(tokenizer, section, json_array_get(list, i), depth + 1));
    return QUERN_STATUS_OK;
  }
  for (size_t i = 0; i < BASE_COUNT(parts); i++) {
    if (parts[i].section != section || strcmp(parts[i].type, type) != 0) continue;
    struct io_steps *steps = steps_of(tokenizer, section);
    struct io_step step;
    if (parts[i].read == NULL) return QUERN_STATUS_OK;
    QUERN_TRY(parts[i].read(tokenizer, part, &step));
    if (section == POST_PROCESSOR) return QUERN_STATUS_OK;
    QUERN_CHECK(steps->n < IO_STEPS, UNSUPPORTED, "the %s has more than %d parts", section_names[section], IO_STEPS);
    QUERN_CHECK(steps->n == 0 || steps->at[steps->n - 1].kind != IO_STEP_BYTE_LEVEL, UNSUPPORTED,
                "the %s has %s after ByteLevel, which must be the last", section_names[section], type);
    steps->at[steps->n++] = step;
    return QUERN_STATUS_OK;
  }
  return unknown_part(section, type);
}

/* How many parts are of that kind. */
static size_t count_kind(const struct io_steps *steps, enum io_step_kind kind) {
  size_t n = 0;
  for (size_t i = 0; i < steps->n; i++) n += steps->at[i].kind == kind ? 1 : 0;
  return n;
}

/* Words and decoder must speak of the same alphabet, and the decoder do what is done here: one replacement. */
static quern_status check_sections(quern_tokenizer *tokenizer) {
  const struct io_steps *decode = &tokenizer->decode;
  tokenizer->byte_level = count_kind(&tokenizer->words, IO_STEP_BYTE_LEVEL) > 0;
  size_t byte_level = count_kind(decode, IO_STEP_BYTE_LEVEL);
  QUERN_CHECK(byte_level == 0 || tokenizer->byte_level, UNSUPPORTED,
              "the decoder is ByteLevel, the pre_tokenizer is not: that is not supported");
  QUERN_CHECK(!tokenizer->byte_level || byte_level == decode->n, UNSUPPORTED,
              "the pre_tokenizer is ByteLevel, the decoder has other parts: that is not supported");
  size_t replaces = count_kind(decode, IO_STEP_REPLACE) + count_kind(decode, IO_STEP_META);
  QUERN_CHECK(replaces <= 1, UNSUPPORTED, "a decoder with %zu replacements is not supported", replaces);
  return QUERN_STATUS_OK;
}

/* ---- the model ----------------------------------------------------------------------------------------- */

static quern_status read_vocab(quern_tokenizer *tokenizer, json_t *vocab) {
  const char *text;
  json_t *value;
  QUERN_CHECK(json_is_object(vocab), PARSE, "\"vocab\" is no object");
  json_object_foreach(vocab, text, value) {
    char shown[64];
    uint32_t id;
    QUERN_TRY(get_id(value, io_json_shown(shown, sizeof shown, text), &id));
    QUERN_TRY(io_tokenizer_add(tokenizer, id, text, strlen(text)));
  }
  return QUERN_STATUS_OK;
}

/* A merge is "a b" or ["a", "b"]. */
static quern_status read_merges(quern_tokenizer *tokenizer, const json_t *merges) {
  QUERN_CHECK(json_is_array(merges), PARSE, "\"merges\" is no list");
  for (size_t i = 0; i < json_array_size(merges); i++) {
    const json_t *merge = json_array_get(merges, i), *left = json_array_get(merge, 0),
                 *right = json_array_get(merge, 1);
    const char *text = json_string_value(merge), *space = text != NULL ? strchr(text, ' ') : NULL;
    if (space != NULL && strchr(space + 1, ' ') == NULL) {
      QUERN_TRY(io_tokenizer_add_merge(tokenizer, text, (size_t)(space - text), space + 1, strlen(space + 1)));
    } else {
      QUERN_CHECK(json_array_size(merge) == 2 && json_is_string(left) && json_is_string(right), PARSE,
                  "merge %zu is neither \"a b\" nor [\"a\", \"b\"]", i);
      QUERN_TRY(io_tokenizer_add_merge(tokenizer, json_string_value(left), json_string_length(left),
                                       json_string_value(right), json_string_length(right)));
    }
  }
  return QUERN_STATUS_OK;
}

/* A part of the model that must be absent, null or empty. */
static quern_status check_empty(const json_t *model, const char *key) {
  const json_t *value = json_object_get(model, key);
  bool empty = value == NULL || json_is_null(value) || (json_is_string(value) && json_string_length(value) == 0) ||
               (json_is_number(value) && json_number_value(value) == 0);
  QUERN_CHECK(empty, UNSUPPORTED, "a model with \"%s\" is not supported", key);
  return QUERN_STATUS_OK;
}

static quern_status read_model(quern_tokenizer *tokenizer, json_t *model) {
  char shown[SHOWN];
  QUERN_CHECK(json_is_object(model), PARSE, "there is no \"model\"");
  const char *type = json_string_value(json_object_get(model, "type"));
  QUERN_CHECK(type == NULL || strcmp(type, "BPE") == 0, UNSUPPORTED, "the model \"%s\" is not supported; known is BPE",
              io_json_shown(shown, sizeof shown, type));
  QUERN_TRY(check_empty(model, "dropout"));
  QUERN_TRY(check_empty(model, "continuing_subword_prefix"));
  QUERN_TRY(check_empty(model, "end_of_word_suffix"));
  QUERN_TRY(get_flag(model, "byte_fallback", false, &tokenizer->byte_fallback));
  QUERN_TRY(get_flag(model, "fuse_unk", false, &tokenizer->fuse_unk));
  QUERN_TRY(get_flag(model, "ignore_merges", false, &tokenizer->ignore_merges));
  QUERN_TRY(read_vocab(tokenizer, json_object_get(model, "vocab")));
  const json_t *unk = json_object_get(model, "unk_token");
  if (json_is_string(unk)) {
    const json_t *id = json_object_get(json_object_get(model, "vocab"), json_string_value(unk));
    QUERN_CHECK(id != NULL, PARSE, "the unknown token \"%s\" is not in the vocabulary",
                io_json_shown(shown, sizeof shown, json_string_value(unk)));
    tokenizer->unk = (uint32_t)json_integer_value(id);
  }
  return read_merges(tokenizer, json_object_get(model, "merges"));
}

static quern_status read_added(quern_tokenizer *tokenizer, const json_t *list) {
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *token = json_array_get(list, i), *content = json_object_get(token, "content");
    struct io_added added = {0};
    bool single_word, special;
    char shown[64];
    QUERN_CHECK(json_is_string(content), PARSE, "the added token %zu has no \"content\"", i);
    QUERN_TRY(get_id(json_object_get(token, "id"), "an added token", &added.id));
    QUERN_TRY(get_flag(token, "single_word", false, &single_word));
    QUERN_CHECK(!single_word, UNSUPPORTED, "the added token \"%s\" with \"single_word\" is not supported",
                io_json_shown(shown, sizeof shown, json_string_value(content)));
    QUERN_TRY(get_flag(token, "lstrip", false, &added.lstrip));
    QUERN_TRY(get_flag(token, "rstrip", false, &added.rstrip));
    QUERN_TRY(get_flag(token, "special", false, &special));
    QUERN_TRY(get_flag(token, "normalized", !special, &added.normalized));
    QUERN_TRY(
        io_tokenizer_add_added(tokenizer, &added, json_string_value(content), json_string_length(content), special));
  }
  return QUERN_STATUS_OK;
}

/* Every id of the frame has a token. */
static quern_status check_frame(const quern_tokenizer *tokenizer) {
  for (size_t i = 0; i < tokenizer->before.n + tokenizer->after.n; i++) {
    uint32_t id = i < tokenizer->before.n ? tokenizer->before.at[i] : tokenizer->after.at[i - tokenizer->before.n];
    QUERN_CHECK(id < tokenizer->tokens.n && tokenizer->tokens.at[id].at != NULL, PARSE,
                "the post_processor has the id %" PRIu32 ", which no token has", id);
  }
  return QUERN_STATUS_OK;
}

static quern_status read_root(quern_tokenizer *tokenizer, json_t *root) {
  for (int i = 0; i < SECTIONS; i++)
    QUERN_TRY(read_section(tokenizer, (enum section)i, json_object_get(root, section_names[i]), 0));
  QUERN_TRY(check_sections(tokenizer));
  QUERN_TRY(read_model(tokenizer, json_object_get(root, "model")));
  QUERN_TRY(read_added(tokenizer, json_object_get(root, "added_tokens")));
  QUERN_TRY(check_frame(tokenizer));
  return io_tokenizer_finish(tokenizer);
}

/* The last error, with what it was about before it. */
static quern_status about(const char *what, quern_status status) {
  return status == QUERN_STATUS_OK ? status : base_error(status, "%s: %s", what, quern_last_error());
}

quern_status io_tokenizer_from_json(quern_tokenizer *tokenizer, const char *what, const char *text, size_t n) {
  json_t *root;
  QUERN_TRY(io_json_parse(what, text, n, &root));
  quern_status status = read_root(tokenizer, root);
  json_decref(root);
  return about(what, status);
}

/* ---- GPT-2's files ------------------------------------------------------------------------------------- */

/* A merge a line, "a b"; the first line may be a comment. */
static quern_status read_lines(quern_tokenizer *tokenizer, const char *text, size_t n) {
  size_t number = 0;
  for (size_t i = 0, end; i < n; i = end + 1) {
    const char *stop = memchr(text + i, '\n', n - i), *line = text + i;
    end = stop != NULL ? (size_t)(stop - text) : n;
    size_t length = end - i;
    if (length > 0 && line[length - 1] == '\r') length--;
    bool comment = number++ == 0 && length > 8 && memcmp(line, "#version", 8) == 0;
    if (comment || length == 0) continue;
    const char *space = memchr(line, ' ', length);
    size_t left = space != NULL ? (size_t)(space - line) : 0;
    QUERN_CHECK(left > 0 && left + 1 < length && memchr(space + 1, ' ', length - left - 1) == NULL, PARSE,
                "line %zu is not two tokens with a space between them", number);
    QUERN_TRY(io_tokenizer_add_merge(tokenizer, line, left, space + 1, length - left - 1));
  }
  return QUERN_STATUS_OK;
}

enum { FILE_MOST = 1 << 28 };

quern_status io_tokenizer_from_gpt2(quern_tokenizer *tokenizer, const char *vocab_path, const char *merges_path) {
  struct base_heap *heap = &tokenizer->heap;
  static const char end[] = "<|endoftext|>";
  void *text;
  size_t n;
  json_t *vocab;
  io_tokenizer_set_gpt2(tokenizer, false, true);
  QUERN_TRY(io_file_read(vocab_path, heap, FILE_MOST, &text, &n));
  quern_status status = io_json_parse(vocab_path, text, n, &vocab);
  base_free(heap, text, n);
  QUERN_TRY(status);
  status = about(vocab_path, read_vocab(tokenizer, vocab));
  json_decref(vocab);
  QUERN_TRY(status);
  QUERN_TRY(io_file_read(merges_path, heap, FILE_MOST, &text, &n));
  status = about(merges_path, read_lines(tokenizer, text, n));
  base_free(heap, text, n);
  QUERN_TRY(status);
  uint32_t id = io_vocab_find(tokenizer, &tokenizer->vocab, (const unsigned char *)end, strlen(end));
  if (id != IO_NO_TOKEN)
    QUERN_TRY(io_tokenizer_add_added(tokenizer, &(struct io_added){.id = id}, end, strlen(end), true));
  return io_tokenizer_finish(tokenizer);
}
