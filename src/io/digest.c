/* io/digest.c -- XXH64, a digest that finds damage at the speed of memory
** keeps: the digest does not depend on how the bytes are cut into calls
** see:   Yann Collet, "xxHash fast digest algorithm", doc/xxhash_spec.md of the xxHash project; the seed is 0
** tests: tests/io/test_digest.c, tests/oracle/compare_safetensors.py
*/
#include "io/io.h"

#define P1 UINT64_C(0x9e3779b185ebca87)
#define P2 UINT64_C(0xc2b2ae3d27d4eb4f)
#define P3 UINT64_C(0x165667b19e3779f9)
#define P4 UINT64_C(0x85ebca77c2b2ae63)
#define P5 UINT64_C(0x27d4eb2f165667c5)

enum { STRIPE = sizeof((struct io_digest *)0)->rest };

static uint64_t rotate(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

/* Bytes as a number, lowest first: those who write digests refuse machines where that is not so. */
static uint64_t load4(const unsigned char *at) {
  uint32_t x;
  memcpy(&x, at, sizeof x);
  return x;
}
static uint64_t load8(const unsigned char *at) {
  uint64_t x;
  memcpy(&x, at, sizeof x);
  return x;
}

static uint64_t mix(uint64_t lane, uint64_t word) { return rotate(lane + word * P2, 31) * P1; }

void io_digest_init(struct io_digest *digest) { *digest = (struct io_digest){.lanes = {P1 + P2, P2, 0, 0 - P1}}; }

static const unsigned char *add_stripes(struct io_digest *digest, const unsigned char *at, size_t n) {
  uint64_t a = digest->lanes[0], b = digest->lanes[1], c = digest->lanes[2], d = digest->lanes[3];
  for (size_t i = 0; i < n; i++, at += STRIPE) {
    a = mix(a, load8(at));
    b = mix(b, load8(at + 8));
    c = mix(c, load8(at + 16));
    d = mix(d, load8(at + 24));
  }
  memcpy(digest->lanes, (uint64_t[]){a, b, c, d}, sizeof digest->lanes);
  return at;
}

void io_digest_add(struct io_digest *digest, const void *bytes, size_t n) {
  const unsigned char *at = bytes;
  size_t held = (size_t)(digest->total % STRIPE);
  if (n == 0) return;
  digest->total += n;
  if (held > 0) {
    size_t more = BASE_MIN(n, STRIPE - held);
    memcpy(digest->rest + held, at, more);
    at += more;
    n -= more;
    if (held + more < STRIPE) return;
    add_stripes(digest, digest->rest, 1);
  }
  at = add_stripes(digest, at, n / STRIPE);
  memcpy(digest->rest, at, n % STRIPE);
}

uint64_t io_digest_get(const struct io_digest *digest) {
  const uint64_t *lane = digest->lanes;
  uint64_t hash = P5;
  if (digest->total >= STRIPE) {
    hash = rotate(lane[0], 1) + rotate(lane[1], 7) + rotate(lane[2], 12) + rotate(lane[3], 18);
    for (int i = 0; i < 4; i++) hash = (hash ^ mix(0, lane[i])) * P1 + P4;
  }
  hash += digest->total;
  const unsigned char *at = digest->rest, *end = at + digest->total % STRIPE;
  for (; end - at >= 8; at += 8) hash = rotate(hash ^ mix(0, load8(at)), 27) * P1 + P4;
  for (; end - at >= 4; at += 4) hash = rotate(hash ^ load4(at) * P1, 23) * P2 + P3;
  for (; at < end; at++) hash = rotate(hash ^ *at * P5, 11) * P1;
  hash = (hash ^ hash >> 33) * P2;
  hash = (hash ^ hash >> 29) * P3;
  return hash ^ hash >> 32;
}

uint64_t io_digest_of(const void *bytes, size_t n) {
  struct io_digest digest;
  io_digest_init(&digest);
  io_digest_add(&digest, bytes, n);
  return io_digest_get(&digest);
}
