/* runtime/gpu/translation_units.c -- kernels of GPUs as translation units, and their binaries: from the cache, or compiled
** keeps: a unit's key is made of its text, the compiler, the flags and Quern's version
** tests: tests/runtime/test_gpu.c
*/
#include "runtime/gpu/gpu.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "quern/version.h"

/* Of kernels that are nothing but calls of libraries there is no text. */
static bool has_text(const struct rt_gpu_unit *u, const struct kern *const *kernels) {
  for (size_t i = u->first; i < u->first + u->n; i++)
    for (int p = 0; p < kernels[i]->n_phases; p++)
      if (!kernels[i]->phases[p].library_call) return true;
  return false;
}

/* ---- text ------------------------------------------------------------------------------------------------- */

static quern_status make_text(struct rt_gpu_unit *u, struct base_heap *heap, const struct kern *const *kernels,
                              const struct cg_target *target) {
  struct cg_unit unit;
  cg_unit_init(&unit, heap, target);
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < u->n && status == QUERN_STATUS_OK; i++) status = cg_unit_add(&unit, kernels[u->first + i]);
  if (status == QUERN_STATUS_OK) status = cg_unit_text(&unit, &u->text);
  cg_unit_fini(&unit);
  return status;
}

static void make_key(struct rt_gpu_unit *u, const struct cg_target *target, const struct rt_gpu_compiler *compiler) {
  struct rt_key key = rt_key_make(5, u->text.at, u->text.n);
  const char *const words[] = {quern_version(), target->march, compiler->name, compiler->identity};
  for (size_t i = 0; i < BASE_COUNT(words); i++) rt_key_add(&key, words[i], strlen(words[i]) + 1);
  u->key[0] = key.word[0];
  u->key[1] = key.word[1];
}

/* Writes the text to a folder; path is where. */
static bool keep_text(const struct rt_gpu_unit *u, const struct rt_gpu_compiler *compiler, const char *folder,
                      char *path) {
  char name[64];
  snprintf(name, sizeof name, "unit_%016llx%s", (unsigned long long)u->key[0], compiler->end);
  return rt_path(path, folder, name) && rt_file_write(path, u->text.at, u->text.n) == QUERN_STATUS_OK;
}

static quern_status dump_text(const struct rt_gpu_unit *u, const struct rt_gpu_compiler *compiler) {
  const char *dump = base_env_get(BASE_ENV_DUMP_DIR);
  char path[RT_PATH_BYTES];
  if (base_env_int(BASE_ENV_DEBUG) >= 4)
    for (const char *at = u->text.at; *at != 0; at += strcspn(at, "\n") + (at[strcspn(at, "\n")] != 0))
      base_log(4, "%.*s", (int)strcspn(at, "\n"), at);
  if (dump[0] == 0) return QUERN_STATUS_OK;
  QUERN_CHECK(mkdir(dump, 0777) == 0 || errno == EEXIST, IO, "QUERN_DUMP_DIR: cannot make %s: %s", dump,
              strerror(errno));
  QUERN_CHECK(keep_text(u, compiler, dump, path), IO, "QUERN_DUMP_DIR: cannot write to %s", dump);
  return QUERN_STATUS_OK;
}

/* ---- compiling -------------------------------------------------------------------------------------------- */

struct job {
  struct rt_gpu_units *units;
  const struct cg_target *target;
  const struct rt_gpu_compiler *compiler;
  bool keep;                   /* in the cache */
  struct rt_gpu_unit **wanted; /* what is compiled, the longest text first */
  size_t n;
  atomic_size_t next;
};

/* The longest takes the longest: begun last, all would wait for it. */
static int by_length(const void *a, const void *b) {
  const struct rt_gpu_unit *x = *(struct rt_gpu_unit *const *)a, *y = *(struct rt_gpu_unit *const *)b;
  if (x->text.n != y->text.n) return x->text.n > y->text.n ? -1 : 1;
  return x->first < y->first ? -1 : 1;
}

/* As many units as the range has, whichever are next. The error of a thread is reported by another: the message is kept with
** the unit. */
static void compile_range(void *arg, int64_t begin, int64_t end, int thread) {
  struct job *job = arg;
  struct base_heap *heap = job->units->heap;
  (void)thread;
  for (int64_t i = begin; i < end; i++) {
    struct rt_gpu_unit *u = job->wanted[atomic_fetch_add(&job->next, 1)];
    u->status = job->compiler->compile(job->compiler->self, heap, job->target, u->text.at, &u->binary);
    if (u->status != QUERN_STATUS_OK)
      snprintf(u->error, sizeof u->error, "%s", quern_last_error());
    else if (job->keep)
      rt_blob_set(heap, u->key, u->binary.at, u->binary.n);
  }
}

static quern_status report(const struct rt_gpu_unit *u, const struct kern *const *kernels,
                           const struct rt_gpu_compiler *compiler) {
  struct rt_folder folder;
  char path[RT_PATH_BYTES];
  if (u->status == QUERN_STATUS_MEMORY || u->status == QUERN_STATUS_UNSUPPORTED)
    return base_error(u->status, "%s", u->error);
  bool kept = rt_folder_make(&folder, -1, "") == QUERN_STATUS_OK && keep_text(u, compiler, folder.path, path);
  rt_folder_leave(&folder);
  return base_error(u->status, "%s cannot compile kernel %s%s: %s%s%s", compiler->name, kernels[u->first]->name,
                    u->n > 1 ? " or one with it" : "", u->error, kept ? "; the text is " : "", kept ? path : "");
}

/* Signals come to the host when all is compiled. */
static quern_status compile_all(struct job *job) {
  struct rt_pool *pool;
  struct base_signals signals;
  int threads = job->compiler->parallel ? (int)BASE_MIN((size_t)rt_cpus(), job->n) : 1;
  qsort(job->wanted, job->n, sizeof *job->wanted, by_length);
  QUERN_TRY(rt_pool_new(&pool, job->units->heap, BASE_MAX(threads, 1)));
  base_signals_hold(&signals);
  rt_pool_run(pool, (int64_t)job->n, compile_range, job);
  base_signals_release(&signals);
  rt_pool_free(pool);
  return QUERN_STATUS_OK;
}

/* The text of a unit, and its binary if it is in the cache; else it is wanted. */
static quern_status find(struct job *job, struct rt_gpu_unit *u, const struct kern *const *kernels) {
  u->empty = !has_text(u, kernels);
  if (u->empty) return QUERN_STATUS_OK;
  QUERN_TRY(make_text(u, job->units->heap, kernels, job->target));
  make_key(u, job->target, job->compiler);
  QUERN_TRY(dump_text(u, job->compiler));
  if (job->keep) QUERN_TRY(rt_blob_get(job->units->heap, u->key, &u->binary.at, &u->binary.n, &u->binary.room));
  u->cached = u->binary.at != NULL;
  if (!u->cached) job->wanted[job->n++] = u;
  return QUERN_STATUS_OK;
}

static quern_status make(struct job *job, const struct kern *const *kernels, struct rt_stats *stats) {
  struct rt_gpu_units *units = job->units;
  for (size_t i = 0; i < units->n; i++) QUERN_TRY(find(job, &units->at[i], kernels));
  if (job->n > 0) QUERN_TRY(compile_all(job));
  for (size_t i = 0; i < units->n; i++) {
    if (units->at[i].status != QUERN_STATUS_OK) return report(&units->at[i], kernels, job->compiler);
    stats->cached += units->at[i].cached;
  }
  stats->compiled += (int)job->n;
  return QUERN_STATUS_OK;
}

quern_status rt_gpu_units_make(struct rt_gpu_units *units, struct base_heap *heap, size_t n,
                               const struct kern *const *kernels, const struct cg_target *target,
                               const struct rt_gpu_compiler *compiler, struct rt_stats *stats) {
  *units = (struct rt_gpu_units){.heap = heap, .n = (n + compiler->most - 1) / compiler->most};
  units->at = base_alloc_zero(heap, units->n * sizeof *units->at);
  if (units->at == NULL) {
    units->n = 0;
    return QUERN_STATUS_MEMORY;
  }
  for (size_t i = 0; i < units->n; i++) {
    units->at[i].first = i * compiler->most;
    units->at[i].n = BASE_MIN(compiler->most, n - units->at[i].first);
    base_str_init(&units->at[i].text, heap);
  }
  struct job job = {.units = units, .target = target, .compiler = compiler};
  job.keep = base_env_get(BASE_ENV_DUMP_DIR)[0] == 0; /* who wants to see texts is shown all of them */
  job.wanted = base_alloc(heap, (units->n + 1) * sizeof *job.wanted);
  quern_status status = job.wanted != NULL ? make(&job, kernels, stats) : QUERN_STATUS_MEMORY;
  base_free(heap, job.wanted, (units->n + 1) * sizeof *job.wanted);
  if (status != QUERN_STATUS_OK) rt_gpu_units_fini(units);
  return status;
}

void rt_gpu_units_fini(struct rt_gpu_units *units) {
  for (size_t i = 0; i < units->n; i++) {
    base_str_fini(&units->at[i].text);
    rt_bytes_free(units->heap, &units->at[i].binary);
  }
  base_free(units->heap, units->at, units->n * sizeof *units->at);
  units->at = NULL;
  units->n = 0;
}

/* ---- kernels ---------------------------------------------------------------------------------------------- */

void rt_gpu_kernels(struct rt_gpu_kernel *to, const struct kern *const *kernels, const struct cg_target *target,
                    const struct rt_gpu_units *units) {
  for (size_t i = 0; i < units->n; i++) {
    int number = 0;
    for (size_t k = units->at[i].first; k < units->at[i].first + units->at[i].n; k++) {
      const struct kern *kern = kernels[k];
      size_t same = units->at[i].first; /* a unit has a kernel once */
      while (strcmp(kernels[same]->name, kern->name) != 0) same++;
      if (same < k) {
        to[k] = to[same];
        continue;
      }
      to[k] = (struct rt_gpu_kernel){.name = kern->name,
                                     .unit = i,
                                     .n_mems = kern->n_mems,
                                     .n_scalars = kern->n_scalars,
                                     .n_phases = kern->n_phases,
                                     .scratch = cg_scratch(kern, target) > 0,
                                     .max_batched = cg_batched_launches(kern, target)};
      for (int p = 0; p < kern->n_phases; p++) {
        struct cg_shape shape = cg_shape(kern, p, target);
        to[k].phases[p] = (struct rt_gpu_phase){.phase = kern->phases[p],
                                                .number = number++,
                                                .group = shape.block_threads,
                                                .tasks = shape.tasks,
                                                .given = (int)cg_dynamic_shared_bytes(kern, p, target)};
      }
    }
  }
}
