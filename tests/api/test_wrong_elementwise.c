/* tests/api/test_wrong_elementwise.c -- wrong calls of operations element by element */
#include "api/wrong.h"

#define ROWS "api/wrong_elementwise.def"
#include "api/rows.h"
