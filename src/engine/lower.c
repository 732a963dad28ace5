/* engine/lower.c -- graphs to groups, groups to kernels: every subgraph once, every kernel once
** tests: tests/engine/test_compile.c
*/
#include "engine/engine.h"

/* ---- groups --------------------------------------------------------------------------------------------- */

/* The number of a graph's subgraph, or -1. */
static int find_subgraph(const struct engine_build *b, const struct ir_graph *graph, int carries, int first) {
  for (size_t i = 1; i < b->subgraphs.n && graph != NULL; i++) {
    const struct engine_subgraph *subgraph = &b->subgraphs.at[i];
    if (subgraph->graph == graph && subgraph->carries == carries && subgraph->first == first) return (int)i;
  }
  return -1;
}

/* How the body of a control node is carried on: its first results are params again. */
static int carries_of(const struct ir_node *node) { return node->op == IR_IF ? 0 : (int)node->attrs->carries; }
static int first_of(const struct ir_node *node) { return node->op == IR_LOOP ? 1 : 0; }

void engine_find_bodies(const struct engine_build *b, const struct ir_node *node, int *body, int *other) {
  *body = find_subgraph(b, node->attrs->body, carries_of(node), first_of(node));
  *other = find_subgraph(b, node->attrs->other, 0, 0);
}

/* Whether an iteration of what a loop scans or stacks may begin where other memory does not: a GPU's memory is aligned otherwise. */
static bool has_unaligned_iterations(const struct ir_node *node, const struct base_target *target) {
  const struct ir_attrs *attrs = node->attrs;
  int64_t bytes = 0;
  if (!target->gpu || node->op != IR_LOOP) return false;
  for (int i = (int)attrs->carries; i < (int)(attrs->carries + attrs->scanned); i++)
    bytes |= (int64_t)ir_bytes(node->src[i]) / BASE_MAX(attrs->trip, 1);
  for (int i = (int)attrs->carries; i < node->n_out; i++)
    bytes |= (int64_t)ir_bytes(&node->out[i]) / BASE_MAX(attrs->trip, 1);
  return bytes % engine_align(target) != 0;
}

/* Bodies of loops with such iterations have unaligned bases, and so has what they run. */
static bool mark_unaligned_base(struct engine_build *b, bool unaligned_base, const struct ir_node *node) {
  int inner[2] = {-1, -1};
  bool more = false;
  engine_find_bodies(b, node, &inner[0], &inner[1]);
  for (int k = 0; k < 2; k++) {
    if (!unaligned_base || inner[k] < 0 || b->subgraphs.at[inner[k]].unaligned_base) continue;
    b->subgraphs.at[inner[k]].unaligned_base = more = true;
  }
  return more;
}

static void find_loose(struct engine_build *b) {
  for (bool more = true; more;) {
    more = false;
    for (size_t u = 0; u < b->subgraphs.n; u++)
      for (size_t i = 0; i < b->subgraphs.at[u].groups.groups.n; i++) {
        const struct pass_group *group = b->subgraphs.at[u].groups.groups.at[i];
        if (group->kind != PASS_KIND_CONTROL) continue;
        bool unaligned_base =
            b->subgraphs.at[u].unaligned_base || has_unaligned_iterations(group->anchor, &b->program->target.base);
        more |= mark_unaligned_base(b, unaligned_base, group->anchor);
      }
  }
}

static quern_status add_subgraph(struct engine_build *b, const struct ir_graph *graph, int carries, int first) {
  if (graph == NULL || find_subgraph(b, graph, carries, first) >= 0) return QUERN_STATUS_OK;
  struct engine_subgraph subgraph = {
      .graph = graph, .carries = carries, .first = first, .roots = {b->ctx, (size_t)graph->n_results, graph->results}};
  return base_vec_push(&b->ctx->heap, &b->subgraphs, subgraph) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static bool is_unfused(const struct engine_build *b, size_t subgraph, size_t place) {
  for (size_t i = 0; i < b->request->n_unfused; i++)
    if (b->request->unfused[i].subgraph == (int)subgraph && b->request->unfused[i].place == place) return true;
  return false;
}

/* The fusion groups of a subgraph. */
static quern_status fuse_subgraph(struct engine_build *b, size_t u, struct pass_groups *groups) {
  struct pass_options passes = b->passes;
  size_t *places = base_arena_alloc(&b->arena, (b->request->n_unfused + 1) * sizeof *places);
  if (places == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < b->request->n_unfused; i++)
    if (b->request->unfused[i].subgraph == (int)u) places[passes.n_unfused++] = b->request->unfused[i].place;
  passes.unfused = places;
  return pass_fuse(groups, &b->subgraphs.at[u].roots, &passes);
}

quern_status engine_make_groups(struct engine_build *b) {
  for (size_t u = 0; u < b->subgraphs.n; u++) { /* grows while control is met */
    struct pass_groups groups = {0};
    QUERN_TRY(fuse_subgraph(b, u, &groups));
    b->subgraphs.at[u].groups = groups;
    b->subgraphs.at[u].grouped = true;
    for (size_t i = 0; i < groups.groups.n; i++) {
      const struct pass_group *group = groups.groups.at[i];
      if (group->kind != PASS_KIND_CONTROL) continue;
      const struct ir_node *node = group->anchor;
      QUERN_TRY(add_subgraph(b, node->attrs->body, carries_of(node), first_of(node)));
      QUERN_TRY(add_subgraph(b, node->attrs->other, 0, 0));
    }
  }
  find_loose(b);
  return QUERN_STATUS_OK;
}

/* ---- kernels -------------------------------------------------------------------------------------------- */

/* A group whose kernel is known. */
struct known {
  const struct pass_group *group;
  const struct pass_dynamic_batch *rows; /* of the dynamic batch; NULL: none */
  bool unaligned_base;                   /* of its subgraph */
  uint64_t constants;                    /* ins that never change, a bit each */
  int kernel;
  int packed, packer; /* 1 + the in that is packed in advance, and the kernel that packs it; 0: none */
};

static bool same_type(const quern_tensor *a, const quern_tensor *b) { return a == b || ir_same_type(a, b); }

static bool same_rows(const struct known *x, const quern_tensor *a, const struct known *y, const quern_tensor *b) {
  int64_t one = x->rows != NULL ? pass_dynamic_batch_get(x->rows, a) : 0,
          other = y->rows != NULL ? pass_dynamic_batch_get(y->rows, b) : 0;
  return one == other;
}

/* True when the groups have the same kind, the same types of ins and outs, and constants in the same places; their hashes
** are equal already. */
static bool same_group(const void *item, const void *key) {
  const struct known *x = item, *y = key;
  const struct pass_group *a = x->group, *b = y->group;
  if (x->constants != y->constants || x->unaligned_base != y->unaligned_base || (x->rows == NULL) != (y->rows == NULL))
    return false;
  if (a->kind != b->kind || a->n_ins != b->n_ins || a->n_outs != b->n_outs) return false;
  for (size_t i = 0; i < a->n_ins; i++)
    if (!same_type(a->ins[i], b->ins[i]) || !same_rows(x, a->ins[i], y, b->ins[i])) return false;
  for (size_t i = 0; i < a->n_outs; i++)
    if (!same_type(a->outs[i].tensor, b->outs[i].tensor) || !same_rows(x, a->outs[i].tensor, y, b->outs[i].tensor))
      return false;
  return true;
}

/* Asks the device how a kernel that is a call will be done. UNSUPPORTED: it will not. */
static quern_status query_algorithm(const struct engine_build *b, struct kern *kern) {
  const quern_device *device = b->program->device;
  if (kern->library_call.kind == KERN_LIBRARY_NONE) return QUERN_STATUS_OK;
  for (size_t i = 0; i < b->request->n_refused; i++)
    QUERN_CHECK(b->request->refused[i] != kern->hash, UNSUPPORTED, "its library refused to build %s", kern->name);
  return device->backend->query_algorithm != NULL && b->asks
             ? device->backend->query_algorithm(device, kern, &b->program->target)
             : QUERN_STATUS_OK;
}

/* Takes a kernel: its number, or that of an equal one, in whose favor it is freed. */
static quern_status take_kernel(struct engine_build *b, struct kern *kern, int *number) {
  for (size_t i = 0; i < b->kernels.n; i++) {
    if (b->kernels.at[i]->hash != kern->hash) continue;
    kern_free(kern);
    *number = (int)i;
    return QUERN_STATUS_OK;
  }
  *number = (int)b->kernels.n;
  quern_status status = query_algorithm(b, kern);
  if (status == QUERN_STATUS_OK && base_vec_push(&b->ctx->heap, &b->kernels, kern)) return QUERN_STATUS_OK;
  kern_free(kern);
  return status != QUERN_STATUS_OK ? status : QUERN_STATUS_MEMORY;
}

void engine_schedule(const struct engine_build *b, const struct pass_group *group, struct sched *sched) {
  const struct base_target *target = &b->program->target.base;
  sched_choose(sched, group, target, b->request->options.optimize == QUERN_OPTIMIZE_DEFAULT);
  (void)sched_wisdom_apply(&b->wisdom, group, target, sched);
}

/* Makes the kernel of a group, and that of a constant that is packed for it. */
static quern_status make_kernels(struct engine_build *b, struct known *known) {
  const struct pass_group *group = known->group;
  const struct base_target *target = &b->program->target.base;
  struct sched sched;
  struct kern *kern;
  if (b->request->fails != NULL && b->request->fails(group))
    return base_error(QUERN_STATUS_INTERNAL, "this group is to fail");
  engine_schedule(b, group, &sched);
  sched.rows = known->rows;
  sched.unaligned_base = known->unaligned_base;
  sched.fast = b->request->options.numerics == QUERN_NUMERICS_FAST;
  sched.tf32 = b->request->options.numerics != QUERN_NUMERICS_EXACT;
  for (int in = 0; in < 64 && known->packed == 0; in++) {
    int64_t count;
    if ((known->constants >> in & 1) == 0) continue;
    QUERN_TRY(sched_pack(&kern, &count, &b->program->heap, b->ctx, group, target, &sched, in));
    if (kern == NULL) continue;
    QUERN_TRY(take_kernel(b, kern, &known->packer));
    known->packed = sched.packed = 1 + in;
  }
  QUERN_TRY(sched_lower(&kern, &b->program->heap, b->ctx, group, target, &sched));
  quern_status status = take_kernel(b, kern, &known->kernel);
  if (status != QUERN_STATUS_UNSUPPORTED) return status;
  base_log(1, "generated code for a %s: %s", pass_kind_names[group->kind], quern_last_error());
  struct pass_conv conv;
  b->conv_refused = group->anchor != NULL && pass_conv_read(group->anchor, &conv);
  sched.no_library = true; /* what nobody refuses but a convolution, which is computed by other groups then */
  QUERN_TRY(sched_lower(&kern, &b->program->heap, b->ctx, group, target, &sched));
  return take_kernel(b, kern, &known->kernel);
}

/* The kernel of a step, which reads a packed constant where there is one to be had. */
static quern_status lower_group(struct engine_build *b, const struct engine_subgraph *subgraph,
                                struct plan_input_step *step) {
  const struct known wanted = {.group = step->group,
                               .rows = engine_rows(subgraph),
                               .unaligned_base = subgraph->unaligned_base,
                               .constants = engine_constant_ins(b, step->group)};
  const struct known *found = base_map_find(&b->known, step->group->hash, same_group, &wanted);
  if (found == NULL) {
    struct known *known = base_arena_copy(&b->arena, &wanted, sizeof wanted);
    if (known == NULL) return QUERN_STATUS_MEMORY;
    QUERN_TRY(make_kernels(b, known));
    if (!base_map_add(&b->known, step->group->hash, known)) return QUERN_STATUS_MEMORY;
    found = known;
  }
  step->kernel = found->kernel;
  return found->packed == 0 ? QUERN_STATUS_OK : engine_pack(b, &step->group, found->packed - 1, found->packer);
}

/* Marks the nodes of a group that has no kernel, so that the next attempt compiles them one by one; an error if they are already. */
static quern_status unfuse(struct engine_build *b, size_t u, const struct pass_group *group, quern_status why) {
  struct base_str what;
  struct ir_order order;
  const struct pass_graph *roots = &b->subgraphs.at[u].roots;
  size_t before = b->unfused.n;
  QUERN_TRY(ir_topo(b->ctx, roots->n_roots, roots->roots, &order));
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < group->n_nodes && group->n_nodes > 1 && status == QUERN_STATUS_OK; i++) {
    ptrdiff_t place = ir_order_find(&order, group->nodes[i]);
    if (place < 0 || is_unfused(b, u, (size_t)place)) continue;
    struct engine_unfused node = {(int)u, (size_t)place};
    if (!base_vec_push(&b->ctx->heap, &b->unfused, node)) status = QUERN_STATUS_MEMORY;
  }
  ir_order_fini(b->ctx, &order);
  QUERN_TRY(status);
  base_str_init(&what, &b->ctx->heap);
  pass_group_describe(&what, group);
  status = base_str_status(&what);
  bool gained = b->unfused.n > before;
  if (status == QUERN_STATUS_OK && gained)
    base_log(0, "%s is compiled unfused, and will be slower: %s", what.at, quern_last_error());
  if (status == QUERN_STATUS_OK && !gained) status = base_error(why, "%s (in %s)", quern_last_error(), what.at);
  base_str_fini(&what);
  return status;
}

/* A guess at the time of a kernel, for the planner to compare steps with. */
static double guess_seconds(const struct kern *kern) {
  double compute = kern->cost.flops / 5e10, memory = kern->cost.bytes / 1e10;
  return 2e-6 + BASE_MAX(compute, memory);
}

static quern_status lower_subgraph(struct engine_build *b, size_t u) {
  struct engine_subgraph *subgraph = &b->subgraphs.at[u];
  subgraph->n_steps = subgraph->groups.groups.n;
  subgraph->steps = base_arena_alloc(&b->arena, (subgraph->n_steps + 1) * sizeof *subgraph->steps);
  if (subgraph->steps == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < subgraph->n_steps; i++) {
    const struct pass_group *group = subgraph->groups.groups.at[i];
    struct plan_input_step *step = &subgraph->steps[i];
    *step = (struct plan_input_step){.group = group, .kernel = -1};
    if (group->kind == PASS_KIND_VIEW || group->kind == PASS_KIND_CONTROL) continue;
    quern_status status = lower_group(b, subgraph, step);
    if (status == QUERN_STATUS_INTERNAL || status == QUERN_STATUS_UNSUPPORTED) {
      QUERN_TRY(unfuse(b, u, group, status));
      continue;
    }
    QUERN_TRY(status);
    step->kern = b->kernels.at[step->kernel];
    step->scratch = cg_scratch(step->kern, &b->program->target);
    step->seconds = guess_seconds(step->kern);
    subgraph->seconds += step->seconds;
  }
  return QUERN_STATUS_OK;
}

quern_status engine_make_kernels(struct engine_build *b) {
  for (size_t u = 0; u < b->subgraphs.n; u++) QUERN_TRY(lower_subgraph(b, u));
  return b->unfused.n == 0 ? QUERN_STATUS_OK : QUERN_STATUS_INTERNAL;
}
