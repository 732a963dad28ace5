/* tests/optim/test_autocast.c -- mixed precision: what the policy does with every kind of operation, losses and gradients against
** f32, training, memory, and f16 with loss scaling
*/
#include <math.h>

#include "ir/ir.h"
#include "quern/optim.h"
#include "quern/quern.h"
#include "tensor/tensor.h"
#include "unit.h"

static quern_autocast_options to(quern_dtype low) {
  quern_autocast_options options = QUERN_INIT(quern_autocast_options);
  options.low = low;
  return options;
}

/* ---- the policy ----------------------------------------------------------------------------------------- */

/* What operations are tried on: activations of the low dtype, a parameter, an input of f32, indices. */
struct operands {
  quern_tensor *a, *b;     /* (4, 8), what a contraction gives */
  quern_tensor *p, *table; /* (4, 8), (16, 8): parameters */
  quern_tensor *row;       /* (8,): a parameter */
  quern_tensor *x;         /* (4, 8): an input */
  quern_tensor *ids;       /* (4,): i32 */
  quern_tensor *labels;    /* (4,): i32 */
  quern_tensor *image, *kernel;
};

static struct operands operands_of(quern_model *model) {
  quern_scope *scope = quern_model_scope(model);
  quern_init init = {QUERN_INIT_CONSTANT, 1, 0};
  struct operands o = {.p = quern_scope_parameter(scope, "p", QUERN_LIST(4, 8), init)};
  o.table = quern_scope_parameter(scope, "table", QUERN_LIST(16, 8), init);
  o.row = quern_scope_parameter(scope, "row", QUERN_LIST(8), init);
  o.kernel = quern_scope_parameter(scope, "kernel", QUERN_LIST(2, 3, 3, 3), init);
  o.x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(4, 8));
  o.image = quern_input(ctx, "image", QUERN_DTYPE_F32, QUERN_LIST(1, 3, 8, 8));
  o.ids = quern_input(ctx, "ids", QUERN_DTYPE_I32, QUERN_LIST(4));
  o.labels = quern_input(ctx, "labels", QUERN_DTYPE_I32, QUERN_LIST(4));
  quern_tensor *w = quern_scope_parameter(scope, "w", QUERN_LIST(8, 8), init);
  o.a = quern_linear(o.x, w, NULL);
  o.b = quern_linear(o.a, w, o.row);
  return o;
}

static quern_tensor *heads(quern_tensor *t) { return quern_reshape(t, QUERN_LIST(1, 2, 4, 4)); }
static void then_body(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_neg(args[0]);
}
static void else_body(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_add(args[0], args[1]);
}
static quern_tensor *chosen(const struct operands *o, quern_tensor *x, quern_tensor *y) {
  quern_tensor *cond = quern_lt(quern_select(o->ids, 0, 0), quern_scalar_int(ctx, QUERN_DTYPE_I32, 3)), *out;
  EXPECT_OK(quern_if(cond, 2, (quern_tensor *[]){x, y}, 1, then_body, else_body, NULL, &out));
  return out;
}

/* h = tanh(h w + x[i]), stacked. */
static void turn_body(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_tanh(quern_add(quern_linear(args[1], args[3], NULL), args[2]));
  results[1] = results[0];
}
static quern_tensor *looped(const struct operands *o, quern_tensor *x, int which) {
  quern_loop_options options = {
      .size = sizeof options, .trip = 4, .n_carries = 1, .n_scanned = 1, .n_captures = 1, .n_stacked = 1};
  quern_tensor *results[2], *w = quern_slice(o->table, 0, 0, 8, 1);
  EXPECT_OK(quern_loop(ctx, &options, (quern_tensor *[]){o->row, x, w}, turn_body, NULL, results));
  return results[which];
}

static void doubled_body(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_mul(args[0], args[0]);
}
static quern_tensor *composed(quern_tensor *x) {
  quern_tensor *out;
  EXPECT_OK(quern_composite(ctx, "mine", 1, &x, 1, doubled_body, NULL, &out));
  return out;
}

/* FIRST: the first float operand of the operation that is the expression's root has that dtype; GIVES: so has the result. */
#define CASES(CASE)                                                                                                    \
  CASE(matmul, quern_matmul(o->x, quern_transpose(o->p, 0, 1)), LOW, LOW)                                              \
  CASE(linear, quern_linear(o->x, o->table, NULL), LOW, LOW)                                                           \
  CASE(conv, quern_conv2d(o->image, o->kernel, NULL, NULL), LOW, LOW)                                                  \
  CASE(attention, quern_attention(heads(o->a), heads(o->b), heads(o->x), NULL, NULL, NULL), LOW, LOW)                  \
  CASE(add_low, quern_add(o->a, o->b), LOW, LOW)                                                                       \
  CASE(add_parameter, quern_add(o->a, o->p), LOW, LOW)                                                                 \
  CASE(add_constant, quern_mul_scalar(o->a, 3), LOW, LOW)                                                              \
  CASE(add_input, quern_add(o->a, o->x), F32, F32)                                                                     \
  CASE(parameters_only, quern_mul(o->p, o->p), F32, F32)                                                               \
  CASE(select, quern_relu(o->a), LOW, LOW)                                                                             \
  CASE(tanh, quern_tanh(o->a), LOW, LOW)                                                                               \
  CASE(neg, quern_neg(o->a), LOW, LOW)                                                                                 \
  CASE(keep, quern_checkpoint_activation(o->a), LOW, LOW)                                                              \
  CASE(exp, quern_exp(o->a), F32, F32)                                                                                 \
  CASE(log, quern_log(o->a), F32, F32)                                                                                 \
  CASE(sqrt, quern_sqrt(o->a), F32, F32)                                                                               \
  CASE(pow, quern_pow(o->a, o->b), F32, F32)                                                                           \
  CASE(div, quern_div(o->a, o->b), F32, F32)                                                                           \
  CASE(mul_of_exp, quern_mul(o->a, quern_exp(o->b)), F32, F32)                                                         \
  CASE(sum, quern_sum(o->a, 1, (int64_t[]){1}, false), F32, F32)                                                       \
  CASE(max, quern_max(o->a, 1, (int64_t[]){1}, false), LOW, LOW)                                                       \
  CASE(cumsum, quern_cumsum(o->a, 1), F32, F32)                                                                        \
  CASE(cummax, quern_cummax(o->a, 1), LOW, LOW)                                                                        \
  CASE(sort, quern_sort(o->a, 1, false, NULL), LOW, LOW)                                                               \
  CASE(permute, quern_transpose(o->a, 0, 1), LOW, LOW)                                                                 \
  CASE(concat, quern_concat(2, (quern_tensor *[]){o->a, o->p}, 0), LOW, LOW)                                           \
  CASE(lookup, quern_gather(o->table, o->ids, 0), F32, LOW)                                                            \
  CASE(gather, quern_gather(o->a, o->ids, 0), LOW, LOW)                                                                \
  CASE(softmax, quern_softmax(o->a, 1), F32, LOW)                                                                      \
  CASE(softmax_of_input, quern_softmax(o->x, 1), F32, F32)                                                             \
  CASE(log_softmax, quern_log_softmax(o->a, 1), F32, F32)                                                              \
  CASE(logsumexp, quern_logsumexp(o->a, 1, (int64_t[]){1}, false), F32, F32)                                           \
  CASE(gelu, quern_gelu(o->a), F32, LOW)                                                                               \
  CASE(silu, quern_silu(o->a), F32, LOW)                                                                               \
  CASE(layer_norm, quern_layer_norm(o->a, 1, o->row, o->row, 1e-5), F32, LOW)                                          \
  CASE(rms_norm, quern_rms_norm(o->a, 1, o->row, 1e-5), F32, LOW)                                                      \
  CASE(cross_entropy, quern_cross_entropy(o->a, o->labels, NULL), F32, F32)                                            \
  CASE(linear_cross_entropy, quern_linear_cross_entropy(o->a, o->table, o->labels, NULL), F32, F32)                    \
  CASE(mse, quern_mse_loss(o->a, o->x, QUERN_REDUCTION_MEAN), F32, F32)                                                \
  CASE(if_low, chosen(o, o->a, o->b), LOW, LOW)                                                                        \
  CASE(if_f32, chosen(o, o->a, o->x), LOW, F32)                                                                        \
  CASE(loop_stacks, looped(o, o->a, 1), F32, LOW)                                                                      \
  CASE(loop_carries, looped(o, o->a, 0), F32, F32)                                                                     \
  CASE(composite, composed(o->a), LOW, LOW)

enum { IS_F32, IS_LOW };
static const struct {
  const char *name;
  bool first, gives;
} cases[] = {
#define CASE(name, expression, FIRST, GIVES) {#name, IS_##FIRST, IS_##GIVES},
    CASES(CASE)
#undef CASE
};

static quern_tensor *build_case(const struct operands *o, size_t k) {
  size_t i = 0;
#define CASE(name, expression, FIRST, GIVES)                                                                           \
  if (i++ == k) return (expression);
  CASES(CASE)
#undef CASE
  return NULL;
}

/* The first float operand of a node. */
static quern_dtype first_float(const struct ir_node *node) {
  for (int i = 0; i < node->n_src; i++)
    if (base_dtype_is(node->src[i]->dtype, BASE_FLOAT)) return node->src[i]->dtype;
  return node->out[0].dtype;
}

static void policy(void **state) {
  (void)state;
  const quern_dtype lows[] = {QUERN_DTYPE_BF16, QUERN_DTYPE_F16};
  for (size_t k = 0; k < 2 * sizeof cases / sizeof *cases; k++) {
    quern_model *model;
    size_t c = k / 2;
    quern_autocast_options options = to(lows[k % 2]);
    test_renew();
    EXPECT_OK(quern_model_new(&model, ctx, NULL));
    struct operands o = operands_of(model);
    quern_tensor *plain = build_case(&o, c), *y, *again;
    EXPECT_OK(quern_autocast(model, 1, &plain, &y, &options));
    EXPECT_OK(ir_verify(ctx, 1, &y));
    assert_true(ir_same_type(y, plain));
    EXPECT_OK(quern_autocast(model, 1, &y, &again, &options));
    if (y != again) fail_msg("%s is another expression the second time", cases[c].name);
    quern_tensor *result = y->node->op == IR_CAST ? y->node->src[0] : y; /* results keep their dtype */
    if ((result->dtype == options.low) != cases[c].gives)
      fail_msg("%s gives %s", cases[c].name, quern_dtype_name(result->dtype));
    const struct ir_node *node = result->node;
    if (node->op == IR_CAST) node = node->src[0]->node; /* F32_LOW */
    if ((first_float(node) == options.low) != cases[c].first)
      fail_msg("%s takes %s", cases[c].name, quern_dtype_name(first_float(node)));
    quern_model_free(model);
  }
}

/* Parameters stay, a loop casts them once outside, and what is not f32 is left alone. */
static void leaves(void **state) {
  (void)state;
  quern_model *model;
  EXPECT_OK(quern_model_new(&model, ctx, NULL));
  struct operands o = operands_of(model);
  quern_autocast_options options = to(QUERN_DTYPE_BF16);
  quern_tensor *wide = quern_exp(quern_cast(o.x, QUERN_DTYPE_F64)), *other = quern_cast(o.x, QUERN_DTYPE_F16), *y[3];
  quern_tensor *roots[] = {quern_matmul(wide, quern_transpose(wide, 0, 1)), quern_linear(other, other, NULL),
                           looped(&o, o.a, 1)};
  EXPECT_OK(quern_autocast(model, 3, roots, y, &options));
  assert_ptr_equal(y[0], roots[0]);
  assert_ptr_equal(y[1], roots[1]);
  const struct ir_node *loop = y[2]->node->src[0]->node;
  assert_int_equal(loop->op, IR_LOOP);
  assert_int_equal(loop->src[0]->dtype, QUERN_DTYPE_F32);  /* the carry */
  assert_int_equal(loop->src[1]->dtype, QUERN_DTYPE_BF16); /* activations */
  assert_int_equal(loop->src[2]->dtype, QUERN_DTYPE_BF16); /* the weight */
  quern_model_free(model);
}

static size_t count_lines(const char *text, const char *words) {
  size_t n = 0;
  for (const char *at = text; (at = strstr(at, words)) != NULL; at++) n++;
  return n;
}

/* Every operation and every composite has a row; rows can be changed. */
static void rows(void **state) {
  (void)state;
  char *text, line[64];
  EXPECT_OK(quern_autocast_print(ctx, NULL, &text));
  assert_int_equal(count_lines(text, " operation "), IR_OP_COUNT);
  for (const struct ir_composite *const *kind = tensor_composites; *kind != NULL; kind++) {
    snprintf(line, sizeof line, " composite %s\n", (*kind)->name);
    if (strstr(text, line) == NULL) fail_msg("no row of %s", (*kind)->name);
  }
  assert_non_null(strstr(text, "low      operation dot\n"));
  assert_non_null(strstr(text, "f32_low  composite layer_norm\n"));
  quern_free_text(text);
  quern_autocast_options options = to(QUERN_DTYPE_F16);
  options.rows = "gelu=f32,tanh=f32,layer_norm=low";
  EXPECT_OK(quern_autocast_print(ctx, &options, &text));
  assert_int_equal(count_lines(text, "(changed)"), 3);
  assert_non_null(strstr(text, "low      composite layer_norm (changed)\n"));
  quern_free_text(text);

  quern_model *model;
  EXPECT_OK(quern_model_new(&model, ctx, NULL));
  struct operands o = operands_of(model);
  quern_tensor *x[] = {quern_gelu(o.a), quern_layer_norm(o.a, 1, o.row, o.row, 1e-5)}, *y[2];
  EXPECT_OK(quern_autocast(model, 2, x, y, &options));
  assert_int_equal(y[0]->node->op, IR_COMPOSITE);
  assert_int_equal(y[1]->node->src[0]->node->op, IR_COMPOSITE);
  assert_int_equal(y[1]->node->src[0]->node->src[1]->dtype, QUERN_DTYPE_F16);
  options.rows = "gelo=f32";
  EXPECT_ERROR(quern_autocast(model, 2, x, y, &options), INVALID, "did you mean gelu");
  options.rows = "gelu=double";
  EXPECT_ERROR(quern_autocast(model, 2, x, y, &options), INVALID, "'double' of gelu is none of low");
  options.rows = "gelu=f32,tanh";
  EXPECT_ERROR(quern_autocast(model, 2, x, y, &options), PARSE, "'tanh' is not");
  options.rows = "loop=low";
  EXPECT_ERROR(quern_autocast(model, 2, x, y, &options), INVALID, "loop is body and cannot be low");
  options.rows = "state=low";
  EXPECT_ERROR(quern_autocast(model, 2, x, y, &options), INVALID, "state is built and cannot be low");
  options = to(QUERN_DTYPE_F64);
  EXPECT_ERROR(quern_autocast(model, 2, x, y, &options), DTYPE, "the low dtype is f64; must be bf16 or f16");
  quern_model_free(model);
}

/* ---- programs ------------------------------------------------------------------------------------------- */

enum net { GPT2, MODERN, LSTM, CONVS, NETS };
enum { B = 4, T = 16, V = 32 };
static const char *const net_names[NETS] = {"gpt2", "modern", "lstm", "convolutions"};

/* A model, its loss, and a program of a step. */
struct run {
  quern_model *model;
  quern_tensor *loss, *boost; /* boost: an input that the loss is multiplied with, or NULL */
  quern_step *step;
  quern_program *program;
  quern_instance *instance;
};

static quern_lm_options lm_options(enum net net) {
  quern_lm_options o = {.size = sizeof o, .vocabulary = V, .positions = T, .layers = 2, .width = 32, .heads = 2};
  if (net == MODERN) {
    o.names = QUERN_LM_LLAMA;
    o.rms = o.no_bias = true;
    o.activation = "swiglu";
    o.position = "rope";
    o.kv_heads = 1;
  }
  return o;
}

/* A residual block of convolutions and batch norms, a pool, a linear layer: images (B, 3, 8, 8), V classes. */
static quern_tensor *convolutions(quern_scope *scope, quern_tensor *x) {
  quern_nn_conv_options same = {.size = sizeof same, .same = true};
  x = quern_relu(quern_nn_batch_norm(quern_scope_in(scope, "n0"),
                                     quern_nn_conv(quern_scope_in(scope, "c0"), x, 16, QUERN_LIST(3, 3), &same), NULL));
  quern_tensor *y = quern_relu(quern_nn_batch_norm(
      quern_scope_in(scope, "n1"), quern_nn_conv(quern_scope_in(scope, "c1"), x, 16, QUERN_LIST(3, 3), &same), NULL));
  x = quern_add(x, y);
  return quern_nn_linear(quern_scope_in(scope, "fc"), quern_mean(x, 2, (int64_t[]){2, 3}, false), V, NULL);
}

/* The loss of a net; tokens (B, T) and labels (B, T), or images and labels (B). */
static void set_up(struct run *r, enum net net, quern_dtype low, bool boost) {
  *r = (struct run){0};
  EXPECT_OK(quern_model_new(&r->model, ctx, NULL));
  quern_scope *scope = quern_model_scope(r->model);
  if (net == CONVS) {
    quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(B, 3, 8, 8)),
                 *labels = quern_input(ctx, "labels", QUERN_DTYPE_I32, QUERN_LIST(B));
    r->loss = quern_cross_entropy(convolutions(scope, x), labels, NULL);
  } else {
    quern_lm_options o = lm_options(net);
    quern_tensor *tokens = quern_input(ctx, "tokens", QUERN_DTYPE_I32, QUERN_LIST(B, T)),
                 *labels = quern_input(ctx, "labels", QUERN_DTYPE_I32, QUERN_LIST(B, T));
    r->loss = net == LSTM ? quern_cross_entropy(quern_lstm_lm(scope, tokens, V, 32, 32, 2, 0, NULL), labels, NULL)
                          : quern_lm_loss(scope, tokens, labels, &o);
  }
  if (boost) {
    r->boost = quern_input(ctx, "boost", QUERN_DTYPE_F32, 0, NULL);
    r->loss = quern_mul(r->loss, r->boost);
  }
  quern_autocast_options options = to(low);
  if (low != QUERN_DTYPE_F32) EXPECT_OK(quern_autocast(r->model, 1, &r->loss, &r->loss, &options));
}

static void compile(struct run *r, const char *device, size_t n, quern_tensor *const *outputs) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = device;
  options.threads = 1;
  if (r->step != NULL) options.n_updates = quern_step_updates(r->step, &options.updates);
  EXPECT_OK(quern_program_compile(&r->program, ctx, n, outputs, &options));
  EXPECT_OK(quern_instance_new(&r->instance, r->program));
  EXPECT_OK(quern_instance_zero_states(r->instance));
}

static void end(struct run *r) {
  quern_instance_free(r->instance);
  quern_program_free(r->program);
  quern_step_free(r->step);
  quern_model_free(r->model);
}

/* The same start for every dtype: weights of norms 1, biases 0, others from a counter; the scaler's start. */
static void set_states(const struct run *r) {
  for (size_t i = 0; i < quern_program_state_count(r->program); i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    EXPECT_OK(quern_program_state(r->program, i, &slot));
    if (strcmp(slot.name, "scaler.scale") == 0) {
      float start = 65536;
      EXPECT_OK(quern_instance_set_state(r->instance, i, &start));
    }
    const quern_parameter *p = quern_model_find(r->model, slot.name);
    if (p == NULL || !p->trained) continue;
    size_t n = slot.bytes / sizeof(float);
    float *data = malloc(slot.bytes);
    assert_non_null(data);
    bool weight = strstr(slot.name, "weight") != NULL;
    double noise[1];
    for (size_t k = 0; k < n; k++) {
      test_fill(1, noise, base_hash_string(k + 1, slot.name));
      data[k] = slot.rank == 1 ? (weight ? 1.0F : 0.0F) : (float)(0.2 * noise[0]);
    }
    EXPECT_OK(quern_instance_set_state(r->instance, i, data));
    free(data);
  }
}

/* A batch that can be learned: the next token is 5 t + 3 mod V. */
static void fill_tokens(uint64_t seed, int32_t tokens[B * T], int32_t labels[B * T]) {
  for (int b = 0; b < B; b++) {
    int32_t t = (int32_t)(base_hash_u64(seed + 1, (uint64_t)b) % V);
    for (int i = 0; i < T; i++) {
      tokens[b * T + i] = t;
      labels[b * T + i] = t = (5 * t + 3) % V;
    }
  }
}

struct batch {
  float image[B * 3 * 8 * 8];
  int32_t tokens[B * T], labels[B * T];
  float lr, boost;
};

static void fill_batch(enum net net, uint64_t seed, struct batch *batch) {
  fill_tokens(seed, batch->tokens, batch->labels);
  double image[B * 3 * 8 * 8];
  test_fill(B * 3 * 8 * 8, image, seed + 7);
  for (int i = 0; i < B * 3 * 8 * 8; i++) batch->image[i] = (float)image[i];
  for (int b = 0; net == CONVS && b < B; b++) batch->labels[b] = b;
}

static void run_batch(const struct run *r, enum net net, const struct batch *batch, void *const *outputs) {
  const void *inputs[4];
  int n = 0;
  inputs[n++] = net == CONVS ? (const void *)batch->image : batch->tokens;
  inputs[n++] = batch->labels;
  if (r->boost != NULL) inputs[n++] = &batch->boost;
  if (r->step != NULL) inputs[n++] = &batch->lr;
  EXPECT_OK(quern_instance_run(r->instance, inputs, outputs));
}

/* ---- losses and gradients against f32 ------------------------------------------------------------------- */

enum { MOST_PARAMETERS = 64 };

struct figures {
  float loss;
  size_t n;
  float *gradient[MOST_PARAMETERS];
  size_t count[MOST_PARAMETERS];
};

static void differentiate(enum net net, quern_dtype low, struct figures *f) {
  struct run r;
  struct batch batch;
  quern_tensor *parameters[MOST_PARAMETERS], *outputs[MOST_PARAMETERS + 1];
  void *places[MOST_PARAMETERS + 1];
  *f = (struct figures){0};
  test_renew();
  set_up(&r, net, low, false);
  for (size_t i = 0; i < quern_model_parameter_count(r.model); i++) {
    quern_parameter p = QUERN_INIT(quern_parameter);
    EXPECT_OK(quern_model_parameter(r.model, i, &p));
    if (p.trained) parameters[f->n++] = p.tensor;
  }
  EXPECT_OK(quern_grad(r.loss, f->n, parameters, outputs + 1));
  outputs[0] = r.loss;
  places[0] = &f->loss;
  for (size_t i = 0; i < f->n; i++) {
    assert_int_equal(outputs[i + 1]->dtype, QUERN_DTYPE_F32);
    f->count[i] = (size_t)ir_count(parameters[i]);
    places[i + 1] = f->gradient[i] = malloc(f->count[i] * sizeof(float));
    assert_non_null(f->gradient[i]);
  }
  compile(&r, "cpu", f->n + 1, outputs);
  set_states(&r);
  fill_batch(net, 3, &batch);
  run_batch(&r, net, &batch, places);
  end(&r);
}

/* The norm of the difference of all gradients over that of the f32 ones. */
static double distance(const struct figures *a, const struct figures *b) {
  double far = 0, norm = 0;
  assert_int_equal(a->n, b->n);
  for (size_t i = 0; i < a->n; i++) {
    for (size_t k = 0; k < a->count[i]; k++) {
      double d = (double)a->gradient[i][k] - (double)b->gradient[i][k];
      far += d * d;
      norm += (double)a->gradient[i][k] * (double)a->gradient[i][k];
    }
  }
  return sqrt(far / norm);
}

/* Rounding moves a number by up to 2^-9 of it in bf16 and 2^-12 in f16: gradients, all together, by some times that; losses, which are
** means, by less. */
static void near_f32(void **state) {
  (void)state;
  const struct {
    quern_dtype low;
    double loss, gradient;
  } bounds[] = {{QUERN_DTYPE_BF16, 1e-3, 2e-2}, {QUERN_DTYPE_F16, 1e-4, 3e-3}};
  for (int net = 0; net < NETS; net++) {
    struct figures want, got;
    differentiate((enum net)net, QUERN_DTYPE_F32, &want);
    for (int k = 0; k < 2; k++) {
      differentiate((enum net)net, bounds[k].low, &got);
      double loss = fabs((double)got.loss / (double)want.loss - 1), gradient = distance(&want, &got);
      if (!(loss <= bounds[k].loss && gradient <= bounds[k].gradient) || (loss == 0 && gradient == 0))
        fail_msg("%s in %s: loss %g is off by %g, gradients by %g", net_names[net], quern_dtype_name(bounds[k].low),
                 (double)want.loss, loss, gradient);
      for (size_t i = 0; i < got.n; i++) free(got.gradient[i]);
    }
    for (size_t i = 0; i < want.n; i++) free(want.gradient[i]);
  }
}

/* ---- training ------------------------------------------------------------------------------------------- */

enum { TURNS = 120 };

static double train(quern_dtype low, const quern_scaler_options *scaler) {
  struct run r;
  struct batch batch = {.lr = 3e-3F};
  quern_optim_options options = QUERN_INIT(quern_optim_options);
  options.clip_norm = 1;
  options.scaler = scaler;
  test_renew();
  set_up(&r, GPT2, low, false);
  EXPECT_OK(quern_step_new(&r.step, r.model, r.loss, &options));
  compile(&r, "cpu", 1, &r.loss);
  set_states(&r);
  float loss;
  double last = 0;
  for (int t = 0; t < TURNS; t++) {
    fill_batch(GPT2, (uint64_t)t, &batch);
    run_batch(&r, GPT2, &batch, (void *const[]){&loss});
    if (t == 0) assert_true(loss > 3);
    if (t >= TURNS - 10) last += (double)loss / 10;
  }
  end(&r);
  return last;
}

/* Every dtype learns the task: the mean of the last ten losses is that of f32, within a tenth and 0.005. */
static void learns(void **state) {
  (void)state;
  quern_scaler_options scaler = QUERN_INIT(quern_scaler_options);
  double f32 = train(QUERN_DTYPE_F32, NULL), bf16 = train(QUERN_DTYPE_BF16, NULL),
         f16 = train(QUERN_DTYPE_F16, &scaler);
  if (!(f32 < 0.5)) fail_msg("f32 reaches %g", f32);
  if (!(fabs(bf16 - f32) < 0.1 * f32 + 0.005)) fail_msg("bf16 reaches %g, f32 %g", bf16, f32);
  if (!(fabs(f16 - f32) < 0.1 * f32 + 0.005)) fail_msg("f16 reaches %g, f32 %g", f16, f32);
}

/* The loss of a part of a batch, cast in the part. */
static quern_tensor *loss_of(quern_model *model, size_t n, quern_tensor *const *inputs, void *user) {
  (void)n, (void)user;
  quern_lm_options o = lm_options(GPT2);
  quern_tensor *loss = quern_lm_loss(quern_model_scope(model), inputs[0], inputs[1], &o);
  EXPECT_OK(quern_autocast(model, 1, &loss, &loss, NULL));
  return loss;
}

/* Steps of a batch in two parts are those of the batch: sums over parts are f32. */
static void in_parts(void **state) {
  (void)state;
  float losses[2], norms[2];
  for (int k = 0; k < 2; k++) {
    struct run r = {0};
    struct batch batch = {.lr = 3e-3F};
    test_renew();
    EXPECT_OK(quern_model_new(&r.model, ctx, NULL));
    quern_tensor *inputs[] = {quern_input(ctx, "tokens", QUERN_DTYPE_I32, QUERN_LIST(B, T)), NULL};
    inputs[1] = quern_input(ctx, "labels", QUERN_DTYPE_I32, QUERN_LIST(B, T));
    EXPECT_OK(quern_step_accumulate(&r.step, r.model, k + 1, 2, inputs, loss_of, NULL, NULL, &r.loss));
    compile(&r, "cpu", 2, (quern_tensor *[]){r.loss, quern_step_norm(r.step)});
    set_states(&r);
    for (int t = 0; t < 5; t++) {
      fill_batch(GPT2, (uint64_t)t, &batch);
      run_batch(&r, GPT2, &batch, (void *const[]){&losses[k], &norms[k]});
    }
    end(&r);
  }
  assert_true(fabsf(losses[0] - losses[1]) < 5e-3F * losses[0]);
  assert_true(fabsf(norms[0] - norms[1]) < 2e-2F * norms[0]);
}

/* ---- f16 with loss scaling ------------------------------------------------------------------------------ */

/* All states, one after another, but those of the scaler. */
static size_t take_states(const struct run *r, uint8_t *at, size_t room) {
  size_t n = 0;
  for (size_t i = 0; i < quern_program_state_count(r->program); i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    EXPECT_OK(quern_program_state(r->program, i, &slot));
    if (strncmp(slot.name, "scaler.", 7) == 0) continue;
    assert_true(n + slot.bytes <= room);
    EXPECT_OK(quern_instance_get_state(r->instance, i, at + n));
    n += slot.bytes;
  }
  return n;
}

static void get(const struct run *r, const char *name, void *data) {
  for (size_t i = 0; i < quern_program_state_count(r->program); i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    EXPECT_OK(quern_program_state(r->program, i, &slot));
    if (strcmp(slot.name, name) == 0) {
      EXPECT_OK(quern_instance_get_state(r->instance, i, data));
      return;
    }
  }
  fail_msg("no state %s", name);
}

enum { ROOM = 1 << 20 };

/* A loss times 1e30 overflows: the scale is halved, nothing else changes; training goes on as if the step had not been. */
static void overflow(void **state) {
  (void)state;
  struct run r;
  struct batch batch = {.lr = 3e-3F, .boost = 1};
  quern_optim_options options = QUERN_INIT(quern_optim_options);
  quern_scaler_options scaler = QUERN_INIT(quern_scaler_options);
  scaler.interval = 5;
  scaler.most = 131072;
  options.clip_norm = 1;
  options.scaler = &scaler;
  set_up(&r, GPT2, QUERN_DTYPE_F16, true);
  EXPECT_OK(quern_step_new(&r.step, r.model, r.loss, &options));
  compile(&r, "cpu", 3, (quern_tensor *[]){r.loss, quern_step_finite(r.step), quern_step_norm(r.step)});
  set_states(&r);
  uint8_t *before = malloc(ROOM), *after = malloc(ROOM);
  assert_true(before != NULL && after != NULL);
  float loss, first = 0, scale, norm;
  int64_t good, skipped;
  uint64_t steps;
  bool finite;
  /* 2^16, twice halved, after 5 good steps doubled, and again up to 2^17 */
  const float scales[] = {65536, 65536, 32768, 16384, 16384, 16384, 16384, 16384, 32768};
  for (int t = 0; t < 80; t++) {
    bool bad = t == 2 || t == 3;
    batch.boost = bad ? 1e30F : 1;
    fill_batch(GPT2, (uint64_t)t, &batch);
    size_t n = take_states(&r, before, ROOM);
    run_batch(&r, GPT2, &batch, (void *const[]){&loss, &finite, &norm});
    assert_int_equal(take_states(&r, after, ROOM), n);
    assert_int_equal(finite, !bad);
    assert_int_equal(memcmp(before, after, n) == 0, bad);
    assert_int_equal(isfinite(norm) != 0, !bad);
    get(&r, "scaler.scale", &scale);
    if (t < 9) assert_true(scale == scales[t]);
    if (t == 0) first = loss;
  }
  get(&r, "scaler.good", &good);
  get(&r, "scaler.skipped", &skipped);
  get(&r, "step", &steps);
  assert_true(scale == 131072); /* its greatest, and never above */
  assert_int_equal(skipped, 2);
  assert_int_equal(steps, 78);
  assert_true(good >= 0 && good < 5);
  assert_true(loss < 0.8F * first);
  free(before);
  free(after);
  end(&r);
}

/* With a guard and no scaler a step that is not finite changes nothing at all, and the next one is as if it had not been. */
static void guard(void **state) {
  (void)state;
  float losses[2];
  for (int k = 0; k < 2; k++) {
    struct run r;
    struct batch batch = {.lr = 3e-3F, .boost = 1};
    quern_optim_options options = QUERN_INIT(quern_optim_options);
    options.guard = k == 1;
    options.ema = 0.9;
    test_renew();
    set_up(&r, GPT2, QUERN_DTYPE_BF16, true);
    EXPECT_OK(quern_step_new(&r.step, r.model, r.loss, &options));
    assert_int_equal(quern_step_finite(r.step) != NULL, k == 1);
    compile(&r, "cpu", 1, (quern_tensor *[]){r.loss});
    set_states(&r);
    uint8_t *before = malloc(ROOM), *after = malloc(ROOM);
    assert_true(before != NULL && after != NULL);
    for (int t = 0; t < 4; t++) {
      if (t == 2 && k == 0) continue;
      batch.boost = t == 2 ? (float)INFINITY : 1;
      fill_batch(GPT2, (uint64_t)t, &batch);
      size_t n = take_states(&r, before, ROOM);
      run_batch(&r, GPT2, &batch, (void *const[]){&losses[k]});
      take_states(&r, after, ROOM);
      assert_int_equal(memcmp(before, after, n) == 0, t == 2);
    }
    free(before);
    free(after);
    end(&r);
  }
  assert_memory_equal(&losses[0], &losses[1], sizeof(float));
}

/* ---- plans ---------------------------------------------------------------------------------------------- */

static quern_memory_plan planned(quern_dtype low, char **text) {
  quern_model *model;
  quern_step *step;
  quern_program *program;
  quern_memory_plan memory = QUERN_INIT(quern_memory_plan);
  quern_optim_options options = QUERN_INIT(quern_optim_options);
  quern_lm_options o = {.size = sizeof o, .vocabulary = 512, .positions = 128, .layers = 6, .width = 128, .heads = 4};
  quern_autocast_options cast = to(low);
  quern_tensor *tokens = quern_input(ctx, "tokens", QUERN_DTYPE_I32, QUERN_LIST(8, 128)),
               *labels = quern_input(ctx, "labels", QUERN_DTYPE_I32, QUERN_LIST(8, 128));
  EXPECT_OK(quern_model_new(&model, ctx, NULL));
  quern_tensor *loss = quern_lm_loss(quern_model_scope(model), tokens, labels, &o);
  options.clip_norm = 1;
  if (low != QUERN_DTYPE_F32) EXPECT_OK(quern_autocast(model, 1, &loss, &loss, &cast));
  EXPECT_OK(quern_step_new(&step, model, loss, &options));
  quern_program_options how = QUERN_INIT(quern_program_options);
  how.device = "null";
  how.threads = 1;
  how.n_updates = quern_step_updates(step, &how.updates);
  EXPECT_OK(quern_program_compile(&program, ctx, 1, &loss, &how));
  EXPECT_OK(quern_program_get_memory(program, &memory));
  EXPECT_OK(quern_program_explain(program, NULL, QUERN_EXPLAIN_PLAN, text));
  size_t bytes = strlen(*text) + 1;
  char *copy = malloc(bytes);
  assert_non_null(copy);
  memcpy(copy, *text, bytes);
  quern_free_text(*text);
  *text = copy;
  quern_program_free(program);
  quern_step_free(step);
  quern_model_free(model);
  return memory;
}

/* A step of 16-bit activations holds less than half of the bytes and needs about half of the arena, and attention has its own kernels, forward and backward. */
static void memory(void **state) {
  (void)state;
  char *text[3];
  quern_memory_plan f32 = planned(QUERN_DTYPE_F32, &text[0]);
  for (int i = 1; i < 3; i++) {
    test_renew();
    quern_memory_plan low = planned(i == 1 ? QUERN_DTYPE_BF16 : QUERN_DTYPE_F16, &text[i]);
    if (!((double)low.arena <= 0.55 * (double)f32.arena && (double)low.held <= 0.5 * (double)f32.held))
      fail_msg("f32 plans %lld bytes and holds %lld, 16 bits %lld and %lld", (long long)f32.arena, (long long)f32.held,
               (long long)low.arena, (long long)low.held);
  }
  for (int i = 0; i < 3; i++) {
    assert_int_equal(count_lines(text[i], "(attention)"), 6);
    assert_int_equal(count_lines(text[i], "(attention.vjp)"), 6);
    free(text[i]);
  }
}

/* ---- memory that is not there --------------------------------------------------------------------------- */

static void no_memory(void **state) {
  (void)state;
  for (struct fault fault = {0}; fault_next(&fault);) {
    quern_model *model = NULL;
    quern_tensor *y[2];
    char *text = NULL;
    test_renew();
    EXPECT_OK(quern_model_new(&model, ctx, NULL));
    struct operands o = operands_of(model);
    quern_tensor *x[] = {looped(&o, quern_gelu(o.a), 1), chosen(&o, o.a, o.x)};
    fault_begin(&fault);
    quern_status status = quern_autocast(model, 2, x, y, NULL);
    if (status == QUERN_STATUS_OK) status = quern_autocast_print(ctx, NULL, &text);
    fault_end(&fault);
    quern_free_text(text);
    quern_model_free(model);
    EXPECT_FAULT(&fault, status);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(policy),   TEST(leaves),   TEST(rows),  TEST(near_f32), TEST(learns),
                                     TEST(in_parts), TEST(overflow), TEST(guard), TEST(memory),   TEST(no_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
