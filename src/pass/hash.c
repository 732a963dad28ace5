/* pass/hash.c -- the order of a group's ins, and its hash: the same for groups that differ in the tensors only
** Both come from a walk from the outs and stages that depends on the group's structure alone: not on ids, which tell
** the layers of a network apart, and not on the order that the sources of commutative ops happen to have.
** keeps: what a kernel depends on is in the hash: ops, attributes, types, indices, extents, which in is read where
** tests: tests/pass/test_fuse.c
*/
#include "pass/pass_int.h"

struct item {    /* a node or an in of the group */
  uint64_t tree; /* hash of what it is computed by, ins told apart by type only */
  int number;    /* in the walk; -1: not met yet */
};
struct walk {
  const struct pass_group *group;
  struct item *nodes, *ins;
  int n_met, n_ins;
  int *stack; /* node i as i, in i as -1 - i */
  int depth;
  quern_tensor **order; /* ins as they are met */
  uint64_t hash;
};

static uint64_t hash_type(uint64_t h, const quern_tensor *t) {
  h = base_hash_u64(h, base_dtype_code(t->dtype) << 32 | (uint64_t)t->rank);
  return base_hash_bytes(h, t->dims, (size_t)t->rank * sizeof *t->dims);
}

static uint64_t hash_node(const struct ir_node *node) {
  uint64_t h = base_hash_u64(BASE_HASH_SEED, (uint64_t)node->op), mask = ir_ops[node->op].attrs;
  for (int k = 0; k < IR_ATTR_COUNT; k++) {
    if ((mask >> k & 1) != 0)
      h = ir_attr_hash(h, ir_attr_table[k].kind, (const char *)node->attrs + ir_attr_table[k].offset);
  }
  return hash_type(h, &node->out[0]);
}

/* Sums of terms hash alike in any order: atoms are numbered as they were made. */
static uint64_t hash_index(const struct pass_index *e) {
  uint64_t sum = 0;
  for (int i = 0; i < e->n_terms; i++) {
    const struct pass_atom *atom = e->terms[i].atom;
    uint64_t h = base_hash_u64(base_hash_u64(BASE_HASH_SEED, (uint64_t)e->terms[i].coef), (uint64_t)atom->kind);
    h = base_hash_u64(h, atom->kind == PASS_ATOM_VAR ? (uint64_t)atom->var : (uint64_t)atom->by);
    sum += atom->kind == PASS_ATOM_VAR ? h : base_hash_u64(h, hash_index(atom->of));
  }
  return base_hash_u64(base_hash_u64(BASE_HASH_SEED, (uint64_t)e->constant), sum);
}

static uint64_t hash_indices(uint64_t h, int rank, const struct pass_index *const *at) {
  h = base_hash_u64(h, at == NULL ? 0 : 1);
  for (int k = 0; at != NULL && k < rank; k++) h = base_hash_u64(h, hash_index(at[k]));
  return h;
}

/* Where a tensor is: node i as i, in i as -1 - i. */
static int find(const struct pass_group *group, const quern_tensor *t) {
  for (size_t i = 0; i < group->n_ins; i++)
    if (group->ins[i] == t) return -1 - (int)i;
  size_t i = pass_group_find(group, t->node);
  QUERN_ASSERT(i < group->n_nodes);
  return (int)i;
}

static struct item *item_of(const struct walk *w, int at) { return at >= 0 ? &w->nodes[at] : &w->ins[-1 - at]; }

static void hash_trees(struct walk *w) {
  const struct pass_group *group = w->group;
  for (size_t i = 0; i < group->n_ins; i++) w->ins[i] = (struct item){hash_type(BASE_HASH_SEED, group->ins[i]), -1};
  for (size_t i = 0; i < group->n_nodes; i++) {
    const struct ir_node *node = group->nodes[i];
    uint64_t h = hash_node(node), sum = 0;
    bool any = (ir_ops[node->op].flags & IR_COMM) != 0;
    for (int k = 0; k < node->n_src; k++) {
      uint64_t of = item_of(w, find(group, node->src[k]))->tree;
      of = base_hash_u64(of, (uint64_t)node->src[k]->result);
      if (any)
        sum += base_hash_u64(BASE_HASH_SEED, of);
      else
        h = base_hash_u64(h, of);
    }
    w->nodes[i] = (struct item){base_hash_u64(h, sum), -1};
  }
}

/* Meets an item: its number goes into the hash; new ones wait for their sources to be met. */
static void meet(struct walk *w, const quern_tensor *t) {
  int at = find(w->group, t);
  struct item *item = item_of(w, at);
  if (item->number < 0) {
    item->number = w->n_met++;
    w->hash = base_hash_u64(w->hash, at >= 0 ? hash_node(t->node) : item->tree);
    if (at < 0) w->order[w->n_ins++] = w->group->ins[-1 - at];
    if (at >= 0) w->stack[w->depth++] = at;
  }
  w->hash = base_hash_u64(w->hash, (uint64_t)item->number << 8 | (uint64_t)t->result);
}

static void walk_from(struct walk *w, const quern_tensor *t) {
  meet(w, t);
  while (w->depth > 0) {
    const struct ir_node *node = w->group->nodes[w->stack[--w->depth]];
    bool swapped = (ir_ops[node->op].flags & IR_COMM) != 0 &&
                   item_of(w, find(w->group, node->src[1]))->tree < item_of(w, find(w->group, node->src[0]))->tree;
    for (int k = 0; k < node->n_src; k++) meet(w, node->src[swapped ? 1 - k : k]);
  }
}

static void hash_group(struct walk *w) {
  const struct pass_group *group = w->group;
  hash_trees(w);
  w->hash = base_hash_u64(BASE_HASH_SEED, (uint64_t)group->kind);
  for (size_t v = 0; group->space != NULL && v < group->space->extents.n; v++)
    w->hash = base_hash_u64(w->hash, (uint64_t)group->space->extents.at[v]);
  w->hash = base_hash_u64(w->hash, (uint64_t)group->n_outer);
  for (int i = 0; i < 4; i++) w->hash = base_hash_u64(w->hash, (uint64_t)group->vars[i]);
  if (group->gemm != NULL) w->hash = base_hash_string(w->hash, "gemm");
  for (size_t i = 0; i < group->n_outs; i++) {
    const struct pass_out *out = &group->outs[i];
    walk_from(w, out->tensor);
    w->hash = hash_indices(w->hash, out->tensor->rank, (const struct pass_index *const *)out->at);
  }
  for (size_t i = 0; i < group->n_stages + group->n_column_reductions; i++) {
    const struct pass_stage *stage =
        i < group->n_stages ? &group->stages[i] : &group->column_reductions[i - group->n_stages];
    const struct ir_node *node = stage->node;
    if (i == group->n_stages) w->hash = base_hash_u64(w->hash, group->n_column_reductions);
    walk_from(w, &node->out[0]);
    w->hash = hash_indices(w->hash, node->src[0]->rank, (const struct pass_index *const *)stage->source);
    if (stage->other != NULL)
      w->hash = hash_indices(w->hash, node->src[1]->rank, (const struct pass_index *const *)stage->other);
    w->hash = hash_indices(w->hash, node->out[0].rank, (const struct pass_index *const *)stage->result);
  }
}

quern_status pass_group_number(struct pass_groups *groups, struct pass_group *group) {
  struct walk w = {.group = group};
  size_t n = group->n_nodes + group->n_ins, bytes = n * (sizeof *w.nodes + sizeof *w.order + sizeof *w.stack);
  char *memory = base_alloc(groups->heap, bytes);
  if (memory == NULL) return QUERN_STATUS_MEMORY;
  w.nodes = (struct item *)memory;
  w.ins = w.nodes + group->n_nodes;
  w.order = (quern_tensor **)(w.nodes + n);
  w.stack = (int *)(w.order + n);
  hash_group(&w);
  QUERN_ASSERT((size_t)w.n_ins == group->n_ins);
  if (group->n_ins > 0) memcpy(group->ins, w.order, group->n_ins * sizeof *group->ins);
  group->hash = w.hash;
  base_free(groups->heap, memory, bytes);
  return QUERN_STATUS_OK;
}
