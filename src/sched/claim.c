/* sched/claim.c -- composites that have kernels of their own, by name
** keeps: bits depend on the target only: a claim does not look at threads or optimise
*/
#include "sched/attention.h"

static const struct {
  const char *name;
  bool (*claims)(const struct ir_node *composite);
  sched_build *build;
  double (*flops)(const struct ir_node *composite);
} table[] = {
    {"attention", att_claims, sched_attention, att_flops},
    {"attention.vjp", att_claims, sched_attention_back, att_flops},
};

static size_t find(const struct ir_node *composite) {
  size_t i = 0;
  while (i < BASE_COUNT(table) && strcmp(table[i].name, composite->attrs->name) != 0) i++;
  return i;
}

bool sched_claims(const struct base_target *target, const struct ir_node *composite) {
  if (target->gpu) return false;
  size_t i = find(composite);
  return i < BASE_COUNT(table) && table[i].claims(composite);
}

double sched_claim_flops(const struct ir_node *composite) {
  size_t i = find(composite);
  return i < BASE_COUNT(table) ? table[i].flops(composite) : 0;
}

quern_status sched_claim(struct sched_job *job) {
  size_t i = find(job->group->anchor);
  QUERN_CHECK(i < BASE_COUNT(table), INTERNAL, "schedule: no kernel for %s", job->group->anchor->attrs->name);
  return table[i].build(job);
}
