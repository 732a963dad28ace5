/* codegen/codegen.h -- kernels as C text for a target
** C with the vector extensions of gcc and clang, no includes. Every text of a kernel is made here and nowhere else.
** see: targets.def, README.md, docs/design/002-cpu-compiler.md
*/
#ifndef CODEGEN_CODEGEN_H
#define CODEGEN_CODEGEN_H
#include "kern/kern.h"

/* ---- targets (target.c, targets.def) ----------------------------------------------------------------------------- */

enum cg_isa { CG_ISA_GENERIC, CG_ISA_NEON, CG_ISA_AVX2, CG_ISA_AVX512 }; /* whose builtins the text may use */

struct cg_target {
  struct base_target base;
  enum cg_isa isa;
  const char *march; /* flags of the compiler, separated by blanks: "-mavx2 -mfma"; may be "" */
};

/* The rows of targets.def, best first, the generic one last. */
extern const struct cg_target cg_targets[];
extern const size_t cg_target_count;
const struct cg_target *cg_target_find(const char *name); /* NULL: there is none */
bool cg_target_runs(const struct cg_target *target);      /* this processor has what the row needs */
/* The best row that this processor can run; cache sizes as detected where they can be. threads is left 1. */
void cg_target_detect(struct cg_target *target);

/* Flags that every unit is compiled with, by gcc and clang alike, besides those of the target's march; separated by
** blanks. The bits depend on them. Whoever links adds -shared, and -lm at the end for targets without fma. */
extern const char cg_flags[];

/* ---- units of text (unit.c, emit.c) ------------------------------------------------------------------------------ */

/* The C type of a phase's function:
**   void NAME_<phase>(void *const *mems, const int64_t *scalars, int64_t begin, int64_t end, char *scratch)
** runs tasks begin .. end - 1. scratch is 64-byte aligned, kern_scratch_bytes long, of the running thread. */
typedef void cg_entry(void *const *mems, const int64_t *scalars, int64_t begin, int64_t end, char *scratch);

/* Kernels that are compiled together. What they need (types, small functions) is printed once before them, and only
** what they need; functions to be called that two kernels have the same are printed once. */
struct cg_unit {
  struct base_heap *heap;
  const struct cg_target *target;
  struct base_str prelude, body;
  struct base_map names; /* of everything that is in prelude or body */
  struct base_arena arena;
};
void cg_unit_init(struct cg_unit *unit, struct base_heap *heap, const struct cg_target *target);
void cg_unit_fini(struct cg_unit *unit);
/* Adds a verified kernel, unless it is there already. After a failure the unit can only be freed. */
quern_status cg_unit_add(struct cg_unit *unit, const struct kern *kern) QUERN_NODISCARD;
/* Appends the text of the whole unit. The same kernels in the same order give the same bytes. */
quern_status cg_unit_text(const struct cg_unit *unit, struct base_str *str) QUERN_NODISCARD;

/* The symbol of a phase. */
void cg_symbol(char *buffer, size_t bytes, const struct kern *kern, int phase);

#endif
