/* tests/cli/shell.h -- rows of shell commands: what each prints and how it ends
** Whoever includes it has `folder`, where commands run, and <limits.h> with PATH_MAX.
*/
#ifndef TESTS_CLI_SHELL_H
#define TESTS_CLI_SHELL_H

enum { TEXT = 1 << 18 };
static char text[TEXT], program[PATH_MAX];

/* The program quern two folders above a test's own, the build folder. False: it is not there. */
static bool find_program(const char *test) {
  char self[PATH_MAX];
  if (test == NULL || realpath(test, self) == NULL) return false;
  for (int up = 0; up < 3; up++) *strrchr(self, '/') = 0;
  snprintf(program, sizeof program, "%.*s/quern", PATH_MAX - 8, self);
  if (access(program, X_OK) == 0) return true;
  fprintf(stderr, "%s is not there\n", program);
  return false;
}

/* Runs a shell command in the folder, "quern" being the program; what it prints is left in text. Its exit status. */
static int shell(const char *command) {
  char line[2 * PATH_MAX + 2048];
  snprintf(line, sizeof line, "cd %s && Q=\"%s\" && quern() { \"$Q\" \"$@\"; } && { %s; } 2>&1", folder, program,
           command);
  FILE *pipe = popen(line, "r");
  assert_non_null(pipe);
  text[fread(text, 1, TEXT - 1, pipe)] = 0;
  int status = pclose(pipe);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

/* prints: all of it; with ... at the end: the beginning. */
static void expect(const char *command, int expected, const char *prints) {
  int status = shell(command);
  size_t length = strlen(prints);
  bool open = length >= 3 && strcmp(prints + length - 3, "...") == 0;
  bool same = open ? strncmp(text, prints, length - 3) == 0 : strcmp(text, prints) == 0;
  if (status != expected || !same)
    fail_msg("$ %s\nexit status %d, expected %d; prints:\n%s\nexpected:\n%s", command, status, expected, text, prints);
}

struct row {
  const char *command;
  int status;
  const char *prints;
};

static inline void run_rows(const struct row *rows, size_t n) {
  for (size_t i = 0; i < n; i++) expect(rows[i].command, rows[i].status, rows[i].prints);
}
#define RUN(rows) run_rows(rows, sizeof rows / sizeof *rows)

#endif
