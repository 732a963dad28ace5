/* train/report.h -- what a run has left in its folder, read again and shown: report.html, and a few lines of text */
#ifndef TRAIN_REPORT_H
#define TRAIN_REPORT_H
#include <jansson.h>

#include "base/base.h"

/* ---- history.c: metrics.jsonl and run.json ------------------------------------------------------------------------- */

/* A step, and an evaluation. NAN: it is not known, or was not finite. */
struct train_point {
  double step, loss, norm, lr, ms, per_second, peak, scale;
};
struct train_mark {
  double step, loss, accuracy;
};

/* Of many lines some thousand points stay, however long the run was: the first, the last, and of those between,
** group by group of as many lines, the least and the greatest of each member, in their order. */
enum { TRAIN_POINTS_MOST = 8188, TRAIN_WIDTH_MOST = sizeof(struct train_point) / sizeof(double) };
struct train_range {
  double least, most;
  bool falls; /* the least came last */
};
struct train_group {                            /* that is being gathered */
  size_t size, n;                               /* lines of a group; so far */
  double first, before, last[TRAIN_WIDTH_MOST]; /* steps of the first line and of the one before the last; the last */
  struct train_range ranges[TRAIN_WIDTH_MOST];
};

struct train_history {
  struct base_heap heap;
  BASE_VEC(struct train_point) points;
  BASE_VEC(struct train_mark) marks;
  struct train_mark best;       /* the evaluation of the least loss; its loss is NAN: there is none */
  size_t evaluations;           /* lines of them */
  struct train_group groups[2]; /* of points, of marks */
  double skipped;               /* steps whose gradients overflowed */
  json_t *run;                  /* of run.json; empty when there is none */
};
/* Reads a run's folder; a line at the end of metrics.jsonl that is not whole is left out. allocator may be NULL. train_history_fini
** whatever happened. */
quern_status train_history_read(struct train_history *history, const char *what, const char *dir,
                                const quern_allocator *allocator) QUERN_NODISCARD;
void train_history_fini(struct train_history *history);

/* Members of an object, which may be NULL: NAN, "" and NULL when they are not there, or of another type. */
double train_number(const json_t *object, const char *key);
const char *train_string(const json_t *object, const char *key);
/* The evaluation of the least loss, or NULL. */
const struct train_mark *train_best(const struct train_history *history);

/* The rows of kernels, those that lose the most time first: base_free(heap, *sorted, (*n + 1) * sizeof **sorted) later. */
quern_status train_kernels_sorted(struct base_heap *heap, const json_t *run, size_t *n,
                                  json_t ***sorted) QUERN_NODISCARD;

/* Numbers for people: "1.5 MiB", "3.4 M", "0.14 s"; "-" of NAN. They return text. */
enum { TRAIN_TEXT = 32 };
const char *train_text_bytes(char text[TRAIN_TEXT], double bytes);
const char *train_text_count(char text[TRAIN_TEXT], double count);
const char *train_text_seconds(char text[TRAIN_TEXT], double seconds);
/* A number with so many digits, without an exponent where it is short. */
const char *train_text_number(char text[TRAIN_TEXT], double x, int digits);

/* ---- chart.c: curves as SVG ---------------------------------------------------------------------------------------- */

/* Members x and y of the items of an array. */
struct train_series {
  const char *name; /* of the legend */
  const char *class;
  const void *at;
  size_t n, stride, x, y; /* y: offsets in an item */
  double factor;          /* of y; 0: 1 */
  bool dots, fill, stairs, smooth;
};
struct train_chart {
  const char *id, *title, *x_name;
  bool wide, from_zero, may_log, bytes;
  double line; /* a horizontal one, such as a limit; 0: none */
  const char *line_name;
  size_t n_series;
  const struct train_series *series;
};
/* Adds a figure; one that reports it when there is nothing to draw. */
quern_status train_chart_add(struct base_str *str, const struct train_chart *chart) QUERN_NODISCARD;

/* ---- report.c, summary.c: with a caller's allocator ---------------------------------------------------------------- */

quern_status train_report_write(const char *dir, const quern_allocator *allocator) QUERN_NODISCARD;
quern_status train_summary_print(const char *dir, void (*note)(void *user, const char *text), void *user,
                                 const quern_allocator *allocator) QUERN_NODISCARD;

/* Adds a text so that it may stand in HTML, in an attribute as well. */
void train_html_add(struct base_str *str, const char *text);

#endif
