/* pass/chunk.c -- linear + cross-entropy over a large vocabulary becomes a loop over rows: never all logits at once
** in:    composites linear_cross_entropy and linear_cross_entropy.vjp whose logits would exceed 64 MiB
** out:   a loop whose turn does the same for as many rows as fit, and the rest of the rows after it; the gradient of
**        the weight is carried from turn to turn
** keeps: values within rounding: sums over rows are taken chunk by chunk
** tests: tests/pass/test_chunk.c
*/
#include "pass/pass_int.h"
#include "quern/grad.h"

enum { CHUNK_BYTES = 64 << 20, LEAST_ROWS = 64, MOST_CASTS = 4 };

/* Float casts that an operand went through, the first last: a turn makes them of its rows, so that none lies in memory. */
struct casts {
  int n;
  quern_dtype to[MOST_CASTS];
};

/* One composite, its rows made flat. */
struct chunk {
  quern_context *ctx;
  quern_cross_entropy_options options; /* of a turn: every row by itself */
  bool want_x, want_weight;            /* backward: which gradients */
  bool back;
  quern_dtype dtype;      /* in which a turn computes */
  int64_t n, rows, width; /* rows in all and of a turn; width of x */
  struct casts casts[2];  /* of x and weight */
};

static quern_tensor *without_casts(quern_tensor *t, struct casts *casts) {
  casts->n = 0;
  while (t->node->op == IR_CAST && base_dtype_is(t->node->src[0]->dtype, BASE_FLOAT) && casts->n < MOST_CASTS) {
    casts->to[casts->n++] = t->dtype;
    t = t->node->src[0];
  }
  return t;
}

static quern_tensor *with_casts(quern_tensor *t, const struct casts *casts) {
  for (int i = casts->n; i-- > 0;) t = quern_cast(t, casts->to[i]);
  return t;
}

/* The losses of rows, or with g, the gradients of the losses, the gradients of x and weight. */
static void of_rows(const struct chunk *c, quern_tensor *x, quern_tensor *labels, quern_tensor *g, quern_tensor *weight,
                    quern_tensor **out) {
  quern_tensor *wide[2] = {quern_cast(with_casts(x, &c->casts[0]), c->dtype)};
  wide[1] = quern_cast(with_casts(weight, &c->casts[1]), c->dtype);
  quern_tensor *losses = quern_linear_cross_entropy(wide[0], wide[1], labels, &c->options);
  if (!c->back)
    out[0] = losses;
  else if (quern_vjp(1, &losses, &g, 2, wide, out) != QUERN_STATUS_OK)
    out[0] = out[1] = &ir_poison;
}

/* (i, dweight, x, labels, g, weight) to (dweight, dx), or (i, x, labels, weight) to losses. */
static void turn(void *user, quern_tensor *const *args, quern_tensor **results) {
  const struct chunk *c = user;
  quern_tensor *d[2];
  if (!c->back) {
    of_rows(c, args[1], args[2], NULL, args[3], results);
    return;
  }
  of_rows(c, args[2], args[3], args[4], args[5], d);
  results[0] = quern_add(args[1], d[1]);
  results[1] = d[0];
}

/* Rows first .. first + n - 1 of t, as (turns, n / turns, ...) when there are turns. */
static quern_tensor *rows_of(quern_tensor *t, int64_t first, int64_t n, int64_t turns) {
  if (ir_is_poison(t)) return &ir_poison;
  quern_tensor *part = quern_slice(t, 0, first, first + n, 1);
  if (turns == 0) return part;
  int64_t dims[3] = {turns, n / turns, t->rank == 2 ? t->dims[1] : 0};
  return quern_reshape(part, t->rank + 1, dims);
}

static quern_tensor *flat_rows(quern_tensor *t, int64_t n, int64_t width) {
  return width > 0 ? quern_reshape(t, 2, (int64_t[]){n, width}) : quern_reshape(t, 1, &n);
}

static quern_tensor *join(quern_tensor *a, quern_tensor *b) {
  return b == NULL ? a : quern_concat(2, (quern_tensor *[]){a, b}, 0);
}

/* All rows: losses (n), or out = {dx (n, width), dweight}. */
static quern_status all_rows(struct chunk *c, quern_tensor *x, quern_tensor *labels, quern_tensor *g,
                             quern_tensor *weight, quern_tensor **out) {
  int64_t turns = c->n / c->rows, whole = turns * c->rows;
  quern_tensor *operands[5], *results[2], *rest[2] = {NULL, NULL};
  int n = 0;
  if (c->back) operands[n++] = quern_zeros(c->ctx, c->dtype, 2, weight->dims);
  operands[n++] = rows_of(x, 0, whole, turns);
  operands[n++] = rows_of(labels, 0, whole, turns);
  if (c->back) operands[n++] = rows_of(g, 0, whole, turns);
  operands[n] = weight;
  quern_loop_options options = {.size = sizeof options,
                                .trip = turns,
                                .n_carries = c->back ? 1 : 0,
                                .n_scanned = c->back ? 3 : 2,
                                .n_captures = 1,
                                .n_stacked = 1};
  QUERN_TRY(quern_loop(c->ctx, &options, operands, turn, c, results));
  if (whole < c->n) {
    int64_t left = c->n - whole;
    quern_tensor *last_x = rows_of(x, whole, left, 0), *last_labels = rows_of(labels, whole, left, 0);
    of_rows(c, last_x, last_labels, c->back ? rows_of(g, whole, left, 0) : NULL, weight, rest);
  }
  out[0] = join(flat_rows(results[c->back ? 1 : 0], whole, c->back ? c->width : 0), rest[0]);
  if (c->back) out[1] = rest[1] != NULL ? quern_add(results[0], rest[1]) : results[0];
  return quern_context_check(c->ctx);
}

/* How many labels count, as a scalar. */
static quern_tensor *count_of(const struct chunk *c, quern_tensor *labels) {
  if (!c->options.ignore) return ir_const(c->ctx, c->dtype, (double)c->n);
  quern_tensor *index = quern_cast(labels, QUERN_DTYPE_I64);
  quern_tensor *counted = quern_ne(index, ir_const_int(c->ctx, QUERN_DTYPE_I64, c->options.ignore_index));
  return quern_cast(quern_sum(quern_cast(counted, QUERN_DTYPE_I64), QUERN_ALL, false), c->dtype);
}

static quern_status forward(struct chunk *c, quern_reduction reduction, const struct ir_node *node,
                            quern_tensor *const *src, quern_tensor **out) {
  quern_tensor *labels = flat_rows(src[2], c->n, 0), *y, *x = without_casts(src[0], &c->casts[0]);
  quern_tensor *weight = without_casts(src[1], &c->casts[1]);
  QUERN_TRY(all_rows(c, flat_rows(x, c->n, c->width), labels, NULL, weight, &y));
  if (reduction == QUERN_REDUCTION_NONE)
    y = quern_reshape(y, node->out[0].rank, node->out[0].dims);
  else
    y = quern_sum(y, QUERN_ALL, false);
  if (reduction == QUERN_REDUCTION_MEAN) y = quern_div(y, count_of(c, labels));
  out[0] = quern_cast(y, node->out[0].dtype);
  return quern_context_check(c->ctx);
}

static quern_status backward(struct chunk *c, quern_reduction reduction, const struct ir_node *node,
                             quern_tensor *const *src, quern_tensor **out) {
  quern_tensor *labels = flat_rows(src[2], c->n, 0), *g = quern_cast(src[3], c->dtype), *d[2];
  if (reduction == QUERN_REDUCTION_MEAN) g = quern_div(g, count_of(c, labels));
  g = reduction == QUERN_REDUCTION_NONE ? flat_rows(g, c->n, 0) : quern_broadcast_to(g, 1, &c->n);
  quern_tensor *x = without_casts(src[0], &c->casts[0]), *weight = without_casts(src[1], &c->casts[1]);
  QUERN_TRY(all_rows(c, flat_rows(x, c->n, c->width), labels, g, weight, d));
  int n = 0;
  if (c->want_x) {
    out[n] = quern_cast(quern_reshape(d[0], src[0]->rank, src[0]->dims), node->out[n].dtype);
    n++;
  }
  if (c->want_weight) out[n] = quern_cast(d[1], node->out[n].dtype);
  return quern_context_check(c->ctx);
}

/* True when the node is one of the two, and large. */
static bool is_large(const struct ir_node *node, int64_t most, struct chunk *c) {
  if (node->op != IR_COMPOSITE) return false;
  c->back = strcmp(node->attrs->name, "linear_cross_entropy.vjp") == 0;
  if (!c->back && strcmp(node->attrs->name, "linear_cross_entropy") != 0) return false;
  const quern_tensor *x = node->src[0], *weight = node->src[1];
  bool wide = x->dtype == QUERN_DTYPE_F64;
  c->ctx = node->ctx;
  c->dtype = wide ? QUERN_DTYPE_F64 : QUERN_DTYPE_F32;
  c->width = x->dims[x->rank - 1];
  c->n = ir_count(node->src[2]);
  int64_t row = BASE_MAX(weight->dims[0], 1) * (wide ? 8 : 4);
  c->rows = LEAST_ROWS;
  while (2 * c->rows * row <= most) c->rows *= 2;
  c->want_x = node->out[0].rank == x->rank && ir_same_type(&node->out[0], x);
  c->want_weight = node->n_out == 2 || !c->want_x;
  bool sure = !c->back || node->n_out == 2 || !ir_same_type(x, weight); /* which gradient is wanted */
  return sure && (!c->back || node->n_src == 4) && c->width > 0 && c->n / c->rows >= 2 && c->n * row > most;
}

static quern_status visit(void *user, struct ir_node *node, quern_tensor *const *src, quern_tensor **out) {
  const struct pass_options *options = user;
  struct chunk c;
  if (!is_large(node, options->chunk_bytes > 0 ? options->chunk_bytes : CHUNK_BYTES, &c))
    return ir_rebuild(node, src, out);
  const int64_t *ints = node->attrs->ints.at;
  c.options = (quern_cross_entropy_options){.size = sizeof c.options,
                                            .reduction = QUERN_REDUCTION_NONE,
                                            .ignore = ints[1] != 0,
                                            .ignore_index = ints[2],
                                            .label_smoothing = node->attrs->reals.at[0]};
  return (c.back ? backward : forward)(&c, (quern_reduction)ints[0], node, src, out);
}

quern_status pass_chunk(struct pass_graph *graph, const struct pass_options *options) {
  return pass_deep(graph, visit, (void *)options);
}
