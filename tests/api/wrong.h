/* tests/api/wrong.h -- wrong calls of the public API as rows of a table
** A row of a .def names a function, its mistake, the status, words of the message, and makes the call:
**   WRONG(function, mistake, STATUS, words, call)    a builder: gives the poison; the context reports the error once, with
**                                                    the function's name first and the place of the row
**   INSIDE(function, mistake, STATUS, words, call)   the same, when an operation that it is made of finds the mistake and gives
**                                                    its own name
**   LOST(function, mistake, STATUS, words, call)     a builder that is given no context: only the thread knows the error
**   SILENT(function, mistake, call)                  a builder that is given the poison: gives it back, and adds no error
**   FAILS(function, mistake, STATUS, words, call)    returns the status and leaves nothing to report in the context
**   FAILS_AT(function, mistake, STATUS, words, call) the same, with the function's name and the place of the row
**   HOLDS(function, call, condition)                 cannot fail: what a hostile call gives
** Each row is a test with two contexts of its own, `ctx` and `other`, which must still work after it and hold no byte in
** the end. test_wrong_<section>.c includes this file, then rows.h with the name of its .def as ROWS.
** tools/api.py counts the rows of every public function.
*/
#ifndef TESTS_API_WRONG_H
#define TESTS_API_WRONG_H
#include <limits.h>
#include <math.h>

#include "ir/ir.h"
#include "quern/quern.h"
#include "unit.h"

struct wrong {
  const char *function, *mistake;
  quern_status status;
  const char *words; /* of the message */
  bool named;        /* the message begins with the function's name */
  const char *file;  /* of the row: the message has this place, or NULL */
  int line;          /* any of the row's few */
  /* One of them makes the call. */
  quern_tensor *(*build)(void);
  quern_tensor *(*build_lost)(void);
  quern_tensor *(*build_silent)(void);
  quern_status (*run)(void);
  bool (*holds)(void);
};

/* ---- operands ------------------------------------------------------------------------------------------ */

static quern_context *other;

#define ONE (INT64_C(1))
#define NOT_A_NUMBER ((double)NAN)
#define INF ((double)INFINITY)

/* Zeros of a shape, a scalar, a tensor of the other context, the poison; a list of tensors. */
#define T(DTYPE, ...) quern_zeros(ctx, QUERN_DTYPE_##DTYPE, QUERN_LIST(__VA_ARGS__))
#define SCALAR(DTYPE) quern_zeros(ctx, QUERN_DTYPE_##DTYPE, QUERN_SCALAR)
#define FOREIGN(DTYPE, ...) quern_zeros(other, QUERN_DTYPE_##DTYPE, QUERN_LIST(__VA_ARGS__))
#define POISON (&ir_poison)
#define TENSORS(...)                                                                                                   \
  (int)(sizeof((quern_tensor *[]){__VA_ARGS__}) / sizeof(quern_tensor *)), (quern_tensor *[]) { __VA_ARGS__ }
#define DEEP(DTYPE) T(DTYPE, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1) /* of the highest rank */
#define DIMS17 QUERN_LIST(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)
#define NOTHING ((const int64_t *)NULL)
/* A dtype, a mode, ... that there is not. */
#define NO_DTYPE ((quern_dtype)99)

/* ---- a row as a test ----------------------------------------------------------------------------------- */

static inline int wrong_setup(void **state) {
  other = test_context();
  return other != NULL ? test_setup(state) : -1;
}

static inline int wrong_teardown(void **state) {
  quern_context_free(other);
  other = NULL;
  return test_teardown(state);
}

/* The context builds and evaluates as ever, and has no error left. */
static inline void expect_works(quern_context *context) {
  float y[2] = {0}, one = 1;
  void *dst = y;
  quern_tensor *x = quern_add(quern_full(context, QUERN_DTYPE_F32, QUERN_LIST(2), 1),
                              quern_tensor_wrap(context, QUERN_DTYPE_F32, QUERN_SCALAR, &one));
  assert_int_equal(quern_eval_reference(context, 1, &x, &dst, 0, NULL), QUERN_STATUS_OK);
  assert_true(y[0] == 2 && y[1] == 2);
  assert_int_equal(quern_context_check(context), QUERN_STATUS_OK);
}

/* The message has that place; compilers differ in which line of a row of several they give. */
static inline bool is_at(const char *message, const char *file, int line) {
  for (int at = line - 3; at <= line + 3; at++) {
    char place[500];
    snprintf(place, sizeof place, "\n  at %s:%d", file, at);
    const char *found = strstr(message, place);
    char after = found != NULL ? found[strlen(place)] : '0';
    if (after < '0' || after > '9') return true;
  }
  return false;
}

/* The last error is that of the row. */
static inline void expect_error(const struct wrong *row, quern_status got) {
  const char *message = quern_last_error(), *name = row->function + strlen("quern_");
  bool begins = strncmp(message, name, strlen(name)) == 0 && message[strlen(name)] == ':';
  bool good = got == row->status && quern_last_status() == got && strstr(message, row->words) != NULL;
  if (good && (begins || !row->named) && (row->file == NULL || is_at(message, row->file, row->line))) return;
  print_error("%s, %s: expected %s with \"%s\"%s, place %s:%d, got %s: %s\n", row->function, row->mistake,
              quern_status_name(row->status), row->words, row->named ? " after its name" : "",
              row->file != NULL ? row->file : "none", row->line, quern_status_name(got), message);
  fail();
}

static inline void run_row(void **state) {
  const struct wrong *row = *state;
  if (row->build != NULL) {
    assert_true(quern_tensor_is_poison(row->build()));
    expect_error(row, quern_context_check(ctx));
  } else if (row->build_lost != NULL) {
    assert_true(quern_tensor_is_poison(row->build_lost()));
    expect_error(row, quern_last_status());
  } else if (row->build_silent != NULL) {
    assert_true(quern_tensor_is_poison(row->build_silent()));
  } else if (row->run != NULL) {
    expect_error(row, row->run());
  } else {
    bool held = row->holds();
    if (!held)
      print_error("%s, %s: does not hold; the last error is: %s\n", row->function, row->mistake, quern_last_error());
    assert_true(held);
  }
  assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
  assert_int_equal(quern_context_check(other), QUERN_STATUS_OK);
  expect_works(ctx);
  expect_works(other);
}

#endif
