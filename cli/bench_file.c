/* cli/bench_file.c -- quern bench FILE|RUN: how long runs of a graph, a saved program or a checkpoint take, by batch
** A graph is compiled once, by the options; its batch, and that of a saved program, are rows of its dynamic batch.
** Of a run's folder the training step, or with --inference the evaluation, is built anew for each batch, with the states
** of the newest checkpoint.
** tests: tests/cli/test_bench.c
*/
#include "bench.h"
#include "train.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_BATCHES = 64, MOST_BATCH = 1 << 24, WITHIN_PERCENT = 5 };

/* What was measured of a batch; batch 0: there is none. */
struct measured {
  int64_t batch, tokens; /* tokens: of a sample; 0: it has none */
  quern_measure_stats stats;
  bool best;
};

struct subject {
  const struct cli_call *call;
  struct cli_values values;
  quern_config *config;     /* of a run's folder, else NULL */
  quern_program *program;   /* of a file */
  const char *kind, *under; /* "graph"; the option or key that gives the batch */
  char device[256];         /* and target, where they are known; else "" */
  double seconds;
  size_t n_batches, n_rows;
  int64_t batches[MOST_BATCHES];
  struct measured rows[MOST_BATCHES];
};

/* ---- batches ------------------------------------------------------------------------------------------------ */

static int add_batch(struct subject *s, int64_t batch) {
  if (s->n_batches == MOST_BATCHES)
    return cli_usage(s->call->command, "--batch: more than %d batches", (int)MOST_BATCHES);
  if (s->n_batches > 0 && s->batches[s->n_batches - 1] >= batch)
    return cli_usage(s->call->command, "--batch: %lld comes after %lld; they must grow", (long long)batch,
                     (long long)s->batches[s->n_batches - 1]);
  s->batches[s->n_batches++] = batch;
  return CLI_OK;
}

/* From the last batch on each twice the one before, and then the last itself. */
static int add_doubled(struct subject *s, int64_t last) {
  int status = CLI_OK;
  for (int64_t b = 2 * s->batches[s->n_batches - 1]; b < last && status == CLI_OK; b *= 2) status = add_batch(s, b);
  return status == CLI_OK ? add_batch(s, last) : status;
}

static bool read_number(const char **at, int64_t *number) {
  char *end;
  if (**at < '0' || **at > '9') return false;
  *number = strtoll(*at, &end, 10);
  *at = end;
  return *number >= 1 && *number <= MOST_BATCH;
}

/* "1,2,3", "1..128", or both: "1..64,96". */
static int read_batches(struct subject *s) {
  const char *text, *at;
  int64_t number;
  int status = CLI_OK;
  if (!cli_has(s->call, "--batch", &text)) return CLI_OK;
  for (at = text; status == CLI_OK; at++) {
    if (!read_number(&at, &number)) break;
    status = add_batch(s, number);
    if (status == CLI_OK && strncmp(at, "..", 2) == 0) {
      at += 2;
      if (!read_number(&at, &number)) break;
      status = add_doubled(s, number);
    }
    if (*at == 0) return status;
    if (*at != ',') break;
  }
  return status != CLI_OK ? status
                          : cli_usage(s->call->command,
                                      "--batch: expected numbers from 1 to %d, such as 1,2,4 or 1..128, "
                                      "got '%s'",
                                      (int)MOST_BATCH, text);
}

/* Batches of a program with so many rows at most; 0: it has one size. */
static int settle_batches(struct subject *s, int64_t most) {
  const char *path = s->call->files[0];
  if (most == 0 && s->n_batches > 0)
    return cli_fail("%s: its batch cannot be varied: it has no dynamic batch\n  HINT: %s", path, s->under);
  if (s->n_batches > 0 && s->batches[s->n_batches - 1] > most)
    return cli_fail("%s: --batch %lld: its dynamic batch has at most %lld rows", path,
                    (long long)s->batches[s->n_batches - 1], (long long)most);
  if (s->n_batches > 0) return CLI_OK;
  int status = add_batch(s, most > 0 ? 1 : 0);
  return status == CLI_OK && most > 1 ? add_doubled(s, most) : status;
}

/* ---- files -------------------------------------------------------------------------------------------------- */

static int open_program(struct subject *s) {
  const char *path = s->call->files[0], *option = cli_first_given(s->call, "");
  s->kind = "program";
  s->under = "compile it with --dynamic-batch NAME";
  if (option != NULL) return cli_fail("%s is compiled already: %s comes too late", path, option);
  if (quern_program_load(&s->program, path) != QUERN_STATUS_OK) return cli_fail("%s", quern_last_error());
  return settle_batches(s, quern_program_dynamic_batch(s->program));
}

static int open_graph(struct subject *s) {
  s->kind = "graph";
  s->under = "--dynamic-batch NAME names the inputs that have the batch, and are as large as the largest";
  int status = cli_values_begin(&s->values, s->call);
  const char *device = "cpu";
  if (status == CLI_OK) status = cli_compile(&s->program, &s->values, device, NULL);
  cli_has(s->call, "--device", &device);
  snprintf(s->device, sizeof s->device, "%s", device);
  return status == CLI_OK ? settle_batches(s, quern_program_dynamic_batch(s->program)) : status;
}

static int open_run(struct subject *s) {
  const char *option = cli_first_given(s->call, "--inference");
  s->kind = cli_has(s->call, "--inference", NULL) ? "evaluation" : "training step";
  if (option != NULL)
    return cli_usage(s->call->command, "%s is of graphs; of a run it is a key, such as device=cuda or threads=2",
                     option);
  int status = cli_settings(s->call, true, &s->config);
  if (status == CLI_OK && quern_config_set(s->config, "out", "") != QUERN_STATUS_OK)
    status = cli_fail("%s", quern_last_error());
  return status == CLI_OK && s->n_batches == 0 ? add_batch(s, quern_config_int(s->config, "batch")) : status;
}

static bool is_folder(const char *path) {
  struct stat there;
  return stat(path, &there) == 0 && S_ISDIR(there.st_mode);
}

static int open_subject(struct subject *s) {
  const char *path = s->call->files[0];
  int status = read_batches(s);
  if (status != CLI_OK) return status;
  if (is_folder(path)) return open_run(s);
  if (s->call->n_files > 1) return cli_usage(s->call->command, "takes one file, '%s' is one more", s->call->files[1]);
  return cli_is_program(path) ? open_program(s) : open_graph(s);
}

static void close_subject(struct subject *s) {
  quern_program_free(s->program);
  if (s->values.call != NULL) cli_values_end(&s->values);
  quern_config_free(s->config);
}

/* ---- measuring ---------------------------------------------------------------------------------------------- */

static bool stop(void *user) {
  (void)user;
  return cli_interrupted();
}

static quern_status measure(const struct subject *s, const quern_program *program, quern_instance *instance,
                            struct measured *row) {
  quern_measure_options options = {.size = sizeof options, .seconds = s->seconds, .instance = instance, .stop = stop};
  if (s->config == NULL) options.rows = row->batch;
  row->stats = (quern_measure_stats){.size = sizeof row->stats};
  return quern_program_measure(program, &options, &row->stats);
}

/* The training step of a run with the states of its newest checkpoint, or its evaluation. */
static quern_status measure_trainer(const struct subject *s, quern_trainer *trainer, struct measured *row) {
  const quern_program *program = quern_trainer_program(trainer);
  quern_instance *instance = quern_trainer_instance(trainer);
  quern_status status = quern_instance_load_states(instance, s->call->files[0], QUERN_LOAD_STRICT);
  if (status == QUERN_STATUS_OK && cli_has(s->call, "--inference", NULL))
    status = quern_trainer_evaluation(trainer, &program, &instance);
  return status == QUERN_STATUS_OK ? measure(s, program, instance, row) : status;
}

static quern_status measure_batch(struct subject *s, struct measured *row) {
  char batch[24];
  quern_trainer *trainer = NULL;
  snprintf(batch, sizeof batch, "%lld", (long long)row->batch);
  quern_status status = quern_config_set(s->config, "batch", batch);
  if (status == QUERN_STATUS_OK) status = quern_config_set(s->config, "accum", "1");
  if (status == QUERN_STATUS_OK) status = quern_trainer_new(&trainer, s->config, NULL);
  if (status == QUERN_STATUS_OK) {
    const quern_train_info *info = quern_trainer_info(trainer);
    snprintf(s->device, sizeof s->device, "%s %s, %d threads, %s", info->device, info->target, info->threads,
             info->precision);
    row->tokens = info->length;
    status = measure_trainer(s, trainer, row);
  }
  quern_trainer_free(trainer);
  return status;
}

/* On a terminal: what goes on. */
static void tell_progress(const struct subject *s, size_t i) {
  if (isatty(STDERR_FILENO) == 0 || s->n_batches < 2) return;
  if (i < s->n_batches)
    fprintf(stderr, "\rbatch %lld, %zu of %zu\033[K", (long long)s->batches[i], i + 1, s->n_batches);
  else
    fprintf(stderr, "\r\033[K");
}

static int measure_all(struct subject *s) {
  int status = CLI_OK;
  for (size_t i = 0; i < s->n_batches && status == CLI_OK; i++) {
    struct measured row = {.batch = s->batches[i]};
    tell_progress(s, i);
    quern_status got = s->config != NULL ? measure_batch(s, &row) : measure(s, s->program, NULL, &row);
    if (got != QUERN_STATUS_OK) {
      tell_progress(s, s->n_batches);
      status = cli_fail_last(s->call->files[0]);
    } else if (cli_interrupted()) {
      status = CLI_INTERRUPTED;
    } else {
      s->rows[s->n_rows++] = row;
    }
  }
  tell_progress(s, s->n_batches);
  return status;
}

/* ---- what was found ----------------------------------------------------------------------------------------- */

/* By the median: a machine that is busy now and then makes the mean a matter of chance. */
static double samples_per_second(const struct measured *row) {
  return row->stats.median > 0 ? (double)row->batch / row->stats.median : 0;
}

/* The smallest batch whose throughput is within a few percent of the most. */
static const struct measured *mark_best(struct subject *s) {
  double most = 0;
  for (size_t i = 0; i < s->n_rows; i++)
    if (samples_per_second(&s->rows[i]) > most) most = samples_per_second(&s->rows[i]);
  for (size_t i = 0; i < s->n_rows && s->n_rows > 1 && most > 0; i++) {
    s->rows[i].best = 100 * samples_per_second(&s->rows[i]) >= (100 - WITHIN_PERCENT) * most;
    if (s->rows[i].best) return &s->rows[i];
  }
  return NULL;
}

static void print_row(const struct measured *row) {
  const quern_measure_stats *m = &row->stats;
  char batch[24] = "-", planned[24], used[24];
  if (row->batch > 0) snprintf(batch, sizeof batch, "%lld", (long long)row->batch);
  printf("%c %5s %7llu %10.4g %10.4g %10.4g %10.4g ", row->best ? '*' : ' ', batch, (unsigned long long)m->runs,
         1e3 * m->median, 1e3 * m->p10, 1e3 * m->p90, 1e3 * m->least);
  if (row->batch > 0)
    printf("%11.5g ", samples_per_second(row));
  else
    printf("%11s ", "-");
  if (row->tokens > 0) printf("%11.5g ", (double)row->tokens * samples_per_second(row));
  printf("%10s %10s\n", cli_bytes_text(planned, m->planned_bytes), cli_bytes_text(used, m->used_bytes));
}

static void print_rows(struct subject *s) {
  const struct measured *best = mark_best(s);
  cli_print(stdout, "%s: %s%s%s\n", s->call->files[0], s->kind, s->device[0] != 0 ? ", " : "", s->device);
  printf("  batch    runs  median ms     p10 ms     p90 ms   least ms   samples/s %s   planned       used\n",
         s->rows[0].tokens > 0 ? "   tokens/s " : "");
  for (size_t i = 0; i < s->n_rows; i++) print_row(&s->rows[i]);
  if (best != NULL)
    printf("best: batch %lld, %.5g samples/s at %.4g ms (the smallest within %d %% of the most)\n",
           (long long)best->batch, samples_per_second(best), 1e3 * best->stats.median, (int)WITHIN_PERCENT);
}

static void write_json_row(FILE *out, const struct measured *row) {
  const quern_measure_stats *m = &row->stats;
  if (row->batch > 0)
    fprintf(out, "{\"batch\": %lld, \"samples_per_second\": %.10g, ", (long long)row->batch, samples_per_second(row));
  else
    fprintf(out, "{\"batch\": null, \"samples_per_second\": null, ");
  fprintf(
      out,
      "\"runs\": %llu, \"median_ms\": %.6f, \"p10_ms\": %.6f, \"p90_ms\": %.6f, \"p99_ms\": %.6f, "
      "\"least_ms\": %.6f, \"runs_per_second\": %.10g, \"planned_bytes\": %lld, \"used_bytes\": %lld, \"best\": %s}",
      (unsigned long long)m->runs, 1e3 * m->median, 1e3 * m->p10, 1e3 * m->p90, 1e3 * m->p99, 1e3 * m->least,
      m->runs_per_second, (long long)m->planned_bytes, (long long)m->used_bytes, row->best ? "true" : "false");
}

static int write_json(const struct subject *s, const char *path) {
  struct bench_json json;
  if (bench_json_begin(&json, path, s->device) != CLI_OK) return CLI_FAILED;
  fprintf(json.out, "\"kind\": \"%s\",\n \"rows\": [", s->kind);
  for (size_t i = 0; i < s->n_rows; i++) {
    fprintf(json.out, i == 0 ? "\n  " : ",\n  ");
    write_json_row(json.out, &s->rows[i]);
  }
  fprintf(json.out, "\n ]}\n");
  return bench_json_end(&json);
}

int bench_run_file(const struct cli_call *call) {
  struct subject s = {.call = call};
  const char *json;
  int status = cli_real(call, "--seconds", 1e-6, 1e6, &s.seconds);
  cli_catch_interrupt();
  if (status == CLI_OK) status = open_subject(&s);
  if (status == CLI_OK) status = measure_all(&s);
  if (status == CLI_INTERRUPTED)
    fprintf(stderr, "quern: interrupted; %s\n",
            s.n_rows > 0 ? "what was measured so far:" : "nothing was measured yet");
  if (s.n_rows > 0) print_rows(&s);
  if (s.n_rows > 0 && cli_has(call, "--json", &json)) {
    int written = write_json(&s, json);
    if (status == CLI_OK) status = written;
  }
  close_subject(&s);
  return status;
}
