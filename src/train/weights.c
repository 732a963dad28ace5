/* train/weights.c -- the parameters of a language model from a checkpoint or from safetensors
** Tensors are found by name and converted to the dtype of the parameter. GPT-2 as HuggingFace saves it is read, too: its names may lack
** "transformer.", and the weights of its Conv1D are (in, out), as the first layer's attn.c_attn.weight shows.
** tests: tests/train/test_generate.c
*/
#include <stdio.h>

#include "io/checkpoint.h"
#include "train/generate.h"
#include "train/train.h"

#define BARE "transformer." /* what bare names lack */
enum { NAME_MOST = 512 };

/* ---- opening ------------------------------------------------------------------------------------------------------ */

quern_status train_weights_open(struct train_weights *w, struct base_heap *heap, const char *path) {
  *w = (struct train_weights){.heap = heap, .path = path};
  QUERN_TRY(io_tensors_open(&w->checkpoint, &w->opened, path, &heap->user));
  w->file = w->checkpoint != NULL ? quern_checkpoint_tensors(w->checkpoint) : w->opened;
  return QUERN_STATUS_OK;
}

void train_weights_close(struct train_weights *w) {
  quern_checkpoint_close(w->checkpoint);
  quern_safetensors_close(w->opened);
  w->checkpoint = NULL;
  w->opened = NULL;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* The number of a tensor; the file's tensors are few thousand at most, and each is asked for once. */
static bool find(const struct train_weights *w, const char *name, size_t *number, quern_safetensor *tensor) {
  size_t n = quern_safetensors_count(w->file);
  for (size_t i = 0; i < n; i++) {
    if (quern_safetensors_get(w->file, i, tensor) != QUERN_STATUS_OK || strcmp(tensor->name, name) != 0) continue;
    *number = i;
    return true;
  }
  return false;
}

static bool begins(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }
static bool ends(const char *text, const char *with) {
  size_t n = strlen(text), m = strlen(with);
  return n >= m && strcmp(text + n - m, with) == 0;
}

/* What the file calls a parameter. */
static const char *name_in_file(const struct train_weights *w, const char *name) {
  return w->bare && begins(name, BARE) ? name + strlen(BARE) : name;
}

static bool is_turned(const struct train_weights *w, const char *name) {
  return w->turned && (ends(name, ".c_attn.weight") || ends(name, ".c_proj.weight") || ends(name, ".c_fc.weight"));
}

void train_weights_inspect(struct train_weights *w, quern_lm_names names) {
  quern_safetensor t;
  size_t number;
  if (names != QUERN_LM_GPT2) return;
  w->bare = !find(w, BARE "wte.weight", &number, &t) && find(w, "wte.weight", &number, &t);
  const char *first = name_in_file(w, BARE "h.0.attn.c_attn.weight");
  w->turned = find(w, first, &number, &t) && t.rank == 2 && t.dims[0] < t.dims[1];
}

int64_t train_weights_vocabulary(const struct train_weights *w) {
  static const char *const embeddings[] = {BARE "wte.weight", "wte.weight", "model.embed_tokens.weight"};
  quern_safetensor t;
  size_t number;
  for (size_t i = 0; i < BASE_COUNT(embeddings); i++)
    if (find(w, embeddings[i], &number, &t) && t.rank == 2) return t.dims[0];
  return 0;
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

static bool fits(const quern_slot *slot, const quern_safetensor *t, bool turned) {
  bool same = slot->rank == t->rank;
  for (int i = 0; same && i < t->rank; i++) same = slot->dims[i] == t->dims[turned ? t->rank - 1 - i : i];
  return same;
}

static const char *shape_text(char text[96], int rank, const int64_t *dims) {
  int at = snprintf(text, 96, "(");
  for (int i = 0; i < rank && at < 70; i++)
    at += snprintf(text + at, 96 - (size_t)at, i > 0 ? ", %lld" : "%lld", (long long)dims[i]);
  snprintf(text + at, 96 - (size_t)at, ")");
  return text;
}

/* Elements of another dtype, or of a matrix that lies the other way. What is narrower than f32 is rounded from f32, as a
** cast of an f32 parameter would be. */
static quern_status convert(const struct train_weights *w, const quern_slot *slot, size_t number,
                            const quern_safetensor *t, bool turned, void *dst) {
  void *data = base_alloc(w->heap, t->bytes);
  if (data == NULL) return QUERN_STATUS_MEMORY;
  quern_status status = quern_safetensors_copy(w->file, number, data, t->bytes);
  size_t n = t->bytes / base_dtypes[t->dtype].size, rows = turned ? (size_t)t->dims[0] : 1,
         columns = n / BASE_MAX(rows, 1);
  for (size_t c = 0; status == QUERN_STATUS_OK && c < columns; c++)
    for (size_t r = 0; r < rows; r++) {
      float x;
      base_convert(QUERN_DTYPE_F32, &x, 0, t->dtype, data, r * columns + c);
      base_convert(slot->dtype, dst, c * rows + r, QUERN_DTYPE_F32, &x, 0);
    }
  base_free(w->heap, data, t->bytes);
  return status;
}

static quern_status load_state(const struct train_weights *w, const quern_slot *slot, void *dst) {
  const char *name = name_in_file(w, slot->name);
  bool turned = is_turned(w, slot->name) && slot->rank == 2;
  char want[96], got[96];
  quern_safetensor t;
  size_t number;
  QUERN_CHECK(find(w, name, &number, &t), INVALID, "'%s' has no tensor '%s' of shape %s, which the model needs",
              w->path, name, shape_text(want, slot->rank, slot->dims));
  QUERN_CHECK(fits(slot, &t, turned), SHAPE, "'%s': tensor '%s' is %s, the model's is %s", w->path, name,
              shape_text(got, t.rank, t.dims), shape_text(want, slot->rank, slot->dims));
  QUERN_CHECK(base_dtype_is(t.dtype, BASE_FLOAT), DTYPE, "'%s': tensor '%s' has elements of %s, must be floats",
              w->path, name, base_dtypes[t.dtype].name);
  if (t.dtype == slot->dtype && !turned) return quern_safetensors_copy(w->file, number, dst, slot->bytes);
  return convert(w, slot, number, &t, turned, dst);
}

/* An output weight of a model whose output weight is the embedding must be the same. */
static quern_status check_tied(const struct train_weights *w, const quern_safetensor *head) {
  quern_safetensor t = {0};
  size_t number;
  bool same =
      (find(w, name_in_file(w, BARE "wte.weight"), &number, &t) || find(w, "model.embed_tokens.weight", &number, &t)) &&
      t.dtype == head->dtype && t.bytes == head->bytes && memcmp(t.data, head->data, t.bytes) == 0;
  QUERN_CHECK(same, INVALID, "'%s': '%s' is not the embedding, as the model has it HINT: untied", w->path, head->name);
  return QUERN_STATUS_OK;
}

/* Tensors that belong to a model of this kind but not to this one. What a checkpoint has beside parameters, such as moments, does not,
** nor do the masks that HuggingFace saves. */
static quern_status refuse_others(const struct train_weights *w, const quern_model *model) {
  static const char *const kinds[] = {BARE, "h.", "wte.", "wpe.", "ln_f.", "model.", "lm_head."};
  size_t n = quern_safetensors_count(w->file);
  for (size_t i = 0; i < n; i++) {
    quern_safetensor t;
    char name[NAME_MOST];
    QUERN_TRY(quern_safetensors_get(w->file, i, &t));
    bool kind = false;
    for (size_t k = 0; k < BASE_COUNT(kinds); k++) kind = kind || begins(t.name, kinds[k]);
    if (!kind || ends(t.name, ".attn.bias") || ends(t.name, ".attn.masked_bias")) continue;
    bool head = strcmp(t.name, "lm_head.weight") == 0;
    snprintf(name, sizeof name, "%s%s", w->bare && !head ? BARE : "", t.name);
    if (quern_model_find(model, name) != NULL) continue;
    if (head) QUERN_TRY(check_tied(w, &t));
    QUERN_CHECK(
        head, INVALID,
        "'%s' has a tensor '%.128s', which the model has not HINT: are layers, biases and positions those of the file?",
        w->path, t.name);
  }
  return QUERN_STATUS_OK;
}

quern_status train_weights_load(const struct train_weights *w, const quern_model *model, const quern_program *program,
                                quern_instance *instance) {
  size_t n = quern_program_state_count(program);
  for (size_t i = 0; i < n; i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    QUERN_TRY(quern_program_state(program, i, &slot));
    char name[NAME_MOST];
    snprintf(name, sizeof name, "%.*s", (int)BASE_MIN(train_low_name(&slot), sizeof name), slot.name);
    slot.name = name;
    const quern_parameter *p = quern_model_find(model, name);
    if (p == NULL || !p->saved) continue;
    void *at;
    QUERN_TRY(train_state_open(w->heap, instance, i, &slot, &at));
    QUERN_TRY(train_state_close(w->heap, instance, i, &slot, at, load_state(w, &slot, at)));
  }
  return refuse_others(w, model);
}
