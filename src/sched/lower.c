/* sched/lower.c -- a group becomes a kernel: memories, the builder of its kind, name and cost
** in:    a group of pass_fuse and a schedule      out: a finished kernel; memories are ins, outs, workspaces
** keeps: a schedule changes loops and tasks, never bits
** see:   docs/design/002-cpu-compiler.md          tests: tests/sched/test_map.c, tests/sched/test_reduce.c
*/
#include "sched/sched_int.h"

static sched_build *const builders[PASS_KIND_COUNT] = {
    [PASS_KIND_MAP] = sched_map,
    [PASS_KIND_REDUCE] = sched_reduce,
    [PASS_KIND_DOT] = sched_dot,
    [PASS_KIND_SCAN] = sched_scan,
    [PASS_KIND_SORT] = sched_sort,
    [PASS_KIND_SCATTER] = sched_scatter,
    [PASS_KIND_COMPOSITE] = sched_composite,
};

/* ---- what it costs --------------------------------------------------------------------------------------- */

/* Additions, products and the like that a node does on elements. */
static double node_flops(const struct ir_node *node) {
  if (node->op >= IR_NEG && node->op <= IR_SELECT) return (double)ir_count(&node->out[0]);
  if (node->op == IR_REDUCE || node->op == IR_ARGREDUCE || node->op == IR_SCAN || node->op == IR_COL2IM)
    return (double)ir_count(node->src[0]);
  if (node->op == IR_SCATTER) return (double)ir_count(node->src[2]);
  if (node->op == IR_COMPOSITE) return sched_composite_flops(node);
  if (node->op != IR_DOT) return 0;
  double terms = 1;
  for (int i = 0; i < node->attrs->a_sum.n; i++) terms *= (double)node->src[0]->dims[node->attrs->a_sum.at[i]];
  return 2 * terms * (double)ir_count(&node->out[0]);
}

/* Elements of an in that the group's nodes can look at: no more than they have results where they only pick. */
static double elements_read(const struct pass_group *group, const quern_tensor *in) {
  double asked = 0, all = (double)ir_count(in);
  for (size_t i = 0; i < group->n_nodes; i++) {
    const struct ir_node *node = group->nodes[i];
    for (int s = 0; s < node->n_src; s++) {
      if (node->src[s] != in) continue;
      bool picks = node->op == IR_SLICE || node->op == IR_SLICE_AT || (node->op == IR_GATHER && s == 0);
      asked += picks ? (double)ir_count(&node->out[0]) : all;
    }
  }
  return asked > 0 && asked < all ? asked : all;
}

static void estimate(const struct sched_job *job) {
  struct kern *kern = job->kern;
  const struct pass_group *group = job->group;
  for (size_t i = 0; i < group->n_nodes; i++) kern->cost.flops += node_flops(group->nodes[i]);
  if (group->kind == PASS_KIND_MAP && sched_is_update_at(job)) { /* in place, as a rule */
    kern->cost.bytes = 2 * (double)ir_bytes(group->outs[0].tensor->node->src[1]);
    return;
  }
  for (size_t i = 0; i < group->n_ins; i++)
    kern->cost.bytes += elements_read(group, group->ins[i]) * (double)base_dtypes[group->ins[i]->dtype].size;
  for (size_t i = 0; i < group->n_outs; i++) kern->cost.bytes += (double)ir_bytes(group->outs[i].tensor);
}

/* ---- rows of a dynamic batch ------------------------------------------------------------------------- */

/* Gives the memories of ins and outs their rows, where those follow each other. */
static void set_rows(struct kern *kern, const struct pass_group *group, const struct pass_dynamic_batch *rows) {
  if (rows == NULL) return;
  kern->n_scalars = 1;
  for (size_t i = 0; i < group->n_ins; i++)
    if (pass_dynamic_batch_is_outermost(rows, group->ins[i]))
      kern->mems[i].row = pass_dynamic_batch_get(rows, group->ins[i]);
  for (size_t i = 0; i < group->n_outs; i++) {
    const quern_tensor *t = group->outs[i].tensor;
    if (pass_dynamic_batch_is_outermost(rows, t)) kern->mems[group->n_ins + i].row = pass_dynamic_batch_get(rows, t);
  }
}

void sched_work_rows(struct sched_job *job, int mem, const quern_tensor *like, int64_t rows_of_work) {
  const struct pass_dynamic_batch *rows = job->sched->rows;
  if (rows == NULL || job->kern->failed != QUERN_STATUS_OK || rows_of_work % rows->most != 0) return;
  if (pass_dynamic_batch_is_outermost(rows, like)) job->kern->mems[mem].row = job->kern->mems[mem].count / rows->most;
}

/* ---- building -------------------------------------------------------------------------------------------- */

quern_status sched_check_size(const struct kern *kern, const struct pass_group *group) {
  size_t n = 0;
  for (size_t i = 0; i < kern->fns.n; i++) n += kern->fns.at[i]->insts.n;
  const struct ir_node *node = group->anchor;
  QUERN_CHECK(
      n <= SCHED_MOST_INSTS, UNSUPPORTED,
      "kernel %s: node %u (%s, with %zu others) became %zu instructions, more than the %d that are compiled\n"
      "  HINT: fewer nodes share a kernel where quern_checkpoint_activation is between them, or with QUERN_PASS=-fuse",
      kern->name, (unsigned)node->id, ir_ops[node->op].name, group->n_nodes - 1, n, (int)SCHED_MOST_INSTS);
  return QUERN_STATUS_OK;
}

quern_status sched_lower(struct kern **kern, struct base_heap *heap, quern_context *ctx, const struct pass_group *group,
                         const struct base_target *target, const struct sched *sched) {
  *kern = NULL;
  sched_build *build = group->gemm != NULL && !sched->no_library ? sched_gpu_dot_library : builders[group->kind];
  QUERN_CHECK(build != NULL, INTERNAL, "schedule: a %s group has no kernel", pass_kind_names[group->kind]);
  struct kern *made = NULL;
  QUERN_TRY(kern_new(&made, heap));
  for (size_t i = 0; i < group->n_ins; i++)
    (void)kern_add_mem(made, group->ins[i]->dtype, KERN_IN, ir_count(group->ins[i]));
  for (size_t i = 0; i < group->n_outs; i++)
    (void)kern_add_mem(made, group->outs[i].tensor->dtype, KERN_OUT, ir_count(group->outs[i].tensor));
  struct sched_job job = {.kern = made, .ctx = ctx, .group = group, .target = target, .sched = sched};
  quern_status status = made->failed;
  made->unaligned_base = sched->unaligned_base;
  if (status == QUERN_STATUS_OK) {
    set_rows(made, group, sched->rows);
    status = build(&job);
  }
  if (status == QUERN_STATUS_OK && group->space != NULL && group->space->failed) status = QUERN_STATUS_MEMORY;
  if (status == QUERN_STATUS_OK && sched->rows != NULL) status = kern_find_batch_tasks(made, sched->rows->most);
  if (status == QUERN_STATUS_OK) {
    estimate(&job);
    const struct ir_node *anchor = group->anchor;
    const char *name = anchor->op == IR_COMPOSITE ? anchor->attrs->name : ir_ops[anchor->op].name;
    status = kern_finish(made, name, group->outs[0].tensor);
    if (status == QUERN_STATUS_OK) status = sched_check_size(made, group);
  }
  if (status == QUERN_STATUS_OK)
    *kern = made;
  else
    kern_free(made);
  return status;
}

quern_status sched_values(struct sched_job *job, struct kern_builder *b, struct kern_values **values) {
  QUERN_TRY(kern_values_new(values, b, job->ctx, job->group->space));
  if (job->target->gpu) kern_values_allow_approx(*values, job->group);
  for (size_t i = 0; i < job->group->n_ins; i++) kern_values_bind_mem(*values, job->group->ins[i], kern_mem(b, (int)i));
  for (size_t i = 0; i < job->group->n_outs; i++) (void)kern_mem(b, (int)(job->group->n_ins + i));
  return QUERN_STATUS_OK;
}

/* ---- storing --------------------------------------------------------------------------------------------- */

kern_id sched_out_mem(struct sched_job *job, struct kern_builder *b, size_t out) {
  int64_t number = (int64_t)(job->group->n_ins + out);
  for (size_t i = 0; i < b->fn->insts.n; i++)
    if (b->fn->insts.at[i].op == KERN_MEM && b->fn->insts.at[i].imm == number) return (kern_id)i;
  return kern_mem(b, (int)number);
}

void sched_mark_streaming(struct sched_job *job, const bool *may) {
  const struct pass_group *group = job->group;
  size_t bytes = 0;
  for (size_t i = 0; i < group->n_ins; i++) bytes += ir_bytes(group->ins[i]);
  for (size_t i = 0; i < group->n_outs; i++) bytes += ir_bytes(group->outs[i].tensor);
  if (bytes <= (size_t)job->target->l3_bytes) return;
  for (size_t i = 0; i < group->n_outs; i++)
    job->kern->mems[group->n_ins + i].streaming =
        (may == NULL || may[i]) && ir_bytes(group->outs[i].tensor) > bytes / 8;
}

/* Lanes of x one by one, to places that are stride apart (0: anywhere). */
static void store_apart(struct sched_job *job, struct kern_builder *b, struct kern_values *values, kern_id mem,
                        const struct pass_index *flat, int64_t stride, kern_id x, kern_id active) {
  if (job->kern->failed != QUERN_STATUS_OK) return;
  int lanes = kern_at_id(b, x)->lanes;
  bool fixed = active != KERN_NONE && kern_at_id(b, active)->op == KERN_CONST;
  int64_t n = fixed ? BASE_MIN(kern_at_id(b, active)->imm, lanes) : lanes;
  kern_id index = stride != 0 ? kern_values_first(values, flat) : kern_values_index(values, flat);
  for (int i = 0; i < n; i++) {
    if (active != KERN_NONE && !fixed) kern_if(b, kern_bin(b, KERN_LT, kern_index(b, i), active));
    kern_id at = stride != 0 ? kern_add(b, index, kern_index(b, i * stride)) : kern_extract(b, index, i);
    kern_store(b, mem, at, kern_extract(b, x, i));
    if (active != KERN_NONE && !fixed) kern_end(b);
  }
}

void sched_store_at(struct sched_job *job, struct kern_builder *b, struct kern_values *values, size_t out,
                    const struct pass_index *const *at, kern_id x, kern_id active) {
  if (job->kern->failed != QUERN_STATUS_OK) return;
  const quern_tensor *t = job->group->outs[out].tensor;
  struct pass_space *space = job->group->space;
  const struct pass_index *flat = pass_index_flat(space, t->rank, t->dims, at);
  kern_id mem = sched_out_mem(job, b, out);
  int lanes, var = kern_values_vector(values, &lanes);
  int64_t stride = 0;
  if (var < 0 || !pass_index_uses(flat, var)) {
    if (kern_at_id(b, x)->lanes > 1) x = kern_extract(b, x, 0);
    kern_store(b, mem, kern_values_first(values, flat), x);
    return;
  }
  x = kern_splat(b, x, lanes);
  if (!pass_index_stride(space, flat, var, &stride)) stride = 0;
  if (stride == 1)
    kern_store_n(b, mem, kern_values_first(values, flat), x, active);
  else
    store_apart(job, b, values, mem, flat, stride, x, active);
}

void sched_store(struct sched_job *job, struct kern_builder *b, struct kern_values *values, size_t out,
                 kern_id active) {
  const struct pass_out *o = &job->group->outs[out];
  kern_id x = kern_values_get(values, o->tensor, o->tensor->rank, o->at);
  sched_store_at(job, b, values, out, o->at, x, active);
}
