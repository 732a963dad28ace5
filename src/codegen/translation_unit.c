/* codegen/translation_unit.c -- kernels that are compiled together, and what they need: types, and the functions of helpers.def
** keeps: a type or function stands before whatever names it, once
** tests: tests/codegen/test_text.c
*/
#include "codegen/cg_int.h"

/* ---- helpers.def --------------------------------------------------------------------------------------- */

#define BIT(DTYPE) (1u << QUERN_DTYPE_##DTYPE)
enum {
  F64 = BIT(F64),
  F32 = BIT(F32),
  F16 = BIT(F16),
  BF16 = BIT(BF16),
  I64 = BIT(I64),
  U64 = BIT(U64),
  FLOAT = F64 | F32,
  NARROW = F16 | BF16 | BIT(F8E4M3) | BIT(F8E5M2),
  SIGNED = BIT(I8) | BIT(I16) | BIT(I32) | I64,
  UNSIGNED = BIT(U8) | BIT(U16) | BIT(U32) | U64,
  INT = SIGNED | UNSIGNED,
  E1 = BIT(F8E4M3) | BIT(F8E5M2) | BIT(I8) | BIT(U8) | BIT(BOOL) | 1u << CG_CHAR,
  E2 = F16 | BF16 | BIT(I16) | BIT(U16),
  E4 = F32 | BIT(I32) | BIT(U32),
  E8 = F64 | I64 | U64,
  ANY = E1 | E2 | E4 | E8,
  VECTOR = 1 << 29, /* of A: any, with more than one lane */
  SAME = 1 << 30    /* of A: the same as D */
};
enum { S = 1, V = 2, B8 = 8, B16 = 16, B32 = 32, B64 = 64 };
enum {
  ALL = 1,
  NEON = 2,
  AVX2 = 4,
  AVX512 = 8,
  X86 = AVX2 | AVX512,
  VNNI = 16,
  F16C = 32,
  OPENCL = 64,
  CUDA = 128,
  GPU = OPENCL | CUDA
};

struct row {
  const char *name, *result, *parameters; /* of a HELPER; NULL of a BODY */
  unsigned targets, d, a, shapes;
  const char *text;
};
static const struct row rows[] = {
#define HELPER(NAME, RESULT, PARAMETERS) {.name = #NAME, .result = RESULT, .parameters = PARAMETERS},
#define BODY(TARGETS, D, A, SHAPES, TEXT) {.targets = TARGETS, .d = D, .a = A, .shapes = SHAPES, .text = TEXT},
#include "codegen/helpers.def"
#undef HELPER
#undef BODY
};

static const struct row *find_helper(const char *name, size_t n) {
  for (size_t i = 0; i < BASE_COUNT(rows); i++)
    if (rows[i].name != NULL && strncmp(rows[i].name, name, n) == 0 && rows[i].name[n] == 0) return &rows[i];
  return NULL;
}

static unsigned target_bits(const struct cg_target *target) {
  static const unsigned isa[] = {
      [CG_ISA_GENERIC] = ALL,         [CG_ISA_NEON] = ALL | NEON,     [CG_ISA_AVX2] = ALL | AVX2,
      [CG_ISA_AVX512] = ALL | AVX512, [CG_ISA_OPENCL] = ALL | OPENCL, [CG_ISA_CUDA] = ALL | CUDA};
  return isa[target->isa] | (target->base.vnni ? VNNI : 0u) | (target->base.f16c ? F16C : 0u);
}

static bool applies(const struct row *row, const struct cg_target *target, const struct cg_fill *with) {
  unsigned shapes = with->d.lanes == 1 ? S : V | ((unsigned)cg_bytes(with->d) & (B8 | B16 | B32 | B64));
  unsigned a = with->a.dtype == with->d.dtype ? 1u << with->a.dtype | SAME : 1u << with->a.dtype;
  if (with->a.lanes > 1) a |= VECTOR;
  return (row->targets & target_bits(target)) && (row->d & 1u << with->d.dtype) && (row->a & a) &&
         (row->shapes & shapes);
}

static const struct row *find_body(const struct row *helper, const struct cg_target *target,
                                   const struct cg_fill *with) {
  for (const struct row *row = helper + 1; row < rows + BASE_COUNT(rows) && row->name == NULL; row++)
    if (applies(row, target, with)) return row;
  return NULL;
}

/* ---- units --------------------------------------------------------------------------------------------- */

void cg_unit_init(struct cg_unit *unit, struct base_heap *heap, const struct cg_target *target) {
  *unit = (struct cg_unit){.heap = heap, .target = target};
  base_str_init(&unit->prelude, heap);
  base_str_init(&unit->body, heap);
  base_map_init(&unit->names, heap);
  base_arena_init(&unit->arena, heap);
  base_str_init(&unit->entries, heap);
  base_str_add(&unit->prelude, cg_dialect(target)->prelude);
}

void cg_unit_fini(struct cg_unit *unit) {
  base_str_fini(&unit->prelude);
  base_str_fini(&unit->body);
  base_str_fini(&unit->entries);
  base_map_fini(&unit->names);
  base_arena_fini(&unit->arena);
}

quern_status cg_unit_text(const struct cg_unit *unit, struct base_str *str) {
  QUERN_TRY(base_str_status(&unit->prelude));
  QUERN_TRY(base_str_status(&unit->body));
  QUERN_TRY(base_str_status(&unit->entries));
  base_str_add_n(str, unit->prelude.at, unit->prelude.n);
  if (unit->body.n > 0) base_str_add_n(str, unit->body.at, unit->body.n);
  cg_gpu_end(unit, str);
  return base_str_status(str);
}

struct name {
  const char *at;
  size_t n;
};
static bool equal_names(const void *item, const void *key) {
  const struct name *name = key;
  return strncmp(item, name->at, name->n) == 0 && ((const char *)item)[name->n] == 0;
}

quern_status cg_name_new(struct cg_unit *unit, const char *name, size_t n, bool *is_new) {
  struct name key = {name, n};
  uint64_t hash = base_hash_bytes(BASE_HASH_SEED, name, n);
  *is_new = base_map_find(&unit->names, hash, equal_names, &key) == NULL;
  if (!*is_new) return QUERN_STATUS_OK;
  char *copy = base_arena_string(&unit->arena, name, n);
  return copy != NULL && base_map_add(&unit->names, hash, copy) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

/* ---- names in text ------------------------------------------------------------------------------------- */

/* Reads a type's name of exactly n characters. A trailing u: the vector wherever it lies in memory. */
static bool parse_type(const char *at, size_t n, struct cg_type *type, bool *unaligned) {
  *unaligned = n > 0 && at[n - 1] == 'u';
  n -= *unaligned;
  size_t element = 0;
  while (element < n && at[element] != 'x') element++;
  type->lanes = 1;
  if (element < n) {
    type->lanes = 0;
    for (size_t i = element + 1; i < n; i++) {
      if (at[i] < '0' || at[i] > '9' || type->lanes > KERN_MAX_LANES) return false;
      type->lanes = 10 * type->lanes + (at[i] - '0');
    }
  }
  for (type->dtype = 0; type->dtype <= CG_CHAR; type->dtype++) {
    const char *name = type->dtype == CG_CHAR ? "c8" : base_dtypes[type->dtype].name;
    if (strncmp(name, at, element) == 0 && name[element] == 0)
      return type->lanes >= 1 && (!*unaligned || type->lanes > 1);
  }
  return false;
}

static void add_typedef(struct base_str *str, struct cg_type type, const char *name, size_t n, bool unaligned) {
  base_str_add(str, "typedef ");
  cg_type_add(str, (struct cg_type){type.dtype, 1});
  base_str_printf(str, " %.*s __attribute__((vector_size(%d)", (int)n, name, cg_bytes(type));
  if (unaligned) base_str_printf(str, ", aligned(%d), may_alias", cg_size(type.dtype));
  base_str_add(str, "));\n");
}

/* "name_D" or "name_D_A" of a helper: its row and types. A is D when it is left out. */
static const struct row *parse_helper(const char *at, size_t n, struct cg_fill *with) {
  const char *end = at + n, *first = memchr(at, '_', n);
  const struct row *helper = first != NULL ? find_helper(at, (size_t)(first - at)) : NULL;
  if (helper == NULL) return NULL;
  first++;
  const char *second = memchr(first, '_', (size_t)(end - first));
  bool unaligned;
  if (!parse_type(first, (size_t)((second != NULL ? second : end) - first), &with->d, &unaligned) || unaligned)
    return NULL;
  with->a = with->d;
  if (second == NULL) return helper;
  second++;
  return parse_type(second, (size_t)(end - second), &with->a, &unaligned) && !unaligned ? helper : NULL;
}

static quern_status add_helper(struct cg_unit *unit, const struct row *helper, const char *name, size_t n,
                               const struct cg_fill *with) {
  const struct row *body = find_body(helper, unit->target, with);
  QUERN_CHECK(body != NULL, INTERNAL, "codegen: there is no %.*s for %s", (int)n, name, unit->target->base.name);
  struct base_str text;
  base_str_init(&text, unit->heap);
  base_str_add(&text, "INLINE ");
  cg_fill(&text, helper->result, with);
  base_str_printf(&text, " %.*s(", (int)n, name);
  cg_fill(&text, helper->parameters, with);
  base_str_add(&text, body->text[0] == '#' ? ") {\n" : ") {\n  ");
  cg_fill(&text, body->text, with);
  base_str_add(&text, "\n}\n");
  quern_status status = base_str_status(&text);
  if (status == QUERN_STATUS_OK) status = cg_need(unit, text.at, text.n);
  if (status == QUERN_STATUS_OK) base_str_add_n(&unit->prelude, text.at, text.n);
  base_str_fini(&text);
  return status;
}

static quern_status need_name(struct cg_unit *unit, const char *name, size_t n) {
  struct cg_type type;
  bool unaligned, is_new;
  struct cg_fill with = {.dialect = cg_dialect(unit->target)};
  bool is_type = parse_type(name, n, &type, &unaligned);
  if (is_type && type.lanes == 1) return QUERN_STATUS_OK;
  const struct row *helper = is_type ? NULL : parse_helper(name, n, &with);
  if (!is_type && helper == NULL) return QUERN_STATUS_OK;
  QUERN_TRY(cg_name_new(unit, name, n, &is_new));
  if (!is_new) return QUERN_STATUS_OK;
  if (helper != NULL) return add_helper(unit, helper, name, n, &with);
  add_typedef(&unit->prelude, type, name, n, unaligned);
  return QUERN_STATUS_OK;
}

static bool in_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

quern_status cg_need(struct cg_unit *unit, const char *text, size_t n) {
  for (size_t i = 0; i < n;) {
    size_t length = 0;
    while (i + length < n && in_name(text[i + length])) length++;
    /* values (v12, v12_3) are most of what there is, and builtins name nothing of ours */
    if (length > 1 && text[i] != 'v' && text[i] != '_' && !(text[i] >= '0' && text[i] <= '9'))
      QUERN_TRY(need_name(unit, text + i, length));
    i += length + (length == 0);
  }
  return base_str_status(&unit->prelude);
}
