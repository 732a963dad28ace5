/* prop/main.c -- quernprop: properties of random graphs
** quernprop [--graphs N] [--seed S] [--max-nodes M]
**   checks N graphs; with 20000 or more, every op and every rewrite rule must have occurred 100 times, with 4000 or more 20
** quernprop --only SEED [--max-nodes M]
**   checks the graph of that seed again, and prints it
** quernprop --device interp|cpu|opencl|cuda [--target NAME] [--graphs N] ...
**   checks that programs of the graphs give the same bits whichever passes run, compiled or interpreted
** quernprop --plant [--graphs N]
**   checks that wrong rules are found out within N graphs each
*/
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "prop/prop.h"

enum { LEAST_NODES = 30, MOST_FAILURES = 5, BATCH = 40 };

struct options {
  uint64_t graphs, seed, max_nodes, only;
  bool has_only, plant;
  const char *device, *target; /* or NULL */
};

/* ---- one graph --------------------------------------------------------------------------------------- */

static void print_graph(quern_context *ctx, size_t n, quern_tensor *const *roots) {
  struct base_str str;
  base_str_init(&str, &ctx->heap);
  if (ir_print(ctx, &str, n, roots, NULL) == QUERN_STATUS_OK) {
    printf("%s", str.at);
  } else {
    printf("(the graph cannot be printed: %s)\n", quern_last_error());
  }
  base_str_fini(&str);
}

/* How many nodes the graph of a seed has at least. */
static size_t size_of(const struct options *options, uint64_t seed) {
  struct rng rng = {.seed = ~seed};
  return LEAST_NODES + (size_t)rng_below(&rng, (int)options->max_nodes - LEAST_NODES + 1);
}

/* Checks the graph of a seed: OK or what is wrong, reported unless quiet. nodes may be NULL. */
static quern_status run_graph(const struct options *options, uint64_t seed, bool gradient, const struct ir_rule *plant,
                              struct counts *counts, uint32_t *nodes) {
  quern_context *ctx;
  QUERN_TRY(quern_context_new(&ctx, NULL));
  size_t n = 0;
  quern_tensor **roots = NULL;
  quern_status status = gen_graph(ctx, seed, size_of(options, seed), plant, &n, &roots);
  struct check check = {.ctx = ctx,
                        .seed = seed,
                        .gradient = gradient,
                        .plant = plant,
                        .device = options->device,
                        .target = options->target,
                        .counts = counts};
  if (status == QUERN_STATUS_OK) {
    size_t found = check_count(ctx, n, roots, counts);
    if (nodes != NULL) *nodes = (uint32_t)found;
    if (options->has_only) print_graph(ctx, n, roots);
    status = check_graph(&check, n, roots);
  }
  if (status != QUERN_STATUS_OK && plant == NULL) {
    printf("\nFAILED seed %llu: %s: %s\n", (unsigned long long)seed, quern_status_name(status), quern_last_error());
    if (roots != NULL) {
      check_shrink(&check, &n, roots);
      if (check_graph(&check, n, roots) != QUERN_STATUS_OK) printf("smaller: %s\n", quern_last_error());
      print_graph(ctx, n, roots);
    }
    printf("repeat: quernprop%s%s%s%s --only %llu --max-nodes %llu\n", options->device != NULL ? " --device " : "",
           options->device != NULL ? options->device : "", options->target != NULL ? " --target " : "",
           options->target != NULL ? options->target : "", (unsigned long long)seed,
           (unsigned long long)options->max_nodes);
  }
  quern_context_free(ctx);
  return status;
}

static uint64_t seed_of(const struct options *options, uint64_t i) {
  return base_hash_u64(base_hash_u64(BASE_HASH_SEED, options->seed), i);
}

/* ---- planted defects --------------------------------------------------------------------------------- */

static quern_tensor *turn_scan(quern_context *ctx, struct ir_node *node) {
  struct ir_attrs attrs = *node->attrs;
  attrs.reverse = 0;
  return node->attrs->reverse == 0 ? NULL : IR_MAKE(ctx, IR_SCAN, &attrs, node->src[0]);
}

static quern_tensor *swap_sub(quern_context *ctx, struct ir_node *node) {
  const struct ir_node *in = node->src[0]->node;
  return in->op == IR_SUB ? IR_MAKE(ctx, IR_SUB, NULL, in->src[1], in->src[0]) : NULL;
}

/* Each is true of some values, and wrong. */
static const struct ir_rule plants[] = {
    {"loses the sign of zero", IR_ADD, true, "add(x, 0) = x", BASE_FLOAT, NULL, NULL},
    {"forgets infinity and NaN", IR_SUB, true, "sub(x, x) = 0", BASE_FLOAT, NULL, NULL},
    {"forgets NaN", IR_EQ, true, "eq(x, x) = true", BASE_FLOAT, NULL, NULL},
    {"forgets the least integer", IR_LT, true, "lt(neg(a), neg(b)) = lt(b, a)", BASE_SIGNED, NULL, NULL},
    {"gives -0 for 0", IR_NEG, true, "neg(sub(a, b)) = sub(b, a), of floats", BASE_FLOAT, swap_sub, NULL},
    {"forgets the direction of a scan", IR_SCAN, true, "scan does not depend on reverse", BASE_ANY, turn_scan, NULL},
};

static int run_plants(const struct options *options) {
  size_t found = 0;
  struct counts counts = {.rules = calloc(ir_rule_count, sizeof *counts.rules)};
  if (counts.rules == NULL) return EXIT_FAILURE;
  for (size_t p = 0; p < BASE_COUNT(plants); p++) {
    uint64_t i = 0;
    while (i < options->graphs &&
           run_graph(options, seed_of(options, i), false, &plants[p], &counts, NULL) == QUERN_STATUS_OK)
      i++;
    bool caught = i < options->graphs;
    found += caught;
    printf("%-36s %s", plants[p].name, caught ? "found" : "MISSED");
    if (caught) printf(" at graph %llu: %s", (unsigned long long)i, quern_last_error());
    printf("\n");
  }
  free(counts.rules);
  printf("%zu of %zu planted defects found\n", found, BASE_COUNT(plants));
  return found == BASE_COUNT(plants) ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* ---- many graphs ------------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

/* How often everything must occur in so many graphs. */
static unsigned bar_of(uint64_t graphs) { return graphs >= 20000 ? 100 : graphs >= 4000 ? 20 : 0; }

/* Prints the least of some counts, and those under the bar; gives how many are. */
static size_t print_least(const char *what, size_t n, const uint64_t *counts, const char *const *names, unsigned bar) {
  size_t least = 0, rare = 0;
  for (size_t i = 0; i < n; i++) {
    if (counts[i] < counts[least]) least = i;
  }
  printf("%-6s %4zu, the rarest %s: %llu\n", what, n, names[least], (unsigned long long)counts[least]);
  for (size_t i = 0; i < n; i++) {
    if (counts[i] >= bar) continue;
    printf("  RARE: %s %s occurred %llu times, must be %u\n", what, names[i], (unsigned long long)counts[i], bar);
    rare++;
  }
  return rare;
}

static size_t print_counts(const struct options *options, const struct counts *counts, uint32_t *nodes) {
  const char *names[IR_OP_COUNT], **rules = malloc(ir_rule_count * sizeof *rules);
  if (rules == NULL) return 1;
  for (int op = 0; op < IR_OP_COUNT; op++) names[op] = ir_ops[op].name;
  for (size_t i = 0; i < ir_rule_count; i++) rules[i] = ir_rules[i].name;
  unsigned bar = bar_of(options->graphs);
  size_t rare = print_least("ops", IR_OP_COUNT, counts->ops, names, bar);
  rare += print_least("rules", ir_rule_count, counts->rules, rules, bar);
  qsort(nodes, options->graphs, sizeof *nodes, by_size);
  printf("nodes  median %u, at most %u; gradients %llu\n", nodes[options->graphs / 2], nodes[options->graphs - 1],
         (unsigned long long)counts->gradients);
  free(rules);
  return rare;
}

static int run_all(const struct options *options) {
  struct counts counts = {.rules = calloc(ir_rule_count, sizeof *counts.rules)};
  uint32_t *nodes = calloc(options->graphs, sizeof *nodes);
  if (counts.rules == NULL || nodes == NULL) {
    free(nodes);
    free(counts.rules);
    return EXIT_FAILURE;
  }
  uint64_t failed = 0, done = 0;
  bool shows = isatty(STDERR_FILENO) != 0;
  for (; done < options->graphs && failed < MOST_FAILURES; done++) {
    uint64_t seed = options->has_only ? options->only : seed_of(options, done);
    bool gradient = options->has_only || done % 20 == 0;
    failed += run_graph(options, seed, gradient, NULL, &counts, &nodes[done]) != QUERN_STATUS_OK;
    if (shows && done % 64 == 0)
      fprintf(stderr, "\r%llu of %llu graphs", (unsigned long long)done, (unsigned long long)options->graphs);
  }
  if (shows) fprintf(stderr, "\r                                \r");
  if (done < options->graphs) printf("stopped after %llu failures\n", (unsigned long long)failed);
  size_t rare = print_counts(options, &counts, nodes);
  free(nodes);
  free(counts.rules);
  printf("%llu passed, %llu failed\n", (unsigned long long)(done - failed), (unsigned long long)(failed + rare));
  return failed + rare == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* Programs of many graphs at once; of a batch that fails, each graph is checked alone. */
static int run_device(const struct options *options) {
  struct counts counts = {.rules = calloc(ir_rule_count, sizeof *counts.rules)};
  uint64_t failed = 0, done = 0;
  if (counts.rules == NULL) return EXIT_FAILURE;
  for (uint64_t first = 0; first < options->graphs && failed < MOST_FAILURES; first += BATCH) {
    uint64_t n = BASE_MIN(BATCH, options->graphs - first);
    struct seeded graphs[BATCH];
    quern_context *ctx;
    if (quern_context_new(&ctx, NULL) != QUERN_STATUS_OK) {
      free(counts.rules);
      return EXIT_FAILURE;
    }
    quern_status status = QUERN_STATUS_OK;
    for (uint64_t i = 0; i < n && status == QUERN_STATUS_OK; i++) {
      quern_tensor **roots;
      graphs[i].seed = options->has_only ? options->only : seed_of(options, first + i);
      status = gen_graph(ctx, graphs[i].seed, size_of(options, graphs[i].seed), NULL, &graphs[i].n, &roots);
      graphs[i].roots = roots;
    }
    if (status == QUERN_STATUS_OK && !options->has_only)
      status = check_device(options->device, options->target, ctx, n, graphs);
    quern_context_free(ctx);
    uint64_t before = failed;
    for (uint64_t i = 0; i < n && (status != QUERN_STATUS_OK || options->has_only); i++)
      failed += run_graph(options, graphs[i].seed, false, NULL, &counts, NULL) != QUERN_STATUS_OK;
    if (status != QUERN_STATUS_OK && failed == before) {
      printf("FAILED %llu graphs together, but none alone: %s\n", (unsigned long long)n, quern_last_error());
      failed++;
    }
    done += n;
  }
  free(counts.rules);
  printf("%llu passed, %llu failed\n", (unsigned long long)(done - BASE_MIN(done, failed)), (unsigned long long)failed);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* ---- options ----------------------------------------------------------------------------------------- */

static bool read_number(const char *text, uint64_t least, uint64_t most, uint64_t *value) {
  char *end;
  errno = 0;
  *value = text == NULL ? 0 : strtoull(text, &end, 10);
  return text != NULL && *text >= '0' && *text <= '9' && *end == '\0' && errno == 0 && *value >= least &&
         *value <= most;
}

int main(int argc, char **argv) {
  struct options options = {.graphs = 1000, .seed = 1, .max_nodes = 90};
  for (int i = 1; i < argc; i++) {
    const char *next = i + 1 < argc ? argv[i + 1] : NULL;
    bool ok = true;
    if (strcmp(argv[i], "--plant") == 0) {
      options.plant = true;
      continue;
    } else if (strcmp(argv[i], "--graphs") == 0) {
      ok = read_number(next, 1, 100000000, &options.graphs);
    } else if (strcmp(argv[i], "--seed") == 0) {
      ok = read_number(next, 0, UINT64_MAX, &options.seed);
    } else if (strcmp(argv[i], "--max-nodes") == 0) {
      ok = read_number(next, LEAST_NODES, 100000, &options.max_nodes);
    } else if (strcmp(argv[i], "--device") == 0) {
      ok = next != NULL;
      options.device = next;
    } else if (strcmp(argv[i], "--target") == 0) {
      ok = next != NULL && options.device != NULL;
      options.target = next;
    } else if (strcmp(argv[i], "--only") == 0) {
      ok = options.has_only = read_number(next, 0, UINT64_MAX, &options.only);
    } else {
      ok = false;
    }
    if (!ok) {
      fprintf(stderr,
              "quernprop: wrong argument %s %s\nusage: quernprop [--graphs N] [--seed S] [--max-nodes M] "
              "[--only SEED] [--device NAME [--target NAME]] [--plant]\n",
              argv[i], next != NULL ? next : "");
      return 2;
    }
    i++;
  }
  if (options.has_only) options.graphs = 1;
  if (options.device != NULL) return run_device(&options);
  return options.plant ? run_plants(&options) : run_all(&options);
}
