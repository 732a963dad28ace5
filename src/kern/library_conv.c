/* kern/library_conv.c -- library calls of convolutions and their gradients: checked, as text, in the hash, and run with plain loops
** in:    a kernel whose call is CONV     out: what a library gives, up to the order of sums
** keeps: sums are in the dtype of accumulators; every result is rounded once
** see:   library_call.c, pass/convolutions.c (the composites)      tests: tests/pass/test_convolutions.c
*/
#include <math.h>

#include "kern/kern_int.h"

enum { AXES = KERN_CONV_SPATIAL };

/* A tensor of the call: rows, then its three places, then columns. */
struct dense {
  const char *name;
  int mem;
  const int64_t *places;
  int64_t rows, columns;
  bool out;
};

static void list(const struct kern *kern, struct dense all[3]) {
  const struct kern_conv *c = &kern->library_call.conv;
  const struct dense three[3] = {
      {"x", c->x, c->in, c->samples, c->channels, c->part == KERN_CONV_INPUT_GRAD},
      {"w", c->w, c->window, c->outputs, c->channels / BASE_MAX(c->groups, 1), c->part == KERN_CONV_WEIGHT_GRAD},
      {"y", c->y, c->out, c->samples, c->outputs, c->part == KERN_CONV_FORWARD}};
  memcpy(all, three, sizeof three);
}

/* ---- checking -------------------------------------------------------------------------------------------- */

/* Places of the result are those of all windows that lie in the padded x. */
static quern_status check_axis(const struct kern *kern, int i) {
  const struct kern_conv *c = &kern->library_call.conv;
  bool some = c->in[i] > 0 && c->out[i] > 0 && c->window[i] > 0 && c->step[i] > 0 && c->dilation[i] > 0 &&
              c->pad[i] >= 0 && c->in[i] <= INT32_MAX && c->pad[i] <= INT32_MAX && c->window[i] <= INT32_MAX &&
              c->dilation[i] <= INT32_MAX && c->step[i] <= INT32_MAX;
  bool used = i < c->spatial || (c->in[i] == 1 && c->out[i] == 1 && c->window[i] == 1 && c->pad[i] == 0);
  int64_t span = some ? c->dilation[i] * (c->window[i] - 1) + 1 : 0, padded = some ? c->in[i] + 2 * c->pad[i] : 0;
  if (some && used && span <= padded && c->out[i] == (padded - span) / c->step[i] + 1) return QUERN_STATUS_OK;
  return kern_library_fault(kern, "axis %d: %lld places of %lld, window %lld, step %lld, dilation %lld, padding %lld",
                            i, (long long)c->out[i], (long long)c->in[i], (long long)c->window[i],
                            (long long)c->step[i], (long long)c->dilation[i], (long long)c->pad[i]);
}

quern_status kern_check_conv(const struct kern *kern) {
  const struct kern_conv *c = &kern->library_call.conv;
  struct dense all[3];
  bool divides = c->groups > 0 && c->channels % c->groups == 0 && c->outputs % c->groups == 0;
  if ((unsigned)c->part >= KERN_CONV_PARTS || c->spatial < 1 || c->spatial > AXES || c->samples <= 0 ||
      c->channels <= 0 || c->outputs <= 0 || !divides)
    return kern_library_fault(
        kern, "part %d of a convolution with %d axes, %lld samples, %lld channels, %lld outputs, %lld groups",
        (int)c->part, c->spatial, (long long)c->samples, (long long)c->channels, (long long)c->outputs,
        (long long)c->groups);
  for (int i = 0; i < AXES; i++) QUERN_TRY(check_axis(kern, i));
  list(kern, all);
  for (int i = 0; i < 3; i++) {
    const int64_t extents[5] = {all[i].rows, all[i].places[0], all[i].places[1], all[i].places[2], all[i].columns};
    int64_t strides[5] = {0, 0, 0, 0, 1};
    for (int k = 3; k >= 0; k--)
      if (!kern_mul_fits(strides[k + 1], extents[k + 1], &strides[k]))
        return kern_library_fault(kern, "%s has too many elements", all[i].name);
    QUERN_TRY(kern_check_reach(kern, all[i].name, all[i].mem, all[i].out ? KERN_OUT : KERN_IN, 0, 5, extents, strides));
    quern_dtype dtype = kern->mems[all[i].mem].dtype, first = kern->mems[c->x].dtype;
    if (dtype != first || (dtype != QUERN_DTYPE_BF16 && dtype != QUERN_DTYPE_F16 && dtype != QUERN_DTYPE_F32))
      return kern_library_fault(kern, "%s is of %s, x of %s", all[i].name, base_dtypes[dtype].name,
                                base_dtypes[first].name);
  }
  return QUERN_STATUS_OK;
}

/* ---- text and hash --------------------------------------------------------------------------------------- */

static void print_axes(struct base_str *str, const char *name, const struct kern_conv *c, const int64_t *axes) {
  base_str_printf(str, "%s", name);
  for (int i = 0; i < c->spatial; i++) base_str_printf(str, "%s%lld", i > 0 ? "x" : " ", (long long)axes[i]);
}

void kern_print_conv(struct base_str *str, const struct kern *kern) {
  static const char *const parts[] = {"", ", gradient of the input", ", gradient of the weight"};
  const struct kern_conv *c = &kern->library_call.conv;
  struct dense all[3];
  base_str_printf(str, " of %lld samples, %lld channels to %lld in %lld groups%s", (long long)c->samples,
                  (long long)c->channels, (long long)c->outputs, (long long)c->groups, parts[c->part]);
  print_axes(str, ": from", c, c->in);
  print_axes(str, " to", c, c->out);
  print_axes(str, ", window", c, c->window);
  print_axes(str, ", step", c, c->step);
  print_axes(str, ", dilation", c, c->dilation);
  print_axes(str, ", padding", c, c->pad);
  base_str_printf(str, "%s%s:\n", c->tf32 ? ", tf32" : "", c->exact ? "" : ", in any order");
  list(kern, all);
  for (int i = 0; i < 3; i++) base_str_printf(str, "  %s: mem %d\n", all[i].name, all[i].mem);
}

uint64_t kern_hash_conv(uint64_t h, const struct kern *kern) {
  const struct kern_conv *c = &kern->library_call.conv;
  const int64_t words[] = {c->part, c->spatial, c->groups, c->samples, c->channels, c->outputs,
                           c->x,    c->w,       c->y,      c->exact,   c->tf32};
  const int64_t *const axes[] = {c->in, c->out, c->window, c->step, c->dilation, c->pad};
  h = base_hash_bytes(h, words, sizeof words);
  for (size_t i = 0; i < BASE_COUNT(axes); i++) h = base_hash_bytes(h, axes[i], AXES * sizeof **axes);
  return h;
}

/* ---- running --------------------------------------------------------------------------------------------- */

static int64_t offset(const struct dense *t, int64_t row, const int64_t *at, int64_t column) {
  for (int i = 0; i < AXES; i++) row = row * t->places[i] + at[i];
  return row * t->columns + column;
}

/* The next of all places; false after the last. */
static bool next_place(const int64_t *extents, int64_t *at) {
  for (int i = AXES - 1; i >= 0; i--) {
    if (++at[i] < extents[i]) return true;
    at[i] = 0;
  }
  return false;
}

/* Where window element r of the result's place o lies in x; false: in the padding. */
static bool find_input(const struct kern_conv *c, const int64_t *o, const int64_t *r, int64_t *in) {
  bool inside = true;
  for (int i = 0; i < AXES; i++) {
    in[i] = c->step[i] * o[i] + c->dilation[i] * r[i] - c->pad[i];
    inside = inside && in[i] >= 0 && in[i] < c->in[i];
  }
  return inside;
}

/* A run of the call: elements widened, sums in f32. */
struct run {
  const struct kern_conv *c;
  struct dense t[3]; /* x, w, y */
  float *at[3];
};

/* All products of one sample, output place and place in the window: the gradients and the result are sums of such. */
static void take(const struct run *r, int64_t n, const int64_t *o, const int64_t *window, const int64_t *in) {
  const struct kern_conv *c = r->c;
  int64_t channels = c->channels / c->groups, outputs = c->outputs / c->groups;
  for (int64_t k = 0; k < c->outputs; k++) {
    float *x = r->at[0] + offset(&r->t[0], n, in, k / outputs * channels);
    float *w = r->at[1] + offset(&r->t[1], k, window, 0), *y = r->at[2] + offset(&r->t[2], n, o, k);
    for (int64_t i = 0; i < channels; i++) {
      if (c->part == KERN_CONV_FORWARD) *y = fmaf(x[i], w[i], *y);
      if (c->part == KERN_CONV_INPUT_GRAD) x[i] = fmaf(*y, w[i], x[i]);
      if (c->part == KERN_CONV_WEIGHT_GRAD) w[i] = fmaf(*y, x[i], w[i]);
    }
  }
}

quern_status kern_run_conv(const struct kern *kern, void *const *mems) {
  struct run r = {.c = &kern->library_call.conv};
  int64_t counts[3], all = 0;
  size_t bytes;
  list(kern, r.t);
  for (int i = 0; i < 3; i++) {
    const int64_t *p = r.t[i].places;
    counts[i] = r.t[i].rows * p[0] * p[1] * p[2] * r.t[i].columns; /* checked */
    if (!kern_add_fits(all, counts[i], &all)) all = INT64_MAX;
  }
  QUERN_CHECK(all < INT64_MAX && base_size((size_t)all, sizeof(float), 0, &bytes), MEMORY,
              "kernel %s: no room for a convolution of %lld samples", kern_name(kern), (long long)r.c->samples);
  float *room = base_alloc_zero(kern->heap, bytes), *to = room;
  if (room == NULL) return QUERN_STATUS_MEMORY;
  for (int i = 0; i < 3; to += counts[i++]) {
    quern_dtype dtype = kern->mems[r.t[i].mem].dtype;
    r.at[i] = to;
    for (int64_t k = 0; k < counts[i] && !r.t[i].out; k++)
      to[k] = (float)base_load_float(dtype, mems[r.t[i].mem], (size_t)k);
  }
  for (int64_t n = 0; n < r.c->samples; n++) {
    int64_t o[AXES] = {0}, window[AXES] = {0}, in[AXES];
    do {
      do {
        if (find_input(r.c, o, window, in)) take(&r, n, o, window, in);
      } while (next_place(r.c->window, window));
    } while (next_place(r.c->out, o));
  }
  for (int i = 0; i < 3; i++)
    for (int64_t k = 0; k < counts[i] && r.t[i].out; k++)
      base_store_float(kern->mems[r.t[i].mem].dtype, mems[r.t[i].mem], (size_t)k, (double)r.at[i][k]);
  base_free(kern->heap, room, bytes);
  return QUERN_STATUS_OK;
}
