/* plan/print.c -- a plan as text
** One line per step: its number, what it does, the buffers it reads, and those it writes; a buffer is its place and bytes.
** tests: tests/plan/test_make.c
*/
#include <inttypes.h>

#include "plan/plan_int.h"

static const char *const places[] = {[PLAN_ARENA] = "arena",
                                     [PLAN_PARAM] = "param",
                                     [PLAN_STATE] = "state",
                                     [PLAN_CONST] = "const",
                                     [PLAN_RESULT] = "result"};

static const char *const kinds[] = {
    [PLAN_KERNEL] = "kernel", [PLAN_COPY] = "copy", [PLAN_LOOP] = "loop", [PLAN_WHILE] = "while", [PLAN_IF] = "if"};

static void print_buffer(struct base_str *str, const struct plan *plan, int number) {
  const struct plan_buffer *b = &plan->buffers[number];
  base_str_printf(str, " %s[%" PRId64, places[b->memory], b->at);
  if (b->memory == PLAN_PARAM || b->memory == PLAN_RESULT)
    base_str_add(str, "]");
  else
    base_str_printf(str, "+%" PRId64 "]", b->bytes);
}

static const char *name_of(const struct ir_node *node) {
  return node->op == IR_COMPOSITE ? node->attrs->name : ir_ops[node->op].name;
}

static void print_step(struct base_str *str, const struct plan *plan, size_t at, int indent) {
  const struct plan_step *step = &plan->steps[at];
  bool copy = step->kind == PLAN_COPY;
  int n_reads = copy ? 1 : step->node != NULL ? step->node->n_src : (int)step->group->n_ins;
  base_str_printf(str, "%*s%4zu %s", indent, "", at, kinds[step->kind]);
  if (step->kind == PLAN_KERNEL)
    base_str_printf(str, " %d %s %s", step->kernel, pass_kind_names[step->group->kind],
                    name_of(step->group->outs[0].tensor->node));
  if (step->rematerialized) base_str_add(str, " rematerialized");
  for (int i = 0; i < n_reads; i++) print_buffer(str, plan, step->buffers[copy ? 1 : i]);
  base_str_add(str, " ->");
  for (int i = copy ? 0 : n_reads; i < (copy ? 1 : step->n_buffers); i++) print_buffer(str, plan, step->buffers[i]);
  base_str_add(str, "\n");
}

/* The depth of subgraphs in subgraphs is bounded by IR_MAX_DEPTH. */
static void print_plan(struct base_str *str, const struct plan *plan, int indent) {
  const struct plan_memory *m = &plan->memory;
  base_str_printf(str,
                  "%*splan: %zu steps, %zu buffers; arena %" PRId64 " bytes (alive at a time %" PRId64
                  ", without sharing %" PRId64 "), scratch %" PRId64 "\n",
                  indent, "", plan->n_steps, plan->n_buffers, m->arena, m->bound, m->unshared, m->scratch);
  for (size_t i = 0; i < plan->n_steps; i++) {
    print_step(str, plan, i, indent);
    if (plan->steps[i].body != NULL) print_plan(str, plan->steps[i].body, indent + 4);
    if (plan->steps[i].other != NULL) print_plan(str, plan->steps[i].other, indent + 4);
  }
}

quern_status plan_print(struct base_str *str, const struct plan *plan) {
  print_plan(str, plan, 0);
  return base_str_status(str);
}
