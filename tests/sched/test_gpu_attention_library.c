/* tests/sched/test_gpu_attention_library.c -- attention by a library: which composites become calls, with which views, and that nothing is copied
** All of it runs by the kernel interpreter, and is compared with the evaluator of the graph.
*/
#include "quern/grad.h"
#include "sched/run.h"

static const struct base_target gpu = RUN_CARD("sm_90", BASE_LIBRARY_DNN);

/* What became of a graph. */
struct outcome {
  int claims, maps, calls;
  struct kern_library_call last; /* of the last group that is a call */
};

static void run_one(const struct pass_group *group, const struct base_target *target, bool fast, bool plain,
                    struct run_memory *memory, struct outcome *outcome) {
  struct sched sched;
  struct kern *kern = NULL;
  sched_choose(&sched, group, target, 1);
  sched.fast = fast;
  sched.no_library = plain;
  EXPECT_OK(sched_lower(&kern, &ctx->heap, ctx, group, target, &sched));
  EXPECT_OK(kern_verify(kern, NULL));
  outcome->calls += kern->library_call.kind != KERN_LIBRARY_NONE;
  if (kern->library_call.kind != KERN_LIBRARY_NONE) outcome->last = kern->library_call;
  run_kernel(kern, group, memory);
  kern_free(kern);
}

/* Runs the roots for a target; list: passes; plain: the library refuses. */
static struct outcome run_roots(const struct base_target *target, const char *list, bool fast, bool plain, size_t n,
                                quern_tensor *const *roots, void **dst) {
  struct pass_options options = {0};
  struct pass_groups groups;
  struct pass_report reports[PASS_COUNT];
  struct run_memory *memory = calloc(1, sizeof *memory);
  struct outcome outcome = {0};
  quern_tensor *after[8];
  assert_true(memory != NULL && n <= BASE_COUNT(after));
  EXPECT_OK(pass_options_parse(&options, 1, list));
  options.target = target;
  options.supports = sched_supports;
  memcpy(after, roots, n * sizeof *after);
  struct pass_graph graph = {.ctx = ctx, .n_roots = n, .roots = after};
  EXPECT_OK(pass_run(&graph, &options, reports));
  EXPECT_OK(ir_verify(ctx, n, after));
  EXPECT_OK(pass_fuse(&groups, &graph, &options));
  EXPECT_OK(pass_groups_verify(&groups, &graph));
  for (size_t i = 0; i < groups.groups.n; i++) {
    const struct pass_group *group = groups.groups.at[i];
    outcome.claims += group->kind == PASS_KIND_COMPOSITE;
    outcome.maps += group->kind == PASS_KIND_MAP;
    if (group->kind == PASS_KIND_VIEW)
      memcpy(run_add(memory, group->outs[0].tensor), run_find(memory, group->ins[0]), ir_bytes(group->outs[0].tensor));
    else
      run_one(group, target, fast, plain, memory, &outcome);
  }
  for (size_t i = 0; i < n; i++) memcpy(dst[i], run_find(memory, after[i]), ir_bytes(after[i]));
  for (size_t i = 0; i < memory->n; i++) free(memory->at[i].data);
  free(memory);
  pass_groups_fini(&groups);
  return outcome;
}

static struct outcome expect_near(const struct base_target *target, const char *list, bool fast, bool plain, size_t n,
                                  quern_tensor *const *roots) {
  void *want[8], *got[8];
  for (size_t i = 0; i < n; i++) {
    assert_false(quern_tensor_is_poison(roots[i]));
    want[i] = malloc(ir_bytes(roots[i]) + 64);
    got[i] = malloc(ir_bytes(roots[i]) + 64);
  }
  EXPECT_OK(ir_eval(ctx, n, roots, want, 0, NULL));
  struct outcome outcome = run_roots(target, list, fast, plain, n, roots, got);
  for (size_t i = 0; i < n; i++) {
    for (int64_t k = 0; k < ir_count(roots[i]); k++) {
      if (run_near(roots[i]->dtype, got[i], want[i], k)) continue;
      fail_msg("root %zu, element %lld is %.9g, evaluated %.9g", i, (long long)k,
               base_load_float(roots[i]->dtype, got[i], (size_t)k),
               base_load_float(roots[i]->dtype, want[i], (size_t)k));
    }
    free(want[i]), free(got[i]);
  }
  return outcome;
}

/* Calls of the library, and the same groups by code of our own where it refuses them. */
static struct outcome expect_run(const struct base_target *target, const char *list, bool fast, size_t n,
                                 quern_tensor *const *roots) {
  struct base_target tiles = *target;
  tiles.shared_bytes = 227 << 10;
  struct outcome called = expect_near(target, list, fast, false, n, roots);
  struct outcome refused = expect_near(&tiles, list, fast, true, n, roots);
  assert_int_equal(refused.calls, 0);
  assert_true(refused.claims >= called.claims);
  return called;
}

struct shape {
  int64_t b, h, g, s, t, d, e;
  bool causal;
};

static quern_tensor *heads(quern_tensor *x, int64_t n) {
  int64_t dims[] = {x->dims[0], x->dims[1], n, x->dims[2] / n};
  return quern_transpose(quern_reshape(x, 4, dims), 1, 2);
}

/* (b, s, columns) -> (b, s, h e), as a layer does it. */
static quern_tensor *attend(quern_tensor *qkv, const struct shape *p) {
  int64_t q = p->h * p->d, k = q + p->g * p->d;
  quern_tensor *parts[] = {quern_slice(qkv, 2, 0, q, 1), quern_slice(qkv, 2, q, k, 1),
                           quern_slice(qkv, 2, k, k + p->g * p->e, 1)};
  quern_attention_options options = {.size = sizeof options, .causal = p->causal};
  quern_tensor *of_q = heads(parts[0], p->h), *of_k = heads(parts[1], p->g), *of_v = heads(parts[2], p->g);
  quern_tensor *y = quern_attention(of_q, of_k, of_v, NULL, &options, NULL);
  return quern_reshape(quern_transpose(y, 1, 2), 3, (int64_t[]){p->b, p->s, p->h * p->e});
}

/* The sum of y g, so that its gradient to y is g. */
static quern_tensor *weighed(quern_tensor *y, uint64_t seed) {
  quern_tensor *g = quern_cast(run_data(y->dtype, y->rank, y->dims, seed), QUERN_DTYPE_F32);
  return quern_sum(quern_mul(quern_cast(y, QUERN_DTYPE_F32), g), 0, NULL, false);
}

/* Packed operands are read where they lie, and all gradients written side by side: no kernel but the two calls moves anything. */
static void test_packed(void **state) {
  (void)state;
  static const struct shape shapes[] = {{2, 4, 4, 16, 16, 8, 8, true},
                                        {1, 4, 2, 9, 9, 16, 16, true},
                                        {3, 2, 1, 7, 7, 8, 8, false},
                                        {1, 1, 1, 5, 5, 24, 24, true}};
  for (size_t i = 0; i < BASE_COUNT(shapes); i++) {
    const struct shape *p = &shapes[i];
    for (int half = 0; half < 2; half++) {
      int64_t w = p->h * p->d + p->g * (p->d + p->e);
      quern_tensor *qkv = run_data(half ? QUERN_DTYPE_F16 : QUERN_DTYPE_BF16, 3, (int64_t[]){p->b, p->s, w}, 5 + i);
      quern_tensor *y = attend(qkv, p), *loss = weighed(y, 9), *roots[3] = {loss, y};
      EXPECT_OK(quern_grad(loss, 1, &qkv, &roots[2]));
      struct outcome one = expect_run(&gpu, NULL, false, 2, roots);
      assert_int_equal(one.claims, 1);
      assert_int_equal(one.calls, 1);
      assert_int_equal(one.maps, 0);
      const struct kern_attention *a = &one.last.attention;
      assert_int_equal(one.last.kind, KERN_LIBRARY_ATTENTION);
      assert_int_equal(a->q.mem, a->v.mem);
      assert_int_equal(a->k.at, p->h * p->d);
      assert_int_equal(a->v.at, (p->h + p->g) * p->d);
      assert_int_equal(a->q.row, w);
      assert_int_equal(a->y.row, p->h * p->e);
      assert_true(a->exact && a->causal == p->causal && a->kv_heads == p->g);

      struct outcome both = expect_run(&gpu, NULL, true, 3, roots);
      assert_int_equal(both.claims, 2);
      a = &both.last.attention;
      assert_int_equal(both.last.kind, KERN_LIBRARY_ATTENTION_BACK);
      assert_int_equal(a->dq.mem, a->dv.mem);
      assert_int_equal(a->dk.at, a->k.at);
      assert_int_equal(a->dv.row, w);
      assert_false(a->exact);
      assert_int_equal(both.maps, 0);
    }
  }
}

/* Operands and results that lie as the composite has them, with and without the pass, and in other ways. */
static void test_dense(void **state) {
  (void)state;
  static const struct shape shapes[] = {{2, 2, 2, 5, 5, 8, 8, true},    {1, 4, 2, 6, 13, 8, 16, true},
                                        {2, 2, 1, 13, 6, 16, 8, false}, {1, 1, 1, 1, 9, 8, 8, true},
                                        {1, 2, 2, 3, 1, 128, 8, false}, {1, 1, 1, 2, 2, 256, 256, true},
                                        {2, 3, 3, 4, 4, 8, 8, true}};
  for (size_t i = 0; i < BASE_COUNT(shapes); i++) {
    const struct shape *p = &shapes[i];
    quern_tensor *q = run_data(QUERN_DTYPE_BF16, 4, (int64_t[]){p->b, p->h, p->s, p->d}, 1);
    quern_tensor *k = run_data(QUERN_DTYPE_BF16, 4, (int64_t[]){p->b, p->g, p->t, p->d}, 2);
    quern_tensor *v = run_data(QUERN_DTYPE_BF16, 4, (int64_t[]){p->b, p->g, p->t, p->e}, 3), *lse;
    quern_attention_options options = {.size = sizeof options, .causal = p->causal, .scale = 0.2};
    quern_tensor *y = quern_attention(q, k, v, NULL, &options, &lse), *loss = weighed(y, 4), *in[] = {q, k, v};
    quern_tensor *roots[6] = {loss, y, lse};
    EXPECT_OK(quern_grad(loss, 3, in, roots + 3));
    static const char *const lists[] = {NULL, "-attention_views", "-layout,-simplify", "-fuse"};
    for (size_t l = 0; l < BASE_COUNT(lists); l++) {
      struct outcome outcome = expect_run(&gpu, lists[l], false, 6, roots);
      assert_int_equal(outcome.claims, 2);
      assert_int_equal(outcome.calls, 2);
    }
  }
}

/* Results that are used otherwise than side by side are written each by itself, and attention is done once all the same. */
static void test_shared_results(void **state) {
  (void)state;
  const struct shape p = {2, 2, 2, 6, 6, 8, 8, true};
  quern_tensor *x[3], *in[3], *roots[6];
  for (int i = 0; i < 3; i++) {
    x[i] = run_data(QUERN_DTYPE_BF16, 3, (int64_t[]){p.b, p.s, p.h * p.d}, (uint64_t)i + 1);
    in[i] = heads(x[i], p.h);
  }
  quern_attention_options options = {.size = sizeof options, .causal = true};
  quern_tensor *y = quern_attention(in[0], in[1], in[2], NULL, &options, NULL);
  quern_tensor *turn = quern_transpose(y, 1, 2), *loss = weighed(y, 4);
  roots[0] = loss;
  roots[1] = quern_add(quern_transpose(turn, 1, 2), y); /* both ways */
  roots[2] = turn;
  EXPECT_OK(quern_grad(loss, 3, x, roots + 3));
  assert_int_equal(expect_run(&gpu, NULL, false, 6, roots).claims, 2);

  quern_tensor *whole = quern_concat(3, roots + 3, 2), *again = quern_neg(roots[3]);
  quern_tensor *more[] = {whole, again}; /* a concat that is not all that uses them */
  assert_int_equal(expect_run(&gpu, NULL, false, 2, more).claims, 2);
  quern_tensor *other[] = {quern_concat(3, (quern_tensor *[]){roots[5], roots[3], roots[4]}, 2)};
  struct outcome outcome = expect_run(&gpu, NULL, false, 1, other); /* in another order */
  assert_int_equal(outcome.claims, 2);
  assert_int_equal(outcome.last.attention.dq.at, p.h * p.d);
  assert_int_equal(outcome.last.attention.dv.at, 0);
}

/* Slices of rows and of batches; those that the library cannot be told of are copied. */
static void test_slices(void **state) {
  (void)state;
  quern_tensor *x = run_data(QUERN_DTYPE_BF16, 4, (int64_t[]){3, 9, 5, 20}, 1);
  quern_attention_options options = {.size = sizeof options};
  quern_tensor *at[2], *y[2];
  for (int i = 0; i < 2;
       i++) { /* (2, 3, 7, 8) of it: at a multiple of 8 elements from the start, rows 20 apart; and not */
    quern_tensor *part = quern_slice(quern_slice(quern_slice(x, 0, 1, 3, 1), 1, 2, 9, 1), 2, 0, 3, 1);
    at[i] = quern_transpose(quern_slice(part, 3, 4 * (i + 1), 4 * (i + 1) + 8, 1), 1, 2);
    y[i] = quern_attention(at[i], at[i], at[i], NULL, &options, NULL);
  }
  struct outcome outcome = expect_run(&gpu, NULL, false, 2, y);
  assert_int_equal(outcome.claims, 2);
  quern_tensor *wide = run_data(QUERN_DTYPE_BF16, 4, (int64_t[]){3, 9, 5, 24}, 2);
  quern_tensor *part = quern_transpose(quern_slice(quern_slice(wide, 1, 2, 9, 2), 3, 8, 24, 1), 1, 2);
  quern_tensor *z = quern_attention(part, part, part, NULL, &options, NULL);
  outcome = expect_run(&gpu, NULL, false, 1, &z);
  assert_int_equal(outcome.maps, 0);
  assert_int_equal(outcome.last.attention.k.at, 2 * 5 * 24 + 8);
  assert_int_equal(outcome.last.attention.k.row, 2 * 5 * 24);
  assert_int_equal(outcome.last.attention.k.head, 24);
}

/* What is claimed and what is not. */
static bool is_claimed(const struct base_target *target, quern_dtype dtype, const struct shape *p, quern_tensor *mask) {
  quern_tensor *q = run_data(dtype, 4, (int64_t[]){p->b, p->h, p->s, p->d}, 1);
  quern_tensor *k = run_data(dtype, 4, (int64_t[]){p->b, p->g, p->t, p->d}, 2);
  quern_tensor *v = run_data(dtype, 4, (int64_t[]){p->b, p->g, p->t, p->e}, 3);
  quern_attention_options options = {.size = sizeof options, .causal = p->causal};
  return sched_supports(target, quern_attention(q, k, v, mask, &options, NULL)->node);
}

static void test_claims(void **state) {
  (void)state;
  const struct shape good = {1, 2, 1, 4, 4, 16, 16, true};
  struct base_target none = gpu, older = gpu, host = gpu;
  none.capabilities = BASE_LIBRARY_BLAS;
  older.name = "sm_80";
  host.gpu = false;
  assert_true(is_claimed(&gpu, QUERN_DTYPE_BF16, &good, NULL));
  assert_true(is_claimed(&gpu, QUERN_DTYPE_F16, &good, NULL));
  assert_true(is_claimed(&older, QUERN_DTYPE_BF16, &good, NULL));
  assert_false(is_claimed(&none, QUERN_DTYPE_BF16, &good, NULL));
  assert_false(is_claimed(&gpu, QUERN_DTYPE_F32, &good, NULL));
  assert_true(is_claimed(&host, QUERN_DTYPE_F32, &good, NULL)); /* by a kernel of its own */
  quern_tensor *mask = run_data(QUERN_DTYPE_BF16, 4, (int64_t[]){1, 1, 4, 4}, 7);
  assert_false(is_claimed(&gpu, QUERN_DTYPE_BF16, &good, mask));
  static const struct shape bad[] = {{1, 2, 1, 4, 4, 12, 16, true},
                                     {1, 2, 1, 4, 4, 16, 12, true},
                                     {1, 2, 1, 5, 4, 16, 16, true},
                                     {1, 1, 1, 4, 4, 264, 8, true},
                                     {0, 2, 1, 4, 4, 16, 16, true}};
  for (size_t i = 0; i < BASE_COUNT(bad); i++) assert_false(is_claimed(&gpu, QUERN_DTYPE_BF16, &bad[i], NULL));
  const struct shape wide = {1, 1, 1, 4, 4, 136, 136, false};
  assert_true(is_claimed(&gpu, QUERN_DTYPE_BF16, &wide, NULL));
  assert_false(is_claimed(&older, QUERN_DTYPE_BF16, &wide, NULL));
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_packed), TEST(test_dense), TEST(test_shared_results), TEST(test_slices),
                                     TEST(test_claims)};
  return cmocka_run_group_tests_name("sched/attention_call", tests, NULL, NULL);
}
