/* probe/probe.c -- malloc and its kin with a counter, in front of those of the C library; and the figures of /proc
 */
#define _GNU_SOURCE /* RTLD_NEXT */
#include "probe/probe.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

/* ---- allocations ----------------------------------------------------------------------------------------------- */

static atomic_uint_fast64_t allocations;

uint64_t probe_allocations(void) { return atomic_load(&allocations); }

#ifdef SANITIZED

bool probe_counts(void) { return false; }

#else

#define EXPORT __attribute__((visibility("default")))

/* The C library's. */
static struct {
  void *(*alloc)(size_t bytes);
  void *(*zeroed)(size_t n, size_t size);
  void *(*again)(void *memory, size_t bytes);
  void *(*aligned)(size_t alignment, size_t bytes);
  void (*release)(void *memory);
} next;

/* What is asked for while those are looked up. */
static _Alignas(64) char early[1 << 14];
static size_t early_used;

static bool is_early(const void *memory) {
  return (uintptr_t)memory >= (uintptr_t)early && (uintptr_t)memory < (uintptr_t)early + sizeof early;
}

static void *early_alloc(size_t bytes) {
  size_t need = (bytes + 63) / 64 * 64;
  if (need < bytes || need > sizeof early - early_used) return NULL;
  early_used += need;
  return early + early_used - need;
}

static void look_up(const char *name, void *place) {
  void *found = dlsym(RTLD_NEXT, name);
  memcpy(place, &found, sizeof found);
}

/* False while they are being looked up. The first allocation is made before there are threads. */
static bool ready(void) {
  static bool begun;
  if (!begun) {
    begun = true;
    look_up("free", &next.release);
    look_up("realloc", &next.again);
    look_up("aligned_alloc", &next.aligned);
    look_up("calloc", &next.zeroed);
    look_up("malloc", &next.alloc);
  }
  return next.alloc != NULL;
}

static void count(void) { atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed); }

EXPORT void *malloc(size_t bytes) {
  count();
  return ready() ? next.alloc(bytes) : early_alloc(bytes);
}

EXPORT void *calloc(size_t n, size_t size) {
  count();
  if (ready()) return next.zeroed(n, size);
  return size != 0 && n > SIZE_MAX / size ? NULL : early_alloc(n * size); /* not used before: zero */
}

EXPORT void *realloc(void *memory, size_t bytes) {
  count();
  if (!is_early(memory)) return ready() ? next.again(memory, bytes) : early_alloc(bytes);
  size_t most = (size_t)(early + sizeof early - (char *)memory);
  void *moved = ready() ? next.alloc(bytes) : early_alloc(bytes);
  if (moved != NULL) memmove(moved, memory, bytes < most ? bytes : most);
  return moved;
}

EXPORT void *aligned_alloc(size_t alignment, size_t bytes) {
  count();
  return ready() ? next.aligned(alignment, bytes) : NULL;
}

EXPORT int posix_memalign(void **memory, size_t alignment, size_t bytes) {
  count();
  void *made = ready() ? next.aligned(alignment, bytes) : NULL;
  if (made == NULL) return ENOMEM;
  *memory = made;
  return 0;
}

EXPORT void free(void *memory) {
  if (memory != NULL && !is_early(memory) && ready()) next.release(memory);
}

/* Asked of a call that is known to be one: the linker may have bound it to the C library. */
bool probe_counts(void) {
  uint64_t before = probe_allocations();
  void *volatile memory = malloc(1);
  free(memory);
  return probe_allocations() > before;
}

#endif

/* ---- figures of the process ------------------------------------------------------------------------------------ */

/* The bytes of a line such as "VmHWM:   1756 kB"; -1: there is none. */
static int64_t find(const char *text, const char *key) {
  const char *at = strstr(text, key);
  return at != NULL ? 1024 * (int64_t)strtoll(at + strlen(key), NULL, 10) : -1;
}

bool probe_read(struct probe_bytes *bytes) {
  char text[8192];
  size_t n = 0;
  int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  for (ssize_t got = 1; got > 0 && n<sizeof text - 1; n += got> 0 ? (size_t)got : 0)
    got = read(file, text + n, sizeof text - 1 - n);
  close(file);
  text[n] = 0;
  *bytes = (struct probe_bytes){find(text, "VmRSS:"), find(text, "VmHWM:"), find(text, "VmSize:")};
  return bytes->resident >= 0 && bytes->peak >= 0 && bytes->mapped >= 0;
}

bool probe_reset_peak(void) {
  int file = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  bool done = write(file, "5", 1) == 1;
  close(file);
  return done;
}
