/* kern/library_attention.c -- library calls of attention and its gradient: checked, as text, in the hash, and run with plain loops
** in:    a kernel whose call is ATTENTION or ATTENTION_BACK     out: what a library gives, up to the order of sums and roundings inside
** keeps: everything between loads and stores is f32; a query that attends to nothing gives zeros and -inf, and no gradient
** see:   library_call.c, tensor/attention.c (the composite)      tests: tests/kern/test_library_attention.c
*/
#include <math.h>

#include "kern/kern_int.h"

enum { VIEWS = 8, AXES = 4 };

/* A view of the call: which extents it has, and whether it is written. */
struct row {
  const char *name;
  const struct kern_view *view;
  int64_t heads, rows, width;
  bool back; /* of the gradient only */
  bool out;  /* written by the call */
};

static bool is_back(const struct kern *kern) { return kern->library_call.kind == KERN_LIBRARY_ATTENTION_BACK; }

static void list(const struct kern *kern, struct row rows[VIEWS]) {
  const struct kern_attention *a = &kern->library_call.attention;
  const int64_t H = a->heads, G = a->kv_heads, S = a->queries, T = a->keys, D = a->width, E = a->value_width;
  const struct row all[VIEWS] = {
      {"q", &a->q, H, S, D, false, false},  {"k", &a->k, G, T, D, false, false},
      {"v", &a->v, G, T, E, false, false},  {"y", &a->y, H, S, E, false, !is_back(kern)},
      {"dy", &a->dy, H, S, E, true, false}, {"dq", &a->dq, H, S, D, true, true},
      {"dk", &a->dk, G, T, D, true, true},  {"dv", &a->dv, G, T, E, true, true},
  };
  memcpy(rows, all, sizeof all);
}

/* ---- checking -------------------------------------------------------------------------------------------- */

/* Checks that no element of a view is another one as well: every stride steps over all that smaller strides reach. */
static bool is_apart(const int64_t *extents, const int64_t *strides) {
  bool used[AXES] = {false};
  int64_t reach = 0;
  for (int n = 0; n < AXES; n++) {
    int next = -1;
    for (int k = 0; k < AXES; k++)
      if (!used[k] && (next < 0 || strides[k] < strides[next])) next = k;
    used[next] = true;
    if (extents[next] == 1) continue;
    if (strides[next] <= reach) return false;
    reach += (extents[next] - 1) * strides[next];
  }
  return true;
}

static quern_status check_view(const struct kern *kern, const struct row *r, quern_dtype dtype) {
  const int64_t extents[AXES] = {kern->library_call.attention.batch, r->heads, r->rows, r->width};
  const int64_t strides[AXES] = {r->view->batch, r->view->head, r->view->row, 1};
  QUERN_TRY(
      kern_check_reach(kern, r->name, r->view->mem, r->out ? KERN_OUT : KERN_IN, r->view->at, AXES, extents, strides));
  if (kern->mems[r->view->mem].dtype != dtype)
    return kern_library_fault(kern, "%s is of %s, q of %s", r->name, base_dtypes[kern->mems[r->view->mem].dtype].name,
                              base_dtypes[dtype].name);
  if (r->out && !is_apart(extents, strides))
    return kern_library_fault(kern, "elements of %s lie in one place: strides %lld, %lld, %lld", r->name,
                              (long long)strides[0], (long long)strides[1], (long long)strides[2]);
  return QUERN_STATUS_OK;
}

static quern_status check_lse(const struct kern *kern) {
  const struct kern_attention *a = &kern->library_call.attention;
  const int64_t extents[] = {a->batch, a->heads, a->queries}, strides[] = {a->heads * a->queries, a->queries, 1};
  if (a->lse == KERN_NONE && !is_back(kern)) return QUERN_STATUS_OK;
  QUERN_TRY(kern_check_reach(kern, "lse", a->lse, is_back(kern) ? KERN_IN : KERN_OUT, 0, 3, extents, strides));
  if (kern->mems[a->lse].dtype == QUERN_DTYPE_F32) return QUERN_STATUS_OK;
  return kern_library_fault(kern, "lse is of %s", base_dtypes[kern->mems[a->lse].dtype].name);
}

quern_status kern_check_attention(const struct kern *kern) {
  const struct kern_attention *a = &kern->library_call.attention;
  const int64_t extents[] = {a->batch, a->heads, a->kv_heads, a->queries, a->keys, a->width, a->value_width};
  struct row rows[VIEWS];
  for (size_t i = 0; i < BASE_COUNT(extents); i++)
    if (extents[i] <= 0 || extents[i] > INT32_MAX)
      return kern_library_fault(kern, "extent %zu of attention is %lld", i, (long long)extents[i]);
  if (a->heads % a->kv_heads != 0)
    return kern_library_fault(kern, "%lld heads share %lld", (long long)a->heads, (long long)a->kv_heads);
  list(kern, rows);
  if (a->q.mem < 0 || a->q.mem >= kern->n_mems) return kern_library_fault(kern, "q is memory %d", a->q.mem);
  quern_dtype dtype = kern->mems[a->q.mem].dtype;
  if (dtype != QUERN_DTYPE_BF16 && dtype != QUERN_DTYPE_F16) return kern_library_fault(kern, "q is not of 16 bits");
  for (int i = 0; i < VIEWS; i++)
    if (!rows[i].back || is_back(kern)) QUERN_TRY(check_view(kern, &rows[i], dtype));
  return check_lse(kern);
}

/* ---- text and hash --------------------------------------------------------------------------------------- */

void kern_print_attention(struct base_str *str, const struct kern *kern) {
  const struct kern_attention *a = &kern->library_call.attention;
  struct row rows[VIEWS];
  base_str_printf(str, " of %lld x %lld / %lld heads, %lld queries, %lld keys, width %lld and %lld, scale %.9g%s%s:\n",
                  (long long)a->batch, (long long)a->heads, (long long)a->kv_heads, (long long)a->queries,
                  (long long)a->keys, (long long)a->width, (long long)a->value_width, a->scale,
                  a->causal ? ", causal" : "", is_back(kern) && !a->exact ? ", in any order" : "");
  list(kern, rows);
  for (int i = 0; i < VIEWS; i++) {
    const struct kern_view *v = rows[i].view;
    if (rows[i].back && !is_back(kern)) continue;
    base_str_printf(str, "  %s: mem %d, %lld + %lld n + %lld h + %lld t + d\n", rows[i].name, v->mem, (long long)v->at,
                    (long long)v->batch, (long long)v->head, (long long)v->row);
  }
  if (a->lse != KERN_NONE) base_str_printf(str, "  lse: mem %d\n", a->lse);
}

uint64_t kern_hash_attention(uint64_t h, const struct kern *kern) {
  const struct kern_attention *a = &kern->library_call.attention;
  struct row rows[VIEWS];
  const int64_t words[] = {a->batch, a->heads,       a->kv_heads, a->queries, a->keys,
                           a->width, a->value_width, a->causal,   a->exact,   a->lse};
  h = base_hash_bytes(base_hash_bytes(h, words, sizeof words), &a->scale, sizeof a->scale);
  list(kern, rows);
  for (int i = 0; i < VIEWS; i++) {
    const struct kern_view *v = rows[i].view;
    const int64_t place[] = {v->mem, v->at, v->batch, v->head, v->row};
    if (!rows[i].back || is_back(kern)) h = base_hash_bytes(h, place, sizeof place);
  }
  return h;
}

/* ---- running --------------------------------------------------------------------------------------------- */

/* One head at a time, in f32: rows of what its queries see, and what grows. */
struct head {
  const struct kern *kern;
  const struct kern_attention *call;
  void *const *mems;
  int64_t batch, head;    /* whose turn it is */
  float *k, *v, *dk, *dv; /* keys x width, keys x value_width */
  float *q, *y, *dy, *dq; /* a row of each */
  float *p;               /* of the keys */
};

static void load_rows(const struct head *h, const struct kern_view *view, int64_t head, int64_t first, int64_t rows,
                      int64_t width, float *to) {
  quern_dtype dtype = h->kern->mems[view->mem].dtype;
  for (int64_t t = first; t < first + rows; t++) {
    int64_t at = view->at + h->batch * view->batch + head * view->head + t * view->row;
    for (int64_t d = 0; d < width; d++) *to++ = (float)base_load_float(dtype, h->mems[view->mem], (size_t)(at + d));
  }
}

static void store_rows(const struct head *h, const struct kern_view *view, int64_t head, int64_t first, int64_t rows,
                       int64_t width, const float *from) {
  quern_dtype dtype = h->kern->mems[view->mem].dtype;
  for (int64_t t = first; t < first + rows; t++) {
    int64_t at = view->at + h->batch * view->batch + head * view->head + t * view->row;
    for (int64_t d = 0; d < width; d++) base_store_float(dtype, h->mems[view->mem], (size_t)(at + d), (double)*from++);
  }
}

static float dot(int64_t n, const float *x, const float *y) {
  float sum = 0;
  for (int64_t i = 0; i < n; i++) sum = fmaf(x[i], y[i], sum);
  return sum;
}
static void add_scaled(int64_t n, float by, const float *x, float *y) {
  for (int64_t i = 0; i < n; i++) y[i] = fmaf(by, x[i], y[i]);
}
static void clear(int64_t n, float *x) {
  for (int64_t i = 0; i < n; i++) x[i] = 0;
}

/* How many keys query i sees: the first ones. */
static int64_t attended(const struct kern_attention *a, int64_t i) {
  return a->causal ? BASE_MAX(BASE_MIN(i + a->keys - a->queries + 1, a->keys), 0) : a->keys;
}

/* p = scores of the query in h->q with the first n keys. */
static void score(const struct head *h, int64_t n) {
  const struct kern_attention *a = h->call;
  for (int64_t j = 0; j < n; j++) h->p[j] = dot(a->width, h->q, h->k + j * a->width) * (float)a->scale;
}

static float *lse_of(const struct head *h, int64_t i) {
  const struct kern_attention *a = h->call;
  return (float *)h->mems[a->lse] + (h->batch * a->heads + h->head) * a->queries + i;
}

static void query_forward(const struct head *h, int64_t i) {
  const struct kern_attention *a = h->call;
  int64_t n = attended(a, i);
  float row_max = -INFINITY, sum = 0;
  load_rows(h, &a->q, h->head, i, 1, a->width, h->q);
  score(h, n);
  for (int64_t j = 0; j < n; j++) row_max = h->p[j] > row_max || isnan(h->p[j]) ? h->p[j] : row_max;
  clear(a->value_width, h->y);
  for (int64_t j = 0; j < n; j++) {
    float e = expf(h->p[j] - row_max);
    sum += e;
    add_scaled(a->value_width, e, h->v + j * a->value_width, h->y);
  }
  for (int64_t e = 0; n > 0 && e < a->value_width; e++) h->y[e] /= sum;
  store_rows(h, &a->y, h->head, i, 1, a->value_width, h->y);
  if (a->lse != KERN_NONE) *lse_of(h, i) = n > 0 ? row_max + logf(sum) : -INFINITY;
}

static void query_backward(const struct head *h, int64_t i) {
  const struct kern_attention *a = h->call;
  int64_t n = attended(a, i), D = a->width, E = a->value_width;
  load_rows(h, &a->q, h->head, i, 1, D, h->q);
  load_rows(h, &a->y, h->head, i, 1, E, h->y);
  load_rows(h, &a->dy, h->head, i, 1, E, h->dy);
  score(h, n);
  float delta = dot(E, h->dy, h->y);
  clear(D, h->dq);
  for (int64_t j = 0; j < n; j++) {
    float p = expf(h->p[j] - *lse_of(h, i)), ds = p * (dot(E, h->dy, h->v + j * E) - delta) * (float)a->scale;
    add_scaled(E, p, h->dy, h->dv + j * E);
    add_scaled(D, ds, h->q, h->dk + j * D);
    add_scaled(D, ds, h->k + j * D, h->dq);
  }
  store_rows(h, &a->dq, h->head, i, 1, D, h->dq);
}

/* All heads that share a head of keys and values. */
static void run_shared(struct head *h, int64_t kv) {
  const struct kern_attention *a = h->call;
  int64_t shared = a->heads / a->kv_heads;
  load_rows(h, &a->k, kv, 0, a->keys, a->width, h->k);
  load_rows(h, &a->v, kv, 0, a->keys, a->value_width, h->v);
  clear(a->keys * a->width, h->dk);
  clear(a->keys * a->value_width, h->dv);
  for (h->head = kv * shared; h->head < (kv + 1) * shared; h->head++) {
    for (int64_t i = 0; i < a->queries; i++) {
      if (is_back(h->kern))
        query_backward(h, i);
      else
        query_forward(h, i);
    }
  }
  if (!is_back(h->kern)) return;
  store_rows(h, &a->dk, kv, 0, a->keys, a->width, h->dk);
  store_rows(h, &a->dv, kv, 0, a->keys, a->value_width, h->dv);
}

quern_status kern_run_attention(const struct kern *kern, void *const *mems) {
  const struct kern_attention *a = &kern->library_call.attention;
  struct head h = {.kern = kern, .call = a, .mems = mems};
  const int64_t k = a->keys * a->width, v = a->keys * a->value_width;
  float **const parts[] = {&h.k, &h.dk, &h.v, &h.dv, &h.q, &h.dq, &h.y, &h.dy, &h.p};
  const int64_t counts[] = {k, k, v, v, a->width, a->width, a->value_width, a->value_width, a->keys};
  int64_t all = 0;
  size_t bytes;
  for (size_t i = 0; i < BASE_COUNT(counts); i++) all += counts[i];
  QUERN_CHECK(base_size((size_t)all, sizeof(float), 0, &bytes), MEMORY, "kernel %s: no room for %lld keys",
              kern_name(kern), (long long)a->keys);
  float *room = base_alloc(kern->heap, bytes), *at = room;
  if (room == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < BASE_COUNT(parts); i++) {
    *parts[i] = at;
    at += counts[i];
  }
  for (h.batch = 0; h.batch < a->batch; h.batch++)
    for (int64_t kv = 0; kv < a->kv_heads; kv++) run_shared(&h, kv);
  base_free(kern->heap, room, bytes);
  return QUERN_STATUS_OK;
}
