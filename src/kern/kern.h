/* kern/kern.h -- the kernel IR: what a kernel does, loop by loop; and the values of graph nodes as instructions
** A kernel is a list of phases that run one after another; a phase is a function that is run for each of its tasks, in
** any order and on any thread. A function is a flat list of instructions; FOR and IF open a block, END closes it. An
** instruction's value is named by its number. Every kernel is interpreted (interp.c) or printed as C (codegen/) with
** the same bits.
** see: ops.def (every instruction's meaning), docs/design/002-cpu-compiler.md
*/
#ifndef KERN_KERN_H
#define KERN_KERN_H
#include "ir/ir.h"
#include "pass/pass.h"

/* ---- instructions ------------------------------------------------------------------------------------------------ */

enum kern_op {
#define KOP(NAME, ...) KERN_##NAME,
#include "kern/ops.def"
#undef KOP
  KERN_OP_COUNT
};

enum kern_result { KERN_RESULT_SAME, KERN_RESULT_OWN, KERN_RESULT_MASK, KERN_RESULT_MEM, KERN_RESULT_NONE };

struct kern_op_info {
  const char *name;
  int n_args; /* -1: varies */
  enum kern_result result;
  const char *meaning;
};
extern const struct kern_op_info kern_ops[KERN_OP_COUNT];

enum {
  KERN_MAX_LANES = 64,
  KERN_BLOCK_LANES = 8192, /* of phases of GPUs; nothing that has more than KERN_MAX_LANES is shuffled */
  KERN_MAX_MEMS = 256,
  KERN_MAX_SCALARS = 8,
  KERN_MAX_PHASES = 8,
  KERN_MAX_FNS = 128,
  KERN_MAX_DEPTH = 64 /* of blocks in blocks */
};

typedef int32_t kern_id; /* the number of an instruction in its function; KERN_NONE: none */
enum { KERN_NONE = -1 };

struct kern_inst {
  enum kern_op op;
  quern_dtype dtype; /* of the value, or of the elements of the memory */
  int lanes;         /* of the value; 0: memory or no value */
  kern_id arg[4];    /* KERN_NONE where there is none */
  int64_t imm;
};

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

enum kern_role { KERN_IN, KERN_OUT, KERN_WORK }; /* WORK: scratch that is shared by all threads of one launch */

struct kern_mem {
  quern_dtype dtype;
  enum kern_role role;
  int64_t count; /* elements; -1 in functions that are called: unknown */
  /* Of an OUT: the IN whose memory it may take, because each task reads every element before it writes it; -1: none. */
  int alias;
  /* INs and OUTs of one class, a number that is not 0, are read and then written at the same element by the same task:
  ** an OUT may be computed in place of any such IN, as well as of alias. */
  int in_place_class;
  /* Elements of a row of the dynamic batch, where rows follow each other from the first element on and no row is made
  ** of another; 0: it has none, or they lie otherwise. */
  int64_t row;
  /* Of an OUT: what is stored will have left all caches before it is read, so streaming (non-temporal) stores pay. A
  ** hint, no more. */
  bool streaming;
};

struct kern_fn {
  const char *name; /* "gemm_f32_6x64"; of phases: the kernel's name and the phase */
  int n_mems, n_scalars;
  struct kern_mem mems[KERN_MAX_MEMS];
  BASE_VEC(struct kern_inst) insts;
  BASE_VEC(int64_t) pool;
  int depth; /* of open blocks while building */
};

/* The tasks of a phase: ceil((scalar < 0 ? 1 : value of that scalar) * mul / div); more than KERN_MAX_TASKS are
** refused. */
#define KERN_MAX_TASKS (INT64_C(1) << 40)
struct kern_tasks {
  int scalar;
  int64_t mul, div;
};

/* Of a program with a dynamic batch, whose kernels have the number of rows as scalar 0: what the tasks write in the
** first n rows, the first by * ceil((n * mul + add) / div) of them write, and no other task is needed. div 0: all
** are. */
struct kern_batch_tasks {
  int64_t mul, add, div, by;
};

struct kern_phase {
  int fn;            /* whose mems and scalars are those of the kernel; -1 in a library call */
  bool library_call; /* the kernel's library call is done here: there is no function, and one task */
  struct kern_tasks tasks;
  /* On a GPU: threads of the thread block (OpenCL: work-group) that runs a task, a power of two; 0: as the code
  ** generator likes. Each thread has n / block_threads neighboring lanes of a value of n lanes. */
  int block_threads;
  /* Occupancy: thread blocks that an SM should have registers for at a time, which limits the registers of a thread
  ** (CUDA's launch bounds);
  ** 0: as it comes. */
  int min_blocks_per_sm;
  struct kern_batch_tasks batch_tasks;
  int from,
      to; /* from != to: it does nothing but copy memory `from` to memory `to`, and is left out where they are one */
};

/* ---- library calls (library_call.c): what a library of the device does instead of generated code
** The interpreter defines what a library call means. Sums have an order of the library's own, which is the same every
** time. */

enum kern_library_kind {
  KERN_LIBRARY_NONE,
  KERN_LIBRARY_GEMM,
  KERN_LIBRARY_ATTENTION,
  KERN_LIBRARY_ATTENTION_BACK,
  KERN_LIBRARY_CONV,
  KERN_LIBRARY_KINDS
};
enum kern_activation { KERN_ACT_NONE, KERN_ACT_RELU, KERN_ACT_GELU_TANH };

/* Element (n, i, j) of batch n is element `at + n batch + i row + j column` of the memory. mem KERN_NONE: there is
** none. */
struct kern_matrix {
  int mem;
  int64_t at, batch, row, column;
};

/* With s[n, i, j] = sum over k of a[n, i, k] b[n, j, k] + add[n, i, j] + bias[j], in the dtype of accumulators,
** y[n, i, j] = act(s), rounded once; `aux`, the auxiliary output if there is one, is the pre-activation s rounded to
** its dtype. Backward, y = s act'(aux), and aux is an input. row or column is 1 of every matrix (or has extent 1). */
struct kern_gemm {
  int64_t batch, rows, columns, terms;
  struct kern_matrix a, b, y;
  struct kern_matrix add; /* as y; may be y's memory if y is an OUT that takes it (alias) */
  struct kern_matrix aux; /* as y */
  int bias;               /* a memory of `columns` elements, KERN_NONE: none; batch is 1 */
  int a_sums;             /* (backward of a bias) an OUT of `rows` elements: sum over k of a[0, i, k]; KERN_NONE */
  int y_sums;             /* an OUT of `columns` elements: sum over i of y[0, i, j] before it is rounded; KERN_NONE */
  enum kern_activation act;
  bool back;
  bool tf32; /* f32 operands may be rounded to tf32 */
};

/* Element (n, h, t, d) is element `at + n batch + h head + t row + d` of the memory. */
struct kern_view {
  int mem; /* KERN_NONE: there is none */
  int64_t at, batch, head, row;
};

/* The composite attention, or its gradient, of 16-bit floats; y is rounded once. Head h reads head h kv_heads / heads
** of k and v.
** causal: query i attends to keys j <= i + keys - queries. lse[n, h, t] is f32, dense. */
struct kern_attention {
  int64_t batch, heads, kv_heads, queries, keys, width, value_width;
  double scale;
  bool causal;
  bool exact; /* the same bits every time; only backward may be otherwise */
  struct kern_view q, k, v, y;
  struct kern_view dy, dq, dk, dv; /* of the gradient, which reads y and lse */
  int lse;                         /* KERN_NONE: not wanted (forward) */
};

/* x is (sample, in.., channel), w (output, window.., channel of a group), y (sample, out.., output), dense and of one dtype;
** y[n, o, k] = sum over the window r and channels c of x[n, step o + dilation r - pad, c] w[k, r, c], x 0 outside, in the dtype of
** accumulators, rounded once. Its gradients likewise: one of the three memories is written. Axes that there are not are 1. */
enum { KERN_CONV_SPATIAL = 3 };
enum kern_conv_part { KERN_CONV_FORWARD, KERN_CONV_INPUT_GRAD, KERN_CONV_WEIGHT_GRAD, KERN_CONV_PARTS };
struct kern_conv {
  enum kern_conv_part part; /* y, x or w is written */
  int spatial;
  int64_t groups, samples, channels, outputs;
  int64_t in[KERN_CONV_SPATIAL], out[KERN_CONV_SPATIAL], window[KERN_CONV_SPATIAL], step[KERN_CONV_SPATIAL],
      dilation[KERN_CONV_SPATIAL], pad[KERN_CONV_SPATIAL];
  int x, w, y;
  bool exact; /* the same bits every time */
  bool tf32;  /* f32 operands may be rounded to tf32 */
};

struct kern_library_call {
  enum kern_library_kind kind;
  struct kern_gemm gemm;
  struct kern_attention attention;
  struct kern_conv conv;
  int work;               /* a WORK of u8 for the library, or KERN_NONE; its count is what the device asks for */
  uint64_t algorithm[16]; /* the library's algorithm, in words of its own; all 0: the library has not been asked */
};

struct kern_cost {
  double flops; /* additions, products and comparisons on elements; an fma counts 2, exp and the like 1 */
  double bytes; /* that must be read and written at least: each IN and OUT once */
};

struct kern {
  struct base_heap *heap;
  struct base_arena arena; /* names */
  const char *name;        /* "k_<hash8>_<root>_<shape>" once finished */
  uint64_t hash;           /* of everything that the generated code depends on, names left out */
  int n_mems, n_scalars;
  struct kern_mem mems[KERN_MAX_MEMS]; /* IN, then OUT, then WORK */
  BASE_VEC(struct kern_fn *) fns;      /* a function calls only those before it */
  int n_phases;
  struct kern_phase phases[KERN_MAX_PHASES];
  struct kern_library_call library_call; /* of the phase that is one */
  /* memories are aligned as their elements only: they are parts of others, one per iteration of a loop */
  bool unaligned_base;
  int max_batched; /* launches of it that may be batched into one, where a device can; 0: it is launched alone */
  struct kern_cost cost;
  quern_status failed; /* the first error while building; kern_finish reports it */
};

/* ---- building (build.c): a failure is remembered, and every later call is harmless ------------------------------ */

quern_status kern_new(struct kern **kern, struct base_heap *heap) QUERN_NODISCARD;
void kern_free(struct kern *kern);
/* Frees the instructions of a kernel that has been compiled; what is left describes how it is launched. */
void kern_strip(struct kern *kern);

/* Adds a memory of the kernel; returns its number. All come before the first phase. */
int kern_add_mem(struct kern *kern, quern_dtype dtype, enum kern_role role, int64_t count);

/* A new function with the kernel's memories and scalars that is the next phase. */
struct kern_fn *kern_add_phase(struct kern *kern, struct kern_tasks tasks);
#define KERN_FIXED_TASKS(n) ((struct kern_tasks){-1, (n), 1})
/* Says of the last phase that it does nothing but copy a memory, the IN, to another, the OUT whose alias it is. */
void kern_phase_copies(struct kern *kern, int from, int to);

/* The next phase is a library call: a kernel has at most one. */
void kern_add_library_call(struct kern *kern, const struct kern_library_call *call);

/* A new function to be called: name is copied and has the coordinates of what it does. */
struct kern_fn *kern_add_fn(struct kern *kern, const char *name, int n_mems, const quern_dtype *dtypes, int n_scalars);

/* Gives name and hash; fails when building failed or a block is open. root and type are for the name. */
quern_status kern_finish(struct kern *kern, const char *root, const quern_tensor *type) QUERN_NODISCARD;

/* The builder of one function: everything below appends to it. */
struct kern_builder {
  struct kern *kern;
  struct kern_fn *fn;
};

/* Appends an instruction; its number, or 0 when building has failed. */
kern_id kern_emit(struct kern_builder *b, struct kern_inst inst);

kern_id kern_const_bits(struct kern_builder *b, quern_dtype dtype, int lanes, uint64_t bits);
kern_id kern_const_f(struct kern_builder *b, quern_dtype dtype, int lanes, double value); /* f32 or f64, rounded once */
kern_id kern_const_i(struct kern_builder *b, quern_dtype dtype, int lanes, int64_t value);
kern_id kern_index(struct kern_builder *b, int64_t value); /* a scalar i64 constant */
kern_id kern_lane(struct kern_builder *b, quern_dtype dtype, int lanes);
kern_id kern_task(struct kern_builder *b);
kern_id kern_scalar(struct kern_builder *b, int number);
kern_id kern_mem(struct kern_builder *b, int number);
kern_id kern_local(struct kern_builder *b, quern_dtype dtype, int64_t count);
/* A LOCAL whose elements are warp-local: one warp of KERN_WARP threads, one lane per thread, uses each of them, and
** waits for no other. */
enum { KERN_WARP = 32 };
kern_id kern_local_warp(struct kern_builder *b, quern_dtype dtype, int64_t count);
kern_id kern_at(struct kern_builder *b, kern_id mem, kern_id index);
kern_id kern_load(struct kern_builder *b, kern_id mem, kern_id index, int lanes);
kern_id kern_load_n(struct kern_builder *b, kern_id mem, kern_id index, int lanes, kern_id count);
void kern_store(struct kern_builder *b, kern_id mem, kern_id index, kern_id value);
void kern_store_n(struct kern_builder *b, kern_id mem, kern_id index, kern_id value, kern_id count);
kern_id kern_gather(struct kern_builder *b, kern_id mem, kern_id indices);
/* For thread blocks of a GPU: a load (store) of n neighboring elements from each index on. mask may be KERN_NONE. */
kern_id kern_gather_n(struct kern_builder *b, kern_id mem, kern_id indices, int n);
void kern_scatter_n(struct kern_builder *b, kern_id mem, kern_id indices, kern_id value, kern_id mask);
void kern_prefetch(struct kern_builder *b, kern_id mem, kern_id index);
void kern_prefetch_n(struct kern_builder *b, kern_id mem, kern_id index, int64_t count); /* by a thread block */
kern_id kern_for(struct kern_builder *b, kern_id lo, kern_id hi, int64_t step);          /* the loop's variable */
void kern_if(struct kern_builder *b, kern_id cond);
void kern_else(struct kern_builder *b);
void kern_end(struct kern_builder *b);
kern_id kern_var(struct kern_builder *b, kern_id init);
kern_id kern_get(struct kern_builder *b, kern_id var);
void kern_set(struct kern_builder *b, kern_id var, kern_id value);
void kern_call_fn(struct kern_builder *b, const struct kern_fn *fn, int n_mems, const kern_id *mems, int n_scalars,
                  const kern_id *scalars);

/* Arithmetic of any op with SAME or MASK result; the types come from the arguments. Integer operations on constants are
** folded, x + 0, x * 1 and x * 0 of i64 too, so that index arithmetic may be written plainly. */
kern_id kern_un(struct kern_builder *b, enum kern_op op, kern_id x);
kern_id kern_bin(struct kern_builder *b, enum kern_op op, kern_id x, kern_id y);
kern_id kern_fma(struct kern_builder *b, kern_id x, kern_id y, kern_id z);
kern_id kern_select(struct kern_builder *b, kern_id mask, kern_id yes, kern_id no);
kern_id kern_cast(struct kern_builder *b, kern_id x, quern_dtype dtype); /* x itself when it has that dtype */
kern_id kern_bitcast(struct kern_builder *b, kern_id x, quern_dtype dtype);
kern_id kern_splat(struct kern_builder *b, kern_id x, int lanes); /* x itself when it has as many lanes */
kern_id kern_extract(struct kern_builder *b, kern_id x, int lane);
kern_id kern_deinterleave(struct kern_builder *b, kern_id x, int n, int which); /* number `which` of every n lanes */
kern_id kern_interleave(struct kern_builder *b, kern_id x, kern_id y);
kern_id kern_low(struct kern_builder *b, kern_id x);
kern_id kern_high(struct kern_builder *b, kern_id x);
kern_id kern_join(struct kern_builder *b, kern_id x, kern_id y);
kern_id kern_hreduce(struct kern_builder *b, enum kern_op op, kern_id x);
kern_id kern_shuffle(struct kern_builder *b, kern_id x, kern_id y, int lanes, const int *pattern);
kern_id kern_table(struct kern_builder *b, kern_id index, quern_dtype dtype, const uint64_t bits[16]);
kern_id kern_dot4(struct kern_builder *b, kern_id acc, kern_id u8s, kern_id i8s);
kern_id kern_shuffle_xor(struct kern_builder *b, kern_id x, int distance);
kern_id kern_mma(struct kern_builder *b, kern_id sums, kern_id x, kern_id y); /* sums + x y' */
kern_id kern_idiv(struct kern_builder *b, kern_id x, int64_t by);             /* i64, by > 0 */
kern_id kern_imod(struct kern_builder *b, kern_id x, int64_t by);

static inline kern_id kern_add(struct kern_builder *b, kern_id x, kern_id y) { return kern_bin(b, KERN_ADD, x, y); }
static inline kern_id kern_sub(struct kern_builder *b, kern_id x, kern_id y) { return kern_bin(b, KERN_SUB, x, y); }
static inline kern_id kern_mul(struct kern_builder *b, kern_id x, kern_id y) { return kern_bin(b, KERN_MUL, x, y); }
static inline kern_id kern_max(struct kern_builder *b, kern_id x, kern_id y) { return kern_bin(b, KERN_MAX, x, y); }
static inline kern_id kern_min(struct kern_builder *b, kern_id x, kern_id y) { return kern_bin(b, KERN_MIN, x, y); }

/* Arithmetic with a constant i64, and a loop over constants. The order in which C evaluates arguments is open: no call
** here has two arguments that append instructions (tools/check_order.sh), so that a kernel does not depend on the
** compiler that compiled Quern. */
static inline kern_id kern_add_i(struct kern_builder *b, kern_id x, int64_t y) {
  return kern_add(b, x, kern_index(b, y));
}
static inline kern_id kern_mul_i(struct kern_builder *b, kern_id x, int64_t y) {
  return kern_mul(b, x, kern_index(b, y));
}
static inline kern_id kern_max_i(struct kern_builder *b, kern_id x, int64_t y) {
  return kern_max(b, x, kern_index(b, y));
}
static inline kern_id kern_min_i(struct kern_builder *b, kern_id x, int64_t y) {
  return kern_min(b, x, kern_index(b, y));
}
static inline kern_id kern_range(struct kern_builder *b, int64_t lo, int64_t hi, int64_t step) {
  kern_id first = kern_index(b, lo);
  return kern_for(b, first, kern_index(b, hi), step);
}

/* The type of a value. */
static inline const struct kern_inst *kern_at_id(const struct kern_builder *b, kern_id x) {
  return &b->fn->insts.at[x];
}

/* ---- mathematical functions as instructions (math.c, math_f32.c, math_f64.c) ------------------------------------- */

/* The value of an elementwise op of the graph on values that have its sources' types (their dtypes exactly, any lanes):
** every op of one, two or three sources of ops.def, with the meaning of docs/ir.md. Floats of 8 and 16 bits are
** computed in f32 and rounded. dtype is the result's. exp, log, erf, tanh, sin, cos and the like are polynomials with
** explicit fma: at most 2 ulp in f32 and f64. */
kern_id kern_math(struct kern_builder *b, enum ir_op op, quern_dtype dtype, int n, const kern_id *x);
/* exp of f32 that are not above 0, or NaN, by few instructions: at most 2 ulp down to -20, 5 down to -87, and 0 where
** exp is subnormal. */
kern_id kern_exp_below(struct kern_builder *b, kern_id x);

/* Functions that have a shorter form where the result, an f32, is rounded to bf16 or f16 then (math_approx.c): at most
** 0.55 ulp of bf16 where results are 2^-25 or more, 0.62 of f16, with the rounding. GELU of -inf is NaN; slopes at
** infinities are the limits. */
enum kern_approx { KERN_GELU, KERN_GELU_TANH, KERN_GELU_SLOPE, KERN_GELU_TANH_SLOPE, KERN_APPROX_COUNT };
double kern_approx_exact(enum kern_approx f, double x);
kern_id kern_approx(struct kern_builder *b, enum kern_approx f, quern_dtype dtype, kern_id x);

/* Whether a node of a group rounds f(x), or factor f(x), to 16 bits (approx_match.c); factor may be NULL. */
struct kern_approx_use {
  enum kern_approx f;
  const quern_tensor *x, *factor;
};
bool kern_approx_find(const struct pass_group *group, const struct ir_node *node, struct kern_approx_use *found);

/* Philox: the value of RANDOM at flat element index (i64, any lanes; consecutive or not); seed and step are u64
** scalars. */
kern_id kern_random(struct kern_builder *b, kern_id seed, kern_id step, int64_t stream, kern_id index);

/* ---- the order of float reductions: one for all CPU kernels, a function of extent and dtype only
** (reduction_order.c) */

/* A sum or product of n elements in an order that does not depend on how it is computed:
** chunks of KERN_CHUNK consecutive elements; element i of a chunk goes to accumulator i mod KERN_ACCUMULATORS(dtype),
** each of which starts with the neutral element and takes its elements in increasing order; then accumulator i takes
** accumulator i + h for h = half, ..., 2, 1; the chunks' results are combined from the first to the last, starting with
** the first. Accumulators are f32 for f32 and narrower, f64 for f64, and 64 accumulators of f32, 32 of f64.
** A contraction (DOT) instead: blocks of KERN_DOT_BLOCK consecutive terms; in a block one chain of fma (mul and add for
** other semirings) from the neutral element in increasing order; the blocks' results are added from the first to the
** last, starting with the first. A SCAN: parts of KERN_SCAN_CHUNK consecutive elements of its axis; in a part each
** element is added to the sum of those before it, the first stands for itself; a result is what precedes the part, plus
** that sum; what precedes is the sum of the parts' totals, from the first on. A SCATTER adds to an element one update
** after another, in their order. Integers, max and min: any order gives the same bits.
** A kernel for a GPU has an order of its own for reductions (sched/gpu_reduce.c): that of its lanes, of HREDUCE, and of
** its phases; and for large contractions (sched/gpu_dot.c): one chain over the terms of a part, the parts from the
** first to the last. */
enum { KERN_CHUNK = 16384, KERN_DOT_BLOCK = 512, KERN_SCAN_CHUNK = 4096 };
quern_dtype kern_acc_dtype(quern_dtype dtype); /* f16, bf16, f8: f32; integers and bool: themselves */
int kern_accumulators(quern_dtype acc);        /* 64 for 4 bytes and less, 32 for 8 bytes */
/* What leaves every element as it is: of float sums -0. The sum of no elements is 0 all the same. */
kern_id kern_neutral(struct kern_builder *b, enum ir_reduce reduce, quern_dtype acc, int lanes);
kern_id kern_combine(struct kern_builder *b, enum ir_reduce reduce, kern_id x, kern_id y);
/* The one value of n accumulators that lie in n / lanes values in order, by the tree above. */
kern_id kern_tree(struct kern_builder *b, enum ir_reduce reduce, int n_values, const kern_id *values);

/* ---- the value of a tensor at a point (value.c): graph nodes become instructions --------------------------------- */

/* Where the loop nest of a fusion group stands: each variable of the group's space has a scalar i64 value; one of them
** may be a vector, counting up by one from that value over the lanes. The memory that holds a tensor, or the value it
** has, is bound beforehand. */
struct kern_values;
quern_status kern_values_new(struct kern_values **values, struct kern_builder *b, quern_context *ctx,
                             struct pass_space *space) QUERN_NODISCARD;
void kern_values_free(struct kern_values *values);

/* Values are computed for threads of GPUs from now on: exp(x - max x) and iota == s take fewer instructions there. */
void kern_values_for_gpu(struct kern_values *values);
/* What nodes of the fusion group round to 16 bits is computed by short approximations from now on. The group outlives
** the values. */
void kern_values_allow_approx(struct kern_values *values, const struct pass_group *group);

/* Tensor t is read from memory: dense row-major. */
void kern_values_bind_mem(struct kern_values *values, const quern_tensor *t, kern_id mem);
/* Tensor t, read at exactly these indices, has this value (a reduction's result, a tile of a contraction). Until
** unbound. */
void kern_values_bind(struct kern_values *values, const quern_tensor *t, int rank, const struct pass_index *const *at,
                      kern_id value);
void kern_values_unbind(struct kern_values *values, const quern_tensor *t);

/* Sets variable var of the space to a scalar value. lanes > 1: lane i stands for value + i, for as many lanes, and only
** one variable at a time can be so; active (or KERN_NONE) is how many of the lanes count: the others are not read. */
void kern_values_set(struct kern_values *values, int var, kern_id value, int lanes, kern_id active);

/* Variable var, which is never set, stands for an index of other variables that lies within var's extent; these may be
** defined themselves, but not by var. Bound tensors and the indices of nodes are followed in terms of var, so that what
** is bound is found through reshapes; instructions are made from the index. */
void kern_values_define(struct kern_values *values, int var, const struct pass_index *index);

/* What follows may be forgotten at the matching leave: call around every loop and if that is opened. */
void kern_values_enter(struct kern_values *values);
void kern_values_leave(struct kern_values *values);

/* The value of t at these indices: lanes as set, or 1 when nothing in it depends on the vector variable. Loads what is
** bound to memory, computes the rest. The same tensor at the same indices is computed once a scope. */
kern_id kern_values_get(struct kern_values *values, const quern_tensor *t, int rank,
                        const struct pass_index *const *at);
/* An index as i64: a scalar, or a vector when it depends on the vector variable. */
kern_id kern_values_index(struct kern_values *values, const struct pass_index *index);
/* An index as i64 for the first lane only: a scalar. */
kern_id kern_values_first(struct kern_values *values, const struct pass_index *index);
/* A start of slice_at or update_at, a scalar tensor, clamped to 0 .. last: an i64 scalar. */
kern_id kern_values_start(struct kern_values *values, const quern_tensor *t, int64_t last);
/* The variable that has lanes, or -1. */
int kern_values_vector(const struct kern_values *values, int *lanes);

/* ---- checking, printing, running --------------------------------------------------------------------------------- */

/* Types, scopes, blocks, arguments of calls, and bounds: every index into a memory of known count is proven to lie
** inside it by intervals, or the kernel is refused; stores of different tasks to one OUT or WORK in one phase are
** proven apart where the index is affine. unproven (may be NULL) counts the stores for which no proof was found. */
quern_status kern_verify(const struct kern *kern, int *unproven) QUERN_NODISCARD;

/* The checks of kern_verify for the phase that is a library call, and for the call; OK when there is neither. */
quern_status kern_check_library_call(const struct kern *kern) QUERN_NODISCARD;

/* Finds which tasks of each phase the first rows need, from the memories' rows; of phases for which nothing can be
** proven, and of those that write memory without rows, all are. Scalar 0 is the number of rows, at most `most`. Before
** kern_finish. */
quern_status kern_find_batch_tasks(struct kern *kern, int64_t most) QUERN_NODISCARD;

/* The tasks of a phase that are run. */
int64_t kern_task_count(const struct kern_phase *phase, const int64_t *scalars);
/* Whether a phase is left out: it would copy a memory to itself. */
static inline bool kern_phase_is_idle(const struct kern_phase *phase, void *const *mems) {
  return phase->from != phase->to && mems[phase->from] == mems[phase->to];
}

/* A text that a person reads; golden files hold it. */
quern_status kern_print(struct base_str *str, const struct kern *kern) QUERN_NODISCARD;

/* How many launches there were: whoever runs a kernel counts it. */
struct kern_runs {
  uint64_t compiled, interpreted;
};
struct kern_launch {
  void *const *mems;      /* one per memory of the kernel */
  const int64_t *scalars; /* one per scalar */
  struct kern_runs *runs; /* NULL: not counted */
};
enum { KERN_CHECK_RACES = 1, KERN_REVERSE_TASKS = 2 };
/* Runs every phase. Reads and writes outside a memory give INTERNAL with the instruction. With KERN_CHECK_RACES also an
** element written by two tasks of one phase, or written by one and read by another. */
quern_status kern_interp(const struct kern *kern, const struct kern_launch *launch, int flags) QUERN_NODISCARD;

/* Bytes of scratch that one thread needs for the LOCALs of the largest phase, callees included. */
int64_t kern_scratch_bytes(const struct kern *kern);
/* The layout behind it, for one function: at (may be NULL; one per instruction) is given the byte of each LOCAL, and of
** each CALL the byte where the callee's scratch begins, from the start of the function's own. callees[k]: what this
** gave for function k, for those before it. Returns the bytes the function needs. */
int64_t kern_scratch_place(const struct kern *kern, size_t fn, const int64_t *callees, int64_t *at);

#endif
