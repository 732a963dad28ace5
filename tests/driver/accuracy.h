/* driver/accuracy.h -- the table of what functions are measured for accuracy: their inputs, their true values
** see: accuracy.def (the rows), mode_ulp.c (who measures), docs/accuracy.md (what was measured)
*/
#ifndef DRIVER_ACCURACY_H
#define DRIVER_ACCURACY_H
#include "driver/driver.h"

/* Where a function is evaluated. */
enum accuracy_inputs {
  EVERYWHERE, /* specials, all exponents, and more of lo to hi; of 16 bits all numbers */
  WITHIN,     /* lo to hi in even steps, which are smaller than those of 16 bits */
  PAIRS,      /* specials with each other, all exponents, and more of lo to hi */
  POWERS,     /* the same, with more bases near 1 */
  ROWS,       /* rows of normal numbers, of several means and scales */
};

/* How an error is counted. */
enum accuracy_measure {
  OF_RESULT, /* in ulp of the true result */
  OF_X,      /* in ulp of x: of a product x f(x) whose other factor is as exact as numbers near 1 are */
  OF_ROW,    /* in ulp of the largest true result of the row: of differences */
  RELATIVE,  /* |error| / |true result|, where that is no subnormal number */
};

/* True values of a row of n elements of one or two operands; n_y of them are wanted. */
typedef void accuracy_reference(int64_t n, const long double *a, const long double *b, int64_t n_y, long double *y);

enum { ACCURACY_DTYPES = 4 };
extern const quern_dtype accuracy_dtypes[ACCURACY_DTYPES]; /* f32, bf16, f16, f64 */

struct accuracy {
  const char *name; /* of a builder */
  const char *keys; /* of the case, and nothing else */
  enum accuracy_inputs inputs;
  enum accuracy_measure measure;
  accuracy_reference *reference;
  double lo, hi;
  double bounds[ACCURACY_DTYPES]; /* the largest error that is allowed, by dtype */
};
extern const struct accuracy accuracies[];
extern const size_t accuracy_count;

int accuracy_operands(const struct accuracy *f);
/* The operands of a function in a dtype are of one shape: rows of columns, or elements when there is one column. */
void accuracy_shape(const struct accuracy *f, quern_dtype dtype, int64_t *rows, int64_t *columns);
void accuracy_fill(const struct accuracy *f, int operand, quern_dtype dtype, void *data);

#endif
