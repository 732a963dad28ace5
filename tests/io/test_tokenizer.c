/* tests/io/test_tokenizer.c -- tokenizers: the ids that HuggingFace's library and tiktoken give; texts that come back; files
** tests/oracle/hf_tokenizers.py made tests/io/tokenizers/. The tests of GPT-2's own vocabulary need the folder
** ../shared/data/gpt2-tokenizer, or the one that QUERN_TEST_GPT2 names, and are skipped without it.
*/
#include <sys/stat.h>
#include <unistd.h>

#include "io/tokenizer.h"
#include "quern/quern.h"
#include "unit.h"

#define FILES "tests/io/tokenizers/"

static char folder[] = "/tmp/quern_tok_XXXXXX";
static const char *const all[] = {"gpt2", "gpt2_prefix", "gpt4", "digits", "llama2", "metaspace"};

static quern_tokenizer *read_fixture(const char *name) {
  char path[256];
  quern_tokenizer *tokenizer;
  snprintf(path, sizeof path, FILES "%s.json", name);
  EXPECT_OK(quern_tokenizer_read(&tokenizer, path, &memory_allocator));
  return tokenizer;
}

/* The ids of a text; free(*ids) later. */
static size_t encode(const quern_tokenizer *tokenizer, const void *text, size_t n, unsigned flags, uint32_t **ids) {
  size_t room = 8 * n + 16, n_ids;
  *ids = malloc(room * sizeof **ids);
  EXPECT_OK(quern_tokenizer_encode(tokenizer, text, n, flags, room, *ids, &n_ids));
  return n_ids;
}

static void expect_ids(const quern_tokenizer *tokenizer, const void *text, size_t n, unsigned flags, size_t n_ids,
                       const uint32_t *expected) {
  uint32_t *ids;
  size_t got = encode(tokenizer, text, n, flags, &ids);
  bool same = got == n_ids && (n_ids == 0 || memcmp(ids, expected, n_ids * sizeof *ids) == 0);
  if (!same) {
    print_error("\"%.*s\" with flags %u:", (int)n, (const char *)text, flags);
    for (size_t i = 0; i < got; i++) print_error(" %u", ids[i]);
    print_error(", expected");
    for (size_t i = 0; i < n_ids; i++) print_error(" %u", expected[i]);
    print_error("\n");
  }
  free(ids);
  assert_true(same);
}

/* The bytes that ids give back. */
static void expect_back(const quern_tokenizer *tokenizer, const void *text, size_t n) {
  uint32_t *ids;
  size_t n_ids = encode(tokenizer, text, n, QUERN_ENCODE_PLAIN, &ids), n_bytes;
  char *bytes = malloc(n + 1);
  EXPECT_OK(quern_tokenizer_decode(tokenizer, n_ids, ids, QUERN_DECODE_ALL, n + 1, bytes, &n_bytes));
  assert_int_equal(n_bytes, n);
  if (n > 0) assert_memory_equal(bytes, text, n);
  free(bytes);
  free(ids);
}

/* ---- ids ----------------------------------------------------------------------------------------------- */

static size_t from_hex(const char *hex, unsigned char *bytes) {
  size_t n = 0;
  for (unsigned x; sscanf(hex, "%2x", &x) == 1 && hex[0] != '-'; hex += 2) bytes[n++] = (unsigned char)x;
  return n;
}

/* Every case of a fixture. */
static size_t run_cases(const quern_tokenizer *tokenizer, const char *name) {
  static char line[65536], hex[8192];
  static unsigned char text[4096];
  static uint32_t ids[4096];
  size_t cases = 0;
  char path[256];
  snprintf(path, sizeof path, FILES "%s.cases", name);
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  for (; fgets(line, sizeof line, file) != NULL; cases++) {
    unsigned flags;
    int used, more;
    assert_int_equal(sscanf(line, "%u %8191s%n", &flags, hex, &used), 2);
    size_t n = from_hex(hex, text), n_ids = 0;
    for (; sscanf(line + used, "%u%n", &ids[n_ids], &more) == 1; used += more) n_ids++;
    expect_ids(tokenizer, text, n, flags, n_ids, ids);
  }
  fclose(file);
  return cases;
}

static void as_the_library(void **state) {
  (void)state;
  for (size_t i = 0; i < BASE_COUNT(all); i++) {
    quern_tokenizer *tokenizer = read_fixture(all[i]);
    assert_int_equal(run_cases(tokenizer, all[i]), 64);
    quern_tokenizer_free(tokenizer);
  }
}

/* ---- GPT-2 --------------------------------------------------------------------------------------------- */

static const char *gpt2_folder(void) {
  const char *path = getenv("QUERN_TEST_GPT2");
  struct stat there;
  if (path == NULL) path = "../shared/data/gpt2-tokenizer";
  if (stat(path, &there) == 0) return path;
  print_message("skipped: %s is not there\n", path);
  return NULL;
}

/* A JSON string of a case as bytes: jansson, as the library has it. */
#include <jansson.h>

static void gpt2_cases(void **state) {
  (void)state;
  const char *path = gpt2_folder();
  if (path == NULL) skip();
  static char line[65536];
  char name[1024];
  quern_tokenizer *tokenizer;
  size_t cases = 0;
  EXPECT_OK(quern_tokenizer_read(&tokenizer, path, &memory_allocator));
  assert_int_equal(quern_tokenizer_vocab(tokenizer), 50257);
  assert_int_equal(quern_tokenizer_end(tokenizer), 50256);
  snprintf(name, sizeof name, "%s/cases.jsonl", path);
  FILE *file = fopen(name, "r");
  assert_non_null(file);
  for (; fgets(line, sizeof line, file) != NULL; cases++) {
    json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL);
    const json_t *text = json_object_get(row, "text"), *list = json_object_get(row, "ids");
    uint32_t ids[4096];
    for (size_t i = 0; i < json_array_size(list); i++) ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    expect_ids(tokenizer, json_string_value(text), json_string_length(text), QUERN_ENCODE_PLAIN, json_array_size(list),
               ids);
    expect_back(tokenizer, json_string_value(text), json_string_length(text));
    json_decref(row);
  }
  fclose(file);
  assert_int_equal(cases, 80);
  expect_ids(tokenizer, "a<|endoftext|>", 14, QUERN_ENCODE_SPECIAL, 2, (uint32_t[]){64, 50256});
  /* written as one file, and read again */
  char written[1100];
  quern_tokenizer *again;
  snprintf(written, sizeof written, "%s/gpt2.json", folder);
  EXPECT_OK(quern_tokenizer_write(tokenizer, written));
  EXPECT_OK(quern_tokenizer_read(&again, written, &memory_allocator));
  for (uint32_t id = 0; id < 50257; id++) {
    quern_text a = quern_tokenizer_token(tokenizer, id), b = quern_tokenizer_token(again, id);
    assert_int_equal(a.n, b.n);
    assert_memory_equal(a.at, b.at, a.n);
    assert_int_equal(quern_tokenizer_find(tokenizer, a.at, a.n), id);
  }
  expect_ids(again, "Hello, world!<|endoftext|>", 26, QUERN_ENCODE_SPECIAL, 5, (uint32_t[]){15496, 11, 995, 0, 50256});
  quern_tokenizer_free(again);
  quern_tokenizer_free(tokenizer);
}

/* One long word takes n log n. */
static void long_words(void **state) {
  (void)state;
  enum { N = 1 << 20 };
  quern_tokenizer *tokenizer = read_fixture("gpt2");
  char *text = malloc(N);
  double start = base_clock();
  memset(text, 'a', N);
  expect_back(tokenizer, text, N);
  for (size_t i = 0; i < N; i++) text[i] = "the mill"[i * 7 % 8];
  for (size_t i = 0; i < N; i++) text[i] = text[i] == ' ' ? 'x' : text[i];
  expect_back(tokenizer, text, N);
  memset(text, ' ', N);
  expect_back(tokenizer, text, N);
  assert_true(base_clock() - start < 60);
  free(text);
  quern_tokenizer_free(tokenizer);
}

/* ---- against the definition ---------------------------------------------------------------------------- */

/* The lowest rank of all neighbors, the leftmost of them, until there is none. */
static size_t merge_by_definition(const quern_tokenizer *tokenizer, const unsigned char *text, size_t n,
                                  uint32_t *ids) {
  for (size_t i = 0; i < n; i++) ids[i] = tokenizer->bytes[text[i]];
  for (;;) {
    size_t best = n, rank = SIZE_MAX;
    for (size_t i = 0; i + 1 < n; i++) {
      for (size_t r = 0; r < tokenizer->merges.n && r < rank; r++) {
        if (tokenizer->merges.at[r].left != ids[i] || tokenizer->merges.at[r].right != ids[i + 1]) continue;
        best = i, rank = r;
      }
    }
    if (best == n) return n;
    ids[best] = tokenizer->merges.at[rank].made;
    memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof *ids);
    n--;
  }
}

static void merges_by_definition(void **state) {
  (void)state;
  quern_tokenizer *tokenizer = read_fixture("gpt2");
  uint64_t seed = 1;
  for (size_t k = 0; k < 300; k++) {
    unsigned char word[120];
    uint32_t ids[120];
    size_t n = 1 + k % 119;
    for (size_t i = 0; i < n; i++) {
      seed = base_hash_u64(seed, i);
      word[i] = (unsigned char)"theaaanmillturgdso"[seed % 18];
    }
    size_t n_ids = merge_by_definition(tokenizer, word, n, ids);
    expect_ids(tokenizer, word, n, QUERN_ENCODE_PLAIN, n_ids, ids);
  }
  quern_tokenizer_free(tokenizer);
}

/* ---- texts come back ----------------------------------------------------------------------------------- */

static void any_bytes_come_back(void **state) {
  (void)state;
  static const char *const names[] = {"gpt2", "gpt4", "digits", "bytes"};
  for (size_t k = 0; k < BASE_COUNT(names); k++) {
    quern_tokenizer *tokenizer = NULL;
    if (strcmp(names[k], "bytes") == 0)
      EXPECT_OK(quern_tokenizer_read(&tokenizer, "bytes", &memory_allocator));
    else
      tokenizer = read_fixture(names[k]);
    uint64_t seed = k;
    for (size_t n = 0; n < 400; n++) {
      unsigned char text[400];
      for (size_t i = 0; i < n; i++) {
        seed = base_hash_u64(seed, i);
        text[i] =
            (unsigned char)(seed % 3 == 0 ? seed >> 8 : (uint64_t) "the mill's 12\n <|endoftext|>"[(seed >> 16) % 28]);
      }
      expect_back(tokenizer, text, n);
    }
    quern_tokenizer_free(tokenizer);
  }
}

/* Of a text over the size from which words are remembered: the same as of its lines, one by one. */
static void remembered_words(void **state) {
  (void)state;
  static char text[20000];
  static uint32_t single[20000];
  quern_tokenizer *tokenizer = read_fixture("gpt2");
  size_t n = 0, n_single = 0;
  for (uint64_t k = 0; n < sizeof text - 64; k++) {
    char line[64];
    int bytes = snprintf(line, sizeof line, "\ngrainstone%d", (int)(base_hash_u64(3, k) % 50));
    memcpy(text + n, line, (size_t)bytes);
    n += (size_t)bytes;
    size_t more;
    EXPECT_OK(quern_tokenizer_encode(tokenizer, line, (size_t)bytes, 0, 64, single + n_single, &more));
    n_single += more;
  }
  expect_ids(tokenizer, text, n, QUERN_ENCODE_PLAIN, n_single, single);
  quern_tokenizer_free(tokenizer);
}

/* Only long texts are worth the memory for remembered words, and only where there are merges. */
static void memory_for_remembered_words(void **state) {
  (void)state;
  static char text[5000];
  static uint32_t ids[5000];
  quern_tokenizer *merges = read_fixture("gpt2"), *plain;
  size_t n;
  EXPECT_OK(quern_tokenizer_bytes(&plain, 0, NULL, &memory_allocator));
  memory_largest = 1 << 17;
  quern_status few = quern_tokenizer_encode(merges, text, 4000, 0, 5000, ids, &n);
  quern_status many = quern_tokenizer_encode(merges, text, 4200, 0, 5000, ids, &n);
  quern_status none = quern_tokenizer_encode(plain, text, 4200, 0, 5000, ids, &n);
  memory_largest = MEMORY_LARGEST;
  assert_true(few == QUERN_STATUS_OK && many == QUERN_STATUS_MEMORY && none == QUERN_STATUS_OK);
  quern_tokenizer_free(plain);
  quern_tokenizer_free(merges);
}

/* ---- bytes, special tokens ----------------------------------------------------------------------------- */

static void bytes(void **state) {
  (void)state;
  static const char *const special[] = {"<|endoftext|>", "<|im start|>"};
  quern_tokenizer *tokenizer;
  unsigned char text[256];
  uint32_t ids[256];
  EXPECT_OK(quern_tokenizer_bytes(&tokenizer, 2, special, &memory_allocator));
  assert_int_equal(quern_tokenizer_vocab(tokenizer), 258);
  for (unsigned i = 0; i < 256; i++) text[i] = (unsigned char)i, ids[i] = i;
  expect_ids(tokenizer, text, 256, QUERN_ENCODE_SPECIAL, 256, ids);
  expect_back(tokenizer, text, 256);
  const char *chat = "A<|im start|>\xff<|endoftext|>";
  expect_ids(tokenizer, chat, strlen(chat), QUERN_ENCODE_SPECIAL, 4, (uint32_t[]){'A', 257, 255, 256});
  uint32_t *plain;
  assert_int_equal(encode(tokenizer, chat, strlen(chat), QUERN_ENCODE_PLAIN, &plain), strlen(chat));
  free(plain);
  expect_back(tokenizer, chat, strlen(chat));
  quern_tokenizer_free(tokenizer);
}

static void tokens_and_ids(void **state) {
  (void)state;
  quern_tokenizer *tokenizer = read_fixture("gpt4");
  assert_int_equal(quern_tokenizer_vocab(tokenizer), 330);
  int64_t s = quern_tokenizer_find(tokenizer, "<s>", 3), end = quern_tokenizer_end(tokenizer);
  assert_true(s == 328 && end == 0);
  assert_true(quern_tokenizer_is_special(tokenizer, 328) && !quern_tokenizer_is_special(tokenizer, 1));
  assert_false(quern_tokenizer_is_special(tokenizer, 100000));
  quern_text token = quern_tokenizer_token(tokenizer, 328);
  assert_true(token.n == 3 && memcmp(token.at, "<s>", 3) == 0);
  assert_null(quern_tokenizer_token(tokenizer, 330).at);
  assert_int_equal(quern_tokenizer_find(tokenizer, "no such token", 13), -1);
  assert_int_equal(quern_tokenizer_find(tokenizer, "", 0), -1);
  for (uint32_t id = 0; id < 330; id++) {
    token = quern_tokenizer_token(tokenizer, id);
    assert_int_equal(quern_tokenizer_find(tokenizer, token.at, token.n), id);
  }
  quern_tokenizer_free(tokenizer);
}

/* An added token that is no special one, and is looked for in normalized texts. */
static void added_token(void **state) {
  (void)state;
  quern_tokenizer *tokenizer = read_fixture("digits");
  int64_t id = quern_tokenizer_find(tokenizer, "<s>", 3);
  assert_true(id > 256 && !quern_tokenizer_is_special(tokenizer, (uint32_t)id));
  expect_ids(tokenizer, " <s>", 4, QUERN_ENCODE_PLAIN, 1, (uint32_t[]){(uint32_t)id});
  quern_tokenizer_free(tokenizer);
}

static void decoding(void **state) {
  (void)state;
  quern_tokenizer *tokenizer = read_fixture("gpt4");
  char text[32];
  size_t n;
  const uint32_t ids[] = {328, 'a' - 33 + 1, 0};
  EXPECT_OK(quern_tokenizer_decode(tokenizer, 3, ids, QUERN_DECODE_ALL, sizeof text, text, &n));
  assert_true(n == 17 && memcmp(text, "<s>a<|endoftext|>", 17) == 0);
  EXPECT_OK(quern_tokenizer_decode(tokenizer, 3, ids, QUERN_DECODE_SKIP_SPECIAL, sizeof text, text, &n));
  assert_true(n == 1 && text[0] == 'a');
  EXPECT_ERROR(quern_tokenizer_decode(tokenizer, 3, ids, QUERN_DECODE_ALL, 4, text, &n), OVERFLOW,
               "tokenizer_decode: the text has 17 bytes, there is room for 4");
  assert_true(n == 17 && memcmp(text, "<s>a", 4) == 0);
  EXPECT_ERROR(quern_tokenizer_decode(tokenizer, 1, (uint32_t[]){330}, QUERN_DECODE_ALL, 4, text, &n), INVALID,
               "tokenizer_decode: id 0 is 330, which no token has; there are 330");
  quern_tokenizer_free(tokenizer);
  /* the blank that is put before a text is taken away again, and only at the front */
  static const char *const names[] = {"llama2", "metaspace"};
  for (size_t k = 0; k < BASE_COUNT(names); k++) {
    uint32_t *list;
    tokenizer = read_fixture(names[k]);
    size_t n_ids = encode(tokenizer, "the mill  turns", 15, QUERN_ENCODE_PLAIN, &list);
    EXPECT_OK(quern_tokenizer_decode(tokenizer, n_ids, list, QUERN_DECODE_ALL, sizeof text, text, &n));
    assert_true(n == 15 && memcmp(text, "the mill  turns", 15) == 0);
    EXPECT_OK(quern_tokenizer_decode(tokenizer, n_ids, list, QUERN_DECODE_CONTINUE, sizeof text, text, &n));
    assert_true(n == 16 && memcmp(text, " the mill  turns", 16) == 0);
    free(list);
    quern_tokenizer_free(tokenizer);
  }
  tokenizer = read_fixture("llama2"); /* bytes of a character that the model does not know */
  uint32_t *list;
  size_t n_ids = encode(tokenizer, "\xf0\x9f\x9a\x80\xff", 5, QUERN_ENCODE_PLAIN, &list);
  assert_int_equal(n_ids, 6);
  EXPECT_OK(quern_tokenizer_decode(tokenizer, n_ids, list, QUERN_DECODE_ALL, sizeof text, text, &n));
  assert_true(n == 5 && memcmp(text, "\xf0\x9f\x9a\x80\xff", 5) == 0);
  free(list);
  quern_tokenizer_free(tokenizer);
}

/* ---- room and sinks ------------------------------------------------------------------------------------ */

static void no_room(void **state) {
  (void)state;
  quern_tokenizer *tokenizer = read_fixture("gpt2");
  uint32_t ids[4] = {0, 0, 77, 77};
  size_t n;
  EXPECT_ERROR(quern_tokenizer_encode(tokenizer, "xyzw", 4, 0, 2, ids, &n), OVERFLOW,
               "tokenizer_encode: the text has 4 ids, there is room for 2");
  assert_true(n == 4 && ids[0] == 'x' - 32 && ids[1] == 'y' - 32 && ids[2] == 77);
  EXPECT_ERROR(quern_tokenizer_encode(tokenizer, "xyzw", 4, 0, 0, NULL, &n), OVERFLOW, "4 ids, there is room for 0");
  EXPECT_OK(quern_tokenizer_encode(tokenizer, NULL, 0, 0, 0, NULL, &n));
  assert_int_equal(n, 0);
  quern_tokenizer_free(tokenizer);
}

static quern_status refuse(void *self, size_t n, const uint32_t *ids) {
  (void)ids;
  *(size_t *)self += n;
  return QUERN_STATUS_IO;
}

static void sink_that_refuses(void **state) {
  (void)state;
  quern_tokenizer *tokenizer;
  static char text[100000];
  size_t seen = 0;
  EXPECT_OK(quern_tokenizer_bytes(&tokenizer, 0, NULL, &memory_allocator));
  assert_int_equal(quern_tokenizer_encode_to(tokenizer, text, sizeof text, 0, refuse, &seen), QUERN_STATUS_IO);
  assert_true(seen > 0 && seen < sizeof text);
  quern_tokenizer_free(tokenizer);
}

/* ---- files --------------------------------------------------------------------------------------------- */

static void written_and_read(void **state) {
  (void)state;
  for (size_t i = 0; i < BASE_COUNT(all); i++) {
    quern_tokenizer *tokenizer = read_fixture(all[i]), *again;
    char path[256];
    snprintf(path, sizeof path, "%s/again.json", folder);
    EXPECT_OK(quern_tokenizer_write(tokenizer, path));
    EXPECT_OK(quern_tokenizer_read(&again, path, &memory_allocator));
    assert_int_equal(quern_tokenizer_vocab(again), quern_tokenizer_vocab(tokenizer));
    assert_int_equal(run_cases(again, all[i]), 64);
    quern_tokenizer_free(tokenizer);
    quern_tokenizer_free(again);
  }
  quern_tokenizer *tokenizer, *again; /* one that was not read */
  char path[256];
  snprintf(path, sizeof path, "%s/bytes.json", folder);
  EXPECT_OK(quern_tokenizer_read(&tokenizer, "bytes", &memory_allocator));
  EXPECT_OK(quern_tokenizer_write(tokenizer, path));
  EXPECT_OK(quern_tokenizer_read(&again, path, &memory_allocator));
  expect_ids(again, "\x80 <|endoftext|>", 15, QUERN_ENCODE_SPECIAL, 3, (uint32_t[]){128, 32, 256});
  expect_ids(again, "<|endoftext|>", 13, QUERN_ENCODE_PLAIN, 13,
             (uint32_t[]){'<', '|', 'e', 'n', 'd', 'o', 'f', 't', 'e', 'x', 't', '|', '>'});
  quern_tokenizer_free(tokenizer);
  quern_tokenizer_free(again);
}

#define BYTE_LEVEL "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true}"
#define MODEL(more) "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]" more "}"

#define GROW "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaaaaaaaa\"}"
#define DECODERS(list) "{\"type\":\"Sequence\",\"decoders\":[" list "]}"
#define REPLACE "{\"type\":\"Replace\",\"pattern\":{\"String\":\"x\"},\"content\":\"y\"}"
#define FUSE4 "{\"type\":\"Fuse\"},{\"type\":\"Fuse\"},{\"type\":\"Fuse\"},{\"type\":\"Fuse\"}"

static void refused(void **state) {
  (void)state;
  static const struct {
    const char *json;
    quern_status status;
    const char *message;
  } rows[] = {
      {"", QUERN_STATUS_PARSE, "tokenizer: line 1, column 0 of the JSON"},
      {"[]", QUERN_STATUS_PARSE, "the JSON is an array"},
      {"{}", QUERN_STATUS_PARSE, "tokenizer: there is no \"model\""},
      {"{\"model\":{\"type\":\"WordPiece\"}}", QUERN_STATUS_UNSUPPORTED,
       "the model \"WordPiece\" is not supported; known is BPE"},
      {"{\"model\":{\"type\":\"BPE\"}}", QUERN_STATUS_PARSE, "\"vocab\" is no object"},
      {"{\"model\":{\"vocab\":{}}}", QUERN_STATUS_PARSE, "\"merges\" is no list"},
      {"{\"model\":{\"vocab\":{\"a\":-1}}}", QUERN_STATUS_PARSE, "a has no id"},
      {"{\"model\":{\"vocab\":{\"a\":\"x\"}}}", QUERN_STATUS_PARSE, "a has no id"},
      {"{\"model\":{\"vocab\":{\"a\":5000000}}}", QUERN_STATUS_PARSE, "a token has the id 5000000, ids end at 4194303"},
      {"{\"model\":{\"vocab\":{\"a\":1,\"b\":1}}}", QUERN_STATUS_PARSE, "\"b\" has the id 1, which another token has"},
      {"{\"model\":{\"vocab\":{\"a\":1,\"a\":2}}}", QUERN_STATUS_PARSE, "duplicate"},
      {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", QUERN_STATUS_PARSE, "merge 0 is neither \"a b\" nor"},
      {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a a\"]}}", QUERN_STATUS_PARSE, "merge 0 is neither"},
      {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", QUERN_STATUS_PARSE, "merge 0 is neither"},
      {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", QUERN_STATUS_PARSE,
       "merge 0 of \"a\" and \"a\": one of them, or both together, is no token"},
      {"{" MODEL(",\"dropout\":0.1") "}", QUERN_STATUS_UNSUPPORTED, "a model with \"dropout\" is not supported"},
      {"{" MODEL(",\"end_of_word_suffix\":\"</w>\"") "}", QUERN_STATUS_UNSUPPORTED,
       "a model with \"end_of_word_suffix\""},
      {"{" MODEL(",\"unk_token\":\"?\"") "}", QUERN_STATUS_PARSE, "the unknown token \"?\" is not in the vocabulary"},
      {"{" MODEL(",\"byte_fallback\":1") "}", QUERN_STATUS_PARSE, "\"byte_fallback\" is neither true nor false"},
      {"{\"normalizer\":{\"type\":\"NFC\"}}", QUERN_STATUS_UNSUPPORTED,
       "the normalizer \"NFC\" is not supported; known are Prepend, Replace, Sequence"},
      {"{\"normalizer\":{}}", QUERN_STATUS_PARSE, "the normalizer has no \"type\""},
      {"{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"x\"}}}", QUERN_STATUS_UNSUPPORTED,
       "Replace by a regular expression"},
      {"{\"pre_tokenizer\":{\"type\":\"Whitespace\"}}", QUERN_STATUS_UNSUPPORTED,
       "the pre_tokenizer \"Whitespace\" is not supported; known are ByteLevel, Split, Digits, Metaspace, Sequence"},
      {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"x+\"},\"behavior\":\"Isolated\"}}",
       QUERN_STATUS_UNSUPPORTED, "Split by the expression \"x+\" is not supported"},
      {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"x+\"},\"behavior\":\"MergedWithNext\"}}",
       QUERN_STATUS_UNSUPPORTED, "Split with the behavior \"MergedWithNext\""},
      {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"x\"},\"behavior\":\"Isolated\"}}",
       QUERN_STATUS_UNSUPPORTED, "Split by a text"},
      {"{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":\"Digits\"}]}}",
       QUERN_STATUS_UNSUPPORTED, "the pre_tokenizer has Digits after ByteLevel, which must be the last"},
      {"{\"pre_tokenizer\":{\"type\":\"Sequence\"}}", QUERN_STATUS_PARSE, "a Sequence has no list \"pretokenizers\""},
      {"{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\"}}", QUERN_STATUS_UNSUPPORTED, "another mark"},
      {"{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"" IO_META "\",\"prepend_scheme\":\"last\"}}",
       QUERN_STATUS_PARSE, "none of never, first, always"},
      {"{\"decoder\":{\"type\":\"WordPiece\"}}", QUERN_STATUS_UNSUPPORTED,
       "the decoder \"WordPiece\" is not supported"},
      {"{\"decoder\":{\"type\":\"ByteLevel\"}}", QUERN_STATUS_UNSUPPORTED,
       "the decoder is ByteLevel, the pre_tokenizer is not"},
      {"{" BYTE_LEVEL ",\"decoder\":{\"type\":\"Fuse\"}}", QUERN_STATUS_UNSUPPORTED, "the decoder has other parts"},
      {"{\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}}", QUERN_STATUS_UNSUPPORTED,
       "Strip without Fuse before it"},
      {"{\"decoder\":" DECODERS(REPLACE ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}") "}",
       QUERN_STATUS_UNSUPPORTED, "Strip without Fuse before it"},
      {"{\"decoder\":" DECODERS(
           "{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":1}") "}",
       QUERN_STATUS_UNSUPPORTED, "Strip at the end"},
      {"{\"decoder\":" DECODERS(
           "{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":-1,\"stop\":0}") "}",
       QUERN_STATUS_PARSE, "Strip: \"start\" is no number"},
      {"{\"decoder\":" DECODERS("{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\"\",\"start\":1,\"stop\":0}") "}",
       QUERN_STATUS_PARSE, "Strip: \"content\" is empty"},
      {"{\"decoder\":" DECODERS(REPLACE "," REPLACE) "}", QUERN_STATUS_UNSUPPORTED, "a decoder with 2 replacements"},
      {"{\"decoder\":" DECODERS(DECODERS(DECODERS(DECODERS(DECODERS(REPLACE))))) "}", QUERN_STATUS_PARSE,
       "or is 4 deep"},
      {"{\"decoder\":" DECODERS(FUSE4 "," FUSE4 ",{\"type\":\"Fuse\"}") "}", QUERN_STATUS_UNSUPPORTED,
       "the decoder has more than 8 parts"},
      {"{\"post_processor\":{\"type\":\"TemplateProcessing\"}}", QUERN_STATUS_PARSE, "\"single\" is no list"},
      {"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{}},{\"Sequence\":{}}]}}",
       QUERN_STATUS_UNSUPPORTED, "TemplateProcessing with the text twice"},
      {"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{}]}}", QUERN_STATUS_PARSE,
       "neither a sequence nor"},
      {"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}]}}",
       QUERN_STATUS_PARSE, "a special token has no ids"},
      {"{\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"a\"],\"sep\":[\"a\",0]}}", QUERN_STATUS_PARSE,
       "\"cls\" has no id"},
      {"{\"post_processor\":{\"type\":\"X\"}}", QUERN_STATUS_UNSUPPORTED, "the post_processor \"X\" is not supported"},
      {"{\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"a\",9],\"sep\":[\"a\",0]}," MODEL("") "}",
       QUERN_STATUS_PARSE, "the post_processor has the id 9, which no token has"},
      {"{\"added_tokens\":[{\"id\":7}]," MODEL("") "}", QUERN_STATUS_PARSE, "the added token 0 has no \"content\""},
      {"{\"added_tokens\":[{\"content\":\"x\"}]," MODEL("") "}", QUERN_STATUS_PARSE, "an added token has no id"},
      {"{\"added_tokens\":[{\"id\":7,\"content\":\"\"}]," MODEL("") "}", QUERN_STATUS_PARSE,
       "the added token 7 has no text"},
      {"{\"added_tokens\":[{\"id\":7,\"content\":\"x\",\"single_word\":true}]," MODEL("") "}", QUERN_STATUS_UNSUPPORTED,
       "the added token \"x\" with \"single_word\""},
      {"{\"added_tokens\":[{\"id\":1,\"content\":\"x\"}]," MODEL("") "}", QUERN_STATUS_PARSE,
       "the added token \"x\" has the id 1, which stands for other bytes"},
      {"{\"added_tokens\":[{\"id\":7,\"content\":\"x\"},{\"id\":7,\"content\":\"y\"}]," MODEL("") "}",
       QUERN_STATUS_PARSE, "two added tokens have the id 7"},
      {"{\"normalizer\":{\"type\":\"Prepend\",\"prepend\":\"_\"},\"added_tokens\":[{\"id\":7,\"content\":\"x\"}]"
       "," MODEL("") "}",
       QUERN_STATUS_UNSUPPORTED, "the added token \"x\" is looked for in normalized texts, and normalizing changes it"},
  };
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    quern_tokenizer *tokenizer = (quern_tokenizer *)&tokenizer;
    quern_status status = quern_tokenizer_parse(&tokenizer, rows[i].json, strlen(rows[i].json), &memory_allocator);
    if (status != rows[i].status || strstr(quern_last_error(), rows[i].message) == NULL)
      fail_msg("%s\ngives %s: %s\nexpected: %s", rows[i].json, quern_status_name(status), quern_last_error(),
               rows[i].message);
    assert_null(tokenizer);
    assert_int_equal(memory_live, context_stats(ctx).live_bytes);
  }
}

/* "cls" before a text and "sep" after it; written as a template. */
static void roberta(void **state) {
  (void)state;
  static const char json[] =
      "{\"post_processor\":{\"type\":\"RobertaProcessing\",\"cls\":[\"a\",0],\"sep\":[\"b\",1]}," MODEL("") "}";
  quern_tokenizer *tokenizer, *again;
  char path[256];
  snprintf(path, sizeof path, "%s/roberta.json", folder);
  EXPECT_OK(quern_tokenizer_parse(&tokenizer, json, strlen(json), &memory_allocator));
  EXPECT_OK(quern_tokenizer_write(tokenizer, path));
  EXPECT_OK(quern_tokenizer_read(&again, path, &memory_allocator));
  expect_ids(tokenizer, "ab", 2, QUERN_ENCODE_FRAME, 3, (uint32_t[]){0, 2, 1});
  expect_ids(tokenizer, "ab", 2, QUERN_ENCODE_PLAIN, 1, (uint32_t[]){2});
  expect_ids(again, "ab", 2, QUERN_ENCODE_FRAME, 3, (uint32_t[]){0, 2, 1});
  quern_tokenizer_free(again);
  quern_tokenizer_free(tokenizer);
}

/* A normalizer that makes a text much longer is stopped. */
static void runaway_normalizer(void **state) {
  (void)state;
  static const char json[] =
      "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[" GROW "," GROW "," GROW "," GROW "]}," MODEL("") "}";
  quern_tokenizer *tokenizer;
  static char text[1000];
  uint32_t ids[8];
  size_t n;
  memset(text, 'a', sizeof text);
  EXPECT_OK(quern_tokenizer_parse(&tokenizer, json, strlen(json), &memory_allocator));
  EXPECT_ERROR(quern_tokenizer_encode(tokenizer, text, sizeof text, 0, 8, ids, &n), OVERFLOW,
               "normalizing makes much more of a text");
  expect_ids(tokenizer, "b", 1, QUERN_ENCODE_PLAIN, 1, (uint32_t[]){1});
  quern_tokenizer_free(tokenizer);
}

/* A fixture cut anywhere is refused. */
static void cut_files(void **state) {
  (void)state;
  static char text[65536];
  FILE *file = fopen(FILES "gpt4.json", "rb");
  size_t n = fread(text, 1, sizeof text, file);
  fclose(file);
  assert_true(n > 2000 && n < sizeof text);
  for (size_t cut = 0; cut < n - 2; cut += 61) {
    quern_tokenizer *tokenizer;
    EXPECT_ERROR(quern_tokenizer_parse(&tokenizer, text, cut, &memory_allocator), PARSE, "of the JSON");
  }
}

static void missing_files(void **state) {
  (void)state;
  quern_tokenizer *tokenizer;
  char path[256];
  EXPECT_ERROR(quern_tokenizer_read(&tokenizer, "/nowhere/t.json", NULL), IO, "/nowhere/t.json: cannot be opened");
  EXPECT_ERROR(quern_tokenizer_read(&tokenizer, "tests/fuzz", NULL), IO, "tests/fuzz: has neither tokenizer.json, nor");
  snprintf(path, sizeof path, "%s/none/t.json", folder);
  EXPECT_OK(quern_tokenizer_read(&tokenizer, "bytes", NULL));
  EXPECT_ERROR(quern_tokenizer_write(tokenizer, path), IO, "cannot be made");
  quern_tokenizer_free(tokenizer);
}

static void put(const char *name, const char *text, char path[256]) {
  snprintf(path, 256, "%s/%s", folder, name);
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
}

static void two_files(void **state) {
  (void)state;
  char vocab[256], merges[256];
  quern_tokenizer *tokenizer;
  put("vocab.json", "{\"a\": 0, \"b\": 1, \"ab\": 2, \"<|endoftext|>\": 3}", vocab);
  put("merges.txt", "#version: 0.2\r\na b\r\n\r\n", merges);
  EXPECT_OK(quern_tokenizer_read(&tokenizer, folder, &memory_allocator));
  expect_ids(tokenizer, "abba<|endoftext|>", 17, QUERN_ENCODE_SPECIAL, 4, (uint32_t[]){2, 1, 0, 3});
  expect_ids(tokenizer, "axb", 3, QUERN_ENCODE_PLAIN, 1,
             (uint32_t[]){2}); /* what the model does not know is left out */
  quern_tokenizer_free(tokenizer);
  put("merges.txt", "a b\nab", merges);
  EXPECT_ERROR(quern_tokenizer_read_gpt2(&tokenizer, vocab, merges, NULL), PARSE,
               "merges.txt: line 2 is not two tokens with a space between them");
  put("merges.txt", "a c\n", merges);
  EXPECT_ERROR(quern_tokenizer_read_gpt2(&tokenizer, vocab, merges, NULL), PARSE, "merge 0 of \"a\" and \"c\"");
}

/* ---- training ------------------------------------------------------------------------------------------ */

static quern_status train(quern_tokenizer **tokenizer, size_t vocab, uint64_t least, size_t n,
                          const quern_text *texts) {
  static const char *const special[] = {"<|endoftext|>"};
  quern_tokenizer_training training = QUERN_INIT(quern_tokenizer_training);
  training.vocab = vocab;
  training.min_count = least;
  training.n_special = 1;
  training.special = special;
  return quern_tokenizer_train(tokenizer, n, texts, &training, &memory_allocator);
}

static void trained_as_the_library_does(void **state) {
  (void)state;
  static char text[65536];
  FILE *file = fopen(FILES "train.txt", "rb");
  size_t n = fread(text, 1, sizeof text, file);
  fclose(file);
  quern_tokenizer *tokenizer, *again, *library = read_fixture("gpt2");
  EXPECT_OK(train(&tokenizer, 400, 2, 1, &(quern_text){text, n}));
  assert_int_equal(quern_tokenizer_vocab(tokenizer), quern_tokenizer_vocab(library));
  assert_int_equal(tokenizer->merges.n, library->merges.n);
  assert_memory_equal(tokenizer->merges.at, library->merges.at, library->merges.n * sizeof *library->merges.at);
  assert_int_equal(run_cases(tokenizer, "gpt2"), 64);
  /* texts in parts are the same words */
  const char *middle = strchr(text + n / 2, '\n');
  size_t half = (size_t)(middle - text);
  EXPECT_OK(train(&again, 400, 2, 2, (quern_text[]){{text, half}, {middle, n - half}}));
  assert_int_equal(again->merges.n, tokenizer->merges.n);
  assert_memory_equal(again->merges.at, tokenizer->merges.at, again->merges.n * sizeof *again->merges.at);
  quern_tokenizer_free(again);
  quern_tokenizer_free(library);
  quern_tokenizer_free(tokenizer);
}

static void training_limits(void **state) {
  (void)state;
  quern_tokenizer *tokenizer;
  const quern_text text = {"ab ab ab cd cd aaaa", 19};
  EXPECT_OK(train(&tokenizer, 257, 2, 1, &text)); /* bytes only */
  assert_int_equal(quern_tokenizer_vocab(tokenizer), 257);
  quern_tokenizer_free(tokenizer);
  EXPECT_OK(
      train(&tokenizer, 300, 3, 1, &text)); /* "ab" is there 3 times, and "aa" in a word of four; nothing else is */
  assert_int_equal(quern_tokenizer_vocab(tokenizer), 259);
  assert_true(quern_tokenizer_find(tokenizer, "ab", 2) == 258 && quern_tokenizer_find(tokenizer, "aa", 2) == 257);
  quern_tokenizer_free(tokenizer);
  EXPECT_OK(train(&tokenizer, 300, 1, 0, NULL)); /* nothing to learn from */
  assert_int_equal(quern_tokenizer_vocab(tokenizer), 257);
  quern_tokenizer_free(tokenizer);
  EXPECT_ERROR(train(&tokenizer, 256, 1, 0, NULL), INVALID, "tokenizer_train: 256 ids are asked for");
}

/* With a space before each text: the same as when it is written there. */
static void trained_with_a_space(void **state) {
  (void)state;
  static const char *const texts[] = {"the mill", "'s mill's",   "\n\nthe the", "\tthe", " the mill",
                                      "",         "12 12",       "a",           "\n",    "\xe2\x80\x83\xe2\x80\x83the",
                                      "!the",     "millmill the"};
  char spaced[BASE_COUNT(texts)][32];
  quern_text plain[BASE_COUNT(texts)], with[BASE_COUNT(texts)];
  quern_tokenizer_training training = QUERN_INIT(quern_tokenizer_training);
  quern_tokenizer *a, *b;
  for (size_t i = 0; i < BASE_COUNT(texts); i++) {
    snprintf(spaced[i], sizeof spaced[i], "%s%s", texts[i][0] == ' ' || texts[i][0] == 0 ? "" : " ", texts[i]);
    plain[i] = (quern_text){texts[i], strlen(texts[i])};
    with[i] = (quern_text){spaced[i], strlen(spaced[i])};
  }
  training.vocab = 400;
  training.min_count = 1;
  EXPECT_OK(quern_tokenizer_train(&a, BASE_COUNT(texts), with, &training, &memory_allocator));
  training.add_prefix_space = true;
  EXPECT_OK(quern_tokenizer_train(&b, BASE_COUNT(texts), plain, &training, &memory_allocator));
  assert_int_equal(a->merges.n, b->merges.n);
  assert_memory_equal(a->merges.at, b->merges.at, a->merges.n * sizeof *a->merges.at);
  uint32_t *ids[2];
  assert_int_equal(encode(a, " the", 4, 0, &ids[0]), 1);
  assert_int_equal(encode(b, "the", 3, 0, &ids[1]), 1); /* and the tokenizer does the same */
  assert_int_equal(ids[0][0], ids[1][0]);
  free(ids[0]);
  free(ids[1]);
  quern_tokenizer_free(a);
  quern_tokenizer_free(b);
}

/* Bytes of any kind. */
static void trained_on_bytes(void **state) {
  (void)state;
  static unsigned char text[20000];
  quern_tokenizer *tokenizer;
  for (size_t i = 0; i < sizeof text; i++) text[i] = (unsigned char)(base_hash_u64(5, i / 3) >> (i % 3 * 4));
  EXPECT_OK(train(&tokenizer, 2000, 2, 1, &(quern_text){(char *)text, sizeof text}));
  assert_true(quern_tokenizer_vocab(tokenizer) > 500);
  expect_back(tokenizer, text, sizeof text);
  quern_tokenizer_free(tokenizer);
}

/* ---- faults -------------------------------------------------------------------------------------------- */

static void fault_in_reading(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    quern_tokenizer *tokenizer;
    fault_begin(&fault);
    quern_status status = quern_tokenizer_read(&tokenizer, FILES "gpt4.json", &memory_allocator);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    quern_tokenizer_free(tokenizer);
  }
  assert_true(fault.n > 20);
}

static void fault_in_use(void **state) {
  (void)state;
  static char text[6000];
  char path[256];
  quern_tokenizer *tokenizer = read_fixture("llama2");
  snprintf(path, sizeof path, "%s/fault.json", folder);
  for (size_t i = 0; i < sizeof text; i++) text[i] = "the mill, a stone"[i % 17];
  struct fault fault = {0};
  while (fault_next(&fault)) {
    static uint32_t ids[7000];
    size_t n;
    fault_begin(&fault);
    quern_status status = quern_tokenizer_encode(tokenizer, text, sizeof text, 3, 7000, ids, &n);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
  }
  assert_true(fault.n > 8);
  fault = (struct fault){0};
  while (fault_next(&fault)) {
    fault_begin(&fault);
    quern_status status = quern_tokenizer_write(tokenizer, path);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
  }
  assert_true(fault.n > 8);
  quern_tokenizer_free(tokenizer);
}

static void fault_in_training(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    quern_tokenizer *tokenizer;
    fault_begin(&fault);
    quern_status status = train(&tokenizer, 300, 1, 1, &(quern_text){"abab abc abcd 12 12", 19});
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    quern_tokenizer_free(tokenizer);
  }
  assert_true(fault.n > 30);
}

static int make_folder(void **state) {
  (void)state;
  return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **state) {
  (void)state;
  char line[128];
  snprintf(line, sizeof line, "rm -r %s", folder);
  return system(line);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(as_the_library),
      TEST(gpt2_cases),
      TEST(long_words),
      TEST(merges_by_definition),
      TEST(any_bytes_come_back),
      TEST(remembered_words),
      TEST(memory_for_remembered_words),
      TEST(bytes),
      TEST(tokens_and_ids),
      TEST(added_token),
      TEST(decoding),
      TEST(no_room),
      TEST(sink_that_refuses),
      TEST(written_and_read),
      TEST(refused),
      TEST(roberta),
      TEST(runaway_normalizer),
      TEST(cut_files),
      TEST(missing_files),
      TEST(two_files),
      TEST(trained_as_the_library_does),
      TEST(training_limits),
      TEST(trained_on_bytes),
      TEST(trained_with_a_space),
      TEST(fault_in_reading),
      TEST(fault_in_use),
      TEST(fault_in_training),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
