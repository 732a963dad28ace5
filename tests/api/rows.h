/* tests/api/rows.h -- a program of the rows of one .def, whose name is ROWS; see wrong.h
** The .def is read twice: once for a function per row, once for the table.
*/
#ifndef TESTS_API_ROWS_H
#define TESTS_API_ROWS_H
#include "api/wrong.h"

#define WRONG(function, mistake, STATUS, words, ...)                                                                   \
  static quern_tensor *function##__##mistake(void) { return __VA_ARGS__; }
#define INSIDE WRONG
#define LOST WRONG
#define SILENT(function, mistake, ...) WRONG(function, mistake, OK, "", __VA_ARGS__)
#define FAILS(function, mistake, STATUS, words, ...)                                                                   \
  static quern_status function##__##mistake(void) { return __VA_ARGS__; }
#define FAILS_AT FAILS
#define HOLDS(function, mistake, ...)                                                                                  \
  static bool function##__##mistake(void) { return __VA_ARGS__; }
#include ROWS
#undef WRONG
#undef INSIDE
#undef LOST
#undef SILENT
#undef FAILS
#undef FAILS_AT
#undef HOLDS

#define WRONG(function, mistake, STATUS, words, ...)                                                                   \
  {#function, #mistake, QUERN_STATUS_##STATUS, words, true, __FILE__, __LINE__, .build = function##__##mistake},
#define INSIDE(function, mistake, STATUS, words, ...)                                                                  \
  {#function, #mistake, QUERN_STATUS_##STATUS, words, false, __FILE__, __LINE__, .build = function##__##mistake},
#define LOST(function, mistake, STATUS, words, ...)                                                                    \
  {#function, #mistake, QUERN_STATUS_##STATUS, words, true, NULL, 0, .build_lost = function##__##mistake},
#define SILENT(function, mistake, ...) {#function, #mistake, .build_silent = function##__##mistake},
#define FAILS(function, mistake, STATUS, words, ...)                                                                   \
  {#function, #mistake, QUERN_STATUS_##STATUS, words, false, NULL, 0, .run = function##__##mistake},
#define FAILS_AT(function, mistake, STATUS, words, ...)                                                                \
  {#function, #mistake, QUERN_STATUS_##STATUS, words, true, __FILE__, __LINE__, .run = function##__##mistake},
#define HOLDS(function, mistake, ...) {#function, #mistake, .holds = function##__##mistake},
static struct wrong rows[] = {
#include ROWS
};

int main(void) {
  static char names[sizeof rows / sizeof *rows][96];
  static struct CMUnitTest tests[sizeof rows / sizeof *rows];
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    snprintf(names[i], sizeof names[i], "%s %s", rows[i].function, rows[i].mistake);
    tests[i] = (struct CMUnitTest){names[i], run_row, wrong_setup, wrong_teardown, &rows[i]};
  }
  return cmocka_run_group_tests_name(ROWS, tests, NULL, NULL);
}

#endif
