/* kern/interp_move.c -- what the interpreter does without arithmetic: casts, and lanes in other places
** tests: tests/kern/test_interp.c
*/
#include "kern/interp_int.h"

static size_t size_of(const struct kern_step *s) { return base_dtypes[s->dtype].size; }

static void cast_lanes(const struct kern_step *s) {
  for (int i = 0; i < s->lanes; i++) base_convert(s->dtype, s->to, (size_t)i, s->from, s->arg[0], (size_t)i);
}

static void copy_lanes(const struct kern_step *s) { memcpy(s->to, s->arg[0], (size_t)s->lanes * size_of(s)); }

static void high_lanes(const struct kern_step *s) {
  size_t bytes = (size_t)s->lanes * size_of(s);
  memcpy(s->to, (const char *)s->arg[0] + bytes, bytes);
}

static void join_lanes(const struct kern_step *s) {
  size_t half = (size_t)s->lanes / 2 * size_of(s);
  memcpy(s->to, s->arg[0], half);
  memcpy((char *)s->to + half, s->arg[1], half);
}

static void extract_lane(const struct kern_step *s) {
  memcpy(s->to, (const char *)s->arg[0] + (size_t)s->imm * size_of(s), size_of(s));
}

/* One of every so many lanes. */
static void deinterleave_lanes(const struct kern_step *s) {
  size_t size = size_of(s);
  const char *from = (const char *)s->arg[0] + (size_t)s->imm * size;
  for (int i = 0; i < s->lanes; i++)
    memcpy((char *)s->to + (size_t)i * size, from + (size_t)(i * s->pick) * size, size);
}

static void interleave_lanes(const struct kern_step *s) {
  size_t size = size_of(s);
  for (int i = 0; i < s->lanes; i++)
    memcpy((char *)s->to + (size_t)i * size, (const char *)s->arg[i % 2] + (size_t)(i / 2) * size, size);
}

static void shuffle_xor_lanes(const struct kern_step *s) {
  size_t size = size_of(s);
  for (int i = 0; i < s->lanes; i++)
    memcpy((char *)s->to + (size_t)i * size, (const char *)s->arg[0] + (size_t)(i ^ (int)s->imm) * size, size);
}

/* Element by element, as a number in binary is counted up: levels hold what waits for its other half. */
static void hreduce_lanes(const struct kern_step *s) {
  uint64_t levels[16], x;
  size_t size = size_of(s);
  kern_run *run = kern_run_arith((enum kern_op)s->imm, s->dtype);
  for (int i = 0; i < s->lanes; i++) {
    int level = 0;
    memcpy(&x, (const char *)s->arg[0] + (size_t)i * size, size);
    for (; (i >> level & 1) != 0; level++) {
      struct kern_step join = {.lanes = 1, .dtype = s->dtype, .from = s->dtype, .to = &x, .arg = {&levels[level], &x}};
      run(&join);
    }
    levels[level] = x;
  }
  memcpy(s->to, &x, size);
}

/* Ops that copy elements of 1, 2, 4 or 8 bytes. */
#define COPIES(T, S)                                                                                                   \
  static void splat_##S(const struct kern_step *s) {                                                                   \
    T *to = s->to;                                                                                                     \
    const T *a = s->arg[0];                                                                                            \
    for (int i = 0; i < s->lanes; i++) to[i] = *a;                                                                     \
  }                                                                                                                    \
  static void select_##S(const struct kern_step *s) {                                                                  \
    T *to = s->to;                                                                                                     \
    const uint8_t *mask = s->arg[0];                                                                                   \
    const T *yes = s->arg[1], *no = s->arg[2];                                                                         \
    for (int i = 0; i < s->lanes; i++) to[i] = mask[i] ? yes[i] : no[i];                                               \
  }                                                                                                                    \
  static void shuffle_##S(const struct kern_step *s) {                                                                 \
    T *to = s->to;                                                                                                     \
    const T *a = s->arg[0], *b = s->arg[1];                                                                            \
    int64_t n = s->imm; /* the lanes of a */                                                                           \
    for (int i = 0; i < s->lanes; i++) to[i] = s->pool[i] < n ? a[s->pool[i]] : b[s->pool[i] - n];                     \
  }
COPIES(uint8_t, 1)
COPIES(uint16_t, 2)
COPIES(uint32_t, 4)
COPIES(uint64_t, 8)

#define BY_SIZE(op)                                                                                                    \
  { [1] = op##_1, [2] = op##_2, [4] = op##_4, [8] = op##_8 }

kern_run *kern_run_move(enum kern_op op, quern_dtype dtype) {
  static kern_run *const runs[KERN_OP_COUNT] = {
      [KERN_CAST] = cast_lanes,
      [KERN_BITCAST] = copy_lanes,
      [KERN_EXTRACT] = extract_lane,
      [KERN_LOW] = copy_lanes,
      [KERN_HIGH] = high_lanes,
      [KERN_JOIN] = join_lanes,
      [KERN_HREDUCE] = hreduce_lanes,
      [KERN_VAR] = copy_lanes,
      [KERN_GET] = copy_lanes,
      [KERN_DEINTERLEAVE] = deinterleave_lanes,
      [KERN_INTERLEAVE] = interleave_lanes,
      [KERN_SHUFFLE_XOR] = shuffle_xor_lanes,
  };
  static kern_run *const by_size[KERN_OP_COUNT][9] = {
      [KERN_SPLAT] = BY_SIZE(splat), [KERN_SELECT] = BY_SIZE(select), [KERN_SHUFFLE] = BY_SIZE(shuffle)};
  return runs[op] != NULL ? runs[op] : by_size[op][base_dtypes[dtype].size];
}
