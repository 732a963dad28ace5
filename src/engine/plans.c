/* engine/plans.c -- plans of all subgraphs: bodies first, then what runs them
** A limit counts the arenas of bodies: they are workspaces of the steps that run them. Where repetitions around them do not
** help enough, bodies repeat steps as well, no more than is needed.
** keeps: subgraphs are planned before what runs them; the smallest limit that a refusal names is met
** tests: tests/engine/test_limit.c, tests/engine/test_control.c
*/
#include "engine/engine.h"

#define NEW(arena, T, n) ((T *)base_arena_alloc((arena), ((size_t)(n) + 1) * sizeof(T)))

/* Turns of a WHILE that the planner reckons with; how often the room of bodies is halved. */
enum { WHILE_ITERATIONS = 16, HALVINGS = 6 };

/* ---- one subgraph --------------------------------------------------------------------------------------- */

/* Gives control steps the plans of their bodies, which exist already, and their time. */
static void give_bodies(const struct engine_build *b, struct engine_subgraph *subgraph) {
  for (size_t i = 0; i < subgraph->n_steps; i++) {
    struct plan_input_step *step = &subgraph->steps[i];
    if (step->group->kind != PASS_KIND_CONTROL) continue;
    const struct ir_node *node = step->group->anchor;
    int body, other;
    engine_find_bodies(b, node, &body, &other);
    double seconds = b->subgraphs.at[body].seconds;
    step->body = b->subgraphs.at[body].plan;
    if (other >= 0) {
      step->other = b->subgraphs.at[other].plan;
      seconds += b->subgraphs.at[other].seconds;
    }
    double iterations = node->op == IR_LOOP ? (double)node->attrs->trip : node->op == IR_WHILE ? WHILE_ITERATIONS : 1;
    subgraph->seconds += iterations * seconds - step->seconds; /* it may have been planned before */
    step->seconds = iterations * seconds;
  }
}

/* *least: 0, or when the limit cannot be met, one that can. */
static quern_status plan_subgraph(struct engine_build *b, struct engine_subgraph *subgraph,
                                  struct plan_options *options, int64_t *least) {
  const quern_program_options *wanted = &b->request->options;
  give_bodies(b, subgraph);
  *least = 0;
  options->least = least;
  options->reorder = wanted->optimize == QUERN_OPTIMIZE_DEFAULT;
  options->share = options->reorder || b->limit > 0;
  options->recompute = wanted->gradient_checkpointing;
  options->recompute_every = wanted->recompute_every;
  options->threads = b->program->target.base.threads;
  options->n_leaves = b->leaves.n;
  options->leaves = b->leaves.at;
  options->results = subgraph->roots.roots;
  QUERN_TRY(plan_make(&subgraph->plan, &b->arena, subgraph->n_steps, subgraph->steps, options));
  return b->request->verify ? plan_verify(subgraph->plan, &b->ctx->heap) : QUERN_STATUS_OK;
}

/* Where launches are batched (launch_groups.c), small buffers that share no memory leave steps free to go where others of their kernel are. */
static int64_t apart_bytes(const struct engine_build *b) {
  enum { SMALL_BUFFER = 1 << 16 };
  return b->program->target.isa == CG_ISA_CUDA && b->limit == 0 ? SMALL_BUFFER : 0;
}

static quern_status plan_main(struct engine_build *b, int64_t *least) {
  *least = 0;
  const struct engine_request *request = b->request;
  const quern_program_options *wanted = &request->options;
  struct engine_subgraph *subgraph = &b->subgraphs.at[0];
  struct plan_update *updates = NEW(&b->arena, struct plan_update, wanted->n_updates);
  bool *donated = NEW(&b->arena, bool, b->inputs.n);
  if (updates == NULL || donated == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < wanted->n_updates; i++)
    updates[i] = (struct plan_update){wanted->updates[i].state, subgraph->roots.roots[request->n_outputs + i]};
  for (size_t i = 0; i < b->inputs.n; i++)
    for (size_t k = 0; k < wanted->n_donated; k++) donated[i] = donated[i] || wanted->donated[k] == b->inputs.at[i];
  struct plan_options options = {.limit = b->limit,
                                 .staging = engine_staging_bytes(b),
                                 .align = engine_align(&b->program->target.base),
                                 .apart = apart_bytes(b),
                                 .n_params = b->inputs.n,
                                 .params = b->inputs.at,
                                 .n_results = request->n_outputs,
                                 .n_updates = wanted->n_updates,
                                 .updates = updates,
                                 .donated = donated};
  return plan_subgraph(b, subgraph, &options, least);
}

int engine_carry_slot(const struct ir_graph *body, int carries, int carry) {
  for (int i = carries; i < body->n_results; i++)
    if (body->results[i] == body->results[carry]) return i;
  return 0;
}

static quern_status plan_body(struct engine_build *b, struct engine_subgraph *subgraph, int64_t limit, int64_t *least) {
  struct plan_carry *carried = NEW(&b->arena, struct plan_carry, subgraph->carries);
  if (carried == NULL) return QUERN_STATUS_MEMORY;
  size_t n = 0;
  for (int i = 0; i < subgraph->carries; i++) /* a carry that is stacked lies where that is */
    if (subgraph->first == 0 || engine_carry_slot(subgraph->graph, subgraph->carries, i) == 0)
      carried[n++] = (struct plan_carry){subgraph->first + i, i};
  struct plan_options options = {.limit = limit,
                                 .align = engine_align(&b->program->target.base),
                                 .n_params = (size_t)subgraph->graph->n_params,
                                 .params = subgraph->graph->params,
                                 .n_results = (size_t)subgraph->graph->n_results,
                                 .n_carried = n,
                                 .carried = carried};
  return plan_subgraph(b, subgraph, &options, least);
}

/* ---- all bodies ----------------------------------------------------------------------------------------- */

typedef quern_status plan_one(struct engine_build *b, struct engine_subgraph *subgraph, double room);

/* The plan without a limit. */
static quern_status plan_freely(struct engine_build *b, struct engine_subgraph *subgraph, double room) {
  int64_t least;
  (void)room;
  QUERN_TRY(plan_body(b, subgraph, 0, &least));
  subgraph->most_bytes = subgraph->plan->memory.arena + subgraph->plan->memory.scratch;
  return QUERN_STATUS_OK;
}

/* A plan within the limit, or within the smallest that can be met. */
static quern_status plan_under(struct engine_build *b, struct engine_subgraph *subgraph, int64_t limit) {
  int64_t least;
  quern_status status = plan_body(b, subgraph, limit, &least);
  return least > 0 ? plan_body(b, subgraph, least, &least) : status;
}

/* The plan in the least memory. */
static quern_status plan_tightly(struct engine_build *b, struct engine_subgraph *subgraph, double room) {
  (void)room;
  QUERN_TRY(plan_under(b, subgraph, 1));
  subgraph->least_bytes = subgraph->plan->memory.arena + subgraph->plan->memory.scratch;
  return QUERN_STATUS_OK;
}

/* A plan between the two: in the least memory with room 0, freely with 1. */
static quern_status plan_between(struct engine_build *b, struct engine_subgraph *subgraph, double room) {
  int64_t more = subgraph->most_bytes - subgraph->least_bytes;
  return plan_under(b, subgraph, BASE_MAX(subgraph->least_bytes + (int64_t)(room * (double)more), 1));
}

static quern_status plan_bodies(struct engine_build *b, plan_one *plan, double room) {
  for (int depth = 0; depth <= IR_MAX_DEPTH; depth++) {
    for (size_t u = 1; u < b->subgraphs.n; u++) {
      struct engine_subgraph *subgraph = &b->subgraphs.at[u];
      if (subgraph->graph->depth == depth) QUERN_TRY(plan(b, subgraph, room));
    }
  }
  return QUERN_STATUS_OK;
}

/* ---- the door ------------------------------------------------------------------------------------------- */

/* The main plan did not fit, but would in `free` bytes: bodies get as much room as lets it fit. */
static quern_status plan_within(struct engine_build *b, int64_t free, int64_t *smallest) {
  double low = 0, high = 1;
  int64_t least;
  *smallest = 0;
  QUERN_TRY(plan_bodies(b, plan_tightly, 0));
  quern_status status = plan_main(b, &least);
  if (least > free) { /* the message is to name the smaller one */
    QUERN_TRY(plan_bodies(b, plan_freely, 1));
    return plan_main(b, smallest);
  }
  *smallest = least;
  QUERN_TRY(status);
  for (int i = 0; i < HALVINGS; i++) {
    double room = (low + high) / 2;
    QUERN_TRY(plan_bodies(b, plan_between, room));
    status = plan_main(b, &least);
    if (status != QUERN_STATUS_OK && least == 0) return status;
    *(least > 0 ? &high : &low) = room;
  }
  QUERN_TRY(plan_bodies(b, low > 0 ? plan_between : plan_tightly, low));
  return plan_main(b, &least);
}

quern_status engine_make_plans(struct engine_build *b, int64_t *least) {
  QUERN_TRY(plan_bodies(b, plan_freely, 1));
  quern_status status = plan_main(b, least);
  return *least > 0 && b->subgraphs.n > 1 ? plan_within(b, *least, least) : status;
}
