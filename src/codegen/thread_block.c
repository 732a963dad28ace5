/* codegen/thread_block.c -- which phases of GPUs have tasks that a thread block runs, and which accesses need barriers
** Several threads run a task of a phase with vectors; each of them has some lanes of every value (codegen.h), and all have the same scalars.
** Loads and stores of vectors are coalesced: neighboring threads access neighboring elements. The accumulators of a row are spread over
** the threads. What crosses lanes goes through shared memory, where scratch lies too if it fits.
** Barriers stand between what one thread stores and another loads: not where every element of a memory is accessed by one
** thread only, which is so when all accesses are of whole vectors whose indices differ by multiples of their lanes.
** see: docs/design/007-gpu.md      tests: tests/codegen/test_gpu.c
*/
#include "codegen/cg_int.h"

/* ---- which phases ----------------------------------------------------------------------------------------- */

enum { BLOCK = 128 }; /* threads of a block whose tasks have a warp each */

/* Whether an instruction needs all lanes in one thread, so that lanes cannot be mapped to threads; group 0: there will be one thread per
** lane. */
static bool is_not_spmd(const struct kern_fn *fn, const struct kern_inst *x, int group) {
  if (x->op == KERN_CALL || x->op == KERN_DOT4) return true;
  if (x->op == KERN_SHUFFLE) return true;
  if (x->op == KERN_DEINTERLEAVE) return x->lanes < group;
  if (x->op == KERN_INTERLEAVE) return x->lanes < 2 * group;
  if ((x->op == KERN_GATHER && x->imm > 1) || x->op == KERN_SCATTER) return fn->insts.at[x->arg[1]].lanes < group;
  if (x->op == KERN_LOW || x->op == KERN_HIGH) return group > 0 && 2 * x->lanes > group;
  if (x->op == KERN_JOIN) return group > 0 && x->lanes > group;
  return x->op == KERN_BITCAST && x->lanes != fn->insts.at[x->arg[0]].lanes;
}

/* PoCL 3.1 loses stores in branches with barriers, though all threads take the same one: in OpenCL, phases with branches are not run by
** work-groups. */
int cg_block_threads(const struct kern *kern, int phase, const struct cg_target *target) {
  if (kern->phases[phase].library_call) return 1;
  const struct kern_fn *fn = kern->fns.at[kern->phases[phase].fn];
  bool opencl = target->isa == CG_ISA_OPENCL;
  int most = 1, group = kern->phases[phase].block_threads;
  for (size_t i = 0; i < fn->insts.n; i++) {
    if (is_not_spmd(fn, &fn->insts.at[i], group) || (opencl && fn->insts.at[i].op == KERN_IF)) return 1;
    most = BASE_MAX(most, fn->insts.at[i].lanes);
  }
  return most < CG_LEAST_BLOCK ? 1 : group > 0 ? BASE_MIN(group, most) : most;
}

/* Bytes of the scratch of a phase's task. */
static int64_t scratch_of(const struct kern *kern, int phase) {
  int64_t bytes[KERN_MAX_FNS];
  QUERN_ASSERT(kern->fns.n <= KERN_MAX_FNS);
  for (size_t i = 0; i < kern->fns.n; i++) bytes[i] = kern_scratch_place(kern, i, bytes, NULL);
  return bytes[kern->phases[phase].fn];
}

/* Bytes of shared memory that a task's scratch may take: a block of CUDA is given more when it is launched. */
static int64_t shared_limit(const struct cg_target *target) {
  return target->isa == CG_ISA_CUDA ? target->base.shared_bytes : CG_SHARED_BYTES;
}

int64_t cg_shared_bytes(const struct kern *kern, int phase, const struct cg_target *target) {
  int64_t bytes = scratch_of(kern, phase);
  return cg_block_threads(kern, phase, target) > 1 && bytes <= shared_limit(target) ? bytes : 0;
}

int64_t cg_dynamic_shared_bytes(const struct kern *kern, int phase, const struct cg_target *target) {
  int64_t bytes = kern->phases[phase].library_call ? 0 : cg_shared_bytes(kern, phase, target);
  return bytes > CG_SHARED_BYTES ? (bytes + 63) / 64 * 64 : 0;
}

/* The tasks of a phase where every launch has as many; 0: they differ. */
static int64_t fixed_tasks(const struct kern_phase *phase) {
  const struct kern_tasks *tasks = &phase->tasks;
  return tasks->scalar < 0 && phase->batch_tasks.div == 0 ? (tasks->mul + tasks->div - 1) / tasks->div : 0;
}

bool cg_is_uniform(const struct kern_phase *phase, struct cg_shape shape) {
  int64_t tasks = fixed_tasks(phase), each = shape.block_threads > 1 ? shape.tasks : CG_BLOCK_THREADS;
  return tasks > 0 && tasks % each == 0;
}

/* Few tasks are not worth a block that is not full. */
enum { MANY_TASKS = 4096 };

struct cg_shape cg_shape(const struct kern *kern, int phase, const struct cg_target *target) {
  struct cg_shape shape = {cg_block_threads(kern, phase, target), 1};
  int64_t tasks = shape.block_threads > 1 ? fixed_tasks(&kern->phases[phase]) : 0;
  bool warps = shape.block_threads == CG_WARP && target->isa == CG_ISA_CUDA;
  int64_t bytes = warps ? scratch_of(kern, phase) : 0;
  while (warps && shape.tasks < BLOCK / CG_WARP && 2 * shape.tasks * bytes <= CG_SHARED_BYTES) {
    if (tasks > 0 && tasks < MANY_TASKS && tasks % (2 * shape.tasks) != 0) break;
    shape.tasks *= 2;
  }
  return shape;
}

int64_t cg_scratch(const struct kern *kern, const struct cg_target *target) {
  int64_t most = 0;
  if (!target->base.gpu) return kern_scratch_bytes(kern);
  for (int i = 0; i < kern->n_phases; i++) {
    if (kern->phases[i].library_call) continue;
    int64_t bytes = scratch_of(kern, i), group = cg_block_threads(kern, i, target);
    if (group > 1 && bytes <= shared_limit(target)) continue;
    most = BASE_MAX(most, (bytes + group - 1) / group);
  }
  return most;
}

int cg_exchange_elements(const struct kern_fn *fn, int group, const struct cg_target *target) {
  enum { MOST_FOLDS = 8 };
  bool folds = target->isa == CG_ISA_CUDA;
  int run = 0, most = 1; /* folds that follow each other */
  for (size_t i = 0; i < fn->insts.n && folds; i++) {
    enum kern_op op = fn->insts.at[i].op;
    folds = op != KERN_EXTRACT && op != KERN_LOW && op != KERN_HIGH;
    run = op == KERN_HREDUCE ? run + 1 : 0;
    most = BASE_MAX(most, run);
  }
  return folds ? CG_WARP * BASE_MIN(most, MOST_FOLDS) : group;
}

/* ---- which memories need barriers -------------------------------------------------------------------------- */

/* An index modulo the lanes of an access, a power of two: a constant and multiples of values. */
enum { MOST_TERMS = 8 };
struct form {
  uint64_t constant;
  int n;
  kern_id value[MOST_TERMS];
  uint64_t times[MOST_TERMS];
  bool unknown;
};

static void add_term(struct form *form, kern_id value, uint64_t times) {
  int i = 0;
  while (i < form->n && form->value[i] != value) i++;
  if (i == MOST_TERMS) {
    form->unknown = true;
    return;
  }
  if (i == form->n) {
    form->value[form->n] = value;
    form->times[form->n++] = 0;
  }
  form->times[i] += times;
}

/* Adds `times` an index; multiples of the lanes, a loop's counter too, are nothing. Recursion is as deep as index arithmetic is. */
static void add_index(struct form *form, const struct kern_fn *fn, kern_id id, uint64_t times, int lanes, int depth) {
  const struct kern_inst *x = &fn->insts.at[id];
  bool of_constant = x->op == KERN_MUL && fn->insts.at[x->arg[1]].op == KERN_CONST;
  if (times % (uint64_t)lanes == 0) return;
  if (x->op == KERN_CONST) {
    form->constant += times * (uint64_t)x->imm;
  } else if (depth > 0 && (x->op == KERN_ADD || x->op == KERN_SUB)) {
    add_index(form, fn, x->arg[0], times, lanes, depth - 1);
    add_index(form, fn, x->arg[1], x->op == KERN_ADD ? times : 0 - times, lanes, depth - 1);
  } else if (depth > 0 && of_constant) {
    add_index(form, fn, x->arg[0], times * (uint64_t)fn->insts.at[x->arg[1]].imm, lanes, depth - 1);
  } else if (depth > 0 && x->op == KERN_FOR && x->imm % lanes == 0) {
    add_index(form, fn, x->arg[0], times, lanes, depth - 1);
  } else {
    add_term(form, id, times);
  }
}

/* The number of the first element of an access, from the start of its MEM or LOCAL. */
static struct form form_of(const struct kern_fn *fn, const struct kern_inst *access, int lanes) {
  enum { DEPTH = 16 };
  struct form form = {0};
  add_index(&form, fn, access->arg[1], 1, lanes, DEPTH);
  for (kern_id at = access->arg[0]; fn->insts.at[at].op == KERN_AT; at = fn->insts.at[at].arg[0])
    add_index(&form, fn, fn->insts.at[at].arg[1], 1, lanes, DEPTH);
  return form;
}

static uint64_t times_of(const struct form *form, kern_id value) {
  for (int i = 0; i < form->n; i++)
    if (form->value[i] == value) return form->times[i];
  return 0;
}

static bool same_form(const struct form *a, const struct form *b, int lanes) {
  uint64_t different = a->constant - b->constant;
  for (int i = 0; i < a->n; i++) different |= a->times[i] - times_of(b, a->value[i]);
  for (int i = 0; i < b->n; i++) different |= b->times[i] - times_of(a, b->value[i]);
  return !a->unknown && !b->unknown && different % (uint64_t)lanes == 0;
}

kern_id cg_root(const struct kern_fn *fn, kern_id memory) {
  while (fn->insts.at[memory].op == KERN_AT) memory = fn->insts.at[memory].arg[0];
  return memory;
}

static bool same_spot(const struct kern_fn *fn, int a, int b) {
  return a == b || (fn->mems[a].in_place_class != 0 && fn->mems[a].in_place_class == fn->mems[b].in_place_class);
}

/* Memories of one in-place class may be one memory, and have the number of the first of them. All others that may take memory of another are
** one class. */
size_t cg_class(const struct kern_fn *fn, kern_id memory) {
  kern_id root = cg_root(fn, memory);
  const struct kern_inst *x = &fn->insts.at[root];
  if (x->op == KERN_LOCAL) return KERN_MAX_MEMS + 1 + (size_t)root;
  int number = (int)x->imm;
  for (int out = 0; out < fn->n_mems; out++) {
    int in = fn->mems[out].alias;
    if (fn->mems[out].role != KERN_OUT || in < 0 || same_spot(fn, in, out)) continue;
    if (same_spot(fn, number, in) || same_spot(fn, number, out)) return 0;
  }
  return 1 + (size_t)(fn->mems[number].in_place_class != 0 ? fn->mems[number].in_place_class : number);
}

static bool is_access(const struct kern_inst *x) { return x->op == KERN_LOAD || x->op == KERN_GATHER || cg_stores(x); }

/* The lanes of an access of lanes that follow each other; 0: it is another. */
static int lanes_of(const struct kern_fn *fn, const struct kern_inst *x) {
  if (x->op == KERN_GATHER || x->op == KERN_SCATTER) return 0;
  return x->op == KERN_STORE ? fn->insts.at[x->arg[2]].lanes : x->lanes;
}

/* Whether a memory is both loaded and stored. */
static bool is_mixed(const struct kern_fn *fn, size_t class) {
  bool loads = false, stores = false;
  for (size_t i = 0; i < fn->insts.n && !(loads && stores); i++) {
    const struct kern_inst *y = &fn->insts.at[i];
    if (!is_access(y) || cg_class(fn, y->arg[0]) != class) continue;
    loads = loads || !cg_stores(y);
    stores = stores || cg_stores(y);
  }
  return loads && stores;
}

bool cg_needs_barrier(const struct kern_fn *fn, kern_id access, int group) {
  const struct kern_inst *x = &fn->insts.at[access];
  size_t class = cg_class(fn, x->arg[0]);
  if (!is_mixed(fn, class)) return false;
  int lanes = lanes_of(fn, x);
  struct form form = form_of(fn, x, BASE_MAX(lanes, 1));
  bool own = lanes >= group;
  for (size_t i = 0; i < fn->insts.n && own; i++) {
    const struct kern_inst *y = &fn->insts.at[i];
    if (!is_access(y) || cg_class(fn, y->arg[0]) != class) continue;
    struct form other = form_of(fn, y, lanes);
    own = lanes_of(fn, y) == lanes && same_form(&form, &other, lanes);
  }
  return !own;
}
