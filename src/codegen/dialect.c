/* codegen/dialect.c -- what differs between C, OpenCL C and CUDA C, as far as helpers.def does not describe it
** GPUs have scalar code: a vector is written lane by lane. Each phase is a function of the memories, the scalars and the tasks
** of one thread: the first, how many there are in all, and how far it is to the next. A phase of CUDA C is a kernel that calls it.
** A translation unit of OpenCL C has one kernel for all phases, since compilers take much longer for many kernels than for long ones; it gets
** where memories lie as numbers of buffers and offsets, so that one list of arguments serves all.
** tests: tests/codegen/test_gpu.c
*/
#include "codegen/cg_int.h"

static const char c_prelude[] = "typedef double f64;\n"
                                "typedef float f32;\n"
                                "typedef signed char i8;\n"
                                "typedef short i16;\n"
                                "typedef int i32;\n"
                                "typedef long long i64;\n"
                                "typedef unsigned char u8, f8e4m3, f8e5m2;\n"
                                "typedef unsigned short u16, f16, bf16;\n"
                                "typedef unsigned u32;\n"
                                "typedef unsigned long long u64;\n"
                                "typedef char c8;\n"
                                "#define INLINE static inline __attribute__((always_inline))\n";

static const char opencl_prelude[] = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n"
                                     "#pragma OPENCL FP_CONTRACT OFF\n"
                                     "typedef double f64;\n"
                                     "typedef float f32;\n"
                                     "typedef char i8;\n"
                                     "typedef short i16;\n"
                                     "typedef int i32;\n"
                                     "typedef long i64;\n"
                                     "typedef uchar u8, f8e4m3, f8e5m2;\n"
                                     "typedef ushort u16, f16, bf16;\n"
                                     "typedef uint u32;\n"
                                     "typedef ulong u64;\n"
                                     "typedef uint2 w2;\n"
                                     "typedef uint4 w4;\n"
                                     "typedef ulong2 d2;\n"
                                     "#define ZERO(T) ((T)(0))\n"
                                     "#define INLINE static\n"
                                     "#define AT(i) (buffers[args[2 * (i)]] + args[2 * (i) + 1])\n";

static const char cuda_prelude[] = "typedef double f64;\n"
                                   "typedef float f32;\n"
                                   "typedef signed char i8;\n"
                                   "typedef short i16;\n"
                                   "typedef int i32;\n"
                                   "typedef long long i64;\n"
                                   "typedef unsigned char u8, f8e4m3, f8e5m2;\n"
                                   "typedef unsigned short u16, f16, bf16;\n"
                                   "typedef unsigned u32;\n"
                                   "typedef unsigned long long u64;\n"
                                   "typedef uint2 w2;\n"
                                   "typedef uint4 w4;\n"
                                   "typedef ulonglong2 d2;\n"
                                   "#define ZERO(T) (T())\n"
                                   "#define INLINE static __device__ __forceinline__\n";

const struct cg_dialect *cg_dialect(const struct cg_target *target) {
  static const struct cg_dialect c = {.prelude = c_prelude,
                                      .i64 = "ll",
                                      .u64 = "ull",
                                      .global = "",
                                      .table = "const ",
                                      .new_table = "static const ",
                                      .function = "static __attribute__((noinline)) void "};
  static const struct cg_dialect opencl = {.prelude = opencl_prelude,
                                           .i64 = "l",
                                           .u64 = "ul",
                                           .scalar = true,
                                           .global = "__global ",
                                           .table = "__constant const ",
                                           .new_table = "__constant const ",
                                           .function = "static __attribute__((noinline)) void ",
                                           .shared = "__local ",
                                           .barrier = "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
                                           .small_barrier = "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);"};
  static const struct cg_dialect cuda = {.prelude = cuda_prelude,
                                         .i64 = "ll",
                                         .u64 = "ull",
                                         .scalar = true,
                                         .global = "",
                                         .table = "const ",
                                         .new_table = "static __device__ const ",
                                         .function = "static __device__ __noinline__ void ",
                                         .shared = "",
                                         .barrier = "__syncthreads();",
                                         .small_barrier = "__syncwarp();"};
  return target->isa == CG_ISA_OPENCL ? &opencl : target->isa == CG_ISA_CUDA ? &cuda : &c;
}

/* ---- phases as kernels ----------------------------------------------------------------------------------- */

/* "(f32 *m0, ..., i64 s0, ..., i64 begin, i64 tasks, i64 step, char *scratch)" */
static void add_parameters(struct base_str *str, const struct cg_dialect *dialect, const struct kern_fn *fn,
                           const char *rest) {
  base_str_add(str, "(");
  for (int i = 0; i < fn->n_mems; i++) {
    base_str_add(str, dialect->global);
    cg_type_add(str, (struct cg_type){(int)fn->mems[i].dtype, 1});
    base_str_printf(str, " *m%d, ", i);
  }
  for (int i = 0; i < fn->n_scalars; i++) base_str_printf(str, "i64 s%d, ", i);
  base_str_printf(str, rest, dialect->global);
}

int cg_batched_launches(const struct kern *kern, const struct cg_target *target) {
  enum { PARAMETER_BYTES = 4096, LEAST = 4 }; /* that any device and driver takes; of a table */
  if (kern->max_batched < 2 || kern->n_mems == 0 || target->isa != CG_ISA_CUDA) return 1;
  int room = (PARAMETER_BYTES / (int)sizeof(int64_t) - kern->n_scalars - 3) / kern->n_mems, n = LEAST;
  while (n < kern->max_batched) n *= 2; /* so that programs with a few more or less have the same text */
  return BASE_MAX(BASE_MIN(n, room), 1);
}

/* The parameters of a kernel of CUDA C. One whose launches may be joined is given a table of memories, one row per launch: blockIdx.y. */
static void add_cuda_parameters(struct base_str *str, const struct cg_dialect *dialect, const struct kern *kern,
                                const struct kern_fn *fn, const char *symbol, const struct cg_target *target) {
  int joined = cg_batched_launches(kern, target);
  base_str_add(str, symbol);
  if (joined == 1) {
    add_parameters(str, dialect, fn, "i64 tasks, %schar *all, i64 stride) {\n");
    return;
  }
  base_str_printf(str, "(const __grid_constant__ struct table_%s table, ", symbol);
  for (int i = 0; i < fn->n_scalars; i++) base_str_printf(str, "i64 s%d, ", i);
  base_str_add(str, "i64 tasks, char *all, i64 stride) {\n");
  for (int i = 0; i < fn->n_mems; i++) {
    base_str_add(str, "  ");
    cg_type_add(str, (struct cg_type){(int)fn->mems[i].dtype, 1});
    base_str_printf(str, " *const m%d = (", i);
    cg_type_add(str, (struct cg_type){(int)fn->mems[i].dtype, 1});
    base_str_printf(str, " *)table.at[blockIdx.y][%d];\n", i);
  }
}

/* What stands before a kernel: its table. */
static void add_table(struct base_str *str, const struct kern *kern, const char *symbol,
                      const struct cg_target *target) {
  int joined = cg_batched_launches(kern, target);
  if (joined > 1) base_str_printf(str, "\nstruct table_%s {\n  void *at[%d][%d];\n};\n", symbol, joined, kern->n_mems);
}

/* The function of OpenCL C, and its case in the unit's kernel. */
static void add_opencl(struct cg_unit *unit, const struct kern_fn *fn, const char *symbol, const struct cg_emit *e) {
  const struct cg_dialect *dialect = cg_dialect(unit->target);
  base_str_printf(&unit->body, "\n%s%s", dialect->function, symbol);
  add_parameters(&unit->body, dialect, fn, "i64 begin, i64 tasks, i64 step, %schar *scratch) {\n");
  base_str_add(&unit->body, "  for (i64 task = begin; task < tasks; task += step) {\n");
  if (e->text.n > 0) base_str_add_n(&unit->body, e->text.at, e->text.n);
  base_str_add(&unit->body, "  }\n}\n");
  base_str_printf(&unit->entries, "  case %d: %s(", unit->n_entries, symbol);
  for (int i = 0; i < fn->n_mems; i++) {
    base_str_printf(&unit->entries, "(%s", dialect->global);
    cg_type_add(&unit->entries, (struct cg_type){(int)fn->mems[i].dtype, 1});
    base_str_printf(&unit->entries, " *)AT(%d), ", i);
  }
  for (int i = 0; i < fn->n_scalars; i++) base_str_printf(&unit->entries, "args[%d], ", 2 * fn->n_mems + i);
  base_str_add(&unit->entries, "get_global_id(0), tasks, get_global_size(0), mine); break;\n");
}

/* Opens the loop over tasks of a block that has `each` at a time, of which the thread's is number `own`. */
static void open_cuda_loop(struct base_str *body, const struct cg_emit *e, bool uniform, int each, const char *own,
                           const char *begin) {
  if (e->before.n > 0) base_str_add_n(body, e->before.at, e->before.n);
  if (uniform)
    base_str_printf(body,
                    "  for (i64 first = (i64)blockIdx.x * %d; first < tasks; first += step) {\n"
                    "    const i64 task = first + %s;\n",
                    each, own);
  else
    base_str_printf(body, "  for (i64 task = %s; task < tasks; task += step) {\n", begin);
}

static void add_cuda(struct cg_unit *unit, const struct kern *kern, int phase, const char *symbol,
                     const struct cg_emit *e) {
  const struct kern_fn *fn = e->fn;
  const struct cg_dialect *dialect = cg_dialect(unit->target);
  add_table(&unit->body, kern, symbol, unit->target);
  int beside = kern->phases[phase].min_blocks_per_sm;
  base_str_printf(&unit->body, "\nextern \"C\" __global__ void __launch_bounds__(%d", CG_BLOCK_THREADS);
  if (beside > 0) base_str_printf(&unit->body, ", %d", beside);
  base_str_add(&unit->body, ") ");
  add_cuda_parameters(&unit->body, dialect, kern, fn, symbol, unit->target);
  base_str_printf(&unit->body, "  const i64 thread = (i64)blockIdx.x * %d + threadIdx.x, step = (i64)gridDim.x * %d;\n",
                  CG_BLOCK_THREADS, CG_BLOCK_THREADS);
  base_str_add(&unit->body, "  char *const scratch = all + thread * stride;\n");
  bool uniform = cg_is_uniform(&kern->phases[phase], (struct cg_shape){1, 1});
  open_cuda_loop(&unit->body, e, uniform, CG_BLOCK_THREADS, "threadIdx.x", "thread");
  if (e->text.n > 0) base_str_add_n(&unit->body, e->text.at, e->text.n);
  base_str_add(&unit->body, "  }\n}\n");
}

/* ---- phases of thread blocks ------------------------------------------------------------------------------- */

/* The parameters of a kernel of OpenCL, behind the first. */
static void add_opencl_parameters(struct base_str *str) {
  for (int i = 0; i < CG_BUFFERS; i++) base_str_printf(str, "__global char *b%d, ", i);
  base_str_add(str, "__global const i64 *args, i64 tasks, __global char *all, i64 stride) {\n"
                    "  __global char *const buffers[] = {");
  for (int i = 0; i < CG_BUFFERS; i++) base_str_printf(str, i > 0 ? ", b%d" : "b%d", i);
  base_str_add(str, "};\n");
}

static void open_opencl_block(struct base_str *str, const struct kern_fn *fn, const char *symbol, int group) {
  base_str_printf(str, "\n__kernel __attribute__((reqd_work_group_size(%d, 1, 1))) void %s(", group, symbol);
  add_opencl_parameters(str);
  for (int i = 0; i < fn->n_mems; i++) {
    base_str_add(str, "  __global ");
    cg_type_add(str, (struct cg_type){(int)fn->mems[i].dtype, 1});
    base_str_printf(str, " *const m%d = (__global ", i);
    cg_type_add(str, (struct cg_type){(int)fn->mems[i].dtype, 1});
    base_str_printf(str, " *)AT(%d);\n", i);
  }
  for (int i = 0; i < fn->n_scalars; i++) base_str_printf(str, "  const i64 s%d = args[%d];\n", i, 2 * fn->n_mems + i);
  base_str_add(str, "  const i32 lane = get_local_id(0);\n"
                    "  const i64 number = get_group_id(0), step = get_num_groups(0);\n");
}

/* A block has several tasks where the block is a warp: each is a thread block of its own. */
static void open_cuda_block(struct base_str *str, const struct kern *kern, int phase, const char *symbol,
                            struct cg_shape shape, const struct cg_target *target) {
  const struct kern_phase *p = &kern->phases[phase];
  add_table(str, kern, symbol, target);
  base_str_printf(str, "\nextern \"C\" __global__ void __launch_bounds__(%d", shape.block_threads * shape.tasks);
  if (p->min_blocks_per_sm > 0) base_str_printf(str, ", %d", BASE_MAX(p->min_blocks_per_sm / shape.tasks, 1));
  base_str_add(str, ") ");
  add_cuda_parameters(str, cg_dialect(target), kern, kern->fns.at[p->fn], symbol, target);
  if (shape.tasks == 1)
    base_str_add(str, "  const i32 lane = threadIdx.x;\n  const i64 number = blockIdx.x, step = gridDim.x;\n");
  else
    base_str_printf(str,
                    "  const i32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;\n"
                    "  const i64 number = (i64)blockIdx.x * %d + warp, step = (i64)gridDim.x * %d;\n",
                    shape.tasks, shape.tasks);
}

/* Shared memory: the exchange buffer for what crosses lanes, and scratch. */
static void add_block_kernel(struct cg_unit *unit, const struct kern *kern, int phase, const char *symbol,
                             const struct cg_emit *e) {
  const struct cg_dialect *dialect = cg_dialect(unit->target);
  const struct kern_fn *fn = kern->fns.at[kern->phases[phase].fn];
  struct base_str *body = &unit->body;
  struct cg_shape shape = cg_shape(kern, phase, unit->target);
  long long shared = ((long long)cg_shared_bytes(kern, phase, unit->target) + 63) / 64 * 8; /* of a task, in u64 */
  bool opencl = unit->target->isa == CG_ISA_OPENCL;
  const char *declare = opencl ? "__local __attribute__((aligned(16)))" : "__shared__ __align__(16)";
  if (opencl)
    open_opencl_block(body, fn, symbol, shape.block_threads);
  else
    open_cuda_block(body, kern, phase, symbol, shape, unit->target);
  if (opencl || shape.block_threads > CG_WARP)
    base_str_printf(body, "  %s u64 box[%d];\n", declare,
                    2 * cg_exchange_elements(fn, shape.block_threads, unit->target));
  if (cg_dynamic_shared_bytes(kern, phase, unit->target) > 0)
    base_str_add(body, "  extern __shared__ __align__(16) u64 inside[];\n  char *const scratch = (char *)");
  else if (shared > 0)
    base_str_printf(body, "  %s u64 inside[%lld];\n  %schar *const scratch = (%schar *)", declare, shared * shape.tasks,
                    dialect->shared, dialect->shared);
  else
    base_str_printf(body, "  %schar *const scratch = all + number * %d * stride;\n", dialect->global,
                    shape.block_threads);
  if (shared > 0 && shape.tasks > 1)
    base_str_printf(body, "(inside + warp * %lld);\n", shared);
  else if (shared > 0)
    base_str_add(body, "inside;\n");
  bool uniform = !opencl && cg_is_uniform(&kern->phases[phase], shape);
  open_cuda_loop(body, e, uniform, shape.tasks, shape.tasks > 1 ? "warp" : "0", "number");
  if (e->text.n > 0) base_str_add_n(body, e->text.at, e->text.n);
  base_str_add(body, "  }\n}\n");
}

void cg_gpu_phase(struct cg_unit *unit, const struct kern *kern, int phase, const struct cg_emit *e) {
  const struct kern_fn *fn = kern->fns.at[kern->phases[phase].fn];
  char symbol[512];
  cg_symbol(symbol, sizeof symbol, kern, phase);
  if (cg_block_threads(kern, phase, unit->target) > 1)
    add_block_kernel(unit, kern, phase, symbol, e);
  else if (unit->target->isa == CG_ISA_OPENCL)
    add_opencl(unit, fn, symbol, e);
  else
    add_cuda(unit, kern, phase, symbol, e);
  unit->n_entries++;
}

void cg_gpu_end(const struct cg_unit *unit, struct base_str *str) {
  if (unit->target->isa != CG_ISA_OPENCL || unit->entries.n == 0) return;
  base_str_printf(str, "\n__kernel __attribute__((reqd_work_group_size(%d, 1, 1))) void %s(i32 phase, ",
                  CG_BLOCK_THREADS_OPENCL, CG_ENTRY_OPENCL);
  add_opencl_parameters(str);
  base_str_add(str, "  __global char *const mine = all + get_global_id(0) * stride;\n"
                    "  switch (phase) {\n");
  base_str_add_n(str, unit->entries.at, unit->entries.n);
  base_str_add(str, "  }\n}\n");
}
