/* tests/io/test_safetensors.c -- safetensors files: those others wrote (tests/fuzz/corpus/fuzz_safetensors), hostile ones, our own */
#include <signal.h>
#include <sys/resource.h>

#include "base/base.h"
#include "io/folder.h"
#include "io/json_memory.h"
#include "quern/quern.h"
#include "unit.h"

#define FILES "tests/fuzz/corpus/fuzz_safetensors/"

static int count_files(void) { return folder_count(folder); }

static void empty_folder(void) {
  folder_clear(folder);
  assert_int_equal(count_files(), 0);
}

static void expect_tensor(const quern_safetensors *file, const char *name, quern_dtype dtype, int rank,
                          const int64_t *dims, const void *data, size_t bytes) {
  quern_safetensor got;
  EXPECT_OK(quern_safetensors_find(file, name, &got));
  assert_string_equal(got.name, name);
  assert_int_equal(got.dtype, dtype);
  assert_int_equal(got.rank, rank);
  for (int i = 0; i < rank; i++) assert_int_equal(got.dims[i], dims[i]);
  assert_int_equal(got.bytes, bytes);
  if (bytes > 0) assert_memory_equal(got.data, data, bytes);
}

/* ---- written by others ---------------------------------------------------------------------------------- */

static void written_by_others(void **state) {
  (void)state;
  quern_safetensors *file;
  quern_safetensor tensor;
  quern_string_pair pair;
  const char *path;
  uint64_t bytes;
  EXPECT_OK(quern_safetensors_open(&file, FILES "two.safetensors", &memory_allocator));
  assert_int_equal(quern_safetensors_count(file), 2);
  expect_tensor(file, "w", QUERN_DTYPE_F32, QUERN_LIST(2, 3), (float[]){-0.5f, 0.5f, 1.5f, 2.5f, 3.5f, 4.5f}, 24);
  expect_tensor(file, "b", QUERN_DTYPE_I16, QUERN_LIST(3), (int16_t[]){1, -2, 300}, 6);
  assert_int_equal(quern_safetensors_pair_count(file), 2);
  for (size_t i = 0; i < 2; i++) {
    EXPECT_OK(quern_safetensors_pair(file, i, &pair));
    assert_string_equal(pair.value, strcmp(pair.key, "note") == 0 ? "zwei \xc3\xbc \"x\"" : "np");
  }
  assert_int_equal(quern_safetensors_shard_count(file), 1);
  EXPECT_OK(quern_safetensors_shard(file, 0, &path, &bytes));
  assert_string_equal(path, FILES "two.safetensors");
  assert_int_equal(bytes, 206);
  quern_safetensors_close(file);

  EXPECT_OK(quern_safetensors_open(&file, FILES "edges.safetensors", &memory_allocator));
  assert_int_equal(quern_safetensors_count(file), 3);
  expect_tensor(file, "s", QUERN_DTYPE_U64, 0, NULL, (uint64_t[]){7}, 8);
  expect_tensor(file, "e", QUERN_DTYPE_F16, QUERN_LIST(0, 3), NULL, 0);
  expect_tensor(file, "t", QUERN_DTYPE_BOOL, QUERN_LIST(3), (unsigned char[]){1, 0, 1}, 3);
  quern_safetensors_close(file);

  EXPECT_OK(quern_safetensors_open(&file, FILES "none.safetensors", &memory_allocator));
  assert_int_equal(quern_safetensors_count(file), 0);
  EXPECT_ERROR(quern_safetensors_find(file, "x", &tensor), INVALID, "none.safetensors has no tensor 'x' among its 0");
  quern_safetensors_close(file);

  EXPECT_OK(quern_safetensors_open(&file, FILES "bytes.safetensors", &memory_allocator));
  expect_tensor(file, "F8_E4M3", QUERN_DTYPE_F8E4M3, QUERN_LIST(2), "\4\5", 2);
  expect_tensor(file, "F8_E5M2", QUERN_DTYPE_F8E5M2, QUERN_LIST(2), "\6\7", 2);
  quern_safetensors_close(file);
}

/* Elements that lie at odd places are copied to where they can be used. */
static void copies(void **state) {
  (void)state;
  quern_safetensors *file;
  quern_safetensor tensor;
  double x[2] = {0};
  EXPECT_OK(quern_safetensors_open(&file, FILES "unaligned.safetensors", &memory_allocator));
  EXPECT_OK(quern_safetensors_get(file, 0, &tensor));
  assert_true((uintptr_t)tensor.data % 8 != 0 && tensor.offset % 8 != 0);
  EXPECT_OK(quern_safetensors_copy(file, 0, x, sizeof x));
  assert_true(x[0] == 1.5 && x[1] == -2.5);
  expect_tensor(file, "y", QUERN_DTYPE_BF16, QUERN_LIST(1, 3), "\0\1\2\3\4\5", 6);
  EXPECT_ERROR(quern_safetensors_copy(file, 0, x, 8), INVALID, "tensor 'x' has 16 bytes, the memory 8");
  EXPECT_ERROR(quern_safetensors_copy(file, 0, NULL, 16), INVALID, "the memory for 16 bytes is null");
  quern_safetensors_close(file);
}

/* ---- malformed ------------------------------------------------------------------------------------------ */

/* A file's bytes from a header and n elements of one byte, in memory of its own; free it. */
static unsigned char *make_file(const char *header, size_t length, size_t n, size_t *bytes) {
  *bytes = 8 + length + n;
  unsigned char *file = malloc(*bytes);
  assert_non_null(file);
  for (int i = 0; i < 8; i++) file[i] = (unsigned char)((uint64_t)length >> (8 * i));
  memcpy(file + 8, header, length);
  memset(file + 8 + length, 7, n);
  return file;
}

static quern_status parse(const char *header, size_t length, size_t n) {
  size_t bytes;
  quern_safetensors *file = NULL;
  unsigned char *text = make_file(header, length, n, &bytes);
  quern_status status = quern_safetensors_parse(&file, text, bytes, &memory_allocator);
  assert_true((file != NULL) == (status == QUERN_STATUS_OK));
  quern_safetensors_close(file);
  free(text);
  return status;
}

#define X(rest) "{\"x\":{" rest "}}"
#define GOOD "\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]"
#define AT(name, shape, begin, end)                                                                                    \
  "\"" name "\":{\"dtype\":\"U8\",\"shape\":[" shape "],\"data_offsets\":[" begin "," end "]}"

static void malformed(void **state) {
  (void)state;
  static const struct {
    const char *header;
    size_t n;
    const char *message;
    quern_status status;
  } rows[] = {
      {"", 0, "safetensors: is no safetensors file: its header does not begin with '{'", QUERN_STATUS_PARSE},
      {" {}", 0, "does not begin with '{'", QUERN_STATUS_PARSE},
      {"[]", 0, "does not begin with '{'", QUERN_STATUS_PARSE},
      {"{", 0, "line 1, column 1 of the JSON: string or '}' expected", QUERN_STATUS_PARSE},
      {"{} x", 0, "end of file expected", QUERN_STATUS_PARSE},
      {"{}", 1, "the tensors end at 0 of the elements, but the file has 1", QUERN_STATUS_PARSE},
      {"{\"x\":1}", 0, "tensor 'x': is no object", QUERN_STATUS_PARSE},
      {"{\"__metadata__\":1}", 0, "__metadata__ is no object", QUERN_STATUS_PARSE},
      {"{\"__metadata__\":{\"a\":1}}", 0, "'a' of __metadata__ is no string", QUERN_STATUS_PARSE},
      {X("\"shape\":[4],\"data_offsets\":[0,4]"), 4, "tensor 'x': has no dtype that is a string", QUERN_STATUS_PARSE},
      {X("\"dtype\":\"C64\",\"shape\":[4],\"data_offsets\":[0,4]"), 4, "tensor 'x': the dtype 'C64' is none of F64 F32",
       QUERN_STATUS_PARSE},
      {X("\"dtype\":\"f32\",\"shape\":[4],\"data_offsets\":[0,4]"), 4, "the dtype 'f32' is none of",
       QUERN_STATUS_PARSE},
      {X("\"dtype\":\"U8\",\"data_offsets\":[0,4]"), 4, "has no shape that is an array", QUERN_STATUS_PARSE},
      {X("\"dtype\":\"U8\",\"shape\":4,\"data_offsets\":[0,4]"), 4, "has no shape that is an array",
       QUERN_STATUS_PARSE},
      {X("\"dtype\":\"U8\",\"shape\":[-4],\"data_offsets\":[0,4]"), 4, "axis 0 of the shape is no size",
       QUERN_STATUS_PARSE},
      {X("\"dtype\":\"U8\",\"shape\":[1,4.0],\"data_offsets\":[0,4]"), 4, "axis 1 of the shape is no size",
       QUERN_STATUS_PARSE},
      {X("\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,4],\"data_offsets\":[0,4]"), 4,
       "the shape has 17 axes, at most 16 are possible", QUERN_STATUS_PARSE},
      {X("\"dtype\":\"U8\",\"shape\":[4]"), 4, "has no data_offsets that are two numbers", QUERN_STATUS_PARSE},
      {X("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0]"), 4, "has no data_offsets that are two numbers",
       QUERN_STATUS_PARSE},
      {X("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4,8]"), 4, "two numbers", QUERN_STATUS_PARSE},
      {X("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,0]"), 4, "0 <= begin <= end", QUERN_STATUS_PARSE},
      {X("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[-4,0]"), 4, "0 <= begin <= end", QUERN_STATUS_PARSE},
      {X("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,\"4\"]"), 4, "0 <= begin <= end", QUERN_STATUS_PARSE},
      {X("\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,4]"), 4,
       "tensor 'x': f32(4,) has 16 bytes, but data_offsets [0, 4] span 4", QUERN_STATUS_PARSE},
      {X("\"dtype\":\"F64\",\"shape\":[4611686018427387904,2],\"data_offsets\":[0,4]"), 4,
       "tensor 'x': a tensor of shape (4611686018427387904, 2) and dtype f64 has more than 2^63 - 1 bytes",
       QUERN_STATUS_OVERFLOW},
      {X("\"dtype\":\"U8\",\"shape\":[9223372036854775807],\"data_offsets\":[0,9223372036854775807]"), 4,
       "tensor 'x' ends at 9223372036854775807 of the elements, but the file has only 4", QUERN_STATUS_PARSE},
      {"{" AT("a", "4", "0", "4") "," AT("b", "4", "2", "6") "}", 6,
       "tensor 'b' begins at 2 of the elements, but tensor 'a' before it ends at 4", QUERN_STATUS_PARSE},
      {"{" AT("a", "4", "0", "4") "," AT("b", "4", "0", "4") "}", 4, "but tensor 'a' before it ends at 4",
       QUERN_STATUS_PARSE},
      {"{" AT("a", "4", "0", "4") "," AT("b", "1", "5", "6") "}", 6,
       "bytes 4 to 5 of the elements, before tensor 'b', belong to no tensor", QUERN_STATUS_PARSE},
      {"{" AT("a", "4", "1", "5") "}", 5, "bytes 0 to 1 of the elements, before tensor 'a'", QUERN_STATUS_PARSE},
      {X(GOOD), 3, "tensor 'x' ends at 4 of the elements, but the file has only 3", QUERN_STATUS_PARSE},
      {X(GOOD), 5, "the tensors end at 4 of the elements, but the file has 5", QUERN_STATUS_PARSE},
      {"{" AT("a", "2", "0", "2") "," AT("a", "2", "2", "4") "}", 4, "duplicate object key", QUERN_STATUS_PARSE},
      {X("\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]"), 4, "duplicate object key",
       QUERN_STATUS_PARSE},
      {X("\"dtype\":\"U8\",\"shape\":[99999999999999999999],\"data_offsets\":[0,4]"), 4, "too big integer",
       QUERN_STATUS_PARSE},
      {X("\"dtype\":\"U8\",\"shape\":[1e999],\"data_offsets\":[0,4]"), 4, "real number overflow", QUERN_STATUS_PARSE},
      {X("\"dtype\":\"U8\",\"shape\":[NaN],\"data_offsets\":[0,4]"), 4, "invalid token", QUERN_STATUS_PARSE},
      {"{\"\xff\":{" GOOD "}}", 4, "unable to decode byte 0xff", QUERN_STATUS_PARSE},
      {"{\"\xc0\xaf\":{" GOOD "}}", 4, "unable to decode byte 0xc0", QUERN_STATUS_PARSE},
      {"{\"\xed\xa0\x80\":{" GOOD "}}", 4, "unable to decode byte 0xed", QUERN_STATUS_PARSE},
      {"{\"\\ud800\":{" GOOD "}}", 4, "invalid Unicode '\\uD800'", QUERN_STATUS_PARSE},
      {"{\"\\u0000\":{" GOOD "}}", 4, "NUL byte in object key", QUERN_STATUS_PARSE},
      {"{\"__metadata__\":{\"a\":\"\\u0000\"}}", 0, "\\u0000 is not allowed", QUERN_STATUS_PARSE},
      {"{\"\x01\":{" GOOD "}}", 4, "control character 0x1", QUERN_STATUS_PARSE},
  };
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    quern_status status = parse(rows[i].header, strlen(rows[i].header), rows[i].n);
    test_expect_error(status, rows[i].status, rows[i].message, rows[i].header, (int)i);
  }
  EXPECT_OK(parse(X(GOOD), strlen(X(GOOD)), 4));
  EXPECT_OK(parse(X(GOOD ",\"more\":[1]") "  \n", strlen(X(GOOD ",\"more\":[1]") "  \n"), 4)); /* as others read it */
  EXPECT_OK(parse("{" AT("b", "4", "0", "4") "," AT("a", "0", "0", "0") "," AT("c", "0,9", "4", "4") "}",
                  strlen("{" AT("b", "4", "0", "4") "," AT("a", "0", "0", "0") "," AT("c", "0,9", "4", "4") "}"), 4));
}

/* Lengths of headers that are not there, and nothing at all. */
static void lengths(void **state) {
  (void)state;
  quern_safetensors *file;
  static const unsigned char huge[8] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, one[8] = {1},
                             most[8] = {0x00, 0xe1, 0xf5, 0x05}, more[8] = {0x01, 0xe1, 0xf5, 0x05};
  EXPECT_ERROR(quern_safetensors_parse(&file, huge, 8, NULL), PARSE,
               "its header would have 18446744073709551615 bytes, at most 100000000 are possible");
  EXPECT_ERROR(quern_safetensors_parse(&file, one, 8, NULL), PARSE, "the header has 1 bytes, but 0 follow its length");
  EXPECT_ERROR(quern_safetensors_parse(&file, most, 8, NULL), PARSE, "the header has 100000000 bytes, but 0 follow");
  EXPECT_ERROR(quern_safetensors_parse(&file, more, 8, NULL), PARSE, "its header would have 100000001 bytes");
  EXPECT_ERROR(quern_safetensors_parse(&file, huge, 7, NULL), PARSE,
               "safetensors: has 7 bytes, a safetensors file begins");
  EXPECT_ERROR(quern_safetensors_parse(&file, NULL, 0, NULL), PARSE, "safetensors: has 0 bytes");
  assert_null(file);
}

/* Nesting of any depth is refused, not followed. */
static void deep(void **state) {
  (void)state;
  enum { DEPTH = 200000 };
  char *header = malloc(2 * DEPTH + 100);
  for (int kind = 0; kind < 2; kind++) {
    size_t n = (size_t)sprintf(header, "{\"x\":");
    for (int i = 0; i < DEPTH; i++) n += (size_t)sprintf(header + n, kind == 0 ? "[" : i % 2 == 0 ? "{\"" : "\":");
    EXPECT_ERROR(parse(header, n, 0), PARSE, kind == 0 ? "maximum parsing depth reached" : "of the JSON");
  }
  free(header);
}

/* ---- our own -------------------------------------------------------------------------------------------- */

enum { KINDS = 4, TENSORS = QUERN_DTYPE_COUNT * KINDS };

struct sample {
  quern_safetensor tensors[TENSORS];
  char names[TENSORS][32];
  unsigned char data[4096];
};
static struct sample sample;

/* Tensors of every dtype: a scalar, an empty one, one of 15 elements, one of a multiple of 64 bytes. */
static void make_sample(void) {
  static const int64_t odd[] = {3, 1, 5}, even[] = {4, 16}, empty[] = {2, 0};
  static const struct {
    int rank;
    const int64_t *dims;
  } kinds[KINDS] = {{0, NULL}, {2, empty}, {3, odd}, {2, even}};
  for (size_t i = 0; i < sizeof sample.data; i++) sample.data[i] = (unsigned char)(i * 37 + i / 256);
  for (size_t i = 0; i < TENSORS; i++) {
    snprintf(sample.names[i], sizeof sample.names[i], "%s.%zu", quern_dtype_name((quern_dtype)(i / KINDS)), i % KINDS);
    sample.tensors[i] = (quern_safetensor){.name = sample.names[i],
                                           .dtype = (quern_dtype)(i / KINDS),
                                           .rank = kinds[i % KINDS].rank,
                                           .dims = kinds[i % KINDS].dims,
                                           .data = i % KINDS == 1 ? NULL : sample.data + 13 * i};
  }
}

static size_t bytes_of(const quern_safetensor *tensor) {
  size_t n = quern_dtype_size(tensor->dtype);
  for (int i = 0; i < tensor->rank; i++) n *= (size_t)tensor->dims[i];
  return n;
}

static void expect_sample(const quern_safetensors *file) {
  assert_int_equal(quern_safetensors_count(file), TENSORS);
  for (size_t i = 0; i < TENSORS; i++) {
    const quern_safetensor *t = &sample.tensors[i];
    expect_tensor(file, t->name, t->dtype, t->rank, t->dims, t->data, bytes_of(t));
  }
}

static void round_trip(void **state) {
  (void)state;
  quern_safetensors *file;
  const quern_string_pair pairs[] = {
      {"format", "pt"}, {"", "empty key"}, {"text", "a\n\"b\"\\ \x01 \xc3\xbc \xf0\x9f\x8c\xbe"}};
  quern_safetensors_options options = QUERN_INIT(quern_safetensors_options);
  options.n_pairs = BASE_COUNT(pairs);
  options.pairs = pairs;
  options.allocator = memory_allocator;
  EXPECT_OK(quern_safetensors_write(in_folder("y.safetensors"), TENSORS, sample.tensors, &options));
  assert_int_equal(count_files(), 1);
  EXPECT_OK(quern_safetensors_open(&file, in_folder("y.safetensors"), &memory_allocator));
  expect_sample(file);
  assert_int_equal(quern_safetensors_pair_count(file), BASE_COUNT(pairs));
  for (size_t i = 0; i < BASE_COUNT(pairs); i++) {
    quern_string_pair pair;
    EXPECT_OK(quern_safetensors_pair(file, i, &pair));
    assert_string_equal(pair.key, pairs[i].key);
    assert_string_equal(pair.value, pairs[i].value);
  }
  quern_safetensors_close(file);
  empty_folder();
}

/* Elements begin at a multiple of 64; each tensor at one of the power of two in its bytes, up to 64; in order, without holes. */
static void alignment(void **state) {
  (void)state;
  quern_safetensors *file;
  quern_safetensor tensor;
  for (size_t n = 0; n <= TENSORS; n++) {
    uint64_t at = 0;
    EXPECT_OK(quern_safetensors_write(in_folder("y.safetensors"), n, sample.tensors, NULL));
    EXPECT_OK(quern_safetensors_open(&file, in_folder("y.safetensors"), &memory_allocator));
    for (size_t i = 0; i < n; i++) {
      EXPECT_OK(quern_safetensors_get(file, i, &tensor));
      size_t step = 64;
      while (tensor.bytes % step != 0) step /= 2;
      assert_int_equal(tensor.offset % (i == 0 ? 64 : step), 0);
      assert_int_equal((uintptr_t)tensor.data % (i == 0 ? 64 : step), 0);
      if (i > 0) assert_int_equal(tensor.offset, at);
      at = tensor.offset + tensor.bytes;
    }
    quern_safetensors_close(file);
  }
  empty_folder();
}

static void names(void **state) {
  (void)state;
  quern_safetensors *file;
  static const char *const strange[] = {"", " ", "a.b/c", "\"", "\\", "\n", "\xc3\xbc", "__metadata", "a"};
  quern_safetensor tensors[BASE_COUNT(strange)];
  for (size_t i = 0; i < BASE_COUNT(strange); i++)
    tensors[i] = (quern_safetensor){.name = strange[i], .dtype = QUERN_DTYPE_U8, .data = sample.data + i};
  EXPECT_OK(quern_safetensors_write(in_folder("y.safetensors"), BASE_COUNT(strange), tensors, NULL));
  EXPECT_OK(quern_safetensors_open(&file, in_folder("y.safetensors"), &memory_allocator));
  for (size_t i = 0; i < BASE_COUNT(strange); i++)
    expect_tensor(file, strange[i], QUERN_DTYPE_U8, 0, NULL, sample.data + i, 1);
  quern_safetensors_close(file);
  empty_folder();
}

/* ---- damage --------------------------------------------------------------------------------------------- */

/* Every beginning of a file is refused, in memory and on disk, with its path; nothing is kept of it. */
static void cut_anywhere(void **state) {
  (void)state;
  static unsigned char bytes[65536];
  quern_safetensors *file;
  EXPECT_OK(quern_safetensors_write(in_folder("y.safetensors"), TENSORS, sample.tensors, NULL));
  size_t n = file_load(in_folder("y.safetensors"), bytes, sizeof bytes);
  EXPECT_OK(quern_safetensors_parse(&file, bytes, n, &memory_allocator));
  expect_sample(file);
  quern_safetensors_close(file);
  for (size_t cut = 0; cut < n; cut++) {
    unsigned char *copy = malloc(cut > 0 ? cut : 1); /* of its own, so that reading on is noticed */
    memcpy(copy, bytes, cut);
    assert_int_equal(quern_safetensors_parse(&file, copy, cut, &memory_allocator), QUERN_STATUS_PARSE);
    assert_null(file);
    free(copy);
    if (cut % 64 != 0) continue;
    file_store(in_folder("cut.safetensors"), bytes, cut);
    EXPECT_ERROR(quern_safetensors_open(&file, in_folder("cut.safetensors"), &memory_allocator), PARSE,
                 "/cut.safetensors: ");
  }
  empty_folder();
}

/* A flipped bit of the header is found, or gives a file that is as consistent as any. */
static void flipped(void **state) {
  (void)state;
  static unsigned char bytes[65536];
  size_t found = 0, n = file_load(FILES "edges.safetensors", bytes, sizeof bytes),
         head = 8 + bytes[0] + 256u * bytes[1];
  for (size_t bit = 0; bit < 8 * head; bit++) {
    quern_safetensors *file;
    unsigned char *copy = malloc(n);
    memcpy(copy, bytes, n);
    copy[bit / 8] ^= (unsigned char)(1u << bit % 8);
    quern_status status = quern_safetensors_parse(&file, copy, n, &memory_allocator);
    found += status != QUERN_STATUS_OK;
    if (status != QUERN_STATUS_OK) assert_true(status == QUERN_STATUS_PARSE || status == QUERN_STATUS_OVERFLOW);
    size_t sum = 0;
    for (size_t i = 0; i < quern_safetensors_count(file); i++) {
      quern_safetensor tensor;
      unsigned char out[16];
      EXPECT_OK(quern_safetensors_get(file, i, &tensor));
      assert_true(tensor.offset + tensor.bytes <= n && tensor.bytes <= sizeof out);
      EXPECT_OK(quern_safetensors_copy(file, i, out, tensor.bytes));
      sum += tensor.bytes;
    }
    if (file != NULL) assert_int_equal(sum, n - head);
    quern_safetensors_close(file);
    free(copy);
  }
  assert_true(found > 8 * head / 2);
}

/* What becomes shorter while it is open is an error when it is copied. */
static void shortened(void **state) {
  (void)state;
  quern_safetensors *file;
  quern_safetensor tensor;
  char out[1024];
  EXPECT_OK(quern_safetensors_write(in_folder("y.safetensors"), TENSORS, sample.tensors, NULL));
  EXPECT_OK(quern_safetensors_open(&file, in_folder("y.safetensors"), &memory_allocator));
  EXPECT_OK(quern_safetensors_get(file, TENSORS - 1, &tensor));
  assert_int_equal(truncate(in_folder("y.safetensors"), (off_t)tensor.offset), 0);
  EXPECT_ERROR(quern_safetensors_copy(file, TENSORS - 1, out, tensor.bytes), IO, "y.safetensors: ends at byte ");
  quern_safetensors_close(file);
  empty_folder();
}

/* ---- shards --------------------------------------------------------------------------------------------- */

static quern_status write_shards(uint64_t bytes) {
  const quern_string_pair pair = {"format", "pt"};
  quern_safetensors_options options = QUERN_INIT(quern_safetensors_options);
  options.n_pairs = 1;
  options.pairs = &pair;
  options.shard_bytes = bytes;
  options.allocator = memory_allocator;
  return quern_safetensors_write(in_folder("model.safetensors.index.json"), TENSORS, sample.tensors, &options);
}

static void shards(void **state) {
  (void)state;
  static const uint64_t limits[] = {1, 100, 512, 1000, 3000, UINT64_MAX};
  for (size_t k = 0; k < BASE_COUNT(limits); k++) {
    quern_safetensors *file, *shard;
    quern_string_pair pair;
    EXPECT_OK(write_shards(limits[k]));
    EXPECT_OK(quern_safetensors_open(&file, in_folder("model.safetensors.index.json"), &memory_allocator));
    expect_sample(file);
    size_t n = quern_safetensors_shard_count(file), count = 0;
    assert_int_equal(count_files(), n + 1);
    assert_true(k == 0 ? n == 3 * QUERN_DTYPE_COUNT : limits[k] == UINT64_MAX ? n == 1 : n > 1);
    assert_int_equal(quern_safetensors_pair_count(file), 1);
    EXPECT_OK(quern_safetensors_pair(file, 0, &pair));
    assert_string_equal(pair.value, "pt");
    for (size_t i = 0; i < n; i++) {
      const char *path;
      uint64_t bytes;
      char name[64];
      size_t sum = 0;
      EXPECT_OK(quern_safetensors_shard(file, i, &path, &bytes));
      snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, n);
      assert_string_equal(path, in_folder(name));
      EXPECT_OK(quern_safetensors_open(&shard, path, &memory_allocator));
      for (size_t t = 0; t < quern_safetensors_count(shard); t++) {
        quern_safetensor tensor;
        EXPECT_OK(quern_safetensors_get(shard, t, &tensor));
        sum += tensor.bytes;
      }
      assert_true(sum <= limits[k] || quern_safetensors_count(shard) <= 2); /* one alone, and an empty one */
      count += quern_safetensors_count(shard);
      quern_safetensors_close(shard);
    }
    assert_int_equal(count, TENSORS);
    quern_safetensors_close(file);
    EXPECT_OK(quern_safetensors_open(&file, folder, &memory_allocator));
    expect_sample(file);
    quern_safetensors_close(file);
    empty_folder();
  }
}

static void folders(void **state) {
  (void)state;
  quern_safetensors *file;
  EXPECT_ERROR(quern_safetensors_open(&file, folder, &memory_allocator), IO,
               "the folder has neither model.safetensors nor model.safetensors.index.json");
  EXPECT_OK(quern_safetensors_write(in_folder("model.safetensors"), TENSORS, sample.tensors, NULL));
  EXPECT_OK(quern_safetensors_open(&file, folder, &memory_allocator));
  expect_sample(file);
  quern_safetensors_close(file);
  EXPECT_ERROR(quern_safetensors_open(&file, "/dev/null", &memory_allocator), IO, "/dev/null: is no regular file");
  EXPECT_ERROR(quern_safetensors_open(&file, in_folder("none"), &memory_allocator), IO,
               "none: cannot be opened: No such file");
  empty_folder();
}

static void indices(void **state) {
  (void)state;
  static const struct {
    const char *text, *message;
    quern_status status;
  } rows[] = {
      {"", "model.safetensors.index.json: line 1, column 0 of the JSON", QUERN_STATUS_PARSE},
      {"[]", "the JSON is an array, expected an object", QUERN_STATUS_PARSE},
      {"{}", "has no weight_map that is an object", QUERN_STATUS_PARSE},
      {"{\"weight_map\":[]}", "has no weight_map that is an object", QUERN_STATUS_PARSE},
      {"{\"weight_map\":{},\"metadata\":3}", "metadata is no object", QUERN_STATUS_PARSE},
      {"{\"weight_map\":{\"a\":3}}", "tensor 'a': the file in weight_map is no string", QUERN_STATUS_PARSE},
      {"{\"weight_map\":{\"a\":\"\"}}", "tensor 'a': '' is no name of a file beside the index", QUERN_STATUS_PARSE},
      {"{\"weight_map\":{\"a\":\"..\"}}", "'..' is no name of a file", QUERN_STATUS_PARSE},
      {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "'/etc/passwd' is no name of a file", QUERN_STATUS_PARSE},
      {"{\"weight_map\":{\"a\":\"../x\"}}", "'../x' is no name of a file", QUERN_STATUS_PARSE},
      {"{\"weight_map\":{\"a\":\"none.safetensors\"}}", "/none.safetensors: cannot be opened: No such file",
       QUERN_STATUS_IO},
      {"{\"weight_map\":{\"b\":\"two.safetensors\",\"a\":\"two.safetensors\"}}",
       "tensor 'a' is not in 'two.safetensors', where the index has it", QUERN_STATUS_PARSE},
      {"{\"weight_map\":{\"b\":\"model.safetensors.index.json\"}}", "index.json: is no safetensors file",
       QUERN_STATUS_PARSE},
  };
  static unsigned char bytes[1024];
  size_t n = file_load(FILES "two.safetensors", bytes, sizeof bytes);
  file_store(in_folder("two.safetensors"), bytes, n);
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    quern_safetensors *file;
    file_store(in_folder("model.safetensors.index.json"), rows[i].text, strlen(rows[i].text));
    quern_status status = quern_safetensors_open(&file, in_folder("model.safetensors.index.json"), &memory_allocator);
    test_expect_error(status, rows[i].status, rows[i].message, rows[i].text, (int)i);
    assert_null(file);
  }
  /* As others write it: numbers of any kind in metadata, tensors of a shard that the index leaves out. */
  static const char good[] =
      "{\"metadata\":{\"total_size\":1.5e9,\"k\":\"v\"},\"weight_map\":{\"b\":\"two.safetensors\"}}";
  quern_safetensors *file;
  file_store(in_folder("model.safetensors.index.json"), good, strlen(good));
  EXPECT_OK(quern_safetensors_open(&file, folder, &memory_allocator));
  assert_int_equal(quern_safetensors_count(file), 1);
  assert_int_equal(quern_safetensors_pair_count(file), 1);
  expect_tensor(file, "b", QUERN_DTYPE_I16, QUERN_LIST(3), (int16_t[]){1, -2, 300}, 6);
  quern_safetensors_close(file);
  empty_folder();
}

/* ---- failures ------------------------------------------------------------------------------------------- */

/* What cannot be written leaves the old files as they were and no others. */
static void whole_or_not_there(void **state) {
  (void)state;
  struct rlimit limit, small;
  quern_safetensors *file;
  EXPECT_OK(quern_safetensors_write(in_folder("y.safetensors"), TENSORS, sample.tensors, NULL));
  EXPECT_OK(write_shards(2000));
  int files = count_files();
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
  small = limit;
  small.rlim_cur = 1500; /* less than any header and its elements */
  signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
  quern_safetensor *other = &sample.tensors[3];
  const void *data = other->data;
  other->data = sample.data;
  quern_status one = quern_safetensors_write(in_folder("y.safetensors"), TENSORS, sample.tensors, NULL);
  bool right = strstr(quern_last_error(), "y.safetensors: cannot be written: File too large") != NULL;
  quern_status many = write_shards(2000);
  other->data = data;
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
  assert_true(right && one == QUERN_STATUS_IO && many == QUERN_STATUS_IO);
  assert_int_equal(count_files(), files);
  EXPECT_OK(quern_safetensors_open(&file, in_folder("y.safetensors"), &memory_allocator));
  expect_sample(file);
  quern_safetensors_close(file);
  EXPECT_OK(quern_safetensors_open(&file, in_folder("model.safetensors.index.json"), &memory_allocator));
  expect_sample(file);
  quern_safetensors_close(file);
  empty_folder();
}

static void reading_without_memory(void **state) {
  (void)state;
  EXPECT_OK(write_shards(2000));
  EXPECT_OK(quern_safetensors_write(in_folder("y.safetensors"), TENSORS, sample.tensors, NULL));
  for (int kind = 0; kind < 2; kind++) {
    struct fault fault = {0};
    while (fault_next(&fault)) {
      quern_safetensors *file;
      test_renew();
      fault_begin(&fault);
      quern_status status = quern_safetensors_open(
          &file, in_folder(kind == 0 ? "y.safetensors" : "model.safetensors.index.json"), &memory_allocator);
      fault_end(&fault);
      EXPECT_FAULT(&fault, status);
      assert_int_equal(file == NULL, fault.met);
      quern_safetensors_close(file);
      assert_int_equal(json_live, 0);
    }
    assert_true(fault.n > 100);
  }
  empty_folder();
}

static void writing_without_memory(void **state) {
  (void)state;
  for (int kind = 0; kind < 2; kind++) {
    struct fault fault = {0};
    while (fault_next(&fault)) {
      const quern_string_pair pair = {"format", "pt"};
      quern_safetensors_options options = QUERN_INIT(quern_safetensors_options);
      options.n_pairs = 1;
      options.pairs = &pair;
      options.allocator = memory_allocator;
      fault_begin(&fault);
      quern_status status = kind == 0
                                ? quern_safetensors_write(in_folder("y.safetensors"), TENSORS, sample.tensors, &options)
                                : write_shards(2000);
      fault_end(&fault);
      EXPECT_FAULT(&fault, status);
      assert_int_equal(json_live, 0);
      assert_int_equal(count_files() == 0, fault.met);
    }
    assert_true(fault.n > 50);
    empty_folder();
  }
}

/* Files are closed, whatever was in them. */
static void closes_files(void **state) {
  (void)state;
  struct rlimit limit, few;
  file_store(in_folder("bad.safetensors"), "12345678{}", 10);
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
  few = limit;
  few.rlim_cur = 64;
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
  for (int i = 0; i < 100; i++) {
    quern_safetensors *file;
    EXPECT_OK(quern_safetensors_open(&file, FILES "two.safetensors", &memory_allocator));
    quern_safetensors_close(file);
    EXPECT_ERROR(quern_safetensors_open(&file, in_folder("bad.safetensors"), &memory_allocator), PARSE,
                 "is no safetensors file");
    EXPECT_ERROR(quern_safetensors_open(&file, "/dev/null", &memory_allocator), IO, "is no regular file");
  }
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
  empty_folder();
}

/* ---- the whole ------------------------------------------------------------------------------------------ */

static int make_folder(void **state) {
  (void)state;
  make_sample();
  return folder_make() ? 0 : -1;
}

static int remove_folder(void **state) {
  (void)state;
  return rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      JSON_TEST(written_by_others),
      JSON_TEST(copies),
      JSON_TEST(malformed),
      JSON_TEST(lengths),
      JSON_TEST(deep),
      JSON_TEST(round_trip),
      JSON_TEST(alignment),
      JSON_TEST(names),
      JSON_TEST(cut_anywhere),
      JSON_TEST(flipped),
      JSON_TEST(shortened),
      JSON_TEST(shards),
      JSON_TEST(folders),
      JSON_TEST(indices),
      JSON_TEST(whole_or_not_there),
      JSON_TEST(reading_without_memory),
      JSON_TEST(writing_without_memory),
      JSON_TEST(closes_files),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
