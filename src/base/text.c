/* base/text.c -- texts that belong to the caller once they are given
** keeps: a text is freed without the object that gave it, which may be gone: its allocator stands before it
** tests: tests/base/test_text.c
*/
#include <stdatomic.h>

#include "base/base.h"

enum { HEAD_BYTES = 64 }; /* a block of the heap is aligned to so many */

struct head {
  quern_allocator user;
  size_t bytes; /* of the block */
};
_Static_assert(sizeof(struct head) <= HEAD_BYTES, "the head of a text");

quern_status base_str_give(quern_status status, struct base_str *str, char **text) {
  struct head head = {.user = str->heap->user};
  if (status == QUERN_STATUS_OK) status = base_str_status(str);
  if (status == QUERN_STATUS_OK && !base_size(str->n, 1, HEAD_BYTES + 1, &head.bytes))
    status = base_error(QUERN_STATUS_OVERFLOW, "a text of %zu bytes is too long", str->n);
  if (status == QUERN_STATUS_OK) {
    char *block = base_alloc(str->heap, head.bytes);
    if (block != NULL) {
      atomic_fetch_sub(&str->heap->live, head.bytes); /* it is the caller's */
      memcpy(block, &head, sizeof head);
      if (str->n > 0) memcpy(block + HEAD_BYTES, str->at, str->n);
      block[HEAD_BYTES + str->n] = 0;
      *text = block + HEAD_BYTES;
    } else {
      status = QUERN_STATUS_MEMORY;
    }
  }
  base_str_fini(str);
  return status;
}

void quern_free_text(char *text) {
  if (text == NULL) return;
  struct head head;
  memcpy(&head, text - HEAD_BYTES, sizeof head);
  head.user.free(head.user.self, text - HEAD_BYTES, head.bytes);
}
