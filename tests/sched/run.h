/* tests/sched/run.h -- runs an expression through fusion, schedule and the kernel interpreter, in many ways
** Every way must give the same bits, and be as near to the evaluator as the dtype allows.
**   EXPECT_SAME(quern_softmax(x, 1), quern_exp(x));
*/
#ifndef TESTS_SCHED_RUN_H
#define TESTS_SCHED_RUN_H
#include <math.h>

#include "ir/ir.h"
#include "sched/sched.h"
#include "unit.h"

/* ---- data -------------------------------------------------------------------------------------------------- */

/* A tensor in memory: floats of [-1, 1), integers around 0, with some equal ones. */
static inline quern_tensor *run_data(quern_dtype dtype, int rank, const int64_t *dims, uint64_t seed) {
  int64_t n = 1;
  for (int k = 0; k < rank; k++) n *= dims[k];
  double *x = malloc((size_t)(n + 1) * sizeof *x);
  void *data = malloc((size_t)(n + 1) * 8);
  assert_true(x != NULL && data != NULL);
  test_fill((size_t)n, x, seed);
  for (int64_t i = 0; i < n; i++) {
    if (base_dtype_is(dtype, BASE_FLOAT))
      base_store_float(dtype, data, (size_t)i, x[i]);
    else
      base_store_int(dtype, data, (size_t)i, (uint64_t)(int64_t)(x[i] * 9));
  }
  quern_tensor *t = quern_tensor_copy(ctx, dtype, rank, dims, data);
  assert_false(quern_tensor_is_poison(t));
  free(x);
  free(data);
  return t;
}
#define DATA_OF(SEED, DTYPE, ...)                                                                                      \
  run_data(QUERN_DTYPE_##DTYPE, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__},   \
           (SEED))
#define DATA(DTYPE, ...) DATA_OF(__LINE__, DTYPE, __VA_ARGS__)

/* ---- ways -------------------------------------------------------------------------------------------------- */

struct run_way {
  const char *name;
  bool fuse;
  int optimize, vector_bytes, threads;
  int64_t grain; /* 0: as chosen */
  bool far;      /* all caches are small: everything comes from memory */
  bool gpu;      /* made for a GPU, and interpreted */
};
static const struct run_way run_ways[] = {
    {"scalar, a kernel a node", false, 0, 4, 1, 0, false, false},
    {"64 bytes, a kernel a node", false, 1, 64, 1, 0, false, false},
    {"64 bytes", true, 1, 64, 1, 0, false, false},
    {"64 bytes, small tasks", true, 1, 64, 4, 1, false, false},
    {"32 bytes, tasks of 100", true, 1, 32, 2, 100, false, false},
    {"16 bytes", true, 1, 16, 1, 0, false, false},
    {"scalar", true, 0, 4, 3, 7, false, false},
    {"64 bytes, from memory", true, 1, 64, 1, 0, true, false},
};

static int run_libraries; /* of targets that are cards */
static inline struct base_target run_target(const struct run_way *way) {
  return (struct base_target){.name = "test",
                              .vector_bytes = way->vector_bytes,
                              .registers = 32,
                              .fma = true,
                              .l1_bytes = 32768,
                              .l2_bytes = 1 << 20,
                              .l3_bytes = way->far ? 1 << 10 : 1 << 25,
                              .threads = way->threads,
                              .gpu = way->gpu,
                              .capabilities = way->gpu ? run_libraries : 0,
                              .shared_bytes = way->far ? 48 << 10 : 99 << 10,
                              .multiprocessors = 132,
                              .max_threads_per_sm = 2048,
                              .registers_per_sm = 65536};
}

/* A GPU's target with a library. */
#define RUN_CARD(NAME, LIBRARY)                                                                                        \
  {                                                                                                                    \
    .name = (NAME), .vector_bytes = 4, .registers = 64, .fma = true, .l1_bytes = 1 << 17, .l2_bytes = 1 << 20,         \
    .l3_bytes = 1 << 25, .threads = 1 << 16, .gpu = true, .capabilities = (LIBRARY), .multiprocessors = 132,           \
    .max_threads_per_sm = 2048, .registers_per_sm = 65536                                                              \
  }

/* ---- memory ------------------------------------------------------------------------------------------------ */

struct run_memory {
  size_t n;
  struct {
    const quern_tensor *tensor;
    void *data;
    bool own;
  } at[512];
};

static inline void *run_find(struct run_memory *memory, const quern_tensor *t) {
  for (size_t i = 0; i < memory->n; i++)
    if (memory->at[i].tensor == t) return memory->at[i].data;
  if (t->node->op == IR_BUFFER) return t->node->attrs->buffer->data;
  assert_int_equal(t->node->op, IR_CONST);
  void *data = malloc(ir_bytes(t) + 64);
  memcpy(data, t->node->attrs->data.at, ir_bytes(t));
  memory->at[memory->n].tensor = t;
  memory->at[memory->n].own = true;
  memory->at[memory->n++].data = data;
  return data;
}

static inline void *run_add(struct run_memory *memory, const quern_tensor *t) {
  assert_true(memory->n < BASE_COUNT(memory->at));
  void *data = malloc(ir_bytes(t) + 64);
  memset(data, 0xa5, ir_bytes(t) + 64);
  memory->at[memory->n].tensor = t;
  memory->at[memory->n].own = true;
  memory->at[memory->n++].data = data;
  return data;
}

/* ---- kernels ----------------------------------------------------------------------------------------------- */

/* Every out is written and nothing behind it. */
static inline void run_launch(const struct kern *kern, void **mems, int flags) {
  struct kern_launch launch = {.mems = mems, .scalars = NULL};
  EXPECT_OK(kern_interp(kern, &launch, flags));
  for (int i = 0; i < kern->n_mems; i++) {
    if (kern->mems[i].role != KERN_OUT) continue;
    size_t bytes = (size_t)kern->mems[i].count * base_dtypes[kern->mems[i].dtype].size;
    for (size_t k = 0; k < 64; k++) assert_int_equal(((unsigned char *)mems[i])[bytes + k], 0xa5);
  }
}

/* Runs a kernel forwards with a watch on races, backwards, and with outs in the memory of ins. */
static inline void run_kernel(const struct kern *kern, const struct pass_group *group, struct run_memory *memory) {
  void *mems[KERN_MAX_MEMS] = {NULL}, *again[KERN_MAX_MEMS] = {NULL}, *own[KERN_MAX_MEMS] = {NULL};
  size_t n_ins = group->n_ins;
  for (int i = 0; i < kern->n_mems; i++) {
    const struct kern_mem *mem = &kern->mems[i];
    size_t bytes = (size_t)mem->count * base_dtypes[mem->dtype].size;
    if (mem->role == KERN_IN) mems[i] = run_find(memory, group->ins[i]);
    if (mem->role == KERN_OUT) mems[i] = run_add(memory, group->outs[(size_t)i - n_ins].tensor);
    again[i] = mems[i];
    if (mem->role != KERN_IN) {
      own[i] = malloc(bytes + 64);
      memset(own[i], 0xa5, bytes + 64);
      again[i] = own[i];
    }
    if (mem->role == KERN_WORK) mems[i] = own[i];
  }
  run_launch(kern, mems, KERN_CHECK_RACES);
  for (int i = 0; i < kern->n_mems; i++) {
    const struct kern_mem *mem = &kern->mems[i];
    if (mem->role != KERN_OUT || mem->alias < 0) continue;
    assert_true(mem->dtype == kern->mems[mem->alias].dtype && mem->count == kern->mems[mem->alias].count);
    assert_ptr_equal(again[mem->alias], mems[mem->alias]); /* no two outs take the same in */
    memcpy(own[i], mems[mem->alias], (size_t)mem->count * base_dtypes[mem->dtype].size);
    again[mem->alias] = own[i];
  }
  run_launch(kern, again, KERN_REVERSE_TASKS);
  for (int i = 0; i < kern->n_mems; i++) {
    const struct kern_mem *mem = &kern->mems[i];
    if (mem->role == KERN_OUT)
      assert_memory_equal(mems[i], again[i], (size_t)mem->count * base_dtypes[mem->dtype].size);
    free(own[i]);
  }
}

static inline void run_group(const struct pass_group *group, const struct run_way *way, struct run_memory *memory) {
  struct base_target target = run_target(way);
  struct sched sched;
  struct kern *kern = NULL;
  if (group->kind == PASS_KIND_VIEW) {
    memcpy(run_add(memory, group->outs[0].tensor), run_find(memory, group->ins[0]), ir_bytes(group->outs[0].tensor));
    return;
  }
  sched_choose(&sched, group, &target, way->optimize);
  if (way->grain > 0) sched.grain = way->grain;
  EXPECT_OK(sched_lower(&kern, &ctx->heap, ctx, group, &target, &sched));
  quern_status status = kern_verify(kern, NULL);
  if (status != QUERN_STATUS_OK) {
    struct base_str text;
    base_str_init(&text, &ctx->heap);
    print_error("%s\n", quern_last_error());
    if (kern_print(&text, kern) == QUERN_STATUS_OK) print_error("%s\n", text.at);
    base_str_fini(&text);
  }
  EXPECT_OK(status);
  assert_true(kern->cost.bytes >= 0 && kern->cost.flops >= 0);
  run_kernel(kern, group, memory);
  kern_free(kern);
}

/* dst[i] = roots[i], computed in that way. */
static inline void run_way(const struct run_way *way, size_t n, quern_tensor *const *roots, void **dst) {
  struct pass_options options = {0};
  struct pass_groups groups;
  struct base_target target = run_target(way);
  struct run_memory *memory = calloc(1, sizeof *memory);
  quern_tensor *inlined[16];
  assert_true(memory != NULL && n <= BASE_COUNT(inlined));
  EXPECT_OK(pass_options_parse(&options, 1, NULL));
  options.on[PASS_FUSE] = way->fuse;
  options.target = &target;
  EXPECT_OK(ir_inline_composites(ctx, n, roots, inlined));
  struct pass_graph graph = {.ctx = ctx, .n_roots = n, .roots = inlined};
  EXPECT_OK(pass_fuse(&groups, &graph, &options));
  EXPECT_OK(pass_groups_verify(&groups, &graph));
  for (size_t i = 0; i < groups.groups.n; i++) run_group(groups.groups.at[i], way, memory);
  for (size_t i = 0; i < n; i++) memcpy(dst[i], run_find(memory, inlined[i]), ir_bytes(inlined[i]));
  for (size_t i = 0; i < memory->n; i++) free(memory->at[i].data);
  free(memory);
  pass_groups_fini(&groups);
}

/* Lowers the first group of a root in that way, with each allocation failing in turn. */
static inline void run_faults(const struct run_way *way, quern_tensor *(*make)(void)) {
  struct fault fault = {0};
  while (fault_next(&fault)) {
    test_renew();
    struct pass_options options = {0};
    struct pass_groups groups;
    struct base_target target = run_target(way);
    struct sched sched;
    struct kern *kern = NULL;
    quern_tensor *root = make();
    struct pass_graph graph = {.ctx = ctx, .n_roots = 1, .roots = &root};
    EXPECT_OK(ir_inline_composites(ctx, 1, &root, &root));
    EXPECT_OK(pass_options_parse(&options, 1, NULL));
    options.target = &target;
    EXPECT_OK(pass_fuse(&groups, &graph, &options));
    sched_choose(&sched, groups.groups.at[0], &target, 1);
    fault_begin(&fault);
    quern_status status = sched_lower(&kern, &ctx->heap, ctx, groups.groups.at[0], &target, &sched);
    fault_end(&fault);
    assert_true((status == QUERN_STATUS_OK) == (kern != NULL));
    EXPECT_FAULT(&fault, status);
    kern_free(kern);
    pass_groups_fini(&groups);
  }
  assert_true(fault.n > 5);
}

/* ---- expectations ------------------------------------------------------------------------------------------ */

static inline double run_tolerance(quern_dtype dtype) {
  if (!base_dtype_is(dtype, BASE_FLOAT)) return 0;
  return dtype == QUERN_DTYPE_F64 ? 1e-12 : dtype == QUERN_DTYPE_F32 ? 1e-5 : 3 * pow(2, -base_dtypes[dtype].mantissa);
}

static inline bool run_near(quern_dtype dtype, const void *x, const void *y, int64_t i) {
  if (!base_dtype_is(dtype, BASE_FLOAT))
    return base_load_int(dtype, x, (size_t)i) == base_load_int(dtype, y, (size_t)i);
  double a = base_load_float(dtype, x, (size_t)i), b = base_load_float(dtype, y, (size_t)i);
  if (isnan(a) || isnan(b)) return isnan(a) && isnan(b);
  if (isinf(a) || isinf(b)) return a == b;
  return fabs(a - b) <= run_tolerance(dtype) * (1 + fabs(b));
}

static inline bool run_equal(quern_dtype dtype, const void *x, const void *y, int64_t i) {
  size_t size = base_dtypes[dtype].size;
  if (memcmp((const char *)x + (size_t)i * size, (const char *)y + (size_t)i * size, size) == 0) return true;
  return base_dtype_is(dtype, BASE_FLOAT) && isnan(base_load_float(dtype, x, (size_t)i)) &&
         isnan(base_load_float(dtype, y, (size_t)i));
}

static inline void run_expect(size_t n, quern_tensor *const *roots, const char *file, int line) {
  void *want[16], *first[16], *got[16];
  assert_true(n <= 16);
  for (size_t i = 0; i < n; i++) {
    if (quern_tensor_is_poison(roots[i])) print_error("%s\n", ctx->message);
    assert_false(quern_tensor_is_poison(roots[i]));
    want[i] = malloc(ir_bytes(roots[i]) + 64);
    first[i] = malloc(ir_bytes(roots[i]) + 64);
    got[i] = malloc(ir_bytes(roots[i]) + 64);
  }
  EXPECT_OK(ir_eval(ctx, n, roots, want, 0, NULL));
  const struct ways ways = ways_from(0, BASE_COUNT(run_ways));
  for (size_t w = ways.at; w < ways.end; w++) {
    bool is_first = w == ways.at;
    run_way(&run_ways[w], n, roots, is_first ? first : got);
    for (size_t i = 0; i < n; i++) {
      for (int64_t k = 0; k < ir_count(roots[i]); k++) {
        bool near = run_near(roots[i]->dtype, is_first ? first[i] : got[i], want[i], k);
        if (near && (is_first || run_equal(roots[i]->dtype, first[i], got[i], k))) continue;
        double x = base_dtype_is(roots[i]->dtype, BASE_FLOAT)
                       ? base_load_float(roots[i]->dtype, (is_first ? first : got)[i], (size_t)k)
                       : 0;
        double y =
            base_dtype_is(roots[i]->dtype, BASE_FLOAT) ? base_load_float(roots[i]->dtype, want[i], (size_t)k) : 0;
        print_error("%s: root %zu, element %lld is %s: %.17g, evaluated %.17g\n", run_ways[w].name, i, (long long)k,
                    near ? "not the same bits as in the first way" : "far from the evaluator's", x, y);
        _fail(file, line);
      }
    }
  }
  for (size_t i = 0; i < n; i++) {
    free(want[i]);
    free(first[i]);
    free(got[i]);
  }
}
#define EXPECT_SAME(...)                                                                                               \
  run_expect(sizeof((quern_tensor *[]){__VA_ARGS__}) / sizeof(quern_tensor *), (quern_tensor *[]){__VA_ARGS__},        \
             __FILE__, __LINE__)

#endif
