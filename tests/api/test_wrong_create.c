/* tests/api/test_wrong_create.c -- wrong calls of creation and of random tensors */
#include "api/wrong.h"

#define ROWS "api/wrong_create.def"
#include "api/rows.h"
