/* engine/cache.c -- programs that were compiled before: found by what was asked, nothing is compiled again
** The key is made of the graph's structure, the options, the target, the compiler and the very build of Quern. What is kept is the
** program as in a saved file; the elements of buffers are not kept, they are taken from the graph again.
** keeps: a program from the cache is the program that compiling gives
** tests: tests/engine/test_cache.c
*/
#include "engine/codec.h"
#include "quern/version.h"

static void add_text(struct engine_key *key, const char *text) {
  engine_key_add(key, strlen(text));
  key->word[0] = base_hash_string(key->word[0], text);
  key->word[1] = base_hash_string(key->word[1], text);
}

/* ---- the graph ------------------------------------------------------------------------------------------- */

/* The keys of subgraphs that were met: each is made once, however many nodes have it. */
struct inside {
  struct base_arena arena;
  struct base_map graphs;
};

struct graph_key {
  const struct ir_graph *graph;
  struct engine_key key;
};

static bool same_graph(const void *item, const void *graph) { return ((const struct graph_key *)item)->graph == graph; }

static quern_status add_graph(struct inside *inside, struct engine_key *key, quern_context *ctx, size_t n,
                              quern_tensor *const *roots);

static quern_status add_sub_graph(struct inside *inside, struct engine_key *key, const struct ir_graph *graph) {
  if (graph == NULL) return engine_key_add(key, 0), QUERN_STATUS_OK;
  uint64_t hash = base_hash_u64(BASE_HASH_SEED, graph->id);
  struct graph_key *known = base_map_find(&inside->graphs, hash, same_graph, graph);
  if (known == NULL) {
    known = base_arena_new(&inside->arena, struct graph_key);
    if (known == NULL) return QUERN_STATUS_MEMORY;
    *known = (struct graph_key){graph, ENGINE_KEY};
    engine_key_add(&known->key, (uint64_t)graph->n_params);
    QUERN_TRY(add_graph(inside, &known->key, graph->ctx, (size_t)graph->n_results, graph->results));
    if (!base_map_add(&inside->graphs, hash, known)) return QUERN_STATUS_MEMORY;
  }
  engine_key_add(key, known->key.word[0]);
  engine_key_add(key, known->key.word[1]);
  return QUERN_STATUS_OK;
}

static quern_status add_attrs(struct inside *inside, struct engine_key *key, const struct ir_node *node) {
  for (int k = 0; k < IR_ATTR_COUNT; k++) {
    if ((ir_ops[node->op].attrs >> k & 1) == 0) continue;
    const void *field = (const char *)node->attrs + ir_attr_table[k].offset;
    if (ir_attr_table[k].kind == IR_KIND_GRAPH) {
      QUERN_TRY(add_sub_graph(inside, key, *(const struct ir_graph *const *)field));
    } else if (ir_attr_table[k].kind == IR_KIND_BUFFER) {
      engine_key_add(key, node->attrs->buffer->data != NULL);
    } else {
      engine_key_add_attr(key, ir_attr_table[k].kind, field);
    }
  }
  return QUERN_STATUS_OK;
}

/* Nodes by their places in the order; recursion is as deep as subgraphs lie in subgraphs. Attributes
** come last, because the order of a subgraph takes the marks of this one. */
static quern_status add_graph(struct inside *inside, struct engine_key *key, quern_context *ctx, size_t n,
                              quern_tensor *const *roots) {
  struct ir_order order;
  QUERN_TRY(ir_topo(ctx, n, roots, &order));
  quern_status status = QUERN_STATUS_OK;
  engine_key_add(key, order.n);
  for (size_t i = 0; i < order.n; i++) {
    const struct ir_node *node = order.at[i];
    engine_key_add(key, (uint64_t)node->op << 32 | (uint64_t)(uint32_t)node->n_src);
    if (node->label != 0) add_text(key, ir_label_text(ctx, node->label)); /* profiles have it */
    for (int s = 0; s < node->n_src; s++)
      engine_key_add(key, (uint64_t)ir_order_find(&order, node->src[s]->node) << 8 |
                              (uint64_t)(uint32_t)node->src[s]->result);
  }
  for (size_t i = 0; i < n; i++)
    engine_key_add(key, (uint64_t)ir_order_find(&order, roots[i]->node) << 8 | (uint64_t)(uint32_t)roots[i]->result);
  for (size_t i = 0; i < order.n && status == QUERN_STATUS_OK; i++) status = add_attrs(inside, key, order.at[i]);
  ir_order_fini(ctx, &order);
  return status;
}

static quern_status add_roots(struct engine_key *key, quern_context *ctx, size_t n, quern_tensor *const *roots) {
  struct inside inside;
  base_arena_init(&inside.arena, &ctx->heap);
  base_map_init(&inside.graphs, &ctx->heap);
  quern_status status = add_graph(&inside, key, ctx, n, roots);
  base_map_fini(&inside.graphs);
  base_arena_fini(&inside.arena);
  return status;
}

/* ---- the key --------------------------------------------------------------------------------------------- */

static void add_options(struct engine_key *key, const struct engine_build *b) {
  const quern_program_options *o = &b->request->options;
  const struct base_target *t = &b->program->target.base;
  add_text(key, quern_version());
  add_text(key, b->program->device->backend->name); /* devices of a kind share programs: their identity is in the key */
  add_text(key, o->passes != NULL ? o->passes : "");
  add_text(key, base_env_get(BASE_ENV_PASS));
  add_text(key, t->name);
  const uint64_t numbers[] = {o->optimize == QUERN_OPTIMIZE_DEFAULT,
                              (uint64_t)o->memory_limit,
                              (uint64_t)o->numerics,
                              o->optimize_for,
                              o->inference,
                              (uint64_t)t->threads,
                              (uint64_t)t->l1_bytes,
                              (uint64_t)t->l2_bytes,
                              (uint64_t)t->l3_bytes,
                              o->n_updates,
                              b->request->n_outputs,
                              b->wisdom.hash,
                              o->n_dynamic_batch,
                              o->gradient_checkpointing,
                              (uint64_t)o->recompute_every,
                              (uint64_t)t->capabilities};
  for (size_t i = 0; i < BASE_COUNT(numbers); i++) engine_key_add(key, numbers[i]);
  for (size_t i = 0; o->output_names != NULL && i < b->request->n_outputs; i++)
    add_text(key, o->output_names[i] != NULL ? o->output_names[i] : "");
  for (size_t i = 0; i < b->inputs.n; i++) {
    bool donated = false;
    for (size_t k = 0; k < o->n_donated; k++) donated |= o->donated[k] == b->inputs.at[i];
    bool leading = false;
    for (size_t k = 0; k < o->n_dynamic_batch; k++) leading |= o->dynamic_batch[k] == b->inputs.at[i];
    engine_key_add(key, (uint64_t)donated | (uint64_t)leading << 1);
  }
}

/* Outputs and new values of states as they were asked for, then the states. */
static quern_tensor **roots_of(const struct engine_build *b, size_t *n) {
  const struct engine_request *r = b->request;
  *n = r->n_outputs + 2 * r->options.n_updates;
  quern_tensor **roots = base_arena_alloc((struct base_arena *)&b->arena, (*n + 1) * sizeof *roots);
  for (size_t i = 0; roots != NULL && i < r->n_outputs; i++) roots[i] = r->outputs[i];
  for (size_t i = 0; roots != NULL && i < r->options.n_updates; i++) {
    roots[r->n_outputs + 2 * i] = r->options.updates[i].value;
    roots[r->n_outputs + 2 * i + 1] = r->options.updates[i].state;
  }
  return roots;
}

quern_status engine_cache_key(const struct engine_request *request, uint64_t key[2]) {
  quern_program *program;
  QUERN_TRY(engine_program_new(&program, request));
  struct engine_build b = {.program = program, .request = request, .ctx = request->ctx};
  struct engine_key made = {{BASE_HASH_SEED, ~BASE_HASH_SEED}};
  size_t n;
  base_arena_init(&b.arena, &request->ctx->heap);
  program->target.base.name = "";
  program->target.base.threads = request->options.threads;
  quern_tensor **roots = roots_of(&b, &n);
  add_options(&made, &b);
  quern_status status = roots != NULL ? add_roots(&made, request->ctx, n, roots) : QUERN_STATUS_MEMORY;
  memcpy(key, made.word, sizeof made.word);
  base_arena_fini(&b.arena);
  quern_program_free(program);
  return status;
}

/* False when the program is not to be looked for: nothing of the device can be kept, or someone wants to see the stages. */
static bool is_cacheable(const struct engine_build *b) {
  const struct rt_backend *backend = b->program->device->backend;
  return backend->identity != NULL && backend->from_objects != NULL && !b->request->ref && !b->request->verify;
}

/* The key; *there is false when nothing may be taken from the cache. */
static quern_status make_key(const struct engine_build *b, struct engine_key *key, bool *there) {
  uint64_t build;
  *key = (struct engine_key){{BASE_HASH_SEED, ~BASE_HASH_SEED}};
  *there = is_cacheable(b) && rt_build_identity(&build) &&
           b->program->device->backend->identity(b->program->device, &b->ctx->heap, &b->program->target, key->word);
  if (!*there) return QUERN_STATUS_OK;
  size_t n;
  quern_tensor **roots = roots_of(b, &n);
  if (roots == NULL) return QUERN_STATUS_MEMORY;
  engine_key_add(key, build);
  add_options(key, b);
  return add_roots(key, b->ctx, n, roots);
}

/* ---- constants ------------------------------------------------------------------------------------------- */

/* Buffers with elements that the request's graph reaches, in order. */
static quern_status find_buffers(const struct engine_build *b, struct ir_order *order) {
  size_t n;
  quern_tensor **roots = roots_of(b, &n);
  if (roots == NULL) return QUERN_STATUS_MEMORY;
  QUERN_TRY(ir_topo(b->ctx, n, roots, order));
  n = 0;
  for (size_t i = 0; i < order->n; i++)
    if (order->at[i]->op == IR_BUFFER && order->at[i]->attrs->buffer->data != NULL) order->at[n++] = order->at[i];
  order->n = n;
  return QUERN_STATUS_OK;
}

/* Where the elements of a constant come from: its bytes and the number of its buffer, or -1 and the elements. */
static void write_source(struct codec *c, const quern_tensor *t, const struct ir_order *buffers) {
  int64_t bytes = (int64_t)ir_bytes(t), number = -1;
  for (size_t k = 0; k < buffers->n; k++)
    if (buffers->at[k] == t->node) number = (int64_t)k;
  codec_i64(c, &bytes);
  codec_i64(c, &number);
  if (number < 0) codec_raw(c, (void *)engine_constant_data(t), (size_t)bytes);
}

/* *from: the elements, in a buffer of the graph or among what is read; NULL when it cannot be. */
static int64_t read_source(struct codec *c, const struct ir_order *buffers, const void **from) {
  int64_t bytes = 0, number = 0;
  codec_i64(c, &bytes);
  codec_i64(c, &number);
  *from = NULL;
  if (c->failed || bytes < 0 || number >= (int64_t)buffers->n) return 0;
  if (number >= 0) {
    if ((int64_t)ir_bytes(&buffers->at[number]->out[0]) == bytes) *from = buffers->at[number]->attrs->buffer->data;
  } else if (bytes <= c->end - c->at) {
    *from = c->at;
    c->at += bytes;
  }
  return bytes;
}

/* The constants that lie in the program as they are in the graph: offset and source. */
static void write_constants(struct codec *c, const struct engine_build *b, const struct ir_order *buffers) {
  int64_t n = 0;
  for (int pass = 0; pass < 2; pass++) {
    for (size_t i = 0; i < b->leaves.n; i++) {
      const struct plan_leaf *leaf = &b->leaves.at[i];
      int64_t at = leaf->at;
      if (leaf->memory != PLAN_CONST || engine_constant_data(leaf->tensor) == NULL) continue;
      n += pass == 0;
      if (pass == 1) codec_i64(c, &at);
      if (pass == 1) write_source(c, leaf->tensor, buffers);
    }
    if (pass == 0) codec_i64(c, &n);
  }
}

static bool read_constants(struct codec *c, quern_program *program, const struct ir_order *buffers) {
  int64_t n = 0;
  codec_i64(c, &n);
  for (int64_t i = 0; i < n && !c->failed; i++) {
    const void *from;
    int64_t at = 0;
    codec_i64(c, &at);
    int64_t bytes = read_source(c, buffers, &from);
    if (from == NULL || at < 0 || at > program->memory.constants - bytes) return false;
    memcpy(program->constants + at, from, (size_t)bytes);
  }
  return !c->failed;
}

/* Those that are packed: scratch, how many, and of each its kernel, its offset and its source. */
static void write_packings(struct codec *c, const struct engine_build *b, const struct ir_order *buffers) {
  size_t n = b->packings.n, stride = engine_packing_scratch(b);
  codec_size(c, &stride);
  codec_size(c, &n);
  for (size_t i = 0; i < n; i++) {
    struct engine_packing p = b->packings.at[i];
    codec_int(c, &p.kernel);
    codec_i64(c, &p.at);
    write_source(c, p.source, buffers);
  }
}

/* False when a packing cannot be the program's. */
static bool packing_fits(const quern_program *program, const struct engine_packing *p, int64_t bytes) {
  if (p->from == NULL || p->kernel < 0 || p->kernel >= program->n_kernels) return false;
  const struct kern *kern = program->kernels[p->kernel];
  const struct kern_mem *in = &kern->mems[0], *out = &kern->mems[1];
  int64_t packed = kern->n_mems == 2 ? out->count * (int64_t)base_dtypes[out->dtype].size : -1;
  return packed >= 0 && in->count * (int64_t)base_dtypes[in->dtype].size == bytes && p->at >= 0 &&
         p->at <= program->memory.constants - packed;
}

/* Reads what there is to pack, and packs it. Sources that were kept have to be aligned first: they are copied to the arena. */
static bool read_packings(struct codec *c, quern_program *program, const struct ir_order *buffers,
                          struct base_arena *arena) {
  size_t n = 0, stride = 0;
  codec_size(c, &stride);
  codec_size(c, &n);
  if (c->failed || n > (size_t)(c->end - c->at)) return false;
  struct engine_packing *list = base_arena_alloc(arena, (n + 1) * sizeof *list);
  for (size_t i = 0; i < n && list != NULL; i++) {
    struct engine_packing *p = &list[i];
    const char *begin = c->at;
    *p = (struct engine_packing){0};
    codec_int(c, &p->kernel);
    codec_i64(c, &p->at);
    int64_t bytes = read_source(c, buffers, &p->from);
    bool kept = (const char *)p->from >= begin && (const char *)p->from < c->end;
    if (kept) p->from = base_arena_copy(arena, p->from, (size_t)bytes);
    if (!packing_fits(program, p, bytes)) return false;
  }
  return list != NULL && !c->failed && c->at == c->end &&
         engine_launch_packings(program, stride, n, list) == QUERN_STATUS_OK;
}

/* ---- finding and keeping --------------------------------------------------------------------------------- */

/* Whether a program was planned for no more than the device has free now, where that is what limits it: a smaller one is made else. */
static bool has_room(const struct engine_build *b, const quern_program *made) {
  int64_t free, total;
  if (b->request->options.memory_limit > 0) return true;
  if (engine_device_room(b->program->device, &free, &total) != QUERN_STATUS_OK) return true;
  return total == 0 || made->memory.total <= engine_plan_room(free, total);
}

/* Reads the program; whatever is wrong with the bytes, it is not found then. */
static bool read_blob(struct engine_build *b, quern_program *made, const char *bytes, size_t n,
                      const struct ir_order *buffers) {
  size_t used = 0;
  engine_program_set_device(made, b->program->device); /* the cache has it for all of the kind */
  if (engine_program_read(made, "cache", bytes, n, &used) != QUERN_STATUS_OK) return false;
  made->constants = base_alloc_zero(&made->heap, (size_t)made->memory.constants);
  struct codec c = {.reading = true, .at = bytes + used, .end = bytes + n, .arena = &made->arena, .heap = &made->heap};
  made->target = b->program->target;
  return made->constants != NULL && read_constants(&c, made, buffers) && read_packings(&c, made, buffers, &b->arena);
}

quern_status engine_cache_find(struct engine_build *b, bool *found) {
  struct engine_key key;
  double start = base_clock();
  *found = false;
  QUERN_TRY(make_key(b, &key, &b->cacheable));
  memcpy(b->cache_key, key.word, sizeof key.word);
  if (!b->cacheable) return QUERN_STATUS_OK;
  struct base_heap *heap = &b->ctx->heap;
  struct ir_order buffers;
  quern_program *made = NULL;
  void *bytes = NULL;
  size_t n = 0, room = 0;
  QUERN_TRY(rt_blob_get(heap, b->cache_key, &bytes, &n, &room));
  if (bytes == NULL) return QUERN_STATUS_OK;
  quern_status status = find_buffers(b, &buffers);
  if (status == QUERN_STATUS_OK) {
    status = engine_program_empty(&made, &heap->user);
    *found = status == QUERN_STATUS_OK && read_blob(b, made, bytes, n, &buffers) && has_room(b, made);
    ir_order_fini(b->ctx, &buffers);
  }
  base_free(heap, bytes, room);
  if (*found) {
    made->counts.compiled = 0;
    made->counts.cached = 1;
    made->counts.seconds_passes = made->counts.seconds_plan = 0;
    made->counts.seconds_compile = base_clock() - start;
    quern_program_free(b->program);
    b->program = made;
  } else if (made != NULL) {
    quern_program_free(made);
  }
  return status;
}

quern_status engine_cache_keep(const struct engine_build *b) {
  if (!b->cacheable) return QUERN_STATUS_OK;
  struct base_heap *heap = &b->ctx->heap;
  struct base_str str;
  struct ir_order buffers;
  base_str_init(&str, heap);
  quern_status status = engine_program_bytes(b->program, &str);
  if (status == QUERN_STATUS_OK) {
    status = find_buffers(b, &buffers);
    if (status == QUERN_STATUS_OK) {
      write_constants(&(struct codec){.out = &str}, b, &buffers);
      write_packings(&(struct codec){.out = &str}, b, &buffers);
      ir_order_fini(b->ctx, &buffers);
      status = base_str_status(&str);
    }
  }
  if (status == QUERN_STATUS_OK) rt_blob_set(heap, b->cache_key, str.at, str.n);
  base_str_fini(&str);
  return status == QUERN_STATUS_UNSUPPORTED ? QUERN_STATUS_OK : status; /* interpreted: there is nothing to keep */
}
