/* kern/interp_int.h -- an instruction made ready to run, and the functions that run those without control
*/
#ifndef KERN_INTERP_INT_H
#define KERN_INTERP_INT_H
#include "kern/kern_int.h"

struct kern_step;
typedef void kern_run(const struct kern_step *step);

struct kern_step {
  kern_run *run; /* NULL: interp.c runs it */
  enum kern_op op;
  kern_id id;
  int lanes;               /* of the result; of a STORE or SCATTER, of the value */
  quern_dtype dtype, from; /* of the result or memory; of argument 0 */
  void *to;                /* the result, in the function's frame */
  const void *arg[4];      /* the arguments there; NULL: none */
  int64_t imm;
  const int64_t *pool; /* of SHUFFLE, TABLE and CALL */
  size_t target;       /* of FOR, IF, ELSE and END: a step */
  int pick;            /* of DEINTERLEAVE: lanes of argument 0 a lane */
  int64_t end;         /* of FOR, while it runs: the bound */
};

/* The function for an op on elements of argument 0's dtype, or NULL. */
kern_run *kern_run_arith(enum kern_op op, quern_dtype dtype);
/* The function for an op that moves lanes or changes their type, or NULL. */
kern_run *kern_run_move(enum kern_op op, quern_dtype dtype);

#endif
