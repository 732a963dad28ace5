/* train/resume.c -- what a run needs to go on, saved and read again
** keeps: tensors are written from where they lie and read to where they lie, those on a device one at a time by way of the host; what is
**        compared is what determines what is computed
** tests: tests/train/test_train.c, tests/train/test_kill.c
*/
#define _DEFAULT_SOURCE /* madvise */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/checkpoint.h"
#include "io/json.h"
#include "train/train.h"

/* ---- saving --------------------------------------------------------------------------------------------- */

/* Numbers that a checkpoint has beside its tensors. Doubles are written with 17 digits: all of their bits. */
static quern_status state_text(const quern_trainer *t, struct base_str *str) {
  quern_cursor cursor = quern_loader_tell(t->loader);
  base_str_printf(str, "{\"epoch\":%" PRIu64 ",\"position\":%" PRId64 ",\"accum\":%" PRId64 ",\"bad\":%" PRId64,
                  cursor.epoch, cursor.position, t->info.accum, t->bad);
  if (isfinite(t->best)) base_str_printf(str, ",\"best\":%.17g", t->best);
  if (t->schedule.plateau.reports > 0) {
    base_str_printf(str, ",\"plateau\":{\"reports\":%" PRId64 ",\"bad\":%" PRId64 ",\"falls\":%" PRId64,
                    t->schedule.plateau.reports, t->schedule.plateau.bad, t->schedule.plateau.falls);
    if (isfinite(t->schedule.plateau.best)) base_str_printf(str, ",\"best\":%.17g", t->schedule.plateau.best);
    base_str_add(str, "}");
  }
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
  quern_safetensor *tensors;
};

/* Whether no element is infinite or NaN: the exponent's bits are not all set. Of integers, always. */
#define ALL_FINITE(T, MASK)                                                                                            \
  do {                                                                                                                 \
    const T *at = data;                                                                                                \
    for (size_t i = 0; i < bytes / sizeof(T); i++) bad |= (at[i] & (MASK)) == (MASK);                                  \
  } while (0)
static bool is_finite(quern_dtype dtype, const void *data, size_t bytes) {
  bool bad = false;
  if (dtype == QUERN_DTYPE_F64) ALL_FINITE(uint64_t, UINT64_C(0x7ff) << 52);
  if (dtype == QUERN_DTYPE_F32) ALL_FINITE(uint32_t, UINT32_C(0xff) << 23);
  if (dtype == QUERN_DTYPE_BF16) ALL_FINITE(uint16_t, 0xff << 7);
  if (dtype == QUERN_DTYPE_F16) ALL_FINITE(uint16_t, 0x1f << 10);
  return !bad;
}

/* A step can be finite and its update not: what could not be gone on from does not take the place of what can. */
static quern_status check_finite(const struct saving *saving, size_t i, const void *data) {
  const quern_safetensor *tensor = &saving->tensors[i];
  size_t bytes = base_dtypes[tensor->dtype].size;
  for (int k = 0; k < tensor->rank; k++) bytes *= (size_t)tensor->dims[k];
  QUERN_CHECK(is_finite(tensor->dtype, data, bytes), STATE,
              "trainer_save: after step %" PRId64
              " %s has a value that is not finite: it is not saved, and the checkpoint before stays HINT: a smaller lr",
              saving->t->info.step, tensor->name);
  return QUERN_STATUS_OK;
}

/* Of quern_checkpoint_contents: a state that lies on a device. */
static quern_status read_state(void *user, size_t i, void *dst) {
  const struct saving *saving = user;
  QUERN_TRY(quern_instance_get_state(saving->t->main.instance, saving->states[i], dst));
  return check_finite(saving, i, dst);
}

/* All states that are kept. */
static quern_status list_tensors(const struct saving *saving, size_t *n) {
  const quern_trainer *t = saving->t;
  *n = 0;
  for (size_t i = 0; i < quern_program_state_count(t->main.program); i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    QUERN_TRY(quern_program_state(t->main.program, i, &slot));
    if (!is_saved(t, slot.name)) continue;
    const void *data = quern_instance_state(t->main.instance, i);
    saving->states[*n] = i;
    saving->tensors[*n] =
        (quern_safetensor){.name = slot.name, .dtype = slot.dtype, .rank = slot.rank, .dims = slot.dims, .data = data};
    if (data != NULL) QUERN_TRY(check_finite(saving, *n, data));
    ++*n;
  }
  return QUERN_STATUS_OK;
}

static quern_status save(quern_trainer *t, const char *state) {
  char name[IO_CHECKPOINT_NAME_MOST];
  size_t most = quern_program_state_count(t->main.program);
  size_t bytes = (most + 1) * sizeof(quern_safetensor), config_bytes = train_n_keys * sizeof(quern_string_pair);
  struct saving saving = {t, base_alloc(&t->heap, (most + 1) * sizeof(size_t)), base_alloc(&t->heap, bytes)};
  quern_string_pair *config = base_alloc(&t->heap, config_bytes);
  quern_checkpoint_contents contents = QUERN_INIT(quern_checkpoint_contents);
  bool room = saving.tensors != NULL && config != NULL && saving.states != NULL;
  quern_status status = room ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
  if (status == QUERN_STATUS_OK) status = list_tensors(&saving, &contents.n_tensors);
  for (size_t i = 0; i < train_n_keys && config != NULL; i++)
    config[i] = (quern_string_pair){train_keys[i].name, quern_config_get(t->config, train_keys[i].name)};
  contents.step = (uint64_t)t->info.step;
  contents.seed = (uint64_t)quern_config_int(t->config, "seed");
  contents.cursor = (uint64_t)(t->info.step * t->info.batch);
  contents.tensors = saving.tensors;
  contents.n_config = train_n_keys;
  contents.config = config;
  contents.state = state;
  contents.keep = (size_t)quern_config_int(t->config, "keep");
  contents.allocator = t->heap.user;
  contents.read = read_state;
  contents.user = &saving;
  if (status == QUERN_STATUS_OK) status = io_checkpoint_save(t->info.out, &contents, name);
  if (status == QUERN_STATUS_OK) status = io_path_join(t->path, t->info.out, name);
  base_free(&t->heap, saving.states, (most + 1) * sizeof(size_t));
  base_free(&t->heap, saving.tensors, bytes);
  base_free(&t->heap, config, config_bytes);
  return status;
}

quern_status quern_trainer_save(quern_trainer *trainer, const char **path) {
  quern_trainer *t = trainer;
  QUERN_CHECK(t != NULL, INVALID, "trainer_save: the trainer is null");
  if (path != NULL) *path = NULL;
  QUERN_CHECK(t->info.out[0] != 0, STATE, "trainer_save: the run has no folder HINT: out=FOLDER");
  QUERN_TRY(train_sync(t));
  QUERN_CHECK(!t->broken, STATE, "trainer_save: the last step was not finite: it is not saved");
  QUERN_TRY(train_lock(t, t->info.out));
  struct base_str str;
  base_str_init(&str, &t->heap);
  quern_status status = state_text(t, &str);
  if (status == QUERN_STATUS_OK) status = save(t, str.at);
  base_str_fini(&str);
  if (status == QUERN_STATUS_OK && path != NULL) *path = t->path;
  return status;
}

/* ---- going on ------------------------------------------------------------------------------------------- */

/* A number of a checkpoint's state. */
struct number {
  const char *key;
  int64_t least, most;
  int64_t *value;
};

/* Reads numbers, which must all be there and within their bounds. */
static quern_status read_numbers(const char *path, const json_t *object, size_t n, const struct number *numbers) {
  for (size_t i = 0; i < n; i++) {
    const struct number *one = &numbers[i];
    const json_t *value = json_object_get(object, one->key);
    *one->value = json_integer_value(value);
    QUERN_CHECK(json_is_integer(value) && *one->value >= one->least && *one->value <= one->most, PARSE,
                "%s: its state has no \"%s\" that is a whole number from %" PRId64 " to %" PRId64
                ": there is no going on from it HINT: without this folder the run goes on from the checkpoint before",
                path, one->key, one->least, one->most);
  }
  return QUERN_STATUS_OK;
}

/* A real number; where it is missing, the value stays. */
static quern_status read_real(const char *path, const json_t *object, const char *key, bool needed, double *x) {
  const json_t *value = json_object_get(object, key);
  QUERN_CHECK(json_is_number(value) || (value == NULL && !needed), PARSE,
              "%s: its state has no \"%s\" that is a number", path, key);
  if (value != NULL) *x = json_number_value(value);
  return QUERN_STATUS_OK;
}

static quern_status parse_state(const quern_checkpoint_info *info, json_t **state) {
  return io_json_parse(info->path, info->state, strlen(info->state), state);
}

quern_status train_compare(quern_trainer *t, const quern_checkpoint *checkpoint, int64_t *parts) {
  quern_checkpoint_info info = QUERN_INIT(quern_checkpoint_info);
  json_t *state;
  QUERN_TRY(quern_checkpoint_get_info(checkpoint, &info));
  for (size_t i = 0; i < train_n_keys; i++) {
    const char *key = train_keys[i].name, *ours = quern_config_get(t->config, key);
    const char *its = quern_checkpoint_config(checkpoint, key);
    QUERN_CHECK(!train_key_is_same(i) || its == NULL || train_same_value(i, its, ours), INVALID,
                "%s: was made with %s = '%.100s', not '%.100s' HINT: another folder: out=FOLDER", info.path, key, its,
                ours);
  }
  QUERN_TRY(parse_state(&info, &state));
  char digest[32];
  snprintf(digest, sizeof digest, "%016" PRIx64, t->data.digest);
  const char *its = json_string_value(json_object_get(state, "data"));
  t->changed = its != NULL && strcmp(its, digest) != 0;
  quern_status status = QUERN_STATUS_OK;
  if (its == NULL)
    status = base_error(QUERN_STATUS_PARSE, "%s: its state has no \"data\" that is a digest of the data", info.path);
  if (status == QUERN_STATUS_OK)
    status = read_numbers(info.path, state, 1, &(struct number){"accum", 1, INT32_MAX, parts});
  json_decref(state);
  return status;
}

quern_status train_check_data(const quern_trainer *t) {
  QUERN_CHECK(!t->changed, INVALID,
              "%s: the data has changed since the run began: '%.200s' HINT: another folder: out=FOLDER", t->info.out,
              t->task.name != NULL ? t->task.name : t->info.data);
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
  for (size_t i = 0; i < quern_program_state_count(t->main.program); i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
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

/* Every tensor of the checkpoint is a state of this network. */
static quern_status check_names(const quern_trainer *t, const quern_checkpoint *checkpoint) {
  quern_checkpoint_info info = QUERN_INIT(quern_checkpoint_info);
  const quern_safetensors *file = quern_checkpoint_tensors(checkpoint);
  QUERN_TRY(quern_checkpoint_get_info(checkpoint, &info));
  for (size_t i = 0; i < quern_safetensors_count(file); i++) {
    quern_safetensor tensor;
    QUERN_TRY(quern_safetensors_get(file, i, &tensor));
    QUERN_CHECK(is_saved(t, tensor.name), INVALID,
                "%s: has a tensor \"%.128s\", which the network has not: it was made with another network HINT: "
                "another folder: out=FOLDER",
                info.path, tensor.name);
  }
  return QUERN_STATUS_OK;
}

/* Where the run stood, from the JSON of a checkpoint. */
static quern_status restore_state(quern_trainer *t, const quern_checkpoint_info *info, const json_t *state) {
  int64_t epoch, position, samples = t->changed ? INT64_MAX : t->info.train_samples;
  const struct number numbers[] = {{"epoch", 0, TRAIN_STEPS_MOST, &epoch},
                                   {"position", 0, samples, &position},
                                   {"bad", 0, TRAIN_STEPS_MOST, &t->bad}};
  const struct number plateaus[] = {{"reports", 0, TRAIN_STEPS_MOST, &t->schedule.plateau.reports},
                                    {"bad", 0, TRAIN_STEPS_MOST, &t->schedule.plateau.bad},
                                    {"falls", 0, TRAIN_STEPS_MOST, &t->schedule.plateau.falls}};
  QUERN_CHECK(info->step <= (uint64_t)BASE_MIN(TRAIN_STEPS_MOST, INT64_MAX / t->info.batch), PARSE,
              "%s: has made %" PRIu64 " steps of %" PRId64 " samples, which is too many", info->path, info->step,
              t->info.batch);
  t->info.step = (int64_t)info->step;
  double made; /* fewer than that where gradients overflowed */
  if (train_state_scalar(t, "step", &made) == QUERN_STATUS_OK)
    QUERN_CHECK(made >= 0 && made <= (double)info->step, PARSE,
                "%s: has made %" PRIu64 " steps, and its state \"step\" says %.17g", info->path, info->step, made);
  QUERN_TRY(read_numbers(info->path, state, BASE_COUNT(numbers), numbers));
  QUERN_TRY(read_real(info->path, state, "best", false, &t->best));
  const json_t *plateau = json_object_get(state, "plateau");
  if (plateau != NULL) {
    t->schedule.plateau.best = INFINITY; /* until an evaluation is finite */
    QUERN_TRY(read_real(info->path, plateau, "best", false, &t->schedule.plateau.best));
    QUERN_TRY(read_numbers(info->path, plateau, BASE_COUNT(plateaus), plateaus));
  }
  if (t->changed) return QUERN_STATUS_OK; /* there is no going on, and the place means nothing */
  return quern_loader_seek(t->loader, (quern_cursor){(uint64_t)epoch, position});
}

/* The promise of the same bits is one for each target. Checkpoints of older versions have none. */
static void report_target(const quern_trainer *t, const json_t *state) {
  const char *was = json_string_value(json_object_get(state, "target"));
  if (was != NULL && strcmp(was, t->info.target) != 0)
    train_note(t, "target   goes on on %s, was %s: the last bits can differ from those of a run that stayed there",
               t->info.target, was);
}

quern_status train_restore(quern_trainer *t, const quern_checkpoint *checkpoint) {
  quern_checkpoint_info info = QUERN_INIT(quern_checkpoint_info);
  json_t *state;
  QUERN_TRY(check_names(t, checkpoint));
  QUERN_TRY(load_states(t, checkpoint));
  QUERN_TRY(quern_checkpoint_get_info(checkpoint, &info));
  QUERN_TRY(parse_state(&info, &state));
  report_target(t, state);
  quern_status status = restore_state(t, &info, state);
  json_decref(state);
  return status;
}
