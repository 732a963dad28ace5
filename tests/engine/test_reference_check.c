/* tests/engine/test_reference_check.c -- the evaluator beside every kernel: right kernels pass, a wrong one is named */
/* tests/engine/test_reference_check.c -- the evaluator beside every kernel: right kernels pass, a wrong one is named */
#include "engine/engine_test.h"

static void open_ref(size_t n, quern_tensor *const *roots) {
  struct engine_request request = {.ctx = ctx,
                                   .n_outputs = n,
                                   .outputs = roots,
                                   .options = QUERN_INIT(quern_program_options),
                                   .device = rt_device_at(&rt_interp, 0)};
  request.options.device = "interp";
  request.options.threads = 1;
  request.ref = request.verify = true;
  EXPECT_OK(engine_compile(&program, &request));
  EXPECT_OK(quern_instance_new(&instance, program));
  slots_fill(&inputs, program->n_inputs, program->inputs, 1);
  slots_fill(&outputs, program->n_outputs, program->outputs, 100);
}

static quern_tensor *network(void) {
  quern_tensor *x = F32_INPUT("x", 8, 8), *w = F32_INPUT("w", 8, 8);
  quern_tensor *h = quern_tanh(quern_add(quern_matmul(x, w), w));
  return quern_softmax(quern_sub(h, quern_reshape(x, QUERN_LIST(8, 8))), 1);
}

static void right_kernels_pass(void **state) {
  (void)state;
  quern_tensor *y = network();
  open_ref(TENSORS(y, quern_argmax(y, 1, false), quern_lt(y, quern_transpose(y, 0, 1))));
  run_program();
  run_program();
  close_program();
}

/* An addition becomes a subtraction. */
static void a_wrong_kernel_is_named(void **state) {
  (void)state;
  quern_tensor *x = F32_INPUT("x", 8, 8), *y = quern_exp(quern_mul(x, x));
  open_ref(TENSORS(y, quern_add(y, x)));
  bool planted = false;
  for (int k = 0; k < program->n_kernels; k++) {
    const struct kern_fn *fn = program->kernels[k]->fns.at[program->kernels[k]->fns.n - 1];
    for (size_t i = 0; i < fn->insts.n; i++) {
      struct kern_inst *inst = &fn->insts.at[i];
      if (inst->op != KERN_ADD || inst->dtype != QUERN_DTYPE_F32) continue;
      inst->op = KERN_SUB;
      planted = true;
    }
  }
  assert_true(planted);
  EXPECT_ERROR(quern_instance_run(instance, (const void *const *)inputs.at, outputs.at), INTERNAL, "ref: kernel k_");
  assert_non_null(strstr(quern_last_error(), "its graph: quern 1;"));
  close_program();
}

static void lack_of_memory(void **state) {
  (void)state;
  struct fault fault = {0};
  quern_tensor *y = network();
  open_ref(TENSORS(y));
  while (fault_next(&fault) && fault.n < 60) {
    fault_begin(&fault);
    quern_status status = quern_instance_run(instance, (const void *const *)inputs.at, outputs.at);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
  }
  close_program();
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(right_kernels_pass), TEST(a_wrong_kernel_is_named), TEST(lack_of_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
