/* runtime/cuda/nvrtc.c -- CUDA C to cubins by NVRTC, with or without a GPU
** tests: tests/runtime/test_gpu.c
*/
#include "runtime/cuda/cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

enum { MOST_FLAGS = 16, MORE_FLAGS = 3, OLDEST_MAJOR = 12, INVALID_OPTION = 5 };
enum { TOGETHER = 32 }; /* kernels of a translation unit that is only checked: more at once take no less time */

static const char *const places[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so",
                                     "/usr/local/cuda/lib64/libnvrtc.so", "/usr/local/cuda/lib/libnvrtc.so"};

static quern_status load(struct rt_nvrtc *nvrtc) {
  void *library = NULL;
  int major = 0, minor = 0;
  for (size_t i = 0; i < BASE_COUNT(places) && library == NULL; i++) library = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
  QUERN_CHECK(
      library != NULL, UNSUPPORTED,
      "cuda: libnvrtc.so, which compiles kernels, is not installed HINT: it is part of CUDA; LD_LIBRARY_PATH may "
      "name its folder");
#define DRIVER(...)
#define OPTIONAL(...)
#define NVRTC(NAME, SYMBOL, PARAMETERS)                                                                                \
  *(void **)&nvrtc->NAME = dlsym(library, #SYMBOL);                                                                    \
  QUERN_CHECK(nvrtc->NAME != NULL, UNSUPPORTED, "cuda: libnvrtc.so has no function " #SYMBOL ": it is too old");
#include "runtime/cuda/functions.def"
#undef OPTIONAL
#undef DRIVER
#undef NVRTC
  QUERN_CHECK(nvrtc->version(&major, &minor) == 0 && major >= OLDEST_MAJOR, UNSUPPORTED,
              "cuda: NVRTC %d.%d is too old; %d or newer is needed", major, minor, (int)OLDEST_MAJOR);
  snprintf(nvrtc->identity, sizeof nvrtc->identity, "NVRTC %d.%d", major, minor);
  nvrtc->minimal = major > 12 || minor >= 4;
  return QUERN_STATUS_OK;
}

static quern_status load_any(void *what) { return load(what); }

quern_status rt_nvrtc_open(struct rt_nvrtc **nvrtc) {
  static struct rt_once once = {.lock = PTHREAD_MUTEX_INITIALIZER};
  static struct rt_nvrtc opened;
  *nvrtc = &opened;
  return rt_once(&once, load_any, &opened);
}

/* ---- compiling -------------------------------------------------------------------------------------------- */

/* Flags of a row as a list; with PTX, of the virtual architecture of that number. */
static int split_flags(const char *march, bool ptx, char text[256], const char *flags[MOST_FLAGS]) {
  int n = 0;
  snprintf(text, 256, "%s", march);
  char *real = ptx ? strstr(text, "=sm_") : NULL;
  if (real != NULL) snprintf(real, 256 - (size_t)(real - text), "=compute_%s", strstr(march, "=sm_") + strlen("=sm_"));
  for (char *at = text, *rest; n < MOST_FLAGS && (at = strtok_r(at, " ", &rest)) != NULL; at = NULL) flags[n++] = at;
  return n;
}

static quern_status refuse(struct rt_nvrtc *nvrtc, void *program, struct base_heap *heap, int code) {
  char head[700] = "";
  size_t n = 0;
  if (nvrtc->log_size(program, &n) == 0 && n > 1) {
    char *all = base_alloc_zero(heap, n + 1);
    if (all != NULL && nvrtc->log(program, all) == 0) snprintf(head, sizeof head, "%s", all);
    base_free(heap, all, n + 1);
  }
  bool option = code == INVALID_OPTION || strstr(head, "gpu-architecture") != NULL;
  return base_error(option ? QUERN_STATUS_UNSUPPORTED : QUERN_STATUS_INTERNAL, "%s: error %d: %s", nvrtc->identity,
                    code, head);
}

static quern_status take(struct rt_nvrtc *nvrtc, void *program, struct base_heap *heap, bool ptx,
                         struct rt_bytes *binary) {
  size_t n = 0;
  int code = ptx ? nvrtc->ptx_size(program, &n) : nvrtc->cubin_size(program, &n);
  QUERN_CHECK(code == 0 && n > 0, INTERNAL, "%s gave no code (error %d)", nvrtc->identity, code);
  *binary = (struct rt_bytes){.at = base_alloc(heap, n), .n = n, .room = n};
  if (binary->at == NULL) return QUERN_STATUS_MEMORY;
  code = ptx ? nvrtc->ptx(program, binary->at) : nvrtc->cubin(program, binary->at);
  if (code == 0) return QUERN_STATUS_OK;
  rt_bytes_free(heap, binary);
  return base_error(QUERN_STATUS_INTERNAL, "%s gave no code (error %d)", nvrtc->identity, code);
}

/* more: a flag besides those of the target, or NULL. Warnings would stand before errors, of which the message has the first few. What is
** left out of a minimal program, textures and launches from kernels, no kernel has. */
static quern_status compile(struct rt_nvrtc *nvrtc, bool ptx, const char *more, struct base_heap *heap,
                            const struct cg_target *target, const char *text, struct rt_bytes *binary) {
  char words[256];
  const char *flags[MOST_FLAGS + MORE_FLAGS];
  int n = split_flags(target->march, ptx, words, flags);
  void *program = NULL;
  flags[n++] = "--disable-warnings";
  if (nvrtc->minimal) flags[n++] = "--minimal";
  if (more != NULL) flags[n++] = more;
  int code = nvrtc->create(&program, text, "kernels.cu", 0, NULL, NULL);
  QUERN_CHECK(code == 0, MEMORY, "%s cannot make a program (error %d)", nvrtc->identity, code);
  code = nvrtc->compile(program, n, flags);
  quern_status status = code == 0 ? take(nvrtc, program, heap, ptx, binary) : refuse(nvrtc, program, heap, code);
  (void)nvrtc->destroy(&program);
  return status;
}

static quern_status compile_cubin(void *self, struct base_heap *heap, const struct cg_target *target, const char *text,
                                  struct rt_bytes *binary) {
  return compile(self, false, NULL, heap, target, text, binary);
}
static quern_status compile_ptx(void *self, struct base_heap *heap, const struct cg_target *target, const char *text,
                                struct rt_bytes *binary) {
  return compile(self, true, NULL, heap, target, text, binary);
}
/* One that does not know the flag compiles as always. */
static quern_status compile_quickly(void *self, struct base_heap *heap, const struct cg_target *target,
                                    const char *text, struct rt_bytes *binary) {
  quern_status status = compile(self, false, "--Ofast-compile=mid", heap, target, text, binary);
  return status == QUERN_STATUS_UNSUPPORTED ? compile(self, false, NULL, heap, target, text, binary) : status;
}

struct rt_gpu_compiler rt_nvrtc_compiler(struct rt_nvrtc *nvrtc, bool ptx) {
  return (struct rt_gpu_compiler){.name = ptx ? "NVRTC (PTX)" : "NVRTC",
                                  .identity = nvrtc->identity,
                                  .end = ".cu",
                                  .parallel = true,
                                  .most = 1,
                                  .self = nvrtc,
                                  .compile = ptx ? compile_ptx : compile_cubin};
}

struct rt_gpu_compiler rt_nvrtc_checker(struct rt_nvrtc *nvrtc) {
  struct rt_gpu_compiler compiler = rt_nvrtc_compiler(nvrtc, false);
  compiler.name = "NVRTC (check)";
  compiler.most = TOGETHER;
  compiler.compile = compile_quickly;
  return compiler;
}
