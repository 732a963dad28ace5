/* tests/cli/test_cli.c -- the program quern: what it prints and how it ends
** The program is the one two folders above this test's own (the build folder); a row is run by the shell in a fresh folder.
*/
#define _XOPEN_SOURCE 700 /* realpath */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/quern_cli_XXXXXX";
#include "shell.h"

static void put(const char *name, const char *contents) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  fputs(contents, file);
  fclose(file);
}

static const char small[] = "quern 1\n"
                            "%0 = input name=\"x\" dtype=f32 shape=[2,2]\n"
                            "%1 = state name=\"n\" dtype=i8 shape=[]\n"
                            "%2 = const dtype=f32 shape=[2,2] data={1, 1, 1, 1}\n"
                            "%3 = mul %0 %2 : f32[2,2]\n"
                            "%4 = neg %1 : i8[]\n"
                            "return y=%3 %4\n";

static int write_files(void **state) {
  (void)state;
  if (mkdtemp(folder) == NULL) return -1;
  char cache[sizeof folder + 8];
  snprintf(cache, sizeof cache, "%s/cache", folder);
  if (setenv("QUERN_CACHE", cache, 1) != 0) return -1;
  put("small.qir", small);
  put("bad.qir", "quern 1\n%0 = inptu\nreturn\n");
  put("types.qir",
      "quern 1\n%0 = const dtype=f64 shape=[3] data={0.1, -0, 12345.678901234}\n"
      "%1 = const dtype=f16 shape=[2] data={0.1, inf}\n%2 = const dtype=bool shape=[2] data={true, false}\n"
      "%3 = const dtype=u64 shape=[1,1] data={18446744073709551615}\n"
      "%4 = const dtype=i8 shape=[2,0] data={}\n%5 = const dtype=f32 shape=[] data={nan}\n"
      "%6 = const dtype=i64 shape=[] data={-9223372036854775808}\nreturn %0 %1 %2 %3 %4 %5 %6\n");
  put("long.qir", "quern 1\n%0 = iota dtype=i64 shape=[7,200] axis=1\n%1 = iota dtype=i32 shape=[30] axis=0\n"
                  "%2 = iota dtype=u8 shape=[2,2,2] axis=0\nreturn %0 %1 %2\n");
  put("twice.qir", "quern 1\n%0 = iota dtype=i8 shape=[2] axis=0\nreturn %0 \"a/b\"=%0 a_b=%0\n");
  put("narrow.qir", "quern 1\n%0 = const dtype=bf16 shape=[] data={1}\nreturn %0\n");
  put("names.qir", "quern 1\n%0 = input name=\"b\" dtype=bool shape=[2]\n%1 = input name=\"u\" dtype=u8 shape=[]\n"
                   "%2 = input name=\"u\" dtype=f64 shape=[]\n%3 = not %0 : bool[2]\nreturn \"a/b\"=%3 %1 %2\n");
  put("twist.qir", "quern 1\n%0 = input name=\"xx\" dtype=f32 shape=[3]\n%1 = input name=\"yy\" dtype=f32 shape=[3]\n"
                   "%2 = scan %0 reduce=sum axis=0 reverse=0\n%3 = scan %2 reduce=sum axis=0 reverse=0\n"
                   "%4 = add %3 %1\nreturn %4\n");
  put("count.qir", "quern 1\n%0 = state name=\"n\" dtype=i32 shape=[]\n%1 = const dtype=i32 shape=[] data={3}\n"
                   "%2 = add %0 %1\nreturn now=%0 n=%2\n");
  put("dense.qir",
      "quern 1\n%0 = input name=\"x\" dtype=f32 shape=[4,8]\n%1 = input name=\"w\" dtype=f32 shape=[8,16]\n"
      "%2 = dot %0 %1 a_batch=[] b_batch=[] a_sum=[1] b_sum=[0] reduce=sum combine=mul\n"
      "%3 = neg %2\n%4 = reduce %3 reduce=max axes=[1]\nreturn y=%4 z=%3\n");
  /* the form that all benchmarks have */
  put("form.py", "import json, sys\n"
                 "d = json.load(open(sys.argv[1]))\n"
                 "assert list(d) == ['machine', 'date', 'suite', 'rows', 'geomean'], list(d)\n"
                 "assert d['suite'] == sys.argv[2] and len(d['rows']) == int(sys.argv[3]), d\n"
                 "keys = 'name params threads median_ms spread gflops gbs limit_pct planned_bytes'.split()\n"
                 "for r in d['rows']:\n"
                 "    assert list(r)[:9] == keys and list(r)[-1] == 'peers', list(r)\n"
                 "    assert r['median_ms'] > 0 and r['spread'] >= 0, r\n"
                 "    for k in keys[5:8]: assert r[k] is None or r[k] > 0, r\n"
                 "    for p in r['peers'].values(): assert p['median_ms'] > 0 and p['ratio'] > 0, r\n"
                 "    print(r['name'], r['params'], *[k for k in list(r)[9:-1]])\n");
  return 0;
}

static int remove_files(void **state) {
  (void)state;
  char line[128];
  snprintf(line, sizeof line, "rm -r %s", folder);
  return system(line);
}

/* ---- tests ---------------------------------------------------------------------------------------------- */

#define OVERVIEW                                                                                                       \
  "usage: quern COMMAND [ARGUMENTS]\n\ncommands:\n"                                                                    \
  "  train     train a network by a configuration\n"                                                                   \
  "  resume    go on with a run after its newest checkpoint\n"                                                         \
  "  generate  write text with a language model that was trained\n"                                                    \
  "  eval-loss the loss of a run's newest checkpoint on data that it was not trained on\n"                             \
  "  report    sum up a run, and write report.html: curves, memory, kernels\n"                                         \
  "  info      what is in a checkpoint or in safetensors files; damage is found\n"                                     \
  "  plan      memory, kernels and operations of a graph or of training; runs nothing, and needs no compiler and no "  \
  "GPU\n"                                                                                                              \
  "  tokenize  texts to token files, or a tokenizer from texts\n"                                                      \
  "  eval      evaluate a graph and show its outputs\n"                                                                \
  "  run       compile a graph, run it and show its outputs\n"                                                         \
  "  compile   compile a graph, and save it if asked to\n"                                                             \
  "  explain   what a graph compiles to: each kernel's work and the least time it can take on this machine\n"          \
  "  graph     print a graph: its text form, or a picture\n"                                                           \
  "  tune      time other schedules of a graph's kernels, and keep the faster ones in a file of wisdom\n"              \
  "  bench     measure a graph, a program or a run's checkpoint; or a suite against the peers that are installed\n"    \
  "  devices   what programs can be compiled for, and what the CPU can do\n"                                           \
  "  env       the environment variables that Quern reads, and their values\n"                                         \
  "  help      what there is, or how a command is called\n\n"                                                          \
  "options:\n  --help     this text; after a command, how it is called\n  --version  the version\n"

static void help(void **state) {
  (void)state;
  static const struct row rows[] = {
      {"quern", 2, OVERVIEW},
      {"quern --help", 0, OVERVIEW},
      {"quern -h", 0, OVERVIEW},
      {"quern help", 0, OVERVIEW},
      {"quern --version", 0, "quern 0...."},
      {"quern help graph", 0,
       "usage: quern graph FILE.qir [--graphviz] [--inline] [--rewrite] [-o FILE]\n\nprint a graph: its text form, or "
       "a "
       "picture\n\n"
       "options:\n  --graphviz             Graphviz instead of the text form\n..."},
      {"quern graph --help", 0, "usage: quern graph FILE.qir..."},
      {"quern eval x y z -h", 0, "usage: quern eval FILE.qir [--set NAME=VALUE ...]..."},
      {"quern env --help", 0, "usage: quern env\n\nthe environment..."},
      {"quern help help", 0, "usage: quern help [COMMAND]\n..."},
      {"quern evla", 2, "quern: there is no command 'evla'; did you mean 'eval'?\n  HINT: quern --help lists them\n"},
      {"quern frobnicate", 2, "quern: there is no command 'frobnicate'\n  HINT: quern --help lists them\n"},
      {"quern help grph", 2, "quern: there is no command 'grph'; did you mean 'graph'?\n..."},
      {"quern help graph eval", 2,
       "quern help: takes at most 1 argument, 'eval' is one more\n  HINT: quern help help\n"},
      {"quern graph", 2, "quern graph: takes 1 argument, got 0\n  HINT: quern help graph\n"},
      {"quern graph a b", 2, "quern graph: takes at most 1 argument, 'b' is one more\n..."},
      {"quern graph --grafviz a", 2, "quern graph: there is no option '--grafviz'; did you mean '--graphviz'?\n..."},
      {"quern graph --xyzzy=3 a", 2, "quern graph: there is no option '--xyzzy'\n..."},
      {"quern graph -x a", 2, "quern graph: there is no option '-x'\n..."},
      {"quern graph --dot=1 a", 2, "quern graph: --graphviz takes no value\n..."},
      {"quern graph a -o", 2, "quern graph: --output needs FILE\n..."},
      {"quern eval small.qir --set", 2, "quern eval: --set needs NAME=VALUE\n..."},
      {"quern env x", 2, "quern env: takes at most 0 arguments, 'x' is one more\n..."},
  };
  RUN(rows);
}

static void environment(void **state) {
  (void)state;
  static const struct row rows[] = {
      {"quern env | grep -A1 '^QUERN_DEBUG='", 0, "QUERN_DEBUG=0\n    what is logged on stderr..."},
      {"QUERN_SEED=7 quern env | grep SEED", 0, "QUERN_SEED=7\n"},
      {"QUERN_THREADS=3 quern env | grep ^QUERN_THREADS", 0, "QUERN_THREADS=3\n"},
      {"QUERN_THREADS=0 quern env > /dev/null", 1, "quern: QUERN_THREADS is \"0\"; expected 1..1024..."},
      {"QUERN_SEED=x quern env > /dev/null", 1, "quern: QUERN_SEED is \"x\"; expected..."},
      {"QUERN_FAULT=alloc:1 quern env | grep FAULT", 0, "QUERN_FAULT=alloc:1\n"},
      {"QUERN_SEED=x quern eval types.qir", 1, "quern: QUERN_SEED is \"x\"; expected..."},
      {"QUERN_FAULT=alloc:1 quern eval types.qir", 1, "quern: no memory for..."},
      {"QUERN_FAULT=alloc:5 quern eval types.qir 2>&1 | grep -c '^quern: types.qir: no memory'", 0, "1\n"},
  };
  RUN(rows);
}

static void graph(void **state) {
  (void)state;
  static const struct row rows[] = {
      {"quern graph small.qir", 0, small},
      {"quern graph - < small.qir", 0, small},
      {"quern graph -- small.qir", 0, small},
      {"quern graph small.qir -o out.qir && quern graph out.qir", 0, small},
      {"quern graph small.qir -oout2.qir && cat out2.qir", 0, small},
      {"quern graph small.qir --output=out3.qir && cat out3.qir", 0, small},
      {"quern graph small.qir --output - ", 0, small},
      {"quern graph --rewrite small.qir", 0,
       "quern 1\n%0 = input name=\"x\" dtype=f32 shape=[2,2]\n%1 = state name=\"n\" dtype=i8 shape=[]\n%2 = neg %1 : "
       "i8[]\n"
       "return y=%0 %2\n"},
      {"quern graph --inline small.qir", 0, small},
      {"quern graph --dot small.qir", 0, "digraph quern {\n..."},
      {"quern graph none.qir", 1, "quern: none.qir: cannot be opened: No such file or directory\n"},
      {"quern graph .", 1, "quern: .: cannot be read: Is a directory\n"},
      {"quern graph bad.qir", 1,
       "quern: bad.qir:2:6: expected an operation, found 'inptu' HINT: did you mean 'input'?\n"},
      {"quern graph small.qir -o none/x", 1, "quern: none/x: cannot be made: No such file or directory\n"},
      {"quern graph small.qir > /dev/full", 1, "quern: standard output cannot be written\n"},
      {"quern graph small.qir -o /dev/full", 1, "quern: /dev/full: cannot be written: No space left on device\n"},
  };
  RUN(rows);
}

static void evaluate(void **state) {
  (void)state;
  static const struct row rows[] = {
      {"quern eval small.qir --set x=1.5 --set n=-3", 0, "y: f32[2,2]\n[[1.5 1.5]\n [1.5 1.5]]\n1: i8[]\n3\n"},
      {"quern eval small.qir --set=x=-0 --set=n=127 --rewrite", 0, "y: f32[2,2]\n[[-0 -0]\n [-0 -0]]\n1: i8[]\n-127\n"},
      {"quern eval types.qir", 0,
       "0: f64[3]\n[      0.1        -0 12345.679]\n1: f16[2]\n[0.1 inf]\n2: bool[2]\n[ true false]\n"
       "3: u64[1,1]\n[[18446744073709551615]]\n4: i8[2,0]\n[]\n5: f32[]\nnan\n6: i64[]\n-9223372036854775808\n"},
      {"quern eval long.qir", 0,
       "0: i64[7,200]\n[[  0   1   2 ... 197 198 199]\n [  0   1   2 ... 197 198 199]\n [  0   1   2 ... 197 198 "
       "199]\n ...\n"
       " [  0   1   2 ... 197 198 199]\n [  0   1   2 ... 197 198 199]\n [  0   1   2 ... 197 198 199]]\n"
       "1: i32[30]\n[ 0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25\n 26 27 28 29]\n"
       "2: u8[2,2,2]\n[[[0 0]\n  [0 0]]\n [[1 1]\n  [1 1]]]\n"},
      {"quern eval names.qir --set b=true --set u=255", 0,
       "a/b: bool[2]\n[false false]\n1: u8[]\n255\n2: f64[]\n255\n"},
      {"quern eval names.qir --set b=0 --set u=1 | head -2", 0, "a/b: bool[2]\n[true true]\n"},
      {"quern eval small.qir --set x=1", 1,
       "quern: small.qir: eval: the state \"n\", i8(), has no value\n  HINT: --set NAME=VALUE, or --set "
       "NAME=@FILE.npy\n"},
      {"quern eval small.qir --set x", 2, "quern eval: --set x: expected NAME=VALUE or NAME=@FILE.npy\n..."},
      {"quern eval small.qir --set z=1", 1, "quern: --set z: the graph has no such input; did you mean..."},
      {"quern eval small.qir --set weights=1", 1, "quern: --set weights: the graph has no such input\n"},
      {"quern eval small.qir --set x=1 --set x=2", 1, "quern: --set x: it is set twice\n"},
      {"quern eval small.qir --set x=", 1, "quern: --set x=: that is no f32 HINT: @FILE.npy reads a file\n"},
      {"quern eval small.qir --set x=1x", 1, "quern: --set x=1x: that is no f32..."},
      {"quern eval small.qir --set 'x= 1'", 1, "quern: --set x= 1: that is no f32..."},
      {"quern eval small.qir --set n=128", 1, "quern: --set n=128: that is no i8..."},
      {"quern eval small.qir --set n=1.5", 1, "quern: --set n=1.5: that is no i8..."},
      {"quern eval names.qir --set u=-1", 1, "quern: --set u=-1: that is no u8..."},
      {"quern eval names.qir --set u=99999999999999999999", 1, "quern: --set u=99999999999999999999: that is no u8..."},
      {"quern eval names.qir --set b=2", 1, "quern: --set b=2: that is no bool..."},
      {"quern eval bad.qir", 1, "quern: bad.qir:2:6: expected an operation..."},
      {"quern eval types.qir > /dev/full", 1, "quern: standard output cannot be written\n"},
  };
  RUN(rows);
}

static void arrays_in_files(void **state) {
  (void)state;
  static const struct row rows[] = {
      {"quern eval small.qir --set x=2 --set n=1 --out y=y.npy", 0, "y: f32[2,2] written to y.npy\n1: i8[]\n-1\n"},
      {"quern eval small.qir --set x=@y.npy --set n=1", 0, "y: f32[2,2]\n[[2 2]\n [2 2]]\n1: i8[]\n-1\n"},
      {"mkdir d && quern eval small.qir --set x=3 --set n=1 --out-dir d && ls d", 0,
       "y: f32[2,2] written to d/y.npy\n1: i8[] written to d/1.npy\n1.npy\ny.npy\n"},
      {"quern eval small.qir --set x=@d/y.npy --set n=@d/1.npy", 0, "y: f32[2,2]\n[[3 3]\n [3 3]]\n1: i8[]\n1\n"},
      {"quern eval small.qir --set x=4 --set n=1 --out-dir d --out 1=n.npy && ls n.npy", 0,
       "y: f32[2,2] written to d/y.npy\n1: i8[] written to n.npy\nn.npy\n"},
      {"quern eval names.qir --set b=0 --set u=1 --out-dir d | head -1", 0, "a/b: bool[2] written to d/a_b.npy\n"},
      {"quern eval small.qir --set x=@n.npy", 1, "quern: --set x: the input is f32[2,2], n.npy holds i8[]\n"},
      {"quern eval small.qir --set x=@none.npy", 1, "quern: none.npy: cannot be opened: No such file or directory\n"},
      {"quern eval small.qir --set x=@small.qir", 1, "quern: small.qir: is no .npy file..."},
      {"quern eval small.qir --set x=1 --set n=1 --out z=z.npy", 1,
       "quern: --out z: the graph has no such output\n  HINT: it has y 1\n"},
      {"quern eval small.qir --set x=1 --set n=1 --out y=a --out y=b", 1, "quern: --out y: it is given twice\n"},
      {"quern eval small.qir --out y", 2, "quern eval: --out y: expected NAME=FILE.npy\n..."},
      {"quern eval small.qir --out y=", 2, "quern eval: --out y=: expected NAME=FILE.npy\n..."},
      {"quern eval small.qir --set x=1 --set n=1 --out-dir none", 1,
       "quern: none/y.npy: cannot be made: No such file or directory\n"},
      {"quern eval twice.qir --out-dir d > /dev/null", 1, "quern: outputs 1 and 2 both go to d/a_b.npy HINT..."},
      {"quern eval twice.qir --out-dir d --out a/b=n.npy > /dev/null", 0, ""},
      {"mkfifo p && quern eval small.qir --set x=1 --set n=1 --out y=p", 1, "quern: p: is no regular file\n"},
      {"quern eval narrow.qir --out 0=x.npy", 1,
       "quern: npy_write: bf16 has no NumPy dtype HINT: quern_cast to f32 first\n"},
      {"ls *.tmp d/*.tmp 2>/dev/null", 2, ""},
  };
  RUN(rows);
}

static void run_programs(void **state) {
  (void)state;
  static const struct row rows[] = {
      {"quern run small.qir --set x=1.5 --set n=-3", 0, "y: f32[2,2]\n[[1.5 1.5]\n [1.5 1.5]]\n1: i8[]\n3\n"},
      {"quern run small.qir --set x=1.5", 0, "y: f32[2,2]\n[[1.5 1.5]\n [1.5 1.5]]\n1: i8[]\n0\n"},
      {"quern run dense.qir --set x=2 --set w=0.5 --out z=z.npy", 0,
       "y: f32[4]\n[-8 -8 -8 -8]\nz: f32[4,16] written to z.npy\n"},
      {"quern run dense.qir --set x=2 --set w=0.5 --device interp | head -2", 0, "y: f32[4]\n[-8 -8 -8 -8]\n"},
      {"quern run dense.qir --set x=2 --set w=0.5 --optimize 0 --threads 2 | head -2", 0, "y: f32[4]\n[-8 -8 -8 -8]\n"},
      {"quern run dense.qir --set x=2 --set w=0.5 --pass -fuse --numerics fast --inference --runs 3 | head -2", 0,
       "y: f32[4]\n[-8 -8 -8 -8]\n"},
      {"quern run dense.qir --set x=2 --set w=0.5 --numerics tf32 | head -2", 0, "y: f32[4]\n[-8 -8 -8 -8]\n"},
      {"quern run dense.qir --fill --out y=a.npy --out z=b.npy && quern run dense.qir --fill --device interp "
       "--out y=c.npy --out z=d.npy && cmp a.npy c.npy && cmp b.npy d.npy",
       0, "y: f32[4] written to a.npy\nz: f32[4,16] written to b.npy\ny: f32[4] written to c.npy\n..."},
      {"quern run small.qir --fill --quiet", 0, ""},
      {"quern run small.qir --fill --quiet --out y=quiet.npy && mkdir quiet && quern run small.qir --fill --quiet "
       "--out-dir quiet && "
       "ls "
       "quiet.npy quiet | grep -c 'npy$'",
       0, "3\n"},
      {"quern run dense.qir", 1,
       "quern: dense.qir: input 'x' is not set\n  HINT: --set NAME=VALUE, --set NAME=@FILE.npy, or --fill for all\n"},
      {"quern run dense.qir --set xx=1", 1, "quern: --set xx: the graph has no such input; did you mean..."},
      {"quern run bad.qir", 1, "quern: bad.qir:2:6: expected an operation..."},
      {"quern run dense.qir --fill --device cpuu", 2,
       "quern run: --device: there is no 'cpuu'; did you mean 'cpu'?\n  HINT: quern help run\n"},
      {"quern run dense.qir --fill --device null", 1, "quern: dense.qir: device null: ..."},
      {"quern run dense.qir --set x=2 --set w=0.5 --device interp:1 | head -2", 0, "y: f32[4]\n[-8 -8 -8 -8]\n"},
      {"quern run dense.qir --set x=2 --set w=0.5 --device auto 2>/dev/null | head -2", 0,
       "y: f32[4]\n[-8 -8 -8 -8]\n"},
      {"quern run dense.qir --fill --device interp:16", 1,
       "quern: dense.qir: program_compile: there is no device \"interp:16\": of kind interp there are 16, "
       "\"interp:0\" to \"interp:15\"\n"},
      {"quern run dense.qir --fill --device cuda:x", 1,
       "quern: dense.qir: program_compile: there is no device \"cuda:x\": what follows the colon must be a number "
       "from 0 on; of kind cuda there ..."},
      {"quern run dense.qir --fill --device opencl:-1", 1,
       "quern: dense.qir: program_compile: there is no device \"opencl:-1\": what follows the colon must be..."},
      {"quern run dense.qir --fill --device interp --target opencl --quiet", 0, ""},
      {"quern run dense.qir --fill --target opencl", 1,
       "quern: dense.qir: program_compile: device \"cpu\" does not run what is made for target \"opencl\"\n"},
      {"quern run dense.qir --fill --target sm_1", 1,
       "quern: dense.qir: program_compile: there is no target \"sm_1\" HINT: there are avx512vnni..."},
      {"quern explain dense.qir --device interp --target sm_80 --source | grep -q __global__", 0, ""},
      {"quern run dense.qir --set x=2 --set w=0.5 --precision bf16 | head -2", 0, "y: f32[4]\n[-8 -8 -8 -8]\n"},
      {"quern run dense.qir --fill --precision f16 --quiet --out z=z16.npy && quern run dense.qir --fill --quiet --out "
       "z=z32.npy && cmp -s z16.npy z32.npy || echo differ",
       0, "differ\n"},
      {"quern explain dense.qir --precision bf16 | grep -q cast+dot && quern plan dense.qir --precision bf16 "
       ">/dev/null "
       "&& "
       "quern compile dense.qir --precision f16 | head -1",
       0, "dense.qir: ..."},
      {"quern run dense.qir --fill --precision bf61", 2,
       "quern run: --precision: there is no 'bf61'; did you mean 'bf16'?\n  HINT: quern help run\n"},
      {"quern run dense.qir --fill --numerics quick", 2, "quern run: --numerics: there is no 'quick'\n..."},
      {"quern run dense.qir --set x=2 --set w=0.5 --optimize-for throughput | head -2", 0,
       "y: f32[4]\n[-8 -8 -8 -8]\n"},
      {"quern run dense.qir --set x=2 --set w=0.5 --optimize-for latency --quiet", 0, ""},
      {"quern run dense.qir --fill --optimize-for latenzy", 2,
       "quern run: --optimize-for: there is no 'latenzy'; did you mean 'latency'?\n  HINT: quern help run\n"},
      {"quern run twist.qir --set xx=2 --set yy=1 --donate xx,yy --runs 3 | sed '/^3 runs: median [0-9.e-]* ms, least "
       "[0-9.e-]* ms$/s/:.*//'",
       0, "0: f32[3]\n[ 3  7 13]\n3 runs\n"},
      {"quern run small.qir --fill --quiet --runs 2", 0, ""},
      {"quern run small.qir --fill --runs 1 | sed -n '$s/: median.*, least.*//p'", 0, "1 run\n"},
      {"quern run twist.qir --set xx=2 --set yy=1 --donate xx --runs 2 --device interp", 0,
       "0: f32[3]\n[ 3  7 13]\n2 runs: median ..."},
      {"quern run twist.qir --fill --donate xy", 1,
       "quern: --donate xy: the graph has no such input; did you mean 'xx'?\n"},
      {"quern run twist.qir --fill --donate xx,", 1, "quern: --donate : the graph has no such input\n"},
      {"quern run twist.qir --fill --donate xx,yy,xx", 1, "quern: --donate: xx is named twice\n"},
      {"quern run small.qir --fill --donate n", 1, "quern: small.qir: ..."},
      {"quern run dense.qir --fill --threads 0", 2, "quern run: --threads takes a number from 1 to 1024, got '0'\n..."},
      {"quern run dense.qir --fill --threads two", 2, "quern run: --threads takes a number..."},
      {"quern run dense.qir --fill --optimize 2", 2, "quern run: --optimize takes a number from 0 to 1, got '2'\n..."},
      {"quern run dense.qir --fill --runs 0", 2, "quern run: --runs takes a number from 1..."},
      {"quern run dense.qir --fill --pass -fues", 1, "quern: dense.qir: there is no pass 'fues'..."},
      {"quern run dense.qir --fill --memory 1XB", 2,
       "quern run: --memory takes bytes such as 1000, 64KiB, 1.5GB or 2GiB, got '1XB'\n..."},
      {"quern run dense.qir --fill --memory -1", 2, "quern run: --memory takes bytes..."},
      {"quern run dense.qir --fill --memory 1", 1, "quern: dense.qir: plan: the limit of 1 bytes cannot be met..."},
      {"quern run dense.qir --fill --quiet --memory 1.5GiB", 0, ""},
      {"quern run dense.qir --set x=2 --set w=0.5 --dynamic-batch x --rows 3 --out z=z.npy", 0,
       "y: f32[3]\n[-8 -8 -8]\nz: f32[3,16] written to z.npy\n"},
      {"quern run dense.qir --set x=@z.npy --set w=0.5 --dynamic-batch x --rows 3", 1,
       "quern: --set x: the input is f32[3,8], z.npy holds f32[3,16]\n"},
      {"quern run dense.qir --set x=2 --set w=0.5 --dynamic-batch x --rows 0 | head -2", 0, "y: f32[0]\n[]\n"},
      {"quern run dense.qir --fill --dynamic-batch x --rows 5", 1,
       "quern: --rows 5: the dynamic batch has at most 4\n"},
      {"quern run dense.qir --fill --rows 2", 2, "quern run: --rows: there is no dynamic batch HINT..."},
      {"quern run dense.qir --fill --dynamic-batch q", 1,
       "quern: --dynamic-batch q: the graph has no such input; did you mean 'x'?\n"},
      {"quern run dense.qir --fill --dynamic-batch w", 1,
       "quern: dense.qir: dynamic batch: dot of f32(8, 16) mixes rows..."},
      {"quern run dense.qir --fill > /dev/full", 1, "quern: standard output cannot be written\n"},
  };
  RUN(rows);
}

/* What names from outside hold is shown, not done. */
static void escaped(void **state) {
  (void)state;
  put("evil.qir", "quern 1\n%0 = input name=\"x\\x1b[2J\\x9b\" dtype=f32 shape=[2]\n%1 = exp %0\n"
                  "return \"y\\x1b[2J\\xc2\\x9b\\\"\\\\\"=%1\n");
  static const struct row rows[] = {
      {"quern eval evil.qir", 1, "quern: evil.qir: eval: the input \"x\\x1b[2J\\x9b\", f32(2,), has no value\n..."},
      {"quern run evil.qir --fill | head -1", 0, "y\\x1b[2J\\xc2\\x9b\"\\: f32[2]\n"},
      {"quern run evil.qir --fill --out z=1", 1,
       "quern: --out z: the graph has no such output\n  HINT: it has y\\x1b[2J\\xc2\\x9b\"\\\n"},
      {"quern graph evil.qir > same.qir; tail -1 same.qir; quern graph same.qir | cmp - same.qir", 0,
       "return \"y\\x1b[2J\\xc2\\x9b\\\"\\\\\"=%1\n"},
      {"quern graph --graphviz evil.qir | sed -n 's/.*out0.*label=//p'", 0,
       "\"y\\\\x1b[2J\\\\xc2\\\\x9b\\\"\\\\\"];\n"},
      {"E=$(printf 'e\\033[2J'); quern \"$E\"; quern eval \"$E.qir\"; quern graph evil.qir -o \"$E/x\"; "
       "quern compile evil.qir -o \"$E\" | tail -1",
       0,
       "quern: there is no command 'e\\x1b[2J'\n  HINT: quern --help lists them\n"
       "quern: e\\x1b[2J.qir: cannot be opened: No such file or directory\n"
       "quern: e\\x1b[2J/x: cannot be made: No such file or directory\nwritten to e\\x1b[2J\n"},
      {"E=$(printf 'o\\033[2J'); head -c 999 form.py > text; quern train model=lm width=16 layers=1 heads=1 data=text "
       "length=16 "
       "batch=4 eval_batches=1 threads=1 steps=1 out=$E > told; quern report $E >> told; quern info $E >> told; "
       "quern resume $E batch=1 >> told 2>&1; quern info $E --json >> told; grep -c 'o.x1b.2J' told; "
       "cat told $E/report.html $E/run.json | tr -d '\\n\\40-\\176\\200-\\377' | wc -c",
       0, "9\n0\n"},
  };
  RUN(rows);
}

/* Targets of CPUs share the order of sums; which elements are NaN is the same everywhere (docs/runtime.md,
** "Bits"). */
static void targets(void **state) {
  (void)state;
  put("nan.qir", "quern 1\n%0 = input name=\"a\" dtype=f32 shape=[2]\n%1 = input name=\"b\" dtype=f32 shape=[2]\n"
                 "%2 = max %0 %1\n%3 = min %0 %1\n%4 = add %0 %1\n%5 = lt %0 %1\n%6 = eq %0 %1\n%7 = sign %0\n"
                 "%8 = reduce %0 reduce=max axes=[0]\nreturn %2 %3 %4 %5 %6 %7 %8\n");
  static const struct row rows[] = {
      {"quern run dense.qir --fill --target generic --out y=e.npy --out z=f.npy > /dev/null && cmp a.npy e.npy && cmp "
       "b.npy f.npy",
       0, ""},
      {"for s in '--set a=nan --set b=1' '--set a=1 --set b=nan' '--set a=nan --set b=-inf'; do quern eval nan.qir $s "
       "> nan.txt; "
       "grep -c nan nan.txt; for d in '' '--target generic' '--optimize 0' '--device interp --target sm_90'; do "
       "quern run nan.qir $s $d | sed 's/-nan/nan/g' | cmp - nan.txt; done; done",
       0, "5\n3\n5\n"},
  };
  RUN(rows);
}

static void saved_programs(void **state) {
  (void)state;
  static const struct row rows[] = {
      {"quern compile dense.qir -o dense.qprg | sed 's/[0-9.]* ms/T/g; 3s/:.*/:/'", 0, "dense.qir: 5 nodes, ..."},
      {"quern compile dense.qir -o dense.qprg | tail -1", 0, "written to dense.qprg\n"},
      {"QUERN_CC=/none QUERN_CACHE=0 quern run dense.qprg --set x=2 --set w=0.5 | head -2", 0,
       "y: f32[4]\n[-8 -8 -8 -8]\n"},
      {"quern run dense.qprg --fill --out z=s.npy --out y=t.npy && cmp s.npy b.npy", 0,
       "y: f32[4] written to t.npy\nz: f32[4,16] written to s.npy\n"},
      {"quern run dense.qprg --fill --device cpu", 1,
       "quern: dense.qprg is compiled already: --device comes too late\n"},
      {"quern compile twist.qir --donate xx --optimize-for throughput -o twist.qprg | tail -1", 0,
       "written to twist.qprg\n"},
      {"quern run twist.qprg --set xx=2 --set yy=1 --runs 3", 0, "0: f32[3]\n[ 3  7 13]\n3 runs: ..."},
      {"quern run twist.qprg --fill --donate xx", 1,
       "quern: twist.qprg is compiled already: --donate comes too late\n"},
      {"quern compile dense.qir --dynamic-batch x -o rows.qprg | tail -1", 0, "written to rows.qprg\n"},
      {"quern run rows.qprg --set x=2 --set w=0.5 --rows 2 | head -2", 0, "y: f32[2]\n[-8 -8]\n"},
      {"quern run rows.qprg --set x=2 --set w=0.5 | head -2", 0, "y: f32[4]\n[-8 -8 -8 -8]\n"},
      {"quern tune dense.qir --kernels 1 --wisdom w.txt > tune.txt && head -1 w.txt", 0, "quern wisdom 1\n"},
      {"tail -1 tune.txt | grep -c '^w.txt: [01] lines\\? new; QUERN_WISDOM=w.txt uses it'; ls w.txt.0.tmp", 2,
       "1\n..."},
      {"QUERN_WISDOM=w.txt quern run dense.qir --set x=2 --set w=0.5 | head -2", 0, "y: f32[4]\n[-8 -8 -8 -8]\n"},
      {"echo nonsense > bad.txt; quern tune dense.qir --wisdom bad.txt", 1, "quern: dense.qir: bad.txt:1: expected..."},
      {"quern tune dense.qir --wisdom none/w.txt", 1, "quern: dense.qir: program_tune: none/w.txt cannot be..."},
      {"quern explain rows.qprg --plan | grep -c 'dynamic batch of up to 4 rows'", 0, "1\n"},
      {"quern run dense.qprg", 1, "quern: dense.qprg: input 'x' is not set\n..."},
      {"head -c 100 dense.qprg > cut.qprg; quern run cut.qprg --fill", 1, "quern: cut.qprg: ..."},
      {"quern compile dense.qir --device interp -o x.qprg > /dev/null", 1, "quern: program_save: ..."},
      {"quern compile dense.qir -o none/x > /dev/null", 1, "quern: ..."},
      {"quern explain dense.qprg --plan | grep -c '^steps'", 0, "1\n"},
      {"quern explain dense.qprg --fusion --run 3", 1, "quern: dense.qprg is compiled already: fusion..."},
      {"quern explain dense.qprg --run 3 | tail -1 | grep -c 'over 3 runs'", 0, "1\n"},
      {"quern explain dense.qprg --source", 1, "quern: explain: program_explain: the program comes from a file..."},
  };
  RUN(rows);
}

static void plans(void **state) {
  (void)state;
  static const struct row rows[] = {
      {"quern compile dense.qir -o named.qprg > /dev/null && quern run named.qprg --fill | grep -c '^y: '", 0, "1\n"},
      {"quern plan dense.qir | sed -n '3,4p'", 0, "memory\n  arena ..."},
      {"quern plan dense.qir --optimize 0 | grep -c ' k_'", 0, "3\n"},
      /* former names of options */
      {"quern plan dense.qir --opti''mise 0 | grep -c ' k_'; quern plan dense.qir --opti''mise=0 --lead''ing x | wc -l",
       0, "3\n..."},
      {"quern plan dense.qir --opti''mises 0", 2,
       "quern plan: there is no option '--opti"
       "mises'; did you mean '--optimize'?..."},
      {"QUERN_CC=/none quern plan dense.qir | grep -c ^steps", 0, "1\n"},
      {"printf '#!/bin/sh\\ntouch asked\\nexit 1\\n' >asks && chmod +x asks && for d in null interp cpu cuda; do "
       "QUERN_CC=$PWD/asks QUERN_CACHE=0 quern plan dense.qir --device $d | grep -c ^steps; done; test ! -e asked",
       0, "1\n1\n1\n1\n"},
      {"printf '#!/bin/sh\\necho \"paints \\033[31m\"\\n' >paints && chmod +x paints && QUERN_CC=$PWD/paints "
       "QUERN_CACHE=0 "
       "quern devices 2>&1 | grep -c \"$(printf '\\033')\"",
       1, "0\n"},
      {"quern plan small.qir --memory 100GiB | grep -c ^steps", 0, "1\n"},
      {"quern plan dense.qir --optimize 0 --memory 1", 1, "quern: dense.qir: plan: the limit of 1 bytes..."},
      {"quern plan twist.qir --donate xx --optimize-for throughput | grep -c ^steps", 0, "1\n"},
      {"quern explain twist.qir --donate xx --run 2 | tail -1 | grep -c 'over 2 runs'", 0, "1\n"},
      {"for c in run compile plan explain; do quern $c --help | grep -c -e '--optimize-for GOAL' -e '--donate NAME'; "
       "done",
       0, "4\n4\n4\n4\n"},
      {"quern plan dense.qir --curve | sed -n '1p;2s/.*%  *//p'", 0,
       "      memory          activations   recomputed       time        \nwithout a limit\n"},
      {"QUERN_CC=/none quern plan dense.qir --optimize 0 --curve --recompute | grep -c steps", 0, "1\n"},
      {"quern plan dense.qir --curve --memory 1MiB", 2, "quern plan: --curve goes through all limits: no --memory..."},
      {"quern plan none.qir", 1, "quern: none.qir: cannot be opened: No such file or directory\n"},
      /* the smallest limit is exact */
      {"L=$(quern plan dense.qir --optimize 0 --memory 1 2>&1 | sed 's/.*smallest that can is \\([0-9]*\\) .*/\\1/') "
       "&& "
       "quern plan dense.qir --optimize 0 --memory $L | grep -c ^steps && "
       "! quern plan dense.qir --optimize 0 --memory $((L - 1)) > short.txt 2>&1 && "
       "grep -c \"smallest that can is $L bytes; the largest tensors: dot\" short.txt",
       0, "1\n1\n"},
      {"quern run count.qir --updates --runs 3", 0, "now: i32[]\n6\n3 runs: ..."},
      {"quern run count.qir --set n=1", 0, "now: i32[]\n1\nn: i32[]\n4\n"},
      {"quern compile count.qir --updates -o count.qprg > /dev/null && quern run count.qprg --runs 5", 0,
       "now: i32[]\n12\n5 runs: ..."},
      {"quern plan twice.qir --updates | grep -c ^steps", 0, "1\n"},
      {"quern explain dense.qir | grep -c ' k_'", 0, "..."},
      {"quern explain dense.qir --graphviz | head -1", 0, "digraph program {\n"},
      {"quern explain dense.qir --source | grep -c '^void k_'", 0, "..."},
      {"quern explain dense.qir --fusion | head -1", 0,
       "  step kind     group              estimate  threshold  kernel\n"},
      {"quern explain dense.qir --plan -o plan.txt && grep -c ^steps plan.txt", 0, "1\n"},
      {"quern explain dense.qir --run 3 | tail -1 | grep -c 'over 3 runs'", 0, "1\n"},
      {"quern explain dense.qir --fusion --run 3 | tail -1 | grep -c '^all .* us, before .* us: .*x$'", 0, "1\n"},
      {"quern explain dense.qir --dot --plan", 2,
       "quern explain: --graphviz, --source, --fusion and --plan exclude..."},
      {"quern explain dense.qir --run none", 2, "quern explain: --run takes a number..."},
      {"quern devices | head -2 | tail -1 | cut -c1-4", 0, "cpu \n"},
      {"quern devices | grep -c '^auto is [a-z]*\\(: there is no GPU: .*\\)*$'", 0, "1\n"},
      {"quern devices | sed '/^device cuda/,$d' | grep -c 'GB/s\\|GFLOP/s'", 0, "7\n"},
      {"quern devices --threads 1 | grep -c 'with 1 thread, as measured'", 0, "1\n"},
      {"quern devices --threads 1 > a.txt; quern devices --threads 1 | cmp - a.txt", 0, ""},
      {"quern devices --threads 1 --again | cmp -s - a.txt", 1, ""},
      {"quern devices --threads none", 2, "quern devices: --threads takes a number from 1 to 1024, got 'none'\n..."},
  };
  RUN(rows);
}

static void profiles(void **state) {
  (void)state;
  static const struct row rows[] = {
      {"quern run dense.qir --fill --quiet --profile --runs 7 | head -1 | cut -c1-15", 0, "program: 7 runs\n"},
      {"quern run dense.qir --fill --quiet --trace t.json --folded t.txt --runs 2", 0, ""},
      {"/usr/bin/python3 -c \"import json; e = json.load(open('t.json'))['traceEvents']; "
       "print(e[0]['ph'], {x['ph'] for x in e[1:]}, all(x['dur'] >= 0 for x in e[1:]))\"",
       0, "M {'X'} True\n"},
      {"grep -c '^program;[a-z]*;[a-z_0-9]* [0-9]*$' t.txt", 0, "..."},
      {"quern run dense.qir --fill --quiet --trace none/t.json", 1, "quern: none/t.json: cannot be made..."},
      {"timeout --preserve-status -s INT 4 \"$Q\" run dense.qir --fill --quiet --profile --runs 1000000000 > cut.txt; "
       "echo $?; head -1 cut.txt | cut -c1-9",
       0, "quern: interrupted\n130\nprogram: \n"},
  };
  RUN(rows);
}

static void bench(void **state) {
  (void)state;
  static const struct row rows[] = {
      {"quern bench opps", 2, "quern bench: there is no suite 'opps'; did you mean 'ops'?\n..."},
      {"quern bench", 2, "quern bench: takes 1 argument, got 0\n..."},
      {"quern bench ops --rounds 2", 2, "quern bench: --rounds takes a number from 3 to 101, got '2'\n..."},
      {"quern bench ops --only nothing", 1, "quern: no case of ops contains 'nothing'\n"},
      {"quern bench ops --quick", 2, "quern bench: --quick is of the suites cuda and zoo\n..."},
      {"CUDA_VISIBLE_DEVICES= quern bench cuda --quick", 1, "quern: bench cuda: cuda: ..."},
      {"quern bench ops --only 'gelu rows=1000' --rounds 3 --json o.json > /dev/null 2>&1; "
       "/usr/bin/python3 form.py o.json ops 1",
       0, "gelu rows=1000 cols=512\n"},
      {"quern bench gemm-off-by-one --only 'm=255 k=768 n=2304' --rounds 3 --json g.json > /dev/null && "
       "/usr/bin/python3 form.py g.json gemm-off-by-one 1 && grep -c shape g.json",
       0, "gemm m=255 k=768 n=2304\n2\n"},
      {"quern bench fusion --only residual --rounds 3 --json f.json > /dev/null && "
       "/usr/bin/python3 form.py f.json fusion 1",
       0, "residual_norm m=1024 k=768 kernels kernels_unfused kernels_by_hand bytes bytes_unfused\n"},
      {"quern bench memory --only n=256 --rounds 3 --json m.json > /dev/null && /usr/bin/python3 form.py m.json memory "
       "4",
       0, "fused n=256 kernels arena unshared bound pool_hits pool_misses allocations\nunfused n=256..."},
      {"quern bench graph --only nodes=1000 --rounds 3 --json c.json | grep -c '^chain' && "
       "/usr/bin/python3 form.py c.json graph 3 | sed -n 1p",
       0, "3\nchain nodes=1000 nodes_before nodes_after steps kernels passes_ms plan_ms cold_ms warm_ms\n"},
      {"quern bench memory --only 'unfused n=256' --rounds 3 --json none/x > /dev/null", 1,
       "quern: none/x.part cannot be written\n"},
      {"quern bench graph --write . --only 'chain nodes=1000' | head -1 && grep -c = chain.qir && "
       "quern plan chain.qir | grep -c ^steps",
       0, "./chain.qir: chain nodes=1000\n1001\n1\n"},
      {"quern bench train --only mlp --rounds 3 --json t.json > /dev/null 2>&1 && "
       "/usr/bin/python3 form.py t.json train 1",
       0, "mlp layers=3 in=784 C=1024 out=10 B=128 parameters samples_s tokens_s\n"},
      {"quern bench infer --only 'out=10 B=4' --json i.json | grep -c '^mlp: best at B=4: ' && "
       "/usr/bin/python3 form.py i.json infer 1",
       0, "1\nmlp layers=3 in=784 C=1024 out=10 B=4 runs p99_ms samples_s tokens_s\n"},
      {"timeout --preserve-status -s INT 3 \"$Q\" bench gemm --rounds 101 --json cut.json > cut.txt 2> cut.err; echo "
       "$?; "
       "grep -c 'interrupted; what was measured so far' cut.err; ls cut.json.part 2> /dev/null | wc -l",
       0, "130\n1\n0\n"},
      {"quern bench ops --write .", 2, "quern bench: --write is of the suites graph and zoo\n..."},
      /* nothing but machine code is measured */
      {"QUERN_REF=1 quern bench ops --only 'sum count' --rounds 3 2>&1 | grep -c 'were not run as machine code'", 0,
       "1\n"},
      {"PATH=/none quern bench ops --only 'sum count' --rounds 3 > bench.txt 2>&1", 1, ""},
      {"grep -c 'were not run as machine code' bench.txt", 0, "1\n"},
      {"ls *.part /tmp/quern_bench_* 2>/dev/null", 2, ""},
  };
  RUN(rows);
}

static void tokenize(void **state) {
  (void)state;
  static const struct row rows[] = {
      {"quern tokenize", 2, "quern tokenize: takes 1 argument, got 0\n..."},
      {"quern tokenize bytes text.txt", 2, "quern tokenize: -o names the file to write\n..."},
      {"quern tokenize bytes -o t.bin", 2, "quern tokenize: takes a tokenizer and files\n..."},
      {"printf 'the mill the mill the millstone\\n' > text.txt; printf 'a' > more.txt", 0, ""},
      {"quern tokenize none.json text.txt -o t.bin", 1,
       "quern: none.json: cannot be opened: No such file or directory\n"},
      {"quern tokenize bytes none.txt -o t.bin", 1, "quern: none.txt: cannot be opened: No such file or directory\n"},
      {"quern tokenize bytes text.txt -o t.bin --dtype f32", 2,
       "quern tokenize: --dtype is u16 or u32, not 'f32'\n..."},
      {"quern tokenize bytes text.txt more.txt -o t.bin --append-eot", 0,
       "t.bin: 35 ids (u16) of 33 bytes, 0.94 bytes an id\n"},
      {"quern tokenize bytes --decode t.bin", 0, "the mill the mill the millstone\n<|endoftext|>a<|endoftext|>"},
      {"od -A n -t d4 -N 20 t.bin && od -A n -t u2 -j 1024 -N 4 t.bin", 0,
       "    20240520           1          35           0\n         257\n   116   104\n"},
      {"quern tokenize bytes text.txt --raw --dtype u32 -o r.bin && wc -c < r.bin", 0,
       "r.bin: 32 ids (u32) of 32 bytes, 1.00 bytes an id\n128\n"},
      {"quern tokenize bytes r.bin --raw --dtype u32 --decode -o back.txt && cmp back.txt text.txt", 0, ""},
      {"quern tokenize bytes r.bin --decode -o text.txt; cmp back.txt text.txt", 0,
       "quern: r.bin: has 128 bytes, a header takes 1024 HINT: is it raw?\n"},
      {"cp r.bin r2.bin; quern tokenize bytes r2.bin --raw --dtype u32 --decode -o ./r2.bin; cmp r.bin r2.bin", 0,
       "quern: ./r2.bin: would be read and written\n"},
      {"quern tokenize bytes r.bin --decode", 1, "quern: r.bin: has 128 bytes, a header takes 1024 HINT: is it raw?\n"},
      {"quern tokenize --train 259 text.txt -o tok.json", 0, "tok.json: 259 tokens\n"},
      {"quern tokenize --train 300 --min-count 9 text.txt -o none.json", 0, "none.json: 257 tokens\n"},
      {"quern tokenize --train 12 text.txt -o tok.json", 2,
       "quern tokenize: --train takes a number from 256 to 4194304, got '12'\n..."},
      {"quern tokenize tok.json text.txt -o t.bin && quern tokenize tok.json t.bin --decode", 0,
       "t.bin: 26 ids (u16) of 32 bytes, 1.23 bytes an id\nthe mill the mill the millstone\n"},
      {"quern tokenize --train 300 --special '<a>' --special '<b>' text.txt -o s.json > /dev/null && "
       "printf 'x<b>' | quern tokenize s.json - --parse-special -o t.bin && quern tokenize s.json - -o t.bin "
       "--append-eot < text.txt",
       1,
       "t.bin: 2 ids (u16) of 4 bytes, 2.00 bytes an id\nquern: s.json: has no special token that ends a text, such as "
       "<|endoftext|>\n"},
      {"ls *.tmp 2>/dev/null", 2, ""},
  };
  RUN(rows);
}

int main(int argc, char **argv) {
  if (argc < 1 || !find_program(argv[0])) return 1;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(help),     cmocka_unit_test(environment),     cmocka_unit_test(graph),
      cmocka_unit_test(evaluate), cmocka_unit_test(arrays_in_files), cmocka_unit_test(run_programs),
      cmocka_unit_test(escaped),  cmocka_unit_test(targets),         cmocka_unit_test(saved_programs),
      cmocka_unit_test(plans),    cmocka_unit_test(profiles),        cmocka_unit_test(bench),
      cmocka_unit_test(tokenize),
  };
  return cmocka_run_group_tests(tests, write_files, remove_files);
}
