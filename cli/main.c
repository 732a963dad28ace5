/* cli/main.c -- the program quern: a table of commands
** tests: tests/cli/test_cli.c
*/
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static int run_help(const struct cli_call *call);

static const struct cli_command command_help = {.name = "help",
                                                .usage = "[COMMAND]",
                                                .help = "what there is, or how a command is called",
                                                .most_files = 1,
                                                .run = run_help};

static const struct cli_command *const commands[] = {
    &cli_command_train,   &cli_command_resume,  &cli_command_generate, &cli_command_eval_loss, &cli_command_report,
    &cli_command_info,    &cli_command_plan,    &cli_command_tokenize, &cli_command_eval,      &cli_command_run,
    &cli_command_compile, &cli_command_explain, &cli_command_graph,    &cli_command_tune,      &cli_command_bench,
    &cli_command_devices, &cli_command_env,     &command_help};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_overview(FILE *out) {
  fprintf(out, "usage: quern COMMAND [ARGUMENTS]\n\ncommands:\n");
  for (size_t i = 0; i < COMMANDS; i++) fprintf(out, "  %-9s %s\n", commands[i]->name, commands[i]->help);
  fprintf(out, "\noptions:\n  --help     this text; after a command, how it is called\n"
               "  --version  the version\n");
}

static const struct cli_command *find_command(const char *name) {
  for (size_t i = 0; i < COMMANDS; i++) {
    if (strcmp(commands[i]->name, name) == 0) return commands[i];
  }
  return NULL;
}

static int unknown_command(const char *name) {
  const char *names[COMMANDS];
  for (size_t i = 0; i < COMMANDS; i++) names[i] = commands[i]->name;
  const char *nearest = cli_nearest(name, COMMANDS, names);
  cli_print(stderr, "quern: there is no command '%s'%s%s%s\n  HINT: quern --help lists them\n", name,
            nearest != NULL ? "; did you mean '" : "", nearest != NULL ? nearest : "", nearest != NULL ? "'?" : "");
  return CLI_USAGE;
}

static int run_help(const struct cli_call *call) {
  if (call->n_files == 0) {
    print_overview(stdout);
    return CLI_OK;
  }
  const struct cli_command *command = find_command(call->files[0]);
  if (command == NULL) return unknown_command(call->files[0]);
  cli_print_help(stdout, command);
  return CLI_OK;
}

static int run(int argc, char **argv) {
  if (argc < 2) {
    print_overview(stderr);
    return CLI_USAGE;
  }
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
    print_overview(stdout);
    return CLI_OK;
  }
  if (strcmp(argv[1], "--version") == 0) {
    printf("quern %s\n", quern_version());
    return CLI_OK;
  }
  const struct cli_command *command = find_command(argv[1]);
  if (command == NULL) return unknown_command(argv[1]);
  return cli_run(command, argc - 2, argv + 2);
}

/* A descriptor of a standard stream that is closed would be that of the next file opened, and what is printed would go
** into it. */
static void open_streams(void) {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) (void)!open("/dev/null", O_RDWR); /* the lowest descriptor: fd */
}

int main(int argc, char **argv) {
  open_streams();
  signal(SIGXFSZ, SIG_IGN); /* a file that would be too large is an error of writing, as a full disk is */
  int status = run(argc, argv);
  bool written = fflush(stdout) == 0 && !ferror(stdout);
  return written || status != CLI_OK ? status : cli_fail("standard output cannot be written");
}
