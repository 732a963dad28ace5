/* sched/dot_choose.c -- the numbers of a contraction: the register tile of its micro-kernel, what is packed, split-K,
** tasks
** Tasks follow from a model of the time, in units of one vector fma.
** tests: tests/sched/test_dot.c
*/
#include "sched/dot.h"

/* Costs in fma of a vector: packing one, packing one with a transposition, beginning a task. */
enum { COST_PACK = 12, COST_ACROSS = 20, COST_TASK = 4000 };

/* Rows of a task at most: with more of them the sums leave the second-level cache between two blocks of terms. */
enum { TASK_ROWS = 1200, TASK_ROWS_PACKED = 384, TASK_ROWS_UPRIGHT = 192, TASK_ROWS_MOST = 8192 };

/* Rows that side b is transposed in registers for; vectors of columns that make a tile worth a task; elements of
** split-K's partial sums. */
enum { TURNED_ROWS = 8, TILE_VECTORS = 4, SLABS_MOST = 1 << 22, TILE_MOST = 32 };

/* Columns of a sample from which on windows are taken sample by sample, or, for so few rows, always. */
enum { HOISTED_COLUMNS = 128, FEW_ROWS = 4 };

/* Register tiles by target, the first that fits: vectors of at least as many bytes, registers. */
static const struct {
  int bytes, registers, mr, nv;
} tiles[] = {
    {64, 32, 6, 4}, /* avx512: 24 sums, 4 of b, 1 of a */
    {32, 16, 6, 2}, /* avx2: 12, 2, 1 */
    {16, 32, 8, 3}, /* neon: 24, 3, 1 */
    {0, 0, 6, 2},
};

void sched_choose_dot(struct sched *sched, const struct base_target *target, int optimize) {
  size_t i = 0;
  memset(sched, 0, sizeof *sched);
  sched->lanes = optimize > 0 ? target->vector_bytes / 4 : 1;
  if (sched->lanes <= 1) return;
  while (target->vector_bytes < tiles[i].bytes || target->registers < tiles[i].registers) i++;
  sched->mr = tiles[i].mr;
  sched->nr = tiles[i].nv * sched->lanes;
  sched->kc = DOT_BLOCK;
}

/* ---- rows and columns ------------------------------------------------------------------------------------- */

int64_t dot_extents(const struct pass_group *group, int first, int n) {
  int64_t product = 1;
  for (int v = first; v < first + n; v++) product *= group->space->extents.at[v];
  return product;
}

/* The last of n variables that has more than one value; first - 1 when there is none. */
static int innermost(const struct pass_group *group, int first, int n) {
  int v = first + n - 1;
  while (v >= first && group->space->extents.at[v] == 1) v--;
  return v;
}

/* How many of n variables, from the first, come before those that out 0 is contiguous along. */
static int hoisted_of(const struct pass_group *group, const int64_t *coef, int first, int n) {
  const int64_t *extents = group->space->extents.at;
  int v = innermost(group, first, n);
  if (v < first || coef[v] != 1) return 0;
  int64_t next = extents[v];
  while (v > first && (coef[v - 1] == next || extents[v - 1] == 1)) next *= extents[--v];
  return v - first;
}

/* The orientation that out 0, which lies at these coefficients of the group's variables, asks for. */
static struct dot_orientation orientation_for(const struct pass_group *group, const int64_t *coef) {
  int rows = group->vars[0], cols = rows + group->vars[1];
  int row = innermost(group, rows, group->vars[1]), col = innermost(group, cols, group->vars[2]);
  if (coef[col] == 1 && dot_has_windows(group, group->stages[0].node->src[1])) {
    int hoisted = hoisted_of(group, coef, cols, group->vars[2]);
    bool long_enough = dot_extents(group, cols + hoisted, group->vars[2] - hoisted) >= HOISTED_COLUMNS;
    bool few_rows = dot_extents(group, rows, group->vars[1]) <= FEW_ROWS;
    return (struct dot_orientation){.hoisted = long_enough || few_rows ? hoisted : 0, .of = 2};
  }
  if (coef[col] == 1 || coef[row] != 1) return (struct dot_orientation){0};
  return (struct dot_orientation){.swap_mn = true, .hoisted = hoisted_of(group, coef, rows, group->vars[1]), .of = 1};
}

static bool is_in(const struct pass_group *group, const quern_tensor *t) {
  for (size_t i = 0; i < group->n_ins; i++)
    if (group->ins[i] == t) return true;
  return false;
}

/* True when an operand is in, moved or converted. */
static bool is_made_of(const quern_tensor *t, const quern_tensor *in) {
  while (t != in && t->node->n_src == 1) t = t->node->src[0];
  return t == in;
}

bool dot_has_windows(const struct pass_group *group, const quern_tensor *t) {
  while (!is_in(group, t) && dot_is_movement(t->node) && t->node->op != IR_WINDOW) t = t->node->src[0];
  return !is_in(group, t) && t->node->op == IR_WINDOW;
}

/* Weights that are packed ahead are columns where windows meet them: windows are rows, which need not be packed. */
static void prefer_packed(const struct sched_job *job, struct dot_orientation *orientation) {
  const struct ir_node *node = job->group->stages[0].node;
  const quern_tensor *in = job->sched->packed > 0 ? job->group->ins[job->sched->packed - 1] : NULL;
  int columns = orientation->swap_mn ? 0 : 1;
  quern_dtype acc = kern_acc_dtype(node->out[0].dtype);
  if (in != NULL && is_made_of(node->src[1 - columns], in) && dot_has_windows(job->group, node->src[columns]) &&
      node->src[columns]->dtype == acc)
    orientation->swap_mn = !orientation->swap_mn;
}

/* Lanes run along the columns: there must be some, and they should be contiguous in the out. Where rows are, they
** change places; rows that do not follow each other in the out count as batch. */
quern_status dot_choose_orientation(const struct sched_job *job, struct dot_orientation *orientation) {
  const struct pass_group *group = job->group;
  const struct pass_out *out = &group->outs[0];
  const struct pass_index *by[4 * QUERN_MAX_RANK], *at[QUERN_MAX_RANK];
  int64_t coef[4 * QUERN_MAX_RANK], constant;
  int64_t m = dot_extents(group, group->vars[0], group->vars[1]);
  int64_t n = dot_extents(group, group->vars[0] + group->vars[1], group->vars[2]);
  struct pass_space *space;
  *orientation = (struct dot_orientation){.swap_mn = n == 1 && m > 1};
  bool scalar = job->sched->lanes <= 1 && job->sched->mr == 0; /* neither vectors nor tiles */
  if (scalar) orientation->swap_mn = false;
  bool single = m <= 1 || n <= 1; /* windows of several samples are columns sample by sample */
  int columns = orientation->swap_mn ? 1 : 2, first = group->vars[0] + (columns == 2 ? group->vars[1] : 0);
  if (scalar || group->space->extents.n > BASE_COUNT(by)) return QUERN_STATUS_OK;
  if (single && !dot_has_windows(group, group->stages[0].node->src[columns - 1])) return QUERN_STATUS_OK;
  QUERN_TRY(pass_space_new(&space, job->kern->heap)); /* the group's own is left as it is */
  for (size_t v = 0; v < group->space->extents.n; v++)
    by[v] = pass_index_var(space, pass_space_add(space, group->space->extents.at[v]));
  for (int k = 0; k < out->tensor->rank; k++) at[k] = pass_index_replace(space, out->at[k], by);
  const struct pass_index *offset = pass_index_flat(space, out->tensor->rank, out->tensor->dims, at);
  quern_status status = space->failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK;
  bool affine = status == QUERN_STATUS_OK && pass_index_affine(space, offset, coef, &constant);
  if (affine && single)
    orientation->hoisted = hoisted_of(group, coef, first, group->vars[columns]), orientation->of = columns;
  if (affine && !single) *orientation = orientation_for(group, coef);
  if (!single) prefer_packed(job, orientation);
  pass_space_free(space);
  return status;
}

/* ---- the dynamic batch --------------------------------------------------------------------------------- */

/* The number of rows for each of the dynamic batch's, when the rows of all outs are those of the axis. */
static int64_t find_batch_rows(const struct dot *d) {
  const struct pass_dynamic_batch *rows = d->job->sched->rows;
  const struct pass_group *group = d->job->group;
  if (rows == NULL || d->m % rows->most != 0) return 0;
  int64_t each = d->m / rows->most;
  const struct pass_index *wanted = pass_index_var(d->space, DOT_ROW);
  wanted = pass_index_div(d->space, wanted, each);
  for (size_t i = 0; i < group->n_outs; i++) {
    const quern_tensor *t = group->outs[i].tensor;
    int64_t stride = pass_dynamic_batch_get(rows, t);
    if (stride == 0) return 0;
    const struct pass_index *row = pass_index_flat(d->space, t->rank, t->dims, d->outs[i]);
    row = pass_index_div(d->space, row, stride);
    if (pass_index_mod(d->space, row, rows->most) != wanted) return 0;
  }
  return each;
}

/* ---- the register tile ---------------------------------------------------------------------------------- */

/* The whole tile, or for few rows all of them by as many vectors as there are registers for; in equal parts. */
static void choose_tile(struct dot *d) {
  const struct sched *sched = d->job->sched;
  int64_t vectors = sched_ceil(d->n, d->lanes);
  int registers = BASE_MAX(d->job->target->registers, 16);
  d->mr = BASE_MIN(BASE_MAX(sched->mr, 1), 2 * TILE_MOST / 4);
  d->nv = BASE_MIN(BASE_MAX(sched->nr / sched->lanes, 1), TILE_MOST / d->mr);
  if (d->m <= 2 * d->mr) {
    d->mr = (int)d->m;
    d->nv = BASE_MIN(BASE_MAX((registers - 2) / (d->mr + 1), 1), 12);
  }
  d->mr = (int)sched_ceil(d->m, sched_ceil(d->m, d->mr));
  d->nv = (int)sched_ceil(vectors, sched_ceil(vectors, d->nv));
  d->m_strips = sched_ceil(d->m, d->mr);
  d->n_panels = sched_ceil(vectors, d->nv);
}

/* ---- packing -------------------------------------------------------------------------------------------- */

/* Side b as it lies, when it is used too little, or is too small, for a copy to pay. */
static bool b_stays(const struct dot *d) {
  const struct dot_view *b = &d->b.view;
  int64_t size = (int64_t)base_dtypes[d->acc].size, row = b->term * size;
  if (b->mem < 0 || (b->own != 1 && d->n > 1)) return false;
  int64_t panel = d->k * d->nv * d->lanes * size;
  return d->m_strips <= 2 || (d->m_strips <= 16 && panel <= d->job->target->l1_bytes / 2) ||
         (row <= 1024 && row * BASE_MIN(d->k, DOT_BLOCK) <= d->job->target->l2_bytes / 4);
}

/* Side b as it lies, its terms contiguous: turned in registers when it is used only once. */
static bool b_transposes(const struct dot *d) {
  const struct dot_view *b = &d->b.view;
  return b->mem >= 0 && b->term == 1 && b->own != 1 && d->m <= TURNED_ROWS && d->n >= d->lanes &&
         d->lanes == dot_transpose_size(d) && d->m + d->lanes + 2 <= BASE_MAX(d->job->target->registers, 16);
}

static void choose_packing(struct dot *d) {
  const struct dot_view *a = &d->a.view;
  d->b_transposed = b_transposes(d);
  d->a.reads_im2col = d->a.im2col.mem >= 0 && !d->bytes && !d->b_transposed;
  d->a.packed = !d->a.reads_im2col && !(a->mem >= 0 && (a->term == 1 || d->k == 1));
  if (d->b_transposed) {
    d->nv = 1;
    d->n_panels = sched_ceil(d->n, d->lanes);
  }
  d->b.packed = d->b_transposed ? d->n % d->lanes != 0 : !b_stays(d);
}

/* Blocks of terms as tasks of their own, when there are too few tiles for the threads. */
static void choose_split_k(struct dot *d) {
  int64_t blocks = sched_ceil(d->k, DOT_BLOCK), threads = d->job->target->threads;
  int64_t parts = d->batch * d->m_strips * sched_ceil(d->n_panels * d->nv, TILE_VECTORS);
  if (blocks > 1 && parts < 2 * threads && blocks * d->batch * d->m * d->n <= SLABS_MOST) d->k_splits = blocks;
}

/* ---- tasks ---------------------------------------------------------------------------------------------- */

/* Whether tasks read what a phase before them has packed of side a. */
static bool packs_in_tasks(const struct dot *d) { return d->a.packed && !d->packs_a_once; }

static int64_t pack_cost(const struct dot_operand *side, bool turned) {
  return !side->packed && !turned ? 0 : side->across ? COST_ACROSS : COST_PACK;
}

/* The time of all tasks of that many strips and panels. */
static double time_of(const struct dot *d, int64_t strips, int64_t panels) {
  int64_t threads = BASE_MAX(d->job->target->threads, 1);
  int64_t tasks =
      d->batch * sched_ceil(d->m_strips, strips) * sched_ceil(d->n_panels, panels) * BASE_MAX(d->k_splits, 1);
  double rows = (double)(strips * d->mr), vectors = (double)(panels * d->nv);
  double k = (double)d->k / (double)BASE_MAX(d->k_splits, 1);
  int64_t pack_b = d->prepacked ? 0 : pack_cost(&d->b, d->b_transposed);
  int64_t pack_a = d->packs_a_once ? 0 : pack_cost(&d->a, false);
  double one = rows * vectors * k + vectors * k * (double)pack_b + rows * (k / d->lanes) * (double)pack_a + COST_TASK;
  double all = one * (double)sched_ceil(tasks, threads);
  if (d->batch_rows == 0) return all;
  /* a run of one strip counts as much as one of all, strip by strip */
  one -= (rows - d->mr) * (vectors * k + k / d->lanes * (double)pack_a);
  return all / (double)d->m_strips + one * (double)sched_ceil(tasks / sched_ceil(d->m_strips, strips), threads);
}

/* Rows of a task at most. Sums that lie in scratch must fit there. */
static int64_t most_strips(const struct dot *d) {
  int64_t rows = d->column_major_epilogue          ? TASK_ROWS_UPRIGHT
                 : packs_in_tasks(d)               ? TASK_ROWS_PACKED
                 : d->c.mem < 0 || d->n_panels > 1 ? TASK_ROWS
                                                   : TASK_ROWS_MOST;
  return BASE_MAX(rows / d->mr, 1);
}

static void choose_tasks(struct dot *d) {
  int64_t panel_bytes = DOT_BLOCK * d->nv * d->lanes * (int64_t)base_dtypes[d->acc].size;
  int64_t chunk = BASE_MAX(d->job->target->l2_bytes / 2 / panel_bytes, 1);
  if (d->job->sched->nc > 0) chunk = BASE_MAX(d->job->sched->nc / (d->nv * d->lanes), 1);
  bool whole = d->c.mem < 0 && d->k_splits == 0 && d->k > DOT_BLOCK; /* the sums of a task lie in scratch */
  if (d->b_transposed) chunk = d->n_panels;
  int64_t widest = whole || !packs_in_tasks(d) ? chunk : d->n_panels, best_strips = 1, best_panels = 1;
  double best = -1;
  for (int64_t rows = 1; rows <= BASE_MIN(d->m_strips, 256); rows += 1 + rows / 8) {
    int64_t strips = sched_ceil(d->m_strips, rows);
    if (strips > most_strips(d)) continue;
    for (int64_t cols = 1; cols <= BASE_MIN(d->n_panels, 1024); cols += 1 + cols / 8) {
      int64_t panels = sched_ceil(d->n_panels, cols);
      if (panels > widest) continue;
      double time = time_of(d, strips, panels);
      if (best >= 0 && time >= best) continue;
      best = time;
      best_strips = strips;
      best_panels = panels;
    }
  }
  if (best < 0) { /* larger than the lists above */
    best_strips = BASE_MIN(d->m_strips, most_strips(d));
    best_panels = BASE_MIN(d->n_panels, widest);
  }
  d->task_m_strips = d->job->sched->mc > 0 ? sched_ceil(d->job->sched->mc, d->mr) : best_strips;
  d->task_n_panels = d->job->sched->grain > 0 ? sched_ceil(d->job->sched->grain, d->nv * d->lanes) : best_panels;
  if (packs_in_tasks(d))
    d->task_m_strips = BASE_MAX(BASE_MIN(d->task_m_strips, DOT_BLOCK / d->mr), 1); /* one row of staging */
  d->strip_group = d->lanes;
  while (d->strip_group % 2 == 0 && d->strip_group / 2 * d->mr % d->lanes == 0) d->strip_group /= 2;
  if (d->column_major_epilogue) d->task_m_strips = sched_ceil(d->task_m_strips, d->strip_group) * d->strip_group;
  d->task_m_strips = BASE_MIN(d->task_m_strips, d->m_strips);
  d->task_n_panels = BASE_MIN(d->task_n_panels, d->n_panels);
  d->chunk_n_panels = BASE_MIN(chunk, d->task_n_panels);
}

void dot_sizes(struct dot *d) {
  d->batch_rows = find_batch_rows(d);
  choose_tile(d);
  choose_packing(d);
  choose_split_k(d);
  d->packs_a_once = dot_can_pack_once(d) && (d->batch > 1 || d->n_panels > 1);
  choose_tasks(d);
}
