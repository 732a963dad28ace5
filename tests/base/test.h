/* tests/base/test.h -- what the tests of base/ share: a record of allocations, a child process
 */
#ifndef TESTS_BASE_TEST_H
#define TESTS_BASE_TEST_H
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "unit.h"

/* The allocator of unit.h, and a record of every size. */
struct watch {
  size_t n, live; /* allocations made, blocks held */
  size_t sizes[256];
  void *blocks[256];
  size_t shift; /* what is returned is that far from alignment */
};

static inline void *watch_alloc(void *self, size_t bytes) {
  struct watch *watch = self;
  assert_true(watch->n < BASE_COUNT(watch->sizes));
  char *block = memory_alloc(NULL, bytes + watch->shift);
  assert_non_null(block);
  watch->sizes[watch->n] = bytes;
  watch->blocks[watch->n++] = block + watch->shift;
  watch->live++;
  return block + watch->shift;
}

static inline void watch_free(void *self, void *memory, size_t bytes) {
  struct watch *watch = self;
  size_t i = watch->n;
  while (i > 0 && watch->blocks[i - 1] != memory) i--;
  assert_true(i > 0);
  assert_int_equal(watch->sizes[i - 1], bytes);
  watch->blocks[i - 1] = NULL;
  watch->live--;
  memory_free(NULL, (char *)memory - watch->shift, bytes + watch->shift);
}

static inline void watch_init(struct watch *watch, struct base_heap *heap) {
  memset(watch, 0, sizeof *watch);
  base_heap_init(heap, &(quern_allocator){watch_alloc, watch_free, watch});
}

/* Runs body in a child process and returns its exit status, 128 + signal when a signal ended it. What it
** wrote to stderr is left in text. */
static inline int in_child(void (*body)(void), char *text, size_t bytes) {
  int ends[2], status = 0;
  size_t n = 0;
  ssize_t got;
  assert_int_equal(pipe(ends), 0);
  fflush(NULL);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    body();
    exit(0);
  }
  close(ends[1]);
  while (n + 1 < bytes && (got = read(ends[0], text + n, bytes - 1 - n)) > 0) n += (size_t)got;
  text[n] = 0;
  close(ends[0]);
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* For the body of a child: ends it with the line's number, modulo 250, when the condition does not hold. */
#define CHILD_CHECK(cond)                                                                                              \
  do {                                                                                                                 \
    if (!(cond)) {                                                                                                     \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);                                                       \
      exit(1 + __LINE__ % 250);                                                                                        \
    }                                                                                                                  \
  } while (0)

#endif
