/* engine/layer_call.c -- one layer on the caller's memory in one call: programs that are kept for the next
** A call is a row of sizes; what computes it is built as any expression. Programs are kept in a list of the process, the one used
** longest ago makes room.
** keeps: one call at a time launches; those of a queue return before they are done
** see: include/quern/call.h      tests: tests/engine/test_external.c
*/
#include "quern/call.h"

#include <pthread.h>

#include "engine/engine.h"
#include "quern/context.h"
#include "quern/tensor.h"

enum { MOST_SIZES = 8, MOST_OPERANDS = 4, MOST_KEPT = 64 };

struct request;
typedef quern_tensor *build(quern_context *ctx, const struct request *r);

/* A call: what computes it, and everything that this depends on. */
struct request {
  build *build;
  const quern_device *device;
  quern_dtype dtype;
  bool fast;
  int64_t sizes[MOST_SIZES]; /* and flags: the rest is 0 */
  double number;
};

struct kept {
  struct request request;
  quern_program *program;
  quern_instance *instance;
  uint64_t used; /* the number of the call that used it last */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept kept[MOST_KEPT];
static uint64_t calls;

/* ---- programs that are kept -------------------------------------------------------------------------------- */

static bool same(const struct request *a, const struct request *b) {
  return a->build == b->build && a->device == b->device && a->dtype == b->dtype && a->fast == b->fast &&
         memcmp(a->sizes, b->sizes, sizeof a->sizes) == 0 && a->number == b->number;
}

static void forget(struct kept *k) {
  quern_instance_free(k->instance);
  quern_program_free(k->program);
  *k = (struct kept){0};
}

static quern_status compile(struct kept *k, const struct request *r) {
  quern_context *ctx;
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device_handle = r->device;
  options.inference = true;
  if (r->fast) options.numerics = QUERN_NUMERICS_FAST;
  QUERN_TRY(quern_context_new(&ctx, NULL));
  quern_tensor *y = r->build(ctx, r);
  quern_status status = quern_program_compile(&k->program, ctx, 1, &y, &options);
  quern_context_free(ctx);
  if (status == QUERN_STATUS_OK) status = quern_instance_new(&k->instance, k->program);
  if (status != QUERN_STATUS_OK) forget(k);
  k->request = *r;
  return status;
}

static quern_status find(const struct request *r, struct kept **found) {
  struct kept *oldest = &kept[0];
  for (int i = 0; i < MOST_KEPT; i++) {
    if (kept[i].program != NULL && same(&kept[i].request, r)) {
      *found = &kept[i];
      return QUERN_STATUS_OK;
    }
    if (kept[i].used < oldest->used) oldest = &kept[i];
  }
  forget(oldest);
  *found = oldest;
  return compile(oldest, r);
}

void quern_call_clear(void) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < MOST_KEPT; i++) forget(&kept[i]);
  pthread_mutex_unlock(&lock);
}

/* ---- a call ------------------------------------------------------------------------------------------------ */

static quern_status run_kept(const struct request *r, void *queue, const void *const *inputs, void *y) {
  struct kept *k;
  QUERN_TRY(find(r, &k));
  k->used = ++calls;
  QUERN_TRY(quern_instance_run_on(k->instance, queue, inputs, &y));
  return queue == NULL ? engine_wait(k->instance) : QUERN_STATUS_OK;
}

/* Operands that are NULL are left out, as the expression leaves them out. */
static quern_status run(const char *name, struct request *r, const quern_call_options *options,
                        const void *const *operands, int n, void *y) {
  quern_call_options taken;
  const quern_call_options *o = &taken;
  const void *inputs[MOST_OPERANDS];
  size_t n_inputs = 0;
  QUERN_TRY(base_take(quern_call_options, &taken, options, name));
  QUERN_TRY(rt_device_find(&r->device, name, o->device != NULL ? o->device : "cuda"));
  QUERN_CHECK((int)r->dtype >= 0 && (int)r->dtype < QUERN_DTYPE_COUNT && base_dtype_is(r->dtype, BASE_FLOAT), DTYPE,
              "%s: the dtype is %s, must be a float", name, quern_dtype_name(r->dtype));
  QUERN_CHECK(y != NULL, INVALID, "%s: the place for the result is null", name);
  for (int i = 0; i < n; i++)
    if (operands[i] != NULL) inputs[n_inputs++] = operands[i];
  r->fast = o->fast;
  pthread_mutex_lock(&lock);
  quern_status status = run_kept(r, o->queue, inputs, y);
  pthread_mutex_unlock(&lock);
  return status;
}

/* Sizes as a list of n. */
static quern_status check_sizes(const char *name, const struct request *r, int n, const char *const *names) {
  for (int i = 0; i < n; i++)
    QUERN_CHECK(r->sizes[i] > 0, INVALID, "%s: %s is %lld, must be at least 1", name, names[i], (long long)r->sizes[i]);
  return QUERN_STATUS_OK;
}

static quern_tensor *input(quern_context *ctx, const struct request *r, const char *name, int rank,
                           const int64_t *dims) {
  return quern_input(ctx, name, r->dtype, rank, dims);
}

/* ---- gelu: sizes are n, by_tanh ---------------------------------------------------------------------------- */

static quern_tensor *gelu(quern_tensor *x, bool by_tanh) { return by_tanh ? quern_gelu_tanh(x) : quern_gelu(x); }

static quern_tensor *build_gelu(quern_context *ctx, const struct request *r) {
  return gelu(input(ctx, r, "x", 1, r->sizes), r->sizes[1] != 0);
}

quern_status quern_call_gelu(quern_dtype dtype, int64_t n, bool by_tanh, const void *x, void *y,
                             const quern_call_options *options) {
  struct request r = {.build = build_gelu, .dtype = dtype, .sizes = {n, by_tanh}};
  QUERN_TRY(check_sizes("call_gelu", &r, 1, (const char *const[]){"n"}));
  QUERN_CHECK(x != NULL, INVALID, "call_gelu: x is null");
  return run("call_gelu", &r, options, &x, 1, y);
}

/* ---- linear: sizes are rows, from, to, by_tanh, has bias ---------------------------------------------------- */

static quern_tensor *build_linear(quern_context *ctx, const struct request *r) {
  const int64_t *s = r->sizes;
  quern_tensor *x = input(ctx, r, "x", 2, s), *weight = input(ctx, r, "weight", 2, (const int64_t[]){s[2], s[1]});
  quern_tensor *bias = s[4] != 0 ? input(ctx, r, "bias", 1, &s[2]) : NULL;
  return gelu(quern_linear(x, weight, bias), s[3] != 0);
}

quern_status quern_call_linear_gelu(quern_dtype dtype, const quern_call_linear *sizes, const void *x,
                                    const void *weight, const void *bias, void *y, const quern_call_options *options) {
  QUERN_CHECK(sizes != NULL, INVALID, "call_linear_gelu: the sizes are null");
  quern_call_linear taken;
  QUERN_TRY(base_take(quern_call_linear, &taken, sizes, "call_linear_gelu"));
  sizes = &taken;
  struct request r = {.build = build_linear,
                      .dtype = dtype,
                      .sizes = {sizes->rows, sizes->from, sizes->to, sizes->by_tanh, bias != NULL}};
  QUERN_TRY(check_sizes("call_linear_gelu", &r, 3, (const char *const[]){"rows", "from", "to"}));
  QUERN_CHECK(x != NULL && weight != NULL, INVALID, "call_linear_gelu: %s is null", x == NULL ? "x" : "weight");
  return run("call_linear_gelu", &r, options, (const void *const[]){x, weight, bias}, 3, y);
}

/* ---- norm: sizes are rows, width, has weight, has bias ------------------------------------------------------- */

static quern_tensor *build_norm(quern_context *ctx, const struct request *r) {
  const int64_t *s = r->sizes;
  quern_tensor *x = input(ctx, r, "x", 2, s);
  quern_tensor *weight = s[2] != 0 ? input(ctx, r, "weight", 1, &s[1]) : NULL;
  quern_tensor *bias = s[3] != 0 ? input(ctx, r, "bias", 1, &s[1]) : NULL;
  return quern_layer_norm(x, 1, weight, bias, r->number);
}

quern_status quern_call_layer_norm(quern_dtype dtype, const quern_call_norm *sizes, const void *x, const void *weight,
                                   const void *bias, void *y, const quern_call_options *options) {
  QUERN_CHECK(sizes != NULL, INVALID, "call_layer_norm: the sizes are null");
  quern_call_norm taken;
  QUERN_TRY(base_take(quern_call_norm, &taken, sizes, "call_layer_norm"));
  sizes = &taken;
  struct request r = {.build = build_norm,
                      .dtype = dtype,
                      .sizes = {sizes->rows, sizes->width, weight != NULL, bias != NULL},
                      .number = sizes->eps == 0 ? 1e-5 : sizes->eps};
  QUERN_TRY(check_sizes("call_layer_norm", &r, 2, (const char *const[]){"rows", "width"}));
  QUERN_CHECK(r.number > 0, INVALID, "call_layer_norm: eps is %g, must be greater than 0", sizes->eps);
  QUERN_CHECK(x != NULL, INVALID, "call_layer_norm: x is null");
  return run("call_layer_norm", &r, options, (const void *const[]){x, weight, bias}, 3, y);
}

/* ---- attention: sizes are batch, heads, kv_heads, queries, keys, width, causal ------------------------------- */

static quern_tensor *build_attention(quern_context *ctx, const struct request *r) {
  const int64_t *s = r->sizes, keys[] = {s[0], s[2], s[4], s[5]};
  quern_tensor *q = input(ctx, r, "q", 4, (const int64_t[]){s[0], s[1], s[3], s[5]});
  quern_tensor *k = input(ctx, r, "k", 4, keys), *v = input(ctx, r, "v", 4, keys);
  quern_attention_options options = {.size = sizeof options, .scale = r->number, .causal = s[6] != 0};
  return quern_attention(q, k, v, NULL, &options, NULL);
}

quern_status quern_call_attention(quern_dtype dtype, const quern_call_heads *sizes, const void *q, const void *k,
                                  const void *v, void *y, const quern_call_options *options) {
  QUERN_CHECK(sizes != NULL, INVALID, "call_attention: the sizes are null");
  quern_call_heads taken;
  QUERN_TRY(base_take(quern_call_heads, &taken, sizes, "call_attention"));
  sizes = &taken;
  struct request r = {
      .build = build_attention,
      .dtype = dtype,
      .sizes = {sizes->batch, sizes->heads, sizes->kv_heads, sizes->queries, sizes->keys, sizes->width, sizes->causal},
      .number = sizes->scale};
  QUERN_TRY(check_sizes("call_attention", &r, 6,
                        (const char *const[]){"batch", "heads", "kv_heads", "queries", "keys", "width"}));
  QUERN_CHECK(q != NULL && k != NULL && v != NULL, INVALID, "call_attention: %s is null",
              q == NULL   ? "q"
              : k == NULL ? "k"
                          : "v");
  return run("call_attention", &r, options, (const void *const[]){q, k, v}, 3, y);
}
