/* sched/sort.h -- what the files of sorting share: keys that are compared as unsigned numbers, and items made of them
** A key has the bits of an element, changed so that larger elements have larger keys, NaN the largest, and -0 and 0
** the same; for decreasing order all bits are inverted. Equal keys keep their order, so both orders are stable.
*/
#ifndef SCHED_SORT_H
#define SCHED_SORT_H
#include "sched/sched_int.h"

enum { SORT_SHORT = 64 }; /* lines of so many elements are sorted by counting for each how many precede it */

struct sort {
  struct sched_job *job;
  const quern_tensor *x;
  bool reverse;
  bool packed;              /* an item is one u64: the key, then the element's number in the lower 32 bits */
  int lanes;                /* of u64 */
  int64_t n, lines, stride; /* of a line: its elements are stride apart */
};

/* Items in memory: keys, and where they are not packed, the numbers of the elements. */
struct sort_items {
  kern_id keys, numbers; /* memories that begin with the line's first item */
};
struct sort_item {
  kern_id key, number;
};

/* The first element of a line in x and in both results. */
kern_id sort_line_base(const struct sort *s, struct kern_builder *b, kern_id line);

/* The items (KERN_NONE: packed) of elements whose number along the line is given: scalars, or vectors. */
struct sort_item sort_make_item(const struct sort *s, struct kern_builder *b, kern_id x, kern_id number);
struct sort_item sort_load(const struct sort *s, struct kern_builder *b, struct sort_items items, kern_id at);
void sort_store(const struct sort *s, struct kern_builder *b, struct sort_items items, kern_id at,
                struct sort_item item);

/* Writes an item's element and its number as results number `at` of the line. */
void sort_write(const struct sort *s, struct kern_builder *b, kern_id base, kern_id at, struct sort_item item);

/* x, or the nearest of 0 .. n - 1: what the checker of kernels cannot know of numbers from memory. */
kern_id sort_clamp(struct kern_builder *b, kern_id x, int64_t n);

/* sort_line.c: sorts a short line into the results; or elements lo .. hi - 1 of a line, with room for its items twice,
** into the results (write), or into the first room when a key has an even number of bytes, else into the second. */
void sort_by_count(const struct sort *s, struct kern_builder *b, kern_id base);
void sort_by_digits(const struct sort *s, struct kern_builder *b, kern_id base, kern_id lo, kern_id hi,
                    const struct sort_items room[2], bool write);

/* sort_merge.c: merges neighbors among runs of `run` items into the results (to NULL) or other items; a task makes
** block number `part`, of `block` items. */
void sort_merge(const struct sort *s, struct kern_builder *b, kern_id base, kern_id part, int64_t block, int64_t run,
                struct sort_items from, const struct sort_items *to);

#endif
