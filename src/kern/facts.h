/* kern/facts.h -- what is known of integers: sums of symbols, symbols with intervals, divisors and linear bounds
** A form is constant + sum of coefficient * symbol. A symbol stands for one value of a function in the current iteration
** of all loops around it (of a vector: the value of some lane): a loop's variable, a task, a minimum, a quotient,
** something loaded. Its bounds are forms in earlier symbols; so a form is bounded by replacing symbols, the last first.
** Infinite: INT64_MIN as the lower end, INT64_MAX as the upper end of an interval.
*/
#ifndef KERN_FACTS_H
#define KERN_FACTS_H
#include "kern/kern_int.h"

enum { KERN_FORM_TERMS = 10, KERN_LIMITS = 2 };

struct kern_form {
  int64_t constant;
  int n;
  struct kern_term {
    int64_t coef; /* not 0 */
    int32_t sym;
  } terms[KERN_FORM_TERMS]; /* by symbol; forms that are kept have room for n only */
};

enum kern_sym_kind {
  KERN_SYM_ANY,
  KERN_SYM_LANE, /* the number of the lane */
  KERN_SYM_MAX,  /* the larger of lower[0] and lower[1] */
  KERN_SYM_MIN,  /* the smaller of upper[0] and upper[1] */
  KERN_SYM_DIV,  /* floor(of / by) */
  KERN_SYM_MOD   /* of mod by */
};

struct kern_limit {             /* den * symbol <= form (upper), or >= form (lower) */
  const struct kern_form *form; /* NULL: none */
  int64_t den;
};

struct kern_sym {
  int64_t lo, hi;
  int64_t mod, rem; /* it is rem modulo mod >= 1 */
  struct kern_limit upper[KERN_LIMITS], lower[KERN_LIMITS];
  enum kern_sym_kind kind;
  const struct kern_form *of; /* of DIV and MOD */
  int64_t by;
  bool varies; /* from lane to lane */
};

struct kern_facts {
  struct base_arena arena;
  BASE_VEC(struct kern_sym) syms;
  BASE_VEC(const struct kern_form *) assumed; /* each is <= 0 here */
  bool failed;                                /* no memory */
};

void kern_facts_init(struct kern_facts *facts, struct base_heap *heap);
void kern_facts_fini(struct kern_facts *facts);

/* A new symbol, its interval narrowed to its residue; its number, or 0 when there is no memory. */
int32_t kern_facts_add(struct kern_facts *facts, struct kern_sym sym);
/* The symbol floor(of / by) or of mod by, once made; there is one a (form, by). */
int32_t kern_facts_find(const struct kern_facts *facts, enum kern_sym_kind kind, const struct kern_form *of,
                        int64_t by);
/* A form that lasts, or NULL when there is no memory. */
const struct kern_form *kern_facts_keep(struct kern_facts *facts, const struct kern_form *form);

struct kern_form kern_form_const(int64_t value);
struct kern_form kern_form_sym(int32_t sym);
/* sum = a + by * b; false when that cannot be written. sum may be a or b. */
bool kern_form_add(struct kern_form *sum, const struct kern_form *a, const struct kern_form *b, int64_t by);
bool kern_form_is(const struct kern_form *a, const struct kern_form *b);
/* form without term i, plus its coefficient * by / den; false when that cannot be written. */
bool kern_form_replace(struct kern_form *out, const struct kern_form *form, int i, const struct kern_form *by,
                       int64_t den);
/* form is *rem modulo *mod; *mod is 0 when it is constant. */
void kern_form_residue(const struct kern_facts *facts, const struct kern_form *form, int64_t *mod, int64_t *rem);

/* An upper (lower) bound of a form, from intervals, limits and assumptions; the search ends when it is at most (at
** least) goal. */
int64_t kern_facts_upper(const struct kern_facts *facts, const struct kern_form *form, int64_t goal);
int64_t kern_facts_lower(const struct kern_facts *facts, const struct kern_form *form, int64_t goal);

/* Interval arithmetic. */
struct kern_range {
  int64_t lo, hi;
};
struct kern_range kern_range_add(struct kern_range a, struct kern_range b);
struct kern_range kern_range_mul(struct kern_range a, struct kern_range b);
struct kern_range kern_range_neg(struct kern_range a);

#endif
