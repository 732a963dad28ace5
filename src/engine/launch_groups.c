/* engine/launch_groups.c -- the order in which the steps of a run are captured: steps of the same kernel that do not need each other as one launch
** A small step takes the device less time than to begin it, and a model has hundreds of the same kernel: updates of small parameters, sums
** of their squares, casts of biases. Two walks over the plan's order: in the first a step waits until one comes that meets it, and those
** of its kernel that come meanwhile join it; the second does the same from the end to the beginning. Steps that move much
** memory do not wait while others that do are done, so that what they read is still in the device's cache.
** keeps: of two steps that touch something in common which one of them writes, the one that was first is first
** tests: tests/engine/test_launch_groups.c
*/
#include "engine/engine.h"

static const double FREE_BYTES = 1e6; /* a step that moves less may go far */
enum { NONE = -1 };

/* ---- what steps touch ---------------------------------------------------------------------------------------- */

static bool writes(const quern_program *program, const struct engine_step *step, int k) {
  return step->kind == PLAN_COPY ? k == 0 : program->kernels[step->kernel]->mems[k].role != KERN_IN;
}

/* The bytes that a step touches, from use n on; gives how many uses there are then. Of control steps none are needed. */
static int add_uses(struct engine_use *uses, int n, const quern_program *program, const struct engine_step *step,
                    void *const *at) {
  const struct engine_subprogram *subprogram = &program->subprograms[0];
  for (int k = 0; k < step->n_buffers && step->control == NULL; k++) {
    int64_t bytes = subprogram->buffers[step->buffers[k]].bytes;
    uintptr_t begin = (uintptr_t)at[step->buffers[k]];
    if (bytes > 0) uses[n++] = (struct engine_use){begin, begin + (uintptr_t)bytes, writes(program, step, k)};
  }
  return n;
}

static bool steps_meet(const struct engine_launch_order *order, int a, int b) {
  const struct engine_step *steps = order->subprogram->steps;
  if (steps[a].control != NULL || steps[b].control != NULL) return true;
  if (steps[a].scratch && steps[b].scratch) return true;
  for (int i = order->first_use[a]; i < order->first_use[a + 1]; i++) {
    const struct engine_use *x = &order->uses[i];
    for (int k = order->first_use[b]; k < order->first_use[b + 1]; k++) {
      const struct engine_use *y = &order->uses[k];
      if (x->begin < y->end && y->begin < x->end && (x->writes || y->writes)) return true;
    }
  }
  return false;
}

bool engine_launch_groups_conflict(const struct engine_launch_order *order, int a, int b) {
  for (int i = order->first[a]; i < order->first[a + 1]; i++)
    for (int k = order->first[b]; k < order->first[b + 1]; k++)
      if (steps_meet(order, order->steps[i], order->steps[k])) return true;
  return false;
}

/* ---- walks --------------------------------------------------------------------------------------------------- */

/* Launch groups as lists of steps: a group is named by its first step. */
struct walk {
  const quern_program *program;
  const struct engine_launch_order *order;
  const unsigned char *batchable; /* of each kernel */
  int *next, *last;               /* of a step: the next of its group, or NONE; of a group: its last step */
  int *from, *to, *waiting;       /* groups: in the order of the previous walk; in the order of this one; that wait */
  int n_from, n_to, n_waiting;
};

static const struct engine_step *step_of(const struct walk *w, int group) {
  return &w->order->subprogram->steps[group];
}

static bool may_batch(const struct walk *w, int group) {
  const struct engine_step *step = step_of(w, group);
  return step->kind == PLAN_KERNEL && !step->scratch && step->ref == NULL && w->batchable[step->kernel] != 0;
}

static bool is_free(const struct walk *w, int group) {
  const struct engine_step *step = step_of(w, group);
  if (step->kind == PLAN_KERNEL) return w->program->kernels[step->kernel]->cost.bytes < FREE_BYTES;
  return step->kind == PLAN_COPY && (double)w->order->subprogram->buffers[step->buffers[0]].bytes < FREE_BYTES;
}

static bool launch_groups_conflict(const struct walk *w, int a, int b) {
  for (int i = a; i != NONE; i = w->next[i])
    for (int k = b; k != NONE; k = w->next[k])
      if (steps_meet(w->order, i, k)) return true;
  return false;
}

/* Groups that wait are launched now if this one conflicts with them, or if it is launched at once and neither is small. */
static void end_waiting(struct walk *w, int group, bool at_once) {
  bool far = at_once && !is_free(w, group);
  int left = 0;
  for (int i = 0; i < w->n_waiting; i++) {
    int other = w->waiting[i];
    if ((far && !is_free(w, other)) || launch_groups_conflict(w, other, group))
      w->to[w->n_to++] = other;
    else
      w->waiting[left++] = other;
  }
  w->n_waiting = left;
}

/* The group waits: together with one of its kernel if there is one. */
static void wait_for_more(struct walk *w, int group) {
  for (int i = 0; i < w->n_waiting; i++) {
    int other = w->waiting[i];
    if (step_of(w, other)->kernel != step_of(w, group)->kernel) continue;
    w->next[w->last[other]] = group;
    w->last[other] = w->last[group];
    return;
  }
  w->waiting[w->n_waiting++] = group;
}

static void reverse(int n, int *list) {
  for (int i = 0; i < n / 2; i++) {
    int kept = list[i];
    list[i] = list[n - 1 - i];
    list[n - 1 - i] = kept;
  }
}

/* One walk over the groups of `from`, which are in the order of `to` afterwards. */
static void walk(struct walk *w) {
  w->n_to = w->n_waiting = 0;
  for (int i = 0; i < w->n_from; i++) {
    int group = w->from[i];
    bool waits = may_batch(w, group);
    end_waiting(w, group, !waits);
    if (waits)
      wait_for_more(w, group);
    else
      w->to[w->n_to++] = group;
  }
  for (int i = 0; i < w->n_waiting; i++) w->to[w->n_to++] = w->waiting[i];
  w->n_from = w->n_to;
  memcpy(w->from, w->to, (size_t)w->n_to * sizeof *w->to);
}

/* ---- orders -------------------------------------------------------------------------------------------------- */

/* Writes the launch groups down, the steps of each in the order of the plan. */
static void write_launch_groups(struct engine_launch_order *order, const struct walk *w) {
  int n = 0;
  for (int i = 0; i < w->n_from; i++) {
    order->first[i] = n;
    for (int step = w->from[i]; step != NONE; step = w->next[step]) {
      int k = n++;
      for (; k > order->first[i] && order->steps[k - 1] > step; k--) order->steps[k] = order->steps[k - 1];
      order->steps[k] = step;
    }
  }
  order->n = w->n_from;
  order->first[order->n] = n;
}

static struct engine_launch_order *new_order(struct base_heap *heap, const struct engine_subprogram *subprogram) {
  size_t n = (size_t)subprogram->n_steps, uses = 0, more, bytes;
  for (size_t i = 0; i < n; i++) uses += (size_t)subprogram->steps[i].n_buffers;
  if (!base_size(uses, sizeof(struct engine_use), sizeof(struct engine_launch_order), &more) ||
      !base_size(3 * n + 2, sizeof(int), more, &bytes))
    return NULL;
  struct engine_launch_order *order = base_alloc_zero(heap, bytes);
  if (order == NULL) return NULL;
  *order = (struct engine_launch_order){.subprogram = subprogram, .bytes = bytes};
  order->uses = (struct engine_use *)(order + 1);
  order->first_use = (int *)(order->uses + uses);
  order->first = order->first_use + n + 1;
  order->steps = order->first + n + 1;
  return order;
}

struct engine_launch_order *engine_launch_order_new(struct base_heap *heap, const quern_program *program,
                                                    void *const *at, const unsigned char *batchable) {
  const struct engine_subprogram *subprogram = &program->subprograms[0];
  int n = subprogram->n_steps;
  size_t bytes = 5 * (size_t)BASE_MAX(n, 1) * sizeof(int);
  struct engine_launch_order *order = new_order(heap, subprogram);
  int *lists = order != NULL ? base_alloc(heap, bytes) : NULL;
  if (lists == NULL) {
    engine_launch_order_free(heap, order);
    return NULL;
  }
  for (int i = 0; i < n; i++)
    order->first_use[i + 1] = add_uses(order->uses, order->first_use[i], program, &subprogram->steps[i], at);
  struct walk w = {.program = program, .order = order, .batchable = batchable, .n_from = n};
  w.next = lists, w.last = lists + n, w.from = lists + 2 * n, w.to = lists + 3 * n, w.waiting = lists + 4 * n;
  for (int i = 0; i < n; i++) w.next[i] = NONE, w.last[i] = w.from[i] = i;
  walk(&w);
  reverse(w.n_from, w.from);
  walk(&w);
  reverse(w.n_from, w.from);
  write_launch_groups(order, &w);
  base_free(heap, lists, bytes);
  return order;
}

void engine_launch_order_free(struct base_heap *heap, struct engine_launch_order *order) {
  if (order != NULL) base_free(heap, order, order->bytes);
}

/* ---- kernels that are made for it ------------------------------------------------------------------------------ */

/* Whether a kernel can be several launches in one: calls of libraries cannot. */
static bool is_batchable(const struct kern *kern) {
  for (int p = 0; p < kern->n_phases; p++)
    if (kern->phases[p].library_call) return false;
  return kern->n_phases > 0 && kern->n_mems > 0;
}

/* Numbers that stand for the addresses that an instance will have: memories of different kinds lie apart. */
static void place_buffers(const quern_program *program, void **at) {
  const struct engine_subprogram *subprogram = &program->subprograms[0];
  uintptr_t base[PLAN_RESULT + 1] = {0}, outside = 0;
  for (int i = 0; i < subprogram->n_buffers; i++)
    outside = BASE_MAX(outside, (uintptr_t)subprogram->buffers[i].at + (uintptr_t)subprogram->buffers[i].bytes);
  base[PLAN_STATE] = outside;
  base[PLAN_CONST] = 2 * outside;
  outside *= 3;
  for (int i = 0; i < subprogram->n_buffers; i++) {
    const struct engine_buffer *b = &subprogram->buffers[i];
    bool is_outside = b->place == PLAN_PARAM || b->place == PLAN_RESULT;
    at[i] = (void *)(is_outside ? outside : base[b->place] + (uintptr_t)b->at);
    if (is_outside) outside += (uintptr_t)b->bytes;
  }
}

/* Says of each kernel how many launches may become one, from the order that a run would have. */
static void mark_kernels(quern_program *program, const struct engine_launch_order *order) {
  for (int i = 0; i < order->n; i++) {
    const struct engine_step *step = &order->subprogram->steps[order->steps[order->first[i]]];
    int n = order->first[i + 1] - order->first[i];
    if (n > 1) program->kernels[step->kernel]->max_batched = BASE_MAX(program->kernels[step->kernel]->max_batched, n);
  }
}

quern_status engine_mark_batchable(quern_program *program) {
  const struct rt_remote *remote = program->device->remote;
  const struct engine_subprogram *subprogram = &program->subprograms[0];
  if (remote == NULL || remote->launch_batch == NULL || subprogram->n_steps == 0) return QUERN_STATUS_OK;
  size_t places = (size_t)subprogram->n_buffers * sizeof(void *), kernels = (size_t)program->n_kernels;
  void **at = base_alloc_zero(&program->heap, places + kernels);
  if (at == NULL) return QUERN_STATUS_MEMORY;
  unsigned char *batchable = (unsigned char *)(at + subprogram->n_buffers);
  place_buffers(program, at);
  for (size_t k = 0; k < kernels; k++) batchable[k] = is_batchable(program->kernels[k]);
  struct engine_launch_order *order = engine_launch_order_new(&program->heap, program, at, batchable);
  if (order != NULL) mark_kernels(program, order);
  quern_status status = order != NULL ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
  engine_launch_order_free(&program->heap, order);
  base_free(&program->heap, at, places + kernels);
  return status;
}

/* ---- runs ---------------------------------------------------------------------------------------------------- */

struct engine_launch_order *engine_launch_order_of(quern_instance *instance) {
  const quern_program *program = instance->program;
  const struct rt_remote *remote = program->device->remote;
  size_t n = (size_t)BASE_MAX(program->n_kernels, 1);
  unsigned char *batchable = base_alloc_zero(&instance->heap, n);
  if (batchable == NULL) return NULL;
  for (int k = 0; k < program->n_kernels && remote->launch_batch != NULL; k++)
    batchable[k] = remote->batchable(program->module, (size_t)k);
  struct engine_launch_order *order = engine_launch_order_new(&instance->heap, program, instance->frame->at, batchable);
  base_free(&instance->heap, batchable, n);
  return order;
}

quern_status engine_launch_group(quern_instance *instance, struct engine_frame *frame, int group) {
  const quern_program *program = instance->program;
  const struct engine_launch_order *order = instance->replay.order;
  const struct engine_step *steps = order->subprogram->steps;
  int first = order->first[group], n = order->first[group + 1] - first, each = steps[order->steps[first]].n_buffers;
  size_t bytes = (size_t)(n * each) * sizeof(void *), k = (size_t)steps[order->steps[first]].kernel;
  void **mems = base_alloc(&instance->heap, bytes);
  if (mems == NULL) return QUERN_STATUS_MEMORY;
  for (int i = 0; i < n; i++)
    for (int m = 0; m < each; m++) mems[i * each + m] = frame->at[steps[order->steps[first + i]].buffers[m]];
  struct kern_launch what = {.mems = mems, .scalars = &instance->rows, .runs = &instance->launches};
  quern_status status = program->device->remote->launch_batch(instance->stream, program->module, k, (size_t)n, &what);
  base_free(&instance->heap, mems, bytes);
  return status;
}
