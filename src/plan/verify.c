/* plan/verify.c -- what the rest may rely on in a plan
** keeps: every buffer is written before it is read and used within its lifetime; no two that are alive together
**        overlap, unless one takes the other over in the step that reads it last; offsets are aligned and inside the arena
** tests: tests/plan/test_verify.c
*/
#include <inttypes.h>

#include "plan/plan_int.h"

/* How many of a step's buffers it reads and writes; those of a copy come in the other order. */
static void shape_of(const struct plan_step *step, int *n_reads, int *n_writes) {
  bool control = step->kind != PLAN_KERNEL && step->kind != PLAN_COPY;
  *n_reads = control ? step->node->n_src : step->kind == PLAN_COPY ? 1 : (int)step->group->n_ins;
  *n_writes = control ? step->node->n_out : step->kind == PLAN_COPY ? 1 : (int)step->group->n_outs;
}

static quern_status check_buffer(const struct plan *plan, size_t i) {
  const struct plan_buffer *b = &plan->buffers[i];
  QUERN_CHECK(b->bytes >= 0 && b->at >= 0, INTERNAL, "plan: buffer %zu has %" PRId64 " bytes at %" PRId64, i, b->bytes,
              b->at);
  QUERN_CHECK(b->takes >= -1 && b->takes < (int)plan->n_buffers, INTERNAL, "plan: buffer %zu takes over buffer %d", i,
              b->takes);
  if (b->memory != PLAN_ARENA) return QUERN_STATUS_OK;
  QUERN_CHECK(b->at % PLAN_ALIGN == 0, INTERNAL, "plan: buffer %zu is at %" PRId64 ", not a multiple of %d", i, b->at,
              PLAN_ALIGN);
  QUERN_CHECK(b->at + b->bytes <= plan->memory.arena, INTERNAL,
              "plan: buffer %zu ends at %" PRId64 ", the arena has %" PRId64 " bytes", i, b->at + b->bytes,
              plan->memory.arena);
  return QUERN_STATUS_OK;
}

static quern_status check_step(const struct plan *plan, int at, bool *written) {
  const struct plan_step *step = &plan->steps[at];
  int n_reads, n_writes;
  shape_of(step, &n_reads, &n_writes);
  QUERN_CHECK(step->n_buffers >= n_reads + n_writes, INTERNAL,
              "plan: step %d has %d buffers for %d reads and %d writes", at, step->n_buffers, n_reads, n_writes);
  for (int i = 0; i < step->n_buffers; i++) {
    int number = step->buffers[i];
    QUERN_CHECK(number >= 0 && number < (int)plan->n_buffers, INTERNAL, "plan: step %d uses buffer %d of %zu", at,
                number, plan->n_buffers);
    const struct plan_buffer *b = &plan->buffers[number];
    bool reads = step->kind == PLAN_COPY ? i == 1 : i < n_reads;
    QUERN_CHECK(!reads || written[number], INTERNAL, "plan: step %d reads buffer %d, which is not written yet", at,
                number);
    QUERN_CHECK(b->first <= at && at <= b->last, INTERNAL,
                "plan: step %d uses buffer %d, which is alive in steps %d to %d", at, number, b->first, b->last);
  }
  for (int i = 0; i < step->n_buffers; i++) written[step->buffers[i]] = true;
  return QUERN_STATUS_OK;
}

/* True when two buffers share bytes. */
static bool overlap(const struct plan_buffer *a, const struct plan_buffer *b) {
  if (a->memory != b->memory || a->bytes == 0 || b->bytes == 0) return false;
  if (a->memory == PLAN_PARAM || a->memory == PLAN_RESULT) return a->at == b->at;
  return a->at < b->at + b->bytes && b->at < a->at + a->bytes;
}

/* Buffer number `next` begins while those of alive are: it lies apart from each, or takes it over. */
static quern_status check_apart(const struct plan *plan, size_t n, const int *alive, int next) {
  const struct plan_buffer *b = &plan->buffers[next];
  for (size_t i = 0; i < n; i++) {
    const struct plan_buffer *a = &plan->buffers[alive[i]];
    if (!overlap(a, b)) continue;
    bool taken = b->takes == alive[i] && a->last == b->first && a->at == b->at && a->bytes == b->bytes;
    QUERN_CHECK(taken, INTERNAL,
                "plan: buffers %d (steps %d to %d) and %d (steps %d to %d) overlap at %" PRId64 " and %" PRId64,
                alive[i], a->first, a->last, next, b->first, b->last, a->at, b->at);
  }
  return QUERN_STATUS_OK;
}

static quern_status check_lifetimes(const struct plan *plan, struct base_arena *arena) {
  int n_steps = (int)plan->n_steps;
  int *begins = PLAN_NEW(arena, int, n_steps + 1), *next = PLAN_NEW(arena, int, plan->n_buffers);
  int *alive = PLAN_NEW(arena, int, plan->n_buffers);
  size_t n_alive = 0;
  if (begins == NULL || next == NULL || alive == NULL) return QUERN_STATUS_MEMORY;
  for (int s = 0; s <= n_steps; s++) begins[s] = -1;
  for (size_t i = plan->n_buffers; i-- > 0;) {
    const struct plan_buffer *b = &plan->buffers[i];
    if (b->memory == PLAN_CONST || b->last < b->first) continue;
    next[i] = begins[b->first + 1];
    begins[b->first + 1] = (int)i;
  }
  for (int s = 0; s <= n_steps; s++) {
    size_t kept = 0;
    for (size_t i = 0; i < n_alive; i++)
      if (plan->buffers[alive[i]].last >= s - 1) alive[kept++] = alive[i];
    n_alive = kept;
    for (int b = begins[s]; b >= 0; b = next[b]) {
      QUERN_TRY(check_apart(plan, n_alive, alive, b));
      alive[n_alive++] = b;
    }
  }
  return QUERN_STATUS_OK;
}

static quern_status check_all(const struct plan *plan, struct base_arena *arena) {
  bool *written = PLAN_NEW(arena, bool, plan->n_buffers);
  if (written == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < plan->n_buffers; i++) {
    QUERN_TRY(check_buffer(plan, i));
    written[i] = plan->buffers[i].first < 0;
  }
  for (size_t i = 0; i < plan->n_steps; i++) QUERN_TRY(check_step(plan, (int)i, written));
  for (int i = 0; i < plan->n_params; i++) {
    const struct plan_buffer *b = &plan->buffers[plan->params[i]];
    QUERN_CHECK(b->memory == PLAN_PARAM && b->at == i, INTERNAL, "plan: param %d is not in its place", i);
  }
  for (int i = 0; i < plan->n_results; i++) {
    const struct plan_buffer *b = &plan->buffers[plan->results[i]];
    bool placed = plan->in_place[i] ? b->memory == PLAN_PARAM : b->memory == PLAN_RESULT && b->at == i;
    QUERN_CHECK(placed && written[plan->results[i]], INTERNAL, "plan: result %d is not written to its place", i);
  }
  return check_lifetimes(plan, arena);
}

quern_status plan_verify(const struct plan *plan, struct base_heap *heap) {
  struct base_arena arena;
  base_arena_init(&arena, heap);
  quern_status status = check_all(plan, &arena);
  base_arena_fini(&arena);
  return status;
}
