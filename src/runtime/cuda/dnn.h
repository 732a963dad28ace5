/* runtime/cuda/dnn.h -- attention and convolutions by cuDNN: the library, and plans of calls
** see: docs/design/008-libraries.md
*/
#ifndef RUNTIME_CUDA_DNN_H
#define RUNTIME_CUDA_DNN_H
#include "kern/kern.h"

enum {
#define NUMBER(NAME, VALUE) RT_DNN_##NAME = (VALUE),
#include "runtime/cuda/dnn.def"
#undef NUMBER
  RT_DNN_OLDEST = 91002, /* 9.10.2; those before have faults that concern attention */
  RT_DNN_ANY_KEY_COUNT =
      91600,        /* from here on backward takes any number of keys; before, those of a block must be masked */
  RT_DNN_MOST = 160 /* descriptors of a plan */
};

/* The library. Plans are for its handle's device or, without a handle, for the device that a descriptor describes: these cannot be run. */
struct rt_dnn {
#define DNN(RESULT, NAME, SYMBOL, PARAMETERS) RESULT(*NAME) PARAMETERS;
#include "runtime/cuda/dnn.def"
#undef DNN
  void *handle, *device;
  /* n words of the device's memory become `word`, on a stream: the driver's. */
  int (*fill)(uint64_t at, unsigned word, size_t n, void *stream);
  char identity[64];
};

/* Finds the library and its functions, and makes no handle; UNSUPPORTED with what is missing. */
quern_status rt_dnn_load(struct rt_dnn *dnn) QUERN_NODISCARD;
/* UNSUPPORTED when that version is too old; else identity is filled. */
quern_status rt_dnn_check_version(struct rt_dnn *dnn) QUERN_NODISCARD;
/* A status and a message for what a function returned: 0 is OK. */
quern_status rt_dnn_check(const struct rt_dnn *dnn, int code, const char *what) QUERN_NODISCARD;

struct rt_cuda_driver;
/* (of tests, when no plan is in use) A library in the place of the device's; NULL: the real one again, when it is asked
** for. */
quern_status rt_dnn_use(struct rt_cuda_driver *driver, const struct rt_dnn *dnn) QUERN_NODISCARD;

/* Numbers of a plan's tensors. Those before RT_DNN_SCALE are the call's, the next are numbers of the host, those from RT_DNN_SUMS on
** lie in the workspace. */
enum rt_dnn_id {
  RT_DNN_Q = 1,
  RT_DNN_K,
  RT_DNN_V,
  RT_DNN_Y,
  RT_DNN_LSE,
  RT_DNN_DY,
  RT_DNN_DQ,
  RT_DNN_DK,
  RT_DNN_DV,
  RT_DNN_SCALE,
  RT_DNN_LOW,    /* the score of what is masked */
  RT_DNN_NO_KEY, /* the score of keys beyond the last */
  RT_DNN_ONE,
  RT_DNN_QUERIES,
  RT_DNN_KEYS,
  RT_DNN_SUMS,        /* of dy y */
  RT_DNN_DQ_SUMS,     /* dq in f32 */
  RT_DNN_ALL_QUERIES, /* how many each sample has */
  RT_DNN_ALL_KEYS,
  RT_DNN_IDS,
  RT_DNN_X = RT_DNN_Q, /* of a convolution */
  RT_DNN_W = RT_DNN_K,
  RT_DNN_CONV_Y = RT_DNN_V
};

/* How a call is done. */
struct rt_dnn_plan {
  const struct rt_dnn *dnn;
  int n_made;
  void *made[RT_DNN_MOST]; /* descriptors, which it owns */
  void *plan;
  int config, n_configs; /* which of how many algorithms that were advised */
  int64_t bytes, own;    /* of the workspace: `own` of the library, then tensors */
  int n_tensors;         /* that it is given when it runs */
  int64_t id[RT_DNN_IDS];
  int mem[RT_DNN_IDS];    /* by place in id: the memory, or -1 of numbers, or -2 of the workspace */
  int64_t at[RT_DNN_IDS]; /* and the byte there */
  float scale, low, one;
  int32_t queries, keys, batch;
};

/* A plan of kern->call, whose memories kern has. config: the first algorithm to be tried, and most: bytes the workspace may have. UNSUPPORTED:
** there is none. A plan that failed has nothing to be freed. (dnn_plan.c) */
quern_status rt_dnn_plan_make(struct rt_dnn_plan *plan, const struct rt_dnn *dnn, const struct kern *kern, int config,
                              int64_t most) QUERN_NODISCARD;
/* The same in two steps: the algorithm is chosen and the workspace known; then the library compiles, which takes long, and may be done by any
** thread with the driver's context current. */
quern_status rt_dnn_plan_begin(struct rt_dnn_plan *plan, const struct rt_dnn *dnn, const struct kern *kern, int config,
                               int64_t most) QUERN_NODISCARD;
quern_status rt_dnn_plan_finish(struct rt_dnn_plan *plan) QUERN_NODISCARD;
/* A finished plan as text, n bytes of heap; and a plan from the text of one of the same call, GPU and version, which takes no time. */
quern_status rt_dnn_plan_text(const struct rt_dnn_plan *plan, struct base_heap *heap, char **text,
                              size_t *n) QUERN_NODISCARD;
quern_status rt_dnn_plan_restore(struct rt_dnn_plan *plan, const struct rt_dnn *dnn, const struct kern *kern,
                                 const char *text, size_t n) QUERN_NODISCARD;
void rt_dnn_plan_free(struct rt_dnn_plan *plan);
/* On the library's handle. mems: of the kernel. */
quern_status rt_dnn_plan_run(const struct rt_dnn_plan *plan, void *stream, void *const *mems,
                             void *work) QUERN_NODISCARD;

/* The operations of a call, in order: the graph that the library knows as attention (dnn_graph.c), or a convolution (dnn_conv.c). A
** failure is remembered. */
struct rt_dnn_graph {
  struct rt_dnn_plan *plan;
  const struct kern_attention *call; /* NULL of a convolution */
  const struct kern_conv *conv;      /* NULL of attention */
  unsigned refused;                  /* bits of notes: engines that have one are not taken */
  int dtype;                         /* of elements */
  bool back;
  int n_ops;
  void *ops[RT_DNN_MOST];
  int64_t next; /* number of the next virtual tensor */
  int64_t work; /* bytes of tensors in the workspace */
  quern_status failed;
};
void rt_dnn_graph_build(struct rt_dnn_graph *g);
void rt_dnn_conv_build(struct rt_dnn_graph *g);
/* A new descriptor of the plan; NULL after a failure. */
void *rt_dnn_make(struct rt_dnn_graph *g, int type);
void rt_dnn_set(struct rt_dnn_graph *g, void *descriptor, int name, int type, int64_t n, const void *at);
void rt_dnn_finish(struct rt_dnn_graph *g, void *descriptor);

#endif
