/* engine/explain.c -- what a program is made of, as text: its plan, its groups, a picture of them, its C
** tests: tests/engine/test_profile.c
*/
#include "engine/engine.h"

static struct base_heap *heap_of(const quern_program *program) { return (struct base_heap *)&program->heap; }

static const char *step_name(const quern_program *program, const struct engine_step *step) {
  return step->kernel >= 0 ? program->kernels[step->kernel]->name : step->kind_name;
}

/* Bytes in the unit that suits them. */
static void add_bytes(struct base_str *str, int64_t bytes) {
  if (bytes < 10 * 1024)
    base_str_printf(str, "%lld B", (long long)bytes);
  else if (bytes < INT64_C(10) * 1024 * 1024)
    base_str_printf(str, "%.1f KiB", (double)bytes / 1024);
  else
    base_str_printf(str, "%.1f MiB", (double)bytes / 1024 / 1024);
}

/* ---- plan ----------------------------------------------------------------------------------------------- */

static void add_memory(struct base_str *str, const quern_memory_plan *m, bool remote) {
  const struct {
    const char *name;
    int64_t bytes;
    const char *description;
  } rows[] = {{"arena", m->arena, "of a step"},
              {"state", m->state, "kept between steps"},
              {"constants", m->constants, "in the program"},
              {"scratch", m->scratch, "of the threads"},
              {"bound", m->bound, "alive at a time: no arena can be smaller"},
              {"unshared", m->unshared, "the arena if nothing shared memory"},
              {"held", m->held, "activations: what output 0 needs and others read later, the most at a time"},
              {"staging", m->staging, "inputs and outputs that are not used where the caller has them"},
              {"iterations", m->iterations, "numbers of the iterations of loops"},
              {"total", m->total, "of the device: arena, state, constants, scratch, staging, iterations"}};
  base_str_add(str, "memory\n");
  /* the last ones are of devices with memory of their own, the one before of programs with a dynamic batch too */
  size_t n = BASE_COUNT(rows) - (remote ? 0 : 2) - (!remote && m->staging == 0);
  for (size_t i = 0; i < n; i++) {
    base_str_printf(str, "  %-10s %14lld  ", rows[i].name, (long long)rows[i].bytes);
    add_bytes(str, rows[i].bytes);
    base_str_printf(str, "  %s\n", rows[i].description);
  }
}

static void add_buffer(struct base_str *str, const struct engine_subprogram *subprogram, int number) {
  static const char *const places[] = {[PLAN_ARENA] = "arena",
                                       [PLAN_PARAM] = "input",
                                       [PLAN_STATE] = "state",
                                       [PLAN_CONST] = "const",
                                       [PLAN_RESULT] = "output"};
  const struct engine_buffer *b = &subprogram->buffers[number];
  base_str_printf(str, " %s+%lld:%lld", places[b->place], (long long)b->at, (long long)b->bytes);
}

/* The layer that a step comes from, if it has a name. */
static void add_layer(struct base_str *str, const struct engine_step *step) {
  char shown[512];
  if (step->layer[0] == 0) return;
  base_text_shown(shown, sizeof shown, step->layer, false);
  base_str_printf(str, " %s", shown);
}

quern_status engine_explain_plan(const quern_program *program, const quern_instance *instance, char **text) {
  (void)instance;
  struct base_str str;
  base_str_init(&str, heap_of(program));
  const quern_program_stats *c = &program->counts;
  base_str_printf(&str, "%zu nodes, %zu after the passes, %zu steps, %zu different kernels, %.3f GFLOP, %.3f GB\n",
                  c->nodes_before, c->nodes_after, c->steps, c->kernels, c->flops * 1e-9, c->bytes * 1e-9);
  base_str_printf(&str, "device %s, target %s, %d threads; passes %.1f ms, plan %.1f ms, compile %.1f ms\n",
                  program->device->name, program->target.base.name, program->target.base.threads,
                  1e3 * c->seconds_passes, 1e3 * c->seconds_plan, 1e3 * c->seconds_compile);
  if (program->dynamic_batch > 0)
    base_str_printf(&str, "dynamic batch of up to %lld rows\n", (long long)program->dynamic_batch);
  add_memory(&str, &program->memory, program->device->remote != NULL);
  for (int p = 0; p < program->n_subprograms; p++) {
    const struct engine_subprogram *subprogram = &program->subprograms[p];
    base_str_printf(&str, p == 0 ? "steps\n" : "steps of subgraph %d\n", p);
    for (int i = 0; i < subprogram->n_steps; i++) {
      const struct engine_step *step = &subprogram->steps[i];
      base_str_printf(&str, "  %4d %-8s %s (%s)", i, step->kind_name, step_name(program, step), step->ops);
      add_layer(&str, step);
      base_str_add(&str, step->rematerialized ? " again:" : ":");
      for (int k = 0; k < step->n_buffers; k++) add_buffer(&str, subprogram, step->buffers[k]);
      base_str_add(&str, "\n");
    }
  }
  return base_str_give(QUERN_STATUS_OK, &str, text);
}

/* ---- groups --------------------------------------------------------------------------------------------- */

quern_status engine_explain_fusion(const quern_program *program, const quern_instance *instance, char **text) {
  (void)instance;
  struct base_str str;
  base_str_init(&str, heap_of(program));
  base_str_printf(&str, "%6s %-8s %-16s %10s %10s  %s\n", "step", "kind", "group", "estimate", "threshold", "kernel");
  for (int i = 0; i < program->subprograms[0].n_steps; i++) {
    const struct engine_step *step = &program->subprograms[0].steps[i];
    if (step->kernel < 0) continue;
    base_str_printf(&str, "%6d %-8s %016llx %9.2fx %9.2fx  %s (%s)", i, step->kind_name,
                    (unsigned long long)step->group, step->speedup, step->threshold, step_name(program, step),
                    step->ops);
    add_layer(&str, step);
    base_str_add(&str, "\n");
  }
  return base_str_give(QUERN_STATUS_OK, &str, text);
}

/* Steps as boxes; an edge from the step that wrote a buffer to each that reads it. Memories of a kernel that it only
** reads come before those it writes. */
static bool writes(const quern_program *program, const struct engine_step *step, int k) {
  if (step->kernel >= 0) return program->kernels[step->kernel]->mems[k].role == KERN_OUT;
  return step->control != NULL ? k >= step->control->n_src && k < step->control->n_src + step->control->n_out : k == 0;
}

static void add_edges(struct base_str *str, const quern_program *program, const struct engine_subprogram *subprogram,
                      int reader) {
  const struct engine_step *step = &subprogram->steps[reader];
  for (int k = 0; k < step->n_buffers; k++) {
    if (writes(program, step, k)) continue;
    const struct engine_buffer *b = &subprogram->buffers[step->buffers[k]];
    if (b->place != PLAN_ARENA && b->place != PLAN_RESULT) {
      if (b->place == PLAN_PARAM) base_str_printf(str, "  in%lld -> s%d;\n", (long long)b->at, reader);
      continue;
    }
    for (int i = reader - 1; i >= 0; i--) {
      const struct engine_step *from = &subprogram->steps[i];
      int found = -1;
      for (int m = 0; m < from->n_buffers; m++)
        if (from->buffers[m] == step->buffers[k] && writes(program, from, m)) found = m;
      if (found < 0) continue;
      base_str_printf(str, "  s%d -> s%d [label=\"", i, reader);
      add_bytes(str, b->bytes);
      base_str_add(str, "\"];\n");
      break;
    }
  }
}

quern_status engine_explain_dot(const quern_program *program, const quern_instance *instance, char **text) {
  (void)instance;
  const struct engine_subprogram *subprogram = &program->subprograms[0];
  struct base_str str;
  base_str_init(&str, heap_of(program));
  base_str_add(&str, "digraph program {\n  node [shape=box, fontname=\"sans-serif\"];\n");
  for (size_t i = 0; i < program->n_inputs; i++)
    base_str_printf(&str, "  in%zu [shape=ellipse, label=\"input %zu\"];\n", i, i);
  for (int i = 0; i < subprogram->n_steps; i++) {
    const struct engine_step *step = &subprogram->steps[i];
    base_str_printf(&str, "  s%d [label=\"%s\\n%s\"];\n", i, step->kind_name, step->ops);
    add_edges(&str, program, subprogram, i);
  }
  base_str_add(&str, "}\n");
  return base_str_give(QUERN_STATUS_OK, &str, text);
}

/* ---- source --------------------------------------------------------------------------------------------- */

static bool has_source(const struct kern *kern) { return kern->fns.n > 0; }

/* Nothing but a call of a library: there is no source. */
static bool is_call(const struct kern *kern) { return kern->n_phases == 1 && kern->phases[0].library_call; }

quern_status engine_explain_source(const quern_program *program, const quern_instance *instance, char **text) {
  (void)instance;
  struct base_str str;
  struct cg_unit source;
  for (int i = 0; i < program->n_kernels; i++)
    QUERN_CHECK(
        has_source(program->kernels[i]) || is_call(program->kernels[i]), UNSUPPORTED,
        "program_explain: the program comes from a file or the cache, which keep no source HINT: compile it for "
        "device \"null\"");
  base_str_init(&str, heap_of(program));
  cg_unit_init(&source, heap_of(program), &program->target);
  quern_status status = QUERN_STATUS_OK;
  for (int i = 0; i < program->n_kernels && status == QUERN_STATUS_OK; i++)
    if (has_source(program->kernels[i])) status = cg_unit_add(&source, program->kernels[i]);
  if (status == QUERN_STATUS_OK) status = cg_unit_text(&source, &str);
  cg_unit_fini(&source);
  return base_str_give(status, &str, text);
}
