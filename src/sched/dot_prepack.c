/* sched/dot_prepack.c -- side b of a contraction, packed once and in advance: weights that never change
** The pack kernel writes all panels of all blocks; the contraction's kernel then reads them where that in was.
** keeps: the same packed numbers, so the same bits
** tests: tests/sched/test_dot.c
*/
#include "sched/dot.h"

/* As many as the batch has, or one that serves all. */
static int64_t copies(const struct dot *d) {
  bool each = false;
  for (int k = 0; k < d->b.tensor->rank; k++) each |= pass_index_uses(d->b.at[k], DOT_BATCH);
  return each ? d->batch : 1;
}

int64_t dot_packed_count(const struct dot *d) { return copies(d) * d->k * d->n_panels * d->nv * d->lanes; }

kern_id dot_packed_at(const struct dot *d, struct kern_builder *b, kern_id batch, kern_id panel, kern_id pc,
                      int64_t kb) {
  int64_t width = (int64_t)d->nv * d->lanes, row = d->n_panels * width;
  kern_id at = kern_mul_i(b, pc, row);
  if (copies(d) > 1) at = kern_add(b, at, kern_mul_i(b, batch, d->k * row));
  return kern_add(b, at, kern_mul(b, panel, kern_index(b, kb * width)));
}

/* ---- may it be ------------------------------------------------------------------------------------------------ */

static bool is_one_of(size_t n, struct ir_node *const *nodes, const bool *marked, const quern_tensor *t) {
  for (size_t i = 0; i < n; i++)
    if (nodes[i] == t->node) return marked[i];
  return false;
}

/* True when side b is made of this in and of constants only, and nothing else of the group is made of it. of_b: room
** for one mark per node. */
static bool is_alone(const struct dot *d, const quern_tensor *in, bool *of_b) {
  const struct pass_group *group = d->job->group;
  const quern_tensor *operand = d->node->src[d->columns];
  for (size_t i = group->n_nodes; i-- > 0;) { /* users before what they use */
    const struct ir_node *node = group->nodes[i];
    of_b[i] = node == operand->node && operand != in;
    for (size_t u = i + 1; u < group->n_nodes && !of_b[i]; u++)
      for (int s = 0; s < group->nodes[u]->n_src && of_b[u]; s++)
        if (group->nodes[u]->src[s]->node == node) of_b[i] = true;
  }
  for (size_t i = 0; i < group->n_nodes; i++) {
    const struct ir_node *node = group->nodes[i];
    for (int s = 0; s < node->n_src; s++) {
      const quern_tensor *t = node->src[s];
      bool made = t == in || is_one_of(group->n_nodes, group->nodes, of_b, t);
      bool as_b = node == d->node && s == d->columns;
      if (made && !of_b[i] && !as_b) return false;
      if (!of_b[i] || t == in) continue;
      for (size_t k = 0; k < group->n_ins; k++)
        if (group->ins[k] == t) return false;
    }
  }
  return d->node->src[0] != d->node->src[1];
}

/* ---- the kernel that packs -------------------------------------------------------------------------------------- */

static void pack_block(struct dot *d, struct kern_builder *b, struct kern_values *values, kern_id panel, kern_id pc,
                       int64_t kb, int out) {
  int64_t width = (int64_t)d->nv * d->lanes, full = d->n / width;
  bool both = full > 0 && full < d->n_panels;
  kern_id batch = kern_idiv(b, kern_task(b), d->n_panels);
  for (int small = 0; small < 2; small++) {
    if (small == 0 ? full == 0 : full == d->n_panels) continue;
    if (both && small == 0) kern_if(b, kern_bin(b, KERN_LT, panel, kern_index(b, full)));
    if (both && small == 1) kern_else(b);
    kern_values_enter(values);
    kern_id number = small == 1 ? kern_index(b, full) : kern_min(b, panel, kern_index(b, full - 1));
    kern_id to = kern_mem(b, out);
    to = kern_at(b, to, dot_packed_at(d, b, batch, number, pc, kb));
    int vectors = small == 1 ? (int)sched_ceil(d->n % width, d->lanes) : d->nv;
    dot_pack_panel(d, b, values, to, number, vectors, small == 1 ? (int)(d->n % d->lanes) : 0, pc, kb);
    kern_values_leave(values);
  }
  if (both) kern_end(b);
}

static quern_status build_pack(struct dot *d, int out) {
  struct kern *kern = d->job->kern;
  struct kern_values *values;
  int64_t before = (sched_ceil(d->k, DOT_BLOCK) - 1) * DOT_BLOCK;
  if (d->b.across) d->transpose = dot_transpose(d);
  struct kern_builder builder = {.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(copies(d) * d->n_panels))};
  struct kern_builder *b = &builder;
  QUERN_TRY(dot_values(d, b, &values));
  kern_id panel = kern_imod(b, kern_task(b), d->n_panels);
  kern_values_set(values, DOT_BATCH, kern_idiv(b, kern_task(b), d->n_panels), 1, KERN_NONE);
  if (before > 0) {
    kern_id block = kern_range(b, 0, before / DOT_BLOCK, 1);
    kern_values_enter(values);
    pack_block(d, b, values, panel, kern_mul(b, block, kern_index(b, DOT_BLOCK)), DOT_BLOCK, out);
    kern_values_leave(values);
    kern_end(b);
  }
  pack_block(d, b, values, panel, kern_index(b, before), d->k - before, out);
  kern_values_free(values);
  return QUERN_STATUS_OK;
}

/* True when side b is made of something that is computed into a workspace. */
static bool is_kept(const struct dot *d, const bool *of_b) {
  for (int i = 0; i < d->n_materialized; i++)
    if (is_one_of(d->job->group->n_nodes, d->job->group->nodes, of_b, d->materialized[i].tensor)) return true;
  return false;
}

/* True when the contraction's kernel would pack side b, and in is all there is to pack. */
static bool is_packed(struct dot *d, const quern_tensor *in, bool *of_b) {
  if (d->lanes == 1 || d->batch * d->m * d->n * d->k == 0 || dot_is_inner(d) || dot_is_skinny(d) ||
      !is_alone(d, in, of_b) || is_kept(d, of_b))
    return false;
  dot_sizes(d);
  return d->b.packed && !d->b_transposed;
}

/* The contraction is set up in a kernel that is thrown away; then the one that packs has the in and its own out only. */
static quern_status make_pack(struct sched_job *job, struct kern *made, const quern_tensor *in, int64_t *count) {
  struct dot d;
  quern_status status = dot_setup(&d, job);
  bool *of_b = base_arena_alloc(&d.arena, job->group->n_nodes + 1);
  if (status == QUERN_STATUS_OK && of_b == NULL) status = QUERN_STATUS_MEMORY;
  if (status == QUERN_STATUS_OK && is_packed(&d, in, of_b)) {
    quern_tensor *ins[] = {(quern_tensor *)in};
    d.group.n_ins = 1;
    d.group.ins = ins;
    d.group.n_outs = 0;
    d.n_materialized = 0;
    if (d.b.view.mem >= 0) d.b.view.mem = 0;
    job->kern = d.inner.kern = made;
    *count = dot_packed_count(&d);
    (void)kern_add_mem(made, in->dtype, KERN_IN, ir_count(in));
    status = build_pack(&d, kern_add_mem(made, d.acc, KERN_OUT, *count));
  }
  dot_fini(&d);
  return status;
}

quern_status sched_pack(struct kern **kern, int64_t *count, struct base_heap *heap, quern_context *ctx,
                        const struct pass_group *group, const struct base_target *target, const struct sched *sched,
                        int in) {
  struct kern *trial = NULL, *made = NULL;
  *kern = NULL;
  *count = 0;
  if (group->kind != PASS_KIND_DOT || group->gemm != NULL) return QUERN_STATUS_OK;
  quern_status status = kern_new(&trial, heap);
  if (status == QUERN_STATUS_OK) status = kern_new(&made, heap);
  if (status == QUERN_STATUS_OK) {
    for (size_t i = 0; i < group->n_ins; i++)
      (void)kern_add_mem(trial, group->ins[i]->dtype, KERN_IN, ir_count(group->ins[i]));
    for (size_t i = 0; i < group->n_outs; i++)
      (void)kern_add_mem(trial, group->outs[i].tensor->dtype, KERN_OUT, ir_count(group->outs[i].tensor));
    struct sched packed = *sched;
    packed.packed = 1 + in;
    struct sched_job job = {.kern = trial, .ctx = ctx, .group = group, .target = target, .sched = &packed};
    status = trial->failed;
    if (status == QUERN_STATUS_OK) status = make_pack(&job, made, group->ins[in], count);
    if (status == QUERN_STATUS_OK && *count > 0) status = kern_finish(made, "pack", group->ins[in]);
  }
  if (status == QUERN_STATUS_OK && *count > 0)
    *kern = made;
  else
    kern_free(made);
  kern_free(trial);
  return status;
}
