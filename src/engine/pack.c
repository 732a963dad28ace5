/* engine/pack.c -- operands of contractions that never change: packed once, when a program is made
** A contraction that would pack an operand in every run reads a packed constant instead. The kernel that writes it is one of
** the program's, but no step: it is launched when the program is compiled or found in the cache, and reads the elements
** where the graph has them. A saved program holds what was written. Constants that only such kernels read are not in the program.
** keeps: the same bits as without, because packing copies
** tests: tests/engine/test_pack.c
*/
#include "engine/engine.h"

/* ---- while kernels are made ---------------------------------------------------------------------------------- */

const void *engine_constant_data(const quern_tensor *t) {
  const struct ir_node *node = t->node;
  return node->op == IR_CONST ? node->attrs->data.at : node->op == IR_BUFFER ? node->attrs->buffer->data : NULL;
}

uint64_t engine_constant_ins(const struct engine_build *b, const struct pass_group *group) {
  uint64_t mask = 0;
  /* the evaluator is given operands as they were; elements on the host are not there for kernels of a GPU */
  if (group->kind != PASS_KIND_DOT || b->request->ref || b->program->target.base.gpu) return 0;
  for (size_t i = 0; i < BASE_MIN(group->n_ins, 64); i++)
    if (engine_constant_data(group->ins[i]) != NULL) mask |= UINT64_C(1) << i;
  return mask;
}

/* The packed constant of an operand and a kernel, made when there is none. */
static quern_status find_packed(struct engine_build *b, quern_tensor *source, int kernel, quern_tensor **packed) {
  const struct kern_mem *out = &b->kernels.at[kernel]->mems[1];
  for (size_t i = 0; i < b->packings.n; i++) {
    const struct engine_packing *p = &b->packings.at[i];
    if (p->source != source || p->kernel != kernel) continue;
    *packed = p->packed;
    return QUERN_STATUS_OK;
  }
  struct ir_buffer *buffer = ir_buffer_wrap(b->ctx, NULL, 0); /* without elements */
  if (buffer == NULL) return QUERN_STATUS_MEMORY;
  struct ir_attrs attrs = {.dtype = out->dtype, .shape = {1, &out->count}, .buffer = buffer};
  *packed = ir_make(b->ctx, IR_BUFFER, 0, NULL, &attrs);
  if (ir_is_poison(*packed)) return ir_poison_error(b->ctx);
  struct engine_packing made = {.kernel = kernel, .source = source, .packed = *packed};
  return base_vec_push(&b->ctx->heap, &b->packings, made) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

quern_status engine_pack(struct engine_build *b, const struct pass_group **group, int in, int kernel) {
  const struct pass_group *from = *group;
  struct pass_group *made = base_arena_copy(&b->arena, from, sizeof *from);
  quern_tensor **ins = base_arena_copy(&b->arena, from->ins, from->n_ins * sizeof *ins);
  if (made == NULL || ins == NULL) return QUERN_STATUS_MEMORY;
  made->ins = ins;
  *group = made;
  return find_packed(b, from->ins[in], kernel, &ins[in]);
}

/* ---- when all is built --------------------------------------------------------------------------------------- */

size_t engine_packing_scratch(const struct engine_build *b) {
  size_t most = 0;
  for (size_t i = 0; i < b->packings.n; i++) {
    size_t bytes = (size_t)kern_scratch_bytes(b->program->kernels[b->packings.at[i].kernel]);
    most = BASE_MAX(most, (bytes + 63) / 64 * 64);
  }
  return most;
}

int64_t engine_leaf_at(const struct engine_build *b, const quern_tensor *t) {
  size_t i = 0;
  while (b->leaves.at[i].tensor != t) i++;
  return b->leaves.at[i].at;
}

quern_status engine_launch_packings(quern_program *program, size_t stride, size_t n,
                                    const struct engine_packing *packings) {
  struct rt_pool *pool;
  int threads = program->target.base.threads;
  if (n == 0) return QUERN_STATUS_OK;
  QUERN_TRY(rt_pool_new(&pool, &program->heap, threads));
  char *scratch = base_alloc(&program->heap, stride * (size_t)threads);
  quern_status status = scratch != NULL ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < n && status == QUERN_STATUS_OK; i++) {
    void *mems[] = {(void *)packings[i].from, program->constants + packings[i].at}; /* the first is only read */
    struct kern_launch launch = {.mems = mems};
    status =
        program->device->backend->launch(program->module, (size_t)packings[i].kernel, &launch, pool, scratch, stride);
  }
  base_free(&program->heap, scratch, stride * (size_t)threads);
  rt_pool_free(pool);
  return status;
}

quern_status engine_run_packings(struct engine_build *b) {
  for (size_t i = 0; i < b->packings.n; i++) {
    struct engine_packing *p = &b->packings.at[i];
    p->from = engine_constant_data(p->source);
    p->at = engine_leaf_at(b, p->packed);
  }
  return engine_launch_packings(b->program, engine_packing_scratch(b), b->packings.n, b->packings.at);
}
