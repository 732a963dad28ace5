/* runtime/cuda/blas.h -- what the files of cuBLASLt share: the library, a call as it describes one, choices
** see: docs/design/008-libraries.md      tests: tests/runtime/test_blas.c
*/
#ifndef RUNTIME_CUDA_BLAS_H
#define RUNTIME_CUDA_BLAS_H
#include "runtime/cuda/libraries.h"

enum { RT_BLAS_WORDS = 8, RT_BLAS_CHOICES = 8, RT_BLAS_WORK = 32 << 20 /* bytes of workspace at most */ };

/* An algorithm to do a product: the library's result of a question (cublasLtMatmulHeuristicResult_t). */
struct rt_blas_choice {
  uint64_t algorithm[RT_BLAS_WORDS];
  size_t bytes; /* of workspace */
  int state;    /* 0: it can be used */
  float waves;
  int reserved[4];
};

struct rt_blas {
#define BLAS(NAME, SYMBOL, PARAMETERS) int(*NAME) PARAMETERS;
#include "runtime/cuda/blas.def"
#undef BLAS
  void *handle;
  char identity[64]; /* "cuBLASLt 13.1.0" */
};

/* ---- blas_problem.c: a call in the library's terms ------------------------------------------------------------------ */

/* A matrix that lies column after column in a memory. */
struct rt_blas_matrix {
  int mem;
  int64_t at;
  int type;
  size_t size; /* bytes of an element */
  uint64_t rows, columns;
  int64_t leading, batch;
  uint32_t alignment; /* of its first element, bytes */
};

/* d = epilogue(op(a) op(b) + c), all of `batches`. */
struct rt_blas_problem {
  int compute, scale;
  int64_t batches, terms;
  bool transpose_a, transpose_b, add;
  struct rt_blas_matrix a, b, c, d, aux; /* aux.mem KERN_NONE: there is none; c is d when nothing is added */
  int epilogue, bias, bias_type;         /* bias: a memory that is read, or a sum that is written; KERN_NONE */
};
/* UNSUPPORTED with what the library cannot express. */
quern_status rt_blas_problem_make(struct rt_blas_problem *problem, const struct kern *kern) QUERN_NODISCARD;
/* In a line, everything that the choice depends on. */
void rt_blas_problem_print(const struct rt_blas_problem *problem, char *text, size_t bytes);

/* ---- blas.c ---------------------------------------------------------------------------------------------------- */

/* Finds the functions by find, checks the version and makes the handle. UNSUPPORTED with what is wrong. */
quern_status rt_blas_load(struct rt_blas *blas, void *library,
                          void *(*find)(void *library, const char *symbol)) QUERN_NODISCARD;
/* The library of the process. */
quern_status rt_blas_open(struct rt_blas **blas) QUERN_NODISCARD;
/* For tests: what open gives from now on; NULL: the real one. */
void rt_blas_use(struct rt_blas *blas);
/* A status and a message for what a function returned: 0 is OK. */
quern_status rt_blas_check(const struct rt_blas *blas, int code, const char *what) QUERN_NODISCARD;

/* A problem with its descriptors; rt_blas_product_fini in any case. */
struct rt_blas_product {
  struct rt_blas_problem problem;
  void *product, *a, *b, *c, *d;
};
quern_status rt_blas_product_init(struct rt_blas_product *p, const struct rt_blas *blas,
                                  const struct kern *kern) QUERN_NODISCARD;
void rt_blas_product_fini(struct rt_blas_product *p, const struct rt_blas *blas);
/* The algorithms with at most so many bytes of workspace that give the same bits every time and round once, best first as the library thinks.
** *n is at least 1, or UNSUPPORTED. */
quern_status rt_blas_choose(const struct rt_blas_product *p, const struct rt_blas *blas, size_t most,
                            struct rt_blas_choice choices[RT_BLAS_CHOICES], int *n) QUERN_NODISCARD;
/* Does it. Not from two threads at once. */
quern_status rt_blas_product_run(const struct rt_blas_product *p, const struct rt_blas *blas, const uint64_t *algorithm,
                                 void *stream, void *const *mems, void *work, size_t bytes) QUERN_NODISCARD;

/* The functions of the table rt_cuda_blas, of any library. */
quern_status rt_blas_query_algorithm(const struct rt_blas *blas, const struct rt_cuda_driver *driver,
                                     struct base_heap *heap, const struct kern *kern, struct kern_library_call *call,
                                     size_t *bytes) QUERN_NODISCARD;
quern_status rt_blas_plan(const struct rt_blas *blas, struct base_heap *heap, const struct kern *kern,
                          void **plan) QUERN_NODISCARD;
quern_status rt_blas_run(const struct rt_blas *blas, void *plan, void *stream, void *const *mems,
                         void *work) QUERN_NODISCARD;
void rt_blas_plan_free(const struct rt_blas *blas, void *plan);

/* ---- blas_tune.c: which algorithm is fastest, by the clock ----------------------------------------------------------------- */

/* Seconds of each choice, on memories of the kernel's sizes made for it. */
quern_status rt_blas_time(const struct rt_blas_product *p, const struct rt_blas *blas,
                          const struct rt_cuda_driver *driver, struct base_heap *heap, const struct kern *kern,
                          const struct rt_blas_choice *choices, int n, double *seconds) QUERN_NODISCARD;
/* Takes what was found to be fastest before, with at most so many bytes of workspace; with QUERN_TUNE=1 finds it now, and keeps it.
** choices[0] is it then. */
void rt_blas_tune(const struct rt_blas_product *p, const struct rt_blas *blas, const struct rt_cuda_driver *driver,
                  struct base_heap *heap, const struct kern *kern, size_t most, struct rt_blas_choice *choices, int n);

/* ---- measure.c ------------------------------------------------------------------------------------------------- */

/* What the GPU reaches in products; the rest of the rates stays. With the driver's context current. */
quern_status rt_blas_measure(const struct rt_blas *blas, const struct rt_cuda_driver *driver, struct base_heap *heap,
                             struct rt_rates *rates) QUERN_NODISCARD;

#endif
