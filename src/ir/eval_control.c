/* ir/eval_control.c -- the reference evaluator: loops, choices and composites
** keeps: a body reads the carries of this iteration and writes those of the next to other memory
** tests: tests/ir/test_eval_control.c
*/
#include "ir/eval.h"

/* The arguments and results of a body whose first results are the carries of the next iteration. */
struct iteration {
  struct base_arena arena;
  int n_carries;
  const void **args;
  void **results;
};

/* The carries of now lie in the node's own results; there is room for the next. args and the other results
** are left to the caller. Free with turn_fini in any case. */
static quern_status iteration_init(struct iteration *iteration, struct eval_call *call, const struct ir_graph *body) {
  base_arena_init(&iteration->arena, &call->run->ctx->heap);
  iteration->n_carries = (int)call->node->attrs->carries;
  iteration->args = base_arena_alloc(&iteration->arena, (size_t)body->n_params * sizeof *iteration->args);
  iteration->results = base_arena_alloc(&iteration->arena, (size_t)body->n_results * sizeof *iteration->results);
  if (iteration->args == NULL || iteration->results == NULL) return quern_last_status();
  for (int c = 0; c < iteration->n_carries; c++) {
    size_t bytes = ir_bytes(&call->node->out[c]);
    iteration->results[c] = base_arena_alloc(&iteration->arena, bytes);
    if (iteration->results[c] == NULL) return quern_last_status();
    eval_copy_bytes(call->dst[c], call->src[c], bytes);
  }
  return QUERN_STATUS_OK;
}

/* The next carries become those of now. */
static void iteration_over(const struct iteration *iteration, const struct eval_call *call) {
  for (int c = 0; c < iteration->n_carries; c++) {
    eval_copy_bytes(call->dst[c], iteration->results[c], ir_bytes(&call->node->out[c]));
  }
}

static void turn_fini(struct iteration *iteration) { base_arena_fini(&iteration->arena); }

static quern_status loop_iterations(struct eval_call *call, struct iteration *iteration) {
  const struct ir_node *node = call->node;
  const struct ir_graph *body = node->attrs->body;
  int64_t trip = node->attrs->trip, i;
  int n_c = iteration->n_carries, n_x = (int)node->attrs->scanned;
  iteration->args[0] = &i;
  for (int c = 0; c < n_c; c++) iteration->args[1 + c] = call->dst[c];
  for (int s = n_c + n_x; s < node->n_src; s++) iteration->args[1 + s] = call->src[s];
  for (int64_t t = 0; t < trip; t++) {
    i = node->attrs->reverse ? trip - 1 - t : t;
    for (int x = n_c; x < n_c + n_x; x++) {
      iteration->args[1 + x] = (const char *)call->src[x] + (size_t)i * ir_bytes(body->params[1 + x]);
    }
    for (int y = n_c; y < node->n_out; y++) {
      iteration->results[y] = (char *)call->dst[y] + (size_t)i * ir_bytes(body->results[y]);
    }
    QUERN_TRY(eval_graph(call->run, body, iteration->args, iteration->results));
    iteration_over(iteration, call);
  }
  return QUERN_STATUS_OK;
}

static quern_status while_iterations(struct eval_call *call, struct iteration *iteration) {
  const struct ir_node *node = call->node;
  for (int c = 0; c < iteration->n_carries; c++) iteration->args[c] = call->dst[c];
  for (int s = iteration->n_carries; s < node->n_src; s++) iteration->args[s] = call->src[s];
  for (;;) {
    unsigned char go_on;
    void *answer = &go_on;
    QUERN_TRY(eval_graph(call->run, node->attrs->other, iteration->args, &answer));
    if (!go_on) return QUERN_STATUS_OK;
    QUERN_TRY(eval_graph(call->run, node->attrs->body, iteration->args, iteration->results));
    iteration_over(iteration, call);
  }
}

static quern_status with_iterations(struct eval_call *call,
                                    quern_status (*iterations)(struct eval_call *, struct iteration *)) {
  struct iteration iteration;
  quern_status status = iteration_init(&iteration, call, call->node->attrs->body);
  if (status == QUERN_STATUS_OK) status = iterations(call, &iteration);
  turn_fini(&iteration);
  return status;
}

quern_status eval_LOOP(struct eval_call *call) { return with_iterations(call, loop_iterations); }
quern_status eval_WHILE(struct eval_call *call) { return with_iterations(call, while_iterations); }

quern_status eval_IF(struct eval_call *call) {
  const struct ir_attrs *attrs = call->node->attrs;
  bool a = base_load_int(QUERN_DTYPE_BOOL, call->src[0], 0) != 0;
  return eval_graph(call->run, a ? attrs->body : attrs->other, call->src + 1, call->dst);
}

quern_status eval_COMPOSITE(struct eval_call *call) {
  return eval_graph(call->run, call->node->attrs->body, call->src, call->dst);
}
