/* ir/node.c -- making nodes: copy, infer, intern
** keeps: equal nodes are the same pointer; ids grow from sources to users; sources of commutative ops are in id order
** tests: tests/ir/test_node.c
*/
#include <stdio.h>
#include <string.h>

#include "ir/ir.h"

#define A(field) (UINT64_C(1) << IR_ATTR_##field)
const struct ir_op_info ir_ops[IR_OP_COUNT] = {
#define COMM IR_COMM
#define IDENTITY IR_IDENTITY
#define HAS_GRAD true
#define HAS_NO_GRAD false
#define OP(NAME, text, src, out, INFER, DTYPES, GRAD, FLAGS, attrs, equation)                                          \
  [IR_##NAME] = {#text, src, out, BASE_##DTYPES, HAS_##GRAD, FLAGS, attrs, equation},
#include "ir/ops.def"
#undef OP
#undef HAS_NO_GRAD
#undef HAS_GRAD
#undef IDENTITY
#undef COMM
};
#undef A

const struct ir_attr_info ir_attr_table[IR_ATTR_COUNT] = {
#define ATTR(field, KIND) {#field, IR_KIND_##KIND, offsetof(struct ir_attrs, field)},
#include "ir/attrs.def"
#undef ATTR
};

const char *const ir_reduce_names[IR_REDUCE_COUNT] = {"sum", "prod", "max", "min", "set"};
const char *const ir_combine_names[IR_COMBINE_COUNT] = {"mul", "add", "max", "min"};

/* ---- types ------------------------------------------------------------------------------------------------------- */

quern_status ir_type_count(quern_dtype dtype, int rank, const int64_t *dims, int64_t *count) {
  int64_t n = 1;
  bool empty = false;
  for (int k = 0; k < rank; k++) empty |= dims[k] == 0;
  for (int k = 0; k < rank && !empty; k++) {
    if (__builtin_mul_overflow(n, dims[k], &n) || n > INT64_MAX / (int64_t)base_dtypes[dtype].size) {
      char shape[256];
      return base_error(QUERN_STATUS_OVERFLOW, "a tensor of shape %s and dtype %s has more than 2^63 - 1 bytes",
                        base_shape_text(shape, sizeof shape, rank, dims), base_dtypes[dtype].name);
    }
  }
  *count = empty ? 0 : n;
  return QUERN_STATUS_OK;
}

int64_t ir_count(const quern_tensor *t) {
  int64_t n = 1;
  for (int k = 0; k < t->rank; k++) {
    if (t->dims[k] == 0) return 0; /* before the product of the others overflows */
  }
  for (int k = 0; k < t->rank; k++) n *= t->dims[k];
  return n;
}

size_t ir_bytes(const quern_tensor *t) { return (size_t)ir_count(t) * base_dtypes[t->dtype].size; }

bool ir_same_shape(const quern_tensor *a, const quern_tensor *b) {
  return a->rank == b->rank && (a->rank == 0 || memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims) == 0);
}

bool ir_same_type(const quern_tensor *a, const quern_tensor *b) { return a->dtype == b->dtype && ir_same_shape(a, b); }

char *ir_type_text(char buffer[IR_TYPE_TEXT], const quern_tensor *t) {
  char shape[IR_TYPE_TEXT - 16];
  snprintf(buffer, IR_TYPE_TEXT, "%s%s", base_dtypes[t->dtype].name,
           base_shape_text(shape, sizeof shape, t->rank, t->dims));
  return buffer;
}

/* ---- attributes: what each kind's field holds, how it is hashed, compared and copied ----------------------------- */

uint64_t ir_attr_hash(uint64_t h, enum ir_attr_kind kind, const void *field) {
  switch (kind) {
  case IR_KIND_INT: return base_hash_u64(h, (uint64_t) * (const int64_t *)field);
  case IR_KIND_DTYPE: return base_hash_u64(h, base_dtype_code(*(const quern_dtype *)field));
  case IR_KIND_REDUCE: return base_hash_u64(h, (uint64_t) * (const enum ir_reduce *)field);
  case IR_KIND_COMBINE: return base_hash_u64(h, (uint64_t) * (const enum ir_combine *)field);
  case IR_KIND_NAME: return base_hash_string(h, *(const char *const *)field);
  case IR_KIND_INTS: {
    const struct ir_ints *list = field;
    return base_hash_bytes(base_hash_u64(h, (uint64_t)list->n), list->at, (size_t)list->n * sizeof *list->at);
  }
  case IR_KIND_REALS: {
    const struct ir_reals *list = field;
    return base_hash_bytes(base_hash_u64(h, (uint64_t)list->n), list->at, (size_t)list->n * sizeof *list->at);
  }
  case IR_KIND_DATA: {
    const struct ir_data *data = field;
    return base_hash_bytes(base_hash_u64(h, data->n), data->at, data->n);
  }
  case IR_KIND_GRAPH: {
    const struct ir_graph *graph = *(const struct ir_graph *const *)field;
    return base_hash_u64(h, graph == NULL ? 0 : (uint64_t)graph->id + 1);
  }
  case IR_KIND_BUFFER: return h; /* interned by identity: never looked up */
  }
  return h;
}

static bool same_bytes(size_t n, const void *a, size_t m, const void *b) {
  return n == m && (n == 0 || memcmp(a, b, n) == 0);
}

static bool equal_field(enum ir_attr_kind kind, const void *x, const void *y) {
  switch (kind) {
  case IR_KIND_INT: return *(const int64_t *)x == *(const int64_t *)y;
  case IR_KIND_DTYPE: return *(const quern_dtype *)x == *(const quern_dtype *)y;
  case IR_KIND_REDUCE: return *(const enum ir_reduce *)x == *(const enum ir_reduce *)y;
  case IR_KIND_COMBINE: return *(const enum ir_combine *)x == *(const enum ir_combine *)y;
  case IR_KIND_NAME: return strcmp(*(const char *const *)x, *(const char *const *)y) == 0;
  case IR_KIND_INTS: {
    const struct ir_ints *a = x, *b = y;
    return same_bytes((size_t)a->n * sizeof *a->at, a->at, (size_t)b->n * sizeof *b->at, b->at);
  }
  case IR_KIND_REALS: {
    const struct ir_reals *a = x, *b = y;
    return same_bytes((size_t)a->n * sizeof *a->at, a->at, (size_t)b->n * sizeof *b->at, b->at);
  }
  case IR_KIND_DATA: {
    const struct ir_data *a = x, *b = y;
    return same_bytes(a->n, a->at, b->n, b->at);
  }
  case IR_KIND_GRAPH: return *(const struct ir_graph *const *)x == *(const struct ir_graph *const *)y;
  case IR_KIND_BUFFER: break;
  }
  return *(struct ir_buffer *const *)x == *(struct ir_buffer *const *)y;
}

static const struct ir_attrs no_attrs;

/* ---- interning --------------------------------------------------------------------------------------------------- */

/* Orders tensors of a context: by node, then by result. */
static uint64_t edge_number(const quern_tensor *t) { return (uint64_t)t->node->id << 32 | (uint64_t)t->result; }

struct key {
  enum ir_op op;
  int n_src;
  quern_tensor *const *src;
  const struct ir_attrs *attrs;
};

static uint64_t hash_key(const struct key *key) {
  uint64_t h = base_hash_u64(BASE_HASH_SEED, (uint64_t)key->op << 32 | (uint64_t)key->n_src);
  for (int i = 0; i < key->n_src; i++) {
    h = base_hash_u64(h, edge_number(key->src[i]));
  }
  uint64_t mask = ir_ops[key->op].attrs;
  for (int k = 0; k < IR_ATTR_COUNT; k++) {
    if ((mask >> k & 1) != 0)
      h = ir_attr_hash(h, ir_attr_table[k].kind, (const char *)key->attrs + ir_attr_table[k].offset);
  }
  return h;
}

static bool node_equals(const void *item, const void *against) {
  const struct ir_node *node = item;
  const struct key *key = against;
  if (node->op != key->op || node->n_src != key->n_src) return false;
  for (int i = 0; i < key->n_src; i++) {
    if (node->src[i] != key->src[i]) return false;
  }
  uint64_t mask = ir_ops[key->op].attrs;
  for (int k = 0; k < IR_ATTR_COUNT; k++) {
    size_t at = ir_attr_table[k].offset;
    if ((mask >> k & 1) != 0 &&
        !equal_field(ir_attr_table[k].kind, (const char *)node->attrs + at, (const char *)key->attrs + at)) {
      return false;
    }
  }
  return true;
}

/* ---- the memory of a node: one piece with all that only it points to --------------------------------------------- */

/* Pieces one behind the other; memory NULL: they are measured. */
struct layout {
  char *memory;
  size_t used;
};

static void *lay(struct layout *to, const void *from, size_t bytes) {
  enum { ALIGNMENT = 16 };
  void *at = to->memory != NULL ? to->memory + to->used : NULL;
  if (at != NULL && from != NULL && bytes > 0) memcpy(at, from, bytes);
  to->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return at;
}

/* What an attribute points to that is copied with it: the place of the pointer in its field, and how many bytes. */
static size_t pointed_bytes(enum ir_attr_kind kind, const void *field, size_t *pointer) {
  const struct ir_ints *ints = field;
  const struct ir_reals *reals = field;
  const struct ir_data *data = field;
  switch (kind) {
  case IR_KIND_INTS: *pointer = offsetof(struct ir_ints, at); return (size_t)ints->n * sizeof *ints->at;
  case IR_KIND_REALS: *pointer = offsetof(struct ir_reals, at); return (size_t)reals->n * sizeof *reals->at;
  case IR_KIND_DATA: *pointer = offsetof(struct ir_data, at); return data->n;
  case IR_KIND_NAME: *pointer = 0; return strlen(*(const char *const *)field) + 1;
  default: *pointer = SIZE_MAX; return 0;
  }
}

static const size_t field_bytes[] = {
    [IR_KIND_INT] = sizeof(IR_FIELD_INT),      [IR_KIND_INTS] = sizeof(IR_FIELD_INTS),
    [IR_KIND_REALS] = sizeof(IR_FIELD_REALS),  [IR_KIND_DTYPE] = sizeof(IR_FIELD_DTYPE),
    [IR_KIND_REDUCE] = sizeof(enum ir_reduce), [IR_KIND_COMBINE] = sizeof(enum ir_combine),
    [IR_KIND_NAME] = sizeof(IR_FIELD_NAME),    [IR_KIND_GRAPH] = sizeof(IR_FIELD_GRAPH),
    [IR_KIND_DATA] = sizeof(IR_FIELD_DATA),    [IR_KIND_BUFFER] = sizeof(IR_FIELD_BUFFER),
};

/* The attributes of an op's mask; the others are zero. */
static const struct ir_attrs *lay_attrs(struct layout *to, uint64_t mask, const struct ir_attrs *from) {
  if (mask == 0) return &no_attrs;
  char *attrs = lay(to, NULL, sizeof *from);
  for (int k = 0; k < IR_ATTR_COUNT; k++) {
    if ((mask >> k & 1) == 0) continue;
    const struct ir_attr_info *info = &ir_attr_table[k];
    const char *field = (const char *)from + info->offset;
    size_t pointer, bytes = pointed_bytes(info->kind, field, &pointer);
    const void *pointed = bytes > 0 ? lay(to, *(const void *const *)(field + pointer), bytes) : NULL;
    if (attrs == NULL) continue;
    memcpy(attrs + info->offset, field, field_bytes[info->kind]);
    if (pointer != SIZE_MAX) memcpy(attrs + info->offset + pointer, &pointed, sizeof pointed);
  }
  return (const struct ir_attrs *)attrs;
}

/* Dims of all results lie one behind the other. */
static struct ir_node *lay_node(struct layout *to, const struct key *key, int n_out, size_t n_dims) {
  struct ir_node *node = lay(to, NULL, sizeof *node);
  const struct ir_attrs *attrs = lay_attrs(to, ir_ops[key->op].attrs, key->attrs);
  quern_tensor **src = lay(to, key->src, (size_t)key->n_src * sizeof *src);
  quern_tensor *out = lay(to, NULL, (size_t)n_out * sizeof *out);
  int64_t *dims = lay(to, NULL, n_dims * sizeof *dims);
  if (node == NULL) return NULL;
  *node = (struct ir_node){.op = key->op, .n_src = key->n_src, .n_out = n_out, .src = src, .attrs = attrs, .out = out};
  if (n_out > 0) out[0].dims = dims;
  return node;
}

static size_t count_dims(int n, const struct ir_type *types) {
  size_t n_dims = 0;
  for (int i = 0; i < n; i++) n_dims += (size_t)types[i].rank;
  return n_dims;
}

static size_t measure(const struct key *key, int n_out, size_t n_dims) {
  struct layout layout = {0};
  (void)lay_node(&layout, key, n_out, n_dims);
  return layout.used;
}

size_t ir_node_bytes(const struct ir_node *node) {
  struct key key = {node->op, node->n_src, node->src, node->attrs};
  size_t n_dims = 0;
  for (int i = 0; i < node->n_out; i++) n_dims += (size_t)node->out[i].rank;
  return measure(&key, node->n_out, n_dims);
}

/* A node in zeroed memory of as many bytes as were measured. */
static struct ir_node *fill_node(void *memory, quern_context *ctx, const struct key *key, int n_out,
                                 const struct ir_type *types) {
  struct layout layout = {.memory = memory};
  struct ir_node *node = lay_node(&layout, key, n_out, count_dims(n_out, types));
  int64_t *dims = n_out > 0 ? (int64_t *)(uintptr_t)node->out[0].dims : NULL;
  node->ctx = ctx;
  for (int i = 0; i < n_out; i++) {
    const struct ir_type *type = &types[i];
    node->out[i] = (quern_tensor){.node = node, .result = i, .dtype = type->dtype, .rank = type->rank, .dims = dims};
    for (int k = 0; k < type->rank; k++) *dims++ = type->dims[k];
  }
  return node;
}

static struct ir_node *new_node(quern_context *ctx, const struct key *key, int n_out, const struct ir_type *types) {
  void *memory = ir_cell_new(ctx, measure(key, n_out, count_dims(n_out, types)));
  return memory != NULL ? fill_node(memory, ctx, key, n_out, types) : NULL;
}

struct ir_node *ir_node_in(struct base_arena *arena, quern_context *ctx, enum ir_op op, const struct ir_attrs *attrs,
                           const struct ir_type *type) {
  struct key key = {op, 0, NULL, attrs};
  void *memory = base_arena_alloc(arena, ir_cell_bytes(measure(&key, 1, (size_t)type->rank)));
  return memory != NULL ? fill_node(memory, ctx, &key, 1, type) : NULL;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* False when a source is null, of another context or poison; records an error for the first two. */
static bool sources_ok(quern_context *ctx, enum ir_op op, int n_src, quern_tensor *const *src) {
  const struct ir_op_info *info = &ir_ops[op];
  if (info->n_src >= 0 && n_src != info->n_src) {
    ir_fail(ctx, QUERN_STATUS_INVALID, "%s: takes %d sources, got %d", info->name, info->n_src, n_src);
    return false;
  }
  for (int i = 0; i < n_src; i++) {
    if (src[i] == NULL) {
      ir_fail(ctx, QUERN_STATUS_INVALID, "%s: source %d is null", info->name, i);
      return false;
    }
    if (src[i]->node == NULL) return false;
    if (src[i]->node->ctx != ctx) {
      ir_fail(ctx, QUERN_STATUS_INVALID, "%s: source %d belongs to another context", info->name, i);
      return false;
    }
  }
  return true;
}

/* Attributes that point somewhere can be read: lists and data have their items, the name is there. */
static bool attrs_ok(quern_context *ctx, enum ir_op op, const struct ir_attrs *attrs) {
  const struct ir_op_info *info = &ir_ops[op];
  for (int k = 0; k < IR_ATTR_COUNT; k++) {
    if ((info->attrs >> k & 1) == 0) continue;
    const void *field = (const char *)attrs + ir_attr_table[k].offset;
    const void *at = NULL;
    int64_t n = 0;
    switch (ir_attr_table[k].kind) {
    case IR_KIND_INTS: n = ((const struct ir_ints *)field)->n, at = ((const struct ir_ints *)field)->at; break;
    case IR_KIND_REALS: n = ((const struct ir_reals *)field)->n, at = ((const struct ir_reals *)field)->at; break;
    case IR_KIND_DATA: n = ((const struct ir_data *)field)->n > 0, at = ((const struct ir_data *)field)->at; break;
    case IR_KIND_NAME: n = 1, at = *(const char *const *)field; break;
    default: break;
    }
    if (n < 0) {
      ir_fail(ctx, QUERN_STATUS_INVALID, "%s: %s has %lld numbers", info->name, ir_attr_table[k].name, (long long)n);
      return false;
    }
    if (n > 0 && at == NULL) {
      ir_fail(ctx, QUERN_STATUS_INVALID, "%s: the %s is null", info->name, ir_attr_table[k].name);
      return false;
    }
  }
  return true;
}

quern_tensor *ir_make(quern_context *ctx, enum ir_op op, int n_src, quern_tensor *const *src,
                      const struct ir_attrs *attrs) {
  QUERN_ASSERT(ctx != NULL && op < IR_OP_COUNT);
  if (attrs == NULL) attrs = &no_attrs;
  if (!sources_ok(ctx, op, n_src, src) || !attrs_ok(ctx, op, attrs)) return &ir_poison;
  const struct ir_op_info *info = &ir_ops[op];
  struct key key = {op, n_src, src, attrs};

  quern_tensor *swapped[2];
  if ((info->flags & IR_COMM) != 0) {
    QUERN_ASSERT(n_src == 2);
    bool in_order = edge_number(src[0]) <= edge_number(src[1]);
    swapped[0] = src[in_order ? 0 : 1];
    swapped[1] = src[in_order ? 1 : 0];
    key.src = swapped;
  }

  bool identity = (info->flags & IR_IDENTITY) != 0;
  uint64_t hash = identity ? base_hash_u64(BASE_HASH_SEED, ctx->n_nodes) : hash_key(&key);
  if (!identity) {
    struct ir_node *found = base_map_find(&ctx->nodes, hash, node_equals, &key);
    if (found != NULL) return &found->out[0];
  }

  int n_out = 0;
  struct ir_type *types = NULL;
  if (ir_infer(ctx, op, n_src, src, attrs, &n_out, &types) != QUERN_STATUS_OK) return ir_fail_last(ctx);
  if (ctx->n_nodes == UINT32_MAX)
    return ir_fail(ctx, QUERN_STATUS_OVERFLOW, "%s: the context holds 2^32 - 1 nodes", info->name);
  struct ir_node *node = new_node(ctx, &key, n_out, types);
  if (node == NULL || !ir_intern(ctx, &ctx->nodes, hash, node)) return ir_fail_last(ctx);
  node->hash = hash;
  node->label = ctx->label;
  node->id = ctx->n_nodes++;
  return &node->out[0];
}

bool ir_node_is_interned(const struct ir_node *node) {
  struct key key = {node->op, node->n_src, node->src, node->attrs};
  if ((ir_ops[node->op].flags & IR_IDENTITY) != 0) return true;
  return hash_key(&key) == node->hash && base_map_find(&node->ctx->nodes, node->hash, node_equals, &key) == node;
}

/* ---- constants --------------------------------------------------------------------------------------------------- */

quern_tensor *ir_const(quern_context *ctx, quern_dtype dtype, double value) {
  unsigned char bits[8] = {0};
  base_convert(dtype, bits, 0, QUERN_DTYPE_F64, &value, 0);
  return ir_make(ctx, IR_CONST, 0, NULL,
                 &(struct ir_attrs){.dtype = dtype, .data = {.n = base_dtypes[dtype].size, .at = bits}});
}

quern_tensor *ir_const_int(quern_context *ctx, quern_dtype dtype, int64_t value) {
  unsigned char bits[8] = {0};
  base_convert(dtype, bits, 0, QUERN_DTYPE_I64, &value, 0);
  return ir_make(ctx, IR_CONST, 0, NULL,
                 &(struct ir_attrs){.dtype = dtype, .data = {.n = base_dtypes[dtype].size, .at = bits}});
}

bool ir_is_const(const quern_tensor *t, double value) {
  if (ir_is_poison(t)) return false;
  while (t->node->op == IR_BROADCAST || t->node->op == IR_RESHAPE) t = t->node->src[0];
  if (t->node->op != IR_CONST) return false;
  unsigned char bits[8] = {0};
  base_convert(t->dtype, bits, 0, QUERN_DTYPE_F64, &value, 0);
  /* The dtype must hold the value: 0.5 is no i32. */
  double back = 0;
  base_convert(QUERN_DTYPE_F64, &back, 0, t->dtype, bits, 0);
  if (back != value) return false;
  size_t size = base_dtypes[t->dtype].size;
  const struct ir_data *data = &t->node->attrs->data;
  for (size_t i = 0; i < data->n; i += size) {
    if (memcmp((const char *)data->at + i, bits, size) != 0) return false;
  }
  return data->n > 0;
}
