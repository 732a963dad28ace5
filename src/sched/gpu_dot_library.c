/* sched/gpu_dot_library.c -- a contraction that a library does (cuBLASLt): a kernel that is one library call
** in:    a group with a gemm      out: its matrices as memories of the kernel, and a workspace
** see:   pass/gemm.c, docs/design/008-libraries.md      tests: tests/sched/test_gpu_dot_library.c
*/
#include "sched/sched_int.h"

enum { WORKSPACE = 1 }; /* bytes, until the device says what it needs */

/* The memory of an in (or an out) of the group; KERN_NONE for no tensor, or for one that is none of them. */
static int mem_of(const struct sched_job *job, const quern_tensor *t, bool in) {
  const struct pass_group *group = job->group;
  for (size_t i = 0; t != NULL && i < (in ? group->n_ins : group->n_outs); i++)
    if ((in ? group->ins[i] : group->outs[i].tensor) == t) return (int)(in ? i : group->n_ins + i);
  return KERN_NONE;
}

static struct kern_matrix matrix_of(const struct sched_job *job, const struct pass_matrix *m, bool in) {
  return (struct kern_matrix){mem_of(job, m->tensor, in), m->at, m->batch, m->row, m->column};
}

static bool is_same_place(const struct kern_matrix *x, const struct kern_matrix *y) {
  return x->at == y->at && x->batch == y->batch && x->row == y->row && x->column == y->column;
}

/* What is added may become the result where both lie alike. */
static void set_alias(struct kern *kern, const struct kern_gemm *g) {
  if (g->add.mem == KERN_NONE || g->add.mem == g->a.mem || g->add.mem == g->b.mem || g->add.mem == g->bias) return;
  const struct kern_mem *add = &kern->mems[g->add.mem], *y = &kern->mems[g->y.mem];
  if (add->dtype == y->dtype && add->count == y->count && is_same_place(&g->add, &g->y))
    kern->mems[g->y.mem].alias = g->add.mem;
}

quern_status sched_gpu_dot_library(struct sched_job *job) {
  static const enum kern_activation acts[] = {
      [PASS_ACT_NONE] = KERN_ACT_NONE, [PASS_ACT_RELU] = KERN_ACT_RELU, [PASS_ACT_GELU_TANH] = KERN_ACT_GELU_TANH};
  const struct pass_gemm *g = job->group->gemm;
  struct kern_library_call call = {.kind = KERN_LIBRARY_GEMM,
                                   .gemm = {.batch = g->batch,
                                            .rows = g->rows,
                                            .columns = g->columns,
                                            .terms = g->terms,
                                            .a = matrix_of(job, &g->a, true),
                                            .b = matrix_of(job, &g->b, true),
                                            .y = matrix_of(job, &g->y, false),
                                            .add = matrix_of(job, &g->add, true),
                                            .aux = matrix_of(job, &g->aux, g->back),
                                            .bias = mem_of(job, g->bias, true),
                                            .a_sums = KERN_NONE,
                                            .y_sums = KERN_NONE,
                                            .act = acts[g->act],
                                            .back = g->back,
                                            .tf32 = job->sched->tf32 && g->a.tensor->dtype == QUERN_DTYPE_F32}};
  const struct kern_gemm *k = &call.gemm;
  QUERN_CHECK(k->y.mem >= 0 && k->a.mem >= 0 && k->b.mem >= 0 && (g->add.tensor != NULL) == (k->add.mem >= 0) &&
                  (g->aux.tensor != NULL) == (k->aux.mem >= 0) && (g->bias != NULL) == (k->bias >= 0),
              INTERNAL, "schedule: a call of what the group does not read or write");
  set_alias(job->kern, &call.gemm);
  call.work = kern_add_mem(job->kern, QUERN_DTYPE_U8, KERN_WORK, WORKSPACE);
  kern_add_library_call(job->kern, &call);
  return job->kern->failed;
}
