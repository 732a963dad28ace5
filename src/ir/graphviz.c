/* ir/graphviz.c -- graphs as Graphviz pictures
** out:   a digraph; each subgraph is a cluster, joined by dashed lines to the nodes that use it
** tests: tests/ir/test_text.c
*/
#include "ir/text.h"

/* Constants of more elements are drawn without them. */
enum { ELEMENTS_MOST = 8 };

/* A text inside the quotes of a label. */
static void add_escaped(struct base_str *str, const char *text) {
  for (size_t n; *text != 0; text += n > 0 ? n : 1) {
    unsigned char c = (unsigned char)*text;
    n = base_text_char(text);
    if (c == '"' || c == '\\')
      base_str_printf(str, "\\%c", c);
    else if (n > 0)
      base_str_add_n(str, text, n);
    else
      base_str_printf(str, c == '\n' ? "\\n" : "\\\\x%02x", c);
  }
}

/* Names in a picture: main graph n3, subgraph @f2 f2_n3. */
static void add_prefix(struct base_str *str, const struct ir_text_block *block) {
  if (block->graph != NULL) base_str_printf(str, "f%zu_", block->name);
}

static void add_id(struct base_str *str, const struct ir_text_block *block, const struct ir_node *node) {
  add_prefix(str, block);
  base_str_printf(str, "n%zu", ir_text_block_number(block, node));
}

static void add_types(struct base_str *str, const struct ir_node *node) {
  base_str_add(str, "\\n");
  for (int i = 0; i < node->n_out; i++) {
    if (i > 0) base_str_add(str, " ");
    ir_text_add_type(str, &node->out[i]);
  }
}

static void add_edge(struct base_str *str, const struct ir_text_block *block, const quern_tensor *from) {
  add_id(str, block, from->node);
  base_str_add(str, " -> ");
}

static void add_edge_label(struct base_str *str, const quern_tensor *from) {
  if (from->node->n_out > 1) base_str_printf(str, " [label=\"%d\"]", from->result);
  base_str_add(str, ";\n");
}

static quern_status add_node(struct base_str *str, const struct ir_text_blocks *blocks,
                             const struct ir_text_block *block, const struct ir_node *node) {
  struct base_str attrs;
  base_str_init(&attrs, str->heap);
  ir_text_add_attrs(&attrs, blocks, node, ELEMENTS_MOST);
  quern_status status = base_str_status(&attrs);
  if (status == QUERN_STATUS_OK) {
    base_str_add(str, "  ");
    add_id(str, block, node);
    base_str_printf(str, " [label=\"%s", ir_ops[node->op].name);
    if (attrs.n > 0) {
      base_str_add(str, "\\n");
      add_escaped(str, attrs.at + 1);
    }
    add_types(str, node);
    base_str_printf(str, "\"%s];\n", ir_ops[node->op].n_src == 0 ? " style=filled fillcolor=lightgrey" : "");
    for (int i = 0; i < node->n_src; i++) {
      const quern_tensor *source = ir_text_block_source(block, node, i);
      base_str_add(str, "  ");
      add_edge(str, block, source);
      add_id(str, block, node);
      add_edge_label(str, source);
    }
  }
  base_str_fini(&attrs);
  return status;
}

/* Dashed lines from a node to the results of its subgraphs. */
static void add_uses(struct base_str *str, const struct ir_text_blocks *blocks, const struct ir_text_block *block,
                     const struct ir_node *node) {
  for (int k = 0; k < IR_ATTR_COUNT; k++) {
    if ((ir_ops[node->op].attrs >> k & 1) == 0 || ir_attr_table[k].kind != IR_KIND_GRAPH) continue;
    const char *field = (const char *)node->attrs + ir_attr_table[k].offset;
    const struct ir_text_block *inner =
        ir_text_blocks_find(blocks, *(const struct ir_graph *const *)(const void *)field);
    base_str_printf(str, "  f%zu_out0 -> ", inner->name);
    add_id(str, block, node);
    base_str_printf(str, " [style=dashed label=\"%s\"];\n", ir_attr_table[k].name);
  }
}

static void add_params(struct base_str *str, const struct ir_text_block *block) {
  for (int i = 0; i < block->graph->n_params; i++) {
    base_str_printf(str, "  f%zu_n%d [label=\"%%%d\\n", block->name, i, i);
    ir_text_add_type(str, block->graph->params[i]);
    base_str_add(str, "\" style=filled fillcolor=lightgrey];\n");
  }
}

/* A point for each result, so that clusters have an end to join. */
static void add_results(struct base_str *str, const struct ir_text_block *block, const char *const *names) {
  for (size_t i = 0; i < BASE_MAX(block->n_roots, (size_t)(block->graph != NULL)); i++) {
    base_str_add(str, "  ");
    add_prefix(str, block);
    base_str_printf(str, "out%zu [shape=plaintext label=\"", i);
    if (block->graph == NULL && names != NULL && names[i] != NULL)
      add_escaped(str, names[i]);
    else
      base_str_printf(str, "result %zu", i);
    base_str_add(str, "\"];\n");
  }
  for (size_t i = 0; i < block->n_roots; i++) {
    base_str_add(str, "  ");
    add_edge(str, block, block->roots[i]);
    add_prefix(str, block);
    base_str_printf(str, "out%zu", i);
    add_edge_label(str, block->roots[i]);
  }
}

static quern_status add_block(struct base_str *str, const struct ir_text_blocks *blocks,
                              const struct ir_text_block *block, const char *const *names) {
  if (block->graph != NULL) {
    base_str_printf(str, "subgraph cluster_f%zu {\n  label=\"@f%zu\";\n", block->name, block->name);
    add_params(str, block);
  }
  for (size_t i = 0; i < block->n; i++) {
    QUERN_TRY(add_node(str, blocks, block, block->order.at[block->sequence[i]]));
  }
  add_results(str, block, names);
  if (block->graph != NULL) base_str_add(str, "}\n");
  return QUERN_STATUS_OK;
}

quern_status ir_print_graphviz(quern_context *ctx, struct base_str *str, size_t n, quern_tensor *const *roots,
                               const char *const *names) {
  struct ir_text_blocks blocks;
  quern_status status = ir_text_blocks_init(&blocks, ctx, n, roots);
  base_str_add(str, "digraph quern {\nnode [shape=box fontname=\"monospace\"];\n");
  for (size_t i = 0; i < blocks.n && status == QUERN_STATUS_OK; i++) {
    status = add_block(str, &blocks, blocks.at[i], names);
  }
  for (size_t i = 0; i < blocks.n && status == QUERN_STATUS_OK; i++) {
    const struct ir_text_block *block = blocks.at[i];
    for (size_t k = 0; k < block->n; k++) add_uses(str, &blocks, block, block->order.at[block->sequence[k]]);
  }
  base_str_add(str, "}\n");
  ir_text_blocks_fini(&blocks);
  return status == QUERN_STATUS_OK ? base_str_status(str) : status;
}
