/* pass/cross.c -- fusion: sums over the rows of what has rows
** The gradient of a gain or a bias sums over all rows what the gradient of the rows themselves is made from. Two units that read the
** same tensors, one along its rows and one down its columns, become one: the second's reductions are the first's
** crosses, which take each element when the rows pass by.
** in:    units, when all nodes have been taken      out: units of columns without anything left to do are gone
** keeps: a unit that did more than reduce its columns stays as it is
** tests: tests/pass/test_fuse.c
*/
#include "pass/pass_int.h"

enum { LEAST_ROWS = 256, MOST_REACHED = 512 };

/* True when `to` reads, perhaps through others, what `from` computes; or when that cannot be told soon. */
static bool reaches(struct fuse *f, int from, int to) {
  int level = f->units.at[to]->level;
  f->epoch++;
  f->stack.n = 0;
  if (!base_vec_push(f->heap, &f->stack, from)) return true;
  while (f->stack.n > 0) {
    const struct fuse_unit *unit = f->units.at[f->stack.at[--f->stack.n]];
    for (size_t i = 0; i < unit->after.n; i++) {
      struct fuse_unit *next = f->units.at[unit->after.at[i]];
      if (unit->after.at[i] == to) return true;
      if (next->epoch == f->epoch || next->level >= level) continue;
      next->epoch = f->epoch;
      if (f->stack.n >= MOST_REACHED || !base_vec_push(f->heap, &f->stack, unit->after.at[i])) return true;
    }
  }
  return false;
}

static bool is_listed(struct ir_ints axes, int64_t axis) {
  for (int i = 0; i < axes.n; i++)
    if (axes.at[i] == axis) return true;
  return false;
}

/* Where a reduction over the rows of a unit reads its source. */
static void column_indices(const struct fuse_unit *rows, const struct ir_node *node, const struct pass_index **at,
                           const struct pass_index **result) {
  const quern_tensor *s = node->src[0];
  for (int in = 0; in < 2; in++) {
    int64_t dims[QUERN_MAX_RANK];
    const struct pass_index *part[QUERN_MAX_RANK];
    int n = 0;
    for (int k = 0; k < s->rank; k++)
      if (is_listed(node->attrs->axes, k) == (in != 0)) dims[n++] = s->dims[k];
    pass_index_unflat(rows->space, in != 0 ? rows->flat_outer : rows->flat_inner, n, dims, part);
    for (int k = 0, i = 0; k < s->rank; k++)
      if (is_listed(node->attrs->axes, k) == (in != 0)) at[k] = part[i++];
  }
  for (int k = 0, i = 0; k < s->rank; k++)
    if (!is_listed(node->attrs->axes, k)) result[i++] = at[k];
}

static bool is_wide(const struct fuse_unit *unit, const quern_tensor *t) {
  return 2 * ir_count(t) >= unit->outer * unit->inner;
}

/* Whether a unit has the rows of these columns, and room for more. */
static bool has_rows(const struct fuse_unit *rows, const struct fuse_unit *columns) {
  return rows->kind == PASS_KIND_REDUCE && rows->stages.n > 0 && !rows->wide && !rows->column &&
         rows->outer == columns->inner && rows->inner == columns->outer && rows->outer >= LEAST_ROWS &&
         rows->size + columns->size <= PASS_MOST_NODES && rows->n_roots + (int)columns->stages.n <= PASS_MOST_OUTS;
}

/* The unit of rows that a unit of columns could join: one that reads or computes what it reads. -1: none. */
static int find_rows(const struct fuse *f, const struct fuse_unit *columns) {
  for (size_t i = 0; i < columns->reads.n; i++) {
    const quern_tensor *t = columns->reads.at[i];
    const struct fuse_spot *spot = fuse_spot_of(f, t);
    if (!is_wide(columns, t)) continue;
    if (spot->home >= 0 && has_rows(f->units.at[spot->home], columns)) return spot->home;
    if (spot->last_row >= 0 && has_rows(f->units.at[spot->last_row], columns)) return spot->last_row;
  }
  return -1;
}

/* Accumulators of 8 bytes are half as many: all crosses of a unit have the same. */
static bool are_alike(const struct fuse_unit *rows, const struct fuse_unit *columns) {
  const struct fuse_stage *first = rows->crosses.n > 0 ? &rows->crosses.at[0] : &columns->stages.at[0];
  bool wide = base_dtypes[first->node->out[0].dtype].size == 8;
  for (size_t i = 0; i < columns->stages.n; i++) {
    const struct ir_node *node = columns->stages.at[i].node;
    if (node->op != IR_REDUCE || (base_dtypes[node->out[0].dtype].size == 8) != wide) return false;
  }
  return true;
}

/* Whether what the last walk read is, as far as it is large, what the unit reads anyway. */
static bool reads_no_more(const struct fuse *f, const struct fuse_unit *rows) {
  for (size_t i = 0; i < f->reads.n; i++) {
    bool known = !is_wide(rows, f->reads.at[i]);
    for (size_t k = 0; k < rows->reads.n && !known; k++) known = rows->reads.at[k] == f->reads.at[i];
    if (!known) return false;
  }
  return true;
}

/* Whether all that follow the columns follow the rows too, once those have their new level. */
static bool can_precede(const struct fuse *f, const struct fuse_unit *rows, const struct fuse_unit *columns) {
  for (size_t i = 0; i < columns->after.n; i++)
    if (f->units.at[columns->after.at[i]]->level <= rows->raised) return false;
  return true;
}

static quern_status take_over(struct fuse *f, int number, struct fuse_unit *rows, struct fuse_unit *columns) {
  for (size_t i = 0; i < columns->stages.n; i++) {
    struct ir_node *node = columns->stages.at[i].node;
    struct fuse_spot *spot = fuse_spot_of(f, &node->out[0]);
    const struct pass_index *at[QUERN_MAX_RANK], *result[QUERN_MAX_RANK];
    struct base_arena *arena = &f->groups->arena;
    column_indices(rows, node, at, result);
    struct fuse_stage cross = {.node = node};
    cross.source = base_arena_copy(arena, at, (size_t)node->src[0]->rank * sizeof *at);
    cross.result = base_arena_copy(arena, result, (size_t)node->out[0].rank * sizeof *result);
    if (cross.source == NULL || cross.result == NULL || !base_vec_push(f->heap, &rows->crosses, cross))
      return QUERN_STATUS_MEMORY;
    spot->home = spot->units[0] = number;
    spot->at = cross.result;
    spot->cross = true;
    rows->size++;
    rows->n_roots += spot->root ? 1 : 0;
  }
  columns->stages.n = 0;
  for (size_t i = 0; i < columns->after.n; i++)
    if (!base_vec_push(f->heap, &rows->after, columns->after.at[i])) return QUERN_STATUS_MEMORY;
  return rows->space->failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK;
}

static quern_status try_cross(struct fuse *f, int unit) {
  struct fuse_unit *columns = f->units.at[unit];
  int number = find_rows(f, columns);
  if (number < 0) return QUERN_STATUS_OK;
  struct fuse_unit *rows = f->units.at[number];
  if (!are_alike(rows, columns) || reaches(f, unit, number)) return QUERN_STATUS_OK;
  struct fuse_walk walk = {.unit = rows, .number = number, .manner = FUSE_POINT, .fits = true};
  f->epoch++;
  f->visits.n = f->indices.n = f->reads.n = f->before.n = f->pending.n = 0;
  for (size_t i = 0; i < columns->stages.n && walk.fits; i++) {
    const struct ir_node *node = columns->stages.at[i].node;
    const struct pass_index *at[QUERN_MAX_RANK], *result[QUERN_MAX_RANK];
    column_indices(rows, node, at, result);
    QUERN_TRY(fuse_walk(f, &walk, node->src[0], at));
  }
  if (!walk.fits || !reads_no_more(f, rows) || !fuse_can_follow(f, number) || !can_precede(f, rows, columns))
    return QUERN_STATUS_OK;
  QUERN_TRY(fuse_commit(f, &walk));
  return take_over(f, number, rows, columns);
}

quern_status fuse_cross(struct fuse *f) {
  size_t bytes = BASE_MAX(f->units.n, 1) * sizeof(size_t);
  size_t *homes = base_alloc_zero(f->heap, bytes); /* how many nodes each unit is the home of */
  if (homes == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < f->order.n; i++)
    if (f->spots[i].home >= 0) homes[f->spots[i].home]++;
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < f->units.n && status == QUERN_STATUS_OK; i++) {
    const struct fuse_unit *unit = f->units.at[i];
    if (unit->kind == PASS_KIND_REDUCE && unit->column && unit->stages.n > 0 && homes[i] == unit->stages.n)
      status = try_cross(f, (int)i);
  }
  base_free(f->heap, homes, bytes);
  return status;
}
