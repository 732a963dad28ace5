/* sched/gpu_attention_library.c -- attention and its gradient on GPUs as one library call (cuDNN)
** in:    a supported composite: attention, attention.vjp, or what pass/attention_views.c made of one
** keeps: the same bits every time, unless numerics=fast
** see:   kern.h (calls), docs/design/008-libraries.md      tests: tests/sched/test_gpu_attention_library.c
*/
#include "sched/cpu_attention.h"

/* Widths that cuDNN's kernels take: multiples of 8, up to 128, on Hopper up to 256. */
enum { LANES = 8, WIDTH = 128, WIDTH_SM_90 = 256 };

static bool has_width(const struct base_target *target, int64_t width) {
  int64_t most = strncmp(target->name, "sm_90", strlen("sm_90")) == 0 ? WIDTH_SM_90 : WIDTH;
  return width > 0 && width % LANES == 0 && width <= most;
}

/* True of composites with one result too many or too few, or a gradient that more than the output has. */
static bool is_odd(const struct ir_node *node, bool back) {
  if (!back) return node->n_src != 3 || node->n_out != 2;
  return node->n_src != 6 || node->n_out != 3 || node->src[5]->rank != 4;
}

bool att_library_supports(const struct base_target *target, const struct ir_node *node) {
  struct pass_attention a;
  if ((target->capabilities & BASE_LIBRARY_DNN) == 0 || node->attrs->ints.at[1] != 0) return false;
  bool placed = node->attrs->ints.n > 2;
  if (!placed && is_odd(node, strcmp(node->attrs->name, "attention.vjp") == 0)) return false;
  if (!pass_attention_read(node, &a)) return false;
  quern_dtype dtype = node->src[0]->dtype;
  bool some = a.batch > 0 && a.heads > 0 && a.queries > 0 && a.keys > 0;
  return some && (dtype == QUERN_DTYPE_BF16 || dtype == QUERN_DTYPE_F16) && has_width(target, a.width) &&
         has_width(target, a.value_width) && (!a.causal || a.queries <= a.keys);
}

double att_library_flops(const struct ir_node *node) {
  struct pass_attention a;
  if (!pass_attention_read(node, &a)) return 0;
  double pairs = (double)a.batch * (double)a.heads * (double)a.queries * (double)a.keys / (a.causal ? 2 : 1);
  return 2 * pairs *
         (a.back ? 3 * (double)a.width + 2 * (double)a.value_width : (double)a.width + (double)a.value_width);
}

int att_operand_mem(const struct sched_job *job, int place, bool out) {
  const struct pass_group *group = job->group;
  const quern_tensor *t = out ? &group->anchor->out[place] : group->anchor->src[place];
  size_t n = out ? group->n_outs : group->n_ins;
  for (size_t i = 0; i < n; i++)
    if ((out ? group->outs[i].tensor : group->ins[i]) == t) return (int)(i + (out ? group->n_ins : 0));
  return KERN_NONE;
}

static struct kern_view view_of(const struct sched_job *job, const struct pass_attention *a, int number) {
  const struct pass_operand_view *v = &a->views[number];
  if (v->operand < 0) return (struct kern_view){.mem = KERN_NONE};
  int mem = att_operand_mem(job, v->operand, pass_operand_view_is_out(number, a->back));
  return (struct kern_view){mem, v->at, v->batch, v->head, v->row};
}

/* Bytes of workspace that cuDNN is taken to need until it is asked, which a plan without a GPU never does: backward the
** sums of the rows and those of dq, in f32. */
static int64_t workspace(const struct pass_attention *a) {
  return a->back ? 4 * a->batch * a->heads * a->queries * (1 + a->width) : 1;
}

quern_status sched_gpu_attention_library(struct sched_job *job) {
  struct pass_attention a;
  QUERN_CHECK(pass_attention_read(job->group->anchor, &a), INTERNAL, "schedule: %s is no attention",
              job->group->anchor->attrs->name);
  struct kern_library_call call = {.kind = a.back ? KERN_LIBRARY_ATTENTION_BACK : KERN_LIBRARY_ATTENTION};
  call.attention = (struct kern_attention){.batch = a.batch,
                                           .heads = a.heads,
                                           .kv_heads = a.kv_heads,
                                           .queries = a.queries,
                                           .keys = a.keys,
                                           .width = a.width,
                                           .value_width = a.value_width,
                                           .scale = a.scale,
                                           .causal = a.causal,
                                           .exact = !job->sched->fast,
                                           .lse = att_operand_mem(job, a.lse, !a.back)};
  struct kern_view *const views[PASS_VIEWS] = {&call.attention.q,  &call.attention.k,  &call.attention.v,
                                               &call.attention.y,  &call.attention.dy, &call.attention.dq,
                                               &call.attention.dk, &call.attention.dv};
  for (int i = 0; i < PASS_VIEWS; i++) *views[i] = view_of(job, &a, i);
  call.work = kern_add_mem(job->kern, QUERN_DTYPE_U8, KERN_WORK, workspace(&a));
  kern_add_library_call(job->kern, &call);
  return job->kern->failed;
}
