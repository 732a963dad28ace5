/* codegen/signs.c -- what is known of the signs of floats, and the shorter code that it allows on GPUs
** The exponential of what is not positive needs no clamp from above and is scaled in one direction; y / (1 + y) and 1 / (1 + y) of
** such an exponential need none of what a division does for numbers that are very large or very small. All give the same bits.
** tests: tests/codegen/test_signs.c
*/
#include "codegen/cg_int.h"

#include <math.h>

enum { NOT_NEGATIVE = 1, NOT_POSITIVE = 2 }; /* or NaN */

/* NaN, which is no sign of anything, of what is no float. */
static double number(const struct kern_inst *x) {
  uint64_t bits = (uint64_t)x->imm;
  return base_dtype_is(x->dtype, BASE_FLOAT) ? base_load_float(x->dtype, &bits, 0) : (double)NAN;
}
static bool is_number(const struct kern_inst *x, double value) { return x->op == KERN_CONST && number(x) == value; }

static int flip(int sign) {
  return (sign & NOT_NEGATIVE ? NOT_POSITIVE : 0) | (sign & NOT_POSITIVE ? NOT_NEGATIVE : 0);
}

static int sign_of_number(double x) { return (x < 0 ? 0 : NOT_NEGATIVE) | (x > 0 ? 0 : NOT_POSITIVE); }

static int sign_of_product(const struct cg_emit *e, kern_id a, kern_id b) {
  int x = e->signs[a], y = e->signs[b];
  if (a == b) return NOT_NEGATIVE;
  return (y & NOT_NEGATIVE ? x : 0) | (y & NOT_POSITIVE ? flip(x) : 0);
}

/* Whether a number is another's negative: by NEG, or as a product with a constant of the other sign. */
static bool is_opposite(const struct cg_emit *e, kern_id a, kern_id b) {
  const struct kern_inst *x = cg_inst(e, a), *y = cg_inst(e, b);
  if ((x->op == KERN_NEG && x->arg[0] == b) || (y->op == KERN_NEG && y->arg[0] == a)) return true;
  if (x->op != KERN_MUL || y->op != KERN_MUL) return false;
  for (int i = 0; i < 4; i++) {
    const struct kern_inst *c = cg_inst(e, x->arg[i & 1]), *d = cg_inst(e, y->arg[i >> 1]);
    if (x->arg[1 - (i & 1)] == y->arg[1 - (i >> 1)] && c->op == KERN_CONST && is_number(d, -number(c))) return true;
  }
  return false;
}

/* The sign of what is chosen when x < 0 is `less`. */
static int sign_where(const struct cg_emit *e, kern_id chosen, kern_id x, bool less) {
  int known = less ? NOT_POSITIVE : NOT_NEGATIVE;
  return e->signs[chosen] | (chosen == x ? known : 0) | (is_opposite(e, chosen, x) ? flip(known) : 0);
}

static int sign_of_select(const struct cg_emit *e, const struct kern_inst *x) {
  const struct kern_inst *mask = cg_inst(e, x->arg[0]);
  kern_id a = x->arg[1], b = x->arg[2];
  if (mask->op != KERN_LT) return e->signs[a] & e->signs[b];
  kern_id p = mask->arg[0], q = mask->arg[1];
  if (is_number(cg_inst(e, q), 0)) return sign_where(e, a, p, true) & sign_where(e, b, p, false);
  int sign = e->signs[a] & e->signs[b];
  if (a == p && b == q) sign |= e->signs[q] & NOT_POSITIVE; /* the lesser, or q */
  if (a == q && b == p) sign |= e->signs[p] & NOT_NEGATIVE; /* the greater, or p */
  return sign;
}

static int sign_of(const struct cg_emit *e, const struct kern_inst *x) {
  kern_id a = x->arg[0], b = x->arg[1];
  switch ((int)x->op) {
  case KERN_CONST: return sign_of_number(number(x));
  case KERN_ABS:
  case KERN_SQRT:
  case KERN_SCALE: return NOT_NEGATIVE;
  case KERN_NEG: return flip(e->signs[a]);
  case KERN_ADD: return e->signs[a] & e->signs[b];
  case KERN_SUB: { /* of fma(., ., c) and c what was added to c */
    const struct kern_inst *sum = cg_inst(e, a), *c = cg_inst(e, b);
    if (sum->op == KERN_FMA && c->op == KERN_CONST && is_number(cg_inst(e, sum->arg[2]), number(c)))
      return sign_of_product(e, sum->arg[0], sum->arg[1]);
    return e->signs[a] & flip(e->signs[b]);
  }
  case KERN_MUL: return sign_of_product(e, a, b);
  case KERN_FMA: return sign_of_product(e, a, b) & e->signs[x->arg[2]];
  case KERN_MAX: return (e->signs[a] & e->signs[b]) | ((e->signs[a] | e->signs[b]) & NOT_NEGATIVE);
  case KERN_MIN: return (e->signs[a] & e->signs[b]) | ((e->signs[a] | e->signs[b]) & NOT_POSITIVE);
  case KERN_SELECT: return sign_of_select(e, x);
  case KERN_CAST:
  case KERN_SPLAT: return e->signs[a];
  default: return 0;
  }
}

void cg_sign(struct cg_emit *e, kern_id id) {
  const struct kern_inst *x = cg_inst(e, id);
  bool is_float = x->lanes > 0 && base_dtype_is(x->dtype, BASE_FLOAT);
  e->signs[id] = is_float ? (unsigned char)sign_of(e, x) : 0;
}

/* ---- shorter code ------------------------------------------------------------------------------------------ */

bool cg_is_second(const struct cg_emit *e, kern_id id) {
  const struct kern_inst *x = cg_inst(e, id), *mask = cg_inst(e, x->arg[0]), *most = cg_inst(e, x->arg[1]);
  if (!e->unit->target->base.gpu || mask->op != KERN_LT || mask->arg[0] != x->arg[1] || mask->arg[1] != x->arg[2])
    return false;
  return most->op == KERN_CONST && number(most) >= 0 && (e->signs[x->arg[2]] & NOT_POSITIVE) != 0;
}

kern_id cg_raised(const struct cg_emit *e, kern_id id) {
  const struct kern_inst *x = cg_inst(e, id), *by = cg_inst(e, x->arg[1]);
  bool fits = e->unit->target->base.gpu && x->dtype == QUERN_DTYPE_F32 && by->op == KERN_SUB;
  return fits && is_number(cg_inst(e, by->arg[1]), 0x1.8p23) ? by->arg[0] : KERN_NONE;
}

bool cg_is_down(const struct cg_emit *e, kern_id id) { return (e->signs[cg_inst(e, id)->arg[1]] & NOT_POSITIVE) != 0; }

/* A power that is 4 at most: see SCALE. */
static bool is_small_power(const struct cg_emit *e, kern_id id) {
  return cg_inst(e, id)->op == KERN_SCALE && cg_is_down(e, id);
}

bool cg_is_share(const struct cg_emit *e, kern_id id) {
  const struct kern_inst *x = cg_inst(e, id), *a = cg_inst(e, x->arg[0]), *whole = cg_inst(e, x->arg[1]);
  if (e->unit->target->isa != CG_ISA_CUDA || x->dtype != QUERN_DTYPE_F32 || whole->op != KERN_ADD) return false;
  for (int i = 0; i < 2; i++) {
    kern_id y = whole->arg[i];
    if (!is_small_power(e, y) || !is_number(cg_inst(e, whole->arg[1 - i]), 1)) continue;
    if (a->op != KERN_SELECT) return x->arg[0] == y || is_number(a, 1);
    for (int k = 1; k < 3; k++)
      if (a->arg[k] != y && !is_number(cg_inst(e, a->arg[k]), 1)) return false;
    return true;
  }
  return false;
}
