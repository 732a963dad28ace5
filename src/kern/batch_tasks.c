/* kern/batch_tasks.c -- which tasks the first rows of a dynamic batch need: from where each task stores
** A store of task t goes to element c * floor(t / q) + d of its memory or behind it, c > 0: that is proven from the same forms
** as bounds are. So the first n rows, n * row elements, are written by tasks with c * floor(t / q) + d < n * row only.
** keeps: tasks are left out only if all that the phase writes has rows, and all its stores agree
** see:   docs/design/003-dynamic-batch.md      tests: tests/kern/test_batch_tasks.c
*/
#include "kern/verify_int.h"

int64_t kern_task_count(const struct kern_phase *phase, const int64_t *scalars) {
  const struct kern_tasks *tasks = &phase->tasks;
  const struct kern_batch_tasks *first = &phase->batch_tasks;
  int64_t of = tasks->scalar < 0 ? 1 : scalars[tasks->scalar];
  if (of <= 0) return 0;
  int64_t product = of * tasks->mul, count = product / tasks->div + (product % tasks->div != 0);
  if (first->div == 0) return count;
  int64_t needed = scalars[0] > 0 ? scalars[0] * first->mul + first->add : 0;
  if (needed <= 0) return 0;
  needed = needed / first->div + (needed % first->div != 0);
  return needed > count / first->by ? count : BASE_MIN(count, needed * first->by);
}

/* ---- finding it ------------------------------------------------------------------------------------------ */

/* While a kernel is scanned. */
struct search {
  struct kern *kern;
  int64_t most;
  bool whole[KERN_MAX_PHASES]; /* all tasks are needed */
  BASE_VEC(struct search_given) given;
};
struct search_given { /* a phase that counts on a function to store behind the element it is given */
  int phase, fn, mem;
};

/* The number that a task is divided by to give the symbol; 0 when it is something else. */
static int64_t divisor(const struct kern_scan *s, int32_t sym) {
  int64_t by = 1;
  while (sym != s->task) {
    const struct kern_sym *x = &s->facts.syms.at[sym];
    bool plain = x->kind == KERN_SYM_DIV && x->of->n == 1 && x->of->terms[0].coef == 1 && x->of->constant == 0;
    if (!plain || !kern_mul_fits(by, x->by, &by)) return 0;
    sym = x->of->terms[0].sym;
  }
  return by;
}

/* The symbol floor(of / by), or -1. */
static int32_t find_quotient(const struct kern_scan *s, const struct kern_form *of, int64_t by) {
  for (size_t i = 0; i < s->facts.syms.n; i++) {
    const struct kern_sym *x = &s->facts.syms.at[i];
    if (x->kind == KERN_SYM_DIV && x->by == by && kern_form_is(x->of, of)) return (int32_t)i;
  }
  return -1;
}

/* The quotient that belongs to a remainder, or -1: that of what it is a remainder of, or of what that is a quotient of. */
static int32_t quotient(const struct kern_scan *s, const struct kern_sym *mod) {
  int32_t found = find_quotient(s, mod->of, mod->by);
  if (found >= 0 || mod->of->n != 1 || mod->of->terms[0].coef != 1 || mod->of->constant != 0) return found;
  const struct kern_sym *of = &s->facts.syms.at[mod->of->terms[0].sym];
  int64_t by;
  if (of->kind != KERN_SYM_DIV || !kern_mul_fits(of->by, mod->by, &by)) return -1;
  return find_quotient(s, of->of, by);
}

/* Puts one quotient and its remainder together: a n floor(x / n) + a (x mod n) is a x. False when there are none. */
static bool join_once(const struct kern_scan *s, struct kern_form *form) {
  for (int i = 0; i < form->n; i++) {
    const struct kern_sym *mod = &s->facts.syms.at[form->terms[i].sym];
    int64_t coef = form->terms[i].coef, whole;
    if (mod->kind != KERN_SYM_MOD || coef <= 0 || !kern_mul_fits(coef, mod->by, &whole)) continue;
    int32_t div = quotient(s, mod);
    for (int k = 0; k < form->n && div >= 0; k++) {
      if (form->terms[k].sym != div || form->terms[k].coef < whole) continue;
      struct kern_form rest = kern_form_sym(div), joined;
      if (!kern_form_replace(&joined, form, i, mod->of, 1)) return false;
      if (!kern_form_add(&joined, &joined, &rest, -whole)) return false;
      *form = joined;
      return true;
    }
  }
  return false;
}

/* A lower bound of the form in the task and its quotients: of the others, the last first, what they are at least. */
static bool to_lower(const struct kern_scan *s, struct kern_form *form) {
  for (int i = form->n - 1, steps = 0; i >= 0; steps++) {
    const struct kern_term t = form->terms[i];
    const struct kern_sym *x = &s->facts.syms.at[t.sym];
    if (divisor(s, t.sym) > 0) {
      i--;
      continue;
    }
    struct kern_form end = kern_form_const(t.coef > 0 ? x->lo : x->hi);
    const struct kern_limit *limits = t.coef > 0 ? x->lower : x->upper, *limit = NULL;
    for (int k = 0; k < KERN_LIMITS && limit == NULL && limits[k].form != NULL; k++)
      if (limits[k].form->n > 0 && t.coef % limits[k].den == 0) limit = &limits[k];
    if (limit == NULL && (end.constant == INT64_MIN || end.constant == INT64_MAX)) return false;
    if (!kern_form_replace(form, form, i, limit != NULL ? limit->form : &end, limit != NULL ? limit->den : 1))
      return false;
    if (steps == 64) return false;
    i = form->n - 1;
  }
  return true;
}

/* The least element that a store reaches grows by coef with each `by` tasks, from low on. */
struct growth {
  int64_t coef, by, low;
};

/* What is guessed to be a bound of the form; whether it is one is proven here. */
static bool prove_growth(struct kern_scan *s, const struct kern_form *form, const struct kern_form *guess,
                         struct growth *g) {
  int32_t sym = -1;
  struct kern_form rest;
  *g = (struct growth){0};
  for (int i = 0; i < guess->n; i++) {
    int64_t by = divisor(s, guess->terms[i].sym);
    if (by == 0 || guess->terms[i].coef <= g->coef) continue;
    *g = (struct growth){.coef = guess->terms[i].coef, .by = by};
    sym = guess->terms[i].sym;
  }
  if (sym < 0) return false;
  struct kern_form of = kern_form_sym(sym);
  if (!kern_form_add(&rest, form, &of, -g->coef)) return false;
  g->low = kern_facts_lower(&s->facts, &rest, INT64_MAX);
  return g->low > INT64_MIN + 1;
}

/* Tasks for so many elements; about. */
static double tasks_for(const struct growth *g, int64_t elements) {
  return ((double)elements - (double)g->low) / (double)g->coef * (double)g->by;
}

static bool find_growth(struct kern_scan *s, const struct kern_store *store, int64_t row, struct growth *best) {
  struct kern_form form = kern_form_const(0);
  bool found = false;
  kern_scan_assume(s, store);
  if (store->form == NULL || !kern_form_add(&form, &form, store->form, 1)) return false;
  for (int i = 0; i < 16 && join_once(s, &form); i++) continue;
  for (int way = 0; way < 2; way++) {
    struct kern_form guess = form;
    struct growth g;
    if (!(way == 0 ? to_lower(s, &guess) : kern_scan_pure(s, &guess)) || !prove_growth(s, &form, &guess, &g)) continue;
    if (!found || tasks_for(&g, row) < tasks_for(best, row)) *best = g;
    found = true;
  }
  return found;
}

/* Makes the phase need what this store needs, too. */
static void add_store(struct kern_scan *s, struct search *search, const struct kern_store *store) {
  struct kern_batch_tasks *first = &search->kern->phases[s->phase].batch_tasks;
  int64_t row = s->kern->mems[store->mem].row, product;
  struct growth g;
  if (search->whole[s->phase]) return;
  search->whole[s->phase] = true;
  if (row <= 0 || !find_growth(s, store, row, &g)) return;
  int64_t common = kern_gcd(row, g.coef);
  struct kern_batch_tasks own = {row / common, -kern_floor_div(g.low, common), g.coef / common, g.by};
  if (!kern_mul_fits(search->most, own.mul, &product) || !kern_add_fits(product, own.add, &product)) return;
  if (first->div > 0 && (first->mul != own.mul || first->div != own.div || first->by != own.by)) return;
  if (first->div > 0) own.add = BASE_MAX(own.add, first->add);
  *first = own;
  search->whole[s->phase] = false;
}

static quern_status visit(struct kern_scan *s, void *user) {
  struct search *search = user;
  if (s->phase < 0) {
    for (size_t i = 0; i < search->given.n; i++) {
      const struct search_given *g = &search->given.at[i];
      if (g->fn == s->number && s->before[g->mem]) search->whole[g->phase] = true;
    }
    return QUERN_STATUS_OK;
  }
  search->kern->phases[s->phase].batch_tasks = (struct kern_batch_tasks){0};
  for (size_t i = 0; i < s->stores.n; i++) add_store(s, search, &s->stores.at[i]);
  for (size_t i = 0; i < s->given.n; i++) {
    const struct kern_passed *given = &s->given.at[i];
    add_store(s, search, &given->store);
    struct search_given g = {s->phase, given->fn, given->mem};
    if (!base_vec_push(s->kern->heap, &search->given, g)) return QUERN_STATUS_MEMORY;
  }
  return QUERN_STATUS_OK;
}

quern_status kern_find_batch_tasks(struct kern *kern, int64_t most) {
  struct search search = {.kern = kern, .most = most};
  QUERN_TRY(kern->failed);
  quern_status status = kern_scan_all(kern, true, visit, &search);
  for (int i = 0; i < kern->n_phases; i++)
    if (status != QUERN_STATUS_OK || search.whole[i]) kern->phases[i].batch_tasks = (struct kern_batch_tasks){0};
  base_vec_fini(kern->heap, &search.given);
  return status;
}
