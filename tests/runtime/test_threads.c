/* tests/runtime/test_threads.c -- how many threads: environment, affinity, quotas in made-up cgroups */
#define _GNU_SOURCE /* sched_setaffinity */
#include "runtime/files.h"

#include <sched.h>

#include "runtime/runtime_int.h"

static char text[1024];

/* ---- cgroups ------------------------------------------------------------------------------------------- */

struct tree {
  const char *self; /* the text of /proc/self/cgroup */
  const char *files[4][2];
  int cpus;
};

static const struct tree trees[] = {
    /* version 2 */
    {"0::/\n", {{"cpu.max", "max 100000\n"}}, 0},
    {"0::/\n", {{"cpu.max", "200000 100000\n"}}, 2},
    {"0::/\n", {{"cpu.max", "200001 100000\n"}}, 3},
    {"0::/\n", {{"cpu.max", "1000 100000\n"}}, 1},
    {"0::/\n", {{"cpu.max", "50000 25000"}}, 2},
    {"0::/a/b\n", {{"a/b/cpu.max", "max 100000\n"}, {"a/cpu.max", "300000 100000\n"}}, 3},
    {"0::/a/b\n", {{"a/b/cpu.max", "500000 100000\n"}, {"a/cpu.max", "300000 100000\n"}}, 3},
    {"0::/a/b\n", {{"a/b/cpu.max", "200000 100000\n"}, {"a/cpu.max", "300000 100000\n"}}, 2},
    {"0::/a/b\n", {{"a/b/cpu.max", "900000 100000\n"}, {"cpu.max", "100000 100000\n"}}, 1},
    {"0::/a/b\n", {{"a/bc/cpu.max", "100000 100000\n"}, {"b/cpu.max", "100000 100000\n"}}, 0},
    {"0::/gone/from/here", {{"cpu.max", "400000 100000\n"}}, 4},
    {"0::/../../x\n", {{"cpu.max", "400000 100000\n"}}, 4},
    /* version 1 */
    {"5:cpu,cpuacct:/\n", {{"cpu,cpuacct/cpu.cfs_quota_us", "-1\n"}, {"cpu,cpuacct/cpu.cfs_period_us", "100000\n"}}, 0},
    {"5:cpu,cpuacct:/\n",
     {{"cpu,cpuacct/cpu.cfs_quota_us", "250000\n"}, {"cpu,cpuacct/cpu.cfs_period_us", "100000\n"}},
     3},
    {"5:cpu,cpuacct:/d/e\n", {{"cpu/d/e/cpu.cfs_quota_us", "150000\n"}, {"cpu/d/e/cpu.cfs_period_us", "50000\n"}}, 3},
    {"5:cpuacct,cpu:/d/e\n",
     {{"cpu/d/e/cpu.cfs_quota_us", "900000\n"},
      {"cpu/d/e/cpu.cfs_period_us", "100000\n"},
      {"cpu/d/cpu.cfs_quota_us", "200000\n"},
      {"cpu/d/cpu.cfs_period_us", "100000\n"}},
     2},
    {"5:memory:/\n6:cpuset:/\n",
     {{"memory/cpu.cfs_quota_us", "100000\n"}, {"memory/cpu.cfs_period_us", "100000\n"}},
     0},
    {"12:pids:/x\n4:cpu:/x\n1:name=systemd:/y\n0::/z\n",
     {{"cpu/x/cpu.cfs_quota_us", "700000\n"}, {"cpu/x/cpu.cfs_period_us", "100000\n"}, {"z/cpu.max", "600000 100000"}},
     6},
    /* nonsense */
    {"", {{"cpu.max", "100000 100000\n"}}, 0},
    {"nothing here", {{"cpu.max", "100000 100000\n"}}, 0},
    {"0:\n::\n", {{"x", ""}}, 0},
    {"0::/\n", {{"cpu.max", ""}}, 0},
    {"0::/\n", {{"cpu.max", "100000"}}, 0},
    {"0::/\n", {{"cpu.max", "100000 0"}}, 0},
    {"0::/\n", {{"cpu.max", "0 100000"}}, 0},
    {"0::/\n", {{"cpu.max", "abc 100000"}}, 0},
    {"0::/\n", {{"cpu.max", "99999999999999999999999999 100000"}}, 0},
    {"0::/\n", {{"cpu.max", "99999999999999999 1"}}, RT_MAX_THREADS},
    {"3:cpu:/\n", {{"cpu/cpu.cfs_quota_us", "100000\n"}}, 0},
};

static void cgroups(void **state) {
  (void)state;
  for (size_t i = 0; i < BASE_COUNT(trees); i++) {
    char root[64];
    snprintf(root, sizeof root, "tree%zu", i);
    char self[1024], name[1024];
    snprintf(self, sizeof self, "%s/self", in_folder(root));
    files_write(self, trees[i].self);
    for (size_t j = 0; j < 4 && trees[i].files[j][0]; j++) {
      snprintf(name, sizeof name, "%s/fs/%s", in_folder(root), trees[i].files[j][0]);
      files_write(name, trees[i].files[j][1]);
    }
    snprintf(name, sizeof name, "%s/fs", in_folder(root));
    int got = rt_cgroup_cpus(self, name);
    if (got != trees[i].cpus) fail_msg("tree %zu: %d CPUs, expected %d", i, got, trees[i].cpus);
  }
  assert_int_equal(rt_cgroup_cpus(in_folder("no file"), test_folder), 0);
}

/* A path that fills every buffer: cut or refused, never overrun. */
static void long_paths(void **state) {
  (void)state;
  static char self[9000];
  for (size_t n = 3900; n < 4200; n += 7) {
    snprintf(self, sizeof self, "0::/%0*d\n3:cpu:/%0*d\n", (int)n, 0, (int)n, 0);
    files_write(in_folder("long/self"), self);
    files_write(in_folder("long/cpu.max"), "300000 100000");
    assert_int_equal(rt_cgroup_cpus(in_folder("long/self"), in_folder("long")), 3);
  }
}

/* ---- the environment ----------------------------------------------------------------------------------- */

static void parse(void **state) {
  (void)state;
  static const struct {
    const char *text;
    int threads;
  } rows[] = {
      {"4", 4},
      {" 3 ", 3},
      {"2,8,1", 2},
      {"6 , 2", 6},
      {"2000", RT_MAX_THREADS},
      {"", 0},
      {"0", 0},
      {"-2", 0},
      {"x", 0},
      {"4x", 0},
      {"4 2", 0},
      {",3", 0},
      {"1.5", 0},
      {"01", 1},
      {"1024", 1024},
      {"99999999999999999999", 0},
  };
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    int got = rt_parse_threads(rows[i].text);
    if (got != rows[i].threads) fail_msg("\"%s\": %d threads, expected %d", rows[i].text, got, rows[i].threads);
  }
}

static const char *quern_value, *omp_value;
static int expected;

static void one_default(void) {
  unsetenv("QUERN_THREADS");
  unsetenv("OMP_NUM_THREADS");
  if (quern_value) setenv("QUERN_THREADS", quern_value, 1);
  if (omp_value) setenv("OMP_NUM_THREADS", omp_value, 1);
  CHILD_CHECK(rt_default_threads() == expected);
}

static void expect_default(const char *quern, const char *omp, int threads) {
  quern_value = quern;
  omp_value = omp;
  expected = threads;
  int status = in_child(one_default, text, sizeof text);
  if (status != 0) fail_msg("QUERN_THREADS=%s OMP_NUM_THREADS=%s: not %d: %s", quern, omp, threads, text);
}

static void defaults(void **state) {
  (void)state;
  int cpus = rt_cpus();
  assert_in_range(cpus, 1, base_thread_cpu_count());
  expect_default(NULL, NULL, cpus);
  expect_default("5", NULL, 5);
  expect_default("5", "7", 5);
  expect_default(NULL, "7,2", 7);
  expect_default(NULL, "0", cpus);
  expect_default(NULL, "many", cpus);
  expect_default("0", "3", 3); /* malformed counts as unset here; base_env_read complains */
}

static void affinity(void **state) {
  (void)state;
  cpu_set_t all, one;
  assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
  CPU_ZERO(&one);
  for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++) {
    if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
  }
  assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
  int n = rt_cpus();
  assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
  assert_int_equal(n, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(cgroups),  cmocka_unit_test(long_paths), cmocka_unit_test(parse),
      cmocka_unit_test(defaults), cmocka_unit_test(affinity),
  };
  files_begin();
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  files_end();
  return failed;
}
