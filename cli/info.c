/* cli/info.c -- the command info: what is in a checkpoint or in safetensors files */
#include "cli.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

/* What is shown: tensors, and of a checkpoint what belongs to them. */
struct subject {
  const char *path;
  quern_safetensors *file; /* its own, or NULL */
  quern_checkpoint *checkpoint;
  const quern_safetensors *tensors;
  quern_checkpoint_info info; /* of a checkpoint */
  uint64_t elements, bytes;
};

/* ---- opening -------------------------------------------------------------------------------------------- */

static bool is_folder(const char *path) {
  struct stat there;
  return stat(path, &there) == 0 && S_ISDIR(there.st_mode);
}

static bool is_checkpoint(const char *path) {
  char inside[4200];
  struct stat there;
  int n = snprintf(inside, sizeof inside, "%s/checkpoint.json", path);
  return n > 0 && (size_t)n < sizeof inside && stat(inside, &there) == 0;
}

/* A checkpoint by its own folder is opened and all of it read; of a folder of checkpoints the newest that is whole. */
static quern_status open_subject(struct subject *subject) {
  quern_status status = QUERN_STATUS_OK;
  if (is_folder(subject->path) && is_checkpoint(subject->path)) {
    status = quern_checkpoint_open(&subject->checkpoint, subject->path, NULL);
    if (status == QUERN_STATUS_OK) status = quern_checkpoint_verify(subject->checkpoint);
  } else if (is_folder(subject->path)) {
    status = quern_checkpoint_find(&subject->checkpoint, subject->path, NULL);
  }
  if (status != QUERN_STATUS_OK) return status;
  if (subject->checkpoint != NULL) {
    subject->tensors = quern_checkpoint_tensors(subject->checkpoint);
    subject->info = QUERN_INIT(quern_checkpoint_info);
    return quern_checkpoint_get_info(subject->checkpoint, &subject->info);
  }
  status = quern_safetensors_open(&subject->file, subject->path, NULL);
  subject->tensors = subject->file;
  return status;
}

/* Tensor i, which is there. */
static quern_safetensor tensor_at(const struct subject *subject, size_t i) {
  quern_safetensor tensor;
  return quern_safetensors_get(subject->tensors, i, &tensor) == QUERN_STATUS_OK ? tensor
                                                                                : (quern_safetensor){.name = ""};
}

static void sum_up(struct subject *subject) {
  for (size_t i = 0; i < quern_safetensors_count(subject->tensors); i++) {
    quern_safetensor tensor = tensor_at(subject, i);
    subject->bytes += tensor.bytes;
    subject->elements += tensor.bytes / quern_dtype_size(tensor.dtype);
  }
}

/* ---- for people ----------------------------------------------------------------------------------------- */

enum { SHOWN_BYTES = 8192 };

/* A text as a terminal may have it; how many characters it has. */
static int plain_width(const char *text) {
  char shown[SHOWN_BYTES];
  int n = 0;
  quern_text_shown(shown, sizeof shown, text);
  for (const char *at = shown; *at != 0; at++) n += ((unsigned char)*at & 0xc0) != 0x80;
  return n;
}

static int print_plain(const char *text) {
  char shown[SHOWN_BYTES];
  fputs(quern_text_shown(shown, sizeof shown, text), stdout);
  return plain_width(text);
}

/* Pads a column that has n characters. */
static void pad(int n, int width) { printf("%*s", n < width ? width - n : 0, ""); }

static int shape_text(char *text, size_t bytes, int rank, const int64_t *dims) {
  int n = snprintf(text, bytes, "[");
  for (int i = 0; i < rank; i++) n += snprintf(text + n, bytes - (size_t)n, i > 0 ? ",%" PRId64 : "%" PRId64, dims[i]);
  return n + snprintf(text + n, bytes - (size_t)n, "]");
}

enum { SHAPE_BYTES = 400, NAME_MOST = 60 };

static void show_pair(const quern_string_pair *pair) {
  fputs("  ", stdout);
  print_plain(pair->key);
  fputs(" = ", stdout);
  print_plain(pair->value);
  fputc('\n', stdout);
}

static void show_metadata(const struct subject *subject) {
  size_t n = quern_safetensors_pair_count(subject->tensors);
  if (n > 0) printf("metadata:\n");
  for (size_t i = 0; i < n; i++) {
    quern_string_pair pair;
    if (quern_safetensors_pair(subject->tensors, i, &pair) == QUERN_STATUS_OK) show_pair(&pair);
  }
}

static void show_files(const struct subject *subject) {
  size_t n = quern_safetensors_shard_count(subject->tensors);
  if (n < 2) return;
  printf("files:\n");
  for (size_t i = 0; i < n; i++) {
    const char *path = "";
    uint64_t bytes = 0;
    if (quern_safetensors_shard(subject->tensors, i, &path, &bytes) == QUERN_STATUS_OK)
      cli_print(stdout, "  %s: %" PRIu64 " bytes\n", path, bytes);
  }
}

static void show_tensors(const struct subject *subject) {
  size_t n = quern_safetensors_count(subject->tensors);
  int name_width = 4, shape_width = 5;
  char shape[SHAPE_BYTES];
  for (size_t i = 0; i < n; i++) {
    quern_safetensor tensor = tensor_at(subject, i);
    int name = plain_width(tensor.name), axes = shape_text(shape, sizeof shape, tensor.rank, tensor.dims);
    if (name > name_width) name_width = name < NAME_MOST ? name : NAME_MOST;
    if (axes > shape_width) shape_width = axes;
  }
  if (n > 0) printf("tensors:\n  %-*s  %-6s  %-*s  %12s\n", name_width, "name", "dtype", shape_width, "shape", "bytes");
  for (size_t i = 0; i < n; i++) {
    quern_safetensor tensor = tensor_at(subject, i);
    fputs("  ", stdout);
    pad(print_plain(tensor.name), name_width);
    shape_text(shape, sizeof shape, tensor.rank, tensor.dims);
    printf("  %-6s  %-*s  %12zu\n", quern_dtype_name(tensor.dtype), shape_width, shape, tensor.bytes);
  }
}

static void show(const struct subject *subject) {
  char bytes[24];
  const quern_checkpoint_info *info = &subject->info;
  size_t n = quern_safetensors_count(subject->tensors);
  cli_print(stdout, "%s: %zu tensor%s, %" PRIu64 " elements, %s\n",
            subject->checkpoint != NULL ? info->path : subject->path, n, n == 1 ? "" : "s", subject->elements,
            cli_bytes_text(bytes, (int64_t)subject->bytes));
  if (subject->checkpoint != NULL) {
    printf("checkpoint: step %" PRIu64 ", seed 0x%016" PRIx64 ", cursor %" PRIu64 "; every digest is right\n",
           info->step, info->seed, info->cursor);
    if (info->n_config > 0) printf("config:\n");
    for (size_t i = 0; i < info->n_config; i++) show_pair(&info->config[i]);
    if (strcmp(info->state, "{}") != 0) {
      fputs("state: ", stdout);
      print_plain(info->state);
      fputc('\n', stdout);
    }
  }
  show_metadata(subject);
  show_files(subject);
  show_tensors(subject);
}

/* ---- for machines --------------------------------------------------------------------------------------- */

static void json_string(const char *text) {
  fputc('"', stdout);
  for (; *text != 0; text++) {
    unsigned char c = (unsigned char)*text;
    if (c == '"' || c == '\\')
      printf("\\%c", c);
    else if (c < 0x20 || c == 0x7f)
      printf("\\u%04x", (unsigned)c);
    else if (c == 0xc2 && (unsigned char)text[1] < 0xa0 && text[1] != 0)
      printf("\\u%04x", (unsigned)(unsigned char)*++text); /* C1: U+0080 to U+009F */
    else
      fputc(c, stdout);
  }
  fputc('"', stdout);
}

static void json_pair(const char *before, const quern_string_pair *pair) {
  fputs(before, stdout);
  json_string(pair->key);
  fputs(": ", stdout);
  json_string(pair->value);
}

static void json_checkpoint(const quern_checkpoint_info *info) {
  printf(" \"step\": %" PRIu64 ", \"seed\": \"0x%016" PRIx64 "\", \"cursor\": %" PRIu64
         ", \"skipped\": %zu,\n \"config\": {",
         info->step, info->seed, info->cursor, info->skipped);
  for (size_t i = 0; i < info->n_config; i++) json_pair(i > 0 ? ", " : "", &info->config[i]);
  printf("},\n \"state\": %s,\n", info->state);
}

static void json_tensor(const quern_safetensor *tensor) {
  char shape[SHAPE_BYTES];
  fputs("  {\"name\": ", stdout);
  json_string(tensor->name);
  shape_text(shape, sizeof shape, tensor->rank, tensor->dims);
  printf(", \"dtype\": \"%s\", \"shape\": %s, \"bytes\": %zu, \"file\": %zu, \"offset\": %" PRIu64 "}",
         quern_dtype_name(tensor->dtype), shape, tensor->bytes, tensor->shard, tensor->offset);
}

static void show_json(const struct subject *subject) {
  const quern_safetensors *tensors = subject->tensors;
  printf("{\"path\": ");
  json_string(subject->checkpoint != NULL ? subject->info.path : subject->path);
  printf(", \"kind\": \"%s\",\n", subject->checkpoint != NULL ? "checkpoint" : "safetensors");
  if (subject->checkpoint != NULL) json_checkpoint(&subject->info);
  printf(" \"elements\": %" PRIu64 ", \"bytes\": %" PRIu64 ",\n \"metadata\": {", subject->elements, subject->bytes);
  for (size_t i = 0; i < quern_safetensors_pair_count(tensors); i++) {
    quern_string_pair pair;
    if (quern_safetensors_pair(tensors, i, &pair) == QUERN_STATUS_OK) json_pair(i > 0 ? ", " : "", &pair);
  }
  printf("},\n \"files\": [");
  for (size_t i = 0; i < quern_safetensors_shard_count(tensors); i++) {
    const char *path = "";
    uint64_t bytes = 0;
    if (quern_safetensors_shard(tensors, i, &path, &bytes) != QUERN_STATUS_OK) continue;
    fputs(i > 0 ? ", {\"path\": " : "{\"path\": ", stdout);
    json_string(path);
    printf(", \"bytes\": %" PRIu64 "}", bytes);
  }
  printf("],\n \"tensors\": [");
  for (size_t i = 0; i < quern_safetensors_count(tensors); i++) {
    quern_safetensor tensor = tensor_at(subject, i);
    fputs(i > 0 ? ",\n" : "\n", stdout);
    json_tensor(&tensor);
  }
  printf("]}\n");
}

/* ---- the command ---------------------------------------------------------------------------------------- */

static int run(const struct cli_call *call) {
  struct subject subject = {.path = call->files[0]};
  int status = open_subject(&subject) == QUERN_STATUS_OK ? CLI_OK : cli_fail("%s", quern_last_error());
  if (status == CLI_OK) {
    sum_up(&subject);
    if (cli_has(call, "--json", NULL))
      show_json(&subject);
    else
      show(&subject);
    if (subject.info.skipped > 0)
      status = cli_fail("%s: %zu later checkpoint%s damaged", subject.path, subject.info.skipped,
                        subject.info.skipped == 1 ? " is" : "s are");
  }
  quern_safetensors_close(subject.file);
  quern_checkpoint_close(subject.checkpoint);
  return status;
}

static const struct cli_option options[] = {
    {"--json", 0, NULL, "an object for machines instead of a text for people"},
    {0},
};

const struct cli_command cli_command_info = {
    .name = "info",
    .usage = "FILE|DIR [--json]",
    .help = "what is in a checkpoint or in safetensors files; damage is found",
    .more = "FILE is a .safetensors file or an index (*.index.json). DIR is a checkpoint, which is read as a whole and "
            "compared\n"
            "with its digests; a folder of checkpoints: then the newest that is whole; or a folder with "
            "model.safetensors or\n"
            "model.safetensors.index.json. Exit status 1 when something is damaged.\n",
    .options = options,
    .least_files = 1,
    .most_files = 1,
    .run = run,
};
