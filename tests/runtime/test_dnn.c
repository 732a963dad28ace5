/* tests/runtime/test_dnn.c -- attention and convolutions by cuDNN: which graph it is given, which algorithm is taken, what it is given, and what fails
** The library is a fake that remembers what it was told. With a GPU: make test-cuda.
*/
#include <math.h>

#include "runtime/cuda/libraries.h"
#include "runtime/cuda/dnn.h"

#define TEST_CONTEXT_NEW ir_context_new
#include "unit.h"

#include "files.h"

/* ---- a library -------------------------------------------------------------------------------------------- */

enum { FAILURE = 4002, REFUSAL = 3001, MOST_OBJECTS = 8192, MOST_PAIRS = 24 };

struct object {
  int type;
  bool finished;
  int n; /* attributes */
  struct {
    int name;
    int64_t count, words[64];
  } at[MOST_PAIRS];
};

static struct {
  int version, calls, fail; /* functions called; the one that fails, 0: none */
  int live;
  struct object *objects[MOST_OBJECTS]; /* that there are, `live` of them */
  int64_t n_configs, bytes[4];          /* that it advises, and the workspace of each */
  bool varies[4], refuses[4];
  bool refuses_text;
  int64_t more;     /* that a plan needs beside what its algorithm said */
  int plans, texts; /* that were finished: of algorithms, and of texts */
  int runs, fills, closed;
  unsigned words[4];
  struct object last;    /* the last pack that was run */
  void *stream, *handle; /* handle: that may be used; NULL: the fake's own */
} fake;

static int step(void) { return ++fake.calls == fake.fail ? FAILURE : 0; }

static size_t fake_version(void) { return (size_t)fake.version; }
static const char *fake_error_text(int code) { return code == REFUSAL ? "refused" : "failed"; }
static void fake_last_error(char *text, size_t n) { snprintf(text, n, "%s", "planted"); }
static int fake_open(void **handle) {
  *handle = &fake;
  return step();
}
static void check_handle(const void *handle) { assert_ptr_equal(handle, fake.handle != NULL ? fake.handle : &fake); }
static int fake_close(void *handle) {
  check_handle(handle);
  fake.closed++;
  return 0;
}
static int fake_set_stream(void *handle, void *stream) {
  check_handle(handle);
  fake.stream = stream;
  return step();
}
static int fake_make(int type, void **made) {
  int code = step();
  if (code != 0) return code;
  struct object *o = calloc(1, sizeof *o);
  assert_true(o != NULL && fake.live < MOST_OBJECTS);
  o->type = type;
  *made = fake.objects[fake.live++] = o;
  return 0;
}
static int fake_drop(void *made) {
  int i = 0;
  while (i < fake.live && fake.objects[i] != made) i++;
  assert_true(i < fake.live);
  fake.objects[i] = fake.objects[--fake.live];
  free(made);
  return 0;
}
static const int64_t *find_words(const struct object *o, int name, int64_t *count) {
  for (int i = 0; i < o->n; i++) {
    if (o->at[i].name != name) continue;
    if (count != NULL) *count = o->at[i].count;
    return o->at[i].words;
  }
  return NULL;
}
static int number_of_way(const struct object *config) { return (int)find_words(config, -1, NULL)[0]; }
static void put(struct object *o, int name, int64_t count, int64_t word) {
  o->at[o->n].name = name;
  o->at[o->n].count = count;
  o->at[o->n++].words[0] = word;
}

static int fake_set(void *made, int name, int type, int64_t count, const void *at) {
  struct object *o = made;
  int code = step();
  assert_true(!o->finished && o->n < MOST_PAIRS && count <= 64);
  if (code != 0) return code;
  size_t size = type == RT_DNN_TYPE_BOOL || type == RT_DNN_TYPE_CHAR ? 1
                : type == RT_DNN_TYPE_INT64 || type == RT_DNN_TYPE_POINTER || type == RT_DNN_TYPE_HANDLE ||
                        type == RT_DNN_TYPE_DESCRIPTOR
                    ? 8
                    : 4;
  o->at[o->n].name = name;
  o->at[o->n].count = count;
  for (int64_t i = 0; i < count; i++) memcpy(&o->at[o->n].words[i], (const char *)at + (size_t)i * size, size);
  if (type == RT_DNN_TYPE_DESCRIPTOR)
    for (int64_t i = 0; i < count; i++) assert_true(((struct object *const *)at)[i]->finished);
  o->n++;
  return 0;
}
/* The algorithm of a plan: of its config, or the first letter of its text. */
static int way_of_plan(const struct object *o) {
  const int64_t *text = find_words(o, RT_DNN_PLAN_TEXT, NULL);
  if (text != NULL) return (int)(text[0] - 'a');
  return number_of_way((const void *)(intptr_t)find_words(o, RT_DNN_PLAN_CONFIG, NULL)[0]);
}
static int fake_finish(void *made) {
  struct object *o = made;
  int code = step();
  if (code != 0) return code;
  if (o->type == RT_DNN_PLAN) {
    bool text = find_words(o, RT_DNN_PLAN_TEXT, NULL) != NULL;
    if (fake.refuses[way_of_plan(o)] || (text && fake.refuses_text)) return REFUSAL;
    fake.plans += !text;
    fake.texts += text;
  }
  o->finished = true;
  return 0;
}
static int fake_get(void *made, int name, int type, int64_t room, int64_t *count, void *at) {
  struct object *o = made;
  int code = step();
  (void)type;
  if (code != 0) return code;
  if (name == RT_DNN_ADVICE_RESULTS) {
    *count = fake.n_configs;
    for (int64_t i = 0; i < fake.n_configs && i < room; i++) {
      struct object *config = ((struct object **)at)[i];
      put(config, -1, 1, i);
      config->finished = true;
    }
    return 0;
  }
  if (name == RT_DNN_CONFIG_ENGINE) put(*(struct object **)at, -1, 1, number_of_way(o));
  if (name == RT_DNN_ENGINE_NOTES) {
    *count = fake.varies[number_of_way(o)] ? 2 : 1;
    ((int *)at)[0] = 0;
    ((int *)at)[1] = RT_DNN_NOTE_VARIES;
  }
  if (name == RT_DNN_CONFIG_BYTES) *(int64_t *)at = fake.bytes[number_of_way(o)];
  if (name == RT_DNN_PLAN_BYTES) *(int64_t *)at = fake.bytes[way_of_plan(o)] + fake.more;
  if (name == RT_DNN_PLAN_TEXT) {
    *count = 4;
    if (room >= 4) memcpy(at, (const char[]){(char)('a' + way_of_plan(o)), 'n', 'y', 0}, 4);
  }
  return 0;
}
static int fake_execute(void *handle, void *plan, void *pack) {
  const struct object *o = pack;
  check_handle(handle);
  assert_true(((struct object *)plan)->finished && o->finished);
  fake.last = *o;
  fake.runs++;
  return step();
}
static int fake_fill(uint64_t at, unsigned word, size_t n, void *stream) {
  assert_true(at != 0 && n == 2 && stream == fake.stream);
  fake.words[fake.fills++ % 4] = word;
  return step();
}

static struct rt_dnn library(int version) {
  memset(&fake, 0, sizeof fake);
  fake.version = version;
  fake.n_configs = 2;
  fake.bytes[0] = fake.bytes[1] = 1000;
  struct rt_dnn dnn = {.version = fake_version,
                       .error_text = fake_error_text,
                       .last_error = fake_last_error,
                       .open = fake_open,
                       .close = fake_close,
                       .set_stream = fake_set_stream,
                       .make = fake_make,
                       .drop = fake_drop,
                       .finish = fake_finish,
                       .set = fake_set,
                       .get = fake_get,
                       .execute = fake_execute,
                       .handle = &fake,
                       .fill = fake_fill};
  EXPECT_OK(rt_dnn_check_version(&dnn));
  return dnn;
}

/* ---- kernels ---------------------------------------------------------------------------------------------- */

enum { B = 2, H = 4, G = 2, S = 64, D = 16, W = (H + 2 * G) * D };

/* q k v packed, y, lse, dy, all gradients, a workspace. */
static struct kern *make_kernel(int64_t keys, quern_dtype dtype, bool back, bool exact, int64_t work) {
  struct kern *kern = NULL;
  EXPECT_OK(kern_new(&kern, &ctx->heap));
  kern_add_mem(kern, dtype, KERN_IN, B * keys * W);
  kern_add_mem(kern, dtype, back ? KERN_IN : KERN_OUT, B * S * H * D);
  kern_add_mem(kern, QUERN_DTYPE_F32, back ? KERN_IN : KERN_OUT, B * H * S);
  if (back) kern_add_mem(kern, dtype, KERN_IN, B * S * H * D);
  if (back) kern_add_mem(kern, dtype, KERN_OUT, B * keys * W);
  struct kern_library_call call = {.kind = back ? KERN_LIBRARY_ATTENTION_BACK : KERN_LIBRARY_ATTENTION};
  call.attention = (struct kern_attention){.batch = B,
                                           .heads = H,
                                           .kv_heads = G,
                                           .queries = S,
                                           .keys = keys,
                                           .width = D,
                                           .value_width = D,
                                           .scale = 0.25,
                                           .causal = true,
                                           .exact = exact,
                                           .q = {0, 0, keys * W, D, W},
                                           .k = {0, H * D, keys * W, D, W},
                                           .v = {0, (H + G) * D, keys * W, D, W},
                                           .y = {1, 0, S * H * D, D, H * D},
                                           .lse = 2};
  struct kern_attention *a = &call.attention;
  a->dy = a->y, a->dq = a->q, a->dk = a->k, a->dv = a->v;
  a->dy.mem = 3;
  a->dq.mem = a->dk.mem = a->dv.mem = 4;
  call.work = kern_add_mem(kern, QUERN_DTYPE_U8, KERN_WORK, work);
  kern_add_library_call(kern, &call);
  EXPECT_OK(kern_finish(kern, "attention", NULL));
  EXPECT_OK(kern_verify(kern, NULL));
  return kern;
}

static const struct object *tensor_of(int64_t id) {
  for (int i = 0; i < fake.live; i++)
    if (fake.objects[i]->type == RT_DNN_TENSOR && find_words(fake.objects[i], RT_DNN_TENSOR_ID, NULL)[0] == id)
      return fake.objects[i];
  return NULL;
}

static void expect_tensor(int64_t id, int dtype, const int64_t dims[4], const int64_t strides[4]) {
  const struct object *o = tensor_of(id);
  assert_non_null(o);
  assert_int_equal(find_words(o, RT_DNN_TENSOR_DTYPE, NULL)[0], dtype);
  assert_memory_equal(find_words(o, RT_DNN_TENSOR_DIMS, NULL), dims, 32);
  assert_memory_equal(find_words(o, RT_DNN_TENSOR_STRIDES, NULL), strides, 32);
  assert_null(find_words(o, RT_DNN_TENSOR_VIRTUAL, NULL));
}
#define FOUR(...)                                                                                                      \
  (const int64_t[4]) { __VA_ARGS__ }

static int count_ops(int type) {
  int n = 0;
  for (int i = 0; i < fake.live; i++) n += fake.objects[i]->type == type;
  return n;
}

/* ---- what it is given ----------------------------------------------------------------------------------------- */

static void test_forward(void **state) {
  (void)state;
  struct rt_dnn dnn = library(91900);
  struct kern *kern = make_kernel(S, QUERN_DTYPE_BF16, false, true, 1);
  struct rt_dnn_plan plan;
  EXPECT_OK(rt_dnn_plan_make(&plan, &dnn, kern, 0, INT64_MAX));
  expect_tensor(RT_DNN_Q, RT_DNN_BF16, FOUR(B, H, S, D), FOUR(S * W, D, W, 1));
  expect_tensor(RT_DNN_K, RT_DNN_BF16, FOUR(B, G, D, S), FOUR(S * W, D, 1, W)); /* k' */
  expect_tensor(RT_DNN_V, RT_DNN_BF16, FOUR(B, G, S, D), FOUR(S * W, D, W, 1));
  expect_tensor(RT_DNN_Y, RT_DNN_BF16, FOUR(B, H, S, D), FOUR(S * H * D, D, H * D, 1));
  expect_tensor(RT_DNN_LSE, RT_DNN_F32, FOUR(B, H, S, 1), FOUR(H * S, S, 1, 1));
  assert_null(tensor_of(RT_DNN_KEYS)); /* as many keys as queries */
  assert_int_equal(count_ops(RT_DNN_PRODUCT_OP), 2);
  assert_int_equal(count_ops(RT_DNN_REDUCTION_OP), 2);
  assert_int_equal(plan.bytes, 1024);

  char q[512], y[16], lse[16], work[16];
  void *mems[] = {q, y, lse, work};
  EXPECT_OK(rt_dnn_plan_run(&plan, &fake.words, mems, work));
  assert_ptr_equal(fake.stream, &fake.words);
  int64_t n = 0, m = 0;
  const int64_t *ids = find_words(&fake.last, RT_DNN_PACK_IDS, &n),
                *at = find_words(&fake.last, RT_DNN_PACK_POINTERS, &m);
  assert_true(n == m && n == 7);
  for (int64_t i = 0; i < n; i++) {
    const char *p = (const char *)(intptr_t)at[i];
    if (ids[i] == RT_DNN_V) assert_ptr_equal(p, q + 2 * (H + G) * D);
    if (ids[i] == RT_DNN_Y) assert_ptr_equal(p, y);
    if (ids[i] == RT_DNN_LSE) assert_ptr_equal(p, lse);
    if (ids[i] == RT_DNN_SCALE) assert_true(*(const float *)p == 0.25F);
    if (ids[i] == RT_DNN_LOW) assert_true(isinf(*(const float *)p) && *(const float *)p < 0);
  }
  assert_ptr_equal((void *)(intptr_t)find_words(&fake.last, RT_DNN_PACK_WORK, NULL)[0], work);
  rt_dnn_plan_free(&plan);
  assert_int_equal(fake.live, 0);
  kern_free(kern);
}

static void test_backward(void **state) {
  (void)state;
  static const struct {
    int version;
    int64_t keys;
    bool exact, lengths;
  } rows[] = {
      {91900, 200, true, false}, {91900, 128, false, false}, {91400, 128, true, false}, {91400, 200, false, true}};
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    int64_t T = rows[i].keys;
    struct rt_dnn dnn = library(rows[i].version);
    struct kern *kern = make_kernel(T, QUERN_DTYPE_F16, true, rows[i].exact, 1);
    struct rt_dnn_plan plan;
    EXPECT_OK(rt_dnn_plan_make(&plan, &dnn, kern, 0, INT64_MAX));
    expect_tensor(RT_DNN_K, RT_DNN_F16, FOUR(B, G, D, T), FOUR(T * W, D, 1, W));
    expect_tensor(RT_DNN_V, RT_DNN_F16, FOUR(B, G, D, T), FOUR(T * W, D, 1, W));
    expect_tensor(RT_DNN_DK, RT_DNN_F16, FOUR(B, G, T, D), FOUR(T * W, D, W, 1));
    expect_tensor(RT_DNN_DV, RT_DNN_F16, FOUR(B, G, T, D), FOUR(T * W, D, W, 1));
    assert_true((tensor_of(RT_DNN_DQ_SUMS) == NULL) == rows[i].exact);
    assert_true((tensor_of(RT_DNN_ALL_KEYS) != NULL) == rows[i].lengths);
    assert_true((tensor_of(RT_DNN_KEYS) != NULL) == !rows[i].lengths);
    assert_int_equal(count_ops(RT_DNN_PRODUCT_OP), 5);
    assert_int_equal(count_ops(RT_DNN_REDUCTION_OP), 3); /* of dy y, and over the heads that share keys and values */
    int64_t sums = B * H * S * 4, all = 1024 + sums + (rows[i].exact ? 0 : sums * D) + (rows[i].lengths ? 512 : 0);
    assert_int_equal(plan.bytes, all);
    char *work = calloc(1, (size_t)all);
    void *mems[] = {work, work, work, work, work, work};
    fake.stream = work;
    EXPECT_OK(rt_dnn_plan_run(&plan, work, mems, work));
    assert_int_equal(fake.fills, rows[i].lengths ? 2 : 0);
    if (rows[i].lengths) assert_true(fake.words[0] == S && fake.words[1] == T);
    int64_t n = 0;
    const int64_t *ids = find_words(&fake.last, RT_DNN_PACK_IDS, &n);
    const int64_t *at = find_words(&fake.last, RT_DNN_PACK_POINTERS, NULL);
    for (int64_t k = 0; k < n; k++) {
      if (ids[k] < RT_DNN_SUMS) continue;
      assert_true((char *)(intptr_t)at[k] >= work + 1024 && (char *)(intptr_t)at[k] < work + all);
    }
    free(work);
    rt_dnn_plan_free(&plan);
    assert_int_equal(fake.live, 0);
    kern_free(kern);
  }
}

/* ---- convolutions ----------------------------------------------------------------------------------------------- */

enum { CI = 8, CO = 16, PLACES = 10, SAMPLES = 3 };

/* Memories: two that are read and the one that is written. spatial axes are alike: a window of 3, step 2, padding 1. */
static struct kern *make_conv(enum kern_conv_part part, int spatial, quern_dtype dtype, bool tf32) {
  struct kern *kern = NULL;
  int64_t in = 1, out = 1, window = 1;
  struct kern_library_call call = {.kind = KERN_LIBRARY_CONV};
  struct kern_conv *c = &call.conv;
  *c = (struct kern_conv){.part = part,
                          .spatial = spatial,
                          .groups = 2,
                          .samples = SAMPLES,
                          .channels = CI,
                          .outputs = CO,
                          .exact = true,
                          .tf32 = tf32};
  for (int i = 0; i < KERN_CONV_SPATIAL; i++) {
    bool has = i < spatial;
    c->in[i] = has ? PLACES : 1, c->out[i] = has ? PLACES / 2 : 1, c->window[i] = has ? 3 : 1;
    c->step[i] = has ? 2 : 1, c->dilation[i] = 1, c->pad[i] = has;
    in *= c->in[i], out *= c->out[i], window *= c->window[i];
  }
  const int64_t counts[3] = {SAMPLES * in * CI, CO * window * CI / 2, SAMPLES * out * CO};
  int *const mems[3] = {&c->x, &c->w, &c->y};
  const int written = part == KERN_CONV_FORWARD ? 2 : part == KERN_CONV_INPUT_GRAD ? 0 : 1;
  EXPECT_OK(kern_new(&kern, &ctx->heap));
  for (int i = 0; i < 3; i++)
    if (i != written) *mems[i] = kern_add_mem(kern, dtype, KERN_IN, counts[i]);
  *mems[written] = kern_add_mem(kern, dtype, KERN_OUT, counts[written]);
  call.work = kern_add_mem(kern, QUERN_DTYPE_U8, KERN_WORK, 1);
  kern_add_library_call(kern, &call);
  EXPECT_OK(kern_finish(kern, "convolution", NULL));
  EXPECT_OK(kern_verify(kern, NULL));
  return kern;
}

static const struct object *only(int type) {
  const struct object *found = NULL;
  for (int i = 0; i < fake.live; i++)
    if (fake.objects[i]->type == type) {
      assert_null(found);
      found = fake.objects[i];
    }
  return found;
}

static void expect_numbers(const struct object *o, int name, int64_t count, const int64_t *want) {
  int64_t n = 0;
  const int64_t *got = find_words(o, name, &n);
  assert_non_null(got);
  assert_int_equal(n, count);
  assert_memory_equal(got, want, (size_t)count * sizeof *want);
}

static void test_convolutions(void **state) {
  (void)state;
  static const struct {
    enum kern_conv_part part;
    int op, first;
  } rows[] = {{KERN_CONV_FORWARD, RT_DNN_CONV_FORWARD_OP, RT_DNN_CONV_FORWARD_OP_ALPHA},
              {KERN_CONV_INPUT_GRAD, RT_DNN_CONV_INPUT_OP, RT_DNN_CONV_INPUT_OP_ALPHA},
              {KERN_CONV_WEIGHT_GRAD, RT_DNN_CONV_WEIGHT_OP, RT_DNN_CONV_WEIGHT_OP_ALPHA}};
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    struct rt_dnn dnn = library(91900);
    struct kern *kern = make_conv(rows[i].part, 2, QUERN_DTYPE_BF16, false);
    struct rt_dnn_plan plan;
    EXPECT_OK(rt_dnn_plan_make(&plan, &dnn, kern, 0, INT64_MAX));
    int64_t P = PLACES, Q = PLACES / 2;
    expect_tensor(RT_DNN_X, RT_DNN_BF16, FOUR(SAMPLES, CI, P, P), FOUR(P * P * CI, 1, P * CI, CI));
    expect_tensor(RT_DNN_W, RT_DNN_BF16, FOUR(CO, CI / 2, 3, 3), FOUR(9 * CI / 2, 1, 3 * CI / 2, CI / 2));
    expect_tensor(RT_DNN_CONV_Y, RT_DNN_BF16, FOUR(SAMPLES, CO, Q, Q), FOUR(Q * Q * CO, 1, Q * CO, CO));
    const struct object *how = only(RT_DNN_CONV), *op = only(rows[i].op);
    assert_true(how != NULL && op != NULL);
    expect_numbers(how, RT_DNN_CONV_SPATIAL, 1, FOUR(2));
    expect_numbers(how, RT_DNN_CONV_STRIDES, 2, FOUR(2, 2));
    expect_numbers(how, RT_DNN_CONV_DILATIONS, 2, FOUR(1, 1));
    expect_numbers(how, RT_DNN_CONV_PAD_LO, 2, FOUR(1, 1));
    expect_numbers(how, RT_DNN_CONV_PAD_HI, 2, FOUR(1, 1));
    assert_ptr_equal((void *)(intptr_t)find_words(op, rows[i].first + 2, NULL)[0], how);
    assert_ptr_equal((void *)(intptr_t)find_words(op, rows[i].first + 3, NULL)[0], tensor_of(RT_DNN_W));
    assert_ptr_equal((void *)(intptr_t)find_words(op, rows[i].first + 4, NULL)[0], tensor_of(RT_DNN_X));
    assert_ptr_equal((void *)(intptr_t)find_words(op, rows[i].first + 5, NULL)[0], tensor_of(RT_DNN_CONV_Y));
    char three[3][16], work[16];
    void *mems[] = {three[0], three[1], three[2], work};
    EXPECT_OK(rt_dnn_plan_run(&plan, &fake.words, mems, work));
    int64_t n = 0;
    const int64_t *ids = find_words(&fake.last, RT_DNN_PACK_IDS, &n),
                  *at = find_words(&fake.last, RT_DNN_PACK_POINTERS, NULL);
    assert_int_equal(n, 3);
    const struct kern_conv *c = &kern->library_call.conv;
    for (int64_t k = 0; k < n; k++)
      assert_ptr_equal((void *)(intptr_t)at[k], mems[ids[k] == RT_DNN_X ? c->x : ids[k] == RT_DNN_W ? c->w : c->y]);
    rt_dnn_plan_free(&plan);
    assert_int_equal(fake.live, 0);
    kern_free(kern);
  }
}

/* One axis is the second of two; three are three. */
static void test_convolutions_of_axes(void **state) {
  (void)state;
  for (int spatial = 1; spatial <= 3; spatial += 2) {
    struct rt_dnn dnn = library(91900);
    struct kern *kern = make_conv(KERN_CONV_FORWARD, spatial, QUERN_DTYPE_F16, false);
    struct rt_dnn_plan plan;
    EXPECT_OK(rt_dnn_plan_make(&plan, &dnn, kern, 0, INT64_MAX));
    const struct object *x = tensor_of(RT_DNN_X), *how = only(RT_DNN_CONV);
    int64_t P = PLACES;
    if (spatial == 1) {
      expect_numbers(x, RT_DNN_TENSOR_DIMS, 4, FOUR(SAMPLES, CI, 1, P));
      expect_numbers(x, RT_DNN_TENSOR_STRIDES, 4, FOUR(P * CI, 1, P * CI, CI));
      expect_numbers(how, RT_DNN_CONV_STRIDES, 2, FOUR(1, 2));
      expect_numbers(how, RT_DNN_CONV_PAD_LO, 2, FOUR(0, 1));
    } else {
      expect_numbers(x, RT_DNN_TENSOR_DIMS, 5, (const int64_t[]){SAMPLES, CI, P, P, P});
      expect_numbers(x, RT_DNN_TENSOR_STRIDES, 5, (const int64_t[]){P * P * P * CI, 1, P * P * CI, P * CI, CI});
      expect_numbers(how, RT_DNN_CONV_STRIDES, 3, FOUR(2, 2, 2));
    }
    rt_dnn_plan_free(&plan);
    assert_int_equal(fake.live, 0);
    kern_free(kern);
  }
}

/* Engines whose bits vary are left out, and of f32 those that round to tf32, unless they may; where the best advice has none, that for
** everything is asked for. The fake's engines all use tensor cores. */
static void test_convolutions_refused(void **state) {
  (void)state;
  struct rt_dnn dnn = library(91900);
  struct kern *kern = make_conv(KERN_CONV_WEIGHT_GRAD, 2, QUERN_DTYPE_BF16, false);
  struct kern *exact = make_conv(KERN_CONV_FORWARD, 2, QUERN_DTYPE_F32, false),
              *tf32 = make_conv(KERN_CONV_FORWARD, 2, QUERN_DTYPE_F32, true);
  struct rt_dnn_plan plan;
  EXPECT_ERROR(rt_dnn_plan_make(&plan, &dnn, exact, 0, INT64_MAX), UNSUPPORTED, "of 4 algorithms");
  EXPECT_OK(rt_dnn_plan_make(&plan, &dnn, tf32, 0, INT64_MAX));
  rt_dnn_plan_free(&plan);
  kern_free(exact);
  kern_free(tf32);
  EXPECT_OK(rt_dnn_plan_make(&plan, &dnn, kern, 0, INT64_MAX));
  assert_true(plan.config == 0 && plan.n_configs == 4);
  rt_dnn_plan_free(&plan);
  fake.varies[0] = true;
  EXPECT_OK(rt_dnn_plan_make(&plan, &dnn, kern, 0, INT64_MAX));
  assert_int_equal(plan.config, 1);
  rt_dnn_plan_free(&plan);
  fake.varies[1] = true;
  EXPECT_ERROR(rt_dnn_plan_make(&plan, &dnn, kern, 0, INT64_MAX), UNSUPPORTED,
               "has no kernel for this convolution, of 4 algorithms");
  assert_int_equal(fake.live, 0);
  kern_free(kern);
}

/* ---- which algorithm -------------------------------------------------------------------------------------------- */

static void test_ways(void **state) {
  (void)state;
  struct rt_dnn dnn = library(91900);
  struct kern *exact = make_kernel(S, QUERN_DTYPE_BF16, true, true, 1),
              *loose = make_kernel(S, QUERN_DTYPE_BF16, true, false, 1);
  struct rt_dnn_plan plan;
  fake.varies[0] = true;
  EXPECT_OK(rt_dnn_plan_make(&plan, &dnn, exact, 0, INT64_MAX));
  assert_int_equal(plan.config, 1);
  rt_dnn_plan_free(&plan);
  EXPECT_OK(rt_dnn_plan_make(&plan, &dnn, loose, 0, INT64_MAX));
  assert_int_equal(plan.config, 0);
  rt_dnn_plan_free(&plan);
  EXPECT_OK(rt_dnn_plan_make(&plan, &dnn, loose, 1, INT64_MAX)); /* the one that was settled */
  assert_int_equal(plan.config, 1);
  rt_dnn_plan_free(&plan);
  for (int odd = -1; odd <= 7; odd += 8) { /* of a file, perhaps: there is no such algorithm */
    EXPECT_OK(rt_dnn_plan_make(&plan, &dnn, loose, odd, INT64_MAX));
    assert_int_equal(plan.config, 0);
    rt_dnn_plan_free(&plan);
  }
  fake.varies[1] = true;
  EXPECT_ERROR(rt_dnn_plan_make(&plan, &dnn, exact, 0, INT64_MAX), UNSUPPORTED,
               "cuDNN 9.19.0 has no kernel for this attention's gradient, of 2 algorithms that it names: planted");
  fake.varies[0] = fake.varies[1] = false;
  fake.bytes[0] = 1 << 20;
  int64_t sums = B * H * S * 4;
  EXPECT_OK(rt_dnn_plan_make(&plan, &dnn, exact, 0, 4096 + sums));
  assert_int_equal(plan.config, 1);
  rt_dnn_plan_free(&plan);
  EXPECT_ERROR(rt_dnn_plan_make(&plan, &dnn, exact, 0, 1023 + sums), UNSUPPORTED, "has no kernel");
  EXPECT_OK(rt_dnn_plan_make(&plan, &dnn, exact, 0, 1024 + sums));
  rt_dnn_plan_free(&plan);
  fake.refuses[1] = true;
  EXPECT_OK(rt_dnn_plan_make(&plan, &dnn, exact, 1, INT64_MAX));
  assert_int_equal(plan.config, 0);
  rt_dnn_plan_free(&plan);
  fake.n_configs = 0;
  EXPECT_ERROR(rt_dnn_plan_make(&plan, &dnn, exact, 0, INT64_MAX), UNSUPPORTED, "of 0 algorithms");
  assert_int_equal(fake.live, 0);
  kern_free(exact);
  kern_free(loose);
}

/* ---- what fails ------------------------------------------------------------------------------------------- */

static void test_failures(void **state) {
  (void)state;
  struct kern *kern = make_kernel(200, QUERN_DTYPE_BF16, true, false, 1);
  char place[16];
  void *mems[] = {place, place, place, place, place, place};
  int n = 1, failed = 0;
  for (bool more = true; more; n++) {
    struct rt_dnn dnn = library(91400);
    struct rt_dnn_plan plan;
    fake.stream = place;
    fake.fail = n;
    quern_status status = rt_dnn_plan_make(&plan, &dnn, kern, 0, INT64_MAX);
    if (status == QUERN_STATUS_OK) {
      status = rt_dnn_plan_run(&plan, place, mems, place);
      rt_dnn_plan_free(&plan);
    }
    more = fake.calls >= n;
    failed += status != QUERN_STATUS_OK;
    assert_int_equal(fake.live, 0);
  }
  assert_true(failed > 300 && failed >= n - 10); /* an algorithm that cannot be asked about is left for the next */
  kern_free(kern);
}

static void test_versions(void **state) {
  (void)state;
  struct rt_dnn dnn = library(91900);
  static const struct {
    int version;
    const char *words;
  } rows[] = {{91001, "cuDNN 9.10.1 cannot be used: 9.10.2 or newer of version 9 is needed"},
              {80907, "cannot be used"},
              {100000, "cannot be used"}};
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    fake.version = rows[i].version;
    EXPECT_ERROR(rt_dnn_check_version(&dnn), UNSUPPORTED, rows[i].words);
  }
  fake.version = 91002;
  EXPECT_OK(rt_dnn_check_version(&dnn));
  assert_string_equal(dnn.identity, "cuDNN 9.10.2");
  EXPECT_OK(rt_dnn_check(&dnn, 0, "nothing"));
  EXPECT_ERROR(rt_dnn_check(&dnn, REFUSAL, "a graph"), UNSUPPORTED, "a graph: refused (3001): planted");
  EXPECT_ERROR(rt_dnn_check(&dnn, FAILURE, "a graph"), INTERNAL, "cuDNN 9.10.2: a graph: failed");
  EXPECT_ERROR(rt_dnn_check(&dnn, 4004, "a graph"), MEMORY, "a graph");
}

/* ---- the library of calls --------------------------------------------------------------------------------- */

static int pushed;
static int push(void *context) {
  pushed += context == NULL;
  return 0;
}
static int pop(void **context) {
  *context = NULL;
  pushed--;
  return 0;
}
static struct rt_cuda_driver driver = {.context_push = push, .context_pop = pop, .name = "fake", .major = 9};
static char work[16];
static void *const memories[] = {work, work, work, work, work, work};

enum { MANY = 100 }; /* plans */

/* Settles and plans a kernel. */
static void *plan_of(struct kern *kern, size_t bytes) {
  struct kern_library_call call = kern->library_call;
  size_t asked = 0;
  void *plan;
  EXPECT_OK(rt_cuda_dnn.query_algorithm(&driver, &ctx->heap, kern, &call, &asked));
  assert_int_equal(asked, bytes);
  assert_int_equal(call.algorithm[0], fake.version);
  kern->library_call = call;
  EXPECT_OK(rt_cuda_dnn.plan(&driver, &ctx->heap, kern, &plan));
  assert_int_equal(pushed, 0);
  return plan;
}

/* Kernels that do the same share a plan, which is made once and outlives them; plans that nobody uses make room for others. */
static void test_shared(void **state) {
  (void)state;
  struct rt_dnn dnn = library(91900);
  char identity[64];
  void *plans[3];
  EXPECT_OK(rt_dnn_use(&driver, &dnn));
  EXPECT_OK(rt_cuda_dnn.open(&driver, identity, sizeof identity));
  assert_string_equal(identity, "cuDNN 9.19.0");
  struct kern *kern = make_kernel(S, QUERN_DTYPE_BF16, false, true, 2048);
  for (int i = 0; i < 2; i++) plans[i] = plan_of(kern, 1024);
  assert_true(fake.plans == 1 && fake.texts == 1);
  EXPECT_OK(rt_cuda_dnn.run(&driver, plans[0], work, memories, work));
  assert_int_equal(fake.runs, 1);
  kern->mems[kern->library_call.work].count = 100; /* settled by another version, with less */
  EXPECT_ERROR(rt_cuda_dnn.plan(&driver, &ctx->heap, kern, &plans[2]), UNSUPPORTED, "needs 1024 bytes of workspace");
  struct kern *other = make_kernel(S, QUERN_DTYPE_F16, false, true, 2048);
  plans[2] = plan_of(other, 1024);
  assert_int_equal(fake.plans, 2);
  kern_free(other);
  for (int i = 0; i < 3; i++) rt_cuda_dnn.free(&driver, plans[i]);
  for (int i = 0; i < MANY; i++) { /* more than are kept */
    other = make_kernel(S + 1 + i, QUERN_DTYPE_BF16, false, true, 2048);
    rt_cuda_dnn.free(&driver, plan_of(other, 1024));
    kern_free(other);
  }
  assert_int_equal(fake.plans, 2 + MANY);
  int live = fake.live;
  other = make_kernel(S + 1 + MANY, QUERN_DTYPE_BF16, false, true, 2048);
  rt_cuda_dnn.free(&driver, plan_of(other, 1024));
  assert_int_equal(fake.live, live); /* one went for it */
  kern_free(other);
  rt_cuda_dnn.free(&driver, NULL);
  kern_free(kern);
  EXPECT_OK(rt_dnn_use(&driver, NULL));
  assert_int_equal(fake.live, 0);
}

/* Two devices of a process have a handle each, and plans of their own for the same call. */
static void test_two_devices(void **state) {
  (void)state;
  struct rt_dnn dnn = library(91900), another = dnn;
  static struct rt_cuda_driver second;
  struct rt_cuda_driver *const drivers[] = {&driver, &second};
  struct kern *kern = make_kernel(S, QUERN_DTYPE_BF16, false, true, 2048);
  struct kern_library_call call = kern->library_call;
  void *plans[2];
  second = (struct rt_cuda_driver){.context_push = push, .context_pop = pop, .name = "fake", .major = 9, .ordinal = 1};
  another.handle = &another;
  EXPECT_OK(rt_dnn_use(&driver, &dnn));
  EXPECT_OK(rt_dnn_use(&second, &another));
  for (int i = 0; i < 2; i++) {
    size_t bytes;
    fake.handle = i == 0 ? (void *)&fake : &another;
    EXPECT_OK(rt_cuda_dnn.query_algorithm(drivers[i], &ctx->heap, kern, &call, &bytes));
    kern->library_call = call;
    EXPECT_OK(rt_cuda_dnn.plan(drivers[i], &ctx->heap, kern, &plans[i]));
  }
  assert_ptr_not_equal(plans[0], plans[1]);
  for (int i = 0; i < 4; i++) { /* in turn */
    fake.handle = i % 2 == 0 ? (void *)&fake : &another;
    EXPECT_OK(rt_cuda_dnn.run(drivers[i % 2], plans[i % 2], work, memories, work));
  }
  assert_int_equal(fake.runs, 4);
  for (int i = 0; i < 2; i++) {
    fake.handle = i == 0 ? (void *)&fake : &another;
    rt_cuda_dnn.free(drivers[i], plans[i]);
    rt_cuda_dnn.close(drivers[i]);
    rt_cuda_dnn.close(drivers[i]); /* it is not open any more */
    assert_int_equal(fake.closed, i + 1);
  }
  kern_free(kern);
  assert_int_equal(fake.live, 0);
}

/* Any number of plans is in use, and each is run as it was made. */
static void test_many(void **state) {
  (void)state;
  struct rt_dnn dnn = library(91900);
  void *plans[MANY];
  EXPECT_OK(rt_dnn_use(&driver, &dnn));
  for (int i = 0; i < MANY; i++) {
    struct kern *kern = make_kernel(S + 1 + i, QUERN_DTYPE_F16, false, true, 2048);
    plans[i] = plan_of(kern, 1024);
    for (int k = 0; k < i; k++) assert_ptr_not_equal(plans[k], plans[i]);
    kern_free(kern);
  }
  assert_int_equal(fake.plans, MANY);
  for (int i = 0; i < MANY; i++) EXPECT_OK(rt_cuda_dnn.run(&driver, plans[i], work, memories, work));
  assert_int_equal(fake.runs, MANY);
  for (int i = 0; i < MANY; i++) rt_cuda_dnn.free(&driver, plans[i]);
  EXPECT_OK(rt_dnn_use(&driver, NULL));
  assert_int_equal(fake.live, 0);
}

/* A later process finds the text in the cache, and compiles nothing; another version, or a text that is refused, does. */
static void test_cached(void **state) {
  (void)state;
  struct kern *kern = make_kernel(S, QUERN_DTYPE_BF16, true, true, 1 << 20);
  size_t bytes = 1024 + B * H * S * 4;
  static const struct {
    int version, plans, texts;
    bool refuses;
  } rows[] = {
      {91900, 1, 1, false}, {91900, 0, 1, false}, {91901, 1, 1, false}, {91901, 2, 0, true}, {91901, 0, 1, false}};
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    struct rt_dnn dnn = library(rows[i].version);
    EXPECT_OK(rt_dnn_use(&driver, &dnn));
    fake.refuses_text = rows[i].refuses;
    rt_cuda_dnn.free(&driver, plan_of(kern, bytes));
    assert_int_equal(fake.plans, rows[i].plans);
    assert_int_equal(fake.texts, rows[i].texts);
    EXPECT_OK(rt_dnn_use(&driver, NULL));
    assert_int_equal(fake.live, 0);
  }
  kern_free(kern);
}

/* What a thread finds out is reported when the call is planned: another way is taken, if there is one that fits. */
static void test_late(void **state) {
  (void)state;
  struct kern *kern = make_kernel(S, QUERN_DTYPE_F16, true, true, 1 << 20);
  for (int n_configs = 1; n_configs <= 2; n_configs++) {
    struct rt_dnn dnn = library(91700);
    struct kern_library_call call = kern->library_call;
    size_t bytes;
    void *plan;
    EXPECT_OK(rt_dnn_use(&driver, &dnn));
    fake.n_configs = n_configs;
    fake.refuses[0] = true;
    EXPECT_OK(rt_cuda_dnn.query_algorithm(&driver, &ctx->heap, kern, &call, &bytes));
    quern_status status = rt_cuda_dnn.plan(&driver, &ctx->heap, kern, &plan);
    assert_int_equal(status, n_configs == 1 ? QUERN_STATUS_UNSUPPORTED : QUERN_STATUS_OK);
    if (status == QUERN_STATUS_OK) rt_cuda_dnn.free(&driver, plan);
    EXPECT_OK(rt_dnn_use(&driver, NULL));
    assert_int_equal(fake.live, 0);
  }
  struct rt_dnn dnn = library(91700);
  struct rt_dnn_plan plan;
  fake.more = 100; /* than was said */
  EXPECT_ERROR(rt_dnn_plan_make(&plan, &dnn, kern, 0, INT64_MAX), UNSUPPORTED, "was said to need 1024");
  assert_int_equal(fake.live, 0);
  kern_free(kern);
}

/* It is asked for its algorithms, and compiles none; nothing is left, whatever fails. */
static void test_wake(void **state) {
  (void)state;
  struct rt_dnn dnn = library(91900);
  EXPECT_OK(rt_dnn_use(&driver, &dnn));
  int live = fake.live, before = fake.calls;
  rt_cuda_dnn.warm_up(&driver);
  int all = fake.calls - before;
  assert_true(all > 10 && fake.plans == 0 && fake.live == live);
  for (int i = 1; i <= all; i++) {
    fake.fail = fake.calls + i;
    rt_cuda_dnn.warm_up(&driver);
    assert_int_equal(fake.live, live);
  }
  fake.fail = 0;
  EXPECT_OK(rt_dnn_use(&driver, NULL));
  rt_cuda_dnn.warm_up(&driver); /* without a device */
  assert_int_equal(fake.live, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_forward),
                                     TEST(test_backward),
                                     TEST(test_convolutions),
                                     TEST(test_convolutions_of_axes),
                                     TEST(test_convolutions_refused),
                                     TEST(test_ways),
                                     TEST(test_failures),
                                     TEST(test_versions),
                                     TEST(test_shared),
                                     TEST(test_two_devices),
                                     TEST(test_many),
                                     TEST(test_cached),
                                     TEST(test_late),
                                     TEST(test_wake)};
  files_begin();
  setenv("QUERN_CACHE", test_folder, 1);
  int failed = cmocka_run_group_tests_name("runtime/dnn", tests, NULL, NULL);
  files_end();
  return failed;
}
