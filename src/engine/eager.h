/* engine/eager.h -- what eager.c and eager_programs.c share: what a context keeps for eager use */
#ifndef ENGINE_EAGER_H
#define ENGINE_EAGER_H
#include "engine/engine.h"

struct engine_eager_entry {
  struct engine_key key;
  quern_program *program;
  quern_instance *instance; /* NULL: to be made */
  bool light;               /* interpreted */
  double work, done;        /* operations of a run, and those that were interpreted */
  uint64_t age;             /* grows: when it was used */
};

struct engine_eager {
  struct ir_remote remote; /* the memory of the device, if it has its own: the context's remote */
  quern_context *ctx;
  struct base_heap *heap;
  const quern_device *device;
  BASE_VEC(struct engine_eager_entry) entries;
  uint64_t age;
  int threads;
  struct engine_space space;
  size_t arena_bytes, scratch_bytes;
  struct engine_eager_stats stats;
  quern_run_stats counts; /* of all runs */
};

/* What is asked for: tensors of a context, and their structure. */
struct engine_eager_roots {
  size_t n;
  quern_tensor *const *at;
  struct engine_canon canon;
};

/* The context's, made when there is none; on another device: programs are dropped and elements fetched. */
quern_status engine_eager_open(quern_context *ctx, struct engine_eager **out) QUERN_NODISCARD;
quern_status engine_eager_move(struct engine_eager *eager, const quern_device *device) QUERN_NODISCARD;
/* An instance of the program for the roots, found or compiled, ready to run on memory of the device. */
quern_status engine_eager_find(struct engine_eager *eager, const struct engine_eager_roots *roots,
                               quern_instance **instance) QUERN_NODISCARD;

#endif
