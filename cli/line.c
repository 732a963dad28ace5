/* cli/line.c -- the progress of a run: on a terminal one line that is drawn again and again, else a line for some steps
** keeps: the live line never has more columns than the terminal, and is drawn at most ten times a second
** tests: tests/cli/test_train.c
*/
#include "train.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

double cli_seconds(void) {
  struct timespec now = {0};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

const char *cli_time_text(char text[24], double seconds) {
  long long s = seconds > 0 && seconds < 1e12 ? (long long)(seconds + 0.5) : 0;
  if (s >= 86400)
    snprintf(text, 24, "%lld d %lld h", s / 86400, s / 3600 % 24);
  else if (s >= 3600)
    snprintf(text, 24, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
  else
    snprintf(text, 24, "%lld:%02lld", s / 60, s % 60);
  return text;
}

/* ---- the terminal ------------------------------------------------------------------------------------------------- */

/* Whether by the environment characters beyond ASCII can be shown. */
static bool speaks_utf8(void) {
  static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const char *value = getenv(names[i]);
    if (value != NULL && value[0] != 0) return strstr(value, "UTF-8") != NULL || strstr(value, "utf8") != NULL;
  }
  return false;
}

/* Columns of the terminal as it is now. */
static size_t columns(void) {
  struct winsize size = {0};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

void cli_line_begin(struct cli_line *line, int64_t every) {
  const char *terminal = getenv("TERM");
  *line = (struct cli_line){.every = every > 0 ? every : 1};
  line->live = isatty(STDOUT_FILENO) == 1 && terminal != NULL && strcmp(terminal, "dumb") != 0;
  line->utf8 = speaks_utf8();
}

static void clear(struct cli_line *line) {
  if (line->shown) fputs("\r\033[K", stdout);
  line->shown = false;
}

void cli_line_end(struct cli_line *line) {
  if (line->shown) putchar('\n');
  line->shown = false;
  fflush(stdout);
}

/* ---- parts of a line ---------------------------------------------------------------------------------------------- */

enum { STEP, LOSS, NORM, RATE, TIME, PEAK, SPEED, LEFT, PARTS, PART = 48 };

/* The numbers of a record; "" of what is not known. */
static void make_parts(char parts[PARTS][PART], const quern_train_record *r, const char *unit) {
  char left[24];
  snprintf(parts[STEP], PART, "%lld/%lld", (long long)r->step, (long long)r->steps);
  snprintf(parts[LOSS], PART, "loss %.4f", r->loss);
  snprintf(parts[NORM], PART, r->norm < 1e5 ? "norm %.2f" : "norm %.2e", r->norm);
  snprintf(parts[RATE], PART, "lr %.2e", r->lr);
  snprintf(parts[TIME], PART, "%.1f ms", 1e3 * r->seconds);
  parts[PEAK][0] = 0;
  if (r->peak > 0) snprintf(parts[PEAK], PART, "%.1f%% of peak", 100 * r->peak);
  snprintf(parts[SPEED], PART, r->per_second < 10 ? "%.2f %s/s" : "%.0f %s/s", r->per_second, unit);
  snprintf(parts[LEFT], PART, "%s left", cli_time_text(left, r->left));
  if (r->skipped) snprintf(parts[NORM], PART, "skipped, scale %.0f", r->scale);
}

static void tell_plain(struct cli_line *line, const quern_train_record *r) {
  char parts[PARTS][PART];
  make_parts(parts, r, line->unit);
  printf("step %s", parts[STEP]);
  for (int i = LOSS; i < LEFT; i++)
    if (parts[i][0] != 0) printf(" | %s", parts[i]);
  putchar('\n');
  fflush(stdout);
  line->printed = r->step;
}

/* ---- the live line ------------------------------------------------------------------------------------------------ */

enum { GAP = 2, BAR_LEAST = 8, BAR_MOST = 28 };

static void add_bar(struct cli_line *line, size_t width, double part) {
  size_t full = (size_t)((double)width * (part < 0 ? 0 : part > 1 ? 1 : part) + 0.5);
  for (size_t i = 0; i < width; i++)
    fputs(line->utf8 ? (i < full ? "\u2501" : "\u2500") : i < full ? "=" : i == full ? ">" : " ", stdout);
}

/* Draws what there is room for; the less important parts are left out first. */
static void draw(struct cli_line *line, const quern_train_record *r) {
  static const int leave[] = {RATE, NORM, PEAK, TIME, SPEED, LEFT, LOSS};
  char parts[PARTS][PART];
  size_t room = columns() - 1, width = 0; /* in the last column a terminal may go to the next line */
  make_parts(parts, r, line->unit);
  int digits = snprintf(NULL, 0, "%lld", (long long)r->steps); /* what follows stays where it is */
  snprintf(parts[STEP], PART, "%*lld/%lld", digits, (long long)r->step, (long long)r->steps);
  for (int i = 0; i < PARTS; i++) width += parts[i][0] != 0 ? strlen(parts[i]) + (i > 0 ? GAP : 0) : 0;
  for (size_t k = 0; k < sizeof leave / sizeof *leave && width + (k < 5 ? BAR_LEAST + 2 + GAP : 0) > room; k++) {
    width -= parts[leave[k]][0] != 0 ? strlen(parts[leave[k]]) + GAP : 0;
    parts[leave[k]][0] = 0;
  }
  fputs("\r", stdout);
  if (width + BAR_LEAST + 2 + GAP <= room) {
    size_t bar = room - width - 2 - GAP;
    putchar('[');
    add_bar(line, bar < BAR_MOST ? bar : BAR_MOST, (double)r->step / (double)r->steps);
    fputs("]  ", stdout);
  }
  printf("%.*s", (int)room, parts[STEP]);
  for (int i = LOSS; i < PARTS; i++)
    if (parts[i][0] != 0) printf("%*s%s", GAP, "", parts[i]);
  fputs("\033[K", stdout);
  fflush(stdout);
  line->shown = true;
}

void cli_line_print(struct cli_line *line, const char *fmt, ...) {
  bool again = line->shown;
  va_list args;
  va_start(args, fmt);
  clear(line);
  cli_print_v(stdout, fmt, args);
  putchar('\n');
  va_end(args);
  if (again) draw(line, &line->last);
  fflush(stdout);
}

void cli_line_step(struct cli_line *line, const quern_train_record *r) {
  bool first = line->first == 0, last = r->step == r->steps;
  if (first) line->first = r->step;
  line->last = *r;
  if (!line->live) {
    if (first || last || r->step % line->every == 0) tell_plain(line, r);
    return;
  }
  double now = cli_seconds();
  if (!first && !last && now - line->drawn < 0.1) return;
  line->drawn = now;
  draw(line, r);
}

void cli_line_stop(struct cli_line *line) {
  if (line->first == 0) return;
  if (line->live)
    draw(line, &line->last);
  else if (line->printed != line->last.step)
    tell_plain(line, &line->last);
  cli_line_end(line);
}
