/* tests/cli/test_zoo.c -- quern bench zoo beside a made-up PyTorch: rows, refusals, Ctrl-C, the page of ratios */
#define _XOPEN_SOURCE 700 /* realpath */
#include <limits.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "io/folder.h"
#include "quern/quern.h"

#include "shell.h"

/* Speaks the lines of bench/peers/peer.h instead of the Python that would run a peer: the network pinn has 12737
** parameters. PEER=other: another network; PEER=none: it cannot; PEER=stop: Ctrl-C is pressed in the second case. */
static const char peer[] = "#!/bin/sh\n"
                           "echo peer fake 1.0\n"
                           "while read -r word kind rest; do\n"
                           "  case $word,$PEER,$rest in\n"
                           "  case,other,*) echo ok parameters=5 first_s=1.5 peak_bytes=1000;;\n"
                           "  case,none,*) echo no it cannot;;\n"
                           "  case,stop,*B=32*) kill -INT $PPID; exec sleep 30;;\n"
                           "  case,*) echo ok parameters=12737 first_s=1.5 peak_bytes=1000;;\n"
                           "  run,*) echo time 0.5;;\n"
                           "  esac\n"
                           "done\n";

/* One line of JSON as what does not depend on the machine. */
static const char form[] = "import json, sys\n"
                           "j = json.load(open(sys.argv[1]))\n"
                           "for r in j['rows']:\n"
                           "  if 'failed' in r:\n"
                           "    print(r['name'], r['params'], r['failed'])\n"
                           "    continue\n"
                           "  assert r['first_s'] > 0 and r['planned_bytes'] > 0 and r['median_ms'] > 0\n"
                           "  print(r['name'], r['params'], r['parameters'], r['eager_first_s'], sorted(r['peers']))\n";

static void put(const char *name, const char *words) {
  FILE *file = fopen(in_folder(name), "w");
  assert_non_null(file);
  assert_true(fputs(words, file) >= 0);
  assert_int_equal(fclose(file), 0);
}

#define ZOO "quern bench zoo --quick --threads 1 --only 'pinn infer' "

static void rows_and_ratios(void **state) {
  (void)state;
  static const struct row rows[] = {
      {ZOO "--json a.json > a.txt 2> a.err; echo $?; cat a.err; /usr/bin/python3 form.py a.json", 0,
       "0\npinn infer B=1 f32 layers=4 C=64\npinn infer B=32 f32 layers=4 C=64\n"
       "pinn infer B=1 f32 layers=4 C=64 12737 1.5 ['best', 'eager']\n"
       "pinn infer B=32 f32 layers=4 C=64 12737 1.5 ['best', 'eager']\n"},
      {"/usr/bin/python3 $ZOO_PAGE a.json a.html && grep -c '<svg' a.html", 0, "1\n"},
      {"/usr/bin/python3 $ZOO_PAGE form.py", 1, "form.py holds no rows of quern bench zoo\n"},
      {"export PEER=none; " ZOO "2>&1 > b.txt | grep -c 'eager: no it cannot'; grep -c best b.txt", 1, "2\n0\n"},
      {"mkdir g; " ZOO "--write g; ls g", 0,
       "g/pinn-infer-B1-f32.qir\ng/pinn-infer-B32-f32.qir\npinn-infer-B1-f32.qir\npinn-infer-B32-f32.qir\n"},
      {"quern graph g/pinn-infer-B1-f32.qir | grep -c '= input'", 0, "2\n"},
      {"ls *.part quern-bench-* 2> /dev/null", 2, ""},
  };
  RUN(rows);
}

/* What fails is a row, and the exit status; the other rows are measured. */
static void failures(void **state) {
  (void)state;
  static const struct row rows[] = {
      {"export PEER=other; " ZOO "--json c.json > c.txt 2>&1; echo $?; grep -c FAILED c.txt; /usr/bin/python3 form.py "
       "c.json",
       0,
       "1\n2\npinn infer B=1 f32 layers=4 C=64 the networks differ: 12737 parameters, of eager 5\n"
       "pinn infer B=32 f32 layers=4 C=64 the networks differ: 12737 parameters, of eager 5\n"},
      {"export QUERN_FAULT=alloc:200; " ZOO "--json d.json > d.txt 2>&1; echo $?; grep -c 'FAILED: .*no memory' d.txt; "
       "/usr/bin/python3 $ZOO_PAGE d.json d.html && grep -c '<h2>Failed' d.html",
       0, "1\n2\n1\n"},
      {"quern bench zoo --device cpuu", 2, "quern bench: --device..."},
      {"quern bench zoo --memory 1MB", 2, "quern bench: --memory is of graphs and programs\n..."},
      {"quern bench zoo --only nothing", 1, "quern: no case of zoo contains 'nothing'\n..."},
      {"export QUERN_PYTHON=/none; " ZOO "2>&1 > e.txt | grep -c 'the peer eager is not there'; grep -c pinn e.txt", 0,
       "1\n2\n"},
  };
  RUN(rows);
}

static void interrupted(void **state) {
  (void)state;
  expect("export PEER=stop; " ZOO "--json f.json > f.txt 2> f.err; echo $?; grep -c 'interrupted; what was' f.err; "
         "/usr/bin/python3 form.py f.json; ls quern-bench-* 2> /dev/null",
         2, "130\n1\npinn infer B=1 f32 layers=4 C=64 12737 1.5 ['best', 'eager']\n");
}

static int set_up(void **state) {
  (void)state;
  char page[PATH_MAX];
  if (realpath("bench/zoo_page.py", page) == NULL || !folder_make()) return -1;
  put("python", peer);
  put("form.py", form);
  setenv("ZOO_PAGE", page, 1);
  setenv("TMPDIR", folder, 1);
  setenv("QUERN_PYTHON", in_folder("python"), 1);
  return chmod(in_folder("python"), 0755);
}

static int tear_down(void **state) {
  (void)state;
  folder_clear(folder);
  return rmdir(folder);
}

int main(int argc, char **argv) {
  if (argc < 1 || !find_program(argv[0])) return 1;
  const struct CMUnitTest tests[] = {cmocka_unit_test(rows_and_ratios), cmocka_unit_test(failures),
                                     cmocka_unit_test(interrupted)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
