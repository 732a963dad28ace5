/* tests/kern/test_batch_tasks.c -- which tasks the first rows need */
#include "kern/kern_test.h"

/* A kernel that writes memory 0, of `rows` rows of `row` elements, in tasks. */
static struct made begin(int64_t rows, int64_t row, int64_t tasks) {
  struct made m = made_new();
  kern_add_mem(m.kern, QUERN_DTYPE_F32, KERN_OUT, rows * row);
  m.kern->mems[0].row = row;
  m.kern->n_scalars = 1;
  made_phase(&m, KERN_FIXED_TASKS(tasks));
  return m;
}

static kern_id one(struct kern_builder *b) { return kern_const_f(b, QUERN_DTYPE_F32, 1, 1); }

static int64_t tasks_of(const struct made *m, int64_t rows) { return kern_task_count(&m->kern->phases[0], &rows); }

static void end(struct made *m, int64_t rows) {
  EXPECT_OK(kern_find_batch_tasks(m->kern, rows));
  made_finish(m);
  EXPECT_OK(kern_verify(m->kern, NULL));
}

/* Tasks of 20 elements, rows of 30: the last row that a task begins is needed. */
static void tasks_in_order(void **state) {
  (void)state;
  struct made m = begin(10, 30, 15);
  kern_id lo = kern_mul_i(&m.b, kern_task(&m.b), 20);
  kern_id i = kern_for(&m.b, lo, kern_add_i(&m.b, lo, 20), 1);
  kern_store(&m.b, kern_mem(&m.b, 0), i, one(&m.b));
  kern_end(&m.b);
  end(&m, 10);
  const int64_t expected[] = {0, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15};
  for (int64_t n = 0; n <= 10; n++) assert_int_equal(tasks_of(&m, n), expected[n]);
  kern_free(m.kern);
}

/* Stores of a task may lie before what it begins with: task t stores at 10 t - 7 and at 10 t. */
static void stores_before(void **state) {
  (void)state;
  struct made m = begin(8, 10, 8);
  kern_id at = kern_mul_i(&m.b, kern_task(&m.b), 10), mem = kern_mem(&m.b, 0);
  kern_store(&m.b, mem, kern_max_i(&m.b, kern_add_i(&m.b, at, -7), 0), one(&m.b));
  kern_store(&m.b, mem, at, one(&m.b));
  end(&m, 8);
  assert_int_equal(tasks_of(&m, 0), 0);
  assert_int_equal(tasks_of(&m, 1), 2);
  assert_int_equal(tasks_of(&m, 7), 8);
  kern_free(m.kern);
}

/* Elements are counted through, cut into indices, and made up again. */
static void indices_are_joined(void **state) {
  (void)state;
  struct made m = begin(10, 12, 24);
  kern_id lo = kern_mul_i(&m.b, kern_task(&m.b), 5), i = kern_for(&m.b, lo, kern_add_i(&m.b, lo, 5), 1);
  kern_id fours = kern_idiv(&m.b, i, 4), last = kern_imod(&m.b, i, 4);
  kern_id row = kern_mul_i(&m.b, kern_idiv(&m.b, fours, 3), 12),
          middle = kern_mul_i(&m.b, kern_imod(&m.b, fours, 3), 4);
  kern_id at = kern_add(&m.b, row, middle);
  kern_store(&m.b, kern_mem(&m.b, 0), kern_add(&m.b, at, last), one(&m.b));
  kern_end(&m.b);
  end(&m, 10);
  for (int64_t n = 0; n <= 10; n++) assert_int_equal(tasks_of(&m, n), (n * 12 + 4) / 5);
  kern_free(m.kern);
}

/* A row is several tasks: 3 of them. */
static void tasks_by_rows(void **state) {
  (void)state;
  struct made m = begin(6, 12, 18);
  kern_id row = kern_idiv(&m.b, kern_task(&m.b), 3), part = kern_imod(&m.b, kern_task(&m.b), 3);
  kern_id lo = kern_mul_i(&m.b, part, 4), i = kern_for(&m.b, lo, kern_add_i(&m.b, lo, 4), 1);
  kern_store(&m.b, kern_mem(&m.b, 0), kern_add(&m.b, kern_mul_i(&m.b, row, 12), i), one(&m.b));
  kern_end(&m.b);
  end(&m, 6);
  for (int64_t n = 0; n <= 6; n++) assert_int_equal(tasks_of(&m, n), 3 * n);
  kern_free(m.kern);
}

/* All tasks are needed where they go through the rows crosswise, where memory has no rows, and where nothing is known. */
static void all_tasks(void **state) {
  (void)state;
  for (int way = 0; way < 3; way++) {
    struct made m = begin(6, 4, 4);
    if (way == 1) m.kern->mems[0].row = 0;
    kern_id task = kern_task(&m.b), i = kern_range(&m.b, 0, 6, 1), mem = kern_mem(&m.b, 0);
    kern_id at = kern_add(&m.b, kern_mul_i(&m.b, i, 4), task);
    if (way == 1) at = kern_add(&m.b, kern_mul_i(&m.b, task, 6), i);
    if (way == 2) at = kern_min_i(&m.b, kern_max_i(&m.b, kern_scalar(&m.b, 0), 0), 23);
    kern_store(&m.b, mem, at, one(&m.b));
    kern_end(&m.b);
    end(&m, 6);
    int64_t needed = m.kern->phases[0].batch_tasks.div == 0 ? 4 : tasks_of(&m, 1);
    assert_int_equal(needed, 4);
    kern_free(m.kern);
  }
}

/* A function that is given an element stores from there on, or before it. */
static void functions_store(void **state) {
  (void)state;
  for (int64_t before = 0; before < 2; before++) {
    struct made m = made_new();
    const quern_dtype f32[] = {QUERN_DTYPE_F32};
    kern_add_mem(m.kern, QUERN_DTYPE_F32, KERN_OUT, 60);
    m.kern->mems[0].row = 10;
    m.kern->n_scalars = 1;
    struct kern_fn *fn = kern_add_fn(m.kern, "store", 1, f32, 1);
    struct kern_builder f = {.kern = m.kern, .fn = fn};
    kern_store(&f, kern_mem(&f, 0), kern_scalar(&f, 0), one(&f));
    made_phase(&m, KERN_FIXED_TASKS(6));
    kern_id at = kern_add_i(&m.b, kern_mul_i(&m.b, kern_task(&m.b), 9), 3);
    kern_id to = kern_at(&m.b, kern_mem(&m.b, 0), at), from = kern_index(&m.b, -3 * before);
    kern_call_fn(&m.b, fn, 1, &to, 1, &from);
    EXPECT_OK(kern_find_batch_tasks(m.kern, 6));
    made_finish(&m);
    assert_int_equal(tasks_of(&m, 1), before == 1 ? 6 : 1);
    kern_free(m.kern);
  }
}

static void finding_without_memory(void **state) {
  (void)state;
  struct fault fault = {0};
  struct made m = made_gemm(20, 40, 3);
  m.kern->mems[2].row = 40;
  m.kern->n_scalars = m.kern->fns.at[m.kern->phases[0].fn]->n_scalars = 1;
  while (fault_next(&fault)) {
    fault_begin(&fault);
    quern_status status = kern_find_batch_tasks(m.kern, 20);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
  }
  assert_true(fault.n > 3);
  assert_int_equal(tasks_of(&m, 1), 3); /* a task has 4 rows and 16 columns */
  kern_free(m.kern);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(tasks_in_order),        TEST(stores_before), TEST(indices_are_joined),
                                     TEST(tasks_by_rows),         TEST(all_tasks),     TEST(functions_store),
                                     TEST(finding_without_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
