/* cli/option.c -- the arguments of a command by its table of options */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct cli_option help_option = {"--help", 'h', NULL, "this text"};

static const struct cli_option *option_at(const struct cli_command *command, size_t i) {
  static const struct cli_option none = {0};
  const struct cli_option *options = command->options != NULL ? command->options : &none;
  size_t n = 0;
  while (options[n].name != NULL) n++;
  return i < n ? &options[i] : i == n ? &help_option : NULL;
}

void cli_print_help(FILE *out, const struct cli_command *command) {
  fprintf(out, "usage: quern %s%s%s\n\n%s\n\noptions:\n", command->name, command->usage[0] != 0 ? " " : "",
          command->usage, command->help);
  const struct cli_option *option;
  for (size_t i = 0; (option = option_at(command, i)) != NULL; i++) {
    char left[64];
    int n = option->letter != 0 ? snprintf(left, sizeof left, "-%c, %s", option->letter, option->name)
                                : snprintf(left, sizeof left, "%s", option->name);
    if (option->argument != NULL) snprintf(left + n, sizeof left - (size_t)n, " %s", option->argument);
    fprintf(out, "  %-22s %s\n", left, option->help);
  }
  if (command->more != NULL) fprintf(out, "\n%s", command->more);
  if (command->print_more != NULL) command->print_more(out);
}

/* Names that options had once: people and scripts still write them. */
static const struct {
  const char *old, *name;
} renamed[] = {{"--optimise", "--optimize"},
               {"--leading", "--dynamic-batch"},
               {"--recompute", "--gradient-checkpointing"},
               {"--dot", "--graphviz"}};

/* Whether an argument, up to its =, is a name or what it was once. */
static bool is_named(const char *argument, const char *name) {
  size_t n = strcspn(argument, "=");
  for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++)
    if (n == strlen(renamed[i].old) && strncmp(argument, renamed[i].old, n) == 0)
      return strcmp(renamed[i].name, name) == 0;
  return n == strlen(name) && strncmp(argument, name, n) == 0;
}

/* The option that an argument names: --set, --set=..., -o, -oFILE; *rest is what follows it, or NULL. */
static const struct cli_option *find_option(const struct cli_command *command, const char *argument,
                                            const char **rest) {
  const struct cli_option *option;
  for (size_t i = 0; (option = option_at(command, i)) != NULL; i++) {
    const char *equals = strchr(argument, '=');
    *rest = equals != NULL ? equals + 1 : NULL;
    if (is_named(argument, option->name)) return option;
    *rest = argument[1] != 0 && argument[2] != 0 ? argument + 2 : NULL;
    if (option->letter != 0 && argument[1] == option->letter && (*rest == NULL || option->argument != NULL))
      return option;
  }
  return NULL;
}

static int unknown_option(const struct cli_command *command, const char *argument) {
  const char *names[32];
  size_t n = 0;
  for (const struct cli_option *option; n < 32 && (option = option_at(command, n)) != NULL; n++)
    names[n] = option->name;
  char word[64];
  snprintf(word, sizeof word, "%.*s", (int)strcspn(argument, "="), argument);
  const char *nearest = cli_nearest(word, n, names);
  return cli_usage(command, "there is no option '%s'%s%s%s", word, nearest != NULL ? "; did you mean '" : "",
                   nearest != NULL ? nearest : "", nearest != NULL ? "'?" : "");
}

/* Reads all arguments into call, whose lists have room for them. */
static int read_arguments(struct cli_call *call, int argc, char **argv) {
  bool options = true;
  for (int i = 0; i < argc; i++) {
    const char *argument = argv[i], *rest;
    if (!options || argument[0] != '-' || argument[1] == 0) {
      call->files[call->n_files++] = argument;
      continue;
    }
    if (strcmp(argument, "--") == 0) {
      options = false;
      continue;
    }
    const struct cli_option *option = find_option(call->command, argument, &rest);
    if (option == NULL) return unknown_option(call->command, argument);
    if (option->argument == NULL && rest != NULL) return cli_usage(call->command, "%s takes no value", option->name);
    if (option->argument != NULL && rest == NULL) {
      if (++i == argc) return cli_usage(call->command, "%s needs %s", option->name, option->argument);
      rest = argv[i];
    }
    call->given[call->n_given++] = (struct cli_given){.option = option, .value = rest};
  }
  return CLI_OK;
}

static int run_call(struct cli_call *call, int argc, char **argv) {
  const struct cli_command *command = call->command;
  int status = read_arguments(call, argc, argv);
  if (status != CLI_OK) return status;
  if (cli_has(call, "--help", NULL)) {
    cli_print_help(stdout, command);
    return CLI_OK;
  }
  if (call->n_files < command->least_files)
    return cli_usage(command, "takes %zu argument%s, got %zu", command->least_files,
                     command->least_files == 1 ? "" : "s", call->n_files);
  if (call->n_files > command->most_files)
    return cli_usage(command, "takes at most %zu argument%s, '%s' is one more", command->most_files,
                     command->most_files == 1 ? "" : "s", call->files[command->most_files]);
  return command->run(call);
}

int cli_run(const struct cli_command *command, int argc, char **argv) {
  size_t n = (size_t)argc + 1;
  struct cli_call call = {
      .command = command, .given = calloc(n, sizeof *call.given), .files = calloc(n, sizeof *call.files)};
  int status = call.given != NULL && call.files != NULL ? run_call(&call, argc, argv) : cli_fail("no memory");
  free(call.files);
  free(call.given);
  return status;
}

bool cli_has(const struct cli_call *call, const char *name, const char **value) {
  bool found = false;
  for (size_t i = 0; i < call->n_given; i++) {
    if (strcmp(call->given[i].option->name, name) != 0) continue;
    found = true;
    if (value != NULL) *value = call->given[i].value;
  }
  return found;
}

int cli_number(const struct cli_call *call, const char *name, int64_t least, int64_t most, int64_t *number) {
  const char *text;
  if (!cli_has(call, name, &text)) return CLI_OK;
  char *end = NULL;
  errno = 0;
  long long x = strtoll(text, &end, 10);
  if (errno != 0 || end == text || *end != 0 || x < least || x > most)
    return cli_usage(call->command, "%s takes a number from %lld to %lld, got '%s'", name, (long long)least,
                     (long long)most, text);
  *number = x;
  return CLI_OK;
}

int cli_real(const struct cli_call *call, const char *name, double least, double most, double *number) {
  const char *text;
  if (!cli_has(call, name, &text)) return CLI_OK;
  char *end = NULL;
  double x = strtod(text, &end);
  if (end == text || *end != 0 || !(x >= least && x <= most))
    return cli_usage(call->command, "%s takes a number from %g to %g, got '%s'", name, least, most, text);
  *number = x;
  return CLI_OK;
}

int cli_bytes(const struct cli_call *call, const char *name, int64_t *bytes) {
  static const quern_config_key key = {.name = "bytes", .type = QUERN_CONFIG_BYTES, .value = "0"};
  const char *text;
  quern_config *config;
  if (!cli_has(call, name, &text)) return CLI_OK;
  if (quern_config_new(&config, 1, &key, NULL) != QUERN_STATUS_OK) return cli_fail_last(name);
  quern_status status = quern_config_set(config, key.name, text);
  if (status == QUERN_STATUS_OK) *bytes = quern_config_int(config, key.name);
  quern_config_free(config);
  if (status == QUERN_STATUS_OK) return CLI_OK;
  return cli_usage(call->command, "%s takes bytes such as 1000, 64KiB, 1.5GB or 2GiB, got '%s'", name, text);
}
