/* tests/unit.h -- what all unit tests share: cmocka, an allocator that watches and fails, a context, expectations
** A test is TEST(function); it finds a fresh context in `ctx`, which is freed after it, and then no byte may be held.
** The context knows Quern's composites, unless TEST_CONTEXT_NEW says otherwise.
*/
#ifndef TESTS_UNIT_H
#define TESTS_UNIT_H
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "quern/context.h"
#include "quern/status.h"

/* What a context holds. */
static inline quern_context_stats context_stats(const quern_context *of) {
  quern_context_stats stats = QUERN_INIT(quern_context_stats);
  assert_int_equal(quern_context_get_stats(of, &stats), QUERN_STATUS_OK);
  return stats;
}

/* ---- memory: counted, filled with 0xa5, of the size it is freed with --------------------------------------------- */

/* Whether AddressSanitizer watches. */
#if defined(__SANITIZE_ADDRESS__)
#define TEST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TEST_ASAN 1
#endif
#endif
#ifndef TEST_ASAN
#define TEST_ASAN 0
#endif

/* Bytes behind each block that nobody may touch; AddressSanitizer's own are behind blocks that are as long as they say. */
#define MEMORY_GUARD (TEST_ASAN ? 0 : 64)
#define MEMORY_LARGEST ((size_t)1 << 28) /* for more a sanitizer would stop the program */

static atomic_size_t memory_live;              /* bytes held; compilers run in several threads */
static unsigned char memory_fill = 0xa5;       /* what new memory holds */
static size_t memory_largest = MEMORY_LARGEST; /* larger requests are refused */
static struct {
  uint64_t left; /* the allocation that many from now fails; 0: none */
  bool alone;    /* later ones do not */
  bool met;      /* it was asked for */
} memory_fault;

/* Whether this allocation is to fail. */
static inline bool memory_fails(void) {
  if (memory_fault.left == 0 || --memory_fault.left > 0) return false;
  memory_fault.left = memory_fault.alone ? 0 : 1;
  memory_fault.met = true;
  return true;
}

/* What stands behind a block: its size, then the fill. */
static inline void memory_guard(unsigned char guard[MEMORY_GUARD + 1], size_t bytes) {
  memset(guard, 0xa5, MEMORY_GUARD + 1);
  if (MEMORY_GUARD >= sizeof bytes) memcpy(guard, &bytes, sizeof bytes);
}

static inline void *memory_alloc(void *self, size_t bytes) {
  (void)self;
  unsigned char guard[MEMORY_GUARD + 1];
  void *memory = NULL;
  if (memory_fails() || bytes > memory_largest) return NULL;
  if (posix_memalign(&memory, 64, bytes + MEMORY_GUARD) != 0) return NULL;
  memory_guard(guard, bytes);
  memset(memory, memory_fill, bytes);
  memcpy((unsigned char *)memory + bytes, guard, MEMORY_GUARD);
  memory_live += bytes;
  return memory;
}

static inline void memory_free(void *self, void *memory, size_t bytes) {
  (void)self;
  unsigned char guard[MEMORY_GUARD + 1];
  memory_guard(guard, bytes);
  assert_memory_equal((unsigned char *)memory + bytes, guard, MEMORY_GUARD);
  memset(memory, 0x5a, bytes);
  memory_live -= bytes;
  free(memory);
}

static const quern_allocator memory_allocator = {.alloc = memory_alloc, .free = memory_free};

/* ---- faults: a walk over all allocations ------------------------------------------------------------------------- */

/* For n = 1, 2, ... the n-th allocation and all later ones fail, then the n-th alone, until there is no n-th:
**   struct fault fault = {0};
**   while (fault_next(&fault)) {
**     ...                                a context as it was before
**     fault_begin(&fault);
**     quern_status status = ...;
**     fault_end(&fault);                 fault.met determines whether an allocation failed
**     EXPECT_FAULT(&fault, status);
**   }
**   assert_true(fault.n > 20);
*/
struct fault {
  uint64_t n;
  bool alone, met;
};

static inline bool fault_next(struct fault *fault) {
  if (fault->n > 0 && !fault->met) return false;
  bool further = fault->n == 0 || fault->alone;
  fault->n += further ? 1 : 0;
  fault->alone = !further;
  fault->met = false;
  return true;
}

static inline void fault_begin(const struct fault *fault) {
  memory_fault.left = fault->n;
  memory_fault.alone = fault->alone;
  memory_fault.met = false;
}

static inline void fault_end(struct fault *fault) {
  fault->met = memory_fault.met;
  memory_fault.left = 0;
}

/* ---- ways --------------------------------------------------------------------------------------------------------- */

/* Which of n ways to run something are run: all of them. AddressSanitizer takes several times as long, and looks at accesses
** rather than at values: there it is one of them, another at each call.
**   const struct ways ways = ways_from(0, n);
**   for (size_t w = ways.at; w < ways.end; w++)
*/
struct ways {
  size_t at, end;
};

static inline struct ways ways_from(size_t first, size_t end) {
  static uint32_t calls;
  if (!TEST_ASAN) return (struct ways){first, end};
  size_t at = first + (++calls * UINT32_C(2654435761) >> 16) % (end - first);
  return (struct ways){at, at + 1};
}

/* ---- a context --------------------------------------------------------------------------------------------------- */

#ifndef TEST_CONTEXT_NEW
#define TEST_CONTEXT_NEW quern_context_new
#endif

static quern_context *ctx;

/* A context whose memory is watched. */
static inline quern_context *test_context(void) {
  quern_context *made = NULL;
  quern_context_options options = {.size = sizeof options, .allocator = memory_allocator};
  return TEST_CONTEXT_NEW(&made, &options) == QUERN_STATUS_OK ? made : NULL;
}

static inline int test_setup(void **state) {
  (void)state;
  ctx = test_context();
  return ctx != NULL ? 0 : -1;
}

static inline int test_teardown(void **state) {
  (void)state;
  quern_context_free(ctx);
  ctx = NULL;
  if (memory_live != 0) print_error("%zu bytes are not freed\n", memory_live);
  return memory_live == 0 ? 0 : -1;
}

/* A new context in place of the one there is, of which nothing may be left. */
static inline void test_renew(void) {
  assert_int_equal(test_teardown(NULL), 0);
  assert_int_equal(test_setup(NULL), 0);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, test_setup, test_teardown)

/* Numbers of [-1, 1) that look random; the same in each run. */
static inline void test_fill(size_t n, double *at, uint64_t seed) {
  uint64_t s = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
  for (size_t i = 0; i < n; i++) {
    s = s * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    at[i] = (double)(s >> 11) / 4503599627370496.0 - 1;
  }
}

/* ---- expectations ------------------------------------------------------------------------------------------------ */

static inline void test_expect_ok(quern_status got, const char *file, int line) {
  if (got == QUERN_STATUS_OK) return;
  print_error("%s: %s\n", quern_status_name(got), quern_last_error());
  _fail(file, line);
}
#define EXPECT_OK(call) test_expect_ok((call), __FILE__, __LINE__)

/* The call fails with that status, and the message has these words. */
static inline void test_expect_error(quern_status got, quern_status status, const char *words, const char *file,
                                     int line) {
  if (got == status && strstr(quern_last_error(), words) != NULL) return;
  print_error("expected %s with \"%s\", got %s: %s\n", quern_status_name(status), words, quern_status_name(got),
              quern_last_error());
  _fail(file, line);
}
#define EXPECT_ERROR(call, STATUS, words) test_expect_error((call), QUERN_STATUS_##STATUS, (words), __FILE__, __LINE__)

/* MEMORY when an allocation failed, and only then. */
static inline void test_expect_fault(const struct fault *fault, quern_status got, const char *file, int line) {
  if (got == (fault->met ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK) &&
      (!fault->met || strstr(quern_last_error(), "no memory") != NULL))
    return;
  print_error("allocation %llu%s %s: %s: %s\n", (unsigned long long)fault->n, fault->alone ? " alone" : "",
              fault->met ? "failed" : "was not asked for", quern_status_name(got), quern_last_error());
  _fail(file, line);
}
#define EXPECT_FAULT(fault, status) test_expect_fault((fault), (status), __FILE__, __LINE__)

#endif
