/* train/history.c -- what a run has left in its folder: metrics.jsonl, a line per step or evaluation, and run.json
** keeps: what is not there is NAN or empty; a file that is there and malformed is an error
** tests: tests/train/test_report.c
*/
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>

#include "io/io.h"
#include "io/json.h"
#include "train/report.h"

static const size_t file_most = (size_t)1 << 30;

/* ---- members ------------------------------------------------------------------------------------------------------- */

double train_number(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  return json_is_number(value) ? json_number_value(value) : NAN;
}

const char *train_string(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text != NULL ? text : "";
}

const struct train_mark *train_best(const struct train_history *history) {
  return isfinite(history->best.loss) ? &history->best : NULL;
}

/* ---- points ------------------------------------------------------------------------------------------------------ */

/* Items are rows of doubles, whose first is the step. */
enum {
  POINT_WIDTH = sizeof(struct train_point) / sizeof(double),
  MARK_WIDTH = sizeof(struct train_mark) / sizeof(double)
};
_Static_assert(sizeof(struct train_mark) <= sizeof(struct train_point), "a group has room for an item");

/* Counts a member's value in: NAN only where there is nothing else. */
static void widen(struct train_range *range, double x, bool first) {
  bool less = first || x < range->least || (isnan(range->least) && !isnan(x));
  bool more = first || x > range->most || (isnan(range->most) && !isnan(x));
  if (less) range->least = x;
  if (more) range->most = x;
  if (less != more) range->falls = less;
}

/* Adds an item to the group that is being gathered. */
static void gather(struct train_group *group, const double *item, size_t width) {
  if (group->n == 0) group->first = item[0];
  group->before = group->n == 0 ? item[0] : group->last[0];
  for (size_t k = 1; k < width; k++) widen(&group->ranges[k], item[k], group->n == 0);
  memcpy(group->last, item, width * sizeof(double));
  group->n++;
}

/* The two items that stand for a group: of each member the least and the greatest value, in their order. */
static void settle(const struct train_group *group, size_t width, double step, double *first, double *second) {
  first[0] = group->first;
  second[0] = step;
  for (size_t k = 1; k < width; k++) {
    const struct train_range *range = &group->ranges[k];
    first[k] = range->falls ? range->most : range->least;
    second[k] = range->falls ? range->least : range->most;
  }
}

/* Makes one group of every two of a list, but for the first item. How many items there are then. */
static size_t halve(double *items, size_t n, size_t width) {
  size_t to = 1;
  for (size_t from = 1; from + 4 <= n; from += 4, to += 2) {
    struct train_group group = {0};
    for (size_t i = 0; i < 4; i++) gather(&group, items + (from + i) * width, width);
    settle(&group, width, group.last[0], items + to * width, items + (to + 1) * width);
  }
  return to;
}

/* Appends an item, which there is room for, or counts it into the group; the first one stays as it is. */
static void thin(struct train_group *group, double *items, size_t *n, const double *item, size_t width) {
  if (*n == 0) {
    memcpy(items, item, width * sizeof(double));
    *n = 1;
    group->size = 2;
    return;
  }
  gather(group, item, width);
  if (group->n < group->size) return;
  settle(group, width, group->last[0], items + *n * width, items + (*n + 1) * width);
  *n += 2;
  group->n = 0;
  if (*n < TRAIN_POINTS_MOST + 1) return;
  *n = halve(items, *n, width);
  group->size *= 2;
}

/* What the group has that was not full, with the last item as it is. */
static void thin_end(struct train_group *group, double *items, size_t *n, size_t width) {
  if (group->n > 1) {
    settle(group, width, group->before, items + *n * width, items + (*n + 1) * width);
    *n += group->n > 2 ? 2 : 1;
  }
  if (group->n > 0) memcpy(items + (*n)++ * width, group->last, width * sizeof(double));
  group->n = 0;
}

/* What is added to a list at most: two items of a group, and the last one. */
enum { MORE = 3 };

static bool add_mark(struct train_history *history, const struct train_mark *mark) {
  if (isnan(mark->step)) return true;
  if (!base_vec_reserve(&history->heap, &history->marks, MORE)) return false;
  history->evaluations++;
  if (isfinite(mark->loss) && !(mark->loss >= history->best.loss)) history->best = *mark;
  thin(&history->groups[1], (double *)history->marks.at, &history->marks.n, (const double *)mark, MARK_WIDTH);
  return true;
}

static bool add_point(struct train_history *history, const struct train_point *point) {
  if (isnan(point->step)) return true;
  if (!base_vec_reserve(&history->heap, &history->points, MORE)) return false;
  thin(&history->groups[0], (double *)history->points.at, &history->points.n, (const double *)point, POINT_WIDTH);
  return true;
}

/* All lines were added. */
static void end_lists(struct train_history *history) {
  if (history->points.n > 0)
    thin_end(&history->groups[0], (double *)history->points.at, &history->points.n, POINT_WIDTH);
  if (history->marks.n > 0) thin_end(&history->groups[1], (double *)history->marks.at, &history->marks.n, MARK_WIDTH);
}

/* ---- files --------------------------------------------------------------------------------------------------------- */

static quern_status add_line(struct train_history *history, const char *what, const char *at, size_t n) {
  json_t *line;
  QUERN_TRY(io_json_parse(what, at, n, &line));
  bool good = true, eval = json_object_get(line, "eval_loss") != NULL;
  double step = train_number(line, "step");
  if (eval) {
    const struct train_mark mark = {step, train_number(line, "eval_loss"), train_number(line, "accuracy")};
    good = add_mark(history, &mark);
  } else {
    struct train_point point = {.step = step,
                                .loss = train_number(line, "loss"),
                                .norm = train_number(line, "norm"),
                                .lr = train_number(line, "lr"),
                                .ms = train_number(line, "ms"),
                                .per_second = train_number(line, "tok_s"),
                                .peak = train_number(line, "peak"),
                                .scale = train_number(line, "scale")};
    history->skipped += json_is_true(json_object_get(line, "skipped"));
    good = add_point(history, &point);
  }
  json_decref(line);
  return good ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static quern_status add_lines(struct train_history *history, struct io_lines *lines) {
  char what[IO_PATH_MOST + 32];
  const char *line;
  size_t n;
  for (;;) {
    QUERN_TRY(io_lines_next(lines, &line, &n)); /* one that was not written to its end is left out */
    if (line == NULL) return QUERN_STATUS_OK;
    snprintf(what, sizeof what, "%s:%llu", lines->path, (unsigned long long)lines->number);
    QUERN_CHECK(n != IO_LINE_CUT, PARSE, "%s: has more than %zu bytes", what, sizeof lines->buffer);
    if (n > 0) QUERN_TRY(add_line(history, what, line, n));
  }
}

static quern_status read_metrics(struct train_history *history, const char *path) {
  struct io_lines lines;
  QUERN_TRY(io_lines_open(&lines, path));
  quern_status status = add_lines(history, &lines);
  io_lines_close(&lines);
  end_lists(history);
  return status;
}

static bool is_there(const char *path) {
  struct stat there;
  return stat(path, &there) == 0;
}

/* The path of a file in a folder. */
static quern_status path_of(char path[IO_PATH_MOST], const char *what, const char *dir, const char *name) {
  int n = snprintf(path, IO_PATH_MOST, "%s/%s", dir, name);
  QUERN_CHECK(n > 0 && n < IO_PATH_MOST, IO, "%s: the path has %zu bytes, which is too long", what, strlen(dir));
  return QUERN_STATUS_OK;
}

static quern_status read_run(struct train_history *history, const char *path) {
  void *bytes = NULL;
  size_t n = 0;
  QUERN_TRY(io_file_read(path, &history->heap, file_most, &bytes, &n));
  quern_status status = io_json_parse(path, bytes, n, &history->run);
  base_free(&history->heap, bytes, n);
  return status;
}

quern_status train_history_read(struct train_history *history, const char *what, const char *dir,
                                const quern_allocator *allocator) {
  char path[IO_PATH_MOST];
  *history = (struct train_history){.best = {NAN, NAN, NAN}};
  base_heap_init(&history->heap, allocator);
  QUERN_CHECK(dir != NULL, INVALID, "%s: the folder is null", what);
  QUERN_TRY(path_of(path, what, dir, "run.json"));
  bool run = is_there(path);
  if (run) QUERN_TRY(read_run(history, path));
  QUERN_TRY(path_of(path, what, dir, "metrics.jsonl"));
  bool metrics = is_there(path);
  QUERN_CHECK(run || metrics, IO, "%s: %.1024s is no run's folder: it has neither metrics.jsonl nor run.json", what,
              dir);
  if (!metrics) return QUERN_STATUS_OK;
  return read_metrics(history, path);
}

void train_history_fini(struct train_history *history) {
  base_vec_fini(&history->heap, &history->points);
  base_vec_fini(&history->heap, &history->marks);
  json_decref(history->run);
  history->run = NULL;
}

/* ---- numbers for people -------------------------------------------------------------------------------------------- */

static const char *scaled(char text[TRAIN_TEXT], double x, double factor, size_t n, const char *const *units) {
  size_t unit = 0;
  if (isnan(x)) return "-";
  for (; fabs(x) >= factor && unit + 1 < n; unit++) x /= factor;
  snprintf(text, TRAIN_TEXT, unit == 0 ? "%.0f%s" : "%.1f%s", x, units[unit]);
  return text;
}

const char *train_text_bytes(char text[TRAIN_TEXT], double bytes) {
  static const char *const units[] = {" B", " KiB", " MiB", " GiB", " TiB"};
  return scaled(text, bytes, 1024, BASE_COUNT(units), units);
}

const char *train_text_count(char text[TRAIN_TEXT], double count) {
  static const char *const units[] = {"", " k", " M", " G", " T", " P"};
  return scaled(text, count, 1000, BASE_COUNT(units), units);
}

const char *train_text_seconds(char text[TRAIN_TEXT], double seconds) {
  if (isnan(seconds)) return "-";
  if (seconds < 1e-3)
    snprintf(text, TRAIN_TEXT, "%.1f us", seconds * 1e6);
  else if (seconds < 0.1)
    snprintf(text, TRAIN_TEXT, "%.1f ms", seconds * 1e3);
  else if (seconds < 120)
    snprintf(text, TRAIN_TEXT, "%.2f s", seconds);
  else
    snprintf(text, TRAIN_TEXT, "%.0f min", seconds / 60);
  return text;
}

const char *train_text_number(char text[TRAIN_TEXT], double x, int digits) {
  if (isnan(x)) return "-";
  snprintf(text, TRAIN_TEXT, "%.*g", digits, x);
  return text;
}
