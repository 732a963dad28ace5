/* tests/kern/math_run.h -- runs one elementwise op through kern_math and the kernel interpreter */
#ifndef TESTS_KERN_MATH_RUN_H
#define TESTS_KERN_MATH_RUN_H
#include "ir/ir.h"
#include "kern/kern.h"
#include "unit.h"

/* A kernel that applies op to count elements, a multiple of lanes, of n memories. */
static inline quern_status math_kernel(struct kern **kern, enum ir_op op, quern_dtype dtype, int n,
                                       const quern_dtype *src, int64_t count, int lanes) {
  QUERN_TRY(kern_new(kern, &ctx->heap));
  for (int i = 0; i < n; i++) kern_add_mem(*kern, src[i], KERN_IN, count);
  kern_add_mem(*kern, dtype, KERN_OUT, count);
  struct kern_builder b = {*kern, kern_add_phase(*kern, KERN_FIXED_TASKS(1))};
  kern_id x[3], at = kern_for(&b, kern_index(&b, 0), kern_index(&b, count), lanes);
  for (int i = 0; i < n; i++) x[i] = kern_load(&b, (*kern)->failed ? 0 : kern_mem(&b, i), at, lanes);
  kern_id y = kern_math(&b, op, dtype, n, x);
  kern_store(&b, (*kern)->failed ? 0 : kern_mem(&b, n), at, y);
  kern_end(&b);
  return kern_finish(*kern, ir_ops[op].name, NULL);
}

static inline void math_run(enum ir_op op, quern_dtype dtype, int n, const quern_dtype *src, const void *const *data,
                            void *out, int64_t count, int lanes) {
  struct kern *kern = NULL;
  int unproven = 0;
  EXPECT_OK(math_kernel(&kern, op, dtype, n, src, count, lanes));
  EXPECT_OK(kern_verify(kern, &unproven));
  void *mems[4] = {NULL};
  for (int i = 0; i < n; i++) memcpy(&mems[i], &data[i], sizeof mems[i]); /* only read */
  mems[n] = out;
  struct kern_launch launch = {.mems = mems};
  EXPECT_OK(kern_interp(kern, &launch, 0));
  kern_free(kern);
}

#endif
