/* tests/api/test_wrong_graph.c -- wrong calls of evaluation, of graphs and of .npy files */
#include "api/wrong.h"

static char space[64]; /* for elements */
static quern_graph *graph;
static quern_tensor *tensor;
static char *text;

static quern_tensor *input(void) { return quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(2)); }

/* ---- graphs: made in `graph` before a condition or a call, freed after it ------------------------------ */

static quern_graph *make_graph(void) {
  quern_tensor *x = T(F32, 2);
  assert_int_equal(quern_graph_new(&graph, ctx, 1, &x, NULL), QUERN_STATUS_OK);
  return graph;
}

static quern_status free_after(quern_status status) {
  quern_graph_free(graph);
  graph = NULL;
  return status;
}

#define with_graph(condition)                                                                                          \
  (make_graph(), free_after((condition) ? QUERN_STATUS_OK : QUERN_STATUS_INTERNAL) == QUERN_STATUS_OK)
#define after_error(call) (make_graph(), (void)quern_reshape(T(F32, 2), QUERN_LIST(3)), free_after(call))

static bool graph_is_null_after_failure(void) {
  graph = make_graph();
  quern_graph *failed = graph;
  bool refused = quern_graph_new(&failed, ctx, 1, (quern_tensor *[]){NULL}, NULL) == QUERN_STATUS_INVALID;
  quern_graph_free(failed);
  return free_after(QUERN_STATUS_OK) == QUERN_STATUS_OK && refused && failed == NULL;
}

static bool empty_graph_verifies(void) {
  if (quern_graph_new(&graph, ctx, 0, NULL, NULL) != QUERN_STATUS_OK) return false;
  return free_after(quern_graph_verify(graph)) == QUERN_STATUS_OK;
}

/* ---- files --------------------------------------------------------------------------------------------- */

/* Parses an .npy of that header without elements. */
static quern_status parse_npy(const char *header) {
  char bytes[300] = "\x93NUMPY\x01";
  size_t n = strlen(header);
  bytes[8] = (char)n;
  memcpy(bytes + 10, header, n);
  quern_status status = quern_npy_parse(ctx, bytes, 10 + n, &tensor);
  assert_true(quern_tensor_is_poison(tensor));
  return status;
}

static const char *long_path(void) {
  static char path[6000];
  memset(path, 'p', sizeof path - 1);
  return path;
}

#define ROWS "api/wrong_graph.def"
#include "api/rows.h"
