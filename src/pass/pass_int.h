/* pass/pass_int.h -- what the files of pass/ share */
#ifndef PASS_PASS_INT_H
#define PASS_PASS_INT_H
#include "pass/pass.h"

/* ---- passes on the graph ---------------------------------------------------------------------------------- */

typedef quern_status pass_function(struct pass_graph *graph, const struct pass_options *options);
pass_function pass_pooling, pass_chunk, pass_inline, pass_constant_folding, pass_simplify, pass_layout, pass_batchnorm,
    pass_attention_views, pass_loop_merge, pass_loops, pass_loop_operands, pass_col2im, pass_thin_sums;
/* Splits concatenations of more sources than a kernel can have; always done. */
pass_function pass_split;

/* Visits every node that the roots reach, and those of subgraphs of control nodes; a control node is made anew around
** its new subgraphs and not visited itself. */
struct pass_subgraphs {
  quern_context *ctx;
  ir_visit *visit; /* of the nodes; gets user */
  void *user;
  struct pass_replacements *swaps; /* NULL: none */
  /* Gives the results of a control node, whose subgraphs have been visited and are in attrs; NULL: the node on them. */
  quern_status (*control)(struct pass_subgraphs *deep, struct ir_node *node, quern_tensor *const *src,
                          const struct ir_attrs *attrs, quern_tensor **out);
  /* Before and after the nodes of a graph are visited, those of a subgraph between; NULL: nothing. */
  quern_status (*begin)(struct pass_subgraphs *deep, size_t n, quern_tensor *const *roots, size_t *mark);
  void (*end)(struct pass_subgraphs *deep, size_t mark);
  struct base_map graphs; /* what became of subgraphs */
  struct base_arena arena;
};
/* What a visit wants replaced, of the same type, when all nodes of the graph it is in have been visited: where it met
** the tensor it did not know yet what to put there. `to` does not depend on `from`. */
struct pass_replacements {
  struct base_heap *heap;
  BASE_VEC(struct pass_replacement {
    const quern_tensor *from;
    quern_tensor *to;
  })
  list;
};
quern_status pass_subgraphs(struct pass_graph *graph, ir_visit *visit, void *user) QUERN_NODISCARD;
/* Visits like pass_subgraphs, then makes the replacements that the visit asked for. */
quern_status pass_subgraphs_replace(struct pass_graph *graph, ir_visit *visit, void *user,
                                    struct pass_replacements *swaps) QUERN_NODISCARD;
/* Visits with all that is set but ctx, graphs and arena. */
quern_status pass_subgraphs_control(struct pass_graph *graph, const struct pass_subgraphs *how) QUERN_NODISCARD;
/* Visits one subgraph, as part of a visit that is under way. */
quern_status pass_subgraphs_one(struct pass_subgraphs *deep, const struct ir_graph *graph,
                                const struct ir_graph **out) QUERN_NODISCARD;

/* How often each node of an order is used by nodes and roots, by place. The caller frees order->n items. */
quern_status pass_count_users(const struct pass_graph *graph, const struct ir_order *order,
                              int **users) QUERN_NODISCARD;

/* What a GATHER from src becomes, or NULL when it stays; the poison with the error recorded (gather.c). */
quern_tensor *pass_move_gather(struct ir_node *node, quern_tensor *const *src);
/* What a SCATTER into src becomes, or NULL when it stays; the poison with the error recorded. */
quern_tensor *pass_move_scatter(struct ir_node *node, quern_tensor *const *src);

/* Replaces a convolution or its gradient by what a library does of it (convolutions.c); *placed: whether it does. */
quern_status pass_place_convolution(const struct pass_options *options, const struct ir_node *node,
                                    quern_tensor *const *src, quern_tensor **out, bool *placed) QUERN_NODISCARD;

/* What WINDOW, COL2IM, CONCAT and RESHAPE of permutes become, a permute, or NULL when they stay; the poison with the error recorded
** (layout_sink.c). */
quern_tensor *pass_sink_window(const struct ir_node *node, quern_tensor *x);
quern_tensor *pass_sink_col2im(const struct ir_node *node, quern_tensor *x);
quern_tensor *pass_sink_concat(const struct ir_node *node, quern_tensor *const *src);
quern_tensor *pass_sink_reshape(const struct ir_node *node, quern_tensor *x);
/* t as it is under that permute, which an elementwise op with both then sinks through; NULL: it is not worth it. any: also where t
** itself is permuted for that, once. */
quern_tensor *pass_unpermute(quern_tensor *t, const quern_tensor *permuted, bool any);

/* ---- fusion: kinds of ops (classify.c) --------------------------------------------------------------------- */

enum pass_class {
  PASS_CLASS_LEAF,  /* in memory, or a constant */
  PASS_CLASS_MOVE,  /* an element of a source, or made of nothing */
  PASS_CLASS_MATH,  /* computed from elements of sources */
  PASS_CLASS_ANCHOR /* needs a kernel of its own kind */
};
struct pass_op {
  enum pass_class class;
  int cost;            /* of one element; an addition is 1 */
  enum pass_kind kind; /* of anchors */
  bool elementwise;    /* an element is made of those of the sources in the same place */
};
extern const struct pass_op pass_ops[IR_OP_COUNT];

/* Nothing is moved across a CHECKPOINT. */
static inline bool pass_is_elementwise(const struct ir_node *node) {
  return pass_ops[node->op].elementwise && node->op != IR_CHECKPOINT;
}

enum {
  PASS_CHEAP = 8,        /* what costs no more is computed again rather than stored */
  PASS_EXPENSIVE = 16,   /* never computed twice */
  PASS_MOST_NODES = 128, /* of a group that compute; of all nodes that an element takes where it is used */
  PASS_MOST_READS = 24,
  PASS_MOST_OUTS = 16,
  PASS_MOST_CONCAT = 96, /* sources of one concatenation */
  PASS_MOST_VARS = 2 * QUERN_MAX_RANK
};

/* True when the op reads that source at indices known at run time only, or not at all: it must be in memory. */
bool pass_needs_memory(const struct ir_node *node, int src);
/* True when the op takes that source as one number for all elements: a seed, a start. A kernel that computes it from
** tiles or rows of its own does not have it in time. */
bool pass_is_number(const struct ir_node *node, int src);
/* True when the result is the bytes of source 0 under another type. */
bool pass_is_view(const struct ir_node *node);
/* A cast from a float dtype to a wider one: exact, and cheaper to make again than to keep. */
bool pass_is_widening(const struct ir_node *node);
/* True of what is read from memory though no group writes it: leaves, constants of other than one element. */
bool pass_is_given(const quern_tensor *t);
bool pass_is_leaf(const struct ir_node *node);

/* As pass_index_source for every op that is computed at a point; false of sources that need memory. Indices of what is
** read under a condition (PAD, CONCAT) are kept inside. */
bool pass_index_of_source(struct pass_space *space, const struct ir_node *node, int src,
                          const struct pass_index *const *at, const struct pass_index **in);

/* The variables of a space that an out's indices run over. */
enum pass_cover { PASS_COVER_NONE, PASS_COVER_OUTER, PASS_COVER_ALL };
/* Which points of the group's space write each element of t exactly once when a point writes the element at `at`: all,
** or those of the outer variables (of DOT: those that are not terms); or neither. */
enum pass_cover pass_index_covers(struct pass_space *space, int n_vars, int n_outer, const quern_tensor *t,
                                  const struct pass_index *const *at);

/* The flat index of consecutive variables first .. end - 1, row-major. */
const struct pass_index *pass_index_of_vars(struct pass_space *space, int first, int end);

/* ---- fusion: clusters become groups (fuse.c, fusion_walk.c, fusion_groups.c) ------------------------------- */

enum { FUSE_MOST_CLUSTERS = 4 };

/* What is known of a node, by its place in the order. */
struct fuse_node_info {
  int home;                     /* the cluster it is computed in for others to read; -1: computed wherever it is used */
  const struct pass_index **at; /* its indices at a point of that cluster's space */
  int users;
  bool root, needed;
  bool unfused;           /* it is to share no kernel with others */
  int outside_users;      /* nodes of other clusters that use it, as it seems */
  uint32_t recomputed_in; /* the epoch of a group that computes it though its home does too */
  int work, size, reads;  /* of computing one element where it is used: cost, nodes, tensors read */
  int n_clusters, clusters[FUSE_MOST_CLUSTERS]; /* clusters that it is computed from, highest level first */
  int last_map, last_row, last_column;          /* the latest cluster that reads it: MAP; REDUCE, by its fastest axis */
  bool inside;                                  /* known in its home only, which never writes it */
  bool is_column_reduction; /* it is one of its home's column reductions: known when all points are */
  int family;               /* of reductions over as many rows of as many terms that meet; -1: none */
  uint32_t epoch;           /* of the walk that met it */
  int visit;                /* and its first visit there */
};

struct fuse_stage {
  struct ir_node *node;
  const struct pass_index **source, **other, **result;
};

/* A fusion cluster: nodes that will be one kernel, a fusion group, once nothing joins it any more. */
struct fuse_cluster {
  enum pass_kind kind;
  struct ir_node *anchor;
  struct pass_space *space;
  int n_vars, n_outer, vars[4];
  int64_t outer, inner;     /* points: of outer and of inner variables */
  const quern_tensor *like; /* a tensor with one element per point, and its indices */
  const struct pass_index **like_at;
  const struct pass_index *flat_outer, *flat_inner;
  struct pass_gemm *gemm; /* DOT: what a library does, so far; NULL: code is generated */
  bool swap_mn;           /* its operands are swapped: the rows of the product are the cluster's columns */
  bool narrows;           /* operands are read through casts from dtype narrow */
  quern_dtype narrow;
  bool unfused; /* nothing joins it */
  bool wide;    /* REDUCE: few long rows */
  bool column;  /* REDUCE: the fastest axis is not reduced */
  BASE_VEC(struct fuse_stage) stages, column_reductions;
  int level;             /* larger than that of every cluster it reads from */
  BASE_VEC(int) readers; /* clusters that read from it */
  int size, n_roots;     /* computing nodes, and roots among them */
  BASE_VEC(const quern_tensor *) reads;
  /* Tensors that it reads in addition, at most, because nodes that it reads are computed where they are used
  ** (column_reductions.c); and 1 + the last cluster with such nodes. */
  int more, since;
  BASE_VEC(uint32_t) needed; /* places of nodes that others read */
  uint32_t epoch;
  int raised;               /* its level if what is being tried is done */
  struct pass_group *group; /* once built */
};

/* A family of reductions whose results meet in one expression, found before fusion begins: they belong into one
** cluster. */
struct fuse_family {
  int same;             /* a family it was joined to, or itself */
  int64_t outer, inner; /* rows, and terms of each */
  int cluster;          /* the latest with one of them; -1: none */
};

struct fuse_visit {
  uint32_t position;
  int next;    /* visit of the same node at other indices; -1: none */
  size_t at;   /* in fuse.indices */
  bool scalar; /* it is one number for all points: pass_is_number */
};

struct fuse {
  quern_context *ctx;
  struct base_heap *heap;
  const struct pass_graph *graph;
  const struct pass_options *options;
  struct pass_groups *groups;
  struct ir_order order;
  struct fuse_node_info *infos;
  BASE_VEC(struct fuse_cluster *) clusters;
  BASE_VEC(struct fuse_family) families;
  uint32_t epoch;
  /* of a walk */
  BASE_VEC(struct fuse_visit) visits;
  BASE_VEC(const struct pass_index *) indices;
  BASE_VEC(const quern_tensor *) reads;
  BASE_VEC(int) before; /* clusters that it reads from */
  BASE_VEC(int) stack, pending;
  /* of fuse_column_reductions on GPUs: who reads node i, uses[from[i]] .. uses[from[i + 1] - 1], places in the order */
  const uint32_t *from, *uses;
};

static inline struct fuse_node_info *fuse_info_of(const struct fuse *f, const quern_tensor *t) {
  return &f->infos[ir_order_find(&f->order, t->node)];
}

/* How a walk looks at what it meets. */
enum fuse_mode {
  FUSE_POINT,   /* anything may be computed here */
  FUSE_OPERAND, /* the prologue of a contraction: hardly more than movement */
  FUSE_MATRIX,  /* an operand of a contraction that a library does: movement that leaves a matrix in memory */
  FUSE_ALONE    /* nothing may be written but the anchor */
};
struct fuse_walk {
  struct fuse_cluster *cluster;
  int number; /* of the cluster */
  enum fuse_mode mode;
  bool fits;                   /* everything can be computed at the points of the cluster */
  bool own;                    /* it reads what the cluster computes */
  ptrdiff_t force;             /* when it does not fit: the place of a node that must be in memory first, or -1 */
  int concat_sources;          /* of the concatenations met, each as often as it is met at other indices */
  int side;                    /* of FUSE_MATRIX: the operand */
  const quern_tensor *blocker; /* and when it does not fit: what would be in memory, but is no matrix there */
};

/* Walks from t at `at` to what is in memory or known in the cluster; the visits, reads and clusters before are in f. */
quern_status fuse_walk(struct fuse *f, struct fuse_walk *walk, const quern_tensor *t,
                       const struct pass_index *const *at) QUERN_NODISCARD;
/* Nodes and reads of computing a node where it is used, counted exactly. */
quern_status fuse_measure(struct fuse *f, const struct ir_node *node, int *size, int *reads) QUERN_NODISCARD;
/* False when the cluster cannot read from all clusters of f->before. */
bool fuse_can_follow(struct fuse *f, int cluster);
/* The cluster takes over what the walk found; what others may want gets its home there. */
quern_status fuse_commit(struct fuse *f, const struct fuse_walk *walk) QUERN_NODISCARD;

/* ---- fusion: contractions that a library does (gemm.c, epilogue.c) ----------------------------------------- */

/* Whether the target may call a library for it. */
bool pass_is_gemm(const struct base_target *target, const struct ir_node *dot);
/* Movement that may leave a matrix: of one source. */
bool pass_is_plain_movement(const struct ir_node *node);
/* Permutes operands of such contractions that would be no matrices even if they were in memory; always done
** (gemm_operands.c). */
pass_function pass_gemm_operands;
/* Whether both operands of a new cluster are casts from the same 16-bit dtype, which is then what the library takes;
** and whether a node is such a cast. */
void fuse_find_narrow(const struct fuse *f, struct fuse_cluster *cluster, const struct ir_node *dot);
bool fuse_is_narrowing_read(const struct fuse_cluster *cluster, const struct ir_node *node);
/* Whether t lies between the contraction and what it reads. */
bool fuse_is_between(const struct fuse_cluster *cluster, const quern_tensor *t);
/* Whether t is read from memory; all else is computed. */
bool fuse_gemm_reads(const struct pass_gemm *gemm, const quern_tensor *t);
/* What t at these indices is as operand `side` of the cluster's contraction, if it is a matrix that lies in memory. */
bool fuse_operand(const struct fuse_cluster *cluster, const quern_tensor *t, const struct pass_index *const *at,
                  int side, struct pass_matrix *matrix);
/* What t at these indices is as the result of the cluster's contraction, or as a matrix added to it. */
bool fuse_result(const struct fuse_cluster *cluster, const quern_tensor *t, const struct pass_index *const *at,
                 struct pass_matrix *matrix);
/* Whether t is all of a vector along the rows (part 1) or columns (part 2), in their order. */
bool fuse_vector(const struct fuse_cluster *cluster, const quern_tensor *t, const struct pass_index *const *at,
                 int part);
/* Whether an operand that is read where it is no matrix may be copied to be one: it would be, and is not much
** larger. */
bool fuse_may_copy(const struct fuse *f, const struct fuse_walk *walk, const struct ir_node *dot);
/* cluster->gemm of a new cluster from its stage; none when the operands do not go together. */
quern_status fuse_make_gemm(struct fuse *f, struct fuse_cluster *cluster) QUERN_NODISCARD;
/* Computes t at these indices in such a cluster, in place of what it computed so far, if the library can, which *joined
** reports.
** wanted: a tensor that must be in memory for that, and then it is to be tried again; or NULL. */
quern_status fuse_extend_gemm(struct fuse *f, int number, const quern_tensor *t, const struct pass_index *const *at,
                              bool *joined, const quern_tensor **wanted) QUERN_NODISCARD;
/* What is left of a cluster's gemm when only these outs are needed. */
quern_status fuse_trim_gemm(const struct fuse *f, const struct fuse_cluster *cluster,
                            const struct pass_gemm **gemm) QUERN_NODISCARD;

/* Clusters that only reduce columns join clusters that have the rows (column_reductions.c). Called when all nodes have
** been taken. */
quern_status fuse_column_reductions(struct fuse *f) QUERN_NODISCARD;

/* Finds the families of reductions (reduction_families.c). */
quern_status fuse_find_families(struct fuse *f) QUERN_NODISCARD;
/* The family of a node that has one. */
struct fuse_family *fuse_family_of(struct fuse *f, const struct fuse_node_info *info);

/* f->groups from the clusters, once every root has a home (fusion_groups.c). */
quern_status fuse_build(struct fuse *f) QUERN_NODISCARD;
/* Gives group->ins their order and the group its hash: the same for groups that differ in the tensors only (hash.c). */
quern_status pass_group_number(struct pass_groups *groups, struct pass_group *group) QUERN_NODISCARD;
/* Estimates the gain of a group over one kernel per node (estimate.c). */
void pass_group_estimate(struct pass_group *group);

#endif
