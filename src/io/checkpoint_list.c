/* io/checkpoint_list.c -- the checkpoints of a folder, and the newest that is whole
** keeps: only names step-<digits> and step-<digits>.<digits> count; what is being written or removed has others
** tests: tests/io/test_checkpoint.c, tests/io/test_checkpoint_kill.c
*/
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "io/checkpoint.h"

enum { LISTS = 1000, EMPTY_LISTS = 3 }; /* tries beside a process that saves */

quern_status io_path_join(char path[IO_PATH_MOST], const char *dir, const char *name) {
  int n = snprintf(path, IO_PATH_MOST, "%s/%s", dir, name);
  QUERN_CHECK(n > 0 && n < IO_PATH_MOST, IO, "%s/%s: the path has more than %d bytes", dir, name, IO_PATH_MOST - 1);
  return QUERN_STATUS_OK;
}

/* Decimal digits that fit; *end is left after them. */
static bool read_digits(const char *text, const char **end, uint64_t *x) {
  *x = 0;
  for (*end = text; **end >= '0' && **end <= '9'; ++*end) {
    uint64_t digit = (uint64_t)(**end - '0');
    if (*x > (UINT64_MAX - digit) / 10) return false;
    *x = *x * 10 + digit;
  }
  return *end > text;
}

static bool read_name(const char *name, struct io_saved *saved) {
  static const char before[] = "step-";
  const char *end;
  *saved = (struct io_saved){0};
  size_t n = strlen(name);
  if (strncmp(name, before, strlen(before)) != 0 || n >= sizeof saved->name) return false;
  if (!read_digits(name + strlen(before), &end, &saved->step)) return false;
  if (*end == '.' && !read_digits(end + 1, &end, &saved->number)) return false;
  memcpy(saved->name, name, n + 1);
  return *end == 0;
}

static int newest_first(const void *a, const void *b) {
  const struct io_saved *x = a, *y = b;
  if (x->step != y->step) return x->step > y->step ? -1 : 1;
  if (x->number != y->number) return x->number > y->number ? -1 : 1;
  return strcmp(x->name, y->name);
}

quern_status io_saved_list(struct io_saved_list *saved, struct base_heap *heap, const char *dir) {
  *saved = (struct io_saved_list){.heap = heap};
  DIR *folder = opendir(dir);
  QUERN_CHECK(folder != NULL || errno == ENOENT, IO, "%s: cannot be listed: %s", dir, strerror(errno));
  if (folder == NULL) return QUERN_STATUS_OK;
  quern_status status = QUERN_STATUS_OK;
  errno = 0;
  for (const struct dirent *entry; status == QUERN_STATUS_OK && (entry = readdir(folder)) != NULL; errno = 0) {
    struct io_saved one;
    if (read_name(entry->d_name, &one) && !base_vec_push(heap, &saved->list, one)) status = QUERN_STATUS_MEMORY;
  }
  if (status == QUERN_STATUS_OK && errno != 0)
    status = base_error(QUERN_STATUS_IO, "%s: cannot be listed: %s", dir, strerror(errno));
  closedir(folder);
  if (saved->list.n > 1) qsort(saved->list.at, saved->list.n, sizeof *saved->list.at, newest_first);
  return status;
}

void io_saved_fini(struct io_saved_list *saved) { base_vec_fini(saved->heap, &saved->list); }

/* Opens one and compares its elements. */
static quern_status open_whole(quern_checkpoint **checkpoint, const char *path, const quern_allocator *allocator) {
  QUERN_TRY(io_checkpoint_open(checkpoint, path, allocator));
  quern_status status = quern_checkpoint_verify(*checkpoint);
  if (status == QUERN_STATUS_OK) return status;
  quern_checkpoint_close(*checkpoint);
  *checkpoint = NULL;
  return status;
}

/* Whether a checkpoint has lost its name since it was listed: a later one, or another of its step, has come. */
static bool is_gone(const char *path) {
  struct stat there;
  return lstat(path, &there) != 0 && errno == ENOENT;
}

/* The newest that is whole. gone: one of those that were listed is not there any more. */
static quern_status find_whole(quern_checkpoint **checkpoint, const char *dir, const struct io_saved_list *saved,
                               const quern_allocator *allocator, bool *gone) {
  char path[IO_PATH_MOST], newest[BASE_MESSAGE_BYTES / 2] = "";
  for (size_t i = 0; i < saved->list.n; i++) {
    QUERN_TRY(io_path_join(path, dir, saved->list.at[i].name));
    quern_status status = open_whole(checkpoint, path, allocator);
    if (status == QUERN_STATUS_MEMORY) return status;
    if (status == QUERN_STATUS_OK) {
      (*checkpoint)->info.skipped = i;
      return status;
    }
    *gone = is_gone(path);
    if (*gone) return status;
    base_log(0, "checkpoint %s is skipped: %s", path, quern_last_error());
    if (i == 0) snprintf(newest, sizeof newest, "%s", quern_last_error());
  }
  QUERN_CHECK(saved->list.n == 0, PARSE, "%s: of %zu checkpoints none is whole; the newest: %s", dir, saved->list.n,
              newest);
  return QUERN_STATUS_OK;
}

/* Lists a folder and finds the newest that is whole. A list of none is no proof that there is none: a name that is
** taken away and one that is given while the folder is read may both be missed. */
static quern_status find_now(quern_checkpoint **checkpoint, const char *dir, struct base_heap *heap,
                             const quern_allocator *allocator, bool *gone) {
  struct io_saved_list saved = {0};
  quern_status status = QUERN_STATUS_OK;
  *gone = false;
  for (int i = 0; i < EMPTY_LISTS && status == QUERN_STATUS_OK && saved.list.n == 0; i++) {
    if (i > 0) io_saved_fini(&saved);
    status = io_saved_list(&saved, heap, dir);
  }
  if (status == QUERN_STATUS_OK) status = find_whole(checkpoint, dir, &saved, allocator, gone);
  io_saved_fini(&saved);
  return status;
}

quern_status quern_checkpoint_find(quern_checkpoint **checkpoint, const char *dir, const quern_allocator *allocator) {
  QUERN_CHECK(checkpoint != NULL, INVALID, "checkpoint_find: the place for the checkpoint is null");
  *checkpoint = NULL;
  QUERN_CHECK(dir != NULL && dir[0] != 0, INVALID, "checkpoint_find: the path is %s", dir == NULL ? "null" : "empty");
  QUERN_CHECK(allocator == NULL || (allocator->alloc == NULL) == (allocator->free == NULL), INVALID,
              "checkpoint_find: an allocator needs both alloc and free");
  QUERN_TRY(base_env_read());
  struct base_heap heap;
  bool gone = true;
  quern_status status = QUERN_STATUS_OK;
  base_heap_init(&heap, allocator);
  for (int i = 0; i < LISTS && gone; i++) status = find_now(checkpoint, dir, &heap, allocator, &gone);
  return status;
}
