/* pass/gemm.c -- fusion: contractions that a library does, and the matrices it takes
** A library takes matrices that lie in memory: movement (reshape, permute, slice) in front of a contraction stays an
** index expression as long as each of batch, rows, columns and terms has one stride, and everything else lies in memory
** before.
** see:   epilogue.c (the epilogue), docs/design/008-libraries.md      tests: tests/sched/test_gpu_dot_library.c
*/
#include "pass/pass_int.h"

enum { MOST_COEFS = PASS_MOST_VARS + QUERN_MAX_RANK };

/* The product of the extents of an operand's axes that are neither of the batch nor summed. */
static int64_t own_extent(const quern_tensor *x, struct ir_ints batch, struct ir_ints sum) {
  int64_t n = ir_count(x);
  for (int i = 0; i < batch.n; i++) n /= BASE_MAX(x->dims[batch.at[i]], 1);
  for (int i = 0; i < sum.n; i++) n /= BASE_MAX(x->dims[sum.at[i]], 1);
  return n;
}

/* Whether an operand is read through windows, as convolutions do: what it overlaps on is read many times. */
static bool has_windows(const quern_tensor *x) {
  while (x->node->n_src == 1 && x->node->op != IR_WINDOW) x = x->node->src[0];
  return x->node->op == IR_WINDOW;
}

/* A library's kernels are made of tiles of many rows, of which such a product fills a few, and it takes few epilogues.
** Generated code reads the matrix once, by as many thread blocks as keep the memory busy, rounds weights as it reads them
** and takes any epilogue along: fewer launches, each of which takes longer than reading the weights of a layer. Where terms are
** many beside the columns, as in gradients of weights, it is a long sum for each of few results: libraries split those. */
bool pass_is_skinny_dot(const struct ir_node *dot) {
  enum { LEAST_COLUMNS = 64, LEAST_TERMS = 32, LEAST_ELEMENTS = 1 << 15, LONG = 8 };
  const struct ir_attrs *attrs = dot->attrs;
  if (dot->op != IR_DOT || !base_dtype_is(dot->src[0]->dtype, BASE_FLOAT)) return false;
  if (has_windows(dot->src[0]) || has_windows(dot->src[1])) return false;
  if (ir_count(dot->src[0]) == 0 || ir_count(dot->src[1]) == 0) return false;
  int64_t rows = own_extent(dot->src[0], attrs->a_batch, attrs->a_sum), terms = 1;
  int64_t columns = own_extent(dot->src[1], attrs->b_batch, attrs->b_sum), wide = BASE_MAX(rows, columns);
  for (int i = 0; i < attrs->a_sum.n; i++) terms *= dot->src[0]->dims[attrs->a_sum.at[i]];
  return BASE_MIN(rows, columns) <= PASS_SKINNY_ROWS && wide >= LEAST_COLUMNS && terms >= LEAST_TERMS &&
         wide * terms >= LEAST_ELEMENTS && terms <= LONG * wide;
}

bool pass_is_gemm(const struct base_target *target, const struct ir_node *dot) {
  const struct ir_attrs *attrs = dot->attrs;
  if (dot->op != IR_DOT) return false;
  quern_dtype dtype = dot->src[0]->dtype;
  if (target == NULL || (target->capabilities & BASE_LIBRARY_BLAS) == 0) return false;
  if (attrs->reduce != IR_SUM || attrs->combine != IR_COMBINE_MUL || pass_is_skinny_dot(dot)) return false;
  bool float_dtype =
      dtype == QUERN_DTYPE_F32 || dtype == QUERN_DTYPE_F64 || dtype == QUERN_DTYPE_BF16 || dtype == QUERN_DTYPE_F16;
  int64_t terms = 1;
  for (int i = 0; i < attrs->a_sum.n; i++) terms *= dot->src[0]->dims[attrs->a_sum.at[i]];
  return float_dtype && dot->src[1]->dtype == dtype && dot->out[0].dtype == dtype && terms > 1 &&
         ir_count(&dot->out[0]) > 0;
}

/* ---- strides ----------------------------------------------------------------------------------------------------- */

/* The variables of a cluster: part 0 batch, 1 rows, 2 columns, 3 terms. */
static int first_of(const struct fuse_cluster *cluster, int part) {
  int first = 0;
  for (int i = 0; i < part; i++) first += cluster->vars[i];
  return first;
}

static int64_t extent_of(const struct fuse_cluster *cluster, int part) {
  int64_t n = 1;
  for (int i = 0; i < cluster->vars[part]; i++) n *= cluster->space->extents.at[first_of(cluster, part) + i];
  return n;
}

/* The variables of a part with more than one value, slowest first; terms by the strides of operand 0, as any order will
** do. */
static int order_of(const struct fuse_cluster *cluster, int part, const int64_t *by, int *order) {
  int first = first_of(cluster, part), n = 0;
  for (int v = first; v < first + cluster->vars[part]; v++) {
    if (cluster->space->extents.at[v] == 1) continue;
    int at = n++;
    for (; by != NULL && at > 0 && by[order[at - 1]] < by[v]; at--) order[at] = order[at - 1];
    order[at] = v;
  }
  return n;
}

/* The one stride of variables in that order, or false. */
static bool collapse(const struct fuse_cluster *cluster, int n, const int *order, const int64_t *coef,
                     int64_t *stride) {
  *stride = n > 0 ? coef[order[n - 1]] : 0;
  for (int i = n - 1; i > 0; i--)
    if (coef[order[i - 1]] != coef[order[i]] * cluster->space->extents.at[order[i]]) return false;
  return *stride >= 0;
}

/* Row or column is made 1 where an extent of 1 leaves it open; false when neither is, or elements lie on each other. */
static bool settle_strides(struct pass_matrix *m, int64_t rows, int64_t columns) {
  if (rows == 1) m->row = m->column == 1 || columns == 1 ? columns : 1;
  if (columns == 1) m->column = m->row == 1 ? rows : 1;
  if (rows == 1 && columns == 1) m->row = m->column = 1;
  return (m->column == 1 && m->row >= columns) || (m->row == 1 && m->column >= rows);
}

/* t at indices that are the sum of a constant and strides of parts `down` and `across`, and of the batch. */
static bool matrix_of(const struct fuse_cluster *cluster, const quern_tensor *t, const struct pass_index *const *at,
                      int down, int across, const int64_t *terms, struct pass_matrix *m) {
  struct pass_space *space = cluster->space;
  int64_t coef[MOST_COEFS], strides[4];
  *m = (struct pass_matrix){.tensor = (quern_tensor *)t};
  if ((int)space->extents.n > MOST_COEFS) return false;
  if (!pass_index_affine(space, pass_index_flat(space, t->rank, t->dims, at), coef, &m->at) || m->at < 0) return false;
  for (int part = 0; part < 4; part++) {
    int order[MOST_COEFS], n = order_of(cluster, part, part == 3 ? (terms != NULL ? terms : coef) : NULL, order);
    bool has = part == 0 || part == down || part == across;
    for (int i = 0; !has && i < n; i++)
      if (coef[order[i]] != 0) return false;
    if (has && !collapse(cluster, n, order, coef, &strides[part])) return false;
  }
  m->batch = strides[0];
  m->row = strides[down];
  m->column = strides[across];
  return settle_strides(m, extent_of(cluster, down), extent_of(cluster, across));
}

bool fuse_operand(const struct fuse_cluster *cluster, const quern_tensor *t, const struct pass_index *const *at,
                  int side, struct pass_matrix *matrix) {
  return matrix_of(cluster, t, at, 1 + side, 3, NULL, matrix);
}

bool fuse_result(const struct fuse_cluster *cluster, const quern_tensor *t, const struct pass_index *const *at,
                 struct pass_matrix *matrix) {
  return matrix_of(cluster, t, at, 1, 2, NULL, matrix) && (extent_of(cluster, 0) == 1 || matrix->batch > 0);
}

bool fuse_vector(const struct fuse_cluster *cluster, const quern_tensor *t, const struct pass_index *const *at,
                 int part) {
  struct pass_space *space = cluster->space;
  int64_t coef[MOST_COEFS], constant, stride;
  int order[MOST_COEFS], n = order_of(cluster, part, NULL, order);
  if ((int)space->extents.n > MOST_COEFS || ir_count(t) != extent_of(cluster, part)) return false;
  if (!pass_index_affine(space, pass_index_flat(space, t->rank, t->dims, at), coef, &constant) || constant != 0)
    return false;
  for (int v = 0; v < (int)space->extents.n; v++) {
    bool own = v >= first_of(cluster, part) && v < first_of(cluster, part) + cluster->vars[part];
    if (!own && coef[v] != 0 && space->extents.at[v] > 1) return false;
  }
  return collapse(cluster, n, order, coef, &stride) && (n == 0 || stride == 1);
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

static bool is_in_memory(const struct fuse *f, const quern_tensor *t) {
  return pass_is_given(t) || (!pass_is_leaf(t->node) && fuse_info_of(f, t)->home >= 0);
}

/* Whether an operand is read through a cast: its source has the 16 bits of the other operand's, and products of these
** are exact. */
bool fuse_is_narrowing_read(const struct fuse_cluster *cluster, const struct ir_node *node) {
  return cluster->narrows && pass_is_widening(node) && node->src[0]->dtype == cluster->narrow;
}

bool pass_is_plain_movement(const struct ir_node *node) {
  return node->op == IR_RESHAPE || node->op == IR_PERMUTE || node->op == IR_SLICE || node->op == IR_BROADCAST ||
         node->op == IR_STOP_GRAD || node->op == IR_WINDOW || node->op == IR_FLIP;
}

void fuse_find_narrow(const struct fuse *f, struct fuse_cluster *cluster, const struct ir_node *dot) {
  quern_dtype dtypes[2];
  for (int side = 0; side < 2; side++) {
    const struct ir_node *node = dot->src[side]->node;
    while (pass_is_plain_movement(node) && fuse_info_of(f, node->out)->home < 0) node = node->src[0]->node;
    if (!pass_is_widening(node) || base_dtypes[node->src[0]->dtype].size != 2) return;
    dtypes[side] = node->src[0]->dtype;
  }
  cluster->narrows = dtypes[0] == dtypes[1] && dot->src[0]->dtype == QUERN_DTYPE_F32;
  cluster->narrow = dtypes[0];
}

/* Where each operand is read: the axes of the contraction's own sources. */
static void operand_indices(struct fuse_cluster *cluster, const struct ir_node *dot, int side,
                            const struct pass_index **at) {
  const struct ir_attrs *attrs = dot->attrs;
  struct ir_ints batch = side == 0 ? attrs->a_batch : attrs->b_batch, sum = side == 0 ? attrs->a_sum : attrs->b_sum;
  int own = first_of(cluster, 1 + side);
  for (int k = 0; k < dot->src[side]->rank; k++) at[k] = NULL;
  for (int i = 0; i < batch.n; i++) at[batch.at[i]] = pass_index_var(cluster->space, i);
  for (int i = 0; i < sum.n; i++) at[sum.at[i]] = pass_index_var(cluster->space, first_of(cluster, 3) + i);
  for (int k = 0; k < dot->src[side]->rank; k++)
    if (at[k] == NULL) at[k] = pass_index_var(cluster->space, own++);
}

bool fuse_may_copy(const struct fuse *f, const struct fuse_walk *walk, const struct ir_node *dot) {
  const quern_tensor *src = dot->src[walk->side];
  const struct pass_index *at[QUERN_MAX_RANK];
  struct pass_matrix matrix;
  if (is_in_memory(f, src) || walk->blocker == NULL || 2 * ir_count(walk->blocker) < ir_count(src)) return false;
  operand_indices(walk->cluster, dot, walk->side, at);
  return fuse_operand(walk->cluster, src, (const struct pass_index *const *)at, walk->side, &matrix);
}

/* From an operand at its indices through movement to what lies in memory; false when there is something else
** between. */
static bool descend(const struct fuse *f, const struct fuse_cluster *cluster, const quern_tensor **t,
                    const struct pass_index **at) {
  while (fuse_is_narrowing_read(cluster, (*t)->node) || !is_in_memory(f, *t)) {
    const struct ir_node *node = (*t)->node;
    const struct pass_index *in[QUERN_MAX_RANK];
    if (!fuse_is_narrowing_read(cluster, node) && !pass_is_plain_movement(node)) return false;
    if (!pass_index_of_source(cluster->space, node, 0, (const struct pass_index *const *)at, in)) return false;
    *t = node->src[0];
    for (int k = 0; k < (*t)->rank; k++) at[k] = in[k];
  }
  return true;
}

/* An operand as a matrix; terms: strides that give their order, NULL: its own, which are then given. */
static bool find_matrix(const struct fuse *f, const struct fuse_cluster *cluster, int side, const int64_t *terms,
                        int64_t *strides, struct pass_matrix *matrix) {
  const struct fuse_stage *stage = &cluster->stages.at[0];
  const quern_tensor *t = stage->node->src[side];
  const struct pass_index *at[QUERN_MAX_RANK];
  int64_t constant;
  for (int k = 0; k < t->rank; k++) at[k] = side == 0 ? stage->source[k] : stage->other[k];
  if (!descend(f, cluster, &t, at)) return false;
  const struct pass_index *const *indices = (const struct pass_index *const *)at;
  if (!matrix_of(cluster, t, indices, 1 + side, 3, terms, matrix)) return false;
  return terms != NULL || pass_index_affine(cluster->space, pass_index_flat(cluster->space, t->rank, t->dims, indices),
                                            strides, &constant);
}

bool fuse_is_between(const struct fuse_cluster *cluster, const quern_tensor *t) {
  const struct pass_gemm *g = cluster->gemm;
  for (int side = 0; side < 2; side++) {
    const quern_tensor *end = (side == 0) != cluster->swap_mn ? g->a.tensor : g->b.tensor;
    for (const quern_tensor *x = cluster->stages.at[0].node->src[side]; x != end; x = x->node->src[0])
      if (x == t) return true;
  }
  return false;
}

quern_status fuse_make_gemm(struct fuse *f, struct fuse_cluster *cluster) {
  const struct fuse_stage *stage = &cluster->stages.at[0];
  const struct ir_node *dot = stage->node;
  struct pass_gemm gemm = {.batch = extent_of(cluster, 0),
                           .rows = extent_of(cluster, 1),
                           .columns = extent_of(cluster, 2),
                           .terms = extent_of(cluster, 3)};
  int64_t terms[MOST_COEFS];
  bool made = find_matrix(f, cluster, 0, NULL, terms, &gemm.a) && find_matrix(f, cluster, 1, terms, NULL, &gemm.b) &&
              fuse_result(cluster, &dot->out[0], (const struct pass_index *const *)stage->result, &gemm.y);
  if (cluster->space->failed) return QUERN_STATUS_MEMORY;
  cluster->narrows = cluster->narrows && made;
  if (!made) return QUERN_STATUS_OK;
  cluster->gemm = base_arena_copy(&f->groups->arena, &gemm, sizeof gemm);
  return cluster->gemm == NULL ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK;
}

quern_status fuse_trim_gemm(const struct fuse *f, const struct fuse_cluster *cluster, const struct pass_gemm **gemm) {
  struct pass_gemm *left = base_arena_copy(&f->groups->arena, cluster->gemm, sizeof *left);
  if (left == NULL) return QUERN_STATUS_MEMORY;
  bool aux = left->aux.tensor != NULL && !left->back;
  if (aux && !fuse_info_of(f, left->y.tensor)->needed) { /* others compute it from the auxiliary output */
    left->y = left->aux;
    left->act = PASS_ACT_NONE;
  }
  if (aux && (left->y.tensor == left->aux.tensor || !fuse_info_of(f, left->aux.tensor)->needed))
    left->aux = (struct pass_matrix){0};
  *gemm = left;
  return QUERN_STATUS_OK;
}

bool fuse_gemm_reads(const struct pass_gemm *gemm, const quern_tensor *t) {
  return t == gemm->a.tensor || t == gemm->b.tensor || t == gemm->add.tensor || t == gemm->bias ||
         (gemm->back && t == gemm->aux.tensor);
}
