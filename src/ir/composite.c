/* ir/composite.c -- kinds of composites by name, and their bodies
** keeps: a body is built once for a kind, attributes and operand types, then found again
** tests: tests/ir/test_composite.c
*/
#include <string.h>

#include "ir/ir.h"

static bool kind_equals(const void *item, const void *name) {
  return strcmp(((const struct ir_composite *)item)->name, name) == 0;
}

const struct ir_composite *ir_composite_find(quern_context *ctx, const char *name) {
  return base_map_find(&ctx->composites, base_hash_string(BASE_HASH_SEED, name), kind_equals, name);
}

quern_status ir_composite_add(quern_context *ctx, const struct ir_composite *kind) {
  QUERN_CHECK(ir_composite_find(ctx, kind->name) == NULL, INVALID, "composite: the name '%s' is taken", kind->name);
  bool added = ir_intern(ctx, &ctx->composites, base_hash_string(BASE_HASH_SEED, kind->name), (void *)(uintptr_t)kind);
  return added ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

/* A body that was built. */
struct body {
  const struct ir_composite *kind; /* the key: all but graph */
  struct ir_ints ints;
  struct ir_reals reals;
  int n;
  quern_tensor *const *src; /* of the graph: its params; only their types count */
  const struct ir_graph *graph;
};

static uint64_t hash_body(const struct body *key) {
  uint64_t h = base_hash_string(BASE_HASH_SEED, key->kind->name);
  h = base_hash_bytes(h, key->ints.at, (size_t)key->ints.n * sizeof *key->ints.at);
  h = base_hash_bytes(h, key->reals.at, (size_t)key->reals.n * sizeof *key->reals.at);
  for (int i = 0; i < key->n; i++) {
    h = base_hash_u64(h, base_dtype_code(key->src[i]->dtype) << 8 | (uint64_t)key->src[i]->rank);
    h = base_hash_bytes(h, key->src[i]->dims, (size_t)key->src[i]->rank * sizeof *key->src[i]->dims);
  }
  return h;
}

static bool body_equals(const void *item, const void *against) {
  const struct body *a = item, *b = against;
  bool same = a->kind == b->kind && a->n == b->n && a->ints.n == b->ints.n && a->reals.n == b->reals.n;
  same = same && (a->ints.n == 0 || memcmp(a->ints.at, b->ints.at, (size_t)a->ints.n * sizeof *a->ints.at) == 0);
  same = same && (a->reals.n == 0 || memcmp(a->reals.at, b->reals.at, (size_t)a->reals.n * sizeof *a->reals.at) == 0);
  for (int i = 0; same && i < a->n; i++) same = ir_same_type(a->src[i], b->src[i]);
  return same;
}

/* Builds the body on fresh leaves and closes it. */
static quern_status build_body(quern_context *ctx, const struct body *key, const struct ir_graph **graph) {
  const struct ir_composite *kind = key->kind;
  size_t bytes = (size_t)(key->n + kind->n_results) * sizeof(quern_tensor *);
  quern_tensor **args = base_alloc_zero(&ctx->heap, bytes);
  if (args == NULL) return QUERN_STATUS_MEMORY;
  quern_tensor **results = args + key->n;
  quern_status status = QUERN_STATUS_OK;
  for (int i = 0; i < key->n && status == QUERN_STATUS_OK; i++) {
    args[i] = ir_leaf_like(key->src[i]);
    if (ir_is_poison(args[i])) status = ir_poison_error(ctx);
  }
  if (status == QUERN_STATUS_OK) {
    kind->body(ctx, &(struct ir_attrs){.ints = key->ints, .reals = key->reals}, args, results);
    status = ir_graph_make(ctx, key->n, args, kind->n_results, results, graph);
  }
  base_free(&ctx->heap, args, bytes);
  return status;
}

static size_t body_bytes(const struct body *body) {
  return sizeof *body + (size_t)body->ints.n * sizeof(int64_t) + (size_t)body->reals.n * sizeof(double);
}

/* A copy whose key lies behind it. */
static struct body *new_body(quern_context *ctx, const struct body *like) {
  struct body *body = ir_cell_new(ctx, body_bytes(like));
  if (body == NULL) return NULL;
  *body = *like;
  body->src = like->graph->params;
  int64_t *ints = (int64_t *)(body + 1);
  double *reals = (double *)(ints + like->ints.n);
  for (int i = 0; i < like->ints.n; i++) ints[i] = like->ints.at[i];
  for (int i = 0; i < like->reals.n; i++) reals[i] = like->reals.at[i];
  body->ints.at = ints;
  body->reals.at = reals;
  return body;
}

struct sweep {
  quern_context *ctx;
  uint32_t epoch;
};

/* A base_map_drop. */
static bool drop_body(void *user, void *item) {
  const struct sweep *sweep = user;
  const struct body *body = item;
  if (body->graph->mark == sweep->epoch) return false;
  ir_cell_free(sweep->ctx, item, body_bytes(body));
  return true;
}

void ir_bodies_sweep(quern_context *ctx, uint32_t epoch) {
  base_map_sweep(&ctx->bodies, drop_body, &(struct sweep){ctx, epoch});
}

quern_status ir_composite_body(quern_context *ctx, const struct ir_composite *kind, const struct ir_attrs *attrs, int n,
                               quern_tensor *const *src, const struct ir_graph **graph) {
  struct body key = {kind, attrs->ints, attrs->reals, n, src, NULL};
  uint64_t hash = hash_body(&key);
  struct body *found = base_map_find(&ctx->bodies, hash, body_equals, &key);
  if (found == NULL) {
    uint32_t label = ctx->label;
    ctx->label = 0; /* layers share it */
    quern_status status = build_body(ctx, &key, &key.graph);
    ctx->label = label;
    QUERN_TRY(status);
    found = new_body(ctx, &key);
    if (found == NULL || !ir_intern(ctx, &ctx->bodies, hash, found)) return QUERN_STATUS_MEMORY;
  }
  *graph = found->graph;
  return QUERN_STATUS_OK;
}

quern_tensor *ir_composite_make(quern_context *ctx, const struct ir_composite *kind, struct ir_ints ints,
                                struct ir_reals reals, int n, quern_tensor *const *src) {
  for (int i = 0; i < n; i++) {
    if (src[i] == NULL) return ir_fail(ctx, QUERN_STATUS_INVALID, "%s: operand %d is null", kind->name, i);
    if (ir_is_poison(src[i])) return &ir_poison;
  }
  struct ir_attrs attrs = {.name = kind->name, .ints = ints, .reals = reals};
  if (ir_composite_body(ctx, kind, &attrs, n, src, &attrs.body) != QUERN_STATUS_OK) return ir_fail_last(ctx);
  return ir_make(ctx, IR_COMPOSITE, n, src, &attrs);
}
