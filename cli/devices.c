/* cli/devices.c -- the command devices: what programs can be compiled for, and what the CPU can do */
#include <string.h>

#include "cli.h"

/* The device of a name, or why it is not there. */
static int print_device(const char *name) {
  quern_device *device;
  quern_device_info d = {.size = sizeof d};
  char texts[5][24];
  quern_status status = quern_device_open(&device, name);
  if (status == QUERN_STATUS_UNSUPPORTED) {
    printf("%-8s %-10s %7s %9s %9s %9s %9s %9s  %s\n", name, "-", "", "", "", "", "", "", quern_last_error());
    return CLI_OK;
  }
  if (status == QUERN_STATUS_OK) status = quern_device_get_info(device, &d);
  const int64_t bytes[] = {d.caches[0], d.caches[1], d.caches[2], d.total_bytes, d.own_memory ? d.free_bytes : 0};
  for (int i = 0; i < 5; i++) {
    if (bytes[i] > 0 || i < 3)
      cli_bytes_text(texts[i], bytes[i]);
    else
      snprintf(texts[i], sizeof texts[i], "-");
  }
  if (status == QUERN_STATUS_OK)
    printf("%-8s %-10s %7d %9s %9s %9s %9s %9s  %s\n", d.name, d.target, d.threads, texts[0], texts[1], texts[2],
           texts[3], texts[4], d.detail);
  quern_device_free(device);
  return status == QUERN_STATUS_OK ? CLI_OK : cli_fail_last("devices");
}

/* Calls a function for every device, of those that are alike for the first; of a kind that has none, for the first,
** too. */
static int for_each(int (*visit)(const char *name, bool again), bool again) {
  int status = CLI_OK;
  for (size_t k = 0; quern_device_kind(k) != NULL && status == CLI_OK; k++) {
    const char *kind = quern_device_kind(k);
    bool alike = strcmp(kind, "interp") == 0 || strcmp(kind, "null") == 0;
    size_t n = alike ? 1 : quern_device_count(kind);
    for (size_t i = 0; (i < n || i == 0) && status == CLI_OK; i++) {
      char name[32];
      snprintf(name, sizeof name, i == 0 ? "%s" : "%s:%zu", kind, i);
      status = visit(name, again);
    }
  }
  return status;
}

static int visit_device(const char *name, bool again) {
  (void)again;
  return print_device(name);
}

static int print_devices(void) {
  quern_device *best;
  char why[512];
  quern_device_info info = {.size = sizeof info};
  printf("%-8s %-10s %7s %9s %9s %9s %9s %9s  %s\n", "device", "target", "threads", "L1", "L2", "L3", "memory", "free",
         "");
  int status = for_each(visit_device, false);
  if (status != CLI_OK) return status;
  if (quern_device_open(&best, "auto") != QUERN_STATUS_OK) return cli_fail_last("devices");
  snprintf(why, sizeof why, "%s", quern_last_error());
  if (quern_device_get_info(best, &info) != QUERN_STATUS_OK) return cli_fail_last("devices");
  bool cpu = strcmp(info.kind, "cpu") == 0;
  printf("auto is %s%s%s\n", info.name, cpu ? ": " : "", cpu ? why : "");
  quern_device_free(best);
  return CLI_OK;
}

static void print_limits(const quern_limits *l) {
  static const char *const levels[QUERN_LEVELS] = {"L1", "L2", "L3", "DRAM"};
  char bytes[24];
  printf("\nthe CPU with %d thread%s, as measured:\n", l->threads, l->threads == 1 ? "" : "s");
  printf("  f32 multiply and add  %9.1f GFLOP/s\n", l->flops_f32 * 1e-9);
  printf("  f64 multiply and add  %9.1f GFLOP/s\n", l->flops_f64 * 1e-9);
  for (int i = 0; i < QUERN_LEVELS; i++)
    printf("  reading %-4s          %9.1f GB/s   %s\n", levels[i], l->bandwidth[i] * 1e-9,
           i + 1 < QUERN_LEVELS ? cli_bytes_text(bytes, l->bytes[i]) : "");
  printf("  copying in DRAM       %9.1f GB/s   bytes read and written\n", l->copy * 1e-9);
  printf("  an empty kernel       %9.2f us\n", l->launch * 1e6);
}

/* Of a GPU: products, memory, launches. */
static void print_gpu(const char *name, const quern_limits *l) {
  static const char *const names[] = {"f32", "tf32", "bf16", "f16", "f64"};
  const double rates[] = {l->flops_f32, l->flops_tf32, l->flops_bf16, l->flops_f16, l->flops_f64};
  printf("\ndevice %s, as measured:\n", name);
  for (int i = 0; i < 5; i++)
    if (rates[i] > 0) printf("  products of %-4s      %9.1f TFLOP/s\n", names[i], rates[i] * 1e-12);
  printf("  copying in memory     %9.1f GB/s   bytes read and written\n", l->copy * 1e-9);
  printf("  copying in its cache  %9.1f GB/s\n", l->bandwidth[0] * 1e-9);
  printf("  the least launch      %9.2f us\n", l->launch * 1e6);
}

/* Those of which nothing can be measured, or which are not there, are left out. */
static int visit_limits(const char *name, bool again) {
  quern_limits limits = QUERN_INIT(quern_limits);
  if (strcmp(name, "cpu") == 0) return CLI_OK;
  quern_status status = quern_device_limits_of(&limits, name, again);
  if (status == QUERN_STATUS_OK) print_gpu(name, &limits);
  return status == QUERN_STATUS_OK || status == QUERN_STATUS_UNSUPPORTED ? CLI_OK : cli_fail_last("limits");
}

static int run(const struct cli_call *call) {
  quern_limits limits = QUERN_INIT(quern_limits);
  int64_t threads = 0;
  bool cpu = cli_has(call, "--cpu", NULL);
  int status = cli_number(call, "--threads", 1, 1024, &threads);
  if (status == CLI_OK && !cpu) status = print_devices();
  if (status != CLI_OK) return status;
  if (quern_device_limits(&limits, (int)threads, cli_has(call, "--again", NULL)) != QUERN_STATUS_OK)
    return cli_fail_last("limits");
  print_limits(&limits);
  return cpu ? CLI_OK : for_each(visit_limits, cli_has(call, "--again", NULL));
}

static const struct cli_option options[] = {
    {"--threads", 0, "N", "the limits of so many threads; without it as many as the machine grants"},
    {"--again", 0, NULL, "measure the limits again"},
    {"--cpu", 0, NULL, "the CPU's limits only: no other device's library is loaded"},
    {0},
};

const struct cli_command cli_command_devices = {
    .name = "devices",
    .usage = "[--threads N] [--again] [--cpu]",
    .help = "what programs can be compiled for, and what the CPU can do",
    .more = "The limits are measured once, which takes about a second, and kept in the cache.\n",
    .options = options,
    .run = run,
};
