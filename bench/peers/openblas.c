/* bench/peers/openblas.c -- OpenBLAS: sgemm, and sgemv for one row
** cases: gemm m k n
*/
#define _DEFAULT_SOURCE /* madvise */
#include <cblas.h>

#include "peer.h"

static struct {
  blasint m, k, n;
  float *a, *b, *c;
} work;

static void run(void) {
  if (work.m == 1)
    cblas_sgemv(CblasRowMajor, CblasTrans, work.k, work.n, 1, work.b, work.n, work.a, 1, 0, work.c, 1);
  else
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, work.m, work.n, work.k, 1, work.a, work.k, work.b, work.n, 0,
                work.c, work.n);
}

static void release(void) { free(work.a), free(work.b), free(work.c), memset(&work, 0, sizeof work); }

static const char *prepare(const char *kind, const char *line) {
  if (strcmp(kind, "gemm") != 0 || peer_value(line, "packed", 0) != 0) return "this peer has no such work";
  work.m = (blasint)peer_value(line, "m", 1);
  work.k = (blasint)peer_value(line, "k", 1);
  work.n = (blasint)peer_value(line, "n", 1);
  work.a = peer_floats((int64_t)work.m * work.k);
  work.b = peer_floats((int64_t)work.k * work.n);
  work.c = peer_floats((int64_t)work.m * work.n);
  run();
  return NULL;
}

int main(void) {
  openblas_set_num_threads(peer_threads());
  return peer_main(&(struct peer){"openblas", OPENBLAS_VERSION, prepare, run, release});
}
