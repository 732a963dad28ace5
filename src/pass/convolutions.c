/* pass/convolutions.c -- convolutions and their gradients that a library does (cuDNN), on tensors with the channels last
** in:    the composites conv and conv_transpose and their gradients, (sample, channel, places), weights (output, channel, window)
** out:   permutes of conv.placed, conv.input_grad.placed and conv.weight_grad.placed, (sample, places, channel), weights (output,
**        window, channel); layout.c moves the permutes to where they cost nothing
** keeps: sums have the library's order; a convolution with a window of 1 and step 1 stays a product, whose epilogue a library
**        knows
** see:   kern/library_conv.c, docs/design/008-libraries.md      tests: tests/pass/test_convolutions.c
*/
#include "pass/pass_int.h"
#include "quern/grad.h"

enum { MAX_SPATIAL = PASS_CONV_SPATIAL, INTS = 5 + 5 * MAX_SPATIAL };

static const char *const placed_names[] = {"conv.placed", "conv.input_grad.placed", "conv.weight_grad.placed"};

/* ---- reading and writing -------------------------------------------------------------------------------------- */

/* The integers of a placed composite: spatial axes, groups, samples, channels, outputs; then in, window, step, dilation and padding of
** each axis. */
static void write_ints(const struct pass_conv *c, int64_t ints[INTS]) {
  const int64_t first[] = {c->spatial, c->groups, c->samples, c->channels, c->outputs};
  const int64_t *const axes[] = {c->in, c->window, c->step, c->dilation, c->pad};
  memcpy(ints, first, sizeof first);
  for (int i = 0; i < 5; i++) memcpy(ints + 5 + i * MAX_SPATIAL, axes[i], MAX_SPATIAL * sizeof **axes);
}

static void find_places(struct pass_conv *c) {
  for (int i = 0; i < MAX_SPATIAL; i++)
    c->out[i] = (c->in[i] + 2 * c->pad[i] - c->dilation[i] * (c->window[i] - 1) - 1) / c->step[i] + 1;
}

bool pass_conv_read(const struct ir_node *node, struct pass_conv *c) {
  int part = 0;
  if (node->op != IR_COMPOSITE || node->attrs->ints.n != INTS) return false;
  while (part < PASS_CONV_PARTS && strcmp(node->attrs->name, placed_names[part]) != 0) part++;
  if (part == PASS_CONV_PARTS) return false;
  const int64_t *ints = node->attrs->ints.at;
  *c = (struct pass_conv){.part = (enum pass_conv_part)part,
                          .spatial = (int)ints[0],
                          .groups = ints[1],
                          .samples = ints[2],
                          .channels = ints[3],
                          .outputs = ints[4]};
  int64_t *const axes[] = {c->in, c->window, c->step, c->dilation, c->pad};
  for (int i = 0; i < 5; i++) memcpy(axes[i], ints + 5 + i * MAX_SPATIAL, MAX_SPATIAL * sizeof **axes);
  find_places(c);
  return true;
}

/* ---- making ----------------------------------------------------------------------------------------------------- */

/* The axes that put channels last, or first again. */
static quern_tensor *permute(quern_tensor *x, bool last) {
  int64_t axes[QUERN_MAX_RANK] = {0};
  for (int k = 1; k < x->rank; k++) axes[k] = last ? k % (x->rank - 1) + 1 : k == 1 ? x->rank - 1 : k - 1;
  return ir_is_poison(x) ? x : IR_MAKE(x->node->ctx, IR_PERMUTE, (&(struct ir_attrs){.axes = {x->rank, axes}}), x);
}

/* A leaf for a tensor of the call, with its channels last. 0: x, 1: the weight, 2: the result or its gradient. */
static quern_tensor *leaf_of(quern_context *ctx, const struct pass_conv *c, quern_dtype dtype, int which) {
  int64_t dims[2 + MAX_SPATIAL];
  const int64_t *const places[] = {c->in, c->window, c->out};
  dims[0] = which == 1 ? c->outputs : c->samples;
  for (int i = 0; i < c->spatial; i++) dims[1 + i] = places[which][i];
  dims[1 + c->spatial] = which == 0 ? c->channels : which == 1 ? c->channels / c->groups : c->outputs;
  return ir_leaf(ctx, dtype, 2 + c->spatial, dims);
}

/* What the composite means, on leaves: the convolution, or its gradient. */
static quern_status make_body(quern_context *ctx, const struct pass_conv *c, quern_dtype dtype,
                              const struct ir_graph **body) {
  static quern_tensor *(*const builders[])(quern_tensor *, quern_tensor *, quern_tensor *,
                                           const quern_conv_options *) = {quern_conv1d, quern_conv2d, quern_conv3d};
  quern_conv_options options = {.size = sizeof options, .groups = c->groups};
  for (int i = 0; i < c->spatial; i++) {
    options.stride[i] = c->step[i];
    options.dilation[i] = c->dilation[i];
    options.pad_lo[i] = options.pad_hi[i] = c->pad[i];
  }
  quern_tensor *leaf[3], *result;
  for (int i = 0; i < 3; i++) leaf[i] = leaf_of(ctx, c, dtype, i);
  quern_tensor *x = permute(leaf[0], false), *w = permute(leaf[1], false), *dy = permute(leaf[2], false);
  quern_tensor *y = builders[c->spatial - 1](x, w, NULL, &options);
  QUERN_TRY(quern_context_check(ctx));
  QUERN_TRY(ir_inline_composites(ctx, 1, &y, &y));
  result = y;
  if (c->part != PASS_CONV_FORWARD) {
    quern_tensor *wrt = c->part == PASS_CONV_INPUT_GRAD ? x : w;
    QUERN_TRY(quern_vjp(1, &y, &dy, 1, &wrt, &result));
    QUERN_TRY(ir_inline_composites(ctx, 1, &result, &result));
  }
  result = permute(result, true);
  quern_tensor *params[2] = {leaf[c->part == PASS_CONV_INPUT_GRAD ? 1 : 0], leaf[c->part == PASS_CONV_FORWARD ? 1 : 2]};
  QUERN_TRY(quern_context_check(ctx));
  return ir_graph_make(ctx, 2, params, 1, &result, body);
}

/* With channels of zeros behind those that there are: axis 1 of x, of a weight and of their gradients. */
static quern_tensor *widen(quern_tensor *x, int64_t channels) {
  int64_t lo[QUERN_MAX_RANK] = {0}, hi[QUERN_MAX_RANK] = {0};
  hi[1] = channels - x->dims[1];
  return quern_pad(x, x->rank, lo, hi, 0);
}

/* Tensor cores take 16-bit channels by eights; those that an image lacks are zeros. Groups stay as they are. */
static int64_t channels_of(const struct pass_conv *c, quern_dtype dtype) {
  enum { LANES = 8 };
  bool narrow = base_dtypes[dtype].size == 2 && c->groups == 1;
  return narrow ? (c->channels + LANES - 1) / LANES * LANES : c->channels;
}

/* The placed composite of two tensors with the channels first, and its result with the channels first; NULL and the error recorded. */
static quern_status make(quern_context *ctx, const struct pass_conv *given, quern_tensor *a, quern_tensor *b,
                         quern_tensor **y) {
  struct pass_conv own = *given, *c = &own;
  int64_t ints[INTS];
  own.channels = channels_of(given, a->dtype);
  bool more = own.channels > given->channels;
  if (more) a = widen(a, own.channels);
  if (more && c->part == PASS_CONV_FORWARD) b = widen(b, own.channels);
  QUERN_TRY(quern_context_check(ctx));
  write_ints(c, ints);
  struct ir_attrs attrs = {.name = placed_names[c->part], .ints = {INTS, ints}};
  QUERN_TRY(make_body(ctx, c, a->dtype, &attrs.body));
  a = permute(a, true);
  b = permute(b, true);
  *y = permute(IR_MAKE(ctx, IR_COMPOSITE, &attrs, a, b), false);
  if (more && c->part != PASS_CONV_FORWARD) *y = quern_slice(*y, 1, 0, given->channels, 1);
  return quern_context_check(ctx);
}

/* ---- what stood there ------------------------------------------------------------------------------------------- */

/* The integers of the composites conv and conv_transpose. */
struct plain {
  int64_t groups, step[3], dilation[3], lo[3], hi[3], more[3], bias;
};

/* Whether axes are padded alike at both ends; more is what padding at the end has in addition. */
static bool is_even(const struct plain *p, int spatial) {
  for (int i = 0; i < spatial; i++)
    if (p->lo[i] != p->hi[i]) return false;
  return true;
}

static bool is_product(const struct pass_conv *c) {
  bool one = c->groups == 1;
  for (int i = 0; i < c->spatial; i++) one = one && c->window[i] == 1 && c->step[i] == 1 && c->pad[i] == 0;
  return one;
}

/* The call for x, a weight and the places of y; padding: that before each axis. */
static void describe(struct pass_conv *c, const quern_tensor *x, const quern_tensor *w, const struct plain *p) {
  *c = (struct pass_conv){.spatial = x->rank - 2,
                          .groups = p->groups,
                          .samples = x->dims[0],
                          .channels = x->dims[1],
                          .outputs = w->dims[0]};
  for (int i = 0; i < MAX_SPATIAL; i++) {
    bool has = i < c->spatial;
    c->in[i] = has ? x->dims[2 + i] : 1;
    c->window[i] = has ? w->dims[2 + i] : 1;
    c->step[i] = has ? p->step[i] : 1;
    c->dilation[i] = has ? p->dilation[i] : 1;
    c->pad[i] = has ? p->lo[i] : 0;
  }
  find_places(c);
}

/* The sum of dy over all but its channels. */
static quern_tensor *bias_gradient(quern_tensor *dy) {
  int64_t axes[QUERN_MAX_RANK];
  int n = 0;
  for (int k = 0; k < dy->rank; k++)
    if (k != 1) axes[n++] = k;
  return quern_sum(dy, n, axes, false);
}

static quern_tensor *add_bias(quern_tensor *y, quern_tensor *bias) {
  int64_t dims[QUERN_MAX_RANK] = {bias->dims[0], 1, 1, 1};
  return quern_add(y, quern_reshape(bias, y->rank - 1, dims));
}

/* Which parameter of a gradient's body result i is computed from, x or w beside dy: the other one's gradient. */
static enum pass_conv_part part_of(quern_context *ctx, const struct ir_graph *body, int i, quern_status *status) {
  struct ir_order order;
  bool reads[2] = {false, false};
  *status = ir_topo(ctx, 1, &body->results[i], &order);
  if (*status != QUERN_STATUS_OK) return PASS_CONV_PARTS;
  for (size_t k = 0; k < order.n; k++)
    if (order.at[k]->op == IR_PARAM && order.at[k]->attrs->index < 2) reads[order.at[k]->attrs->index] = true;
  ir_order_fini(ctx, &order);
  return reads[1] ? PASS_CONV_INPUT_GRAD : reads[0] ? PASS_CONV_WEIGHT_GRAD : PASS_CONV_PARTS;
}

static quern_status place_gradients(const struct ir_node *node, const struct pass_conv *c, bool transposed,
                                    quern_tensor *const *src, quern_tensor **out) {
  quern_tensor *dy = src[node->n_src - 1];
  for (int i = 0; i < node->n_out; i++) {
    quern_status status;
    struct pass_conv own = *c;
    own.part = part_of(node->ctx, node->attrs->body, i, &status);
    QUERN_TRY(status);
    if (own.part == PASS_CONV_PARTS) {
      out[i] = bias_gradient(dy);
    } else if (own.part == PASS_CONV_INPUT_GRAD && transposed) {
      own.part = PASS_CONV_FORWARD;
      QUERN_TRY(make(node->ctx, &own, dy, src[1], &out[i]));
    } else if (own.part == PASS_CONV_INPUT_GRAD) {
      QUERN_TRY(make(node->ctx, &own, src[1], dy, &out[i]));
    } else {
      QUERN_TRY(make(node->ctx, &own, transposed ? dy : src[0], transposed ? src[0] : dy, &out[i]));
    }
  }
  return quern_context_check(node->ctx);
}

static quern_status place_forward(const struct ir_node *node, const struct pass_conv *c, bool transposed, bool bias,
                                  quern_tensor *const *src, quern_tensor **out) {
  struct pass_conv own = *c;
  own.part = transposed ? PASS_CONV_INPUT_GRAD : PASS_CONV_FORWARD;
  QUERN_TRY(make(node->ctx, &own, src[transposed ? 1 : 0], src[transposed ? 0 : 1], out));
  if (bias) out[0] = add_bias(out[0], src[2]);
  return quern_context_check(node->ctx);
}

quern_status pass_place_convolution(const struct pass_options *options, const struct ir_node *node,
                                    quern_tensor *const *src, quern_tensor **out, bool *placed) {
  static const char *const names[] = {"conv", "conv_transpose", "conv.vjp", "conv_transpose.vjp"};
  struct plain p;
  struct pass_conv c;
  size_t name = 0;
  *placed = false;
  while (name < BASE_COUNT(names) && strcmp(node->attrs->name, names[name]) != 0) name++;
  bool transposed = name % 2 == 1, back = name >= 2;
  if (name == BASE_COUNT(names) || options->no_convolutions || options->target == NULL || options->supports == NULL ||
      node->attrs->ints.n != sizeof p / sizeof(int64_t))
    return QUERN_STATUS_OK;
  memcpy(&p, node->attrs->ints.at, sizeof p);
  int spatial = src[0]->rank - 2;
  const quern_tensor *y = back ? src[node->n_src - 1] : &node->out[0];
  if (!is_even(&p, spatial) || ir_count(y) == 0 || ir_count(src[0]) == 0) return QUERN_STATUS_OK;
  describe(&c, transposed ? y : src[0], src[1], &p);
  const quern_tensor *result = transposed ? src[0] : y;
  for (int i = 0; i < spatial; i++)
    if (c.out[i] != result->dims[2 + i]) return QUERN_STATUS_OK;
  *placed = !is_product(&c) && pass_conv_is_known(options->target, &c, src[0]->dtype);
  if (!*placed) return QUERN_STATUS_OK;
  return back ? place_gradients(node, &c, transposed, src, out)
              : place_forward(node, &c, transposed, p.bias != 0, src, out);
}

bool pass_conv_is_known(const struct base_target *target, const struct pass_conv *c, quern_dtype dtype) {
  bool known = (target->capabilities & BASE_LIBRARY_DNN) != 0 &&
               (dtype == QUERN_DTYPE_BF16 || dtype == QUERN_DTYPE_F16 || dtype == QUERN_DTYPE_F32);
  const int64_t extents[] = {c->samples, c->channels, c->outputs};
  for (size_t i = 0; i < BASE_COUNT(extents); i++) known = known && extents[i] > 0 && extents[i] <= INT32_MAX;
  for (int i = 0; i < MAX_SPATIAL; i++) known = known && c->in[i] > 0 && c->in[i] <= INT32_MAX && c->out[i] > 0;
  return known;
}
