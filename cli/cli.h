/* cli/cli.h -- what the commands of the program quern share
** A command is a row of the table in main.c. Exit status: 0 done, 1 it failed, 2 it was called wrongly.
*/
#ifndef CLI_CLI_H
#define CLI_CLI_H
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "quern/quern.h"

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_INTERRUPTED = 130 }; /* the last as shells have it */

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
  void (*print_more)(FILE *out);    /* what follows them, or NULL */
  size_t least_files, most_files;
  int (*run)(const struct cli_call *call);
};

/* Reads the arguments and runs the command. */
int cli_run(const struct cli_command *command, int argc, char **argv);

/* True when an option is given; its last value is left in *value (which may be NULL). */
bool cli_has(const struct cli_call *call, const char *name, const char **value);

/* The value of an option as a number from least to most; without the option *number stays. */
int cli_number(const struct cli_call *call, const char *name, int64_t least, int64_t most, int64_t *number);
int cli_real(const struct cli_call *call, const char *name, double least, double most, double *number);
/* The same of bytes: 1000, 64KiB, 1.5GiB. */
int cli_bytes(const struct cli_call *call, const char *name, int64_t *bytes);

void cli_print_help(FILE *out, const struct cli_command *command);

/* ---- messages and files (file.c, env.c) ------------------------------------------------------------------------ */

/* printf of what names files, tensors or the like: what a terminal would obey is shown as quern_text_shown does. */
void cli_print(FILE *out, const char *fmt, ...) CLI_PRINTF(2, 3);
void cli_print_v(FILE *out, const char *fmt, va_list args) CLI_PRINTF(2, 0);
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
/* Closes a file that was written; when not all of it could be, reports it and removes it. */
int cli_close(FILE *file, const char *path);

/* The value of an environment variable of Quern, "" when it has none. */
const char *cli_env(const char *name);

/* Seconds since some fixed moment. */
double cli_seconds(void);

/* ---- Ctrl-C (interrupt.c) ------------------------------------------------------------------------------- */

/* From now on the first Ctrl-C is only noted, the second ends the program. */
void cli_catch_interrupt(void);
bool cli_interrupted(void);

/* The same of Ctrl-C and SIGTERM, with a word on stderr, and of a closed terminal, a pipe that nobody reads and a limit
** of CPU time, of which a second one changes nothing; which it was, 0: none. */
void cli_catch_end(void);
int cli_end_signal(void);

/* ---- graphs and arrays (graph.c, array.c) --------------------------------------------------------------- */

/* A graph read from a file in a context of its own; end it with cli_graph_end whatever happened. */
struct cli_graph {
  quern_context *ctx;
  quern_graph *graph;
};
int cli_graph_begin(struct cli_graph *graph, const char *path);
void cli_graph_end(struct cli_graph *graph);

/* "f32[2,3]" */
void cli_print_type(FILE *out, quern_dtype dtype, int rank, const int64_t *dims);
/* The elements as nested lists, the middle of long ones left out. */
void cli_print_array(FILE *out, quern_dtype dtype, int rank, const int64_t *dims, const void *data);

/* ---- what goes in and what comes out (values.c) --------------------------------------------------------- */

/* clang-format off */
#define CLI_VALUE_OPTIONS                                                                                              \
  {"--set", 0, "NAME=VALUE", "fill an input with a number, or with a file's elements: NAME=@FILE.npy"},                \
  {"--out", 0, "NAME=FILE", "write an output to a .npy file instead of showing it"},                                   \
  {"--out-dir", 0, "DIR", "write every output to DIR/NAME.npy"}
/* clang-format on */

/* An input or a state with its value, or an output with its elements. */
struct cli_slot {
  quern_slot type;
  const void *data;             /* of an input; NULL: not set */
  void *fill;                   /* memory made here for it, or NULL */
  const char *path;             /* of an output: what --out says; NULL: nothing */
  int64_t dims[QUERN_MAX_RANK]; /* of the type, where --rows cuts it */
};

/* A graph or a program with the values of its inputs and states, and room for its outputs. */
struct cli_values {
  const struct cli_call *call;
  struct cli_graph graph; /* of a program: a context only */
  size_t n_ins, n_outs;
  struct cli_slot *ins, *outs; /* inputs and states in their order; of a program inputs, then states */
  quern_tensor **outputs;      /* of a graph */
  const char **output_names;   /* of these; NULL: it has none */
  size_t n_updates;
  quern_update *updates; /* of a graph, with --updates: those of its outputs that are new values of states */
  size_t n_donated, n_dynamic_batch;
  quern_tensor **donated, **leading; /* of a graph: the inputs of --donate, and of --dynamic-batch */
  int64_t rows;                      /* of the dynamic batch; 0: there is none */
};
/* Reads the graph and what the options say of its values; end it with cli_values_end whatever happened. */
int cli_values_begin(struct cli_values *values, const struct cli_call *call);
/* The same of a program. */
int cli_values_begin_program(struct cli_values *values, const struct cli_call *call, const quern_program *program);
/* The inputs of a graph that an option names, NAME[,NAME], to a new list; without the option there are none. */
int cli_values_named(const struct cli_values *values, const char *option, size_t *n, quern_tensor ***list);
/* Gives every input and state that is not set numbers: floats in [-1, 1), others 0 and 1. */
int cli_values_fill(struct cli_values *values);
/* The input or state of that name and type, or NULL. Those of one name have one value. */
const struct cli_slot *cli_values_find(const struct cli_values *values, const quern_slot *type);
/* Shows or writes the outputs as the options say. */
int cli_values_show(const struct cli_values *values);
void cli_values_end(struct cli_values *values);

/* ---- rows (dynamic_batch.c) ----------------------------------------------------------------------------------- */

/* Finds the inputs of --dynamic-batch. */
int cli_leading_read(struct cli_values *values);
/* Inputs, and outputs of a program, that have rows have as many as --rows says, else the most. */
int cli_dynamic_batch_inputs(struct cli_values *values, int64_t most);
int cli_dynamic_batch_outputs(struct cli_values *values, const quern_program *program);

/* ---- plans of training (plan_train.c) -------------------------------------------------------------------- */

/* Whether an argument is a training configuration, or the beginning of one, instead of a graph; and the command plan of it. */
bool cli_is_settings(const char *argument);
int cli_plan_settings(const struct cli_call *call);

/* ---- programs (program.c) ------------------------------------------------------------------------------- */

/* The device of that name, which an option or a key gives; or reports that there is none. */
int cli_device(const struct cli_call *call, const char *name, const char *word, const char **device);
/* clang-format off */
#define CLI_PROGRAM_OPTIONS                                                                                            \
  {"--device", 0, "NAME", "compile for this device: cuda:1, auto, ... (cpu); quern devices lists them"}, \
  {"--target", 0, "NAME", "code for this target instead of the device's own: avx2, sm_80, sm_90+blas+dnn+mma"},        \
  {"--threads", 0, "N", "threads of a run; without it as many as the machine grants"},                                 \
  {"--optimize", 0, "0|1", "0: one kernel per operation, in scalar code (1)"},                                         \
  {"--pass", 0, "LIST", "passes off and on, such as -fuse,-layout"},                                                   \
  {"--memory", 0, "BYTES", "the most a step may use beside state and constants: 1000, 64KiB, 1.5GiB"},                 \
  {"--gradient-checkpointing", 0, NULL, "what lies between checkpoints is computed again for what output 0 does not "  \
   "need"},                                                                                                            \
  {"--precision", 0, "KIND", "f32 (as written); bf16 or f16: what is f32 is computed with 16-bit activations"},          \
  {"--numerics", 0, "KIND", "exact (as written), tf32 (f32 products of GPUs may round to tf32) or fast (bits may vary on GPUs)"},          \
  {"--optimize-for", 0, "GOAL", "latency: threads wait actively; throughput: they sleep, and leave room (latency)"},   \
  {"--inference", 0, NULL, "nothing will be differentiated: more can be folded"},                                      \
  {"--updates", 0, NULL, "outputs with the name of a state become its value after a run, and are outputs no more"},    \
  {"--donate", 0, "NAME[,NAME]", "inputs whose memory a run may overwrite"},                                           \
  {"--dynamic-batch", 0, "NAME[,NAME]", "inputs whose first dimension is given at each run, and at most what it is"}
/* clang-format on */
#define CLI_PROGRAM_USAGE                                                                                              \
  "[--device NAME] [--target NAME] [--threads N] [--optimize 0|1] [--pass LIST] [--memory BYTES]\n"                    \
  "       [--gradient-checkpointing] [--precision KIND] [--numerics KIND] [--optimize-for GOAL] [--inference]\n"       \
  "       [--updates] [--donate NAME[,NAME]] [--dynamic-batch NAME[,NAME]]"

/* The first of these options that is given and is none of `but`, "--a --b"; NULL: none is. */
const char *cli_first_given(const struct cli_call *call, const char *but);
/* Whether quern compile -o has written a file, by its first bytes. */
bool cli_is_program(const char *path);
/* Compiles a graph by the options of the call, for the device unless they name one, with more passes (or NULL). */
int cli_compile(quern_program **program, const struct cli_values *values, const char *device, const char *passes);
/* The options that it compiles with; list: room for passes. With --precision outputs and updates are lowered. */
int cli_program_options(const struct cli_values *values, const char *device, const char *passes, char list[512],
                        quern_program_options *options);
/* What --precision selects, QUERN_DTYPE_F32 without it. */
int cli_precision(const struct cli_call *call, quern_dtype *low);
/* Outputs and new values of states become those with activations of a narrower dtype. Twice is the same as once. */
quern_status cli_lower(quern_context *ctx, quern_dtype low, size_t n, quern_tensor **outputs, size_t n_updates,
                       quern_update *updates);
/* quern_program_curve as a table; and of a graph, by the options of the call (curve.c). */
void cli_print_curve(FILE *out, size_t n, const quern_curve_point *points);
int cli_run_curve(const struct cli_values *values);
/* Writes what a program is made of to a file, "-" for standard output. */
int cli_print_explained(const quern_program *program, const quern_instance *instance, quern_explain_form form,
                        const char *path);
/* The number of bytes in the unit that suits it. */
const char *cli_bytes_text(char text[24], int64_t bytes);

/* ---- the commands --------------------------------------------------------------------------------------- */

extern const struct cli_command cli_command_bench, cli_command_compile, cli_command_devices, cli_command_env,
    cli_command_eval, cli_command_eval_loss, cli_command_explain, cli_command_generate, cli_command_graph,
    cli_command_info, cli_command_plan, cli_command_report, cli_command_resume, cli_command_run, cli_command_tokenize,
    cli_command_train, cli_command_tune;

#endif
