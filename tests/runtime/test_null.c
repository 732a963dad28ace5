/* tests/runtime/test_null.c -- device null with kernels for CUDA: many at a time, the one that does not compile, shared memory. With
** NVRTC where it is installed. */
#include "runtime/null/null_int.h"

#include <elf.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define TEST_CONTEXT_NEW ir_context_new
#include "unit.h"

enum { LANES = 64 };

/* y[task] = the sum of x[i] + number, LANES elements a task, by way of scratch of that many elements. */
static struct kern *make_kernel(double number, int64_t scratch) {
  struct kern *kern = NULL;
  EXPECT_OK(kern_new(&kern, &ctx->heap));
  kern_add_mem(kern, QUERN_DTYPE_F32, KERN_IN, 4 * LANES);
  kern_add_mem(kern, QUERN_DTYPE_F32, KERN_OUT, 4);
  struct kern_builder b = {.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(4))};
  kern_id local = kern_local(&b, QUERN_DTYPE_F32, scratch), zero = kern_index(&b, 0);
  kern_id at = kern_mul_i(&b, kern_task(&b), LANES);
  kern_id x = kern_load(&b, kern_mem(&b, 0), at, LANES);
  kern_store(&b, local, zero, kern_add(&b, x, kern_const_f(&b, QUERN_DTYPE_F32, LANES, number)));
  kern_id sum = kern_hreduce(&b, KERN_ADD, kern_load(&b, local, zero, LANES));
  kern_store(&b, kern_mem(&b, 1), kern_task(&b), sum);
  EXPECT_OK(kern_finish(kern, "plus", NULL));
  EXPECT_OK(kern_verify(kern, NULL));
  return kern;
}

static struct kern *kernels[3];
static const struct kern *const *list = (const struct kern *const *)kernels;

static int open_kernels(void **state) {
  int failed = test_setup(state);
  for (int i = 0; i < 3; i++) kernels[i] = make_kernel((double)getpid() + i, LANES); /* not in the cache */
  return failed;
}

static int close_kernels(void **state) {
  for (int i = 0; i < 3; i++) kern_free(kernels[i]);
  rt_null_quick(false);
  rt_null_choose(NULL);
  return test_teardown(state);
}

static void need_nvrtc(void) {
  struct rt_nvrtc *nvrtc;
  if (rt_nvrtc_open(&nvrtc) == QUERN_STATUS_OK) return;
  print_message("%s\n", quern_last_error());
  skip();
}

/* A row with one flag more. */
static struct cg_target with_flag(char march[512], const char *flag) {
  struct cg_target target = *cg_target_find("sm_90");
  snprintf(march, 512, "%s %s", target.march, flag);
  target.march = march;
  return target;
}

static quern_status build(const struct cg_target *target, struct rt_stats *stats) {
  struct rt_module *module = NULL;
  quern_status status = rt_null.build(rt_device_at(&rt_null, 0), &module, &ctx->heap, 3, list, target, stats);
  rt_null.free(module);
  return status;
}

/* The text that a message names is there, and has the kernel; it is removed. */
static void expect_text(const char *name) {
  char path[512], folder[512], text[4096];
  const char *at = strstr(quern_last_error(), "the text is ");
  assert_non_null(at);
  snprintf(path, sizeof path, "%s", at + strlen("the text is "));
  path[strcspn(path, "\n ")] = 0;
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  text[fread(text, 1, sizeof text - 1, file)] = 0;
  fclose(file);
  assert_non_null(strstr(text, name));
  snprintf(folder, sizeof folder, "%s", path);
  *strrchr(folder, '/') = 0;
  assert_true(unlink(path) == 0);
  (void)rmdir(folder);
}

/* Signals that come while NVRTC compiles for the first time come afterwards, and to the host's handlers: its own end the process. */
static volatile sig_atomic_t signals[2];
static void on_signal(int number) { signals[number == SIGTERM]++; }

static void send_signals(void *process) {
  for (int i = 0; i < 100; i++) {
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    kill(*(pid_t *)process, i % 2 ? SIGTERM : SIGINT);
  }
}

static void test_signals(void **state) {
  (void)state;
  static const int numbers[] = {SIGINT, SIGTERM};
  struct sigaction before[2], action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
  struct base_thread sender;
  pid_t process = getpid();
  need_nvrtc();
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < 2; i++) assert_int_equal(sigaction(numbers[i], &action, &before[i]), 0);
  EXPECT_OK(base_thread_start(&sender, send_signals, &process));
  EXPECT_OK(build(cg_target_find("sm_80"), NULL)); /* which no other test does */
  base_thread_join(&sender);
  for (int i = 0; i < 2; i++) assert_int_equal(sigaction(numbers[i], &before[i], &action), 0);
  assert_true(action.sa_handler == on_signal && signals[0] > 0 && signals[1] > 0);
}

static void test_together(void **state) {
  (void)state;
  struct rt_stats stats = {0};
  need_nvrtc();
  EXPECT_OK(build(cg_target_find("sm_90"), &stats));
  assert_int_equal(stats.compiled, 3);
  rt_null_quick(true);
  EXPECT_OK(build(cg_target_find("sm_90"), &stats));
  assert_int_equal(stats.compiled, 1);
  EXPECT_OK(build(cg_target_find("sm_90"), &stats));
  assert_true(stats.compiled == 0 && stats.cached == 1);
}

/* Of three kernels the second is wanted: it alone is compiled, and a kernel that is not wanted may be broken. */
static uint64_t asked[8];
static size_t n_asked;
static bool wants_second(const struct cg_target *target, uint64_t text) {
  assert_string_equal(target->base.name, "sm_90");
  asked[n_asked++ % BASE_COUNT(asked)] = text;
  return n_asked % 3 == 2;
}
static bool wants_all(const struct cg_target *target, uint64_t text) {
  (void)target, (void)text;
  return true;
}
static bool wants_none(const struct cg_target *target, uint64_t text) {
  (void)target, (void)text;
  return false;
}

static void test_chosen(void **state) {
  (void)state;
  char march[512], flag[256];
  struct rt_stats stats = {0};
  need_nvrtc();
  snprintf(flag, sizeof flag, "-D%s_0=1", kernels[0]->name);
  struct cg_target target = with_flag(march, flag);
  EXPECT_ERROR(build(&target, NULL), INTERNAL, "NVRTC cannot compile kernel");
  rt_null_choose(wants_second);
  EXPECT_OK(build(&target, &stats));
  assert_int_equal(stats.compiled + stats.cached, 1);
  rt_null_choose(wants_none);
  EXPECT_OK(build(&target, &stats));
  assert_int_equal(stats.compiled + stats.cached, 0);
  rt_null_choose(wants_second);
  EXPECT_OK(build(&target, NULL));
  assert_int_equal(n_asked, 6);
  for (int i = 0; i < 3; i++) { /* a kernel's text is the same again, and not that of another */
    assert_int_equal(asked[i], asked[i + 3]);
    assert_true(asked[i] != asked[(i + 1) % 3]);
  }
}

/* A macro breaks the text of one kernel among others: the message names that one, and its text. */
static void test_refused(void **state) {
  (void)state;
  char march[512], flag[256], said[256];
  need_nvrtc();
  rt_null_quick(true);
  for (int i = 0; i < 3; i++) {
    snprintf(flag, sizeof flag, "-D%s_0=1", kernels[i]->name);
    snprintf(said, sizeof said, "NVRTC cannot compile kernel %s: ", kernels[i]->name);
    struct cg_target target = with_flag(march, flag);
    EXPECT_ERROR(build(&target, NULL), INTERNAL, said);
    assert_non_null(strstr(quern_last_error(), "): error: ")); /* the compiler's own word, not a warning before it */
    expect_text(kernels[i]->name);
  }
}

/* Two kernels get the same name by a macro: they can be compiled, but not together. */
static void test_only_alone(void **state) {
  (void)state;
  char march[512], flag[512];
  need_nvrtc();
  snprintf(flag, sizeof flag, "-D%s_0=%s_0", kernels[0]->name, kernels[1]->name);
  struct cg_target target = with_flag(march, flag);
  EXPECT_OK(build(&target, NULL));
  rt_null_quick(true);
  EXPECT_ERROR(build(&target, NULL), INTERNAL, "kernels that can be compiled alone cannot be together: ");
  expect_text(kernels[1]->name);
}

static void test_no_flag(void **state) {
  (void)state;
  char march[512];
  need_nvrtc();
  rt_null_quick(true);
  struct cg_target target = with_flag(march, "--no-such-flag");
  EXPECT_ERROR(build(&target, NULL), UNSUPPORTED, "no-such-flag");
}

/* ---- shared memory --------------------------------------------------------------------------------------------- */

static void test_limits(void **state) {
  (void)state;
  static const struct {
    const char *target;
    int64_t bytes;
    bool fits;
  } cases[] = {{"sm_86", 98 * 1024, true},   {"sm_86", 99 * 1024, false},  {"sm_75", 63 * 1024, true},
               {"sm_75", 64 * 1024, false},  {"sm_90", 226 * 1024, true},  {"sm_90", 227 * 1024, false},
               {"sm_120", 98 * 1024, true},  {"sm_120", 99 * 1024, false}, {"sm_80", 162 * 1024, true},
               {"sm_80", 163 * 1024, false}, {"sm_100", 227 * 1024, false}};
  need_nvrtc();
  for (size_t i = 0; i < BASE_COUNT(cases); i++) {
    struct kern *kern = make_kernel(1, cases[i].bytes / 4);
    struct rt_module *module = NULL;
    struct cg_target target = *cg_target_find(cases[i].target);
    target.base.shared_bytes = 1 << 20; /* a row that promises too much */
    for (int quick = 0; quick < 2; quick++) {
      rt_null_quick(quick == 1);
      quern_status status = rt_null.build(rt_device_at(&rt_null, 0), &module, &ctx->heap, 1,
                                          (const struct kern *[]){kern}, &target, NULL);
      assert_int_equal(status, cases[i].fits ? QUERN_STATUS_OK : QUERN_STATUS_INTERNAL);
      if (!cases[i].fits) assert_non_null(strstr(quern_last_error(), "bytes of shared memory and is given"));
      rt_null.free(module);
    }
    kern_free(kern);
  }
}

/* All rows of targets.def are known, and what they promise there is. */
static void test_rows(void **state) {
  (void)state;
  struct rt_gpu_units none = {0};
  need_nvrtc();
  for (size_t i = 0; i < cg_gpu_count; i++) {
    if (cg_gpus[i].isa != CG_ISA_CUDA) continue;
    struct kern *kern = make_kernel(1, cg_gpus[i].base.shared_bytes / 4);
    struct rt_module *module = NULL;
    assert_true(cg_dynamic_shared_bytes(kern, 0, &cg_gpus[i]) == cg_gpus[i].base.shared_bytes);
    EXPECT_OK(rt_null.build(rt_device_at(&rt_null, 0), &module, &ctx->heap, 1, (const struct kern *[]){kern},
                            &cg_gpus[i], NULL));
    rt_null.free(module);
    kern_free(kern);
  }
  EXPECT_ERROR(rt_null_limits(&none, list, cg_target_find("opencl")), INTERNAL, "opencl has no row of limits");
}

/* What is no cubin, or part of one, is refused. */
static void test_damaged(void **state) {
  (void)state;
  struct {
    Elf64_Ehdr head;
    Elf64_Shdr sections[2];
    char names[8];
  } file = {.head = {.e_ident = ELFMAG, .e_shentsize = sizeof(Elf64_Shdr), .e_shnum = 2, .e_shstrndx = 1}};
  file.head.e_shoff = offsetof(__typeof__(file), sections);
  file.sections[1].sh_offset = offsetof(__typeof__(file), names);
  file.sections[1].sh_size = sizeof file.names;
  struct rt_gpu_unit unit = {.n = 1, .binary = {.at = &file, .n = sizeof file}};
  struct rt_gpu_units units = {.n = 1, .at = &unit};
  const struct cg_target *target = cg_target_find("sm_80");
  EXPECT_OK(rt_null_limits(&units, list, target));
  for (size_t n = 0; n < sizeof file; n++) {
    unit.binary.n = n;
    EXPECT_ERROR(rt_null_limits(&units, list, target), INTERNAL, n < sizeof file.head ? "is no cubin" : "is cut off");
  }
  unit.binary.n = sizeof file;
  file.sections[0].sh_name = sizeof file.names + 1;
  EXPECT_ERROR(rt_null_limits(&units, list, target), INTERNAL, "is cut off");
  file.head.e_shnum = 0;
  EXPECT_OK(rt_null_limits(&units, list, target));
  file.head.e_ident[0] = 0;
  EXPECT_ERROR(rt_null_limits(&units, list, target), INTERNAL, "is no cubin");
}

static void test_faults(void **state) {
  (void)state;
  need_nvrtc();
  rt_null_quick(true);
  for (int chosen = 0; chosen < 2; chosen++) {
    struct fault fault = {0};
    rt_null_choose(chosen ? wants_all : NULL);
    while (fault_next(&fault)) {
      fault_begin(&fault);
      quern_status status = build(cg_target_find("sm_90"), NULL);
      fault_end(&fault);
      EXPECT_FAULT(&fault, status);
    }
    assert_true(fault.n > 5);
  }
}

#define TEST_NULL(NAME) cmocka_unit_test_setup_teardown(NAME, open_kernels, close_kernels)

int main(void) {
  const struct CMUnitTest tests[] = {TEST_NULL(test_signals), TEST_NULL(test_together),   TEST_NULL(test_chosen),
                                     TEST_NULL(test_refused), TEST_NULL(test_only_alone), TEST_NULL(test_no_flag),
                                     TEST_NULL(test_limits),  TEST_NULL(test_rows),       TEST_NULL(test_damaged),
                                     TEST_NULL(test_faults)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
