/* kern/approx_match.c -- which expressions that are rounded to 16 bits have a short approximation
** in:    a CAST of f32 to bf16 or f16 in a group      out: the function, and the tensors that it is of
** Whether an expression is one of these functions is found out by its values, in double precision at some points: so it
** does not matter how the graph has written it, or what passes made of it (as in pass/epilogue.c).
** keeps: everything between the CAST and what it is of is computed in the group, and what is rounded has no other use
**        there
** see:   math_approx.c      tests: tests/sched/test_approx.c
*/
#include <math.h>

#include "kern/kern.h"

enum { MOST_ITEMS = 64, POINTS = 96 };

struct item {
  const quern_tensor *t;
  int n_src, src[3]; /* items */
  double at_point[POINTS];
};

struct expression {
  const struct pass_group *group;
  int n, leaf; /* items; the one that is a cast of 16 bits to f32, -1: none was found yet */
  struct item items[MOST_ITEMS];
  int order[MOST_ITEMS]; /* sources first */
};

/* ---- the group -------------------------------------------------------------------------------------------- */

static bool is_computed(const struct pass_group *group, const struct ir_node *node) {
  return pass_group_find(group, node) < group->n_nodes;
}

static bool is_half(quern_dtype dtype) { return dtype == QUERN_DTYPE_BF16 || dtype == QUERN_DTYPE_F16; }

static bool is_rounding(const struct ir_node *node) {
  return node->op == IR_CAST && node->src[0]->dtype == QUERN_DTYPE_F32 && is_half(node->out[0].dtype);
}

/* A number of 16 bits as f32. */
static bool is_widened(const quern_tensor *t) {
  return t->node->op == IR_CAST && t->dtype == QUERN_DTYPE_F32 && is_half(t->node->src[0]->dtype);
}

/* Whether what is rounded is wanted in no other way. */
static bool is_rounded_only(const struct pass_group *group, const quern_tensor *t) {
  for (size_t i = 0; i < group->n_outs; i++)
    if (group->outs[i].tensor == t) return false;
  for (size_t i = 0; i < group->n_nodes; i++) {
    const struct ir_node *node = group->nodes[i];
    for (int k = 0; k < node->n_src; k++)
      if (node->src[k] == t && !is_rounding(node)) return false;
  }
  return true;
}

/* ---- the expression --------------------------------------------------------------------------------------- */

static bool is_known(enum ir_op op) {
  static const bool known[IR_OP_COUNT] = {
      [IR_NEG] = true,  [IR_ABS] = true, [IR_EXP] = true, [IR_ERF] = true, [IR_ERFC] = true,
      [IR_TANH] = true, [IR_ADD] = true, [IR_SUB] = true, [IR_MUL] = true, [IR_DIV] = true,
      [IR_MAX] = true,  [IR_MIN] = true, [IR_LT] = true,  [IR_LE] = true,  [IR_SELECT] = true};
  return known[op];
}

/* Whether t is one number at all points. */
static bool is_number(const quern_tensor *t, double *value) {
  while (t->node->op == IR_BROADCAST || t->node->op == IR_RESHAPE) t = t->node->src[0];
  if (t->node->op != IR_CONST || ir_count(t) != 1 || !base_dtype_is(t->dtype, BASE_FLOAT)) return false;
  *value = base_load_float(t->dtype, t->node->attrs->data.at, 0);
  return true;
}

/* The item of a tensor: one that is there, or a new one; -1 when there are too many. */
static int add_item(struct expression *x, const quern_tensor *t) {
  for (int i = 0; i < x->n; i++)
    if (x->items[i].t == t) return i;
  if (x->n == MOST_ITEMS) return -1;
  x->items[x->n] = (struct item){.t = t};
  return x->n++;
}

/* Numbers from -7 to 7, no further apart than 0.3 (ops with corners are among those that are known), then large and
** small ones of both signs. */
static double sample(int point) {
  static const double sizes[] = {1e-30, 1e-6, 1e-3, 5, 6.5, 12, 31, 1e3, 1e15, 1e30};
  int wide = point - (POINTS - 2 * (int)BASE_COUNT(sizes));
  if (wide >= 0) return wide % 2 == 0 ? sizes[wide / 2] : -sizes[wide / 2];
  uint32_t x = (uint32_t)(point + 1) * 2654435761u;
  return (double)(x >> 8) / 0x1p24 * 14 - 7;
}

/* Reads an item: a number, a leaf, or what it is made of. */
static bool read_item(struct expression *x, int i) {
  const quern_tensor *t = x->items[i].t;
  const struct ir_node *node = t->node;
  double value;
  if (is_number(t, &value)) {
    for (int p = 0; p < POINTS; p++) x->items[i].at_point[p] = value;
    return true;
  }
  if (is_widened(t)) {
    if (x->leaf >= 0) return false;
    x->leaf = i;
    for (int p = 0; p < POINTS; p++) x->items[i].at_point[p] = sample(p);
    return true;
  }
  if (!is_known(node->op) || !is_computed(x->group, node)) return false;
  x->items[i].n_src = node->n_src;
  for (int k = 0; k < node->n_src; k++) {
    int src = add_item(x, node->src[k]);
    if (src < 0) return false;
    x->items[i].src[k] = src;
  }
  return t->dtype == QUERN_DTYPE_F32 || t->dtype == QUERN_DTYPE_BOOL;
}

/* Reads all that t is made of, and sorts it by the ids of nodes; whether something in it is worth a shorter form. */
static bool read_all(struct expression *x, const quern_tensor *t) {
  bool dear = false;
  (void)add_item(x, t);
  for (int i = 0; i < x->n; i++) {
    enum ir_op op = x->items[i].t->node->op;
    if (!read_item(x, i)) return false;
    dear = dear || op == IR_EXP || op == IR_ERF || op == IR_ERFC || op == IR_TANH;
    int at = i;
    for (; at > 0 && x->items[x->order[at - 1]].t->node->id > x->items[i].t->node->id; at--)
      x->order[at] = x->order[at - 1];
    x->order[at] = i;
  }
  return dear && x->leaf >= 0;
}

static void evaluate(struct expression *x) {
  for (int k = 0; k < x->n; k++) {
    struct item *item = &x->items[x->order[k]];
    for (int p = 0; p < POINTS && item->n_src > 0; p++) {
      double y[3] = {0, 0, 0};
      for (int i = 0; i < item->n_src; i++) y[i] = x->items[item->src[i]].at_point[p];
      item->at_point[p] = pass_compute(item->t->node->op, y[0], y[1], y[2]);
    }
  }
}

/* Constants of the graph are f32. */
static bool is_function(const struct expression *x, enum kern_approx f) {
  for (int p = 0; p < POINTS; p++) {
    double y = kern_approx_exact(f, sample(p));
    if (!(fabs(x->items[0].at_point[p] - y) <= 2e-6 * fabs(y) + 1e-9)) return false;
  }
  return true;
}

/* What a tensor of the group is. */
static bool find(const struct pass_group *group, const quern_tensor *t, struct kern_approx_use *found) {
  struct expression x = {.group = group, .leaf = -1};
  if (!read_all(&x, t)) return false;
  evaluate(&x);
  for (int f = 0; f < KERN_APPROX_COUNT; f++) {
    if (!is_function(&x, (enum kern_approx)f)) continue;
    *found = (struct kern_approx_use){.f = (enum kern_approx)f, .x = x.items[x.leaf].t};
    return true;
  }
  return false;
}

/* Finds the function of which t is a multiple, by a number of 16 bits, which is exact. */
static bool find_product(const struct pass_group *group, const quern_tensor *t, struct kern_approx_use *found) {
  if (t->node->op != IR_MUL || !is_computed(group, t->node)) return false;
  for (int k = 0; k < 2; k++) {
    if (!is_widened(t->node->src[k]) || !find(group, t->node->src[1 - k], found)) continue;
    found->factor = t->node->src[k];
    return true;
  }
  return false;
}

bool kern_approx_find(const struct pass_group *group, const struct ir_node *node, struct kern_approx_use *found) {
  if (!is_rounding(node) || !is_rounded_only(group, node->src[0])) return false;
  return find(group, node->src[0], found) || find_product(group, node->src[0], found);
}
