/* base/temporary.c -- files under a temporary name until they are whole, and locks that are names in a folder
** keeps: a file of a living writer is locked by it (flock), and the kernel releases the lock with the process: a
**        temporary file without a lock was left by a killed writer, and whoever meets it removes it. A pid proves
**        nothing: in a container every run has the same one. No link is followed, and only regular files with one name
**        are removed. Where a file system has no locks, temporary files of killed writers stay.
** tests: tests/base/test_temporary.c
*/
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SLOTS = 256, LOCK_TRIES = 64 };
static const char end[] = ".tmp";

/* Whether an open file is a regular one that has the name; *names: how many it has. */
static bool has_name(int fd, int folder, const char *name, nlink_t *names) {
  struct stat file, there;
  if (fstat(fd, &file) != 0 || fstatat(folder, name, &there, AT_SYMLINK_NOFOLLOW) != 0) return false;
  *names = file.st_nlink;
  return S_ISREG(file.st_mode) && file.st_dev == there.st_dev && file.st_ino == there.st_ino;
}

/* Whether it has no other name: a copy by hard links may have one, and is not ours to remove. */
static bool is_at(int fd, int folder, const char *name) {
  nlink_t names;
  return has_name(fd, folder, name, &names) && names == 1;
}

/* Closes a file, and errno has the reason. Returns -1. */
static int give_up(int fd, int why) {
  close(fd);
  errno = why;
  return -1;
}

/* Locks an open file that has a name; -1 and it is closed: EAGAIN when another process looks at it or has taken its
** name away. */
static int lock_at(int fd, int folder, const char *name) {
  if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return give_up(fd, EAGAIN);
  return is_at(fd, folder, name) ? fd : give_up(fd, EAGAIN);
}

static int make(int folder, const char *name) {
  int fd = base_fd_high(openat(folder, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  return fd < 0 ? -1 : lock_at(fd, folder, name);
}

/* ---- temporary files ----------------------------------------------------------------------------------- */

int base_temporary_open(int folder, const char *path, char *name, size_t bytes) {
  for (unsigned i = 0; i < SLOTS; i++) {
    int n = snprintf(name, bytes, "%s.%u%s", path, i, end);
    if (n < 0 || (size_t)n >= bytes) {
      errno = ENAMETOOLONG;
      return -1;
    }
    int fd = make(folder, name), why = errno;
    if (fd < 0 && why == EEXIST && base_temporary_remove(folder, name)) {
      fd = make(folder, name);
      why = errno;
    }
    errno = why;
    if (fd >= 0 || (why != EEXIST && why != EAGAIN)) return fd;
  }
  errno = EEXIST;
  return -1;
}

bool base_temporary_remove(int folder, const char *name) {
  int fd = openat(folder, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return false;
  bool gone = flock(fd, LOCK_EX | LOCK_NB) == 0 && is_at(fd, folder, name) && unlinkat(folder, name, 0) == 0;
  close(fd);
  return gone;
}

bool base_temporary_is(const char *name, const char *path) {
  size_t n = strlen(path), digits;
  if (strncmp(name, path, n) != 0 || name[n] != '.') return false;
  digits = strspn(name + n + 1, "0123456789");
  return digits > 0 && strcmp(name + n + 1 + digits, end) == 0;
}

/* ---- locks --------------------------------------------------------------------------------------------- */

/* The pid in a lock; 0: it has none yet. */
static long holder_of(int fd) {
  char text[24] = "";
  ssize_t n = pread(fd, text, sizeof text - 1, 0);
  return n > 0 ? strtol(text, NULL, 10) : 0;
}

/* An open lock becomes this process's: its pid is written into it, as far as that goes. */
static void sign(int fd) {
  char text[24];
  int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
  if (ftruncate(fd, 0) == 0) (void)!pwrite(fd, text, (size_t)n, 0);
}

int base_lock_take(int folder, const char *name, long *holder) {
  *holder = 0;
  for (int i = 0; i < LOCK_TRIES; i++) {
    int fd = base_fd_high(openat(folder, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666));
    if (fd < 0) return -1;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      *holder = holder_of(fd);
      return give_up(fd, EWOULDBLOCK);
    }
    struct stat file;
    nlink_t names;
    if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode)) return give_up(fd, EINVAL);
    if (has_name(fd, folder, name, &names)) { /* of more names, as backups by hard links make them, one is enough */
      sign(fd);
      return fd;
    }
    close(fd); /* who had it has just taken the name away */
  }
  errno = EWOULDBLOCK;
  return -1;
}

void base_lock_release(int folder, const char *name, int fd) {
  nlink_t names;
  if (fd < 0) return;
  if (has_name(fd, folder, name, &names)) (void)unlinkat(folder, name, 0);
  close(fd);
}
