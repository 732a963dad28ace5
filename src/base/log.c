/* base/log.c -- lines on stderr for people
** keeps: a line is written at once, so that lines of several threads do not mix
** tests: tests/base/test_env.c
*/
#include "base/base.h"

#include <stdio.h>

void base_log(int level, const char *fmt, ...) {
  if (level > 0 && base_env_int(BASE_ENV_DEBUG) < level) return;
  char line[BASE_MESSAGE_BYTES], shown[BASE_MESSAGE_BYTES];
  va_list args;
  va_start(args, fmt);
  int n = vsnprintf(line, sizeof line, fmt, args);
  va_end(args);
  if (n >= 0)
    fprintf(stderr, "quern: %s%s\n", level > 0 ? "" : "warning: ", base_text_shown(shown, sizeof shown, line, true));
}
