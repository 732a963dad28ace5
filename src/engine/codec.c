/* engine/codec.c -- a program as bytes, and back: one walk over its fields does both
** keeps: what is read is inside its bounds, whatever the bytes are
** see:   save.c      tests: tests/engine/test_save.c
*/
#include "engine/codec.h"

/* ---- primitives ------------------------------------------------------------------------------------------ */

void codec_raw(struct codec *c, void *data, size_t bytes) {
  if (c->failed || bytes == 0) return;
  if (!c->reading) {
    base_str_add_n(c->out, data, bytes);
  } else if ((size_t)(c->end - c->at) < bytes) {
    c->failed = true;
    memset(data, 0, bytes);
  } else {
    memcpy(data, c->at, bytes);
    c->at += bytes;
  }
}

void codec_i64(struct codec *c, int64_t *x) { codec_raw(c, x, sizeof *x); }
static void codec_f64(struct codec *c, double *x) { codec_raw(c, x, sizeof *x); }

void codec_int(struct codec *c, int *x) {
  int64_t wide = *x;
  codec_i64(c, &wide);
  if (c->reading && (wide < INT32_MIN || wide > INT32_MAX)) c->failed = true;
  if (c->reading) *x = c->failed ? 0 : (int)wide;
}

static void codec_bool(struct codec *c, bool *x) {
  int wide = c->reading ? 0 : *x; /* what is read over may be no bool */
  codec_int(c, &wide);
  if (c->reading) *x = wide != 0;
}

void codec_size(struct codec *c, size_t *x) {
  int64_t wide = (int64_t)*x;
  codec_i64(c, &wide);
  if (c->reading && wide < 0) c->failed = true;
  if (c->reading) *x = c->failed ? 0 : (size_t)wide;
}

/* A count of items that take at least `least` bytes each in the text; when reading, room for them, cleared. */
static void *codec_room(struct codec *c, int64_t n, size_t item, size_t least) {
  if (c->failed || !c->reading) return NULL;
  size_t bytes;
  if (n < 0 || (uint64_t)n > (uint64_t)(c->end - c->at) / (least > 0 ? least : 1) ||
      !base_size((size_t)n + 1, item, 0, &bytes)) {
    c->failed = true;
    return NULL;
  }
  void *room = base_arena_alloc(c->arena, bytes);
  if (room == NULL) c->failed = c->no_memory = true;
  return room;
}

void codec_string(struct codec *c, const char **text) {
  int64_t n = c->reading || *text == NULL ? -1 : (int64_t)strlen(*text);
  codec_i64(c, &n);
  if (!c->reading) {
    if (n > 0) codec_raw(c, (char *)*text, (size_t)n);
    return;
  }
  *text = NULL;
  if (n < 0) return;
  char *copy = codec_room(c, n, 1, 1);
  if (copy == NULL) return;
  codec_raw(c, copy, (size_t)n);
  *text = copy;
}

static void codec_ints(struct codec *c, int n, int **at) {
  if (c->reading) *at = codec_room(c, n, sizeof **at, 8);
  for (int i = 0; i < n && *at != NULL && !c->failed; i++) codec_int(c, &(*at)[i]);
}

static void codec_i64s(struct codec *c, int64_t n, int64_t **at) {
  if (c->reading) *at = codec_room(c, n, sizeof **at, 8);
  for (int64_t i = 0; i < n && *at != NULL && !c->failed; i++) codec_i64(c, &(*at)[i]);
}

/* An enumeration of `count` values. */
static int codec_enum(struct codec *c, int value, int count) {
  codec_int(c, &value);
  if (c->reading && (value < 0 || value >= count)) {
    c->failed = true;
    value = 0;
  }
  return value;
}

/* Numbers of a struct that has nothing else. */
static void codec_all(struct codec *c, size_t n, int64_t *const *numbers) {
  for (size_t i = 0; i < n; i++) codec_i64(c, numbers[i]);
}

/* ---- a program -------------------------------------------------------------------------------------------
** Field by field: what lies between the fields of a struct is in no file. */

static void codec_control(struct codec *c, struct engine_control **control) {
  bool any = *control != NULL;
  codec_bool(c, &any);
  if (!any) return;
  if (c->reading) *control = codec_room(c, 1, sizeof **control, 8);
  struct engine_control *x = *control;
  if (x == NULL) return;
  codec_int(c, &x->body);
  codec_int(c, &x->other);
  codec_int(c, &x->n_src);
  codec_int(c, &x->n_out);
  codec_int(c, &x->carries);
  codec_int(c, &x->scanned);
  codec_i64(c, &x->trip);
  codec_bool(c, &x->reverse);
  codec_i64s(c, x->n_src, &x->src_stride);
  codec_i64s(c, x->n_out, &x->out_stride);
  codec_ints(c, x->carries, &x->in_place);
  codec_ints(c, x->carries, &x->slot);
}

static void codec_step(struct codec *c, struct engine_step *s) {
  s->kind = (enum plan_step_kind)codec_enum(c, (int)s->kind, PLAN_IF + 1);
  codec_int(c, &s->kernel);
  codec_int(c, &s->n_buffers);
  codec_ints(c, s->n_buffers, &s->buffers);
  codec_bool(c, &s->rematerialized);
  codec_bool(c, &s->scratch);
  codec_string(c, &s->kind_name);
  codec_string(c, &s->ops);
  codec_string(c, &s->layer);
  s->dtype = (quern_dtype)codec_enum(c, (int)s->dtype, QUERN_DTYPE_COUNT);
  codec_f64(c, &s->speedup);
  codec_f64(c, &s->threshold);
  codec_raw(c, &s->group, sizeof s->group);
  codec_int(c, &s->n_nodes);
  codec_ints(c, s->n_nodes, &s->nodes);
  codec_control(c, &s->control);
}

static void codec_buffer(struct codec *c, struct engine_buffer *b) {
  b->place = (enum plan_memory_kind)codec_enum(c, (int)b->place, PLAN_RESULT + 1);
  codec_i64(c, &b->at);
  codec_i64(c, &b->bytes);
  codec_int(c, &b->first);
  codec_int(c, &b->last);
  codec_bool(c, &b->rows);
}

static void codec_plan_memory(struct codec *c, struct plan_memory *m) {
  int64_t *const all[] = {&m->arena, &m->scratch, &m->state, &m->constants, &m->bound, &m->unshared, &m->held};
  codec_all(c, BASE_COUNT(all), all);
}

static void codec_subprogram(struct codec *c, struct engine_subprogram *p) {
  codec_int(c, &p->n_steps);
  codec_int(c, &p->n_buffers);
  codec_int(c, &p->n_params);
  codec_int(c, &p->n_results);
  codec_int(c, &p->most_buffers);
  codec_int(c, &p->n_outside);
  codec_ints(c, p->n_outside, &p->outside);
  codec_plan_memory(c, &p->memory);
  if (c->reading) p->steps = codec_room(c, p->n_steps, sizeof *p->steps, 8);
  if (c->reading) p->buffers = codec_room(c, p->n_buffers, sizeof *p->buffers, 8);
  for (int i = 0; i < p->n_steps && !c->failed; i++) codec_step(c, &p->steps[i]);
  for (int i = 0; i < p->n_buffers && !c->failed; i++) codec_buffer(c, &p->buffers[i]);
}

static void codec_slots(struct codec *c, size_t *n, quern_slot **slots) {
  codec_size(c, n);
  if (c->reading) *slots = codec_room(c, (int64_t)*n, sizeof **slots, 8);
  for (size_t i = 0; i < *n && !c->failed; i++) {
    quern_slot *s = &(*slots)[i];
    int64_t *dims = (int64_t *)s->dims;
    codec_string(c, &s->name);
    s->dtype = (quern_dtype)codec_enum(c, (int)s->dtype, QUERN_DTYPE_COUNT);
    s->rank = codec_enum(c, s->rank, QUERN_MAX_RANK + 1);
    codec_i64s(c, s->rank, &dims);
    s->dims = dims;
    codec_size(c, &s->bytes);
    codec_bool(c, &s->dynamic_batch);
  }
}

static void codec_matrix(struct codec *c, struct kern_matrix *m) {
  codec_int(c, &m->mem);
  codec_i64(c, &m->at);
  codec_i64(c, &m->batch);
  codec_i64(c, &m->row);
  codec_i64(c, &m->column);
}

static void codec_gemm(struct codec *c, struct kern_gemm *g) {
  int64_t *const extents[] = {&g->batch, &g->rows, &g->columns, &g->terms};
  struct kern_matrix *const matrices[] = {&g->a, &g->b, &g->y, &g->add, &g->aux};
  int *const vectors[] = {&g->bias, &g->a_sums, &g->y_sums};
  for (size_t i = 0; i < BASE_COUNT(extents); i++) codec_i64(c, extents[i]);
  for (size_t i = 0; i < BASE_COUNT(matrices); i++) codec_matrix(c, matrices[i]);
  for (size_t i = 0; i < BASE_COUNT(vectors); i++) codec_int(c, vectors[i]);
  g->act = (enum kern_activation)codec_enum(c, (int)g->act, KERN_ACT_GELU_TANH + 1);
  codec_bool(c, &g->back);
  codec_bool(c, &g->tf32);
}

static void codec_view(struct codec *c, struct kern_view *v) {
  codec_int(c, &v->mem);
  codec_i64(c, &v->at);
  codec_i64(c, &v->batch);
  codec_i64(c, &v->head);
  codec_i64(c, &v->row);
}

static void codec_attention(struct codec *c, struct kern_attention *a) {
  int64_t *const extents[] = {&a->batch, &a->heads, &a->kv_heads, &a->queries, &a->keys, &a->width, &a->value_width};
  struct kern_view *const views[] = {&a->q, &a->k, &a->v, &a->y, &a->dy, &a->dq, &a->dk, &a->dv};
  for (size_t i = 0; i < BASE_COUNT(extents); i++) codec_i64(c, extents[i]);
  codec_f64(c, &a->scale);
  codec_bool(c, &a->causal);
  codec_bool(c, &a->exact);
  for (size_t i = 0; i < BASE_COUNT(views); i++) codec_view(c, views[i]);
  codec_int(c, &a->lse);
}

static void codec_conv(struct codec *c, struct kern_conv *v) {
  int64_t *const numbers[] = {&v->groups, &v->samples, &v->channels, &v->outputs};
  int64_t *const axes[] = {v->in, v->out, v->window, v->step, v->dilation, v->pad};
  int *const mems[] = {&v->spatial, &v->x, &v->w, &v->y};
  v->part = (enum kern_conv_part)codec_enum(c, (int)v->part, KERN_CONV_PARTS);
  for (size_t i = 0; i < BASE_COUNT(mems); i++) codec_int(c, mems[i]);
  for (size_t i = 0; i < BASE_COUNT(numbers); i++) codec_i64(c, numbers[i]);
  for (size_t i = 0; i < BASE_COUNT(axes); i++)
    for (int k = 0; k < KERN_CONV_SPATIAL; k++) codec_i64(c, &axes[i][k]);
  codec_bool(c, &v->exact);
  codec_bool(c, &v->tf32);
}

static void codec_call(struct codec *c, struct kern_library_call *call) {
  call->kind = (enum kern_library_kind)codec_enum(c, (int)call->kind, KERN_LIBRARY_KINDS);
  if (call->kind == KERN_LIBRARY_NONE) return;
  if (call->kind == KERN_LIBRARY_GEMM)
    codec_gemm(c, &call->gemm);
  else if (call->kind == KERN_LIBRARY_CONV)
    codec_conv(c, &call->conv);
  else
    codec_attention(c, &call->attention);
  codec_int(c, &call->work);
  codec_raw(c, call->algorithm, sizeof call->algorithm);
}

static void codec_mem(struct codec *c, struct kern_mem *m) {
  m->dtype = (quern_dtype)codec_enum(c, (int)m->dtype, QUERN_DTYPE_COUNT);
  m->role = (enum kern_role)codec_enum(c, (int)m->role, KERN_WORK + 1);
  codec_i64(c, &m->count);
  codec_int(c, &m->alias);
  codec_int(c, &m->in_place_class);
  codec_i64(c, &m->row);
  codec_bool(c, &m->streaming);
}

static void codec_phase(struct codec *c, struct kern_phase *p) {
  int64_t *const all[] = {&p->tasks.mul,       &p->tasks.div,       &p->batch_tasks.mul,
                          &p->batch_tasks.add, &p->batch_tasks.div, &p->batch_tasks.by};
  codec_int(c, &p->fn);
  codec_bool(c, &p->library_call);
  codec_int(c, &p->tasks.scalar);
  codec_int(c, &p->block_threads);
  codec_int(c, &p->min_blocks_per_sm);
  codec_all(c, BASE_COUNT(all), all);
  codec_int(c, &p->from);
  codec_int(c, &p->to);
}

/* What running and explaining need of a kernel whose code is compiled: not its instructions. */
static void codec_kernel(struct codec *c, struct kern **kern) {
  if (c->reading && kern_new(kern, c->heap) != QUERN_STATUS_OK) c->failed = c->no_memory = true;
  if (c->failed) return;
  struct kern *k = *kern;
  const char *name = k->name;
  codec_string(c, &name);
  codec_raw(c, &k->hash, sizeof k->hash);
  k->n_mems = codec_enum(c, k->n_mems, KERN_MAX_MEMS + 1);
  k->n_scalars = codec_enum(c, k->n_scalars, KERN_MAX_SCALARS + 1);
  k->n_phases = codec_enum(c, k->n_phases, KERN_MAX_PHASES + 1);
  codec_f64(c, &k->cost.flops);
  codec_f64(c, &k->cost.bytes);
  for (int i = 0; i < k->n_mems; i++) codec_mem(c, &k->mems[i]);
  for (int i = 0; i < k->n_phases; i++) codec_phase(c, &k->phases[i]);
  codec_bool(c, &k->unaligned_base);
  codec_call(c, &k->library_call);
  if (!c->reading || c->failed) return;
  k->name = name != NULL ? base_arena_string(&k->arena, name, strlen(name)) : NULL;
  if (k->name == NULL) c->failed = true;
}

static void codec_memory(struct codec *c, quern_memory_plan *m) {
  int64_t *const all[] = {&m->arena,    &m->state,   &m->constants, &m->scratch,    &m->bound,
                          &m->unshared, &m->staging, &m->held,      &m->iterations, &m->total};
  codec_all(c, BASE_COUNT(all), all);
}

/* Without what it took to make it, which is another each time. */
static void codec_counts(struct codec *c, quern_program_stats *counts) {
  size_t *const all[] = {&counts->nodes_before, &counts->nodes_after, &counts->steps,      &counts->copies,
                         &counts->controls,     &counts->kernels,     &counts->recomputed, &counts->unfused};
  for (size_t i = 0; i < BASE_COUNT(all); i++) codec_size(c, all[i]);
  codec_f64(c, &counts->flops);
  codec_f64(c, &counts->bytes);
}

void codec_program(struct codec *c, quern_program *p) {
  int64_t n_kernels = p->n_kernels;
  codec_i64(c, &n_kernels);
  if (c->reading) p->kernels = codec_room(c, n_kernels, sizeof *p->kernels, 8);
  for (int64_t i = 0; i < n_kernels && !c->failed; i++) {
    codec_kernel(c, &p->kernels[i]);
    if (c->reading && p->kernels[i] != NULL) p->n_kernels = (int)i + 1; /* what is there is freed with the program */
  }
  codec_int(c, &p->n_subprograms);
  if (c->reading) p->subprograms = codec_room(c, p->n_subprograms, sizeof *p->subprograms, 8);
  for (int i = 0; i < p->n_subprograms && !c->failed; i++) codec_subprogram(c, &p->subprograms[i]);
  codec_slots(c, &p->n_inputs, &p->inputs);
  codec_slots(c, &p->n_outputs, &p->outputs);
  codec_slots(c, &p->n_states, &p->states);
  codec_i64s(c, (int64_t)p->n_states, &p->state_at);
  codec_ints(c, (int)p->n_states, &p->state_use);
  codec_memory(c, &p->memory);
  codec_counts(c, &p->counts);
  codec_size(c, &p->scratch_stride);
  codec_i64(c, &p->dynamic_batch);
  codec_bool(c, &p->donates);
  codec_bool(c, &p->sleeps);
}
