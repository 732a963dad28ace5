/* pass/groups_print.c -- groups as text that a person reads
** tests: tests/pass/test_fuse.c
*/
#include "pass/pass_int.h"

const char *const pass_kind_names[PASS_KIND_COUNT] = {"view", "map",     "reduce",  "dot",      "scan",
                                                      "sort", "scatter", "control", "composite"};

static void print_tensor(struct base_str *str, const quern_tensor *t) {
  char type[IR_TYPE_TEXT];
  base_str_printf(str, "%%%u", t->node->id);
  if (t->result > 0) base_str_printf(str, ".%d", t->result);
  base_str_printf(str, " %s %s", ir_ops[t->node->op].name, ir_type_text(type, t));
}

/* How much of two names is the same, in whole parts between dots. */
static int common(const char *a, int n, const char *b) {
  int same = 0;
  for (int i = 0; i <= n; i++) {
    bool end_a = i == n || a[i] == '.', end_b = b[i] == 0 || b[i] == '.';
    if (end_a && end_b) same = i;
    if (i == n || a[i] != b[i]) break;
  }
  return same;
}

/* The layer whose states the group reads; states without a name, and none, have none. */
static void describe_layer(struct base_str *str, const struct pass_group *group) {
  const char *name = NULL;
  int n = 0;
  for (size_t i = 0; i < group->n_ins; i++) {
    const struct ir_node *node = group->ins[i]->node;
    if (node->op != IR_STATE || node->attrs->name == NULL) continue;
    const char *last = strrchr(node->attrs->name, '.');
    int whole = (int)(last != NULL ? (size_t)(last - node->attrs->name) : strlen(node->attrs->name));
    n = name == NULL ? whole : common(name, n, node->attrs->name);
    name = node->attrs->name;
  }
  if (n > 0) base_str_printf(str, " of layer %.*s", n, name);
}

void pass_group_describe(struct base_str *str, const struct pass_group *group) {
  enum { MOST = 6 };
  base_str_printf(str, "a %s", pass_kind_names[group->kind]);
  describe_layer(str, group);
  for (size_t i = 0; i < group->n_nodes && i < MOST; i++) {
    base_str_add(str, i == 0 ? ": " : ", ");
    print_tensor(str, &group->nodes[i]->out[0]);
  }
  if (group->n_nodes > MOST) base_str_printf(str, " and %zu more", group->n_nodes - MOST);
}

static void print_indices(struct base_str *str, const char *what, int rank, const struct pass_index *const *at) {
  if (at == NULL) return;
  base_str_printf(str, " %s[", what);
  for (int k = 0; k < rank; k++) {
    if (k > 0) base_str_add(str, ", ");
    pass_index_print(str, at[k]);
  }
  base_str_add(str, "]");
}

static void print_space(struct base_str *str, const struct pass_group *group) {
  if (group->space == NULL) return;
  base_str_add(str, "  over");
  for (size_t v = 0; v < group->space->extents.n; v++) {
    if (group->kind == PASS_KIND_REDUCE && (int)v == group->n_outer) base_str_add(str, " ;");
    base_str_printf(str, " i%zu<%lld", v, (long long)group->space->extents.at[v]);
  }
  if (group->kind == PASS_KIND_DOT)
    base_str_printf(str, "  batch %d rows %d columns %d terms %d", group->vars[0], group->vars[1], group->vars[2],
                    group->vars[3]);
  base_str_add(str, "\n");
}

static void print_matrix(struct base_str *str, const char *name, const struct pass_matrix *m) {
  if (m->tensor != NULL)
    base_str_printf(str, ", %s = %%%u[%lld + %lld n + %lld i + %lld j]", name, m->tensor->node->id, (long long)m->at,
                    (long long)m->batch, (long long)m->row, (long long)m->column);
}

static void print_gemm(struct base_str *str, const struct pass_gemm *g) {
  static const char *const acts[] = {"", " relu", " gelu_tanh"};
  base_str_printf(str, "  gemm%s%s %lld x %lld x %lld terms %lld", acts[g->act], g->back ? " backward" : "",
                  (long long)g->batch, (long long)g->rows, (long long)g->columns, (long long)g->terms);
  print_matrix(str, "a", &g->a);
  print_matrix(str, "b", &g->b);
  print_matrix(str, "y", &g->y);
  print_matrix(str, "add", &g->add);
  print_matrix(str, "aux", &g->aux);
  if (g->bias != NULL) base_str_printf(str, ", bias = %%%u", g->bias->node->id);
  base_str_add(str, "\n");
}

static void print_group(struct base_str *str, size_t number, const struct pass_group *group) {
  base_str_printf(str, "group %zu %s %016llx: %zu nodes, estimated %.2f times as fast as apart (needs %.2f)\n", number,
                  pass_kind_names[group->kind], (unsigned long long)group->hash, group->n_nodes, group->speedup,
                  group->threshold);
  print_space(str, group);
  if (group->gemm != NULL) print_gemm(str, group->gemm);
  for (size_t i = 0; i < group->n_ins; i++) {
    base_str_add(str, "  in  ");
    print_tensor(str, group->ins[i]);
    base_str_add(str, "\n");
  }
  for (size_t i = 0; i < group->n_nodes; i++) {
    const struct ir_node *node = group->nodes[i];
    base_str_add(str, "      ");
    print_tensor(str, &node->out[0]);
    base_str_add(str, " of");
    for (int k = 0; k < node->n_src; k++) base_str_printf(str, " %%%u", node->src[k]->node->id);
    base_str_add(str, "\n");
  }
  for (size_t i = 0; i < group->n_stages + group->n_column_reductions; i++) {
    bool cross = i >= group->n_stages;
    const struct pass_stage *stage = cross ? &group->column_reductions[i - group->n_stages] : &group->stages[i];
    const struct ir_node *node = stage->node;
    base_str_printf(str, "  %s %%%u", cross ? "column" : "stage", node->id);
    print_indices(str, "of", node->src[0]->rank, (const struct pass_index *const *)stage->source);
    if (stage->other != NULL)
      print_indices(str, "and", node->src[1]->rank, (const struct pass_index *const *)stage->other);
    print_indices(str, "at", node->out[0].rank, (const struct pass_index *const *)stage->result);
    base_str_add(str, "\n");
  }
  for (size_t i = 0; i < group->n_outs; i++) {
    base_str_add(str, "  out ");
    print_tensor(str, group->outs[i].tensor);
    print_indices(str, "at", group->outs[i].tensor->rank, (const struct pass_index *const *)group->outs[i].at);
    base_str_add(str, "\n");
  }
}

quern_status pass_groups_print(struct base_str *str, const struct pass_groups *groups) {
  for (size_t i = 0; i < groups->groups.n; i++) print_group(str, i, groups->groups.at[i]);
  return base_str_status(str);
}
