/* pass/column_reductions.c -- fusion: column reductions, sums over the rows, become part of the cluster that has the rows
** The gradient of a gain or a bias sums over all rows what the gradient of the rows themselves is made from. Two clusters that read the
** same tensors, one along its rows and one down its columns, become one: the second's reductions are the first's
** column reductions, which take each element when the rows pass by. On GPUs their epilogue, a cast of the sums say, goes along.
** in:    clusters, when all nodes have been taken      out: clusters of columns without anything left to do are gone
** keeps: a cluster that did more than reduce its columns stays as it is
** tests: tests/pass/test_fuse.c
*/
#include "pass/pass_int.h"

enum { LEAST_ROWS = 256, MOST_REACHED = 512 };

/* True when `to` reads, perhaps through others, what `from` computes; or when that cannot be told soon. */
static bool reaches(struct fuse *f, int from, int to) {
  int level = f->clusters.at[to]->level;
  f->epoch++;
  f->stack.n = 0;
  if (!base_vec_push(f->heap, &f->stack, from)) return true;
  while (f->stack.n > 0) {
    const struct fuse_cluster *cluster = f->clusters.at[f->stack.at[--f->stack.n]];
    for (size_t i = 0; i < cluster->readers.n; i++) {
      struct fuse_cluster *next = f->clusters.at[cluster->readers.at[i]];
      if (cluster->readers.at[i] == to) return true;
      if (next->epoch == f->epoch || next->level >= level) continue;
      next->epoch = f->epoch;
      if (f->stack.n >= MOST_REACHED || !base_vec_push(f->heap, &f->stack, cluster->readers.at[i])) return true;
    }
  }
  return false;
}

static bool is_listed(struct ir_ints axes, int64_t axis) {
  for (int i = 0; i < axes.n; i++)
    if (axes.at[i] == axis) return true;
  return false;
}

/* Where a reduction over the rows of a cluster reads its source. */
static void column_indices(const struct fuse_cluster *rows, const struct ir_node *node, const struct pass_index **at,
                           const struct pass_index **result) {
  const quern_tensor *s = node->src[0];
  for (int in = 0; in < 2; in++) {
    int64_t dims[QUERN_MAX_RANK];
    const struct pass_index *part[QUERN_MAX_RANK] = {NULL};
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

static bool is_wide(const struct fuse_cluster *cluster, const quern_tensor *t) {
  return 2 * ir_count(t) >= cluster->outer * cluster->inner;
}

/* Whether a cluster has the rows of these columns, and room for more. */
static bool has_rows(const struct fuse_cluster *rows, const struct fuse_cluster *columns) {
  return rows->kind == PASS_KIND_REDUCE && !rows->unfused && !columns->unfused && rows->stages.n > 0 && !rows->wide &&
         !rows->column && rows->outer == columns->inner && rows->inner == columns->outer && rows->outer >= LEAST_ROWS &&
         rows->size + columns->size <= PASS_MOST_NODES && rows->n_roots + (int)columns->stages.n <= PASS_MOST_OUTS;
}

/* The cluster of rows that a cluster of columns could join: one that reads or computes what it reads. -1: none. */
static int find_rows(const struct fuse *f, const struct fuse_cluster *columns) {
  for (size_t i = 0; i < columns->reads.n; i++) {
    const quern_tensor *t = columns->reads.at[i];
    const struct fuse_node_info *info = fuse_info_of(f, t);
    if (!is_wide(columns, t)) continue;
    if (info->home >= 0 && has_rows(f->clusters.at[info->home], columns)) return info->home;
    if (info->last_row >= 0 && has_rows(f->clusters.at[info->last_row], columns)) return info->last_row;
  }
  return -1;
}

/* Accumulators of 8 bytes are half as many: all column reductions of a cluster have the same. */
static bool are_alike(const struct fuse_cluster *rows, const struct fuse_cluster *columns) {
  const struct fuse_stage *first =
      rows->column_reductions.n > 0 ? &rows->column_reductions.at[0] : &columns->stages.at[0];
  bool wide = base_dtypes[first->node->out[0].dtype].size == 8;
  for (size_t i = 0; i < columns->stages.n; i++) {
    const struct ir_node *node = columns->stages.at[i].node;
    if (node->op != IR_REDUCE || (base_dtypes[node->out[0].dtype].size == 8) != wide) return false;
  }
  return true;
}

/* Whether what the last walk read is, as far as it is large, what the cluster reads anyway. */
static bool reads_no_more(const struct fuse *f, const struct fuse_cluster *rows) {
  for (size_t i = 0; i < f->reads.n; i++) {
    bool known = !is_wide(rows, f->reads.at[i]);
    for (size_t k = 0; k < rows->reads.n && !known; k++) known = rows->reads.at[k] == f->reads.at[i];
    if (!known) return false;
  }
  return true;
}

/* Whether all that follow the columns follow the rows too, once those have their new level. */
static bool can_precede(const struct fuse *f, const struct fuse_cluster *rows, const struct fuse_cluster *columns) {
  for (size_t i = 0; i < columns->readers.n; i++)
    if (f->clusters.at[columns->readers.at[i]]->level <= rows->raised) return false;
  return true;
}

static bool on_gpu(const struct fuse *f) { return f->options->target != NULL && f->options->target->gpu; }

static bool is_plain(const struct ir_node *node) {
  return pass_ops[node->op].elementwise || node->op == IR_RESHAPE || node->op == IR_BROADCAST;
}

static bool is_stage(const struct fuse_cluster *cluster, const struct ir_node *node) {
  for (size_t i = 0; i < cluster->stages.n; i++)
    if (cluster->stages.at[i].node == node) return true;
  return false;
}

/* Whether a node can be computed by whoever uses it: plain, and read by plain nodes and reductions alone. */
static bool can_move(const struct fuse *f, size_t place) {
  const struct ir_node *node = f->order.at[place];
  if (f->infos[place].root || !is_plain(node)) return false;
  for (uint32_t k = f->from[place]; k < f->from[place + 1]; k++) {
    const struct ir_node *user = f->order.at[f->uses[k]];
    int home = f->infos[f->uses[k]].home;
    bool open =
        home < 0 || f->clusters.at[home]->kind == PASS_KIND_MAP || f->clusters.at[home]->kind == PASS_KIND_REDUCE;
    if (!open || !(user->op == IR_REDUCE || is_plain(user))) return false;
  }
  return true;
}

/* Tensors that nodes of a cluster are made of, at most. */
static int reads_of(const struct fuse *f, int cluster) {
  const struct fuse_cluster *u = f->clusters.at[cluster];
  return (int)(u->reads.n + u->stages.n) + u->more;
}

/* Whether all other clusters that read a node of a cluster, or what is made of it where it is used, can read so many more tensors; add: they
** do from now on. */
static bool pass_on(const struct fuse *f, size_t place, int cluster, int reads, bool add) {
  enum { MOST_ALL = 200, MOST_WAY = 64 }; /* tensors that a group reads; nodes on the way to it */
  size_t stack[MOST_WAY] = {place};
  int depth = 1, steps = 0;
  while (depth > 0) {
    size_t at = stack[--depth];
    for (uint32_t k = f->from[at]; k < f->from[at + 1]; k++) {
      int home = f->infos[f->uses[k]].home;
      if (home == cluster) continue;
      if (home < 0 && (depth == MOST_WAY || ++steps > MOST_WAY)) return false;
      if (home < 0) {
        stack[depth++] = f->uses[k];
        continue;
      }
      struct fuse_cluster *reader = f->clusters.at[home];
      if (!add && (int)reader->reads.n + reader->more + reads > MOST_ALL) return false;
      if (add && reader->since != cluster + 1) reader->more += reads;
      if (add) reader->since = cluster + 1;
    }
  }
  return true;
}

/* ---- on GPUs: what is made of the sums alone, one element per column ------------------------------------------- */

enum { MOST_END = 16 };
struct point {
  const quern_tensor *tensor;
  const struct pass_index *at[QUERN_MAX_RANK];
};

static void epilogue_indices(const struct fuse_cluster *rows, const quern_tensor *t, const struct pass_index **at) {
  pass_index_unflat(rows->space, rows->flat_inner, t->rank, t->dims, at);
}

/* Whether t is one element per column of the rows, made of sums of the columns where these have it and of numbers, by plain nodes. */
static bool is_epilogue(const struct fuse *f, int cluster, const struct fuse_cluster *rows, const quern_tensor *t) {
  const struct fuse_cluster *columns = f->clusters.at[cluster];
  const struct pass_index *source[QUERN_MAX_RANK] = {NULL}, *result[QUERN_MAX_RANK] = {NULL};
  struct point stack[MOST_END] = {{.tensor = t}};
  int depth = 1, steps = 0;
  if (ir_count(t) != rows->inner) return false;
  epilogue_indices(rows, t, stack[0].at);
  while (depth > 0) {
    struct point p = stack[--depth];
    const struct ir_node *node = p.tensor->node;
    if (is_stage(columns, node)) {
      column_indices(rows, node, source, result);
      if (p.tensor->rank > 0 && memcmp(result, p.at, (size_t)p.tensor->rank * sizeof *result) != 0) return false;
      continue;
    }
    if (pass_is_leaf(node) && !pass_is_given(p.tensor)) continue; /* a number */
    int home = pass_is_leaf(node) ? -2 : fuse_info_of(f, p.tensor)->home;
    if ((home != cluster && home != -1) || !is_plain(node) || depth + node->n_src > MOST_END || ++steps > MOST_END)
      return false;
    for (int i = 0; i < node->n_src; i++, depth++) {
      stack[depth].tensor = node->src[i];
      if (!pass_index_of_source(rows->space, node, i, p.at, stack[depth].at)) return false;
    }
  }
  return true;
}

/* Whether all that a cluster of columns computes beside its sums can go along with them, or be computed by others. */
static bool can_be_epilogue(const struct fuse *f, int cluster, const struct fuse_cluster *rows) {
  const struct fuse_cluster *columns = f->clusters.at[cluster];
  int ends = 0;
  for (size_t i = 0; i < f->order.n; i++) {
    const struct ir_node *node = f->order.at[i];
    if (f->infos[i].home != cluster || is_stage(columns, node)) continue;
    bool moved = can_move(f, i);
    if (moved ? !pass_on(f, i, cluster, reads_of(f, cluster), false) : !is_epilogue(f, cluster, rows, &node->out[0]))
      return false;
    ends += moved ? 0 : 1;
  }
  return rows->n_roots + (int)columns->stages.n + ends <= PASS_MOST_OUTS && rows->size + ends <= PASS_MOST_NODES;
}

/* What a cluster computes beside its sums leaves it. */
static quern_status take_epilogues(struct fuse *f, int number, struct fuse_cluster *rows, int cluster) {
  for (size_t i = 0; i < f->order.n; i++) {
    struct fuse_node_info *info = &f->infos[i];
    const quern_tensor *t = &f->order.at[i]->out[0];
    if (info->home != cluster || is_stage(f->clusters.at[cluster], t->node)) continue;
    bool moved = can_move(f, i);
    if (moved) (void)pass_on(f, i, cluster, reads_of(f, cluster), true);
    info->home = -1;
    if (moved) continue;
    const struct pass_index *at[QUERN_MAX_RANK];
    epilogue_indices(rows, t, at);
    info->at = base_arena_copy(&f->groups->arena, at, (size_t)t->rank * sizeof *at);
    if (info->at == NULL) return QUERN_STATUS_MEMORY;
    info->home = info->clusters[0] = number;
    info->n_clusters = 1;
    info->is_column_reduction = true;
    rows->size++;
    rows->n_roots += info->root ? 1 : 0;
  }
  return QUERN_STATUS_OK;
}

/* ---- taking over --------------------------------------------------------------------------------------------- */

static quern_status take_over(struct fuse *f, int number, struct fuse_cluster *rows, int cluster) {
  struct fuse_cluster *columns = f->clusters.at[cluster];
  if (on_gpu(f)) QUERN_TRY(take_epilogues(f, number, rows, cluster));
  for (size_t i = 0; i < columns->stages.n; i++) {
    struct ir_node *node = columns->stages.at[i].node;
    struct fuse_node_info *info = fuse_info_of(f, &node->out[0]);
    const struct pass_index *at[QUERN_MAX_RANK] = {NULL}, *result[QUERN_MAX_RANK] = {NULL};
    struct base_arena *arena = &f->groups->arena;
    column_indices(rows, node, at, result);
    struct fuse_stage cross = {.node = node};
    cross.source = base_arena_copy(arena, at, (size_t)node->src[0]->rank * sizeof *at);
    cross.result = base_arena_copy(arena, result, (size_t)node->out[0].rank * sizeof *result);
    if (cross.source == NULL || cross.result == NULL || !base_vec_push(f->heap, &rows->column_reductions, cross))
      return QUERN_STATUS_MEMORY;
    info->home = info->clusters[0] = number;
    info->at = cross.result;
    info->is_column_reduction = true;
    rows->size++;
    rows->n_roots += info->root ? 1 : 0;
  }
  columns->stages.n = 0;
  for (size_t i = 0; i < columns->readers.n; i++)
    if (!base_vec_push(f->heap, &rows->readers, columns->readers.at[i])) return QUERN_STATUS_MEMORY;
  return rows->space->failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK;
}

/* ---- on GPUs: through what maps would compute --------------------------------------------------------------- */

enum { MOST_BETWEEN = 64 };
struct
    behind { /* what some tensors are made from, through nodes that maps compute or that are computed where they are used */
  int n, n_between;
  const quern_tensor *at[MOST_BETWEEN]; /* wide ones */
  size_t between[MOST_BETWEEN];         /* places of nodes whose home is a map */
  bool many;                            /* there was no room */
};

static void look_behind(const struct fuse *f, const struct fuse_cluster *cluster, struct behind *b,
                        const quern_tensor *from) {
  const quern_tensor *stack[MOST_BETWEEN] = {from};
  int depth = 1;
  while (depth > 0 && !b->many) {
    const quern_tensor *t = stack[--depth];
    bool leaf = pass_is_leaf(t->node) || pass_is_given(t), known = false;
    size_t place = leaf ? 0 : (size_t)ir_order_find(&f->order, t->node);
    int home = leaf ? -1 : f->infos[place].home;
    bool map = home >= 0 && f->clusters.at[home]->kind == PASS_KIND_MAP;
    if (!leaf && is_plain(t->node) && (home < 0 || map)) {
      for (int i = 0; i < b->n_between; i++) known = known || b->between[i] == place;
      if (known) continue;
      b->many = (map && b->n_between == MOST_BETWEEN) || depth + t->node->n_src > MOST_BETWEEN;
      if (map && !b->many) b->between[b->n_between++] = place;
      for (int s = 0; s < t->node->n_src && !b->many; s++) stack[depth++] = t->node->src[s];
      continue;
    }
    for (int i = 0; i < b->n; i++) known = known || b->at[i] == t;
    if (known || !is_wide(cluster, t)) continue;
    b->many = b->n == MOST_BETWEEN;
    if (!b->many) b->at[b->n++] = t;
  }
}

static void look_behind_reads(const struct fuse *f, const struct fuse_cluster *cluster, struct behind *b) {
  *b = (struct behind){.n = 0};
  for (size_t i = 0; i < cluster->reads.n; i++) look_behind(f, cluster, b, cluster->reads.at[i]);
}

static bool has_all(const struct behind *all, const struct behind *some) {
  for (int i = 0; i < some->n; i++) {
    bool found = false;
    for (int k = 0; k < all->n; k++) found = found || all->at[k] == some->at[i];
    if (!found) return false;
  }
  return some->n > 0 && !all->many && !some->many;
}

/* The cluster of rows that reads what is behind the columns. */
static int find_rows_behind(const struct fuse *f, const struct fuse_cluster *columns, struct behind *b) {
  struct behind rows;
  look_behind_reads(f, columns, b);
  int reads = 0, last = -1;
  for (int i = 0; i < b->n_between; i++) {
    int home = f->infos[b->between[i]].home;
    reads += home != last ? reads_of(f, home) : 0;
    last = home;
    if (!can_move(f, b->between[i]) || !pass_on(f, b->between[i], home, reads, false)) return -1;
  }
  for (size_t i = 0; i < f->clusters.n; i++) {
    if (!has_rows(f->clusters.at[i], columns)) continue;
    look_behind_reads(f, f->clusters.at[i], &rows);
    if (has_all(&rows, b)) return (int)i;
  }
  return -1;
}

static quern_status walk_columns(struct fuse *f, struct fuse_walk *walk, const struct fuse_cluster *columns) {
  f->epoch++;
  f->visits.n = f->indices.n = f->reads.n = f->before.n = f->pending.n = 0;
  for (size_t i = 0; i < columns->stages.n && walk->fits; i++) {
    const struct ir_node *node = columns->stages.at[i].node;
    const struct pass_index *at[QUERN_MAX_RANK] = {NULL}, *result[QUERN_MAX_RANK] = {NULL};
    column_indices(walk->cluster, node, at, result);
    QUERN_TRY(fuse_walk(f, walk, node->src[0], at));
  }
  return QUERN_STATUS_OK;
}

/* Fuses a cluster of column reductions with one of rows where what both read lies behind maps, whose nodes are then computed where they
** are used. */
static quern_status try_behind(struct fuse *f, int cluster) {
  struct fuse_cluster *columns = f->clusters.at[cluster];
  struct behind b, all;
  int number = find_rows_behind(f, columns, &b), homes[MOST_BETWEEN];
  if (number < 0) return QUERN_STATUS_OK;
  struct fuse_cluster *rows = f->clusters.at[number];
  if (!are_alike(rows, columns) || reaches(f, cluster, number)) return QUERN_STATUS_OK;
  if (on_gpu(f) && !can_be_epilogue(f, cluster, rows)) return QUERN_STATUS_OK;
  look_behind_reads(f, rows, &all);
  for (int i = 0; i < b.n_between; i++) {
    homes[i] = f->infos[b.between[i]].home;
    f->infos[b.between[i]].home = -1;
  }
  struct fuse_walk walk = {.cluster = rows, .number = number, .mode = FUSE_POINT, .fits = true};
  QUERN_TRY(walk_columns(f, &walk, columns));
  bool more = false;
  for (size_t i = 0; i < f->reads.n; i++) {
    bool known = !is_wide(rows, f->reads.at[i]);
    for (int k = 0; k < all.n; k++) known = known || all.at[k] == f->reads.at[i];
    more = more || !known;
  }
  if (!walk.fits || more || !fuse_can_follow(f, number) || !can_precede(f, rows, columns)) {
    for (int i = 0; i < b.n_between; i++) f->infos[b.between[i]].home = homes[i];
    return QUERN_STATUS_OK;
  }
  for (int i = 0; i < b.n_between; i++) (void)pass_on(f, b.between[i], homes[i], reads_of(f, homes[i]), true);
  QUERN_TRY(fuse_commit(f, &walk));
  return take_over(f, number, rows, cluster);
}

static quern_status try_fuse_columns(struct fuse *f, int cluster) {
  struct fuse_cluster *columns = f->clusters.at[cluster];
  int number = find_rows(f, columns);
  if (number < 0) return on_gpu(f) ? try_behind(f, cluster) : QUERN_STATUS_OK;
  struct fuse_cluster *rows = f->clusters.at[number];
  if (!are_alike(rows, columns) || reaches(f, cluster, number)) return QUERN_STATUS_OK;
  if (on_gpu(f) && !can_be_epilogue(f, cluster, rows)) return QUERN_STATUS_OK;
  struct fuse_walk walk = {.cluster = rows, .number = number, .mode = FUSE_POINT, .fits = true};
  QUERN_TRY(walk_columns(f, &walk, columns));
  if (!walk.fits || !reads_no_more(f, rows) || !fuse_can_follow(f, number) || !can_precede(f, rows, columns))
    return QUERN_STATUS_OK;
  QUERN_TRY(fuse_commit(f, &walk));
  return take_over(f, number, rows, cluster);
}

/* Lists who reads each node, for can_move: counts, then where those of a node begin, then all of them. */
static quern_status list_uses(struct fuse *f, uint32_t **list, size_t *bytes) {
  size_t n = f->order.n, all = 0;
  for (size_t i = 0; i < n; i++) all += (size_t)f->order.at[i]->n_src;
  *bytes = (n + 2 + all) * sizeof **list;
  uint32_t *from = *list = base_alloc_zero(f->heap, *bytes);
  if (from == NULL) return QUERN_STATUS_MEMORY;
  uint32_t *uses = from + n + 2;
  for (int pass = 0; pass < 2; pass++) {
    for (size_t i = 0; i < n; i++)
      for (int s = 0; s < f->order.at[i]->n_src; s++) {
        size_t source = (size_t)ir_order_find(&f->order, f->order.at[i]->src[s]->node);
        if (pass == 0)
          from[source + 2]++;
        else
          uses[from[source + 1]++] = (uint32_t)i;
      }
    for (size_t i = 2; i < n + 2 && pass == 0; i++) from[i] += from[i - 1];
  }
  f->from = from;
  f->uses = uses;
  return QUERN_STATUS_OK;
}

static quern_status fuse_all_columns(struct fuse *f) {
  size_t bytes = BASE_MAX(f->clusters.n, 1) * sizeof(size_t);
  size_t *homes = base_alloc_zero(f->heap, bytes); /* how many nodes each cluster is the home of */
  if (homes == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < f->order.n; i++)
    if (f->infos[i].home >= 0) homes[f->infos[i].home]++;
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < f->clusters.n && status == QUERN_STATUS_OK; i++) {
    const struct fuse_cluster *cluster = f->clusters.at[i];
    bool columns = cluster->kind == PASS_KIND_REDUCE && cluster->column && cluster->stages.n > 0;
    if (columns && (homes[i] == cluster->stages.n || on_gpu(f))) status = try_fuse_columns(f, (int)i);
  }
  base_free(f->heap, homes, bytes);
  return status;
}

quern_status fuse_column_reductions(struct fuse *f) {
  uint32_t *list = NULL;
  size_t bytes = 0;
  quern_status status = on_gpu(f) ? list_uses(f, &list, &bytes) : QUERN_STATUS_OK;
  if (status == QUERN_STATUS_OK) status = fuse_all_columns(f);
  base_free(f->heap, list, bytes);
  return status;
}
