/* pass/chunk.c -- linear + cross-entropy over a large vocabulary becomes a loop over rows: never all logits at once
** in:    composites linear_cross_entropy and linear_cross_entropy.vjp whose logits would exceed 64 MiB (GPUs: 512 MiB) without a loop
** out:   a loop whose iteration computes as many rows as fit, and the rest of the rows after it; the gradient of
**        the weight is carried from iteration to iteration. Losses and gradients of the same operands come from one loop, whose iteration
**        computes its logits once, unless the gradient of the losses depends on the losses
** keeps: values within rounding: sums over rows are taken chunk by chunk
** tests: tests/pass/test_chunk.c
*/
#include <math.h>

#include "pass/pass_int.h"
#include "quern/grad.h"

enum { CHUNK_BYTES = 64 << 20, GPU_CHUNK_BYTES = 512 << 20, LEAST_ROWS = 64, GPU_TILE = 128, MOST_CASTS = 4 };

/* Float casts that an operand went through, the first last: a iteration makes them of its rows, so that none lies in memory. On a GPU
** only those that widen: products read what is narrow as it lies there. */
struct casts {
  int n;
  quern_dtype to[MOST_CASTS];
};

enum { LOSSES, DX, DWEIGHT, OUTS };

/* One composite, or two, its rows made flat. */
struct chunk {
  quern_context *ctx;
  const struct ir_composite *kind;
  int64_t ints[4]; /* of a iteration: every row by itself */
  const struct ir_attrs *attrs;
  bool losses, back;        /* what is wanted: losses, gradients */
  bool want_x, want_weight; /* which gradients */
  bool gpu;
  quern_dtype dtype, low;  /* in which a iteration computes, and keeps logits */
  int64_t n, rows, width;  /* rows in all and of a iteration; width of x */
  int64_t classes, padded; /* that there are, and columns of the logits of a iteration */
  struct casts casts[2];   /* of x and weight */
};

/* A linear_cross_entropy that was made a loop: what it was on its new sources, and what became of it. */
struct seen {
  const struct ir_node *node;
  quern_tensor *src[3], *out;
  bool joined; /* it is computed by a loop of gradients */
};

struct job {
  const struct pass_options *options;
  struct pass_replacements swaps;
  BASE_VEC(struct seen) seen;
};

static quern_tensor *without_casts(const struct chunk *c, quern_tensor *t, struct casts *casts) {
  casts->n = 0;
  while (t->node->op == IR_CAST && base_dtype_is(t->node->src[0]->dtype, BASE_FLOAT) && casts->n < MOST_CASTS) {
    if (c->gpu && !pass_is_widening(t->node)) break;
    casts->to[casts->n++] = t->dtype;
    t = t->node->src[0];
  }
  return t;
}

static quern_tensor *with_casts(quern_tensor *t, const struct casts *casts) {
  for (int i = casts->n; i-- > 0;) t = quern_cast(t, casts->to[i]);
  return t;
}

/* The labels of rows whose logits have more columns than there are classes: what is none stays none. */
static quern_tensor *padded_labels(const struct chunk *c, quern_tensor *labels) {
  quern_tensor *index = quern_cast(labels, QUERN_DTYPE_I64), *end = ir_const_int(c->ctx, QUERN_DTYPE_I64, c->classes);
  quern_tensor *stays = quern_lt(index, end);
  if (c->ints[1] != 0) {
    quern_tensor *ignored = ir_const_int(c->ctx, QUERN_DTYPE_I64, c->ints[2]);
    stays = quern_or(stays, quern_eq(index, ignored));
  }
  return quern_where(stays, index, ir_const_int(c->ctx, QUERN_DTYPE_I64, c->ints[2] == -1 ? -2 : -1));
}

/* What logits with more columns than there are classes take, so that those are as if they were not there: e^-inf = 0. */
static quern_tensor *make_bias(const struct chunk *c) {
  quern_tensor *column = quern_iota(c->ctx, QUERN_DTYPE_I32, 1, &c->padded, 0);
  quern_tensor *real = quern_lt(column, ir_const_int(c->ctx, QUERN_DTYPE_I32, c->classes));
  quern_tensor *zero = ir_const(c->ctx, c->low, 0), *none = ir_const(c->ctx, c->low, -(double)INFINITY);
  return quern_where(real, zero, none);
}

/* The losses of rows, by logits that are rounded to the low dtype, or have more columns than there are classes. */
static quern_tensor *stored_losses(const struct chunk *c, quern_tensor *const *wide, quern_tensor *bias) {
  quern_cross_entropy_options options = {.size = sizeof options,
                                         .reduction = QUERN_REDUCTION_NONE,
                                         .ignore = c->ints[1] != 0,
                                         .ignore_index = c->ints[2],
                                         .label_smoothing = c->attrs->reals.at[0]};
  quern_tensor *logits = quern_linear(wide[0], wide[1], bias != NULL ? quern_cast(bias, c->dtype) : NULL);
  if (c->low == c->dtype && c->attrs->ints.n == 4) {
    const struct ir_composite *narrow = ir_composite_find(c->ctx, "narrow_gradient");
    if (narrow == NULL) return ir_fail(c->ctx, QUERN_STATUS_INTERNAL, "chunk: there is no narrow_gradient");
    logits = ir_composite_make(c->ctx, narrow, IR_INTS(c->ints[3]), (struct ir_reals){0}, 1, &logits);
  }
  logits = quern_cast(quern_cast(logits, c->low), c->dtype); /* so is their gradient */
  return quern_cross_entropy(logits, bias != NULL ? padded_labels(c, wide[2]) : wide[2], &options);
}

static quern_tensor *losses_of(const struct chunk *c, quern_tensor *const *wide, quern_tensor *bias) {
  struct ir_ints ints = {c->attrs->ints.n, c->ints};
  if (c->low != c->dtype || bias != NULL) return stored_losses(c, wide, bias);
  return ir_composite_make(c->ctx, c->kind, ints, c->attrs->reals, 3, wide);
}

/* Of rows: the losses, and with g, the gradients of the losses, the gradients of x and weight. same: weight, and the bias where
** logits have more columns. */
static void of_rows(const struct chunk *c, quern_tensor *x, quern_tensor *labels, quern_tensor *g,
                    quern_tensor *const *same, quern_tensor **out) {
  quern_tensor *wide[3] = {quern_cast(with_casts(x, &c->casts[0]), c->dtype)};
  wide[1] = quern_cast(with_casts(same[0], &c->casts[1]), c->dtype);
  wide[2] = labels;
  quern_tensor *losses = out[LOSSES] = losses_of(c, wide, same[1]);
  if (c->back && quern_vjp(1, &losses, &g, 2, wide, out + DX) != QUERN_STATUS_OK)
    out[DX] = out[DWEIGHT] = ir_fail_last(c->ctx);
}

/* (i, dweight, x, labels, g, same ..) to (dweight, dx, losses if wanted), or (i, x, labels, same ..) to losses. */
static void iteration(void *user, quern_tensor *const *args, quern_tensor **results) {
  const struct chunk *c = user;
  quern_tensor *d[OUTS] = {NULL}, *bias = c->padded > c->classes ? args[c->back ? 6 : 4] : NULL;
  if (!c->back) {
    of_rows(c, args[1], args[2], NULL, (quern_tensor *[]){args[3], bias}, results);
    return;
  }
  of_rows(c, args[2], args[3], args[4], (quern_tensor *[]){args[5], bias}, d);
  results[0] = quern_add(args[1], d[DWEIGHT]);
  results[1] = d[DX];
  if (c->losses) results[2] = d[LOSSES];
}

/* Rows first .. first + n - 1 of t, as (iterations, n / iterations, ...) when there are iterations. */
static quern_tensor *rows_of(quern_tensor *t, int64_t first, int64_t n, int64_t iterations) {
  QUERN_ASSERT(t != NULL);
  if (ir_is_poison(t)) return &ir_poison;
  quern_tensor *part = quern_slice(t, 0, first, first + n, 1);
  if (iterations == 0) return part;
  int64_t dims[3] = {iterations, n / iterations, t->rank == 2 ? t->dims[1] : 0};
  return quern_reshape(part, t->rank + 1, dims);
}

static quern_tensor *flat_rows(quern_tensor *t, int64_t n, int64_t width) {
  return width > 0 ? quern_reshape(t, 2, (int64_t[]){n, width}) : quern_reshape(t, 1, &n);
}

static quern_tensor *join(quern_tensor *a, quern_tensor *b) {
  return b == NULL ? a : quern_concat(2, (quern_tensor *[]){a, b}, 0);
}

/* All rows: losses (n), and dx (n, width) and dweight with g. */
static quern_status all_rows(struct chunk *c, quern_tensor *x, quern_tensor *labels, quern_tensor *g,
                             quern_tensor *const *same, quern_tensor **out) {
  int64_t iterations = c->n / c->rows, whole = iterations * c->rows;
  quern_tensor *operands[6], *results[OUTS] = {NULL}, *rest[OUTS] = {NULL};
  int n = 0;
  if (c->back) operands[n++] = quern_zeros(c->ctx, c->dtype, 2, same[0]->dims);
  operands[n++] = rows_of(x, 0, whole, iterations);
  operands[n++] = rows_of(labels, 0, whole, iterations);
  if (c->back) operands[n++] = rows_of(g, 0, whole, iterations);
  for (int i = 0; i < 2 && same[i] != NULL; i++) operands[n++] = same[i];
  quern_loop_options options = {.size = sizeof options,
                                .trip = iterations,
                                .n_carries = c->back ? 1 : 0,
                                .n_scanned = c->back ? 3 : 2,
                                .n_captures = same[1] != NULL ? 2 : 1,
                                .n_stacked = c->back && c->losses ? 2 : 1};
  QUERN_TRY(quern_loop(c->ctx, &options, operands, iteration, c, results));
  if (whole < c->n) {
    int64_t left = c->n - whole;
    quern_tensor *last_x = rows_of(x, whole, left, 0), *last_labels = rows_of(labels, whole, left, 0);
    of_rows(c, last_x, last_labels, c->back ? rows_of(g, whole, left, 0) : NULL, same, rest);
  }
  if (c->losses) out[LOSSES] = join(flat_rows(results[c->back ? 2 : 0], whole, 0), rest[LOSSES]);
  if (!c->back) return quern_context_check(c->ctx);
  out[DX] = join(flat_rows(results[1], whole, c->width), rest[DX]);
  out[DWEIGHT] = rest[DWEIGHT] != NULL ? quern_add(results[0], rest[DWEIGHT]) : results[0];
  return quern_context_check(c->ctx);
}

/* How many labels count, as a scalar. */
static quern_tensor *count_of(const struct chunk *c, quern_tensor *labels) {
  if (c->ints[1] == 0) return ir_const(c->ctx, c->dtype, (double)c->n);
  quern_tensor *index = quern_cast(labels, QUERN_DTYPE_I64);
  quern_tensor *counted = quern_ne(index, ir_const_int(c->ctx, QUERN_DTYPE_I64, c->ints[2]));
  return quern_cast(quern_sum(quern_cast(counted, QUERN_DTYPE_I64), QUERN_ALL, false), c->dtype);
}

static quern_reduction reduction_of(const struct chunk *c) { return (quern_reduction)c->attrs->ints.at[0]; }

/* The losses of all rows on flat operands, and with g, which has the composite's result's shape, the gradients. */
static quern_status make_all(struct chunk *c, quern_tensor *const *src, quern_tensor *labels, quern_tensor *g,
                             quern_tensor **out) {
  if (g != NULL) {
    g = quern_cast(g, c->dtype);
    if (reduction_of(c) == QUERN_REDUCTION_MEAN) g = quern_div(g, count_of(c, labels));
    g = reduction_of(c) == QUERN_REDUCTION_NONE ? flat_rows(g, c->n, 0) : quern_broadcast_to(g, 1, &c->n);
  }
  quern_tensor *x = without_casts(c, src[0], &c->casts[0]), *same[2] = {without_casts(c, src[1], &c->casts[1]), NULL};
  int64_t more = c->padded - c->classes;
  if (more > 0) {
    same[0] = quern_pad(same[0], 2, (int64_t[]){0, 0}, (int64_t[]){more, 0}, 0);
    same[1] = make_bias(c);
    QUERN_TRY(quern_context_check(c->ctx));
  }
  QUERN_TRY(all_rows(c, flat_rows(x, c->n, c->width), labels, g, same, out));
  if (more > 0 && c->back) out[DWEIGHT] = quern_slice(out[DWEIGHT], 0, 0, c->classes, 1);
  return quern_context_check(c->ctx);
}

/* What linear_cross_entropy gives, of the losses of all rows. */
static quern_tensor *reduce(const struct chunk *c, const struct ir_node *node, quern_tensor *y, quern_tensor *labels) {
  if (reduction_of(c) == QUERN_REDUCTION_NONE)
    y = quern_reshape(y, node->out[0].rank, node->out[0].dims);
  else
    y = quern_sum(y, QUERN_ALL, false);
  if (reduction_of(c) == QUERN_REDUCTION_MEAN) y = quern_div(y, count_of(c, labels));
  return quern_cast(y, node->out[0].dtype);
}

static quern_status forward(struct job *job, struct chunk *c, const struct ir_node *node, quern_tensor *const *src,
                            quern_tensor **out) {
  quern_tensor *labels = flat_rows(src[2], c->n, 0), *y[OUTS] = {NULL};
  QUERN_TRY(make_all(c, src, labels, NULL, y));
  out[0] = reduce(c, node, y[LOSSES], labels);
  struct seen seen = {.node = node, .src = {src[0], src[1], src[2]}, .out = out[0]};
  if (!base_vec_push(&c->ctx->heap, &job->seen, seen)) return QUERN_STATUS_MEMORY;
  return quern_context_check(c->ctx);
}

static bool same_attrs(const struct ir_attrs *a, const struct ir_attrs *b) {
  return a->ints.n == b->ints.n && memcmp(a->ints.at, b->ints.at, (size_t)a->ints.n * sizeof *a->ints.at) == 0 &&
         a->reals.n == b->reals.n && memcmp(a->reals.at, b->reals.at, (size_t)a->reals.n * sizeof *a->reals.at) == 0;
}

/* The losses whose gradients these are, or NULL when there are none, or g depends on them. */
static quern_status find_losses(struct job *job, const struct chunk *c, quern_tensor *const *src, struct seen **found) {
  *found = NULL;
  for (size_t i = 0; i < job->seen.n && *found == NULL; i++) {
    struct seen *seen = &job->seen.at[i];
    if (!seen->joined && memcmp(seen->src, src, sizeof seen->src) == 0 && same_attrs(seen->node->attrs, c->attrs))
      *found = seen;
  }
  if (*found == NULL) return QUERN_STATUS_OK;
  struct ir_order order;
  QUERN_TRY(ir_topo(c->ctx, 1, &src[3], &order));
  if (ir_order_find(&order, (*found)->out->node) >= 0) *found = NULL;
  ir_order_fini(c->ctx, &order);
  return QUERN_STATUS_OK;
}

static quern_status backward(struct job *job, struct chunk *c, const struct ir_node *node, quern_tensor *const *src,
                             quern_tensor **out) {
  quern_tensor *labels = flat_rows(src[2], c->n, 0), *d[OUTS] = {NULL};
  struct seen *seen;
  QUERN_TRY(find_losses(job, c, src, &seen));
  c->losses = seen != NULL;
  QUERN_TRY(make_all(c, src, labels, src[3], d));
  int n = 0;
  if (c->want_x) {
    out[n] = quern_cast(quern_reshape(d[DX], src[0]->rank, src[0]->dims), node->out[n].dtype);
    n++;
  }
  if (c->want_weight) out[n] = quern_cast(d[DWEIGHT], node->out[n].dtype);
  if (seen == NULL) return quern_context_check(c->ctx);
  struct pass_replacement swap = {seen->out, reduce(c, seen->node, d[LOSSES], labels)};
  seen->joined = true;
  if (!base_vec_push(job->swaps.heap, &job->swaps.list, swap)) return QUERN_STATUS_MEMORY;
  return quern_context_check(c->ctx);
}

/* How many rows a iteration has. On a GPU as many in each, where that can be, and such that products are of whole tiles. */
static int64_t rows_per_iteration(const struct chunk *c, int64_t row, int64_t most) {
  int64_t rows = c->gpu ? GPU_TILE : LEAST_ROWS;
  if (!c->gpu) {
    while (2 * rows * row <= most) rows *= 2;
    return rows;
  }
  int64_t fit = BASE_MAX(most / row / rows, 1) * rows, iterations = BASE_MAX((c->n + fit - 1) / fit, 2);
  for (int64_t t = iterations; t < 2 * iterations; t++)
    if (c->n % (t * rows) == 0) return c->n / t;
  return BASE_MIN(fit, BASE_MAX(c->n / 2 / rows, 1) * rows);
}

/* What logits are kept in. On a GPU, which waits for memory there, they are rounded as their gradient is, where autocast made all
** of them of operands that it rounded. */
static quern_dtype low_of(const struct chunk *c, const quern_tensor *x, const quern_tensor *weight) {
  if (!c->gpu || c->attrs->ints.n != 4 || !pass_is_widening(x->node) || !pass_is_widening(weight->node))
    return c->dtype;
  quern_dtype low = x->node->src[0]->dtype;
  return low == weight->node->src[0]->dtype && base_dtypes[low].size == 2 ? low : c->dtype;
}

/* How many columns logits have: libraries of GPUs are fast where rows begin at multiples of 16 bytes. Label smoothing would count
** more columns than there are classes. */
static int64_t columns_of(const struct chunk *c, const struct base_target *target) {
  bool pads = c->gpu && (target->capabilities & BASE_LIBRARY_BLAS) != 0 && c->attrs->reals.at[0] == 0;
  return pads && c->classes % 8 != 0 ? (c->classes + GPU_TILE - 1) / GPU_TILE * GPU_TILE : c->classes;
}

/* True when the node is one of the two, and large: its logits are many bytes as they would be without a loop. */
static bool is_large(const struct ir_node *node, const struct pass_options *options, struct chunk *c) {
  if (node->op != IR_COMPOSITE) return false;
  c->back = strcmp(node->attrs->name, "linear_cross_entropy.vjp") == 0;
  c->losses = strcmp(node->attrs->name, "linear_cross_entropy") == 0;
  c->kind = ir_composite_find(node->ctx, "linear_cross_entropy");
  if ((!c->back && !c->losses) || c->kind == NULL || node->attrs->ints.n > (int)BASE_COUNT(c->ints)) return false;
  const quern_tensor *x = node->src[0], *weight = node->src[1];
  bool wide = x->dtype == QUERN_DTYPE_F64;
  c->ctx = node->ctx;
  c->attrs = node->attrs;
  c->gpu = options->target != NULL && options->target->gpu;
  c->dtype = wide ? QUERN_DTYPE_F64 : QUERN_DTYPE_F32;
  c->low = low_of(c, x, weight);
  c->width = x->dims[x->rank - 1];
  c->n = ir_count(node->src[2]);
  c->classes = weight->dims[0];
  c->padded = columns_of(c, options->target);
  int64_t columns = BASE_MAX(c->padded, 1), most = c->gpu ? GPU_CHUNK_BYTES : CHUNK_BYTES;
  if (options->chunk_bytes > 0) most = options->chunk_bytes;
  c->rows = rows_per_iteration(c, columns * (int64_t)base_dtypes[c->low].size, most);
  c->want_x = node->out[0].rank == x->rank && ir_same_type(&node->out[0], x);
  c->want_weight = node->n_out == 2 || !c->want_x;
  bool sure = !c->back || node->n_out == 2 || !ir_same_type(x, weight); /* which gradient is wanted */
  return sure && (!c->back || node->n_src == 4) && c->width > 0 && c->n / c->rows >= 2 &&
         c->n * columns * (int64_t)base_dtypes[c->dtype].size > most;
}

static quern_status visit(void *user, struct ir_node *node, quern_tensor *const *src, quern_tensor **out) {
  struct job *job = user;
  struct chunk c = {0};
  if (!is_large(node, job->options, &c)) return ir_rebuild(node, src, out);
  for (int i = 0; i < node->attrs->ints.n; i++) c.ints[i] = node->attrs->ints.at[i];
  c.ints[0] = QUERN_REDUCTION_NONE;
  return (c.back ? backward : forward)(job, &c, node, src, out);
}

quern_status pass_chunk(struct pass_graph *graph, const struct pass_options *options) {
  struct base_heap *heap = &graph->ctx->heap;
  struct job job = {.options = options, .swaps = {.heap = heap}};
  quern_status status = pass_subgraphs_replace(graph, visit, &job, &job.swaps);
  base_vec_fini(heap, &job.seen);
  base_vec_fini(heap, &job.swaps.list);
  return status;
}
