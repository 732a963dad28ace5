/* pass/fusion_walk.c -- fusion: can this be computed at the points of that cluster?
** A walk follows index expressions from a tensor at given indices down to what is in memory or already known in the
** cluster. What a cluster computes for others is known at exactly one index expression per element (its home); the same
** pointer means the same element.
** in:    a cluster, a tensor, indices            out: nodes met and where, tensors read, clusters they come from
** tests: tests/pass/test_fuse.c
*/
#include "pass/pass_int.h"

static quern_status push(struct fuse *f, size_t visit) {
  return base_vec_push(f->heap, &f->pending, (int)visit) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static quern_status note_read(struct fuse *f, const quern_tensor *t) {
  for (size_t i = 0; i < f->reads.n; i++)
    if (f->reads.at[i] == t) return QUERN_STATUS_OK;
  return base_vec_push(f->heap, &f->reads, t) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static quern_status note_before(struct fuse *f, int cluster) {
  for (size_t i = 0; i < f->before.n; i++)
    if (f->before.at[i] == cluster) return QUERN_STATUS_OK;
  return base_vec_push(f->heap, &f->before, cluster) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static bool same_indices(int rank, const struct pass_index *const *a, const struct pass_index *const *b) {
  return rank == 0 || memcmp(a, b, (size_t)rank * sizeof *a) == 0;
}

/* Affine, as far as pads allow; spread: also where these have padding between elements. */
static bool is_plain(const struct pass_index *e, bool spread) {
  for (int i = 0; i < e->n_terms; i++) {
    const struct pass_atom *atom = e->terms[i].atom;
    bool between = spread && atom->kind == PASS_ATOM_DIV;
    if ((atom->kind == PASS_ATOM_DIV && !spread) || atom->kind == PASS_ATOM_MOD) return false;
    if ((atom->kind == PASS_ATOM_CLAMP || between) && !is_plain(atom->of, spread && !between)) return false;
  }
  return true;
}

/* True when the operand is windows of a pad: the kernel then copies what is padded, with what is between the elements. */
static bool has_padded_windows(const struct fuse *f, const struct fuse_walk *walk) {
  const struct base_target *target = f->options->target;
  const quern_tensor *t = walk->cluster->anchor->src[walk->side];
  if (target != NULL && target->gpu) return false;
  while (pass_is_plain_movement(t->node) && t->node->op != IR_WINDOW) t = t->node->src[0];
  return t->node->op == IR_WINDOW && t->node->src[0]->node->op == IR_PAD;
}

static void force(struct fuse_walk *walk, ptrdiff_t place) {
  walk->fits = false;
  if (walk->force < 0) walk->force = place;
}

/* Casts that are made again wherever they are read: to a wider dtype, or of what lies in memory all the time. */
static bool is_cast_again(const struct ir_node *node) {
  if (pass_is_widening(node)) return true;
  while (node->op == IR_CAST && node->src[0]->node->op == IR_CAST) node = node->src[0]->node;
  return node->op == IR_CAST && pass_is_given(node->src[0]) && node->src[0]->node->op != IR_CONST;
}

/* What is in memory, or must be, as an operand of a library. */
static void classify_matrix(struct fuse_walk *walk, const quern_tensor *t, const struct pass_index *const *at) {
  struct pass_matrix matrix;
  if (fuse_operand(walk->cluster, t, at, walk->side, &matrix)) return;
  walk->fits = false;
  walk->force = -1;
  walk->blocker = t;
}

/* What a node that nobody holds must be like to be computed here, at `at`. */
static void classify_read(struct fuse *f, struct fuse_walk *walk, ptrdiff_t place, const struct pass_index *const *at,
                          bool again) {
  const struct fuse_node_info *info = &f->infos[place];
  const struct ir_node *node = f->order.at[place];
  const struct pass_op *op = &pass_ops[node->op];
  const struct fuse_cluster *cluster = walk->cluster;
  bool wanted = info->users > 1 && info->work > PASS_CHEAP;
  if (walk->mode == FUSE_OPERAND) {
    bool shared = info->users > 1 && !is_cast_again(node);
    if (op->class == PASS_CLASS_MATH && (op->cost > 1 || info->work > 4 || shared)) force(walk, place);
    if (node->op == IR_CONCAT) force(walk, place);
    return;
  }
  if (walk->mode == FUSE_MATRIX) {
    if (pass_is_plain_movement(node) || fuse_is_narrowing_read(walk->cluster, node)) return;
    classify_matrix(walk, &node->out[0], at);
    if (walk->fits) force(walk, place);
    return;
  }
  if (op->class != PASS_CLASS_MATH) return;
  if (again && info->work > PASS_CHEAP) force(walk, place);
  if (!wanted) return;
  enum pass_cover cover = pass_index_covers(cluster->space, cluster->n_vars, cluster->n_outer, &node->out[0], at);
  bool after = false; /* it is computed from the cluster's own rows */
  for (int i = 0; i < info->n_clusters; i++) after = after || info->clusters[i] == walk->number;
  if (walk->mode == FUSE_ALONE || cover == PASS_COVER_NONE || (cluster->column && cover == PASS_COVER_ALL && !after))
    force(walk, place);
}

/* A tensor that is wanted at indices[first ..]: read, known, or to be computed by a visit. */
static quern_status meet(struct fuse *f, struct fuse_walk *walk, const quern_tensor *t, size_t first, bool scalar) {
  const struct pass_index *const *at = f->indices.at + first;
  ptrdiff_t place = ir_order_find(&f->order, t->node);
  struct fuse_node_info *info = &f->infos[place];
  bool leaf = pass_is_leaf(t->node),
       through = walk->mode == FUSE_MATRIX && fuse_is_narrowing_read(walk->cluster, t->node);
  if (leaf || (info->home >= 0 && !through)) {
    if (!leaf && info->home == walk->number) {
      walk->own = true;
      if (info->is_column_reduction || !same_indices(t->rank, info->at, at) ||
          (scalar && walk->cluster->kind != PASS_KIND_MAP))
        walk->fits = false;
      return QUERN_STATUS_OK;
    }
    if (walk->mode == FUSE_MATRIX) {
      classify_matrix(walk, t, at);
      if (leaf && !pass_is_given(t)) walk->fits = false; /* a number */
    }
    if (leaf && !pass_is_given(t)) return QUERN_STATUS_OK;
    if (walk->mode == FUSE_OPERAND) {
      const struct pass_index *flat = pass_index_flat(walk->cluster->space, t->rank, t->dims, at);
      bool plain = is_plain(flat, false) || (has_padded_windows(f, walk) && is_plain(flat, true));
      if (!plain) walk->fits = false; /* and the whole operand is copied */
    }
    if (!leaf) QUERN_TRY(note_before(f, info->home));
    return note_read(f, t);
  }
  int visit = info->epoch == f->epoch ? info->visit : -1;
  for (; visit >= 0; visit = f->visits.at[visit].next) {
    if (!same_indices(t->rank, f->indices.at + f->visits.at[visit].at, at)) continue;
    if (!scalar || f->visits.at[visit].scalar) return QUERN_STATUS_OK;
    f->visits.at[visit].scalar = true; /* what it is made of is looked at again */
    return push(f, (size_t)visit);
  }
  bool again = info->epoch == f->epoch;
  struct fuse_visit made = {(uint32_t)place, again ? info->visit : -1, first, scalar};
  if (!base_vec_push(f->heap, &f->visits, made)) return QUERN_STATUS_MEMORY;
  info->epoch = f->epoch;
  info->visit = (int)f->visits.n - 1;
  classify_read(f, walk, place, at, again);
  return push(f, f->visits.n - 1);
}

/* Meets the sources of a visited node. */
static quern_status visit_sources(struct fuse *f, struct fuse_walk *walk, int visit) {
  const struct fuse_visit v = f->visits.at[visit];
  const struct ir_node *node = f->order.at[v.position];
  walk->concat_sources += node->op == IR_CONCAT ? node->n_src : 0;
  if (walk->concat_sources > PASS_MOST_NODES) {
    bool inner = walk->concat_sources > node->n_src; /* not the one that the walk begins with */
    walk->fits = false;
    walk->force = inner && walk->mode != FUSE_MATRIX ? (ptrdiff_t)v.position : -1;
    return QUERN_STATUS_OK;
  }
  for (int i = 0; i < node->n_src && walk->fits; i++) {
    const quern_tensor *src = node->src[i];
    size_t first = f->indices.n;
    if (pass_needs_memory(node, i)) {
      const struct fuse_node_info *info = fuse_info_of(f, src);
      if (info->home == walk->number) walk->fits = false;
      if (info->home >= 0) QUERN_TRY(note_before(f, info->home));
      QUERN_TRY(note_read(f, src));
      continue;
    }
    if (!base_vec_reserve(f->heap, &f->indices, QUERN_MAX_RANK)) return QUERN_STATUS_MEMORY;
    bool known = pass_index_of_source(walk->cluster->space, node, i, f->indices.at + v.at, f->indices.at + first);
    QUERN_CHECK(known, INTERNAL, "fuse: no index for a source of %s", ir_ops[node->op].name);
    f->indices.n += (size_t)src->rank;
    QUERN_TRY(meet(f, walk, src, first, v.scalar || pass_is_number(node, i)));
  }
  return QUERN_STATUS_OK;
}

quern_status fuse_walk(struct fuse *f, struct fuse_walk *walk, const quern_tensor *t,
                       const struct pass_index *const *at) {
  walk->fits = true;
  walk->own = false;
  walk->force = -1;
  walk->concat_sources = 0;
  if (!base_vec_reserve(f->heap, &f->indices, QUERN_MAX_RANK)) return QUERN_STATUS_MEMORY;
  size_t first = f->indices.n, done = f->pending.n;
  for (int k = 0; k < t->rank; k++) f->indices.at[f->indices.n++] = at[k];
  QUERN_TRY(meet(f, walk, t, first, false));
  while (f->pending.n > done && walk->fits) {
    if (f->visits.n > 4 * PASS_MOST_NODES) walk->fits = false;
    QUERN_TRY(visit_sources(f, walk, f->pending.at[--f->pending.n]));
  }
  f->pending.n = done;
  return walk->cluster->space->failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK;
}

quern_status fuse_measure(struct fuse *f, const struct ir_node *node, int *size, int *reads) {
  f->epoch++;
  f->pending.n = f->reads.n = 0;
  *size = 0;
  QUERN_TRY(push(f, (size_t)ir_order_find(&f->order, node)));
  while (f->pending.n > 0 && *size <= PASS_MOST_NODES) {
    const struct ir_node *at = f->order.at[f->pending.at[--f->pending.n]];
    ++*size;
    for (int i = 0; i < at->n_src; i++) {
      ptrdiff_t place = ir_order_find(&f->order, at->src[i]->node);
      struct fuse_node_info *info = &f->infos[place];
      if (pass_is_leaf(at->src[i]->node) || info->home >= 0) {
        if (info->home >= 0 || pass_is_given(at->src[i])) QUERN_TRY(note_read(f, at->src[i]));
      } else if (info->epoch != f->epoch) {
        info->epoch = f->epoch;
        info->visit = -1;
        QUERN_TRY(push(f, (size_t)place));
      }
    }
  }
  *reads = (int)f->reads.n;
  return QUERN_STATUS_OK;
}

/* ---- order of clusters ------------------------------------------------------------------------------------------- */

enum { MOST_RAISED = 512, MOST_RISE = 2 };

static bool is_before(const struct fuse *f, int cluster) {
  for (size_t i = 0; i < f->before.n; i++)
    if (f->before.at[i] == cluster) return true;
  return false;
}

/* Levels of the cluster, and of all that follow it, as they would be; false when one of those it reads from follows it,
** or when it would have to wait for much later ones: what it reads would be kept for long. */
bool fuse_can_follow(struct fuse *f, int cluster) {
  struct fuse_cluster *u = f->clusters.at[cluster];
  int level = u->level;
  if (is_before(f, cluster)) return false;
  for (size_t i = 0; i < f->before.n; i++) level = BASE_MAX(level, f->clusters.at[f->before.at[i]]->level + 1);
  if (level > u->level + MOST_RISE && (u->size > 0 || u->reads.n > 0)) return false;
  u->raised = level;
  f->stack.n = 0;
  if (!base_vec_push(f->heap, &f->stack, cluster)) return false;
  if (level == u->level) return true;
  f->epoch++;
  for (size_t next = 0; next < f->stack.n; next++) {
    struct fuse_cluster *from = f->clusters.at[f->stack.at[next]];
    for (size_t i = 0; i < from->readers.n; i++) {
      int k = from->readers.at[i];
      struct fuse_cluster *to = f->clusters.at[k];
      int now = to->epoch == f->epoch ? to->raised : to->level;
      if (now > from->raised) continue;
      if (is_before(f, k) || f->stack.n >= MOST_RAISED || !base_vec_push(f->heap, &f->stack, k)) return false;
      to->epoch = f->epoch;
      to->raised = from->raised + 1;
    }
  }
  return true;
}

/* Does what fuse_can_follow found possible. */
static quern_status follow(struct fuse *f, int cluster) {
  for (size_t i = 0; i < f->stack.n; i++)
    f->clusters.at[f->stack.at[i]]->level = f->clusters.at[f->stack.at[i]]->raised;
  for (size_t i = 0; i < f->before.n; i++) {
    struct fuse_cluster *from = f->clusters.at[f->before.at[i]];
    if (from->readers.n > 0 && from->readers.at[from->readers.n - 1] == cluster) continue;
    if (!base_vec_push(f->heap, &from->readers, cluster)) return QUERN_STATUS_MEMORY;
  }
  return QUERN_STATUS_OK;
}

/* ---- taking over ------------------------------------------------------------------------------------------------- */

quern_status fuse_commit(struct fuse *f, const struct fuse_walk *walk) {
  struct fuse_cluster *cluster = walk->cluster;
  QUERN_TRY(follow(f, walk->number));
  for (size_t i = 0; i < f->reads.n; i++) {
    const quern_tensor *t = f->reads.at[i];
    struct fuse_node_info *info = fuse_info_of(f, t);
    if (cluster->kind == PASS_KIND_MAP) info->last_map = walk->number;
    if (cluster->kind == PASS_KIND_REDUCE) *(cluster->column ? &info->last_column : &info->last_row) = walk->number;
    bool known = false;
    for (size_t k = 0; k < cluster->reads.n && !known; k++) known = cluster->reads.at[k] == t;
    if (!known && !base_vec_push(f->heap, &cluster->reads, t)) return QUERN_STATUS_MEMORY;
  }
  for (size_t i = 0; i < f->visits.n; i++)
    cluster->size += pass_ops[f->order.at[f->visits.at[i].position]->op].class == PASS_CLASS_MATH ? 1 : 0;
  if (walk->mode != FUSE_POINT) return QUERN_STATUS_OK;
  for (size_t i = 0; i < f->visits.n; i++) {
    const struct fuse_visit *visit = &f->visits.at[i];
    struct fuse_node_info *info = &f->infos[visit->position];
    const struct ir_node *node = f->order.at[visit->position];
    if (info->home >= 0 || pass_ops[node->op].class != PASS_CLASS_MATH) continue;
    if (!info->root && !(info->users > 1 && info->work > PASS_CHEAP)) continue;
    const struct pass_index *const *at = f->indices.at + visit->at;
    if (pass_index_covers(cluster->space, cluster->n_vars, cluster->n_outer, &node->out[0], at) == PASS_COVER_NONE)
      continue;
    info->at = base_arena_copy(&f->groups->arena, at, (size_t)node->out[0].rank * sizeof *at);
    if (info->at == NULL) return QUERN_STATUS_MEMORY;
    info->home = walk->number;
    info->n_clusters = 1;
    info->clusters[0] = walk->number;
    cluster->n_roots += info->root ? 1 : 0;
  }
  return cluster->space != NULL && cluster->space->failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK;
}
