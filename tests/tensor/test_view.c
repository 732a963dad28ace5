/* tests/tensor/test_view.c -- movement: values, shapes and wrong calls; slices against Python's rule */
#include "tensor/compound_test.h"

static quern_tensor *counted(int rank, const int64_t *dims) {
  int64_t n = 1;
  for (int k = 0; k < rank; k++) n *= dims[k];
  quern_tensor *x = quern_reshape(quern_arange(ctx, QUERN_DTYPE_I32, n, 0, 1), rank, dims);
  test_ok(x, __FILE__, __LINE__);
  return x;
}
#define COUNTED(...) counted(QUERN_LIST(__VA_ARGS__))

static void shapes(void **state) {
  (void)state;
  quern_tensor *x = COUNTED(2, 3, 4);
  EXPECT_TYPE(quern_reshape(x, QUERN_LIST(6, 4)), I32, DIMS(6, 4));
  EXPECT_TYPE(quern_reshape(x, QUERN_LIST(-1, 8)), I32, DIMS(3, 8));
  EXPECT_TYPE(quern_reshape(x, QUERN_LIST(3, 2, 4)), I32, DIMS(3, 2, 4));
  EXPECT_TYPE(quern_reshape(x, QUERN_LIST(-1)), I32, DIMS(24));
  EXPECT_TYPE(quern_reshape(quern_scalar(ctx, QUERN_DTYPE_F32, 1), QUERN_LIST(1, -1)), F32, DIMS(1, 1));
  EXPECT_TYPE(quern_reshape(ZEROS(F32, 0, 3), QUERN_LIST(-1, 3)), F32, DIMS(0, 3));
  assert_ptr_equal(quern_reshape(x, QUERN_LIST(2, 3, 4)), x);
  assert_ptr_equal(quern_reshape(x, QUERN_LIST(2, -1, 4)), x);
  EXPECT_POISON(quern_reshape(x, QUERN_LIST(5, 5)), SHAPE, "reshape: (2, 3, 4) has 24 elements, (5, 5) has 25");
  EXPECT_POISON(quern_reshape(x, QUERN_LIST(-1, 5)), SHAPE,
                "reshape: (2, 3, 4) of 24 elements has no size for the -1 of (-1, 5)");
  EXPECT_POISON(quern_reshape(x, QUERN_LIST(-1, -1)), SHAPE, "reshape: (-1, -1) has -1 twice");
  EXPECT_POISON(quern_reshape(x, QUERN_LIST(-2, 12)), SHAPE, "reshape: dim 0 of (-2, 12) is negative");
  EXPECT_POISON(quern_reshape(ZEROS(F32, 0, 3), QUERN_LIST(-1, 0)), SHAPE, "has no size for the -1 of (-1, 0)");
  EXPECT_POISON(quern_reshape(x, QUERN_LIST(INT64_MAX, 4)), OVERFLOW, "reshape: ");
  EXPECT_POISON(quern_reshape(x, 3, NULL), INVALID, "reshape: a list of 3 dims is null");
  EXPECT_POISON(quern_reshape(x, 17, NULL), SHAPE, "reshape: rank 17 is not in 0..16");
  EXPECT_TYPE(quern_flatten(x, 0, 1), I32, DIMS(6, 4));
  EXPECT_TYPE(quern_flatten(x, 1, -1), I32, DIMS(2, 12));
  EXPECT_TYPE(quern_flatten(x, 0, -1), I32, DIMS(24));
  assert_ptr_equal(quern_flatten(x, 1, 1), x);
  EXPECT_POISON(quern_flatten(x, 2, 1), SHAPE, "flatten: the first axis 2 comes after the last 1 of (2, 3, 4)");
  EXPECT_POISON(quern_flatten(x, 0, 3), SHAPE, "flatten: axis 3 is out of range for (2, 3, 4) of rank 3");
  EXPECT_POISON(quern_flatten(x, -4, 1), SHAPE, "flatten: axis -4 is out of range");
  EXPECT_TYPE(quern_squeeze(ZEROS(F32, 2, 1, 3), 1), F32, DIMS(2, 3));
  EXPECT_TYPE(quern_squeeze(ZEROS(F32, 2, 1), -1), F32, DIMS(2));
  EXPECT_POISON(quern_squeeze(x, 1), SHAPE, "squeeze: axis 1 of (2, 3, 4) has size 3, must be 1");
  EXPECT_POISON(quern_squeeze(x, 3), SHAPE, "squeeze: axis 3 is out of range");
  EXPECT_TYPE(quern_unsqueeze(x, 0), I32, DIMS(1, 2, 3, 4));
  EXPECT_TYPE(quern_unsqueeze(x, 2), I32, DIMS(2, 3, 1, 4));
  EXPECT_TYPE(quern_unsqueeze(x, -1), I32, DIMS(2, 3, 4, 1));
  EXPECT_POISON(quern_unsqueeze(x, 4), SHAPE, "unsqueeze: axis 4 is out of range for a result of rank 4");
  EXPECT_POISON(quern_unsqueeze(x, -5), SHAPE, "unsqueeze: axis -5 is out of range");
  quern_tensor *most = quern_unsqueeze(quern_reshape(x, QUERN_LIST(2, 3, 4, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)), -1);
  EXPECT_TYPE(most, I32, DIMS(2, 3, 4, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1));
  quern_tensor *none = quern_input(ctx, "none", QUERN_DTYPE_F32, QUERN_LIST(INT64_C(1) << 40, INT64_C(1) << 40, 0));
  EXPECT_POISON(quern_flatten(none, 0, 1), OVERFLOW, "flatten: axes 0 to 1 of (1099511627776, 1099511627776, 0)");
  EXPECT_TYPE(quern_flatten(none, 0, 2), F32, DIMS(0));
  quern_tensor *deep = quern_reshape(x, QUERN_LIST(2, 3, 4, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1));
  EXPECT_POISON(quern_unsqueeze(deep, 0), SHAPE, "would have rank 17, at most 16");
}

static void orders(void **state) {
  (void)state;
  quern_tensor *x = COUNTED(2, 3);
  EXPECT(quern_permute(x, QUERN_LIST(1, 0)), 0, 3, 1, 4, 2, 5);
  assert_ptr_equal(quern_permute(x, QUERN_LIST(0, -1)), x);
  EXPECT(quern_transpose(x, 0, 1), 0, 3, 1, 4, 2, 5);
  assert_ptr_equal(quern_transpose(x, 0, 1), quern_permute(x, QUERN_LIST(-1, -2)));
  assert_ptr_equal(quern_transpose(x, 1, 1), x);
  assert_ptr_equal(quern_transpose(x, 1, 0), quern_transpose(x, 0, 1));
  EXPECT_TYPE(quern_transpose(ZEROS(F32, 2, 3, 4), 0, -1), F32, DIMS(4, 3, 2));
  EXPECT_POISON(quern_permute(x, QUERN_LIST(0)), SHAPE, "permute: 1 axes for (2, 3) of rank 2");
  EXPECT_POISON(quern_permute(x, QUERN_LIST(0, -2)), SHAPE, "permute: (0, -2) lists axis 0 twice");
  EXPECT_POISON(quern_permute(x, QUERN_LIST(0, 2)), SHAPE, "permute: axis 2 is out of range");
  EXPECT_POISON(quern_permute(x, 2, NULL), INVALID, "permute: a list of 2 axes is null");
  EXPECT_POISON(quern_transpose(x, 0, 2), SHAPE, "transpose: axis 2 is out of range");
  EXPECT_POISON(quern_transpose(x, -3, 0), SHAPE, "transpose: axis -3 is out of range");
  EXPECT(quern_broadcast_to(REALS(F32, DIMS(2, 1), 1, 2), QUERN_LIST(2, 2, 2)), 1, 1, 2, 2, 1, 1, 2, 2);
  assert_ptr_equal(quern_broadcast_to(x, QUERN_LIST(2, 3)), x);
  EXPECT_POISON(quern_broadcast_to(x, QUERN_LIST(3)), SHAPE, "broadcast_to: (2, 3) has more axes than (3,)");
  EXPECT_POISON(quern_broadcast_to(x, QUERN_LIST(4, 3)), SHAPE,
                "broadcast_to: (2, 3) does not stretch to (4, 3): axis 0");
  EXPECT_POISON(quern_broadcast_to(x, QUERN_LIST(2, -3)), SHAPE, "broadcast_to: dim 1 of (2, -3) is negative");
}

/* Python's x[start:stop:step] on 0..n-1 by its definition; INT64_MAX as stop is none. */
static int python_slice(int n, int64_t start, int64_t stop, int64_t step, double *out) {
  int64_t lower = step > 0 ? 0 : -1, upper = step > 0 ? n : n - 1;
  bool open = stop == QUERN_END;
  if (start < 0) start = start < -n ? lower : start + n;
  if (stop < 0) stop = stop < -n ? lower : stop + n;
  start = BASE_MIN(BASE_MAX(start, lower), upper);
  stop = open ? (step > 0 ? n : -1) : BASE_MIN(BASE_MAX(stop, lower), upper);
  int count = 0;
  for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step) out[count++] = (double)i;
  return count;
}

static void slices_as_in_python(void **state) {
  (void)state;
  for (int n = 0; n <= 5; n++) {
    quern_tensor *x = quern_arange(ctx, QUERN_DTYPE_I32, n, 0, 1);
    for (int64_t start = -7; start <= 7; start++) {
      for (int64_t stop = -7; stop <= 8; stop++) {
        for (int64_t step = -3; step <= 3; step++) {
          if (step == 0) continue;
          double want[8];
          int64_t end = stop == 8 ? QUERN_END : stop;
          int count = python_slice(n, start, end, step, want);
          quern_tensor *y = quern_slice(x, 0, start, end, step);
          test_ok(y, __FILE__, __LINE__);
          if (y->dims[0] != count) print_error("n %d [%d:%d:%d]\n", n, (int)start, (int)stop, (int)step);
          assert_int_equal(y->dims[0], count);
          if (count > 0) EXPECT_ARRAY(y, 0, count, want);
        }
      }
    }
  }
}

static void slices(void **state) {
  (void)state;
  quern_tensor *x = COUNTED(3, 4);
  EXPECT(quern_slice(x, 1, 1, 3, 1), 1, 2, 5, 6, 9, 10);
  EXPECT(quern_slice(x, 0, QUERN_END, QUERN_END, -2), 8, 9, 10, 11, 0, 1, 2, 3);
  assert_ptr_equal(quern_slice(x, 0, 0, QUERN_END, 1), x);
  assert_ptr_equal(quern_slice(x, 0, -100, 100, 1), x);
  assert_ptr_equal(quern_slice(x, 1, 0, 3, 2), quern_slice(x, 1, 0, 4, 2));
  assert_ptr_equal(quern_slice(x, 1, 1, 2, INT64_MAX), quern_slice(x, 1, 1, 2, 1));
  assert_ptr_equal(quern_slice(x, 1, 3, 1, 1), quern_slice(x, 1, 2, 2, 5));
  EXPECT(quern_slice(x, 1, 3, QUERN_END, INT64_MIN), 3, 7, 11);
  EXPECT_TYPE(quern_slice(x, 1, INT64_MIN, INT64_MIN, 1), I32, DIMS(3, 0));
  EXPECT_TYPE(quern_slice(x, 1, INT64_MIN, INT64_MAX, 3), I32, DIMS(3, 2));
  EXPECT_POISON(quern_slice(x, 1, 0, 1, 0), INVALID, "slice: the step is 0");
  EXPECT_POISON(quern_slice(x, 2, 0, 1, 1), SHAPE, "slice: axis 2 is out of range for (3, 4) of rank 2");
  EXPECT(quern_select(x, 1, -1), 3, 7, 11);
  EXPECT(quern_select(x, 0, 1), 4, 5, 6, 7);
  EXPECT_TYPE(quern_select(ZEROS(F32, 1), 0, 0), F32, SCALAR);
  EXPECT_POISON(quern_select(x, 0, 3), SHAPE, "select: index 3 is out of range for axis 0 of (3, 4)");
  EXPECT_POISON(quern_select(x, 0, -4), SHAPE, "select: index -4 is out of range");
  EXPECT_POISON(quern_select(x, 2, 0), SHAPE, "select: axis 2 is out of range");
}

static void turns(void **state) {
  (void)state;
  quern_tensor *x = COUNTED(2, 3);
  EXPECT(quern_flip(x, QUERN_LIST(1)), 2, 1, 0, 5, 4, 3);
  EXPECT(quern_flip(x, QUERN_LIST(-1, 0)), 5, 4, 3, 2, 1, 0);
  assert_ptr_equal(quern_flip(x, QUERN_ALL), quern_flip(x, QUERN_LIST(0, 1)));
  EXPECT_POISON(quern_flip(x, QUERN_LIST(0, -2)), SHAPE, "flip: axis 0 of (2, 3) is listed twice in (0, -2)");
  EXPECT_POISON(quern_flip(x, 1, NULL), INVALID, "flip: a list of 1 axes is null");
  EXPECT_POISON(quern_flip(x, -1, NULL), INVALID, "flip: a list of -1 axes");
  EXPECT(quern_roll(x, 1, 1), 2, 0, 1, 5, 3, 4);
  EXPECT(quern_roll(x, 1, -1), 1, 2, 0, 4, 5, 3);
  assert_ptr_equal(quern_roll(x, 1, 4), quern_roll(x, 1, 1));
  assert_ptr_equal(quern_roll(x, 1, -2), quern_roll(x, 1, 1));
  assert_ptr_equal(quern_roll(x, 0, INT64_MIN), x);
  assert_ptr_equal(quern_roll(ZEROS(F32, 0), 0, 3), ZEROS(F32, 0));
  EXPECT_POISON(quern_roll(x, 2, 1), SHAPE, "roll: axis 2 is out of range");
  EXPECT_NULL_ERROR(quern_roll(NULL, 2, 1), "roll: the operand is null");
}

static void padding_and_tiles(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(1, 2), 1, 2);
  EXPECT(quern_pad(x, 2, (int64_t[]){1, 0}, (int64_t[]){0, 1}, 9), 9, 9, 9, 1, 2, 9);
  assert_ptr_equal(quern_pad(x, 2, (int64_t[]){0, 0}, (int64_t[]){0, 0}, 9), x);
  EXPECT(quern_pad(REALS(F32, DIMS(1), 1), 1, (int64_t[]){1}, (int64_t[]){1}, 9), 9, 1, 9);
  EXPECT_POISON(quern_pad(x, 1, (int64_t[]){0}, (int64_t[]){0}, 9), SHAPE, "pad: 1 axes for (1, 2) of rank 2");
  EXPECT_POISON(quern_pad(x, 2, (int64_t[]){0, -1}, (int64_t[]){0, 0}, 9), SHAPE, "pad: axis 1 of (1, 2) by -1 and 0");
  EXPECT_POISON(quern_pad(x, 2, (int64_t[]){0, INT64_MAX}, (int64_t[]){0, 0}, 9), OVERFLOW,
                "pad: axis 1 of (1, 2) by 9223372036854775807");
  EXPECT_POISON(quern_pad(x, 2, (int64_t[]){0, 0}, (int64_t[]){0, INT64_MAX - 2}, 9), OVERFLOW, "pad: ");
  EXPECT_POISON(quern_pad(x, 2, (int64_t[]){0, 1}, (int64_t[]){0, INT64_MAX - 2}, 9), OVERFLOW, "pad: axis 1 of");
  EXPECT_POISON(quern_pad(COUNTED(2), 1, NULL, NULL, 0), INVALID, "pad: the list lo is null");
  EXPECT(quern_pad(quern_scalar(ctx, QUERN_DTYPE_F32, 4), 0, NULL, NULL, 0), 4);
  EXPECT_POISON(quern_pad(x, 2, NULL, (int64_t[]){0, 0}, 9), INVALID, "pad: the list lo is null");
  EXPECT_POISON(quern_pad(x, 2, (int64_t[]){0, 0}, NULL, 9), INVALID, "pad: the list hi is null");
  EXPECT_POISON(quern_pad(COUNTED(2), 1, (int64_t[]){1}, (int64_t[]){0}, 0.5), INVALID,
                "pad: 0.5 is not a value of i32");
  quern_tensor *y = COUNTED(2, 2);
  EXPECT(quern_tile(y, QUERN_LIST(2, 1)), 0, 1, 2, 3, 0, 1, 2, 3);
  EXPECT(quern_tile(y, QUERN_LIST(1, 2)), 0, 1, 0, 1, 2, 3, 2, 3);
  EXPECT(quern_tile(y, QUERN_LIST(3)), 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3);
  assert_ptr_equal(quern_tile(y, QUERN_ALL), y);
  EXPECT_TYPE(quern_tile(y, QUERN_LIST(3)), I32, DIMS(2, 6));
  EXPECT_TYPE(quern_tile(y, QUERN_LIST(2, 1, 3)), I32, DIMS(2, 2, 6));
  EXPECT_TYPE(quern_tile(y, QUERN_LIST(0, 3)), I32, DIMS(0, 6));
  assert_ptr_equal(quern_tile(y, QUERN_LIST(1, 1)), y);
  EXPECT(quern_tile(REALS(F32, DIMS(1, 2), 5, 6), QUERN_LIST(1, 2)), 5, 6, 5, 6);
  quern_tensor *deep = quern_reshape(COUNTED(2, 2), QUERN_LIST(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2));
  EXPECT_TYPE(
      quern_reshape(quern_tile(deep, QUERN_LIST(2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2)), QUERN_LIST(-1)), I32,
      DIMS(64));
  EXPECT_POISON(quern_tile(y, QUERN_LIST(1, -1)), SHAPE, "tile: counts (1, -1) are not all at least 0");
  EXPECT_POISON(quern_tile(y, 2, NULL), INVALID, "tile: a list of 2 counts is null");
  EXPECT_POISON(quern_tile(y, 17, NULL), SHAPE, "tile: rank 17 is not in 0..16");
  EXPECT_POISON(quern_tile(y, QUERN_LIST(INT64_MAX)), OVERFLOW, "tile: (2, 2) 9223372036854775807 times is too large");
}

static void joins(void **state) {
  (void)state;
  quern_tensor *x = COUNTED(2, 2), *y = quern_add_scalar(COUNTED(2, 1), 10), *list[] = {x, y}, *same[] = {x, x};
  EXPECT(quern_concat(2, list, 1), 0, 1, 10, 2, 3, 11);
  EXPECT_TYPE(quern_concat(2, list, -1), I32, DIMS(2, 3));
  assert_ptr_equal(quern_concat(1, list, 0), x);
  EXPECT(quern_stack(2, same, 0), 0, 1, 2, 3, 0, 1, 2, 3);
  EXPECT(quern_stack(2, same, -1), 0, 0, 1, 1, 2, 2, 3, 3);
  EXPECT_TYPE(quern_stack(2, same, 1), I32, DIMS(2, 2, 2));
  EXPECT_POISON(quern_concat(2, list, 0), SHAPE,
                "concat: shapes differ beyond axis 0: operand 0 is (2, 2), operand 1 is (2, 1)");
  EXPECT_POISON(quern_concat(2, list, 2), SHAPE, "concat: axis 2 is out of range");
  EXPECT_POISON(quern_concat(2, (quern_tensor *[]){x, NULL}, 0), INVALID, "concat: operand 1 is null");
  EXPECT_POISON(quern_concat(2, (quern_tensor *[]){x, ZEROS(F32, 2, 2)}, 0), DTYPE, "concat: dtypes differ");
  EXPECT_POISON(quern_concat(1, (quern_tensor *[]){quern_scalar(ctx, QUERN_DTYPE_F32, 1)}, 0), SHAPE,
                "concat: axis 0 is out of range");
  EXPECT_NULL_ERROR(quern_concat(0, list, 0), "concat: no operands");
  EXPECT_NULL_ERROR(quern_concat(2, NULL, 0), "concat: the list of operands is null");
  EXPECT_POISON(quern_stack(2, list, 0), SHAPE, "stack: shapes differ: operand 0 is (2, 2), operand 1 is (2, 1)");
  EXPECT_POISON(quern_stack(2, same, 3), SHAPE, "stack: axis 3 is out of range for a result of rank 3");
  EXPECT_POISON(quern_stack(2, (quern_tensor *[]){x, ZEROS(F32, 2, 2)}, 0), DTYPE, "stack: dtypes differ");
  EXPECT_NULL_ERROR(quern_stack(-1, list, 0), "stack: no operands");
}

static void parts(void **state) {
  (void)state;
  quern_tensor *x = COUNTED(2, 3), *p[3] = {NULL, NULL, NULL};
  assert_int_equal(quern_split(x, -1, 3, (int64_t[]){1, 0, 2}, p), QUERN_STATUS_OK);
  EXPECT(p[0], 0, 3);
  EXPECT_TYPE(p[1], I32, DIMS(2, 0));
  EXPECT(p[2], 1, 2, 4, 5);
  assert_int_equal(quern_split(x, 0, 2, (int64_t[]){1, 1}, p), QUERN_STATUS_OK);
  EXPECT(p[0], 0, 1, 2);
  EXPECT(p[1], 3, 4, 5);
  const struct {
    quern_tensor *x;
    int axis, n;
    const int64_t *sizes;
    quern_tensor **parts;
    quern_status status;
    const char *words;
  } wrong[] = {
      {x, 1, 2, (int64_t[]){1, 1}, p, QUERN_STATUS_SHAPE, "split: 2 sizes (1, 1) are no parts of axis 1 of (2, 3)"},
      {x, 1, 2, (int64_t[]){4, -1}, p, QUERN_STATUS_SHAPE, "split: 2 sizes (4, -1) are no parts"},
      {x, 1, 2, (int64_t[]){INT64_MAX, 4}, p, QUERN_STATUS_SHAPE, "are no parts"},
      {x, 2, 1, (int64_t[]){1}, p, QUERN_STATUS_SHAPE, "split: axis 2 is out of range"},
      {x, 1, 0, (int64_t[]){1}, p, QUERN_STATUS_INVALID, "split: no parts"},
      {x, 1, 1, NULL, p, QUERN_STATUS_INVALID, "split: the sizes are null"},
      {x, 1, 1, (int64_t[]){3}, NULL, QUERN_STATUS_INVALID, "split: the place for the parts is null"},
      {NULL, 1, 1, (int64_t[]){3}, p, QUERN_STATUS_INVALID, "split: the operand is null"},
      {&ir_poison, 1, 1, (int64_t[]){3}, p, QUERN_STATUS_INVALID, "split: the operand is poison"},
  };
  for (size_t i = 0; i < BASE_COUNT(wrong); i++) {
    p[0] = x;
    assert_int_equal(quern_split(wrong[i].x, wrong[i].axis, wrong[i].n, wrong[i].sizes, wrong[i].parts),
                     wrong[i].status);
    if (strstr(quern_last_error(), wrong[i].words) == NULL) print_error("%s\n", quern_last_error());
    assert_non_null(strstr(quern_last_error(), wrong[i].words));
    if (wrong[i].n > 0 && wrong[i].sizes != NULL && wrong[i].parts != NULL) assert_ptr_equal(p[0], &ir_poison);
  }
  /* an earlier error is reported first */
  (void)quern_exp(x);
  assert_int_equal(quern_split(x, 1, 1, (int64_t[]){3}, p), QUERN_STATUS_DTYPE);
  assert_ptr_equal(p[0], x);
}

static void blocks(void **state) {
  (void)state;
  quern_tensor *x = COUNTED(3, 4), *one = quern_scalar(ctx, QUERN_DTYPE_I32, 1),
               *far = quern_scalar(ctx, QUERN_DTYPE_I64, 9);
  quern_tensor *start[] = {one, far}, *u = REALS(I32, DIMS(1, 2), 70, 71);
  EXPECT(quern_slice_at(x, 2, start, (int64_t[]){2, 2}), 6, 7, 10, 11);
  EXPECT_TYPE(quern_slice_at(x, 2, start, (int64_t[]){0, 4}), I32, DIMS(0, 4));
  EXPECT(quern_update_at(x, u, 2, start), 0, 1, 2, 3, 4, 5, 70, 71, 8, 9, 10, 11);
  EXPECT_POISON(quern_slice_at(x, 1, start, (int64_t[]){2}), SHAPE, "slice_at: 1 starts for (3, 4) of rank 2");
  EXPECT_POISON(quern_slice_at(x, 2, NULL, (int64_t[]){2, 2}), INVALID, "slice_at: the list of starts is null");
  EXPECT_POISON(quern_slice_at(x, 2, start, NULL), INVALID, "slice_at: the list of sizes is null");
  EXPECT_POISON(quern_slice_at(x, 2, start, (int64_t[]){2, 5}), SHAPE,
                "slice_at: a block of (2, 5) does not fit into (3, 4)");
  EXPECT_POISON(quern_slice_at(x, 2, start, (int64_t[]){2, -1}), SHAPE, "slice_at: a block of (2, -1)");
  EXPECT_POISON(quern_slice_at(x, 2, (quern_tensor *[]){one, NULL}, (int64_t[]){1, 1}), INVALID,
                "slice_at: start 1 is null");
  EXPECT_POISON(quern_slice_at(x, 2, (quern_tensor *[]){one, x}, (int64_t[]){1, 1}), DTYPE,
                "slice_at: start 1 is i32(3, 4), must be an integer scalar");
  EXPECT_POISON(quern_slice_at(x, 2, (quern_tensor *[]){quern_scalar(ctx, QUERN_DTYPE_F32, 1), one}, (int64_t[]){1, 1}),
                DTYPE, "start 0 is f32()");
  EXPECT_POISON(quern_update_at(x, ZEROS(F32, 1, 2), 2, start), DTYPE,
                "update_at: dtypes differ: x is i32(3, 4), u is f32(1, 2)");
  EXPECT_POISON(quern_update_at(x, ZEROS(I32, 2), 2, start), SHAPE, "update_at: ranks differ: x is (3, 4), u is (2,)");
  EXPECT_POISON(quern_update_at(x, ZEROS(I32, 1, 5), 2, start), SHAPE,
                "update_at: a block of (1, 5) does not fit into (3, 4)");
  EXPECT_POISON(quern_update_at(x, u, 2, NULL), INVALID, "update_at: the list of starts is null");
  assert_true(quern_tensor_is_poison(quern_slice_at(x, 2, (quern_tensor *[]){one, &ir_poison}, (int64_t[]){1, 1})));
  assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
}

static void windows(void **state) {
  (void)state;
  quern_tensor *x = COUNTED(6), *m = COUNTED(3, 4);
  EXPECT(quern_window(x, QUERN_LIST(0), (int64_t[]){2}, (int64_t[]){2}, NULL), 0, 1, 2, 3, 4, 5);
  EXPECT(quern_window(x, QUERN_LIST(0), (int64_t[]){3}, NULL, (int64_t[]){2}), 0, 2, 4, 1, 3, 5);
  quern_tensor *both = quern_window(m, QUERN_LIST(0, 1), (int64_t[]){2, 3}, NULL, NULL);
  EXPECT_TYPE(both, I32, DIMS(2, 2, 2, 3));
  assert_ptr_equal(quern_window(m, QUERN_LIST(1, 0), (int64_t[]){3, 2}, NULL, NULL), quern_transpose(both, 2, 3));
  EXPECT_TYPE(quern_window(m, QUERN_LIST(-1), (int64_t[]){1}, (int64_t[]){3}, (int64_t[]){INT64_MAX}), I32,
              DIMS(3, 2, 1));
  EXPECT_TYPE(quern_window(quern_reshape(x, QUERN_LIST(6, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)), QUERN_LIST(0),
                           (int64_t[]){2}, NULL, NULL),
              I32, DIMS(5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2));
  EXPECT_POISON(quern_window(quern_reshape(x, QUERN_LIST(6, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)),
                             QUERN_LIST(0), (int64_t[]){2}, NULL, NULL),
                SHAPE, "would have rank 17, at most 16");
  EXPECT_POISON(quern_window(x, QUERN_LIST(0), (int64_t[]){7}, NULL, NULL), SHAPE,
                "window: a window of 7 dilated by 1 does not fit axis 0 of (6,)");
  EXPECT_POISON(quern_window(x, QUERN_LIST(0), (int64_t[]){2}, NULL, (int64_t[]){6}), SHAPE,
                "window of 2 dilated by 6 does not fit");
  EXPECT_POISON(quern_window(x, QUERN_LIST(0), (int64_t[]){INT64_MAX}, NULL, (int64_t[]){INT64_MAX}), SHAPE,
                "does not fit axis 0");
  EXPECT_POISON(quern_window(x, QUERN_LIST(0), (int64_t[]){0}, NULL, NULL), SHAPE,
                "size 0, stride 1, dilation 1 of axis 0 must be at least 1");
  EXPECT_POISON(quern_window(x, QUERN_LIST(0), (int64_t[]){1}, (int64_t[]){0}, NULL), SHAPE, "must be at least 1");
  EXPECT_POISON(quern_window(m, QUERN_LIST(0, -2), (int64_t[]){1, 1}, NULL, NULL), SHAPE,
                "window: axis 0 of (3, 4) is listed twice");
  EXPECT_POISON(quern_window(x, 0, NULL, NULL, NULL, NULL), INVALID, "window: no axes");
  EXPECT_POISON(quern_window(x, 1, NULL, (int64_t[]){1}, NULL, NULL), INVALID, "window: the axes are null");
  EXPECT_POISON(quern_window(x, QUERN_LIST(0), NULL, NULL, NULL), INVALID, "window: the sizes are null");
}

static void triangles(void **state) {
  (void)state;
  quern_tensor *x = quern_add_scalar(COUNTED(2, 3), 1);
  EXPECT(quern_triu(x, 0), 1, 2, 3, 0, 5, 6);
  EXPECT(quern_triu(x, 1), 0, 2, 3, 0, 0, 6);
  EXPECT(quern_triu(x, -1), 1, 2, 3, 4, 5, 6);
  EXPECT(quern_tril(x, 0), 1, 0, 0, 4, 5, 0);
  EXPECT(quern_tril(x, -1), 0, 0, 0, 4, 0, 0);
  EXPECT(quern_tril(x, INT64_MAX), 1, 2, 3, 4, 5, 6);
  EXPECT(quern_triu(x, INT64_MAX), 0, 0, 0, 0, 0, 0);
  EXPECT(quern_tril(x, INT64_MIN), 0, 0, 0, 0, 0, 0);
  EXPECT(quern_triu(x, INT64_MIN), 1, 2, 3, 4, 5, 6);
  EXPECT(quern_triu(COUNTED(2, 2, 2), 0), 0, 1, 0, 3, 4, 5, 0, 7);
  EXPECT(quern_tril(REALS(BOOL, DIMS(2, 2), 1, 1, 1, 1), 0), 1, 0, 1, 1);
  EXPECT_POISON(quern_triu(ZEROS(F32, 3), 0), SHAPE, "triu: (3,) has rank 1, must be at least 2");
  EXPECT_NULL_ERROR(quern_triu(NULL, 0), "triu: the operand is null");
  EXPECT_POISON(quern_tril(quern_scalar(ctx, QUERN_DTYPE_F32, 0), 0), SHAPE, "tril: () has rank 0");
  EXPECT_NULL_ERROR(quern_tril(NULL, 0), "tril: the operand is null");
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(shapes),  TEST(orders),   TEST(slices_as_in_python),
                                     TEST(slices),  TEST(turns),    TEST(padding_and_tiles),
                                     TEST(joins),   TEST(parts),    TEST(blocks),
                                     TEST(windows), TEST(triangles)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
