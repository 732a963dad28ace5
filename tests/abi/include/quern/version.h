/* quern/version.h -- the version: the only place where it is written; the build reads it from here */
#ifndef QUERN_VERSION_H
#define QUERN_VERSION_H
#include "quern/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUERN_VERSION_MAJOR 0
#define QUERN_VERSION_MINOR 1
#define QUERN_VERSION_PATCH 0

/* "0.1.0" */
#define QUERN_VERSION_TEXT(x) #x
#define QUERN_VERSION_JOIN(a, b, c) QUERN_VERSION_TEXT(a) "." QUERN_VERSION_TEXT(b) "." QUERN_VERSION_TEXT(c)
#define QUERN_VERSION QUERN_VERSION_JOIN(QUERN_VERSION_MAJOR, QUERN_VERSION_MINOR, QUERN_VERSION_PATCH)

/* The version of the library in use, which may be another one than that of the header. */
QUERN_API const char *quern_version(void);

#ifdef __cplusplus
}
#endif
#endif
