/* plan/plan_int.h -- what the files of the planner share
** A store is memory that one tensor and the views of it live in. A task is what runs: a step of the input, or a copy.
** A run is one execution of a task: there are several when something is computed again.
*/
#ifndef PLAN_PLAN_INT_H
#define PLAN_PLAN_INT_H
#include "plan/plan.h"

enum { PLAN_ALIGN = 64 };
static inline int64_t plan_round(int64_t bytes) { return (bytes + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN; }

struct plan_store {
  quern_tensor *tensor;         /* NULL: workspace */
  int64_t bytes, room;          /* as the tensor has, and rounded up; room is what the arena gives */
  enum plan_memory_kind memory; /* ARENA: to be placed */
  int64_t at;
  bool donated;     /* a param whose memory may be taken over */
  bool checkpoint;  /* a CHECKPOINT node is a view of it */
  int maker;        /* task; -1: a leaf */
  int over;         /* of a new value in the place of an old one, of a state or a carry: the store of that; else -1 */
  bool passes;      /* it lies in such a place on the way to the new value, which is written over it */
  int version_of;   /* of what a repetition writes: the store of the first time; else itself */
  int next_version; /* the next that a repetition wrote; -1: none */
};

/* The numbers of a run's stores: reads, writes, works, in the order of the step's buffers. */
struct plan_task {
  int input; /* step of the input; -1: a copy */
  int n_reads, n_writes, n_works;
  int *stores;
  int *alias;            /* of each write: which read's memory it may take, or -1 */
  int *in_place_classes; /* of each read, then of each write: those with one number, not 0, may share memory as well */
  double seconds;
  bool is_loop;        /* a loop: what its aliases read is copied to what they write before anything else is written */
  bool final;          /* a copy to a state: after everything else */
  bool there;          /* a forward task: result 0 needs it */
  bool rematerializes; /* the repetition of one that result 0 needs (remat_segments.c) */
};

/* True when write w may take the memory of read r. */
static inline bool plan_may_take(const struct plan_task *task, int w, int r) {
  int class = task->in_place_classes[task->n_reads + w];
  return task->alias[w] == r || (class != 0 && class == task->in_place_classes[r]);
}

/* True when read r does not matter once read `but` is taken over: it is that read, or was copied away before. */
static inline bool plan_is_free(const struct plan_task *task, int r, int but) {
  return r == but || (task->is_loop && r < task->n_writes && task->alias[r] == r);
}

struct plan_run {
  int task;
  bool repeated;
  int *stores; /* as the task's; of a repetition other ones */
};

struct plan_edge {
  int before, after; /* tasks: readers of a state, and who writes its new value in its place */
};

/* The planner's problem and where it stands. */
struct plan_job {
  struct base_heap *heap;
  struct base_arena arena; /* scratch */
  size_t n_inputs;
  const struct plan_input_step *inputs;
  const struct plan_options *options;
  int segments; /* that are rematerialized, between stores chosen as checkpoints; 0: none, or those between the graph's checkpoints */
  BASE_VEC(struct plan_store) stores;
  BASE_VEC(struct plan_task) tasks;
  BASE_VEC(struct plan_edge) edges;
  BASE_VEC(struct plan_run) runs;
  int *params, *results; /* stores */
  bool *in_place;        /* of each result */
};

/* What is alive when: filled by plan_find_liveness for the job's runs. */
struct plan_liveness {
  int *first, *last; /* of each store: runs that touch it first and last; first > last: unused */
  int *takes;        /* of each store: whose memory it takes over in run first; -1: none */
  int *home,
      *until; /* of each store: the one whose memory it has in the end; of a home: the last run that uses the memory */
  int64_t *live; /* of each run: bytes of arena in use */
  int64_t bound; /* the most of them, and where */
  int peak;
};

/* Allocates n items, zero, from an arena; the pointer is NULL without memory. */
#define PLAN_NEW(arena, T, n) ((T *)base_arena_alloc((arena), ((size_t)(n) + 1) * sizeof(T)))

/* Adds a store; bytes, place, at, tensor, donated and maker are taken, the rest derived (tasks.c). */
quern_status plan_add_store(struct plan_job *job, struct plan_store store, int *number) QUERN_NODISCARD;
quern_status plan_tasks(struct plan_job *job) QUERN_NODISCARD; /* tasks.c: inputs -> stores, tasks, edges */
/* Says which tasks the store `target` is made by, and with options->recompute or job->segments adds tasks that make again what
** the others read of theirs; pinned: stores that are made once (remat_segments.c). */
quern_status plan_remat_segments(struct plan_job *job, int target, const bool *pinned) QUERN_NODISCARD;
quern_status plan_order(struct plan_job *job, int *order) QUERN_NODISCARD; /* task_order.c: tasks for a low peak */
/* liveness.c; life's arrays come from arena. */
quern_status plan_find_liveness(const struct plan_job *job, struct plan_liveness *life,
                                struct base_arena *arena) QUERN_NODISCARD;

/* Memory of an arena: alive from run first to run last. */
struct plan_block {
  int64_t bytes;
  int first, last;
  int64_t at;
};
/* Places the blocks; *total is the end of the last. bound: the least there can be (offsets.c). */
quern_status plan_assign_offsets(struct base_arena *arena, size_t n, struct plan_block *blocks, int64_t bound,
                                 int64_t *total) QUERN_NODISCARD;
/* The arena that the job's runs need; at[s] = the offset of each store in it (at may be NULL). enough > 0: no less is
** sought, and not for long. Scratch is taken from arena. */
quern_status plan_assign_stores(const struct plan_job *job, const struct plan_liveness *life, struct base_arena *arena,
                                int64_t enough, int64_t *at, int64_t *total) QUERN_NODISCARD;

/* Repeats runs until the arena is at most limit, which *fits says; if it never is, *least is the smallest arena found
** (remat.c). */
quern_status plan_rematerialize(struct plan_job *job, int64_t limit, int64_t *least, bool *fits) QUERN_NODISCARD;

/* ---- orders ------------------------------------------------------------------------------------------------------ */

struct plan_list {
  int n;
  int *at;
};

/* The tasks as a graph whose nodes take and free memory. Stores are those of the arena. */
struct plan_task_graph {
  int n, n_stores;
  struct plan_list *before, *after; /* of each task: tasks that must precede it, and follow it */
  struct plan_list *reads, *writes; /* of each task: stores, each once */
  int **takes;                      /* of each write of each task: the store it may take over, or -1 */
  int64_t *works;                   /* of each task: bytes of its workspaces */
  int64_t *bytes;                   /* of each store */
  struct plan_list *users;          /* of each store: tasks that read it */
  bool *live_out;                   /* of each store: alive to the end */
};

/* The graph of the first n tasks of a job (task_order_graph.c). */
quern_status plan_task_graph_make(const struct plan_job *job, struct plan_task_graph *g, int n,
                                  struct base_arena *arena) QUERN_NODISCARD;
/* The most bytes alive in that order, and at which place; before[i] = those alive before place i. Both may be NULL;
** left is scratch, one per store. */
int64_t plan_order_peak(const struct plan_task_graph *g, const int *order, int *left, int64_t *before, int *peak_at);
/* The most bytes that one task needs by itself: no order needs less. */
int64_t plan_order_least(const struct plan_task_graph *g);
/* Another order made from one (task_order_sweep.c): PLAIN the same, as far as it is one that can be; EAGER: what frees at
** least as much as it takes runs at once; LATE: what takes at least as much as it frees waits for its reader; GREEDY:
** always what changes the bytes alive the most downwards. */
enum plan_sweep_kind { PLAN_PLAIN, PLAN_EAGER, PLAN_LATE, PLAN_GREEDY };
quern_status plan_sweep(const struct plan_task_graph *g, struct base_arena *arena, enum plan_sweep_kind kind,
                        const int *from, int *to) QUERN_NODISCARD;
/* Depth first from the last tasks, those that need most first. */
quern_status plan_depth_first(const struct plan_task_graph *g, struct base_arena *arena, const int *from,
                              int *to) QUERN_NODISCARD;
/* The best order of the tasks at order[lo .. hi - 1], at most PLAN_EXACT, the others staying; at[t] is the place of
** task t. True, and changed, when its peak, counted from what is alive before them, is less than below (task_order_exact.c).
** */
enum { PLAN_EXACT = 16 };
struct plan_exact; /* tables for windows of up to so many tasks */
quern_status plan_exact_new(struct plan_exact **tables, struct base_arena *arena, int most) QUERN_NODISCARD;
bool plan_exact_window(struct plan_exact *tables, const struct plan_task_graph *g, int *order, int *at, int lo, int hi,
                       int64_t below);

#endif
