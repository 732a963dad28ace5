/* tests/fuzz/fuzz_config.c -- configurations: any text is read or refused, and what was read prints to the same values */
#include <string.h>

#include "fuzz/fuzz.h"
#include "quern/config.h"

static const quern_config_key keys[] = {
    {"model", QUERN_CONFIG_CHOICE, "char", "char|gpt2:*|mlp", 0, 0, "what"},
    {"batch", QUERN_CONFIG_INT, "8", "auto", 1, 4096, "sequences"},
    {"lr", QUERN_CONFIG_REAL, "3e-4", NULL, 0, 10, "rate"},
    {"shuffle", QUERN_CONFIG_FLAG, "true", NULL, 0, 0, "order"},
    {"memory", QUERN_CONFIG_BYTES, "0", NULL, 0, 0, "bytes"},
    {"out", QUERN_CONFIG_TEXT, "", NULL, 0, 0, "folder"},
};
enum { KEYS = sizeof keys / sizeof *keys };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  quern_config *a, *b;
  char *text;
  REQUIRE(quern_config_new(&a, KEYS, keys, NULL) == QUERN_STATUS_OK);
  REQUIRE(quern_config_new(&b, KEYS, keys, NULL) == QUERN_STATUS_OK);
  quern_status status = quern_config_text(a, "fuzz", (const char *)data, size);
  REQUIRE(status == QUERN_STATUS_OK || status == QUERN_STATUS_PARSE || status == QUERN_STATUS_INVALID);
  if (status == QUERN_STATUS_OK) {
    REQUIRE(quern_config_print(a, true, &text) == QUERN_STATUS_OK);
    REQUIRE(quern_config_text(b, "printed", text, strlen(text)) == QUERN_STATUS_OK);
    for (int i = 0; i < KEYS; i++)
      REQUIRE(strcmp(quern_config_get(a, keys[i].name), quern_config_get(b, keys[i].name)) == 0);
    quern_free_text(text);
  }
  quern_config_free(a);
  quern_config_free(b);
  return 0;
}
