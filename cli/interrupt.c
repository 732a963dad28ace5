/* cli/interrupt.c -- Ctrl-C while something long runs: what was done so far is told or saved, then the program ends */
#include "cli.h"

#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t interrupted, ended;

static void on_interrupt(int number) {
  (void)number;
  interrupted = 1;
}

void cli_catch_interrupt(void) {
  struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND | SA_RESTART};
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, NULL);
}

bool cli_interrupted(void) { return interrupted != 0; }

static void set(void (*handler)(int), int flags) {
  struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
}

/* The next one, of either kind, ends the program. */
static void on_end(int number) {
  static const char text[] = "\nquern: ends after this step, with a checkpoint; once more: at once\n";
  ended = number;
  set(SIG_DFL, 0);
  if (write(STDERR_FILENO, text, sizeof text - 1) < 0) return; /* nobody is there to be told */
}

void cli_catch_end(void) { set(on_end, SA_RESTART); }

int cli_end_signal(void) { return ended; }
