/* prop/gen_rules.c -- arrangements that rewrite rules look for
** The left side of a pattern is read from the rule itself and built on random tensors. What rules written
** in C look for is a chain of two ops on a pool that holds little else, or is spelled out below.
*/
#include <ctype.h>
#include <string.h>

#include "ir/rules.h"
#include "prop/prop.h"

/* ---- patterns ---------------------------------------------------------------------------------------- */

struct instance {
  struct gen *g; /* NULL: only find out whether the dtypes fit */
  const char *at;
  quern_dtype operand;       /* of comparisons */
  const quern_tensor *shape; /* all tensors have it */
  quern_tensor *bound[26];
  quern_dtype dtypes[26];
  char first; /* letter met */
  bool fits;
};

static size_t word_length(const char *at) {
  size_t n = 0;
  while (isalnum((unsigned char)at[n]) || at[n] == '_') n++;
  return n;
}

static quern_tensor *term(struct instance *in, quern_dtype dtype);

static quern_tensor *letter(struct instance *in, quern_dtype dtype) {
  int i = *in->at++ - 'a';
  if (in->first == 0) in->first = (char)('a' + i);
  if (in->g == NULL) {
    if (in->bound[i] != NULL) in->fits &= in->dtypes[i] == dtype;
    in->bound[i] = &ir_poison;
    in->dtypes[i] = dtype;
    return NULL;
  }
  if (in->bound[i] == NULL) {
    bool constant = i == 'k' - 'a' || i == 'l' - 'a';
    const quern_tensor *s = in->shape;
    in->bound[i] =
        constant ? gen_special(in->g, dtype, s->rank, s->dims) : gen_pick_type(in->g, dtype, s->rank, s->dims);
  }
  return in->bound[i];
}

static quern_tensor *call(struct instance *in, quern_dtype dtype) {
  size_t n = word_length(in->at);
  int op = 0;
  while (op < IR_OP_COUNT && (strncmp(in->at, ir_ops[op].name, n) != 0 || ir_ops[op].name[n] != '\0')) op++;
  in->at += n + 1;
  bool compares = op == IR_EQ || op == IR_LT || op == IR_LE;
  quern_tensor *src[3] = {NULL};
  if (compares) in->fits &= dtype == QUERN_DTYPE_BOOL;
  quern_dtype inner = compares ? in->operand : dtype;
  if (op != IR_SELECT) in->fits &= base_dtype_is(inner, ir_ops[op].dtypes);
  for (int i = 0; i < ir_ops[op].n_src; i++) src[i] = term(in, op == IR_SELECT && i == 0 ? QUERN_DTYPE_BOOL : inner);
  while (*in->at == ' ') in->at++;
  in->at++;
  return in->g == NULL ? NULL : gen_make(in->g, (enum ir_op)op, ir_ops[op].n_src, src, NULL);
}

static quern_tensor *term(struct instance *in, quern_dtype dtype) {
  while (*in->at == ' ' || *in->at == ',') in->at++;
  size_t n = word_length(in->at);
  if (n == 1 && islower((unsigned char)*in->at)) return letter(in, dtype);
  if (in->at[n] == '(') return call(in, dtype);
  unsigned char bits[8];
  in->fits &= ir_pattern_literal(&in->at, dtype, bits);
  return in->g == NULL || !in->fits ? NULL : gen_full(in->g, dtype, in->shape->rank, in->shape->dims, bits);
}

void gen_pattern(struct gen *g) {
  const struct ir_rule *rule = g->plant;
  if (rule == NULL || rule->apply != NULL || !rng_chance(g->rng, 5)) {
    do rule = &ir_rules[rng_below(g->rng, (int)ir_rule_count)];
    while (rule->apply != NULL || rule->apply_all != NULL);
  }
  const quern_tensor *shape = gen_pick(g, BASE_ANY, 0);
  for (int try = 0; try < 200; try++) {
    quern_dtype operand = rng_dtype(g->rng, BASE_ANY),
                dtype = rng_chance(g->rng, 50) ? operand : rng_dtype(g->rng, BASE_ANY);
    if (rng_chance(g->rng, 30)) dtype = QUERN_DTYPE_BOOL;
    struct instance dry = {.at = rule->identity, .operand = operand, .shape = shape, .fits = true};
    term(&dry, dtype);
    if (!dry.fits || !base_dtype_is(dry.dtypes[dry.first - 'a'], rule->dtypes)) continue;
    term(&(struct instance){.g = g, .at = rule->identity, .operand = operand, .shape = shape, .fits = true}, dtype);
    return;
  }
}

/* ---- chains ------------------------------------------------------------------------------------------ */

static const enum ir_op chains[][2] = {
    {IR_RESHAPE, IR_RESHAPE},  {IR_PERMUTE, IR_PERMUTE},  {IR_BROADCAST, IR_BROADCAST}, {IR_PAD, IR_SLICE},
    {IR_SLICE, IR_SLICE},      {IR_BROADCAST, IR_SLICE},  {IR_CONCAT, IR_SLICE},        {IR_FLIP, IR_SLICE},
    {IR_FLIP, IR_FLIP},        {IR_BROADCAST, IR_FLIP},   {IR_CONCAT, IR_CONCAT},       {IR_REDUCE, IR_REDUCE},
    {IR_PERMUTE, IR_REDUCE},   {IR_BROADCAST, IR_REDUCE}, {IR_NEG, IR_REDUCE},          {IR_PERMUTE, IR_DOT},
    {IR_CAST, IR_CAST},        {IR_BITCAST, IR_BITCAST},  {IR_CAST, IR_FLOOR},          {IR_CAST, IR_CEIL},
    {IR_CAST, IR_ROUND},       {IR_CAST, IR_TRUNC},       {IR_ROUND, IR_FLOOR},         {IR_FLOOR, IR_ROUND},
    {IR_SIGN, IR_TRUNC},       {IR_TRUNC, IR_CEIL},       {IR_IOTA, IR_STOP_GRAD},      {IR_CONST, IR_STOP_GRAD},
    {IR_CONST, IR_CHECKPOINT}, {IR_CONST, IR_RESHAPE},    {IR_CONST, IR_PERMUTE},       {IR_CONST, IR_SLICE},
    {IR_CONST, IR_FLIP},       {IR_CONST, IR_PAD},        {IR_CONST, IR_CONCAT},        {IR_CONST, IR_CAST},
    {IR_RANDOM, IR_BITCAST},
};

/* op on the tensors of its own pool; the last new one, or NULL. */
static quern_tensor *apply(struct gen *g, enum ir_op op, int n, quern_tensor *const *on) {
  struct gen focus = *g;
  focus.pool.at = NULL;
  focus.pool.n = focus.pool.cap = 0;
  for (int i = 0; i < n; i++) gen_keep(&focus, on[i]);
  gen_op_of(&focus, op);
  quern_tensor *last = NULL;
  for (size_t i = (size_t)n; i < focus.pool.n; i++) {
    gen_keep(g, focus.pool.at[i]);
    if (focus.pool.at[i]->node->op == op) last = focus.pool.at[i];
  }
  base_vec_fini(&g->ctx->heap, &focus.pool);
  return last;
}

static void chain(struct gen *g) {
  const enum ir_op *ops = chains[rng_below(g->rng, (int)BASE_COUNT(chains))];
  quern_tensor *t = NULL;
  for (int i = 0; i < 2; i++) {
    if (t == NULL) t = gen_pick(g, ir_ops[ops[i]].dtypes, rng_below(g->rng, 3));
    t = apply(g, ops[i], 1, &t);
    if (t == NULL) return;
  }
}

/* ---- the rest ---------------------------------------------------------------------------------------- */

static bool is_elementwise(enum ir_op op) { return op >= IR_NEG && op <= IR_SELECT; }

static enum ir_op elementwise(struct gen *g) {
  for (;;) {
    enum ir_op op = (enum ir_op)rng_below(g->rng, IR_OP_COUNT);
    if (is_elementwise(op)) return op;
  }
}

/* An elementwise op on sources made by a function. */
static void on_sources(struct gen *g, quern_tensor *(*source)(struct gen *, quern_dtype, int, const int64_t *)) {
  enum ir_op op = elementwise(g);
  int64_t dims[GEN_RANK];
  int rank = gen_shape(g, dims, 0);
  quern_tensor *src[3];
  quern_dtype dtype = rng_dtype(g->rng, op == IR_SELECT ? BASE_ANY : ir_ops[op].dtypes);
  for (int i = 0; i < ir_ops[op].n_src; i++) {
    src[i] = source(g, op == IR_SELECT && i == 0 ? QUERN_DTYPE_BOOL : dtype, rank, dims);
  }
  if (op == IR_BITCAST) {
    apply(g, op, 1, src);
    return;
  }
  gen_make(g, op, ir_ops[op].n_src, src, &(struct ir_attrs){.dtype = rng_dtype(g->rng, BASE_ANY)});
}

static void fold(struct gen *g) { on_sources(g, gen_const); }

static quern_tensor *stretched(struct gen *g, quern_dtype dtype, int rank, const int64_t *dims) {
  int64_t narrow[QUERN_MAX_RANK];
  for (int k = 0; k < rank; k++) narrow[k] = k == 0 || rng_chance(g->rng, 30) ? 1 : dims[k];
  return GEN_MAKE(g, IR_BROADCAST, (&(struct ir_attrs){.shape = {rank, dims}}), gen_pick_type(g, dtype, rank, narrow));
}

static void stretch(struct gen *g) { on_sources(g, stretched); }

static void powers(struct gen *g) {
  quern_tensor *x = gen_pick(g, BASE_NUM, 0);
  double value = (double)(1 << rng_below(g->rng, 5));
  unsigned char bits[8] = {0};
  if (base_dtype_is(x->dtype, BASE_FLOAT) && rng_chance(g->rng, 50)) value = -0.25;
  base_convert(x->dtype, bits, 0, QUERN_DTYPE_F64, &value, 0);
  enum ir_op op = rng_chance(g->rng, 50) ? IR_DIV : IR_MOD;
  GEN_MAKE(g, op, NULL, x, gen_full(g, x->dtype, x->rank, x->dims, bits));
}

static void same_dtype(struct gen *g) {
  quern_tensor *x = gen_pick(g, BASE_ANY, 0);
  GEN_MAKE(g, rng_chance(g->rng, 50) ? IR_CAST : IR_BITCAST, (&(struct ir_attrs){.dtype = x->dtype}), x);
}

/* There and back by way of another dtype. */
static void round_trip(struct gen *g) {
  quern_tensor *x = gen_pick(g, BASE_ANY, 0);
  quern_dtype through = rng_dtype(g->rng, BASE_ANY);
  quern_tensor *y = GEN_MAKE(g, IR_CAST, (&(struct ir_attrs){.dtype = through}), x);
  GEN_MAKE(g, IR_CAST, (&(struct ir_attrs){.dtype = rng_chance(g->rng, 60) ? x->dtype : rng_dtype(g->rng, BASE_ANY)}),
           y);
}

static void pads(struct gen *g) {
  quern_tensor *x = gen_pick(g, BASE_ANY, 0), *fill = gen_scalar(g, x->dtype);
  int64_t lists[3][QUERN_MAX_RANK];
  for (int round = 0; round < 2; round++) {
    for (int k = 0; k < x->rank; k++) {
      for (int i = 0; i < 2; i++) lists[i][k] = rng_chance(g->rng, 70) ? 0 : 1;
      lists[2][k] = rng_chance(g->rng, 90) ? 0 : 1;
    }
    struct ir_attrs attrs = {.lo = {x->rank, lists[0]}, .hi = {x->rank, lists[1]}, .mid = {x->rank, lists[2]}};
    x = GEN_MAKE(g, IR_PAD, &attrs, x, fill);
  }
}

static void neighbors(struct gen *g) {
  quern_tensor *x = gen_pick(g, BASE_ANY, 1), *parts[4];
  int axis = rng_below(g->rng, x->rank), n = 0;
  int64_t lo[QUERN_MAX_RANK] = {0}, hi[QUERN_MAX_RANK], step[QUERN_MAX_RANK], at = 0;
  for (int k = 0; k < x->rank; k++) hi[k] = x->dims[k], step[k] = 1;
  if (rng_chance(g->rng, 20)) step[axis] = 2;
  while (n < 3 && at < x->dims[axis]) {
    lo[axis] = at;
    int64_t count = 1 + rng_below(g->rng, 2);
    hi[axis] = BASE_MIN(x->dims[axis], at + (count - 1) * step[axis] + 1);
    parts[n++] = GEN_MAKE(g, IR_SLICE,
                          (&(struct ir_attrs){.lo = {x->rank, lo}, .hi = {x->rank, hi}, .step = {x->rank, step}}), x);
    at += count * step[axis] + (rng_chance(g->rng, 10) ? 1 : 0);
  }
  if (n > 0) gen_make(g, IR_CONCAT, n, parts, &(struct ir_attrs){.axis = axis});
}

static void iota_gather(struct gen *g) {
  quern_tensor *x = gen_pick(g, BASE_ANY, 1);
  int axis = rng_below(g->rng, x->rank);
  struct ir_attrs attrs = {.dtype = rng_dtype(g->rng, BASE_INT), .shape = {1, &x->dims[axis]}};
  quern_tensor *index = gen_make(g, IR_IOTA, 0, NULL, &attrs);
  GEN_MAKE(g, IR_GATHER, (&(struct ir_attrs){.axis = axis}), x, index);
}

static void no_scatter(struct gen *g) {
  quern_tensor *x = gen_pick(g, BASE_ANY, 1);
  int64_t dims[QUERN_MAX_RANK];
  memcpy(dims, x->dims, (size_t)x->rank * sizeof *dims);
  dims[0] = 0;
  quern_tensor *index = gen_pick_type(g, rng_dtype(g->rng, BASE_INT), 1, dims);
  GEN_MAKE(g, IR_SCATTER, (&(struct ir_attrs){.reduce = IR_SET}), x, index, gen_pick_type(g, x->dtype, x->rank, dims));
}

static void negated_dot(struct gen *g) {
  quern_tensor *x = gen_pick(g, BASE_NUM, 1);
  quern_tensor *both[] = {GEN_MAKE(g, IR_NEG, NULL, x), NULL};
  both[1] = GEN_MAKE(g, IR_NEG, NULL, gen_pick_like(g, x));
  int64_t last = x->rank - 1;
  struct ir_attrs attrs = {
      .a_sum = {1, &last}, .b_sum = {1, &last}, .reduce = (enum ir_reduce)rng_below(g->rng, IR_SET)};
  gen_make(g, IR_DOT, 2, both, &attrs);
}

/* Two reductions of one kind, or one of stretched axes. */
static void reductions(struct gen *g) {
  quern_tensor *x = gen_pick(g, rng_chance(g->rng, 50) ? BASE_FLOAT : BASE_ANY, 2);
  bool choice = x->dtype == QUERN_DTYPE_BOOL || rng_chance(g->rng, 30);
  enum ir_reduce kind =
      choice ? IR_REDUCE_MAX + (enum ir_reduce)rng_below(g->rng, 2) : (enum ir_reduce)rng_below(g->rng, 2);
  if (rng_chance(g->rng, 40)) {
    int64_t dims[QUERN_MAX_RANK];
    for (int k = 0; k < x->rank; k++) dims[k] = x->dims[k] == 1 ? 2 + rng_below(g->rng, 2) : x->dims[k];
    x = GEN_MAKE(g, IR_BROADCAST, (&(struct ir_attrs){.shape = {x->rank, dims}}), x);
  }
  for (int round = 0; round < 2 && x->rank > 0; round++) {
    int64_t axis = rng_below(g->rng, x->rank);
    x = GEN_MAKE(g, IR_REDUCE, (&(struct ir_attrs){.reduce = kind, .axes = {1, &axis}}), x);
    if (ir_is_poison(x)) return;
  }
}

/* An op on a tensor with more axes of size 1 than usual. */
static void units(struct gen *g) {
  static const enum ir_op ops[] = {IR_REDUCE, IR_SCAN,     IR_ARGREDUCE, IR_PERMUTE, IR_WINDOW,   IR_FLIP,
                                   IR_SLICE,  IR_SLICE_AT, IR_UPDATE_AT, IR_COL2IM,  IR_BROADCAST};
  quern_tensor *x = gen_pick(g, BASE_ANY, 0);
  int64_t dims[QUERN_MAX_RANK] = {1};
  int rank = 1;
  for (int k = 0; k < x->rank; k++) {
    if (rank < GEN_RANK)
      dims[rank++] = x->dims[k];
    else
      dims[rank - 1] *= x->dims[k];
  }
  if (rank < GEN_RANK) dims[rank++] = 1;
  x = GEN_MAKE(g, IR_RESHAPE, (&(struct ir_attrs){.shape = {rank, dims}}), x);
  apply(g, ops[rng_below(g->rng, (int)BASE_COUNT(ops))], 1, &x);
}

void gen_motif(struct gen *g) {
  static void (*const motifs[])(struct gen *) = {chain,      chain,      chain,       chain,      chain,
                                                 chain,      fold,       fold,        fold,       stretch,
                                                 stretch,    stretch,    powers,      same_dtype, round_trip,
                                                 pads,       neighbors,  iota_gather, no_scatter, negated_dot,
                                                 reductions, reductions, units,       units,      gen_control_motif};
  motifs[rng_below(g->rng, (int)BASE_COUNT(motifs))](g);
}
