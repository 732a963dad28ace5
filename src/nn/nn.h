/* nn/nn.h -- what models, scopes and layers share; the public side is quern/nn.h
** A layer enters with NN_ENTER, checks its arguments with NN_CHECK, builds on tensor/, and gives its result through nn_leave, so
** that every message carries the layer's name and the scope's path.
*/
#ifndef NN_NN_H
#define NN_NN_H
#include "quern/nn.h"
#include "tensor/tensor.h"

struct quern_scope {
  quern_model *model;
  const char *path;
  uint64_t calls; /* streams of random numbers given out */
  uint32_t label; /* of the path, in the context; 0: not asked for yet */
};

struct quern_model {
  quern_context *ctx;
  struct base_arena arena; /* scopes, names, parameters */
  quern_dtype dtype;
  bool train;
  uint64_t seed;
  quern_tensor *micro_step; /* of a loop over micro-batches of a step, or NULL */
  int64_t n_micro_steps;
  quern_scope *root;
  struct base_map scopes;         /* by path */
  struct base_map names;          /* of parameters and buffers */
  BASE_VEC(quern_scope *) places; /* all scopes in the order they were made */
  BASE_VEC(quern_parameter *) parameters;
  BASE_VEC(quern_update) changes;
  BASE_VEC(size_t) changed;            /* ids of the nodes that the layers gave which asked for them */
  BASE_VEC(quern_update) forgotten;    /* changes that the last quern_model_begin has dropped */
  BASE_VEC(size_t) dropped;            /* ids of the nodes of the layers that had asked for them */
  size_t forgotten_from, forgotten_to; /* node ids: where their expression began, and where it was over */
  size_t began;                        /* the next node id at the last quern_model_begin */
  uint64_t pin;                        /* in the context: its tensors stay */
};

/* The name of a buffer whose change was forgotten though x was built together with it, or from the layer's result;
** NULL: none. */
const char *nn_forgotten(const quern_model *model, quern_tensor *x);
/* The layer of result y has changed buffers: whoever trains y needs the changes. */
void nn_changed(quern_model *model, quern_tensor *y);

/* ---- a call of a layer (layer.c) ---------------------------------------------------------------------------------- */

struct nn_call {
  quern_context *ctx; /* NULL: the call is wrong */
  quern_scope *scope;
  const char *what; /* the layer's name in messages */
  bool clean;       /* the context had no error before */
  uint32_t label;   /* that the context had before */
};

/* Checks that there is a scope and that the operands, none NULL, are of its context. */
struct nn_call nn_enter(const char *what, quern_scope *scope, int n, quern_tensor *const *xs);
#define NN_ENTER(call, what, scope, ...)                                                                               \
  struct nn_call call =                                                                                                \
      nn_enter((what), (scope), (int)(sizeof((quern_tensor *[]){__VA_ARGS__}) / sizeof(quern_tensor *)),               \
               (quern_tensor *[]){__VA_ARGS__});                                                                       \
  if (call.ctx == NULL) return &ir_poison

/* Records an error as "layer: in path: ..." and returns the poison, or false. */
quern_tensor *nn_fail(const struct nn_call *call, quern_status status, const char *fmt, ...) BASE_PRINTF(3, 4);
bool nn_wrong(const struct nn_call *call, quern_status status, const char *fmt, ...) BASE_PRINTF(3, 4);
#define NN_CHECK(call, cond, CODE, ...)                                                                                \
  do {                                                                                                                 \
    if (!(cond)) return nn_fail(&(call), QUERN_STATUS_##CODE, __VA_ARGS__);                                            \
  } while (0)

/* y; when it is the poison, an error that an operation inside recorded gets the layer's name and path. */
quern_tensor *nn_leave(const struct nn_call *call, quern_tensor *y);

/* Declares o, the options of a call as this version knows them; NULL is all defaults. */
#define NN_OPTIONS(call, T, o, options)                                                                                \
  T o##_taken;                                                                                                         \
  if (!nn_options(&(call), &o##_taken, sizeof(T), (options), #T)) return &ir_poison;                                   \
  const T *o = &o##_taken
bool nn_options(const struct nn_call *call, void *dst, size_t known, const void *options, const char *type);

/* Each false with the error recorded. x of the model's dtype and of at least that
** rank; a size of at least 1; a probability in [0, 1). */
bool nn_operand(const struct nn_call *call, const char *name, const quern_tensor *x, int rank, const char *shape);
bool nn_size(const struct nn_call *call, const char *name, int64_t size);
bool nn_rate(const struct nn_call *call, const char *name, double p);

/* ---- scopes (scope.c) -------------------------------------------------------------------------------------------- */

/* A parameter or a buffer in a scope: the one there is, or a new one. */
quern_tensor *nn_state(quern_scope *scope, const char *what, const char *name, quern_dtype dtype, int rank,
                       const int64_t *dims, quern_parameter about);
/* A buffer that is not saved. */
quern_tensor *nn_cache(quern_scope *scope, const char *name, quern_dtype dtype, int rank, const int64_t *dims);
/* "h.0.attn", or a word for the outermost scope, in messages. */
const char *nn_path(const quern_scope *scope);

/* ---- initial values (init.c) ------------------------------------------------------------------------------------- */

/* NULL, or what is wrong with an init for a shape of that rank. */
const char *nn_init_wrong(quern_init init, int rank);
/* The expression; seed is a u64 scalar. */
quern_tensor *nn_init_value(quern_context *ctx, quern_init init, quern_dtype dtype, int rank, const int64_t *dims,
                            quern_tensor *seed);
/* Elements that one output of a weight (out, in, ..) is made of. */
double nn_fan_in(int rank, const int64_t *dims);
/* given, or PyTorch's: uniform within 1 / sqrt(fan_in), for weights by way of Kaiming with a = sqrt 5. */
quern_init nn_weight_init(const quern_init *given);
quern_init nn_bias_init(const quern_init *given, double fan_in);

/* ---- layers ------------------------------------------------------------------------------------------------------ */

/* A function of a name of quern_nn_activation, or NULL. */
typedef quern_tensor *nn_function(quern_tensor *x);
nn_function *nn_activation_find(const char *name);
bool nn_activation_halves(const char *name); /* swiglu, ... */
/* The names, and how many. */
extern const char *const nn_activation_names[];
extern const size_t nn_activation_count;
/* False with the error recorded unless name is NULL or an activation. */
bool nn_activation_ok(const struct nn_call *call, const char *name);

#endif
