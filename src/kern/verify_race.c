/* kern/verify_race.c -- do different tasks of a phase store to different elements
** An element's number is written in digits: radix 1 < r1 < r2 ..., where all lower digits together stay below the next
** radix. Then equal elements have equal digits. A digit determines a symbol s when it lies in c s + L .. c s + U with
** U - L < |c|; and a is determined by floor(a / n) and a mod n. When the digits determine the task, no two tasks meet.
** keeps: all stores to one memory are proven together; sets of at most three radices are tried
** tests: tests/kern/test_verify.c
*/
#include "kern/verify_int.h"

enum { DIGITS = 3, CANDIDATES = 6 };

struct digit {
  int64_t lo, hi;   /* of all stores */
  int32_t sym;      /* that its least value grows with; -1: none */
  int64_t coef;     /* how fast */
  int64_t low, top; /* the digit is in coef * sym + low .. coef * sym + top; what is stored for the greatest sym only
                    ** may go beyond */
};

struct radices {
  int n;
  int64_t at[DIGITS];
  struct digit digits[DIGITS];
};

/* A task, and quotients and remainders of tasks. */
static bool is_pure(const struct kern_scan *s, int32_t sym) {
  while (sym != s->task) {
    const struct kern_sym *x = &s->facts.syms.at[sym];
    if ((x->kind != KERN_SYM_DIV && x->kind != KERN_SYM_MOD) || x->of->n != 1 || x->of->terms[0].coef != 1 ||
        x->of->constant != 0)
      return false;
    sym = x->of->terms[0].sym;
  }
  return true;
}

/* The bound of a symbol that goes along with tasks: a lower one if it can be; not a constant if it can be. */
static struct kern_limit bound_of(const struct kern_sym *x, bool lower) {
  const struct kern_limit *sides[] = {lower ? x->lower : x->upper, lower ? x->upper : x->lower};
  for (int i = 0; i < 2; i++)
    for (int k = 0; k < KERN_LIMITS && sides[i][k].form != NULL; k++)
      if (sides[i][k].form->n > 0) return sides[i][k];
  return (struct kern_limit){NULL, 1};
}

/* The last symbols first. */
bool kern_scan_pure(const struct kern_scan *s, struct kern_form *form) {
  for (int i = form->n - 1, steps = 0; i >= 0 && steps < 64; steps++) {
    const struct kern_term t = form->terms[i];
    const struct kern_sym *x = &s->facts.syms.at[t.sym];
    struct kern_limit limit = bound_of(x, t.coef > 0);
    struct kern_form end = kern_form_const(t.coef > 0 ? x->lo : x->hi);
    if (is_pure(s, t.sym)) {
      i--;
    } else {
      bool linear = limit.form != NULL && t.coef % limit.den == 0;
      if (!linear && (end.constant == INT64_MIN || end.constant == INT64_MAX)) return false;
      if (!kern_form_replace(form, form, i, linear ? limit.form : &end, linear ? limit.den : 1)) return false;
      i = form->n - 1;
    }
  }
  for (int i = 0; i < form->n; i++)
    if (!is_pure(s, form->terms[i].sym)) return false;
  return true;
}

/* The digits of a store's first element: each term goes to the greatest radix that divides it. */
static void split(const struct radices *r, const struct kern_form *form, struct kern_form digits[DIGITS]) {
  int64_t rest = form->constant;
  for (int k = r->n - 1; k >= 0; k--) {
    digits[k] = kern_form_const(kern_floor_div(rest, r->at[k]));
    rest -= digits[k].constant * r->at[k];
  }
  for (int i = 0; i < form->n; i++) {
    int k = r->n - 1;
    while (form->terms[i].coef % r->at[k] != 0) k--;
    digits[k].terms[digits[k].n++] = (struct kern_term){form->terms[i].coef / r->at[k], form->terms[i].sym};
  }
}

/* form plus what the lanes of a store add: at most. */
static int64_t top_of(const struct kern_scan *s, const struct kern_form *form, const struct kern_store *store,
                      bool lowest) {
  struct kern_form last = kern_form_const(lowest ? store->lanes - 1 : 0), sum;
  if (!kern_form_add(&sum, form, &last, 1)) return INT64_MAX;
  int64_t best = kern_facts_upper(&s->facts, &sum, INT64_MIN);
  last.constant = -1;
  if (lowest && store->active != NULL && kern_form_add(&sum, form, store->active, 1) &&
      kern_form_add(&sum, &sum, &last, 1)) {
    int64_t upper = kern_facts_upper(&s->facts, &sum, INT64_MIN);
    best = BASE_MIN(best, upper);
  }
  return best;
}

/* The symbol that a digit grows with, and how fast, unless there is none, or are several. */
static void find_symbol(const struct kern_scan *s, const struct kern_form *form, struct digit *d) {
  struct kern_form pure = kern_form_const(0);
  if (!kern_form_add(&pure, &pure, form, 1) || !kern_scan_pure(s, &pure) || pure.n != 1) return;
  d->sym = pure.terms[0].sym;
  d->coef = pure.terms[0].coef;
}

/* There is room: it was there before. */
void kern_scan_assume(struct kern_scan *s, const struct kern_store *store) {
  s->facts.assumed.n = store->n_assumed;
  if (store->n_assumed > 0) memcpy(s->facts.assumed.at, store->assumed, store->n_assumed * sizeof *store->assumed);
}

/* The store is run for the greatest value of the symbol only: beyond what it reaches there is nothing to meet. */
static bool is_for_last(const struct kern_scan *s, const struct kern_store *store, const struct kern_form *form,
                        int32_t sym) {
  int64_t last = s->facts.syms.at[sym].hi;
  return store->n_assumed > 0 && kern_facts_lower(&s->facts, form, last) >= last;
}

/* Widens the digits by what a store reaches. */
static void add_store(struct kern_scan *s, struct radices *r, const struct kern_store *store) {
  struct kern_form digits[DIGITS], rest;
  kern_scan_assume(s, store);
  split(r, store->form, digits);
  for (int k = 0; k < r->n; k++) {
    struct digit *d = &r->digits[k];
    int64_t lo = kern_facts_lower(&s->facts, &digits[k], INT64_MAX), hi = top_of(s, &digits[k], store, k == 0);
    d->lo = BASE_MIN(d->lo, lo);
    d->hi = BASE_MAX(d->hi, hi);
    if (d->sym < 0) continue;
    struct kern_form sym = kern_form_sym(d->sym);
    if (!kern_form_add(&rest, &digits[k], &sym, -d->coef)) {
      d->sym = -1;
      continue;
    }
    lo = kern_facts_lower(&s->facts, &rest, INT64_MAX);
    hi = top_of(s, &rest, store, k == 0);
    bool last = is_for_last(s, store, &sym, d->sym);
    if (!last || d->coef > 0) d->low = BASE_MIN(d->low, lo);
    if (!last || d->coef < 0) d->top = BASE_MAX(d->top, hi);
  }
}

/* lo <= hi, both finite, and hi - lo < most. */
static bool is_below(int64_t lo, int64_t hi, int64_t most) {
  int64_t span;
  if (lo == INT64_MIN || hi == INT64_MAX || lo == INT64_MIN + 1) return false;
  return kern_add_fits(hi, -lo, &span) && span < most;
}

/* All lower digits together are less than the next radix. */
static bool digits_are_apart(const struct radices *r) {
  struct kern_range sum = {0, 0};
  for (int k = 0; k + 1 < r->n; k++) {
    struct kern_range radix = {r->at[k], r->at[k]};
    sum = kern_range_add(sum, kern_range_mul((struct kern_range){r->digits[k].lo, r->digits[k].hi}, radix));
    if (!is_below(sum.lo, sum.hi, r->at[k + 1])) return false;
  }
  return true;
}

/* Some digit determines the symbol; -1: any. */
static bool has_digit(const struct radices *r, int32_t sym) {
  for (int k = 0; k < r->n; k++) {
    const struct digit *d = &r->digits[k];
    if (d->sym >= 0 && (sym < 0 || d->sym == sym) && is_below(d->low, d->top, d->coef > 0 ? d->coef : -d->coef))
      return true;
  }
  return false;
}

/* Whether a pure symbol is determined by the digits. */
static bool is_determined(const struct kern_scan *s, const struct radices *r, int32_t sym) {
  if (has_digit(r, sym)) return true;
  const struct kern_sym *x = &s->facts.syms.at[sym];
  for (size_t i = (size_t)sym + 1; i < s->facts.syms.n; i++) { /* remainders of it: their symbols come later */
    const struct kern_sym *mod = &s->facts.syms.at[i];
    struct kern_form of = kern_form_sym(sym);
    if (mod->kind != KERN_SYM_MOD || !kern_form_is(mod->of, &of)) continue;
    int64_t by = mod->by;
    const struct kern_form *whole = &of;
    if (x->kind == KERN_SYM_DIV && sym != s->task && kern_mul_fits(x->by, by, &by))
      whole = x->of; /* nested quotients */
    int32_t div = -1;
    for (size_t k = 0; k < s->facts.syms.n && div < 0; k++) {
      const struct kern_sym *q = &s->facts.syms.at[k];
      if (q->kind == KERN_SYM_DIV && q->by == by && kern_form_is(q->of, whole)) div = (int32_t)k;
    }
    bool zero = x->hi < mod->by; /* then the quotient is always 0 */
    if ((zero || (div > sym && is_determined(s, r, div))) && is_determined(s, r, (int32_t)i)) return true;
  }
  return false;
}

/* Where one task stores a whole tile and the other the rest: a digit that grows from the one to the other. */
static void guess_of_two(struct kern_scan *s, int mem, struct radices *r) {
  struct kern_form task = kern_form_sym(s->task), digits[DIGITS];
  int64_t least[2][DIGITS];
  for (int k = 0; k < DIGITS; k++) least[0][k] = least[1][k] = INT64_MAX;
  for (size_t i = 0; i < s->stores.n; i++) {
    const struct kern_store *store = &s->stores.at[i];
    if (store->mem != mem) continue;
    kern_scan_assume(s, store);
    split(r, store->form, digits);
    bool last = is_for_last(s, store, &task, s->task);
    for (int k = 0; k < r->n; k++) {
      int64_t lower = kern_facts_lower(&s->facts, &digits[k], INT64_MAX);
      least[last][k] = BASE_MIN(least[last][k], lower);
    }
  }
  for (int k = 0; k < r->n; k++) {
    int64_t coef;
    if (r->digits[k].sym >= 0 || least[1][k] == INT64_MAX || least[0][k] <= INT64_MIN + 1) continue;
    if (!kern_add_fits(least[1][k], -least[0][k], &coef) || coef <= 0) continue;
    r->digits[k].sym = s->task;
    r->digits[k].coef = coef;
  }
}

static bool prove(struct kern_scan *s, int mem, const int64_t *radices, int n) {
  struct radices r = {.n = n};
  for (int k = 0; k < n; k++) {
    r.at[k] = radices[k];
    r.digits[k] = (struct digit){.lo = INT64_MAX, .hi = INT64_MIN, .sym = -1, .low = INT64_MAX, .top = INT64_MIN};
  }
  for (size_t i = 0; i < s->stores.n; i++) {
    struct kern_form digits[DIGITS];
    if (s->stores.at[i].mem != mem) continue;
    split(&r, s->stores.at[i].form, digits);
    for (int k = 0; k < n; k++)
      if (r.digits[k].sym < 0) find_symbol(s, &digits[k], &r.digits[k]);
  }
  if (kern_scan_tasks(s) == 2) guess_of_two(s, mem, &r);
  for (size_t i = 0; i < s->stores.n; i++) {
    if (s->stores.at[i].mem != mem) continue;
    add_store(s, &r, &s->stores.at[i]);
    if (!digits_are_apart(&r) || !has_digit(&r, -1)) return false; /* more stores only widen them */
  }
  return is_determined(s, &r, s->task);
}

static int add_candidate(int64_t found[CANDIDATES], int n, int64_t radix) {
  int at = 0;
  while (at < n && found[at] < radix) at++;
  if (radix <= 1 || n == CANDIDATES || (at < n && found[at] == radix)) return n;
  for (int m = n; m > at; m--) found[m] = found[m - 1];
  found[at] = radix;
  return n + 1;
}

/* What may be a radix, in increasing order: the coefficients of a memory's stores, and what divides all distances of
** their constants (of stores that were unrolled); -1 when a form is unknown. */
static int candidates(const struct kern_scan *s, int mem, int64_t found[CANDIDATES]) {
  const struct kern_form *first = NULL;
  int64_t distance, common = 0;
  int n = 0;
  for (size_t i = 0; i < s->stores.n; i++) {
    const struct kern_form *form = s->stores.at[i].form;
    if (s->stores.at[i].mem != mem) continue;
    if (form == NULL) return -1;
    if (first == NULL) first = form;
    if (kern_add_fits(form->constant, -first->constant, &distance)) common = kern_gcd(common, distance);
    for (int k = 0; k < form->n; k++) n = add_candidate(found, n, form->terms[k].coef);
  }
  return add_candidate(found, n, common);
}

static bool is_apart(struct kern_scan *s, int mem) {
  int64_t found[CANDIDATES], radices[DIGITS] = {1};
  int n = candidates(s, mem, found);
  if (n < 0) return false;
  if (prove(s, mem, radices, 1)) return true;
  for (int i = 0; i < n; i++) {
    radices[1] = found[i];
    if (prove(s, mem, radices, 2)) return true;
  }
  for (int i = 0; i < n; i++) {
    for (int k = i + 1; k < n; k++) {
      radices[1] = found[i];
      radices[2] = found[k];
      if (prove(s, mem, radices, 3)) return true;
    }
  }
  return false;
}

int kern_scan_races(struct kern_scan *s) {
  if (kern_scan_tasks(s) <= 1) return 0;
  int unproven = (int)s->given.n;
  for (int mem = 0; mem < s->fn->n_mems; mem++) {
    int stores = 0;
    for (size_t i = 0; i < s->stores.n; i++) stores += s->stores.at[i].mem == mem;
    if (stores > 0 && !is_apart(s, mem)) unproven += stores;
  }
  return unproven;
}
