/* sched/nest.h -- the loop nest over a group's space: which variables run together, what a point costs, what stays the same
** A nest is a list of loops. A loop runs over one variable of the group, or over several neighbors at once through a
** variable of its own; the group's indices are rewritten in the loops' variables.
*/
#ifndef SCHED_NEST_H
#define SCHED_NEST_H
#include "sched/sched_int.h"

enum { SCHED_MOST_VARS = 2 * QUERN_MAX_RANK };

struct sched_loop {
  int var;               /* of the space */
  int64_t start, extent; /* it runs over start .. start + extent - 1; the variable counts from 0 */
  int first, last;       /* the variables of the group it runs over */
};

struct sched_nest {
  struct sched_job *job;
  struct base_arena *arena;
  int n_group;          /* variables of the group */
  int n_loops, n_outer; /* loops, outermost first; of REDUCE the first n_outer run over outer variables */
  struct sched_loop loops[SCHED_MOST_VARS];
  /* The group's indices in the loops' variables. */
  const struct pass_index ***outs, ***sources, ***results, ***column_sources, ***column_results;
};

/* The nest of one loop per variable; variables of extent 1 have none. All it keeps is allocated from arena. */
quern_status sched_nest_init(struct sched_nest *nest, struct sched_job *job, struct base_arena *arena) QUERN_NODISCARD;

/* A nest that can be changed while this one stays. */
quern_status sched_nest_copy(struct sched_nest *copy, const struct sched_nest *nest) QUERN_NODISCARD;

/* Makes one loop of loops first .. last. */
quern_status sched_nest_merge(struct sched_nest *nest, int first, int last) QUERN_NODISCARD;

/* Merges neighbors of loops first .. last - 1 as long as no index needs a division for it. */
quern_status sched_nest_collapse(struct sched_nest *nest, int first, int last) QUERN_NODISCARD;

/* Lets a loop run over start .. start + extent - 1 only. */
quern_status sched_nest_narrow(struct sched_nest *nest, int loop, int64_t start, int64_t extent) QUERN_NODISCARD;

/* Where paddings and concatenations begin and end along a loop: starts of parts in which they make no difference, in
** increasing order, the first 0; their number. 1 when there are none, or too many. */
enum { SCHED_MOST_SPLITS = KERN_MAX_PHASES };
quern_status sched_nest_splits(const struct sched_nest *nest, int loop, int *n, int64_t *starts) QUERN_NODISCARD;

/* What a point of the space costs, found by building it: */
struct sched_trial {
  double cost;   /* about the instructions of a vector register for all lanes */
  int divisions; /* of indices */
  int scattered; /* loads and stores, lane by lane */
  int insts;
  bool not_spmd; /* what thread blocks cannot do: branches, lanes that change places */
  bool valid;    /* false: the values cannot be built in these loops */
};
/* The trial with loop vector (-1: none) having lanes. */
quern_status sched_nest_try(struct sched_trial *trial, const struct sched_nest *nest, int vector,
                            int lanes) QUERN_NODISCARD;

/* The loops' number of iterations: of loops first .. last - 1 but not of skip. */
int64_t sched_nest_count(const struct sched_nest *nest, int first, int last, int skip);
/* Sets the variables of loops first .. last - 1, but not of skip, from their row-major number flat. */
void sched_nest_set(const struct sched_nest *nest, struct kern_builder *b, struct kern_values *values, int first,
                    int last, int skip, kern_id flat);

/* Lanes of this group's vectors: the schedule's, half as many when all that counts has 8 bytes. */
int sched_lanes(const struct sched_job *job);

/* About how long a node takes an element, in additions. */
double sched_weight(enum ir_op op);

/* Says which outs may take the memory of an in: those for which `may` is true (NULL: all) where the in is read at the
** out's own index only. Called before the first phase. */
quern_status sched_alias(struct sched_nest *nest, const bool *may) QUERN_NODISCARD;
/* Finds in-place classes and aliases from fn, which loads and stores all memories at one point: outs that are stored at one index, and ins
** that are loaded there only, share a class. may (or NULL): which outs can. */
void sched_find_in_place(struct kern_mem *mems, int n_ins, int n_outs, const bool *may, const struct kern_fn *fn);

/* ---- tensors at indices ------------------------------------------------------------------------------------ */

struct sched_point {
  const quern_tensor *tensor;
  const struct pass_index **at;
};
struct sched_points {
  size_t n, cap;
  struct sched_point *at;
};

/* Asked of each point that is needed for others; false: what it is made from is not looked at. */
typedef bool sched_visit(void *user, const struct sched_point *point);

/* Visits a point and what it is made from, each once, as far as the indices can be followed without a choice. beyond:
** also into paddings and concatenations, at indices that may lie outside. */
struct sched_walk {
  const struct sched_nest *nest;
  bool beyond;
  struct base_map seen;
  struct sched_points stack;
  bool failed; /* no memory */
};
void sched_walk_init(struct sched_walk *walk, const struct sched_nest *nest);
void sched_walk_fini(struct sched_walk *walk);
void sched_walk_run(struct sched_walk *walk, const quern_tensor *t, const struct pass_index *const *at,
                    sched_visit *visit, void *user);

bool sched_point_uses(const struct sched_point *point, int var);
bool sched_point_same(const struct sched_point *a, const struct sched_point *b);
/* Its value; from now on that it is x. */
static inline kern_id sched_point_get(struct kern_values *values, const struct sched_point *p) {
  return kern_values_get(values, p->tensor, p->tensor->rank, p->at);
}
static inline void sched_point_bind(struct kern_values *values, const struct sched_point *p, kern_id x) {
  kern_values_bind(values, p->tensor, p->tensor->rank, p->at, x);
}
uint64_t sched_point_hash(const quern_tensor *t, const struct pass_index *const *at);
/* Adds a point to a list in the nest's arena; false: no memory. */
bool sched_points_add(const struct sched_nest *nest, struct sched_points *points, const struct sched_point *point);

/* The outermost points of what t at `at` is made from that use none of the variables: they can be computed before the
** loops over those. Added to points, once each. */
quern_status sched_invariants(struct sched_nest *nest, const quern_tensor *t, const struct pass_index *const *at,
                              int n_vars, const int *vars, struct sched_points *points) QUERN_NODISCARD;

/* Computes each point in the current scope. */
void sched_points_get(struct kern_values *values, const struct sched_points *points);

#endif
