/* cli/bench_room.c -- a folder for what a suite writes while it measures */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "bench.h"

#include <stdlib.h>

int bench_room_make(struct bench_room *room) {
  const char *dir = getenv("TMPDIR");
  int n = snprintf(room->path, sizeof room->path, "%s/quern-bench-XXXXXX", dir != NULL && dir[0] != 0 ? dir : "/tmp");
  if (n < 0 || n >= BENCH_PATH - 64 || mkdtemp(room->path) == NULL)
    return cli_fail("bench: no folder for files can be made");
  return CLI_OK;
}

void bench_room_remove(const struct bench_room *room) {
  char command[BENCH_PATH + 16];
  snprintf(command, sizeof command, "rm -rf '%s'", room->path);
  if (system(command) != 0) fprintf(stderr, "quern: %s could not be removed\n", room->path);
}
