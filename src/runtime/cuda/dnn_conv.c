/* runtime/cuda/dnn_conv.c -- a convolution or one of its gradients as cuDNN's descriptors: one operation on three tensors
** Their dims are given as (sample, channel, places), their strides as they lie: channels last. cuDNN has no convolutions of one
** spatial axis: those get a first axis of one place.
** see: docs/design/008-libraries.md      tests: tests/runtime/test_dnn.c
*/
#include "runtime/cuda/dnn.h"

enum { LEAST_SPATIAL = 2, MOST_AXES = 2 + KERN_CONV_SPATIAL, ALIGNMENT = 16 };

static int spatial_of(const struct kern_conv *c) { return BASE_MAX(c->spatial, LEAST_SPATIAL); }

/* Numbers of the spatial axes as the library wants them; `none`: of an axis that there is not. */
static void spread(const struct kern_conv *c, const int64_t *from, int64_t none, int64_t *to) {
  int more = spatial_of(c) - c->spatial;
  for (int i = 0; i < spatial_of(c); i++) to[i] = i < more ? none : from[i - more];
}

static void *tensor(struct rt_dnn_graph *g, int64_t id, int mem, int64_t rows, int64_t columns, const int64_t *places) {
  struct rt_dnn_plan *plan = g->plan;
  const int64_t alignment = ALIGNMENT;
  int n = 2 + spatial_of(g->conv), at = plan->n_tensors;
  int64_t dims[MOST_AXES] = {rows, columns}, strides[MOST_AXES], reach = columns;
  spread(g->conv, places, 1, dims + 2);
  strides[1] = 1;
  for (int k = n - 1; k >= 2; k--) {
    strides[k] = reach;
    reach *= dims[k];
  }
  strides[0] = reach;
  if (g->failed != QUERN_STATUS_OK) return NULL;
  plan->n_tensors++;
  plan->id[at] = id;
  plan->mem[at] = mem;
  plan->at[at] = 0;
  void *d = rt_dnn_make(g, RT_DNN_TENSOR);
  rt_dnn_set(g, d, RT_DNN_TENSOR_DTYPE, RT_DNN_TYPE_DTYPE, 1, &g->dtype);
  rt_dnn_set(g, d, RT_DNN_TENSOR_DIMS, RT_DNN_TYPE_INT64, n, dims);
  rt_dnn_set(g, d, RT_DNN_TENSOR_STRIDES, RT_DNN_TYPE_INT64, n, strides);
  rt_dnn_set(g, d, RT_DNN_TENSOR_ID, RT_DNN_TYPE_INT64, 1, &id);
  rt_dnn_set(g, d, RT_DNN_TENSOR_ALIGNMENT, RT_DNN_TYPE_INT64, 1, &alignment);
  rt_dnn_finish(g, d);
  return d;
}

static void *describe(struct rt_dnn_graph *g) {
  const struct kern_conv *c = g->conv;
  const int dtype = RT_DNN_F32, mode = RT_DNN_CROSS_CORRELATION;
  const int64_t n = spatial_of(c);
  int64_t dilation[KERN_CONV_SPATIAL], step[KERN_CONV_SPATIAL], pad[KERN_CONV_SPATIAL];
  spread(c, c->dilation, 1, dilation);
  spread(c, c->step, 1, step);
  spread(c, c->pad, 0, pad);
  void *d = rt_dnn_make(g, RT_DNN_CONV);
  rt_dnn_set(g, d, RT_DNN_CONV_DTYPE, RT_DNN_TYPE_DTYPE, 1, &dtype);
  rt_dnn_set(g, d, RT_DNN_CONV_MODE, RT_DNN_TYPE_CONV_MODE, 1, &mode);
  rt_dnn_set(g, d, RT_DNN_CONV_SPATIAL, RT_DNN_TYPE_INT64, 1, &n);
  rt_dnn_set(g, d, RT_DNN_CONV_DILATIONS, RT_DNN_TYPE_INT64, n, dilation);
  rt_dnn_set(g, d, RT_DNN_CONV_STRIDES, RT_DNN_TYPE_INT64, n, step);
  rt_dnn_set(g, d, RT_DNN_CONV_PAD_LO, RT_DNN_TYPE_INT64, n, pad);
  rt_dnn_set(g, d, RT_DNN_CONV_PAD_HI, RT_DNN_TYPE_INT64, n, pad);
  rt_dnn_finish(g, d);
  return d;
}

void rt_dnn_conv_build(struct rt_dnn_graph *g) {
  static const struct {
    int op, first; /* its descriptor and the number of its first attribute */
  } parts[KERN_CONV_PARTS] = {[KERN_CONV_FORWARD] = {RT_DNN_CONV_FORWARD_OP, RT_DNN_CONV_FORWARD_OP_ALPHA},
                              [KERN_CONV_INPUT_GRAD] = {RT_DNN_CONV_INPUT_OP, RT_DNN_CONV_INPUT_OP_ALPHA},
                              [KERN_CONV_WEIGHT_GRAD] = {RT_DNN_CONV_WEIGHT_OP, RT_DNN_CONV_WEIGHT_OP_ALPHA}};
  const struct kern_conv *c = g->conv;
  const float alpha = 1, beta = 0;
  void *parts_of[4];
  parts_of[0] = describe(g);
  parts_of[1] = tensor(g, RT_DNN_W, c->w, c->outputs, c->channels / c->groups, c->window);
  parts_of[2] = tensor(g, RT_DNN_X, c->x, c->samples, c->channels, c->in);
  parts_of[3] = tensor(g, RT_DNN_CONV_Y, c->y, c->samples, c->outputs, c->out);
  int first = parts[c->part].first;
  void *d = rt_dnn_make(g, parts[c->part].op);
  rt_dnn_set(g, d, first, RT_DNN_TYPE_FLOAT, 1, &alpha);
  rt_dnn_set(g, d, first + 1, RT_DNN_TYPE_FLOAT, 1, &beta);
  for (int i = 0; i < 4; i++) rt_dnn_set(g, d, first + 2 + i, RT_DNN_TYPE_DESCRIPTOR, 1, &parts_of[i]);
  rt_dnn_finish(g, d);
  if (g->failed == QUERN_STATUS_OK) g->ops[g->n_ops++] = d;
}
