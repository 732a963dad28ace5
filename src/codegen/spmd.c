/* codegen/spmd.c -- SPMD: lanes are mapped to threads; what crosses lanes, and barriers
** Each thread of a thread block has some neighboring lanes of each value (cg_own), and all threads have the same scalars. Threads of a warp
** exchange lanes by shuffles in CUDA; what crosses warps, and everything in OpenCL, goes through an exchange buffer in shared memory.
** keeps: a barrier stands between what one thread stores and another loads. The exchange has two halves, so that one who is slow may
**        still read one half while others fill the other. LOCALs that share bytes have an END, an ELSE or the head of a loop
**        between them: each forgets, and until all threads have waited a LOCAL waits, though those of a warp may have.
** see:   thread_block.c, docs/design/007-gpu.md          tests: tests/codegen/test_gpu.c
*/
#include "codegen/cg_int.h"

#include <stdio.h>

static bool is_cuda(const struct cg_emit *e) { return e->unit->target->isa == CG_ISA_CUDA; }

void cg_barrier(struct cg_emit *e) {
  const struct cg_dialect *dialect = cg_dialect(e->unit->target);
  cg_indent(e);
  base_str_printf(&e->text, "%s\n", e->block_threads <= CG_WARP ? dialect->small_barrier : dialect->barrier);
  e->loaded = e->stored = e->busy[0] = e->busy[1] = false;
  if (e->touched != NULL) memset(e->touched, 0, cg_classes(e->fn));
}

/* ---- what was done to each memory, in functions with SCATTERs: whose elements, of one memory, are all different ----- */

enum { LOADED = 1, STORED = 2, SCATTERED = 4 };

static int touch_of(const struct kern_inst *x) {
  return x->op == KERN_STORE ? STORED : x->op == KERN_SCATTER ? SCATTERED : LOADED;
}

/* Whether a barrier must stand between. */
static bool meets(int before, int after) {
  if (after & STORED) return before != 0;
  if ((after & SCATTERED) && (before & (LOADED | STORED))) return true;
  return (after & LOADED) && (before & (STORED | SCATTERED));
}

/* Memory whose elements are those of one warp each. */
static bool is_warp_local(const struct cg_emit *e, kern_id memory) {
  const struct kern_inst *root = cg_inst(e, cg_root(e->fn, memory));
  return root->op == KERN_LOCAL && root->arg[0] != KERN_NONE;
}

static void warp_barrier(struct cg_emit *e) {
  cg_indent(e);
  base_str_printf(&e->text, "%s\n", cg_dialect(e->unit->target)->small_barrier);
  for (kern_id i = 0; (size_t)i < e->fn->insts.n; i++)
    if (cg_inst(e, i)->op == KERN_LOCAL && is_warp_local(e, i)) e->touched[cg_class(e->fn, i)] = 0;
}

static void guard_memory(struct cg_emit *e, kern_id id) {
  const struct kern_inst *x = cg_inst(e, id);
  size_t class = cg_class(e->fn, x->arg[0]);
  if (meets(e->touched[class], touch_of(x))) (is_warp_local(e, x->arg[0]) ? warp_barrier : cg_barrier)(e);
  e->touched[class] |= (unsigned char)touch_of(x);
  e->loaded = e->stored = true;
}

/* Adds what a loop does to exposed memory to what was done before, or gives the first memory for which the two meet, that of a warp
** only if there is no other; KERN_NONE: none. */
static kern_id look_into(struct cg_emit *e, kern_id loop, bool add) {
  int depth = 0;
  kern_id found = KERN_NONE;
  for (size_t i = (size_t)loop; i < e->fn->insts.n; i++) {
    const struct kern_inst *x = &e->fn->insts.at[i];
    depth += (x->op == KERN_FOR || x->op == KERN_IF) - (x->op == KERN_END);
    if (depth == 0) break;
    bool access = x->op == KERN_LOAD || x->op == KERN_GATHER || cg_stores(x);
    if (!access || !cg_needs_barrier(e->fn, (kern_id)i, e->block_threads)) continue;
    size_t class = cg_class(e->fn, x->arg[0]);
    if (add) e->touched[class] |= (unsigned char)touch_of(x);
    if (add || !meets(e->touched[class], touch_of(x))) continue;
    found = x->arg[0];
    if (!is_warp_local(e, found)) break;
  }
  return found;
}

void cg_before_loop(struct cg_emit *e, kern_id loop) {
  kern_id met = e->touched != NULL ? look_into(e, loop, false) : KERN_NONE;
  if (met != KERN_NONE) (is_warp_local(e, met) ? warp_barrier : cg_barrier)(e);
}

static unsigned char *saved(const struct cg_emit *e) { return e->touched + (size_t)(e->depth + 1) * cg_classes(e->fn); }

void cg_open_block(struct cg_emit *e, kern_id id) {
  bool loop = cg_inst(e, id)->op == KERN_FOR;
  if (e->touched != NULL) {
    if (loop) (void)look_into(e, id, true); /* the iteration before */
    memcpy(saved(e), e->touched, cg_classes(e->fn));
    e->depth++;
  }
  if (loop) cg_forget(e);
}

void cg_other_block(struct cg_emit *e) {
  if (e->touched != NULL) {
    e->depth--;
    unsigned char *other = saved(e); /* what the block began with; what it ends with is added where both branches end */
    for (size_t i = 0; i < cg_classes(e->fn); i++) {
      unsigned char before = other[i];
      other[i] = e->touched[i];
      e->touched[i] = before;
    }
    e->depth++;
  }
  cg_forget(e);
}

void cg_close_block(struct cg_emit *e) {
  if (e->touched != NULL) {
    e->depth--;
    for (size_t i = 0; i < cg_classes(e->fn); i++) e->touched[i] |= saved(e)[i];
  }
  cg_forget(e);
}

/* ---- barriers ------------------------------------------------------------------------------------------------ */

void cg_guard(struct cg_emit *e, kern_id id) {
  if (e->block_threads == 1 || !cg_needs_barrier(e->fn, id, e->block_threads)) return;
  if (e->touched != NULL) {
    guard_memory(e, id);
    return;
  }
  bool stores = cg_stores(cg_inst(e, id));
  if (e->stored || (stores && e->loaded)) cg_barrier(e);
  e->stored = e->stored || stores;
  e->loaded = e->loaded || !stores;
}

void cg_forget(struct cg_emit *e) { e->loaded = e->stored = e->busy[0] = e->busy[1] = e->block_threads > 1; }

void cg_own_lane(struct cg_emit *e, int n, int k) {
  int own = cg_own(e, n);
  if (e->block_threads == 1)
    base_str_printf(&e->text, "%d", k);
  else if (n < e->block_threads)
    base_str_printf(&e->text, "(lane & %d)", n - 1);
  else if (own == 1)
    base_str_add(&e->text, "lane");
  else
    base_str_printf(&e->text, k > 0 ? "(lane * %d + %d)" : "lane * %d", own, k);
}

/* ---- the exchange ------------------------------------------------------------------------------------------------- */

/* "((__local f32 *)box)" from that of its u64 on. */
static void add_exchange_at(struct cg_emit *e, kern_id id, int at) {
  base_str_printf(&e->text, "((%s", cg_dialect(e->unit->target)->shared);
  cg_type_add(&e->text, cg_type_of(e, id, 1));
  if (at > 0)
    base_str_printf(&e->text, " *)(box + %d))", at);
  else
    base_str_add(&e->text, " *)box)");
}

static int half_size(const struct cg_emit *e) { return cg_exchange_elements(e->fn, e->block_threads, e->unit->target); }

static void add_box(struct cg_emit *e, kern_id id, int half) { add_exchange_at(e, id, half > 0 ? half_size(e) : 0); }

/* The half of the exchange that may be written, after a barrier if there is none. */
static int free_half(struct cg_emit *e) {
  if (e->busy[0] && e->busy[1]) cg_barrier(e);
  return e->busy[0] ? 1 : 0;
}

/* EXTRACT, LOW, HIGH of a value whose lanes other threads have. */
void cg_emit_exchange(struct cg_emit *e, kern_id id) {
  const struct kern_inst *x = cg_inst(e, id);
  int lanes = cg_inst(e, x->arg[0])->lanes, own = cg_own(e, lanes), vector = (int)(x->imm % own), half = 0;
  bool warp = is_cuda(e) && BASE_MIN(lanes, e->block_threads) <= CG_WARP;
  if (x->op != KERN_EXTRACT) vector = 0;
  if (!warp) {
    half = free_half(e);
    cg_indent(e);
    add_box(e, id, half);
    base_str_add(&e->text, "[lane] = ");
    cg_value(e, &e->text, x->arg[0], vector, 1, 4);
    base_str_add(&e->text, ";\n");
    cg_barrier(e);
    e->busy[half] = true;
  }
  cg_indent(e);
  base_str_add(&e->text, "const ");
  cg_type_add(&e->text, cg_type_of(e, id, 1));
  base_str_printf(&e->text, " v%d = ", (int)id);
  if (warp) {
    base_str_add(&e->text, "__shfl_sync(0xffffffffu, ");
    cg_value(e, &e->text, x->arg[0], vector, 1, 4);
    base_str_add(&e->text, ", ");
  } else {
    add_box(e, id, half);
    base_str_add(&e->text, "[");
  }
  if (x->op == KERN_EXTRACT)
    base_str_printf(&e->text, "%d", (int)(x->imm / own));
  else
    base_str_printf(&e->text, "%d + (lane & %d)", x->op == KERN_HIGH ? x->lanes : 0, x->lanes - 1);
  base_str_add(&e->text, warp ? ");\n" : "];\n");
}

/* ---- folds --------------------------------------------------------------------------------------------------- */

struct pair {
  const char *a, *b;
};
static void add_of_pair(void *self, struct base_str *str, char which) {
  const struct pair *p = self;
  base_str_add(str, which == 'a' ? p->a : p->b);
}

/* The two of a pair as a fold joins them. */
static void add_batched(struct cg_emit *e, kern_id id, const char *a, const char *b) {
  const struct kern_inst *x = cg_inst(e, id);
  bool is_bool = x->dtype == QUERN_DTYPE_BOOL, is_float = base_dtypes[x->dtype].class == BASE_FLOAT;
  const char *text = "";
  switch ((int)x->imm) {
  case KERN_ADD: text = is_float ? "$a + $b" : "($D)(($Dw)$a + ($Dw)$b)"; break;
  case KERN_MUL: text = is_float ? "$a * $b" : "($D)(($Dw)$a * ($Dw)$b)"; break;
  case KERN_MAX: text = is_bool ? "$a | $b" : "max_$D($a, $b)"; break;
  default: text = is_bool ? "$a & $b" : "min_$D($a, $b)"; break;
  }
  struct pair pair = {a, b};
  struct cg_fill with = {.d = cg_type_of(e, id, 1), .operand = add_of_pair, .self = &pair};
  with.dialect = cg_dialect(e->unit->target);
  cg_fill(&e->text, text, &with);
}

static void add_hreduce_name(struct cg_emit *e, struct base_str *str, kern_id id, int level, int i) {
  if (level == 0)
    cg_value(e, str, cg_inst(e, id)->arg[0], i, 1, 4);
  else
    base_str_printf(str, "f%d_%d_%d", (int)id, level, i);
}

/* The tree over the lanes that a thread has; the name of its result is that of the last level. */
static int emit_own_tree(struct cg_emit *e, kern_id id, int n) {
  struct base_str a, b;
  int level = 0;
  base_str_init(&a, e->unit->heap);
  base_str_init(&b, e->unit->heap);
  for (; n > 1; n /= 2, level++) {
    for (int i = 0; i < n / 2; i++) {
      a.n = b.n = 0;
      add_hreduce_name(e, &a, id, level, 2 * i);
      add_hreduce_name(e, &b, id, level, 2 * i + 1);
      if (a.failed || b.failed) break;
      cg_indent(e);
      base_str_add(&e->text, "const ");
      cg_type_add(&e->text, cg_type_of(e, id, 1));
      base_str_add(&e->text, " ");
      add_hreduce_name(e, &e->text, id, level + 1, i);
      base_str_add(&e->text, " = ");
      add_batched(e, id, a.at, b.at);
      base_str_add(&e->text, ";\n");
    }
  }
  if (e->status == QUERN_STATUS_OK) e->status = a.failed ? base_str_status(&a) : base_str_status(&b);
  base_str_fini(&a);
  base_str_fini(&b);
  return level;
}

/* Whether a warp has an instruction for it. Of the least and the greatest it does not matter that some count twice. */
static bool is_warp_hreduce(const struct kern_inst *x) {
  return (x->imm == KERN_MIN || x->imm == KERN_MAX) && (x->dtype == QUERN_DTYPE_I32 || x->dtype == QUERN_DTYPE_U32);
}

/* "v12 = v12 + __shfl_xor_sync(0xffffffffu, v12, 1);" for h = 1, 2, ..., n / 2. all: threads n apart have the same, or there are none. */
static void emit_butterfly(struct cg_emit *e, kern_id id, int n, bool all) {
  char own[16], other[64];
  if (all && n > 2 && is_warp_hreduce(cg_inst(e, id))) {
    struct cg_fill with = {.d = cg_type_of(e, id, 1), .dialect = cg_dialect(e->unit->target)};
    cg_indent(e);
    base_str_printf(&e->text, "v%d = ", (int)id);
    cg_fill(&e->text, cg_inst(e, id)->imm == KERN_MIN ? "warpmin_$D(" : "warpmax_$D(", &with);
    base_str_printf(&e->text, "v%d);\n", (int)id);
    return;
  }
  snprintf(own, sizeof own, "v%d", (int)id);
  for (int h = 1; h < n; h *= 2) {
    snprintf(other, sizeof other, "__shfl_xor_sync(0xffffffffu, v%d, %d)", (int)id, h);
    cg_indent(e);
    base_str_printf(&e->text, "v%d = ", (int)id);
    add_batched(e, id, own, other);
    base_str_add(&e->text, ";\n");
  }
}

/* The exchange at an index, as text of its own. */
static void print_exchange(struct cg_emit *e, char *to, size_t bytes, kern_id id, int half, const char *index) {
  size_t start = e->text.n;
  add_box(e, id, half);
  base_str_printf(&e->text, "[%s]", index);
  snprintf(to, bytes, "%.*s", e->text.failed ? 0 : (int)(e->text.n - start), e->text.failed ? "" : e->text.at + start);
  if (!e->text.failed) e->text.n = start;
}

/* Each thread puts what it has into the exchange, n of them count: "box[INDEX] = v12;" */
static int emit_into_exchange(struct cg_emit *e, kern_id id, const char *condition, const char *index) {
  int half = free_half(e);
  cg_indent(e);
  base_str_add(&e->text, condition);
  add_box(e, id, half);
  base_str_printf(&e->text, "[%s] = v%d;\n", index, (int)id);
  cg_barrier(e);
  e->busy[half] = true;
  return half;
}

static int hreduce_threads(const struct cg_emit *e, kern_id id) {
  int lanes = cg_inst(e, cg_inst(e, id)->arg[0])->lanes;
  return e->block_threads == 1 ? 1 : BASE_MIN(lanes, e->block_threads);
}

static bool crosses_warps(const struct cg_emit *e, kern_id id) {
  return id >= 0 && (size_t)id < e->fn->insts.n && cg_inst(e, id)->op == KERN_HREDUCE &&
         hreduce_threads(e, id) > CG_WARP;
}

/* The results of warps of folds first .. last, by way of the exchange; each warp takes all of them. */
static void emit_warps(struct cg_emit *e, kern_id first, kern_id last) {
  int half = free_half(e), at = half > 0 ? half_size(e) : 0;
  for (kern_id id = first; id <= last; id++) {
    cg_indent(e);
    base_str_add(&e->text, "if ((lane & 31) == 0) ");
    add_exchange_at(e, id, at + (int)(id - first) * CG_WARP);
    base_str_printf(&e->text, "[lane >> 5] = v%d;\n", (int)id);
  }
  cg_barrier(e);
  e->busy[half] = true;
  for (kern_id id = first; id <= last; id++) {
    cg_indent(e);
    base_str_printf(&e->text, "v%d = ", (int)id);
    add_exchange_at(e, id, at + (int)(id - first) * CG_WARP);
    base_str_printf(&e->text, "[lane & %d];\n", hreduce_threads(e, id) / CG_WARP - 1);
  }
  for (kern_id id = first; id <= last; id++) emit_butterfly(e, id, hreduce_threads(e, id) / CG_WARP, true);
}

/* Folds that follow each other are exchanged at once, as many as half of the exchange has room for, after the last of them. */
static void emit_run(struct cg_emit *e, kern_id id) {
  kern_id start = id, most = half_size(e) / CG_WARP;
  while (crosses_warps(e, start - 1)) start--;
  kern_id place = (id - start) % most;
  if (place == most - 1 || !crosses_warps(e, id + 1)) emit_warps(e, id - place, id);
}

/* In OpenCL: neighbors by way of the exchange, level by level. */
static void emit_exchange_tree(struct cg_emit *e, kern_id id, int n) {
  char low[64], high[64], at[32];
  for (int h = 1; h < n; h *= 2) {
    int half = emit_into_exchange(e, id, "", "lane");
    snprintf(at, sizeof at, "lane & ~%d", h);
    print_exchange(e, low, sizeof low, id, half, at);
    snprintf(at, sizeof at, "lane | %d", h);
    print_exchange(e, high, sizeof high, id, half, at);
    cg_indent(e);
    base_str_printf(&e->text, "v%d = ", (int)id);
    add_batched(e, id, low, high);
    base_str_add(&e->text, ";\n");
  }
}

void cg_emit_hreduce(struct cg_emit *e, kern_id id) {
  int lanes = cg_inst(e, cg_inst(e, id)->arg[0])->lanes, threads = hreduce_threads(e, id);
  int level = emit_own_tree(e, id, cg_own(e, lanes));
  cg_indent(e);
  cg_type_add(&e->text, cg_type_of(e, id, 1));
  base_str_printf(&e->text, " v%d = ", (int)id);
  add_hreduce_name(e, &e->text, id, level, 0);
  base_str_add(&e->text, ";\n");
  if (!is_cuda(e)) {
    emit_exchange_tree(e, id, threads);
    return;
  }
  emit_butterfly(e, id, BASE_MIN(threads, CG_WARP), threads >= CG_WARP);
  if (threads > CG_WARP) emit_run(e, id);
}
