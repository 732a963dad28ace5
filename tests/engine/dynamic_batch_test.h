/* tests/engine/dynamic_batch_test.h -- runs of programs with a dynamic batch, in memory of exactly their rows
** What is read or written behind the rows ends the test: a page follows that nothing may touch.
*/
#ifndef TESTS_ENGINE_LEADING_TEST_H
#define TESTS_ENGINE_LEADING_TEST_H
#include "engine/engine_test.h"

#include <sys/mman.h>
#include <unistd.h>

enum { MOST_LEADING_SLOTS = 8, LEADING_BYTES = 1 << 16 };

/* Memory that ends at a page which nothing may touch. */
struct guarded {
  char *pages, *at;
  size_t bytes, all;
};

static inline struct guarded guard(size_t bytes) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), all = (bytes + page - 1) / page * page + page;
  char *pages = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(pages != MAP_FAILED);
  assert_int_equal(mprotect(pages + all - page, page, PROT_NONE), 0);
  return (struct guarded){pages, pages + all - page - bytes, bytes, all};
}

static inline void unguard(struct guarded *g) { munmap(g->pages, g->all); }

/* What a run of all rows gave, and another. */
static char want[MOST_LEADING_SLOTS][LEADING_BYTES], got[MOST_LEADING_SLOTS][LEADING_BYTES];

/* The elements of all inputs, of a program for the most rows. */
static char elements[MOST_LEADING_SLOTS][LEADING_BYTES];

static inline void fill_inputs(const quern_program *p) {
  assert_true(p->n_inputs <= MOST_LEADING_SLOTS);
  for (size_t i = 0; i < p->n_inputs; i++) {
    const quern_slot *s = &p->inputs[i];
    size_t n = s->bytes / quern_dtype_size(s->dtype);
    double x[1 << 14];
    assert_true(n <= BASE_COUNT(x));
    test_fill(n, x, 7 + i);
    for (size_t k = 0; k < n; k++) {
      if (base_dtype_is(s->dtype, BASE_FLOAT))
        base_store_float(s->dtype, elements[i], k, 2 * x[k]);
      else
        base_store_int(s->dtype, elements[i], k, (uint64_t)(int64_t)floor(3 * x[k] + 2));
    }
  }
}

static inline size_t bytes_of(const quern_slot *s, int64_t rows, int64_t most) {
  return s->dynamic_batch ? s->bytes / (size_t)most * (size_t)rows : s->bytes;
}

/* The bytes before a row. */
static inline size_t skipped(const quern_slot *s, int64_t row, int64_t most) {
  return s->dynamic_batch ? bytes_of(s, row, most) : 0;
}

/* Runs an instance on guarded memory of exactly so many rows, from one on; outs[i] gets what it wrote. */
static inline void run_rows(quern_instance *of, int64_t first, int64_t rows, int64_t most,
                            char (*outs)[LEADING_BYTES]) {
  const quern_program *p = of->program;
  struct guarded ins[MOST_LEADING_SLOTS], to[MOST_LEADING_SLOTS];
  const void *in[MOST_LEADING_SLOTS];
  void *out[MOST_LEADING_SLOTS];
  for (size_t i = 0; i < p->n_inputs; i++) {
    ins[i] = guard(bytes_of(&p->inputs[i], rows, most));
    memcpy(ins[i].at, elements[i] + skipped(&p->inputs[i], first, most), ins[i].bytes);
    in[i] = ins[i].at;
  }
  for (size_t i = 0; i < p->n_outputs; i++) {
    to[i] = guard(bytes_of(&p->outputs[i], rows, most));
    out[i] = to[i].at;
  }
  EXPECT_OK(quern_instance_run(of, in, out));
  for (size_t i = 0; i < p->n_inputs; i++) {
    assert_memory_equal(ins[i].at, elements[i] + skipped(&p->inputs[i], first, most), ins[i].bytes);
    unguard(&ins[i]);
  }
  for (size_t i = 0; i < p->n_outputs; i++) {
    memcpy(outs[i], to[i].at, to[i].bytes);
    unguard(&to[i]);
  }
}

/* What was got of rows, from one on, are the bits that were wanted of all. */
static inline void expect_rows(const quern_program *p, int64_t first, int64_t rows, const char *name) {
  for (size_t i = 0; i < p->n_outputs; i++) {
    const quern_slot *s = &p->outputs[i];
    if (memcmp(got[i], want[i] + skipped(s, first, p->dynamic_batch), bytes_of(s, rows, p->dynamic_batch)) == 0)
      continue;
    print_error("%s: output %zu of a run with %lld rows from row %lld on differs\n", name, i, (long long)rows,
                (long long)first);
    fail();
  }
}

/* All rows are run, then fewer, then each alone: the same bits, whatever lies behind the rows. */
static inline void expect_independent(quern_instance *of, const char *name) {
  const quern_program *p = of->program;
  int64_t most = p->dynamic_batch;
  fill_inputs(p);
  EXPECT_OK(quern_instance_set_dynamic_batch(of, most));
  run_rows(of, 0, most, most, want);
  for (int64_t rows = 0; rows <= most; rows++) {
    EXPECT_OK(quern_instance_set_dynamic_batch(of, rows));
    for (int time = 0; time < 2; time++) {
      of->poison = time == 1;
      memset(got, 0x77, sizeof got);
      run_rows(of, 0, rows, most, got);
      expect_rows(p, 0, rows, name);
    }
  }
  EXPECT_OK(quern_instance_set_dynamic_batch(of, 1));
  for (int64_t row = 0; row < most; row++) {
    run_rows(of, row, 1, most, got);
    expect_rows(p, row, 1, name);
  }
}

#endif
