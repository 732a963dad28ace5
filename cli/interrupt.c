/* cli/interrupt.c -- Ctrl-C while something long runs: what was done so far is reported or saved, then the program ends
** One press can come as two signals: timeout(1) and others send it to the program and then to its whole group. What
** follows the first within ECHO_MS is therefore the same press; what comes later ends the program at once. Only people
** and process managers repeat themselves to say "at once", with SIGINT and SIGTERM: a terminal that is closed sends
** SIGHUP as often as there are shells in it, each write to a closed pipe a SIGPIPE, and the limit of CPU time a SIGXCPU
** every second.
** tests: tests/cli/test_train.c
*/
#include "cli.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

enum { ECHO_MS = 100 };

static atomic_int ended, telling; /* ended: the signal that came first, 0: none did */
static _Atomic int64_t first;     /* milliseconds of the first one by hand; 0: there was none */

static int64_t milliseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* May run in several threads at a time. */
static void on_signal(int number) {
  static const char text[] = "\nquern: ends after this step, with a checkpoint; once more: at once\n";
  int error = errno, none = 0;
  int64_t before = 0, now = milliseconds();
  bool by_hand = number == SIGINT || number == SIGTERM;
  if (atomic_compare_exchange_strong(&ended, &none, number) && telling &&
      write(STDERR_FILENO, text, sizeof text - 1) < 0)
    telling = 0; /* nobody is there to read it */
  if (by_hand && !atomic_compare_exchange_strong(&first, &before, now) && now - before >= ECHO_MS) {
    if (getpid() == 1) _exit(128 + number); /* of a namespace: the kernel keeps default signals from it */
    signal(number, SIG_DFL);
    raise(number); /* comes when this returns */
  }
  errno = error;
}

/* Has the signals noted; whoever started the program may have had some ignored, as nohup(1) does, which holds for all
** but Ctrl-C and SIGTERM: these are sent on purpose. */
static void heed(const int *numbers, int n) {
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < n; i++) sigaddset(&action.sa_mask, numbers[i]);
  for (int i = 0; i < n; i++) {
    bool ignored = sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN;
    if (!ignored || numbers[i] == SIGINT || numbers[i] == SIGTERM) sigaction(numbers[i], &action, NULL);
  }
}

void cli_catch_interrupt(void) { heed((const int[]){SIGINT}, 1); }

bool cli_interrupted(void) { return ended != 0; }

void cli_catch_end(void) {
  static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXCPU};
  telling = 1;
  heed(numbers, sizeof numbers / sizeof *numbers);
}

int cli_end_signal(void) { return ended; }
