/* sched/cpu_attention.h -- what forward and backward attention share */
#ifndef SCHED_CPU_ATTENTION_H
#define SCHED_CPU_ATTENTION_H
#include "sched/dot.h"

/* The operands' numbers: those of the composite; backward then has out, lse and dout after the mask. */
enum { ATT_Q, ATT_K, ATT_V, ATT_MASK, ATT_MAX_MEMS = 8 };

struct att {
  struct sched_job *job;
  int64_t B, H, G, S, T, D, E; /* batch, heads, heads of k and v, queries, keys, width, width of values */
  bool causal;
  double scale;
  const quern_tensor *mask; /* NULL: none */
  int mem[ATT_MAX_MEMS];    /* memories of the operands */
  quern_dtype acc;
  int lanes, mr, nv, nr; /* the register tile: mr rows, nv vectors, nr columns */
  struct dot dot;        /* for register tiles only */
};

/* True when sched_cpu_attention or sched_cpu_attention_back has a kernel for the composite. */
bool att_supports(const struct ir_node *composite);
double att_flops(const struct ir_node *composite);
sched_build sched_cpu_attention, sched_cpu_attention_back;

/* Attention on GPUs by a library (gpu_attention_library.c). */
bool att_library_supports(const struct base_target *target, const struct ir_node *composite);
double att_library_flops(const struct ir_node *composite);
sched_build sched_gpu_attention_library;
/* The memory of source or result number `place` of the group's composite; KERN_NONE: there is none. */
int att_operand_mem(const struct sched_job *job, int place, bool out);

/* Convolutions on GPUs by a library (gpu_conv_library.c); there is no generated code for these composites. */
bool conv_library_supports(const struct base_target *target, const struct ir_node *composite);
double conv_library_flops(const struct ir_node *composite);
sched_build sched_gpu_conv_library;

/* Attention on GPUs by kernels of their own (gpu_flash.c, gpu_flash_back.c): with any mask, of any float. */
bool flash_supports(const struct base_target *target, const struct ir_node *composite);
sched_build sched_gpu_flash, sched_gpu_flash_back;

void att_setup(struct att *a, struct sched_job *job);
/* Makes the register tile of a contraction one for attention. */
void att_choose_tile(struct att *a);
/* The memory of a result of the composite, or -1 when it is not wanted. */
int att_mem_out(const struct sched_job *job, int result);

/* `count` lanes from index on, in the dtype of accumulators; and back. count may be more than the lanes. */
kern_id att_load(struct att *a, struct kern_builder *b, kern_id mem, kern_id index, int lanes, int64_t count);
void att_store(struct kern_builder *b, kern_id mem, kern_id index, kern_id value, int64_t count);

void att_pack_phase(struct att *a, int src_mem, int dst_mem, int64_t heads, int64_t rows, int64_t width,
                    int64_t panels);
void att_widen_phase(struct att *a, int src_mem, int dst_mem, int64_t heads, int64_t size);
int att_add_wide(struct att *a, int mem);

/* rows[i], i < lanes, becomes column i. */
void att_transpose(struct kern_builder *b, int lanes, kern_id *rows);

/* The register tile of mr rows and that many columns, at most nr; rows of the right side are ldb apart. */
const struct kern_fn *att_tile(struct att *a, int64_t columns, int64_t ldb);

/* Register tiles that cover a width: as many whole ones as fit, then the rest. */
struct att_cover {
  int64_t width, rest;
  const struct kern_fn *whole, *last; /* NULL: not needed */
};
struct att_cover att_cover(struct att *a, int64_t width, int64_t ldb);

/* c = a b, or c + a b: mr rows of a, `terms` of each, by the columns of the tile. Memories are where they begin. */
struct att_product {
  kern_id a, b, c;
  int64_t lda, ldc;
  kern_id terms;
  int add;
  int64_t tail;
};
void att_call(struct kern_builder *b, const struct kern_fn *fn, const struct att_product *p);
/* c += a b for rows from, from + 1, ... up to a multiple of mr, and all columns that are covered. */
void att_multiply_add(struct att *a, struct kern_builder *b, const struct att_cover *cover, kern_id from, int64_t rows,
                      const struct att_product *p);

kern_id att_mask_row(struct att *a, struct kern_builder *b, kern_id batch, kern_id head, kern_id query);
kern_id att_mask(struct att *a, struct kern_builder *b, kern_id row, kern_id first, bool whole);

#endif
