/* cli/bench_peer.c -- peers as processes: started beside the program, spoken to over pipes
** keeps: a peer that hangs or ends takes no more than its own column with it
** see:   bench/peers/peer.h (the protocol)
*/
#include "bench_cuda.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

const char *const bench_peer_names[BENCH_PEERS] = {"onednn", "openblas", "numpy", "torch", "cuda", "eager", "compile"};

enum { PATIENCE = 120, GLANCE = 100 }; /* seconds until a peer is given up; milliseconds between looks for a Ctrl-C */

struct bench_peer {
  const char *name;
  int threads;
  pid_t pid; /* 0: it is not installed */
  int to, from;
  size_t n; /* bytes read and not yet used */
  char buffer[1024];
  char version[64], answer[512]; /* of the last case */
  int patience;                  /* seconds */
  bool lost;
};

extern char **environ;

/* Waits until the peer has written something; false when it has not in time, or not before Ctrl-C. */
static bool wait_for(const struct bench_peer *peer) {
  struct pollfd poll_in = {.fd = peer->from, .events = POLLIN};
  for (int waited = 0; waited < peer->patience * 1000 && !cli_interrupted(); waited += GLANCE) {
    int ready = poll(&poll_in, 1, GLANCE);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
  return false;
}

/* A line of the peer's, without its end; false when there is none in time. */
static bool read_line(struct bench_peer *peer, char *line, size_t bytes) {
  for (;;) {
    char *end = memchr(peer->buffer, '\n', peer->n);
    if (end != NULL) {
      size_t length = (size_t)(end - peer->buffer);
      snprintf(line, bytes, "%.*s", (int)length, peer->buffer);
      memmove(peer->buffer, end + 1, peer->n - length - 1);
      peer->n -= length + 1;
      return true;
    }
    if (!wait_for(peer) || peer->n == sizeof peer->buffer) return false;
    ssize_t got = read(peer->from, peer->buffer + peer->n, sizeof peer->buffer - peer->n);
    if (got <= 0) return false;
    peer->n += (size_t)got;
  }
}

/* Sends a line and reads the answer. */
static bool ask(struct bench_peer *peer, const char *line, char *answer, size_t bytes) {
  size_t n = strlen(line);
  peer->lost = peer->lost || write(peer->to, line, n) != (ssize_t)n || !read_line(peer, answer, bytes);
  return !peer->lost;
}

/* The folder that this program lies in; false when the system does not report it. */
static bool own_folder(char *path, size_t bytes) {
  ssize_t n = readlink("/proc/self/exe", path, bytes - 1);
  if (n <= 0) return false;
  path[n] = 0;
  char *slash = strrchr(path, '/');
  if (slash == NULL) return false;
  *slash = 0;
  return true;
}

/* The Python of peers: that of QUERN_PYTHON; else that of the system, and for a card the first one of PATH, whichever
** has PyTorch for it. */
static bool find_python(const char *name, char *program, size_t bytes) {
  snprintf(program, bytes, "%s", cli_env("QUERN_PYTHON"));
  if (program[0] != 0) return access(program, X_OK) == 0;
  snprintf(program, bytes, "/usr/bin/python3");
  if (strcmp(name, "cuda") != 0) return access(program, X_OK) == 0;
  for (const char *at = getenv("PATH"); at != NULL && *at != 0;) {
    int n = (int)strcspn(at, ":");
    snprintf(program, bytes, "%.*s/python3", n, at);
    if (n > 0 && access(program, X_OK) == 0) return true;
    at += n + (at[n] == ':');
  }
  return false;
}

/* The command of a peer: PEERS/peer_NAME, or PEERS/NAME_peer.py with Python. */
static bool find_command(const char *name, char *program, char *script, size_t bytes) {
  static const char *const places[] = {"peers", "../libexec/quern/peers"};
  char folder[1024];
  if (!own_folder(folder, sizeof folder)) return false;
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    *script = 0;
    snprintf(program, bytes, "%s/%s/peer_%s", folder, places[i], name);
    if (access(program, X_OK) == 0) return true;
    snprintf(script, bytes, "%s/%s/%s_peer.py", folder, places[i], name);
    if (access(script, R_OK) == 0 && find_python(name, program, bytes)) return true;
  }
  return false;
}

/* Starts the process with its pipes; false when that fails. */
static bool spawn(struct bench_peer *peer, char *program, char *script, int threads) {
  int in[2], out[2];
  if (pipe(in) != 0) return false;
  if (pipe(out) != 0) return close(in[0]), close(in[1]), false;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", 1, 0);
  const int ends[] = {in[0], in[1], out[0], out[1]};
  for (int i = 0; i < 4; i++) posix_spawn_file_actions_addclose(&actions, ends[i]);
  size_t n = 0;
  while (environ[n] != NULL) n++;
  char **env = calloc(n + 3, sizeof *env), count[2][64];
  char *arguments[] = {program, script[0] != 0 ? script : NULL, NULL};
  int failed = env == NULL;
  if (!failed) {
    snprintf(count[0], sizeof count[0], "OMP_NUM_THREADS=%d", threads);
    snprintf(count[1], sizeof count[1], "OPENBLAS_NUM_THREADS=%d", threads);
    env[0] = count[0], env[1] = count[1];
    size_t m = 2;
    for (size_t i = 0; i < n; i++)
      if (strncmp(environ[i], "OMP_NUM_THREADS=", 16) != 0) env[m++] = environ[i];
    failed = posix_spawn(&peer->pid, program, &actions, NULL, arguments, env);
  }
  free(env);
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]), close(out[1]);
  peer->to = in[1], peer->from = out[0];
  fcntl(peer->to, F_SETFD, FD_CLOEXEC); /* else a peer started later would keep this one's end open */
  fcntl(peer->from, F_SETFD, FD_CLOEXEC);
  if (failed) close(peer->to), close(peer->from);
  return !failed;
}

/* Starts the process and hears its greeting; false, with the reason, when that does not work. */
static bool start(struct bench_peer *peer, const char **why) {
  char program[1200], script[1200], line[256];
  *why = "is not there: its headers were missing when it was built, or there is no Python for it (QUERN_PYTHON)";
  if (!find_command(peer->name, program, script, sizeof program)) return false;
  *why = "cannot be started";
  signal(SIGPIPE, SIG_IGN);
  if (!spawn(peer, program, script, peer->threads)) return false;
  *why = "is not installed for the Python that it runs with (QUERN_PYTHON)";
  if (read_line(peer, line, sizeof line) && strncmp(line, "peer ", 5) == 0) {
    const char *space = strchr(line + 5, ' ');
    snprintf(peer->version, sizeof peer->version, "%.60s", space != NULL ? space + 1 : "");
    return true;
  }
  close(peer->to), close(peer->from);
  while (waitpid(peer->pid, NULL, 0) < 0 && errno == EINTR) continue;
  return false;
}

static void stop(struct bench_peer *peer) {
  if (peer == NULL) return;
  if (peer->pid != 0) {
    close(peer->to), close(peer->from);
    if (peer->lost) kill(peer->pid, SIGKILL);
    while (waitpid(peer->pid, NULL, 0) < 0 && errno == EINTR) continue;
  }
  free(peer);
}

void bench_peers_stop(struct bench_run *run) {
  for (size_t i = 0; i < sizeof run->peers / sizeof *run->peers; i++) {
    stop(run->peers[i]);
    run->peers[i] = NULL;
  }
}

struct bench_peer *bench_peer_get(struct bench_run *run, const char *name, int threads) {
  size_t number = 0; /* two places a peer: for one thread, and for more */
  while (number < BENCH_PEERS - 1 && strcmp(bench_peer_names[number], name) != 0) number++;
  struct bench_peer **place = &run->peers[2 * number + (threads > 1)];
  if (*place != NULL && ((*place)->threads == threads || (*place)->pid == 0))
    return (*place)->pid != 0 && !(*place)->lost ? *place : NULL;
  stop(*place);
  *place = calloc(1, sizeof **place);
  if (*place == NULL) return NULL;
  const char *why;
  **place = (struct bench_peer){.name = name, .threads = threads, .patience = PATIENCE};
  if (start(*place, &why)) return *place;
  (*place)->pid = 0;
  const struct bench_peer *other = run->peers[2 * number + (threads <= 1)];
  if (other == NULL || other->pid != 0) fprintf(stderr, "quern: the peer %s %s\n", name, why); /* once */
  return NULL;
}

bool bench_peer_prepare(struct bench_peer *peer, const char *kind, const char *params, const char *more) {
  char line[512];
  snprintf(line, sizeof line, "case %s %s%s%s\n", kind, params, more[0] != 0 ? " " : "", more);
  if (!ask(peer, line, peer->answer, sizeof peer->answer)) snprintf(peer->answer, sizeof peer->answer, "no answer");
  return strncmp(peer->answer, "ok", 2) == 0 && (peer->answer[2] == 0 || peer->answer[2] == ' ');
}

const char *bench_peer_answer(const struct bench_peer *peer) { return peer->answer; }

const char *bench_peer_version(const struct bench_peer *peer) { return peer->version; }

void bench_peer_patient(struct bench_peer *peer, int seconds) { peer->patience = seconds; }

double bench_peer_number(const struct bench_peer *peer, const char *key) {
  size_t n = strlen(key);
  for (const char *at = peer->answer; (at = strstr(at, key)) != NULL; at += n)
    if (at > peer->answer && at[-1] == ' ' && at[n] == '=') return strtod(at + n + 1, NULL);
  return NAN;
}

/* Seconds of n runs in one of the ways that the peer has. */
static double run_as(struct bench_peer *peer, long n, const char *mode) {
  char line[64], answer[256];
  double seconds;
  snprintf(line, sizeof line, "run %ld %s\n", n, mode);
  if (!ask(peer, line, answer, sizeof answer) || sscanf(answer, "time %lf", &seconds) != 1) return -1;
  return seconds / (double)n;
}

double bench_peer_run(void *self, long n) { return run_as(self, n, ""); }

double cuda_mode_run(void *self, long n) {
  const struct cuda_mode *mode = self;
  return run_as(mode->peer, n, mode->name);
}
