/* codegen/emit.c -- functions and kernels as C: the frame around the instructions
** in:    a verified kernel                        out: its text at the end of a translation unit
** keeps: a function to be called is named by its text, so that equal ones are one
** tests: tests/codegen/test_c.c, tests/codegen/test_text.c
*/
#include "codegen/cg_int.h"

#include <stdio.h>

void cg_symbol(char *buffer, size_t bytes, const struct kern *kern, int phase) {
  snprintf(buffer, bytes, "%s_%d", kern->name, phase);
}

/* Letters, digits and _ stay; the rest becomes _. */
static void add_identifier(struct base_str *str, const char *name) {
  for (; *name != 0; name++) {
    bool plain = (*name >= '0' && *name <= '9') || (*name >= 'a' && *name <= 'z') || (*name >= 'A' && *name <= 'Z');
    base_str_add_n(str, plain ? name : "_", 1);
  }
}

static void add_element(struct base_str *str, quern_dtype dtype) { cg_type_add(str, (struct cg_type){(int)dtype, 1}); }

/* Says which loop each instruction stands in. */
static void find_loops(struct cg_emit *e) {
  kern_id open[KERN_MAX_DEPTH + 1] = {KERN_NONE};
  int depth = 0;
  for (size_t i = 0; i < e->fn->insts.n; i++) {
    enum kern_op op = e->fn->insts.at[i].op;
    if (op == KERN_END) depth--;
    e->loop[i] = open[depth];
    if (op != KERN_FOR && op != KERN_IF) continue;
    depth++;
    open[depth] = op == KERN_FOR ? (kern_id)i : open[depth - 1];
  }
}

/* Memory for what was done to each memory since the last barrier, where SCATTERs stand; its bytes. */
static quern_status add_touched(struct cg_emit *e, size_t *bytes) {
  bool scatters = false;
  size_t depth = 0, most = 0;
  for (size_t i = 0; i < e->fn->insts.n; i++) {
    enum kern_op op = e->fn->insts.at[i].op;
    scatters = scatters || op == KERN_SCATTER;
    if (op == KERN_FOR || op == KERN_IF) depth++;
    if (op == KERN_END) depth--;
    most = BASE_MAX(most, depth);
  }
  *bytes = 0;
  if (!scatters || e->block_threads == 1) return QUERN_STATUS_OK;
  *bytes = (most + 2) * cg_classes(e->fn);
  e->touched = base_alloc(e->unit->heap, *bytes);
  if (e->touched == NULL) return QUERN_STATUS_MEMORY;
  memset(e->touched, 0xff, *bytes); /* the task before this one may have done anything */
  return QUERN_STATUS_OK;
}

/* All instructions, into e->text. */
static quern_status add_body(struct cg_emit *e) {
  size_t n = e->fn->insts.n;
  size_t bytes = n * (sizeof *e->ranges + 2 * sizeof *e->loop + sizeof *e->width + sizeof *e->zeros + sizeof *e->signs);
  e->ranges = base_alloc(e->unit->heap, bytes);
  if (e->ranges == NULL) return QUERN_STATUS_MEMORY;
  e->loop = (kern_id *)(e->ranges + n);
  e->made = e->loop + n;
  e->width = (unsigned char *)(e->made + n);
  e->zeros = e->width + n;
  e->signs = e->zeros + n;
  find_loops(e);
  size_t touched = 0;
  quern_status status = add_touched(e, &touched);
  for (size_t i = 0; i < n && status == QUERN_STATUS_OK; i++) {
    cg_facts(e, (kern_id)i);
    cg_instruction(e, (kern_id)i);
  }
  if (e->touched != NULL) base_free(e->unit->heap, e->touched, touched);
  e->touched = NULL;
  base_free(e->unit->heap, e->ranges, bytes);
  QUERN_TRY(status);
  QUERN_TRY(e->status);
  QUERN_TRY(base_str_status(&e->text));
  QUERN_TRY(base_str_status(&e->before));
  return n > 0 ? cg_need(e->unit, e->text.at, e->text.n) : QUERN_STATUS_OK;
}

/* Whether each streaming OUT has memory of its own: one that takes an IN's has its lines in a cache. Whether stores
** past the caches are to be waited for. */
static bool add_streaming(const struct cg_emit *e, struct base_str *body) {
  bool any = false;
  for (int i = 0; i < e->fn->n_mems; i++) {
    if (!e->fn->mems[i].streaming) continue;
    base_str_printf(body, "  const i64 far%d = 1", i);
    for (int k = 0; k < e->fn->n_mems; k++)
      if (e->fn->mems[k].role == KERN_IN) base_str_printf(body, " & (mems[%d] != mems[%d])", k, i);
    base_str_add(body, ";\n");
    any = true;
  }
  return any && (e->unit->target->isa == CG_ISA_AVX2 || e->unit->target->isa == CG_ISA_AVX512);
}

/* Memories and scalars that a phase uses become variables before its loop over tasks. */
static void add_phase(struct cg_emit *e, const char *symbol) {
  struct base_str *body = &e->unit->body;
  bool mems[KERN_MAX_MEMS] = {false}, scalars[KERN_MAX_SCALARS] = {false};
  for (size_t i = 0; i < e->fn->insts.n; i++) {
    const struct kern_inst *x = &e->fn->insts.at[i];
    if (x->op == KERN_MEM) mems[x->imm] = true;
    if (x->op == KERN_SCALAR) scalars[x->imm] = true;
  }
  base_str_printf(body, "\nvoid %s(void *const *mems, const i64 *scalars, i64 begin, i64 end, char *scratch) {\n",
                  symbol);
  for (int i = 0; i < e->fn->n_mems; i++) {
    if (!mems[i]) continue;
    base_str_add(body, "  ");
    add_element(body, e->fn->mems[i].dtype);
    base_str_printf(body, " *const m%d = mems[%d];\n", i, i);
  }
  for (int i = 0; i < e->fn->n_scalars; i++)
    if (scalars[i]) base_str_printf(body, "  const i64 s%d = scalars[%d];\n", i, i);
  bool far = add_streaming(e, body);
  base_str_add(body, "  for (i64 task = begin; task < end; task++) {\n");
  if (e->text.n > 0) base_str_add_n(body, e->text.at, e->text.n);
  base_str_add(body, "  }\n");
  if (far) base_str_add(body, "  __builtin_ia32_sfence();\n");
  base_str_add(body, "}\n");
}

/* A function to be called, unless the unit has it; its name. */
static quern_status add_callee(struct cg_emit *e, const char **name) {
  struct cg_unit *unit = e->unit;
  struct base_str head;
  base_str_init(&head, unit->heap);
  const struct cg_dialect *dialect = cg_dialect(unit->target);
  base_str_add(&head, "(");
  for (int i = 0; i < e->fn->n_mems; i++) {
    base_str_add(&head, dialect->global);
    add_element(&head, e->fn->mems[i].dtype);
    base_str_printf(&head, " *m%d, ", i);
  }
  for (int i = 0; i < e->fn->n_scalars; i++) base_str_printf(&head, "i64 s%d, ", i);
  base_str_printf(&head, "%schar *scratch) {\n", dialect->global);
  uint64_t hash = base_hash_bytes(BASE_HASH_SEED, head.at, head.failed ? 0 : head.n);
  hash = base_hash_bytes(hash, e->text.at, e->text.n);
  struct base_str full;
  base_str_init(&full, unit->heap);
  base_str_add(&full, "fn_");
  add_identifier(&full, e->fn->name);
  base_str_printf(&full, "_%016llx", (unsigned long long)hash);
  quern_status status = base_str_status(&head);
  if (status == QUERN_STATUS_OK) status = base_str_status(&full);
  bool is_new = false;
  if (status == QUERN_STATUS_OK) {
    *name = base_arena_string(&unit->arena, full.at, full.n);
    status = *name != NULL ? cg_name_new(unit, full.at, full.n, &is_new) : QUERN_STATUS_MEMORY;
  }
  if (is_new && status == QUERN_STATUS_OK) {
    base_str_printf(&unit->body, "\n%s%s%s", dialect->function, *name, head.at);
    if (e->text.n > 0) base_str_add_n(&unit->body, e->text.at, e->text.n);
    base_str_add(&unit->body, "}\n");
  }
  base_str_fini(&full);
  base_str_fini(&head);
  return status;
}

/* Whether all threads of a warp of a phase in CUDA run each instruction. */
static bool has_whole_warps(const struct cg_emit *e, const struct kern_phase *phase) {
  if (e->unit->target->isa != CG_ISA_CUDA) return false;
  if (e->block_threads > 1) return e->block_threads >= CG_WARP;
  for (size_t i = 0; i < e->fn->insts.n; i++) {
    const struct kern_inst *x = &e->fn->insts.at[i];
    bool fixed =
        x->op == KERN_FOR && cg_inst(e, x->arg[0])->op == KERN_CONST && cg_inst(e, x->arg[1])->op == KERN_CONST;
    if (x->op == KERN_IF || x->op == KERN_CALL || (x->op == KERN_FOR && !fixed)) return false;
  }
  return cg_is_uniform(phase, (struct cg_shape){1, 1});
}

/* Function number f; bytes are the scratch that the ones before it need, and then its own. */
static quern_status add_fn(struct cg_unit *unit, const struct kern *kern, size_t f, const char **names,
                           int64_t *bytes) {
  const struct kern_fn *fn = kern->fns.at[f];
  int phase = -1;
  for (int i = 0; i < kern->n_phases; i++)
    if (kern->phases[i].fn == (int)f) phase = i;
  size_t at_bytes = fn->insts.n * sizeof(int64_t);
  int64_t *at = base_alloc(unit->heap, at_bytes);
  if (at == NULL) return QUERN_STATUS_MEMORY;
  bytes[f] = kern_scratch_place(kern, f, bytes, at);
  struct cg_emit e = {.unit = unit,
                      .kern = kern,
                      .fn = fn,
                      .indent = phase >= 0 ? 2 : 1,
                      .status = QUERN_STATUS_OK,
                      .callees = names,
                      .scratch_at = at,
                      .phase = phase >= 0,
                      .block_threads = 1};
  const struct kern_tasks *tasks = phase >= 0 ? &kern->phases[phase].tasks : NULL;
  if (tasks != NULL && tasks->scalar < 0) e.tasks = (tasks->mul + tasks->div - 1) / tasks->div;
  if (phase >= 0 && unit->target->base.gpu) {
    e.block_threads = cg_block_threads(kern, phase, unit->target);
    e.shared = cg_shared_bytes(kern, phase, unit->target) > 0;
    cg_forget(&e); /* the task before this one */
    e.whole_warps = has_whole_warps(&e, &kern->phases[phase]);
  }
  base_str_init(&e.text, unit->heap);
  base_str_init(&e.before, unit->heap);
  quern_status status = add_body(&e);
  if (status == QUERN_STATUS_OK && phase < 0) status = add_callee(&e, &names[f]);
  if (status == QUERN_STATUS_OK && phase >= 0) {
    char symbol[512];
    cg_symbol(symbol, sizeof symbol, kern, phase);
    if (unit->target->base.gpu)
      cg_gpu_phase(unit, kern, phase, &e);
    else
      add_phase(&e, symbol);
  }
  base_str_fini(&e.text);
  base_str_fini(&e.before);
  base_free(unit->heap, at, at_bytes);
  return status;
}

/* Whether the unit has not got the kernel yet; another one of the same name is refused. */
static quern_status is_new_kernel(struct cg_unit *unit, const struct kern *kern, bool *is_new) {
  char key[512];
  int n = snprintf(key, sizeof key, "%s %016llx", kern->name, (unsigned long long)kern->hash);
  QUERN_CHECK(n > 0 && (size_t)n < sizeof key, INTERNAL, "codegen: the name %.60s... is too long", kern->name);
  QUERN_TRY(cg_name_new(unit, key, (size_t)n, is_new));
  if (!*is_new) return QUERN_STATUS_OK;
  QUERN_TRY(cg_name_new(unit, kern->name, strlen(kern->name), is_new));
  QUERN_CHECK(*is_new, INTERNAL, "codegen: two kernels are named %s", kern->name);
  return QUERN_STATUS_OK;
}

quern_status cg_unit_add(struct cg_unit *unit, const struct kern *kern) {
  const char *names[KERN_MAX_FNS] = {NULL};
  int64_t bytes[KERN_MAX_FNS];
  bool is_new;
  QUERN_TRY(kern->failed);
  QUERN_ASSERT(kern->name != NULL && kern->fns.n <= KERN_MAX_FNS);
  QUERN_TRY(is_new_kernel(unit, kern, &is_new));
  if (!is_new) return QUERN_STATUS_OK;
  size_t before = unit->body.n;
  for (size_t f = 0; f < kern->fns.n; f++) QUERN_TRY(add_fn(unit, kern, f, names, bytes));
  QUERN_TRY(base_str_status(&unit->prelude));
  QUERN_TRY(base_str_status(&unit->body));
  QUERN_CHECK(
      unit->body.n - before <= CG_MOST_TEXT, UNSUPPORTED,
      "codegen: kernel %s became %zu bytes of text, more than the %d that are compiled\n"
      "  HINT: fewer nodes share a kernel where quern_checkpoint_activation is between them, or with QUERN_PASS=-fuse",
      kern->name, unit->body.n - before, (int)CG_MOST_TEXT);
  return QUERN_STATUS_OK;
}
