/* tests/api/test_wrong_config.c -- wrong calls of config.h */
#include "api/wrong.h"

static const quern_config_key keys[] = {{"a", QUERN_CONFIG_INT, "1", NULL, 0, 0, "a number"}};
static quern_config *config;

static quern_config *made(void) { return quern_config_new(&config, 1, keys, NULL) == QUERN_STATUS_OK ? config : NULL; }

static void end(void) {
  quern_config_free(config);
  config = NULL;
}
static quern_status ended(quern_status status) { return end(), status; }
static bool done(bool good) { return end(), good; }

#define ROWS "api/wrong_config.def"
#include "api/rows.h"
