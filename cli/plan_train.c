/* cli/plan_train.c -- the command plan of a training configuration: its memory, and what less of it would cost
** tests: tests/cli/test_train.c
*/
#include "train.h"

#include <string.h>

enum { POINTS = 8 };

bool cli_is_settings(const char *argument) {
  static const char head[] = "quern ";
  char begin[sizeof head] = "";
  size_t n = strlen(argument);
  if (strcmp(argument, "-") == 0 || (n > 4 && strcmp(argument + n - 4, ".qir") == 0)) return false;
  FILE *file = fopen(argument, "rb");
  if (file == NULL) return strpbrk(argument, "/.") == NULL || strchr(argument, '=') != NULL;
  size_t got = fread(begin, 1, sizeof head - 1, file);
  fclose(file);
  return got < sizeof head - 1 || memcmp(begin, head, got) != 0;
}

static void on_begin(void *user, const quern_train_info *info) { cli_tell_run(user, info); }
static void on_note(void *user, const char *text) { cli_line_print(user, "%s", text); }

int cli_plan_settings(const struct cli_call *call) {
  struct cli_line line = {.every = 1};
  quern_config *config = NULL;
  quern_curve_point points[POINTS] = {QUERN_INIT(quern_curve_point)};
  quern_train_callbacks callbacks = QUERN_INIT(quern_train_callbacks);
  size_t n = 0;
  callbacks.user = &line;
  callbacks.begin = on_begin;
  callbacks.note = on_note;
  int status = cli_settings(call, false, &config);
  if (status == CLI_OK && quern_train_plan(config, &callbacks, POINTS, points, &n) != QUERN_STATUS_OK)
    status = cli_fail("%s", quern_last_error());
  if (status == CLI_OK) {
    printf("\nmemory of a step, beside state and constants, against its time as predicted:\n");
    cli_print_curve(stdout, n, points);
  }
  quern_config_free(config);
  return status;
}
