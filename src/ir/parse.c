/* ir/parse.c -- text to graphs: the blocks, the lines and what they refer to
** in:    any bytes       out: interned tensors, or a failure at line:column that leaves the context usable
** keeps: time and memory are linear in the text; a registered composite has the body its kind defines
** see:   docs/ir.md, "The text form"      tests: tests/ir/test_parse.c, tests/fuzz/fuzz_qir.c
*/
#include "ir/text.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>

enum { NUMBER_MOST = INT32_MAX };

quern_status ir_parse_failed(struct ir_parser *p, const char *at, quern_status status) {
  quern_status pending = quern_context_check(p->cursor.ctx);
  if (pending != QUERN_STATUS_OK) status = pending;
  return ir_cursor_error(&p->cursor, at, status, "%s", quern_last_error());
}

/* ---- values of a block by number ------------------------------------------------------------------------ */

struct value {
  int64_t number;
  struct ir_node *node;
};

static uint64_t hash_number(int64_t number) { return base_hash_u64(BASE_HASH_SEED, (uint64_t)number); }

static bool is_value(const void *item, const void *number) {
  return ((const struct value *)item)->number == *(const int64_t *)number;
}

static const struct value *find_value(const struct ir_parser *p, int64_t number) {
  return base_map_find(&p->values, hash_number(number), is_value, &number);
}

static quern_status add_value(struct ir_parser *p, int64_t number, struct ir_node *node) {
  struct value *value = base_arena_new(&p->scratch, struct value);
  if (value == NULL) return QUERN_STATUS_MEMORY;
  *value = (struct value){.number = number, .node = node};
  return base_map_add(&p->values, hash_number(number), value) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

/* Forgets the values of the block before. */
static void begin_block(struct ir_parser *p) {
  base_map_fini(&p->values);
  base_map_init(&p->values, &p->cursor.ctx->heap);
}

/* Reads the %number of a new value. */
static quern_status read_new_number(struct ir_parser *p, const char *what, int64_t *number) {
  const char *start = p->cursor.at;
  if (!ir_cursor_take(&p->cursor, '%')) return ir_cursor_expected(&p->cursor, what);
  QUERN_TRY(ir_cursor_int(&p->cursor, "the number of a value", 0, NUMBER_MOST, number));
  if (find_value(p, *number) != NULL)
    return ir_cursor_error(&p->cursor, start, QUERN_STATUS_PARSE, "%%%" PRId64 " is defined twice", *number);
  return QUERN_STATUS_OK;
}

/* Splits the text "12.1" of a reference at its dot. */
static quern_status read_ref_numbers(struct ir_parser *p, int64_t *number, int64_t *result) {
  struct ir_cursor part = p->cursor;
  const char *stop = p->cursor.stop;
  for (part.stop = part.at; part.stop < stop && *part.stop >= '0' && *part.stop <= '9';) part.stop++;
  QUERN_TRY(part.stop > part.at ? ir_cursor_int(&part, "the number of a value", 0, NUMBER_MOST, number)
                                : ir_cursor_expected(&p->cursor, "the number of a value"));
  p->cursor.at = part.at;
  *result = 0;
  if (!ir_cursor_take(&p->cursor, '.')) return QUERN_STATUS_OK;
  return ir_cursor_int(&p->cursor, "the number of a result", 0, INT_MAX, result);
}

static quern_status read_ref(struct ir_parser *p, quern_tensor **t) {
  const char *start = p->cursor.at;
  int64_t number = 0, result = 0;
  if (!ir_cursor_take(&p->cursor, '%')) return ir_cursor_expected(&p->cursor, "a value such as %0");
  QUERN_TRY(read_ref_numbers(p, &number, &result));
  const struct value *value = find_value(p, number);
  if (value == NULL)
    return ir_cursor_error(&p->cursor, start, QUERN_STATUS_PARSE, "%%%" PRId64 " is not defined before this line",
                           number);
  if (result >= value->node->n_out)
    return ir_cursor_error(&p->cursor, start, QUERN_STATUS_PARSE, "%%%" PRId64 " (%s) has %d result%s, no .%" PRId64,
                           number, ir_ops[value->node->op].name, value->node->n_out, value->node->n_out == 1 ? "" : "s",
                           result);
  *t = &value->node->out[result];
  return QUERN_STATUS_OK;
}

/* Reads values up to the first thing that is none. */
static quern_status read_refs(struct ir_parser *p) {
  p->operands.n = 0;
  for (;;) {
    quern_tensor *t = NULL;
    ir_cursor_skip_space(&p->cursor);
    if (!ir_cursor_is(&p->cursor, '%')) return QUERN_STATUS_OK;
    QUERN_TRY(read_ref(p, &t));
    if (p->operands.n == INT_MAX)
      return ir_cursor_error(&p->cursor, p->cursor.at, QUERN_STATUS_OVERFLOW, "too many operands");
    if (!base_vec_push(&p->cursor.ctx->heap, &p->operands, t)) return QUERN_STATUS_MEMORY;
  }
}

/* ---- subgraphs by name --------------------------------------------------------------------------------- */

static uint64_t hash_name(struct ir_span name) { return base_hash_bytes(BASE_HASH_SEED, name.at, name.n); }

static bool is_named(const void *item, const void *name) {
  struct ir_span a = ((const struct ir_named_graph *)item)->name, b = *(const struct ir_span *)name;
  return a.n == b.n && memcmp(a.at, b.at, a.n) == 0;
}

static quern_status read_graph_name(struct ir_parser *p, struct ir_span *name, const struct ir_named_graph **found) {
  if (!ir_cursor_take(&p->cursor, '@')) return ir_cursor_expected(&p->cursor, "a subgraph such as @f0");
  QUERN_TRY(ir_cursor_word(&p->cursor, "the name of a subgraph", name));
  *found = base_map_find(&p->graphs, hash_name(*name), is_named, name);
  return QUERN_STATUS_OK;
}

quern_status ir_parse_graph_ref(struct ir_parser *p, const struct ir_graph **graph) {
  const char *start = p->cursor.at;
  struct ir_span name = {0};
  const struct ir_named_graph *found = NULL;
  QUERN_TRY(read_graph_name(p, &name, &found));
  if (found == NULL)
    return ir_cursor_error(&p->cursor, start, QUERN_STATUS_PARSE, "@%.*s is not defined before this line",
                           (int)BASE_MIN(name.n, 64), name.at);
  *graph = found->graph;
  return QUERN_STATUS_OK;
}

/* ---- lines ---------------------------------------------------------------------------------------------- */

/* Names that operations had in earlier texts, which are read for good. */
static const struct {
  const char *name;
  enum ir_op op;
} former_names[] = {{"keep", IR_CHECKPOINT}, {"fold", IR_COL2IM}};

static quern_status read_op(struct ir_parser *p, enum ir_op *op) {
  enum { FORMER = BASE_COUNT(former_names) };
  const char *names[IR_OP_COUNT + FORMER], *start = p->cursor.at;
  size_t i;
  for (i = 0; i < IR_OP_COUNT; i++) names[i] = ir_ops[i].name;
  for (i = 0; i < FORMER; i++) names[IR_OP_COUNT + i] = former_names[i].name;
  QUERN_TRY(ir_cursor_name(&p->cursor, "an operation", IR_OP_COUNT + FORMER, names, &i));
  *op = i < IR_OP_COUNT ? (enum ir_op)i : former_names[i - IR_OP_COUNT].op;
  if (*op == IR_PARAM)
    return ir_cursor_error(&p->cursor, start, QUERN_STATUS_PARSE,
                           "param is written in the head of a fn: (%%0: f32[2,3])");
  return QUERN_STATUS_OK;
}

/* Checks ": type type ..." against the node's results, where it is given. */
static quern_status check_types(struct ir_parser *p, const struct ir_node *node) {
  struct ir_cursor *cursor = &p->cursor;
  ir_cursor_skip_space(cursor);
  const char *start = cursor->at;
  if (!ir_cursor_take(cursor, ':')) return QUERN_STATUS_OK;
  int n = 0;
  for (;; n++) {
    ir_cursor_skip_space(cursor);
    if (cursor->at == cursor->stop || !ir_text_is_word(*cursor->at)) break;
    const char *at = cursor->at;
    struct ir_type type;
    char said[IR_TYPE_TEXT], is[IR_TYPE_TEXT];
    QUERN_TRY(ir_cursor_type(cursor, &type));
    if (n >= node->n_out) continue;
    quern_tensor like = {.dtype = type.dtype, .rank = type.rank, .dims = type.dims};
    if (!ir_same_type(&like, &node->out[n]))
      return ir_cursor_error(cursor, at, QUERN_STATUS_PARSE, "result %d of %s is %s, the text says %s", n,
                             ir_ops[node->op].name, ir_type_text(is, &node->out[n]), ir_type_text(said, &like));
  }
  if (n != node->n_out)
    return ir_cursor_error(cursor, start, QUERN_STATUS_PARSE, "%s has %d result%s, the text says %d",
                           ir_ops[node->op].name, node->n_out, node->n_out == 1 ? "" : "s", n);
  return QUERN_STATUS_OK;
}

/* A composite that the context knows has the body its kind defines, or a device's kernel would mean something else. */
static quern_status check_composite(struct ir_parser *p, const char *at, const struct ir_attrs *attrs) {
  quern_context *ctx = p->cursor.ctx;
  const struct ir_composite *kind = ir_composite_find(ctx, attrs->name);
  const struct ir_graph *body;
  if (kind == NULL || kind->body == NULL) return QUERN_STATUS_OK;
  if (kind->admits == NULL || !kind->admits(attrs, (int)p->operands.n, p->operands.at)) {
    base_error(QUERN_STATUS_PARSE, "composite \"%s\" does not admit these operands, ints and reals", attrs->name);
    return ir_parse_failed(p, at, QUERN_STATUS_PARSE); /* or why, when the kind has recorded it */
  }
  quern_status status = ir_composite_body(ctx, kind, attrs, (int)p->operands.n, p->operands.at, &body);
  if (status != QUERN_STATUS_OK) return ir_parse_failed(p, at, status);
  if (body != attrs->body)
    return ir_cursor_error(&p->cursor, at, QUERN_STATUS_PARSE,
                           "the body of composite \"%s\" is not the one that Quern defines for these operands",
                           attrs->name);
  return QUERN_STATUS_OK;
}

/* Checks what the op's row says of the operands, before the op sees them. */
static quern_status check_operands(struct ir_parser *p, const char *at, enum ir_op op) {
  int want = ir_ops[op].n_src;
  if (want < 0 || p->operands.n == (size_t)want) return QUERN_STATUS_OK;
  return ir_cursor_error(&p->cursor, at, QUERN_STATUS_PARSE, "%s takes %d operand%s, found %zu", ir_ops[op].name, want,
                         want == 1 ? "" : "s", p->operands.n);
}

/* %n = op operands attributes : types */
static quern_status read_statement(struct ir_parser *p, bool closed) {
  struct ir_cursor *cursor = &p->cursor;
  struct ir_attrs attrs = {0};
  int64_t number;
  enum ir_op op;
  QUERN_TRY(read_new_number(p, closed ? "a value such as %0, or return" : "a value such as %0, fn or return", &number));
  ir_cursor_skip_space(cursor);
  if (!ir_cursor_take(cursor, '=')) return ir_cursor_expected(cursor, "'='");
  ir_cursor_skip_space(cursor);
  const char *start = cursor->at;
  QUERN_TRY(read_op(p, &op));
  if (closed && (ir_ops[op].flags & IR_IDENTITY))
    return ir_cursor_error(cursor, start, QUERN_STATUS_PARSE, "%s cannot stand in a fn: make it a parameter",
                           ir_ops[op].name);
  QUERN_TRY(read_refs(p));
  QUERN_TRY(check_operands(p, start, op));
  QUERN_TRY(ir_parse_attrs(p, op, &attrs));
  if (ir_cursor_is(cursor, '%'))
    return ir_cursor_error(cursor, cursor->at, QUERN_STATUS_PARSE, "operands come before the attributes");
  if (op == IR_COMPOSITE) QUERN_TRY(check_composite(p, start, &attrs));
  const quern_tensor *made = ir_make(cursor->ctx, op, (int)p->operands.n, p->operands.at, &attrs);
  if (ir_is_poison(made)) return ir_parse_failed(p, start, QUERN_STATUS_PARSE);
  QUERN_TRY(check_types(p, made->node));
  QUERN_TRY(add_value(p, number, made->node));
  if (op == IR_INPUT || op == IR_STATE) {
    if (!base_vec_push(&cursor->ctx->heap, &p->inputs, &made->node->out[0])) return QUERN_STATUS_MEMORY;
  }
  return ir_cursor_take_end_of_line(cursor);
}

/* Takes a word when it stands at the cursor. */
static bool take_keyword(struct ir_parser *p, const char *word) {
  struct ir_cursor ahead = p->cursor;
  struct ir_span span;
  size_t n = strlen(word);
  bool is = (size_t)(ahead.stop - ahead.at) >= n && memcmp(ahead.at, word, n) == 0 &&
            ir_cursor_word(&ahead, word, &span) == QUERN_STATUS_OK && span.n == n;
  if (is) p->cursor.at = ahead.at;
  return is;
}

/* Reads lines up to the block's return, which it takes. */
static quern_status read_statements(struct ir_parser *p, bool closed) {
  for (;;) {
    ir_cursor_skip_lines(&p->cursor);
    if (take_keyword(p, "return")) return QUERN_STATUS_OK;
    QUERN_TRY(read_statement(p, closed));
  }
}

/* ---- blocks --------------------------------------------------------------------------------------------- */

/* (%0: f32[], %1: f32[4,5]); the parameters are left in p->operands. */
static quern_status read_params(struct ir_parser *p) {
  struct ir_cursor *cursor = &p->cursor;
  p->operands.n = 0;
  if (!ir_cursor_take(cursor, '(')) return ir_cursor_expected(cursor, "'(' of the parameters");
  for (bool more;;) {
    int64_t number = 0;
    struct ir_type type;
    QUERN_TRY(ir_cursor_next(cursor, p->operands.n == 0, ')', &more));
    if (!more) return QUERN_STATUS_OK;
    const char *start = cursor->at;
    QUERN_TRY(read_new_number(p, "a parameter such as %0", &number));
    ir_cursor_skip_lines(cursor);
    if (!ir_cursor_take(cursor, ':')) return ir_cursor_expected(cursor, "':' and the parameter's type");
    ir_cursor_skip_lines(cursor);
    QUERN_TRY(ir_cursor_type(cursor, &type));
    quern_tensor *leaf = ir_leaf(cursor->ctx, type.dtype, type.rank, type.dims);
    if (ir_is_poison(leaf)) return ir_parse_failed(p, start, QUERN_STATUS_PARSE);
    QUERN_TRY(add_value(p, number, leaf->node));
    if (!base_vec_push(&cursor->ctx->heap, &p->operands, leaf)) return QUERN_STATUS_MEMORY;
  }
}

/* fn @name (params) { lines return results }, after the word fn. */
static quern_status read_fn(struct ir_parser *p) {
  struct ir_cursor *cursor = &p->cursor;
  ir_cursor_skip_space(cursor);
  const char *start = cursor->at;
  struct ir_span name = {0};
  const struct ir_named_graph *found = NULL;
  QUERN_TRY(read_graph_name(p, &name, &found));
  if (found != NULL)
    return ir_cursor_error(cursor, start, QUERN_STATUS_PARSE, "@%.*s is defined twice", (int)BASE_MIN(name.n, 64),
                           name.at);
  begin_block(p);
  ir_cursor_skip_space(cursor);
  QUERN_TRY(read_params(p));
  int n_params = (int)p->operands.n;
  quern_tensor **params = base_arena_copy(&p->scratch, p->operands.at, p->operands.n * sizeof *params);
  struct ir_named_graph *made = base_arena_new(&p->scratch, struct ir_named_graph);
  if (params == NULL || made == NULL) return QUERN_STATUS_MEMORY;
  ir_cursor_skip_space(cursor);
  if (!ir_cursor_take(cursor, '{')) return ir_cursor_expected(cursor, "'{'");
  QUERN_TRY(ir_cursor_take_end_of_line(cursor));
  QUERN_TRY(read_statements(p, true));
  QUERN_TRY(read_refs(p));
  QUERN_TRY(ir_cursor_take_end_of_line(cursor));
  ir_cursor_skip_lines(cursor);
  if (!ir_cursor_take(cursor, '}')) return ir_cursor_expected(cursor, "'}' after return");
  QUERN_TRY(ir_cursor_take_end_of_line(cursor));
  made->name = name;
  quern_status status = ir_graph_make(cursor->ctx, n_params, params, (int)p->operands.n, p->operands.at, &made->graph);
  if (status != QUERN_STATUS_OK) return ir_parse_failed(p, start, status);
  return base_map_add(&p->graphs, hash_name(name), made) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

/* The results of the main graph: %3, or name=%3; they are left in p->operands and p->names. */
static quern_status read_outputs(struct ir_parser *p) {
  struct ir_cursor *cursor = &p->cursor;
  struct base_heap *heap = &cursor->ctx->heap;
  for (p->operands.n = 0;;) {
    const char *name = NULL;
    quern_tensor *t = NULL;
    ir_cursor_skip_space(cursor);
    if (cursor->at == cursor->stop || *cursor->at == '\n') return QUERN_STATUS_OK;
    if (ir_cursor_is(cursor, '"')) {
      QUERN_TRY(ir_cursor_string(cursor, &p->scratch, &name));
    } else if (!ir_cursor_is(cursor, '%')) {
      struct ir_span word;
      QUERN_TRY(ir_cursor_word(cursor, "a value such as %0, or name=%0", &word));
      name = base_arena_string(&p->scratch, word.at, word.n);
      if (name == NULL) return QUERN_STATUS_MEMORY;
    }
    if (name != NULL && !ir_cursor_take(cursor, '=')) return ir_cursor_expected(cursor, "'=' and the output");
    QUERN_TRY(read_ref(p, &t));
    if (!base_vec_push(heap, &p->operands, t) || !base_vec_push(heap, &p->names, name)) return QUERN_STATUS_MEMORY;
  }
}

static quern_status read_version(struct ir_parser *p) {
  int64_t version;
  ir_cursor_skip_lines(&p->cursor);
  if (!take_keyword(p, "quern")) return ir_cursor_expected(&p->cursor, "the text to begin with \"quern 1\"");
  ir_cursor_skip_space(&p->cursor);
  const char *start = p->cursor.at;
  QUERN_TRY(ir_cursor_int(&p->cursor, "a version", 0, INT64_MAX, &version));
  if (version != IR_TEXT_VERSION)
    return ir_cursor_error(&p->cursor, start, QUERN_STATUS_PARSE,
                           "the text is of version %" PRId64 ", this Quern reads %d", version, IR_TEXT_VERSION);
  return ir_cursor_take_end_of_line(&p->cursor);
}

/* The whole text. Subgraphs come before the first line of the main graph. */
static quern_status read_text(struct ir_parser *p) {
  QUERN_TRY(read_version(p));
  for (;;) {
    ir_cursor_skip_lines(&p->cursor);
    if (!take_keyword(p, "fn")) break;
    QUERN_TRY(read_fn(p));
  }
  begin_block(p);
  QUERN_TRY(read_statements(p, false));
  QUERN_TRY(read_outputs(p));
  ir_cursor_skip_lines(&p->cursor);
  if (p->cursor.at != p->cursor.stop) return ir_cursor_expected(&p->cursor, "the end of the text after return");
  return QUERN_STATUS_OK;
}

/* ---- the door ------------------------------------------------------------------------------------------- */

static quern_status keep(struct ir_parser *p, struct ir_module *module) {
  struct base_arena *arena = &p->cursor.ctx->arena;
  *module = (struct ir_module){.n_outputs = p->operands.n, .n_inputs = p->inputs.n};
  module->outputs = base_arena_copy(arena, p->operands.at, p->operands.n * sizeof *p->operands.at);
  module->inputs = base_arena_copy(arena, p->inputs.at, p->inputs.n * sizeof *p->inputs.at);
  module->names = base_arena_copy(arena, p->names.at, p->names.n * sizeof *p->names.at);
  if (module->outputs == NULL || module->inputs == NULL || module->names == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < p->names.n; i++) {
    if (module->names[i] == NULL) continue;
    module->names[i] = base_arena_string(arena, module->names[i], strlen(module->names[i]));
    if (module->names[i] == NULL) return QUERN_STATUS_MEMORY;
  }
  return QUERN_STATUS_OK;
}

quern_status ir_parse(quern_context *ctx, const char *text, size_t bytes, struct ir_module *module) {
  static const char nothing[1];
  if (text == NULL) text = nothing;
  QUERN_TRY(quern_context_check(ctx));
  struct base_heap *heap = &ctx->heap;
  struct ir_parser p = {.cursor = {.ctx = ctx, .begin = text, .at = text, .stop = text + bytes}};
  const char *file;
  int line;
  base_place_get(&file, &line);
  quern_place_set(NULL, 0); /* the text's lines are the places of this call's errors */
  base_arena_init(&p.scratch, heap);
  base_map_init(&p.graphs, heap);
  base_map_init(&p.values, heap);
  quern_status status = read_text(&p);
  if (status == QUERN_STATUS_OK) status = keep(&p, module);
  base_map_fini(&p.graphs);
  base_map_fini(&p.values);
  base_vec_fini(heap, &p.ints);
  base_vec_fini(heap, &p.reals);
  base_vec_fini(heap, &p.bytes);
  base_vec_fini(heap, &p.operands);
  base_vec_fini(heap, &p.inputs);
  base_vec_fini(heap, &p.names);
  base_arena_fini(&p.scratch);
  quern_place_set(file, line);
  return status;
}
