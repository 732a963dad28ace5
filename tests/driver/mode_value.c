/* driver/mode_value.c -- results against an outside reference, and the modes that only print
** Inputs and outputs of all cases go to one file of a folder; the reference, a Python program that knows the
** operations by their definitions, writes a verdict a case: "N ok ERROR", "N fail WHY" or "N skip WHY". The
** file: a header line "case N OP DTYPE SHAPES key=value ...", a line "leaf ROLE VIEW DTYPE SHAPE BYTES" or
** "out DTYPE SHAPE BYTES" before the bytes of each array, and a line "end" after the last.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver/driver.h"

enum { TEXT = 1024 };

/* ---- writing ------------------------------------------------------------------------------------------- */

static void write_array(FILE *file, const quern_tensor *t, const void *data) {
  char shape[TEXT];
  size_t bytes = quern_tensor_bytes(t);
  fprintf(file, "%s %s %zu\n", quern_dtype_name(quern_tensor_dtype(t)),
          shape_print(shape, sizeof shape, quern_tensor_rank(t), quern_tensor_dims(t)), bytes);
  fwrite(data, 1, bytes, file);
}

static void write_case(FILE *file, size_t number, const struct instance *in, void *const *outputs) {
  const struct test_case *c = in->c;
  char view[64];
  fprintf(file, "case %zu %s %s %s\n", number, c->builder->name, quern_dtype_name(c->dtype), c->text);
  for (int i = 0; i < in->n_leaves; i++) {
    case_item(c, "view", i, view, sizeof view);
    fprintf(file, "leaf %c %s ", builder_role(c->builder, i), view[0] == 0 ? "none" : view);
    write_array(file, in->leaf[i], in->data[i]);
  }
  for (int i = 0; i < in->n_out; i++) {
    fprintf(file, "out ");
    write_array(file, in->out[i], outputs[i]);
  }
  fprintf(file, "end\n");
}

/* Builds, evaluates and writes a case; false after counting it as failed. */
static bool run_case(FILE *file, size_t number, const struct test_case *c, struct tally *tally) {
  struct instance in;
  void *dst[CASE_OUTPUTS];
  if (!instance_open(&in, c)) {
    tally_fail(tally, c, "value", "%s", quern_last_error());
    return false;
  }
  buffers_new((size_t)in.n_out, in.out, dst);
  bool ok = instance_eval(&in, (size_t)in.n_out, in.out, dst, 0, NULL) == QUERN_STATUS_OK;
  if (ok)
    write_case(file, number, &in, dst);
  else
    tally_fail(tally, c, "value", "%s", quern_last_error());
  buffers_free((size_t)in.n_out, dst);
  instance_close(&in);
  return ok;
}

/* The same on a device, for up to BATCH cases that become one program; one by one when that fails. */
static void run_batch(const struct options *options, FILE *file, size_t first, size_t n, const struct test_case *cases,
                      char *state, struct tally *tally) {
  const struct way way = {.name = "value",
                          .device = options->device,
                          .target = options->target,
                          .optimize = options->optimize,
                          .threads = 2};
  static struct instance in[BATCH];
  struct job jobs[BATCH];
  static void *dst[BATCH][CASE_OUTPUTS];
  size_t at[BATCH], n_jobs = 0;
  quern_context *ctx;
  if (quern_context_new(&ctx, NULL) != QUERN_STATUS_OK) return;
  for (size_t i = 0; i < n; i++) {
    struct instance *made = &in[n_jobs];
    state[first + i] = 'f';
    if (!instance_open_in(made, &cases[i], ctx)) {
      tally_fail(tally, &cases[i], "value", "%s", quern_last_error());
      continue;
    }
    buffers_new((size_t)made->n_out, made->out, dst[n_jobs]);
    jobs[n_jobs] = (struct job){.in = made, .n = (size_t)made->n_out, .roots = made->out, .dst = dst[n_jobs]};
    at[n_jobs++] = first + i;
  }
  bool all = device_run(&way, n_jobs, jobs) == QUERN_STATUS_OK;
  for (size_t i = 0; i < n_jobs; i++) {
    if (all || device_run(&way, 1, &jobs[i]) == QUERN_STATUS_OK) {
      write_case(file, at[i], &in[i], dst[i]);
      state[at[i]] = 'w';
    } else {
      tally_fail(tally, in[i].c, "value", "%s", quern_last_error());
    }
    buffers_free((size_t)in[i].n_out, dst[i]);
    instance_close(&in[i]);
  }
  quern_context_free(ctx);
}

/* ---- judging ------------------------------------------------------------------------------------------- */

/* Counts the verdicts; every case that was written needs one. */
static void read_verdicts(const struct options *options, const char *path, const struct case_list *cases, char *state,
                          struct tally *tally) {
  char line[TEXT];
  FILE *file = fopen(path, "r");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    size_t number;
    char word[16];
    int at = 0;
    line[strcspn(line, "\n")] = 0;
    if (sscanf(line, "%zu %15s %n", &number, word, &at) != 2 || number >= cases->n || state[number] != 'w') continue;
    const struct test_case *c = &cases->at[number];
    state[number] = 'j';
    if (strcmp(word, "ok") == 0)
      tally_pass(tally);
    else if (strcmp(word, "skip") == 0)
      tally_skip(tally);
    else
      tally_fail(tally, c, "value", "%s", line + at);
    if (options->verbose)
      printf("%s %s %s: %s %s\n", c->builder->name, quern_dtype_name(c->dtype), c->text, word, line + at);
  }
  if (file != NULL) fclose(file);
  for (size_t i = 0; i < cases->n; i++)
    if (state[i] == 'w') tally_fail(tally, &cases->at[i], "value", "the reference gave no verdict");
}

/* The system's Python, or the first one of PATH where that has not what the reference needs. */
static const char *find_python(void) {
  const char *own = "/usr/bin/python3";
  bool has = system("/usr/bin/python3 -c 'import numpy, scipy' > /dev/null 2>&1") == 0;
  return has ? own : "python3";
}

void mode_value(const struct options *options, const struct case_list *cases, struct tally *tally) {
  char folder[TEXT] = "/tmp/querntest.XXXXXX", stream[TEXT + 16], verdicts[TEXT + 16], reference[TEXT],
       command[TEXT * 4];
  char *state = grab(cases->n);
  if (options->keep != NULL)
    snprintf(folder, sizeof folder, "%s", options->keep);
  else if (mkdtemp(folder) == NULL)
    folder[0] = 0;
  snprintf(stream, sizeof stream, "%s/cases.bin", folder);
  snprintf(verdicts, sizeof verdicts, "%s/verdicts.txt", folder);
  FILE *file = fopen(stream, "wb");
  if (file == NULL) {
    printf("cannot write %s\n", stream);
    tally->failed++;
    free(state);
    return;
  }
  for (size_t i = 0; i < cases->n && !on_device(options); i++)
    state[i] = run_case(file, i, &cases->at[i], tally) ? 'w' : 'f';
  for (size_t i = 0; i < cases->n && on_device(options); i += BATCH)
    run_batch(options, file, i, BASE_MIN(BATCH, cases->n - i), &cases->at[i], state, tally);
  if (fclose(file) != 0) tally->failed++;
  if (options->reference != NULL)
    snprintf(reference, sizeof reference, "%s", options->reference);
  else
    snprintf(reference, sizeof reference, "%s/tests/oracle/compare.py", options->root);
  const char *python = options->python != NULL ? options->python : find_python();
  snprintf(command, sizeof command, "'%s' '%s' '%s'", python, reference, folder);
  fflush(stdout);
  int rc = system(command);
  read_verdicts(options, verdicts, cases, state, tally);
  if (rc != 0) {
    printf("the reference failed: %s\n", command);
    tally->failed++;
  }
  if (options->keep == NULL) {
    remove(stream);
    remove(verdicts);
    rmdir(folder);
  }
  free(state);
}

/* ---- printing ------------------------------------------------------------------------------------------ */

void mode_list(const struct options *options, const struct case_list *cases, struct tally *tally) {
  (void)options;
  for (size_t i = 0; i < cases->n; i++) {
    const struct test_case *c = &cases->at[i];
    printf("%s %s %s\n", c->builder->name, quern_dtype_name(c->dtype), c->text);
    tally_pass(tally);
  }
}

void mode_dump(const struct options *options, const struct case_list *cases, struct tally *tally) {
  (void)options;
  for (size_t i = 0; i < cases->n; i++) {
    struct instance in;
    struct base_str text;
    if (!instance_open(&in, &cases->at[i])) {
      tally_fail(tally, &cases->at[i], "dump", "%s", quern_last_error());
      continue;
    }
    base_str_init(&text, &in.ctx->heap);
    if (ir_print(in.ctx, &text, (size_t)in.n_out, in.out, NULL) == QUERN_STATUS_OK) {
      printf("# %s %s %s\n%s\n", in.c->builder->name, quern_dtype_name(in.c->dtype), in.c->text, text.at);
      tally_pass(tally);
    } else {
      tally_fail(tally, in.c, "dump", "%s", quern_last_error());
    }
    base_str_fini(&text);
    instance_close(&in);
  }
}
