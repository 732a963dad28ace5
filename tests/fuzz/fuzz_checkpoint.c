/* tests/fuzz/fuzz_checkpoint.c -- any text as checkpoint.json, as it is and with the right first line: accepted ones say the same
** again when they are printed and parsed
*/
#include <inttypes.h>

#include "fuzz/fuzz.h"
#include "io/checkpoint.h"

static quern_checkpoint *parse(const char *text, size_t n) {
  quern_checkpoint *checkpoint = NULL;
  REQUIRE(io_checkpoint_make(&checkpoint, NULL) == QUERN_STATUS_OK);
  quern_status status = io_checkpoint_parse(checkpoint, "fuzz", text, n);
  REQUIRE(status == QUERN_STATUS_OK || status == QUERN_STATUS_PARSE);
  if (status == QUERN_STATUS_OK) return checkpoint;
  quern_checkpoint_close(checkpoint);
  return NULL;
}

/* Prints what was read; it must be read again as the same. */
static void check(const quern_checkpoint *c) {
  struct base_heap heap;
  struct base_str str;
  quern_checkpoint_contents contents = QUERN_INIT(quern_checkpoint_contents);
  contents.step = c->info.step;
  contents.seed = c->info.seed;
  contents.cursor = c->info.cursor;
  contents.n_config = c->info.n_config;
  contents.config = c->info.config;
  contents.state = c->info.state;
  contents.n_tensors = c->sums.n;
  base_heap_init(&heap, NULL);
  base_str_init(&str, &heap);
  REQUIRE(io_checkpoint_print(&str, &contents, c->sums.at, c->model_bytes, c->model_header) == QUERN_STATUS_OK);
  quern_checkpoint *again = parse(str.at, str.n);
  REQUIRE(again != NULL && again->info.step == c->info.step && again->info.seed == c->info.seed);
  REQUIRE(again->info.cursor == c->info.cursor && again->model_bytes == c->model_bytes);
  REQUIRE(again->model_header == c->model_header && strcmp(again->info.state, c->info.state) == 0);
  REQUIRE(again->config.n == c->config.n && again->sums.n == c->sums.n);
  for (size_t i = 0; i < c->config.n; i++)
    REQUIRE(strcmp(quern_checkpoint_config(again, c->config.at[i].key), c->config.at[i].value) == 0);
  for (size_t i = 0; i < c->sums.n; i++)
    REQUIRE(strcmp(again->sums.at[i].name, c->sums.at[i].name) == 0 &&
            again->sums.at[i].digest == c->sums.at[i].digest);
  quern_checkpoint_close(again);
  base_str_fini(&str);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char head[80];
  quern_checkpoint *checkpoint = parse((const char *)data, size);
  if (checkpoint != NULL) check(checkpoint);
  quern_checkpoint_close(checkpoint);
  int n = snprintf(head, sizeof head, "{\"quern_checkpoint\":1,\"hash\":\"xxh64\",\"digest\":\"%016" PRIx64 "\",\n",
                   io_digest_of(data, size));
  char *text = malloc((size_t)n + size);
  REQUIRE(text != NULL);
  memcpy(text, head, (size_t)n);
  if (size > 0) memcpy(text + n, data, size);
  checkpoint = parse(text, (size_t)n + size);
  if (checkpoint != NULL) check(checkpoint);
  quern_checkpoint_close(checkpoint);
  free(text);
  return 0;
}
