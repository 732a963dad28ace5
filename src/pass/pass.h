/* pass/pass.h -- from a graph to fusion groups: simplify it, then decide which nodes make one kernel
** in:    the results a program must compute       out: groups in an order in which they can run
** keeps: every pass keeps every bit, unless the program asked for numerics=fast; groups form a DAG
** see:   docs/design/002-cpu-compiler.md
*/
#ifndef PASS_PASS_H
#define PASS_PASS_H
#include "ir/ir.h"

/* ---- passes on the graph (pass.c and a file each) --------------------------------------------------------------- */

enum pass_id {
#define PASS(NAME, text, description) PASS_##NAME,
#include "pass/passes.def"
#undef PASS
  PASS_COUNT
};

struct pass_info {
  const char *name; /* as in QUERN_PASS and in a program's options */
  const char *description;
};
extern const struct pass_info pass_table[PASS_COUNT];

struct pass_options {
  bool on[PASS_COUNT];
  bool approximate; /* numerics=fast: rules that change the last bits are allowed */
  bool
      no_convolutions; /* those that a library would do are computed by generated code: it has refused, or batches are dynamic */
  bool inference;      /* nothing will be differentiated: statistics may be folded into weights */
  int64_t loop_work;   /* multiplications of a contraction that leaves a loop, at least; 0: 2^14 */
  int64_t chunk_bytes; /* of logits of linear_cross_entropy at a time; 0: 64 MiB, 512 on GPUs */
  /* Nodes, by their places in ir_topo's order of the roots, that share no kernel with others: there is none for what
  ** they were fused to. */
  size_t n_unfused;
  const size_t *unfused;
  const struct base_target *target;
  /* True when the device has a kernel for the composite; it stays a node, and becomes a group of its own. NULL:
  ** none. */
  bool (*supports)(const struct base_target *target, const struct ir_node *composite);
};

/* All passes on at optimize=1; at 0 only inline, without which nothing runs, and col2im and thin_sums, which
** change the order of sums; then a list such as "-fuse,+layout" by name. */
quern_status pass_options_parse(struct pass_options *options, int optimize, const char *list) QUERN_NODISCARD;

/* The graph that is being compiled: results, replaced by each pass. */
struct pass_graph {
  quern_context *ctx;
  size_t n_roots;
  quern_tensor **roots; /* outputs, then new values of states */
};

struct pass_report { /* of one pass */
  size_t nodes_before, nodes_after;
  double seconds;
};

/* Runs the passes that are on, in the order of passes.def; the roots keep their types. Logs what changed. reports:
** PASS_COUNT. */
quern_status pass_run(struct pass_graph *graph, const struct pass_options *options,
                      struct pass_report *reports) QUERN_NODISCARD;

/* ---- index expressions (index.c): which element of a tensor a point of a space means ----------------------------- */

/* Integers in the variables of a space, in a normal form and interned: equal expressions are the same pointer.
** An expression is constant + sum of coefficient * atom; an atom is a variable, floor(e / n),
** e mod n, or e clamped to 0 .. n - 1, n > 0. */
struct pass_index {
  int64_t constant;
  int n_terms;
  struct pass_term {
    int64_t coef; /* not 0 */
    const struct pass_atom *atom;
  } * terms;      /* by the atoms' numbers */
  int64_t lo, hi; /* its least and greatest value over the space: may be wider than the truth, never narrower */
  uint32_t id;
};
enum pass_atom_kind { PASS_ATOM_VAR, PASS_ATOM_DIV, PASS_ATOM_MOD, PASS_ATOM_CLAMP };
struct pass_atom {
  enum pass_atom_kind kind;
  int var;                     /* of VAR */
  const struct pass_index *of; /* of DIV, MOD and CLAMP */
  int64_t by;
  uint32_t id;
};

/* Variables with extents: variable v runs over 0 .. extent[v] - 1. */
struct pass_space {
  struct base_heap *heap;
  struct base_arena arena;
  struct base_map indices, atoms;
  BASE_VEC(int64_t) extents;
  uint32_t n_indices, n_atoms;
  bool failed; /* no memory: what was built since is not to be used */
};

quern_status pass_space_new(struct pass_space **space, struct base_heap *heap) QUERN_NODISCARD;
void pass_space_free(struct pass_space *space);
int pass_space_add(struct pass_space *space, int64_t extent); /* the variable's number */

/* Builders never return NULL: without memory, space->failed is set and the result is a constant. */
const struct pass_index *pass_index_const(struct pass_space *space, int64_t value);
const struct pass_index *pass_index_var(struct pass_space *space, int var);
const struct pass_index *pass_index_add(struct pass_space *space, const struct pass_index *a,
                                        const struct pass_index *b);
const struct pass_index *pass_index_scale(struct pass_space *space, const struct pass_index *a, int64_t by);
const struct pass_index *pass_index_div(struct pass_space *space, const struct pass_index *a, int64_t by); /* floor */
const struct pass_index *pass_index_mod(struct pass_space *space, const struct pass_index *a, int64_t by);
const struct pass_index *pass_index_clamp(struct pass_space *space, const struct pass_index *a, int64_t n);

/* The row-major element number of a tensor's element, and back: out[k] is index k of element number flat. */
const struct pass_index *pass_index_flat(struct pass_space *space, int rank, const int64_t *dims,
                                         const struct pass_index *const *at);
void pass_index_unflat(struct pass_space *space, const struct pass_index *flat, int rank, const int64_t *dims,
                       const struct pass_index **out);

/* True when e = constant + sum of coef[v] * v: fills coef, one per variable of the space. */
bool pass_index_affine(const struct pass_space *space, const struct pass_index *e, int64_t *coef, int64_t *constant);
/* True when e is affine in var, others as they may be: its coefficient. */
bool pass_index_stride(const struct pass_space *space, const struct pass_index *e, int var, int64_t *stride);
bool pass_index_uses(const struct pass_index *e, int var);
/* e with variable v replaced by by[v] (NULL: kept), expressions of the same space. */
const struct pass_index *pass_index_replace(struct pass_space *space, const struct pass_index *e,
                                            const struct pass_index *const *by);
/* "3*i0 + i1 / 4" */
void pass_index_print(struct base_str *str, const struct pass_index *e);

/* For an op whose elements are elements of its source src_number (reshape, permute, broadcast, slice, flip, window, and
** elementwise ops): in[k] = index k of the source's element that result element `at` is made from. False for other
** ops. */
bool pass_index_source(struct pass_space *space, const struct ir_node *node, int src_number,
                       const struct pass_index *const *at, const struct pass_index **in);

/* ---- the dynamic batch (dynamic_batch.c): a number of rows that is given at each run ----------------------------- */

/* A tensor has rows when element number i belongs to row (i / stride) mod most, and depends on that row of the inputs
** that have the dynamic batch only; its stride is 0 when it depends on none of these. */
struct pass_dynamic_batch {
  int64_t most;
  struct base_arena arena;
  struct base_map strides; /* those that are not 0, by tensor */
  struct base_map graphs;  /* subgraphs that were met, with the strides of their params: each is looked at once */
  struct pass_dynamic_batch *outermost; /* that has them; NULL: this one */
};
void pass_dynamic_batch_init(struct pass_dynamic_batch *rows, struct base_heap *heap, int64_t most);
void pass_dynamic_batch_fini(struct pass_dynamic_batch *rows);
/* Sets the stride of a leaf, before pass_dynamic_batch_find. */
quern_status pass_dynamic_batch_set(struct pass_dynamic_batch *rows, const quern_tensor *t,
                                    int64_t stride) QUERN_NODISCARD;
/* Finds the strides of all tensors that the roots reach, subgraphs left out. UNSUPPORTED, with the op and its shapes,
** when a node would mix rows. */
quern_status pass_dynamic_batch_find(struct pass_dynamic_batch *rows, const struct pass_graph *graph) QUERN_NODISCARD;
/* Finds the strides in the body of a LOOP or WHILE that the roots reached; inside is new. */
quern_status pass_dynamic_batch_body(struct pass_dynamic_batch *inside, struct pass_dynamic_batch *rows,
                                     const struct ir_node *node) QUERN_NODISCARD;
int64_t pass_dynamic_batch_get(const struct pass_dynamic_batch *rows, const quern_tensor *t);
/* True when it has rows that follow each other, from the first element to the last. */
bool pass_dynamic_batch_is_outermost(const struct pass_dynamic_batch *rows, const quern_tensor *t);

/* ---- attention in place (attention_views.c): where a supported attention's operands and results lie -------------- */

/* Element (n, h, t, d) is element `at + n batch + h head + t row + d` of source number `place` of the composite, or of
** its result where it is written; place -1: there is none. */
struct pass_operand_view {
  int operand;
  int64_t at, batch, head, row;
};
enum {
  PASS_VIEW_Q,
  PASS_VIEW_K,
  PASS_VIEW_V,
  PASS_VIEW_Y,
  PASS_VIEW_DY,
  PASS_VIEW_DQ,
  PASS_VIEW_DK,
  PASS_VIEW_DV,
  PASS_VIEWS
};
struct pass_attention {
  int64_t batch, heads, kv_heads, queries, keys, width, value_width;
  bool causal, back;
  double scale;
  struct pass_operand_view views[PASS_VIEWS];
  int lse; /* the result that is lse; backward, the source */
};
/* Reads a node attention or attention.vjp without a mask, or what pass_attention_views makes of one; false of other
** nodes. */
bool pass_attention_read(const struct ir_node *composite, struct pass_attention *attention);
bool pass_operand_view_is_out(int view, bool back);

/* ---- convolutions that a library does (convolutions.c) ----------------------------------------------------------- */

enum { PASS_CONV_SPATIAL = 3 };
enum pass_conv_part { PASS_CONV_FORWARD, PASS_CONV_INPUT_GRAD, PASS_CONV_WEIGHT_GRAD, PASS_CONV_PARTS };

/* x is (sample, in.., channel), the weight (output, window.., channel of a group), the result or its gradient
** (sample, out.., output), dense. Forward computes the result of x and the weight, the gradient of x is computed of the weight and
** the result's gradient, that of the weight of x and the result's gradient. Axes beyond `spatial` are 1. */
struct pass_conv {
  enum pass_conv_part part;
  int spatial;
  int64_t groups, samples, channels, outputs;
  int64_t in[PASS_CONV_SPATIAL], out[PASS_CONV_SPATIAL], window[PASS_CONV_SPATIAL], step[PASS_CONV_SPATIAL],
      dilation[PASS_CONV_SPATIAL], pad[PASS_CONV_SPATIAL];
};
/* Reads a composite that pass_inline made of a convolution for a library; false of other nodes. */
bool pass_conv_read(const struct ir_node *composite, struct pass_conv *conv);
/* Whether the target's library is asked to do it. */
bool pass_conv_is_known(const struct base_target *target, const struct pass_conv *conv, quern_dtype dtype);

/* ---- skinny products (gemm.c) */

/* Whether a contraction is limited by reading one operand, a large matrix, since the other has few rows: GPUs have a
** kernel of their own for it (sched/gpu_dot_skinny.c). */
enum { PASS_SKINNY_ROWS = 8 };
bool pass_is_skinny_dot(const struct ir_node *dot);

/* ---- fusion groups (fuse.c): what one kernel computes ------------------------------------------------------------ */

enum pass_kind {
  PASS_KIND_VIEW,      /* out 0 is the bytes of in 0 under another shape: no kernel */
  PASS_KIND_MAP,       /* every element of the outs by itself */
  PASS_KIND_REDUCE,    /* reductions over the inner variables, in stages, with what is before, between and after them */
  PASS_KIND_DOT,       /* a contraction with its prologue, on its operands, and its epilogue */
  PASS_KIND_SCAN,      /* the anchor alone, with what is before it */
  PASS_KIND_SORT,      /* the anchor alone */
  PASS_KIND_SCATTER,   /* the anchor alone */
  PASS_KIND_CONTROL,   /* LOOP, WHILE, IF: its subgraphs are compiled as programs of their own */
  PASS_KIND_COMPOSITE, /* a composite that the device supports: it has a kernel for it */
  PASS_KIND_COUNT
};
extern const char *const pass_kind_names[PASS_KIND_COUNT];

/* A contraction that a library does instead of generated code, when the target may call one that does. Element (n, i,
** j) of a matrix is element `at + n batch + i row + j column` of a tensor in memory, which is NULL where there is none;
** no stride is negative, row or column is 1, and the other is no less than what lies between. */
struct pass_matrix {
  quern_tensor *tensor;
  int64_t at, batch, row, column;
};
enum pass_activation { PASS_ACT_NONE, PASS_ACT_RELU, PASS_ACT_GELU_TANH };
/* s[n, i, j] = sum over k of a[n, i, k] b[n, j, k] + add[n, i, j] + bias[j]; y = act(s), and aux, the auxiliary output,
** is the pre-activation s. Backward, y = s act'(aux), and aux is an input. What the graph rounds between the sum and y
** is not rounded. */
struct pass_gemm {
  int64_t batch, rows, columns, terms;
  struct pass_matrix a, b, y, add, aux;
  quern_tensor *bias; /* of `columns` elements; NULL: none */
  enum pass_activation act;
  bool back;
};

/* A tensor that a group writes, and where: at[k] is index k of the element that a point of the space writes.
** Every element is written by exactly one point of the space (REDUCE: points that differ in inner variables only write
** once, for a tensor whose indices use outer variables only). */
struct pass_out {
  quern_tensor *tensor;
  const struct pass_index **at;
};

struct pass_group {
  enum pass_kind kind;
  /* The node of DOT, SCAN, SORT, SCATTER, CONTROL, COMPOSITE; of REDUCE its first reduction; of MAP the maker of out
  ** 0. */
  struct ir_node *anchor;
  size_t n_nodes;
  struct ir_node **nodes; /* computed here, in increasing id; some may be computed in other groups as well */
  size_t n_ins, n_outs;
  /* Read from memory: leaves, or outs of earlier groups. Constants of one element are among them only where an op needs
  ** memory: sources of SORT, SCATTER, CONTROL and COMPOSITE, and what GATHER and the like pick from. */
  quern_tensor **ins;
  struct pass_out *outs;
  /* The space. MAP: one variable per dim of a tensor with one element per point, of out 0 where that is written.
  ** REDUCE: n_outer variables, then those that are reduced, both in the order of the first reduction's source. DOT:
  ** batch, rows, columns, then the terms, n_vars of each in vars[]. SCAN, SORT: the anchor's dims. Others: none
  ** (NULL). */
  struct pass_space *space;
  int n_outer;
  int vars[4];
  /* REDUCE: REDUCE and ARGREDUCE nodes in increasing id. stage k reads its source at stages[k].source, indices over all
  ** variables, and its result is only ever read at stages[k].result, over outer variables. DOT: one stage, the anchor:
  ** source is where operand 0 is read, other where operand 1 is, result over batch, rows and columns. */
  size_t n_stages;
  struct pass_stage {
    struct ir_node *node;
    const struct pass_index **source, **other, **result;
  } * stages;
  /* REDUCE: fused column reductions, over the outer variables in their row-major order, of what is computed at all
  ** points. Results are over the inner variables, and are read by nothing here but their epilogue: nodes that are made
  ** of them and of numbers, and are outs over the inner variables as well. Each is an out or is read by an epilogue
  ** node. */
  size_t n_column_reductions;
  struct pass_stage *column_reductions;
  const struct pass_gemm *gemm; /* of a DOT that a library does: ins and outs are what it names; NULL of others */
  double speedup, threshold;    /* estimated gain of the group over one kernel per node, and what it had to exceed */
  uint64_t hash;                /* equal for groups that differ in which tensors they read and write only */
};

struct pass_groups {
  struct base_heap *heap;
  struct base_arena arena;
  BASE_VEC(struct pass_group *) groups;
};

/* Groups that compute every root; a root that is a leaf or a constant has none. fuse off: one group per node, except
** that movement, constants and casts are computed where they are used, if the op can be. Leaves and constants of more
** than one element are read from memory. */
quern_status pass_fuse(struct pass_groups *groups, const struct pass_graph *graph,
                       const struct pass_options *options) QUERN_NODISCARD;
void pass_groups_fini(struct pass_groups *groups);
/* The number of a node among those that the group computes; n_nodes: it is none of them. */
size_t pass_group_find(const struct pass_group *group, const struct ir_node *node);

/* Checks what is said above: every point, index and order. */
quern_status pass_groups_verify(const struct pass_groups *groups, const struct pass_graph *graph) QUERN_NODISCARD;
quern_status pass_groups_print(struct base_str *str, const struct pass_groups *groups) QUERN_NODISCARD;
/* The layer whose states the group reads, by their names: the beginning, of that length, of the result; length 0: states
** without a name, and none, have none. */
const char *pass_group_layer(const struct pass_group *group, int *length);
/* One group in a line for messages: "a dot of layer conv1: %7 dot f32[8,16], %8 add f32[8,16]". The layer is what the
** names of the states that it reads have in common, up to a dot. */
void pass_group_describe(struct base_str *str, const struct pass_group *group);

/* An elementwise op on floats, and bools as 0 and 1, of those that expressions are recognized by the values of
** (epilogue.c); a for others. */
double pass_compute(enum ir_op op, double a, double b, double c);

#endif
