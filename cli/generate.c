/* cli/generate.c -- the command generate: text that a trained model writes, as it comes
** keeps: what is printed is valid UTF-8, whatever the model writes; a terminal gets no control characters
** tests: tests/cli/test_train.c
*/
#include "train.h"

#include "quern/generate.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- texts in pieces ---------------------------------------------------------------------------------------------- */

/* Bytes on their way out; those of a character that is not whole yet wait. */
struct piece {
  unsigned char waits[4];
  size_t n;
  bool terminal;
};

static const char strange[] = "\xef\xbf\xbd"; /* U+FFFD */

/* How many bytes a character that begins with this one has; 0: none begins so. */
static size_t length_of(unsigned char first) {
  return first < 0x80                    ? 1
         : first >= 0xc2 && first < 0xe0 ? 2
         : (first & 0xf0) == 0xe0        ? 3
         : first >= 0xf0 && first < 0xf5 ? 4
                                         : 0;
}

/* Whether a byte may follow n bytes of a character (Unicode 15, table 3-7). */
static bool may_follow(const unsigned char *at, size_t n, unsigned char next) {
  unsigned char least = 0x80, most = 0xbf;
  if (n == 1 && at[0] == 0xe0) least = 0xa0;
  if (n == 1 && at[0] == 0xed) most = 0x9f;
  if (n == 1 && at[0] == 0xf0) least = 0x90;
  if (n == 1 && at[0] == 0xf4) most = 0x8f;
  return next >= least && next <= most;
}

static bool is_control(const struct piece *piece) {
  unsigned char c = piece->waits[0];
  if (piece->n == 1) return (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
  return piece->n == 2 && c == 0xc2 && piece->waits[1] < 0xa0;
}

static void put_byte(struct piece *piece, unsigned char byte) {
  if (piece->n > 0 && !may_follow(piece->waits, piece->n, byte)) {
    fputs(strange, stdout);
    piece->n = 0;
  }
  if (piece->n == 0 && length_of(byte) == 0) {
    fputs(strange, stdout);
    return;
  }
  piece->waits[piece->n++] = byte;
  if (piece->n < length_of(piece->waits[0])) return;
  if (piece->terminal && is_control(piece))
    fputs(strange, stdout);
  else
    fwrite(piece->waits, 1, piece->n, stdout);
  piece->n = 0;
}

static void put_bytes(struct piece *piece, const char *bytes, size_t n) {
  for (size_t i = 0; i < n; i++) put_byte(piece, (unsigned char)bytes[i]);
  fflush(stdout);
}

static void put_end(struct piece *piece) {
  if (piece->n > 0) fputs(strange, stdout);
  putchar('\n');
  fflush(stdout);
}

/* ---- tokens ------------------------------------------------------------------------------------------------------- */

struct writer {
  const struct cli_call *call;
  quern_generator *generator;
  quern_tokenizer *tokenizer;
  quern_sampling sampling;
  int64_t tokens; /* to write */
  struct piece piece;
  bool times;    /* are reported in the end */
  double prompt; /* seconds of the prompt; of tokens by how many were there before: 0 .. 1, 2 .. 3, 4 .. 7, ... */
  struct {
    int64_t n;
    double seconds;
  } spent[40];
};

static void add_time(struct writer *w, int64_t used, double seconds) {
  int i = 0;
  while (used > 1 && i + 1 < (int)(sizeof w->spent / sizeof *w->spent)) {
    used /= 2;
    i++;
  }
  w->spent[i].n++;
  w->spent[i].seconds += seconds;
}

static void tell_times(const struct writer *w, size_t prompt) {
  fprintf(stderr, "prompt of %zu tokens: %.1f ms\n", prompt, 1e3 * w->prompt);
  for (int i = 0; i < (int)(sizeof w->spent / sizeof *w->spent); i++)
    if (w->spent[i].n > 0)
      fprintf(stderr, "after %lld to %lld tokens: %lld, %.3f ms each\n", i == 0 ? 0 : 1LL << i, (2LL << i) - 1,
              (long long)w->spent[i].n, 1e3 * w->spent[i].seconds / (double)w->spent[i].n);
}

/* The ids of the prompt, which free() takes. Without any the text begins as after another one's end. */
static int encode(const struct writer *w, const char *prompt, uint32_t **ids, size_t *n) {
  size_t room = strlen(prompt) + 64;
  int64_t end = quern_tokenizer_end(w->tokenizer);
  *ids = malloc(room * sizeof **ids);
  if (*ids == NULL) return cli_fail("no memory");
  quern_status status =
      quern_tokenizer_encode(w->tokenizer, prompt, strlen(prompt), QUERN_ENCODE_SPECIAL, room, *ids, n);
  if (status == QUERN_STATUS_OVERFLOW && *n > room) { /* a normalizer that makes texts longer */
    uint32_t *more = realloc(*ids, *n * sizeof *more);
    if (more == NULL) return cli_fail("no memory");
    *ids = more;
    status = quern_tokenizer_encode(w->tokenizer, prompt, strlen(prompt), QUERN_ENCODE_SPECIAL, *n, *ids, n);
  }
  if (status != QUERN_STATUS_OK) return cli_fail("--prompt: %s", quern_last_error());
  if (*n == 0 && end < 0) return cli_usage(w->call->command, "--prompt: this tokenizer needs at least one character");
  if (*n == 0) (*ids)[(*n)++] = (uint32_t)end;
  return CLI_OK;
}

static int put_token(struct writer *w, uint32_t id) {
  char bytes[1024];
  size_t n = 0;
  quern_status status = quern_tokenizer_decode(w->tokenizer, 1, &id, QUERN_DECODE_CONTINUE, sizeof bytes, bytes, &n);
  if (status != QUERN_STATUS_OK && status != QUERN_STATUS_OVERFLOW) return cli_fail("%s", quern_last_error());
  put_bytes(&w->piece, bytes, n < sizeof bytes ? n : sizeof bytes);
  return CLI_OK;
}

static int write_text(struct writer *w, const char *prompt) {
  uint32_t *ids = NULL, id = 0;
  size_t n = 0;
  int status = encode(w, prompt, &ids, &n);
  int64_t end = status == CLI_OK ? quern_tokenizer_end(w->tokenizer) : -1, i = 0;
  int64_t room = quern_generator_most(w->generator) - (int64_t)n;
  if (status == CLI_OK && room < 0)
    status = cli_fail("--prompt has %zu tokens; the model has room for %" PRId64, n, room + (int64_t)n);
  double start = cli_seconds();
  if (status == CLI_OK && quern_generator_feed(w->generator, n, ids, NULL) != QUERN_STATUS_OK)
    status = cli_fail("%s", quern_last_error());
  w->prompt = cli_seconds() - start;
  free(ids);
  if (status != CLI_OK) return status;
  put_bytes(&w->piece, prompt, strlen(prompt));
  for (; i < w->tokens && i < room && status == CLI_OK; i++) {
    start = cli_seconds();
    if (quern_generator_next(w->generator, &w->sampling, &id) != QUERN_STATUS_OK)
      status = cli_fail("%s", quern_last_error());
    add_time(w, (int64_t)n + i, cli_seconds() - start);
    if (status == CLI_OK && id == end) break;
    if (status == CLI_OK) status = put_token(w, id);
  }
  put_end(&w->piece);
  if (status == CLI_OK && i == room && i < w->tokens)
    fprintf(stderr, "quern: the model has room for %" PRId64 " tokens, which ends the text\n",
            quern_generator_most(w->generator));
  if (status == CLI_OK && w->times) tell_times(w, n);
  return status;
}

/* ---- the command -------------------------------------------------------------------------------------------------- */

/* --device NAME, or device=NAME as in the commands of training. */
static int read_device(const struct cli_call *call, quern_generate_options *options) {
  static const char key[] = "device=";
  const char *word;
  int status = cli_has(call, "--device", &word) ? cli_device(call, "--device", word, &options->device) : CLI_OK;
  if (status != CLI_OK || call->n_files < 2) return status;
  if (strncmp(call->files[1], key, sizeof key - 1) != 0)
    return cli_usage(call->command, "expected device=NAME, got '%s'", call->files[1]);
  return cli_device(call, "device", call->files[1] + sizeof key - 1, &options->device);
}

static int read_options(struct writer *w, quern_generate_options *options) {
  const struct cli_call *call = w->call;
  int64_t threads = 0, seed = 0;
  int status = cli_number(call, "--tokens", 1, 1000000000, &w->tokens);
  if (status == CLI_OK) status = cli_real(call, "--temperature", 0, 1000, &w->sampling.temperature);
  if (status == CLI_OK) status = cli_number(call, "--top-k", 0, 1000000000, &w->sampling.top_k);
  if (status == CLI_OK) status = cli_real(call, "--top-p", 1e-6, 1, &w->sampling.top_p);
  if (status == CLI_OK) status = cli_number(call, "--seed", 0, INT64_MAX, &seed);
  if (status == CLI_OK) status = cli_number(call, "--threads", 1, 1024, &threads);
  w->sampling.seed = (uint64_t)seed;
  options->threads = (int)threads;
  options->no_cache = cli_has(call, "--no-cache", NULL);
  quern_dtype low = QUERN_DTYPE_F32;
  if (status == CLI_OK) status = cli_precision(call, &low);
  options->precision = quern_dtype_name(low);
  if (status == CLI_OK) status = read_device(call, options);
  w->times = cli_has(call, "--times", NULL);
  return status;
}

static int run(const struct cli_call *call) {
  quern_generate_options options = QUERN_INIT(quern_generate_options);
  struct writer w = {.call = call, .sampling = QUERN_INIT(quern_sampling, .temperature = 0.8), .tokens = 200};
  const char *prompt = NULL;
  w.piece.terminal = isatty(STDOUT_FILENO) == 1;
  int status = read_options(&w, &options);
  if (status == CLI_OK && !cli_has(call, "--prompt", &prompt))
    status = cli_usage(call->command, "--prompt gives the beginning of the text");
  if (status == CLI_OK &&
      quern_generator_open_run(&w.generator, call->files[0], &options, &w.tokenizer) != QUERN_STATUS_OK)
    status = cli_fail("%s", quern_last_error());
  if (status == CLI_OK) status = write_text(&w, prompt);
  quern_generator_free(w.generator);
  quern_tokenizer_free(w.tokenizer);
  return status;
}

static const struct cli_option options_of[] = {
    {"--prompt", 0, "TEXT", "how the text begins"},
    {"--tokens", 0, "N", "tokens to write at most (200)"},
    {"--temperature", 0, "X", "0: always the most likely token; 1: as likely as in the model (0.8)"},
    {"--top-k", 0, "K", "among the K most likely tokens only; 0: all (0)"},
    {"--top-p", 0, "P", "among the fewest tokens that have this probability together (1)"},
    {"--seed", 0, "N", "the same seed writes the same text (0)"},
    {"--no-cache", 0, NULL, "compute all positions again for every token: slow, the same text"},
    {"--times", 0, NULL, "report in the end how long tokens took, by how many there were before them"},
    {"--threads", 0, "N", "threads; without it as many as the machine grants"},
    {"--precision", 0, "KIND", "of computing: f32; bf16 or f16 for activations of 16 bits (f32)"},
    {"--device", 0, "NAME", "what computes: cpu, cuda, cuda:1, opencl, interp or auto (cpu)"},
    {0},
};

const struct cli_command cli_command_generate = {
    .name = "generate",
    .usage = "DIR --prompt TEXT [--tokens N] [--temperature X] [--top-k K] [--top-p P] [--seed N] [--no-cache] "
             "[--times] [--threads N] [--precision KIND] [--device NAME]",
    .help = "write text with a language model that was trained",
    .more = "DIR is the folder `out` of a run; its newest whole checkpoint is used.\n",
    .options = options_of,
    .least_files = 1,
    .most_files = 2,
    .run = run,
};
