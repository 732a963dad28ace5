/* train/metrics.h -- what a run writes into its folder: config, tokenizer.json, metrics.jsonl, run.json, report.html (metrics.c) */
#ifndef TRAIN_METRICS_H
#define TRAIN_METRICS_H
#include <stdio.h>

#include "train/train.h"

struct train_metrics {
  quern_trainer *trainer;
  FILE *file;              /* metrics.jsonl; NULL: the run has no folder */
  struct base_str kernels; /* JSON; empty: they were not timed */
  bool open;
};
/* Begins: lines of metrics.jsonl after the run's step are removed, and the other files are written. */
quern_status train_metrics_open(struct train_metrics *metrics, quern_trainer *trainer) QUERN_NODISCARD;
quern_status train_metrics_step(struct train_metrics *metrics, const quern_train_record *record) QUERN_NODISCARD;
quern_status train_metrics_eval(struct train_metrics *metrics, const quern_eval_record *record) QUERN_NODISCARD;
/* Takes the times of kernels from what the step's instance has recorded. */
quern_status train_metrics_kernels(struct train_metrics *metrics) QUERN_NODISCARD;
/* Writes run.json again, and the report. */
quern_status train_metrics_end(struct train_metrics *metrics) QUERN_NODISCARD;
void train_metrics_close(struct train_metrics *metrics);

#endif
