/* tests/ir/test_parse.c -- parsing: what is accepted, what is refused and how, texts cut anywhere, failing allocations */
#include "ir/ir_test.h"

static char *text_of(const char *path, size_t *n) {
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  char *text = malloc(1 << 16);
  *n = fread(text, 1, 1 << 16, file);
  fclose(file);
  return text;
}

/* ---- what is refused ------------------------------------------------------------------------------------ */

#define X "%0 = input name=\"x\" dtype=f32 shape=[2,3]\n"
#define F "fn @f (%0: f32[]) {\n  %1 = exp %0\n  return %1\n}\n"

static const struct {
  const char *text; /* after "quern 1\n" unless it begins with ^ */
  const char *message;
  quern_status status;
} wrong[] = {
    /* the head */
    {"^", "1:1: expected the text to begin with \"quern 1\", found the end of the text", QUERN_STATUS_PARSE},
    {"^quarn 1\n", "1:1: expected the text to begin with \"quern 1\", found 'quarn'", QUERN_STATUS_PARSE},
    {"^quern1\n", "1:1: expected the text to begin", QUERN_STATUS_PARSE},
    {"^quern\n", "1:6: expected a version, found the end of the line", QUERN_STATUS_PARSE},
    {"^quern 2\nreturn\n", "1:7: the text is of version 2, this Quern reads 1", QUERN_STATUS_PARSE},
    {"^quern 1 x\n", "1:9: expected the end of the line, found 'x'", QUERN_STATUS_PARSE},
    {"^quern 99999999999999999999\n",
     "1:7: expected a version, found '99999999999999999999', which is no 64-bit integer", QUERN_STATUS_PARSE},
    /* lines */
    {"", "2:1: expected a value such as %0, fn or return, found the end of the text", QUERN_STATUS_PARSE},
    {"x = y\n", "2:1: expected a value such as %0, fn or return, found 'x'", QUERN_STATUS_PARSE},
    {"\x01\n", "2:1: expected a value such as %0, fn or return, found the byte 0x01", QUERN_STATUS_PARSE},
    {"%x = neg\n", "2:2: expected the number of a value, found 'x'", QUERN_STATUS_PARSE},
    {"%-1 = neg\n", "2:2: expected the number of a value from 0 to 2147483647, found -1", QUERN_STATUS_PARSE},
    {"%2147483648 = neg\n", "2:2: expected the number of a value from 0 to 2147483647, found 2147483648",
     QUERN_STATUS_PARSE},
    {"%0.0 = neg\n", "2:2: expected the number of a value, found '0.0', which is no 64-bit integer",
     QUERN_STATUS_PARSE},
    {X "%0 = neg %0\n", "3:1: %0 is defined twice", QUERN_STATUS_PARSE},
    {"%0 neg\n", "2:4: expected '=', found 'neg'", QUERN_STATUS_PARSE},
    {"%0 = \n", "2:6: expected an operation, found the end of the line", QUERN_STATUS_PARSE},
    {X "%1 = sqtr %0\n", "3:6: expected an operation, found 'sqtr' HINT: did you mean 'sqrt'?", QUERN_STATUS_PARSE},
    {X "%1 = frobnicate %0\n", "3:6: expected an operation, found 'frobnicate'", QUERN_STATUS_PARSE},
    {"%0 = param index=0 dtype=f32 shape=[]\n", "2:6: param is written in the head of a fn", QUERN_STATUS_PARSE},
    {X "%1 = neg %0 x\n", "3:13: expected an attribute of neg, which has none, found 'x'", QUERN_STATUS_PARSE},
    {X "%1 = neg %0 , %0\n", "3:13: expected the end of the line, found ','", QUERN_STATUS_PARSE},
    {X "%1 = add %0\n", "3:6: add takes 2 operands, found 1", QUERN_STATUS_PARSE},
    {X "%1 = neg %0 %0\n", "3:6: neg takes 1 operand, found 2", QUERN_STATUS_PARSE},
    {X "%1 = cast dtype=f16 %0\n", "3:6: cast takes 1 operand, found 0", QUERN_STATUS_PARSE},
    {X "%1 = concat axis=0 %0\n", "3:20: operands come before the attributes", QUERN_STATUS_PARSE},
    /* references */
    {X "%1 = neg %2\n", "3:10: %2 is not defined before this line", QUERN_STATUS_PARSE},
    {X "%1 = neg %1\n", "3:10: %1 is not defined before this line", QUERN_STATUS_PARSE},
    {X "%1 = neg %0.1\n", "3:10: %0 (input) has 1 result, no .1", QUERN_STATUS_PARSE},
    {X "%1 = sort %0 axis=0 reverse=0\n%2 = neg %1.2\n", "4:10: %1 (sort) has 2 results, no .2", QUERN_STATUS_PARSE},
    {X "%1 = neg %0.\n", "3:13: expected the number of a result, found the end of the line", QUERN_STATUS_PARSE},
    {X "%1 = neg %0.99999999999999999999\n", "which is no 64-bit integer", QUERN_STATUS_PARSE},
    {X "%1 = neg %\n", "3:11: expected the number of a value, found the end of the line", QUERN_STATUS_PARSE},
    {X "%1 = neg %99999999999999999999\n", "3:11: expected the number of a value, found '99999999999999999999'",
     QUERN_STATUS_PARSE},
    /* attributes */
    {X "%1 = cast %0\n", "3:13: cast needs the attribute dtype", QUERN_STATUS_PARSE},
    {X "%1 = sort %0 axis=0\n", "3:20: sort needs the attribute reverse", QUERN_STATUS_PARSE},
    {X "%1 = sort %0 axes=0\n", "3:14: expected an attribute of sort, found 'axes' HINT: did you mean 'axis'?",
     QUERN_STATUS_PARSE},
    {X "%1 = sort %0 axis=0 axis=0 reverse=0\n", "3:21: the attribute axis is given twice", QUERN_STATUS_PARSE},
    {X "%1 = sort %0 axis 0 reverse=0\n", "3:19: expected '=' and the attribute's value, found '0'",
     QUERN_STATUS_PARSE},
    {X "%1 = sort %0 axis=x reverse=0\n", "3:19: expected an integer, found 'x'", QUERN_STATUS_PARSE},
    {X "%1 = sort %0 axis=1.5 reverse=0\n", "3:19: expected an integer, found '1.5', which is no 64-bit",
     QUERN_STATUS_PARSE},
    {X "%1 = sort %0 axis=- reverse=0\n", "3:19: expected an integer, found '-', which is no 64-bit",
     QUERN_STATUS_PARSE},
    {X "%1 = sort %0 axis=9223372036854775808 reverse=0\n", "found '9223372036854775808', which is no 64-bit integer",
     QUERN_STATUS_PARSE},
    {X "%1 = reshape %0 shape=6\n", "3:23: expected '[' of a list of integers, found '6'", QUERN_STATUS_PARSE},
    {X "%1 = reshape %0 shape=[6\n", "4:1: expected ',' or ']', found the end of the text", QUERN_STATUS_PARSE},
    {X "%1 = reshape %0 shape=[6 1]\n", "3:26: expected ',' or ']', found '1'", QUERN_STATUS_PARSE},
    {X "%1 = reshape %0 shape=[,6]\n", "3:24: expected an integer, found ','", QUERN_STATUS_PARSE},
    {X "%1 = reshape %0 shape=[6,]\n", "3:26: expected an integer, found ']'", QUERN_STATUS_PARSE},
    {X "%1 = reduce %0 reduce=summ axes=[0]\n", "3:23: expected a reduction, found 'summ' HINT: did you mean 'sum'?",
     QUERN_STATUS_PARSE},
    {X "%1 = dot %0 %0 combine=div\n", "3:24: expected a combination, found 'div'", QUERN_STATUS_PARSE},
    {X "%1 = cast %0 dtype=f33\n", "3:20: expected a dtype, found 'f33' HINT: did you mean 'f32'?", QUERN_STATUS_PARSE},
    {X "%1 = cast %0 dtype=\n", "3:20: expected a dtype, found the end of the line", QUERN_STATUS_PARSE},
    /* strings */
    {"%0 = input name=x\n", "2:17: expected a quoted string, found 'x'", QUERN_STATUS_PARSE},
    {"%0 = input name=\"x\n\"\n", "2:17: the string that begins here does not end on this line", QUERN_STATUS_PARSE},
    {"%0 = input name=\"x\\q\"\n", "2:20: expected one of n t \" \\ x after '\\', found 'q'", QUERN_STATUS_PARSE},
    {"%0 = input name=\"\\x4\"\n", "2:20: expected two hexadecimal digits, found '4'", QUERN_STATUS_PARSE},
    {"%0 = input name=\"\\x00\"\n", "2:20: a string cannot hold \\x00", QUERN_STATUS_PARSE},
    {"%0 = input name=\"a\x02\"\n", "2:19: expected a printable character (others as \\x1f), found the byte 0x02",
     QUERN_STATUS_PARSE},
    {"%0 = input name=\"a\\", "2:20: expected one of n t", QUERN_STATUS_PARSE},
    {"%0 = input name=\"a\\x4", "2:21: expected two hexadecimal digits, found '4'", QUERN_STATUS_PARSE},
    {"%0 = const dtype=f32 shape=[] data={0x7fc0000", "2:37: expected 8 hexadecimal digits", QUERN_STATUS_PARSE},
    /* elements */
    {"%0 = const data={1} dtype=f32 shape=[]\n", "2:17: dtype and shape come before the elements", QUERN_STATUS_PARSE},
    {"%0 = const dtype=f32 shape=[] data=1\n", "2:36: expected '{' of the elements, found '1'", QUERN_STATUS_PARSE},
    {"%0 = const dtype=f32 shape=[2] data={1}\n", "2:37: the shape has 2 elements, found 1", QUERN_STATUS_PARSE},
    {"%0 = const dtype=f32 shape=[] data={1, 2}\n", "2:40: the shape has 1 elements, there are more",
     QUERN_STATUS_PARSE},
    {"%0 = const dtype=f32 shape=[] data={x}\n", "2:37: expected an element of f32, found 'x'", QUERN_STATUS_PARSE},
    {"%0 = const dtype=f32 shape=[] data={1e99}\n", "2:37: expected an element of f32, found '1e99'",
     QUERN_STATUS_PARSE},
    {"%0 = const dtype=i8 shape=[] data={128}\n", "2:36: expected an element of i8, found '128'", QUERN_STATUS_PARSE},
    {"%0 = const dtype=u8 shape=[] data={-1}\n", "2:36: expected an element of u8, found '-1'", QUERN_STATUS_PARSE},
    {"%0 = const dtype=bool shape=[] data={2}\n", "2:38: expected an element of bool, found '2'", QUERN_STATUS_PARSE},
    {"%0 = const dtype=i8 shape=[] data={0x7f}\n", "2:36: expected an element of i8, found '0x7f'", QUERN_STATUS_PARSE},
    {"%0 = const dtype=f32 shape=[] data={0x7fc0}\n",
     "2:37: expected 8 hexadecimal digits, the bits of f32, found '0x7fc0'", QUERN_STATUS_PARSE},
    {"%0 = const dtype=f32 shape=[] data={0x7fc000000}\n", "2:37: expected 8 hexadecimal digits", QUERN_STATUS_PARSE},
    {"%0 = const dtype=f32 shape=[] data={0x7fc0000g}\n", "2:37: expected 8 hexadecimal digits", QUERN_STATUS_PARSE},
    {"%0 = const dtype=f32 shape=[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1] data={1}\n",
     "2:69: the elements' shape is none: at most 16 sizes, not negative", QUERN_STATUS_PARSE},
    {"%0 = const dtype=f32 shape=[-1] data={1}\n", "2:38: the elements' shape is none", QUERN_STATUS_PARSE},
    {"%0 = const dtype=f32 shape=[4611686018427387904,4] data={1}\n", "2:57: a tensor of shape", QUERN_STATUS_OVERFLOW},
    {"%0 = buffer dtype=f32 shape=[2] buffer={1}\n", "2:40: the shape has 2 elements, found 1", QUERN_STATUS_PARSE},
    /* what the ops say */
    {X "%1 = reshape %0 shape=[5]\n", "3:6: reshape: ", QUERN_STATUS_SHAPE},
    {X "%1 = not %0\n", "3:6: not: does not admit f32", QUERN_STATUS_DTYPE},
    {"%0 = input name=\"x\" dtype=f32 shape=[-1]\n", "2:6: input: ", QUERN_STATUS_SHAPE},
    {"%0 = input name=\"x\" dtype=f32 shape=[9223372036854775807,3]\n", "2:6: input: a tensor of shape",
     QUERN_STATUS_OVERFLOW},
    {"%0 = iota dtype=bool shape=[1] axis=0\n", "2:6: iota: does not admit bool", QUERN_STATUS_DTYPE},
    /* types */
    {X "%1 = neg %0 : f32[2,4]\n", "3:15: result 0 of neg is f32(2, 3), the text says f32(2, 4)", QUERN_STATUS_PARSE},
    {X "%1 = neg %0 : f16[2,3]\n", "3:15: result 0 of neg is f32(2, 3), the text says f16(2, 3)", QUERN_STATUS_PARSE},
    {X "%1 = neg %0 :\n", "3:13: neg has 1 result, the text says 0", QUERN_STATUS_PARSE},
    {X "%1 = neg %0 : f32[2,3] f32[2,3]\n", "3:13: neg has 1 result, the text says 2", QUERN_STATUS_PARSE},
    {X "%1 = sort %0 axis=0 reverse=0 : f32[2,3]\n", "3:31: sort has 2 results, the text says 1", QUERN_STATUS_PARSE},
    {X "%1 = neg %0 : f32\n", "3:18: expected '[' of the shape, found the end of the line", QUERN_STATUS_PARSE},
    {X "%1 = neg %0 : f32[-1]\n", "3:19: expected a size from 0 to 9223372036854775807, found -1", QUERN_STATUS_PARSE},
    {X "%1 = neg %0 : f32[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]\n", "3:51: a shape has at most 16 axes",
     QUERN_STATUS_PARSE},
    {X "%1 = neg %0 : f32[2,3]; x\n", "3:23: expected the end of the line, found ';'", QUERN_STATUS_PARSE},
    /* subgraphs */
    {"fn f\n", "2:4: expected a subgraph such as @f0, found 'f'", QUERN_STATUS_PARSE},
    {"fn @\n", "2:5: expected the name of a subgraph, found the end of the line", QUERN_STATUS_PARSE},
    {F "fn @f (%0: f32[]) {\n  return %0\n}\nreturn\n", "6:4: @f is defined twice", QUERN_STATUS_PARSE},
    {"fn @f {\n", "2:7: expected '(' of the parameters, found '{'", QUERN_STATUS_PARSE},
    {"fn @f (0)\n", "2:8: expected a parameter such as %0, found '0'", QUERN_STATUS_PARSE},
    {"fn @f (%0 f32[])\n", "2:11: expected ':' and the parameter's type, found 'f32'", QUERN_STATUS_PARSE},
    {"fn @f (%0: f32[] %1: f32[])\n", "2:18: expected ',' or ')', found '%1'", QUERN_STATUS_PARSE},
    {"fn @f (%0: f32[], %0: f32[])\n", "2:19: %0 is defined twice", QUERN_STATUS_PARSE},
    {"fn @f (%0: f32[9223372036854775807,9])\n", "2:8: input: a tensor of shape", QUERN_STATUS_OVERFLOW},
    {"fn @f () return\n", "2:10: expected '{', found 'return'", QUERN_STATUS_PARSE},
    {"fn @f () { return\n", "2:12: expected the end of the line, found 'return'", QUERN_STATUS_PARSE},
    {"fn @f (%0: f32[]) {\n  %1 = exp %0\n}\n", "4:1: expected a value such as %0, or return, found '}'",
     QUERN_STATUS_PARSE},
    {"fn @f (%0: f32[]) {\n  return %0\nreturn\n", "4:1: expected '}' after return, found 'return'",
     QUERN_STATUS_PARSE},
    {"fn @f (%0: f32[]) {\n  return y=%0\n}\n", "3:10: expected the end of the line, found 'y'", QUERN_STATUS_PARSE},
    {"fn @f (%0: f32[]) {\n  return %0\n} x\n", "4:3: expected the end of the line, found 'x'", QUERN_STATUS_PARSE},
    {"fn @f () {\n  %0 = input name=\"x\" dtype=f32 shape=[]\n  return %0\n}\n",
     "3:8: input cannot stand in a fn: make it a parameter", QUERN_STATUS_PARSE},
    {"fn @f () {\n  %0 = buffer dtype=f32 shape=[]\n  return %0\n}\n", "3:8: buffer cannot stand in a fn",
     QUERN_STATUS_PARSE},
    {F "%0 = input name=\"x\" dtype=f32 shape=[]\n%1 = composite %0 name=\"c\" ints=[] reals=[] body=@g\n",
     "7:50: @g is not defined before this line", QUERN_STATUS_PARSE},
    {F "%0 = input name=\"x\" dtype=f32 shape=[]\n%1 = composite %0 name=\"c\" ints=[] reals=[] body=f\n",
     "7:50: expected a subgraph such as @f0, found 'f'", QUERN_STATUS_PARSE},
    {F X "%1 = composite %0 name=\"c\" ints=[] reals=[] body=@f\n", "7:6: composite: operand 0 of a body is f32(2, 3)",
     QUERN_STATUS_SHAPE},
    {F "%0 = input name=\"x\" dtype=f32 shape=[]\n%1 = composite %0 name=\"c\" ints=[] reals=[x] body=@f\n",
     "7:43: expected an element of f64, found 'x'", QUERN_STATUS_PARSE},
    {F "%0 = input name=\"x\" dtype=f32 shape=[]\n%1 = composite %0 name=\"c\" ints=[] reals={} body=@f\n",
     "7:42: expected '[' of a list of numbers, found '{'", QUERN_STATUS_PARSE},
    {F "%1 = exp %0\n", "6:10: %0 is not defined before this line", QUERN_STATUS_PARSE},
    {X F "return %0\n", "3:1: expected a value such as %0, fn or return, found 'fn'", QUERN_STATUS_PARSE},
    /* the outputs */
    {X "return loss\n", "3:12: expected '=' and the output, found the end of the line", QUERN_STATUS_PARSE},
    {X "return loss=x\n", "3:13: expected a value such as %0, found 'x'", QUERN_STATUS_PARSE},
    {X "return %1\n", "3:8: %1 is not defined before this line", QUERN_STATUS_PARSE},
    {X "return ;\n", "3:8: expected a value such as %0, or name=%0, found ';'", QUERN_STATUS_PARSE},
    {X "return %0\n%1 = neg %0\n", "4:1: expected the end of the text after return, found '%1'", QUERN_STATUS_PARSE},
    {X "returns %0\n", "3:1: expected a value such as %0, fn or return, found 'returns'", QUERN_STATUS_PARSE},
};

static void malformed(void **state) {
  (void)state;
  for (size_t i = 0; i < BASE_COUNT(wrong); i++) {
    char text[1024];
    struct ir_module module;
    bool whole = wrong[i].text[0] == '^';
    int n = snprintf(text, sizeof text, "%s%s", whole ? "" : "quern 1\n", wrong[i].text + whole);
    quern_status status = ir_parse(ctx, text, (size_t)n, &module);
    if (status != wrong[i].status || strstr(quern_last_error(), wrong[i].message) == NULL)
      fail_msg("row %zu:\n%s\nexpected %s: %s\ngot %s: %s", i, text, quern_status_name(wrong[i].status),
               wrong[i].message, quern_status_name(status), quern_last_error());
    assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
  }
}

/* The message begins with the place and is not the builder's place in some C file. */
static void places(void **state) {
  (void)state;
  struct ir_module module;
  const char *file;
  int line;
  static const char text[] = "quern 1\r\n\r\n\t" X "  %1 = reshape %0 shape=[\n # six\n 6]\n%2 = not %1";
  quern_place_set("caller.c", 7);
  EXPECT_ERROR(ir_parse(ctx, text, sizeof text - 1, &module), DTYPE, "7:6: not: does not admit f32");
  assert_int_equal(strncmp(quern_last_error(), "7:6: ", 5), 0);
  assert_null(strstr(quern_last_error(), "caller.c"));
  base_place_get(&file, &line);
  assert_string_equal(file, "caller.c");
  assert_int_equal(line, 7);
  quern_place_set(NULL, 0);
}

static void zero_bytes(void **state) {
  (void)state;
  struct ir_module module;
  static const char inside[] = "quern 1\n%0 = input name=\"a\0b\" dtype=f32 shape=[]\nreturn %0\n";
  static const char between[] = "quern 1\n\0return\n";
  static const char escape[] = "quern 1\n%0 = input name=\"\\\0\" dtype=f32 shape=[]\nreturn %0\n";
  EXPECT_ERROR(ir_parse(ctx, inside, sizeof inside - 1, &module), PARSE, "2:19: expected a printable character");
  EXPECT_ERROR(ir_parse(ctx, between, sizeof between - 1, &module), PARSE,
               "2:1: expected a value such as %0, fn or return, found the byte 0x00");
  EXPECT_ERROR(ir_parse(ctx, escape, sizeof escape - 1, &module), PARSE, "2:19: expected one of n t");
}

/* An error that was pending before is reported, not swallowed. */
static void pending(void **state) {
  (void)state;
  struct ir_module module;
  ir_fail(ctx, QUERN_STATUS_SHAPE, "earlier");
  EXPECT_ERROR(ir_parse(ctx, "quern 1\nreturn", 14, &module), SHAPE, "earlier");
  assert_int_equal(ir_parse(ctx, "quern 1\nreturn", 14, &module), QUERN_STATUS_OK);
  assert_int_equal(module.n_outputs, 0);
}

/* ---- what is accepted ----------------------------------------------------------------------------------- */

static quern_tensor *parse_one(const char *text) {
  struct ir_module module;
  quern_status status = ir_parse(ctx, text, strlen(text), &module);
  if (status != QUERN_STATUS_OK) print_error("%s\n", quern_last_error());
  assert_int_equal(status, QUERN_STATUS_OK);
  assert_int_equal(module.n_outputs, 1);
  return module.outputs[0];
}

/* Operations have had other names: a text with these gives the same nodes. */
static void former_names(void **state) {
  (void)state;
#define FORMER(FOLD_NAME, KEEP_NAME)                                                                                   \
  parse_one("quern 1\n%0 = const dtype=f32 shape=[2,2] data={1,2,3,4}\n"                                               \
            "%1 = " FOLD_NAME " %0 shape=[3] axes=[0] step=[1] dilate=[1]\n%2 = " KEEP_NAME " %1\nreturn %2")
  const quern_tensor *x = FORMER("fold", "keep");
  assert_int_equal(x->node->op, IR_CHECKPOINT);
  assert_int_equal(x->node->src[0]->node->op, IR_COL2IM);
  assert_ptr_equal(x, FORMER("col2im", "checkpoint"));
}

static void free_forms(void **state) {
  (void)state;
  quern_tensor *x = parse_one("# a comment\n\n  quern\t1  # the head\r\n"
                              "%7=const shape=[2] dtype = f32 data={ 1 , # one\n\n 2 }#two\n"
                              "   %3 = neg   %7.0   :   f32[ 2 ]\nreturn y=%3.0");
  EXPECT_REALS(x, -1, -2);
  x = parse_one("quern 1\nfn @g.1(\n  %5: f32[],\n  %9: f32[]\n) {\n\n# nothing\n return %9\n\n}\n\n"
                "%0 = const dtype=f32 shape=[] data={4}\n%1 = const dtype=f32 shape=[] data={5}\n"
                "%2 = composite %0 %1 reals=[] ints=[] body=@g.1 name=\"second\"\nreturn %2\n\n# end");
  EXPECT_REALS(x, 5);
  EXPECT_INTS(parse_one("quern 1\n%0 = iota dtype=i64 shape=[2,2] axis=1\nreturn %0"), 0, 1, 0, 1);
  EXPECT_INTS(parse_one("quern 1\n%0 = const dtype=u8 shape=[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1] data={7}\nreturn %0"), 7);
}

static void same_as_built(void **state) {
  (void)state;
  quern_tensor *a = REALS(F64, DIMS(2), 1, 2);
  quern_tensor *b = IR_MAKE(ctx, IR_PAD, ATTRS(.lo = DIMS(1), .hi = DIMS(2), .mid = DIMS(3)), a, REAL(F64, 0.5));
  assert_ptr_equal(b,
                   parse_one("quern 1\n%1 = const dtype=f64 shape=[2] data={1, 2}\n"
                             "%2 = const dtype=f64 shape=[] data={0.5}\n%0 = pad %1 %2 lo=[1] hi=[2] mid=[3] : f64[8]\n"
                             "return %0\n"));
}

/* ---- composites ----------------------------------------------------------------------------------------- */

static void twice_body(quern_context *in, const struct ir_attrs *attrs, quern_tensor *const *args,
                       quern_tensor **results) {
  for (int64_t i = 0; i < attrs->ints.at[0]; i++) results[0] = IR_MAKE(in, IR_ADD, NULL, args[0], args[0]);
}

static bool twice_admits(const struct ir_attrs *attrs, int n, quern_tensor *const *src) {
  return n == 1 && attrs->ints.n == 1 && attrs->ints.at[0] == 1 && attrs->reals.n == 0 &&
         base_dtype_is(src[0]->dtype, BASE_ANY);
}

static const struct ir_composite twice = {.name = "twice", .n_results = 1, .body = twice_body, .admits = twice_admits};
static const struct ir_composite unreadable = {.name = "unreadable", .n_results = 1, .body = twice_body};

#define BODIES                                                                                                         \
  "quern 1\nfn @twice (%0: f32[]) {\n  %1 = add %0 %0\n  return %1\n}\n"                                               \
  "fn @half (%0: f32[]) {\n  %1 = neg %0\n  return %1\n}\n"                                                            \
  "fn @bool (%0: bool[]) {\n  return %0\n}\n"                                                                          \
  "%0 = input name=\"x\" dtype=f32 shape=[]\n%1 = input name=\"b\" dtype=bool shape=[]\n"

/* A kind that the context knows has the body that it defines, and is not asked for one it may not be able to build. */
static void known_composites(void **state) {
  (void)state;
  struct ir_module module;
  assert_int_equal(ir_composite_add(ctx, &twice), QUERN_STATUS_OK);
  assert_int_equal(ir_composite_add(ctx, &unreadable), QUERN_STATUS_OK);
  quern_tensor *y = parse_one(BODIES "%2 = composite %0 name=\"twice\" ints=[1] reals=[] body=@twice\nreturn %2\n");
  assert_ptr_equal(ir_composite_make(ctx, &twice, DIMS(1), (struct ir_reals){0}, 1, y->node->src), y);
  static const struct {
    const char *line, *message;
    quern_status status;
  } rows[] = {
      {"%2 = composite %0 name=\"twice\" ints=[1] reals=[] body=@half\n",
       "15:6: the body of composite \"twice\" is not the one", QUERN_STATUS_PARSE},
      {"%2 = composite %0 name=\"twice\" ints=[] reals=[] body=@twice\n",
       "15:6: composite \"twice\" does not admit these operands, ints and reals", QUERN_STATUS_PARSE},
      {"%2 = composite name=\"twice\" ints=[1] reals=[] body=@twice\n", "15:6: composite \"twice\" does not admit",
       QUERN_STATUS_PARSE},
      {"%2 = composite %0 name=\"unreadable\" ints=[1] reals=[] body=@twice\n",
       "15:6: composite \"unreadable\" does not admit", QUERN_STATUS_PARSE},
      {"%2 = composite %1 name=\"twice\" ints=[1] reals=[] body=@bool\n", "15:6: add: does not admit bool",
       QUERN_STATUS_DTYPE},
  };
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    char text[1024];
    int n = snprintf(text, sizeof text, "%s%sreturn %%2\n", BODIES, rows[i].line);
    quern_status status = ir_parse(ctx, text, (size_t)n, &module);
    if (status != rows[i].status || strstr(quern_last_error(), rows[i].message) == NULL)
      fail_msg("%s: %s\n%s", quern_status_name(status), quern_last_error(), text);
    assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
  }
}

/* ---- limits --------------------------------------------------------------------------------------------- */

static void deep_sub_graphs(void **state) {
  (void)state;
  struct base_str str;
  struct ir_module module;
  base_str_init(&str, &ctx->heap);
  base_str_add(&str, "quern 1\nfn @f0 (%0: f32[]) {\n  return %0\n}\n");
  for (int i = 1; i < 100; i++) {
    base_str_printf(
        &str, "fn @f%d (%%0: f32[]) {\n  %%1 = composite %%0 name=\"c\" ints=[] reals=[] body=@f%d\n  return %%1\n}\n",
        i, i - 1);
  }
  base_str_add(&str, "return\n");
  EXPECT_ERROR(ir_parse(ctx, str.at, str.n, &module), OVERFLOW, ": composite: subgraphs nest deeper than 32");
  base_str_fini(&str);
}

/* A body may have any number of parameters, so a fn may as well. */
static void many_parameters(void **state) {
  (void)state;
  enum { N = 5000 };
  struct base_str str;
  struct ir_module module;
  base_str_init(&str, &ctx->heap);
  base_str_add(&str, "quern 1\nfn @f (");
  for (int i = 0; i < N; i++) base_str_printf(&str, "%s%%%d: f32[]", i > 0 ? ", " : "", i);
  base_str_printf(&str, ") {\n  return %%%d\n}\n%%0 = input name=\"x\" dtype=f32 shape=[]\n%%1 = composite", N - 1);
  for (int i = 0; i < N; i++) base_str_add(&str, " %0");
  base_str_add(&str, " name=\"c\" ints=[] reals=[] body=@f\nreturn %1\n");
  assert_int_equal(ir_parse(ctx, str.at, str.n, &module), QUERN_STATUS_OK);
  assert_int_equal(module.outputs[0]->node->n_src, N);
  base_str_fini(&str);
}

/* ---- cuts and failures ---------------------------------------------------------------------------------- */

/* Every beginning of a text is refused, but those that only lack the last outputs or the end of the last line. */
static void cut_anywhere(void **state) {
  (void)state;
  size_t n, last;
  char *text = text_of("tests/fuzz/corpus/fuzz_qir/all.qir", &n);
  for (last = n - 1; text[last - 1] != '\n';) last--;
  for (size_t cut = 0; cut <= n; cut++) {
    struct ir_module module;
    char *copy = malloc(cut > 0 ? cut : 1); /* of its own, so that reading on is noticed */
    memcpy(copy, text, cut);
    quern_status status = ir_parse(ctx, copy, cut, &module);
    free(copy);
    if (cut < last + 6) assert_true(status != QUERN_STATUS_OK && status != QUERN_STATUS_INTERNAL);
    if (cut == n - 1 || cut == n) assert_int_equal(status, QUERN_STATUS_OK);
    assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
  }
  free(text);
}

/* A byte of the text replaced by any of these is accepted or refused, and what is accepted verifies. */
static void changed_anywhere(void **state) {
  (void)state;
  static const char bytes[] = {0, '\n', ' ', '"', '%', '9', '-', '[', '}', 'z', (char)0xff};
  size_t n;
  char *text = text_of("tests/fuzz/corpus/fuzz_qir/all.qir", &n);
  size_t accepted = 0;
  for (size_t i = 0; i < n; i++) {
    struct ir_module module;
    char old = text[i];
    text[i] = bytes[i % sizeof bytes];
    if (ir_parse(ctx, text, n, &module) == QUERN_STATUS_OK) {
      accepted++;
      assert_int_equal(ir_verify(ctx, module.n_outputs, module.outputs), QUERN_STATUS_OK);
    }
    assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
    text[i] = old;
  }
  assert_in_range(accepted, 1, n / 2);
  free(text);
}

/* Each allocation fails once; the text can be read after that. */
static void no_memory(void **state) {
  (void)state;
  size_t n_text;
  char *text = text_of("tests/fuzz/corpus/fuzz_qir/all.qir", &n_text);
  struct fault fault = {0};
  while (fault_next(&fault)) {
    struct ir_module module;
    test_renew();
    fault_begin(&fault);
    quern_status status = ir_parse(ctx, text, n_text, &module);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    assert_int_equal(ctx->error, QUERN_STATUS_OK);
    if (fault.met) assert_int_equal(ir_parse(ctx, text, n_text, &module), QUERN_STATUS_OK);
    assert_int_equal(ir_verify(ctx, module.n_outputs, module.outputs), QUERN_STATUS_OK);
  }
  assert_true(fault.n > 21);
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(malformed),        TEST(places),           TEST(zero_bytes),      TEST(pending),         TEST(free_forms),
      TEST(same_as_built),    TEST(known_composites), TEST(deep_sub_graphs), TEST(many_parameters), TEST(cut_anywhere),
      TEST(changed_anywhere), TEST(no_memory),        TEST(former_names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
