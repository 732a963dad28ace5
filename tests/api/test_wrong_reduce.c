/* tests/api/test_wrong_reduce.c -- wrong calls of reductions, scans and order */
#include "api/wrong.h"

static quern_tensor *beside; /* the indices */

/* x, when what is beside it is the poison as well. */
static quern_tensor *poison_beside(quern_tensor *x) {
  assert_ptr_equal(beside, POISON);
  return x;
}

#define ROWS "api/wrong_reduce.def"
#include "api/rows.h"
