/* tests/api/test_wrong_base.c -- wrong calls of status, version, dtype, env and context.h, and of what a tensor is */
#include "api/wrong.h"

#include <pthread.h>

/* ---- status.h ------------------------------------------------------------------------------------------ */

static void *look(void *fresh) {
  *(bool *)fresh = quern_last_status() == QUERN_STATUS_OK && strcmp(quern_last_error(), "") == 0;
  return NULL;
}

/* A thread in which nothing failed has no error, whatever failed in others. */
static bool untouched_thread(void) {
  pthread_t thread;
  bool fresh = false;
  (void)quern_neg(NULL);
  if (pthread_create(&thread, NULL, look, &fresh) != 0) return false;
  return pthread_join(thread, NULL) == 0 && fresh;
}

static bool long_message_is_cut(void) {
  char name[20000];
  memset(name, 'a', sizeof name);
  name[sizeof name - 1] = 0;
  if (quern_dtype_from_name(name, &(quern_dtype){0}) != QUERN_STATUS_INVALID) return false;
  const char *message = quern_last_error();
  size_t n = strlen(message);
  return n > 100 && n < sizeof name && strcmp(message + n - 3, "...") == 0;
}

static bool status_stays(void) {
  (void)quern_neg(NULL);
  (void)quern_neg(T(F32, 2));
  return quern_last_status() == QUERN_STATUS_INVALID && quern_context_check(ctx) == QUERN_STATUS_OK;
}

static quern_status convert_overlapping(void) {
  float both[3] = {1, 2, 3};
  return quern_dtype_convert(both + 1, QUERN_DTYPE_F32, both, QUERN_DTYPE_F32, 2);
}

/* ---- context.h ----------------------------------------------------------------------------------------- */

static void *no_memory(void *self, size_t bytes) {
  (void)self, (void)bytes;
  return NULL;
}

static quern_status new_with(const quern_context_options *options) {
  quern_context *made = ctx;
  quern_status status = quern_context_new(&made, options);
  assert_null(made);
  return status;
}

static bool free_with_error(void) {
  size_t live = memory_live;
  quern_context *made = test_context();
  if (made == NULL) return false;
  (void)quern_zeros(made, QUERN_DTYPE_F32, -1, NULL);
  quern_context_free(made);
  return memory_live == live;
}

static bool wrong_call_holds_nothing(void) {
  quern_tensor *x = T(F32, 2, 3);
  size_t live = context_stats(ctx).live_bytes;
  quern_tensor *y = quern_reshape(x, QUERN_LIST(5));
  return quern_tensor_is_poison(y) && quern_context_check(ctx) == QUERN_STATUS_SHAPE &&
         context_stats(ctx).live_bytes == live && live == memory_live - context_stats(other).live_bytes;
}

static quern_context_stats stats = QUERN_INIT(quern_context_stats);

/* A text is the caller's: it stays when the context that gave it is gone, and is freed without it. */
static bool text_outlives_its_context(void) {
  quern_context *made = NULL;
  quern_graph *graph = NULL;
  char *text = NULL;
  size_t live = memory_live;
  quern_context_options options = {.size = sizeof options, .allocator = {memory_alloc, memory_free, NULL}};
  if (quern_context_new(&made, &options) != QUERN_STATUS_OK) return false;
  quern_tensor *x = quern_neg(quern_zeros(made, QUERN_DTYPE_F32, QUERN_LIST(2)));
  bool good = quern_graph_new(&graph, made, 1, &x, NULL) == QUERN_STATUS_OK &&
              quern_graph_print(graph, &text) == QUERN_STATUS_OK;
  quern_graph_free(graph);
  quern_context_free(made);
  good = good && memory_live > live && strncmp(text, "quern 1", 7) == 0;
  quern_free_text(text);
  return good && memory_live == live;
}

static bool wrong_call_adds_none(void) {
  quern_tensor *x = T(F32, 2, 3);
  size_t nodes = quern_context_node_count(ctx);
  quern_tensor *y = quern_reshape(x, QUERN_LIST(5));
  return quern_tensor_is_poison(y) && quern_context_check(ctx) == QUERN_STATUS_SHAPE &&
         quern_context_node_count(ctx) == nodes;
}

/* An error of this context would have that message. */
static bool place_is(const char *message) {
  (void)ir_fail(ctx, QUERN_STATUS_SHAPE, "broken: %d", 1);
  return quern_context_check(ctx) == QUERN_STATUS_SHAPE && strcmp(quern_last_error(), message) == 0;
}

static bool long_place(void) {
  static char file[5000];
  memset(file, 'f', sizeof file - 1);
  quern_place_set(file, 7);
  (void)ir_fail(ctx, QUERN_STATUS_SHAPE, "broken: %d", 1);
  quern_status status = quern_context_check(ctx);
  const char *message = quern_last_error();
  return status == QUERN_STATUS_SHAPE && strncmp(message, "broken: 1\n  at fff", 18) == 0 &&
         strstr(message, "fff:7") != NULL;
}

#define ROWS "api/wrong_base.def"
#include "api/rows.h"
