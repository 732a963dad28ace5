/* train/report.c -- the report of a run: one page of HTML that opens from disk, with everything in it
** in:    metrics.jsonl and run.json           out: report.html beside them, whole or not at all
** keeps: nothing is loaded from elsewhere; texts of the run are escaped; it reads well without scripts
** tests: tests/train/test_report.c
*/
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "io/io.h"
#include "quern/train.h"
#include "quern/version.h"
#include "train/report.h"

static const char style[] =
    ":root{color-scheme:light dark;--ground:#f6f6f3;--card:#fff;--ink:#1d1f21;--dim:#6b7075;--rule:#e4e4df;"
    "--a:#2563eb;--b:#d9480f;--c:#0f8a5f;--d:#8b3fc4}\n"
    "@media(prefers-color-scheme:dark){:root{--ground:#141618;--card:#1d2023;--ink:#e8e8e6;--dim:#9aa0a6;--rule:#"
    "32363a;"
    "--a:#6ea8ff;--b:#ff9d5c;--c:#4fd1a0;--d:#c792ff}}\n"
    "*{box-sizing:border-box}body{margin:0;padding:24px 20px 48px;background:var(--ground);color:var(--ink);"
    "font:14px/1.45 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}\n"
    "main{max-width:1080px;margin:0 auto}h1{font-size:22px;line-height:1.25;margin:0;overflow-wrap:anywhere}"
    "h2{font-size:16px;margin:32px 0 10px}header p{margin:4px 0 0;color:var(--dim);overflow-wrap:anywhere}\n"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(132px,1fr));gap:10px;margin:18px 0}"
    ".tiles div,.chart,.table,.pairs{background:var(--card);border:1px solid var(--rule);border-radius:8px}"
    ".tiles div{padding:10px 12px}.tiles span{display:block;color:var(--dim);font-size:12px}"
    ".tiles b{font-size:18px;font-weight:600;overflow-wrap:anywhere}.tiles "
    "i{display:block;font-style:normal;color:var(--dim);"
    "font-size:12px}\n"
    ".charts{display:grid;grid-template-columns:1fr 1fr;gap:12px}.wide{grid-column:1/-1}"
    ".chart{margin:0;padding:12px 14px;min-width:0;position:relative}figcaption{font-size:13px;margin:0 0 14px}"
    "figcaption "
    "i{font-style:normal;color:var(--dim);float:right}.key{color:var(--dim);margin-left:10px;white-space:nowrap}"
    ".key:before{content:'';display:inline-block;width:12px;height:3px;border-radius:2px;margin-right:5px;"
    "vertical-align:middle;background:currentColor}\n"
    ".key.a:before{background:var(--a)}.key.b:before{background:var(--b)}.key.c:before{background:var(--c)}"
    ".key.d:before{background:var(--d)}\n"
    ".plot{position:relative;height:190px;margin:0 10px 22px 58px}.wide .plot{height:280px}"
    ".plot svg{position:absolute;inset:0;width:100%;height:100%;overflow:visible}"
    ".plot span{position:absolute;font-size:11px;color:var(--dim);white-space:nowrap;font-variant-numeric:tabular-nums}"
    ".plot .y{right:calc(100% + 8px);transform:translateY(-50%)}"
    ".plot .x{top:calc(100% + 5px);transform:translateX(-50%)}\n"
    "path{fill:none;vector-effect:non-scaling-stroke;stroke-width:1.8px;stroke-linejoin:round;stroke-linecap:round}"
    ".grid{stroke:var(--rule);stroke-width:1px}.raw{opacity:.32;stroke-width:1px}.dots{stroke-width:7px}"
    "path.limit{stroke:var(--dim);stroke-width:1.2px;stroke-dasharray:5 4}\n"
    "path.a{stroke:var(--a)}path.b{stroke:var(--b)}path.c{stroke:var(--c)}path.d{stroke:var(--d)}"
    "path.fill{stroke:none;opacity:.16}path.fill.a{fill:var(--a)}path.fill.b{fill:var(--b)}path.fill.c{fill:var(--c)}"
    "path.fill.d{fill:var(--d)}\n"
    ".none{color:var(--dim);margin:30px 0;text-align:center}"
    ".tip{position:absolute;z-index:2;pointer-events:none;background:var(--ink);color:var(--card);border-radius:5px;"
    "padding:4px 8px;font-size:12px;white-space:pre}.mark{position:absolute;width:9px;height:9px;margin:-4.5px;"
    "border-radius:50%;border:2px solid var(--card);background:var(--ink);pointer-events:none}\n"
    ".table{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}"
    "th,td{padding:6px 12px;text-align:right;white-space:nowrap;border-top:1px solid var(--rule)}"
    "th{font-weight:600;color:var(--dim);border-top:0;font-size:12px}td:first-child,th:first-child{text-align:left;"
    "white-space:normal;min-width:190px}"
    "code{font:12px/1.4 ui-monospace,SFMono-Regular,Menlo,'DejaVu Sans Mono',monospace;overflow-wrap:anywhere}"
    "td small{display:block;color:var(--dim);font-size:11px;overflow-wrap:anywhere}"
    ".bar{background:linear-gradient(90deg,color-mix(in srgb,var(--b) 28%,transparent) var(--w),transparent "
    "var(--w))}\n"
    ".pairs{display:grid;grid-template-columns:repeat(auto-fill,minmax(260px,1fr));margin:0;padding:6px 14px}"
    ".pairs div{display:flex;gap:12px;justify-content:space-between;padding:4px 8px 4px 0;min-width:0}"
    "dt{color:var(--dim)}dd{margin:0;text-align:right;overflow-wrap:anywhere;min-width:0}"
    "footer{margin-top:28px;color:var(--dim);font-size:12px}\n"
    "@media(max-width:720px){body{padding:16px 12px 32px}.charts{grid-template-columns:1fr}.wide .plot{height:220px}"
    ".plot{margin-left:50px;margin-right:6px}.tiles{grid-template-columns:1fr 1fr}.some{display:none}"
    "th,td{padding:6px 8px}td:first-child,th:first-child{min-width:150px}figcaption i{float:none;margin-left:10px}}\n";

/* The values at the pointer; without it the page lacks nothing else. */
static const char script[] =
    "document.querySelectorAll('.chart').forEach(function(f){var p=f.querySelector('.plot');if(!p)return;"
    "var s=[].map.call(f.querySelectorAll('[data-at]'),function(e){return{name:e.dataset.name,"
    "at:e.dataset.at.split(';').filter(Boolean).map(function(t){var v=t.split(' ');"
    "return[+v[0],+v[1],v[2],v.slice(3).join(' ')]})}}).filter(function(e){return e.at.length});"
    "if(!s.length)return;var t=document.createElement('div'),m=s.map(function(){var d=document.createElement('div');"
    "d.className='mark';return d});t.className='tip';"
    "function hide(){t.remove();m.forEach(function(d){d.remove()})}"
    "p.addEventListener('pointermove',function(e){var "
    "r=p.getBoundingClientRect(),x=(e.clientX-r.left)/r.width*1000,l=[],b0;"
    "s.forEach(function(q,i){var b=q.at.reduce(function(a,c){return Math.abs(c[0]-x)<Math.abs(a[0]-x)?c:a});"
    "if(i===0)b0=b;else if(Math.abs(b[0]-b0[0])>15){m[i].remove();return}"
    "if(i===0)l.push(f.dataset.x+' '+b[2]);l.push(q.name+' '+b[3]);"
    "m[i].style.left=b[0]/10+'%';m[i].style.top=b[1]/10+'%';p.appendChild(m[i])});"
    "t.textContent=l.join('\\n');p.appendChild(t);var w=t.offsetWidth,px=b0[0]/1000*r.width;"
    "t.style.left=Math.max(0,px+w+14>r.width?px-w-12:px+12)+'px';t.style.top='4px'});"
    "p.addEventListener('pointerleave',hide)});\n";

/* A report on its way. */
struct page {
  struct base_str *str;
  const struct train_history *history;
  const json_t *info;
};

/* ---- head and tiles ------------------------------------------------------------------------------------------------ */

static double last_of(const struct train_history *history, size_t offset) {
  for (size_t i = history->points.n; i-- > 0;) {
    double value;
    memcpy(&value, (const char *)&history->points.at[i] + offset, sizeof value);
    if (isfinite(value)) return value;
  }
  return NAN;
}

static void add_tile(const struct page *page, const char *name, const char *value, const char *more) {
  base_str_printf(page->str, "<div><span>%s</span><b>", name);
  train_html_add(page->str, value);
  base_str_add(page->str, "</b>");
  if (more[0] != 0) {
    base_str_add(page->str, "<i>");
    train_html_add(page->str, more);
    base_str_add(page->str, "</i>");
  }
  base_str_add(page->str, "</div>\n");
}

static void add_head(const struct page *page, const char *dir) {
  const char *model = train_string(page->info, "model"), *data = train_string(page->info, "data");
  base_str_add(page->str, "<header><h1>");
  train_html_add(page->str, model[0] != 0 ? model : dir);
  base_str_add(page->str, "</h1><p>");
  if (data[0] != 0) train_html_add(page->str, data);
  base_str_add(page->str, data[0] != 0 ? " &middot; run in " : "run in ");
  train_html_add(page->str, dir);
  base_str_add(page->str, "</p></header>\n");
}

static void add_loss_tiles(const struct page *page) {
  const struct train_history *h = page->history;
  const struct train_mark *best = train_best(h), *last = h->marks.n > 0 ? &h->marks.at[h->marks.n - 1] : NULL;
  char text[TRAIN_TEXT], more[96], number[TRAIN_TEXT];
  snprintf(more, sizeof more, "first %s", train_text_number(number, h->points.n > 0 ? h->points.at[0].loss : NAN, 4));
  double loss = last_of(h, offsetof(struct train_point, loss));
  add_tile(page, "training loss", train_text_number(text, loss, 5), isnan(loss) ? "" : more);
  if (best != NULL) {
    snprintf(more, sizeof more, h->evaluations > 1 ? "at step %.0f, the best of %zu" : "at step %.0f", best->step,
             h->evaluations);
    add_tile(page, "evaluation loss", train_text_number(text, best->loss, 5), more);
  }
  if (last != NULL && isfinite(last->accuracy)) {
    snprintf(text, sizeof text, "%.2f %%", 100 * last->accuracy);
    snprintf(more, sizeof more, "at step %.0f", last->step);
    add_tile(page, "accuracy", text, more);
  }
}

static void add_memory_tile(const struct page *page) {
  char text[TRAIN_TEXT], more[128], used[TRAIN_TEXT], limit[TRAIN_TEXT];
  double planned = train_number(page->info, "planned"), most = train_number(page->info, "limit");
  double measured = train_number(page->history->run, "measured_peak_bytes");
  if (isnan(planned) && isnan(measured)) return;
  int n = snprintf(more, sizeof more, "measured %s", train_text_bytes(used, measured));
  if (most > 0) snprintf(more + n, sizeof more - (size_t)n, ", limit %s", train_text_bytes(limit, most));
  add_tile(page, "memory planned", train_text_bytes(text, planned), isnan(measured) && !(most > 0) ? "" : more);
}

static void add_tiles(const struct page *page) {
  const struct train_history *h = page->history;
  char text[TRAIN_TEXT], more[96], number[TRAIN_TEXT];
  double steps = train_number(page->info, "steps"), batch = train_number(page->info, "batch");
  double done = h->points.n > 0 ? h->points.at[h->points.n - 1].step : NAN;
  base_str_add(page->str, "<section class=\"tiles\">\n");
  int n = isnan(steps) ? 0 : snprintf(more, sizeof more, "of %.0f", steps);
  more[n] = 0;
  if (h->skipped > 0) snprintf(more + n, sizeof more - (size_t)n, "%s%.0f skipped", n > 0 ? ", " : "", h->skipped);
  snprintf(text, sizeof text, "%.0f", isnan(done) ? 0 : done);
  add_tile(page, "steps", text, more);
  add_loss_tiles(page);
  double rate = last_of(h, offsetof(struct train_point, per_second));
  double ms = last_of(h, offsetof(struct train_point, ms)), peak = last_of(h, offsetof(struct train_point, peak));
  bool tokens = train_number(page->info, "length") > 0;
  n = snprintf(more, sizeof more, "%s a step", train_text_seconds(number, ms / 1e3));
  if (peak > 0) snprintf(more + n, sizeof more - (size_t)n, ", %.1f %% of peak", 100 * peak);
  if (!isnan(rate)) add_tile(page, tokens ? "tokens a second" : "samples a second", train_text_count(text, rate), more);
  more[0] = 0;
  if (!isnan(batch)) snprintf(more, sizeof more, "batch %.0f", batch);
  double parameters = train_number(page->info, "parameters");
  if (!isnan(parameters)) add_tile(page, "parameters", train_text_count(text, parameters), more);
  add_memory_tile(page);
  double first = train_number(page->info, "first_launch"), compiled = train_number(page->info, "compiled");
  snprintf(more, sizeof more, compiled > 0 ? "cold: %.0f units compiled" : "warm", compiled);
  if (first > 0) add_tile(page, "to the first kernel", train_text_seconds(text, first), isnan(compiled) ? "" : more);
  base_str_add(page->str, "</section>\n");
}

/* ---- curves -------------------------------------------------------------------------------------------------------- */

#define POINTS(NAME, CLASS, MEMBER)                                                                                    \
  .name = NAME, .class = CLASS, .at = h->points.at, .n = h->points.n, .stride = sizeof(struct train_point),            \
  .x = offsetof(struct train_point, step), .y = offsetof(struct train_point, MEMBER)
#define MARKS(NAME, CLASS, MEMBER)                                                                                     \
  .name = NAME, .class = CLASS, .at = h->marks.at, .n = h->marks.n, .stride = sizeof(struct train_mark),               \
  .x = offsetof(struct train_mark, step), .y = offsetof(struct train_mark, MEMBER)

/* Whether a member is known of some point and, where it is, not always `usual`. */
static bool tells(const struct train_history *h, size_t offset, double usual) {
  for (size_t i = 0; i < h->points.n; i++) {
    double value;
    memcpy(&value, (const char *)&h->points.at[i] + offset, sizeof value);
    if (isfinite(value) && value != usual) return true;
  }
  return false;
}

static quern_status add_curves(const struct page *page) {
  const struct train_history *h = page->history;
  bool tokens = train_number(page->info, "length") > 0, accuracy = false;
  for (size_t i = 0; i < h->marks.n; i++) accuracy |= isfinite(h->marks.at[i].accuracy);
  struct train_series loss[] = {{POINTS("training", "a", loss), .smooth = true},
                                {MARKS("evaluation", "b", loss), .dots = h->marks.n <= 60}};
  struct train_series lr = {POINTS("lr", "c", lr)};
  struct train_series rate = {POINTS(tokens ? "tokens/s" : "samples/s", "a", per_second), .smooth = true};
  struct train_series norm = {POINTS("norm", "d", norm), .smooth = true};
  struct train_series peak = {POINTS("%", "c", peak), .factor = 100, .smooth = true};
  struct train_series scale = {POINTS("scale", "d", scale), .stairs = true};
  struct train_series exact = {MARKS("%", "b", accuracy), .factor = 100, .dots = h->marks.n <= 60};
  const struct {
    bool shown;
    struct train_chart chart;
  } charts[] = {
      {true, {.id = "loss", .title = "Loss", .wide = true, .may_log = true, .n_series = 2, .series = loss}},
      {accuracy,
       {.id = "accuracy", .title = "Accuracy, %", .wide = true, .from_zero = true, .n_series = 1, .series = &exact}},
      {true, {.id = "lr", .title = "Learning rate", .from_zero = true, .n_series = 1, .series = &lr}},
      {true,
       {.id = "throughput",
        .title = tokens ? "Throughput, tokens/s" : "Throughput, samples/s",
        .from_zero = true,
        .n_series = 1,
        .series = &rate}},
      {true, {.id = "norm", .title = "Gradient norm", .may_log = true, .n_series = 1, .series = &norm}},
      {tells(h, offsetof(struct train_point, peak), 0),
       {.id = "peak", .title = "Part of the machine's limit, %", .from_zero = true, .n_series = 1, .series = &peak}},
      {tells(h, offsetof(struct train_point, scale), 1),
       {.id = "scale", .title = "Loss scale", .may_log = true, .n_series = 1, .series = &scale}},
  };
  base_str_add(page->str, "<section class=\"charts\">\n");
  for (size_t i = 0; i < BASE_COUNT(charts); i++) {
    struct train_chart chart = charts[i].chart;
    chart.x_name = "step";
    if (charts[i].shown) QUERN_TRY(train_chart_add(page->str, &chart));
  }
  base_str_add(page->str, "</section>\n");
  return QUERN_STATUS_OK;
}

/* ---- memory of a step ---------------------------------------------------------------------------------------------- */

struct moment {
  double at, bytes;
};

static void add_kinds(const struct page *page) {
  static const char *const kinds[][2] = {{"state", "parameters, optimizer"}, {"arena", "of a step"},
                                         {"constants", "in the program"},    {"scratch", "of threads"},
                                         {"staging", "of inputs"},           {"bound", "least arena"},
                                         {"unshared", "if nothing shared"}};
  const json_t *memory = json_object_get(page->info, "memory");
  char text[TRAIN_TEXT];
  base_str_add(page->str, "<section class=\"tiles\">\n");
  for (size_t i = 0; i < BASE_COUNT(kinds); i++) {
    double bytes = train_number(memory, kinds[i][0]);
    if (bytes > 0) add_tile(page, kinds[i][0], train_text_bytes(text, bytes), kinds[i][1]);
  }
  base_str_add(page->str, "</section>\n");
}

static quern_status add_memory(const struct page *page) {
  const json_t *memory = json_object_get(page->history->run, "memory"), *timeline = json_object_get(memory, "timeline");
  struct base_heap *heap = page->str->heap;
  size_t n = json_array_size(timeline), bytes = (n + 2) * sizeof(struct moment);
  if (json_object_get(page->info, "memory") == NULL && n == 0) return QUERN_STATUS_OK;
  base_str_add(page->str, "<h2>Memory of a step</h2>\n");
  add_kinds(page);
  if (n == 0) return QUERN_STATUS_OK;
  struct moment *moments = base_alloc(heap, bytes);
  if (moments == NULL) return QUERN_STATUS_MEMORY;
  size_t used = 0;
  for (size_t i = 0; i < n; i++) {
    const json_t *pair = json_array_get(timeline, i);
    const json_t *at = json_array_get(pair, 0), *alive = json_array_get(pair, 1);
    if (!json_is_number(at) || !json_is_number(alive)) continue;
    moments[used++] = (struct moment){json_number_value(at), json_number_value(alive)};
  }
  struct train_series alive = {.name = "bytes alive",
                               .class = "a",
                               .at = moments,
                               .n = used,
                               .stride = sizeof *moments,
                               .x = offsetof(struct moment, at),
                               .y = offsetof(struct moment, bytes),
                               .fill = true,
                               .stairs = true};
  double arena = train_number(json_object_get(page->info, "memory"), "arena");
  struct train_chart chart = {.id = "memory",
                              .title = "Planned bytes over the kernels of a step",
                              .x_name = "kernel",
                              .wide = true,
                              .from_zero = true,
                              .bytes = true,
                              .line = arena > 0 ? arena : 0,
                              .line_name = "arena",
                              .n_series = 1,
                              .series = &alive};
  base_str_add(page->str, "<section class=\"charts\">\n");
  quern_status status = train_chart_add(page->str, &chart);
  base_str_add(page->str, "</section>\n");
  base_free(heap, moments, bytes);
  return status;
}

/* ---- kernels ------------------------------------------------------------------------------------------------------- */

static int by_lost(const void *x, const void *y) {
  const json_t *a = *(json_t *const *)x, *b = *(json_t *const *)y;
  double lost_a = train_number(a, "lost_ms"), lost_b = train_number(b, "lost_ms");
  lost_a = isnan(lost_a) ? -1 : lost_a;
  lost_b = isnan(lost_b) ? -1 : lost_b;
  if (lost_a != lost_b) return lost_a < lost_b ? 1 : -1;
  return strcmp(train_string(a, "name"), train_string(b, "name"));
}

static void add_cell(const struct page *page, const char *class, const char *fmt, double x) {
  base_str_printf(page->str, "<td%s%s%s>", class[0] != 0 ? " class=\"" : "", class, class[0] != 0 ? "\"" : "");
  if (isnan(x))
    base_str_add(page->str, "-");
  else {
    char text[64];
    snprintf(text, sizeof text, fmt, x);
    base_str_add(page->str, text);
  }
  base_str_add(page->str, "</td>");
}

/* most: lost by a kernel, total: time of all. */
static void add_kernel(const struct page *page, const json_t *kernel, double most, double total) {
  double lost = train_number(kernel, "lost_ms"), time = train_number(kernel, "total_ms");
  base_str_add(page->str, "<tr><td><code>");
  train_html_add(page->str, train_string(kernel, "name"));
  base_str_add(page->str, "</code><small>");
  train_html_add(page->str, train_string(kernel, "ops"));
  base_str_printf(page->str, "</small></td><td class=\"bar\" style=\"--w:%.1f%%\">",
                  most > 0 && lost > 0 ? 100 * lost / most : 0);
  base_str_printf(page->str, isnan(lost) ? "-" : "%.2f", lost);
  base_str_add(page->str, "</td>");
  add_cell(page, "some", "%.2f", time);
  add_cell(page, "", "%.1f %%", total > 0 ? 100 * time / total : NAN);
  add_cell(page, "", "%.1f %%", train_number(kernel, "limit_pct"));
  add_cell(page, "some", "%.0f", train_number(kernel, "count"));
  add_cell(page, "some", "%.1f", train_number(kernel, "gflops"));
  add_cell(page, "some", "%.1f", train_number(kernel, "gbs"));
  base_str_add(page->str, "</tr>\n");
}

quern_status train_kernels_sorted(struct base_heap *heap, const json_t *run, size_t *n, json_t ***sorted) {
  const json_t *kernels = json_object_get(run, "kernels");
  *n = json_array_size(kernels);
  *sorted = base_alloc(heap, (*n + 1) * sizeof **sorted);
  if (*sorted == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < *n; i++) (*sorted)[i] = json_array_get(kernels, i);
  qsort(*sorted, *n, sizeof **sorted, by_lost);
  return QUERN_STATUS_OK;
}

static quern_status add_kernels(const struct page *page) {
  size_t n;
  json_t **sorted;
  QUERN_TRY(train_kernels_sorted(page->str->heap, page->history->run, &n, &sorted));
  if (n > 0) {
    double most = train_number(sorted[0], "lost_ms"), total = 0;
    for (size_t i = 0; i < n; i++) total += fmax(train_number(sorted[i], "total_ms"), 0); /* NAN counts as 0 */
    base_str_add(
        page->str,
        "<h2>Kernels, by the time they lose against the machine's limits</h2>\n<div class=\"table\" "
        "id=\"kernels\"><table><thead><tr><th>kernel</th><th>lost ms</th><th class=\"some\">total ms</th><th>share</th>"
        "<th>of limit</th><th class=\"some\">runs</th><th class=\"some\">GFLOP/s</th>"
        "<th class=\"some\">GB/s</th></tr></thead><tbody>\n");
    for (size_t i = 0; i < n; i++) add_kernel(page, sorted[i], most, total);
    base_str_add(page->str, "</tbody></table></div>\n");
  }
  base_free(page->str->heap, sorted, (n + 1) * sizeof *sorted);
  return QUERN_STATUS_OK;
}

/* ---- configuration and machine ------------------------------------------------------------------------------------- */

static void add_value(const struct page *page, const json_t *value) {
  char text[TRAIN_TEXT];
  if (json_is_string(value))
    train_html_add(page->str, json_string_value(value));
  else if (json_is_number(value))
    base_str_add(page->str, train_text_number(text, json_number_value(value), 10));
  else if (json_is_boolean(value))
    base_str_add(page->str, json_is_true(value) ? "true" : "false");
  else if (json_is_array(value))
    for (size_t i = 0; i < json_array_size(value); i++) {
      if (i > 0) base_str_add(page->str, ", ");
      if (json_is_number(json_array_get(value, i)))
        base_str_add(page->str, train_text_number(text, json_number_value(json_array_get(value, i)), 4));
    }
  else
    base_str_add(page->str, "-");
}

/* The members of an object that are no objects. */
static void add_pairs(const struct page *page, const char *title, const char *id, json_t *object) {
  const char *key;
  json_t *value;
  if (json_object_size(object) == 0) return;
  base_str_printf(page->str, "<h2>%s</h2>\n<dl class=\"pairs\" id=\"%s\">\n", title, id);
  json_object_foreach(object, key, value) {
    if (json_is_object(value)) continue;
    base_str_add(page->str, "<div><dt>");
    train_html_add(page->str, key);
    base_str_add(page->str, "</dt><dd>");
    add_value(page, value);
    base_str_add(page->str, "</dd></div>\n");
  }
  base_str_add(page->str, "</dl>\n");
}

/* ---- the page ------------------------------------------------------------------------------------------------------ */

static quern_status make_page(struct base_str *str, const struct train_history *history, const char *dir) {
  struct page page = {str, history, json_object_get(history->run, "info")};
  const char *model = train_string(page.info, "model");
  base_str_add(str, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
                    "content=\"width=device-width,initial-scale=1\">\n<title>");
  train_html_add(str, model[0] != 0 ? model : dir);
  base_str_add(str, " - Quern</title>\n<style>\n");
  base_str_add(str, style);
  base_str_add(str, "</style></head>\n<body><main>\n");
  add_head(&page, dir);
  add_tiles(&page);
  QUERN_TRY(add_curves(&page));
  QUERN_TRY(add_memory(&page));
  QUERN_TRY(add_kernels(&page));
  add_pairs(&page, "Configuration", "config", json_object_get(history->run, "config"));
  add_pairs(&page, "Run", "run", json_object_get(history->run, "info"));
  add_pairs(&page, "Machine", "machine", json_object_get(history->run, "machine"));
  base_str_printf(str,
                  "<footer>Quern %s. From metrics.jsonl and run.json in the same folder; nothing is loaded from "
                  "elsewhere.</footer>\n</main>\n<script>\n%s</script>\n</body></html>\n",
                  quern_version(), script);
  return base_str_status(str);
}

quern_status train_report_write(const char *dir, const quern_allocator *allocator) {
  struct train_history history;
  struct base_str str;
  char path[IO_PATH_MOST];
  quern_status status = train_history_read(&history, "train_report", dir, allocator);
  base_str_init(&str, &history.heap);
  if (status == QUERN_STATUS_OK) status = make_page(&str, &history, dir);
  if (status == QUERN_STATUS_OK) {
    snprintf(path, sizeof path, "%s/report.html", dir); /* as long as run.json's */
    status = io_file_write("train_report", path, 1, &(struct io_piece){str.at, str.n});
  }
  base_str_fini(&str);
  train_history_fini(&history);
  return status;
}

quern_status quern_train_report(const char *dir) { return train_report_write(dir, NULL); }
