/* train/low_states.c -- what a generator keeps in 16 bits: weights and caches that are computed with in 16 bits only
** A graph under autocast casts f32 weights to the low dtype wherever they are used, and the cache of keys and values with
** them: each token would read all of them as f32 and round them once more. Here the cast of a parameter becomes a state of
** its own, which is rounded once, when it is loaded; a cache that is given low values becomes a state of them.
** in:    expressions and changes after autocast         out: the same, on such states
** keeps: every bit of the results; a state that something else reads in f32 stays beside its rounded one
** see:   generate.c, weights.c        tests: tests/train/test_generate.c
*/
#include <stdio.h>

#include "ir/ir.h"
#include "train/generate.h"

struct job {
  quern_context *ctx;
  quern_dtype low;
  size_t n;
  const quern_update *changes;
  quern_update *to; /* of a cache that is low, what its state becomes */
};

/* ---- names -------------------------------------------------------------------------------------------------------- */

enum { NAME_MOST = 512 };

/* The state's name, then ".bf16" or ".f16". */
static quern_tensor *low_state(const struct job *job, const quern_tensor *state) {
  char name[NAME_MOST];
  int n = snprintf(name, sizeof name, "%s.%s", state->node->attrs->name, quern_dtype_name(job->low));
  if (n < 0 || (size_t)n >= sizeof name) return (quern_tensor *)state;
  return quern_state(job->ctx, name, job->low, state->rank, state->dims);
}

size_t train_low_name(const quern_slot *slot) {
  const char *dtype = quern_dtype_name(slot->dtype);
  size_t n = strlen(slot->name), m = strlen(dtype);
  bool low = slot->dtype != QUERN_DTYPE_F32 && n > m + 1 && slot->name[n - m - 1] == '.';
  return low && strcmp(slot->name + n - m, dtype) == 0 ? n - m - 1 : n;
}

/* ---- nodes -------------------------------------------------------------------------------------------------------- */

static bool is_cast(const quern_tensor *t, quern_dtype to, quern_dtype from) {
  return t->node->op == IR_CAST && t->dtype == to && t->node->src[0]->dtype == from;
}

static bool is_state(const quern_tensor *t) { return t->node->op == IR_STATE && t->dtype == QUERN_DTYPE_F32; }

/* The number of a state's change; job->n: it has none. */
static size_t change_of(const struct job *job, const quern_tensor *state) {
  size_t i = 0;
  while (i < job->n && job->changes[i].state != state) i++;
  return i;
}

/* True of a change whose state is only ever given what was low before. */
static bool is_low_cache(const struct job *job, size_t i) {
  return i < job->n && is_state(job->changes[i].state) && is_cast(job->changes[i].value, QUERN_DTYPE_F32, job->low);
}

static quern_status visit(void *user, struct ir_node *node, quern_tensor *const *src, quern_tensor **out) {
  const struct job *job = user;
  size_t change = node->op == IR_STATE ? change_of(job, node->out) : job->n;
  if (is_low_cache(job, change)) {
    out[0] = quern_cast(job->to[change].state, QUERN_DTYPE_F32);
  } else if (node->op == IR_CAST && node->out[0].dtype == job->low && src[0]->dtype == QUERN_DTYPE_F32) {
    if (is_cast(src[0], QUERN_DTYPE_F32, job->low))
      out[0] = src[0]->node->src[0];
    else if (is_state(src[0]) && change_of(job, src[0]) == job->n)
      out[0] = quern_cast(low_state(job, src[0]), job->low);
    else
      return ir_rebuild(node, src, out);
  } else {
    return ir_rebuild(node, src, out);
  }
  return ir_is_poison(out[0]) ? ir_poison_error(job->ctx) : QUERN_STATUS_OK;
}

/* ---- the graph ---------------------------------------------------------------------------------------------------- */

static quern_status transform(struct job *job, quern_tensor **y, quern_tensor **in, quern_tensor **out) {
  in[0] = *y;
  for (size_t i = 0; i < job->n; i++) {
    in[1 + i] = job->changes[i].value;
    job->to[i].state = is_low_cache(job, i) ? low_state(job, job->changes[i].state) : job->changes[i].state;
  }
  QUERN_TRY(ir_transform(job->ctx, job->n + 1, in, visit, job, out));
  *y = out[0];
  for (size_t i = 0; i < job->n; i++) {
    bool low = job->to[i].state != job->changes[i].state;
    job->to[i].value = low ? out[1 + i]->node->src[0] : out[1 + i];
  }
  return quern_context_check(job->ctx);
}

quern_status train_low_states(quern_context *ctx, quern_dtype low, quern_tensor **y, size_t n,
                              const quern_update *changes, quern_update *to) {
  struct job job = {ctx, low, n, changes, to};
  size_t bytes = 2 * (n + 1) * sizeof(quern_tensor *);
  quern_tensor **all = base_alloc(&ctx->heap, bytes);
  if (all == NULL) return QUERN_STATUS_MEMORY;
  bool outermost;
  quern_status status = ir_growth_begin(ctx, 1, y, &outermost);
  if (status == QUERN_STATUS_OK) {
    status = transform(&job, y, all, all + n + 1);
    ir_growth_end(ctx, outermost);
  }
  base_free(&ctx->heap, all, bytes);
  return status;
}
