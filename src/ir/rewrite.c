/* ir/rewrite.c -- applies rewrite rules until none applies
** in:    roots                                 out: roots of the same types with the same values
** keeps: no recursion, a stack of nodes and graphs; a node is rewritten after its sources and subgraphs, and
**        what a rule makes is rewritten in turn; bodies that a composite's builder defines stay, for the name
**        promises them
** see:   rules.def                             tests: tests/ir/test_rewrite.c, tests/prop/
*/
#include <string.h>

#include "ir/rules.h"

/* What became of a node or a graph. */
struct entry {
  const void *key;
  enum { FRESH, RULED, DONE } state; /* RULED: replaced by results that are not final yet */
  quern_tensor **to;                 /* of a node: one per result */
  const struct ir_graph *graph;      /* of a graph */
};

struct item {
  struct ir_node *node;
  const struct ir_graph *graph;
}; /* one of the two */

struct rewrite {
  quern_context *ctx;
  const struct ir_rewrite_options *options;
  struct base_arena arena;
  struct base_map entries; /* by the ids of nodes and graphs */
  BASE_VEC(struct item) stack;
  BASE_VEC(quern_tensor *) scratch;
  const struct ir_rule **rules;  /* sorted by op */
  size_t first[IR_OP_COUNT + 1]; /* the rules of op o are first[o] .. first[o + 1] - 1 */
  size_t steps, most_steps;
};

/* ---- rules by op ------------------------------------------------------------------------------------- */

static bool is_enabled(const struct ir_rewrite_options *options, size_t i) {
  return (ir_rules[i].exact || options->approximate) && (options->enabled == NULL || options->enabled[i]);
}

static quern_status init_rules(struct rewrite *rw) {
  const struct ir_rewrite_options *options = rw->options;
  size_t all = ir_rule_count + options->n_extra, next = 0;
  rw->rules = base_arena_alloc(&rw->arena, all * sizeof *rw->rules);
  if (rw->rules == NULL) return QUERN_STATUS_MEMORY;
  for (int op = 0; op < IR_OP_COUNT; op++) {
    rw->first[op] = next;
    for (size_t i = 0; i < all; i++) {
      const struct ir_rule *rule = i < ir_rule_count ? &ir_rules[i] : &options->extra[i - ir_rule_count];
      if ((int)rule->op == op && (i >= ir_rule_count || is_enabled(options, i))) rw->rules[next++] = rule;
    }
  }
  rw->first[IR_OP_COUNT] = next;
  return QUERN_STATUS_OK;
}

static void count_firing(struct rewrite *rw, const struct ir_rule *rule) {
  if (rw->options->fired != NULL && rule >= ir_rules && rule < ir_rules + ir_rule_count)
    rw->options->fired[rule - ir_rules]++;
}

/* ---- entries ----------------------------------------------------------------------------------------- */

static bool key_equals(const void *item, const void *key) { return ((const struct entry *)item)->key == key; }

/* The entry of a node or graph, made when there is none; NULL when there is no memory. */
static struct entry *entry_of(struct rewrite *rw, struct item item) {
  QUERN_ASSERT(item.node != NULL || item.graph != NULL);
  const void *key = item.node != NULL ? (const void *)item.node : item.graph;
  uint64_t hash =
      item.node != NULL ? base_hash_u64(BASE_HASH_SEED, item.node->id) : base_hash_u64(~BASE_HASH_SEED, item.graph->id);
  struct entry *entry = base_map_find(&rw->entries, hash, key_equals, key);
  if (entry != NULL) return entry;
  entry = base_arena_new(&rw->arena, struct entry);
  if (entry == NULL) return NULL;
  *entry = (struct entry){.key = key, .state = FRESH};
  return base_map_add(&rw->entries, hash, entry) ? entry : NULL;
}

static quern_status push(struct rewrite *rw, struct item item) {
  return base_vec_push(&rw->ctx->heap, &rw->stack, item) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

/* Pushes the item unless it is done; *ready turns false when it did. What is RULED lies on the stack and
** waits for the one that asks. */
static quern_status need(struct rewrite *rw, struct item item, bool *ready) {
  struct entry *entry = entry_of(rw, item);
  if (entry == NULL) return QUERN_STATUS_MEMORY;
  if (entry->state == DONE) return QUERN_STATUS_OK;
  QUERN_CHECK(entry->state != RULED, INTERNAL, "rewrite: a rule replaces %s by what contains it",
              ir_ops[item.node->op].name);
  *ready = false;
  return push(rw, item);
}

/* The final form of a tensor whose node is done. */
static quern_tensor *final_of(struct rewrite *rw, const quern_tensor *t) {
  return entry_of(rw, (struct item){.node = t->node})->to[t->result];
}

static const struct ir_graph *final_graph(struct rewrite *rw, const struct ir_graph *graph) {
  return entry_of(rw, (struct item){.graph = graph})->graph;
}

static quern_status finish(struct rewrite *rw, struct entry *entry, int n, quern_tensor *const *to) {
  entry->to = base_arena_copy(&rw->arena, to, (size_t)n * sizeof *to);
  if (entry->to == NULL) return QUERN_STATUS_MEMORY;
  entry->state = DONE;
  return QUERN_STATUS_OK;
}

/* ---- nodes ------------------------------------------------------------------------------------------- */

/* The subgraphs of a node that may be rewritten: how many, at most 2. */
static int open_graphs(const struct ir_node *node, const struct ir_graph *graphs[2]) {
  int n = 0;
  if (node->op == IR_COMPOSITE) {
    const struct ir_composite *kind = ir_composite_find(node->ctx, node->attrs->name);
    if (kind != NULL && kind->body != NULL) return 0;
  }
  if (node->attrs->body != NULL) graphs[n++] = node->attrs->body;
  if (node->attrs->other != NULL) graphs[n++] = node->attrs->other;
  return n;
}

/* Asks for what a node needs to be done first. */
static quern_status need_parts(struct rewrite *rw, const struct ir_node *node, bool *ready) {
  const struct ir_graph *graphs[2];
  for (int i = open_graphs(node, graphs); i-- > 0;) QUERN_TRY(need(rw, (struct item){.graph = graphs[i]}, ready));
  for (int i = node->n_src; i-- > 0;) QUERN_TRY(need(rw, (struct item){.node = node->src[i]->node}, ready));
  return QUERN_STATUS_OK;
}

/* The node with its parts replaced by what became of them. */
static quern_status rebuild(struct rewrite *rw, struct ir_node *node, struct ir_node **out) {
  bool same = true;
  rw->scratch.n = 0;
  for (int i = 0; i < node->n_src; i++) {
    quern_tensor *to = final_of(rw, node->src[i]);
    same &= to == node->src[i];
    if (!base_vec_push(&rw->ctx->heap, &rw->scratch, to)) return QUERN_STATUS_MEMORY;
  }
  struct ir_attrs attrs = *node->attrs;
  const struct ir_graph *graphs[2];
  if (open_graphs(node, graphs) > 0) {
    if (attrs.body != NULL) attrs.body = final_graph(rw, attrs.body);
    if (attrs.other != NULL) attrs.other = final_graph(rw, attrs.other);
    same &= attrs.body == node->attrs->body && attrs.other == node->attrs->other;
  }
  *out = node;
  if (same) return QUERN_STATUS_OK;
  quern_tensor *made = ir_make(rw->ctx, node->op, node->n_src, rw->scratch.at, &attrs);
  if (ir_is_poison(made)) return quern_context_check(rw->ctx);
  *out = made->node;
  return QUERN_STATUS_OK;
}

/* The results a rule gives for a node in out; *fits turns false when it does not apply. */
static quern_status try_rule(struct rewrite *rw, const struct ir_rule *rule, struct ir_node *node, quern_tensor **out,
                             bool *fits) {
  *fits = false;
  if (rule->apply_all != NULL) {
    *fits = rule->apply_all(rw->ctx, node, out);
  } else if (node->n_out == 1) {
    out[0] = rule->apply != NULL ? rule->apply(rw->ctx, node) : ir_pattern_apply(rw->ctx, rule, node);
    *fits = out[0] != NULL;
  }
  for (int i = 0; *fits && i < node->n_out; i++) {
    if (ir_is_poison(out[i])) return quern_context_check(rw->ctx);
    QUERN_CHECK(ir_same_type(out[i], &node->out[i]), INTERNAL, "rewrite: rule %s turns a result of %s from %s into %s",
                rule->name, ir_ops[node->op].name, ir_type_text((char[IR_TYPE_TEXT]){0}, &node->out[i]),
                ir_type_text((char[IR_TYPE_TEXT]){0}, out[i]));
  }
  return QUERN_STATUS_OK;
}

/* Applies the first rule that fits to a node with final parts: the node is done, or RULED with its
** replacements pushed. */
static quern_status apply_rules(struct rewrite *rw, struct ir_node *node, struct entry *entry) {
  rw->scratch.n = 0;
  if (!base_vec_reserve(&rw->ctx->heap, &rw->scratch, (size_t)node->n_out)) return QUERN_STATUS_MEMORY;
  quern_tensor **out = rw->scratch.at;
  for (size_t r = rw->first[node->op]; r < rw->first[node->op + 1]; r++) {
    bool fits;
    QUERN_TRY(try_rule(rw, rw->rules[r], node, out, &fits));
    if (!fits) continue;
    count_firing(rw, rw->rules[r]);
    QUERN_CHECK(rw->steps++ < rw->most_steps, INTERNAL, "rewrite: no end after %zu steps, the last by rule %s",
                rw->most_steps, rw->rules[r]->name);
    entry->state = RULED;
    entry->to = base_arena_copy(&rw->arena, out, (size_t)node->n_out * sizeof *out);
    if (entry->to == NULL) return QUERN_STATUS_MEMORY;
    bool ready = true;
    for (int i = node->n_out; i-- > 0;) QUERN_TRY(need(rw, (struct item){.node = entry->to[i]->node}, &ready));
    return QUERN_STATUS_OK;
  }
  for (int i = 0; i < node->n_out; i++) out[i] = &node->out[i];
  return finish(rw, entry, node->n_out, out);
}

/* One visit of the node on top of the stack. It leaves the stack when it is done. */
static quern_status visit_node(struct rewrite *rw, struct ir_node *node, struct entry *entry) {
  bool ready = true;
  if (entry->state == RULED) { /* the replacements were pushed after it: they are done */
    for (int i = 0; i < node->n_out; i++) entry->to[i] = final_of(rw, entry->to[i]);
    entry->state = DONE;
    return QUERN_STATUS_OK;
  }
  QUERN_TRY(need_parts(rw, node, &ready));
  if (!ready) return QUERN_STATUS_OK;
  struct ir_node *rebuilt;
  QUERN_TRY(rebuild(rw, node, &rebuilt));
  if (rebuilt == node) return apply_rules(rw, node, entry);
  entry->to = base_arena_alloc(&rw->arena, (size_t)node->n_out * sizeof *entry->to);
  if (entry->to == NULL) return QUERN_STATUS_MEMORY;
  for (int i = 0; i < node->n_out; i++) entry->to[i] = &rebuilt->out[i];
  entry->state = RULED;
  return need(rw, (struct item){.node = rebuilt}, &ready);
}

/* ---- graphs ------------------------------------------------------------------------------------------ */

static quern_status visit_graph(struct rewrite *rw, const struct ir_graph *graph, struct entry *entry) {
  bool ready = true, same = true;
  for (int i = graph->n_results; i-- > 0;) QUERN_TRY(need(rw, (struct item){.node = graph->results[i]->node}, &ready));
  if (!ready) return QUERN_STATUS_OK;
  rw->scratch.n = 0;
  for (int i = 0; i < graph->n_results; i++) {
    quern_tensor *to = final_of(rw, graph->results[i]);
    same &= to == graph->results[i];
    if (!base_vec_push(&rw->ctx->heap, &rw->scratch, to)) return QUERN_STATUS_MEMORY;
  }
  entry->graph = graph;
  if (!same) {
    QUERN_TRY(ir_graph_make(rw->ctx, graph->n_params, graph->params, graph->n_results, rw->scratch.at, &entry->graph));
    struct entry *made = entry_of(rw, (struct item){.graph = entry->graph});
    if (made == NULL) return QUERN_STATUS_MEMORY;
    made->graph = entry->graph;
    made->state = DONE;
  }
  entry->state = DONE;
  return QUERN_STATUS_OK;
}

/* ---- all --------------------------------------------------------------------------------------------- */

/* Works until the stack is empty. */
static quern_status settle(struct rewrite *rw) {
  while (rw->stack.n > 0) {
    struct item item = rw->stack.at[rw->stack.n - 1];
    struct entry *entry = entry_of(rw, item);
    if (entry == NULL) return QUERN_STATUS_MEMORY;
    if (entry->state == DONE) {
      rw->stack.n--;
    } else if (item.node != NULL) {
      QUERN_TRY(visit_node(rw, item.node, entry));
    } else {
      QUERN_TRY(visit_graph(rw, item.graph, entry));
    }
  }
  return QUERN_STATUS_OK;
}

static quern_status rewrite_all(struct rewrite *rw, size_t n, quern_tensor *const *roots, quern_tensor **out) {
  QUERN_TRY(init_rules(rw));
  struct ir_order order = {0};
  QUERN_TRY(ir_topo(rw->ctx, n, roots, &order));
  rw->most_steps = 10000 + 1000 * order.n;
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < order.n && status == QUERN_STATUS_OK; i++) {
    status = push(rw, (struct item){.node = order.at[i]});
    if (status == QUERN_STATUS_OK) status = settle(rw);
  }
  ir_order_fini(rw->ctx, &order);
  QUERN_TRY(status);
  for (size_t i = 0; i < n; i++) out[i] = final_of(rw, roots[i]);
  return QUERN_STATUS_OK;
}

quern_status ir_rewrite(quern_context *ctx, size_t n, quern_tensor *const *roots,
                        const struct ir_rewrite_options *options, quern_tensor **out) {
  QUERN_TRY(quern_context_check(ctx));
  for (size_t i = 0; i < n; i++) QUERN_CHECK(!ir_is_poison(roots[i]), INVALID, "rewrite: root %zu is poison", i);
  static const struct ir_rewrite_options defaults = {0};
  struct rewrite rw = {.ctx = ctx, .options = options != NULL ? options : &defaults};
  base_arena_init(&rw.arena, &ctx->heap);
  base_map_init(&rw.entries, &ctx->heap);
  quern_status status = rewrite_all(&rw, n, roots, out);
  base_vec_fini(&ctx->heap, &rw.stack);
  base_vec_fini(&ctx->heap, &rw.scratch);
  base_map_fini(&rw.entries);
  base_arena_fini(&rw.arena);
  return status;
}
