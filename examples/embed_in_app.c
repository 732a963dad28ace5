/* examples/embed_in_app.c -- a compiled network inside an application that has its own allocator, buffers, stream and errors
** The program is compiled, saved, loaded again and run on memory of the application; after the first runs nothing is allocated.
** Usage: embed_in_app [cpu | cuda | opencl]. Exits with 1 when a result, a count or an error is not what it should be.
*/
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quern/quern.h"

enum { N = 8, IN = 32, HIDDEN = 64, OUT = 4, RUNS = 100 };
static float w1[HIDDEN][IN], w2[OUT][HIDDEN], x[N][IN], y[N][OUT], wanted[N][OUT];

/* The allocator of the application: it counts, and has a limit. Several threads may call it; this program has one that does. */
struct heap {
  size_t used, limit, calls;
};
static void *heap_alloc(void *self, size_t bytes) {
  struct heap *heap = self;
  void *memory = bytes > heap->limit - heap->used ? NULL : aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (memory != NULL) heap->used += bytes, heap->calls++;
  return memory;
}
static void heap_free(void *self, void *memory, size_t bytes) {
  if (memory != NULL) ((struct heap *)self)->used -= bytes;
  free(memory);
}

/* Every failure of the library comes through here, with the message that names the values; what happens then is up to the app. */
static bool ok(quern_status status) {
  if (status != QUERN_STATUS_OK) printf("%s error: %s\n", quern_status_name(status), quern_last_error());
  return status == QUERN_STATUS_OK;
}

/* w1 (HIDDEN, IN), w2 (OUT, HIDDEN): x (N, IN) -> relu(x w1') w2' (N, OUT), by the library .. */
static quern_tensor *network(quern_context *ctx) {
  quern_tensor *in = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(N, IN));
  quern_tensor *first = quern_tensor_copy(ctx, QUERN_DTYPE_F32, QUERN_LIST(HIDDEN, IN), w1);
  quern_tensor *second = quern_tensor_copy(ctx, QUERN_DTYPE_F32, QUERN_LIST(OUT, HIDDEN), w2);
  return quern_linear(quern_relu(quern_linear(in, first, NULL)), second, NULL);
}
/* .. and by hand */
static void make_numbers(void) {
  for (int i = 0; i < HIDDEN * IN; i++) w1[i / IN][i % IN] = sinf((float)i);
  for (int i = 0; i < OUT * HIDDEN; i++) w2[i / HIDDEN][i % HIDDEN] = cosf((float)i) / HIDDEN;
  for (int i = 0; i < N * IN; i++) x[i / IN][i % IN] = sinf(0.1f * (float)i);
  for (int i = 0; i < N * HIDDEN; i++) {
    float h = 0;
    for (int k = 0; k < IN; k++) h += x[i / HIDDEN][k] * w1[i % HIDDEN][k];
    for (int o = 0; o < OUT; o++) wanted[i / HIDDEN][o] += fmaxf(h, 0) * w2[o][i % HIDDEN];
  }
}
static bool right(const char *what) { /* compares y with it, and forgets y */
  float worst = 0;
  for (int i = 0; i < N * OUT; i++) worst = fmaxf(worst, fabsf(y[i / OUT][i % OUT] - wanted[i / OUT][i % OUT]));
  printf("%-40s the greatest error is %.1e\n", what, (double)worst);
  memset(y, 0, sizeof y);
  return worst < 1e-4f;
}

/* A run on addresses of a GPU in a CUstream of the app: upload, run and download follow each other there, and one wait ends all. */
static bool run_in_stream(quern_instance *instance) {
  void *lib = dlopen("libcuda.so.1", RTLD_NOW), *context, *stream = NULL, *to[2] = {NULL, NULL};
  if (lib == NULL) return false;
  int (*retain)(void **, int) = dlsym(lib, "cuDevicePrimaryCtxRetain"),
                         (*current)(void *) = dlsym(lib, "cuCtxSetCurrent");
  int (*make)(void **, unsigned) = dlsym(lib, "cuStreamCreate"), (*wait)(void *) = dlsym(lib, "cuStreamSynchronize");
  int (*alloc)(void **, size_t) = dlsym(lib, "cuMemAlloc_v2"), (*release)(void *) = dlsym(lib, "cuMemFree_v2");
  int (*upload)(void *, const void *, size_t, void *) = dlsym(lib, "cuMemcpyHtoDAsync_v2");
  int (*download)(void *, void *, size_t, void *) = dlsym(lib, "cuMemcpyDtoHAsync_v2");
  bool good = retain(&context, 0) == 0 && current(context) == 0 && make(&stream, 1) == 0;
  good =
      good && alloc(&to[0], sizeof x) == 0 && alloc(&to[1], sizeof y) == 0 && upload(to[0], x, sizeof x, stream) == 0;
  good = good && ok(quern_instance_run_on(instance, stream, (const void *[]){to[0]}, &to[1]));
  good = good && download(y, to[1], sizeof y, stream) == 0 && wait(stream) == 0;
  for (int i = 0; i < 2; i++) release(to[i]);
  return good;
}

int main(int argc, char **argv) {
  struct heap heap = {.limit = 64 << 20};
  quern_context *ctx = NULL;
  quern_program *program = NULL, *saved = NULL;
  quern_instance *instance = NULL, *loaded = NULL, *other = NULL;
  quern_context_options context_options = {.size = sizeof context_options, .allocator = {heap_alloc, heap_free, &heap}};
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = argc > 1 ? argv[1] : "cpu";
  options.inference = true;
  make_numbers();

  bool good = ok(quern_context_new(&ctx, &context_options));
  quern_tensor *result = good ? network(ctx) : NULL;
  good = good && ok(quern_program_compile(&program, ctx, 1, &result, &options));
  quern_context_free(ctx); /* a program needs its context no more */
  good = good && ok(quern_instance_new(&instance, program));

  /* Inputs are bound by name and read where they lie; outputs are written to the app's memory. Runs allocate nothing. */
  good = good && ok(quern_instance_bind(instance, "x", x, sizeof x));
  for (int i = 0; i < 3 && good; i++) good = ok(quern_instance_run_bound(instance, (void *[]){y}));
  size_t calls = heap.calls;
  for (int i = 0; i < RUNS && good; i++) good = ok(quern_instance_run_bound(instance, (void *[]){y}));
  good = good && right("bound by name:");
  printf("%d runs made %zu allocations; %zu KiB in %zu before\n", RUNS, heap.calls - calls, heap.used >> 10, calls);
  good = good && heap.calls == calls;

  /* Saved and loaded: no compiler and no cache are needed where the file is used. Programs for OpenCL have no files. */
  if (good && strcmp(options.device, "opencl") != 0) {
    good = ok(quern_program_save(program, "embed_in_app.program")) &&
           ok(quern_program_load(&saved, "embed_in_app.program"));
    remove("embed_in_app.program");
    good = good && ok(quern_instance_new(&loaded, saved));
    if (good && strcmp(options.device, "cuda") == 0)
      good = run_in_stream(loaded) && right("from a file, in the app's stream:");
    else if (good)
      good = ok(quern_instance_run_on(loaded, NULL, (const void *[]){x}, (void *[]){y})) && right("from a file:");
  }

  /* Errors are values: the app reports them and goes on. */
  printf("three errors on purpose:\n");
  good = good && !ok(quern_instance_bind(instance, "X", x, sizeof x)); /* a name that is not there */
  good = good && !ok(quern_instance_bind(instance, "x", x, 100));      /* a wrong size */
  heap.limit = heap.used;                                              /* no memory */
  good = good && !ok(quern_instance_new(&other, program)) && quern_last_status() == QUERN_STATUS_MEMORY;
  good = good && ok(quern_instance_run_bound(instance, (void *[]){y})) && right("after the errors:");

  quern_instance_free(loaded); /* NULL is fine */
  quern_instance_free(instance);
  quern_program_free(saved);
  quern_program_free(program);
  printf("%zu bytes of the app's memory are in use at the end\n", heap.used);
  return good && heap.used == 0 ? 0 : 1;
}
