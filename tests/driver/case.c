/* driver/case.c -- lines of text as cases
** in: "softmax f32,f64 4x7 axis=1"   out: a test_case for each dtype
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"

enum { LINE_BYTES = 1024 };

void *grab(size_t bytes) {
  void *memory = calloc(1, bytes == 0 ? 1 : bytes);
  if (memory == NULL) {
    fprintf(stderr, "querntest: no memory for %zu bytes\n", bytes);
    exit(2);
  }
  return memory;
}

/* Texts stay until the program ends. */
static char *keep_text(const char *text, size_t n) {
  static struct base_heap heap;
  static struct base_arena arena;
  if (arena.heap == NULL) {
    base_heap_init(&heap, NULL);
    base_arena_init(&arena, &heap);
  }
  char *copy = base_arena_string(&arena, text, n);
  if (copy == NULL) exit(2);
  return copy;
}

/* ---- values -------------------------------------------------------------------------------------------- */

const char *case_text(const struct test_case *c, const char *key, const char *fallback) {
  for (int i = 0; i < c->n_keys; i++)
    if (strcmp(c->keys[i].name, key) == 0) return c->keys[i].value;
  return fallback;
}

int64_t case_int(const struct test_case *c, const char *key, int64_t fallback) {
  const char *text = case_text(c, key, NULL);
  return text == NULL ? fallback : strtoll(text, NULL, 0);
}

double case_real(const struct test_case *c, const char *key, double fallback) {
  const char *text = case_text(c, key, NULL);
  return text == NULL ? fallback : strtod(text, NULL);
}

struct ints case_ints(const struct test_case *c, const char *key) {
  struct ints ints = {0};
  const char *text = case_text(c, key, "");
  while (*text != 0 && ints.n < QUERN_MAX_RANK) {
    char *end;
    ints.at[ints.n++] = strtoll(text, &end, 0);
    text = *end == ',' ? end + 1 : "";
  }
  return ints;
}

void case_item(const struct test_case *c, const char *key, int i, char *item, size_t bytes) {
  const char *text = case_text(c, key, "");
  if (strchr(text, ',') == NULL) i = 0;
  for (; i > 0 && *text != 0; i--) text += strcspn(text, ",") + (text[strcspn(text, ",")] == ',');
  snprintf(item, bytes, "%.*s", (int)strcspn(text, ","), text);
}

bool case_differentiable(const struct test_case *c, const char *mode) {
  const char *in = case_text(c, "in", ""), *leaf = case_text(c, "leaf", "input");
  if (!base_dtype_is(c->dtype, BASE_FLOAT) || strchr(c->builder->roles, 'x') == NULL) return false;
  if (strstr(in, "special") != NULL || strstr(in, "ties") != NULL) return false;
  if (strcmp(leaf, "input") != 0 && strcmp(leaf, "state") != 0) return false;
  if (case_int(c, "grad", 1) == 0 || case_int(c, mode, 1) == 0) return false;
  return strcmp(mode, "jvp") == 0 || case_int(c, "vjp", 1) != 0;
}

/* ---- shapes -------------------------------------------------------------------------------------------- */

bool shape_parse(const char *text, const char **end, struct shape *shape) {
  *shape = (struct shape){0};
  if (strncmp(text, "()", 2) == 0) {
    text += 2;
  } else if (*text == '-') {
    text++;
  } else {
    for (;;) {
      char *stop;
      if (*text < '0' || *text > '9' || shape->rank == QUERN_MAX_RANK) return false;
      shape->dims[shape->rank++] = strtoll(text, &stop, 10);
      text = stop;
      if (*text != 'x') break;
      text++;
    }
  }
  if (end != NULL) *end = text;
  return end != NULL || *text == 0;
}

char *shape_print(char *buffer, size_t bytes, int rank, const int64_t *dims) {
  size_t n = (size_t)snprintf(buffer, bytes, "%s", rank == 0 ? "-" : "");
  for (int i = 0; i < rank && n < bytes; i++)
    n += (size_t)snprintf(buffer + n, bytes - n, "%s%lld", i == 0 ? "" : "x", (long long)dims[i]);
  return buffer;
}

static bool parse_shapes(struct test_case *c, const char *text) {
  for (;;) {
    if (c->n_shapes == CASE_OPERANDS || !shape_parse(text, &text, &c->shapes[c->n_shapes])) return false;
    c->n_shapes++;
    if (*text == 0) return true;
    if (*text++ != ',') return false;
  }
}

/* ---- dtypes -------------------------------------------------------------------------------------------- */

static const struct {
  const char *name;
  enum base_dtype_class class;
} groups[] = {
    {"float", BASE_FLOAT}, {"int", BASE_INT}, {"num", BASE_NUM}, {"bits", BASE_INT | BASE_BOOL}, {"any", BASE_ANY},
};

/* Sets the bits of the dtypes a word means; false when it means none. */
static bool parse_dtype(const char *word, uint32_t *set) {
  quern_dtype dtype;
  for (size_t i = 0; i < BASE_COUNT(groups); i++) {
    if (strcmp(word, groups[i].name) != 0) continue;
    for (int d = 0; d < QUERN_DTYPE_COUNT; d++)
      if (base_dtype_is((quern_dtype)d, groups[i].class)) *set |= UINT32_C(1) << d;
    return true;
  }
  if (quern_dtype_from_name(word, &dtype) != QUERN_STATUS_OK) return false;
  *set |= UINT32_C(1) << dtype;
  return true;
}

static bool parse_dtypes(char *text, uint32_t *set) {
  for (char *save, *word = strtok_r(text, ",", &save); word != NULL; word = strtok_r(NULL, ",", &save))
    if (!parse_dtype(word, set)) return false;
  return *set != 0;
}

/* ---- lines --------------------------------------------------------------------------------------------- */

static bool complain(const char *file, int number, const char *what, const char *word) {
  fprintf(stderr, "querntest: %s:%d: %s '%s'\n", file == NULL ? "command line" : file, number, what, word);
  return false;
}

static bool parse_key(struct test_case *c, const char *word) {
  const char *equals = strchr(word, '=');
  if (equals == NULL || equals == word || c->n_keys == CASE_KEYS) return false;
  c->keys[c->n_keys].name = keep_text(word, (size_t)(equals - word));
  c->keys[c->n_keys++].value = keep_text(equals + 1, strlen(equals + 1));
  return true;
}

static void add(struct case_list *list, const struct test_case *c) {
  if (list->n == list->cap) {
    list->cap = list->cap * 2 + 64;
    struct test_case *at = grab(list->cap * sizeof *at);
    if (list->n != 0) memcpy(at, list->at, list->n * sizeof *at);
    free(list->at);
    list->at = at;
  }
  list->at[list->n++] = *c;
}

/* Whether a builder takes that many operands. Builders without operands take the shape of their result. */
static bool fits(const struct builder *b, int n) {
  size_t least = strcspn(b->roles, "|*");
  if (b->roles[0] == 0) return n == 1;
  if (b->roles[least] == '*' && least > 1) least--;
  return (size_t)n >= least && builder_role(b, n - 1) != 0;
}

bool case_parse(struct case_list *list, const char *line, const char *file, int number) {
  char copy[LINE_BYTES], *save;
  struct test_case c = {.file = file, .line = number};
  uint32_t dtypes = 0;
  snprintf(copy, sizeof copy, "%s", line);
  copy[strcspn(copy, "#\r\n")] = 0;
  char *word = strtok_r(copy, " \t", &save);
  if (word == NULL) return true;
  c.builder = builder_find(word);
  if (c.builder == NULL) {
    complain(file, number, "unknown operation", word);
    const char *nearest = builder_nearest(word);
    if (nearest != NULL) fprintf(stderr, "querntest: did you mean '%s'?\n", nearest);
    return false;
  }
  word = strtok_r(NULL, " \t", &save);
  if (word == NULL || !parse_dtypes(word, &dtypes))
    return complain(file, number, "dtypes expected, found", word ? word : "");
  char text[LINE_BYTES] = "";
  for (int i = 0; (word = strtok_r(NULL, " \t", &save)) != NULL; i++) {
    if (i == 0 && !parse_shapes(&c, word)) return complain(file, number, "shapes expected, found", word);
    if (i > 0 && !parse_key(&c, word)) return complain(file, number, "key=value expected, found", word);
    snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i == 0 ? "" : " ", word);
  }
  if (!fits(c.builder, c.n_shapes)) return complain(file, number, "wrong number of operands in", line);
  c.text = keep_text(text, strlen(text));
  for (int d = 0; d < QUERN_DTYPE_COUNT; d++) {
    if ((dtypes >> d & 1) == 0) continue;
    c.dtype = (quern_dtype)d;
    add(list, &c);
  }
  return true;
}

bool case_read(struct case_list *list, const char *path) {
  char line[LINE_BYTES];
  bool ok = true;
  FILE *file = fopen(path, "r");
  if (file == NULL) {
    fprintf(stderr, "querntest: cannot read %s\n", path);
    return false;
  }
  const char *name = keep_text(path, strlen(path));
  for (int number = 1; fgets(line, sizeof line, file) != NULL; number++)
    ok = case_parse(list, line, name, number) && ok;
  fclose(file);
  return ok;
}

void case_repro(const struct test_case *c, const char *mode) {
  printf("  repro: querntest --mode %s --op %s --dtype %s %s\n", mode, c->builder->name, quern_dtype_name(c->dtype),
         c->text);
}
