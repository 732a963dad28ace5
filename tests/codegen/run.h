/* tests/codegen/run.h -- kernels through a C compiler, or a GPU: print, compile, load, run, compare with the interpreter
** Every memory of the host ends where a page begins that cannot be touched.
*/
#ifndef TESTS_CODEGEN_RUN_H
#define TESTS_CODEGEN_RUN_H
#include <dlfcn.h>
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/runtime.h"
#include "unit.h"

static struct base_heap heap; /* watched by unit.h */

static inline int heap_setup(void **state) {
  (void)state;
  base_heap_init(&heap, &memory_allocator);
  return 0;
}
static inline int heap_teardown(void **state) {
  (void)state;
  if (memory_live != 0) print_error("%zu bytes are not freed\n", memory_live);
  return memory_live == 0 ? 0 : -1;
}
#define TEST_HEAP(function) cmocka_unit_test_setup_teardown(function, heap_setup, heap_teardown)

/* ---- compilers ----------------------------------------------------------------------------------------- */

static const char *const compilers[] = {"cc", "clang"};

/* Whether a command can be started: "cc" and the like. */
static inline bool has_command(const char *name) {
  char line[128];
  snprintf(line, sizeof line, "command -v %s > /dev/null 2>&1", name);
  return system(line) == 0;
}

/* Compiles a text as a shared object and loads it. The files are gone afterwards. */
static inline void *compile(const char *compiler, const struct cg_target *target, const char *text) {
  char folder[256], line[2048], c_path[300], so_path[300];
  const char *tmp = getenv("TMPDIR");
  snprintf(folder, sizeof folder, "%s/quern-codegen-XXXXXX", tmp != NULL ? tmp : "/tmp");
  assert_non_null(mkdtemp(folder));
  snprintf(c_path, sizeof c_path, "%s/unit.c", folder);
  snprintf(so_path, sizeof so_path, "%s/unit.so", folder);
  FILE *f = fopen(c_path, "w");
  assert_non_null(f);
  assert_int_equal(fputs(text, f) >= 0, true);
  assert_int_equal(fclose(f), 0);
  snprintf(line, sizeof line, "%s %s %s -shared -o %s %s -lm", compiler, cg_flags, target->march, so_path, c_path);
  int failed = system(line);
  void *module = failed ? NULL : dlopen(so_path, RTLD_NOW | RTLD_LOCAL);
  if (module == NULL) {
    print_error("%s\n%s\n", line, failed ? "failed; the text is kept" : dlerror());
    fail();
  }
  unlink(c_path);
  unlink(so_path);
  rmdir(folder);
  return module;
}

/* ---- running ------------------------------------------------------------------------------------------- */

enum { MAX_KERNELS = 128 };

/* Kernels of one unit, compiled. */
struct built {
  size_t n;
  struct kern *kernels[MAX_KERNELS];
  char (*what[MAX_KERNELS])[48]; /* names of the outputs, or NULL */
  void *module;
  struct rt_module *gpu_module;
};

static bool run_all;            /* every compiler for every target, and more lanes: with the argument "all" */
static const quern_device *gpu; /* with the name of a device as argument: that one only; NULL: the host's processor */

static inline void read_arguments(int argc, char **argv) {
  run_all = argc > 1 && strcmp(argv[1], "all") == 0;
  if (argc <= 1 || run_all) return;
  if (rt_device_find(&gpu, "device", argv[1]) != QUERN_STATUS_OK || gpu->remote == NULL) {
    print_error("%s is no device with memory of its own\n", argv[1]);
    exit(2);
  }
}

static inline void build(struct built *b, const char *compiler, const struct cg_target *target) {
  struct cg_unit unit;
  struct base_str text;
  if (gpu != NULL) {
    EXPECT_OK(
        gpu->backend->build(gpu, &b->gpu_module, &heap, b->n, (const struct kern *const *)b->kernels, target, NULL));
    return;
  }
  cg_unit_init(&unit, &heap, target);
  base_str_init(&text, &heap);
  for (size_t i = 0; i < b->n; i++) EXPECT_OK(cg_unit_add(&unit, b->kernels[i]));
  EXPECT_OK(cg_unit_text(&unit, &text));
  b->module = compile(compiler, target, text.at);
  base_str_fini(&text);
  cg_unit_fini(&unit);
}

static inline int64_t tasks_of(const struct kern *kern, int phase, const int64_t *scalars) {
  struct kern_tasks t = kern->phases[phase].tasks;
  return ((t.scalar < 0 ? 1 : scalars[t.scalar]) * t.mul + t.div - 1) / t.div;
}

/* On a GPU: everything goes there and comes back. */
static inline void run_on_gpu(const struct built *b, size_t k, void *const *mems, const int64_t *scalars, int threads) {
  const struct kern *kern = b->kernels[k];
  const struct rt_remote *remote = gpu->remote;
  struct rt_stream *stream;
  void *at[KERN_MAX_MEMS], *scratch;
  struct cg_target target;
  EXPECT_OK(gpu->backend->target(gpu, &target));
  size_t stride = ((size_t)cg_scratch(kern, &target) + 63) / 64 * 64;
  EXPECT_OK(remote->open(gpu, &stream, &heap));
  EXPECT_OK(remote->alloc(stream, stride * (size_t)threads, &scratch));
  EXPECT_OK(remote->fill(stream, scratch, 0xff, stride * (size_t)threads));
  for (int i = 0; i < kern->n_mems; i++) {
    size_t bytes = (size_t)kern->mems[i].count * base_dtypes[kern->mems[i].dtype].size;
    /* buffers of one kernel are few: memories lie side by side */
    if (i == 0) {
      size_t all = 0;
      for (int m = 0; m < kern->n_mems; m++)
        all += ((size_t)kern->mems[m].count * base_dtypes[kern->mems[m].dtype].size + 255) / 256 * 256;
      EXPECT_OK(remote->alloc(stream, all, &at[0]));
    } else {
      size_t before = (size_t)kern->mems[i - 1].count * base_dtypes[kern->mems[i - 1].dtype].size;
      at[i] = (char *)at[i - 1] + (before + 255) / 256 * 256;
    }
    EXPECT_OK(remote->upload(stream, at[i], mems[i], bytes));
  }
  struct kern_launch launch = {.mems = at, .scalars = scalars};
  EXPECT_OK(remote->launch(stream, b->gpu_module, k, &launch, scratch, stride));
  for (int i = 0; i < kern->n_mems; i++) {
    size_t bytes = (size_t)kern->mems[i].count * base_dtypes[kern->mems[i].dtype].size;
    EXPECT_OK(remote->download(stream, mems[i], at[i], bytes));
  }
  if (kern->n_mems > 0) remote->release(stream, at[0], 0);
  remote->release(stream, scratch, 0);
  remote->close(stream);
}

/* All phases of kernel k, the tasks in two ranges. */
static inline void run_built(const struct built *b, size_t k, void *const *mems, const int64_t *scalars) {
  const struct kern *kern = b->kernels[k];
  if (gpu != NULL) {
    struct cg_target target;
    EXPECT_OK(gpu->backend->target(gpu, &target));
    run_on_gpu(b, k, mems, scalars, target.base.threads);
    return;
  }
  size_t bytes = (size_t)kern_scratch_bytes(kern);
  char *scratch = base_alloc(&heap, bytes);
  assert_non_null(scratch);
  for (int phase = 0; phase < kern->n_phases; phase++) {
    char symbol[512];
    cg_symbol(symbol, sizeof symbol, kern, phase);
    cg_entry *entry;
    *(void **)&entry = dlsym(b->module, symbol);
    if (entry == NULL) fail_msg("%s", dlerror());
    int64_t tasks = tasks_of(kern, phase, scalars), half = tasks / 2;
    entry(mems, scalars, half, tasks, scratch);
    entry(mems, scalars, 0, half, scratch);
  }
  base_free(&heap, scratch, bytes);
}

/* Equal bits; of floats any NaN equals any other. */
static inline bool same_element(quern_dtype dtype, const void *a, const void *b, size_t i) {
  size_t size = base_dtypes[dtype].size;
  if (memcmp((const char *)a + i * size, (const char *)b + i * size, size) == 0) return true;
  if (!base_dtype_is(dtype, BASE_FLOAT)) return false;
  double x = base_load_float(dtype, a, i), y = base_load_float(dtype, b, i);
  return x != x && y != y;
}

static inline struct kern *new_kernel(void) {
  struct kern *kern = NULL;
  EXPECT_OK(kern_new(&kern, &heap));
  return kern;
}

/* ---- values -------------------------------------------------------------------------------------------- */

static const double edges_f[] = {
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -7.25, 127.0, 128.5, -128.0, -129.0, 255.0, 256.0, 448.0,
    464.0, 465.0, -480.0, 32767.5, 65504.0, 65519.0, 65520.0, 65536.0, 57344.0, 61440.0, 2147483520.0, 2147483648.0,
    -2147483648.0, 4294967296.0, 9.2e18, 9223372036854775808.0, -1e19, 1.8446744073709552e19, 1e30,
    -3.4028234663852886e38, 3.5e38, 1e-3, 6.1e-5, 5.9604644775390625e-8, 2.98e-8, -1e-9, 1.1754943508222875e-38,
    1.4e-45, 7e-46, 1e-320, 1e308, 0.1, -0.3, 1.0009765625, 1.00048828125, 2049.0, 33554433.0, 9007199254740993.0,
    0.0009765625, 0.015625, 0.001953125,
    /* close to the middle between two numbers of 16 and 8 bits: f32 does not see on which side */
    1.00390625 + 0x1p-40, -1.01171875 + 0x1p-40, 1.01171875 - 0x1p-40, 1.00048828125 + 0x1p-40,
    -1.00146484375 + 0x1p-40, 1.0625 + 0x1p-40, 1.1875 - 0x1p-40, -1.125 - 0x1p-40, 1.375 - 0x1p-40};

/* Element i of input number `which`. The first elements are pairs of edges, the rest is anything. */
static inline uint64_t mixed(uint64_t x) {
  x = (x ^ x >> 31) * UINT64_C(0x7fb5d329728ea185);
  x = (x ^ x >> 27) * UINT64_C(0x81dadef4bc2dd44d);
  return x ^ x >> 33;
}
static inline void set_input(quern_dtype dtype, void *at, size_t i, int which) {
  uint64_t r = mixed((uint64_t)i * 4 + (uint64_t)which + 1);
  if (base_dtype_is(dtype, BASE_FLOAT)) {
    size_t edge = (which == 0 ? i : which == 1 ? i / 8 + i * 7 : (size_t)r) % (BASE_COUNT(edges_f) + 6);
    double x = edge < BASE_COUNT(edges_f)        ? edges_f[edge]
               : edge == BASE_COUNT(edges_f)     ? (double)INFINITY
               : edge == BASE_COUNT(edges_f) + 1 ? -(double)INFINITY
               : edge == BASE_COUNT(edges_f) + 2 ? (double)NAN
                                                 : ldexp((double)(int64_t)r, (int)(r >> 3 & 63) - 90);
    base_store_float(dtype, at, i, x);
  } else {
    static const int64_t edges[] = {
        0, 1, -1, 2, 3, 7, 8, 15, 31, 32, 63, 64, -2, -7, 100, 127, 128, 255, 256, 2047, 2049, 32767, 65535, 65520,
        INT32_MAX, INT32_MIN, UINT32_MAX, INT64_MAX, INT64_MIN, (INT64_C(1) << 53) + 1, -(INT64_C(1) << 53) - 1,
        (INT64_C(1) << 62) + 5, 16777217,
        /* close to the middle between two numbers of bf16: f64 does not see on which side */
        (INT64_C(257) << 45) + 1, -(INT64_C(257) << 45) - 1, (INT64_C(259) << 45) - 1, (INT64_C(257) << 54) + 1,
        INT64_MIN + (INT64_C(1) << 55) + 1};
    size_t edge = (which == 0 ? i : which == 1 ? i / 8 + i * 5 : (size_t)r) % (BASE_COUNT(edges) + 6);
    base_store_int(dtype, at, i, edge < BASE_COUNT(edges) ? (uint64_t)edges[edge] : r >> (i & 31));
  }
}

/* ---- comparing ----------------------------------------------------------------------------------------- */

static inline size_t mem_bytes(const struct kern_mem *mem) { return (size_t)mem->count * base_dtypes[mem->dtype].size; }
static inline size_t pages(size_t bytes) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  return (bytes + page - 1) / page * page;
}

/* Memory for all memories of a kernel: inputs set, the rest filled with one byte. */
static inline void new_mems(const struct kern *kern, void *mems[KERN_MAX_MEMS]) {
  for (int i = 0; i < kern->n_mems; i++) {
    const struct kern_mem *mem = &kern->mems[i];
    size_t bytes = mem_bytes(mem), whole = pages(bytes);
    char *at = mmap(NULL, whole + pages(1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(at != MAP_FAILED && mprotect(at + whole, pages(1), PROT_NONE) == 0);
    mems[i] = at + whole - bytes;
    memset(mems[i], mem->dtype == QUERN_DTYPE_BOOL ? 1 : 0x5b, bytes);
    for (size_t j = 0; mem->role == KERN_IN && j < (size_t)mem->count; j++) set_input(mem->dtype, mems[i], j, i);
  }
}
static inline void free_mems(const struct kern *kern, void *mems[KERN_MAX_MEMS]) {
  for (int i = 0; i < kern->n_mems; i++) {
    size_t bytes = mem_bytes(&kern->mems[i]), whole = pages(bytes);
    munmap((char *)mems[i] + bytes - whole, whole + pages(1));
  }
}

static inline void show_element(quern_dtype dtype, const void *at, size_t i, char text[64]) {
  uint64_t raw = 0;
  memcpy(&raw, (const char *)at + i * base_dtypes[dtype].size, base_dtypes[dtype].size);
  double x = base_dtype_is(dtype, BASE_FLOAT) ? base_load_float(dtype, at, i) : (double)base_load_int(dtype, at, i);
  snprintf(text, 64, "%#llx (%.9g)", (unsigned long long)raw, x);
}

/* Runs kernel k both ways; the number of memories that differ. */
static inline int differences(const struct built *built, size_t k, const int64_t *scalars, const char *where) {
  const struct kern *kern = built->kernels[k];
  void *want[KERN_MAX_MEMS], *got[KERN_MAX_MEMS];
  new_mems(kern, want);
  new_mems(kern, got);
  struct kern_launch launch = {.mems = want, .scalars = scalars};
  EXPECT_OK(kern_interp(kern, &launch, 0));
  run_built(built, k, got, scalars);
  int different = 0, first_out = 0;
  for (int i = 0; i < kern->n_mems; i++) {
    quern_dtype dtype = kern->mems[i].dtype;
    if (kern->mems[i].role == KERN_IN) first_out = i + 1;
    for (size_t j = 0; j < (size_t)kern->mems[i].count; j++) {
      if (same_element(dtype, want[i], got[i], j)) continue;
      char a[64], b[64];
      show_element(dtype, want[i], j, a);
      show_element(dtype, got[i], j, b);
      print_error("%s: %s: memory %d (%s) element %zu: interpreted %s, compiled %s\n", where, kern->name, i,
                  built->what[k] != NULL && i >= first_out ? built->what[k][i - first_out] : "", j, a, b);
      different++;
      break;
    }
  }
  free_mems(kern, want);
  free_mems(kern, got);
  return different;
}

static inline void free_built(struct built *built) {
  for (size_t i = 0; i < built->n; i++) kern_free(built->kernels[i]);
  if (built->module != NULL) dlclose(built->module);
  if (built->gpu_module != NULL) gpu->backend->free(built->gpu_module);
  *built = (struct built){0};
}

/* For targets that run here and compilers that are there: what `make` makes is compared. The best target comes first,
** with every compiler; the others have one, unless all are asked for. */
typedef void make_kernels(struct built *built, const struct cg_target *target, bool best);
static inline void compare_all(make_kernels *make) {
  static struct built built;
  const int64_t scalars[KERN_MAX_SCALARS] = {5, 3};
  int different = 0, runs = 0;
  bool best = true;
  if (gpu != NULL) {
    struct cg_target target;
    EXPECT_OK(gpu->backend->target(gpu, &target));
    target.base.vector_bytes = 64; /* short vectors are written lane by lane, lanes of long ones are threads */
    make(&built, &target, true);
    build(&built, NULL, &target);
    for (size_t k = 0; k < built.n; k++) different += differences(&built, k, scalars, gpu->name);
    free_built(&built);
    assert_int_equal(different, 0);
    return;
  }
  for (size_t t = 0; t < cg_target_count; t++) {
    const struct cg_target *target = &cg_targets[t];
    if (!cg_target_runs(target) || (t > 0 && !best && !run_all && target->isa == cg_targets[t - 1].isa)) continue;
    for (size_t c = 0; c < BASE_COUNT(compilers); c++) {
      if (!has_command(compilers[c]) || (c > 0 && !best && !run_all)) continue;
      char where[64];
      snprintf(where, sizeof where, "%s %s", compilers[c], target->base.name);
      make(&built, target, best || run_all);
      build(&built, compilers[c], target);
      for (size_t k = 0; k < built.n; k++) different += differences(&built, k, scalars, where);
      free_built(&built);
      runs++;
    }
    best = false;
  }
  assert_true(runs > 0);
  assert_int_equal(different, 0);
}

/* How often a word stands in the text of a kernel's body. */
static inline int count_words(const struct kern *kern, const char *target, const char *word) {
  struct cg_unit unit;
  int n = 0;
  cg_unit_init(&unit, &heap, cg_target_find(target));
  EXPECT_OK(cg_unit_add(&unit, kern));
  for (const char *at = unit.body.at; (at = strstr(at, word)) != NULL; at += strlen(word)) n++;
  cg_unit_fini(&unit);
  return n;
}

/* Whether there is a device; what it lacks is told. */
static inline void need_device(void) {
  struct rt_stream *stream;
  if (gpu == NULL) gpu = rt_device_at(&rt_opencl, 0);
  if (gpu->remote->open(gpu, &stream, &heap) != QUERN_STATUS_OK) {
    print_message("%s\n", quern_last_error());
    skip();
  }
  gpu->remote->close(stream);
}
#endif
