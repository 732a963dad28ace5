/* tests/runtime/kernels.h -- a few kernels made by hand
 */
#ifndef TESTS_RUNTIME_KERNELS_H
#define TESTS_RUNTIME_KERNELS_H
#include "kern/kern.h"
#include "unit.h"

enum { ROW = 64, LANES = 8 };

/* y[i] = x[i] * scale + x[i], ROW elements a task. */
static inline quern_status kernel_scale(struct kern **out, struct base_heap *heap, int64_t rows, double scale) {
  struct kern *kern;
  QUERN_TRY(kern_new(&kern, heap));
  *out = kern;
  int x = kern_add_mem(kern, QUERN_DTYPE_F32, KERN_IN, rows * ROW),
      y = kern_add_mem(kern, QUERN_DTYPE_F32, KERN_OUT, rows * ROW);
  struct kern_builder b = {kern, kern_add_phase(kern, KERN_FIXED_TASKS(rows))};
  kern_id at = kern_mul(&b, kern_task(&b), kern_index(&b, ROW));
  kern_id j = kern_for(&b, kern_index(&b, 0), kern_index(&b, ROW), LANES);
  kern_id i = kern_add(&b, at, j), v = kern_load(&b, kern_mem(&b, x), i, LANES);
  kern_store(&b, kern_mem(&b, y), i, kern_add(&b, kern_mul(&b, v, kern_const_f(&b, QUERN_DTYPE_F32, LANES, scale)), v));
  kern_end(&b);
  return kern_finish(kern, "scale", NULL);
}

/* A function to be called: sums a row of ROW elements, lane by lane, into LANES elements. */
static inline struct kern_fn *add_row_sum(struct kern *kern) {
  quern_dtype types[] = {QUERN_DTYPE_F32, QUERN_DTYPE_F32};
  struct kern_fn *fn = kern_add_fn(kern, "row_sum", 2, types, 0);
  struct kern_builder b = {kern, fn};
  kern_id sum = kern_var(&b, kern_const_f(&b, QUERN_DTYPE_F32, LANES, 0));
  kern_id j = kern_for(&b, kern_index(&b, 0), kern_index(&b, ROW), LANES);
  kern_set(&b, sum, kern_add(&b, kern_get(&b, sum), kern_load(&b, kern_mem(&b, 0), j, LANES)));
  kern_end(&b);
  kern_store(&b, kern_mem(&b, 1), kern_index(&b, 0), kern_get(&b, sum));
  return fn;
}

/* total[0] = bias + the sum of everything, in two phases: rows into WORK, through a LOCAL; then WORK into total. The
** number of rows is scalar 0. */
static inline quern_status kernel_total(struct kern **out, struct base_heap *heap, int64_t rows, double bias) {
  struct kern *kern;
  QUERN_TRY(kern_new(&kern, heap));
  *out = kern;
  int x = kern_add_mem(kern, QUERN_DTYPE_F32, KERN_IN, rows * ROW),
      total = kern_add_mem(kern, QUERN_DTYPE_F32, KERN_OUT, 1);
  int work = kern_add_mem(kern, QUERN_DTYPE_F32, KERN_WORK, rows);
  kern->n_scalars = 1;
  struct kern_fn *row_sum = add_row_sum(kern);
  struct kern_builder b = {kern, kern_add_phase(kern, (struct kern_tasks){0, 1, 1})};
  kern_id local = kern_local(&b, QUERN_DTYPE_F32, LANES), task = kern_min(&b, kern_task(&b), kern_index(&b, rows - 1));
  kern_id mems[] = {kern_at(&b, kern_mem(&b, x), kern_mul(&b, task, kern_index(&b, ROW))), local};
  if (row_sum != NULL) kern_call_fn(&b, row_sum, 2, mems, 0, NULL);
  kern_id lane = kern_load(&b, local, kern_index(&b, 0), 1);
  for (int i = 1; i < LANES; i++) lane = kern_add(&b, lane, kern_load(&b, local, kern_index(&b, i), 1));
  kern_store(&b, kern_mem(&b, work), task, lane);
  b.fn = kern_add_phase(kern, KERN_FIXED_TASKS(1));
  kern_id sum = kern_var(&b, kern_const_f(&b, QUERN_DTYPE_F32, 1, bias));
  kern_id i = kern_for(&b, kern_index(&b, 0), kern_min(&b, kern_scalar(&b, 0), kern_index(&b, rows)), 1);
  kern_set(&b, sum, kern_add(&b, kern_get(&b, sum), kern_load(&b, kern_mem(&b, work), i, 1)));
  kern_end(&b);
  kern_store(&b, kern_mem(&b, total), kern_index(&b, 0), kern_get(&b, sum));
  return kern_finish(kern, "total", NULL);
}

#endif
