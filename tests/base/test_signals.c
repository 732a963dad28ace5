/* tests/base/test_signals.c -- signals while a library compiles that handles them itself */
#include "base/test.h"

#include <signal.h>

static volatile sig_atomic_t got, got_by_library;
static void on_signal(int number) { got = number; }
static void on_signal_of_library(int number) { got_by_library = number; }

static void set(int number, void (*handler)(int)) {
  struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
  sigemptyset(&action.sa_mask);
  assert_int_equal(sigaction(number, &action, NULL), 0);
}

static void expect(int number, void (*handler)(int)) {
  struct sigaction action;
  assert_int_equal(sigaction(number, NULL, &action), 0);
  assert_true(action.sa_handler == handler);
}

/* What NVRTC does. */
static void library_begins(void) {
  set(SIGINT, on_signal_of_library);
  set(SIGTERM, on_signal_of_library);
}
static void library_ends(void) {
  set(SIGINT, SIG_DFL);
  set(SIGTERM, SIG_DFL);
  set(SIGXFSZ, SIG_DFL);
}

static void test_held(void **state) {
  (void)state;
  struct base_signals signals;
  set(SIGINT, on_signal);
  set(SIGXFSZ, SIG_IGN);
  got = got_by_library = 0;
  base_signals_hold(&signals);
  library_begins();
  raise(SIGINT);
  library_ends();
  assert_true(got == 0 && got_by_library == 0);
  base_signals_release(&signals);
  assert_true(got == SIGINT && got_by_library == 0); /* it comes late, and where it belongs */
  expect(SIGINT, on_signal);
  expect(SIGTERM, SIG_DFL);
  expect(SIGXFSZ, SIG_IGN);
}

/* Two libraries, of which the one begins while the other is at work. */
static void test_overlap(void **state) {
  (void)state;
  struct base_signals first, second;
  set(SIGINT, on_signal);
  set(SIGTERM, on_signal);
  base_signals_hold(&first);
  library_begins();
  base_signals_hold(&second);
  library_begins();
  library_ends();
  base_signals_release(&second);
  expect(SIGINT, on_signal);
  library_begins();
  library_ends();
  base_signals_release(&first);
  expect(SIGINT, on_signal);
  expect(SIGTERM, on_signal);
}

/* A library that keeps signals for itself; a later hold knows what the host has asked for since. */
static void test_kept(void **state) {
  (void)state;
  struct base_signals signals;
  set(SIGINT, SIG_DFL);
  set(SIGHUP, on_signal);
  base_signals_hold(&signals);
  set(SIGINT, on_signal_of_library);
  set(SIGHUP, on_signal_of_library);
  set(SIGFPE, on_signal_of_library);
  base_signals_release(&signals);
  expect(SIGFPE, on_signal_of_library); /* of what it does itself */
  set(SIGFPE, SIG_DFL);
  expect(SIGINT, SIG_DFL);
  expect(SIGHUP, on_signal);
  set(SIGINT, on_signal);
  base_signals_hold(&signals);
  library_begins();
  library_ends();
  base_signals_release(&signals);
  expect(SIGINT, on_signal);
  set(SIGINT, SIG_DFL);
  set(SIGHUP, SIG_DFL);
}

static void test_blocked(void **state) {
  (void)state;
  struct base_signals signals;
  sigset_t mask;
  base_signals_block(&signals);
  assert_int_equal(pthread_sigmask(SIG_BLOCK, NULL, &mask), 0);
  assert_true(sigismember(&mask, SIGINT) && sigismember(&mask, SIGUSR1));
  assert_false(sigismember(&mask, SIGSEGV) || sigismember(&mask, SIGABRT));
  base_signals_unblock(&signals);
  assert_int_equal(pthread_sigmask(SIG_BLOCK, NULL, &mask), 0);
  assert_false(sigismember(&mask, SIGINT));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_held),
      cmocka_unit_test(test_overlap),
      cmocka_unit_test(test_kept),
      cmocka_unit_test(test_blocked),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
