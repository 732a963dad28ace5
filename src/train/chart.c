/* train/chart.c -- curves as SVG that stretches to its place: lines keep their width, labels are text of the page
** in:    series of any length, with gaps      out: a figure of at most some thousand points
** keeps: of many points in a column the least and the greatest are drawn, so that no spike is lost
** tests: tests/train/test_report.c
*/
#include <math.h>
#include <stdio.h>

#include "io/tokenizer.h"
#include "train/report.h"

enum { SIDE = 1000, COLUMNS = 500, MEANS = 100, SMOOTH_LEAST = 200, HOVER = 400, TICKS = 24 };

void train_html_add(struct base_str *str, const char *text) {
  static const struct {
    char c;
    const char *text;
  } names[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
  for (size_t n; *text != 0; text += n > 0 ? n : 1) {
    size_t i = 0;
    n = base_text_char(text);
    while (i < BASE_COUNT(names) && *text != names[i].c) i++;
    if (i < BASE_COUNT(names))
      base_str_add(str, names[i].text);
    else if (n > 0 || *text == '\n' || *text == '\t')
      base_str_add_n(str, text, n > 0 ? n : 1);
    else
      base_str_add(str, "\xef\xbf\xbd"); /* U+FFFD, for what is no text */
  }
}

/* ---- series -------------------------------------------------------------------------------------------------------- */

static double member(const struct train_series *s, size_t i, size_t offset) {
  double value;
  memcpy(&value, (const char *)s->at + i * s->stride + offset, sizeof value);
  return value;
}

static double x_of(const struct train_series *s, size_t i) { return member(s, i, s->x); }
static double y_of(const struct train_series *s, size_t i) {
  return member(s, i, s->y) * (s->factor != 0 ? s->factor : 1);
}

/* ---- axes ---------------------------------------------------------------------------------------------------------- */

struct axis {
  double lo, hi, step; /* step: between labels, unless log */
  bool log, bytes;
  int n;
  double ticks[TICKS];
};

/* Where a value is, from 0 to 1. */
static double place(const struct axis *axis, double v) {
  return axis->log ? (log(v) - log(axis->lo)) / (log(axis->hi) - log(axis->lo))
                   : (v - axis->lo) / (axis->hi - axis->lo);
}

/* The next of 1, 2, 5, 10, 20, ... that is not less. */
static double round_step(double step) {
  static const double steps[] = {1, 2, 5, 10};
  double power = pow(10, floor(log10(step)));
  for (size_t i = 0; i < BASE_COUNT(steps); i++)
    if (steps[i] * power >= step * (1 - 1e-9)) return steps[i] * power;
  return 10 * power;
}

/* Labels about every n-th part; the ends are moved out to labels when they may be. */
static void make_linear(struct axis *axis, int n, bool move) {
  double unit = 1;
  while (axis->bytes && axis->hi / unit >= 1024) unit *= 1024;
  axis->step = round_step((axis->hi - axis->lo) / unit / n) * unit;
  if (!axis->bytes && !move) axis->step = BASE_MAX(axis->step, 1); /* steps are whole */
  if (move) {
    axis->lo = floor(axis->lo / axis->step + 1e-9) * axis->step;
    axis->hi = ceil(axis->hi / axis->step - 1e-9) * axis->step;
  }
  double first = ceil(axis->lo / axis->step - 1e-9);
  for (axis->n = 0; axis->n < TICKS; axis->n++) {
    double v = (first + axis->n) * axis->step;
    if (v > axis->hi + 1e-9 * axis->step) break;
    axis->ticks[axis->n] = v;
  }
}

/* Labels at 1, 2, 5, 10, ..., or at powers of ten only, or at some of them. */
static void make_log(struct axis *axis) {
  static const double parts[] = {1, 2, 5};
  double low = floor(log10(axis->lo)), high = ceil(log10(axis->hi));
  double span = high - low, jump = ceil(span / 8);
  axis->n = 0;
  if (span > 2) {
    axis->lo = pow(10, low);
    axis->hi = pow(10, high);
    for (int i = 0; low + i * jump <= high + 0.5 && axis->n < TICKS; i++)
      axis->ticks[axis->n++] = pow(10, low + i * jump);
    return;
  }
  double lo = axis->lo, hi = axis->hi, below = pow(10, low), above = pow(10, high);
  for (int e = (int)low; e <= (int)high; e++) {
    for (size_t i = 0; i < BASE_COUNT(parts); i++) {
      double v = parts[i] * pow(10, e);
      if (v <= lo * (1 + 1e-9)) below = v;
      if (v >= hi * (1 - 1e-9)) above = BASE_MIN(above, v);
    }
  }
  axis->lo = below;
  axis->hi = above;
  for (int e = (int)low; e <= (int)high; e++)
    for (size_t i = 0; i < BASE_COUNT(parts) && axis->n < TICKS; i++) {
      double v = parts[i] * pow(10, e);
      if (v >= below * (1 - 1e-9) && v <= above * (1 + 1e-9)) axis->ticks[axis->n++] = v;
    }
}

/* The number at a label. */
static const char *label(char text[TRAIN_TEXT], const struct axis *axis, double v) {
  double size = BASE_MAX(fabs(axis->lo), fabs(axis->hi)), step = axis->log ? v : axis->step;
  if (axis->bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t i = 0;
    for (; size >= 1024 && i + 1 < BASE_COUNT(units); i++) size /= 1024, v /= 1024;
    snprintf(text, TRAIN_TEXT, v == 0 ? "0" : "%.4g %s", v, units[i]);
    return text;
  }
  const char *unit = size >= 2e9 && !axis->log   ? "G"
                     : size >= 2e6 && !axis->log ? "M"
                     : size >= 1e4 && !axis->log ? "k"
                                                 : "";
  double divisor = unit[0] == 'G' ? 1e9 : unit[0] == 'M' ? 1e6 : unit[0] == 'k' ? 1e3 : 1;
  int digits = (int)BASE_MAX(0, -floor(log10(step / divisor) + 1e-9));
  if (v == 0)
    snprintf(text, TRAIN_TEXT, "0");
  else if (digits > 3 || v >= 1e7)
    snprintf(text, TRAIN_TEXT, "%.3g", v);
  else
    snprintf(text, TRAIN_TEXT, "%.*f%s", digits, v / divisor, unit);
  return text;
}

/* ---- curves -------------------------------------------------------------------------------------------------------- */

/* What draws a path. */
struct pen {
  struct base_str *str;
  const struct axis *x, *y;
  size_t n; /* points since it was lifted */
  bool stairs, dots;
  double first, last; /* places in x, of 1000 */
};

static bool drawable(const struct axis *y, double v) { return isfinite(v) && (!y->log || v > 0); }

/* A line of one point is a dot. */
static void lift(struct pen *pen) {
  if (pen->n == 1 && !pen->dots) base_str_add(pen->str, "h.01");
  pen->n = 0;
}

static void draw(struct pen *pen, double x, double y) {
  if (!isfinite(x) || !drawable(pen->y, y)) {
    lift(pen);
    return;
  }
  double at = SIDE * place(pen->x, x), up = SIDE * (1 - place(pen->y, y));
  if (pen->dots)
    base_str_printf(pen->str, "M%.1f %.1fh.01", at, up);
  else if (pen->n == 0)
    base_str_printf(pen->str, "M%.1f %.1f", at, up);
  else if (pen->stairs)
    base_str_printf(pen->str, "H%.1fV%.1f", at, up);
  else
    base_str_printf(pen->str, "L%.1f %.1f", at, up);
  if (pen->n++ == 0) pen->first = at;
  pen->last = at;
}

static int column_of(const struct axis *x, double v, int columns) {
  double at = floor(place(x, v) * columns);
  return at < 0 ? 0 : at >= columns ? columns - 1 : (int)at;
}

/* Every point, or of each column the least and the greatest in their order. */
static void draw_all(struct pen *pen, const struct train_series *s) {
  bool all = s->n <= 2 * COLUMNS;
  for (size_t i = 0; i < s->n;) {
    if (all || !drawable(pen->y, y_of(s, i))) {
      draw(pen, x_of(s, i), y_of(s, i));
      i++;
      continue;
    }
    int column = column_of(pen->x, x_of(s, i), COLUMNS);
    size_t least = i, most = i;
    for (; i < s->n && drawable(pen->y, y_of(s, i)) && column_of(pen->x, x_of(s, i), COLUMNS) == column; i++) {
      if (y_of(s, i) < y_of(s, least)) least = i;
      if (y_of(s, i) > y_of(s, most)) most = i;
    }
    size_t early = BASE_MIN(least, most), late = BASE_MAX(least, most);
    draw(pen, x_of(s, early), y_of(s, early));
    if (late != early) draw(pen, x_of(s, late), y_of(s, late));
  }
  lift(pen);
}

/* The mean of each of fewer columns. */
static void draw_means(struct pen *pen, const struct train_series *s) {
  for (size_t i = 0; i < s->n;) {
    int column = column_of(pen->x, x_of(s, i), MEANS);
    double n = 0, x = 0, y = 0;
    for (; i < s->n && column_of(pen->x, x_of(s, i), MEANS) == column; i++) {
      if (!drawable(pen->y, y_of(s, i))) continue;
      n++;
      x += x_of(s, i);
      y += y_of(s, i);
    }
    if (n > 0) draw(pen, x / n, y / n);
  }
  lift(pen);
}

/* What the pointer finds: the places and values of some points. */
static void add_hover(struct base_str *str, const struct axis *x, const struct axis *y, const struct train_series *s) {
  size_t stride = (s->n + HOVER - 1) / HOVER;
  base_str_add(str, "\" data-name=\"");
  train_html_add(str, s->name);
  base_str_add(str, "\" data-at=\"");
  for (size_t i = 0; i < s->n; i += BASE_MIN(stride, BASE_MAX(s->n - 1 - i, 1))) { /* the last one too */
    double v = y_of(s, i);
    if (!drawable(y, v)) continue;
    char text[TRAIN_TEXT];
    base_str_printf(str, "%.1f %.1f %.0f %s;", SIDE * place(x, x_of(s, i)), SIDE * (1 - place(y, v)), x_of(s, i),
                    y->bytes ? train_text_bytes(text, v) : train_text_number(text, v, 5));
  }
}

static void add_series(struct base_str *str, const struct axis *x, const struct axis *y, const struct train_series *s) {
  bool smooth = s->smooth && s->n >= SMOOTH_LEAST;
  struct pen pen = {.str = str, .x = x, .y = y, .stairs = s->stairs && s->n <= 2 * COLUMNS, .dots = s->dots};
  if (s->fill) {
    base_str_printf(str, "<path class=\"fill %s\" d=\"", s->class);
    draw_all(&pen, s);
    base_str_printf(str, "L%.1f %dL%.1f %dZ\"/>", pen.last, SIDE, pen.first, SIDE);
  }
  base_str_printf(str, "<path class=\"%s %s", s->class, smooth ? "raw" : s->dots || s->n == 1 ? "dots" : "line");
  add_hover(str, x, y, s);
  base_str_add(str, "\" d=\"");
  draw_all(&pen, s);
  base_str_add(str, "\"/>");
  if (!smooth) return;
  base_str_printf(str, "<path class=\"%s line\" d=\"", s->class);
  draw_means(&pen, s);
  base_str_add(str, "\"/>");
}

/* ---- the figure ---------------------------------------------------------------------------------------------------- */

/* The ends of what there is to draw; false: nothing. */
static bool find_ends(const struct train_chart *chart, struct axis *x, struct axis *y) {
  double x_lo = INFINITY, x_hi = -INFINITY, y_lo = INFINITY, y_hi = -INFINITY;
  for (size_t k = 0; k < chart->n_series; k++) {
    const struct train_series *s = &chart->series[k];
    for (size_t i = 0; i < s->n; i++) {
      if (!isfinite(x_of(s, i)) || !isfinite(y_of(s, i))) continue;
      x_lo = fmin(x_lo, x_of(s, i));
      x_hi = fmax(x_hi, x_of(s, i));
      y_lo = fmin(y_lo, y_of(s, i));
      y_hi = fmax(y_hi, y_of(s, i));
    }
  }
  if (x_lo > x_hi) return false;
  if (chart->line > 0) y_hi = fmax(y_hi, chart->line);
  *y = (struct axis){.bytes = chart->bytes, .log = chart->may_log && y_lo > 0 && y_hi > 20 * y_lo};
  *x = (struct axis){.lo = x_lo <= 1 || x_lo < x_hi / 4 ? 0 : x_lo, .hi = x_hi};
  if (x->hi <= x->lo) x->hi = x->lo + 1;
  if (chart->from_zero && y_lo > 0) y_lo = 0;
  if (y_hi <= y_lo) { /* all the same: in the middle, or at the top */
    double room = y_lo != 0 ? fabs(y_lo) / 2 : 1;
    y_hi = y_lo + room;
    y_lo -= room;
  }
  y->lo = y_lo;
  y->hi = y_hi;
  make_linear(x, 6, false);
  if (y->log)
    make_log(y);
  else
    make_linear(y, chart->wide ? 6 : 4, true);
  return true;
}

static void add_labels(struct base_str *str, const struct axis *x, const struct axis *y) {
  char text[TRAIN_TEXT];
  for (int i = 0; i < y->n; i++)
    base_str_printf(str, "<span class=\"y\" style=\"top:%.2f%%\">%s</span>", 100 * (1 - place(y, y->ticks[i])),
                    label(text, y, y->ticks[i]));
  for (int i = 0; i < x->n; i++)
    base_str_printf(str, "<span class=\"x\" style=\"left:%.2f%%\">%s</span>", 100 * place(x, x->ticks[i]),
                    label(text, x, x->ticks[i]));
}

static void add_plot(struct base_str *str, const struct train_chart *chart, const struct axis *x,
                     const struct axis *y) {
  base_str_add(str, "<div class=\"plot\"><svg viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\" role=\"img\" "
                    "aria-label=\"");
  train_html_add(str, chart->title);
  base_str_add(str, "\"><path class=\"grid\" d=\"");
  for (int i = 0; i < y->n; i++) base_str_printf(str, "M0 %.1fH%d", SIDE * (1 - place(y, y->ticks[i])), SIDE);
  base_str_add(str, "\"/>");
  if (chart->line > 0)
    base_str_printf(str, "<path class=\"limit\" d=\"M0 %.1fH%d\"/>", SIDE * (1 - place(y, chart->line)), SIDE);
  for (size_t i = 0; i < chart->n_series; i++)
    if (chart->series[i].n > 0) add_series(str, x, y, &chart->series[i]);
  base_str_add(str, "</svg>");
  add_labels(str, x, y);
  base_str_add(str, "</div>");
}

quern_status train_chart_add(struct base_str *str, const struct train_chart *chart) {
  struct axis x = {0}, y = {0};
  bool any = find_ends(chart, &x, &y);
  base_str_printf(str, "<figure class=\"chart%s\" id=\"%s\" data-x=\"%s\"><figcaption><b>", chart->wide ? " wide" : "",
                  chart->id, chart->x_name);
  train_html_add(str, chart->title);
  base_str_add(str, "</b>");
  bool legend = chart->n_series > 1 || chart->line > 0;
  for (size_t i = 0; i < chart->n_series && any && legend; i++) {
    if (chart->series[i].n == 0) continue;
    base_str_printf(str, " <span class=\"key %s\">", chart->series[i].class);
    train_html_add(str, chart->series[i].name);
    base_str_add(str, "</span>");
  }
  if (any && chart->line > 0) base_str_printf(str, " <span class=\"key limit\">%s</span>", chart->line_name);
  if (any) base_str_printf(str, " <i>by %s%s</i>", chart->x_name, y.log ? ", logarithmic" : "");
  base_str_add(str, "</figcaption>");
  if (any)
    add_plot(str, chart, &x, &y);
  else
    base_str_add(str, "<p class=\"none\">nothing to draw yet</p>");
  base_str_add(str, "</figure>\n");
  return base_str_status(str);
}
