/* tensor/einsum_parse.c -- reads an einsum spec against the operands' shapes
** in:    "ij,jk->ik", "[batch][in],[out][in]", "...ij,jk"     out: labels of all axes, and sizes
** keeps: letters and one-letter names are the same index; blanks between indices mean nothing
** tests: tests/tensor/test_einsum.c
*/
#include <stdio.h>
#include <string.h>

#include "tensor/einsum.h"

enum { ELLIPSIS = -1, MAX_ITEMS = QUERN_MAX_RANK + 1 };

/* The indices of an operand or of the result as they are written. */
struct term {
  int n, items[MAX_ITEMS]; /* labels or ELLIPSIS */
  bool ellipsis;
};

static bool fail(const struct einsum *e, const char *at, const char *message) {
  ir_fail(e->ctx, QUERN_STATUS_PARSE, "%s: \"%s\", character %d: %s", e->what, e->shown, (int)(at - e->spec) + 1,
          message);
  return false;
}

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

static bool is_name(char c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '_'; }

static const char *skip_blanks(const char *at) {
  while (*at == ' ' || *at == '\t' || *at == '\n') at++;
  return at;
}

/* The label of a name (length 0: a place of "..."), a new one when add is set; -1 when there is none, or with the error
** recorded when there is no memory for it. */
static int find_label(struct einsum *e, const char *name, int length, int place, bool add) {
  for (size_t k = 0; k < e->labels.n; k++) {
    const struct einsum_label *label = &e->labels.at[k];
    if (label->length != length) continue;
    if (length > 0 ? memcmp(label->name, name, (size_t)length) == 0 : label->place == place) return (int)k;
  }
  if (!add) return -1;
  struct einsum_label label = {.name = name, .length = length, .place = place, .size = 1};
  if (!base_vec_push(&e->ctx->heap, &e->labels, label)) {
    ir_fail_last(e->ctx);
    return -1;
  }
  return (int)e->labels.n - 1;
}

/* Reads an index or "..." into item; *at is left after it. */
static bool read_item(struct einsum *e, const char **at, bool add, int *item) {
  const char *name = *at, *end = name + 1;
  if (*name == '.') {
    if (strncmp(name, "...", 3) != 0) return fail(e, name, "expected \"...\"");
    *at += 3;
    *item = ELLIPSIS;
    return true;
  }
  if (*name == '[') {
    name++;
    while (is_name(*end)) end++;
    if (*end != ']') return fail(e, end, "a name in brackets has letters, digits and _ only");
    if (end == name) return fail(e, end, "the name is empty");
    *at = end + 1;
  } else if (is_letter(*name)) {
    *at = end;
  } else {
    return fail(e, name, "expected an index, \"...\", \",\" or \"->\"");
  }
  if (end - name > 255) return fail(e, name, "the name has more than 255 characters");
  *item = find_label(e, name, (int)(end - name), 0, add);
  if (*item < 0 && !add) return fail(e, name, "no operand has this index");
  return *item >= 0;
}

/* Reads indices up to "," or "->" or the end. */
static bool read_term(struct einsum *e, const char **at, bool add, struct term *term) {
  *term = (struct term){0};
  for (*at = skip_blanks(*at); **at != '\0' && **at != ',' && **at != '-'; *at = skip_blanks(*at)) {
    const char *start = *at;
    int item = 0;
    if (!read_item(e, at, add, &item)) return false;
    if (item == ELLIPSIS && term->ellipsis) return fail(e, start, "a second \"...\"");
    if (term->n == MAX_ITEMS) return fail(e, start, "more indices than a tensor can have axes");
    term->ellipsis |= item == ELLIPSIS;
    term->items[term->n++] = item;
  }
  return true;
}

/* "index j" or "axis 2 from the end of ...". */
static const char *label_text(char *buffer, size_t bytes, const struct einsum_label *label) {
  if (label->length > 0) {
    snprintf(buffer, bytes, "index %.*s", label->length, label->name);
  } else {
    snprintf(buffer, bytes, "axis %d from the end of \"...\"", label->place + 1);
  }
  return buffer;
}

/* Gives an axis its label and the label its size. */
static bool give_axis(struct einsum *e, int i, int axis, int number) {
  struct einsum_operand *operand = &e->operands[i];
  struct einsum_label *label = &e->labels.at[number];
  int64_t size = operand->x->dims[axis];
  char text[300];
  for (int k = 0; k < axis; k++) {
    if (operand->term.labels[k] != number || operand->x->dims[k] == size) continue;
    ir_fail(e->ctx, QUERN_STATUS_SHAPE, "%s: %s is %lld and %lld in operand %d, %s; a diagonal needs equal sizes",
            e->what, label_text(text, sizeof text, label), (long long)operand->x->dims[k], (long long)size, i,
            TENSOR_SHAPE(operand->x));
    return false;
  }
  if (label->size != 1 && size != 1 && label->size != size) {
    ir_fail(e->ctx, QUERN_STATUS_SHAPE, "%s: %s is %lld in operand %d, %s, and %lld in operand %d, %s", e->what,
            label_text(text, sizeof text, label), (long long)label->size, label->operand,
            TENSOR_SHAPE(e->operands[label->operand].x), (long long)size, i, TENSOR_SHAPE(operand->x));
    return false;
  }
  if (label->size == 1) label->size = size, label->operand = i;
  label->count++;
  operand->term.labels[axis] = number;
  return true;
}

/* The labels of operand i's axes from the indices as written; *n_dots: the most axes that "..." stands for so
** far. */
static bool give_labels(struct einsum *e, int i, const struct term *term, int *n_dots) {
  struct einsum_operand *operand = &e->operands[i];
  int rank = operand->x->rank, named = term->n - term->ellipsis, dots = rank - named, axis = 0;
  if (term->ellipsis ? dots < 0 : dots != 0) {
    ir_fail(e->ctx, QUERN_STATUS_SHAPE, "%s: operand %d is %s of rank %d, \"%s\" names %d axes%s", e->what, i,
            TENSOR_SHAPE(operand->x), rank, e->shown, named, term->ellipsis ? " beside \"...\"" : " of it");
    return false;
  }
  if (term->ellipsis && dots > *n_dots) *n_dots = dots;
  for (int k = 0; k < term->n; k++) {
    if (term->items[k] != ELLIPSIS) {
      if (!give_axis(e, i, axis++, term->items[k])) return false;
      continue;
    }
    for (int place = dots - 1; place >= 0; place--) {
      int label = find_label(e, NULL, 0, place, true);
      if (label < 0 || !give_axis(e, i, axis++, label)) return false;
    }
  }
  return true;
}

static bool add_out(struct einsum *e, const char *at, int label) {
  char text[300];
  if (tensor_einsum_has(&e->out, label)) {
    ir_fail(e->ctx, QUERN_STATUS_PARSE, "%s: \"%s\": the result has %s twice", e->what, e->shown,
            label_text(text, sizeof text, &e->labels.at[label]));
    return false;
  }
  if (e->out.n == QUERN_MAX_RANK) return fail(e, at, "the result has more than 16 axes");
  e->out.labels[e->out.n++] = label;
  return true;
}

static bool add_dots(struct einsum *e, const char *at, int n_dots) {
  for (int place = n_dots - 1; place >= 0; place--) {
    if (!add_out(e, at, find_label(e, NULL, 0, place, false))) return false;
  }
  return true;
}

/* The result after "->". */
static bool read_result(struct einsum *e, const char *at, int n_dots) {
  struct term term;
  const char *start = at;
  if (!read_term(e, &at, false, &term)) return false;
  if (*at != '\0') return fail(e, at, "expected the end");
  if (n_dots > 0 && !term.ellipsis) {
    return fail(e, start,
                "the result lacks the \"...\" of the operands HINT: write ... in the result, or name the axes");
  }
  for (int k = 0; k < term.n; k++) {
    if (!(term.items[k] == ELLIPSIS ? add_dots(e, start, n_dots) : add_out(e, start, term.items[k]))) return false;
  }
  return true;
}

/* By name as text: uppercase first, as in ASCII. */
static bool before(const struct einsum_label *a, const struct einsum_label *b) {
  int n = BASE_MIN(a->length, b->length), order = memcmp(a->name, b->name, (size_t)n);
  return order != 0 ? order < 0 : a->length < b->length;
}

/* The result without "->": the axes of "...", then the indices that occur once, in alphabetical order. */
static bool imply_result(struct einsum *e, const char *at, int n_dots) {
  if (!add_dots(e, at, n_dots)) return false;
  for (;;) {
    int next = -1;
    for (int k = 0; k < (int)e->labels.n; k++) {
      const struct einsum_label *label = &e->labels.at[k];
      if (label->length == 0 || label->count != 1 || tensor_einsum_has(&e->out, k)) continue;
      if (next < 0 || before(label, &e->labels.at[next])) next = k;
    }
    if (next < 0) return true;
    if (!add_out(e, at, next)) return false;
  }
}

bool tensor_einsum_parse(struct einsum *e) {
  const char *at = e->spec;
  int n_dots = 0;
  if (snprintf(e->shown, sizeof e->shown, "%s", e->spec) >= (int)sizeof e->shown) {
    memcpy(e->shown + sizeof e->shown - sizeof "...", "...", sizeof "...");
  }
  for (int i = 0;; i++) {
    struct term term;
    if (!read_term(e, &at, true, &term)) return false;
    if (i < e->n && !give_labels(e, i, &term, &n_dots)) return false;
    if (*at == ',' && i + 1 < e->n) {
      at++;
      continue;
    }
    if (*at == ',' || i + 1 < e->n) {
      int named = i + 1;
      for (const char *c = at; *c != '\0'; c++) named += *c == ',';
      ir_fail(e->ctx, QUERN_STATUS_INVALID, "%s: \"%s\" is for %d operands, there are %d", e->what, e->shown, named,
              e->n);
      return false;
    }
    break;
  }
  if (*at == '\0') return imply_result(e, at, n_dots);
  if (at[1] != '>') return fail(e, at, "expected \"->\"");
  return read_result(e, at + 2, n_dots);
}
