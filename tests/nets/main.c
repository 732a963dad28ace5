/* nets/main.c -- quernnets: networks are compiled for targets, training and evaluation, in f32 and bf16
** quernnets [--models all|short|none] [--random N] [--seed S] [--targets LIST]
**   plans the networks that come with Quern and N random ones for each target, and makes the text of every kernel; no compiler and no
**   card is needed. Fails where something cannot be compiled, or not fused
** quernnets --run N [--run-models all|short|none] [--seed S] [--targets LIST | --device NAME]
**   runs N small random networks, and those that come with Quern made small, on the interpreter of kernels with these targets, or on a
**   device: loss, gradients and what training changes besides must be those of the evaluator
** --only SEED: one random network, its layers printed
*/
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "engine/engine.h"
#include "nets/nets.h"
#include "runtime/null/null.h"

enum { MOST_TARGETS = 16, MOST_FAILURES = 20 };

static const char all_targets[] = "sm_75,sm_80,sm_90,sm_90+blas+dnn+mma,sm_100,sm_120,opencl";

struct sweep {
  const char *device;                /* of runs */
  const char *targets[MOST_TARGETS]; /* "": the device's own */
  int n_targets;
  int passed, failed;
};

/* ---- a network in a context ---------------------------------------------------------------------------------------- */

struct made {
  quern_context *ctx;
  quern_model *model;
  quern_step *step;
  struct net net;
};

struct which {
  bool random;
  uint64_t number; /* the seed, or that of the model */
  bool small, train;
  quern_dtype low; /* bf16, or f32 */
};

static void made_free(struct made *m) {
  quern_step_free(m->step);
  quern_model_free(m->model);
  quern_context_free(m->ctx);
}

/* The loss of a network, and for training what a step of AdamW with clipping changes. */
static quern_status make(struct made *m, const struct which *w) {
  quern_model_options model = QUERN_INIT(quern_model_options);
  quern_optim_options optim = QUERN_INIT(quern_optim_options);
  quern_autocast_options low = QUERN_INIT(quern_autocast_options);
  *m = (struct made){0};
  optim.clip_norm = 1;
  optim.weight_decay = 0.01;
  QUERN_TRY(quern_context_new(&m->ctx, NULL));
  QUERN_TRY(quern_model_new(&m->model, m->ctx, &model));
  quern_model_begin(m->model, w->train);
  if (w->random)
    nets_random(&m->net, m->model, w->number, w->small);
  else
    nets_model(&m->net, m->model, (int)w->number, w->small);
  QUERN_TRY(quern_context_check(m->ctx));
  if (m->net.loss == NULL) return QUERN_STATUS_INVALID; /* the model has no such name: the last error reports it */
  low.low = w->low;
  quern_tensor *outputs[] = {m->net.loss, m->net.out};
  if (w->low != QUERN_DTYPE_F32) QUERN_TRY(quern_autocast(m->model, 2, outputs, outputs, &low));
  m->net.loss = outputs[0], m->net.out = outputs[1];
  return w->train ? quern_step_new(&m->step, m->model, m->net.loss, &optim) : QUERN_STATUS_OK;
}

static void name_of(const struct which *w, char name[NET_NAME]) {
  if (w->random)
    snprintf(name, NET_NAME, "--only %llu", (unsigned long long)w->number);
  else
    nets_model_name((int)w->number, w->small, name);
}

/* ---- plans --------------------------------------------------------------------------------------------------------- */

/* Plans for a target, and makes the texts of the kernels. */
static quern_status plan(struct made *m, const struct which *w, const char *target) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  quern_program *program;
  struct base_heap heap;
  quern_tensor *outputs[] = {m->net.loss, w->train ? quern_step_norm(m->step) : m->net.out};
  options.device = "null";
  options.target = target;
  options.plan_only = true;
  options.inference = !w->train;
  if (w->train) options.n_updates = quern_step_updates(m->step, &options.updates);
  QUERN_TRY(quern_program_compile(&program, m->ctx, 2, outputs, &options));
  base_heap_init(&heap, NULL);
  quern_status status =
      rt_null_texts(&heap, (size_t)program->n_kernels, (const struct kern *const *)program->kernels, &program->target);
  if (status == QUERN_STATUS_OK && program->counts.unfused > 0)
    status = base_error(QUERN_STATUS_INTERNAL, "%zu nodes are compiled unfused", program->counts.unfused);
  quern_program_free(program);
  return status;
}

static void report(struct sweep *s, const struct which *w, const char *layers, const char *target,
                   quern_status status) {
  char name[NET_NAME];
  if (status == QUERN_STATUS_OK) {
    s->passed++;
    return;
  }
  name_of(w, name);
  printf("FAILED  %s, %s, %s, %s: %s\n        %s\n", name, w->train ? "training" : "evaluation",
         w->low == QUERN_DTYPE_F32 ? "f32" : "bf16", target, quern_last_error(), layers);
  s->failed++;
}

static void sweep_one(struct sweep *s, const struct which *w) {
  struct made m;
  quern_status status = make(&m, w);
  if (status != QUERN_STATUS_OK) report(s, w, m.net.text, "as a graph", status);
  for (int i = 0; i < s->n_targets && status == QUERN_STATUS_OK; i++)
    report(s, w, m.net.text, s->targets[i], plan(&m, w, s->targets[i]));
  made_free(&m);
}

static void sweep_all(struct sweep *s, bool random, uint64_t number) {
  for (int way = 0; way < 4 && s->failed < MOST_FAILURES; way++) {
    const struct which w = {
        .random = random, .number = number, .train = way % 2 == 0, .low = way < 2 ? QUERN_DTYPE_F32 : QUERN_DTYPE_BF16};
    sweep_one(s, &w);
  }
}

/* ---- runs ---------------------------------------------------------------------------------------------------------- */

/* Everything that is compared, and what goes in. */
struct run {
  struct made *m;
  struct base_arena *arena;
  BASE_VEC(quern_tensor *) outputs;
  BASE_VEC(struct ir_binding) feeds;
};

static void *alloc_for(struct run *r, const quern_tensor *t) { return base_arena_alloc(r->arena, ir_bytes(t) + 1); }

static void fill_input(const struct net *net, int i, void *data) {
  const quern_tensor *t = net->inputs[i];
  for (int64_t k = 0; k < ir_count(t); k++) {
    double x = net->below[i] > 0 ? (double)((k * 7 + i + 3) % net->below[i]) : sin(0.7 * (double)k + i);
    base_convert(t->dtype, data, (size_t)k, QUERN_DTYPE_F64, &x, 0);
  }
}

static quern_status add_feed(struct run *r, quern_tensor *leaf, const void *data) {
  struct ir_binding feed = {leaf, data};
  return data != NULL && base_vec_push(&r->m->ctx->heap, &r->feeds, feed) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

/* A parameter as it begins. Many random values would take the evaluator minutes: they are drawn here, between bounds that keep
** the size of what goes through. */
static quern_status fill_parameter(struct run *r, size_t i, const quern_parameter *p, void *data) {
  enum { MANY = 1 << 14 };
  const quern_tensor *t = p->tensor;
  int64_t n = ir_count(t);
  if (n <= MANY || p->init.kind == QUERN_INIT_CONSTANT || t->dtype != QUERN_DTYPE_F32) {
    quern_tensor *initial = quern_model_initial(r->m->model, i);
    return quern_eval_reference(r->m->ctx, 1, &initial, &data, 0, NULL);
  }
  double bound = sqrt(3.0 * (double)t->dims[0] / (double)n);
  for (int64_t k = 0; k < n; k++) {
    double unit = (double)(base_hash_u64(i, (uint64_t)k) >> 11) / (double)(UINT64_C(1) << 53);
    ((float *)data)[k] = (float)(bound * (2 * unit - 1));
  }
  return QUERN_STATUS_OK;
}

/* Inputs, and states as they begin. */
static quern_status find_feeds(struct run *r) {
  struct made *m = r->m;
  for (int i = 0; i < NET_INPUTS; i++) {
    void *data = alloc_for(r, m->net.inputs[i]);
    if (data == NULL) return QUERN_STATUS_MEMORY;
    fill_input(&m->net, i, data);
    QUERN_TRY(add_feed(r, m->net.inputs[i], data));
  }
  for (size_t i = 0; i < quern_model_parameter_count(m->model); i++) {
    quern_parameter p = QUERN_INIT(quern_parameter);
    QUERN_TRY(quern_model_parameter(m->model, i, &p));
    void *data = alloc_for(r, p.tensor);
    if (data == NULL) return QUERN_STATUS_MEMORY;
    QUERN_TRY(fill_parameter(r, i, &p, data));
    QUERN_TRY(add_feed(r, p.tensor, data));
  }
  return QUERN_STATUS_OK;
}

static quern_status add_output(struct run *r, quern_tensor *t) {
  if (!base_dtype_is(t->dtype, BASE_FLOAT)) return QUERN_STATUS_OK;
  return base_vec_push(&r->m->ctx->heap, &r->outputs, t) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static quern_status find_outputs(struct run *r, bool train) {
  struct made *m = r->m;
  QUERN_TRY(add_output(r, m->net.loss));
  QUERN_TRY(add_output(r, m->net.out));
  for (size_t i = 0, trained = 0; train && i < quern_model_parameter_count(m->model); i++) {
    quern_parameter p = QUERN_INIT(quern_parameter);
    QUERN_TRY(quern_model_parameter(m->model, i, &p));
    if (p.trained) QUERN_TRY(add_output(r, quern_step_gradient(m->step, trained++)));
  }
  for (size_t i = 0; train && i < quern_model_change_count(m->model); i++)
    QUERN_TRY(add_output(r, quern_model_change(m->model, i).value));
  return QUERN_STATUS_OK;
}

static const void *find_feed(const struct run *r, const quern_slot *slot) {
  for (size_t i = 0; i < r->feeds.n; i++) {
    const char *name = r->feeds.at[i].leaf->node->attrs->name;
    if (slot->name != NULL && name != NULL && strcmp(slot->name, name) == 0) return r->feeds.at[i].data;
  }
  return NULL;
}

static quern_status run_instance(struct run *r, const quern_program *program, quern_instance *instance, void **values) {
  const void *inputs[NET_INPUTS] = {NULL};
  quern_slot slot = QUERN_INIT(quern_slot);
  for (size_t i = 0; i < quern_program_input_count(program); i++) {
    QUERN_TRY(quern_program_input(program, i, &slot));
    inputs[i] = find_feed(r, &slot);
  }
  for (size_t i = 0; i < quern_program_state_count(program); i++) {
    QUERN_TRY(quern_program_state(program, i, &slot));
    const void *data = find_feed(r, &slot);
    uint64_t zero = 0;
    QUERN_CHECK(data != NULL || slot.bytes <= sizeof zero, INTERNAL, "the state %s has no value", slot.name);
    QUERN_TRY(quern_instance_set_state(instance, i, data != NULL ? data : &zero)); /* the number of steps */
  }
  return quern_instance_run(instance, inputs, values);
}

static quern_status run_program(struct run *r, const char *device, const char *target, void **values) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  quern_program *program;
  quern_instance *instance;
  options.device = device;
  if (target[0] != 0) options.target = target;
  QUERN_TRY(quern_program_compile(&program, r->m->ctx, r->outputs.n, r->outputs.at, &options));
  quern_status status = quern_instance_new(&instance, program);
  if (status == QUERN_STATUS_OK) {
    status = run_instance(r, program, instance, values);
    quern_instance_free(instance);
  }
  if (status == QUERN_STATUS_OK && program->counts.unfused > 0)
    status = base_error(QUERN_STATUS_INTERNAL, "%zu nodes are compiled unfused", program->counts.unfused);
  quern_program_free(program);
  return status;
}

static double difference(const quern_tensor *t, const void *a, const void *b) {
  double worst = 0;
  for (size_t k = 0; k < (size_t)ir_count(t); k++) {
    double x = base_load_float(t->dtype, a, k), y = base_load_float(t->dtype, b, k);
    double error = isnan(x) && isnan(y) ? 0 : fabs(x - y);
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

static double largest(const quern_tensor *t, const void *a) {
  double most = 0;
  for (size_t k = 0; k < (size_t)ir_count(t); k++) most = fmax(most, fabs(base_load_float(t->dtype, a, k)));
  return most;
}

/* What an output is compared with: the evaluator's; in bf16 also that of the network in f32, else NULL; and how far the evaluator's
** moves when what goes in moves by what rounding does, or NULL. */
struct check {
  void *const *want, *const *exact;
  const double *moved;
};

/* Differences may be a part of the largest value of a tensor, and of all together, since some gradients are 0 but for rounding; in
** bf16 also what the network itself loses to f32, which is much where few values are normalized. */
static quern_status compare(const struct run *r, const struct check *check, void *const *got) {
  const double bound = 2e-4, share = 0.05, lost = 3;
  double all = 0;
  for (size_t i = 0; i < r->outputs.n; i++) all = fmax(all, largest(r->outputs.at[i], check->want[i]));
  for (size_t i = 0; i < r->outputs.n; i++) {
    const quern_tensor *t = r->outputs.at[i];
    double most = bound * (largest(t, check->want[i]) + share * all + 1e-6);
    double worst = difference(t, check->want[i], got[i]);
    if (check->exact != NULL) most += lost * difference(t, check->want[i], check->exact[i]) + (0.01 / bound) * most;
    if (check->moved != NULL) most += check->moved[i];
    QUERN_CHECK(worst <= most, INTERNAL, "output %zu (%s, %lld elements) differs by %g, more than %g", i,
                ir_ops[t->node->op].name, (long long)ir_count(t), worst, most);
  }
  return QUERN_STATUS_OK;
}

static void **alloc_values(struct run *r) {
  void **values = base_arena_alloc(r->arena, (r->outputs.n + 1) * sizeof *values);
  for (size_t i = 0; i < r->outputs.n && values != NULL; i++)
    if ((values[i] = alloc_for(r, r->outputs.at[i])) == NULL) return NULL;
  return values;
}

/* The network in a context, its outputs and leaves, and what the evaluator says. */
static quern_status evaluate(struct run *r, const struct which *w, void ***values) {
  QUERN_TRY(make(r->m, w));
  QUERN_TRY(find_outputs(r, w->train));
  QUERN_TRY(find_feeds(r));
  *values = alloc_values(r);
  if (*values == NULL) return QUERN_STATUS_MEMORY;
  return ir_eval(r->m->ctx, r->outputs.n, r->outputs.at, *values, r->feeds.n, r->feeds.at);
}

/* The evaluator's values of what goes in, each number of it moved up or down by that part of it, and each that is rounded on
** the way by a unit in its last place: a difference of equal numbers is 0 whatever goes in, but not where they are rounded. */
static quern_status evaluate_moved(struct run *r, uint64_t way, double by, void **values) {
  struct ir_binding *feeds = base_arena_copy(r->arena, r->feeds.at, r->feeds.n * sizeof *feeds);
  for (size_t i = 0; i < r->feeds.n && feeds != NULL; i++) {
    const quern_tensor *t = feeds[i].leaf;
    if (!base_dtype_is(t->dtype, BASE_FLOAT)) continue;
    void *data = alloc_for(r, t);
    if (data == NULL) return QUERN_STATUS_MEMORY;
    for (size_t k = 0; k < (size_t)ir_count(t); k++) {
      bool up = base_hash_u64(base_hash_u64(way, i), k) % 2 == 0;
      double x = base_load_float(t->dtype, feeds[i].data, k) * (1 + (up ? by : -by));
      base_convert(t->dtype, data, k, QUERN_DTYPE_F64, &x, 0);
    }
    feeds[i].data = data;
  }
  if (feeds == NULL) return QUERN_STATUS_MEMORY;
  return ir_eval_perturbed(r->m->ctx, r->outputs.n, r->outputs.at, values, r->feeds.n, feeds, way + 1);
}

/* How far results move with their inputs, at most of a few times: where a unit of an activation like relu is at its corner, or
** much cancels, rounding in another place does as much. */
static quern_status find_moved(struct run *r, struct check *check) {
  enum { WAYS = 4 };
  /* A unit in the last place of bf16; in f32 what a sum of thousands of terms in another order may change. */
  const double by = check->exact != NULL ? 1.0 / 256 : 1.0 / (1 << 18);
  double *moved = base_arena_alloc(r->arena, (r->outputs.n + 1) * sizeof *moved); /* zero */
  void **values = alloc_values(r);
  if (moved == NULL || values == NULL) return QUERN_STATUS_MEMORY;
  for (uint64_t way = 0; way < WAYS; way++) {
    QUERN_TRY(evaluate_moved(r, way, by, values));
    for (size_t i = 0; i < r->outputs.n; i++)
      moved[i] = fmax(moved[i], difference(r->outputs.at[i], check->want[i], values[i]));
  }
  check->moved = moved;
  return QUERN_STATUS_OK;
}

/* A network whose results are too far away is asked how far they move by themselves. */
static quern_status check_values(struct run *r, struct check *check, void *const *got) {
  quern_status status = compare(r, check, got);
  if (status == QUERN_STATUS_OK || check->moved != NULL) return status;
  QUERN_TRY(find_moved(r, check));
  return compare(r, check, got);
}

static void run_fini(struct run *r) {
  struct base_heap heap;
  base_heap_init(&heap, NULL);
  base_vec_fini(r->m->ctx != NULL ? &r->m->ctx->heap : &heap, &r->outputs);
  base_vec_fini(r->m->ctx != NULL ? &r->m->ctx->heap : &heap, &r->feeds);
  made_free(r->m);
}

static quern_status run_targets(struct sweep *s, struct run *r, const struct which *w, void *const *exact) {
  void **want;
  QUERN_TRY(evaluate(r, w, &want));
  struct check check = {.want = want, .exact = exact};
  void **got = alloc_values(r);
  if (got == NULL) return QUERN_STATUS_MEMORY;
  for (int i = 0; i < s->n_targets; i++) {
    quern_status status = run_program(r, s->device, s->targets[i], got);
    if (status == QUERN_STATUS_OK) status = check_values(r, &check, got);
    report(s, w, r->m->net.text, s->targets[i], status);
  }
  return QUERN_STATUS_OK;
}

static void run_one(struct sweep *s, const struct which *w) {
  struct made m = {0}, m32 = {0};
  struct base_arena arena;
  struct base_heap heap;
  struct run r = {.m = &m, .arena = &arena}, r32 = {.m = &m32, .arena = &arena};
  struct which w32 = *w;
  void **exact = NULL;
  quern_status status = QUERN_STATUS_OK;
  base_heap_init(&heap, NULL);
  base_arena_init(&arena, &heap);
  w32.low = QUERN_DTYPE_F32;
  if (w->low != QUERN_DTYPE_F32) status = evaluate(&r32, &w32, &exact);
  if (status == QUERN_STATUS_OK) status = run_targets(s, &r, w, exact);
  if (status != QUERN_STATUS_OK) report(s, w, m.net.text, "on the evaluator", status);
  run_fini(&r);
  run_fini(&r32);
  base_arena_fini(&arena);
}

/* Training, or evaluation of every third; bf16 of every second. */
static void run_seed(struct sweep *s, uint64_t seed) {
  const struct which w = {.random = true,
                          .number = seed,
                          .small = true,
                          .train = seed % 3 != 0,
                          .low = seed % 2 == 0 ? QUERN_DTYPE_BF16 : QUERN_DTYPE_F32};
  run_one(s, &w);
}

/* Training and evaluation in both dtypes; of large networks, which take the evaluator minutes, training in f32 and evaluation in
** bf16. */
static void run_model(struct sweep *s, int i) {
  for (int way = 0; way < 4 && s->failed < MOST_FAILURES; way++) {
    const struct which w = {.number = (uint64_t)i,
                            .small = true,
                            .train = way % 2 == 0,
                            .low = way < 2 ? QUERN_DTYPE_F32 : QUERN_DTYPE_BF16};
    if (!nets_model_is_short(i, true) && (way == 1 || way == 2)) continue;
    run_one(s, &w);
  }
}

/* ---- options ------------------------------------------------------------------------------------------------------- */

/* Networks that come with Quern: their lists. */
enum models { NONE, SHORT, ALL };

struct options {
  uint64_t random, run, seed, only;
  bool has_only;
  enum models models, run_models;
  char targets[256];
  const char *device;
};

static int usage(const char *why, const char *what) {
  fprintf(stderr,
          "quernnets: %s %s\nusage: quernnets [--models all|short|none] [--random N] [--run N] "
          "[--run-models all|short|none] [--seed S] [--only SEED] [--targets LIST] [--device NAME]\n",
          why, what);
  return 2;
}

static bool read_number(const char *text, uint64_t *to) {
  char *end;
  errno = 0;
  *to = strtoull(text, &end, 10);
  return errno == 0 && end != text && *end == 0;
}

static bool read_models(const char *text, enum models *to) {
  static const char *const words[] = {[NONE] = "none", [SHORT] = "short", [ALL] = "all"};
  for (size_t i = 0; i < BASE_COUNT(words); i++)
    if (strcmp(text, words[i]) == 0) {
      *to = (enum models)i;
      return true;
    }
  return false;
}

static int read_options(struct options *o, int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    const char *name = argv[i], *value = i + 1 < argc ? argv[++i] : NULL;
    bool fine = value != NULL;
    if (!fine) return usage("no value after", name);
    if (strcmp(name, "--models") == 0)
      fine = read_models(value, &o->models);
    else if (strcmp(name, "--run-models") == 0)
      fine = read_models(value, &o->run_models);
    else if (strcmp(name, "--random") == 0)
      fine = read_number(value, &o->random);
    else if (strcmp(name, "--run") == 0)
      fine = read_number(value, &o->run);
    else if (strcmp(name, "--seed") == 0)
      fine = read_number(value, &o->seed);
    else if (strcmp(name, "--only") == 0)
      fine = o->has_only = read_number(value, &o->only);
    else if (strcmp(name, "--device") == 0)
      o->device = value;
    else if (strcmp(name, "--targets") == 0)
      fine = snprintf(o->targets, sizeof o->targets, "%s", value) < (int)sizeof o->targets;
    else
      return usage("wrong argument", name);
    if (!fine) return usage("wrong value", value);
  }
  return 0;
}

int main(int argc, char **argv) {
  struct options o = {.seed = 1};
  struct sweep s = {0};
  snprintf(o.targets, sizeof o.targets, "%s", all_targets);
  int rc = read_options(&o, argc, argv);
  if (rc != 0) return rc;
  s.device = o.device != NULL ? o.device : "interp";
  if (o.device != NULL) s.targets[s.n_targets++] = "";
  for (char *t = o.device != NULL ? NULL : strtok(o.targets, ","); t != NULL && s.n_targets < MOST_TARGETS;
       t = strtok(NULL, ","))
    s.targets[s.n_targets++] = t;
  if (o.has_only) {
    run_seed(&s, o.only);
    sweep_all(&s, true, o.only);
  }
  for (int i = 0; o.models != NONE && i < nets_models(false); i++)
    if (o.models == ALL || nets_model_is_short(i, false)) sweep_all(&s, false, (uint64_t)i);
  for (int i = 0; o.run_models != NONE && i < nets_models(true); i++)
    if (o.run_models == ALL || nets_model_is_short(i, true)) run_model(&s, i);
  for (uint64_t i = 0; i < o.random && s.failed < MOST_FAILURES; i++) sweep_all(&s, true, o.seed + i);
  for (uint64_t i = 0; i < o.run && s.failed < MOST_FAILURES; i++) run_seed(&s, o.seed + i);
  printf("%d passed, %d failed\n", s.passed, s.failed);
  return s.failed > 0;
}
