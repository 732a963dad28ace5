/* pass/attention_views.c -- attention that a library does reads its operands where they lie, and writes its results where they are wanted
** in:    composites attention and attention.vjp that the device supports, on (batch, head, row, width), among slices, reshapes and permutes
** out:   the composites attention.placed and attention.vjp.placed in their stead: the body is what stood there, the sources are what is in
**        memory, and results are (batch, row, head, width), or all gradients side by side where they were put so
** keeps: every bit; attention is done as often as before
** see:   docs/design/008-libraries.md         tests: tests/pass/test_attention_views.c
*/
#include "pass/pass_int.h"

enum { MOST_STEPS = 16, AXES = 4, LANES = 8, RESULTS = 3, LSE_SOURCE = 4 };
static const int64_t swap_rows_heads[AXES] = {0, 2, 1, 3};

/* ---- reading a composite ------------------------------------------------------------------------------------ */

static const char *const names[2] = {"attention", "attention.vjp"};
static const char *const placed_names[2] = {"attention.placed", "attention.vjp.placed"};

/* 0: attention, 1: its gradient; -1: neither. */
static int find_name(const char *const list[2], const struct ir_node *node) {
  for (int i = 0; i < 2; i++)
    if (node->op == IR_COMPOSITE && strcmp(node->attrs->name, list[i]) == 0) return i;
  return -1;
}

/* The integers of a placed composite after those of the plain one: the extents, then five of each view. */
enum { INTS_PLAIN = 2, INTS_EXTENTS = 7, INTS_VIEW = 5, INTS = INTS_PLAIN + INTS_EXTENTS + PASS_VIEWS * INTS_VIEW };

/* Which source (or, of those that are written, result) of the plain composite a view is; -1: it has none. */
static int plain_place(int view, bool back) {
  static const int forward[PASS_VIEWS] = {0, 1, 2, 0, -1, -1, -1, -1}, backward[PASS_VIEWS] = {0, 1, 2, 3, 5, 0, 1, 2};
  return back ? backward[view] : forward[view];
}

bool pass_operand_view_is_out(int view, bool back) { return view >= PASS_VIEW_DQ || (view == PASS_VIEW_Y && !back); }

static void set_dense(const quern_tensor *t, int rebuild_site, struct pass_operand_view *view) {
  *view = (struct pass_operand_view){rebuild_site, 0, t->dims[1] * t->dims[2] * t->dims[3], t->dims[2] * t->dims[3],
                                     t->dims[3]};
}

static void read_plain(const struct ir_node *node, bool back, struct pass_attention *a) {
  const int64_t *q = node->src[0]->dims, *v = node->src[2]->dims;
  a->batch = q[0], a->heads = q[1], a->kv_heads = v[1], a->queries = q[2], a->keys = v[2];
  a->width = q[3], a->value_width = v[3];
  for (int i = 0; i < PASS_VIEWS; i++) {
    int rebuild_site = plain_place(i, back);
    a->views[i].operand = -1;
    if (rebuild_site >= 0)
      set_dense(pass_operand_view_is_out(i, back) ? &node->out[rebuild_site] : node->src[rebuild_site], rebuild_site,
                &a->views[i]);
  }
  a->lse = back ? LSE_SOURCE : 1;
}

bool pass_attention_read(const struct ir_node *node, struct pass_attention *a) {
  int plain = find_name(names, node), placed = find_name(placed_names, node);
  if (plain < 0 && placed < 0) return false;
  bool back = plain == 1 || placed == 1;
  const int64_t *ints = node->attrs->ints.at;
  *a = (struct pass_attention){.causal = ints[0] != 0, .back = back, .scale = node->attrs->reals.at[0]};
  if (plain >= 0) {
    read_plain(node, back, a);
    return true;
  }
  int64_t *const extents[INTS_EXTENTS] = {&a->batch, &a->heads, &a->kv_heads,   &a->queries,
                                          &a->keys,  &a->width, &a->value_width};
  for (int i = 0; i < INTS_EXTENTS; i++) *extents[i] = ints[INTS_PLAIN + i];
  const int64_t *at = ints + INTS_PLAIN + INTS_EXTENTS;
  for (int i = 0; i < PASS_VIEWS; i++, at += INTS_VIEW)
    a->views[i] = (struct pass_operand_view){(int)at[0], at[1], at[2], at[3], at[4]};
  a->lse = back ? node->n_src - 1 : node->n_out - 1;
  return true;
}

static void write_ints(const struct pass_attention *a, int64_t ints[INTS]) {
  const int64_t extents[INTS_EXTENTS] = {a->batch, a->heads, a->kv_heads,   a->queries,
                                         a->keys,  a->width, a->value_width};
  ints[0] = a->causal;
  ints[1] = 0;
  memcpy(ints + INTS_PLAIN, extents, sizeof extents);
  for (int i = 0; i < PASS_VIEWS; i++) {
    const struct pass_operand_view *v = &a->views[i];
    const int64_t five[INTS_VIEW] = {v->operand, v->at, v->batch, v->head, v->row};
    memcpy(ints + INTS_PLAIN + INTS_EXTENTS + i * INTS_VIEW, five, sizeof five);
  }
}

/* ---- views ------------------------------------------------------------------------------------------------ */

/* Strides of t's axes, which is at `at` of base; false when they are none that the library can be told. Axes of one element get a
** stride beyond the others'. */
static bool read_strides(struct pass_space *space, const quern_tensor *t, const quern_tensor *base,
                         const struct pass_index *const *at, struct pass_operand_view *view) {
  int64_t coef[AXES], reach = t->dims[AXES - 1];
  int64_t *const strides[AXES - 1] = {&view->batch, &view->head, &view->row};
  if (base->rank == 0 || !pass_index_affine(space, pass_index_flat(space, base->rank, base->dims, at), coef, &view->at))
    return false;
  if (coef[AXES - 1] != 1 || view->at < 0 || view->at % LANES != 0) return false;
  for (int k = 0; k < AXES - 1; k++) {
    if (t->dims[k] > 1 && (coef[k] <= 0 || coef[k] % LANES != 0)) return false;
    if (t->dims[k] > 1) reach = BASE_MAX(reach, coef[k] * t->dims[k]);
  }
  for (int k = 0; k < AXES - 1; k++) *strides[k] = t->dims[k] > 1 ? coef[k] : reach;
  return true;
}

/* ---- who uses the results --------------------------------------------------------------------------------- */

/* How a result comes to be a source of a concat: reshapes and permutes, the last first. */
struct path {
  const quern_tensor *result;
  int n;
  const struct ir_node *steps[MOST_STEPS];
  struct pass_operand_view view; /* of the result in the concat */
};

/* A composite of the graph as it was, or of a subgraph. */
struct site {
  const struct ir_node *node;
  const struct ir_node *sink; /* what puts all its results side by side, and nothing else uses them; NULL: none */
  struct path paths[RESULTS]; /* to its sources */
  bool transpose[RESULTS];    /* somebody wants rows before heads */
  quern_tensor *whole;        /* what stands for sink */
};

struct job {
  const struct pass_options *options;
  quern_context *ctx;
  struct base_arena arena;
  struct base_map sites, sinks; /* by node, and by the node that is their sink */
  struct base_map graphs;       /* subgraphs that were scanned */
  BASE_VEC(const struct ir_graph *) waiting;
};

static uint64_t hash_of(const struct ir_node *node) { return base_hash_u64(BASE_HASH_SEED, node->id); }
static bool is_node(const void *item, const void *key) { return ((const struct site *)item)->node == key; }
static bool is_sink(const void *item, const void *key) { return ((const struct site *)item)->sink == key; }
static bool is_graph(const void *item, const void *key) { return item == key; }

static struct site *find_site(const struct job *job, const struct ir_node *node) {
  return base_map_find(&job->sites, hash_of(node), is_node, node);
}

static bool is_transposed(const struct ir_node *node) {
  return node->op == IR_PERMUTE && node->attrs->axes.n == AXES &&
         memcmp(node->attrs->axes.at, swap_rows_heads, sizeof swap_rows_heads) == 0;
}

static quern_status add_site(struct job *job, const struct ir_node *node) {
  bool supported = find_name(names, node) >= 0 && node->attrs->ints.at[1] == 0 && node->n_out <= RESULTS &&
                   job->options->supports(job->options->target, node);
  if (!supported || find_site(job, node) != NULL) return QUERN_STATUS_OK;
  struct site *site = base_arena_new(&job->arena, struct site);
  if (site == NULL) return QUERN_STATUS_MEMORY;
  *site = (struct site){.node = node};
  return base_map_add(&job->sites, hash_of(node), site) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static quern_status add_graph(struct job *job, const struct ir_graph *graph) {
  if (graph == NULL) return QUERN_STATUS_OK;
  uint64_t hash = base_hash_u64(BASE_HASH_SEED, graph->id);
  if (base_map_find(&job->graphs, hash, is_graph, graph) != NULL) return QUERN_STATUS_OK;
  bool added = base_map_add(&job->graphs, hash, (void *)(uintptr_t)graph) &&
               base_vec_push(&job->ctx->heap, &job->waiting, graph);
  return added ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

/* Follows source i of a concat back to a composite, if nothing else uses what is on the way. */
static void find_path(const struct ir_order *order, const int *users, const quern_tensor *t, struct path *path) {
  *path = (struct path){.result = t};
  while ((t->node->op == IR_RESHAPE || t->node->op == IR_PERMUTE) && path->n < MOST_STEPS &&
         users[ir_order_find(order, t->node)] == 1) {
    path->steps[path->n++] = t->node;
    path->result = t = t->node->src[0];
  }
}

/* Where the element of a result is in source i of a concat; false where the library cannot be told. */
static quern_status view_path(struct job *job, const struct ir_node *concat, int i, struct path *path, bool *fits) {
  const quern_tensor *t = path->result;
  const struct pass_index *at[QUERN_MAX_RANK], *to[QUERN_MAX_RANK];
  struct pass_space *space;
  int64_t before = 0, axis = concat->attrs->axis;
  QUERN_TRY(pass_space_new(&space, &job->ctx->heap));
  for (int k = 0; k < AXES; k++) at[k] = pass_index_var(space, pass_space_add(space, t->dims[k]));
  for (int n = path->n; n-- > 0;) {
    const struct ir_node *node = path->steps[n];
    const quern_tensor *x = node->src[0], *y = &node->out[0];
    if (node->op == IR_RESHAPE)
      pass_index_unflat(space, pass_index_flat(space, x->rank, x->dims, at), y->rank, y->dims, to);
    for (int k = 0; k < y->rank && node->op == IR_PERMUTE; k++) to[k] = at[node->attrs->axes.at[k]];
    memcpy(at, to, sizeof at);
  }
  for (int k = 0; k < i; k++) before += concat->src[k]->dims[axis];
  at[axis] = pass_index_add(space, at[axis], pass_index_const(space, before));
  path->view = (struct pass_operand_view){0};
  *fits = read_strides(space, t, &concat->out[0], at, &path->view);
  quern_status status = space->failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK;
  pass_space_free(space);
  return status;
}

/* Sees whether a concat puts every result of one gradient side by side, and is all that uses them. */
static quern_status find_sink(struct job *job, const struct ir_order *order, const int *users,
                              const struct ir_node *node) {
  struct path paths[RESULTS];
  struct site *site = NULL;
  unsigned met = 0;
  if (node->op != IR_CONCAT || node->n_src != RESULTS) return QUERN_STATUS_OK;
  for (int i = 0; i < RESULTS; i++) {
    find_path(order, users, node->src[i], &paths[i]);
    const struct ir_node *from = paths[i].result->node;
    if (find_name(names, from) != 1 || from != paths[0].result->node) return QUERN_STATUS_OK;
    met |= 1u << paths[i].result->result;
    site = find_site(job, from);
  }
  bool all = site != NULL && site->sink == NULL && met == (1u << RESULTS) - 1 &&
             users[ir_order_find(order, site->node)] == RESULTS;
  for (int i = 0; i < RESULTS && all; i++) QUERN_TRY(view_path(job, node, i, &paths[i], &all));
  if (!all) return QUERN_STATUS_OK;
  site->sink = node;
  memcpy(site->paths, paths, sizeof paths);
  return base_map_add(&job->sinks, hash_of(node), site) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static quern_status scan_node(struct job *job, const struct ir_order *order, const int *users,
                              const struct ir_node *node) {
  if (node->op == IR_COMPOSITE) return add_site(job, node);
  QUERN_TRY(add_graph(job, node->attrs->body));
  QUERN_TRY(add_graph(job, node->attrs->other));
  struct site *from = is_transposed(node) ? find_site(job, node->src[0]->node) : NULL;
  if (from != NULL) from->transpose[node->src[0]->result] = true;
  return find_sink(job, order, users, node);
}

static quern_status scan(struct job *job, const struct pass_graph *graph) {
  struct ir_order order;
  int *users = NULL;
  QUERN_TRY(ir_topo(job->ctx, graph->n_roots, graph->roots, &order));
  quern_status status = pass_count_users(graph, &order, &users);
  for (size_t i = 0; i < order.n && status == QUERN_STATUS_OK; i++) status = scan_node(job, &order, users, order.at[i]);
  base_free(&job->ctx->heap, users, order.n * sizeof *users);
  ir_order_fini(job->ctx, &order);
  return status;
}

static quern_status scan_all(struct job *job, const struct pass_graph *graph) {
  QUERN_TRY(scan(job, graph));
  while (job->waiting.n > 0) {
    const struct ir_graph *inner = job->waiting.at[--job->waiting.n];
    const struct pass_graph results = {job->ctx, (size_t)inner->n_results, inner->results};
    QUERN_TRY(scan(job, &results));
  }
  return QUERN_STATUS_OK;
}

/* ---- operands --------------------------------------------------------------------------------------------- */

/* Where an operand lies: the steps from what is in memory to it, the last first. */
struct origin {
  quern_tensor *base;
  int n;
  const struct ir_node *steps[MOST_STEPS];
  struct pass_operand_view view;
};

static bool moves(const struct ir_node *node) {
  return node->op == IR_RESHAPE || node->op == IR_PERMUTE || node->op == IR_SLICE || node->op == IR_STOP_GRAD;
}

static quern_status find_origin(struct job *job, quern_tensor *t, struct origin *origin) {
  struct pass_space *space;
  const struct pass_index *at[QUERN_MAX_RANK], *in[QUERN_MAX_RANK];
  const struct ir_node *steps[MOST_STEPS];
  *origin = (struct origin){.base = t};
  set_dense(t, 0, &origin->view);
  QUERN_TRY(pass_space_new(&space, &job->ctx->heap));
  for (int k = 0; k < AXES; k++) at[k] = pass_index_var(space, pass_space_add(space, t->dims[k]));
  quern_tensor *base = t;
  for (int n = 0; n < MOST_STEPS && moves(base->node); n++) {
    struct pass_operand_view view = {0};
    if (!pass_index_source(space, base->node, 0, at, in)) break;
    steps[n] = base->node;
    base = base->node->src[0];
    memcpy(at, in, sizeof at);
    if (!read_strides(space, t, base, at, &view)) continue;
    origin->base = base;
    origin->view = view;
    memcpy(origin->steps + origin->n, steps + origin->n, (size_t)(n + 1 - origin->n) * sizeof *steps);
    origin->n = n + 1;
  }
  quern_status status = space->failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK;
  pass_space_free(space);
  return status;
}

/* ---- placing ---------------------------------------------------------------------------------------------- */

static quern_tensor *transpose(quern_tensor *x) {
  return IR_MAKE(x->node->ctx, IR_PERMUTE, (&(struct ir_attrs){.axes = {AXES, swap_rows_heads}}), x);
}

/* What is being made. */
struct making {
  const struct ir_node *node; /* the plain composite */
  struct site *site;
  struct pass_attention a;
  int n;                              /* sources */
  quern_tensor *src[PASS_VIEWS + 1];  /* what is in memory */
  quern_tensor *leaf[PASS_VIEWS + 1]; /* the same in the body */
  quern_tensor *operand[PASS_VIEWS + 1];
  quern_tensor *result[RESULTS + 1]; /* of the body */
  int n_results;
};

/* The number of a source, which is added if it is new, unless it has to be. */
static int add_source(struct making *m, quern_tensor *t, bool own) {
  for (int i = 0; i < m->n && !own; i++)
    if (m->src[i] == t) return i;
  m->src[m->n] = t;
  m->leaf[m->n] = ir_leaf_like(t);
  return m->n++;
}

static quern_status add_operand(struct job *job, struct making *m, int view, quern_tensor *t) {
  struct origin origin;
  QUERN_TRY(find_origin(job, t, &origin));
  int number = add_source(m, origin.base, false);
  quern_tensor *x = m->leaf[number];
  for (int i = origin.n; i-- > 0 && !ir_is_poison(x);)
    x = ir_make(job->ctx, origin.steps[i]->op, 1, &x, origin.steps[i]->attrs);
  m->operand[plain_place(view, m->a.back)] = x;
  m->a.views[view] = origin.view;
  m->a.views[view].operand = number;
  return ir_is_poison(x) ? ir_poison_error(job->ctx) : QUERN_STATUS_OK;
}

/* Result r of the composite as a result of its own; its view is that of the tensor it becomes. */
static void add_result(struct making *m, int view, quern_tensor *y, bool rows_first) {
  int64_t heads = y->dims[1], rows = y->dims[2], width = y->dims[3];
  set_dense(y, m->n_results, &m->a.views[view]);
  if (rows_first) {
    m->a.views[view].head = width;
    m->a.views[view].row = heads * width;
  }
  m->a.views[view].batch = heads * rows * width;
  m->result[m->n_results++] = rows_first ? transpose(y) : y;
}

/* All gradients as one result, in the order of the sink. */
static void add_whole(struct making *m, quern_tensor *inner) {
  const struct ir_node *sink = m->site->sink;
  quern_tensor *parts[RESULTS];
  for (int i = 0; i < RESULTS; i++) {
    const struct path *path = &m->site->paths[i];
    quern_tensor *x = ir_result(inner, path->result->result);
    for (int n = path->n; n-- > 0 && !ir_is_poison(x);)
      x = ir_make(inner->node->ctx, path->steps[n]->op, 1, &x, path->steps[n]->attrs);
    parts[i] = x;
    m->a.views[PASS_VIEW_DQ + path->result->result] = path->view;
  }
  m->result[m->n_results++] = ir_make(inner->node->ctx, IR_CONCAT, RESULTS, parts, sink->attrs);
}

static quern_status make_body(struct job *job, struct making *m, const struct ir_graph **body) {
  const struct ir_node *node = m->node;
  quern_tensor *inner = ir_make(job->ctx, IR_COMPOSITE, node->n_src, m->operand, node->attrs);
  if (ir_is_poison(inner)) return ir_poison_error(job->ctx);
  if (m->site->sink != NULL) {
    add_whole(m, inner);
  } else {
    int first = m->a.back ? PASS_VIEW_DQ : PASS_VIEW_Y, n = m->a.back ? RESULTS : 1;
    for (int r = 0; r < n; r++) add_result(m, first + r, ir_result(inner, r), m->site->transpose[r]);
    if (!m->a.back) m->result[m->n_results++] = ir_result(inner, 1);
  }
  for (int i = 0; i < m->n_results; i++)
    if (ir_is_poison(m->result[i])) return ir_poison_error(job->ctx);
  return ir_graph_make(job->ctx, m->n, m->leaf, m->n_results, m->result, body);
}

/* The plain results of what was made; with a sink nobody asks for them. */
static quern_status give(struct job *job, const struct making *m, quern_tensor *made, quern_tensor *const *src,
                         quern_tensor **out) {
  if (m->site->sink != NULL) {
    m->site->whole = made;
    return ir_rebuild((struct ir_node *)(uintptr_t)m->node, src, out);
  }
  for (int r = 0; r < m->node->n_out; r++) {
    out[r] = ir_result(made, r);
    if (m->site->transpose[r]) out[r] = transpose(out[r]);
    if (ir_is_poison(out[r])) return ir_poison_error(job->ctx);
  }
  return QUERN_STATUS_OK;
}

static quern_status rebuild_site(struct job *job, struct site *site, quern_tensor *const *src, quern_tensor **out) {
  const struct ir_node *node = site->node;
  struct making m = {.node = node, .site = site};
  (void)pass_attention_read(node, &m.a);
  for (int i = 0; i < PASS_VIEWS; i++) {
    int from = plain_place(i, m.a.back);
    if (from >= 0 && !pass_operand_view_is_out(i, m.a.back)) QUERN_TRY(add_operand(job, &m, i, src[from]));
  }
  if (m.a.back) m.operand[LSE_SOURCE] = m.leaf[add_source(&m, src[LSE_SOURCE], true)];
  for (int i = 0; i < m.n; i++)
    if (ir_is_poison(m.leaf[i])) return ir_poison_error(job->ctx);
  struct ir_attrs attrs = {.name = placed_names[m.a.back], .reals = node->attrs->reals};
  QUERN_TRY(make_body(job, &m, &attrs.body));
  int64_t ints[INTS];
  write_ints(&m.a, ints);
  attrs.ints = (struct ir_ints){INTS, ints};
  quern_tensor *made = ir_make(job->ctx, IR_COMPOSITE, m.n, m.src, &attrs);
  return ir_is_poison(made) ? ir_poison_error(job->ctx) : give(job, &m, made, src, out);
}

static quern_status visit(void *user, struct ir_node *node, quern_tensor *const *src, quern_tensor **out) {
  struct job *job = user;
  struct site *site = node->op == IR_COMPOSITE ? find_site(job, node) : NULL;
  if (site != NULL) return rebuild_site(job, site, src, out);
  site = node->op == IR_CONCAT ? base_map_find(&job->sinks, hash_of(node), is_sink, node) : NULL;
  bool twice =
      is_transposed(node) && is_transposed(src[0]->node) && find_name(placed_names, src[0]->node->src[0]->node) >= 0;
  if (site == NULL && !twice) return ir_rebuild(node, src, out);
  out[0] = site != NULL ? site->whole : src[0]->node->src[0];
  return QUERN_STATUS_OK;
}

quern_status pass_attention_views(struct pass_graph *graph, const struct pass_options *options) {
  if (options->target == NULL || !options->target->gpu || options->supports == NULL) return QUERN_STATUS_OK;
  struct job job = {.options = options, .ctx = graph->ctx};
  base_arena_init(&job.arena, &graph->ctx->heap);
  base_map_init(&job.sites, &graph->ctx->heap);
  base_map_init(&job.sinks, &graph->ctx->heap);
  base_map_init(&job.graphs, &graph->ctx->heap);
  quern_status status = scan_all(&job, graph);
  if (status == QUERN_STATUS_OK && job.sites.n > 0) status = pass_subgraphs(graph, visit, &job);
  base_vec_fini(&graph->ctx->heap, &job.waiting);
  base_map_fini(&job.graphs);
  base_map_fini(&job.sinks);
  base_map_fini(&job.sites);
  base_arena_fini(&job.arena);
  return status;
}
