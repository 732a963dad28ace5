/* sched/map.h -- what map.c and map_tile.c share */
#ifndef SCHED_MAP_H
#define SCHED_MAP_H
#include "sched/nest.h"

struct sched_map {
  struct sched_job *job;
  struct sched_nest nest;
  struct kern_builder b;
  struct kern_values *values;
  int vector; /* the loop that has lanes; -1: there is no loop at all */
  int lanes, unroll;
  int insts;       /* of a vector, about */
  bool scattered;  /* some of it lane by lane */
  kern_id *stored; /* one value per out, for each vector of a task */
};

quern_status sched_map_begin(struct sched_map *m, int64_t tasks) QUERN_NODISCARD;
/* Computes what depends on none of these variables. */
quern_status sched_map_hoist(struct sched_map *m, int n_vars, const int *vars) QUERN_NODISCARD;
/* Gets and stores every out at the current point. */
void sched_map_store(struct sched_map *m, kern_id active);

/* The kernel by squares that are transposed in registers, when ins and outs are contiguous along different loops. */
quern_status sched_map_tiled(struct sched_map *m, bool *done) QUERN_NODISCARD;
/* The kernel by squares that are transposed in shared memory, for GPUs; m's vector and lanes are others afterwards when it is done. */
quern_status sched_map_tiled_gpu(struct sched_map *m, bool *done) QUERN_NODISCARD;

#endif
