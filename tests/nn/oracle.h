/* tests/nn/oracle.h -- the cases of tests/nn/oracle.txt, which tests/oracle/make_nn.py wrote */
#ifndef TESTS_NN_ORACLE_H
#define TESTS_NN_ORACLE_H
#include <math.h>

#include "nn/nn.h"
#include "quern/quern.h"
#include "unit.h"

enum { ORACLE_CASES = 96, ORACLE_LINES = 96 };

/* A line: kind name dtype shape values. */
struct oracle_line {
  const char *kind, *name;
  quern_dtype dtype;
  int rank;
  int64_t dims[QUERN_MAX_RANK];
  size_t n;
  void *data; /* f64 or i64 */
};

struct oracle_case {
  const char *name;
  bool train;
  int n;
  struct oracle_line lines[ORACLE_LINES];
};

/* A parameter of a new module. */
struct oracle_fresh {
  const char *layer, *name;
  struct oracle_line shape; /* without data */
  double mean, deviation, largest;
};

static struct {
  char *text;
  int n, n_fresh;
  struct oracle_case cases[ORACLE_CASES];
  struct oracle_fresh fresh[ORACLE_LINES];
} oracle;

static inline void oracle_shape(struct oracle_line *line, const char *text) {
  line->n = 1;
  for (const char *at = text; *text != '-' && at != NULL; at = strchr(at, ','), at = at != NULL ? at + 1 : NULL) {
    line->dims[line->rank] = strtoll(at, NULL, 10);
    line->n *= (size_t)line->dims[line->rank++];
  }
}

static inline void oracle_read_fresh(struct oracle_fresh *fresh, char **word) {
  fresh->layer = strtok_r(NULL, " ", word);
  fresh->name = strtok_r(NULL, " ", word);
  oracle_shape(&fresh->shape, strtok_r(NULL, " ", word));
  fresh->mean = strtod(strtok_r(NULL, " ", word), NULL);
  fresh->deviation = strtod(strtok_r(NULL, " ", word), NULL);
  fresh->largest = strtod(strtok_r(NULL, " ", word), NULL);
}

/* Reads the file; false when it is not as it should be. */
static inline bool oracle_read(const char *path) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) return false;
  size_t n = 0, most = (size_t)1 << 21;
  oracle.text = calloc(most, 1);
  if (oracle.text != NULL) n = fread(oracle.text, 1, most - 1, file);
  fclose(file);
  char *rest = NULL;
  for (char *row = strtok_r(oracle.text, "\n", &rest); row != NULL; row = strtok_r(NULL, "\n", &rest)) {
    char *word = NULL, *kind = strtok_r(row, " ", &word);
    if (kind[0] == '#') continue;
    if (strcmp(kind, "fresh") == 0) {
      if (oracle.n_fresh == ORACLE_LINES) return false;
      oracle_read_fresh(&oracle.fresh[oracle.n_fresh++], &word);
      continue;
    }
    if (strcmp(kind, "case") == 0) {
      if (oracle.n == ORACLE_CASES) return false;
      struct oracle_case *c = &oracle.cases[oracle.n++];
      c->name = strtok_r(NULL, " ", &word);
      c->train = strcmp(strtok_r(NULL, " ", &word), "train") == 0;
      continue;
    }
    struct oracle_case *c = &oracle.cases[oracle.n - 1];
    if (oracle.n == 0 || c->n == ORACLE_LINES) return false;
    struct oracle_line *line = &c->lines[c->n++];
    line->kind = kind;
    line->name = strtok_r(NULL, " ", &word);
    line->dtype = strcmp(strtok_r(NULL, " ", &word), "i64") == 0 ? QUERN_DTYPE_I64 : QUERN_DTYPE_F64;
    oracle_shape(line, strtok_r(NULL, " ", &word));
    line->data = calloc(line->n, 8);
    if (line->data == NULL) return false;
    for (size_t i = 0; i < line->n; i++) {
      const char *value = strtok_r(NULL, " ", &word);
      if (value == NULL) return false;
      if (line->dtype == QUERN_DTYPE_I64)
        ((int64_t *)line->data)[i] = strtoll(value, NULL, 10);
      else
        ((double *)line->data)[i] = strtod(value, NULL);
    }
    if (strtok_r(NULL, " ", &word) != NULL) return false;
  }
  return n > 0 && n < most - 1;
}

static inline void oracle_free(void) {
  for (int i = 0; i < oracle.n; i++) {
    for (int k = 0; k < oracle.cases[i].n; k++) free(oracle.cases[i].lines[k].data);
  }
  free(oracle.text);
  memset(&oracle, 0, sizeof oracle);
}

static inline struct oracle_case *oracle_find(const char *name) {
  for (int i = 0; i < oracle.n; i++) {
    if (strcmp(oracle.cases[i].name, name) == 0) return &oracle.cases[i];
  }
  return NULL;
}

static inline struct oracle_line *oracle_line(struct oracle_case *c, const char *kind, const char *name) {
  for (int i = 0; i < c->n; i++) {
    if (strcmp(c->lines[i].kind, kind) == 0 && strcmp(c->lines[i].name, name) == 0) return &c->lines[i];
  }
  return NULL;
}

#endif
