/* tests/runtime/test_gpu.c -- kernels of GPUs as units: compiling, the cache, what goes wrong; NVRTC where it is installed */
#include "runtime/cuda/cuda.h"

#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEST_CONTEXT_NEW ir_context_new
#include "unit.h"

/* y[i] = x[i] + number + number + ..., so many times, for 20 elements of f32: the more, the longer the text. */
static struct kern *make_sum(double number, int times) {
  struct kern *kern = NULL;
  EXPECT_OK(kern_new(&kern, &ctx->heap));
  kern_add_mem(kern, QUERN_DTYPE_F32, KERN_IN, 20);
  kern_add_mem(kern, QUERN_DTYPE_F32, KERN_OUT, 20);
  struct kern_builder b = {.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(20))};
  kern_id x = kern_load(&b, kern_mem(&b, 0), kern_task(&b), 1);
  for (int i = 0; i < times; i++) x = kern_add(&b, x, kern_const_f(&b, QUERN_DTYPE_F32, 1, number));
  kern_store(&b, kern_mem(&b, 1), kern_task(&b), x);
  EXPECT_OK(kern_finish(kern, "plus", NULL));
  EXPECT_OK(kern_verify(kern, NULL));
  return kern;
}
static struct kern *make_kernel(double number) { return make_sum(number, 1); }

/* ---- a compiler that is none -------------------------------------------------------------------------------- */

static atomic_int calls; /* of several threads */
static quern_status answer;

static quern_status fake(void *self, struct base_heap *heap, const struct cg_target *target, const char *text,
                         struct rt_bytes *binary) {
  (void)self, (void)target;
  calls++;
  if (answer != QUERN_STATUS_OK) return base_error(answer, "planted");
  size_t n = strlen(text);
  *binary = (struct rt_bytes){.at = base_alloc(heap, n), .n = n, .room = n};
  if (binary->at == NULL) return QUERN_STATUS_MEMORY;
  memcpy(binary->at, text, n);
  return QUERN_STATUS_OK;
}
static struct rt_gpu_compiler fake_compiler = {
    .name = "fake", .identity = "1", .end = ".cu", .parallel = true, .most = 2, .compile = fake};

static void test_units(void **state) {
  (void)state;
  struct kern *k[5];
  struct rt_gpu_kernel kernels[5];
  struct rt_gpu_units units;
  struct rt_stats stats = {0};
  char identity[64];
  for (int i = 0; i < 5; i++) k[i] = make_kernel(i == 3 ? 2 : i); /* the third and the fourth are the same */
  snprintf(identity, sizeof identity, "%ld", (long)getpid());     /* not in the cache */
  fake_compiler.identity = identity;
  const struct kern *const *list = (const struct kern *const *)k;
  const struct cg_target *target = cg_target_find("sm_80");
  calls = 0;
  answer = QUERN_STATUS_OK;
  EXPECT_OK(rt_gpu_units_make(&units, &ctx->heap, 5, list, target, &fake_compiler, &stats));
  assert_true(units.n == 3 && calls == 3 && stats.compiled == 3 && stats.cached == 0);
  rt_gpu_kernels(kernels, list, target, &units);
  assert_true(kernels[0].unit == 0 && kernels[1].unit == 0 && kernels[4].unit == 2 && kernels[1].phases[0].number == 1);
  assert_true(kernels[3].phases[0].number == kernels[2].phases[0].number); /* printed once */
  assert_true(kernels[4].n_mems == 2 && kernels[4].n_phases == 1 && !kernels[4].scratch);
  rt_gpu_units_fini(&units);
  EXPECT_OK(rt_gpu_units_make(&units, &ctx->heap, 5, list, target, &fake_compiler, &stats));
  assert_true(calls == 3 && stats.cached == 3); /* from the cache */
  rt_gpu_units_fini(&units);
  EXPECT_OK(rt_gpu_units_make(&units, &ctx->heap, 5, list, cg_target_find("sm_86"), &fake_compiler, &stats));
  assert_int_equal(calls, 6); /* other flags */
  rt_gpu_units_fini(&units);
  for (int i = 0; i < 5; i++) kern_free(k[i]);
}

static size_t lengths[8], longest; /* of the texts as they came, and that is taken */
static quern_status record(void *self, struct base_heap *heap, const struct cg_target *target, const char *text,
                           struct rt_bytes *binary) {
  lengths[calls] = strlen(text);
  answer = lengths[calls] > longest ? QUERN_STATUS_UNSUPPORTED : QUERN_STATUS_OK;
  return fake(self, heap, target, text, binary);
}

/* The longest text is compiled first; what is compiled is kept though another is refused. */
static void test_order(void **state) {
  (void)state;
  enum { N = 4 };
  static const int more[N] = {2, 9, 4, 6};
  struct kern *k[N];
  struct rt_gpu_units units;
  struct rt_stats stats = {0};
  char identity[64];
  snprintf(identity, sizeof identity, "order %ld", (long)getpid());
  const struct rt_gpu_compiler compiler = {
      .name = "fake", .identity = identity, .end = ".cu", .most = 1, .compile = record};
  const struct cg_target *target = cg_target_find("sm_80");
  for (int i = 0; i < N; i++) k[i] = make_sum(1, more[i]);
  const struct kern *const *list = (const struct kern *const *)k;
  calls = 0;
  longest = 0;
  EXPECT_ERROR(rt_gpu_units_make(&units, &ctx->heap, N, list, target, &compiler, &stats), UNSUPPORTED, "planted");
  assert_int_equal(calls, N);
  for (int i = 1; i < N; i++) assert_true(lengths[i - 1] > lengths[i]);
  calls = 0;
  longest = lengths[1];
  EXPECT_ERROR(rt_gpu_units_make(&units, &ctx->heap, N, list, target, &compiler, &stats), UNSUPPORTED, "planted");
  assert_int_equal(calls, N);
  calls = 0;
  longest = SIZE_MAX;
  EXPECT_OK(rt_gpu_units_make(&units, &ctx->heap, N, list, target, &compiler, &stats));
  assert_true(calls == 1 && stats.compiled == 1 && stats.cached == N - 1);
  for (size_t i = 0; i < N; i++) {
    assert_int_equal(units.at[i].binary.n, units.at[i].text.n);
    assert_memory_equal(units.at[i].binary.at, units.at[i].text.at, units.at[i].text.n);
  }
  rt_gpu_units_fini(&units);
  for (int i = 0; i < N; i++) kern_free(k[i]);
}

static void test_refused(void **state) {
  (void)state;
  struct kern *kern = make_kernel(77);
  struct rt_gpu_units units;
  struct rt_stats stats = {0};
  char path[512], folder[512];
  fake_compiler.identity = "never works";
  answer = QUERN_STATUS_INTERNAL;
  EXPECT_ERROR(rt_gpu_units_make(&units, &ctx->heap, 1, (const struct kern *[]){kern}, cg_target_find("sm_80"),
                                 &fake_compiler, &stats),
               INTERNAL, "fake cannot compile kernel k_");
  const char *at = strstr(quern_last_error(), "the text is ");
  assert_non_null(at);
  snprintf(path, sizeof path, "%s", at + strlen("the text is "));
  path[strcspn(path, "\n ")] = 0;
  assert_int_equal(access(path, R_OK), 0);
  snprintf(folder, sizeof folder, "%s", path);
  *strrchr(folder, '/') = 0;
  assert_true(unlink(path) == 0 && rmdir(folder) == 0);
  answer = QUERN_STATUS_MEMORY;
  EXPECT_ERROR(rt_gpu_units_make(&units, &ctx->heap, 1, (const struct kern *[]){kern}, cg_target_find("sm_80"),
                                 &fake_compiler, &stats),
               MEMORY, "planted");
  kern_free(kern);
}

static void test_faults(void **state) {
  (void)state;
  struct kern *kern = make_kernel(78);
  fake_compiler.identity = "faults";
  answer = QUERN_STATUS_OK;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    struct rt_gpu_units units;
    struct rt_stats stats = {0};
    fault_begin(&fault);
    quern_status status = rt_gpu_units_make(&units, &ctx->heap, 1, (const struct kern *[]){kern},
                                            cg_target_find("sm_80"), &fake_compiler, &stats);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    if (status == QUERN_STATUS_OK) rt_gpu_units_fini(&units);
  }
  assert_true(fault.n > 5);
  kern_free(kern);
}

/* ---- CUDA ----------------------------------------------------------------------------------------------------- */

static void test_rows(void **state) {
  (void)state;
  static const struct {
    int major, minor;
    const char *row;
    bool ptx;
  } cases[] = {{7, 0, NULL, false},      {7, 5, "sm_75", false}, {8, 0, "sm_80", false},   {8, 6, "sm_86", false},
               {8, 7, "sm_86", false},   {9, 0, "sm_90", false}, {10, 3, "sm_100", false}, {11, 0, "sm_100", true},
               {12, 1, "sm_120", false}, {13, 0, "sm_120", true}};
  for (size_t i = 0; i < BASE_COUNT(cases); i++) {
    bool ptx = false;
    const struct cg_target *row = rt_cuda_row(cases[i].major, cases[i].minor, &ptx);
    assert_true((row == NULL) == (cases[i].row == NULL));
    if (row == NULL) continue;
    assert_string_equal(row->base.name, cases[i].row);
    assert_int_equal(ptx, cases[i].ptx);
  }
}

static void test_nvrtc(void **state) {
  (void)state;
  struct rt_nvrtc *nvrtc;
  struct rt_bytes binary = {0};
  if (rt_nvrtc_open(&nvrtc) != QUERN_STATUS_OK) {
    print_message("%s\n", quern_last_error());
    skip();
  }
  for (int ptx = 0; ptx < 2; ptx++) {
    const struct rt_gpu_compiler c = rt_nvrtc_compiler(nvrtc, ptx == 1);
    EXPECT_OK(c.compile(c.self, &ctx->heap, cg_target_find("sm_90"), "extern \"C\" __global__ void f() {}", &binary));
    assert_true(ptx == 1 ? strstr(binary.at, ".target sm_90") != NULL : memcmp(binary.at, "\177ELF", 4) == 0);
    rt_bytes_free(&ctx->heap, &binary);
    EXPECT_ERROR(c.compile(c.self, &ctx->heap, cg_target_find("sm_90"), "wrong", &binary), INTERNAL, "error 6");
    struct cg_target none = *cg_target_find("sm_90");
    none.march = "--gpu-architecture=sm_1";
    EXPECT_ERROR(c.compile(c.self, &ctx->heap, &none, "", &binary), UNSUPPORTED, "gpu-architecture");
  }
}

/* It is there or not; of numbers, those that are known. */
static void test_nccl(void **state) {
  char text[300], identity[32];
  (void)state;
  rt_nccl_describe(text, sizeof text);
  assert_true(strncmp(text, "NCCL 2.", 7) == 0 || strncmp(text, "no NCCL (", 9) == 0);
  EXPECT_OK(rt_nccl_check(22707, identity, sizeof identity));
  assert_string_equal(identity, "NCCL 2.27.7");
  EXPECT_ERROR(rt_nccl_check(2804, identity, sizeof identity), UNSUPPORTED,
               "NCCL 2.8 is too old; 2.10 to 2.99 are known");
  EXPECT_ERROR(rt_nccl_check(30100, identity, sizeof identity), UNSUPPORTED, "NCCL 3.1 is too new");
  EXPECT_ERROR(rt_nccl_check(0, identity, sizeof identity), UNSUPPORTED, "NCCL 0.0 is too old");
}

/* Without a GPU everything returns the error, and nothing breaks. */
static void test_missing(void **state) {
  (void)state;
  struct rt_cuda_driver *driver;
  struct rt_stream *stream;
  struct rt_module *module;
  struct cg_target target;
  char text[256] = "";
  rt_cuda.describe(&ctx->heap, text, sizeof text);
  EXPECT_OK(rt_cuda.target(&target));
  assert_true(target.base.gpu && text[0] != 0);
  if (rt_cuda_open(&driver) == QUERN_STATUS_OK) skip();
  assert_non_null(strstr(text, "cuda: "));
  EXPECT_ERROR(rt_cuda.remote->open(&stream, &ctx->heap), UNSUPPORTED, "cuda: ");
  EXPECT_ERROR(rt_cuda.build(&module, &ctx->heap, 0, NULL, &target, NULL), UNSUPPORTED, "cuda: ");
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_units), TEST(test_order), TEST(test_refused), TEST(test_faults),
                                     TEST(test_rows),  TEST(test_nvrtc), TEST(test_nccl),    TEST(test_missing)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
