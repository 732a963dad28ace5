/* tensor/control.c -- loops, branches and composites made of a caller's functions
** in:    functions that build expressions on given tensors     out: nodes that hold them as closed graphs
** keeps: a call that fails leaves the poison in every result and reports the first error there was
** tests: tests/tensor/test_control.c
*/
#include "tensor/tensor.h"

#include <string.h>

#include "tensor/kinds.h"

/* ---- checks -------------------------------------------------------------------------------------------- */

/* The error that a context holds; one about a poison operand when it has been reported before. */
static quern_status report(const char *what, quern_context *ctx) {
  TENSOR_CHECK_STATUS(ctx, false, INVALID, "%s: an operand is poison: the call that made it failed", what);
}

/* Sets results to the poison, and checks the lists and that all operands are of ctx. */
static quern_status check_lists(const char *what, quern_context *ctx, int n, quern_tensor *const *operands,
                                int n_results, quern_tensor **results) {
  TENSOR_CHECK_STATUS(ctx, ctx != NULL, INVALID, "%s: the context is null", what);
  TENSOR_CHECK_STATUS(ctx, n >= 0 && n_results >= 1, INVALID, "%s: %d operands and %d results; one result is needed",
                      what, n, n_results);
  TENSOR_CHECK_STATUS(ctx, results != NULL, INVALID, "%s: the place for the results is null", what);
  for (int i = 0; i < n_results; i++) results[i] = &ir_poison;
  TENSOR_CHECK_STATUS(ctx, n == 0 || operands != NULL, INVALID, "%s: the list of %d operands is null", what, n);
  for (int i = 0; i < n; i++) {
    TENSOR_CHECK_STATUS(ctx, operands[i] != NULL, INVALID, "%s: operand %d is null", what, i);
    if (ir_is_poison(operands[i])) return report(what, ctx);
    TENSOR_CHECK_STATUS(ctx, operands[i]->node->ctx == ctx, INVALID, "%s: operand %d belongs to another context", what,
                        i);
  }
  return quern_context_check(ctx);
}

/* The results of a node, or the context's error. */
static quern_status give_results(const char *what, quern_context *ctx, quern_tensor *y, int n_results,
                                 quern_tensor **results) {
  QUERN_ASSERT(results != NULL);
  if (ir_is_poison(y)) return report(what, ctx);
  for (int i = 0; i < n_results; i++) results[i] = ir_result(y, i);
  return QUERN_STATUS_OK;
}

/* ---- bodies -------------------------------------------------------------------------------------------- */

/* A closed graph from what a caller's function builds on leaves; role names it in messages. */
static quern_status close_body(const char *what, const char *role, quern_context *ctx, quern_body *body, void *user,
                               int n_args, quern_tensor *const *args, int n_results, const struct ir_graph **graph) {
  size_t bytes;
  TENSOR_CHECK_STATUS(ctx, base_size((size_t)n_results, sizeof(quern_tensor *), 0, &bytes), OVERFLOW,
                      "%s: %d results are too many", what, n_results);
  quern_tensor **results = base_alloc_zero(&ctx->heap, bytes);
  if (results == NULL) return QUERN_STATUS_MEMORY;
  const char *file;
  int line;
  base_place_get(&file, &line);
  body(user, args, results);
  quern_place_set(file, line); /* the builders of the body have set theirs */
  quern_status status = quern_context_check(ctx);
  for (int i = 0; i < n_results && status == QUERN_STATUS_OK; i++) {
    const char *wrong = results[i] == NULL             ? "null"
                        : ir_is_poison(results[i])     ? "poison"
                        : results[i]->node->ctx != ctx ? "of another context"
                                                       : NULL;
    if (wrong == NULL) continue;
    ir_fail(ctx, QUERN_STATUS_INVALID, "%s: result %d of the %s is %s", what, i, role, wrong);
    status = quern_context_check(ctx);
  }
  if (status == QUERN_STATUS_OK && ir_graph_make(ctx, n_args, args, n_results, results, graph) != QUERN_STATUS_OK) {
    ir_fail(ctx, quern_last_status(), "%s: %s", what, quern_last_error());
    status = quern_context_check(ctx);
  }
  base_free(&ctx->heap, results, bytes);
  return status;
}

/* Leaves like the operands, for bodies to be built on; *list has room for extra more before them. */
static quern_status make_leaves(quern_context *ctx, int extra, int n, quern_tensor *const *operands,
                                quern_tensor ***list, size_t *bytes) {
  TENSOR_CHECK_STATUS(ctx, base_size((size_t)n + (size_t)extra, sizeof(quern_tensor *), 0, bytes), OVERFLOW,
                      "%d operands are too many", n);
  *list = base_alloc(&ctx->heap, *bytes);
  if (*list == NULL) return QUERN_STATUS_MEMORY;
  for (int i = 0; i < n; i++) (*list)[extra + i] = ir_leaf_like(operands[i]);
  return QUERN_STATUS_OK;
}

static quern_status leaves_ok(const char *what, quern_context *ctx, int n, quern_tensor *const *leaves) {
  QUERN_ASSERT(leaves != NULL);
  for (int i = 0; i < n; i++) {
    if (ir_is_poison(leaves[i])) return report(what, ctx);
  }
  return QUERN_STATUS_OK;
}

/* The graph's result has the type that an operand started with. */
static quern_status carry_ok(const char *what, int i, const quern_tensor *carry, const quern_tensor *result) {
  quern_context *ctx = carry->node->ctx;
  TENSOR_CHECK_STATUS(ctx, ir_same_type(carry, result), SHAPE,
                      "%s: carry %d starts as %s, the body gives %s; a carry keeps its type", what, i,
                      TENSOR_TYPE(carry), TENSOR_TYPE(result));
  return QUERN_STATUS_OK;
}

/* ---- loop ---------------------------------------------------------------------------------------------- */

static quern_status loop_body(quern_context *ctx, const quern_loop_options *options, int n,
                              quern_tensor *const *operands, quern_body *body, void *user, int n_results,
                              const struct ir_graph **graph) {
  quern_tensor **leaves = NULL;
  size_t bytes = 0;
  QUERN_TRY(make_leaves(ctx, 1, n, operands, &leaves, &bytes));
  leaves[0] = ir_leaf(ctx, QUERN_DTYPE_I64, 0, NULL);
  for (int i = options->n_carries; i < options->n_carries + options->n_scanned; i++) {
    const quern_tensor *x = operands[i];
    leaves[1 + i] = ir_leaf(ctx, x->dtype, x->rank - 1, x->dims + 1);
  }
  quern_status status = leaves_ok("loop", ctx, 1 + n, leaves);
  if (status == QUERN_STATUS_OK) status = close_body("loop", "body", ctx, body, user, 1 + n, leaves, n_results, graph);
  base_free(&ctx->heap, leaves, bytes);
  return status;
}

quern_status quern_loop(quern_context *ctx, const quern_loop_options *options, quern_tensor *const *operands,
                        quern_body *body, void *user, quern_tensor **results) {
  TENSOR_CHECK_STATUS(ctx, options != NULL, INVALID, "loop: the options are null");
  quern_loop_options o;
  if (!tensor_options(ctx, "loop", &o, sizeof o, options, "quern_loop_options")) return quern_context_check(ctx);
  TENSOR_CHECK_STATUS(ctx, o.trip >= 0, INVALID, "loop: the trip is %lld", (long long)o.trip);
  const int64_t counts[] = {o.n_carries, o.n_scanned, o.n_captures, o.n_stacked};
  for (size_t i = 0; i < BASE_COUNT(counts); i++) {
    TENSOR_CHECK_STATUS(ctx, counts[i] >= 0 && counts[i] <= INT32_MAX / 8, INVALID,
                        "loop: %d carries, %d scanned, %d captures, %d stacked; each must be at least 0 and below 2^28",
                        o.n_carries, o.n_scanned, o.n_captures, o.n_stacked);
  }
  TENSOR_CHECK_STATUS(ctx, body != NULL, INVALID, "loop: the body is null");
  int n = o.n_carries + o.n_scanned + o.n_captures, n_results = o.n_carries + o.n_stacked;
  QUERN_TRY(check_lists("loop", ctx, n, operands, n_results, results));
  for (int i = o.n_carries; i < o.n_carries + o.n_scanned; i++) {
    const quern_tensor *x = operands[i];
    TENSOR_CHECK_STATUS(ctx, x->rank >= 1 && x->dims[0] == o.trip, SHAPE,
                        "loop: scanned operand %d is %s, its first axis must be the trip, %lld", i, TENSOR_SHAPE(x),
                        (long long)o.trip);
  }
  const struct ir_graph *graph = NULL;
  QUERN_TRY(loop_body(ctx, &o, n, operands, body, user, n_results, &graph));
  for (int i = 0; i < o.n_carries; i++) QUERN_TRY(carry_ok("loop", i, operands[i], graph->results[i]));
  quern_tensor *y = ir_make(ctx, IR_LOOP, n, operands,
                            TENSOR_ATTRS(.trip = o.trip, .carries = o.n_carries, .scanned = o.n_scanned,
                                         .reverse = o.reverse, .body = graph));
  return give_results("loop", ctx, y, n_results, results);
}

/* ---- while and if -------------------------------------------------------------------------------------- */

/* Two graphs on leaves like the operands. */
static quern_status close_two(const char *what, quern_context *ctx, int n, quern_tensor *const *operands, void *user,
                              const char *role, quern_body *body, int n_results, const struct ir_graph **graph,
                              const char *other_role, quern_body *other_body, int n_others,
                              const struct ir_graph **other) {
  quern_tensor **leaves = NULL;
  size_t bytes = 0;
  QUERN_TRY(make_leaves(ctx, 0, n, operands, &leaves, &bytes));
  quern_status status = leaves_ok(what, ctx, n, leaves);
  if (status == QUERN_STATUS_OK) status = close_body(what, role, ctx, body, user, n, leaves, n_results, graph);
  if (status == QUERN_STATUS_OK)
    status = close_body(what, other_role, ctx, other_body, user, n, leaves, n_others, other);
  base_free(&ctx->heap, leaves, bytes);
  return status;
}

quern_status quern_while(quern_context *ctx, int n_carries, int n_captures, quern_tensor *const *operands,
                         quern_body *cond, quern_body *body, void *user, quern_tensor **results) {
  TENSOR_CHECK_STATUS(ctx, n_carries >= 1 && n_captures >= 0 && n_captures <= INT32_MAX - n_carries, INVALID,
                      "while: %d carries and %d captures; one carry is needed, and less than 2^31 in all", n_carries,
                      n_captures);
  TENSOR_CHECK_STATUS(ctx, cond != NULL && body != NULL, INVALID, "while: the %s is null",
                      cond == NULL ? "condition" : "body");
  int n = n_carries + n_captures;
  QUERN_TRY(check_lists("while", ctx, n, operands, n_carries, results));
  const struct ir_graph *graph = NULL, *test = NULL;
  QUERN_TRY(close_two("while", ctx, n, operands, user, "body", body, n_carries, &graph, "condition", cond, 1, &test));
  const quern_tensor *answer = test->results[0];
  TENSOR_CHECK_STATUS(ctx, answer->dtype == QUERN_DTYPE_BOOL && answer->rank == 0, DTYPE,
                      "while: the condition gives %s, must be a bool scalar", TENSOR_TYPE(answer));
  for (int i = 0; i < n_carries; i++) QUERN_TRY(carry_ok("while", i, operands[i], graph->results[i]));
  quern_tensor *y =
      ir_make(ctx, IR_WHILE, n, operands, TENSOR_ATTRS(.carries = n_carries, .body = graph, .other = test));
  return give_results("while", ctx, y, n_carries, results);
}

/* The node of a condition and operands. */
static quern_tensor *make_if(quern_context *ctx, quern_tensor *cond, int n, quern_tensor *const *operands,
                             const struct ir_graph *body, const struct ir_graph *other) {
  size_t bytes = ((size_t)n + 1) * sizeof(quern_tensor *);
  quern_tensor **src = base_alloc(&ctx->heap, bytes);
  if (src == NULL) return ir_fail_last(ctx);
  src[0] = cond;
  for (int i = 0; i < n; i++) src[1 + i] = operands[i];
  quern_tensor *y = ir_make(ctx, IR_IF, n + 1, src, TENSOR_ATTRS(.body = body, .other = other));
  base_free(&ctx->heap, src, bytes);
  return y;
}

quern_status quern_if(quern_tensor *cond, int n, quern_tensor *const *operands, int n_results, quern_body *then_body,
                      quern_body *else_body, void *user, quern_tensor **results) {
  for (int i = 0; results != NULL && i < n_results; i++) results[i] = &ir_poison;
  quern_context *ctx = quern_tensor_context(cond);
  TENSOR_CHECK_STATUS(ctx, ctx != NULL, INVALID, "if: the condition is %s",
                      cond == NULL ? "null" : "poison: the call that made it failed");
  TENSOR_CHECK_STATUS(ctx, then_body != NULL && else_body != NULL, INVALID, "if: the %s branch is null",
                      then_body == NULL ? "first" : "second");
  TENSOR_CHECK_STATUS(ctx, n < INT32_MAX, INVALID, "if: %d operands are too many", n);
  QUERN_TRY(check_lists("if", ctx, n, operands, n_results, results));
  TENSOR_CHECK_STATUS(ctx, cond->dtype == QUERN_DTYPE_BOOL && cond->rank == 0, DTYPE,
                      "if: the condition is %s, must be a bool scalar HINT: quern_where chooses element by element",
                      TENSOR_TYPE(cond));
  const struct ir_graph *body = NULL, *other = NULL;
  QUERN_TRY(close_two("if", ctx, n, operands, user, "first branch", then_body, n_results, &body, "second branch",
                      else_body, n_results, &other));
  for (int i = 0; i < n_results; i++) {
    const quern_tensor *a = body->results[i], *b = other->results[i];
    TENSOR_CHECK_STATUS(ctx, ir_same_type(a, b), SHAPE, "if: result %d is %s in the first branch, %s in the second", i,
                        TENSOR_TYPE(a), TENSOR_TYPE(b));
  }
  return give_results("if", ctx, make_if(ctx, cond, n, operands, body, other), n_results, results);
}

/* ---- composites ---------------------------------------------------------------------------------------- */

/* A name that Quern's own composites do not have. */
static quern_status name_ok(const char *what, quern_context *ctx, const char *name) {
  TENSOR_CHECK_STATUS(ctx, name != NULL && name[0] != '\0', INVALID, "%s: the name is %s", what,
                      name == NULL ? "null" : "empty");
  for (const struct ir_composite *const *kind = tensor_composites; *kind != NULL; kind++) {
    TENSOR_CHECK_STATUS(ctx, strcmp((*kind)->name, name) != 0, INVALID, "%s: the name \"%s\" is one of Quern's own",
                        what, name);
  }
  return QUERN_STATUS_OK;
}

quern_status quern_composite(quern_context *ctx, const char *name, int n, quern_tensor *const *operands, int n_results,
                             quern_body *body, void *user, quern_tensor **results) {
  for (int i = 0; results != NULL && i < n_results; i++) results[i] = &ir_poison;
  QUERN_TRY(name_ok("composite", ctx, name));
  TENSOR_CHECK_STATUS(ctx, body != NULL, INVALID, "composite: the body of \"%s\" is null", name);
  QUERN_TRY(check_lists("composite", ctx, n, operands, n_results, results));
  quern_tensor **leaves = NULL;
  size_t bytes = 0;
  const struct ir_graph *graph = NULL;
  QUERN_TRY(make_leaves(ctx, 0, n, operands, &leaves, &bytes));
  quern_status status = leaves_ok("composite", ctx, n, leaves);
  if (status == QUERN_STATUS_OK)
    status = close_body("composite", "body", ctx, body, user, n, leaves, n_results, &graph);
  base_free(&ctx->heap, leaves, bytes);
  QUERN_TRY(status);
  quern_tensor *y = ir_make(ctx, IR_COMPOSITE, n, operands, TENSOR_ATTRS(.name = name, .body = graph));
  return give_results("composite", ctx, y, n_results, results);
}

/* Calls a user's rule and checks what it gives. */
static void call_rule(const struct ir_composite *self, const struct ir_node *node, quern_tensor *const *dy,
                      quern_tensor **dx) {
  size_t bytes = (size_t)node->n_out * sizeof(quern_tensor *);
  quern_tensor **y = base_alloc(&node->ctx->heap, bytes);
  if (y == NULL) {
    ir_fail_last(node->ctx);
    return;
  }
  for (int i = 0; i < node->n_out; i++) y[i] = &node->out[i];
  ((quern_vjp_rule *)self->rule)(self->user, node->n_src, node->src, node->n_out, y, dy, dx);
  base_free(&node->ctx->heap, y, bytes);
  for (int i = 0; i < node->n_src; i++) {
    if (ir_is_poison(dx[i]) || ir_same_type(dx[i], node->src[i])) continue;
    dx[i] = ir_fail(node->ctx, QUERN_STATUS_SHAPE, "composite \"%s\": its rule gives dx[%d] as %s, the operand is %s",
                    self->name, i, TENSOR_TYPE(dx[i]), TENSOR_TYPE(node->src[i]));
  }
}

quern_status quern_composite_rule(quern_context *ctx, const char *name, quern_vjp_rule *vjp, void *user) {
  TENSOR_CHECK_STATUS(ctx, ctx != NULL, INVALID, "composite_rule: the context is null");
  QUERN_TRY(name_ok("composite_rule", ctx, name));
  TENSOR_CHECK_STATUS(ctx, vjp != NULL, INVALID, "composite_rule: the rule of \"%s\" is null", name);
  TENSOR_CHECK_STATUS(ctx, ir_composite_find(ctx, name) == NULL, INVALID, "composite_rule: \"%s\" has a rule already",
                      name);
  struct ir_composite *kind = base_arena_new(&ctx->arena, struct ir_composite);
  char *copy = base_arena_string(&ctx->arena, name, strlen(name));
  if (kind == NULL || copy == NULL) return tensor_status(ctx, QUERN_STATUS_MEMORY);
  *kind = (struct ir_composite){.name = copy, .vjp = call_rule, .rule = (void (*)(void))vjp, .user = user};
  return tensor_status(ctx, ir_composite_add(ctx, kind));
}
