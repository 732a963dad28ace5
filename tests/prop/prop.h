/* prop/prop.h -- random graphs and the properties they must have
** A graph is made of a seed alone: the same seed gives the same graph and the same leaves on every machine.
*/
#ifndef PROP_PROP_H
#define PROP_PROP_H
#include "ir/ir.h"

/* ---- random numbers and values (values.c) ------------------------------------------------------------ */

struct rng {
  uint64_t seed, next;
};

uint32_t rng_bits(struct rng *rng);
int rng_below(struct rng *rng, int n); /* 0 .. n - 1 */
bool rng_chance(struct rng *rng, int percent);

/* A dtype of that class. */
quern_dtype rng_dtype(struct rng *rng, enum base_dtype_class class);

/* n elements with zeros of both signs, ones, extremes, infinities and NaN among them; tame: small numbers
** only. */
void values_fill(struct rng *rng, quern_dtype dtype, size_t n, void *data, bool tame);

/* The elements of a leaf of that name in the graph of a seed. */
void values_of_leaf(uint64_t seed, const char *name, quern_dtype dtype, size_t n, void *data);

/* ---- generation (gen.c, gen_ops.c, gen_control.c, gen_rules.c) --------------------------------------- */

enum { GEN_COUNT = 48, GEN_RANK = 5, GEN_DEPTH = 2 }; /* elements and rank of a tensor, nested subgraphs: at most */

struct gen {
  quern_context *ctx;
  struct rng *rng;
  BASE_VEC(quern_tensor *) pool;
  int depth;                   /* of the subgraph being built; 0: the main graph */
  int *n_names;                /* of inputs so far */
  const struct ir_rule *plant; /* a pattern to build now and then besides those of ir_rules, or NULL */
};

/* Fills roots with a random graph of at least n_nodes nodes. plant may be NULL. */
quern_status gen_graph(quern_context *ctx, uint64_t seed, size_t n_nodes, const struct ir_rule *plant, size_t *n_roots,
                       quern_tensor ***roots) QUERN_NODISCARD;

/* Keeps a tensor for later use; one that is too large is dropped. Gives it back. */
quern_tensor *gen_keep(struct gen *g, quern_tensor *t);
quern_tensor *gen_make(struct gen *g, enum ir_op op, int n, quern_tensor *const *src, const struct ir_attrs *attrs);
#define GEN_MAKE(g, op, attrs, ...)                                                                                    \
  gen_make((g), (op), (int)(sizeof((quern_tensor *[]){__VA_ARGS__}) / sizeof(quern_tensor *)),                         \
           (quern_tensor *[]){__VA_ARGS__}, (attrs))

/* A tensor of a dtype class and of at least that rank, mostly a recent one. */
quern_tensor *gen_pick(struct gen *g, enum base_dtype_class class, int least_rank);
/* One with that type, made when there is none. */
quern_tensor *gen_pick_type(struct gen *g, quern_dtype dtype, int rank, const int64_t *dims);
quern_tensor *gen_pick_like(struct gen *g, const quern_tensor *t);
quern_tensor *gen_scalar(struct gen *g, quern_dtype dtype);
/* A leaf that may stand where the graph is being built. */
quern_tensor *gen_leaf(struct gen *g, quern_dtype dtype, int rank, const int64_t *dims);
quern_tensor *gen_const(struct gen *g, quern_dtype dtype, int rank, const int64_t *dims);
/* A constant filled with one of the numbers that rules look for, or an element of those bits. */
quern_tensor *gen_special(struct gen *g, quern_dtype dtype, int rank, const int64_t *dims);
quern_tensor *gen_full(struct gen *g, quern_dtype dtype, int rank, const int64_t *dims, const void *bits);
int gen_shape(struct gen *g, int64_t *dims, int least_rank);

/* x read as another dtype without making a NaN that arithmetic would not make. */
quern_tensor *gen_bitcast(struct gen *g, quern_tensor *x, quern_dtype dtype);

/* One random op; one instance of the left side of a pattern; one arrangement that a coded rule looks for. */
void gen_op(struct gen *g);
void gen_op_of(struct gen *g, enum ir_op op);
void gen_pattern(struct gen *g);
void gen_motif(struct gen *g);
void gen_control(struct gen *g, enum ir_op op);
/* The same with what control rules look for. */
void gen_control_motif(struct gen *g);

/* ---- properties (check.c, check_pass.c, check_autocast.c) ---------------------------------------------------------------------------- */

struct counts {
  uint64_t ops[IR_OP_COUNT];
  uint64_t *rules;    /* one a rule of ir_rules */
  uint64_t gradients; /* graphs whose gradient was built */
};

struct check {
  quern_context *ctx;
  uint64_t seed;
  bool gradient;               /* also build the gradient */
  const struct ir_rule *plant; /* a wrong rule to be found out, or NULL */
  const char *device, *target; /* look at programs for that device and target, not at the graph; or NULL */
  struct counts *counts;       /* NULL while shrinking */
};

/* OK when the graph has all properties; else the error names which one fails. */
quern_status check_graph(const struct check *check, size_t n, quern_tensor *const *roots) QUERN_NODISCARD;

/* The part of it that is about passes and groups (check_pass.c); values: those of the roots. */
quern_status check_passes(const struct check *check, size_t n, quern_tensor *const *roots,
                          void *const *values) QUERN_NODISCARD;

/* The part of it that is about mixed precision (check_autocast.c). */
quern_status check_autocast(const struct check *check, size_t n, quern_tensor *const *roots) QUERN_NODISCARD;

/* What the checks share: the elements of each root, in the context's arena; whether two evaluations have the same bits, NaNs being
** alike; a status with a name put before its message. */
quern_status check_evaluate(quern_context *ctx, uint64_t seed, size_t n, quern_tensor *const *roots,
                            void **dst) QUERN_NODISCARD;
quern_status check_same(quern_context *ctx, const char *what, size_t n, quern_tensor *const *roots, void *const *a,
                        void *const *b) QUERN_NODISCARD;
quern_status check_named(quern_status status, const char *what) QUERN_NODISCARD;

/* Graphs of one context as one program for a device; target: NULL: its own (check_device.c). */
struct seeded {
  uint64_t seed;
  size_t n;
  quern_tensor *const *roots;
};
quern_status check_device(const char *device, const char *target, quern_context *ctx, size_t n_graphs,
                          const struct seeded *graphs) QUERN_NODISCARD;

/* Reduces roots in place to few, small ones that still fail. */
void check_shrink(const struct check *check, size_t *n, quern_tensor **roots);

/* Counts the ops of a graph, subgraphs included; gives the number of nodes of the main graph. */
size_t check_count(quern_context *ctx, size_t n, quern_tensor *const *roots, struct counts *counts);

#endif
