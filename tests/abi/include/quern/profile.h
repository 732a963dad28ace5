/* quern/profile.h -- what the machine can do, and how near a program comes to it */
#ifndef QUERN_PROFILE_H
#define QUERN_PROFILE_H
#include "quern/program.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the CPU reached with that many threads, or a GPU: operations and bytes a second. */
enum { QUERN_LEVELS = 4 }; /* L1, L2, L3, DRAM */
typedef struct quern_limits {
  size_t size;
  int threads;
  double flops_f32, flops_f64;
  int64_t bytes[QUERN_LEVELS];    /* that a level holds, of all threads together; of DRAM what was measured with */
  double bandwidth[QUERN_LEVELS]; /* of reading */
  double copy;                    /* of copying in DRAM, bytes read and written */
  double launch;                  /* seconds of a kernel that does nothing */
  double flops_tf32, flops_bf16, flops_f16; /* of products of matrices on a GPU; 0: as of f32 */
} quern_limits;

/* The limits of the CPU with as many threads (0: the default): measured once, which takes about a second, then kept in the
** cache. again: measure in any case. */
QUERN_API quern_status quern_device_limits(quern_limits *limits, int threads, bool again) QUERN_NODISCARD;

/* The same of a device by its name (device.h): of a GPU that can be measured, or of the CPU. */
QUERN_API quern_status quern_device_limits_of(quern_limits *limits, const char *device, bool again) QUERN_NODISCARD;

/* The least seconds that so many operations on a dtype and so many bytes, which are of `footprint` different ones, can take
** within the limits. */
QUERN_API double quern_limits_floor(const quern_limits *limits, quern_dtype dtype, double flops, double bytes,
                                    double footprint);

/* From now on every run of the instance is recorded: times of all its steps, events of the last runs. */
QUERN_API quern_status quern_instance_record(quern_instance *instance, bool on) QUERN_NODISCARD;

/* What was recorded, as a text to be freed with quern_free_text. TABLE: kernels by time, for people. TRACE: Chrome's JSON. FOLDED: flame-graph stacks. ROWS: the table as a
** JSON array, with null where nothing was timed or the device's limits are not known. */
typedef enum quern_profile_form {
  QUERN_PROFILE_TABLE,
  QUERN_PROFILE_TRACE,
  QUERN_PROFILE_FOLDED,
  QUERN_PROFILE_ROWS
} quern_profile_form;
QUERN_API quern_status quern_program_profile(const quern_program *program, const quern_instance *instance,
                                             quern_profile_form form, char **text) QUERN_NODISCARD;

/* What the program does. ROOFLINE: each kernel's operations, bytes and floor, and, of an instance that recorded runs,
** its time and what is lost. PLAN: steps, buffers and bytes. FUSION: the groups, what fusing them was estimated to gain.
** GRAPHVIZ: the groups as a picture for Graphviz. SOURCE: the generated C. instance may be NULL. */
typedef enum quern_explain_form {
  QUERN_EXPLAIN_ROOFLINE,
  QUERN_EXPLAIN_PLAN,
  QUERN_EXPLAIN_FUSION,
  QUERN_EXPLAIN_GRAPHVIZ,
  QUERN_EXPLAIN_SOURCE
} quern_explain_form;
QUERN_API quern_status quern_program_explain(const quern_program *program, const quern_instance *instance,
                                             quern_explain_form form, char **text) QUERN_NODISCARD;

/* What the steps of a program gained over those of another for the same outputs, such as the one compiled with "-fuse": for each
** step the estimated gain and the measured one, from runs that both instances have recorded. The time of each step of the other
** program is given to the steps that compute the same nodes. */
QUERN_API quern_status quern_program_compare(const quern_program *program, const quern_instance *instance,
                                             const quern_program *other, const quern_instance *other_instance,
                                             char **text) QUERN_NODISCARD;

/* How a program is measured; zero everywhere but in size: as told below, and a whole batch. */
typedef struct quern_measure_options {
  size_t size;              /* of this struct */
  double seconds;           /* of timed runs, about, but one run at least; 0: 1 */
  int warm_up, most_runs;   /* runs before, which are not timed, 0: 3; timed runs, 0: 100000 */
  int64_t rows;             /* of the dynamic batch, in each run; 0: the most */
  quern_instance *instance; /* that runs, and whose states change; NULL: one of its own, with states made up */
  bool (*stop)(void *user); /* (may be NULL) Asked before every run: true ends it */
  void *user;
} quern_measure_options;
/* Seconds of single runs as a caller on the host sees them: with copies of inputs and outputs, where they are made. */
typedef struct quern_measure_stats {
  size_t size; /* of this struct: to be set before the call */
  uint64_t runs;
  double least, p10, median, p90, p99;
  double runs_per_second;
  int64_t planned_bytes; /* quern_memory_plan.total */
  int64_t used_bytes;    /* that the instance has in fact, with the program's constants */
  bool stopped;          /* before its time: by options->stop */
} quern_measure_stats;
/* Runs a program on made-up inputs (floats in [-1, 1), others 0) and measures how long it takes. options may be NULL. */
QUERN_API quern_status quern_program_measure(const quern_program *program, const quern_measure_options *options,
                                             quern_measure_stats *stats) QUERN_NODISCARD;

/* Times other schedules of the kernels in which a program spends most of its time, one number after another, and writes those that
** are faster to a file of wisdom (QUERN_WISDOM), whose other lines stay. Inputs are made up. Bits do not change. On a GPU the
** kernels of libraries are none of these: QUERN_TUNE=1 is for them. */
typedef struct quern_tune_options {
  size_t size;
  const char *path; /* of the file; it need not be there yet */
  int kernels;      /* how many are looked at, those that take most time first; 0: 8 */
  double least;     /* gain that is worth a line; 0: 0.03 */
  /* (may be NULL) Told of every kernel that was looked at: its name, seconds of all its steps before and after, and the line, or ""
  ** when nothing is faster. False ends the search: what was found is written. */
  bool (*progress)(void *user, const char *kernel, double before, double after, const char *line);
  bool (*stop)(void *user); /* (may be NULL) Asked before every candidate: true ends the search */
  void *user;
} quern_tune_options;
QUERN_API quern_status quern_program_tune(quern_context *ctx, size_t n, quern_tensor *const *outputs,
                                          const quern_program_options *options,
                                          const quern_tune_options *tune) QUERN_NODISCARD;

#ifdef __cplusplus
}
#endif
#endif
