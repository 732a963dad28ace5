/* runtime/cpu/process.c -- runs commands side by side and catches what they print
** Each command writes to a pipe; its end is noticed there, so that SIGCHLD may be ignored, or handled by the host. Each
** command is in the process group of a watcher, a shell that reads from a second pipe, the leash, and whose other end
** only this process holds. When this process ends, however it does (SIGKILL, Ctrl-C, out of memory), the kernel closes
** that end, the shell reads the end of the file and kills the group: compiler, assembler, linker and itself.
** PR_SET_PDEATHSIG would not do: posix_spawn cannot set it, it ends with the thread that started the child, and
** grandchildren do not inherit it. A fork of the host that runs on without exec holds the leash as well; compilers then
** end with it.
** keeps: posix_spawn only; signals and their mask are the default ones in the child, whatever the host has; no child of
**        the host is waited for; when this returns, no command runs, nor what it has started
** tests: tests/runtime/test_toolchain.c
*/
#define _GNU_SOURCE /* pipe2 */
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
  pid_t watcher; /* the leader of its process group; 0: there is no shell, and it leads its group itself */
  int leash;     /* the watcher kills the group when nobody holds this end any more */
  int fd;        /* what it writes; -1: nobody writes any more */
  size_t n;
  double stop; /* when its time is over */
};

/* The environment with messages in English, so that a version is the same text for all, and temporary files in a
** folder;
** *bytes are allocated. */
static char **plain_environment(struct base_heap *heap, const char *folder, size_t *bytes) {
  static char english[] = "LC_ALL=C";
  size_t n = 0, used = 0, room = folder ? sizeof "TMPDIR=" + strlen(folder) : 0;
  while (environ && environ[n]) n++;
  *bytes = (n + 3) * sizeof(char *) + room;
  char **list = base_alloc(heap, *bytes);
  if (!list) return NULL;
  for (size_t i = 0; i < n; i++) {
    bool replaced = strncmp(environ[i], "LC_ALL=", 7) == 0 || (folder && strncmp(environ[i], "TMPDIR=", 7) == 0);
    if (!replaced) list[used++] = environ[i];
  }
  list[used++] = english;
  if (folder) {
    char *text = (char *)(list + n + 3);
    snprintf(text, room, "TMPDIR=%s", folder);
    list[used++] = text;
  }
  list[used] = NULL;
  return list;
}

/* What a child gets: an input and an output, each /dev/null when it is -1; a group, 0 for one of its own; default
** signals. */
static int describe(posix_spawn_file_actions_t *files, posix_spawnattr_t *attr, pid_t group, int in, int out) {
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  sigdelset(&all, SIGKILL);
  sigdelset(&all, SIGSTOP);
  int error = in < 0 ? posix_spawn_file_actions_addopen(files, STDIN_FILENO, "/dev/null", O_RDONLY, 0)
                     : posix_spawn_file_actions_adddup2(files, in, STDIN_FILENO);
  for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO && !error; fd++)
    error = out < 0 ? posix_spawn_file_actions_addopen(files, fd, "/dev/null", O_WRONLY, 0)
                    : posix_spawn_file_actions_adddup2(files, out, fd);
  if (!error) error = posix_spawnattr_setpgroup(attr, group);
  if (!error) error = posix_spawnattr_setsigmask(attr, &none);
  if (!error) error = posix_spawnattr_setsigdefault(attr, &all);
  if (!error)
    error = posix_spawnattr_setflags(attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  return error;
}

static int spawn(pid_t *pid, const char *const *argv, char *const *env, pid_t group, int in, int out) {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attr;
  int error = posix_spawn_file_actions_init(&files);
  if (error) return error;
  error = posix_spawnattr_init(&attr);
  if (!error) {
    error = describe(&files, &attr, group, in, out);
    char *const *args;
    memcpy(&args, &argv, sizeof args); /* posix_spawn does not write to them */
    if (!error) error = posix_spawn(pid, argv[0], &files, &attr, args, env);
    posix_spawnattr_destroy(&attr);
  }
  posix_spawn_file_actions_destroy(&files);
  return error;
}

static void close_pipe(int ends[2]) {
  int saved = errno;
  for (int i = 0; i < 2; i++) {
    if (ends[i] >= 0) close(ends[i]);
  }
  errno = saved;
}

/* A pipe whose ends are not handed to other children, and above those that a child's 0, 1 and 2 would be. */
static bool make_pipe(int ends[2]) {
#if defined(__linux__)
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
#else
  if (pipe(ends) != 0) return false;
#endif
  for (int i = 0; i < 2; i++) {
    int high = fcntl(ends[i], F_DUPFD_CLOEXEC, 3), saved = errno;
    close(ends[i]);
    ends[i] = high;
    errno = saved;
  }
  if (ends[0] >= 0 && ends[1] >= 0) return true;
  close_pipe(ends);
  return false;
}

static void wait_for(pid_t pid) {
  while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {}
}

/* Starts the watcher of a command's group. The command, as long as it is not yet that program, holds both pipes, as
** this process does: so the leash does not end before it is in the group. */
static bool start_watcher(struct running *running, char *const *env) {
  static const char *const argv[] = {"/bin/sh", "-c", "read x; kill -9 0", NULL};
  int ends[2];
  if (!make_pipe(ends)) return false;
  int error = spawn(&running->watcher, argv, env, 0, ends[0], -1);
  close(ends[0]);
  running->leash = ends[1];
  /* The watcher makes its group by itself. Where posix_spawn returns before a child has come so far (qemu-user), the command
  ** would find no group to join. */
  if (!error) (void)!setpgid(running->watcher, running->watcher);
  if (!error) return true;
  close(ends[1]);
  running->watcher = 0;
  running->leash = -1;
  errno = error;
  return error == ENOENT || error == EACCES; /* a system without a shell */
}

static void stop_watcher(struct running *running) {
  if (running->watcher == 0) return;
  kill(-running->watcher, SIGKILL);
  wait_for(running->watcher);
  close(running->leash);
  running->watcher = 0;
}

static quern_status start(struct running *running, struct rt_command *command, char *const *env, double seconds) {
  int ends[2];
  *running = (struct running){.command = command, .stop = base_clock() + seconds};
  QUERN_CHECK(start_watcher(running, env), IO, "cannot start /bin/sh, to watch %s: %s", command->argv[0],
              strerror(errno));
  int error = make_pipe(ends) ? 0 : errno;
  if (!error) {
    running->fd = ends[0];
    error = fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0 ? errno : 0;
    if (!error) error = spawn(&running->pid, command->argv, env, running->watcher, -1, ends[1]);
    close(ends[1]);
    if (error) close(ends[0]);
  }
  if (error) stop_watcher(running);
  QUERN_CHECK(!error, IO, "cannot start %s: %s", command->argv[0], strerror(error));
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

/* Whether it has ended; if so, its command records how. */
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
  stop_watcher(running);
  return true;
}

/* Ends it and all it has started. */
static void end(struct running *running) {
  kill(running->watcher != 0 ? -running->watcher : -running->pid, SIGKILL);
  kill(running->pid, SIGKILL);
  has_ended(running, 0);
}

/* Sleeps until one of them prints something or may have ended. */
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

quern_status rt_commands_run(struct base_heap *heap, size_t n, struct rt_command *commands, int side, double seconds,
                             const char *folder) {
  struct running running[MOST_SIDE];
  size_t bytes, next = 0, busy = 0, most = (size_t)BASE_MAX(BASE_MIN(side, MOST_SIDE), 1);
  char **env = plain_environment(heap, folder, &bytes);
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
