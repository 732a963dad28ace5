/* kern/print.c -- a kernel as text: its memories, then its functions, one instruction per line
** tests: tests/kern/test_print.c
*/
#include <stdio.h>

#include "kern/kern_int.h"

static const char *dtype_name(quern_dtype dtype) {
  return (unsigned)dtype < QUERN_DTYPE_COUNT ? base_dtypes[dtype].name : "?";
}

static const struct kern_inst *inst_at(const struct kern_fn *fn, int64_t id) {
  return id >= 0 && (size_t)id < fn->insts.n ? &fn->insts.at[id] : NULL;
}

/* ".f32x16" */
static void print_type(struct base_str *str, quern_dtype dtype, int lanes) {
  base_str_printf(str, ".%s", dtype_name(dtype));
  if (lanes > 1) base_str_printf(str, "x%d", lanes);
}

/* n numbers of the pool from `at` on, each after a space: names of values, plain numbers, or elements. */
enum pool_kind { POOL_IDS, POOL_NUMBERS, POOL_ELEMENTS };
static void print_pool(struct base_str *str, const struct kern_fn *fn, int64_t at, int64_t n, enum pool_kind kind,
                       quern_dtype dtype) {
  for (int64_t i = 0; i < n; i++) {
    if (i > 0) base_str_add(str, " ");
    if (at < 0 || i >= (int64_t)fn->pool.n || at >= (int64_t)fn->pool.n - i) {
      base_str_add(str, "?");
      return;
    }
    int64_t x = fn->pool.at[at + i];
    if (kind == POOL_ELEMENTS)
      base_element_print(str, dtype, &x, 0);
    else
      base_str_printf(str, kind == POOL_IDS ? "%%%lld" : "%lld", (long long)x);
  }
}

static void print_call(struct base_str *str, const struct kern *kern, const struct kern_fn *fn,
                       const struct kern_inst *x) {
  bool known = x->imm >= 0 && (size_t)x->imm < kern->fns.n;
  const struct kern_fn *callee = known ? kern->fns.at[x->imm] : NULL;
  base_str_printf(str, "call %s(", callee != NULL ? callee->name : "?");
  print_pool(str, fn, x->arg[0], x->arg[1], POOL_IDS, QUERN_DTYPE_I64);
  base_str_add(str, ";");
  if (callee != NULL && callee->n_scalars > 0) {
    base_str_add(str, " ");
    print_pool(str, fn, (int64_t)x->arg[0] + x->arg[1], callee->n_scalars, POOL_IDS, QUERN_DTYPE_I64);
  }
  base_str_add(str, ")");
}

/* The type behind the name: a store shows that of its value, a comparison that of what it compares. */
static void print_op(struct base_str *str, const struct kern_fn *fn, const struct kern_inst *x) {
  const struct kern_inst *typed = x;
  if ((x->op == KERN_STORE || x->op == KERN_SCATTER) && inst_at(fn, x->arg[2]) != NULL) typed = inst_at(fn, x->arg[2]);
  if (kern_ops[x->op].result == KERN_RESULT_MASK && inst_at(fn, x->arg[0]) != NULL) typed = inst_at(fn, x->arg[0]);
  base_str_add(str, kern_ops[x->op].name);
  bool plain = x->op == KERN_FOR || x->op == KERN_SET || x->op == KERN_TASK || x->op == KERN_SCALAR;
  if (!plain && !(kern_ops[x->op].result == KERN_RESULT_NONE && x->op != KERN_STORE && x->op != KERN_SCATTER))
    print_type(str, typed->dtype, typed->lanes);
}

void kern_print_inst(struct base_str *str, const struct kern *kern, const struct kern_fn *fn, kern_id id) {
  const struct kern_inst *x = &fn->insts.at[id];
  if ((unsigned)x->op >= KERN_OP_COUNT) {
    base_str_printf(str, "op %d", (int)x->op);
    return;
  }
  if (x->op == KERN_CALL) {
    print_call(str, kern, fn, x);
    return;
  }
  if (kern_ops[x->op].result != KERN_RESULT_NONE) base_str_printf(str, "%%%d = ", (int)id);
  print_op(str, fn, x);
  for (int i = 0; i < 4; i++) {
    bool optional = (x->op == KERN_LOAD && i == 2) || (x->op == KERN_STORE && i == 3);
    optional = optional || (x->op == KERN_SCATTER && i == 3);
    const char *before = optional && x->op == KERN_SCATTER ? " where"
                         : optional                        ? " first"
                         : x->op == KERN_FOR && i == 1     ? " to"
                                                           : "";
    if (x->arg[i] != KERN_NONE) base_str_printf(str, "%s %%%d", before, (int)x->arg[i]);
  }
  switch ((int)x->op) {
  case KERN_CONST:
    base_str_add(str, " ");
    if ((unsigned)x->dtype < QUERN_DTYPE_COUNT) base_element_print(str, x->dtype, &x->imm, 0);
    break;
  case KERN_HREDUCE: base_str_printf(str, " by %s", x->imm < KERN_OP_COUNT ? kern_ops[x->imm].name : "?"); break;
  case KERN_FOR: base_str_printf(str, " step %lld", (long long)x->imm); break;
  case KERN_SHUFFLE:
  case KERN_TABLE:
    base_str_add(str, " [");
    print_pool(str, fn, x->imm, x->op == KERN_TABLE ? 16 : x->lanes, x->op == KERN_TABLE ? POOL_ELEMENTS : POOL_NUMBERS,
               x->dtype);
    base_str_add(str, "]");
    break;
  case KERN_SCALAR:
  case KERN_MEM:
  case KERN_LOCAL:
  case KERN_IDIV:
  case KERN_IMOD:
  case KERN_DEINTERLEAVE:
  case KERN_SHUFFLE_XOR:
  case KERN_EXTRACT: base_str_printf(str, " %lld", (long long)x->imm); break;
  default: break;
  }
}

quern_status kern_fault(const struct kern *kern, const struct kern_fn *fn, kern_id id, const char *fmt, ...) {
  char what[BASE_MESSAGE_BYTES / 2];
  va_list args;
  va_start(args, fmt);
  vsnprintf(what, sizeof what, fmt, args);
  va_end(args);
  struct base_str text;
  base_str_init(&text, kern->heap);
  kern_print_inst(&text, kern, fn, id);
  quern_status status = base_error(QUERN_STATUS_INTERNAL, "kernel %s, function %s, instruction %d (%.200s): %s",
                                   kern_name(kern), fn->name, (int)id, text.n > 0 ? text.at : "", what);
  base_str_fini(&text);
  return status;
}

/* ---- whole kernels --------------------------------------------------------------------------------------- */

static void print_fn(struct base_str *str, const struct kern *kern, const struct kern_fn *fn) {
  int depth = 1;
  for (size_t i = 0; i < fn->insts.n; i++) {
    enum kern_op op = fn->insts.at[i].op;
    depth -= op == KERN_END || op == KERN_ELSE;
    for (int k = 0; k < depth; k++) base_str_add(str, "  ");
    kern_print_inst(str, kern, fn, (kern_id)i);
    base_str_add(str, "\n");
    depth += op == KERN_FOR || op == KERN_IF || op == KERN_ELSE;
  }
}

static void print_tasks(struct base_str *str, struct kern_tasks tasks) {
  if (tasks.scalar < 0)
    base_str_printf(str, "ceil(%lld / %lld)", (long long)tasks.mul, (long long)tasks.div);
  else
    base_str_printf(str, "ceil(scalar %d * %lld / %lld)", tasks.scalar, (long long)tasks.mul, (long long)tasks.div);
}

static void print_first(struct base_str *str, const struct kern_batch_tasks *first) {
  if (first->div == 0) return;
  base_str_printf(str, ", of n rows %lld * ceil((n * %lld + %lld) / %lld)", (long long)first->by, (long long)first->mul,
                  (long long)first->add, (long long)first->div);
}

quern_status kern_print(struct base_str *str, const struct kern *kern) {
  static const char *const roles[] = {[KERN_IN] = "in", [KERN_OUT] = "out", [KERN_WORK] = "work"};
  base_str_printf(str, "kernel %s\n", kern_name(kern));
  for (int i = 0; i < kern->n_mems; i++) {
    const struct kern_mem *mem = &kern->mems[i];
    base_str_printf(str, "  mem %d: %s %s[%lld]", i, roles[mem->role], dtype_name(mem->dtype), (long long)mem->count);
    if (mem->streaming) base_str_add(str, " streaming");
    if (mem->alias >= 0) base_str_printf(str, " may be mem %d", mem->alias);
    base_str_add(str, "\n");
  }
  if (kern->n_scalars > 0) base_str_printf(str, "  scalars: %d\n", kern->n_scalars);
  for (size_t i = 0; i < kern->fns.n; i++) {
    const struct kern_fn *fn = kern->fns.at[i];
    int phase;
    if (kern_is_phase(kern, (int)i, &phase)) {
      base_str_printf(str, "phase %d, tasks ", phase);
      print_tasks(str, kern->phases[phase].tasks);
      if (kern->phases[phase].block_threads > 0)
        base_str_printf(str, " by %d threads", kern->phases[phase].block_threads);
      print_first(str, &kern->phases[phase].batch_tasks);
      base_str_add(str, ":\n");
    } else {
      base_str_printf(str, "function %s(", fn->name);
      for (int m = 0; m < fn->n_mems; m++)
        base_str_printf(str, "%smem %d: %s", m > 0 ? ", " : "", m, dtype_name(fn->mems[m].dtype));
      base_str_printf(str, "; scalars: %d):\n", fn->n_scalars);
    }
    print_fn(str, kern, fn);
  }
  for (int i = 0; i < kern->n_phases; i++) {
    if (!kern->phases[i].library_call) continue;
    base_str_printf(str, "phase %d, call ", i);
    kern_print_library_call(str, kern);
  }
  return base_str_status(str);
}
