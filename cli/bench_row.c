/* cli/bench_row.c -- rows of results: a table for people, an object for machines */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void bench_row_add(struct bench_row *row, const char *key, double value) {
  if (row->n_more == BENCH_MORE) return;
  row->more[row->n_more].key = key;
  row->more[row->n_more++].value = value;
}

bool bench_wanted(const struct bench_run *run, const char *name, const char *params) {
  char label[256];
  snprintf(label, sizeof label, "%s %s", name, params);
  return run->only == NULL || strstr(label, run->only) != NULL;
}

/* ---- the table ------------------------------------------------------------------------------------------ */

/* Room for the params of all cases. */
static int params_width(const struct bench_run *run) {
  size_t width = 42;
  for (const struct bench_case *c = run->suite->cases; c != NULL && c->kind != NULL; c++)
    if (strlen(c->params) > width) width = strlen(c->params);
  if (run->suite->run == bench_run_zoo) width = 66;
  return (int)width;
}

static int column_width(const char *key) { return strlen(key) > 10 ? (int)strlen(key) : 10; }

static void print_head(const struct bench_run *run, const struct bench_row *row) {
  printf("%-14s %-*s %2s %10s %7s", "case", params_width(run), "params", "T", "ms", "spread");
  if (run->suite->rates) printf(" %9s %8s %7s", "GFLOP/s", "GB/s", "limit");
  printf(" %12s", "planned");
  for (int i = 0; i < row->n_more; i++) printf(" %*s", column_width(row->more[i].key), row->more[i].key);
  printf(row->n_results > 0 ? "  ratios (above 1: Quern is faster)\n" : "\n");
}

/* Whole numbers as such, others with three digits after the point. */
static void print_number(double value, int width) {
  if (isnan(value)) {
    printf(" %*s", width, "-");
    return;
  }
  bool whole = value == floor(value) && fabs(value) < 1e15;
  printf(" %*.*f", width, whole ? 0 : 3, value);
}

/* 0: nobody has counted it. */
static void print_rate(double value, int width, const char *unit) {
  if (value > 0)
    printf(" %*.1f%s", width, value, unit);
  else
    printf(" %*s", width + (int)strlen(unit), "-");
}

static void print_row(const struct bench_run *run, const struct bench_row *row) {
  if (row->failed[0] != 0) {
    printf("%-14s %-*s %2d FAILED: %s\n", row->name, params_width(run), row->params, row->threads, row->failed);
    fflush(stdout);
    return;
  }
  printf("%-14s %-*s %2d %10.4f %6.1f%%", row->name, params_width(run), row->params, row->threads, row->median * 1e3,
         100 * row->spread);
  if (run->suite->rates) {
    print_rate(row->gflops, 9, "");
    print_rate(row->gbs, 8, "");
    print_rate(row->limit, 6, "%");
  }
  printf(" %12lld", (long long)row->planned);
  for (int i = 0; i < row->n_more; i++) print_number(row->more[i].value, column_width(row->more[i].key));
  for (int i = 0; i < row->n_results; i++) printf("  %s %.2f", row->results[i].peer, row->results[i].ratio);
  printf("\n");
  fflush(stdout);
}

int bench_row_store(struct bench_run *run, const struct bench_row *row) {
  if (run->n_rows == run->room) {
    size_t room = run->room > 0 ? 2 * run->room : 64;
    struct bench_row *rows = realloc(run->rows, room * sizeof *rows);
    if (rows == NULL) return cli_fail("no memory");
    run->rows = rows;
    run->room = room;
  }
  run->rows[run->n_rows++] = *row;
  return CLI_OK;
}

int bench_row_keep(struct bench_run *run, const struct bench_row *row) {
  if (run->n_rows == 0) print_head(run, row);
  print_row(run, row);
  return bench_row_store(run, row);
}

/* ---- sums ------------------------------------------------------------------------------------------------ */

struct sum {
  const char *peer;
  int count;
  double mean, least; /* of ratios */
};

/* The sums of the peers in the order they first come in the rows; how many. */
static int sum_up(const struct bench_run *run, struct sum sums[2 * BENCH_RESULTS]) {
  int n = 0;
  for (size_t r = 0; r < run->n_rows; r++) {
    for (int k = 0; k < run->rows[r].n_results; k++) {
      const struct bench_result *result = &run->rows[r].results[k];
      int i = 0;
      while (i < n && strcmp(sums[i].peer, result->peer) != 0) i++;
      if (i == 2 * BENCH_RESULTS || result->ratio <= 0) continue;
      if (i == n) sums[n++] = (struct sum){.peer = result->peer, .least = result->ratio};
      sums[i].count++;
      sums[i].mean += log(result->ratio);
      sums[i].least = fmin(sums[i].least, result->ratio);
    }
  }
  for (int i = 0; i < n; i++) sums[i].mean = exp(sums[i].mean / sums[i].count);
  return n;
}

void bench_print_sums(const struct bench_run *run) {
  struct sum sums[2 * BENCH_RESULTS];
  int n = sum_up(run, sums);
  for (int i = 0; i < n; i++)
    printf("%s: geometric mean %.3f, least %.3f, over %d cases\n", sums[i].peer, sums[i].mean, sums[i].least,
           sums[i].count);
}

/* ---- JSON ------------------------------------------------------------------------------------------------- */

static void machine_name(char *name, size_t bytes) {
  snprintf(name, bytes, "unknown");
  FILE *file = fopen("/proc/cpuinfo", "r");
  char line[256];
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    char *colon = strchr(line, ':');
    if (strncmp(line, "model name", 10) != 0 || colon == NULL) continue;
    size_t n = 0;
    for (const char *c = colon + 1 + strspn(colon + 1, " "); *c != 0 && n + 1 < bytes; c++)
      if (*c >= ' ' && *c != '"' && *c != '\\') name[n++] = *c;
    name[n] = 0;
    break;
  }
  if (file != NULL) fclose(file);
}

/* 0: nobody has counted it, which is null. */
static void write_rate(FILE *out, const char *key, double value, int digits) {
  if (value > 0)
    fprintf(out, "\"%s\": %.*f, ", key, digits, value);
  else
    fprintf(out, "\"%s\": null, ", key);
}

/* A number or, where nobody knows it, null. */
static void write_more(FILE *out, const char *key, double value) {
  if (isnan(value))
    fprintf(out, "\"%s\": null, ", key);
  else
    fprintf(out, "\"%s\": %.10g, ", key, value);
}

/* A text in quotes; what JSON would have to escape becomes a blank or an apostrophe. */
static void write_text(FILE *out, const char *text) {
  fputc('"', out);
  for (; *text != 0; text++) fputc(*text == '"' || *text == '\\' ? '\'' : *text >= 0 && *text < ' ' ? ' ' : *text, out);
  fputc('"', out);
}

static void write_row(FILE *out, const struct bench_row *row) {
  if (row->failed[0] != 0) {
    fprintf(out, "  {\"name\": \"%s\", \"params\": \"%s\", \"threads\": %d, \"failed\": ", row->name, row->params,
            row->threads);
    write_text(out, row->failed);
    fputc('}', out);
    return;
  }
  fprintf(out, "  {\"name\": \"%s\", \"params\": \"%s\", \"threads\": %d, \"median_ms\": %.6f, \"spread\": %.4f, ",
          row->name, row->params, row->threads, row->median * 1e3, row->spread);
  write_rate(out, "gflops", row->gflops, 3);
  write_rate(out, "gbs", row->gbs, 3);
  write_rate(out, "limit_pct", row->limit, 2);
  fprintf(out, "\"planned_bytes\": %lld, ", (long long)row->planned);
  for (int i = 0; i < row->n_more; i++) write_more(out, row->more[i].key, row->more[i].value);
  fprintf(out, "\"peers\": {");
  for (int k = 0; k < row->n_results; k++)
    fprintf(out, "%s\"%s\": {\"median_ms\": %.6f, \"ratio\": %.4f}", k == 0 ? "" : ", ", row->results[k].peer,
            row->results[k].median * 1e3, row->results[k].ratio);
  fprintf(out, "}}");
}

/* Through a file beside it, which is renamed. */
int bench_json_begin(struct bench_json *json, const char *path, const char *device) {
  char machine[200], date[32];
  time_t seconds = time(NULL);
  struct tm parts;
  machine_name(machine, sizeof machine);
  strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &parts));
  json->path = path;
  int length = snprintf(json->beside, sizeof json->beside, "%s.part", path);
  if (length < 0 || (size_t)length >= sizeof json->beside) return cli_fail("%s: the path is too long", path);
  json->out = fopen(json->beside, "w");
  if (json->out == NULL) return cli_fail("%s cannot be written", json->beside);
  fprintf(json->out, "{\"machine\": \"%s, %ld CPUs\", ", machine, sysconf(_SC_NPROCESSORS_ONLN));
  if (device[0] != 0) fprintf(json->out, "\"device\": \"%s\", ", device);
  fprintf(json->out, "\"date\": \"%s\", ", date);
  return CLI_OK;
}

int bench_json_end(struct bench_json *json) {
  bool whole = ferror(json->out) == 0;
  whole = fclose(json->out) == 0 && whole && rename(json->beside, json->path) == 0;
  if (!whole) remove(json->beside);
  return whole ? CLI_OK : cli_fail("%s cannot be written", json->path);
}

int bench_write_json(const struct bench_run *run, const char *path) {
  struct bench_json json;
  if (bench_json_begin(&json, path, run->device) != CLI_OK) return CLI_FAILED;
  FILE *out = json.out;
  fprintf(out, "\"suite\": \"%s\",\n \"rows\": [", run->suite->name);
  for (size_t i = 0; i < run->n_rows; i++) {
    fprintf(out, i == 0 ? "\n" : ",\n");
    write_row(out, &run->rows[i]);
  }
  fprintf(out, "\n ],\n \"geomean\": {");
  struct sum sums[2 * BENCH_RESULTS];
  int n = sum_up(run, sums);
  for (int i = 0; i < n; i++) fprintf(out, "%s\"%s\": %.4f", i == 0 ? "" : ", ", sums[i].peer, sums[i].mean);
  fprintf(out, "}}\n");
  return bench_json_end(&json);
}
