/* base/philox.c -- counter-based random numbers: bits, uniform, normal
** keeps: the same bits on every machine: integers, IEEE f32 sums and products, one root, no contraction
** see:   Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11; Box and Muller, 1958
** tests: tests/base/test_random.c
*/
#include "base/base.h"

#include <math.h>
#include <string.h>

void base_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; round++) {
    uint64_t a = UINT64_C(0xd2511f53) * c0, b = UINT64_C(0xcd9e8d57) * c2;
    c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)b;
    c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)a;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

uint32_t base_random_bits(uint64_t seed, uint64_t step, uint32_t stream, uint64_t i) {
  uint32_t counter[4] = {(uint32_t)(i / 4), stream, (uint32_t)step, (uint32_t)(step >> 32)};
  uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, out[4];
  base_philox(counter, key, out);
  return out[i % 4];
}

float base_random_uniform(uint32_t bits) { return (float)(bits >> 8) * 0x1p-24f; }

/* z = sqrt(-2 ln u) cos(2 pi v), u = ((bits0 >> 8) + 1) / 2^24 in (0, 1], v = (bits1 >> 8) / 2^24 in [0, 1).
** Every line below is one operation: + - * sqrt of f32, each rounded to nearest; + & ^ << >> != of u32;
** select (?:); the cast of a u32 of at most 2^24 to f32, which is exact; base_bits_float, base_float_bits, which keep
** bits. tensor/random.c builds the same list.
**
**   ln u = k ln 2 + ln(1 + f) with 1 + f in [sqrt 1/2, sqrt 2): u's bits + 0x004afb0d (the bits of 1 minus
**   those of sqrt 1/2) have k + 127 as exponent; their fraction + the bits of sqrt 1/2 are the bits of 1 + f.
**   ln(1 + f) = f - f^2/2 + f^3 P(f), P minimax of degree 7, relative error 6e-9; ln 2 is in two parts, k
**   times the first is exact.
**
**   2 pi v = q pi/2 + x with x in [-pi/4, pi/4), q in 0..4: with n = v 2^24 and t = n + 2^21, q is t >> 22,
**   and x is the rest minus 2^21, times 2 pi / 2^24.
**   sin x = x + x^3 S(x^2), error 4e-9; cos x = 1 - x^2/2 + x^4 C(x^2), error 1e-10; S, C minimax, degree 2.
**   q = 0, 1, 2, 3, 4 takes cos x, -sin x, -cos x, sin x, cos x.
*/
float base_random_normal(uint32_t bits0, uint32_t bits1) {
  /* u and ln u */
  uint32_t u_top = bits0 >> 8;
  uint32_t u_int = u_top + 1u;
  float u_flt = (float)u_int;
  float u = u_flt * 0x1p-24f;
  uint32_t u_bits = base_float_bits(u);
  uint32_t w = u_bits + 0x004afb0du;
  uint32_t k_int = w >> 23;
  float k_flt = (float)k_int;
  float k = k_flt - 127.0f;
  uint32_t w_frac = w & 0x007fffffu;
  uint32_t m_bits = w_frac + 0x3f3504f3u;
  float m = base_bits_float(m_bits);
  float f = m - 1.0f;
  float f2 = f * f;
  float f3 = f2 * f;
  float p = -0x1.41ee1ep-4f * f;
  p = p + 0x1.07d0f2p-3f;
  p = p * f;
  p = p + -0x1.0ce078p-3f;
  p = p * f;
  p = p + 0x1.226e48p-3f;
  p = p * f;
  p = p + -0x1.54788cp-3f;
  p = p * f;
  p = p + 0x1.99a596p-3f;
  p = p * f;
  p = p + -0x1.00022p-2f;
  p = p * f;
  p = p + 0x1.55554ap-2f;
  p = p * f3;
  float k_low = k * 0x1.0bfbe8p-15f;
  p = p + k_low;
  float half = f2 * 0.5f;
  p = p - half;
  p = p + f;
  float k_high = k * 0x1.62ep-1f;
  float ln = p + k_high;
  /* radius */
  float square = ln * -2.0f;
  float radius = sqrtf(square);
  /* angle */
  uint32_t n = bits1 >> 8;
  uint32_t t = n + 0x00200000u;
  uint32_t q = t >> 22;
  uint32_t x_int = t & 0x003fffffu;
  float x_flt = (float)x_int;
  float x_turn = x_flt - 0x1p21f;
  float x = x_turn * 0x1.921fb6p-22f;
  float z = x * x;
  float s = z * -0x1.994eb4p-13f;
  s = s + 0x1.11076p-7f;
  s = s * z;
  s = s + -0x1.555546p-3f;
  s = s * z;
  s = s * x;
  s = s + x;
  float z2 = z * z;
  float c = z * 0x1.9a025ap-16f;
  c = c + -0x1.6c0c8cp-10f;
  c = c * z;
  c = c + 0x1.55554ap-5f;
  c = c * z2;
  float z_half = z * 0.5f;
  c = c - z_half;
  c = c + 1.0f;
  uint32_t q_odd = q & 1u;
  float turned = q_odd != 0u ? s : c;
  uint32_t q_next = q + 1u;
  uint32_t q_minus = q_next & 2u;
  uint32_t sign = q_minus << 30;
  uint32_t turned_bits = base_float_bits(turned);
  uint32_t signed_bits = turned_bits ^ sign;
  float cosine = base_bits_float(signed_bits);
  return radius * cosine;
}
