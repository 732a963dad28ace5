/* tests/cli/shell.h -- rows of shell commands: what each prints and how it ends
** Whoever includes it has `folder`, where commands run, and `program`, the path of quern.
*/
#ifndef TESTS_CLI_SHELL_H
#define TESTS_CLI_SHELL_H

enum { TEXT = 1 << 18 };
static char text[TEXT];

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

struct row {
  const char *command;
  int status;
  const char *prints; /* all of it; with ... at the end: the beginning */
};

static void run_rows(const struct row *rows, size_t n) {
  for (size_t i = 0; i < n; i++) {
    int status = shell(rows[i].command);
    size_t length = strlen(rows[i].prints);
    bool open = length >= 3 && strcmp(rows[i].prints + length - 3, "...") == 0;
    bool same = open ? strncmp(text, rows[i].prints, length - 3) == 0 : strcmp(text, rows[i].prints) == 0;
    if (status != rows[i].status || !same)
      fail_msg("$ %s\nexit status %d, expected %d; prints:\n%s\nexpected:\n%s", rows[i].command, status, rows[i].status,
               text, rows[i].prints);
  }
}
#define RUN(rows) run_rows(rows, sizeof rows / sizeof *rows)

#endif
