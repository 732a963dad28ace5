/* cli/file.c -- messages, words that are near, files */
#include "cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- messages ------------------------------------------------------------------------------------------- */

enum { LINE_BYTES = 3 * 4096 }; /* for two paths and more */

void cli_print_v(FILE *out, const char *fmt, va_list args) {
  char text[LINE_BYTES], shown[2 * LINE_BYTES];
  if (vsnprintf(text, sizeof text, fmt, args) < 0) return;
  for (char *at = text, *end; at != NULL; at = end) {
    end = strchr(at, '\n');
    if (end != NULL) *end++ = 0;
    fputs(quern_text_shown(shown, sizeof shown, at), out);
    if (end != NULL) fputc('\n', out);
  }
}

void cli_print(FILE *out, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  cli_print_v(out, fmt, args);
  va_end(args);
}

static void print_message(const char *command, const char *fmt, va_list args) {
  fprintf(stderr, "quern%s%s: ", command[0] != 0 ? " " : "", command);
  cli_print_v(stderr, fmt, args);
  fputc('\n', stderr);
}

int cli_fail(const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  print_message("", fmt, args);
  va_end(args);
  return CLI_FAILED;
}

int cli_fail_last(const char *what) { return cli_fail("%s: %s", what, quern_last_error()); }

int cli_usage(const struct cli_command *command, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  print_message(command->name, fmt, args);
  va_end(args);
  fprintf(stderr, "  HINT: quern help %s\n", command->name);
  return CLI_USAGE;
}

/* ---- words ---------------------------------------------------------------------------------------------- */

enum { WORD_MOST = 63 };

/* How many letters to add, drop or replace to make a into b. */
static size_t distance(const char *a, const char *b) {
  size_t row[WORD_MOST + 1], n = strlen(b);
  for (size_t j = 0; j <= n; j++) row[j] = j;
  for (size_t i = 0; a[i] != 0; i++) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 1; j <= n; j++) {
      size_t best = diagonal + (a[i] != b[j - 1]);
      if (row[j] + 1 < best) best = row[j] + 1;
      if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
      diagonal = row[j];
      row[j] = best;
    }
  }
  return row[n];
}

const char *cli_nearest(const char *word, size_t n, const char *const *words) {
  size_t best = 2 + strlen(word) / 4;
  const char *nearest = NULL;
  for (size_t i = 0; i < n; i++) {
    if (words[i] == NULL || strlen(word) > WORD_MOST || strlen(words[i]) > WORD_MOST) continue;
    size_t d = distance(word, words[i]);
    if (d >= best) continue;
    best = d;
    nearest = words[i];
  }
  return nearest;
}

/* ---- files ---------------------------------------------------------------------------------------------- */

static const size_t file_most = (size_t)1 << 30;

/* Reads to the end; NULL when there is no memory or the file is too big. */
static char *read_all(FILE *file, size_t *n) {
  size_t room = 1 << 16;
  char *bytes = malloc(room);
  *n = 0;
  while (bytes != NULL) {
    *n += fread(bytes + *n, 1, room - *n, file);
    if (*n < room) return bytes;
    char *more = room < file_most ? realloc(bytes, room *= 2) : NULL;
    if (more == NULL) free(bytes);
    bytes = more;
  }
  return NULL;
}

int cli_read(const char *path, char **bytes, size_t *n) {
  bool standard = strcmp(path, "-") == 0;
  FILE *file = standard ? stdin : fopen(path, "rb");
  if (file == NULL) return cli_fail("%s: cannot be opened: %s", path, strerror(errno));
  *bytes = read_all(file, n);
  bool broken = ferror(file) != 0;
  int why = errno;
  if (!standard) fclose(file);
  if (*bytes == NULL) return cli_fail("%s: no memory for it, or more than %zu bytes", path, file_most);
  if (!broken) return CLI_OK;
  free(*bytes);
  return cli_fail("%s: cannot be read: %s", path, strerror(why));
}

int cli_write(const char *path, const char *text) {
  if (strcmp(path, "-") == 0) {
    fputs(text, stdout);
    return CLI_OK;
  }
  FILE *file = fopen(path, "wb");
  if (file == NULL) return cli_fail("%s: cannot be made: %s", path, strerror(errno));
  (void)fputs(text, file);
  return cli_close(file, path);
}

int cli_close(FILE *file, const char *path) {
  struct stat there;
  bool good = fflush(file) == 0 && !ferror(file);
  int why = errno;
  if (!good && fstat(fileno(file), &there) == 0 && S_ISREG(there.st_mode)) remove(path);
  if (fclose(file) != 0 && good) good = false, why = errno;
  return good ? CLI_OK : cli_fail("%s: cannot be written: %s", path, strerror(why));
}
