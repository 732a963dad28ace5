/* tests/runtime/test_toolchain.c -- compilers made of shell scripts: failing, hanging, talking nonsense; hosts that
** hide SIGCHLD */
#include "runtime/files.h"

#include <signal.h>
#include <time.h>

#include "runtime/cpu/cpu_int.h"

static struct base_heap heap;
static struct rt_cache none = {.folder = -1};
static char text[4096];

static int setup(void **state) {
  (void)state;
  base_heap_init(&heap, &memory_allocator);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  return memory_live == 0 ? 0 : -1;
}

/* A program of that name, from the lines of a shell script. */
static const char *script(const char *name, const char *lines) {
  char whole[4096];
  const char *path = in_folder(name);
  snprintf(whole, sizeof whole, "#!/bin/sh\n%s", lines);
  files_write(path, whole);
  assert_int_equal(chmod(path, 0700), 0);
  return path;
}

/* ---- commands ------------------------------------------------------------------------------------------ */

static struct rt_command shell(const char *line, double seconds) {
  const char *argv[] = {"/bin/sh", "-c", line, NULL};
  struct rt_command command = {.argv = argv};
  EXPECT_OK(rt_commands_run(&heap, 1, &command, 1, seconds, NULL));
  return command;
}

static void endings(void **state) {
  (void)state;
  struct rt_command c = shell("echo out; echo err >&2", 20);
  assert_int_equal(c.ending, RT_EXITED);
  assert_int_equal(c.code, 0);
  assert_string_equal(c.output, "out\nerr\n");
  c = shell("exit 7", 20);
  assert_int_equal(c.ending, RT_EXITED);
  assert_int_equal(c.code, 7);
  assert_string_equal(c.output, "");
  rt_command_ending(&c, text, sizeof text);
  assert_string_equal(text, "exit status 7");
  c = shell("kill -9 $$", 20);
  assert_int_equal(c.ending, RT_KILLED);
  rt_command_ending(&c, text, sizeof text);
  assert_string_equal(text, "killed by signal 9");
  c = shell("read x || echo no input", 20);
  assert_string_equal(c.output, "no input\n");
  c = shell("echo $LC_ALL", 20);
  assert_string_equal(c.output, "C\n");
  c = shell("exec 1>&- 2>&-; sleep 0.2; exit 3", 20); /* nothing to hear, but it runs */
  assert_int_equal(c.ending, RT_EXITED);
  assert_int_equal(c.code, 3);
}

static void long_output(void **state) {
  (void)state;
  struct rt_command c = shell("i=0; while [ $i -lt 30000 ]; do echo 0123456789; i=$((i+1)); done", 60);
  assert_int_equal(c.ending, RT_EXITED);
  assert_int_equal(strlen(c.output), RT_OUTPUT_BYTES - 1);
  assert_memory_equal(c.output, "0123456789\n0123", 15);
}

/* Whether a process runs; one that ended and that nobody has asked for does not. */
static bool is_running(pid_t pid) {
  char name[64], line[512] = "";
  snprintf(name, sizeof name, "/proc/%ld/stat", (long)pid);
  FILE *file = fopen(name, "r");
  if (!file) return false;
  const char *state = fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
  fclose(file);
  return state && state[1] && state[2] != 'Z' && state[2] != 'X';
}

static void wait_for_end(pid_t pid) {
  double stop = base_clock() + 20;
  while (is_running(pid) && base_clock() < stop) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  assert_false(is_running(pid));
}

/* Its children, too, are gone when the time is over. */
static void hanging(void **state) {
  (void)state;
  struct rt_command c = shell("sleep 300 & echo $!; sleep 300", 0.3);
  assert_int_equal(c.ending, RT_TOO_LONG);
  rt_command_ending(&c, text, sizeof text);
  assert_non_null(strstr(text, "too long"));
  pid_t child = (pid_t)strtol(c.output, NULL, 10);
  assert_true(child > 1);
  wait_for_end(child);
}

/* The process whose number is in a file, as soon as it is. */
static pid_t pid_in(const char *path) {
  double stop = base_clock() + 20;
  long pid = 0;
  while (pid == 0 && base_clock() < stop) {
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%ld\n", &pid) != 1) pid = 0;
    if (file) fclose(file);
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
  assert_true(pid > 1);
  return (pid_t)pid;
}

/* Two commands at the same time, each with a child of its own, and temporary files in the folder they are given. */
static _Noreturn void compile_for_ever(void) {
  char lines[2][256];
  const char *argv[2][4];
  struct rt_command commands[2];
  for (int i = 0; i < 2; i++) {
    snprintf(lines[i], sizeof lines[i],
             "cd $TMPDIR; sleep 300 & echo $! > new%d; mv new%d child%d; echo $$ > new%d; mv new%d self%d; wait", i, i,
             i, i, i, i);
    const char *words[] = {"/bin/sh", "-c", lines[i], NULL};
    memcpy(argv[i], words, sizeof words);
    commands[i] = (struct rt_command){.argv = argv[i]};
  }
  _exit(rt_commands_run(&heap, 2, commands, 2, 300, test_folder) == QUERN_STATUS_OK);
}

/* Whoever ends this process leaves no compiler behind, nor what the compiler has started. */
static void killed(void **state) {
  (void)state;
  static const int numbers[] = {SIGKILL, SIGINT};
  for (size_t k = 0; k < BASE_COUNT(numbers); k++) {
    pid_t host = fork(), pids[4];
    assert_true(host >= 0);
    if (host == 0) compile_for_ever();
    for (int i = 0; i < 4; i++) {
      char name[32];
      snprintf(name, sizeof name, "%s%d", i % 2 ? "child" : "self", i / 2);
      pids[i] = pid_in(in_folder(name));
      unlink(in_folder(name));
    }
    for (int i = 0; i < 4; i++) assert_true(is_running(pids[i]));
    assert_int_equal(kill(host, numbers[k]), 0);
    assert_int_equal(waitpid(host, NULL, 0), host);
    for (int i = 0; i < 4; i++) wait_for_end(pids[i]);
  }
}

/* A helper in the background that keeps the output open does not hold anybody up, and ends with its command. */
static void left_behind(void **state) {
  (void)state;
  double start = base_clock();
  struct rt_command c = shell("sleep 30 & echo $!; exit 2", 60);
  assert_true(base_clock() - start < 20);
  assert_int_equal(c.ending, RT_EXITED);
  assert_int_equal(c.code, 2);
  wait_for_end((pid_t)strtol(c.output, NULL, 10));
}

static void side_by_side(void **state) {
  (void)state;
  enum { N = 9 };
  struct rt_command commands[N];
  char lines[N][256];
  const char *argv[N][4];
  for (int i = 0; i < N; i++) {
    snprintf(lines[i], sizeof lines[i], "sleep 0.%d; echo %d; exit %d", N - i, i, i);
    const char *words[] = {"/bin/sh", "-c", lines[i], NULL};
    memcpy(argv[i], words, sizeof words);
    commands[i] = (struct rt_command){.argv = argv[i]};
  }
  double start = base_clock();
  EXPECT_OK(rt_commands_run(&heap, N, commands, 3, 60, NULL));
  double took = base_clock() - start;
  for (int i = 0; i < N; i++) {
    char line[16];
    snprintf(line, sizeof line, "%d\n", i);
    assert_int_equal(commands[i].ending, RT_EXITED);
    assert_int_equal(commands[i].code, i);
    assert_string_equal(commands[i].output, line);
  }
  assert_true(took >= 1.4); /* 4.5 s of sleep in threes */
  EXPECT_OK(rt_commands_run(&heap, 0, commands, 3, 60, NULL));
}

static void cannot_start(void **state) {
  (void)state;
  const char *good[] = {"/bin/sh", "-c", "sleep 50", NULL}, *bad[] = {in_folder("nothing"), NULL};
  struct rt_command commands[2] = {{.argv = good}, {.argv = bad}};
  double start = base_clock();
  EXPECT_ERROR(rt_commands_run(&heap, 2, commands, 2, 60, NULL), IO, "cannot start");
  assert_true(base_clock() - start < 20); /* the other one was not waited for */
}

/* ---- hosts --------------------------------------------------------------------------------------------- */

static void expect_pass(void (*body)(void)) {
  int status = in_child(body, text, sizeof text);
  if (status != 0) fail_msg("child ended with %d: %s", status, text);
}

/* The script waits for its own children: it must not inherit that they are ignored. */
static void ignored(void) {
  signal(SIGCHLD, SIG_IGN);
  sigset_t mask;
  sigfillset(&mask);
  sigprocmask(SIG_SETMASK, &mask, NULL);
  struct rt_command c = shell("sh -c 'exit 5'; echo $?", 20);
  CHILD_CHECK(c.ending == RT_UNKNOWN && strcmp(c.output, "5\n") == 0);
  c = shell("sleep 100", 0.2);
  CHILD_CHECK(c.ending == RT_TOO_LONG);
}

static void reap(int number) {
  int error = errno;
  (void)number;
  while (waitpid(-1, NULL, WNOHANG) > 0) {}
  errno = error;
}

static void reaped(void) {
  struct sigaction action = {.sa_handler = reap};
  sigaction(SIGCHLD, &action, NULL); /* without SA_RESTART: calls are interrupted */
  for (int i = 0; i < 20; i++) {
    struct rt_command c = shell("echo words; exit 4", 20);
    CHILD_CHECK(strcmp(c.output, "words\n") == 0);
    CHILD_CHECK(c.ending == RT_UNKNOWN || (c.ending == RT_EXITED && c.code == 4));
  }
}

static void without_descriptors(void) {
  close(STDIN_FILENO);
  close(STDOUT_FILENO);
  struct rt_command c = shell("echo out; echo err >&2", 20);
  CHILD_CHECK(c.ending == RT_EXITED && strcmp(c.output, "out\nerr\n") == 0);
}

static void other_children(void) {
  pid_t own = fork();
  if (own == 0) _exit(9);
  struct rt_command c = shell("sleep 0.1; exit 1", 20);
  CHILD_CHECK(c.ending == RT_EXITED && c.code == 1);
  int status;
  CHILD_CHECK(waitpid(own, &status, 0) == own && WEXITSTATUS(status) == 9); /* still there for the host */
}

static void hosts(void **state) {
  (void)state;
  expect_pass(ignored);
  expect_pass(reaped);
  expect_pass(without_descriptors);
  expect_pass(other_children);
}

/* ---- finding a compiler -------------------------------------------------------------------------------- */

static void usual_names(void **state) {
  (void)state;
  struct rt_cc cc;
  char folders[4096];
  script("one/gcc", "echo gcc says $1");
  script("two/cc", "echo cc says $1");
  script("two/gcc", "echo another");
  script("bad/cc", "exit 1");
  script("mute/cc", "exit 0");
  files_write(in_folder("none/cc"), "not executable");
  snprintf(folders, sizeof folders, "%s:%s:%s:%s", in_folder("empty"), in_folder("none"), in_folder("one"),
           in_folder("two"));
  EXPECT_OK(rt_cc_find(&cc, &heap, &none, "", folders, 0));
  assert_int_equal(cc.n_words, 1);
  assert_string_equal(cc.words[0], in_folder("two/cc")); /* by name first, by folder then */
  assert_string_equal(cc.version, "cc says --version\n");
  EXPECT_OK(rt_cc_find(&cc, &heap, &none, "", folders, 1));
  assert_string_equal(cc.words[0], in_folder("one/gcc"));
  EXPECT_OK(rt_cc_find(&cc, &heap, &none, "", folders, 2));
  assert_int_equal(cc.n_words, 0);
  EXPECT_OK(rt_cc_find(&cc, &heap, &none, "", "", 0));
  assert_int_equal(cc.n_words, 0);
  snprintf(folders, sizeof folders, "%s:%s", in_folder("bad"), in_folder("one"));
  EXPECT_OK(rt_cc_find(&cc, &heap, &none, "", folders, 0)); /* a cc that does not work is passed over */
  assert_string_equal(cc.words[0], in_folder("one/gcc"));
  EXPECT_OK(rt_cc_find(&cc, &heap, &none, "", in_folder("mute"), 0));
  assert_int_equal(cc.n_words, 0);
}

static void by_command(void **state) {
  (void)state;
  struct rt_cc cc;
  char command[4096];
  const char *path = script("deep/my cc", "echo \"$#: $*\"");
  EXPECT_OK(rt_cc_find(&cc, &heap, &none, path, "", 0)); /* one program, with a blank in its name */
  assert_int_equal(cc.n_words, 1);
  assert_string_equal(cc.version, "1: --version\n");
  script("words/mycc", "echo \"$#: $*\"");
  EXPECT_OK(rt_cc_find(&cc, &heap, &none, "  mycc -a  -b=c ", in_folder("words"), 0));
  assert_int_equal(cc.n_words, 3);
  assert_string_equal(cc.words[0], in_folder("words/mycc"));
  assert_string_equal(cc.words[2], "-b=c");
  assert_string_equal(cc.version, "3: -a -b=c --version\n");
  EXPECT_ERROR(rt_cc_find(&cc, &heap, &none, "nosuchcc -x", in_folder("words"), 0), IO, "nosuchcc -x");
  script("words/failing", "exit 2");
  EXPECT_ERROR(rt_cc_find(&cc, &heap, &none, "failing", in_folder("words"), 0), IO, "failing --version");
  int n = snprintf(command, sizeof command, "mycc");
  for (int i = 0; i < RT_CC_WORDS; i++) n += snprintf(command + n, sizeof command - (size_t)n, " -x");
  EXPECT_ERROR(rt_cc_find(&cc, &heap, &none, command, in_folder("words"), 0), IO, "mycc -x -x");
}

/* The version is asked for once, as long as the program stays the same. */
static void asked_once(void **state) {
  (void)state;
  struct rt_cache cache;
  struct rt_cc cc;
  char lines[1200], count[64];
  rt_cache_open(&cache, &heap, in_folder("notes"), RT_CACHE_LIMIT);
  assert_true(cache.folder >= 0);
  snprintf(lines, sizeof lines, "echo x >> %s; echo version 1", in_folder("count"));
  script("once/cc", lines);
  for (int i = 0; i < 3; i++) {
    EXPECT_OK(rt_cc_find(&cc, &heap, &cache, "", in_folder("once"), 0));
    assert_string_equal(cc.version, "version 1\n");
    struct rt_cc other;
    EXPECT_OK(rt_cc_find(&other, &heap, &cache, "", in_folder("two"), 0)); /* forgets the first one in this process */
  }
  FILE *file = fopen(in_folder("count"), "r");
  assert_non_null(file);
  assert_int_equal(fread(count, 1, sizeof count, file), 2);
  fclose(file);
  struct rt_key before = cc.file;
  script("once/cc", "echo version 1000");
  EXPECT_OK(rt_cc_find(&cc, &heap, &cache, "", in_folder("once"), 0));
  assert_string_equal(cc.version, "version 1000\n");
  assert_false(rt_key_equal(&before, &cc.file));
  rt_cache_close(&cache);
}

/* A compiler that gives no answer is waited for once, and passed over; a command that is one is an error. */
static void hanging_compiler(void) {
  struct rt_cc cc;
  rt_version_seconds = 0.3;
  script("stuck/cc", "echo x >> ${0%/*}/asked; sleep 300");
  script("stuck/gcc", "echo fine");
  for (int i = 0; i < 3; i++) {
    CHILD_CHECK(rt_cc_find(&cc, &heap, &none, "", in_folder("stuck"), 0) == QUERN_STATUS_OK);
    CHILD_CHECK(strcmp(cc.words[0], in_folder("stuck/gcc")) == 0);
    CHILD_CHECK(rt_cc_find(&cc, &heap, &none, in_folder("stuck/cc"), "", 0) == QUERN_STATUS_IO);
    CHILD_CHECK(strstr(quern_last_error(), "gives no answer"));
  }
  struct stat info;
  CHILD_CHECK(stat(in_folder("stuck/asked"), &info) == 0 && info.st_size == 2);
}

static void asked_in_vain_once(void **state) {
  (void)state;
  expect_pass(hanging_compiler);
  assert_non_null(strstr(text, "gave no answer in 0.3 seconds"));
  assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
}

static void keys(void **state) {
  (void)state;
  struct rt_cc cc, other;
  struct cg_target target = {.march = "-mfast", .base.fma = true}, slow = {.march = "-mfast"};
  EXPECT_OK(rt_cc_find(&cc, &heap, &none, "mycc", in_folder("words"), 0));
  struct rt_key key = rt_cc_key(&cc, &target, false), again = rt_cc_key(&cc, &target, false);
  assert_true(rt_key_equal(&key, &again));
  struct rt_key debug = rt_cc_key(&cc, &target, true), without = rt_cc_key(&cc, &slow, false);
  assert_false(rt_key_equal(&key, &debug));
  assert_false(rt_key_equal(&key, &without));
  target.march = "-mfaster";
  struct rt_key faster = rt_cc_key(&cc, &target, false);
  assert_false(rt_key_equal(&key, &faster));
  EXPECT_OK(rt_cc_find(&other, &heap, &none, "mycc -O9", in_folder("words"), 0));
  target.march = "-mfast";
  struct rt_key flagged = rt_cc_key(&other, &target, false);
  assert_false(rt_key_equal(&key, &flagged));
}

/* ---- compiling ----------------------------------------------------------------------------------------- */

static struct cg_target plain = {.march = "-DMARCH -DMORE", .base.fma = true};

/* Compiles n empty units with a script. */
static quern_status compile(const char *lines, size_t n, bool *usable) {
  static struct rt_cc_job jobs[3];
  struct rt_cc cc;
  script("fake/cc", lines);
  for (size_t i = 0; i < n; i++) {
    char name[64];
    snprintf(name, sizeof name, "work/unit%zu.c", i);
    snprintf(jobs[i].source, sizeof jobs[i].source, "%s", in_folder(name));
    snprintf(jobs[i].object, sizeof jobs[i].object, "%s.so", in_folder(name));
    files_write(jobs[i].source, "int x;\n");
    unlink(jobs[i].object);
  }
  QUERN_TRY(rt_cc_find(&cc, &heap, &none, in_folder("fake/cc"), "", 0));
  return rt_cc_compile(&cc, &heap, &plain, false, n, jobs, usable);
}

#define VERSION "[ \"$1\" = --version ] && { echo fake; exit 0; }\n"
#define NAMES "for x; do [ \"$last\" = -o ] && object=$x; last=$x; done; source=$last\n"

static void works(void **state) {
  (void)state;
  bool usable = false;
  EXPECT_OK(compile(VERSION NAMES "echo \"$*\" > $object", 3, &usable));
  assert_true(usable);
  FILE *file = fopen(in_folder("work/unit1.c.so"), "r");
  assert_non_null(file);
  assert_non_null(fgets(text, sizeof text, file));
  fclose(file);
  static const char *const words[] = {"-O1 ",    "-ffp-contract=off", "-DMARCH -DMORE",
                                      "-shared", "unit1.c.so",        "unit1.c\n"};
  for (size_t i = 0; i < BASE_COUNT(words); i++) {
    if (!strstr(text, words[i])) fail_msg("%s is not in %s", words[i], text);
  }
}

static void fails_on_a_unit(void **state) {
  (void)state;
  bool usable = false;
  EXPECT_ERROR(compile(VERSION NAMES "case $source in *unit1.c) echo error: bad unit; exit 3;; esac; echo x > $object",
                       3, &usable),
               INTERNAL, "work/unit1.c (exit status 3): error: bad unit");
  assert_true(usable);
  assert_int_equal(access(in_folder("work/unit1.c"), F_OK), 0); /* the source is there to be looked at */
  assert_int_equal(files_count(in_folder("work"), "probe", NULL), 0);
}

static void fails_on_all(void **state) {
  (void)state;
  bool usable = true;
  EXPECT_ERROR(compile(VERSION "echo no assembler; exit 1", 2, &usable), INTERNAL,
               "anything (exit status 1): no assembler");
  assert_false(usable);
  EXPECT_ERROR(compile(VERSION "exit 0", 1, &usable), INTERNAL, "exit status 0"); /* says yes, does nothing */
  assert_false(usable);
  EXPECT_ERROR(compile(VERSION "kill -11 $$", 1, &usable), IO, "killed by signal 11");
  assert_false(usable);
}

static void long_complaint(void **state) {
  (void)state;
  bool usable = false;
  EXPECT_ERROR(compile(VERSION NAMES "case $source in *probe*) echo x > $object; exit 0;; esac; i=0;"
                                     "while [ $i -lt 1000 ]; do echo line $i; i=$((i+1)); done; exit 1",
                       1, &usable),
               INTERNAL, "line 0\nline 1\n");
  assert_non_null(strstr(quern_last_error(), "..."));
  assert_null(strstr(quern_last_error(), "line 900"));
  assert_true(usable);
}

static void hidden_status(void) {
  bool usable = false;
  signal(SIGCHLD, SIG_IGN);
  CHILD_CHECK(compile(VERSION NAMES "sh -c 'exit 0' || exit 1; echo \"$*\" > $object", 2, &usable) == QUERN_STATUS_OK);
  CHILD_CHECK(compile(VERSION NAMES "case $source in *probe*) echo x > $object;; esac; exit 1", 2, &usable) ==
              QUERN_STATUS_IO);
  CHILD_CHECK(usable && strstr(quern_last_error(), "exit status not known"));
}

static void without_status(void **state) {
  (void)state;
  expect_pass(hidden_status);
}

static void faults(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    bool usable;
    fault_begin(&fault);
    quern_status status = compile(VERSION NAMES "echo x > $object", 2, &usable);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    assert_int_equal(memory_live, 0);
  }
  assert_true(fault.n > 3);
}

#define TOOL_TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      TOOL_TEST(endings),         TOOL_TEST(long_output),        TOOL_TEST(hanging),        TOOL_TEST(left_behind),
      TOOL_TEST(side_by_side),    TOOL_TEST(cannot_start),       TOOL_TEST(hosts),          TOOL_TEST(usual_names),
      TOOL_TEST(by_command),      TOOL_TEST(asked_once),         TOOL_TEST(keys),           TOOL_TEST(works),
      TOOL_TEST(fails_on_a_unit), TOOL_TEST(fails_on_all),       TOOL_TEST(long_complaint), TOOL_TEST(without_status),
      TOOL_TEST(killed),          TOOL_TEST(asked_in_vain_once), TOOL_TEST(faults),
  };
  unsetenv("QUERN_CC");
  files_begin();
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  files_end();
  return failed;
}
