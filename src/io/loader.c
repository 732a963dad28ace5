/* io/loader.c -- batches of a source, prefetched by threads
** Batches are numbered as they are given out; number k lies in slot k of a ring. Whoever is free takes the next number, so that
** the contents of a batch depend on its place in the data only. One slot is the caller's; `prefetch` others are ahead of it.
** keeps: slots, counters and cursors are changed under the lock; a slot that is being filled belongs to its worker
** see:   docs/data.md             tests: tests/io/test_data.c (also under tsan)
*/
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>

#include "io/data.h"

enum { WORKERS_MOST = 256, PREFETCH_MOST = 1024, ALIGNMENT = 64 };

enum state { FREE, FILLING, READY, HELD };

struct slot {
  enum state state;
  quern_cursor cursor; /* where its batch begins */
  quern_status status;
  char message[BASE_MESSAGE_BYTES]; /* when status is not OK */
  int64_t samples;
  unsigned char *memory; /* of all fields */
  void *fields[QUERN_MAX_FIELDS];
  int64_t *indices;
};

struct quern_loader {
  struct base_heap heap, buffers;
  const quern_source *source;
  quern_loader_options options;
  struct io_sample_order order;
  int64_t count;          /* samples of an epoch */
  int64_t whole;          /* samples of a batch over all ranks */
  size_t n_slots, memory; /* bytes of a slot's */
  struct slot *slots;
  int n_workers;
  struct base_thread *workers;
  quern_cursor at; /* of the next batch for the caller */
  /* under the lock: */
  pthread_mutex_t lock;
  pthread_cond_t work, done;
  uint64_t filled, given; /* numbers of the next batch to fill, and to give */
  quern_cursor ahead;     /* of the next batch to fill */
  int filling;
  bool quit, paused;
};

/* ---- cursors ------------------------------------------------------------------------------------------- */

/* The same place, at the next epoch's beginning when this one has no batch left. */
static quern_cursor settle(const quern_loader *loader, quern_cursor cursor) {
  int64_t left = loader->count - cursor.position;
  bool over = loader->options.last == QUERN_LAST_DROP ? left < loader->whole : left <= 0;
  return over ? (quern_cursor){cursor.epoch + 1, 0} : cursor;
}

static quern_cursor after(const quern_loader *loader, quern_cursor cursor) {
  return settle(loader, (quern_cursor){cursor.epoch, cursor.position + loader->whole});
}

static bool is_over(const quern_loader *loader, quern_cursor cursor) {
  return loader->options.epochs > 0 && cursor.epoch >= loader->options.epochs;
}

/* ---- filling ------------------------------------------------------------------------------------------- */

/* Fills sample i of all fields with what only fills up. */
static void pad(const quern_loader *loader, struct slot *slot, int64_t i) {
  for (size_t f = 0; f < loader->source->n_fields; f++) {
    const quern_field *field = &loader->source->fields[f];
    size_t n = loader->source->bytes[f] / base_dtypes[field->dtype].size, first = (size_t)i * n;
    for (size_t k = 0; k < n; k++) {
      if (base_dtype_is(field->dtype, BASE_FLOAT))
        base_store_float(field->dtype, slot->fields[f], first + k, (double)field->pad);
      else
        base_store_int(field->dtype, slot->fields[f], first + k, (uint64_t)field->pad);
    }
  }
  slot->indices[i] = -1;
}

/* Reads the batch at the slot's cursor. */
static void fill(const quern_loader *loader, struct slot *slot) {
  const quern_source *source = loader->source;
  slot->samples = 0;
  slot->status = QUERN_STATUS_OK;
  for (int64_t i = 0; i < loader->options.batch; i++) {
    void *fields[QUERN_MAX_FIELDS];
    int64_t position = slot->cursor.position + loader->options.rank * loader->options.batch + i;
    if (position >= loader->count) {
      pad(loader, slot, i);
      continue;
    }
    int64_t index = io_sample_order_at(&loader->order, slot->cursor.epoch, position);
    for (size_t f = 0; f < source->n_fields; f++)
      fields[f] = (unsigned char *)slot->fields[f] + (size_t)i * source->bytes[f];
    quern_status status = io_source_read(source, index, fields);
    if (status != QUERN_STATUS_OK) {
      slot->status = status;
      snprintf(slot->message, sizeof slot->message, "%s\n  in epoch %" PRIu64 ", position %" PRId64 ", sample %" PRId64,
               quern_last_error(), slot->cursor.epoch, position, index);
      return;
    }
    slot->indices[i] = index;
    slot->samples++;
  }
}

static void run_worker(void *arg) {
  quern_loader *loader = arg;
  pthread_mutex_lock(&loader->lock);
  while (!loader->quit) {
    struct slot *slot = &loader->slots[loader->filled % loader->n_slots];
    if (loader->paused || slot->state != FREE || is_over(loader, loader->ahead)) {
      pthread_cond_wait(&loader->work, &loader->lock);
      continue;
    }
    slot->state = FILLING;
    slot->cursor = loader->ahead;
    loader->ahead = after(loader, loader->ahead);
    loader->filled++;
    loader->filling++;
    pthread_mutex_unlock(&loader->lock);
    fill(loader, slot);
    pthread_mutex_lock(&loader->lock);
    slot->state = READY;
    loader->filling--;
    pthread_cond_broadcast(&loader->done);
  }
  pthread_mutex_unlock(&loader->lock);
}

/* Empties the ring and stops at a cursor; the lock is held. */
static void stop_at(quern_loader *loader, quern_cursor cursor) {
  loader->paused = true;
  while (loader->filling > 0) pthread_cond_wait(&loader->done, &loader->lock);
  for (size_t i = 0; i < loader->n_slots; i++) loader->slots[i].state = FREE;
  loader->filled = loader->given = 0;
  loader->at = loader->ahead = cursor;
}

/* Lets the workers begin; the lock is held. */
static void go_on(quern_loader *loader) {
  loader->paused = false;
  pthread_cond_broadcast(&loader->work);
}

/* ---- making -------------------------------------------------------------------------------------------- */

/* Zeros become the defaults. */
static void set_defaults(quern_loader_options *o) {
  if (o->batch == 0) o->batch = 1;
  if (o->world == 0) o->world = 1;
  if (o->prefetch == 0) o->prefetch = 2;
  o->workers = o->workers == 0 ? 1 : o->workers == -1 ? 0 : o->workers;
}

static quern_status check_options(const quern_source *source, const quern_loader_options *options) {
  QUERN_CHECK(options->batch > 0, INVALID, "loader_new: a batch of %" PRId64 " samples", options->batch);
  QUERN_CHECK((unsigned)options->order <= QUERN_ORDER_WEIGHTED, INVALID, "loader_new: there is no order %d",
              (int)options->order);
  QUERN_CHECK((unsigned)options->last <= QUERN_LAST_PAD, INVALID, "loader_new: last is %d", (int)options->last);
  QUERN_CHECK(options->world > 0 && options->rank >= 0 && options->rank < options->world, INVALID,
              "loader_new: rank %d of %d", options->rank, options->world);
  QUERN_CHECK(options->batch <= (INT64_C(1) << 56) / options->world, OVERFLOW,
              "loader_new: %d ranks with %" PRId64 " samples each", options->world, options->batch);
  QUERN_CHECK(options->workers >= 0 && options->workers <= WORKERS_MOST, INVALID,
              "loader_new: %d workers; must be -1 to %d", options->workers, WORKERS_MOST);
  QUERN_CHECK(options->prefetch >= 0 && options->prefetch <= PREFETCH_MOST, INVALID,
              "loader_new: prefetch is %d; must be 0 to %d", options->prefetch, PREFETCH_MOST);
  QUERN_CHECK(options->draws >= 0 && options->draws < INT64_C(1) << 56, INVALID, "loader_new: %" PRId64 " draws",
              options->draws);
  bool weighted = options->order == QUERN_ORDER_WEIGHTED;
  QUERN_CHECK(!weighted || (options->weights != NULL && options->n_weights == (uint64_t)source->samples), INVALID,
              "loader_new: there are %zu weights for %" PRId64 " samples",
              options->weights != NULL ? options->n_weights : 0, source->samples);
  return QUERN_STATUS_OK;
}

/* Where the fields lie in a slot's memory; false: it is too much. */
static bool lay_out(const quern_loader *loader, size_t offsets[QUERN_MAX_FIELDS], size_t *bytes) {
  *bytes = 0;
  for (size_t i = 0; i < loader->source->n_fields; i++) {
    offsets[i] = *bytes;
    if (!base_size((size_t)loader->options.batch, loader->source->bytes[i], *bytes, bytes) ||
        *bytes > SIZE_MAX - ALIGNMENT)
      return false;
    *bytes = (*bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  }
  return true;
}

static quern_status make_slots(quern_loader *loader) {
  size_t offsets[QUERN_MAX_FIELDS] = {0}, indices;
  bool fits = lay_out(loader, offsets, &loader->memory) &&
              base_size((size_t)loader->options.batch, sizeof(int64_t), 0, &indices);
  QUERN_CHECK(fits, OVERFLOW, "loader_new: a batch of %" PRId64 " samples does not fit into memory",
              loader->options.batch);
  loader->n_slots = loader->options.workers > 0 ? (size_t)loader->options.prefetch + 1 : 1;
  loader->n_slots = BASE_MAX(loader->n_slots, loader->options.workers > 0 ? 2 : 1);
  loader->slots = base_alloc_zero(&loader->heap, loader->n_slots * sizeof *loader->slots);
  if (loader->slots == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < loader->n_slots; i++) {
    struct slot *slot = &loader->slots[i];
    slot->memory = base_alloc(&loader->buffers, loader->memory);
    slot->indices = base_alloc(&loader->heap, indices);
    if (slot->memory == NULL || slot->indices == NULL) return QUERN_STATUS_MEMORY;
    for (size_t f = 0; f < loader->source->n_fields; f++) slot->fields[f] = slot->memory + offsets[f];
  }
  return QUERN_STATUS_OK;
}

static quern_status start_workers(quern_loader *loader) {
  size_t n = (size_t)loader->options.workers;
  if (n == 0) return QUERN_STATUS_OK;
  loader->workers = base_alloc_zero(&loader->heap, n * sizeof *loader->workers);
  if (loader->workers == NULL) return QUERN_STATUS_MEMORY;
  quern_status status = QUERN_STATUS_OK;
  while ((size_t)loader->n_workers < n && status == QUERN_STATUS_OK) {
    status = base_thread_start(&loader->workers[loader->n_workers], run_worker, loader);
    loader->n_workers += status == QUERN_STATUS_OK;
  }
  return status;
}

static quern_status fill_loader(quern_loader *loader) {
  const quern_loader_options *options = &loader->options;
  loader->count =
      options->order == QUERN_ORDER_WEIGHTED && options->draws > 0 ? options->draws : loader->source->samples;
  loader->whole = options->batch * options->world;
  QUERN_CHECK(options->last == QUERN_LAST_PAD || loader->count >= loader->whole, INVALID,
              "loader_new: an epoch of %" PRId64 " samples has no batch of %" PRId64
              " HINT: QUERN_LAST_PAD fills it up",
              loader->count, loader->whole);
  if (io_sample_order_init(&loader->order, &loader->heap, options->order, options->seed, loader->source->samples,
                           options->weights) != QUERN_STATUS_OK)
    return base_error(quern_last_status(), "loader_new: %s", quern_last_error());
  QUERN_TRY(make_slots(loader));
  return start_workers(loader);
}

quern_status quern_loader_new(quern_loader **loader, const quern_source *source, const quern_loader_options *options) {
  QUERN_CHECK(loader != NULL, INVALID, "loader_new: the place for the loader is null");
  *loader = NULL;
  QUERN_CHECK(source != NULL, INVALID, "loader_new: the source is null");
  QUERN_CHECK(options != NULL, INVALID, "loader_new: the options are null");
  quern_loader_options o;
  QUERN_TRY(base_take(quern_loader_options, &o, options, "loader_new"));
  set_defaults(&o);
  options = &o;
  QUERN_TRY(check_options(source, options));
  struct base_heap heap;
  base_heap_init(&heap, &options->allocator);
  quern_loader *made = base_alloc_zero(&heap, sizeof *made);
  if (made == NULL) return QUERN_STATUS_MEMORY;
  base_heap_init(&made->heap, &options->allocator);
  base_heap_init(&made->buffers, options->buffers.alloc != NULL ? &options->buffers : &options->allocator);
  made->source = source;
  made->options = *options;
  pthread_mutex_init(&made->lock, NULL);
  pthread_cond_init(&made->work, NULL);
  pthread_cond_init(&made->done, NULL);
  quern_status status = fill_loader(made);
  made->options.weights = NULL; /* the caller's, and read */
  if (status == QUERN_STATUS_OK)
    *loader = made;
  else
    quern_loader_free(made);
  return status;
}

void quern_loader_free(quern_loader *loader) {
  if (loader == NULL) return;
  pthread_mutex_lock(&loader->lock);
  loader->quit = true;
  pthread_cond_broadcast(&loader->work);
  pthread_mutex_unlock(&loader->lock);
  for (int i = 0; i < loader->n_workers; i++) base_thread_join(&loader->workers[i]);
  for (size_t i = 0; i < loader->n_slots && loader->slots != NULL; i++) {
    base_free(&loader->buffers, loader->slots[i].memory, loader->memory);
    base_free(&loader->heap, loader->slots[i].indices, (size_t)loader->options.batch * sizeof(int64_t));
  }
  base_free(&loader->heap, loader->slots, loader->n_slots * sizeof *loader->slots);
  base_free(&loader->heap, loader->workers, (size_t)loader->options.workers * sizeof *loader->workers);
  io_sample_order_fini(&loader->order, &loader->heap);
  pthread_cond_destroy(&loader->done);
  pthread_cond_destroy(&loader->work);
  pthread_mutex_destroy(&loader->lock);
  quern_allocator user = loader->heap.user;
  user.free(user.self, loader, sizeof *loader);
}

/* ---- use ----------------------------------------------------------------------------------------------- */

/* The slot of the next batch, filled; the lock is held. */
static struct slot *take(quern_loader *loader) {
  if (loader->n_workers == 0) {
    struct slot *slot = &loader->slots[0];
    slot->cursor = loader->at;
    pthread_mutex_unlock(&loader->lock); /* the source may take its time, or call tell */
    fill(loader, slot);
    pthread_mutex_lock(&loader->lock);
    return slot;
  }
  if (loader->given > 0) { /* the one that the caller had */
    loader->slots[(loader->given - 1) % loader->n_slots].state = FREE;
    pthread_cond_broadcast(&loader->work);
  }
  if (loader->paused) go_on(loader);
  struct slot *slot = &loader->slots[loader->given % loader->n_slots];
  while (slot->state != READY) pthread_cond_wait(&loader->done, &loader->lock);
  return slot;
}

quern_status quern_loader_next(quern_loader *loader, quern_batch *batch) {
  QUERN_CHECK(batch != NULL, INVALID, "loader_next: the place for the batch is null");
  const quern_batch none = {0};
  QUERN_TRY(base_give(quern_batch, batch, &none, "loader_next"));
  QUERN_CHECK(loader != NULL, INVALID, "loader_next: the loader is null");
  if (is_over(loader, loader->at)) return QUERN_STATUS_OK;
  pthread_mutex_lock(&loader->lock);
  struct slot *slot = take(loader);
  quern_status status = slot->status;
  if (status != QUERN_STATUS_OK) {
    (void)base_error(status, "%s", slot->message);
    stop_at(loader, slot->cursor); /* until the next call */
  } else {
    slot->state = HELD;
    loader->given++;
    loader->at = after(loader, slot->cursor);
    const quern_batch made = {.epoch = slot->cursor.epoch,
                              .number = slot->cursor.position / loader->whole,
                              .samples = slot->samples,
                              .n_fields = loader->source->n_fields,
                              .fields = slot->fields,
                              .indices = slot->indices};
    base_struct_put(batch, batch->size, &made, sizeof made);
  }
  pthread_mutex_unlock(&loader->lock);
  return status;
}

quern_cursor quern_loader_tell(const quern_loader *loader) {
  return loader != NULL ? loader->at : (quern_cursor){0, 0};
}

quern_status quern_loader_seek(quern_loader *loader, quern_cursor cursor) {
  QUERN_CHECK(loader != NULL, INVALID, "loader_seek: the loader is null");
  QUERN_CHECK(cursor.position >= 0 && cursor.position <= loader->count, INVALID,
              "loader_seek: position %" PRId64 " of an epoch of %" PRId64, cursor.position, loader->count);
  pthread_mutex_lock(&loader->lock);
  stop_at(loader, settle(loader, cursor));
  go_on(loader);
  pthread_mutex_unlock(&loader->lock);
  return QUERN_STATUS_OK;
}

int64_t quern_loader_batch_count(const quern_loader *loader) {
  if (loader == NULL) return 0;
  return loader->count / loader->whole + (loader->options.last == QUERN_LAST_PAD && loader->count % loader->whole != 0);
}
