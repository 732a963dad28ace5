/* engine/compile.c -- the compiler: from outputs and updates to a program, stage by stage
** in:    a checked request                 out: a program that does not need its context
** keeps: nothing of a compilation outlives it but the program: nodes that the passes made are gone from the context
** see:   docs/design/002-cpu-compiler.md   tests: tests/engine/test_compile.c
*/
#include "engine/codec.h"

/* The device's own target, or that of a usual one where it is not there. */
static quern_status find_target(quern_program *program, bool there) {
  const struct rt_backend *backend = program->device->backend;
  const char *usual = backend->usual_target;
  if (there || usual == NULL) return backend->target(program->device, &program->target);
  base_log(1, "planned for target %s: %s", usual, quern_last_error());
  return cg_target_parse(&program->target, usual);
}

/* The device's target, or the one that was asked for. A GPU has threads of its own. */
static quern_status choose_target(struct engine_build *b) {
  quern_program *program = b->program;
  const quern_program_options *options = &b->request->options;
  b->asks = !options->plan_only || rt_device_probe(program->device, &program->heap) == QUERN_STATUS_OK;
  if (options->target == NULL)
    QUERN_TRY(find_target(program, b->asks));
  else
    QUERN_TRY(cg_target_parse(&program->target, options->target));
  if (!program->target.base.gpu)
    program->target.base.threads = options->threads > 0 ? options->threads : rt_default_threads();
  return QUERN_STATUS_OK;
}

/* Options as the passes want them, the device and what it can do. */
static quern_status configure(struct engine_build *b) {
  const quern_program_options *options = &b->request->options;
  quern_program *program = b->program;
  struct base_str list;
  base_str_init(&list, &b->ctx->heap);
  if (options->passes != NULL) base_str_add(&list, options->passes);
  base_str_printf(&list, ",%s", base_env_get(BASE_ENV_PASS));
  quern_status status = base_str_status(&list);
  if (status == QUERN_STATUS_OK)
    status = pass_options_parse(&b->passes, options->optimize == QUERN_OPTIMIZE_DEFAULT, list.at);
  base_str_fini(&list);
  QUERN_TRY(status);
  QUERN_TRY(choose_target(b));
  b->limit = options->memory_limit;
  program->counts.unfused = b->request->n_unfused;
  b->passes.approximate = options->numerics == QUERN_NUMERICS_FAST;
  b->passes.inference = options->inference;
  b->passes.target = &program->target.base;
  b->passes.supports = sched_supports;
  if (options->n_dynamic_batch > 0) b->passes.on[PASS_CHUNK] = false; /* its loop over rows would mix them */
  b->passes.no_convolutions = b->request->no_convolutions || options->n_dynamic_batch > 0;
  const char *wisdom = b->request->wisdom != NULL ? b->request->wisdom : base_env_get(BASE_ENV_WISDOM);
  return sched_wisdom_read(&b->wisdom, &b->ctx->heap, wisdom);
}

/* The main subgraph: outputs, then new values of states. */
static quern_status open_main(struct engine_build *b) {
  const struct engine_request *request = b->request;
  size_t n = request->n_outputs + request->options.n_updates;
  quern_tensor **roots = base_arena_alloc(&b->arena, (n + 1) * sizeof *roots);
  if (roots == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < n; i++)
    roots[i] = i < request->n_outputs ? request->outputs[i] : request->options.updates[i - request->n_outputs].value;
  struct engine_subgraph main = {.roots = {b->ctx, n, roots}};
  return base_vec_push(&b->ctx->heap, &b->subgraphs, main) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static quern_status count_nodes(const struct engine_build *b, size_t *nodes) {
  const struct pass_graph *roots = &b->subgraphs.at[0].roots;
  struct ir_order order;
  QUERN_TRY(ir_topo(b->ctx, roots->n_roots, roots->roots, &order));
  *nodes = order.n;
  ir_order_fini(b->ctx, &order);
  return QUERN_STATUS_OK;
}

/* Tells the device that there is much to compile. A small program would be done before the device is ready, and wait. */
static void look_ahead(const struct engine_build *b, size_t nodes) {
  enum { MANY = 100 };
  const quern_device *device = b->program->device;
  if (nodes >= MANY && device->backend->preload != NULL) device->backend->preload(device, &b->program->target);
}

/* The stages up to kernels; found: there is a program that was compiled before, and none is needed. */
static quern_status run_front(struct engine_build *b, bool cached, bool *found) {
  quern_program_stats *counts = &b->program->counts;
  double start = base_clock();
  *found = false;
  QUERN_TRY(configure(b));
  QUERN_TRY(open_main(b));
  QUERN_TRY(engine_find_leaves(b));
  if (cached) QUERN_TRY(engine_cache_find(b, found));
  if (*found) return QUERN_STATUS_OK;
  QUERN_TRY(count_nodes(b, &counts->nodes_before));
  if (cached) look_ahead(b, counts->nodes_before);
  QUERN_TRY(engine_end_stage(b, "graph"));

  QUERN_TRY(pass_run(&b->subgraphs.at[0].roots, &b->passes, b->reports));
  QUERN_TRY(count_nodes(b, &counts->nodes_after));
  QUERN_TRY(engine_end_stage(b, "passes"));

  QUERN_TRY(engine_find_dynamic_rows(b));
  QUERN_TRY(engine_make_groups(b));
  QUERN_TRY(engine_find_body_rows(b));
  QUERN_TRY(engine_end_stage(b, "groups"));
  QUERN_TRY(engine_end_stage(b, "schedules"));
  counts->seconds_passes = base_clock() - start;
  start = base_clock();

  QUERN_TRY(engine_make_kernels(b));
  QUERN_TRY(engine_end_stage(b, "kernels"));
  QUERN_TRY(engine_lay_leaves(b));
  counts->seconds_plan = base_clock() - start;
  return QUERN_STATUS_OK;
}

/* Bytes of the plans, of states and of constants. */
static int64_t planned_bytes(const struct engine_build *b) {
  const struct plan_memory *memory = &b->subgraphs.at[0].plan->memory;
  return memory->arena + memory->scratch + engine_staging_bytes(b) + b->state_bytes + b->constant_bytes;
}

/* Plans of programs that have so many bytes at most, states and constants included. */
static quern_status plan_within(struct engine_build *b, int64_t most, int64_t *least) {
  b->limit = BASE_MAX(most - b->state_bytes - b->constant_bytes, 1);
  quern_status status = engine_make_plans(b, least);
  b->limit = 0;
  return status;
}

/* Plans; where nothing is said of a limit and the device has memory of its own, within what is free of that, less a reserve. A plan
** that does not fit now, but into the device, is left as it is: its instances may share the memory of others. */
static quern_status make_plans(struct engine_build *b) {
  int64_t least = 0, free, total;
  quern_status status = engine_make_plans(b, &least);
  if (b->request->options.least_limit != NULL) *b->request->options.least_limit = least;
  if (status != QUERN_STATUS_OK || b->limit > 0 || b->request->options.plan_only) return status;
  QUERN_TRY(engine_device_room(b->program->device, &free, &total));
  int64_t all = planned_bytes(b), rest = b->state_bytes + b->constant_bytes;
  int64_t room = engine_plan_room(free, total);
  if (total == 0 || all <= room) return QUERN_STATUS_OK;
  b->cacheable = false; /* at another time other bytes are free */
  status = plan_within(b, room, &least);
  if (status == QUERN_STATUS_MEMORY && least > 0 && least <= free - rest) status = plan_within(b, free, &least);
  if (status == QUERN_STATUS_MEMORY && least > 0 && all <= total) return engine_make_plans(b, &least);
  QUERN_CHECK(
      status != QUERN_STATUS_MEMORY || least == 0, MEMORY,
      "program_compile: device %s has %lld bytes, of which %lld are free, %lld of them for programs; states and "
      "constants need %lld, a step %lld, or %lld when it computes all again that it can",
      b->program->device->name, (long long)total, (long long)free, (long long)room, (long long)rest,
      (long long)(all - rest), (long long)least);
  return status;
}

/* All stages, in order. */
static quern_status run_stages(struct engine_build *b, void *user) {
  quern_program *program = b->program;
  quern_program_stats *counts = &program->counts;
  bool found;
  (void)user;
  QUERN_TRY(run_front(b, !b->request->options.plan_only, &found));
  if (found) return engine_upload_constants(b->program);
  double start = base_clock();
  QUERN_TRY(make_plans(b));
  QUERN_TRY(engine_end_stage(b, "plan"));
  QUERN_TRY(engine_write_program(b));
  counts->seconds_plan += base_clock() - start;
  if (b->request->options.plan_only) return QUERN_STATUS_OK;
  start = base_clock();

  QUERN_TRY(engine_mark_batchable(program));
  b->stats.room = b->request->options.compiler_limit;
  QUERN_TRY(program->device->backend->build(program->device, &program->module, &program->heap,
                                            (size_t)program->n_kernels, (const struct kern *const *)program->kernels,
                                            &program->target, &b->stats));
  QUERN_TRY(engine_end_stage(b, "build"));
  counts->seconds_compile = base_clock() - start;
  counts->compiled = b->stats.compiled;
  counts->cached = b->stats.cached;
  QUERN_TRY(engine_run_packings(b));
  QUERN_ASSERT(b->request->ref || codec_valid(program)); /* or it could not be read when it is saved or kept */
  QUERN_TRY(engine_cache_keep(b));
  return engine_upload_constants(program);
}

static void build_fini(struct engine_build *b) {
  struct base_heap *heap = &b->ctx->heap;
  for (size_t i = 0; i < b->subgraphs.n; i++)
    if (b->subgraphs.at[i].grouped) pass_groups_fini(&b->subgraphs.at[i].groups);
  for (size_t i = 0; i < b->subgraphs.n; i++)
    if (b->subgraphs.at[i].rows.most > 0) pass_dynamic_batch_fini(&b->subgraphs.at[i].rows);
  for (size_t i = 0; i < b->kernels.n; i++) kern_free(b->kernels.at[i]);
  base_vec_fini(heap, &b->subgraphs);
  base_vec_fini(heap, &b->kernels);
  base_vec_fini(heap, &b->inputs);
  base_vec_fini(heap, &b->states);
  base_vec_fini(heap, &b->leaves);
  base_vec_fini(heap, &b->packings);
  base_vec_fini(heap, &b->unfused);
  if (b->wisdom.heap != NULL) sched_wisdom_fini(&b->wisdom);
  base_map_fini(&b->known);
  base_map_fini(&b->leaf_map);
  base_arena_fini(&b->arena);
}

typedef quern_status run_of_stages(struct engine_build *b, void *user);

/* What failed attempts have shown: kernels that a library refused when they were built, nodes of groups that have no kernel. */
struct lessons {
  struct base_heap *heap;
  BASE_VEC(uint64_t) refused;
  BASE_VEC(struct engine_unfused) unfused;
  bool no_convolutions; /* a library refused one */
};

static void lessons_fini(struct lessons *l) {
  base_vec_fini(l->heap, &l->refused);
  base_vec_fini(l->heap, &l->unfused);
}

/* Whether there is something new to be learned from an attempt that failed. */
static quern_status learn(struct lessons *l, const struct engine_build *b, quern_status failed, bool *more) {
  const struct rt_stats *stats = &b->stats;
  for (size_t i = 0; i < b->unfused.n; i++)
    if (!base_vec_push(l->heap, &l->unfused, b->unfused.at[i])) return QUERN_STATUS_MEMORY;
  *more = failed == QUERN_STATUS_INTERNAL && b->unfused.n > 0;
  if (failed == QUERN_STATUS_UNSUPPORTED && b->conv_refused && !l->no_convolutions) {
    base_log(1, "compile again, convolutions by generated code: %s", quern_last_error());
    *more = l->no_convolutions = true;
    return QUERN_STATUS_OK;
  }
  if (failed != QUERN_STATUS_UNSUPPORTED || stats->n_refused == 0) return QUERN_STATUS_OK;
  for (size_t i = 0; i < l->refused.n; i++)
    if (l->refused.at[i] == stats->refused[0]) return QUERN_STATUS_OK; /* nothing was gained */
  for (int i = 0; i < stats->n_refused; i++)
    if (!base_vec_push(l->heap, &l->refused, stats->refused[i])) return QUERN_STATUS_MEMORY;
  base_log(1, "compile again, %d kernels by generated code: %s", stats->n_refused, quern_last_error());
  *more = true;
  return QUERN_STATUS_OK;
}

/* A compilation by some stages: what is left of it is the program, which may have been replaced; more: it failed, and should be
** attempted again. */
static quern_status compile_once(quern_program **program, const struct engine_request *request, run_of_stages *stages,
                                 void *user, struct lessons *lessons, bool *more) {
  quern_context *ctx = request->ctx;
  *more = false;
  QUERN_TRY(engine_program_new(program, request));
  struct engine_build b = {.program = *program, .request = request, .ctx = ctx, .start = base_clock()};
  base_arena_init(&b.arena, &ctx->heap);
  base_map_init(&b.known, &ctx->heap);
  base_map_init(&b.leaf_map, &ctx->heap);
  quern_status status = ir_scope_begin(ctx);
  if (status == QUERN_STATUS_OK) {
    status = stages(&b, user);
    const quern_device *device = b.program->device;
    if (device->backend->preload != NULL) device->backend->preload(device, NULL);
    *program = b.program;
    if (request->options.least_compiler_limit != NULL) *request->options.least_compiler_limit = b.stats.least_room;
    quern_status learned = learn(lessons, &b, status, more);
    if (learned != QUERN_STATUS_OK) status = learned;
    build_fini(&b);
    ir_scope_end(ctx);
  }
  if (status == QUERN_STATUS_OK) return QUERN_STATUS_OK;
  quern_program_free(*program);
  *program = NULL;
  return status;
}

/* The same; where a library refuses kernels, or fused nodes turn out to have none, once more, knowing that. Constants are folded in
** our floating-point state. */
static quern_status compile(quern_program **program, const struct engine_request *request, run_of_stages *stages,
                            void *user) {
  struct base_floats floats = base_floats_enter();
  struct engine_request now = *request;
  struct lessons lessons = {.heap = &request->ctx->heap};
  quern_status status;
  for (bool more = true; more;) {
    status = compile_once(program, &now, stages, user, &lessons, &more);
    now.refused = lessons.refused.at;
    now.n_refused = lessons.refused.n;
    now.unfused = lessons.unfused.at;
    now.n_unfused = lessons.unfused.n;
    now.no_convolutions = lessons.no_convolutions;
  }
  lessons_fini(&lessons);
  base_floats_leave(floats);
  return status;
}

quern_status engine_compile(quern_program **program, const struct engine_request *request) {
  return compile(program, request, run_stages, NULL);
}

/* ---- without a program ------------------------------------------------------------------------------------- */

struct survey {
  engine_inspect *look;
  void *user;
};

static quern_status run_survey(struct engine_build *b, void *user) {
  const struct survey *survey = user;
  bool found;
  QUERN_TRY(run_front(b, false, &found));
  return survey->look(b, survey->user);
}

quern_status engine_survey(const struct engine_request *request, engine_inspect *look, void *user) {
  quern_program *program;
  QUERN_TRY(compile(&program, request, run_survey, &(struct survey){look, user}));
  quern_program_free(program);
  return QUERN_STATUS_OK;
}
