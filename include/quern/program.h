/* quern/program.h -- programs: graphs compiled for a device, and instances of them that run
** A program is immutable, needs its context no more once it is made, and may be shared by threads. An instance owns the state,
** the memory and the threads of its runs, and is used by one thread at a time.
*/
#ifndef QUERN_PROGRAM_H
#define QUERN_PROGRAM_H
#include "quern/device.h"
#include "quern/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct quern_program quern_program;
typedef struct quern_instance quern_instance;
typedef struct quern_model quern_model; /* nn.h */

/* After a run the state holds the value, which was computed from the old one. */
typedef struct quern_update {
  quern_tensor *state, *value;
} quern_update;

/* Every kind but FAST gives the same bits every time. EXACT: as the graph is written. TF32: on GPUs libraries may round the
** operands of f32 products to tf32. FAST: that, sums in another order, and gradients of attention whose last bits vary. */
typedef enum quern_numerics { QUERN_NUMERICS_EXACT, QUERN_NUMERICS_FAST, QUERN_NUMERICS_TF32 } quern_numerics;
/* NONE: one kernel per operation, in scalar code. */
typedef enum quern_optimize { QUERN_OPTIMIZE_DEFAULT, QUERN_OPTIMIZE_NONE } quern_optimize;
/* Latency: threads that wait for work spin for some tens of microseconds. Throughput: they sleep at once, and leave the CPU
** to other work. */
typedef enum quern_optimize_for { QUERN_OPTIMIZE_FOR_LATENCY, QUERN_OPTIMIZE_FOR_THROUGHPUT } quern_optimize_for;

typedef struct quern_program_options {
  size_t size;
  const char *device; /* by its name (device.h): "cpu", "cuda", "cuda:1", "opencl", "interp" (the kernel interpreter),
                      ** "null" (compiles, does not run), "auto" (the best there is); NULL: "cpu" */
  int threads;        /* 0: QUERN_THREADS, OMP_NUM_THREADS, or as many as the machine grants */
  quern_optimize optimize;
  const char *passes;   /* single passes on and off, such as "-fuse,-layout"; NULL: as optimize says */
  int64_t memory_limit; /* bytes that a step may use beside state and constants; 0: no limit */
  quern_numerics numerics;
  quern_optimize_for optimize_for;
  bool inference; /* nothing will be differentiated */
  size_t n_updates;
  const quern_update *updates;
  size_t n_donated;
  quern_tensor *const *donated;    /* inputs whose memory a run may overwrite */
  const char *const *output_names; /* of each output, or NULL; NULL: they have none */
  /* Dynamic batch: inputs whose first dimension is given at each run (quern_instance_set_dynamic_batch); it is the same of all, and
  ** what it is in the graph is the most. No row of them may have an effect on another: what would mix rows is refused. */
  size_t n_dynamic_batch;
  quern_tensor *const *dynamic_batch;
  /* What lies between the tensors of quern_checkpoint_activation is not held for steps that output 0, the loss, does not need, but
  ** computed again before them, with the same bits. What comes after the last of them is held. Without any: no effect. */
  bool gradient_checkpointing;
  const char *target; /* what code is made for: "avx2", "sm_90", "sm_90+blas+dnn+mma"; NULL: the device's own */
  /* Where the smallest limit that can be met is told, when memory_limit is less; 0 is told when that was not why. May be NULL. */
  int64_t *least_limit;
  /* Stops when memory is planned: needs no C compiler and no card. The program tells its memory, steps and kernels; it has no
  ** instances and cannot be saved. Without a target, that of the device, or of a usual one where the device is not there. A card that is there is opened,
  ** and its libraries are asked for their workspaces. */
  bool plan_only;
  /* Bytes that the processes of the C compiler may have in memory together; 0: no limit. Under a limit kernels are
  ** compiled in smaller units, fewer at a time, and what does not fit is refused with MEMORY before a compiler is
  ** started. What one takes is estimated from the text that it compiles. Kernels that are in the cache need none. */
  int64_t compiler_limit;
  int64_t *least_compiler_limit;     /* the same as least_limit, of compiler_limit */
  const quern_device *device_handle; /* the device by its handle instead of its name; NULL: by its name */
  /* Gradient checkpointing of a graph that marks nothing, instead of recompute: the kernels that the loss, output 0,
  ** needs are cut into segments of about so many, as even in bytes as can be, where little is alive. What crosses a
  ** cut is held, what lies inside a segment but the last is computed again, with the same bits.
  ** QUERN_RECOMPUTE_SQRT: as many segments as the square root of the number of kernels; 0: none. */
  int64_t recompute_every;
} quern_program_options;
#define QUERN_RECOMPUTE_SQRT (-1)

/* Compiles what computes the outputs and the updates. options may be NULL. */
QUERN_API quern_status quern_program_compile(quern_program **program, quern_context *ctx, size_t n,
                                             quern_tensor *const *outputs,
                                             const quern_program_options *options) QUERN_NODISCARD;
QUERN_API void quern_program_free(quern_program *program);
/* What it was compiled for or loaded on: a handle that is the program's, and not to be freed. NULL of no program. */
QUERN_API const quern_device *quern_program_device(const quern_program *program);

/* A program in a file, which is opened and run without a C compiler and without a cache, by the same version of Quern on a CPU
** that has what the code needs; of device "cuda" on the first GPU, which must be of the same target. Of no other
** device. The file is written whole or not at all. It holds machine code: load what you would execute, and nothing
** else. A damaged file is refused. */
QUERN_API quern_status quern_program_save(const quern_program *program, const char *path) QUERN_NODISCARD;
QUERN_API quern_status quern_program_load(quern_program **program, const char *path) QUERN_NODISCARD;
/* The same on one of several devices of the kind that the program was made for. */
QUERN_API quern_status quern_program_load_on(quern_program **program, const char *path,
                                             const quern_device *device) QUERN_NODISCARD;

/* What less memory costs: plans of the same step under smaller and smaller limits. */
typedef struct quern_curve_point {
  size_t size;
  int64_t limit; /* what was asked for; 0: no limit */
  int64_t bytes; /* that a limit counts: arena, scratch and staging */
  int64_t arena; /* of it */
  int64_t held;  /* as in quern_memory_plan */
  /* Of a run, predicted: operations and bytes against what was measured of this machine (quern_device_limits), or against usual
  ** figures where nothing was. */
  double seconds;
  size_t recomputed; /* steps that compute something again; those of loops' bodies as well */
} quern_curve_point;
/* Plans what quern_program_compile would compile, without a limit and under limits down to the smallest that can be met: at most
** `room` points, 2 at least, the first without a limit; plans that come out the same are left out. points[0].size is the size of each of them. Nothing is
** compiled or run; options->memory_limit does not count. options may be NULL. */
QUERN_API quern_status quern_program_curve(quern_context *ctx, size_t n, quern_tensor *const *outputs,
                                           const quern_program_options *options, size_t room, quern_curve_point *points,
                                           size_t *n_points) QUERN_NODISCARD;

/* Inputs are the INPUT leaves and the buffers without elements that the outputs and updates reach, in the order they were
** made; states likewise. The type of each, as a name (NULL: none), dtype and shape. */
typedef enum quern_slot_role { QUERN_SLOT_INPUT, QUERN_SLOT_OUTPUT, QUERN_SLOT_STATE } quern_slot_role;
typedef struct quern_slot {
  size_t size;
  quern_slot_role role;
  const char *name;
  quern_dtype dtype;
  int rank;
  const int64_t *dims;
  size_t bytes;
  bool dynamic_batch; /* its rows are those of the dynamic batch: dims and bytes are those of the most */
} quern_slot;
QUERN_API size_t quern_program_input_count(const quern_program *program);
QUERN_API size_t quern_program_output_count(const quern_program *program);
QUERN_API size_t quern_program_state_count(const quern_program *program);
QUERN_API quern_status quern_program_input(const quern_program *program, size_t i, quern_slot *slot) QUERN_NODISCARD;
QUERN_API quern_status quern_program_output(const quern_program *program, size_t i, quern_slot *slot) QUERN_NODISCARD;
QUERN_API quern_status quern_program_state(const quern_program *program, size_t i, quern_slot *slot) QUERN_NODISCARD;

/* The most rows of the dynamic batch; 0: there is none. */
QUERN_API int64_t quern_program_dynamic_batch(const quern_program *program);

/* Planned bytes, and what they would be otherwise. */
typedef struct quern_memory_plan {
  size_t size;
  int64_t arena;     /* of a step */
  int64_t state;     /* kept between steps */
  int64_t constants; /* weights and tables in the program */
  int64_t scratch;   /* of the threads */
  int64_t bound;     /* the most bytes of a step that are alive at a time: no arena can be smaller */
  int64_t unshared;  /* the arena if nothing shared memory */
  int64_t
      staging; /* inputs and outputs of runs with fewer rows than the most; on a device with memory of its own, all */
  /* Activations: of what output 0 (a loss) needs, or what repeats it, waiting for steps that it does not need; the most at a time. */
  int64_t held;
  int64_t iterations; /* on a device with memory of its own: numbers of the iterations of loops */
  /* Of an instance that shares nothing, and the program: arena, state, constants, scratch, staging and iterations, in the pieces that
  ** the device takes memory in. */
  int64_t total;
} quern_memory_plan;
QUERN_API quern_status quern_program_get_memory(const quern_program *program,
                                                quern_memory_plan *memory) QUERN_NODISCARD;

/* Counts of what was compiled. */
typedef struct quern_program_stats {
  size_t size;
  size_t nodes_before, nodes_after; /* of the graph, before and after the passes */
  size_t steps;                     /* of a run, without those in loops' bodies: kernels, and the two below */
  size_t copies, controls;          /* steps that copy; loops, whiles and ifs */
  size_t kernels;                   /* different ones */
  /* Seconds of making it; of a program that the cache had 0, 0 and those of finding it, of one from a file 0. */
  double seconds_passes, seconds_plan, seconds_compile;
  int compiled, cached; /* units that the C compiler ran for, and that the cache had */
  double flops, bytes;  /* of a run: operations, and bytes read and written at least; bodies of whiles and ifs once */
  size_t recomputed;    /* steps that compute something again, to need less memory; those of loops' bodies as well */
  size_t unfused;       /* nodes that have kernels of their own because fusing failed: slower, and worth a report */
} quern_program_stats;
QUERN_API quern_status quern_program_get_stats(const quern_program *program,
                                               quern_program_stats *counts) QUERN_NODISCARD;

/* The number of the input, output or state of that name. A name that is not there is an error with the nearest one, and so is one that two have. */
QUERN_API quern_status quern_program_find_input(const quern_program *program, const char *name,
                                                size_t *i) QUERN_NODISCARD;
QUERN_API quern_status quern_program_find_output(const quern_program *program, const char *name,
                                                 size_t *i) QUERN_NODISCARD;
QUERN_API quern_status quern_program_find_state(const quern_program *program, const char *name,
                                                size_t *i) QUERN_NODISCARD;

/* An instance whose states are still to be set: by the four calls below, quern_instance_set_state, a write to quern_instance_state, or a
** run of an instance that shares them. A run that reads a state which nothing has set is an error. */
QUERN_API quern_status quern_instance_new(quern_instance **instance, const quern_program *program) QUERN_NODISCARD;
/* An instance that works on the states of another: those of the same name, dtype and shape are one; its own are still to be
** set; a name that two states of the other have is an error. It uses the other's threads and step memory as well, where
** they do. For programs that run in turn on the same parameters: training and evaluation. All of them are used by one
** thread at a time; they may be freed in any order. */
QUERN_API quern_status quern_instance_new_with(quern_instance **instance, const quern_program *program,
                                               quern_instance *other) QUERN_NODISCARD;
QUERN_API void quern_instance_free(quern_instance *instance);

QUERN_API quern_status quern_instance_set_state(quern_instance *instance, size_t i, const void *data) QUERN_NODISCARD;
QUERN_API quern_status quern_instance_get_state(const quern_instance *instance, size_t i, void *data) QUERN_NODISCARD;
/* Where it lies, to be read and written between runs; NULL: there is none of that number, or it is in a device's own memory. */
QUERN_API void *quern_instance_state(quern_instance *instance, size_t i);

/* Every state that the model has begins as the model says (quern_model_initial, by the model's seed): parameters, buffers, and those of
** its optimizer once quern_step_new has made them. Others stay as they are; a model that has none of them is an error.
** Compiles a program for the parameters that are drawn. */
QUERN_API quern_status quern_instance_init_states(quern_instance *instance, quern_model *model) QUERN_NODISCARD;
/* States that nothing has set begin as zeros, such as caches. */
QUERN_API quern_status quern_instance_zero_states(quern_instance *instance) QUERN_NODISCARD;

/* Sets states by name from a safetensors file, an index with shards, a checkpoint's folder, or a run's folder (its newest whole
** checkpoint). dtypes and shapes must be those of the states. allow is QUERN_LOAD_STRICT or flags for what is no error. What is
** missing, unexpected or of another type is named, and no state has changed. A file that has none of the states is an
** error whatever is allowed. */
enum {
  QUERN_LOAD_STRICT = 0,  /* the file has every state, and nothing else */
  QUERN_LOAD_MISSING = 1, /* states that are not in the file stay as they are */
  QUERN_LOAD_UNEXPECTED =
      2 /* tensors of the file that are no states are passed over: those of an optimizer, in an evaluation */
};
QUERN_API quern_status quern_instance_load_states(quern_instance *instance, const char *path,
                                                  unsigned allow) QUERN_NODISCARD;
/* Writes all states to a safetensors file, whole or not at all. quern_checkpoint_save keeps more than states. */
QUERN_API quern_status quern_instance_save_states(quern_instance *instance, const char *path) QUERN_NODISCARD;

/* The rows of the dynamic batch in the runs from now on, 0 to the most; of a new instance the most. Such a run reads and writes
** so many rows of the inputs and outputs that have them (quern_slot.dynamic_batch), and all of the others. The rows have the bits that
** they have in a run of more. */
QUERN_API quern_status quern_instance_set_dynamic_batch(quern_instance *instance, int64_t rows) QUERN_NODISCARD;

/* One run: inputs[i] and outputs[i] are dense row-major memory of the slots' bytes. Outputs go to the caller's memory, which must not
** overlap inputs that are not donated. Allocates nothing; on a device with memory of its own the first runs do, on the host and in the
** driver: page-locked memory for uploads, and the graph that later runs replay. There outputs[i] may be NULL: it is not wanted. When none is, the run has not ended when the call returns: inputs have been read, and what is asked of the
** instance, or of one that shares its states, comes after it; what goes wrong is told then, or by quern_instance_wait. */
QUERN_API quern_status quern_instance_run(quern_instance *instance, const void *const *inputs,
                                          void *const *outputs) QUERN_NODISCARD;

/* Inputs and outputs by name, which pointers in a list have not: bind each once, and again when it lies elsewhere. bytes must be
** those of the slot; of one of the dynamic batch those of the rows that are set when it runs. data is read or written by the
** runs, and must stay. Outputs have the names of quern_program_options.output_names. */
QUERN_API quern_status quern_instance_bind(quern_instance *instance, const char *name, const void *data,
                                           size_t bytes) QUERN_NODISCARD;
QUERN_API quern_status quern_instance_bind_output(quern_instance *instance, const char *name, void *data,
                                                  size_t bytes) QUERN_NODISCARD;
/* A run of the inputs that are bound. outputs as in quern_instance_run; NULL: those that are bound, which all of them must be, but on
** a device with memory of its own, where others are not wanted. */
QUERN_API quern_status quern_instance_run_bound(quern_instance *instance, void *const *outputs) QUERN_NODISCARD;

/* Waits until all runs have ended. */
QUERN_API quern_status quern_instance_wait(quern_instance *instance) QUERN_NODISCARD;

/* A run on memory of the program's device: inputs[i] and outputs[i] are addresses there, aligned to 256 bytes (devices "cpu" and
** "interp": as quern_instance_run). queue is the caller's CUstream, or NULL: the instance's own. On "cuda" the call returns
** before all is done: what the caller puts into that queue afterwards sees the outputs. A dynamic batch has all its rows. */
QUERN_API quern_status quern_instance_run_on(quern_instance *instance, void *queue, const void *const *inputs,
                                             void *const *outputs) QUERN_NODISCARD;

/* What ran, in all runs of the instance so far and with the bodies of loops: counted by whoever runs it. */
typedef struct quern_run_stats {
  size_t size;
  uint64_t runs;
  uint64_t compiled;         /* kernels as machine code */
  uint64_t interpreted;      /* kernels by their interpreter: device "interp", or "cpu" where there is no C compiler */
  uint64_t evaluated;        /* kernels that were checked by the evaluator as well: QUERN_REF=1 */
  uint64_t copies, controls; /* steps that copy; loops, whiles and ifs */
  uint64_t replayed;         /* runs that were a graph of the device, captured before */
  uint64_t graph_bytes;      /* that this graph takes of the device besides, as far as the driver tells */
} quern_run_stats;
QUERN_API quern_status quern_instance_get_stats(const quern_instance *instance,
                                                quern_run_stats *counts) QUERN_NODISCARD;
/* The same of the eager use of a context. */
QUERN_API quern_status quern_eager_get_stats(const quern_context *ctx, quern_run_stats *stats) QUERN_NODISCARD;

#ifdef __cplusplus
}
#endif
#endif
