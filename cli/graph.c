/* cli/graph.c -- reading graphs, and the command graph */
#include "cli.h"

#include <ctype.h>
#include <stdlib.h>

int cli_graph_begin(struct cli_graph *graph, const char *path) {
  char *text = NULL;
  size_t n = 0;
  *graph = (struct cli_graph){0};
  int status = cli_read(path, &text, &n);
  if (status != CLI_OK) return status;
  if (quern_context_new(&graph->ctx, NULL) != QUERN_STATUS_OK)
    status = cli_fail("%s", quern_last_error());
  else if (quern_graph_parse(&graph->graph, graph->ctx, text, n) != QUERN_STATUS_OK)
    status = cli_fail("%s:%s%s", path, isdigit((unsigned char)quern_last_error()[0]) ? "" : " ", quern_last_error());
  free(text);
  return status;
}

void cli_graph_end(struct cli_graph *graph) {
  quern_graph_free(graph->graph);
  quern_context_free(graph->ctx);
}

static int print_graph(const struct cli_call *call, struct cli_graph *graph) {
  const char *path = call->files[0], *out = "-";
  char *text = NULL;
  cli_has(call, "--output", &out);
  if (cli_has(call, "--inline", NULL) && quern_graph_inline(graph->graph) != QUERN_STATUS_OK)
    return cli_fail_last(path);
  if (cli_has(call, "--rewrite", NULL) && quern_graph_rewrite(graph->graph, false) != QUERN_STATUS_OK)
    return cli_fail_last(path);
  quern_status status = cli_has(call, "--graphviz", NULL) ? quern_graph_graphviz(graph->graph, &text)
                                                          : quern_graph_print(graph->graph, &text);
  if (status != QUERN_STATUS_OK) return cli_fail_last(path);
  int result = cli_write(out, text);
  quern_free_text(text);
  return result;
}

static int run(const struct cli_call *call) {
  struct cli_graph graph;
  int status = cli_graph_begin(&graph, call->files[0]);
  if (status == CLI_OK) status = print_graph(call, &graph);
  cli_graph_end(&graph);
  return status;
}

static const struct cli_option options[] = {
    {"--graphviz", 0, NULL, "Graphviz instead of the text form"},
    {"--inline", 0, NULL, "replace composites by their bodies"},
    {"--rewrite", 0, NULL, "simplify by the exact rules"},
    {"--output", 'o', "FILE", "write there instead of to standard output"},
    {0},
};

const struct cli_command cli_command_graph = {
    .name = "graph",
    .usage = "FILE.qir [--graphviz] [--inline] [--rewrite] [-o FILE]",
    .help = "print a graph: its text form, or a picture",
    .more = "FILE - is standard input. docs/ir.md describes the text form.\n",
    .options = options,
    .least_files = 1,
    .most_files = 1,
    .run = run,
};
