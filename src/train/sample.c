/* train/sample.c -- the choice of the next token from logits
** in:    logits, and how to choose          out: an id: a function of both, the seed and the position alone
** how:   weights exp((logit - largest) / temperature) in double; those that top_k and then top_p leave are found by halving the range
**        of logits, not by sorting; one of them is drawn by its weight with a number of a counter-based generator. Sums go from the
**        lowest id to the highest.
** tests: tests/train/test_sample.c
*/
#include "train/generate.h"

#include <math.h>

/* A number for every finite float, in the order of the floats; 0 and -0 have the same. */
static uint32_t key_of(float x) {
  uint32_t bits;
  x += 0.0f; /* -0 becomes 0 */
  memcpy(&bits, &x, sizeof bits);
  return (bits >> 31) != 0 ? ~bits : bits | UINT32_C(0x80000000);
}

static quern_status check_logits(size_t n, const float *logits, size_t *largest) {
  *largest = 0;
  for (size_t i = 0; i < n; i++) {
    QUERN_CHECK(isfinite(logits[i]), INVALID, "sample: logit %zu of %zu is %g; all must be finite", i, n,
                (double)logits[i]);
    if (logits[i] > logits[*largest]) *largest = i;
  }
  return QUERN_STATUS_OK;
}

/* Those that may be chosen, from the lowest id on. */
struct choices {
  const float *logits;
  double *weights; /* of all ids */
  uint32_t *ids;
  size_t n;
  uint32_t *rest; /* of halving */
};

static double weigh(const struct choices *c) {
  double sum = 0;
  for (size_t i = 0; i < c->n; i++) sum += c->weights[c->ids[i]];
  return sum;
}

/* The most likely stay, the fewest that have `enough` together: of their number, or else of their weight. The lowest ids of equals
** stay. Keys from high + 1 on are known to stay and have `sum`; those below low are not needed; the rest is halved. */
static void keep(struct choices *c, double enough, bool number) {
  uint32_t low = UINT32_MAX, high = 0;
  double sum = 0;
  size_t n = c->n;
  for (size_t i = 0; i < n; i++) {
    uint32_t key = key_of(c->logits[c->ids[i]]);
    low = BASE_MIN(low, key);
    high = BASE_MAX(high, key);
    c->rest[i] = c->ids[i];
  }
  while (low < high) {
    uint32_t middle = low + (high - low) / 2 + 1;
    double more = 0;
    for (size_t i = 0; i < n; i++)
      if (key_of(c->logits[c->rest[i]]) >= middle) more += number ? 1 : c->weights[c->rest[i]];
    bool up = sum + more >= enough;
    size_t left = 0;
    for (size_t i = 0; i < n; i++)
      if ((key_of(c->logits[c->rest[i]]) >= middle) == up) c->rest[left++] = c->rest[i];
    n = left;
    if (up) {
      low = middle;
    } else {
      high = middle - 1;
      sum += more;
    }
  }
  n = 0;
  for (size_t i = 0; i < c->n; i++) {
    uint32_t id = c->ids[i], key = key_of(c->logits[id]);
    if (key < low || (key == low && sum >= enough)) continue;
    if (key == low) sum += number ? 1 : c->weights[id];
    c->ids[n++] = id;
  }
  c->n = n;
}

/* The same of a part p of the weight. What weighs less than (1 - p) / n of all, of which even all n would not be missed, is left
** out first: most ids, as a rule. */
static void keep_part(struct choices *c, double p) {
  double all = weigh(c), little = (1 - p) * all / (2 * (double)c->n);
  size_t n = 0;
  for (size_t i = 0; i < c->n; i++)
    if (c->weights[c->ids[i]] >= little) c->ids[n++] = c->ids[i];
  c->n = n;
  keep(c, p * all, false);
}

/* In [0, 1), of 53 bits. */
static double draw(uint64_t seed, int64_t position) {
  enum { STREAM = 0x73616d70 };
  const uint32_t counter[4] = {0, STREAM, (uint32_t)position, (uint32_t)((uint64_t)position >> 32)};
  const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
  uint32_t out[4];
  base_philox(counter, key, out);
  uint64_t bits = (uint64_t)out[0] << 21 | out[1] >> 11;
  return (double)bits * 0x1p-53;
}

quern_status train_sampling_take(quern_sampling *s, const quern_sampling *sampling) {
  QUERN_CHECK(sampling != NULL, INVALID, "sample: the sampling is null");
  QUERN_TRY(base_take(quern_sampling, s, sampling, "sample"));
  if (s->top_p == 0) s->top_p = 1;
  QUERN_CHECK(isfinite(s->temperature) && s->temperature >= 0, INVALID,
              "sample: temperature is %g, must be finite and at least 0", s->temperature);
  QUERN_CHECK(s->top_k >= 0, INVALID, "sample: top_k is %lld, must be at least 0", (long long)s->top_k);
  QUERN_CHECK(s->top_p > 0 && s->top_p <= 1, INVALID, "sample: top_p is %g, must be above 0 and at most 1", s->top_p);
  return QUERN_STATUS_OK;
}

size_t train_sample_bytes(size_t n) { return n * (sizeof(double) + 2 * sizeof(uint32_t)); }

quern_status train_sample(const quern_sampling *s, int64_t position, size_t n, const float *logits, void *work,
                          uint32_t *id) {
  size_t largest;
  QUERN_TRY(check_logits(n, logits, &largest));
  *id = (uint32_t)largest;
  if (s->temperature == 0) return QUERN_STATUS_OK;
  struct choices c = {.logits = logits, .weights = work, .ids = (uint32_t *)((double *)work + n), .n = n};
  c.rest = c.ids + n;
  for (size_t i = 0; i < n; i++) c.ids[i] = (uint32_t)i;
  if (s->top_k > 0 && (uint64_t)s->top_k < n) keep(&c, (double)s->top_k, true);
  for (size_t i = 0; i < c.n; i++) /* of those that are left only: exp of all ids takes longer than a token on a GPU */
    c.weights[c.ids[i]] = exp(((double)logits[c.ids[i]] - (double)logits[largest]) / s->temperature);
  if (s->top_p < 1) keep_part(&c, s->top_p);
  double left = draw(s->seed, position) * weigh(&c), sum = 0;
  for (size_t i = 0; i < c.n; i++) {
    double weight = c.weights[c.ids[i]];
    if (weight == 0) continue;
    *id = c.ids[i]; /* the last one that has a weight, should rounding leave nothing */
    sum += weight;
    if (sum > left) break;
  }
  return QUERN_STATUS_OK;
}

quern_status quern_sample(const quern_sampling *sampling, int64_t position, size_t n, const float *logits,
                          uint32_t *id) {
  QUERN_CHECK(id != NULL, INVALID, "sample: the place for the id is null");
  *id = 0;
  quern_sampling s;
  QUERN_TRY(train_sampling_take(&s, sampling));
  QUERN_CHECK(position >= 0, INVALID, "sample: the position is %lld, must be at least 0", (long long)position);
  QUERN_CHECK(logits != NULL, INVALID, "sample: the logits are null");
  QUERN_CHECK(n >= 1 && n <= UINT32_MAX, INVALID, "sample: there are %zu logits, must be 1 to 2^32 - 1", n);
  struct base_heap heap;
  base_heap_init(&heap, NULL);
  void *work = base_alloc(&heap, train_sample_bytes(n));
  if (work == NULL) return QUERN_STATUS_MEMORY;
  quern_status status = train_sample(&s, position, n, logits, work, id);
  base_free(&heap, work, train_sample_bytes(n));
  return status;
}
