/* codegen/value_facts.c -- what is known of a value before it is printed: the width of masks, the range of integers, powers of two
** What is known to be small or not negative is divided faster, and is 32 bits long on GPUs. What may wrap is unknown. What is known
** to be a multiple of a power of two may be the number of an element that several are loaded from at once.
** tests: tests/codegen/test_control.c
*/
#include "codegen/cg_int.h"

/* ---- ranges -------------------------------------------------------------------------------------------- */

enum { TASK_BITS = 40 }; /* no launch has more tasks than two to this */
static const struct cg_range unknown = {INT64_MIN, INT64_MAX};

static bool is_small(struct cg_range r) { return r.lo >= -(INT64_C(1) << 61) && r.hi <= INT64_C(1) << 61; }

/* a + b, or a - b */
static struct cg_range sum(struct cg_range a, struct cg_range b, bool minus) {
  if (!is_small(a) || !is_small(b)) return unknown;
  if (minus) b = (struct cg_range){-b.hi, -b.lo};
  return (struct cg_range){a.lo + b.lo, a.hi + b.hi};
}

static struct cg_range product(struct cg_range a, struct cg_range b) {
  int64_t limit = INT64_C(1) << 31;
  bool either = (a.lo >= -limit && a.hi <= limit && b.lo >= -limit && b.hi <= limit);
  for (int swap = 0; swap < 2 && !either; swap++) { /* a constant times something */
    struct cg_range x = swap ? a : b, y = swap ? b : a;
    int64_t c = x.lo;
    if (x.lo == x.hi && c > 0 && y.lo >= INT64_MIN / c && y.hi <= INT64_MAX / c)
      return (struct cg_range){y.lo * c, y.hi * c};
  }
  if (!either) return unknown;
  int64_t p[4] = {a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi};
  struct cg_range r = {p[0], p[0]};
  for (int i = 1; i < 4; i++) {
    r.lo = BASE_MIN(r.lo, p[i]);
    r.hi = BASE_MAX(r.hi, p[i]);
  }
  return r;
}

static int64_t floor_div(int64_t x, int64_t by) { return x / by - (x % by < 0); }

static struct cg_range range_of(const struct cg_emit *e, const struct kern_inst *x) {
  struct cg_range r[3];
  for (int i = 0; i < 3; i++) r[i] = x->op != KERN_CALL && x->arg[i] >= 0 ? e->ranges[x->arg[i]] : unknown;
  switch ((int)x->op) {
  case KERN_CONST: return (struct cg_range){x->imm, x->imm};
  case KERN_LANE: return (struct cg_range){0, x->lanes - 1};
  case KERN_TASK: return (struct cg_range){0, e->tasks > 0 ? e->tasks - 1 : INT64_C(1) << TASK_BITS};
  case KERN_FOR: return (struct cg_range){r[0].lo, r[1].hi < INT64_MAX ? r[1].hi - 1 : INT64_MAX};
  case KERN_ADD: return sum(r[0], r[1], false);
  case KERN_SUB: return sum(r[0], r[1], true);
  case KERN_MUL: return product(r[0], r[1]);
  case KERN_MAX: return (struct cg_range){BASE_MAX(r[0].lo, r[1].lo), BASE_MAX(r[0].hi, r[1].hi)};
  case KERN_MIN: return (struct cg_range){BASE_MIN(r[0].lo, r[1].lo), BASE_MIN(r[0].hi, r[1].hi)};
  case KERN_IDIV: return (struct cg_range){floor_div(r[0].lo, x->imm), floor_div(r[0].hi, x->imm)};
  case KERN_IMOD: return (struct cg_range){0, x->imm - 1};
  case KERN_SELECT: return (struct cg_range){BASE_MIN(r[1].lo, r[2].lo), BASE_MAX(r[1].hi, r[2].hi)};
  case KERN_SPLAT:
  case KERN_EXTRACT:
  case KERN_DEINTERLEAVE:
  case KERN_LOW:
  case KERN_HIGH: return r[0];
  case KERN_JOIN:
  case KERN_INTERLEAVE:
  case KERN_SHUFFLE: return (struct cg_range){BASE_MIN(r[0].lo, r[1].lo), BASE_MAX(r[0].hi, r[1].hi)};
  case KERN_CAST:
    switch ((int)cg_inst(e, x->arg[0])->dtype) {
    case QUERN_DTYPE_I8: return (struct cg_range){INT8_MIN, INT8_MAX};
    case QUERN_DTYPE_I16: return (struct cg_range){INT16_MIN, INT16_MAX};
    case QUERN_DTYPE_I32: return (struct cg_range){INT32_MIN, INT32_MAX};
    case QUERN_DTYPE_U8: return (struct cg_range){0, UINT8_MAX};
    case QUERN_DTYPE_U16: return (struct cg_range){0, UINT16_MAX};
    case QUERN_DTYPE_U32: return (struct cg_range){0, UINT32_MAX};
    case QUERN_DTYPE_BOOL: return (struct cg_range){0, 1};
    default: return unknown;
    }
  default: return unknown;
  }
}

/* ---- multiples --------------------------------------------------------------------------------------------- */

enum { ALL_ZEROS = 62 };

/* How often two divides a number. */
static int zeros_in(int64_t x) {
  int n = 0;
  while (x != 0 && n < ALL_ZEROS && ((uint64_t)x >> n & 1) == 0) n++;
  return x == 0 ? ALL_ZEROS : n;
}

static int zeros_of(const struct cg_emit *e, const struct kern_inst *x) {
  int z[3];
  for (int i = 0; i < 3; i++) z[i] = x->op != KERN_CALL && x->arg[i] >= 0 ? e->zeros[x->arg[i]] : 0;
  switch ((int)x->op) {
  case KERN_CONST: return zeros_in(x->imm);
  case KERN_FOR: return BASE_MIN(z[0], zeros_in(x->imm));
  case KERN_ADD:
  case KERN_SUB:
  case KERN_MAX:
  case KERN_MIN: return BASE_MIN(z[0], z[1]);
  case KERN_MUL: return BASE_MIN(z[0] + z[1], ALL_ZEROS);
  case KERN_IDIV: return (x->imm & (x->imm - 1)) == 0 ? BASE_MAX(z[0] - zeros_in(x->imm), 0) : 0;
  case KERN_IMOD: return BASE_MIN(z[0], zeros_in(x->imm));
  case KERN_SELECT: return BASE_MIN(z[1], z[2]);
  case KERN_SPLAT:
  case KERN_EXTRACT:
  case KERN_DEINTERLEAVE:
  case KERN_LOW:
  case KERN_HIGH: return z[0];
  default: return 0;
  }
}

/* ---- widths of masks ----------------------------------------------------------------------------------- */

/* The mask of a comparison is as wide as what was compared, and stays so; constants take any width. */
static int width_of(const struct cg_emit *e, const struct kern_inst *x) {
  const struct kern_inst *a = x->arg[0] >= 0 && x->op != KERN_CALL ? cg_inst(e, x->arg[0]) : NULL;
  switch ((int)x->op) {
  case KERN_LOAD:
  case KERN_GATHER:
  case KERN_TABLE:
  case KERN_BITCAST: return 1;
  case KERN_CONST:
  case KERN_SPLAT: return 4;
  case KERN_SELECT: {
    kern_id from = cg_inst(e, x->arg[1])->op == KERN_CONST ? x->arg[2] : x->arg[1];
    return e->width[cg_inst(e, from)->op == KERN_CONST ? x->arg[0] : from];
  }
  default:
    if (a == NULL || a->dtype != QUERN_DTYPE_BOOL) return a != NULL ? cg_size((int)a->dtype) : 4;
    return e->width[a->op == KERN_CONST && x->arg[1] >= 0 ? x->arg[1] : x->arg[0]];
  }
}

void cg_facts(struct cg_emit *e, kern_id id) {
  const struct kern_inst *x = cg_inst(e, id);
  e->width[id] = x->dtype == QUERN_DTYPE_BOOL && x->lanes > 1 ? (unsigned char)width_of(e, x) : 4;
  e->zeros[id] = x->dtype == QUERN_DTYPE_I64 && x->lanes > 0 ? (unsigned char)zeros_of(e, x) : 0;
  e->ranges[id] = x->dtype == QUERN_DTYPE_I64 && x->lanes > 0 ? range_of(e, x) : unknown;
  cg_sign(e, id);
}
