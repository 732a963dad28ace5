/* tests/cli/test_train.c -- the commands of training: what they print, on a terminal and piped, how they end, what they leave
** The program is the one two folders above this test's own (the build folder); everything happens in a fresh folder.
*/
#define _XOPEN_SOURCE 700 /* realpath, posix_openpt */
#define _DEFAULT_SOURCE   /* TIOCSWINSZ */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <regex.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/quern_train_XXXXXX";
static char root[PATH_MAX];

#include "shell.h"

/* ---- running ---------------------------------------------------------------------------------------------- */

/* A process of the program whose output is read from a pipe or a terminal. */
struct child {
  pid_t pid;
  int fd;
  size_t n; /* bytes in text */
};

/* Some containers have no pseudo-terminals. */
static bool has_terminals(void) {
  int fd = posix_openpt(O_RDWR | O_NOCTTY), other = -1;
  if (fd >= 0 && grantpt(fd) == 0 && unlockpt(fd) == 0) other = open(ptsname(fd), O_RDWR | O_NOCTTY);
  if (other < 0) fprintf(stderr, "skipped: this machine has no pseudo-terminals: %s\n", strerror(errno));
  if (other >= 0) close(other);
  if (fd >= 0) close(fd);
  return other >= 0;
}

static void start(struct child *child, int columns, const char *const *arguments) {
  static const int usual[] = {SIGHUP, SIGPIPE, SIGXCPU};
  int out = -1, pipes[2];
  *child = (struct child){0};
  text[0] = 0;
  if (columns > 0) {
    struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    child->fd = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(child->fd >= 0 && grantpt(child->fd) == 0 && unlockpt(child->fd) == 0);
    out = open(ptsname(child->fd), O_RDWR | O_NOCTTY);
    assert_true(out >= 0 && ioctl(out, TIOCSWINSZ, &size) == 0);
  } else {
    assert_int_equal(pipe(pipes), 0);
    child->fd = pipes[0];
    out = pipes[1];
  }
  child->pid = fork();
  assert_true(child->pid >= 0);
  if (child->pid == 0) {
    close(child->fd);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    close(out);
    setenv("TERM", "xterm", 1);
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) signal(usual[i], SIG_DFL); /* whoever started this test */
    if (chdir(folder) == 0) execv(program, (char *const *)arguments);
    _exit(127);
  }
  close(out);
}

/* Reads until the words are there, or to the end. */
static bool read_until(struct child *child, const char *words) {
  while (words == NULL || strstr(text, words) == NULL) {
    ssize_t n = child->n < TEXT - 1 ? read(child->fd, text + child->n, TEXT - 1 - child->n) : 0;
    if (n <= 0) return false; /* a terminal that nobody writes to any more is an error of reading */
    child->n += (size_t)n;
    text[child->n] = 0;
  }
  return true;
}

/* Reads the rest; the status of waitpid. */
static int finish(struct child *child) {
  int status = 0;
  (void)read_until(child, NULL);
  close(child->fd);
  assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
  return status;
}

/* The same without reading it. */
static int finish_unread(struct child *child) {
  int status = 0;
  close(child->fd);
  assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
  return status;
}

/* How many lines of text match. */
static int matching(const char *pattern) {
  regex_t regex;
  int n = 0;
  assert_int_equal(regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB), 0);
  for (const char *at = text; *at != 0;) {
    size_t length = strcspn(at, "\n");
    char line[4096];
    snprintf(line, sizeof line, "%.*s", (int)length, at);
    n += regexec(&regex, line, 0, NULL, 0) == 0;
    at += length + (at[length] == '\n');
  }
  regfree(&regex);
  return n;
}

#define TINY "model=lm width=16 layers=1 heads=1 data=text length=16 batch=4 warmup=0 eval_batches=2 threads=1"

static int set_up(void **state) {
  (void)state;
  if (mkdtemp(folder) == NULL || getcwd(root, sizeof root) == NULL || setenv("R", root, 1) != 0) return -1;
  char cache[sizeof folder + 8];
  snprintf(cache, sizeof cache, "%s/cache", folder);
  if (setenv("QUERN_CACHE", cache, 1) != 0) return -1;
  return shell("yes 'the quick brown fox jumps over the lazy dog' | head -c 4000 > text && "
               "printf 'model = lm # small\\nwidth = 16\\nlayers = 1\\nheads = 1\\ndata = text\\nlength = 16\\nbatch = "
               "4\\nwarmup = 0\\nthreads = 1\\n' > tiny.cfg");
}

static int tear_down(void **state) {
  (void)state;
  char line[128];
  snprintf(line, sizeof line, "rm -r %s", folder);
  return system(line);
}

/* ---- tests ---------------------------------------------------------------------------------------------------- */

static void wrong_calls(void **state) {
  (void)state;
  static const struct row rows[] = {
      {"quern train", 2,
       "quern train: takes a configuration: a file, a preset (adder, chars), or key=value ...\n  HINT: quern help "
       "train\n"},
      {"quern train adder btach=3", 2,
       "quern train: there is no key 'btach'; did you mean 'batch'?\n  HINT: quern help train\n"},
      {"quern train addre", 2,
       "quern train: there is no task 'addre'; there are adder, chars; did you mean 'adder'?\n..."},
      {"quern train none.cfg", 1, "quern: none.cfg: there is no such file\n"},
      {"quern train adder steps=0", 2, "quern train: steps = '0': must be a whole number from 1 ..."},
      {"quern train adder optimizer=adma", 2, "quern train: optimizer = 'adma': must be adamw, adam, sgd, lion\n..."},
      {"quern train adder chars", 2, "quern train: expected key=value, got 'chars'\n..."},
      {"quern train adder --memory lots", 2, "quern train: memory = 'lots': must be bytes such as 64KiB or 1.5GiB..."},
      {"printf 'batch = 3\\nlayres = 2\\n' > bad.cfg; quern train bad.cfg", 1,
       "quern: bad.cfg:2: there is no key 'layres'..."},
      {"quern train chars", 1, "quern: data: ..."},
      {"quern train " TINY " data=none", 1, "quern: data: none: No such file or directory\n"},
      {"quern resume", 2, "quern resume: takes 1 argument, got 0\n..."},
      {"quern resume none", 1, "quern: none: there is no checkpoint in it\n"},
      {"quern eval-loss none", 1, "quern: none: there is no checkpoint in it\n"},
      {"quern report none", 1,
       "quern: train_report: none is no run's folder: it has neither metrics.jsonl nor run.json\n"},
      {"quern generate none", 2, "quern generate: --prompt gives the beginning of the text\n..."},
      {"quern generate none --prompt x --top-p 2", 2,
       "quern generate: --top-p takes a number from 1e-06 to 1, got '2'\n..."},
      {"quern generate none --prompt x --tokens 0", 2, "quern generate: --tokens takes a number from 1 to..."},
      {"quern generate none --prompt x", 1, "quern: 'none': there is no checkpoint in it\n"},
      {"quern generate none divice=cpu --prompt x", 2, "quern generate: expected device=NAME, got 'divice=cpu'\n..."},
      {"quern train --help | grep -c '^  batch  '", 0, "1\n"},
      {"quern help resume", 0, "usage: quern resume DIR [key=value ...]..."},
  };
  RUN(rows);
}

#define PLAIN                                                                                                          \
  "^step [0-9]+/[0-9]+ \\| loss [0-9]+\\.[0-9]{4} \\| norm [0-9]+\\.[0-9]{2} \\| lr [0-9]\\.[0-9]{2}e[-+][0-9]{2} "    \
  "\\| [0-9]+\\.[0-9] ms( \\| [0-9]+\\.[0-9]% of peak)? \\| [0-9]+(\\.[0-9]+)? tok/s$"

static void piped(void **state) {
  (void)state;
  assert_int_equal(shell("quern train tiny.cfg out=a steps=7 eval_every=3 save_every=4 log_every=2 eval_batches=2"), 0);
  assert_int_equal(matching(PLAIN), 5); /* the first, every second, the last */
  assert_int_equal(matching("^step 1/7 "), 1);
  assert_int_equal(matching("^step 2/7 "), 1);
  assert_int_equal(matching("^step 7/7 "), 1);
  assert_int_equal(matching("^eval (3|6|7)/7 \\| loss [0-9.]+ \\| 8 samples \\| [0-9.]+ s( \\| best)?$"), 3);
  assert_int_equal(matching("^saved a/step-0000000(4|7) \\([0-9]+ ms\\)$"), 2);
  assert_int_equal(matching("^model    lm: [0-9]+ parameters, f32$"), 1);
  assert_int_equal(matching("^memory   [0-9.]+ [KM]iB planned: state .*, step .*"), 1);
  assert_int_equal(matching("^start    first kernel after [0-9.]+ s \\((cold|warm): .*\\)$"), 1);
  assert_int_equal(
      matching(
          "^memory     [0-9.]+ [KM]iB planned, [0-9.]+ [KM]iB used at most(, [0-9.]+ [KM]iB by the largest child)?$"),
      1);
  assert_int_equal(matching("^report     a/report.html$"), 1);
  assert_null(strchr(text, '\r'));
  static const struct row rows[] = {
      {"wc -l < a/metrics.jsonl", 0, "10\n"},
      {"/usr/bin/python3 $R/tests/train/report_check.py a/report.html loss lr throughput norm memory kernels config "
       "run machine",
       0, "whole\n"},
      {"rm a/report.html; quern report a | sed -n '1s/[0-9.]*//g;1p;$p'", 0,
       "loss:  at step ,  at step \nreport: a/report.html\n"},
      {"quern info a | head -2 | tail -1", 0, "checkpoint: step 7, seed 0x0000000000000000, cursor..."},
      {"quern resume a | grep '^all'", 0, "all 7 steps were done before; more of them: quern resume a steps=14\n"},
      {"quern resume a batch=8", 1, "quern: ..."},
      {"ls a > before; quern eval-loss a > said; ls a | diff before - && grep -cE '^step 7 \\| loss [0-9.]+ \\| "
       "perplexity "
       "[0-9.]+ \\| [0-9]+ samples \\| [0-9.]+ s$' said",
       0, "1\n"},
      {"yes abc | head -c 500 > other; quern eval-loss a --data other --data text | grep -c perplexity", 0, "1\n"},
      {"quern eval-loss a --data nothing", 1, "quern: ..."},
      {"quern train adder width=16 heads=1 batch=8 steps=1 eval_batches=1 out=sum > /dev/null; quern eval-loss sum "
       "--data text",
       2, "quern eval-loss: --data: the task adder makes its own\n  HINT: quern help eval-loss\n"},
  };
  RUN(rows);
}

/* A run that was cut in two has the parameters of one that was not. */
static void resumed(void **state) {
  (void)state;
  static const struct row rows[] = {
      {"quern train " TINY " out=whole steps=6 schedule=constant > /dev/null; quern train " TINY
       " out=part steps=4 schedule=constant > /dev/null; quern resume part steps=6 threads=2 | grep -c '^goes on after "
       "step 4$'",
       0, "1\n"},
      {"cmp whole/step-00000006/model.safetensors part/step-00000006/model.safetensors && grep -c loss "
       "part/metrics.jsonl",
       0, "8\n"},
      {"mv part moved && quern resume moved steps=7 | grep '^checkpoint'", 0, "checkpoint moved/step-00000007\n"},
  };
  RUN(rows);
}

static void interrupted(void **state) {
  (void)state;
  static const struct {
    int number;
    const char *out;
  } ends[] = {{SIGINT, "i"}, {SIGTERM, "t"}, {SIGHUP, "hup"}, {SIGXCPU, "xcpu"}};
  for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
    char out[32], line[64];
    const char *arguments[] = {"quern",           "train",       "tiny.cfg",     out,
                               "steps=100000000", "log_every=1", "save_every=0", NULL};
    struct child child;
    snprintf(out, sizeof out, "out=%s", ends[i].out);
    start(&child, 0, arguments);
    assert_true(read_until(&child, "step 3/"));
    assert_int_equal(kill(child.pid, ends[i].number), 0);
    assert_int_equal(kill(child.pid, ends[i].number), 0); /* at once: the same press, sent to the group too */
    int status = finish(&child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 128 + ends[i].number) fail_msg("status %x:\n%s", status, text);
    assert_int_equal(matching("^quern: ends after this step, with a checkpoint; once more: at once$"), 1);
    assert_int_equal(matching("^stopped after step [0-9]+ of 100000000$"), 1);
    snprintf(line, sizeof line, "^go on      quern resume %s$", ends[i].out);
    assert_int_equal(matching(line), 1);
    int told = matching("^step "), saved = 0;
    assert_int_equal(sscanf(strstr(text, "stopped after step "), "stopped after step %d", &saved), 1);
    assert_int_equal(told, saved); /* all were told, and the last was saved */
    snprintf(line, sizeof line, "quern resume %s steps=%d | grep -c '^done: 1 steps'", ends[i].out, saved + 1);
    assert_int_equal(shell(line), 0);
  }
}

/* A terminal is closed, then somebody ends the process: that is the first time by hand, and the step is waited for. */
static void hung_up_and_ended(void **state) {
  (void)state;
  static const char *const arguments[] = {"quern",         "train",     "model=modern:128x2", "data=text",
                                          "length=64",     "batch=4",   "warmup=0",           "out=both",
                                          "device=interp", "threads=1", "steps=900",          NULL};
  struct child child;
  start(&child, 0, arguments);
  assert_true(read_until(&child, "start "));
  assert_int_equal(kill(child.pid, SIGHUP), 0);
  nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL); /* no echo of the first */
  (void)kill(child.pid, SIGTERM);
  int status = finish(&child);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 128 + SIGHUP) fail_msg("status %x:\n%s", status, text);
  assert_int_equal(matching("^stopped after step [0-9]+ of 900$"), 1);
}

/* Nobody reads on: the run ends as after Ctrl-C, with its last step saved. What was ignored from the start, as by
** nohup, stays so. */
static void left_alone(void **state) {
  (void)state;
  static const char *const arguments[] = {"quern",           "train",        "tiny.cfg",    "out=pipe",
                                          "steps=100000000", "save_every=0", "log_every=1", NULL};
  struct child child;
  start(&child, 0, arguments);
  assert_true(read_until(&child, "step 3/"));
  int status = finish_unread(&child);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 128 + SIGPIPE) fail_msg("status %x:\n%s", status, text);
  static const struct row rows[] = {
      {"quern info pipe | grep -c 'every digest is right'", 0, "1\n"},
      {"test $(grep -c '\"loss\"' pipe/metrics.jsonl) = $(quern info pipe | sed -n 's/^checkpoint: step "
       "\\([0-9]*\\),.*/\\1/p')",
       0, ""},
      {"(trap '' HUP; exec \"$Q\" train tiny.cfg out=nohup steps=100000 save_every=0 log_every=1 > said 2>&1) & "
       "until grep -qs '^step 3/' said; do kill -0 $! || break; done; kill -HUP $!; kill -HUP $!; "
       "n=$(grep -c ^step said); until test $(grep -c ^step said) -gt $((n + 2)); do kill -0 $! || break; done; "
       "kill -TERM $!; wait $!; echo $?; grep -c ^stopped said",
       0, "143\n1\n"},
  };
  RUN(rows);
}

/* The second one does not wait: a step of this takes long. */
static void interrupted_twice(void **state) {
  (void)state;
  static const char *const arguments[] = {
      "quern",    "train",   "model=modern:256x4", "data=text", "length=128", "batch=16",
      "warmup=0", "out=two", "device=interp",      "threads=1", "steps=9",    NULL};
  struct child child;
  start(&child, 0, arguments);
  assert_true(read_until(&child, "start "));
  assert_int_equal(kill(child.pid, SIGINT), 0);
  assert_true(read_until(&child, "once more: at once"));
  nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL); /* no person is faster */
  assert_int_equal(kill(child.pid, SIGINT), 0);
  int status = finish(&child);
  if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGINT) fail_msg("status %x:\n%s", status, text);
}

/* The most columns between carriage returns and line feeds, of rows that begin with a bar or a number. */
static int widest_live(int *rows) {
  int widest = 0;
  *rows = 0;
  for (const char *at = text; *at != 0;) {
    size_t length = strcspn(at, "\r\n");
    int width = 0;
    bool live = at > text && at[-1] == '\r' && (at[0] == '[' || at[0] == ' ' || (at[0] >= '0' && at[0] <= '9'));
    for (size_t i = 0; i < length; i++) {
      if (at[i] == '\033') { /* ESC [ K */
        i += 2;
        continue;
      }
      width += ((unsigned char)at[i] & 0xc0) != 0x80;
    }
    *rows += live;
    if (live && width > widest) widest = width;
    at += length + (at[length] != 0);
  }
  return widest;
}

static void on_terminal(void **state) {
  (void)state;
  static const int widths[] = {140, 80, 33, 9};
  if (!has_terminals()) skip();
  for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
    char out[32];
    const char *arguments[] = {"quern", "train", "tiny.cfg", out, "steps=12", "eval_every=4", "save_every=4", NULL};
    struct child child;
    int rows;
    snprintf(out, sizeof out, "out=w%d", widths[i]);
    setenv("LC_ALL", i % 2 == 0 ? "C.UTF-8" : "C", 1);
    start(&child, widths[i], arguments);
    int status = finish(&child), widest = widest_live(&rows);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail_msg("status %x:\n%s", status, text);
    if (widest >= widths[i] || rows < 2) fail_msg("%d rows, %d of %d columns:\n%s", rows, widest, widths[i], text);
    assert_int_equal(matching("^step "), 0);
    assert_int_equal(matching("eval (4|8|12)/12 "), 3);
    if (widths[i] == 140)
      assert_int_equal(widest > 80 && strstr(text, "12/12  loss ") != NULL && strstr(text, " left") != NULL, 1);
  }
  assert_int_equal(unsetenv("LC_ALL"), 0);
}

static void on_no_terminal(void **state) {
  (void)state;
  static const char *const arguments[] = {"quern", "train", "tiny.cfg", "out=dumb", "steps=2", NULL};
  struct child child;
  setenv("QUERN_SEED", "0", 1);
  start(&child, 0, arguments);
  assert_int_equal(finish(&child), 0);
  assert_null(strchr(text, '\r'));
  unsetenv("QUERN_SEED");
}

/* Whether text is valid UTF-8, by iconv. */
static void generated(void **state) {
  (void)state;
  static const struct row rows[] = {
      {"quern train " TINY
       " out=g steps=30 length=32 > /dev/null && quern generate g --prompt 'the ' --tokens 20 --seed 3 > one && "
       "quern generate g --prompt 'the ' --tokens 20 --seed 3 --threads 2 | cmp - one && head -c 4 one",
       0, "the "},
      {"quern generate g --prompt 'the ' --tokens 20 --seed 3 --no-cache | cmp - one && iconv -f UTF-8 -t UTF-8 one | "
       "wc -l > "
       "lines && quern generate g --prompt 'the ' --tokens 20 --seed 4 | cmp -s - one; echo $?",
       0, "1\n"},
      {"quern generate g --prompt t --tokens 20 --temperature 5 --seed 9 | iconv -f UTF-8 -t UTF-8 > /dev/null; echo "
       "$?",
       0, "0\n"},
      {"quern generate g --prompt 'the ' --tokens 5 --temperature 0 > zero; quern generate g --prompt 'the ' --tokens "
       "5 "
       "--top-k 1 | cmp - zero; echo $?",
       0, "0\n"},
      {"quern generate g --prompt '' --tokens 3 > empty; echo $?", 0, "0\n"},
      {"quern generate g --prompt 'the ' --tokens 20 --seed 3 --device interp | cmp - one && "
       "quern generate g device=interp --prompt 'the ' --tokens 20 --seed 3 | cmp - one",
       0, ""},
      {"quern generate g --prompt t --device frobnicate", 2, "quern generate: --device: there is no 'frobnicate'\n..."},
      {"quern generate g --prompt t device=frobnicate", 2, "quern generate: device: there is no 'frobnicate'\n..."},
      {"quern generate g --prompt 'the ' --tokens 6 --times 2>&1 > /dev/null | sed 's/: [0-9.]* ms$/: T/; s/[0-9.]* ms "
       "each/T/'",
       0, "prompt of 4 tokens: T\nafter 4 to 7 tokens: 4, T\nafter 8 to 15 tokens: 2, T\n"},
      {"quern generate g --prompt 'the ' --tokens 1000 > many", 0,
       "quern: the model has room for 32 tokens, which ends the text\n"},
      {"quern generate g --prompt 'the quick brown fox jumps over the lazy dog'", 1,
       "quern: --prompt has 43 tokens; the model has room for 32\n"},
  };
  RUN(rows);
}

/* A plan of a configuration runs nothing. */
static void planned(void **state) {
  (void)state;
  static const struct row rows[] = {
      {"quern plan tiny.cfg out=plan steps=5 > said; ls plan 2>&1 | grep -c cannot; grep -cE "
       "'^(model|data|batch|memory|kernels|eval|work)  ' "
       "said; grep -c 'without a limit$' said; grep -c 'the smallest there is$' said",
       0, "1\n7\n1\n1\n"},
      {"quern plan adder btach=1", 2, "quern plan: there is no key 'btach'; did you mean 'batch'?\n..."},
      {"quern plan adder --memory 1KiB", 1, "quern: memory = 1.0 KiB: the run needs ..."},
      {"quern plan none.qir", 1, "quern: none.qir: cannot be opened: No such file or directory\n"},
      {"printf 'quern 1\n%%0 = input name=\"x\" dtype=f32 shape=[2]\n%%1 = exp %%0\nreturn y=%%1\n' > graph; quern "
       "plan graph "
       "| grep -c exp",
       0, "1\n"},
      {"quern plan graph h", 2, "quern plan: takes at most 1 graph, 'h' is one more argument\n..."},
  };
  RUN(rows);
}

/* A limit holds for the whole process. */
static void limited(void **state) {
  (void)state;
  static const struct row rows[] = {
      {"quern train " TINY " out=m steps=2 --memory 1MiB", 1, "quern: ..."},
      {"quern train " TINY " out=m steps=2 --memory 1GiB | grep -c '(limit 1.0 GiB)$'", 0, "1\n"},
      {"quern train " TINY " out= steps=2 | grep -c '^done: 2 steps'; ls run 2>&1 | grep -c cannot", 0, "1\n1\n"},
  };
  RUN(rows);
}

int main(int argc, char **argv) {
  if (argc < 1 || !find_program(argv[0])) return 1;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(wrong_calls), cmocka_unit_test(piped),          cmocka_unit_test(resumed),
      cmocka_unit_test(interrupted), cmocka_unit_test(left_alone),     cmocka_unit_test(interrupted_twice),
      cmocka_unit_test(on_terminal), cmocka_unit_test(on_no_terminal), cmocka_unit_test(generated),
      cmocka_unit_test(limited),     cmocka_unit_test(planned),        cmocka_unit_test(hung_up_and_ended)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
