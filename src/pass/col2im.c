/* pass/col2im.c -- an overlap-add of products, the input gradient of a convolution or a transposed one, becomes
** convolutions
** in:    COL2IM of a sum-of-products DOT, moved, whose windows are free axes of one operand (the weights) and whose
**        positions are free axes of the other; also under a SLICE that cuts off padding
** out:   for stride 1 the positions padded, WINDOW, and a DOT with the flipped weights; for greater strides one of these
**        for each residue of the position, with the weights that reach it, and the results interleaved
**        where a position has few products, one convolution with zeros between the positions
** keeps: every product that is added; the order of sums is another one: docs/design/011-convolution-gradients.md
** tests: tests/pass/test_col2im.c
*/
#include "pass/pass_int.h"

/* Convolutions that one overlap-add becomes at most; how many more products they may have than what they replace. */
enum { MOST_CLASSES = 64, MOST_WORK = 8, THIN = 4, AXES = QUERN_MAX_RANK };

/* A spatial axis. */
struct spatial {
  int64_t axis;                       /* of the result of the COL2IM */
  int64_t places, size, step, dilate; /* positions and places of a window */
  int64_t from, to;                   /* what of the result is wanted */
  int place, window;                  /* which axes of the operands they are; -1: a window of size 1 that has none */
  int64_t every;                      /* positions are read with zeros between them: one in so many is none */
};

struct match {
  quern_context *ctx;
  const struct ir_node *dot, *col2im;
  int side; /* the operand with the positions */
  int n;    /* spatial axes */
  struct spatial at[AXES];
  int n_order;     /* axes of the product without windows, in the order of the result */
  int order[AXES]; /* their numbers among those */
};

/* ---- recognizing ---------------------------------------------------------------------------------------------- */

/* Which operand and axis of it an axis of the product is. */
struct origin {
  int side; /* -1: both, a batch axis */
  int axis;
};

static bool has(const struct ir_ints *list, int64_t axis) {
  for (int i = 0; i < list->n; i++)
    if (list->at[i] == axis) return true;
  return false;
}

static void find_origins(const struct ir_node *dot, struct origin *origins) {
  const struct ir_attrs *attrs = dot->attrs;
  int n = 0;
  for (int i = 0; i < attrs->a_batch.n; i++) origins[n++] = (struct origin){-1, (int)attrs->a_batch.at[i]};
  for (int side = 0; side < 2; side++) {
    const struct ir_ints *batch = side == 0 ? &attrs->a_batch : &attrs->b_batch;
    const struct ir_ints *sum = side == 0 ? &attrs->a_sum : &attrs->b_sum;
    for (int k = 0; k < dot->src[side]->rank; k++)
      if (!has(batch, k) && !has(sum, k)) origins[n++] = (struct origin){side, k};
  }
}

/* Follows reshapes and permutes from t at `at` down to a product of which `at` become the indices. */
static quern_tensor *follow(struct pass_space *space, quern_tensor *t, const struct pass_index **at) {
  const struct pass_index *in[AXES];
  while (t->node->op == IR_RESHAPE || t->node->op == IR_PERMUTE) {
    if (!pass_index_source(space, t->node, 0, at, in)) return NULL;
    t = t->node->src[0];
    for (int k = 0; k < t->rank; k++) at[k] = in[k];
  }
  const struct ir_attrs *attrs = t->node->attrs;
  bool sums = t->node->op == IR_DOT && attrs->reduce == IR_SUM && attrs->combine == IR_COMBINE_MUL;
  return sums ? t : NULL;
}

/* The axis of the product that is the variable; -1: none. */
static int find_axis(struct pass_space *space, int rank, const struct pass_index *const *at, int var) {
  for (int k = 0; k < rank; k++)
    if (at[k] == pass_index_var(space, var)) return k;
  return -1;
}

/* Among free axes of a side that are not taken, one of size 1: any will do. */
static int find_unit(const quern_tensor *y, const struct origin *origins, int side, const bool *taken) {
  for (int k = 0; k < y->rank; k++)
    if (y->dims[k] == 1 && origins[k].side == side && !taken[k]) return k;
  return -1;
}

/* The first variable that an index uses, and its coefficient or divisor there: what orders axes that are pieces of one. */
static void order_key(const struct pass_space *space, const struct pass_index *e, int *var, int64_t *divisor) {
  *divisor = 1;
  *var = 0;
  while (e->n_terms > 0 && e->terms[0].atom->kind != PASS_ATOM_VAR) {
    const struct pass_atom *atom = e->terms[0].atom;
    if (atom->kind == PASS_ATOM_DIV) *divisor *= atom->by;
    e = atom->of;
  }
  if (e->n_terms > 0) *var = e->terms[0].atom->var;
  (void)space;
}

/* Puts the axes that are no windows into the order of the result. True when that is all there is to it: the columns are
** the product permuted so, windows last, and reshaped. */
static bool find_order(struct match *m, struct pass_space *space, const quern_tensor *y, const quern_tensor *columns,
                       const struct pass_index *const *at, const bool *is_window, const int *place_var) {
  int64_t keys[AXES][2], dims[AXES];
  int list[AXES], number = 0, n = 0;
  for (int k = 0; k < y->rank; k++) {
    if (is_window[k]) continue;
    int var;
    order_key(space, at[k], &var, &keys[n][1]);
    keys[n][0] = place_var[k] >= 0 ? place_var[k] : var;
    int i = n++;
    for (; i > 0; i--) { /* by insertion: keys[] and the lists go together */
      bool before = keys[i][0] < keys[i - 1][0] || (keys[i][0] == keys[i - 1][0] && keys[i][1] > keys[i - 1][1]);
      if (!before) break;
      for (int j = 0; j < 2; j++) {
        int64_t key = keys[i][j];
        keys[i][j] = keys[i - 1][j], keys[i - 1][j] = key;
      }
      list[i] = list[i - 1], m->order[i] = m->order[i - 1];
    }
    list[i] = k, m->order[i] = number++;
  }
  m->n_order = n;
  for (int i = 0; i < m->n; i++)
    for (int k = 0; k < y->rank; k++)
      if (is_window[k] && at[k] == pass_index_var(space, columns->rank - m->n + i) && y->dims[k] > 1) list[n++] = k;
  const struct pass_index *vars[AXES], *found[AXES];
  for (int k = 0; k < columns->rank; k++) vars[k] = pass_index_var(space, k);
  for (int i = 0; i < n; i++) dims[i] = y->dims[list[i]];
  pass_index_unflat(space, pass_index_flat(space, columns->rank, columns->dims, vars), n, dims, found);
  for (int i = 0; i < n; i++)
    if (found[i] != at[list[i]]) return false;
  return !space->failed;
}

/* Finds the axes of positions and windows; false when they are not free axes of one operand each. */
static bool find_axes(struct match *m, struct pass_space *space) {
  quern_tensor *columns = m->col2im->src[0];
  const struct pass_index *at[AXES];
  struct origin origins[AXES];
  bool is_window[AXES] = {false}, taken[AXES] = {false};
  int place_var[AXES], first = columns->rank - m->n;
  for (int k = 0; k < columns->rank; k++) at[k] = pass_index_var(space, pass_space_add(space, columns->dims[k]));
  quern_tensor *y = follow(space, columns, at);
  if (y == NULL || space->failed) return false;
  m->dot = y->node;
  m->side = -1;
  find_origins(m->dot, origins);
  for (int k = 0; k < y->rank; k++) place_var[k] = -1;
  for (int i = 0; i < m->n; i++) {
    struct spatial *s = &m->at[i];
    s->place = s->places > 1 ? find_axis(space, y->rank, at, (int)s->axis) : -1;
    s->window = s->size > 1 ? find_axis(space, y->rank, at, first + i) : -1;
    if ((s->places > 1 && s->place < 0) || (s->size > 1 && s->window < 0)) return false;
    if (s->place >= 0) m->side = origins[s->place].side;
    if (s->place >= 0) taken[s->place] = true, place_var[s->place] = (int)s->axis;
    if (s->window >= 0) taken[s->window] = is_window[s->window] = true;
  }
  if (m->side < 0) return false;
  for (int i = 0; i < m->n; i++) {
    struct spatial *s = &m->at[i];
    if (s->place < 0) s->place = find_unit(y, origins, m->side, taken);
    if (s->place < 0 || origins[s->place].side != m->side) return false;
    if (s->window >= 0 && origins[s->window].side != 1 - m->side) return false;
    taken[s->place] = true;
    place_var[s->place] = (int)s->axis;
  }
  for (int k = 0; k < y->rank; k++)
    for (int i = 0; i < m->n && !taken[k]; i++)
      if (pass_index_uses(at[k], (int)m->at[i].axis) || pass_index_uses(at[k], first + i)) return false;
  if (!find_order(m, space, y, columns, at, is_window, place_var)) return false;
  for (int i = 0; i < m->n; i++) {
    struct spatial *s = &m->at[i];
    s->place = origins[s->place].axis;
    if (s->window >= 0) s->window = origins[s->window].axis;
  }
  return true;
}

/* ---- one convolution for each residue --------------------------------------------------------------------------- */

/* On one axis, the positions from + r + q step: which weights reach them, and from where on which positions are read. */
struct taps {
  int64_t count, n, first, every; /* positions q; weights first, first + every, ... */
  int64_t start, dilate;          /* position read by q = 0 and the last weight; between weights */
};

static int64_t gcd(int64_t a, int64_t b) { return b == 0 ? a : gcd(b, a % b); }

static struct taps find_taps(const struct spatial *s, int64_t r) {
  int64_t g = gcd(s->dilate, s->step), at = s->from + r;
  struct taps t = {.count = (s->to - at + s->step - 1) / s->step, .every = s->step / g, .dilate = s->dilate / g};
  while (t.first < s->size && t.first < t.every && (at - t.first * s->dilate) % s->step != 0) t.first++;
  bool none = t.first >= s->size || t.first >= t.every;
  t.n = none ? 0 : (s->size - 1 - t.first) / t.every + 1;
  t.start = none ? 0 : (at - t.first * s->dilate) / s->step - (t.n - 1) * t.dilate;
  return t;
}

static quern_tensor *slice(quern_tensor *x, const int64_t *lo, const int64_t *hi, const int64_t *step) {
  bool whole = true;
  for (int k = 0; k < x->rank; k++) whole = whole && lo[k] == 0 && hi[k] == x->dims[k] && step[k] == 1;
  struct ir_attrs attrs = {.lo = {x->rank, lo}, .hi = {x->rank, hi}, .step = {x->rank, step}};
  return whole ? x : IR_MAKE(x->node->ctx, IR_SLICE, &attrs, x);
}

static quern_tensor *pad(quern_tensor *x, const int64_t *lo, const int64_t *hi, const int64_t *mid) {
  bool nothing = true;
  for (int k = 0; k < x->rank; k++) nothing = nothing && lo[k] == 0 && hi[k] == 0 && (mid[k] == 0 || x->dims[k] <= 1);
  struct ir_attrs attrs = {.lo = {x->rank, lo}, .hi = {x->rank, hi}, .mid = {x->rank, mid}};
  return nothing ? x : IR_MAKE(x->node->ctx, IR_PAD, &attrs, x, ir_const(x->node->ctx, x->dtype, 0));
}

/* The positions that the class reads, cut or padded, as windows. */
static quern_tensor *windows_of(const struct match *m, const struct taps *taps) {
  quern_tensor *x = m->dot->src[m->side];
  int64_t lo[AXES] = {0}, hi[AXES], step[AXES], before[AXES] = {0}, after[AXES] = {0}, mid[AXES] = {0};
  int64_t axes[AXES], size[AXES], ones[AXES], dilate[AXES];
  static const int64_t nothing[AXES] = {0};
  int n = 0, rank = x->rank;
  bool cut = false;
  for (int k = 0; k < rank; k++) hi[k] = x->dims[k], step[k] = 1;
  for (int i = 0; i < m->n; i++) {
    int k = m->at[i].place;
    int64_t end = taps[i].start + taps[i].count + (taps[i].n - 1) * taps[i].dilate;
    int64_t dim = (x->dims[k] - 1) * m->at[i].every + 1;
    mid[k] = m->at[i].every - 1;
    lo[k] = BASE_MIN(BASE_MAX(taps[i].start, 0), dim);
    hi[k] = BASE_MAX(BASE_MIN(end, dim), lo[k]);
    cut = cut || lo[k] > 0 || hi[k] < dim;
    before[k] = BASE_MIN(BASE_MAX(-taps[i].start, 0), end - taps[i].start);
    after[k] = end - taps[i].start - before[k] - (hi[k] - lo[k]);
  }
  if (cut && !ir_is_poison(x)) x = pad(x, nothing, nothing, mid);
  if (cut && !ir_is_poison(x)) x = slice(x, lo, hi, step);
  for (int k = 0; k < rank && cut; k++) mid[k] = 0;
  if (!ir_is_poison(x)) x = pad(x, before, after, mid);
  if (ir_is_poison(x)) return x;
  for (int i = 0; i < m->n; i++) {
    if (m->at[i].window < 0) continue;
    axes[n] = m->at[i].place, size[n] = taps[i].n, ones[n] = 1, dilate[n++] = taps[i].dilate;
  }
  if (n == 0) return x;
  struct ir_attrs attrs = {.axes = {n, axes}, .size = {n, size}, .step = {n, ones}, .dilate = {n, dilate}};
  x = IR_MAKE(m->ctx, IR_WINDOW, &attrs, x);
  for (int i = 0; i < n; i++) axes[i] = x->rank - n + i;
  return ir_is_poison(x) ? x : IR_MAKE(m->ctx, IR_FLIP, (&(struct ir_attrs){.axes = {n, axes}}), x);
}

/* The weights that reach the class, from the first to the last. */
static quern_tensor *weights_of(const struct match *m, const struct taps *taps) {
  quern_tensor *w = m->dot->src[1 - m->side];
  int64_t lo[AXES] = {0}, hi[AXES], step[AXES];
  for (int k = 0; k < w->rank; k++) hi[k] = w->dims[k], step[k] = 1;
  for (int i = 0; i < m->n; i++) {
    int k = m->at[i].window;
    if (k < 0) continue;
    lo[k] = taps[i].first, step[k] = taps[i].every;
    hi[k] = taps[i].first + (taps[i].n - 1) * taps[i].every + 1;
  }
  return slice(w, lo, hi, step);
}

/* Where the axes of the product, without windows, are when the weights are its first operand. */
static void weights_first(const struct match *m, int64_t *order) {
  const struct ir_attrs *attrs = m->dot->attrs;
  int batch = attrs->a_batch.n, free = m->dot->src[m->side]->rank - batch - attrs->a_sum.n;
  if (m->side == 1) return;
  for (int i = 0; i < m->n_order; i++)
    if (order[i] >= batch) order[i] += order[i] < batch + free ? m->n_order - batch - free : -free;
}

/* The sums of one class, as the result has its axes. The weights are the first operand: positions are then contiguous
** in the product, whoever reads it. */
static quern_tensor *convolve(const struct match *m, const struct taps *taps) {
  const struct ir_attrs *old = m->dot->attrs;
  const struct ir_ints *old_sum[] = {&old->a_sum, &old->b_sum}, *old_batch[] = {&old->a_batch, &old->b_batch};
  int64_t sums[2][AXES], order[AXES], dims[AXES];
  int n = old->a_sum.n, windows = 0, rank = m->dot->src[m->side]->rank;
  quern_tensor *w = weights_of(m, taps);
  if (ir_is_poison(w)) return w;
  quern_tensor *x = windows_of(m, taps);
  if (ir_is_poison(x)) return x;
  for (int i = 0; i < n; i++) sums[0][i] = old_sum[1 - m->side]->at[i], sums[1][i] = old_sum[m->side]->at[i];
  for (int i = 0; i < m->n; i++) {
    if (m->at[i].window < 0) continue;
    sums[0][n] = m->at[i].window;
    sums[1][n++] = rank + windows++;
  }
  struct ir_attrs attrs = *old;
  attrs.a_batch = *old_batch[1 - m->side];
  attrs.b_batch = *old_batch[m->side];
  attrs.a_sum = (struct ir_ints){n, sums[0]};
  attrs.b_sum = (struct ir_ints){n, sums[1]};
  quern_tensor *y = IR_MAKE(m->ctx, IR_DOT, &attrs, w, x);
  if (ir_is_poison(y)) return y;
  for (int i = 0; i < m->n_order; i++) order[i] = m->order[i];
  weights_first(m, order);
  y = IR_MAKE(m->ctx, IR_PERMUTE, (&(struct ir_attrs){.axes = {m->n_order, order}}), y);
  const quern_tensor *out = &m->col2im->out[0];
  for (int k = 0; k < out->rank; k++) dims[k] = out->dims[k];
  for (int i = 0; i < m->n; i++) dims[m->at[i].axis] = taps[i].count;
  return ir_is_poison(y) ? y : IR_MAKE(m->ctx, IR_RESHAPE, (&(struct ir_attrs){.shape = {out->rank, dims}}), y);
}

/* All positions of spatial axes from `axis` on, taps[] being those of the axes before; NULL: nothing reaches them. */
static quern_tensor *all_classes(const struct match *m, int axis, struct taps *taps) {
  if (axis == m->n) return convolve(m, taps);
  const struct spatial *s = &m->at[axis];
  const quern_tensor *out = &m->col2im->out[0];
  quern_tensor *sum = NULL;
  for (int64_t r = 0; r < BASE_MIN(s->step, s->to - s->from); r++) {
    taps[axis] = find_taps(s, r);
    quern_tensor *y = taps[axis].n > 0 ? all_classes(m, axis + 1, taps) : NULL;
    if (y == NULL) continue;
    if (ir_is_poison(y)) return y;
    int64_t lo[AXES] = {0}, hi[AXES] = {0}, mid[AXES] = {0}, k = s->axis;
    lo[k] = r, mid[k] = s->step - 1;
    hi[k] = s->to - s->from - r - (y->dims[k] - 1) * s->step - 1;
    y = pad(y, lo, hi, mid);
    if (ir_is_poison(y)) return y;
    sum = sum == NULL ? y : IR_MAKE(m->ctx, IR_ADD, NULL, sum, y);
    if (ir_is_poison(sum)) return sum;
  }
  (void)out;
  return sum;
}

/* ---- choosing ------------------------------------------------------------------------------------------------- */

/* False where windows do not overlap, there would be many convolutions, or much more to compute for all positions. That
** some are cut off does not count, so that the order of sums does not depend on it. */
static bool pays(const struct match *m) {
  double work = 1, before = 1, classes = 1;
  bool overlaps = false;
  for (int i = 0; i < m->n; i++) {
    struct spatial s = m->at[i];
    double sum = 0;
    s.from = 0, s.to = m->col2im->out[0].dims[s.axis];
    for (int64_t r = 0; r < BASE_MIN(s.step, BASE_MIN(s.to, MOST_CLASSES + 1)); r++) {
      struct taps t = find_taps(&s, r);
      sum += (double)t.count * (double)t.n;
    }
    work *= sum;
    before *= (double)s.places * (double)s.size;
    classes *= (double)s.step;
    overlaps = overlaps || (s.places > 1 && s.size > 1 && s.dilate * (s.size - 1) >= s.step);
  }
  return overlaps && classes <= MOST_CLASSES && work > 0 && work <= MOST_WORK * before;
}

/* True when a position has few products, as in a depthwise convolution: to put the results of several convolutions
** together would take longer than to multiply by zeros. */
static bool is_thin(const struct match *m) {
  const struct ir_node *dot = m->dot;
  const quern_tensor *w = dot->src[1 - m->side];
  const struct ir_ints *batch = m->side == 1 ? &dot->attrs->a_batch : &dot->attrs->b_batch;
  int64_t products = 1;
  for (int k = 0; k < w->rank; k++) {
    bool counts = !has(batch, k);
    for (int i = 0; i < m->n; i++) counts = counts && m->at[i].window != k;
    products *= counts ? w->dims[k] : 1;
  }
  return products <= THIN;
}

/* Stride 1, with zeros between the positions. */
static void insert_zeros(struct match *m) {
  for (int i = 0; i < m->n; i++) {
    struct spatial *s = &m->at[i];
    s->every = s->step;
    s->places = (s->places - 1) * s->step + 1;
    s->step = 1;
  }
}

/* The positions from[k] .. to[k] - 1 of a COL2IM as convolutions; NULL when it stays. */
static quern_status rewrite(quern_context *ctx, const struct ir_node *col2im, const int64_t *from, const int64_t *to,
                            quern_tensor **out) {
  const struct ir_attrs *attrs = col2im->attrs;
  const quern_tensor *columns = col2im->src[0];
  struct match m = {.ctx = ctx, .col2im = col2im, .n = attrs->axes.n};
  struct pass_space *space;
  struct taps taps[AXES];
  *out = NULL;
  if (ir_count(&col2im->out[0]) == 0 || ir_count(columns) == 0) return QUERN_STATUS_OK;
  for (int i = 0; i < m.n; i++) {
    int64_t k = attrs->axes.at[i];
    m.at[i] = (struct spatial){.axis = k,
                               .places = columns->dims[k],
                               .size = columns->dims[columns->rank - m.n + i],
                               .step = attrs->step.at[i],
                               .dilate = attrs->dilate.at[i],
                               .every = 1,
                               .from = from != NULL ? from[k] : 0,
                               .to = to != NULL ? to[k] : col2im->out[0].dims[k]};
    if (m.at[i].to <= m.at[i].from) return QUERN_STATUS_OK;
  }
  if (!pays(&m)) return QUERN_STATUS_OK;
  QUERN_TRY(pass_space_new(&space, &ctx->heap));
  bool found = find_axes(&m, space), failed = space->failed;
  pass_space_free(space);
  if (failed) return QUERN_STATUS_MEMORY;
  if (found && is_thin(&m)) insert_zeros(&m);
  if (found && m.dot->src[0]->rank + m.n <= AXES && m.dot->src[1]->rank + m.n <= AXES) *out = all_classes(&m, 0, taps);
  return *out != NULL && ir_is_poison(*out) ? ir_poison_error(ctx) : QUERN_STATUS_OK;
}

/* ---- the pass --------------------------------------------------------------------------------------------------- */

/* A SLICE of a COL2IM: what is left to slice of its positions. */
static quern_status visit_slice(struct ir_node *node, quern_tensor *const *src, quern_tensor **out) {
  const struct ir_node *col2im = src[0]->node;
  const struct ir_attrs *attrs = node->attrs;
  int64_t lo[AXES], hi[AXES];
  quern_tensor *y = NULL;
  bool plain = true;
  for (int i = 0; i < col2im->attrs->axes.n; i++) plain = plain && attrs->step.at[col2im->attrs->axes.at[i]] == 1;
  if (plain) QUERN_TRY(rewrite(node->ctx, col2im, attrs->lo.at, attrs->hi.at, &y));
  if (y == NULL) return ir_rebuild(node, src, out);
  for (int k = 0; k < y->rank; k++) {
    bool spatial = has(&col2im->attrs->axes, k);
    lo[k] = spatial ? 0 : attrs->lo.at[k];
    hi[k] = spatial ? y->dims[k] : attrs->hi.at[k];
  }
  out[0] = slice(y, lo, hi, attrs->step.at);
  return ir_is_poison(out[0]) ? ir_poison_error(node->ctx) : QUERN_STATUS_OK;
}

static quern_status visit_slices(void *user, struct ir_node *node, quern_tensor *const *src, quern_tensor **out) {
  (void)user;
  bool sliced = node->op == IR_SLICE && src[0]->node->op == IR_COL2IM;
  return sliced ? visit_slice(node, src, out) : ir_rebuild(node, src, out);
}

static quern_status visit_others(void *user, struct ir_node *node, quern_tensor *const *src, quern_tensor **out) {
  (void)user;
  quern_tensor *y = NULL;
  QUERN_TRY(ir_rebuild(node, src, out));
  if (node->op == IR_COL2IM) QUERN_TRY(rewrite(node->ctx, out[0]->node, NULL, NULL, &y));
  if (y != NULL) out[0] = y;
  return QUERN_STATUS_OK;
}

static bool has_col2im(const struct ir_order *order) {
  for (size_t i = 0; i < order->n; i++)
    if (order->at[i]->op == IR_COL2IM || order->at[i]->attrs->body != NULL) return true;
  return false;
}

quern_status pass_col2im(struct pass_graph *graph, const struct pass_options *options) {
  if (options->target != NULL && options->target->gpu) return QUERN_STATUS_OK;
  struct ir_order order;
  QUERN_TRY(ir_topo(graph->ctx, graph->n_roots, graph->roots, &order));
  bool found = has_col2im(&order);
  ir_order_fini(graph->ctx, &order);
  if (!found) return QUERN_STATUS_OK;
  QUERN_TRY(pass_subgraphs(graph, visit_slices, NULL));
  return pass_subgraphs(graph, visit_others, NULL);
}
