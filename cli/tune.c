/* cli/tune.c -- the command tune: schedules that are faster on this machine, into a file of wisdom */
#include "cli.h"

static bool on_kernel(void *user, const char *kernel, double before, double after, const char *line) {
  int *found = user;
  bool faster = line[0] != 0;
  *found += faster;
  printf("%-44s %9.1f us", kernel, 1e6 * before);
  if (faster)
    printf(" -> %9.1f us  %4.2fx  %s", 1e6 * after, before / after, line);
  else
    printf("    nothing is faster\n");
  fflush(stdout);
  return !cli_interrupted();
}

static bool on_candidate(void *user) {
  (void)user;
  return cli_interrupted();
}

static int tune(const struct cli_values *values) {
  const struct cli_call *call = values->call;
  quern_program_options options;
  quern_tune_options how = QUERN_INIT(quern_tune_options);
  char list[512];
  int found = 0;
  int64_t kernels = 8;
  how.path = "quern.wisdom";
  how.progress = on_kernel;
  how.stop = on_candidate;
  how.user = &found;
  cli_has(call, "--wisdom", &how.path);
  int status = cli_number(call, "--kernels", 1, 64, &kernels);
  if (status == CLI_OK) status = cli_program_options(values, "cpu", NULL, list, &options);
  if (status != CLI_OK) return status;
  how.kernels = (int)kernels;
  cli_catch_interrupt();
  if (quern_program_tune(values->graph.ctx, values->n_outs, values->outputs, &options, &how) != QUERN_STATUS_OK)
    return cli_fail_last(call->files[0]);
  if (cli_interrupted()) fprintf(stderr, "quern: interrupted; what was found is kept\n");
  cli_print(stdout, "%s: %d line%s new; QUERN_WISDOM=%s uses it\n", how.path, found, found == 1 ? "" : "s", how.path);
  return cli_interrupted() ? CLI_INTERRUPTED : CLI_OK;
}

static int run(const struct cli_call *call) {
  struct cli_values values = {0};
  int status = cli_values_begin(&values, call);
  if (status == CLI_OK) status = tune(&values);
  cli_values_end(&values);
  return status;
}

static const struct cli_option options[] = {
    {"--wisdom", 0, "FILE", "the file that lines are added to (quern.wisdom)"},
    {"--kernels", 0, "N", "kernels that are looked at, those that take most time first (8)"},
    CLI_PROGRAM_OPTIONS,
    {0}};

const struct cli_command cli_command_tune = {
    .name = "tune",
    .usage = "FILE.qir [--wisdom FILE] [--kernels N]\n       " CLI_PROGRAM_USAGE,
    .help = "time other schedules of a graph's kernels, and keep the faster ones in a file of wisdom",
    .more =
        "FILE - is standard input. QUERN_WISDOM=FILE makes every command use what was found; it changes speed, never "
        "bits. Ctrl-C\n"
        "keeps what was found until then. Products by cuBLASLt are chosen by QUERN_TUNE=1 instead, which may change "
        "their last bits.\n",
    .options = options,
    .least_files = 1,
    .most_files = 1,
    .run = run,
};
