/* sched/dot.h -- what the files of the contraction share
** y[b, m, n] = reduce over k of combine(x[b, m, k], w[b, n, k]): one flat variable for each of batch, rows, columns and
** terms (M, N and K of a GEMM), in a space of the kernel's own. Columns are what lanes run along; rows and columns may
** be swapped.
** see: dot.c (the loops), dot_operand.c (operands), dot_micro.c (micro-kernels), dot_pack.c, dot_epilogue.c (the
**      epilogue) other implementations: dot_scalar.c, dot_skinny.c, dot_split_k.c; gpu_dot.c, gpu_dot_skinny.c (GPUs)
*/
#ifndef SCHED_DOT_H
#define SCHED_DOT_H
#include "sched/sched_int.h"

/* The axes. Each is a variable of the kernel's space, flat; and each is once more two variables: DOT_INNER + axis, the
** innermost of the group's variables that it is made of, and DOT_OUTER + axis, all others: indices that use these have
** the axis split there. Behind them come the group's own variables, which stand for indices of the axes: epilogues are
** followed in terms of the group's variables, as fusion proved them. */
enum {
  DOT_BATCH,
  DOT_ROW,
  DOT_COL,
  DOT_TERM,
  DOT_AXES,
  DOT_OUTER = DOT_AXES,
  DOT_INNER = 2 * DOT_AXES,
  DOT_OWN = 3 * DOT_AXES,
  DOT_VARS = DOT_OWN + 2 * QUERN_MAX_RANK
};
struct dot_axis {
  int64_t size, inner; /* inner: the extent of the innermost variable; of terms, of the last dot.inner_terms */
};

/* Terms that are packed at a time: the block of the order of sums. Rows of packed A are a little longer, so that they
** do not fall into one set of the cache. */
enum { DOT_BLOCK = KERN_DOT_BLOCK, DOT_PACKED_ROW = DOT_BLOCK + 16 };

/* A tensor in memory whose elements lie at offset, which is affine in the rows or columns (own) and terms. */
struct dot_view {
  int mem;                         /* of the kernel; -1: there is no such view */
  const struct pass_index *offset; /* in elements */
  int64_t own, term;               /* strides; of a result: of columns (own) and rows (term) */
};

/* A tensor in memory whose elements lie at rows + terms, each an expression of its own: windows, whose im2col address
** is split so. */
struct dot_im2col {
  int mem; /* -1: there is none */
  const struct pass_index *rows, *terms;
};

/* One operand. */
struct dot_operand {
  const quern_tensor *tensor;
  const struct pass_index **at, **in_runs; /* in_runs: with all axes split */
  int own;                                 /* DOT_ROW or DOT_COL */
  unsigned split_axes;                     /* bit x: `at` uses the inner and outer variables of axis x */
  struct dot_view view;                    /* when it is read as it lies in memory, in the dtype of the accumulators */
  struct dot_im2col im2col;                /* the same where no view has the rows, but two expressions */
  bool packed;                             /* copied to scratch before it is used */
  bool reads_im2col;                       /* read by im2col */
  int64_t cost;                            /* of packing a vector */
  bool across;                             /* packing reads vectors along the dim that is not contiguous when packed */
};

/* A tensor that is computed into a workspace first. */
struct dot_materialized {
  const quern_tensor *tensor;
  int mem;
};

/* How the group's variables become axes: whether M and N are swapped; how many variables of the group's rows (of: 1) or
** columns (2) count as batch. */
struct dot_orientation {
  bool swap_mn;
  int hoisted, of;
};

struct dot {
  struct sched_job *job;
  struct pass_group group; /* the job's, over the kernel's space */
  struct sched_job inner;  /* the job with that group */
  struct base_arena arena;
  struct pass_space *space;
  const struct ir_node *node;
  int columns; /* which source of the node side b is */
  enum ir_reduce reduce;
  enum ir_combine combine;
  quern_dtype acc; /* of accumulators and of packed operands */
  int lanes;       /* of a vector of accumulators */
  struct dot_axis axis[DOT_AXES];
  int inner_terms;        /* how many variables of the terms count as innermost */
  int64_t batch, m, n, k; /* their sizes */
  int n_materialized;
  struct dot_materialized materialized[2];
  unsigned split_axes;           /* of result and outs: bit DOT_COL, where vectors of columns never cross a run's end */
  struct dot_operand a, b;       /* the sides of rows and of columns */
  const struct pass_index **own; /* what the group's variables stand for in result and outs */
  const struct pass_index **result; /* where the contraction's result is read, over the group's variables */
  const struct pass_index ***made;  /* where the outs are computed, over the group's variables */
  const struct pass_index ***outs;  /* where the outs are written, over the axes */
  struct dot_view c;                /* the out that sums are kept in; mem -1: scratch */
  bool bare;                        /* c is the only out, and is the sum itself */
  bool column_major_epilogue;       /* the first out is contiguous along rows: the epilogue has lanes along them */
  bool packs_a_once;                /* side a is packed in a phase of its own: see dot_pack_once.c */
  int a_once;                       /* the workspace that it is packed into */
  bool prepacked;                   /* side b lies packed where an in was: see dot_prepack.c */
  bool b_transposed;    /* micro-kernels read side b as it lies, terms contiguous, and transpose it in registers */
  int64_t k_splits;     /* split-K: c is a workspace of so many partial sums, one per block of terms; 0: no */
  int64_t k_split_size; /* elements of a split's partial sums */
  bool bytes;           /* see dot_bytes.c: k counts words of four terms, terms counts terms */
  bool unsigned_a, biased;
  int64_t terms;
  int mr, nv;                 /* rows and vectors of the register tile */
  int64_t m_strips, n_panels; /* M-strips of mr rows, N-panels of nv vectors: the last may be smaller */
  int64_t task_m_strips, task_n_panels, chunk_n_panels; /* of a task; packed at a time */
  int64_t strip_group; /* column-major epilogue: strips that are finished together, whole vectors of rows */
  int64_t batch_rows;  /* rows here for each of the dynamic batch's, which the axis of rows is made of; 0: it is not */
  const struct kern_fn *micro[2][2]; /* [smaller last strip][smaller last panel], or NULL */
  const struct kern_fn *transpose;
  const struct kern_fn *bias[2]; /* [smaller last panel], or NULL */
};

/* ---- dot_operand.c */

/* Gives the kernel its space, operands, outs and the workspaces of what is materialized. */
quern_status dot_setup(struct dot *d, struct sched_job *job) QUERN_NODISCARD;
void dot_fini(struct dot *d);
bool dot_is_movement(const struct ir_node *node);
/* Takes the workspaces of what is materialized back: nothing else has been added to the kernel since. */
void dot_drop_materialized(struct dot *d);
/* The memory that an operand lies in, moved or not, and its offset there, over flat axes; mem -1: it is computed.
** Strides are not given. */
struct dot_view dot_find_view(struct dot *d, const struct dot_operand *side);

/* ---- dot_alias.c */

/* Finds which outs may take the memory of which ins: of those that only the epilogue reads. Sums grow in
** scratch, not in an out, where that lets a state or a carry be updated in its place. */
quern_status dot_alias(struct dot *d) QUERN_NODISCARD;

/* ---- dot_micro.c */

/* The micro-kernel: the function that computes a register tile of rows x vectors sums over kb terms:
** memories a, b, c, and of biased bytes what the sums start with; scalars kb, a's row stride, b's term stride, c's row
** stride, add (0: c is written, 1: added to), the lanes of the last vector that count when `partial`, and the number of
** the first term. a's terms and b's and c's columns are contiguous. b's term stride is ldb whatever the scalar says,
** unless ldb is 0. Where side a is read by im2col, there is one memory per row instead of a, and terms lie where its
** im2col address has them. */
enum { DOT_KB, DOT_LDA, DOT_LDB, DOT_LDC, DOT_ADD, DOT_TAIL, DOT_PC, DOT_SCALARS };
const struct kern_fn *dot_micro_kernel(struct dot *d, int rows, int vectors, bool partial, int64_t ldb);

/* The micro-kernel for a b whose terms are contiguous, where the scalar is the stride of its columns; d->lanes
** columns. */
const struct kern_fn *dot_micro_kernel_transposed(struct dot *d, int rows);

/* acc after one more term. */
kern_id dot_term(const struct dot *d, struct kern_builder *b, kern_id acc, kern_id x, kern_id y);

/* ---- dot_pack.c */

/* memories src, dst; scalars src's row stride, dst's row stride, count, next: for i < count, the T x T block of src at
** column i * T becomes, transposed, that of dst at row i * T; what lies `next` elements after it is asked for. */
const struct kern_fn *dot_transpose(struct dot *d);
int dot_transpose_size(const struct dot *d);
/* Turns size values of as many lanes in registers. */
void dot_transpose_square(struct kern_builder *b, int size, kern_id *x);

/* Packs kb terms from term pc on of rows first .. end - 1 of side a, `most` at most, as rows of length DOT_PACKED_ROW. */
void dot_pack_rows(struct dot *d, struct kern_builder *b, struct kern_values *values, kern_id dst, kern_id first,
                   kern_id end, int64_t most, kern_id pc, int64_t kb);
/* Packs kb terms of a panel of side b: as many vectors, the last with tail lanes; other lanes are 0. */
void dot_pack_panel(struct dot *d, struct kern_builder *b, struct kern_values *values, kern_id dst, kern_id panel,
                    int vectors, int tail, kern_id pc, int64_t kb);

/* ---- dot_epilogue.c */

/* Sets an axis, for indices that are cut as said: a scalar, or the first of as many lanes. */
void dot_set(const struct dot *d, struct kern_builder *b, struct kern_values *values, unsigned cut, int axis,
             kern_id value, int lanes, kern_id active);
/* Sets an axis that is split, by its outer and inner variable. */
void dot_set_parts(struct kern_values *values, int axis, kern_id outer, kern_id inner, int lanes, kern_id active);
/* Memory from the element on that the variables stand for. */
kern_id dot_view_mem(struct kern_builder *b, struct kern_values *values, const struct dot_view *place);

/* Values for one function: ins and what is materialized are bound to memory. */
quern_status dot_values(struct dot *d, struct kern_builder *b, struct kern_values **values) QUERN_NODISCARD;

/* The outs at the point that is set, from the sum there, `active` lanes of which count (KERN_NONE: all). */
void dot_finish(struct dot *d, struct kern_builder *b, struct kern_values *values, kern_id sum, kern_id active);

/* ---- dot_materialize.c */

/* The phases that compute what is materialized. */
quern_status dot_materialize(struct dot *d) QUERN_NODISCARD;

/* Computing rows of a tensor into memory. */
struct dot_copy {
  struct dot *d;
  struct sched_job job;
  struct pass_group group; /* the job's, over the space */
  struct kern_builder *b;
  struct kern_values *values;
  struct pass_space *space;
  const quern_tensor *tensor, *from;           /* from: whose values are copied, what is padded or the tensor itself */
  const struct pass_index *at[QUERN_MAX_RANK]; /* over the dims of from */
  const struct ir_node *pad;                   /* or NULL */
  int last;                                    /* the axis that rows lie along */
  kern_id to;
};
/* The axis that rows are said to lie along: the last of more than one element. */
int dot_copy_axis(const quern_tensor *t);
quern_status dot_copy_begin(struct dot_copy *f, struct dot *d, const quern_tensor *t,
                            struct kern_builder *b) QUERN_NODISCARD;
/* Row number `row` of the tensor, to element `at` of that memory on. */
void dot_copy_row(struct dot_copy *f, kern_id row, kern_id to, kern_id at);
void dot_copy_end(struct dot_copy *f);

/* ---- dot_direct.c */

/* Windows, few terms and rows. */
bool dot_is_direct(struct dot *d);
quern_status dot_direct(struct dot *d) QUERN_NODISCARD;
/* Windows, few sums of rows of terms, and a batch whose innermost variable runs along the windows' positions. */
bool dot_is_direct_back(struct dot *d);
quern_status dot_direct_back(struct dot *d) QUERN_NODISCARD;

/* ---- dot_choose.c */

/* The product of the extents of a group's variables, n from the first. */
int64_t dot_extents(const struct pass_group *group, int first, int n);
/* From the layout of the group's first out; but windows are rows where what they meet is packed ahead. */
quern_status dot_choose_orientation(const struct sched_job *job, struct dot_orientation *turn) QUERN_NODISCARD;

/* True when an operand is windows of something, moved. */
bool dot_has_windows(const struct pass_group *group, const quern_tensor *t);

/* The register tile, what is packed, and how the work is cut into tasks. A schedule that has numbers is followed. */
void dot_sizes(struct dot *d);

/* ---- dot_bytes.c */

/* Makes it a contraction of bytes when it is one and the target has dot4. */
quern_status dot_find_bytes(struct dot *d) QUERN_NODISCARD;

/* Where packing stands: word number `at`, of which lanes follow each other; cut: some may lie behind the last term. */
struct dot_word {
  kern_id at;
  int lanes;
  bool partial;
};
/* The words of a side at the point that is set, but for the terms. */
kern_id dot_words(struct dot *d, struct kern_builder *b, struct kern_values *values, const struct dot_operand *side,
                  const struct dot_word *word, int lanes);
/* The function that gives what the sums of a packed panel start with. */
const struct kern_fn *dot_bias(struct dot *d, int vectors);

/* ---- dot_split_k.c */

/* Split-K: makes c a workspace with one partial sum per block of terms. */
void dot_make_split_k(struct dot *d);
/* Split-K: the phase that adds the partial sums in order, and makes the outs. */
quern_status dot_add_split_k(struct dot *d) QUERN_NODISCARD;

/* A few sums of very many terms: blocks of terms side by side in lanes. */
bool dot_is_inner(const struct dot *d);
quern_status dot_inner(struct dot *d) QUERN_NODISCARD;

/* ---- dot_prepack.c */

/* Elements of all of side b when packed, and where a panel of a block of kb terms begins. */
int64_t dot_packed_count(const struct dot *d);
kern_id dot_packed_at(const struct dot *d, struct kern_builder *b, kern_id batch, kern_id panel, kern_id pc,
                      int64_t kb);

/* ---- dot_pack_once.c */

/* Whether side a, which is packed, is the same in all of the batch, and not too large to be packed as a whole. */
bool dot_can_pack_once(const struct dot *d);
/* Adds the workspace that it is packed into; and the phase that packs it. */
void dot_make_pack_once(struct dot *d);
quern_status dot_pack_once(struct dot *d) QUERN_NODISCARD;
/* Memory from the first row of a strip, in the block of terms that begins at pc. */
kern_id dot_packed_once_at(const struct dot *d, struct kern_builder *b, kern_id strip, kern_id pc);

/* ---- dot_skinny.c */

/* Few rows, and a large side b as it lies. */
bool dot_is_skinny(const struct dot *d);
quern_status dot_skinny(struct dot *d) QUERN_NODISCARD;

/* ---- gpu_dot.c */

/* On a GPU: large enough for tiles. */
bool dot_is_tiled(const struct dot *d);
quern_status gpu_dot(struct dot *d) QUERN_NODISCARD;

/* ---- gpu_dot_skinny.c */

/* On a GPU: few rows by a large matrix, whose reading is what takes time. */
bool dot_is_gpu_skinny(const struct dot *d);
quern_status gpu_dot_skinny(struct dot *d) QUERN_NODISCARD;

/* ---- dot_scalar.c */

/* The sum over terms lo .. hi - 1, one chain, at the point that is set. */
kern_id dot_chain(struct dot *d, struct kern_builder *b, struct kern_values *values, kern_id lo, kern_id hi);

/* Scalar loops in the same order. */
quern_status dot_scalar(struct dot *d) QUERN_NODISCARD;

#endif
