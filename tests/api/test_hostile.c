/* tests/api/test_hostile.c -- every builder of quern/tensor.h survives random operands and hostile numbers
** A call of hostile.def is made ROUNDS times. Operands are of any rank from 0 to 5, any dtype, empty or huge, the poison, NULL
** or of another context; numbers are small ones, or those at the ends of their types; most of a call agrees in dtype and
** shape, so that about half of all calls succeed. What must hold after each call:
**   - the result is right as ir_verify sees it and no error is recorded, or it is the poison and an error with a message
**     and the place is recorded, or an operand was poison;
**   - a result whose nodes are all small evaluates, and so does its gradient.
** A failure prints the function and the round; numbers depend on nothing else.
*/
#include <limits.h>
#include <math.h>

#include "ir/ir.h"
#include "quern/quern.h"
#include "unit.h"

enum { ROUNDS = 200, SMALL = 10000, MOST_ITERATIONS = 100, LIST = 24 };

static quern_context *other;

/* ---- random numbers (splitmix64) ------------------------------------------------------------------------- */

static uint64_t random_state;

static uint64_t random_word(void) {
  uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
  return z ^ z >> 31;
}

/* From lo to hi; true with a percentage. */
static int between(int lo, int hi) { return hi <= lo ? lo : lo + (int)(random_word() % (uint64_t)(hi - lo + 1)); }
static bool percent(int p) { return between(0, 99) < p; }
#define PICK(table) ((table)[random_word() % (sizeof(table) / sizeof *(table))])

/* ---- what a call has in common ---------------------------------------------------------------------------- */

struct list {
  int n;
  int64_t at[LIST];
  const int64_t *list; /* at, or NULL */
};

static quern_dtype call_dtype;
static int call_rank;
static int64_t call_dims[5];
static struct list call_list_of_dims, call_list_of_axes;
static bool excused;           /* an operand was poison, NULL or of another context */
static quern_tensor *drawn;    /* the last good operand */
static quern_tensor *sides[4]; /* second results */
static int n_sides;
static int n_operands, n_results; /* of control */
static quern_tensor *many[LIST];

static int64_t number(void) {
  static const int64_t hostile[] = {INT64_MIN,        INT64_MIN + 1,      INT64_MAX,        INT64_MAX - 1,
                                    INT32_MIN,        INT32_MAX,          INT64_C(1) << 32, INT64_C(1) << 40,
                                    INT64_C(1) << 62, -(INT64_C(1) << 40)};
  return percent(12) ? PICK(hostile) : between(percent(30) ? -5 : 1, 5);
}

static int axis(void) {
  static const int hostile[] = {INT_MIN, INT_MIN + 1, INT_MAX, INT_MAX - 1, QUERN_MAX_RANK, -QUERN_MAX_RANK};
  return percent(8) ? PICK(hostile) : between(-call_rank - percent(10), call_rank - !percent(10));
}

static double real(void) {
  static const double reals[] = {
      0,          1, 2, 3, 0.5, 0.1, -1, -0.0, 1e-5, 10000, 1e300, -1e300, 1e-320, (double)INFINITY, -(double)INFINITY,
      (double)NAN};
  return percent(60) ? reals[between(0, 5)] : PICK(reals);
}

static bool yes(void) { return percent(50); }
static int choice(int n) { return percent(95) ? between(0, n - 1) : between(-2, n + 2); }

static quern_dtype a_dtype(void) {
  static const int wrong[] = {-1, QUERN_DTYPE_COUNT, INT_MIN, INT_MAX};
  if (percent(4)) return (quern_dtype)PICK(wrong);
  return percent(60) ? call_dtype : (quern_dtype)between(0, QUERN_DTYPE_COUNT - 1);
}

static int count(void) {
  static const int hostile[] = {INT_MIN, INT_MAX, -1, 17};
  if (percent(4)) return PICK(hostile);
  return percent(70) ? call_rank : between(0, 5);
}

/* For lists that are read in full: no more than there is. */
static int few(void) { return percent(5) ? between(-2, 0) : between(1, 3); }

static const int64_t *numbers(void) {
  static int64_t pool[4][LIST];
  static int next;
  int64_t *list = pool[next++ % 4];
  for (int i = 0; i < LIST; i++) list[i] = percent(80) ? between(0, 3) : number();
  return percent(3) ? NULL : list;
}

/* ---- operands --------------------------------------------------------------------------------------------- */

static unsigned char bytes[8 * SMALL];

static void *data(void) {
  for (size_t i = 0; i < sizeof bytes; i++)
    bytes[i] = i % 7 == 0 ? (unsigned char)random_word() : (unsigned char)(i % 5);
  return percent(3) ? NULL : bytes;
}

static quern_tensor *huge(quern_context *context, quern_dtype dtype) {
  static const int64_t sizes[] = {
      INT64_C(1) << 20, INT64_C(1) << 31, INT64_C(1) << 40, INT64_C(1) << 60, INT64_MAX, 1, 2, 0};
  int64_t dims[3];
  int rank = between(1, 3);
  for (int k = 0; k < rank; k++) dims[k] = PICK(sizes);
  quern_tensor *x = quern_zeros(context, dtype, rank, dims);
  quern_status status = quern_context_check(context);
  assert_true(status == QUERN_STATUS_OK || status == QUERN_STATUS_OVERFLOW);
  return status == QUERN_STATUS_OK ? x : quern_zeros(context, dtype, QUERN_LIST(INT64_C(1) << 20));
}

static quern_tensor *made(quern_dtype dtype, int rank) {
  if (percent(2)) return excused = true, NULL;
  if (percent(2)) return excused = true, &ir_poison;
  bool foreign = percent(1);
  excused |= foreign;
  quern_context *context = foreign ? other : ctx;
  if (percent(5)) return drawn = huge(context, dtype);
  int64_t dims[5];
  for (int k = 0; k < rank; k++) {
    static const int64_t sizes[] = {1, 2, 2, 3, 4, 0, 1, 2};
    dims[k] = rank >= call_rank && percent(92) ? call_dims[k] : PICK(sizes);
    if (rank != call_rank && rank == 1 && percent(40))
      dims[k] = call_dims[1]; /* channels */
    else if (rank < call_rank && percent(70))
      dims[k] = call_dims[call_rank - rank + k];
  }
  if (percent(40)) (void)data();
  drawn = quern_tensor_copy(context, dtype, rank, dims, bytes);
  assert_false(quern_tensor_is_poison(drawn));
  return drawn;
}

static quern_tensor *of_rank(int rank) {
  return made(percent(93) ? call_dtype : (quern_dtype)between(0, QUERN_DTYPE_COUNT - 1),
              percent(93) ? rank : between(0, 5));
}

static quern_tensor *any(void) { return of_rank(percent(85) ? call_rank : between(0, 5)); }
static quern_tensor *optional(int rank) { return percent(60) ? NULL : of_rank(rank); }
static quern_tensor *of(quern_dtype dtype) {
  return made(percent(93) ? dtype : call_dtype, percent(80) ? call_rank : between(0, 2));
}
static quern_tensor *scalar_of(quern_dtype dtype) { return made(dtype, percent(93) ? 0 : 1); }
static quern_tensor *labels(void) { return made(percent(90) ? QUERN_DTYPE_I64 : call_dtype, percent(90) ? 1 : 2); }

static quern_tensor *const *tensors(void) {
  static quern_tensor *list[LIST];
  for (int i = 0; i < LIST; i++) list[i] = i < 8 ? any() : &ir_poison;
  return percent(2) ? NULL : list;
}

static quern_tensor *const *starts(void) {
  static quern_tensor *list[LIST];
  for (int i = 0; i < LIST; i++) list[i] = i < 6 ? scalar_of(percent(90) ? QUERN_DTYPE_I64 : call_dtype) : &ir_poison;
  return percent(2) ? NULL : list;
}

static quern_tensor **beside(void) { return percent(40) ? NULL : &sides[n_sides++]; }
static quern_tensor **places(void) { return percent(2) ? NULL : many; }

static const char *name(void) {
  static const char *const names[] = {"x", "loss", "", "softmax", "a b\"\\\n", "mine", NULL, "\xff\xfe"};
  return PICK(names);
}

static const char *spec(void) {
  static const char *const fitting[6][5] = {
      /* operands of the call's rank */
      {",", "->", ",->", ",,", ""},
      {"a,a", "a->", "a,b->ba", "a,a,a->a", "a,a->a"},
      {"ab,ab->ba", "ab->b", "ab,cb->ac", "ab,ab,cb->c", "aa->a"},
      {"abc,abc->b", "abc->cab", "a...,a...", "abc,abc,abc", "aab->b"},
      {"abcd,abcd", "abcd->d", "ab...,ab...->...", "abcd,abcd->dcba", "..."},
      {"abcde,abcde", "abcde->ae", "...a,...a->a...", "abcde,abcde->", "...ab->...ba"}};
  static const char *const others[] = {"ij,jk->ik", "iij->ij", "[a][b]->[b]", "i,",    "i->j",
                                       "..",        "[",       "i-",          "a->aa", "[ab]1"};
  static char text[13];
  if (percent(60)) return PICK(fitting[call_rank]);
  if (percent(50)) return PICK(others);
  memset(text, 0, sizeof text);
  for (int i = between(1, 12); i > 0; i--) text[i - 1] = "ij[].,->ab \xc3"[between(0, 11)];
  return text;
}

#define DIMS call_list_of_dims.n, call_list_of_dims.list
#define AXES call_list_of_axes.n, call_list_of_axes.list

static const quern_random *source(void) {
  static quern_random from;
  from = (quern_random){percent(50) ? NULL : scalar_of(QUERN_DTYPE_U64),
                        percent(70) ? NULL : scalar_of(QUERN_DTYPE_U64), (uint32_t)number()};
  return percent(50) ? NULL : &from;
}

/* ---- options ---------------------------------------------------------------------------------------------- */

#define SIZE_OF(type) (percent(96) ? sizeof(type) : (size_t)between(0, (int)sizeof(type) - 1))

static void fill(int64_t *three, int lo, int hi) {
  for (int i = 0; i < 3; i++) three[i] = percent(95) ? between(lo, hi) : number();
}

static const quern_conv_options *conv_options(void) {
  static quern_conv_options o;
  o = (quern_conv_options){.size = SIZE_OF(quern_conv_options), .groups = percent(80) ? between(0, 1) : number()};
  fill(o.stride, 0, 2), fill(o.dilation, 0, 2), fill(o.pad_lo, 0, 2), fill(o.pad_hi, 0, 2), fill(o.output_pad, 0, 1);
  return percent(20) ? NULL : &o;
}

static const quern_pool_options *pool_options(void) {
  static quern_pool_options o;
  o = (quern_pool_options){.size = SIZE_OF(quern_pool_options), .count_pad = yes()};
  fill(o.window, 1, 2), fill(o.stride, 0, 2), fill(o.dilation, 0, 1), fill(o.pad_lo, 0, 1), fill(o.pad_hi, 0, 1);
  return percent(3) ? NULL : &o;
}

static const quern_interpolate_options *interpolate_options(void) {
  static quern_interpolate_options o;
  o = (quern_interpolate_options){
      .size = SIZE_OF(quern_interpolate_options), .mode = (quern_interpolate_mode)choice(4), .align_corners = yes()};
  bool sizes = yes();
  if (sizes) fill(o.sizes, 1, 5);
  for (int i = 0; i < 3 && !sizes; i++) o.scales[i] = percent(80) ? 1.7 : real();
  return percent(3) ? NULL : &o;
}

static const quern_batch_norm_options *batch_options(void) {
  static quern_batch_norm_options o;
  o = (quern_batch_norm_options){SIZE_OF(quern_batch_norm_options), yes(), percent(80) ? 0.1 : real(),
                                 percent(80) ? 1e-5 : real()};
  return percent(3) ? NULL : &o;
}

static const quern_attention_options *attention_options(void) {
  static quern_attention_options o;
  o = (quern_attention_options){SIZE_OF(quern_attention_options), real(), yes()};
  return percent(30) ? NULL : &o;
}

static const quern_cross_entropy_options *label_options(void) {
  static quern_cross_entropy_options o;
  o = (quern_cross_entropy_options){SIZE_OF(quern_cross_entropy_options), (quern_reduction)choice(3), real(), yes(),
                                    number()};
  return percent(30) ? NULL : &o;
}

static const quern_loop_options *loop_options(void) {
  static quern_loop_options o;
  static const int hostile[] = {-1, INT_MIN, INT_MAX};
  int counts[4];
  for (int i = 0; i < 4; i++) counts[i] = percent(97) ? between(0, 2) : PICK(hostile);
  o = (quern_loop_options){.size = SIZE_OF(quern_loop_options),
                           .trip = percent(70) ? call_dims[0] : number(),
                           .reverse = yes(),
                           .n_carries = counts[0],
                           .n_scanned = counts[1],
                           .n_captures = counts[2],
                           .n_stacked = counts[3]};
  if (o.size < sizeof o) memset((char *)&o + o.size, 0, sizeof o - o.size); /* what the library takes it for */
  const int taken[] = {o.n_carries, o.n_scanned, o.n_captures, o.n_stacked};
  n_operands = 0;
  for (int i = 0; i < 3; i++) n_operands += taken[i] >= 0 && taken[i] <= 2 ? taken[i] : 0;
  n_results = (taken[0] >= 0 && taken[0] <= 2 ? taken[0] : 0) + (taken[3] >= 0 && taken[3] <= 2 ? taken[3] : 0);
  return percent(3) ? NULL : &o;
}

/* ---- bodies ----------------------------------------------------------------------------------------------- */

static bool in_loop, in_while; /* argument 0 is the index; the first operands are the results, too */

static void body(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  int n = n_operands + in_loop + (in_while ? n_results : 0);
  for (int i = 0; i < n_results; i++) {
    int same = i + in_loop;
    results[i] = same < n && percent(90) ? args[same]
                 : n > 0                 ? args[between(0, n - 1)]
                                         : quern_scalar(ctx, call_dtype, 1);
    if (percent(5)) results[i] = quern_mul(results[i], results[i]);
    if (percent(3)) results[i] = any();
  }
}

static void never(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user, (void)args;
  results[0] = percent(95) ? quern_scalar(ctx, QUERN_DTYPE_BOOL, 0) : any();
}

static void rule(void *user, int n, quern_tensor *const *x, int n_y, quern_tensor *const *y, quern_tensor *const *dy,
                 quern_tensor **dx) {
  (void)user, (void)n, (void)x, (void)n_y, (void)y, (void)dy, (void)dx;
}

/* ---- the table -------------------------------------------------------------------------------------------- */

#define BUILD(function, ...)                                                                                           \
  static quern_tensor *call_##function(void) { return __VA_ARGS__; }
#define RUN(function, ...)                                                                                             \
  static quern_status call_##function(void) { return __VA_ARGS__; }
#include "api/hostile.def"
#undef BUILD
#undef RUN

static const struct row {
  const char *function;
  quern_tensor *(*build)(void);
  quern_status (*run)(void);
} rows[] = {
#define BUILD(function, ...) {#function, call_##function, NULL},
#define RUN(function, ...) {#function, NULL, call_##function},
#include "api/hostile.def"
#undef BUILD
#undef RUN
};

/* ---- what must hold --------------------------------------------------------------------------------------- */

static const char *now_function;
static int now_round;

#define EXPECT(condition)                                                                                              \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      print_error("%s, round %d: %s; the last error is: %s\n", now_function, now_round, #condition,                    \
                  quern_last_error());                                                                                 \
      fail();                                                                                                          \
    }                                                                                                                  \
  } while (0)

static bool small_nodes(size_t n, quern_tensor *const *roots) {
  struct ir_order order;
  bool small = true;
  if (ir_topo(ctx, n, roots, &order) != QUERN_STATUS_OK) return false;
  for (size_t i = 0; i < order.n && small; i++) {
    const struct ir_node *node = order.at[i];
    for (int k = 0; k < node->n_out; k++) small = small && ir_count(&node->out[k]) <= SMALL;
    small = small && (node->op != IR_LOOP || node->attrs->trip <= MOST_ITERATIONS);
    const struct ir_graph *graphs[] = {node->attrs->body, node->attrs->other};
    for (int k = 0; k < 2 && small; k++) {
      if (graphs[k] != NULL) small = small_nodes((size_t)graphs[k]->n_results, graphs[k]->results);
    }
  }
  ir_order_fini(ctx, &order);
  return small;
}

/* Evaluates x when all there is to it is small. */
static void expect_evaluates(quern_tensor *x) {
  quern_tensor *plain = NULL;
  EXPECT(ir_inline_composites(ctx, 1, &x, &plain) == QUERN_STATUS_OK);
  if (!small_nodes(1, &x) || !small_nodes(1, &plain)) return;
  size_t n = quern_tensor_bytes(x);
  void *dst = malloc(n > 0 ? n : 1);
  assert_non_null(dst);
  quern_status status = quern_eval_reference(ctx, 1, &x, &dst, 0, NULL);
  free(dst);
  EXPECT(status == QUERN_STATUS_OK || (status == QUERN_STATUS_UNBOUND && quern_tensor_name(x) != NULL));
}

static void expect_whole(quern_tensor *x) {
  EXPECT(!quern_tensor_is_poison(x) && quern_tensor_context(x) == ctx);
  EXPECT(ir_verify(ctx, 1, &x) == QUERN_STATUS_OK);
  expect_evaluates(x);
}

/* The gradient of a result with respect to the last operand is whole, or there is a reason. */
static void expect_gradient(quern_tensor *y) {
  bool floats =
      quern_tensor_dtype(y) <= QUERN_DTYPE_F8E5M2 && drawn != NULL && quern_tensor_dtype(drawn) <= QUERN_DTYPE_F8E5M2;
  if (!floats || quern_tensor_context(drawn) != ctx) return;
  quern_tensor *dx = NULL;
  quern_status status = quern_grad(quern_sum(y, QUERN_ALL, false), 1, &drawn, &dx);
  EXPECT(status == QUERN_STATUS_OK || status == QUERN_STATUS_UNSUPPORTED || status == QUERN_STATUS_OVERFLOW ||
         status == QUERN_STATUS_SHAPE);
  if (status == QUERN_STATUS_OK) expect_whole(dx);
}

static void expect_refused(quern_status status) {
  EXPECT(status != QUERN_STATUS_INTERNAL && quern_last_status() == status);
  EXPECT(strlen(quern_last_error()) > 10);
  EXPECT(quern_context_check(ctx) == QUERN_STATUS_OK);
}

static size_t accepted[sizeof rows / sizeof *rows]; /* calls that gave a tensor */

static void check_build(const struct row *row) {
  quern_tensor *y = row->build();
  EXPECT(y != NULL);
  quern_status status = quern_context_check(ctx);
  if (!quern_tensor_is_poison(y)) {
    accepted[row - rows]++;
    EXPECT(status == QUERN_STATUS_OK);
    if (quern_tensor_context(y) != ctx) return; /* all operands are of the other one */
    expect_whole(y);
    for (int i = 0; i < n_sides; i++) expect_whole(sides[i]);
    if (percent(50)) expect_gradient(y);
  } else if (status == QUERN_STATUS_OK) {
    EXPECT(excused || strcmp(row->function, "quern_concat") == 0 || strcmp(row->function, "quern_stack") == 0 ||
           strncmp(row->function, "quern_einsum", 12) == 0); /* lists may be NULL or empty: no context */
    EXPECT(excused || quern_last_status() == QUERN_STATUS_INVALID);
  } else {
    expect_refused(status);
    EXPECT(strstr(quern_last_error(), "\n  at ") != NULL);
  }
  for (int i = 0; i < n_sides && quern_tensor_is_poison(y); i++) EXPECT(quern_tensor_is_poison(sides[i]));
}

static void check_run(const struct row *row) {
  quern_status status = row->run();
  if (status != QUERN_STATUS_OK) {
    expect_refused(status);
    for (int i = 0; i < LIST; i++) EXPECT(quern_tensor_is_poison(many[i]));
    return;
  }
  accepted[row - rows]++;
  EXPECT(quern_context_check(ctx) == QUERN_STATUS_OK);
  for (int i = 0; i < LIST; i++) {
    if (!quern_tensor_is_poison(many[i]) && quern_tensor_context(many[i]) == ctx) expect_whole(many[i]);
  }
}

/* Draws what the arguments of one call have in common. */
static void draw_call(size_t row, int round) {
  static const int64_t sizes[] = {1, 2, 2, 3, 4, 4, 6, 0};
  random_state = (uint64_t)row * 1000003u + (uint64_t)round;
  call_dtype = percent(60) ? (quern_dtype)between(0, 1) : (quern_dtype)between(0, QUERN_DTYPE_COUNT - 1);
  call_rank = between(0, 5);
  for (int k = 0; k < 5; k++) call_dims[k] = PICK(sizes);
  if (percent(40)) call_dims[1] = call_dims[0];

  struct list *dims = &call_list_of_dims, *axes = &call_list_of_axes;
  *dims = (struct list){.n = count(), .list = percent(3) ? NULL : dims->at};
  for (int k = 0; k < LIST; k++) dims->at[k] = k < 5 && percent(90) ? call_dims[k] : number();
  if (percent(15)) dims->at[between(0, 4)] = -1;
  *axes = (struct list){.n = 0, .list = percent(3) ? NULL : axes->at};
  for (int k = 0; k < LIST; k++) axes->at[k] = percent(90) ? between(-call_rank, call_rank) : number();
  for (int k = 0; k < call_rank; k++) {
    if (percent(60)) axes->at[axes->n++] = k;
  }
  if (percent(20)) axes->n = count();

  excused = false;
  drawn = NULL;
  n_sides = 0;
  for (int i = 0; i < 4; i++) sides[i] = &ir_poison;
  for (int i = 0; i < LIST; i++) many[i] = &ir_poison;
  n_operands = percent(96) ? between(0, 3) : -1;
  n_results = percent(96) ? between(1, 3) : between(-1, 0);
  in_loop = strcmp(rows[row].function, "quern_loop") == 0;
  in_while = strcmp(rows[row].function, "quern_while") == 0;
}

static void round_of_calls(int round) {
  assert_non_null(ctx = test_context());
  assert_non_null(other = test_context());
  for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
    now_function = rows[row].function;
    now_round = round;
    draw_call(row, round);
    if (rows[row].build != NULL) check_build(&rows[row]);
    if (rows[row].run != NULL) check_run(&rows[row]);
    quern_status status = quern_context_check(other);
    EXPECT(status == QUERN_STATUS_OK || excused);
  }
  quern_context_free(ctx);
  quern_context_free(other);
  assert_int_equal(memory_live, 0);
}

static void hostile_calls(void **state) {
  (void)state;
  for (int round = 0; round < ROUNDS; round++) round_of_calls(round);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    if (accepted[i] == 0) print_error("no call of %s succeeded\n", rows[i].function);
    assert_true(accepted[i] > 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(hostile_calls)};
  return cmocka_run_group_tests_name("api/hostile", tests, NULL, NULL);
}
