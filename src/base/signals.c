/* base/signals.c -- signals while a library compiles that handles them itself
** NVRTC 13.0, when it compiles for the first time in a process, has SIGINT and SIGTERM end the process with status 4, and leaves them
** and SIGXFSZ at their defaults, whatever the host had asked for: Ctrl-C would lose what a host wants to save.
** tests: tests/base/test_signals.c, tests/runtime/test_null.c
*/
#include "base/base.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

_Static_assert(sizeof(sigset_t) <= sizeof(struct base_signals), "the signals of a thread fit");

static const int kept[] = {SIGINT, SIGTERM, SIGXFSZ};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int holds;                               /* that are not released */
static struct sigaction host[BASE_COUNT(kept)]; /* as they were before the first of those */

static bool is_default(const struct sigaction *action) {
  return (action->sa_flags & SA_SIGINFO) == 0 && action->sa_handler == SIG_DFL;
}

void base_signals_block(struct base_signals *before) {
  static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
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
  for (size_t i = 0; i < BASE_COUNT(kept) && holds == 0; i++) sigaction(kept[i], NULL, &host[i]);
  holds++;
  pthread_mutex_unlock(&lock);
}

/* What is not at its default was set by the host since, or by a library that is at work in another thread. */
void base_signals_release(const struct base_signals *before) {
  struct sigaction now;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < BASE_COUNT(kept); i++)
    if (sigaction(kept[i], NULL, &now) == 0 && is_default(&now)) sigaction(kept[i], &host[i], NULL);
  holds--;
  pthread_mutex_unlock(&lock);
  base_signals_unblock(before);
}
