/* quern/status.h -- what a call that can fail returns, and how to read why it failed
** Every function that can fail for a reason outside the program returns a quern_status. The message of the last
** failure in this thread says what went wrong with the values involved.
*/
#ifndef QUERN_STATUS_H
#define QUERN_STATUS_H
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define QUERN_API
#else
#define QUERN_API __attribute__((visibility("default")))
#endif

#if defined(__GNUC__)
#define QUERN_NODISCARD __attribute__((warn_unused_result))
#else
#define QUERN_NODISCARD
#endif

/* Structs that can grow begin with their size, and are made by one macro, in C also with members:
**   quern_program_options options = QUERN_INIT(quern_program_options, .threads = 2);
** In options zero is the default of every member. A program that was compiled with older headers has smaller structs: what
** it does not have is zero. A larger struct than the library knows is refused only where what is behind is not zero. Of
** structs that the library fills it writes as many bytes as the caller's size says, and zeros where it knows less. */
#ifdef __cplusplus
extern "C++" {
template <typename T> inline T quern_init_of() {
  T made = T();
  made.size = sizeof made;
  return made;
}
}
#define QUERN_INIT(type) quern_init_of<type>()
#else
#define QUERN_INIT(...) QUERN_INIT_SIZED(__VA_ARGS__, )
#define QUERN_INIT_SIZED(type, ...) ((type){.size = sizeof(type), __VA_ARGS__})
#endif

typedef enum quern_status {
  QUERN_STATUS_OK = 0,
  QUERN_STATUS_INVALID,     /* an argument makes no sense: null handle, bad name, bad option */
  QUERN_STATUS_SHAPE,       /* shapes, axes or ranks do not fit */
  QUERN_STATUS_DTYPE,       /* an operation does not admit a dtype, or dtypes differ */
  QUERN_STATUS_OVERFLOW,    /* a size does not fit */
  QUERN_STATUS_MEMORY,      /* the allocator returned no memory */
  QUERN_STATUS_IO,          /* a file could not be read or written */
  QUERN_STATUS_PARSE,       /* a text or a file is malformed */
  QUERN_STATUS_UNBOUND,     /* an input has no value */
  QUERN_STATUS_UNSUPPORTED, /* asked for something that is defined to be impossible, such as a gradient of while */
  QUERN_STATUS_STATE,       /* called at the wrong time */
  QUERN_STATUS_INTERNAL,    /* a broken invariant: a bug in Quern */
  QUERN_STATUS_DEVICE,      /* a device failed: a fault in one of its kernels, or it is gone */
  QUERN_STATUS_COUNT
} quern_status;

/* The name of a status, such as "shape". Never NULL. */
QUERN_API const char *quern_status_name(quern_status status);

/* The message of the last failure in this thread ("" when there was none). Valid until the next failure. */
QUERN_API const char *quern_last_error(void);

/* A text from outside, such as the name of a tensor in a file, as it may be printed to a terminal: control characters,
** bytes that are not UTF-8 and what turns the direction of text are shown as \x1b; what is longer than the buffer ends
** with "...". Messages of Quern are shown so already. Returns buffer. */
QUERN_API char *quern_text_shown(char *buffer, size_t bytes, const char *text);

/* Frees a text that Quern gave: every char *text that a function filled. NULL is fine. */
QUERN_API void quern_free_text(char *text);

/* The status of the last failure in this thread. */
QUERN_API quern_status quern_last_status(void);

#ifdef __cplusplus
}
#endif
#endif
