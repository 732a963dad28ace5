/* codegen/template.c -- templates of C text: a $word stands for a type, a number or an operand
**   $D $A           the result's and the argument's type; $Ds $As their elements
**   $Di $Du $Ai $Au  integers of as many bytes and lanes; $Dm $Am masks: as $Di $Ai, of scalars i32
**   $f32 $i8 ...    that element type with as many lanes as D; $n: how many lanes those are
**   $Dw             an unsigned integer with as many lanes and bytes as D, but 4 at least
**   $table          what the dialect has before the type that a pointer to a table points to
**   $each(text)     the text once a lane, separated by commas, with @ for the lane; $iota: 0, 1, ...
**   $a $b $c $d     operands
**   the rest        numbers that depend on D or A: see words below
** ${word} where a letter or digit follows.      tests: tests/codegen/test_text.c
*/
#include "codegen/cg_int.h"

#include <stdio.h>

int cg_size(int dtype) { return dtype == CG_CHAR ? 1 : (int)base_dtypes[dtype].size; }

quern_dtype cg_unsigned(int size) {
  return size == 1 ? QUERN_DTYPE_U8 : size == 2 ? QUERN_DTYPE_U16 : size == 4 ? QUERN_DTYPE_U32 : QUERN_DTYPE_U64;
}
quern_dtype cg_signed(int size) {
  return size == 1 ? QUERN_DTYPE_I8 : size == 2 ? QUERN_DTYPE_I16 : size == 4 ? QUERN_DTYPE_I32 : QUERN_DTYPE_I64;
}

void cg_type_add(struct base_str *str, struct cg_type type) {
  base_str_add(str, type.dtype == CG_CHAR            ? "c8"
                    : type.dtype == QUERN_DTYPE_BOOL ? "u8"
                                                     : base_dtypes[type.dtype].name);
  if (type.lanes > 1) base_str_printf(str, "x%d", type.lanes);
}

/* ---- literals ------------------------------------------------------------------------------------------ */

/* A float of that many bits of exponent and mantissa, in hexadecimal: exact. */
static void float_literal(struct base_str *str, bool scalar, uint64_t bits, int exponent_bits, int mantissa,
                          const char *suffix) {
  uint64_t ones = (UINT64_C(1) << exponent_bits) - 1, fraction = bits & ((UINT64_C(1) << mantissa) - 1);
  int bias = (int)(ones >> 1), exponent = (int)(bits >> mantissa & ones);
  if ((uint64_t)exponent == ones && scalar) { /* GPUs have no common name for these */
    base_str_printf(str, mantissa == 23 ? "as_f32_u32(0x%llxu)" : "as_f64_u64(0x%llxul)", (unsigned long long)bits);
    return;
  }
  base_str_add(str, bits >> (exponent_bits + mantissa) & 1 ? "-" : "");
  if ((uint64_t)exponent == ones) {
    base_str_printf(str, fraction != 0 ? "__builtin_nan%s(\"\")" : "__builtin_inf%s()", suffix);
  } else {
    int digits = (mantissa + 3) / 4;
    unsigned long long aligned = fraction << (4 * digits - mantissa);
    base_str_printf(str, "0x%d.%0*llxp%d%s", exponent != 0, digits, aligned, BASE_MAX(exponent, 1) - bias, suffix);
  }
}

void cg_literal_f64(struct base_str *str, double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  float_literal(str, false, bits, 11, 52, "");
}

void cg_literal(struct base_str *str, const struct cg_dialect *dialect, quern_dtype dtype, uint64_t bits) {
  const struct base_dtype_info *info = &base_dtypes[dtype];
  uint64_t x = base_load_int(cg_unsigned((int)info->size), &bits, 0);
  if (dtype == QUERN_DTYPE_F32) {
    float_literal(str, dialect->scalar, x, 8, 23, "f");
  } else if (dtype == QUERN_DTYPE_F64) {
    float_literal(str, dialect->scalar, x, 11, 52, "");
  } else if (info->class == BASE_SIGNED) {
    long long i = (long long)base_load_int(dtype, &bits, 0);
    const char *suffix = info->size == 8 ? dialect->i64 : "";
    if (info->size == 8 && i == INT64_MIN)
      base_str_printf(str, "(-0x7fffffffffffffff%s - 1)", suffix);
    else
      base_str_printf(str, i < 0 ? "(%lld%s)" : "%lld%s", i, suffix);
  } else {
    base_str_printf(str, "%llu%s", (unsigned long long)x, info->size == 8 ? dialect->u64 : info->size == 4 ? "u" : "");
  }
}

/* ---- words --------------------------------------------------------------------------------------------- */

typedef void word(struct base_str *str, const struct cg_fill *with);

static struct cg_type integer_of(struct cg_type t, bool is_signed) {
  int size = cg_size(t.dtype);
  return (struct cg_type){is_signed ? (int)cg_signed(size) : (int)cg_unsigned(size), t.lanes};
}
static void add_mask(struct base_str *str, struct cg_type t) {
  cg_type_add(str, t.lanes == 1 ? (struct cg_type){QUERN_DTYPE_I32, 1} : integer_of(t, true));
}

#define WORD(NAME, ...)                                                                                                \
  static void word_##NAME(struct base_str *str, const struct cg_fill *with) { __VA_ARGS__; }
WORD(D, cg_type_add(str, with->d))
WORD(A, cg_type_add(str, with->a))
WORD(Ds, cg_type_add(str, (struct cg_type){with->d.dtype, 1}))
WORD(As, cg_type_add(str, (struct cg_type){with->a.dtype, 1}))
WORD(Di, cg_type_add(str, integer_of(with->d, true)))
WORD(Du, cg_type_add(str, integer_of(with->d, false)))
WORD(Ai, cg_type_add(str, integer_of(with->a, true)))
WORD(Au, cg_type_add(str, integer_of(with->a, false)))
WORD(Dm, add_mask(str, with->d))
WORD(Am, add_mask(str, with->a))
/* an unsigned integer in which products do not overflow an int */
WORD(Dw, cg_type_add(str, (struct cg_type){(int)cg_unsigned(BASE_MAX(cg_size(with->d.dtype), 4)), with->d.lanes}))
WORD(table, base_str_add(str, with->dialect->table))
WORD(n, base_str_printf(str, "%d", with->d.lanes))
WORD(bits, base_str_printf(str, "%d", 8 * cg_size(with->d.dtype)))
WORD(top, base_str_printf(str, "%d", 8 * cg_size(with->d.dtype) - 1))
WORD(w, base_str_printf(str, "%d", 8 * cg_bytes(with->d)))
/* pieces of names of builtins: the element in the manner of gcc, f32 or f64 */
WORD(x, base_str_add(str, (const char *[]){"qi", "hi", "si", "", "di"}[cg_size(with->d.dtype) / 2]))
WORD(fx, base_str_add(str, with->d.dtype == QUERN_DTYPE_F64 ? "pd" : "ps"))
WORD(fs, base_str_add(str, with->d.dtype == QUERN_DTYPE_F64 ? "" : "f"))
WORD(neon,
     base_str_add(str, with->d.dtype == QUERN_DTYPE_F64 ? "42" : "41")) /* clang's number of float64x2, float32x4 */
WORD(vx, base_str_add(str, with->d.dtype == QUERN_DTYPE_F64 ? "v2df" : "v4sf"))
WORD(aw, base_str_printf(str, "%d", 8 * cg_bytes(with->a)))
WORD(ax, base_str_add(str, base_dtypes[with->a.dtype].class == BASE_SIGNED ? "sx" : "zx"))
WORD(iota, for (int i = 0; i < with->d.lanes; i++) base_str_printf(str, "%s%d", i > 0 ? ", " : "", i))

/* the sign bit of D, and all others */
static uint64_t sign_bit(int dtype) { return UINT64_C(1) << (8 * cg_size(dtype) - 1); }
WORD(sign, cg_literal(str, with->dialect, cg_unsigned(cg_size(with->d.dtype)), sign_bit(with->d.dtype)))
WORD(nosign, cg_literal(str, with->dialect, cg_unsigned(cg_size(with->d.dtype)), sign_bit(with->d.dtype) - 1))

/* the range of the integers of D: its ends; as floats of A, what is just above it, and its lower end */
static void add_limit(struct base_str *str, const struct cg_fill *with, bool greatest) {
  bool is_signed = base_dtypes[with->d.dtype].class == BASE_SIGNED;
  uint64_t top = sign_bit(with->d.dtype), high = is_signed ? top - 1 : 2 * top - 1;
  cg_literal(str, with->dialect, (quern_dtype)with->d.dtype, greatest ? high : is_signed ? top : 0);
}
static void add_float_limit(struct base_str *str, const struct cg_fill *with, bool greatest) {
  bool is_signed = base_dtypes[with->d.dtype].class == BASE_SIGNED;
  int bits = 8 * cg_size(with->d.dtype) - is_signed;
  base_str_printf(str, "(");
  cg_type_add(str, (struct cg_type){with->a.dtype, 1});
  if (greatest || is_signed)
    base_str_printf(str, ")%s0x1p%d", greatest ? "" : "-", bits);
  else
    base_str_add(str, ")0.0");
}
WORD(max, add_limit(str, with, true))
WORD(min, add_limit(str, with, false))
WORD(above, add_float_limit(str, with, true))
WORD(below, add_float_limit(str, with, false))

/* the float format that is D's or A's, whichever is of 8 or 16 bits: as base/dtype.c has it */
struct format {
  int bits, mantissa, bias;
  unsigned low, overflow, nan;
};
static struct format format_of(const struct cg_fill *with) {
  const struct base_dtype_info *d = &base_dtypes[with->d.dtype], *a = &base_dtypes[with->a.dtype];
  const struct base_dtype_info *info = d->class == BASE_FLOAT && d->size <= 2 ? d : a;
  struct format f = {.bits = info->bits, .mantissa = info->mantissa, .bias = (1 << (info->exponent - 1)) - 1};
  f.low = (1u << (info->bits - 1)) - 1;
  unsigned inf = f.low >> info->mantissa << info->mantissa;
  f.overflow = info->inf ? inf : f.low;
  f.nan = info->inf ? inf | 1u << (info->mantissa - 1) : f.low;
  return f;
}
#define FORMAT(NAME, FMT, ...)                                                                                         \
  WORD(NAME, const struct format f = format_of(with); base_str_printf(str, FMT, __VA_ARGS__))
FORMAT(fshift, "%d", 23 - f.mantissa)                    /* mantissa bits that f32 has more */
FORMAT(flow, "0x%xu", f.low)                             /* all but the sign */
FORMAT(fsign, "0x%xu", f.low + 1)                        /* the sign */
FORMAT(fup, "%d", 32 - f.bits)                           /* from its sign to that of f32 */
FORMAT(fover, "0x%xu", f.overflow)                       /* what is too large becomes this */
FORMAT(fnan, "0x%xu", f.nan)                             /* its NaN */
FORMAT(fhalf, "0x%xu", (1u << (22 - f.mantissa)) - 1)    /* half a unit less one, in f32's mantissa */
FORMAT(fbias, "0x%xu", (127u - (unsigned)f.bias) << 23)  /* difference of the biases, in f32's exponent */
FORMAT(fleast, "0x%xu", (128u - (unsigned)f.bias) << 23) /* its least normal number, as f32's bits */
FORMAT(fscale, "0x1p%df", 127 - f.bias)                  /* 2^difference of the biases */
/* an f32 whose last bit is worth as much as the format's last bit of subnormals, and its bits */
FORMAT(fmagic, "0x1p%df", 24 - f.bias - f.mantissa)
FORMAT(fmagicbits, "0x%xu", (unsigned)(127 + 24 - f.bias - f.mantissa) << 23)

static const struct {
  const char *name;
  word *add;
} words[] = {
#define W(NAME)                                                                                                        \
  { #NAME, word_##NAME }
    W(D),    W(A),      W(Ds),   W(As),    W(Di),    W(Du),     W(Ai),     W(Au),     W(Dm),        W(Am),  W(n),
    W(aw),   W(ax),     W(bits), W(top),   W(w),     W(x),      W(fx),     W(fs),     W(neon),      W(vx),  W(iota),
    W(sign), W(nosign), W(max),  W(min),   W(above), W(below),  W(fshift), W(flow),   W(fsign),     W(fup), W(fover),
    W(Dw),   W(table),  W(fnan), W(fhalf), W(fbias), W(fleast), W(fscale), W(fmagic), W(fmagicbits)
#undef W
};

static bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

static bool same(const char *name, const char *at, size_t n) { return strncmp(name, at, n) == 0 && name[n] == 0; }

static void add_word(struct base_str *str, const char *at, size_t n, const struct cg_fill *with) {
  if (n == 1 && *at >= 'a' && *at <= 'd' && with->operand != NULL) {
    with->operand(with->self, str, *at);
    return;
  }
  for (size_t i = 0; i < BASE_COUNT(words); i++)
    if (same(words[i].name, at, n)) {
      words[i].add(str, with);
      return;
    }
  for (int i = 0; i <= CG_CHAR; i++)
    if (same(i == CG_CHAR ? "c8" : base_dtypes[i].name, at, n)) {
      cg_type_add(str, (struct cg_type){i, with->d.lanes});
      return;
    }
  QUERN_ASSERT(false && "a word of a template is unknown");
}

/* The text to its end, with @ for the lane if there is one. */
static void fill(struct base_str *str, const char *text, const char *end, int lane, const struct cg_fill *with) {
  while (text < end) {
    const char *at = text;
    while (at < end && *at != '$' && (*at != '@' || lane < 0)) at++;
    base_str_add_n(str, text, (size_t)(at - text));
    if (at == end) return;
    text = at + 1;
    if (*at == '@') {
      base_str_printf(str, "%d", lane);
      continue;
    }
    bool braced = *text == '{';
    const char *name = text + braced;
    size_t n = 0;
    while (is_word(name[n])) n++;
    text = name + n + braced;
    if (!same("each", name, n)) {
      add_word(str, name, n, with);
      continue;
    }
    const char *inner = text + 1, *stop = inner;
    for (int depth = 1; depth > 0; stop++) depth += *stop == '(' ? 1 : *stop == ')' ? -1 : 0;
    text = stop;
    for (int i = 0; i < with->d.lanes; i++) {
      if (i > 0) base_str_add(str, ", ");
      fill(str, inner, stop - 1, i, with);
    }
  }
}

void cg_fill(struct base_str *str, const char *text, const struct cg_fill *with) {
  fill(str, text, text + strlen(text), -1, with);
}
