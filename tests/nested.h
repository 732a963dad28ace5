/* tests/nested.h -- branches that hold two others each: as many levels are a small graph, and 2^levels ways to the innermost */
#ifndef TESTS_NESTED_H
#define TESTS_NESTED_H
#include <stdio.h>
#include <string.h>

#include "quern/quern.h"
#include "unit.h"

/* Functions @f0 .. @f<levels> of (a bool, x of that shape, such as "[4]"), and what follows them in the text. */
static inline quern_graph *test_nested_graph(int levels, const char *shape, const char *rest) {
  static char text[1 << 13];
  quern_graph *graph;
  size_t n = (size_t)snprintf(text, sizeof text,
                              "quern 1\nfn @f0 (%%0: bool[], %%1: f32%s) {\n%%2 = sin %%1\nreturn %%2\n}\n", shape);
  for (int k = 1; k <= levels; k++)
    n += (size_t)snprintf(
        text + n, sizeof text - n,
        "fn @f%d (%%0: bool[], %%1: f32%s) {\n%%2 = not %%0\n"
        "%%3 = if %%2 %%0 %%1 body=@f%d other=@f0\n%%4 = if %%2 %%0 %%3 body=@f%d other=@f0\nreturn %%4\n}\n",
        k, shape, k - 1, k - 1);
  snprintf(text + n, sizeof text - n, "%s", rest);
  EXPECT_OK(quern_graph_parse(&graph, ctx, text, strlen(text)));
  return graph;
}

#endif
