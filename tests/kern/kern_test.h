/* tests/kern/kern_test.h -- what the tests of kern/ share: kernels built by hand on the context's heap
*/
#ifndef TESTS_KERN_KERN_TEST_H
#define TESTS_KERN_KERN_TEST_H
#include "kern/kern.h"

#define TEST_CONTEXT_NEW ir_context_new
#include "unit.h"

/* A kernel with one phase being built. */
struct made {
  struct kern *kern;
  struct kern_builder b;
};

static inline struct made made_new(void) {
  struct made m = {0};
  EXPECT_OK(kern_new(&m.kern, &ctx->heap));
  m.b.kern = m.kern;
  return m;
}

/* Adds a phase, to which the builder appends from now on. */
static inline void made_phase(struct made *m, struct kern_tasks tasks) {
  m->b.fn = kern_add_phase(m->kern, tasks);
  assert_non_null(m->b.fn);
}

static inline void made_finish(struct made *m) { EXPECT_OK(kern_finish(m->kern, "test", NULL)); }

#define I(b, value) kern_index((b), (value))

/* y[i] = -x[i] for n elements of f32: tasks of `grain` elements, vectors of 16 lanes and a rest. more: added to the index
** of the load, a defect unless it is 0. */
static inline struct made made_map(int64_t n, int64_t grain, int64_t more) {
  struct made m = made_new();
  struct kern_builder *b = &m.b;
  kern_add_mem(m.kern, QUERN_DTYPE_F32, KERN_IN, n);
  kern_add_mem(m.kern, QUERN_DTYPE_F32, KERN_OUT, n);
  made_phase(&m, KERN_FIXED_TASKS((n + grain - 1) / grain));
  kern_id x = kern_mem(b, 0), y = kern_mem(b, 1);
  kern_id lo = kern_mul(b, kern_task(b), I(b, grain));
  kern_id hi = kern_min(b, kern_add(b, lo, I(b, grain)), I(b, n));
  kern_id whole = kern_sub(b, hi, kern_imod(b, kern_sub(b, hi, lo), 16));
  kern_id i = kern_for(b, lo, whole, 16);
  kern_store(b, y, i, kern_un(b, KERN_NEG, kern_load(b, x, kern_add(b, i, I(b, more)), 16)));
  kern_end(b);
  kern_id left = kern_sub(b, hi, whole);
  kern_store_n(b, y, whole, kern_un(b, KERN_NEG, kern_load_n(b, x, kern_add(b, whole, I(b, more)), 16, left)), left);
  made_finish(&m);
  return m;
}

/* c[m n] = a[m k] b[k n] of f32: tasks are tiles of 4 x 16, computed by a function that is called. */
static inline struct made made_gemm(int64_t m, int64_t n, int64_t k) {
  struct made g = made_new();
  kern_add_mem(g.kern, QUERN_DTYPE_F32, KERN_IN, m * k);
  kern_add_mem(g.kern, QUERN_DTYPE_F32, KERN_IN, k * n);
  kern_add_mem(g.kern, QUERN_DTYPE_F32, KERN_OUT, m * n);
  const quern_dtype f32[] = {QUERN_DTYPE_F32, QUERN_DTYPE_F32, QUERN_DTYPE_F32};
  struct kern_fn *fn = kern_add_fn(g.kern, "row_f32_1x16", 3, f32, 2);
  struct kern_builder f = {.kern = g.kern, .fn = fn};
  kern_id active = kern_scalar(&f, 0), terms = kern_scalar(&f, 1);
  kern_id row = kern_mem(&f, 0), cols = kern_mem(&f, 1), to = kern_mem(&f, 2);
  kern_id acc = kern_var(&f, kern_const_f(&f, QUERN_DTYPE_F32, 16, 0));
  kern_id p = kern_for(&f, I(&f, 0), terms, 1);
  kern_id right = kern_load_n(&f, cols, kern_mul(&f, p, I(&f, n)), 16, active);
  kern_set(&f, acc, kern_fma(&f, kern_splat(&f, kern_load(&f, row, p, 1), 16), right, kern_get(&f, acc)));
  kern_end(&f);
  kern_store_n(&f, to, I(&f, 0), kern_get(&f, acc), active);

  int64_t tiles = (n + 15) / 16;
  made_phase(&g, KERN_FIXED_TASKS((m + 3) / 4 * tiles));
  struct kern_builder *b = &g.b;
  kern_id t = kern_task(b), i0 = kern_mul(b, kern_idiv(b, t, tiles), I(b, 4));
  kern_id j0 = kern_mul(b, kern_imod(b, t, tiles), I(b, 16)), left = kern_min(b, I(b, 16), kern_sub(b, I(b, n), j0));
  kern_id i = kern_for(b, i0, kern_min(b, kern_add(b, i0, I(b, 4)), I(b, m)), 1);
  kern_id mems[] = {kern_at(b, kern_mem(b, 0), kern_mul(b, i, I(b, k))), kern_at(b, kern_mem(b, 1), j0),
                    kern_at(b, kern_mem(b, 2), kern_add(b, kern_mul(b, i, I(b, n)), j0))};
  kern_id scalars[] = {left, I(b, k)};
  kern_call_fn(b, fn, 3, mems, 2, scalars);
  kern_end(b);
  made_finish(&g);
  return g;
}

#endif
