/* tests/io/test_npy.c -- .npy files: those NumPy 1.24 wrote (tests/fuzz/corpus/fuzz_npy), those it would refuse, our own */
#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <signal.h>
#include <unistd.h>

#include "ir/ir.h"
#include "quern/quern.h"
#include "unit.h"

#define FILES "tests/fuzz/corpus/fuzz_npy/"

static char folder[] = "/tmp/quern_npy_XXXXXX";

/* ---- reading -------------------------------------------------------------------------------------------- */

static void expect_tensor(const quern_tensor *x, quern_dtype dtype, int rank, const int64_t *dims, const void *data) {
  assert_int_equal(quern_tensor_dtype(x), dtype);
  assert_int_equal(quern_tensor_rank(x), rank);
  for (int i = 0; i < rank; i++) assert_int_equal(quern_tensor_dim(x, i), dims[i]);
  assert_non_null(quern_tensor_data(x));
  if (quern_tensor_bytes(x) > 0) assert_memory_equal(quern_tensor_data(x), data, quern_tensor_bytes(x));
}

static void written_by_numpy(void **state) {
  (void)state;
  static const float halves[] = {-0.5f, 0.5f, 1.5f, 2.5f, 3.5f, 4.5f};
  static const double doubles[] = {-0.5, 0.5, 1.5, 2.5, 3.5, 4.5};
  static const int16_t shorts[] = {1, -2, 300, -400, 5, 6};
  static const unsigned char bools[] = {1, 0, 1};
  static const uint64_t seven[] = {7};
  int32_t range[24];
  for (int i = 0; i < 24; i++) range[i] = i;
  const struct {
    const char *path;
    quern_dtype dtype;
    int rank;
    int64_t dims[3];
    const void *data;
  } rows[] = {
      {FILES "f4_c.npy", QUERN_DTYPE_F32, 2, {2, 3}, halves},
      {FILES "f4_fortran.npy", QUERN_DTYPE_F32, 2, {2, 3}, halves},
      {FILES "f8_big.npy", QUERN_DTYPE_F64, 2, {2, 3}, doubles},
      {FILES "i2_v3.npy", QUERN_DTYPE_I16, 2, {3, 2}, shorts},
      {FILES "bool.npy", QUERN_DTYPE_BOOL, 1, {3}, bools},
      {FILES "scalar.npy", QUERN_DTYPE_U64, 0, {0}, seven},
      {FILES "empty.npy", QUERN_DTYPE_F16, 2, {0, 3}, NULL},
      {FILES "rank3_fortran_big.npy", QUERN_DTYPE_I32, 3, {2, 3, 4}, range},
  };
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    quern_tensor *x;
    EXPECT_OK(quern_npy_read(ctx, rows[i].path, &x));
    expect_tensor(x, rows[i].dtype, rows[i].rank, rows[i].dims, rows[i].data);
  }
}

/* A file from a header's text and elements; returns its bytes. */
static size_t make_file(unsigned char bytes[1024], int version, const char *header, size_t n, const void *data) {
  size_t length = strlen(header), head = version == 1 ? 10 : 12;
  memset(bytes, 0, head);
  memcpy(bytes, "\x93NUMPY", 6);
  bytes[6] = (unsigned char)version;
  bytes[8] = (unsigned char)(length & 0xff);
  bytes[9] = (unsigned char)(length >> 8);
  memcpy(bytes + head, header, length);
  if (n > 0) memcpy(bytes + head + length, data, n);
  return head + length + n;
}

static quern_status parse(int version, const char *header, size_t n, const void *data, quern_tensor **x) {
  unsigned char bytes[1024];
  size_t length = make_file(bytes, version, header, n, data);
  unsigned char *copy = malloc(length); /* of its own, so that reading on is noticed */
  memcpy(copy, bytes, length);
  quern_status status = quern_npy_parse(ctx, copy, length, x);
  free(copy);
  return status;
}

/* Each dtype, in both byte orders. */
static void dtypes(void **state) {
  (void)state;
  static const struct {
    const char *code;
    quern_dtype dtype;
  } rows[] = {
      {"f2", QUERN_DTYPE_F16}, {"f4", QUERN_DTYPE_F32}, {"f8", QUERN_DTYPE_F64}, {"i1", QUERN_DTYPE_I8},
      {"i2", QUERN_DTYPE_I16}, {"i4", QUERN_DTYPE_I32}, {"i8", QUERN_DTYPE_I64}, {"u1", QUERN_DTYPE_U8},
      {"u2", QUERN_DTYPE_U16}, {"u4", QUERN_DTYPE_U32}, {"u8", QUERN_DTYPE_U64},
  };
  static const unsigned char data[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    size_t size = quern_dtype_size(rows[i].dtype);
    for (const char *order = "<>=|"; *order != 0; order++) {
      char header[128];
      quern_tensor *x;
      unsigned char expected[16];
      for (size_t k = 0; k < 2 * size; k++)
        expected[k] = data[*order == '>' ? k / size * size + (size - 1 - k % size) : k];
      snprintf(header, sizeof header, "{'descr': '%c%s', 'fortran_order': False, 'shape': (2,), }", *order,
               rows[i].code);
      EXPECT_OK(parse(1, header, 2 * size, data, &x));
      expect_tensor(x, rows[i].dtype, 1, (int64_t[]){2}, expected);
    }
  }
}

static void free_forms(void **state) {
  (void)state;
  quern_tensor *x;
  static const unsigned char bytes[] = {0, 1, 2, 255};
  static const unsigned char bools[] = {0, 1, 1, 1};
  EXPECT_OK(parse(3, "{\"shape\":(4),\"descr\":\"|b1\",\"fortran_order\":True}", 4, bytes, &x));
  expect_tensor(x, QUERN_DTYPE_BOOL, 1, (int64_t[]){4}, bools);
  EXPECT_OK(parse(2, "  { 'shape' : ( 2 , 2 , ) , 'fortran_order' : True , 'descr' : '|u1' }   \n", 4, bytes, &x));
  expect_tensor(x, QUERN_DTYPE_U8, 2, (int64_t[]){2, 2}, (unsigned char[]){0, 2, 1, 255});
  EXPECT_OK(parse(1, "{'descr': '<f4', 'fortran_order': True, 'shape': (3, 0, 2)}", 0, NULL, &x));
  expect_tensor(x, QUERN_DTYPE_F32, 3, (int64_t[]){3, 0, 2}, NULL);
}

#define HEAD "{'descr': '<f4', 'fortran_order': False, "

static void malformed(void **state) {
  (void)state;
  static const struct {
    int version;
    const char *header;
    size_t n;
    const char *message;
    quern_status status;
  } rows[] = {
      {0, "", 0, "npy: has format version 0.0, known are 1 to 3", QUERN_STATUS_PARSE},
      {4, "", 0, "npy: has format version 4.0, known are 1 to 3", QUERN_STATUS_PARSE},
      {1, "", 0, "byte 0 of the header: expected '{', found its end", QUERN_STATUS_PARSE},
      {1, "[", 0, "byte 0 of the header: expected '{', found '['", QUERN_STATUS_PARSE},
      {1, "\x01", 0, "byte 0 of the header: expected '{', found the byte 0x01", QUERN_STATUS_PARSE},
      {1, "\x7f", 0, "expected '{', found the byte 0x7f", QUERN_STATUS_PARSE},
      {1, "~", 0, "expected '{', found '~'", QUERN_STATUS_PARSE},
      {1, "{}", 0, "the header has no key 'descr'", QUERN_STATUS_PARSE},
      {1, "{'descr': '<f4'}", 0, "the header has no key 'fortran_order'", QUERN_STATUS_PARSE},
      {1, HEAD "}", 0, "the header has no key 'shape'", QUERN_STATUS_PARSE},
      {1, "{x", 0, "byte 1 of the header: expected a key, found 'x'", QUERN_STATUS_PARSE},
      {1, "{'descr", 0, "byte 7 of the header: expected the end of a string, found its end", QUERN_STATUS_PARSE},
      {1, "{'de\\x", 0, "byte 4 of the header: expected the end of a string, found '\\'", QUERN_STATUS_PARSE},
      {1, "{'color': 1}", 0, "byte 2 of the header: the key is unknown", QUERN_STATUS_PARSE},
      {1, "{'descr': '<f4', 'descr': '<f4'}", 0, "byte 18 of the header: the key is there twice", QUERN_STATUS_PARSE},
      {1, "{'descr' '<f4'}", 0, "byte 9 of the header: expected ':', found '''", QUERN_STATUS_PARSE},
      {1, "{'descr': 4}", 0, "expected a dtype such as '<f4', found '4'", QUERN_STATUS_PARSE},
      {1, "{'descr': [('a', '<f4')]}", 0, "has records, a tensor's elements are numbers", QUERN_STATUS_PARSE},
      {1, "{'descr': '<c8'}", 0, "the dtype '<c8' is none of f2 f4", QUERN_STATUS_PARSE},
      {1, "{'descr': '<f3'}", 0, "the dtype '<f3' is none of", QUERN_STATUS_PARSE},
      {1, "{'descr': 'f4'}", 0, "the dtype 'f4' is none of", QUERN_STATUS_PARSE},
      {1, "{'descr': '!f4'}", 0, "the dtype '!f4' is none of", QUERN_STATUS_PARSE},
      {1,
       "{'descr': '<\x02"
       "4'}",
       0, "the dtype '<?4' is none of", QUERN_STATUS_PARSE},
      {1, "{'fortran_order': 0}", 0, "expected True or False, found '0'", QUERN_STATUS_PARSE},
      {1, HEAD "'shape': 3}", 0, "expected '(' of the shape, found '3'", QUERN_STATUS_PARSE},
      {1, HEAD "'shape': (3 3)}", 0, "expected ',' or ')' in the shape, found '3'", QUERN_STATUS_PARSE},
      {1, HEAD "'shape': (-3,)}", 0, "expected a size, found '-'", QUERN_STATUS_PARSE},
      {1, HEAD "'shape': (99999999999999999999,)}", 0, "a size exceeds 2^63 - 1", QUERN_STATUS_PARSE},
      {1, HEAD "'shape': (1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1)}", 0, "the shape has more than 16 axes",
       QUERN_STATUS_PARSE},
      {1, HEAD "'shape': (9223372036854775807, 2)}", 0, "more than 2^63 - 1 bytes", QUERN_STATUS_OVERFLOW},
      {1, HEAD "'shape': (1000000000000,)}", 8,
       "elements of f32(1000000000000,) take 4000000000000 bytes, but 8 follow", QUERN_STATUS_PARSE},
      {1, HEAD "'shape': (2,)}", 4, "elements of f32(2,) take 8 bytes, but 4 follow the header", QUERN_STATUS_PARSE},
      {1, HEAD "'shape': (2,)}", 9, "elements of f32(2,) take 8 bytes, but 9 follow the header", QUERN_STATUS_PARSE},
      {1, HEAD "'shape': (1,)} x", 4, "expected the end of the header, found 'x'", QUERN_STATUS_PARSE},
      {1, HEAD "'shape': (1,) x", 4, "expected ',' or '}', found 'x'", QUERN_STATUS_PARSE},
  };
  static const unsigned char data[16] = {0};
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    quern_tensor *x = NULL;
    quern_status status = parse(rows[i].version, rows[i].header, rows[i].n, data, &x);
    if (status != rows[i].status || strstr(quern_last_error(), rows[i].message) == NULL)
      fail_msg("row %zu: %s\nexpected %s\ngot %s: %s", i, rows[i].header, rows[i].message, quern_status_name(status),
               quern_last_error());
    assert_true(quern_tensor_is_poison(x));
    EXPECT_OK(quern_context_check(ctx));
  }
  quern_tensor *x;
  EXPECT_ERROR(quern_npy_parse(ctx, "\x93NUMPX\x01\0\0\0", 10, &x), PARSE, "does not begin with \\x93NUMPY");
  EXPECT_ERROR(quern_npy_parse(ctx, "\x93NUMPY\x02\0\xff\xff\xff\xff", 12, &x), PARSE,
               "the header has 4294967295 bytes, at most");
}

static void wrong_calls(void **state) {
  (void)state;
  quern_tensor *x;
  float data[2] = {1, 2};
  EXPECT_ERROR(quern_npy_parse(NULL, "", 0, &x), INVALID, "npy_parse: the context is null");
  EXPECT_ERROR(quern_npy_parse(ctx, NULL, 1, &x), INVALID, "npy_parse: the 1 bytes are null");
  EXPECT_ERROR(quern_npy_parse(ctx, "", 0, NULL), INVALID, "npy_parse: the place for the tensor is null");
  EXPECT_ERROR(quern_npy_parse(ctx, NULL, 0, &x), PARSE, "the magic number takes 8 bytes after byte 0, but 0 are left");
  EXPECT_ERROR(quern_npy_read(NULL, "x", &x), INVALID, "npy_read: the context is null");
  EXPECT_ERROR(quern_npy_read(ctx, NULL, &x), INVALID, "npy_read: the path is null");
  EXPECT_ERROR(quern_npy_read(ctx, "x", NULL), INVALID, "npy_read: the place for the tensor is null");
  EXPECT_ERROR(quern_npy_read(ctx, "tests/no such file.npy", &x), IO,
               "tests/no such file.npy: cannot be opened: No such file");
  EXPECT_ERROR(quern_npy_read(ctx, "tests", &x), IO, "tests: is no regular file");
  EXPECT_ERROR(quern_npy_write(NULL, QUERN_DTYPE_F32, QUERN_LIST(2), data), INVALID, "npy_write: the path is null");
  EXPECT_ERROR(quern_npy_write("no folder/x", QUERN_DTYPE_COUNT, QUERN_LIST(2), data), INVALID,
               "npy_write: 15 is no dtype");
  EXPECT_ERROR(quern_npy_write("no folder/x", QUERN_DTYPE_BF16, QUERN_LIST(2), data), DTYPE,
               "npy_write: bf16 has no NumPy dtype HINT: quern_cast");
  EXPECT_ERROR(quern_npy_write("no folder/x", QUERN_DTYPE_F8E4M3, QUERN_LIST(2), data), DTYPE,
               "npy_write: f8e4m3 has no NumPy dtype");
  EXPECT_ERROR(quern_npy_write("no folder/x", QUERN_DTYPE_F32, 17, NULL, data), SHAPE,
               "npy_write: rank 17 is not in 0..16");
  EXPECT_ERROR(quern_npy_write("no folder/x", QUERN_DTYPE_F32, -1, NULL, data), SHAPE,
               "npy_write: rank -1 is not in 0..16");
  EXPECT_ERROR(quern_npy_write("no folder/x", QUERN_DTYPE_F32, 1, NULL, data), INVALID,
               "npy_write: the shape of rank 1 is null");
  EXPECT_ERROR(quern_npy_write("no folder/x", QUERN_DTYPE_F32, QUERN_LIST(2, -1), data), SHAPE,
               "npy_write: axis 1 of (2, -1) is negative");
  EXPECT_ERROR(quern_npy_write("no folder/x", QUERN_DTYPE_F32, QUERN_LIST(2), NULL), INVALID,
               "npy_write: the data of (2,) is null");
  EXPECT_ERROR(quern_npy_write("no folder/x", QUERN_DTYPE_F32, QUERN_LIST(INT64_MAX, 2), data), OVERFLOW, "2^63 - 1");
  char *path = malloc(5001);
  memset(path, 'x', 5000);
  path[5000] = 0;
  EXPECT_ERROR(quern_npy_write(path, QUERN_DTYPE_F32, QUERN_LIST(2), data), IO,
               "the path has 5000 bytes, which is too long");
  free(path);
  ir_fail(ctx, QUERN_STATUS_SHAPE, "earlier");
  EXPECT_ERROR(quern_npy_parse(ctx, "", 0, &x), SHAPE, "earlier");
  ir_fail(ctx, QUERN_STATUS_SHAPE, "earlier");
  EXPECT_ERROR(quern_npy_read(ctx, FILES "bool.npy", &x), SHAPE, "earlier");
}

/* ---- cuts and failing allocations ----------------------------------------------------------------------- */

static size_t load(const char *path, unsigned char bytes[1024]) {
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  size_t n = fread(bytes, 1, 1024, file);
  fclose(file);
  return n;
}

/* Every beginning of a file is refused, in memory and on disk; nothing is kept of it. */
static void cut_anywhere(void **state) {
  (void)state;
  static const char *const paths[] = {FILES "f4_fortran.npy", FILES "f8_big.npy", FILES "scalar.npy"};
  char path[64];
  snprintf(path, sizeof path, "%s/cut.npy", folder);
  for (size_t p = 0; p < BASE_COUNT(paths); p++) {
    unsigned char bytes[1024];
    size_t n = load(paths[p], bytes);
    for (size_t cut = 0; cut < n; cut++) {
      quern_tensor *x;
      unsigned char *copy = malloc(cut > 0 ? cut : 1);
      memcpy(copy, bytes, cut);
      assert_int_equal(quern_npy_parse(ctx, copy, cut, &x), QUERN_STATUS_PARSE);
      FILE *file = fopen(path, "wb");
      assert_int_equal(fwrite(copy, 1, cut, file), cut);
      fclose(file);
      assert_int_equal(quern_npy_read(ctx, path, &x), QUERN_STATUS_PARSE);
      assert_non_null(strstr(quern_last_error(), path));
      free(copy);
    }
  }
  unlink(path);
}

static void no_memory(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    quern_tensor *x;
    test_renew();
    fault_begin(&fault);
    quern_status status = quern_npy_read(ctx, FILES "rank3_fortran_big.npy", &x);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    EXPECT_OK(quern_context_check(ctx));
    assert_int_equal(quern_tensor_is_poison(x), fault.met);
  }
  assert_true(fault.n > 4);
}

/* ---- writing -------------------------------------------------------------------------------------------- */

/* Files in the folder. */
static int count_files(void) {
  int n = 0;
  DIR *dir = opendir(folder);
  for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) n += entry->d_name[0] != '.';
  closedir(dir);
  return n;
}

/* What is written is, byte for byte, what NumPy writes. */
static void same_bytes_as_numpy(void **state) {
  (void)state;
  static const char *const names[] = {"f4_c.npy", "bool.npy", "scalar.npy", "empty.npy"};
  for (size_t i = 0; i < BASE_COUNT(names); i++) {
    char from[64], to[64];
    unsigned char expected[1024], got[1024];
    quern_tensor *x;
    snprintf(from, sizeof from, FILES "%s", names[i]);
    snprintf(to, sizeof to, "%s/%s", folder, names[i]);
    EXPECT_OK(quern_npy_read(ctx, from, &x));
    EXPECT_OK(
        quern_npy_write(to, quern_tensor_dtype(x), quern_tensor_rank(x), quern_tensor_dims(x), quern_tensor_data(x)));
    size_t n = load(from, expected);
    assert_int_equal(load(to, got), n);
    assert_memory_equal(got, expected, n);
    unlink(to);
  }
  assert_int_equal(count_files(), 0);
}

static void write_and_read(void **state) {
  (void)state;
  char path[64];
  unsigned char data[256];
  int64_t ones[QUERN_MAX_RANK];
  for (int i = 0; i < QUERN_MAX_RANK; i++) ones[i] = 1;
  for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 37);
  snprintf(path, sizeof path, "%s/y.npy", folder);
  for (int dtype = 0; dtype < QUERN_DTYPE_COUNT; dtype++) {
    quern_tensor *x;
    if (dtype == QUERN_DTYPE_BF16 || dtype == QUERN_DTYPE_F8E4M3 || dtype == QUERN_DTYPE_F8E5M2) continue;
    for (size_t i = 0; i < sizeof data && dtype == QUERN_DTYPE_BOOL; i++) data[i] &= 1;
    EXPECT_OK(quern_npy_write(path, (quern_dtype)dtype, QUERN_LIST(2, 3, 4), data));
    EXPECT_OK(quern_npy_read(ctx, path, &x));
    expect_tensor(x, (quern_dtype)dtype, QUERN_LIST(2, 3, 4), data);
  }
  quern_tensor *x;
  EXPECT_OK(quern_npy_write(path, QUERN_DTYPE_F32, QUERN_MAX_RANK, ones, data));
  EXPECT_OK(quern_npy_read(ctx, path, &x));
  expect_tensor(x, QUERN_DTYPE_F32, QUERN_MAX_RANK, ones, data);
  assert_int_equal(count_files(), 1);
  unlink(path);
}

/* Headers of every length: the elements begin at the next multiple of 64 bytes, after a line's end. */
static void header_lengths(void **state) {
  (void)state;
  char path[64];
  snprintf(path, sizeof path, "%s/y.npy", folder);
  int64_t dims[QUERN_MAX_RANK] = {0};
  for (int step = 0; step < 15 * 16; step++) {
    unsigned char bytes[1024];
    quern_tensor *x;
    int rank = 2 + step / 16;
    dims[rank - 1] = step % 16 == 0 ? 1 : dims[rank - 1] * 10;
    EXPECT_OK(quern_npy_write(path, QUERN_DTYPE_F32, rank, dims, NULL));
    size_t n = load(path, bytes), end = n;
    while (bytes[end - 1] != '}') end--;
    assert_int_equal(n % 64, 0);
    assert_int_equal(bytes[n - 1], '\n');
    assert_in_range(n - end, 1, 64);
    EXPECT_OK(quern_npy_read(ctx, path, &x));
    expect_tensor(x, QUERN_DTYPE_F32, rank, dims, NULL);
  }
  unlink(path);
}

/* Files are closed, whatever was in them. */
static void closes_files(void **state) {
  (void)state;
  struct rlimit limit, few;
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
  few = limit;
  few.rlim_cur = 64;
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
  for (int i = 0; i < 100; i++) {
    quern_tensor *x;
    EXPECT_OK(quern_npy_read(ctx, FILES "bool.npy", &x));
    EXPECT_ERROR(quern_npy_read(ctx, "tests", &x), IO, "is no regular file");
    EXPECT_ERROR(quern_npy_read(ctx, "CMakeLists.txt", &x), PARSE, "is no .npy file");
  }
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* What cannot be written leaves the old file as it was and no other. */
static void whole_or_not_there(void **state) {
  (void)state;
  char path[64], inside[80];
  float old[2] = {1, 2}, more[1024] = {0};
  quern_tensor *x;
  snprintf(path, sizeof path, "%s/y.npy", folder);
  EXPECT_OK(quern_npy_write(path, QUERN_DTYPE_F32, QUERN_LIST(2), old));

  struct rlimit limit, small;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
  small = limit;
  small.rlim_cur = 1000;
  signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
  quern_status status = quern_npy_write(path, QUERN_DTYPE_F32, QUERN_LIST(1024), more);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_ERROR(status, IO, "y.npy: cannot be written: File too large");
  assert_int_equal(count_files(), 1);
  EXPECT_OK(quern_npy_read(ctx, path, &x));
  expect_tensor(x, QUERN_DTYPE_F32, QUERN_LIST(2), old);

  snprintf(inside, sizeof inside, "%s/none/y.npy", folder);
  EXPECT_ERROR(quern_npy_write(inside, QUERN_DTYPE_F32, QUERN_LIST(2), old), IO, "cannot be made: No such file");
  snprintf(inside, sizeof inside, "%s/dir", folder);
  assert_int_equal(mkdir(inside, 0777), 0);
  EXPECT_ERROR(quern_npy_write(inside, QUERN_DTYPE_F32, QUERN_LIST(2), old), IO, "dir: is no regular file");
  assert_int_equal(count_files(), 2);
  rmdir(inside);
  assert_int_equal(mkfifo(inside, 0666), 0); /* as a device: a rename would replace it */
  EXPECT_ERROR(quern_npy_write(inside, QUERN_DTYPE_F32, QUERN_LIST(2), old), IO, "dir: is no regular file");
  struct stat there;
  assert_true(stat(inside, &there) == 0 && S_ISFIFO(there.st_mode));
  unlink(inside);
  unlink(path);
}

static int make_folder(void **state) {
  (void)state;
  return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **state) {
  (void)state;
  return rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(written_by_numpy), TEST(dtypes),
      TEST(free_forms),       TEST(malformed),
      TEST(wrong_calls),      TEST(cut_anywhere),
      TEST(no_memory),        TEST(same_bytes_as_numpy),
      TEST(write_and_read),   TEST(whole_or_not_there),
      TEST(header_lengths),   TEST(closes_files),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
