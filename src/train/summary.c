/* train/summary.c -- a run in a few lines of text, from what it has left in its folder
** tests: tests/train/test_report.c
*/
#include <math.h>
#include <stdio.h>

#include "quern/train.h"
#include "train/report.h"

enum { LINE = 512, KERNELS = 5, OPS = 32 };

struct teller {
  void (*note)(void *user, const char *text);
  void *user;
};

static void report_losses(const struct teller *to, const struct train_history *h) {
  char line[LINE], first[TRAIN_TEXT], last[TRAIN_TEXT];
  const struct train_mark *best = train_best(h);
  if (h->points.n == 0) return;
  snprintf(line, sizeof line, "loss: %s at step %.0f, %s at step %.0f",
           train_text_number(first, h->points.at[0].loss, 5), h->points.at[0].step,
           train_text_number(last, h->points.at[h->points.n - 1].loss, 5), h->points.at[h->points.n - 1].step);
  to->note(to->user, line);
  if (best == NULL) return;
  int n =
      snprintf(line, sizeof line, "evaluation: %s at step %.0f", train_text_number(last, best->loss, 5), best->step);
  if (isfinite(best->accuracy))
    n += snprintf(line + n, sizeof line - (size_t)n, ", %.2f%% right", 100 * best->accuracy);
  if (h->evaluations > 1) snprintf(line + n, sizeof line - (size_t)n, ", the best of %zu", h->evaluations);
  to->note(to->user, line);
}

static void report_memory(const struct teller *to, const struct train_history *h) {
  const json_t *info = json_object_get(h->run, "info");
  double limit = train_number(info, "limit");
  char line[LINE], planned[TRAIN_TEXT], used[TRAIN_TEXT], most[TRAIN_TEXT], child[TRAIN_TEXT];
  if (isnan(train_number(info, "planned"))) return;
  double measured = train_number(h->run, "measured_peak_bytes");
  int n = snprintf(line, sizeof line, "memory: %s planned", train_text_bytes(planned, train_number(info, "planned")));
  if (measured > 0)
    n += snprintf(line + n, sizeof line - (size_t)n, ", %s used at most", train_text_bytes(used, measured));
  double largest = train_number(h->run, "child_peak_bytes");
  if (largest > 0)
    n += snprintf(line + n, sizeof line - (size_t)n, ", %s by the largest child", train_text_bytes(child, largest));
  if (limit > 0) snprintf(line + n, sizeof line - (size_t)n, ", %s allowed", train_text_bytes(most, limit));
  to->note(to->user, line);
}

/* A number in `width` characters, "-" where it is not known. */
static const char *cell(char *text, size_t bytes, int width, const char *fmt, double x) {
  if (isnan(x))
    snprintf(text, bytes, "%*s", width, "-");
  else
    snprintf(text, bytes, fmt, x);
  return text;
}

static quern_status report_kernels(const struct teller *to, struct train_history *h) {
  size_t n;
  json_t **sorted;
  char line[LINE];
  QUERN_TRY(train_kernels_sorted(&h->heap, h->run, &n, &sorted));
  double total = 0;
  for (size_t i = 0; i < n; i++) total += fmax(train_number(sorted[i], "total_ms"), 0); /* NAN counts as 0 */
  if (n > 0) {
    to->note(to->user, "kernels that lost the most time against the machine's limits:");
    to->note(to->user, "     lost ms  total ms   share  of limit  kernel");
  }
  for (size_t i = 0; i < n && i < KERNELS; i++) {
    double time = train_number(sorted[i], "total_ms");
    const char *ops = train_string(sorted[i], "ops");
    bool cut = strlen(ops) > OPS;
    char lost[32], limit[32];
    cell(lost, sizeof lost, 10, "%10.2f", train_number(sorted[i], "lost_ms"));
    cell(limit, sizeof limit, 9, "%8.1f%%", train_number(sorted[i], "limit_pct"));
    snprintf(line, sizeof line, "  %s %9.2f %6.1f%% %s  %.64s (%.*s%s)", lost, time, total > 0 ? 100 * time / total : 0,
             limit, train_string(sorted[i], "name"), cut ? OPS - 3 : OPS, ops, cut ? "..." : "");
    to->note(to->user, line);
  }
  base_free(&h->heap, sorted, (n + 1) * sizeof *sorted);
  return QUERN_STATUS_OK;
}

quern_status train_summary_print(const char *dir, void (*note)(void *user, const char *text), void *user,
                                 const quern_allocator *allocator) {
  QUERN_CHECK(note != NULL, INVALID, "train_summary: note is null, so nothing is reported");
  struct train_history history;
  struct teller to = {note, user};
  quern_status status = train_history_read(&history, "train_summary", dir, allocator);
  if (status == QUERN_STATUS_OK) {
    report_losses(&to, &history);
    report_memory(&to, &history);
    status = report_kernels(&to, &history);
  }
  train_history_fini(&history);
  return status;
}

quern_status quern_train_summary(const char *dir, void (*note)(void *user, const char *text), void *user) {
  return train_summary_print(dir, note, user, NULL);
}
