/* engine/validate.c -- whether a program that was read from bytes holds together
** in:    what codec.c has read, whatever the bytes were      out: yes or no
** keeps: an instance of one that fits can be made, and a run touches no byte outside of its memories, as far as its kernels do what
**        they declare: they are machine code, which nobody can check
** see:   write.c, which makes programs; instance.c and run.c, which count on this      tests: tests/engine/test_save.c,
**        tests/fuzz/fuzz_program.c
*/
#include "engine/codec.h"

#define MOST_BYTES (INT64_C(1) << 48) /* of anything: sums of two are no trouble */

static bool is_size(int64_t bytes) { return bytes >= 0 && bytes <= MOST_BYTES; }

/* Adds up; false: it is too much. */
static bool add(int64_t *sum, int64_t bytes) {
  if (!is_size(bytes)) return false;
  *sum += bytes;
  return is_size(*sum);
}

/* n times so many bytes, which are not more than there are. */
static bool times_valid(int64_t n, int64_t bytes, int64_t there) {
  return n >= 0 && is_size(bytes) && (bytes == 0 || n <= there / bytes);
}

/* ---- slots ----------------------------------------------------------------------------------------------- */

static bool slot_valid(const quern_slot *s) {
  int64_t bytes = (int64_t)base_dtypes[s->dtype].size;
  for (int i = 0; i < s->rank; i++) { /* none at all, however long the other sides are */
    if (s->dims[i] < 0) return false;
    if (s->dims[i] == 0) bytes = 0;
  }
  for (int i = 0; i < s->rank; i++) {
    if (!times_valid(s->dims[i], bytes, MOST_BYTES)) return false;
    bytes *= s->dims[i];
  }
  return s->bytes == (size_t)bytes;
}

static bool slots_valid(size_t n, const quern_slot *slots) {
  for (size_t i = 0; i < n; i++)
    if (!slot_valid(&slots[i])) return false;
  return true;
}

/* States lie one after another. */
static bool states_valid(const quern_program *p) {
  int64_t end = 0;
  for (size_t i = 0; i < p->n_states; i++) {
    if (p->states[i].name == NULL || p->state_at[i] != end) return false;
    if (p->state_use[i] < 0 || p->state_use[i] >= ENGINE_STATE_USES) return false;
    if (!add(&end, engine_room(&p->target.base, (int64_t)p->states[i].bytes))) return false;
  }
  return p->memory.state == end;
}

/* Inputs and outputs that do not lie where the caller has them; rows of the dynamic batch: none without one. */
static bool staging_valid(const quern_program *p) {
  int64_t staging = 0, inputs = 0;
  if (!is_size(p->dynamic_batch)) return false;
  for (size_t i = 0; i < p->n_inputs + p->n_outputs; i++) {
    const quern_slot *s = i < p->n_inputs ? &p->inputs[i] : &p->outputs[i - p->n_inputs];
    if (!s->dynamic_batch && p->device->remote == NULL) continue;
    if (s->dynamic_batch && (p->dynamic_batch == 0 || s->bytes % (size_t)p->dynamic_batch != 0)) return false;
    if (!add(&staging, engine_room(&p->target.base, (int64_t)s->bytes))) return false;
    if (i < p->n_inputs) inputs = staging;
  }
  if (engine_uploads_async(p->device, inputs)) staging += inputs;
  return p->memory.staging == staging;
}

/* ---- kernels --------------------------------------------------------------------------------------------- */

static bool phase_valid(const quern_program *p, const struct kern *kern, const struct kern_phase *phase) {
  enum { MOST_BESIDE = 1024 };
  const struct kern_tasks *tasks = &phase->tasks;
  const struct kern_batch_tasks *first = &phase->batch_tasks;
  int64_t rows = BASE_MAX(p->dynamic_batch, 1);
  int64_t of = tasks->scalar >= 0 ? rows : 1;
  if (tasks->scalar < -1 || tasks->scalar >= kern->n_scalars || tasks->mul < 0 || tasks->mul > KERN_MAX_TASKS ||
      tasks->mul > INT64_MAX / of || tasks->div <= 0 || tasks->div > KERN_MAX_TASKS)
    return false;
  bool far = first->mul < 0 || first->mul > INT64_MAX / 2 / rows || first->add < -MOST_BYTES || first->add > MOST_BYTES;
  if (far || first->div < 0 || (first->div > 0 && (first->by <= 0 || kern->n_scalars == 0))) return false;
  if (phase->min_blocks_per_sm < 0 || phase->min_blocks_per_sm > MOST_BESIDE) return false;
  int least = BASE_MIN(phase->from, phase->to), most = BASE_MAX(phase->from, phase->to);
  return least >= 0 && most < BASE_MAX(kern->n_mems, 1);
}

/* A run has one scalar, the rows of the dynamic batch. */
static bool kernel_valid(const quern_program *p, const struct kern *kern) {
  if (kern->n_scalars > (p->dynamic_batch > 0 ? 1 : 0)) return false;
  for (int i = 0; i < kern->n_mems; i++) {
    const struct kern_mem *m = &kern->mems[i];
    if (!times_valid(m->count, (int64_t)base_dtypes[m->dtype].size, MOST_BYTES)) return false;
    if (m->alias < -1 || m->alias >= kern->n_mems || m->in_place_class < 0 || m->in_place_class > KERN_MAX_MEMS)
      return false;
  }
  for (int i = 0; i < kern->n_phases; i++)
    if (!phase_valid(p, kern, &kern->phases[i])) return false;
  return kern_check_library_call(kern) == QUERN_STATUS_OK;
}

/* ---- subprograms: each for itself ------------------------------------------------------------------------------ */

static bool is_outside(const struct engine_buffer *b) { return b->place == PLAN_PARAM || b->place == PLAN_RESULT; }

static bool state_valid(const quern_program *p, const struct engine_buffer *b) {
  if (p->n_states == 0) return false;
  size_t i = engine_state_of(p, b->at);
  return b->at + b->bytes <= p->state_at[i] + (int64_t)p->states[i].bytes;
}

static bool buffer_valid(const quern_program *p, const struct engine_subprogram *subprogram,
                         const struct engine_buffer *b) {
  if (!is_size(b->bytes) || !is_size(b->at)) return false;
  if (b->rows && (p->dynamic_batch == 0 || b->bytes % p->dynamic_batch != 0)) return false;
  switch (b->place) {
  case PLAN_ARENA: return b->at <= subprogram->memory.arena - b->bytes;
  case PLAN_STATE: return state_valid(p, b);
  case PLAN_CONST: return b->at <= p->memory.constants - b->bytes;
  case PLAN_PARAM: return b->at < subprogram->n_params;
  default: return b->at < subprogram->n_results;
  }
}

/* The list of buffers that lie in params and results is that of all such. */
static bool outside_valid(const struct engine_subprogram *subprogram) {
  int n = 0;
  for (int i = 0; i < subprogram->n_buffers; i++) {
    if (!is_outside(&subprogram->buffers[i])) continue;
    if (n == subprogram->n_outside || subprogram->outside[n++] != i) return false;
  }
  return n == subprogram->n_outside;
}

static bool subprogram_valid(const quern_program *p, const struct engine_subprogram *subprogram) {
  int most = 0;
  if (subprogram->n_params < 0 || subprogram->n_results < 0 || !is_size(subprogram->memory.arena) ||
      !outside_valid(subprogram))
    return false;
  for (int i = 0; i < subprogram->n_buffers; i++)
    if (!buffer_valid(p, subprogram, &subprogram->buffers[i])) return false;
  for (int i = 0; i < subprogram->n_steps; i++) most = BASE_MAX(most, subprogram->steps[i].n_buffers);
  return subprogram->most_buffers == most;
}

/* ---- steps ----------------------------------------------------------------------------------------------- */

/* A control step while it is looked at: bytes of its operands, in the order of its buffers. */
struct control_view {
  const struct engine_subprogram *subprogram;
  const struct engine_step *step;
  const struct engine_control *control;
};

static int64_t bytes_of(const struct control_view *l, int i) {
  return l->subprogram->buffers[l->step->buffers[i]].bytes;
}
static int64_t source_bytes(const struct control_view *l, int i) { return bytes_of(l, i); }
static int64_t result_bytes(const struct control_view *l, int i) { return bytes_of(l, l->control->n_src + i); }
static int64_t work_bytes(const struct control_view *l, int i) {
  return bytes_of(l, l->control->n_src + l->control->n_out + i);
}

/* A carry lies in its source first, then in its result, and unless it is written in place, or iterations are one at most, in a workspace: they
** are large enough. */
static bool carries_valid(const struct control_view *l) {
  bool once = l->step->kind == PLAN_LOOP && l->control->trip <= 1;
  for (int i = 0; i < l->control->carries; i++) {
    int64_t bytes = result_bytes(l, i);
    int slot = l->control->slot[i];
    bool stacked = l->step->kind == PLAN_LOOP && slot >= l->control->carries && slot < l->control->n_out &&
                   l->control->out_stride[slot] >= bytes && !l->control->in_place[i];
    if (slot != 0 && !stacked) return false;
    if (source_bytes(l, i) < bytes || (!once && !l->control->in_place[i] && work_bytes(l, 2 + i) < bytes)) return false;
  }
  return true;
}

/* Iterations of a loop take parts of what is scanned, and write parts of what is stacked. */
static bool iterations_valid(const struct control_view *l) {
  const struct engine_control *c = l->control;
  for (int i = c->carries; i < c->carries + c->scanned; i++)
    if (!times_valid(c->trip, c->src_stride[i], source_bytes(l, i))) return false;
  for (int i = c->carries; i < c->n_out; i++)
    if (!times_valid(c->trip, c->out_stride[i], result_bytes(l, i))) return false;
  return c->trip >= 0;
}

/* Bytes of param i of a body, and of result i; kind: of the step. other: it is the condition of a WHILE. */
static int64_t param_room(const struct control_view *l, int i) {
  const struct engine_control *c = l->control;
  if (l->step->kind == PLAN_IF) return source_bytes(l, i + 1);
  if (l->step->kind == PLAN_WHILE) return i < c->carries ? result_bytes(l, i) : source_bytes(l, i);
  if (i == 0) return (int64_t)sizeof(int64_t); /* the number of the iteration */
  i--;
  if (i < c->carries) return result_bytes(l, i);
  return i < c->carries + c->scanned ? c->src_stride[i] : source_bytes(l, i);
}
static int64_t result_room(const struct control_view *l, int i, bool other) {
  const struct engine_control *c = l->control;
  if (l->step->kind == PLAN_WHILE && other) return work_bytes(l, 0);
  return l->step->kind == PLAN_LOOP && i >= c->carries ? c->out_stride[i] : result_bytes(l, i);
}

/* A body takes as many params and results as it is given, and no more bytes of them; its arena is a workspace. */
static bool body_valid(const quern_program *p, const struct control_view *l, int number, bool other) {
  const struct engine_control *c = l->control;
  if (number <= 0 || number >= p->n_subprograms) return false;
  const struct engine_subprogram *body = &p->subprograms[number];
  int more = l->step->kind == PLAN_LOOP ? 1 : l->step->kind == PLAN_IF ? -1 : 0;
  int results = l->step->kind != PLAN_WHILE ? c->n_out : other ? 1 : c->carries;
  if (body->n_params != c->n_src + more || body->n_results != results) return false;
  for (int i = 0; i < body->n_outside; i++) {
    const struct engine_buffer *b = &body->buffers[body->outside[i]];
    int at = (int)b->at;
    if (b->bytes > (b->place == PLAN_PARAM ? param_room(l, at) : result_room(l, at, other))) return false;
  }
  return body->memory.arena <= work_bytes(l, 1);
}

static bool control_valid(const quern_program *p, const struct control_view *l) {
  const struct engine_control *c = l->control;
  if (c == NULL || l->step->kernel >= 0) return false;
  int64_t works = (int64_t)l->step->n_buffers - c->n_src - c->n_out;
  bool counts = c->n_src >= 0 && c->n_out >= 0 && c->carries >= 0 && c->scanned >= 0 && c->carries <= c->n_out &&
                (int64_t)c->carries + c->scanned <= c->n_src && works >= 2 + c->carries;
  if (!counts || !carries_valid(l) || !body_valid(p, l, c->body, false)) return false;
  if (l->step->kind == PLAN_LOOP)
    return c->other == -1 && iterations_valid(l) && work_bytes(l, 0) >= (int64_t)sizeof(int64_t);
  if (!body_valid(p, l, c->other, true)) return false;
  return (l->step->kind == PLAN_WHILE ? work_bytes(l, 0) : source_bytes(l, 0)) >= 1;
}

static bool launch_valid(const quern_program *p, const struct control_view *l) {
  int number = l->step->kernel;
  if (number < 0 || number >= p->n_kernels || p->kernels[number]->n_mems != l->step->n_buffers) return false;
  const struct kern_mem *mems = p->kernels[number]->mems;
  for (int i = 0; i < l->step->n_buffers; i++)
    if (mems[i].count > bytes_of(l, i) / (int64_t)base_dtypes[mems[i].dtype].size) return false;
  return l->control == NULL;
}

static bool step_valid(const quern_program *p, const struct engine_subprogram *subprogram,
                       const struct engine_step *s) {
  struct control_view l = {subprogram, s, s->control};
  int64_t all = 0;
  if (s->kind_name == NULL || s->ops == NULL || s->layer == NULL) return false;
  for (int i = 0; i < s->n_buffers; i++) {
    if (s->buffers[i] < 0 || s->buffers[i] >= subprogram->n_buffers) return false;
    if (!add(&all, bytes_of(&l, i))) return false;
  }
  if (s->kind == PLAN_KERNEL) return launch_valid(p, &l);
  if (s->kind != PLAN_COPY) return control_valid(p, &l);
  return s->n_buffers == 2 && s->control == NULL && s->kernel < 0 && bytes_of(&l, 0) <= bytes_of(&l, 1);
}

/* Whether bodies lie in bodies at most as deep as graphs may, which is how deep recursion over them is: level by level, a subprogram
** belongs to the deepest level that it is met on. Parts that lie in themselves are met on every level. */
static bool depth_valid(const quern_program *p) {
  bool more = true;
  for (int i = 0; i < p->n_subprograms; i++) p->subprograms[i].level = i == 0 ? 0 : -1;
  for (int level = 0; level <= IR_MAX_DEPTH + 1 && more; level++) {
    more = false;
    for (int i = 0; i < p->n_subprograms; i++) {
      const struct engine_subprogram *subprogram = &p->subprograms[i];
      if (subprogram->level != level) continue;
      for (int k = 0; k < subprogram->n_steps; k++) {
        const struct engine_control *c = subprogram->steps[k].control;
        if (c == NULL) continue;
        more = true;
        p->subprograms[c->body].level = level + 1;
        if (c->other >= 0) p->subprograms[c->other].level = level + 1;
      }
    }
  }
  return !more;
}

/* ---- the whole ------------------------------------------------------------------------------------------- */

/* The main subprogram's params are the inputs, its results the outputs. */
static bool main_valid(const quern_program *p) {
  const struct engine_subprogram *subprogram = &p->subprograms[0];
  if ((size_t)subprogram->n_params != p->n_inputs || (size_t)subprogram->n_results != p->n_outputs) return false;
  for (int i = 0; i < subprogram->n_outside; i++) {
    const struct engine_buffer *b = &subprogram->buffers[subprogram->outside[i]];
    const quern_slot *slots = b->place == PLAN_PARAM ? p->inputs : p->outputs;
    if ((size_t)b->bytes > slots[b->at].bytes) return false;
  }
  return subprogram->memory.arena <= p->memory.arena && is_size(p->memory.arena);
}

bool codec_valid(const quern_program *p) {
  int64_t stride = (int64_t)p->scratch_stride;
  if (p->n_subprograms < 1 || !is_size(p->memory.constants)) return false;
  if (!times_valid(p->target.base.threads, stride, MOST_BYTES)) return false;
  if (!slots_valid(p->n_inputs, p->inputs) || !slots_valid(p->n_outputs, p->outputs) ||
      !slots_valid(p->n_states, p->states))
    return false;
  if (!states_valid(p) || !staging_valid(p)) return false;
  for (int i = 0; i < p->n_kernels; i++)
    if (!kernel_valid(p, p->kernels[i])) return false;
  for (int i = 0; i < p->n_subprograms; i++)
    if (!subprogram_valid(p, &p->subprograms[i])) return false;
  for (int i = 0; i < p->n_subprograms; i++)
    for (int k = 0; k < p->subprograms[i].n_steps; k++)
      if (!step_valid(p, &p->subprograms[i], &p->subprograms[i].steps[k])) return false;
  return main_valid(p) && depth_valid(p);
}
