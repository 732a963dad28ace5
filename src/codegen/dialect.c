/* codegen/dialect.c -- what differs between C, OpenCL C and CUDA C, as far as helpers.def does not say it
** GPUs have scalar code: a vector is written lane by lane. Each phase is a function of the memories, the scalars and the tasks
** of one thread: the first, how many there are in all, and how far it is to the next. A phase of CUDA C is a kernel that calls it.
** A unit of OpenCL C has one kernel for all phases, because compilers take much longer for many kernels than for long ones; it is given
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
                                           .barrier = "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);"};
  static const struct cg_dialect cuda = {.prelude = cuda_prelude,
                                         .i64 = "ll",
                                         .u64 = "ull",
                                         .scalar = true,
                                         .global = "",
                                         .table = "const ",
                                         .new_table = "static __device__ const ",
                                         .function = "static __device__ __noinline__ void ",
                                         .shared = "",
                                         .barrier = "__syncthreads();"};
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

/* The function of OpenCL C, and its case in the unit's kernel. */
static void add_opencl(struct cg_unit *unit, const struct kern_fn *fn, const char *symbol, const char *text, size_t n) {
  const struct cg_dialect *dialect = cg_dialect(unit->target);
  base_str_printf(&unit->body, "\n%s%s", dialect->function, symbol);
  add_parameters(&unit->body, dialect, fn, "i64 begin, i64 tasks, i64 step, %schar *scratch) {\n");
  base_str_add(&unit->body, "  for (i64 task = begin; task < tasks; task += step) {\n");
  if (n > 0) base_str_add_n(&unit->body, text, n);
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

static void add_cuda(struct cg_unit *unit, const struct kern_fn *fn, const char *symbol, const char *text, size_t n) {
  const struct cg_dialect *dialect = cg_dialect(unit->target);
  base_str_printf(&unit->body, "\nextern \"C\" __global__ void __launch_bounds__(%d) %s", CG_GROUP, symbol);
  add_parameters(&unit->body, dialect, fn, "i64 tasks, %schar *all, i64 stride) {\n");
  base_str_printf(&unit->body, "  const i64 thread = (i64)blockIdx.x * %d + threadIdx.x, step = (i64)gridDim.x * %d;\n",
                  CG_GROUP, CG_GROUP);
  base_str_add(&unit->body, "  char *const scratch = all + thread * stride;\n"
                            "  for (i64 task = thread; task < tasks; task += step) {\n");
  if (n > 0) base_str_add_n(&unit->body, text, n);
  base_str_add(&unit->body, "  }\n}\n");
}

/* ---- phases of groups ------------------------------------------------------------------------------------- */

/* The parameters of a kernel of OpenCL, behind the first. */
static void add_opencl_parameters(struct base_str *str) {
  for (int i = 0; i < CG_BUFFERS; i++) base_str_printf(str, "__global char *b%d, ", i);
  base_str_add(str, "__global const i64 *args, i64 tasks, __global char *all, i64 stride) {\n"
                    "  __global char *const buffers[] = {");
  for (int i = 0; i < CG_BUFFERS; i++) base_str_printf(str, i > 0 ? ", b%d" : "b%d", i);
  base_str_add(str, "};\n");
}

static void open_opencl_group(struct base_str *str, const struct kern_fn *fn, const char *symbol, int group) {
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

static void open_cuda_group(struct base_str *str, const struct cg_dialect *dialect, const struct kern_fn *fn,
                            const char *symbol, int group) {
  base_str_printf(str, "\nextern \"C\" __global__ void __launch_bounds__(%d) %s", group, symbol);
  add_parameters(str, dialect, fn, "i64 tasks, %schar *all, i64 stride) {\n");
  base_str_add(str, "  const i32 lane = threadIdx.x;\n  const i64 number = blockIdx.x, step = gridDim.x;\n");
}

/* Shared memory: a box for what crosses lanes, and scratch. */
static void add_group(struct cg_unit *unit, const struct kern *kern, int phase, const char *symbol, const char *text,
                      size_t n) {
  const struct cg_dialect *dialect = cg_dialect(unit->target);
  const struct kern_fn *fn = kern->fns.at[kern->phases[phase].fn];
  struct base_str *body = &unit->body;
  int group = cg_group(kern, phase, unit->target);
  long long shared = (long long)cg_shared(kern, phase, unit->target);
  const char *declare = unit->target->isa == CG_ISA_OPENCL ? "__local" : "__shared__";
  if (unit->target->isa == CG_ISA_OPENCL)
    open_opencl_group(body, fn, symbol, group);
  else
    open_cuda_group(body, dialect, fn, symbol, group);
  base_str_printf(body, "  %s u64 box[%d];\n", declare, group);
  if (shared > 0)
    base_str_printf(body, "  %s u64 inside[%lld];\n  %schar *const scratch = (%schar *)inside;\n", declare,
                    (shared + 7) / 8, dialect->shared, dialect->shared);
  else
    base_str_printf(body, "  %schar *const scratch = all + number * %d * stride;\n", dialect->global, group);
  base_str_add(body, "  for (i64 task = number; task < tasks; task += step) {\n");
  if (n > 0) base_str_add_n(body, text, n);
  base_str_add(body, "  }\n}\n");
}

void cg_gpu_phase(struct cg_unit *unit, const struct kern *kern, int phase, const char *text, size_t n) {
  const struct kern_fn *fn = kern->fns.at[kern->phases[phase].fn];
  char symbol[512];
  cg_symbol(symbol, sizeof symbol, kern, phase);
  if (cg_group(kern, phase, unit->target) > 1)
    add_group(unit, kern, phase, symbol, text, n);
  else
    (unit->target->isa == CG_ISA_OPENCL ? add_opencl : add_cuda)(unit, fn, symbol, text, n);
  unit->n_entries++;
}

void cg_gpu_end(const struct cg_unit *unit, struct base_str *str) {
  if (unit->target->isa != CG_ISA_OPENCL || unit->entries.n == 0) return;
  base_str_printf(str, "\n__kernel __attribute__((reqd_work_group_size(%d, 1, 1))) void %s(i32 phase, ",
                  CG_GROUP_OPENCL, CG_ENTRY_OPENCL);
  add_opencl_parameters(str);
  base_str_add(str, "  __global char *const mine = all + get_global_id(0) * stride;\n"
                    "  switch (phase) {\n");
  base_str_add_n(str, unit->entries.at, unit->entries.n);
  base_str_add(str, "  }\n}\n");
}
