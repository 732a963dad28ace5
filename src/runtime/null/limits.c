/* runtime/null/limits.c -- what compilers do not see: the shared memory that a block is given when it is launched
** A card has so much for a block: what the code declares, as the cubin has it, and what the launch adds must fit.
** tests: tests/runtime/test_null.c
*/
#include "runtime/null/null_int.h"

#include <elf.h>
#include <stdio.h>

/* Bytes for a block as CUDA's programming guide has them; from sm_90 on cubins count the KiB that the driver keeps, and so does this. */
enum { KIB = 1024 };
static const struct {
  const char *name;
  int64_t bytes;
} rows[] = {{"sm_75", 64 * KIB},  {"sm_80", 163 * KIB},  {"sm_86", 99 * KIB},  {"sm_89", 99 * KIB},
            {"sm_90", 228 * KIB}, {"sm_100", 228 * KIB}, {"sm_120", 100 * KIB}};

static bool is_inside(const struct rt_bytes *binary, uint64_t at, uint64_t n) {
  return at <= binary->n && n <= binary->n - at;
}

/* Section i of a cubin, and its name; false when the cubin ends before. */
static bool find_section(const struct rt_bytes *binary, const Elf64_Ehdr *head, size_t i, Elf64_Shdr *section) {
  uint64_t at = head->e_shoff + i * sizeof *section;
  if (head->e_shentsize != sizeof *section || !is_inside(binary, at, sizeof *section)) return false;
  memcpy(section, (const char *)binary->at + at, sizeof *section);
  return true;
}

/* Bytes of shared memory that the code of a symbol declares: the size of a section that is named after it. */
static quern_status find_declared(const struct rt_bytes *binary, const char *symbol, int64_t *bytes) {
  char name[600];
  Elf64_Ehdr head;
  Elf64_Shdr names, section;
  size_t n = (size_t)snprintf(name, sizeof name, ".nv.shared.%s", symbol) + 1;
  *bytes = 0;
  QUERN_CHECK(is_inside(binary, 0, sizeof head) && memcmp(binary->at, ELFMAG, SELFMAG) == 0, INTERNAL,
              "the code of %s is no cubin", symbol);
  memcpy(&head, binary->at, sizeof head);
  if (head.e_shnum == 0) return QUERN_STATUS_OK;
  bool whole =
      find_section(binary, &head, head.e_shstrndx, &names) && is_inside(binary, names.sh_offset, names.sh_size);
  for (size_t i = 0; i < head.e_shnum && whole; i++) {
    whole = find_section(binary, &head, i, &section) && section.sh_name <= names.sh_size;
    if (!whole || n > names.sh_size - section.sh_name) continue;
    if (memcmp((const char *)binary->at + names.sh_offset + section.sh_name, name, n) == 0)
      *bytes = (int64_t)section.sh_size;
  }
  QUERN_CHECK(whole, INTERNAL, "the cubin of %s is cut off", symbol);
  return QUERN_STATUS_OK;
}

static quern_status check_kernel(const struct rt_bytes *binary, const struct kern *kern, const struct cg_target *target,
                                 int64_t most) {
  for (int p = 0; p < kern->n_phases; p++) {
    char symbol[512];
    int64_t declared, given = cg_dynamic_shared_bytes(kern, p, target);
    if (kern->phases[p].library_call) continue;
    cg_symbol(symbol, sizeof symbol, kern, p);
    QUERN_TRY(find_declared(binary, symbol, &declared));
    QUERN_CHECK(declared + given <= most, INTERNAL,
                "%s: a block of %s has %lld bytes of shared memory and is given %lld; there are %lld",
                target->base.name, symbol, (long long)declared, (long long)given, (long long)most);
  }
  return QUERN_STATUS_OK;
}

quern_status rt_null_limits(const struct rt_gpu_units *units, const struct kern *const *kernels,
                            const struct cg_target *target) {
  int64_t most = -1;
  for (size_t i = 0; i < BASE_COUNT(rows); i++)
    if (strcmp(rows[i].name, target->base.name) == 0) most = rows[i].bytes;
  QUERN_CHECK(most >= 0, INTERNAL, "device null: %s has no row of limits", target->base.name);
  for (size_t i = 0; i < units->n; i++) {
    const struct rt_gpu_unit *u = &units->at[i];
    for (size_t k = u->first; k < u->first + u->n && !u->empty; k++)
      QUERN_TRY(check_kernel(&u->binary, kernels[k], target, most));
  }
  return QUERN_STATUS_OK;
}
