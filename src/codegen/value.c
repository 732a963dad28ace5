/* codegen/value.c -- the names of values, and any lanes of them as expressions
** keeps: a vector in the text is at most a register long, one lane on GPUs; longer values are several vectors v12_0, v12_1, ... In a thread
**        block, these are the lanes that a thread has, and lanes are counted from the first of them.
*/
#include "codegen/cg_int.h"

int cg_width(const struct cg_emit *e, kern_id id) {
  const struct kern_inst *x = cg_inst(e, id);
  return x->dtype == QUERN_DTYPE_BOOL && x->lanes > 1 ? e->width[id] : cg_size((int)x->dtype);
}

int cg_vector_lanes(const struct cg_emit *e, kern_id id) {
  if (cg_dialect(e->unit->target)->scalar) return 1;
  return BASE_MIN(cg_inst(e, id)->lanes, e->unit->target->base.vector_bytes / cg_width(e, id));
}

int cg_own(const struct cg_emit *e, int lanes) {
  return e->block_threads == 1 ? lanes : BASE_MAX(lanes / e->block_threads, 1);
}

int cg_vectors(const struct cg_emit *e, kern_id id) {
  return cg_own(e, cg_inst(e, id)->lanes) / cg_vector_lanes(e, id);
}

bool cg_is_i32(const struct cg_emit *e, kern_id id) {
  const struct kern_inst *x = cg_inst(e, id);
  const struct cg_range *r = &e->ranges[id];
  return cg_dialect(e->unit->target)->scalar && x->dtype == QUERN_DTYPE_I64 && r->lo >= INT32_MIN && r->hi <= INT32_MAX;
}

struct cg_type cg_type_of(const struct cg_emit *e, kern_id id, int n) {
  const struct kern_inst *x = cg_inst(e, id);
  if (cg_is_i32(e, id)) return (struct cg_type){QUERN_DTYPE_I32, n};
  if (x->dtype != QUERN_DTYPE_BOOL) return (struct cg_type){(int)x->dtype, n};
  return (struct cg_type){n == 1 ? QUERN_DTYPE_I32 : (int)cg_signed(cg_width(e, id)), n};
}

void cg_indent(struct cg_emit *e) {
  for (int i = 0; i < e->indent; i++) base_str_add(&e->text, "  ");
}

void cg_name(const struct cg_emit *e, struct base_str *str, kern_id id, int vector) {
  base_str_printf(str, "v%d", (int)id);
  if (cg_vectors(e, id) > 1) base_str_printf(str, "_%d", vector);
}

void cg_memory(const struct cg_emit *e, struct base_str *str, kern_id id) {
  const struct kern_inst *x = cg_inst(e, id);
  if (x->op == KERN_MEM)
    base_str_printf(str, "m%d", (int)x->imm);
  else
    base_str_printf(str, "v%d", (int)id);
}

/* Scalars that have no name of their own. */
static bool add_plain(const struct cg_emit *e, struct base_str *str, kern_id id) {
  const struct cg_dialect *dialect = cg_dialect(e->unit->target);
  const struct kern_inst *x = cg_inst(e, id);
  if (x->lanes != 1 && !(dialect->scalar && x->op == KERN_CONST)) return false;
  if (x->op == KERN_TASK) return base_str_add(str, cg_is_i32(e, id) ? "(i32)task" : "task"), true;
  if (x->op == KERN_SCALAR) return base_str_printf(str, "s%d", (int)x->imm), true;
  if (x->op != KERN_CONST) return false;
  bool is_short = cg_is_i32(e, id) || (x->dtype == QUERN_DTYPE_I64 && x->imm > -32768 &&
                                       x->imm < 32768); /* products of two of the latter fit into an int */
  cg_literal(str, dialect, is_short ? QUERN_DTYPE_I32 : x->dtype, is_short ? (uint32_t)x->imm : (uint64_t)x->imm);
  return true;
}

/* ", 3, 4, 5)" */
static void add_lanes(struct base_str *str, int first, int n) {
  for (int i = 0; i < n; i++) base_str_printf(str, ", %d", first + i);
  base_str_add(str, ")");
}

/* Lanes of one vector, as wide as they are. */
static void add_of_vector(const struct cg_emit *e, struct base_str *str, kern_id id, int lo, int n) {
  int vector = cg_vector_lanes(e, id), k = lo / vector, first = lo % vector;
  bool is_bool = cg_inst(e, id)->dtype == QUERN_DTYPE_BOOL;
  if (n == vector) {
    cg_name(e, str, id, k);
  } else if (n == 1) {
    base_str_add(str, is_bool ? "(" : "");
    cg_name(e, str, id, k);
    base_str_printf(str, is_bool ? "[%d] & 1)" : "[%d]", first);
  } else {
    base_str_add(str, "__builtin_shufflevector(");
    cg_name(e, str, id, k);
    base_str_add(str, ", ");
    cg_name(e, str, id, k);
    add_lanes(str, first, n);
  }
}

void cg_value(const struct cg_emit *e, struct base_str *str, kern_id id, int lo, int n, int width) {
  const struct kern_inst *x = cg_inst(e, id);
  if (add_plain(e, str, id)) return;
  if (n > cg_vector_lanes(e, id)) {
    base_str_add(str, "__builtin_shufflevector(");
    cg_value(e, str, id, lo, n / 2, width);
    base_str_add(str, ", ");
    cg_value(e, str, id, lo + n / 2, n / 2, width);
    add_lanes(str, 0, n);
    return;
  }
  bool converts = x->dtype == QUERN_DTYPE_BOOL && n > 1 && width != cg_width(e, id);
  if (converts) {
    base_str_add(str, "cvt_");
    cg_type_add(str, (struct cg_type){(int)cg_signed(width), n});
    base_str_add(str, "_");
    cg_type_add(str, cg_type_of(e, id, n));
    base_str_add(str, "(");
  }
  add_of_vector(e, str, id, lo, n);
  if (converts) base_str_add(str, ")");
}

static void add_pieces(struct cg_emit *e, kern_id id, int lo, int n, int most, cg_piece *piece) {
  if (n <= most) {
    piece(e, id, lo, n);
    return;
  }
  base_str_add(&e->text, "__builtin_shufflevector(");
  add_pieces(e, id, lo, n / 2, most, piece);
  base_str_add(&e->text, ", ");
  add_pieces(e, id, lo + n / 2, n / 2, most, piece);
  add_lanes(&e->text, 0, n);
}

void cg_define(struct cg_emit *e, kern_id id, int n, cg_piece *piece) {
  const struct kern_inst *x = cg_inst(e, id);
  int vector = cg_vector_lanes(e, id);
  for (int k = 0; k < cg_vectors(e, id); k++) {
    cg_indent(e);
    base_str_add(&e->text, x->op == KERN_VAR ? "" : "const ");
    cg_type_add(&e->text, cg_type_of(e, id, vector));
    base_str_add(&e->text, " ");
    cg_name(e, &e->text, id, k);
    base_str_add(&e->text, " = ");
    add_pieces(e, id, k * vector, vector, n, piece);
    base_str_add(&e->text, ";\n");
  }
}
