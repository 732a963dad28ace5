/* engine/lower.c -- graphs to groups, groups to kernels: every sub-graph once, every kernel once
** tests: tests/engine/test_compile.c
*/
#include "engine/engine.h"

/* ---- groups --------------------------------------------------------------------------------------------- */

/* The number of a sub-graph's unit, or -1. */
static int find_unit(const struct engine_build *b, const struct ir_graph *graph, int carries, int first) {
  for (size_t i = 1; i < b->units.n && graph != NULL; i++) {
    const struct engine_unit *unit = &b->units.at[i];
    if (unit->graph == graph && unit->carries == carries && unit->first == first) return (int)i;
  }
  return -1;
}

/* How the body of a control node is carried on: its first results are params again. */
static int carries_of(const struct ir_node *node) { return node->op == IR_IF ? 0 : (int)node->attrs->carries; }
static int first_of(const struct ir_node *node) { return node->op == IR_LOOP ? 1 : 0; }

void engine_find_bodies(const struct engine_build *b, const struct ir_node *node, int *body, int *other) {
  *body = find_unit(b, node->attrs->body, carries_of(node), first_of(node));
  *other = find_unit(b, node->attrs->other, 0, 0);
}

static quern_status add_unit(struct engine_build *b, const struct ir_graph *graph, int carries, int first) {
  if (graph == NULL || find_unit(b, graph, carries, first) >= 0) return QUERN_STATUS_OK;
  struct engine_unit unit = {
      .graph = graph, .carries = carries, .first = first, .roots = {b->ctx, (size_t)graph->n_results, graph->results}};
  return base_vec_push(&b->ctx->heap, &b->units, unit) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

quern_status engine_make_groups(struct engine_build *b) {
  for (size_t u = 0; u < b->units.n; u++) { /* grows while control is met */
    struct pass_groups groups = {0};
    QUERN_TRY(pass_fuse(&groups, &b->units.at[u].roots, &b->passes));
    b->units.at[u].groups = groups;
    b->units.at[u].grouped = true;
    for (size_t i = 0; i < groups.groups.n; i++) {
      const struct pass_group *group = groups.groups.at[i];
      if (group->kind != PASS_KIND_CONTROL) continue;
      const struct ir_node *node = group->anchor;
      QUERN_TRY(add_unit(b, node->attrs->body, carries_of(node), first_of(node)));
      QUERN_TRY(add_unit(b, node->attrs->other, 0, 0));
    }
  }
  return QUERN_STATUS_OK;
}

/* ---- kernels -------------------------------------------------------------------------------------------- */

/* A group whose kernel is known. */
struct known {
  const struct pass_group *group;
  int kernel;
};

static bool same_type(const quern_tensor *a, const quern_tensor *b) { return a == b || ir_same_type(a, b); }

/* True when the groups have the same kind and the same types of ins and outs; their hashes are equal already. */
static bool same_group(const void *item, const void *key) {
  const struct pass_group *a = ((const struct known *)item)->group, *b = key;
  if (a->kind != b->kind || a->n_ins != b->n_ins || a->n_outs != b->n_outs) return false;
  for (size_t i = 0; i < a->n_ins; i++)
    if (!same_type(a->ins[i], b->ins[i])) return false;
  for (size_t i = 0; i < a->n_outs; i++)
    if (!same_type(a->outs[i].tensor, b->outs[i].tensor)) return false;
  return true;
}

/* Takes a kernel: its number, or that of an equal one, in whose favour it is freed. */
static quern_status take_kernel(struct engine_build *b, struct kern *kern, int *number) {
  for (size_t i = 0; i < b->kernels.n; i++) {
    if (b->kernels.at[i]->hash != kern->hash) continue;
    kern_free(kern);
    *number = (int)i;
    return QUERN_STATUS_OK;
  }
  *number = (int)b->kernels.n;
  if (base_vec_push(&b->ctx->heap, &b->kernels, kern)) return QUERN_STATUS_OK;
  kern_free(kern);
  return QUERN_STATUS_MEMORY;
}

static quern_status lower_group(struct engine_build *b, const struct pass_group *group, int *number) {
  const struct known *found = base_map_find(&b->known, group->hash, same_group, group);
  if (found != NULL) {
    *number = found->kernel;
    return QUERN_STATUS_OK;
  }
  struct sched sched = {0};
  struct kern *kern;
  sched_choose(&sched, group, &b->program->target.base, b->request->options.optimise);
  (void)sched_wisdom_apply(&b->wisdom, group, &b->program->target.base, &sched);
  QUERN_TRY(sched_lower(&kern, &b->program->heap, b->ctx, group, &b->program->target.base, &sched));
  QUERN_TRY(take_kernel(b, kern, number));
  struct known *known = base_arena_new(&b->arena, struct known);
  if (known == NULL) return QUERN_STATUS_MEMORY;
  *known = (struct known){group, *number};
  return base_map_add(&b->known, group->hash, known) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

/* A guess at the time of a kernel, for the planner to compare steps with. */
static double guess_seconds(const struct kern *kern) {
  double compute = kern->cost.flops / 5e10, memory = kern->cost.bytes / 1e10;
  return 2e-6 + BASE_MAX(compute, memory);
}

static quern_status lower_unit(struct engine_build *b, struct engine_unit *unit) {
  unit->n_steps = unit->groups.groups.n;
  unit->steps = base_arena_alloc(&b->arena, (unit->n_steps + 1) * sizeof *unit->steps);
  if (unit->steps == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < unit->n_steps; i++) {
    const struct pass_group *group = unit->groups.groups.at[i];
    struct plan_input_step *step = &unit->steps[i];
    *step = (struct plan_input_step){.group = group, .kernel = -1};
    if (group->kind == PASS_KIND_VIEW || group->kind == PASS_KIND_CONTROL) continue;
    QUERN_TRY(lower_group(b, group, &step->kernel));
    step->kern = b->kernels.at[step->kernel];
    step->scratch = kern_scratch_bytes(step->kern);
    step->seconds = guess_seconds(step->kern);
    unit->seconds += step->seconds;
  }
  return QUERN_STATUS_OK;
}

quern_status engine_make_kernels(struct engine_build *b) {
  for (size_t u = 0; u < b->units.n; u++) QUERN_TRY(lower_unit(b, &b->units.at[u]));
  return QUERN_STATUS_OK;
}
