/* pass/layout_sink.c -- GPUs: permutes sink through what convolutional networks put between convolutions
** A convolution leaves its channels last in memory, as a product leaves its columns, and its result is a permute of that.
** Where the permute sinks through normalization, activation, pooling and the windows of the next convolution, all of these
** read and write neighboring elements, channels last.
** keeps: every bit: elements are computed from the same elements, terms of sums stay in their order
** see:   layout.c      tests: tests/pass/test_passes.c
*/
#include "pass/pass_int.h"

enum { LEAST_RANK = 4 };

static const int64_t *axes_of(const quern_tensor *t) {
  return t->node->op == IR_PERMUTE ? t->node->attrs->axes.at : NULL;
}

static quern_tensor *permute(quern_tensor *x, int n, const int64_t *axes) {
  if (ir_is_poison(x)) return x;
  return IR_MAKE(x->node->ctx, IR_PERMUTE, (&(struct ir_attrs){.axes = {n, axes}}), x);
}

quern_tensor *pass_unpermute(quern_tensor *t, const quern_tensor *permuted, bool any) {
  const quern_tensor *inner = permuted->node->src[0];
  const int64_t *axes = axes_of(permuted);
  int64_t inverse[QUERN_MAX_RANK];
  for (int k = 0; k < t->rank; k++) inverse[axes[k]] = k;
  if (t->node->op != IR_BROADCAST) return any && t->rank >= LEAST_RANK ? permute(t, t->rank, inverse) : NULL;
  quern_tensor *small = permute(t->node->src[0], t->rank, inverse);
  if (ir_is_poison(small)) return small;
  return IR_MAKE(t->node->ctx, IR_BROADCAST, (&(struct ir_attrs){.shape = {inner->rank, inner->dims}}), small);
}

/* Axes of spatial dims as they are under a permute; false: their order changes, which is that of the windows. */
static bool inner_axes(struct ir_ints outer, const int64_t *axes, int64_t *inner) {
  for (int i = 0; i < outer.n; i++) {
    inner[i] = axes[outer.at[i]];
    if (i > 0 && inner[i] < inner[i - 1]) return false;
  }
  return true;
}

/* window(permute(x)) = permute(window(x)): the axes of the windows stay last. */
quern_tensor *pass_sink_window(const struct ir_node *node, quern_tensor *x) {
  const int64_t *axes = axes_of(x);
  int64_t windows[QUERN_MAX_RANK], all[QUERN_MAX_RANK];
  if (axes == NULL || !inner_axes(node->attrs->axes, axes, windows)) return NULL;
  struct ir_attrs attrs = *node->attrs;
  attrs.axes.at = windows;
  for (int k = 0; k < node->out[0].rank; k++) all[k] = k < x->rank ? axes[k] : k;
  return permute(IR_MAKE(node->ctx, IR_WINDOW, &attrs, x->node->src[0]), node->out[0].rank, all);
}

/* col2im(permute(x)) = permute(col2im(x)) where the permute leaves the axes of the windows last. */
quern_tensor *pass_sink_col2im(const struct ir_node *node, quern_tensor *x) {
  const int64_t *axes = axes_of(x);
  int rank = node->out[0].rank;
  int64_t windows[QUERN_MAX_RANK], dims[QUERN_MAX_RANK];
  if (axes == NULL || !inner_axes(node->attrs->axes, axes, windows)) return NULL;
  for (int k = rank; k < x->rank; k++)
    if (axes[k] != k) return NULL;
  for (int k = 0; k < rank; k++) dims[axes[k]] = node->out[0].dims[k];
  struct ir_attrs attrs = *node->attrs;
  attrs.axes.at = windows;
  attrs.shape = (struct ir_ints){rank, dims};
  return permute(IR_MAKE(node->ctx, IR_COL2IM, &attrs, x->node->src[0]), rank, axes);
}

/* Results of attention are written where they are wanted: attention_views.c wants to see where that is. */
static bool is_attention(const quern_tensor *t) {
  return t->node->op == IR_COMPOSITE && strncmp(t->node->attrs->name, "attention", strlen("attention")) == 0;
}

/* concat(permute(a), permute(b)) = permute(concat(a, b)) */
quern_tensor *pass_sink_concat(const struct ir_node *node, quern_tensor *const *src) {
  const int64_t *axes = axes_of(src[0]);
  struct base_heap *heap = &node->ctx->heap;
  for (int i = 0; i < node->n_src; i++) {
    const int64_t *own = axes_of(src[i]);
    if (own == NULL || is_attention(src[i]->node->src[0]) ||
        memcmp(own, axes, (size_t)src[0]->rank * sizeof *axes) != 0)
      return NULL;
  }
  if (node->n_src == 0) return NULL;
  size_t bytes = (size_t)node->n_src * sizeof(quern_tensor *);
  quern_tensor **parts = base_alloc(heap, bytes);
  if (parts == NULL) return ir_fail_last(node->ctx);
  for (int i = 0; i < node->n_src; i++) parts[i] = src[i]->node->src[0];
  struct ir_attrs attrs = {.axis = axes[node->attrs->axis]};
  quern_tensor *y = ir_make(node->ctx, IR_CONCAT, node->n_src, parts, &attrs);
  base_free(heap, parts, bytes);
  return permute(y, src[0]->rank, axes);
}

/* Neighboring axes of x that a reshape makes neighboring axes of y: as many elements, and no fewer axes do. Axes of one element
** are left out of x, and go with those before them in y. */
struct run {
  int x, n_x, y, n_y;
};

/* The axes of more than one element. */
static int large_axes(const quern_tensor *x, int *at) {
  int n = 0;
  for (int k = 0; k < x->rank; k++)
    if (x->dims[k] != 1) at[n++] = k;
  return n;
}

/* The runs of a reshape of x, whose n large axes are given; 0: there are none, or no elements. */
static int find_runs(const quern_tensor *x, int n, const int *large, const quern_tensor *y, struct run *runs) {
  int n_runs = 0, i = 0, k = 0;
  while (i < n && k < y->rank) {
    struct run run = {i, 1, k, 1};
    int64_t a = x->dims[large[i++]], b = y->dims[k++];
    while (a != b) {
      if (a == 0 || b == 0 || (a < b ? i == n : k == y->rank)) return 0;
      if (a < b)
        a *= x->dims[large[i++]], run.n_x++;
      else
        b *= y->dims[k++], run.n_y++;
    }
    for (; k < y->rank && y->dims[k] == 1; k++) run.n_y++;
    runs[n_runs++] = run;
  }
  return i == n && k == y->rank ? n_runs : 0;
}

/* Whether the large axes of a run are neighbors in the permute's source, in that order, but for axes of one element. */
static bool is_together(const quern_tensor *x, const int *large, const struct run *run) {
  const int64_t *axes = axes_of(x);
  const quern_tensor *inner = x->node->src[0];
  for (int i = run->x; i + 1 < run->x + run->n_x; i++) {
    int64_t last = axes[large[i + 1]];
    if (last < axes[large[i]]) return false;
    for (int64_t k = axes[large[i]] + 1; k < last; k++)
      if (inner->dims[k] != 1) return false;
  }
  return true;
}

/* reshape(permute(x)) = permute(reshape(x)) where axes that become one are neighbors in x as well. */
quern_tensor *pass_sink_reshape(const struct ir_node *node, quern_tensor *x) {
  const int64_t *axes = axes_of(x);
  const quern_tensor *y = &node->out[0];
  struct run runs[QUERN_MAX_RANK];
  int large[QUERN_MAX_RANK], n_large = large_axes(x, large), rank = 0;
  int64_t dims[QUERN_MAX_RANK], order[QUERN_MAX_RANK];
  int n = axes != NULL && ir_count(x) > 1 ? find_runs(x, n_large, large, y, runs) : 0;
  for (int i = 0; i < n; i++)
    if (!is_together(x, large, &runs[i])) return NULL;
  for (int64_t inner = 0; inner < x->rank; inner++) { /* runs in the order in which they lie in x's source */
    for (int i = 0; i < n; i++) {
      if (axes[large[runs[i].x]] != inner) continue;
      for (int k = runs[i].y; k < runs[i].y + runs[i].n_y; k++) {
        if (y->dims[k] == 1) continue;
        dims[rank] = y->dims[k];
        order[k] = rank++;
      }
    }
  }
  for (int k = 0; k < y->rank && n > 0; k++) { /* axes of one element come last, where windows have theirs */
    if (y->dims[k] != 1) continue;
    dims[rank] = 1;
    order[k] = rank++;
  }
  if (n == 0 || rank != y->rank) return NULL;
  struct ir_attrs shape = {.shape = {rank, dims}};
  return permute(IR_MAKE(node->ctx, IR_RESHAPE, &shape, x->node->src[0]), rank, order);
}
