/* tests/cli/test_memory.c -- --memory holds for the process and its children: runs in cgroups of that size, watched
** The program is the one two folders above this test's own (the build folder); everything happens in a fresh folder.
** What a run and all that it has started have resident is sampled; where a cgroup can be made (version 1 or 2, as
** root), the run is in one of the size of the limit, where the kernel would end it.
*/
#define _DEFAULT_SOURCE
#define _XOPEN_SOURCE 700 /* realpath */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "unit.h"

static char folder[] = "/tmp/quern_memory_XXXXXX";

#include "cli/shell.h"

#define MIB 1048576.0

/* ---- cgroups ---------------------------------------------------------------------------------------------- */

static char group[PATH_MAX]; /* of runs; "": none can be made */
static const char *limit_file;

static bool put(const char *dir, const char *name, const char *words) {
  char path[2 * PATH_MAX];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  bool done = fd >= 0 && write(fd, words, strlen(words)) == (ssize_t)strlen(words);
  if (fd >= 0) close(fd);
  return done;
}

/* A group below where this process is, or below the root. */
static void make_group(void) {
  static const struct {
    const char *root, *line, *file;
  } kinds[] = {{"/sys/fs/cgroup/memory", ":memory:", "memory.limit_in_bytes"}, {"/sys/fs/cgroup", "0::", "memory.max"}};
  char line[PATH_MAX];
  for (size_t k = 0; k < 2 && group[0] == 0; k++) {
    FILE *file = fopen("/proc/self/cgroup", "r");
    char own[PATH_MAX] = "";
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
      const char *at = strstr(line, kinds[k].line);
      if (at == NULL) continue;
      snprintf(own, sizeof own, "%s", at + strlen(kinds[k].line));
      own[strcspn(own, "\n")] = 0;
    }
    if (file != NULL) fclose(file);
    for (int below = 0; below < 2 && group[0] == 0; below++) {
      snprintf(group, sizeof group, "%s%.2000s/quern_test_%d", kinds[k].root, below == 0 ? own : "", (int)getpid());
      limit_file = kinds[k].file;
      bool made = mkdir(group, 0755) == 0;
      if (made && put(group, limit_file, "1073741824")) return;
      if (made) rmdir(group);
      group[0] = 0;
    }
  }
}

/* ---- watched runs ----------------------------------------------------------------------------------------- */

struct watched {
  int status;   /* as waitpid has it */
  double peak;  /* MiB, of all processes together */
  double least; /* MiB that a refusal reports; 0: none */
};

struct process {
  int pid, parent;
  long pages;
};

/* All processes there are. */
static size_t list_processes(struct process *list, size_t room) {
  size_t n = 0;
  DIR *dir = opendir("/proc");
  for (struct dirent *e; dir != NULL && n < room && (e = readdir(dir)) != NULL;) {
    char path[300], stat[1024];
    if (e->d_name[0] < '0' || e->d_name[0] > '9') continue;
    snprintf(path, sizeof path, "/proc/%s/stat", e->d_name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, stat, sizeof stat - 1) : -1;
    if (fd >= 0) close(fd);
    if (got <= 0) continue;
    stat[got] = 0;
    const char *rest = strrchr(stat, ')');
    struct process p = {.pid = atoi(e->d_name)};
    if (rest == NULL || sscanf(rest, ") %*c %d", &p.parent) != 1) continue;
    for (int field = 3; rest != NULL && field < 25; field++) rest = strchr(rest + 1, ' ');
    if (rest != NULL && sscanf(rest, "%ld", &p.pages) == 1) list[n++] = p;
  }
  if (dir != NULL) closedir(dir);
  return n;
}

/* KiB of a process; a page that several processes share counts once among them, as far as the system reports it. */
static double share(const struct process *p) {
  char path[64], line[256];
  double kib = (double)p->pages * (double)sysconf(_SC_PAGESIZE) / 1024;
  snprintf(path, sizeof path, "/proc/%d/smaps_rollup", p->pid);
  FILE *file = fopen(path, "r");
  while (file != NULL && fgets(line, sizeof line, file) != NULL)
    if (sscanf(line, "Pss: %lf", &kib) == 1) break;
  if (file != NULL) fclose(file);
  return kib;
}

/* MiB that a process and all that it has started have resident. */
static double resident(int root) {
  enum { MOST = 4096 };
  static struct process list[MOST];
  static bool its[MOST];
  size_t n = list_processes(list, MOST);
  double kib = 0;
  for (size_t i = 0; i < n; i++) its[i] = list[i].pid == root;
  for (bool more = true; more;) {
    more = false;
    for (size_t i = 0; i < n; i++)
      for (size_t k = 0; k < n && !its[i]; k++)
        if (its[k] && list[k].pid == list[i].parent) its[i] = more = true;
  }
  for (size_t i = 0; i < n; i++) kib += its[i] ? share(&list[i]) : 0;
  return kib / 1024;
}

static void limit_group(double mib) {
  char number[32];
  snprintf(number, sizeof number, "%.0f", mib * MIB);
  if (group[0] != 0) assert_true(put(group, limit_file, number));
}

/* `quern COMMAND` in the folder, in a group of that size; what it prints is left in text. */
static struct watched watch_command(const char *words, double mib) {
  char command[2 * PATH_MAX];
  struct watched run = {0};
  snprintf(command, sizeof command, "exec \"%s\" %s > output 2>&1", program, words);
  limit_group(mib);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    bool in = group[0] == 0 || put(group, "cgroup.procs", "0");
    if (in && chdir(folder) == 0) execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
  }
  while (waitpid(child, &run.status, WNOHANG) == 0) {
    double now = resident(child);
    if (now > run.peak) run.peak = now;
    nanosleep(&(struct timespec){.tv_nsec = 4000000}, NULL);
  }
  (void)shell("cat output");
  const char *told = strstr(text, "the run needs ");
  if (told != NULL) run.least = strtod(told + strlen("the run needs "), NULL);
  print_message("%s at %.1f MiB: status %d, %.1f MiB at most, %.1f told\n", words, mib, run.status, run.peak,
                run.least);
  return run;
}

static struct watched watch(const char *keys, double mib) {
  char words[1024];
  (void)shell("rm -rf run");
  snprintf(words, sizeof words, "train %s out=run --memory %.1fMiB", keys, mib);
  return watch_command(words, mib);
}

static void expect_held(const char *keys, double mib) {
  struct watched run = watch(keys, mib);
  if (run.status != 0) fail_msg("%s at %.1f MiB: status %d: %s", keys, mib, run.status, text);
  if (run.peak > mib) fail_msg("%s: %.1f MiB resident of %.1f", keys, run.peak, mib);
}

/* A limit that is too small is refused with one that is met, of which little can be spared; others tell the same. */
static double expect_least(const char *keys, double mib) {
  struct watched none = watch(keys, mib);
  if (!WIFEXITED(none.status) || WEXITSTATUS(none.status) != 1 || none.least <= mib) fail_msg("%s", text);
  assert_true(none.peak <= none.least);
  struct watched near = watch(keys, none.least - 1);
  if (near.least < none.least - 0.6 || near.least > none.least + 0.6)
    fail_msg("%s: %.1f told at first", text, none.least);
  assert_true(near.peak <= near.least);
  expect_held(keys, none.least);
  return none.least;
}

/* ---- tests ------------------------------------------------------------------------------------------------ */

#define MLP "model=mlp layers=1 hidden=64 data=x.npy,y.npy batch=32 steps=4 threads=2"
#define LM "model=lm width=32 layers=2 heads=2 data=text length=64 batch=16 steps=4 eval_batches=2 threads=2"
#define CONV "model=resnet:18 data=images.npy,y.npy batch=8 steps=1 threads=2"

/* Without a cache: compilers run each time, within the limit, and nothing else is started. */
static void no_cache(void **state) {
  (void)state;
  if (TEST_ASAN) skip(); /* it holds memory of its own */
  setenv("QUERN_CACHE", "0", 1);
  double least = expect_least(MLP, 20);
  assert_non_null(strstr(text, "MiB by the largest child"));
  assert_true(least < 96);
}

/* Without a limit and a cache: what could not be kept is not measured. */
static void not_measured(void **state) {
  (void)state;
  if (TEST_ASAN) skip();
  setenv("QUERN_CACHE", "0", 1);
  (void)shell("rm -rf run");
  struct watched run = watch_command("train " MLP " out=run", 192);
  if (run.status != 0 || run.peak > 192) fail_msg("status %d, %.1f MiB: %s", run.status, run.peak, text);
  assert_non_null(strstr(shell("cat run/run.json") == 0 ? text : "", "\"kernels\":["));
}

/* Going on after very many steps takes no more than after few. */
static void long_history(void **state) {
  (void)state;
  if (TEST_ASAN) skip();
  setenv("QUERN_CACHE", "cache", 1);
  (void)shell("rm -rf run");
  struct watched run = watch_command("train " MLP " out=run --memory 200MiB", 200);
  assert_int_equal(run.status, 0);
  assert_int_equal(shell("awk 'BEGIN { for (i = 1; i <= 140000; i++) printf \"{\\\"step\\\":%d,\\\"loss\\\":2.3,"
                         "\\\"norm\\\":0.35,\\\"lr\\\":0.001,\\\"ms\\\":0.1}\\n\", i % 4 + 1 }' > run/metrics.jsonl"),
                   0);
  run = watch_command("resume run steps=6 --memory 24MiB", 24);
  if (run.status != 0 || run.peak > 24) fail_msg("status %d, %.1f MiB: %s", run.status, run.peak, text);
}

/* Data that is larger than the limit: texts become a file of tokens, and what is read of a file does not stay. */
static void large_data(void **state) {
  (void)state;
  if (TEST_ASAN) skip();
  static const char *const data[] = {"many", "many.bin vocabulary=257"}, *const limits[] = {"200MiB", "24MiB"};
  char words[512];
  setenv("QUERN_CACHE", "cache", 1);
  assert_int_equal(shell("yes 'the quick brown fox jumps over the lazy dog' | head -c 48000000 > many && "
                         "head -c 96000000 /dev/zero > many.bin"),
                   0);
  for (size_t i = 0; i < 2; i++) {
    for (size_t k = 0; k < 2; k++) { /* the first one for the kernels */
      (void)shell("rm -rf run");
      snprintf(words, sizeof words,
               "train model=lm width=32 layers=1 heads=2 data=%s length=64 batch=16 steps=100 eval_batches=2 threads=2 "
               "out=run --memory %s",
               data[i], limits[k]);
      struct watched run = watch_command(words, strtod(limits[k], NULL));
      if (run.status != 0 || run.peak > strtod(limits[k], NULL))
        fail_msg("status %d, %.1f MiB: %s", run.status, run.peak, text);
    }
  }
}

/* With a cache: the first run needs room for the compiler, later ones do not. */
static void cached(void **state) {
  (void)state;
  if (TEST_ASAN) skip();
  setenv("QUERN_CACHE", "cache", 1);
  struct watched cold = watch(LM, 24);
  assert_true(WIFEXITED(cold.status) && WEXITSTATUS(cold.status) == 1 && cold.peak <= 24);
  assert_non_null(
      strstr(text, "while the C compiler makes its kernels HINT: with these kernels in the cache it needs"));
  expect_held(LM, cold.least);
  double warm = expect_least(LM, 16);
  assert_true(warm < cold.least - 20);
}

/* A large model is refused before anything is compiled. */
static void refused(void **state) {
  (void)state;
  if (TEST_ASAN) skip();
  setenv("QUERN_CACHE", "none", 1);
  struct watched run = watch(CONV, 64);
  assert_true(WIFEXITED(run.status) && WEXITSTATUS(run.status) == 1);
  assert_true(run.least > 128 && run.peak < 64);
}

static int set_up(void **state) {
  (void)state;
  if (mkdtemp(folder) == NULL) return -1;
  make_group();
  if (group[0] == 0) print_message("no memory cgroup can be made here (%s): runs are only watched\n", strerror(errno));
  return shell(
      "npy() { printf '\\223NUMPY\\001\\000\\166\\000%-117s\\n' \"{'descr': '$1', 'fortran_order': False, 'shape': $2, "
      "}\"; }; "
      "yes 'the quick brown fox jumps over the lazy dog' | head -c 40000 > text && "
      "{ npy '<f4' '(256, 64)'; yes aaa | head -c 65536; } > x.npy && "
      "{ npy '|u1' '(256, 3, 16, 16)'; head -c 196608 /dev/zero; } > images.npy && "
      "{ npy '|u1' '(256,)'; { printf '\\001\\002\\003\\004\\005\\006\\007\\010'; head -c 248 /dev/zero; }; } > y.npy");
}

static int tear_down(void **state) {
  (void)state;
  char command[sizeof folder + 16];
  for (int i = 0; i < 100 && group[0] != 0 && rmdir(group) != 0; i++)
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command);
}

int main(int argc, char **argv) {
  if (argc < 1 || !find_program(argv[0])) return 1;
  const struct CMUnitTest tests[] = {cmocka_unit_test(no_cache),     cmocka_unit_test(not_measured),
                                     cmocka_unit_test(cached),       cmocka_unit_test(refused),
                                     cmocka_unit_test(long_history), cmocka_unit_test(large_data)};
  return cmocka_run_group_tests_name("cli/memory", tests, set_up, tear_down);
}
