/* cli/zoo_tables.c -- the zoo's networks over tables, sets, graphs and points */
#include "zoo.h"

#include "quern/grad.h"

#define V(key) zoo_value(z, key)

static quern_tensor *dense(quern_scope *scope, const char *name, int64_t i, quern_tensor *x, int64_t out) {
  return quern_nn_linear(quern_scope_at(scope, name, i), x, out, NULL);
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

/* Columns (B, tables) of ids as vectors (B, tables, width), each column by a table of its own: rows of one weight. */
static quern_tensor *embedded(struct zoo *z, int64_t width) {
  int64_t tables = V("tables"), rows = V("rows");
  quern_nn_embedding_options o = QUERN_INIT(quern_nn_embedding_options);
  static const quern_init init = {QUERN_INIT_NORMAL, 0, 0.1};
  o.init = &init;
  quern_tensor *ids = zoo_integers(z, "ids", rows, QUERN_LIST(z->batch, tables));
  quern_tensor *first = quern_mul_scalar(quern_iota(z->ctx, QUERN_DTYPE_I32, QUERN_LIST(1, tables), 1), (double)rows);
  return quern_nn_embedding(quern_scope_in(z->scope, "embedding"), quern_add(ids, first), tables * rows, width, &o);
}

quern_tensor *zoo_mlp(struct zoo *z) {
  quern_tensor *x = quern_flatten(embedded(z, V("E")), 1, 2);
  quern_tensor *numbers = zoo_floats(z, "x", QUERN_LIST(z->batch, V("numbers")));
  x = quern_concat(2, (quern_tensor *[]){numbers, x}, 1);
  for (int64_t i = 0; i < V("layers"); i++) {
    x = dense(z->scope, "layers", i, x, V("C"));
    x = quern_relu(quern_nn_batch_norm(quern_scope_at(z->scope, "norms", i), x, NULL));
  }
  return zoo_regression(z, quern_nn_linear(quern_scope_in(z->scope, "head"), x, 1, NULL));
}

/* Naumov et al., "Deep learning recommendation model for personalization and recommendation systems", 2019. */
quern_tensor *zoo_dlrm(struct zoo *z) {
  int64_t n = V("tables") + 1;
  quern_tensor *vectors = embedded(z, V("C")), *x = zoo_floats(z, "x", QUERN_LIST(z->batch, V("dense")));
  x = quern_relu(dense(z->scope, "bottom", 0, x, V("F")));
  x = quern_relu(dense(z->scope, "bottom", 1, x, V("C")));
  quern_tensor *all = quern_concat(2, (quern_tensor *[]){quern_unsqueeze(x, 1), vectors}, 1);
  quern_tensor *pairs = quern_flatten(quern_matmul(all, quern_transpose(all, 1, 2)), 1, 2), *rows[64];
  int count = 0;
  for (int64_t i = 1; i < n && count < 64; i++) rows[count++] = quern_slice(pairs, 1, i * n, i * n + i, 1);
  quern_tensor *below = quern_concat(count, rows, 1); /* each pair once */
  x = quern_concat(2, (quern_tensor *[]){x, below}, 1);
  x = quern_relu(dense(z->scope, "top", 0, x, V("F")));
  x = quern_relu(dense(z->scope, "top", 1, x, V("F")));
  return zoo_regression(z, dense(z->scope, "top", 2, x, 1));
}

/* ---- sets and graphs: Zaheer et al., "Deep sets", 2017; Gilmer et al., "Neural message passing", 2017 ------------ */

quern_tensor *zoo_deepsets(struct zoo *z) {
  int64_t C = V("C");
  quern_tensor *x = zoo_floats(z, "x", QUERN_LIST(z->batch, V("N"), V("in")));
  for (int64_t i = 0; i < 3; i++) {
    x = dense(z->scope, "each", i, x, C);
    if (i < 2) x = quern_relu(x);
  }
  x = quern_mean(x, QUERN_LIST(1), false);
  for (int64_t i = 0; i < 2; i++) x = quern_relu(dense(z->scope, "whole", i, x, C));
  return zoo_classes(z, dense(z->scope, "whole", 2, x, V("classes")));
}

/* A batch is one graph of batch times as many nodes and edges; its parts are the sums of `nodes` rows each. */
quern_tensor *zoo_messages(struct zoo *z) {
  int64_t nodes = z->batch * V("nodes"), edges = z->batch * V("edges"), C = V("C");
  quern_tensor *x = zoo_floats(z, "x", QUERN_LIST(nodes, V("in")));
  quern_tensor *from = zoo_integers(z, "from", nodes, QUERN_LIST(edges)),
               *to = zoo_integers(z, "to", nodes, QUERN_LIST(edges));
  x = quern_relu(quern_nn_linear(quern_scope_in(z->scope, "in"), x, C, NULL));
  for (int64_t i = 0; i < V("layers"); i++) {
    quern_scope *layer = quern_scope_at(z->scope, "layers", i);
    quern_tensor *a = quern_gather(x, from, 0), *b = quern_gather(x, to, 0);
    quern_tensor *m = quern_concat(2, (quern_tensor *[]){a, b}, 1);
    m = quern_relu(dense(layer, "message", 0, m, C));
    m = dense(layer, "message", 1, m, C);
    quern_tensor *sums = quern_scatter(quern_zeros_like(x), to, m, 0, QUERN_SCATTER_ADD);
    quern_tensor *both = quern_concat(2, (quern_tensor *[]){x, sums}, 1);
    quern_tensor *y = quern_relu(dense(layer, "update", 0, both, C));
    x = quern_nn_layer_norm(quern_scope_in(layer, "norm"), quern_add(x, y), NULL);
  }
  x = quern_mean(quern_reshape(x, QUERN_LIST(z->batch, V("nodes"), C)), QUERN_LIST(1), false);
  return zoo_classes(z, quern_nn_linear(quern_scope_in(z->scope, "head"), x, V("classes"), NULL));
}

/* ---- physics: Raissi et al., "Physics-informed neural networks", 2019 -------------------------------------------- */

static quern_tensor *solution(struct zoo *z, quern_tensor *x, quern_tensor *t) {
  quern_tensor *y = quern_concat(2, (quern_tensor *[]){x, t}, 1);
  for (int64_t i = 0; i < V("layers"); i++) y = quern_tanh(dense(z->scope, "layers", i, y, V("C")));
  return quern_nn_linear(quern_scope_in(z->scope, "out"), y, 1, NULL);
}

/* Burgers' equation u_t + u u_x = nu u_xx at the points, and values at the start. */
quern_tensor *zoo_pinn(struct zoo *z) {
  quern_tensor *at[2], *first[2], *second;
  at[0] = zoo_floats(z, "x", QUERN_LIST(z->batch, 1));
  at[1] = zoo_floats(z, "t", QUERN_LIST(z->batch, 1));
  quern_tensor *u = solution(z, at[0], at[1]);
  if (!z->train) return u;
  if (quern_grad(quern_sum(u, QUERN_ALL, false), 2, at, first) != QUERN_STATUS_OK) return NULL;
  if (quern_grad(quern_sum(first[0], QUERN_ALL, false), 1, at, &second) != QUERN_STATUS_OK) return NULL;
  quern_tensor *moved = quern_add(first[1], quern_mul(u, first[0]));
  quern_tensor *residual = quern_sub(moved, quern_mul_scalar(second, 0.01 / 3.141592653589793));
  quern_tensor *inside = quern_mean(quern_square(residual), QUERN_ALL, false);
  quern_tensor *start = quern_neg(quern_sin(quern_mul_scalar(at[0], 3.141592653589793)));
  quern_tensor *u0 = solution(z, at[0], quern_zeros_like(at[1]));
  return quern_add(inside, quern_mse_loss(u0, start, QUERN_REDUCTION_MEAN));
}
