/* tests/tensor/test_admit.c -- composites in texts: each kind is read back, and nothing but what its builder makes */
#include <math.h>

#include "quern/quern.h"
#include "tensor/kinds.h"
#include "unit.h"

static quern_tensor *in(int rank, const int64_t *dims) { return quern_input(ctx, "x", QUERN_DTYPE_F32, rank, dims); }
static quern_tensor *labels(int64_t n) { return quern_input(ctx, "labels", QUERN_DTYPE_I32, 1, &n); }

/* ---- one or more nodes of each kind --------------------------------------------------------------------- */

static quern_tensor *make_conv(bool transposed, int spatial, bool bias) {
  int64_t x[] = {1, 4, 5, 6, 7}, w[] = {4, 2, 3, 2, 1}, outputs = 4;
  quern_conv_options options = {
      .size = sizeof options, .groups = 2, .stride = {2, 1, 2}, .dilation = {1, 2, 1}, .pad_lo = {1}};
  quern_tensor *b = bias ? in(1, &outputs) : NULL, *a = in(2 + spatial, x), *c = in(2 + spatial, w);
  if (transposed) options.output_pad[0] = 1;
  if (transposed && spatial == 1) return quern_conv_transpose1d(a, c, b, &options);
  if (transposed)
    return spatial == 2 ? quern_conv_transpose2d(a, c, b, &options) : quern_conv_transpose3d(a, c, b, &options);
  if (spatial == 1) return quern_conv1d(a, c, b, &options);
  return spatial == 2 ? quern_conv2d(a, c, b, &options) : quern_conv3d(a, c, b, &options);
}

static quern_tensor *make_attention(bool masked) {
  quern_tensor *q = in(QUERN_LIST(1, 4, 3, 2)), *k = in(QUERN_LIST(1, 2, 5, 2));
  quern_attention_options options = {.size = sizeof options, .causal = masked, .scale = 0.25};
  return quern_attention(q, k, k, masked ? quern_input(ctx, "m", QUERN_DTYPE_BOOL, QUERN_LIST(3, 5)) : NULL, &options,
                         NULL);
}

static quern_tensor *make_batch_norm(void) {
  quern_batch_norm_options options = {.size = sizeof options, .train = true, .momentum = 0.5, .eps = 1e-3};
  return quern_batch_norm(in(QUERN_LIST(3, 2)), in(QUERN_LIST(2)), NULL, NULL, NULL, &options, NULL, NULL);
}

static quern_tensor *make_kind(size_t i) {
  quern_cross_entropy_options ignoring = {.size = sizeof ignoring,
                                          .ignore = true,
                                          .ignore_index = -100,
                                          .label_smoothing = 0.1,
                                          .reduction = QUERN_REDUCTION_SUM};
  quern_tensor *x = in(QUERN_LIST(2, 3)), *w = in(QUERN_LIST(3));
  switch (i) {
  case 0: return quern_logsumexp(x, QUERN_LIST(1), false);
  case 1: return quern_topk(x, 2, 1, true, NULL);
  case 2: return quern_random_normal(ctx, QUERN_DTYPE_F32, QUERN_LIST(2, 3), 0, 1, NULL);
  case 3: return quern_sigmoid(x);
  case 4: return quern_softplus(x);
  case 5: return quern_silu(x);
  case 6: return quern_gelu(quern_cast(x, QUERN_DTYPE_BF16));
  case 7: return quern_gelu_tanh(x);
  case 8: return quern_gelu_quick(x);
  case 9: return quern_mish(x);
  case 10: return quern_softmax(x, 0);
  case 11: return quern_log_softmax(x, 1);
  case 12: return quern_layer_norm(x, 1, w, w, 1e-5);
  case 13: return quern_layer_norm(x, 2, NULL, NULL, 0);
  case 14: return quern_layer_norm(x, 1, NULL, w, 1e-5);
  case 15: return quern_rms_norm(x, 1, w, 1e-5);
  case 16: return quern_group_norm(in(QUERN_LIST(2, 4, 3)), 2, in(QUERN_LIST(4)), NULL, 1e-5);
  case 17: return make_batch_norm();
  case 18: return make_conv(false, 1, false);
  case 19: return make_conv(false, 2, true);
  case 20: return make_conv(false, 3, false);
  case 21: return make_conv(true, 1, true);
  case 22: return make_conv(true, 2, false);
  case 23: return make_conv(true, 3, true);
  case 24: return make_attention(false);
  case 25: return make_attention(true);
  case 26: return quern_bce_loss(x, x, QUERN_REDUCTION_MEAN);
  case 27: return quern_cross_entropy(x, labels(2), NULL);
  case 28: return quern_cross_entropy(x, labels(2), &ignoring);
  case 29: return quern_linear_cross_entropy(x, in(QUERN_LIST(5, 3)), labels(2), &ignoring);
  case 30: return quern_rms_norm(x, 2, NULL, 0.5);
  case 31:
    return ir_composite_make(ctx, &tensor_kind_narrow_gradient, IR_INTS(TENSOR_NARROW_F16), (struct ir_reals){0}, 1,
                             &x);
  case 32:
    return ir_composite_make(ctx, &tensor_kind_linear_cross_entropy, IR_INTS(0, 0, 0, TENSOR_NARROW_BF16),
                             (struct ir_reals){1, &ignoring.label_smoothing}, 3,
                             (quern_tensor *[]){x, in(QUERN_LIST(5, 3)), labels(2)});
  default: return NULL;
  }
}

/* The composite that y is made of. */
static const struct ir_node *composite_of(quern_tensor *y) {
  struct ir_order order;
  const struct ir_node *node = NULL;
  assert_int_equal(ir_topo(ctx, 1, &y, &order), QUERN_STATUS_OK);
  for (size_t i = 0; i < order.n; i++) {
    if (order.at[i]->op == IR_COMPOSITE) node = order.at[i];
  }
  ir_order_fini(ctx, &order);
  return node;
}

static char *print_in(quern_context *of, quern_tensor *y) {
  struct base_str str;
  base_str_init(&str, &of->heap);
  assert_int_equal(ir_print(of, &str, 1, &y, NULL), QUERN_STATUS_OK);
  char *text = strdup(str.at);
  base_str_fini(&str);
  return text;
}

/* ---- tests ---------------------------------------------------------------------------------------------- */

static void every_kind(void **state) {
  (void)state;
  bool seen[64] = {0};
  quern_tensor *y;
  for (size_t i = 0; (y = make_kind(i)) != NULL; i++) {
    if (ir_is_poison(y)) fail_msg("case %zu: %s", i, ctx->message);
    const struct ir_node *node = composite_of(y);
    if (node == NULL) fail_msg("case %zu: no composite", i);
    for (size_t k = 0; tensor_composites[k] != NULL; k++)
      seen[k] |= strcmp(tensor_composites[k]->name, node->attrs->name) == 0;
    char *text = print_in(ctx, y);
    quern_context *fresh;
    struct ir_module module;
    assert_int_equal(quern_context_new(&fresh, NULL), QUERN_STATUS_OK);
    if (ir_parse(fresh, text, strlen(text), &module) != QUERN_STATUS_OK)
      fail_msg("case %zu: %s\n%s", i, quern_last_error(), text);
    char *again = print_in(fresh, module.outputs[0]);
    assert_string_equal(again, text);
    assert_int_equal(ir_verify(fresh, 1, module.outputs), QUERN_STATUS_OK);
    free(again);
    quern_context_free(fresh);
    free(text);
  }
  for (size_t k = 0; tensor_composites[k] != NULL; k++) {
    if (!seen[k]) fail_msg("no case makes %s", tensor_composites[k]->name);
  }
}

/* Asks the node's kind about these; an error it records is forgotten. */
static bool ask(const struct ir_node *node, struct ir_ints ints, struct ir_reals reals, int n,
                quern_tensor *const *src) {
  const struct ir_composite *kind = ir_composite_find(ctx, node->attrs->name);
  bool admits = kind->admits(&(struct ir_attrs){.name = kind->name, .ints = ints, .reals = reals}, n, src);
  if (!admits) (void)!quern_context_check(ctx);
  assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
  return admits;
}

/* Changed attributes: refused, or such that the body can be built, unless it is too large. */
static void other_attributes(void **state) {
  (void)state;
  static const int64_t values[] = {INT64_MIN, -2147483648, -1, 0, 1, 2, 3, 17, 2147483647, 4294967296, INT64_MAX};
  static const double reals[] = {-1, 0, 1e300, -(double)INFINITY, (double)NAN};
  quern_tensor *y;
  for (size_t i = 0; (y = make_kind(i)) != NULL; i++) {
    const struct ir_node *node = composite_of(y);
    struct ir_ints old = node->attrs->ints;
    struct ir_reals old_reals = node->attrs->reals;
    const struct ir_composite *kind = ir_composite_find(ctx, node->attrs->name);
    assert_true(ask(node, old, old_reals, node->n_src, node->src));
    int64_t ints[64] = {0};
    double real[2] = {0};
    if (old.n > 0) memcpy(ints, old.at, (size_t)old.n * sizeof *ints);
    if (old_reals.n > 0) real[0] = old_reals.at[0];
    assert_false(ask(node, (struct ir_ints){old.n + 20, ints}, old_reals, node->n_src, node->src));
    assert_false(ask(node, old, (struct ir_reals){old_reals.n + 1, real}, node->n_src, node->src));
    for (int n = 0; n < old.n; n++) {
      bool shorter = ask(node, (struct ir_ints){n, ints}, old_reals, node->n_src, node->src);
      bool known = strcmp(kind->name, "logsumexp") == 0 || strcmp(kind->name, "random_normal") == 0;
      assert_true(!shorter || known || (n == 3 && strcmp(kind->name, "linear_cross_entropy") == 0));
      for (size_t v = 0; v < BASE_COUNT(values); v++) {
        ints[n] = values[v];
        const struct ir_graph *body;
        struct ir_attrs attrs = {.name = kind->name, .ints = {old.n, ints}, .reals = old_reals};
        if (ask(node, attrs.ints, old_reals, node->n_src, node->src)) {
          quern_status status = ir_composite_body(ctx, kind, &attrs, node->n_src, node->src, &body);
          assert_true(status == QUERN_STATUS_OK || status == QUERN_STATUS_OVERFLOW);
        }
      }
      ints[n] = old.at[n];
    }
    if (old_reals.n == 0) continue;
    assert_false(ask(node, old, (struct ir_reals){0}, node->n_src, node->src));
    for (size_t v = 0; v < BASE_COUNT(reals); v++) {
      real[0] = reals[v];
      ask(node, old, (struct ir_reals){1, real}, node->n_src, node->src);
    }
  }
}

/* One attribute that the builder would not have written. */
static void refused_attributes(void **state) {
  (void)state;
  static const struct {
    size_t kind; /* of make_kind */
    int place;
    int64_t value;
  } rows[] = {
      {10, 0, -1}, {10, 0, 2},  {10, 0, 16}, {12, 0, 0},  {12, 0, 3},  {12, 0, 17}, {12, 1, 0}, {12, 1, 2}, {12, 2, -1},
      {13, 1, 1},  {15, 2, 1},  {16, 0, 3},  {16, 0, 0},  {17, 0, 1},  {18, 0, 0},  {18, 0, 3}, {18, 1, 0}, {18, 2, 2},
      {18, 7, -1}, {18, 13, 1}, {18, 16, 1}, {19, 16, 0}, {21, 13, 2}, {24, 0, 2},  {24, 1, 1}, {25, 1, 0}, {27, 0, -1},
      {27, 0, 3},  {27, 1, 2},  {27, 2, 1},  {28, 0, 3},  {29, 0, -1}, {29, 1, 2},
  };
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    const struct ir_node *node = composite_of(make_kind(rows[i].kind));
    int64_t ints[64] = {0};
    struct ir_ints old = node->attrs->ints;
    memcpy(ints, old.at, (size_t)old.n * sizeof *ints);
    assert_true(rows[i].place < old.n && ints[rows[i].place] != rows[i].value);
    ints[rows[i].place] = rows[i].value;
    if (ask(node, (struct ir_ints){old.n, ints}, node->attrs->reals, node->n_src, node->src)) fail_msg("row %zu", i);
  }
}

/* Other operands, fewer and more: refused, or such that the body can be built. */
static void other_operands(void **state) {
  (void)state;
  quern_tensor *others[] = {in(QUERN_SCALAR),
                            in(QUERN_LIST(3)),
                            in(QUERN_LIST(0, 3)),
                            labels(2),
                            quern_input(ctx, "b", QUERN_DTYPE_BOOL, QUERN_LIST(2, 3)),
                            in(QUERN_LIST(1, 1, 1, 1, 1, 1))};
  quern_tensor *y;
  for (size_t i = 0; (y = make_kind(i)) != NULL; i++) {
    const struct ir_node *node = composite_of(y);
    const struct ir_composite *kind = ir_composite_find(ctx, node->attrs->name);
    for (int n = 0; n < 6; n++) {
      for (size_t o = 0; o < BASE_COUNT(others); o++) {
        for (int place = 0; place < n; place++) {
          quern_tensor *src[6];
          const struct ir_graph *body;
          for (int k = 0; k < n; k++) src[k] = k != place && k < node->n_src ? node->src[k] : others[o];
          if (!ask(node, node->attrs->ints, node->attrs->reals, n, src)) continue;
          assert_int_equal(ir_composite_body(ctx, kind, node->attrs, n, src, &body), QUERN_STATUS_OK);
        }
      }
    }
    assert_false(ask(node, node->attrs->ints, node->attrs->reals, 0, NULL));
  }
}

/* The message reports why: it is the builder's. */
static void reasons(void **state) {
  (void)state;
  static const char text[] =
      "quern 1\nfn @f (%0: f32[2]) {\n  return %0\n}\n%0 = input name=\"x\" dtype=f32 shape=[2]\n"
      "%1 = composite %0 name=\"softmax\" ints=[1] reals=[] body=@f\nreturn %1\n";
  struct ir_module module;
  assert_int_not_equal(ir_parse(ctx, text, sizeof text - 1, &module), QUERN_STATUS_OK);
  assert_non_null(strstr(quern_last_error(), "6:6: softmax: axis 1"));
  assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(every_kind), TEST(other_attributes), TEST(refused_attributes),
                                     TEST(other_operands), TEST(reasons)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
