/* tests/pass/pass_test.h -- what the tests of pass/ share: making groups, counting them, and running them one by one
** Groups are run by the evaluator of the graph: the outs of each with its ins replaced by what earlier groups wrote.
** This knows nothing of kernels, and proves that the groups are a right partition.
*/
#ifndef TESTS_PASS_PASS_TEST_H
#define TESTS_PASS_PASS_TEST_H
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pass/pass.h"
#include "quern/quern.h"

/* The options of a list such as "-fuse". */
static inline struct pass_options pass_test_options(const char *list) {
  struct pass_options options = {0};
  return pass_options_parse(&options, 1, list) == QUERN_STATUS_OK ? options : (struct pass_options){0};
}

/* ---- counting -------------------------------------------------------------------------------------------------- */

struct pass_counts {
  size_t kinds[PASS_KIND_COUNT];
  size_t kernels; /* all but views */
  size_t unique;  /* hashes among them */
  size_t outs, nodes;
};

static inline int pass_test_by_hash(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static inline struct pass_counts pass_test_count(const struct pass_groups *groups) {
  struct pass_counts counts = {0};
  uint64_t *hashes = calloc(groups->groups.n + 1, sizeof *hashes);
  for (size_t i = 0; i < groups->groups.n && hashes != NULL; i++) {
    const struct pass_group *group = groups->groups.at[i];
    counts.kinds[group->kind]++;
    counts.outs += group->n_outs;
    counts.nodes += group->n_nodes;
    if (group->kind != PASS_KIND_VIEW) hashes[counts.kernels++] = group->hash;
  }
  if (hashes == NULL) return counts;
  qsort(hashes, counts.kernels, sizeof *hashes, pass_test_by_hash);
  for (size_t i = 0; i < counts.kernels; i++) counts.unique += i == 0 || hashes[i] != hashes[i - 1];
  free(hashes);
  return counts;
}

/* ---- running --------------------------------------------------------------------------------------------------- */

struct pass_value {
  quern_tensor *tensor, *stands; /* stands: a leaf with its elements, for it to be read from */
  void *data;
};
struct pass_values {
  size_t n, cap;
  struct pass_value *at;
};

static inline struct pass_value *pass_test_find(const struct pass_values *values, const quern_tensor *t) {
  for (size_t i = values->n; i-- > 0;)
    if (values->at[i].tensor == t) return &values->at[i];
  return NULL;
}

/* Keeps the elements of t, which are the caller's to free with the rest. */
static inline quern_status pass_test_keep(quern_context *of, struct pass_values *values, quern_tensor *t, void *data) {
  if (values->n == values->cap) {
    size_t cap = 2 * values->cap + 64;
    struct pass_value *at = realloc(values->at, cap * sizeof *at);
    if (at == NULL) return QUERN_STATUS_MEMORY;
    values->at = at;
    values->cap = cap;
  }
  quern_tensor *stands = ir_leaf(of, t->dtype, t->rank, t->dims);
  if (ir_is_poison(stands)) return QUERN_STATUS_INTERNAL;
  values->at[values->n++] = (struct pass_value){t, stands, data};
  return QUERN_STATUS_OK;
}

static inline void pass_test_free(struct pass_values *values, size_t from) {
  for (size_t i = from; i < values->n; i++) free(values->at[i].data);
  free(values->at);
}

/* The outs of a group, evaluated. */
static inline quern_status pass_test_run_group(quern_context *of, const struct pass_group *group,
                                               struct pass_values *values) {
  size_t n = group->n_outs, m = group->n_ins;
  quern_tensor **from = calloc(m + 1, sizeof *from), **to = calloc(m + 1, sizeof *to), **outs = calloc(n, sizeof *outs),
               **now = calloc(n, sizeof *now);
  struct ir_binding *bindings = calloc(m + 1, sizeof *bindings);
  void **dst = calloc(n, sizeof *dst);
  size_t pairs = 0;
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < m; i++) {
    const struct pass_value *value = pass_test_find(values, group->ins[i]);
    if (value == NULL) { /* a constant or a buffer, which evaluates by itself */
      if (group->ins[i]->node->op != IR_CONST && group->ins[i]->node->op != IR_BUFFER)
        status = base_error(QUERN_STATUS_INTERNAL, "in %zu has no value", i);
      continue;
    }
    from[pairs] = group->ins[i];
    to[pairs] = value->stands;
    bindings[pairs++] = (struct ir_binding){value->stands, value->data};
  }
  for (size_t i = 0; i < n; i++) {
    outs[i] = group->outs[i].tensor;
    dst[i] = malloc(ir_bytes(outs[i]) + 1);
  }
  if (status == QUERN_STATUS_OK) status = ir_substitute(of, n, outs, pairs, from, to, now);
  if (status == QUERN_STATUS_OK) status = ir_eval(of, n, now, dst, pairs, bindings);
  for (size_t i = 0; i < n; i++) {
    if (status == QUERN_STATUS_OK)
      status = pass_test_keep(of, values, outs[i], dst[i]);
    else
      free(dst[i]);
  }
  free(from), free(to), free(outs), free(now), free(bindings), free(dst);
  return status;
}

static inline bool pass_test_same(const quern_tensor *t, const void *a, const void *b) {
  size_t size = base_dtypes[t->dtype].size;
  for (size_t i = 0; i < (size_t)ir_count(t); i++) {
    if (memcmp((const char *)a + i * size, (const char *)b + i * size, size) == 0) continue;
    bool nan = base_dtype_is(t->dtype, BASE_FLOAT) && isnan(base_load_float(t->dtype, a, i)) &&
               isnan(base_load_float(t->dtype, b, i));
    if (!nan) return false;
  }
  return true;
}

/* Runs all groups and compares each root with expected[i], bit for bit (NaNs are all alike). leaves: n_leaves values of
** INPUT and STATE leaves. */
static inline quern_status pass_test_run(const struct pass_groups *groups, const struct pass_graph *graph,
                                         size_t n_leaves, const struct ir_binding *leaves, void *const *expected) {
  struct pass_values values = {0};
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < n_leaves && status == QUERN_STATUS_OK; i++)
    status = pass_test_keep(graph->ctx, &values, &leaves[i].leaf->node->out[0], (void *)(uintptr_t)leaves[i].data);
  for (size_t i = 0; i < groups->groups.n && status == QUERN_STATUS_OK; i++)
    status = pass_test_run_group(graph->ctx, groups->groups.at[i], &values);
  for (size_t i = 0; i < graph->n_roots && status == QUERN_STATUS_OK; i++) {
    const quern_tensor *root = graph->roots[i];
    const struct pass_value *value = pass_test_find(&values, root);
    if (value == NULL && (root->node->op == IR_CONST || root->node->op == IR_BUFFER)) continue;
    if (value == NULL)
      status = base_error(QUERN_STATUS_INTERNAL, "root %zu is not written", i);
    else if (!pass_test_same(root, value->data, expected[i]))
      status = base_error(QUERN_STATUS_INTERNAL, "groups: root %zu has other bits", i);
  }
  pass_test_free(&values, n_leaves);
  return status;
}

#endif
