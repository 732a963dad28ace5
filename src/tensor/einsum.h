/* tensor/einsum.h -- the parts of einsum: reading the spec, choosing the order, building
** A label is the number of an index. uses[label] counts the operands that have it, and the result when it does: what is
** used once is summed, what is not used beyond a pair disappears with it.
*/
#ifndef TENSOR_EINSUM_H
#define TENSOR_EINSUM_H
#include "tensor/tensor.h"

enum { EINSUM_EXACT = 8, EINSUM_WINDOW = 32 };

struct einsum_label {
  const char *name; /* in the spec, not ended by 0 */
  int length;       /* 0: an axis of "..." */
  int place;        /* of "...": counted from its end, from 0 on */
  int64_t size;     /* over all operands: 1 gives way */
  int operand;      /* that has the size */
  int count;        /* of occurrences in all operands */
};

/* Distinct labels, one per axis. */
struct einsum_term {
  int n, labels[QUERN_MAX_RANK];
};

/* An operand, or a result of two. While the spec is read a label may occur twice, which means a diagonal. */
struct einsum_operand {
  quern_tensor *x;
  struct einsum_term term;
};

struct einsum {
  const char *what; /* the builder's name */
  quern_context *ctx;
  const char *spec;
  char shown[160]; /* the spec in messages: a long one is cut */
  int n;
  struct einsum_operand *operands; /* 2 n - 1: the results of pairs come after the operands */
  BASE_VEC(struct einsum_label) labels;
  struct einsum_term out;
};

struct einsum_pair {
  int a, b;
};

/* Reads the spec for the operands' shapes: labels and out. False with the error recorded. */
bool tensor_einsum_parse(struct einsum *e);

bool tensor_einsum_has(const struct einsum_term *term, int label);

/* Counts uses after a and b have become y. */
void tensor_einsum_join(const struct einsum_term *a, const struct einsum_term *b, const struct einsum_term *y,
                        int *uses);

/* The n - 1 pairs to contract, results being numbered from n on: with the fewest multiply-adds when n is
** at most EINSUM_EXACT, else chosen greedily among the first EINSUM_WINDOW operands left. size and uses have one number a
** label; uses is used up. */
void tensor_einsum_order(int n, const struct einsum_term *terms, const int64_t *size, int *uses,
                         struct einsum_pair *pairs);

#endif
