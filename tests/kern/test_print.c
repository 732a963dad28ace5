/* tests/kern/test_print.c -- the text of kernels */
#include "kern/kern_test.h"

static char *print(const struct kern *kern) {
  static char text[8192];
  struct base_str str;
  base_str_init(&str, &ctx->heap);
  EXPECT_OK(kern_print(&str, kern));
  assert_true(str.n < sizeof text);
  memcpy(text, str.at, str.n + 1);
  base_str_fini(&str);
  return text;
}

static void expect_text(struct kern *kern, const char *want) {
  const char *got = print(kern);
  if (strcmp(got, want) != 0) print_error("expected:\n%s\ngot:\n%s\n", want, got);
  assert_string_equal(got, want);
  kern_free(kern);
}

/* Every way in which a line can look. One instruction an argument list: the order of arguments is the compiler's. */
static struct made made_all(void) {
  struct made m = made_new();
  m.kern->n_scalars = 1;
  kern_add_mem(m.kern, QUERN_DTYPE_F32, KERN_IN, 64);
  m.kern->mems[kern_add_mem(m.kern, QUERN_DTYPE_F32, KERN_OUT, 64)].alias = 0;
  kern_add_mem(m.kern, QUERN_DTYPE_I64, KERN_WORK, 2);
  struct kern_fn *fn = kern_add_fn(m.kern, "twice_f32", 1, (quern_dtype[]){QUERN_DTYPE_F32}, 1);
  struct kern_builder f = {.kern = m.kern, .fn = fn}, *b = &m.b;
  kern_id count = kern_scalar(&f, 0), tenth = kern_const_f(&f, QUERN_DTYPE_F32, 2, -0.1), first = I(&f, 0);
  kern_store_n(&f, kern_mem(&f, 0), first, tenth, count);
  made_phase(&m, (struct kern_tasks){0, 2, 3});
  kern_id x = kern_mem(b, 0), y = kern_mem(b, 1), t = kern_task(b);
  kern_id l = kern_local(b, QUERN_DTYPE_BOOL, 9), zero = I(b, 0);
  kern_id i = kern_for(b, zero, I(b, 64), 16);
  kern_id v = kern_load(b, x, i, 16), part = kern_load_n(b, x, i, 8, t);
  kern_id var = kern_var(b, kern_fma(b, v, v, v));
  kern_set(b, var, v);
  kern_id mask = kern_bin(b, KERN_LE, v, kern_get(b, var));
  kern_if(b, kern_extract(b, mask, 3));
  kern_store(b, l, zero, kern_low(b, kern_low(b, mask)));
  kern_else(b);
  kern_shuffle(b, part, part, 4, (int[]){0, 15, 2, 3});
  kern_end(b);
  kern_end(b);
  kern_table(b, kern_const_i(b, QUERN_DTYPE_I32, 1, -7), QUERN_DTYPE_I8,
             (uint64_t[]){0, 255, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
  kern_gather(b, y, kern_imod(b, kern_lane(b, QUERN_DTYPE_I64, 4), 5));
  kern_call_fn(b, fn, 1, &(kern_id){kern_at(b, y, t)}, 1, &zero);
  made_phase(&m, KERN_FIXED_TASKS(8));
  kern_id task = kern_task(b), scalar = kern_scalar(b, 0), yes = kern_const_i(b, QUERN_DTYPE_BOOL, 1, 1);
  kern_cast(b, kern_splat(b, kern_select(b, yes, scalar, task), 2), QUERN_DTYPE_BF16);
  made_finish(&m);
  return m;
}

static void test_all(void **state) {
  (void)state;
  struct made m = made_all();
  m.kern->name = "k_all"; /* the hash is none of this test's business */
  expect_text(m.kern, "kernel k_all\n"
                      "  mem 0: in f32[64]\n"
                      "  mem 1: out f32[64] may be mem 0\n"
                      "  mem 2: work i64[2]\n"
                      "  scalars: 1\n"
                      "function twice_f32(mem 0: f32; scalars: 1):\n"
                      "  %0 = scalar 0\n"
                      "  %1 = const.f32x2 -0.1\n"
                      "  %2 = const.i64 0\n"
                      "  %3 = mem.f32 0\n"
                      "  store.f32x2 %3 %2 %1 first %0\n"
                      "phase 0, tasks ceil(scalar 0 * 2 / 3):\n"
                      "  %0 = mem.f32 0\n"
                      "  %1 = mem.f32 1\n"
                      "  %2 = task\n"
                      "  %3 = local.bool 9\n"
                      "  %4 = const.i64 0\n"
                      "  %5 = const.i64 64\n"
                      "  %6 = for %4 to %5 step 16\n"
                      "    %7 = load.f32x16 %0 %6\n"
                      "    %8 = load.f32x8 %0 %6 first %2\n"
                      "    %9 = fma.f32x16 %7 %7 %7\n"
                      "    %10 = var.f32x16 %9\n"
                      "    set %10 %7\n"
                      "    %12 = get.f32x16 %10\n"
                      "    %13 = le.f32x16 %7 %12\n"
                      "    %14 = extract.bool %13 3\n"
                      "    if %14\n"
                      "      %16 = low.boolx8 %13\n"
                      "      %17 = low.boolx4 %16\n"
                      "      store.boolx4 %3 %4 %17\n"
                      "    else\n"
                      "      %20 = shuffle.f32x4 %8 %8 [0 15 2 3]\n"
                      "    end\n"
                      "  end\n"
                      "  %23 = const.i32 -7\n"
                      "  %24 = table.i8 %23 [0 -1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]\n"
                      "  %25 = lane.i64x4\n"
                      "  %26 = imod.i64x4 %25 5\n"
                      "  %27 = gather.f32x4 %1 %26\n"
                      "  %28 = at.f32 %1 %2\n"
                      "  call twice_f32(%28; %4)\n"
                      "phase 1, tasks ceil(8 / 1):\n"
                      "  %0 = task\n"
                      "  %1 = scalar 0\n"
                      "  %2 = const.bool true\n"
                      "  %3 = select.i64 %2 %1 %0\n"
                      "  %4 = splat.i64x2 %3\n"
                      "  %5 = cast.bf16x2 %4\n");
}

static void test_faults(void **state) {
  (void)state;
  struct made m = made_all();
  struct fault fault = {0};
  while (fault_next(&fault)) {
    struct base_str str;
    base_str_init(&str, &ctx->heap);
    fault_begin(&fault);
    quern_status status = kern_print(&str, m.kern);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    base_str_fini(&str);
  }
  assert_true(fault.n > 5);
  kern_free(m.kern);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_all), TEST(test_faults)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
