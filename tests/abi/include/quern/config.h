/* quern/config.h -- configurations: values by name, checked against a table of what there is
** The same words serve the command line (batch=8 model=gpt2:124M), files (a key = value a line, # begins a comment) and C.
*/
#ifndef QUERN_CONFIG_H
#define QUERN_CONFIG_H
#include <stdbool.h>
#include <stdint.h>

#include "quern/context.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum quern_config_type {
  QUERN_CONFIG_TEXT,
  QUERN_CONFIG_CHOICE, /* one of the words of `allowed`, separated by |; a word may end in * for any rest: "gpt2:*" */
  QUERN_CONFIG_INT,    /* within least and most */
  QUERN_CONFIG_REAL,
  QUERN_CONFIG_FLAG, /* true or false; also 1, 0, yes, no, on, off */
  QUERN_CONFIG_BYTES /* 1000, 64KiB, 1.5GB; within least and most */
} quern_config_type;

/* A row of a table. */
typedef struct quern_config_key {
  const char *name;
  quern_config_type type;
  const char *value;   /* unless it is set */
  const char *allowed; /* of CHOICE; of others more words that are allowed besides: "auto"; or NULL */
  double least, most;  /* both 0: no limits */
  const char *help;
} quern_config_key;

typedef struct quern_config quern_config;
/* Of a table, which must outlive it, of n keys. allocator may be NULL. */
QUERN_API quern_status quern_config_new(quern_config **config, size_t n, const quern_config_key *keys,
                                        const quern_allocator *allocator) QUERN_NODISCARD;
QUERN_API void quern_config_free(quern_config *config);

/* Sets a key. A key that there is not, or a value that is not allowed, is an error with those that are; nothing has changed then. */
QUERN_API quern_status quern_config_set(quern_config *config, const char *key, const char *value) QUERN_NODISCARD;
/* "key=value", as on a command line. */
QUERN_API quern_status quern_config_word(quern_config *config, const char *word) QUERN_NODISCARD;
/* Lines "key = value"; values with blanks around, # or quotes in them are written in "", with \" and \\ inside. name is for
** messages. Nothing has changed when one is wrong. */
QUERN_API quern_status quern_config_text(quern_config *config, const char *name, const char *text,
                                         size_t bytes) QUERN_NODISCARD;
/* The same of a file of at most 1 MiB. */
QUERN_API quern_status quern_config_file(quern_config *config, const char *path) QUERN_NODISCARD;

/* Values by key; of a key that there is not, or of another type: "", 0, false. Words that are allowed besides are 0 as numbers. */
QUERN_API const char *quern_config_get(const quern_config *config, const char *key);
QUERN_API int64_t quern_config_int(const quern_config *config, const char *key); /* INT, BYTES */
QUERN_API double quern_config_real(const quern_config *config, const char *key); /* REAL, INT, BYTES */
QUERN_API bool quern_config_flag(const quern_config *config, const char *key);
QUERN_API bool quern_config_is_set(const quern_config *config, const char *key); /* not the table's value */

/* Every key with its value, as text that quern_config_text reads; only those that were set, unless all. To be freed with
** quern_free_text. */
QUERN_API quern_status quern_config_print(const quern_config *config, bool all, char **text) QUERN_NODISCARD;
/* A table for people: key, value, what is allowed, what it is. */
QUERN_API quern_status quern_config_help(const quern_config *config, char **text) QUERN_NODISCARD;

#ifdef __cplusplus
}
#endif
#endif
