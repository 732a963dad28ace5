/* driver/builders.c -- the table of builders.def, and how its rows read keys */
#include <string.h>

#include "driver/builders.h"

#define BUILD(name, roles, domain, ...)                                                                                \
  static int make_##name(struct args *a) { return (__VA_ARGS__); }
#include "driver/builders.def"
#undef BUILD

const struct builder builders[] = {
#define BUILD(name, roles, domain, ...) {#name, roles, domain, make_##name},
#include "driver/builders.def"
#undef BUILD
};
const size_t builder_count = BASE_COUNT(builders);

const struct builder *builder_find(const char *name) {
  for (size_t i = 0; i < builder_count; i++)
    if (strcmp(builders[i].name, name) == 0) return &builders[i];
  return NULL;
}

const char *builder_nearest(const char *name) {
  const char *names[BASE_COUNT(builders)];
  for (size_t i = 0; i < builder_count; i++) names[i] = builders[i].name;
  return base_nearest(name, names, builder_count);
}

char builder_role(const struct builder *b, int i) {
  char role = 0;
  for (const char *at = b->roles; *at != 0; at++) {
    if (*at == '|') continue;
    if (*at == '*') return role;
    role = *at;
    if (i-- == 0) return role;
  }
  return 0;
}

const struct ints *args_ints(struct args *a, const char *key) {
  struct ints *ints = &a->pool[a->n_pool < (int)BASE_COUNT(a->pool) - 1 ? a->n_pool++ : a->n_pool];
  const char *text = case_text(a->c, key, "");
  struct shape s;
  if (strchr(text, ',') == NULL && shape_parse(text, NULL, &s)) {
    ints->n = s.rank;
    memcpy(ints->at, s.dims, sizeof s.dims);
  } else {
    *ints = case_ints(a->c, key);
  }
  return ints;
}

int args_word(const struct args *a, const char *key, const char *const *words) {
  const char *text = case_text(a->c, key, words[0]);
  for (int i = 0; words[i] != NULL; i++)
    if (strcmp(words[i], text) == 0) return i;
  return 0;
}

quern_dtype args_dtype(const struct args *a, const char *key) {
  quern_dtype dtype;
  return quern_dtype_from_name(case_text(a->c, key, ""), &dtype) == QUERN_STATUS_OK ? dtype : a->dtype;
}

const quern_random *args_random(struct args *a) {
  a->from = (quern_random){quern_scalar_int(a->ctx, QUERN_DTYPE_U64, INT(seed, 1)),
                           quern_scalar_int(a->ctx, QUERN_DTYPE_U64, INT(step, 0)), (uint32_t)INT(stream, 1)};
  return &a->from;
}
