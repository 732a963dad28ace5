/* engine/branches.c -- dependencies between the launch groups of a captured run
** Small steps that follow each other, such as the updates of small parameters, take less time than the device needs to begin one. Those of
** a row of them that touch nothing in common are put side by side, on a few lanes; a step that is not small comes after
** all before it, and all after it come after it.
** keeps: a step comes after all that wrote what it touches, and after all that read what it writes
** tests: tests/engine/test_branches.c
*/
#include "engine/engine.h"

enum { LANES = 8, MOST_ROW = 512 };
static const double SMALL_BYTES = 128e6, SMALL_FLOPS = 1e9;

/* Whether a launch group is small as a whole. */
static bool is_small(const quern_program *program, const struct engine_launch_order *order, int group) {
  double bytes = 0, flops = 0;
  for (int i = order->first[group]; i < order->first[group + 1]; i++) {
    const struct engine_step *step = &order->subprogram->steps[order->steps[i]];
    if (step->kind != PLAN_KERNEL && step->kind != PLAN_COPY) return false;
    const struct kern_cost *cost = step->kind == PLAN_KERNEL ? &program->kernels[step->kernel]->cost : NULL;
    bytes += cost != NULL ? cost->bytes : (double)order->subprogram->buffers[step->buffers[0]].bytes;
    flops += cost != NULL ? cost->flops : 0;
  }
  return bytes < SMALL_BYTES && flops < SMALL_FLOPS;
}

/* ---- rows of small steps ------------------------------------------------------------------------------------- */

enum { NONE = -1 };

/* A row: the step that all of it come after, its first step, and the last of each lane. */
struct row {
  int before, first;
  int n, last[LANES];
};

static struct row row_behind(int step) {
  struct row row = {.before = step, .first = step + 1};
  for (int l = 0; l < LANES; l++) row.last[l] = NONE;
  return row;
}

static int add(int n, int *steps, int step) {
  if (step != NONE) steps[n++] = step;
  return n;
}

/* What launch group i of a row depends on: of each lane the last that conflicts with it. It continues the lane whose end conflicts, opens
** a lane, or goes to one of them, round-robin. Returns how many there are. */
static int add_small(const struct engine_launch_order *order, struct row *row, int i, int *lane_of, int *steps) {
  int met[LANES], lane = NONE, n = 0;
  for (int l = 0; l < LANES; l++) met[l] = NONE;
  for (int k = i - 1; k >= row->first; k--)
    if (met[lane_of[k]] == NONE && engine_launch_groups_conflict(order, k, i)) met[lane_of[k]] = k;
  for (int l = 0; l < row->n; l++)
    if (met[l] != NONE && met[l] == row->last[l]) lane = l;
  if (lane == NONE) lane = row->n < LANES ? row->n++ : (i - row->first) % LANES;
  met[lane] = row->last[lane]; /* and so after the one that it meets */
  for (int l = 0; l < row->n; l++) n = add(n, steps, met[l]);
  row->last[lane] = i;
  lane_of[i] = lane;
  return n > 0 ? n : add(0, steps, row->before);
}

/* What a step comes after that is not small: the end of each lane. The next row begins behind it. */
static int add_large(struct row *row, int i, int *steps) {
  int n = 0;
  for (int l = 0; l < row->n; l++) n = add(n, steps, row->last[l]);
  if (n == 0) n = add(n, steps, row->before);
  *row = row_behind(i);
  return n;
}

struct engine_branches *engine_branches_new(quern_instance *instance, const struct engine_launch_order *order) {
  size_t n = (size_t)order->n, bytes;
  if (!base_size(n, (LANES + 2) * sizeof(int), sizeof(struct engine_branches) + sizeof(int), &bytes)) return NULL;
  struct engine_branches *b = base_alloc_zero(&instance->heap, bytes);
  if (b == NULL) return NULL;
  b->bytes = bytes;
  b->first = (int *)(b + 1);
  b->groups = b->first + n + 1;
  int *lane_of = b->groups + n * LANES, at = 0;
  struct row row = row_behind(NONE);
  for (int i = 0; i < order->n; i++) {
    bool small = is_small(instance->program, order, i) && i - row.first < MOST_ROW;
    b->first[i] = at;
    at += small ? add_small(order, &row, i, lane_of, b->groups + at) : add_large(&row, i, b->groups + at);
  }
  b->first[n] = at;
  return b;
}

void engine_branches_free(quern_instance *instance, struct engine_branches *branches) {
  if (branches != NULL) base_free(&instance->heap, branches, branches->bytes);
}
