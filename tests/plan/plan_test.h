/* tests/plan/plan_test.h -- steps that compute nothing, to be planned; and a machine that runs a plan on tags
** A tensor of a step is a leaf of so many bytes; its kernel is a list of memories. The machine has a tag a 64-byte
** slot of memory: a step must find in all slots of what it reads the tag of the tensor it was given, and writes those
** of its results.
*/
#ifndef TESTS_PLAN_PLAN_TEST_H
#define TESTS_PLAN_PLAN_TEST_H
#include "plan/plan_int.h"
#include "quern/quern.h"
#include "unit.h"

enum { FAKE_MOST = 8, FAKE_STEPS = 256 };

struct fake {
  struct pass_group group;
  struct kern kern;
  quern_tensor *ins[FAKE_MOST];
  struct pass_out outs[FAKE_MOST];
};

/* A problem to be planned. */
struct problem {
  size_t n;
  struct fake fakes[FAKE_STEPS];
  struct plan_input_step steps[FAKE_STEPS];
  quern_tensor *params[32], *results[32];
  struct plan_leaf leaves[32];
  struct plan_update updates[32];
  bool donated[32];
  struct plan_options options;
};

static struct problem p;
static struct base_arena plan_arena;
static struct plan *plan;

static inline quern_tensor *fake_tensor(int64_t bytes) {
  return quern_input(ctx, "t", QUERN_DTYPE_U8, 1, (const int64_t[]){bytes});
}

static inline void problem_open(void) {
  memset(&p, 0, sizeof p);
  base_arena_init(&plan_arena, &ctx->heap);
  p.options = (struct plan_options){.reorder = true,
                                    .share = true,
                                    .threads = 1,
                                    .params = p.params,
                                    .results = p.results,
                                    .leaves = p.leaves,
                                    .updates = p.updates,
                                    .donated = p.donated};
}

static inline void problem_close(void) { base_arena_fini(&plan_arena); }

static inline quern_tensor *problem_param(int64_t bytes) { return p.params[p.options.n_params++] = fake_tensor(bytes); }

static inline quern_tensor *problem_leaf(enum plan_memory_kind place, int64_t at, int64_t bytes) {
  struct plan_leaf leaf = {fake_tensor(bytes), place, at};
  p.leaves[p.options.n_leaves++] = leaf;
  return leaf.tensor;
}

/* A step that makes a tensor of so many bytes from others. */
static inline struct fake *problem_step(int64_t bytes, int n_ins, quern_tensor *const *ins) {
  struct fake *f = &p.fakes[p.n];
  f->group =
      (struct pass_group){.kind = PASS_KIND_MAP, .n_ins = (size_t)n_ins, .n_outs = 1, .ins = f->ins, .outs = f->outs};
  f->kern = (struct kern){.name = "fake", .n_mems = n_ins + 1};
  for (int i = 0; i < n_ins; i++) {
    f->ins[i] = ins[i];
    f->kern.mems[i] =
        (struct kern_mem){.dtype = QUERN_DTYPE_U8, .role = KERN_IN, .count = (int64_t)ir_bytes(ins[i]), .alias = -1};
  }
  f->outs[0].tensor = fake_tensor(bytes);
  f->kern.mems[n_ins] = (struct kern_mem){.dtype = QUERN_DTYPE_U8, .role = KERN_OUT, .count = bytes, .alias = -1};
  p.steps[p.n] = (struct plan_input_step){.group = &f->group, .kern = &f->kern, .kernel = (int)p.n, .seconds = 1e-6};
  p.n++;
  return f;
}

#define INS(...)                                                                                                       \
  (int)(sizeof((quern_tensor *[]){__VA_ARGS__}) / sizeof(quern_tensor *)), (quern_tensor *[]) { __VA_ARGS__ }
#define OUT(fake) ((fake)->outs[0].tensor)

static inline void add_out(struct fake *f, int64_t bytes) {
  int i = f->kern.n_mems++;
  QUERN_ASSERT(f->kern.mems[i - 1].role == KERN_OUT);
  f->kern.mems[i] = (struct kern_mem){.dtype = QUERN_DTYPE_U8, .role = KERN_OUT, .count = bytes, .alias = -1};
  f->outs[f->group.n_outs++].tensor = fake_tensor(bytes);
}

static inline void add_work(struct fake *f, int64_t bytes) {
  f->kern.mems[f->kern.n_mems++] =
      (struct kern_mem){.dtype = QUERN_DTYPE_U8, .role = KERN_WORK, .count = bytes, .alias = -1};
}

/* Out 0 may take the memory of an in. */
static inline struct fake *in_place(struct fake *f, int in) {
  f->kern.mems[f->group.n_ins].alias = in;
  return f;
}

/* All ins and outs of the same size may share memory. */
static inline struct fake *one_spot(struct fake *f) {
  for (int i = 0; i < f->kern.n_mems; i++) f->kern.mems[i].in_place_class = f->kern.mems[i].role == KERN_WORK ? 0 : 1;
  return f;
}

/* The same bytes as another tensor. */
static inline quern_tensor *problem_view(quern_tensor *of) {
  struct fake *f = problem_step((int64_t)ir_bytes(of), INS(of));
  f->group.kind = PASS_KIND_VIEW;
  p.steps[p.n - 1].kern = NULL;
  return OUT(f);
}

static inline void problem_result(quern_tensor *t) { p.results[p.options.n_results++] = t; }
static inline void problem_update(quern_tensor *state, quern_tensor *value) {
  p.updates[p.options.n_updates++] = (struct plan_update){state, value};
}

static inline quern_status problem_plan(void) { return plan_make(&plan, &plan_arena, p.n, p.steps, &p.options); }

/* ---- the machine ------------------------------------------------------------------------------------------- */

enum { MACHINE_SLOTS = 1 << 16 };
static const quern_tensor *machine[PLAN_RESULT + 1][MACHINE_SLOTS]; /* params and results have 256 slots each */

static inline const quern_tensor **slots_of(const struct plan_buffer *b, int64_t *n) {
  bool numbered = b->memory == PLAN_PARAM || b->memory == PLAN_RESULT;
  int64_t at = numbered ? b->at * 256 : b->at / 64;
  *n = (b->bytes + 63) / 64;
  assert_true(at + *n <= MACHINE_SLOTS && (!numbered || *n <= 256));
  return &machine[b->memory][at];
}

/* Views have the tags of what they view. */
static inline const quern_tensor *origin(const quern_tensor *t) {
  for (size_t i = p.n; i-- > 0;)
    if (p.fakes[i].group.kind == PASS_KIND_VIEW && OUT(&p.fakes[i]) == t) t = p.fakes[i].ins[0];
  return t;
}

static inline void put(const struct plan_buffer *b, const quern_tensor *tag) {
  int64_t n;
  const quern_tensor **slots = slots_of(b, &n);
  for (int64_t i = 0; i < n; i++) slots[i] = tag;
}

static inline void expect(const struct plan_buffer *b, const quern_tensor *tag) {
  int64_t n;
  const quern_tensor **slots = slots_of(b, &n);
  for (int64_t i = 0; i < n; i++) assert_ptr_equal(slots[i], tag);
}

/* Runs the plan and checks results and states. */
static inline void machine_run(void) {
  memset(machine, 0, sizeof machine);
  for (size_t i = 0; i < p.options.n_params; i++) put(&plan->buffers[plan->params[i]], p.params[i]);
  for (size_t i = 0; i < p.options.n_leaves; i++) {
    struct plan_buffer b = {
        .memory = p.leaves[i].memory, .at = p.leaves[i].at, .bytes = (int64_t)ir_bytes(p.leaves[i].tensor)};
    put(&b, p.leaves[i].tensor);
  }
  for (size_t i = 0; i < plan->n_steps; i++) {
    const struct plan_step *step = &plan->steps[i];
    if (step->kind == PLAN_COPY) {
      int64_t n;
      const struct plan_buffer *to = &plan->buffers[step->buffers[0]], *from = &plan->buffers[step->buffers[1]];
      assert_true(to->bytes == from->bytes);
      const quern_tensor *tag = *slots_of(from, &n);
      assert_ptr_equal(tag, origin(from->tensor));
      expect(from, tag);
      put(to, tag);
      continue;
    }
    int n_ins = (int)step->group->n_ins, n_outs = (int)step->group->n_outs;
    for (int k = 0; k < n_ins; k++) expect(&plan->buffers[step->buffers[k]], origin(step->group->ins[k]));
    for (int k = n_ins + n_outs; k < step->n_buffers; k++) put(&plan->buffers[step->buffers[k]], NULL);
    for (int k = 0; k < n_outs; k++) put(&plan->buffers[step->buffers[n_ins + k]], step->group->outs[k].tensor);
  }
  for (size_t i = 0; i < p.options.n_results; i++) {
    assert_true(plan->buffers[plan->results[i]].memory == PLAN_RESULT);
    expect(&plan->buffers[plan->results[i]], origin(p.results[i]));
  }
  for (size_t i = 0; i < p.options.n_leaves; i++) {
    const quern_tensor *tag = p.leaves[i].tensor;
    for (size_t k = 0; k < p.options.n_updates; k++)
      if (p.updates[k].state == p.leaves[i].tensor) tag = origin(p.updates[k].value);
    struct plan_buffer b = {
        .memory = p.leaves[i].memory, .at = p.leaves[i].at, .bytes = (int64_t)ir_bytes(p.leaves[i].tensor)};
    expect(&b, tag);
  }
}

static inline void expect_plan(void) {
  EXPECT_OK(problem_plan());
  EXPECT_OK(plan_verify(plan, &ctx->heap));
  assert_true(plan->memory.bound <= plan->memory.arena);
  machine_run();
}

/* Steps that compute again what was there. */
static inline int count_again(void) {
  int n = 0;
  for (size_t i = 0; i < plan->n_steps; i++) n += plan->steps[i].rematerialized;
  return n;
}

/* Without the n-th piece of memory, for each n: a clean error. build makes a problem, of several ways. */
static inline void expect_faults(void (*build)(int way), int way) {
  struct fault fault = {0};
  while (fault_next(&fault)) {
    problem_open();
    build(way);
    EXPECT_OK(quern_context_check(ctx));
    fault_begin(&fault);
    quern_status status = problem_plan();
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    problem_close();
    test_renew();
  }
  assert_true(fault.n > 8);
}

/* ---- random graphs ----------------------------------------------------------------------------------------- */

static uint64_t random_state = 1;
static inline int64_t below(int64_t n) {
  random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (int64_t)((random_state >> 33) % (uint64_t)n);
}

/* n steps, each with up to 3 sources among the later ones; what nobody reads is a result. alias: some work in place. */
static inline void random_problem(int n, bool alias) {
  bool used[FAKE_STEPS] = {false};
  quern_tensor *in = problem_param(64);
  for (int i = 0; i < n; i++) {
    quern_tensor *ins[3] = {in};
    int n_ins = i == 0 ? 1 : (int)below(3) + 1, window = (int)below(2) == 0 ? 4 : n;
    for (int k = 0; k < n_ins && i > 0; k++) {
      int back = 1 + (int)below(window), from = BASE_MAX(0, i - back);
      ins[k] = OUT(&p.fakes[from]);
      used[from] = true;
      for (int earlier = 0; earlier < k; earlier++)
        if (ins[earlier] == ins[k]) n_ins = k;
    }
    struct fake *f = problem_step(64 * (1 + below(alias ? 3 : 20)), n_ins, ins);
    if (below(4) == 0) add_work(f, 64 * below(8));
    if (alias && ir_bytes(f->ins[0]) == ir_bytes(OUT(f))) in_place(f, 0);
  }
  for (int i = 0; i < n; i++)
    if (!used[i]) problem_result(OUT(&p.fakes[i]));
}

#endif
