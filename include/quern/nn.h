/* quern/nn.h -- networks: parameters that have names, and layers that use them
** A layer is a function of a scope and an expression: it asks the scope for its parameters and returns an expression. Parameters
** are states with dotted names ("h.0.attn.weight") in PyTorch's orientation. Nothing is computed here.
** Layers return the poison tensor when a call was wrong; the context keeps the first error, with the scope's path.
** docs/nn.md has a table of all layers and says how to write one.
*/
#ifndef QUERN_NN_H
#define QUERN_NN_H
#include "quern/program.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- models and scopes (model.c) -------------------------------------------------------------------------------- */

/* A quern_model holds the parameters of a network, and what a step changes beside them; the type is declared in program.h. */
typedef struct quern_scope quern_scope; /* a place in a model: "h.0.attn"; lives as long as the model */

typedef struct quern_model_options {
  size_t size;
  quern_dtype dtype; /* of parameters; 0 is QUERN_DTYPE_F32 */
  bool inference;    /* dropout drops nothing, batch norms use their running statistics and do not move them */
  uint64_t seed;     /* of initial values and of dropout */
} quern_model_options;

/* options may be NULL. The context must live as long as the model. */
QUERN_API quern_status quern_model_new(quern_model **model, quern_context *ctx,
                                       const quern_model_options *options) QUERN_NODISCARD;
QUERN_API void quern_model_free(quern_model *model);
QUERN_API quern_context *quern_model_context(const quern_model *model); /* NULL of NULL */

/* Another expression over the same parameters begins, for training or not: changes are forgotten, and the numbers of random
** streams start again. So a step is made of a loss before the next expression begins; quern_step_new, quern_step_from
** and quern_autocast refuse what was built before a quern_model_begin that forgot changes of buffers, such as running
** statistics, or later from the results of the layers that had asked for them. */
QUERN_API void quern_model_begin(quern_model *model, bool train);

QUERN_API quern_scope *quern_model_scope(quern_model *model); /* the outermost one, whose names have no dots */
/* A place inside another: "attn" of "h.0" is "h.0.attn". Asked for twice, it is the same one. NULL after an error. Names, here and
** of parameters and buffers, may have dots in them: "0.attn" of "h" is the same place. */
QUERN_API quern_scope *quern_scope_in(quern_scope *scope, const char *name);
QUERN_API quern_scope *quern_scope_at(quern_scope *scope, const char *name, int64_t i); /* "h", 3: "h.3" */
QUERN_API const char *quern_scope_path(const quern_scope *scope);
QUERN_API quern_model *quern_scope_model(const quern_scope *scope);

/* How a parameter begins. fan_in and fan_out are those of its shape as PyTorch counts them: (out, in, window..). */
typedef enum quern_init_kind {
  QUERN_INIT_CONSTANT,         /* a */
  QUERN_INIT_UNIFORM,          /* in [a, b) */
  QUERN_INIT_NORMAL,           /* mean a, standard deviation b */
  QUERN_INIT_TRUNCATED_NORMAL, /* the same, kept within two standard deviations by the inverse of the distribution */
  QUERN_INIT_XAVIER_UNIFORM,   /* gain a (0: 1): Glorot and Bengio 2010 */
  QUERN_INIT_XAVIER_NORMAL,
  QUERN_INIT_KAIMING_UNIFORM, /* of leaky slope a, by fan_in: He et al. 2015; PyTorch's default of weights has a = sqrt 5 */
  QUERN_INIT_KAIMING_NORMAL,
  QUERN_INIT_ORTHOGONAL /* gain a (0: 1): rows or columns, whichever are fewer, of (first axis, the others) */
} quern_init_kind;
typedef struct quern_init {
  quern_init_kind kind;
  double a, b;
} quern_init;

/* A trained parameter of the model's dtype. The same name and shape again give the same one, with the init of the first time;
** another shape is an error. */
QUERN_API quern_tensor *quern_scope_parameter(quern_scope *scope, const char *name, int rank, const int64_t *dims,
                                              quern_init init);
/* A state that is kept and saved but not trained, such as running statistics; it begins as value. */
QUERN_API quern_tensor *quern_scope_buffer(quern_scope *scope, const char *name, quern_dtype dtype, int rank,
                                           const int64_t *dims, double value);
/* After a step the buffer holds the value; of several changes the last. */
QUERN_API void quern_scope_change(quern_scope *scope, quern_tensor *buffer, quern_tensor *value);
/* What the buffer holds after the changes so far: the value of the last, or the buffer itself. */
QUERN_API quern_tensor *quern_scope_value(quern_scope *scope, quern_tensor *buffer);
/* A stream of random numbers: of the model's seed, the model's step, the scope's path and the number of the call there. The
** first three fields are set. */
QUERN_API quern_random quern_scope_random(quern_scope *scope);
QUERN_API bool quern_scope_train(const quern_scope *scope);

/* The step as a u64 scalar: a buffer named "step", which optimizers count. */
QUERN_API quern_tensor *quern_model_step(quern_model *model);
/* Inside a loop that makes a step of several iterations: iteration is an integer scalar, 0 to n - 1, and random streams of every
** iteration are their own, as if each were a step. NULL: the step alone, as at the start. */
QUERN_API void quern_model_iteration(quern_model *model, quern_tensor *iteration, int64_t n);

/* Parameters and buffers in the order they were made. */
typedef struct quern_parameter {
  size_t size;
  const char *name;
  quern_tensor *tensor;
  bool trained;
  bool saved; /* false of caches, which begin anew */
  quern_init init;
} quern_parameter;
QUERN_API size_t quern_model_parameter_count(const quern_model *model);
QUERN_API quern_status quern_model_parameter(const quern_model *model, size_t i,
                                             quern_parameter *parameter) QUERN_NODISCARD;
QUERN_API const quern_parameter *quern_model_find(const quern_model *model, const char *name); /* NULL: there is none */
QUERN_API int64_t quern_model_element_count(const quern_model *model); /* elements of all that are trained */
/* The value a parameter begins with, as an expression: the same for the same seed and name, whatever else the model has. */
QUERN_API quern_tensor *quern_model_initial(quern_model *model, size_t i);
/* What a step changes in buffers, in the order of the calls. */
QUERN_API size_t quern_model_change_count(const quern_model *model);
QUERN_API quern_update quern_model_change(const quern_model *model, size_t i); /* both NULL: there is none */

/* ---- layers: what they need to know of sizes comes from x. Options may be NULL; fields that are 0 have the default ----- */

/* An activation by name: relu, gelu, ...; softmax and log_softmax are of the last axis, glu, swiglu, geglu and reglu halve it;
** "none" is x. docs/nn.md lists all. */
QUERN_API quern_tensor *quern_nn_activation(quern_tensor *x, const char *name);

typedef struct quern_nn_linear_options {
  size_t size;
  bool no_bias;
  const char *activation;                    /* of the result; NULL: none */
  const quern_init *weight_init, *bias_init; /* NULL: PyTorch's */
  bool no_fuse;                              /* the activation is a kernel of its own, of what lies in memory */
} quern_nn_linear_options;
/* x (.., in) -> (.., out): weight (out, in), bias (out,). */
QUERN_API quern_tensor *quern_nn_linear(quern_scope *scope, quern_tensor *x, int64_t out,
                                        const quern_nn_linear_options *options);
/* y[.., k] = a[.., i] weight[k, i, j] b[.., j] + bias[k]. */
QUERN_API quern_tensor *quern_nn_bilinear(quern_scope *scope, quern_tensor *a, quern_tensor *b, int64_t out,
                                          const quern_nn_linear_options *options);

typedef struct quern_nn_mlp_options {
  size_t size;
  int64_t out;            /* 0: as wide as x */
  const char *activation; /* NULL: relu. Of swiglu, geglu, reglu, glu linear1 is twice as wide */
  bool no_bias;
  double dropout; /* after the activation */
  const quern_init *weight_init, *bias_init;
} quern_nn_mlp_options;
/* linear2(activation(linear1(x))): linear1 (hidden, in), linear2 (out, hidden). */
QUERN_API quern_tensor *quern_nn_mlp(quern_scope *scope, quern_tensor *x, int64_t hidden,
                                     const quern_nn_mlp_options *options);

typedef struct quern_nn_embedding_options {
  size_t size;
  bool padded; /* ids equal to padding give zeros, and no gradient; false: that must be 0 */
  int64_t padding;
  const quern_init *init; /* NULL: normal, mean 0, standard deviation 1 */
} quern_nn_embedding_options;
/* ids (..) of integers -> (.., width): weight (rows, width). */
QUERN_API quern_tensor *quern_nn_embedding(quern_scope *scope, quern_tensor *ids, int64_t rows, int64_t width,
                                           const quern_nn_embedding_options *options);
/* The way back by the same weight: x (.., width) -> (.., rows). options as in quern_nn_embedding; only init counts. */
QUERN_API quern_tensor *quern_nn_unembed(quern_scope *scope, quern_tensor *x, int64_t rows,
                                         const quern_nn_embedding_options *options);
/* x (.., S, C) plus rows start.. of weight (most, C), learned, or of a table of sines. start: an integer scalar, clamped so that
** the rows lie inside; NULL: 0. */
QUERN_API quern_tensor *quern_nn_position(quern_scope *scope, quern_tensor *x, int64_t most, quern_tensor *start,
                                          const quern_nn_embedding_options *options);
QUERN_API quern_tensor *quern_nn_position_sinusoidal(quern_scope *scope, quern_tensor *x, int64_t most,
                                                     quern_tensor *start);

typedef struct quern_nn_conv_options {
  size_t size;
  int64_t stride[3], padding[3], dilation[3];
  int64_t output_padding[3]; /* of conv_transpose */
  int64_t groups;
  bool same;                /* instead of padding: as much as keeps the size; stride 1 */
  const char *padding_mode; /* zeros (NULL), reflect, replicate, circular; conv_transpose: zeros */
  bool no_bias;
  const quern_init *weight_init, *bias_init;
} quern_nn_conv_options;
/* x (N, C, ..) with n = 1 to 3 spatial axes, as many as the window has: quern_nn_conv(scope, x, 64, QUERN_LIST(3, 3), NULL).
** weight (out, C / groups, ..), of conv_transpose (C, out / groups, ..); bias (out,). */
QUERN_API quern_tensor *quern_nn_conv(quern_scope *scope, quern_tensor *x, int64_t out, int n, const int64_t *window,
                                      const quern_nn_conv_options *options);
QUERN_API quern_tensor *quern_nn_conv_transpose(quern_scope *scope, quern_tensor *x, int64_t out, int n,
                                                const int64_t *window, const quern_nn_conv_options *options);

typedef struct quern_nn_norm_options {
  size_t size;
  double eps;      /* 0: 1e-5; of rms_norm the epsilon of x's dtype */
  int axes;        /* layer_norm, rms_norm: how many of the last axes; 0: 1 */
  double momentum; /* batch_norm: 0: 0.1; negative: the average of all batches so far */
  bool no_affine;  /* without weight and bias */
  bool no_bias;
  bool no_tracking; /* batch_norm: no running statistics, those of the batch always */
} quern_nn_norm_options;
QUERN_API quern_tensor *quern_nn_layer_norm(quern_scope *scope, quern_tensor *x, const quern_nn_norm_options *options);
QUERN_API quern_tensor *quern_nn_rms_norm(quern_scope *scope, quern_tensor *x, const quern_nn_norm_options *options);
/* x (N, C, ..): weight and bias (C,); running_mean, running_var (C,) and num_batches_tracked, which training changes. */
QUERN_API quern_tensor *quern_nn_batch_norm(quern_scope *scope, quern_tensor *x, const quern_nn_norm_options *options);
QUERN_API quern_tensor *quern_nn_group_norm(quern_scope *scope, quern_tensor *x, int64_t groups,
                                            const quern_nn_norm_options *options);

/* As in PyTorch, an instance norm has neither weight and bias nor running statistics unless they are asked for. */
typedef struct quern_nn_instance_norm_options {
  size_t size;
  double eps;      /* 0: 1e-5 */
  double momentum; /* 0: 0.1 */
  bool affine;     /* weight and bias (C,) */
  bool no_bias;
  bool tracking; /* running statistics, used when not training */
} quern_nn_instance_norm_options;
QUERN_API quern_tensor *quern_nn_instance_norm(quern_scope *scope, quern_tensor *x,
                                               const quern_nn_instance_norm_options *options);

/* In training x / (1 - p) with probability 1 - p, else 0; x otherwise. The mask is a function of the model's seed and step, the
** scope's path and the number of the call there. */
QUERN_API quern_tensor *quern_nn_dropout(quern_scope *scope, quern_tensor *x, double p);
QUERN_API quern_tensor *quern_nn_dropout_spatial(quern_scope *scope, quern_tensor *x,
                                                 double p); /* whole channels of x (N, C, ..) */

typedef enum quern_rnn_kind { QUERN_RNN_TANH, QUERN_RNN_RELU, QUERN_RNN_LSTM, QUERN_RNN_GRU } quern_rnn_kind;
typedef struct quern_rnn_state { /* before and after. NULL before: zeros; the poison after a wrong call */
  quern_tensor *h;               /* (layers x directions, B, hidden or projection); of a cell (B, hidden) */
  quern_tensor *c;               /* LSTM: (layers x directions, B, hidden); of a cell (B, hidden) */
} quern_rnn_state;
typedef struct quern_nn_rnn_options {
  size_t size;
  int layers; /* 0: 1 */
  bool no_bias, batch_first, bidirectional;
  double dropout;     /* between layers */
  int64_t projection; /* LSTM: h is made this wide; 0: hidden */
} quern_nn_rnn_options;
/* x (T, B, in), or (B, T, in) when batch_first -> (T, B, directions x hidden). weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0,
** .._reverse, .._l1: gates i f g o of LSTM, r z n of GRU. state may be NULL. */
QUERN_API quern_tensor *quern_nn_rnn(quern_scope *scope, quern_tensor *x, int64_t hidden, quern_rnn_kind kind,
                                     quern_rnn_state *state, const quern_nn_rnn_options *options);
/* One step: x (B, in) -> h (B, hidden), which state gets, too. weight_ih, weight_hh, bias_ih, bias_hh. */
QUERN_API quern_tensor *quern_nn_rnn_cell(quern_scope *scope, quern_tensor *x, int64_t hidden, quern_rnn_kind kind,
                                          quern_rnn_state *state, const quern_nn_rnn_options *options);

typedef struct quern_nn_attention_options {
  size_t size;
  int64_t kv_heads;     /* of keys and values; 0: as many as of queries, 1: multi-query */
  quern_tensor *memory; /* (B, T, M), which keys and values are made of; NULL: x */
  quern_tensor *mask; /* bool (true: seen) or a float added to the scores, broadcast to (B, heads, S, T); NULL: none */
  bool causal;        /* query i sees keys up to i + (T - S) */
  bool no_bias;
  double dropout;        /* of the attention weights */
  double scale;          /* 0: 1 / sqrt(width of a head) */
  double rope;           /* the base of rotary positions, such as 10000; 0: none */
  bool rope_interleaved; /* pairs (2i, 2i + 1) instead of (i, i + D/2) */
  /* A cache of keys and values: buffers cache_k and cache_v of (B, kv_heads, cache, width of a head). x is written at position,
  ** and query i sees what is at 0 .. position + i, or with open all that is written. position + S must not exceed cache. */
  int64_t cache;
  int64_t cache_used; /* only places below this one are looked at; 0: all. position + S must not exceed it */
  bool open;
  quern_tensor *position; /* an integer scalar: where x begins; NULL: 0. Also of rope without a cache */
} quern_nn_attention_options;
/* x (B, S, E) -> (B, S, E). in_proj_weight (3 E, E), in_proj_bias (3 E,), out_proj.weight (E, E), out_proj.bias (E,); with fewer
** kv_heads, or memory of another width M: q_proj_weight (E, E), k_proj_weight, v_proj_weight (kv_heads E / heads, M) instead of
** in_proj_weight. */
QUERN_API quern_tensor *quern_nn_attention(quern_scope *scope, quern_tensor *x, int64_t heads,
                                           const quern_nn_attention_options *options);
/* The same without projections: q (B, S, heads D), k and v (B, T, kv_heads D) -> (B, S, heads D). */
QUERN_API quern_tensor *quern_nn_attend(quern_scope *scope, quern_tensor *q, quern_tensor *k, quern_tensor *v,
                                        int64_t heads, const quern_nn_attention_options *options);

typedef struct quern_nn_transformer_options {
  size_t size;
  int64_t hidden;         /* of the feed-forward part; 0: 2048 */
  const char *activation; /* as in quern_nn_mlp_options */
  bool norm_first;        /* pre-norm */
  bool rms;               /* RMSNorm instead of LayerNorm */
  bool no_bias;
  double eps;     /* of the norms; 0: as in quern_nn_norm_options */
  double dropout; /* of attention weights, unless attention is given, and of all three parts */
  const quern_nn_attention_options *attention,
      *cross; /* NULL: plain; cross: of a decoder's memory, whose memory is set */
} quern_nn_transformer_options;
/* x (B, S, E) -> (B, S, E): self_attn, linear1, linear2, norm1, norm2. */
QUERN_API quern_tensor *quern_nn_transformer_encoder(quern_scope *scope, quern_tensor *x, int64_t heads,
                                                     const quern_nn_transformer_options *options);
/* The same with attention to memory (B, T, M): multihead_attn, norm3. Causal, unless attention is given. */
QUERN_API quern_tensor *quern_nn_transformer_decoder(quern_scope *scope, quern_tensor *x, quern_tensor *memory,
                                                     int64_t heads, const quern_nn_transformer_options *options);

/* A step of a sequence: a layer by name, or a function. */
typedef quern_tensor *quern_nn_layer(quern_scope *scope, quern_tensor *x, void *user);
typedef struct quern_nn_step {
  const char
      *kind; /* linear, conv, conv_transpose, mlp, layer_norm, rms_norm, batch_norm, group_norm, instance_norm, dropout,
                    ** dropout_spatial, flatten, max_pool, avg_pool, adaptive_max_pool, adaptive_avg_pool, encoder, or an
                    ** activation; NULL: layer */
  int64_t out;           /* linear, conv, conv_transpose: features; mlp: hidden; group_norm: groups; encoder: heads */
  int n;                 /* conv, conv_transpose, adaptive pools: spatial axes */
  int64_t window[3];     /* conv, conv_transpose: of the window; adaptive pools: sizes */
  double p;              /* dropout, dropout_spatial */
  const void *options;   /* the layer's, or NULL */
  quern_nn_layer *layer; /* when kind is NULL, with user */
  void *user;
} quern_nn_step;
/* Step i is in the scope "i". */
QUERN_API quern_tensor *quern_nn_sequential(quern_scope *scope, quern_tensor *x, int n, const quern_nn_step *steps);

#ifdef __cplusplus
}
#endif

#ifndef QUERN_NO_PLACE
#include "quern/nn_place.h"
#endif
#endif
