/* cli/eval.c -- the command eval: evaluate a graph with the reference evaluator
** Values of inputs come from --set, results go to the screen or to .npy files.
*/
#include "cli.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- values of inputs ----------------------------------------------------------------------------------- */

struct evaluation {
  const struct cli_call *call;
  struct cli_graph graph;
  size_t n_feeds, n_outputs;
  quern_feed *feeds;  /* one an input, in their order; data NULL: not set */
  void **fills;       /* memory made here for them, or NULL */
  void **results;     /* one an output */
  const char **paths; /* of --out, one an output; NULL: none */
};

/* A number of the dtype from all of the text. */
static bool parse_value(quern_dtype dtype, const char *text, void *element) {
  const char *name = quern_dtype_name(dtype);
  char *end = NULL;
  errno = 0;
  if (dtype == QUERN_DTYPE_BOOL) {
    bool yes = strcmp(text, "true") == 0 || strcmp(text, "1") == 0;
    *(unsigned char *)element = yes;
    return yes || strcmp(text, "false") == 0 || strcmp(text, "0") == 0;
  }
  if (text[0] == 0 || strchr(" \t\n", text[0]) != NULL) return false;
  if (name[0] == 'i' || name[0] == 'u') {
    bool is_signed = name[0] == 'i';
    if (!is_signed && text[0] == '-') return false;
    uint64_t bits = is_signed ? (uint64_t)strtoll(text, &end, 10) : strtoull(text, &end, 10), back = 0;
    quern_dtype wide = is_signed ? QUERN_DTYPE_I64 : QUERN_DTYPE_U64;
    if (errno != 0 || end == text || *end != 0) return false;
    return quern_dtype_convert(element, dtype, &bits, wide, 1) == QUERN_STATUS_OK &&
           quern_dtype_convert(&back, wide, element, dtype, 1) == QUERN_STATUS_OK && back == bits;
  }
  double x = strtod(text, &end);
  return end != text && *end == 0 && quern_dtype_convert(element, dtype, &x, QUERN_DTYPE_F64, 1) == QUERN_STATUS_OK;
}

/* Fills input i with one value. */
static int set_value(struct evaluation *ev, size_t i, const char *text) {
  const quern_tensor *leaf = ev->feeds[i].leaf;
  size_t bytes = quern_tensor_bytes(leaf), size = quern_dtype_size(quern_tensor_dtype(leaf));
  unsigned char element[8] = {0};
  if (!parse_value(quern_tensor_dtype(leaf), text, element))
    return cli_fail("--set %s=%s: that is no %s HINT: @FILE.npy reads a file", quern_tensor_name(leaf), text,
                    quern_dtype_name(quern_tensor_dtype(leaf)));
  char *data = malloc(bytes > 0 ? bytes : 1);
  if (data == NULL) return cli_fail("--set %s: no memory for %zu bytes", quern_tensor_name(leaf), bytes);
  for (size_t at = 0; at < bytes; at += size) memcpy(data + at, element, size);
  ev->fills[i] = data;
  ev->feeds[i].data = data;
  return CLI_OK;
}

/* Gives input i the elements of a file. */
static int set_file(struct evaluation *ev, size_t i, const char *path) {
  const quern_tensor *leaf = ev->feeds[i].leaf;
  quern_tensor *x;
  if (quern_npy_read(ev->graph.ctx, path, &x) != QUERN_STATUS_OK) return cli_fail("%s", quern_last_error());
  bool same = quern_tensor_dtype(x) == quern_tensor_dtype(leaf) && quern_tensor_rank(x) == quern_tensor_rank(leaf);
  for (int k = 0; same && k < quern_tensor_rank(x); k++) same = quern_tensor_dim(x, k) == quern_tensor_dim(leaf, k);
  if (!same) {
    fprintf(stderr, "quern: --set %s: the input is ", quern_tensor_name(leaf));
    cli_print_type(stderr, leaf);
    fprintf(stderr, ", %s holds ", path);
    cli_print_type(stderr, x);
    fputc('\n', stderr);
    return CLI_FAILED;
  }
  ev->feeds[i].data = quern_tensor_data(x);
  return CLI_OK;
}

static int unknown_input(struct evaluation *ev, const char *name) {
  const char **names = calloc(ev->n_feeds + 1, sizeof *names);
  if (names == NULL) return cli_fail("no memory");
  for (size_t i = 0; i < ev->n_feeds; i++) names[i] = quern_tensor_name(ev->feeds[i].leaf);
  const char *nearest = cli_nearest(name, ev->n_feeds, names);
  cli_fail("--set %s: the graph has no such input%s%s%s", name, nearest != NULL ? "; did you mean '" : "",
           nearest != NULL ? nearest : "", nearest != NULL ? "'?" : "");
  free(names);
  return CLI_FAILED;
}

/* --set name=VALUE or name=@FILE, for every input of that name. */
static int set_input(struct evaluation *ev, const char *text) {
  const char *equals = strchr(text, '=');
  if (equals == NULL) return cli_usage(ev->call->command, "--set %s: expected NAME=VALUE or NAME=@FILE.npy", text);
  size_t length = (size_t)(equals - text), found = 0;
  char *name = malloc(length + 1);
  if (name == NULL) return cli_fail("no memory");
  memcpy(name, text, length);
  name[length] = 0;
  int status = CLI_OK;
  for (size_t i = 0; i < ev->n_feeds && status == CLI_OK; i++) {
    if (strcmp(quern_tensor_name(ev->feeds[i].leaf), name) != 0) continue;
    found++;
    if (ev->feeds[i].data != NULL)
      status = cli_fail("--set %s: it is set twice", name);
    else
      status = equals[1] == '@' ? set_file(ev, i, equals + 2) : set_value(ev, i, equals + 1);
  }
  if (found == 0) status = unknown_input(ev, name);
  free(name);
  return status;
}

/* ---- results -------------------------------------------------------------------------------------------- */

/* The name of output i, or its number. */
static const char *output_name(const struct evaluation *ev, size_t i, char number[24]) {
  const char *name = quern_graph_output_name(ev->graph.graph, i);
  if (name != NULL) return name;
  snprintf(number, 24, "%zu", i);
  return number;
}

/* --out name=FILE, where a number names an output as well. */
static int set_output(struct evaluation *ev, const char *text) {
  const char *equals = strchr(text, '=');
  if (equals == NULL || equals[1] == 0) return cli_usage(ev->call->command, "--out %s: expected NAME=FILE.npy", text);
  size_t length = (size_t)(equals - text);
  for (size_t i = 0; i < ev->n_outputs; i++) {
    char number[24];
    const char *name = output_name(ev, i, number);
    if (strlen(name) != length || strncmp(name, text, length) != 0) continue;
    if (ev->paths[i] != NULL) return cli_fail("--out %.*s: it is given twice", (int)length, text);
    ev->paths[i] = equals + 1;
    return CLI_OK;
  }
  cli_fail("--out %.*s: the graph has no such output", (int)length, text);
  fprintf(stderr, "  HINT: it has");
  for (size_t i = 0; i < ev->n_outputs; i++) fprintf(stderr, " %s", output_name(ev, i, (char[24]){0}));
  fputc('\n', stderr);
  return CLI_FAILED;
}

static int write_output(const struct evaluation *ev, size_t i, const char *path) {
  const quern_tensor *x = quern_graph_output(ev->graph.graph, i);
  if (quern_npy_write(path, quern_tensor_dtype(x), quern_tensor_rank(x), quern_tensor_dims(x), ev->results[i]) !=
      QUERN_STATUS_OK)
    return cli_fail("%s", quern_last_error());
  printf("%s: ", output_name(ev, i, (char[24]){0}));
  cli_print_type(stdout, x);
  printf(" written to %s\n", path);
  return CLI_OK;
}

enum { PATH_BYTES = 4096 };

/* The file of output i in the folder of --out-dir; a slash in a name does not lead out of it. */
static int folder_path(const struct evaluation *ev, size_t i, const char *folder, char path[PATH_BYTES]) {
  char number[24];
  const char *name = output_name(ev, i, number);
  int n = snprintf(path, PATH_BYTES, "%s/%s.npy", folder, name);
  if (n < 0 || n >= PATH_BYTES) return cli_fail("%s/%s.npy: the path is too long", folder, name);
  for (char *c = path + strlen(folder) + 1; *c != 0; c++) {
    if (*c == '/') *c = '_';
  }
  return CLI_OK;
}

static int write_to_folder(const struct evaluation *ev, size_t i, const char *folder) {
  char path[PATH_BYTES], other[PATH_BYTES];
  int status = folder_path(ev, i, folder, path);
  for (size_t j = 0; j < i && status == CLI_OK; j++) {
    if (ev->paths[j] == NULL && folder_path(ev, j, folder, other) == CLI_OK && strcmp(path, other) == 0)
      status = cli_fail("outputs %zu and %zu both go to %s HINT: --out NAME=FILE.npy for one of them", j, i, path);
  }
  return status == CLI_OK ? write_output(ev, i, path) : status;
}

static int show_results(const struct evaluation *ev) {
  const char *folder = NULL;
  cli_has(ev->call, "--out-dir", &folder);
  int status = CLI_OK;
  for (size_t i = 0; i < ev->n_outputs && status == CLI_OK; i++) {
    const quern_tensor *x = quern_graph_output(ev->graph.graph, i);
    if (ev->paths[i] != NULL) {
      status = write_output(ev, i, ev->paths[i]);
    } else if (folder != NULL) {
      status = write_to_folder(ev, i, folder);
    } else {
      printf("%s: ", output_name(ev, i, (char[24]){0}));
      cli_print_type(stdout, x);
      fputc('\n', stdout);
      cli_print_array(stdout, quern_tensor_dtype(x), quern_tensor_rank(x), quern_tensor_dims(x), ev->results[i]);
    }
  }
  return status;
}

/* ---- the command ---------------------------------------------------------------------------------------- */

static int read_given(struct evaluation *ev) {
  int status = CLI_OK;
  for (size_t i = 0; i < ev->call->n_given && status == CLI_OK; i++) {
    const struct cli_given *given = &ev->call->given[i];
    if (strcmp(given->option->name, "--set") == 0) status = set_input(ev, given->value);
    if (strcmp(given->option->name, "--out") == 0) status = set_output(ev, given->value);
  }
  return status;
}

/* Leaves out the inputs that are not set: the evaluator says which of them it misses. */
static size_t drop_unset(quern_feed *feeds, size_t n) {
  size_t kept = 0;
  for (size_t i = 0; i < n; i++) {
    if (feeds[i].data != NULL) feeds[kept++] = feeds[i];
  }
  return kept;
}

static int evaluate(struct evaluation *ev) {
  quern_graph *graph = ev->graph.graph;
  const char *path = ev->call->files[0];
  quern_tensor **outputs = calloc(ev->n_outputs + 1, sizeof *outputs);
  if (outputs == NULL) return cli_fail("no memory");
  int status = CLI_OK;
  for (size_t i = 0; i < ev->n_outputs && status == CLI_OK; i++) {
    size_t bytes = quern_tensor_bytes(outputs[i] = quern_graph_output(graph, i));
    ev->results[i] = malloc(bytes > 0 ? bytes : 1);
    if (ev->results[i] == NULL) status = cli_fail("%s: no memory for output %zu of %zu bytes", path, i, bytes);
  }
  size_t n_set = drop_unset(ev->feeds, ev->n_feeds);
  if (status == CLI_OK &&
      quern_eval(ev->graph.ctx, ev->n_outputs, outputs, ev->results, n_set, ev->feeds) != QUERN_STATUS_OK) {
    status = cli_fail_last(path);
    if (quern_last_status() == QUERN_STATUS_UNBOUND)
      fprintf(stderr, "  HINT: --set NAME=VALUE, or --set NAME=@FILE.npy\n");
  }
  free(outputs);
  return status;
}

static int run_evaluation(struct evaluation *ev) {
  quern_graph *graph = ev->graph.graph;
  ev->n_feeds = quern_graph_inputs(graph);
  ev->n_outputs = quern_graph_outputs(graph);
  ev->feeds = calloc(ev->n_feeds + 1, sizeof *ev->feeds);
  ev->fills = calloc(ev->n_feeds + 1, sizeof *ev->fills);
  ev->results = calloc(ev->n_outputs + 1, sizeof *ev->results);
  ev->paths = calloc(ev->n_outputs + 1, sizeof *ev->paths);
  if (ev->feeds == NULL || ev->fills == NULL || ev->results == NULL || ev->paths == NULL) return cli_fail("no memory");
  for (size_t i = 0; i < ev->n_feeds; i++) ev->feeds[i].leaf = quern_graph_input(graph, i);
  int status = read_given(ev);
  if (status == CLI_OK && cli_has(ev->call, "--rewrite", NULL) && quern_graph_rewrite(graph, false) != QUERN_STATUS_OK)
    status = cli_fail_last(ev->call->files[0]);
  if (status == CLI_OK) status = evaluate(ev);
  return status == CLI_OK ? show_results(ev) : status;
}

static int run(const struct cli_call *call) {
  struct evaluation ev = {.call = call};
  int status = cli_graph_begin(&ev.graph, call->files[0]);
  if (status == CLI_OK) status = run_evaluation(&ev);
  for (size_t i = 0; i < ev.n_feeds && ev.fills != NULL; i++) free(ev.fills[i]);
  for (size_t i = 0; i < ev.n_outputs && ev.results != NULL; i++) free(ev.results[i]);
  free(ev.feeds);
  free(ev.fills);
  free(ev.results);
  free(ev.paths);
  cli_graph_end(&ev.graph);
  return status;
}

static const struct cli_option options[] = {
    {"--set", 0, "NAME=VALUE", "fill an input with a number, or with a file's elements: NAME=@FILE.npy"},
    {"--out", 0, "NAME=FILE", "write an output to a .npy file instead of showing it"},
    {"--out-dir", 0, "DIR", "write every output to DIR/NAME.npy"},
    {"--rewrite", 0, NULL, "simplify by the exact rules first"},
    {0},
};

const struct cli_command cli_command_eval = {
    .name = "eval",
    .usage = "FILE.qir [--set NAME=VALUE ...] [--out NAME=FILE.npy ...] [--out-dir DIR] [--rewrite]",
    .help = "evaluate a graph and show its outputs",
    .more = "FILE - is standard input. An output without a name goes by its number: --out 0=y.npy.\n",
    .options = options,
    .least_files = 1,
    .most_files = 1,
    .run = run,
};
