/* prop/gen.c -- random graphs: the pool of tensors to build on, and leaves */
#include <stdio.h>
#include <string.h>

#include "prop/prop.h"

/* ---- the pool ---------------------------------------------------------------------------------------- */

quern_tensor *gen_keep(struct gen *g, quern_tensor *t) {
  if (!ir_is_poison(t) && ir_count(t) <= GEN_COUNT && t->rank <= GEN_RANK + 1)
    (void)base_vec_push(&g->ctx->heap, &g->pool, t);
  return t;
}

quern_tensor *gen_make(struct gen *g, enum ir_op op, int n, quern_tensor *const *src, const struct ir_attrs *attrs) {
  quern_tensor *t = gen_keep(g, ir_make(g->ctx, op, n, src, attrs));
  for (int i = 1; !ir_is_poison(t) && i < t->node->n_out; i++) gen_keep(g, ir_result(t, i));
  return t;
}

quern_tensor *gen_pick(struct gen *g, enum base_dtype_class class, int least_rank) {
  int n = (int)g->pool.n;
  for (int try = 0; try < 12 && n > 0; try++) {
    int recent = rng_chance(g->rng, 50) && n > 6 ? n - 6 : 0;
    quern_tensor *t = g->pool.at[recent + rng_below(g->rng, n - recent)];
    if (base_dtype_is(t->dtype, class) && t->rank >= least_rank) return t;
  }
  int64_t dims[GEN_RANK];
  int rank = gen_shape(g, dims, least_rank);
  return gen_leaf(g, rng_dtype(g->rng, class), rank, dims);
}

quern_tensor *gen_pick_type(struct gen *g, quern_dtype dtype, int rank, const int64_t *dims) {
  quern_tensor like = {.dtype = dtype, .rank = rank, .dims = dims}, *same_shape = NULL;
  size_t n = g->pool.n, start = n == 0 ? 0 : (size_t)rng_below(g->rng, (int)n);
  for (size_t i = 0; i < n && !rng_chance(g->rng, 2); i++) {
    quern_tensor *t = g->pool.at[(start + i) % n];
    if (!ir_same_shape(t, &like)) continue;
    if (t->dtype == dtype) return t;
    same_shape = t;
  }
  if (same_shape != NULL && rng_chance(g->rng, 40)) {
    return GEN_MAKE(g, IR_CAST, (&(struct ir_attrs){.dtype = dtype}), same_shape);
  }
  if (rng_chance(g->rng, 25)) return gen_special(g, dtype, rank, dims);
  return gen_leaf(g, dtype, rank, dims);
}

quern_tensor *gen_pick_like(struct gen *g, const quern_tensor *t) {
  return gen_pick_type(g, t->dtype, t->rank, t->dims);
}

quern_tensor *gen_scalar(struct gen *g, quern_dtype dtype) { return gen_pick_type(g, dtype, 0, NULL); }

/* ---- leaves ------------------------------------------------------------------------------------------ */

int gen_shape(struct gen *g, int64_t *dims, int least_rank) {
  static const int64_t sizes[] = {1, 1, 2, 2, 2, 3, 3, 4, 4, 0};
  int rank = least_rank + rng_below(g->rng, GEN_RANK - least_rank);
  int64_t count = 1;
  for (int k = 0; k < rank; k++) {
    dims[k] = sizes[rng_below(g->rng, rng_chance(g->rng, 20) ? 10 : 9)];
    if (dims[k] > 0 && count * dims[k] > GEN_COUNT) dims[k] = 1;
    if (dims[k] > 0) count *= dims[k];
  }
  return rank;
}

quern_tensor *gen_const(struct gen *g, quern_dtype dtype, int rank, const int64_t *dims) {
  quern_tensor like = {.dtype = dtype, .rank = rank, .dims = dims};
  unsigned char data[8 * 256];
  size_t n = (size_t)ir_count(&like), bytes = n * base_dtypes[dtype].size;
  if (bytes > sizeof data) return gen_special(g, dtype, rank, dims);
  values_fill(g->rng, dtype, n, data, rng_chance(g->rng, 50));
  return gen_make(g, IR_CONST, 0, NULL,
                  &(struct ir_attrs){.dtype = dtype, .shape = {rank, dims}, .data = {.n = bytes, .at = data}});
}

quern_tensor *gen_full(struct gen *g, quern_dtype dtype, int rank, const int64_t *dims, const void *bits) {
  int64_t units[QUERN_MAX_RANK];
  for (int k = 0; k < rank; k++) units[k] = 1;
  bool direct = rng_chance(g->rng, 50);
  struct ir_attrs attrs = {
      .dtype = dtype, .shape = {direct ? rank : 0, units}, .data = {.n = base_dtypes[dtype].size, .at = bits}};
  quern_tensor *t = gen_make(g, IR_CONST, 0, NULL, &attrs);
  if (!direct && rank > 0) t = GEN_MAKE(g, IR_RESHAPE, (&(struct ir_attrs){.shape = {rank, units}}), t);
  return rank == 0 ? t : GEN_MAKE(g, IR_BROADCAST, (&(struct ir_attrs){.shape = {rank, dims}}), t);
}

quern_tensor *gen_special(struct gen *g, quern_dtype dtype, int rank, const int64_t *dims) {
  static const double numbers[] = {0, -0.0, 1, -1, 2, 0.5, 4, 8, 3, -2};
  unsigned char bits[8] = {0};
  if (rng_chance(g->rng, 15)) {
    values_fill(g->rng, dtype, 1, bits, false);
  } else {
    double value = numbers[rng_below(g->rng, (int)BASE_COUNT(numbers))];
    base_convert(dtype, bits, 0, QUERN_DTYPE_F64, &value, 0);
  }
  return gen_full(g, dtype, rank, dims, bits);
}

static quern_tensor *named_leaf(struct gen *g, enum ir_op op, quern_dtype dtype, int rank, const int64_t *dims) {
  char name[24];
  snprintf(name, sizeof name, "%s%d", op == IR_INPUT ? "x" : "s", (*g->n_names)++);
  return gen_make(g, op, 0, NULL, &(struct ir_attrs){.name = name, .dtype = dtype, .shape = {rank, dims}});
}

static quern_tensor *buffer_leaf(struct gen *g, quern_dtype dtype, int rank, const int64_t *dims) {
  quern_tensor like = {.dtype = dtype, .rank = rank, .dims = dims};
  struct ir_buffer *buffer = ir_buffer_new(g->ctx, ir_bytes(&like));
  if (buffer == NULL) return ir_fail_last(g->ctx);
  values_fill(g->rng, dtype, (size_t)ir_count(&like), buffer->data, rng_chance(g->rng, 50));
  return gen_make(g, IR_BUFFER, 0, NULL, &(struct ir_attrs){.dtype = dtype, .shape = {rank, dims}, .buffer = buffer});
}

quern_tensor *gen_leaf(struct gen *g, quern_dtype dtype, int rank, const int64_t *dims) {
  int kind = rng_below(g->rng, 100);
  if (kind < 8 && rank > 0 && dtype != QUERN_DTYPE_BOOL) {
    struct ir_attrs attrs = {.dtype = dtype, .shape = {rank, dims}, .axis = rng_below(g->rng, rank)};
    return gen_make(g, IR_IOTA, 0, NULL, &attrs);
  }
  if (kind < 20 || g->depth > 0) return gen_const(g, dtype, rank, dims);
  if (kind < 28) return buffer_leaf(g, dtype, rank, dims);
  return named_leaf(g, kind < 40 ? IR_STATE : IR_INPUT, dtype, rank, dims);
}

/* ---- whole graphs ------------------------------------------------------------------------------------ */

/* Every tensor that none of the pool uses, and some of the others. */
static quern_status gen_roots(struct gen *g, size_t *n_roots, quern_tensor ***roots) {
  quern_context *ctx = g->ctx;
  bool *used = base_arena_alloc(&ctx->arena, ctx->n_nodes);
  *roots = base_arena_alloc(&ctx->arena, g->pool.n * sizeof **roots);
  if (used == NULL || *roots == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < g->pool.n; i++) {
    const struct ir_node *node = g->pool.at[i]->node;
    for (int k = 0; k < node->n_src; k++) used[node->src[k]->node->id] = true;
  }
  *n_roots = 0;
  for (size_t i = 0; i < g->pool.n; i++) {
    quern_tensor *t = g->pool.at[i];
    bool is_leaf = t->node->n_src == 0;
    if (!used[t->node->id] ? rng_chance(g->rng, is_leaf ? 10 : 100) : rng_chance(g->rng, 10))
      (*roots)[(*n_roots)++] = t;
  }
  if (*n_roots == 0 && g->pool.n > 0) (*roots)[(*n_roots)++] = g->pool.at[g->pool.n - 1];
  return QUERN_STATUS_OK;
}

quern_status gen_graph(quern_context *ctx, uint64_t seed, size_t n_nodes, const struct ir_rule *plant, size_t *n_roots,
                       quern_tensor ***roots) {
  struct rng rng = {.seed = seed};
  int n_names = 0;
  struct gen g = {.ctx = ctx, .rng = &rng, .n_names = &n_names, .plant = plant};
  while (g.pool.n < n_nodes && ctx->error == QUERN_STATUS_OK) {
    int kind = rng_below(&rng, 100);
    if (kind < 50) {
      gen_op(&g);
    } else if (kind < 75) {
      gen_pattern(&g);
    } else {
      gen_motif(&g);
    }
  }
  quern_status status = quern_context_check(ctx);
  if (status == QUERN_STATUS_OK) status = gen_roots(&g, n_roots, roots);
  base_vec_fini(&ctx->heap, &g.pool);
  return status;
}
