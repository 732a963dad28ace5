/* base/signals.c -- signals while a library compiles that handles them itself
** NVRTC 13.0, when it compiles for the first time in a process, has SIGINT and SIGTERM end the process with status 4, and leaves them
** at their defaults, whatever the host had asked for; LLVM, which PoCL compiles with, keeps all that end a process for itself. Ctrl-C would
** lose what a host wants to save.
** tests: tests/base/test_signals.c, tests/runtime/test_null.c, tests/train/test_device.c
*/
#include "base/base.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

_Static_assert(sizeof(sigset_t) <= sizeof(struct base_signals), "the signals of a thread fit");

/* Of what a thread does itself. They always come, and who handles them goes on doing so: PoCL divides by zero. */
static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};

enum { SIGNALS = 32 }; /* those below it have names */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int holds;                      /* that are not released */
static struct sigaction host[SIGNALS]; /* as they were before the first of those */

static bool is_fault(int number) {
  for (size_t i = 0; i < BASE_COUNT(faults); i++)
    if (faults[i] == number) return true;
  return false;
}

void base_signals_block(struct base_signals *before) {
  sigset_t blocked, now;
  sigfillset(&blocked);
  for (size_t i = 0; i < BASE_COUNT(faults); i++) sigdelset(&blocked, faults[i]);
  pthread_sigmask(SIG_SETMASK, &blocked, &now);
  memcpy(before->mask, &now, sizeof now);
}

void base_signals_unblock(const struct base_signals *before) {
  sigset_t mask;
  memcpy(&mask, before->mask, sizeof mask);
  pthread_sigmask(SIG_SETMASK, &mask, NULL);
}

void base_signals_hold(struct base_signals *before) {
  base_signals_block(before);
  pthread_mutex_lock(&lock);
  for (int i = 1; i < SIGNALS && holds == 0; i++) sigaction(i, NULL, &host[i]);
  holds++;
  pthread_mutex_unlock(&lock);
}

/* SIGKILL and SIGSTOP are refused. */
void base_signals_release(const struct base_signals *before) {
  pthread_mutex_lock(&lock);
  for (int i = 1; i < SIGNALS; i++)
    if (!is_fault(i)) sigaction(i, &host[i], NULL);
  holds--;
  pthread_mutex_unlock(&lock);
  base_signals_unblock(before);
}
