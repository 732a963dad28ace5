/* tests/io/folder.h -- a folder of a test's own: in memory where there is such a file system, so that synchronizing takes no time */
#ifndef TESTS_IO_FOLDER_H
#define TESTS_IO_FOLDER_H
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "unit.h"

static char folder[64];

static inline bool folder_make(void) {
  snprintf(folder, sizeof folder, "/dev/shm/quern_test_XXXXXX");
  if (mkdtemp(folder) != NULL) return true;
  snprintf(folder, sizeof folder, "/tmp/quern_test_XXXXXX");
  return mkdtemp(folder) != NULL;
}

/* A path in the folder, in one of a few places that are used in turn. */
static inline const char *in_folder(const char *name) {
  static char path[8][512];
  static int turn;
  turn = (turn + 1) % 8;
  snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
  return path[turn];
}

/* How many names a folder has. */
static inline int folder_count(const char *path) {
  int n = 0;
  DIR *dir = opendir(path);
  assert_non_null(dir);
  for (const struct dirent *entry; (entry = readdir(dir)) != NULL;)
    n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
  closedir(dir);
  return n;
}

/* Removes what is in the folder, and folders of files in it. */
static inline void folder_clear(const char *path) {
  DIR *dir = opendir(path);
  assert_non_null(dir);
  for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    char inside[4096];
    struct stat there;
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    int n = snprintf(inside, sizeof inside, "%s/%s", path, entry->d_name);
    assert_true(n > 0 && (size_t)n < sizeof inside);
    if (lstat(inside, &there) == 0 && S_ISDIR(there.st_mode)) {
      folder_clear(inside);
      rmdir(inside);
    } else {
      unlink(inside);
    }
  }
  closedir(dir);
}

static inline size_t file_load(const char *path, unsigned char *bytes, size_t room) {
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  size_t n = fread(bytes, 1, room, file);
  fclose(file);
  return n;
}

static inline void file_store(const char *path, const void *bytes, size_t n) {
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, n, file), n);
  fclose(file);
}

#endif
