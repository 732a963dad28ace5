/* runtime/devices.c -- the devices of the process: found by name, and what was opened for each
** The table below is what the process keeps of devices; all that a backend opens for one hangs on its row.
** tests: tests/runtime/test_devices.c, tests/engine/test_devices.c
*/
#include "runtime/runtime_int.h"

#include <stdio.h>

static const struct rt_backend *const backends[] = {&rt_cpu, &rt_interp, &rt_null, &rt_cuda, &rt_opencl};
enum { BACKENDS = BASE_COUNT(backends) };

static struct {
  pthread_once_t once;
  quern_device devices[BACKENDS][RT_MOST_DEVICES];
  struct rt_state states[BACKENDS][RT_MOST_DEVICES];
  _Atomic bool warned; /* that "auto" is the CPU */
} table = {.once = PTHREAD_ONCE_INIT};

static void make_table(void) {
  for (int b = 0; b < BACKENDS; b++)
    for (int i = 0; i < RT_MOST_DEVICES; i++) {
      quern_device *device = &table.devices[b][i];
      *device = (quern_device){
          .backend = backends[b], .remote = backends[b]->remote, .ordinal = i, .state = &table.states[b][i]};
      pthread_mutex_init(&device->state->once.lock, NULL);
      int n = snprintf(device->name, sizeof device->name, "%s", backends[b]->name);
      if (i > 0) snprintf(device->name + n, sizeof device->name - (size_t)n, ":%d", i);
    }
}

const struct rt_backend *rt_backend_get(size_t i) { return i < BACKENDS ? backends[i] : NULL; }

const quern_device *rt_device_at(const struct rt_backend *backend, int ordinal) {
  int b = 0;
  (void)pthread_once(&table.once, make_table);
  while (backends[b] != backend) b++;
  QUERN_ASSERT(ordinal >= 0 && ordinal < RT_MOST_DEVICES);
  return &table.devices[b][ordinal];
}

/* ---- what is opened ---------------------------------------------------------------------------------------- */

quern_status rt_once(struct rt_once *once, quern_status (*open)(void *what), void *what) {
  pthread_mutex_lock(&once->lock);
  if (!once->tried) {
    once->status = open(what);
    if (once->status != QUERN_STATUS_OK) snprintf(once->error, sizeof once->error, "%s", quern_last_error());
    once->tried = once->status != QUERN_STATUS_MEMORY;
  }
  quern_status status = once->status;
  pthread_mutex_unlock(&once->lock);
  return status == QUERN_STATUS_OK ? QUERN_STATUS_OK : base_error(status, "%s", once->error);
}

struct opening {
  const quern_device *device;
  quern_status (*open)(const quern_device *device, void **state);
};

static quern_status open_state(void *what) {
  const struct opening *o = what;
  void *opened;
  QUERN_TRY(o->open(o->device, &opened));
  atomic_store(&o->device->state->opened, opened);
  return QUERN_STATUS_OK;
}

void *rt_device_opened(const quern_device *device) {
  void *instead = atomic_load(&device->state->instead);
  return instead != NULL ? instead : atomic_load(&device->state->opened);
}

quern_status rt_device_open(const quern_device *device, quern_status (*open)(const quern_device *device, void **state),
                            void **state) {
  *state = rt_device_opened(device);
  if (*state != NULL) return QUERN_STATUS_OK;
  QUERN_TRY(rt_once(&device->state->once, open_state, &(struct opening){device, open}));
  *state = rt_device_opened(device);
  return QUERN_STATUS_OK;
}

void rt_device_hold(const quern_device *device) {
  struct rt_state *s = device->state;
  if (s == NULL) return; /* a test's */
  pthread_mutex_lock(&s->once.lock);
  s->users++;
  pthread_mutex_unlock(&s->once.lock);
}

void rt_device_drop(const quern_device *device) {
  struct rt_state *s = device->state;
  if (s == NULL) return;
  pthread_mutex_lock(&s->once.lock);
  bool last = s->users > 0 && --s->users == 0 && !s->kept;
  void *opened = last ? atomic_exchange(&s->opened, NULL) : NULL;
  if (last) s->once.tried = false;
  if (opened != NULL) device->backend->close(opened);
  pthread_mutex_unlock(&s->once.lock);
}

static void keep_open(const quern_device *device) {
  pthread_mutex_lock(&device->state->once.lock);
  device->state->kept = true;
  pthread_mutex_unlock(&device->state->once.lock);
}

void rt_device_use(const quern_device *device, void *state) { atomic_store(&device->state->instead, state); }

quern_status rt_device_probe(const quern_device *device, const struct base_heap *heap) {
  struct base_heap own;
  struct rt_stream *stream;
  if (device->remote == NULL) return QUERN_STATUS_OK;
  base_heap_init(&own, &heap->user);
  QUERN_TRY(device->remote->open(device, &stream, &own));
  device->remote->close(stream);
  return QUERN_STATUS_OK;
}

/* ---- how many there are ------------------------------------------------------------------------------------ */

/* Those of a test come before the machine's. */
quern_status rt_device_count(const struct rt_backend *backend, int *n) {
  *n = 0;
  while (*n < RT_MOST_DEVICES && atomic_load(&rt_device_at(backend, *n)->state->instead) != NULL) (*n)++;
  if (*n > 0) return QUERN_STATUS_OK;
  *n = backend->alike;
  if (*n > 0) return QUERN_STATUS_OK;
  quern_status status = backend->count(n);
  *n = BASE_MIN(*n, RT_MOST_DEVICES);
  return status;
}

/* ---- names ------------------------------------------------------------------------------------------------- */

/* No digits, or too many, are -1. */
static int read_ordinal(const char *text) {
  enum { MOST_DIGITS = 6 };
  int number = 0;
  if (text[0] == 0 || strlen(text) > MOST_DIGITS) return -1;
  for (; *text != 0; text++) {
    if (*text < '0' || *text > '9') return -1;
    number = 10 * number + (*text - '0');
  }
  return number;
}

static quern_status no_kind(const char *what, const char *name) {
  char shown[64];
  return base_error(QUERN_STATUS_INVALID,
                    "%s: there is no device \"%s\" HINT: \"cpu\", \"interp\", \"null\", \"cuda\", \"opencl\", one of "
                    "several as \"cuda:1\", or \"auto\"",
                    what, quern_text_shown(shown, sizeof shown, name));
}

/* The kind is there, the ordinal is not. */
static quern_status no_ordinal(const struct rt_backend *backend, const char *what, const char *name, bool number) {
  char shown[64], there[512];
  int n;
  if (rt_device_count(backend, &n) != QUERN_STATUS_OK)
    snprintf(there, sizeof there, "of kind %s there is none: %.400s", backend->name, quern_last_error());
  else if (n == 1)
    snprintf(there, sizeof there, "of kind %s there is 1, \"%s\"", backend->name, backend->name);
  else
    snprintf(there, sizeof there, "of kind %s there are %d, \"%s:0\" to \"%s:%d\"", backend->name, n, backend->name,
             backend->name, n - 1);
  return base_error(QUERN_STATUS_INVALID, "%s: there is no device \"%s\": %s%s", what,
                    quern_text_shown(shown, sizeof shown, name),
                    number ? "" : "what follows the colon must be a number from 0 on; ", there);
}

static const struct rt_backend *find_backend(const char *name, size_t n) {
  for (size_t i = 0; i < BACKENDS; i++)
    if (strlen(backends[i]->name) == n && memcmp(backends[i]->name, name, n) == 0) return backends[i];
  return NULL;
}

const quern_device *rt_device_best(void) {
  char why[512] = "";
  for (size_t i = 0; i < BACKENDS; i++) {
    const quern_device *device = rt_device_at(backends[i], 0);
    if (backends[i]->suits == NULL) continue;
    rt_device_hold(device);
    if (backends[i]->suits(device) == QUERN_STATUS_OK) return device;
    rt_device_drop(device);
    size_t n = strlen(why);
    snprintf(why + n, sizeof why - n, "%s%.200s", n > 0 ? "; " : "", quern_last_error());
  }
  (void)base_error(QUERN_STATUS_UNSUPPORTED, "there is no GPU: %s", why);
  rt_device_hold(rt_device_at(&rt_cpu, 0));
  return rt_device_at(&rt_cpu, 0);
}

quern_status rt_device_named(const quern_device **device, const char *what, const char *name) {
  *device = NULL;
  if (name == NULL || name[0] == 0) name = rt_cpu.name;
  size_t n = strcspn(name, ":");
  const struct rt_backend *backend = find_backend(name, n);
  int ordinal = name[n] == ':' ? read_ordinal(name + n + 1) : 0, there;
  if (backend == NULL) return no_kind(what, name);
  if (ordinal < 0) return no_ordinal(backend, what, name, false);
  bool known = ordinal > 0 && rt_device_count(backend, &there) == QUERN_STATUS_OK;
  if (ordinal >= RT_MOST_DEVICES || (known && ordinal >= there)) return no_ordinal(backend, what, name, true);
  *device = rt_device_at(backend, ordinal);
  return QUERN_STATUS_OK;
}

quern_status rt_device_find(const quern_device **device, const char *what, const char *name) {
  bool best = name != NULL && strcmp(name, "auto") == 0;
  if (best)
    *device = rt_device_best();
  else
    QUERN_TRY(rt_device_named(device, what, name));
  keep_open(*device);
  if (!best) return QUERN_STATUS_OK;
  rt_device_drop(*device);
  bool none = (*device)->backend == &rt_cpu;
  if (none && !atomic_exchange(&table.warned, true)) base_log(0, "device auto is the CPU: %s", quern_last_error());
  return QUERN_STATUS_OK;
}
