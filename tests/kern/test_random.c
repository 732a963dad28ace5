/* tests/kern/test_random.c -- kern_random against base_random_bits: any elements, consecutive ones, all lanes */
#include "kern/kern.h"
#include "unit.h"

enum { COUNT = 256 };

/* What the indices of a kernel's lanes are. */
enum indices { ALIGNED, CONSTANT, SHIFTED, STRIDED, LOADED, INDICES };

static const uint64_t seed = UINT64_C(0xfedcba9876543210), step = UINT64_C(0x123456789abcdef0);
static const int64_t stream = 0x80000001, far_off = (INT64_C(1) << 34) - 4096;

/* The indices of the lanes from at, a multiple of lanes, on; those of element i of the kernel are in elements. */
static kern_id lane_indices(struct kern_builder *b, enum indices kind, kern_id at, int lanes) {
  kern_id lane = kern_lane(b, QUERN_DTYPE_I64, lanes), base = kern_splat(b, at, lanes);
  kern_id offset = kern_const_i(b, QUERN_DTYPE_I64, lanes, kind == SHIFTED ? far_off + 3 : far_off);
  if (kind == LOADED) return kern_load(b, kern_mem(b, 2), at, lanes);
  if (kind == STRIDED) lane = kern_mul(b, lane, kern_const_i(b, QUERN_DTYPE_I64, lanes, 3));
  if (kind == ALIGNED)
    offset = kern_splat(b, kern_mul(b, kern_add(b, kern_task(b), kern_index(b, far_off / 4)), kern_index(b, 4)), lanes);
  return kern_add(b, offset, kern_add(b, base, lane));
}

static int64_t element(enum indices kind, int64_t i, int lanes) {
  if (kind == LOADED) return i * i * 5 + far_off / 2;
  if (kind == STRIDED) return far_off + i / lanes * lanes + i % lanes * 3;
  return far_off + i + (kind == SHIFTED ? 3 : 0);
}

static quern_status build(struct kern **kern, enum indices kind, int lanes) {
  QUERN_TRY(kern_new(kern, &ctx->heap));
  kern_add_mem(*kern, QUERN_DTYPE_U64, KERN_IN, 1);
  kern_add_mem(*kern, QUERN_DTYPE_U64, KERN_IN, 1);
  kern_add_mem(*kern, QUERN_DTYPE_I64, KERN_IN, COUNT);
  kern_add_mem(*kern, QUERN_DTYPE_U32, KERN_OUT, COUNT);
  struct kern_builder b = {*kern, kern_add_phase(*kern, KERN_FIXED_TASKS(1))};
  QUERN_TRY((*kern)->failed);
  kern_id zero = kern_index(&b, 0), at = kern_for(&b, zero, kern_index(&b, COUNT), lanes);
  kern_id key = kern_load(&b, kern_mem(&b, 0), zero, 1), counter = kern_load(&b, kern_mem(&b, 1), zero, 1);
  kern_id bits = kern_random(&b, key, counter, stream, lane_indices(&b, kind, at, lanes));
  kern_store(&b, kern_mem(&b, 3), at, bits);
  kern_end(&b);
  return kern_finish(*kern, "random", NULL);
}

static bool has_shuffle(const struct kern *kern) {
  const struct kern_fn *fn = kern->fns.at[0];
  for (size_t i = 0; i < fn->insts.n; i++)
    if (fn->insts.at[i].op == KERN_SHUFFLE) return true;
  return false;
}

static void test_bits(void **state) {
  (void)state;
  uint64_t seeds[1] = {seed}, steps[1] = {step};
  int64_t indices[COUNT];
  uint32_t out[COUNT];
  for (int kind = 0; kind < INDICES; kind++) {
    for (int lanes = 1; lanes <= KERN_MAX_LANES; lanes *= 2) {
      struct kern *kern = NULL;
      int unproven;
      EXPECT_OK(build(&kern, (enum indices)kind, lanes));
      EXPECT_OK(kern_verify(kern, &unproven));
      for (int64_t i = 0; i < COUNT; i++) indices[i] = element(LOADED, i, lanes);
      void *mems[] = {seeds, steps, indices, out};
      EXPECT_OK(kern_interp(kern, &(struct kern_launch){.mems = mems}, 0));
      for (int64_t i = 0; i < COUNT; i++)
        assert_int_equal(
            out[i], base_random_bits(seed, step, (uint32_t)stream, (uint64_t)element((enum indices)kind, i, lanes)));
      assert_int_equal(has_shuffle(kern),
                       lanes >= 4 && (kind == ALIGNED || kind == CONSTANT)); /* a quarter of the work */
      kern_free(kern);
    }
  }
}

static void test_fault(void **state) {
  (void)state;
  for (int kind = 0; kind < INDICES; kind++) {
    struct fault fault = {0};
    while (fault_next(&fault)) {
      struct kern *kern = NULL;
      fault_begin(&fault);
      quern_status status = build(&kern, (enum indices)kind, 16);
      fault_end(&fault);
      EXPECT_FAULT(&fault, status);
      kern_free(kern);
    }
    assert_true(fault.n > 3);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_bits), TEST(test_fault)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
