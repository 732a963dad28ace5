/* tests/ir/test_rules.c -- rewrite rules written in C: where each fires, what it gives, where it must not
** A row is a graph as text before and after one rule alone; folding and stretching have loops of their own.
*/
#include <math.h>

#include "ir/ir_test.h"
#include "ir/rules.h"

#define IN(number, name, dtype, shape) "%" #number " = input name=\"" #name "\" dtype=" #dtype " shape=" shape "\n"
#define RETURN(number) "return %" #number "\n"

struct row {
  const char *rule, *before, *after; /* after NULL: the rule does not fire */
};

static const struct row conversions[] = {
    {"div_power", IN(0, x, f32, "[]") "%1 = const dtype=f32 shape=[] data={-4}\n%2 = div %0 %1\n" RETURN(2),
     IN(0, x, f32, "[]") "%1 = const dtype=f32 shape=[] data={-0.25}\n%2 = mul %0 %1\n" RETURN(2)},
    {"div_power", IN(0, x, f32, "[]") "%1 = const dtype=f32 shape=[] data={6}\n%2 = div %0 %1\n" RETURN(2), NULL},
    {"div_power", IN(0, x, f32, "[2]") "%1 = const dtype=f32 shape=[2] data={2, 4}\n%2 = div %0 %1\n" RETURN(2), NULL},
    {"div_power", IN(0, x, f8e5m2, "[]") "%1 = const dtype=f8e5m2 shape=[] data={32768}\n%2 = div %0 %1\n" RETURN(2),
     IN(0, x, f8e5m2, "[]") "%1 = const dtype=f8e5m2 shape=[] data={3.0517578125e-05}\n%2 = mul %0 %1\n" RETURN(2)},
    {"div_power",
     IN(0, x, f8e4m3, "[]") "%1 = const dtype=f8e4m3 shape=[] data={0.00390625}\n%2 = div %0 %1\n" RETURN(2),
     IN(0, x, f8e4m3, "[]") "%1 = const dtype=f8e4m3 shape=[] data={256}\n%2 = mul %0 %1\n" RETURN(2)},
    {"div_power",
     IN(0, x, f8e4m3, "[]") "%1 = const dtype=f8e4m3 shape=[] data={0.001953125}\n%2 = div %0 %1\n" RETURN(2), NULL},
    {"div_power", IN(0, x, i32, "[]") "%1 = const dtype=i32 shape=[] data={4}\n%2 = div %0 %1\n" RETURN(2), NULL},
    {"div_shift", IN(0, x, i32, "[]") "%1 = const dtype=i32 shape=[] data={8}\n%2 = div %0 %1\n" RETURN(2),
     IN(0, x, i32, "[]") "%1 = const dtype=i32 shape=[] data={3}\n%2 = shr %0 %1\n" RETURN(2)},
    {"div_shift", IN(0, x, u8, "[]") "%1 = const dtype=u8 shape=[] data={128}\n%2 = div %0 %1\n" RETURN(2),
     IN(0, x, u8, "[]") "%1 = const dtype=u8 shape=[] data={7}\n%2 = shr %0 %1\n" RETURN(2)},
    {"div_shift", IN(0, x, i8, "[]") "%1 = const dtype=i8 shape=[] data={-128}\n%2 = div %0 %1\n" RETURN(2), NULL},
    {"div_shift", IN(0, x, i8, "[]") "%1 = const dtype=i8 shape=[] data={6}\n%2 = div %0 %1\n" RETURN(2), NULL},
    {"mod_mask", IN(0, x, i64, "[]") "%1 = const dtype=i64 shape=[] data={16}\n%2 = mod %0 %1\n" RETURN(2),
     IN(0, x, i64, "[]") "%1 = const dtype=i64 shape=[] data={15}\n%2 = and %0 %1\n" RETURN(2)},
    {"mod_mask", IN(0, x, i64, "[]") "%1 = const dtype=i64 shape=[] data={-16}\n%2 = mod %0 %1\n" RETURN(2), NULL},
    {"mod_mask", IN(0, x, f64, "[]") "%1 = const dtype=f64 shape=[] data={16}\n%2 = mod %0 %1\n" RETURN(2), NULL},
    {"floor_whole", IN(0, x, f32, "[]") "%1 = round %0\n%2 = floor %1\n" RETURN(2),
     IN(0, x, f32, "[]") "%1 = round %0\n" RETURN(1)},
    {"floor_whole", IN(0, x, f32, "[]") "%1 = sqrt %0\n%2 = floor %1\n" RETURN(2), NULL},
    {"ceil_whole", IN(0, x, i64, "[]") "%1 = cast %0 dtype=f16\n%2 = ceil %1\n" RETURN(2),
     IN(0, x, i64, "[]") "%1 = cast %0 dtype=f16\n" RETURN(1)},
    {"ceil_whole", IN(0, x, f64, "[]") "%1 = cast %0 dtype=f16\n%2 = ceil %1\n" RETURN(2), NULL},
    {"round_whole", IN(0, x, f32, "[]") "%1 = sign %0\n%2 = round %1\n" RETURN(2),
     IN(0, x, f32, "[]") "%1 = sign %0\n" RETURN(1)},
    {"trunc_whole", IN(0, x, bool, "[]") "%1 = cast %0 dtype=f32\n%2 = trunc %1\n" RETURN(2),
     IN(0, x, bool, "[]") "%1 = cast %0 dtype=f32\n" RETURN(1)},
    {"cast_same", IN(0, x, f32, "[]") "%1 = cast %0 dtype=f32\n" RETURN(1), IN(0, x, f32, "[]") RETURN(0)},
    {"cast_same", IN(0, x, f32, "[]") "%1 = cast %0 dtype=f64\n" RETURN(1), NULL},
    {"bitcast_same", IN(0, x, f32, "[]") "%1 = bitcast %0 dtype=f32\n" RETURN(1), IN(0, x, f32, "[]") RETURN(0)},
    {"bitcast_bitcast", IN(0, x, f32, "[]") "%1 = bitcast %0 dtype=u32\n%2 = bitcast %1 dtype=i32\n" RETURN(2),
     IN(0, x, f32, "[]") "%1 = bitcast %0 dtype=i32\n" RETURN(1)},
    {"bitcast_bitcast", IN(0, x, f32, "[]") "%1 = bitcast %0 dtype=u32\n%2 = bitcast %1 dtype=f32\n" RETURN(2),
     IN(0, x, f32, "[]") RETURN(0)},
    {"stop_grad_leaf", "%0 = iota dtype=f32 shape=[3] axis=0\n%1 = stop_grad %0\n" RETURN(1),
     "%0 = iota dtype=f32 shape=[3] axis=0\n" RETURN(0)},
    {"stop_grad_leaf", IN(0, x, f32, "[]") "%1 = stop_grad %0\n" RETURN(1), NULL},
    {"checkpoint_leaf", IN(0, x, f32, "[]") "%1 = checkpoint %0\n" RETURN(1), IN(0, x, f32, "[]") RETURN(0)},
    {"checkpoint_leaf", "%0 = const dtype=i8 shape=[] data={1}\n%1 = checkpoint %0\n" RETURN(1),
     "%0 = const dtype=i8 shape=[] data={1}\n" RETURN(0)},
    {"checkpoint_leaf", "%0 = iota dtype=f32 shape=[3] axis=0\n%1 = checkpoint %0\n" RETURN(1), NULL},
};

static const struct row movement[] = {
    {"reshape_same", IN(0, x, f32, "[2,3]") "%1 = reshape %0 shape=[2,3]\n" RETURN(1),
     IN(0, x, f32, "[2,3]") RETURN(0)},
    {"reshape_same", IN(0, x, f32, "[2,3]") "%1 = reshape %0 shape=[3,2]\n" RETURN(1), NULL},
    {"reshape_reshape", IN(0, x, f32, "[2,3]") "%1 = reshape %0 shape=[3,2]\n%2 = reshape %1 shape=[6]\n" RETURN(2),
     IN(0, x, f32, "[2,3]") "%1 = reshape %0 shape=[6]\n" RETURN(1)},
    {"reshape_const", "%0 = const dtype=i8 shape=[2] data={1, 2}\n%1 = reshape %0 shape=[2,1]\n" RETURN(1),
     "%0 = const dtype=i8 shape=[2,1] data={1, 2}\n" RETURN(0)},
    {"permute_same", IN(0, x, f32, "[2,3]") "%1 = permute %0 axes=[0,1]\n" RETURN(1), IN(0, x, f32, "[2,3]") RETURN(0)},
    {"permute_same", IN(0, x, f32, "[2,2]") "%1 = permute %0 axes=[1,0]\n" RETURN(1), NULL},
    {"permute_permute",
     IN(0, x, f32, "[2,3,4]") "%1 = permute %0 axes=[1,2,0]\n%2 = permute %1 axes=[1,0,2]\n" RETURN(2),
     IN(0, x, f32, "[2,3,4]") "%1 = permute %0 axes=[2,1,0]\n" RETURN(1)},
    {"permute_units", IN(0, x, f32, "[2,1,3]") "%1 = permute %0 axes=[1,0,2]\n" RETURN(1),
     IN(0, x, f32, "[2,1,3]") "%1 = reshape %0 shape=[1,2,3]\n" RETURN(1)},
    {"permute_units", IN(0, x, f32, "[2,1,3]") "%1 = permute %0 axes=[2,1,0]\n" RETURN(1), NULL},
    {"broadcast_same", IN(0, x, f32, "[2,1]") "%1 = broadcast %0 shape=[2,1]\n" RETURN(1),
     IN(0, x, f32, "[2,1]") RETURN(0)},
    {"broadcast_broadcast",
     IN(0, x, f32, "[1,1]") "%1 = broadcast %0 shape=[2,1]\n%2 = broadcast %1 shape=[2,3]\n" RETURN(2),
     IN(0, x, f32, "[1,1]") "%1 = broadcast %0 shape=[2,3]\n" RETURN(1)},
    {"pad_none", IN(0, x, f32, "[2,1]") IN(1, y, f32, "[]") "%2 = pad %0 %1 lo=[0,0] hi=[0,0] mid=[0,5]\n" RETURN(2),
     IN(0, x, f32, "[2,1]") RETURN(0)},
    {"pad_none", IN(0, x, f32, "[2,1]") IN(1, y, f32, "[]") "%2 = pad %0 %1 lo=[0,0] hi=[0,0] mid=[1,0]\n" RETURN(2),
     NULL},
    {"pad_pad",
     IN(0, x, f32, "[2]")
         IN(1, y, f32, "[]") "%2 = pad %0 %1 lo=[1] hi=[0] mid=[2]\n%3 = pad %2 %1 lo=[3] hi=[1] mid=[0]\n" RETURN(3),
     IN(0, x, f32, "[2]") IN(1, y, f32, "[]") "%2 = pad %0 %1 lo=[4] hi=[1] mid=[2]\n" RETURN(2)},
    {"pad_pad",
     IN(0, x, f32, "[2]")
         IN(1, y, f32, "[]") "%2 = pad %0 %1 lo=[1] hi=[0] mid=[0]\n%3 = pad %2 %1 lo=[3] hi=[1] mid=[1]\n" RETURN(3),
     NULL},
    {"pad_pad",
     IN(0, x, f32, "[2]") IN(1, y, f32, "[]")
         IN(2, z, f32, "[]") "%3 = pad %0 %1 lo=[1] hi=[0] mid=[0]\n%4 = pad %3 %2 lo=[3] hi=[1] mid=[0]\n" RETURN(4),
     NULL},
    {"slice_all", IN(0, x, f32, "[3,1]") "%1 = slice %0 lo=[0,0] hi=[3,1] step=[1,7]\n" RETURN(1),
     IN(0, x, f32, "[3,1]") RETURN(0)},
    {"slice_all", IN(0, x, f32, "[3,1]") "%1 = slice %0 lo=[1,0] hi=[3,1] step=[1,1]\n" RETURN(1), NULL},
    {"slice_slice",
     IN(0, x, f32, "[20]") "%1 = slice %0 lo=[2] hi=[19] step=[3]\n%2 = slice %1 lo=[1] hi=[6] step=[2]\n" RETURN(2),
     IN(0, x, f32, "[20]") "%1 = slice %0 lo=[5] hi=[18] step=[6]\n" RETURN(1)},
    {"slice_slice",
     IN(0, x, f32, "[4]") "%1 = slice %0 lo=[1] hi=[4] step=[2]\n%2 = slice %1 lo=[2] hi=[2] step=[1]\n" RETURN(2),
     IN(0, x, f32, "[4]") "%1 = slice %0 lo=[0] hi=[0] step=[1]\n" RETURN(1)},
    {"slice_pad",
     IN(0, x, f32, "[4]")
         IN(1, y, f32, "[]") "%2 = pad %0 %1 lo=[2] hi=[1] mid=[1]\n%3 = slice %2 lo=[4] hi=[9] step=[2]\n" RETURN(3),
     IN(0, x, f32, "[4]") "%1 = slice %0 lo=[1] hi=[4] step=[1]\n" RETURN(1)},
    {"slice_pad",
     IN(0, x, f32, "[4]")
         IN(1, y, f32, "[]") "%2 = pad %0 %1 lo=[2] hi=[1] mid=[0]\n%3 = slice %2 lo=[1] hi=[5] step=[1]\n" RETURN(3),
     NULL},
    {"slice_pad",
     IN(0, x, f32, "[4]")
         IN(1, y, f32, "[]") "%2 = pad %0 %1 lo=[2] hi=[1] mid=[0]\n%3 = slice %2 lo=[2] hi=[7] step=[1]\n" RETURN(3),
     NULL},
    {"slice_pad",
     IN(0, x, f32, "[4]")
         IN(1, y, f32, "[]") "%2 = pad %0 %1 lo=[2] hi=[1] mid=[1]\n%3 = slice %2 lo=[2] hi=[4] step=[1]\n" RETURN(3),
     NULL},
    {"slice_broadcast",
     IN(0, x, f32, "[1,4]") "%1 = broadcast %0 shape=[6,4]\n%2 = slice %1 lo=[1,2] hi=[5,4] step=[2,1]\n" RETURN(2),
     IN(0, x, f32, "[1,4]") "%1 = slice %0 lo=[0,2] hi=[1,4] step=[1,1]\n%2 = broadcast %1 shape=[2,2]\n" RETURN(2)},
    {"slice_concat",
     IN(0, x, f32, "[3]")
         IN(1, y, f32, "[4]") "%2 = concat %0 %1 axis=0\n%3 = slice %2 lo=[4] hi=[7] step=[2]\n" RETURN(3),
     IN(0, y, f32, "[4]") "%1 = slice %0 lo=[1] hi=[4] step=[2]\n" RETURN(1)},
    {"slice_concat",
     IN(0, x, f32, "[3]")
         IN(1, y, f32, "[4]") "%2 = concat %0 %1 axis=0\n%3 = slice %2 lo=[2] hi=[4] step=[1]\n" RETURN(3),
     NULL},
    {"slice_concat", /* positions 0, 2 and 4: the last is in the second part */
     IN(0, x, f32, "[3]")
         IN(1, y, f32, "[4]") "%2 = concat %0 %1 axis=0\n%3 = slice %2 lo=[0] hi=[5] step=[2]\n" RETURN(3),
     NULL},
    {"slice_flip", IN(0, x, f32, "[6]") "%1 = flip %0 axes=[0]\n%2 = slice %1 lo=[1] hi=[6] step=[3]\n" RETURN(2),
     IN(0, x, f32, "[6]") "%1 = slice %0 lo=[1] hi=[5] step=[3]\n%2 = flip %1 axes=[0]\n" RETURN(2)},
    {"flip_none", IN(0, x, f32, "[2,1]") "%1 = flip %0 axes=[1]\n" RETURN(1), IN(0, x, f32, "[2,1]") RETURN(0)},
    {"flip_none", IN(0, x, f32, "[2,1]") "%1 = flip %0 axes=[0,1]\n" RETURN(1), NULL},
    {"flip_flip", IN(0, x, f32, "[2,3,4]") "%1 = flip %0 axes=[0,1]\n%2 = flip %1 axes=[1,2]\n" RETURN(2),
     IN(0, x, f32, "[2,3,4]") "%1 = flip %0 axes=[0,2]\n" RETURN(1)},
    {"flip_flip", IN(0, x, f32, "[2]") "%1 = flip %0 axes=[0]\n%2 = flip %1 axes=[0]\n" RETURN(2),
     IN(0, x, f32, "[2]") RETURN(0)},
    {"flip_broadcast", IN(0, x, f32, "[1,4]") "%1 = broadcast %0 shape=[6,4]\n%2 = flip %1 axes=[0,1]\n" RETURN(2),
     IN(0, x, f32, "[1,4]") "%1 = flip %0 axes=[1]\n%2 = broadcast %1 shape=[6,4]\n" RETURN(2)},
    {"concat_one", IN(0, x, f32, "[3]") "%1 = concat %0 axis=0\n" RETURN(1), IN(0, x, f32, "[3]") RETURN(0)},
    {"concat_empty", IN(0, x, f32, "[3]") IN(1, y, f32, "[0]") "%2 = concat %0 %1 %0 axis=0\n" RETURN(2),
     IN(0, x, f32, "[3]") "%1 = concat %0 %0 axis=0\n" RETURN(1)},
    {"concat_empty", IN(0, x, f32, "[3,0]") IN(1, y, f32, "[2,0]") "%2 = concat %0 %1 axis=0\n" RETURN(2), NULL},
    {"concat_concat", IN(0, x, f32, "[3]") "%1 = concat %0 %0 axis=0\n%2 = concat %0 %1 axis=0\n" RETURN(2),
     IN(0, x, f32, "[3]") "%1 = concat %0 %0 %0 axis=0\n" RETURN(1)},
    {"concat_concat", IN(0, x, f32, "[3,3]") "%1 = concat %0 %0 axis=0\n%2 = concat %1 %1 axis=1\n" RETURN(2), NULL},
    {"concat_slices",
     IN(0, x, f32, "[9]") "%1 = slice %0 lo=[1] hi=[4] step=[1]\n%2 = slice %0 lo=[4] hi=[7] step=[1]\n%3 = "
                          "concat %0 %1 %2 axis=0\n" RETURN(3),
     IN(0, x, f32, "[9]") "%1 = slice %0 lo=[1] hi=[7] step=[1]\n%2 = concat %0 %1 axis=0\n" RETURN(2)},
    {"concat_slices",
     IN(0, x, f32, "[9]") "%1 = slice %0 lo=[1] hi=[4] step=[1]\n%2 = slice %0 lo=[5] hi=[7] step=[1]\n%3 = "
                          "concat %1 %2 axis=0\n" RETURN(3),
     NULL},
    {"concat_slices",
     IN(0, x, f32, "[9,2]") "%1 = slice %0 lo=[1,0] hi=[4,1] step=[1,1]\n%2 = slice %0 lo=[4,1] hi=[7,2] step=[1,1]\n"
                            "%3 = concat %1 %2 axis=0\n" RETURN(3),
     NULL},
    {"slice_at_constant",
     IN(0, x, f32, "[5,5]") "%1 = const dtype=i8 shape=[] data={-3}\n%2 = const dtype=u64 shape=[] "
                            "data={18446744073709551615}\n"
                            "%3 = slice_at %0 %1 %2 shape=[2,3]\n" RETURN(3),
     IN(0, x, f32, "[5,5]") "%1 = slice %0 lo=[0,2] hi=[2,5] step=[1,1]\n" RETURN(1)},
    {"slice_at_constant", IN(0, x, f32, "[5]") IN(1, i, i32, "[]") "%2 = slice_at %0 %1 shape=[2]\n" RETURN(2), NULL},
    {"slice_at_all", IN(0, x, f32, "[5]") IN(1, i, i32, "[]") "%2 = slice_at %0 %1 shape=[5]\n" RETURN(2),
     IN(0, x, f32, "[5]") RETURN(0)},
    {"update_at_all",
     IN(0, x, f32, "[5]") IN(1, u, f32, "[5]") IN(2, i, i32, "[]") "%3 = update_at %0 %1 %2\n" RETURN(3),
     IN(0, u, f32, "[5]") RETURN(0)},
    {"update_at_all",
     IN(0, x, f32, "[5]") IN(1, u, f32, "[4]") IN(2, i, i32, "[]") "%3 = update_at %0 %1 %2\n" RETURN(3), NULL},
    {"update_at_empty",
     IN(0, x, f32, "[5]") IN(1, u, f32, "[0]") IN(2, i, i32, "[]") "%3 = update_at %0 %1 %2\n" RETURN(3),
     IN(0, x, f32, "[5]") RETURN(0)},
    {"window_unit", IN(0, x, f32, "[5,4]") "%1 = window %0 axes=[1] size=[1] step=[1] dilate=[3]\n" RETURN(1),
     IN(0, x, f32, "[5,4]") "%1 = reshape %0 shape=[5,4,1]\n" RETURN(1)},
    {"window_unit", IN(0, x, f32, "[5,4]") "%1 = window %0 axes=[1] size=[1] step=[2] dilate=[1]\n" RETURN(1), NULL},
    {"col2im_tiles", IN(0, x, f32, "[5,4,1]") "%1 = col2im %0 shape=[5,4] axes=[1] step=[1] dilate=[1]\n" RETURN(1),
     IN(0, x, f32, "[5,4,1]") "%1 = reshape %0 shape=[5,4]\n" RETURN(1)},
    {"col2im_tiles",
     IN(0, x, f32, "[5,3,4,2,6]") "%1 = col2im %0 shape=[5,6,24] axes=[1,2] step=[2,6] dilate=[1,1]\n" RETURN(1),
     IN(0, x, f32, "[5,3,4,2,6]") "%1 = permute %0 axes=[0,1,3,2,4]\n%2 = reshape %1 shape=[5,6,24]\n" RETURN(2)},
    {"col2im_tiles", IN(0, x, f32, "[5,1,7]") "%1 = col2im %0 shape=[5,7] axes=[1] step=[3] dilate=[1]\n" RETURN(1),
     IN(0, x, f32, "[5,1,7]") "%1 = reshape %0 shape=[5,7]\n" RETURN(1)},
    {"col2im_tiles", IN(0, x, f32, "[5,2,2]") "%1 = col2im %0 shape=[5,4] axes=[1] step=[1] dilate=[2]\n" RETURN(1),
     NULL},
    {"col2im_tiles", IN(0, x, f32, "[5,2,1]") "%1 = col2im %0 shape=[5,4] axes=[1] step=[2] dilate=[1]\n" RETURN(1),
     NULL},
    {"gather_iota",
     IN(0, x, f32, "[2,5]") "%1 = iota dtype=u8 shape=[5] axis=0\n%2 = gather %0 %1 axis=1 batch=0\n" RETURN(2),
     IN(0, x, f32, "[2,5]") RETURN(0)},
    {"gather_iota",
     IN(0, x, f32, "[2,5]") "%1 = iota dtype=u8 shape=[4] axis=0\n%2 = gather %0 %1 axis=1 batch=0\n" RETURN(2), NULL},
    {"gather_iota",
     IN(0, x, i8, "[129]") "%1 = iota dtype=i8 shape=[129] axis=0\n%2 = gather %0 %1 axis=0 batch=0\n" RETURN(2), NULL},
    {"scatter_nothing",
     IN(0, x, f32, "[5]") IN(1, i, i32, "[0]")
         IN(2, u, f32, "[0]") "%3 = scatter %0 %1 %2 axis=0 batch=0 reduce=sum\n" RETURN(3),
     IN(0, x, f32, "[5]") RETURN(0)},
    {"fold_permute", "%0 = const dtype=i8 shape=[2,2] data={1, 2, 3, 4}\n%1 = permute %0 axes=[1,0]\n" RETURN(1),
     "%0 = const dtype=i8 shape=[2,2] data={1, 3, 2, 4}\n" RETURN(0)},
    {"fold_pad",
     "%0 = const dtype=i8 shape=[1] data={1}\n%1 = const dtype=i8 shape=[] data={9}\n%2 = pad %0 %1 lo=[1] "
     "hi=[2] mid=[0]\n" RETURN(2),
     "%0 = const dtype=i8 shape=[4] data={9, 1, 9, 9}\n" RETURN(0)},
    {"fold_pad",
     "%0 = const dtype=i8 shape=[1] data={1}\n%1 = const dtype=i8 shape=[] data={9}\n%2 = pad %0 %1 lo=[99] "
     "hi=[0] mid=[0]\n" RETURN(2),
     NULL},
    {"fold_slice", "%0 = const dtype=i8 shape=[3] data={1, 2, 3}\n%1 = slice %0 lo=[0] hi=[3] step=[2]\n" RETURN(1),
     "%0 = const dtype=i8 shape=[2] data={1, 3}\n" RETURN(0)},
    {"fold_flip", "%0 = const dtype=i8 shape=[3] data={1, 2, 3}\n%1 = flip %0 axes=[0]\n" RETURN(1),
     "%0 = const dtype=i8 shape=[3] data={3, 2, 1}\n" RETURN(0)},
    {"fold_concat", "%0 = const dtype=i8 shape=[1] data={1}\n%1 = concat %0 %0 axis=0\n" RETURN(1),
     "%0 = const dtype=i8 shape=[2] data={1, 1}\n" RETURN(0)},
};

static const struct row reductions[] = {
    {"reduce_unit", IN(0, x, f32, "[2,1,3]") "%1 = reduce %0 axes=[1] reduce=sum\n" RETURN(1),
     IN(0, x, f32, "[2,1,3]") "%1 = reshape %0 shape=[2,3]\n" RETURN(1)},
    {"reduce_unit", IN(0, x, f32, "[2,1,3]") "%1 = reduce %0 axes=[0,1] reduce=sum\n" RETURN(1), NULL},
    {"reduce_reduce",
     IN(0, x, f32, "[2,3,4]") "%1 = reduce %0 axes=[1] reduce=max\n%2 = reduce %1 axes=[1] reduce=max\n" RETURN(2),
     IN(0, x, f32, "[2,3,4]") "%1 = reduce %0 axes=[1,2] reduce=max\n" RETURN(1)},
    {"reduce_reduce",
     IN(0, x, i32, "[2,3,4]") "%1 = reduce %0 axes=[0] reduce=sum\n%2 = reduce %1 axes=[0] reduce=sum\n" RETURN(2),
     IN(0, x, i32, "[2,3,4]") "%1 = reduce %0 axes=[0,1] reduce=sum\n" RETURN(1)},
    {"reduce_reduce",
     IN(0, x, f32, "[2,3,4]") "%1 = reduce %0 axes=[0] reduce=sum\n%2 = reduce %1 axes=[0] reduce=sum\n" RETURN(2),
     NULL},
    {"reduce_reduce",
     IN(0, x, i32, "[2,3,4]") "%1 = reduce %0 axes=[0] reduce=sum\n%2 = reduce %1 axes=[0] reduce=prod\n" RETURN(2),
     NULL},
    {"reduce_float_reduce",
     IN(0, x, f32, "[2,3,4]") "%1 = reduce %0 axes=[0] reduce=sum\n%2 = reduce %1 axes=[0] reduce=sum\n" RETURN(2),
     IN(0, x, f32, "[2,3,4]") "%1 = reduce %0 axes=[0,1] reduce=sum\n" RETURN(1)},
    {"reduce_permute",
     IN(0, x, f32, "[2,3,4]") "%1 = permute %0 axes=[2,0,1]\n%2 = reduce %1 axes=[1] reduce=sum\n" RETURN(2),
     IN(0, x, f32, "[2,3,4]") "%1 = reduce %0 axes=[0] reduce=sum\n%2 = permute %1 axes=[1,0]\n" RETURN(2)},
    {"reduce_permute",
     IN(0, x, f32, "[2,3,4]") "%1 = permute %0 axes=[2,0,1]\n%2 = reduce %1 axes=[0,1] reduce=sum\n" RETURN(2), NULL},
    {"reduce_permute",
     IN(0, x, f32, "[2,3,4]") "%1 = permute %0 axes=[2,0,1]\n%2 = reduce %1 axes=[0,1] reduce=min\n" RETURN(2),
     IN(0, x, f32, "[2,3,4]") "%1 = reduce %0 axes=[0,2] reduce=min\n%2 = permute %1 axes=[0]\n" RETURN(2)},
    {"reduce_broadcast",
     IN(0, x, f32, "[1,3]") "%1 = broadcast %0 shape=[4,3]\n%2 = reduce %1 axes=[0,1] reduce=max\n" RETURN(2),
     IN(0, x, f32, "[1,3]") "%1 = reduce %0 axes=[0,1] reduce=max\n" RETURN(1)},
    {"reduce_broadcast",
     IN(0, x, f32, "[1,3]") "%1 = broadcast %0 shape=[0,3]\n%2 = reduce %1 axes=[0] reduce=max\n" RETURN(2), NULL},
    {"reduce_broadcast",
     IN(0, x, f32, "[1,3]") "%1 = broadcast %0 shape=[4,3]\n%2 = reduce %1 axes=[0] reduce=sum\n" RETURN(2), NULL},
    {"sum_broadcast",
     IN(0, x, i8, "[1]") "%1 = broadcast %0 shape=[300]\n%2 = reduce %1 axes=[0] reduce=sum\n" RETURN(2),
     IN(0, x, i8, "[1]") "%1 = reduce %0 axes=[0] reduce=sum\n%2 = const dtype=i8 shape=[] data={44}\n%3 = "
                         "mul %1 %2\n" RETURN(3)},
    {"sum_broadcast",
     IN(0, x, f32, "[1]") "%1 = broadcast %0 shape=[300]\n%2 = reduce %1 axes=[0] reduce=sum\n" RETURN(2), NULL},
    {"sum_float_broadcast",
     IN(0, x, f32, "[1]") "%1 = broadcast %0 shape=[300]\n%2 = reduce %1 axes=[0] reduce=sum\n" RETURN(2),
     IN(0, x, f32, "[1]") "%1 = reduce %0 axes=[0] reduce=sum\n%2 = const dtype=f32 shape=[] data={300}\n%3 "
                          "= mul %1 %2\n" RETURN(3)},
    {"sum_float_broadcast",
     IN(0, x, f8e4m3, "[1]") "%1 = broadcast %0 shape=[500]\n%2 = reduce %1 axes=[0] reduce=sum\n" RETURN(2), NULL},
    {"reduce_neg", IN(0, x, f32, "[3]") "%1 = neg %0\n%2 = reduce %1 axes=[0] reduce=max\n" RETURN(2),
     IN(0, x, f32, "[3]") "%1 = reduce %0 axes=[0] reduce=min\n%2 = neg %1\n" RETURN(2)},
    {"reduce_neg", IN(0, x, i8, "[3]") "%1 = neg %0\n%2 = reduce %1 axes=[0] reduce=max\n" RETURN(2), NULL},
    {"reduce_neg", IN(0, x, f32, "[3]") "%1 = neg %0\n%2 = reduce %1 axes=[0] reduce=sum\n" RETURN(2), NULL},
    {"scan_unit", IN(0, x, f32, "[3,1]") "%1 = scan %0 axis=1 reduce=prod reverse=1\n" RETURN(1),
     IN(0, x, f32, "[3,1]") RETURN(0)},
    {"scan_unit", IN(0, x, f32, "[3,1]") "%1 = scan %0 axis=0 reduce=prod reverse=1\n" RETURN(1), NULL},
    {"argreduce_unit", IN(0, x, f32, "[3,1]") "%1 = argreduce %0 axis=1 reduce=max\n" RETURN(1),
     "%0 = const dtype=i64 shape=[1] data={0}\n%1 = broadcast %0 shape=[3]\n" RETURN(1)},
    {"argreduce_unit", IN(0, x, f32, "[3,1]") "%1 = argreduce %0 axis=0 reduce=max\n" RETURN(1), NULL},
    {"dot_permute",
     IN(0, x, f32, "[2,3,4]")
         IN(1, y, f32,
            "[5,4]") "%2 = permute %0 axes=[2,0,1]\n%3 = permute %1 axes=[1,0]\n"
                     "%4 = dot %2 %3 a_batch=[] b_batch=[] a_sum=[0] b_sum=[0] reduce=sum combine=mul\n" RETURN(4),
     IN(0, x, f32, "[2,3,4]") IN(1, y, f32, "[5,4]") "%2 = dot %0 %1 a_batch=[] b_batch=[] a_sum=[2] "
                                                     "b_sum=[1] reduce=sum combine=mul\n" RETURN(2)},
    {"dot_permute",
     IN(0, x, f32, "[2,3,4]")
         IN(1, y, f32,
            "[4]") "%2 = permute %0 axes=[1,0,2]\n"
                   "%3 = dot %2 %1 a_batch=[] b_batch=[] a_sum=[2] b_sum=[0] reduce=sum combine=mul\n" RETURN(3),
     NULL},
    {"dot_neg",
     IN(0, x, f32, "[4]")
         IN(1, y, f32,
            "[4]") "%2 = neg %0\n%3 = neg %1\n"
                   "%4 = dot %2 %3 a_batch=[] b_batch=[] a_sum=[0] b_sum=[0] reduce=max combine=mul\n" RETURN(4),
     IN(0, x, f32, "[4]") IN(1, y, f32, "[4]") "%2 = dot %0 %1 a_batch=[] b_batch=[] a_sum=[0] b_sum=[0] "
                                               "reduce=max combine=mul\n" RETURN(2)},
    {"dot_neg",
     IN(0, x, i8, "[4]") IN(
         1, y, i8, "[4]") "%2 = neg %0\n%3 = neg %1\n"
                          "%4 = dot %2 %3 a_batch=[] b_batch=[] a_sum=[0] b_sum=[0] reduce=max combine=mul\n" RETURN(4),
     IN(0, x, i8, "[4]") IN(1, y, i8, "[4]") "%2 = dot %0 %1 a_batch=[] b_batch=[] a_sum=[0] b_sum=[0] "
                                             "reduce=max combine=mul\n" RETURN(2)},
    {"dot_neg",
     IN(0, x, f32, "[4]")
         IN(1, y, f32,
            "[4]") "%2 = neg %0\n%3 = neg %1\n"
                   "%4 = dot %2 %3 a_batch=[] b_batch=[] a_sum=[0] b_sum=[0] reduce=sum combine=add\n" RETURN(4),
     NULL},
};

#define BRANCHES                                                                                                       \
  "fn @f0 (%0: f32[]) {\n%1 = neg %0\nreturn %1 %0\n}\nfn @f1 (%0: f32[]) {\n%1 = abs %0\nreturn %1 %1\n}\n"
#define STEP                                                                                                           \
  "fn @f0 (%0: i64[], %1: f32[], %2: f32[3], %3: f32[]) {\n%4 = cast %0 dtype=f32\n%5 = add %1 %4\nreturn "            \
  "%5 %2\n}\n"
#define ROUND "fn @f0 (%0: i64[], %1: f32[], %2: f32[]) {\n%3 = mul %1 %2\nreturn %3\n}\n"

static const struct row control[] = {
    {"if_constant",
     BRANCHES IN(0, x, f32, "[]") "%1 = const dtype=bool shape=[] data={true}\n%2 = if %1 %0 body=@f0 "
                                  "other=@f1\nreturn %2.0 %2.1\n",
     IN(0, x, f32, "[]") "%1 = neg %0\nreturn %1 %0\n"},
    {"if_constant",
     BRANCHES IN(0, x, f32,
                 "[]") "%1 = const dtype=bool shape=[] data={false}\n%2 = if %1 %0 body=@f0 other=@f1\nreturn %2.1\n",
     IN(0, x, f32, "[]") "%1 = abs %0\nreturn %1\n"},
    {"if_constant", BRANCHES IN(0, x, f32, "[]") IN(1, c, bool, "[]") "%2 = if %1 %0 body=@f0 other=@f1\nreturn %2.1\n",
     NULL},
    {"if_same",
     BRANCHES IN(0, x, f32, "[]") IN(1, c, bool, "[]") "%2 = if %1 %0 body=@f0 other=@f0\nreturn %2.1 %2.0\n",
     IN(0, x, f32, "[]") "%1 = neg %0\nreturn %0 %1\n"},
    {"if_same", BRANCHES IN(0, x, f32, "[]") IN(1, c, bool, "[]") "%2 = if %1 %0 body=@f0 other=@f1\nreturn %2.1\n",
     NULL},
    {"if_not",
     BRANCHES IN(0, x, f32, "[]")
         IN(1, c, bool, "[]") "%2 = not %1\n%3 = if %2 %0 body=@f0 other=@f1\nreturn %3.0 %3.1\n",
     BRANCHES IN(0, x, f32, "[]") IN(1, c, bool, "[]") "%2 = if %1 %0 body=@f1 other=@f0\nreturn %2.0 %2.1\n"},
    {"loop_none",
     ROUND IN(0, x, f32, "[]")
         IN(1, y, f32, "[]") "%2 = loop %0 %1 trip=0 carries=1 scanned=0 reverse=0 body=@f0\n" RETURN(2),
     IN(0, x, f32, "[]") RETURN(0)},
    {"loop_none",
     ROUND IN(0, x, f32, "[]")
         IN(1, y, f32, "[]") "%2 = loop %0 %1 trip=2 carries=1 scanned=0 reverse=0 body=@f0\n" RETURN(2),
     NULL},
    {"loop_once",
     STEP IN(0, x, f32, "[]")
         IN(1, y, f32, "[1,3]") "%2 = loop %0 %1 %0 trip=1 carries=1 scanned=1 reverse=1 body=@f0\nreturn %2.0 %2.1\n",
     IN(0, x, f32, "[]")
         IN(1, y, f32, "[1,3]") "%2 = reshape %1 shape=[3]\n%3 = const dtype=i64 shape=[] data={0}\n%4 = "
                                "cast %3 dtype=f32\n"
                                "%5 = add %0 %4\n%6 = reshape %2 shape=[1,3]\nreturn %5 %6\n"},
    {"loop_once",
     STEP IN(0, x, f32, "[]")
         IN(1, y, f32, "[2,3]") "%2 = loop %0 %1 %0 trip=2 carries=1 scanned=1 reverse=1 body=@f0\nreturn %2.0 %2.1\n",
     NULL},
    {"while_never",
     "fn @f0 (%0: f32[], %1: f32[]) {\n%2 = const dtype=bool shape=[] data={false}\nreturn %2\n}\n"
     "fn @f1 (%0: f32[], %1: f32[]) {\n%2 = neg %0\nreturn %2\n}\n" IN(0, x, f32, "[]")
         IN(1, y, f32, "[]") "%2 = while %0 %1 carries=1 body=@f1 other=@f0\n" RETURN(2),
     IN(0, x, f32, "[]") RETURN(0)},
    {"while_never",
     "fn @f0 (%0: f32[], %1: f32[]) {\n%2 = lt %0 %1\nreturn %2\n}\n"
     "fn @f1 (%0: f32[], %1: f32[]) {\n%2 = neg %0\nreturn %2\n}\n" IN(0, x, f32, "[]")
         IN(1, y, f32, "[]") "%2 = while %0 %1 carries=1 body=@f1 other=@f0\n" RETURN(2),
     NULL},
};

static const struct {
  size_t n;
  const struct row *rows;
} tables[] = {{BASE_COUNT(conversions), conversions},
              {BASE_COUNT(movement), movement},
              {BASE_COUNT(reductions), reductions},
              {BASE_COUNT(control), control}};

/* ---- rows -------------------------------------------------------------------------------------------- */

static struct ir_module parse(quern_context *c, const char *text) {
  char whole[4096];
  struct ir_module module;
  int n = snprintf(whole, sizeof whole, "quern 1\n%s", text);
  if (ir_parse(c, whole, (size_t)n, &module) != QUERN_STATUS_OK) fail_msg("%s\n%s", quern_last_error(), text);
  return module;
}

static const struct ir_rule *find_rule(const char *name) {
  for (size_t i = 0; i < ir_rule_count; i++) {
    if (strcmp(ir_rules[i].name, name) == 0) return &ir_rules[i];
  }
  fail_msg("there is no rule %s", name);
  return NULL;
}

/* Rewrites with one rule alone; how often it fired. */
static uint64_t rewrite_by(const struct ir_rule *rule, size_t n, quern_tensor *const *roots, quern_tensor **out) {
  bool *enabled = calloc(ir_rule_count, sizeof *enabled);
  uint64_t *fired = calloc(ir_rule_count, sizeof *fired);
  enabled[rule - ir_rules] = true;
  quern_status status =
      ir_rewrite(ctx, n, roots,
                 &(struct ir_rewrite_options){.approximate = !rule->exact, .enabled = enabled, .fired = fired}, out);
  uint64_t times = fired[rule - ir_rules];
  free(enabled);
  free(fired);
  if (status != QUERN_STATUS_OK) fail_msg("%s: %s", rule->name, quern_last_error());
  return times;
}

/* The graph as a context of its own prints it. */
static void print_alone(struct base_str *str, const char *text) {
  quern_context *other;
  assert_int_equal(ir_context_new(&other, NULL), QUERN_STATUS_OK);
  struct ir_module module = parse(other, text);
  assert_int_equal(ir_print(other, str, module.n_outputs, module.outputs, NULL), QUERN_STATUS_OK);
  quern_context_free(other);
}

static void check_row(const struct row *row) {
  struct ir_module module = parse(ctx, row->before);
  quern_tensor *out[4];
  uint64_t fired = rewrite_by(find_rule(row->rule), module.n_outputs, module.outputs, out);
  if ((fired > 0) != (row->after != NULL)) fail_msg("%s fired %d times:\n%s", row->rule, (int)fired, row->before);
  assert_int_equal(ir_verify(ctx, module.n_outputs, out), QUERN_STATUS_OK);
  struct base_str got, want;
  base_str_init(&got, &ctx->heap);
  base_str_init(&want, &ctx->heap);
  print_alone(&want, row->after != NULL ? row->after : row->before);
  assert_int_equal(ir_print(ctx, &got, module.n_outputs, out, NULL), QUERN_STATUS_OK);
  if (strcmp(got.at, want.at) != 0) fail_msg("%s gives\n%s, not\n%s", row->rule, got.at, want.at);
  base_str_fini(&got);
  base_str_fini(&want);
}

static void rows_hold(void **state) {
  (void)state;
  for (size_t t = 0; t < BASE_COUNT(tables); t++) {
    for (size_t i = 0; i < tables[t].n; i++) check_row(&tables[t].rows[i]);
  }
}

static bool has_row(const char *rule) {
  for (size_t t = 0; t < BASE_COUNT(tables); t++) {
    for (size_t i = 0; i < tables[t].n; i++) {
      if (strcmp(tables[t].rows[i].rule, rule) == 0 && tables[t].rows[i].after != NULL) return true;
    }
  }
  return false;
}

static bool is_elementwise(enum ir_op op) { return op >= IR_NEG && op <= IR_SELECT; }

static void every_rule_has_a_row(void **state) {
  (void)state;
  for (size_t i = 0; i < ir_rule_count; i++) {
    const struct ir_rule *rule = &ir_rules[i];
    bool looped = (rule->apply == ir_rule_fold || rule->apply == ir_rule_stretch) && is_elementwise(rule->op);
    bool coded = rule->apply != NULL || rule->apply_all != NULL;
    bool casts = rule->apply == ir_rule_cast_cast;
    if (coded && !looped && !casts && !has_row(rule->name)) fail_msg("%s has no row", rule->name);
    for (size_t k = 0; k < i; k++) {
      if (strcmp(ir_rules[k].name, rule->name) == 0) fail_msg("two rules are called %s", rule->name);
    }
  }
}

/* ---- casts: every triple of dtypes ------------------------------------------------------------------- */

/* All values of 8 bits, or the corners of wider dtypes, as a constant. */
static quern_tensor *corners(quern_dtype dtype) {
  static const double few[] = {0,
                               -0.0,
                               1,
                               -1,
                               0.5,
                               2.5,
                               -2.5,
                               127,
                               128,
                               129,
                               255,
                               256,
                               257,
                               -128,
                               -129,
                               2047,
                               2049,
                               32767,
                               32768,
                               65504,
                               65535,
                               65536,
                               16777215,
                               16777217,
                               2147483647,
                               2147483648,
                               -2147483648,
                               4294967295,
                               4294967296,
                               9007199254740992.0,
                               9223372036854774784.0,
                               18446744073709549568.0,
                               1e-8,
                               1e-40,
                               3e38,
                               1e300,
                               INFINITY,
                               -INFINITY,
                               NAN};
  unsigned char data[8 * 256];
  bool narrow = base_dtypes[dtype].size == 1 && dtype != QUERN_DTYPE_BOOL;
  int64_t n = narrow ? 256 : (int64_t)BASE_COUNT(few);
  for (int64_t i = 0; i < n; i++) {
    if (narrow)
      data[i] = (unsigned char)i;
    else
      base_convert(dtype, data, (size_t)i, QUERN_DTYPE_F64, few, (size_t)i);
  }
  return ir_make(
      ctx, IR_CONST, 0, NULL,
      ATTRS(.dtype = dtype, .shape = {1, &n}, .data = {.n = (size_t)n * base_dtypes[dtype].size, .at = data}));
}

static void casts_through_casts(void **state) {
  (void)state;
  const struct ir_rule *rule = find_rule("cast_cast");
  int fired = 0;
  for (int abc = 0; abc < QUERN_DTYPE_COUNT * QUERN_DTYPE_COUNT * QUERN_DTYPE_COUNT; abc++) {
    quern_dtype a = (quern_dtype)(abc / (QUERN_DTYPE_COUNT * QUERN_DTYPE_COUNT)),
                b = (quern_dtype)(abc / QUERN_DTYPE_COUNT % QUERN_DTYPE_COUNT);
    quern_dtype c = (quern_dtype)(abc % QUERN_DTYPE_COUNT);
    quern_tensor *x = corners(a),
                 *before = IR_MAKE(ctx, IR_CAST, ATTRS(.dtype = c), IR_MAKE(ctx, IR_CAST, ATTRS(.dtype = b), x)),
                 *after;
    unsigned char data[2][8 * 256];
    if (rewrite_by(rule, 1, &before, &after) == 0) continue;
    fired++;
    assert_int_equal(ir_eval(ctx, 2, (quern_tensor *[]){before, after}, (void *[]){data[0], data[1]}, 0, NULL),
                     QUERN_STATUS_OK);
    for (size_t i = 0; i < (size_t)ir_count(before); i++) {
      size_t size = base_dtypes[c].size;
      bool nan = base_dtype_is(c, BASE_FLOAT) && base_load_float(c, data[0], i) != base_load_float(c, data[0], i);
      if (nan && base_load_float(c, data[1], i) != base_load_float(c, data[1], i)) continue;
      if (memcmp(data[0] + i * size, data[1] + i * size, size) == 0) continue;
      fail_msg("%s -> %s -> %s: element %zu", base_dtypes[a].name, base_dtypes[b].name, base_dtypes[c].name, i);
    }
  }
  assert_true(fired > 500); /* of 3375 triples */
}

static void casts_that_lose_stay(void **state) {
  (void)state;
  static const quern_dtype triples[][3] = {
      {QUERN_DTYPE_F64, QUERN_DTYPE_F32, QUERN_DTYPE_F64},  {QUERN_DTYPE_F64, QUERN_DTYPE_F32, QUERN_DTYPE_F16},
      {QUERN_DTYPE_F16, QUERN_DTYPE_BF16, QUERN_DTYPE_F32}, {QUERN_DTYPE_I8, QUERN_DTYPE_F32, QUERN_DTYPE_U8},
      {QUERN_DTYPE_I32, QUERN_DTYPE_F32, QUERN_DTYPE_I32},  {QUERN_DTYPE_I64, QUERN_DTYPE_I8, QUERN_DTYPE_I64},
      {QUERN_DTYPE_F32, QUERN_DTYPE_I32, QUERN_DTYPE_F32},  {QUERN_DTYPE_I32, QUERN_DTYPE_BOOL, QUERN_DTYPE_I32},
      {QUERN_DTYPE_I8, QUERN_DTYPE_U8, QUERN_DTYPE_F32},    {QUERN_DTYPE_F8E5M2, QUERN_DTYPE_F8E4M3, QUERN_DTYPE_F16}};
  for (size_t i = 0; i < BASE_COUNT(triples); i++) {
    quern_tensor *x = ir_leaf(ctx, triples[i][0], 0, NULL),
                 *y = IR_MAKE(ctx, IR_CAST, ATTRS(.dtype = triples[i][1]), x), *out;
    y = IR_MAKE(ctx, IR_CAST, ATTRS(.dtype = triples[i][2]), y);
    if (rewrite_by(find_rule("cast_cast"), 1, &y, &out) != 0) fail_msg("triple %zu", i);
  }
}

/* ---- constants and stretched sources: every elementwise op ------------------------------------------- */

/* The op of a rule on sources from a function, of the first dtype that the op admits. */
static quern_tensor *on_sources(const struct ir_rule *rule, quern_tensor *(*source)(quern_dtype, int)) {
  enum ir_op op = rule->op;
  quern_dtype dtype = QUERN_DTYPE_F64;
  while (op != IR_SELECT && !base_dtype_is(dtype, ir_ops[op].dtypes)) dtype++;
  quern_tensor *src[3];
  for (int i = 0; i < ir_ops[op].n_src; i++) src[i] = source(op == IR_SELECT && i == 0 ? QUERN_DTYPE_BOOL : dtype, i);
  return ir_make(ctx, op, ir_ops[op].n_src, src, ATTRS(.dtype = op == IR_BITCAST ? QUERN_DTYPE_U64 : QUERN_DTYPE_F16));
}

static quern_tensor *small_const(quern_dtype dtype, int i) {
  return test_const(dtype, DIMS(3), QUERN_DTYPE_F64, 3, (double[]){1, 0.5 * i, 2});
}

static quern_tensor *stretched(quern_dtype dtype, int i) {
  quern_tensor *x = test_const(dtype, DIMS(1, 2), QUERN_DTYPE_F64, 2, (double[]){1, 0.5 * i});
  return IR_MAKE(ctx, IR_BROADCAST, ATTRS(.shape = DIMS(3, 2)), x);
}

/* Stretched along both axes, but only the first one is shared by all sources. */
static quern_tensor *stretched_more(quern_dtype dtype, int i) {
  if (i == 0) return stretched(dtype, i);
  return IR_MAKE(ctx, IR_BROADCAST, ATTRS(.shape = DIMS(3, 2)),
                 test_const(dtype, DIMS(1, 1), QUERN_DTYPE_F64, 1, (double[]){i}));
}

static void expect_op(const struct ir_rule *rule, quern_tensor *before, enum ir_op op) {
  unsigned char data[2][64];
  quern_tensor *after;
  if (rewrite_by(rule, 1, &before, &after) != 1 || after->node->op != op)
    fail_msg("%s gives %s", rule->name, ir_ops[after->node->op].name);
  assert_int_equal(ir_eval(ctx, 2, (quern_tensor *[]){before, after}, (void *[]){data[0], data[1]}, 0, NULL),
                   QUERN_STATUS_OK);
  assert_memory_equal(data[0], data[1], ir_bytes(before));
}

static quern_tensor *input(quern_dtype dtype, int i) {
  (void)i;
  return ir_leaf(ctx, dtype, 2, (int64_t[]){3, 2});
}

/* Stretched along axes that they do not share. */
static quern_tensor *crosswise(quern_dtype dtype, int i) {
  quern_tensor *x = ir_leaf(ctx, dtype, 2, i % 2 == 0 ? (int64_t[]){1, 2} : (int64_t[]){3, 1});
  return IR_MAKE(ctx, IR_BROADCAST, ATTRS(.shape = DIMS(3, 2)), x);
}

static void elementwise_rules(void **state) {
  (void)state;
  int folds = 0, stretches = 0;
  for (size_t r = 0; r < ir_rule_count; r++) {
    const struct ir_rule *rule = &ir_rules[r];
    quern_tensor *out, *kept = NULL;
    if (!is_elementwise(rule->op)) continue;
    if (rule->apply == ir_rule_fold) {
      folds++;
      expect_op(rule, on_sources(rule, small_const), IR_CONST);
      kept = on_sources(rule, input);
    } else if (rule->apply == ir_rule_stretch) {
      stretches++;
      expect_op(rule, on_sources(rule, stretched), IR_BROADCAST);
      expect_op(rule, on_sources(rule, stretched_more), IR_BROADCAST);
      kept = on_sources(rule, ir_ops[rule->op].n_src == 1 ? input : crosswise);
    }
    if (kept != NULL && rewrite_by(rule, 1, &kept, &out) != 0) fail_msg("%s fires where it must not", rule->name);
  }
  assert_int_equal(stretches, IR_SELECT - IR_NEG); /* all but keep: what it gives is to lie in memory */
  assert_int_equal(folds, stretches - 1);          /* all but stop_grad, which has a rule of its own */
}

/* ---- approximate rules written in C ------------------------------------------------------------------ */

static void approximate_reductions_are_near(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(1, 3), 0.1, 0.7, 1.3);
  quern_tensor *y = IR_MAKE(ctx, IR_BROADCAST, ATTRS(.shape = DIMS(7, 3)), x);
  quern_tensor *before[] = {
      IR_MAKE(ctx, IR_REDUCE, ATTRS(.axes = DIMS(0)), y),
      IR_MAKE(ctx, IR_REDUCE, ATTRS(.axes = DIMS(0)), IR_MAKE(ctx, IR_REDUCE, ATTRS(.axes = DIMS(1)), y))};
  quern_tensor *after[2];
  double a[2][3], b[2][3];
  assert_int_equal(ir_rewrite(ctx, 2, before, &(struct ir_rewrite_options){.approximate = true}, after),
                   QUERN_STATUS_OK);
  assert_ptr_not_equal(before[0], after[0]);
  assert_ptr_not_equal(before[1], after[1]);
  assert_int_equal(ir_eval(ctx, 2, before, (void *[]){a[0], a[1]}, 0, NULL), QUERN_STATUS_OK);
  assert_int_equal(ir_eval(ctx, 2, after, (void *[]){b[0], b[1]}, 0, NULL), QUERN_STATUS_OK);
  for (int i = 0; i < 3; i++) assert_true(a[0][i] - b[0][i] < 1e-12 && b[0][i] - a[0][i] < 1e-12);
  assert_true(a[1][0] - b[1][0] < 1e-12 && b[1][0] - a[1][0] < 1e-12);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(rows_hold),           TEST(every_rule_has_a_row),
                                     TEST(casts_through_casts), TEST(casts_that_lose_stay),
                                     TEST(elementwise_rules),   TEST(approximate_reductions_are_near)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
