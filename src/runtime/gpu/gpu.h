/* runtime/gpu/gpu.h -- what the devices of GPUs share: translation units, their binaries in the cache, launches
** see: docs/design/007-gpu.md
*/
#ifndef RUNTIME_GPU_GPU_H
#define RUNTIME_GPU_GPU_H
#include "runtime/cpu/cpu_int.h"

/* ---- translation units (translation_units.c): which kernels are compiled together, and their binaries ------------------------- */

struct rt_gpu_unit {
  size_t first, n; /* kernels */
  struct base_str text;
  uint64_t key[2];
  struct rt_bytes binary;
  bool cached, empty;  /* empty: its kernels are calls of libraries, and there is no binary */
  quern_status status; /* of compiling it, and the message; for whoever asked, in another thread perhaps */
  char error[1024];
};

/* A compiler: the text of a unit becomes a binary, in memory of the heap. Called from several threads at once when it is
** parallel. name and identity: of the compiler, everything that the binary depends on besides text and flags. */
struct rt_gpu_compiler {
  const char *name, *identity, *end; /* end: of names of files of text */
  bool parallel;
  size_t most; /* kernels of a unit */
  void *self;
  quern_status (*compile)(void *self, struct base_heap *heap, const struct cg_target *target, const char *text,
                          struct rt_bytes *binary);
};

struct rt_gpu_units {
  struct base_heap *heap;
  size_t n;
  struct rt_gpu_unit *at;
};

/* Makes the binaries of all kernels: from the cache, or compiled. A text that the compiler refuses stays in a file that the
** message names. */
quern_status rt_gpu_units_make(struct rt_gpu_units *units, struct base_heap *heap, size_t n,
                               const struct kern *const *kernels, const struct cg_target *target,
                               const struct rt_gpu_compiler *compiler, struct rt_stats *stats) QUERN_NODISCARD;
void rt_gpu_units_fini(struct rt_gpu_units *units);

/* ---- kernels (translation_units.c): what launching them needs to know --------------------------------------------------- */

struct rt_gpu_phase {
  struct kern_phase phase;
  void *function; /* of the device */
  int number;     /* in its unit */
  int group;      /* threads per task: a thread block; 1: a task is one thread's */
  int tasks;      /* of a thread block, when it has several */
  int given;      /* bytes of shared memory that a block is given */
};
struct rt_gpu_kernel {
  const char *name; /* of the kernel, which lives as long */
  size_t unit;
  int n_mems, n_scalars, n_phases;
  bool scratch;    /* it needs some */
  int max_batched; /* launches that can be batched into one: rows of the table of its memories; 1: it has none */
  struct rt_gpu_phase phases[KERN_MAX_PHASES];
};

/* The kernels of units: numbers count the phases of a unit in their order. */
void rt_gpu_kernels(struct rt_gpu_kernel *to, const struct kern *const *kernels, const struct cg_target *target,
                    const struct rt_gpu_units *units);

#endif
