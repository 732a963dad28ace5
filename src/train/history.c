/* train/history.c -- what a run has left in its folder: metrics.jsonl, a line a step or evaluation, and run.json
** keeps: what is not there is NAN or empty; a file that is there and malformed is an error
** tests: tests/train/test_report.c
*/
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>

#include "io/io.h"
#include "io/json.h"
#include "train/report.h"

static const size_t file_most = (size_t)4 << 30;

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
  const struct train_mark *best = NULL;
  for (size_t i = 0; i < history->marks.n; i++) {
    const struct train_mark *mark = &history->marks.at[i];
    if (isfinite(mark->loss) && (best == NULL || mark->loss < best->loss)) best = mark;
  }
  return best;
}

/* ---- files --------------------------------------------------------------------------------------------------------- */

static quern_status add_line(struct train_history *history, const char *what, const char *at, size_t n) {
  json_t *line;
  QUERN_TRY(io_json_parse(what, at, n, &line));
  bool good = true, eval = json_object_get(line, "eval_loss") != NULL;
  double step = train_number(line, "step");
  if (eval) {
    struct train_mark mark = {step, train_number(line, "eval_loss"), train_number(line, "accuracy")};
    good = isnan(step) || base_vec_push(&history->heap, &history->marks, mark);
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
    good = isnan(step) || base_vec_push(&history->heap, &history->points, point);
  }
  json_decref(line);
  return good ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static quern_status add_lines(struct train_history *history, const char *path, const char *at, size_t n) {
  char what[IO_PATH_MOST + 32];
  const char *end = at + n;
  for (int line = 1; at < end; line++) {
    const char *stop = memchr(at, '\n', (size_t)(end - at));
    if (stop == NULL) break; /* it was not written to its end */
    snprintf(what, sizeof what, "%s:%d", path, line);
    if (stop > at) QUERN_TRY(add_line(history, what, at, (size_t)(stop - at)));
    at = stop + 1;
  }
  return QUERN_STATUS_OK;
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
  *history = (struct train_history){0};
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
  void *bytes = NULL;
  size_t n = 0;
  QUERN_TRY(io_file_read(path, &history->heap, file_most, &bytes, &n));
  quern_status status = add_lines(history, path, bytes, n);
  base_free(&history->heap, bytes, n);
  return status;
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
