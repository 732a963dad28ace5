/* tests/train/generate_test.h -- language models with random parameters: in files, and computed without a cache */
#ifndef TESTS_TRAIN_GENERATE_TEST_H
#define TESTS_TRAIN_GENERATE_TEST_H
#include <math.h>
#include <unistd.h>

#include "quern/generate.h"
#include "quern/quern.h"
#include "unit.h"

enum { MOST_TENSORS = 128 };

/* Parameters by name, in memory of the C library's. */
struct weights {
  size_t n;
  quern_safetensor at[MOST_TENSORS];
};

static inline void weights_free(struct weights *w) {
  for (size_t i = 0; i < w->n; i++) {
    free((void *)w->at[i].name);
    free((void *)w->at[i].dims);
    free((void *)w->at[i].data);
  }
  w->n = 0;
}

static inline void weights_add(struct weights *w, const char *name, int rank, const int64_t *dims, float *data) {
  assert_true(w->n < MOST_TENSORS);
  int64_t *copy = malloc(8 * sizeof *copy);
  char *word = malloc(strlen(name) + 1);
  memcpy(copy, dims, (size_t)rank * sizeof *dims);
  strcpy(word, name);
  w->at[w->n++] = (quern_safetensor){.name = word, .dtype = QUERN_DTYPE_F32, .rank = rank, .dims = copy, .data = data};
}

static inline size_t weights_count(const quern_safetensor *t) {
  size_t n = 1;
  for (int i = 0; i < t->rank; i++) n *= (size_t)t->dims[i];
  return n;
}

/* Random parameters of a model; those of norms are near 1. */
static inline void weights_make(struct weights *w, const quern_lm_options *o) {
  quern_model *model;
  quern_context *own = test_context();
  EXPECT_OK(quern_model_new(&model, own, NULL));
  quern_scope *root = quern_model_scope(model);
  quern_tensor *tokens = quern_input(own, "tokens", QUERN_DTYPE_I32, QUERN_LIST(1, 1));
  (void)quern_lm_logits(root, quern_lm_hidden(root, tokens, o, NULL), o);
  EXPECT_OK(quern_context_check(own));
  w->n = 0;
  for (size_t i = 0; i < quern_model_parameter_count(model); i++) {
    quern_parameter p = QUERN_INIT(quern_parameter);
    EXPECT_OK(quern_model_parameter(model, i, &p));
    weights_add(w, p.name, quern_tensor_rank(p.tensor), quern_tensor_dims(p.tensor), NULL);
    size_t n = weights_count(&w->at[i]);
    double *x = malloc(n * sizeof *x);
    float *data = malloc(n * sizeof *data);
    bool norm = strstr(p.name, "ln_") != NULL || strstr(p.name, "norm") != NULL;
    test_fill(n, x, 100 + i);
    for (size_t k = 0; k < n; k++) data[k] = (float)(norm ? 1 + 0.2 * x[k] : 0.15 * x[k]);
    w->at[i].data = data;
    free(x);
  }
  quern_model_free(model);
  quern_context_free(own);
}

/* A file in the folder of temporary files, removed by the caller. */
static inline const char *weights_write(const struct weights *w, const char *name) {
  static char path[256];
  const char *dir = getenv("TMPDIR");
  snprintf(path, sizeof path, "%s/quern-%s-%ld.safetensors", dir != NULL ? dir : "/tmp", name, (long)getpid());
  EXPECT_OK(quern_safetensors_write(path, w->n, w->at, NULL));
  return path;
}

/* The logits (n, vocabulary) of all n tokens, computed in one program without a cache. */
static inline void whole(const quern_lm_options *o, const struct weights *w, const char *device, int threads, int64_t n,
                         const int32_t *ids, float *logits) {
  quern_model *model;
  quern_context *own = test_context();
  quern_model_options eval = QUERN_INIT(quern_model_options);
  eval.inference = true;
  EXPECT_OK(quern_model_new(&model, own, &eval));
  quern_scope *root = quern_model_scope(model);
  quern_tensor *tokens = quern_input(own, "tokens", QUERN_DTYPE_I32, QUERN_LIST(1, n));
  quern_tensor *y = quern_lm_logits(root, quern_lm_hidden(root, tokens, o, NULL), o);
  quern_program *program;
  quern_instance *instance;
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = device;
  options.threads = threads;
  EXPECT_OK(quern_program_compile(&program, own, 1, &y, &options));
  EXPECT_OK(quern_instance_new(&instance, program));
  for (size_t i = 0; i < quern_program_state_count(program); i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    EXPECT_OK(quern_program_state(program, i, &slot));
    size_t k = 0;
    while (k < w->n && strcmp(w->at[k].name, slot.name) != 0) k++;
    assert_true(k < w->n);
    EXPECT_OK(quern_instance_set_state(instance, i, w->at[k].data));
  }
  EXPECT_OK(quern_instance_run(instance, (const void *const[]){ids}, (void *const[]){logits}));
  quern_instance_free(instance);
  quern_program_free(program);
  quern_model_free(model);
  quern_context_free(own);
}

#endif
