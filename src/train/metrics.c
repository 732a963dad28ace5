/* train/metrics.c -- what a run writes into its folder
** metrics.jsonl has a line per step and a line per evaluation; run.json what the run is, its kernels and its memory; config its keys.
** keeps: files are replaced whole; a line is added whole; lines after the step that a run goes on from are removed first
** tests: tests/train/test_loop.c
*/
#include "train/metrics.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/engine.h"
#include "io/json.h"
#include "prof/prof.h"
#include "quern/profile.h"
#include "quern/version.h"

static quern_status path_of(const quern_trainer *t, const char *name, char path[IO_PATH_MOST]) {
  int n = snprintf(path, IO_PATH_MOST, "%s/%s", t->info.out, name);
  QUERN_CHECK(n > 0 && n < IO_PATH_MOST, INVALID, "out: the folder's name is too long");
  return QUERN_STATUS_OK;
}

static quern_status write_file(const quern_trainer *t, const char *name, const char *text, size_t n) {
  char path[IO_PATH_MOST];
  QUERN_TRY(path_of(t, name, path));
  return io_file_write("train", path, 1, &(struct io_piece){text, n});
}

/* ---- JSON ----------------------------------------------------------------------------------------------- */

static void add_key(struct base_str *str, const char *key) {
  char last = str->n > 0 ? str->at[str->n - 1] : '{';
  base_str_printf(str, "%s\"%s\":", last == '{' || last == '\n' ? "" : ",", key);
}

/* Numbers that are not finite are null. */
static void add_real(struct base_str *str, const char *key, double x) {
  add_key(str, key);
  if (isfinite(x))
    base_str_printf(str, "%.9g", x);
  else
    base_str_add(str, "null");
}

static void add_whole(struct base_str *str, const char *key, int64_t x) {
  add_key(str, key);
  base_str_printf(str, "%" PRId64, x);
}

/* A text that is no UTF-8 is written as far as it can be printed. */
static void add_text(struct base_str *str, const char *key, const char *text) {
  char shown[512];
  add_key(str, key);
  if (io_json_add_string(str, text) == QUERN_STATUS_OK) return;
  str->failed = io_json_add_string(str, io_json_shown(shown, sizeof shown, text)) != QUERN_STATUS_OK || str->failed;
}

/* ---- metrics.jsonl -------------------------------------------------------------------------------------- */

/* The step of a line; -1: it is no line of metrics. */
static int64_t step_of(const char *line, const char *end) {
  static const char begin[] = "{\"step\":";
  size_t n = sizeof begin - 1;
  if ((size_t)(end - line) < n + 2 || memcmp(line, begin, n) != 0 || end[-1] != '}') return -1;
  return strtoll(line + n, NULL, 10);
}

/* The lines of metrics.jsonl that stay. */
struct kept {
  const char *path;
  int64_t step;  /* lines of later steps go */
  uint64_t left; /* bytes that go */
};

/* Goes through the lines: counts what stays, or gives it to out. */
static quern_status go_through(struct kept *kept, struct io_lines *lines, struct io_out *out) {
  const char *line;
  size_t n;
  uint64_t bytes = 0;
  for (;;) {
    QUERN_TRY(io_lines_next(lines, &line, &n));
    if (line == NULL) break;
    int64_t step = n == IO_LINE_CUT ? -1 : step_of(line, line + n);
    if (step < 0 || step > kept->step) continue;
    bytes += n + 1;
    if (out != NULL) QUERN_TRY(io_out_add(out, line, n + 1));
  }
  kept->left = lines->bytes - bytes;
  return QUERN_STATUS_OK;
}

/* An io_fill; without out it only counts. */
static quern_status fill_lines(struct io_out *out, void *user) {
  struct kept *kept = user;
  struct io_lines lines;
  QUERN_TRY(io_lines_open(&lines, kept->path));
  quern_status status = go_through(kept, &lines, out);
  io_lines_close(&lines);
  return status;
}

/* The lines up to a step that the file has, written again when others are removed, or when it is a link: what that leads
** to is not the run's. The file is never in memory as a whole. */
static quern_status keep_lines(quern_trainer *t, const char *path) {
  struct kept kept = {.path = path, .step = t->info.step};
  struct stat there;
  if (lstat(path, &there) != 0) return QUERN_STATUS_OK;
  QUERN_TRY(fill_lines(NULL, &kept));
  return kept.left > 0 || S_ISLNK(there.st_mode) ? io_file_fill("train", path, fill_lines, &kept) : QUERN_STATUS_OK;
}

/* Adds a text to a file, all of it or nothing. */
static bool append(FILE *file, const struct base_str *str) {
  struct stat before;
  bool known = fstat(fileno(file), &before) == 0;
  if (fwrite(str->at, 1, str->n, file) == str->n) return true;
  int why = errno;
  if (known) (void)!ftruncate(fileno(file), before.st_size);
  errno = why;
  return false;
}

/* Adds a line; the text is gone afterwards. */
static quern_status add_line(struct train_metrics *m, struct base_str *str) {
  base_str_add(str, "}\n");
  quern_status status = base_str_status(str);
  if (status == QUERN_STATUS_OK && !append(m->file, str))
    status =
        base_error(QUERN_STATUS_IO, "%s/metrics.jsonl: cannot be written: %s", m->trainer->info.out, strerror(errno));
  base_str_fini(str);
  return status;
}

quern_status train_metrics_step(struct train_metrics *m, const quern_train_record *r) {
  if (m->file == NULL) return QUERN_STATUS_OK;
  struct base_str str;
  base_str_init(&str, &m->trainer->heap);
  base_str_printf(&str, "{\"step\":%" PRId64, r->step);
  add_real(&str, "loss", r->loss);
  add_real(&str, "norm", r->norm);
  add_real(&str, "lr", r->lr);
  add_real(&str, "ms", r->seconds * 1e3);
  add_real(&str, "tok_s", r->per_second);
  add_real(&str, "peak", r->peak);
  add_real(&str, "scale", r->scale);
  add_real(&str, "success_rate", r->success_rate);
  base_str_printf(&str, ",\"skipped\":%s", r->skipped ? "true" : "false");
  return add_line(m, &str);
}

quern_status train_metrics_eval(struct train_metrics *m, const quern_eval_record *r) {
  if (m->file == NULL) return QUERN_STATUS_OK;
  struct base_str str;
  base_str_init(&str, &m->trainer->heap);
  base_str_printf(&str, "{\"step\":%" PRId64, r->step);
  add_real(&str, "eval_loss", r->loss);
  add_real(&str, "accuracy", r->accuracy);
  for (size_t i = 0; i < r->n_reports; i++)
    if (strcmp(r->reports[i].name, "accuracy") != 0) add_real(&str, r->reports[i].name, r->reports[i].value);
  add_whole(&str, "samples", r->samples);
  add_real(&str, "ms", r->seconds * 1e3);
  return add_line(m, &str);
}

/* ---- run.json ------------------------------------------------------------------------------------------- */

static void add_info(struct base_str *str, const quern_train_info *info) {
  const quern_memory_plan *m = info->memory;
  add_key(str, "info");
  base_str_add(str, "{");
  add_text(str, "model", info->model);
  add_text(str, "data", info->data);
  add_text(str, "out", info->out);
  add_whole(str, "parameters", info->parameters);
  add_whole(str, "steps", info->steps);
  add_whole(str, "step", info->step);
  add_whole(str, "batch", info->batch);
  add_whole(str, "micro", info->micro);
  add_whole(str, "accum", info->accum);
  add_whole(str, "length", info->length);
  add_whole(str, "train_samples", info->train_samples);
  add_whole(str, "eval_samples", info->eval_samples);
  add_whole(str, "threads", info->threads);
  add_text(str, "device", info->device);
  add_text(str, "target", info->target);
  add_text(str, "precision", info->precision);
  add_text(str, "checkpoint", info->checkpoint);
  add_real(str, "flops", info->flops);
  add_real(str, "peak", info->peak);
  base_str_printf(str,
                  ",\"memory\":{\"arena\":%" PRId64 ",\"state\":%" PRId64 ",\"constants\":%" PRId64
                  ",\"scratch\":%" PRId64 ",\"bound\":%" PRId64 ",\"unshared\":%" PRId64 ",\"staging\":%" PRId64 "}",
                  m->arena, m->state, m->constants, m->scratch, m->bound, m->unshared, m->staging);
  add_whole(str, "limit", info->limit);
  add_whole(str, "planned", info->planned);
  add_real(str, "first_launch", info->first_launch);
  add_real(str, "context", info->context);
  add_real(str, "libraries", info->libraries);
  add_real(str, "build", info->build);
  add_real(str, "passes", info->passes);
  add_real(str, "plan", info->plan);
  add_real(str, "compile", info->compile);
  add_real(str, "initial", info->initial);
  add_real(str, "reading", info->reading);
  add_whole(str, "compiled", info->compiled);
  add_whole(str, "cached", info->cached);
  base_str_add(str, "}");
}

static void add_machine(struct base_str *str, quern_trainer *t) {
  quern_device_info device = {.size = sizeof device};
  struct prof_limits limits;
  if (quern_device_get_info(t->device, &device) != QUERN_STATUS_OK) return;
  add_key(str, "machine");
  base_str_add(str, "{");
  add_text(str, "target", device.target);
  add_text(str, "detail", device.detail);
  add_whole(str, "threads", t->info.threads);
  base_str_printf(str, ",\"caches\":[%" PRId64 ",%" PRId64 ",%" PRId64 "]", device.caches[0], device.caches[1],
                  device.caches[2]);
  if (train_limits(t, &limits)) {
    add_real(str, "flops_f32", limits.flops_f32);
    add_key(str, "bandwidth");
    for (int k = 0; k < PROF_LEVELS; k++) base_str_printf(str, "%c%.9g", k == 0 ? '[' : ',', limits.bandwidth[k]);
    base_str_add(str, "]");
  }
  base_str_add(str, "}");
}

static void add_config(struct base_str *str, const quern_config *config) {
  add_key(str, "config");
  base_str_add(str, "{");
  for (size_t i = 0; i < train_n_keys; i++)
    add_text(str, train_keys[i].name, quern_config_get(config, train_keys[i].name));
  base_str_add(str, "}");
}

/* Bytes of step memory that are alive in each step of the program: [[step, bytes], ...]. */
static void add_memory(struct base_str *str, const quern_program *program) {
  const struct engine_subprogram *part = &program->subprograms[0];
  int64_t peak = 0;
  add_key(str, "memory");
  base_str_add(str, "{\"timeline\":[");
  for (int i = 0; i < part->n_steps; i++) {
    int64_t bytes = 0;
    for (int k = 0; k < part->n_buffers; k++) {
      const struct engine_buffer *b = &part->buffers[k];
      if (b->place == PLAN_ARENA && b->first <= i && i <= b->last) bytes += b->bytes;
    }
    peak = BASE_MAX(peak, bytes);
    base_str_printf(str, "%s[%d,%" PRId64 "]", i > 0 ? "," : "", i, bytes);
  }
  base_str_printf(str, "],\"peak\":%" PRId64 "}", peak);
}

static quern_status write_run(struct train_metrics *m) {
  quern_trainer *t = m->trainer;
  struct base_str str;
  base_str_init(&str, &t->heap);
  base_str_add(&str, "{");
  add_text(&str, "version", quern_version());
  add_info(&str, &t->info);
  add_machine(&str, t);
  add_config(&str, t->config);
  if (m->kernels.n > 0) {
    add_key(&str, "kernels");
    base_str_add(&str, m->kernels.at);
  }
  add_memory(&str, t->main.program);
  add_whole(&str, "measured_peak_bytes", t->remote ? t->info.used : train_peak());
  if (train_child_peak() > 0) add_whole(&str, "child_peak_bytes", train_child_peak());
  base_str_add(&str, "}\n");
  quern_status status = base_str_status(&str);
  if (status == QUERN_STATUS_OK) status = write_file(t, "run.json", str.at, str.n);
  base_str_fini(&str);
  return status;
}

quern_status train_metrics_kernels(struct train_metrics *m) {
  quern_trainer *t = m->trainer;
  if (m->file == NULL) return QUERN_STATUS_OK;
  char *text;
  QUERN_TRY(engine_profile_rows(t->main.program, t->main.instance, &text));
  base_str_fini(&m->kernels);
  base_str_add(&m->kernels, text);
  quern_free_text(text);
  return base_str_status(&m->kernels);
}

/* ---- the run -------------------------------------------------------------------------------------------- */

quern_status train_metrics_open(struct train_metrics *m, quern_trainer *t) {
  char path[IO_PATH_MOST];
  *m = (struct train_metrics){.trainer = t, .open = true};
  base_str_init(&m->kernels, &t->heap);
  if (t->info.out[0] == 0) return QUERN_STATUS_OK;
  QUERN_TRY(path_of(t, "metrics.jsonl", path));
  QUERN_TRY(keep_lines(t, path));
  QUERN_TRY(train_config_write(t->config, t->info.out));
  bool bytes = strcmp(quern_config_get(t->config, "tokenizer"), "bytes") == 0;
  if (t->data.tokenizer != NULL && !bytes) {
    QUERN_TRY(path_of(t, "tokenizer.json", path));
    QUERN_TRY(quern_tokenizer_write(t->data.tokenizer, path));
    QUERN_TRY(path_of(t, "metrics.jsonl", path));
  }
  m->file = base_fopen(path, "ab");
  QUERN_CHECK(m->file != NULL, IO, "%s: cannot be written: %s", path, strerror(errno));
  t->fresh = false;
  (void)setvbuf(m->file, NULL, _IONBF,
                0); /* a line is a call of write(2), and nothing of it is left to be written later */
  return write_run(m);
}

quern_status train_metrics_end(struct train_metrics *m) {
  quern_trainer *t = m->trainer;
  if (m->file == NULL) return QUERN_STATUS_OK;
  if (m->kernels.n == 0 && t->recorded > 0) QUERN_TRY(train_metrics_kernels(m));
  QUERN_TRY(write_run(m));
  return quern_config_flag(t->config, "report") ? quern_train_report(t->info.out) : QUERN_STATUS_OK;
}

void train_metrics_close(struct train_metrics *m) {
  if (!m->open) return;
  if (m->file != NULL) (void)fclose(m->file);
  base_str_fini(&m->kernels);
}
