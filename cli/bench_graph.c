/* cli/bench_graph.c -- the suite graph: how long whole graphs take to compile, and what the passes make of them
** Every measurement is a process of its own, so that nothing is warm but what the disk cache holds.
*/
#include "bench.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A child's report. */
struct outcome {
  bool good;
  double seconds; /* of quern_program_compile */
  quern_program_stats counts;
  quern_memory_plan memory;
  char error[256];
};

static quern_status compile(const struct bench_run *run, const struct bench_model_kind *kind, const char *device,
                            struct outcome *outcome) {
  struct bench_model model = {0};
  quern_program *program = NULL;
  quern_program_options options = QUERN_INIT(quern_program_options);
  struct timespec begin, end;
  quern_status status = quern_context_new(&model.ctx, NULL);
  if (status != QUERN_STATUS_OK) return status;
  kind->build(&model, kind->params);
  options.device = device;
  options.threads = run->threads;
  options.n_updates = model.n_updates;
  options.updates = model.updates;
  status = cli_lower(model.ctx, run->low, model.n_outputs, model.outputs, model.n_updates, model.updates);
  clock_gettime(CLOCK_MONOTONIC, &begin);
  if (status == QUERN_STATUS_OK)
    status =
        quern_program_compile(&program, model.ctx, model.n_outputs, (quern_tensor *const *)model.outputs, &options);
  clock_gettime(CLOCK_MONOTONIC, &end);
  outcome->seconds = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
  outcome->counts = QUERN_INIT(quern_program_stats);
  outcome->memory = QUERN_INIT(quern_memory_plan);
  if (status == QUERN_STATUS_OK) status = quern_program_get_stats(program, &outcome->counts);
  if (status == QUERN_STATUS_OK) status = quern_program_get_memory(program, &outcome->memory);
  quern_program_free(program);
  bench_model_end(&model);
  return status;
}

/* Compiles in a child. */
static void compile_apart(const struct bench_run *run, const struct bench_model_kind *kind, const char *device,
                          struct outcome *outcome) {
  int ends[2];
  *outcome = (struct outcome){.error = "no process"};
  fflush(stdout);
  if (pipe(ends) != 0) return;
  pid_t pid = fork();
  if (pid == 0) {
    outcome->good = compile(run, kind, device, outcome) == QUERN_STATUS_OK;
    snprintf(outcome->error, sizeof outcome->error, "%s", outcome->good ? "" : quern_last_error());
    ssize_t sent = write(ends[1], outcome, sizeof *outcome);
    _exit(sent == (ssize_t)sizeof *outcome ? 0 : 1);
  }
  close(ends[1]);
  if (pid > 0 && read(ends[0], outcome, sizeof *outcome) != (ssize_t)sizeof *outcome)
    *outcome = (struct outcome){.error = "the process that compiles ended"};
  close(ends[0]);
  if (pid > 0) waitpid(pid, NULL, 0);
}

/* Removes a folder of files and one level of folders below it: a cache. */
static void remove_folder(const char *path, int depth) {
  DIR *folder = opendir(path);
  for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
    char name[1024];
    int n = snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 || n >= (int)sizeof name) continue;
    struct stat about;
    if (lstat(name, &about) == 0 && S_ISDIR(about.st_mode) && depth > 0)
      remove_folder(name, depth - 1);
    else
      unlink(name);
  }
  if (folder != NULL) closedir(folder);
  rmdir(path);
}

/* The median passes + plan of several compilations; the rest of the report is that of the last. */
static int measure_passes(struct bench_run *run, const struct bench_model_kind *kind, struct outcome *outcome,
                          struct bench_row *row) {
  double times[BENCH_MOST_ROUNDS];
  int n = run->rounds;
  for (int i = 0; i < n; i++) {
    compile_apart(run, kind, "null", outcome);
    if (cli_interrupted()) return CLI_INTERRUPTED;
    if (!outcome->good) return cli_fail("%s %s: %s", kind->name, kind->params, outcome->error);
    double seconds = outcome->counts.seconds_passes + outcome->counts.seconds_plan;
    int at = i;
    for (; at > 0 && times[at - 1] > seconds; at--) times[at] = times[at - 1];
    times[at] = seconds;
  }
  row->median = times[n / 2];
  row->spread = (times[n * 3 / 4] - times[n / 4]) / row->median;
  return CLI_OK;
}

static int run_model(struct bench_run *run, const struct bench_model_kind *kind) {
  struct bench_row row = {.threads = run->threads};
  struct outcome passes = {0}, cold = {0}, warm = {0};
  snprintf(row.name, sizeof row.name, "%s", kind->name);
  snprintf(row.params, sizeof row.params, "%s%s%s", kind->params, run->low != QUERN_DTYPE_F32 ? " " : "",
           run->low != QUERN_DTYPE_F32 ? quern_dtype_name(run->low) : "");
  int status = measure_passes(run, kind, &passes, &row);
  if (status != CLI_OK) return status;
  if (kind->compiled) compile_apart(run, kind, "cpu", &cold);
  if (kind->compiled) compile_apart(run, kind, "cpu", &warm);
  if (cli_interrupted()) return CLI_INTERRUPTED;
  if (kind->compiled && !cold.good) return cli_fail("%s %s: %s", kind->name, kind->params, cold.error);
  if (kind->compiled && !warm.good) return cli_fail("%s %s: %s", kind->name, kind->params, warm.error);
  const quern_memory_plan *m = &passes.memory;
  row.planned = m->arena + m->state + m->constants + m->scratch;
  bench_row_add(&row, "nodes_before", (double)passes.counts.nodes_before);
  bench_row_add(&row, "nodes_after", (double)passes.counts.nodes_after);
  bench_row_add(&row, "steps", (double)passes.counts.steps);
  bench_row_add(&row, "kernels", (double)passes.counts.kernels);
  bench_row_add(&row, "passes_ms", 1e3 * passes.counts.seconds_passes);
  bench_row_add(&row, "plan_ms", 1e3 * passes.counts.seconds_plan);
  bench_row_add(&row, "cold_ms", 1e3 * cold.seconds);
  bench_row_add(&row, "warm_ms", 1e3 * warm.seconds);
  return bench_row_keep(run, &row);
}

/* ---- graphs as text -------------------------------------------------------------------------------------------- */

quern_status bench_print_graph(quern_context *ctx, size_t n_outputs, quern_tensor *const *given, size_t n_updates,
                               const quern_update *updates, char **text) {
  size_t n = n_outputs + n_updates;
  quern_tensor **outputs = calloc(n + 1, sizeof *outputs);
  const char **names = calloc(n + 1, sizeof *names);
  quern_graph *graph = NULL;
  quern_status status = outputs != NULL && names != NULL ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < n_outputs && status == QUERN_STATUS_OK; i++) outputs[i] = given[i];
  for (size_t i = 0; i < n_updates && status == QUERN_STATUS_OK; i++) {
    outputs[n_outputs + i] = updates[i].value;
    names[n_outputs + i] = quern_tensor_name(updates[i].state);
  }
  if (status == QUERN_STATUS_OK) status = quern_graph_new(&graph, ctx, n, outputs, names);
  if (status == QUERN_STATUS_OK) status = quern_graph_print(graph, text);
  quern_graph_free(graph);
  free(outputs);
  free(names);
  return status;
}

static int write_graph(const char *path, const struct bench_model_kind *kind) {
  struct bench_model model = {0};
  char *text = NULL;
  quern_status status = quern_context_new(&model.ctx, NULL);
  if (status == QUERN_STATUS_OK) kind->build(&model, kind->params);
  if (status == QUERN_STATUS_OK) status = quern_context_check(model.ctx);
  if (status == QUERN_STATUS_OK)
    status = bench_print_graph(model.ctx, model.n_outputs, model.outputs, model.n_updates, model.updates, &text);
  int result = status == QUERN_STATUS_OK ? cli_write(path, text) : cli_fail_last(kind->name);
  if (text != NULL) quern_free_text(text);
  bench_model_end(&model);
  if (result == CLI_OK) printf("%s: %s %s\n", path, kind->name, kind->params);
  return result;
}

int bench_write_graphs(const struct bench_run *run) {
  int status = CLI_OK;
  for (const struct bench_model_kind *kind = bench_models; kind->name != NULL && status == CLI_OK; kind++) {
    char path[1024], number[24] = "";
    int before = 0; /* of the same name */
    for (const struct bench_model_kind *k = bench_models; k != kind; k++) before += strcmp(k->name, kind->name) == 0;
    if (!bench_wanted(run, kind->name, kind->params)) continue;
    if (before > 0) snprintf(number, sizeof number, "-%d", before + 1);
    if (snprintf(path, sizeof path, "%s/%s%s.qir", run->write, kind->name, number) >= (int)sizeof path)
      return cli_fail("%s: too long a path", run->write);
    status = write_graph(path, kind);
  }
  return status;
}

/* ---- the suite ------------------------------------------------------------------------------------------------- */

int bench_run_graph(struct bench_run *run) {
  char folder[] = "/tmp/quern_bench_XXXXXX";
  if (mkdtemp(folder) == NULL) return cli_fail("%s: no folder can be made for the cache", folder);
  setenv("QUERN_CACHE", folder, 1); /* nothing of the library has read it: children do all the work */
  int status = CLI_OK;
  for (const struct bench_model_kind *kind = bench_models; kind->name != NULL && status == CLI_OK; kind++)
    if (bench_wanted(run, kind->name, kind->params)) status = run_model(run, kind);
  remove_folder(folder, 2);
  return status;
}
