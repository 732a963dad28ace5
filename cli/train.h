/* cli/train.h -- what the commands of training share: configurations of the command line, the line of progress */
#ifndef CLI_TRAIN_H
#define CLI_TRAIN_H
#include "cli.h"

#include "quern/train.h"

/* ---- configurations (settings.c) ---------------------------------------------------------------------------------- */

/* The configuration of the arguments from the first on: a file or the name of a preset, then key=value; and --memory. With dir, the
** first argument is a run's folder. quern_config_free(*config) whatever happened. */
int cli_settings(const struct cli_call *call, bool dir, quern_config **config);
/* The table of keys. */
void cli_settings_help(FILE *out);

/* ---- telling how it goes (line.c) --------------------------------------------------------------------------------- */

struct cli_line {
  bool live, utf8;        /* on a terminal; which shows characters beyond ASCII */
  bool shown;             /* the cursor is behind the live line */
  int64_t every;          /* steps between plain lines */
  const char *unit;       /* "tok" */
  int64_t first, printed; /* the first step; the last that a plain line reported */
  double drawn;           /* when */
  quern_train_record last;
};
void cli_line_begin(struct cli_line *line, int64_t every);
void cli_line_step(struct cli_line *line, const quern_train_record *record);
/* What a run is: model, data, batch, memory (train.c). */
void cli_tell_run(struct cli_line *line, const quern_train_info *info);
/* A line of its own, above the live one. */
void cli_line_print(struct cli_line *line, const char *fmt, ...) CLI_PRINTF(2, 3);
/* The last step is reported, unless it was; then the line is left as it is. */
void cli_line_stop(struct cli_line *line);
void cli_line_end(struct cli_line *line);

/* "1:05", "2:01:05", "3 d 4 h". */
const char *cli_time_text(char text[24], double seconds);

#endif
