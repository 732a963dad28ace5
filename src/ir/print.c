/* ir/print.c -- graphs as text that parses back to the same graph
** see:   docs/ir.md, "The text form"
** tests: tests/ir/test_text.c, tests/fuzz/fuzz_qir.c
*/
#include "ir/text.h"

#include <inttypes.h>
#include <math.h>

/* ---- pieces --------------------------------------------------------------------------------------------- */

bool ir_text_is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

quern_dtype ir_text_bits_dtype(quern_dtype dtype) {
  static const quern_dtype of_size[] = {
      [1] = QUERN_DTYPE_U8, [2] = QUERN_DTYPE_U16, [4] = QUERN_DTYPE_U32, [8] = QUERN_DTYPE_U64};
  return of_size[base_dtypes[dtype].size];
}

static void add_ints(struct base_str *str, int64_t n, const int64_t *at) {
  base_str_add(str, "[");
  for (int64_t i = 0; i < n; i++) base_str_printf(str, i > 0 ? ",%" PRId64 : "%" PRId64, at[i]);
  base_str_add(str, "]");
}

void ir_text_add_type(struct base_str *str, const quern_tensor *t) {
  base_str_add(str, base_dtypes[t->dtype].name);
  add_ints(str, t->rank, t->dims);
}

void ir_text_add_ref(struct base_str *str, const struct ir_text_block *block, quern_tensor *t) {
  base_str_printf(str, "%%%zu", ir_text_block_number(block, t->node));
  if (t->node->n_out > 1) base_str_printf(str, ".%d", t->result);
}

void ir_text_add_string(struct base_str *str, const char *text) {
  base_str_add(str, "\"");
  for (size_t n; *text != 0; text += n > 0 ? n : 1) {
    unsigned char c = (unsigned char)*text;
    n = base_text_char(text);
    if (c == '"' || c == '\\')
      base_str_printf(str, "\\%c", c);
    else if (c == '\n')
      base_str_add(str, "\\n");
    else if (c == '\t')
      base_str_add(str, "\\t");
    else if (n == 0)
      base_str_printf(str, "\\x%02x", c);
    else
      base_str_add_n(str, text, n);
  }
  base_str_add(str, "\"");
}

/* An element; a NaN that is not the one "nan" stands for as its bits. */
static void add_element(struct base_str *str, quern_dtype dtype, const void *data, size_t i) {
  if (base_dtype_is(dtype, BASE_FLOAT) && isnan(base_load_float(dtype, data, i))) {
    quern_dtype word = ir_text_bits_dtype(dtype);
    uint64_t nan = 0, bits = base_load_int(word, data, i);
    base_store_float(dtype, &nan, 0, (double)NAN);
    if (bits != base_load_int(word, &nan, 0)) {
      base_str_printf(str, "0x%0*" PRIx64, (int)(2 * base_dtypes[dtype].size), bits);
      return;
    }
  }
  base_element_print(str, dtype, data, i);
}

static void add_elements(struct base_str *str, quern_dtype dtype, size_t n, const void *data) {
  base_str_add(str, "{");
  for (size_t i = 0; i < n; i++) {
    if (i > 0) base_str_add(str, ", ");
    add_element(str, dtype, data, i);
  }
  base_str_add(str, "}");
}

/* ---- attributes: one printer per kind --------------------------------------------------------------------- */

static void add_value(struct base_str *str, const struct ir_text_blocks *blocks, const struct ir_node *node,
                      enum ir_attr_kind kind, const void *field) {
  const struct ir_ints *ints = field;
  const struct ir_reals *reals = field;
  quern_dtype dtype = node->out[0].dtype;
  switch (kind) {
  case IR_KIND_INT: base_str_printf(str, "%" PRId64, *(const int64_t *)field); break;
  case IR_KIND_INTS: add_ints(str, ints->n, ints->at); break;
  case IR_KIND_REALS:
    base_str_add(str, "[");
    for (int i = 0; i < reals->n; i++) {
      if (i > 0) base_str_add(str, ",");
      add_element(str, QUERN_DTYPE_F64, reals->at, (size_t)i);
    }
    base_str_add(str, "]");
    break;
  case IR_KIND_DTYPE: base_str_add(str, base_dtypes[*(const quern_dtype *)field].name); break;
  case IR_KIND_REDUCE: base_str_add(str, ir_reduce_names[*(const enum ir_reduce *)field]); break;
  case IR_KIND_COMBINE: base_str_add(str, ir_combine_names[*(const enum ir_combine *)field]); break;
  case IR_KIND_NAME: ir_text_add_string(str, *(const char *const *)field); break;
  case IR_KIND_GRAPH:
    base_str_printf(str, "@f%zu", ir_text_blocks_find(blocks, *(const struct ir_graph *const *)field)->name);
    break;
  case IR_KIND_DATA: add_elements(str, dtype, (size_t)ir_count(node->out), ((const struct ir_data *)field)->at); break;
  case IR_KIND_BUFFER:
    add_elements(str, dtype, (size_t)ir_count(node->out), (*(struct ir_buffer *const *)field)->data);
    break;
  }
}

/* Elements that stand in the attribute; SIZE_MAX of a buffer that is printed without them. */
static size_t elements_of(const struct ir_node *node, enum ir_attr_kind kind, const void *field) {
  if (kind == IR_KIND_DATA) return (size_t)ir_count(node->out);
  if (kind != IR_KIND_BUFFER) return 0;
  const struct ir_buffer *buffer = *(struct ir_buffer *const *)field;
  bool whole = buffer != NULL && buffer->data != NULL && ir_bytes(node->out) <= IR_TEXT_BUFFER_BYTES;
  return whole ? (size_t)ir_count(node->out) : SIZE_MAX;
}

void ir_text_add_attrs(struct base_str *str, const struct ir_text_blocks *blocks, const struct ir_node *node,
                       size_t most) {
  for (int k = 0; k < IR_ATTR_COUNT; k++) {
    if ((ir_ops[node->op].attrs >> k & 1) == 0) continue;
    const void *field = (const char *)node->attrs + ir_attr_table[k].offset;
    size_t n = elements_of(node, ir_attr_table[k].kind, field);
    if (n == SIZE_MAX || n > most) continue;
    base_str_printf(str, " %s=", ir_attr_table[k].name);
    add_value(str, blocks, node, ir_attr_table[k].kind, field);
  }
}

/* ---- lines ---------------------------------------------------------------------------------------------- */

static void add_line(struct base_str *str, const struct ir_text_blocks *blocks, const struct ir_text_block *block,
                     const struct ir_node *node) {
  base_str_printf(str, "%s%%%zu = %s", block->graph != NULL ? "  " : "", ir_text_block_number(block, node),
                  ir_ops[node->op].name);
  for (int i = 0; i < node->n_src; i++) {
    base_str_add(str, " ");
    ir_text_add_ref(str, block, ir_text_block_source(block, node, i));
  }
  ir_text_add_attrs(str, blocks, node, SIZE_MAX - 1);
  if (ir_ops[node->op].n_src != 0) {
    base_str_add(str, " :");
    for (int i = 0; i < node->n_out; i++) {
      base_str_add(str, " ");
      ir_text_add_type(str, &node->out[i]);
    }
  }
  base_str_add(str, "\n");
}

static void add_head(struct base_str *str, const struct ir_text_block *block) {
  base_str_printf(str, "fn @f%zu (", block->name);
  for (int i = 0; i < block->graph->n_params; i++) {
    base_str_printf(str, i > 0 ? ", %%%d: " : "%%%d: ", i);
    ir_text_add_type(str, block->graph->params[i]);
  }
  base_str_add(str, ") {\n");
}

/* A name as it is when it is a word, else quoted. */
static void add_name(struct base_str *str, const char *name) {
  size_t n = 0;
  while (ir_text_is_word(name[n])) n++;
  if (n > 0 && name[n] == 0)
    base_str_add(str, name);
  else
    ir_text_add_string(str, name);
}

static void add_return(struct base_str *str, const struct ir_text_block *block, const char *const *names) {
  base_str_add(str, block->graph != NULL ? "  return" : "return");
  for (size_t i = 0; i < block->n_roots; i++) {
    base_str_add(str, " ");
    if (names != NULL && names[i] != NULL) {
      add_name(str, names[i]);
      base_str_add(str, "=");
    }
    ir_text_add_ref(str, block, block->roots[i]);
  }
  base_str_add(str, "\n");
}

quern_status ir_print(quern_context *ctx, struct base_str *str, size_t n, quern_tensor *const *roots,
                      const char *const *names) {
  struct ir_text_blocks blocks;
  quern_status status = ir_text_blocks_init(&blocks, ctx, n, roots);
  if (status == QUERN_STATUS_OK) base_str_printf(str, "quern %d\n", IR_TEXT_VERSION);
  for (size_t i = 0; i < blocks.n && status == QUERN_STATUS_OK; i++) {
    const struct ir_text_block *block = blocks.at[i];
    if (block->graph != NULL) add_head(str, block);
    for (size_t k = 0; k < block->n; k++) add_line(str, &blocks, block, block->order.at[block->sequence[k]]);
    add_return(str, block, block->graph != NULL ? NULL : names);
    if (block->graph != NULL) base_str_add(str, "}\n");
  }
  ir_text_blocks_fini(&blocks);
  return status == QUERN_STATUS_OK ? base_str_status(str) : status;
}
