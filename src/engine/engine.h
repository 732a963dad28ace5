/* engine/engine.h -- programs and instances from the inside
** A program is flat: subprograms (the main graph and every subgraph that control steps run), each a list of steps on
** buffers. Nothing in it points into the context that it was compiled from.
** see: compile.c for how it is made, run.c for how it runs
*/
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H
#include <stdatomic.h>

#include "plan/plan.h"
#include "quern/program.h"
#include "runtime/runtime.h"
#include "sched/sched.h"

/* Bytes that a tensor of so many takes of a memory it shares with others: what comes after it is aligned, on a GPU as its
** libraries ask for. */
static inline int64_t engine_align(const struct base_target *target) { return target->gpu ? 256 : 64; }
static inline int64_t engine_room(const struct base_target *target, int64_t bytes) {
  int64_t align = engine_align(target);
  return (bytes + align - 1) / align * align;
}

/* ---- programs
** ------------------------------------------------------------------------------------------------------- */

struct engine_buffer {
  enum plan_memory_kind place;
  int64_t at, bytes;
  int first, last; /* steps */
  bool rows;       /* of the dynamic batch, one after another */
};

/* Of a control step: how its operands become those of its bodies. */
struct engine_control {
  int body, other; /* subprograms; -1: none */
  int n_src, n_out;
  int carries, scanned; /* sources: carries, scanned, captures. LOOP, WHILE */
  int64_t trip;
  bool reverse;
  int64_t *src_stride, *out_stride; /* bytes of one iteration of scanned sources and stacked results; 0 of others */
  int *in_place;                    /* of each carry: 1 when an iteration writes it where it reads it */
  int *
      slot; /* of each carry of a LOOP: a stacked result of the same values, where it lies between iterations; 0: none */
};

struct engine_step {
  enum plan_step_kind kind;
  int kernel; /* of KERNEL */
  int n_buffers;
  int *buffers; /* as in plan_step */
  bool rematerialized;
  bool scratch;              /* it uses the threads' */
  const char *kind_name;     /* "map", "dot", ..., "copy", "loop" */
  const char *ops;           /* "dot+add+gelu": what it computes, for people */
  const char *layer;         /* "h.3.mlp": what it comes from; "" where nothing has a name */
  quern_dtype dtype;         /* of its first out */
  double speedup, threshold; /* of fusing it: estimated, and what had to be exceeded */
  uint64_t group;            /* the hash of its group, as wisdom names it */
  int n_nodes;
  int *
      nodes; /* of the main subprogram: places of the nodes it computes in the graph after the passes; for comparisons */
  struct engine_control *control; /* NULL: none */
  struct engine_ref *ref;         /* QUERN_REF=1: its graph for the evaluator; else NULL */
};

struct engine_subprogram {
  int n_steps, n_buffers;
  struct engine_step *steps;
  struct engine_buffer *buffers;
  int n_params, n_results;
  int n_outside, *outside; /* buffers that lie in params or results */
  int most_buffers;        /* of a step */
  int level;               /* scratch of codec_valid */
  struct plan_memory memory;
};

/* What a run does to a state: it reads the old value, it writes a new one, or both. */
enum engine_state_use { ENGINE_STATE_READ = 1, ENGINE_STATE_WRITTEN = 2, ENGINE_STATE_USES = 4 };

struct quern_program {
  struct base_heap heap;
  struct base_arena arena; /* of everything below */
  atomic_int users;        /* the caller, and instances */
  const quern_device *device;
  struct cg_target target;
  struct rt_module *module;
  int n_kernels;
  struct kern **kernels;
  int n_subprograms;
  struct engine_subprogram *subprograms; /* 0 is the main one */
  size_t n_inputs, n_outputs, n_states;
  quern_slot *inputs, *outputs, *states;
  int64_t *state_at;        /* offsets into an instance's state */
  int *state_use;           /* of each state: enum engine_state_use */
  char *constants;          /* on the host */
  char *placed;             /* where kernels read them: there, or in the device's own memory */
  struct rt_stream *stream; /* of a device with memory of its own: by which they got there */
  char *iterations; /* behind them: the numbers of the iterations of loops, i64 from 0 on, and how many there are */
  int64_t n_iterations;
  quern_memory_plan memory;
  quern_program_stats counts;
  size_t scratch_stride;  /* bytes of scratch a thread needs */
  int64_t dynamic_batch;  /* the most rows of the dynamic batch; 0: there is none */
  bool donates;           /* an input may be overwritten */
  bool sleeps;            /* for throughput: waiting threads leave the CPU to others */
  quern_context *ref_ctx; /* QUERN_REF=1: a context for what its kernels compute; else NULL */
};

/* A node that shares no kernel with others: its place in the order of a subgraph's roots, which is the same at each attempt. */
struct engine_unfused {
  int subgraph;
  size_t place;
};

/* Everything quern_program_compile was asked, checked (program.c). */
struct engine_request {
  quern_context *ctx;
  size_t n_outputs;
  quern_tensor *const *outputs;
  quern_program_options options;
  const quern_device *device;
  const char *wisdom; /* the file that is read; NULL: QUERN_WISDOM */
  bool ref;           /* QUERN_REF=1 */
  bool verify;        /* every stage: QUERN_VERBOSE=check, or a build with assertions */
  size_t n_refused;   /* hashes of kernels that a library has refused when they were built: code is generated instead */
  const uint64_t *refused;
  bool no_convolutions; /* a library has refused one: code is generated for all */
  size_t n_unfused;     /* of groups that were found to have no kernel */
  const struct engine_unfused *unfused;
  bool (*fails)(const struct pass_group *group); /* for tests: which groups have no kernel; NULL: it shows */
};
/* A program without anything in it. */
quern_status engine_program_empty(quern_program **program, const quern_allocator *allocator) QUERN_NODISCARD;
/* A program as bytes, without its constants, and back into an empty one; used: how many bytes it was (save.c). */
quern_status engine_program_bytes(const quern_program *program, struct base_str *str) QUERN_NODISCARD;
quern_status engine_program_read(quern_program *program, const char *path, const char *bytes, size_t n,
                                 size_t *used) QUERN_NODISCARD;
/* The state that the byte of that offset belongs to; there are some. */
size_t engine_state_of(const quern_program *program, int64_t at);
/* Of a program that has none yet, which is a user of it until it is freed. */
void engine_program_set_device(quern_program *program, const quern_device *device);
/* A program without anything in it, of the context's allocator and the request's device. */
quern_status engine_program_new(quern_program **program, const struct engine_request *request) QUERN_NODISCARD;
/* Compiles; on failure there is no program and nothing is left. */
quern_status engine_compile(quern_program **program, const struct engine_request *request) QUERN_NODISCARD;

/* Checks what quern_program_compile is asked (program.c). */
quern_status engine_request_make(struct engine_request *request, quern_context *ctx, size_t n,
                                 quern_tensor *const *outputs, const quern_program_options *options) QUERN_NODISCARD;

/* ---- compiling: what the stages of compile.c pass on ------------------------------------------------------------- */

/* The main graph or a subgraph on its way to a subprogram. */
struct engine_subgraph {
  const struct ir_graph *graph; /* NULL: the main one */
  int carries, first;           /* as the body of a loop: results 0 .. are params first .. of the next iteration */
  struct pass_graph roots;
  struct pass_groups groups;
  bool grouped;        /* groups are to be freed */
  bool unaligned_base; /* (GPUs) as the body of a loop: iterations of its operands lie at addresses of any kind */
  struct pass_dynamic_batch
      rows; /* of a dynamic batch: of the main subgraph, and of bodies that one of its loops alone runs; most
                         ** is 0 of others */
  size_t n_steps;
  struct plan_input_step *steps;
  struct plan *plan;
  double seconds;                  /* estimated */
  int64_t most_bytes, least_bytes; /* of a body's arena and scratch: without a limit, and at least (plans.c) */
};

/* A constant that is packed when the program is made (pack.c). */
struct engine_packing {
  int kernel;                    /* of the program: reads the source, writes the packed one */
  quern_tensor *source, *packed; /* while it is compiled */
  const void *from;              /* the source's elements */
  int64_t at;                    /* the packed one in the program's constants */
};

/* A compilation: everything in it is gone when it ends. */
struct engine_build {
  quern_program *program;
  const struct engine_request *request;
  quern_context *ctx;
  struct base_arena arena;
  struct pass_options passes;
  struct pass_report reports[PASS_COUNT];
  struct sched_wisdom wisdom;
  BASE_VEC(struct engine_subgraph) subgraphs; /* the main one first; then subgraphs, each once */
  BASE_VEC(struct kern *) kernels;            /* handed to the program in the end */
  struct base_map known;                      /* groups whose kernel is there, by hash */
  BASE_VEC(quern_tensor *) inputs, states;
  int *state_use;                    /* of each state: enum engine_state_use */
  BASE_VEC(struct plan_leaf) leaves; /* states and constants */
  struct base_map leaf_map;          /* of leaves: by tensor */
  BASE_VEC(struct engine_packing) packings;
  int64_t limit; /* of the memory that a plan may use, 0: none */
  bool asks;     /* the device's libraries are asked for their workspaces: it is there */
  int64_t state_bytes, constant_bytes;
  struct rt_stats stats;
  bool conv_refused;                       /* the library does not do a convolution that it was to do */
  BASE_VEC(struct engine_unfused) unfused; /* nodes of groups that have no kernel, those of the request left out */
  bool cacheable;                          /* the program may be kept under cache_key */
  uint64_t cache_key[2];
  const char *stage; /* for logs and files */
  double start;      /* of the stage */
};

/* Looks at a compilation that has come to its kernels and has no plans yet; there is no program afterwards (compile.c). */
typedef quern_status engine_inspect(struct engine_build *b, void *user);
quern_status engine_survey(const struct engine_request *request, engine_inspect *look, void *user) QUERN_NODISCARD;

/* A hash of 128 bits. */
struct engine_key {
  uint64_t word[2];
};
#define ENGINE_KEY ((struct engine_key){{BASE_HASH_SEED, ~BASE_HASH_SEED}})
static inline void engine_key_add(struct engine_key *key, uint64_t x) {
  key->word[0] = base_hash_u64(key->word[0], x);
  key->word[1] = base_hash_u64(key->word[1], x ^ UINT64_C(0x9e3779b97f4a7c15));
}
static inline void engine_key_add_attr(struct engine_key *key, enum ir_attr_kind kind, const void *field) {
  key->word[0] = ir_attr_hash(key->word[0], kind, field);
  key->word[1] = ir_attr_hash(key->word[1], kind, field);
}

/* A program that was compiled before for the same request takes the place of b->program; and keeping one (cache.c). */
quern_status engine_cache_find(struct engine_build *b, bool *found) QUERN_NODISCARD;
quern_status engine_cache_keep(const struct engine_build *b) QUERN_NODISCARD;
/* What a request is kept under, without the parts that the machine and the build give: for tests. */
quern_status engine_cache_key(const struct engine_request *request, uint64_t key[2]) QUERN_NODISCARD;
quern_status engine_find_leaves(struct engine_build *b) QUERN_NODISCARD; /* leaves.c: inputs, states */
quern_status engine_lay_leaves(struct engine_build *b) QUERN_NODISCARD;  /* leaves.c: offsets of states and constants */
void engine_fill_constants(const struct engine_build *b, char *constants); /* leaves.c */
/* pack.c: the elements of a constant, or NULL; which ins of a group are such and may be packed, a bit each; a group that
** reads what a kernel has packed in the place of an in. */
const void *engine_constant_data(const quern_tensor *t);
uint64_t engine_constant_ins(const struct engine_build *b, const struct pass_group *group);
quern_status engine_pack(struct engine_build *b, const struct pass_group **group, int in, int kernel) QUERN_NODISCARD;
/* Where a leaf lies; bytes of scratch a thread that packs needs; packing, from a compilation or a list. */
int64_t engine_leaf_at(const struct engine_build *b, const quern_tensor *t);
size_t engine_packing_scratch(const struct engine_build *b);
quern_status engine_run_packings(struct engine_build *b) QUERN_NODISCARD;
quern_status engine_launch_packings(quern_program *program, size_t stride, size_t n,
                                    const struct engine_packing *packings) QUERN_NODISCARD;
/* dynamic_batch.c: which tensors have rows of the dynamic batch, if there is one: of the main graph; of bodies, once there
** are all subgraphs; and where those of a subgraph are, or NULL. */
quern_status engine_find_dynamic_rows(struct engine_build *b) QUERN_NODISCARD;
quern_status engine_find_body_rows(struct engine_build *b) QUERN_NODISCARD;
const struct pass_dynamic_batch *engine_rows(const struct engine_subgraph *subgraph);
/* Whether so many bytes of inputs are uploaded while the run before is still at work: they need a second place then. */
bool engine_uploads_async(const quern_device *device, int64_t bytes);
/* Bytes of inputs and outputs that are not used where the caller has them; marks the slots that have rows. */
int64_t engine_staging_bytes(const struct engine_build *b);
void engine_mark_rows(struct engine_build *b);
quern_status engine_make_groups(struct engine_build *b) QUERN_NODISCARD;  /* lower.c */
quern_status engine_make_kernels(struct engine_build *b) QUERN_NODISCARD; /* lower.c */
/* plans.c; *least: 0, or when the limit cannot be met, the smallest that can. May be called again, with another limit. */
quern_status engine_make_plans(struct engine_build *b, int64_t *least) QUERN_NODISCARD;
quern_status engine_write_program(struct engine_build *b) QUERN_NODISCARD; /* write.c */
/* The subgraphs of a control node's graphs; other is -1 when there is none. */
/* The first stacked result of a LOOP's body that has the values of the carry; 0: none. */
int engine_carry_slot(const struct ir_graph *body, int carries, int carry);
void engine_find_bodies(const struct engine_build *b, const struct ir_node *node, int *body, int *other);
/* The schedule of a group's kernel: the heuristic's, overridden by a file of wisdom (lower.c). */
void engine_schedule(const struct engine_build *b, const struct pass_group *group, struct sched *sched);

/* Ends a stage: verifies what it made, logs how long it took, writes it to QUERN_DUMP_DIR (stage.c). */
quern_status engine_end_stage(struct engine_build *b, const char *stage) QUERN_NODISCARD;

/* ---- instances
** ---------------------------------------------------------------------------------------------------------- */

/* Where the buffers of a subprogram are, in one place of a program that runs it. */
struct engine_frame {
  const struct engine_subprogram *subprogram;
  char *arena;
  void **at;                    /* of each buffer */
  void **mems;                  /* for a launch */
  void **params, **results;     /* for a body */
  struct engine_frame **bodies; /* of each step: of its body and its other; NULL: none */
};

/* Called for every step that has run. */
typedef void engine_hook(void *user, int subprogram, int step, double begin, double end);

/* How a run is timed: not at all; by the host's clock, which waits for each step; by marks that the device sets on its way. */
enum engine_timed { ENGINE_UNTIMED, ENGINE_BY_CLOCK, ENGINE_BY_MARKS };
struct engine_timing; /* timing.c */

/* What a device does in a run, captured once (replay.c). */
struct engine_replay {
  bool possible; /* no control step needs the host: what is done in a run is known before */
  int64_t steps; /* of a run then, those of all iterations */
  bool refused;  /* capturing failed */
  bool branched; /* steps that do not need each other may be done side by side */
  struct rt_graph *graph;
  int64_t rows;            /* of the dynamic batch, when it was captured */
  enum engine_timed timed; /* and how it is timed */
  int64_t last_rows;       /* of the run before; -1: there was none */
  quern_run_stats counts;  /* of a run */
  struct kern_runs launches;
  /* while it is captured: the order of the main subprogram's steps, and what each launch group depends on; NULL: the plan's order, and on all
  ** before */
  struct engine_launch_order *order;
  struct engine_branches *branches;
};

struct quern_instance {
  const quern_program *program;
  struct base_heap heap;
  struct base_arena frames;
  struct rt_pool *pool;
  struct rt_stream
      *stream; /* of a device with memory of its own, in which all of the following lies; NULL: the host's */
  char *block; /* of such memory: all of the following */
  size_t block_bytes, block_used;
  char *arena, *scratch;
  char **states;      /* where each is: in state, or in that of another instance */
  bool **known;       /* of each state: whether anything has set it; shared as the state is */
  bool started;       /* a run was made: all that it reads was set */
  const void **bound; /* of each input: what quern_instance_bind gave, and how many bytes; NULL: nothing */
  size_t *bound_bytes;
  void **bound_outputs; /* likewise, of each output: what quern_instance_bind_output gave */
  size_t *bound_output_bytes;
  char *state; /* those of its own, one after another */
  int64_t state_bytes;
  int64_t rows; /* of the dynamic batch, in the next run */
  char *
      staging; /* inputs and outputs of runs with fewer rows than the most; then a second copy of the inputs, if they are uploaded asynchronously */
  void **staged; /* inputs, then outputs, as a run has them: in staging, or the caller's */
  bool shares_pool, shares_stream, shares_arena, shares_scratch; /* they are not its own */
  bool unstaged;                                                 /* inputs and outputs are in the device's memory */
  quern_instance *other;      /* whose states and space it uses: one of its users; NULL: none */
  int users;                  /* its owner, and those instances: it is gone with the last */
  struct engine_frame *frame; /* of the main subprogram */
  bool poison;                /* QUERN_VERBOSE=poison */
  int64_t debug;              /* QUERN_DEBUG */
  engine_hook *hook;          /* NULL: none */
  void *hook_user;
  bool hook_waits; /* it need not be called before a run has ended */
  enum engine_timed timed;
  struct engine_timing *timing; /* NULL: none */
  struct engine_replay replay;
  struct engine_frame *running; /* whose step the hook is called for */
  quern_run_stats counts;
  struct kern_runs launches; /* of counts: as the device counts them */
};

/* Threads and memory that several instances use, one at a time: as many threads as their programs ask for, and bytes
** enough. */
struct engine_space {
  struct rt_pool *pool;
  struct rt_stream *stream; /* of a device with memory of its own, where the following is; NULL: the host's */
  char *arena, *scratch;
};
/* An instance that uses the space, with inputs and outputs in the same memory; NULL: one that has its own. */
quern_status engine_instance_new(quern_instance **instance, const quern_program *program,
                                 const struct engine_space *space) QUERN_NODISCARD;

/* instance_memory.c: of an instance, zero; between it and the host's; in it. Waiting ends when all that was asked for is done. */
quern_status engine_memory_new(quern_instance *instance, size_t bytes, char **at) QUERN_NODISCARD;
void engine_memory_free(quern_instance *instance, char *at, size_t bytes);
quern_status engine_upload(const quern_instance *instance, void *to, const void *from, size_t bytes) QUERN_NODISCARD;
quern_status engine_download(const quern_instance *instance, void *to, const void *from, size_t bytes) QUERN_NODISCARD;
quern_status engine_copy_bytes(const quern_instance *instance, void *to, const void *from,
                               size_t bytes) QUERN_NODISCARD;
quern_status engine_fill(const quern_instance *instance, void *at, int byte, size_t bytes) QUERN_NODISCARD;
quern_status engine_wait(const quern_instance *instance) QUERN_NODISCARD;
/* Of a device with memory of its own: one block, of which engine_memory_new gives pieces. MEMORY with the plan's figures when there is
** not as much free. Of the host's: nothing. */
quern_status engine_block_new(quern_instance *instance, size_t bytes) QUERN_NODISCARD;
void engine_block_free(quern_instance *instance);
/* Bytes of a block that a piece of so many takes. */
static inline size_t engine_piece_bytes(size_t bytes) { return (bytes + 255) / 256 * 256; }
/* Bytes of a device that are free, and all; 0 and 0: it has none of its own, or does not report them. */
quern_status engine_device_room(const quern_device *device, int64_t *free, int64_t *total) QUERN_NODISCARD;
/* The most bytes that a plan may have of a device where nothing is said of a limit: what is free, less a 32nd of all of it or 512 MiB, for
** code of kernels and libraries, captured graphs and what others take meanwhile. */
static inline int64_t engine_plan_room(int64_t free, int64_t total) {
  return BASE_MAX(free - BASE_MIN(total / 32, INT64_C(512) << 20), 0);
}
/* The sums of a program's memory, once the rest is known. */
void engine_memory_sum(quern_program *program);
/* The constants of a program where its kernels read them, once they are there on the host. */
quern_status engine_upload_constants(quern_program *program) QUERN_NODISCARD;
void engine_free_constants(quern_program *program);

/* Bytes of scratch of all its threads. */
size_t engine_scratch_bytes(const quern_program *program);

/* states.c. A program that computes what parameters of a model begin with, of all or of those that a program has; NULL: all are constants.
** Then the states of an instance that the model has, as they begin; initial may be NULL. */
quern_status engine_initial_program(quern_program **program, quern_model *model, const quern_program *wanted,
                                    const quern_program_options *options) QUERN_NODISCARD;
quern_status engine_initialize(quern_instance *instance, const quern_model *model,
                               const quern_program *initial) QUERN_NODISCARD;
/* Before a run: STATE when it reads a state that nothing has set. After the first one: what it has written is set. */
quern_status engine_check_states(const char *what, const quern_instance *instance) QUERN_NODISCARD;
void engine_mark_started(quern_instance *instance);
quern_status engine_run(quern_instance *instance, const void *const *inputs, void *const *outputs) QUERN_NODISCARD;
/* Runs the steps and reports none of the times that a device has marked. */
quern_status engine_run_steps(quern_instance *instance, const void *const *inputs,
                              void *const *outputs) QUERN_NODISCARD;
/* A run, replayed from a graph where that can be; inputs and outputs are the same in every run (replay.c). */
quern_status engine_run_repeated(quern_instance *instance, const void *const *inputs,
                                 void *const *outputs) QUERN_NODISCARD;
void engine_replay_open(quern_instance *instance);
void engine_replay_free(quern_instance *instance);

/* launch_groups.c: the steps of the main subprogram in the order in which they are captured. A launch group is one step, or several
** steps of one kernel that are batched into one launch. */
struct engine_use { /* bytes that a step touches */
  uintptr_t begin, end;
  bool writes;
};
struct engine_launch_order {
  const struct engine_subprogram *subprogram;
  size_t bytes; /* of it */
  int n;        /* launch groups */
  int *first;   /* of each group: where its steps begin; of one more: where the last end */
  int *steps;
  int *first_use; /* of each step of the plan, and of one more */
  struct engine_use *uses;
};
/* at: where the buffers are; batchable: of each kernel, whether its steps may be one launch. NULL: no memory. */
struct engine_launch_order *engine_launch_order_new(struct base_heap *heap, const quern_program *program,
                                                    void *const *at, const unsigned char *batchable);
void engine_launch_order_free(struct base_heap *heap, struct engine_launch_order *order);
/* The launch order of an instance, and launching one of its groups. */
struct engine_launch_order *engine_launch_order_of(quern_instance *instance);
quern_status engine_launch_group(quern_instance *instance, struct engine_frame *frame, int group) QUERN_NODISCARD;
/* Whether two launch groups touch something in common that one of them writes. */
bool engine_launch_groups_conflict(const struct engine_launch_order *order, int a, int b);
/* Before the kernels of a program are compiled: marks those whose launches may be batched. */
quern_status engine_mark_batchable(quern_program *program) QUERN_NODISCARD;

/* branches.c: the graph dependencies of launch groups, where they are fewer than all groups before; NULL: no more is known than their
** order, or there is no memory. Small groups run side by side between those that are not small. */
struct engine_branches {
  size_t bytes; /* of it */
  int *first;   /* of each group: where its dependencies begin; of one more: where the last end */
  int *groups;
};
struct engine_branches *engine_branches_new(quern_instance *instance, const struct engine_launch_order *order);
void engine_branches_free(quern_instance *instance, struct engine_branches *branches);

/* timing.c: memory for marks, where the device has some; how a run will be timed; around each step; at the end of a run. */
quern_status engine_timing_open(quern_instance *instance) QUERN_NODISCARD;
void engine_timing_free(quern_instance *instance);
enum engine_timed engine_timed_now(const quern_instance *instance);
void engine_timing_clear(quern_instance *instance);
quern_status engine_step_begin(quern_instance *instance, double *begin) QUERN_NODISCARD;
quern_status engine_step_end(quern_instance *instance, struct engine_frame *frame, int subprogram, int step,
                             double begin) QUERN_NODISCARD;
quern_status engine_timing_report(quern_instance *instance) QUERN_NODISCARD;
/* Memory for inputs and outputs that are not used where the caller has them, once; a run with such (dynamic_batch.c). */
quern_status engine_open_staging(quern_instance *instance) QUERN_NODISCARD;
quern_status engine_run_staged(quern_instance *instance, const void *const *inputs,
                               void *const *outputs) QUERN_NODISCARD;
/* Bytes of a slot, or of a buffer, that a run of the instance has. */
size_t engine_slot_bytes(const quern_instance *instance, const quern_slot *slot);
/* Overwrites the bytes of the frame's arena that are not alive before a step, and all scratch (poison.c). */
quern_status engine_poison(const quern_instance *instance, const struct engine_frame *frame, int step) QUERN_NODISCARD;

/* Ends recording, if there is any (profile.c). */
void engine_record_free(quern_instance *instance);
/* Frees the instructions of kernels where they are not needed to run: of a program that was compiled, or is only
** planned. It has no source to be explained then, as one from the cache has none. */
void engine_program_strip(quern_program *program);
/* As quern_program_profile's QUERN_PROFILE_ROWS; without the limits of a machine that was not measured before. */
quern_status engine_profile_rows(const quern_program *program, const quern_instance *instance,
                                 char **text) QUERN_NODISCARD;
/* What a program is made of, as text (explain.c). */
typedef quern_status engine_explain(const quern_program *program, const quern_instance *instance, char **text);
engine_explain engine_explain_plan, engine_explain_fusion, engine_explain_dot, engine_explain_source;

/* ---- eager use (canon.c, copy.c, eager.c) -------------------------------------------------------------------------
** */

/* A graph in an order that depends on its structure alone, not on when its nodes were made: sources first, from the
** roots on. Sources of commutative ops are ordered by what they are. Graphs of equal keys compute the same from their
** leaves. */
struct engine_canon {
  quern_context *ctx;
  struct ir_order order;    /* by id */
  struct engine_key *label; /* of each node of the order: what it computes, whatever its leaves hold */
  uint32_t *at;             /* places in the order, one after another as they come */
  size_t n_leaves;
  struct ir_node **leaves; /* INPUT, STATE and BUFFER nodes as they come */
  struct engine_key key;
};
/* Lists are in the arena; fini frees the rest. */
quern_status engine_canon_make(struct engine_canon *canon, struct base_arena *arena, quern_context *ctx, size_t n,
                               quern_tensor *const *roots) QUERN_NODISCARD;
void engine_canon_fini(struct engine_canon *canon);

/* out[i] = roots[i] in another context, made in the order of the canon; leaves[i], an input without a name, stands for
** the canon's. leaves may be NULL. */
quern_status engine_copy(quern_context *to, const struct engine_canon *canon, size_t n, quern_tensor *const *roots,
                         quern_tensor **out, quern_tensor **leaves) QUERN_NODISCARD;

/* Numbers in the place of data that nobody has given (measure.c). */
void engine_make_up(const quern_slot *slot, void *data);

/* Of a context's eager use: programs that it keeps; how many times one was compiled, made for the interpreter, found.
** */
struct engine_eager_stats {
  size_t programs;
  uint64_t compiled, interpreted, found;
};
struct engine_eager_stats engine_eager_get(const quern_context *ctx);

/* QUERN_REF=1 (reference_check.c): what the group of a step computes, copied from ctx into the program's own context; and where its rows
** of the dynamic batch are, or NULL. */
quern_status engine_ref_make(struct engine_ref **ref, quern_context *ctx, quern_program *program,
                             const struct pass_group *group, const struct pass_dynamic_batch *rows) QUERN_NODISCARD;
/* Keeps what a step is about to read. */
quern_status engine_ref_before(const quern_instance *instance, const struct engine_step *step, void *const *mems,
                               void ***kept) QUERN_NODISCARD;
/* Compares what it has written, if its status is OK, and frees what was kept. Of what has rows, as many as the run has. */
quern_status engine_ref_after(const quern_instance *instance, const struct engine_step *step, void *const *mems,
                              void **kept, quern_status status) QUERN_NODISCARD;

#endif
