/* cli/eval_loss.c -- the commands eval-loss and report: what is known of a run
** tests: tests/cli/test_train.c
*/
#include "train.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- eval-loss ---------------------------------------------------------------------------------------------------- */

/* The files of --data, which may be given several times, as one value. */
static int set_data(const struct cli_call *call, quern_config *config) {
  size_t n = 1;
  for (size_t i = 0; i < call->n_given; i++)
    if (strcmp(call->given[i].option->name, "--data") == 0) n += strlen(call->given[i].value) + 1;
  if (n == 1) return CLI_OK;
  if (strcmp(quern_config_get(config, "data"), "adder") == 0)
    return cli_usage(call->command, "--data: the task adder makes its own");
  char *list = malloc(n);
  if (list == NULL) return cli_fail("no memory");
  list[0] = 0;
  for (size_t i = 0, used = 0; i < call->n_given; i++) {
    if (strcmp(call->given[i].option->name, "--data") != 0) continue;
    used += (size_t)snprintf(list + used, n - used, "%s%s", used > 0 ? "," : "", call->given[i].value);
  }
  quern_status status = quern_config_set(config, "eval_data", list);
  free(list);
  return status == QUERN_STATUS_OK ? CLI_OK : cli_usage(call->command, "--data: %s", quern_last_error());
}

static int print_eval(const quern_train_info *info, const quern_eval_record *r) {
  printf("step %" PRId64 " | loss %.6f", r->step, r->loss);
  if (info->length > 0) printf(" | perplexity %.4g", exp(r->loss));
  if (!isnan(r->accuracy)) printf(" | %.2f%% right", 100 * r->accuracy);
  printf(" | %" PRId64 " samples | %.2f s\n", r->samples, r->seconds);
  return CLI_OK;
}

static int run_eval_loss(const struct cli_call *call) {
  quern_config *config = NULL;
  quern_trainer *trainer = NULL;
  quern_eval_record record = QUERN_INIT(quern_eval_record);
  int status = cli_settings(call, true, &config);
  if (status == CLI_OK) status = set_data(call, config);
  if (status == CLI_OK && !cli_has(call, "--some", NULL) &&
      quern_config_set(config, "eval_batches", "0") != QUERN_STATUS_OK)
    status = cli_fail("%s", quern_last_error());
  if (status == CLI_OK && (quern_trainer_new(&trainer, config, NULL) != QUERN_STATUS_OK ||
                           quern_trainer_eval(trainer, &record) != QUERN_STATUS_OK))
    status = cli_fail("%s", quern_last_error());
  if (status == CLI_OK) status = print_eval(quern_trainer_info(trainer), &record);
  quern_trainer_free(trainer);
  quern_config_free(config);
  return status;
}

static const struct cli_option eval_options[] = {
    {"--data", 0, "FILE", "evaluate on this instead of what was held out; may be given again"},
    {"--some", 0, NULL, "as many batches as evaluations of the run have (eval_batches) instead of all"},
    {0},
};

const struct cli_command cli_command_eval_loss = {
    .name = "eval-loss",
    .usage = "DIR [--data FILE ...] [--some] [key=value ...]",
    .help = "the loss of a run's newest checkpoint on data that it was not trained on",
    .more = "DIR is the folder `out` of the run.\n",
    .options = eval_options,
    .least_files = 1,
    .most_files = SIZE_MAX,
    .run = run_eval_loss,
};

/* ---- report ------------------------------------------------------------------------------------------------------- */

static void print_line(void *user, const char *text) {
  (void)user;
  cli_print(stdout, "%s\n", text);
}

static int run_report(const struct cli_call *call) {
  const char *dir = call->files[0];
  if (quern_train_report(dir) != QUERN_STATUS_OK || quern_train_summary(dir, print_line, NULL) != QUERN_STATUS_OK)
    return cli_fail("%s", quern_last_error());
  cli_print(stdout, "report: %s/report.html\n", dir);
  return CLI_OK;
}

const struct cli_command cli_command_report = {
    .name = "report",
    .usage = "DIR",
    .help = "sum up a run, and write report.html: curves, memory, kernels",
    .more = "DIR is the folder `out` of a run, which may still be going on. The page needs nothing but itself.\n",
    .least_files = 1,
    .most_files = 1,
    .run = run_report,
};
