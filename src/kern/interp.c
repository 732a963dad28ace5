/* kern/interp.c -- runs kernels, an instruction at a time, with every access checked
** in:    a kernel, its memories and scalars       out: what its generated C gives, bit for bit
** keeps: a function is never in use twice, so it has one frame, and steps hold addresses into it; no recursion
** see:   interp_arith.c, interp_move.c            tests: tests/kern/test_interp.c
*/
#include <stdio.h>

#include "kern/interp_int.h"

enum { NOBODY = -1, SEVERAL = -2, POISON = 0xa5 };

struct shadow { /* who touched an element in this phase: a task, NOBODY, or (readers) SEVERAL */
  int64_t writer, reader;
};

struct root { /* a memory of the launch, or scratch */
  char *data;
  int64_t count;
  struct shadow *shadow; /* NULL: not watched */
};

struct memory { /* the value of an instruction that is memory */
  struct root root;
  int64_t first;
  int number; /* of the kernel's memory; -1: scratch */
};

struct code { /* a function made ready */
  const struct kern_fn *fn;
  struct kern_step *steps;
  size_t n_steps;
  char **at; /* one per instruction: its value in the frame */
  char *frame;
  size_t frame_bytes;
  int64_t *scratch; /* one per instruction: see kern_scratch_place */
  int64_t scratch_bytes;
  char *scratch_at; /* in this call */
  int64_t scalars[KERN_MAX_SCALARS];
  struct memory *mems;
  struct code *caller; /* where it was called from */
  size_t back;
};

struct machine {
  const struct kern *kern;
  struct base_heap *heap;
  int flags;
  struct code *codes; /* one per function */
  int64_t task;
  char *scratch;
  int64_t scratch_bytes;
  struct shadow *shadows[KERN_MAX_MEMS];
};

/* ---- making ready ---------------------------------------------------------------------------------------- */

static bool is_memory(const struct kern_inst *x) { return kern_ops[x->op].result == KERN_RESULT_MEM; }

/* The bytes of an instruction's value in the frame, a multiple of 8. */
static size_t value_bytes(const struct kern_inst *x) {
  if (is_memory(x)) return sizeof(struct memory);
  if (kern_ops[x->op].result == KERN_RESULT_NONE) return 0;
  return (base_dtypes[x->dtype].size * (size_t)x->lanes + 7) / 8 * 8;
}

/* Constants are written into the frame now, and are no steps. */
static bool is_static(const struct kern_inst *x, char *to) {
  if (x->op != KERN_CONST && x->op != KERN_LANE) return false;
  size_t size = base_dtypes[x->dtype].size;
  for (int i = 0; i < x->lanes; i++) {
    if (x->op == KERN_CONST)
      memcpy(to + (size_t)i * size, &x->imm, size);
    else
      base_store_int(x->dtype, to, (size_t)i, (uint64_t)i);
  }
  return true;
}

static void make_step(struct kern_step *step, const struct kern_fn *fn, kern_id id, char *const *at) {
  const struct kern_inst *x = &fn->insts.at[id];
  *step = (struct kern_step){.op = x->op, .id = id, .lanes = x->lanes, .dtype = x->dtype, .to = at[id], .imm = x->imm};
  if (x->op == KERN_CALL) {
    step->pool = fn->pool.n > 0 ? fn->pool.at + x->arg[0] : NULL;
    return;
  }
  for (int i = 0; i < 4; i++) step->arg[i] = x->arg[i] != KERN_NONE ? at[x->arg[i]] : NULL;
  step->from = x->arg[0] != KERN_NONE ? fn->insts.at[x->arg[0]].dtype : x->dtype;
  if (x->op == KERN_STORE || x->op == KERN_SCATTER) step->lanes = fn->insts.at[x->arg[2]].lanes;
  if (x->op == KERN_DEINTERLEAVE) step->pick = fn->insts.at[x->arg[0]].lanes / x->lanes;
  if (x->op == KERN_SET) {
    step->to = at[x->arg[0]];
    step->arg[0] = at[x->arg[1]];
    step->lanes = fn->insts.at[x->arg[0]].lanes;
    step->run = kern_run_move(KERN_GET, x->dtype);
    return;
  }
  if (x->op == KERN_HREDUCE) step->lanes = fn->insts.at[x->arg[0]].lanes;
  if (x->op == KERN_SHUFFLE) step->imm = fn->insts.at[x->arg[0]].lanes;
  if (x->op == KERN_SHUFFLE || x->op == KERN_TABLE) step->pool = fn->pool.at + x->imm;
  step->run = kern_run_arith(x->op, step->from);
  if (step->run == NULL) step->run = kern_run_move(x->op, step->dtype);
}

/* Where blocks go: FOR and IF that do not run behind their END (or ELSE), ELSE to the END, END to its FOR. */
static void link_blocks(struct code *code) {
  size_t open[KERN_MAX_DEPTH] = {0};
  int depth = 0;
  for (size_t i = 0; i < code->n_steps; i++) {
    struct kern_step *step = &code->steps[i];
    if (step->op == KERN_FOR || step->op == KERN_IF) {
      open[depth++] = i;
    } else if (step->op == KERN_ELSE) {
      code->steps[open[depth - 1]].target = i + 1;
      open[depth - 1] = i;
    } else if (step->op == KERN_END) {
      struct kern_step *opener = &code->steps[open[--depth]];
      opener->target = opener->op == KERN_ELSE ? i : i + 1;
      step->target = opener->op == KERN_FOR ? open[depth] : SIZE_MAX;
    }
  }
}

static quern_status make_code(struct machine *m, size_t number) {
  struct code *code = &m->codes[number];
  const struct kern_fn *fn = m->kern->fns.at[number];
  size_t n = fn->insts.n;
  int64_t callees[KERN_MAX_FNS];
  code->fn = fn;
  for (size_t i = 0; i < n; i++) code->frame_bytes += value_bytes(&fn->insts.at[i]);
  code->at = base_alloc(m->heap, n * sizeof *code->at);
  code->frame = base_alloc_zero(m->heap, code->frame_bytes);
  code->steps = base_alloc(m->heap, n * sizeof *code->steps);
  code->mems = base_alloc(m->heap, (size_t)fn->n_mems * sizeof *code->mems);
  code->scratch = base_alloc(m->heap, n * sizeof *code->scratch);
  if (code->at == NULL || code->frame == NULL || code->steps == NULL || code->mems == NULL || code->scratch == NULL)
    return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < number; i++) callees[i] = m->codes[i].scratch_bytes;
  code->scratch_bytes = kern_scratch_place(m->kern, number, callees, code->scratch);
  char *next = code->frame;
  for (size_t i = 0; i < n; i++) {
    code->at[i] = next;
    next += value_bytes(&fn->insts.at[i]);
    if (!is_static(&fn->insts.at[i], code->at[i])) make_step(&code->steps[code->n_steps++], fn, (kern_id)i, code->at);
  }
  link_blocks(code);
  return QUERN_STATUS_OK;
}

static void free_code(struct machine *m, struct code *code) {
  if (code->fn == NULL) return;
  size_t n = code->fn->insts.n;
  base_free(m->heap, code->at, n * sizeof *code->at);
  base_free(m->heap, code->frame, code->frame_bytes);
  base_free(m->heap, code->steps, n * sizeof *code->steps);
  base_free(m->heap, code->mems, (size_t)code->fn->n_mems * sizeof *code->mems);
  base_free(m->heap, code->scratch, n * sizeof *code->scratch);
}

/* ---- memory ---------------------------------------------------------------------------------------------- */

static int64_t scalar(const void *value) {
  int64_t x;
  memcpy(&x, value, sizeof x);
  return x;
}

/* Elements index .. index + n - 1 of a memory are there. */
static quern_status check_inside(const struct machine *m, const struct code *code, const struct kern_step *step,
                                 const struct memory *mem, int64_t index, int64_t n) {
  if (index >= 0 && index <= mem->root.count - mem->first - n) return QUERN_STATUS_OK;
  return kern_fault(m->kern, code->fn, step->id,
                    "task %lld: index %lld, %lld elements from element %lld on, is outside a memory of %lld elements",
                    (long long)m->task, (long long)index, (long long)n, (long long)mem->first,
                    (long long)mem->root.count);
}

/* Notes that this task touches elements of a watched memory: two tasks must not, unless both read. */
static quern_status note(const struct machine *m, const struct code *code, const struct kern_step *step,
                         const struct memory *mem, int64_t index, int64_t n, bool write) {
  for (int64_t i = mem->first + index; i < mem->first + index + n; i++) {
    struct shadow *who = &mem->root.shadow[i];
    int64_t other = NOBODY;
    if (write && who->reader != NOBODY && who->reader != m->task) other = who->reader;
    if (who->writer != NOBODY && who->writer != m->task) other = who->writer;
    if (other != NOBODY) {
      char name[32] = "several";
      if (other != SEVERAL) snprintf(name, sizeof name, "task %lld", (long long)other);
      return kern_fault(m->kern, code->fn, step->id, "race: element %lld of memory %d is %s by task %lld and %s by %s",
                        (long long)i, mem->number, write ? "written" : "read", (long long)m->task,
                        other == who->writer ? "written" : "read", name);
    }
    if (write)
      who->writer = m->task;
    else if (who->reader != m->task)
      who->reader = who->reader == NOBODY ? m->task : SEVERAL;
  }
  return QUERN_STATUS_OK;
}

/* How many lanes count. */
static int64_t active_lanes(const struct kern_step *step, const void *count) {
  int64_t n = count != NULL ? scalar(count) : step->lanes;
  return n < 0 ? 0 : BASE_MIN(n, step->lanes);
}

static quern_status run_load(const struct machine *m, const struct code *code, const struct kern_step *step) {
  const struct memory *mem = step->arg[0];
  int64_t index = scalar(step->arg[1]), n = active_lanes(step, step->arg[2]);
  size_t size = base_dtypes[step->dtype].size, bytes = (size_t)n * size;
  memset((char *)step->to + bytes, 0, (size_t)step->lanes * size - bytes);
  if (n == 0) return QUERN_STATUS_OK;
  QUERN_TRY(check_inside(m, code, step, mem, index, n));
  if (mem->root.shadow != NULL) QUERN_TRY(note(m, code, step, mem, index, n, false));
  memcpy(step->to, mem->root.data + (size_t)(mem->first + index) * size, bytes);
  return QUERN_STATUS_OK;
}

static quern_status run_prefetch(const struct machine *m, const struct code *code, const struct kern_step *step) {
  return check_inside(m, code, step, step->arg[0], scalar(step->arg[1]), BASE_MAX(step->imm, 1));
}

static quern_status run_store(const struct machine *m, const struct code *code, const struct kern_step *step) {
  const struct memory *mem = step->arg[0];
  int64_t index = scalar(step->arg[1]), n = active_lanes(step, step->arg[3]);
  size_t size = base_dtypes[step->dtype].size;
  if (n == 0) return QUERN_STATUS_OK;
  QUERN_TRY(check_inside(m, code, step, mem, index, n));
  if (mem->root.shadow != NULL) QUERN_TRY(note(m, code, step, mem, index, n, true));
  memcpy(mem->root.data + (size_t)(mem->first + index) * size, step->arg[2], (size_t)n * size);
  return QUERN_STATUS_OK;
}

static quern_status run_gather(const struct machine *m, const struct code *code, const struct kern_step *step) {
  const struct memory *mem = step->arg[0];
  size_t size = base_dtypes[step->dtype].size;
  int n = BASE_MAX((int)step->imm, 1);
  for (int i = 0; i < step->lanes; i += n) {
    int64_t index = scalar((const char *)step->arg[1] + (size_t)(i / n) * sizeof index);
    QUERN_TRY(check_inside(m, code, step, mem, index, n));
    if (mem->root.shadow != NULL) QUERN_TRY(note(m, code, step, mem, index, n, false));
    memcpy((char *)step->to + (size_t)i * size, mem->root.data + (size_t)(mem->first + index) * size, (size_t)n * size);
  }
  return QUERN_STATUS_OK;
}

static quern_status run_scatter(const struct machine *m, const struct code *code, const struct kern_step *step) {
  const struct memory *mem = step->arg[0];
  const uint8_t *where = step->arg[3];
  size_t size = base_dtypes[step->dtype].size;
  int n = (int)step->imm;
  for (int i = 0; i < step->lanes; i += n) {
    int64_t index = scalar((const char *)step->arg[1] + (size_t)(i / n) * sizeof index);
    if (where != NULL && where[i / n] == 0) continue;
    QUERN_TRY(check_inside(m, code, step, mem, index, n));
    if (mem->root.shadow != NULL) QUERN_TRY(note(m, code, step, mem, index, n, true));
    memcpy(mem->root.data + (size_t)(mem->first + index) * size, (const char *)step->arg[2] + (size_t)i * size,
           (size_t)n * size);
  }
  return QUERN_STATUS_OK;
}

static quern_status run_at(const struct machine *m, const struct code *code, const struct kern_step *step) {
  struct memory mem = *(const struct memory *)step->arg[0];
  int64_t index = scalar(step->arg[1]);
  QUERN_TRY(check_inside(m, code, step, &mem, index, 0));
  mem.first += index;
  memcpy(step->to, &mem, sizeof mem);
  return QUERN_STATUS_OK;
}

static quern_status run_mem(const struct machine *m, const struct code *code, const struct kern_step *step) {
  (void)m;
  memcpy(step->to, &code->mems[step->imm], sizeof *code->mems);
  return QUERN_STATUS_OK;
}

/* Whoever reads what was not written reads poison. */
static quern_status run_local(const struct machine *m, const struct code *code, const struct kern_step *step) {
  (void)m;
  struct memory mem = {.root = {code->scratch_at + code->scratch[step->id], step->imm, NULL}, .number = -1};
  memset(mem.root.data, POISON, (size_t)step->imm * base_dtypes[step->dtype].size);
  memcpy(step->to, &mem, sizeof mem);
  return QUERN_STATUS_OK;
}

static quern_status run_table(const struct machine *m, const struct code *code, const struct kern_step *step) {
  size_t size = base_dtypes[step->dtype].size;
  const int32_t *index = step->arg[0];
  for (int i = 0; i < step->lanes; i++) {
    if (index[i] < 0 || index[i] >= 16)
      return kern_fault(m->kern, code->fn, step->id, "task %lld: entry %d of a table of 16", (long long)m->task,
                        (int)index[i]);
    memcpy((char *)step->to + (size_t)i * size, &step->pool[index[i]], size);
  }
  return QUERN_STATUS_OK;
}

static quern_status run_number(const struct machine *m, const struct code *code, const struct kern_step *step) {
  int64_t x = step->op == KERN_TASK ? m->task : code->scalars[step->imm];
  memcpy(step->to, &x, sizeof x);
  return QUERN_STATUS_OK;
}

/* ---- running --------------------------------------------------------------------------------------------- */

typedef quern_status run_checked(const struct machine *m, const struct code *code, const struct kern_step *step);

static run_checked *const checked[KERN_OP_COUNT] = {
    [KERN_SCALAR] = run_number,     [KERN_TASK] = run_number,     [KERN_MEM] = run_mem,
    [KERN_LOCAL] = run_local,       [KERN_AT] = run_at,           [KERN_LOAD] = run_load,
    [KERN_STORE] = run_store,       [KERN_GATHER] = run_gather,   [KERN_TABLE] = run_table,
    [KERN_PREFETCH] = run_prefetch, [KERN_SCATTER] = run_scatter,
};

/* Gives the callee its memories and scalars. */
static struct code *enter(struct machine *m, struct code *code, const struct kern_step *step, size_t back) {
  struct code *callee = &m->codes[step->imm];
  const struct kern_fn *fn = callee->fn;
  for (int i = 0; i < fn->n_mems; i++) memcpy(&callee->mems[i], code->at[step->pool[i]], sizeof *callee->mems);
  for (int i = 0; i < fn->n_scalars; i++) callee->scalars[i] = scalar(code->at[step->pool[fn->n_mems + i]]);
  callee->scratch_at = code->scratch_at + code->scratch[step->id];
  callee->caller = code;
  callee->back = back;
  return callee;
}

/* The step after one that opens, splits or closes a block. */
static size_t next_of_block(struct code *code, struct kern_step *step, size_t here) {
  if (step->op == KERN_FOR) {
    memcpy(step->to, step->arg[0], sizeof(int64_t));
    step->end = scalar(step->arg[1]);
    return scalar(step->to) < step->end ? here + 1 : step->target;
  }
  if (step->op == KERN_IF) return *(const uint8_t *)step->arg[0] ? here + 1 : step->target;
  if (step->op == KERN_ELSE) return step->target;
  if (step->target == SIZE_MAX) return here + 1;
  struct kern_step *loop = &code->steps[step->target]; /* END of a FOR */
  int64_t i = scalar(loop->to);
  if ((uint64_t)loop->imm >= (uint64_t)loop->end - (uint64_t)i) return here + 1;
  i += loop->imm;
  memcpy(loop->to, &i, sizeof i);
  return step->target + 1;
}

static quern_status run_task(struct machine *m, struct code *code) {
  code->caller = NULL;
  for (size_t at = 0;;) {
    if (at == code->n_steps) {
      if (code->caller == NULL) return QUERN_STATUS_OK;
      at = code->back;
      code = code->caller;
      continue;
    }
    struct kern_step *step = &code->steps[at];
    if (step->run != NULL) {
      step->run(step);
      at++;
    } else if (checked[step->op] != NULL) {
      QUERN_TRY(checked[step->op](m, code, step));
      at++;
    } else if (step->op == KERN_CALL) {
      code = enter(m, code, step, at + 1);
      at = 0;
    } else {
      at = next_of_block(code, step, at);
    }
  }
}

/* ceil(scalar * mul / div), or why not. */
static quern_status count_tasks(const struct kern *kern, int phase, const int64_t *scalars, int64_t *count) {
  const struct kern_tasks *tasks = &kern->phases[phase].tasks;
  int64_t n = tasks->scalar < 0 ? 1 : BASE_MAX(scalars[tasks->scalar], 0), product = 0;
  bool fits = kern_mul_fits(n, tasks->mul, &product);
  *count = fits ? kern_task_count(&kern->phases[phase], scalars) : 0;
  QUERN_CHECK(fits && *count <= KERN_MAX_TASKS, INTERNAL, "kernel %s: phase %d has %lld * %lld / %lld tasks",
              kern_name(kern), phase, (long long)n, (long long)tasks->mul, (long long)tasks->div);
  return QUERN_STATUS_OK;
}

static void forget_touches(struct machine *m) {
  for (int i = 0; i < m->kern->n_mems; i++)
    for (int64_t k = 0; m->shadows[i] != NULL && k < m->kern->mems[i].count; k++)
      m->shadows[i][k] = (struct shadow){NOBODY, NOBODY};
}

static quern_status run_phase(struct machine *m, int phase, const struct kern_launch *launch) {
  if (m->kern->phases[phase].library_call) return kern_interp_library_call(m->kern, launch->mems);
  struct code *code = &m->codes[m->kern->phases[phase].fn];
  int64_t count = 0;
  QUERN_TRY(count_tasks(m->kern, phase, launch->scalars, &count));
  forget_touches(m);
  for (int i = 0; i < m->kern->n_mems; i++) {
    struct shadow *shadow = m->shadows[i];
    for (int k = 0; k < m->kern->n_mems; k++) { /* an input that is the memory of an output */
      bool may = m->kern->mems[k].alias == i || (m->kern->mems[k].in_place_class != 0 &&
                                                 m->kern->mems[k].in_place_class == m->kern->mems[i].in_place_class);
      if (shadow == NULL && launch->mems[k] == launch->mems[i] && may) shadow = m->shadows[k];
    }
    code->mems[i] = (struct memory){.root = {launch->mems[i], m->kern->mems[i].count, shadow}, .number = i};
  }
  for (int i = 0; i < m->kern->n_scalars; i++) code->scalars[i] = launch->scalars[i];
  code->scratch_at = m->scratch;
  for (int64_t i = 0; i < count; i++) {
    m->task = m->flags & KERN_REVERSE_TASKS ? count - 1 - i : i;
    QUERN_TRY(run_task(m, code));
  }
  return QUERN_STATUS_OK;
}

static size_t shadow_bytes(const struct kern *kern, int mem) {
  return (size_t)kern->mems[mem].count * sizeof(struct shadow);
}

static quern_status run_kernel(struct machine *m, const struct kern_launch *launch) {
  for (size_t i = 0; i < m->kern->fns.n; i++) QUERN_TRY(make_code(m, i));
  m->scratch_bytes = kern_scratch_bytes(m->kern);
  m->scratch = base_alloc(m->heap, (size_t)m->scratch_bytes);
  if (m->scratch == NULL) return QUERN_STATUS_MEMORY;
  for (int i = 0; i < m->kern->n_mems && (m->flags & KERN_CHECK_RACES); i++) {
    if (m->kern->mems[i].role == KERN_IN) continue;
    m->shadows[i] = base_alloc(m->heap, shadow_bytes(m->kern, i));
    if (m->shadows[i] == NULL) return QUERN_STATUS_MEMORY;
  }
  for (int i = 0; i < m->kern->n_phases; i++)
    if (!kern_phase_is_idle(&m->kern->phases[i], launch->mems)) QUERN_TRY(run_phase(m, i, launch));
  return QUERN_STATUS_OK;
}

quern_status kern_interp(const struct kern *kern, const struct kern_launch *launch, int flags) {
  QUERN_TRY(kern_check_types(kern, NULL));
  struct machine m = {.kern = kern, .heap = kern->heap, .flags = flags};
  size_t bytes = kern->fns.n * sizeof *m.codes;
  m.codes = base_alloc_zero(m.heap, bytes);
  if (m.codes == NULL) return QUERN_STATUS_MEMORY;
  struct base_floats floats = base_floats_enter();
  quern_status status = run_kernel(&m, launch);
  base_floats_leave(floats);
  for (size_t i = 0; i < kern->fns.n; i++) free_code(&m, &m.codes[i]);
  for (int i = 0; i < kern->n_mems; i++) base_free(m.heap, m.shadows[i], shadow_bytes(kern, i));
  base_free(m.heap, m.scratch, (size_t)m.scratch_bytes);
  base_free(m.heap, m.codes, bytes);
  return status;
}
