/* codegen/cg_int.h -- what the files of codegen/ share: types by name, templates, needs, and functions being printed
** Generated text names what it uses: types ("f32x16"), small functions of a type ("fma_f32x16", "cvt_i8x16_f32x16").
** cg_need finds these names in a text and puts the types and functions behind them into the unit's prelude, so that
** whoever prints a kernel prints names only.
*/
#ifndef CODEGEN_CG_INT_H
#define CODEGEN_CG_INT_H
#include "codegen/codegen.h"

/* An element type with lanes: scalars have 1. In memory and in registers f16, bf16 and f8 are their bits, as unsigned
** integers; bools in memory are u8. A vector of bools in registers is a vector of signed integers, 0 or -1, of any
** width; a scalar bool is an i32, 0 or 1. CG_CHAR is C's plain char, which some builtins insist on. */
struct cg_type {
  int dtype; /* a quern_dtype or CG_CHAR */
  int lanes;
};
enum { CG_CHAR = QUERN_DTYPE_COUNT };

int cg_size(int dtype); /* bytes of an element */
static inline int cg_bytes(struct cg_type t) { return cg_size(t.dtype) * t.lanes; }
quern_dtype cg_unsigned(int size); /* the integer of as many bytes */
quern_dtype cg_signed(int size);

/* "f32x16", or "f32" with one lane. */
void cg_type_add(struct base_str *str, struct cg_type type);

struct cg_emit;

/* ---- dialects (dialect.c) ---------------------------------------------------------------------------------- */

struct cg_dialect {
  const char *prelude;                 /* types, and what a small function begins with */
  const char *i64, *u64;               /* ends of literals */
  bool scalar;                         /* a vector is written lane by lane */
  const char *global;                  /* before the type that a pointer to memory points to */
  const char *table, *new_table;       /* before the elements of a table: as a parameter, and where it is defined */
  const char *function;                /* before the name of a function to be called */
  const char *shared;                  /* before the type that a pointer to shared memory points to */
  const char *barrier, *small_barrier; /* what a thread block waits at; what one of a single warp waits at */
};
const struct cg_dialect *cg_dialect(const struct cg_target *target);

/* Adds a phase of a kernel whose loop's body has been printed; and what stands at the end of a unit. */
void cg_gpu_phase(struct cg_unit *unit, const struct kern *kern, int phase, const struct cg_emit *e);
void cg_gpu_end(const struct cg_unit *unit, struct base_str *str);

/* ---- thread blocks (thread_block.c) --------------------------------------------------------------------------- */

/* The MEM or LOCAL that a memory is a vector of. */
kern_id cg_root(const struct kern_fn *fn, kern_id memory);
/* STORE and SCATTER. */
static inline bool cg_stores(const struct kern_inst *x) { return x->op == KERN_STORE || x->op == KERN_SCATTER; }
/* A LOCAL by its instruction, behind KERN_MAX_MEMS; all INs and OUTs that may lie in one place are one, others by their number. */
size_t cg_class(const struct kern_fn *fn, kern_id memory);
static inline size_t cg_classes(const struct kern_fn *fn) { return KERN_MAX_MEMS + 1 + fn->insts.n; }
/* In CUDA: whether all threads of a block have a task whenever one has: then its loop is the same for all, and the compiler knows. */
bool cg_is_uniform(const struct kern_phase *phase, struct cg_shape shape);
/* The exchange buffer of a thread block is shared memory through which lanes cross warps, in two halves. Elements of a half: one per thread,
** or, where nothing but HREDUCEs crosses warps, CG_WARP for each of those that follow each other. */
int cg_exchange_elements(const struct kern_fn *fn, int group, const struct cg_target *target);
/* Whether a thread of a thread block may load or overwrite there what another stored, or store what another loads. */
bool cg_needs_barrier(const struct kern_fn *fn, kern_id access, int group);

/* ---- SPMD: lanes that are threads (spmd.c) --------------------------------------------------------------------- */

void cg_barrier(struct cg_emit *e);
/* Waits where an access could meet one of another thread, and remembers it. */
void cg_guard(struct cg_emit *e, kern_id access);
/* Waits before a loop where something in it could meet what was done before it: then it need not wait in each iteration. */
void cg_before_loop(struct cg_emit *e, kern_id loop);
/* A block begins, of a loop or a condition; its other branch; its end. */
void cg_open_block(struct cg_emit *e, kern_id id);
void cg_other_block(struct cg_emit *e);
void cg_close_block(struct cg_emit *e);
/* What other iterations of a loop, or the other branch, have done is not known. */
void cg_forget(struct cg_emit *e);
/* The number of the thread's k-th lane of a value with n lanes. */
void cg_own_lane(struct cg_emit *e, int n, int k);
/* EXTRACT, LOW and HIGH in a thread block; HREDUCE anywhere. */
void cg_emit_exchange(struct cg_emit *e, kern_id id);
void cg_emit_hreduce(struct cg_emit *e, kern_id id);

/* ---- tables of CUDA (gpu_tables.c) --------------------------------------------------------------------------------- */

/* Whether a TABLE is a column of rows in shared memory; loads the row of its index, if it is the first of it; a lane of it. */
bool cg_has_row(const struct cg_emit *e, kern_id id);
void cg_load_row(struct cg_emit *e, kern_id id);
void cg_of_row(struct cg_emit *e, kern_id id, int lane);
/* The name of a TABLE's elements. (ops.c) */
void cg_table_name(const struct cg_emit *e, kern_id id, char name[32]);

/* ---- memory of GPUs (gpu_access.c) ------------------------------------------------------------------------------- */

void cg_gpu_load(struct cg_emit *e, kern_id id);
void cg_gpu_store(struct cg_emit *e, kern_id id);
/* What stands before the type that a pointer to a memory points to. (ops.c) */
const char *cg_qualifier(const struct cg_emit *e, kern_id id);

/* ---- templates ----------------------------------------------------------------------------------------------- */

/* An operand of a template: $a, $b, $c, $d. */
typedef void cg_operand(void *self, struct base_str *str, char which);

/* What a template is filled with; see template.c. */
struct cg_fill {
  struct cg_type d, a;
  cg_operand *operand; /* NULL: there are none */
  void *self;
  const struct cg_dialect *dialect; /* NULL: words that depend on it do not occur */
};
void cg_fill(struct base_str *str, const char *text, const struct cg_fill *with);

/* Puts the types and functions that a text names, and those they name, before it. */
quern_status cg_need(struct cg_unit *unit, const char *text, size_t n) QUERN_NODISCARD;

/* True when a name is new in the unit; it is remembered. */
quern_status cg_name_new(struct cg_unit *unit, const char *name, size_t n, bool *is_new) QUERN_NODISCARD;

/* A literal of an element, from its bits. */
void cg_literal(struct base_str *str, const struct cg_dialect *dialect, quern_dtype dtype, uint64_t bits);
/* A double as a literal: exact, whatever the locale. */
void cg_literal_f64(struct base_str *str, double x);

/* ---- printing a function --------------------------------------------------------------------------------- */

/* What is known of an i64, in all lanes. */
struct cg_range {
  int64_t lo, hi;
};

enum { CG_MADE = -2 };

struct cg_emit {
  struct cg_unit *unit;
  const struct kern *kern;
  const struct kern_fn *fn;
  struct base_str text;   /* of the function's body */
  struct base_str before; /* of a phase in CUDA: what stands before the loop over tasks */
  int indent;
  quern_status status;        /* the first failure that is not the text's */
  const char *const *callees; /* names, one per function of the kernel */
  const int64_t *scratch_at;  /* one per instruction: as kern_scratch_place tells */
  struct cg_range *ranges;    /* one per instruction */
  unsigned char *width;       /* one per instruction: bytes of a lane of a vector of bools */
  unsigned char *zeros;       /* one per instruction: an i64 is known to be a multiple of two to this */
  unsigned char *signs;       /* one per instruction: what is known of a float's sign (signs.c) */
  int64_t tasks;              /* of a phase: at most so many; 0: nobody knows */
  kern_id *loop;       /* one per instruction: the FOR of the innermost loop it stands in, KERN_NONE, or CG_MADE */
  int block_threads;   /* threads that run a task, each with its lanes of vectors; 1: one thread has all lanes */
  bool whole_warps;    /* in CUDA: all threads of a warp run each instruction */
  bool phase;          /* it is one: memories begin at multiples of CG_ALIGN bytes */
  bool shared;         /* of a thread block: scratch is shared memory */
  bool loaded, stored; /* of a thread block: since the last barrier, exposed memory */
  unsigned char *
      touched; /* of a thread block with SCATTERs: what was done to each memory since the last barrier, one per class; behind it,
                          ** the same for each open block, when it began. NULL: loaded and stored are all that is known */
  int depth;     /* of open blocks */
  bool busy[2];  /* of a thread block: halves of the exchange that a thread may still read */
  kern_id *made; /* of a constant that is made before its loop (CG_MADE): another such; of others: the equal one */
};

static inline const struct kern_inst *cg_inst(const struct cg_emit *e, kern_id id) { return &e->fn->insts.at[id]; }

/* A value with many lanes is several C vectors, its parts: of as many lanes as fit into a register. (value.c) */
int cg_width(const struct cg_emit *e, kern_id id);        /* bytes of a lane */
int cg_vector_lanes(const struct cg_emit *e, kern_id id); /* lanes of a vector */
int cg_own(const struct cg_emit *e, int lanes);           /* lanes that a thread has of so many */
int cg_vectors(const struct cg_emit *e, kern_id id);      /* parts that a thread has */
/* For GPUs: whether an i64 is an i32 in the text, because its range is known. */
bool cg_is_i32(const struct cg_emit *e, kern_id id);
struct cg_type cg_type_of(const struct cg_emit *e, kern_id id, int n); /* n lanes of it, as C has them */

/* Lanes lo .. lo + n - 1 of a value as an expression; of bools as masks of `width` bytes a lane. n is a power of two,
** lo a multiple of it. */
void cg_value(const struct cg_emit *e, struct base_str *str, kern_id id, int lo, int n, int width);
void cg_name(const struct cg_emit *e, struct base_str *str, kern_id id, int vector); /* of a vector */
void cg_memory(const struct cg_emit *e, struct base_str *str, kern_id id);           /* a pointer */

/* Lanes lo .. lo + n - 1 of an instruction's value in terms of its arguments. */
typedef void cg_piece(struct cg_emit *e, kern_id id, int lo, int n);

/* Declares the parts of a value, each made of pieces of at most n lanes. */
void cg_define(struct cg_emit *e, kern_id id, int n, cg_piece *piece);

void cg_indent(struct cg_emit *e);

/* Sets width, range and sign of an instruction from those before it. (value_facts.c) */
void cg_facts(struct cg_emit *e, kern_id id);
void cg_sign(struct cg_emit *e, kern_id id); /* the sign of these (signs.c) */

/* For GPUs (signs.c). A SELECT of the lesser that is always the second; a SCALE by w - 1.5 2^23: w, or KERN_NONE; one that makes
** nothing larger; a DIV of y or 1 by 1 + y that needs no care of large and small numbers. */
bool cg_is_second(const struct cg_emit *e, kern_id id);
kern_id cg_raised(const struct cg_emit *e, kern_id id);
bool cg_is_down(const struct cg_emit *e, kern_id id);
bool cg_is_share(const struct cg_emit *e, kern_id id);

/* Prints one instruction. (ops.c) */
void cg_instruction(struct cg_emit *e, kern_id id);

#endif
