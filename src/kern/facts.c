/* kern/facts.c -- forms, symbols and the search for bounds
** keeps: the search replaces the last symbol first, so that it ends; its steps are limited, so that it is fast
** tests: tests/kern/test_verify.c
*/
#include "kern/facts.h"

enum { SEARCH_STEPS = 8192, RECENT = 64, ASSUMPTIONS_USED = 2 };

void kern_facts_init(struct kern_facts *facts, struct base_heap *heap) {
  *facts = (struct kern_facts){.failed = false};
  base_arena_init(&facts->arena, heap);
}

void kern_facts_fini(struct kern_facts *facts) {
  base_vec_fini(facts->arena.heap, &facts->syms);
  base_vec_fini(facts->arena.heap, &facts->assumed);
  base_arena_fini(&facts->arena);
}

/* ---- intervals ------------------------------------------------------------------------------------------- */

/* x + y and x y where an end that is infinite or does not fit is infinite, on the side of `upper`. */
static int64_t add_end(int64_t x, int64_t y, bool upper) {
  int64_t infinite = upper ? INT64_MAX : INT64_MIN, sum;
  if (x == infinite || y == infinite || !kern_add_fits(x, y, &sum)) return infinite;
  return sum;
}

static bool is_infinite(int64_t x) { return x == INT64_MIN || x == INT64_MAX; }

static int64_t mul_end(int64_t x, int64_t y) {
  int64_t product;
  if (x == 0 || y == 0) return 0;
  if (!is_infinite(x) && !is_infinite(y) && kern_mul_fits(x, y, &product)) return product;
  return (x < 0) == (y < 0) ? INT64_MAX : INT64_MIN;
}

struct kern_range kern_range_add(struct kern_range a, struct kern_range b) {
  return (struct kern_range){add_end(a.lo, b.lo, false), add_end(a.hi, b.hi, true)};
}

struct kern_range kern_range_neg(struct kern_range a) {
  if (a.hi == INT64_MIN) return (struct kern_range){INT64_MIN, INT64_MAX}; /* whose negative wraps */
  return (struct kern_range){a.hi == INT64_MAX ? INT64_MIN : -a.hi, a.lo == INT64_MIN ? INT64_MAX : -a.lo};
}

struct kern_range kern_range_mul(struct kern_range a, struct kern_range b) {
  int64_t ends[4] = {mul_end(a.lo, b.lo), mul_end(a.lo, b.hi), mul_end(a.hi, b.lo), mul_end(a.hi, b.hi)};
  struct kern_range range = {ends[0], ends[0]};
  for (int i = 1; i < 4; i++) {
    range.lo = BASE_MIN(range.lo, ends[i]);
    range.hi = BASE_MAX(range.hi, ends[i]);
  }
  return range;
}

/* ---- forms ----------------------------------------------------------------------------------------------- */

struct kern_form kern_form_const(int64_t value) {
  return (struct kern_form){.constant = value};
}
struct kern_form kern_form_sym(int32_t sym) {
  return (struct kern_form){.n = 1, .terms[0] = {1, sym}};
}

static bool push_term(struct kern_form *form, int64_t coef, int32_t sym) {
  if (coef == 0) return true;
  if (form->n == KERN_FORM_TERMS) return false;
  form->terms[form->n++] = (struct kern_term){coef, sym};
  return true;
}

bool kern_form_add(struct kern_form *sum, const struct kern_form *a, const struct kern_form *b, int64_t by) {
  struct kern_form r;
  int64_t x;
  r.n = 0;
  if (!kern_mul_fits(b->constant, by, &x) || !kern_add_fits(a->constant, x, &r.constant)) return false;
  for (int i = 0, j = 0; i < a->n || j < b->n;) {
    const struct kern_term *s = i < a->n ? &a->terms[i] : NULL, *t = j < b->n ? &b->terms[j] : NULL;
    int64_t coef = 0;
    int32_t sym = s != NULL && (t == NULL || s->sym <= t->sym) ? s->sym : t->sym;
    if (t != NULL && t->sym == sym) {
      if (!kern_mul_fits(t->coef, by, &coef)) return false;
      j++;
    }
    if (s != NULL && s->sym == sym) {
      if (!kern_add_fits(s->coef, coef, &coef)) return false;
      i++;
    }
    if (!push_term(&r, coef, sym)) return false;
  }
  sum->constant = r.constant;
  sum->n = r.n;
  memcpy(sum->terms, r.terms, (size_t)r.n * sizeof *r.terms);
  return true;
}

bool kern_form_is(const struct kern_form *a, const struct kern_form *b) {
  if (a->constant != b->constant || a->n != b->n) return false;
  for (int i = 0; i < a->n; i++)
    if (a->terms[i].coef != b->terms[i].coef || a->terms[i].sym != b->terms[i].sym) return false;
  return true;
}

static void copy_form(struct kern_form *to, const struct kern_form *from) {
  to->constant = from->constant;
  to->n = from->n;
  memcpy(to->terms, from->terms, (size_t)from->n * sizeof *from->terms);
}

bool kern_form_replace(struct kern_form *out, const struct kern_form *form, int i, const struct kern_form *by,
                       int64_t den) {
  struct kern_form rest;
  int64_t coef = form->terms[i].coef;
  if (coef % den != 0) return false;
  copy_form(&rest, form);
  rest.n--;
  for (int k = i; k < rest.n; k++) rest.terms[k] = rest.terms[k + 1];
  return kern_form_add(out, &rest, by, coef / den);
}

const struct kern_form *kern_facts_keep(struct kern_facts *facts, const struct kern_form *form) {
  size_t bytes = offsetof(struct kern_form, terms) + (size_t)form->n * sizeof *form->terms;
  const struct kern_form *kept = base_arena_copy(&facts->arena, form, bytes);
  if (kept == NULL) facts->failed = true;
  return kept;
}

void kern_form_residue(const struct kern_facts *facts, const struct kern_form *form, int64_t *mod, int64_t *rem) {
  int64_t m = 0, step, part;
  for (int i = 0; i < form->n; i++) {
    if (!kern_mul_fits(form->terms[i].coef, facts->syms.at[form->terms[i].sym].mod, &step)) step = 1;
    m = kern_gcd(m, step);
  }
  *mod = m;
  *rem = form->constant;
  if (m == 0) return;
  *rem = form->constant - kern_floor_div(form->constant, m) * m;
  for (int i = 0; i < form->n; i++) {
    int64_t coef = form->terms[i].coef - kern_floor_div(form->terms[i].coef, m) * m;
    if (!kern_mul_fits(coef, facts->syms.at[form->terms[i].sym].rem, &part) || !kern_add_fits(*rem, part, rem)) {
      *mod = 1;
      *rem = 0;
      return;
    }
    *rem -= kern_floor_div(*rem, m) * m;
  }
}

/* ---- symbols --------------------------------------------------------------------------------------------- */

int32_t kern_facts_add(struct kern_facts *facts, struct kern_sym sym) {
  if (sym.mod < 1) sym.mod = 1;
  sym.rem -= kern_floor_div(sym.rem, sym.mod) * sym.mod;
  if (sym.mod > 1) {
    int64_t up, down;
    if (sym.lo > INT64_MIN + sym.mod && sym.lo < INT64_MAX - sym.mod) {
      up = sym.rem - sym.lo;
      sym.lo += up - kern_floor_div(up, sym.mod) * sym.mod;
    }
    if (sym.hi > INT64_MIN + sym.mod && sym.hi < INT64_MAX - sym.mod) {
      down = sym.hi - sym.rem;
      sym.hi -= down - kern_floor_div(down, sym.mod) * sym.mod;
    }
  }
  if (!base_vec_push(facts->arena.heap, &facts->syms, sym)) {
    facts->failed = true;
    return 0;
  }
  return (int32_t)facts->syms.n - 1;
}

int32_t kern_facts_find(const struct kern_facts *facts, enum kern_sym_kind kind, const struct kern_form *of,
                        int64_t by) {
  size_t n = facts->syms.n;
  for (size_t i = n; i > 0 && n - i < RECENT; i--) {
    const struct kern_sym *s = &facts->syms.at[i - 1];
    if (s->kind == kind && s->by == by && kern_form_is(s->of, of)) return (int32_t)i - 1;
  }
  return -1;
}

/* ---- bounds ---------------------------------------------------------------------------------------------- */

/* What a term is at most, when its symbol is as large (as small) as its interval allows. */
static int64_t term_end(const struct kern_facts *facts, const struct kern_term *t) {
  const struct kern_sym *s = &facts->syms.at[t->sym];
  return mul_end(t->coef, t->coef > 0 ? s->hi : s->lo);
}

static int64_t by_intervals(const struct kern_facts *facts, const struct kern_form *form) {
  int64_t sum = form->constant;
  for (int i = 0; i < form->n; i++) sum = add_end(sum, term_end(facts, &form->terms[i]), true);
  return sum;
}

/* Where form = k * assumption + rest with k > 0, it is at most rest: the k that takes term t out, or 0. */
static int64_t multiple_of(const struct kern_form *assumed, const struct kern_term *t) {
  for (int i = 0; i < assumed->n; i++) {
    const struct kern_term *s = &assumed->terms[i];
    if (s->sym == t->sym) return t->coef % s->coef == 0 && t->coef / s->coef > 0 ? t->coef / s->coef : 0;
  }
  return 0;
}

/* An upper bound, found by replacing the last term; depth: how many assumptions may still be used. */
static int64_t search(const struct kern_facts *facts, const struct kern_form *form, int64_t goal, int *steps,
                      int depth) {
  int64_t best = by_intervals(facts, form), found;
  if (best <= goal || form->n == 0 || --*steps < 0) return best;
  struct kern_form next;
  const struct kern_term *last = &form->terms[form->n - 1];
  const struct kern_sym *s = &facts->syms.at[last->sym];
  int64_t end = last->coef > 0 ? s->hi : s->lo;
  if (form->n > 1 && !is_infinite(end)) { /* first, since it leaves the fewest symbols */
    struct kern_form constant = kern_form_const(end);
    if (!kern_form_replace(&next, form, form->n - 1, &constant, 1)) return best;
    found = search(facts, &next, goal, steps, depth);
    best = BASE_MIN(best, found);
  }
  const struct kern_limit *limits = last->coef > 0 ? s->upper : s->lower;
  for (int i = 0; i < KERN_LIMITS && limits[i].form != NULL && best > goal; i++) {
    if (!kern_form_replace(&next, form, form->n - 1, limits[i].form, limits[i].den)) continue;
    found = search(facts, &next, goal, steps, depth);
    best = BASE_MIN(best, found);
  }
  for (size_t i = 0; i < facts->assumed.n && depth > 0 && best > goal; i++) {
    int64_t k = multiple_of(facts->assumed.at[i], last);
    if (k == 0 || !kern_form_add(&next, form, facts->assumed.at[i], -k)) continue;
    found = search(facts, &next, goal, steps, depth - 1);
    best = BASE_MIN(best, found);
  }
  if (best > goal &&
      s->kind == (last->coef > 0 ? KERN_SYM_MAX : KERN_SYM_MIN)) { /* it is one of two: the worse counts */
    const struct kern_limit *either = last->coef > 0 ? s->lower : s->upper;
    int64_t worse = INT64_MIN;
    for (int i = 0; i < 2 && worse < best; i++) {
      bool ok = kern_form_replace(&next, form, form->n - 1, either[i].form, 1);
      found = ok ? search(facts, &next, goal, steps, depth) : INT64_MAX;
      worse = BASE_MAX(worse, found);
    }
    best = BASE_MIN(best, worse);
  }
  return best;
}

/* At first an assumption may take out any term, not only the last. */
int64_t kern_facts_upper(const struct kern_facts *facts, const struct kern_form *form, int64_t goal) {
  int steps = SEARCH_STEPS;
  int64_t best = search(facts, form, goal, &steps, ASSUMPTIONS_USED);
  for (size_t i = 0; i < facts->assumed.n && best > goal && steps > 0; i++) {
    for (int t = 0; t + 1 < form->n && best > goal; t++) {
      struct kern_form rest;
      int64_t k = multiple_of(facts->assumed.at[i], &form->terms[t]);
      if (k == 0 || !kern_form_add(&rest, form, facts->assumed.at[i], -k)) continue;
      int64_t found = search(facts, &rest, goal, &steps, ASSUMPTIONS_USED - 1);
      best = BASE_MIN(best, found);
    }
  }
  return best;
}

int64_t kern_facts_lower(const struct kern_facts *facts, const struct kern_form *form, int64_t goal) {
  struct kern_form zero = kern_form_const(0), negative;
  if (!kern_form_add(&negative, &zero, form, -1)) return INT64_MIN;
  int64_t upper = kern_facts_upper(facts, &negative, goal == INT64_MIN ? INT64_MAX : -goal);
  return upper == INT64_MAX ? INT64_MIN : -upper;
}
