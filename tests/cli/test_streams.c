/* tests/cli/test_streams.c -- the program where the host gives it less than usual: standard streams that are closed,
** files that may not become large
** The program is the one two folders above this test's own (the build folder); everything happens in a fresh folder.
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

static char folder[] = "/tmp/quern_streams_XXXXXX";
#include "shell.h"

#define TINY "model=lm width=16 layers=1 heads=1 data=text length=16 batch=4 warmup=0 eval_batches=2 threads=1"

/* What is compiled here is in the cache later, when no large file can be made. */
static int set_up(void **state) {
  (void)state;
  char cache[sizeof folder + 8];
  if (mkdtemp(folder) == NULL) return -1;
  snprintf(cache, sizeof cache, "%s/cache", folder);
  if (setenv("QUERN_CACHE", cache, 1) != 0) return -1;
  return shell(
      "yes 'the quick brown fox jumps over the lazy dog' | head -c 4000 > text && "
      "printf 'quern 1\\n%%0 = input name=\"x\" dtype=f32 shape=[4096]\\n%%1 = exp %%0\\nreturn y=%%1\\n' > exp.qir && "
      "quern train " TINY " out=whole steps=3 save_every=1 log_every=1 > /dev/null && "
      "quern run exp.qir --fill --out y=y.npy > /dev/null && quern eval exp.qir --set x=1 --out y=one.npy > /dev/null");
}

static int tear_down(void **state) {
  (void)state;
  char line[128];
  snprintf(line, sizeof line, "rm -r %s", folder);
  return system(line);
}

/* Descriptors 0, 1, 2 are those of the next files opened: what is printed must not end in them. */
static void closed(void **state) {
  (void)state;
  static const char *const streams[] = {"0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"};
  for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) {
    char line[2048];
    snprintf(line, sizeof line,
             "rm -rf out *.new.npy; quern train " TINY " out=out steps=3 save_every=1 log_every=1 > /dev/null %s; echo "
             "$?; grep -vc '^{.*}$' out/metrics.jsonl; wc -l < out/metrics.jsonl; "
             "cmp out/step-00000003/model.safetensors whole/step-00000003/model.safetensors; quern info out | grep -c "
             "'every digest is right'; "
             "quern run exp.qir --fill --out y=y.new.npy > /dev/null %s; echo $?; cmp y.npy y.new.npy; "
             "quern eval exp.qir --set x=1 --out y=one.new.npy > /dev/null %s; echo $?; cmp one.npy one.new.npy",
             streams[i], streams[i], streams[i]);
    expect(line, 0, "0\n0\n4\n1\n0\n0\n");
  }
}

/* As with a full disk: an error with the file's name, and nothing that is half written. */
static void limited(void **state) {
  (void)state;
  static const struct row rows[] = {
      {"quern run exp.qir --fill --quiet; quern train " TINY " out=warm steps=2 > /dev/null", 0,
       ""}, /* into the cache */
      {"ulimit -f 24; quern run exp.qir --fill --out y=large.npy", 1,
       "quern: large.npy: cannot be written: File too large\n"},
      {"ulimit -f 1; quern explain exp.qir --source -o large.c", 1,
       "quern: large.c: cannot be written: File too large\n"},
      {"ulimit -f 1; quern explain exp.qir --source > large.txt", 1, "quern: standard output cannot be written\n"},
      {"rm large.txt; ls large* *.tmp", 2, "ls: ..."},
      /* a line of metrics is there or is not */
      {"ulimit -f 600; quern train " TINY " out=cut steps=5000 save_every=0 eval_every=0 > /dev/null", 1,
       "quern: cut/metrics.jsonl: cannot be written: File too large\n"},
      {"tail -c 2 cut/metrics.jsonl; grep -vc '^{.*}$' cut/metrics.jsonl", 1, "}\n0\n"},
      {"rm -rf cut; (ulimit -f 20; quern train " TINY
       " out=cut steps=3 save_every=0 2>&1 > /dev/null | grep -v warning); ls -A cut",
       0, "quern: cut/..."},
      {"quern resume whole steps=4 > /dev/null && quern info whole | grep -c 'checkpoint: step 4'", 0, "1\n"},
  };
  RUN(rows);
}

int main(int argc, char **argv) {
  if (argc < 1 || !find_program(argv[0])) return 1;
  const struct CMUnitTest tests[] = {cmocka_unit_test(closed), cmocka_unit_test(limited)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
