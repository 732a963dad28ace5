/* driver/instance.c -- a case built in a context of its own
** Keys every operation understands, an item an operand or one for all: in=GENERATOR, view=T|flip|step2|bcast,
** and leaf=input|state|wrap|copy|const for what holds the elements.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"

/* ---- views: the leaf's shape, and the operand as an expression of the leaf ----------------------------- */

struct view {
  const char *name;
  void (*shape)(struct shape *s); /* of the operand into that of the leaf */
  quern_tensor *(*apply)(quern_tensor *leaf, const struct shape *s);
};

static void shape_same(struct shape *s) { (void)s; }
static void shape_reverse(struct shape *s) {
  for (int i = 0; i < s->rank / 2; i++) {
    int64_t d = s->dims[i];
    s->dims[i] = s->dims[s->rank - 1 - i];
    s->dims[s->rank - 1 - i] = d;
  }
}
static void shape_double(struct shape *s) {
  for (int i = 0; i < s->rank; i++) s->dims[i] *= 2;
}
static void shape_one(struct shape *s) {
  if (s->rank > 0) s->dims[0] = 1;
}

static quern_tensor *apply_none(quern_tensor *leaf, const struct shape *s) {
  (void)s;
  return leaf;
}
static quern_tensor *apply_transpose(quern_tensor *leaf, const struct shape *s) {
  int64_t axes[QUERN_MAX_RANK];
  for (int i = 0; i < s->rank; i++) axes[i] = s->rank - 1 - i;
  return quern_permute(leaf, s->rank, axes);
}
static quern_tensor *apply_flip(quern_tensor *leaf, const struct shape *s) {
  int64_t axes[QUERN_MAX_RANK];
  for (int i = 0; i < s->rank; i++) axes[i] = i;
  return s->rank == 0 ? leaf : quern_flip(leaf, s->rank, axes);
}
static quern_tensor *apply_step(quern_tensor *leaf, const struct shape *s) {
  for (int i = 0; i < s->rank; i++) leaf = quern_slice(leaf, i, 0, QUERN_END, 2);
  return leaf;
}
static quern_tensor *apply_broadcast(quern_tensor *leaf, const struct shape *s) {
  return quern_broadcast_to(leaf, s->rank, s->dims);
}

static const struct view views[] = {
    {"", shape_same, apply_none},        {"T", shape_reverse, apply_transpose}, {"flip", shape_same, apply_flip},
    {"step2", shape_double, apply_step}, {"bcast", shape_one, apply_broadcast},
};

static const struct view *view_find(const char *name) {
  for (size_t i = 0; i < BASE_COUNT(views); i++)
    if (strcmp(views[i].name, name) == 0) return &views[i];
  return NULL;
}

/* ---- leaves -------------------------------------------------------------------------------------------- */

static quern_dtype operand_dtype(const struct test_case *c, char role) {
  quern_dtype index = QUERN_DTYPE_I64;
  if (role == 'b') return QUERN_DTYPE_BOOL;
  if (role == 's') return QUERN_DTYPE_U64;
  if (role != 'i') return c->dtype;
  if (quern_dtype_from_name(case_text(c, "index", "i64"), &index) != QUERN_STATUS_OK) return QUERN_DTYPE_I64;
  return index;
}

/* The generator of an operand: the line's, the builder's for floats and indices, or one for the dtype. */
static void operand_generator(const struct test_case *c, int i, char role, quern_dtype dtype, char *item,
                              size_t bytes) {
  case_item(c, "in", i, item, bytes);
  bool alone = strchr(case_text(c, "in", ""), ',') == NULL;
  if (alone && (role == 'i' || role == 'b' || role == 's')) item[0] = 0;
  if (item[0] != 0) return;
  if (base_dtype_is(dtype, BASE_FLOAT) || role == 'i') {
    const char *domain = c->builder->domain;
    for (int k = 0; k < i && strchr(domain, ',') != NULL; k++) domain = strchr(domain, ',') + 1;
    snprintf(item, bytes, "%.*s", (int)strcspn(domain, ","), domain);
    if (item[0] == 0) snprintf(item, bytes, "%s", role == 'i' ? "index" : "normal");
  } else {
    snprintf(item, bytes, "%s",
             dtype == QUERN_DTYPE_BOOL           ? "int:0:1"
             : base_dtype_is(dtype, BASE_SIGNED) ? "int:-20:20"
                                                 : "int:0:40");
  }
}

static quern_tensor *make_leaf(struct instance *in, int i, quern_dtype dtype, const struct shape *s) {
  char name[16];
  const char *kind = case_text(in->c, "leaf", "input");
  snprintf(name, sizeof name, "x%d", i);
  if (strcmp(kind, "state") == 0) return quern_state(in->ctx, name, dtype, s->rank, s->dims);
  if (strcmp(kind, "wrap") == 0) return quern_tensor_wrap(in->ctx, dtype, s->rank, s->dims, in->data[i]);
  if (strcmp(kind, "copy") == 0) return quern_tensor_copy(in->ctx, dtype, s->rank, s->dims, in->data[i]);
  if (strcmp(kind, "const") == 0) return quern_constant(in->ctx, dtype, s->rank, s->dims, in->data[i]);
  return quern_input(in->ctx, name, dtype, s->rank, s->dims);
}

static int64_t count_of(const struct shape *s) {
  int64_t n = 1;
  for (int i = 0; i < s->rank; i++) n *= s->dims[i];
  return n;
}

/* Makes leaf i with its elements, and the operand on it. */
static quern_tensor *open_operand(struct instance *in, int i) {
  const struct test_case *c = in->c;
  char item[64], role = builder_role(c->builder, i);
  struct shape s = c->shapes[i];
  quern_dtype dtype = operand_dtype(c, role);
  case_item(c, "view", i, item, sizeof item);
  const struct view *view = view_find(item);
  if (view == NULL) {
    base_error(QUERN_STATUS_INVALID, "unknown view '%s'", item);
    return NULL;
  }
  view->shape(&s);
  in->data[i] = grab((size_t)count_of(&s) * quern_dtype_size(dtype));
  in->n_leaves = i + 1;
  operand_generator(c, i, role, dtype, item, sizeof item);
  if (!gen_fill(c, item, i, dtype, count_of(&s), in->data[i])) {
    base_error(QUERN_STATUS_INVALID, "unknown generator '%s'", item);
    return NULL;
  }
  in->leaf[i] = make_leaf(in, i, dtype, &s);
  if (role == 'x' && base_dtype_is(dtype, BASE_FLOAT)) in->diff[in->n_diff++] = i;
  return view->apply(in->leaf[i], &c->shapes[i]);
}

/* ---- instances ----------------------------------------------------------------------------------------- */

static quern_status open_all(struct instance *in) {
  const struct test_case *c = in->c;
  struct args a = {.c = c, .dtype = c->dtype};
  if (in->ctx == NULL) QUERN_TRY(quern_context_new(&in->ctx, NULL));
  a.ctx = in->ctx;
  for (; c->builder->roles[0] != 0 && a.n < c->n_shapes; a.n++) {
    a.x[a.n] = open_operand(in, a.n);
    if (a.x[a.n] == NULL) return QUERN_STATUS_INVALID;
  }
  in->n_out = c->builder->build(&a);
  QUERN_TRY(quern_context_check(in->ctx));
  QUERN_CHECK(in->n_out > 0, INVALID, "the builder made no result: %s", quern_last_error());
  for (int i = 0; i < in->n_out; i++) {
    QUERN_CHECK(!quern_tensor_is_poison(a.y[i]), INTERNAL, "result %d is poison, but no error is recorded", i);
    in->out[i] = a.y[i];
  }
  return ir_verify(in->ctx, (size_t)in->n_out, in->out);
}

static bool open_or_close(struct instance *in) {
  if (open_all(in) == QUERN_STATUS_OK) return true;
  instance_close(in);
  return false;
}

bool instance_open(struct instance *in, const struct test_case *c) {
  *in = (struct instance){.c = c};
  return open_or_close(in);
}

bool instance_open_in(struct instance *in, const struct test_case *c, quern_context *ctx) {
  *in = (struct instance){.c = c, .ctx = ctx, .shares = true};
  ctx->next_stream = 0;
  return open_or_close(in) || instance_open(in, c); /* some register a name, and cannot share */
}

void instance_close(struct instance *in) {
  if (!in->shares) quern_context_free(in->ctx);
  for (int i = 0; i < in->n_leaves; i++) free(in->data[i]);
  *in = (struct instance){0};
}

size_t instance_feeds(const struct instance *in, quern_feed *feeds) {
  const char *leaf = case_text(in->c, "leaf", "input");
  if (strcmp(leaf, "input") != 0 && strcmp(leaf, "state") != 0) return 0;
  for (int i = 0; i < in->n_leaves; i++) feeds[i] = (quern_feed){in->leaf[i], in->data[i]};
  return (size_t)in->n_leaves;
}

quern_status instance_eval(const struct instance *in, size_t n, quern_tensor *const *roots, void *const *dst,
                           size_t n_more, const quern_feed *more) {
  quern_feed feeds[CASE_OPERANDS * 4];
  size_t n_feeds = instance_feeds(in, feeds);
  QUERN_CHECK(n_feeds + n_more <= BASE_COUNT(feeds), INVALID, "too many feeds");
  for (size_t i = 0; i < n_more; i++) feeds[n_feeds++] = more[i];
  return quern_eval_reference(in->ctx, n, roots, dst, n_feeds, feeds);
}

void buffers_new(size_t n, quern_tensor *const *tensors, void **dst) {
  for (size_t i = 0; i < n; i++) dst[i] = grab(quern_tensor_bytes(tensors[i]));
}

void buffers_free(size_t n, void **dst) {
  for (size_t i = 0; i < n; i++) free(dst[i]);
}
