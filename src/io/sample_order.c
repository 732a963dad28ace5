/* io/sample_order.c -- orders of samples as functions of (seed, epoch, position): nothing to store, nothing to replay
** Shuffled: a permutation of rows x cols >= n places by rounds that add to the row a function of the column and in turn, each of
** which can be undone; a place from n on is permuted again until it is below n (cycle walking), which keeps it a permutation.
** Weighted: a column by chance, then it or its other by the part that is its own.
** see:   Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002; Vose, "A linear algorithm for generating random
**        numbers with a given distribution", 1991; Philox: base/philox.c
** tests: tests/io/test_data.c
*/
#include "io/data.h"

#include <inttypes.h>

enum { ROUNDS = 8, LEAST = 16 }; /* LEAST rows and columns: fewer make few permutations */
enum { STREAM_SHUFFLE = 1, STREAM_DRAW = 2 };

/* ---- chance -------------------------------------------------------------------------------------------- */

/* Four words of a seed, an epoch, a stream and a number below 2^56. */
static void draw(const struct io_sample_order *order, uint64_t epoch, uint32_t stream, uint64_t i, uint32_t out[4]) {
  const uint32_t counter[4] = {(uint32_t)i, (uint32_t)(i >> 32) | stream << 24, (uint32_t)epoch,
                               (uint32_t)(epoch >> 32)};
  const uint32_t key[2] = {(uint32_t)order->seed, (uint32_t)(order->seed >> 32)};
  base_philox(counter, key, out);
}

/* A number below n <= 2^32 from 64 bits: their product's upper half. */
static uint64_t scale(uint32_t high, uint32_t low, uint64_t n) { return (high * n + (low * n >> 32)) >> 32; }

/* ---- permutations -------------------------------------------------------------------------------------- */

/* The least x with x * x >= n. */
static uint64_t root(uint64_t n) {
  uint64_t low = 0, high = UINT64_C(1) << 32;
  while (low < high) {
    uint64_t x = low + (high - low) / 2;
    if (x * x >= n)
      high = x;
    else
      low = x + 1;
  }
  return low;
}

static uint64_t permute(const struct io_sample_order *order, uint64_t epoch, uint64_t place) {
  uint64_t row = place / order->cols, col = place % order->cols;
  for (uint32_t round = 0; round < ROUNDS; round++) {
    bool of_row = round % 2 == 0;
    uint32_t bits[4];
    draw(order, epoch, STREAM_SHUFFLE, (uint64_t)round << 32 | (uint32_t)(of_row ? col : row), bits);
    if (of_row)
      row = (row + scale(bits[0], bits[1], order->rows)) % order->rows;
    else
      col = (col + scale(bits[0], bits[1], order->cols)) % order->cols;
  }
  return row * order->cols + col;
}

/* ---- weights ------------------------------------------------------------------------------------------- */

/* Gives each column its part: those with too little take the rest from one with too much. */
static quern_status fill_columns(struct io_sample_order *order, struct base_heap *heap, const double *weights) {
  size_t n = (size_t)order->n, few = 0, many = n;
  double sum = 0;
  for (size_t i = 0; i < n; i++) {
    QUERN_CHECK(weights[i] >= 0 && weights[i] <= 1e300, INVALID, "weight %zu is %g", i, weights[i]);
    sum += weights[i];
  }
  QUERN_CHECK(sum > 0 && sum <= 1e300, INVALID, "the weights sum up to %g", sum);
  uint32_t *stack = base_alloc(heap, n * sizeof *stack); /* columns with too little from below, the others from above */
  if (stack == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < n; i++) {
    order->keep[i] = weights[i] / sum * (double)n;
    order->other[i] = (uint32_t)i;
    stack[order->keep[i] < 1 ? few++ : --many] = (uint32_t)i;
  }
  while (few > 0 && many < n) {
    uint32_t less = stack[--few], more = stack[many];
    order->other[less] = more;
    order->keep[more] -= 1 - order->keep[less];
    if (order->keep[more] < 1) {
      many++;
      stack[few++] = more;
    }
  }
  while (few > 0) order->keep[stack[--few]] = 1; /* what rounding left */
  base_free(heap, stack, n * sizeof *stack);
  return QUERN_STATUS_OK;
}

/* ---- orders -------------------------------------------------------------------------------------------- */

quern_status io_sample_order_init(struct io_sample_order *order, struct base_heap *heap, quern_order kind,
                                  uint64_t seed, int64_t n, const double *weights) {
  *order = (struct io_sample_order){.kind = kind, .seed = seed, .n = n};
  QUERN_CHECK(n > 0 && n < INT64_C(1) << 56, INVALID, "%" PRId64 " samples cannot be put into an order", n);
  order->rows = BASE_MAX(root((uint64_t)n), LEAST);
  order->cols = BASE_MAX(((uint64_t)n + order->rows - 1) / order->rows, LEAST);
  if (kind != QUERN_ORDER_WEIGHTED) return QUERN_STATUS_OK;
  QUERN_CHECK(n <= UINT32_MAX, INVALID, "%" PRId64 " samples are too many for weights", n);
  order->keep = base_alloc(heap, (size_t)n * sizeof *order->keep);
  order->other = base_alloc(heap, (size_t)n * sizeof *order->other);
  quern_status status =
      order->keep != NULL && order->other != NULL ? fill_columns(order, heap, weights) : QUERN_STATUS_MEMORY;
  if (status != QUERN_STATUS_OK) io_sample_order_fini(order, heap);
  return status;
}

void io_sample_order_fini(struct io_sample_order *order, struct base_heap *heap) {
  base_free(heap, order->keep, (size_t)order->n * sizeof *order->keep);
  base_free(heap, order->other, (size_t)order->n * sizeof *order->other);
  order->keep = NULL;
  order->other = NULL;
}

int64_t io_sample_order_at(const struct io_sample_order *order, uint64_t epoch, int64_t position) {
  uint32_t bits[4];
  if (order->kind == QUERN_ORDER_SHUFFLED) {
    uint64_t place = (uint64_t)position;
    do place = permute(order, epoch, place);
    while (place >= (uint64_t)order->n);
    return (int64_t)place;
  }
  if (order->kind == QUERN_ORDER_SEQUENTIAL) return position;
  draw(order, epoch, STREAM_DRAW, (uint64_t)position, bits);
  uint64_t column = scale(bits[0], bits[1], (uint64_t)order->n);
  double piece = (double)(((uint64_t)bits[2] << 32 | bits[3]) >> 11) * 0x1p-53;
  return piece < order->keep[column] ? (int64_t)column : (int64_t)order->other[column];
}
