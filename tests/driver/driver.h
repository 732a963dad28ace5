/* driver/driver.h -- what the files of the operation driver share
** A case is a line of text, "OP DTYPES SHAPES key=value ..."; one dtype of it makes a test_case. An instance
** is a test_case built in a context of its own, with its inputs filled. Modes run instances and count what
** passed.
** see: main.c (options), builders.def (operations), tests/op/README.md (the form of a line)
*/
#ifndef DRIVER_DRIVER_H
#define DRIVER_DRIVER_H
#include "ir/ir.h"
#include "quern/grad.h"

enum { CASE_OPERANDS = 8, CASE_KEYS = 20, CASE_OUTPUTS = 8 };

struct shape {
  int rank;
  int64_t dims[QUERN_MAX_RANK];
};
struct ints {
  int n;
  int64_t at[QUERN_MAX_RANK];
};

/* ---- cases (case.c) ------------------------------------------------------------------------------------ */

struct test_case {
  const struct builder *builder;
  quern_dtype dtype;
  const char *text; /* "SHAPES key=value ...": all of the line that is not the operation or the dtype */
  const char *file; /* where it stands; NULL: the command line */
  int line;
  int n_shapes;
  struct shape shapes[CASE_OPERANDS];
  int n_keys;
  struct {
    const char *name, *value;
  } keys[CASE_KEYS];
};

struct case_list {
  struct test_case *at;
  size_t n, cap;
};

/* Adds the cases of a line; false after saying on stderr what is wrong with it. */
bool case_parse(struct case_list *list, const char *line, const char *file, int number);
/* Adds the cases of a file. */
bool case_read(struct case_list *list, const char *path);

/* The value of a key, or the fallback. */
const char *case_text(const struct test_case *c, const char *key, const char *fallback);
int64_t case_int(const struct test_case *c, const char *key, int64_t fallback);
double case_real(const struct test_case *c, const char *key, double fallback);
/* Numbers separated by commas; none when the key is absent. */
struct ints case_ints(const struct test_case *c, const char *key);
/* Item i of a comma-separated value; a single item stands for all. "" when absent. */
void case_item(const struct test_case *c, const char *key, int i, char *item, size_t bytes);
/* "2x3", "-" for a scalar; false when malformed. end may be NULL: the text must end there. */
bool shape_parse(const char *text, const char **end, struct shape *shape);
char *shape_print(char *buffer, size_t bytes, int rank, const int64_t *dims);
/* The line that runs one case in a mode. */
void case_repro(const struct test_case *c, const char *mode);
/* Whether a mode of differentiation is meant to run on the case: not on special or tied inputs, nor where
** the line says no. */
bool case_differentiable(const struct test_case *c, const char *mode);

/* ---- inputs (gen.c) ------------------------------------------------------------------------------------ */

/* Fills n elements by a generator, a function of the case, the operand and the element only; false: no such
** generator. */
bool gen_fill(const struct test_case *c, const char *generator, int operand, quern_dtype dtype, int64_t n, void *data);
/* n doubles of a standard normal, for weights and tangents. */
void gen_normal(const struct test_case *c, uint32_t stream, int64_t n, double *data);

/* ---- builders (builders.c, builders.def) --------------------------------------------------------------- */

struct args {
  quern_context *ctx;
  const struct test_case *c;
  quern_dtype dtype;
  int n;                          /* operands */
  quern_tensor *x[CASE_OPERANDS]; /* NULL beyond n */
  quern_tensor *y[CASE_OUTPUTS];  /* to fill */
  struct ints pool[32];           /* lists of keys in use */
  int n_pool;
  quern_random from;
};

struct builder {
  const char *name;
  /* A letter an operand: x the case's dtype, differentiable; c the case's dtype, constant; i an integer
  ** index (key index=i32 for its dtype); b bool; s u64. Those after | may be missing; * repeats the last. */
  const char *roles;
  const char *domain;           /* generators of float and index operands, separated by commas */
  int (*build)(struct args *a); /* fills y and returns how many, or 0 after an error */
};
extern const struct builder builders[];
extern const size_t builder_count;
const struct builder *builder_find(const char *name);
const char *builder_nearest(const char *name);
/* The role of operand i, or 0 when there is no such operand. */
char builder_role(const struct builder *b, int i);

/* ---- instances (instance.c) ---------------------------------------------------------------------------- */

struct instance {
  const struct test_case *c;
  quern_context *ctx;
  int n_leaves, n_out;
  quern_tensor *leaf[CASE_OPERANDS]; /* operand i is a view of leaf i */
  void *data[CASE_OPERANDS];
  quern_tensor *out[CASE_OUTPUTS];
  int n_diff, diff[CASE_OPERANDS]; /* the leaves to differentiate by */
  bool shares;                     /* its context is that of others too */
};

/* Builds a case in a new context; false after printing what failed. */
bool instance_open(struct instance *in, const struct test_case *c);
/* The same in a context that others share, if it can be; random numbers are as in a context of its own. */
bool instance_open_in(struct instance *in, const struct test_case *c, quern_context *ctx);
void instance_close(struct instance *in);
/* dst[i] = the elements of roots[i]; more feeds may follow those of the leaves. */
quern_status instance_eval(const struct instance *in, size_t n, quern_tensor *const *roots, void *const *dst,
                           size_t n_more, const quern_feed *more) QUERN_NODISCARD;
/* Memory for the elements of n tensors, to be freed by buffers_free. */
void buffers_new(size_t n, quern_tensor *const *tensors, void **dst);
void buffers_free(size_t n, void **dst);
/* The feeds of its leaves, as far as they are not constants. */
size_t instance_feeds(const struct instance *in, quern_feed *feeds);

/* ---- programs (device.c) ------------------------------------------------------------------------------- */

/* A way to compile and run. */
struct way {
  const char *name, *device;
  int optimize, threads;
  const char *passes; /* or NULL */
  bool poison;        /* dead bytes are overwritten */
  bool tight;         /* the memory limit is a little less than needed otherwise; if nothing fits that, no limit */
  bool watched;       /* memory must grow as planned, and the second run allocate nothing */
  const char *target; /* NULL: the device's own */
};

/* What of an instance is to be computed. */
struct job {
  const struct instance *in;
  size_t n;
  quern_tensor *const *roots;
  void *const *dst;
  size_t n_more;
  const quern_feed *more; /* beside those of the leaves */
};

/* The name of a device's own target; NULL when it has none that works. */
const char *device_target(const char *device);
/* Compiles all jobs, those of one context as one program, and runs them twice; both times the bits must be the same. */
quern_status device_run(const struct way *way, size_t n, const struct job *jobs) QUERN_NODISCARD;

/* Compiles all jobs, those of one context as one program, and no more. */
quern_status device_compile(const struct way *way, size_t n, const struct job *jobs) QUERN_NODISCARD;

enum { BATCH = 48 };

/* ---- modes --------------------------------------------------------------------------------------------- */

struct options {
  const char *mode, *root, *python, *reference, *keep;
  const char *peer;   /* of mode ulp: a Python program that computes the same, or NULL */
  const char *device; /* "ref": the evaluator; else that of programs */
  const char *target; /* of programs; NULL: the device's own; of mode compile several, separated by commas */
  int optimize;
  bool quick; /* of mode compile: kernels for CUDA many at a time, little optimized */
  unsigned long repeat_start,
      repeat_every; /* of mode compile: of texts that an earlier target had, every N-th; 0: all */
  bool verbose;
};
struct tally {
  size_t passed, failed, skipped;
};

typedef void mode_run(const struct options *options, const struct case_list *cases, struct tally *tally);
/* Whether the mode runs programs on a device. */
static inline bool on_device(const struct options *options) { return strcmp(options->device, "ref") != 0; }
mode_run mode_grad_device, mode_bits_device;
/* The outputs of an instance, and its gradients: those of the sum of its float results (mode_bits.c). */
enum { ROOTS = CASE_OUTPUTS + CASE_OPERANDS };
quern_status roots_of(const struct instance *in, quern_tensor **roots, size_t *n) QUERN_NODISCARD;
/* The first element in which two results of a type differ, NaNs being equal, or -1 (mode_bits.c). */
int64_t first_difference(const quern_tensor *t, const void *a, const void *b);

mode_run mode_value, mode_grad, mode_grad2, mode_jvp, mode_bits, mode_ulp, mode_list, mode_coverage, mode_dump,
    mode_memory, mode_compile;
int bench_build(void);

/* Counts a case; a failed one prints the message and its repro line. */
void tally_pass(struct tally *tally);
void tally_skip(struct tally *tally);
void tally_fail(struct tally *tally, const struct test_case *c, const char *mode, const char *fmt, ...)
    BASE_PRINTF(4, 5);

/* Memory of the driver; it exits when there is none. */
void *grab(size_t bytes);

#endif
