/* runtime/cpu/cache.c -- compiled objects in a private folder
** In the folder: <key>.so, an object with its checksum behind it; <key>.k, a symbolic link from a kernel to its object;
** <key>.txt, a note; quern-tmp-*, files being written and folders of compilations that run, locked by their processes.
** Objects are written under another name and renamed, so that a reader sees a whole one or none; after a crash of the
** machine the checksum shows what was not written. Any process may remove anything at any time: then it is made again.
** Everything goes by the open folder; what is opened is a regular file of this user, and a FIFO or a device is not
** waited for.
** keeps: only a folder that nobody else can write to, nor exchange, is used
** tests: tests/runtime/test_cache.c
*/
#include "runtime/cpu/cpu_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { KEY_DIGITS = 32, NAME_BYTES = 64, USED_SECONDS = 600 };

/* ---- keys ---------------------------------------------------------------------------------------------- */

struct rt_key rt_key_make(uint64_t seed, const void *bytes, size_t n) {
  struct rt_key key = {{base_hash_u64(BASE_HASH_SEED, seed), base_hash_u64(~BASE_HASH_SEED, seed)}};
  rt_key_add(&key, bytes, n);
  return key;
}

void rt_key_add(struct rt_key *key, const void *bytes, size_t n) {
  for (int i = 0; i < 2; i++) key->word[i] = base_hash_bytes(key->word[i], bytes, n);
}

bool rt_key_equal(const struct rt_key *a, const struct rt_key *b) {
  return a->word[0] == b->word[0] && a->word[1] == b->word[1];
}

static const char *name_of(char name[NAME_BYTES], const struct rt_key *key, const char *end) {
  snprintf(name, NAME_BYTES, "%016llx%016llx%s", (unsigned long long)key->word[0], (unsigned long long)key->word[1],
           end);
  return name;
}

/* The key in a name that ends so. */
static bool key_of(const char *name, const char *end, struct rt_key *key) {
  if (strlen(name) < KEY_DIGITS || strspn(name, "0123456789abcdef") != KEY_DIGITS ||
      strcmp(name + KEY_DIGITS, end) != 0)
    return false;
  char half[KEY_DIGITS / 2 + 1] = {0};
  for (int i = 0; i < 2; i++) {
    memcpy(half, name + i * (KEY_DIGITS / 2), KEY_DIGITS / 2);
    key->word[i] = strtoull(half, NULL, 16);
  }
  return true;
}

/* ---- the folder ---------------------------------------------------------------------------------------- */

/* Says once per process why there is no cache. */
static void warn(const char *path, const char *why) {
  static _Atomic bool warned;
  if (atomic_exchange(&warned, true)) return;
  base_log(0, "kernels are compiled at each start, since the cache %.300s%scannot be used: %s; see QUERN_CACHE", path,
           *path ? " " : "", why);
}

void rt_cache_path(char *path, size_t bytes) {
  const char *asked = base_env_get(BASE_ENV_CACHE), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  int n = 0;
  path[0] = 0;
  if (strcmp(asked, "0") == 0) return;
  if (*asked)
    n = snprintf(path, bytes, "%s", asked);
  else if (xdg && xdg[0] == '/')
    n = snprintf(path, bytes, "%s/quern", xdg);
  else if (home && home[0] == '/')
    n = snprintf(path, bytes, "%s/.cache/quern", home);
  else
    warn("", "neither XDG_CACHE_HOME nor HOME is set");
  if (n < 0 || (size_t)n >= bytes) path[0] = 0;
}

/* Makes a folder and those around it, as far as they are missing. */
static void make_folders(char *path) {
  for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
    *at = 0;
    (void)mkdir(path, 0700);
    *at = '/';
  }
  (void)mkdir(path, 0700);
}

/* Why others could change what is in the folder; NULL: they cannot. */
static const char *is_unsafe(int folder) {
  struct stat info;
  if (fstat(folder, &info) != 0) return strerror(errno);
  if (info.st_uid != geteuid()) return "it belongs to another user";
  if ((info.st_mode & 077) != 0) return "others may use it (chmod 700 helps)";
  if ((info.st_mode & 0700) != 0700) return "it may not be written";
  return NULL;
}

static DIR *list(const struct rt_cache *cache) {
  int copy = openat(cache->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *folder = copy >= 0 ? fdopendir(copy) : NULL;
  if (copy >= 0 && !folder) close(copy);
  return folder;
}

void rt_cache_open(struct rt_cache *cache, struct base_heap *heap, const char *path, int64_t limit) {
  char name[RT_PATH_BYTES];
  static _Atomic bool places_swept;
  *cache = (struct rt_cache){.heap = heap, .folder = -1, .limit = limit};
  if (!atomic_exchange(&places_swept, true)) rt_temporary_sweep();
  size_t n = strlen(path);
  while (n > 1 && path[n - 1] == '/') n--;
  if (n == 0) return;
  if (n >= sizeof name) {
    warn(path, "its name is too long");
    return;
  }
  memcpy(name, path, n);
  name[n] = 0;
  make_folders(name);
  struct stat info;
  const char *why = NULL;
  if (lstat(name, &info) == 0 && !S_ISDIR(info.st_mode)) why = "it is not a folder, or a link";
  int folder = why ? -1 : rt_folder_open(name, cache->path, &why); /* where it is, even after a change of directory */
  if (!why) why = is_unsafe(folder);
  if (why) {
    warn(path, why);
    if (folder >= 0) close(folder);
    return;
  }
  cache->folder = folder;
  static _Atomic bool swept;
  if (!atomic_exchange(&swept, true)) rt_folder_sweep(folder);
}

void rt_cache_close(struct rt_cache *cache) {
  if (cache->folder >= 0) close(cache->folder);
  cache->folder = -1;
}

/* ---- kernels and notes --------------------------------------------------------------------------------- */

bool rt_cache_find_kernel(const struct rt_cache *cache, const struct rt_key *kernel, struct rt_key *object) {
  char name[NAME_BYTES], to[NAME_BYTES];
  if (cache->folder < 0) return false;
  ssize_t n = readlinkat(cache->folder, name_of(name, kernel, ".k"), to, sizeof to - 1);
  if (n < 0) return false;
  to[n] = 0;
  return key_of(to, ".so", object);
}

void rt_cache_add_kernel(const struct rt_cache *cache, const struct rt_key *kernel, const struct rt_key *object) {
  char name[NAME_BYTES], to[NAME_BYTES];
  if (cache->folder < 0) return;
  name_of(name, kernel, ".k");
  name_of(to, object, ".so");
  if (symlinkat(to, cache->folder, name) == 0 || errno != EEXIST) return;
  unlinkat(cache->folder, name, 0); /* it led to one that is gone */
  (void)!symlinkat(to, cache->folder, name);
}

/* Opens a file of the cache; -1: there is none, or it is not a regular file of this user. */
static int open_entry(const struct rt_cache *cache, const char *name) {
  struct stat info;
  int fd = openat(cache->folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid()) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

/* Writes the parts to a new file, locked so that nobody takes it for left behind, and renames it. */
static bool put(const struct rt_cache *cache, const char *name, int n, const struct iovec *parts) {
  char new[RT_NAME_BYTES];
  int fd = rt_file_make(cache->folder, new);
  if (fd < 0) return false;
  bool whole = true;
  for (int i = 0; i < n && whole; i++) whole = rt_write_all(fd, parts[i].iov_base, parts[i].iov_len);
  whole = whole && renameat(cache->folder, new, cache->folder, name) == 0;
  int error = errno;
  if (!whole) unlinkat(cache->folder, new, 0);
  close(fd);
  errno = error;
  return whole;
}

void rt_cache_note_get(const struct rt_cache *cache, const struct rt_key *key, char *text, size_t bytes) {
  char name[NAME_BYTES];
  text[0] = 0;
  if (cache->folder < 0) return;
  int fd = open_entry(cache, name_of(name, key, ".txt"));
  if (fd < 0) return;
  ssize_t n = read(fd, text, bytes - 1);
  text[n > 0 ? n : 0] = 0;
  close(fd);
}

void rt_cache_note_set(const struct rt_cache *cache, const struct rt_key *key, const char *text) {
  char name[NAME_BYTES];
  struct iovec part = {(void *)(uintptr_t)text, strlen(text)};
  if (cache->folder >= 0) (void)put(cache, name_of(name, key, ".txt"), 1, &part);
}

/* ---- objects ------------------------------------------------------------------------------------------- */

struct trailer {
  char mark[8];
  uint64_t bytes;
  struct rt_key sum; /* of the object's key and bytes */
};

static struct trailer trailer_of(const struct rt_key *object, const void *bytes, size_t n) {
  struct trailer trailer = {.mark = {'q', 'u', 'e', 'r', 'n', ' ', 's', 'o'}, .bytes = n};
  trailer.sum = rt_key_make(2, object, sizeof *object);
  rt_key_add(&trailer.sum, bytes, n);
  return trailer;
}

quern_status rt_cache_read(const struct rt_cache *cache, const struct rt_key *object, struct rt_bytes *bytes,
                           char *path) {
  char name[NAME_BYTES];
  *bytes = (struct rt_bytes){0};
  int fd = cache->folder >= 0 ? open_entry(cache, name_of(name, object, ".so")) : -1;
  if (fd < 0) return QUERN_STATUS_OK;
  rt_path_in(path, cache->folder, name);
  quern_status status = rt_file_read(cache->heap, fd, name, bytes);
  struct stat info;
  time_t now = time(NULL);
  if (fstat(fd, &info) == 0 && (info.st_mtime > now || now - info.st_mtime > USED_SECONDS)) (void)!futimens(fd, NULL);
  close(fd);
  if (status == QUERN_STATUS_MEMORY) return status;
  struct trailer found, expected;
  bool whole = status == QUERN_STATUS_OK && bytes->n >= sizeof found;
  if (whole) {
    bytes->n -= sizeof found;
    memcpy(&found, (char *)bytes->at + bytes->n, sizeof found);
    expected = trailer_of(object, bytes->at, bytes->n);
    whole = memcmp(&found, &expected, sizeof found) == 0;
  }
  if (!whole) {
    base_log(1, "cache: %s/%s is damaged and will be made again", cache->path, name);
    rt_bytes_free(cache->heap, bytes);
    rt_cache_remove(cache, object);
  }
  return QUERN_STATUS_OK;
}

void rt_cache_remove(const struct rt_cache *cache, const struct rt_key *object) {
  char name[NAME_BYTES];
  if (cache->folder >= 0) unlinkat(cache->folder, name_of(name, object, ".so"), 0);
}

bool rt_cache_add(const struct rt_cache *cache, const struct rt_key *object, const void *bytes, size_t n) {
  static _Atomic bool warned;
  char name[NAME_BYTES];
  if (cache->folder < 0) return false;
  struct trailer trailer = trailer_of(object, bytes, n);
  struct iovec parts[] = {{(void *)(uintptr_t)bytes, n}, {&trailer, sizeof trailer}};
  bool added = put(cache, name_of(name, object, ".so"), 2, parts);
  if (!added && !atomic_exchange(&warned, true))
    base_log(0, "kernels cannot be kept in the cache %.300s: %s", cache->path, strerror(errno));
  return added;
}

/* ---- keeping it small ---------------------------------------------------------------------------------- */

struct file {
  char name[NAME_BYTES];
  int64_t bytes;
  struct timespec used;
};
struct files {
  BASE_VEC(struct file) list;
  int64_t bytes;
};

static int by_age(const void *a, const void *b) {
  const struct file *x = a, *y = b;
  if (x->used.tv_sec != y->used.tv_sec) return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
  if (x->used.tv_nsec != y->used.tv_nsec) return x->used.tv_nsec < y->used.tv_nsec ? -1 : 1;
  return strcmp(x->name, y->name);
}

/* Lists the objects. */
static bool list_objects(const struct rt_cache *cache, DIR *folder, struct files *files) {
  struct dirent *entry;
  struct rt_key key;
  struct stat info;
  while ((entry = readdir(folder))) {
    if (fstatat(cache->folder, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (!key_of(entry->d_name, ".so", &key) || !S_ISREG(info.st_mode)) continue;
    struct file file = {.bytes = (int64_t)info.st_size, .used = info.st_mtim};
    memcpy(file.name, entry->d_name, KEY_DIGITS + sizeof ".so");
    if (!base_vec_push(cache->heap, &files->list, file)) return false;
    files->bytes += file.bytes;
  }
  return true;
}

/* Removes links to objects that are gone. */
static void remove_dangling(const struct rt_cache *cache, DIR *folder) {
  struct dirent *entry;
  struct rt_key key;
  struct stat info;
  rewinddir(folder);
  while ((entry = readdir(folder))) {
    if (key_of(entry->d_name, ".k", &key) && fstatat(cache->folder, entry->d_name, &info, 0) != 0 && errno == ENOENT)
      unlinkat(cache->folder, entry->d_name, 0);
  }
}

/* When the limit is passed, a quarter of it is freed, so that this is rare. */
quern_status rt_cache_trim(const struct rt_cache *cache) {
  if (cache->folder < 0) return QUERN_STATUS_OK;
  rt_folder_sweep(cache->folder);
  DIR *folder = list(cache);
  if (!folder) return QUERN_STATUS_OK;
  struct files files = {0};
  bool listed = list_objects(cache, folder, &files);
  if (listed && files.list.n > 0 && files.bytes > cache->limit) {
    qsort(files.list.at, files.list.n, sizeof *files.list.at, by_age);
    for (size_t i = 0; i < files.list.n && files.bytes > cache->limit / 4 * 3; i++) {
      unlinkat(cache->folder, files.list.at[i].name, 0);
      files.bytes -= files.list.at[i].bytes;
    }
    remove_dangling(cache, folder);
  }
  closedir(folder);
  base_vec_fini(cache->heap, &files.list);
  return listed ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}
