/* tests/ir/test_pattern.c -- rewrite rules that are patterns: each fires, and says the truth
** A pattern's own text is built as an expression. For dtypes of 8 bits, rules of up to two variables are
** tried with all values there are.
*/
#include <ctype.h>
#include <locale.h>
#include <math.h>

#include "ir/ir_test.h"
#include "ir/rules.h"

/* ---- expressions from text --------------------------------------------------------------------------- */

struct expr {
  const char *at;
  quern_dtype operand; /* of comparisons */
  struct ir_ints shape;
  double constants[2];       /* what k and l are */
  quern_tensor *letters[26]; /* made when first met, or before */
  char first;                /* letter met */
};

static size_t word_length(const char *at) {
  size_t n = 0;
  while (isalnum((unsigned char)at[n]) || at[n] == '_') n++;
  return n;
}

static quern_tensor *constant(const struct expr *e, quern_dtype dtype, double value) {
  unsigned char bits[8] = {0};
  base_convert(dtype, bits, 0, QUERN_DTYPE_F64, &value, 0);
  return ir_full(ctx, dtype, e->shape.n, e->shape.at, bits);
}

/* The next term as an expression of that dtype, or NULL when dtypes do not fit. */
static quern_tensor *build(struct expr *e, quern_dtype dtype) {
  while (*e->at == ' ' || *e->at == ',') e->at++;
  size_t n = word_length(e->at);
  if (n == 1 && islower((unsigned char)*e->at)) {
    char letter[2] = {*e->at++, 0};
    quern_tensor **t = &e->letters[letter[0] - 'a'];
    if (e->first == 0) e->first = letter[0];
    bool is_constant = letter[0] == 'k' || letter[0] == 'l';
    if (*t == NULL && is_constant) *t = constant(e, dtype, e->constants[letter[0] == 'l']);
    if (*t == NULL) *t = ir_make(ctx, IR_INPUT, 0, NULL, ATTRS(.name = letter, .dtype = dtype, .shape = e->shape));
    return (*t)->dtype == dtype ? *t : NULL;
  }
  if (e->at[n] != '(') {
    unsigned char bits[8];
    return ir_pattern_literal(&e->at, dtype, bits) ? ir_full(ctx, dtype, e->shape.n, e->shape.at, bits) : NULL;
  }
  int op = 0;
  while (op < IR_OP_COUNT && (strncmp(e->at, ir_ops[op].name, n) != 0 || ir_ops[op].name[n] != '\0')) op++;
  assert_true(op < IR_OP_COUNT);
  e->at += n + 1;
  bool compares = op == IR_EQ || op == IR_LT || op == IR_LE;
  if (compares && dtype != QUERN_DTYPE_BOOL) return NULL;
  quern_dtype inner = compares ? e->operand : dtype;
  if (op != IR_SELECT && !base_dtype_is(inner, ir_ops[op].dtypes)) return NULL;
  quern_tensor *src[3];
  for (int i = 0; i < ir_ops[op].n_src; i++) {
    src[i] = build(e, op == IR_SELECT && i == 0 ? QUERN_DTYPE_BOOL : inner);
    if (src[i] == NULL) return NULL;
  }
  while (*e->at == ' ') e->at++;
  assert_int_equal(*e->at++, ')');
  return ir_make(ctx, (enum ir_op)op, ir_ops[op].n_src, src, NULL);
}

static bool compares(const struct ir_rule *rule) {
  return strstr(rule->identity, "lt(") || strstr(rule->identity, "le(") || strstr(rule->identity, "eq(");
}

static bool is_pattern(const struct ir_rule *rule) { return rule->apply == NULL && rule->apply_all == NULL; }

/* Both sides of a rule as its text says; false when that makes no sense for these dtypes. */
static bool build_text(const struct ir_rule *rule, struct expr *e, quern_dtype dtype, quern_tensor **left,
                       quern_tensor **right) {
  e->at = rule->identity;
  *left = build(e, dtype);
  if (*left == NULL) return false;
  e->at = strchr(rule->identity, '=') + 1;
  *right = build(e, dtype);
  return *right != NULL;
}

static bool is_about(const struct ir_rule *rule, const struct expr *e) {
  return base_dtype_is(e->letters[e->first - 'a']->dtype, rule->dtypes);
}

/* The same; false also when the rule is not about these dtypes. */
static bool build_sides(const struct ir_rule *rule, struct expr *e, quern_dtype dtype, quern_tensor **left,
                        quern_tensor **right) {
  bool sense = build_text(rule, e, dtype, left, right);
  if (*left == NULL || !is_about(rule, e)) return false;
  assert_true(sense);
  return true;
}

/* What one rule alone makes of an expression. */
static quern_tensor *rewrite_by(const struct ir_rule *rule, quern_tensor *t) {
  bool *enabled = calloc(ir_rule_count, sizeof *enabled);
  enabled[rule - ir_rules] = true;
  quern_status status =
      ir_rewrite(ctx, 1, &t, &(struct ir_rewrite_options){.approximate = true, .enabled = enabled}, &t);
  free(enabled);
  if (status != QUERN_STATUS_OK) print_error("%s: %s\n", rule->name, quern_last_error());
  assert_int_equal(status, QUERN_STATUS_OK);
  return t;
}

static const quern_dtype every_dtype[] = {QUERN_DTYPE_F8E4M3, QUERN_DTYPE_F8E5M2, QUERN_DTYPE_I8,   QUERN_DTYPE_U8,
                                          QUERN_DTYPE_BOOL,   QUERN_DTYPE_F16,    QUERN_DTYPE_BF16, QUERN_DTYPE_F32,
                                          QUERN_DTYPE_F64,    QUERN_DTYPE_I16,    QUERN_DTYPE_U16,  QUERN_DTYPE_I32,
                                          QUERN_DTYPE_U32,    QUERN_DTYPE_I64,    QUERN_DTYPE_U64};

/* ---- each pattern fires ------------------------------------------------------------------------------ */

/* backwards: the inputs are older the later they stand in the alphabet, so that commutative ops hold them
** swapped. */
static void expect_fires(bool backwards) {
  for (size_t r = 0; r < ir_rule_count; r++) {
    const struct ir_rule *rule = &ir_rules[r];
    int fits = 0;
    for (size_t d = 0; d < 2 * BASE_COUNT(every_dtype) && is_pattern(rule); d++) {
      quern_dtype operand = every_dtype[d / 2], dtype = d % 2 == 0 ? operand : QUERN_DTYPE_BOOL;
      struct expr e = {.operand = operand, .shape = DIMS(2), .constants = {3, 5}};
      for (int i = 25; backwards && i >= 0; i--) {
        char letter[2] = {(char)('a' + i), 0};
        if (i == 'k' - 'a' || i == 'l' - 'a' || strncmp(rule->identity, "select", 6) == 0) continue;
        quern_dtype type = compares(rule) ? operand : dtype;
        e.letters[i] = ir_make(ctx, IR_INPUT, 0, NULL, ATTRS(.name = letter, .dtype = type, .shape = DIMS(2)));
      }
      quern_tensor *left, *right;
      if (!build_sides(rule, &e, dtype, &left, &right)) continue;
      fits++;
      if (rewrite_by(rule, left) != right) fail_msg("%s does not fire for %s", rule->name, base_dtypes[operand].name);
      if (left->node->op != rule->op) fail_msg("%s stands under the wrong op", rule->name);
    }
    if (is_pattern(rule) && fits == 0) fail_msg("%s fits no dtype", rule->name);
  }
}

static void patterns_fire(void **state) {
  (void)state;
  expect_fires(false);
}

static void patterns_fire_swapped(void **state) {
  (void)state;
  expect_fires(true);
}

/* ---- each pattern is true ---------------------------------------------------------------------------- */

enum { ALL = 256, PAIRS = ALL * ALL, WIDE = 4096 };

/* Element i of letter number j. 8 bits: every pair of values; else zeros, ones, extremes and random bits. */
static void fill(quern_dtype dtype, int j, size_t n, void *data) {
  static const double few[] = {0, -0.0, 1, -1, 2, -2, 0.5, 3, INFINITY, -INFINITY, NAN, 1e30, -1e-30, 127, -128, 255};
  size_t size = base_dtypes[dtype].size;
  for (size_t i = 0; i < n; i++) {
    uint32_t random = base_random_bits(9, 0, (uint32_t)j, i);
    uint64_t bits = j == 0 ? i % ALL : j == 1 ? i / ALL : random;
    if (size == 1) {
      base_store_int(dtype == QUERN_DTYPE_BOOL ? dtype : QUERN_DTYPE_U8, data, i,
                     dtype == QUERN_DTYPE_BOOL ? bits & 1 : bits);
    } else if (random % 4 < 3) {
      base_convert(dtype, data, i, QUERN_DTYPE_F64, &few[(random >> 8) % BASE_COUNT(few)], 0);
    } else {
      uint64_t word = (uint64_t)random << 32 | base_random_bits(10, 0, (uint32_t)j, i);
      if (base_dtype_is(dtype, BASE_FLOAT))
        base_store_float(dtype, data, i, (double)(int64_t)word * 0x1p-62);
      else
        base_store_int(dtype, data, i, word);
    }
  }
}

static void evaluate(struct expr *e, size_t n, quern_tensor *const *sides, void *const *dst) {
  struct ir_binding bindings[26];
  size_t n_bindings = 0;
  int j = 0;
  for (int i = 0; i < 26; i++) {
    quern_tensor *t = e->letters[i];
    if (t == NULL || t->node->op != IR_INPUT) continue;
    void *data = malloc(n * 8);
    fill(t->dtype, j++, n, data);
    bindings[n_bindings++] = (struct ir_binding){.leaf = t, .data = data};
  }
  quern_status status = ir_eval(ctx, 2, sides, dst, n_bindings, bindings);
  for (size_t i = 0; i < n_bindings; i++) free((void *)(uintptr_t)bindings[i].data);
  if (status != QUERN_STATUS_OK) print_error("%s\n", quern_last_error());
  assert_int_equal(status, QUERN_STATUS_OK);
}

static bool same_element(quern_dtype dtype, const unsigned char *a, const unsigned char *b, size_t i) {
  size_t size = base_dtypes[dtype].size;
  if (memcmp(a + i * size, b + i * size, size) == 0) return true;
  return base_dtype_is(dtype, BASE_FLOAT) && isnan(base_load_float(dtype, a, i)) && isnan(base_load_float(dtype, b, i));
}

static void exact_patterns_hold(void **state) {
  (void)state;
  static const double constants[][2] = {{3, 5}, {0, -0.0}, {-1, 1}, {INFINITY, 2}, {NAN, -4}, {0.5, 127}};
  void *both[2] = {malloc(PAIRS * 8), malloc(PAIRS * 8)};
  for (size_t r = 0; r < ir_rule_count; r++) {
    const struct ir_rule *rule = &ir_rules[r];
    bool has_constants = strpbrk(rule->identity, "kl") != NULL && strchr(rule->identity, 'v') != NULL;
    for (size_t d = 0; d < 2 * BASE_COUNT(every_dtype) && is_pattern(rule) && rule->exact; d++) {
      quern_dtype operand = every_dtype[d / 2], dtype = d % 2 == 0 ? operand : QUERN_DTYPE_BOOL;
      if (operand == QUERN_DTYPE_BOOL && d % 2 == 1) continue;
      int64_t n = base_dtypes[operand].size == 1 && !has_constants ? PAIRS : WIDE;
      for (size_t c = 0; c < (has_constants ? BASE_COUNT(constants) : 1); c++) {
        struct expr e = {.operand = operand, .shape = {1, &n}, .constants = {constants[c][0], constants[c][1]}};
        quern_tensor *sides[2];
        if (!build_sides(rule, &e, dtype, &sides[0], &sides[1])) continue;
        evaluate(&e, (size_t)n, sides, both);
        for (size_t i = 0; i < (size_t)n; i++) {
          if (same_element(dtype, both[0], both[1], i)) continue;
          fail_msg("%s is wrong for %s, element %zu", rule->name, base_dtypes[operand].name, i);
        }
      }
    }
  }
  free(both[0]);
  free(both[1]);
}

/* Rules whose identity also holds for other dtypes, where another row says it or, of stop_grad, must not be used. */
static const struct {
  const char *name;
  enum base_dtype_class others;
} narrow[] = {{"add_negative_zero", BASE_INT},  {"sub_from_negative_zero", BASE_INT},
              {"abs_neg", BASE_SIGNED},         {"abs_neg_int", BASE_FLOAT},
              {"abs_square", BASE_UNSIGNED},    {"max_min", BASE_BOOL},
              {"max_unsigned_zero", BASE_BOOL}, {"max_constants", BASE_BOOL},
              {"min_max", BASE_BOOL},           {"min_unsigned_zero", BASE_BOOL},
              {"min_constants", BASE_BOOL},     {"and_zero", BASE_BOOL},
              {"and_not_int", BASE_BOOL},       {"or_zero", BASE_BOOL},
              {"xor_zero", BASE_BOOL},          {"xor_self_int", BASE_BOOL},
              {"lt_unsigned_zero", BASE_BOOL},  {"le_unsigned_zero", BASE_BOOL},
              {"stop_grad_none", BASE_FLOAT}};

static bool may_be_narrow(const struct ir_rule *rule, quern_dtype dtype) {
  for (size_t i = 0; i < BASE_COUNT(narrow); i++) {
    if (strcmp(narrow[i].name, rule->name) == 0) return base_dtype_is(dtype, narrow[i].others);
  }
  return false;
}

/* A rule whose identity also holds for a dtype that it is not about is narrower than it could be. */
static void exact_patterns_are_as_wide_as_the_truth(void **state) {
  (void)state;
  void *both[2] = {malloc(PAIRS * 8), malloc(PAIRS * 8)};
  for (size_t r = 0; r < ir_rule_count; r++) {
    const struct ir_rule *rule = &ir_rules[r];
    for (size_t d = 0; d < 2 * BASE_COUNT(every_dtype) && is_pattern(rule) && rule->exact; d++) {
      quern_dtype operand = every_dtype[d / 2], dtype = d % 2 == 0 ? operand : QUERN_DTYPE_BOOL;
      if (base_dtypes[operand].size > 2) continue;
      if (d % 2 == 1 && (operand == QUERN_DTYPE_BOOL || !compares(rule))) continue;
      int64_t n = base_dtypes[operand].size == 1 ? PAIRS : WIDE;
      struct expr e = {.operand = operand, .shape = {1, &n}, .constants = {3, 5}};
      quern_tensor *sides[2];
      if (!build_text(rule, &e, dtype, &sides[0], &sides[1]) || is_about(rule, &e)) continue;
      evaluate(&e, (size_t)n, sides, both);
      bool holds = true;
      for (size_t i = 0; i < (size_t)n && holds; i++) holds = same_element(dtype, both[0], both[1], i);
      if (holds && !may_be_narrow(rule, operand))
        fail_msg("%s holds for %s too", rule->name, base_dtypes[operand].name);
    }
  }
  free(both[0]);
  free(both[1]);
}

/* Where both sides are finite and nothing cancels they agree to the last digits. */
static void approximate_patterns_are_near(void **state) {
  (void)state;
  enum { N = 64 };
  for (size_t r = 0; r < ir_rule_count; r++) {
    const struct ir_rule *rule = &ir_rules[r];
    if (!is_pattern(rule) || rule->exact) continue;
    struct expr e = {.operand = QUERN_DTYPE_F64, .shape = DIMS(N), .constants = {3, 0.7}};
    quern_tensor *sides[2];
    assert_true(build_sides(rule, &e, QUERN_DTYPE_F64, &sides[0], &sides[1]));
    double data[26][N], out[2][N];
    struct ir_binding bindings[26];
    size_t n = 0;
    for (uint32_t i = 0; i < 26; i++) {
      for (uint32_t k = 0; k < N; k++)
        data[i][k] = 0.25 + 3 * (double)base_random_uniform(base_random_bits(3, 0, i, k));
      if (e.letters[i] != NULL && e.letters[i]->node->op == IR_INPUT) {
        bindings[n++] = (struct ir_binding){.leaf = e.letters[i], .data = data[i]};
      }
    }
    assert_int_equal(ir_eval(ctx, 2, sides, (void *[]){out[0], out[1]}, n, bindings), QUERN_STATUS_OK);
    for (int k = 0; k < N; k++) {
      if (!(fabs(out[0][k] - out[1][k]) <= 1e-12 * (1 + fabs(out[0][k])))) {
        fail_msg("%s: %.17g is not %.17g", rule->name, out[0][k], out[1][k]);
      }
    }
  }
}

/* ---- where patterns must not fire -------------------------------------------------------------------- */

static const struct {
  quern_dtype operand;
  const char *text;
} kept[] = {
    {QUERN_DTYPE_F32, "add(x, 0)"},  /* -0 + 0 = 0 */
    {QUERN_DTYPE_F32, "sub(0, x)"},  /* 0 - 0 = 0, not -0 */
    {QUERN_DTYPE_F32, "sub(x, -0)"}, /* -0 - -0 = 0 */
    {QUERN_DTYPE_F32, "sub(x, x)"},  /* inf - inf */
    {QUERN_DTYPE_F32, "mul(x, 0)"},  /* signs, inf, NaN */
    {QUERN_DTYPE_F32, "mul(x, -0)"},
    {QUERN_DTYPE_F32, "mul(x, 3)"},
    {QUERN_DTYPE_F32, "div(x, x)"}, /* 0 / 0 */
    {QUERN_DTYPE_F32, "div(x, 3)"}, /* 1 / 3 rounds */
    {QUERN_DTYPE_F32, "div(x, 0)"},
    {QUERN_DTYPE_F32, "div(0, x)"},
    {QUERN_DTYPE_F16, "div(x, 5.9604644775390625e-08)"}, /* the least f16, 2^-24: its inverse overflows */
    {QUERN_DTYPE_F32, "mod(x, x)"},
    {QUERN_DTYPE_F32, "mod(x, 1)"},
    {QUERN_DTYPE_F32, "mod(x, 4)"},
    {QUERN_DTYPE_F32, "mod(mod(a, b), b)"},
    {QUERN_DTYPE_F32, "neg(sub(a, b))"}, /* -(a - a) = -0 */
    {QUERN_DTYPE_F32, "add(sub(a, b), b)"},
    {QUERN_DTYPE_F32, "sub(add(a, b), b)"},
    {QUERN_DTYPE_F32, "add(mul(a, c), mul(b, c))"},
    {QUERN_DTYPE_F32, "add(add(x, k), l)"},
    {QUERN_DTYPE_F32, "mul(mul(x, k), l)"},
    {QUERN_DTYPE_F32, "min(x, max(x, y))"}, /* y is NaN */
    {QUERN_DTYPE_F32, "max(x, min(x, y))"},
    {QUERN_DTYPE_F32, "max(x, 0)"},
    {QUERN_DTYPE_F32, "max(x, inf)"}, /* NaN */
    {QUERN_DTYPE_F32, "pow(x, 1)"},
    {QUERN_DTYPE_F32, "pow(x, 2)"},
    {QUERN_DTYPE_F32, "exp(log(x))"},
    {QUERN_DTYPE_F32, "log(exp(x))"},
    {QUERN_DTYPE_F32, "mul(sqrt(x), sqrt(x))"},
    {QUERN_DTYPE_F32, "sqrt(mul(x, x))"},
    {QUERN_DTYPE_F32, "abs(sqrt(x))"}, /* sqrt(-0) = -0 */
    {QUERN_DTYPE_F32, "sin(neg(x))"},
    {QUERN_DTYPE_F32, "stop_grad(x)"},
    {QUERN_DTYPE_I8, "abs(x)"},
    {QUERN_DTYPE_I8, "max(x, 0)"},
    {QUERN_DTYPE_I8, "max(neg(a), neg(b))"}, /* -(-128) = -128 */
    {QUERN_DTYPE_I8, "div(neg(a), neg(b))"},
    {QUERN_DTYPE_I8, "div(x, x)"},
    {QUERN_DTYPE_I8, "div(x, 3)"},
    {QUERN_DTYPE_I8, "div(x, -2)"},
    {QUERN_DTYPE_I8, "mod(x, -4)"},
    {QUERN_DTYPE_I8, "mod(x, 3)"},
    {QUERN_DTYPE_I8, "shl(x, 1)"},
    {QUERN_DTYPE_I8, "and(x, 1)"},
    {QUERN_DTYPE_U8, "xor(x, 1)"},
};

static const struct {
  quern_dtype operand;
  const char *text;
} kept_bools[] = {
    {QUERN_DTYPE_F32, "eq(x, x)"}, /* NaN */
    {QUERN_DTYPE_F32, "le(x, x)"},          {QUERN_DTYPE_F32, "not(lt(a, b))"}, {QUERN_DTYPE_F32, "not(le(a, b))"},
    {QUERN_DTYPE_F32, "not(eq(a, b))"},     {QUERN_DTYPE_F32, "lt(x, 0)"},      {QUERN_DTYPE_F32, "le(0, x)"},
    {QUERN_DTYPE_I8, "lt(neg(a), neg(b))"}, /* -(-128) = -128 */
    {QUERN_DTYPE_I8, "le(neg(a), neg(b))"}, {QUERN_DTYPE_I8, "lt(x, 0)"},       {QUERN_DTYPE_I8, "le(0, x)"},
    {QUERN_DTYPE_U8, "lt(0, x)"},           {QUERN_DTYPE_U8, "le(x, 0)"},
};

static void expect_kept(quern_dtype operand, quern_dtype dtype, const char *text) {
  struct expr e = {.at = text, .operand = operand, .shape = DIMS(3), .constants = {3, 5}};
  quern_tensor *t = build(&e, dtype), *out;
  if (t == NULL) fail_msg("%s does not fit %s", text, base_dtypes[operand].name);
  assert_int_equal(ir_rewrite(ctx, 1, &t, NULL, &out), QUERN_STATUS_OK);
  if (out != t) fail_msg("%s of %s was rewritten", text, base_dtypes[operand].name);
}

static void exact_rules_leave_alone(void **state) {
  (void)state;
  for (size_t i = 0; i < BASE_COUNT(kept); i++) expect_kept(kept[i].operand, kept[i].operand, kept[i].text);
  for (size_t i = 0; i < BASE_COUNT(kept_bools); i++)
    expect_kept(kept_bools[i].operand, QUERN_DTYPE_BOOL, kept_bools[i].text);
  struct expr e = {.at = "select(eq(a, b), a, b)", .operand = QUERN_DTYPE_F32, .shape = DIMS(3)}; /* 0 equals -0 */
  quern_tensor *t = build(&e, QUERN_DTYPE_F32), *out;
  assert_int_equal(ir_rewrite(ctx, 1, &t, NULL, &out), QUERN_STATUS_OK);
  assert_ptr_equal(out, t);
}

/* (x 2^-10) 2^-20 of f16 is something where x 2^-30 is nothing. */
static void approximate_rules_stay_in_range(void **state) {
  (void)state;
  static const struct {
    quern_dtype dtype;
    const char *text;
    bool simplified;
  } rows[] = {{QUERN_DTYPE_F16, "mul(mul(x, 0.0009765625), 9.5367431640625e-07)", false},
              {QUERN_DTYPE_F16, "mul(mul(x, 0.0625), 0.0009765625)", true},   /* 2^-14 is normal */
              {QUERN_DTYPE_F16, "mul(mul(x, 0.0625), 0.00048828125)", false}, /* 2^-15 is not */
              {QUERN_DTYPE_F16, "mul(mul(x, 0.0625), 0)", true},
              {QUERN_DTYPE_F32, "mul(mul(x, 7.888609052210118e-31), 7.888609052210118e-31)", false},
              {QUERN_DTYPE_F64, "mul(mul(x, 1e200), 1e200)", false},
              {QUERN_DTYPE_F64, "mul(mul(x, 1e200), 1e-200)", true},
              {QUERN_DTYPE_F16, "add(add(x, 65504), 65504)", false},
              {QUERN_DTYPE_F16, "add(add(x, 65504), -65504)", true},
              {QUERN_DTYPE_F16, "div(x, 5.9604644775390625e-08)", false},
              {QUERN_DTYPE_F16, "div(x, 3)", true},
              {QUERN_DTYPE_F16, "mul(mul(mul(mul(x, 0.5), 2), 0.5), 2)", true}};
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    struct expr e = {.at = rows[i].text, .shape = DIMS(3)};
    quern_tensor *t = build(&e, rows[i].dtype), *out;
    assert_non_null(t);
    assert_int_equal(ir_rewrite(ctx, 1, &t, &(struct ir_rewrite_options){.approximate = true}, &out), QUERN_STATUS_OK);
    if ((out != t) != rows[i].simplified) fail_msg("%s", rows[i].text);
  }
}

/* ---- the text ---------------------------------------------------------------------------------------- */

static void literals(void **state) {
  (void)state;
  const char *half = "0.5)";
  unsigned char bits16[8];
  setlocale(LC_ALL, "de_DE.UTF-8"); /* where it is installed: a decimal comma changes nothing */
  assert_true(ir_pattern_literal(&half, QUERN_DTYPE_F16, bits16) && bits16[1] == 0x38 && *half == ')');
  setlocale(LC_ALL, "C");
  static const struct {
    const char *text;
    quern_dtype dtype;
    bool ok;
    uint64_t bits;
  } rows[] = {{"0", QUERN_DTYPE_F32, true, 0},       {"-0", QUERN_DTYPE_F32, true, 0x80000000},
              {"1", QUERN_DTYPE_F16, true, 0x3c00},  {"-inf", QUERN_DTYPE_BF16, true, 0xff80},
              {"inf", QUERN_DTYPE_F8E4M3, false, 0}, {"inf", QUERN_DTYPE_I32, false, 0},
              {"-1", QUERN_DTYPE_I8, true, 0xff},    {"-1", QUERN_DTYPE_U8, false, 0},
              {"0.5", QUERN_DTYPE_I32, false, 0},    {"ones", QUERN_DTYPE_U64, true, UINT64_MAX},
              {"ones", QUERN_DTYPE_BOOL, true, 1},   {"ones", QUERN_DTYPE_F32, false, 0},
              {"true", QUERN_DTYPE_BOOL, true, 1},   {"true", QUERN_DTYPE_I8, false, 0},
              {"false", QUERN_DTYPE_BOOL, true, 0},  {"2", QUERN_DTYPE_BOOL, false, 0}};
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    const char *at = rows[i].text;
    uint64_t bits = 0;
    unsigned char bytes[8];
    bool ok = ir_pattern_literal(&at, rows[i].dtype, bytes);
    memcpy(&bits, bytes, 8);
    if (ok != rows[i].ok || (ok && bits != rows[i].bits) || *at != '\0') fail_msg("%s", rows[i].text);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(patterns_fire),
                                     TEST(patterns_fire_swapped),
                                     TEST(exact_patterns_hold),
                                     TEST(exact_patterns_are_as_wide_as_the_truth),
                                     TEST(approximate_patterns_are_near),
                                     TEST(exact_rules_leave_alone),
                                     TEST(approximate_rules_stay_in_range),
                                     TEST(literals)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
