/* io/json.h -- JSON by jansson, with statuses and messages of ours
** jansson's memory is the C library's: the host program may use jansson too, and its allocator is one for the whole process.
*/
#ifndef IO_JSON_H
#define IO_JSON_H
#include <jansson.h>

#include "base/base.h"

/* Parses a text that must be one object; json_decref(*object) later. No key may be there twice. what begins the message. */
quern_status io_json_parse(const char *what, const char *text, size_t n, json_t **object) QUERN_NODISCARD;

/* Adds a string with its quotes; INVALID when it is no UTF-8. */
quern_status io_json_add_string(struct base_str *str, const char *text) QUERN_NODISCARD;

/* Adds a text of any bytes, such as a path: those that are no UTF-8 are the characters U+F780 to U+F7FF, one a byte,
** and so are the bytes of these characters themselves. io_json_bytes makes bytes of them again, of at most as many,
** and returns how many. */
quern_status io_json_add_bytes(struct base_str *str, const char *text) QUERN_NODISCARD;
size_t io_json_bytes(const char *text, size_t n, char *bytes);

/* Adds a value without blanks. */
quern_status io_json_add(struct base_str *str, const json_t *value) QUERN_NODISCARD;

/* A text as it may stand in a message: at most n bytes, what cannot be printed as '?'; returns buffer. */
char *io_json_shown(char *buffer, size_t bytes, const char *text);

#endif
