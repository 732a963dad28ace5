/* tests/engine/test_states.c -- states as they begin, from files and into them; inputs by name */
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/engine_test.h"
#include "quern/checkpoint.h"
#include "quern/optim.h"

static char folder[64], path[96];

static int folder_make(void **state) {
  (void)state;
  snprintf(folder, sizeof folder, "/tmp/quern-states-XXXXXX");
  if (mkdtemp(folder) == NULL) return -1;
  snprintf(path, sizeof path, "%s/states.safetensors", folder);
  return 0;
}

static int folder_remove(void **state) {
  (void)state;
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  return system(command);
}

/* A network with a parameter that is drawn, one that is constant, and running statistics; its step by AdamW. */
struct net {
  quern_model *model;
  quern_step *step;
  quern_tensor *x, *loss, *use;
};

static void build(struct net *net, uint64_t seed) {
  quern_model_options options = QUERN_INIT(quern_model_options);
  options.seed = seed;
  EXPECT_OK(quern_model_new(&net->model, ctx, &options));
  quern_scope *root = quern_model_scope(net->model);
  net->x = F32_INPUT("x", 4, 3);
  quern_tensor *y = quern_nn_linear(quern_scope_in(root, "head"), net->x, 2, NULL);
  y = quern_nn_batch_norm(quern_scope_in(root, "norm"), y, NULL);
  net->loss = quern_mean(quern_square(y), QUERN_ALL, false);
  EXPECT_OK(quern_step_new(&net->step, net->model, net->loss, NULL));
  quern_model_begin(net->model, false);
  y = quern_nn_linear(quern_scope_in(root, "head"), net->x, 2, NULL);
  net->use = quern_nn_batch_norm(quern_scope_in(root, "norm"), y, NULL);
  EXPECT_OK(quern_context_check(ctx));
}

static void net_free(struct net *net) {
  quern_step_free(net->step);
  quern_model_free(net->model);
}

static quern_program *compile_step(const struct net *net) {
  quern_program *made;
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "interp";
  options.n_updates = quern_step_updates(net->step, &options.updates);
  EXPECT_OK(quern_program_compile(&made, ctx, 1, &net->loss, &options));
  return made;
}

static quern_program *compile_use(const struct net *net) {
  quern_program *made;
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "interp";
  EXPECT_OK(quern_program_compile(&made, ctx, 1, (quern_tensor *[]){net->use}, &options));
  return made;
}

static void get(quern_instance *of, const char *name, void *to) {
  size_t i;
  EXPECT_OK(quern_program_find_state(of->program, name, &i));
  EXPECT_OK(quern_instance_get_state(of, i, to));
}

static const float batch[12] = {1, 2, 3, -1, 0, 2, 4, 1, -2, 0, 1, 1};

/* Binds what a step reads, and makes it. */
static void step(quern_instance *of) {
  float lr = 0.1f, loss;
  EXPECT_OK(quern_instance_bind(of, "x", batch, sizeof batch));
  EXPECT_OK(quern_instance_bind(of, "lr", &lr, sizeof lr));
  EXPECT_OK(quern_instance_run_bound(of, (void *[]){&loss}));
}

/* ---- never set ------------------------------------------------------------------------------------------- */

static void unset_states_are_an_error(void **state) {
  (void)state;
  quern_tensor *a = F32_STATE("a", 1), *b = F32_STATE("b", 1), *c = F32_STATE("c", 1), *none = F32_STATE("none", 0);
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "interp";
  options.n_updates = 2;
  options.updates = (quern_update[]){{a, quern_add(a, b)}, {c, quern_neg(b)}}; /* c is written only */
  float got;
  quern_program *p;
  quern_instance *run, *other;
  EXPECT_OK(quern_program_compile(&p, ctx, TENSORS(b, none), &options));
  EXPECT_OK(quern_instance_new(&run, p));
  void *outs[] = {&got, &got};
  EXPECT_ERROR(quern_instance_run(run, NULL, outs), STATE, "the program reads state 0, \"a\", which nothing has set");
  EXPECT_ERROR(quern_instance_get_state(run, 0, &got), STATE, "instance_get_state: nothing has set state 0, \"a\"");
  EXPECT_OK(quern_instance_set_state(run, 0, (float[]){1}));
  EXPECT_ERROR(quern_instance_run(run, NULL, outs), STATE, "\"b\", which nothing has set");
  EXPECT_ERROR(quern_instance_run_on(run, NULL, NULL, outs), STATE,
               "instance_run_on: the program reads state 1, \"b\"");
  EXPECT_OK(quern_instance_new_with(&other, p, run));
  EXPECT_OK(quern_instance_zero_states(other)); /* states are shared, and so is whether they were set */
  EXPECT_OK(quern_instance_run(run, NULL, outs));
  EXPECT_OK(quern_instance_get_state(run, 0, &got));
  assert_true(got == 1);
  quern_instance_free(other);
  quern_instance_free(run);
  quern_program_free(p);
}

/* A run sets the states that it writes, for the instances that share them as well. */
static void runs_set_what_they_write(void **state) {
  (void)state;
  quern_tensor *s = F32_STATE("s", 2);
  quern_program_options options = QUERN_INIT(quern_program_options), plain = QUERN_INIT(quern_program_options);
  options.device = plain.device = "interp";
  options.n_updates = 1;
  options.updates = &(quern_update){s, quern_full(ctx, QUERN_DTYPE_F32, QUERN_LIST(2), 3)};
  quern_program *writing, *reading;
  quern_instance *reader, *writer;
  float got[2];
  EXPECT_OK(quern_program_compile(&writing, ctx, 0, NULL, &options));
  EXPECT_OK(quern_program_compile(&reading, ctx, TENSORS(quern_neg(s)), &plain));
  EXPECT_OK(quern_instance_new(&reader, reading));
  EXPECT_OK(quern_instance_new_with(&writer, writing, reader));
  EXPECT_ERROR(quern_instance_run(reader, NULL, (void *[]){got}), STATE, "which nothing has set");
  EXPECT_OK(quern_instance_run(writer, NULL, NULL));
  EXPECT_OK(quern_instance_run(reader, NULL, (void *[]){got}));
  assert_true(got[0] == -3);
  quern_instance_free(writer);
  quern_instance_free(reader);
  quern_program_free(writing);
  quern_program_free(reading);
}

/* What a run reads is known of a program from a file, too. */
static void loaded_programs_know(void **state) {
  (void)state;
  quern_program *loaded;
  quern_instance *run;
  quern_program_options options = QUERN_INIT(quern_program_options);
  float got[2];
  EXPECT_OK(quern_program_compile(&program, ctx, TENSORS(quern_neg(F32_STATE("s", 2))), &options));
  EXPECT_OK(quern_program_save(program, path));
  EXPECT_OK(quern_program_load(&loaded, path));
  EXPECT_OK(quern_instance_new(&run, loaded));
  EXPECT_ERROR(quern_instance_run(run, NULL, (void *[]){got}), STATE, "state 0, \"s\", which nothing has set");
  quern_instance_free(run);
  quern_program_free(loaded);
  close_program();
}

/* ---- as they begin --------------------------------------------------------------------------------------- */

static void states_begin(void **state) {
  (void)state;
  struct net net;
  build(&net, 7);
  quern_program *p = compile_step(&net);
  quern_instance *run;
  EXPECT_OK(quern_instance_new(&run, p));
  EXPECT_OK(quern_instance_init_states(run, net.model));
  float weight[6], want[6], norm[2], var[2];
  float moment[6];
  quern_tensor *initial = quern_model_initial(net.model, 0);
  EXPECT_OK(quern_eval_reference(ctx, 1, &initial, (void *[]){want}, 0, NULL));
  get(run, "head.weight", weight);
  get(run, "norm.weight", norm);
  get(run, "norm.running_var", var);
  assert_memory_equal(weight, want, sizeof want);
  assert_true(norm[0] == 1 && norm[1] == 1 && var[0] == 1 && var[1] == 1 && want[0] != 0);
  step(run);
  get(run, "head.weight", weight);
  assert_memory_not_equal(weight, want, sizeof want);
  size_t i;
  EXPECT_OK(quern_program_find_state(p, "optim.head.weight.m", &i));
  EXPECT_OK(quern_instance_get_state(run, i, moment));
  EXPECT_OK(quern_instance_init_states(run, net.model)); /* again: all is as at the start, moments are 0 */
  get(run, "head.weight", weight);
  assert_memory_equal(weight, want, sizeof want);
  float zeros[6], none[6] = {0};
  EXPECT_OK(quern_instance_get_state(run, i, zeros));
  assert_memory_equal(zeros, none, sizeof none);
  quern_instance_free(run);
  quern_program_free(p);
  net_free(&net);
}

static void other_models_are_noticed(void **state) {
  (void)state;
  struct net net;
  build(&net, 1);
  quern_model *other;
  quern_program *p = compile_use(&net);
  quern_instance *run;
  float y[8];
  EXPECT_OK(quern_model_new(&other, ctx, NULL));
  quern_tensor *wide = quern_nn_linear(quern_scope_in(quern_model_scope(other), "head"), net.x, 5, NULL);
  assert_false(quern_tensor_is_poison(wide));
  EXPECT_OK(quern_instance_new(&run, p));
  EXPECT_ERROR(quern_instance_init_states(run, other), SHAPE,
               "the model's \"head.weight\" is not of the dtype and shape");
  quern_model_free(other);
  EXPECT_OK(quern_model_new(&other, ctx, NULL));
  EXPECT_ERROR(quern_instance_init_states(run, other), INVALID,
               "instance_init_states: the model has none of the program's states, of which \"head.weight\" is");
  EXPECT_ERROR(quern_instance_run(run, (const void *[]){batch}, (void *[]){y}), STATE, "which nothing has set");
  quern_model_free(other);
  quern_instance_free(run);
  quern_program_free(p);
  net_free(&net);
}

/* A network and a copy of it in one program: whose state a name is cannot be told without scopes of their own. */
static void two_models(void **state) {
  (void)state;
  quern_tensor *x = F32_INPUT("x", 4, 3), *y[2];
  quern_model *models[2];
  quern_program *both, *one;
  quern_instance *run, *use;
  for (int k = 0; k < 2; k++) {
    EXPECT_OK(quern_model_new(&models[k], ctx, NULL));
    y[k] = quern_nn_linear(quern_scope_in(quern_model_scope(models[k]), "head"), x, 2, NULL);
  }
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "interp";
  EXPECT_OK(quern_program_compile(&both, ctx, 2, y, &options));
  EXPECT_OK(quern_program_compile(&one, ctx, 1, y + 1, &options));
  EXPECT_OK(quern_instance_new(&run, both));
  EXPECT_ERROR(quern_instance_init_states(run, models[1]), INVALID, "are both named \"head.weight\" HINT: two models");
  EXPECT_ERROR(quern_instance_new_with(&use, one, run), INVALID,
               "instance_new_with: states 0 and 2 of the other instance are both named \"head.weight\"");
  assert_null(use);
  EXPECT_OK(quern_instance_new_with(&use, both, run)); /* of the same program each is itself */
  quern_instance_free(use);
  quern_instance_free(run);
  quern_program_free(both);
  y[1] = quern_nn_linear(quern_scope_in(quern_model_scope(models[1]), "target.head"), x, 2, NULL);
  EXPECT_OK(quern_program_compile(&both, ctx, 2, y, &options));
  EXPECT_OK(quern_instance_new(&run, both));
  for (int k = 0; k < 2; k++) EXPECT_OK(quern_instance_init_states(run, models[k]));
  quern_instance_free(run);
  quern_program_free(both);
  quern_program_free(one);
  for (int k = 0; k < 2; k++) quern_model_free(models[k]);
}

/* ---- files ----------------------------------------------------------------------------------------------- */

static void states_come_back(void **state) {
  (void)state;
  struct net net;
  build(&net, 3);
  quern_program *p = compile_step(&net), *q = compile_use(&net);
  quern_instance *run, *again, *use;
  float want[8], got[8], weight[2][6];
  EXPECT_OK(quern_instance_new(&run, p));
  EXPECT_OK(quern_instance_init_states(run, net.model));
  step(run);
  EXPECT_OK(quern_instance_save_states(run, path));
  EXPECT_OK(quern_instance_new(&again, p));
  EXPECT_OK(quern_instance_load_states(again, path, QUERN_LOAD_STRICT));
  step(run);
  step(again); /* moments, statistics and the number of the step came along */
  get(run, "head.weight", weight[0]);
  get(again, "head.weight", weight[1]);
  assert_memory_equal(weight[0], weight[1], sizeof weight[0]);
  EXPECT_OK(quern_instance_save_states(run, path));
  EXPECT_OK(quern_instance_new(&use, q));
  EXPECT_ERROR(quern_instance_load_states(use, path, QUERN_LOAD_STRICT), INVALID,
               "has tensors that are no states of the program:");
  EXPECT_OK(quern_instance_load_states(use, path, QUERN_LOAD_UNEXPECTED));
  EXPECT_OK(quern_instance_run(use, (const void *[]){batch}, (void *[]){got}));
  quern_instance *shared;
  EXPECT_OK(quern_instance_new_with(&shared, q, run));
  EXPECT_OK(quern_instance_run(shared, (const void *[]){batch}, (void *[]){want}));
  assert_memory_equal(got, want, sizeof got);
  quern_instance_free(shared);
  quern_instance_free(use);
  quern_instance_free(again);
  quern_instance_free(run);
  quern_program_free(p);
  quern_program_free(q);
  net_free(&net);
}

/* What does not fit is named, and nothing has changed. */
static void files_are_compared(void **state) {
  (void)state;
  quern_tensor *a = F32_STATE("a", 2), *b = F32_STATE("b", 3);
  const float values[] = {5, 6, 7};
  const int64_t two = 2, three = 3;
  quern_safetensor file[] = {{.name = "a", .dtype = QUERN_DTYPE_F32, .rank = 1, .dims = &two, .data = values},
                             {.name = "b", .dtype = QUERN_DTYPE_F32, .rank = 1, .dims = &two, .data = values},
                             {.name = "c", .dtype = QUERN_DTYPE_F32, .rank = 1, .dims = &two, .data = values}};
  open_program(TENSORS(a, b), NULL);
  EXPECT_OK(quern_instance_set_state(instance, 0, (float[]){1, 2}));
  EXPECT_OK(quern_safetensors_write(path, 2, file, NULL));
  EXPECT_ERROR(quern_instance_load_states(instance, path, QUERN_LOAD_STRICT), SHAPE,
               "tensor \"b\" is f32(2,), the state is f32(3,)");
  file[1].dims = &three;
  file[1].dtype = QUERN_DTYPE_I32;
  EXPECT_OK(quern_safetensors_write(path, 2, file, NULL));
  EXPECT_ERROR(quern_instance_load_states(instance, path, 3), SHAPE, "tensor \"b\" is i32(3,), the state is f32(3,)");
  EXPECT_OK(quern_safetensors_write(path, 1, file + 2, NULL));
  EXPECT_ERROR(quern_instance_load_states(instance, path, QUERN_LOAD_UNEXPECTED), INVALID,
               "lacks the states \"a\", \"b\" HINT: QUERN_LOAD_MISSING");
  EXPECT_ERROR(quern_instance_load_states(instance, path, QUERN_LOAD_MISSING), INVALID,
               "no states of the program: \"c\" HINT: QUERN_LOAD_UNEXPECTED");
  EXPECT_ERROR(quern_instance_load_states(instance, path, QUERN_LOAD_MISSING | QUERN_LOAD_UNEXPECTED), INVALID,
               "has none of the states \"a\", \"b\" HINT: 'quern info' lists its names");
  float got[3];
  EXPECT_OK(quern_instance_get_state(instance, 0, got));
  assert_true(got[0] == 1 && got[1] == 2);
  EXPECT_OK(quern_safetensors_write(path, 1, file, NULL));
  EXPECT_OK(quern_instance_load_states(instance, path, QUERN_LOAD_MISSING));
  EXPECT_OK(quern_instance_get_state(instance, 0, got));
  assert_true(got[0] == 5 && got[1] == 6);
  close_program();
}

static void checkpoints_are_read(void **state) {
  (void)state;
  const float values[] = {5, 6};
  const int64_t two = 2;
  const quern_safetensor tensor = {.name = "a", .dtype = QUERN_DTYPE_F32, .rank = 1, .dims = &two, .data = values};
  quern_checkpoint_contents contents = QUERN_INIT(quern_checkpoint_contents);
  contents.step = 3;
  contents.n_tensors = 1;
  contents.tensors = &tensor;
  char dir[96], one[128];
  snprintf(dir, sizeof dir, "%s/run", folder);
  snprintf(one, sizeof one, "%s/step-00000003", dir);
  EXPECT_OK(quern_checkpoint_save(dir, &contents));
  const char *const ways[] = {dir, one};
  for (int i = 0; i < 2; i++) {
    float got[2];
    open_program(TENSORS(F32_STATE("a", 2)), NULL);
    EXPECT_OK(quern_instance_load_states(instance, ways[i], QUERN_LOAD_STRICT));
    EXPECT_OK(quern_instance_get_state(instance, 0, got));
    assert_true(got[0] == 5 && got[1] == 6);
    close_program();
  }
}

/* Every allocation fails once: an error, nothing leaked, and no file half written. */
static void without_memory(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    quern_program_options options = QUERN_INIT(quern_program_options);
    options.device = "interp";
    options.threads = 1;
    quern_tensor *s = F32_STATE("s", 2);
    EXPECT_OK(quern_program_compile(&program, ctx, TENSORS(quern_neg(s)), &options));
    EXPECT_OK(quern_instance_new(&instance, program));
    EXPECT_OK(quern_instance_set_state(instance, 0, (float[]){1, 2}));
    unlink(path);
    fault_begin(&fault);
    quern_status status = quern_instance_save_states(instance, path);
    bool saved = status == QUERN_STATUS_OK;
    if (saved) status = quern_instance_load_states(instance, path, QUERN_LOAD_STRICT);
    fault_end(&fault);
    assert_true((access(path, F_OK) == 0) == saved);
    EXPECT_FAULT(&fault, status);
    close_program();
    test_renew();
  }
  assert_true(fault.n > 5);
}

/* A device with memory of its own: states go there and come back by way of the host. */
static void states_on_a_device(void **state) {
  (void)state;
  struct base_heap heap;
  struct rt_stream *stream;
  if (TEST_ASAN) skip(); /* its leak checker cannot stop PoCL's threads while they end */
  base_heap_init(&heap, NULL);
  if (rt_opencl.remote->open(rt_device_at(&rt_opencl, 0), &stream, &heap) != QUERN_STATUS_OK) {
    print_message("%s\n", quern_last_error());
    skip();
  }
  rt_opencl.remote->close(stream);
  quern_model *model;
  EXPECT_OK(quern_model_new(&model, ctx, NULL));
  quern_scope *root = quern_model_scope(model);
  quern_tensor *w = quern_scope_parameter(root, "w", QUERN_LIST(5), (quern_init){QUERN_INIT_UNIFORM, 1, 2});
  quern_tensor *b = quern_scope_buffer(root, "b", QUERN_DTYPE_F32, QUERN_LIST(3), 7);
  quern_tensor *zero = quern_scope_buffer(root, "zero", QUERN_DTYPE_I64, QUERN_SCALAR, 0);
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "opencl";
  options.n_updates = 3;
  options.updates = (quern_update[]){{w, quern_neg(w)}, {b, quern_neg(b)}, {zero, quern_add_scalar(zero, 1)}};
  EXPECT_OK(quern_program_compile(&program, ctx, 0, NULL, &options));
  EXPECT_OK(quern_instance_new(&instance, program));
  EXPECT_ERROR(quern_instance_run(instance, NULL, NULL), STATE, "\"w\", which nothing has set");
  EXPECT_OK(quern_instance_init_states(instance, model));
  EXPECT_OK(quern_instance_run(instance, NULL, NULL));
  EXPECT_OK(quern_instance_save_states(instance, path));
  quern_instance *again;
  float want[5], begin[5], got[3];
  int64_t count;
  quern_tensor *initial = quern_model_initial(model, 0);
  EXPECT_OK(quern_eval_reference(ctx, 1, &initial, (void *[]){begin}, 0, NULL));
  EXPECT_OK(quern_instance_new(&again, program));
  EXPECT_OK(quern_instance_load_states(again, path, QUERN_LOAD_STRICT));
  get(again, "w", want);
  get(again, "b", got);
  get(again, "zero", &count);
  for (int i = 0; i < 5; i++) assert_true(want[i] == -begin[i] && begin[i] >= 1);
  assert_true(got[0] == -7 && got[2] == -7 && count == 1);
  EXPECT_OK(quern_instance_init_states(again, model)); /* a state that was set becomes 0 again */
  get(again, "zero", &count);
  assert_int_equal(count, 0);
  quern_instance_free(again);
  close_program();
  quern_model_free(model);
}

/* ---- inputs by name --------------------------------------------------------------------------------------- */

static void inputs_by_name(void **state) {
  (void)state;
  quern_tensor *query = F32_INPUT("query", 2), *key = F32_INPUT("key", 2), *twice = F32_INPUT("key", 2);
  float q[] = {5, 7}, k[] = {1, 2}, got[2];
  size_t i;
  open_program(TENSORS(quern_sub(query, key)), NULL);
  EXPECT_OK(quern_program_find_input(program, "key", &i));
  assert_int_equal(i, 1);
  EXPECT_ERROR(quern_program_find_input(program, "qury", &i), INVALID, "HINT: did you mean \"query\"?");
  EXPECT_OK(quern_instance_bind(instance, "key", k, sizeof k)); /* in any order */
  EXPECT_ERROR(quern_instance_run_bound(instance, (void *[]){got}), STATE, "input 0, \"query\", is not bound");
  EXPECT_ERROR(quern_instance_bind(instance, "query", q, 4), SHAPE,
               "4 bytes for input \"query\", which is f32(2,): 8 bytes");
  EXPECT_OK(quern_instance_bind(instance, "query", q, sizeof q));
  EXPECT_OK(quern_instance_run_bound(instance, (void *[]){got}));
  assert_true(got[0] == 4 && got[1] == 5);
  k[0] = 3; /* what lies there when it runs counts */
  EXPECT_OK(quern_instance_run_bound(instance, (void *[]){got}));
  assert_true(got[0] == 2);
  close_program();
  open_program(TENSORS(quern_sub(key, twice)), NULL);
  EXPECT_ERROR(quern_instance_bind(instance, "key", k, sizeof k), INVALID, "inputs 0 and 1 are both named \"key\"");
  close_program();
}

static void outputs_by_name(void **state) {
  (void)state;
  quern_tensor *x = F32_INPUT("x", 2);
  float in[] = {1, 2}, sum[2], product[2];
  size_t i;
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.output_names = (const char *const[]){"sum", "product", NULL};
  quern_slot slot = QUERN_INIT(quern_slot);
  open_program(TENSORS(quern_add(x, x), quern_mul(x, x)), &options);
  EXPECT_OK(quern_program_output(program, 1, &slot));
  assert_string_equal(slot.name, "product");
  assert_true(slot.role == QUERN_SLOT_OUTPUT && slot.size == sizeof slot);
  EXPECT_OK(quern_program_find_output(program, "product", &i));
  assert_int_equal(i, 1);
  EXPECT_ERROR(quern_program_find_output(program, "prodct", &i), INVALID, "HINT: did you mean \"product\"?");
  EXPECT_OK(quern_instance_bind(instance, "x", in, sizeof in));
  EXPECT_OK(quern_instance_bind_output(instance, "product", product, sizeof product)); /* in any order */
  EXPECT_ERROR(quern_instance_run_bound(instance, NULL), STATE, "output 0, \"sum\", is not bound");
  EXPECT_ERROR(quern_instance_bind_output(instance, "sum", sum, 4), SHAPE,
               "4 bytes for output \"sum\", which is f32(2,): 8 bytes");
  EXPECT_ERROR(quern_instance_bind_output(instance, "sum", NULL, 8), INVALID, "the data of output \"sum\" is null");
  EXPECT_OK(quern_instance_bind_output(instance, "sum", sum, sizeof sum));
  EXPECT_OK(quern_instance_run_bound(instance, NULL));
  assert_true(sum[0] == 2 && sum[1] == 4 && product[0] == 1 && product[1] == 4);
  in[1] = 5; /* what lies there when it runs counts */
  EXPECT_OK(quern_instance_run_bound(instance, NULL));
  assert_true(sum[1] == 10 && product[1] == 25);
  close_program();
}

static void rows_are_compared(void **state) {
  (void)state;
  quern_tensor *x = F32_INPUT("x", 4, 2);
  float in[8] = {1, 2, 3, 4, 5, 6, 7, 8}, got[8];
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.n_dynamic_batch = 1;
  options.dynamic_batch = &x;
  open_program(TENSORS(quern_neg(x)), &options);
  EXPECT_OK(quern_instance_set_dynamic_batch(instance, 3));
  EXPECT_ERROR(quern_instance_bind(instance, "x", in, 12), SHAPE, "12 bytes for input \"x\"");
  EXPECT_OK(quern_instance_bind(instance, "x", in, 16));
  EXPECT_ERROR(quern_instance_run_bound(instance, (void *[]){got}), SHAPE,
               "bound to 16 bytes; a run of 3 rows reads 24");
  EXPECT_OK(quern_instance_bind(instance, "x", in, 24));
  EXPECT_OK(quern_instance_run_bound(instance, (void *[]){got}));
  assert_true(got[5] == -6);
  close_program();
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(unset_states_are_an_error),
                                     TEST(runs_set_what_they_write),
                                     TEST(loaded_programs_know),
                                     TEST(states_begin),
                                     TEST(other_models_are_noticed),
                                     TEST(two_models),
                                     TEST(states_come_back),
                                     TEST(files_are_compared),
                                     TEST(checkpoints_are_read),
                                     TEST(without_memory),
                                     TEST(inputs_by_name),
                                     TEST(outputs_by_name),
                                     TEST(rows_are_compared),
                                     TEST(states_on_a_device)};
  return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
