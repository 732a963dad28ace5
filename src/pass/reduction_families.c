/* pass/reduction_families.c -- fusion: which reductions meet later
** g - p sum(g), with p the softmax of x: the sum over rows of g and the maximum over rows of x have no tensor in common
** when they are made, but what is computed from them meets. A reduction and all that elementwise ops and movement
** make of it belong to its family; families over as many rows of as many terms that meet are one. A hint only: whether
** a reduction can join a cluster of its family is proven as always.
** tests: tests/pass/test_fuse.c (log_softmax backward)
*/
#include "pass/pass_int.h"

static int root_of(struct fuse *f, int family) {
  while (f->families.at[family].same != family) {
    f->families.at[family].same = f->families.at[f->families.at[family].same].same;
    family = f->families.at[family].same;
  }
  return family;
}

struct fuse_family *fuse_family_of(struct fuse *f, const struct fuse_node_info *info) {
  return &f->families.at[root_of(f, info->family)];
}

/* The family of a and b, made one when they are alike. */
static int joined(struct fuse *f, int a, int b) {
  if (a < 0 || b < 0) return a < 0 ? b : a;
  a = root_of(f, a);
  b = root_of(f, b);
  const struct fuse_family *x = &f->families.at[a], *y = &f->families.at[b];
  if (x->outer != y->outer || x->inner != y->inner) return a;
  f->families.at[BASE_MAX(a, b)].same = BASE_MIN(a, b);
  return BASE_MIN(a, b);
}

quern_status fuse_find_families(struct fuse *f) {
  for (size_t i = 0; i < f->order.n; i++) {
    const struct ir_node *node = f->order.at[i];
    enum pass_class class = pass_ops[node->op].class;
    bool reduces = pass_ops[node->op].kind == PASS_KIND_REDUCE;
    int family = -1;
    if (reduces) {
      int64_t outer = ir_count(&node->out[0]);
      struct fuse_family made = {(int)f->families.n, outer, ir_count(node->src[0]) / BASE_MAX(outer, 1), -1};
      family = made.same;
      if (!base_vec_push(f->heap, &f->families, made)) return QUERN_STATUS_MEMORY;
    }
    for (int k = 0; k < node->n_src && (reduces || class == PASS_CLASS_MATH || class == PASS_CLASS_MOVE); k++)
      family = joined(f, family, fuse_info_of(f, node->src[k])->family);
    f->infos[i].family = family;
  }
  return QUERN_STATUS_OK;
}
