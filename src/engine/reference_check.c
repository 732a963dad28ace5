/* engine/reference_check.c -- QUERN_REF=1: every kernel is compared with the evaluator
** A group becomes a small graph on inputs of its own; what its kernel reads is kept, evaluated, and compared with
** what it wrote.
** keeps: the small graphs are the program's own; its instances run one at a time
** tests: tests/engine/test_reference_check.c
*/
#include <math.h>

#include "engine/engine.h"

struct engine_ref {
  int n_ins, n_outs;
  quern_tensor **ins;  /* inputs that stand for what the group reads */
  quern_tensor **outs; /* what it writes, in terms of them */
  bool from_floats;    /* reads floats: integers that come of them may differ */
  double terms;        /* of the longest sum */
  double narrow;       /* half a unit of the last place of the narrowest float that it rounds to on the way */
  int64_t most;        /* rows of the dynamic batch, and their strides in outs, 0 where there are none */
  int64_t *strides;
};

enum { NEIGHBORS = 8 };

/* How far a result may be from the evaluator's, relative to the largest of the tensor, or of what it is made from: kernels
** sum in another order, and use polynomials where it uses the C library. Chains of roundings in a group add up, and so do
** those of long sums, by how many terms one can have. A narrower float on the way rounds to one neighbor or to the other. */
static double bound_of(const struct engine_ref *ref, quern_dtype dtype) {
  double own = BASE_MAX(ref->terms, 64) * ldexp(1, -base_dtypes[dtype].mantissa - 1);
  return BASE_MAX(own, NEIGHBORS * ref->narrow);
}

/* How many terms an element of a node's result is the sum of. */
static double terms_of(const struct ir_node *node) {
  double n = 1;
  for (int i = 0; i < node->attrs->a_sum.n && node->op == IR_DOT; i++)
    n *= (double)node->src[0]->dims[node->attrs->a_sum.at[i]];
  if (node->op == IR_REDUCE) n = (double)ir_count(node->src[0]) / (double)BASE_MAX(ir_count(&node->out[0]), 1);
  return n;
}

/* Of integers, bools and masks that floats decide, as many in a hundred may differ. */
enum { PERCENT = 2 };

/* Copies a group that reads leaves only into the program's context. */
static quern_status copy_group(struct engine_ref *ref, quern_context *ctx, quern_program *program,
                               quern_tensor *const *ins, quern_tensor *const *outs) {
  struct base_arena *arena = &program->arena;
  struct engine_canon canon;
  QUERN_TRY(engine_canon_make(&canon, arena, ctx, (size_t)ref->n_outs, outs));
  quern_tensor **leaves = base_arena_alloc(arena, canon.n_leaves * sizeof *leaves);
  quern_status status = leaves != NULL ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
  if (status == QUERN_STATUS_OK)
    status = engine_copy(program->ref_ctx, &canon, (size_t)ref->n_outs, outs, ref->outs, leaves);
  for (int i = 0; i < ref->n_ins && status == QUERN_STATUS_OK; i++) {
    for (size_t k = 0; k < canon.n_leaves; k++)
      if (canon.leaves[k] == ins[i]->node) ref->ins[i] = leaves[k];
    if (ref->ins[i] == NULL) ref->ins[i] = ir_leaf(program->ref_ctx, ins[i]->dtype, ins[i]->rank, ins[i]->dims);
    if (ir_is_poison(ref->ins[i])) status = ir_poison_error(program->ref_ctx);
  }
  engine_canon_fini(&canon);
  return status;
}

quern_status engine_ref_make(struct engine_ref **ref, quern_context *ctx, quern_program *program,
                             const struct pass_group *group, const struct pass_dynamic_batch *rows) {
  struct base_arena *arena = &program->arena;
  struct engine_ref *made = base_arena_new(arena, struct engine_ref);
  if (made == NULL) return QUERN_STATUS_MEMORY;
  size_t n_ins = group->n_ins, n_outs = group->n_outs;
  made->n_ins = (int)n_ins;
  made->n_outs = (int)n_outs;
  made->ins = base_arena_alloc(arena, (n_ins + 1) * sizeof *made->ins);
  made->outs = base_arena_alloc(arena, (n_outs + 1) * sizeof *made->outs);
  made->strides = base_arena_alloc(arena, (n_outs + 1) * sizeof *made->strides);
  quern_tensor **ins = base_arena_alloc(arena, (n_ins + 1) * sizeof *ins);
  quern_tensor **outs = base_arena_alloc(arena, (n_outs + 1) * sizeof *outs);
  if (made->ins == NULL || made->outs == NULL || made->strides == NULL || ins == NULL || outs == NULL)
    return QUERN_STATUS_MEMORY;
  made->most = rows != NULL ? rows->most : 1;
  made->terms = 1;
  for (size_t i = 0; i < group->n_nodes; i++) {
    quern_dtype dtype = group->nodes[i]->out[0].dtype;
    made->terms = BASE_MAX(made->terms, terms_of(group->nodes[i]));
    if (base_dtype_is(dtype, BASE_FLOAT))
      made->narrow = BASE_MAX(made->narrow, ldexp(1, -base_dtypes[dtype].mantissa - 1));
  }
  for (size_t i = 0; i < n_ins; i++) {
    ins[i] = ir_leaf_like(group->ins[i]);
    made->from_floats = made->from_floats || base_dtype_is(group->ins[i]->dtype, BASE_FLOAT);
    if (ir_is_poison(ins[i])) return ir_poison_error(ctx);
  }
  for (size_t i = 0; i < n_outs; i++) {
    outs[i] = group->outs[i].tensor;
    made->strides[i] = rows != NULL ? pass_dynamic_batch_get(rows, outs[i]) : 0;
  }
  QUERN_TRY(ir_substitute(ctx, n_outs, outs, n_ins, group->ins, ins, outs));
  QUERN_TRY(copy_group(made, ctx, program, ins, outs));
  *ref = made;
  return QUERN_STATUS_OK;
}

static void drop(struct base_heap *heap, const struct engine_ref *ref, void **kept) {
  for (int i = 0; i < ref->n_ins + ref->n_outs; i++)
    base_free(heap, kept[i], ir_bytes(i < ref->n_ins ? ref->ins[i] : ref->outs[i - ref->n_ins]));
  base_free(heap, kept, (size_t)(ref->n_ins + ref->n_outs) * sizeof *kept);
}

quern_status engine_ref_before(const quern_instance *instance, const struct engine_step *step, void *const *mems,
                               void ***kept) {
  const struct engine_ref *ref = step->ref;
  struct base_heap *heap = &instance->program->ref_ctx->heap;
  int n = ref->n_ins + ref->n_outs;
  *kept = base_alloc_zero(heap, (size_t)n * sizeof **kept);
  if (*kept == NULL) return QUERN_STATUS_MEMORY;
  for (int i = 0; i < n; i++) {
    size_t bytes = ir_bytes(i < ref->n_ins ? ref->ins[i] : ref->outs[i - ref->n_ins]);
    (*kept)[i] = base_alloc(heap, bytes);
    quern_status status = (*kept)[i] != NULL ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
    if (status == QUERN_STATUS_OK && i < ref->n_ins) status = engine_download(instance, (*kept)[i], mems[i], bytes);
    if (status == QUERN_STATUS_OK) continue;
    drop(heap, ref, *kept);
    return status;
  }
  return QUERN_STATUS_OK;
}

/* ---- comparing ------------------------------------------------------------------------------------------- */

static double element(quern_dtype dtype, const void *data, int64_t i) {
  if (base_dtype_is(dtype, BASE_FLOAT)) return base_load_float(dtype, data, (size_t)i);
  uint64_t x = base_load_int(dtype, data, (size_t)i);
  return base_dtype_is(dtype, BASE_SIGNED) ? (double)(int64_t)x : (double)x;
}

/* True when two elements of a float type are as near as the scale asks. */
static bool near(double got, double expected, double bound) {
  if (isnan(got) || isnan(expected)) return isnan(got) && isnan(expected);
  if (isinf(got) || isinf(expected)) return got == expected;
  return fabs(got - expected) <= bound;
}

/* The elements of a tensor that count: those of the rows that a run has; stride 0: all. */
struct counted {
  int64_t stride, most, rows;
};
static bool counts(const struct counted *c, int64_t i) { return c->stride == 0 || i / c->stride % c->most < c->rows; }

/* The largest finite element of a float tensor; 0 of others. */
static double largest(const quern_tensor *t, const struct counted *c, const void *data) {
  double most = 0;
  for (int64_t i = 0; i < ir_count(t) && base_dtype_is(t->dtype, BASE_FLOAT); i++) {
    if (!counts(c, i)) continue;
    double x = fabs(element(t->dtype, data, i));
    if (isfinite(x)) most = fmax(most, x);
  }
  return most;
}

/* The first element that differs, or -1. least: the scale of a result whose terms cancel. */
static int64_t compare(const struct engine_ref *ref, const quern_tensor *t, const struct counted *c, double least,
                       const void *got, const void *expected, double *bound) {
  int64_t n = ir_count(t), first = -1, wrong = 0;
  bool floats = base_dtype_is(t->dtype, BASE_FLOAT);
  *bound = floats ? fmax(least, largest(t, c, expected)) * bound_of(ref, t->dtype) : 0;
  for (int64_t i = 0; i < n; i++) {
    if (!counts(c, i) || near(element(t->dtype, got, i), element(t->dtype, expected, i), *bound)) continue;
    if (wrong++ == 0) first = i;
  }
  bool tolerated = !floats && ref->from_floats && wrong * 100 <= n * PERCENT;
  return tolerated ? -1 : first;
}

static quern_status report(const quern_program *program, const struct engine_step *step, int out, int64_t at,
                           double got, double expected, double bound) {
  const struct engine_ref *ref = step->ref;
  struct base_str text;
  quern_context *ctx = program->ref_ctx;
  base_str_init(&text, &ctx->heap);
  quern_status status = ir_print(ctx, &text, (size_t)ref->n_outs, ref->outs, NULL);
  for (size_t i = 0; i < text.n; i++)
    if (text.at[i] == '\n') text.at[i] = ';';
  if (status == QUERN_STATUS_OK)
    status =
        base_error(QUERN_STATUS_INTERNAL,
                   "ref: kernel %s (%s %s) gives %.9g for element %lld of result %d, the evaluator %.9g (bound %.3g); "
                   "its graph: %.600s",
                   program->kernels[step->kernel]->name, step->kind_name, step->ops, got, (long long)at, out, expected,
                   bound, text.at);
  base_str_fini(&text);
  return status;
}

/* Compares out i with what the evaluator gives. */
static quern_status compare_element(const quern_instance *instance, const struct engine_step *step, int i, double least,
                                    const void *from, const void *expected) {
  const quern_program *program = instance->program;
  const struct engine_ref *ref = step->ref;
  struct base_heap *heap = &program->ref_ctx->heap;
  quern_dtype dtype = ref->outs[i]->dtype;
  size_t bytes = ir_bytes(ref->outs[i]);
  struct counted counted = {ref->strides[i], ref->most, instance->rows};
  void *got = base_alloc(heap, bytes);
  quern_status status = got != NULL ? engine_download(instance, got, from, bytes) : QUERN_STATUS_MEMORY;
  if (status == QUERN_STATUS_OK) {
    double bound;
    int64_t at = compare(ref, ref->outs[i], &counted, least, got, expected, &bound);
    if (at >= 0) status = report(program, step, i, at, element(dtype, got, at), element(dtype, expected, at), bound);
  }
  base_free(heap, got, bytes);
  return status;
}

quern_status engine_ref_after(const quern_instance *instance, const struct engine_step *step, void *const *mems,
                              void **kept, quern_status status) {
  const struct engine_ref *ref = step->ref;
  quern_context *ctx = instance->program->ref_ctx;
  struct ir_binding *bindings = NULL;
  size_t bytes = (size_t)ref->n_ins * sizeof *bindings;
  if (status == QUERN_STATUS_OK) {
    bindings = base_alloc(&ctx->heap, bytes);
    if (bindings == NULL) status = QUERN_STATUS_MEMORY;
  }
  if (status == QUERN_STATUS_OK) {
    for (int i = 0; i < ref->n_ins; i++) bindings[i] = (struct ir_binding){ref->ins[i], kept[i]};
    status = ir_eval(ctx, (size_t)ref->n_outs, ref->outs, kept + ref->n_ins, (size_t)ref->n_ins, bindings);
  }
  double least = 0; /* what is read, as far as it is not beyond 1 */
  for (int i = 0; i < ref->n_ins && status == QUERN_STATUS_OK; i++)
    least = fmin(1, fmax(least, largest(ref->ins[i], &(struct counted){0}, kept[i])));
  for (int i = 0; i < ref->n_outs && status == QUERN_STATUS_OK; i++)
    status = compare_element(instance, step, i, least, mems[ref->n_ins + i], kept[ref->n_ins + i]);
  base_free(&ctx->heap, bindings, bytes);
  drop(&ctx->heap, ref, kept);
  return status;
}
