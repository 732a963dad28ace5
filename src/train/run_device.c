/* train/run_device.c -- the device of a run: whether it is there, what it computes in, states that lie in its own memory
** keeps: nothing is written before the device was found; states are copied one at a time
** tests: tests/train/test_device.c
*/
#include <stdio.h>

#include "engine/engine.h"
#include "train/train.h"

/* ---- whether it is there -------------------------------------------------------------------------------- */

/* Whether it is there, timed; then what code is made for, which loads libraries. */
static quern_status open_card(quern_trainer *t) {
  struct cg_target target;
  double start = base_clock();
  QUERN_TRY(rt_device_probe(t->device, &t->heap));
  t->info.context = base_clock() - start;
  QUERN_TRY(t->device->backend->target(t->device, &target));
  t->info.libraries = base_clock() - start - t->info.context;
  return QUERN_STATUS_OK;
}

quern_status train_device_open(quern_trainer *t, bool plan) {
  QUERN_TRY(rt_device_find(&t->device, "device", quern_config_get(t->config, "device")));
  t->info.device = t->device->name;
  t->remote = t->device->remote != NULL;
  if (!t->remote || plan) return QUERN_STATUS_OK;
  quern_status status = open_card(t);
  if (status == QUERN_STATUS_OK || status == QUERN_STATUS_MEMORY) return status;
  return base_error(status, "%s HINT: quern devices shows what is there", quern_last_error());
}

bool train_device_room(const quern_trainer *t, int64_t *bytes, int64_t *all) {
  const struct rt_remote *remote = t->device->remote;
  *bytes = *all = 0;
  return remote != NULL && remote->room != NULL && remote->room(t->device, bytes, all) == QUERN_STATUS_OK;
}

void train_device_mark(quern_trainer *t) {
  int64_t all;
  (void)train_device_room(t, &t->room, &all);
}

void train_device_measure(quern_trainer *t) {
  int64_t left, all;
  if (t->room == 0 || !train_device_room(t, &left, &all)) return;
  int64_t constants =
      t->main.program->memory.constants + (t->eval.program != NULL ? t->eval.program->memory.constants : 0);
  t->info.used = BASE_MAX(t->info.used, t->room - left + constants);
}

/* ---- precision ------------------------------------------------------------------------------------------ */

/* From this generation on NVIDIA's GPUs multiply bf16. */
enum { SM_BF16 = 80 };

/* What code is made for: as the configuration says, else the device's own, or a usual one where it is not there. */
static quern_status find_target(const quern_trainer *t, struct cg_target *target) {
  const char *asked = quern_config_get(t->config, "target");
  if (asked[0] != 0) return cg_target_parse(target, asked);
  if (rt_device_probe(t->device, &t->heap) == QUERN_STATUS_OK &&
      t->device->backend->target(t->device, target) == QUERN_STATUS_OK)
    return QUERN_STATUS_OK;
  return cg_target_parse(target, t->device->backend->usual_target);
}

/* What is computed in when nothing is said: bf16 where the device is made for it, else f32. */
static quern_status usual_precision(const quern_trainer *t, const char **precision) {
  struct cg_target target;
  int sm = 0;
  *precision = "f32";
  if (!t->remote) return QUERN_STATUS_OK;
  QUERN_TRY(find_target(t, &target));
  if (sscanf(target.base.name, "sm_%d", &sm) == 1 && sm >= SM_BF16) *precision = "bf16";
  return QUERN_STATUS_OK;
}

quern_status train_precision(quern_trainer *t, const quern_checkpoint *checkpoint) {
  const char *its = checkpoint != NULL ? quern_checkpoint_config(checkpoint, "precision") : NULL;
  if (strcmp(quern_config_get(t->config, "precision"), "auto") == 0) {
    if (its == NULL) QUERN_TRY(usual_precision(t, &its));
    QUERN_TRY(quern_config_set(t->config, "precision", its));
  }
  t->info.precision = quern_config_get(t->config, "precision");
  train_spec_precision(&t->spec, t->info.precision);
  return QUERN_STATUS_OK;
}

/* ---- states --------------------------------------------------------------------------------------------- */

quern_status train_state_open(struct base_heap *heap, quern_instance *instance, size_t i, const quern_slot *slot,
                              void **at) {
  *at = quern_instance_state(instance, i);
  if (*at == NULL) *at = base_alloc(heap, slot->bytes);
  return *at != NULL ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

quern_status train_state_close(struct base_heap *heap, quern_instance *instance, size_t i, const quern_slot *slot,
                               void *at, quern_status status) {
  if (at == NULL || at == quern_instance_state(instance, i)) return status;
  if (status == QUERN_STATUS_OK) status = quern_instance_set_state(instance, i, at);
  base_free(heap, at, slot->bytes);
  return status;
}

quern_status train_state_scalar(const quern_trainer *t, const char *name, double *value) {
  enum { MOST = 8 };
  _Alignas(8) unsigned char bytes[MOST];
  for (size_t i = 0; i < quern_program_state_count(t->main.program); i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    QUERN_TRY(quern_program_state(t->main.program, i, &slot));
    if (strcmp(slot.name, name) != 0 || slot.bytes > MOST) continue;
    QUERN_TRY(quern_instance_get_state(t->main.instance, i, bytes));
    bool real = base_dtype_is(slot.dtype, BASE_FLOAT);
    *value = real ? base_load_float(slot.dtype, bytes, 0) : (double)base_load_int(slot.dtype, bytes, 0);
    return QUERN_STATUS_OK;
  }
  return base_error(QUERN_STATUS_STATE, "the step has no scalar \"%s\"", name);
}
