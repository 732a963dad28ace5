/* tests/runtime/files.h -- a temporary folder, and files in it
 */
#ifndef TESTS_RUNTIME_FILES_H
#define TESTS_RUNTIME_FILES_H
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "base/test.h"

static char test_folder[512];

/* The folder of this test program, new. */
static inline void files_begin(void) {
  const char *tmp = getenv("TMPDIR");
  snprintf(test_folder, sizeof test_folder, "%s/quern-test-XXXXXX", tmp && *tmp ? tmp : "/tmp");
  assert_non_null(mkdtemp(test_folder));
}

/* Removes what a folder holds, and it. */
static inline void files_remove(const char *path) {
  DIR *dir = opendir(path);
  struct dirent *entry;
  while (dir && (entry = readdir(dir))) {
    char name[1024];
    struct stat info;
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    if (snprintf(name, sizeof name, "%s/%s", path, entry->d_name) >= (int)sizeof name) continue;
    if (lstat(name, &info) == 0 && S_ISDIR(info.st_mode))
      files_remove(name);
    else
      unlink(name);
  }
  if (dir) closedir(dir);
  rmdir(path);
}

static inline void files_end(void) { files_remove(test_folder); }

/* The path of a name in the folder; one of 16 that are remembered. */
static inline const char *in_folder(const char *name) {
  static char paths[16][1024];
  static unsigned next;
  char *path = paths[next++ % 16];
  snprintf(path, sizeof paths[0], "%s/%s", test_folder, name);
  return path;
}

/* Makes the folders that a path needs. */
static inline void files_make_parents(const char *path) {
  char part[1024];
  for (const char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
    snprintf(part, sizeof part, "%.*s", (int)(at - path), path);
    assert_true(mkdir(part, 0700) == 0 || errno == EEXIST);
  }
}

static inline void files_write_bytes(const char *path, const void *bytes, size_t n) {
  files_make_parents(path);
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, n, file), n);
  assert_int_equal(fclose(file), 0);
}

static inline void files_write(const char *path, const char *text) { files_write_bytes(path, text, strlen(text)); }

/* How many names in a folder contain that part and, when end is given, end so. */
static inline int files_count(const char *path, const char *part, const char *end) {
  DIR *dir = opendir(path);
  struct dirent *entry;
  int n = 0;
  while (dir && (entry = readdir(dir))) {
    const char *name = entry->d_name;
    size_t length = strlen(name), tail = end ? strlen(end) : 0;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) continue;
    n += strstr(name, part) && length >= tail && (!end || strcmp(name + length - tail, end) == 0);
  }
  if (dir) closedir(dir);
  return n;
}

#endif
