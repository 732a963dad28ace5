/* prop/gen_control.c -- random loops, branches and composites; every loop ends by construction */
#include <stdio.h>

#include "prop/prop.h"

enum { MOST_PARAMS = 8, MOST_RESULTS = 4 };

/* ---- bodies ------------------------------------------------------------------------------------------ */

struct body {
  struct gen gen;
  int n;
  quern_tensor *params[MOST_PARAMS];
};

static void body_begin(struct body *b, struct gen *g) {
  *b = (struct body){.gen = *g};
  b->gen.depth++;
  b->gen.pool.at = NULL;
  b->gen.pool.n = b->gen.pool.cap = 0;
}

static quern_tensor *body_param(struct body *b, quern_dtype dtype, int rank, const int64_t *dims) {
  return b->params[b->n++] = gen_keep(&b->gen, ir_leaf(b->gen.ctx, dtype, rank, dims));
}

static quern_tensor *body_param_like(struct body *b, const quern_tensor *t) {
  return body_param(b, t->dtype, t->rank, t->dims);
}

static void body_grow(struct body *b) {
  for (int i = rng_below(b->gen.rng, 6); i >= 0; i--) {
    if (rng_chance(b->gen.rng, 30)) {
      gen_pattern(&b->gen);
    } else {
      gen_op(&b->gen);
    }
  }
}

/* Any tensor of the body, or a constant when it has none. */
static quern_tensor *body_any(struct body *b) { return gen_pick(&b->gen, BASE_ANY, 0); }

static const struct ir_graph *body_end(struct body *b, int n, quern_tensor *const *results) {
  const struct ir_graph *graph = NULL;
  if (ir_graph_make(b->gen.ctx, b->n, b->params, n, results, &graph) != QUERN_STATUS_OK) ir_fail_last(b->gen.ctx);
  base_vec_fini(&b->gen.ctx->heap, &b->gen.pool);
  return graph;
}

/* ---- if ---------------------------------------------------------------------------------------------- */

static void make_if(struct gen *g, quern_tensor *cond, bool same) {
  quern_tensor *src[MOST_PARAMS] = {cond}, *results[MOST_RESULTS], *others[MOST_RESULTS];
  int n = rng_below(g->rng, 4), n_results = 1 + rng_below(g->rng, 2);
  struct body first, second;
  body_begin(&first, g);
  for (int i = 0; i < n; i++) body_param_like(&first, src[1 + i] = gen_pick(g, BASE_ANY, 0));
  body_grow(&first);
  for (int i = 0; i < n_results; i++) results[i] = body_any(&first);
  const struct ir_graph *body = body_end(&first, n_results, results), *other = body;
  if (body == NULL) return;
  if (!same) {
    body_begin(&second, g);
    for (int i = 0; i < n; i++) body_param_like(&second, src[1 + i]);
    body_grow(&second);
    for (int i = 0; i < n_results; i++) others[i] = gen_pick_like(&second.gen, results[i]);
    other = body_end(&second, n_results, others);
    if (other == NULL) return;
  }
  gen_make(g, IR_IF, 1 + n, src, &(struct ir_attrs){.body = body, .other = other});
}

/* ---- loop -------------------------------------------------------------------------------------------- */

/* trip < 0: as long as the first axis of a tensor at hand. */
static void make_loop(struct gen *g, int64_t trip, bool stacks) {
  quern_tensor *src[MOST_PARAMS], *results[MOST_RESULTS], *x = NULL;
  int carries = rng_below(g->rng, 3), scanned = 0, captures = rng_below(g->rng, 2), n = 0, n_results = 0;
  if (trip < 0) {
    x = gen_pick(g, BASE_ANY, 1);
    trip = x->dims[0];
    scanned = 1 + rng_below(g->rng, 2);
  } else if (trip == 1) {
    quern_tensor *y = gen_pick(g, BASE_ANY, 0);
    int64_t dims[QUERN_MAX_RANK] = {1};
    for (int k = 0; k < y->rank; k++) dims[k + 1] = y->dims[k];
    x = GEN_MAKE(g, IR_RESHAPE, (&(struct ir_attrs){.shape = {y->rank + 1, dims}}), y);
    scanned = 1;
  }
  if (!stacks && carries == 0) carries = 1;
  struct body b;
  body_begin(&b, g);
  body_param(&b, QUERN_DTYPE_I64, 0, NULL);
  for (int i = 0; i < carries; i++) body_param_like(&b, src[n++] = gen_pick(g, BASE_ANY, 0));
  for (int i = 0; i < scanned; i++) {
    quern_tensor *t = i == 0 ? x : gen_pick_type(g, rng_dtype(g->rng, BASE_ANY), x->rank, x->dims);
    body_param(&b, t->dtype, t->rank - 1, t->dims + 1);
    src[n++] = t;
  }
  for (int i = 0; i < captures; i++) body_param_like(&b, src[n++] = gen_pick(g, BASE_ANY, 0));
  body_grow(&b);
  for (int i = 0; i < carries; i++) results[n_results++] = gen_pick_like(&b.gen, src[i]);
  for (int i = stacks ? rng_below(g->rng, 2) + (carries == 0) : 0; i > 0; i--) results[n_results++] = body_any(&b);
  const struct ir_graph *body = body_end(&b, n_results, results);
  if (body == NULL) return;
  struct ir_attrs attrs = {
      .trip = trip, .carries = carries, .scanned = scanned, .reverse = rng_below(g->rng, 2), .body = body};
  gen_make(g, IR_LOOP, n, src, &attrs);
}

/* ---- while ------------------------------------------------------------------------------------------- */

/* Carry 0 counts from at least 0 to at most 3. */
static void make_while(struct gen *g, bool never) {
  quern_tensor *zero = ir_const_int(g->ctx, QUERN_DTYPE_I64, 0), *src[MOST_PARAMS] = {0}, *results[MOST_RESULTS];
  int carries = 1 + rng_below(g->rng, 3), n = carries + rng_below(g->rng, 2);
  src[0] = GEN_MAKE(g, IR_MAX, NULL, gen_scalar(g, QUERN_DTYPE_I64), zero);
  for (int i = 1; i < n; i++) src[i] = gen_pick(g, BASE_ANY, 0);

  struct body b;
  body_begin(&b, g);
  for (int i = 0; i < n; i++) body_param_like(&b, src[i]);
  quern_tensor *count = b.params[0];
  quern_tensor *limit = ir_const_int(g->ctx, QUERN_DTYPE_I64, rng_below(g->rng, 4));
  quern_tensor *go = never ? ir_const_int(g->ctx, QUERN_DTYPE_BOOL, 0) : GEN_MAKE(&b.gen, IR_LT, NULL, count, limit);
  if (never && rng_chance(g->rng, 50)) go = GEN_MAKE(&b.gen, IR_LT, NULL, count, count);
  if (!never && rng_chance(g->rng, 30)) go = GEN_MAKE(&b.gen, IR_AND, NULL, go, gen_scalar(&b.gen, QUERN_DTYPE_BOOL));
  const struct ir_graph *other = body_end(&b, 1, &go);

  body_begin(&b, g);
  for (int i = 0; i < n; i++) body_param_like(&b, src[i]);
  body_grow(&b);
  results[0] = GEN_MAKE(&b.gen, IR_ADD, NULL, b.params[0], ir_const_int(g->ctx, QUERN_DTYPE_I64, 1));
  for (int i = 1; i < carries; i++) results[i] = gen_pick_like(&b.gen, src[i]);
  const struct ir_graph *body = body_end(&b, carries, results);
  if (body == NULL || other == NULL) return;
  gen_make(g, IR_WHILE, n, src, &(struct ir_attrs){.carries = carries, .body = body, .other = other});
}

/* ---- composites -------------------------------------------------------------------------------------- */

static void make_user_composite(struct gen *g) {
  quern_tensor *src[MOST_PARAMS], *results[MOST_RESULTS];
  int n = rng_below(g->rng, 3), n_results = 1 + rng_below(g->rng, 2);
  struct body b;
  body_begin(&b, g);
  for (int i = 0; i < n; i++) body_param_like(&b, src[i] = gen_pick(g, BASE_ANY, 0));
  body_grow(&b);
  for (int i = 0; i < n_results; i++) results[i] = body_any(&b);
  const struct ir_graph *body = body_end(&b, n_results, results);
  if (body == NULL) return;
  char name[16];
  snprintf(name, sizeof name, "mine%d", rng_below(g->rng, 3));
  static const double reals[] = {0.5, -0.0, 3};
  struct ir_attrs attrs = {.name = name, .ints = IR_INTS(1, -2), .reals = {rng_below(g->rng, 4), reals}, .body = body};
  gen_make(g, IR_COMPOSITE, n, src, &attrs);
}

/* A composite that the library defines. */
static void make_library_composite(struct gen *g) {
  static quern_tensor *(*const unary[])(quern_tensor *) = {quern_gelu, quern_silu, quern_softplus, quern_sigmoid};
  quern_tensor *x = gen_pick(g, BASE_FLOAT, 1), *indices = NULL;
  if (ir_count(x) == 0) return;
  int axis = rng_below(g->rng, x->rank), kind = rng_below(g->rng, 4 + (int)BASE_COUNT(unary));
  switch (kind) {
  case 0: gen_keep(g, quern_softmax(x, axis)); break;
  case 1: gen_keep(g, quern_logsumexp(x, 1, &(int64_t){axis}, rng_chance(g->rng, 50))); break;
  case 2:
    gen_keep(g, quern_topk(x, 1, axis, rng_chance(g->rng, 50), &indices));
    gen_keep(g, indices);
    break;
  case 3: gen_keep(g, quern_rms_norm(x, 1, NULL, 1e-5)); break;
  default: gen_keep(g, unary[kind - 4](x)); break;
  }
}

/* ---- all --------------------------------------------------------------------------------------------- */

void gen_control(struct gen *g, enum ir_op op) {
  if (g->depth >= GEN_DEPTH) return;
  if (op == IR_LOOP) {
    make_loop(g, rng_chance(g->rng, 60) ? -1 : rng_below(g->rng, 4), true);
  } else if (op == IR_WHILE) {
    make_while(g, false);
  } else if (op == IR_IF) {
    make_if(g, gen_scalar(g, QUERN_DTYPE_BOOL), false);
  } else if (rng_chance(g->rng, 50)) {
    make_user_composite(g);
  } else {
    make_library_composite(g);
  }
}

void gen_control_motif(struct gen *g) {
  if (g->depth >= GEN_DEPTH) return;
  quern_tensor *cond = gen_scalar(g, QUERN_DTYPE_BOOL);
  switch (rng_below(g->rng, 6)) {
  case 0: make_if(g, gen_special(g, QUERN_DTYPE_BOOL, 0, NULL), false); break;
  case 1: make_if(g, cond, true); break;
  case 2: make_if(g, GEN_MAKE(g, IR_NOT, NULL, cond), false); break;
  case 3: make_loop(g, 0, false); break;
  case 4: make_loop(g, 1, true); break;
  default: make_while(g, true); break;
  }
}
