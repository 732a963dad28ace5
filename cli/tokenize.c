/* cli/tokenize.c -- the command tokenize: texts to token files and back, and tokenizers from texts
** tests: tests/cli/test_cli.c
*/
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- texts --------------------------------------------------------------------------------------------- */

/* A file as a text; mapped, so that it may be large, unless it is no regular file. */
struct text {
  char *at;
  size_t n;
  bool mapped;
};

static int open_text(struct text *text, const char *path) {
  struct stat there;
  *text = (struct text){0};
  int fd = strcmp(path, "-") != 0 ? open(path, O_RDONLY) : -1;
  bool regular = fd >= 0 && fstat(fd, &there) == 0 && S_ISREG(there.st_mode) && there.st_size > 0;
  if (regular) {
    void *at = mmap(NULL, (size_t)there.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (at != MAP_FAILED) *text = (struct text){at, (size_t)there.st_size, true};
  }
  if (fd >= 0) close(fd);
  return text->mapped ? CLI_OK : cli_read(path, &text->at, &text->n);
}

static void close_text(struct text *text) {
  if (text->mapped)
    munmap(text->at, text->n);
  else
    free(text->at);
}

/* ---- training ------------------------------------------------------------------------------------------ */

static int train(const struct cli_call *call, const char *out) {
  quern_tokenizer_training training = QUERN_INIT(quern_tokenizer_training);
  int64_t vocab = 0, least = 2;
  const char **special = calloc(call->n_given + 1, sizeof *special);
  struct text *texts = calloc(call->n_files, sizeof *texts);
  quern_text *given = calloc(call->n_files, sizeof *given);
  quern_tokenizer *tokenizer = NULL;
  if (special == NULL || texts == NULL || given == NULL) {
    free(given);
    free(texts);
    free(special);
    return cli_fail("no memory");
  }
  int status = cli_number(call, "--train", 256, 1 << 22, &vocab);
  if (status == CLI_OK) status = cli_number(call, "--min-count", 1, INT64_MAX, &least);
  for (size_t i = 0; i < call->n_given && status == CLI_OK; i++) {
    if (strcmp(call->given[i].option->name, "--special") == 0) special[training.n_special++] = call->given[i].value;
  }
  if (status == CLI_OK && training.n_special == 0) special[training.n_special++] = "<|endoftext|>";
  training.vocab = (size_t)vocab;
  training.min_count = (uint64_t)least;
  training.special = special;
  for (size_t i = 0; i < call->n_files && status == CLI_OK; i++) {
    status = open_text(&texts[i], call->files[i]);
    given[i] = (quern_text){texts[i].at, texts[i].n};
  }
  if (status == CLI_OK &&
      (quern_tokenizer_train(&tokenizer, call->n_files, given, &training, NULL) != QUERN_STATUS_OK ||
       quern_tokenizer_write(tokenizer, out) != QUERN_STATUS_OK))
    status = cli_fail("%s", quern_last_error());
  if (status == CLI_OK) cli_print(stdout, "%s: %zu tokens\n", out, quern_tokenizer_vocab(tokenizer));
  quern_tokenizer_free(tokenizer);
  for (size_t i = 0; i < call->n_files; i++) close_text(&texts[i]);
  free(given);
  free(texts);
  free(special);
  return status;
}

/* ---- encoding ------------------------------------------------------------------------------------------ */

static quern_status to_writer(void *self, size_t n, const uint32_t *ids) {
  return quern_tokens_writer_add(self, n, ids);
}

/* Encodes a file to the writer. */
static int add_file(const struct cli_call *call, const quern_tokenizer *tokenizer, quern_tokens_writer *writer,
                    const char *path, size_t *bytes) {
  struct text text;
  int64_t end = quern_tokenizer_end(tokenizer);
  unsigned flags = cli_has(call, "--parse-special", NULL) ? QUERN_ENCODE_SPECIAL : QUERN_ENCODE_PLAIN;
  int status = open_text(&text, path);
  if (status != CLI_OK) return status;
  if (quern_tokenizer_encode_to(tokenizer, text.at, text.n, flags, to_writer, writer) != QUERN_STATUS_OK)
    status = cli_fail_last(path);
  *bytes += text.n;
  close_text(&text);
  if (status != CLI_OK || !cli_has(call, "--append-eot", NULL)) return status;
  if (end < 0) return cli_fail("%s: has no special token that ends a text, such as <|endoftext|>", call->files[0]);
  uint32_t id = (uint32_t)end;
  return quern_tokens_writer_add(writer, 1, &id) == QUERN_STATUS_OK ? CLI_OK : cli_fail("%s", quern_last_error());
}

/* The options of the file that is written: ids of 2 bytes when the vocabulary allows it. */
static int file_options(const struct cli_call *call, const quern_tokenizer *tokenizer, quern_tokens_options *options) {
  const char *name = NULL;
  options->raw = cli_has(call, "--raw", NULL);
  options->vocab = quern_tokenizer_vocab(tokenizer);
  options->dtype = options->vocab <= 65536 ? QUERN_DTYPE_U16 : QUERN_DTYPE_U32;
  if (!cli_has(call, "--dtype", &name)) return CLI_OK;
  if (strcmp(name, "u16") != 0 && strcmp(name, "u32") != 0)
    return cli_usage(call->command, "--dtype is u16 or u32, not '%s'", name);
  options->dtype = strcmp(name, "u16") == 0 ? QUERN_DTYPE_U16 : QUERN_DTYPE_U32;
  return CLI_OK;
}

static int encode(const struct cli_call *call, const quern_tokenizer *tokenizer, const char *out) {
  quern_tokens_options options = QUERN_INIT(quern_tokens_options);
  quern_tokens_writer *writer = NULL;
  quern_tokens *written = NULL;
  size_t bytes = 0;
  int status = file_options(call, tokenizer, &options);
  if (status != CLI_OK) return status;
  if (quern_tokens_writer_new(&writer, out, &options) != QUERN_STATUS_OK) return cli_fail("%s", quern_last_error());
  for (size_t i = 1; i < call->n_files && status == CLI_OK; i++)
    status = add_file(call, tokenizer, writer, call->files[i], &bytes);
  if (status == CLI_OK && (quern_tokens_writer_end(writer) != QUERN_STATUS_OK ||
                           quern_tokens_open(&written, out, &options) != QUERN_STATUS_OK))
    status = cli_fail("%s", quern_last_error());
  if (status == CLI_OK)
    cli_print(stdout, "%s: %" PRId64 " ids (%s) of %zu bytes, %.2f bytes an id\n", out, quern_tokens_count(written),
              quern_dtype_name(options.dtype), bytes,
              quern_tokens_count(written) > 0 ? (double)bytes / (double)quern_tokens_count(written) : 0.0);
  quern_tokens_free(written);
  quern_tokens_writer_free(writer);
  return status;
}

/* ---- decoding ------------------------------------------------------------------------------------------ */

enum { AT_ONCE = 4096 };

static int decode_file(const quern_tokenizer *tokenizer, const quern_tokens *tokens, const char *path, FILE *out) {
  static uint32_t ids[AT_ONCE];
  unsigned flags = QUERN_DECODE_ALL;
  char *text = NULL;
  size_t room = 0, n = 0;
  for (int64_t i = 0; i < quern_tokens_count(tokens); i += (int64_t)n, flags = QUERN_DECODE_CONTINUE) {
    size_t bytes = 0;
    int64_t left = quern_tokens_count(tokens) - i;
    n = left < AT_ONCE ? (size_t)left : AT_ONCE;
    quern_status status = quern_tokens_get(tokens, i, n, ids);
    if (status == QUERN_STATUS_OK) status = quern_tokenizer_decode(tokenizer, n, ids, flags, room, text, &bytes);
    if (status == QUERN_STATUS_OVERFLOW) { /* larger than all before */
      free(text);
      room = bytes;
      text = malloc(room + 1);
      if (text == NULL) return cli_fail("no memory");
      status = quern_tokenizer_decode(tokenizer, n, ids, flags, room, text, &bytes);
    }
    if (status != QUERN_STATUS_OK) {
      free(text);
      return cli_fail_last(path);
    }
    fwrite(text, 1, bytes, out);
  }
  free(text);
  return CLI_OK;
}

static bool is_same(const char *a, const char *b) {
  struct stat x, y;
  return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* The output is empty as soon as it is opened: before that all files can be read, and none of them is the output. */
static int check_files(const struct cli_call *call, const char *out, const quern_tokens_options *options) {
  for (size_t i = 1; i < call->n_files; i++) {
    quern_tokens *tokens = NULL;
    if (quern_tokens_open(&tokens, call->files[i], options) != QUERN_STATUS_OK)
      return cli_fail("%s", quern_last_error());
    quern_tokens_free(tokens);
    if (out != NULL && is_same(out, call->files[i])) return cli_fail("%s: would be read and written", out);
  }
  return CLI_OK;
}

static int decode(const struct cli_call *call, const quern_tokenizer *tokenizer, const char *out) {
  quern_tokens_options options = QUERN_INIT(quern_tokens_options);
  int status = file_options(call, tokenizer, &options);
  if (status == CLI_OK) status = check_files(call, out, &options);
  if (status != CLI_OK) return status;
  FILE *file = out != NULL ? fopen(out, "wb") : stdout;
  if (file == NULL) return cli_fail("%s: cannot be made: %s", out, strerror(errno));
  for (size_t i = 1; i < call->n_files && status == CLI_OK; i++) {
    quern_tokens *tokens = NULL;
    status = quern_tokens_open(&tokens, call->files[i], &options) == QUERN_STATUS_OK
                 ? decode_file(tokenizer, tokens, call->files[i], file)
                 : cli_fail("%s", quern_last_error());
    quern_tokens_free(tokens);
  }
  int closed = out != NULL ? cli_close(file, out) : CLI_OK;
  return status == CLI_OK ? closed : status;
}

/* ---- the command --------------------------------------------------------------------------------------- */

static int run(const struct cli_call *call) {
  const char *out = NULL;
  quern_tokenizer *tokenizer = NULL;
  bool has_out = cli_has(call, "--output", &out), decodes = cli_has(call, "--decode", NULL);
  if (!has_out && !decodes) return cli_usage(call->command, "-o names the file to write");
  if (cli_has(call, "--train", NULL)) return train(call, out);
  if (call->n_files < 2) return cli_usage(call->command, "takes a tokenizer and files");
  if (quern_tokenizer_read(&tokenizer, call->files[0], NULL) != QUERN_STATUS_OK)
    return cli_fail("%s", quern_last_error());
  int status = decodes ? decode(call, tokenizer, out) : encode(call, tokenizer, out);
  quern_tokenizer_free(tokenizer);
  return status;
}

static const struct cli_option options[] = {
    {"--output", 'o', "FILE", "the token file to write; with --train the tokenizer.json, with --decode the text"},
    {"--append-eot", 0, NULL, "the token that ends a text after each file"},
    {"--parse-special", 0, NULL, "special tokens in the text are tokens, not text"},
    {"--raw", 0, NULL, "no header: nothing but ids"},
    {"--dtype", 0, "u16|u32", "of ids; without it u16 when the vocabulary allows it"},
    {"--decode", 0, NULL, "from token files to text"},
    {"--train", 0, "VOCAB", "make a byte-level BPE tokenizer of that many ids from the files"},
    {"--min-count", 0, "N", "with --train: pairs that are there fewer times are not merged (2)"},
    {"--special", 0, "TEXT", "with --train: a special token; may be given again (<|endoftext|>)"},
    {0}};

const struct cli_command cli_command_tokenize = {
    .name = "tokenize",
    .usage = "TOKENIZER FILE... -o OUT.bin [--append-eot] | --train VOCAB FILE... -o tokenizer.json",
    .help = "texts to token files, or a tokenizer from texts",
    .more = "TOKENIZER is a tokenizer.json, a folder with one or with GPT-2's vocab.json and merges.txt, or the word "
            "bytes.\n",
    .options = options,
    .least_files = 1,
    .most_files = SIZE_MAX,
    .run = run};
