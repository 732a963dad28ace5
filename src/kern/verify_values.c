/* kern/verify_values.c -- what each integer can be: ranges and forms of the results of arithmetic
** in:    an instruction whose arguments are known     out: its range, its form where it cannot wrap, its facts
** see:   facts.h                                      tests: tests/kern/test_verify.c
*/
#include "kern/verify_int.h"

typedef void value_rule(struct kern_scan *s, kern_id id, const struct kern_inst *x);

struct kern_range kern_dtype_range(quern_dtype dtype) {
  const struct base_dtype_info *info = &base_dtypes[dtype];
  if (info->class == BASE_BOOL) return (struct kern_range){0, 1};
  if (info->class == BASE_FLOAT || (info->bits == 64 && info->class == BASE_SIGNED)) return kern_everything;
  if (info->bits == 64) return (struct kern_range){0, INT64_MAX};
  if (info->class == BASE_UNSIGNED) return (struct kern_range){0, (INT64_C(1) << info->bits) - 1};
  return (struct kern_range){-(INT64_C(1) << (info->bits - 1)), (INT64_C(1) << (info->bits - 1)) - 1};
}

static bool fits(struct kern_range r, quern_dtype dtype) {
  struct kern_range all = kern_dtype_range(dtype);
  return r.lo >= all.lo && r.hi <= all.hi && r.lo > INT64_MIN && r.hi < INT64_MAX;
}

static bool is_integer(quern_dtype dtype) { return base_dtype_is(dtype, BASE_INT); }

static struct kern_known *known_of(struct kern_scan *s, const struct kern_inst *x, int i) {
  return &s->known[x->arg[i]];
}

static bool is_const(const struct kern_known *k, int64_t *value) {
  if (k->form == NULL || k->form->n != 0) return false;
  *value = k->form->constant;
  return true;
}

/* ---- what a value is set to ------------------------------------------------------------------------------ */

void kern_scan_set(struct kern_scan *s, kern_id id, struct kern_range range, const struct kern_form *form) {
  s->known[id].range = range;
  s->known[id].form = kern_facts_keep(&s->facts, form);
}

/* A symbol of its own; sym says what else is known. */
void kern_scan_set_symbol(struct kern_scan *s, kern_id id, struct kern_range range, struct kern_sym sym) {
  struct kern_form form;
  if (range.lo == range.hi) {
    form = kern_form_const(range.lo);
  } else {
    sym.lo = range.lo;
    sym.hi = range.hi;
    sym.varies = s->fn->insts.at[id].lanes > 1;
    int32_t number = kern_facts_add(&s->facts, sym);
    if (s->facts.failed) return;
    form = kern_form_sym(number);
    range.lo = s->facts.syms.at[number].lo;
    range.hi = s->facts.syms.at[number].hi;
  }
  kern_scan_set(s, id, range, &form);
}

void kern_scan_set_any(struct kern_scan *s, kern_id id, struct kern_range range) {
  range = kern_range_meet(range, kern_dtype_range(s->fn->insts.at[id].dtype));
  if (range.lo > range.hi) range = kern_dtype_range(s->fn->insts.at[id].dtype);
  kern_scan_set_symbol(s, id, range, (struct kern_sym){.kind = KERN_SYM_ANY});
}

static void set_copy(struct kern_scan *s, kern_id id, const struct kern_known *k) { s->known[id] = *k; }

/* n floor(a / n) + a mod n is a. */
static void pair_quotients(const struct kern_scan *s, struct kern_form *form) {
  for (int i = 0; i < form->n; i++) {
    const struct kern_sym *mod = &s->facts.syms.at[form->terms[i].sym];
    int64_t want, coef = form->terms[i].coef;
    if (mod->kind != KERN_SYM_MOD || !kern_mul_fits(coef, mod->by, &want)) continue;
    for (int k = 0; k < form->n; k++) {
      const struct kern_sym *div = &s->facts.syms.at[form->terms[k].sym];
      if (div->kind != KERN_SYM_DIV || div->by != mod->by || form->terms[k].coef != want) continue;
      if (!kern_form_is(div->of, mod->of)) continue;
      struct kern_form zero = kern_form_const(0), whole;
      if (!kern_form_replace(&whole, form, BASE_MAX(i, k), &zero, 1)) return;
      if (!kern_form_replace(&whole, &whole, BASE_MIN(i, k), &zero, 1)) return;
      if (kern_form_add(&whole, &whole, mod->of, coef)) *form = whole;
      return;
    }
  }
}

/* The exact value of an op that wraps: form may be NULL. It is kept when it cannot wrap. */
static void set_exact(struct kern_scan *s, kern_id id, struct kern_range range, struct kern_form *form) {
  quern_dtype dtype = s->fn->insts.at[id].dtype;
  if (form != NULL) pair_quotients(s, form);
  if (form != NULL && form->n == 0) range.lo = range.hi = form->constant;
  if (form != NULL && !fits(range, dtype)) {
    struct kern_range all = kern_dtype_range(dtype);
    int64_t hi = kern_facts_upper(&s->facts, form, BASE_MIN(all.hi, INT64_MAX - 1));
    int64_t lo = kern_facts_lower(&s->facts, form, BASE_MAX(all.lo, INT64_MIN + 1));
    range = kern_range_meet(range, (struct kern_range){lo, hi});
  }
  if (!fits(range, dtype))
    kern_scan_set_any(s, id, kern_everything);
  else if (form != NULL)
    kern_scan_set(s, id, range, form);
  else
    kern_scan_set_any(s, id, range);
}

/* ---- values from nowhere --------------------------------------------------------------------------------- */

static void do_any(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  (void)x;
  kern_scan_set_any(s, id, kern_everything);
}

static void do_const(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  int64_t value = (int64_t)base_load_int(x->dtype, &x->imm, 0);
  struct kern_form form = kern_form_const(value);
  if (x->dtype == QUERN_DTYPE_U64 && value < 0)
    kern_scan_set_any(s, id, kern_everything);
  else
    kern_scan_set(s, id, (struct kern_range){value, value}, &form);
}

static void do_lane(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  struct kern_range range = {0, x->lanes - 1};
  int log = 0;
  while (1 << log < x->lanes) log++;
  if (log == 0 || !fits(range, x->dtype)) {
    kern_scan_set_any(s, id, log == 0 ? range : kern_everything);
    return;
  }
  if (s->lanes[log] < 0) {
    s->lanes[log] = kern_facts_add(
        &s->facts, (struct kern_sym){.kind = KERN_SYM_LANE, .lo = range.lo, .hi = range.hi, .varies = true});
  }
  struct kern_form form = kern_form_sym(s->lanes[log]);
  if (!s->facts.failed) kern_scan_set(s, id, range, &form);
}

/* ---- arithmetic ------------------------------------------------------------------------------------------ */

static void do_add(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  struct kern_known *a = known_of(s, x, 0), *b = known_of(s, x, 1);
  int64_t by = x->op == KERN_SUB ? -1 : 1;
  struct kern_range range = kern_range_add(a->range, by < 0 ? kern_range_neg(b->range) : b->range);
  struct kern_form form;
  bool exact = kern_form_add(&form, a->form, b->form, by);
  if (exact && by < 0 && range.lo < 1 && form.n > 1) { /* what is left of a row, mostly: is it ever nothing */
    int64_t lower = kern_facts_lower(&s->facts, &form, 1);
    range.lo = BASE_MAX(range.lo, lower);
  }
  set_exact(s, id, range, exact ? &form : NULL);
}

static void set_scaled(struct kern_scan *s, kern_id id, const struct kern_known *a, int64_t by) {
  struct kern_form form, zero = kern_form_const(0);
  bool exact = kern_form_add(&form, &zero, a->form, by);
  set_exact(s, id, kern_range_mul(a->range, (struct kern_range){by, by}), exact ? &form : NULL);
}

static void do_mul(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  struct kern_known *a = known_of(s, x, 0), *b = known_of(s, x, 1);
  int64_t by;
  if (is_const(b, &by))
    set_scaled(s, id, a, by);
  else if (is_const(a, &by))
    set_scaled(s, id, b, by);
  else
    set_exact(s, id, kern_range_mul(a->range, b->range), NULL);
}

static void do_neg(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  set_scaled(s, id, known_of(s, x, 0), -1);
}

static void do_abs(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  struct kern_range a = known_of(s, x, 0)->range, negative = kern_range_neg(a);
  struct kern_range range = {BASE_MAX(0, BASE_MAX(a.lo, negative.lo)), BASE_MAX(a.hi, negative.hi)};
  set_exact(s, id, range, NULL);
}

static struct kern_cond *new_cond(struct kern_scan *s, kern_id id) {
  struct kern_cond *cond = base_arena_new(&s->facts.arena, struct kern_cond);
  if (cond == NULL) s->facts.failed = true;
  s->known[id].cond = cond;
  return cond;
}

/* Both hold (and), or not one of both holds (or): the facts of a and b together. */
static void join_facts(int *n, const struct kern_form **facts, int n_more, const struct kern_form *const *more) {
  for (int i = 0; i < n_more && *n < KERN_COND_FACTS; i++) facts[(*n)++] = more[i];
}

static void do_logic(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  bool both = x->op == KERN_AND || x->op == KERN_MIN;
  struct kern_cond *cond = new_cond(s, id);
  for (int i = 0; i < 2 && cond != NULL; i++) {
    const struct kern_cond *part = known_of(s, x, i)->cond;
    if (part == NULL) continue;
    if (both)
      join_facts(&cond->n_yes, cond->yes, part->n_yes, part->yes);
    else
      join_facts(&cond->n_no, cond->no, part->n_no, part->no);
  }
}

static void do_extreme(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  struct kern_known *a = known_of(s, x, 0), *b = known_of(s, x, 1);
  bool max = x->op == KERN_MAX;
  if (max ? a->range.lo >= b->range.hi : a->range.hi <= b->range.lo) {
    set_copy(s, id, a);
    return;
  }
  if (max ? b->range.lo >= a->range.hi : b->range.hi <= a->range.lo) {
    set_copy(s, id, b);
    return;
  }
  int64_t mod_a, rem_a, mod_b, rem_b, apart;
  kern_form_residue(&s->facts, a->form, &mod_a, &rem_a);
  kern_form_residue(&s->facts, b->form, &mod_b, &rem_b);
  struct kern_sym sym = {.kind = max ? KERN_SYM_MAX : KERN_SYM_MIN, .mod = kern_gcd(mod_a, mod_b), .rem = rem_a};
  if (!kern_add_fits(rem_a, -BASE_MAX(rem_b, -INT64_MAX), &apart)) apart = 1;
  sym.mod = kern_gcd(sym.mod, apart);
  struct kern_limit *limits = max ? sym.lower : sym.upper;
  limits[0] = (struct kern_limit){a->form, 1};
  limits[1] = (struct kern_limit){b->form, 1};
  struct kern_range range = {BASE_MIN(a->range.lo, b->range.lo), BASE_MIN(a->range.hi, b->range.hi)};
  if (max) range = (struct kern_range){BASE_MAX(a->range.lo, b->range.lo), BASE_MAX(a->range.hi, b->range.hi)};
  kern_scan_set_symbol(s, id, range, sym);
}

/* form = by * whole + rest, the constant of rest in 0 .. by - 1. */
static void split(const struct kern_form *form, int64_t by, struct kern_form *whole, struct kern_form *rest) {
  *whole = kern_form_const(kern_floor_div(form->constant, by));
  *rest = kern_form_const(form->constant - whole->constant * by);
  for (int i = 0; i < form->n; i++) {
    struct kern_term t = form->terms[i];
    if (t.coef % by == 0)
      whole->terms[whole->n++] = (struct kern_term){t.coef / by, t.sym};
    else
      rest->terms[rest->n++] = t;
  }
}

static struct kern_range bounds_of(const struct kern_scan *s, const struct kern_form *form, int64_t by) {
  return (struct kern_range){kern_facts_lower(&s->facts, form, 0), kern_facts_upper(&s->facts, form, by - 1)};
}

static int64_t floor_end(int64_t x, int64_t by) { return x == INT64_MIN || x == INT64_MAX ? x : kern_floor_div(x, by); }

/* The symbol floor(rest / by), or rest mod by. */
static int32_t quotient(struct kern_scan *s, enum kern_sym_kind kind, const struct kern_form *rest,
                        struct kern_range range, int64_t by, bool varies) {
  const struct kern_sym *inner = &s->facts.syms.at[rest->terms[0].sym];
  struct kern_form nested;
  int64_t product;
  if (kind == KERN_SYM_DIV && rest->n == 1 && rest->constant == 0 && rest->terms[0].coef == 1 &&
      inner->kind == KERN_SYM_DIV && kern_mul_fits(inner->by, by, &product)) { /* floor(floor(a / m) / n) */
    nested = kern_form_const(0);
    if (kern_form_add(&nested, &nested, inner->of, 1)) {
      rest = &nested;
      by = product;
      range = bounds_of(s, rest, by);
    }
  }
  int32_t found = kern_facts_find(&s->facts, kind, rest, by);
  if (found >= 0) return found;
  struct kern_sym sym = {.kind = kind, .of = kern_facts_keep(&s->facts, rest), .by = by, .varies = varies};
  if (kind == KERN_SYM_DIV) {
    struct kern_form low, most = kern_form_const(1 - by);
    sym.lo = floor_end(range.lo, by);
    sym.hi = floor_end(range.hi, by);
    sym.upper[0] = (struct kern_limit){sym.of, by};
    if (kern_form_add(&low, rest, &most, 1)) sym.lower[0] = (struct kern_limit){kern_facts_keep(&s->facts, &low), by};
  } else {
    int64_t mod, rem;
    kern_form_residue(&s->facts, rest, &mod, &rem);
    sym.mod = kern_gcd(mod, by);
    sym.rem = rem;
    sym.hi = range.lo >= 0 ? BASE_MIN(by - 1, range.hi) : by - 1;
  }
  return kern_facts_add(&s->facts, sym);
}

/* A remainder is at most what it is the remainder of; forms in later symbols are of no use to the search. */
static void limit_remainder(struct kern_scan *s, int32_t number, const struct kern_form *form) {
  struct kern_sym *sym = &s->facts.syms.at[number];
  int free = sym->upper[0].form == NULL ? 0 : 1;
  if (sym->upper[free].form != NULL || (form->n > 0 && form->terms[form->n - 1].sym >= number)) return;
  sym->upper[free] = (struct kern_limit){form, 1};
}

static void set_quotient(struct kern_scan *s, kern_id id, const struct kern_known *a, int64_t by, bool mod) {
  struct kern_form whole, rest;
  if (a->form == NULL) return;
  split(a->form, by, &whole, &rest);
  struct kern_range range = bounds_of(s, &rest, by);
  struct kern_form result = mod ? rest : whole;
  bool exact = true;
  if (range.lo < 0 || range.hi >= by) {
    int32_t sym = quotient(s, mod ? KERN_SYM_MOD : KERN_SYM_DIV, &rest, range, by, s->fn->insts.at[id].lanes > 1);
    if (s->facts.failed) return;
    if (mod && a->range.lo >= 0) limit_remainder(s, sym, a->form);
    struct kern_form one = kern_form_sym(sym);
    if (mod)
      result = one;
    else
      exact = kern_form_add(&result, &whole, &one, 1);
  }
  struct kern_range got = {floor_end(a->range.lo, by), floor_end(a->range.hi, by)};
  if (mod) got = (struct kern_range){0, by - 1};
  if (exact && result.n == 1 && result.constant == 0 && result.terms[0].coef == 1) { /* a symbol: it may know more */
    const struct kern_sym *sym = &s->facts.syms.at[result.terms[0].sym];
    got = kern_range_meet(got, (struct kern_range){sym->lo, sym->hi});
  }
  set_exact(s, id, got, exact ? &result : NULL);
}

static void do_by(struct kern_scan *s, kern_id id, const struct kern_inst *x) { /* IDIV, IMOD */
  set_quotient(s, id, known_of(s, x, 0), x->imm, x->op == KERN_IMOD);
}

static void do_div(struct kern_scan *s, kern_id id, const struct kern_inst *x) { /* DIV, MOD */
  int64_t by;
  if (is_const(known_of(s, x, 1), &by) && by > 0)
    set_quotient(s, id, known_of(s, x, 0), by, x->op == KERN_MOD);
  else
    kern_scan_set_any(s, id, kern_everything);
}

static void do_shift(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  int64_t by;
  if (!is_const(known_of(s, x, 1), &by) || by < 0 || by >= BASE_MIN(base_dtypes[x->dtype].bits, 62))
    kern_scan_set_any(s, id, kern_everything);
  else if (x->op == KERN_SHL)
    set_scaled(s, id, known_of(s, x, 0), INT64_C(1) << by);
  else
    set_quotient(s, id, known_of(s, x, 0), INT64_C(1) << by, false);
}

/* A bitwise and is at most each argument that is not negative. */
static void do_and(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  struct kern_range range = kern_everything;
  for (int i = 0; i < 2; i++) {
    const struct kern_range *a = &known_of(s, x, i)->range;
    if (a->lo >= 0) range = kern_range_meet(range, (struct kern_range){0, a->hi});
  }
  kern_scan_set_any(s, id, range);
}

static void do_not(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  const struct kern_cond *part = known_of(s, x, 0)->cond;
  struct kern_cond *cond = part != NULL ? new_cond(s, id) : NULL;
  if (cond == NULL) return;
  join_facts(&cond->n_yes, cond->yes, part->n_no, part->no);
  join_facts(&cond->n_no, cond->no, part->n_yes, part->yes);
}

/* Adds the fact a - b + more <= 0. */
static void add_fact(struct kern_scan *s, int *n, const struct kern_form **facts, const struct kern_form *a,
                     const struct kern_form *b, int64_t more) {
  struct kern_form form, constant = kern_form_const(more);
  if (!kern_form_add(&form, a, b, -1) || !kern_form_add(&form, &form, &constant, 1)) return;
  facts[*n] = kern_facts_keep(&s->facts, &form);
  if (facts[*n] != NULL) (*n)++;
}

static void do_compare(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  const struct kern_form *a = known_of(s, x, 0)->form, *b = known_of(s, x, 1)->form;
  struct kern_cond *cond = a != NULL && b != NULL ? new_cond(s, id) : NULL;
  if (cond == NULL) return;
  add_fact(s, &cond->n_yes, cond->yes, a, b, x->op == KERN_LT);
  if (x->op == KERN_EQ)
    add_fact(s, &cond->n_yes, cond->yes, b, a, 0);
  else
    add_fact(s, &cond->n_no, cond->no, b, a, x->op == KERN_LE);
}

/* The range of a value where these facts hold: it is at most form - fact, and at least form + fact. */
static struct kern_range range_under(struct kern_scan *s, const struct kern_known *k, int n,
                                     const struct kern_form *const *facts) {
  struct kern_range range = k->range;
  struct kern_form form;
  for (int i = 0; i < n; i++) {
    if (kern_form_add(&form, k->form, facts[i], -1)) {
      int64_t upper = kern_facts_upper(&s->facts, &form, INT64_MIN);
      range.hi = BASE_MIN(range.hi, upper);
    }
    if (kern_form_add(&form, k->form, facts[i], 1)) {
      int64_t lower = kern_facts_lower(&s->facts, &form, INT64_MAX);
      range.lo = BASE_MAX(range.lo, lower);
    }
  }
  return range;
}

static void do_select(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  const struct kern_cond *cond = known_of(s, x, 0)->cond;
  const struct kern_known *yes = known_of(s, x, 1), *no = known_of(s, x, 2);
  struct kern_range a = yes->range, b = no->range;
  if (cond != NULL && yes->form != NULL && no->form != NULL) {
    a = range_under(s, yes, cond->n_yes, cond->yes);
    b = range_under(s, no, cond->n_no, cond->no);
  }
  if (a.lo > a.hi) a = b; /* never chosen */
  if (b.lo > b.hi) b = a;
  kern_scan_set_any(s, id, kern_range_hull(a, b));
}

/* ---- between types and lanes ----------------------------------------------------------------------------- */

static void do_cast(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  const struct kern_known *a = known_of(s, x, 0);
  quern_dtype from = s->fn->insts.at[x->arg[0]].dtype;
  if (is_integer(from) && a->form != NULL && fits(a->range, x->dtype))
    set_copy(s, id, a);
  else
    kern_scan_set_any(s, id, from == QUERN_DTYPE_BOOL ? kern_dtype_range(from) : kern_everything);
}

static void do_splat(struct kern_scan *s, kern_id id, const struct kern_inst *x) { set_copy(s, id, known_of(s, x, 0)); }

static void do_extract(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  const struct kern_known *a = known_of(s, x, 0);
  struct kern_form form = kern_form_const(0), lane = kern_form_const(x->imm);
  bool exact = a->form != NULL && kern_form_add(&form, &form, a->form, 1);
  for (int i = form.n - 1; i >= 0 && exact; i--) {
    const struct kern_sym *sym = &s->facts.syms.at[form.terms[i].sym];
    if (sym->kind == KERN_SYM_LANE)
      exact = kern_form_replace(&form, &form, i, &lane, 1);
    else if (sym->varies)
      exact = false;
  }
  if (exact)
    set_exact(s, id, a->range, &form);
  else
    kern_scan_set_any(s, id, a->range);
}

static void do_lanes(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  struct kern_range range = known_of(s, x, 0)->range;
  if (x->arg[1] != KERN_NONE) range = kern_range_hull(range, known_of(s, x, 1)->range);
  kern_scan_set_any(s, id, range);
}

static void do_hreduce(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  if (x->imm == KERN_MAX || x->imm == KERN_MIN)
    kern_scan_set_any(s, id, known_of(s, x, 0)->range);
  else
    do_any(s, id, x);
}

static void do_table(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  struct kern_range range = {INT64_MAX, INT64_MIN};
  for (int i = 0; i < 16; i++) {
    int64_t entry = (int64_t)base_load_int(x->dtype, &s->fn->pool.at[x->imm + i], 0);
    range = kern_range_hull(range, (struct kern_range){entry, entry});
  }
  kern_scan_set_any(s, id, x->dtype == QUERN_DTYPE_U64 ? kern_everything : range);
}

/* ---- dispatch -------------------------------------------------------------------------------------------- */

static value_rule *const integer_rules[KERN_OP_COUNT] = {
    [KERN_CONST] = do_const,     [KERN_LANE] = do_lane,   [KERN_ADD] = do_add,          [KERN_SUB] = do_add,
    [KERN_MUL] = do_mul,         [KERN_DIV] = do_div,     [KERN_MOD] = do_div,          [KERN_NEG] = do_neg,
    [KERN_ABS] = do_abs,         [KERN_MAX] = do_extreme, [KERN_MIN] = do_extreme,      [KERN_AND] = do_and,
    [KERN_SHL] = do_shift,       [KERN_SHR] = do_shift,   [KERN_SELECT] = do_select,    [KERN_IDIV] = do_by,
    [KERN_IMOD] = do_by,         [KERN_CAST] = do_cast,   [KERN_SPLAT] = do_splat,      [KERN_EXTRACT] = do_extract,
    [KERN_HREDUCE] = do_hreduce, [KERN_LOW] = do_lanes,   [KERN_HIGH] = do_lanes,       [KERN_JOIN] = do_lanes,
    [KERN_SHUFFLE] = do_lanes,   [KERN_TABLE] = do_table, [KERN_INTERLEAVE] = do_lanes, /* others: anything */
};
static value_rule *const bool_rules[KERN_OP_COUNT] = {
    [KERN_EQ] = do_compare, [KERN_LT] = do_compare, [KERN_LE] = do_compare,
    [KERN_AND] = do_logic,  [KERN_MIN] = do_logic,  [KERN_OR] = do_logic,
    [KERN_MAX] = do_logic,  [KERN_NOT] = do_not,    [KERN_SPLAT] = do_splat, /* others: nothing */
};

void kern_scan_value(struct kern_scan *s, kern_id id) {
  const struct kern_inst *x = &s->fn->insts.at[id];
  if (is_integer(x->dtype))
    (integer_rules[x->op] != NULL ? integer_rules[x->op] : do_any)(s, id, x);
  else if (x->dtype == QUERN_DTYPE_BOOL && bool_rules[x->op] != NULL)
    bool_rules[x->op](s, id, x);
}
