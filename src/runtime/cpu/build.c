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
  int64_t *bytes;          /* of the text of each kernel alone */
  size_t *same;            /* the first kernel with that key */
  bool *missing;           /* first ones that are in no object yet */
  int *unit;               /* of missing ones */
  int n_at_once;           /* units that are compiled side by side */
  struct rt_folder folder; /* of sources and objects while compiling; fd -1: none, or that of QUERN_DUMP_DIR */
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
  quern_status status = rt_module_load(build->module, &bytes, path, key, number);
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

/* Where to compile: in the cache, or elsewhere. */
static quern_status make_folder(struct build *build, bool in_cache) {
  const char *dump = base_env_get(BASE_ENV_DUMP_DIR);
  build->folder = (struct rt_folder){.fd = -1, .in = -1};
  if (build->debug) {
    QUERN_CHECK(mkdir(dump, 0777) == 0 || errno == EEXIST, IO, "QUERN_DUMP_DIR: cannot make %s: %s", dump,
                strerror(errno));
    QUERN_CHECK(rt_path_real(build->folder.path, dump), IO, "QUERN_DUMP_DIR: %s: %s", dump, strerror(errno));
    return QUERN_STATUS_OK;
  }
  if (in_cache && rt_folder_make(&build->folder, build->cache.folder, build->cache.path) == QUERN_STATUS_OK)
    return QUERN_STATUS_OK;
  return rt_folder_make(&build->folder, -1, "");
}

/* Whether a failure is that of the folder: somebody has removed it, or its disk is full or cannot be written. */
static bool folder_failed(const struct build *build, int n, const struct rt_cc_job *jobs) {
  static const char *const words[] = {"No space left", "quota exceeded", "Read-only file system"};
  static const char zeros[1 << 16];
  char name[RT_NAME_BYTES];
  struct stat info;
  if (build->folder.fd < 0) return false;
  if (fstat(build->folder.fd, &info) != 0 || info.st_nlink == 0) return true;
  for (size_t i = 0; i < BASE_COUNT(words); i++)
    if (strstr(quern_last_error(), words[i])) return true;
  for (int u = 0; u < n; u++)
    if (stat(jobs[u].source, &info) != 0) return true;
  rt_name_make(name);
  int fd = base_fd_high(openat(build->folder.fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  bool whole = fd >= 0;
  for (int i = 0; i < 16 && whole; i++) whole = rt_write_all(fd, zeros, sizeof zeros);
  if (fd >= 0) close(fd);
  unlinkat(build->folder.fd, name, 0);
  return !whole;
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
    bool fits = rt_path(job->source, build->folder.path, name);
    snprintf(name, sizeof name, "unit_%016llx.so", (unsigned long long)key->word[0]);
    fits = fits && rt_path(job->object, build->folder.path, name);
    status = fits ? rt_file_write(job->source, text.at, text.n)
                  : base_error(QUERN_STATUS_IO, "the name of folder %s is too long", build->folder.path);
  }
  base_str_fini(&text);
  return status;
}

/* Loads a compiled unit and puts it into the cache. */
static quern_status take_object(struct build *build, int unit, const struct rt_key *key, const struct rt_cc_job *job) {
  struct rt_bytes bytes = {0};
  size_t number = 0;
  bool cached = false;
  int fd = open(job->object, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  QUERN_CHECK(fd >= 0, IO, "cannot open %s: %s", job->object, strerror(errno));
  quern_status status = rt_file_read(build->heap, fd, job->object, &bytes);
  close(fd);
  if (status == QUERN_STATUS_OK) {
    char path[RT_PATH_BYTES];
    const char *name = strrchr(job->object, '/') + 1;
    cached = rt_cache_add(&build->cache, key, bytes.at, bytes.n);
    if (!build->debug) rt_path_in(path, build->folder.fd, name);
    status = rt_module_load(build->module, &bytes, build->debug ? job->object : path, key, &number);
  }
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

/* Assigns the kernels to n translation units, as many of which are compiled at once as there are CPUs, or under a limit smaller ones and
** fewer, until they fit. */
static quern_status assign_units(struct build *build, int *n) {
  int64_t room = build->stats->room, each = 0;
  for (build->n_at_once = rt_cpus(); build->n_at_once >= 1; build->n_at_once--) {
    for (int most = build->n_at_once;; most *= 2) {
      QUERN_TRY(rt_units_assign(build->heap, build->n, build->kernels, build->missing, most, build->unit, n));
      each = rt_cc_bytes(&build->cc, largest_unit(build, *n));
      if (*n == 0 || room == 0 || BASE_MIN(build->n_at_once, *n) * each <= room) return QUERN_STATUS_OK;
      if (*n < most || (size_t)most > build->n) break; /* no smaller ones */
    }
  }
  build->stats->least_room = each;
  return base_error(QUERN_STATUS_MEMORY,
                    "the C compiler may take %lld bytes; %s takes %lld for the largest of %d units of generated code",
                    (long long)room, build->cc.words[0], (long long)each, *n);
}

static quern_status compile_units(struct build *build, int n, struct rt_cc_job *jobs, struct rt_key *keys,
                                  bool *usable) {
  for (int u = 0; u < n; u++) QUERN_TRY(write_source(build, u, &keys[u], &jobs[u]));
  for (int u = 0; u < n && *usable; u += build->n_at_once)
    QUERN_TRY(rt_cc_compile(&build->cc, build->heap, build->target, build->debug,
                            (size_t)BASE_MIN(build->n_at_once, n - u), &jobs[u], usable));
  for (int u = 0; u < n; u++) QUERN_TRY(take_object(build, u, &keys[u], &jobs[u]));
  build->stats->compiled += n;
  return rt_cache_trim(&build->cache);
}

/* Compiles in a new folder; *failed: the folder is to blame. */
static quern_status compile_in(struct build *build, bool in_cache, int n, struct rt_cc_job *jobs, bool *usable,
                               bool *failed) {
  memset(jobs, 0, (size_t)n * sizeof *jobs);
  QUERN_TRY(make_folder(build, in_cache));
  quern_status status = compile_units(build, n, jobs, (struct rt_key *)(jobs + n), usable);
  *failed = status != QUERN_STATUS_OK && status != QUERN_STATUS_MEMORY && folder_failed(build, n, jobs);
  /* a source that could not be compiled stays for people to look at */
  bool keep = build->debug || (*usable && status != QUERN_STATUS_OK && status != QUERN_STATUS_MEMORY && !*failed);
  if (keep)
    rt_folder_leave(&build->folder);
  else
    rt_folder_remove(&build->folder);
  return status;
}

/* Once per process. */
static void warn_failed(const struct build *build) {
  static _Atomic bool warned;
  if (!atomic_exchange(&warned, true))
    base_log(0, "kernels are compiled elsewhere, since the cache %.300s was removed or has no room: %.300s",
             build->cache.path, quern_last_error());
}

static quern_status compile_missing(struct build *build, bool *usable) {
  int n;
  size_t bytes;
  QUERN_TRY(assign_units(build, &n));
  if (n == 0) return QUERN_STATUS_OK;
  bytes = (size_t)n * (sizeof(struct rt_cc_job) + sizeof(struct rt_key));
  struct rt_cc_job *jobs = base_alloc(build->heap, bytes);
  if (!jobs) return QUERN_STATUS_MEMORY;
  bool failed = false;
  quern_status status = compile_in(build, build->cache.folder >= 0, n, jobs, usable, &failed);
  if (failed && build->cache.folder >= 0) { /* the cache is not what a run depends on */
    warn_failed(build);
    rt_cache_close(&build->cache);
    *usable = true;
    status = compile_in(build, false, n, jobs, usable, &failed);
  }
  base_free(build->heap, jobs, bytes);
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

/* Passes the compiler's complaint on, once per process. */
static void warn_unusable(void) {
  static _Atomic bool warned;
  if (!atomic_exchange(&warned, true)) base_log(0, "%s", quern_last_error());
}

static quern_status build_all(struct build *build, bool *compiler) {
  char place[RT_PATH_BYTES];
  rt_cache_path(place, sizeof place);
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
