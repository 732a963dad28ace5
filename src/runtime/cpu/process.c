/* runtime/cpu/process.c -- runs commands side by side and catches what they say
** Each command writes to a pipe; its end is noticed there, so that SIGCHLD may be ignored, or handled by the host. After
** a Ctrl-C that ends the host, compilers, which have a process group of their own, run to their end unheard; their files
** are removed by rt_cache_trim.
** keeps: posix_spawn only; signals and their mask are the default ones in the child, whatever the host has; no child of
**        the host is waited for; when this returns, no command runs
** tests: tests/runtime/test_toolchain.c
*/
#include "runtime/cpu/cpu_int.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { MOST_SIDE = 64, TICK_MS = 100 };

struct running {
  struct rt_command *command;
  pid_t pid;
  int fd; /* what it writes; -1: nobody writes any more */
  size_t n;
  double stop; /* when its time is over */
};

/* The environment with messages in English, so that a version is the same text for all; *bytes are allocated. */
static char **plain_environment(struct base_heap *heap, size_t *bytes) {
  size_t n = 0, used = 0;
  while (environ && environ[n]) n++;
  *bytes = (n + 2) * sizeof(char *);
  char **list = base_alloc(heap, *bytes);
  if (!list) return NULL;
  for (size_t i = 0; i < n; i++) {
    if (strncmp(environ[i], "LC_ALL=", 7) != 0) list[used++] = environ[i];
  }
  static char english[] = "LC_ALL=C";
  list[used++] = english;
  list[used] = NULL;
  return list;
}

/* What the child gets: no input, the pipe for output, a group of its own, default signals. */
static int describe(posix_spawn_file_actions_t *files, posix_spawnattr_t *attr, int pipe_end) {
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  sigdelset(&all, SIGKILL);
  sigdelset(&all, SIGSTOP);
  int error = posix_spawn_file_actions_addopen(files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  if (!error) error = posix_spawn_file_actions_adddup2(files, pipe_end, STDOUT_FILENO);
  if (!error) error = posix_spawn_file_actions_adddup2(files, pipe_end, STDERR_FILENO);
  if (!error) error = posix_spawnattr_setpgroup(attr, 0);
  if (!error) error = posix_spawnattr_setsigmask(attr, &none);
  if (!error) error = posix_spawnattr_setsigdefault(attr, &all);
  if (!error)
    error = posix_spawnattr_setflags(attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  return error;
}

static int spawn(pid_t *pid, const char *const *argv, char *const *env, int pipe_end) {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attr;
  int error = posix_spawn_file_actions_init(&files);
  if (error) return error;
  error = posix_spawnattr_init(&attr);
  if (!error) {
    error = describe(&files, &attr, pipe_end);
    char *const *args;
    memcpy(&args, &argv, sizeof args); /* posix_spawn does not write to them */
    if (!error) error = posix_spawn(pid, argv[0], &files, &attr, args, env);
    posix_spawnattr_destroy(&attr);
  }
  posix_spawn_file_actions_destroy(&files);
  return error;
}

/* A pipe whose ends are not handed to other children, and above those that a child's 0, 1 and 2 would be. */
static bool make_pipe(int ends[2]) {
  if (pipe(ends) != 0) return false;
  for (int i = 0; i < 2; i++) {
    int high = fcntl(ends[i], F_DUPFD_CLOEXEC, 3), saved = errno;
    close(ends[i]);
    ends[i] = high;
    errno = saved;
  }
  if (ends[0] >= 0 && ends[1] >= 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0) return true;
  int saved = errno;
  for (int i = 0; i < 2; i++) {
    if (ends[i] >= 0) close(ends[i]);
  }
  errno = saved;
  return false;
}

static quern_status start(struct running *running, struct rt_command *command, char *const *env, double seconds) {
  int ends[2];
  QUERN_CHECK(make_pipe(ends), IO, "cannot make a pipe for %s: %s", command->argv[0], strerror(errno));
  int error = spawn(&running->pid, command->argv, env, ends[1]);
  close(ends[1]);
  if (error) close(ends[0]);
  QUERN_CHECK(!error, IO, "cannot start %s: %s", command->argv[0], strerror(error));
  running->command = command;
  running->fd = ends[0];
  running->n = 0;
  running->stop = base_clock() + seconds;
  return QUERN_STATUS_OK;
}

/* Takes what there is to read; what does not fit is forgotten. */
static void listen_to(struct running *running) {
  char rest[1024];
  for (;;) {
    size_t room = RT_OUTPUT_BYTES - 1 - running->n;
    char *at = room > 0 ? running->command->output + running->n : rest;
    ssize_t got = read(running->fd, at, room > 0 ? room : sizeof rest);
    if (got > 0 && room > 0) running->n += (size_t)got;
    if (got > 0 || (got < 0 && errno == EINTR)) continue;
    if (got < 0 && errno == EAGAIN) return;
    close(running->fd);
    running->fd = -1;
    return;
  }
}

/* Whether it has ended; if so, its command says how. */
static bool has_ended(struct running *running, int flags) {
  int status = 0;
  pid_t got;
  do got = waitpid(running->pid, &status, flags);
  while (got < 0 && errno == EINTR);
  if (got == 0) return false;
  struct rt_command *command = running->command;
  if (command->ending != RT_TOO_LONG) {
    command->ending = got < 0 ? RT_UNKNOWN : WIFEXITED(status) ? RT_EXITED : RT_KILLED;
    command->code = got < 0 ? 0 : WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status);
  }
  if (running->fd >= 0) {
    listen_to(running);
    if (running->fd >= 0) close(running->fd);
  }
  command->output[running->n] = 0;
  return true;
}

/* Ends it and all it has started. */
static void end(struct running *running) {
  kill(-running->pid, SIGKILL);
  kill(running->pid, SIGKILL);
  has_ended(running, 0);
}

/* Sleeps until one of them says something or may have ended. */
static void wait_a_little(size_t n, struct running *running) {
  struct pollfd fds[MOST_SIDE];
  int timeout = TICK_MS;
  for (size_t i = 0; i < n; i++) {
    fds[i] = (struct pollfd){.fd = running[i].fd, .events = POLLIN};
    if (running[i].fd < 0) timeout = 1; /* at its end: it cannot be heard */
  }
  if (poll(fds, (nfds_t)n, timeout) <= 0) return;
  for (size_t i = 0; i < n; i++) {
    if (fds[i].revents) listen_to(&running[i]);
  }
}

quern_status rt_commands_run(struct base_heap *heap, size_t n, struct rt_command *commands, int side, double seconds) {
  struct running running[MOST_SIDE];
  size_t bytes, next = 0, busy = 0, most = (size_t)BASE_MAX(BASE_MIN(side, MOST_SIDE), 1);
  char **env = plain_environment(heap, &bytes);
  if (!env) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < n; i++) {
    commands[i].ending = RT_NOT_STARTED;
    commands[i].output[0] = 0;
  }
  quern_status status = QUERN_STATUS_OK;
  while (status == QUERN_STATUS_OK && (next < n || busy > 0)) {
    if (next < n && busy < most) {
      status = start(&running[busy], &commands[next], env, seconds);
      next++;
      busy += status == QUERN_STATUS_OK;
      continue;
    }
    wait_a_little(busy, running);
    for (size_t i = busy; i-- > 0;) {
      bool over = base_clock() > running[i].stop;
      if (over) running[i].command->ending = RT_TOO_LONG;
      if (over) end(&running[i]);
      if (over || has_ended(&running[i], WNOHANG)) running[i] = running[--busy];
    }
  }
  for (size_t i = 0; i < busy; i++) end(&running[i]);
  base_free(heap, env, bytes);
  return status;
}

void rt_command_ending(const struct rt_command *command, char *text, size_t bytes) {
  static const char *const words[] = {
      [RT_NOT_STARTED] = "was not started",       [RT_EXITED] = "exit status",
      [RT_KILLED] = "killed by signal",           [RT_UNKNOWN] = "exit status not known",
      [RT_TOO_LONG] = "killed: it took too long",
  };
  bool coded = command->ending == RT_EXITED || command->ending == RT_KILLED;
  if (coded)
    snprintf(text, bytes, "%s %d", words[command->ending], command->code);
  else
    snprintf(text, bytes, "%s", words[command->ending]);
}
