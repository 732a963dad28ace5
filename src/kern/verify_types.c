/* kern/verify_types.c -- is every instruction one of ops.def, with arguments it can have and that are visible
** in:    any kernel                                out: what the bounds checker and the interpreter may rely on
** tests: tests/kern/test_verify.c
*/
#include "kern/kern_int.h"

/* ---- the table: what an op takes ------------------------------------------------------------------------- */

struct check { /* of one function */
  const struct kern *kern;
  const struct kern_fn *fn;
  int number, phase; /* of the function; -1: it is no phase */
  bool *writes;      /* KERN_MAX_MEMS a function */
  bool *visible;     /* one per instruction */
  kern_id *shown;    /* the visible ones, outermost first */
  size_t n_shown;
  kern_id *root; /* of memories: the MEM or LOCAL they are part of */
  int depth;
  struct {
    bool is_if, has_else;
    size_t n_shown;
  } blocks[KERN_MAX_DEPTH];
};

/* What is wrong with an instruction of that op, or NULL. Arguments have been checked against its row. */
typedef const char *rule(const struct check *c, const struct kern_inst *x);

static const struct kern_inst *arg(const struct check *c, const struct kern_inst *x, int i) {
  return &c->fn->insts.at[x->arg[i]];
}

static size_t size_of(const struct kern_inst *x) { return base_dtypes[x->dtype].size * (size_t)x->lanes; }

static bool is_integer(const struct kern_inst *x) { return base_dtype_is(x->dtype, BASE_INT); }

static const char *rule_const(const struct check *c, const struct kern_inst *x) {
  (void)c;
  size_t size = base_dtypes[x->dtype].size;
  return size < 8 && (uint64_t)x->imm >> (8 * size) != 0 ? "the constant has more bits than its dtype" : NULL;
}
static const char *rule_lane(const struct check *c, const struct kern_inst *x) {
  (void)c;
  return is_integer(x) ? NULL : "lane numbers need an integer dtype";
}
static const char *rule_scalar(const struct check *c, const struct kern_inst *x) {
  if (x->dtype != QUERN_DTYPE_I64 || x->lanes != 1) return "its type is i64";
  return x->imm >= 0 && x->imm < c->fn->n_scalars ? NULL : "the function has no such scalar";
}
static const char *rule_task(const struct check *c, const struct kern_inst *x) {
  if (x->dtype != QUERN_DTYPE_I64 || x->lanes != 1) return "its type is i64";
  return c->phase >= 0 ? NULL : "only phases have a task";
}
static const char *rule_mem(const struct check *c, const struct kern_inst *x) {
  if (x->imm < 0 || x->imm >= c->fn->n_mems) return "the function has no such memory";
  return x->dtype == c->fn->mems[x->imm].dtype ? NULL : "the dtype is not the memory's";
}
static const char *rule_local(const struct check *c, const struct kern_inst *x) {
  (void)c;
  return x->imm >= 0 && x->imm <= INT64_C(1) << 40 ? NULL : "that many elements cannot be";
}
static const char *rule_memory(const struct check *c, const struct kern_inst *x) { /* AT, LOAD, STORE */
  return x->dtype == arg(c, x, 0)->dtype ? NULL : "the dtype is not the memory's";
}
static const char *rule_store(const struct check *c, const struct kern_inst *x) {
  if (x->dtype != arg(c, x, 2)->dtype) return "the dtype is not the value's";
  const struct kern_inst *root = &c->fn->insts.at[c->root[x->arg[0]]];
  if (root->op == KERN_MEM && c->fn->mems[root->imm].role == KERN_IN) return "stores to an input";
  return rule_memory(c, x);
}
static const char *rule_gather(const struct check *c, const struct kern_inst *x) {
  bool fits = x->imm >= 0 && x->imm <= KERN_MAX_LANES && x->lanes == BASE_MAX(x->imm, 1) * arg(c, x, 1)->lanes;
  return fits ? rule_memory(c, x) : "there are not as many lanes as indices";
}
static const char *rule_scatter(const struct check *c, const struct kern_inst *x) {
  const struct kern_inst *index = arg(c, x, 1);
  bool fits = x->imm >= 1 && x->imm <= KERN_MAX_LANES && arg(c, x, 2)->lanes == x->imm * index->lanes;
  if (!fits) return "there are not as many lanes as indices";
  if (x->arg[3] != KERN_NONE && (arg(c, x, 3)->dtype != QUERN_DTYPE_BOOL || arg(c, x, 3)->lanes != index->lanes))
    return "argument 3 is not a bool an index";
  return rule_store(c, x);
}
static const char *rule_for(const struct check *c, const struct kern_inst *x) {
  (void)c;
  if (x->dtype != QUERN_DTYPE_I64 || x->lanes != 1) return "its type is i64";
  return x->imm > 0 ? NULL : "the step is not above 0";
}
static const char *rule_set(const struct check *c, const struct kern_inst *x) {
  const struct kern_inst *var = arg(c, x, 0), *value = arg(c, x, 1);
  return var->dtype == value->dtype && var->lanes == value->lanes ? NULL : "the types of variable and value differ";
}
static const char *rule_select(const struct check *c, const struct kern_inst *x) {
  const struct kern_inst *mask = arg(c, x, 0), *yes = arg(c, x, 1), *no = arg(c, x, 2);
  if (mask->dtype != QUERN_DTYPE_BOOL) return "argument 0 is not a bool";
  if (yes->dtype != no->dtype || yes->lanes != no->lanes) return "the types of argument 1 and 2 differ";
  if (mask->lanes != yes->lanes) return "argument 0 has other lanes than argument 1";
  return x->dtype == yes->dtype && x->lanes == yes->lanes ? NULL : "its type is not that of argument 1";
}
static const char *rule_by(const struct check *c, const struct kern_inst *x) { /* IDIV, IMOD */
  if (arg(c, x, 0)->dtype != QUERN_DTYPE_I64) return "argument 0 is not i64";
  return x->imm > 0 ? NULL : "the divisor is not above 0";
}
static const char *rule_cast(const struct check *c, const struct kern_inst *x) {
  return x->lanes == arg(c, x, 0)->lanes ? NULL : "a cast keeps the lanes";
}
static const char *rule_bitcast(const struct check *c, const struct kern_inst *x) {
  return size_of(x) == size_of(arg(c, x, 0)) ? NULL : "a bitcast keeps the bytes";
}
static const char *rule_splat(const struct check *c, const struct kern_inst *x) {
  if (arg(c, x, 0)->lanes != 1) return "argument 0 is not a scalar";
  return x->dtype == arg(c, x, 0)->dtype ? NULL : "the dtype is not that of argument 0";
}
static const char *rule_extract(const struct check *c, const struct kern_inst *x) {
  if (x->lanes != 1 || x->dtype != arg(c, x, 0)->dtype) return "its type is not that of a lane of argument 0";
  return x->imm >= 0 && x->imm < arg(c, x, 0)->lanes ? NULL : "argument 0 has no such lane";
}
static const char *rule_deinterleave(const struct check *c, const struct kern_inst *x) {
  const struct kern_inst *a = arg(c, x, 0);
  if (x->dtype != a->dtype || x->lanes < 1 || a->lanes % x->lanes != 0)
    return "its lanes are not picked of argument 0's";
  return x->imm >= 0 && x->imm < a->lanes / x->lanes ? NULL : "argument 0 has no such lane";
}
static const char *rule_half(const struct check *c, const struct kern_inst *x) {
  if (x->dtype != arg(c, x, 0)->dtype) return "the dtype is not that of argument 0";
  return 2 * x->lanes == arg(c, x, 0)->lanes ? NULL : "it has not half the lanes of argument 0";
}
static const char *rule_join(const struct check *c, const struct kern_inst *x) {
  const struct kern_inst *a = arg(c, x, 0), *b = arg(c, x, 1);
  if (x->dtype != a->dtype || a->dtype != b->dtype) return "the dtypes differ";
  return a->lanes == b->lanes && x->lanes == 2 * a->lanes ? NULL : "it has not the lanes of both arguments";
}
static const char *rule_hreduce(const struct check *c, const struct kern_inst *x) {
  const struct kern_inst *a = arg(c, x, 0);
  bool extreme = x->imm == KERN_MAX || x->imm == KERN_MIN;
  if (x->lanes != 1 || x->dtype != a->dtype) return "its type is not that of a lane of argument 0";
  if (base_dtype_is(a->dtype, BASE_FLOAT) && base_dtypes[a->dtype].size < 4) return "floats this short are not reduced";
  return extreme || ((x->imm == KERN_ADD || x->imm == KERN_MUL) && a->dtype != QUERN_DTYPE_BOOL) ? NULL : "no such op";
}
static bool in_pool(const struct check *c, int64_t at, int64_t n) {
  return at >= 0 && at <= (int64_t)c->fn->pool.n && n <= (int64_t)c->fn->pool.n - at;
}
static const char *rule_shuffle(const struct check *c, const struct kern_inst *x) {
  const struct kern_inst *a = arg(c, x, 0), *b = arg(c, x, 1);
  if (x->dtype != a->dtype || a->dtype != b->dtype || a->lanes != b->lanes) return "the types differ";
  if (!in_pool(c, x->imm, x->lanes)) return "its pattern is outside the pool";
  for (int i = 0; i < x->lanes; i++) {
    int64_t lane = c->fn->pool.at[x->imm + i];
    if (lane < 0 || lane >= 2 * a->lanes) return "its pattern names a lane that is not there";
  }
  return NULL;
}
static const char *rule_table(const struct check *c, const struct kern_inst *x) {
  if (arg(c, x, 0)->dtype != QUERN_DTYPE_I32) return "argument 0 is not i32";
  if (x->lanes != arg(c, x, 0)->lanes) return "its lanes are not those of argument 0";
  return in_pool(c, x->imm, 16) ? NULL : "its entries are outside the pool";
}
static const char *rule_dot4(const struct check *c, const struct kern_inst *x) {
  if (x->dtype != QUERN_DTYPE_I32) return "argument 0 is not i32";
  for (int i = 1; i < 3; i++) {
    if (!is_integer(arg(c, x, i)) || size_of(arg(c, x, i)) != size_of(x)) return "the bytes are not 4 a lane";
  }
  return NULL;
}

/* The threads of a thread block of whole warps; 0: it is none. */
static int block_threads_of(const struct check *c) {
  int group = c->phase >= 0 ? c->kern->phases[c->phase].block_threads : 0;
  return group % KERN_WARP == 0 ? group : 0;
}
static const char *rule_shuffle_xor(const struct check *c, const struct kern_inst *x) {
  if (x->dtype != QUERN_DTYPE_F32) return "it is not f32";
  if (block_threads_of(c) == 0 || x->lanes != block_threads_of(c))
    return "it has not one lane per thread of a block of whole warps";
  return x->imm >= 0 && x->imm < KERN_WARP ? NULL : "a warp has no threads that far apart";
}
static const char *rule_f32(const struct check *c, const struct kern_inst *x) {
  return arg(c, x, 0)->dtype == QUERN_DTYPE_F32 ? NULL : "argument 0 is not f32";
}
static const char *rule_mma(const struct check *c, const struct kern_inst *x) {
  static const int each[] = {4, 4, 2}; /* lanes of a thread */
  for (int i = 0; i < 3; i++) {
    const struct kern_inst *a = arg(c, x, i);
    if (a->dtype != QUERN_DTYPE_F32) return "its arguments are f32";
    if (block_threads_of(c) == 0 || a->lanes != each[i] * block_threads_of(c))
      return "threads of a block have 4, 4 and 2 lanes";
  }
  return NULL;
}

/* Arguments, a letter each: v a value, i a scalar i64, I an i64 of any lanes, b a scalar bool, m memory, x a variable;
** a ? stands before one that may be left out. alike: all values have the type of argument 0, which is of one of these
** classes; floats of 8 and 16 bits are not for arithmetic. */
struct row {
  const char *args;
  enum base_dtype_class alike; /* 0: the rule says it */
  rule *also;
};
static const struct row rows[KERN_OP_COUNT] = {
    [KERN_CONST] = {"", 0, rule_const},
    [KERN_LANE] = {"", 0, rule_lane},
    [KERN_SCALAR] = {"", 0, rule_scalar},
    [KERN_TASK] = {"", 0, rule_task},
    [KERN_MEM] = {"", 0, rule_mem},
    [KERN_LOCAL] = {"?i", 0, rule_local},
    [KERN_AT] = {"mi", 0, rule_memory},
    [KERN_LOAD] = {"mi?i", 0, rule_memory},
    [KERN_STORE] = {"miv?i", 0, rule_store},
    [KERN_GATHER] = {"mI", 0, rule_gather},
    [KERN_SCATTER] = {"mIv?v", 0, rule_scatter},
    [KERN_PREFETCH] = {"mi", 0, rule_memory},
    [KERN_FOR] = {"ii", 0, rule_for},
    [KERN_IF] = {"b", 0, NULL},
    [KERN_ELSE] = {"", 0, NULL},
    [KERN_END] = {"", 0, NULL},
    [KERN_VAR] = {"v", 0, NULL},
    [KERN_GET] = {"x", 0, NULL},
    [KERN_SET] = {"xv", 0, rule_set},
    [KERN_CALL] = {NULL, 0, NULL},
    [KERN_ADD] = {"vv", BASE_NUM, NULL},
    [KERN_SUB] = {"vv", BASE_NUM, NULL},
    [KERN_MUL] = {"vv", BASE_NUM, NULL},
    [KERN_DIV] = {"vv", BASE_NUM, NULL},
    [KERN_MOD] = {"vv", BASE_INT, NULL},
    [KERN_FMA] = {"vvv", BASE_FLOAT, NULL},
    [KERN_SCALE] = {"vv", BASE_FLOAT, NULL},
    [KERN_NEG] = {"v", BASE_NUM, NULL},
    [KERN_ABS] = {"v", BASE_NUM, NULL},
    [KERN_SQRT] = {"v", BASE_FLOAT, NULL},
    [KERN_FLOOR] = {"v", BASE_FLOAT, NULL},
    [KERN_CEIL] = {"v", BASE_FLOAT, NULL},
    [KERN_ROUND] = {"v", BASE_FLOAT, NULL},
    [KERN_TRUNC] = {"v", BASE_FLOAT, NULL},
    [KERN_MAX] = {"vv", BASE_ANY, NULL},
    [KERN_MIN] = {"vv", BASE_ANY, NULL},
    [KERN_AND] = {"vv", BASE_BITS, NULL},
    [KERN_OR] = {"vv", BASE_BITS, NULL},
    [KERN_XOR] = {"vv", BASE_BITS, NULL},
    [KERN_NOT] = {"v", BASE_BITS, NULL},
    [KERN_SHL] = {"vv", BASE_INT, NULL},
    [KERN_SHR] = {"vv", BASE_INT, NULL},
    [KERN_EQ] = {"vv", BASE_ANY, NULL},
    [KERN_LT] = {"vv", BASE_ANY, NULL},
    [KERN_LE] = {"vv", BASE_ANY, NULL},
    [KERN_SELECT] = {"vvv", 0, rule_select},
    [KERN_IDIV] = {"v", BASE_INT, rule_by},
    [KERN_IMOD] = {"v", BASE_INT, rule_by},
    [KERN_CAST] = {"v", 0, rule_cast},
    [KERN_BITCAST] = {"v", 0, rule_bitcast},
    [KERN_SPLAT] = {"v", 0, rule_splat},
    [KERN_EXTRACT] = {"v", 0, rule_extract},
    [KERN_DEINTERLEAVE] = {"v", 0, rule_deinterleave},
    [KERN_LOW] = {"v", 0, rule_half},
    [KERN_HIGH] = {"v", 0, rule_half},
    [KERN_JOIN] = {"vv", 0, rule_join},
    [KERN_INTERLEAVE] = {"vv", 0, rule_join},
    [KERN_HREDUCE] = {"v", 0, rule_hreduce},
    [KERN_SHUFFLE] = {"vv", 0, rule_shuffle},
    [KERN_TABLE] = {"v", 0, rule_table},
    [KERN_DOT4] = {"vvv", 0, rule_dot4},
    [KERN_SHUFFLE_XOR] = {"v", 0, rule_shuffle_xor},
    [KERN_TF32] = {"v", BASE_FLOAT, rule_f32},
    [KERN_EXP2] = {"v", BASE_FLOAT, rule_f32},
    [KERN_MMA] = {"vvv", 0, rule_mma},
};

/* ---- arguments ------------------------------------------------------------------------------------------- */

static bool is_memory(const struct kern_inst *x) { return kern_ops[x->op].result == KERN_RESULT_MEM; }

/* What is wrong with value number id as an argument of that letter, or NULL. */
static const char *argument(const struct check *c, int64_t id, char letter) {
  if (id < 0 || (size_t)id >= c->fn->insts.n || !c->visible[id]) return "is not a value that is visible here";
  const struct kern_inst *a = &c->fn->insts.at[id];
  bool memory = is_memory(a), var = a->op == KERN_VAR;
  if (letter == 'm') return memory ? NULL : "is not memory";
  if (letter == 'x') return var ? NULL : "is not a variable";
  if (memory) return "is memory, not a value";
  if (var) return "is a variable: only get and set take it";
  if (letter == 'i') return a->dtype == QUERN_DTYPE_I64 && a->lanes == 1 ? NULL : "is not a scalar i64";
  if (letter == 'I') return a->dtype == QUERN_DTYPE_I64 ? NULL : "is not i64";
  if (letter == 'b') return a->dtype == QUERN_DTYPE_BOOL && a->lanes == 1 ? NULL : "is not a scalar bool";
  return NULL;
}

static quern_status check_arguments(const struct check *c, kern_id id) {
  const struct kern_inst *x = &c->fn->insts.at[id];
  int n = 0;
  bool optional = false;
  for (const char *p = rows[x->op].args; *p != 0; p++) {
    if (*p == '?') {
      optional = true;
      continue;
    }
    const char *wrong = optional && x->arg[n] == KERN_NONE ? NULL : argument(c, x->arg[n], *p);
    if (wrong != NULL) return kern_fault(c->kern, c->fn, id, "argument %d %s", n, wrong);
    n++;
  }
  for (; n < 4; n++) {
    if (x->arg[n] != KERN_NONE) return kern_fault(c->kern, c->fn, id, "argument %d is one too many", n);
  }
  return QUERN_STATUS_OK;
}

static bool is_narrow(quern_dtype dtype) { return base_dtype_is(dtype, BASE_FLOAT) && base_dtypes[dtype].size < 4; }

/* Arguments of arithmetic: one type, and one that the op is for. */
static quern_status check_alike(const struct check *c, kern_id id) {
  const struct kern_inst *x = &c->fn->insts.at[id], *a = arg(c, x, 0);
  if (!base_dtype_is(a->dtype, rows[x->op].alike) || is_narrow(a->dtype))
    return kern_fault(c->kern, c->fn, id, "%s is not for %s", kern_ops[x->op].name, base_dtypes[a->dtype].name);
  for (int i = 1; rows[x->op].args[i] != 0; i++) {
    if (arg(c, x, i)->dtype != a->dtype || arg(c, x, i)->lanes != a->lanes)
      return kern_fault(c->kern, c->fn, id, "the types of argument 0 and %d differ", i);
  }
  return QUERN_STATUS_OK;
}

static bool lanes_are_good(const struct check *c, int lanes) {
  bool group = c->phase >= 0 && c->kern->phases[c->phase].block_threads > 0;
  return lanes >= 1 && lanes <= (group ? KERN_BLOCK_LANES : KERN_MAX_LANES) && (lanes & (lanes - 1)) == 0;
}

/* The instruction's own type against its column RESULT. */
static quern_status check_result(const struct check *c, kern_id id) {
  const struct kern_inst *x = &c->fn->insts.at[id];
  enum kern_result result = kern_ops[x->op].result;
  bool value = result != KERN_RESULT_MEM && result != KERN_RESULT_NONE;
  if (value ? !lanes_are_good(c, x->lanes) : x->lanes != 0)
    return kern_fault(c->kern, c->fn, id, "it cannot have %d lanes", x->lanes);
  if (result == KERN_RESULT_SAME && (x->dtype != arg(c, x, 0)->dtype || x->lanes != arg(c, x, 0)->lanes))
    return kern_fault(c->kern, c->fn, id, "its type is not that of argument 0");
  if (result == KERN_RESULT_MASK && (x->dtype != QUERN_DTYPE_BOOL || x->lanes != arg(c, x, 0)->lanes))
    return kern_fault(c->kern, c->fn, id, "its type is not bool with the lanes of argument 0");
  return QUERN_STATUS_OK;
}

/* Notes a store to what value number `mem` is part of. */
static quern_status note_write(const struct check *c, kern_id id, kern_id mem) {
  const struct kern_inst *root = &c->fn->insts.at[c->root[mem]];
  if (root->op != KERN_MEM) return QUERN_STATUS_OK;
  if (c->fn->mems[root->imm].role == KERN_IN)
    return kern_fault(c->kern, c->fn, id, "the function it calls stores to an input");
  c->writes[c->number * KERN_MAX_MEMS + root->imm] = true;
  return QUERN_STATUS_OK;
}

static quern_status check_call(const struct check *c, kern_id id) {
  const struct kern_inst *x = &c->fn->insts.at[id];
  int phase;
  if (x->lanes != 0) return kern_fault(c->kern, c->fn, id, "it cannot have %d lanes", x->lanes);
  if (x->imm < 0 || x->imm >= c->number) return kern_fault(c->kern, c->fn, id, "a function calls only those before it");
  if (kern_is_phase(c->kern, (int)x->imm, &phase)) return kern_fault(c->kern, c->fn, id, "a phase cannot be called");
  const struct kern_fn *callee = c->kern->fns.at[x->imm];
  int n = callee->n_mems + callee->n_scalars;
  if (x->arg[1] != callee->n_mems || !in_pool(c, x->arg[0], n))
    return kern_fault(c->kern, c->fn, id, "its list of %d memories and scalars is outside the pool", n);
  for (int i = 0; i < n; i++) {
    int64_t a = c->fn->pool.at[x->arg[0] + i];
    const char *wrong = argument(c, a, i < callee->n_mems ? 'm' : 'i');
    if (wrong != NULL) return kern_fault(c->kern, c->fn, id, "argument %d %s", i, wrong);
    if (i >= callee->n_mems) continue;
    if (c->fn->insts.at[a].dtype != callee->mems[i].dtype)
      return kern_fault(c->kern, c->fn, id, "argument %d is memory of another dtype than %s wants", i, callee->name);
    if (c->writes[x->imm * KERN_MAX_MEMS + i]) QUERN_TRY(note_write(c, id, (kern_id)a));
  }
  return QUERN_STATUS_OK;
}

/* ---- blocks ---------------------------------------------------------------------------------------------- */

static void show(struct check *c, kern_id id) {
  c->visible[id] = true;
  c->shown[c->n_shown++] = id;
}

static void end_scope_to(struct check *c, size_t n) {
  while (c->n_shown > n) c->visible[c->shown[--c->n_shown]] = false;
}

static quern_status check_block(struct check *c, kern_id id) {
  enum kern_op op = c->fn->insts.at[id].op;
  if (op == KERN_FOR || op == KERN_IF) {
    if (c->depth == KERN_MAX_DEPTH) return kern_fault(c->kern, c->fn, id, "more than %d open blocks", KERN_MAX_DEPTH);
    c->blocks[c->depth].is_if = op == KERN_IF;
    c->blocks[c->depth].has_else = false;
    c->blocks[c->depth++].n_shown = c->n_shown;
  } else if (op == KERN_ELSE) {
    if (c->depth == 0 || !c->blocks[c->depth - 1].is_if || c->blocks[c->depth - 1].has_else)
      return kern_fault(c->kern, c->fn, id, "there is no if for it");
    c->blocks[c->depth - 1].has_else = true;
    end_scope_to(c, c->blocks[c->depth - 1].n_shown);
  } else if (op == KERN_END) {
    if (c->depth == 0) return kern_fault(c->kern, c->fn, id, "no block is open");
    end_scope_to(c, c->blocks[--c->depth].n_shown);
  }
  return QUERN_STATUS_OK;
}

static quern_status check_inst(struct check *c, kern_id id) {
  const struct kern_inst *x = &c->fn->insts.at[id];
  if ((unsigned)x->op >= KERN_OP_COUNT) return kern_fault(c->kern, c->fn, id, "there is no such instruction");
  if ((unsigned)x->dtype >= QUERN_DTYPE_COUNT)
    return kern_fault(c->kern, c->fn, id, "there is no dtype %d", (int)x->dtype);
  if (x->op == KERN_CALL) return check_call(c, id);
  QUERN_TRY(check_arguments(c, id));
  if (rows[x->op].alike != 0) QUERN_TRY(check_alike(c, id));
  QUERN_TRY(check_result(c, id));
  const char *wrong = rows[x->op].also != NULL ? rows[x->op].also(c, x) : NULL;
  if (wrong != NULL) return kern_fault(c->kern, c->fn, id, "%s", wrong);
  QUERN_TRY(check_block(c, id));
  if (is_memory(x)) c->root[id] = x->op == KERN_AT ? c->root[x->arg[0]] : id;
  if (x->op == KERN_STORE || x->op == KERN_SCATTER) QUERN_TRY(note_write(c, id, x->arg[0]));
  if (kern_ops[x->op].result != KERN_RESULT_NONE) show(c, id);
  return QUERN_STATUS_OK;
}

/* ---- functions and kernels ------------------------------------------------------------------------------- */

static quern_status check_fn(struct check *c) {
  size_t n = c->fn->insts.n, bytes = n * (sizeof *c->shown + sizeof *c->root + sizeof *c->visible);
  if (n == 0) return QUERN_STATUS_OK;
  c->shown = base_alloc(c->kern->heap, bytes);
  if (c->shown == NULL) return QUERN_STATUS_MEMORY;
  c->root = c->shown + n;
  c->visible = (bool *)(c->root + n);
  memset(c->visible, 0, n * sizeof *c->visible);
  c->n_shown = 0;
  c->depth = 0;
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < n && status == QUERN_STATUS_OK; i++) status = check_inst(c, (kern_id)i);
  if (status == QUERN_STATUS_OK && c->depth > 0)
    status = kern_fault(c->kern, c->fn, (kern_id)n - 1, "%d blocks are still open at the end", c->depth);
  base_free(c->kern->heap, c->shown, bytes);
  return status;
}

static quern_status check_mems(const struct kern *kern) {
  QUERN_CHECK(kern->n_mems >= 0 && kern->n_mems <= KERN_MAX_MEMS && kern->n_scalars >= 0 &&
                  kern->n_scalars <= KERN_MAX_SCALARS && kern->fns.n <= KERN_MAX_FNS,
              INTERNAL, "kernel %s: %d memories, %d scalars, %zu functions cannot be", kern_name(kern), kern->n_mems,
              kern->n_scalars, kern->fns.n);
  for (int i = 0; i < kern->n_mems; i++) {
    const struct kern_mem *m = &kern->mems[i];
    QUERN_CHECK((unsigned)m->dtype < QUERN_DTYPE_COUNT && m->count >= 0 && m->count <= INT64_C(1) << 56, INTERNAL,
                "kernel %s: memory %d: dtype %d, %lld elements cannot be", kern_name(kern), i, (int)m->dtype,
                (long long)m->count);
    QUERN_CHECK(i == 0 || m->role >= kern->mems[i - 1].role, INTERNAL,
                "kernel %s: memory %d: inputs come first, then outputs, then workspaces", kern_name(kern), i);
    if (m->alias == -1) continue;
    QUERN_CHECK(m->role == KERN_OUT && m->alias >= 0 && m->alias < kern->n_mems &&
                    kern->mems[m->alias].role == KERN_IN && kern->mems[m->alias].count == m->count &&
                    base_dtypes[kern->mems[m->alias].dtype].size == base_dtypes[m->dtype].size,
                INTERNAL, "kernel %s: memory %d cannot be memory %d", kern_name(kern), i, m->alias);
  }
  return QUERN_STATUS_OK;
}

static bool same_mems(const struct kern *kern, const struct kern_fn *fn) {
  if (fn->n_mems != kern->n_mems || fn->n_scalars != kern->n_scalars) return false;
  for (int i = 0; i < fn->n_mems; i++) {
    const struct kern_mem *a = &fn->mems[i], *b = &kern->mems[i];
    if (a->dtype != b->dtype || a->count != b->count || a->role != b->role) return false;
  }
  return true;
}

static quern_status check_phases(const struct kern *kern) {
  QUERN_CHECK(kern->n_phases >= 0 && kern->n_phases <= KERN_MAX_PHASES, INTERNAL, "kernel %s: %d phases",
              kern_name(kern), kern->n_phases);
  for (int i = 0; i < kern->n_phases; i++) {
    const struct kern_phase *p = &kern->phases[i];
    int first;
    if (p->library_call) continue;
    QUERN_CHECK(p->fn >= 0 && (size_t)p->fn < kern->fns.n && kern_is_phase(kern, p->fn, &first) && first == i, INTERNAL,
                "kernel %s: phase %d has no function of its own", kern_name(kern), i);
    QUERN_CHECK(p->block_threads >= 0 && p->block_threads <= 1024 && (p->block_threads & (p->block_threads - 1)) == 0,
                INTERNAL, "kernel %s: phase %d has blocks of %d threads", kern_name(kern), i, p->block_threads);
    QUERN_CHECK(same_mems(kern, kern->fns.at[p->fn]), INTERNAL,
                "kernel %s: the memories and scalars of phase %d are not the kernel's", kern_name(kern), i);
    QUERN_CHECK(p->tasks.scalar >= -1 && p->tasks.scalar < kern->n_scalars && p->tasks.mul >= 0 &&
                    p->tasks.mul <= KERN_MAX_TASKS && p->tasks.div > 0 && p->tasks.div <= KERN_MAX_TASKS,
                INTERNAL, "kernel %s: phase %d: tasks of scalar %d * %lld / %lld cannot be", kern_name(kern), i,
                p->tasks.scalar, (long long)p->tasks.mul, (long long)p->tasks.div);
    QUERN_CHECK(p->batch_tasks.div == 0 ||
                    (p->batch_tasks.div > 0 && p->batch_tasks.mul >= 0 && p->batch_tasks.by > 0 && kern->n_scalars > 0),
                INTERNAL, "kernel %s: phase %d: %lld * ceil((rows * %lld + %lld) / %lld) tasks cannot be",
                kern_name(kern), i, (long long)p->batch_tasks.by, (long long)p->batch_tasks.mul,
                (long long)p->batch_tasks.add, (long long)p->batch_tasks.div);
  }
  return kern_check_library_call(kern);
}

quern_status kern_check_types(const struct kern *kern, bool *writes) {
  QUERN_TRY(kern->failed);
  QUERN_TRY(check_mems(kern));
  QUERN_TRY(check_phases(kern));
  size_t bytes = KERN_MAX_MEMS * kern->fns.n;
  bool *own = writes == NULL ? base_alloc(kern->heap, bytes) : NULL;
  struct check check = {.kern = kern, .writes = writes == NULL ? own : writes};
  if (check.writes == NULL) return QUERN_STATUS_MEMORY;
  memset(check.writes, 0, bytes);
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < kern->fns.n && status == QUERN_STATUS_OK; i++) {
    check.fn = kern->fns.at[i];
    check.number = (int)i;
    if (!kern_is_phase(kern, (int)i, &check.phase)) check.phase = -1;
    status = check_fn(&check);
  }
  base_free(kern->heap, own, own != NULL ? bytes : 0);
  return status;
}
