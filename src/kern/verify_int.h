/* kern/verify_int.h -- what the bounds checker hands to the checker of races
*/
#ifndef KERN_VERIFY_INT_H
#define KERN_VERIFY_INT_H
#include "kern/facts.h"

enum { KERN_COND_FACTS = 4 };

struct kern_cond { /* of a bool: forms that are <= 0 when it is true, and when it is false */
  int n_yes, n_no;
  const struct kern_form *yes[KERN_COND_FACTS], *no[KERN_COND_FACTS];
};

struct kern_region {       /* of memory */
  int64_t count;           /* of the whole; -1: unknown */
  int mem;                 /* which of the function's; -1: scratch */
  struct kern_range range; /* of its first element in the whole */
  const struct kern_form *form;
};

struct kern_known { /* of an instruction */
  struct kern_range range;
  const struct kern_form *form; /* exact; NULL: no integer, or no memory was left */
  const struct kern_cond *cond;
  const struct kern_region *region;
};

struct kern_store { /* to memory that all tasks share */
  kern_id id;
  int mem;
  const struct kern_form *form;   /* of the first element; NULL: unknown */
  const struct kern_form *active; /* NULL: all lanes */
  int lanes;
  size_t n_assumed; /* what held where it stands */
  const struct kern_form *const *assumed;
};

struct kern_passed { /* shared memory that a phase gives to a function which stores to it: from this element on */
  int fn, mem;       /* of the function */
  struct kern_store store;
};

struct kern_calls { /* of a function: what its scalars were seen to be */
  bool called;
  struct kern_range scalars[KERN_MAX_SCALARS];
};

struct kern_variable { /* a VAR of integers */
  kern_id id;
  struct kern_range assumed, seen; /* what it may hold; what it was set to in this pass */
};

struct kern_scan { /* of one function */
  const struct kern *kern;
  const struct kern_fn *fn;
  int number, phase;        /* phase -1: it is called */
  const bool *writes;       /* see kern_check_types */
  struct kern_calls *calls; /* one per function */
  struct kern_facts facts;
  struct kern_known *known;                           /* one per instruction */
  int32_t task, scalars[KERN_MAX_SCALARS], lanes[14]; /* symbols; of lanes by the logarithm, -1: not made */
  BASE_VEC(struct kern_store) stores;
  BASE_VEC(struct kern_passed) given; /* of a phase */
  bool before[KERN_MAX_MEMS]; /* of a function that is called: it may store before the element that it was given */
  BASE_VEC(struct kern_variable) variables;
  int unproven;        /* accesses; they are not reported in a quiet pass */
  bool quiet, lenient; /* lenient: accesses need not be proven */
  int depth;
  bool dead; /* what stands here never runs */
  struct {
    size_t n_assumed;
    const struct kern_cond *cond; /* of an if */
    bool dead;
  } blocks[KERN_MAX_DEPTH];
};

/* ---- verify_values.c ------------------------------------------------------------------------------------- */

/* Finds out what an instruction without memory and blocks gives. */
void kern_scan_value(struct kern_scan *scan, kern_id id);

/* Sets what is known of an instruction: a form; a symbol of its own, of which sym says more than its range; anything
** in a range that its dtype can hold. */
void kern_scan_set(struct kern_scan *scan, kern_id id, struct kern_range range, const struct kern_form *form);
void kern_scan_set_symbol(struct kern_scan *scan, kern_id id, struct kern_range range, struct kern_sym sym);
void kern_scan_set_any(struct kern_scan *scan, kern_id id, struct kern_range range);

/* What a dtype can hold; i64 and u64 end at infinity. */
struct kern_range kern_dtype_range(quern_dtype dtype);

static inline struct kern_range kern_range_meet(struct kern_range a, struct kern_range b) {
  return (struct kern_range){BASE_MAX(a.lo, b.lo), BASE_MIN(a.hi, b.hi)};
}
static inline struct kern_range kern_range_hull(struct kern_range a, struct kern_range b) {
  return (struct kern_range){BASE_MIN(a.lo, b.lo), BASE_MAX(a.hi, b.hi)};
}
static const struct kern_range kern_everything = {INT64_MIN, INT64_MAX};

/* ---- verify_bounds.c, verify_race.c ---------------------------------------------------------------------- */

/* Proves every access of the function inside its memory, and collects stores. */
quern_status kern_scan_bounds(struct kern_scan *scan) QUERN_NODISCARD;

/* Scans every function that runs, callers before what they call, and visits it. */
typedef quern_status kern_visit(struct kern_scan *scan, void *user);
quern_status kern_scan_all(const struct kern *kern, bool lenient, kern_visit *visit, void *user) QUERN_NODISCARD;

/* What held where a store stands holds now. */
void kern_scan_assume(struct kern_scan *scan, const struct kern_store *store);
/* About the form, in the task and quotients and remainders of it; the others are replaced by bounds: a guess. */
bool kern_scan_pure(const struct kern_scan *scan, struct kern_form *form);

/* How many of the phase's stores could not be proven apart from those of other tasks. */
int kern_scan_races(struct kern_scan *scan);

/* The number of tasks when it is fixed, else KERN_MAX_TASKS. */
int64_t kern_scan_tasks(const struct kern_scan *scan);

#endif
