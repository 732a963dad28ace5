/* engine/save.c -- programs in files: opened and run without compiler and cache (quern_program_save, quern_program_load)
** A file: "QUERNPRG", format, checksum of the rest; version, target; the program (codec.c); objects; constants. Numbers are
** as the CPU has them: compiled code is for one kind of CPU anyway.
** keeps: a file is whole or not there; a damaged one is refused
** tests: tests/engine/test_save.c
*/
#include "engine/codec.h"
#include "io/io.h"
#include "quern/version.h"

static const char magic[8] = {'Q', 'U', 'E', 'R', 'N', 'P', 'R', 'G'};
enum { FORMAT = 10, HEAD = 8 + 3 * 8 }; /* magic, format, bytes before the constants, checksum */

/* Of everything after the head. */
static uint64_t checksum(const void *program, size_t n, const void *constants, size_t n_constants) {
  return base_hash_bytes(base_hash_bytes(BASE_HASH_SEED, program, n), constants, n_constants);
}

static const char order_mark[] = "little"; /* the order of bytes, as the CPU that wrote it has it */
static bool is_little(void) {
  const uint16_t one = 1;
  return *(const unsigned char *)&one == 1;
}

/* ---- writing --------------------------------------------------------------------------------------------- */

static void write_objects(struct codec *c, const quern_program *program) {
  const struct rt_object *objects = NULL;
  size_t n = program->device->backend->objects(program->module, &objects);
  codec_size(c, &n);
  for (size_t i = 0; i < n; i++) {
    size_t bytes = objects[i].n;
    codec_size(c, &bytes);
    codec_raw(c, (void *)objects[i].bytes, bytes);
  }
}

quern_status engine_program_bytes(const quern_program *program, struct base_str *str) {
  const struct rt_object *objects = NULL;
  QUERN_CHECK(program->module != NULL, UNSUPPORTED, "program_save: the program was only planned (plan_only)");
  QUERN_CHECK(program->device->backend->objects != NULL && program->device->backend->from_objects != NULL, UNSUPPORTED,
              "program_save: a program of device %s has no compiled code to be saved", program->device->name);
  QUERN_CHECK(program->n_kernels == 0 || program->device->backend->objects(program->module, &objects) > 0, UNSUPPORTED,
              "program_save: the program is interpreted, because there is no C compiler");
  QUERN_CHECK(is_little(), UNSUPPORTED, "program_save: the CPU is big-endian");
  struct codec c = {.out = str};
  const char *texts[] = {order_mark, quern_version(), program->device->backend->name, program->target.base.name};
  for (size_t i = 0; i < BASE_COUNT(texts); i++) codec_string(&c, &texts[i]);
  int threads = program->target.base.threads;
  codec_int(&c, &threads);
  codec_program(&c, (quern_program *)program);
  write_objects(&c, program);
  return base_str_status(str);
}

quern_status quern_program_save(const quern_program *program, const char *path) {
  QUERN_CHECK(program != NULL, INVALID, "program_save: the program is null");
  QUERN_CHECK(path != NULL && path[0] != 0, INVALID, "program_save: the path is %s", path == NULL ? "null" : "empty");
  struct base_heap heap;
  struct base_str str;
  base_heap_init(&heap, &program->heap.user);
  base_str_init(&str, &heap);
  quern_status status = engine_program_bytes(program, &str);
  if (status == QUERN_STATUS_OK) {
    size_t constants = (size_t)program->memory.constants;
    const uint64_t numbers[] = {FORMAT, str.n, checksum(str.at, str.n, program->constants, constants)};
    char head[HEAD];
    memcpy(head, magic, 8);
    memcpy(head + 8, numbers, sizeof numbers);
    const struct io_piece subprograms[] = {{head, HEAD}, {str.at, str.n}, {program->constants, constants}};
    status = io_file_write("program_save", path, 3, subprograms);
  }
  base_str_fini(&str);
  return status;
}

/* ---- reading --------------------------------------------------------------------------------------------- */

static quern_status damaged(const char *path, const char *why) {
  return base_error(QUERN_STATUS_PARSE, "%s: %s", path, why);
}

/* Code of a CPU runs on those that have what it needs, code of a GPU on its own kind. */
static bool can_run(const quern_device *device, const struct cg_target *target) {
  struct cg_target own;
  if (!target->base.gpu) return cg_target_runs(target);
  return device->backend->target(device, &own) == QUERN_STATUS_OK && strcmp(own.base.name, target->base.name) == 0;
}

/* The first device of the kind that it was made for, unless another of that kind is wanted. */
static quern_status find_device(quern_program *program, const char *path, const char *kind) {
  const quern_device *wanted = program->device, *first;
  bool there = rt_device_find(&first, "program_load", kind) == QUERN_STATUS_OK && first->backend->from_objects != NULL;
  QUERN_CHECK(there, UNSUPPORTED, "%s: made for device %s, which this Quern has not", path, kind);
  QUERN_CHECK(wanted == NULL || wanted->backend == first->backend, UNSUPPORTED,
              "%s: made for device %s, and is to be loaded on device %s HINT: compile the graph again", path, kind,
              wanted->name);
  if (wanted == NULL) engine_program_set_device(program, first);
  return QUERN_STATUS_OK;
}

/* What comes before the program: whether this machine and this version can run it. */
static quern_status read_head(struct codec *c, quern_program *program, const char *path) {
  const char *texts[4];
  for (size_t i = 0; i < BASE_COUNT(texts); i++) codec_string(c, &texts[i]);
  int threads = 0;
  codec_int(c, &threads);
  if (c->no_memory) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < BASE_COUNT(texts); i++)
    if (c->failed || texts[i] == NULL) return damaged(path, "the file is cut or is no program");
  QUERN_CHECK(strcmp(texts[0], order_mark) == 0 && is_little(), UNSUPPORTED,
              "%s: made for a CPU with another order of bytes", path);
  QUERN_CHECK(strcmp(texts[1], quern_version()) == 0, UNSUPPORTED,
              "%s: made by Quern %s, this is %s HINT: compile the graph again", path, texts[1], quern_version());
  QUERN_TRY(find_device(program, path, texts[2]));
  const struct cg_target *target = cg_target_find(texts[3]);
  QUERN_CHECK(target != NULL && can_run(program->device, target), UNSUPPORTED,
              "%s: made for target %s, which this %s cannot run HINT: compile the graph again", path, texts[3],
              target != NULL && target->base.gpu ? "device" : "CPU");
  QUERN_CHECK(threads >= 1 && (threads <= RT_MAX_THREADS || target->base.gpu), PARSE, "%s: for %d threads", path,
              threads);
  program->target = *target;
  program->target.base.threads = threads;
  return QUERN_STATUS_OK;
}

static quern_status read_objects(struct codec *c, quern_program *program, const char *path) {
  size_t n = 0;
  codec_size(c, &n);
  if (c->failed || n > (size_t)(c->end - c->at) / 8) return damaged(path, "the file is cut");
  struct rt_object *objects = base_arena_alloc(c->arena, (n + 1) * sizeof *objects);
  if (objects == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < n; i++) {
    codec_size(c, &objects[i].n);
    if (c->failed || objects[i].n > (size_t)(c->end - c->at)) return damaged(path, "the file is cut");
    objects[i].bytes = c->at;
    c->at += objects[i].n;
  }
  return program->device->backend->from_objects(program->device, &program->module, &program->heap,
                                                (size_t)program->n_kernels,
                                                (const struct kern *const *)program->kernels, n, objects);
}

quern_status engine_program_read(quern_program *program, const char *path, const char *bytes, size_t n, size_t *used) {
  struct codec c = {.reading = true, .at = bytes, .end = bytes + n, .arena = &program->arena, .heap = &program->heap};
  QUERN_TRY(read_head(&c, program, path));
  codec_program(&c, program);
  if (c.no_memory) return QUERN_STATUS_MEMORY;
  if (c.failed || !codec_valid(program)) return damaged(path, "the file is cut or damaged");
  QUERN_TRY(read_objects(&c, program, path));
  *used = (size_t)(c.at - bytes);
  return QUERN_STATUS_OK;
}

/* The checksum comes first: nothing of a damaged file is looked at, or run. */
static quern_status read_program(quern_program *program, const char *path, const char *bytes, size_t n) {
  uint64_t numbers[3];
  if (n < HEAD || memcmp(bytes, magic, 8) != 0) return damaged(path, "is no saved program of Quern");
  memcpy(numbers, bytes + 8, sizeof numbers);
  QUERN_CHECK(numbers[0] == FORMAT, UNSUPPORTED, "%s: has format %llu, this Quern reads %d", path,
              (unsigned long long)numbers[0], FORMAT);
  bytes += HEAD;
  n -= HEAD;
  if (numbers[1] > n) return damaged(path, "the file is cut");
  size_t whole = (size_t)numbers[1], constants = n - whole, used = 0;
  if (checksum(bytes, whole, bytes + whole, constants) != numbers[2])
    return damaged(path, "the checksum differs: the file is damaged");
  QUERN_TRY(engine_program_read(program, path, bytes, whole, &used));
  if (used != whole || constants != (size_t)program->memory.constants) return damaged(path, "the file is cut");
  program->constants = base_alloc(&program->heap, constants);
  if (program->constants == NULL) return QUERN_STATUS_MEMORY;
  memcpy(program->constants, bytes + whole, constants);
  return engine_upload_constants(program);
}

static quern_status load(quern_program **program, const char *path, const quern_device *device) {
  QUERN_CHECK(program != NULL, INVALID, "program_load: the place for the program is null");
  *program = NULL;
  QUERN_CHECK(path != NULL && path[0] != 0, INVALID, "program_load: the path is %s", path == NULL ? "null" : "empty");
  QUERN_TRY(base_env_read());
  struct base_heap heap;
  void *bytes;
  size_t n;
  base_heap_init(&heap, NULL);
  QUERN_TRY(io_file_read(path, &heap, SIZE_MAX / 2, &bytes, &n));
  quern_program *made = NULL;
  quern_status status = engine_program_empty(&made, &heap.user);
  if (status == QUERN_STATUS_OK) {
    if (device != NULL) engine_program_set_device(made, device);
    status = read_program(made, path, bytes, n);
  }
  base_free(&heap, bytes, n);
  if (status == QUERN_STATUS_OK)
    *program = made;
  else
    quern_program_free(made);
  return status;
}

quern_status quern_program_load(quern_program **program, const char *path) { return load(program, path, NULL); }

quern_status quern_program_load_on(quern_program **program, const char *path, const quern_device *device) {
  QUERN_CHECK(program != NULL, INVALID, "program_load_on: the place for the program is null");
  *program = NULL;
  QUERN_CHECK(device != NULL, INVALID, "program_load_on: the device is null");
  return load(program, path, device);
}
