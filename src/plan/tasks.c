/* plan/tasks.c -- from groups and kernels to stores, tasks and what must precede what
** in:    steps in a valid order, leaves, results, updates     out: job->stores, tasks, edges, params, results
** keeps: views have no store of their own; a result or a state's new value has its final place from here on
** tests: tests/plan/test_tasks.c
*/
#include "plan/plan_int.h"

struct binding {
  const quern_tensor *tensor;
  int store;
};

/* What building needs beside the job. */
struct tasks {
  struct plan_job *job;
  struct base_map bindings; /* which store a tensor lives in */
  int *user_at, *users;     /* tasks that read store s: users[user_at[s] .. user_at[s + 1] - 1] */
  int *edge_at;             /* the edges from task t, as indices of job->edges chained by edge_next */
  BASE_VEC(int) edge_next;
  uint32_t *seen, epoch;
  BASE_VEC(int) stack;
};

/* ---- stores and bindings --------------------------------------------------------------------------------- */

static uint64_t tensor_hash(const quern_tensor *t) {
  return base_hash_u64(BASE_HASH_SEED, (uint64_t)t->node->id << 16 ^ (uint64_t)t->result);
}

static bool same_tensor(const void *item, const void *key) { return ((const struct binding *)item)->tensor == key; }

/* The store of a tensor, or -1. */
static int find(const struct tasks *b, const quern_tensor *t) {
  const struct binding *found = base_map_find(&b->bindings, tensor_hash(t), same_tensor, t);
  return found != NULL ? found->store : -1;
}

static quern_status bind(struct tasks *b, const quern_tensor *t, int store) {
  struct binding *item = base_arena_new(&b->job->arena, struct binding);
  if (item == NULL) return QUERN_STATUS_MEMORY;
  *item = (struct binding){t, store};
  return base_map_add(&b->bindings, tensor_hash(t), item) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

quern_status plan_add_store(struct plan_job *job, struct plan_store store, int *number) {
  *number = (int)job->stores.n;
  int64_t align = BASE_MAX(job->options->align, PLAN_ALIGN);
  store.room = (store.bytes + align - 1) / align * align;
  store.over = store.next_version = -1;
  store.version_of = *number;
  return base_vec_push(job->heap, &job->stores, store) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static quern_status add_leaf(struct tasks *b, quern_tensor *t, enum plan_memory_kind place, int64_t at, bool donated,
                             int *number) {
  struct plan_store store = {
      .tensor = t, .bytes = (int64_t)ir_bytes(t), .memory = place, .at = at, .donated = donated, .maker = -1};
  QUERN_TRY(plan_add_store(b->job, store, number));
  return bind(b, t, *number);
}

static quern_status must_find(const struct tasks *b, const quern_tensor *t, const char *who, int *store) {
  char type[IR_TYPE_TEXT];
  *store = find(b, t);
  QUERN_CHECK(*store >= 0, INTERNAL, "plan: %s reads a %s, %s, which nothing makes", who, ir_ops[t->node->op].name,
              ir_type_text(type, t));
  return QUERN_STATUS_OK;
}

/* ---- tasks ------------------------------------------------------------------------------------------------ */

/* A task with room for its stores. */
static quern_status add_task(struct plan_job *job, int input, int n_reads, int n_writes, int n_works,
                             struct plan_task **task) {
  struct plan_task made = {.input = input, .n_reads = n_reads, .n_writes = n_writes, .n_works = n_works};
  made.stores = PLAN_NEW(&job->arena, int, n_reads + n_writes + n_works);
  made.alias = PLAN_NEW(&job->arena, int, n_writes);
  made.in_place_classes = PLAN_NEW(&job->arena, int, n_reads + n_writes);
  if (made.stores == NULL || made.alias == NULL || made.in_place_classes == NULL) return QUERN_STATUS_MEMORY;
  for (int i = 0; i < n_writes; i++) made.alias[i] = -1;
  if (!base_vec_push(job->heap, &job->tasks, made)) return QUERN_STATUS_MEMORY;
  *task = &job->tasks.at[job->tasks.n - 1];
  return QUERN_STATUS_OK;
}

static quern_status add_work(struct plan_job *job, const struct plan_task *task, int64_t bytes, int *number) {
  struct plan_store store = {.bytes = bytes, .memory = PLAN_ARENA, .maker = (int)(task - job->tasks.at)};
  return plan_add_store(job, store, number);
}

static quern_status add_output(struct tasks *b, const struct plan_task *task, quern_tensor *t, int *number) {
  int maker = (int)(task - b->job->tasks.at);
  struct plan_store store = {.tensor = t, .bytes = (int64_t)ir_bytes(t), .memory = PLAN_ARENA, .maker = maker};
  QUERN_TRY(plan_add_store(b->job, store, number));
  return bind(b, t, *number);
}

/* A copy of one store to another. */
static quern_status add_copy(struct plan_job *job, int from, struct plan_store to, bool final, int *number) {
  struct plan_task *task;
  QUERN_TRY(add_task(job, -1, 1, 1, 0, &task));
  task->final = final;
  task->seconds = (double)job->stores.at[from].bytes * 2e-10;
  task->stores[0] = from;
  to.tensor = job->stores.at[from].tensor;
  to.bytes = job->stores.at[from].bytes;
  to.maker = (int)job->tasks.n - 1;
  QUERN_TRY(plan_add_store(job, to, number));
  task->stores[1] = *number;
  return QUERN_STATUS_OK;
}

static quern_status kernel_task(struct tasks *b, int input) {
  struct plan_job *job = b->job;
  const struct plan_input_step *step = &job->inputs[input];
  const struct pass_group *group = step->group;
  const struct kern *kern = step->kern;
  int n_ins = (int)group->n_ins, n_outs = (int)group->n_outs, n_works = kern->n_mems - n_ins - n_outs;
  struct plan_task *task;
  QUERN_CHECK(n_works >= 0, INTERNAL, "plan: kernel %s has %d memories for %d ins and %d outs", kern->name,
              kern->n_mems, n_ins, n_outs);
  QUERN_TRY(add_task(job, input, n_ins, n_outs, n_works, &task));
  task->seconds = step->seconds;
  for (int i = 0; i < n_ins + n_outs; i++) task->in_place_classes[i] = kern->mems[i].in_place_class;
  for (int i = 0; i < n_ins; i++) QUERN_TRY(must_find(b, group->ins[i], kern->name, &task->stores[i]));
  for (int i = 0; i < n_outs; i++) {
    QUERN_TRY(add_output(b, task, group->outs[i].tensor, &task->stores[n_ins + i]));
    task->alias[i] = kern->mems[n_ins + i].alias;
  }
  for (int i = 0; i < n_works; i++) {
    const struct kern_mem *mem = &kern->mems[n_ins + n_outs + i];
    int64_t bytes = mem->count * (int64_t)base_dtypes[mem->dtype].size;
    QUERN_TRY(add_work(job, task, bytes, &task->stores[n_ins + n_outs + i]));
  }
  return QUERN_STATUS_OK;
}

static quern_status control_task(struct tasks *b, int input) {
  struct plan_job *job = b->job;
  const struct plan_input_step *step = &job->inputs[input];
  const struct ir_node *node = step->group->anchor;
  int n_in = node->n_src, n_out = node->n_out, n_carries = node->op == IR_IF ? 0 : (int)node->attrs->carries;
  struct plan_task *task;
  QUERN_TRY(add_task(job, input, n_in, n_out, 2 + n_carries, &task));
  task->seconds = step->seconds;
  task->is_loop = n_carries > 0;
  for (int i = 0; i < n_in; i++) QUERN_TRY(must_find(b, node->src[i], ir_ops[node->op].name, &task->stores[i]));
  for (int i = 0; i < n_out; i++) QUERN_TRY(add_output(b, task, &node->out[i], &task->stores[n_in + i]));
  int *works = task->stores + n_in + n_out;
  int64_t body = step->body != NULL ? step->body->memory.arena : 0;
  int64_t other = step->other != NULL ? step->other->memory.arena : 0;
  QUERN_TRY(add_work(job, task, 8, &works[0]));
  QUERN_TRY(add_work(job, task, BASE_MAX(body, other), &works[1]));
  bool once = node->op == IR_LOOP && node->attrs->trip <= 1;
  for (int i = 0; i < n_carries; i++) {
    /* a carry in place begins as a copy of its source, or where that is */
    bool in_place = step->body != NULL && step->body->in_place[i];
    if (in_place) task->alias[i] = i;
    QUERN_TRY(add_work(job, task, once || in_place ? 0 : (int64_t)ir_bytes(&node->out[i]), &works[2 + i]));
  }
  return QUERN_STATUS_OK;
}

static quern_status step_task(struct tasks *b, int input) {
  const struct pass_group *group = b->job->inputs[input].group;
  if (group->kind == PASS_KIND_CONTROL) return control_task(b, input);
  if (group->kind != PASS_KIND_VIEW) return kernel_task(b, input);
  int store;
  QUERN_TRY(must_find(b, group->ins[0], "a view", &store));
  for (size_t i = 0; i < group->n_nodes; i++)
    if (group->nodes[i]->op == IR_CHECKPOINT) b->job->stores.at[store].checkpoint = true;
  return bind(b, group->outs[0].tensor, store);
}

/* ---- results and updates ----------------------------------------------------------------------------------- */

/* Computes a result where it belongs, or copies it there. */
static quern_status place_result(struct tasks *b, size_t i) {
  struct plan_job *job = b->job;
  int from;
  QUERN_TRY(must_find(b, job->options->results[i], "a result", &from));
  struct plan_store *store = &job->stores.at[from];
  if (store->memory != PLAN_ARENA)
    return add_copy(job, from, (struct plan_store){.memory = PLAN_RESULT, .at = (int64_t)i}, false, &job->results[i]);
  store->memory = PLAN_RESULT;
  store->at = (int64_t)i;
  job->results[i] = from;
  return QUERN_STATUS_OK;
}

/* The store of the param that a result is carried to, or -1. */
static int carried_to(const struct plan_job *job, size_t result) {
  for (size_t i = 0; i < job->options->n_carried; i++)
    if (job->options->carried[i].result == (int)result) return job->params[job->options->carried[i].param];
  return -1;
}

/* Places all results but carries that a task computes: those wait until all readers of their old values are known. */
static quern_status place_results(struct tasks *b) {
  struct plan_job *job = b->job;
  for (size_t i = 0; i < job->options->n_results; i++) {
    int from, old = carried_to(job, i);
    QUERN_TRY(must_find(b, job->options->results[i], "a result", &from));
    bool waits = old >= 0 && job->stores.at[from].memory == PLAN_ARENA;
    job->in_place[i] = from == old;
    job->results[i] = waits ? -1 : from;
    if (!waits && !job->in_place[i]) QUERN_TRY(place_result(b, i));
  }
  return QUERN_STATUS_OK;
}

/* True when the state is given a new value. */
static bool is_updated(const struct tasks *b, int state) {
  const struct plan_options *options = b->job->options;
  for (size_t i = 0; i < options->n_updates; i++)
    if (find(b, options->updates[i].state) == state) return true;
  return false;
}

/* Where each new value stands before it is in its place: the value's store, or a copy of it made before old states that
** it lies in are overwritten. */
static quern_status find_values(struct tasks *b, int *states, int *values) {
  struct plan_job *job = b->job;
  for (size_t i = 0; i < job->options->n_updates; i++) {
    QUERN_TRY(must_find(b, job->options->updates[i].state, "an update", &states[i]));
    QUERN_TRY(must_find(b, job->options->updates[i].value, "an update", &values[i]));
    if (values[i] == states[i] || job->stores.at[values[i]].memory != PLAN_STATE || !is_updated(b, values[i])) continue;
    QUERN_TRY(add_copy(job, values[i], (struct plan_store){.memory = PLAN_ARENA}, false, &values[i]));
  }
  return QUERN_STATUS_OK;
}

static quern_status list_users(struct tasks *b) {
  struct plan_job *job = b->job;
  size_t total = 0;
  for (size_t t = 0; t < job->tasks.n; t++) total += (size_t)job->tasks.at[t].n_reads;
  b->user_at = PLAN_NEW(&job->arena, int, job->stores.n + 1);
  b->users = PLAN_NEW(&job->arena, int, total);
  b->edge_at = PLAN_NEW(&job->arena, int, job->tasks.n);
  b->seen = PLAN_NEW(&job->arena, uint32_t, job->tasks.n);
  if (b->user_at == NULL || b->users == NULL || b->edge_at == NULL || b->seen == NULL) return QUERN_STATUS_MEMORY;
  for (size_t t = 0; t < job->tasks.n; t++) {
    b->edge_at[t] = -1;
    for (int i = 0; i < job->tasks.at[t].n_reads; i++) b->user_at[job->tasks.at[t].stores[i] + 1]++;
  }
  for (size_t s = 0; s < job->stores.n; s++) b->user_at[s + 1] += b->user_at[s];
  for (size_t t = job->tasks.n; t-- > 0;) {
    for (int i = 0; i < job->tasks.at[t].n_reads; i++) b->users[--b->user_at[job->tasks.at[t].stores[i] + 1]] = (int)t;
  }
  /* the ends have moved to the beginnings of the next: shift them back */
  for (size_t s = 0; s < job->stores.n; s++) b->user_at[s] = b->user_at[s + 1];
  b->user_at[job->stores.n] = (int)total;
  return QUERN_STATUS_OK;
}

static bool push(struct tasks *b, int task) {
  if (b->seen[task] == b->epoch) return true;
  b->seen[task] = b->epoch;
  return base_vec_push(b->job->heap, &b->stack, task);
}

/* Marks in seen everything that must run after a task. */
static quern_status mark_after(struct tasks *b, int from) {
  struct plan_job *job = b->job;
  b->epoch++;
  bool ok = push(b, from);
  while (ok && b->stack.n > 0) {
    int t = b->stack.at[--b->stack.n];
    const struct plan_task *task = &job->tasks.at[t];
    for (int i = 0; i < task->n_writes && ok; i++) {
      int s = task->stores[task->n_reads + i];
      for (int u = b->user_at[s]; u < b->user_at[s + 1] && ok; u++) ok = push(b, b->users[u]);
    }
    for (int e = b->edge_at[t]; e >= 0 && ok; e = b->edge_next.at[e]) ok = push(b, job->edges.at[e].after);
  }
  return ok ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

/* True when the writer of a store may write it over a state that it reads itself, or does not read. */
static bool may_overwrite(const struct plan_task *task, int value, int state) {
  int reads = 0, at = -1;
  for (int i = 0; i < task->n_reads; i++) {
    if (task->stores[i] != state) continue;
    reads++;
    at = i;
  }
  for (int i = 0; i < task->n_writes; i++)
    if (task->stores[task->n_reads + i] == value) return reads == 0 || (reads == 1 && plan_may_take(task, i, at));
  return false;
}

/* Gives a new value the place of the old one, of a state or a carry, when every reader of the old one can run before
** it is written. */
static quern_status try_in_place(struct tasks *b, int state, int value, bool *done) {
  struct plan_job *job = b->job;
  struct plan_store *store = &job->stores.at[value];
  int maker = store->maker;
  *done = false;
  if (store->memory != PLAN_ARENA || maker < 0 || !may_overwrite(&job->tasks.at[maker], value, state))
    return QUERN_STATUS_OK;
  QUERN_TRY(mark_after(b, maker));
  for (int u = b->user_at[state]; u < b->user_at[state + 1]; u++)
    if (b->users[u] != maker && b->seen[b->users[u]] == b->epoch) return QUERN_STATUS_OK;
  for (int u = b->user_at[state]; u < b->user_at[state + 1]; u++) {
    int reader = b->users[u];
    if (reader == maker) continue;
    struct plan_edge edge = {reader, maker};
    if (!base_vec_push(job->heap, &b->edge_next, b->edge_at[reader])) return QUERN_STATUS_MEMORY;
    if (!base_vec_push(job->heap, &job->edges, edge)) return QUERN_STATUS_MEMORY;
    b->edge_at[reader] = (int)job->edges.n - 1;
  }
  store->memory = job->stores.at[state].memory;
  store->at = job->stores.at[state].at;
  store->over = state;
  *done = true;
  return QUERN_STATUS_OK;
}

/* True when the store is a result, or what a state is to become. */
static bool is_asked_for(const struct tasks *b, int store) {
  const struct plan_options *options = b->job->options;
  bool asked = false;
  for (size_t i = 0; i < options->n_results && !asked; i++) asked = find(b, options->results[i]) == store;
  for (size_t i = 0; i < options->n_updates && !asked; i++) asked = find(b, options->updates[i].value) == store;
  return asked;
}

static bool reads(const struct plan_task *task, int store) {
  bool found = false;
  for (int r = 0; r < task->n_reads; r++) found |= task->stores[r] == store;
  return found;
}

/* What the maker of a value reads alone and may write the value over; or -1. */
static int made_from(const struct tasks *b, int value) {
  const struct plan_job *job = b->job;
  const struct plan_task *task = &job->tasks.at[job->stores.at[value].maker];
  int w = 0;
  while (task->stores[task->n_reads + w] != value) w++;
  for (int r = 0; r < task->n_reads; r++) {
    int s = task->stores[r];
    const struct plan_store *from = &job->stores.at[s];
    bool good = plan_may_take(task, w, r) && from->memory == PLAN_ARENA && from->maker >= 0 && !from->checkpoint &&
                from->bytes == job->stores.at[value].bytes && b->user_at[s + 1] - b->user_at[s] == 1;
    if (good && !is_asked_for(b, s)) return s;
  }
  return -1;
}

/* Lets several tasks that add to an old value one after another do so in its place. */
static quern_status try_chain(struct tasks *b, int state, int value, bool *done) {
  enum { MOST = 8 };
  struct plan_job *job = b->job;
  int chain[MOST], n = 0;
  QUERN_TRY(try_in_place(b, state, value, done));
  bool more = *done && b->user_at[state + 1] - b->user_at[state] == 1; /* nobody else will want it again */
  for (int at = value; more && n < MOST && !reads(&job->tasks.at[job->stores.at[at].maker], state);) {
    at = chain[n] = made_from(b, at);
    more = at >= 0;
    n += more;
  }
  more = more && n > 0 && reads(&job->tasks.at[job->stores.at[chain[n - 1]].maker], state);
  for (int i = 0; i < n && more; i++) {
    QUERN_TRY(try_in_place(b, state, chain[i], &more));
    if (!more) break;
    job->stores.at[value].over = chain[i];
    job->stores.at[chain[i]].passes = true;
    value = chain[i];
  }
  return QUERN_STATUS_OK;
}

static quern_status place_carries(struct tasks *b) {
  struct plan_job *job = b->job;
  QUERN_TRY(list_users(b));
  for (size_t i = 0; i < job->options->n_results; i++) {
    int from;
    if (job->results[i] >= 0) continue;
    QUERN_TRY(must_find(b, job->options->results[i], "a result", &from));
    QUERN_TRY(try_chain(b, carried_to(job, i), from, &job->in_place[i]));
    job->results[i] = from;
    if (!job->in_place[i]) QUERN_TRY(place_result(b, i));
  }
  return QUERN_STATUS_OK;
}

static quern_status place_updates(struct tasks *b) {
  struct plan_job *job = b->job;
  size_t n = job->options->n_updates;
  int *states = PLAN_NEW(&job->arena, int, n), *values = PLAN_NEW(&job->arena, int, n), copy;
  bool *done = PLAN_NEW(&job->arena, bool, n);
  if (states == NULL || values == NULL || done == NULL) return QUERN_STATUS_MEMORY;
  QUERN_TRY(find_values(b, states, values));
  QUERN_TRY(list_users(b));
  for (size_t i = 0; i < n; i++) QUERN_TRY(try_chain(b, states[i], values[i], &done[i]));
  for (size_t i = 0; i < n; i++) {
    if (done[i] || values[i] == states[i]) continue;
    struct plan_store to = {.memory = PLAN_STATE, .at = job->stores.at[states[i]].at};
    QUERN_TRY(add_copy(job, values[i], to, true, &copy));
  }
  return QUERN_STATUS_OK;
}

/* Says what result 0 needs, and repeats what is to be: new values of states and carries are made once. */
static quern_status find_ways(struct tasks *b) {
  struct plan_job *job = b->job;
  const struct plan_options *options = job->options;
  bool *pinned = PLAN_NEW(&job->arena, bool, job->stores.n);
  int target = -1, value;
  if (pinned == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < options->n_updates; i++) {
    QUERN_TRY(must_find(b, options->updates[i].value, "an update", &value));
    pinned[value] = true;
  }
  for (size_t i = options->n_results; i-- > 0;) {
    QUERN_TRY(must_find(b, options->results[i], "a result", &target));
    pinned[target] = true;
  }
  return target < 0 ? QUERN_STATUS_OK : plan_remat_segments(job, target, pinned);
}

/* ---- the door ------------------------------------------------------------------------------------------------ */

static quern_status build(struct tasks *b) {
  struct plan_job *job = b->job;
  const struct plan_options *options = job->options;
  int number;
  job->params = PLAN_NEW(&job->arena, int, options->n_params);
  job->results = PLAN_NEW(&job->arena, int, options->n_results);
  job->in_place = PLAN_NEW(&job->arena, bool, options->n_results);
  if (job->params == NULL || job->results == NULL || job->in_place == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < options->n_params; i++) {
    bool donated = options->donated != NULL && options->donated[i];
    QUERN_TRY(add_leaf(b, options->params[i], PLAN_PARAM, (int64_t)i, donated, &job->params[i]));
  }
  for (size_t i = 0; i < options->n_leaves; i++) {
    const struct plan_leaf *leaf = &options->leaves[i];
    QUERN_TRY(add_leaf(b, leaf->tensor, leaf->memory, leaf->at, false, &number));
  }
  for (size_t i = 0; i < job->n_inputs; i++) QUERN_TRY(step_task(b, (int)i));
  QUERN_TRY(place_results(b));
  QUERN_TRY(find_ways(b));
  if (options->n_carried > 0) QUERN_TRY(place_carries(b));
  return options->n_updates > 0 ? place_updates(b) : QUERN_STATUS_OK;
}

quern_status plan_tasks(struct plan_job *job) {
  struct tasks b = {.job = job};
  base_map_init(&b.bindings, job->heap);
  quern_status status = build(&b);
  base_map_fini(&b.bindings);
  base_vec_fini(job->heap, &b.edge_next);
  base_vec_fini(job->heap, &b.stack);
  return status;
}
