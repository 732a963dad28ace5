/* runtime/cpu/build.c -- kernels made ready: found in the cache, or compiled in a few units side by side
** in:    verified kernels                         out: every kernel has its functions A kernel's key is made of its
**        text and of the compiler; the cache knows which object holds it. So kernels are found whatever they were
**        compiled together with.
** tests: tests/runtime/test_cpu.c
*/
#include "runtime/cpu/module.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct build {
  struct base_heap *heap;
  struct rt_module *module;
  const struct kern *const *kernels;
  const struct cg_target *target;
  struct rt_stats *stats;
  struct rt_cache cache;
  struct rt_cc cc;
  bool debug; /* QUERN_DUMP_DIR: sources and objects stay there */
  size_t n;
  struct rt_key *keys;
  int64_t *bytes;             /* of the text of each kernel alone */
  size_t *same;               /* the first kernel with that key */
  bool *missing;              /* first ones that are in no object yet */
  int *unit;                  /* of missing ones */
  char folder[RT_PATH_BYTES]; /* of sources and objects while compiling; "": none */
};

/* ---- keys ---------------------------------------------------------------------------------------------- */

static void log_source(const struct base_str *text) {
  if (base_env_int(BASE_ENV_DEBUG) < 4) return;
  for (const char *at = text->at; *at;) {
    int n = (int)strcspn(at, "\n");
    base_log(4, "%.*s", n, at);
    at += n;
    if (*at) at++;
  }
}

/* The text of a unit of the kernels k with pick[k] == number; of kernel `only` when pick is NULL. */
static quern_status unit_text(const struct build *build, const int *pick, int number, size_t only,
                              struct base_str *text) {
  struct cg_unit unit;
  cg_unit_init(&unit, build->heap, build->target);
  quern_status status = QUERN_STATUS_OK;
  for (size_t k = 0; k < build->n && status == QUERN_STATUS_OK; k++) {
    if (pick ? build->missing[k] && pick[k] == number : k == only) status = cg_unit_add(&unit, build->kernels[k]);
  }
  if (status == QUERN_STATUS_OK) status = cg_unit_text(&unit, text);
  if (status == QUERN_STATUS_OK) status = base_str_status(text);
  cg_unit_fini(&unit);
  return status;
}

static struct rt_key key_of(const struct build *build, const struct base_str *text) {
  struct rt_key key = rt_cc_key(&build->cc, build->target, build->debug);
  rt_key_add(&key, text->at, text->n);
  return key;
}

static quern_status make_keys(struct build *build) {
  for (size_t k = 0; k < build->n; k++) {
    struct base_str text;
    base_str_init(&text, build->heap);
    quern_status status = unit_text(build, NULL, 0, k, &text);
    if (status == QUERN_STATUS_OK) build->keys[k] = key_of(build, &text);
    build->bytes[k] = (int64_t)text.n;
    base_str_fini(&text);
    QUERN_TRY(status);
    build->same[k] = 0;
    while (!rt_key_equal(&build->keys[build->same[k]], &build->keys[k])) build->same[k]++;
    build->missing[k] = build->same[k] == k;
  }
  return QUERN_STATUS_OK;
}

/* ---- from the cache ------------------------------------------------------------------------------------ */

/* Loads an object of the cache; *there is false when it cannot be had. */
static quern_status load_cached(struct build *build, const struct rt_key *key, size_t *number, bool *there) {
  struct rt_bytes bytes;
  char path[RT_PATH_BYTES];
  *there = rt_module_find(build->module, key, number);
  if (*there) return QUERN_STATUS_OK;
  QUERN_TRY(rt_cache_read(&build->cache, key, &bytes, path));
  if (!bytes.at) return QUERN_STATUS_OK;
  quern_status status = rt_module_load(build->module, &bytes, path, build->cache.path, key, number);
  rt_bytes_free(build->heap, &bytes);
  if (status == QUERN_STATUS_MEMORY) return status;
  *there = status == QUERN_STATUS_OK;
  if (*there)
    build->stats->cached++;
  else
    rt_cache_remove(&build->cache, key);
  return QUERN_STATUS_OK;
}

static quern_status find_cached(struct build *build) {
  for (size_t k = 0; k < build->n; k++) {
    struct rt_key object;
    size_t number;
    bool there = false;
    if (!build->missing[k] || !rt_cache_find_kernel(&build->cache, &build->keys[k], &object)) continue;
    QUERN_TRY(load_cached(build, &object, &number, &there));
    if (there) build->missing[k] = !rt_module_resolve(build->module, k, build->kernels[k], number);
  }
  return QUERN_STATUS_OK;
}

/* ---- compiling ----------------------------------------------------------------------------------------- */

static quern_status make_folder(struct build *build) {
  const char *dump = base_env_get(BASE_ENV_DUMP_DIR);
  if (build->debug) {
    QUERN_CHECK(mkdir(dump, 0777) == 0 || errno == EEXIST, IO, "QUERN_DUMP_DIR: cannot make %s: %s", dump,
                strerror(errno));
    QUERN_CHECK(rt_path_real(build->folder, dump), IO, "QUERN_DUMP_DIR: %s: %s", dump, strerror(errno));
    return QUERN_STATUS_OK;
  }
  if (build->cache.folder >= 0 && rt_folder_make(build->folder, build->cache.path) == QUERN_STATUS_OK)
    return QUERN_STATUS_OK;
  rt_cache_close(&build->cache); /* what is made elsewhere cannot be renamed into it */
  return rt_folder_make(build->folder, "");
}

/* Writes the source of a unit: its key, and where it and its object are. */
static quern_status write_source(struct build *build, int number, struct rt_key *key, struct rt_cc_job *job) {
  struct base_str text;
  char name[64];
  base_str_init(&text, build->heap);
  quern_status status = unit_text(build, build->unit, number, 0, &text);
  if (status == QUERN_STATUS_OK) {
    *key = key_of(build, &text);
    log_source(&text);
    snprintf(name, sizeof name, "unit_%016llx.c", (unsigned long long)key->word[0]);
    bool fits = rt_path(job->source, build->folder, name);
    snprintf(name, sizeof name, "unit_%016llx.so", (unsigned long long)key->word[0]);
    fits = fits && rt_path(job->object, build->folder, name);
    status = fits ? rt_file_write(job->source, text.at, text.n)
                  : base_error(QUERN_STATUS_IO, "the name of folder %s is too long", build->folder);
  }
  base_str_fini(&text);
  return status;
}

/* Loads a compiled unit and puts it into the cache. */
static quern_status take_object(struct build *build, int unit, const struct rt_key *key, const struct rt_cc_job *job) {
  struct rt_bytes bytes = {0};
  char entry[RT_PATH_BYTES], path[RT_PATH_BYTES];
  size_t number = 0;
  bool cached = build->cache.folder >= 0 && rt_path(entry, build->folder, "entry.so");
  int fd = open(job->object, O_RDONLY | O_CLOEXEC);
  QUERN_CHECK(fd >= 0, IO, "cannot open %s: %s", job->object, strerror(errno));
  quern_status status = rt_file_read(build->heap, fd, job->object, &bytes);
  close(fd);
  cached = cached && status == QUERN_STATUS_OK && rt_cache_write(key, bytes.at, bytes.n, entry);
  cached = cached && rt_cache_add(&build->cache, key, entry, path);
  if (status == QUERN_STATUS_OK)
    status = rt_module_load(build->module, &bytes, cached ? path : job->object, build->cache.path, key, &number);
  rt_bytes_free(build->heap, &bytes);
  if (status != QUERN_STATUS_OK && cached) rt_cache_remove(&build->cache, key);
  QUERN_TRY(status);
  for (size_t k = 0; k < build->n; k++) {
    if (!build->missing[k] || build->unit[k] != unit) continue;
    QUERN_CHECK(rt_module_resolve(build->module, k, build->kernels[k], number), INTERNAL,
                "%s: the functions of kernel %s are missing", job->source, build->kernels[k]->name);
    if (cached) rt_cache_add_kernel(&build->cache, &build->keys[k], key);
  }
  return QUERN_STATUS_OK;
}

/* The bytes of text of the largest of n units, at most: what kernels share is there once. */
static int64_t largest_unit(const struct build *build, int n) {
  int64_t most = 0;
  for (int u = 0; u < n; u++) {
    int64_t bytes = 0;
    for (size_t k = 0; k < build->n; k++)
      if (build->missing[k] && build->unit[k] == u) bytes += build->bytes[k];
    most = BASE_MAX(most, bytes);
  }
  return most;
}

/* Deals the kernels to n units, `side` of which are compiled at a time: as many as there are processors, or under a
** limit smaller ones and fewer, until they fit. */
static quern_status deal_units(struct build *build, int *n, int *side) {
  int64_t room = build->stats->room, each = 0;
  for (*side = rt_processors(); *side >= 1; --*side) {
    for (int most = *side;; most *= 2) {
      QUERN_TRY(rt_units_deal(build->heap, build->n, build->kernels, build->missing, most, build->unit, n));
      each = rt_cc_bytes(&build->cc, largest_unit(build, *n));
      if (*n == 0 || room == 0 || BASE_MIN(*side, *n) * each <= room) return QUERN_STATUS_OK;
      if (*n < most || (size_t)most > build->n) break; /* no smaller ones */
    }
  }
  build->stats->least_room = each;
  return base_error(QUERN_STATUS_MEMORY,
                    "the C compiler may take %lld bytes; %s takes %lld for the largest of %d units of generated code",
                    (long long)room, build->cc.words[0], (long long)each, *n);
}

static quern_status compile_units(struct build *build, int n, int side, struct rt_cc_job *jobs, struct rt_key *keys,
                                  bool *usable) {
  for (int u = 0; u < n; u++) QUERN_TRY(write_source(build, u, &keys[u], &jobs[u]));
  for (int u = 0; u < n && *usable; u += side)
    QUERN_TRY(rt_cc_compile(&build->cc, build->heap, build->target, build->debug, (size_t)BASE_MIN(side, n - u),
                            &jobs[u], usable));
  for (int u = 0; u < n; u++) QUERN_TRY(take_object(build, u, &keys[u], &jobs[u]));
  build->stats->compiled += n;
  return rt_cache_trim(&build->cache);
}

static quern_status compile_missing(struct build *build, bool *usable) {
  int n, side;
  size_t bytes;
  QUERN_TRY(deal_units(build, &n, &side));
  if (n == 0) return QUERN_STATUS_OK;
  QUERN_TRY(make_folder(build));
  bytes = (size_t)n * (sizeof(struct rt_cc_job) + sizeof(struct rt_key));
  struct rt_cc_job *jobs = base_alloc(build->heap, bytes);
  quern_status status = QUERN_STATUS_MEMORY;
  if (jobs) status = compile_units(build, n, side, jobs, (struct rt_key *)(jobs + n), usable);
  base_free(build->heap, jobs, bytes);
  /* a source that could not be compiled stays for people to look at */
  bool keep = build->debug || (*usable && status != QUERN_STATUS_OK && status != QUERN_STATUS_MEMORY);
  if (!keep) rt_folder_remove(build->folder);
  return status;
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

/* With the number-th compiler; *usable is false when it turned out not to work. */
static quern_status build_with(struct build *build, int number, bool *found, bool *usable) {
  const char *folders = getenv("PATH");
  *usable = true;
  QUERN_TRY(
      rt_cc_find(&build->cc, build->heap, &build->cache, base_env_get(BASE_ENV_CC), folders ? folders : "", number));
  *found = build->cc.n_words > 0;
  if (!*found) return QUERN_STATUS_OK;
  QUERN_TRY(make_keys(build));
  QUERN_TRY(find_cached(build));
  QUERN_TRY(compile_missing(build, usable));
  for (size_t k = 0; k < build->n; k++) build->module->entries[k] = build->module->entries[build->same[k]];
  return QUERN_STATUS_OK;
}

/* Passes the compiler's complaint on, once a process. */
static void warn_unusable(void) {
  static _Atomic bool warned;
  if (!atomic_exchange(&warned, true)) base_log(0, "%s", quern_last_error());
}

static quern_status build_all(struct build *build, bool *compiler) {
  char place[RT_PATH_BYTES];
  rt_cache_place(place, sizeof place);
  rt_cache_open(&build->cache, build->heap, build->debug ? "" : place, RT_CACHE_LIMIT);
  quern_status status = QUERN_STATUS_OK;
  bool usable = false;
  for (int number = 0; !usable; number++) {
    status = build_with(build, number, compiler, &usable);
    if (*base_env_get(BASE_ENV_CC)) break; /* that one and no other */
    if (!usable) warn_unusable();
  }
  rt_cache_close(&build->cache);
  return status;
}

quern_status rt_module_build(struct rt_module *module, const struct kern *const *kernels,
                             const struct cg_target *target, struct rt_stats *stats, bool *compiler) {
  size_t n = module->n, bytes;
  size_t item = sizeof(struct rt_key) + sizeof(int64_t) + sizeof(size_t) + sizeof(int) + sizeof(bool);
  QUERN_CHECK(base_size(n, item, sizeof(struct build), &bytes), MEMORY, "no memory for %zu kernels", n);
  struct build *build = base_alloc_zero(module->heap, bytes);
  if (!build) return QUERN_STATUS_MEMORY;
  build->heap = module->heap;
  build->module = module;
  build->kernels = kernels;
  build->target = target;
  build->stats = stats;
  build->debug = *base_env_get(BASE_ENV_DUMP_DIR) != 0;
  build->n = n;
  build->keys = (struct rt_key *)(build + 1);
  build->bytes = (int64_t *)(build->keys + n);
  build->same = (size_t *)(build->bytes + n);
  build->unit = (int *)(build->same + n);
  build->missing = (bool *)(build->unit + n);
  quern_status status = build_all(build, compiler);
  base_free(module->heap, build, bytes);
  return status;
}
