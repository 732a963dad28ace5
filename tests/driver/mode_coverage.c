/* driver/mode_coverage.c -- every op, dtype and edge family has a case
** Graphs of all cases are built, not evaluated. Needed: each op of ops.def in a case's graph; with each dtype
** its row admits; in a case that mode grad runs when its row has it; each elementwise op as the result of a
** case of size 0, size 1, an odd size, on a strided view, broadcasting, and on special values; a case of each
** builder; a builder of each public function. What is inside bodies of composites does not count.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"

enum family { SIZE_0, SIZE_1, ODD, STRIDED, BROADCAST, SPECIAL, FAMILIES };
static const char *const family_names[FAMILIES] = {"size 0",         "size 1",       "an odd size",
                                                   "a strided view", "broadcasting", "special values"};

struct seen {
  uint32_t dtypes; /* of source 0, or of the result where that says more */
  bool grad, jvp;
  bool family[FAMILIES];
};

/* ---- exemptions, each with its reason ------------------------------------------------------------------ */

static const struct {
  enum ir_op op;
  uint32_t dtypes;
  const char *why;
} only_dtypes[] = {
    {IR_RANDOM, 1u << QUERN_DTYPE_U64, "source 0 is the seed, always u64"},
};

static const struct {
  enum ir_op op;
  const char *why;
} no_vjp[] = {
    {IR_WHILE, "has a jvp only: the number of steps is not known"},
};

/* Public functions that make tensors but are reached otherwise. */
static const char *const not_built[] = {
    "input",        /* leaf=input, the default */
    "state",        /* leaf=state */
    "tensor_wrap",  /* leaf=wrap */
    "tensor_copy",  /* leaf=copy */
    "constant",     /* leaf=const */
    "graph_input",  /* reads a graph */
    "graph_output", /* reads a graph */
};

/* ---- ops ----------------------------------------------------------------------------------------------- */

static bool is_elementwise(enum ir_op op) { return op >= IR_NEG && op <= IR_SELECT; }
static bool takes_pairs(enum ir_op op) { return ir_ops[op].n_src >= 2; }

/* The dtype by which a use of an op counts. */
static quern_dtype dtype_of(const struct ir_node *node) {
  bool by_result = node->n_src == 0 || node->op == IR_SELECT || node->op == IR_IF;
  return by_result ? node->out[0].dtype : node->src[0]->dtype;
}

/* The dtypes an op must be seen with; select and if by their results, which are of any. */
static uint32_t dtypes_needed(enum ir_op op) {
  uint32_t set = 0;
  for (size_t i = 0; i < BASE_COUNT(only_dtypes); i++)
    if (only_dtypes[i].op == op) return only_dtypes[i].dtypes;
  enum base_dtype_class class = op == IR_SELECT || op == IR_IF ? BASE_ANY : ir_ops[op].dtypes;
  for (int d = 0; d < QUERN_DTYPE_COUNT; d++)
    if (base_dtype_is((quern_dtype)d, class)) set |= UINT32_C(1) << d;
  return set;
}

static void see_params(struct seen *seen, const struct ir_graph *graph) {
  for (int i = 0; graph != NULL && i < graph->n_params; i++)
    seen[IR_PARAM].dtypes |= UINT32_C(1) << graph->params[i]->dtype;
}

static bool same_shape(const struct shape *a, const struct shape *b) {
  return a->rank == b->rank && memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims) == 0;
}

static void see_families(struct seen *seen, const struct test_case *c, const quern_tensor *result) {
  bool *family = seen[result->node->op].family;
  int64_t n = ir_count(result);
  if (n == 0) family[SIZE_0] = true;
  if (n == 1) family[SIZE_1] = true;
  if (n > 1 && n % 2 == 1) family[ODD] = true;
  if (strpbrk(case_text(c, "view", ""), "Tfs") != NULL) family[STRIDED] = true;
  for (int i = 1; i < c->n_shapes; i++)
    if (!same_shape(&c->shapes[i], &c->shapes[0])) family[BROADCAST] = true;
  if (strstr(case_text(c, "in", ""), "special") != NULL) family[SPECIAL] = true;
}

static quern_status see_case(struct seen *seen, const struct instance *in) {
  struct ir_order order = {0};
  QUERN_TRY(ir_topo(in->ctx, (size_t)in->n_out, in->out, &order));
  bool f64 = in->c->dtype == QUERN_DTYPE_F64 && in->n_diff > 0;
  for (size_t i = 0; i < order.n; i++) {
    const struct ir_node *node = order.at[i];
    struct seen *s = &seen[node->op];
    s->dtypes |= UINT32_C(1) << dtype_of(node);
    s->grad = s->grad || (f64 && case_differentiable(in->c, "grad"));
    s->jvp = s->jvp || (f64 && case_differentiable(in->c, "jvp"));
    see_params(seen, node->attrs->body);
    see_params(seen, node->attrs->other);
  }
  ir_order_fini(in->ctx, &order);
  for (int i = 0; i < in->n_out; i++)
    if (is_elementwise(in->out[i]->node->op)) see_families(seen, in->c, in->out[i]);
  return QUERN_STATUS_OK;
}

/* ---- judging ------------------------------------------------------------------------------------------- */

static void demand(struct tally *tally, bool ok, const char *what, const char *missing) {
  if (ok) {
    tally_pass(tally);
  } else {
    tally->failed++;
    printf("FAIL %s: no case with %s\n", what, missing);
  }
}

static bool has_vjp(enum ir_op op) {
  for (size_t i = 0; i < BASE_COUNT(no_vjp); i++)
    if (no_vjp[i].op == op) return false;
  return true;
}

static void check_op(struct tally *tally, enum ir_op op, const struct seen *seen) {
  const char *name = ir_ops[op].name;
  uint32_t needed = dtypes_needed(op);
  for (int d = 0; d < QUERN_DTYPE_COUNT; d++)
    if ((needed >> d & 1) != 0) demand(tally, (seen->dtypes >> d & 1) != 0, name, quern_dtype_name((quern_dtype)d));
  if (ir_ops[op].grad) {
    demand(tally, seen->jvp, name, "mode jvp");
    if (has_vjp(op)) demand(tally, seen->grad, name, "mode grad");
  }
  for (int f = 0; f < FAMILIES && is_elementwise(op); f++)
    if (f != BROADCAST || takes_pairs(op)) demand(tally, seen->family[f], name, family_names[f]);
}

/* Every function of tensor.h that makes a tensor is a builder. */
static void check_header(const struct options *options, struct tally *tally) {
  char path[1024], line[1024];
  const char *mark = "quern_tensor *quern_";
  snprintf(path, sizeof path, "%s/include/quern/tensor.h", options->root);
  FILE *file = fopen(path, "r");
  if (file == NULL) {
    printf("no %s: its functions are not checked\n", path);
    tally_skip(tally);
    return;
  }
  while (fgets(line, sizeof line, file) != NULL) {
    char *name = strstr(line, mark);
    if (name == NULL || strncmp(line, "QUERN_API", 9) != 0) continue;
    name += strlen(mark);
    name[strcspn(name, "(")] = 0;
    bool known = builder_find(name) != NULL;
    for (size_t i = 0; i < BASE_COUNT(not_built) && !known; i++) known = strcmp(not_built[i], name) == 0;
    demand(tally, known, name, "this function: builders.def lacks it");
  }
  fclose(file);
}

void mode_coverage(const struct options *options, const struct case_list *cases, struct tally *tally) {
  static struct seen seen[IR_OP_COUNT];
  bool *built = grab(builder_count * sizeof *built);
  for (size_t i = 0; i < cases->n; i++) {
    struct instance in;
    const struct test_case *c = &cases->at[i];
    bool open = instance_open(&in, c);
    if (!open || see_case(seen, &in) != QUERN_STATUS_OK) tally_fail(tally, c, "coverage", "%s", quern_last_error());
    if (open) instance_close(&in);
    built[c->builder - builders] = true;
  }
  for (int op = 0; op < IR_OP_COUNT; op++) check_op(tally, (enum ir_op)op, &seen[op]);
  for (size_t i = 0; i < builder_count; i++) demand(tally, built[i], builders[i].name, "this builder");
  check_header(options, tally);
  free(built);
}
