/* tests/api/test_wrong_view.c -- wrong calls of views and of indexing */
#include "api/wrong.h"

#define ROWS "api/wrong_view.def"
#include "api/rows.h"
