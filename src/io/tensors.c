/* io/tensors.c -- tensors by a path, whatever kind of file or folder has them
** tests: tests/engine/test_states.c, tests/train/test_generate.c
*/
#include <stdio.h>
#include <sys/stat.h>

#include "io/checkpoint.h"

static bool is_folder(const char *path) {
  struct stat s;
  return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

static bool has_file(const char *dir, const char *name) {
  char path[IO_PATH_MOST];
  struct stat s;
  int n = snprintf(path, sizeof path, "%s/%s", dir, name);
  return n > 0 && (size_t)n < sizeof path && stat(path, &s) == 0;
}

quern_status io_tensors_open(quern_checkpoint **checkpoint, quern_safetensors **file, const char *path,
                             const quern_allocator *allocator) {
  *checkpoint = NULL;
  *file = NULL;
  if (is_folder(path) && has_file(path, IO_CHECKPOINT_JSON)) {
    QUERN_TRY(quern_checkpoint_open(checkpoint, path, allocator));
    QUERN_TRY(quern_checkpoint_verify(*checkpoint));
  } else if (is_folder(path)) {
    QUERN_TRY(quern_checkpoint_find(checkpoint, path, allocator));
  }
  return *checkpoint != NULL ? QUERN_STATUS_OK : quern_safetensors_open(file, path, allocator);
}
