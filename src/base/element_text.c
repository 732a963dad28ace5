/* base/element_text.c -- one element as text, and back
** keeps: what is printed parses to the same bits; the program's locale has no effect
** tests: tests/base/test_element_text.c
*/
#define _POSIX_C_SOURCE 200809L /* uselocale */
#include "base/base.h"

#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__APPLE__)
#include <xlocale.h>
#endif

/* 17 digits identify any double; 1200 bytes hold one written out in full. */
enum { DIGITS_MOST = 17, TEXT_BYTES = 1200 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static locale_t plain;

static void make_plain(void) { plain = newlocale(LC_ALL_MASK, "C", (locale_t)0); }

/* Gives this thread the C locale; returns what to give back to uselocale. */
static locale_t use_plain(void) {
  pthread_once(&once, make_plain);
  return uselocale(plain);
}

/* The text's value, rounded once for f64 and f32, to double first for the others. */
static double read_float(quern_dtype dtype, const char *text) {
  return dtype == QUERN_DTYPE_F32 ? (double)strtof(text, NULL) : strtod(text, NULL);
}

/* ---- print --------------------------------------------------------------------------------------------- */

/* The fewest digits that come back; small integers in full. */
static void print_finite(char *text, size_t bytes, quern_dtype dtype, double x) {
  if (x == floor(x) && fabs(x) < 0x1p24) {
    snprintf(text, bytes, "%.0f", x);
    return;
  }
  for (int digits = 1; digits <= DIGITS_MOST; digits++) {
    uint64_t back = 0;
    snprintf(text, bytes, "%.*g", digits, x);
    base_store_float(dtype, &back, 0, read_float(dtype, text));
    if (base_load_float(dtype, &back, 0) == x) return;
  }
}

static void print_float(struct base_str *str, quern_dtype dtype, double x) {
  char text[64];
  if (isnan(x)) {
    base_str_add(str, "nan");
  } else if (isinf(x)) {
    base_str_add(str, x < 0 ? "-inf" : "inf");
  } else {
    locale_t old = use_plain();
    print_finite(text, sizeof text, dtype, x);
    uselocale(old);
    base_str_add(str, text);
  }
}

void base_element_print(struct base_str *str, quern_dtype dtype, const void *data, size_t i) {
  if (base_dtype_is(dtype, BASE_FLOAT)) {
    print_float(str, dtype, base_load_float(dtype, data, i));
    return;
  }
  uint64_t x = base_load_int(dtype, data, i);
  if (dtype == QUERN_DTYPE_BOOL)
    base_str_add(str, x ? "true" : "false");
  else if (base_dtype_is(dtype, BASE_SIGNED))
    base_str_printf(str, "%" PRId64, (int64_t)x);
  else
    base_str_printf(str, "%" PRIu64, x);
}

/* ---- parse: skip_ and parse_ return where they stopped, or NULL ---------------------------------------- */

static const char *skip_word(const char *at, const char *stop, const char *word) {
  size_t n = strlen(word);
  return (size_t)(stop - at) >= n && memcmp(at, word, n) == 0 ? at + n : NULL;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static const char *skip_digits(const char *at, const char *stop) {
  while (at < stop && is_digit(*at)) at++;
  return at;
}

/* digits [. digits] | . digits, then [e [+|-] digits] */
static const char *skip_decimal(const char *at, const char *stop) {
  const char *dot = skip_digits(at, stop), *end = dot;
  bool any = dot > at;
  if (dot < stop && *dot == '.') {
    end = skip_digits(dot + 1, stop);
    any = any || end > dot + 1;
  }
  if (!any) return NULL;
  if (end < stop && (*end == 'e' || *end == 'E')) {
    const char *power = end + 1;
    if (power < stop && (*power == '+' || *power == '-')) power++;
    end = skip_digits(power, stop);
    if (end == power) return NULL;
  }
  return end;
}

static const char *parse_float(const char *text, const char *stop, quern_dtype dtype, void *element) {
  const char *at = text < stop && *text == '-' ? text + 1 : text, *end;
  char copy[TEXT_BYTES];
  if ((end = skip_word(text, stop, "nan"))) {
    base_store_float(dtype, element, 0, (double)NAN);
    return end;
  }
  if ((end = skip_word(at, stop, "inf"))) {
    base_store_float(dtype, element, 0, at > text ? -(double)INFINITY : (double)INFINITY);
    return base_dtypes[dtype].inf ? end : NULL;
  }
  end = skip_decimal(at, stop);
  if (!end || end - text >= TEXT_BYTES) return NULL;
  memcpy(copy, text, (size_t)(end - text));
  copy[end - text] = 0;
  locale_t old = use_plain();
  base_store_float(dtype, element, 0, read_float(dtype, copy));
  uselocale(old);
  return isfinite(base_load_float(dtype, element, 0)) ? end : NULL;
}

static const char *parse_int(const char *text, const char *stop, quern_dtype dtype, void *element) {
  bool is_signed = base_dtype_is(dtype, BASE_SIGNED), negative = is_signed && text < stop && *text == '-';
  const char *at = text + negative, *end = skip_digits(at, stop);
  int bits = base_dtypes[dtype].bits - is_signed;
  uint64_t x = 0, most = (UINT64_MAX >> (64 - bits)) + negative;
  if (end == at) return NULL;
  for (; at < end; at++) {
    uint64_t digit = (uint64_t)(*at - '0');
    if (x > (most - digit) / 10) return NULL;
    x = x * 10 + digit;
  }
  base_store_int(dtype, element, 0, negative ? 0 - x : x);
  return end;
}

static const char *parse_bool(const char *text, const char *stop, quern_dtype dtype, void *element) {
  const char *yes = skip_word(text, stop, "true"), *no = skip_word(text, stop, "false");
  base_store_int(dtype, element, 0, yes != NULL);
  return yes ? yes : no;
}

/* True when a value cannot end before c: the text is then a longer word. */
static bool is_inside_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '.';
}

bool base_element_parse(const char *text, const char *stop, const char **end, quern_dtype dtype, void *data, size_t i) {
  uint64_t element = 0;
  const char *at = base_dtype_is(dtype, BASE_FLOAT) ? parse_float(text, stop, dtype, &element)
                   : dtype == QUERN_DTYPE_BOOL      ? parse_bool(text, stop, dtype, &element)
                                                    : parse_int(text, stop, dtype, &element);
  if (!at || (at < stop && is_inside_word(*at))) return false;
  memcpy((char *)data + i * base_dtypes[dtype].size, &element, base_dtypes[dtype].size);
  *end = at;
  return true;
}
