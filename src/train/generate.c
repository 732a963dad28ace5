/* train/generate.c -- generators: a language model, its cache of keys and values, and the tokens so far
** A program takes a fixed number of tokens; there are few such numbers, compiled when they are first needed, and all work on the states
** of the first. A piece of fewer tokens is filled up: what stands behind its last token is written over by the next ones, and nobody
** sees it before. Attention reads as many keys as there are (the mask of quern_attention is the position), so the time of a token
** grows with the length in use.
** keeps: the logits of a position have the same bits however tokens were cut into pieces, and without a cache: sums over keys go in
**        blocks of the target's size, and those over anything else depend on what is summed only
** see:   sample.c, weights.c        tests: tests/train/test_generate.c
*/
#include <math.h>
#include <stdio.h>

#include "quern/optim.h"
#include "train/generate.h"

/* Tokens of a piece: with a cache 1, SOME and MANY; without one SOME, doubled as often as need be. */
enum { SOME = 16, MANY = 64, MOST_PIECES = 48, WORD = 32, MOST_INPUTS = 3 };

struct piece {
  int64_t tokens;
  quern_program *program;
  quern_instance *instance;
  int input[MOST_INPUTS]; /* the number of each of inputs[], -1: there is none */
};

struct quern_generator {
  struct base_heap heap;
  quern_lm_options model;
  char activation[WORD], position[WORD], device[WORD]; /* copies of the caller's words */
  quern_dtype low;                                     /* of activations: f32, bf16 or f16 */
  bool no_cache;
  int threads;
  int64_t most, length; /* tokens at most; tokens now */
  int n;
  struct piece pieces[MOST_PIECES];
  int32_t *ids; /* as many as most, and what fills up the last piece */
  size_t n_ids;
  float *logits;    /* of the last token */
  double choice[2]; /* the most likely token after it, and the largest of its logits but for the sign */
  bool known;       /* that choice is; */
  bool copied;      /* and the logits have been copied to the host */
  bool greedy;      /* the last token was the most likely one, so that logits will hardly be asked for */
  void *work;       /* of choosing */
};

static const struct {
  const char *name;
  quern_dtype dtype;
} inputs[MOST_INPUTS] = {{"tokens", QUERN_DTYPE_I32}, {"start", QUERN_DTYPE_I64}, {"last", QUERN_DTYPE_I64}};
enum { TOKENS, START, LAST };

/* ---- programs ---------------------------------------------------------------------------------------------------- */

/* The logits (1, 1, vocabulary) of one of the tokens: the only one, or that of number `last`. */
static quern_tensor *logits_of(quern_generator *g, quern_model *model, const struct piece *p) {
  quern_context *ctx = quern_model_context(model);
  quern_scope *root = quern_model_scope(model);
  quern_lm_options o = g->model;
  quern_tensor *tokens = quern_input(ctx, "tokens", QUERN_DTYPE_I32, 2, (int64_t[]){1, p->tokens});
  if (!g->no_cache) {
    o.cache = g->most;
    o.start = quern_input(ctx, "start", QUERN_DTYPE_I64, 0, NULL);
  }
  quern_tensor *x = quern_lm_hidden(root, tokens, &o, NULL);
  if (p->tokens > 1) {
    quern_tensor *last = quern_input(ctx, "last", QUERN_DTYPE_I64, 0, NULL);
    quern_tensor *zero = quern_scalar_int(ctx, QUERN_DTYPE_I64, 0);
    x = quern_slice_at(x, 3, (quern_tensor *[]){zero, last, zero}, (int64_t[]){1, 1, o.width});
  }
  return quern_lm_logits(root, x, &o);
}

/* The two numbers of g->choice: a device with memory of its own gives them instead of a token's logits. NaN is above all
** numbers. */
static quern_tensor *choice_of(quern_tensor *logits) {
  quern_tensor *best = quern_cast(quern_argmax(logits, 2, false), QUERN_DTYPE_F64);
  quern_tensor *largest = quern_cast(quern_max(quern_abs(logits), QUERN_LIST(2), false), QUERN_DTYPE_F64);
  return quern_concat(2, (quern_tensor *[]){best, largest}, 1);
}

static quern_status compile(quern_generator *g, quern_model *model, struct piece *p) {
  quern_context *ctx = quern_model_context(model);
  quern_tensor *y = logits_of(g, model, p);
  quern_autocast_options low = QUERN_INIT(quern_autocast_options);
  low.low = g->low;
  QUERN_TRY(quern_context_check(ctx));
  if (g->low != QUERN_DTYPE_F32) QUERN_TRY(quern_autocast(model, 1, &y, &y, &low));
  size_t n = quern_model_change_count(model);
  size_t bytes = 2 * (n + 1) * sizeof(quern_update);
  quern_update *changes = base_alloc(&g->heap, bytes);
  if (changes == NULL) return QUERN_STATUS_MEMORY;
  quern_update *updates = changes + n + 1;
  for (size_t i = 0; i < n; i++) updates[i] = changes[i] = quern_model_change(model, i);
  quern_status status = QUERN_STATUS_OK;
  if (g->low != QUERN_DTYPE_F32) status = train_low_states(ctx, g->low, &y, n, changes, updates);
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = g->device[0] != 0 ? g->device : NULL;
  options.threads = g->threads;
  options.inference = true;
  options.n_updates = n;
  options.updates = updates;
  quern_tensor *outputs[] = {y, choice_of(y)};
  if (status == QUERN_STATUS_OK) status = quern_context_check(ctx);
  if (status == QUERN_STATUS_OK) status = quern_program_compile(&p->program, ctx, 2, outputs, &options);
  base_free(&g->heap, changes, bytes);
  return status;
}

static quern_status find_inputs(struct piece *p) {
  for (int k = 0; k < MOST_INPUTS; k++) p->input[k] = -1;
  for (size_t i = 0; i < quern_program_input_count(p->program); i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    QUERN_TRY(quern_program_input(p->program, i, &slot));
    for (int k = 0; k < MOST_INPUTS; k++)
      if (strcmp(slot.name, inputs[k].name) == 0) p->input[k] = (int)i;
  }
  return QUERN_STATUS_OK;
}

/* The program and instance of a piece; with weights the states are filled, else they are those of the first piece. */
static quern_status build(quern_generator *g, struct piece *p, const struct train_weights *weights) {
  quern_context *ctx = NULL;
  quern_model *model = NULL;
  quern_context_options of_ctx = {.size = sizeof of_ctx, .allocator = g->heap.user};
  quern_model_options of_model = QUERN_INIT(quern_model_options);
  of_model.inference = true;
  quern_status status = quern_context_new(&ctx, &of_ctx);
  if (status == QUERN_STATUS_OK) status = quern_model_new(&model, ctx, &of_model);
  if (status == QUERN_STATUS_OK) status = compile(g, model, p);
  if (status == QUERN_STATUS_OK) status = find_inputs(p);
  if (status == QUERN_STATUS_OK)
    status = weights != NULL ? quern_instance_new(&p->instance, p->program)
                             : quern_instance_new_with(&p->instance, p->program, g->pieces[0].instance);
  if (status == QUERN_STATUS_OK && weights != NULL)
    status = train_weights_load(weights, model, p->program, p->instance);
  if (status == QUERN_STATUS_OK) status = quern_instance_zero_states(p->instance); /* caches */
  quern_model_free(model);
  quern_context_free(ctx);
  if (status == QUERN_STATUS_OK) return status;
  quern_program_free(p->program); /* to be tried again */
  quern_instance_free(p->instance);
  p->program = NULL;
  p->instance = NULL;
  return status;
}

/* ---- making ------------------------------------------------------------------------------------------------------- */

static void add_piece(quern_generator *g, int64_t tokens) {
  if (g->n < MOST_PIECES) g->pieces[g->n++] = (struct piece){.tokens = tokens};
}

static void choose_pieces(quern_generator *g) {
  if (!g->no_cache) {
    add_piece(g, 1);
    if (g->most >= SOME) add_piece(g, SOME);
    if (g->most >= MANY) add_piece(g, MANY);
    return;
  }
  int64_t tokens = BASE_MIN(SOME, g->most);
  add_piece(g, tokens);
  while (tokens < g->most) {
    tokens = tokens < g->most / 2 ? 2 * tokens : g->most;
    add_piece(g, tokens);
  }
}

static void copy_word(char dst[WORD], const char *src) { snprintf(dst, WORD, "%s", src != NULL ? src : ""); }

static quern_status take_options(quern_generator *g, const quern_lm_options *model, const quern_generate_options *o) {
  g->model = *model;
  copy_word(g->activation, model->activation);
  copy_word(g->position, model->position);
  copy_word(g->device, o->device);
  g->model.activation = model->activation != NULL ? g->activation : NULL;
  g->model.position = model->position != NULL ? g->position : NULL;
  g->model.start = NULL;
  g->model.cache = 0;
  g->model.dropout = 0;
  g->no_cache = o->no_cache;
  g->threads = o->threads;
  g->most = o->most > 0 ? o->most : model->positions;
  bool any = strcmp(g->position, "rope") == 0 || strcmp(g->position, "none") == 0;
  QUERN_CHECK(o->most >= 0 && (any || o->most <= model->positions), INVALID,
              "generator_open: most is %lld; the model has %lld positions", (long long)o->most,
              (long long)model->positions);
  QUERN_CHECK(g->most >= 1 && g->most <= INT32_MAX && model->vocabulary >= 1 && model->vocabulary <= INT32_MAX, INVALID,
              "generator_open: a model of %lld positions, %lld tokens; both must be 1 to 2^31 - 1", (long long)g->most,
              (long long)model->vocabulary);
  if (any) g->model.positions = BASE_MAX(g->model.positions, g->most);
  return QUERN_STATUS_OK;
}

static quern_status take_precision(quern_generator *g, const char *precision) {
  static const quern_dtype dtypes[] = {QUERN_DTYPE_F32, QUERN_DTYPE_BF16, QUERN_DTYPE_F16};
  for (size_t i = 0; i < BASE_COUNT(dtypes); i++) {
    g->low = dtypes[i];
    if (precision == NULL || strcmp(precision, quern_dtype_name(g->low)) == 0) return QUERN_STATUS_OK;
  }
  return base_error(QUERN_STATUS_INVALID, "generator_open: precision is '%.32s'; must be f32, bf16 or f16", precision);
}

static quern_status open_generator(quern_generator *g, struct train_weights *weights, const quern_lm_options *model,
                                   const quern_generate_options *options) {
  QUERN_TRY(take_options(g, model, options));
  QUERN_TRY(take_precision(g, options->precision));
  size_t words = (size_t)g->model.vocabulary;
  g->n_ids = (size_t)g->most + MANY;
  g->ids = base_alloc_zero(&g->heap, g->n_ids * sizeof *g->ids);
  g->logits = base_alloc_zero(&g->heap, words * sizeof *g->logits);
  g->work = base_alloc(&g->heap, train_sample_bytes(words));
  if (g->ids == NULL || g->logits == NULL || g->work == NULL) return QUERN_STATUS_MEMORY;
  choose_pieces(g);
  train_weights_inspect(weights, model->names);
  return build(g, &g->pieces[0], weights);
}

quern_status train_generator_new(quern_generator **generator, struct train_weights *weights, struct base_heap *heap,
                                 const quern_lm_options *model, const quern_generate_options *options) {
  quern_generator *g = base_alloc_zero(heap, sizeof *g);
  if (g == NULL) return QUERN_STATUS_MEMORY;
  base_heap_init(&g->heap, &heap->user);
  quern_status status = open_generator(g, weights, model, options);
  if (status == QUERN_STATUS_OK)
    *generator = g;
  else
    quern_generator_free(g);
  return status;
}

quern_status quern_generator_open(quern_generator **generator, const char *path, const quern_lm_options *model,
                                  const quern_generate_options *options) {
  QUERN_CHECK(generator != NULL, INVALID, "generator_open: the place for the generator is null");
  *generator = NULL;
  QUERN_CHECK(path != NULL, INVALID, "generator_open: the path is null");
  QUERN_CHECK(model != NULL, INVALID, "generator_open: the model is null");
  quern_lm_options lm = QUERN_INIT(quern_lm_options);
  quern_generate_options o;
  QUERN_TRY(base_take(quern_lm_options, &lm, model, "generator_open"));
  QUERN_TRY(base_take(quern_generate_options, &o, options, "generator_open"));
  struct base_heap heap;
  struct train_weights weights;
  base_heap_init(&heap, &o.allocator);
  quern_status status = train_weights_open(&weights, &heap, path);
  if (status == QUERN_STATUS_OK) status = train_generator_new(generator, &weights, &heap, &lm, &o);
  train_weights_close(&weights);
  return status;
}

void quern_generator_free(quern_generator *g) {
  if (g == NULL) return;
  for (int i = 0; i < g->n; i++) {
    quern_instance_free(g->pieces[i].instance);
    quern_program_free(g->pieces[i].program);
  }
  struct base_heap heap, *memory = &g->heap;
  size_t words = (size_t)g->model.vocabulary;
  base_free(memory, g->ids, g->n_ids * sizeof *g->ids);
  base_free(memory, g->logits, words * sizeof *g->logits);
  base_free(memory, g->work, train_sample_bytes(words));
  base_heap_init(&heap, &g->heap.user);
  base_free(&heap, g, sizeof *g);
}

int64_t quern_generator_most(const quern_generator *g) { return g != NULL ? g->most : 0; }
int64_t quern_generator_vocab(const quern_generator *g) { return g != NULL ? g->model.vocabulary : 0; }

/* ---- use ---------------------------------------------------------------------------------------------------------- */

void quern_generator_reset(quern_generator *g) {
  if (g == NULL) return;
  g->length = 0;
  g->known = false;
}

/* The piece for the next of n tokens that come at that place: the largest that is mostly filled, and has room. */
static struct piece *choose(quern_generator *g, int64_t at, int64_t n) {
  enum { FEW = 4 }; /* one at a time */
  int i = 0;
  if (g->no_cache) {
    while (g->pieces[i].tokens < at + n) i++;
    return &g->pieces[i];
  }
  for (int k = 1; k < g->n; k++)
    if (n > (k > 1 ? g->pieces[k].tokens / 2 : FEW) && at + g->pieces[k].tokens <= g->most) i = k;
  return &g->pieces[i];
}

/* Runs a piece: n tokens from `at` on, those before it known to the cache. Where the logits lie in memory of the device's
** own, they stay there unless they are wanted. */
static quern_status run(quern_generator *g, struct piece *p, int64_t at, int64_t n, bool wanted) {
  if (p->instance == NULL) QUERN_TRY(build(g, p, NULL));
  int64_t start = at, last = n - 1;
  const void *values[MOST_INPUTS] = {g->ids + at, &start, &last}, *ins[MOST_INPUTS];
  bool remote = quern_instance_state(p->instance, 0) == NULL;
  g->copied = wanted || !remote;
  void *outs[] = {g->copied ? g->logits : NULL, g->choice};
  for (int k = 0; k < MOST_INPUTS; k++)
    if (p->input[k] >= 0) ins[p->input[k]] = values[k];
  return quern_instance_run(p->instance, ins, outs);
}

/* The n tokens that stand behind those there are. */
static quern_status take_tokens(quern_generator *g, int64_t n, bool wanted) {
  int64_t at = g->length, end = g->length + n;
  g->known = false;
  if (g->no_cache) {
    QUERN_TRY(run(g, choose(g, 0, end), 0, end, wanted));
    at = end;
  }
  while (at < end) {
    struct piece *p = choose(g, at, end - at);
    int64_t some = BASE_MIN(p->tokens, end - at);
    QUERN_TRY(run(g, p, at, some, wanted && at + some == end));
    at += some;
  }
  g->length = end;
  g->known = true;
  return QUERN_STATUS_OK;
}

/* The logits of the last token, which is taken once more if they are not here: it gives the same bits. */
static quern_status copy_logits(quern_generator *g) {
  if (g->copied) return QUERN_STATUS_OK;
  int64_t n = g->no_cache ? g->length : 1;
  g->length -= n;
  quern_status status = take_tokens(g, n, true);
  if (status != QUERN_STATUS_OK) g->length += n;
  return status;
}

quern_status quern_generator_feed(quern_generator *g, size_t n, const uint32_t *ids, float *logits) {
  QUERN_CHECK(g != NULL, INVALID, "generator_feed: the generator is null");
  QUERN_CHECK(ids != NULL || n == 0, INVALID, "generator_feed: the list of %zu ids is null", n);
  QUERN_CHECK(n <= (size_t)(g->most - g->length), STATE,
              "generator_feed: %zu more tokens after %lld; the generator has room for %lld", n, (long long)g->length,
              (long long)g->most);
  for (size_t i = 0; i < n; i++)
    QUERN_CHECK(ids[i] < (uint64_t)g->model.vocabulary, INVALID, "generator_feed: id %zu is %lu; the model has %lld", i,
                (unsigned long)ids[i], (long long)g->model.vocabulary);
  for (size_t i = 0; i < n; i++) g->ids[(size_t)g->length + i] = (int32_t)ids[i];
  if (n > 0) QUERN_TRY(take_tokens(g, (int64_t)n, logits != NULL || !g->greedy));
  if (logits == NULL) return QUERN_STATUS_OK;
  QUERN_CHECK(g->known, STATE, "generator_feed: there are no logits before the first token");
  QUERN_TRY(copy_logits(g));
  memcpy(logits, g->logits, (size_t)g->model.vocabulary * sizeof *logits);
  return QUERN_STATUS_OK;
}

quern_status quern_generator_next(quern_generator *g, const quern_sampling *sampling, uint32_t *id) {
  QUERN_CHECK(g != NULL, INVALID, "generator_next: the generator is null");
  QUERN_CHECK(id != NULL, INVALID, "generator_next: the place for the id is null");
  *id = 0;
  quern_sampling s;
  QUERN_TRY(train_sampling_take(&s, sampling));
  QUERN_CHECK(g->known, STATE, "generator_next: nothing has been fed that could go on");
  QUERN_CHECK(g->length < g->most, STATE, "generator_next: all %lld places are taken", (long long)g->most);
  uint32_t chosen = (uint32_t)g->choice[0];
  g->greedy = s.temperature == 0;
  if (!g->greedy || !isfinite(g->choice[1])) {
    QUERN_TRY(copy_logits(g));
    QUERN_TRY(train_sample(&s, g->length, (size_t)g->model.vocabulary, g->logits, g->work, &chosen));
  }
  QUERN_TRY(quern_generator_feed(g, 1, &chosen, NULL));
  *id = chosen;
  return QUERN_STATUS_OK;
}
