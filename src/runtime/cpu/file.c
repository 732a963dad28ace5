/* runtime/cpu/file.c -- files and private folders
** A folder is opened from the root, step by step: when nobody else can rename what is on the way, its path means it for
** good. A temporary folder is locked as long as its process lives, so that what killed ones have left can be told from
** what is in use.
** tests: tests/runtime/test_cache.c
*/
#define _GNU_SOURCE /* realpath, O_PATH */
#include "runtime/cpu/cpu_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

bool rt_path(char *path, const char *folder, const char *name) {
  int n = snprintf(path, RT_PATH_BYTES, "%s/%s", folder, name);
  return n > 0 && n < RT_PATH_BYTES;
}

void rt_path_in(char *path, int folder, const char *name) {
  snprintf(path, RT_PATH_BYTES, "/proc/self/fd/%d/%s", folder, name);
}

bool rt_path_real(char *path, const char *name) {
  _Static_assert(PATH_MAX <= RT_PATH_BYTES, "realpath fits");
  return realpath(name, path) != NULL;
}

/* ---- folders that nobody else can exchange --------------------------------------------------------------------- */

#if defined(O_PATH)
enum { STEP = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };
#else
enum { STEP = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };
#endif

/* Whether the owner of a folder may exchange everything anyway: root, and whoever owns /, as which root shows in a user
** namespace that does not map it. */
static bool is_trusted(uid_t owner) {
  struct stat root;
  return owner == geteuid() || owner == 0 || (stat("/", &root) == 0 && owner == root.st_uid);
}

/* Why others could exchange what is in the folder; NULL: they cannot. */
static const char *is_open_to_others(int folder) {
  struct stat info;
  if (fstat(folder, &info) != 0) return strerror(errno);
  if (!is_trusted(info.st_uid)) return "a folder on its path belongs to another user";
  if ((info.st_mode & 022) != 0 && (info.st_mode & S_ISVTX) == 0)
    return "others may write to a folder on its path (chmod go-w helps)";
  return NULL;
}

static const char *why_not_opened(void) {
  return errno == ELOOP || errno == ENOTDIR ? "it is not a folder, or a link" : strerror(errno);
}

int rt_folder_open(const char *name, char *path, const char **why) {
  char rest[RT_PATH_BYTES];
  *why = NULL;
  if (!rt_path_real(path, name)) {
    *why = why_not_opened();
    return -1;
  }
  memcpy(rest, path, strlen(path) + 1);
  int folder = open("/", STEP);
  for (char *at = rest + 1, *end; folder >= 0 && *at && !*why; at = end) {
    *why = is_open_to_others(folder);
    end = at + strcspn(at, "/");
    bool last = *end == 0;
    if (!last) *end++ = 0;
    int next = *why ? -1 : openat(folder, at, last ? O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC : STEP);
    int error = errno;
    close(folder);
    folder = next;
    errno = error;
  }
  if (folder < 0 && !*why) *why = why_not_opened();
  return folder;
}

/* ---- temporary folders ----------------------------------------------------------------------------------------- */

void rt_name_make(char name[RT_NAME_BYTES]) {
  static _Atomic unsigned number;
  double now = base_clock();
  uint64_t hash = base_hash_bytes(BASE_HASH_SEED, &now, sizeof now);
  hash = base_hash_u64(base_hash_u64(hash, (uint64_t)getpid()), atomic_fetch_add(&number, 1));
  snprintf(name, RT_NAME_BYTES, RT_TEMPORARY "%016llx", (unsigned long long)hash);
}

bool rt_lock(int fd, bool *works) {
  int got;
  do got = flock(fd, LOCK_EX | LOCK_NB);
  while (got != 0 && errno == EINTR);
  *works = got == 0 || errno == EWOULDBLOCK;
  return got == 0;
}

enum { ATTEMPTS = 100 };

/* A new file or folder of a new name in an open folder, locked; -1, with errno set. Another process may take it for
** left behind and remove it before it is locked; then there is another. */
static int make_locked(int in, char name[RT_NAME_BYTES], bool is_folder) {
  for (int i = 0; i < ATTEMPTS; i++) {
    bool works;
    struct stat info;
    rt_name_make(name);
    if (is_folder && mkdirat(in, name, 0700) != 0 && errno != EEXIST) return -1;
    int flags = is_folder ? O_RDONLY | O_DIRECTORY : O_WRONLY | O_CREAT | O_EXCL;
    int fd = base_fd_high(openat(in, name, flags | O_NOFOLLOW | O_CLOEXEC, 0700));
    if (fd < 0 && errno != EEXIST && !(is_folder && errno == ENOENT)) return -1;
    if (fd < 0) continue;
    if ((rt_lock(fd, &works) || !works) && fstat(fd, &info) == 0 && info.st_nlink > 0) return fd;
    close(fd);
  }
  errno = EAGAIN;
  return -1;
}

int rt_file_make(int in, char name[RT_NAME_BYTES]) { return make_locked(in, name, false); }

static quern_status make_in(struct rt_folder *made, int in, const char *path) {
  *made = (struct rt_folder){.fd = -1, .in = fcntl(in, F_DUPFD_CLOEXEC, 3)};
  if (made->in >= 0) made->fd = make_locked(made->in, made->name, true);
  int error = errno;
  if (made->fd >= 0 && rt_path(made->path, path, made->name)) return QUERN_STATUS_OK;
  if (made->fd >= 0) error = ENAMETOOLONG;
  rt_folder_remove(made);
  return base_error(QUERN_STATUS_IO, "cannot make a folder for temporary files in %s: %s", path, strerror(error));
}

/* Where temporary folders are where there is no cache: TMPDIR comes first. */
enum { PLACES = 3 };
static const char *place_of(int i) {
  const char *const tmp = getenv("TMPDIR");
  if (i == 0) return tmp && *tmp ? tmp : "/tmp";
  return i == 1 ? "/tmp" : "/dev/shm";
}

/* Removes a temporary file or folder of this user if its process is gone: nobody has it locked. Where locks do not work:
** if it was not touched for long. */
static void remove_left(int in, const char *name) {
  struct stat info;
  bool works;
  int fd = openat(in, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd < 0) return;
  bool left = rt_lock(fd, &works);
  if (fstat(fd, &info) != 0 || info.st_uid != geteuid()) {
    close(fd);
    return;
  }
  if (left) left = info.st_mtime <= time(NULL) + 1; /* else it is kept for a while: rt_folder_leave */
  if (!works) left = time(NULL) - info.st_mtime > RT_LEFT_SECONDS;
  bool folder = S_ISDIR(info.st_mode);
  if (left && folder) rt_folder_empty(fd);
  if (left) unlinkat(in, name, folder ? AT_REMOVEDIR : 0);
  close(fd);
}

void rt_folder_sweep(int fd) {
  int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *folder = copy >= 0 ? fdopendir(copy) : NULL;
  struct dirent *entry;
  while (folder && (entry = readdir(folder))) {
    if (strncmp(entry->d_name, RT_TEMPORARY, sizeof RT_TEMPORARY - 1) == 0) remove_left(copy, entry->d_name);
  }
  if (folder)
    closedir(folder);
  else if (copy >= 0)
    close(copy);
}

void rt_temporary_sweep(void) {
  for (int i = 0; i < PLACES; i++) {
    int fd =
        i > 0 && strcmp(place_of(i), place_of(i - 1)) == 0 ? -1 : open(place_of(i), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) continue;
    rt_folder_sweep(fd);
    close(fd);
  }
}

quern_status rt_folder_make(struct rt_folder *made, int in, const char *path) {
  const char *why;
  *made = (struct rt_folder){.fd = -1, .in = -1};
  if (in >= 0) return make_in(made, in, path);
  quern_status status = QUERN_STATUS_IO;
  for (int i = 0; i < PLACES && status == QUERN_STATUS_IO; i++) {
    const char *place = place_of(i);
    char real[RT_PATH_BYTES];
    int folder = strlen(place) < RT_PATH_BYTES ? rt_folder_open(place, real, &why) : -1;
    if (folder >= 0 && (why = is_open_to_others(folder)) != NULL) {
      close(folder);
      folder = -1;
    }
    status = folder >= 0 ? make_in(made, folder, real)
                         : base_error(QUERN_STATUS_IO,
                                      "cannot make a folder for temporary files in %s: %s\n"
                                      "  HINT: set TMPDIR to a folder of your own",
                                      place, strlen(place) < RT_PATH_BYTES ? why : "its name is too long");
    if (folder >= 0) close(folder);
  }
  return status;
}

void rt_folder_empty(int fd) {
  int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *folder = copy >= 0 ? fdopendir(copy) : NULL;
  struct dirent *entry;
  while (folder && (entry = readdir(folder))) unlinkat(copy, entry->d_name, 0); /* fails for . and .. */
  if (folder)
    closedir(folder);
  else if (copy >= 0)
    close(copy);
}

static void forget(struct rt_folder *folder) {
  if (folder->fd >= 0) close(folder->fd);
  if (folder->in >= 0) close(folder->in);
  folder->fd = folder->in = -1;
}

/* Its time of change is when it may go. */
void rt_folder_leave(struct rt_folder *folder) {
  struct timespec until = {.tv_sec = time(NULL) + RT_LEFT_SECONDS};
  if (folder->fd >= 0) (void)!futimens(folder->fd, (struct timespec[2]){until, until});
  forget(folder);
}

void rt_folder_remove(struct rt_folder *folder) {
  if (folder->fd >= 0) {
    rt_folder_empty(folder->fd);
    unlinkat(folder->in, folder->name, AT_REMOVEDIR);
  }
  forget(folder);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

bool rt_write_all(int fd, const void *bytes, size_t n) {
  for (size_t done = 0; done < n;) {
    ssize_t put = write(fd, (const char *)bytes + done, n - done);
    if (put < 0 && errno == EINTR) continue;
    if (put == 0) errno = ENOSPC;
    if (put <= 0) return false;
    done += (size_t)put;
  }
  return true;
}

quern_status rt_file_write(const char *path, const void *bytes, size_t n) {
  int fd = base_fd_high(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700));
  QUERN_CHECK(fd >= 0, IO, "cannot write %s: %s", path, strerror(errno));
  bool whole = rt_write_all(fd, bytes, n);
  int error = errno;
  if (close(fd) != 0 && whole) {
    whole = false;
    error = errno;
  }
  QUERN_CHECK(whole, IO, "cannot write %s: %s", path, strerror(error));
  return QUERN_STATUS_OK;
}

quern_status rt_file_read(struct base_heap *heap, int fd, const char *path, struct rt_bytes *bytes) {
  struct stat info;
  *bytes = (struct rt_bytes){0};
  QUERN_CHECK(fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size >= 0, IO, "%s is not a file", path);
  bytes->room = (size_t)info.st_size;
  bytes->at = base_alloc(heap, bytes->room);
  if (!bytes->at) return QUERN_STATUS_MEMORY;
  while (bytes->n < bytes->room) {
    ssize_t got = read(fd, (char *)bytes->at + bytes->n, bytes->room - bytes->n);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    bytes->n += (size_t)got;
  }
  bool whole = bytes->n == bytes->room;
  if (!whole) rt_bytes_free(heap, bytes);
  QUERN_CHECK(whole, IO, "cannot read %s", path);
  return QUERN_STATUS_OK;
}

void rt_bytes_free(struct base_heap *heap, struct rt_bytes *bytes) {
  base_free(heap, bytes->at, bytes->room);
  *bytes = (struct rt_bytes){0};
}
