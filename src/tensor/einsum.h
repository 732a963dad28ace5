/* tensor/einsum.h -- the parts of einsum: reading the spec, choosing the order, building
** A label is the number of an index; sets of labels are words, one bit a label.
*/
#ifndef TENSOR_EINSUM_H
#define TENSOR_EINSUM_H
#include "tensor/tensor.h"

enum { EINSUM_MAX_LABELS = 64, EINSUM_EXACT = 8, EINSUM_WINDOW = 32 };

struct einsum_label {
  const char *name; /* in the spec, not ended by 0 */
  int length;       /* 0: an axis of "..." */
  int place;        /* of "...": counted from its end, from 0 on */
  int64_t size;     /* over all operands: 1 gives way */
  int operand;      /* that has the size */
  int count;        /* of occurrences in all operands */
};

/* An operand, or a result of two: each axis has a label. */
struct einsum_operand {
  quern_tensor *x;
  int labels[QUERN_MAX_RANK];
  uint64_t set; /* of labels */
};

struct einsum {
  const char *what; /* the builder's name */
  quern_context *ctx;
  const char *spec;
  char shown[160]; /* the spec in messages: a long one is cut */
  int n;
  struct einsum_operand *operands; /* 2 n - 1: the results of pairs come after the operands */
  int n_labels;
  struct einsum_label labels[EINSUM_MAX_LABELS];
  int n_out, out[QUERN_MAX_RANK];
};

struct einsum_pair {
  int a, b;
};

/* Reads the spec for the operands' shapes: labels and out. False with the error recorded. */
bool tensor_einsum_parse(struct einsum *e);

/* The n - 1 pairs to contract, results being numbered from n on: with the fewest multiply-adds when n is
** at most EINSUM_EXACT, else chosen greedily among the first EINSUM_WINDOW operands left. size has one
** number a label. */
void tensor_einsum_order(int n, const uint64_t *sets, uint64_t out, const int64_t *size, struct einsum_pair *pairs);

#endif
