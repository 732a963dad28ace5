/* tests/api/test_cut.c -- files and texts cut at every byte, and with every byte changed
** Each cut copy is a block of exactly its size, so that AddressSanitizer sees a read behind its end. A cut .npy file is always
** refused; a cut graph is refused, or is a graph that verifies. Every refusal has a message, and the context stays usable.
*/
#include <unistd.h>

#include "quern/quern.h"
#include "unit.h"

static char path[] = "/tmp/quern_cut_XXXXXX";

static unsigned char *copy_of(const void *bytes, size_t n) {
  unsigned char *copy = malloc(n > 0 ? n : 1);
  assert_non_null(copy);
  if (n > 0) memcpy(copy, bytes, n);
  return copy;
}

/* ---- .npy ------------------------------------------------------------------------------------------------- */

/* A file of a version with that header and 48 bytes of elements; its size. */
static size_t make_npy(unsigned char file[256], int version, const char *header) {
  size_t n = strlen(header), head = version == 1 ? 10 : 12;
  memset(file, 0, 256);
  memcpy(file, "\x93NUMPY", 6);
  file[6] = (unsigned char)version;
  file[8] = (unsigned char)n;
  memcpy(file + head, header, n);
  for (size_t i = 0; i < 48; i++) file[head + n + i] = (unsigned char)(i * 37);
  return head + n + 48;
}

static const struct npy {
  int version;
  const char *header;
} files[] = {
    {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }\n"},
    {2, "{'descr': '>i8', 'fortran_order': True, 'shape': (2, 3), }\n"},
    {3, "{'descr': '|b1', 'fortran_order': True, 'shape': (2, 1, 24), }\n"},
    {1, "{\"shape\": (48,), \"descr\": \"|u1\", \"fortran_order\": False}"},
};

static void write_file(const unsigned char *bytes, size_t n) {
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, n, file), n);
  assert_int_equal(fclose(file), 0);
}

static void expect_refused(quern_status status, const quern_tensor *x) {
  assert_int_equal(status, QUERN_STATUS_PARSE);
  assert_true(quern_tensor_is_poison(x));
  assert_true(strlen(quern_last_error()) > 10);
  assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
}

static void cut_npy(void **state) {
  (void)state;
  int made = mkstemp(path);
  assert_true(made >= 0);
  close(made);
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    unsigned char whole[256];
    size_t size = make_npy(whole, files[i].version, files[i].header);
    quern_tensor *x = NULL;
    for (size_t n = 0; n < size; n++) {
      unsigned char *cut = copy_of(whole, n);
      quern_status status = quern_npy_parse(ctx, cut, n, &x);
      free(cut);
      expect_refused(status, x);
      write_file(whole, n);
      status = quern_npy_read(ctx, path, &x);
      expect_refused(status, x);
      assert_non_null(strstr(quern_last_error(), path));
    }
    assert_int_equal(quern_npy_parse(ctx, whole, size, &x), QUERN_STATUS_OK);
    write_file(whole, size);
    assert_int_equal(quern_npy_read(ctx, path, &x), QUERN_STATUS_OK);
    assert_int_equal(quern_npy_parse(ctx, whole, size + 1, &x), QUERN_STATUS_PARSE);
  }
  assert_int_equal(unlink(path), 0);
}

static const unsigned char changes[] = {0x00, 0xff, '(', '9', '-', '\'', ',', '\n'};

static void changed_npy(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    unsigned char whole[256];
    size_t size = make_npy(whole, files[i].version, files[i].header);
    for (size_t at = 0; at < size; at++) {
      for (size_t k = 0; k < sizeof changes; k++) {
        unsigned char *changed = copy_of(whole, size);
        changed[at] = changes[k];
        quern_tensor *x = NULL;
        quern_status status = quern_npy_parse(ctx, changed, size, &x);
        free(changed);
        assert_true(status == QUERN_STATUS_OK || status == QUERN_STATUS_PARSE || status == QUERN_STATUS_OVERFLOW);
        assert_int_equal(quern_tensor_is_poison(x), status != QUERN_STATUS_OK);
        if (status == QUERN_STATUS_OK) assert_int_equal(quern_tensor_bytes(x), 48);
      }
    }
  }
}

/* ---- graphs as text ----------------------------------------------------------------------------------------- */

static void body(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_add(args[1], quern_mul_scalar(args[2], 0.5));
}

/* The text of a graph that has most of what a text can have. */
static char *make_text(size_t *n) {
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(3, 4));
  quern_tensor *sum = quern_zeros(ctx, QUERN_DTYPE_F32, QUERN_LIST(4)), *sums = NULL;
  quern_loop_options options = {.size = sizeof options, .trip = 3, .n_carries = 1, .n_scanned = 1};
  assert_int_equal(quern_loop(ctx, &options, (quern_tensor *[]){sum, x}, body, NULL, &sums), QUERN_STATUS_OK);
  quern_tensor *outputs[] = {quern_softmax(sums, -1), quern_cast(quern_slice(x, 1, 0, 3, 2), QUERN_DTYPE_BF16),
                             quern_arange(ctx, QUERN_DTYPE_I8, 3, -1, 1)};
  quern_graph *graph = NULL;
  assert_int_equal(quern_graph_new(&graph, ctx, 3, outputs, (const char *const[]){"p", NULL, "n \"1\""}),
                   QUERN_STATUS_OK);
  char *text = NULL;
  assert_int_equal(quern_graph_print(graph, &text), QUERN_STATUS_OK);
  quern_graph_free(graph);
  *n = strlen(text);
  return text;
}

/* Parses bytes as text: a graph that verifies, or a message. */
static quern_status parse(const void *bytes, size_t n) {
  quern_graph *graph = NULL;
  quern_status status = quern_graph_parse(&graph, ctx, bytes, n);
  if (status == QUERN_STATUS_OK) {
    assert_int_equal(quern_graph_verify(graph), QUERN_STATUS_OK);
  } else {
    if (status == QUERN_STATUS_INTERNAL) print_error("%.*s\n%s\n", (int)n, (const char *)bytes, quern_last_error());
    assert_int_not_equal(status, QUERN_STATUS_INTERNAL);
    assert_true(graph == NULL && strlen(quern_last_error()) > 10);
  }
  quern_graph_free(graph);
  assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
  return status;
}

static void cut_graph(void **state) {
  (void)state;
  size_t size, refused = 0;
  char *text = make_text(&size);
  for (size_t n = 0; n < size; n++) {
    unsigned char *cut = copy_of(text, n);
    refused += parse(cut, n) != QUERN_STATUS_OK;
    free(cut);
  }
  assert_true(refused > size * 9 / 10);
  assert_int_equal(parse(text, size), QUERN_STATUS_OK);
  quern_free_text(text);
}

static void changed_graph(void **state) {
  (void)state;
  size_t size;
  char *text = make_text(&size);
  for (size_t at = 0; at < size; at++) {
    for (size_t k = 0; k < sizeof changes; k++) {
      unsigned char *changed = copy_of(text, size);
      changed[at] = changes[k];
      (void)parse(changed, size);
      free(changed);
    }
  }
  quern_free_text(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(cut_npy),
      TEST(changed_npy),
      TEST(cut_graph),
      TEST(changed_graph),
  };
  return cmocka_run_group_tests_name("api/cut", tests, NULL, NULL);
}
