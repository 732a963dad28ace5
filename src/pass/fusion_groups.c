/* pass/fusion_groups.c -- fusion: from clusters to groups, once every root has a home
** From the last cluster to the first it is decided what is written: what roots and later clusters read of it. What
** another cluster computed may be recomputed instead of read, when that is cheap and what it needs is in memory anyway
** (or is much smaller): so a backward pass recomputes a normalized row from its input and two numbers. What is made of
** a tensor of half its bytes or less may cost more: so a step of 16-bit activations keeps these in memory, and no f32.
** in:    clusters and homes                      out: groups in an order that runs
** keeps: a cluster reads from clusters of lower level only
** tests: tests/pass/test_fuse.c, tests/pass/test_groups.c
*/
#include <math.h>

#include "pass/pass_int.h"

enum { MOST_AGAIN = 12, MOST_NARROW = 48, NARROW_COST = 96, MOST_PARTS = 64 };
enum { COMPUTED, READ }; /* what a visited info is in the group being built */

struct build {
  struct fuse *f;
  struct fuse_cluster *cluster;
  int number;
  /* the numbers of sources of what is put together again here, multiplied: so often may a thing be computed */
  int parts;
  BASE_VEC(uint32_t) nodes; /* places of what is computed */
  BASE_VEC(const quern_tensor *) ins;
  BASE_VEC(uint32_t) pins;             /* places of what must be read */
  BASE_VEC(struct pass_group *) views; /* made of outs of clusters, by number of the cluster in order of making */
  BASE_VEC(int) view_units;
};

/* ---- who needs what ---------------------------------------------------------------------------------------------- */

static quern_status need(struct fuse *f, const quern_tensor *t) {
  ptrdiff_t place = ir_order_find(&f->order, t->node);
  struct fuse_node_info *info = &f->infos[place];
  if (pass_is_leaf(t->node) || info->needed) return QUERN_STATUS_OK;
  QUERN_CHECK(info->home >= 0, INTERNAL, "fuse: the result of %s is read from memory, but nothing writes it",
              ir_ops[t->node->op].name);
  info->needed = true;
  return base_vec_push(f->heap, &f->clusters.at[info->home]->needed, (uint32_t)place) ? QUERN_STATUS_OK
                                                                                      : QUERN_STATUS_MEMORY;
}

/* Guesses which tensors cross from one cluster to another. */
static void count_outside_users(struct fuse *f) {
  for (size_t i = 0; i < f->order.n; i++) {
    const struct ir_node *node = f->order.at[i];
    for (int k = 0; k < node->n_src; k++) {
      struct fuse_node_info *from = fuse_info_of(f, node->src[k]);
      if (from->home >= 0 && from->home != f->infos[i].home) from->outside_users++;
    }
    f->infos[i].outside_users += f->infos[i].root ? 1 : 0;
  }
}

static int level_of(const struct fuse *f, const struct fuse_node_info *info) {
  return f->clusters.at[info->home]->level;
}

/* Whether another cluster writes it if it is wanted. */
static bool is_offered(const struct fuse_node_info *info) { return info->home >= 0 && !info->inside; }

/* On GPUs: a mask of what windows show, such as which element is the largest. To look again reads no more than writing the mask and
** reading it would move, and a reduction over the windows then writes nothing of their size. */
static bool is_window_mask(const struct fuse *f, const quern_tensor *t) {
  if (t->dtype != QUERN_DTYPE_BOOL || f->options->target == NULL || !f->options->target->gpu) return false;
  for (int i = 0; i < t->node->n_src; i++) {
    const struct ir_node *node = t->node->src[i]->node;
    while (pass_ops[node->op].class == PASS_CLASS_MOVE && node->n_src == 1 && node->op != IR_WINDOW)
      node = node->src[0]->node;
    if (node->op == IR_WINDOW) return true;
  }
  return false;
}

/* What computing t again would read, as nodes in found; false when it would cost too much. parts: of what is put
** together on the way. */
static bool is_cheap_again(const struct build *b, const quern_tensor *t, int *parts, int *n_found,
                           const quern_tensor **found) {
  const struct fuse *f = b->f;
  const struct ir_node *met[MOST_AGAIN];
  int n = 1, cost = 0;
  /* Reading it, and writing it when nobody else seems to want it; and a little. */
  double bytes = 0, most = (fuse_info_of(f, t)->outside_users > 1 ? 1.25 : 2.25) * (double)ir_bytes(t);
  if (is_window_mask(f, t)) most = HUGE_VAL;
  met[0] = t->node;
  *n_found = 0;
  *parts = 1;
  for (int next = 0; next < n; next++) {
    const struct ir_node *node = met[next];
    cost += pass_ops[node->op].cost;
    if (cost > PASS_CHEAP || pass_ops[node->op].class == PASS_CLASS_ANCHOR) return false;
    if (node->op == IR_CONCAT && fuse_info_of(f, t)->outside_users > 1)
      return false; /* each part is read in its own way */
    if (node->op == IR_CONCAT && (*parts *= BASE_MAX(node->n_src, 1)) * b->parts > MOST_PARTS) return false;
    for (int i = 0; i < node->n_src; i++) {
      const quern_tensor *src = node->src[i];
      const struct fuse_node_info *info = fuse_info_of(f, src);
      bool leaf = pass_is_leaf(src->node), low = !leaf && is_offered(info) && level_of(f, info) < b->cluster->level;
      double size = (double)ir_bytes(src);
      if (pass_needs_memory(node, i)) return false;
      if (leaf && !pass_is_given(src)) continue;
      bool again = low && !info->needed && is_window_mask(f, src);
      bool there = leaf || (low && !again && (info->needed || info->outside_users > 0)),
           small = low && !again && 2 * size <= (double)ir_bytes(t);
      if (there || small) {
        bool known = false;
        for (int k = 0; k < *n_found; k++) known = known || found[k] == src;
        if (known) continue;
        bytes += there ? size : 2 * size;
        if (*n_found == MOST_AGAIN || bytes > most) return false;
        found[(*n_found)++] = src;
        continue;
      }
      bool known = false;
      for (int k = 0; k < n; k++) known = known || met[k] == src->node;
      if (known) continue;
      if (n == MOST_AGAIN) return false;
      met[n++] = src->node;
    }
  }
  return true;
}

/* What recomputing t would read, of a tensor that is made of narrower ones of as many elements, and small ones, alone:
** n_met nodes in met. */
static bool is_narrow_again(const struct build *b, const quern_tensor *t, int *n_met, const struct ir_node **met,
                            int *n_found, const quern_tensor **found) {
  const struct fuse *f = b->f;
  const size_t size = base_dtypes[t->dtype].size;
  int cost = 0, narrow = 0;
  *n_met = 1;
  *n_found = 0;
  met[0] = t->node;
  for (int next = 0; next < *n_met; next++) {
    const struct ir_node *node = met[next];
    cost += pass_ops[node->op].cost;
    bool point = pass_ops[node->op].class == PASS_CLASS_MATH || pass_ops[node->op].class == PASS_CLASS_MOVE;
    if (cost > NARROW_COST || !point || node->op == IR_CONCAT) return false;
    for (int i = 0; i < node->n_src; i++) {
      const quern_tensor *src = node->src[i];
      const struct fuse_node_info *info = fuse_info_of(f, src);
      bool leaf = pass_is_leaf(src->node), stored = leaf || (is_offered(info) && level_of(f, info) < b->cluster->level);
      if (pass_needs_memory(node, i)) return false;
      if (leaf && !pass_is_given(src)) continue;
      bool half = 2 * base_dtypes[src->dtype].size <= size && (leaf || src->dtype != QUERN_DTYPE_BOOL);
      bool small = 16 * ir_count(src) <= ir_count(t), known = false;
      if (stored && (half || small)) {
        for (int k = 0; k < *n_found; k++) known = known || found[k] == src;
        if (known) continue;
        if (*n_found == MOST_AGAIN) return false;
        found[(*n_found)++] = src;
        narrow += half && !small ? 1 : 0;
        continue;
      }
      if (leaf) return false;
      for (int k = 0; k < *n_met; k++) known = known || met[k] == src->node;
      if (known) continue;
      if (*n_met == MOST_NARROW) return false;
      met[(*n_met)++] = src->node;
    }
  }
  return narrow == 1 || narrow == 2;
}

/* Computes t here again, from narrower tensors, if that can be; *read turns false then. */
static quern_status try_narrow(struct build *b, const quern_tensor *t, bool *read) {
  struct fuse *f = b->f;
  const struct ir_node *met[MOST_NARROW];
  const quern_tensor *found[MOST_AGAIN];
  int n_met, n_found;
  if (!is_narrow_again(b, t, &n_met, met, &n_found, found)) return QUERN_STATUS_OK;
  *read = false;
  for (int i = 0; i < n_found; i++) QUERN_TRY(need(f, found[i]));
  for (int i = 0; i < n_met; i++) f->infos[ir_order_find(&f->order, met[i])].recomputed_in = f->epoch;
  return QUERN_STATUS_OK;
}

/* True when the group reads t, which lives in another cluster, from memory; node is computed from it. */
static quern_status reads(struct build *b, const struct ir_node *node, const quern_tensor *t, bool *read) {
  struct fuse *f = b->f;
  const struct fuse_node_info *info = fuse_info_of(f, t);
  bool rows = b->cluster->kind == PASS_KIND_MAP || b->cluster->kind == PASS_KIND_REDUCE;
  bool generated = b->cluster->kind == PASS_KIND_DOT && b->cluster->gemm == NULL;
  bool after = generated && node->id > b->cluster->anchor->id; /* not of an operand */
  *read = true;
  if (level_of(f, info) >= b->cluster->level || info->recomputed_in == f->epoch) {
    *read = false;
    return QUERN_STATUS_OK;
  }
  if (!f->options->on[PASS_FUSE] || info->needed || info->unfused || b->cluster->unfused) return QUERN_STATUS_OK;
  if (rows || after) QUERN_TRY(try_narrow(b, t, read));
  if (*read && rows) {
    const quern_tensor *found[MOST_AGAIN];
    int n, parts;
    *read = !is_cheap_again(b, t, &parts, &n, found);
    if (!*read) b->parts *= parts;
    for (int i = 0; !*read && i < n; i++) QUERN_TRY(need(f, found[i]));
  }
  return QUERN_STATUS_OK;
}

/* ---- the nodes and ins of a cluster ------------------------------------------------------------------------------ */

static bool is_alone(enum pass_kind kind) {
  return kind == PASS_KIND_SORT || kind == PASS_KIND_SCATTER || kind == PASS_KIND_CONTROL ||
         kind == PASS_KIND_COMPOSITE;
}

static quern_status add_in(struct build *b, const quern_tensor *t) {
  for (size_t i = 0; i < b->ins.n; i++)
    if (b->ins.at[i] == t) return QUERN_STATUS_OK;
  if (!base_vec_push(b->f->heap, &b->ins, t)) return QUERN_STATUS_MEMORY;
  return need(b->f, t);
}

static quern_status add_node(struct build *b, const struct ir_node *node) {
  struct fuse *f = b->f;
  ptrdiff_t place = ir_order_find(&f->order, node);
  if (f->infos[place].epoch == f->epoch) return QUERN_STATUS_OK;
  f->infos[place].epoch = f->epoch;
  f->infos[place].visit = COMPUTED;
  return base_vec_push(f->heap, &b->nodes, (uint32_t)place) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static bool is_pinned(const struct build *b, const quern_tensor *t) {
  for (size_t i = 0; i < b->pins.n; i++)
    if (b->f->order.at[b->pins.at[i]] == t->node) return true;
  return false;
}

/* Source i of a node that is computed here; *again: it was computed, and must be read. */
static quern_status add_source(struct build *b, const struct ir_node *node, int i, bool *again) {
  struct fuse *f = b->f;
  const quern_tensor *t = node->src[i];
  struct fuse_node_info *info = fuse_info_of(f, t);
  bool met = info->epoch == f->epoch, memory = pass_needs_memory(node, i) || is_alone(b->cluster->kind);
  if (b->cluster->gemm != NULL && !memory && !pass_is_given(t)) { /* what is read was settled when it was joined */
    if (!fuse_gemm_reads(b->cluster->gemm, t)) return add_node(b, t->node);
    info->epoch = f->epoch;
    info->visit = READ;
    return add_in(b, t);
  }
  if (memory || pass_is_given(t) || is_pinned(b, t)) {
    if (met && info->visit == COMPUTED) {
      *again = true;
      return base_vec_push(f->heap, &b->pins, (uint32_t)ir_order_find(&f->order, t->node)) ? QUERN_STATUS_OK
                                                                                           : QUERN_STATUS_MEMORY;
    }
    info->epoch = f->epoch;
    info->visit = READ;
    return add_in(b, t);
  }
  if (met) return info->visit == READ ? add_in(b, t) : QUERN_STATUS_OK; /* perhaps another result of the node */
  if (!pass_is_leaf(t->node) && info->home >= 0 && info->home != b->number) {
    bool read;
    QUERN_TRY(reads(b, node, t, &read));
    if (read) {
      info->epoch = f->epoch;
      info->visit = READ;
      return add_in(b, t);
    }
  }
  return add_node(b, t->node);
}

/* Everything that the cluster computes to write what is needed. */
static quern_status collect(struct build *b, size_t n_outs, const uint32_t *outs) {
  struct fuse *f = b->f;
  b->pins.n = 0;
  for (bool again = true; again;) {
    again = false;
    f->epoch++;
    b->parts = 1;
    b->nodes.n = b->ins.n = 0;
    for (size_t i = 0; i < n_outs; i++) QUERN_TRY(add_node(b, f->order.at[outs[i]]));
    for (size_t next = 0; next < b->nodes.n && !again; next++) {
      const struct ir_node *node = f->order.at[b->nodes.at[next]];
      for (int i = 0; i < node->n_src && !again; i++) QUERN_TRY(add_source(b, node, i, &again));
    }
  }
  return QUERN_STATUS_OK;
}

/* Sorts places; they are few. */
static void sort_places(size_t n, uint32_t *at) {
  for (size_t i = 1; i < n; i++) {
    uint32_t x = at[i];
    size_t k = i;
    for (; k > 0 && at[k - 1] > x; k--) at[k] = at[k - 1];
    at[k] = x;
  }
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

static void *copy(struct build *b, const void *from, size_t n, size_t size) {
  return base_arena_copy(&b->f->groups->arena, from, n * size);
}

static quern_status fill_nodes(struct build *b, struct pass_group *group) {
  struct base_arena *arena = &b->f->groups->arena;
  sort_places(b->nodes.n, b->nodes.at);
  group->n_nodes = b->nodes.n;
  group->n_ins = b->ins.n;
  group->nodes = base_arena_alloc(arena, b->nodes.n * sizeof *group->nodes);
  group->ins = copy(b, b->ins.at, b->ins.n, sizeof *group->ins);
  if (group->nodes == NULL || group->ins == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < b->nodes.n; i++) group->nodes[i] = b->f->order.at[b->nodes.at[i]];
  return QUERN_STATUS_OK;
}

static bool is_identity(const struct fuse_cluster *cluster, const struct fuse_node_info *info, const quern_tensor *t) {
  if (cluster->kind != PASS_KIND_MAP || t->rank != cluster->n_vars) return false;
  for (int k = 0; k < t->rank; k++) {
    if (cluster->space->extents.at[k] != t->dims[k] || info->at[k] != cluster->like_at[k]) return false;
  }
  return true;
}

/* The outs: of a MAP one whose indices are the variables comes first. */
static quern_status fill_outs(struct build *b, struct pass_group *group, size_t n, const uint32_t *outs) {
  struct fuse *f = b->f;
  bool alone = is_alone(group->kind);
  struct ir_node *anchor = b->cluster->anchor;
  group->n_outs = alone ? (size_t)anchor->n_out : n;
  group->outs = base_arena_alloc(&f->groups->arena, BASE_MAX(group->n_outs, 1) * sizeof *group->outs);
  if (group->outs == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < group->n_outs; i++) {
    struct ir_node *node = alone ? anchor : f->order.at[outs[i]];
    const struct fuse_node_info *info = fuse_info_of(f, &node->out[0]);
    group->outs[i] = (struct pass_out){alone ? &node->out[i] : &node->out[0], info->at};
  }
  for (size_t i = 0; i < group->n_outs && !alone; i++) {
    const quern_tensor *t = group->outs[i].tensor;
    if (!is_identity(b->cluster, fuse_info_of(f, t), t)) continue;
    struct pass_out first = group->outs[i];
    for (size_t k = i; k > 0; k--) group->outs[k] = group->outs[k - 1];
    group->outs[0] = first;
    break;
  }
  return QUERN_STATUS_OK;
}

/* Fills in those of n stages that are computed, by increasing id. */
static quern_status fill_some(struct build *b, size_t n, const struct fuse_stage *from, size_t *n_made,
                              struct pass_stage **made) {
  struct pass_stage *to = base_arena_alloc(&b->f->groups->arena, BASE_MAX(n, 1) * sizeof *to);
  if (to == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < n; i++) {
    const struct fuse_stage *stage = &from[i];
    const struct fuse_node_info *info = fuse_info_of(b->f, &stage->node->out[0]);
    if (info->epoch != b->f->epoch || info->visit != COMPUTED) continue;
    size_t k = (*n_made)++;
    for (; k > 0 && to[k - 1].node->id > stage->node->id; k--) to[k] = to[k - 1];
    to[k] = (struct pass_stage){stage->node, stage->source, stage->other, stage->result};
  }
  *made = to;
  return QUERN_STATUS_OK;
}

static quern_status fill_stages(struct build *b, struct pass_group *group) {
  struct fuse_cluster *cluster = b->cluster;
  QUERN_TRY(fill_some(b, cluster->stages.n, cluster->stages.at, &group->n_stages, &group->stages));
  return fill_some(b, cluster->column_reductions.n, cluster->column_reductions.at, &group->n_column_reductions,
                   &group->column_reductions);
}

/* An out that is the bytes of another out, or of what the cluster reads: that one, or NULL. */
static const quern_tensor *viewed(const struct build *b, uint32_t out) {
  const struct fuse *f = b->f;
  const struct ir_node *node = f->order.at[out];
  while (pass_is_view(node)) {
    const quern_tensor *src = node->src[0];
    const struct fuse_node_info *info = fuse_info_of(f, src);
    if (pass_is_given(src) || (info->needed && (info->home == b->number || level_of(f, info) < b->cluster->level)))
      return src;
    node = src->node;
  }
  return NULL;
}

static quern_status make_view(struct build *b, uint32_t out, const quern_tensor *base) {
  struct fuse *f = b->f;
  struct pass_group *group = base_arena_new(&f->groups->arena, struct pass_group);
  if (group == NULL) return QUERN_STATUS_MEMORY;
  b->nodes.n = b->ins.n = 0;
  f->epoch++;
  for (struct ir_node *node = f->order.at[out]; node != base->node; node = node->src[0]->node)
    QUERN_TRY(add_node(b, node));
  QUERN_TRY(add_in(b, base));
  *group = (struct pass_group){.kind = PASS_KIND_VIEW, .anchor = f->order.at[out], .speedup = 1, .threshold = 1};
  QUERN_TRY(fill_nodes(b, group));
  group->outs = base_arena_new(&f->groups->arena, struct pass_out);
  if (group->outs == NULL) return QUERN_STATUS_MEMORY;
  group->n_outs = 1;
  group->outs[0] = (struct pass_out){&f->order.at[out]->out[0], NULL};
  bool kept = base_vec_push(f->heap, &b->views, group) && base_vec_push(f->heap, &b->view_units, b->number);
  return kept ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

/* Takes the outs that are views of others out of the cluster. */
static quern_status split_views(struct build *b) {
  struct fuse_cluster *cluster = b->cluster;
  size_t left = 0;
  for (size_t i = 0; i < cluster->needed.n; i++) {
    uint32_t out = cluster->needed.at[i];
    const quern_tensor *base = is_alone(cluster->kind) ? NULL : viewed(b, out);
    if (base == NULL)
      cluster->needed.at[left++] = out;
    else
      QUERN_TRY(make_view(b, out, base));
  }
  cluster->needed.n = left;
  return QUERN_STATUS_OK;
}

static quern_status emit_writes(struct build *b) {
  struct fuse *f = b->f;
  struct fuse_cluster *cluster = b->cluster;
  sort_places(cluster->needed.n, cluster->needed.at);
  QUERN_TRY(split_views(b));
  if (cluster->needed.n == 0) return QUERN_STATUS_OK;
  struct pass_group *group = base_arena_new(&f->groups->arena, struct pass_group);
  if (group == NULL) return QUERN_STATUS_MEMORY;
  QUERN_TRY(collect(b, cluster->needed.n, cluster->needed.at));
  *group = (struct pass_group){.kind = cluster->kind, .anchor = cluster->anchor, .n_outer = cluster->n_outer};
  if (cluster->kind == PASS_KIND_DOT) memcpy(group->vars, cluster->vars, sizeof group->vars);
  if (cluster->gemm != NULL) QUERN_TRY(fuse_trim_gemm(f, cluster, &group->gemm));
  QUERN_TRY(fill_stages(b, group));
  QUERN_TRY(fill_nodes(b, group));
  QUERN_TRY(fill_outs(b, group, cluster->needed.n, cluster->needed.at));
  if (cluster->kind == PASS_KIND_MAP) group->anchor = group->outs[0].tensor->node;
  if (cluster->kind == PASS_KIND_REDUCE && group->n_stages == 0) group->kind = PASS_KIND_MAP;
  if (group->kind == PASS_KIND_REDUCE) group->anchor = group->stages[0].node;
  if (group->kind == PASS_KIND_MAP) group->n_outer = cluster->n_vars;
  cluster->group = group;
  return QUERN_STATUS_OK;
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

/* Numbers of clusters by decreasing level. */
static quern_status by_level(struct fuse *f, int *order) {
  int most = 0;
  for (size_t i = 0; i < f->clusters.n; i++) most = BASE_MAX(most, f->clusters.at[i]->level);
  size_t bytes = ((size_t)most + 2) * sizeof(size_t);
  size_t *first = base_alloc_zero(f->heap, bytes);
  if (first == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < f->clusters.n; i++) first[most - f->clusters.at[i]->level + 1]++;
  for (int l = 0; l < most; l++) first[l + 1] += first[l];
  for (size_t i = 0; i < f->clusters.n; i++) order[first[most - f->clusters.at[i]->level]++] = (int)i;
  base_free(f->heap, first, bytes);
  return QUERN_STATUS_OK;
}

/* Gives a finished group its order, hash and estimate, and adds it. */
static quern_status emit(struct fuse *f, struct pass_group *group, struct fuse_cluster *cluster) {
  if (cluster != NULL) {
    group->space = cluster->space;
    cluster->space = NULL;
  }
  if (!base_vec_push(f->heap, &f->groups->groups, group)) {
    pass_space_free(group->space);
    return QUERN_STATUS_MEMORY;
  }
  pass_group_estimate(group);
  return pass_group_number(f->groups, group);
}

/* Adds the group of a cluster after those it reads from: depth first, as the graph was written. */
static quern_status emit_after(struct build *b, int number, const int *view_at) {
  struct fuse *f = b->f;
  f->stack.n = 0;
  if (!base_vec_push(f->heap, &f->stack, number)) return QUERN_STATUS_MEMORY;
  while (f->stack.n > 0) {
    int at = f->stack.at[f->stack.n - 1];
    struct fuse_cluster *cluster = f->clusters.at[at];
    size_t waiting = f->stack.n;
    if (cluster->epoch == f->epoch) { /* added */
      f->stack.n--;
      continue;
    }
    for (int v = view_at[at]; v >= -1; v = v < 0 ? -2 : b->view_units.at[v]) {
      const struct pass_group *group = v < 0 ? cluster->group : b->views.at[v];
      for (size_t i = 0; group != NULL && i < group->n_ins; i++) {
        int home = fuse_info_of(f, group->ins[i])->home;
        if (pass_is_leaf(group->ins[i]->node) || home == at || f->clusters.at[home]->epoch == f->epoch) continue;
        if (!base_vec_push(f->heap, &f->stack, home)) return QUERN_STATUS_MEMORY;
      }
    }
    if (f->stack.n > waiting) continue;
    f->stack.n--;
    cluster->epoch = f->epoch;
    if (cluster->group != NULL) QUERN_TRY(emit(f, cluster->group, cluster));
    for (int v = view_at[at]; v >= 0; v = b->view_units.at[v]) QUERN_TRY(emit(f, b->views.at[v], NULL));
  }
  return QUERN_STATUS_OK;
}

/* Chains the views of each cluster: view_at[cluster] is the first, view_units the next of each. */
static void chain_views(struct build *b, int *view_at) {
  for (size_t i = 0; i < b->f->clusters.n; i++) view_at[i] = -1;
  for (size_t v = b->views.n; v-- > 0;) {
    int cluster = b->view_units.at[v];
    b->view_units.at[v] = view_at[cluster];
    view_at[cluster] = (int)v;
  }
}

static quern_status build_all(struct build *b, int *order) {
  struct fuse *f = b->f;
  count_outside_users(f);
  for (size_t i = 0; i < f->graph->n_roots; i++) QUERN_TRY(need(f, f->graph->roots[i]));
  QUERN_TRY(by_level(f, order));
  for (size_t i = 0; i < f->clusters.n; i++) {
    b->number = order[i];
    b->cluster = f->clusters.at[order[i]];
    if (b->cluster->needed.n > 0) QUERN_TRY(emit_writes(b));
  }
  chain_views(b, order);
  f->epoch++;
  for (size_t i = 0; i < f->clusters.n; i++) {
    if (f->clusters.at[i]->epoch != f->epoch) QUERN_TRY(emit_after(b, (int)i, order));
  }
  return QUERN_STATUS_OK;
}

quern_status fuse_build(struct fuse *f) {
  struct build b = {.f = f};
  size_t bytes = f->clusters.n * sizeof(int);
  int *order = base_alloc(f->heap, bytes);
  if (order == NULL) return QUERN_STATUS_MEMORY;
  quern_status status = build_all(&b, order);
  base_free(f->heap, order, bytes);
  base_vec_fini(f->heap, &b.nodes);
  base_vec_fini(f->heap, &b.ins);
  base_vec_fini(f->heap, &b.pins);
  base_vec_fini(f->heap, &b.views);
  base_vec_fini(f->heap, &b.view_units);
  return status;
}
