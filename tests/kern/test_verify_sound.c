/* tests/kern/test_verify_sound.c -- random index arithmetic: what the verifier proves, the interpreter finds to be so
** Kernels without inputs do the same in each run, so running one shows all that it does. A memory is a little larger or
** smaller than what is reached. The shares at the end show that the verifier does prove things.
*/
#include "kern/kern_test.h"

static uint64_t seed;

static int64_t draw(int64_t n) { /* 0 .. n - 1 */
  seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (int64_t)((seed >> 33) % (uint64_t)n);
}

/* Scalars of i64 that an index can be made of. */
struct values {
  kern_id at[64];
  int n;
};

static kern_id pick(const struct values *v) { return v->at[draw(v->n)]; }

static kern_id random_value(struct kern_builder *b, const struct values *v) {
  kern_id x = pick(v), y = pick(v);
  switch (draw(9)) {
  case 0: return kern_add(b, x, y);
  case 1: return kern_sub(b, x, y);
  case 2: return kern_mul(b, x, I(b, draw(7) - 1));
  case 3: return kern_idiv(b, x, 1 + draw(9));
  case 4: return kern_imod(b, x, 1 + draw(9));
  case 5: return kern_min(b, x, y);
  case 6: return kern_max(b, x, y);
  case 7: return kern_select(b, kern_bin(b, draw(2) ? KERN_LT : KERN_LE, pick(v), pick(v)), x, y);
  default: return kern_add(b, x, I(b, draw(20) - 5));
  }
}

static void random_store(struct kern_builder *b, const struct values *v, kern_id y) {
  int lanes = 1 << draw(3);
  kern_id index = kern_add(b, pick(v), kern_mul(b, pick(v), I(b, 1 + draw(20))));
  kern_id value = kern_const_i(b, QUERN_DTYPE_U8, lanes, 1), mem = y;
  if (draw(4) == 0) {
    mem = kern_at(b, y, pick(v));
    index = pick(v);
  }
  if (draw(3) == 0)
    kern_store_n(b, mem, index, value, kern_sub(b, pick(v), draw(2) ? index : pick(v)));
  else
    kern_store(b, mem, index, value);
}

/* Loops and ifs in each other, some values in each block, and stores at the innermost place. */
static void random_body(struct kern_builder *b, kern_id y) {
  struct values v = {.n = 0};
  v.at[v.n++] = kern_task(b);
  v.at[v.n++] = I(b, draw(30));
  int depth = (int)draw(3), open = 0;
  for (int d = 0; d <= depth; d++) {
    for (int i = 0; i < 2; i++) {
      kern_id value = random_value(b, &v);
      v.at[v.n++] = value;
    }
    if (d == depth) break;
    open++;
    if (draw(3) == 0) {
      kern_if(b, kern_bin(b, draw(2) ? KERN_LT : KERN_EQ, pick(&v), pick(&v)));
      continue;
    }
    kern_id lo = draw(2) ? I(b, draw(3)) : pick(&v), hi = draw(2) ? kern_add(b, lo, I(b, draw(20))) : pick(&v);
    hi = kern_min(b, hi, kern_add(b, lo, I(b, 20)));
    v.at[v.n++] = kern_for(b, lo, hi, 1 + draw(5));
  }
  for (int64_t i = draw(2); i >= 0; i--) random_store(b, &v, y);
  while (open-- > 0) kern_end(b);
}

enum { KERNELS = 30000, MOST = 1 << 14 };

static void test_sound(void **state) {
  (void)state;
  static uint8_t memory[MOST];
  int accepted = 0, fine = 0, apart = 0, no_race = 0;
  for (uint64_t k = 0; k < KERNELS; k++) {
    int64_t count = 0;
    for (int round = 0; round < 2; round++) { /* first a memory that is large enough to see what is reached */
      seed = k * UINT64_C(0x9e3779b97f4a7c15) + 12345;
      struct made m = made_new();
      int64_t tasks = 1 + draw(6);
      int64_t more = draw(5) - 2;
      if (round == 1) count = BASE_MAX(0, count + more);
      kern_add_mem(m.kern, QUERN_DTYPE_U8, KERN_OUT, round == 0 ? MOST : count);
      made_phase(&m, KERN_FIXED_TASKS(tasks));
      random_body(&m.b, kern_mem(&m.b, 0));
      made_finish(&m);
      struct kern_launch launch = {.mems = (void *[]){memory}};
      memset(memory, 0, sizeof memory);
      bool inside = kern_interp(m.kern, &launch, 0) == QUERN_STATUS_OK;
      if (round == 0) {
        for (int64_t i = 0; i < MOST && inside; i++)
          if (memory[i]) count = i + 1;
        kern_free(m.kern);
        if (!inside) break;
        continue;
      }
      int unproven = -1;
      bool proven = kern_verify(m.kern, &unproven) == QUERN_STATUS_OK;
      bool races = kern_interp(m.kern, &launch, KERN_CHECK_RACES) != QUERN_STATUS_OK;
      if ((proven && !inside) || (proven && unproven == 0 && races)) {
        struct base_str text;
        base_str_init(&text, &ctx->heap);
        EXPECT_OK(kern_print(&text, m.kern));
        print_error("kernel %llu: %s\n%s", (unsigned long long)k, quern_last_error(), text.at);
        base_str_fini(&text);
        fail();
      }
      fine += inside;
      accepted += proven;
      if (proven && tasks > 1) {
        no_race += !races;
        apart += unproven == 0;
      }
      kern_free(m.kern);
    }
  }
  print_message("inside: %d, of them proven: %d; without races: %d, of them proven: %d\n", fine, accepted, no_race,
                apart);
  assert_true(accepted > fine / 2 && apart > no_race / 2 && fine > 3000 && no_race > 500);
}

/* The tasks that kern_find_batch_tasks says the first n rows need write all of these rows that any task writes. */
static void test_first(void **state) {
  (void)state;
  enum { ROWS = 6, FIRSTS = 10000 };
  static uint8_t all[MOST], some[MOST];
  int cut = 0;
  for (uint64_t k = 0; k < FIRSTS; k++) {
    seed = k * UINT64_C(0x9e3779b97f4a7c15) + 777;
    struct made m = made_new();
    int64_t tasks = 2 + draw(12), row = 1 + draw(40), rows = ROWS;
    kern_add_mem(m.kern, QUERN_DTYPE_U8, KERN_OUT, MOST);
    m.kern->mems[0].row = row;
    m.kern->n_scalars = 1;
    made_phase(&m, KERN_FIXED_TASKS(tasks));
    random_body(&m.b, kern_mem(&m.b, 0));
    EXPECT_OK(kern_find_batch_tasks(m.kern, ROWS));
    made_finish(&m);
    struct kern_phase whole = m.kern->phases[0];
    struct kern_launch launch = {.mems = (void *[]){all}, .scalars = &rows};
    m.kern->phases[0].batch_tasks = (struct kern_batch_tasks){0};
    memset(all, 0, sizeof all);
    bool inside = kern_interp(m.kern, &launch, 0) == QUERN_STATUS_OK;
    m.kern->phases[0] = whole;
    for (rows = 0; rows <= ROWS && inside && whole.batch_tasks.div > 0; rows++) {
      int64_t count = kern_task_count(&whole, &rows);
      cut += count < tasks;
      launch.mems = (void *[]){some};
      memset(some, 0, sizeof some);
      EXPECT_OK(kern_interp(m.kern, &launch, 0));
      if (memcmp(all, some, (size_t)(rows * row)) == 0) continue;
      struct base_str text;
      base_str_init(&text, &ctx->heap);
      EXPECT_OK(kern_print(&text, m.kern));
      print_error("kernel %llu, %lld rows of %lld: %s", (unsigned long long)k, (long long)rows, (long long)row,
                  text.at);
      base_str_fini(&text);
      fail();
    }
    kern_free(m.kern);
  }
  print_message("runs with fewer tasks: %d\n", cut);
  assert_true(cut > FIRSTS / 4);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_sound), TEST(test_first)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
