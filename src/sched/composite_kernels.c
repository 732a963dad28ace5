/* sched/composite_kernels.c -- composites that have kernels of their own, by name
** keeps: bits depend on the target only: what is supported does not depend on threads or optimize
*/
#include "sched/cpu_attention.h"

static bool att_supports_of(const struct base_target *target, const struct ir_node *composite) {
  (void)target;
  return att_supports(composite);
}

/* What the library takes is its own, with its order of sums; everything else is for generated code. */
static bool att_gpu_supports(const struct base_target *target, const struct ir_node *composite) {
  return att_library_supports(target, composite) || flash_supports(target, composite);
}

static bool is_call(const struct sched_job *job) {
  return !job->sched->no_library && att_library_supports(job->target, job->group->anchor);
}
static quern_status sched_gpu_attention(struct sched_job *job) {
  return (is_call(job) ? sched_gpu_attention_library : sched_gpu_flash)(job);
}
static quern_status sched_gpu_attention_back(struct sched_job *job) {
  return (is_call(job) ? sched_gpu_attention_library : sched_gpu_flash_back)(job);
}

static const struct {
  const char *name;
  bool gpu;
  bool (*supports)(const struct base_target *target, const struct ir_node *composite);
  sched_build *build;
  double (*flops)(const struct ir_node *composite);
} table[] = {
    {"attention", false, att_supports_of, sched_cpu_attention, att_flops},
    {"attention.vjp", false, att_supports_of, sched_cpu_attention_back, att_flops},
    {"attention", true, att_gpu_supports, sched_gpu_attention, att_flops},
    {"attention.vjp", true, att_gpu_supports, sched_gpu_attention_back, att_flops},
    {"attention.placed", true, att_gpu_supports, sched_gpu_attention, att_library_flops},
    {"attention.vjp.placed", true, att_gpu_supports, sched_gpu_attention_back, att_library_flops},
    {"conv.placed", true, conv_library_supports, sched_gpu_conv_library, conv_library_flops},
    {"conv.input_grad.placed", true, conv_library_supports, sched_gpu_conv_library, conv_library_flops},
    {"conv.weight_grad.placed", true, conv_library_supports, sched_gpu_conv_library, conv_library_flops},
};

static size_t find(const struct ir_node *composite, bool gpu) {
  size_t i = 0;
  while (i < BASE_COUNT(table) && (table[i].gpu != gpu || strcmp(table[i].name, composite->attrs->name) != 0)) i++;
  return i;
}

bool sched_supports(const struct base_target *target, const struct ir_node *composite) {
  size_t i = find(composite, target->gpu);
  return i < BASE_COUNT(table) && table[i].supports(target, composite);
}

double sched_composite_flops(const struct ir_node *composite) {
  size_t i = find(composite, true);
  return i < BASE_COUNT(table) ? table[i].flops(composite) : 0;
}

quern_status sched_composite(struct sched_job *job) {
  size_t i = find(job->group->anchor, job->target->gpu);
  QUERN_CHECK(i < BASE_COUNT(table), INTERNAL, "schedule: no kernel for %s", job->group->anchor->attrs->name);
  return table[i].build(job);
}
