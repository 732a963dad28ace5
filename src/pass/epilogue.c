/* pass/epilogue.c -- fusion: the epilogue of a contraction that a library does
** A library can add a bias or a matrix, apply an activation or its gradient, and store the pre-activation as an
** auxiliary output. Whether an expression is one of these epilogues is found out by its values: it is computed at some
** points in double precision, casts being exact, and compared with what the library would give. So it does not matter
** how the graph has written it, or what the passes made of it.
** keeps: what the cluster computed so far is known to nobody else once something is computed from it, unless it is the
**        auxiliary output
** see:   gemm.c, docs/design/008-libraries.md      tests: tests/sched/test_gpu_dot_library.c
*/
#include <math.h>

#include "pass/pass_int.h"

enum { MOST_ITEMS = 96, NEAR_POINTS = 24, WIDE_POINTS = 64, POINTS = NEAR_POINTS + WIDE_POINTS, AUX_MULTIPLE = 8 };

/* The sum, two matrices and a vector that are read, and what is computed. */
enum slot { SLOT_SUM, SLOT_FIRST, SLOT_SECOND, SLOT_VECTOR, SLOT_COUNT, SLOT_CONST, SLOT_MADE };

/* A tensor at indices. */
struct item {
  const quern_tensor *t;
  const struct pass_index *at[QUERN_MAX_RANK];
  enum slot slot;
  int n_src, src[3]; /* of SLOT_MADE: items */
  bool deep;         /* computed from the sum */
  bool later;        /* and from the sum through the auxiliary output only */
  int uses;          /* by deep items */
  double at_point[POINTS];
};

struct match {
  struct fuse *f;
  struct fuse_cluster *cluster;
  int number;
  int n;
  struct item items[MOST_ITEMS];
  int order[MOST_ITEMS]; /* sources first */
  const quern_tensor *read[SLOT_COUNT];
  struct pass_matrix matrix[SLOT_COUNT];
  bool along_rows;             /* the vector is */
  const quern_tensor *to_make; /* one of these that is not in memory yet */
  int aux;                     /* an item; -1: none */
  struct pass_gemm gemm;
};

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* Irregular numbers of about -4 .. 4, and some zeros; then, of the sum and of the first matrix in turn, large and small
** ones, so that no bound lies outside of what is looked at. */
static double sample(enum slot slot, int point) {
  static const int zero[SLOT_COUNT] = {3, 7, 11, 15};
  static const double sizes[WIDE_POINTS / 4] = {1e-30, 1e-9, 1e-6, 1e-3, 5,   6.5, 8,    12,
                                                19,    29,   31,   60,   1e3, 1e5, 1e15, 1e38};
  if (slot < SLOT_COUNT && point < NEAR_POINTS && point == zero[slot]) return 0;
  int wide = point - NEAR_POINTS;
  if (wide >= 0 && slot == (wide % 2 == 0 ? SLOT_SUM : SLOT_FIRST)) {
    double size = sizes[wide / 4];
    return wide / 2 % 2 == 0 ? size : -size;
  }
  uint32_t x = (uint32_t)(point * SLOT_COUNT + (int)slot + 1) * 2654435761u;
  return (double)((x >> 8) % 65521) / 65521 * 8 - 4;
}

static const double gelu_slope = 0.7978845608028654, gelu_cube = 0.044715; /* sqrt(2 / pi) */

static double activate(enum pass_activation act, double x) {
  if (act == PASS_ACT_RELU) return x > 0 ? x : 0;
  if (act == PASS_ACT_GELU_TANH) return 0.5 * x * (1 + tanh(gelu_slope * (x + gelu_cube * x * x * x)));
  return x;
}

/* The derivative of gelu_tanh. */
static double gelu_gradient(double x) {
  double t = tanh(gelu_slope * (x + gelu_cube * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * gelu_slope * (1 + 3 * gelu_cube * x * x);
}

double pass_compute(enum ir_op op, double a, double b, double c) {
  switch ((int)op) {
  case IR_NEG: return -a;
  case IR_ABS: return fabs(a);
  case IR_EXP: return exp(a);
  case IR_TANH: return tanh(a);
  case IR_ERF: return erf(a);
  case IR_ERFC: return erfc(a);
  case IR_ADD: return a + b;
  case IR_SUB: return a - b;
  case IR_MUL: return a * b;
  case IR_DIV: return a / b;
  case IR_MAX: return fmax(a, b);
  case IR_MIN: return fmin(a, b);
  case IR_LT: return a < b ? 1 : 0;
  case IR_LE: return a <= b ? 1 : 0;
  case IR_SELECT: return a != 0 ? b : c;
  default: return a; /* casts and movement */
  }
}

static bool is_number(quern_dtype dtype) { return base_dtype_is(dtype, BASE_FLOAT) || dtype == QUERN_DTYPE_BOOL; }

/* How an op takes part in an end: sums and products of what a library adds; whatever bends or cuts, of which relu has
** one maximum and gelu's expression some; or not at all. */
enum part { NO_PART, LINEAR, BENDING };
static enum part part_of(enum ir_op op) {
  switch ((int)op) {
  case IR_CAST:
  case IR_RESHAPE:
  case IR_PERMUTE:
  case IR_BROADCAST:
  case IR_SLICE:
  case IR_STOP_GRAD:
  case IR_NEG:
  case IR_ADD:
  case IR_SUB:
  case IR_MUL:
  case IR_DIV: return LINEAR;
  case IR_ABS:
  case IR_EXP:
  case IR_TANH:
  case IR_MAX:
  case IR_MIN:
  case IR_LT:
  case IR_LE:
  case IR_SELECT: return BENDING;
  default: return NO_PART;
  }
}

/* Ops of floats and bools that compute() knows. A cast may widen, or round as the library's result would be. */
static bool is_known(const struct match *m, const struct ir_node *node) {
  quern_dtype to = node->out[0].dtype;
  if (!is_number(to)) return false;
  for (int i = 0; i < node->n_src; i++)
    if (!is_number(node->src[i]->dtype)) return false;
  if (node->op == IR_CAST && base_dtypes[to].size < base_dtypes[node->src[0]->dtype].size)
    return to == QUERN_DTYPE_F32 || to == m->cluster->gemm->a.tensor->dtype;
  if (node->op == IR_CAST && !base_dtype_is(to, BASE_FLOAT)) return false;
  return part_of(node->op) != NO_PART && node->n_src <= 3;
}

/* ---- reading the expression -------------------------------------------------------------------------------------- */

/* The item of a tensor at indices: one that is there, or a new one; -1 when there are too many. */
static int add_item(struct match *m, const quern_tensor *t, const struct pass_index *const *at) {
  for (int i = 0; i < m->n; i++)
    if (m->items[i].t == t && (t->rank == 0 || memcmp(m->items[i].at, at, (size_t)t->rank * sizeof *at) == 0)) return i;
  if (m->n == MOST_ITEMS) return -1;
  struct item *item = &m->items[m->n];
  *item = (struct item){.t = t, .slot = SLOT_MADE};
  for (int k = 0; k < t->rank; k++) item->at[k] = at[k];
  return m->n++;
}

/* A constant all of whose elements are one number. */
static bool is_constant(struct item *item) {
  const struct ir_node *node = item->t->node;
  if (node->op != IR_CONST || ir_count(item->t) == 0) return false;
  const char *data = node->attrs->data.at;
  size_t size = base_dtypes[item->t->dtype].size;
  for (size_t i = size; i + size <= node->attrs->data.n; i += size)
    if (memcmp(data + i, data, size) != 0) return false;
  bool is_float = base_dtype_is(item->t->dtype, BASE_FLOAT);
  double x = is_float ? base_load_float(item->t->dtype, data, 0) : (double)base_load_int(item->t->dtype, data, 0);
  item->slot = SLOT_CONST;
  for (int p = 0; p < POINTS; p++) item->at_point[p] = x;
  return is_number(item->t->dtype);
}

/* A matrix beside the result, or a vector along its rows or columns. */
static bool take_read(struct match *m, struct item *item, quern_dtype dtype) {
  struct pass_matrix matrix;
  const struct pass_index *const *at = (const struct pass_index *const *)item->at;
  if (item->t->dtype != dtype || fuse_is_between(m->cluster, item->t)) return false;
  if (!pass_is_leaf(item->t->node) && fuse_info_of(m->f, item->t)->inside) return false;
  if (fuse_result(m->cluster, item->t, at, &matrix)) {
    item->slot = m->read[SLOT_FIRST] == NULL ? SLOT_FIRST : SLOT_SECOND;
    if (m->read[item->slot] != NULL) return false;
    m->matrix[item->slot] = matrix;
  } else {
    bool along_rows = fuse_vector(m->cluster, item->t, at, 1);
    if (m->read[SLOT_VECTOR] != NULL || (!along_rows && !fuse_vector(m->cluster, item->t, at, 2))) return false;
    m->along_rows = along_rows;
    item->slot = SLOT_VECTOR;
  }
  m->read[item->slot] = item->t;
  return true;
}

/* What is not in memory yet, but may well be: a small tensor, or one that others want as well. Whatever is computed
** from the sum was made after it. */
static bool is_to_make(const struct match *m, const quern_tensor *t, const quern_tensor *whole) {
  bool apart = t->node->id < m->cluster->anchor->id, computed = pass_ops[t->node->op].class == PASS_CLASS_MATH;
  bool small = 2 * ir_count(t) <= ir_count(whole), shared = fuse_info_of(m->f, t)->users > 1;
  bool again = pass_is_widening(t->node) && pass_is_leaf(t->node->src[0]->node); /* the result may be as narrow, too */
  return apart && computed && !again && t->dtype == whole->dtype && ir_count(t) > 1 && (small || shared);
}

/* Reads an item: the sum, a number, something in memory, or what it is made of. whole: what all is for. */
static bool read_item(struct match *m, int number, const quern_tensor *whole) {
  struct item *item = &m->items[number];
  const quern_tensor *t = item->t;
  const struct ir_node *node = t->node;
  const struct fuse_stage *stage = &m->cluster->stages.at[0];
  if (node == stage->node) {
    item->slot = SLOT_SUM;
    item->deep = true;
    return t->rank == 0 || memcmp(item->at, stage->result, (size_t)t->rank * sizeof *item->at) == 0;
  }
  if (is_constant(item)) return true;
  if (pass_is_leaf(node)) return pass_is_given(t) && take_read(m, item, whole->dtype);
  int home = fuse_info_of(m->f, t)->home;
  if (home >= 0 && home != m->number) return take_read(m, item, whole->dtype);
  if (is_to_make(m, t, whole)) {
    m->to_make = t;
    return take_read(m, item, whole->dtype);
  }
  if (!is_known(m, node)) return false;
  item->n_src = node->n_src;
  for (int i = 0; i < node->n_src; i++) {
    const struct pass_index *in[QUERN_MAX_RANK];
    if (!pass_index_of_source(m->cluster->space, node, i, (const struct pass_index *const *)m->items[number].at, in))
      return false;
    int src = add_item(m, node->src[i], (const struct pass_index *const *)in);
    if (src < 0) return false;
    m->items[number].src[i] = src;
  }
  return true;
}

/* Items by the ids of their nodes. */
static void sort_items(struct match *m) {
  for (int i = 0; i < m->n; i++) {
    int at = i;
    for (; at > 0 && m->items[m->order[at - 1]].t->node->id > m->items[i].t->node->id; at--)
      m->order[at] = m->order[at - 1];
    m->order[at] = i;
  }
}

static void evaluate(struct match *m) {
  for (int k = 0; k < m->n; k++) {
    struct item *item = &m->items[m->order[k]];
    for (int i = 0; i < item->n_src; i++) item->deep = item->deep || m->items[item->src[i]].deep;
    for (int i = 0; i < item->n_src && item->deep; i++) m->items[item->src[i]].uses++;
    for (int p = 0; p < POINTS && item->slot != SLOT_CONST; p++) {
      double x[3] = {0, 0, 0};
      for (int i = 0; i < item->n_src; i++) x[i] = m->items[item->src[i]].at_point[p];
      item->at_point[p] =
          item->slot == SLOT_MADE ? pass_compute(item->t->node->op, x[0], x[1], x[2]) : sample(item->slot, p);
    }
  }
}

/* Reads and computes all that t is made of; false when a library knows nothing of the kind. */
static bool read_all(struct match *m, const quern_tensor *t, const struct pass_index *const *at) {
  (void)add_item(m, t, at);
  for (int next = 0; next < m->n; next++)
    if (!read_item(m, next, t)) return false;
  sort_items(m);
  evaluate(m);
  return m->items[0].deep && !m->cluster->space->failed;
}

/* ---- what it is -------------------------------------------------------------------------------------------------- */

/* The sum and what is added to it, at a point; *size: that of the largest of them. */
static double linear(const struct match *m, int p, double *size) {
  double x = sample(SLOT_SUM, p);
  *size = fabs(x);
  for (int slot = SLOT_FIRST; slot < SLOT_COUNT; slot++) {
    if (m->read[slot] == NULL) continue;
    x += sample((enum slot)slot, p);
    *size = fmax(*size, fabs(sample((enum slot)slot, p)));
  }
  return x;
}

/* Sums may be taken in another order; gelu's expression is as near as its constants. */
static bool is_forward(const struct match *m, const struct item *item, enum pass_activation act) {
  for (int p = 0; p < POINTS; p++) {
    double size, x = linear(m, p, &size), y = activate(act, x);
    double far = act == PASS_ACT_GELU_TANH ? 2e-6 * fabs(y) + 1e-12 * (1 + size) : 1e-12 * size;
    if (!(fabs(item->at_point[p] - y) <= far)) return false;
  }
  return m->read[SLOT_SECOND] == NULL;
}

static bool is_backward(const struct match *m, const struct item *item) {
  for (int p = 0; p < POINTS; p++) {
    double dy = sample(SLOT_SUM, p), y = dy * gelu_gradient(sample(SLOT_FIRST, p));
    if (!(fabs(item->at_point[p] - y) <= 2e-6 * (fabs(y) + fabs(dy)))) return false;
  }
  return m->read[SLOT_FIRST] != NULL && m->read[SLOT_SECOND] == NULL && m->read[SLOT_VECTOR] == NULL;
}

/* How many items that are computed from the sum or what is added to it bend; with one op, those of it. */
static int count_bends(const struct match *m, int op) {
  int n = 0;
  for (int i = 0; i < m->n; i++) {
    const struct item *item = &m->items[i];
    if (item->slot != SLOT_MADE || part_of(item->t->node->op) != BENDING) continue;
    n += op < 0 || (int)item->t->node->op == op;
  }
  return n;
}

/* Whether the expression can be that of an activation by its ops: a bound or a choice more would be lost. */
static bool may_be(const struct match *m, enum pass_activation act) {
  int all = count_bends(m, -1), most = count_bends(m, IR_MAX), least = count_bends(m, IR_MIN);
  if (act == PASS_ACT_NONE) return all == 0;
  bool chosen = all == 2 && count_bends(m, IR_LE) == 1 && count_bends(m, IR_SELECT) == 1;
  if (act == PASS_ACT_RELU) return chosen || (all == 1 && most == 1);
  return all > 1 && most <= 1 && least <= 1;
}

static bool classify(struct match *m) {
  static const enum pass_activation acts[] = {PASS_ACT_NONE, PASS_ACT_RELU, PASS_ACT_GELU_TANH};
  struct pass_gemm *g = &m->gemm;
  g->bias = (quern_tensor *)m->read[SLOT_VECTOR];
  for (size_t i = 0; i < BASE_COUNT(acts); i++) {
    if (!may_be(m, acts[i]) || !is_forward(m, &m->items[0], acts[i])) continue;
    g->act = acts[i];
    g->add = m->matrix[SLOT_FIRST];
    return true;
  }
  if (!may_be(m, PASS_ACT_GELU_TANH) || !is_backward(m, &m->items[0])) return false;
  g->act = PASS_ACT_GELU_TANH;
  g->back = true;
  g->aux = m->matrix[SLOT_FIRST];
  return true;
}

/* ---- who else uses it -------------------------------------------------------------------------------------------- */

/* Marks what is computed from the auxiliary output, and not from the sum in another way. */
static void mark_later(struct match *m) {
  for (int k = 0; k < m->n; k++) {
    struct item *item = &m->items[m->order[k]];
    item->later = item->deep && item->n_src > 0;
    for (int i = 0; i < item->n_src; i++) {
      const struct item *src = &m->items[item->src[i]];
      item->later = item->later && (!src->deep || src->later || item->src[i] == m->aux);
    }
  }
}

/* Whether others use an item's tensor. */
static bool is_used_elsewhere(const struct match *m, const struct item *item) {
  return fuse_info_of(m->f, item->t)->users > item->uses;
}

/* What others use between the sum and t is t, or computed from the auxiliary output. */
static bool set_aux(struct match *m) {
  const quern_tensor *t = m->items[0].t;
  bool wanted = false;
  m->aux = -1;
  for (int i = 0; i < m->n; i++) {
    const struct item *item = &m->items[i];
    for (int k = 0; k < i && item->deep; k++)
      if (m->items[k].t->node == item->t->node) return false; /* at two places */
    wanted = wanted || (i > 0 && item->deep && is_used_elsewhere(m, item));
  }
  if (!wanted) return true;
  if (m->gemm.back || m->gemm.act != PASS_ACT_GELU_TANH) return false;
  for (int k = 0; k < m->n; k++) {
    const struct item *item = &m->items[m->order[k]];
    bool like = item->deep && item->t->dtype == t->dtype && m->order[k] != 0;
    if (like && is_forward(m, item, PASS_ACT_NONE)) m->aux = m->order[k];
  }
  if (m->aux < 0) return false;
  mark_later(m);
  for (int i = 1; i < m->n; i++) {
    const struct item *item = &m->items[i];
    if (item->deep && i != m->aux && !item->later && is_used_elsewhere(m, item)) return false;
  }
  const struct item *aux = &m->items[m->aux];
  return fuse_result(m->cluster, aux->t, (const struct pass_index *const *)aux->at, &m->gemm.aux);
}

/* ---- what the library can do ------------------------------------------------------------------------------------- */

static void swap_matrix(struct pass_matrix *x) {
  int64_t row = x->row;
  x->row = x->column;
  x->column = row;
}

/* Swaps M and N: the same product with its operands swapped. */
static void swap_sides(struct pass_gemm *g) {
  struct pass_matrix a = g->a;
  int64_t rows = g->rows;
  g->a = g->b;
  g->b = a;
  g->rows = g->columns;
  g->columns = rows;
  swap_matrix(&g->y);
  swap_matrix(&g->add);
  swap_matrix(&g->aux);
}

static bool lies_by_rows(const struct pass_matrix *x) { return x->column == 1; }

static bool fits_library(const struct match *m) {
  const struct pass_gemm *g = &m->gemm;
  quern_dtype operand = g->a.tensor->dtype, y = g->y.tensor->dtype;
  bool narrow = base_dtypes[operand].size == 2, by_rows = lies_by_rows(&g->y),
       double_dtype = operand == QUERN_DTYPE_F64;
  if (y != operand && !(narrow && y == QUERN_DTYPE_F32)) return false;
  if (g->add.tensor != NULL && lies_by_rows(&g->add) != by_rows) return false;
  if (g->bias != NULL && (g->batch != 1 || !by_rows || double_dtype)) return false;
  if (g->act != PASS_ACT_NONE && (y != operand || double_dtype)) return false;
  if (g->act == PASS_ACT_GELU_TANH && !narrow) return false; /* the library's is as exact as 16 bits are */
  if (g->aux.tensor == NULL) return true;
  int64_t apart = by_rows ? g->aux.row : g->aux.column;
  return lies_by_rows(&g->aux) == by_rows && apart % AUX_MULTIPLE == 0 &&
         (g->batch == 1 || g->aux.batch % AUX_MULTIPLE == 0);
}

/* ---- joining ----------------------------------------------------------------------------------------------------- */

/* The cluster reads what the match has read. */
static quern_status note_reads(struct match *m) {
  struct fuse *f = m->f;
  f->epoch++;
  f->visits.n = f->indices.n = f->reads.n = f->before.n = f->pending.n = 0;
  for (int slot = SLOT_FIRST; slot < SLOT_COUNT; slot++) {
    const quern_tensor *t = m->read[slot];
    if (t == NULL) continue;
    if (!base_vec_push(f->heap, &f->reads, t)) return QUERN_STATUS_MEMORY;
    if (pass_is_leaf(t->node)) continue;
    if (!base_vec_push(f->heap, &f->before, fuse_info_of(f, t)->home)) return QUERN_STATUS_MEMORY;
  }
  return QUERN_STATUS_OK;
}

/* The auxiliary output has its home here; what lies between is known to nobody else. */
static quern_status set_homes(struct match *m) {
  for (int i = 1; i < m->n; i++) {
    struct item *item = &m->items[i];
    struct fuse_node_info *info = fuse_info_of(m->f, item->t);
    if (!item->deep) continue;
    if (i != m->aux) {
      info->inside = info->home == m->number;
      continue;
    }
    if (info->home >= 0) continue;
    info->at = base_arena_copy(&m->f->groups->arena, item->at, BASE_MAX((size_t)item->t->rank, 1) * sizeof *item->at);
    if (info->at == NULL) return QUERN_STATUS_MEMORY;
    info->home = m->number;
    info->n_clusters = 1;
    info->clusters[0] = m->number;
    m->cluster->n_roots += info->root ? 1 : 0;
  }
  return QUERN_STATUS_OK;
}

static bool is_epilogue(struct match *m, const quern_tensor *t, const struct pass_index *const *at) {
  struct pass_gemm *g = &m->gemm;
  const struct pass_gemm *so_far = m->cluster->gemm;
  bool swapped = m->cluster->swap_mn;
  *g = (struct pass_gemm){.batch = so_far->batch,
                          .rows = swapped ? so_far->columns : so_far->rows,
                          .columns = swapped ? so_far->rows : so_far->columns,
                          .terms = so_far->terms,
                          .a = swapped ? so_far->b : so_far->a,
                          .b = swapped ? so_far->a : so_far->b};
  if (!base_dtype_is(t->dtype, BASE_FLOAT) || !fuse_result(m->cluster, t, at, &g->y)) return false;
  if (!read_all(m, t, at) || !classify(m) || !set_aux(m)) return false;
  if (m->along_rows) swap_sides(g);
  return fits_library(m);
}

static quern_status join(struct match *m, const quern_tensor *t, const struct pass_index *const *at, bool *joined,
                         const quern_tensor **wanted) {
  struct fuse *f = m->f;
  bool is = is_epilogue(m, t, at);
  if (m->cluster->space->failed) return QUERN_STATUS_MEMORY;
  if (!is) return QUERN_STATUS_OK;
  if (m->to_make != NULL) {
    *wanted = m->to_make;
    return QUERN_STATUS_OK;
  }
  QUERN_TRY(note_reads(m));
  if (!fuse_can_follow(f, m->number)) return QUERN_STATUS_OK;
  QUERN_TRY(fuse_commit(f, &(struct fuse_walk){.cluster = m->cluster, .number = m->number, .mode = FUSE_ALONE}));
  QUERN_TRY(set_homes(m));
  m->cluster->size = BASE_MAX(m->cluster->size, m->n);
  *m->cluster->gemm = m->gemm;
  m->cluster->swap_mn = m->along_rows;
  *joined = true;
  return QUERN_STATUS_OK;
}

quern_status fuse_extend_gemm(struct fuse *f, int number, const quern_tensor *t, const struct pass_index *const *at,
                              bool *joined, const quern_tensor **wanted) {
  *joined = false;
  *wanted = NULL;
  struct match *m = base_alloc_zero(f->heap, sizeof *m);
  if (m == NULL) return QUERN_STATUS_MEMORY;
  m->f = f;
  m->cluster = f->clusters.at[number];
  m->number = number;
  quern_status status = join(m, t, at, joined, wanted);
  base_free(f->heap, m, sizeof *m);
  return status;
}
