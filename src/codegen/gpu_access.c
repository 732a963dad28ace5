/* codegen/gpu_access.c -- loads and stores of GPUs, coalesced: a thread's lanes, several in one access where memory is known to be aligned
** The first element's number must be a multiple of the lanes that are taken at once: so much is known of it from the index
** arithmetic (cg_emit.zeros), and memories begin at multiples of CG_ALIGN bytes. Lanes are cut out of words, and put together
** in them. With a count, lanes taken at once count all or none where the count is such a multiple too.
** tests: tests/codegen/test_gpu.c
*/
#include "codegen/cg_int.h"

#include <stdio.h>

struct access {
  kern_id id, memory, index, count;
  quern_dtype dtype;
  int lanes, own, size; /* of the value; that the thread has; bytes of an element */
  int once;             /* elements of one access */
  int run;              /* of GATHER and SCATTER: lanes of each index; 0 of others, whose lanes all follow each other */
};

/* How often two divides an element's number, as far as is known. */
static int zeros_of(const struct cg_emit *e, const struct access *a) {
  int zeros = e->zeros[a->index];
  for (kern_id at = a->memory; cg_inst(e, at)->op == KERN_AT; at = cg_inst(e, at)->arg[0])
    zeros = BASE_MIN(zeros, e->zeros[cg_inst(e, at)->arg[1]]);
  return zeros;
}

/* The most that can be loaded or stored at once: 16, 8 or 4 bytes of the thread's lanes, or one of them. */
static int at_once(const struct cg_emit *e, const struct access *a) {
  bool may = (e->phase && !e->kern->unaligned_base) || cg_inst(e, cg_root(e->fn, a->memory))->op == KERN_LOCAL;
  int zeros = zeros_of(e, a);
  if (a->count != KERN_NONE) zeros = BASE_MIN(zeros, e->zeros[a->count]);
  for (int bytes = 16; may && bytes >= 4; bytes /= 2) {
    int n = bytes / a->size;
    if (n > 1 && n <= (a->run > 0 ? a->run : a->own) && n <= 1 << BASE_MIN(zeros, 16)) return n;
  }
  return 1;
}

static struct access access_of(const struct cg_emit *e, kern_id id) {
  const struct kern_inst *x = cg_inst(e, id);
  bool stores = x->op == KERN_STORE || x->op == KERN_SCATTER, runs = x->op == KERN_GATHER || x->op == KERN_SCATTER;
  struct access a = {.id = id, .memory = x->arg[0], .index = x->arg[1], .count = x->arg[stores ? 3 : 2]};
  if (runs) {
    a.count = KERN_NONE;
    a.run = BASE_MAX((int)x->imm, 1);
  }
  a.dtype = x->dtype;
  a.lanes = stores ? cg_inst(e, x->arg[2])->lanes : x->lanes;
  a.own = cg_own(e, a.lanes);
  a.size = cg_size((int)x->dtype);
  a.once = at_once(e, &a);
  return a;
}

/* "m0 + v3 + lane * 8 + 4" */
static void add_place(struct cg_emit *e, const struct access *a, int k) {
  const struct kern_inst *index = cg_inst(e, a->index);
  cg_memory(e, &e->text, a->memory);
  if (a->run > 0) {
    base_str_add(&e->text, " + ");
    cg_value(e, &e->text, a->index, k / a->run, 1, 8);
    if (k % a->run > 0) base_str_printf(&e->text, " + %d", k % a->run);
    return;
  }
  if (index->op != KERN_CONST || index->imm != 0) {
    base_str_add(&e->text, " + ");
    cg_value(e, &e->text, a->index, 0, 1, 8);
  }
  if (e->block_threads > 1 && a->lanes > 1) {
    base_str_add(&e->text, " + ");
    cg_own_lane(e, a->lanes, 0);
  }
  if (k > 0) base_str_printf(&e->text, " + %d", k);
}

/* "lane * 8 < v7" */
static void add_counts(struct cg_emit *e, const struct access *a, int k) {
  cg_own_lane(e, a->lanes, k);
  base_str_add(&e->text, " < ");
  cg_value(e, &e->text, a->count, 0, 1, 8);
}

/* ---- words ------------------------------------------------------------------------------------------------- */

/* The type of one access: of one, two or four u32, or of two u64. */
static const char *word_type(const struct access *a) {
  int bytes = a->once * a->size;
  if (a->size == 8) return "d2";
  return bytes == 16 ? "w4" : bytes == 8 ? "w2" : "u32";
}

/* "w12_0.y": the word that lane k of those taken at once lies in. */
static void add_word(struct cg_emit *e, const struct access *a, int k) {
  int each = a->size == 8 ? 8 : 4, word = k % a->once * a->size / each;
  base_str_printf(&e->text, "w%d_%d", (int)a->id, k / a->once);
  if (a->once * a->size > each) base_str_printf(&e->text, ".%c", "xyzw"[word]);
}

/* Where in its word lane k begins, in bits. */
static int bit_of(const struct access *a, int k) { return k * a->size % 4 * 8 * (a->size < 4); }

/* "*(__global w4 *)(m0 + v3)" */
static void add_words_at(struct cg_emit *e, const struct access *a, int k) {
  base_str_printf(&e->text, "*(%s%s *)(", cg_qualifier(e, a->memory), word_type(a));
  add_place(e, a, k);
  base_str_add(&e->text, ")");
}

static void emit_words(struct cg_emit *e, const struct access *a) {
  for (int k = 0; k < a->own; k += a->once) {
    cg_indent(e);
    base_str_printf(&e->text, a->count == KERN_NONE ? "const %s w%d_%d = " : "%s w%d_%d = ", word_type(a), (int)a->id,
                    k / a->once);
    if (a->count != KERN_NONE) {
      base_str_printf(&e->text, "ZERO(%s);\n", word_type(a));
      cg_indent(e);
      base_str_add(&e->text, "if (");
      add_counts(e, a, k);
      base_str_printf(&e->text, ") w%d_%d = ", (int)a->id, k / a->once);
    }
    add_words_at(e, a, k);
    base_str_add(&e->text, ";\n");
  }
}

/* ---- loads ------------------------------------------------------------------------------------------------- */

/* Lane lo of a value whose words have been loaded. */
static void piece_of_word(struct cg_emit *e, kern_id id, int lo, int n) {
  struct access a = access_of(e, id);
  (void)n;
  bool is_bool = a.dtype == QUERN_DTYPE_BOOL, is_float = a.dtype == QUERN_DTYPE_F32 || a.dtype == QUERN_DTYPE_F64;
  struct cg_fill with = {.d = {(int)a.dtype, 1}};
  cg_fill(&e->text, is_bool ? "((" : is_float ? "as_${D}_$Du(" : "($D)(", &with);
  add_word(e, &a, lo);
  if (bit_of(&a, lo) > 0) base_str_printf(&e->text, " >> %d", bit_of(&a, lo));
  base_str_add(&e->text, is_bool ? " & 255u) != 0)" : ")");
}

static void piece_of_element(struct cg_emit *e, kern_id id, int lo, int n) {
  struct access a = access_of(e, id);
  (void)n;
  bool is_bool = a.dtype == QUERN_DTYPE_BOOL, counted = a.count != KERN_NONE;
  base_str_add(&e->text, is_bool ? "(" : "");
  if (counted) {
    base_str_add(&e->text, "(");
    add_counts(e, &a, lo);
    base_str_add(&e->text, " ? ");
  }
  base_str_add(&e->text, "*(");
  add_place(e, &a, lo);
  base_str_add(&e->text, counted ? ") : 0)" : ")");
  base_str_add(&e->text, is_bool ? " != 0)" : "");
}

void cg_gpu_load(struct cg_emit *e, kern_id id) {
  struct access a = access_of(e, id);
  cg_guard(e, id);
  if (a.once > 1) emit_words(e, &a);
  cg_define(e, id, 1, a.once > 1 ? piece_of_word : piece_of_element);
}

/* ---- stores ------------------------------------------------------------------------------------------------ */

/* "if (lane < 1 && 3 < v7) ", of lanes from k on; whether there is a condition. */
static bool add_condition(struct cg_emit *e, const struct access *a, int k) {
  bool some = e->block_threads > a->lanes, counted = a->count != KERN_NONE;
  kern_id where = a->run > 0 ? cg_inst(e, a->id)->arg[3] : KERN_NONE;
  if (where != KERN_NONE) {
    base_str_add(&e->text, "if (");
    cg_value(e, &e->text, where, k / a->run, 1, 1);
    base_str_add(&e->text, ") ");
    return true;
  }
  if (!some && !counted) return false;
  base_str_add(&e->text, "if (");
  if (some) base_str_printf(&e->text, counted ? "lane < %d && " : "lane < %d", a->lanes);
  if (counted) add_counts(e, a, k);
  base_str_add(&e->text, ") ");
  return true;
}

/* Lane k as bits in its word. */
static void add_bits(struct cg_emit *e, const struct access *a, int k) {
  bool is_bool = a->dtype == QUERN_DTYPE_BOOL, is_float = a->dtype == QUERN_DTYPE_F32 || a->dtype == QUERN_DTYPE_F64;
  struct cg_fill with = {.d = {(int)(is_bool ? QUERN_DTYPE_U8 : a->dtype), 1}};
  cg_fill(&e->text, a->size < 4 ? "(u32)($Du)(" : is_float ? "as_${Du}_$D(" : "($Du)(", &with);
  cg_value(e, &e->text, cg_inst(e, a->id)->arg[2], k, 1, 1);
  base_str_add(&e->text, ")");
  if (bit_of(a, k) > 0) base_str_printf(&e->text, " << %d", bit_of(a, k));
}

/* Puts the lanes of one access together. */
static void emit_pack(struct cg_emit *e, const struct access *a, int first) {
  cg_indent(e);
  base_str_printf(&e->text, "%s w%d_%d;", word_type(a), (int)a->id, first / a->once);
  for (int k = first; k < first + a->once; k++) {
    if (bit_of(a, k) == 0) {
      base_str_add(&e->text, " ");
      add_word(e, a, k);
      base_str_add(&e->text, " = ");
    } else {
      base_str_add(&e->text, " | ");
    }
    add_bits(e, a, k);
    if (k + 1 == first + a->once || bit_of(a, k + 1) == 0) base_str_add(&e->text, ";");
  }
  base_str_add(&e->text, "\n");
}

void cg_gpu_store(struct cg_emit *e, kern_id id) {
  struct access a = access_of(e, id);
  cg_guard(e, id);
  for (int k = 0; k < a.own; k += a.once) {
    if (a.once > 1) emit_pack(e, &a, k);
    cg_indent(e);
    bool some = add_condition(e, &a, k);
    if (a.once > 1) {
      add_words_at(e, &a, k);
      base_str_printf(&e->text, " = w%d_%d;\n", (int)id, k / a.once);
    } else {
      base_str_add(&e->text, "*(");
      add_place(e, &a, k);
      base_str_add(&e->text, ") = ");
      cg_value(e, &e->text, cg_inst(e, id)->arg[2], k, 1, 1);
      base_str_add(&e->text, ";\n");
    }
    /* PoCL 3.1 loses the condition of a store that ends a loop with barriers, unless one follows */
    if (e->block_threads > 1 && some && e->unit->target->isa == CG_ISA_OPENCL) cg_barrier(e);
  }
}
