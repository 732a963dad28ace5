/* tests/api/test_wrong_call.c -- wrong calls of layers in one call */
#include "api/wrong.h"

static _Alignas(16) char space[64];
static const quern_call_options on_interp = {sizeof on_interp, "interp", NULL, false};
static const quern_call_heads heads = {sizeof heads, 1, 1, 1, 1, 1, 4, 0, false};

#define ROWS "api/wrong_call.def"
#include "api/rows.h"
