/* tests/cli/test_bench.c -- quern bench of graphs, saved programs and runs: what it varies, prints and writes, and refuses */
#define _XOPEN_SOURCE 700 /* realpath */
#include <limits.h>
#include <sys/wait.h>

#include "io/folder.h"
#include "quern/quern.h"

#include "shell.h"

/* One line of JSON as numbers that do not depend on the machine: batches, runs, the best, and whether times make sense. */
static const char form[] = "import json, sys\n"
                           "j = json.load(open(sys.argv[1]))\n"
                           "rows = j['rows']\n"
                           "print(j['kind'], [r['batch'] for r in rows], sum(r['best'] for r in rows))\n"
                           "most = max(r['samples_per_second'] or 0 for r in rows)\n"
                           "for r in rows:\n"
                           "  assert r['runs'] >= 1 and r['runs_per_second'] > 0\n"
                           "  assert 0 < r['least_ms'] <= r['p10_ms'] <= r['median_ms'] <= r['p90_ms'] <= r['p99_ms']\n"
                           "  assert 0 < r['planned_bytes'] and 0 < r['used_bytes']\n"
                           "  if r['best']: assert r['samples_per_second'] >= 0.95 * most\n"
                           "  if r['best']: break\n"
                           "  assert r['batch'] is None or r['samples_per_second'] < 0.95 * most or len(rows) == 1\n";

static void put(const char *name, const char *words) {
  FILE *file = fopen(in_folder(name), "w");
  assert_non_null(file);
  assert_true(fputs(words, file) >= 0);
  assert_int_equal(fclose(file), 0);
}

static void graphs_and_programs(void **state) {
  (void)state;
  static const struct row rows[] = {
      {"quern bench net.qir --seconds 0.01 | cut -c1-10", 0, "net.qir: g\n  batch   \n      -   \n"},
      {"quern bench net.qir --dynamic-batch x --seconds 0.01 --json a.json | tail -1 | cut -c1-12", 0,
       "best: batch \n"},
      {"/usr/bin/python3 form.py a.json", 0, "graph [1, 2, 4, 8, 16, 24] 1\n"},
      {"quern bench net.qir --dynamic-batch x --batch 3,8..20 --seconds 0.01 --device interp --json b.json > /dev/null "
       "&& "
       "/usr/bin/python3 form.py b.json && grep -c '\"device\": \"interp\"' b.json",
       0, "graph [3, 8, 16, 20] 1\n1\n"},
      {"quern compile net.qir --dynamic-batch x -o net.qprg > /dev/null && quern bench net.qprg --batch 2,24 --seconds "
       "0.01 "
       "--json c.json > /dev/null && /usr/bin/python3 form.py c.json",
       0, "program [2, 24] 1\n"},
      {"quern compile net.qir -o one.qprg > /dev/null && quern bench ./one.qprg --seconds 0.01 --json d.json > "
       "/dev/null "
       "&& /usr/bin/python3 form.py d.json",
       0, "program [None] 0\n"},
      {"ls *.part 2>/dev/null", 2, ""},
  };
  RUN(rows);
}

static void runs(void **state) {
  (void)state;
  static const struct row rows[] = {
      {"quern train adder width=16 layers=1 heads=1 batch=8 steps=2 threads=1 out=run > /dev/null", 0, ""},
      {"ls run > before; quern bench run --seconds 0.01 --json r.json | sed -n 2p | grep -c tokens/s; "
       "/usr/bin/python3 form.py r.json; ls run | cmp - before",
       0, "1\ntraining step [8] 0\n"},
      {"quern bench run threads=1 --batch 1..4 --seconds 0.01 --json r.json > /dev/null && /usr/bin/python3 form.py "
       "r.json",
       0, "training step [1, 2, 4] 1\n"},
      {"quern bench run threads=1 --batch 1,2 --inference --seconds 0.01 --json r.json > /dev/null && "
       "/usr/bin/python3 form.py r.json; ls run | cmp - before",
       0, "evaluation [1, 2] 1\n"},
      {"quern bench run --inference --updates", 2, "quern bench: --updates is of graphs; of a run it is a key..."},
      {"quern bench run --device cpu", 2,
       "quern bench: --device is of graphs; of a run it is a key, such as device=cuda or threads=2\n..."},
      {"quern bench run batsh=3", 2, "quern bench: there is no key 'batsh'..."},
      {"mkdir none; quern bench none", 1, "quern: none: ..."},
  };
  RUN(rows);
}

static void what_is_wrong(void **state) {
  (void)state;
  static const struct row rows[] = {
      {"quern bench net.qir --batch 1..4", 1,
       "quern: net.qir: its batch cannot be varied: it has no dynamic batch\n  HINT: --dynamic-batch NAME..."},
      {"quern bench one.qprg --batch 1", 1,
       "quern: one.qprg: its batch cannot be varied: it has no dynamic batch\n  HINT: compile it with --dynamic-batch "
       "NAME\n"},
      {"quern bench net.qprg --batch 25", 1, "quern: net.qprg: --batch 25: its dynamic batch has at most 24 rows\n"},
      {"quern bench net.qprg --threads 1", 1, "quern: net.qprg is compiled already: --threads comes too late\n"},
      {"quern bench net.qir --batch 4,2", 2, "quern bench: --batch: 2 comes after 4; they must grow\n..."},
      {"quern bench net.qir --batch 4..2", 2, "quern bench: --batch: 2 comes after 4; they must grow\n..."},
      {"for b in '' 0 -1 x 1, 1,,2 1... 1..x 99999999999999999999; do quern bench net.qir --dynamic-batch x "
       "\"--batch=$b\"; "
       "done 2>&1 | grep -c 'expected numbers from 1'",
       0, "9\n"},
      {"quern bench net.qir --seconds 0", 2, "quern bench: --seconds takes a number..."},
      {"quern bench net.qir --only x", 2, "quern bench: --only is of suites\n..."},
      {"quern bench net.qir net.qir", 2, "quern bench: takes one file, 'net.qir' is one more\n..."},
      {"quern bench gemm --batch 1", 2, "quern bench: --batch is of graphs and programs\n..."},
      {"quern bench gemm --device cpu", 2, "quern bench: --device is of graphs and programs\n..."},
      {"quern bench gemm ops", 2, "quern bench: takes one suite, 'ops' is one more\n..."},
      {"quern bench nothing.qir", 1, "quern: nothing.qir: cannot be opened: No such file or directory\n"},
      {"quern bench net.qir --device null", 1, "quern: net.qir: device null: ..."},
      {"quern bench net.qir --seconds 0.01 --json nowhere/x > /dev/null", 1,
       "quern: nowhere/x.part cannot be written\n"},
  };
  RUN(rows);
}

/* What was measured before Ctrl-C is shown and kept. */
static void interrupted(void **state) {
  (void)state;
  expect("timeout --preserve-status -s INT 5 \"$Q\" bench run threads=1 --batch 4,8 --seconds 3 --json cut.json "
         "> cut.txt 2> cut.err; echo $?; grep -c 'interrupted; what was measured so far' cut.err; "
         "/usr/bin/python3 form.py cut.json",
         0, "130\n1\ntraining step [4] 0\n");
}

static int set_up(void **state) {
  (void)state;
  if (!folder_make()) return -1;
  setenv("QUERN_CACHE", in_folder("cache"), 1);
  put("form.py", form);
  put("net.qir", "quern 1\n%0 = input name=\"x\" dtype=f32 shape=[24,8]\n%1 = state name=\"w\" dtype=f32 shape=[8,8]\n"
                 "%2 = dot %0 %1 a_batch=[] b_batch=[] a_sum=[1] b_sum=[0] reduce=sum combine=mul\n%3 = tanh %2\n"
                 "return y=%3\n");
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  folder_clear(folder);
  return rmdir(folder);
}

int main(int argc, char **argv) {
  if (argc < 1 || !find_program(argv[0])) return 1;
  const struct CMUnitTest tests[] = {cmocka_unit_test(graphs_and_programs), cmocka_unit_test(runs),
                                     cmocka_unit_test(what_is_wrong), cmocka_unit_test(interrupted)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
