/* tests/api/test_wrong_nn.c -- wrong calls of activations, norms, convolution, attention and losses */
#include "api/wrong.h"

static quern_tensor *beside; /* the second result */

/* x, when what is beside it is the poison as well. */
static quern_tensor *poison_beside(quern_tensor *x) {
  assert_ptr_equal(beside, POISON);
  return x;
}

/* Options of the right size. */
#define BATCH(...) (&(quern_batch_norm_options){.size = sizeof(quern_batch_norm_options), __VA_ARGS__})
#define CONV(...) (&(quern_conv_options){.size = sizeof(quern_conv_options), __VA_ARGS__})
#define SIZED(...) (&(quern_interpolate_options){.size = sizeof(quern_interpolate_options), __VA_ARGS__})
#define POOL(...) (&(quern_pool_options){.size = sizeof(quern_pool_options), __VA_ARGS__})
#define ATTENTION(...) (&(quern_attention_options){.size = sizeof(quern_attention_options), __VA_ARGS__})
#define LABELS(...) (&(quern_cross_entropy_options){.size = sizeof(quern_cross_entropy_options), __VA_ARGS__})

#define ROWS "api/wrong_nn.def"
#include "api/rows.h"
