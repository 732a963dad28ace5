/* tests/ir/test_infer.c -- the types of every op's results, and every reason why there are none
** A case is a line of the text form. Its operands are the inputs below, its bodies the graphs below.
*/
#include "ir/ir_test.h"

static const char *const inputs[] = {
    "dtype=f32 shape=[2,3]",                             /* %0 */
    "dtype=f32 shape=[3,2]",                             /* %1 */
    "dtype=f64 shape=[2,3]",                             /* %2 */
    "dtype=i32 shape=[2,3]",                             /* %3 */
    "dtype=bool shape=[2,3]",                            /* %4 */
    "dtype=f32 shape=[]",                                /* %5 */
    "dtype=i64 shape=[]",                                /* %6 */
    "dtype=u64 shape=[]",                                /* %7 */
    "dtype=bool shape=[]",                               /* %8 */
    "dtype=f32 shape=[1,3]",                             /* %9 */
    "dtype=i32 shape=[5]",                               /* %10 */
    "dtype=i32 shape=[2,5]",                             /* %11 */
    "dtype=f32 shape=[2,3,4]",                           /* %12 */
    "dtype=f32 shape=[0,3]",                             /* %13 */
    "dtype=f32 shape=[2,5]",                             /* %14 */
    "dtype=f32 shape=[2,5,4]",                           /* %15 */
    "dtype=f32 shape=[4,3,2]",                           /* %16 */
    "dtype=f32 shape=[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", /* %17: rank 16 */
    "dtype=f32 shape=[7]",                               /* %18 */
    "dtype=i8 shape=[4611686018427387904]",              /* %19: 2^62 */
    "dtype=f32 shape=[3,2,2]", /* %20: windows of %18 with step 2 (3 of them), and one more axis */
    "dtype=f32 shape=[3,3]",   /* %21: windows of 3 of %18 with step 2 */
    "dtype=u32 shape=[2]",     /* %22 */
    "dtype=bool shape=[3,2]",  /* %23 */
    "dtype=f32 shape=[3]",     /* %24 */
    "dtype=u64 shape=[1]",     /* %25 */
    "dtype=i32 shape=[1,5]",   /* %26 */
};

static const char graphs[] =
    "fn @neg (%0: f32[]) {\n  %1 = neg %0\n  return %1\n}\n"
    "fn @two (%0: f32[]) {\n  %1 = neg %0\n  return %1 %0\n}\n"
    "fn @none (%0: f32[]) {\n  return\n}\n"
    "fn @wide (%0: f32[]) {\n  %1 = reshape %0 shape=[1]\n  return %1\n}\n"
    "fn @positive (%0: f32[]) {\n  %1 = const dtype=f32 shape=[] data={0}\n  %2 = lt %1 %0\n  return %2\n}\n"
    "fn @turn (%0: i64[], %1: f32[], %2: f32[3], %3: f64[2,3]) {\n  %4 = neg %1\n  return %4 %2 %0\n}\n"
    "fn @index (%0: i64[]) {\n  return %0\n}\n"
    "fn @float_index (%0: f32[]) {\n  return %0\n}\n"
    "fn @grows (%0: i64[], %1: f32[]) {\n  %2 = reshape %1 shape=[1]\n  return %2\n}\n"
    "fn @deep_rank (%0: i64[], %1: f32[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]) {\n  return %1\n}\n"
    "fn @turn_none (%0: i64[]) {\n  return\n}\n"
    "fn @drop (%0: i64[], %1: f32[]) {\n  return\n}\n"
    "fn @turn_huge (%0: i64[], %1: i8[4611686018427387904]) {\n  return %1\n}\n"
    "fn @pair (%0: f32[], %1: f32[]) {\n  %2 = add %0 %1\n  return %2\n}\n";

struct good {
  const char *line, *types;
};
struct bad {
  const char *line, *message;
  quern_status status;
};

#define D QUERN_STATUS_DTYPE
#define S QUERN_STATUS_SHAPE
#define I QUERN_STATUS_INVALID
#define O QUERN_STATUS_OVERFLOW

/* The line as the only node of a graph that may use the inputs. */
static quern_status parse_line(const char *line, struct ir_module *module) {
  struct base_str text;
  base_str_init(&text, &ctx->heap);
  base_str_printf(&text, "quern 1\n%s", graphs);
  for (size_t i = 0; i < BASE_COUNT(inputs); i++) base_str_printf(&text, "%%%zu = input name=\"x\" %s\n", i, inputs[i]);
  base_str_printf(&text, "%%100 = %s\nreturn %%100\n", line);
  assert_int_equal(base_str_status(&text), QUERN_STATUS_OK);
  quern_status status = ir_parse(ctx, text.at, text.n, module);
  base_str_fini(&text);
  return status;
}

static void check_good(const struct good *cases, size_t n) {
  for (size_t i = 0; i < n; i++) {
    struct ir_module module;
    quern_status status = parse_line(cases[i].line, &module);
    if (status != QUERN_STATUS_OK) print_error("%s: %s\n", cases[i].line, quern_last_error());
    assert_int_equal(status, QUERN_STATUS_OK);
    const struct ir_node *node = module.outputs[0]->node;
    struct base_str types;
    base_str_init(&types, &ctx->heap);
    for (int k = 0; k < node->n_out; k++) {
      base_str_printf(&types, "%s%s[", k > 0 ? " " : "", base_dtypes[node->out[k].dtype].name);
      for (int a = 0; a < node->out[k].rank; a++)
        base_str_printf(&types, "%s%lld", a > 0 ? "," : "", (long long)node->out[k].dims[a]);
      base_str_add(&types, "]");
    }
    if (strcmp(types.at, cases[i].types) != 0)
      print_error("%s: the types are %s, expected %s\n", cases[i].line, types.at, cases[i].types);
    assert_string_equal(types.at, cases[i].types);
    base_str_fini(&types);
  }
}

static void check_bad(const struct bad *cases, size_t n) {
  for (size_t i = 0; i < n; i++) {
    struct ir_module module;
    quern_status status = parse_line(cases[i].line, &module);
    bool right = status == cases[i].status && strstr(quern_last_error(), cases[i].message) != NULL;
    if (!right)
      print_error("%s: expected %s \"%s\", got %s: %s\n", cases[i].line, quern_status_name(cases[i].status),
                  cases[i].message, quern_status_name(status), status == QUERN_STATUS_OK ? "" : quern_last_error());
    assert_true(right);
    assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
  }
}

#define CHECK(list) _Generic((list)[0], struct good : check_good, struct bad : check_bad)

/* ---- leaves and elementwise ------------------------------------------------------------------------------------- */

static void test_leaves(void **state) {
  (void)state;
  static const struct good good[] = {
      {"input name=\"\" dtype=u16 shape=[0,7]", "u16[0,7]"},
      {"state name=\"s\" dtype=f8e4m3 shape=[]", "f8e4m3[]"},
      {"buffer dtype=f32 shape=[2]", "f32[2]"},
      {"const dtype=bool shape=[2] data={true,false}", "bool[2]"},
      {"const dtype=f32 shape=[0] data={}", "f32[0]"},
      {"iota dtype=i32 shape=[2,3] axis=1", "i32[2,3]"},
      {"iota dtype=f64 shape=[2] axis=0", "f64[2]"},
      {"random %7 %7 shape=[2,3] stream=0", "u32[2,3]"},
      {"random %7 %7 shape=[17179869184] stream=4294967295", "u32[17179869184]"},
  };
  static const struct bad bad[] = {
      {"input name=\"\" dtype=f32 shape=[2,-1]", "input: axis 1 would have size -1", S},
      {"input name=\"\" dtype=f32 shape=[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "input: rank 17 exceeds 16", S},
      {"state name=\"\" dtype=f64 shape=[4611686018427387904]",
       "state: a tensor of shape (4611686018427387904,) and dtype f64 has more", O},
      {"iota dtype=bool shape=[2] axis=0", "iota: does not admit bool, only numbers", D},
      {"iota dtype=i32 shape=[2] axis=1", "iota: axis 1 is out of range for rank 1", S},
      {"iota dtype=i32 shape=[2] axis=-1", "iota: axis -1 is out of range for rank 1", S},
      {"iota dtype=i32 shape=[] axis=0", "iota: axis 0 is out of range for rank 0", S},
      {"random %6 %7 shape=[2] stream=0", "random: the seed is i64(), must be a u64 scalar", D},
      {"random %7 %25 shape=[2] stream=0", "random: the step is u64(1,), must be a u64 scalar", D},
      {"random %7 %7 shape=[2] stream=-1", "random: stream -1 is not in 0..2^32-1", I},
      {"random %7 %7 shape=[2] stream=4294967296", "random: stream 4294967296 is not in 0..2^32-1", I},
      {"random %7 %7 shape=[17179869185] stream=0", "random: 17179869185 elements, a stream has 2^34", O},
  };
  CHECK(good)(good, BASE_COUNT(good));
  CHECK(bad)(bad, BASE_COUNT(bad));
}

static void test_elementwise(void **state) {
  (void)state;
  static const struct good good[] = {
      {"neg %0", "f32[2,3]"},
      {"neg %3", "i32[2,3]"},
      {"abs %3", "i32[2,3]"},
      {"sign %0", "f32[2,3]"},
      {"floor %2", "f64[2,3]"},
      {"ceil %0", "f32[2,3]"},
      {"round %0", "f32[2,3]"},
      {"trunc %0", "f32[2,3]"},
      {"exp %13", "f32[0,3]"},
      {"expm1 %0", "f32[2,3]"},
      {"log %0", "f32[2,3]"},
      {"log1p %0", "f32[2,3]"},
      {"sqrt %0", "f32[2,3]"},
      {"sin %5", "f32[]"},
      {"cos %0", "f32[2,3]"},
      {"tanh %0", "f32[2,3]"},
      {"erf %0", "f32[2,3]"},
      {"erfc %0", "f32[2,3]"},
      {"not %3", "i32[2,3]"},
      {"not %4", "bool[2,3]"},
      {"stop_grad %4", "bool[2,3]"},
      {"stop_grad %0", "f32[2,3]"},
      {"keep %4", "bool[2,3]"},
      {"keep %0", "f32[2,3]"},
      {"cast %0 dtype=i8", "i8[2,3]"},
      {"cast %4 dtype=f32", "f32[2,3]"},
      {"bitcast %0 dtype=i32", "i32[2,3]"},
      {"bitcast %4 dtype=u8", "u8[2,3]"},
      {"bitcast %4 dtype=bool", "bool[2,3]"},
      {"add %0 %0", "f32[2,3]"},
      {"sub %3 %3", "i32[2,3]"},
      {"mul %0 %0", "f32[2,3]"},
      {"div %3 %3", "i32[2,3]"},
      {"mod %0 %0", "f32[2,3]"},
      {"pow %0 %0", "f32[2,3]"},
      {"atan2 %0 %0", "f32[2,3]"},
      {"max %4 %4", "bool[2,3]"},
      {"min %0 %0", "f32[2,3]"},
      {"and %4 %4", "bool[2,3]"},
      {"or %3 %3", "i32[2,3]"},
      {"xor %4 %4", "bool[2,3]"},
      {"shl %3 %3", "i32[2,3]"},
      {"shr %3 %3", "i32[2,3]"},
      {"eq %0 %0", "bool[2,3]"},
      {"lt %3 %3", "bool[2,3]"},
      {"le %4 %4", "bool[2,3]"},
      {"select %4 %0 %0", "f32[2,3]"},
      {"select %8 %8 %8", "bool[]"},
  };
  static const struct bad bad[] = {
      {"neg %4", "neg: does not admit bool, only numbers HINT: quern_cast converts", D},
      {"exp %3", "exp: does not admit i32, only floats", D},
      {"not %0", "not: does not admit f32, only integers and bool", D},
      {"shl %4 %4", "shl: does not admit bool, only integers", D},
      {"select %3 %0 %0", "select: does not admit i32, only bool", D},
      {"pow %3 %3", "pow: does not admit i32, only floats", D},
      {"and %0 %0", "and: does not admit f32", D},
      {"add %0 %2", "add: dtypes differ: f32(2, 3) and f64(2, 3) HINT: quern_cast makes them equal", D},
      {"sub %0 %1", "sub: shapes differ: f32(2, 3) and f32(3, 2)", S},
      {"mul %0 %5", "mul: shapes differ: f32(2, 3) and f32()", S},
      {"eq %0 %3", "eq: dtypes differ", D},
      {"lt %0 %9", "lt: shapes differ", S},
      {"select %4 %0 %2", "select: dtypes differ", D},
      {"select %4 %0 %1", "select: shapes differ", S},
      {"select %23 %0 %0", "select: the condition is bool(3, 2), the values are f32(2, 3)", S},
      {"bitcast %0 dtype=f64", "bitcast: f32 has 4 bytes, f64 has 8", D},
      {"bitcast %19 dtype=bool", "bitcast: arbitrary bits are no bool", D},
      {"cast %19 dtype=f32", "cast: a tensor of shape (4611686018427387904,) and dtype f32 has more", O},
  };
  CHECK(good)(good, BASE_COUNT(good));
  CHECK(bad)(bad, BASE_COUNT(bad));
}

/* ---- movement --------------------------------------------------------------------------------------------------- */

static void test_movement(void **state) {
  (void)state;
  static const struct good good[] = {
      {"reshape %0 shape=[3,2]", "f32[3,2]"},
      {"reshape %5 shape=[]", "f32[]"},
      {"reshape %13 shape=[7,0]", "f32[7,0]"},
      {"permute %12 axes=[2,0,1]", "f32[4,2,3]"},
      {"permute %5 axes=[]", "f32[]"},
      {"broadcast %9 shape=[4,3]", "f32[4,3]"},
      {"broadcast %9 shape=[0,3]", "f32[0,3]"},
      {"pad %0 %5 lo=[1,0] hi=[2,0] mid=[3,1]", "f32[8,5]"},
      {"pad %13 %5 lo=[1,0] hi=[1,0] mid=[5,0]", "f32[2,3]"},
      {"pad %4 %8 lo=[0,0] hi=[0,0] mid=[0,0]", "bool[2,3]"},
      {"slice %12 lo=[0,1,0] hi=[2,3,4] step=[1,1,3]", "f32[2,2,2]"},
      {"slice %12 lo=[2,3,0] hi=[2,3,4] step=[1,1,4]", "f32[0,0,1]"},
      {"slice %18 lo=[1] hi=[7] step=[9223372036854775807]", "f32[1]"},
      {"slice %18 lo=[0] hi=[7] step=[3]", "f32[3]"},
      {"flip %12 axes=[0,2]", "f32[2,3,4]"},
      {"flip %12 axes=[]", "f32[2,3,4]"},
      {"concat %0 %9 %13 axis=0", "f32[3,3]"},
      {"concat %4 axis=1", "bool[2,3]"},
      {"slice_at %0 %6 %7 shape=[1,3]", "f32[1,3]"},
      {"slice_at %5 shape=[]", "f32[]"},
      {"slice_at %0 %6 %6 shape=[0,0]", "f32[0,0]"},
      {"update_at %0 %9 %6 %6", "f32[2,3]"},
      {"update_at %5 %5", "f32[]"},
      {"window %18 axes=[0] size=[3] step=[2] dilate=[1]", "f32[3,3]"},
      {"window %18 axes=[0] size=[3] step=[2] dilate=[3]", "f32[1,3]"},
      {"window %12 axes=[0,2] size=[2,2] step=[1,2] dilate=[1,1]", "f32[1,3,2,2,2]"},
      {"window %12 axes=[] size=[] step=[] dilate=[]", "f32[2,3,4]"},
      {"col2im %21 shape=[7] axes=[0] step=[2] dilate=[1]", "f32[7]"},
      {"col2im %21 shape=[8] axes=[0] step=[2] dilate=[1]", "f32[8]"},
      {"col2im %20 shape=[7,2] axes=[0] step=[2] dilate=[2]", "f32[7,2]"},
  };
  static const struct bad bad[] = {
      {"reshape %0 shape=[4,2]", "reshape: f32(2, 3) has 6 elements, (4, 2) has 8", S},
      {"reshape %0 shape=[-6,-1]", "reshape: axis 0 would have size -6", S},
      {"permute %12 axes=[0,1]", "permute: axes has 2 numbers, expected 3", S},
      {"permute %12 axes=[0,1,3]", "permute: axis 3 is out of range for rank 3", S},
      {"permute %12 axes=[0,1,1]", "permute: axes (0, 1, 1) repeat 1", S},
      {"broadcast %0 shape=[4,3]", "broadcast: f32(2, 3) does not stretch to (4, 3): axis 0 is 2, not 1", S},
      {"broadcast %9 shape=[3]", "broadcast: shape has 1 numbers, expected 2", S},
      {"broadcast %9 shape=[-4,3]", "broadcast: axis 0 would have size -4", S},
      {"pad %0 %0 lo=[0,0] hi=[0,0] mid=[0,0]", "pad: the fill is f32(2, 3), must be a f32 scalar", D},
      {"pad %0 %6 lo=[0,0] hi=[0,0] mid=[0,0]", "pad: the fill is i64(), must be a f32 scalar", D},
      {"pad %0 %5 lo=[0] hi=[0,0] mid=[0,0]", "pad: lo has 1 numbers, expected 2", S},
      {"pad %0 %5 lo=[0,0] hi=[0] mid=[0,0]", "pad: hi has 1 numbers, expected 2", S},
      {"pad %0 %5 lo=[0,0] hi=[0,0] mid=[0]", "pad: mid has 1 numbers, expected 2", S},
      {"pad %0 %5 lo=[0,-1] hi=[0,0] mid=[0,0]", "pad: lo[1] is -1, must be at least 0", S},
      {"pad %0 %5 lo=[0,0] hi=[-1,0] mid=[0,0]", "pad: hi[0] is -1, must be at least 0", S},
      {"pad %0 %5 lo=[0,0] hi=[0,0] mid=[-1,0]", "pad: mid[0] is -1, must be at least 0", S},
      {"pad %12 %5 lo=[0,0,0] hi=[0,0,0] mid=[0,9223372036854775807,0]",
       "pad: axis 1 of f32(2, 3, 4) padded by 0, 0, 9223372036854775807 is too large", O},
      {"pad %0 %5 lo=[9223372036854775807,0] hi=[0,0] mid=[0,0]", "is too large", O},
      {"pad %0 %5 lo=[9223372036854775800,0] hi=[100,0] mid=[0,0]", "is too large", O},
      {"slice %0 lo=[0] hi=[2,3] step=[1,1]", "slice: lo has 1 numbers, expected 2", S},
      {"slice %0 lo=[0,0] hi=[2] step=[1,1]", "slice: hi has 1 numbers, expected 2", S},
      {"slice %0 lo=[0,0] hi=[2,3] step=[1]", "slice: step has 1 numbers, expected 2", S},
      {"slice %0 lo=[0,0] hi=[2,3] step=[1,0]", "slice: step[1] is 0, must be at least 1", S},
      {"slice %0 lo=[0,0] hi=[2,4] step=[1,1]", "slice: 0 to 4 is outside axis 1 of f32(2, 3)", S},
      {"slice %0 lo=[0,-1] hi=[2,3] step=[1,1]", "slice: -1 to 3 is outside axis 1", S},
      {"slice %0 lo=[2,0] hi=[1,3] step=[1,1]", "slice: 2 to 1 is outside axis 0", S},
      {"flip %0 axes=[2]", "flip: axis 2 is out of range for rank 2", S},
      {"flip %0 axes=[1,0]", "flip: axes (1, 0) are not increasing", S},
      {"flip %0 axes=[1,1]", "flip: axes (1, 1) are not increasing", S},
      {"flip %0 axes=[0,1,1]", "flip: 3 axes for rank 2", S},
      {"concat axis=0", "concat: no sources", I},
      {"concat %0 %0 axis=2", "concat: axis 2 is out of range for rank 2", S},
      {"concat %0 %2 axis=0", "concat: source 0 is f32(2, 3), source 1 is f64(2, 3) HINT: quern_cast", D},
      {"concat %0 %12 axis=0", "source 1 is f32(2, 3, 4): ranks differ", S},
      {"concat %0 %0 %1 axis=0", "concat along axis 0: source 0 is f32(2, 3), source 2 is f32(3, 2): axis 1 differs",
       S},
      {"concat %19 %19 axis=0", "concat: axis 0 is too large", O},
      {"slice_at shape=[1]", "slice_at: no sources", I},
      {"slice_at %0 %6 shape=[1,1]", "slice_at: 1 starts for f32(2, 3), needs one an axis", I},
      {"slice_at %0 %6 %6 %6 shape=[1,1]", "slice_at: 3 starts", I},
      {"slice_at %0 %6 %5 shape=[1,1]", "slice_at: a start is f32(), must be of an integer dtype", D},
      {"slice_at %0 %6 %8 shape=[1,1]", "slice_at: a start is bool()", D},
      {"slice_at %0 %6 %10 shape=[1,1]", "slice_at: start 1 is i32(5,), must be a scalar", S},
      {"slice_at %0 %6 %6 shape=[1]", "slice_at: a block (1,) of f32(2, 3): ranks differ", S},
      {"slice_at %0 %6 %6 shape=[1,4]", "slice_at: a block (1, 4) does not fit into f32(2, 3)", S},
      {"slice_at %0 %6 %6 shape=[1,-1]", "slice_at: a block (1, -1) does not fit into f32(2, 3)", S},
      {"update_at %0", "update_at: 1 sources, needs at least 2", I},
      {"update_at %0 %2 %6 %6", "update_at: f64(2, 3) into f32(2, 3): dtypes differ", D},
      {"update_at %0 %9 %6", "update_at: 1 starts for f32(2, 3)", I},
      {"update_at %0 %1 %6 %6", "update_at: a block (3, 2) does not fit into f32(2, 3)", S},
      {"update_at %0 %5 %6 %6", "update_at: a block () of f32(2, 3): ranks differ", S},
      {"window %18 axes=[1] size=[3] step=[2] dilate=[1]", "window: axis 1 is out of range for rank 1", S},
      {"window %18 axes=[0] size=[] step=[2] dilate=[1]", "window: size has 0 numbers, expected 1", S},
      {"window %18 axes=[0] size=[3] step=[] dilate=[1]", "window: step has 0 numbers, expected 1", S},
      {"window %18 axes=[0] size=[3] step=[2] dilate=[]", "window: dilate has 0 numbers, expected 1", S},
      {"window %18 axes=[0] size=[0] step=[2] dilate=[1]", "window: size[0] is 0, must be at least 1", S},
      {"window %18 axes=[0] size=[3] step=[0] dilate=[1]", "window: step[0] is 0, must be at least 1", S},
      {"window %18 axes=[0] size=[3] step=[2] dilate=[0]", "window: dilate[0] is 0, must be at least 1", S},
      {"window %18 axes=[0] size=[3] step=[1] dilate=[4]",
       "window: a window of 3 dilated by 4 spans 9, axis 0 of f32(7,) has 7", S},
      {"window %18 axes=[0] size=[3] step=[1] dilate=[9223372036854775807]",
       "window: a window of 3 dilated by 9223372036854775807 is too large", O},
      {"window %17 axes=[3] size=[1] step=[1] dilate=[1]", "window: rank 17 exceeds 16", S},
      {"col2im %4 shape=[7] axes=[0] step=[2] dilate=[1]", "col2im: does not admit bool", D},
      {"col2im %21 shape=[7,1] axes=[0] step=[2] dilate=[1]",
       "col2im: f32(3, 3) has rank 2, (7, 1) with 1 windows needs 3", S},
      {"col2im %21 shape=[9] axes=[0] step=[2] dilate=[1]",
       "col2im: axis 0 of f32(3, 3) has 3, folding to (9,) needs 4", S},
      {"col2im %20 shape=[7,3] axes=[0] step=[2] dilate=[1]", "col2im: axis 1 of f32(3, 2, 2) has 2", S},
      {"col2im %21 shape=[2] axes=[0] step=[2] dilate=[1]", "col2im: windows of f32(3, 3) do not fit into (2,)", S},
      {"col2im %21 shape=[7] axes=[0] step=[0] dilate=[1]", "col2im: step[0] is 0", S},
      {"col2im %21 shape=[7] axes=[1] step=[1] dilate=[1]", "col2im: axis 1 is out of range for rank 1", S},
      {"col2im %21 shape=[7] axes=[0] step=[1] dilate=[9223372036854775807]", "is too large", O},
      {"col2im %21 shape=[-7] axes=[0] step=[1] dilate=[1]", "col2im: axis 0 would have size -7", S},
  };
  CHECK(good)(good, BASE_COUNT(good));
  CHECK(bad)(bad, BASE_COUNT(bad));
}

static void test_indices(void **state) {
  (void)state;
  static const struct good good[] = {
      {"gather %12 %10 axis=1 batch=0", "f32[2,5,4]"},
      {"gather %12 %11 axis=1 batch=1", "f32[2,5,4]"},
      {"gather %12 %11 axis=2 batch=0", "f32[2,3,2,5]"},
      {"gather %12 %11 axis=2 batch=1", "f32[2,3,5]"},
      {"gather %12 %6 axis=0 batch=0", "f32[3,4]"},
      {"gather %17 %26 axis=1 batch=1", "f32[1,5,1,1,1,1,1,1,1,1,1,1,1,1,1,1]"},
      {"gather %4 %22 axis=0 batch=0", "bool[2,3]"},
      {"scatter %12 %10 %15 axis=1 batch=0 reduce=sum", "f32[2,3,4]"},
      {"scatter %12 %11 %15 axis=1 batch=1 reduce=set", "f32[2,3,4]"},
      {"scatter %0 %6 %24 axis=0 batch=0 reduce=min", "f32[2,3]"},
      {"scatter %4 %22 %4 axis=0 batch=0 reduce=max", "bool[2,3]"},
  };
  static const struct bad bad[] = {
      {"gather %12 %0 axis=1 batch=0", "gather: the index is f32(2, 3), must be of an integer dtype", D},
      {"gather %12 %4 axis=1 batch=0", "gather: the index is bool(2, 3)", D},
      {"gather %12 %10 axis=3 batch=0", "gather: axis 3 is out of range for rank 3", S},
      {"gather %12 %11 axis=0 batch=1", "gather: batch is 1 with axis 0 of f32(2, 3, 4) and indices i32(2, 5)", S},
      {"gather %12 %10 axis=2 batch=2", "gather: batch is 2", S},
      {"gather %12 %10 axis=2 batch=-1", "gather: batch is -1", S},
      {"gather %12 %10 axis=1 batch=1", "gather: batch axis 0 of f32(2, 3, 4) and of indices i32(5,) differ", S},
      {"gather %17 %11 axis=0 batch=0", "gather: rank 17 exceeds 16", S},
      {"scatter %12 %10 %15 axis=1 batch=0 reduce=prod", "scatter: reduce is 1, must be sum, max, min or set", I},
      {"scatter %4 %22 %4 axis=0 batch=0 reduce=sum", "scatter: sum of bool HINT: max is or", D},
      {"scatter %0 %22 %2 axis=0 batch=0 reduce=sum", "scatter: f64(2, 3) into f32(2, 3): dtypes differ", D},
      {"scatter %0 %22 %1 axis=0 batch=0 reduce=sum",
       "scatter: updates are f32(3, 2), must have shape (2, 3) for f32(2, 3) at indices u32(2,)", S},
      {"scatter %0 %22 %12 axis=0 batch=0 reduce=sum", "scatter: updates are f32(2, 3, 4)", S},
      {"scatter %0 %0 %0 axis=0 batch=0 reduce=sum", "scatter: the index is f32(2, 3)", D},
  };
  CHECK(good)(good, BASE_COUNT(good));
  CHECK(bad)(bad, BASE_COUNT(bad));
}

/* ---- reductions, order, contraction ----------------------------------------------------------------------------- */

static void test_reductions(void **state) {
  (void)state;
  static const struct good good[] = {
      {"reduce %12 reduce=sum axes=[0,2]", "f32[3]"},
      {"reduce %12 reduce=prod axes=[]", "f32[2,3,4]"},
      {"reduce %4 reduce=max axes=[0,1]", "bool[]"},
      {"reduce %4 reduce=min axes=[1]", "bool[2]"},
      {"reduce %13 reduce=max axes=[0]", "f32[3]"},
      {"argreduce %12 reduce=max axis=1", "i64[2,4]"},
      {"argreduce %4 reduce=min axis=0", "i64[3]"},
      {"argreduce %13 reduce=min axis=1", "i64[0]"},
      {"scan %12 reduce=prod axis=2 reverse=1", "f32[2,3,4]"},
      {"scan %4 reduce=min axis=0 reverse=0", "bool[2,3]"},
      {"sort %0 axis=1 reverse=1", "f32[2,3] i64[2,3]"},
      {"sort %4 axis=0 reverse=0", "bool[2,3] i64[2,3]"},
      {"dot %0 %1 a_batch=[] b_batch=[] a_sum=[1] b_sum=[0] reduce=sum combine=mul", "f32[2,2]"},
      {"dot %12 %16 a_batch=[2,0] b_batch=[0,2] a_sum=[1] b_sum=[1] reduce=max combine=add", "f32[4,2]"},
      {"dot %12 %16 a_batch=[2] b_batch=[0] a_sum=[] b_sum=[] reduce=sum combine=mul", "f32[4,2,3,3,2]"},
      {"dot %12 %16 a_batch=[] b_batch=[] a_sum=[0,1,2] b_sum=[2,1,0] reduce=prod combine=min", "f32[]"},
      {"dot %4 %4 a_batch=[0] b_batch=[0] a_sum=[1] b_sum=[1] reduce=max combine=min", "bool[2]"},
      {"dot %3 %3 a_batch=[0] b_batch=[0] a_sum=[1] b_sum=[1] reduce=sum combine=max", "i32[2]"},
  };
  static const struct bad bad[] = {
      {"reduce %0 reduce=set axes=[0]", "reduce: reduce is 4, must be sum, prod, max or min", I},
      {"reduce %4 reduce=sum axes=[0]", "reduce: sum of bool HINT: max is or, min is and; quern_cast counts", D},
      {"reduce %4 reduce=prod axes=[0]", "reduce: prod of bool", D},
      {"reduce %0 reduce=sum axes=[1,0]", "reduce: axes (1, 0) are not increasing", S},
      {"reduce %0 reduce=sum axes=[2]", "reduce: axis 2 is out of range for rank 2", S},
      {"argreduce %0 reduce=sum axis=0", "argreduce: reduce is 0, must be max or min", I},
      {"argreduce %0 reduce=max axis=2", "argreduce: axis 2 is out of range", S},
      {"argreduce %13 reduce=max axis=0", "argreduce: axis 0 of f32(0, 3) is empty", S},
      {"scan %0 reduce=set axis=0 reverse=0", "scan: reduce is 4", I},
      {"scan %4 reduce=sum axis=0 reverse=0", "scan: sum of bool", D},
      {"scan %0 reduce=sum axis=2 reverse=0", "scan: axis 2 is out of range", S},
      {"scan %0 reduce=sum axis=0 reverse=2", "scan: reverse is 2, must be 0 or 1", I},
      {"sort %0 axis=-1 reverse=0", "sort: axis -1 is out of range", S},
      {"sort %0 axis=0 reverse=-1", "sort: reverse is -1, must be 0 or 1", I},
      {"dot %0 %2 a_batch=[] b_batch=[] a_sum=[] b_sum=[] reduce=sum combine=mul", "dot: dtypes differ", D},
      {"dot %0 %1 a_batch=[] b_batch=[] a_sum=[1] b_sum=[0] reduce=set combine=mul", "dot: reduce is 4", I},
      {"dot %4 %4 a_batch=[] b_batch=[] a_sum=[1] b_sum=[1] reduce=sum combine=min", "dot: sum of bool", D},
      {"dot %4 %4 a_batch=[] b_batch=[] a_sum=[1] b_sum=[1] reduce=max combine=mul",
       "dot: mul of bool HINT: max is or, min is and", D},
      {"dot %4 %4 a_batch=[] b_batch=[] a_sum=[1] b_sum=[1] reduce=max combine=add", "dot: add of bool", D},
      {"dot %0 %0 a_batch=[0] b_batch=[] a_sum=[] b_sum=[] reduce=sum combine=mul",
       "dot: b_batch has 0 numbers, expected 1", S},
      {"dot %0 %0 a_batch=[] b_batch=[] a_sum=[1] b_sum=[] reduce=sum combine=mul",
       "dot: b_sum has 0 numbers, expected 1", S},
      {"dot %0 %0 a_batch=[] b_batch=[] a_sum=[2] b_sum=[0] reduce=sum combine=mul",
       "dot: axis 2 is out of range for rank 2", S},
      {"dot %0 %24 a_batch=[] b_batch=[] a_sum=[1] b_sum=[1] reduce=sum combine=mul",
       "dot: axis 1 is out of range for rank 1", S},
      {"dot %0 %0 a_batch=[0] b_batch=[0] a_sum=[0] b_sum=[1] reduce=sum combine=mul",
       "dot: axis 0 of a or 1 of b is named twice", S},
      {"dot %0 %0 a_batch=[0] b_batch=[0] a_sum=[1] b_sum=[0] reduce=sum combine=mul",
       "dot: axis 1 of a or 0 of b is named twice", S},
      {"dot %0 %0 a_batch=[] b_batch=[] a_sum=[1] b_sum=[0] reduce=sum combine=mul",
       "dot: sum axis 1 of a and 0 of b differ: f32(2, 3) and f32(2, 3)", S},
      {"dot %0 %1 a_batch=[0] b_batch=[0] a_sum=[] b_sum=[] reduce=sum combine=mul",
       "dot: batch axis 0 of a and 0 of b differ", S},
      {"dot %17 %5 a_batch=[] b_batch=[] a_sum=[0] b_sum=[0] reduce=sum combine=mul",
       "dot: axis 0 is out of range for rank 0", S},
      {"dot %17 %18 a_batch=[] b_batch=[] a_sum=[] b_sum=[] reduce=sum combine=mul", "dot: rank 17 exceeds 16", S},
      {"dot %19 %19 a_batch=[] b_batch=[] a_sum=[] b_sum=[] reduce=sum combine=mul", "has more than 2^63 - 1 bytes", O},
  };
  CHECK(good)(good, BASE_COUNT(good));
  CHECK(bad)(bad, BASE_COUNT(bad));
}

/* ---- control ---------------------------------------------------------------------------------------------------- */

static void test_control(void **state) {
  (void)state;
  static const struct good good[] = {
      {"loop %5 %0 %2 trip=2 carries=1 scanned=1 reverse=0 body=@turn", "f32[] f32[2,3] i64[2]"},
      {"loop trip=4 carries=0 scanned=0 reverse=1 body=@index", "i64[4]"},
      {"loop trip=0 carries=0 scanned=0 reverse=0 body=@index", "i64[0]"},
      {"while %5 carries=1 body=@neg other=@positive", "f32[]"},
      {"if %8 %5 body=@neg other=@float_index", "f32[]"},
      {"if %8 %5 body=@two other=@two", "f32[] f32[]"},
      {"composite %5 name=\"c\" ints=[] reals=[] body=@two", "f32[] f32[]"},
  };
  static const struct bad bad[] = {
      {"loop trip=-1 carries=0 scanned=0 reverse=0 body=@index", "loop: trip is -1", I},
      {"loop trip=1 carries=1 scanned=0 reverse=0 body=@index", "loop: 1 carries and 0 scanned of 0 sources", I},
      {"loop %5 trip=1 carries=1 scanned=1 reverse=0 body=@index", "loop: 1 carries and 1 scanned of 1 sources", I},
      {"loop %5 trip=1 carries=-1 scanned=0 reverse=0 body=@index", "loop: -1 carries and 0 scanned", I},
      {"loop %5 trip=1 carries=0 scanned=-1 reverse=0 body=@index", "loop: 0 carries and -1 scanned", I},
      {"loop trip=1 carries=0 scanned=0 reverse=2 body=@index", "loop: reverse is 2", I},
      {"loop %5 trip=1 carries=1 scanned=0 reverse=0 body=@index", "loop: the body takes 1 operands, there are 2", I},
      {"loop trip=1 carries=0 scanned=0 reverse=0 body=@float_index",
       "loop: the body's operand 0 is f32(), must be the i64 scalar index", S},
      {"loop %5 %0 %0 trip=2 carries=1 scanned=1 reverse=0 body=@turn",
       "loop: operand 3 of a body is f32(2, 3), the body takes f64(2, 3)", S},
      {"loop %6 %0 %2 trip=2 carries=1 scanned=1 reverse=0 body=@turn",
       "loop: operand 1 of a body is i64(), the body takes f32()", S},
      {"loop %5 %0 %2 trip=3 carries=1 scanned=1 reverse=0 body=@turn",
       "loop: scanned source 1 is f32(2, 3), its first axis must be trip = 3", S},
      {"loop %5 %5 %2 trip=2 carries=1 scanned=1 reverse=0 body=@turn",
       "loop: scanned source 1 is f32(), its first axis", S},
      {"loop %5 %14 %2 trip=2 carries=1 scanned=1 reverse=0 body=@turn",
       "loop: operand 2 of a body is f32(5,), the body takes f32(3,)", S},
      {"loop %5 trip=2 carries=1 scanned=0 reverse=0 body=@grows",
       "loop: carry 0 starts as f32(), the body gives f32(1,)", S},
      {"loop %5 trip=1 carries=1 scanned=0 reverse=0 body=@drop", "loop: the body gives 0 results for 1 carries", I},
      {"loop %17 trip=2 carries=0 scanned=0 reverse=0 body=@deep_rank", "loop: stacked result 0 would have rank 17", S},
      {"loop trip=2 carries=0 scanned=0 reverse=0 body=@turn_none", "loop: the body has no result", I},
      {"loop %19 trip=2 carries=0 scanned=0 reverse=0 body=@turn_huge", "has more than 2^63 - 1 bytes", O},
      {"while %5 carries=0 body=@neg other=@positive", "while: 0 carries of 1 sources", I},
      {"while %5 carries=2 body=@neg other=@positive", "while: 2 carries of 1 sources", I},
      {"while %5 %5 carries=1 body=@neg other=@positive", "while: the body takes 1 operands, there are 2", I},
      {"while %6 carries=1 body=@neg other=@positive", "while: operand 0 of a body is i64(), the body takes f32()", S},
      {"while %5 carries=1 body=@neg other=@index", "while: operand 0 of a body is f32(), the body takes i64()", S},
      {"while %5 carries=1 body=@neg other=@pair", "while: the condition takes 2 operands, there are 1", I},
      {"while %5 carries=1 body=@neg other=@neg", "while: the condition must give one bool scalar", S},
      {"while %5 carries=1 body=@neg other=@none", "while: the condition must give one bool scalar", S},
      {"while %5 carries=1 body=@two other=@positive", "while: the body gives 2 results for 1 carries", I},
      {"while %5 carries=1 body=@wide other=@positive", "while: carry 0 starts as f32(), the body gives f32(1,)", S},
      {"if body=@neg other=@neg", "if: the condition must be a bool scalar", S},
      {"if %4 %5 body=@neg other=@neg", "if: the condition must be a bool scalar", S},
      {"if %5 %5 body=@neg other=@neg", "if: does not admit f32, only bool", D},
      {"if %8 body=@neg other=@neg", "if: the first branch takes 1 operands, there are 0", I},
      {"if %8 %5 body=@neg other=@pair", "if: the second branch takes 2 operands, there are 1", I},
      {"if %8 %6 body=@neg other=@neg", "if: operand 0 of a body is i64(), the body takes f32()", S},
      {"if %8 %5 body=@neg other=@index", "if: operand 0 of a body is f32(), the body takes i64()", S},
      {"if %8 %5 body=@neg other=@two", "if: the branches give 1 and 2 results", I},
      {"if %8 %5 body=@none other=@none", "if: the branches give 0 and 0 results", I},
      {"if %8 %5 body=@neg other=@wide", "if: result 0 is f32() in one branch, f32(1,) in the other", S},
      {"composite %5 name=\"\" ints=[] reals=[] body=@neg", "composite: the name is empty", I},
      {"composite name=\"c\" ints=[] reals=[] body=@neg", "composite: the body takes 1 operands, there are 0", I},
      {"composite %6 name=\"c\" ints=[] reals=[] body=@neg",
       "composite: operand 0 of a body is i64(), the body takes f32()", S},
      {"composite %5 name=\"c\" ints=[] reals=[] body=@none", "composite c: the body has no result", I},
  };
  CHECK(good)(good, BASE_COUNT(good));
  CHECK(bad)(bad, BASE_COUNT(bad));
}

/* ---- what no text can say --------------------------------------------------------------------------------------- */

#define EXPECT_FAIL(t, STATUS, words)                                                                                  \
  do {                                                                                                                 \
    assert_true(ir_is_poison(t));                                                                                      \
    EXPECT_ERROR(quern_context_check(ctx), STATUS, words);                                                             \
  } while (0)

static void test_wrong_numbers(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(2), 1, 2), *word = INT(U64, 0);
  EXPECT_FAIL(ir_make(ctx, IR_PARAM, 0, NULL, ATTRS(.index = -1, .dtype = QUERN_DTYPE_F32)), INVALID,
              "param: index is -1");
  EXPECT_FAIL(IR_MAKE(ctx, IR_CAST, ATTRS(.dtype = (quern_dtype)99), x), DTYPE, "cast: 99 is no dtype");
  EXPECT_FAIL(IR_MAKE(ctx, IR_REDUCE, ATTRS(.reduce = (enum ir_reduce)9, .axes = DIMS(0)), x), INVALID,
              "reduce: reduce is 9");
  EXPECT_FAIL(IR_MAKE(ctx, IR_SCATTER, ATTRS(.reduce = IR_REDUCE_COUNT), x, word, REAL(F32, 1)), INVALID,
              "scatter: reduce is 5");
  EXPECT_FAIL(IR_MAKE(ctx, IR_DOT, ATTRS(.combine = IR_COMBINE_COUNT), x, x), INVALID, "dot: combine is 4");
  unsigned char two = 2;
  EXPECT_FAIL(ir_make(ctx, IR_CONST, 0, NULL, ATTRS(.dtype = QUERN_DTYPE_BOOL, .data = {1, &two})), INVALID,
              "const: a bool is 0 or 1, element 0 is 2");
  float data[2] = {1, 2};
  EXPECT_FAIL(ir_make(ctx, IR_CONST, 0, NULL, ATTRS(.dtype = QUERN_DTYPE_F32, .shape = DIMS(3), .data = {8, data})),
              INVALID, "const: 8 bytes of data, the type needs 12");
}

static void test_size_of_constants(void **state) {
  (void)state;
  static unsigned char zeros[IR_CONST_BYTES + 1];
  struct ir_attrs attrs = {.dtype = QUERN_DTYPE_I8, .shape = DIMS(IR_CONST_BYTES), .data = {IR_CONST_BYTES, zeros}};
  assert_false(ir_is_poison(ir_make(ctx, IR_CONST, 0, NULL, &attrs)));
  attrs = (struct ir_attrs){
      .dtype = QUERN_DTYPE_I8, .shape = DIMS(IR_CONST_BYTES + 1), .data = {IR_CONST_BYTES + 1, zeros}};
  EXPECT_FAIL(ir_make(ctx, IR_CONST, 0, NULL, &attrs), OVERFLOW,
              "const: 65537 bytes exceed 65536 HINT: quern_tensor_copy");
}

static void test_wrong_graphs(void **state) {
  (void)state;
  quern_tensor *x = REAL(F32, 1), *leaf = LEAF0(F32), *yes = INT(BOOL, 1);
  const struct ir_graph *same = GRAPH(TENSORS(leaf), TENSORS(leaf));
  EXPECT_FAIL(IR_MAKE(ctx, IR_COMPOSITE, ATTRS(.name = "c"), x), INVALID, "composite: the body is null");
  EXPECT_FAIL(IR_MAKE(ctx, IR_LOOP, ATTRS(.carries = 1), x), INVALID, "loop: the body is null");
  EXPECT_FAIL(IR_MAKE(ctx, IR_WHILE, ATTRS(.carries = 1, .body = same), x), INVALID, "while: the condition is null");
  EXPECT_FAIL(IR_MAKE(ctx, IR_IF, ATTRS(.other = same), yes, x), INVALID, "if: the first branch is null");
  EXPECT_FAIL(IR_MAKE(ctx, IR_IF, ATTRS(.body = same), yes, x), INVALID, "if: the second branch is null");

  quern_context *mine = ctx, *other = NULL;
  assert_int_equal(ir_context_new(&other, NULL), QUERN_STATUS_OK);
  ctx = other;
  quern_tensor *foreign = LEAF0(F32);
  const struct ir_graph *abroad = GRAPH(TENSORS(foreign), TENSORS(foreign));
  ctx = mine;
  EXPECT_FAIL(IR_MAKE(ctx, IR_COMPOSITE, ATTRS(.name = "c", .body = abroad), x), INVALID,
              "composite: the body belongs to another context");
  quern_context_free(other);
}

/* Subgraphs nest up to a limit. */
static void test_depth(void **state) {
  (void)state;
  quern_tensor *leaf = LEAF0(F32), *x = REAL(F32, 1);
  const struct ir_graph *graph = GRAPH(TENSORS(leaf), TENSORS(leaf));
  for (int depth = 0; depth < IR_MAX_DEPTH; depth++) {
    assert_int_equal(graph->depth, depth);
    quern_tensor *p = LEAF0(F32), *y = IR_MAKE(ctx, IR_COMPOSITE, ATTRS(.name = "nest", .body = graph), p);
    assert_false(ir_is_poison(y));
    graph = GRAPH(TENSORS(p), TENSORS(y));
  }
  EXPECT_FAIL(IR_MAKE(ctx, IR_COMPOSITE, ATTRS(.name = "nest", .body = graph), x), OVERFLOW,
              "composite: subgraphs nest deeper than 32");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_leaves),       TEST(test_elementwise), TEST(test_movement),      TEST(test_indices),
      TEST(test_reductions),   TEST(test_control),     TEST(test_wrong_numbers), TEST(test_size_of_constants),
      TEST(test_wrong_graphs), TEST(test_depth),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
