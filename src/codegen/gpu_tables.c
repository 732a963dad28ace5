/* codegen/gpu_tables.c -- tables of CUDA: in shared memory, so that those of one index are one access
** Tables of elements of 4 bytes that are looked up by the same index, up to four, are the columns of rows of 16 bytes; a thread loads the
** row once. There are 16 rows of 16 bytes, so threads that read different rows meet few bank conflicts, and those that read one row are served
** by one broadcast. Thread blocks fill the rows before their first task.
** tests: tests/codegen/test_gpu.c
*/
#include "codegen/cg_int.h"

#include <stdio.h>

enum { COLUMNS = 4, ROWS = 16 };

static bool is_row_table(const struct cg_emit *e, kern_id id) {
  const struct kern_inst *x = cg_inst(e, id);
  return x->op == KERN_TABLE && cg_size((int)x->dtype) == 4;
}

static bool is_control(const struct cg_emit *e, kern_id id) {
  enum kern_op op = cg_inst(e, id)->op;
  return op == KERN_FOR || op == KERN_IF || op == KERN_ELSE || op == KERN_END;
}

/* The tables of a row, of which id is one: those of the same index that follow each other, with no loop or branch between them. */
static int find_row(const struct cg_emit *e, kern_id id, kern_id row[COLUMNS]) {
  kern_id index = cg_inst(e, id)->arg[0], at = id;
  int before = 0, n = 0;
  while (at > 0 && !is_control(e, at - 1)) at--;
  for (kern_id i = at; i < id; i++) before += is_row_table(e, i) && cg_inst(e, i)->arg[0] == index;
  int skip = before / COLUMNS * COLUMNS;
  for (kern_id i = at; i < (kern_id)e->fn->insts.n && !is_control(e, i) && n < COLUMNS; i++) {
    if (!is_row_table(e, i) || cg_inst(e, i)->arg[0] != index) continue;
    if (skip-- <= 0) row[n++] = i;
  }
  return n;
}

bool cg_has_row(const struct cg_emit *e, kern_id id) { return e->whole_warps && is_row_table(e, id); }

static const char *row_type(int n) { return n == 1 ? "u32" : n == 2 ? "w2" : "w4"; }

/* A row of n tables is named by what they hold. */
static void row_name(const struct cg_emit *e, int n, const kern_id *row, char name[32]) {
  uint64_t hash = BASE_HASH_SEED;
  for (int k = 0; k < n; k++)
    hash = base_hash_bytes(hash, &e->fn->pool.at[cg_inst(e, row[k])->imm], ROWS * sizeof(int64_t));
  snprintf(name, 32, "s_%016llx", (unsigned long long)hash);
}

/* The rows of a block, unless it has them. */
static void add_rows(struct cg_emit *e, int n, const kern_id *row, const char *name) {
  struct base_str *str = &e->before;
  char table[32];
  if (str->n > 0 && strstr(str->at, name) != NULL) return;
  base_str_printf(str, "  __shared__ %s %s[%d];\n", row_type(n), name, ROWS);
  base_str_printf(str, "  if (threadIdx.x < %d) {\n    %s row = ZERO(%s);\n", ROWS, row_type(n), row_type(n));
  for (int k = 0; k < n; k++) {
    cg_table_name(e, row[k], table);
    base_str_add(str, n == 1 ? "    row" : (const char *[]){"    row.x", "    row.y", "    row.z", "    row.w"}[k]);
    base_str_printf(str, " = %s[threadIdx.x];\n", table);
  }
  base_str_printf(str, "    %s[threadIdx.x] = row;\n  }\n  __syncthreads();\n", name);
}

void cg_load_row(struct cg_emit *e, kern_id id) {
  kern_id row[COLUMNS];
  char name[32];
  int n = find_row(e, id, row);
  if (row[0] != id) return; /* it has been loaded */
  row_name(e, n, row, name);
  add_rows(e, n, row, name);
  for (int k = 0; k < cg_vectors(e, id); k++) {
    cg_indent(e);
    base_str_printf(&e->text, "const %s r%d_%d = %s[", row_type(n), (int)id, k, name);
    cg_value(e, &e->text, cg_inst(e, id)->arg[0], k, 1, 4);
    base_str_add(&e->text, "];\n");
  }
}

void cg_of_row(struct cg_emit *e, kern_id id, int lane) {
  kern_id row[COLUMNS];
  int n = find_row(e, id, row), k = 0;
  struct cg_fill with = {.d = {(int)cg_inst(e, id)->dtype, 1}};
  while (row[k] != id) k++;
  cg_fill(&e->text, "as_${D}_$Du(", &with);
  base_str_printf(&e->text, "r%d_%d", (int)row[0], lane);
  base_str_add(&e->text, n == 1 ? ")" : (const char *[]){".x)", ".y)", ".z)", ".w)"}[k]);
}
