/* base/floats.c -- the floating-point state in which Quern computes
** Bits must not depend on what the host does to its threads: flushing denormals, other rounding, traps. Kernels are
** run, graphs evaluated and constants folded in this state: what was folded in another would be kept in the cache for
** everybody. Looking costs a few nanoseconds; only a state that differs is set.
** see:   Intel SDM vol. 1, 10.2.3 (MXCSR); Arm ARM, FPCR
** tests: tests/runtime/test_cpu.c, tests/engine/test_compile.c
*/
#include "base/base.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#define CONTROL 0xffc0u /* the bits of MXCSR that control; the others are status flags */
#define NORMAL 0x1f80u
static unsigned long long get(void) { return _mm_getcsr(); }
static void set(unsigned long long state) { _mm_setcsr((unsigned)state); }
#elif defined(__aarch64__)
#define CONTROL (~0ull)
#define NORMAL 0ull
static unsigned long long get(void) {
  unsigned long long state;
  __asm__ volatile("mrs %0, fpcr" : "=r"(state));
  return state;
}
static void set(unsigned long long state) { __asm__ volatile("msr fpcr, %0" : : "r"(state)); }
#else
#include <fenv.h>
#define CONTROL (~0ull)
#define NORMAL ((unsigned long long)FE_TONEAREST)
static unsigned long long get(void) { return (unsigned long long)fegetround(); }
static void set(unsigned long long state) { fesetround((int)state); }
#endif

struct base_floats base_floats_enter(void) {
  struct base_floats floats = {.saved = get()};
  floats.changed = (floats.saved & CONTROL) != NORMAL;
  if (floats.changed) set(NORMAL);
  return floats;
}

void base_floats_leave(struct base_floats floats) {
  if (floats.changed) set(floats.saved);
}
