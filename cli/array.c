/* cli/array.c -- tensors on the screen: types, and elements as nested lists */
#include "cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
  WHOLE_MOST = 1000, /* elements that are shown all */
  EDGE = 3,          /* shown at each end of an axis of larger ones */
  COLUMNS = 80,
  DIGITS = 8, /* of floats, at most */
  ELEMENT_BYTES = 40,
};

void cli_print_type(FILE *out, quern_dtype dtype, int rank, const int64_t *dims) {
  fprintf(out, "%s[", quern_dtype_name(dtype));
  for (int i = 0; i < rank; i++) fprintf(out, i > 0 ? ",%" PRId64 : "%" PRId64, dims[i]);
  fputc(']', out);
}

struct array {
  FILE *out;
  quern_dtype dtype;
  int rank;
  const int64_t *dims;
  const char *data;
  bool cut; /* the middle of long axes is left out */
  int width;
};

static double to_double(quern_dtype dtype, const void *element) {
  double x = 0;
  return quern_dtype_convert(&x, QUERN_DTYPE_F64, element, dtype, 1) == QUERN_STATUS_OK ? x : 0;
}

/* True when the text, rounded to the dtype, is the element again. */
static bool comes_back(quern_dtype dtype, const char *text, double x) {
  double back = strtod(text, NULL);
  uint64_t element = 0;
  if (quern_dtype_convert(&element, dtype, &back, QUERN_DTYPE_F64, 1) != QUERN_STATUS_OK) return false;
  return to_double(dtype, &element) == x;
}

static void float_text(char text[ELEMENT_BYTES], quern_dtype dtype, const void *element) {
  double x = to_double(dtype, element);
  for (int digits = 1; digits <= DIGITS; digits++) {
    snprintf(text, ELEMENT_BYTES, "%.*g", digits, x);
    if (x != x || comes_back(dtype, text, x)) break;
  }
  if (x != x) snprintf(text, ELEMENT_BYTES, "nan");
}

static void element_text(char text[ELEMENT_BYTES], const struct array *array, int64_t i) {
  const void *element = array->data + (size_t)i * quern_dtype_size(array->dtype);
  const char *name = quern_dtype_name(array->dtype);
  int64_t x = 0;
  uint64_t u = 0;
  if (array->dtype == QUERN_DTYPE_BOOL) {
    snprintf(text, ELEMENT_BYTES, "%s", *(const unsigned char *)element != 0 ? "true" : "false");
  } else if (name[0] == 'i' && quern_dtype_convert(&x, QUERN_DTYPE_I64, element, array->dtype, 1) == QUERN_STATUS_OK) {
    snprintf(text, ELEMENT_BYTES, "%" PRId64, x);
  } else if (name[0] == 'u' && quern_dtype_convert(&u, QUERN_DTYPE_U64, element, array->dtype, 1) == QUERN_STATUS_OK) {
    snprintf(text, ELEMENT_BYTES, "%" PRIu64, u);
  } else {
    float_text(text, array->dtype, element);
  }
}

/* The next position on an axis after i: jumps over what is left out. */
static int64_t next_on_axis(const struct array *array, int axis, int64_t i) {
  int64_t n = array->dims[axis];
  return array->cut && n > 2 * EDGE && i == EDGE - 1 ? n - EDGE : i + 1;
}

/* Calls see for each element that is shown. */
static void each_shown(struct array *array, int axis, int64_t first, void (*see)(struct array *, int64_t)) {
  if (axis == array->rank) {
    see(array, first);
    return;
  }
  for (int64_t i = 0; i < array->dims[axis]; i = next_on_axis(array, axis, i)) {
    each_shown(array, axis + 1, first * array->dims[axis] + i, see);
  }
}

static void see_width(struct array *array, int64_t i) {
  char text[ELEMENT_BYTES];
  element_text(text, array, i);
  if ((int)strlen(text) > array->width) array->width = (int)strlen(text);
}

/* A row: the last axis, broken into lines. */
static void print_row(const struct array *array, int64_t first) {
  int64_t n = array->dims[array->rank - 1];
  int column = array->rank;
  for (int64_t i = 0, next; i < n; i = next) {
    char text[ELEMENT_BYTES];
    next = next_on_axis(array, array->rank - 1, i);
    if (i > 0 && column + 1 + array->width > COLUMNS) {
      fprintf(array->out, "\n%*s", array->rank, "");
      column = array->rank;
    } else if (i > 0) {
      column += fprintf(array->out, " ");
    }
    element_text(text, array, first + i);
    column += fprintf(array->out, "%*s", array->width, text);
    if (next > i + 1) column += fprintf(array->out, " ...");
  }
}

static void print_axis(const struct array *array, int axis, int64_t first) {
  fputc('[', array->out);
  if (axis == array->rank - 1) {
    print_row(array, first * array->dims[axis]);
  } else {
    for (int64_t i = 0, next; i < array->dims[axis]; i = next) {
      next = next_on_axis(array, axis, i);
      if (i > 0) fprintf(array->out, "%*s", axis + 1, "");
      print_axis(array, axis + 1, first * array->dims[axis] + i);
      if (next > i + 1) fprintf(array->out, "\n%*s...", axis + 1, "");
      if (next < array->dims[axis]) fputc('\n', array->out);
    }
  }
  fputc(']', array->out);
}

void cli_print_array(FILE *out, quern_dtype dtype, int rank, const int64_t *dims, const void *data) {
  struct array array = {.out = out, .dtype = dtype, .rank = rank, .dims = dims, .data = data};
  int64_t count = 1;
  for (int i = 0; i < rank; i++) count *= dims[i];
  array.cut = count > WHOLE_MOST;
  if (count == 0) {
    fprintf(out, "[]\n");
    return;
  }
  if (rank == 0) {
    char text[ELEMENT_BYTES];
    element_text(text, &array, 0);
    fprintf(out, "%s\n", text);
    return;
  }
  each_shown(&array, 0, 0, see_width);
  print_axis(&array, 0, 0);
  fputc('\n', out);
}
