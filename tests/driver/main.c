/* driver/main.c -- querntest: runs operation cases in a mode
** A case is a line such as "softmax f32,f64 4x7 axis=1"; without one on the command line, those of the .txt
** files in tests/op/ and of tests/regress.txt run. The last line gives how many passed and failed.
*/
#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver/driver.h"

enum { PATH_BYTES = 1024 };

static const struct {
  const char *name;
  mode_run *run;
  const char *help;
} modes[] = {
    {"value", mode_value, "results against NumPy and SciPy (tests/oracle/compare.py)"},
    {"grad", mode_grad, "f64 gradients against central differences"},
    {"grad2", mode_grad2, "second derivatives against differences of gradients"},
    {"jvp", mode_jvp, "forward derivatives against differences and against the gradient"},
    {"bits", mode_bits, "the same bits again, after printing and parsing, rewriting, inlining"},
    {"memory", mode_memory,
     "programs of the cpu: bytes as planned, no allocation after the first run, none interpreted"},
    {"compile", mode_compile,
     "programs of results and gradients are compiled, and not run: --device null --target sm_90"},
    {"ulp", mode_ulp, "the largest error of each function, in units in the last place (tests/driver/accuracy.def)"},
    {"coverage", mode_coverage, "every op, dtype and edge family has a case"},
    {"list", mode_list, "print the cases"},
    {"dump", mode_dump, "print the graphs of the cases"},
};

static void usage(void) {
  printf("usage: querntest [--mode MODE] [--op NAME] [--dtype DTYPE] [--cases FILE...] [SHAPES key=value...]\n"
         "       querntest bench-build\n\n"
         "SHAPES are those of the operands: 64x32,32x128; - is a scalar. With SHAPES, --op and --dtype make one "
         "case; without,\n"
         "they choose among the cases of files.\n\nmodes:\n");
  for (size_t i = 0; i < BASE_COUNT(modes); i++) printf("  %-9s %s\n", modes[i].name, modes[i].help);
  printf("\n  --root DIR     the folder that holds tests/ (default: found above the program or the current "
         "folder)\n"
         "  --python FILE  the interpreter of the reference (default /usr/bin/python3, or python3 of PATH where that "
         "lacks "
         "NumPy or SciPy)\n"
         "  --reference FILE   another reference than tests/oracle/compare.py\n"
         "  --peer FILE    ulp: a Python program that computes the same, such as tests/oracle/accuracy_torch.py\n"
         "  --keep DIR     value: leave the reference's files in DIR\n"
         "  --device NAME  value, grad, bits: ref (the evaluator, default), interp, cpu, opencl or cuda: cases become "
         "programs; ulp: interp (default) or another; memory: cpu; compile: null (default) or another\n"
         "  --target NAME  what programs are made for, such as avx2 or sm_90 (default: the device's own); "
         "compile: sm_75,sm_90 too\n"
         "  --quick        compile: kernels for CUDA many at a time and little optimized, a third of the work\n"
         "  --repeat S/N   compile: of texts that an earlier target had, every N-th, by number S; default all\n"
         "  --optimize N   0 or 1 (default) for programs\n"
         "  --share S/N    every N-th case, beginning with number S mod N, and the first case of each operation\n"
         "  --verbose      say more\n");
}

/* ---- counting ------------------------------------------------------------------------------------------ */

void tally_pass(struct tally *tally) { tally->passed++; }
void tally_skip(struct tally *tally) { tally->skipped++; }

void tally_fail(struct tally *tally, const struct test_case *c, const char *mode, const char *fmt, ...) {
  va_list args;
  tally->failed++;
  if (c->file != NULL)
    printf("FAIL %s:%d: ", c->file, c->line);
  else
    printf("FAIL ");
  printf("%s %s %s: ", c->builder->name, quern_dtype_name(c->dtype), c->text);
  va_start(args, fmt);
  vprintf(fmt, args);
  va_end(args);
  printf("\n");
  case_repro(c, mode);
}

/* ---- finding the cases --------------------------------------------------------------------------------- */

/* Goes up from a folder until tests/op is below it; path becomes that root. */
static bool root_above(char *path) {
  for (;;) {
    char probe[PATH_BYTES + 16];
    snprintf(probe, sizeof probe, "%s/tests/op", path);
    if (access(probe, R_OK) == 0) return true;
    char *slash = strrchr(path, '/');
    if (slash == NULL) return false;
    *slash = 0;
  }
}

/* The root above the program, else above the current folder. */
static bool find_root(char *path, const char *program) {
  char here[PATH_BYTES / 2];
  if (getcwd(here, sizeof here) == NULL || strlen(program) >= sizeof here) return false;
  if (program[0] == '/')
    snprintf(path, PATH_BYTES, "%s", program);
  else
    snprintf(path, PATH_BYTES, "%s/%s", here, program);
  if (strchr(program, '/') != NULL && root_above(path)) return true;
  snprintf(path, PATH_BYTES, "%s", here);
  return root_above(path);
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Reads the .txt files of tests/op in order of their names, and tests/regress.txt. */
static bool read_root(struct case_list *cases, const char *root) {
  char path[PATH_BYTES * 2], *names[64];
  size_t n = 0;
  bool ok = true;
  snprintf(path, sizeof path, "%s/tests/op", root);
  DIR *folder = opendir(path);
  if (folder == NULL) {
    fprintf(stderr, "querntest: no folder %s (HINT: --root)\n", path);
    return false;
  }
  for (struct dirent *entry; (entry = readdir(folder)) != NULL && n < BASE_COUNT(names);) {
    size_t length = strlen(entry->d_name);
    if (length > 4 && strcmp(entry->d_name + length - 4, ".txt") == 0) {
      names[n] = grab(length + 1);
      memcpy(names[n++], entry->d_name, length + 1);
    }
  }
  closedir(folder);
  qsort(names, n, sizeof *names, by_name);
  for (size_t i = 0; i < n; i++) {
    snprintf(path, sizeof path, "%s/tests/op/%s", root, names[i]);
    ok = case_read(cases, path) && ok;
    free(names[i]);
  }
  snprintf(path, sizeof path, "%s/tests/regress.txt", root);
  return case_read(cases, path) && ok;
}

/* Keeps the cases of an operation and a dtype; NULL: any. */
static bool filter(struct case_list *cases, const char *op, const char *dtype) {
  if (op != NULL && builder_find(op) == NULL) {
    const char *nearest = builder_nearest(op);
    fprintf(stderr, "querntest: unknown operation '%s'", op);
    fprintf(stderr, nearest == NULL ? "\n" : "; did you mean '%s'?\n", nearest);
    return false;
  }
  size_t n = 0;
  for (size_t i = 0; i < cases->n; i++) {
    const struct test_case *c = &cases->at[i];
    if (op != NULL && strcmp(op, c->builder->name) != 0) continue;
    if (dtype != NULL && strcmp(dtype, quern_dtype_name(c->dtype)) != 0) continue;
    cases->at[n++] = *c;
  }
  cases->n = n;
  if (n == 0) fprintf(stderr, "querntest: no such case\n");
  return n != 0;
}

/* Reads "S/N". */
static bool parse_share(const char *option, const char *text, unsigned long *start, unsigned long *every) {
  char end;
  if (sscanf(text, "%lu/%lu%c", start, every, &end) == 2 && *every != 0) return true;
  fprintf(stderr, "querntest: %s %s is not of the form S/N with N at least 1\n", option, text);
  return false;
}

/* Keeps a share "S/N" of the cases: every N-th, which N numbers S one after another go through, and the first case of each
** operation. NULL: all. */
static bool keep_share(struct case_list *cases, const char *share) {
  unsigned long start, every;
  if (share == NULL) return true;
  if (!parse_share("--share", share, &start, &every)) return false;
  bool *seen = grab(builder_count * sizeof *seen);
  size_t n = 0;
  memset(seen, 0, builder_count * sizeof *seen);
  for (size_t i = 0; i < cases->n; i++) {
    bool *first = &seen[cases->at[i].builder - builders];
    if (*first && i % every != start % every) continue;
    *first = true;
    cases->at[n++] = cases->at[i];
  }
  cases->n = n;
  free(seen);
  return true;
}

/* ---- options ------------------------------------------------------------------------------------------- */

struct command {
  struct options options;
  const char *op, *dtype;
  const char *optimize, *share, *repeat;
  bool files;       /* --cases was given */
  char words[1024]; /* SHAPES key=value ... */
  struct case_list cases;
};

/* Where the value of an option goes, or NULL. */
static const char **option_place(struct command *command, const char *name) {
  const struct {
    const char *name;
    const char **place;
  } table[] = {
      {"--mode", &command->options.mode},     {"--op", &command->op},
      {"--dtype", &command->dtype},           {"--root", &command->options.root},
      {"--python", &command->options.python}, {"--reference", &command->options.reference},
      {"--keep", &command->options.keep},     {"--device", &command->options.device},
      {"--optimize", &command->optimize},     {"--target", &command->options.target},
      {"--share", &command->share},           {"--repeat", &command->repeat},
      {"--peer", &command->options.peer},
  };
  for (size_t i = 0; i < BASE_COUNT(table); i++)
    if (strcmp(table[i].name, name) == 0) return table[i].place;
  return NULL;
}

static bool parse_options(struct command *command, int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    const char **place = option_place(command, argv[i]);
    if (place != NULL) {
      if (++i == argc) {
        fprintf(stderr, "querntest: %s needs a value\n", argv[i - 1]);
        return false;
      }
      *place = argv[i];
    } else if (strcmp(argv[i], "--verbose") == 0) {
      command->options.verbose = true;
    } else if (strcmp(argv[i], "--quick") == 0) {
      command->options.quick = true;
    } else if (strcmp(argv[i], "--cases") == 0) {
      command->files = true;
      for (; i + 1 < argc && strncmp(argv[i + 1], "--", 2) != 0; i++)
        if (!case_read(&command->cases, argv[i + 1])) return false;
    } else if (strncmp(argv[i], "--", 2) == 0) {
      fprintf(stderr, "querntest: unknown option %s (HINT: --help)\n", argv[i]);
      return false;
    } else {
      size_t n = strlen(command->words);
      snprintf(command->words + n, sizeof command->words - n, " %s", argv[i]);
    }
  }
  return true;
}

/* Fills the list of cases from what the command names. */
static bool find_cases(struct command *command) {
  char line[2048];
  if (command->words[0] == 0) {
    if (!command->files && !read_root(&command->cases, command->options.root)) return false;
    return filter(&command->cases, command->op, command->dtype) && keep_share(&command->cases, command->share);
  }
  if (command->op == NULL) {
    fprintf(stderr, "querntest: --op is needed with%s\n", command->words);
    return false;
  }
  snprintf(line, sizeof line, "%s %s%s", command->op, command->dtype == NULL ? "f64" : command->dtype, command->words);
  return case_parse(&command->cases, line, NULL, 0);
}

static mode_run *find_mode(const char *name) {
  const char *names[BASE_COUNT(modes)];
  for (size_t i = 0; i < BASE_COUNT(modes); i++) {
    if (strcmp(modes[i].name, name) == 0) return modes[i].run;
    names[i] = modes[i].name;
  }
  const char *nearest = base_nearest(name, names, BASE_COUNT(names));
  fprintf(stderr, "querntest: unknown mode '%s'", name);
  fprintf(stderr, nearest == NULL ? "\n" : "; did you mean '%s'?\n", nearest);
  return NULL;
}

int main(int argc, char **argv) {
  static struct command command;
  static char root[PATH_BYTES];
  struct tally tally = {0};
  command.options = (struct options){.mode = "value", .device = "ref"};
  command.optimize = "1";
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (argc > 1 && strcmp(argv[1], "bench-build") == 0) return bench_build();
  if (argc > 1 && strcmp(argv[1], "--help") == 0) {
    usage();
    return 0;
  }
  if (!parse_options(&command, argc, argv)) return 2;
  command.options.optimize = atoi(command.optimize);
  if (command.repeat != NULL &&
      !parse_share("--repeat", command.repeat, &command.options.repeat_start, &command.options.repeat_every))
    return 2;
  if (command.options.root == NULL && find_root(root, argv[0])) command.options.root = root;
  if (command.options.root == NULL) command.options.root = ".";
  mode_run *run = find_mode(command.options.mode);
  if (run == NULL || !find_cases(&command)) return 2;
  run(&command.options, &command.cases, &tally);
  if (tally.skipped == 0)
    printf("%zu passed, %zu failed\n", tally.passed, tally.failed);
  else
    printf("%zu passed, %zu failed, %zu skipped\n", tally.passed, tally.failed, tally.skipped);
  free(command.cases.at);
  return tally.failed == 0 ? 0 : 1;
}
