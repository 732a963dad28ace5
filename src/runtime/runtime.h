/* runtime/runtime.h -- from text to running code: threads, compiler, cache, devices
** A backend turns kernels into something that a device of its kind can launch. cpu/ compiles C; interp/ runs the kernel
** interpreter; null/ compiles everything and launches nothing; cuda/ and opencl/ have memory of their own. What is
** opened for a device is the device's.
** see: docs/design/002-cpu-compiler.md, docs/design/007-gpu.md, docs/design/010-devices.md
*/
#ifndef RUNTIME_RUNTIME_H
#define RUNTIME_RUNTIME_H
#include "codegen/codegen.h"
#include "quern/device.h"

/* ---- thread pool (thread_pool.c): short spin, then sleep ------------------------------------------------------------ */

struct rt_pool;

/* How many threads a program gets when asked for none: QUERN_THREADS, else OMP_NUM_THREADS, else the CPUs that
** affinity and the cgroup's quota leave; at least 1. */
int rt_default_threads(void);

/* threads - 1 threads besides the caller's, 1 .. RT_MAX_THREADS in all; with 1 no thread is made and no lock is taken.
** In a child that fork made, the pools of the parent go on working, on the calling thread alone. */
enum { RT_MAX_THREADS = 1024 };
quern_status rt_pool_new(struct rt_pool **pool, struct base_heap *heap, int threads) QUERN_NODISCARD;
void rt_pool_free(struct rt_pool *pool);
int rt_pool_threads(const struct rt_pool *pool);

/* Runs tasks 0 .. n - 1, each once, on the caller and the pool's threads, in ranges; thread is 0 .. threads - 1.
** Returns when all are done. One call at a time; calls from several threads wait for each other. A call from inside a
** task runs on that task's thread. */
typedef void rt_task(void *arg, int64_t begin, int64_t end, int thread);
void rt_pool_run(struct rt_pool *pool, int64_t n, rt_task *task, void *arg);

/* From now on threads that wait sleep at once instead of spinning for a while first. Before the first run. */
void rt_pool_sleep(struct rt_pool *pool);

/* For tests: workers yield and sleep at random moments, from this seed; 0: no more. */
void rt_pool_disturb(struct rt_pool *pool, uint64_t seed);

/* ---- notes (cpu/notes.c): small texts that the cache keeps, such as what was measured ------------------------- */

/* The text of that name; "" when there is none, or no cache. */
void rt_note_get(struct base_heap *heap, const char *name, char *text, size_t bytes);
/* Keeps a text under a name, if there is a cache. */
void rt_note_set(struct base_heap *heap, const char *name, const char *text);
/* Whether notes are kept: there is a cache that can be used. */
bool rt_notes_kept(struct base_heap *heap);

/* Bytes by a key of 128 bits, in the same cache, with a checksum: *bytes is NULL when there are none. base_free(heap, *bytes, *room). */
quern_status rt_blob_get(struct base_heap *heap, const uint64_t key[2], void **bytes, size_t *n,
                         size_t *room) QUERN_NODISCARD;
void rt_blob_set(struct base_heap *heap, const uint64_t key[2], const void *bytes, size_t n);
/* A key of the compiler and the flags that the cpu device would use for a target; false when there is no compiler, or no
** cache, or sources are kept (QUERN_DUMP_DIR), so that nothing may be taken from the cache. */
bool rt_compiler_key(struct base_heap *heap, const struct cg_target *target, uint64_t key[2]);
/* A number of the file that this code was loaded from: another one after every build. False when it is not known. */
bool rt_build_identity(uint64_t *identity);

/* ---- devices ------------------------------------------------------------------------------------------------- */

/* Kernels made ready: all that a program launches. */
struct rt_module;

/* Compiled code as bytes, to be kept in a file: what a module was made from. */
struct rt_object {
  const void *bytes;
  size_t n;
};

struct rt_stats {       /* of making a module */
  int compiled, cached; /* units that the compiler ran for; found in the cache */
  double seconds;
  int n_refused; /* of one that failed: hashes of kernels that are calls which a library refuses, as many as there is room for */
  uint64_t refused[16];
  int64_t room;       /* given: bytes that compilers may take together; 0: any */
  int64_t least_room; /* of one that failed for that: what would do; else 0 */
};

/* What is done on a device with memory of its own, one thing after another: of an instance. Pointers to that memory are numbers to
** the host, which it may add to but never follow. Calls may return before what they ask for is done, download and wait excepted;
** what goes wrong meanwhile is reported by a later call. */
struct rt_stream;
/* What a stream was asked for while it was captured, to be done again and again. */
struct rt_graph {
  size_t steps,
      bytes; /* of it; of the device that it takes besides what was allocated, as far as the driver reports it */
};
struct rt_remote {
  quern_status (*open)(const quern_device *device, struct rt_stream **stream, struct base_heap *heap);
  void (*close)(struct rt_stream *stream);
  quern_status (*alloc)(struct rt_stream *stream, size_t bytes, void **at); /* zero, aligned to 256 bytes */
  void (*release)(struct rt_stream *stream, void *at, size_t bytes);        /* NULL is fine */
  quern_status (*upload)(struct rt_stream *stream, void *to, const void *from, size_t bytes); /* from is read at once */
  quern_status (*download)(struct rt_stream *stream, void *to, const void *from, size_t bytes);
  quern_status (*copy)(struct rt_stream *stream, void *to, const void *from, size_t bytes);
  quern_status (*fill)(struct rt_stream *stream, void *at, int byte, size_t bytes);
  quern_status (*wait)(struct rt_stream *stream);
  /* (optional) From now on work goes into the caller's queue of the device (a CUstream), ordered after all earlier work; NULL: into the
  ** stream's own queue again, ordered after that. */
  quern_status (*set_external_stream)(struct rt_stream *stream, void *foreign);
  /* Runs all phases of kernel number k; scratch: scratch_stride bytes for each of the target's threads. */
  quern_status (*launch)(struct rt_stream *stream, struct rt_module *module, size_t k, const struct kern_launch *launch,
                         void *scratch, size_t scratch_stride);
  /* (optional, both) Whether launches of kernel number k may be batched; n such launches as one: mems has the memories of one after those
  ** of another. What they write the others do not touch, and they have no scratch. */
  bool (*batchable)(const struct rt_module *module, size_t k);
  quern_status (*launch_batch)(struct rt_stream *stream, struct rt_module *module, size_t k, size_t n,
                               const struct kern_launch *launch);
  size_t piece; /* what memory is taken in, in bytes; 0: 1 */
  /* (optional) Bytes of the device that are free, and all. */
  quern_status (*room)(const quern_device *device, int64_t *free, int64_t *total);
  /* (optional, these four) From capture to captured nothing is done: launches, copies, fills and marks are kept, and replay does them.
  ** captured ends it whatever happened, and gives no graph when something failed. graph_free may be called while it is done. */
  quern_status (*capture)(struct rt_stream *stream);
  quern_status (*captured)(struct rt_stream *stream, struct rt_graph **graph);
  quern_status (*replay)(struct rt_stream *stream, const struct rt_graph *graph);
  void (*graph_free)(struct rt_stream *stream, struct rt_graph *graph);
  /* (optional) While captured: what follows, up to the next call, is the next step, from 0 on, and depends on those n steps only. */
  quern_status (*depend_on)(struct rt_stream *stream, size_t n, const int *steps);
  /* (optional, these three) An upload that overlaps with earlier work, which must not use that memory. After upload_fence, work waits for
  ** all asynchronous uploads; after reuse_fence, asynchronous uploads wait for all earlier work, so that memory can be filled again. */
  quern_status (*upload_async)(struct rt_stream *stream, void *to, const void *from, size_t bytes);
  quern_status (*upload_fence)(struct rt_stream *stream);
  quern_status (*reuse_fence)(struct rt_stream *stream);
  /* (optional, both) Marks the time when all before is done, as number i; the n marks' seconds since mark 0, once all is done. */
  quern_status (*mark)(struct rt_stream *stream, size_t i);
  quern_status (*marks)(struct rt_stream *stream, size_t n, double *seconds);
};

/* What a GPU reached, operations and bytes a second; 0: not known. */
struct rt_rates {
  double f32, tf32, bf16, f16, f64; /* products of large matrices */
  double copy, cached;              /* bytes read and written by copies: of its memory, and inside of its cache */
  double launch;                    /* seconds of the least that it does */
};

/* What devices of a kind can do. */
struct rt_backend {
  const char *name; /* the kind: "cpu", "interp", "null", "cuda", "opencl" */
  int alike;        /* so many devices there are, all alike, whatever the machine has; 0: count is asked */
  /* (unless they are alike) How many there are, 1 at least; UNSUPPORTED with what is missing. */
  quern_status (*count)(int *n);
  /* (optional) UNSUPPORTED when "auto" is not to choose the device, with what speaks against it; without it, it never
  ** is. */
  quern_status (*suits)(const quern_device *device);
  /* (of those that open something) Closes what was opened. */
  void (*close)(void *state);
  /* (optional) The device as its driver names it. */
  const char *(*model)(const quern_device *device);
  /* (optional) Bytes of its memory, where the remote does not report its room; 0: not known. */
  int64_t (*memory)(const quern_device *device);
  /* What it works with, in a line: the compiler, or that there is none. */
  void (*describe)(const quern_device *device, struct base_heap *heap, char *text, size_t bytes);
  /* (optional) The same for what no program depends on; only for people. Nothing where the device is not there. */
  void (*describe_more)(const quern_device *device, char *text, size_t bytes);
  /* The target kernels are made for; threads as rt_default_threads. */
  quern_status (*target)(const quern_device *device, struct cg_target *target);
  const char *usual_target; /* (of a device that may be missing) what is planned for where it is */
  /* (optional) A program will be compiled for that target: what takes long the first time may begin in another thread.
  ** NULL: it was compiled, or could not be; waits for that thread. */
  void (*preload)(const quern_device *device, const struct cg_target *target);
  /* (optional) Of a kernel that is a library call, before it is planned: asks the library for an algorithm and its
  ** workspace, and stores both in the call. UNSUPPORTED: the library cannot do it. */
  quern_status (*query_algorithm)(const quern_device *device, struct kern *kern, const struct cg_target *target);
  /* (optional) Measures what it can do, which takes about a second. */
  quern_status (*measure)(const quern_device *device, struct base_heap *heap, struct rt_rates *rates);
  /* Makes kernels ready. They must live as long as the module; stats may be NULL. */
  quern_status (*build)(const quern_device *device, struct rt_module **module, struct base_heap *heap, size_t n,
                        const struct kern *const *kernels, const struct cg_target *target, struct rt_stats *stats);
  void (*free)(struct rt_module *module);
  const struct rt_remote *remote; /* of a device with memory of its own; NULL: of the host's */
  /* (of the host's memory) Runs all phases of kernel number k; scratch: kern_scratch_bytes for each thread, rounded up to
  ** 64, one after another. */
  quern_status (*launch)(struct rt_module *module, size_t k, const struct kern_launch *launch, struct rt_pool *pool,
                         char *scratch, size_t scratch_stride);
  /* (optional) The objects of a module, which owns them, and how many; 0 when it is interpreted. */
  size_t (*objects)(const struct rt_module *module, const struct rt_object **objects);
  /* (optional) A module from objects of an earlier one and its kernels, of which name and phases are read only. Needs
  ** neither compiler nor cache. */
  quern_status (*from_objects)(const quern_device *device, struct rt_module **module, struct base_heap *heap, size_t n,
                               const struct kern *const *kernels, size_t n_objects, const struct rt_object *objects);
  /* (optional) A key of what compiled code depends on besides its text: compilers, libraries, the device itself. False: nothing that was
  ** compiled before may be taken. */
  bool (*identity)(const quern_device *device, struct base_heap *heap, const struct cg_target *target, uint64_t key[2]);
};
extern const struct rt_backend rt_cpu, rt_interp, rt_null, rt_cuda, rt_opencl;
/* By number; NULL after the last. */
const struct rt_backend *rt_backend_get(size_t i);

/* ---- devices.c: the devices of the process, by kind and ordinal ------------------------------------------------ */

enum { RT_MOST_DEVICES = 16 /* of a kind */ };

struct rt_state;
struct quern_device {
  const struct rt_backend *backend;
  const struct rt_remote *remote; /* the backend's */
  int ordinal;
  char name[16];          /* "cuda", "cuda:1" */
  struct rt_state *state; /* what was opened for it */
};

/* The device of a backend with an ordinal below RT_MOST_DEVICES, whether it is there or not. */
const quern_device *rt_device_at(const struct rt_backend *backend, int ordinal);
/* How many a backend has; UNSUPPORTED with what is missing. */
quern_status rt_device_count(const struct rt_backend *backend, int *n) QUERN_NODISCARD;
/* The device of a name (quern/device.h); what: how the message of an error begins. INVALID when there is none of that
** kind or ordinal. One of a kind of which nothing is there is found all the same: opening it fails. From then on the
** device is kept: names come again. */
quern_status rt_device_find(const quern_device **device, const char *what, const char *name) QUERN_NODISCARD;
/* The same, not kept. */
quern_status rt_device_named(const quern_device **device, const char *what, const char *name) QUERN_NODISCARD;
/* One more user, and one less: what was opened for a device is closed with the last, unless the device is kept. */
void rt_device_hold(const quern_device *device);
void rt_device_drop(const quern_device *device);
/* "auto": the first device of the first backend that it suits, in the order of backends; else the CPU, and the thread's
** last error gives the reason. rt_device_find says it in the log, once. The caller is a user of it. */
const quern_device *rt_device_best(void);
/* Whether its driver and a card are there; the error names what is missing. */
quern_status rt_device_probe(const quern_device *device, const struct base_heap *heap) QUERN_NODISCARD;

/* What is opened for a device: by open, once, by whoever comes first, while others wait; what went wrong then is reported
** to all, but for missing memory, after which it is tried again. */
quern_status rt_device_open(const quern_device *device, quern_status (*open)(const quern_device *device, void **state),
                            void **state) QUERN_NODISCARD;
/* What was opened; NULL: nothing yet. */
void *rt_device_opened(const quern_device *device);
/* For tests: that was opened for the device; NULL: what really was, or will be. */
void rt_device_use(const quern_device *device, void *state);

#endif
