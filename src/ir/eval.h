/* ir/eval.h -- what the rules of the reference evaluator share; private to ir/eval*.c
** A rule is a function eval_<OP>: it finds the elements of the node's sources and fills those of its results.
** Everything is dense and row-major. Slow and plain on purpose: a rule reads like its equation in ops.def.
*/
#ifndef IR_EVAL_H
#define IR_EVAL_H
#include "ir/ir.h"

/* One call of ir_eval. */
struct eval_run {
  quern_context *ctx;
  size_t n_bindings;
  const struct ir_binding *bindings;
  bool check;              /* an index out of range is an error */
  uint64_t noise;          /* of ir_eval_perturbed; 0: none */
  int64_t debug;           /* QUERN_DEBUG */
  struct base_arena arena; /* of the plans */
  struct eval_plan *plans; /* one per subgraph met so far */
};

/* One node to be evaluated. */
struct eval_call {
  struct eval_run *run;
  const struct ir_node *node;
  const void *const *params; /* the operands of the subgraph the node stands in */
  const void *const *src;    /* the elements of each source */
  void *const *dst;          /* room for the elements of each result; of a leaf that lends, for none */
  const void *lent;          /* set by a leaf that lends: its elements, where they lie */
};

typedef quern_status eval_rule(struct eval_call *call);

#define OP(NAME, ...) eval_rule eval_##NAME;
#include "ir/ops.def"
#undef OP

/* dst[i] = the elements of result i of a subgraph applied to args. */
quern_status eval_graph(struct eval_run *run, const struct ir_graph *graph, const void *const *args,
                        void *const *dst) QUERN_NODISCARD;

/* ---- elements --------------------------------------------------------------------------------------- */

/* An element of any dtype: f of floats, i of integers and bools. */
union eval_scalar {
  double f;
  uint64_t i;
};

union eval_scalar eval_load(quern_dtype dtype, const void *data, int64_t i);
void eval_store(quern_dtype dtype, void *data, int64_t i, union eval_scalar x);

/* An operation on two elements of one dtype. */
struct eval_pair {
  double (*f)(double a, double b);
  uint64_t (*i)(quern_dtype dtype, uint64_t a, uint64_t b);
};
extern const struct eval_pair eval_reduce_pairs[IR_REDUCE_COUNT]; /* but set */
extern const struct eval_pair eval_combine_pairs[IR_COMBINE_COUNT];

union eval_scalar eval_apply(const struct eval_pair *pair, quern_dtype dtype, union eval_scalar a, union eval_scalar b);

/* True when a comes before b in increasing order; NaN is greatest, -0 equals 0. */
bool eval_before(quern_dtype dtype, union eval_scalar a, union eval_scalar b);

/* A sum, product, maximum or minimum on its way: wide, one term after another, rounded when stored. */
struct eval_acc {
  union eval_scalar value;
  bool any; /* false: of nothing yet */
};

void eval_acc_add(struct eval_acc *acc, quern_dtype dtype, enum ir_reduce reduce, union eval_scalar x);
void eval_acc_store(const struct eval_acc *acc, quern_dtype dtype, enum ir_reduce reduce, void *data, int64_t i);

/* ---- places ----------------------------------------------------------------------------------------- */

/* The number of the element at index, in row-major order. */
static inline int64_t eval_offset(const quern_tensor *t, const int64_t *index) {
  int64_t offset = 0;
  for (int k = 0; k < t->rank; k++) offset = offset * t->dims[k] + index[k];
  return offset;
}

/* Moves index to the next element in row-major order; from the last to the first. */
static inline void eval_step(const quern_tensor *t, int64_t *index) {
  for (int k = t->rank - 1; k >= 0; k--) {
    if (++index[k] < t->dims[k]) return;
    index[k] = 0;
  }
}

/* Copies the bits of one element. */
void eval_copy(quern_dtype dtype, void *dst, int64_t to, const void *src, int64_t from);

/* Copies bytes; none may come from or go to NULL. */
void eval_copy_bytes(void *dst, const void *src, size_t bytes);

#endif
