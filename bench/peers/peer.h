/* bench/peers/peer.h -- a library that Quern is measured against, as a process of its own
** Each peer has its own process, so that no two thread pools disturb each other. It reads lines and answers lines:
**   (at its start)                  peer NAME VERSION
**   case KIND key=value ...         ok [key=number ...] | no REASON
**                                                       makes the work ready: memory, primitives, packed weights; the numbers
**                                                       are what a suite asks of its peers, such as how many parameters there are
**   run N                           time SECONDS        of N runs of the case, together
**   quit
** The number of threads is given as OMP_NUM_THREADS when it is started.
*/
#ifndef BENCH_PEERS_PEER_H
#define BENCH_PEERS_PEER_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

struct peer {
  const char *name, *version;
  /* Makes a case ready: NULL, or why it cannot. */
  const char *(*prepare)(const char *kind, const char *line);
  void (*run)(void);
  void (*release)(void);
};

/* The value of key in "kind a=1 b=2", or what is given. */
static inline int64_t peer_value(const char *line, const char *key, int64_t otherwise) {
  size_t n = strlen(key);
  for (const char *at = line; (at = strstr(at, key)) != NULL; at += n)
    if (at > line && at[-1] == ' ' && at[n] == '=') return strtoll(at + n + 1, NULL, 10);
  return otherwise;
}

static inline double peer_clock(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline int peer_threads(void) {
  const char *text = getenv("OMP_NUM_THREADS");
  int n = text == NULL ? 1 : atoi(text);
  return n < 1 ? 1 : n;
}

enum { PEER_LARGE = 1 << 21 }; /* bytes from which on large pages are asked for, as Quern's side does */

/* Elements in [-1, 1), page-aligned: the same in every run. */
static inline float *peer_floats(int64_t count) {
  size_t page = (size_t)count * sizeof(float) >= PEER_LARGE ? PEER_LARGE : 4096;
  size_t bytes = ((size_t)count * sizeof(float) + page - 1) / page * page;
  float *at = aligned_alloc(page, bytes == 0 ? page : bytes);
#ifdef MADV_HUGEPAGE
  if (at != NULL && page > 4096) (void)madvise(at, bytes, MADV_HUGEPAGE);
#endif
  uint32_t x = 1;
  for (int64_t i = 0; at != NULL && i < count; i++) {
    x = x * 1664525u + 1013904223u;
    at[i] = (float)(x >> 8) * 0x1p-23f - 1;
  }
  return at;
}

static inline int peer_main(const struct peer *peer) {
  char line[1024];
  int ready = 0;
  printf("peer %s %s\n", peer->name, peer->version);
  fflush(stdout);
  while (fgets(line, sizeof line, stdin) != NULL) {
    line[strcspn(line, "\n")] = 0;
    char kind[64] = "";
    long long n = 0;
    if (strcmp(line, "quit") == 0) break;
    if (sscanf(line, "case %63s", kind) == 1) {
      if (ready) peer->release();
      const char *why = peer->prepare(kind, line);
      ready = why == NULL;
      printf(ready ? "ok\n" : "no %s\n", why);
    } else if (ready && sscanf(line, "run %lld", &n) == 1 && n > 0) {
      double start = peer_clock();
      for (long long i = 0; i < n; i++) peer->run();
      printf("time %.9f\n", peer_clock() - start);
    } else {
      printf("no such command: %s\n", line);
    }
    fflush(stdout);
  }
  if (ready) peer->release();
  return 0;
}

#endif
