/* runtime/cuda/dnn.c -- calls of attention and convolutions by cuDNN, loaded when it is first asked for
** A plan is kept for its device: the kernels that do the same share it. Its text is kept in the cache. When the algorithm
** is queried of a call that the cache does not know, a thread compiles it, for the device rather than by the handle,
** which belongs to one thread at a time; meanwhile other kernels are made, and when it is planned the text of what came
** out becomes the plan.
** see: libraries.h, docs/design/008-libraries.md      tests: tests/runtime/test_dnn.c; make test-cuda
*/
#include "runtime/cuda/dnn.h"
#include "runtime/cuda/libraries.h"
#include "runtime/runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const places[] = {"libcudnn.so.9", "/usr/local/cuda/lib64/libcudnn.so.9",
                                     "/usr/local/cuda/lib/libcudnn.so.9"};

/* ---- the library ------------------------------------------------------------------------------------------ */

quern_status rt_dnn_check(const struct rt_dnn *dnn, int code, const char *what) {
  enum { DEVICE_MEMORY = 4004, NOT_SUPPORTED = 3000, INTERNAL_ERROR = 4000 };
  char text[300] = "";
  if (code == 0) return QUERN_STATUS_OK;
  dnn->last_error(text, sizeof text);
  bool lacks = code >= NOT_SUPPORTED && code < INTERNAL_ERROR;
  quern_status status = code == DEVICE_MEMORY ? QUERN_STATUS_MEMORY
                        : lacks               ? QUERN_STATUS_UNSUPPORTED
                                              : QUERN_STATUS_INTERNAL;
  return base_error(status, "%s: %s: %s (%d)%s%s", dnn->identity, what, dnn->error_text(code), code,
                    text[0] != 0 ? ": " : "", text);
}

quern_status rt_dnn_check_version(struct rt_dnn *dnn) {
  int version = (int)dnn->version(), major = version / 10000, minor = version / 100 % 100;
  snprintf(dnn->identity, sizeof dnn->identity, "cuDNN %d.%d.%d", major, minor, version % 100);
  QUERN_CHECK(version >= RT_DNN_OLDEST && major == RT_DNN_OLDEST / 10000, UNSUPPORTED,
              "%s cannot be used: %d.%d.%d or newer of version %d is needed", dnn->identity, RT_DNN_OLDEST / 10000,
              RT_DNN_OLDEST / 100 % 100, RT_DNN_OLDEST % 100, RT_DNN_OLDEST / 10000);
  return QUERN_STATUS_OK;
}

static void *open_any(void) {
  void *library = NULL;
  for (size_t i = 0; i < BASE_COUNT(places) && library == NULL; i++) library = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
  return library;
}

static void load_ahead(void) { (void)open_any(); }

quern_status rt_dnn_load(struct rt_dnn *dnn) {
  void *library = open_any();
  *dnn = (struct rt_dnn){0};
  QUERN_CHECK(library != NULL, UNSUPPORTED,
              "cuDNN is not installed: libcudnn.so.9 is not found HINT: LD_LIBRARY_PATH may name its folder");
#define DNN(RESULT, NAME, SYMBOL, PARAMETERS)                                                                          \
  *(void **)&dnn->NAME = dlsym(library, #SYMBOL);                                                                      \
  QUERN_CHECK(dnn->NAME != NULL, UNSUPPORTED, "libcudnn.so.9 has no function " #SYMBOL);
#include "runtime/cuda/dnn.def"
#undef DNN
  return rt_dnn_check_version(dnn);
}

/* What the library has opened for a device, whose driver has it. */
struct rt_cuda_dnn {
  struct rt_cuda_driver *driver;
  struct base_heap heap;
  pthread_mutex_t lock; /* of all below: a handle is used by one thread at a time */
  /* The library, and the same without its handle, for planning beside its use; handleless.device NULL: there is none. */
  struct rt_dnn opened, handleless;
  struct kept *plans;
  uint64_t last_use;
};

/* ---- plans ------------------------------------------------------------------------------------------------ */

enum { KEPT = 64, VIEWS = 8, KEY = 13 + 5 * VIEWS }; /* so many are kept that nobody uses */

/* A plan of the device, by what it does. */
struct kept {
  struct kept *next;
  int64_t key[KEY];
  bool made;      /* there is a plan, or a thread makes one */
  int users;      /* who have planned it and not freed it */
  uint64_t used;  /* when it was asked for last */
  bool compiling; /* a thread was started, whose result is: */
  quern_status status;
  struct base_thread thread;
  const struct rt_cuda_driver *driver;
  struct rt_dnn_plan plan;
};
static void write_conv_key(const struct kern *kern, const struct kern_conv *c, int64_t key[KEY]) {
  const int64_t words[] = {KERN_LIBRARY_CONV,
                           kern->mems[c->x].dtype,
                           c->part,
                           c->spatial,
                           c->groups,
                           c->samples,
                           c->channels,
                           c->outputs,
                           c->x,
                           c->w,
                           c->y,
                           c->exact,
                           c->tf32};
  const int64_t *const axes[] = {c->in, c->out, c->window, c->step, c->dilation, c->pad};
  memcpy(key, words, sizeof words);
  for (size_t i = 0; i < BASE_COUNT(axes); i++)
    memcpy(key + BASE_COUNT(words) + i * KERN_CONV_SPATIAL, axes[i], KERN_CONV_SPATIAL * sizeof **axes);
}

static void write_key(const struct kern *kern, const struct kern_library_call *call, int64_t key[KEY]) {
  const struct kern_attention *a = &call->attention;
  const struct kern_view *const views[VIEWS] = {&a->q, &a->k, &a->v, &a->y, &a->dy, &a->dq, &a->dk, &a->dv};
  int64_t scale;
  memset(key, 0, KEY * sizeof *key);
  if (call->kind == KERN_LIBRARY_CONV) {
    write_conv_key(kern, &call->conv, key);
    return;
  }
  memcpy(&scale, &a->scale, sizeof scale);
  const int64_t words[] = {call->kind,  kern->mems[a->q.mem].dtype,
                           a->batch,    a->heads,
                           a->kv_heads, a->queries,
                           a->keys,     a->width,
                           scale,       a->value_width,
                           a->causal,   a->exact,
                           a->lse};
  memcpy(key, words, sizeof words);
  key += BASE_COUNT(words);
  for (int i = 0; i < VIEWS; i++) {
    bool used = i <= 3 || call->kind == KERN_LIBRARY_ATTENTION_BACK;
    const struct kern_view *v = views[i];
    const int64_t five[] = {v->mem, v->at, v->batch, v->head, v->row}, none[5] = {0};
    memcpy(key + 5 * i, used ? five : none, sizeof five);
  }
}

/* One more; NULL: there is no memory. */
static struct kept *add(struct rt_cuda_dnn *s) {
  struct kept *k = base_alloc_zero(&s->heap, sizeof *k);
  if (k == NULL) return NULL;
  k->next = s->plans;
  s->plans = k;
  return k;
}

/* The plan of that key, or a place for it: one that was never made, or of those that nobody uses, where they are many, the one that was
** asked for longest ago; else one more. NULL: there is no memory. */
static struct kept *find(struct rt_cuda_dnn *s, const int64_t key[KEY]) {
  struct kept *place = NULL;
  int unused = 0;
  for (struct kept *k = s->plans; k != NULL; k = k->next) {
    if (k->made && memcmp(k->key, key, sizeof k->key) == 0) return k;
    if (k->users > 0) continue;
    unused++;
    if (place == NULL || (place->made && (!k->made || k->used < place->used))) place = k;
  }
  return place != NULL && (!place->made || unused >= KEPT) ? place : add(s);
}

static void compile(void *arg) {
  struct kept *k = arg;
  void *popped;
  int code = k->driver->context_push(k->driver->context);
  k->status = code == 0 ? rt_dnn_plan_finish(&k->plan) : QUERN_STATUS_DEVICE;
  if (code == 0) (void)k->driver->context_pop(&popped);
}

static void wait_for(struct kept *k) {
  if (k->compiling) base_thread_join(&k->thread);
  k->compiling = false;
}

static void wait_all(const struct rt_cuda_dnn *s) {
  for (struct kept *k = s->plans; k != NULL; k = k->next) wait_for(k);
}

static void drop(struct kept *k) {
  wait_for(k);
  if (k->made) rt_dnn_plan_free(&k->plan);
  k->made = false;
}

/* ---- opening ---------------------------------------------------------------------------------------------- */

/* A descriptor of the handle's device, or NULL. */
static void *describe_device(const struct rt_dnn *dnn) {
  void *device = NULL;
  if (dnn->make(RT_DNN_DEVICE, &device) != 0) return NULL;
  if (dnn->set(device, RT_DNN_DEVICE_HANDLE, RT_DNN_TYPE_HANDLE, 1, &dnn->handle) == 0 && dnn->finish(device) == 0)
    return device;
  (void)dnn->drop(device);
  return NULL;
}

/* Of a library that has its handle, or has none. */
static quern_status new_state(struct rt_cuda_driver *driver, const struct rt_dnn *opened) {
  struct base_heap heap;
  base_heap_init(&heap, NULL);
  struct rt_cuda_dnn *s = base_alloc_zero(&heap, sizeof *s);
  if (s == NULL) return QUERN_STATUS_MEMORY;
  s->driver = driver;
  s->heap = heap;
  pthread_mutex_init(&s->lock, NULL);
  s->opened = s->handleless = *opened;
  s->handleless.handle = NULL;
  s->handleless.device = opened->handle != NULL ? describe_device(opened) : NULL;
  atomic_store(&driver->dnn, s);
  return QUERN_STATUS_OK;
}

static void free_state(struct rt_cuda_dnn *s) {
  while (s->plans != NULL) {
    struct kept *k = s->plans;
    s->plans = k->next;
    drop(k);
    base_free(&s->heap, k, sizeof *k);
  }
  if (s->handleless.device != NULL) (void)s->handleless.drop(s->handleless.device);
  pthread_mutex_destroy(&s->lock);
  struct base_heap heap = s->heap;
  base_free(&heap, s, sizeof *s);
}

static void close_library(struct rt_cuda_driver *driver) {
  struct rt_cuda_dnn *s = atomic_exchange(&driver->dnn, NULL);
  if (s == NULL) return;
  const struct rt_dnn opened = s->opened;
  free_state(s);
  (void)opened.close(opened.handle);
}

/* No thread is left in the library when it goes. */
static void wait_at_exit(void) {
  for (int i = 0; i < RT_MOST_DEVICES; i++) {
    const struct rt_cuda_driver *driver = rt_device_opened(rt_device_at(&rt_cuda, i));
    const struct rt_cuda_dnn *s = driver != NULL ? atomic_load(&driver->dnn) : NULL;
    if (s != NULL) wait_all(s);
  }
}

static void register_wait(void) { (void)atexit(wait_at_exit); }

static quern_status open_handle(void *what) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  struct rt_cuda_driver *driver = what;
  struct rt_dnn dnn;
  QUERN_TRY(rt_dnn_load(&dnn));
  dnn.fill = driver->fill_words;
  QUERN_TRY(rt_dnn_check(&dnn, dnn.open(&dnn.handle), "a handle"));
  quern_status status = new_state(driver, &dnn);
  if (status == QUERN_STATUS_OK)
    (void)pthread_once(&once, register_wait);
  else
    (void)dnn.close(dnn.handle);
  return status;
}

/* What is opened for the device: once. With its context current. */
static quern_status open_state(const struct rt_cuda_driver *driver, struct rt_cuda_dnn **s) {
  struct rt_cuda_driver *d = (struct rt_cuda_driver *)driver; /* it is the device's */
  *s = atomic_load(&d->dnn);
  if (*s != NULL) return QUERN_STATUS_OK;
  QUERN_TRY(rt_once(&d->dnn_once, open_handle, d));
  *s = atomic_load(&d->dnn);
  return QUERN_STATUS_OK;
}

static quern_status open_library(const struct rt_cuda_driver *driver, char *identity, size_t bytes) {
  struct rt_cuda_dnn *s;
  QUERN_TRY(open_state(driver, &s));
  snprintf(identity, bytes, "%s", s->opened.identity);
  return QUERN_STATUS_OK;
}

/* ---- the cache -------------------------------------------------------------------------------------------- */

static void name_text(const struct rt_cuda_dnn *s, const int64_t key[KEY], uint64_t name[2]) {
  const struct rt_cuda_driver *driver = s->driver;
  const int64_t device[] = {driver->major, driver->minor, driver->multiprocessors};
  for (uint64_t i = 0; i < 2; i++) {
    uint64_t h = base_hash_string(base_hash_u64(BASE_HASH_SEED, i), s->opened.identity);
    h = base_hash_bytes(base_hash_string(h, driver->name), device, sizeof device);
    name[i] = base_hash_bytes(h, key, KEY * sizeof *key);
  }
}

/* The plan from the cache; k->made: whether it was there. */
static quern_status restore(const struct rt_cuda_dnn *s, struct base_heap *heap, const struct kern *kern,
                            struct kept *k) {
  uint64_t name[2];
  void *text;
  size_t n, room;
  name_text(s, k->key, name);
  QUERN_TRY(rt_blob_get(heap, name, &text, &n, &room));
  k->made = text != NULL && rt_dnn_plan_restore(&k->plan, &s->opened, kern, text, n) == QUERN_STATUS_OK;
  base_free(heap, text, room);
  return QUERN_STATUS_OK;
}

/* Puts the text of a plan into the cache, and the plan that it gives in its place. */
static quern_status keep_text(const struct rt_cuda_dnn *s, struct base_heap *heap, const struct kern *kern,
                              struct kept *k) {
  uint64_t name[2];
  char *text;
  size_t n;
  struct rt_dnn_plan plan;
  QUERN_TRY(rt_dnn_plan_text(&k->plan, heap, &text, &n));
  name_text(s, k->key, name);
  rt_blob_set(heap, name, text, n);
  quern_status status = rt_dnn_plan_restore(&plan, &s->opened, kern, text, n);
  base_free(heap, text, n);
  QUERN_TRY(status);
  bool fits = plan.bytes <= k->plan.bytes;
  rt_dnn_plan_free(fits ? &k->plan : &plan);
  QUERN_CHECK(fits, UNSUPPORTED, "%s: a plan from its text needs more workspace", s->opened.identity);
  k->plan = plan;
  return QUERN_STATUS_OK;
}

/* ---- making ----------------------------------------------------------------------------------------------- */

/* A plan that a thread is to compile. */
static quern_status begin(const struct rt_cuda_dnn *s, const struct kern *kern, struct kept *k) {
  QUERN_CHECK(s->handleless.device != NULL, UNSUPPORTED, "%s: no device", s->opened.identity);
  QUERN_TRY(rt_dnn_plan_begin(&k->plan, &s->handleless, kern, 0, INT64_MAX));
  k->driver = s->driver;
  k->compiling = base_thread_start(&k->thread, compile, k) == QUERN_STATUS_OK;
  if (k->compiling) return QUERN_STATUS_OK;
  rt_dnn_plan_free(&k->plan);
  return base_error(QUERN_STATUS_UNSUPPORTED, "%s: no thread", s->opened.identity);
}

/* The plan, if need be begun; with the lock. */
static quern_status take(struct rt_cuda_dnn *s, struct base_heap *heap, const struct kern *kern,
                         const struct kern_library_call *call, int config, int64_t most, struct kept **out) {
  int64_t key[KEY];
  write_key(kern, call, key);
  struct kept *k = *out = find(s, key);
  if (k == NULL) return QUERN_STATUS_MEMORY;
  bool same = k->made && memcmp(k->key, key, sizeof key) == 0;
  k->used = ++s->last_use;
  if (same && k->plan.bytes <= most) return QUERN_STATUS_OK;
  QUERN_CHECK(!same || k->users == 0, UNSUPPORTED, "%s: a call needs %lld bytes of workspace, and is given %lld",
              s->opened.identity, (long long)k->plan.bytes, (long long)most);
  drop(k);
  memcpy(k->key, key, sizeof key);
  QUERN_TRY(restore(s, heap, kern, k));
  if (k->made && k->plan.bytes <= most) return QUERN_STATUS_OK;
  drop(k);
  if (most == INT64_MAX && begin(s, kern, k) == QUERN_STATUS_OK) {
    k->made = true;
    return QUERN_STATUS_OK;
  }
  QUERN_TRY(rt_dnn_plan_make(&k->plan, &s->opened, kern, config, most));
  k->made = true;
  return QUERN_STATUS_OK;
}

/* Waits for a plan's thread, and makes it one that runs: the text of what it gave, or a plan that is made now. */
static quern_status complete(const struct rt_cuda_dnn *s, struct base_heap *heap, const struct kern *kern,
                             struct kept *k) {
  if (!k->compiling) return QUERN_STATUS_OK;
  wait_for(k);
  if (k->status == QUERN_STATUS_OK && keep_text(s, heap, kern, k) == QUERN_STATUS_OK) return QUERN_STATUS_OK;
  int64_t most = k->plan.bytes;
  int config = k->plan.config;
  drop(k);
  QUERN_TRY(rt_dnn_plan_make(&k->plan, &s->opened, kern, config, most));
  k->made = true;
  return QUERN_STATUS_OK;
}

/* Every tensor begins at a multiple of 16 bytes. */
static quern_status check_places(const struct kern *kern) {
  const struct kern_attention *a = &kern->library_call.attention;
  const struct kern_view *const views[] = {&a->q, &a->k, &a->v, &a->y, &a->dy, &a->dq, &a->dk, &a->dv};
  QUERN_CHECK(!kern->unaligned_base, UNSUPPORTED,
              "cuDNN: a call in a loop whose iterations are not aligned to 16 bytes");
  if (kern->library_call.kind == KERN_LIBRARY_CONV) return QUERN_STATUS_OK;
  for (size_t i = 0; i < BASE_COUNT(views); i++) {
    if (views[i]->mem == KERN_NONE || (kern->library_call.kind == KERN_LIBRARY_ATTENTION && i >= 4)) continue;
    QUERN_CHECK(views[i]->at % 8 == 0, UNSUPPORTED,
                "cuDNN: a tensor of attention begins at element %lld, no multiple of 8", (long long)views[i]->at);
  }
  return QUERN_STATUS_OK;
}

/* A head of a few rows, asked about for the device: the handle is for others meanwhile. */
static void warm_up(const struct rt_cuda_driver *driver) {
  enum { ROWS = 128, WIDTH = 64, ALL = ROWS * WIDTH };
#define DENSE(MEM)                                                                                                     \
  { .mem = (MEM), .batch = ALL, .head = ALL, .row = WIDTH }
  static const struct kern any = {.mems = {{.dtype = QUERN_DTYPE_BF16}},
                                  .library_call = {.kind = KERN_LIBRARY_ATTENTION,
                                                   .attention = {.batch = 1,
                                                                 .heads = 1,
                                                                 .kv_heads = 1,
                                                                 .queries = ROWS,
                                                                 .keys = ROWS,
                                                                 .width = WIDTH,
                                                                 .value_width = WIDTH,
                                                                 .scale = 1,
                                                                 .causal = true,
                                                                 .exact = true,
                                                                 .q = DENSE(0),
                                                                 .k = DENSE(1),
                                                                 .v = DENSE(2),
                                                                 .y = DENSE(3),
                                                                 .lse = 4}}};
#undef DENSE
  struct rt_dnn_plan plan_of_any;
  const struct rt_cuda_dnn *s = atomic_load(&driver->dnn);
  if (s == NULL || s->handleless.device == NULL) return;
  if (rt_dnn_plan_begin(&plan_of_any, &s->handleless, &any, 0, INT64_MAX) == QUERN_STATUS_OK)
    rt_dnn_plan_free(&plan_of_any);
}

static quern_status query_algorithm(const struct rt_cuda_driver *driver, struct base_heap *heap,
                                    const struct kern *kern, struct kern_library_call *call, size_t *bytes) {
  struct rt_cuda_dnn *s;
  struct kept *k;
  QUERN_TRY(check_places(kern));
  QUERN_TRY(open_state(driver, &s));
  pthread_mutex_lock(&s->lock);
  quern_status status = take(s, heap, kern, call, 0, INT64_MAX, &k);
  if (status == QUERN_STATUS_OK) {
    *bytes = (size_t)k->plan.bytes;
    call->algorithm[0] = s->opened.version();
    call->algorithm[1] = (uint64_t)k->plan.config;
  }
  pthread_mutex_unlock(&s->lock);
  return status;
}

static quern_status plan(const struct rt_cuda_driver *driver, struct base_heap *heap, const struct kern *kern,
                         void **out) {
  const struct kern_library_call *call = &kern->library_call;
  struct rt_cuda_dnn *s;
  struct kept *k;
  *out = NULL;
  QUERN_TRY(open_state(driver, &s));
  pthread_mutex_lock(&s->lock);
  bool same = call->algorithm[0] == s->opened.version();
  int64_t most = call->work == KERN_NONE ? 0 : kern->mems[call->work].count;
  quern_status status = take(s, heap, kern, call, same ? (int)call->algorithm[1] : 0, most, &k);
  if (status == QUERN_STATUS_OK) status = complete(s, heap, kern, k);
  if (status == QUERN_STATUS_OK) {
    k->users++;
    *out = k;
  }
  pthread_mutex_unlock(&s->lock);
  return status;
}

/* Who has a plan has opened the library. */
static quern_status run(const struct rt_cuda_driver *driver, void *plan_of, void *stream, void *const *mems,
                        void *work) {
  const struct kept *k = plan_of;
  struct rt_cuda_dnn *s = atomic_load(&driver->dnn);
  pthread_mutex_lock(&s->lock);
  quern_status status = rt_dnn_plan_run(&k->plan, stream, mems, work);
  pthread_mutex_unlock(&s->lock);
  return status;
}

static void free_plan(const struct rt_cuda_driver *driver, void *plan_of) {
  struct kept *k = plan_of;
  struct rt_cuda_dnn *s = atomic_load(&driver->dnn);
  if (k == NULL) return;
  pthread_mutex_lock(&s->lock);
  k->users--;
  pthread_mutex_unlock(&s->lock);
}

quern_status rt_dnn_use(struct rt_cuda_driver *driver, const struct rt_dnn *dnn) {
  struct rt_cuda_dnn *s = atomic_exchange(&driver->dnn, NULL);
  if (s != NULL) free_state(s);
  return dnn != NULL ? new_state(driver, dnn) : QUERN_STATUS_OK;
}

const struct rt_cuda_library rt_cuda_dnn = {.name = "cuDNN",
                                            .bit = BASE_LIBRARY_DNN,
                                            .load = load_ahead,
                                            .open = open_library,
                                            .close = close_library,
                                            .warm_up = warm_up,
                                            .query_algorithm = query_algorithm,
                                            .plan = plan,
                                            .run = run,
                                            .free = free_plan};
