/* cli/program.c -- compiling by the options, and the commands that run nothing: compile, plan */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

const char *cli_bytes_text(char text[24], int64_t bytes) {
  static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
  double x = (double)bytes / 1024;
  int unit = 0;
  if (bytes < 1024) {
    snprintf(text, 24, "%lld B", (long long)bytes);
    return text;
  }
  for (; x >= 1024 && unit < 3; unit++) x /= 1024;
  snprintf(text, 24, "%.1f %s", x, units[unit]);
  return text;
}

bool cli_is_program(const char *path) {
  char head[8] = "";
  FILE *file = strcmp(path, "-") != 0 ? fopen(path, "rb") : NULL;
  bool is = file != NULL && fread(head, 1, sizeof head, file) == sizeof head && memcmp(head, "QUERNPRG", 8) == 0;
  if (file != NULL) fclose(file);
  return is;
}

/* ---- options -------------------------------------------------------------------------------------------- */

const char *cli_first_given(const struct cli_call *call, const char *but) {
  static const struct cli_option compiling[] = {CLI_PROGRAM_OPTIONS, {0}};
  for (const struct cli_option *option = compiling; option->name != NULL; option++) {
    const char *found = strstr(but, option->name);
    bool is_but = found != NULL && strchr(" ", found[strlen(option->name)]) != NULL;
    if (cli_has(call, option->name, NULL) && !is_but) return option->name;
  }
  return NULL;
}

/* A word that something is given, which must be one of a list; its number in it. */
static int find_word(const struct cli_call *call, const char *name, const char *word, size_t n,
                     const char *const *words, size_t *at) {
  for (*at = 0; *at < n; ++*at)
    if (strcmp(word, words[*at]) == 0) return CLI_OK;
  const char *nearest = cli_nearest(word, n, words);
  return cli_usage(call->command, "%s: there is no '%s'%s%s%s", name, word, nearest != NULL ? "; did you mean '" : "",
                   nearest != NULL ? nearest : "", nearest != NULL ? "'?" : "");
}

/* The word that an option gives. */
static int read_word(const struct cli_call *call, const char *name, size_t n, const char *const *words, size_t *at) {
  const char *word;
  return cli_has(call, name, &word) ? find_word(call, name, word, n, words, at) : CLI_OK;
}

int cli_device(const struct cli_call *call, const char *name, const char *word, const char **device) {
  enum { MOST = 16 };
  const char *kinds[MOST] = {"auto"}, *next;
  char kind[32];
  size_t n = 1, at;
  while (n < MOST && (next = quern_device_kind(n - 1)) != NULL) kinds[n++] = next;
  snprintf(kind, sizeof kind, "%.*s", (int)strcspn(word, ":"), word);
  int status = find_word(call, name, kind, n, kinds, &at);
  if (status == CLI_OK) *device = word;
  return status;
}

static int read_device(const struct cli_call *call, const char **device) {
  const char *word;
  return cli_has(call, "--device", &word) ? cli_device(call, "--device", word, device) : CLI_OK;
}

int cli_precision(const struct cli_call *call, quern_dtype *low) {
  static const quern_dtype dtypes[] = {QUERN_DTYPE_F32, QUERN_DTYPE_BF16, QUERN_DTYPE_F16};
  static const char *const words[] = {"f32", "bf16", "f16"};
  size_t at = 0;
  int status = read_word(call, "--precision", 3, words, &at);
  *low = status == CLI_OK ? dtypes[at] : QUERN_DTYPE_F32;
  return status;
}

quern_status cli_lower(quern_context *ctx, quern_dtype low, size_t n, quern_tensor **outputs, size_t n_updates,
                       quern_update *updates) {
  quern_autocast_options options = QUERN_INIT(quern_autocast_options);
  quern_model *model = NULL;
  options.low = low;
  if (low == QUERN_DTYPE_F32) return QUERN_STATUS_OK;
  quern_tensor **all = calloc(n + n_updates + 1, sizeof *all);
  if (all == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < n; i++) all[i] = outputs[i];
  for (size_t i = 0; i < n_updates; i++) all[n + i] = updates[i].value;
  quern_status status = quern_model_new(&model, ctx, NULL);
  if (status == QUERN_STATUS_OK) status = quern_autocast(model, n + n_updates, all, all, &options);
  for (size_t i = 0; i < n && status == QUERN_STATUS_OK; i++) outputs[i] = all[i];
  for (size_t i = 0; i < n_updates && status == QUERN_STATUS_OK; i++) updates[i].value = all[n + i];
  quern_model_free(model);
  free(all);
  return status;
}

static int read_options(const struct cli_call *call, quern_program_options *options) {
  static const char *const kinds[] = {
      [QUERN_NUMERICS_EXACT] = "exact", [QUERN_NUMERICS_FAST] = "fast", [QUERN_NUMERICS_TF32] = "tf32"};
  static const char *const goals[] = {
      [QUERN_OPTIMIZE_FOR_LATENCY] = "latency", [QUERN_OPTIMIZE_FOR_THROUGHPUT] = "throughput"};
  int64_t threads = 0, optimize = 1;
  size_t numerics = QUERN_NUMERICS_EXACT, goal = QUERN_OPTIMIZE_FOR_LATENCY;
  int status = read_device(call, &options->device);
  if (status == CLI_OK) status = cli_number(call, "--threads", 1, 1024, &threads);
  if (status == CLI_OK) status = cli_number(call, "--optimize", 0, 1, &optimize);
  if (status == CLI_OK) status = cli_bytes(call, "--memory", &options->memory_limit);
  if (status == CLI_OK) status = read_word(call, "--numerics", sizeof kinds / sizeof *kinds, kinds, &numerics);
  if (status == CLI_OK) status = read_word(call, "--optimize-for", 2, goals, &goal);
  cli_has(call, "--pass", &options->passes);
  cli_has(call, "--target", &options->target);
  options->threads = (int)threads;
  options->optimize = optimize == 1 ? QUERN_OPTIMIZE_DEFAULT : QUERN_OPTIMIZE_NONE;
  options->numerics = (quern_numerics)numerics;
  options->optimize_for = (quern_optimize_for)goal;
  options->inference = cli_has(call, "--inference", NULL);
  options->gradient_checkpointing = cli_has(call, "--gradient-checkpointing", NULL);
  return status;
}

int cli_program_options(const struct cli_values *values, const char *device, const char *passes, char list[512],
                        quern_program_options *options) {
  const struct cli_call *call = values->call;
  *options = QUERN_INIT(quern_program_options);
  options->device = device;
  options->n_updates = values->n_updates;
  options->updates = values->updates;
  options->output_names = values->output_names;
  options->n_donated = values->n_donated;
  options->donated = values->donated;
  options->n_dynamic_batch = values->n_dynamic_batch;
  options->dynamic_batch = values->leading;
  quern_dtype low;
  int status = read_options(call, options);
  if (status == CLI_OK) status = cli_precision(call, &low);
  if (status != CLI_OK) return status;
  if (cli_lower(values->graph.ctx, low, values->n_outs, values->outputs, values->n_updates, values->updates) !=
      QUERN_STATUS_OK)
    return cli_fail_last(call->files[0]);
  int length = snprintf(list, 512, "%s%s%s", options->passes != NULL ? options->passes : "",
                        options->passes != NULL && passes != NULL ? "," : "", passes != NULL ? passes : "");
  if (length < 0 || length >= 512) return cli_usage(call->command, "--pass: the list is too long");
  options->passes = list;
  return CLI_OK;
}

static int compile(quern_program **program, const struct cli_values *values, const char *device, const char *passes,
                   bool plan_only) {
  const struct cli_call *call = values->call;
  quern_program_options options;
  char list[512];
  int status = cli_program_options(values, device, passes, list, &options);
  if (status != CLI_OK) return status;
  options.plan_only = plan_only;
  if (quern_program_compile(program, values->graph.ctx, values->n_outs, values->outputs, &options) == QUERN_STATUS_OK)
    return CLI_OK;
  return cli_fail_last(call->files[0]);
}

int cli_compile(quern_program **program, const struct cli_values *values, const char *device, const char *passes) {
  return compile(program, values, device, passes, false);
}

/* ---- the commands --------------------------------------------------------------------------------------- */

int cli_print_explained(const quern_program *program, const quern_instance *instance, quern_explain_form form,
                        const char *path) {
  char *text = NULL;
  if (quern_program_explain(program, instance, form, &text) != QUERN_STATUS_OK) return cli_fail_last("explain");
  int status = cli_write(path, text);
  quern_free_text(text);
  return status;
}

static int print_counts(const char *path, const quern_program *program) {
  quern_program_stats c = QUERN_INIT(quern_program_stats);
  quern_memory_plan m = QUERN_INIT(quern_memory_plan);
  char arena[24], state[24], constants[24], scratch[24];
  if (quern_program_get_stats(program, &c) != QUERN_STATUS_OK ||
      quern_program_get_memory(program, &m) != QUERN_STATUS_OK)
    return cli_fail_last(path);
  cli_print(stdout, "%s: %zu nodes, %zu after the passes; %zu steps of %zu kernels\n", path, c.nodes_before,
            c.nodes_after, c.steps, c.kernels);
  printf("passes %.1f ms, plan %.1f ms, compile %.1f ms; units compiled %d, from the cache %d\n",
         1e3 * c.seconds_passes, 1e3 * c.seconds_plan, 1e3 * c.seconds_compile, c.compiled, c.cached);
  printf("memory: arena %s, state %s, constants %s, scratch %s\n", cli_bytes_text(arena, m.arena),
         cli_bytes_text(state, m.state), cli_bytes_text(constants, m.constants), cli_bytes_text(scratch, m.scratch));
  return CLI_OK;
}

static int compile_and_show(const struct cli_call *call, const char *device, bool plan_only,
                            int (*show)(const struct cli_call *call, const quern_program *program)) {
  struct cli_values values;
  quern_program *program = NULL;
  int status = cli_values_begin(&values, call);
  if (status == CLI_OK) status = compile(&program, &values, device, NULL, plan_only);
  if (status == CLI_OK) status = show(call, program);
  quern_program_free(program);
  cli_values_end(&values);
  return status;
}

/* The counts; and with --output the program goes to a file. */
static int finish_compile(const struct cli_call *call, const quern_program *program) {
  const char *out;
  int status = print_counts(call->files[0], program);
  if (status != CLI_OK || !cli_has(call, "--output", &out)) return status;
  if (quern_program_save(program, out) != QUERN_STATUS_OK) return cli_fail("%s", quern_last_error());
  cli_print(stdout, "written to %s\n", out);
  return CLI_OK;
}

static int run_compile(const struct cli_call *call) { return compile_and_show(call, "cpu", false, finish_compile); }

static int print_plan(const struct cli_call *call, const quern_program *program) {
  (void)call;
  return cli_print_explained(program, NULL, QUERN_EXPLAIN_PLAN, "-");
}

static int run_plan(const struct cli_call *call) {
  struct cli_values values;
  if (cli_is_settings(call->files[0])) return cli_plan_settings(call);
  if (call->n_files > 1)
    return cli_usage(call->command, "takes at most 1 graph, '%s' is one more argument", call->files[1]);
  if (!cli_has(call, "--curve", NULL)) return compile_and_show(call, "null", true, print_plan);
  if (cli_has(call, "--memory", NULL)) return cli_usage(call->command, "--curve goes through all limits: no --memory");
  int status = cli_values_begin(&values, call);
  if (status == CLI_OK) status = cli_run_curve(&values);
  cli_values_end(&values);
  return status;
}

static const struct cli_option compile_options[] = {
    CLI_PROGRAM_OPTIONS, {"--output", 'o', "FILE", "save the program: quern run runs it without a C compiler"}, {0}};
static const struct cli_option plan_options[] = {
    {"--curve", 0, NULL, "what a step takes under limits from all it wants to the smallest that can be"},
    CLI_PROGRAM_OPTIONS,
    {0}};

const struct cli_command cli_command_compile = {
    .name = "compile",
    .usage = "FILE.qir [-o FILE]\n       " CLI_PROGRAM_USAGE,
    .help = "compile a graph, and save it if asked to",
    .more = "FILE - is standard input. QUERN_CACHE is the folder of the cache.\n",
    .options = compile_options,
    .least_files = 1,
    .most_files = 1,
    .run = run_compile,
};

const struct cli_command cli_command_plan = {
    .name = "plan",
    .usage = "FILE.qir [--curve] " CLI_PROGRAM_USAGE "\n"
             "       quern plan CONFIG [key=value ...] [--memory BYTES]",
    .help = "memory, kernels and operations of a graph or of training; runs nothing, and needs no compiler and no GPU",
    .more = "FILE - is standard input. A buffer of a step is written as place+offset:bytes. --curve: memory against "
            "time, predicted\n"
            "by what quern devices has measured. CONFIG is what quern train takes: the step's memory by kind, and what "
            "less of it\n"
            "would cost.\n",
    .options = plan_options,
    .least_files = 1,
    .most_files = SIZE_MAX,
    .run = run_plan,
};
