/* quern/env.h -- the environment variables Quern reads
** They are read once, at the first use of Quern in the process; what is set later has no effect.
*/
#ifndef QUERN_ENV_H
#define QUERN_ENV_H
#include <stddef.h>

#include "quern/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct quern_env_entry {
  size_t size;
  const char *name;     /* "QUERN_DEBUG" */
  const char *value;    /* in force: what was set, or the fallback */
  const char *fallback; /* the value when unset */
  const char *form;     /* what a value looks like: "0..4" */
  const char *help;     /* what it does, in a line */
} quern_env_entry;

/* How many variables there are. */
QUERN_API size_t quern_env_count(void);

/* Variable i of them. The texts live as long as the process. */
QUERN_API quern_status quern_env_get(size_t i, quern_env_entry *entry) QUERN_NODISCARD;

#ifdef __cplusplus
}
#endif
#endif
