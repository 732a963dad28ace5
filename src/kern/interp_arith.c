/* kern/interp_arith.c -- arithmetic of the interpreter: one function per op and a C type, lane by lane
** keeps: f32 is computed in float, f64 in double; integers as 64-bit unsigned, of which the low bits are kept
** tests: tests/kern/test_interp.c
*/
#include <math.h>

#include "kern/interp_int.h"

/* ---- the ops on single elements -------------------------------------------------------------------------- */

#define FLOAT_OPS(T, S)                                                                                                \
  static inline T max_##S(T x, T y) { return x != x || y != y ? x + y : x > y || (x == y && !signbit(x)) ? x : y; }    \
  static inline T min_##S(T x, T y) { return x != x || y != y ? x + y : x < y || (x == y && signbit(x)) ? x : y; }

FLOAT_OPS(float, f32)
FLOAT_OPS(double, f64)

static inline int64_t div_signed(int64_t x, int64_t y) {
  if (y == 0) return 0;
  if (y == -1) return (int64_t)(0 - (uint64_t)x);
  return x / y - (x % y != 0 && (x < 0) != (y < 0));
}
static inline int64_t mod_signed(int64_t x, int64_t y) {
  if (y == 0 || y == -1) return 0;
  int64_t rest = x % y;
  return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}
static inline uint64_t div_unsigned(uint64_t x, uint64_t y) { return y == 0 ? 0 : x / y; }
static inline uint64_t mod_unsigned(uint64_t x, uint64_t y) { return y == 0 ? 0 : x % y; }

/* Shifts of a value of `width` bits; the count of a signed type may be negative, which is large when unsigned. */
static inline uint64_t shl(uint64_t x, uint64_t by, unsigned width) { return by < width ? x << by : 0; }
static inline int64_t shr_signed(int64_t x, uint64_t by, unsigned width) {
  unsigned count = by < width ? (unsigned)by : 63;
  return x < 0 ? ~(int64_t)(~(uint64_t)x >> count) : (int64_t)((uint64_t)x >> count);
}
static inline uint64_t shr_unsigned(uint64_t x, uint64_t by, unsigned width) { return by < width ? x >> by : 0; }

/* ---- loops over lanes ------------------------------------------------------------------------------------ */

#define UNARY(OP, T, S, expr)                                                                                          \
  static void OP##_##S##_lanes(const struct kern_step *s) {                                                            \
    T *to = s->to;                                                                                                     \
    const T *a = s->arg[0];                                                                                            \
    for (int i = 0; i < s->lanes; i++) {                                                                               \
      const T x = a[i];                                                                                                \
      to[i] = (T)(expr);                                                                                               \
    }                                                                                                                  \
  }
#define BINARY(OP, T, S, R, expr)                                                                                      \
  static void OP##_##S##_lanes(const struct kern_step *s) {                                                            \
    R *to = s->to;                                                                                                     \
    const T *a = s->arg[0], *b = s->arg[1];                                                                            \
    for (int i = 0; i < s->lanes; i++) {                                                                               \
      const T x = a[i], y = b[i];                                                                                      \
      to[i] = (R)(expr);                                                                                               \
    }                                                                                                                  \
  }

#define COMPARISONS(T, S)                                                                                              \
  BINARY(eq, T, S, uint8_t, x == y)                                                                                    \
  BINARY(lt, T, S, uint8_t, x < y)                                                                                     \
  BINARY(le, T, S, uint8_t, x <= y)

#define FLOATS(T, S, f)                                                                                                \
  BINARY(add, T, S, T, x + y)                                                                                          \
  BINARY(sub, T, S, T, x - y)                                                                                          \
  BINARY(mul, T, S, T, x *y)                                                                                           \
  BINARY(div, T, S, T, x / y)                                                                                          \
  BINARY(scale, T, S, T, x != x ? x : scalbn##f(x, (int)y))                                                            \
  BINARY(max, T, S, T, max_##S(x, y))                                                                                  \
  BINARY(min, T, S, T, min_##S(x, y))                                                                                  \
  UNARY(neg, T, S, -x)                                                                                                 \
  UNARY(abs, T, S, fabs##f(x))                                                                                         \
  UNARY(sqrt, T, S, sqrt##f(x))                                                                                        \
  UNARY(floor, T, S, floor##f(x))                                                                                      \
  UNARY(ceil, T, S, ceil##f(x))                                                                                        \
  UNARY(round, T, S, rint##f(x))                                                                                       \
  UNARY(trunc, T, S, trunc##f(x))                                                                                      \
  COMPARISONS(T, S)                                                                                                    \
  static void fma_##S##_lanes(const struct kern_step *s) {                                                             \
    T *to = s->to;                                                                                                     \
    const T *a = s->arg[0], *b = s->arg[1], *c = s->arg[2];                                                            \
    for (int i = 0; i < s->lanes; i++) to[i] = fma##f(a[i], b[i], c[i]);                                               \
  }

FLOATS(float, f32, f)
FLOATS(double, f64, )

#define U(x) ((uint64_t)(x))
#define INTS(T, S, kind, WIDE)                                                                                         \
  BINARY(add, T, S, T, U(x) + U(y))                                                                                    \
  BINARY(sub, T, S, T, U(x) - U(y))                                                                                    \
  BINARY(mul, T, S, T, U(x) * U(y))                                                                                    \
  BINARY(div, T, S, T, div_##kind((WIDE)x, (WIDE)y))                                                                   \
  BINARY(mod, T, S, T, mod_##kind((WIDE)x, (WIDE)y))                                                                   \
  BINARY(max, T, S, T, x > y ? x : y)                                                                                  \
  BINARY(min, T, S, T, x < y ? x : y)                                                                                  \
  BINARY(and, T, S, T, x &y)                                                                                           \
  BINARY(or, T, S, T, x | y)                                                                                           \
  BINARY(xor, T, S, T, x ^ y)                                                                                          \
  BINARY(shl, T, S, T, shl(U(x), U((WIDE)y), 8 * (unsigned)sizeof(T)))                                                 \
  BINARY(shr, T, S, T, shr_##kind((WIDE)x, U((WIDE)y), 8 * (unsigned)sizeof(T)))                                       \
  UNARY(neg, T, S, 0 - U(x))                                                                                           \
  UNARY(not, T, S, ~U(x))                                                                                              \
  COMPARISONS(T, S)
#define SIGNED(T, S)                                                                                                   \
  INTS(T, S, signed, int64_t)                                                                                          \
  UNARY(abs, T, S, x < 0 ? 0 - U(x) : U(x))
#define UNSIGNED(T, S)                                                                                                 \
  INTS(T, S, unsigned, uint64_t)                                                                                       \
  UNARY(abs, T, S, x)

SIGNED(int8_t, i8)
SIGNED(int16_t, i16)
SIGNED(int32_t, i32)
SIGNED(int64_t, i64)
UNSIGNED(uint8_t, u8)
UNSIGNED(uint16_t, u16)
UNSIGNED(uint32_t, u32)
UNSIGNED(uint64_t, u64)

BINARY(max, uint8_t, b8, uint8_t, x | y)
BINARY(min, uint8_t, b8, uint8_t, x &y)
BINARY(and, uint8_t, b8, uint8_t, x &y)
BINARY(or, uint8_t, b8, uint8_t, x | y)
BINARY(xor, uint8_t, b8, uint8_t, x ^ y)
UNARY(not, uint8_t, b8, 1 - x)
COMPARISONS(uint8_t, b8)

static void idiv_i64_lanes(const struct kern_step *s) {
  int64_t *to = s->to;
  const int64_t *a = s->arg[0];
  for (int i = 0; i < s->lanes; i++) to[i] = kern_floor_div(a[i], s->imm);
}

static void imod_i64_lanes(const struct kern_step *s) {
  int64_t *to = s->to;
  const int64_t *a = s->arg[0];
  for (int i = 0; i < s->lanes; i++) to[i] = mod_signed(a[i], s->imm);
}

static void dot4_i32_lanes(const struct kern_step *s) {
  int32_t *to = s->to;
  const int32_t *a = s->arg[0];
  const uint8_t *b = s->arg[1];
  const int8_t *c = s->arg[2];
  for (int i = 0; i < s->lanes; i++) {
    uint32_t sum = (uint32_t)a[i];
    for (int k = 4 * i; k < 4 * i + 4; k++) sum += (uint32_t)(b[k] * c[k]);
    to[i] = (int32_t)sum;
  }
}

/* ---- tensor cores ---------------------------------------------------------------------------------- */

static float of_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

enum { TF32_DROPPED = 0x1fff }; /* bits of an f32 that a tf32 has not */
static inline float cut_tf32(float x) { return of_bits(bits_of(x) & ~(uint32_t)TF32_DROPPED); }
static inline float round_tf32(float x) { /* to nearest even; what is no number stays */
  uint32_t u = bits_of(x);
  return (u & 0x7f800000u) == 0x7f800000u ? x : cut_tf32(of_bits(u + TF32_DROPPED / 2 + (u >> 13 & 1)));
}
UNARY(tf32, float, f32, round_tf32(x))

static inline float exp2_flushed(float x) {
  float y = (float)exp2((double)x);
  return y < 0x1p-126f ? 0 : y;
}
UNARY(exp2, float, f32, exp2_flushed(x))

/* A warp: thread i has numbers 4 i, ... of sums and a, 2 i and 2 i + 1 of b. Terms are added in their order, each product exact. */
static void multiply_warp(float *to, const float *sums, const float *a, const float *b) {
  for (int i = 0; i < 4 * KERN_WARP; i++) {
    int thread = i / 4, row = i % 4 / 2, column = 2 * (thread % 4) + i % 2;
    float sum = sums[i];
    for (int k = 0; k < 8; k++) {
      float x = a[4 * (thread / 4 * 4 + k / 2) + row + 2 * (k % 2)], y = b[2 * (4 * column + k / 2) + k % 2];
      sum = fmaf(cut_tf32(x), cut_tf32(y), sum);
    }
    to[i] = sum;
  }
}
static void mma_f32_lanes(const struct kern_step *s) {
  const float *sums = s->arg[0], *a = s->arg[1], *b = s->arg[2];
  for (int i = 0; i < s->lanes; i += 4 * KERN_WARP) multiply_warp((float *)s->to + i, sums + i, a + i, b + i / 2);
}

/* ---- the table ------------------------------------------------------------------------------------------- */

#define ROW(OP, op, S, DTYPE) [KERN_##OP][QUERN_DTYPE_##DTYPE] = op##_##S##_lanes
#define COMPARISON_ROWS(S, DTYPE) ROW(EQ, eq, S, DTYPE), ROW(LT, lt, S, DTYPE), ROW(LE, le, S, DTYPE)
#define EXTREME_ROWS(S, DTYPE) ROW(MAX, max, S, DTYPE), ROW(MIN, min, S, DTYPE)
#define BIT_ROWS(S, DTYPE)                                                                                             \
  ROW(AND, and, S, DTYPE), ROW(OR, or, S, DTYPE), ROW(XOR, xor, S, DTYPE), ROW(NOT, not, S, DTYPE)
#define NUMBER_ROWS(S, DTYPE)                                                                                          \
  ROW(ADD, add, S, DTYPE), ROW(SUB, sub, S, DTYPE), ROW(MUL, mul, S, DTYPE), ROW(DIV, div, S, DTYPE),                  \
      ROW(NEG, neg, S, DTYPE), ROW(ABS, abs, S, DTYPE), EXTREME_ROWS(S, DTYPE), COMPARISON_ROWS(S, DTYPE)
#define FLOAT_ROWS(S, DTYPE)                                                                                           \
  NUMBER_ROWS(S, DTYPE), ROW(FMA, fma, S, DTYPE), ROW(SCALE, scale, S, DTYPE), ROW(SQRT, sqrt, S, DTYPE),              \
      ROW(FLOOR, floor, S, DTYPE), ROW(CEIL, ceil, S, DTYPE), ROW(ROUND, round, S, DTYPE), ROW(TRUNC, trunc, S, DTYPE)
#define INT_ROWS(S, DTYPE)                                                                                             \
  NUMBER_ROWS(S, DTYPE), BIT_ROWS(S, DTYPE), ROW(MOD, mod, S, DTYPE), ROW(SHL, shl, S, DTYPE), ROW(SHR, shr, S, DTYPE)

kern_run *kern_run_arith(enum kern_op op, quern_dtype dtype) {
  static kern_run *const runs[KERN_OP_COUNT][QUERN_DTYPE_COUNT] = {
      FLOAT_ROWS(f64, F64),      FLOAT_ROWS(f32, F32),      INT_ROWS(i8, I8),          INT_ROWS(i16, I16),
      INT_ROWS(i32, I32),        INT_ROWS(i64, I64),        INT_ROWS(u8, U8),          INT_ROWS(u16, U16),
      INT_ROWS(u32, U32),        INT_ROWS(u64, U64),        EXTREME_ROWS(b8, BOOL),    BIT_ROWS(b8, BOOL),
      COMPARISON_ROWS(b8, BOOL), ROW(IDIV, idiv, i64, I64), ROW(IMOD, imod, i64, I64), ROW(DOT4, dot4, i32, I32),
      ROW(TF32, tf32, f32, F32), ROW(EXP2, exp2, f32, F32), ROW(MMA, mma, f32, F32),
  };
  return runs[op][dtype];
}
