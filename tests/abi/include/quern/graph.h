/* quern/graph.h -- graphs as text and pictures, and evaluation: compiled, or by the reference evaluator
** The text form (.qir) is described in docs/ir.md; printing and parsing are inverse.
*/
#ifndef QUERN_GRAPH_H
#define QUERN_GRAPH_H
#include "quern/eager.h"
#include "quern/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What an input, a state or a buffer is while evaluating: dense row-major elements of its dtype. */
typedef struct quern_feed {
  quern_tensor *leaf;
  const void *data;
} quern_feed;

/* dst[i] = the elements of outputs[i]: quern_tensor_bytes(outputs[i]) bytes each, which may overlap what is fed. Runs
** compiled code: as in eager use (eager.h) the context keeps the program, and finds it again for an expression of the
** same structure on other elements. Floats differ from those of quern_eval_reference by rounding (docs/runtime.md). */
QUERN_API quern_status quern_eval(quern_context *ctx, size_t n, quern_tensor *const *outputs, void *const *dst,
                                  size_t n_feeds, const quern_feed *feeds) QUERN_NODISCARD;

/* The same by the reference evaluator, which defines the results: every node in double, rounded once to its dtype. It
** compiles nothing and is slow. */
QUERN_API quern_status quern_eval_reference(quern_context *ctx, size_t n, quern_tensor *const *outputs,
                                            void *const *dst, size_t n_feeds, const quern_feed *feeds) QUERN_NODISCARD;

/* Outputs with names, and the inputs they reach. */
typedef struct quern_graph quern_graph;

/* names may be NULL, and so may each of them. */
QUERN_API quern_status quern_graph_new(quern_graph **graph, quern_context *ctx, size_t n, quern_tensor *const *outputs,
                                       const char *const *names) QUERN_NODISCARD;
QUERN_API quern_status quern_graph_parse(quern_graph **graph, quern_context *ctx, const char *text,
                                         size_t bytes) QUERN_NODISCARD;
QUERN_API void quern_graph_free(quern_graph *graph);

QUERN_API size_t quern_graph_input_count(const quern_graph *graph);
QUERN_API quern_tensor *quern_graph_input(const quern_graph *graph, size_t i); /* NULL when out of range */
QUERN_API size_t quern_graph_output_count(const quern_graph *graph);
QUERN_API quern_tensor *quern_graph_output(const quern_graph *graph, size_t i);
QUERN_API const char *quern_graph_output_name(const quern_graph *graph, size_t i); /* may be NULL */

/* Checks every node; a failure is a bug in Quern or in memory. */
QUERN_API quern_status quern_graph_verify(const quern_graph *graph) QUERN_NODISCARD;
/* Simplifies by the rewrite rules; exact rules only, which keep every bit, unless approximate: then results are rounded
** otherwise, and differ where a number on the way overflows, underflows or is a NaN on one side only. */
QUERN_API quern_status quern_graph_rewrite(quern_graph *graph, bool approximate) QUERN_NODISCARD;
/* Replaces composites by their bodies. */
QUERN_API quern_status quern_graph_inline(quern_graph *graph) QUERN_NODISCARD;

/* The text form, and Graphviz's; free with quern_free_text. */
QUERN_API quern_status quern_graph_print(const quern_graph *graph, char **text) QUERN_NODISCARD;
QUERN_API quern_status quern_graph_graphviz(const quern_graph *graph, char **text) QUERN_NODISCARD;

#ifdef __cplusplus
}
#endif
#endif
