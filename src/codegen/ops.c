/* codegen/ops.c -- every instruction of kern/ops.def as C, one row each
** see: helpers.def for the functions that expressions name      tests: tests/codegen/test_c.c
*/
#include "codegen/cg_int.h"

#include <stdio.h>

struct rule {
  void (*emit)(struct cg_emit *e, kern_id id);
  /* of arithmetic: the expression for floats, integers, vectors of bools, scalar bools */
  const char *floats, *integers, *masks, *bools;
};
static const struct rule rules[KERN_OP_COUNT];

/* ---- arithmetic ---------------------------------------------------------------------------------------- */

/* The operands of a template: lanes lo .. lo + n - 1 of the arguments, masks as wide as the result. */
struct operands {
  struct cg_emit *e;
  kern_id id;
  int lo, n, width;
  bool wide; /* an i64 that is an i32 in the text is to be an i64 */
};
static void add_operand(void *self, struct base_str *str, char which) {
  const struct operands *o = self;
  kern_id arg = cg_inst(o->e, o->id)->arg[which - 'a'];
  if (o->wide && cg_is_i32(o->e, arg)) base_str_add(str, "(i64)");
  cg_value(o->e, str, arg, o->lo, o->n, o->width);
}

/* Whether arithmetic of i64 is done as such: its result, or something that goes into it, is no i32 in the text. */
static bool is_wide(const struct cg_emit *e, kern_id id) {
  const struct kern_inst *x = cg_inst(e, id);
  bool wide = x->dtype == QUERN_DTYPE_I64 && !cg_is_i32(e, id);
  for (int i = 0; i < kern_ops[x->op].n_args; i++)
    wide = wide || (cg_inst(e, x->arg[i])->dtype == QUERN_DTYPE_I64 && !cg_is_i32(e, x->arg[i]));
  return wide && cg_dialect(e->unit->target)->scalar;
}

/* Fills a template for lanes of an instruction; D is its type, A that of its first argument. */
static void fill(struct cg_emit *e, kern_id id, int lo, int n, const char *text) {
  struct operands o = {e, id, lo, n, cg_width(e, id), is_wide(e, id)};
  struct cg_fill with = {
      .d = cg_type_of(e, id, n), .operand = add_operand, .self = &o, .dialect = cg_dialect(e->unit->target)};
  if (o.wide && cg_inst(e, id)->dtype == QUERN_DTYPE_I64) with.d.dtype = QUERN_DTYPE_I64;
  with.a = cg_inst(e, id)->arg[0] >= 0 ? cg_type_of(e, cg_inst(e, id)->arg[0], n) : with.d;
  if (o.wide && with.a.dtype == QUERN_DTYPE_I32 && cg_inst(e, cg_inst(e, id)->arg[0])->dtype == QUERN_DTYPE_I64)
    with.a.dtype = QUERN_DTYPE_I64;
  cg_fill(&e->text, text, &with);
}

/* Lanes whose widest kind, of that many bytes, fills a register. */
static int lanes_for(const struct cg_emit *e, int bytes) {
  return cg_dialect(e->unit->target)->scalar ? 1 : e->unit->target->base.vector_bytes / bytes;
}

/* What an operation is written as where the plain one would not do; else NULL. Signed integers wrap: where the compiler
** cannot be told so, they are unsigned ones, unless it is known that they do not. NVRTC takes the negative of a 0 that
** was a bool for 0. */
static const char *careful(const struct cg_emit *e, kern_id id) {
  const struct kern_inst *x = cg_inst(e, id);
  bool cuda = e->unit->target->isa == CG_ISA_CUDA;
  if (cuda && x->op == KERN_NEG && base_dtypes[x->dtype].class == BASE_FLOAT) return "neg_$D($a)";
  const struct cg_range *r = &e->ranges[id];
  if (!cg_dialect(e->unit->target)->scalar || base_dtypes[x->dtype].class != BASE_SIGNED) return NULL;
  if (x->dtype == QUERN_DTYPE_I64 && (r->lo > INT64_MIN || r->hi < INT64_MAX)) return NULL;
  switch ((int)x->op) {
  case KERN_ADD: return "($D)(($Dw)$a + ($Dw)$b)";
  case KERN_SUB: return "($D)(($Dw)$a - ($Dw)$b)";
  case KERN_MUL: return "($D)(($Dw)$a * ($Dw)$b)";
  case KERN_NEG: return "($D)(0 - ($Dw)$a)";
  default: return NULL;
  }
}

static void piece_arithmetic(struct cg_emit *e, kern_id id, int lo, int n) {
  const struct kern_inst *x = cg_inst(e, id);
  if (careful(e, id) != NULL) {
    fill(e, id, lo, n, careful(e, id));
    return;
  }
  const struct rule *rule = &rules[x->op];
  quern_dtype dtype = x->op == KERN_SELECT ? x->dtype : cg_inst(e, x->arg[0])->dtype;
  enum base_dtype_class class = base_dtypes[dtype].class;
  fill(e, id, lo, n,
       class == BASE_FLOAT  ? rule->floats
       : class != BASE_BOOL ? rule->integers
       : n == 1             ? rule->bools
                            : rule->masks);
}
static void emit_arithmetic(struct cg_emit *e, kern_id id) {
  cg_define(e, id, cg_vector_lanes(e, id), piece_arithmetic);
}

/* Lane == b - constant: a thread subtracts once, and compares with constants. */
static void piece_eq(struct cg_emit *e, kern_id id, int lo, int n) {
  const struct kern_inst *x = cg_inst(e, id), *a = cg_inst(e, x->arg[0]), *b = cg_inst(e, x->arg[1]);
  const struct kern_inst *less = b->op == KERN_SPLAT ? cg_inst(e, b->arg[0]) : NULL;
  bool lane = e->block_threads > 1 && n == 1 && a->op == KERN_LANE && a->dtype == QUERN_DTYPE_I32;
  if (!lane || less == NULL || less->op != KERN_SUB || cg_inst(e, less->arg[1])->op != KERN_CONST) {
    piece_arithmetic(e, id, lo, n);
    return;
  }
  unsigned from = (unsigned)cg_inst(e, less->arg[1])->imm;
  base_str_add(&e->text, "(i32)((u32)(");
  cg_value(e, &e->text, less->arg[0], 0, 1, 4);
  base_str_add(&e->text, ") - (u32)(");
  cg_own_lane(e, x->lanes, 0);
  base_str_printf(&e->text, ") == %uu)", from + (unsigned)lo);
}
static void emit_eq(struct cg_emit *e, kern_id id) { cg_define(e, id, cg_vector_lanes(e, id), piece_eq); }

/* In CUDA: whether an operand is a number, and no zero but 0: then the lesser or greater of it and another is one
** instruction. */
static bool is_plain_number(const struct cg_emit *e, kern_id id) {
  const struct kern_inst *x = cg_inst(e, id);
  if (e->unit->target->isa != CG_ISA_CUDA || x->dtype != QUERN_DTYPE_F32) return false;
  if (x->op != KERN_CONST && x->op != KERN_TABLE) return false;
  for (int i = 0; i < (x->op == KERN_TABLE ? 16 : 1); i++) {
    uint32_t bits = (uint32_t)(x->op == KERN_TABLE ? e->fn->pool.at[x->imm + i] : x->imm);
    if (bits == 0x80000000u || (bits & 0x7fffffffu) > 0x7f800000u) return false;
  }
  return true;
}

/* Where a comparison chooses between what it compares, it is one instruction on many CPUs and GPUs. */
static void piece_select(struct cg_emit *e, kern_id id, int lo, int n) {
  const struct kern_inst *x = cg_inst(e, id), *mask = cg_inst(e, x->arg[0]);
  bool picks = mask->op == KERN_LT && base_dtypes[x->dtype].class == BASE_FLOAT;
  if (picks && cg_is_second(e, id))
    fill(e, id, lo, n, "$c");
  else if (picks && mask->arg[0] == x->arg[1] && mask->arg[1] == x->arg[2])
    fill(e, id, lo, n, "lesser_$D($b, $c)");
  else if (picks && mask->arg[0] == x->arg[2] && mask->arg[1] == x->arg[1])
    fill(e, id, lo, n, is_plain_number(e, x->arg[2]) ? "fmaxf($b, $c)" : "greater_$D($b, $c)");
  else
    piece_arithmetic(e, id, lo, n);
}
static void emit_select(struct cg_emit *e, kern_id id) { cg_define(e, id, cg_vector_lanes(e, id), piece_select); }

/* By the bits of w where b is w - 1.5 2^23. */
static void piece_scale(struct cg_emit *e, kern_id id, int lo, int n) {
  kern_id raised = cg_raised(e, id);
  if (raised == KERN_NONE) {
    piece_arithmetic(e, id, lo, n);
    return;
  }
  fill(e, id, lo, n, cg_is_down(e, id) ? "lower_$D($a, " : "raise_$D($a, ");
  cg_value(e, &e->text, raised, lo, n, 4);
  base_str_add(&e->text, ")");
}
static void emit_scale(struct cg_emit *e, kern_id id) { cg_define(e, id, cg_vector_lanes(e, id), piece_scale); }

static void piece_div(struct cg_emit *e, kern_id id, int lo, int n) {
  if (cg_is_share(e, id))
    fill(e, id, lo, n, "share_$D($a, $b)");
  else
    piece_arithmetic(e, id, lo, n);
}
static void emit_div(struct cg_emit *e, kern_id id) { cg_define(e, id, cg_vector_lanes(e, id), piece_div); }

/* a | (b & c), which is one instruction on some CPUs and GPUs. */
static void piece_or(struct cg_emit *e, kern_id id, int lo, int n) {
  const struct kern_inst *x = cg_inst(e, id);
  struct cg_fill with = {.d = cg_type_of(e, id, n)};
  int k = cg_inst(e, x->arg[1])->op == KERN_AND ? 1 : 0;
  const struct kern_inst *both = cg_inst(e, x->arg[k]);
  if (n == 1 || x->dtype == QUERN_DTYPE_BOOL || both->op != KERN_AND) {
    piece_arithmetic(e, id, lo, n);
    return;
  }
  cg_fill(&e->text, "orand_$D(", &with);
  cg_value(e, &e->text, x->arg[1 - k], lo, n, cg_width(e, id));
  for (int i = 0; i < 2; i++) {
    base_str_add(&e->text, ", ");
    cg_value(e, &e->text, both->arg[i], lo, n, cg_width(e, id));
  }
  base_str_add(&e->text, ")");
}
static void emit_or(struct cg_emit *e, kern_id id) { cg_define(e, id, cg_vector_lanes(e, id), piece_or); }

/* By a constant that is less than the width it is the plain operator. */
static void piece_shift(struct cg_emit *e, kern_id id, int lo, int n) {
  const struct kern_inst *x = cg_inst(e, id), *by = cg_inst(e, x->arg[1]);
  if (by->op != KERN_CONST || (uint64_t)by->imm >= 8 * base_dtypes[x->dtype].size) {
    piece_arithmetic(e, id, lo, n);
    return;
  }
  fill(e, id, lo, n, x->op == KERN_SHL ? "($D)$a << " : "($D)$a >> ");
  base_str_printf(&e->text, "%d", (int)by->imm);
}
static void emit_shift(struct cg_emit *e, kern_id id) { cg_define(e, id, cg_vector_lanes(e, id), piece_shift); }

/* ---- all lanes as one ---------------------------------------------------------------------------------- */

/* ---- division of indices ------------------------------------------------------------------------------- */

static void piece_division(struct cg_emit *e, kern_id id, int lo, int n) {
  const struct kern_inst *x = cg_inst(e, id);
  struct cg_range range = e->ranges[x->arg[0]];
  bool is_div = x->op == KERN_IDIV, small = range.lo >= -(INT64_C(1) << 48) && range.hi <= INT64_C(1) << 48;
  long long by = (long long)x->imm;
  bool is_short = cg_is_i32(e, x->arg[0]) && by <= INT32_MAX;
  const struct cg_dialect *dialect = cg_dialect(e->unit->target);
  if ((by & (by - 1)) == 0) {
    int shift = 0;
    while (by >> shift > 1) shift++;
    if (cg_is_i32(e, x->arg[0])) shift = BASE_MIN(shift, 31); /* all but the sign */
    fill(e, id, lo, n, is_div ? "($D)$a >> " : "$a & ");
    base_str_printf(&e->text, "%lld%s", is_div ? (long long)shift : by - 1, is_short ? "" : dialect->i64);
  } else if (n == 1 && range.lo >= 0) {
    fill(e, id, lo, n, is_short ? is_div ? "(u32)$a / " : "(u32)$a % " : is_div ? "(u64)$a / " : "(u64)$a % ");
    base_str_printf(&e->text, "%lld%s", by, is_short ? "u" : dialect->u64);
  } else if (n > 1 && small && by <= INT64_C(1) << 48) {
    fill(e, id, lo, n, is_div ? "qdiv_$D($a, " : "qmod_$D($a, ");
    cg_literal_f64(&e->text, (double)by);
    base_str_add(&e->text, ", ");
    cg_literal_f64(&e->text, 1.0 / (double)by);
    base_str_add(&e->text, ")");
  } else {
    fill(e, id, lo, n, is_div ? "idiv_$D($a, " : "imod_$D($a, ");
    base_str_printf(&e->text, "%lld%s)", by, cg_dialect(e->unit->target)->i64);
  }
}
static void emit_division(struct cg_emit *e, kern_id id) { cg_define(e, id, cg_vector_lanes(e, id), piece_division); }

/* ---- between types ------------------------------------------------------------------------------------- */

static bool is_narrow(int dtype) { return base_dtypes[dtype].class == BASE_FLOAT && base_dtypes[dtype].size < 4; }

static uint64_t one_of(quern_dtype dtype) {
  uint64_t bits = 0;
  if (base_dtype_is(dtype, BASE_FLOAT))
    base_store_float(dtype, &bits, 0, 1);
  else
    base_store_int(dtype, &bits, 0, 1);
  return bits;
}

/* In CUDA: whether an f32 is made a bf16 and an f32 again, which is one instruction. */
static bool is_rounding(const struct cg_emit *e, kern_id id) {
  const struct kern_inst *x = cg_inst(e, id), *narrow = cg_inst(e, x->arg[0]);
  return e->unit->target->isa == CG_ISA_CUDA && x->dtype == QUERN_DTYPE_F32 && narrow->dtype == QUERN_DTYPE_BF16 &&
         narrow->op == KERN_CAST && cg_inst(e, narrow->arg[0])->dtype == QUERN_DTYPE_F32;
}

static void piece_cast(struct cg_emit *e, kern_id id, int lo, int n) {
  const struct kern_inst *x = cg_inst(e, id), *a = cg_inst(e, x->arg[0]);
  bool from_bool = a->dtype == QUERN_DTYPE_BOOL, to_bool = x->dtype == QUERN_DTYPE_BOOL;
  if (from_bool && (to_bool || (n == 1 && !is_narrow((int)x->dtype)))) {
    fill(e, id, lo, n, "$a");
  } else if (from_bool) {
    fill(e, id, lo, n, n == 1 ? "$a * " : "($D)($a & "); /* -1 becomes the bits of 1 */
    cg_literal(&e->text, cg_dialect(e->unit->target), cg_signed(cg_size((int)x->dtype)), one_of(x->dtype));
    base_str_add(&e->text, n == 1 ? "" : ")");
  } else if (to_bool) {
    fill(e, id, lo, n, is_narrow((int)a->dtype) ? "($Am)(($a & $flow) != 0)" : "($Am)($a != 0)");
  } else if (is_rounding(e, id)) {
    struct cg_fill with = {.d = {QUERN_DTYPE_F32, 1}};
    cg_fill(&e->text, "rounded_$D(", &with);
    cg_value(e, &e->text, a->arg[0], lo, n, 4);
    base_str_add(&e->text, ")");
  } else {
    fill(e, id, lo, n, "cvt_${D}_$A($a)");
  }
}

/* Bytes of the widest lanes on the way of a conversion: see helpers.def. */
static int cast_width(const struct cg_emit *e, kern_id id) {
  const struct kern_inst *x = cg_inst(e, id), *a = cg_inst(e, x->arg[0]);
  int width = BASE_MAX(cg_width(e, id), cg_width(e, x->arg[0]));
  if (x->dtype == QUERN_DTYPE_BOOL || a->dtype == QUERN_DTYPE_BOOL) return width;
  if (is_narrow((int)x->dtype) && cg_size((int)a->dtype) >= 4 && a->dtype != QUERN_DTYPE_F32) return 8;
  bool floats = base_dtypes[x->dtype].class == BASE_FLOAT || base_dtypes[a->dtype].class == BASE_FLOAT;
  return floats ? BASE_MAX(width, 4) : width;
}
static void emit_cast(struct cg_emit *e, kern_id id) { cg_define(e, id, lanes_for(e, cast_width(e, id)), piece_cast); }

/* A vector is of as many bytes before and after. Bools are bytes here. */
static void piece_bitcast(struct cg_emit *e, kern_id id, int lo, int n) {
  const struct kern_inst *x = cg_inst(e, id), *a = cg_inst(e, x->arg[0]);
  int d_size = cg_size((int)x->dtype), a_size = cg_size((int)a->dtype);
  bool from_bool = a->dtype == QUERN_DTYPE_BOOL, to_bool = x->dtype == QUERN_DTYPE_BOOL;
  struct cg_fill with = {.d = {to_bool ? QUERN_DTYPE_U8 : (int)x->dtype, n},
                         .a = {from_bool ? QUERN_DTYPE_U8 : (int)a->dtype, n * d_size / a_size}};
  cg_fill(&e->text, to_bool ? "($Dm)(as_${D}_$A(" : "(as_${D}_$A(", &with);
  if (from_bool) cg_fill(&e->text, with.a.lanes > 1 ? "($A)(" : "(", &with);
  cg_value(e, &e->text, x->arg[0], lo * d_size / a_size, with.a.lanes, 1);
  if (from_bool) base_str_add(&e->text, " & 1)");
  base_str_add(&e->text, to_bool ? ") != 0)" : "))");
}
/* A bitcast lane by lane: bits are put together from those of smaller lanes, or cut out of a larger one. */
static void piece_bits(struct cg_emit *e, kern_id id, int lo, int n) {
  const struct kern_inst *x = cg_inst(e, id), *a = cg_inst(e, x->arg[0]);
  int d_size = cg_size((int)x->dtype), a_size = cg_size((int)a->dtype), parts = BASE_MAX(d_size / a_size, 1);
  struct cg_fill with = {.d = {x->dtype == QUERN_DTYPE_BOOL ? QUERN_DTYPE_U8 : (int)x->dtype, n},
                         .a = {a->dtype == QUERN_DTYPE_BOOL ? QUERN_DTYPE_U8 : (int)a->dtype, n}};
  cg_fill(&e->text, x->dtype == QUERN_DTYPE_BOOL ? "(as_${D}_$Du(($Du)(" : "as_${D}_$Du(($Du)(", &with);
  for (int k = 0; k < parts; k++) {
    cg_fill(&e->text, k > 0 ? " | ($Du)as_${Au}_$A(" : parts > 1 ? "($Du)as_${Au}_$A(" : "as_${Au}_$A(", &with);
    cg_value(e, &e->text, x->arg[0], lo * d_size / a_size + k, 1, a_size);
    base_str_add(&e->text, ")");
    if (k > 0) base_str_printf(&e->text, " << %d", 8 * a_size * k);
  }
  if (d_size < a_size) base_str_printf(&e->text, " >> %d", 8 * (lo * d_size % a_size));
  base_str_add(&e->text, x->dtype == QUERN_DTYPE_BOOL ? ")) != 0)" : "))");
}
static void emit_bitcast(struct cg_emit *e, kern_id id) {
  cg_define(e, id, cg_vector_lanes(e, id), cg_dialect(e->unit->target)->scalar ? piece_bits : piece_bitcast);
}

/* ---- lanes --------------------------------------------------------------------------------------------- */

static void piece_const(struct cg_emit *e, kern_id id, int lo, int n) {
  const struct kern_inst *x = cg_inst(e, id);
  if (x->imm == 0) {
    fill(e, id, lo, n, "($D){}");
    return;
  }
  fill(e, id, lo, n, "splat_$D(");
  if (x->dtype == QUERN_DTYPE_BOOL)
    base_str_add(&e->text, "-1");
  else
    cg_literal(&e->text, cg_dialect(e->unit->target), x->dtype, (uint64_t)x->imm);
  base_str_add(&e->text, ")");
}

/* Compilers would rather make a constant anew in each iteration of a loop, from memory, than keep it in a register:
** constants are made before the loop, out of the compiler's sight. The letter of vector registers in asm, or NULL. */
static const char *register_letter(const struct cg_emit *e, kern_id id) {
  static const char *const letters[] = {[CG_ISA_NEON] = "w", [CG_ISA_AVX2] = "x", [CG_ISA_AVX512] = "v"};
  const struct kern_inst *x = cg_inst(e, id);
  bool is_vector = x->op == KERN_CONST && x->lanes > 1 && x->imm != 0 && x->dtype != QUERN_DTYPE_BOOL; /* no mask */
  bool fits = is_vector && cg_vector_lanes(e, id) * cg_width(e, id) >= 16;
  return fits && e->unit->target->isa < BASE_COUNT(letters) ? letters[e->unit->target->isa] : NULL;
}

/* What is made before a loop: the constants that stand in it, but in no loop inside it. Equal ones are made once. */
static void add_loop_constants(struct cg_emit *e, kern_id loop) {
  kern_id last = KERN_NONE; /* of those that are made; each knows the one before it */
  int depth = 1;
  for (kern_id i = loop + 1; depth > 0; i++) {
    const struct kern_inst *x = cg_inst(e, i);
    depth += x->op == KERN_FOR || x->op == KERN_IF ? 1 : x->op == KERN_END ? -1 : 0;
    const char *letter = e->loop[i] == loop ? register_letter(e, i) : NULL;
    if (letter == NULL) continue;
    kern_id same = last;
    for (; same != KERN_NONE; same = e->made[same]) {
      const struct kern_inst *y = cg_inst(e, same);
      if (y->dtype == x->dtype && y->lanes == x->lanes && y->imm == x->imm) break;
    }
    if (same != KERN_NONE) {
      e->made[i] = same;
      continue;
    }
    e->made[i] = last;
    e->loop[i] = CG_MADE;
    last = i;
    cg_facts(e, i);
    for (int k = 0; k < x->lanes / cg_vector_lanes(e, i); k++) {
      cg_indent(e);
      cg_type_add(&e->text, cg_type_of(e, i, cg_vector_lanes(e, i)));
      base_str_add(&e->text, " ");
      cg_name(e, &e->text, i, k);
      base_str_add(&e->text, " = ");
      piece_const(e, i, 0, cg_vector_lanes(e, i));
      base_str_printf(&e->text, "; __asm__(\"\" : \"+%s\"(", letter);
      cg_name(e, &e->text, i, k);
      base_str_add(&e->text, "));\n");
    }
  }
}

static void piece_like(struct cg_emit *e, kern_id id, int lo, int n) {
  cg_value(e, &e->text, e->made[id], lo, n, cg_width(e, id));
}

static void emit_const(struct cg_emit *e, kern_id id) {
  if (cg_vector_lanes(e, id) == 1) return; /* scalars are literals where they are used */
  if (e->loop[id] == CG_MADE) return;
  bool made = e->loop[id] != KERN_NONE && register_letter(e, id) != NULL; /* another one is the same */
  cg_define(e, id, cg_vector_lanes(e, id), made ? piece_like : piece_const);
}

/* ---- lanes that are threads ---------------------------------------------------------------------------------- */

static void piece_lane(struct cg_emit *e, kern_id id, int lo, int n) {
  if (e->block_threads > 1) {
    fill(e, id, lo, n, "($D)(");
    cg_own_lane(e, cg_inst(e, id)->lanes, lo);
    base_str_add(&e->text, ")");
    return;
  }
  if (n > 1) fill(e, id, lo, n, "($D){");
  for (int i = 0; i < n; i++) base_str_printf(&e->text, i > 0 ? ", %d" : "%d", lo + i);
  base_str_add(&e->text, n > 1 ? "}" : "");
}
static void emit_lane(struct cg_emit *e, kern_id id) { cg_define(e, id, cg_vector_lanes(e, id), piece_lane); }

static void piece_splat(struct cg_emit *e, kern_id id, int lo, int n) {
  (void)lo;
  const struct kern_inst *x = cg_inst(e, id);
  if (n > 1) fill(e, id, 0, n, x->dtype == QUERN_DTYPE_BOOL ? "splat_$D(-" : "splat_$D(");
  cg_value(e, &e->text, x->arg[0], 0, 1, 4);
  base_str_add(&e->text, n > 1 ? ")" : "");
}
static void emit_splat(struct cg_emit *e, kern_id id) { cg_define(e, id, cg_vector_lanes(e, id), piece_splat); }

static void piece_sub(struct cg_emit *e, kern_id id, int lo, int n) { /* EXTRACT, LOW, HIGH */
  const struct kern_inst *x = cg_inst(e, id);
  int first = x->op == KERN_EXTRACT ? (int)x->imm : x->op == KERN_HIGH ? x->lanes : 0;
  cg_value(e, &e->text, x->arg[0], first + lo, n, cg_width(e, id));
}
static void emit_sub(struct cg_emit *e, kern_id id) {
  if (e->block_threads > 1)
    cg_emit_exchange(e, id);
  else
    cg_define(e, id, cg_vector_lanes(e, id), piece_sub);
}

/* Lanes that lie anywhere: source[i] is the lane, of argument 0 and then of argument 1, that lane i is. */
static void add_shuffle(struct cg_emit *e, kern_id id, int n, const int *source) {
  const struct kern_inst *x = cg_inst(e, id);
  int width = cg_width(e, id), lanes = cg_inst(e, x->arg[0])->lanes;
  int vector = BASE_MIN(lanes, lanes_for(e, width)); /* of the arguments */
  int from[2] = {-1, -1};                            /* at most two parts can be taken by one shuffle */
  bool few = vector > 1;
  for (int i = 0; i < n && few; i++) {
    int k = source[i] / vector;
    if (from[0] < 0) from[0] = k;
    if (k != from[0] && from[1] < 0) from[1] = k;
    few = k == from[0] || k == from[1];
  }
  if (from[1] < 0) from[1] = from[0];
  if (few) base_str_add(&e->text, "__builtin_shufflevector(");
  for (int i = 0; few && i < 2; i++) {
    int first = from[i] * vector;
    cg_value(e, &e->text, x->arg[first >= lanes], first % lanes, vector, width);
    base_str_add(&e->text, i == 0 ? ", " : "");
  }
  if (!few) fill(e, id, 0, n, "($D){");
  for (int i = 0; i < n; i++) {
    if (few || i > 0) base_str_add(&e->text, ", ");
    if (few)
      base_str_printf(&e->text, "%d", source[i] % vector + (source[i] / vector == from[0] ? 0 : vector));
    else {
      if (x->dtype == QUERN_DTYPE_BOOL) base_str_add(&e->text, "-");
      cg_value(e, &e->text, x->arg[source[i] >= lanes], source[i] % lanes, 1, width);
    }
  }
  base_str_add(&e->text, few ? ")" : "}");
}

static void piece_join(struct cg_emit *e, kern_id id, int lo, int n) {
  const struct kern_inst *x = cg_inst(e, id);
  int source[KERN_MAX_LANES], half = x->lanes / 2;
  if (e->block_threads > 1) {
    base_str_printf(&e->text, "(lane & %d) != 0 ? ", half);
    fill(e, id, lo, n, "$b : $a");
    return;
  }
  if (n <= half) { /* of one argument */
    cg_value(e, &e->text, x->arg[lo >= half], lo % half, n, cg_width(e, id));
    return;
  }
  for (int i = 0; i < n; i++) source[i] = lo + i;
  add_shuffle(e, id, n, source);
}
static void emit_join(struct cg_emit *e, kern_id id) { cg_define(e, id, cg_vector_lanes(e, id), piece_join); }

static void piece_shuffle(struct cg_emit *e, kern_id id, int lo, int n) {
  const struct kern_inst *x = cg_inst(e, id);
  int source[KERN_MAX_LANES], lanes = cg_inst(e, x->arg[0])->lanes;
  for (int i = 0; i < n; i++) source[i] = (int)e->fn->pool.at[x->imm + lo + i];
  if (n == 1)
    cg_value(e, &e->text, x->arg[source[0] >= lanes], source[0] % lanes, 1, cg_width(e, id));
  else
    add_shuffle(e, id, n, source);
}
static void emit_shuffle(struct cg_emit *e, kern_id id) { cg_define(e, id, cg_vector_lanes(e, id), piece_shuffle); }

/* ---- tables and dot products --------------------------------------------------------------------------- */

/* The type of elements in memory, with n lanes. */
static struct cg_type memory_type(quern_dtype dtype, int n) {
  return (struct cg_type){dtype == QUERN_DTYPE_BOOL ? QUERN_DTYPE_U8 : (int)dtype, n};
}

void cg_table_name(const struct cg_emit *e, kern_id id, char name[32]) {
  const struct kern_inst *x = cg_inst(e, id);
  uint64_t hash = base_hash_bytes(base_hash_u64(BASE_HASH_SEED, base_dtype_code(x->dtype)), &e->fn->pool.at[x->imm],
                                  16 * sizeof(int64_t));
  snprintf(name, 32, "t_%016llx", (unsigned long long)hash);
}

/* "(name(" for bools in registers, which memory has as bytes: what follows ends with close_bytes. */
static void open_bytes(struct cg_emit *e, kern_id id, int n) {
  if (cg_inst(e, id)->dtype == QUERN_DTYPE_BOOL) fill(e, id, 0, n, n == 1 ? "(" : "($D)(");
}
static void close_bytes(struct cg_emit *e, kern_id id) {
  if (cg_inst(e, id)->dtype == QUERN_DTYPE_BOOL) base_str_add(&e->text, " != 0)");
}

/* The index of a table: without the mask of four bits where the instruction looks at no others. */
static kern_id table_index(const struct cg_emit *e, const struct kern_inst *x, int n) {
  const struct kern_inst *index = cg_inst(e, x->arg[0]);
  bool whole = e->unit->target->isa == CG_ISA_AVX512 && n * cg_size((int)x->dtype) == 64 && cg_size((int)x->dtype) >= 4;
  if (!whole || index->op != KERN_AND) return x->arg[0];
  const struct kern_inst *mask = cg_inst(e, index->arg[1]);
  return mask->op == KERN_CONST && mask->imm == 15 ? index->arg[0] : x->arg[0];
}

static void piece_table(struct cg_emit *e, kern_id id, int lo, int n) {
  const struct kern_inst *x = cg_inst(e, id);
  struct cg_fill with = {.d = memory_type(x->dtype, n)};
  char name[32];
  if (cg_has_row(e, id)) {
    cg_of_row(e, id, lo);
    return;
  }
  cg_table_name(e, id, name);
  open_bytes(e, id, n);
  cg_fill(&e->text, cg_dialect(e->unit->target)->scalar ? "entry_$D(" : "table_$D(", &with);
  base_str_printf(&e->text, "%s, ", name);
  cg_value(e, &e->text, table_index(e, x, n), lo, n, 4);
  base_str_add(&e->text, ")");
  close_bytes(e, id);
}
static void emit_table(struct cg_emit *e, kern_id id) {
  const struct kern_inst *x = cg_inst(e, id);
  struct base_str *prelude = &e->unit->prelude;
  char name[32];
  bool is_new = false;
  cg_table_name(e, id, name);
  quern_status status = cg_name_new(e->unit, name, strlen(name), &is_new);
  if (e->status == QUERN_STATUS_OK) e->status = status;
  if (is_new) {
    const struct cg_dialect *dialect = cg_dialect(e->unit->target);
    quern_dtype dtype = dialect->scalar ? cg_unsigned(cg_size((int)x->dtype)) : x->dtype; /* bits, or values */
    base_str_add(prelude, dialect->new_table);
    cg_type_add(prelude, memory_type(dtype, 1));
    base_str_printf(prelude, " %s[16]%s = {", name, dialect->scalar ? "" : " __attribute__((aligned(64)))");
    for (int i = 0; i < 16; i++) {
      base_str_add(prelude, i > 0 ? ", " : "");
      cg_literal(prelude, dialect, dtype, (uint64_t)e->fn->pool.at[x->imm + i]);
    }
    base_str_add(prelude, "};\n");
  }
  if (cg_has_row(e, id)) cg_load_row(e, id);
  cg_define(e, id, lanes_for(e, BASE_MAX(4, cg_size((int)x->dtype))), piece_table);
}

/* Four bytes as an i32. */
static void add_bytes(struct cg_emit *e, kern_id id, int lo) {
  base_str_add(&e->text, ", (i32)(");
  for (int k = 0; k < 4; k++) {
    base_str_add(&e->text, k > 0 ? " | (u32)(u8)" : "(u32)(u8)");
    cg_value(e, &e->text, id, lo + k, 1, 1);
    if (k > 0) base_str_printf(&e->text, " << %d", 8 * k);
  }
  base_str_add(&e->text, ")");
}

static void piece_dot4(struct cg_emit *e, kern_id id, int lo, int n) {
  const struct kern_inst *x = cg_inst(e, id);
  fill(e, id, lo, n, "dot4_$D($a");
  for (int i = 1; i < 3; i++) {
    quern_dtype dtype = cg_inst(e, x->arg[i])->dtype;
    int size = cg_size((int)dtype);
    if (size == 1 && cg_dialect(e->unit->target)->scalar) {
      add_bytes(e, x->arg[i], 4 * lo);
      continue;
    }
    struct cg_fill with = {.d = {QUERN_DTYPE_I32, n}, .a = {(int)dtype, n * 4 / size}};
    cg_fill(&e->text, dtype == QUERN_DTYPE_I32 ? ", (" : ", as_${D}_$A(", &with);
    cg_value(e, &e->text, x->arg[i], lo * 4 / size, with.a.lanes, size);
    base_str_add(&e->text, ")");
  }
  base_str_add(&e->text, ")");
}
static void emit_dot4(struct cg_emit *e, kern_id id) { cg_define(e, id, cg_vector_lanes(e, id), piece_dot4); }

/* ---- memory -------------------------------------------------------------------------------------------- */

/* "m0 + v3 + 16" */
static void add_address(struct cg_emit *e, kern_id memory, kern_id index, int lo) {
  const struct kern_inst *i = cg_inst(e, index);
  cg_memory(e, &e->text, memory);
  if (i->op != KERN_CONST || i->imm != 0) {
    base_str_add(&e->text, " + ");
    cg_value(e, &e->text, index, 0, 1, 8);
  }
  if (lo != 0) base_str_printf(&e->text, " + %d", lo);
}

/* The lanes that count, for a vector that begins at lane lo. */
static void add_count(struct cg_emit *e, kern_id count, int lo) {
  cg_value(e, &e->text, count, 0, 1, 8);
  if (lo != 0) base_str_printf(&e->text, " - %d", lo);
}

static void piece_load(struct cg_emit *e, kern_id id, int lo, int n) {
  const struct kern_inst *x = cg_inst(e, id);
  struct cg_fill with = {.d = memory_type(x->dtype, n)};
  open_bytes(e, id, n);
  if (x->arg[2] != KERN_NONE) {
    cg_fill(&e->text, "load_$D(", &with);
    add_address(e, x->arg[0], x->arg[1], lo);
    base_str_add(&e->text, ", ");
    add_count(e, x->arg[2], lo);
    base_str_add(&e->text, ")");
  } else {
    cg_fill(&e->text, n == 1 ? "*(" : "*(const ${D}u *)(", &with);
    add_address(e, x->arg[0], x->arg[1], lo);
    base_str_add(&e->text, ")");
  }
  close_bytes(e, id);
}
static void emit_load(struct cg_emit *e, kern_id id) {
  if (e->unit->target->base.gpu)
    cg_gpu_load(e, id);
  else
    cg_define(e, id, cg_vector_lanes(e, id), piece_load);
}

/* The number of the streaming OUT that a store of a phase is to, or -1. */
static int streaming_of(const struct cg_emit *e, const struct kern_inst *store) {
  const struct kern_inst *mem = cg_inst(e, store->arg[0]);
  return mem->op == KERN_MEM && store->arg[3] == KERN_NONE && e->fn->mems[mem->imm].streaming ? (int)mem->imm : -1;
}

static void emit_stream(struct cg_emit *e, const struct kern_inst *x, int far, int lo, int n) {
  struct cg_fill with = {.d = memory_type(cg_inst(e, x->arg[2])->dtype, n)};
  cg_indent(e);
  cg_fill(&e->text, "stream_$D(", &with);
  add_address(e, x->arg[0], x->arg[1], lo);
  base_str_add(&e->text, ", ");
  cg_value(e, &e->text, x->arg[2], lo, n, 1);
  base_str_printf(&e->text, ", far%d);\n", far);
}

static void emit_store(struct cg_emit *e, kern_id id) {
  const struct kern_inst *x = cg_inst(e, id), *value = cg_inst(e, x->arg[2]);
  if (e->unit->target->base.gpu) {
    cg_gpu_store(e, id);
    return;
  }
  int n = cg_vector_lanes(e, x->arg[2]);
  bool is_mask = value->dtype == QUERN_DTYPE_BOOL && n > 1;
  struct cg_fill with = {.d = memory_type(value->dtype, n)};
  int far = n > 1 && !is_mask ? streaming_of(e, x) : -1;
  for (int lo = 0; lo < value->lanes; lo += n) {
    bool partial = x->arg[3] != KERN_NONE;
    if (far >= 0) {
      emit_stream(e, x, far, lo, n);
      continue;
    }
    cg_indent(e);
    cg_fill(&e->text, partial ? "store_$D(" : n == 1 ? "*(" : "*(${D}u *)(", &with);
    add_address(e, x->arg[0], x->arg[1], lo);
    base_str_add(&e->text, partial ? ", " : ") = ");
    if (partial) add_count(e, x->arg[3], lo);
    base_str_add(&e->text, partial ? ", " : "");
    if (is_mask) cg_fill(&e->text, "($D)(", &with);
    cg_value(e, &e->text, x->arg[2], lo, n, 1);
    base_str_printf(&e->text, "%s%s;\n", is_mask ? " & 1)" : "", partial ? ")" : "");
  }
}

/* Into the second-level cache: what is worked on meanwhile fills the first. */
/* Of CUDA: the threads of a block ask for a line each, into the cache that all share. */
static void emit_prefetch_lines(struct cg_emit *e, kern_id id) {
  enum { LINE = 128 };
  const struct kern_inst *x = cg_inst(e, id);
  long long lines = (long long)(x->imm * (int64_t)base_dtypes[x->dtype].size / LINE);
  if (e->unit->target->isa != CG_ISA_CUDA || e->block_threads == 1 || lines == 0) return;
  cg_indent(e);
  if (lines > e->block_threads)
    base_str_printf(&e->text, "for (i32 p = lane; p < %lld; p += %d) ", lines, e->block_threads);
  else
    base_str_printf(&e->text, "if (lane < %lld) ", lines);
  base_str_add(&e->text, "asm volatile(\"prefetch.global.L2 [%0];\" :: \"l\"((const char *)(");
  add_address(e, x->arg[0], x->arg[1], 0);
  base_str_printf(&e->text, ") + %s * %d));\n", lines > e->block_threads ? "p" : "lane", LINE);
}

static void emit_prefetch(struct cg_emit *e, kern_id id) {
  const struct kern_inst *x = cg_inst(e, id);
  if (e->unit->target->base.gpu && x->imm > 0) emit_prefetch_lines(e, id);
  if (e->unit->target->base.gpu) return;
  cg_indent(e);
  base_str_add(&e->text, "__builtin_prefetch(");
  add_address(e, x->arg[0], x->arg[1], 0);
  base_str_add(&e->text, ", 0, 2);\n");
}

static void piece_gather(struct cg_emit *e, kern_id id, int lo, int n) {
  const struct kern_inst *x = cg_inst(e, id);
  struct cg_fill with = {.d = memory_type(x->dtype, n)};
  bool gpu = e->unit->target->base.gpu;
  open_bytes(e, id, n);
  cg_fill(&e->text, gpu ? "*(" : "gather_$D(", &with);
  cg_memory(e, &e->text, x->arg[0]);
  base_str_add(&e->text, gpu ? " + " : ", ");
  cg_value(e, &e->text, x->arg[1], lo, n, 8);
  base_str_add(&e->text, ")");
  close_bytes(e, id);
}
/* What only GPUs have: whether the text may be printed. */
static bool is_for_gpu(struct cg_emit *e, kern_id id) {
  if (e->unit->target->base.gpu) return true;
  if (e->status == QUERN_STATUS_OK)
    e->status = base_error(QUERN_STATUS_INTERNAL, "codegen: %s of function %s is for GPUs, not for %s",
                           kern_ops[cg_inst(e, id)->op].name, e->fn->name, e->unit->target->base.name);
  return false;
}

static void emit_gather(struct cg_emit *e, kern_id id) {
  if (cg_inst(e, id)->imm > 1) {
    if (is_for_gpu(e, id)) cg_gpu_load(e, id);
    return;
  }
  cg_guard(e, id);
  cg_define(e, id, lanes_for(e, 8), piece_gather);
}

static void emit_scatter(struct cg_emit *e, kern_id id) {
  if (is_for_gpu(e, id)) cg_gpu_store(e, id);
}

static void piece_deinterleave(struct cg_emit *e, kern_id id, int lo, int n) {
  const struct kern_inst *x = cg_inst(e, id);
  int each = cg_inst(e, x->arg[0])->lanes / x->lanes;
  cg_value(e, &e->text, x->arg[0], lo * each + (int)x->imm, n, cg_width(e, id));
}
static void emit_deinterleave(struct cg_emit *e, kern_id id) {
  if (is_for_gpu(e, id)) cg_define(e, id, 1, piece_deinterleave);
}

static void piece_interleave(struct cg_emit *e, kern_id id, int lo, int n) {
  cg_value(e, &e->text, cg_inst(e, id)->arg[lo % 2], lo / 2, n, cg_width(e, id));
}
static void emit_interleave(struct cg_emit *e, kern_id id) {
  if (is_for_gpu(e, id)) cg_define(e, id, 1, piece_interleave);
}

/* ---- tensor cores ---------------------------------------------------------------------------------- */

static bool is_for_cuda(struct cg_emit *e, kern_id id) {
  bool warps = e->block_threads % CG_WARP == 0 && e->block_threads > 0;
  bool alone = cg_inst(e, id)->op == KERN_TF32 || cg_inst(e, id)->op == KERN_EXP2; /* each lane by itself */
  if (e->unit->target->isa == CG_ISA_CUDA && (warps || alone)) return true;
  if (e->status == QUERN_STATUS_OK)
    e->status = base_error(QUERN_STATUS_INTERNAL, "codegen: %s of function %s is for warps of CUDA, not for %s",
                           kern_ops[cg_inst(e, id)->op].name, e->fn->name, e->unit->target->base.name);
  return false;
}

static void emit_for_cuda(struct cg_emit *e, kern_id id) {
  if (is_for_cuda(e, id)) emit_arithmetic(e, id);
}

static void piece_shuffle_xor(struct cg_emit *e, kern_id id, int lo, int n) {
  const struct kern_inst *x = cg_inst(e, id);
  base_str_add(&e->text, "__shfl_xor_sync(0xffffffffu, ");
  cg_value(e, &e->text, x->arg[0], lo, n, 4);
  base_str_printf(&e->text, ", %d)", (int)x->imm);
}
static void emit_shuffle_xor(struct cg_emit *e, kern_id id) {
  if (is_for_cuda(e, id)) cg_define(e, id, 1, piece_shuffle_xor);
}

/* What the instruction has for column t of a is our 2 t, for t + 4 our 2 t + 1, and for rows of b the same: terms are
** added in any order, and so a is as it comes from another product. */
static void emit_mma(struct cg_emit *e, kern_id id) {
  static const struct {
    int arg, lane;
  } in[] = {{1, 0}, {1, 1}, {1, 2}, {1, 3}, {2, 0}, {2, 1}, {0, 0}, {0, 1}, {0, 2}, {0, 3}};
  if (!is_for_cuda(e, id)) return;
  cg_indent(e);
  for (int i = 0; i < 4; i++) base_str_printf(&e->text, i == 0 ? "f32 v%d_%d" : ", v%d_%d", (int)id, i);
  base_str_add(&e->text, "; mma_f32(");
  for (int i = 0; i < 4; i++) base_str_printf(&e->text, "v%d_%d, ", (int)id, i);
  for (size_t i = 0; i < BASE_COUNT(in); i++) {
    base_str_add(&e->text, i > 0 ? ", " : "");
    cg_value(e, &e->text, cg_inst(e, id)->arg[in[i].arg], in[i].lane, 1, 4);
  }
  base_str_add(&e->text, ");\n");
}

const char *cg_qualifier(const struct cg_emit *e, kern_id id) {
  const struct cg_dialect *dialect = cg_dialect(e->unit->target);
  return e->shared && cg_inst(e, cg_root(e->fn, id))->op == KERN_LOCAL ? dialect->shared : dialect->global;
}

/* Declares a pointer; what follows prints where to. */
static void begin_pointer(struct cg_emit *e, kern_id id) {
  cg_indent(e);
  base_str_add(&e->text, cg_qualifier(e, id));
  cg_type_add(&e->text, memory_type(cg_inst(e, id)->dtype, 1));
  base_str_printf(&e->text, " *const v%d = ", (int)id);
}
static void emit_local(struct cg_emit *e, kern_id id) {
  bool waited = e->touched != NULL && !(e->loaded || e->stored || e->busy[0] || e->busy[1]);
  if (e->block_threads > 1 && !waited)
    cg_barrier(e); /* something else may have lain there: another LOCAL, or this one of the last task */
  begin_pointer(e, id);
  base_str_printf(&e->text, "(%s", cg_qualifier(e, id));
  cg_type_add(&e->text, memory_type(cg_inst(e, id)->dtype, 1));
  base_str_printf(&e->text, " *)(scratch + %lld);\n", (long long)e->scratch_at[id]);
}
static void emit_at(struct cg_emit *e, kern_id id) {
  begin_pointer(e, id);
  add_address(e, cg_inst(e, id)->arg[0], cg_inst(e, id)->arg[1], 0);
  base_str_add(&e->text, ";\n");
}

/* ---- structure ----------------------------------------------------------------------------------------- */

static void emit_nothing(struct cg_emit *e, kern_id id) { (void)e, (void)id; } /* named where it is used */

static void emit_for(struct cg_emit *e, kern_id id) {
  const struct kern_inst *x = cg_inst(e, id);
  add_loop_constants(e, id);
  cg_before_loop(e, id);
  cg_indent(e);
  bool is_short = cg_is_i32(e, id) && e->ranges[id].hi <= INT32_MAX - x->imm; /* where it ends, too */
  base_str_printf(&e->text, is_short ? "for (i32 v%d = " : "for (i64 v%d = ", (int)id);
  cg_value(e, &e->text, x->arg[0], 0, 1, 8);
  base_str_printf(&e->text, "; v%d < ", (int)id);
  cg_value(e, &e->text, x->arg[1], 0, 1, 8);
  base_str_printf(&e->text, "; v%d += %lld) {\n", (int)id, (long long)x->imm);
  e->indent++;
  cg_open_block(e, id);
}
static void emit_if(struct cg_emit *e, kern_id id) {
  cg_indent(e);
  base_str_add(&e->text, "if (");
  cg_value(e, &e->text, cg_inst(e, id)->arg[0], 0, 1, 4);
  base_str_add(&e->text, ") {\n");
  e->indent++;
  cg_open_block(e, id);
}
static void emit_else(struct cg_emit *e, kern_id id) {
  (void)id;
  e->indent--;
  cg_indent(e);
  base_str_add(&e->text, "} else {\n");
  e->indent++;
  cg_other_block(e);
}
static void emit_end(struct cg_emit *e, kern_id id) {
  (void)id;
  e->indent--;
  cg_indent(e);
  base_str_add(&e->text, "}\n");
  cg_close_block(e);
}

static void piece_copy(struct cg_emit *e, kern_id id, int lo, int n) { /* VAR, GET */
  cg_value(e, &e->text, cg_inst(e, id)->arg[0], lo, n, cg_width(e, id));
}
static void emit_copy(struct cg_emit *e, kern_id id) { cg_define(e, id, cg_vector_lanes(e, id), piece_copy); }

static void emit_set(struct cg_emit *e, kern_id id) {
  const struct kern_inst *x = cg_inst(e, id);
  int vector = cg_vector_lanes(e, x->arg[0]);
  for (int lo = 0; lo < vector * cg_vectors(e, x->arg[0]); lo += vector) {
    cg_indent(e);
    cg_name(e, &e->text, x->arg[0], lo / vector);
    base_str_add(&e->text, " = ");
    cg_value(e, &e->text, x->arg[1], lo, vector, cg_width(e, x->arg[0]));
    base_str_add(&e->text, ";\n");
  }
}

static void emit_call(struct cg_emit *e, kern_id id) {
  const struct kern_inst *x = cg_inst(e, id);
  const struct kern_fn *callee = e->kern->fns.at[x->imm];
  cg_indent(e);
  base_str_printf(&e->text, "%s(", e->callees[x->imm]);
  for (int i = 0; i < callee->n_mems + callee->n_scalars; i++) {
    kern_id arg = (kern_id)e->fn->pool.at[x->arg[0] + i];
    if (i < callee->n_mems)
      cg_memory(e, &e->text, arg);
    else
      cg_value(e, &e->text, arg, 0, 1, 8);
    base_str_add(&e->text, ", ");
  }
  base_str_printf(&e->text, "scratch + %lld);\n", (long long)e->scratch_at[id]);
}

/* ---- the table ----------------------------------------------------------------------------------------- */

#define ONLY(emit)                                                                                                     \
  { emit, NULL, NULL, NULL, NULL }
#define SHIFT(text)                                                                                                    \
  { emit_shift, NULL, text, NULL, NULL }
#define ROW(floats, integers, masks, bools)                                                                            \
  { emit_arithmetic, floats, integers, masks, bools }
#define SELECT(text)                                                                                                   \
  { emit_select, text, text, text, text }
#define RULE_CONST ONLY(emit_const)
#define RULE_LANE ONLY(emit_lane)
#define RULE_SCALAR ONLY(emit_nothing)
#define RULE_TASK ONLY(emit_nothing)
#define RULE_MEM ONLY(emit_nothing)
#define RULE_LOCAL ONLY(emit_local)
#define RULE_AT ONLY(emit_at)
#define RULE_LOAD ONLY(emit_load)
#define RULE_STORE ONLY(emit_store)
#define RULE_GATHER ONLY(emit_gather)
#define RULE_SCATTER ONLY(emit_scatter)
#define RULE_PREFETCH ONLY(emit_prefetch)
#define RULE_FOR ONLY(emit_for)
#define RULE_IF ONLY(emit_if)
#define RULE_ELSE ONLY(emit_else)
#define RULE_END ONLY(emit_end)
#define RULE_VAR ONLY(emit_copy)
#define RULE_GET ONLY(emit_copy)
#define RULE_SET ONLY(emit_set)
#define RULE_CALL ONLY(emit_call)
#define RULE_ADD ROW("$a + $b", "$a + $b", NULL, NULL)
#define RULE_SUB ROW("$a - $b", "$a - $b", NULL, NULL)
#define RULE_MUL ROW("$a * $b", "$a * $b", NULL, NULL)
#define RULE_DIV                                                                                                       \
  { emit_div, "$a / $b", "div_$D($a, $b)", NULL, NULL }
#define RULE_MOD ROW(NULL, "mod_$D($a, $b)", NULL, NULL)
#define RULE_FMA ROW("fma_$D($a, $b, $c)", NULL, NULL, NULL)
#define RULE_SCALE                                                                                                     \
  { emit_scale, "scale_$D($a, $b)", NULL, NULL, NULL }
#define RULE_NEG ROW("- $a", "- $a", NULL, NULL) /* a may be a negative literal */
#define RULE_ABS ROW("abs_$D($a)", "abs_$D($a)", NULL, NULL)
#define RULE_SQRT ROW("sqrt_$D($a)", NULL, NULL, NULL)
#define RULE_FLOOR ROW("floor_$D($a)", NULL, NULL, NULL)
#define RULE_CEIL ROW("ceil_$D($a)", NULL, NULL, NULL)
#define RULE_ROUND ROW("round_$D($a)", NULL, NULL, NULL)
#define RULE_TRUNC ROW("trunc_$D($a)", NULL, NULL, NULL)
#define RULE_MAX ROW("max_$D($a, $b)", "max_$D($a, $b)", "$a | $b", "$a | $b")
#define RULE_MIN ROW("min_$D($a, $b)", "min_$D($a, $b)", "$a & $b", "$a & $b")
#define RULE_AND ROW(NULL, "$a & $b", "$a & $b", "$a & $b")
#define RULE_OR                                                                                                        \
  { emit_or, NULL, "$a | $b", "$a | $b", "$a | $b" }
#define RULE_XOR ROW(NULL, "$a ^ $b", "$a ^ $b", "$a ^ $b")
#define RULE_NOT ROW(NULL, "~$a", "~$a", "!$a")
#define RULE_SHL SHIFT("shl_$D($a, $b)")
#define RULE_SHR SHIFT("shr_$D($a, $b)")
/* a mask that is true is less than one that is false */
#define RULE_EQ                                                                                                        \
  { emit_eq, "($Am)($a == $b)", "($Am)($a == $b)", "($Dm)($a == $b)", "$a == $b" }
#define RULE_LT ROW("($Am)($a < $b)", "($Am)($a < $b)", "($Dm)($b < $a)", "$a < $b")
#define RULE_LE ROW("($Am)($a <= $b)", "($Am)($a <= $b)", "($Dm)($b <= $a)", "$a <= $b")
#define RULE_SELECT SELECT("sel_$D($a, $b, $c)")
#define RULE_IDIV ONLY(emit_division)
#define RULE_IMOD ONLY(emit_division)
#define RULE_CAST ONLY(emit_cast)
#define RULE_BITCAST ONLY(emit_bitcast)
#define RULE_SPLAT ONLY(emit_splat)
#define RULE_EXTRACT ONLY(emit_sub)
#define RULE_DEINTERLEAVE ONLY(emit_deinterleave)
#define RULE_LOW ONLY(emit_sub)
#define RULE_HIGH ONLY(emit_sub)
#define RULE_JOIN ONLY(emit_join)
#define RULE_HREDUCE ONLY(cg_emit_hreduce)
#define RULE_SHUFFLE ONLY(emit_shuffle)
#define RULE_TABLE ONLY(emit_table)
#define RULE_DOT4 ONLY(emit_dot4)
#define RULE_INTERLEAVE ONLY(emit_interleave)
#define RULE_SHUFFLE_XOR ONLY(emit_shuffle_xor)
#define RULE_TF32                                                                                                      \
  { emit_for_cuda, "tf32_$D($a)", NULL, NULL, NULL }
#define RULE_EXP2                                                                                                      \
  { emit_for_cuda, "exp2_$D($a)", NULL, NULL, NULL }
#define RULE_MMA ONLY(emit_mma)

static const struct rule rules[KERN_OP_COUNT] = {
#define KOP(NAME, ...) [KERN_##NAME] = RULE_##NAME,
#include "kern/ops.def"
#undef KOP
};

void cg_instruction(struct cg_emit *e, kern_id id) { rules[cg_inst(e, id)->op].emit(e, id); }
