/* optim/schedule.c -- learning rates: pieces that follow each other
** tests: tests/optim/test_schedule.c
*/
#include <math.h>

#include "optim/optim_int.h"

#define PI 3.14159265358979323846

/* How far a piece has come: 0 .. 1; one without an end stays at its beginning. */
static double share(const quern_schedule_piece *p, int64_t t) {
  return p->steps <= 0 ? 0 : t >= p->steps ? 1 : (double)t / (double)p->steps;
}

static double constant(const quern_schedule_piece *p, int64_t t) { return (void)p, (void)t, 1; }
static double stairs(const quern_schedule_piece *p, int64_t t) {
  int64_t climbed = t / (p->every > 0 ? p->every : 1);
  return pow(p->gamma, (double)climbed);
}
static double exponential(const quern_schedule_piece *p, int64_t t) { return pow(p->gamma, (double)t); }
static double cosine(const quern_schedule_piece *p, int64_t t) {
  return p->end + (1 - p->end) * 0.5 * (1 + cos(PI * share(p, t)));
}
static double linear(const quern_schedule_piece *p, int64_t t) { return p->start + (p->end - p->start) * share(p, t); }
static double polynomial(const quern_schedule_piece *p, int64_t t) {
  return p->end + (1 - p->end) * pow(1 - share(p, t), p->power);
}

static double (*const factors[])(const quern_schedule_piece *, int64_t) = {
    [QUERN_SCHEDULE_CONSTANT] = constant, [QUERN_SCHEDULE_STEP] = stairs,   [QUERN_SCHEDULE_EXPONENTIAL] = exponential,
    [QUERN_SCHEDULE_COSINE] = cosine,     [QUERN_SCHEDULE_LINEAR] = linear, [QUERN_SCHEDULE_POLYNOMIAL] = polynomial,
    [QUERN_SCHEDULE_PLATEAU] = constant,
};

static const quern_schedule_piece *find_plateau(const quern_schedule *schedule) {
  for (size_t i = 0; i < schedule->n_pieces; i++)
    if (schedule->pieces[i].kind == QUERN_SCHEDULE_PLATEAU) return &schedule->pieces[i];
  return NULL;
}

double quern_schedule_at(const quern_schedule *schedule, int64_t step) {
  if (schedule == NULL) return 0;
  if (schedule->n_pieces == 0 || schedule->pieces == NULL) return schedule->lr;
  const quern_schedule_piece *piece = schedule->pieces, *last = piece + schedule->n_pieces - 1;
  int64_t t = BASE_MAX(step, 0);
  while (piece < last && piece->steps > 0 && t >= piece->steps) t -= piece++->steps;
  double factor = (unsigned)piece->kind < BASE_COUNT(factors) ? factors[piece->kind](piece, t) : 1;
  const quern_schedule_piece *plateau = find_plateau(schedule);
  return schedule->lr * factor * (plateau != NULL ? pow(plateau->gamma, (double)schedule->plateau.falls) : 1);
}

void quern_schedule_report(quern_schedule *schedule, double metric) {
  if (schedule == NULL || schedule->pieces == NULL) return;
  const quern_schedule_piece *plateau = find_plateau(schedule);
  if (plateau == NULL) return;
  bool none = schedule->plateau.reports++ == 0 || !isfinite(schedule->plateau.best);
  double enough = schedule->plateau.best - plateau->threshold * fabs(schedule->plateau.best);
  if (none) schedule->plateau.best = INFINITY;
  if (isfinite(metric) && (none || metric < enough)) {
    schedule->plateau.best = metric;
    schedule->plateau.bad = 0;
  } else if (++schedule->plateau.bad > plateau->patience) { /* nor is what is not finite an improvement */
    schedule->plateau.bad = 0;
    schedule->plateau.falls++;
  }
}
