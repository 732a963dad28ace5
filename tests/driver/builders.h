/* driver/builders.h -- how rows of builders.def read the case, and the builders that take more than an
** expression
*/
#ifndef DRIVER_BUILDERS_H
#define DRIVER_BUILDERS_H
#include "driver/driver.h"

#define X(i) (a->x[i])
#define ONE(e) (a->y[0] = (e), 1)
#define TWO(e) (a->y[0] = (e), 2)
#define INT(key, fallback) case_int(a->c, #key, (fallback))
#define AXIS(fallback) ((int)case_int(a->c, "axis", (fallback)))
#define FLAG(key) (case_int(a->c, #key, 0) != 0)
#define REAL(key, fallback) case_real(a->c, #key, (fallback))
#define LIST(key) args_ints(a, #key)->n, args_ints(a, #key)->at
#define ITEMS(key) args_ints(a, #key)->at
#define GIVEN a->c->shapes[0].rank, a->c->shapes[0].dims /* the shape of a case without operands */
#define FROM args_random(a)
#define WORD(key, ...) args_word(a, #key, (const char *const[]){__VA_ARGS__, NULL})
#define REDUCTION ((quern_reduction)WORD(reduction, "mean", "sum", "none"))
#define MODE ((quern_scatter_mode)WORD(mode, "set", "add", "max", "min"))

/* The numbers of a key; "shape" may be written 2x3. They live as long as a. */
const struct ints *args_ints(struct args *a, const char *key);
/* Which of the words a key's value is: 0 when absent or none. */
int args_word(const struct args *a, const char *key, const char *const *words);
/* The dtype a key names; the case's own when absent. */
quern_dtype args_dtype(const struct args *a, const char *key);

/* The source of random numbers that keys seed, step and stream name. */
const quern_random *args_random(struct args *a);

typedef int build(struct args *a);
build build_batch_norm, build_conv, build_conv_transpose, build_max_pool, build_avg_pool, build_interpolate,
    build_attention, build_cross_entropy, build_linear_cross_entropy, build_nll_loss; /* builders_nn.c */
build build_loop, build_while, build_if, build_composite;                             /* builders_control.c */
build build_split, build_slice_at, build_update_at, build_random, build_col2im, build_pad_mid, build_gather_batch,
    build_scatter_batch, build_scan, build_dot, build_reduce, build_argreduce; /* builders_ir.c */

#endif
