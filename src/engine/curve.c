/* engine/curve.c -- what less memory costs: plans under smaller and smaller limits, and the time they would take
** in:    what quern_program_compile gets   out: bytes and predicted seconds of each plan
** keeps: nothing is compiled and nothing measured: rates of the machine are those that were stored, or usual ones
** tests: tests/engine/test_remat.c
*/
#include "engine/engine.h"
#include "prof/prof.h"

/* What kernels reach of a limit, as a whole training step of a transformer does. */
static const double REACHED = 0.7;

enum { WHILE_ITERATIONS = 16 };

/* What a plan was found to take. */
struct known {
  const struct plan *plan;
  double seconds;
  size_t recomputed;
};

struct curve {
  struct engine_request request;
  struct prof_limits limits;
  size_t room, n;
  void *points;
  size_t stride; /* the size that the caller's points have */
  quern_curve_point first, last;
  BASE_VEC(struct known) known; /* of the plans of one point: bodies in bodies are looked at once */
  bool failed;                  /* there was no memory for one */
};

/* ---- seconds --------------------------------------------------------------------------------------------- */

static double plan_seconds(struct curve *c, const struct engine_build *b, const struct plan *plan, size_t *recomputed);

static double control_seconds(struct curve *c, const struct engine_build *b, const struct plan_step *step,
                              size_t *recomputed) {
  const struct ir_node *node = step->node;
  double iterations = node->op == IR_LOOP ? (double)node->attrs->trip : node->op == IR_WHILE ? WHILE_ITERATIONS : 1;
  double seconds = iterations * plan_seconds(c, b, step->body, recomputed);
  return step->other != NULL ? seconds + plan_seconds(c, b, step->other, recomputed) : seconds;
}

static double step_seconds(struct curve *c, const struct engine_build *b, const struct plan *plan,
                           const struct plan_step *step, size_t *recomputed) {
  double footprint = 0;
  enum prof_bound bound;
  if (step->body != NULL) return control_seconds(c, b, step, recomputed);
  for (int i = 0; i < step->n_buffers; i++) footprint += (double)plan->buffers[step->buffers[i]].bytes;
  struct kern_cost cost = {0, footprint};
  quern_dtype dtype = QUERN_DTYPE_F32;
  if (step->kind == PLAN_KERNEL) {
    cost = b->kernels.at[step->kernel]->cost;
    dtype = step->group->outs[0].tensor->dtype;
  }
  return prof_floor(&c->limits, &cost, dtype, footprint, &bound) / REACHED;
}

/* Recursion is as deep as subgraphs lie in subgraphs. */
static double plan_seconds(struct curve *c, const struct engine_build *b, const struct plan *plan, size_t *recomputed) {
  struct known found = {.plan = plan};
  size_t k = 0;
  while (k < c->known.n && c->known.at[k].plan != plan) k++;
  if (k < c->known.n) {
    found = c->known.at[k];
  } else {
    for (size_t i = 0; i < plan->n_steps; i++) {
      found.seconds += step_seconds(c, b, plan, &plan->steps[i], &found.recomputed);
      found.recomputed += plan->steps[i].rematerialized ? 1 : 0;
    }
    if (!base_vec_push(&b->ctx->heap, &c->known, found)) c->failed = true;
  }
  *recomputed += found.recomputed;
  return found.seconds;
}

static void find_limits(struct curve *c, const struct engine_build *b) {
  int threads = b->program->target.base.threads;
  if (prof_device_limits_find(&c->limits, &b->ctx->heap, b->program->device, &b->program->target)) return;
  c->limits = (struct prof_limits){
      .threads = threads, .flops_f32 = 1e11 * threads, .flops_f64 = 5e10 * threads, .launch = 2e-6};
  for (int i = 0; i < PROF_LEVELS; i++) c->limits.bandwidth[i] = 2e10 * threads;
}

/* ---- points ---------------------------------------------------------------------------------------------- */

static int64_t counted_bytes(const struct engine_build *b) {
  const struct plan_memory *memory = &b->subgraphs.at[0].plan->memory;
  return memory->arena + memory->scratch + engine_staging_bytes(b);
}

/* Plans under a limit; *least: 0, or the smallest that can be met when this one cannot. */
static quern_status plan_under(struct engine_build *b, int64_t limit, int64_t *least) {
  b->limit = limit;
  quern_status status = engine_make_plans(b, least);
  return *least > 0 ? QUERN_STATUS_OK : status;
}

static void add_point(struct curve *c, const struct engine_build *b, int64_t limit) {
  const struct plan *plan = b->subgraphs.at[0].plan;
  quern_curve_point point = {
      .limit = limit, .bytes = counted_bytes(b), .arena = plan->memory.arena, .held = plan->memory.held};
  c->known.n = 0;
  point.seconds = plan_seconds(c, b, plan, &point.recomputed);
  if (c->n > 0 && c->last.bytes == point.bytes && c->last.recomputed == point.recomputed) return;
  base_struct_put((char *)c->points + c->n * c->stride, c->stride, &point, sizeof point);
  if (c->n++ == 0) c->first = point;
  c->last = point;
}

static quern_status add_points(struct engine_build *b, void *user) {
  struct curve *c = user;
  int64_t least, smallest;
  find_limits(c, b);
  QUERN_TRY(plan_under(b, 0, &least));
  add_point(c, b, 0);
  int64_t whole = c->first.bytes;
  QUERN_TRY(plan_under(b, 1, &smallest));
  if (smallest == 0 || smallest >= whole) return QUERN_STATUS_OK;
  for (size_t i = 1; i < c->room; i++) {
    int64_t limit = whole - (int64_t)((double)(whole - smallest) * (double)i / (double)(c->room - 1));
    limit = i + 1 == c->room ? smallest : limit;
    QUERN_TRY(plan_under(b, limit, &least));
    if (least == 0) add_point(c, b, limit);
  }
  return QUERN_STATUS_OK;
}

quern_status quern_program_curve(quern_context *ctx, size_t n, quern_tensor *const *outputs,
                                 const quern_program_options *options, size_t room, quern_curve_point *points,
                                 size_t *n_points) {
  struct curve c = {.room = room, .points = points};
  QUERN_CHECK(n_points != NULL, INVALID, "program_curve: the place for the number of points is null");
  *n_points = 0;
  QUERN_CHECK(points != NULL, INVALID, "program_curve: the list of points is null");
  QUERN_CHECK(room >= 2, INVALID, "program_curve: there is room for %zu points; 2 are needed at least", room);
  QUERN_TRY(base_give(quern_curve_point, points, &c.first, "program_curve"));
  c.stride = points->size;
  QUERN_TRY(engine_request_make(&c.request, ctx, n, outputs, options));
  c.request.options.plan_only = true;
  quern_status status = engine_survey(&c.request, add_points, &c);
  base_vec_fini(&ctx->heap, &c.known);
  if (status == QUERN_STATUS_OK && c.failed)
    status = base_error(QUERN_STATUS_MEMORY, "program_curve: no memory for what plans take");
  if (status == QUERN_STATUS_OK) *n_points = c.n;
  return status;
}
