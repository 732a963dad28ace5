/* pass/fuse.c -- fusion: nodes become fusion clusters, which become fusion groups, one kernel each
** in:    a graph without composites that nobody supports   out: groups that compute every root, in an order that runs
** keeps: groups form a DAG; every index is proven by index expressions; nothing expensive is computed twice
**
** Nodes are taken in order of their ids. A node that computes an element at a time joins a cluster that one of its
** sources lives in when a walk proves that all it needs is there at the right indices; else it floats, to be computed
** wherever it is used. Reductions join or begin a cluster of rows, contractions begin one, and what must be in memory
** and still floats becomes a cluster of its own. The latest cluster is tried first: joining it can close no cycle
** unless levels say so. Homes are offers: fusion_groups.c decides which tensors are written, when all readers are
** known.
** see:   README.md                            tests: tests/pass/test_fuse.c, tests/pass/test_groups.c
*/
#include "pass/pass_int.h"

enum { MOST_STAGES = 16, FORWARD_STEPS = 32, WIDE_ROW = 32768, FEW_ROWS = 8, MOST_WANTED = 3 };

static void begin(struct fuse *f) {
  f->epoch++;
  f->visits.n = f->indices.n = f->reads.n = f->before.n = f->pending.n = 0;
}

static bool fusing(const struct fuse *f, const struct ir_node *node) {
  return f->options->on[PASS_FUSE] && !fuse_info_of(f, &node->out[0])->unfused;
}

/* ---- clusters ---------------------------------------------------------------------------------------------------- */

/* A new cluster; space NULL for kinds without one. */
static quern_status add_cluster(struct fuse *f, enum pass_kind kind, struct ir_node *anchor, int *number) {
  struct fuse_cluster *cluster = base_alloc_zero(f->heap, sizeof *cluster);
  if (cluster == NULL) return QUERN_STATUS_MEMORY;
  if (!base_vec_push(f->heap, &f->clusters, cluster)) {
    base_free(f->heap, cluster, sizeof *cluster);
    return QUERN_STATUS_MEMORY;
  }
  cluster->kind = kind;
  cluster->anchor = anchor;
  cluster->unfused = fuse_info_of(f, &anchor->out[0])->unfused;
  *number = (int)f->clusters.n - 1;
  bool plain = kind == PASS_KIND_MAP || kind == PASS_KIND_REDUCE || kind == PASS_KIND_DOT || kind == PASS_KIND_SCAN ||
               kind == PASS_KIND_SORT;
  return plain ? pass_space_new(&cluster->space, f->heap) : QUERN_STATUS_OK;
}

static void free_cluster(struct fuse *f, struct fuse_cluster *cluster) {
  pass_space_free(cluster->space);
  base_vec_fini(f->heap, &cluster->stages);
  base_vec_fini(f->heap, &cluster->column_reductions);
  base_vec_fini(f->heap, &cluster->readers);
  base_vec_fini(f->heap, &cluster->reads);
  base_vec_fini(f->heap, &cluster->needed);
  base_free(f->heap, cluster, sizeof *cluster);
}

static const struct pass_index **keep(struct fuse *f, int rank, const struct pass_index *const *at) {
  return base_arena_copy(&f->groups->arena, at, (size_t)rank * sizeof *at);
}

/* The element of t at a point of the cluster is computed there. */
static quern_status set_home(struct fuse *f, int number, const struct ir_node *node,
                             const struct pass_index *const *at) {
  struct fuse_node_info *info = &f->infos[ir_order_find(&f->order, node)];
  if (info->home >= 0) return QUERN_STATUS_OK; /* the walk has done it */
  if (at != NULL) {
    info->at = keep(f, node->out[0].rank, at);
    if (info->at == NULL) return QUERN_STATUS_MEMORY;
  }
  info->home = number;
  info->n_clusters = 1;
  info->clusters[0] = number;
  f->clusters.at[number]->n_roots += info->root ? 1 : 0;
  return QUERN_STATUS_OK;
}

/* A new cluster takes over what the walk found; nothing follows it yet. */
static quern_status commit_new(struct fuse *f, const struct fuse_walk *walk) {
  return fuse_can_follow(f, walk->number) ? fuse_commit(f, walk) : QUERN_STATUS_MEMORY;
}

/* Adds a variable for each dim. */
static void add_vars(struct pass_space *space, int rank, const int64_t *dims, const struct pass_index **at) {
  for (int k = 0; k < rank; k++) at[k] = pass_index_var(space, pass_space_add(space, dims[k]));
}

static int64_t product(int n, const int64_t *dims) {
  uint64_t count = 1; /* wraps only where another dim is 0 */
  for (int k = 0; k < n; k++) count *= (uint64_t)dims[k];
  return (int64_t)count;
}

static quern_status finish_space(struct fuse *f, struct fuse_cluster *cluster, int n_outer, const quern_tensor *like,
                                 const struct pass_index *const *like_at) {
  if (cluster->space->failed) return QUERN_STATUS_MEMORY;
  cluster->n_vars = (int)cluster->space->extents.n;
  cluster->n_outer = n_outer;
  cluster->outer = product(n_outer, cluster->space->extents.at);
  cluster->inner =
      cluster->n_vars > n_outer ? product(cluster->n_vars - n_outer, cluster->space->extents.at + n_outer) : 1;
  cluster->flat_outer = pass_index_of_vars(cluster->space, 0, n_outer);
  cluster->flat_inner = pass_index_of_vars(cluster->space, n_outer, cluster->n_vars);
  cluster->like = like;
  cluster->like_at = keep(f, like->rank, like_at);
  return cluster->like_at == NULL || cluster->space->failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK;
}

/* ---- joining ----------------------------------------------------------------------------------------------------- */

/* The indices that t's element has where a cluster computes what t is made of by elementwise ops, reshapes and
** permutes. Recursion of at most FORWARD_STEPS calls. */
static bool forward(struct fuse *f, int number, const quern_tensor *t, int *left, const struct pass_index **at) {
  const struct ir_node *node = t->node;
  const struct fuse_node_info *info = fuse_info_of(f, t);
  struct pass_space *space = f->clusters.at[number]->space;
  if (info->home == number) {
    for (int k = 0; k < t->rank; k++) at[k] = info->at[k];
    return true;
  }
  bool moves = node->op == IR_RESHAPE || node->op == IR_PERMUTE;
  if (info->home >= 0 || (!moves && !pass_is_elementwise(node)) || --*left < 0) return false;
  const struct pass_index *in[QUERN_MAX_RANK];
  for (int i = 0; i < node->n_src; i++) {
    if (!forward(f, number, node->src[i], left, in)) continue;
    if (node->op == IR_RESHAPE) {
      const quern_tensor *src = node->src[0];
      pass_index_unflat(space, pass_index_flat(space, src->rank, src->dims, in), t->rank, t->dims, at);
    } else {
      for (int k = 0; k < t->rank; k++) at[k] = in[moves ? node->attrs->axes.at[k] : k];
    }
    return true;
  }
  return false;
}

/* The element of t with the same number as like's element at like_at. */
static bool reshaped(struct pass_space *space, const quern_tensor *like, const struct pass_index *const *like_at,
                     const quern_tensor *t, const struct pass_index **at) {
  if (ir_count(like) != ir_count(t)) return false;
  if (ir_same_shape(like, t)) {
    for (int k = 0; k < t->rank; k++) at[k] = like_at[k];
  } else {
    pass_index_unflat(space, pass_index_flat(space, like->rank, like->dims, like_at), t->rank, t->dims, at);
  }
  return true;
}

enum { CANDIDATES = 3 };

/* Indices that t may have at a point of a cluster, number `which`. */
static bool candidate(struct fuse *f, int number, const quern_tensor *t, int which, const struct pass_index **at) {
  struct fuse_cluster *cluster = f->clusters.at[number];
  int left = FORWARD_STEPS;
  if (which == 0) return forward(f, number, t, &left, at);
  if (which == 1) return reshaped(cluster->space, cluster->like, cluster->like_at, t, at);
  if (cluster->kind != PASS_KIND_REDUCE) return false;
  const struct fuse_stage *stage = &cluster->stages.at[0];
  return reshaped(cluster->space, &stage->node->out[0], stage->result, t, at);
}

static bool has_room(const struct fuse_cluster *cluster, const struct fuse_node_info *info) {
  return cluster->size + info->size <= PASS_MOST_NODES && (int)cluster->reads.n + info->reads <= PASS_MOST_READS + 8 &&
         (!info->root || cluster->n_roots < PASS_MOST_OUTS);
}

static quern_status materialize(struct fuse *f, quern_tensor *t);

/* Walks from t in a cluster that there is. Something small that several want is computed before, by a cluster of its
** own. */
static quern_status walk_joining(struct fuse *f, struct fuse_walk *walk, const quern_tensor *t,
                                 const struct pass_index *const *at) {
  for (int turn = 0; turn < 4; turn++) {
    begin(f);
    QUERN_TRY(fuse_walk(f, walk, t, at));
    if (walk->fits || walk->force < 0) return QUERN_STATUS_OK;
    quern_tensor *wanted = &f->order.at[walk->force]->out[0];
    if (16 * ir_count(wanted) > ir_count(t)) return QUERN_STATUS_OK;
    QUERN_TRY(materialize(f, wanted));
  }
  return QUERN_STATUS_OK;
}

/* Computes t in a cluster that a library computes, as part of its epilogue, if the library can do that. */
static quern_status try_extend(struct fuse *f, int number, const quern_tensor *t, bool *joined) {
  struct fuse_cluster *cluster = f->clusters.at[number];
  const struct pass_index *at[QUERN_MAX_RANK];
  for (int i = 0; i < CANDIDATES && !*joined; i++) {
    if (!candidate(f, number, t, i, at)) continue;
    const struct pass_index *const *indices = (const struct pass_index *const *)at;
    if (pass_index_covers(cluster->space, cluster->n_vars, cluster->n_outer, t, indices) != PASS_COVER_OUTER) continue;
    const quern_tensor *wanted = NULL;
    QUERN_TRY(fuse_extend_gemm(f, number, t, indices, joined, &wanted));
    for (int turn = 0; turn < MOST_WANTED && wanted != NULL; turn++) {
      QUERN_TRY(materialize(f, (quern_tensor *)wanted));
      QUERN_TRY(fuse_extend_gemm(f, number, t, indices, joined, &wanted));
    }
    if (*joined) return set_home(f, number, t->node, indices);
  }
  return cluster->space->failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK;
}

/* On GPUs: rows of t that thread blocks cannot write, since what follows in a row of the cluster lies elsewhere. */
static bool lies_otherwise(const struct fuse *f, const struct fuse_cluster *cluster, const quern_tensor *t,
                           const struct pass_index *const *at) {
  int64_t coef[PASS_MOST_VARS], constant;
  bool gpu = f->options->target != NULL && f->options->target->gpu;
  if (!gpu || cluster->kind != PASS_KIND_REDUCE || cluster->n_vars > PASS_MOST_VARS) return false;
  if (!pass_index_affine(cluster->space, pass_index_flat(cluster->space, t->rank, t->dims, at), coef, &constant))
    return false;
  for (int v = cluster->n_outer; v + 1 < cluster->n_vars; v++)
    if (coef[v] != coef[v + 1] * cluster->space->extents.at[v + 1]) return true;
  return false;
}

/* Computes t in the cluster if a walk proves it can be, which *joined reports. */
static quern_status try_join(struct fuse *f, int number, const quern_tensor *t, bool *joined) {
  struct fuse_cluster *cluster = f->clusters.at[number];
  *joined = false;
  bool open = cluster->kind == PASS_KIND_MAP || cluster->kind == PASS_KIND_REDUCE || cluster->kind == PASS_KIND_DOT;
  if (!open || cluster->unfused || !has_room(cluster, fuse_info_of(f, t))) return QUERN_STATUS_OK;
  if (cluster->gemm != NULL) return try_extend(f, number, t, joined);
  const struct pass_index *tried[CANDIDATES][QUERN_MAX_RANK];
  for (int i = 0; i < CANDIDATES; i++) {
    const struct pass_index **at = tried[i];
    if (!candidate(f, number, t, i, at)) continue;
    enum pass_cover cover = pass_index_covers(cluster->space, cluster->n_vars, cluster->n_outer, t, at);
    if (cover == PASS_COVER_NONE || (cluster->wide && cover == PASS_COVER_ALL)) continue;
    if (cover == PASS_COVER_ALL && lies_otherwise(f, cluster, t, at)) continue;
    if (cluster->kind == PASS_KIND_DOT && cover == PASS_COVER_ALL && cluster->inner != 1) continue;
    struct fuse_walk walk = {.cluster = cluster, .number = number, .mode = FUSE_POINT};
    QUERN_TRY(walk_joining(f, &walk, t, at));
    if (!walk.fits || !fuse_can_follow(f, number)) continue;
    QUERN_TRY(fuse_commit(f, &walk));
    *joined = true;
    return set_home(f, number, t->node, at);
  }
  return cluster->space->failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK;
}

/* The clusters a node is computed from: those of its sources, the highest level first. */
static void gather_clusters(struct fuse *f, const struct ir_node *node, struct fuse_node_info *info) {
  info->n_clusters = 0;
  for (int i = 0; i < node->n_src; i++) {
    const struct fuse_node_info *from = fuse_info_of(f, node->src[i]);
    for (int k = 0; k < from->n_clusters; k++) {
      int cluster = from->clusters[k], at = info->n_clusters;
      bool known = false;
      for (int j = 0; j < info->n_clusters; j++) known = known || info->clusters[j] == cluster;
      if (known) continue;
      while (at > 0 && f->clusters.at[info->clusters[at - 1]]->level < f->clusters.at[cluster]->level) at--;
      if (at == FUSE_MOST_CLUSTERS) continue;
      info->n_clusters = BASE_MIN(info->n_clusters + 1, FUSE_MOST_CLUSTERS);
      for (int j = info->n_clusters - 1; j > at; j--) info->clusters[j] = info->clusters[j - 1];
      info->clusters[at] = cluster;
    }
  }
}

/* Tries the clusters that t is computed from. */
static quern_status try_clusters(struct fuse *f, const quern_tensor *t, bool *joined) {
  const struct fuse_node_info *info = fuse_info_of(f, t);
  *joined = false;
  int clusters[FUSE_MOST_CLUSTERS], n = info->n_clusters;
  for (int i = 0; i < n; i++) clusters[i] = info->clusters[i];
  for (int i = 0; i < n && !*joined; i++) QUERN_TRY(try_join(f, clusters[i], t, joined));
  return QUERN_STATUS_OK;
}

/* ---- what must be in memory -------------------------------------------------------------------------------------- */

/* Makes everything that a walk could not compute in place lie in memory. */
static quern_status yield_to(struct fuse *f, const struct fuse_walk *walk, const struct ir_node *node) {
  if (walk->force >= 0) return materialize(f, &f->order.at[walk->force]->out[0]);
  for (int i = 0; i < node->n_src; i++) QUERN_TRY(materialize(f, node->src[i]));
  return QUERN_STATUS_OK;
}

/* Walks from t in a new cluster until everything fits, making things lie in memory. */
static quern_status walk_new(struct fuse *f, struct fuse_walk *walk, const quern_tensor *t,
                             const struct pass_index *const *at) {
  for (int turn = 0; turn < 4 * PASS_MOST_NODES; turn++) {
    begin(f);
    QUERN_TRY(fuse_walk(f, walk, t, at));
    if (walk->fits) return QUERN_STATUS_OK;
    QUERN_TRY(yield_to(f, walk, t->node));
  }
  return base_error(QUERN_STATUS_INTERNAL, "fuse: %s cannot be computed anywhere", ir_ops[t->node->op].name);
}

/* The last cluster of that kind and as many points that reads t, when that is much of what the cluster reads; -1:
** none. */
static int last_reader(const struct fuse *f, const struct fuse_cluster *cluster, const quern_tensor *t) {
  const struct fuse_node_info *info = fuse_info_of(f, t);
  int other = cluster->kind == PASS_KIND_MAP ? info->last_map : cluster->column ? info->last_column : info->last_row;
  if (other < 0 || 2 * ir_count(t) < cluster->outer * cluster->inner) return -1;
  const struct fuse_cluster *u = f->clusters.at[other];
  return u->outer == cluster->outer && u->inner == cluster->inner ? other : -1;
}

/* A cluster that reads what the last walk read, or what that is computed from; -1: none. */
static int find_sibling(const struct fuse *f, const struct fuse_cluster *cluster) {
  for (size_t i = 0; i < f->reads.n; i++) {
    const quern_tensor *t = f->reads.at[i];
    int other = last_reader(f, cluster, t);
    bool computed = pass_ops[t->node->op].class == PASS_CLASS_MATH || pass_ops[t->node->op].class == PASS_CLASS_MOVE;
    for (int k = 0; computed && other < 0 && k < BASE_MIN(t->node->n_src, 3); k++) {
      const quern_tensor *src = t->node->src[k];
      while (pass_is_view(src->node) && fuse_info_of(f, src)->home < 0) src = src->node->src[0];
      other = last_reader(f, cluster, src);
    }
    if (other >= 0) return other;
  }
  return -1;
}

static void drop_last_unit(struct fuse *f) { free_cluster(f, f->clusters.at[--f->clusters.n]); }

/* True when every dim of t is a product of neighboring dims of x. */
static bool is_finer(const quern_tensor *x, const quern_tensor *t) {
  int k = 0;
  for (int i = 0; i < t->rank; i++) {
    int64_t dim = 1;
    while (k < x->rank && dim < t->dims[i]) dim *= x->dims[k++];
    if (dim != t->dims[i]) return false;
  }
  while (k < x->rank && x->dims[k] == 1) k++;
  return k == x->rank;
}

/* t, or what t is a reshape of, when that has finer dims: its variables then need no divisions. */
static const quern_tensor *finer(const struct fuse *f, const quern_tensor *t) {
  if (t->node->op != IR_RESHAPE || ir_count(t) == 0) return t;
  const quern_tensor *x = t->node->src[0];
  return fuse_info_of(f, x)->home < 0 && !pass_is_leaf(x->node) && is_finer(x, t) ? x : t;
}

static quern_status new_map(struct fuse *f, quern_tensor *t) {
  int number;
  QUERN_TRY(add_cluster(f, PASS_KIND_MAP, t->node, &number));
  struct fuse_cluster *cluster = f->clusters.at[number];
  const struct pass_index *at[QUERN_MAX_RANK];
  const quern_tensor *like = finer(f, t);
  const struct pass_index *like_at[QUERN_MAX_RANK];
  add_vars(cluster->space, like->rank, like->dims, like_at);
  reshaped(cluster->space, like, like_at, t, at);
  QUERN_TRY(finish_space(f, cluster, like->rank, like, like_at));
  struct fuse_walk walk = {.cluster = cluster, .number = number, .mode = FUSE_POINT};
  QUERN_TRY(walk_new(f, &walk, t, at));
  int sibling = fusing(f, t->node) && number == (int)f->clusters.n - 1 ? find_sibling(f, cluster) : -1;
  if (sibling >= 0) {
    bool joined;
    QUERN_TRY(try_join(f, sibling, t, &joined));
    if (joined) {
      drop_last_unit(f);
      return QUERN_STATUS_OK;
    }
    QUERN_TRY(walk_new(f, &walk, t, at));
  }
  QUERN_TRY(commit_new(f, &walk));
  return set_home(f, number, t->node, at);
}

/* t is the bytes of something in memory, or NULL. */
static quern_tensor *base_of_view(const struct fuse *f, quern_tensor *t) {
  while (pass_is_view(t->node) && fuse_info_of(f, t)->home < 0) t = t->node->src[0];
  return pass_is_given(t) || fuse_info_of(f, t)->home >= 0 ? t : NULL;
}

static quern_status new_view(struct fuse *f, quern_tensor *t, quern_tensor *base) {
  int number;
  QUERN_TRY(add_cluster(f, PASS_KIND_VIEW, t->node, &number));
  const struct fuse_node_info *info = fuse_info_of(f, base);
  begin(f);
  if (!base_vec_push(f->heap, &f->reads, base)) return QUERN_STATUS_MEMORY;
  if (info->home >= 0 && !base_vec_push(f->heap, &f->before, info->home)) return QUERN_STATUS_MEMORY;
  QUERN_TRY(
      commit_new(f, &(struct fuse_walk){.cluster = f->clusters.at[number], .number = number, .mode = FUSE_ALONE}));
  return set_home(f, number, t->node, NULL);
}

/* Gives t a home, unless it has one or is a leaf. */
static quern_status materialize(struct fuse *f, quern_tensor *t) {
  if (pass_is_leaf(t->node) || fuse_info_of(f, t)->home >= 0) return QUERN_STATUS_OK;
  bool joined = false;
  if (fusing(f, t->node)) QUERN_TRY(try_clusters(f, t, &joined));
  if (joined) return QUERN_STATUS_OK;
  quern_tensor *base = pass_is_view(t->node) ? base_of_view(f, t) : NULL;
  return base != NULL && base != t ? new_view(f, t, base) : new_map(f, t);
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

static unsigned reduced_axes(const struct ir_node *node) {
  unsigned set = 0;
  if (node->op == IR_ARGREDUCE) return 1u << node->attrs->axis;
  for (int i = 0; i < node->attrs->axes.n; i++) set |= 1u << node->attrs->axes.at[i];
  return set;
}

/* The items of `from` whose axes are (or are not) among those of set. */
static int pick(unsigned set, bool in, int rank, const int64_t *dims, const struct pass_index *const *at,
                int64_t *picked_dims, const struct pass_index **picked) {
  int n = 0;
  for (int k = 0; k < rank; k++) {
    if ((set >> k & 1) != (in ? 1u : 0u)) continue;
    if (dims != NULL) picked_dims[n] = dims[k];
    if (at != NULL) picked[n] = at[k];
    n++;
  }
  return n;
}

/* Where the source of a reduction is read when its rows are those of the cluster. */
static void row_indices(const struct fuse_cluster *cluster, const struct ir_node *node, const struct pass_index **at) {
  const quern_tensor *s = node->src[0];
  unsigned set = reduced_axes(node);
  for (int in = 0; in < 2; in++) {
    int64_t dims[QUERN_MAX_RANK];
    const struct pass_index *part[QUERN_MAX_RANK];
    int n = pick(set, in != 0, s->rank, s->dims, NULL, dims, NULL);
    pass_index_unflat(cluster->space, in != 0 ? cluster->flat_inner : cluster->flat_outer, n, dims, part);
    for (int k = 0, i = 0; k < s->rank; k++)
      if ((set >> k & 1) == (unsigned)in) at[k] = part[i++];
  }
}

/* True when a reduction of its source at `at` is one over the inner variables, in their order; result: its indices. */
static bool is_stage(const struct fuse_cluster *cluster, const struct ir_node *node, const struct pass_index *const *at,
                     const struct pass_index **result) {
  const quern_tensor *s = node->src[0];
  unsigned set = reduced_axes(node);
  int64_t dims[QUERN_MAX_RANK];
  const struct pass_index *inner[QUERN_MAX_RANK];
  int n = pick(set, true, s->rank, s->dims, at, dims, inner);
  if (pass_index_flat(cluster->space, n, dims, inner) != cluster->flat_inner) return false;
  pick(set, false, s->rank, s->dims, at, dims, result);
  enum pass_cover cover = pass_index_covers(cluster->space, cluster->n_vars, cluster->n_outer, &node->out[0], result);
  return cover == PASS_COVER_OUTER || (cover == PASS_COVER_ALL && cluster->inner == 1);
}

static quern_status add_stage(struct fuse *f, int number, struct ir_node *node, const struct pass_index *const *at,
                              const struct pass_index *const *result) {
  struct fuse_cluster *cluster = f->clusters.at[number];
  struct fuse_stage stage = {.node = node, .source = keep(f, node->src[0]->rank, at)};
  stage.result = keep(f, node->out[0].rank, result);
  if (stage.source == NULL || stage.result == NULL || !base_vec_push(f->heap, &cluster->stages, stage))
    return QUERN_STATUS_MEMORY;
  cluster->size++;
  return set_home(f, number, node, result);
}

static bool is_plain_order(const struct fuse_cluster *cluster, int rank, const struct pass_index *const *at) {
  int64_t coef[PASS_MOST_VARS], constant;
  for (int k = 0; k < rank; k++)
    if (!pass_index_affine(cluster->space, at[k], coef, &constant)) return false;
  return true;
}

/* On GPUs a stage that runs over the row in another order than the others, by divisions, would leave thread blocks no way to read
** neighbors: it gets a kernel of its own. */
static bool is_other_order(const struct fuse *f, const struct fuse_cluster *cluster, const quern_tensor *s,
                           const struct pass_index *const *at) {
  if (f->options->target == NULL || !f->options->target->gpu || cluster->n_vars > PASS_MOST_VARS) return false;
  const struct fuse_stage *first = &cluster->stages.at[0];
  return is_plain_order(cluster, first->node->src[0]->rank, (const struct pass_index *const *)first->source) &&
         !is_plain_order(cluster, s->rank, at);
}

/* Makes the reduction a stage of a cluster when its rows are the cluster's. */
static quern_status join_stage(struct fuse *f, int number, struct ir_node *node, bool *joined) {
  struct fuse_cluster *cluster = f->clusters.at[number];
  const quern_tensor *s = node->src[0];
  *joined = false;
  if (cluster->kind != PASS_KIND_REDUCE || cluster->unfused || cluster->outer != ir_count(&node->out[0]) ||
      cluster->outer * cluster->inner != ir_count(s) || cluster->stages.n >= MOST_STAGES ||
      !has_room(cluster, fuse_info_of(f, s)))
    return QUERN_STATUS_OK;
  for (int i = 0; i < 2; i++) {
    const struct pass_index *at[QUERN_MAX_RANK], *result[QUERN_MAX_RANK];
    int left = FORWARD_STEPS;
    if (i == 0) row_indices(cluster, node, at);
    if (i == 1 && !forward(f, number, s, &left, at)) continue;
    if (!is_stage(cluster, node, at, result) || is_other_order(f, cluster, s, at)) continue;
    struct fuse_walk walk = {.cluster = cluster, .number = number, .mode = FUSE_POINT};
    QUERN_TRY(walk_joining(f, &walk, s, at));
    if (!walk.fits || (cluster->wide && walk.own) || !fuse_can_follow(f, number)) continue;
    QUERN_TRY(fuse_commit(f, &walk));
    *joined = true;
    return add_stage(f, number, node, at, result);
  }
  return cluster->space->failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK;
}

/* The fastest axis with more than one element is not reduced. */
static bool is_column(const struct ir_node *node) {
  const quern_tensor *s = node->src[0];
  for (int k = s->rank - 1; k >= 0; k--)
    if (s->dims[k] > 1) return (reduced_axes(node) >> k & 1) == 0;
  return false;
}

/* Reduced axes with others between them: elements of a row are no neighbors, as in groups of channels that lie last. */
static bool is_apart(const struct ir_node *node) {
  const quern_tensor *s = node->src[0];
  int runs = 0;
  bool last = false;
  for (int k = 0; k < s->rank; k++) {
    bool in = (reduced_axes(node) >> k & 1) != 0;
    if (s->dims[k] == 1) continue;
    runs += in && !last;
    last = in;
  }
  return runs > 1;
}

/* Few long rows: a pass over them is split among all threads of the device, and so is the next one only in a kernel of its own. On
** GPUs a thread block has a row, or a warp 32 columns; and thread blocks cannot write rows that lie apart. */
static bool is_wide(const struct fuse *f, const struct fuse_cluster *cluster, const struct ir_node *node) {
  enum { LONG_COLUMN = 256 };
  const struct base_target *target = f->options->target;
  if (target == NULL || !target->gpu) return cluster->outer < FEW_ROWS && cluster->inner > WIDE_ROW;
  int64_t columns = (int64_t)target->multiprocessors * target->max_threads_per_sm / 2;
  if (is_apart(node)) return true;
  return cluster->column ? cluster->inner > LONG_COLUMN && cluster->outer < columns
                         : cluster->inner > WIDE_ROW && cluster->outer < 2 * (int64_t)target->multiprocessors;
}

static quern_status new_reduce(struct fuse *f, struct ir_node *node) {
  int number;
  QUERN_TRY(add_cluster(f, PASS_KIND_REDUCE, node, &number));
  struct fuse_cluster *cluster = f->clusters.at[number];
  const quern_tensor *s = node->src[0];
  unsigned set = reduced_axes(node);
  const struct pass_index *at[QUERN_MAX_RANK], *result[QUERN_MAX_RANK];
  for (int in = 0; in < 2; in++) {
    for (int k = 0; k < s->rank; k++)
      if ((set >> k & 1) == (unsigned)in) add_vars(cluster->space, 1, &s->dims[k], &at[k]);
  }
  pick(set, false, s->rank, NULL, at, NULL, result);
  QUERN_TRY(finish_space(f, cluster, node->out[0].rank, s, at));
  cluster->column = is_column(node);
  cluster->wide = is_wide(f, cluster, node);
  struct fuse_walk walk = {.cluster = cluster, .number = number, .mode = fusing(f, node) ? FUSE_POINT : FUSE_ALONE};
  QUERN_TRY(walk_new(f, &walk, s, at));
  int sibling = fusing(f, node) && number == (int)f->clusters.n - 1 ? find_sibling(f, cluster) : -1;
  if (sibling >= 0) {
    bool joined;
    QUERN_TRY(join_stage(f, sibling, node, &joined));
    if (joined) {
      drop_last_unit(f);
      return QUERN_STATUS_OK;
    }
    QUERN_TRY(walk_new(f, &walk, s, at));
  }
  QUERN_TRY(commit_new(f, &walk));
  return add_stage(f, number, node, at, result);
}

/* A concatenation that has other users too is written once: each of its sources is read in its own way. */
static quern_status settle_clusters(struct fuse *f, const struct ir_node *node) {
  const quern_tensor *x = node->src[0];
  int users = 1;
  while (pass_is_view(x->node) && fuse_info_of(f, x)->home < 0) {
    users = BASE_MAX(users, fuse_info_of(f, x)->users);
    x = x->node->src[0];
  }
  users = BASE_MAX(users, fuse_info_of(f, x)->users);
  bool floats = x->node->op == IR_CONCAT && fuse_info_of(f, x)->home < 0;
  return floats && users > 1 ? materialize(f, node->src[0]) : QUERN_STATUS_OK;
}

static quern_status take_reduce(struct fuse *f, struct ir_node *node) {
  struct fuse_node_info *info = &f->infos[ir_order_find(&f->order, node)];
  bool joined = false;
  if (fusing(f, node)) QUERN_TRY(settle_clusters(f, node));
  gather_clusters(f, node, info);
  for (int i = 0; fusing(f, node) && i < info->n_clusters && !joined; i++)
    QUERN_TRY(join_stage(f, info->clusters[i], node, &joined));
  struct fuse_family *family = fuse_family_of(f, info);
  if (fusing(f, node) && !joined && family->cluster >= 0) QUERN_TRY(join_stage(f, family->cluster, node, &joined));
  if (!joined) QUERN_TRY(new_reduce(f, node));
  family->cluster = info->home;
  return QUERN_STATUS_OK;
}

/* ---- other anchors ----------------------------------------------------------------------------------------------- */

static bool is_listed(struct ir_ints axes, int64_t axis) {
  for (int i = 0; i < axes.n; i++)
    if (axes.at[i] == axis) return true;
  return false;
}

/* Walks from both operands until they fit, together. What a library cannot take is computed by generated code after
** all. */
static quern_status walk_operands(struct fuse *f, struct fuse_walk *walk, const struct ir_node *node,
                                  const struct pass_index *const at[2][QUERN_MAX_RANK]) {
  for (int turn = 0; turn < 4 * PASS_MOST_NODES; turn++) {
    int i = 0;
    begin(f);
    for (walk->fits = true; i < 2 && walk->fits; i += walk->fits ? 1 : 0) {
      walk->side = i;
      QUERN_TRY(fuse_walk(f, walk, node->src[i], at[i]));
    }
    if (walk->fits) return QUERN_STATUS_OK;
    if (walk->mode == FUSE_MATRIX && walk->force < 0 && !fuse_may_copy(f, walk, node)) {
      walk->mode = FUSE_OPERAND;
      walk->cluster->narrows = false;
      continue;
    }
    QUERN_TRY(materialize(f, walk->force >= 0 ? &f->order.at[walk->force]->out[0] : node->src[i]));
  }
  return base_error(QUERN_STATUS_INTERNAL, "fuse: the operands of a contraction cannot be read");
}

static quern_status new_dot(struct fuse *f, struct ir_node *node) {
  int number;
  QUERN_TRY(add_cluster(f, PASS_KIND_DOT, node, &number));
  struct fuse_cluster *cluster = f->clusters.at[number];
  const struct ir_attrs *attrs = node->attrs;
  struct ir_ints batch[2] = {attrs->a_batch, attrs->b_batch}, sum[2] = {attrs->a_sum, attrs->b_sum};
  const struct pass_index *at[2][QUERN_MAX_RANK], *result[QUERN_MAX_RANK];
  int rank = 0;
  for (int i = 0; i < batch[0].n; i++) {
    add_vars(cluster->space, 1, &node->src[0]->dims[batch[0].at[i]], &result[rank++]);
    at[0][batch[0].at[i]] = at[1][batch[1].at[i]] = result[rank - 1];
  }
  cluster->vars[0] = batch[0].n;
  for (int side = 0; side < 2; side++) {
    const quern_tensor *s = node->src[side];
    for (int k = 0; k < s->rank; k++) {
      if (is_listed(batch[side], k) || is_listed(sum[side], k)) continue;
      add_vars(cluster->space, 1, &s->dims[k], &result[rank++]);
      at[side][k] = result[rank - 1];
      cluster->vars[1 + side]++;
    }
  }
  for (int i = 0; i < sum[0].n; i++) {
    const struct pass_index *term;
    add_vars(cluster->space, 1, &node->src[0]->dims[sum[0].at[i]], &term);
    at[0][sum[0].at[i]] = at[1][sum[1].at[i]] = term;
  }
  cluster->vars[3] = sum[0].n;
  QUERN_TRY(finish_space(f, cluster, rank, &node->out[0], result));
  bool library = pass_is_gemm(f->options->target, node);
  struct fuse_walk walk = {.cluster = cluster, .number = number, .mode = library ? FUSE_MATRIX : FUSE_OPERAND};
  if (library) fuse_find_narrow(f, cluster, node);
  QUERN_TRY(walk_operands(f, &walk, node, (const struct pass_index *const(*)[QUERN_MAX_RANK])at));
  QUERN_TRY(commit_new(f, &walk));
  QUERN_TRY(add_stage(f, number, node, at[0], result));
  struct fuse_stage *stage = &cluster->stages.at[0];
  stage->other = keep(f, node->src[1]->rank, at[1]);
  if (stage->other == NULL) return QUERN_STATUS_MEMORY;
  return walk.mode == FUSE_MATRIX ? fuse_make_gemm(f, cluster) : QUERN_STATUS_OK;
}

static quern_status new_scan(struct fuse *f, struct ir_node *node) {
  int number;
  QUERN_TRY(add_cluster(f, PASS_KIND_SCAN, node, &number));
  struct fuse_cluster *cluster = f->clusters.at[number];
  const quern_tensor *y = &node->out[0];
  const struct pass_index *at[QUERN_MAX_RANK];
  add_vars(cluster->space, y->rank, y->dims, at);
  QUERN_TRY(finish_space(f, cluster, y->rank, y, at));
  struct fuse_walk walk = {.cluster = cluster, .number = number, .mode = FUSE_ALONE};
  QUERN_TRY(walk_new(f, &walk, node->src[0], at));
  QUERN_TRY(commit_new(f, &walk));
  return set_home(f, number, node, at);
}

/* SORT, SCATTER, control and supported composites: all sources in memory, all results written. */
static quern_status new_alone(struct fuse *f, struct ir_node *node) {
  int number;
  for (int i = 0; i < node->n_src; i++) QUERN_TRY(materialize(f, node->src[i]));
  QUERN_TRY(add_cluster(f, pass_ops[node->op].kind, node, &number));
  struct fuse_cluster *cluster = f->clusters.at[number];
  const struct pass_index *at[QUERN_MAX_RANK];
  bool plain = cluster->space != NULL;
  if (plain) {
    add_vars(cluster->space, node->out[0].rank, node->out[0].dims, at);
    QUERN_TRY(finish_space(f, cluster, node->out[0].rank, &node->out[0], at));
  }
  begin(f);
  for (int i = 0; i < node->n_src; i++) {
    const struct fuse_node_info *info = fuse_info_of(f, node->src[i]);
    if (!base_vec_push(f->heap, &f->reads, node->src[i])) return QUERN_STATUS_MEMORY;
    if (info->home >= 0 && !base_vec_push(f->heap, &f->before, info->home)) return QUERN_STATUS_MEMORY;
  }
  QUERN_TRY(commit_new(f, &(struct fuse_walk){.cluster = cluster, .number = number, .mode = FUSE_ALONE}));
  return set_home(f, number, node, plain ? at : NULL);
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

/* Cost, nodes and reads of a node that floats. */
static void summarize(struct fuse *f, const struct ir_node *node, struct fuse_node_info *info) {
  int64_t work = pass_ops[node->op].cost, size = 1, reads = 0;
  for (int i = 0; i < node->n_src; i++) {
    const struct fuse_node_info *from = fuse_info_of(f, node->src[i]);
    bool stored = pass_is_leaf(node->src[i]->node) || from->home >= 0;
    work += stored ? 0 : from->work;
    size += stored ? 0 : from->size;
    reads += stored ? 1 : from->reads;
  }
  info->work = (int)BASE_MIN(work, 1 << 20);
  info->size = (int)BASE_MIN(size, 1 << 20);
  info->reads = (int)BASE_MIN(reads, 1 << 20);
}

/* Ends what has grown too large to be computed in one place. */
static quern_status limit(struct fuse *f, struct ir_node *node, struct fuse_node_info *info) {
  const int most = PASS_MOST_NODES * 3 / 4;
  if (info->size <= most && info->reads <= PASS_MOST_READS) return QUERN_STATUS_OK;
  QUERN_TRY(fuse_measure(f, node, &info->size, &info->reads));
  if (info->size <= most && info->reads <= PASS_MOST_READS) return QUERN_STATUS_OK;
  if (info->size <= most) {
    quern_tensor *widest = NULL;
    for (int i = 0; i < node->n_src; i++) {
      const struct fuse_node_info *from = fuse_info_of(f, node->src[i]);
      bool stored = pass_is_leaf(node->src[i]->node) || from->home >= 0;
      if (!stored && (widest == NULL || from->reads > fuse_info_of(f, widest)->reads)) widest = node->src[i];
    }
    if (widest != NULL) QUERN_TRY(materialize(f, widest));
    QUERN_TRY(fuse_measure(f, node, &info->size, &info->reads));
    if (info->reads <= PASS_MOST_READS) return QUERN_STATUS_OK;
  }
  return materialize(f, &node->out[0]);
}

/* What is stretched or seen through windows would be computed again and again: it is computed before, if that costs. */
static quern_status need_source(struct fuse *f, const struct ir_node *node) {
  const quern_tensor *y = &node->out[0];
  quern_tensor *x = node->src[0];
  int64_t copies = ir_count(y) / BASE_MAX(ir_count(x), 1);
  while (fuse_info_of(f, x)->home < 0 && pass_ops[x->node->op].class == PASS_CLASS_MOVE && x->node->n_src == 1)
    x = x->node->src[0];
  const struct fuse_node_info *info = fuse_info_of(f, x);
  if (pass_is_leaf(x->node) || info->home >= 0 || copies < 2 || ir_count(x) <= 1) return QUERN_STATUS_OK;
  return info->work > (node->op == IR_WINDOW ? 2 : PASS_CHEAP) ? materialize(f, x) : QUERN_STATUS_OK;
}

static quern_status take_point(struct fuse *f, struct ir_node *node, struct fuse_node_info *info) {
  for (int i = 0; i < node->n_src; i++) {
    if (pass_needs_memory(node, i)) QUERN_TRY(materialize(f, node->src[i]));
  }
  if (node->op == IR_BROADCAST || node->op == IR_WINDOW) QUERN_TRY(need_source(f, node));
  gather_clusters(f, node, info);
  summarize(f, node, info);
  bool joined = false;
  if (pass_ops[node->op].class == PASS_CLASS_MATH) {
    if (!fusing(f, node)) return node->op == IR_CAST ? limit(f, node, info) : new_map(f, &node->out[0]);
    if (pass_is_widening(node)) return limit(f, node, info); /* its source is fewer bytes to keep */
    QUERN_TRY(try_clusters(f, &node->out[0], &joined));
  }
  return joined ? QUERN_STATUS_OK : limit(f, node, info);
}

/* A checkpoint is written by whoever computes it, and read from there: a CHECKPOINT is a view, and a barrier to
** fusion. */
static quern_status take_checkpoint(struct fuse *f, struct ir_node *node) {
  QUERN_TRY(materialize(f, node->src[0]));
  return new_view(f, &node->out[0], node->src[0]);
}

static quern_status take(struct fuse *f, size_t place) {
  struct ir_node *node = f->order.at[place];
  const struct pass_op *op = &pass_ops[node->op];
  if (op->class == PASS_CLASS_LEAF) return QUERN_STATUS_OK;
  if (node->op == IR_CHECKPOINT) return take_checkpoint(f, node);
  if (op->class != PASS_CLASS_ANCHOR) return take_point(f, node, &f->infos[place]);
  switch ((int)op->kind) {
  case PASS_KIND_REDUCE: return take_reduce(f, node);
  case PASS_KIND_DOT: return new_dot(f, node);
  case PASS_KIND_SCAN: return new_scan(f, node);
  default: return new_alone(f, node);
  }
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static quern_status fuse_all(struct fuse *f) {
  int *users;
  QUERN_TRY(ir_topo(f->ctx, f->graph->n_roots, f->graph->roots, &f->order));
  QUERN_TRY(pass_count_users(f->graph, &f->order, &users));
  f->infos = base_alloc_zero(f->heap, f->order.n * sizeof *f->infos);
  for (size_t i = 0; i < f->order.n && f->infos != NULL; i++)
    f->infos[i] = (struct fuse_node_info){
        .home = -1, .users = users[i], .last_map = -1, .last_row = -1, .last_column = -1, .family = -1};
  base_free(f->heap, users, f->order.n * sizeof *users);
  if (f->infos == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < f->options->n_unfused; i++)
    if (f->options->unfused[i] < f->order.n) f->infos[f->options->unfused[i]].unfused = true;
  for (size_t i = 0; i < f->graph->n_roots; i++) fuse_info_of(f, f->graph->roots[i])->root = true;
  QUERN_TRY(fuse_find_families(f));
  for (size_t i = 0; i < f->order.n; i++) QUERN_TRY(take(f, i));
  for (size_t i = f->order.n; i-- > 0;) { /* the last first: what they are computed from is then written on the way */
    if (f->infos[i].root) QUERN_TRY(materialize(f, &f->order.at[i]->out[0]));
  }
  if (f->options->on[PASS_FUSE]) QUERN_TRY(fuse_column_reductions(f));
  return fuse_build(f);
}

quern_status pass_fuse(struct pass_groups *groups, const struct pass_graph *graph, const struct pass_options *options) {
  quern_context *ctx = graph->ctx;
  *groups = (struct pass_groups){.heap = &ctx->heap};
  base_arena_init(&groups->arena, &ctx->heap);
  struct fuse f = {.ctx = ctx, .heap = &ctx->heap, .graph = graph, .options = options, .groups = groups};
  double start = base_clock();
  quern_status status = fuse_all(&f);
  base_log(1, "pass %-9s %7zu nodes became %7zu groups in %.3f ms", pass_table[PASS_FUSE].name, f.order.n,
           groups->groups.n, (base_clock() - start) * 1e3);
  for (size_t i = 0; i < f.clusters.n; i++) free_cluster(&f, f.clusters.at[i]);
  base_vec_fini(f.heap, &f.clusters);
  base_vec_fini(f.heap, &f.families);
  base_vec_fini(f.heap, &f.visits);
  base_vec_fini(f.heap, &f.indices);
  base_vec_fini(f.heap, &f.reads);
  base_vec_fini(f.heap, &f.before);
  base_vec_fini(f.heap, &f.stack);
  base_vec_fini(f.heap, &f.pending);
  base_free(f.heap, f.infos, f.order.n * sizeof *f.infos);
  ir_order_fini(ctx, &f.order);
  if (status != QUERN_STATUS_OK) pass_groups_fini(groups);
  return status;
}

size_t pass_group_find(const struct pass_group *group, const struct ir_node *node) {
  size_t lo = 0, hi = group->n_nodes;
  while (lo < hi) {
    size_t mid = lo + (hi - lo) / 2;
    if (group->nodes[mid]->id < node->id)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo < group->n_nodes && group->nodes[lo] == node ? lo : group->n_nodes;
}

void pass_groups_fini(struct pass_groups *groups) {
  if (groups->heap == NULL) return;
  for (size_t i = 0; i < groups->groups.n; i++) pass_space_free(groups->groups.at[i]->space);
  base_vec_fini(groups->heap, &groups->groups);
  base_arena_fini(&groups->arena);
  *groups = (struct pass_groups){0};
}
