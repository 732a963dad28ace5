/* codegen/target.c -- the rows of targets.def, and which of them this CPU runs
** see: targets.def      tests: tests/codegen/test_target.c
*/
#include "codegen/codegen.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
static bool has_f16c(void) {
  unsigned a, b, c = 0, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1) != 0;
}
#define HAS(feature) (__builtin_cpu_supports(feature) != 0)
#define HAS_AVX2 (HAS("avx2") && HAS("fma") && HAS("bmi2") && has_f16c())
#define HAS_AVX512 (HAS_AVX2 && HAS("avx512f") && HAS("avx512bw") && HAS("avx512dq") && HAS("avx512vl"))
#define HAS_VNNI HAS("avx512vnni")
#else
#define HAS_AVX2 false
#define HAS_AVX512 false
#define HAS_VNNI false
#endif
#if defined(__aarch64__) && defined(__AARCH64EL__)
#define HAS_NEON true
#else
#define HAS_NEON false
#endif

const struct cg_target cg_targets[] = {
#define TARGET(NAME, ISA, BYTES, REGISTERS, FMA, VNNI, F16C, L1, L2, L3, RUNS, FLAGS)                                  \
  {{.name = NAME,                                                                                                      \
    .vector_bytes = BYTES,                                                                                             \
    .registers = REGISTERS,                                                                                            \
    .fma = FMA,                                                                                                        \
    .vnni = VNNI,                                                                                                      \
    .f16c = F16C,                                                                                                      \
    .l1_bytes = L1 * 1024,                                                                                             \
    .l2_bytes = L2 * 1024,                                                                                             \
    .l3_bytes = L3 * 1024,                                                                                             \
    .threads = 1},                                                                                                     \
   CG_ISA_##ISA,                                                                                                       \
   FLAGS},
#define GPU(...)
#include "codegen/targets.def"
#undef TARGET
#undef GPU
};
const size_t cg_target_count = BASE_COUNT(cg_targets);

/* Vectors of a GPU are its threads: a value has one lane. */
const struct cg_target cg_gpus[] = {
#define TARGET(...)
#define GPU(NAME, ISA, THREADS, L1, L2, L3, SHARED, PROCESSORS, HELD, REGISTERS, FLAGS)                                \
  {{.name = NAME,                                                                                                      \
    .vector_bytes = 4,                                                                                                 \
    .registers = 64,                                                                                                   \
    .fma = true,                                                                                                       \
    .l1_bytes = L1 * 1024,                                                                                             \
    .l2_bytes = L2 * 1024,                                                                                             \
    .l3_bytes = L3 * INT64_C(1024),                                                                                    \
    .threads = THREADS,                                                                                                \
    .gpu = true,                                                                                                       \
    .shared_bytes = SHARED * 1024,                                                                                     \
    .multiprocessors = PROCESSORS,                                                                                     \
    .max_threads_per_sm = HELD,                                                                                        \
    .registers_per_sm = REGISTERS * 1024},                                                                             \
   CG_ISA_##ISA,                                                                                                       \
   FLAGS},
#include "codegen/targets.def"
#undef TARGET
#undef GPU
};
const size_t cg_gpu_count = BASE_COUNT(cg_gpus);

/* -fwrapv: integers wrap. -ffp-contract=off: fma is where the kernel says so. The two about errno and traps let the
** compiler use the instructions for square roots, rounding and selects; no value depends on them. The last keep out
** what distributions add. clang takes no notice of -fexpensive-optimizations. */
const char cg_flags[] =
    "-std=gnu17 -O1 -fexpensive-optimizations -fPIC -w -fwrapv -ffp-contract=off -fno-strict-aliasing "
    "-fno-math-errno -fno-trapping-math -fno-stack-protector -fno-asynchronous-unwind-tables";

const struct cg_target *cg_target_find(const char *name) {
  for (size_t i = 0; i < cg_target_count; i++)
    if (strcmp(cg_targets[i].base.name, name) == 0) return &cg_targets[i];
  for (size_t i = 0; i < cg_gpu_count; i++)
    if (strcmp(cg_gpus[i].base.name, name) == 0) return &cg_gpus[i];
  return NULL;
}

#define TARGET(NAME, ...) " " NAME
#define GPU TARGET
static const char all_names[] =
#include "codegen/targets.def"
    ;
#undef TARGET
#undef GPU

bool cg_target_has_mma(const struct cg_target *target) {
  enum { FIRST = 80 };
  return target->isa == CG_ISA_CUDA && strtol(target->base.name + strlen("sm_"), NULL, 10) >= FIRST;
}

quern_status cg_target_parse(struct cg_target *target, const char *text) {
  static const char *const names[] = {"blas", "dnn", "mma"}; /* by bit */
  char name[64];
  size_t n = strcspn(text, "+");
  snprintf(name, sizeof name, "%.*s", (int)BASE_MIN(n, sizeof name), text);
  const struct cg_target *row = cg_target_find(name);
  QUERN_CHECK(row != NULL, INVALID, "program_compile: there is no target \"%s\" HINT: there are%s", name, all_names);
  *target = *row;
  for (const char *at = text + n; *at != 0; at += n) {
    size_t bit = 0;
    at++;
    n = strcspn(at, "+");
    while (bit < BASE_COUNT(names) && (strlen(names[bit]) != n || strncmp(names[bit], at, n) != 0)) bit++;
    QUERN_CHECK(bit < BASE_COUNT(names) && row->isa == CG_ISA_CUDA, INVALID,
                "target '%s': '%.*s' is no library of it; those of sm_* are blas, dnn, and mma", text, (int)n, at);
    target->base.capabilities |= 1 << bit;
    QUERN_CHECK((target->base.capabilities & BASE_TENSOR_CORES) == 0 || cg_target_has_mma(target), INVALID,
                "target '%s': its tensor cores do not take f32; those from sm_80 on do", text);
  }
  return QUERN_STATUS_OK;
}

bool cg_target_runs(const struct cg_target *target) {
#define TARGET(NAME, ISA, BYTES, REGISTERS, FMA, VNNI, F16C, L1, L2, L3, RUNS, FLAGS)                                  \
  if (strcmp(target->base.name, NAME) == 0) return RUNS;
#define GPU(...)
#include "codegen/targets.def"
#undef TARGET
#undef GPU
  return false;
}

/* ---- caches -------------------------------------------------------------------------------------------- */

/* The first word of a file of the kernel's description of cache `index` of CPU 0. */
static bool cache_word(int index, const char *file, char word[32]) {
  char path[96];
  snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, file);
  FILE *f = fopen(path, "r");
  if (f == NULL) return false;
  bool read = fscanf(f, "%31s", word) == 1;
  fclose(f);
  return read;
}

/* Bytes of the data cache of a level as the system tells, or 0. */
static int64_t cache_bytes(int level) {
  char word[32];
  for (int i = 0; cache_word(i, "level", word); i++) {
    int is_level;
    long long size;
    char unit = 0;
    if (sscanf(word, "%d", &is_level) != 1 || is_level != level) continue;
    if (!cache_word(i, "type", word) || strcmp(word, "Instruction") == 0) continue;
    if (!cache_word(i, "size", word) || sscanf(word, "%lld%c", &size, &unit) < 1 || size <= 0) continue;
    return (int64_t)size * (unit == 'K' ? 1024 : unit == 'M' ? 1024 * 1024 : 1);
  }
#if defined(_SC_LEVEL1_DCACHE_SIZE) && defined(_SC_LEVEL2_CACHE_SIZE) && defined(_SC_LEVEL3_CACHE_SIZE)
  static const int names[] = {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE};
  long bytes = sysconf(names[level - 1]);
  if (bytes > 0) return bytes;
#endif
  return 0;
}

void cg_target_detect(struct cg_target *target) {
  size_t i = 0;
  while (i + 1 < cg_target_count && !cg_target_runs(&cg_targets[i])) i++;
  *target = cg_targets[i];
  int64_t *bytes[] = {&target->base.l1_bytes, &target->base.l2_bytes, &target->base.l3_bytes};
  for (int level = 1; level <= 3; level++) {
    int64_t detected = cache_bytes(level);
    if (detected > 0) *bytes[level - 1] = detected;
  }
}
