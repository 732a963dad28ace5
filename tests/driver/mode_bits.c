/* driver/mode_bits.c -- the same bits whichever way a graph is reached
** Each case, with its gradients where it has them, is evaluated; then again in a new context, after printing
** and parsing, after exact rewriting, after inlining composites. All results must be equal bit by bit; of a
** NaN only that it is one.
*/
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"

quern_status roots_of(const struct instance *in, quern_tensor **roots, size_t *n) {
  quern_tensor *x[CASE_OPERANDS], *loss = NULL;
  *n = 0;
  for (int i = 0; i < in->n_out; i++) {
    roots[(*n)++] = in->out[i];
    if (!base_dtype_is(quern_tensor_dtype(in->out[i]), BASE_FLOAT)) continue;
    quern_tensor *sum = quern_cast(quern_sum(quern_sin(in->out[i]), QUERN_ALL, false), QUERN_DTYPE_F64);
    loss = loss == NULL ? sum : quern_add(loss, sum);
  }
  if (loss == NULL || in->n_diff == 0 || !case_differentiable(in->c, "grad")) return quern_context_check(in->ctx);
  for (int i = 0; i < in->n_diff; i++) x[i] = in->leaf[in->diff[i]];
  QUERN_TRY(quern_grad(loss, (size_t)in->n_diff, x, roots + *n));
  *n += (size_t)in->n_diff;
  return QUERN_STATUS_OK;
}

int64_t first_difference(const quern_tensor *t, const void *a, const void *b) {
  quern_dtype dtype = quern_tensor_dtype(t);
  size_t size = quern_dtype_size(dtype);
  for (int64_t i = 0; i < quern_tensor_count(t); i++) {
    size_t at = (size_t)i;
    if (memcmp((const char *)a + at * size, (const char *)b + at * size, size) == 0) continue;
    if (base_dtype_is(dtype, BASE_FLOAT) && isnan(base_load_float(dtype, a, at)) &&
        isnan(base_load_float(dtype, b, at)))
      continue;
    return i;
  }
  return -1;
}

/* Evaluates the roots of another way and compares. */
static quern_status same(const char *way, const struct instance *in, size_t n, quern_tensor *const *roots,
                         quern_tensor *const *types, void *const *expected) {
  void *dst[ROOTS];
  for (size_t i = 0; i < n; i++)
    QUERN_CHECK(ir_same_type(roots[i], types[i]), INTERNAL, "%s: result %zu has another type", way, i);
  buffers_new(n, roots, dst);
  quern_status status = instance_eval(in, n, roots, dst, 0, NULL);
  for (size_t i = 0; i < n && status == QUERN_STATUS_OK; i++) {
    int64_t at = first_difference(types[i], dst[i], expected[i]);
    if (at >= 0)
      status = base_error(QUERN_STATUS_INTERNAL, "%s: result %zu differs at element %lld", way, i, (long long)at);
  }
  buffers_free(n, dst);
  return status;
}

static quern_status again(const struct test_case *c, quern_tensor *const *types, void *const *expected) {
  struct instance in;
  quern_tensor *roots[ROOTS];
  size_t n;
  if (!instance_open(&in, c)) return quern_last_status();
  quern_status status = roots_of(&in, roots, &n);
  if (status == QUERN_STATUS_OK) status = same("again", &in, n, roots, types, expected);
  instance_close(&in);
  return status;
}

/* Puts the leaves of a parsed graph in the places of the leaves they were printed from. */
static quern_status match_leaves(struct instance *parsed, const struct ir_module *module) {
  for (int i = 0; i < parsed->n_leaves; i++) {
    char name[16];
    snprintf(name, sizeof name, "x%d", i);
    parsed->leaf[i] = NULL;
    for (size_t k = 0; k < module->n_inputs; k++)
      if (strcmp(quern_tensor_name(module->inputs[k]), name) == 0) parsed->leaf[i] = module->inputs[k];
    if (parsed->leaf[i] == NULL) parsed->leaf[i] = quern_input(parsed->ctx, name, QUERN_DTYPE_U8, QUERN_SCALAR);
  }
  return quern_context_check(parsed->ctx);
}

static quern_status reparsed(const struct instance *in, size_t n, quern_tensor *const *roots, void *const *expected) {
  struct instance parsed = *in;
  struct base_str text, second;
  struct ir_module module;
  base_str_init(&text, &in->ctx->heap);
  base_str_init(&second, &in->ctx->heap);
  quern_status status = ir_print(in->ctx, &text, n, roots, NULL);
  if (status == QUERN_STATUS_OK) status = quern_context_new(&parsed.ctx, NULL);
  if (status == QUERN_STATUS_OK) {
    status = ir_parse(parsed.ctx, text.at, text.n, &module);
    if (status == QUERN_STATUS_OK && module.n_outputs != n)
      status = base_error(QUERN_STATUS_INTERNAL, "parse: results missing");
    if (status == QUERN_STATUS_OK) status = match_leaves(&parsed, &module);
    if (status == QUERN_STATUS_OK) status = same("print and parse", &parsed, n, module.outputs, roots, expected);
    if (status == QUERN_STATUS_OK) status = ir_print(parsed.ctx, &second, n, module.outputs, NULL);
    if (status == QUERN_STATUS_OK && strcmp(text.at, second.at) != 0)
      status = base_error(QUERN_STATUS_INTERNAL, "print and parse: the second text differs");
    quern_context_free(parsed.ctx);
  }
  base_str_fini(&text);
  base_str_fini(&second);
  return status;
}

static quern_status all_ways(const struct instance *in, size_t n, quern_tensor *const *roots, void *const *expected) {
  quern_tensor *other[ROOTS];
  const char *leaf = case_text(in->c, "leaf", "input");
  QUERN_TRY(instance_eval(in, n, roots, expected, 0, NULL));
  QUERN_TRY(again(in->c, roots, expected));
  QUERN_TRY(ir_rewrite(in->ctx, n, roots, &(struct ir_rewrite_options){0}, other));
  QUERN_TRY(ir_verify(in->ctx, n, other));
  QUERN_TRY(same("rewrite", in, n, other, roots, expected));
  QUERN_TRY(ir_inline_composites(in->ctx, n, roots, other));
  QUERN_TRY(ir_verify(in->ctx, n, other));
  QUERN_TRY(same("inline", in, n, other, roots, expected));
  if (strcmp(leaf, "wrap") == 0 || strcmp(leaf, "copy") == 0)
    return QUERN_STATUS_OK; /* their elements are not in the text */
  return reparsed(in, n, roots, expected);
}

void mode_bits(const struct options *options, const struct case_list *cases, struct tally *tally) {
  if (on_device(options)) {
    mode_bits_device(options, cases, tally);
    return;
  }
  for (size_t i = 0; i < cases->n; i++) {
    struct instance in;
    quern_tensor *roots[ROOTS];
    void *expected[ROOTS];
    size_t n;
    if (!instance_open(&in, &cases->at[i])) {
      tally_fail(tally, &cases->at[i], "bits", "%s", quern_last_error());
      continue;
    }
    quern_status status = roots_of(&in, roots, &n);
    if (status == QUERN_STATUS_OK) {
      buffers_new(n, roots, expected);
      status = all_ways(&in, n, roots, expected);
      buffers_free(n, expected);
    }
    if (status == QUERN_STATUS_OK)
      tally_pass(tally);
    else
      tally_fail(tally, &cases->at[i], "bits", "%s", quern_last_error());
    instance_close(&in);
  }
}
