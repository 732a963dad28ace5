/* runtime/cpu/toolchain.c -- the C compiler: which one, its kind and version, and running it
** keeps: a compiler is asked for its version once per process, and once a version of its file when there is a cache; one
**        that does not answer is not asked again in this process
** tests: tests/runtime/test_toolchain.c
*/
#include "runtime/cpu/cpu_int.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "quern/version.h"

#define COMPILE_SECONDS 1200
#define PROBE_SECONDS 60
enum { MOST_ARGS = 128, ARGS_BYTES = 8192, QUOTED = 640 };

/* An object without the C library: what it calls is in the process that loads it. */
static const char link_flags[] = "-shared -nostdlib -pipe -Wl,-z,noseparate-code -Wl,--build-id=none";

/* ---- finding it ---------------------------------------------------------------------------------------- */

static bool is_program(const char *path) {
  struct stat info;
  return stat(path, &info) == 0 && S_ISREG(info.st_mode) && access(path, X_OK) == 0;
}

/* The path of a program: itself when it has a slash, else the first of that name in the folders. */
static bool find_program(char *path, const char *name, const char *folders) {
  if (strchr(name, '/')) {
    int n = snprintf(path, RT_PATH_BYTES, "%s", name);
    return n < RT_PATH_BYTES && is_program(path);
  }
  for (const char *at = folders; *at;) {
    int length = (int)strcspn(at, ":");
    int n = snprintf(path, RT_PATH_BYTES, "%.*s/%s", length == 0 ? 1 : length, length == 0 ? "." : at, name);
    if (n < RT_PATH_BYTES && is_program(path)) return true;
    at += length;
    if (*at) at++;
  }
  return false;
}

/* Splits a command at blanks into words, the first of which is a program, with its path. */
static bool split_command(struct rt_cc *cc, const char *command, const char *folders) {
  char path[RT_PATH_BYTES], name[RT_PATH_BYTES];
  size_t first = strcspn(command, " ");
  if (is_program(command)) first = strlen(command); /* a path with blanks in it */
  snprintf(name, sizeof name, "%.*s", (int)first, command);
  if (!find_program(path, name, folders)) return false;
  int n = snprintf(cc->text, sizeof cc->text, "%s%c%s", path, 0, command + first);
  if (n >= (int)sizeof cc->text) return false;
  cc->words[0] = cc->text;
  cc->n_words = 1;
  for (char *at = cc->text + strlen(path) + 1; *(at += strspn(at, " "));) {
    if (cc->n_words == RT_CC_WORDS) return false;
    cc->words[cc->n_words++] = at;
    at += strcspn(at, " ");
    if (*at) *at++ = 0;
  }
  return true;
}

/* ---- what it is ---------------------------------------------------------------------------------------- */

double rt_version_seconds = 10;

enum { MOST_HANGING = 8 };

static struct { /* the last answer in this process, and who gave none */
  pthread_mutex_t lock;
  struct rt_key file, hanging[MOST_HANGING];
  size_t n_hanging;
  char version[RT_OUTPUT_BYTES];
} known = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool know(struct rt_cc *cc) {
  pthread_mutex_lock(&known.lock);
  bool same = known.version[0] != 0 && rt_key_equal(&known.file, &cc->file);
  if (same) memcpy(cc->version, known.version, sizeof cc->version);
  pthread_mutex_unlock(&known.lock);
  return same;
}

static void remember(const struct rt_cc *cc) {
  pthread_mutex_lock(&known.lock);
  known.file = cc->file;
  memcpy(known.version, cc->version, sizeof known.version);
  pthread_mutex_unlock(&known.lock);
}

static bool hangs(const struct rt_cc *cc) {
  bool found = false;
  pthread_mutex_lock(&known.lock);
  for (size_t i = 0; i < BASE_MIN(known.n_hanging, MOST_HANGING); i++)
    found = found || rt_key_equal(&known.hanging[i], &cc->file);
  pthread_mutex_unlock(&known.lock);
  return found;
}

static void remember_hanging(const struct rt_cc *cc) {
  pthread_mutex_lock(&known.lock);
  known.hanging[known.n_hanging++ % MOST_HANGING] = cc->file;
  pthread_mutex_unlock(&known.lock);
  base_log(0, "%s --version gave no answer in %g seconds: this compiler is not used", cc->words[0], rt_version_seconds);
}

static void key_string(struct rt_key *key, const char *text) { rt_key_add(key, text, strlen(text)); }

/* The key of the program's file and the words of the command. */
static bool key_of_file(struct rt_cc *cc) {
  struct stat info;
  char path[RT_PATH_BYTES];
  if (!rt_path_real(path, cc->words[0]) || stat(path, &info) != 0) return false;
  cc->file = rt_key_make(1, path, strlen(path));
  int64_t facts[] = {(int64_t)info.st_size, (int64_t)info.st_mtim.tv_sec, (int64_t)info.st_mtim.tv_nsec};
  rt_key_add(&cc->file, facts, sizeof facts);
  for (size_t i = 0; i < cc->n_words; i++) key_string(&cc->file, cc->words[i]);
  return true;
}

/* Asks for the version, if that is not known. *works: it answers. */
static quern_status identify(struct rt_cc *cc, struct base_heap *heap, const struct rt_cache *cache, bool *works) {
  *works = key_of_file(cc);
  if (!*works || know(cc)) return QUERN_STATUS_OK;
  *works = !hangs(cc);
  if (!*works) return QUERN_STATUS_OK;
  rt_cache_note_get(cache, &cc->file, cc->version, sizeof cc->version);
  if (cc->version[0] == 0) {
    const char *argv[RT_CC_WORDS + 2];
    memcpy(argv, cc->words, cc->n_words * sizeof *argv);
    argv[cc->n_words] = "--version";
    argv[cc->n_words + 1] = NULL;
    struct rt_command command = {.argv = argv};
    quern_status status = rt_commands_run(heap, 1, &command, 1, rt_version_seconds, NULL);
    if (status == QUERN_STATUS_MEMORY) return status;
    if (command.ending == RT_TOO_LONG) remember_hanging(cc);
    bool ended_well = (command.ending == RT_EXITED && command.code == 0) || command.ending == RT_UNKNOWN;
    *works = status == QUERN_STATUS_OK && ended_well && command.output[0] != 0;
    if (!*works) return QUERN_STATUS_OK;
    memcpy(cc->version, command.output, sizeof cc->version);
    rt_cache_note_set(cache, &cc->file, cc->version);
  }
  remember(cc);
  return QUERN_STATUS_OK;
}

quern_status rt_cc_find(struct rt_cc *cc, struct base_heap *heap, const struct rt_cache *cache, const char *command,
                        const char *folders, int number) {
  static const char *const names[] = {"cc", "gcc", "clang"};
  bool works = false;
  *cc = (struct rt_cc){0};
  if (*command) {
    command += strspn(command, " ");
    QUERN_CHECK(split_command(cc, command, folders), IO, "QUERN_CC: there is no program for \"%s\"", command);
    QUERN_TRY(identify(cc, heap, cache, &works));
    QUERN_CHECK(works, IO, "QUERN_CC: \"%s --version\" %s", command, hangs(cc) ? "gives no answer" : "does not work");
    return QUERN_STATUS_OK;
  }
  for (size_t i = 0; i < BASE_COUNT(names); i++) {
    *cc = (struct rt_cc){0};
    if (!split_command(cc, names[i], folders)) continue;
    QUERN_TRY(identify(cc, heap, cache, &works));
    if (works && number-- == 0) return QUERN_STATUS_OK;
  }
  *cc = (struct rt_cc){0};
  return QUERN_STATUS_OK;
}

/* ---- compiling ----------------------------------------------------------------------------------------- */

struct args {
  const char *at[MOST_ARGS];
  size_t n, used;
  char text[ARGS_BYTES];
  bool failed; /* too many */
};

static void add_arg(struct args *args, const char *word) {
  args->failed = args->failed || args->n + 1 == MOST_ARGS;
  if (!args->failed) args->at[args->n++] = word;
}

/* Adds the words of a text that are separated by blanks. */
static void add_args(struct args *args, const char *words) {
  for (const char *at = words; *(at += strspn(at, " "));) {
    size_t n = strcspn(at, " ");
    char *copy = args->text + args->used;
    args->failed = args->failed || n >= sizeof args->text - args->used;
    if (args->failed) return;
    memcpy(copy, at, n);
    copy[n] = 0;
    args->used += n + 1;
    add_arg(args, copy);
    at += n;
  }
}

/* The command but for the names of source and object. */
static void add_command(struct args *args, const struct rt_cc *cc, const struct cg_target *target, bool debug) {
  for (size_t i = 0; i < cc->n_words; i++) add_arg(args, cc->words[i]);
  add_args(args, cg_flags);
  add_args(args, target->march);
  add_args(args, link_flags);
  if (debug) add_args(args, "-g");
}

struct rt_key rt_cc_key(const struct rt_cc *cc, const struct cg_target *target, bool debug) {
  struct rt_key key = cc->file;
  key_string(&key, cc->version);
  key_string(&key, cg_flags);
  key_string(&key, target->march);
  key_string(&key, target->base.fma ? "" : "-lm");
  key_string(&key, link_flags);
  key_string(&key, debug ? "-g" : "");
  key_string(&key, quern_version());
  return key;
}

/* Measured of GCC 12 and Clang 14, compiler, assembler and what starts them, and rounded up: of the smallest unit, and
** more for a byte of text. Its kind is read from its version. */
int64_t rt_cc_bytes(const struct rt_cc *cc, int64_t text) {
  static const struct {
    const char *word;
    int64_t base, each;
  } costs[] = {{"clang", 112 << 20, 256}, {"", 44 << 20, 144}};
  size_t i = 0;
  while (strstr(cc->version, costs[i].word) == NULL) i++;
  return costs[i].base + costs[i].each * text;
}

static bool made_object(const struct rt_command *command, const char *object) {
  struct stat info;
  bool well = (command->ending == RT_EXITED && command->code == 0) || command->ending == RT_UNKNOWN;
  return well && stat(object, &info) == 0 && info.st_size > 0;
}

/* Runs the compiler on n units, whose own temporary files lie beside the sources; failed is the number of the first
** that it did not compile, or n. commands hold the outcome. */
static quern_status compile(const struct rt_cc *cc, struct base_heap *heap, const struct cg_target *target, bool debug,
                            size_t n, const struct rt_cc_job *jobs, double seconds, struct rt_command *commands,
                            size_t *failed) {
  size_t bytes;
  char folder[RT_PATH_BYTES];
  snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(jobs[0].source, '/') - jobs[0].source), jobs[0].source);
  QUERN_CHECK(base_size(n, sizeof(struct args), 0, &bytes), MEMORY, "no memory for %zu units", n);
  struct args *args = base_alloc_zero(heap, bytes);
  if (!args) return QUERN_STATUS_MEMORY;
  bool fits = true;
  for (size_t i = 0; i < n; i++) {
    add_command(&args[i], cc, target, debug);
    add_arg(&args[i], "-o");
    add_arg(&args[i], jobs[i].object);
    add_arg(&args[i], jobs[i].source);
    if (!target->base.fma) add_arg(&args[i], "-lm");
    fits = fits && !args[i].failed;
    commands[i].argv = args[i].at;
  }
  quern_status status = QUERN_STATUS_OK;
  if (!fits) status = base_error(QUERN_STATUS_INTERNAL, "a command of more than %d words", MOST_ARGS);
  if (status == QUERN_STATUS_OK) status = rt_commands_run(heap, n, commands, rt_cpus(), seconds, folder);
  *failed = 0;
  while (status == QUERN_STATUS_OK && *failed < n && made_object(&commands[*failed], jobs[*failed].object)) ++*failed;
  base_free(heap, args, bytes);
  return status;
}

/* Whether the compiler can make an object of the smallest unit, beside that one. */
static quern_status probe(const struct rt_cc *cc, struct base_heap *heap, const struct cg_target *target,
                          const struct rt_cc_job *beside, struct rt_command *command, bool *works) {
  static const char text[] =
      "typedef float v __attribute__((vector_size(16)));\nv f(v x);\nv f(v x) { return x + x; }\n";
  struct rt_cc_job job;
  size_t failed = 1;
  int a = snprintf(job.source, sizeof job.source, "%s.probe.c", beside->source);
  int b = snprintf(job.object, sizeof job.object, "%s.probe.so", beside->source);
  *works = true;
  *command = (struct rt_command){.ending = RT_NOT_STARTED};
  if (a >= (int)sizeof job.source || b >= (int)sizeof job.object) return QUERN_STATUS_OK;
  QUERN_TRY(rt_file_write(job.source, text, sizeof text - 1));
  quern_status status = compile(cc, heap, target, false, 1, &job, PROBE_SECONDS, command, &failed);
  *works = status == QUERN_STATUS_OK && failed == 1;
  unlink(job.source);
  unlink(job.object);
  return status == QUERN_STATUS_MEMORY ? status : QUERN_STATUS_OK;
}

static quern_status complain(const struct rt_command *command, const struct rt_cc *cc, const char *source) {
  char ending[64];
  rt_command_ending(command, ending, sizeof ending);
  quern_status status = command->ending == RT_EXITED ? QUERN_STATUS_INTERNAL : QUERN_STATUS_IO;
  return base_error(status, "%s cannot compile %s (%s): %.*s%s", cc->words[0], source, ending, QUOTED, command->output,
                    strlen(command->output) > QUOTED ? "..." : "");
}

quern_status rt_cc_compile(const struct rt_cc *cc, struct base_heap *heap, const struct cg_target *target, bool debug,
                           size_t n, const struct rt_cc_job *jobs, bool *usable) {
  size_t bytes, failed;
  *usable = true;
  QUERN_CHECK(base_size(n, sizeof(struct rt_command), 0, &bytes), MEMORY, "no memory for %zu units", n);
  struct rt_command *commands = base_alloc_zero(heap, bytes);
  if (!commands) return QUERN_STATUS_MEMORY;
  quern_status status = compile(cc, heap, target, debug, n, jobs, COMPILE_SECONDS, commands, &failed);
  if (status == QUERN_STATUS_OK && failed < n) {
    struct rt_command *first = &commands[failed], tried;
    status = probe(cc, heap, target, &jobs[failed], &tried, usable);
    if (status == QUERN_STATUS_OK)
      status = *usable ? complain(first, cc, jobs[failed].source) : complain(&tried, cc, "anything");
  }
  base_free(heap, commands, bytes);
  return status;
}
