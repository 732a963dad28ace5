/* tests/tensor/test_compound.c -- what holds of every compound operation
** Errors are clean when memory runs out, graphs verify, values survive inlining and rewriting.
*/
#include "tensor/compound_test.h"

typedef quern_tensor *builder(void);

static quern_tensor *input(int rank, const int64_t *dims) {
  return quern_input(ctx, "x", QUERN_DTYPE_BF16, rank, dims);
}
static quern_tensor *rows(void) { return input(QUERN_LIST(3, 4)); }
static quern_tensor *planes(void) { return input(QUERN_LIST(2, 4, 6)); }
static quern_tensor *ids(void) { return quern_zeros(ctx, QUERN_DTYPE_I64, QUERN_LIST(3)); }

static quern_tensor *sigmoid(void) { return quern_sigmoid(rows()); }
static quern_tensor *softplus(void) { return quern_softplus(rows()); }
static quern_tensor *silu(void) { return quern_silu(rows()); }
static quern_tensor *gelu(void) { return quern_gelu(rows()); }
static quern_tensor *gelu_tanh(void) { return quern_gelu_tanh(rows()); }
static quern_tensor *gelu_quick(void) { return quern_gelu_quick(rows()); }
static quern_tensor *mish(void) { return quern_mish(rows()); }
static quern_tensor *elu(void) { return quern_elu(rows(), 1); }
static quern_tensor *swiglu(void) { return quern_swiglu(rows(), -1); }
static quern_tensor *softmax(void) { return quern_softmax(rows(), 1); }
static quern_tensor *log_softmax(void) { return quern_log_softmax(rows(), 0); }
static quern_tensor *layer_norm(void) {
  return quern_layer_norm(rows(), 1, input(QUERN_LIST(4)), input(QUERN_LIST(4)), 1e-5);
}
static quern_tensor *rms_norm(void) { return quern_rms_norm(rows(), 1, input(QUERN_LIST(4)), 1e-5); }
static quern_tensor *group_norm(void) { return quern_group_norm(planes(), 2, NULL, input(QUERN_LIST(4)), 1e-5); }
static quern_tensor *batch_norm(void) {
  const quern_batch_norm_options o = {.size = sizeof o, .train = true, .momentum = 0.1, .eps = 1e-5};
  quern_tensor *mean, *var, *four = input(QUERN_LIST(4)),
                            *y = quern_batch_norm(planes(), four, four, four, four, &o, &mean, &var);
  return quern_add(y, quern_reshape(quern_add(mean, var), QUERN_LIST(1, 4, 1)));
}
static quern_tensor *conv1d(void) {
  const quern_conv_options o = {.size = sizeof o, .stride = {2}, .pad_lo = {1}, .groups = 2};
  return quern_conv1d(planes(), input(QUERN_LIST(6, 2, 3)), input(QUERN_LIST(6)), &o);
}
static quern_tensor *conv_transpose1d(void) {
  const quern_conv_options o = {.size = sizeof o, .stride = {2}, .pad_lo = {1}, .output_pad = {1}, .groups = 2};
  return quern_conv_transpose1d(planes(), input(QUERN_LIST(4, 2, 3)), input(QUERN_LIST(4)), &o);
}
static quern_tensor *max_pool(void) {
  return quern_max_pool(planes(),
                        &(quern_pool_options){.size = sizeof(quern_pool_options), .window = {3}, .pad_lo = {1}});
}
static quern_tensor *avg_pool(void) {
  return quern_avg_pool(planes(),
                        &(quern_pool_options){.size = sizeof(quern_pool_options), .window = {3}, .pad_lo = {1}});
}
static quern_tensor *adaptive(void) { return quern_adaptive_avg_pool(planes(), QUERN_LIST(4)); }
static quern_tensor *attention(void) {
  const quern_attention_options o = {.size = sizeof o, .causal = true};
  quern_tensor *lse, *kv = input(QUERN_LIST(1, 1, 3, 2));
  quern_tensor *y = quern_attention(input(QUERN_LIST(1, 2, 3, 2)), kv, kv, input(QUERN_LIST(3, 3)), &o, &lse);
  return quern_add(y, quern_unsqueeze(quern_cast(lse, QUERN_DTYPE_BF16), -1));
}
static quern_tensor *rope(void) { return quern_rope(rows(), quern_scalar_int(ctx, QUERN_DTYPE_I64, 3), 100, true); }
static quern_tensor *sinusoidal(void) { return quern_mul(rows(), quern_sinusoidal(ctx, QUERN_DTYPE_BF16, 3, 4, 100)); }
static quern_tensor *cross_entropy(void) { return quern_cross_entropy(rows(), ids(), NULL); }
static quern_tensor *linear_cross_entropy(void) {
  const quern_cross_entropy_options o = {.size = sizeof o, .label_smoothing = 0.1, .ignore = true, .ignore_index = 7};
  return quern_linear_cross_entropy(rows(), input(QUERN_LIST(5, 4)), ids(), &o);
}
static quern_tensor *bce(void) { return quern_bce_loss(rows(), rows(), QUERN_REDUCTION_MEAN); }
static quern_tensor *focal(void) { return quern_focal_loss(rows(), rows(), 0.5, 2, QUERN_REDUCTION_MEAN); }
static quern_tensor *cosine(void) { return quern_cosine_similarity(rows(), rows(), 1, 1e-4); }
static quern_tensor *triplet(void) { return quern_triplet_loss(rows(), rows(), rows(), 1, QUERN_REDUCTION_MEAN); }

static builder *const all[] = {
    sigmoid,
    softplus,
    silu,
    gelu,
    gelu_tanh,
    gelu_quick,
    mish,
    elu,
    swiglu,
    softmax,
    log_softmax,
    layer_norm,
    rms_norm,
    group_norm,
    batch_norm,
    conv1d,
    conv_transpose1d,
    max_pool,
    avg_pool,
    adaptive,
    attention,
    rope,
    sinusoidal,
    cross_entropy,
    linear_cross_entropy,
    bce,
    focal,
    cosine,
    triplet,
};

/* The leaves that y reaches. */
static size_t leaves_of(quern_tensor *y, quern_tensor **leaves, size_t most) {
  struct ir_order order = {0};
  size_t n = 0;
  if (ir_topo(ctx, 1, &y, &order) != QUERN_STATUS_OK) return 0;
  for (size_t i = 0; i < order.n && n < most; i++) {
    if (order.at[i]->op == IR_INPUT) leaves[n++] = &order.at[i]->out[0];
  }
  ir_order_fini(ctx, &order);
  return n;
}

/* Builds an expression and its gradients; the status of it all. */
static quern_status build_all(builder *build) {
  quern_tensor *y = build(), *leaves[8], *dx[8];
  QUERN_TRY(quern_context_check(ctx));
  assert_false(quern_tensor_is_poison(y));
  size_t n = leaves_of(y, leaves, 8);
  if (n == 0) return QUERN_STATUS_MEMORY;
  return quern_grad(quern_sum(y, QUERN_ALL, false), n, leaves, dx);
}

/* Each allocation fails once: MEMORY each time, and nothing is left. */
static void memory_runs_out(void **state) {
  (void)state;
  for (size_t i = 0; i < BASE_COUNT(all); i++) {
    struct fault fault = {0};
    while (fault_next(&fault)) {
      test_renew();
      fault_begin(&fault);
      quern_status status = build_all(all[i]);
      fault_end(&fault);
      EXPECT_FAULT(&fault, status);
      assert_true(fault.n < 100000);
    }
  }
}

/* The arena has so many bytes left and gets no more: any node may be the first that cannot be made. */
static void arena_runs_out(void **state) {
  (void)state;
  for (size_t i = 0; i < BASE_COUNT(all); i++) {
    quern_status status = QUERN_STATUS_MEMORY;
    const size_t chunk = 64 << 10, step = 400;
    int failures = 0;
    for (size_t used = chunk / step * step; status != QUERN_STATUS_OK && used >= step; used -= step) {
      test_renew();
      assert_non_null(base_arena_alloc(&ctx->arena, 1)); /* the first chunk */
      memory_largest = chunk - 1;
      if (used <= chunk - ctx->arena.used) {
        assert_non_null(base_arena_alloc(&ctx->arena, used));
        status = build_all(all[i]);
        assert_true(status == QUERN_STATUS_OK || status == QUERN_STATUS_MEMORY);
        failures += status != QUERN_STATUS_OK;
      }
      memory_largest = MEMORY_LARGEST;
    }
    assert_true(failures > 5);
  }
}

/* Each node of the expression and of its gradients is sound. */
static void verified(void **state) {
  (void)state;
  for (size_t i = 0; i < BASE_COUNT(all); i++) {
    quern_tensor *leaves[8], *roots[9];
    roots[0] = all[i]();
    test_ok(roots[0], __FILE__, __LINE__);
    size_t n = leaves_of(roots[0], leaves, 8);
    test_expect_ok(quern_grad(quern_sum(roots[0], QUERN_ALL, false), n, leaves, roots + 1), __FILE__, __LINE__);
    test_expect_ok(ir_verify(ctx, n + 1, roots), __FILE__, __LINE__);
    for (size_t k = 0; k < n; k++) assert_true(ir_same_type(roots[1 + k], leaves[k]));
  }
}

/* Inlining changes no bit, and neither do the exact rules. */
static void inlined(void **state) {
  (void)state;
  for (size_t i = 0; i < BASE_COUNT(all); i++) {
    quern_tensor *leaves[8], *y = all[i](), *plain, *simple;
    size_t n = leaves_of(y, leaves, 8);
    quern_feed feeds[8];
    uint16_t *data[8];
    for (size_t k = 0; k < n; k++) {
      size_t count = (size_t)ir_count(leaves[k]);
      double *reals = malloc(count * sizeof *reals);
      data[k] = malloc(count * sizeof *data[k]);
      test_fill(count, reals, 40 + k);
      assert_int_equal(quern_dtype_convert(data[k], QUERN_DTYPE_BF16, reals, QUERN_DTYPE_F64, count), QUERN_STATUS_OK);
      free(reals);
      feeds[k] = (quern_feed){leaves[k], data[k]};
    }
    test_expect_ok(ir_inline_composites(ctx, 1, &y, &plain), __FILE__, __LINE__);
    test_expect_ok(ir_rewrite(ctx, 1, &plain, &(struct ir_rewrite_options){0}, &simple), __FILE__, __LINE__);
    double *a = test_values(y, n, feeds, __FILE__, __LINE__), *b = test_values(plain, n, feeds, __FILE__, __LINE__);
    double *c = test_values(simple, n, feeds, __FILE__, __LINE__);
    size_t bytes = (size_t)ir_count(y) * sizeof *a;
    assert_memory_equal(a, b, bytes);
    assert_memory_equal(a, c, bytes);
    free(a);
    free(b);
    free(c);
    for (size_t k = 0; k < n; k++) free(data[k]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(memory_runs_out), TEST(arena_runs_out), TEST(verified), TEST(inlined)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
