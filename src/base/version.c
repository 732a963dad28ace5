/* base/version.c -- the version that was built */
#include "quern/version.h"

const char *quern_version(void) { return QUERN_VERSION; }
