/* tensor/matmul.c -- products of matrices, and the contraction of two operands by labeled axes
** keeps: no operand is stretched for a batch axis that it lacks: the axis is a free one of the other operand
** tests: tests/tensor/test_matmul.c
*/
#include "tensor/tensor.h"

/* ---- two operands with labeled axes ------------------------------------------------------------------- */

static int find_label(int label, int n, const int *labels) {
  for (int k = 0; k < n; k++) {
    if (labels[k] == label) return k;
  }
  return -1;
}

quern_tensor *tensor_align(quern_tensor *x, const int *labels, int n_out, const int *out) {
  if (ir_is_poison(x)) return &ir_poison;
  int64_t order[QUERN_MAX_RANK], dims[QUERN_MAX_RANK];
  for (int k = 0, n = 0; k < n_out; k++) {
    int at = find_label(out[k], x->rank, labels);
    dims[k] = at < 0 ? 1 : x->dims[at];
    if (at >= 0) order[n++] = at;
  }
  return tensor_reshape(tensor_permute(x, order), n_out, dims);
}

quern_tensor *tensor_combine(enum ir_combine combine, quern_tensor *a, quern_tensor *b) {
  static quern_tensor *(*const builders[IR_COMBINE_COUNT])(quern_tensor *,
                                                           quern_tensor *) = {[IR_COMBINE_MUL] = quern_mul,
                                                                              [IR_COMBINE_ADD] = quern_add,
                                                                              [IR_COMBINE_MAX] = quern_maximum,
                                                                              [IR_COMBINE_MIN] = quern_minimum};
  return builders[combine](a, b);
}

quern_tensor *tensor_contract(const char *what, quern_tensor *a, const int *a_labels, quern_tensor *b,
                              const int *b_labels, int n_out, const int *out, enum ir_reduce reduce,
                              enum ir_combine combine) {
  if (ir_is_poison(a) || ir_is_poison(b)) return &ir_poison;
  quern_context *ctx = a->node->ctx;
  TENSOR_CHECK(ctx, n_out <= QUERN_MAX_RANK, SHAPE, "%s: a product of %s and %s would have rank %d, at most %d", what,
               TENSOR_SHAPE(a), TENSOR_SHAPE(b), n_out, (int)QUERN_MAX_RANK);
  int64_t dims[QUERN_MAX_RANK] = {0};
  for (int k = 0; k < n_out; k++) {
    int in_a = find_label(out[k], a->rank, a_labels), in_b = find_label(out[k], b->rank, b_labels);
    dims[k] = in_a >= 0 ? a->dims[in_a] : in_b >= 0 ? b->dims[in_b] : 1;
  }
  if (!tensor_type_ok(what, ctx, a->dtype, n_out, dims)) return &ir_poison;
  /* The operand that has the result's first free axis comes first: then most results need no permutation. */
  for (int k = 0; k < n_out; k++) {
    bool in_a = find_label(out[k], a->rank, a_labels) >= 0, in_b = find_label(out[k], b->rank, b_labels) >= 0;
    if (in_a && in_b) continue;
    if (in_b) {
      quern_tensor *x = a;
      const int *labels = a_labels;
      a = b, b = x, a_labels = b_labels, b_labels = labels;
    }
    break;
  }
  int64_t a_batch[QUERN_MAX_RANK], b_batch[QUERN_MAX_RANK], a_sum[QUERN_MAX_RANK], b_sum[QUERN_MAX_RANK];
  int n_batch = 0, n_sum = 0, n = 0, given[2 * QUERN_MAX_RANK];
  for (int k = 0; k < n_out; k++) {
    int in_a = find_label(out[k], a->rank, a_labels), in_b = find_label(out[k], b->rank, b_labels);
    if (in_a < 0 || in_b < 0) continue;
    a_batch[n_batch] = in_a, b_batch[n_batch++] = in_b;
    given[n++] = out[k];
  }
  for (int k = 0; k < a->rank; k++) {
    int in_b = find_label(a_labels[k], b->rank, b_labels);
    if (find_label(a_labels[k], n_out, out) < 0) {
      a_sum[n_sum] = k, b_sum[n_sum++] = in_b;
    } else if (in_b < 0) {
      given[n++] = a_labels[k];
    }
  }
  if (n_sum == 0) {
    a = tensor_align(a, a_labels, n_out, out);
    return tensor_combine(combine, a, tensor_align(b, b_labels, n_out, out));
  }
  for (int k = 0; k < b->rank; k++) {
    if (find_label(b_labels[k], a->rank, a_labels) < 0) given[n++] = b_labels[k];
  }
  quern_tensor *y =
      IR_MAKE(ctx, IR_DOT,
              TENSOR_ATTRS(.a_batch = {n_batch, a_batch}, .b_batch = {n_batch, b_batch}, .a_sum = {n_sum, a_sum},
                           .b_sum = {n_sum, b_sum}, .reduce = reduce, .combine = combine),
              a, b);
  int64_t order[QUERN_MAX_RANK];
  for (int k = 0; k < n_out; k++) order[k] = find_label(out[k], n, given);
  return tensor_permute(y, order);
}

/* ---- matrix products ----------------------------------------------------------------------------------- */

enum { ROW = -1, COLUMN = -2, INNER = -3 }; /* labels; a batch axis has its place from the end, from 0 on */

/* An operand's labels: batch axes, then the matrix's; and the operand without batch axes of size 1 that the
** other stretches. */
static quern_tensor *label_operand(quern_tensor *x, const quern_tensor *other, int n_matrix, const int *matrix,
                                   int other_matrix, int *labels) {
  int64_t dims[QUERN_MAX_RANK];
  int n = 0, batch = x->rank - n_matrix;
  for (int k = 0; k < batch; k++) {
    int place = batch - 1 - k, at = other->rank - other_matrix - 1 - place;
    if (x->dims[k] == 1 && at >= 0 && other->dims[at] != 1) continue;
    labels[n] = place;
    dims[n++] = x->dims[k];
  }
  for (int k = 0; k < n_matrix; k++) {
    labels[n] = matrix[k];
    dims[n++] = x->dims[batch + k];
  }
  return tensor_reshape(x, n, dims);
}

quern_tensor *quern_matmul(quern_tensor *a, quern_tensor *b) {
  TENSOR_ENTER(ctx, "matmul", a, b);
  if (!tensor_same_dtype("matmul", 2, (quern_tensor *[]){a, b}) || !tensor_admits("matmul", a, BASE_NUM))
    return &ir_poison;
  TENSOR_CHECK(ctx, a->rank >= 1 && b->rank >= 1, SHAPE,
               "matmul: a is %s, b is %s; scalars have no rows HINT: quern_mul scales", TENSOR_SHAPE(a),
               TENSOR_SHAPE(b));
  int a_matrix = BASE_MIN(a->rank, 2), b_matrix = BASE_MIN(b->rank, 2);
  int64_t a_inner = a->dims[a->rank - 1], b_inner = b->dims[b->rank - b_matrix];
  if (a_inner != b_inner) {
    bool weight = b->rank == 2 && a_inner == b->dims[1];
    return ir_fail(ctx, QUERN_STATUS_SHAPE,
                   "matmul: inner dimensions differ: a is %s, b is %s; a's last must equal b's %s%s", TENSOR_SHAPE(a),
                   TENSOR_SHAPE(b), b->rank <= 2 ? "first" : "second last",
                   weight ? " HINT: did you mean quern_linear, which takes weight as (out, in)?" : "");
  }
  int a_labels[QUERN_MAX_RANK] = {0}, b_labels[QUERN_MAX_RANK] = {0}, out[QUERN_MAX_RANK + 2] = {0}, n = 0;
  for (int place = BASE_MAX(a->rank - a_matrix, b->rank - b_matrix) - 1; place >= 0; place--) {
    int in_a = a->rank - a_matrix - 1 - place, in_b = b->rank - b_matrix - 1 - place;
    if (in_a >= 0 && in_b >= 0) {
      int64_t size_a = a->dims[in_a], size_b = b->dims[in_b];
      TENSOR_CHECK(ctx, size_a == size_b || size_a == 1 || size_b == 1, SHAPE,
                   "matmul: batch axes do not broadcast: a is %s, b is %s; %lld and %lld differ", TENSOR_SHAPE(a),
                   TENSOR_SHAPE(b), (long long)size_a, (long long)size_b);
    }
    out[n++] = place;
  }
  if (a_matrix == 2) out[n++] = ROW;
  if (b_matrix == 2) out[n++] = COLUMN;
  quern_tensor *x =
      label_operand(a, b, a_matrix, a_matrix == 2 ? (int[]){ROW, INNER} : (int[]){INNER}, b_matrix, a_labels);
  quern_tensor *y =
      label_operand(b, a, b_matrix, b_matrix == 2 ? (int[]){INNER, COLUMN} : (int[]){INNER}, a_matrix, b_labels);
  return tensor_contract("matmul", x, a_labels, y, b_labels, n, out, IR_SUM, IR_COMBINE_MUL);
}

quern_tensor *quern_linear(quern_tensor *x, quern_tensor *weight, quern_tensor *bias) {
  TENSOR_ENTER(ctx, "linear", x, weight, bias != NULL ? bias : x);
  if (!tensor_same_dtype("linear", bias != NULL ? 3 : 2, (quern_tensor *[]){x, weight, bias}) ||
      !tensor_admits("linear", x, BASE_NUM)) {
    return &ir_poison;
  }
  TENSOR_CHECK(ctx, x->rank >= 1 && weight->rank == 2 && x->dims[x->rank - 1] == weight->dims[1], SHAPE,
               "linear: x is %s, weight is %s; weight must be (out, in), x's last must equal in", TENSOR_SHAPE(x),
               TENSOR_SHAPE(weight));
  TENSOR_CHECK(ctx, bias == NULL || (bias->rank == 1 && bias->dims[0] == weight->dims[0]), SHAPE,
               "linear: bias is %s, weight is %s; bias must be (out,)", TENSOR_SHAPE(bias), TENSOR_SHAPE(weight));
  quern_tensor *y = IR_MAKE(ctx, IR_DOT, TENSOR_ATTRS(.a_sum = IR_INTS(x->rank - 1), .b_sum = IR_INTS(1)), x, weight);
  return bias == NULL ? y : quern_add(y, bias);
}
