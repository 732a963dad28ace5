/* ir/parse_attr.c -- reading the attributes of a line: one reader per kind, no op has its own
** tests: tests/ir/test_parse.c, tests/fuzz/fuzz_qir.c
*/
#include "ir/text.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>

/* An attribute being read. */
struct reading {
  struct ir_parser *p;
  enum ir_op op;
  struct ir_attrs *attrs;
  uint64_t seen; /* bits of the attributes read before */
};

static bool has_seen(const struct reading *r, enum ir_attr_id attr) { return (r->seen >> attr & 1) != 0; }

/* ---- lists ---------------------------------------------------------------------------------------------- */

/* Begins a list; `what` is said when it does not. */
static quern_status open_list(struct ir_parser *p, char open, const char *what) {
  if (!ir_cursor_take(&p->cursor, open)) return ir_cursor_expected(&p->cursor, what);
  return QUERN_STATUS_OK;
}

static quern_status check_length(struct ir_parser *p, size_t n) {
  if (n < INT_MAX) return QUERN_STATUS_OK;
  return ir_cursor_error(&p->cursor, p->cursor.at, QUERN_STATUS_OVERFLOW, "a list has at most %d numbers", INT_MAX);
}

static quern_status read_INTS(struct reading *r, void *field) {
  struct ir_parser *p = r->p;
  struct ir_ints *list = field;
  p->ints.n = 0;
  QUERN_TRY(open_list(p, '[', "'[' of a list of integers"));
  for (bool more;;) {
    int64_t x;
    QUERN_TRY(ir_cursor_next(&p->cursor, p->ints.n == 0, ']', &more));
    if (!more) break;
    QUERN_TRY(ir_cursor_int(&p->cursor, "an integer", INT64_MIN, INT64_MAX, &x));
    QUERN_TRY(check_length(p, p->ints.n));
    if (!base_vec_push(&p->cursor.ctx->heap, &p->ints, x)) return QUERN_STATUS_MEMORY;
  }
  list->n = (int)p->ints.n;
  list->at = base_arena_copy(&p->scratch, p->ints.at, p->ints.n * sizeof *p->ints.at);
  return list->at != NULL ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static quern_status read_REALS(struct reading *r, void *field) {
  struct ir_parser *p = r->p;
  struct ir_reals *list = field;
  p->reals.n = 0;
  QUERN_TRY(open_list(p, '[', "'[' of a list of numbers"));
  for (bool more;;) {
    double x;
    QUERN_TRY(ir_cursor_next(&p->cursor, p->reals.n == 0, ']', &more));
    if (!more) break;
    QUERN_TRY(ir_cursor_element(&p->cursor, QUERN_DTYPE_F64, &x));
    QUERN_TRY(check_length(p, p->reals.n));
    if (!base_vec_push(&p->cursor.ctx->heap, &p->reals, x)) return QUERN_STATUS_MEMORY;
  }
  list->n = (int)p->reals.n;
  list->at = base_arena_copy(&p->scratch, p->reals.at, p->reals.n * sizeof *p->reals.at);
  return list->at != NULL ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

/* ---- elements ------------------------------------------------------------------------------------------- */

/* How many elements the shape that was read before has. */
static quern_status count_elements(struct reading *r, const char *at, int64_t *count) {
  struct ir_parser *p = r->p;
  struct ir_ints shape = r->attrs->shape;
  if (!has_seen(r, IR_ATTR_dtype) || !has_seen(r, IR_ATTR_shape))
    return ir_cursor_error(&p->cursor, at, QUERN_STATUS_PARSE, "dtype and shape come before the elements");
  bool valid = shape.n <= QUERN_MAX_RANK;
  for (int i = 0; i < shape.n; i++) valid = valid && shape.at[i] >= 0;
  if (!valid)
    return ir_cursor_error(&p->cursor, at, QUERN_STATUS_PARSE,
                           "the elements' shape is none: at most %d sizes, not negative", QUERN_MAX_RANK);
  quern_status status = ir_type_count(r->attrs->dtype, shape.n, shape.at, count);
  return status == QUERN_STATUS_OK ? status : ir_parse_failed(p, at, status);
}

/* Reads {a, b, ...} into p->bytes: as many elements as the shape has. */
static quern_status read_elements(struct reading *r) {
  struct ir_parser *p = r->p;
  struct ir_cursor *cursor = &p->cursor;
  size_t size = base_dtypes[r->attrs->dtype].size;
  const char *start = cursor->at;
  int64_t want = 0, n = 0;
  QUERN_TRY(count_elements(r, start, &want));
  QUERN_TRY(open_list(p, '{', "'{' of the elements"));
  p->bytes.n = 0;
  for (bool more;; n++) {
    QUERN_TRY(ir_cursor_next(cursor, n == 0, '}', &more));
    if (!more) break;
    if (n == want)
      return ir_cursor_error(cursor, cursor->at, QUERN_STATUS_PARSE,
                             "the shape has %" PRId64 " elements, there are more", want);
    if (!base_vec_reserve(&cursor->ctx->heap, &p->bytes, size)) return QUERN_STATUS_MEMORY;
    QUERN_TRY(ir_cursor_element(cursor, r->attrs->dtype, p->bytes.at + p->bytes.n));
    p->bytes.n += size;
  }
  if (n != want)
    return ir_cursor_error(cursor, start, QUERN_STATUS_PARSE, "the shape has %" PRId64 " elements, found %" PRId64,
                           want, n);
  return QUERN_STATUS_OK;
}

static quern_status read_DATA(struct reading *r, void *field) {
  struct ir_data *data = field;
  QUERN_TRY(read_elements(r));
  data->n = r->p->bytes.n;
  data->at = base_arena_copy(&r->p->scratch, r->p->bytes.at, data->n);
  return data->at != NULL ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static quern_status read_BUFFER(struct reading *r, void *field) {
  QUERN_TRY(read_elements(r));
  struct ir_buffer *buffer = ir_buffer_new(r->p->cursor.ctx, r->p->bytes.n);
  if (buffer == NULL) return QUERN_STATUS_MEMORY;
  if (buffer->bytes > 0) memcpy(buffer->data, r->p->bytes.at, buffer->bytes);
  *(struct ir_buffer **)field = buffer;
  return QUERN_STATUS_OK;
}

/* ---- single values -------------------------------------------------------------------------------------- */

static quern_status read_INT(struct reading *r, void *field) {
  return ir_cursor_int(&r->p->cursor, "an integer", INT64_MIN, INT64_MAX, field);
}

static quern_status read_DTYPE(struct reading *r, void *field) { return ir_cursor_dtype(&r->p->cursor, field); }

static quern_status read_REDUCE(struct reading *r, void *field) {
  size_t i;
  QUERN_TRY(ir_cursor_name(&r->p->cursor, "a reduction", IR_REDUCE_COUNT, ir_reduce_names, &i));
  *(enum ir_reduce *)field = (enum ir_reduce)i;
  return QUERN_STATUS_OK;
}

static quern_status read_COMBINE(struct reading *r, void *field) {
  size_t i;
  QUERN_TRY(ir_cursor_name(&r->p->cursor, "a combination", IR_COMBINE_COUNT, ir_combine_names, &i));
  *(enum ir_combine *)field = (enum ir_combine)i;
  return QUERN_STATUS_OK;
}

static quern_status read_NAME(struct reading *r, void *field) {
  return ir_cursor_string(&r->p->cursor, &r->p->scratch, field);
}

static quern_status read_GRAPH(struct reading *r, void *field) { return ir_parse_graph_ref(r->p, field); }

static quern_status (*const readers[])(struct reading *r, void *field) = {
    [IR_KIND_INT] = read_INT,       [IR_KIND_INTS] = read_INTS,     [IR_KIND_REALS] = read_REALS,
    [IR_KIND_DTYPE] = read_DTYPE,   [IR_KIND_REDUCE] = read_REDUCE, [IR_KIND_COMBINE] = read_COMBINE,
    [IR_KIND_NAME] = read_NAME,     [IR_KIND_GRAPH] = read_GRAPH,   [IR_KIND_DATA] = read_DATA,
    [IR_KIND_BUFFER] = read_BUFFER,
};

/* ---- attributes ----------------------------------------------------------------------------------------- */

/* Which attribute of the op the next word names. */
static quern_status read_attr_name(struct reading *r, enum ir_attr_id *attr) {
  const char *names[IR_ATTR_COUNT];
  enum ir_attr_id ids[IR_ATTR_COUNT];
  size_t n = 0, i;
  for (int k = 0; k < IR_ATTR_COUNT; k++) {
    if ((ir_ops[r->op].attrs >> k & 1) == 0) continue;
    names[n] = ir_attr_table[k].name;
    ids[n++] = (enum ir_attr_id)k;
  }
  char what[64] = "an attribute of ";
  strncat(what, ir_ops[r->op].name, sizeof what - strlen(what) - 1);
  strncat(what, n == 0 ? ", which has none" : "", sizeof what - strlen(what) - 1);
  QUERN_TRY(ir_cursor_name(&r->p->cursor, what, n, names, &i));
  *attr = ids[i];
  return QUERN_STATUS_OK;
}

/* Those without which the op has no meaning; a buffer may be unbound. */
static quern_status check_all_seen(struct reading *r, const char *at) {
  uint64_t missing = ir_ops[r->op].attrs & ~r->seen;
  for (int k = 0; k < IR_ATTR_COUNT; k++) {
    if ((missing >> k & 1) == 0 || ir_attr_table[k].kind == IR_KIND_BUFFER) continue;
    return ir_cursor_error(&r->p->cursor, at, QUERN_STATUS_PARSE, "%s needs the attribute %s", ir_ops[r->op].name,
                           ir_attr_table[k].name);
  }
  return QUERN_STATUS_OK;
}

/* A buffer without elements: it must be bound to be evaluated. */
static quern_status add_unbound(struct reading *r) {
  bool wanted = (ir_ops[r->op].attrs >> IR_ATTR_buffer & 1) != 0;
  if (!wanted || has_seen(r, IR_ATTR_buffer)) return QUERN_STATUS_OK;
  r->attrs->buffer = ir_buffer_wrap(r->p->cursor.ctx, NULL, 0);
  return r->attrs->buffer != NULL ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

quern_status ir_parse_attrs(struct ir_parser *p, enum ir_op op, struct ir_attrs *attrs) {
  struct ir_cursor *cursor = &p->cursor;
  struct reading r = {.p = p, .op = op, .attrs = attrs};
  for (;;) {
    ir_cursor_skip_space(cursor);
    if (cursor->at == cursor->stop || !ir_text_is_word(*cursor->at)) break;
    const char *start = cursor->at;
    enum ir_attr_id attr;
    QUERN_TRY(read_attr_name(&r, &attr));
    if (has_seen(&r, attr))
      return ir_cursor_error(cursor, start, QUERN_STATUS_PARSE, "the attribute %s is given twice",
                             ir_attr_table[attr].name);
    ir_cursor_skip_space(cursor);
    if (!ir_cursor_take(cursor, '=')) return ir_cursor_expected(cursor, "'=' and the attribute's value");
    ir_cursor_skip_space(cursor);
    QUERN_TRY(readers[ir_attr_table[attr].kind](&r, (char *)attrs + ir_attr_table[attr].offset));
    r.seen |= UINT64_C(1) << attr;
  }
  QUERN_TRY(check_all_seen(&r, cursor->at));
  return add_unbound(&r);
}
