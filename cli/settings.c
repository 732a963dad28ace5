/* cli/settings.c -- the configuration of a run from a command line
** tests: tests/cli/test_train.c
*/
#include "train.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool is_word(const char *argument) { return strchr(argument, '=') != NULL; }

static bool is_there(const char *path) {
  struct stat there;
  return stat(path, &there) == 0;
}

static int bad_word(const struct cli_call *call) { return cli_usage(call->command, "%s", quern_last_error()); }

/* A file by its path, else a preset by its name. */
static int read_base(const struct cli_call *call, quern_config *config, const char *name) {
  if (is_there(name))
    return quern_config_file(config, name) == QUERN_STATUS_OK ? CLI_OK : cli_fail("%s", quern_last_error());
  if (strchr(name, '/') != NULL || strchr(name, '.') != NULL) return cli_fail("%s: there is no such file", name);
  return quern_train_preset(config, name) == QUERN_STATUS_OK ? CLI_OK : bad_word(call);
}

/* The values that a run was started with; its folder may have been moved since. */
static int read_run(quern_config *config, const char *dir) {
  quern_status status = quern_train_config_of(config, dir);
  if (status == QUERN_STATUS_OK) status = quern_config_set(config, "out", dir);
  return status == QUERN_STATUS_OK ? CLI_OK : cli_fail("%s", quern_last_error());
}

int cli_settings(const struct cli_call *call, bool dir, quern_config **config) {
  const char *memory;
  *config = NULL;
  if (call->n_files == 0 && !cli_has(call, "--memory", NULL))
    return cli_usage(call->command, "takes a configuration: a file, a preset (adder, chars), or key=value ...");
  if (quern_train_config(config, NULL) != QUERN_STATUS_OK) return cli_fail("%s", quern_last_error());
  for (size_t i = 0; i < call->n_files; i++) {
    const char *argument = call->files[i];
    int status = CLI_OK;
    if (i == 0 && dir)
      status = read_run(*config, argument);
    else if (is_word(argument))
      status = quern_config_word(*config, argument) == QUERN_STATUS_OK ? CLI_OK : bad_word(call);
    else if (i == 0)
      status = read_base(call, *config, argument);
    else
      status = cli_usage(call->command, "expected key=value, got '%s'", argument);
    if (status != CLI_OK) return status;
  }
  if (cli_has(call, "--memory", &memory) && quern_config_set(*config, "memory", memory) != QUERN_STATUS_OK)
    return bad_word(call);
  return CLI_OK;
}

void cli_settings_help(FILE *out) {
  quern_config *config = NULL;
  char *text = NULL;
  if (quern_train_config(&config, NULL) == QUERN_STATUS_OK && quern_config_help(config, &text) == QUERN_STATUS_OK)
    fprintf(out, "\nkeys:\n%s", text);
  if (text != NULL) quern_free_text(text);
  quern_config_free(config);
}
