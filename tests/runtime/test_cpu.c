/* tests/runtime/test_cpu.c -- kernels from the builder to the CPU: bits, threads, cache, objects, hosts */
#define _GNU_SOURCE /* unshare */
#include "runtime/files.h"
#include "runtime/kernels.h"

#include <fenv.h>
#if defined(__linux__)
#include <sched.h>
#include <sys/mount.h>
#endif

#include "runtime/cpu/cpu_int.h"

enum { ROWS = 100 };

static struct base_heap heap;
static struct cg_target target;
static struct kern *kernels[4];
static float x[ROWS * ROW], expected[4][ROWS * ROW];
static char text[8192];

static const struct kern *const *all(void) { return (const struct kern *const *)kernels; }

/* ---- what is computed ---------------------------------------------------------------------------------- */

/* Memories of kernel k: x, the result in y, and work. */
static void memories(float *y, float *work, void **mems) {
  mems[0] = x;
  mems[1] = y;
  mems[2] = work;
}

/* The interpreter's results, which all are compared with. */
static void interpret(void) {
  static float work[ROWS];
  for (int i = 0; i < ROWS * ROW; i++) x[i] = (float)((i * 7919) % 1000) / 300.0f - 1.5f;
  for (int k = 0; k < 4; k++) {
    void *mems[3];
    memories(expected[k], work, mems);
    EXPECT_OK(kern_interp(kernels[k], &(struct kern_launch){mems, (int64_t[]){ROWS}, NULL}, 0));
  }
}

static int setup(void **state) {
  (void)state;
  base_heap_init(&heap, &memory_allocator);
  EXPECT_OK(rt_cpu.target(&target));
  EXPECT_OK(kernel_scale(&kernels[0], &heap, ROWS, 1.1));
  EXPECT_OK(kernel_scale(&kernels[1], &heap, ROWS, 0.7));
  EXPECT_OK(kernel_total(&kernels[2], &heap, ROWS, 0.5));
  EXPECT_OK(kernel_total(&kernels[3], &heap, ROWS, 100));
  for (int k = 0; k < 4; k++) EXPECT_OK(kern_verify(kernels[k], NULL));
  interpret();
  return 0;
}

static int teardown(void **state) {
  (void)state;
  for (int k = 0; k < 4; k++) kern_free(kernels[k]);
  return memory_live == 0 ? 0 : -1;
}

static void launch(struct rt_module *module, size_t k, size_t of, struct rt_pool *pool) {
  static float y[ROWS * ROW], work[ROWS];
  _Alignas(64) static char scratch[8 * 4096];
  void *mems[3];
  memset(y, 0xff, sizeof y);
  memories(y, work, mems);
  assert_true(kern_scratch_bytes(kernels[of]) <= 4096);
  EXPECT_OK(rt_cpu.launch(module, k, &(struct kern_launch){mems, (int64_t[]){ROWS}, NULL}, pool, scratch, 4096));
  size_t n = of < 2 ? sizeof y : sizeof y[0];
  if (memcmp(y, expected[of], n) != 0) fail_msg("kernel %zu: other bits than the interpreter's", of);
}

/* All kernels of a module of n, which are those from first on. */
static void launch_all(struct rt_module *module, size_t n, size_t first) {
  static const int threads[] = {1, 2, 3, 8};
  for (size_t t = 0; t < BASE_COUNT(threads); t++) {
    struct rt_pool *pool;
    EXPECT_OK(rt_pool_new(&pool, &heap, threads[t]));
    for (uint64_t seed = 0; seed < 3; seed++) {
      rt_pool_disturb(pool, seed);
      for (size_t k = 0; k < n; k++) launch(module, k, first + k, pool);
    }
    rt_pool_free(pool);
  }
}

/* Builds n kernels from number first on, as many units compiled and cached as said, and runs them. */
static void expect_built(size_t n, size_t first, int compiled, int cached) {
  struct rt_module *module;
  struct rt_stats stats = {.compiled = -1, .cached = -1, .seconds = -1};
  EXPECT_OK(rt_cpu.build(&module, &heap, n, all() + first, &target, &stats));
  if (stats.compiled != compiled || stats.cached != cached)
    fail_msg("%d compiled and %d cached, expected %d and %d", stats.compiled, stats.cached, compiled, cached);
  assert_true(stats.seconds >= 0);
  launch_all(module, n, first);
  rt_cpu.free(module);
}

static void expect_clean(void) {
  assert_int_equal(files_count(in_folder("cache"), "quern-tmp-", NULL), 0);
  assert_int_equal(files_count(in_folder("tmp"), "", NULL), 0);
}

static void bits(void **state) {
  (void)state;
  files_remove(in_folder("cache"));
  expect_built(4, 0, 1, 0);
  expect_built(4, 0, 0, 1);
  expect_clean();
}

/* Kernels are found whatever they were compiled with. */
static void parts(void **state) {
  (void)state;
  files_remove(in_folder("cache"));
  expect_built(2, 0, 1, 0);
  expect_built(1, 1, 0, 1);
  expect_built(4, 0, 1, 1); /* two of them are new */
  expect_built(4, 0, 0, 2);
  expect_built(2, 1, 0, 2);
  assert_int_equal(files_count(in_folder("cache"), "", ".so"), 2);
  assert_int_equal(files_count(in_folder("cache"), "", ".k"), 4);
  expect_clean();
}

static void twice_the_same(void **state) {
  (void)state;
  struct rt_module *module;
  struct rt_stats stats = {0};
  const struct kern *list[] = {kernels[0], kernels[2], kernels[0], kernels[2], kernels[0]};
  struct rt_pool *pool;
  files_remove(in_folder("cache"));
  EXPECT_OK(rt_pool_new(&pool, &heap, 2));
  EXPECT_OK(rt_cpu.build(&module, &heap, 5, list, &target, &stats));
  for (size_t k = 0; k < 5; k++) launch(module, k, k % 2 ? 2 : 0, pool);
  rt_cpu.free(module);
  EXPECT_OK(rt_cpu.build(&module, &heap, 0, NULL, &target, NULL));
  rt_cpu.free(module);
  rt_cpu.free(NULL);
  rt_pool_free(pool);
}

static void no_tasks(void **state) {
  (void)state;
  struct rt_module *module;
  struct rt_pool *pool;
  float y = -1, work[ROWS];
  void *mems[3];
  _Alignas(64) char scratch[4096];
  memories(&y, work, mems);
  EXPECT_OK(rt_pool_new(&pool, &heap, 1));
  EXPECT_OK(rt_cpu.build(&module, &heap, 1, all() + 2, &target, NULL));
  EXPECT_OK(rt_cpu.launch(module, 0, &(struct kern_launch){mems, (int64_t[]){0}, NULL}, pool, scratch, 4096));
  assert_true(y == 0.5f);
  rt_cpu.free(module);
  rt_pool_free(pool);
}

/* ---- the cache ----------------------------------------------------------------------------------------- */

static void spoil(const char *end, void (*how)(const char *path)) {
  DIR *dir = opendir(in_folder("cache"));
  struct dirent *entry;
  assert_non_null(dir);
  while ((entry = readdir(dir))) {
    char name[512];
    if (!strstr(entry->d_name, end)) continue;
    snprintf(name, sizeof name, "cache/%s", entry->d_name);
    how(in_folder(name));
  }
  closedir(dir);
}

static void cut(const char *path) { assert_int_equal(truncate(path, 1000), 0); }
static void overwrite(const char *path) { files_write(path, "garbage"); }
static void drop(const char *path) { assert_int_equal(unlink(path), 0); }

static void spoilt_cache(void **state) {
  (void)state;
  files_remove(in_folder("cache"));
  expect_built(4, 0, 1, 0);
  spoil(".so", cut);
  expect_built(4, 0, 1, 0);
  expect_built(4, 0, 0, 1);
  spoil(".so", overwrite);
  expect_built(4, 0, 1, 0);
  spoil(".so", drop);
  expect_built(4, 0, 1, 0);
  spoil(".k", drop);
  expect_built(4, 0, 1, 0);
  expect_built(4, 0, 0, 1);
  expect_clean();
}

/* What compilers may have in memory: too little is refused before one is started, and what is reported to be enough is. */
static void room_for_compilers(void **state) {
  (void)state;
  struct rt_module *module;
  struct rt_stats stats = {.room = 1};
  files_remove(in_folder("cache"));
  EXPECT_ERROR(rt_cpu.build(&module, &heap, 4, all(), &target, &stats), MEMORY, "the C compiler may take 1 bytes");
  int64_t least = stats.least_room;
  assert_true(least > 1 << 20);
  stats = (struct rt_stats){.room = least - 1};
  EXPECT_ERROR(rt_cpu.build(&module, &heap, 4, all(), &target, &stats), MEMORY, "of generated code");
  assert_int_equal(files_count(in_folder("cache"), "", ".so"), 0);
  stats = (struct rt_stats){.room = least};
  EXPECT_OK(rt_cpu.build(&module, &heap, 4, all(), &target, &stats));
  assert_true(stats.compiled >= 1 && stats.least_room == 0);
  rt_cpu.free(module);
  stats = (struct rt_stats){.room = 1}; /* nothing is missing */
  EXPECT_OK(rt_cpu.build(&module, &heap, 4, all(), &target, &stats));
  assert_int_equal(stats.compiled, 0);
  launch_all(module, 4, 0);
  rt_cpu.free(module);
}

static void build_in_child(void) {
  struct rt_module *module;
  struct rt_stats stats = {0};
  CHILD_CHECK(rt_cpu.build(&module, &heap, 4, all(), &target, &stats) == QUERN_STATUS_OK);
  CHILD_CHECK(stats.compiled + stats.cached >= 1);
  launch_all(module, 4, 0);
  rt_cpu.free(module);
}

/* Eight processes that start at once with an empty cache. */
static void many_processes(void **state) {
  (void)state;
  pid_t children[8];
  files_remove(in_folder("cache"));
  for (int i = 0; i < 8; i++) {
    children[i] = fork();
    assert_true(children[i] >= 0);
    if (children[i] == 0) {
      build_in_child();
      _exit(0);
    }
  }
  for (int i = 0; i < 8; i++) {
    int status;
    assert_int_equal(waitpid(children[i], &status, 0), children[i]);
    assert_int_equal(status, 0);
  }
  expect_built(4, 0, 0, 1);
  expect_clean();
}

struct builder {
  struct base_thread thread;
  quern_status status;
};

static void build_in_thread(void *arg) {
  struct builder *builder = arg;
  struct base_heap own;
  struct rt_module *module;
  base_heap_init(&own, NULL);
  builder->status = rt_cpu.build(&module, &own, 2, all() + 1, &target, NULL);
  if (builder->status == QUERN_STATUS_OK) rt_cpu.free(module);
}

static void many_threads(void **state) {
  (void)state;
  struct builder builders[4];
  files_remove(in_folder("cache"));
  /* kernels use their own heap while they are printed: the allocator of tests is for one thread */
  for (int k = 1; k < 3; k++) kern_free(kernels[k]);
  struct base_heap plain;
  base_heap_init(&plain, NULL);
  EXPECT_OK(kernel_scale(&kernels[1], &plain, ROWS, 0.7));
  EXPECT_OK(kernel_total(&kernels[2], &plain, ROWS, 0.5));
  for (int i = 0; i < 4; i++) EXPECT_OK(base_thread_start(&builders[i].thread, build_in_thread, &builders[i]));
  for (int i = 0; i < 4; i++) base_thread_join(&builders[i].thread);
  for (int i = 0; i < 4; i++) EXPECT_OK(builders[i].status);
  for (int k = 1; k < 3; k++) kern_free(kernels[k]);
  kernels[1] = kernels[2] = NULL;
  expect_clean();
}

/* ---- objects ------------------------------------------------------------------------------------------- */

static void from_objects(void **state) {
  (void)state;
  struct rt_module *module, *loaded, *again;
  const struct rt_object *objects;
  files_remove(in_folder("cache"));
  expect_built(2, 0, 1, 0);
  EXPECT_OK(rt_cpu.build(&module, &heap, 4, all(), &target, NULL)); /* of two objects */
  size_t n = rt_cpu.objects(module, &objects);
  assert_int_equal(n, 2);
  files_remove(in_folder("cache"));
  EXPECT_OK(rt_cpu.from_objects(&loaded, &heap, 4, all(), n, objects));
  launch_all(module, 4, 0);
  rt_cpu.free(module);
  launch_all(loaded, 4, 0);
  n = rt_cpu.objects(loaded, &objects);
  assert_int_equal(n, 2);
  EXPECT_OK(rt_cpu.from_objects(&again, &heap, 1, all() + 3, n, objects)); /* while the other is loaded */
  launch_all(again, 1, 3);
  launch_all(loaded, 4, 0);
  EXPECT_ERROR(rt_cpu.from_objects(&module, &heap, 4, all(), 1, objects), INVALID, "is in none of the 1 objects");
  assert_null(module);
  struct rt_object garbage = {"garbage", 7};
  EXPECT_ERROR(rt_cpu.from_objects(&module, &heap, 1, all(), 1, &garbage), IO, "cannot load compiled kernels");
  rt_cpu.free(loaded);
  rt_cpu.free(again);
  expect_clean();
}

/* ---- hosts --------------------------------------------------------------------------------------------- */

/* Each in a process of its own, with other variables; the base's view of them is read there. The status it ended with.
** */
static int run_child(void (*body)(void), const char *const (*variables)[2]) {
  fflush(NULL);
  int ends[2], status;
  size_t n = 0;
  ssize_t got;
  assert_int_equal(pipe(ends), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    for (; (*variables)[0]; variables++) {
      if ((*variables)[1])
        setenv((*variables)[0], (*variables)[1], 1);
      else
        unsetenv((*variables)[0]);
    }
    setup(NULL);
    body();
    _exit(0);
  }
  close(ends[1]);
  while (n + 1 < sizeof text && (got = read(ends[0], text + n, sizeof text - 1 - n)) > 0) n += (size_t)got;
  text[n] = 0;
  close(ends[0]);
  assert_int_equal(waitpid(child, &status, 0), child);
  return status;
}

static void expect_child(void (*body)(void), const char *const (*variables)[2], const char *words) {
  int status = run_child(body, variables);
  if (status != 0) fail_msg("child ended with %d: %s", status, text);
  if (*words == 0) assert_string_equal(text, "");
  if (!strstr(text, words)) fail_msg("\"%s\" is not in: %s", words, text);
}

static void without_cache(void) {
  expect_built(4, 0, 1, 0);
  expect_built(4, 0, 1, 0);
}

static void without_compiler(void) {
  expect_built(4, 0, 0, 0);
  struct rt_module *module;
  const struct rt_object *objects;
  CHILD_CHECK(rt_cpu.build(&module, &heap, 4, all(), &target, NULL) == QUERN_STATUS_OK);
  CHILD_CHECK(rt_cpu.objects(module, &objects) == 0);
  rt_cpu.free(module);
}

/* Nothing is interpreted as long as nothing is launched: then there is nothing to warn of. */
static void built_and_not_run(void) {
  struct rt_module *module;
  CHILD_CHECK(rt_cpu.build(&module, &heap, 4, all(), &target, NULL) == QUERN_STATUS_OK);
  rt_cpu.free(module);
}

static void wrong_compiler(void) {
  struct rt_module *module;
  EXPECT_ERROR(rt_cpu.build(&module, &heap, 4, all(), &target, NULL), IO, "nosuchcc");
  CHILD_CHECK(!module && memory_live > 0);
}

static void stupid_compiler(void) {
  struct rt_module *module;
  EXPECT_ERROR(rt_cpu.build(&module, &heap, 4, all(), &target, NULL), INTERNAL, "this is too hard");
  CHILD_CHECK(strstr(quern_last_error(), "unit_") && files_count(in_folder("cache2"), "quern-tmp-", NULL) == 1);
}

static void garbage_compiler(void) {
  struct rt_module *module;
  EXPECT_ERROR(rt_cpu.build(&module, &heap, 4, all(), &target, NULL), IO, "cannot load compiled kernels");
  CHILD_CHECK(files_count(in_folder("cache3"), "", ".so") == 0);
}

static void dumped(void) {
  expect_built(4, 0, 1, 0);
  expect_built(4, 0, 1, 0);
  CHILD_CHECK(files_count(in_folder("dump"), "unit_", ".c") == 1);
  CHILD_CHECK(files_count(in_folder("dump"), "unit_", ".so") == 1);
}

static void notes(void) {
  char note[64];
  rt_note_get(&heap, "speed", note, sizeof note);
  CHILD_CHECK(strcmp(note, "") == 0);
  rt_note_set(&heap, "speed", "fast");
  rt_note_set(&heap, "color", "green");
  rt_note_get(&heap, "speed", note, sizeof note);
  CHILD_CHECK(strcmp(note, "fast") == 0);
}

static void no_notes(void) {
  char note[64] = "x";
  rt_note_set(&heap, "speed", "fast");
  rt_note_get(&heap, "speed", note, sizeof note);
  CHILD_CHECK(strcmp(note, "") == 0);
}

static void debug_source(void) { expect_built(1, 0, 1, 0); }

static void write_script(const char *name, const char *lines) {
  files_write(in_folder(name), lines);
  assert_int_equal(chmod(in_folder(name), 0700), 0);
}

#define VARIABLES(...) ((const char *const[][2]){__VA_ARGS__, {NULL, NULL}})

static void environments(void **state) {
  (void)state;
  expect_child(without_cache, VARIABLES({"QUERN_CACHE", "0"}), "");
  expect_child(without_compiler, VARIABLES({"PATH", in_folder("empty")}), "kernels are interpreted, which is slow");
  assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1); /* said once */
  expect_child(built_and_not_run, VARIABLES({"PATH", in_folder("empty")}), "");
  expect_child(wrong_compiler, VARIABLES({"QUERN_CC", "nosuchcc -O2"}), "");
  write_script("stupid", "#!/bin/sh\ncase \"$*\" in *probe*) exec cc \"$@\";; *--version*) echo 1;; *) echo this is "
                         "too hard; exit 1;; esac\n");
  expect_child(stupid_compiler, VARIABLES({"QUERN_CC", in_folder("stupid")}, {"QUERN_CACHE", in_folder("cache2")}), "");
  write_script("garbage", "#!/bin/sh\n[ $1 = --version ] && { echo 1; exit; }\nfor x; do [ \"$o\" = -o ] && echo "
                          "garbage > $x; o=$x; done\n");
  expect_child(garbage_compiler, VARIABLES({"QUERN_CC", in_folder("garbage")}, {"QUERN_CACHE", in_folder("cache3")}),
               "");
  write_script("broken/cc", "#!/bin/sh\n[ $1 = --version ] && { echo 1; exit; }\necho no assembler; exit 1\n");
  expect_child(without_compiler, VARIABLES({"PATH", in_folder("broken")}), "no assembler");
  expect_child(dumped, VARIABLES({"QUERN_DUMP_DIR", in_folder("dump")}), "");
  expect_child(notes, VARIABLES({"QUERN_CACHE", in_folder("cache4")}), "");
  expect_child(no_notes, VARIABLES({"QUERN_CACHE", "0"}), "");
  expect_child(debug_source, VARIABLES({"QUERN_DEBUG", "4"}, {"QUERN_CACHE", "0"}), "k_");
  assert_non_null(strstr(text, "1 units compiled"));
  files_make_parents(in_folder("open/x"));
  assert_int_equal(chmod(in_folder("open"), 0755), 0);
  expect_child(without_cache, VARIABLES({"QUERN_CACHE", in_folder("open")}), "chmod 700");
  assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
  assert_int_equal(files_count(in_folder("tmp"), "", NULL), 0);
}

/* ---- a cache that goes away ------------------------------------------------------------------------------------- */

/* The cache is removed, or its disk is full, while the compiler runs: kernels are compiled elsewhere, and the next ones
** are kept. */
static void without_its_folder(void) {
  expect_built(2, 0, 1, 0);
  expect_built(4, 0, 1, files_count(in_folder("lost"), "", ".so") > 0 ? 1 : 0);
}

static void cache_removed(void **state) {
  (void)state;
  char lines[2048];
  snprintf(lines, sizeof lines, "#!/bin/sh\ncase \"$*\" in *--version*) ;; *%s*) rm -rf %s;; esac\nexec cc \"$@\"\n",
           in_folder("lost/"), in_folder("lost"));
  write_script("remover", lines);
  expect_child(without_its_folder, VARIABLES({"QUERN_CC", in_folder("remover")}, {"QUERN_CACHE", in_folder("lost")}),
               "was removed or has no room");
  assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1); /* said once */
  snprintf(lines, sizeof lines,
           "#!/bin/sh\ncase \"$*\" in *--version*) ;; *%s*) echo 'cannot write: No space left on device'; exit 1;; "
           "esac\nexec cc \"$@\"\n",
           in_folder("lost/"));
  write_script("full", lines);
  expect_child(without_its_folder, VARIABLES({"QUERN_CC", in_folder("full")}, {"QUERN_CACHE", in_folder("lost")}),
               "was removed or has no room");
  assert_int_equal(files_count(in_folder("lost"), "quern-tmp-", NULL), 0);
  assert_int_equal(files_count(in_folder("tmp"), "", NULL), 0);
}

#if defined(__linux__)
/* A disk of 64 KiB, in a name space of its own: it goes with the process. */
static void on_a_small_disk(void) {
  bool mounted = unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                 mount("none", in_folder("small"), "tmpfs", 0, "size=64k,mode=700") == 0;
  if (!mounted) _exit(77);
  static char zeros[1 << 16];
  int fd = open(in_folder("small/filler"), O_WRONLY | O_CREAT, 0600);
  for (size_t n = sizeof zeros; n > 0; n /= 2) {
    while (write(fd, zeros, n) > 0) {}
  }
  close(fd);
  expect_built(4, 0, 1, 0);
  CHILD_CHECK(files_count(in_folder("small"), "quern-tmp-", NULL) == 0);
}

static void disk_full(void **state) {
  (void)state;
  files_make_parents(in_folder("small/x"));
  int status = run_child(on_a_small_disk, VARIABLES({"QUERN_CACHE", in_folder("small")}));
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
    print_message("a file system cannot be mounted here\n");
    skip();
  }
  if (status != 0) fail_msg("child ended with %d: %s", status, text);
  assert_non_null(strstr(text, "was removed or has no room"));
}
#endif

/* A host that rounds another way gets the same bits, and keeps its way. */
static void other_rounding(void **state) {
  (void)state;
  struct rt_module *module;
  struct rt_pool *pool;
  EXPECT_OK(rt_cpu.build(&module, &heap, 4, all(), &target, NULL));
  EXPECT_OK(rt_pool_new(&pool, &heap, 2));
  fesetround(FE_UPWARD);
  for (size_t k = 0; k < 4; k++) launch(module, k, k, pool);
  assert_int_equal(fegetround(), FE_UPWARD);
  fesetround(FE_TONEAREST);
  rt_pool_free(pool);
  rt_cpu.free(module);
}

/* ---- faults -------------------------------------------------------------------------------------------- */

static void fault_loop(bool warm) {
  struct fault fault = {0};
  size_t live = memory_live;
  while (fault_next(&fault)) {
    struct rt_module *module;
    if (!warm) files_remove(in_folder("cache"));
    fault_begin(&fault);
    quern_status status = rt_cpu.build(&module, &heap, 3, all(), &target, NULL);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    rt_cpu.free(module);
    assert_int_equal(memory_live, live);
    expect_clean();
  }
  assert_true(fault.n > 10);
}

static void faults(void **state) {
  (void)state;
  fault_loop(false);
  fault_loop(true);
  struct rt_module *module, *loaded;
  const struct rt_object *objects;
  EXPECT_OK(rt_cpu.build(&module, &heap, 3, all(), &target, NULL));
  size_t n = rt_cpu.objects(module, &objects), live = memory_live;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    fault_begin(&fault);
    quern_status status = rt_cpu.from_objects(&loaded, &heap, 3, all(), n, objects);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    rt_cpu.free(loaded);
    assert_int_equal(memory_live, live);
  }
  assert_true(fault.n > 3);
  rt_cpu.free(module);
}

static void devices(void **state) {
  (void)state;
  assert_ptr_equal(rt_device_find("cpu"), &rt_cpu);
  assert_ptr_equal(rt_device_find("interp"), &rt_interp);
  assert_ptr_equal(rt_device_find("null"), &rt_null);
  assert_null(rt_device_find("gpu"));
  assert_null(rt_device_find(""));
  assert_int_equal(target.base.threads, rt_default_threads());
  assert_non_null(cg_target_find(target.base.name));
}

#define CPU_TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(environments), /* first: the environment is read once */
    cmocka_unit_test(cache_removed),
#if defined(__linux__)
    cmocka_unit_test(disk_full),
#endif
    CPU_TEST(bits),
    CPU_TEST(parts),
    CPU_TEST(twice_the_same),
    CPU_TEST(no_tasks),
    CPU_TEST(spoilt_cache),
    CPU_TEST(room_for_compilers),
    CPU_TEST(many_processes),
    CPU_TEST(many_threads),
    CPU_TEST(from_objects),
    CPU_TEST(other_rounding),
    CPU_TEST(faults),
    CPU_TEST(devices),
  };
  static const char *const names[] = {"QUERN_CC", "QUERN_DEBUG", "QUERN_DUMP_DIR", "QUERN_FAULT", "QUERN_THREADS"};
  for (size_t i = 0; i < BASE_COUNT(names); i++) unsetenv(names[i]);
  files_begin();
  setenv("QUERN_CACHE", in_folder("cache"), 1); /* never the user's own */
  setenv("TMPDIR", in_folder("tmp"), 1);
  files_make_parents(in_folder("tmp/x"));
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  files_end();
  return failed;
}
