/* kern/kern_int.h -- what the checkers, the printer and the interpreter share
*/
#ifndef KERN_KERN_INT_H
#define KERN_KERN_INT_H
#include "kern/kern.h"

/* ---- print.c --------------------------------------------------------------------------------------------- */

/* One instruction, without indentation and line end. Its arguments may be wrong in any way. */
void kern_print_inst(struct base_str *str, const struct kern *kern, const struct kern_fn *fn, kern_id id);

/* Records INTERNAL: the kernel, the function, the instruction, then what is wrong with it. */
quern_status kern_fault(const struct kern *kern, const struct kern_fn *fn, kern_id id, const char *fmt, ...)
    BASE_PRINTF(4, 5);

/* ---- verify_types.c -------------------------------------------------------------------------------------- */

/* Everything kern_verify checks but bounds and races. writes (may be NULL): of each function and each of its memories,
** KERN_MAX_MEMS a function, whether it is stored to there or in a callee. */
quern_status kern_check_types(const struct kern *kern, bool *writes) QUERN_NODISCARD;

/* True when fn is a phase; its number. */
static inline bool kern_is_phase(const struct kern *kern, int fn, int *phase) {
  for (int i = 0; i < kern->n_phases; i++)
    if (kern->phases[i].fn == fn) return *phase = i, true;
  return false;
}

/* ---- library_call.c, library_attention.c, library_conv.c: what a library does ---------------------------------------------------- */

bool kern_has_library_call(const struct kern *kern);
void kern_print_library_call(struct base_str *str,
                             const struct kern *kern); /* "gemm 1 x 64 x 32, terms 16:" and lines of memories */
/* Everything of the call but its algorithm and the size of its workspace; and the memories. */
uint64_t kern_hash_library_call(uint64_t h, const struct kern *kern);
/* Does the call with plain loops. */
quern_status kern_interp_library_call(const struct kern *kern, void *const *mems) QUERN_NODISCARD;

/* Records INTERNAL: the kernel, then what is wrong with its call. */
quern_status kern_library_fault(const struct kern *kern, const char *fmt, ...) BASE_PRINTF(2, 3);
/* Checks that memory mem has the role, and every element at + sum of i[k] strides[k], i[k] < extents[k]; strides are
** not negative. */
quern_status kern_check_reach(const struct kern *kern, const char *name, int mem, enum kern_role role, int64_t at,
                              int n, const int64_t *extents, const int64_t *strides) QUERN_NODISCARD;

/* The attention and its gradient: checked, printed after the name and before the end of the line, hashed, run. */
quern_status kern_check_attention(const struct kern *kern) QUERN_NODISCARD;
void kern_print_attention(struct base_str *str, const struct kern *kern);
uint64_t kern_hash_attention(uint64_t h, const struct kern *kern);
quern_status kern_run_attention(const struct kern *kern, void *const *mems) QUERN_NODISCARD;

/* The convolution and its gradients: the same (library_conv.c). */
quern_status kern_check_conv(const struct kern *kern) QUERN_NODISCARD;
void kern_print_conv(struct base_str *str, const struct kern *kern);
uint64_t kern_hash_conv(uint64_t h, const struct kern *kern);
quern_status kern_run_conv(const struct kern *kern, void *const *mems) QUERN_NODISCARD;

/* ---- launching ------------------------------------------------------------------------------------------- */

static inline const char *kern_name(const struct kern *kern) {
  return kern->name != NULL ? kern->name : "(unfinished)";
}

/* ---- integers -------------------------------------------------------------------------------------------- */

static inline int64_t kern_floor_div(int64_t x, int64_t by) { return x / by - (x % by < 0); } /* by > 0 */

static inline int64_t kern_gcd(int64_t a, int64_t b) { /* of absolute values; gcd(0, b) = |b| */
  uint64_t x = a < 0 ? 0 - (uint64_t)a : (uint64_t)a, y = b < 0 ? 0 - (uint64_t)b : (uint64_t)b;
  while (y != 0) {
    uint64_t rest = x % y;
    x = y;
    y = rest;
  }
  return x > INT64_MAX ? 1 : (int64_t)x;
}

/* x + y, x y; false when it does not fit. */
static inline bool kern_add_fits(int64_t x, int64_t y, int64_t *sum) {
  if (y > 0 ? x > INT64_MAX - y : x < INT64_MIN - y) return false;
  *sum = x + y;
  return true;
}
static inline bool kern_mul_fits(int64_t x, int64_t y, int64_t *product) {
  uint64_t a = x < 0 ? 0 - (uint64_t)x : (uint64_t)x, b = y < 0 ? 0 - (uint64_t)y : (uint64_t)y;
  if ((a | b) >> 31 != 0 && a != 0 && b > (uint64_t)INT64_MAX / a) return false;
  *product = (x < 0) != (y < 0) ? -(int64_t)(a * b) : (int64_t)(a * b);
  return true;
}

#endif
