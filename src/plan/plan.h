/* plan/plan.h -- from groups and kernels to a plan: in which order, at which bytes, what is rematerialized
** see: docs/design/002-cpu-compiler.md
*/
#ifndef PLAN_PLAN_H
#define PLAN_PLAN_H
#include "kern/kern.h"

/* The kind of memory that a buffer of a plan lives in. */
enum plan_memory_kind {
  PLAN_ARENA, /* offset bytes into the arena of the plan's run */
  PLAN_PARAM, /* argument number of a plan: inputs of a program, operands of a subgraph */
  PLAN_STATE, /* offset bytes into the instance's state */
  PLAN_CONST, /* offset bytes into the program's constants */
  PLAN_RESULT /* result number of a plan: memory given by whoever runs it */
};

struct plan_buffer {
  quern_tensor *tensor; /* NULL: workspace of a step */
  enum plan_memory_kind memory;
  int64_t at; /* offset or number */
  int64_t bytes;
  int first, last; /* steps that write it first (-1: before the run) and use it last (-1: never; n_steps: after it) */
  int takes;       /* the buffer whose memory it takes over at step first, where that one is read last; -1: none */
};

enum plan_step_kind { PLAN_KERNEL, PLAN_COPY, PLAN_LOOP, PLAN_WHILE, PLAN_IF };

struct plan_step {
  enum plan_step_kind kind;
  int kernel; /* of KERNEL: its number in the program's list of kernels */
  const struct pass_group *group;
  int n_buffers;
  /* Numbers of plan_buffers. KERNEL: one per memory of the kernel. COPY: destination, source. Control: sources of the node,
  ** its results, then workspaces: 8 bytes (the iteration's number, the condition), the arena of whichever body runs, and of
  ** LOOP and WHILE a second buffer for each carry, empty for those in place. */
  int *buffers;
  const struct ir_node *node; /* of control */
  struct plan *body, *other;  /* plans of its subgraphs */
  bool rematerialized;        /* a repetition, to need less memory */
};

struct plan_memory {        /* bytes */
  int64_t arena, scratch;   /* scratch: of all threads */
  int64_t state, constants; /* for whoever laid them out to fill in */
  int64_t bound; /* the largest sum of bytes alive at a time: no plan of these steps in this order needs less arena */
  int64_t unshared; /* what the arena would be if nothing shared memory */
  /* Activations: what steps of result 0, the forward pass, or their repetitions made and steps that result 0 does not need, the backward
  ** pass, still read; the most at a time. */
  int64_t held;
};

struct plan {
  size_t n_steps, n_buffers;
  struct plan_step *steps;
  struct plan_buffer *buffers;
  int n_params, n_results;
  int *params, *results; /* buffer numbers */
  bool *in_place;        /* of each result: it lies where its carry's param does */
  struct plan_memory memory;
};

/* What the planner is given: steps that write buffers, in any valid order. Everything else is derived. */
struct plan_input_step {
  const struct pass_group *group;
  const struct kern *kern; /* NULL: VIEW or CONTROL */
  int kernel;
  double seconds;  /* estimated time, for rematerialization */
  int64_t scratch; /* bytes that each thread needs for it, in addition to the arena */
  struct plan *body, *other;
};
/* A leaf that is not given at each run: where it lies in the instance's state or in the program's constants. */
struct plan_leaf {
  quern_tensor *tensor;
  enum plan_memory_kind memory; /* STATE or CONST */
  int64_t at;
};
struct plan_update { /* a state and its new value */
  quern_tensor *state, *value;
};
struct plan_carry { /* of a body that runs again and again: a result that is a param the next time */
  int param, result;
};
struct plan_options {
  int64_t limit;   /* bytes of arena and scratch that may be used; 0: no limit */
  int64_t staging; /* bytes of that which are used for neither of the two */
  int64_t *least;  /* gets the smallest limit that would do when this one cannot be met; or NULL */
  bool reorder;    /* for low peak; else the order given */
  bool share;      /* buffers may share memory when not alive together; else each has its own */
  int64_t apart;   /* where they share memory: those of at most so many bytes do not, if they are few */
  bool
      recompute; /* gradient checkpointing: what lies between checkpoints is rematerialized for the backward pass (remat_segments.c) */
  int threads;
  int64_t align; /* of buffers in the arena, a multiple of 64; 0: 64 */
  size_t n_params;
  quern_tensor *const *params; /* leaves that are given at each run, in order */
  size_t n_leaves;
  const struct plan_leaf *leaves;
  size_t n_results;
  quern_tensor *const *results; /* tensors to be written to PLAN_RESULT memory, in order */
  size_t n_updates;
  const struct plan_update *updates;
  size_t n_carried;
  const struct plan_carry *carried; /* whose param and result may have one place: plan->in_place says which do */
  const bool *donated;              /* one per param: its memory may be written once it is no longer read; or NULL */
};

/* Makes the plan; everything in it is allocated from arena. Results that nothing computes (a param, a constant, the
** same tensor twice) are copied; a state's new value is computed in its place where every reader of the old one can run
** before, and copied at the end otherwise. MEMORY when the limit cannot be met: the message names the smallest limit
** that would do and the five largest tensors. */
quern_status plan_make(struct plan **plan, struct base_arena *arena, size_t n, const struct plan_input_step *steps,
                       const struct plan_options *options) QUERN_NODISCARD;

/* Every buffer is written before it is read, and no two that are alive together overlap unless one takes the other
** over. */
quern_status plan_verify(const struct plan *plan, struct base_heap *heap) QUERN_NODISCARD;
quern_status plan_print(struct base_str *str, const struct plan *plan) QUERN_NODISCARD;

#endif
