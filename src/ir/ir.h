/* ir/ir.h -- the graph IR: immutable, interned, multi-result nodes of primitive operations
** A quern_tensor is one result of a node: an edge of the graph. Equal nodes are the same pointer, so common
** subexpressions never exist. Sources have smaller ids than their users, so increasing id is a topological order.
** see: docs/ir.md (every op's equation), docs/design/001-ground.md
*/
#ifndef IR_IR_H
#define IR_IR_H
#include "base/base.h"
#include "quern/eager.h"
#include "quern/graph.h"
#include "quern/tensor.h"

/* ---- ops and attributes ------------------------------------------------------------------------------------------ */

enum ir_op {
#define OP(NAME, ...) IR_##NAME,
#include "ir/ops.def"
#undef OP
  IR_OP_COUNT
};

enum ir_attr_id {
#define ATTR(field, KIND) IR_ATTR_##field,
#include "ir/attrs.def"
#undef ATTR
  IR_ATTR_COUNT
};

enum ir_attr_kind {
  IR_KIND_INT,
  IR_KIND_INTS,
  IR_KIND_REALS,
  IR_KIND_DTYPE,
  IR_KIND_REDUCE,
  IR_KIND_COMBINE,
  IR_KIND_NAME,
  IR_KIND_GRAPH,
  IR_KIND_DATA,
  IR_KIND_BUFFER
};

enum ir_reduce { IR_SUM, IR_PROD, IR_REDUCE_MAX, IR_REDUCE_MIN, IR_SET, IR_REDUCE_COUNT };
enum ir_combine { IR_COMBINE_MUL, IR_COMBINE_ADD, IR_COMBINE_MAX, IR_COMBINE_MIN, IR_COMBINE_COUNT };
extern const char *const ir_reduce_names[IR_REDUCE_COUNT];   /* "sum", "prod", "max", "min", "set" */
extern const char *const ir_combine_names[IR_COMBINE_COUNT]; /* "mul", "add", "max", "min" */

struct ir_ints {
  int n;
  const int64_t *at;
};
struct ir_reals {
  int n;
  const double *at;
};
struct ir_data {
  size_t n;
  const void *at;
}; /* n bytes */
struct ir_buffer {
  void *data;
  size_t bytes, room; /* room: of the block it lies in, when it is owned */
  void *remote;       /* the same elements in the memory of the context's device; NULL: they are not there */
  size_t remote_room;
  bool owned, live; /* live: scratch of collect.c */
};                  /* data and remote NULL: unbound, must be bound to be evaluated */
static inline bool ir_buffer_bound(const struct ir_buffer *buffer) {
  return buffer->data != NULL || buffer->remote != NULL;
}

#define IR_INTS(...)                                                                                                   \
  ((struct ir_ints){(int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]){__VA_ARGS__}})

#define IR_FIELD_INT int64_t
#define IR_FIELD_INTS struct ir_ints
#define IR_FIELD_REALS struct ir_reals
#define IR_FIELD_DTYPE quern_dtype
#define IR_FIELD_REDUCE enum ir_reduce
#define IR_FIELD_COMBINE enum ir_combine
#define IR_FIELD_NAME const char *
#define IR_FIELD_GRAPH const struct ir_graph *
#define IR_FIELD_DATA struct ir_data
#define IR_FIELD_BUFFER struct ir_buffer *

/* Fields an op does not have are zero. Fill with designated initializers; ir_make copies what it keeps. */
struct ir_attrs {
#define ATTR(field, KIND) IR_FIELD_##KIND field;
#include "ir/attrs.def"
#undef ATTR
};

enum { IR_COMM = 1, IR_IDENTITY = 2 };              /* flags */
enum { IR_CONST_BYTES = 65536, IR_MAX_DEPTH = 32 }; /* limits: of a constant, of subgraphs in subgraphs */

struct ir_op_info {
  const char *name;             /* "add" */
  int n_src, n_out;             /* -1: varies */
  enum base_dtype_class dtypes; /* of source 0 */
  bool grad;                    /* false: the gradient is zero */
  int flags;
  uint64_t attrs; /* bit IR_ATTR_x set: the op has attribute x */
  const char *equation;
};
extern const struct ir_op_info ir_ops[IR_OP_COUNT];

struct ir_attr_info {
  const char *name;
  enum ir_attr_kind kind;
  size_t offset; /* in struct ir_attrs */
};
extern const struct ir_attr_info ir_attr_table[IR_ATTR_COUNT];

/* Chains the hash of one field of ir_attrs; a buffer adds nothing. */
uint64_t ir_attr_hash(uint64_t h, enum ir_attr_kind kind, const void *field);

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

struct ir_type {
  quern_dtype dtype;
  int rank;
  int64_t dims[QUERN_MAX_RANK];
};

struct quern_tensor {
  struct ir_node *node; /* NULL: the poison tensor */
  int result;           /* which result of the node */
  quern_dtype dtype;
  int rank;
  const int64_t *dims;
};

struct ir_node {
  quern_context *ctx;
  uint64_t hash;
  uint32_t id;             /* grows; larger than the ids of all sources */
  uint32_t mark, position; /* scratch of ir_topo: which order it was last found in, and where */
  enum ir_op op;
  int n_src, n_out;
  uint32_t label; /* of the layer that it was made in, for people: no part of what it is (label.c) */
  quern_tensor **src;
  const struct ir_attrs *attrs; /* never NULL */
  quern_tensor *out;            /* n_out results */
};

/* A closed subgraph: its results reach no leaf but PARAM, CONST and IOTA. Interned: equal graphs are the same
** pointer. */
struct ir_graph {
  quern_context *ctx;
  uint64_t hash;
  uint32_t id, mark; /* mark: scratch of walks over subgraphs */
  int n_params, n_results;
  quern_tensor **params; /* PARAM nodes 0..n_params-1, whether the results use them or not */
  quern_tensor **results;
  int depth;      /* of subgraphs inside: 0 for none */
  size_t n_nodes; /* that the results reach; those of subgraphs inside are not counted */
};

/* A kind of composite node, known by name. */
struct ir_composite {
  const char *name;
  int n_results;
  /* Builds the meaning on fresh leaves args; attrs has the node's ints and reals. NULL of a rule that a user
  ** registered. */
  void (*body)(quern_context *ctx, const struct ir_attrs *attrs, quern_tensor *const *args, quern_tensor **results);
  /* dx[i] = the gradient of source i given dy[j] of result j (NULL when result j is no float); dx[i] comes as NULL,
  ** which means zero. Errors are recorded in the node's context by the builders used. No vjp: the gradient is that of
  ** the body. */
  void (*vjp)(const struct ir_composite *self, const struct ir_node *node, quern_tensor *const *dy, quern_tensor **dx);
  /* True when body may be called with these: the public builder could have made them. Asked when a node comes from a
  ** text; a kind without it cannot be read from text. */
  bool (*admits)(const struct ir_attrs *attrs, int n, quern_tensor *const *src);
  void (*rule)(void); /* of a user's rule: the function, as quern_vjp_rule, and its argument */
  void *user;
};

/* A cache of blocks of memory for elements: those that no tensor holds any more are used again (buffer_cache.c). */
struct ir_cached_buffer {
  void *data;
  size_t bytes;
  uint64_t age; /* grows: when it came back */
};
/* The memory of a device that has its own (engine/eager_device.c). */
struct ir_remote {
  void *(*alloc)(struct ir_remote *self, size_t bytes); /* NULL with the error recorded */
  void (*free)(struct ir_remote *self, void *at, size_t bytes);
  quern_status (*download)(struct ir_remote *self, void *to, const void *from, size_t bytes);
};
struct ir_buffer_cache {
  struct base_heap *heap;
  struct ir_remote *remote;               /* whose memory it gives; NULL: the heap's */
  BASE_VEC(struct ir_cached_buffer) kept; /* by bytes, then by age */
  size_t n_used;                          /* blocks that were taken */
  quern_pool_stats stats;
  uint64_t age;
};

/* What the context was when it was marked (rewind.c). */
struct ir_mark {
  uint64_t number;
  struct base_arena_mark arena;
  uint32_t n_nodes, n_graphs;
  size_t n_buffers, n_entries;
  uint64_t next_pin;
};

/* An item that one of the context's maps was given since the first mark. */
struct ir_entry {
  struct base_map *map;
  uint64_t hash;
  void *item;
};

/* Something outside the context that points to its tensors: a model, a step, a graph (collect.c). */
struct ir_live;
typedef quern_status ir_pinned(void *holder, struct ir_live *live); /* ir_live_add for each of them */
struct ir_pin {
  uint64_t number;
  ir_pinned *visit;
  void *holder;
};

/* The name of a layer, or what a derivative of one is called. */
struct ir_label {
  const char *text;
  uint32_t number, derivative; /* derivative: 0 until it is asked for */
};

enum { IR_CELL_CLASSES = 64 + 4 * 30 }; /* cells of up to 2^40 bytes */

struct quern_context {
  struct base_heap heap;
  struct base_arena arena;
  struct base_map nodes, graphs;
  struct base_map composites;                  /* by name */
  struct base_map bodies;                      /* of composites, by name, attributes and source types */
  BASE_VEC(struct ir_buffer *) buffers;        /* owned ones are freed with the context */
  struct ir_free_cell *cells[IR_CELL_CLASSES]; /* free ones */
  BASE_VEC(struct ir_pin) pins;
  uint64_t next_pin;
  int n_scopes;
  bool growing; /* between ir_growth_begin and its end */
  uint32_t growth_from;
  uint64_t growth_most;
  struct ir_buffer_cache buffer_cache; /* blocks of the host */
  struct ir_buffer_cache remote_cache; /* of the device that eager use runs on, if it has its own memory */
  struct ir_remote *remote;            /* the latter's memory; NULL: there is none */
  BASE_VEC(struct ir_mark) marks;
  BASE_VEC(struct ir_entry) entries;
  uint64_t next_mark;
  BASE_VEC(struct ir_type) types; /* scratch of ir_make */
  uint32_t n_nodes, n_graphs, epoch, next_stream;
  struct base_arena label_arena;
  BASE_VEC(struct ir_label *) labels; /* label i is labels.at[i - 1] */
  struct base_map label_map;          /* by text */
  uint32_t label;                     /* of nodes that are made now */
  uint64_t seed;
  quern_status error; /* the first a builder recorded, until it is reported */
  char message[BASE_MESSAGE_BYTES];
  struct {
    void *state; /* of engine/eager.c: what was compiled for eager use; NULL: nothing */
    void (*free)(void *state);
  } eager;
};

/* ---- building (context.c, node.c, infer.c) ----------------------------------------------------------------------- */

/* A context without composites; quern_context_new adds those of tensor/. */
quern_status ir_context_new(quern_context **ctx, const quern_context_options *options) QUERN_NODISCARD;

extern quern_tensor ir_poison;

static inline bool ir_is_poison(const quern_tensor *t) { return t == NULL || t->node == NULL; }

/* Records the first error of a context with the caller's place (ctx NULL: only in this thread) and returns the
** poison. */
quern_tensor *ir_fail(quern_context *ctx, quern_status status, const char *fmt, ...) BASE_PRINTF(3, 4);
/* Records an error that base_error has recorded in this thread already as the context's; returns the poison. */
quern_tensor *ir_fail_last(quern_context *ctx);

/* The error behind a poison tensor: the one that a builder recorded in the context, or INTERNAL when there is none. */
quern_status ir_poison_error(quern_context *ctx) QUERN_NODISCARD;

/* The node with these sources and attributes: the one there is, or a new one. Its result 0, or the poison with the
** error recorded. Any poison source gives the poison. */
quern_tensor *ir_make(quern_context *ctx, enum ir_op op, int n_src, quern_tensor *const *src,
                      const struct ir_attrs *attrs);

#define IR_MAKE(ctx, op, attrs, ...)                                                                                   \
  ir_make((ctx), (op), (int)(sizeof((quern_tensor *[]){__VA_ARGS__}) / sizeof(quern_tensor *)),                        \
          (quern_tensor *[]){__VA_ARGS__}, (attrs))

/* True when making the node again would give the same pointer. */
bool ir_node_is_interned(const struct ir_node *node);

/* Adds an item to a map of the context, and remembers that when there is a mark; false when there is no memory
** (rewind.c). */
bool ir_intern(quern_context *ctx, struct base_map *map, uint64_t hash, void *item);

/* Memory of that many bytes, all zero, or NULL with the error recorded; to be freed with the same number of bytes, or
** with the context (cell.c). ir_cell_bytes: how many such a cell has in fact. */
void *ir_cell_new(quern_context *ctx, size_t bytes);
void ir_cell_free(quern_context *ctx, void *memory, size_t bytes);
size_t ir_cell_bytes(size_t bytes);

/* A node that is not in its context yet, in memory of an arena that joins the context's; NULL when there is none
** (node.c). */
struct ir_node *ir_node_in(struct base_arena *arena, quern_context *ctx, enum ir_op op, const struct ir_attrs *attrs,
                           const struct ir_type *type);
size_t ir_node_bytes(const struct ir_node *node);
size_t ir_graph_bytes(const struct ir_graph *graph);

/* A holder of tensors: they stay when the context is collected, until it is taken away. Number 0: there is no memory.
** What holds tensors since a mark must hold them no more when the context goes back to it; its pin is gone then. */
uint64_t ir_pin_add(quern_context *ctx, ir_pinned *visit, void *holder);
void ir_pin_remove(quern_context *ctx, uint64_t number);
/* A tensor stays, and what it is made of. NULL and the poison are fine. */
quern_status ir_live_add(struct ir_live *live, const quern_tensor *x) QUERN_NODISCARD;
/* Takes the bodies out whose graph is not marked so (composite.c). */
void ir_bodies_sweep(quern_context *ctx, uint32_t epoch);

/* Labels (label.c): the number of a text, which is not empty; "h.0.mlp" for the number, "" for 0; that of "grad(h.0.mlp)". A
** node has the context's label of the moment when it was made first. ir_label_of is the node's, or that of the moment when
** it has none. */
quern_status ir_label_find(quern_context *ctx, const char *text, uint32_t *label) QUERN_NODISCARD;
const char *ir_label_text(const quern_context *ctx, uint32_t label);
quern_status ir_label_derivative(quern_context *ctx, uint32_t label, uint32_t *derivative) QUERN_NODISCARD;
static inline uint32_t ir_label_of(const struct ir_node *node) {
  return node->label != 0 ? node->label : node->ctx->label;
}

/* Everything made from the one to the other, but for streams of random numbers, is gone again (rewind.c). */
quern_status ir_scope_begin(quern_context *ctx) QUERN_NODISCARD;
void ir_scope_end(quern_context *ctx);

/* A buffer of that many bytes that is freed with the context (buffer.c), or NULL with the error recorded in this
** thread. */
struct ir_buffer *ir_buffer_new(quern_context *ctx, size_t bytes);
/* One whose elements somebody else owns. data NULL: unbound. */
struct ir_buffer *ir_buffer_wrap(quern_context *ctx, void *data, size_t bytes);
/* Gives its memory back at once; nodes that have it are unbound from now on. */
void ir_buffer_free(quern_context *ctx, struct ir_buffer *buffer);

/* A block of at least that many bytes, *room in fact, or NULL with the error recorded; and giving it back (buffer_cache.c). */
void *ir_buffer_cache_take(struct ir_buffer_cache *pool, size_t bytes, size_t *room);
void ir_buffer_cache_give(struct ir_buffer_cache *pool, void *data, size_t room);
void ir_buffer_cache_init(struct ir_buffer_cache *pool, struct base_heap *heap, struct ir_remote *remote);
void ir_buffer_cache_fini(struct ir_buffer_cache *pool);

/* One whose elements will be in the memory of the context's device. */
struct ir_buffer *ir_buffer_new_remote(quern_context *ctx, size_t bytes);
/* Copies elements that are in the device's memory only to the host's: of all buffers that the tensors reach, of one. */
quern_status ir_fetch(quern_context *ctx, size_t n, quern_tensor *const *roots) QUERN_NODISCARD;
quern_status ir_buffer_fetch(quern_context *ctx, struct ir_buffer *buffer) QUERN_NODISCARD;
/* Gives the context a device's memory; takes it away, when every buffer has been fetched or may lose its elements. */
void ir_remote_open(quern_context *ctx, struct ir_remote *remote);
void ir_remote_close(quern_context *ctx);

/* Another result of the same node; the poison of the poison. */
static inline quern_tensor *ir_result(quern_tensor *t, int i) { return ir_is_poison(t) ? t : &t->node->out[i]; }

/* The results an op would have; *types is valid until the next call. */
quern_status ir_infer(quern_context *ctx, enum ir_op op, int n_src, quern_tensor *const *src,
                      const struct ir_attrs *attrs, int *n_out, struct ir_type **types) QUERN_NODISCARD;

/* Elements and bytes of a type, or OVERFLOW when they exceed INT64_MAX. */
quern_status ir_type_count(quern_dtype dtype, int rank, const int64_t *dims, int64_t *count) QUERN_NODISCARD;
int64_t ir_count(const quern_tensor *t);
size_t ir_bytes(const quern_tensor *t);
bool ir_same_shape(const quern_tensor *a, const quern_tensor *b);
bool ir_same_type(const quern_tensor *a, const quern_tensor *b);

/* "f32(2, 3)" in a caller's buffer, for messages. */
enum { IR_TYPE_TEXT = 320 };
char *ir_type_text(char buffer[IR_TYPE_TEXT], const quern_tensor *t);

/* A scalar or small constant. value is converted from double with one rounding; the i64 form is exact for integers. */
quern_tensor *ir_const(quern_context *ctx, quern_dtype dtype, double value);
quern_tensor *ir_const_int(quern_context *ctx, quern_dtype dtype, int64_t value);

/* True when t is a CONST, or a BROADCAST or RESHAPE of one, whose elements all equal value (-0 differs from 0). */
bool ir_is_const(const quern_tensor *t, double value);

/* ---- walking and rebuilding (graph.c) ---------------------------------------------------------------------------- */

struct ir_order {
  struct ir_node **at;
  size_t n, cap;
  uint32_t epoch;
};

/* The nodes that roots reach, in increasing id. Free with ir_order_fini. Does not enter subgraphs. */
quern_status ir_topo(quern_context *ctx, size_t n, quern_tensor *const *roots, struct ir_order *order) QUERN_NODISCARD;
void ir_order_fini(quern_context *ctx, struct ir_order *order);
/* A number that no node is marked with. */
uint32_t ir_epoch(quern_context *ctx);
/* The place of a node in an order, or -1. */
ptrdiff_t ir_order_find(const struct ir_order *order, const struct ir_node *node);

/* Gives the results of a node anew from its rebuilt sources; out has node->n_out places. */
typedef quern_status ir_visit(void *user, struct ir_node *node, quern_tensor *const *src, quern_tensor **out);

/* The node itself when src are its own sources, else the same op on src. The plainest visit; others fall back on it. */
quern_status ir_rebuild(struct ir_node *node, quern_tensor *const *src, quern_tensor **out) QUERN_NODISCARD;

/* out[i] = roots[i] after visiting every node they reach, sources first. */
quern_status ir_transform(quern_context *ctx, size_t n, quern_tensor *const *roots, ir_visit *visit, void *user,
                          quern_tensor **out) QUERN_NODISCARD;

/* out[i] = roots[i] with every from[k] replaced by to[k] (same type). */
quern_status ir_substitute(quern_context *ctx, size_t n, quern_tensor *const *roots, size_t n_pairs,
                           quern_tensor *const *from, quern_tensor *const *to, quern_tensor **out) QUERN_NODISCARD;

/* The closed graph from params (distinct leaves made for it, such as inputs) to results. Fails when the results reach
** another INPUT, STATE or BUFFER, or a PARAM. */
quern_status ir_graph_make(quern_context *ctx, int n_params, quern_tensor *const *params, int n_results,
                           quern_tensor *const *results, const struct ir_graph **graph) QUERN_NODISCARD;

/* True when making the graph again would give the same pointer. */
bool ir_graph_is_interned(const struct ir_graph *graph);

/* A fresh leaf to build a subgraph on. */
quern_tensor *ir_leaf(quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims);
quern_tensor *ir_leaf_like(quern_tensor *t);

/* results[i] = the graph's results with its params replaced by args. */
quern_status ir_inline(quern_context *ctx, const struct ir_graph *graph, quern_tensor *const *args,
                       quern_tensor **results) QUERN_NODISCARD;

/* Nodes that inlining may add to a context at a time: composites in composites can double at each level. */
enum { IR_MOST_INLINED = 1 << 18 };
/* ir_inline of a composite whose body became this one; refused when the context has too many nodes more than then. */
quern_status ir_inline_composite(struct ir_node *node, const struct ir_graph *body, quern_tensor *const *src,
                                 uint32_t nodes_before, quern_tensor **out) QUERN_NODISCARD;

/* Derivatives and casts visit subgraphs in subgraphs, which can double at each level: from the outermost begin to its
** end they may make so many nodes for those that the roots reach, subgraphs included, or as many as inlining may.
** outermost: whether this begin is, which end is to be given. */
quern_status ir_growth_begin(quern_context *ctx, size_t n, quern_tensor *const *roots, bool *outermost) QUERN_NODISCARD;
void ir_growth_end(quern_context *ctx, bool outermost);
quern_status ir_growth_check(const quern_context *ctx, const char *what) QUERN_NODISCARD;

/* The graph after visiting its nodes; the visit leaves PARAM nodes alone and keeps the results' types. */
quern_status ir_graph_transform(quern_context *ctx, const struct ir_graph *graph, ir_visit *visit, void *user,
                                const struct ir_graph **out) QUERN_NODISCARD;

/* out[i] = roots[i] with every composite replaced by its body, also inside subgraphs. */
quern_status ir_inline_composites(quern_context *ctx, size_t n, quern_tensor *const *roots,
                                  quern_tensor **out) QUERN_NODISCARD;

/* Checks every node that roots reach, subgraphs included: sources, types, attributes, interning, closedness. */
quern_status ir_verify(quern_context *ctx, size_t n, quern_tensor *const *roots) QUERN_NODISCARD;

/* ---- composites (composite.c) ------------------------------------------------------------------------------------ */

/* Registers a kind of composite; the struct must outlive the context. INVALID when the name is taken. */
quern_status ir_composite_add(quern_context *ctx, const struct ir_composite *kind) QUERN_NODISCARD;
const struct ir_composite *ir_composite_find(quern_context *ctx, const char *name);

/* The graph of a kind with a body for these attributes and operand types; built once, then found again. */
quern_status ir_composite_body(quern_context *ctx, const struct ir_composite *kind, const struct ir_attrs *attrs, int n,
                               quern_tensor *const *src, const struct ir_graph **body) QUERN_NODISCARD;

/* The composite node of that kind: result 0, or the poison with the error recorded. */
quern_tensor *ir_composite_make(quern_context *ctx, const struct ir_composite *kind, struct ir_ints ints,
                                struct ir_reals reals, int n, quern_tensor *const *src);

/* ---- text (print.c, parse.c, graphviz.c) ------------------------------------------------------------------------- */

/* Prints the graph that roots reach; names[i] may be NULL, and so may names. */
quern_status ir_print(quern_context *ctx, struct base_str *str, size_t n, quern_tensor *const *roots,
                      const char *const *names) QUERN_NODISCARD;
quern_status ir_print_graphviz(quern_context *ctx, struct base_str *str, size_t n, quern_tensor *const *roots,
                               const char *const *names) QUERN_NODISCARD;

struct ir_module {
  size_t n_outputs;
  quern_tensor **outputs; /* in the context's arena, as are names; names[i] may be NULL */
  const char **names;
  size_t n_inputs;
  quern_tensor **inputs; /* INPUT and STATE nodes of the main graph in order of the text */
};
/* Parses a text; a malformed one gives PARSE with line and column. Needs no terminating 0. */
quern_status ir_parse(quern_context *ctx, const char *text, size_t bytes, struct ir_module *module) QUERN_NODISCARD;

/* ---- evaluation (eval.c and eval_*.c): the meaning of every op, slow and plain ---------------------------------- */

struct ir_binding {
  const quern_tensor *leaf;
  const void *data;
};

/* dst[i] = the elements of roots[i], densely in row-major order. */
quern_status ir_eval(quern_context *ctx, size_t n, quern_tensor *const *roots, void *const *dst, size_t n_bindings,
                     const struct ir_binding *bindings) QUERN_NODISCARD;

/* As ir_eval, with every result that is rounded moved up or down by a unit in its last place, as noise (not 0) decides: how far
** results differ says how much rounding alone may change them. */
quern_status ir_eval_perturbed(quern_context *ctx, size_t n, quern_tensor *const *roots, void *const *dst,
                               size_t n_bindings, const struct ir_binding *bindings, uint64_t noise) QUERN_NODISCARD;

/* Records that a leaf has no value. */
quern_status ir_unbound(const struct ir_node *node);

/* ---- rewriting (rewrite.c, rules.c) ------------------------------------------------------------------------------ */

/* A rule looks at a node whose sources are rewritten already. It is a pattern unless one of the two functions is
** set. */
struct ir_rule {
  const char *name;
  enum ir_op op;        /* the root it looks at */
  bool exact;           /* false: may change the last bits, or values where the left side overflows or is not defined */
  const char *identity; /* the identity; of a pattern the rule itself, such as "mul(x, 1) = x": see rules.def */
  enum base_dtype_class dtypes; /* of a pattern: what its first variable may be */
  /* The replacement for the node (of the same type), or NULL when the rule does not apply. Single-result ops only. */
  quern_tensor *(*apply)(quern_context *ctx, struct ir_node *node);
  /* The replacements for all results of a node, which out has room for; false when the rule does not apply. */
  bool (*apply_all)(quern_context *ctx, struct ir_node *node, quern_tensor **out);
};
extern const struct ir_rule ir_rules[];
extern const size_t ir_rule_count;

struct ir_rewrite_options {
  bool approximate;            /* also apply rules that are not exact */
  const bool *enabled;         /* one per rule, or NULL for all */
  uint64_t *fired;             /* counts one per rule, or NULL */
  const struct ir_rule *extra; /* n_extra more rules, tried after the others */
  size_t n_extra;
};
/* out[i] = roots[i] rewritten by the rules until none applies; also inside subgraphs. */
quern_status ir_rewrite(quern_context *ctx, size_t n, quern_tensor *const *roots,
                        const struct ir_rewrite_options *options, quern_tensor **out) QUERN_NODISCARD;

#endif
