/* bench/peers/onednn.c -- oneDNN 2.x: matrix products by both of its interfaces, linear + GELU, convolution
** cases: gemm m k n api=sgemm|matmul (0|1) packed; linear_gelu m k n packed; conv n c h w o kh kw stride pad
*/
#define _DEFAULT_SOURCE /* madvise */
#include <oneapi/dnnl/dnnl.h>

#include "peer.h"

#define TRY(call)                                                                                                      \
  do {                                                                                                                 \
    if ((call) != dnnl_success) return "oneDNN refused: " #call;                                                       \
  } while (0)

static dnnl_engine_t engine;
static dnnl_stream_t stream;

static struct {
  int sgemm; /* else the primitive */
  int64_t m, k, n;
  float *a, *b, *c, *bias;
  dnnl_primitive_t primitive;
  dnnl_memory_t memories[8];
  int n_memories, n_args;
  dnnl_exec_arg_t args[4];
} work;

static void run(void) {
  if (work.sgemm) {
    (void)dnnl_sgemm('N', 'N', work.m, work.n, work.k, 1, work.a, work.k, work.b, work.n, 0, work.c, work.n);
    return;
  }
  (void)dnnl_primitive_execute(work.primitive, stream, work.n_args, work.args);
  (void)dnnl_stream_wait(stream);
}

static void release(void) {
  for (int i = 0; i < work.n_memories; i++) dnnl_memory_destroy(work.memories[i]);
  if (work.primitive != NULL) dnnl_primitive_destroy(work.primitive);
  free(work.a), free(work.b), free(work.c), free(work.bias);
  memset(&work, 0, sizeof work);
}

static const char *add_arg(int arg, const dnnl_memory_desc_t *desc, void *data) {
  dnnl_memory_t memory;
  TRY(dnnl_memory_create(&memory, desc, engine, data));
  work.memories[work.n_memories++] = memory;
  work.args[work.n_args++] = (dnnl_exec_arg_t){arg, memory};
  return NULL;
}

/* The argument in the layout that the primitive asks for: reordered once, before it is timed. */
static const char *add_packed(int arg, const dnnl_memory_desc_t *want, const dnnl_memory_desc_t *have, void *data) {
  if (dnnl_memory_desc_equal(want, have)) return add_arg(arg, have, data);
  const char *why = add_arg(arg, want, DNNL_MEMORY_ALLOCATE);
  if (why != NULL) return why;
  dnnl_memory_t to = work.args[work.n_args - 1].memory, from;
  dnnl_primitive_desc_t desc;
  dnnl_primitive_t reorder;
  TRY(dnnl_memory_create(&from, have, engine, data));
  work.memories[work.n_memories++] = from;
  TRY(dnnl_reorder_primitive_desc_create(&desc, have, engine, want, engine, NULL));
  TRY(dnnl_primitive_create(&reorder, desc));
  dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
  TRY(dnnl_primitive_execute(reorder, stream, 2, args));
  TRY(dnnl_stream_wait(stream));
  dnnl_primitive_destroy(reorder);
  dnnl_primitive_desc_destroy(desc);
  return NULL;
}

static const char *prepare_matmul(int packed, int gelu) {
  dnnl_dims_t da = {work.m, work.k}, db = {work.k, work.n}, dc = {work.m, work.n}, dbias = {1, work.n};
  dnnl_memory_desc_t a, b, plain, c, bias;
  TRY(dnnl_memory_desc_init_by_tag(&a, 2, da, dnnl_f32, dnnl_ab));
  TRY(dnnl_memory_desc_init_by_tag(&plain, 2, db, dnnl_f32, dnnl_ab));
  TRY(dnnl_memory_desc_init_by_tag(&b, 2, db, dnnl_f32, packed ? dnnl_format_tag_any : dnnl_ab));
  TRY(dnnl_memory_desc_init_by_tag(&c, 2, dc, dnnl_f32, dnnl_ab));
  TRY(dnnl_memory_desc_init_by_tag(&bias, 2, dbias, dnnl_f32, dnnl_ab));
  dnnl_matmul_desc_t op;
  dnnl_primitive_attr_t attr;
  dnnl_primitive_desc_t desc;
  TRY(dnnl_matmul_desc_init(&op, &a, &b, gelu ? &bias : NULL, &c));
  TRY(dnnl_primitive_attr_create(&attr));
  if (gelu) {
    dnnl_post_ops_t post;
    TRY(dnnl_post_ops_create(&post));
    TRY(dnnl_post_ops_append_eltwise(post, 1, dnnl_eltwise_gelu_erf, 0, 0));
    TRY(dnnl_primitive_attr_set_post_ops(attr, post));
    dnnl_post_ops_destroy(post);
  }
  TRY(dnnl_primitive_desc_create(&desc, &op, attr, engine, NULL));
  const dnnl_memory_desc_t *want = dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0);
  TRY(dnnl_primitive_create(&work.primitive, desc));
  const char *why = add_arg(DNNL_ARG_SRC, &a, work.a);
  if (why == NULL) why = add_packed(DNNL_ARG_WEIGHTS, want, &plain, work.b);
  if (why == NULL) why = add_arg(DNNL_ARG_DST, &c, work.c);
  if (why == NULL && gelu) why = add_arg(DNNL_ARG_BIAS, &bias, work.bias);
  dnnl_primitive_attr_destroy(attr);
  dnnl_primitive_desc_destroy(desc);
  return why;
}

/* Source, weights and result in the layouts oneDNN likes best: reorders are not timed. */
static const char *prepare_conv(const char *line) {
  int64_t n = peer_value(line, "n", 1), c = peer_value(line, "c", 1), h = peer_value(line, "h", 1),
          w = peer_value(line, "w", 1), o = peer_value(line, "o", 1), kh = peer_value(line, "kh", 1),
          kw = peer_value(line, "kw", 1), stride = peer_value(line, "stride", 1), pad = peer_value(line, "pad", 0);
  int64_t oh = (h + 2 * pad - kh) / stride + 1, ow = (w + 2 * pad - kw) / stride + 1;
  dnnl_dims_t dsrc = {n, c, h, w}, dweights = {o, c, kh, kw}, ddst = {n, o, oh, ow}, strides = {stride, stride},
              pads = {pad, pad};
  dnnl_memory_desc_t src, weights, dst, plain_src, plain_weights;
  TRY(dnnl_memory_desc_init_by_tag(&src, 4, dsrc, dnnl_f32, dnnl_format_tag_any));
  TRY(dnnl_memory_desc_init_by_tag(&weights, 4, dweights, dnnl_f32, dnnl_format_tag_any));
  TRY(dnnl_memory_desc_init_by_tag(&dst, 4, ddst, dnnl_f32, dnnl_format_tag_any));
  TRY(dnnl_memory_desc_init_by_tag(&plain_src, 4, dsrc, dnnl_f32, dnnl_nchw));
  TRY(dnnl_memory_desc_init_by_tag(&plain_weights, 4, dweights, dnnl_f32, dnnl_oihw));
  dnnl_convolution_desc_t op;
  dnnl_primitive_desc_t desc;
  TRY(dnnl_convolution_forward_desc_init(&op, dnnl_forward_inference, dnnl_convolution_direct, &src, &weights, NULL,
                                         &dst, strides, pads, pads));
  TRY(dnnl_primitive_desc_create(&desc, &op, NULL, engine, NULL));
  TRY(dnnl_primitive_create(&work.primitive, desc));
  work.a = peer_floats(n * c * h * w);
  work.b = peer_floats(o * c * kh * kw);
  const char *why =
      add_packed(DNNL_ARG_SRC, dnnl_primitive_desc_query_md(desc, dnnl_query_src_md, 0), &plain_src, work.a);
  if (why == NULL)
    why = add_packed(DNNL_ARG_WEIGHTS, dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0), &plain_weights,
                     work.b);
  if (why == NULL)
    why = add_arg(DNNL_ARG_DST, dnnl_primitive_desc_query_md(desc, dnnl_query_dst_md, 0), DNNL_MEMORY_ALLOCATE);
  dnnl_primitive_desc_destroy(desc);
  return why;
}

static const char *prepare(const char *kind, const char *line) {
  int gemm = strcmp(kind, "gemm") == 0, gelu = strcmp(kind, "linear_gelu") == 0;
  const char *why = "this peer has no such work";
  if (gemm || gelu) {
    work.m = peer_value(line, "m", 1);
    work.k = peer_value(line, "k", 1);
    work.n = peer_value(line, "n", 1);
    work.a = peer_floats(work.m * work.k);
    work.b = peer_floats(work.k * work.n);
    work.c = peer_floats(work.m * work.n);
    work.bias = peer_floats(work.n);
    work.sgemm = gemm && peer_value(line, "api", 1) == 0;
    why = work.sgemm ? NULL : prepare_matmul(peer_value(line, "packed", 0) != 0, gelu);
  } else if (strcmp(kind, "conv") == 0) {
    why = prepare_conv(line);
  }
  if (why != NULL) release();
  if (why == NULL) run();
  return why;
}

int main(void) {
  char version[64];
  const dnnl_version_t *v = dnnl_version();
  snprintf(version, sizeof version, "%d.%d.%d", v->major, v->minor, v->patch);
  if (dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success) return 1;
  if (dnnl_stream_create(&stream, engine, dnnl_stream_default_flags) != dnnl_success) return 1;
  return peer_main(&(struct peer){"onednn", version, prepare, run, release});
}
