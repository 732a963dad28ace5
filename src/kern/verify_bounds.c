/* kern/verify_bounds.c -- is every access inside its memory: what each integer can be, instruction by instruction
** in:    a function whose types are right          out: OK, or the first access that could not be proven
** keeps: linear in the instructions; a form stands for the exact integer, so it is given up where an op may wrap
** see:   facts.h                                   tests: tests/kern/test_verify.c
*/
#include <stdio.h>

#include "kern/verify_int.h"

typedef quern_status transfer(struct kern_scan *s, kern_id id, const struct kern_inst *x);

static struct kern_known *known_of(const struct kern_scan *s, const struct kern_inst *x, int i) {
  return &s->known[x->arg[i]];
}

/* ---- what is given ---------------------------------------------------------------------------------------- */

/* A symbol that was made when the scan began. */
static quern_status set_given(struct kern_scan *s, kern_id id, int32_t sym) {
  struct kern_form form = kern_form_sym(sym);
  kern_scan_set(s, id, (struct kern_range){s->facts.syms.at[sym].lo, s->facts.syms.at[sym].hi}, &form);
  return QUERN_STATUS_OK;
}
static quern_status do_scalar(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  return set_given(s, id, s->scalars[x->imm]);
}
static quern_status do_task(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  (void)x;
  return set_given(s, id, s->task);
}

/* ---- memory ---------------------------------------------------------------------------------------------- */

static quern_status set_region(struct kern_scan *s, kern_id id, struct kern_region region) {
  s->known[id].region = base_arena_copy(&s->facts.arena, &region, sizeof region);
  if (s->known[id].region == NULL) s->facts.failed = true;
  return QUERN_STATUS_OK;
}

static quern_status do_mem(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  struct kern_form zero = kern_form_const(0);
  bool local = x->op == KERN_LOCAL;
  struct kern_region region = {.count = local ? x->imm : s->fn->mems[x->imm].count, .mem = local ? -1 : (int)x->imm};
  region.form = kern_facts_keep(&s->facts, &zero);
  return set_region(s, id, region);
}

/* What is reached: `lanes` elements of a region from an index on, fewer when `active` is less. */
struct access {
  const struct kern_region *region;
  const struct kern_known *index, *active; /* active may be NULL */
  int64_t lanes;
  struct kern_range range; /* of the first element, in the whole memory */
  struct kern_form form;
  bool has_form;
};

static void set_access(struct access *a) {
  a->range = kern_range_add(a->region->range, a->index->range);
  a->has_form =
      a->region->form != NULL && a->index->form != NULL && kern_form_add(&a->form, a->region->form, a->index->form, 1);
}

/* A count of active lanes that is max(0, x) acts as x. */
static const struct kern_form *active_form(const struct kern_scan *s, const struct kern_form *active) {
  if (active == NULL || active->n != 1 || active->terms[0].coef != 1 || active->constant != 0) return active;
  const struct kern_sym *sym = &s->facts.syms.at[active->terms[0].sym];
  if (sym->kind != KERN_SYM_MAX) return active;
  for (int i = 0; i < 2; i++) {
    const struct kern_form *one = sym->lower[i].form;
    if (one->n == 0 && one->constant <= 0) return sym->lower[1 - i].form;
  }
  return active;
}

/* The greatest element that is reached, at least approximately: at most goal if that can be shown. */
static int64_t last_reached(const struct kern_scan *s, const struct access *a, int64_t goal) {
  int64_t lanes = a->active != NULL ? BASE_MIN(a->lanes, a->active->range.hi) : a->lanes;
  struct kern_range more = {lanes - 1, lanes - 1};
  int64_t best = kern_range_add(a->range, more).hi;
  if (best <= goal || !a->has_form) return best;
  struct kern_form form = a->form, last = kern_form_const(lanes - 1);
  if (kern_form_add(&form, &a->form, &last, 1)) best = BASE_MIN(best, kern_facts_upper(&s->facts, &form, goal));
  if (best <= goal || a->active == NULL || a->active->form == NULL) return best;
  const struct kern_form *active = active_form(s, a->active->form);
  last.constant = -1;
  if (kern_form_add(&form, &a->form, active, 1) && kern_form_add(&form, &form, &last, 1)) {
    int64_t upper = kern_facts_upper(&s->facts, &form, goal);
    best = BASE_MIN(best, upper);
  }
  return best;
}

/* The least index, from where the memory was taken: at least 0 if that can be shown. */
static int64_t first_reached(struct kern_scan *s, const struct access *a) {
  int64_t best = a->index->range.lo;
  if (best >= 0 || a->index->form == NULL) return best;
  size_t n_assumed = s->facts.assumed.n;
  struct kern_form one = kern_form_const(1), none;
  const struct kern_form *active = a->active != NULL ? active_form(s, a->active->form) : NULL;
  if (active != NULL && kern_form_add(&none, &one, active, -1)) { /* nothing is read unless active >= 1 */
    const struct kern_form *kept = kern_facts_keep(&s->facts, &none);
    if (kept == NULL || !base_vec_push(s->facts.arena.heap, &s->facts.assumed, kept)) s->facts.failed = true;
  }
  int64_t lower = kern_facts_lower(&s->facts, a->index->form, 0);
  s->facts.assumed.n = n_assumed;
  return BASE_MAX(best, lower);
}

static const char *end_text(char buffer[24], int64_t end) {
  if (end == INT64_MIN || end == INT64_MAX) return "?";
  snprintf(buffer, 24, "%lld", (long long)end);
  return buffer;
}

static quern_status check_access(struct kern_scan *s, kern_id id, struct access *a) {
  set_access(a);
  if (a->region->count < 0 || (a->active != NULL && a->active->range.hi <= 0)) return QUERN_STATUS_OK;
  int64_t first = first_reached(s, a), last = last_reached(s, a, a->region->count - 1);
  if (s->facts.failed) return QUERN_STATUS_MEMORY;
  if (first >= 0 && last < a->region->count) return QUERN_STATUS_OK;
  s->unproven++;
  if (s->quiet) return QUERN_STATUS_OK;
  char lo[24], hi[24];
  return kern_fault(s->kern, s->fn, id,
                    "no proof that it stays inside its memory: index from %s, elements to %s of %lld",
                    end_text(lo, first), end_text(hi, last), (long long)a->region->count);
}

/* The region may begin behind the last element: then nothing of it can be read. */
static quern_status do_at(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  struct access a = {.region = known_of(s, x, 0)->region, .index = known_of(s, x, 1), .lanes = 0};
  QUERN_TRY(check_access(s, id, &a));
  struct kern_region region = {.count = a.region->count, .mem = a.region->mem, .range = a.range};
  if (a.has_form) region.form = kern_facts_keep(&s->facts, &a.form);
  return set_region(s, id, region);
}

static quern_status do_load(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  struct access a = {.region = known_of(s, x, 0)->region, .index = known_of(s, x, 1), .lanes = x->lanes};
  if (x->op == KERN_GATHER) a.lanes = BASE_MAX(x->imm, 1);
  if (x->op == KERN_LOAD && x->arg[2] != KERN_NONE) a.active = known_of(s, x, 2);
  QUERN_TRY(check_access(s, id, &a));
  kern_scan_value(s, id);
  return QUERN_STATUS_OK;
}

static quern_status do_prefetch(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  struct access a = {.region = known_of(s, x, 0)->region, .index = known_of(s, x, 1), .lanes = BASE_MAX(x->imm, 1)};
  return check_access(s, id, &a);
}

/* Remembers what is known to hold where a store stands. */
static bool keep_assumed(struct kern_scan *s, struct kern_store *store) {
  store->n_assumed = s->facts.assumed.n;
  store->assumed = base_arena_copy(&s->facts.arena, s->facts.assumed.at, store->n_assumed * sizeof *store->assumed);
  return store->assumed != NULL;
}

static quern_status do_store(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  struct access a = {.region = known_of(s, x, 0)->region, .index = known_of(s, x, 1)};
  a.lanes = x->op == KERN_SCATTER ? x->imm : s->fn->insts.at[x->arg[2]].lanes;
  if (x->op == KERN_STORE && x->arg[3] != KERN_NONE) a.active = known_of(s, x, 3);
  QUERN_TRY(check_access(s, id, &a));
  if (a.region->mem < 0) return QUERN_STATUS_OK;
  if (s->phase < 0) {
    bool inside = a.range.lo >= 0 || (a.has_form && kern_facts_lower(&s->facts, &a.form, 0) >= 0);
    if (!inside) s->before[a.region->mem] = true;
    return QUERN_STATUS_OK;
  }
  struct kern_store store = {.id = id, .mem = a.region->mem, .lanes = (int)a.lanes};
  if (a.has_form && x->op == KERN_STORE) store.form = kern_facts_keep(&s->facts, &a.form); /* lanes lie anywhere */
  if (a.active != NULL) store.active = active_form(s, a.active->form);
  bool kept = keep_assumed(s, &store) && base_vec_push(s->facts.arena.heap, &s->stores, store);
  return kept ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

/* A function is given memory to store to. */
static quern_status add_given_memory(struct kern_scan *s, kern_id id, int fn, int mem,
                                     const struct kern_region *region) {
  struct kern_passed given = {fn, mem, {.id = id, .mem = region->mem, .form = region->form, .lanes = 1}};
  bool kept = keep_assumed(s, &given.store) && base_vec_push(s->facts.arena.heap, &s->given, given);
  return kept ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static quern_status do_call(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  const struct kern_fn *callee = s->kern->fns.at[x->imm];
  struct kern_calls *calls = &s->calls[x->imm];
  for (int i = 0; i < callee->n_mems; i++) {
    const struct kern_region *region = s->known[s->fn->pool.at[x->arg[0] + i]].region;
    if (region->mem < 0 || !s->writes[x->imm * KERN_MAX_MEMS + i]) continue;
    if (s->phase < 0) s->before[region->mem] = true;
    if (s->phase >= 0) QUERN_TRY(add_given_memory(s, id, (int)x->imm, i, region));
  }
  for (int i = 0; i < callee->n_scalars; i++) {
    struct kern_range range = s->known[s->fn->pool.at[x->arg[0] + callee->n_mems + i]].range;
    calls->scalars[i] = calls->called ? kern_range_hull(calls->scalars[i], range) : range;
  }
  calls->called = true;
  return QUERN_STATUS_OK;
}

/* ---- blocks ---------------------------------------------------------------------------------------------- */

static void open_block(struct kern_scan *s, const struct kern_cond *cond) {
  s->blocks[s->depth].n_assumed = s->facts.assumed.n;
  s->blocks[s->depth].cond = cond;
  s->blocks[s->depth++].dead = s->dead;
}

/* How far below the bound hi a variable stays that starts at lo and grows by step: D = hi - lo decides. */
static int64_t distance_below(const struct kern_scan *s, const struct kern_form *d, int64_t step) {
  int64_t mod, rem, best = 0, most = 0;
  kern_form_residue(&s->facts, d, &mod, &rem);
  mod = kern_gcd(step, mod);
  if (mod > most) most = mod, best = rem - kern_floor_div(rem, mod) * mod;
  for (int i = 0; i < d->n; i++) { /* a mod n is a, modulo n */
    const struct kern_sym *sym = &s->facts.syms.at[d->terms[i].sym];
    struct kern_form same;
    int64_t by;
    if (sym->kind != KERN_SYM_MOD || !kern_mul_fits(d->terms[i].coef, sym->by, &by)) continue;
    if (!kern_form_replace(&same, d, i, sym->of, 1)) continue;
    kern_form_residue(&s->facts, &same, &mod, &rem);
    mod = kern_gcd(step, kern_gcd(mod, by));
    if (mod > most) most = mod, best = rem - kern_floor_div(rem, mod) * mod;
  }
  return best == 0 ? most : best;
}

/* In a loop's only turn: hi - lo is at least `below`. */
static quern_status assume_iteration(struct kern_scan *s, const struct kern_form *d, int64_t below) {
  struct kern_form fact = kern_form_const(below);
  if (d->n == 0 || !kern_form_add(&fact, &fact, d, -1)) return QUERN_STATUS_OK;
  const struct kern_form *kept = kern_facts_keep(&s->facts, &fact);
  if (kept == NULL || !base_vec_push(s->facts.arena.heap, &s->facts.assumed, kept)) return QUERN_STATUS_MEMORY;
  return QUERN_STATUS_OK;
}

static quern_status do_for(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  struct kern_known *lo = known_of(s, x, 0), *hi = known_of(s, x, 1);
  struct kern_form d, top;
  open_block(s, NULL);
  if (!kern_form_add(&d, hi->form, lo->form, -1)) {
    kern_scan_set_any(s, id,
                      (struct kern_range){lo->range.lo, kern_range_add(hi->range, (struct kern_range){-1, -1}).hi});
    return QUERN_STATUS_OK;
  }
  int64_t longest = kern_facts_upper(&s->facts, &d, 0), below = distance_below(s, &d, x->imm), mod, rem;
  struct kern_range range = {lo->range.lo, kern_range_add(hi->range, (struct kern_range){-below, -below}).hi};
  if (longest <= x->imm) { /* one turn, or none */
    s->dead = longest <= 0 || range.hi < range.lo;
    s->known[id] = *lo;
    if (!s->dead) s->known[id].range.hi = BASE_MIN(lo->range.hi, range.hi);
    return assume_iteration(s, &d, below);
  }
  struct kern_form minus = kern_form_const(-below);
  kern_form_residue(&s->facts, lo->form, &mod, &rem);
  struct kern_sym sym = {.lower[0] = {lo->form, 1}, .mod = kern_gcd(mod, x->imm), .rem = rem};
  if (kern_form_add(&top, hi->form, &minus, 1)) sym.upper[0] = (struct kern_limit){kern_facts_keep(&s->facts, &top), 1};
  if (range.lo > range.hi) range.lo = range.hi;
  kern_scan_set_symbol(s, id, range, sym);
  return QUERN_STATUS_OK;
}

/* What follows holds under these facts; it never runs when one of them cannot be. */
static void assume(struct kern_scan *s, int n, const struct kern_form *const *facts) {
  for (int i = 0; i < n; i++) {
    if (kern_facts_lower(&s->facts, facts[i], 1) >= 1) s->dead = true;
    if (!base_vec_push(s->facts.arena.heap, &s->facts.assumed, facts[i])) s->facts.failed = true;
  }
}

static quern_status do_if(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  (void)id;
  const struct kern_cond *cond = known_of(s, x, 0)->cond;
  open_block(s, cond);
  if (cond != NULL) assume(s, cond->n_yes, cond->yes);
  return QUERN_STATUS_OK;
}

static void do_else(struct kern_scan *s) {
  const struct kern_cond *cond = s->blocks[s->depth - 1].cond;
  s->dead = s->blocks[s->depth - 1].dead;
  s->facts.assumed.n = s->blocks[s->depth - 1].n_assumed;
  if (!s->dead && cond != NULL) assume(s, cond->n_no, cond->no);
}

static void do_end(struct kern_scan *s) {
  s->depth--;
  s->dead = s->blocks[s->depth].dead;
  s->facts.assumed.n = s->blocks[s->depth].n_assumed;
}

/* ---- variables ------------------------------------------------------------------------------------------- */

static struct kern_variable *find_variable(const struct kern_scan *s, kern_id id) {
  for (size_t i = 0; i < s->variables.n; i++)
    if (s->variables.at[i].id == id) return &s->variables.at[i];
  return NULL;
}

static quern_status do_var(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  if (!base_dtype_is(x->dtype, BASE_INT)) return QUERN_STATUS_OK;
  struct kern_variable *v = find_variable(s, id);
  if (v == NULL) {
    struct kern_variable fresh = {.id = id, .assumed = kern_dtype_range(x->dtype)};
    if (!base_vec_push(s->facts.arena.heap, &s->variables, fresh)) return QUERN_STATUS_MEMORY;
    v = &s->variables.at[s->variables.n - 1];
  }
  v->seen = known_of(s, x, 0)->range;
  return QUERN_STATUS_OK;
}

static quern_status do_get(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  if (base_dtype_is(x->dtype, BASE_INT)) kern_scan_set_any(s, id, find_variable(s, x->arg[0])->assumed);
  return QUERN_STATUS_OK;
}

static quern_status do_set(struct kern_scan *s, kern_id id, const struct kern_inst *x) {
  (void)id;
  struct kern_variable *v = find_variable(s, x->arg[0]);
  if (v != NULL) v->seen = kern_range_hull(v->seen, known_of(s, x, 1)->range);
  return QUERN_STATUS_OK;
}

/* ---- functions ------------------------------------------------------------------------------------------- */

static transfer *const transfers[KERN_OP_COUNT] = {
    [KERN_SCALAR] = do_scalar, [KERN_TASK] = do_task,   [KERN_MEM] = do_mem,
    [KERN_LOCAL] = do_mem,     [KERN_AT] = do_at,       [KERN_LOAD] = do_load,
    [KERN_STORE] = do_store,   [KERN_GATHER] = do_load, [KERN_FOR] = do_for,
    [KERN_IF] = do_if,         [KERN_VAR] = do_var,     [KERN_GET] = do_get,
    [KERN_SET] = do_set,       [KERN_CALL] = do_call,   [KERN_PREFETCH] = do_prefetch,
    [KERN_SCATTER] = do_store, /* others: values */
};

int64_t kern_scan_tasks(const struct kern_scan *s) {
  const struct kern_tasks *tasks = &s->kern->phases[s->phase].tasks;
  return tasks->scalar >= 0 ? KERN_MAX_TASKS : tasks->mul / tasks->div + (tasks->mul % tasks->div != 0);
}

/* The symbols of scalars, then of the task. A task that runs shows that its scalar is above 0. */
static void add_given(struct kern_scan *s) {
  const struct kern_tasks *tasks = s->phase >= 0 ? &s->kern->phases[s->phase].tasks : NULL;
  for (int i = 0; i < s->fn->n_scalars; i++) {
    struct kern_range range = s->calls[s->number].called ? s->calls[s->number].scalars[i] : kern_everything;
    if (tasks != NULL && tasks->scalar == i)
      range = (struct kern_range){
          1, kern_range_mul((struct kern_range){0, KERN_MAX_TASKS}, (struct kern_range){0, tasks->div}).hi};
    s->scalars[i] = kern_facts_add(&s->facts, (struct kern_sym){.lo = range.lo, .hi = range.hi});
  }
  if (tasks == NULL || s->facts.failed) return;
  struct kern_sym task = {.lo = 0, .hi = BASE_MAX(kern_scan_tasks(s) - 1, 0)};
  struct kern_form form = kern_form_const(-1); /* div * task <= mul * scalar - 1 */
  if (tasks->scalar >= 0) {
    struct kern_form scalar = kern_form_sym(s->scalars[tasks->scalar]);
    if (kern_form_add(&form, &form, &scalar, tasks->mul))
      task.upper[0] = (struct kern_limit){kern_facts_keep(&s->facts, &form), tasks->div};
  }
  s->task = kern_facts_add(&s->facts, task);
}

static quern_status scan_once(struct kern_scan *s) {
  kern_facts_fini(&s->facts);
  memset(s->known, 0, s->fn->insts.n * sizeof *s->known);
  for (size_t i = 0; i < BASE_COUNT(s->lanes); i++) s->lanes[i] = -1;
  s->stores.n = s->given.n = 0;
  s->depth = s->unproven = 0;
  memset(s->before, 0, sizeof s->before);
  s->dead = s->phase >= 0 && kern_scan_tasks(s) == 0;
  add_given(s);
  for (size_t i = 0; i < s->fn->insts.n; i++) {
    const struct kern_inst *x = &s->fn->insts.at[i];
    if (s->facts.failed) return QUERN_STATUS_MEMORY;
    if (x->op == KERN_END)
      do_end(s);
    else if (x->op == KERN_ELSE)
      do_else(s);
    else if (s->dead && (x->op == KERN_FOR || x->op == KERN_IF))
      open_block(s, NULL);
    else if (!s->dead) {
      if (transfers[x->op] == NULL)
        kern_scan_value(s, (kern_id)i);
      else
        QUERN_TRY(transfers[x->op](s, (kern_id)i, x));
    }
  }
  return s->facts.failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK;
}

/* Variables hold only what they start with or are set to: true when that is less than was assumed. */
static bool narrow_variables(struct kern_scan *s) {
  bool narrower = false;
  for (size_t i = 0; i < s->variables.n; i++) {
    struct kern_variable *v = &s->variables.at[i];
    if (v->seen.lo > v->assumed.lo || v->seen.hi < v->assumed.hi) narrower = true;
    v->assumed = kern_range_meet(v->assumed, v->seen);
  }
  return narrower;
}

/* A pass that knows nothing of variables shows what they are set to; the next one knows that. The last one reports. */
quern_status kern_scan_bounds(struct kern_scan *s) {
  enum { QUIET_PASSES = 3 };
  struct kern_calls before[KERN_MAX_FNS];
  memcpy(before, s->calls, s->kern->fns.n * sizeof *before);
  s->variables.n = 0;
  for (int pass = 0; pass <= QUIET_PASSES; pass++) {
    if (pass > 0) memcpy(s->calls, before, s->kern->fns.n * sizeof *before);
    s->quiet = s->lenient || pass < QUIET_PASSES;
    QUERN_TRY(scan_once(s));
    if (s->unproven == 0) return QUERN_STATUS_OK;
    if (!narrow_variables(s)) pass = BASE_MAX(pass, QUIET_PASSES - 1);
  }
  return QUERN_STATUS_OK;
}
