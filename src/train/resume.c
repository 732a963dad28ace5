/* train/resume.c -- what a run needs to go on, saved and read again
** keeps: tensors are written from where they lie and read to where they lie, those on a device one at a time by way of the host; what is
**        compared is what says what is computed
** tests: tests/train/test_train.c, tests/train/test_kill.c
*/
#define _DEFAULT_SOURCE /* madvise */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/json.h"
#include "train/train.h"

/* ---- saving --------------------------------------------------------------------------------------------- */

/* Numbers that a checkpoint has beside its tensors. Doubles are written with 17 digits: all of their bits. */
static quern_status state_text(const quern_trainer *t, struct base_str *str) {
  quern_cursor cursor = quern_loader_tell(t->loader);
  base_str_printf(str, "{\"epoch\":%" PRIu64 ",\"position\":%" PRId64 ",\"accum\":%" PRId64 ",\"bad\":%" PRId64,
                  cursor.epoch, cursor.position, t->info.accum, t->bad);
  if (isfinite(t->best)) base_str_printf(str, ",\"best\":%.17g", t->best);
  if (t->schedule.plateau.reports > 0)
    base_str_printf(
        str, ",\"plateau\":{\"best\":%.17g,\"reports\":%" PRId64 ",\"bad\":%" PRId64 ",\"falls\":%" PRId64 "}",
        t->schedule.plateau.best, t->schedule.plateau.reports, t->schedule.plateau.bad, t->schedule.plateau.falls);
  base_str_printf(str, ",\"target\":\"%s\",\"data\":\"%016" PRIx64 "\"}", t->info.target, t->data.digest);
  return base_str_status(str);
}

static bool is_saved(const quern_trainer *t, const char *name) {
  const quern_parameter *p = quern_model_find(t->model, name);
  return p != NULL && p->saved;
}

/* A save under way: which state each tensor is. */
struct saving {
  quern_trainer *t;
  size_t *states;
};

/* Of quern_checkpoint_contents: a state that lies on a device. */
static quern_status read_state(void *user, size_t i, void *dst) {
  const struct saving *saving = user;
  return quern_instance_get_state(saving->t->main.instance, saving->states[i], dst);
}

/* All states that are kept. */
static quern_status list_tensors(const struct saving *saving, size_t *n, quern_safetensor *tensors) {
  const quern_trainer *t = saving->t;
  *n = 0;
  for (size_t i = 0; i < quern_program_states(t->main.program); i++) {
    quern_slot slot;
    QUERN_TRY(quern_program_state(t->main.program, i, &slot));
    if (!is_saved(t, slot.name)) continue;
    saving->states[*n] = i;
    tensors[(*n)++] = (quern_safetensor){.name = slot.name,
                                         .dtype = slot.dtype,
                                         .rank = slot.rank,
                                         .dims = slot.dims,
                                         .data = quern_instance_state(t->main.instance, i)};
  }
  return QUERN_STATUS_OK;
}

static quern_status save(quern_trainer *t, const char *state) {
  size_t most = quern_program_states(t->main.program);
  size_t bytes = (most + 1) * sizeof(quern_safetensor), config_bytes = train_n_keys * sizeof(quern_string_pair);
  struct saving saving = {t, base_alloc(&t->heap, (most + 1) * sizeof(size_t))};
  quern_safetensor *tensors = base_alloc(&t->heap, bytes);
  quern_string_pair *config = base_alloc(&t->heap, config_bytes);
  quern_checkpoint_contents contents = QUERN_CHECKPOINT_CONTENTS;
  bool room = tensors != NULL && config != NULL && saving.states != NULL;
  quern_status status = room ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
  if (status == QUERN_STATUS_OK) status = list_tensors(&saving, &contents.n_tensors, tensors);
  for (size_t i = 0; i < train_n_keys && config != NULL; i++)
    config[i] = (quern_string_pair){train_keys[i].name, quern_config_get(t->config, train_keys[i].name)};
  contents.step = (uint64_t)t->info.step;
  contents.seed = (uint64_t)quern_config_int(t->config, "seed");
  contents.cursor = (uint64_t)(t->info.step * t->info.batch);
  contents.tensors = tensors;
  contents.n_config = train_n_keys;
  contents.config = config;
  contents.state = state;
  contents.keep = (size_t)quern_config_int(t->config, "keep");
  contents.allocator = t->heap.user;
  contents.read = read_state;
  contents.user = &saving;
  if (status == QUERN_STATUS_OK) status = quern_checkpoint_save(t->info.out, &contents);
  base_free(&t->heap, saving.states, (most + 1) * sizeof(size_t));
  base_free(&t->heap, tensors, bytes);
  base_free(&t->heap, config, config_bytes);
  return status;
}

quern_status quern_trainer_save(quern_trainer *trainer, const char **path) {
  quern_trainer *t = trainer;
  QUERN_CHECK(t != NULL, INVALID, "trainer_save: the trainer is null");
  if (path != NULL) *path = NULL;
  QUERN_CHECK(t->info.out[0] != 0, STATE, "trainer_save: the run has no folder HINT: out=FOLDER");
  QUERN_TRY(train_settle(t));
  QUERN_CHECK(!t->broken, STATE, "trainer_save: the last step was not finite: it is not saved");
  int n = snprintf(t->path, sizeof t->path, "%s/step-%08lld", t->info.out, (long long)t->info.step);
  QUERN_CHECK(n > 0 && (size_t)n < sizeof t->path, INVALID, "trainer_save: the folder's name is too long");
  struct base_str str;
  base_str_init(&str, &t->heap);
  quern_status status = state_text(t, &str);
  if (status == QUERN_STATUS_OK) status = save(t, str.at);
  base_str_fini(&str);
  if (status == QUERN_STATUS_OK && path != NULL) *path = t->path;
  return status;
}

/* ---- going on ------------------------------------------------------------------------------------------- */

static bool same_number(const char *a, const char *b) {
  const char *a_end, *b_end, *a_stop = a + strlen(a), *b_stop = b + strlen(b);
  double x, y;
  return base_element_parse(a, a_stop, &a_end, QUERN_DTYPE_F64, &x, 0) && a_end == a_stop &&
         base_element_parse(b, b_stop, &b_end, QUERN_DTYPE_F64, &y, 0) && b_end == b_stop && x == y;
}

static int64_t whole(const json_t *object, const char *key) { return json_integer_value(json_object_get(object, key)); }
static double real(const json_t *object, const char *key) { return json_number_value(json_object_get(object, key)); }

static quern_status parse_state(const quern_checkpoint_info *info, json_t **state) {
  return io_json_parse(info->path, info->state, strlen(info->state), state);
}

quern_status train_compare(quern_trainer *t, const quern_checkpoint *checkpoint, int64_t *parts) {
  quern_checkpoint_info info;
  json_t *state;
  QUERN_TRY(quern_checkpoint_get(checkpoint, &info));
  for (size_t i = 0; i < train_n_keys; i++) {
    const char *key = train_keys[i].name, *ours = quern_config_get(t->config, key);
    const char *its = quern_checkpoint_config(checkpoint, key);
    if (!train_key_is_same(i) || its == NULL || strcmp(its, ours) == 0) continue;
    bool number = train_keys[i].type == QUERN_CONFIG_REAL && same_number(its, ours);
    QUERN_CHECK(number, INVALID, "%s: was made with %s = '%.100s', not '%.100s' HINT: another folder: out=FOLDER",
                info.path, key, its, ours);
  }
  QUERN_TRY(parse_state(&info, &state));
  char digest[32];
  snprintf(digest, sizeof digest, "%016" PRIx64, t->data.digest);
  const char *its = json_string_value(json_object_get(state, "data"));
  t->changed = its != NULL && strcmp(its, digest) != 0;
  *parts = whole(state, "accum");
  json_decref(state);
  return QUERN_STATUS_OK;
}

quern_status train_check_data(const quern_trainer *t) {
  QUERN_CHECK(!t->changed, INVALID,
              "%s: the data has changed since the run began: '%.200s' HINT: another folder: out=FOLDER", t->info.out,
              t->info.data);
  return QUERN_STATUS_OK;
}

/* Lets go of pages of the file: they need not count as the process's memory. */
static void let_go(const quern_safetensor *tensor) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  uintptr_t from = (uintptr_t)tensor->data / page * page, to = ((uintptr_t)tensor->data + tensor->bytes) / page * page;
  if (to > from) (void)madvise((void *)from, to - from, MADV_DONTNEED);
}

void train_release(const quern_checkpoint *checkpoint) {
  const quern_safetensors *file = quern_checkpoint_tensors(checkpoint);
  for (size_t i = 0; i < quern_safetensors_count(file); i++) {
    quern_safetensor tensor;
    if (quern_safetensors_get(file, i, &tensor) == QUERN_STATUS_OK) let_go(&tensor);
  }
}

static quern_status load_states(quern_trainer *t, const quern_checkpoint *checkpoint) {
  for (size_t i = 0; i < quern_program_states(t->main.program); i++) {
    quern_slot slot;
    quern_safetensor tensor;
    QUERN_TRY(quern_program_state(t->main.program, i, &slot));
    if (!is_saved(t, slot.name)) continue;
    void *at;
    QUERN_TRY(train_state_open(&t->heap, t->main.instance, i, &slot, &at));
    quern_status status = quern_checkpoint_load(checkpoint, slot.name, slot.dtype, slot.rank, slot.dims, at);
    QUERN_TRY(train_state_close(&t->heap, t->main.instance, i, &slot, at, status));
    QUERN_TRY(quern_safetensors_find(quern_checkpoint_tensors(checkpoint), slot.name, &tensor));
    let_go(&tensor);
  }
  return QUERN_STATUS_OK;
}

/* The promise of the same bits is one for each target. Checkpoints of older versions have none. */
static void tell_target(const quern_trainer *t, const json_t *state) {
  const char *was = json_string_value(json_object_get(state, "target"));
  if (was != NULL && strcmp(was, t->info.target) != 0)
    train_note(t, "target   goes on on %s, was %s: the last bits can differ from those of a run that stayed there",
               t->info.target, was);
}

quern_status train_restore(quern_trainer *t, const quern_checkpoint *checkpoint) {
  quern_checkpoint_info info;
  json_t *state;
  QUERN_TRY(load_states(t, checkpoint));
  QUERN_TRY(quern_checkpoint_get(checkpoint, &info));
  QUERN_TRY(parse_state(&info, &state));
  tell_target(t, state);
  quern_cursor cursor = {(uint64_t)whole(state, "epoch"), whole(state, "position")};
  const json_t *best = json_object_get(state, "best"), *plateau = json_object_get(state, "plateau");
  t->info.step = (int64_t)info.step;
  t->bad = whole(state, "bad");
  if (best != NULL) t->best = json_number_value(best);
  if (plateau != NULL) {
    t->schedule.plateau.best = real(plateau, "best");
    t->schedule.plateau.reports = whole(plateau, "reports");
    t->schedule.plateau.bad = whole(plateau, "bad");
    t->schedule.plateau.falls = whole(plateau, "falls");
  }
  json_decref(state);
  return quern_loader_seek(t->loader, cursor);
}
