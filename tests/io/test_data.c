/* tests/io/test_data.c -- sources, orders, the loader: the same batches whatever the threads, from any place on */
#include <stdatomic.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "io/data.h"
#include "quern/quern.h"
#include "unit.h"

static char folder[] = "/tmp/quern_data_XXXXXX";

/* ---- orders -------------------------------------------------------------------------------------------- */

static struct io_sample_order order_of(quern_order kind, uint64_t seed, int64_t n, const double *weights) {
  struct io_sample_order order;
  struct base_heap heap;
  base_heap_init(&heap, NULL);
  EXPECT_OK(io_sample_order_init(&order, &heap, kind, seed, n, weights));
  return order;
}

static void end_order(struct io_sample_order *order) {
  struct base_heap heap;
  base_heap_init(&heap, NULL);
  io_sample_order_fini(order, &heap);
}

/* For many n and epochs: each sample once. */
static void permutations(void **state) {
  (void)state;
  static unsigned char seen[70000];
  for (int64_t n = 1; n < 70000; n = n < 600 ? n + 1 : n * 7 / 4 + 3) {
    struct io_sample_order order = order_of(QUERN_ORDER_SHUFFLED, (uint64_t)n * 77, n, NULL);
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
      memset(seen, 0, (size_t)n);
      for (int64_t i = 0; i < n; i++) {
        int64_t sample = io_sample_order_at(&order, epoch * UINT64_C(0x100000001), i);
        assert_true(sample >= 0 && sample < n && seen[sample] == 0);
        seen[sample] = 1;
      }
    }
  }
}

/* Large sources need no table: a few places, all different, and in range. */
static void large_permutation(void **state) {
  (void)state;
  const int64_t n = (INT64_C(1) << 55) + 12345;
  struct io_sample_order order = order_of(QUERN_ORDER_SHUFFLED, 3, n, NULL);
  int64_t last = -1, up = 0;
  for (int64_t i = 0; i < 1000; i++) {
    int64_t sample = io_sample_order_at(&order, 0, n - 1 - i);
    assert_true(sample >= 0 && sample < n);
    up += sample > last ? 1 : 0;
    last = sample;
  }
  assert_in_range(up, 420, 580);
}

/* All orders of 4 samples come up about equally often, over epochs and over seeds. */
static void fair_permutations(void **state) {
  (void)state;
  enum { DRAWS = 24000 };
  for (int by_seed = 0; by_seed < 2; by_seed++) {
    int counts[256] = {0}, kinds = 0;
    for (uint64_t k = 0; k < DRAWS; k++) {
      struct io_sample_order order = order_of(QUERN_ORDER_SHUFFLED, by_seed ? k : 9, 4, NULL);
      unsigned code = 0;
      for (int64_t i = 0; i < 4; i++) code = code << 2 | (unsigned)io_sample_order_at(&order, by_seed ? 0 : k, i);
      counts[code]++;
    }
    double square = 0; /* chi-squared with 23 degrees of freedom: above 49.7 once in a thousand */
    for (int i = 0; i < 256; i++) {
      if (counts[i] == 0) continue;
      kinds++;
      square += (counts[i] - 1000.0) * (counts[i] - 1000.0) / 1000;
    }
    assert_int_equal(kinds, 24);
    assert_true(square < 49.7);
  }
}

/* Neighbors, and the same place in other epochs and seeds, have nothing to do with each other. */
static void mixed(void **state) {
  (void)state;
  enum { N = 10007 };
  struct io_sample_order a = order_of(QUERN_ORDER_SHUFFLED, 1, N, NULL), b = order_of(QUERN_ORDER_SHUFFLED, 2, N, NULL);
  int same_epoch = 0, same_seed = 0, near = 0, fixed = 0;
  for (int64_t i = 0; i + 1 < N; i++) {
    int64_t x = io_sample_order_at(&a, 0, i), y = io_sample_order_at(&a, 0, i + 1);
    same_epoch += x == io_sample_order_at(&a, 1, i);
    same_seed += x == io_sample_order_at(&b, 0, i);
    near += y - x < 10 && x - y < 10;
    fixed += x == i;
  }
  assert_true(same_epoch < 8 && same_seed < 8 && fixed < 8 && near < 60);
}

static void weights(void **state) {
  (void)state;
  enum { N = 7, DRAWS = 70000 };
  static const double rows[][N] = {
      {1, 1, 1, 1, 1, 1, 1}, {0, 1, 2, 3, 4, 0, 0}, {0, 0, 0, 1e-300, 0, 0, 0}, {1e250, 1, 1, 1, 1, 1, 1e250}};
  for (size_t r = 0; r < BASE_COUNT(rows); r++) {
    struct io_sample_order order = order_of(QUERN_ORDER_WEIGHTED, r, N, rows[r]);
    double sum = 0, counts[N] = {0};
    for (int i = 0; i < N; i++) sum += rows[r][i];
    for (int64_t i = 0; i < DRAWS; i++) counts[io_sample_order_at(&order, 5, i)]++;
    for (int i = 0; i < N; i++) {
      double expected = rows[r][i] / sum * DRAWS;
      assert_true(counts[i] >= expected - 500 && counts[i] <= expected + 500);
      if (rows[r][i] == 0) assert_true(counts[i] == 0);
    }
    end_order(&order);
  }
  struct io_sample_order order;
  struct base_heap heap;
  base_heap_init(&heap, NULL);
  EXPECT_ERROR(io_sample_order_init(&order, &heap, QUERN_ORDER_WEIGHTED, 0, 2, (double[]){1, -1}), INVALID,
               "weight 1 is -1");
  EXPECT_ERROR(io_sample_order_init(&order, &heap, QUERN_ORDER_WEIGHTED, 0, 2, (double[]){0, 0}), INVALID,
               "sum up to 0");
  EXPECT_ERROR(io_sample_order_init(&order, &heap, QUERN_ORDER_WEIGHTED, 0, 2, (double[]){0, 0.0 / 0.0}), INVALID,
               "weight 1 is");
}

/* The order is part of what a seed means: these must not change. */
static void known_orders(void **state) {
  (void)state;
  struct io_sample_order order = order_of(QUERN_ORDER_SHUFFLED, 42, 1000, NULL);
  static const int64_t expected[2][4] = {{505, 450, 323, 913}, {380, 852, 271, 721}};
  for (uint64_t epoch = 0; epoch < 2; epoch++)
    for (int64_t i = 0; i < 4; i++) assert_int_equal(io_sample_order_at(&order, epoch, i), expected[epoch][i]);
}

/* ---- sources ------------------------------------------------------------------------------------------- */

static const char *in_folder(char path[256], const char *name) {
  snprintf(path, 256, "%s/%s", folder, name);
  return path;
}

/* A source whose samples are their numbers, i32 and f32[3]. */
static atomic_int reads;
static _Atomic int64_t fails_at = -1;

static quern_status number(void *self, int64_t index, void *const *fields) {
  (void)self;
  atomic_fetch_add(&reads, 1);
  if (index == fails_at) return quern_source_fail(QUERN_STATUS_IO, "a hand-made fault");
  int32_t *x = fields[0];
  float *y = fields[1];
  x[0] = (int32_t)index;
  for (int i = 0; i < 3; i++) y[i] = (float)(index * 10 + i);
  return QUERN_STATUS_OK;
}

static const quern_field number_fields[] = {{.name = "x", .dtype = QUERN_DTYPE_I32, .pad = -7},
                                            {.name = "y", .dtype = QUERN_DTYPE_F32, .rank = 1, .dims = {3}, .pad = -1}};

static quern_source *numbers(int64_t n) {
  quern_source *source;
  EXPECT_OK(quern_source_call(&source, n, 2, number_fields, number, NULL, &memory_allocator));
  return source;
}

/* What the function of a source returns without a reason is no earlier error, and always a status. */
static quern_status without_reason(void *self, int64_t index, void *const *fields) {
  (void)index, (void)fields;
  return *(const quern_status *)self;
}

static void failures_without_reason(void **state) {
  (void)state;
  static const int numbers_of[] = {QUERN_STATUS_INTERNAL, 77, -1};
  int32_t x;
  for (size_t i = 0; i < BASE_COUNT(numbers_of); i++) {
    quern_status given = (quern_status)numbers_of[i];
    quern_source *source;
    char words[64];
    snprintf(words, sizeof words, "the source gave status %d without a reason", numbers_of[i]);
    EXPECT_OK(quern_source_call(&source, 5, 1, number_fields, without_reason, &given, &memory_allocator));
    quern_source_fail(QUERN_STATUS_IO, "an earlier error");
    EXPECT_ERROR(quern_source_get(source, 3, (void *[]){&x}), IO, words);
    assert_non_null(strstr(quern_last_error(), "in sample 3"));
    quern_source_free(source);
  }
}

static void token_windows(void **state) {
  (void)state;
  uint16_t first[10], second[4], third[9];
  for (uint16_t i = 0; i < 10; i++) first[i] = i;
  for (uint16_t i = 0; i < 4; i++) second[i] = (uint16_t)(100 + i);
  for (uint16_t i = 0; i < 9; i++) third[i] = (uint16_t)(200 + i);
  quern_tokens *tokens[3];
  quern_tokens_options options = QUERN_INIT(quern_tokens_options);
  options.raw = true;
  options.allocator = memory_allocator;
  EXPECT_OK(quern_tokens_wrap(&tokens[0], first, sizeof first, &options));
  EXPECT_OK(quern_tokens_wrap(&tokens[1], second, sizeof second, &options));
  EXPECT_OK(quern_tokens_wrap(&tokens[2], third, sizeof third, &options));
  quern_token_window window = QUERN_INIT(quern_token_window);
  window.length = 4;
  quern_source *source;
  const quern_field *fields;
  EXPECT_OK(quern_source_tokens(&source, 3, tokens, &window, &memory_allocator));
  assert_int_equal(quern_source_sample_count(source), 4); /* 0..4, 4..8; none in four ids; 200..204, 204..208 */
  assert_int_equal(quern_source_fields(source, &fields), 2);
  assert_string_equal(fields[0].name, "inputs");
  assert_string_equal(fields[1].name, "labels");
  assert_true(fields[0].dtype == QUERN_DTYPE_I32 && fields[0].rank == 1 && fields[0].dims[0] == 4 &&
              fields[1].pad == -1);
  static const int32_t starts[] = {0, 4, 200, 204};
  for (int64_t i = 0; i < 4; i++) {
    int32_t inputs[4], labels[4];
    EXPECT_OK(quern_source_get(source, i, (void *[]){inputs, labels}));
    for (int k = 0; k < 4; k++) assert_true(inputs[k] == starts[i] + k && labels[k] == starts[i] + k + 1);
  }
  quern_source_free(source);
  window.stride = 1;
  window.dtype = QUERN_DTYPE_I64;
  EXPECT_OK(quern_source_tokens(&source, 3, tokens, &window, &memory_allocator));
  assert_int_equal(quern_source_sample_count(source), 6 + 0 + 5);
  int64_t wide[2][4];
  EXPECT_OK(quern_source_get(source, 10, (void *[]){wide[0], wide[1]}));
  assert_true(wide[0][0] == 204 && wide[1][3] == 208);
  quern_source_free(source);
  window.vocab = 203; /* an id that is too large: where it is */
  EXPECT_OK(quern_source_tokens(&source, 3, tokens, &window, &memory_allocator));
  EXPECT_ERROR(quern_source_get(source, 6, (void *[]){wide[0], wide[1]}), PARSE,
               "tokens: the id at 3 is 203, there are 203");
  EXPECT_ERROR(quern_source_get(source, 11, (void *[]){wide[0], wide[1]}), INVALID, "source_get: sample 11 of 11");
  quern_source_free(source);
  window.length = 10;
  EXPECT_ERROR(quern_source_tokens(&source, 3, tokens, &window, &memory_allocator), INVALID,
               "no file has the 11 ids of a window");
  for (size_t i = 0; i < 3; i++) quern_tokens_free(tokens[i]);
  /* ids that are no i32 */
  static const uint32_t large[] = {INT32_MAX, UINT32_C(1) << 31, UINT32_MAX};
  options.dtype = QUERN_DTYPE_U32;
  window = QUERN_INIT(quern_token_window);
  window.length = 1;
  EXPECT_OK(quern_tokens_wrap(&tokens[0], large, sizeof large, &options));
  EXPECT_OK(quern_source_tokens(&source, 1, tokens, &window, &memory_allocator));
  EXPECT_ERROR(quern_source_get(source, 0, (void *[]){wide[0], wide[1]}), PARSE,
               "the id at 1 is 2147483648, there are 2147483648");
  quern_source_free(source);
  window.dtype = QUERN_DTYPE_I64;
  EXPECT_OK(quern_source_tokens(&source, 1, tokens, &window, &memory_allocator));
  EXPECT_OK(quern_source_get(source, 1, (void *[]){wide[0], wide[1]}));
  assert_true(wide[0][0] == INT64_C(1) << 31 && wide[1][0] == UINT32_MAX);
  quern_source_free(source);
  quern_tokens_free(tokens[0]);
}

static void array_rows(void **state) {
  (void)state;
  char a[256], b[256], c[256];
  double x[6] = {0.5, 1.5, 2.5, 3.5, 4.5, 5.5};
  int32_t labels[3] = {7, 8, 9};
  quern_source *source;
  const quern_field *fields;
  EXPECT_OK(quern_npy_write(in_folder(a, "a.npy"), QUERN_DTYPE_F64, 2, (int64_t[]){3, 2}, x));
  EXPECT_OK(quern_npy_write(in_folder(b, "b.npy"), QUERN_DTYPE_I32, 1, (int64_t[]){3}, labels));
  EXPECT_OK(quern_source_arrays(&source, 2, (const char *[]){a, b}, &memory_allocator));
  assert_int_equal(quern_source_sample_count(source), 3);
  assert_int_equal(quern_source_fields(source, &fields), 2);
  assert_string_equal(fields[0].name, a);
  assert_true(fields[0].rank == 1 && fields[0].dims[0] == 2 && fields[1].rank == 0 &&
              fields[1].dtype == QUERN_DTYPE_I32);
  for (int64_t i = 0; i < 3; i++) {
    double row[2];
    int32_t label;
    EXPECT_OK(quern_source_get(source, i, (void *[]){row, &label}));
    assert_true(row[0] == x[2 * i] && row[1] == x[2 * i + 1] && label == labels[i]);
  }
  assert_int_equal(truncate(a, 130), 0);
  EXPECT_ERROR(quern_source_get(source, 2, (void *[]){(double[2]){0}, (int32_t[1]){0}}), IO,
               "a.npy: has become shorter");
  quern_source_free(source);
  /* the other order of bytes, as NumPy wrote it; what cannot be rows */
  EXPECT_OK(
      quern_source_arrays(&source, 1, (const char *[]){"tests/fuzz/corpus/fuzz_npy/f8_big.npy"}, &memory_allocator));
  double row[3];
  EXPECT_OK(quern_source_get(source, 1, (void *[]){row}));
  assert_true(row[0] == 2.5 && row[1] == 3.5 && row[2] == 4.5);
  quern_source_free(source);
  EXPECT_ERROR(
      quern_source_arrays(&source, 1, (const char *[]){"tests/fuzz/corpus/fuzz_npy/f4_fortran.npy"}, &memory_allocator),
      UNSUPPORTED, "has its columns first");
  EXPECT_ERROR(
      quern_source_arrays(&source, 1, (const char *[]){"tests/fuzz/corpus/fuzz_npy/scalar.npy"}, &memory_allocator),
      SHAPE, "is a scalar");
  EXPECT_ERROR(
      quern_source_arrays(&source, 1, (const char *[]){"tests/fuzz/corpus/fuzz_npy/empty.npy"}, &memory_allocator),
      SHAPE, "has no rows");
  EXPECT_OK(quern_npy_write(in_folder(c, "c.npy"), QUERN_DTYPE_I32, 1, (int64_t[]){2}, labels));
  EXPECT_ERROR(quern_source_arrays(&source, 2, (const char *[]){b, c}, &memory_allocator), SHAPE, "c.npy: has 2 rows");
  EXPECT_ERROR(quern_source_arrays(&source, 2, (const char *[]){b, "/nowhere.npy"}, &memory_allocator), IO,
               "cannot be opened");
}

/* ---- the loader ---------------------------------------------------------------------------------------- */

static quern_loader_options plain(int64_t batch) {
  quern_loader_options options = QUERN_INIT(quern_loader_options);
  options.batch = batch;
  options.allocator = memory_allocator;
  return options;
}

static quern_loader *loader_of(const quern_source *source, quern_loader_options options) {
  quern_loader *loader;
  EXPECT_OK(quern_loader_new(&loader, source, &options));
  return loader;
}

/* The next batch as text; false: there is none. Checks that fields and indices agree. */
static bool next_text(quern_loader *loader, int64_t size, char *text, size_t room) {
  quern_batch batch = QUERN_INIT(quern_batch);
  EXPECT_OK(quern_loader_next(loader, &batch));
  if (batch.fields == NULL) return false;
  size_t n = (size_t)snprintf(text, room, "%d.%d:", (int)batch.epoch, (int)batch.number);
  const int32_t *x = batch.fields[0];
  const float *y = batch.fields[1];
  for (int64_t i = 0; i < size; i++) {
    bool real = i < batch.samples;
    assert_int_equal(batch.indices[i], real ? x[i] : -1);
    if (!real) assert_int_equal(x[i], -7);
    for (int k = 0; k < 3; k++) assert_true(y[3 * i + k] == (real ? (float)(x[i] * 10 + k) : -1));
    n += (size_t)snprintf(text + n, room - n, " %d", (int)batch.indices[i]);
  }
  return true;
}

static void expect_batches(const quern_source *source, quern_loader_options options, size_t n,
                           const char *const *expected) {
  for (int workers = 0; workers < 4; workers++) {
    char text[256];
    options.workers = workers;
    quern_loader *loader = loader_of(source, options);
    for (size_t i = 0; i < n; i++) {
      assert_true(next_text(loader, options.batch, text, sizeof text));
      assert_string_equal(text, expected[i]);
    }
    if (options.epochs > 0) assert_false(next_text(loader, options.batch, text, sizeof text));
    if (options.epochs > 0) assert_false(next_text(loader, options.batch, text, sizeof text));
    quern_loader_free(loader);
  }
}

static void drop_and_pad(void **state) {
  (void)state;
  quern_source *source = numbers(5);
  quern_loader_options options = plain(2);
  expect_batches(source, options, 5, (const char *[]){"0.0: 0 1", "0.1: 2 3", "1.0: 0 1", "1.1: 2 3", "2.0: 0 1"});
  options.epochs = 2;
  options.last = QUERN_LAST_PAD;
  expect_batches(source, options, 6,
                 (const char *[]){"0.0: 0 1", "0.1: 2 3", "0.2: 4 -1", "1.0: 0 1", "1.1: 2 3", "1.2: 4 -1"});
  quern_loader *loader = loader_of(source, options);
  assert_int_equal(quern_loader_batch_count(loader), 3);
  quern_loader_free(loader);
  options.last = QUERN_LAST_DROP;
  options.epochs = 1;
  expect_batches(source, options, 2, (const char *[]){"0.0: 0 1", "0.1: 2 3"});
  options.batch = 6;
  EXPECT_ERROR(quern_loader_new(&loader, source, &options), INVALID, "an epoch of 5 samples has no batch of 6");
  options.last = QUERN_LAST_PAD;
  expect_batches(source, options, 1, (const char *[]){"0.0: 0 1 2 3 4 -1"});
  options.batch = 5;
  expect_batches(source, options, 1, (const char *[]){"0.0: 0 1 2 3 4"});
  quern_source_free(source);
}

/* Batches of n loaders of a world, put together, are those of one loader with n times the batch. */
static void shards(void **state) {
  (void)state;
  quern_source *source = numbers(23);
  for (int last = 0; last < 2; last++) {
    quern_loader_options options = plain(6);
    options.order = QUERN_ORDER_SHUFFLED;
    options.seed = 5;
    options.last = (quern_last)last;
    quern_loader *whole = loader_of(source, options), *ranks[3];
    options.batch = 2;
    options.world = 3;
    for (options.rank = 0; options.rank < 3; options.rank++) ranks[options.rank] = loader_of(source, options);
    for (int i = 0; i < 20; i++) {
      quern_batch all = QUERN_INIT(quern_batch), part = QUERN_INIT(quern_batch);
      EXPECT_OK(quern_loader_next(whole, &all));
      int64_t samples = 0;
      for (int r = 0; r < 3; r++) {
        EXPECT_OK(quern_loader_next(ranks[r], &part));
        assert_true(part.epoch == all.epoch && part.number == all.number);
        assert_memory_equal(part.indices, all.indices + 2 * r, 2 * sizeof *part.indices);
        samples += part.samples;
      }
      assert_int_equal(samples, all.samples);
      quern_cursor a = quern_loader_tell(whole), b = quern_loader_tell(ranks[1]);
      assert_true(a.epoch == b.epoch && a.position == b.position);
    }
    quern_loader_free(whole);
    for (int r = 0; r < 3; r++) quern_loader_free(ranks[r]);
  }
  quern_source_free(source);
}

/* From any batch on, with any number of workers: the same as without the break. */
static void resumed(void **state) {
  (void)state;
  static const double some[17] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2, 1};
  quern_source *source = numbers(17);
  for (int order = 0; order < 3; order++) {
    for (int last = 0; last < 2; last++) {
      enum { RUN = 18 };
      char texts[RUN][128], text[128];
      quern_cursor cursors[RUN];
      quern_loader_options options = plain(3);
      options.order = (quern_order)order;
      options.last = (quern_last)last;
      options.seed = 11;
      options.n_weights = 17;
      options.weights = some;
      options.draws = order == QUERN_ORDER_WEIGHTED ? 20 : 0;
      quern_loader *loader = loader_of(source, options);
      for (int i = 0; i < RUN; i++) {
        cursors[i] = quern_loader_tell(loader);
        assert_true(next_text(loader, 3, texts[i], sizeof texts[i]));
      }
      for (int i = RUN - 1; i >= 0; i--) { /* the same loader, backwards */
        EXPECT_OK(quern_loader_seek(loader, cursors[i]));
        assert_true(next_text(loader, 3, text, sizeof text));
        assert_string_equal(text, texts[i]);
      }
      quern_loader_free(loader);
      for (int i = 0; i < RUN; i += 5) { /* others, forwards */
        options.workers = i % 4;
        options.prefetch = 1 + i % 3;
        loader = loader_of(source, options);
        EXPECT_OK(quern_loader_seek(loader, cursors[i]));
        for (int k = i; k < RUN; k++) {
          assert_true(next_text(loader, 3, text, sizeof text));
          assert_string_equal(text, texts[k]);
        }
        quern_loader_free(loader);
      }
    }
  }
  quern_loader_options options = plain(3);
  quern_loader *loader = loader_of(source, options);
  EXPECT_ERROR(quern_loader_seek(loader, (quern_cursor){0, 18}), INVALID, "loader_seek: position 18 of an epoch of 17");
  EXPECT_ERROR(quern_loader_seek(loader, (quern_cursor){0, -1}), INVALID, "loader_seek: position -1");
  EXPECT_OK(quern_loader_seek(loader, (quern_cursor){3, 17}));
  assert_true(quern_loader_tell(loader).epoch == 4 && quern_loader_tell(loader).position == 0);
  quern_loader_free(loader);
  quern_source_free(source);
}

static void errors_surface(void **state) {
  (void)state;
  quern_source *source = numbers(10);
  for (int workers = 0; workers < 4; workers++) {
    quern_loader_options options = plain(2);
    quern_batch batch = QUERN_INIT(quern_batch);
    options.workers = workers;
    options.prefetch = 4;
    fails_at = 5;
    quern_loader *loader = loader_of(source, options);
    for (int i = 0; i < 2; i++) EXPECT_OK(quern_loader_next(loader, &batch));
    for (int i = 0; i < 3; i++) { /* as often as it is asked for */
      EXPECT_ERROR(quern_loader_next(loader, &batch), IO, "a hand-made fault\n  in epoch 0, position 5, sample 5");
      assert_null(batch.fields);
      assert_int_equal(quern_loader_tell(loader).position, 4);
    }
    int before = atomic_load(&reads); /* nobody tries in between */
    nanosleep(&(struct timespec){0, 2000000}, NULL);
    assert_int_equal(atomic_load(&reads), before);
    fails_at = -1; /* it can be read after all */
    EXPECT_OK(quern_loader_next(loader, &batch));
    assert_true(batch.number == 2 && batch.indices[1] == 5);
    EXPECT_OK(quern_loader_next(loader, &batch));
    assert_true(batch.number == 3);
    quern_loader_free(loader);
  }
  quern_source_free(source);
}

static quern_status slow(void *self, int64_t index, void *const *fields) {
  nanosleep(&(struct timespec){0, 200000}, NULL);
  return number(self, index, fields);
}

/* Ended at any time: at once, while workers read, with batches ready, after an error. */
static void ended_at_any_time(void **state) {
  (void)state;
  quern_source *source;
  EXPECT_OK(quern_source_call(&source, 100, 2, number_fields, slow, NULL, &memory_allocator));
  for (int i = 0; i < 60; i++) {
    quern_loader_options options = plain(1 + i % 3);
    quern_batch batch = QUERN_INIT(quern_batch);
    options.workers = 1 + i % 4;
    options.prefetch = i % 5;
    fails_at = i % 7 == 0 ? 2 : -1;
    quern_loader *loader = loader_of(source, options);
    for (int k = 0; k < i % 6; k++) {
      if (quern_loader_next(loader, &batch) != QUERN_STATUS_OK) assert_int_equal(i % 7, 0);
      if (k == 3) EXPECT_OK(quern_loader_seek(loader, (quern_cursor){1, 50}));
    }
    if (i % 2 == 0) nanosleep(&(struct timespec){0, 300000}, NULL);
    quern_loader_free(loader);
  }
  fails_at = -1;
  quern_source_free(source);
}

/* Workers are ahead of the caller by prefetch batches, and no more. */
static void works_ahead(void **state) {
  (void)state;
  quern_source *source = numbers(1000);
  quern_loader_options options = plain(1);
  quern_batch batch = QUERN_INIT(quern_batch);
  options.workers = 2;
  options.prefetch = 3;
  atomic_store(&reads, 0);
  quern_loader *loader = loader_of(source, options);
  EXPECT_OK(quern_loader_next(loader, &batch));
  for (int i = 0; i < 500 && atomic_load(&reads) < 4; i++) nanosleep(&(struct timespec){0, 1000000}, NULL);
  nanosleep(&(struct timespec){0, 20000000}, NULL);
  assert_int_equal(atomic_load(&reads), 4);
  quern_loader_free(loader);
  quern_source_free(source);
}

/* Memory of batches comes from an allocator of its own. */
static size_t buffer_bytes, buffers_live;

static void *buffer_alloc(void *self, size_t bytes) {
  (void)self;
  buffer_bytes += bytes;
  buffers_live++;
  return memory_alloc(NULL, bytes);
}

static void buffer_free(void *self, void *memory, size_t bytes) {
  (void)self;
  buffers_live--;
  memory_free(NULL, memory, bytes);
}

static void own_buffers(void **state) {
  (void)state;
  quern_source *source = numbers(10);
  quern_loader_options options = plain(5);
  quern_batch batch = QUERN_INIT(quern_batch);
  options.prefetch = 2;
  options.buffers = (quern_allocator){buffer_alloc, buffer_free, NULL};
  quern_loader *loader = loader_of(source, options);
  assert_true(buffers_live == 3 && buffer_bytes == 3 * (64 + 64));
  EXPECT_OK(quern_loader_next(loader, &batch));
  assert_true((uintptr_t)batch.fields[0] % 64 == 0 && (uintptr_t)batch.fields[1] % 64 == 0);
  quern_loader_free(loader);
  assert_int_equal(buffers_live, 0);
  quern_source_free(source);
}

/* A token file through the loader, to the end of an epoch that is filled up. */
static void tokens_loaded(void **state) {
  (void)state;
  char path[256];
  uint32_t ids[22];
  quern_tokens_writer *writer;
  quern_tokens *tokens;
  quern_source *source;
  quern_batch batch = QUERN_INIT(quern_batch);
  for (uint32_t i = 0; i < 22; i++) ids[i] = i;
  EXPECT_OK(quern_tokens_writer_new(&writer, in_folder(path, "t.bin"), NULL));
  EXPECT_OK(quern_tokens_writer_add(writer, 22, ids));
  EXPECT_OK(quern_tokens_writer_end(writer));
  quern_tokens_writer_free(writer);
  quern_tokens_options read = QUERN_INIT(quern_tokens_options);
  read.allocator = memory_allocator;
  EXPECT_OK(quern_tokens_open(&tokens, path, &read));
  quern_token_window window = QUERN_INIT(quern_token_window);
  window.length = 7;
  EXPECT_OK(quern_source_tokens(&source, 1, &tokens, &window, &memory_allocator));
  quern_loader_options options = plain(2);
  options.last = QUERN_LAST_PAD;
  options.epochs = 1;
  quern_loader *loader = loader_of(source, options);
  EXPECT_OK(quern_loader_next(loader, &batch));
  const int32_t *inputs = batch.fields[0], *labels = batch.fields[1];
  for (int i = 0; i < 14; i++) assert_true(inputs[i] == i && labels[i] == i + 1);
  EXPECT_OK(quern_loader_next(loader, &batch));
  inputs = batch.fields[0], labels = batch.fields[1];
  for (int i = 0; i < 14; i++) assert_true(inputs[i] == (i < 7 ? 14 + i : 0) && labels[i] == (i < 7 ? 15 + i : -1));
  assert_int_equal(batch.samples, 1);
  EXPECT_OK(quern_loader_next(loader, &batch));
  assert_null(batch.fields);
  EXPECT_OK(quern_loader_seek(loader, (quern_cursor){0, 0}));
  EXPECT_OK(quern_loader_next(loader, &batch));
  assert_int_equal(truncate(path, 1030), 0);
  EXPECT_OK(quern_loader_seek(loader, (quern_cursor){0, 2}));
  EXPECT_ERROR(quern_loader_next(loader, &batch), IO,
               "t.bin: has become shorter than the 1068 bytes it had\n  in epoch 0, position 2");
  quern_loader_free(loader);
  quern_source_free(source);
  quern_tokens_free(tokens);
}

/* ---- faults -------------------------------------------------------------------------------------------- */

static void faults(void **state) {
  (void)state;
  char a[256];
  static const double some[3] = {1, 2, 3};
  EXPECT_OK(quern_npy_write(in_folder(a, "f.npy"), QUERN_DTYPE_F64, 1, (int64_t[]){3}, some));
  struct fault fault = {0};
  while (fault_next(&fault)) {
    quern_source *source = NULL, *arrays = NULL;
    quern_loader *loader = NULL;
    quern_batch batch = QUERN_INIT(quern_batch);
    quern_loader_options options = plain(2);
    options.order = QUERN_ORDER_WEIGHTED;
    options.n_weights = 3;
    options.weights = some;
    fault_begin(&fault);
    quern_status status = quern_source_call(&source, 3, 2, number_fields, number, NULL, &memory_allocator);
    if (status == QUERN_STATUS_OK) status = quern_source_arrays(&arrays, 1, (const char *[]){a}, &memory_allocator);
    if (status == QUERN_STATUS_OK) status = quern_loader_new(&loader, source, &options);
    if (status == QUERN_STATUS_OK) status = quern_loader_next(loader, &batch);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    quern_loader_free(loader);
    quern_source_free(arrays);
    quern_source_free(source);
  }
  assert_true(fault.n > 12);
}

static void token_faults(void **state) {
  (void)state;
  static const uint16_t ids[9];
  quern_tokens *tokens;
  quern_tokens_options options = QUERN_INIT(quern_tokens_options);
  quern_token_window window = QUERN_INIT(quern_token_window);
  window.length = 3;
  options.raw = true;
  EXPECT_OK(quern_tokens_wrap(&tokens, ids, sizeof ids, &options));
  struct fault fault = {0};
  while (fault_next(&fault)) {
    quern_source *source;
    fault_begin(&fault);
    quern_status status = quern_source_tokens(&source, 1, &tokens, &window, &memory_allocator);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    quern_source_free(source);
  }
  assert_true(fault.n > 2);
  quern_tokens_free(tokens);
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
      TEST(permutations),
      TEST(large_permutation),
      TEST(fair_permutations),
      TEST(mixed),
      TEST(weights),
      TEST(known_orders),
      TEST(failures_without_reason),
      TEST(token_windows),
      TEST(array_rows),
      TEST(drop_and_pad),
      TEST(shards),
      TEST(resumed),
      TEST(errors_surface),
      TEST(ended_at_any_time),
      TEST(works_ahead),
      TEST(own_buffers),
      TEST(tokens_loaded),
      TEST(faults),
      TEST(token_faults),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
