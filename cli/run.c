/* cli/run.c -- the commands that run compiled programs: run, and explain, which may */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

/* A program with an instance and where its inputs are. */
struct side {
  quern_program *program;
  quern_instance *instance;
  const void **inputs;
  void **copies; /* of the inputs, for each run anew; NULL: a run overwrites none */
};

/* A graph on its way through a run: by the options, and perhaps without fusion to be compared with. */
enum { FUSED, UNFUSED, SIDES };
enum { TIMES = 1 << 16 };
struct execution {
  const struct cli_call *call;
  struct cli_values values;
  struct side sides[SIDES];
  void **outputs;
  int64_t runs;  /* that were made of the first side */
  double *times; /* seconds of the last TIMES of them; NULL: they are not timed */
};

/* ---- compiling or loading ------------------------------------------------------------------------------- */

static int load(struct execution *ex) {
  const char *option = cli_first_given(ex->call, "");
  if (option != NULL) return cli_fail("%s is compiled already: %s comes too late", ex->call->files[0], option);
  if (quern_program_load(&ex->sides[FUSED].program, ex->call->files[0]) != QUERN_STATUS_OK)
    return cli_fail("%s", quern_last_error());
  return cli_values_begin_program(&ex->values, ex->call, ex->sides[FUSED].program);
}

/* Reads values and programs; compare: with one that is not fused. */
static int begin(struct execution *ex, const char *device, bool compare) {
  bool compiled = cli_is_program(ex->call->files[0]);
  if (compiled && compare) return cli_fail("%s is compiled already: fusion is measured on graphs", ex->call->files[0]);
  int status = compiled ? load(ex) : cli_values_begin(&ex->values, ex->call);
  for (int i = 0; i < (compare ? SIDES : 1) && status == CLI_OK && !compiled; i++)
    status = cli_compile(&ex->sides[i].program, &ex->values, device, i == UNFUSED ? "-fuse" : NULL);
  return status == CLI_OK ? cli_dynamic_batch_outputs(&ex->values, ex->sides[FUSED].program) : status;
}

static void end(struct execution *ex) {
  for (int i = 0; i < SIDES; i++) {
    struct side *side = &ex->sides[i];
    for (size_t k = 0; side->copies != NULL && k < quern_program_input_count(side->program); k++) free(side->copies[k]);
    free(side->copies);
    free(side->inputs);
    quern_instance_free(side->instance);
    quern_program_free(side->program);
  }
  free(ex->outputs);
  free(ex->times);
  cli_values_end(&ex->values);
}

/* ---- values to slots ------------------------------------------------------------------------------------ */

static int bind_inputs(struct execution *ex, struct side *side) {
  size_t n = quern_program_input_count(side->program);
  side->inputs = calloc(n + 1, sizeof *side->inputs);
  if (side->inputs == NULL) return cli_fail("no memory");
  for (size_t i = 0; i < n; i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    if (quern_program_input(side->program, i, &slot) != QUERN_STATUS_OK) return cli_fail_last(ex->call->files[0]);
    const struct cli_slot *value = cli_values_find(&ex->values, &slot);
    side->inputs[i] = value != NULL ? value->data : NULL;
    if (side->inputs[i] != NULL || slot.bytes == 0) continue;
    return cli_fail("%s: input '%s' is not set\n  HINT: --set NAME=VALUE, --set NAME=@FILE.npy, or --fill for all",
                    ex->call->files[0], slot.name != NULL ? slot.name : "");
  }
  return CLI_OK;
}

/* Inputs of --donate may be overwritten, and which of a program's from a file is not known: every run has copies of all. */
static int copy_inputs(struct execution *ex, struct side *side) {
  size_t n = quern_program_input_count(side->program);
  if (ex->values.n_donated == 0 && ex->values.graph.graph != NULL) return CLI_OK;
  if (side->copies == NULL) side->copies = calloc(n + 1, sizeof *side->copies);
  if (side->copies == NULL) return cli_fail("no memory");
  for (size_t i = 0; i < n; i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    if (quern_program_input(side->program, i, &slot) != QUERN_STATUS_OK) return cli_fail_last(ex->call->files[0]);
    const struct cli_slot *value = cli_values_find(&ex->values, &slot);
    if (value == NULL || value->type.bytes == 0) continue;
    if (side->copies[i] == NULL) side->copies[i] = malloc(value->type.bytes);
    if (side->copies[i] == NULL) return cli_fail("no memory");
    memcpy(side->copies[i], value->data, value->type.bytes);
    side->inputs[i] = side->copies[i];
  }
  return CLI_OK;
}

/* States that are not set are zero. */
static int bind_states(struct execution *ex, struct side *side) {
  for (size_t i = 0; i < quern_program_state_count(side->program); i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    if (quern_program_state(side->program, i, &slot) != QUERN_STATUS_OK) return cli_fail_last(ex->call->files[0]);
    const struct cli_slot *value = cli_values_find(&ex->values, &slot);
    void *zeros = value != NULL && value->data != NULL ? NULL : calloc(slot.bytes + 1, 1);
    const void *data = zeros != NULL || value == NULL ? zeros : value->data;
    quern_status status = data != NULL ? quern_instance_set_state(side->instance, i, data) : QUERN_STATUS_MEMORY;
    free(zeros);
    if (status != QUERN_STATUS_OK)
      return cli_fail("%s: %s", ex->call->files[0], data != NULL ? quern_last_error() : "no memory");
  }
  return CLI_OK;
}

/* ---- running -------------------------------------------------------------------------------------------- */

static int open_side(struct execution *ex, struct side *side) {
  if (quern_instance_new(&side->instance, side->program) != QUERN_STATUS_OK) return cli_fail_last(ex->call->files[0]);
  bool rows = quern_program_dynamic_batch(side->program) > 0;
  if (rows && quern_instance_set_dynamic_batch(side->instance, ex->values.rows) != QUERN_STATUS_OK)
    return cli_fail_last(ex->call->files[0]);
  int status = bind_inputs(ex, side);
  return status == CLI_OK ? bind_states(ex, side) : status;
}

static int run_side(struct execution *ex, struct side *side) {
  int status = copy_inputs(ex, side);
  if (status != CLI_OK) return status;
  double start = cli_seconds();
  bool good = quern_instance_run(side->instance, side->inputs, ex->outputs) == QUERN_STATUS_OK;
  if (ex->times != NULL && side == &ex->sides[FUSED]) ex->times[ex->runs++ % TIMES] = cli_seconds() - start;
  return good ? CLI_OK : cli_fail_last(ex->call->files[0]);
}

static int compare_times(const void *a, const void *b) {
  double x, y;
  memcpy(&x, a, sizeof x);
  memcpy(&y, b, sizeof y);
  return (x > y) - (x < y);
}

static void print_times(const struct execution *ex) {
  size_t n = ex->runs < TIMES ? (size_t)ex->runs : TIMES;
  if (n == 0) return;
  qsort(ex->times, n, sizeof *ex->times, compare_times);
  double median = (ex->times[(n - 1) / 2] + ex->times[n / 2]) / 2;
  printf("%lld run%s: median %.4g ms, least %.4g ms\n", (long long)ex->runs, ex->runs == 1 ? "" : "s", 1e3 * median,
         1e3 * ex->times[0]);
}

/* A run that warms up; then everything is as before, and recorded from now on. */
static int start_record(struct execution *ex, struct side *side) {
  int status = run_side(ex, side);
  ex->runs = 0;
  if (status == CLI_OK) status = bind_states(ex, side);
  if (status == CLI_OK && quern_instance_record(side->instance, true) != QUERN_STATUS_OK)
    status = cli_fail_last(ex->call->files[0]);
  return status;
}

/* Runs all sides n times, round-robin, or until Ctrl-C. */
static int run_times(struct execution *ex, int64_t n, bool record) {
  int n_sides = ex->sides[UNFUSED].program != NULL ? SIDES : 1, status = CLI_OK;
  ex->outputs = calloc(ex->values.n_outs + 1, sizeof *ex->outputs);
  if (ex->outputs == NULL) return cli_fail("no memory");
  for (size_t i = 0; i < ex->values.n_outs; i++) ex->outputs[i] = ex->values.outs[i].fill;
  for (int i = 0; i < n_sides && status == CLI_OK; i++) status = open_side(ex, &ex->sides[i]);
  for (int i = 0; i < n_sides && status == CLI_OK && record; i++) status = start_record(ex, &ex->sides[i]);
  cli_catch_interrupt();
  for (int64_t k = 0; k < n && status == CLI_OK && !cli_interrupted(); k++)
    for (int i = 0; i < n_sides && status == CLI_OK; i++) status = run_side(ex, &ex->sides[i]);
  if (cli_interrupted()) fprintf(stderr, "quern: interrupted\n");
  return status;
}

static int write_profile(const struct execution *ex, quern_profile_form form, const char *path) {
  char *text = NULL;
  const struct side *side = &ex->sides[FUSED];
  if (quern_program_profile(side->program, side->instance, form, &text) != QUERN_STATUS_OK)
    return cli_fail_last("profile");
  int status = cli_write(path, text);
  quern_free_text(text);
  return status;
}

static int execute(struct execution *ex) {
  const struct cli_call *call = ex->call;
  const char *trace = NULL, *folded = NULL;
  bool profile = cli_has(call, "--profile", NULL);
  int64_t runs = 1;
  cli_has(call, "--trace", &trace);
  cli_has(call, "--folded", &folded);
  bool record = profile || trace != NULL || folded != NULL;
  int status = cli_number(call, "--runs", 1, 1000000000, &runs);
  bool quiet = cli_has(call, "--quiet", NULL);
  if (cli_has(call, "--runs", NULL) && !quiet && status == CLI_OK) {
    ex->times = malloc(TIMES * sizeof *ex->times);
    if (ex->times == NULL) return cli_fail("no memory");
  }
  if (status == CLI_OK) status = begin(ex, "cpu", false);
  if (status == CLI_OK && cli_has(call, "--fill", NULL)) status = cli_values_fill(&ex->values);
  if (status == CLI_OK) status = run_times(ex, runs, record);
  if (status == CLI_OK) status = cli_values_show(&ex->values);
  if (status == CLI_OK && !quiet) print_times(ex);
  if (status == CLI_OK && profile) status = write_profile(ex, QUERN_PROFILE_TABLE, "-");
  if (status == CLI_OK && trace != NULL) status = write_profile(ex, QUERN_PROFILE_TRACE, trace);
  if (status == CLI_OK && folded != NULL) status = write_profile(ex, QUERN_PROFILE_FOLDED, folded);
  return status == CLI_OK && cli_interrupted() ? CLI_INTERRUPTED : status;
}

static int run(const struct cli_call *call) {
  struct execution ex = {.call = call};
  int status = execute(&ex);
  end(&ex);
  return status;
}

static const struct cli_option run_options[] = {
    CLI_VALUE_OPTIONS,
    {"--fill", 0, NULL, "inputs and states that are not set get numbers in [-1, 1)"},
    CLI_PROGRAM_OPTIONS,
    {"--rows", 0, "N", "rows of the dynamic batch; without it as many as it has"},
    {"--runs", 0, "N", "run so often, and report how long a run takes; the outputs are those of the last one (1)"},
    {"--quiet", 0, NULL, "print no outputs and no times; those of --out and --out-dir are written all the same"},
    {"--profile", 0, NULL, "a table of kernels by time"},
    {"--trace", 0, "FILE", "write when each kernel ran: JSON that Perfetto opens"},
    {"--folded", 0, "FILE", "write stacks that flame-graph programs read"},
    {0},
};

const struct cli_command cli_command_run = {
    .name = "run",
    .usage = "FILE [--set NAME=VALUE ...] [--fill] [--out NAME=FILE.npy ...] [--out-dir DIR] [--runs N] [--rows N]\n"
             "       " CLI_PROGRAM_USAGE "\n"
             "       [--quiet] [--profile] [--trace FILE] [--folded FILE]",
    .help = "compile a graph, run it and show its outputs",
    .more =
        "FILE - is standard input. An output without a name goes by its number: --out 0=y.npy. States that are not\n"
        "set start at zero. With --profile, --trace or --folded the first run warms up and is not recorded; Ctrl-C\n"
        "ends the runs and shows what was recorded. QUERN_DEBUG=2 logs each kernel as it runs.\n",
    .options = run_options,
    .least_files = 1,
    .most_files = 1,
    .run = run,
};

/* ---- explain ---------------------------------------------------------------------------------------------- */

static const struct {
  const char *option;
  quern_explain_form form;
} forms[] = {{"--graphviz", QUERN_EXPLAIN_GRAPHVIZ},
             {"--source", QUERN_EXPLAIN_SOURCE},
             {"--fusion", QUERN_EXPLAIN_FUSION},
             {"--plan", QUERN_EXPLAIN_PLAN}};

static int print_comparison(const struct execution *ex, const char *out) {
  const struct side *fused = &ex->sides[FUSED], *unfused = &ex->sides[UNFUSED];
  char *text = NULL;
  if (quern_program_compare(fused->program, fused->instance, unfused->program, unfused->instance, &text) !=
      QUERN_STATUS_OK)
    return cli_fail_last("compare");
  int status = cli_write(out, text);
  quern_free_text(text);
  return status;
}

static int explain(struct execution *ex) {
  const struct cli_call *call = ex->call;
  const char *out = "-";
  quern_explain_form form = QUERN_EXPLAIN_ROOFLINE;
  int64_t runs = 0, given = 0;
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
    if (!cli_has(call, forms[i].option, NULL)) continue;
    form = forms[i].form;
    given++;
  }
  if (given > 1) return cli_usage(call->command, "--graphviz, --source, --fusion and --plan exclude each other");
  cli_has(call, "--output", &out);
  int status = cli_number(call, "--run", 1, 1000000000, &runs);
  bool compare = form == QUERN_EXPLAIN_FUSION && runs > 0;
  if (status == CLI_OK) status = begin(ex, runs > 0 ? "cpu" : "null", compare);
  if (status == CLI_OK && runs > 0) status = cli_values_fill(&ex->values);
  if (status == CLI_OK && runs > 0) status = run_times(ex, runs, true);
  if (status != CLI_OK) return status;
  if (compare) return print_comparison(ex, out);
  return cli_print_explained(ex->sides[FUSED].program, ex->sides[FUSED].instance, form, out);
}

static int run_explain(const struct cli_call *call) {
  struct execution ex = {.call = call};
  int status = explain(&ex);
  end(&ex);
  return status;
}

static const struct cli_option explain_options[] = {
    {"--graphviz", 0, NULL, "the fused groups as a picture for Graphviz"},
    {"--source", 0, NULL, "the C of the kernels"},
    {"--fusion", 0, NULL, "what fusing each group was estimated to gain; with --run, what it does gain"},
    {"--plan", 0, NULL, "steps, buffers and bytes"},
    {"--run", 0, "N", "run N times first, so that times are known"},
    {"--set", 0, "NAME=VALUE", "of --run: fill an input with a number, or with a file's elements: NAME=@FILE.npy"},
    CLI_PROGRAM_OPTIONS,
    {"--output", 'o', "FILE", "write there instead of to standard output"},
    {0},
};

const struct cli_command cli_command_explain = {
    .name = "explain",
    .usage = "FILE [--dot | --source | --fusion | --plan] [--run N] [-o FILE]\n       " CLI_PROGRAM_USAGE,
    .help = "what a graph compiles to: each kernel's work and the least time it can take on this machine",
    .more = "FILE is a graph (- for standard input), or a program that quern compile -o saved. The machine's limits "
            "are measured once, see quern devices. With --run, inputs\n"
            "and states that are not set get numbers in [-1, 1), and kernels are sorted by the time they lose.\n",
    .options = explain_options,
    .least_files = 1,
    .most_files = 1,
    .run = run_explain,
};
