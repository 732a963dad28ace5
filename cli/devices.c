/* cli/devices.c -- the command devices: what programs can be compiled for, and what the CPU can do */
#include <string.h>

#include "cli.h"

static int print_devices(void) {
  printf("%-8s %-10s %7s %9s %9s %9s  %s\n", "device", "target", "threads", "L1", "L2", "L3", "");
  for (size_t i = 0; i < quern_devices(); i++) {
    quern_device d;
    char caches[3][24];
    if (quern_device_get(i, &d) != QUERN_STATUS_OK) return cli_fail_last("devices");
    for (int k = 0; k < 3; k++) cli_bytes_text(caches[k], d.caches[k]);
    printf("%-8s %-10s %7d %9s %9s %9s  %s\n", d.name, d.target, d.threads, caches[0], caches[1], caches[2], d.detail);
  }
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
static int print_gpus(bool again) {
  for (size_t i = 0; i < quern_devices(); i++) {
    quern_device d;
    quern_limits limits;
    if (quern_device_get(i, &d) != QUERN_STATUS_OK) return cli_fail_last("devices");
    if (strcmp(d.name, "cpu") == 0) continue;
    quern_status status = quern_device_limits_of(&limits, d.name, again);
    if (status == QUERN_STATUS_OK)
      print_gpu(d.name, &limits);
    else if (status != QUERN_STATUS_UNSUPPORTED)
      return cli_fail_last("limits");
  }
  return CLI_OK;
}

static int run(const struct cli_call *call) {
  quern_limits limits;
  int64_t threads = 0;
  bool cpu = cli_has(call, "--cpu", NULL);
  int status = cli_number(call, "--threads", 1, 1024, &threads);
  if (status == CLI_OK && !cpu) status = print_devices();
  if (status != CLI_OK) return status;
  if (quern_device_limits(&limits, (int)threads, cli_has(call, "--again", NULL)) != QUERN_STATUS_OK)
    return cli_fail_last("limits");
  print_limits(&limits);
  return cpu ? CLI_OK : print_gpus(cli_has(call, "--again", NULL));
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
