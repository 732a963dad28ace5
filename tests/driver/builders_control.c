/* driver/builders_control.c -- loops, branches and composites with bodies known by name (key body)
** The reference has the same bodies, written on its own from the equations in the comments here.
*/
#include <string.h>

#include "driver/builders.h"

/* ---- loop ---------------------------------------------------------------------------------------------- */

/* c' = c + x; y = c' */
static void loop_sum(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = out[1] = quern_add(in[1], in[2]);
}

/* c' = max(c, x); y = c' */
static void loop_max(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = out[1] = quern_maximum(in[1], in[2]);
}

/* h' = tanh(h w + x); y = h' */
static void loop_rnn(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = out[1] = quern_tanh(quern_add(quern_matmul(in[1], in[3]), in[2]));
}

/* c' = c k + i */
static void loop_index(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_add(quern_mul(in[1], in[2]), quern_cast(in[0], quern_tensor_dtype(in[1])));
}

/* y = x x + i; nothing carried */
static void loop_map(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_add(quern_mul(in[1], in[1]), quern_cast(in[0], quern_tensor_dtype(in[1])));
}

/* c' = c k */
static void loop_scale(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_mul(in[1], in[2]);
}

/* twice (c' = sin c + x), by a loop of its own; y = c' */
static void nested_inner(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_add(quern_sin(in[1]), in[2]);
}
static void loop_nested(void *user, quern_tensor *const *in, quern_tensor **out) {
  quern_loop_options o = {.size = sizeof o, .trip = 2, .n_carries = 1, .n_captures = 1};
  quern_tensor *operands[] = {in[1], in[2]};
  if (quern_loop(quern_tensor_context(in[1]), &o, operands, nested_inner, user, out) != QUERN_STATUS_OK) out[0] = in[1];
  out[1] = out[0];
}

/* (a', b') = (b, a + b x); y = a b, z = a */
static void loop_pair(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = in[2];
  out[1] = quern_add(in[1], quern_mul(in[2], in[3]));
  out[2] = quern_mul(in[1], in[2]);
  out[3] = in[1];
}

/* c' = c k + x b + n, n' = n + 1 with an integer n carried beside; y = c' */
static void loop_mixed(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  quern_tensor *moved = quern_add(quern_mul(in[1], in[4]), quern_mul(in[3], in[5]));
  out[0] = out[2] = quern_add(moved, quern_cast(in[2], quern_tensor_dtype(moved)));
  out[1] = quern_add_scalar(in[2], 1);
}

static int build_mixed(struct args *a) {
  quern_loop_options o = {sizeof o, INT(trip, 3), FLAG(reverse), 2, 1, 2, 1};
  quern_tensor *operands[] = {X(0), quern_scalar_int(a->ctx, QUERN_DTYPE_I64, 2), X(1), X(2), X(3)};
  return quern_loop(a->ctx, &o, operands, loop_mixed, NULL, a->y) == QUERN_STATUS_OK ? 3 : 0;
}

static const struct {
  const char *name;
  int carries, scanned, captures, stacked;
  quern_body *body;
} loops[] = {
    {"sum", 1, 1, 0, 1, loop_sum},     {"max", 1, 1, 0, 1, loop_max},       {"rnn", 1, 1, 1, 1, loop_rnn},
    {"index", 1, 0, 1, 0, loop_index}, {"map", 0, 1, 0, 1, loop_map},       {"scale", 1, 0, 1, 0, loop_scale},
    {"pair", 2, 1, 0, 2, loop_pair},   {"nested", 1, 1, 0, 1, loop_nested},
};

int build_loop(struct args *a) {
  const char *name = case_text(a->c, "body", "sum");
  if (strcmp(name, "mixed") == 0) return build_mixed(a);
  for (size_t i = 0; i < BASE_COUNT(loops); i++) {
    if (strcmp(loops[i].name, name) != 0) continue;
    quern_loop_options o = {sizeof o,         INT(trip, 3),      FLAG(reverse),   loops[i].carries,
                            loops[i].scanned, loops[i].captures, loops[i].stacked};
    int n = loops[i].carries + loops[i].stacked;
    return quern_loop(a->ctx, &o, a->x, loops[i].body, NULL, a->y) == QUERN_STATUS_OK ? n : 0;
  }
  return 0;
}

/* ---- while --------------------------------------------------------------------------------------------- */

/* while n < 3: x' = max(x, k), n' = n + 1 */
static void count_cond(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_lt(in[1], quern_scalar_int(quern_tensor_context(in[1]), QUERN_DTYPE_I64, 3));
}
static void count_body(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_maximum(in[0], in[2]);
  out[1] = quern_add_scalar(in[1], 1);
}

/* while max |x x - k| > 0.05: x' = (x + k / x) / 2 */
static void newton_cond(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  quern_tensor *error = quern_max(quern_abs(quern_sub(quern_square(in[0]), in[1])), QUERN_ALL, false);
  out[0] = quern_gt(error, quern_scalar(quern_tensor_context(error), quern_tensor_dtype(error), 0.05));
}
static void newton_body(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_mul_scalar(quern_add(in[0], quern_div(in[1], in[0])), 0.5);
}

int build_while(struct args *a) {
  quern_tensor *counted[] = {X(0), quern_scalar_int(a->ctx, QUERN_DTYPE_I64, 0), X(1)};
  quern_status status;
  if (WORD(body, "count", "newton") == 0) {
    status = quern_while(a->ctx, 2, 1, counted, count_cond, count_body, NULL, a->y);
    return status == QUERN_STATUS_OK ? 2 : 0;
  }
  status = quern_while(a->ctx, 1, 1, a->x, newton_cond, newton_body, NULL, a->y);
  return status == QUERN_STATUS_OK ? 1 : 0;
}

/* ---- if ------------------------------------------------------------------------------------------------ */

/* (a b sin a, a + b), else (a - b, a b) */
static void calc_then(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_mul(quern_mul(in[0], in[1]), quern_sin(in[0]));
  out[1] = quern_add(in[0], in[1]);
}
static void calc_else(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_sub(in[0], in[1]);
  out[1] = quern_mul(in[0], in[1]);
}

/* (max(a, b), a), else (min(a, b), b) */
static void pick_then(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_maximum(in[0], in[1]);
  out[1] = in[0];
}
static void pick_else(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_minimum(in[0], in[1]);
  out[1] = in[1];
}

int build_if(struct args *a) {
  bool calc = WORD(body, "pick", "calc") == 1;
  quern_status status =
      quern_if(X(0), 2, a->x + 1, 2, calc ? calc_then : pick_then, calc ? calc_else : pick_else, NULL, a->y);
  return status == QUERN_STATUS_OK ? 2 : 0;
}

/* ---- composite ----------------------------------------------------------------------------------------- */

/* (a a + tanh b, a b) */
static void smooth_body(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_add(quern_square(in[0]), quern_tanh(in[1]));
  out[1] = quern_mul(in[0], in[1]);
}

static void smooth_rule(void *user, int n, quern_tensor *const *x, int n_results, quern_tensor *const *y,
                        quern_tensor *const *dy, quern_tensor **dx) {
  (void)user, (void)n, (void)n_results, (void)y;
  quern_tensor *t = quern_tanh(x[1]), *slope = quern_sub(quern_ones_like(t), quern_square(t));
  dx[0] = quern_add(quern_mul(quern_mul_scalar(x[0], 2), dy[0]), quern_mul(x[1], dy[1]));
  dx[1] = quern_add(quern_mul(slope, dy[0]), quern_mul(x[0], dy[1]));
}

/* (max(a, b), a) */
static void pick_body(void *user, quern_tensor *const *in, quern_tensor **out) { pick_then(user, in, out); }

int build_composite(struct args *a) {
  bool smooth = WORD(body, "pick", "smooth") == 1, rule = FLAG(rule);
  const char *name = !smooth ? "pick" : rule ? "smooth_rule" : "smooth";
  if (rule && quern_composite_rule(a->ctx, name, smooth_rule, NULL) != QUERN_STATUS_OK) return 0;
  quern_status status = quern_composite(a->ctx, name, 2, a->x, 2, smooth ? smooth_body : pick_body, NULL, a->y);
  return status == QUERN_STATUS_OK ? 2 : 0;
}
