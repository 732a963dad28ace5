/* cli/cli.h -- what the commands of the program quern share
** A command is a row of the table in main.c. Exit status: 0 done, 1 it failed, 2 it was called wrongly.
*/
#ifndef CLI_CLI_H
#define CLI_CLI_H
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "quern/quern.h"

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

#if defined(__GNUC__)
#define CLI_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define CLI_PRINTF(fmt, args)
#endif

/* ---- commands and options (option.c) -------------------------------------------------------------------- */

struct cli_option {
  const char *name;     /* "--set" */
  char letter;          /* 'o' for -o; 0: none */
  const char *argument; /* what it takes, NULL: nothing */
  const char *help;
};

/* An option as it was given. */
struct cli_given {
  const struct cli_option *option;
  const char *value; /* NULL when it takes none */
};

struct cli_command;

struct cli_call {
  const struct cli_command *command;
  size_t n_given, n_files;
  struct cli_given *given;
  const char **files; /* the arguments that are no options */
};

struct cli_command {
  const char *name;
  const char *usage;                /* after the name */
  const char *help;                 /* a line */
  const char *more;                 /* lines for its own --help, or NULL */
  const struct cli_option *options; /* ended by a row without a name; NULL: none */
  size_t least_files, most_files;
  int (*run)(const struct cli_call *call);
};

/* Reads the arguments and runs the command. */
int cli_run(const struct cli_command *command, int argc, char **argv);

/* True when an option is given; its last value is left in *value (which may be NULL). */
bool cli_has(const struct cli_call *call, const char *name, const char **value);

void cli_print_help(FILE *out, const struct cli_command *command);

/* ---- messages and files (file.c) ------------------------------------------------------------------------ */

/* "quern: ..." on stderr; returns CLI_FAILED. */
int cli_fail(const char *fmt, ...) CLI_PRINTF(1, 2);
/* The library's last error, after what it was about. */
int cli_fail_last(const char *what);
/* The same with CLI_USAGE, and where to read on. */
int cli_usage(const struct cli_command *command, const char *fmt, ...) CLI_PRINTF(2, 3);

/* The nearest of n words, or NULL when none is near. */
const char *cli_nearest(const char *word, size_t n, const char *const *words);

/* Reads a whole file, "-" for standard input; free(*bytes) later. */
int cli_read(const char *path, char **bytes, size_t *n);
/* Writes a text to a file, "-" for standard output. */
int cli_write(const char *path, const char *text);

/* ---- graphs and arrays (graph.c, array.c) --------------------------------------------------------------- */

/* A graph read from a file in a context of its own; end it with cli_graph_end whatever happened. */
struct cli_graph {
  quern_context *ctx;
  quern_graph *graph;
};
int cli_graph_begin(struct cli_graph *graph, const char *path);
void cli_graph_end(struct cli_graph *graph);

/* "f32[2,3]" */
void cli_print_type(FILE *out, const quern_tensor *x);
/* The elements as nested lists, the middle of long ones left out. */
void cli_print_array(FILE *out, quern_dtype dtype, int rank, const int64_t *dims, const void *data);

/* ---- the commands --------------------------------------------------------------------------------------- */

extern const struct cli_command cli_command_env, cli_command_eval, cli_command_graph;

#endif
