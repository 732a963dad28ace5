/* ir/pattern.c -- rewrite rules written as text
** in:    "sub(a, neg(b)) = add(a, b)"          out: the right side built of what the left side matched
** keeps: a letter is the same tensor wherever it stands; k and l match small constants only, v and w what is
**        no constant; a constant on the right has the root's type; a rule that is not exact
**        does not fire where it would make a constant out of the dtype's range of others; sources of commutative
**        ops match in either order
** see:   rules.def                             tests: tests/ir/test_pattern.c
*/
#include <ctype.h>
#include <math.h>
#include <string.h>

#include "ir/rules.h"

struct match {
  quern_context *ctx;
  const char *at; /* what is left of the text */
  bool exact;     /* the rule is */
  quern_tensor *bound[26];
  unsigned swaps; /* bit i: sources of the i-th commutative op are swapped */
  int n_swaps;    /* commutative ops met */
};

static void skip(struct match *m) {
  while (*m->at == ' ' || *m->at == ',') m->at++;
}

static size_t word_length(const char *at) {
  size_t n = 0;
  while (isalnum((unsigned char)at[n]) || at[n] == '_') n++;
  return n;
}

static bool is_letter(const char *at) { return islower((unsigned char)*at) && word_length(at) == 1; }
static bool is_call(const char *at) { return at[word_length(at)] == '('; }

/* ---- constants --------------------------------------------------------------------------------------- */

static bool take_word(const char **at, const char *word) {
  size_t n = strlen(word);
  if (strncmp(*at, word, n) != 0 || isalnum((unsigned char)(*at)[n])) return false;
  *at += n;
  return true;
}

bool ir_pattern_literal(const char **at, quern_dtype dtype, unsigned char bits[8]) {
  bool is_bool = dtype == QUERN_DTYPE_BOOL, is_float = base_dtype_is(dtype, BASE_FLOAT);
  memset(bits, 0, 8);
  if (take_word(at, "false")) return is_bool;
  if (take_word(at, "true")) {
    bits[0] = 1;
    return is_bool;
  }
  if (take_word(at, "ones")) {
    memset(bits, is_bool ? 1 : 0xff, base_dtypes[dtype].size);
    return !is_float;
  }
  double value = 0;
  if (!base_element_parse(*at, *at + strlen(*at), at, QUERN_DTYPE_F64, &value, 0)) return false;
  if (isinf(value) && (!is_float || !base_dtypes[dtype].inf)) return false;
  double back = 0;
  base_convert(dtype, bits, 0, QUERN_DTYPE_F64, &value, 0);
  base_convert(QUERN_DTYPE_F64, &back, 0, dtype, bits, 0);
  return back == value;
}

/* True when all elements of the constant have those bits. */
static bool has_bits(const quern_tensor *t, const unsigned char bits[8]) {
  const quern_tensor *c = ir_const_of(t);
  if (c == NULL) return false;
  const struct ir_data *data = &c->node->attrs->data;
  size_t size = base_dtypes[c->dtype].size;
  for (size_t i = 0; i < data->n; i += size) {
    if (memcmp((const char *)data->at + i, bits, size) != 0) return false;
  }
  return data->n > 0;
}

/* ---- matching ---------------------------------------------------------------------------------------- */

static bool match_letter(struct match *m, quern_tensor *t) {
  char letter = *m->at++;
  quern_tensor **bound = &m->bound[letter - 'a'];
  if (*bound != NULL) return *bound == t;
  *bound = t;
  if (letter == 'k' || letter == 'l') return ir_is_small_const(t);
  if (letter == 'v' || letter == 'w') return ir_const_of(t) == NULL;
  return true;
}

/* Matches one term; the text is left behind it. Recursion is as deep as the rule's text. */
static bool match_term(struct match *m, quern_tensor *t) {
  skip(m);
  if (is_letter(m->at)) return match_letter(m, t);
  if (!is_call(m->at)) {
    unsigned char bits[8];
    return ir_pattern_literal(&m->at, t->dtype, bits) && has_bits(t, bits);
  }
  const struct ir_node *node = t->node;
  const struct ir_op_info *info = &ir_ops[node->op];
  size_t n = word_length(m->at);
  if (strncmp(m->at, info->name, n) != 0 || info->name[n] != '\0') return false;
  m->at += n + 1;
  bool swap = (info->flags & IR_COMM) != 0 && (m->swaps >> m->n_swaps++ & 1) != 0;
  for (int i = 0; i < node->n_src; i++) {
    if (!match_term(m, node->src[swap ? 1 - i : i])) return false;
  }
  skip(m);
  m->at++; /* the closing bracket */
  return true;
}

/* ---- building ---------------------------------------------------------------------------------------- */

static enum ir_op find_op(const char *at, size_t n) {
  int op = 0;
  while (op < IR_OP_COUNT && (strncmp(at, ir_ops[op].name, n) != 0 || ir_ops[op].name[n] != '\0')) op++;
  return (enum ir_op)op;
}

/* True when x is a normal number of the dtype: neither too large nor so small that digits are lost. */
static bool is_normal(quern_dtype dtype, double x) {
  uint64_t bits = 0;
  base_store_float(dtype, &bits, 0, x);
  double back = base_load_float(dtype, &bits, 0);
  return isfinite(back) && fabs(back) >= ldexp(1, 2 - (1 << (base_dtypes[dtype].exponent - 1)));
}

/* False when a sum, product or quotient of two constants leaves the range of their float dtype: (x 1e-4) 1e-4 of f16 is
** something, x 1e-8 is 0. */
static bool stays_in_range(enum ir_op op, quern_tensor *const *src) {
  if (op != IR_ADD && op != IR_MUL && op != IR_DIV) return true;
  const quern_tensor *a = ir_const_of(src[0]), *b = ir_const_of(src[1]);
  if (!ir_is_small_const(src[0]) || !ir_is_small_const(src[1]) || !base_dtype_is(a->dtype, BASE_FLOAT)) return true;
  for (int64_t i = 0; i < ir_count(a) * ir_count(b); i++) {
    double x = base_load_float(a->dtype, a->node->attrs->data.at, (size_t)(i / ir_count(b)));
    double y = base_load_float(b->dtype, b->node->attrs->data.at, (size_t)(i % ir_count(b)));
    if (!isfinite(x) || !isfinite(y) || x == 0 || y == 0 || (op == IR_ADD && x == -y)) continue;
    if (!is_normal(a->dtype, op == IR_ADD ? x + y : op == IR_MUL ? x * y : x / y)) return false;
  }
  return true;
}

static quern_tensor *build_term(struct match *m, const quern_tensor *root) {
  skip(m);
  if (is_letter(m->at)) return m->bound[*m->at++ - 'a'];
  if (!is_call(m->at)) {
    unsigned char bits[8];
    if (!ir_pattern_literal(&m->at, root->dtype, bits)) return NULL;
    return ir_full(m->ctx, root->dtype, root->rank, root->dims, bits);
  }
  size_t n = word_length(m->at);
  enum ir_op op = find_op(m->at, n);
  m->at += n + 1;
  quern_tensor *src[3];
  for (int i = 0; i < ir_ops[op].n_src; i++) {
    src[i] = build_term(m, root);
    if (src[i] == NULL) return NULL;
  }
  skip(m);
  m->at++;
  return m->exact || stays_in_range(op, src) ? ir_make(m->ctx, op, ir_ops[op].n_src, src, NULL) : NULL;
}

static quern_dtype first_dtype(const struct match *m, const char *text) {
  while (!is_letter(text)) text += word_length(text) > 0 ? word_length(text) : 1;
  const quern_tensor *bound = m->bound[*text - 'a'];
  QUERN_ASSERT(bound != NULL);
  return bound->dtype;
}

quern_tensor *ir_pattern_apply(quern_context *ctx, const struct ir_rule *rule, struct ir_node *node) {
  unsigned orders = 1;
  for (unsigned swaps = 0; swaps < orders; swaps++) {
    struct match m = {.ctx = ctx, .at = rule->identity, .exact = rule->exact, .swaps = swaps};
    bool fits = match_term(&m, &node->out[0]);
    if (1u << m.n_swaps > orders) orders = 1u << m.n_swaps;
    if (!fits || !base_dtype_is(first_dtype(&m, rule->identity), rule->dtypes)) continue;
    m.at = strchr(m.at, '=') + 1;
    return build_term(&m, &node->out[0]);
  }
  return NULL;
}
