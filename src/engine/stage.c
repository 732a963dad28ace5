/* engine/stage.c -- after each stage of a compilation: verify it, log how long it took, write it down
** QUERN_VERBOSE=check (and builds with assertions) verify; QUERN_DEBUG=1 logs times; QUERN_DUMP_DIR=dir gets files
** quern_<graph>_<k>_<stage>.txt, the graphs as text that parses back, the schedules as a file for QUERN_WISDOM.
** tests: tests/engine/test_compile.c
*/
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

#include "engine/engine.h"

/* ---- verifying ------------------------------------------------------------------------------------------ */

static quern_status verify_graph(const struct engine_build *b) {
  const struct pass_graph *roots = &b->subgraphs.at[0].roots;
  return ir_verify(b->ctx, roots->n_roots, roots->roots);
}

static quern_status verify_groups(const struct engine_build *b) {
  for (size_t i = 0; i < b->subgraphs.n; i++)
    QUERN_TRY(pass_groups_verify(&b->subgraphs.at[i].groups, &b->subgraphs.at[i].roots));
  return QUERN_STATUS_OK;
}

static quern_status verify_kernels(const struct engine_build *b) {
  for (size_t i = 0; i < b->kernels.n; i++) QUERN_TRY(kern_verify(b->kernels.at[i], NULL));
  return QUERN_STATUS_OK;
}

static quern_status verify_plans(const struct engine_build *b) {
  for (size_t i = 0; i < b->subgraphs.n; i++) QUERN_TRY(plan_verify(b->subgraphs.at[i].plan, &b->ctx->heap));
  return QUERN_STATUS_OK;
}

/* ---- printing ------------------------------------------------------------------------------------------- */

static quern_status print_graph(const struct engine_build *b, struct base_str *str) {
  const struct pass_graph *roots = &b->subgraphs.at[0].roots;
  return ir_print(b->ctx, str, roots->n_roots, roots->roots, NULL);
}

static quern_status print_groups(const struct engine_build *b, struct base_str *str) {
  for (size_t i = 0; i < b->subgraphs.n; i++) {
    base_str_printf(str, "graph %zu\n", i);
    QUERN_TRY(pass_groups_print(str, &b->subgraphs.at[i].groups));
  }
  return base_str_status(str);
}

static quern_status print_schedules(const struct engine_build *b, struct base_str *str) {
  base_str_add(str, "quern wisdom 1\n");
  for (size_t i = 0; i < b->subgraphs.n; i++) {
    const struct pass_groups *groups = &b->subgraphs.at[i].groups;
    for (size_t k = 0; k < groups->groups.n; k++) {
      const struct pass_group *group = groups->groups.at[k];
      if (group->kind == PASS_KIND_VIEW || group->kind == PASS_KIND_CONTROL) continue; /* have no kernels */
      struct sched sched;
      engine_schedule(b, group, &sched);
      base_str_printf(str, "# graph %zu group %zu %s\n", i, k, pass_kind_names[group->kind]);
      sched_wisdom_print(str, group->hash, &b->program->target.base, &sched);
    }
  }
  return base_str_status(str);
}

static quern_status print_kernels(const struct engine_build *b, struct base_str *str) {
  for (size_t i = 0; i < b->kernels.n; i++) QUERN_TRY(kern_print(str, b->kernels.at[i]));
  return base_str_status(str);
}

static quern_status print_plan(const struct engine_build *b, struct base_str *str) {
  return plan_print(str, b->subgraphs.at[0].plan);
}

/* ---- stages --------------------------------------------------------------------------------------------- */

static const struct stage {
  const char *name;
  quern_status (*verify)(const struct engine_build *b); /* NULL: nothing to do */
  quern_status (*print)(const struct engine_build *b, struct base_str *str);
} stages[] = {
    {"graph", verify_graph, print_graph},
    {"passes", verify_graph, print_graph},
    {"groups", verify_groups, print_groups},
    {"schedules", NULL, print_schedules},
    {"kernels", verify_kernels, print_kernels},
    {"plan", verify_plans, print_plan},
    {"build", NULL, NULL},
};

/* A number for the graph, the same in every process. */
static uint64_t graph_hash(const struct engine_build *b) {
  uint64_t h = BASE_HASH_SEED;
  for (size_t i = 0; i < b->request->n_outputs; i++) h = base_hash_u64(h, b->request->outputs[i]->node->hash);
  return h;
}

static quern_status dump(const struct engine_build *b, size_t number) {
  const char *folder = base_env_get(BASE_ENV_DUMP_DIR);
  struct base_str text, path;
  base_str_init(&text, &b->ctx->heap);
  base_str_init(&path, &b->ctx->heap);
  base_str_printf(&path, "%s/quern_%08" PRIx64 "_%zu_%s.txt", folder, graph_hash(b) >> 32, number, stages[number].name);
  (void)mkdir(folder, 0777); /* it may exist; if it cannot be made, opening the file below fails */
  quern_status status = stages[number].print(b, &text);
  if (status == QUERN_STATUS_OK) status = base_str_status(&path);
  FILE *file = status == QUERN_STATUS_OK ? base_fopen(path.at, "w") : NULL;
  if (status == QUERN_STATUS_OK) {
    bool written = file != NULL && fwrite(text.at, 1, text.n, file) == text.n;
    if (file != NULL) written = fclose(file) == 0 && written;
    if (!written) base_log(0, "cannot write %s", path.at);
  }
  base_str_fini(&text);
  base_str_fini(&path);
  return status;
}

quern_status engine_end_stage(struct engine_build *b, const char *stage) {
  size_t k = 0;
  while (strcmp(stages[k].name, stage) != 0) k++;
  double seconds = base_clock() - b->start;
  if (stages[k].print != NULL && base_env_get(BASE_ENV_DUMP_DIR)[0] != 0) QUERN_TRY(dump(b, k));
  if (b->request->verify && stages[k].verify != NULL) QUERN_TRY(stages[k].verify(b));
  base_log(1, "compile %-8s %8.3f ms: %zu graphs, %zu kernels", stage, 1e3 * seconds, b->subgraphs.n,
           BASE_MAX(b->kernels.n, (size_t)b->program->n_kernels));
  b->start = base_clock();
  return QUERN_STATUS_OK;
}
