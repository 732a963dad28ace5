/* pass/dynamic_batch.c -- which tensors have rows of a dynamic batch, and where; graphs that mix rows are refused
** in:    the graph after the passes; the inputs of the dynamic batch by pass_dynamic_batch_set
** out:   the stride of every tensor: element i belongs to row (i / stride) mod most, and depends on that row of these
**        inputs only; no stride: it depends on none of them, and fits to any rows
** keeps: one rule per op, in a table. Most ops act on axes: rows lie in one axis of a source, k, as (before, row, f
**        elements), and in one axis of the result in the same way
** see:   docs/design/003-dynamic-batch.md     tests: tests/pass/test_dynamic_batch.c, tests/engine/test_dynamic_batch.c
*/
#include "pass/pass_int.h"

/* ---- strides ------------------------------------------------------------------------------------------- */

struct entry {
  const quern_tensor *tensor;
  int64_t stride;
};

static uint64_t tensor_hash(const quern_tensor *t) {
  return base_hash_u64(BASE_HASH_SEED, (uint64_t)t->node->id << 8 | (uint64_t)(uint32_t)t->result);
}

static bool same_tensor(const void *item, const void *key) { return ((const struct entry *)item)->tensor == key; }

void pass_dynamic_batch_init(struct pass_dynamic_batch *rows, struct base_heap *heap, int64_t most) {
  *rows = (struct pass_dynamic_batch){.most = most};
  base_arena_init(&rows->arena, heap);
  base_map_init(&rows->strides, heap);
  base_map_init(&rows->graphs, heap);
}

void pass_dynamic_batch_fini(struct pass_dynamic_batch *rows) {
  base_map_fini(&rows->graphs);
  base_map_fini(&rows->strides);
  base_arena_fini(&rows->arena);
}

quern_status pass_dynamic_batch_set(struct pass_dynamic_batch *rows, const quern_tensor *t, int64_t stride) {
  if (stride == 0) return QUERN_STATUS_OK;
  struct entry *entry = base_arena_new(&rows->arena, struct entry);
  if (entry == NULL) return QUERN_STATUS_MEMORY;
  *entry = (struct entry){t, stride};
  return base_map_add(&rows->strides, tensor_hash(t), entry) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

int64_t pass_dynamic_batch_get(const struct pass_dynamic_batch *rows, const quern_tensor *t) {
  const struct entry *entry = base_map_find(&rows->strides, tensor_hash(t), same_tensor, t);
  return entry != NULL ? entry->stride : 0;
}

bool pass_dynamic_batch_is_outermost(const struct pass_dynamic_batch *rows, const quern_tensor *t) {
  int64_t stride = pass_dynamic_batch_get(rows, t);
  return stride > 0 && stride * rows->most == ir_count(t);
}

/* ---- rows in axes -------------------------------------------------------------------------------------- */

/* The axis that rows of that stride lie in, and the elements of it that one row has. There is at most one for two rows
** and more. */
static bool find_axis(const struct pass_dynamic_batch *rows, const quern_tensor *t, int64_t stride, int *axis,
                      int64_t *inner) {
  int64_t after = 1;
  for (int k = t->rank - 1; k >= 0 && after > 0; k--) {
    int64_t whole = after * t->dims[k];
    if (stride % after == 0 && whole % (stride * rows->most) == 0) {
      *axis = k;
      *inner = stride / after;
      return true;
    }
    after = whole;
  }
  return false;
}

static int64_t stride_in(const quern_tensor *t, int axis, int64_t inner) {
  for (int k = axis + 1; k < t->rank; k++) inner *= t->dims[k];
  return inner;
}

static bool has(struct ir_ints list, int64_t x) {
  for (int i = 0; i < list.n; i++)
    if (list.at[i] == x) return true;
  return false;
}

/* How many of the list are less. */
static int below(struct ir_ints list, int64_t x) {
  int n = 0;
  for (int i = 0; i < list.n; i++) n += list.at[i] < x;
  return n;
}

/* ---- one function per op: where axis k of source s is in the result; -1: its elements are mixed, or some are left
** out */

typedef int axis_map(const struct ir_node *node, int s, int k);

static int map_permute(const struct ir_node *node, int s, int k) {
  (void)s;
  for (int i = 0; i < node->attrs->axes.n; i++)
    if (node->attrs->axes.at[i] == k) return i;
  return -1;
}

/* Of ops that keep the place of axes: whole ones only. */
static int map_whole(const struct ir_node *node, int s, int k) {
  return node->src[s]->dims[k] == node->out[0].dims[k] ? k : -1;
}

static int map_pad(const struct ir_node *node, int s, int k) {
  const struct ir_attrs *a = node->attrs;
  return s == 0 && a->lo.at[k] == 0 && a->hi.at[k] == 0 && a->mid.at[k] == 0 ? k : -1;
}

static int map_slice(const struct ir_node *node, int s, int k) {
  return node->attrs->lo.at[k] == 0 && node->attrs->step.at[k] == 1 ? map_whole(node, s, k) : -1;
}

static int map_others(const struct ir_node *node, int s, int k) { /* flip, window */
  (void)s;
  return has(node->attrs->axes, k) ? -1 : k;
}

static int map_col2im(const struct ir_node *node, int s, int k) {
  return k < node->out[0].rank ? map_others(node, s, k) : -1;
}

static int map_other(const struct ir_node *node, int s, int k) { /* concat, scan, sort */
  (void)s;
  return k == node->attrs->axis ? -1 : k;
}

/* The block that is put in must have all rows; what it is put into keeps its own. */
static int map_update(const struct ir_node *node, int s, int k) { return s == 0 ? k : map_whole(node, s, k); }

static int map_reduce(const struct ir_node *node, int s, int k) {
  (void)s;
  return has(node->attrs->axes, k) ? -1 : k - below(node->attrs->axes, k);
}

static int map_argreduce(const struct ir_node *node, int s, int k) {
  (void)s;
  return k == node->attrs->axis ? -1 : k - (k > node->attrs->axis);
}

/* y[n, p, i, q] = a[n, p, b[n, i], q] */
static int map_gather(const struct ir_node *node, int s, int k) {
  int axis = (int)node->attrs->axis, batch = (int)node->attrs->batch, picked = node->src[1]->rank - batch;
  if (s == 1) return k < batch ? k : axis + k - batch;
  return k == axis ? -1 : k < axis ? k : k - 1 + picked;
}

/* y = a, then y[n, p, b[n, i], q] takes u[n, p, i, q] */
static int map_scatter(const struct ir_node *node, int s, int k) {
  int axis = (int)node->attrs->axis, batch = (int)node->attrs->batch, picked = node->src[1]->rank - batch;
  if (s == 0) return k == axis ? -1 : k;
  if (s == 1) return k < batch ? k : -1;
  return k < axis ? k : k < axis + picked ? -1 : k - picked + 1;
}

/* y[n, i, j]: batch, free of a, free of b */
static int map_dot(const struct ir_node *node, int s, int k) {
  const struct ir_attrs *a = node->attrs;
  struct ir_ints batch = s == 0 ? a->a_batch : a->b_batch, sum = s == 0 ? a->a_sum : a->b_sum;
  for (int i = 0; i < batch.n; i++)
    if (batch.at[i] == k) return i;
  if (has(sum, k)) return -1;
  int free_a = node->src[0]->rank - batch.n - sum.n;
  return batch.n + (s == 1 ? free_a : 0) + k - below(batch, k) - below(sum, k);
}

static axis_map *const axis_maps[IR_OP_COUNT] = {
    [IR_PERMUTE] = map_permute, [IR_BROADCAST] = map_whole,     [IR_PAD] = map_pad,        [IR_SLICE] = map_slice,
    [IR_FLIP] = map_others,     [IR_CONCAT] = map_other,        [IR_SLICE_AT] = map_whole, [IR_UPDATE_AT] = map_update,
    [IR_WINDOW] = map_others,   [IR_COL2IM] = map_col2im,       [IR_GATHER] = map_gather,  [IR_SCATTER] = map_scatter,
    [IR_REDUCE] = map_reduce,   [IR_ARGREDUCE] = map_argreduce, [IR_SCAN] = map_other,     [IR_SORT] = map_other,
    [IR_DOT] = map_dot,
};

/* ---- rules --------------------------------------------------------------------------------------------- */

/* Gives the strides of a node's results from those of its sources, some of which have rows; or refuses. */
typedef quern_status rule(struct pass_dynamic_batch *rows, const struct ir_node *node, const int64_t *src,
                          int64_t *out);

static quern_status refuse_axis(const struct pass_dynamic_batch *rows, const struct ir_node *node, int s, int axis) {
  char type[IR_TYPE_TEXT];
  return base_error(
      QUERN_STATUS_UNSUPPORTED,
      "dynamic batch: %s of %s mixes rows, or leaves some out: the dynamic batch of %lld lies in axis %d of "
      "its source %d",
      ir_ops[node->op].name, ir_type_text(type, node->src[s]), (long long)rows->most, axis, s);
}

static quern_status refuse_pair(const struct ir_node *node, int s, int t) {
  char one[IR_TYPE_TEXT], other[IR_TYPE_TEXT];
  return base_error(QUERN_STATUS_UNSUPPORTED,
                    "dynamic batch: %s mixes rows: they lie differently in its sources %d, %s, and %d, %s",
                    ir_ops[node->op].name, s, ir_type_text(one, node->src[s]), t, ir_type_text(other, node->src[t]));
}

/* Element by element, or the same elements under another shape. */
static quern_status rule_same(struct pass_dynamic_batch *rows, const struct ir_node *node, const int64_t *src,
                              int64_t *out) {
  (void)rows;
  int first = 0;
  while (src[first] == 0) first++;
  for (int s = first + 1; s < node->n_src; s++)
    if (src[s] != 0 && src[s] != src[first]) return refuse_pair(node, first, s);
  out[0] = src[first];
  return QUERN_STATUS_OK;
}

static quern_status rule_axes(struct pass_dynamic_batch *rows, const struct ir_node *node, const int64_t *src,
                              int64_t *out) {
  int first = -1, to = -1;
  int64_t inner = 0;
  for (int s = 0; s < node->n_src; s++) {
    if (src[s] == 0) continue;
    int axis;
    int64_t part;
    char type[IR_TYPE_TEXT];
    QUERN_CHECK(find_axis(rows, node->src[s], src[s], &axis, &part), UNSUPPORTED,
                "dynamic batch: %s of %s: the dynamic batch of %lld lies across several axes of its source %d",
                ir_ops[node->op].name, ir_type_text(type, node->src[s]), (long long)rows->most, s);
    int at = axis_maps[node->op](node, s, axis);
    if (at < 0) return refuse_axis(rows, node, s, axis);
    if (first >= 0 && (at != to || part != inner)) return refuse_pair(node, first, s);
    first = s;
    to = at;
    inner = part;
  }
  for (int i = 0; i < node->n_out; i++) out[i] = stride_in(&node->out[i], to, inner);
  return QUERN_STATUS_OK;
}

/* ---- subgraphs ---------------------------------------------------------------------------------------- */

static quern_status find(struct pass_dynamic_batch *rows, quern_context *ctx, size_t n, quern_tensor *const *roots);

/* The only row is all of a tensor. */
static int64_t stride_of(const struct pass_dynamic_batch *rows, const quern_tensor *t, int64_t stride) {
  return rows->most == 1 && stride != 0 ? ir_count(t) : stride;
}

static int64_t *new_strides(struct pass_dynamic_batch *rows, int n) {
  return base_arena_alloc(&rows->arena, ((size_t)n + 1) * sizeof(int64_t));
}

/* A subgraph that was met, the strides of its params and of its results. */
struct met {
  const struct ir_graph *graph;
  const int64_t *params;
  int64_t *results;
};

static bool same_met(const void *item, const void *key) {
  const struct met *a = item, *b = key;
  return a->graph == b->graph && memcmp(a->params, b->params, (size_t)a->graph->n_params * sizeof *a->params) == 0;
}

/* Looks at the graph. Recursion is as deep as graphs lie in graphs. */
static quern_status look_inside(struct pass_dynamic_batch *rows, const struct ir_graph *graph, const int64_t *params,
                                int64_t *results) {
  struct pass_dynamic_batch inside;
  pass_dynamic_batch_init(&inside, rows->arena.heap, rows->most);
  inside.outermost = rows->outermost != NULL ? rows->outermost : rows;
  quern_status status = QUERN_STATUS_OK;
  for (int i = 0; i < graph->n_params && status == QUERN_STATUS_OK; i++)
    status = pass_dynamic_batch_set(&inside, graph->params[i], stride_of(rows, graph->params[i], params[i]));
  if (status == QUERN_STATUS_OK) status = find(&inside, graph->ctx, (size_t)graph->n_results, graph->results);
  for (int i = 0; i < graph->n_results && status == QUERN_STATUS_OK; i++)
    results[i] = pass_dynamic_batch_get(&inside, graph->results[i]);
  pass_dynamic_batch_fini(&inside);
  return status;
}

/* results: the strides of a graph's results when its params have those. */
static quern_status find_graph(struct pass_dynamic_batch *rows, const struct ir_graph *graph, const int64_t *params,
                               int64_t *results) {
  struct pass_dynamic_batch *outermost = rows->outermost != NULL ? rows->outermost : rows;
  size_t bytes = (size_t)graph->n_params * sizeof *params;
  uint64_t hash = base_hash_bytes(base_hash_u64(BASE_HASH_SEED, graph->id), params, bytes);
  struct met key = {graph, params, NULL}, *met = base_map_find(&outermost->graphs, hash, same_met, &key);
  if (met == NULL) {
    met = base_arena_new(&outermost->arena, struct met);
    if (met == NULL) return QUERN_STATUS_MEMORY;
    *met = (struct met){graph, base_arena_copy(&outermost->arena, params, bytes),
                        new_strides(outermost, graph->n_results)};
    if (met->params == NULL || met->results == NULL) return QUERN_STATUS_MEMORY;
    QUERN_TRY(look_inside(rows, graph, params, met->results));
    if (!base_map_add(&outermost->graphs, hash, met)) return QUERN_STATUS_MEMORY;
  }
  for (int i = 0; i < graph->n_results; i++) results[i] = met->results[i];
  return QUERN_STATUS_OK;
}

static quern_status rule_composite(struct pass_dynamic_batch *rows, const struct ir_node *node, const int64_t *src,
                                   int64_t *out) {
  return find_graph(rows, node->attrs->body, src, out);
}

static quern_status refuse_condition(const struct ir_node *node) {
  return base_error(QUERN_STATUS_UNSUPPORTED, "dynamic batch: the condition of %s depends on rows",
                    ir_ops[node->op].name);
}

/* Rows of one kind, or none, in both. */
static bool join(int64_t *stride, int64_t other) {
  if (*stride != 0 && other != 0 && *stride != other) return false;
  if (*stride == 0) *stride = other;
  return true;
}

static quern_status rule_if(struct pass_dynamic_batch *rows, const struct ir_node *node, const int64_t *src,
                            int64_t *out) {
  int64_t *other = new_strides(rows, node->n_out);
  if (other == NULL) return QUERN_STATUS_MEMORY;
  if (src[0] != 0) return refuse_condition(node);
  QUERN_TRY(find_graph(rows, node->attrs->body, src + 1, out));
  QUERN_TRY(find_graph(rows, node->attrs->other, src + 1, other));
  for (int i = 0; i < node->n_out; i++)
    QUERN_CHECK(join(&out[i], other[i]), UNSUPPORTED,
                "dynamic batch: if: rows of result %d lie differently in its branches", i);
  return QUERN_STATUS_OK;
}

/* The strides of a body's params, the first `carries` of which (from params[first] on) are its results again: a carry
** has rows from the first iteration on when it has them after one. */
static quern_status find_carried(struct pass_dynamic_batch *rows, const struct ir_node *node, int first,
                                 int64_t *params, int64_t *results) {
  int carries = (int)node->attrs->carries;
  for (bool more = true; more;) {
    more = false;
    QUERN_TRY(find_graph(rows, node->attrs->body, params, results));
    for (int i = 0; i < carries; i++) {
      int64_t before = params[first + i];
      QUERN_CHECK(join(&params[first + i], results[i]), UNSUPPORTED,
                  "dynamic batch: %s: rows of carry %d lie differently after a turn", ir_ops[node->op].name, i);
      more = more || params[first + i] != before;
    }
  }
  for (int i = 0; i < carries; i++) results[i] = params[first + i];
  return QUERN_STATUS_OK;
}

/* params: the strides of the params of a loop's or while's body; out: those of the node's results. */
static quern_status find_params(struct pass_dynamic_batch *rows, const struct ir_node *node, const int64_t *src,
                                int64_t *params, int64_t *out) {
  int carries = (int)node->attrs->carries, scanned = node->op == IR_LOOP ? (int)node->attrs->scanned : 0;
  int first = node->op == IR_LOOP ? 1 : 0; /* the number of the iteration comes first */
  params[0] = 0;
  for (int s = 0; s < node->n_src; s++) {
    params[first + s] = src[s];
    int64_t turn = ir_count(node->attrs->body->params[first + s]);
    bool by_turns = s >= carries && s < carries + scanned;
    if (by_turns && rows->most > 1 && src[s] != 0 && turn % (src[s] * rows->most) != 0)
      return refuse_axis(rows, node, s, 0);
  }
  return find_carried(rows, node, first, params, out);
}

static quern_status rule_loop(struct pass_dynamic_batch *rows, const struct ir_node *node, const int64_t *src,
                              int64_t *out) {
  int64_t *params = new_strides(rows, 1 + node->n_src);
  return params != NULL ? find_params(rows, node, src, params, out) : QUERN_STATUS_MEMORY;
}

static quern_status rule_while(struct pass_dynamic_batch *rows, const struct ir_node *node, const int64_t *src,
                               int64_t *out) {
  int64_t *params = new_strides(rows, node->n_src), goes_on;
  if (params == NULL) return QUERN_STATUS_MEMORY;
  QUERN_TRY(find_params(rows, node, src, params, out));
  QUERN_TRY(find_graph(rows, node->attrs->other, params, &goes_on));
  return goes_on != 0 ? refuse_condition(node) : QUERN_STATUS_OK;
}

/* ---- the walk ------------------------------------------------------------------------------------------ */

/* The only row cannot be mixed with another: everything that it reaches is of it. */
static quern_status rule_only(struct pass_dynamic_batch *rows, const struct ir_node *node, const int64_t *src,
                              int64_t *out) {
  (void)rows, (void)src;
  for (int i = 0; i < node->n_out; i++) out[i] = 1;
  return QUERN_STATUS_OK;
}

static rule *rule_of(const struct pass_dynamic_batch *rows, const struct ir_node *node) {
  static rule *const others[IR_OP_COUNT] = {
      [IR_RESHAPE] = rule_same, [IR_CHECKPOINT] = rule_same, [IR_COMPOSITE] = rule_composite,
      [IR_IF] = rule_if,        [IR_LOOP] = rule_loop,       [IR_WHILE] = rule_while};
  bool elements = pass_is_elementwise(node) || axis_maps[node->op] != NULL || others[node->op] == rule_same;
  if (elements && rows->most == 1) return rule_only;
  if (pass_is_elementwise(node)) return rule_same;
  return axis_maps[node->op] != NULL ? rule_axes : others[node->op];
}

static quern_status find_node(struct pass_dynamic_batch *rows, const struct ir_node *node) {
  int64_t *src = new_strides(rows, node->n_src), *out = new_strides(rows, node->n_out);
  bool any = false;
  if (src == NULL || out == NULL) return QUERN_STATUS_MEMORY;
  for (int s = 0; s < node->n_src; s++) {
    src[s] = pass_dynamic_batch_get(rows, node->src[s]);
    any = any || src[s] != 0;
  }
  rule *give = rule_of(rows, node);
  if (!any) return QUERN_STATUS_OK;
  QUERN_CHECK(give != NULL, UNSUPPORTED, "dynamic batch: there is no rule for rows of %s", ir_ops[node->op].name);
  QUERN_TRY(give(rows, node, src, out));
  for (int i = 0; i < node->n_out; i++)
    QUERN_TRY(pass_dynamic_batch_set(rows, &node->out[i], stride_of(rows, &node->out[i], out[i])));
  return QUERN_STATUS_OK;
}

static quern_status find(struct pass_dynamic_batch *rows, quern_context *ctx, size_t n, quern_tensor *const *roots) {
  struct ir_order order;
  QUERN_TRY(ir_topo(ctx, n, roots, &order));
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < order.n && status == QUERN_STATUS_OK; i++) status = find_node(rows, order.at[i]);
  ir_order_fini(ctx, &order);
  return status;
}

quern_status pass_dynamic_batch_find(struct pass_dynamic_batch *rows, const struct pass_graph *graph) {
  return find(rows, graph->ctx, graph->n_roots, graph->roots);
}

quern_status pass_dynamic_batch_body(struct pass_dynamic_batch *inside, struct pass_dynamic_batch *rows,
                                     const struct ir_node *node) {
  const struct ir_graph *body = node->attrs->body;
  int64_t *src = new_strides(rows, node->n_src), *params = new_strides(rows, 1 + node->n_src);
  int64_t *out = new_strides(rows, node->n_out);
  if (src == NULL || params == NULL || out == NULL) return QUERN_STATUS_MEMORY;
  for (int s = 0; s < node->n_src; s++) src[s] = pass_dynamic_batch_get(rows, node->src[s]);
  QUERN_TRY(find_params(rows, node, src, params, out));
  for (int i = 0; i < body->n_params; i++)
    QUERN_TRY(pass_dynamic_batch_set(inside, body->params[i], stride_of(rows, body->params[i], params[i])));
  return find(inside, body->ctx, (size_t)body->n_results, body->results);
}
