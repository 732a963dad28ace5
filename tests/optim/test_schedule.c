/* tests/optim/test_schedule.c -- learning rates: every kind of piece, pieces in a row, plateaus */
#include <math.h>

#include "quern/optim.h"
#include "unit.h"

static void expect(const quern_schedule *s, int64_t step, double lr) {
  double got = quern_schedule_at(s, step);
  if (fabs(got - lr) > 1e-12 * fabs(lr)) fail_msg("step %lld: %.17g, expected %.17g", (long long)step, got, lr);
}

static quern_schedule of(size_t n, const quern_schedule_piece *pieces) {
  return (quern_schedule){.lr = 2, .n_pieces = n, .pieces = pieces};
}

static void single(void **state) {
  (void)state;
  quern_schedule s = of(0, NULL);
  expect(&s, 0, 2);
  expect(&s, 1000, 2);
  s = of(1, &(quern_schedule_piece){.kind = QUERN_SCHEDULE_STEP, .every = 10, .gamma = 0.5});
  expect(&s, 9, 2);
  expect(&s, 10, 1);
  expect(&s, 29, 0.5);
  s = of(1, &(quern_schedule_piece){.kind = QUERN_SCHEDULE_EXPONENTIAL, .gamma = 0.9});
  expect(&s, 3, 2 * 0.9 * 0.9 * 0.9);
  s = of(1, &(quern_schedule_piece){.kind = QUERN_SCHEDULE_COSINE, .steps = 100, .end = 0.1});
  expect(&s, 0, 2);
  expect(&s, 50, 1.1);
  expect(&s, 100, 0.2);
  expect(&s, 1000, 0.2);
  s = of(1, &(quern_schedule_piece){.kind = QUERN_SCHEDULE_LINEAR, .steps = 4, .start = 0.25, .end = 1});
  expect(&s, 0, 0.5);
  expect(&s, 2, 1.25);
  expect(&s, 4, 2);
  s = of(1, &(quern_schedule_piece){.kind = QUERN_SCHEDULE_POLYNOMIAL, .steps = 10, .power = 2});
  expect(&s, 5, 0.5);
  expect(&s, 10, 0);
  expect(&s, -3, 2);
}

/* Warm-up, then cosine, then constant at its end. */
static void in_a_row(void **state) {
  (void)state;
  const quern_schedule_piece pieces[] = {{.kind = QUERN_SCHEDULE_LINEAR, .steps = 10, .start = 0.1, .end = 1},
                                         {.kind = QUERN_SCHEDULE_COSINE, .steps = 20, .end = 0.5}};
  quern_schedule s = of(2, pieces);
  expect(&s, 0, 0.2);
  expect(&s, 9, 2 * (0.1 + 0.9 * 0.9));
  expect(&s, 10, 2);
  expect(&s, 20, 1.5);
  expect(&s, 30, 1);
  expect(&s, 31, 1);
}

static void plateau(void **state) {
  (void)state;
  const quern_schedule_piece pieces[] = {
      {.kind = QUERN_SCHEDULE_LINEAR, .steps = 2, .start = 0.5, .end = 1},
      {.kind = QUERN_SCHEDULE_PLATEAU, .gamma = 0.1, .patience = 1, .threshold = 0.01}};
  quern_schedule s = of(2, pieces);
  quern_schedule_report(&s, 10); /* the first is the best */
  quern_schedule_report(&s, 9);
  quern_schedule_report(&s, 8.95); /* not by a hundredth */
  expect(&s, 5, 2);
  quern_schedule_report(&s, NAN);
  expect(&s, 5, 0.2);
  quern_schedule_report(&s, 8); /* better: counting starts anew */
  quern_schedule_report(&s, 8);
  expect(&s, 5, 0.2);
  quern_schedule_report(&s, 8);
  expect(&s, 5, 0.02);
  s = of(2, pieces);
  quern_schedule_report(&s, NAN); /* none is the best yet */
  quern_schedule_report(&s, INFINITY);
  expect(&s, 5, 0.2);
  quern_schedule_report(&s, 1e30);
  quern_schedule_report(&s, 1e29);
  assert_true(s.plateau.best == 1e29);
  expect(&s, 5, 0.2);
  quern_schedule_report(NULL, 1);
  assert_true(quern_schedule_at(NULL, 1) == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(single), cmocka_unit_test(in_a_row), cmocka_unit_test(plateau)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
