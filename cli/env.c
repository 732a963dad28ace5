/* cli/env.c -- the command env: the environment variables that Quern reads */
#include "cli.h"

#include <string.h>

const char *cli_env(const char *name) {
  for (size_t i = 0; i < quern_env_count(); i++) {
    quern_env_entry entry = QUERN_INIT(quern_env_entry);
    if (quern_env_get(i, &entry) == QUERN_STATUS_OK && strcmp(entry.name, name) == 0) return entry.value;
  }
  return "";
}

static int run(const struct cli_call *call) {
  (void)call;
  for (size_t i = 0; i < quern_env_count(); i++) {
    quern_env_entry entry = QUERN_INIT(quern_env_entry);
    if (quern_env_get(i, &entry) != QUERN_STATUS_OK) return cli_fail("%s", quern_last_error());
    cli_print(stdout, "%s=%s\n    %s (%s; default: %s)\n", entry.name, entry.value, entry.help, entry.form,
              entry.fallback[0] != 0 ? entry.fallback : "unset");
  }
  quern_context *ctx = NULL; /* making one finds which value is malformed, and so not in force */
  quern_status status = quern_context_new(&ctx, NULL);
  quern_context_free(ctx);
  return status == QUERN_STATUS_INVALID ? cli_fail("%s", quern_last_error()) : CLI_OK;
}

const struct cli_command cli_command_env = {
    .name = "env", .usage = "", .help = "the environment variables that Quern reads, and their values", .run = run};
