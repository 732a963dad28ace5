/* runtime/cuda/dnn_graph.c -- the operations of attention as cuDNN's descriptors
** cuDNN has no call for attention: it has kernels for graphs of products, points and reductions that look like attention in each of their
** parts. They are written here in the order and with the types that these kernels are looked up by.
** forward:  s = scale q k', -inf where key > query; m = max s; e = exp(s - m); l = sum e; lse = m + log l; y = (e / l) v
** backward: D = sum dy y; p = exp(s - lse); dv = p' dy; dS = scale p (dy v' - D); dk = dS' q; dq = dS k. Where dq is added up by those who
**           come first, the sums are f32 and in the workspace; where the same bits are wanted every time dS is (the library's workspace).
** see: docs/design/008-libraries.md      tests: tests/runtime/test_dnn.c
*/
#include "runtime/cuda/dnn.h"

#include <math.h>

enum { AXES = 4, ALIGNMENT = 16, FIRST_VIRTUAL = 100 };

struct shape {
  int64_t dims[AXES], strides[AXES];
};

/* ---- descriptors ------------------------------------------------------------------------------------------ */

static void fail(struct rt_dnn_graph *g, int code, const char *what) {
  if (g->failed == QUERN_STATUS_OK) g->failed = rt_dnn_check(g->plan->dnn, code, what);
}

void *rt_dnn_make(struct rt_dnn_graph *g, int type) {
  struct rt_dnn_plan *plan = g->plan;
  void *made = NULL;
  if (g->failed != QUERN_STATUS_OK) return NULL;
  if (plan->n_made == RT_DNN_MOST) {
    g->failed = base_error(QUERN_STATUS_INTERNAL, "cuDNN: a plan of more than %d descriptors", (int)RT_DNN_MOST);
    return NULL;
  }
  fail(g, plan->dnn->make(type, &made), "a descriptor");
  if (g->failed != QUERN_STATUS_OK) return NULL;
  plan->made[plan->n_made++] = made;
  return made;
}

void rt_dnn_set(struct rt_dnn_graph *g, void *descriptor, int name, int type, int64_t n, const void *at) {
  if (g->failed != QUERN_STATUS_OK) return;
  fail(g, g->plan->dnn->set(descriptor, name, type, n, at), "an attribute");
}

void rt_dnn_finish(struct rt_dnn_graph *g, void *descriptor) {
  if (g->failed != QUERN_STATUS_OK) return;
  fail(g, g->plan->dnn->finish(descriptor), "a descriptor");
}

static void set_int(struct rt_dnn_graph *g, void *d, int name, int64_t value) {
  rt_dnn_set(g, d, name, RT_DNN_TYPE_INT64, 1, &value);
}
/* An enum of the library, which is an int. */
static void set_enum(struct rt_dnn_graph *g, void *d, int name, int type, int value) {
  rt_dnn_set(g, d, name, type, 1, &value);
}
static void set_descriptor(struct rt_dnn_graph *g, void *d, int name, void *value) {
  rt_dnn_set(g, d, name, RT_DNN_TYPE_DESCRIPTOR, 1, &value);
}

/* ---- tensors ---------------------------------------------------------------------------------------------- */

static void *tensor(struct rt_dnn_graph *g, int64_t id, int dtype, const struct shape *s, bool virtual_tensor,
                    bool value) {
  void *d = rt_dnn_make(g, RT_DNN_TENSOR);
  const int64_t alignment = ALIGNMENT;
  set_enum(g, d, RT_DNN_TENSOR_DTYPE, RT_DNN_TYPE_DTYPE, dtype);
  rt_dnn_set(g, d, RT_DNN_TENSOR_DIMS, RT_DNN_TYPE_INT64, AXES, s->dims);
  rt_dnn_set(g, d, RT_DNN_TENSOR_STRIDES, RT_DNN_TYPE_INT64, AXES, s->strides);
  set_int(g, d, RT_DNN_TENSOR_ID, id);
  rt_dnn_set(g, d, RT_DNN_TENSOR_ALIGNMENT, RT_DNN_TYPE_INT64, 1, &alignment);
  if (virtual_tensor) rt_dnn_set(g, d, RT_DNN_TENSOR_VIRTUAL, RT_DNN_TYPE_BOOL, 1, &virtual_tensor);
  if (value) rt_dnn_set(g, d, RT_DNN_TENSOR_VALUE, RT_DNN_TYPE_BOOL, 1, &value);
  rt_dnn_finish(g, d);
  return d;
}

static struct shape dense(int64_t batch, int64_t heads, int64_t rows, int64_t columns) {
  return (struct shape){{batch, heads, rows, columns}, {heads * rows * columns, rows * columns, columns, 1}};
}
/* The last two axes change places. */
static struct shape turned(struct shape s) {
  return (struct shape){{s.dims[0], s.dims[1], s.dims[3], s.dims[2]},
                        {s.strides[0], s.strides[1], s.strides[3], s.strides[2]}};
}
static struct shape viewed(const struct rt_dnn_graph *g, const struct kern_view *view, int64_t heads, int64_t rows,
                           int64_t width) {
  return (struct shape){{g->call->batch, heads, rows, width}, {view->batch, view->head, view->row, 1}};
}
static struct shape of_scores(const struct rt_dnn_graph *g) {
  return dense(g->call->batch, g->call->heads, g->call->queries, g->call->keys);
}
static struct shape of_rows(const struct rt_dnn_graph *g) {
  return dense(g->call->batch, g->call->heads, g->call->queries, 1);
}
static struct shape of_queries(const struct rt_dnn_graph *g, const struct kern_view *view, int64_t width) {
  return viewed(g, view, g->call->heads, g->call->queries, width);
}
static struct shape of_keys(const struct rt_dnn_graph *g, const struct kern_view *view, int64_t width) {
  return viewed(g, view, g->call->kv_heads, g->call->keys, width);
}

/* One that is given when the plan runs. */
static void *given(struct rt_dnn_graph *g, int64_t id, int dtype, struct shape s, int mem, int64_t at) {
  struct rt_dnn_plan *plan = g->plan;
  if (g->failed != QUERN_STATUS_OK) return NULL;
  int place = plan->n_tensors++;
  plan->id[place] = id;
  plan->mem[place] = mem;
  plan->at[place] = at;
  return tensor(g, id, dtype, &s, false, mem == -1);
}
static void *stored(struct rt_dnn_graph *g, int64_t id, const struct kern_view *view, struct shape s) {
  return given(g, id, g->dtype, s, view->mem, 2 * view->at);
}
static void *number(struct rt_dnn_graph *g, int64_t id, int dtype) {
  return given(g, id, dtype, dense(1, 1, 1, 1), -1, 0);
}
/* f32 or i32 in the workspace. */
static void *kept(struct rt_dnn_graph *g, int64_t id, int dtype, struct shape s) {
  int64_t at = g->work, bytes = s.dims[0] * s.dims[1] * s.dims[2] * s.dims[3] * 4;
  g->work += (bytes + 255) / 256 * 256;
  return given(g, id, dtype, s, -2, at);
}
static void *virtual_tensor(struct rt_dnn_graph *g, int dtype, struct shape s) {
  return tensor(g, g->next++, dtype, &s, true, false);
}

/* ---- operations ------------------------------------------------------------------------------------------- */

static void add_op(struct rt_dnn_graph *g, void *d) {
  rt_dnn_finish(g, d);
  if (g->failed == QUERN_STATUS_OK) g->ops[g->n_ops++] = d;
}

/* y = mode(x, b, t); b and t NULL: none. axis -1: none. */
static void *point(struct rt_dnn_graph *g, int mode, int dtype, int axis, void *x, void *b, void *t, void *y) {
  void *how = rt_dnn_make(g, RT_DNN_POINT);
  set_enum(g, how, RT_DNN_POINT_MODE, RT_DNN_TYPE_POINT, mode);
  set_enum(g, how, RT_DNN_POINT_DTYPE, RT_DNN_TYPE_DTYPE, dtype);
  if (axis >= 0) set_int(g, how, RT_DNN_POINT_AXIS, axis);
  rt_dnn_finish(g, how);
  void *d = rt_dnn_make(g, RT_DNN_POINT_OP);
  set_descriptor(g, d, RT_DNN_POINT_OP_HOW, how);
  set_descriptor(g, d, RT_DNN_POINT_OP_X, x);
  if (b != NULL) set_descriptor(g, d, RT_DNN_POINT_OP_B, b);
  if (t != NULL) set_descriptor(g, d, RT_DNN_POINT_OP_T, t);
  set_descriptor(g, d, RT_DNN_POINT_OP_Y, y);
  add_op(g, d);
  return y;
}
/* The same in f32 of one or two, as a new tensor of that shape. */
static void *math(struct rt_dnn_graph *g, int mode, void *x, void *b, struct shape s) {
  void *y = virtual_tensor(g, RT_DNN_F32, s);
  return point(g, mode, RT_DNN_F32, -1, x, b, NULL, y);
}

/* Which extents of a product each sample has its own number of: rows, columns, terms; NULL: none. */
struct limits {
  void *rows, *columns, *terms;
};

static void *multiply(struct rt_dnn_graph *g, struct limits most, void *a, void *b, void *c) {
  void *how = rt_dnn_make(g, RT_DNN_PRODUCT);
  set_enum(g, how, RT_DNN_PRODUCT_DTYPE, RT_DNN_TYPE_DTYPE, RT_DNN_F32);
  rt_dnn_finish(g, how);
  void *d = rt_dnn_make(g, RT_DNN_PRODUCT_OP);
  set_descriptor(g, d, RT_DNN_PRODUCT_OP_A, a);
  set_descriptor(g, d, RT_DNN_PRODUCT_OP_B, b);
  set_descriptor(g, d, RT_DNN_PRODUCT_OP_C, c);
  set_descriptor(g, d, RT_DNN_PRODUCT_OP_HOW, how);
  if (most.rows != NULL) set_descriptor(g, d, RT_DNN_PRODUCT_OP_ROWS, most.rows);
  if (most.columns != NULL) set_descriptor(g, d, RT_DNN_PRODUCT_OP_COLUMNS, most.columns);
  if (most.terms != NULL) set_descriptor(g, d, RT_DNN_PRODUCT_OP_TERMS, most.terms);
  add_op(g, d);
  return c;
}

static void *reduce(struct rt_dnn_graph *g, int mode, void *x, void *y) {
  void *how = rt_dnn_make(g, RT_DNN_REDUCTION);
  set_enum(g, how, RT_DNN_REDUCTION_DTYPE, RT_DNN_TYPE_DTYPE, RT_DNN_F32);
  set_enum(g, how, RT_DNN_REDUCTION_MODE, RT_DNN_TYPE_REDUCTION, mode);
  rt_dnn_finish(g, how);
  void *d = rt_dnn_make(g, RT_DNN_REDUCTION_OP);
  set_descriptor(g, d, RT_DNN_REDUCTION_OP_X, x);
  set_descriptor(g, d, RT_DNN_REDUCTION_OP_Y, y);
  set_descriptor(g, d, RT_DNN_REDUCTION_OP_HOW, how);
  add_op(g, d);
  return y;
}

/* x under another shape. */
static void *reshape(struct rt_dnn_graph *g, void *x, int dtype, struct shape s) {
  void *y = virtual_tensor(g, dtype, s), *d = rt_dnn_make(g, RT_DNN_RESHAPE_OP);
  set_descriptor(g, d, RT_DNN_RESHAPE_OP_X, x);
  set_descriptor(g, d, RT_DNN_RESHAPE_OP_Y, y);
  add_op(g, d);
  return y;
}

/* ---- attention -------------------------------------------------------------------------------------------- */

/* The numbers of queries and keys of each sample, where the library requires them: they are all of them. */
struct lengths {
  void *queries, *keys;
};
static const struct limits all = {NULL, NULL, NULL};

/* Scores with -inf where the key comes after the query, counted from the end. */
static void *masked(struct rt_dnn_graph *g, void *s, struct lengths of) {
  const struct kern_attention *a = g->call;
  struct shape shape = of_scores(g);
  void *row = virtual_tensor(g, RT_DNN_I32, shape), *column = virtual_tensor(g, RT_DNN_I32, shape);
  point(g, RT_DNN_INDEX, RT_DNN_F32, 2, s, NULL, NULL, row);
  point(g, RT_DNN_INDEX, RT_DNN_F32, 3, s, NULL, NULL, column);
  if (a->queries != a->keys) {
    void *later = virtual_tensor(g, RT_DNN_I32, shape), *last = virtual_tensor(g, RT_DNN_I32, shape);
    void *keys = of.keys != NULL ? of.keys : number(g, RT_DNN_KEYS, RT_DNN_I32);
    void *queries = of.queries != NULL ? of.queries : number(g, RT_DNN_QUERIES, RT_DNN_I32);
    point(g, RT_DNN_ADD, RT_DNN_I32, -1, row, keys, NULL, later);
    row = point(g, RT_DNN_SUB, RT_DNN_I32, -1, later, queries, NULL, last);
  }
  void *seen = virtual_tensor(g, RT_DNN_BOOL, shape), *y = virtual_tensor(g, RT_DNN_F32, shape);
  point(g, RT_DNN_GE, RT_DNN_BOOL, -1, row, column, NULL, seen);
  return point(g, RT_DNN_SELECT, RT_DNN_F32, -1, s, number(g, RT_DNN_LOW, RT_DNN_F32), seen, y);
}

/* Scores with -inf where there is no query or no key: what is beyond the last of a block. */
static void *bounded(struct rt_dnn_graph *g, void *s, struct lengths of) {
  struct shape shape = of_scores(g);
  void *inside[2];
  for (int i = 0; i < 2; i++) {
    void *index = virtual_tensor(g, RT_DNN_I32, shape);
    point(g, RT_DNN_INDEX, RT_DNN_I32, 2 + i, s, NULL, NULL, index);
    inside[i] = virtual_tensor(g, RT_DNN_BOOL, shape);
    point(g, RT_DNN_LT, RT_DNN_BOOL, -1, index, i == 0 ? of.queries : of.keys, NULL, inside[i]);
  }
  void *both = virtual_tensor(g, RT_DNN_BOOL, shape), *y = virtual_tensor(g, RT_DNN_F32, shape);
  point(g, RT_DNN_AND, RT_DNN_BOOL, -1, inside[0], inside[1], NULL, both);
  return point(g, RT_DNN_SELECT, RT_DNN_F32, -1, s, number(g, RT_DNN_NO_KEY, RT_DNN_F32), both, y);
}

static void forward(struct rt_dnn_graph *g) {
  const struct kern_attention *a = g->call;
  struct shape scores = of_scores(g), rows = of_rows(g);
  void *q = stored(g, RT_DNN_Q, &a->q, of_queries(g, &a->q, a->width));
  void *k = stored(g, RT_DNN_K, &a->k, turned(of_keys(g, &a->k, a->width)));
  void *v = stored(g, RT_DNN_V, &a->v, of_keys(g, &a->v, a->value_width));
  void *y = stored(g, RT_DNN_Y, &a->y, of_queries(g, &a->y, a->value_width));
  void *s = multiply(g, all, q, k, virtual_tensor(g, RT_DNN_F32, scores));
  s = math(g, RT_DNN_MUL, s, number(g, RT_DNN_SCALE, RT_DNN_F32), scores);
  if (a->causal) s = masked(g, s, (struct lengths){NULL, NULL});
  void *top = reduce(g, RT_DNN_REDUCE_MAX, s, virtual_tensor(g, RT_DNN_F32, rows));
  void *e = math(g, RT_DNN_SUB, s, top, scores);
  e = math(g, RT_DNN_EXP, e, NULL, scores);
  void *sum = reduce(g, RT_DNN_REDUCE_ADD, e, virtual_tensor(g, RT_DNN_F32, rows));
  void *log = math(g, RT_DNN_LOG, sum, NULL, rows);
  void *lse =
      a->lse == KERN_NONE ? virtual_tensor(g, RT_DNN_F32, rows) : given(g, RT_DNN_LSE, RT_DNN_F32, rows, a->lse, 0);
  point(g, RT_DNN_ADD, RT_DNN_F32, -1, top, log, NULL, lse);
  void *p = virtual_tensor(g, g->dtype, scores);
  multiply(g, all, point(g, RT_DNN_DIV, RT_DNN_F32, -1, e, sum, NULL, p), v, y);
}

/* x' z into the given tensor, summed over the heads that share it. */
static void gradient(struct rt_dnn_graph *g, struct lengths of, void *x, void *z, int64_t id,
                     const struct kern_view *view, int64_t width) {
  const struct kern_attention *a = g->call;
  const struct limits most = {.rows = of.keys, .terms = of.queries};
  void *turn = reshape(g, x, g->dtype, turned(of_scores(g)));
  void *y = stored(g, id, view, of_keys(g, view, width));
  if (a->heads == a->kv_heads) {
    multiply(g, most, turn, z, y);
    return;
  }
  void *every = virtual_tensor(g, g->dtype, dense(a->batch, a->heads, a->keys, width));
  reduce(g, RT_DNN_REDUCE_ADD, multiply(g, most, turn, z, every), y);
}

/* Before RT_DNN_ANY_KEY_COUNT, where the last block of keys is not whole. */
static struct lengths lengths_of(struct rt_dnn_graph *g) {
  enum { BLOCK = 128 };
  struct lengths of = {NULL, NULL};
  struct shape s = {{g->call->batch, 1, 1, 1}, {1, 1, 1, 1}};
  if (g->call->keys % BLOCK == 0 || g->plan->dnn->version() >= RT_DNN_ANY_KEY_COUNT) return of;
  of.queries = kept(g, RT_DNN_ALL_QUERIES, RT_DNN_I32, s);
  of.keys = kept(g, RT_DNN_ALL_KEYS, RT_DNN_I32, s);
  return of;
}

static void backward(struct rt_dnn_graph *g) {
  const struct kern_attention *a = g->call;
  struct shape scores = of_scores(g), rows = of_rows(g), keys = of_keys(g, &a->k, a->width);
  struct shape queries = dense(a->batch, a->heads, a->queries, a->width);
  struct lengths of = lengths_of(g);
  const struct limits of_scores_most = {.rows = of.queries, .columns = of.keys};
  const struct limits of_dq_most = {.rows = of.queries, .terms = of.keys};
  void *q = stored(g, RT_DNN_Q, &a->q, of_queries(g, &a->q, a->width));
  void *k = stored(g, RT_DNN_K, &a->k, turned(keys));
  void *v = stored(g, RT_DNN_V, &a->v, turned(of_keys(g, &a->v, a->value_width)));
  void *y = stored(g, RT_DNN_Y, &a->y, of_queries(g, &a->y, a->value_width));
  void *dy = stored(g, RT_DNN_DY, &a->dy, of_queries(g, &a->dy, a->value_width));
  void *dq = stored(g, RT_DNN_DQ, &a->dq, of_queries(g, &a->dq, a->width));
  void *lse = given(g, RT_DNN_LSE, RT_DNN_F32, rows, a->lse, 0);
  void *scale = number(g, RT_DNN_SCALE, RT_DNN_F32), *one = number(g, RT_DNN_ONE, RT_DNN_F32);

  void *sums = math(g, RT_DNN_MUL, dy, y, dense(a->batch, a->heads, a->queries, a->value_width));
  sums = reduce(g, RT_DNN_REDUCE_ADD, sums, virtual_tensor(g, RT_DNN_F32, rows));
  sums = point(g, RT_DNN_MUL, RT_DNN_F32, -1, sums, one, NULL, kept(g, RT_DNN_SUMS, RT_DNN_F32, rows));

  void *s = multiply(g, of_scores_most, q, k, virtual_tensor(g, RT_DNN_F32, scores));
  s = math(g, RT_DNN_MUL, s, scale, scores);
  s = math(g, RT_DNN_SUB, s, lse, scores);
  if (of.keys != NULL) s = bounded(g, s, of);
  if (a->causal) s = masked(g, s, of);
  void *p = math(g, RT_DNN_EXP, s, NULL, scores);
  gradient(g, of, p, dy, RT_DNN_DV, &a->dv, a->value_width);

  void *ds = multiply(g, of_scores_most, dy, v, virtual_tensor(g, RT_DNN_F32, scores));
  ds = math(g, RT_DNN_SUB, ds, sums, scores);
  ds = math(g, RT_DNN_MUL, ds, p, scores);
  ds = math(g, RT_DNN_MUL, ds, scale, scores);
  gradient(g, of, ds, q, RT_DNN_DK, &a->dk, a->width);

  void *turn = reshape(g, k, g->dtype, keys);
  if (a->exact) {
    multiply(g, of_dq_most, ds, turn, dq);
  } else {
    void *sum = multiply(g, of_dq_most, ds, turn, kept(g, RT_DNN_DQ_SUMS, RT_DNN_F32, queries));
    point(g, RT_DNN_SAME, RT_DNN_F32, -1, sum, NULL, NULL, dq);
  }
}

void rt_dnn_graph_build(struct rt_dnn_graph *g) {
  const struct kern_attention *a = g->call;
  struct rt_dnn_plan *plan = g->plan;
  g->next = FIRST_VIRTUAL;
  plan->scale = (float)a->scale;
  plan->low = -INFINITY;
  plan->one = 1;
  plan->queries = (int32_t)a->queries;
  plan->keys = (int32_t)a->keys;
  plan->batch = (int32_t)a->batch;
  if (g->back)
    backward(g);
  else
    forward(g);
}
