/* cli/curve.c -- what less memory costs, as a table */
#include "cli.h"

#include <string.h>

void cli_print_curve(FILE *out, size_t n, const quern_curve_point *points) {
  char bytes[24], held[24];
  fprintf(out, "%12s %7s %12s %12s %10s %7s\n", "memory", "", "activations", "recomputed", "time", "");
  for (size_t i = 0; i < n; i++) {
    const quern_curve_point *p = &points[i], *first = &points[0];
    double share = first->bytes > 0 ? (double)p->bytes / (double)first->bytes : 1;
    double slower = first->seconds > 0 ? p->seconds / first->seconds : 1;
    fprintf(out, "%12s %6.1f%% %12s %6zu steps %7.1f ms %+6.1f%%%s\n", cli_bytes_text(bytes, p->bytes), 100 * share,
            cli_bytes_text(held, p->held), p->recomputed, 1e3 * p->seconds, 100 * (slower - 1),
            i == 0       ? "  without a limit"
            : i + 1 == n ? "  the smallest there is"
                         : "");
  }
}

int cli_run_curve(const struct cli_values *values) {
  enum { POINTS = 8 };
  quern_curve_point points[POINTS] = {QUERN_INIT(quern_curve_point)};
  quern_program_options options;
  char list[512];
  size_t n;
  int status = cli_program_options(values, "cpu", NULL, list, &options);
  if (status != CLI_OK) return status;
  if (quern_program_curve(values->graph.ctx, values->n_outs, values->outputs, &options, POINTS, points, &n) !=
      QUERN_STATUS_OK)
    return cli_fail_last(values->call->files[0]);
  cli_print_curve(stdout, n, points);
  return CLI_OK;
}
