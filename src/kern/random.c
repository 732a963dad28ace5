/* kern/random.c -- Philox-4x32-10 as instructions: the bits of base_random_bits for any element numbers
** keeps: a lane uses one word of the block it computes; but where lanes are consecutive from a multiple of 4 on, a
**        quarter of them compute the blocks, and all four words of each are used
** see:   base/philox.c                            tests: tests/kern/test_random.c
*/
#include "kern/math_int.h"

static const quern_dtype u32 = QUERN_DTYPE_U32, u64 = QUERN_DTYPE_U64, i64 = QUERN_DTYPE_I64;

static kern_id low_half(struct kern_builder *b, kern_id x) {
  return kern_bin(b, KERN_AND, x, kern_const_i(b, u64, math_type(b, x).lanes, UINT32_MAX));
}
static kern_id high_half(struct kern_builder *b, kern_id x) {
  return kern_bin(b, KERN_SHR, x, kern_const_i(b, u64, math_type(b, x).lanes, 32));
}
static kern_id xor_of(struct kern_builder *b, kern_id x, kern_id y) { return kern_bin(b, KERN_XOR, x, y); }

/* The four words of each block, u64 below 2^32, from the blocks' numbers, given so too. */
static void philox(struct kern_builder *b, kern_id seed, kern_id step, int64_t stream, kern_id block, kern_id c[4]) {
  int lanes = math_type(b, block).lanes;
  kern_id k0 = low_half(b, seed), k1 = high_half(b, seed);
  c[0] = block;
  c[1] = kern_const_i(b, u64, lanes, (int64_t)(uint32_t)stream);
  c[2] = kern_splat(b, low_half(b, step), lanes);
  c[3] = kern_splat(b, high_half(b, step), lanes);
  for (int round = 0; round < 10; round++) {
    kern_id x = kern_mul(b, c[0], kern_const_i(b, u64, lanes, 0xd2511f53));
    kern_id y = kern_mul(b, c[2], kern_const_i(b, u64, lanes, 0xcd9e8d57));
    c[0] = xor_of(b, high_half(b, y), c[1]);
    c[0] = xor_of(b, c[0], kern_splat(b, k0, lanes));
    c[1] = low_half(b, y);
    c[2] = xor_of(b, high_half(b, x), c[3]);
    c[2] = xor_of(b, c[2], kern_splat(b, k1, lanes));
    c[3] = low_half(b, x);
    if (round == 9) break;
    k0 = low_half(b, kern_add(b, k0, kern_const_i(b, u64, 1, 0x9e3779b9)));
    k1 = low_half(b, kern_add(b, k1, kern_const_i(b, u64, 1, 0xbb67ae85)));
  }
}

/* The number of the block of an element, u64 below 2^32. */
static kern_id block_of(struct kern_builder *b, kern_id index) {
  int lanes = math_type(b, index).lanes;
  kern_id block = kern_bin(b, KERN_SHR, index, kern_const_i(b, i64, lanes, 2));
  return low_half(b, kern_bitcast(b, block, u64));
}

/* ---- any elements: each lane its block, of which it takes one word ---------------------------------------- */

static kern_id each_lane(struct kern_builder *b, kern_id seed, kern_id step, int64_t stream, kern_id index) {
  int lanes = math_type(b, index).lanes;
  kern_id c[4], zero = kern_const_i(b, i64, lanes, 0);
  philox(b, seed, step, stream, block_of(b, index), c);
  kern_id even = kern_bin(b, KERN_EQ, kern_bin(b, KERN_AND, index, kern_const_i(b, i64, lanes, 1)), zero);
  kern_id early = kern_bin(b, KERN_EQ, kern_bin(b, KERN_AND, index, kern_const_i(b, i64, lanes, 2)), zero);
  kern_id first = kern_select(b, even, c[0], c[1]), second = kern_select(b, even, c[2], c[3]);
  return kern_cast(b, kern_select(b, early, first, second), u32);
}

/* ---- consecutive elements --------------------------------------------------------------------------------- */

enum { PROOF_DEPTH = 8, MAX_TERMS = 8 };

/* True when the scalar x is seen to be a multiple of 4. */
static bool is_multiple_of_4(const struct kern_builder *b, kern_id x, int depth) {
  const struct kern_inst *t = kern_at_id(b, x);
  if (t->op == KERN_CONST) return t->imm % 4 == 0;
  if (depth == PROOF_DEPTH) return false;
  if (t->op == KERN_FOR) return t->imm % 4 == 0 && is_multiple_of_4(b, t->arg[0], depth + 1);
  bool either_will_do = t->op == KERN_MUL;
  if (!either_will_do && t->op != KERN_ADD && t->op != KERN_SUB && t->op != KERN_MIN && t->op != KERN_MAX) return false;
  bool first = is_multiple_of_4(b, t->arg[0], depth + 1);
  if (first == either_will_do) return first;
  return is_multiple_of_4(b, t->arg[1], depth + 1);
}

/* The vector x = constant + the sum of scalars + the number of the lane; false when it is no such sum, or one of
** these may not be a multiple of 4. */
static bool consecutive(const struct kern_builder *b, kern_id x, int *n, kern_id terms[MAX_TERMS], int64_t *constant) {
  kern_id open[MAX_TERMS] = {x};
  int n_open = 1, n_lane = 0;
  *n = 0;
  *constant = 0;
  while (n_open > 0) {
    const struct kern_inst *t = kern_at_id(b, open[--n_open]);
    if (t->op == KERN_ADD && n_open + 2 <= MAX_TERMS) {
      open[n_open++] = t->arg[0];
      open[n_open++] = t->arg[1];
    } else if (t->op == KERN_SPLAT && *n < MAX_TERMS && is_multiple_of_4(b, t->arg[0], 0)) {
      terms[(*n)++] = t->arg[0];
    } else if (t->op == KERN_CONST && t->imm % 4 == 0) {
      *constant += t->imm;
    } else if (t->op == KERN_LANE && n_lane == 0) {
      n_lane = 1;
    } else {
      return false;
    }
  }
  return n_lane == 1;
}

static kern_id whole_blocks(struct kern_builder *b, kern_id seed, kern_id step, int64_t stream, kern_id first,
                            int lanes) {
  int n = lanes / 4, pattern[KERN_MAX_LANES];
  kern_id c[4], number = kern_lane(b, u64, n);
  philox(b, seed, step, stream, low_half(b, kern_add(b, kern_splat(b, block_of(b, first), n), number)), c);
  for (int i = 0; i < 4; i++) c[i] = kern_cast(b, c[i], u32);
  for (int i = 0; i < lanes; i++) pattern[i] = i % 4 * n + i / 4;
  kern_id front = kern_join(b, c[0], c[1]), back = kern_join(b, c[2], c[3]);
  return kern_shuffle(b, front, back, lanes, pattern);
}

kern_id kern_random(struct kern_builder *b, kern_id seed, kern_id step, int64_t stream, kern_id index) {
  if (b->kern->failed != QUERN_STATUS_OK || b->fn == NULL) return 0;
  int lanes = kern_at_id(b, index)->lanes, n;
  int64_t constant;
  kern_id terms[MAX_TERMS];
  if (lanes < 4 || lanes > KERN_MAX_LANES || !consecutive(b, index, &n, terms, &constant))
    return each_lane(b, seed, step, stream, index);
  kern_id first = kern_index(b, constant);
  for (int i = 0; i < n; i++) first = kern_add(b, first, terms[i]);
  return whole_blocks(b, seed, step, stream, first, lanes);
}
