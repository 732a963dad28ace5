/* cli/interrupt.c -- Ctrl-C while something long runs: what was done so far is told, then the program ends */
#include "cli.h"

#include <signal.h>

static volatile sig_atomic_t interrupted;

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
