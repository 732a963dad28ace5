/* cli/train.c -- the commands train and resume: a run from its configuration to its last step
** tests: tests/cli/test_train.c
*/
#include "train.h"

#include <fcntl.h>
#include <math.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

/* A run as this command sees it. */
struct session {
  const quern_config *config;
  struct cli_line line;
  double start;
  bool texts;   /* it is a language model that is trained */
  int64_t from; /* steps that were done before */
  int64_t steps, done;
  char saved[4200]; /* the last checkpoint */
};

/* ---- reporting --------------------------------------------------------------------------------------------------- */

static void add_kind(char *text, size_t bytes, const char *name, int64_t size) {
  char number[24];
  size_t n = strlen(text);
  if (size > 0) snprintf(text + n, bytes - n, "%s%s %s", n > 0 ? ", " : "", name, cli_bytes_text(number, size));
}

static void report_memory(struct cli_line *line, const quern_train_info *info) {
  const quern_memory_plan *m = info->memory;
  char kinds[256] = "", planned[24], limit[24];
  add_kind(kinds, sizeof kinds, "state", m->state);
  add_kind(kinds, sizeof kinds, "step", m->arena);
  add_kind(kinds, sizeof kinds, "constants", m->constants);
  add_kind(kinds, sizeof kinds, "scratch", m->scratch);
  add_kind(kinds, sizeof kinds, "staging", m->staging);
  cli_line_print(line, "memory   %s planned: %s%s%s%s", cli_bytes_text(planned, info->planned), kinds,
                 info->limit > 0 ? " (limit " : "", info->limit > 0 ? cli_bytes_text(limit, info->limit) : "",
                 info->limit > 0 ? ")" : "");
}

/* Whether the device has memory of its own. */
static bool is_gpu(const quern_train_info *info) {
  return strncmp(info->device, "cuda", 4) == 0 || strncmp(info->device, "opencl", 6) == 0;
}

static void tell_start(struct cli_line *line, const quern_train_info *info) {
  char how[96], device[96] = "";
  if (info->first_launch <= 0) return;
  if (info->compiled > 0)
    snprintf(how, sizeof how, "cold: %d unit%s of kernels compiled, %d from the cache", info->compiled,
             info->compiled == 1 ? "" : "s", info->cached);
  else
    snprintf(how, sizeof how, "warm: %d unit%s of kernels from the cache", info->cached, info->cached == 1 ? "" : "s");
  if (is_gpu(info))
    snprintf(device, sizeof device, "; device %.2f s, libraries %.2f s, compiler %.2f s", info->context,
             info->libraries, info->compile);
  cli_line_print(line, "start    first kernel after %.2f s (%s%s)", info->first_launch, how, device);
}

void cli_tell_run(struct cli_line *line, const quern_train_info *info) {
  char tokens[48] = "", count[24], where[96];
  bool again = strcmp(info->checkpoint, "none") != 0;
  if (info->parameters >= 1000000)
    snprintf(count, sizeof count, "%.2f M", (double)info->parameters * 1e-6);
  else
    snprintf(count, sizeof count, "%lld", (long long)info->parameters);
  cli_line_print(line, "model    %s: %s parameters, %s%s%s", info->model, count, info->precision,
                 again ? ", checkpoint " : "", again ? info->checkpoint : "");
  cli_line_print(line, "data     %s: %lld samples, %lld held out", info->data, (long long)info->train_samples,
                 (long long)info->eval_samples);
  if (info->length > 0) snprintf(tokens, sizeof tokens, " of %lld tokens", (long long)info->length);
  if (is_gpu(info))
    snprintf(where, sizeof where, "on %s (%s)", info->device, info->target);
  else
    snprintf(where, sizeof where, "%d thread%s on %s", info->threads, info->threads == 1 ? "" : "s", info->device);
  cli_line_print(line, "batch    %lld%s (%lld x %lld); %lld steps; %s", (long long)info->batch, tokens,
                 (long long)info->micro, (long long)info->accum, (long long)info->steps, where);
  report_memory(line, info);
  tell_start(line, info);
  if (info->step > 0) cli_line_print(line, "goes on after step %lld", (long long)info->step);
}

/* `quern devices` in a process of its own, whose memory is not the run's: it keeps what it measures in the cache. */
static void measure_machine(int threads) {
  char count[16], *arguments[] = {"quern", "devices", "--cpu", "--threads", count, NULL};
  posix_spawn_file_actions_t actions;
  pid_t child;
  snprintf(count, sizeof count, "%d", threads);
  if (posix_spawn_file_actions_init(&actions) != 0) return;
  bool ready = posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0) == 0 &&
               posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0) == 0;
  if (ready && posix_spawn(&child, "/proc/self/exe", &actions, NULL, arguments, environ) == 0) waitpid(child, NULL, 0);
  posix_spawn_file_actions_destroy(&actions);
}

static void on_begin(void *user, const quern_train_info *info) {
  struct session *s = user;
  s->texts = info->length > 0;
  s->line.unit = s->texts ? "tok" : "samples";
  s->from = s->done = info->step;
  s->steps = info->steps;
  cli_tell_run(&s->line, info);
  if (info->measuring == 0 || info->step >= info->steps) return;
  cli_line_print(&s->line, "measuring what this machine can do, once");
  measure_machine(info->threads);
}

static void on_note(void *user, const char *text) { cli_line_print(&((struct session *)user)->line, "%s", text); }

static bool on_step(void *user, const quern_train_record *record) {
  struct session *s = user;
  s->done = record->step;
  s->steps = record->steps;
  if (record->known) cli_line_step(&s->line, record);
  if (cli_end_signal() == 0) return true;
  cli_line_stop(&s->line);
  return false;
}

static bool on_eval(void *user, const quern_eval_record *r) {
  struct session *s = user;
  char accuracy[48] = "";
  if (!isnan(r->accuracy)) snprintf(accuracy, sizeof accuracy, " | %.2f%% right", 100 * r->accuracy);
  cli_line_print(&s->line, "eval %lld/%lld | loss %.4f%s | %lld samples | %.2f s%s", (long long)r->step,
                 (long long)s->steps, r->loss, accuracy, (long long)r->samples, r->seconds, r->best ? " | best" : "");
  return cli_end_signal() == 0;
}

static void on_saved(void *user, const char *path, int64_t step, double seconds) {
  struct session *s = user;
  (void)step;
  snprintf(s->saved, sizeof s->saved, "%s", path);
  cli_line_print(&s->line, "saved %s (%.0f ms)", path, 1e3 * seconds);
}

/* ---- the end ------------------------------------------------------------------------------------------------------ */

static void tell_files(const struct session *s, const char *out) {
  if (out[0] == 0) return;
  if (s->saved[0] != 0) cli_print(stdout, "checkpoint %s\n", s->saved);
  cli_print(stdout, "metrics    %s/metrics.jsonl\n", out);
  if (quern_config_flag(s->config, "report")) cli_print(stdout, "report     %s/report.html\n", out);
}

/* The run's own figures: it knows what is not its own. */
static void tell_used(void *user, const char *text) {
  static const char begin[] = "memory: ";
  (void)user;
  if (strncmp(text, begin, sizeof begin - 1) == 0) printf("memory     %s\n", text + sizeof begin - 1);
}

static int tell_end(struct session *s, quern_train_end end) {
  const char *out = quern_config_get(s->config, "out");
  double seconds = cli_seconds() - s->start;
  char time[24];
  int number = cli_end_signal();
  if (end == QUERN_TRAIN_STOPPED) {
    printf("stopped after step %lld of %lld\n", (long long)s->done, (long long)s->steps);
    tell_files(s, out);
    if (out[0] != 0) cli_print(stdout, "go on      quern resume %s\n", out);
    return number != 0 ? 128 + number : CLI_FAILED;
  }
  if (s->done == s->from)
    cli_print(stdout, "all %lld steps were done before; more of them: quern resume %s steps=%lld\n",
              (long long)s->steps, out, 2 * (long long)s->steps);
  else if (end == QUERN_TRAIN_EARLY)
    printf("ended at step %lld: the evaluation has not become better for %s times\n", (long long)s->done,
           quern_config_get(s->config, "patience"));
  else if (seconds < 60)
    printf("done: %lld steps in %.1f s\n", (long long)(s->done - s->from), seconds);
  else
    printf("done: %lld steps in %s\n", (long long)(s->done - s->from), cli_time_text(time, seconds));
  tell_files(s, out);
  if (out[0] != 0 && quern_train_summary(out, tell_used, NULL) != QUERN_STATUS_OK)
    return cli_fail("%s", quern_last_error());
  if (s->texts && out[0] != 0) cli_print(stdout, "try        quern generate %s --prompt \"...\"\n", out);
  return CLI_OK;
}

static int train(const struct cli_call *call, bool dir) {
  struct session s = {.start = cli_seconds(), .line = {.unit = "samples"}};
  quern_config *config = NULL;
  quern_train_callbacks callbacks = QUERN_INIT(quern_train_callbacks);
  quern_train_end end = QUERN_TRAIN_DONE;
  int status = cli_settings(call, dir, &config);
  if (status == CLI_OK) {
    s.config = config;
    cli_line_begin(&s.line, quern_config_int(config, "log_every"));
    s.line.unit = "samples";
    callbacks.user = &s;
    callbacks.note = on_note;
    callbacks.begin = on_begin;
    callbacks.step = on_step;
    callbacks.eval = on_eval;
    callbacks.saved = on_saved;
    cli_catch_end();
    quern_status done = quern_train(config, &callbacks, &end);
    if (done == QUERN_STATUS_OK) {
      cli_line_stop(&s.line);
      status = tell_end(&s, end);
    } else {
      cli_line_end(&s.line);
      status = cli_fail("%s", quern_last_error());
    }
  }
  quern_config_free(config);
  return status;
}

/* ---- the commands ------------------------------------------------------------------------------------------------- */

static int run_train(const struct cli_call *call) { return train(call, false); }
static int run_resume(const struct cli_call *call) { return train(call, true); }

static const struct cli_option train_options[] = {
    {"--memory", 0, "BYTES",
     "the most that the process and its children may use: 64MiB, 1.5GiB; the same as memory=BYTES"},
    {0},
};

const struct cli_command cli_command_train = {
    .name = "train",
    .usage = "CONFIG [key=value ...] [--memory BYTES]",
    .help = "train a network by a configuration",
    .more = "CONFIG is a file of lines \"key = value\", or a task that comes with Quern: adder (three-digit addition, "
            "on data\n"
            "that it makes), chars (a transformer on the bytes of texts; data=FILE). It may be left out when keys are "
            "given.\n"
            "In a folder `out` that has checkpoints the run goes on after the newest. Ctrl-C ends it after the current "
            "step,\n"
            "with a checkpoint (exit status 130); a second one ends it at once. A closed terminal (129, but not under "
            "nohup)\n"
            "ends it with a checkpoint, too.\n",
    .options = train_options,
    .print_more = cli_settings_help,
    .least_files = 0,
    .most_files = SIZE_MAX,
    .run = run_train,
};

const struct cli_command cli_command_resume = {
    .name = "resume",
    .usage = "DIR [key=value ...] [--memory BYTES]",
    .help = "go on with a run after its newest checkpoint",
    .more = "DIR is the folder `out` of the run. Keys that determine what is computed cannot change; steps, threads, "
            "memory "
            "and the like\n"
            "can (quern help train lists them). The result has the same bits as that of a run that was never "
            "interrupted, on the same target.\n",
    .options = train_options,
    .least_files = 1,
    .most_files = SIZE_MAX,
    .run = run_resume,
};
