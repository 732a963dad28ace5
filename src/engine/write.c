/* engine/write.c -- the program that the plans make: flat, with nothing of the context in it
** keeps: subprogram u of the program is subgraph u
** tests: tests/engine/test_compile.c
*/
#include "engine/engine.h"

#define NEW(arena, T, n) ((T *)base_arena_alloc((arena), ((size_t)(n) + 1) * sizeof(T)))

/* ---- steps ---------------------------------------------------------------------------------------------- */

/* The ops of a group for people: "dot+add+tanh", movement left out unless there is nothing else. */
static char *describe(struct engine_build *b, const struct pass_group *group) {
  struct base_str str;
  int n = 0;
  base_str_init(&str, &b->ctx->heap);
  for (int moves = 0; moves < 2 && n == 0; moves++) {
    for (size_t i = 0; i < group->n_nodes && n < 12; i++) {
      const struct ir_node *node = group->nodes[i];
      bool moving = node->op >= IR_RESHAPE && node->op <= IR_FLIP;
      bool leaf = node->op <= IR_PARAM;
      if (leaf || (moving && moves == 0)) continue;
      base_str_printf(&str, "%s%s", n++ > 0 ? "+" : "",
                      node->op == IR_COMPOSITE ? node->attrs->name : ir_ops[node->op].name);
    }
  }
  char *text = base_str_status(&str) == QUERN_STATUS_OK
                   ? base_arena_string(&b->program->arena, n > 0 ? str.at : "", str.n)
                   : NULL;
  base_str_fini(&str);
  return text;
}

/* The label of a group: of its contraction, reduction or composite, else of the last of its nodes that has one. */
static uint32_t label_of(const struct pass_group *group) {
  uint32_t last = 0;
  for (size_t i = 0; i < group->n_nodes; i++) {
    const struct ir_node *node = group->nodes[i];
    bool moving = node->op >= IR_RESHAPE && node->op <= IR_FLIP;
    if (node->op == IR_DOT || node->op == IR_REDUCE || node->op == IR_COMPOSITE) return node->label;
    if (node->label != 0 && (!moving || last == 0)) last = node->label;
  }
  return last;
}

/* The layer that a group comes from: where it was made, else where the states that it reads belong by their names. */
static char *layer_of(struct engine_build *b, const struct pass_group *group) {
  const char *text = ir_label_text(b->ctx, label_of(group));
  int length = (int)strlen(text);
  if (length == 0) {
    text = pass_group_layer(group, &length);
    if (length > 0 && text[length] != '.') length = 0; /* a state that is in no layer */
  }
  return base_arena_string(&b->program->arena, length > 0 ? text : "", (size_t)length);
}

static quern_status write_control(struct engine_build *b, const struct ir_node *node, struct engine_control **out) {
  struct base_arena *arena = &b->program->arena;
  const struct ir_attrs *attrs = node->attrs;
  struct engine_control *control = base_arena_new(arena, struct engine_control);
  if (control == NULL) return QUERN_STATUS_MEMORY;
  *control = (struct engine_control){.n_src = node->n_src,
                                     .n_out = node->n_out,
                                     .carries = node->op == IR_IF ? 0 : (int)attrs->carries,
                                     .scanned = node->op == IR_LOOP ? (int)attrs->scanned : 0,
                                     .trip = attrs->trip,
                                     .reverse = attrs->reverse != 0,
                                     .src_stride = NEW(arena, int64_t, node->n_src),
                                     .out_stride = NEW(arena, int64_t, node->n_out),
                                     .in_place = NEW(arena, int, node->n_out),
                                     .slot = NEW(arena, int, node->n_out)};
  if (control->src_stride == NULL || control->out_stride == NULL || control->in_place == NULL || control->slot == NULL)
    return QUERN_STATUS_MEMORY;
  engine_find_bodies(b, node, &control->body, &control->other);
  for (int i = 0; i < control->carries; i++) {
    control->in_place[i] = b->subgraphs.at[control->body].plan->in_place[i];
    control->slot[i] = node->op == IR_LOOP ? engine_carry_slot(attrs->body, control->carries, i) : 0;
  }
  for (int i = 0; i < control->scanned; i++) {
    int s = control->carries + i;
    control->src_stride[s] = (int64_t)ir_bytes(attrs->body->params[1 + s]);
  }
  for (int i = control->carries; i < node->n_out && node->op == IR_LOOP; i++)
    control->out_stride[i] = (int64_t)ir_bytes(attrs->body->results[i]);
  *out = control;
  return QUERN_STATUS_OK;
}

static quern_status write_step(struct engine_build *b, const struct pass_dynamic_batch *rows,
                               const struct plan_step *from, struct engine_step *to) {
  static const char *const names[] = {
      [PLAN_KERNEL] = "kernel", [PLAN_COPY] = "copy", [PLAN_LOOP] = "loop", [PLAN_WHILE] = "while", [PLAN_IF] = "if"};
  *to = (struct engine_step){.kind = from->kind,
                             .kernel = from->kind == PLAN_KERNEL ? from->kernel : -1,
                             .n_buffers = from->n_buffers,
                             .rematerialized = from->rematerialized,
                             .kind_name = names[from->kind],
                             .ops = "",
                             .layer = ""};
  to->scratch = from->kind == PLAN_KERNEL ? cg_scratch(b->kernels.at[from->kernel], &b->program->target) > 0
                                          : from->kind != PLAN_COPY;
  to->buffers = base_arena_copy(&b->program->arena, from->buffers, (size_t)from->n_buffers * sizeof(int));
  if (to->buffers == NULL) return QUERN_STATUS_MEMORY;
  if (from->group == NULL) return QUERN_STATUS_OK;
  to->dtype = from->node != NULL ? from->node->out[0].dtype : from->group->outs[0].tensor->dtype;
  if (from->node != NULL) return write_control(b, from->node, &to->control);
  to->kind_name = pass_kind_names[from->group->kind];
  to->speedup = from->group->speedup;
  to->threshold = from->group->threshold;
  to->group = from->group->hash;
  to->ops = describe(b, from->group);
  to->layer = layer_of(b, from->group);
  if (to->ops == NULL || to->layer == NULL) return QUERN_STATUS_MEMORY;
  return b->request->ref ? engine_ref_make(&to->ref, b->ctx, b->program, from->group, rows) : QUERN_STATUS_OK;
}

/* Which nodes the steps of the main subprogram compute: movement and leaves are not counted. */
static quern_status write_nodes(struct engine_build *b, const struct plan *plan, struct engine_subprogram *subprogram) {
  struct ir_order order;
  const struct pass_graph *roots = &b->subgraphs.at[0].roots;
  QUERN_TRY(ir_topo(b->ctx, roots->n_roots, roots->roots, &order));
  bool ok = true;
  for (int i = 0; i < subprogram->n_steps && ok; i++) {
    const struct pass_group *group = plan->steps[i].group;
    if (group == NULL) continue;
    struct engine_step *step = &subprogram->steps[i];
    step->nodes = NEW(&b->program->arena, int, group->n_nodes);
    ok = step->nodes != NULL;
    for (size_t k = 0; k < group->n_nodes && ok; k++) {
      const struct ir_node *node = group->nodes[k];
      bool computes = node->op > IR_IOTA && !(node->op >= IR_RESHAPE && node->op <= IR_FLIP);
      if (computes) step->nodes[step->n_nodes++] = (int)ir_order_find(&order, node);
    }
  }
  ir_order_fini(b->ctx, &order);
  return ok ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static quern_status write_subprogram(struct engine_build *b, const struct engine_subgraph *subgraph,
                                     struct engine_subprogram *subprogram) {
  const struct plan *plan = subgraph->plan;
  const struct pass_dynamic_batch *rows = engine_rows(subgraph);
  struct base_arena *arena = &b->program->arena;
  *subprogram = (struct engine_subprogram){.n_steps = (int)plan->n_steps,
                                           .n_buffers = (int)plan->n_buffers,
                                           .steps = NEW(arena, struct engine_step, plan->n_steps),
                                           .buffers = NEW(arena, struct engine_buffer, plan->n_buffers),
                                           .n_params = plan->n_params,
                                           .n_results = plan->n_results,
                                           .outside = NEW(arena, int, plan->n_buffers),
                                           .memory = plan->memory};
  if (subprogram->steps == NULL || subprogram->buffers == NULL || subprogram->outside == NULL)
    return QUERN_STATUS_MEMORY;
  for (int i = 0; i < subprogram->n_buffers; i++) {
    const struct plan_buffer *from = &plan->buffers[i];
    subprogram->buffers[i] =
        (struct engine_buffer){from->memory, from->at, from->bytes, from->first, from->last, false};
    if (rows != NULL && from->tensor != NULL)
      subprogram->buffers[i].rows = pass_dynamic_batch_is_outermost(rows, from->tensor);
    if (from->memory == PLAN_PARAM || from->memory == PLAN_RESULT) subprogram->outside[subprogram->n_outside++] = i;
  }
  for (int i = 0; i < subprogram->n_steps; i++) {
    QUERN_TRY(write_step(b, rows, &plan->steps[i], &subprogram->steps[i]));
    subprogram->most_buffers = BASE_MAX(subprogram->most_buffers, subprogram->steps[i].n_buffers);
  }
  return QUERN_STATUS_OK;
}

/* ---- slots ---------------------------------------------------------------------------------------------- */

static quern_status write_slot(struct base_arena *arena, const quern_tensor *t, quern_slot *slot) {
  const struct ir_node *node = t->node;
  bool named = (node->op == IR_INPUT || node->op == IR_STATE) && node->attrs->name != NULL;
  int64_t *dims = base_arena_copy(arena, t->dims, (size_t)t->rank * sizeof *dims);
  *slot = QUERN_INIT(quern_slot, .dtype = t->dtype, .rank = t->rank, .dims = dims, .bytes = ir_bytes(t));
  if (dims == NULL) return QUERN_STATUS_MEMORY;
  if (!named) return QUERN_STATUS_OK;
  slot->name = base_arena_string(arena, node->attrs->name, strlen(node->attrs->name));
  return slot->name != NULL ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static quern_status write_slots(struct base_arena *arena, size_t n, quern_tensor *const *tensors, quern_slot **slots) {
  *slots = NEW(arena, quern_slot, n);
  if (*slots == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < n; i++) QUERN_TRY(write_slot(arena, tensors[i], &(*slots)[i]));
  return QUERN_STATUS_OK;
}

/* Outputs are named by the options, or not at all. */
static quern_status name_outputs(struct engine_build *b) {
  const char *const *names = b->request->options.output_names;
  for (size_t i = 0; i < b->program->n_outputs; i++) {
    const char *name = names != NULL ? names[i] : NULL;
    b->program->outputs[i].name = name != NULL ? base_arena_string(&b->program->arena, name, strlen(name)) : NULL;
    if (name != NULL && b->program->outputs[i].name == NULL) return QUERN_STATUS_MEMORY;
  }
  return QUERN_STATUS_OK;
}

static quern_status write_outside(struct engine_build *b) {
  quern_program *program = b->program;
  struct base_arena *arena = &program->arena;
  program->n_inputs = b->inputs.n;
  program->n_states = b->states.n;
  program->n_outputs = b->request->n_outputs;
  program->donates = b->request->options.n_donated > 0;
  program->sleeps = b->request->options.optimize_for == QUERN_OPTIMIZE_FOR_THROUGHPUT;
  QUERN_TRY(write_slots(arena, b->inputs.n, b->inputs.at, &program->inputs));
  QUERN_TRY(write_slots(arena, b->states.n, b->states.at, &program->states));
  QUERN_TRY(write_slots(arena, program->n_outputs, b->request->outputs, &program->outputs));
  QUERN_TRY(name_outputs(b));
  engine_mark_rows(b);
  program->state_at = NEW(arena, int64_t, b->states.n);
  program->state_use = base_arena_copy(arena, b->state_use, (b->states.n + 1) * sizeof *b->state_use);
  program->constants = base_alloc_zero(&program->heap, (size_t)b->constant_bytes);
  if (program->state_at == NULL || program->state_use == NULL || program->constants == NULL) return QUERN_STATUS_MEMORY;
  program->memory.constants = b->constant_bytes;
  for (size_t i = 0; i < b->states.n; i++) program->state_at[i] = b->leaves.at[i].at; /* states were laid out first */
  engine_fill_constants(b, program->constants);
  return QUERN_STATUS_OK;
}

/* What the steps of a subprogram do, with bodies as often as they run, whose costs are known. */
static struct kern_cost subprogram_cost(const quern_program *program, const struct engine_subprogram *subprogram,
                                        const struct kern_cost *costs) {
  struct kern_cost sum = {0, 0};
  for (int i = 0; i < subprogram->n_steps; i++) {
    const struct engine_step *step = &subprogram->steps[i];
    const struct kern_cost *one = step->kernel >= 0       ? &program->kernels[step->kernel]->cost
                                  : step->control != NULL ? &costs[step->control->body]
                                                          : NULL;
    double times = step->control != NULL && step->kind == PLAN_LOOP ? (double)step->control->trip : 1;
    sum.flops += one != NULL ? times * one->flops : 0;
    sum.bytes += one != NULL ? times * one->bytes : 0;
  }
  return sum;
}

/* The costs of a run: of bodies first. */
static quern_status write_costs(struct engine_build *b) {
  quern_program *program = b->program;
  struct kern_cost *costs = NEW(&b->arena, struct kern_cost, program->n_subprograms);
  if (costs == NULL) return QUERN_STATUS_MEMORY;
  for (int depth = 0; depth <= IR_MAX_DEPTH; depth++)
    for (size_t u = 1; u < b->subgraphs.n; u++)
      if (b->subgraphs.at[u].graph->depth == depth)
        costs[u] = subprogram_cost(program, &program->subprograms[u], costs);
  struct kern_cost all = subprogram_cost(program, &program->subprograms[0], costs);
  program->counts.flops = all.flops;
  program->counts.bytes = all.bytes;
  return QUERN_STATUS_OK;
}

/* ---- the door ------------------------------------------------------------------------------------------- */

quern_status engine_write_program(struct engine_build *b) {
  quern_program *program = b->program;
  QUERN_TRY(write_outside(b));
  program->subprograms = NEW(&program->arena, struct engine_subprogram, b->subgraphs.n);
  program->kernels = NEW(&program->arena, struct kern *, b->kernels.n);
  if (program->subprograms == NULL || program->kernels == NULL) return QUERN_STATUS_MEMORY;
  if (b->request->ref) {
    quern_context_options options = {.size = sizeof options, .allocator = program->heap.user};
    QUERN_TRY(ir_context_new(&program->ref_ctx, &options));
  }
  for (size_t u = 0; u < b->subgraphs.n; u++)
    QUERN_TRY(write_subprogram(b, &b->subgraphs.at[u], &program->subprograms[u]));
  QUERN_TRY(write_nodes(b, b->subgraphs.at[0].plan, &program->subprograms[0]));
  program->n_subprograms = (int)b->subgraphs.n;
  for (size_t i = 0; i < b->kernels.n; i++) program->kernels[i] = b->kernels.at[i];
  program->n_kernels = (int)b->kernels.n;
  for (size_t u = 0; u < b->subgraphs.n; u++)
    for (size_t i = 0; i < b->subgraphs.at[u].n_steps; i++) {
      size_t scratch = (size_t)b->subgraphs.at[u].steps[i].scratch;
      program->scratch_stride = BASE_MAX(program->scratch_stride, (scratch + 63) / 64 * 64);
    }
  b->kernels.n = 0; /* they are the program's now */
  const struct plan_memory *memory = &program->subprograms[0].memory;
  program->memory.arena = memory->arena;
  program->memory.bound = memory->bound;
  program->memory.unshared = memory->unshared;
  program->memory.held = memory->held;
  program->memory.state = b->state_bytes;
  program->memory.scratch = (int64_t)program->scratch_stride * program->target.base.threads;
  program->counts.steps = (size_t)program->subprograms[0].n_steps;
  for (int i = 0; i < program->subprograms[0].n_steps; i++) {
    const struct engine_step *step = &program->subprograms[0].steps[i];
    program->counts.copies += step->kind == PLAN_COPY;
    program->counts.controls += step->control != NULL;
  }
  for (int p = 0; p < program->n_subprograms; p++)
    for (int i = 0; i < program->subprograms[p].n_steps; i++)
      program->counts.recomputed += program->subprograms[p].steps[i].rematerialized;
  program->counts.kernels = (size_t)program->n_kernels;
  engine_memory_sum(program);
  return write_costs(b);
}
