/* cli/values.c -- what goes into a graph and what comes out: --set, --out and --out-dir of eval and run
** Values of inputs come from --set, results go to the screen or to .npy files.
*/
#include "cli.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- values of inputs ----------------------------------------------------------------------------------- */

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

/* Memory of an input that is made here. */
static char *make_room(struct cli_slot *in) {
  in->fill = malloc(in->type.bytes > 0 ? in->type.bytes : 1);
  in->data = in->fill;
  if (in->fill == NULL) cli_fail("no memory for %zu bytes of input %s", in->type.bytes, in->type.name);
  return in->fill;
}

/* Fills an input with one value. */
static int set_value(struct cli_slot *in, const char *text) {
  size_t size = quern_dtype_size(in->type.dtype);
  unsigned char element[8] = {0};
  if (!parse_value(in->type.dtype, text, element))
    return cli_fail("--set %s=%s: that is no %s HINT: @FILE.npy reads a file", in->type.name, text,
                    quern_dtype_name(in->type.dtype));
  char *data = make_room(in);
  for (size_t at = 0; data != NULL && at < in->type.bytes; at += size) memcpy(data + at, element, size);
  return data != NULL ? CLI_OK : CLI_FAILED;
}

/* Gives an input the elements of a file. */
static int set_file(struct cli_values *v, struct cli_slot *in, const char *path) {
  quern_tensor *x;
  if (quern_npy_read(v->graph.ctx, path, &x) != QUERN_STATUS_OK) return cli_fail("%s", quern_last_error());
  bool same = quern_tensor_dtype(x) == in->type.dtype && quern_tensor_rank(x) == in->type.rank;
  for (int k = 0; same && k < in->type.rank; k++) same = quern_tensor_dim(x, k) == in->type.dims[k];
  if (!same) {
    cli_print(stderr, "quern: --set %s: the input is ", in->type.name);
    cli_print_type(stderr, in->type.dtype, in->type.rank, in->type.dims);
    cli_print(stderr, ", %s holds ", path);
    cli_print_type(stderr, quern_tensor_dtype(x), quern_tensor_rank(x), quern_tensor_dims(x));
    fputc('\n', stderr);
    return CLI_FAILED;
  }
  in->data = quern_tensor_data(x);
  return CLI_OK;
}

static const char *name_of(const struct cli_slot *in) { return in->type.name != NULL ? in->type.name : ""; }

static int unknown_input(const struct cli_values *v, const char *option, const char *name) {
  const char **names = calloc(v->n_ins + 1, sizeof *names);
  if (names == NULL) return cli_fail("no memory");
  for (size_t i = 0; i < v->n_ins; i++) names[i] = name_of(&v->ins[i]);
  const char *nearest = cli_nearest(name, v->n_ins, names);
  cli_fail("%s %s: the graph has no such input%s%s%s", option, name, nearest != NULL ? "; did you mean '" : "",
           nearest != NULL ? nearest : "", nearest != NULL ? "'?" : "");
  free(names);
  return CLI_FAILED;
}

/* --set name=VALUE or name=@FILE, for every input of that name. */
static int set_input(struct cli_values *v, const char *text) {
  const char *equals = strchr(text, '=');
  if (equals == NULL) return cli_usage(v->call->command, "--set %s: expected NAME=VALUE or NAME=@FILE.npy", text);
  size_t length = (size_t)(equals - text), found = 0;
  char *name = malloc(length + 1);
  if (name == NULL) return cli_fail("no memory");
  memcpy(name, text, length);
  name[length] = 0;
  int status = CLI_OK;
  for (size_t i = 0; i < v->n_ins && status == CLI_OK; i++) {
    if (strcmp(name_of(&v->ins[i]), name) != 0) continue;
    found++;
    if (v->ins[i].data != NULL)
      status = cli_fail("--set %s: it is set twice", name);
    else
      status = equals[1] == '@' ? set_file(v, &v->ins[i], equals + 2) : set_value(&v->ins[i], equals + 1);
  }
  if (found == 0) status = unknown_input(v, "--set", name);
  free(name);
  return status;
}

/* Adds the first input of that name to a list that has n, unless it is there. */
static int add_named(const struct cli_values *v, const char *option, const char *name, size_t n, quern_tensor **list) {
  size_t i = 0;
  while (i < v->n_ins && strcmp(name_of(&v->ins[i]), name) != 0) i++;
  if (i == v->n_ins) return unknown_input(v, option, name);
  list[n] = quern_graph_input(v->graph.graph, i);
  for (size_t k = 0; k < n; k++)
    if (list[k] == list[n]) return cli_fail("%s: %s is named twice", option, name);
  return CLI_OK;
}

int cli_values_named(const struct cli_values *v, const char *option, size_t *n, quern_tensor ***list) {
  const char *text;
  if (!cli_has(v->call, option, &text)) return CLI_OK;
  size_t bytes = strlen(text) + 1;
  char *names = malloc(bytes);
  *list = calloc(v->n_ins + 1, sizeof **list);
  if (names == NULL || *list == NULL) {
    free(names);
    return cli_fail("no memory");
  }
  memcpy(names, text, bytes);
  int status = CLI_OK;
  for (char *name = names, *end; status == CLI_OK && name != NULL; name = end) {
    end = strchr(name, ',');
    if (end != NULL) *end++ = 0;
    status = add_named(v, option, name, *n, *list);
    *n += status == CLI_OK;
  }
  free(names);
  return status;
}

/* ---- results -------------------------------------------------------------------------------------------- */

/* The name of output i, or its number. */
static const char *output_name(const struct cli_values *v, size_t i, char number[24]) {
  if (v->outs[i].type.name != NULL) return v->outs[i].type.name;
  snprintf(number, 24, "%zu", i);
  return number;
}

/* --out name=FILE, where a number names an output as well. */
static int set_output(struct cli_values *v, const char *text) {
  const char *equals = strchr(text, '=');
  if (equals == NULL || equals[1] == 0) return cli_usage(v->call->command, "--out %s: expected NAME=FILE.npy", text);
  size_t length = (size_t)(equals - text);
  for (size_t i = 0; i < v->n_outs; i++) {
    char number[24];
    const char *name = output_name(v, i, number);
    if (strlen(name) != length || strncmp(name, text, length) != 0) continue;
    if (v->outs[i].path != NULL) return cli_fail("--out %.*s: it is given twice", (int)length, text);
    v->outs[i].path = equals + 1;
    return CLI_OK;
  }
  cli_fail("--out %.*s: the graph has no such output", (int)length, text);
  fprintf(stderr, "  HINT: it has");
  for (size_t i = 0; i < v->n_outs; i++) cli_print(stderr, " %s", output_name(v, i, (char[24]){0}));
  fputc('\n', stderr);
  return CLI_FAILED;
}

static void print_title(const struct cli_values *v, size_t i) {
  const quern_slot *type = &v->outs[i].type;
  cli_print(stdout, "%s: ", output_name(v, i, (char[24]){0}));
  cli_print_type(stdout, type->dtype, type->rank, type->dims);
}

static bool is_quiet(const struct cli_values *v) { return cli_has(v->call, "--quiet", NULL); }

static int write_output(const struct cli_values *v, size_t i, const char *path) {
  const quern_slot *type = &v->outs[i].type;
  if (quern_npy_write(path, type->dtype, type->rank, type->dims, v->outs[i].fill) != QUERN_STATUS_OK)
    return cli_fail("%s", quern_last_error());
  if (is_quiet(v)) return CLI_OK;
  print_title(v, i);
  cli_print(stdout, " written to %s\n", path);
  return CLI_OK;
}

enum { PATH_BYTES = 4096 };

/* The file of output i in the folder of --out-dir; a slash in a name does not lead out of it. */
static int folder_path(const struct cli_values *v, size_t i, const char *folder, char path[PATH_BYTES]) {
  char number[24];
  const char *name = output_name(v, i, number);
  int n = snprintf(path, PATH_BYTES, "%s/%s.npy", folder, name);
  if (n < 0 || n >= PATH_BYTES) return cli_fail("%s/%s.npy: the path is too long", folder, name);
  for (char *c = path + strlen(folder) + 1; *c != 0; c++) {
    if (*c == '/') *c = '_';
  }
  return CLI_OK;
}

static int write_to_folder(const struct cli_values *v, size_t i, const char *folder) {
  char path[PATH_BYTES], other[PATH_BYTES];
  int status = folder_path(v, i, folder, path);
  for (size_t j = 0; j < i && status == CLI_OK; j++) {
    if (v->outs[j].path == NULL && folder_path(v, j, folder, other) == CLI_OK && strcmp(path, other) == 0)
      status = cli_fail("outputs %zu and %zu both go to %s HINT: --out NAME=FILE.npy for one of them", j, i, path);
  }
  return status == CLI_OK ? write_output(v, i, path) : status;
}

int cli_values_show(const struct cli_values *v) {
  const char *folder = NULL;
  cli_has(v->call, "--out-dir", &folder);
  int status = CLI_OK;
  for (size_t i = 0; i < v->n_outs && status == CLI_OK; i++) {
    const quern_slot *type = &v->outs[i].type;
    if (v->outs[i].path != NULL) {
      status = write_output(v, i, v->outs[i].path);
    } else if (folder != NULL) {
      status = write_to_folder(v, i, folder);
    } else if (!is_quiet(v)) {
      print_title(v, i);
      fputc('\n', stdout);
      cli_print_array(stdout, type->dtype, type->rank, type->dims, v->outs[i].fill);
    }
  }
  return status;
}

/* ---- beginning and end ---------------------------------------------------------------------------------- */

static int read_given(struct cli_values *v) {
  int status = CLI_OK;
  for (size_t i = 0; i < v->call->n_given && status == CLI_OK; i++) {
    const struct cli_given *given = &v->call->given[i];
    if (strcmp(given->option->name, "--set") == 0) status = set_input(v, given->value);
    if (strcmp(given->option->name, "--out") == 0) status = set_output(v, given->value);
  }
  return status;
}

static int make_slots(struct cli_values *v, size_t n_ins, size_t n_outs) {
  v->n_ins = n_ins;
  v->n_outs = n_outs;
  v->ins = calloc(n_ins + 1, sizeof *v->ins);
  v->outs = calloc(n_outs + 1, sizeof *v->outs);
  v->outputs = calloc(n_outs + 1, sizeof *v->outputs);
  v->updates = calloc(n_outs + 1, sizeof *v->updates);
  v->output_names = calloc(n_outs + 1, sizeof *v->output_names);
  bool all = v->ins != NULL && v->outs != NULL && v->outputs != NULL && v->updates != NULL && v->output_names != NULL;
  return all ? CLI_OK : cli_fail("no memory");
}

static quern_slot type_of(const quern_tensor *x, const char *name) {
  return QUERN_INIT(quern_slot, .name = name, .dtype = quern_tensor_dtype(x), .rank = quern_tensor_rank(x),
                    .dims = quern_tensor_dims(x), .bytes = quern_tensor_bytes(x));
}

static int slots_of_graph(struct cli_values *v) {
  const quern_graph *graph = v->graph.graph;
  int status = make_slots(v, quern_graph_input_count(graph), quern_graph_output_count(graph));
  for (size_t i = 0; i < v->n_ins && status == CLI_OK; i++) {
    const quern_tensor *leaf = quern_graph_input(graph, i);
    v->ins[i].type = type_of(leaf, quern_tensor_name(leaf));
  }
  size_t n = v->n_outs;
  v->n_outs = 0;
  for (size_t i = 0; i < n && status == CLI_OK; i++) {
    quern_slot type = type_of(quern_graph_output(graph, i), quern_graph_output_name(graph, i));
    const struct cli_slot *state = cli_has(v->call, "--updates", NULL) ? cli_values_find(v, &type) : NULL;
    if (state != NULL) {
      v->updates[v->n_updates++] =
          (quern_update){quern_graph_input(graph, (size_t)(state - v->ins)), quern_graph_output(graph, i)};
    } else {
      v->outputs[v->n_outs] = quern_graph_output(graph, i);
      v->output_names[v->n_outs] = type.name;
      v->outs[v->n_outs++].type = type;
    }
  }
  return status;
}

static int slots_of_program(struct cli_values *v, const quern_program *program) {
  size_t n = quern_program_input_count(program);
  int status = make_slots(v, n + quern_program_state_count(program), quern_program_output_count(program));
  quern_status got = QUERN_STATUS_OK;
  for (size_t i = 0; i < v->n_ins && status == CLI_OK && got == QUERN_STATUS_OK; i++) {
    quern_slot *type = &v->ins[i].type;
    *type = QUERN_INIT(quern_slot);
    got = i < n ? quern_program_input(program, i, type) : quern_program_state(program, i - n, type);
  }
  for (size_t i = 0; i < v->n_outs && status == CLI_OK && got == QUERN_STATUS_OK; i++) {
    v->outs[i].type = QUERN_INIT(quern_slot);
    got = quern_program_output(program, i, &v->outs[i].type);
  }
  return got == QUERN_STATUS_OK ? status : cli_fail_last(v->call->files[0]);
}

/* The slots by the options, and room for the results. */
static int fill_slots(struct cli_values *v) {
  int status = read_given(v);
  for (size_t i = 0; i < v->n_outs && status == CLI_OK; i++) {
    size_t bytes = v->outs[i].type.bytes;
    v->outs[i].fill = malloc(bytes > 0 ? bytes : 1);
    if (v->outs[i].fill == NULL)
      status = cli_fail("%s: no memory for output %zu of %zu bytes", v->call->files[0], i, bytes);
  }
  return status;
}

int cli_values_begin(struct cli_values *v, const struct cli_call *call) {
  *v = (struct cli_values){.call = call};
  int status = cli_graph_begin(&v->graph, call->files[0]);
  if (status == CLI_OK) status = slots_of_graph(v);
  if (status == CLI_OK) status = cli_values_named(v, "--donate", &v->n_donated, &v->donated);
  if (status == CLI_OK) status = cli_leading_read(v);
  if (status == CLI_OK)
    status = cli_dynamic_batch_inputs(v, v->n_dynamic_batch > 0 ? quern_tensor_dim(v->leading[0], 0) : 0);
  return status == CLI_OK ? fill_slots(v) : status;
}

int cli_values_begin_program(struct cli_values *v, const struct cli_call *call, const quern_program *program) {
  *v = (struct cli_values){.call = call};
  if (quern_context_new(&v->graph.ctx, NULL) != QUERN_STATUS_OK) return cli_fail("%s", quern_last_error());
  int status = slots_of_program(v, program);
  if (status == CLI_OK) status = cli_dynamic_batch_inputs(v, quern_program_dynamic_batch(program));
  return status == CLI_OK ? fill_slots(v) : status;
}

int cli_values_fill(struct cli_values *v) {
  uint32_t x = 1;
  for (size_t i = 0; i < v->n_ins; i++) {
    struct cli_slot *in = &v->ins[i];
    if (in->data != NULL) continue;
    size_t size = quern_dtype_size(in->type.dtype);
    char first = quern_dtype_name(in->type.dtype)[0]; /* f32, bf16, but not bool */
    bool is_float = first == 'f' || (first == 'b' && in->type.dtype != QUERN_DTYPE_BOOL);
    char *data = make_room(in);
    if (data == NULL) return CLI_FAILED;
    for (size_t at = 0; at < in->type.bytes; at += size) {
      x = x * 1664525u + 1013904223u;
      double value = is_float ? (double)(x >> 8) * 0x1p-23 - 1 : (double)(x >> 31);
      if (quern_dtype_convert(data + at, in->type.dtype, &value, QUERN_DTYPE_F64, 1) != QUERN_STATUS_OK)
        return cli_fail_last(name_of(in));
    }
  }
  return CLI_OK;
}

const struct cli_slot *cli_values_find(const struct cli_values *v, const quern_slot *type) {
  for (size_t i = 0; i < v->n_ins; i++) {
    const quern_slot *own = &v->ins[i].type;
    if (type->name != NULL && strcmp(name_of(&v->ins[i]), type->name) == 0 && own->dtype == type->dtype &&
        (own->bytes == type->bytes || (own->dynamic_batch && type->dynamic_batch)))
      return &v->ins[i];
  }
  return NULL;
}

void cli_values_end(struct cli_values *v) {
  for (size_t i = 0; i < v->n_ins && v->ins != NULL; i++) free(v->ins[i].fill);
  for (size_t i = 0; i < v->n_outs && v->outs != NULL; i++) free(v->outs[i].fill);
  free(v->ins);
  free(v->outs);
  free(v->outputs);
  free(v->updates);
  free(v->output_names);
  free(v->donated);
  free(v->leading);
  cli_graph_end(&v->graph);
}
