/* cli/interrupt.c -- Ctrl-C while something long runs: what was done so far is told or saved, then the program ends
** One press can come as two signals: timeout(1) and others send it to the program and then to its whole group. What
** follows the first within ECHO_MS is therefore the same press; what comes later ends the program at once.
*/
#include "cli.h"

#include <errno.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { ECHO_MS = 100 };

static volatile sig_atomic_t ended, telling;
static struct timespec first; /* written before ended, by the handler alone */

static void on_signal(int number) {
  static const char text[] = "\nquern: ends after this step, with a checkpoint; once more: at once\n";
  int error = errno;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (ended == 0) {
    first = now;
    ended = number;
    if (telling && write(STDERR_FILENO, text, sizeof text - 1) < 0) telling = 0; /* nobody is there to be told */
  } else if ((now.tv_sec - first.tv_sec) * 1000 + (now.tv_nsec - first.tv_nsec) / 1000000 >= ECHO_MS) {
    signal(number, SIG_DFL);
    raise(number); /* comes when this returns */
  }
  errno = error;
}

/* SIGINT and SIGTERM wait for each other: there is one handler at a time. */
static void heed(const int *numbers, int n) {
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < n; i++) sigaddset(&action.sa_mask, numbers[i]);
  for (int i = 0; i < n; i++) sigaction(numbers[i], &action, NULL);
}

void cli_catch_interrupt(void) { heed((const int[]){SIGINT}, 1); }

bool cli_interrupted(void) { return ended != 0; }

void cli_catch_end(void) {
  telling = 1;
  heed((const int[]){SIGINT, SIGTERM}, 2);
}

int cli_end_signal(void) { return ended; }
