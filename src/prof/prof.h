/* prof/prof.h -- what this machine can do, and how near a program comes to it
** calibrate.c measures the machine once and keeps the figures; report.c turns what was recorded of a program's
** runs into tables, rooflines, Chrome traces and flame-graph stacks.
** see: docs/design/002-cpu-compiler.md
*/
#ifndef PROF_PROF_H
#define PROF_PROF_H
#include "runtime/runtime.h"

/* ---- limits (calibrate.c) --------------------------------------------------------------------------------------- */

enum { PROF_L1, PROF_L2, PROF_L3, PROF_DRAM, PROF_LEVELS };
extern const char *const prof_level_names[PROF_LEVELS]; /* "L1", "L2", "L3", "DRAM" */

/* Measured with as many threads at once; all zero when there is no compiler to measure with. */
struct prof_limits {
  int threads;
  double flops_f32, flops_f64;              /* a second */
  double flops_tf32, flops_bf16, flops_f16; /* of products of matrices, where they are others; 0: as of f32 */
  int64_t bytes[PROF_LEVELS];               /* that a level holds, of all threads together; of DRAM no limit */
  double bandwidth[PROF_LEVELS];            /* bytes read a second */
  double copy;                              /* bytes read and written a second, from DRAM to DRAM */
  double launch;                            /* seconds that an empty kernel takes */
};

/* The limits of the CPU with that many threads: as stored in the cache, else measured now (about a second) and
** stored. again: measure in any case. */
quern_status prof_limits_get(struct prof_limits *limits, struct base_heap *heap, int threads,
                             bool again) QUERN_NODISCARD;

/* Bytes that measuring takes of a process that does nothing else; 0: there is no cache to store the limits in. */
int64_t prof_limits_bytes(struct base_heap *heap);

/* The same as they are stored; false when they were never measured. */
bool prof_limits_find(struct prof_limits *limits, struct base_heap *heap, int threads);

/* The same of what runs on a device for a target: of a GPU measured by the device; all zero when nothing is known of it. */
quern_status prof_device_limits_get(struct prof_limits *limits, struct base_heap *heap, const quern_device *device,
                                    const struct cg_target *target, bool again) QUERN_NODISCARD;
bool prof_device_limits_find(struct prof_limits *limits, struct base_heap *heap, const quern_device *device,
                             const struct cg_target *target);

/* The least time work can take: its operations at the full rate; of its bytes, which are of `footprint` different ones, those
** that a level cannot hold at the bandwidth of the next; or a launch, whichever is most. 0 when the limits are not known. */
enum prof_bound { PROF_COMPUTE, PROF_MEMORY, PROF_LAUNCH };
extern const char *const prof_bound_names[]; /* "compute", "memory", "launch" */
double prof_floor(const struct prof_limits *limits, const struct kern_cost *cost, quern_dtype dtype, double footprint,
                  enum prof_bound *bound);

/* ---- reports (report.c, trace.c) ------------------------------------------------------------------------------- */

/* One step of a program. */
struct prof_step {
  const char *kernel; /* name of the kernel, or "copy", "loop", ... */
  const char *kind;   /* of the group: "map", "reduce", "dot", ... */
  const char *ops;    /* what is computed, such as "dot+add+gelu" */
  const char *layer;  /* what it comes from, such as "h.3.mlp"; "" or NULL: nothing has a name */
  struct kern_cost cost;
  quern_dtype dtype; /* of the first out; of a product by a library, of what it reads */
  bool tf32;         /* a product of f32 that may be rounded to tf32 */
  int64_t footprint; /* bytes of memory it touches */
  double floor;      /* seconds */
  enum prof_bound bound;
  uint64_t count; /* runs recorded */
  double seconds; /* of all of them */
};

/* One run of a step. */
struct prof_event {
  int step;
  double begin, end; /* base_clock */
};

struct prof {
  const char *program; /* a name for titles */
  struct prof_limits limits;
  size_t n_steps, n_events;
  const struct prof_step *steps;
  const struct prof_event *events; /* of the last runs, in order of begin */
  uint64_t runs;
};

/* The layers of all steps of a kernel in few words, such as "h.*.mlp (12), ln_f" (layers.c); "": nothing has a name. */
enum { PROF_LAYERS = 2048 };
void prof_layers(const struct prof *prof, const char *kernel, char *text, size_t bytes);
/* A string of JSON (trace.c). */
void prof_add_string(struct base_str *str, const char *text);

/* Fills floor and bound of steps. */
void prof_steps_floor(const struct prof_limits *limits, size_t n, struct prof_step *steps);

/* By kernel: count, total, average, share; those that make up 80 % of the time are marked; GFLOP/s, GB/s, % of the
** limit, what bounds it. Then by kind. */
quern_status prof_table(struct base_str *str, const struct prof *prof) QUERN_NODISCARD;
/* The kernels as a JSON array: name, kind, ops, layers, count, total_ms, share (of 1), gflops, gbs, limit_pct, lost_ms; null
** where nothing was timed, or the limits are not known. */
quern_status prof_rows(struct base_str *str, const struct prof *prof) QUERN_NODISCARD;
/* Every kernel with the bytes and operations it must do, the floor they imply, the time it took when that is known, and
** the ratio, sorted by lost time. */
quern_status prof_explain(struct base_str *str, const struct prof *prof) QUERN_NODISCARD;
/* Events as Chrome's JSON, which Perfetto and chrome://tracing open; rates, limit and bound as far as they are known. */
quern_status prof_trace(struct base_str *str, const struct prof *prof) QUERN_NODISCARD;
/* "program;kind;kernel microseconds" lines, as flame-graph programs read them. */
quern_status prof_folded(struct base_str *str, const struct prof *prof) QUERN_NODISCARD;

#endif
