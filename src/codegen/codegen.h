/* codegen/codegen.h -- kernels as text for a target: C, OpenCL C or CUDA C
** C with the vector extensions of gcc and clang; for GPUs scalar code; no includes. Every text of a kernel is made here and nowhere else.
** see: targets.def, README.md, docs/design/002-cpu-compiler.md
*/
#ifndef CODEGEN_CODEGEN_H
#define CODEGEN_CODEGEN_H
#include "kern/kern.h"

/* ---- targets (target.c, targets.def) ----------------------------------------------------------------------------- */

/* Whose builtins the text may use; the last two are dialects of their own. */
enum cg_isa { CG_ISA_GENERIC, CG_ISA_NEON, CG_ISA_AVX2, CG_ISA_AVX512, CG_ISA_OPENCL, CG_ISA_CUDA };

struct cg_target {
  struct base_target base;
  enum cg_isa isa;
  const char *march; /* flags of the compiler, separated by blanks: "-mavx2 -mfma"; may be "" */
};

/* The CPUs of targets.def, best first, the generic one last; its GPUs, those of a dialect in increasing order. */
extern const struct cg_target cg_targets[], cg_gpus[];
extern const size_t cg_target_count, cg_gpu_count;
const struct cg_target *cg_target_find(const char *name); /* of either; NULL: there is none */
/* Whether GPUs of a row have tensor cores that MMA can use. */
bool cg_target_has_mma(const struct cg_target *target);
/* A row by its name, then its capabilities: the libraries that kernels may call, and whether they may use tensor cores: "sm_90",
** "sm_90+blas+dnn+mma". */
quern_status cg_target_parse(struct cg_target *target, const char *text) QUERN_NODISCARD;
bool cg_target_runs(const struct cg_target *target); /* this CPU has what the row needs */
/* The best row that this CPU can run; cache sizes as detected where they can be. threads is left 1. */
void cg_target_detect(struct cg_target *target);

/* Flags that every translation unit is compiled with, by gcc and clang alike, besides those of the target's march; separated by
** blanks. The bits depend on them. Whoever links adds -shared, and -lm at the end for targets without fma. */
extern const char cg_flags[];

/* ---- translation units (translation_unit.c, emit.c) -------------------------------------------------------------- */

/* The C type of a phase's function:
**   void NAME_<phase>(void *const *mems, const int64_t *scalars, int64_t begin, int64_t end, char *scratch)
** runs tasks begin .. end - 1. scratch is 64-byte aligned, kern_scratch_bytes long, of the running thread. */
typedef void cg_entry(void *const *mems, const int64_t *scalars, int64_t begin, int64_t end, char *scratch);

/* A translation unit: kernels that are compiled together. The types and small functions that they need, and no others, are printed once
** before them; of equal functions to be called one is printed. */
struct cg_unit {
  struct base_heap *heap;
  const struct cg_target *target;
  struct base_str prelude, body;
  struct base_str entries; /* of OpenCL: the phases as cases of a switch */
  int n_entries;           /* of a GPU: phases */
  struct base_map names;   /* of everything that is in prelude or body */
  struct base_arena arena;
};
void cg_unit_init(struct cg_unit *unit, struct base_heap *heap, const struct cg_target *target);
void cg_unit_fini(struct cg_unit *unit);
/* Bytes of text that one kernel may become: a compiler takes minutes and a gigabyte for more. */
enum { CG_MOST_TEXT = 8 << 20 };
/* Adds a verified kernel, unless it is there already. After a failure the unit can only be freed. */
quern_status cg_unit_add(struct cg_unit *unit, const struct kern *kern) QUERN_NODISCARD;
/* Appends the text of the whole unit. The same kernels in the same order give the same bytes. */
quern_status cg_unit_text(const struct cg_unit *unit, struct base_str *str) QUERN_NODISCARD;

/* ---- phases on a GPU (dialect.c) -------------------------------------------------------------------------------
** CUDA: the kernel NAME_<phase>, with thread blocks of CG_BLOCK_THREADS and these parameters: one pointer per memory of the kernel, one i64
** per scalar, i64 tasks, char *scratch, i64 stride. Thread t has the scratch from t stride bytes on.
** With a table of n > 1 rows (cg_batched_launches) the kernel does n batched launches at most: the first parameter is void *[n][memories]
** instead of the pointers, by value, and blocks with blockIdx.y = i work with row i.
** OpenCL: phases are numbered in the order in which they were added; the unit's kernel CG_ENTRY_OPENCL runs one, with work-groups of
** CG_BLOCK_THREADS_OPENCL and these parameters: i32 phase, CG_BUFFERS buffers, a buffer of i64 that has for each memory of the kernel
** the number of a buffer and an offset in bytes, then the scalars; i64 tasks, scratch, i64 stride. */
enum { CG_BLOCK_THREADS = 256, CG_BLOCK_THREADS_OPENCL = 64, CG_BUFFERS = 12 };
#define CG_ENTRY_OPENCL "run"

/* Rows of a kernel's table: how many launches can be batched into one. 1: there is no table. (dialect.c) */
int cg_batched_launches(const struct kern *kern, const struct cg_target *target);

/* Memories of a launch on a GPU begin at multiples of this, in bytes. */
enum { CG_ALIGN = 16 };

/* SPMD: lanes are mapped to threads (thread_block.c). Where a phase's values have fewer than CG_LEAST_BLOCK lanes, one thread runs a task
** and has all lanes. Other tasks are run by one thread block each, of kern_phase.block_threads threads (0: one per lane). Thread t has
** lanes t own .. t own + own - 1 of a value with n lanes, own = n / block_threads; lane t mod n of one with fewer lanes than threads; and
** all threads have the same scalars.
** A thread loads and stores lanes that follow each other in memory 16, 8 or 4 bytes at once, where index arithmetic shows that so many
** bytes divide the address of the first (zeros of constants, products, counters of loops and their sums) and the count. So the accesses
** of a warp are coalesced. An HREDUCE is done in the thread, then in its warp, then by one exchange between warps, which several that
** follow each other share.
** Phases of thread blocks may have values of more than KERN_MAX_LANES lanes; they have no IF (OpenCL), CALL, SHUFFLE or DOT4, BITCAST
** between dtypes of one size only, and LOW, HIGH and JOIN of as many lanes as there are threads at most.
** In CUDA, where a task is run by one warp, a thread block has several tasks (cg_shape.tasks).
** In OpenCL too, phases of work-groups are kernels of their own, named by their symbol, with the same parameters but the first. Work-group
** g has the scratch from g block_threads stride bytes on, unless it lies in shared memory: then there are that many bytes of it. */
enum { CG_LEAST_BLOCK = 16, CG_SHARED_BYTES = 32768, CG_WARP = 32 };
/* In CUDA scratch of more than CG_SHARED_BYTES is shared memory too, up to what the target has for a thread block. */
struct cg_shape {
  int block_threads; /* threads that run a task */
  int tasks;         /* that a thread block runs at a time; it has block_threads * tasks threads */
};
struct cg_shape cg_shape(const struct kern *kern, int phase, const struct cg_target *target);
int cg_block_threads(const struct kern *kern, int phase, const struct cg_target *target);
int64_t cg_shared_bytes(const struct kern *kern, int phase, const struct cg_target *target);
/* Bytes of shared memory that a block of the phase must be given when it is launched. */
int64_t cg_dynamic_shared_bytes(const struct kern *kern, int phase, const struct cg_target *target);
/* Bytes of scratch that a thread of the target needs in the device's memory. */
int64_t cg_scratch(const struct kern *kern, const struct cg_target *target);

/* The symbol of a phase. */
void cg_symbol(char *buffer, size_t bytes, const struct kern *kern, int phase);

#endif
