/* sched/wisdom.c -- schedules that someone found better than the heuristic, read from a file
** A line: the group's hash (16 hex digits), the target's name, then name=number for what differs:
**   quern wisdom 1
**   # softmax of 1024 x 1024
**   4c1d0e5a93b7f210 avx512 grain=32 unroll=2
** keeps: wisdom changes speed, never bits: what bits depend on cannot be written
** tests: tests/sched/test_wisdom.c
*/
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "sched/sched.h"

struct sched_wisdom_entry {
  uint64_t group;
  char target[32];
  struct sched sched; /* 0: as the heuristic says */
};

static const struct {
  const char *name;
  size_t offset;
  bool wide; /* int64_t, else int */
  int64_t least, most;
} fields[] = {
    {"lanes", offsetof(struct sched, lanes), false, 1, KERN_MAX_LANES},
    {"unroll", offsetof(struct sched, unroll), false, 1, 16},
    {"grain", offsetof(struct sched, grain), true, 1, INT64_C(1) << 40},
    {"mr", offsetof(struct sched, mr), false, 1, 16},
    {"nr", offsetof(struct sched, nr), false, 1, 256},
    {"mc", offsetof(struct sched, mc), true, 1, INT64_C(1) << 40},
    {"nc", offsetof(struct sched, nc), true, 1, INT64_C(1) << 40},
};

static int64_t get(const struct sched *s, size_t i) {
  const char *at = (const char *)s + fields[i].offset;
  return fields[i].wide ? *(const int64_t *)(const void *)at : *(const int *)(const void *)at;
}

static void set(struct sched *s, size_t i, int64_t value) {
  char *at = (char *)s + fields[i].offset;
  if (fields[i].wide)
    *(int64_t *)(void *)at = value;
  else
    *(int *)(void *)at = (int)value;
}

/* ---- reading --------------------------------------------------------------------------------------------- */

/* "grain=32" */
static quern_status read_field(struct sched *sched, const char *word, const char *path, int line) {
  const char *equals = strchr(word, '='), *names[BASE_COUNT(fields)];
  QUERN_CHECK(equals != NULL, PARSE, "%s:%d: expected name=number, found '%s'", path, line, word);
  char name[32];
  snprintf(name, sizeof name, "%.*s", (int)BASE_MIN(equals - word, 31), word);
  for (size_t i = 0; i < BASE_COUNT(fields); i++) {
    names[i] = fields[i].name;
    if (strcmp(name, fields[i].name) != 0) continue;
    char *end;
    errno = 0;
    long long value = strtoll(equals + 1, &end, 10);
    QUERN_CHECK(end != equals + 1 && *end == 0 && errno == 0 && value >= fields[i].least && value <= fields[i].most,
                PARSE, "%s:%d: %s takes a number from %" PRId64 " to %" PRId64 ", found '%s'", path, line, name,
                fields[i].least, fields[i].most, equals + 1);
    bool power = (value & (value - 1)) == 0;
    QUERN_CHECK(power || strcmp(name, "lanes") != 0, PARSE, "%s:%d: lanes must be a power of two, found %lld", path,
                line, value);
    set(sched, i, value);
    return QUERN_STATUS_OK;
  }
  const char *near = base_nearest(name, names, BASE_COUNT(fields));
  return base_error(QUERN_STATUS_PARSE, "%s:%d: a schedule has no '%s'%s%s%s", path, line, name,
                    near != NULL ? "; did you mean '" : "", near != NULL ? near : "", near != NULL ? "'?" : "");
}

static quern_status read_line(struct sched_wisdom *wisdom, char *text, const char *path, int line) {
  char *rest, *word = strtok_r(text, " \t\n", &rest);
  if (word == NULL || word[0] == '#') return QUERN_STATUS_OK;
  struct sched_wisdom_entry entry = {0};
  char *end;
  entry.group = strtoull(word, &end, 16);
  QUERN_CHECK(*end == 0 && strlen(word) == 16, PARSE, "%s:%d: expected the 16 hex digits of a group, found '%s'", path,
              line, word);
  word = strtok_r(NULL, " \t\n", &rest);
  QUERN_CHECK(word != NULL && strlen(word) < sizeof entry.target, PARSE,
              "%s:%d: expected the name of a target, found '%s'", path, line, word != NULL ? word : "");
  snprintf(entry.target, sizeof entry.target, "%s", word);
  while ((word = strtok_r(NULL, " \t\n", &rest)) != NULL) QUERN_TRY(read_field(&entry.sched, word, path, line));
  wisdom->hash = base_hash_bytes(wisdom->hash, &entry, sizeof entry);
  return base_vec_push(wisdom->heap, &wisdom->entries, entry) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static quern_status read_all(struct sched_wisdom *wisdom, FILE *file, const char *path) {
  char text[512];
  int version = 0;
  bool head = fgets(text, sizeof text, file) != NULL && sscanf(text, "quern wisdom %d", &version) == 1;
  QUERN_CHECK(head && version == 1, PARSE, "%s:1: expected 'quern wisdom 1'", path);
  for (int line = 2; fgets(text, sizeof text, file) != NULL; line++) {
    QUERN_CHECK(strchr(text, '\n') != NULL || feof(file), PARSE, "%s:%d: the line is longer than %zu bytes", path, line,
                sizeof text - 2);
    QUERN_TRY(read_line(wisdom, text, path, line));
  }
  QUERN_CHECK(ferror(file) == 0, IO, "%s: cannot be read: %s", path, strerror(errno));
  return QUERN_STATUS_OK;
}

quern_status sched_wisdom_read(struct sched_wisdom *wisdom, struct base_heap *heap, const char *path) {
  *wisdom = (struct sched_wisdom){.heap = heap};
  if (path[0] == 0) return QUERN_STATUS_OK;
  FILE *file = fopen(path, "r");
  QUERN_CHECK(file != NULL, IO, "%s: cannot be opened: %s", path, strerror(errno));
  quern_status status = read_all(wisdom, file, path);
  (void)fclose(file);
  if (status != QUERN_STATUS_OK) sched_wisdom_fini(wisdom);
  return status;
}

void sched_wisdom_fini(struct sched_wisdom *wisdom) { base_vec_fini(wisdom->heap, &wisdom->entries); }

/* ---- using ----------------------------------------------------------------------------------------------- */

bool sched_wisdom_apply(const struct sched_wisdom *wisdom, const struct pass_group *group,
                        const struct base_target *target, struct sched *sched) {
  bool known = false;
  if (group->kind == PASS_KIND_COMPOSITE) return false; /* its blocks are part of its bits */
  for (size_t i = 0; i < wisdom->entries.n; i++) {
    const struct sched_wisdom_entry *entry = &wisdom->entries.at[i];
    if (entry->group != group->hash || strcmp(entry->target, target->name) != 0) continue;
    known = true;
    for (size_t k = 0; k < BASE_COUNT(fields); k++)
      if (get(&entry->sched, k) != 0) set(sched, k, get(&entry->sched, k));
  }
  /* a register tile has whole vectors */
  if (sched->nr > 0 && sched->lanes > 0) sched->nr = (sched->nr + sched->lanes - 1) / sched->lanes * sched->lanes;
  return known;
}

void sched_wisdom_print(struct base_str *str, uint64_t group, const struct base_target *target,
                        const struct sched *sched) {
  base_str_printf(str, "%016" PRIx64 " %s", group, target->name);
  for (size_t k = 0; k < BASE_COUNT(fields); k++)
    if (get(sched, k) != 0) base_str_printf(str, " %s=%" PRId64, fields[k].name, get(sched, k));
  base_str_add(str, "\n");
}
