/* plan/make.c -- the planner: tasks, order, repetitions, offsets, and the plan of it
** see: tasks.c, task_order.c, remat.c, offsets.c; tests: tests/plan/test_make.c
*/
#include <inttypes.h>

#include "plan/plan_int.h"

enum { LARGEST = 5 };

static void *at_least_one(struct base_arena *arena, size_t n, size_t size) {
  return base_arena_alloc(arena, (n + 1) * size);
}

/* ---- the plan of a job ----------------------------------------------------------------------------------- */

struct writer {
  struct plan_job *job;
  struct base_arena *arena; /* of the plan */
  const struct plan_liveness *life;
  const int64_t *at; /* of each store in the arena */
  int *number;       /* of each store: its buffer, or -1 */
  struct plan *plan;
};

static void write_buffer(struct writer *w, int s) {
  const struct plan_store *store = &w->job->stores.at[s], *home = &w->job->stores.at[w->life->home[s]];
  struct plan_buffer *buffer = &w->plan->buffers[w->plan->n_buffers];
  *buffer = (struct plan_buffer){.tensor = store->tensor,
                                 .memory = home->memory,
                                 .at = home->memory == PLAN_ARENA ? w->at[s] : home->at,
                                 .bytes = store->bytes,
                                 .first = store->maker < 0 ? -1 : w->life->first[s],
                                 .last = w->life->last[s],
                                 .takes = -1};
  bool stays = store->maker >= 0 && !store->passes &&
               (store->memory == PLAN_STATE || store->memory == PLAN_RESULT || store->over >= 0);
  if (stays) buffer->last = (int)w->job->runs.n;
  w->number[s] = (int)w->plan->n_buffers++;
}

static quern_status write_buffers(struct writer *w) {
  size_t n = w->job->stores.n;
  w->number = at_least_one(&w->job->arena, n, sizeof(int));
  w->plan->buffers = at_least_one(w->arena, n, sizeof *w->plan->buffers);
  if (w->number == NULL || w->plan->buffers == NULL) return QUERN_STATUS_MEMORY;
  for (size_t s = 0; s < n; s++) {
    bool used = w->life->first[s] <= w->life->last[s] || w->job->stores.at[s].memory == PLAN_PARAM;
    w->number[s] = -1;
    if (used) write_buffer(w, (int)s);
  }
  for (size_t s = 0; s < n; s++) {
    int over = w->job->stores.at[s].over, from = w->life->takes[s];
    if (over >= 0 && w->life->last[over] == w->life->first[s]) from = over;
    if (w->number[s] >= 0 && from >= 0) w->plan->buffers[w->number[s]].takes = w->number[from];
  }
  return QUERN_STATUS_OK;
}

static enum plan_step_kind control_kind(const struct ir_node *node) {
  return node->op == IR_LOOP ? PLAN_LOOP : node->op == IR_WHILE ? PLAN_WHILE : PLAN_IF;
}

static quern_status write_step(struct writer *w, const struct plan_run *run, struct plan_step *step) {
  const struct plan_task *task = &w->job->tasks.at[run->task];
  int n = task->n_reads + task->n_writes + task->n_works;
  *step =
      (struct plan_step){.kind = PLAN_COPY, .n_buffers = n, .rematerialized = run->repeated || task->rematerializes};
  step->buffers = at_least_one(w->arena, (size_t)n, sizeof(int));
  if (step->buffers == NULL) return QUERN_STATUS_MEMORY;
  for (int i = 0; i < n; i++) step->buffers[i] = w->number[run->stores[task->input < 0 ? 1 - i : i]];
  if (task->input < 0) return QUERN_STATUS_OK;
  const struct plan_input_step *input = &w->job->inputs[task->input];
  step->group = input->group;
  step->kind = PLAN_KERNEL;
  step->kernel = input->kernel;
  if (input->group->kind != PASS_KIND_CONTROL) return QUERN_STATUS_OK;
  step->node = input->group->anchor;
  step->kind = control_kind(step->node);
  step->body = input->body;
  step->other = input->other;
  return QUERN_STATUS_OK;
}

static int64_t scratch_of(const struct plan_job *job) {
  int64_t thread = 0, body = 0;
  for (size_t i = 0; i < job->n_inputs; i++) {
    const struct plan_input_step *step = &job->inputs[i];
    thread = BASE_MAX(thread, plan_round(step->scratch));
    if (step->body != NULL) body = BASE_MAX(body, step->body->memory.scratch);
    if (step->other != NULL) body = BASE_MAX(body, step->other->memory.scratch);
  }
  return BASE_MAX(thread * job->options->threads, body);
}

/* The most bytes at a time of what result 0 needs, or a repetition of it, that wait for a reader which it does not need; or
** those of a body: what control gives is of both ways, and does not count. */
static quern_status find_held(const struct writer *w, int64_t *held) {
  struct plan_job *job = w->job;
  int n = (int)job->runs.n;
  int64_t *change = PLAN_NEW(&job->arena, int64_t, n + 1), now = 0;
  int *until = PLAN_NEW(&job->arena, int, job->stores.n);
  if (change == NULL || until == NULL) return QUERN_STATUS_MEMORY;
  for (int at = 0; at < n; at++) { /* the last such reader, counted from 1 */
    const struct plan_run *run = &job->runs.at[at];
    const struct plan_task *task = &job->tasks.at[run->task];
    bool back = !task->there && !task->rematerializes;
    for (int i = 0; i < task->n_reads && back; i++) until[run->stores[i]] = at + 1;
  }
  for (size_t s = 0; s < job->stores.n; s++) {
    const struct plan_store *store = &job->stores.at[s];
    if (store->maker < 0 || store->memory != PLAN_ARENA || until[s] == 0) continue;
    const struct plan_task *maker = &job->tasks.at[store->maker];
    bool control = maker->input >= 0 && job->inputs[maker->input].body != NULL;
    if (control || (!maker->there && !maker->rematerializes)) continue;
    change[w->life->first[s]] += store->room;
    change[until[s]] -= store->room;
  }
  for (size_t i = 0; i < job->n_inputs; i++) {
    const struct plan *const bodies[] = {job->inputs[i].body, job->inputs[i].other};
    for (int k = 0; k < 2; k++)
      if (bodies[k] != NULL) *held = BASE_MAX(*held, bodies[k]->memory.held);
  }
  for (int at = 0; at < n; at++) {
    now += change[at];
    *held = BASE_MAX(*held, now);
  }
  return QUERN_STATUS_OK;
}

static quern_status write_plan(struct writer *w) {
  struct plan_job *job = w->job;
  const struct plan_options *options = job->options;
  struct plan *plan = w->plan;
  QUERN_TRY(write_buffers(w));
  plan->n_steps = job->runs.n;
  plan->n_params = (int)options->n_params;
  plan->n_results = (int)options->n_results;
  plan->steps = at_least_one(w->arena, plan->n_steps, sizeof *plan->steps);
  plan->params = at_least_one(w->arena, options->n_params, sizeof(int));
  plan->results = at_least_one(w->arena, options->n_results, sizeof(int));
  plan->in_place = base_arena_copy(w->arena, job->in_place, options->n_results * sizeof(bool));
  if (plan->steps == NULL || plan->params == NULL || plan->results == NULL || plan->in_place == NULL)
    return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < options->n_params; i++) plan->params[i] = w->number[job->params[i]];
  for (size_t i = 0; i < options->n_results; i++) plan->results[i] = w->number[job->results[i]];
  for (size_t i = 0; i < plan->n_steps; i++) QUERN_TRY(write_step(w, &job->runs.at[i], &plan->steps[i]));
  plan->memory.bound = w->life->bound;
  plan->memory.scratch = scratch_of(job);
  QUERN_TRY(find_held(w, &plan->memory.held));
  for (size_t s = 0; s < job->stores.n; s++)
    if (w->number[s] >= 0 && job->stores.at[s].memory == PLAN_ARENA) plan->memory.unshared += job->stores.at[s].room;
  return QUERN_STATUS_OK;
}

/* ---- the limit --------------------------------------------------------------------------------------------- */

/* The largest tensors, the first largest; and the bodies that were looked at, each once. */
struct largest {
  struct base_heap *heap;
  BASE_VEC(const struct plan *) bodies;
  int n;
  const quern_tensor *tensors[LARGEST];
  int64_t bytes[LARGEST];
};

static void offer(struct largest *l, const quern_tensor *tensor, int64_t bytes) {
  if (tensor == NULL || (l->n == LARGEST && l->bytes[LARGEST - 1] >= bytes)) return;
  for (int i = 0; i < l->n; i++)
    if (l->tensors[i] == tensor) return;
  int k = l->n < LARGEST ? l->n++ : LARGEST - 1;
  for (; k > 0 && l->bytes[k - 1] < bytes; k--) {
    l->tensors[k] = l->tensors[k - 1];
    l->bytes[k] = l->bytes[k - 1];
  }
  l->tensors[k] = tensor;
  l->bytes[k] = bytes;
}

/* Offers the tensors of a body, and of bodies in it: recursion is as deep as subgraphs lie in subgraphs. */
static quern_status offer_body(struct largest *l, const struct plan *body) {
  if (body == NULL) return QUERN_STATUS_OK;
  for (size_t i = 0; i < l->bodies.n; i++)
    if (l->bodies.at[i] == body) return QUERN_STATUS_OK;
  if (!base_vec_push(l->heap, &l->bodies, body)) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < body->n_buffers; i++)
    if (body->buffers[i].memory == PLAN_ARENA) offer(l, body->buffers[i].tensor, body->buffers[i].bytes);
  for (size_t i = 0; i < body->n_steps; i++) {
    QUERN_TRY(offer_body(l, body->steps[i].body));
    QUERN_TRY(offer_body(l, body->steps[i].other));
  }
  return QUERN_STATUS_OK;
}

static quern_status find_largest(struct largest *l, const struct plan_job *job) {
  for (int s = 0; s < (int)job->stores.n; s++) {
    const struct plan_store *store = &job->stores.at[s];
    if (store->memory == PLAN_ARENA && store->version_of == s) offer(l, store->tensor, store->bytes);
  }
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < job->n_inputs && status == QUERN_STATUS_OK; i++) {
    status = offer_body(l, job->inputs[i].body);
    if (status == QUERN_STATUS_OK) status = offer_body(l, job->inputs[i].other);
  }
  base_vec_fini(l->heap, &l->bodies);
  return status;
}

/* Says that the limit cannot be met, what would do, and which tensors are the largest. */
static quern_status refuse(const struct plan_job *job, int64_t least) {
  struct largest largest = {.heap = job->heap};
  struct base_str str;
  QUERN_TRY(find_largest(&largest, job));
  base_str_init(&str, job->heap);
  for (int i = 0; i < largest.n; i++) {
    const quern_tensor *t = largest.tensors[i];
    char type[IR_TYPE_TEXT];
    const char *op = t->node->op == IR_COMPOSITE ? t->node->attrs->name : ir_ops[t->node->op].name;
    base_str_printf(&str, "%s %s %s of %" PRId64 " bytes", i == 0 ? "" : ",", op, ir_type_text(type, t),
                    largest.bytes[i]);
  }
  quern_status status = base_str_status(&str);
  if (status == QUERN_STATUS_OK && job->options->least != NULL) *job->options->least = least;
  if (status == QUERN_STATUS_OK)
    status = base_error(QUERN_STATUS_MEMORY,
                        "plan: the limit of %" PRId64 " bytes cannot be met; the smallest that can is %" PRId64
                        " bytes; the largest tensors:%s",
                        job->options->limit, least, largest.n > 0 ? str.at : " none");
  base_str_fini(&str);
  return status;
}

/* Lifetimes and offsets of the runs as they are now. */
static quern_status place(struct plan_job *job, struct plan_liveness *life, int64_t **at, int64_t *total) {
  *at = at_least_one(&job->arena, job->stores.n, sizeof(int64_t));
  if (*at == NULL) return QUERN_STATUS_MEMORY;
  QUERN_TRY(plan_find_liveness(job, life, &job->arena));
  return plan_assign_stores(job, life, &job->arena, 0, *at, total);
}

/* One way to plan, and how it went. */
struct attempt {
  int segments;  /* of recomputation; 0: as the options say */
  bool repeat;   /* more runs may be repeated to meet the limit */
  bool back;     /* there is a backward pass: something that result 0 needs is read by what it does not need */
  bool fits;     /* there is a plan */
  double again;  /* seconds, as estimated, that it takes more for computing things again */
  int64_t least; /* when it does not fit: the bytes that would have done */
};

static quern_status place_within(struct plan_job *job, struct plan_liveness *life, int64_t **at, int64_t *total,
                                 struct attempt *attempt) {
  int64_t scratch = scratch_of(job) + job->options->staging, limit = job->options->limit, least;
  QUERN_TRY(place(job, life, at, total));
  attempt->least = *total + scratch;
  attempt->fits = limit == 0 || attempt->least <= limit;
  if (attempt->fits || !attempt->repeat) return QUERN_STATUS_OK;
  QUERN_TRY(plan_rematerialize(job, limit - scratch, &least, &attempt->fits));
  attempt->least = least + scratch;
  return attempt->fits ? place(job, life, at, total) : QUERN_STATUS_OK;
}

/* ---- the door ------------------------------------------------------------------------------------------------ */

static quern_status make(struct plan_job *job, struct base_arena *arena, struct attempt *attempt, struct plan **plan) {
  struct plan_liveness life;
  int64_t *at, total;
  QUERN_TRY(plan_tasks(job));
  int *order = at_least_one(&job->arena, job->tasks.n, sizeof(int));
  if (order == NULL) return QUERN_STATUS_MEMORY;
  QUERN_TRY(plan_order(job, order));
  for (size_t i = 0; i < job->tasks.n; i++) {
    struct plan_run run = {order[i], false, job->tasks.at[order[i]].stores};
    if (!base_vec_push(job->heap, &job->runs, run)) return QUERN_STATUS_MEMORY;
  }
  for (size_t t = 0; t < job->tasks.n; t++) {
    const struct plan_task *task = &job->tasks.at[t];
    for (int i = 0; i < task->n_reads && !task->there; i++) {
      int maker = job->stores.at[task->stores[i]].maker;
      attempt->back = attempt->back || (maker >= 0 && job->tasks.at[maker].there);
    }
  }
  QUERN_TRY(place_within(job, &life, &at, &total, attempt));
  if (!attempt->fits) return QUERN_STATUS_OK;
  for (size_t i = 0; i < job->runs.n; i++) {
    const struct plan_task *task = &job->tasks.at[job->runs.at[i].task];
    if (task->rematerializes || job->runs.at[i].repeated) attempt->again += task->seconds;
  }
  *plan = base_arena_new(arena, struct plan);
  if (*plan == NULL) return QUERN_STATUS_MEMORY;
  (*plan)->memory.arena = total;
  struct writer w = {.job = job, .arena = arena, .life = &life, .at = at, .plan = *plan};
  return write_plan(&w);
}

/* Plans from scratch; least > 0: the last word, the error names that many bytes where it does not fit. */
static quern_status try(const struct plan_job *like, struct base_arena *arena, struct attempt *attempt, int64_t least,
                        struct plan **plan) {
  struct plan_job job = *like;
  job.segments = attempt->segments;
  base_arena_init(&job.arena, job.heap);
  quern_status status = make(&job, arena, attempt, plan);
  if (status == QUERN_STATUS_OK && !attempt->fits && least > 0) status = refuse(&job, BASE_MIN(least, attempt->least));
  base_vec_fini(job.heap, &job.stores);
  base_vec_fini(job.heap, &job.tasks);
  base_vec_fini(job.heap, &job.edges);
  base_vec_fini(job.heap, &job.runs);
  base_arena_fini(&job.arena);
  return status;
}

/* Under a limit that is too small: by repeating single runs, or by computing whole segments again, whichever takes less time;
** where neither fits, both. */
static quern_status plan_within(const struct plan_job *job, struct base_arena *arena, struct plan **plan) {
  static const int segments[] = {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};
  struct attempt best = {.repeat = true}, least = {.least = INT64_MAX};
  QUERN_TRY(try(job, arena, &best, job->options->recompute ? INT64_MAX : 0, plan));
  if (job->options->recompute || (best.fits && best.again == 0)) return QUERN_STATUS_OK;
  for (size_t i = 0; i < BASE_COUNT(segments) && best.back; i++) {
    struct attempt next = {.segments = segments[i]};
    struct plan *other;
    QUERN_TRY(try(job, arena, &next, 0, &other));
    if (!next.fits && next.least < least.least) least = next;
    if (!next.fits || (best.fits && next.again >= best.again)) continue;
    best = next;
    *plan = other;
  }
  least.repeat = true;
  return best.fits ? QUERN_STATUS_OK : try(job, arena, &least, best.least, plan);
}

quern_status plan_make(struct plan **plan, struct base_arena *arena, size_t n, const struct plan_input_step *steps,
                       const struct plan_options *options) {
  struct plan_job job = {.heap = arena->heap, .n_inputs = n, .inputs = steps, .options = options};
  *plan = NULL;
  quern_status status = plan_within(&job, arena, plan);
  if (status != QUERN_STATUS_OK) *plan = NULL;
  return status;
}
