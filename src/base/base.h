/* base/base.h -- the ground: errors, heap, arena, vector, map, strings, log, environment, clock, threads, RNG, dtypes
** Everything here is independent of tensors. Nothing aborts; every allocation may fail.
*/
#ifndef BASE_BASE_H
#define BASE_BASE_H
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "quern/context.h"
#include "quern/dtype.h"
#include "quern/status.h"

#define BASE_COUNT(array) (sizeof(array) / sizeof *(array))
#define BASE_MIN(a, b) ((a) < (b) ? (a) : (b))
#define BASE_MAX(a, b) ((a) > (b) ? (a) : (b))

#if defined(__GNUC__)
#define BASE_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define BASE_PRINTF(fmt, args)
#endif

/* ---- errors (error.c): one record a thread, no heap ------------------------------------------------------------- */

enum { BASE_MESSAGE_BYTES = 1024 };

/* Sets what quern_last_status gives, and gives what it was: to see whether a function of the caller's records an error. */
quern_status base_error_swap(quern_status status);
/* Records a failure in this thread and returns its status. */
quern_status base_error(quern_status status, const char *fmt, ...) BASE_PRINTF(2, 3);
quern_status base_error_v(quern_status status, const char *fmt, va_list args);

/* The caller's place, as quern_place_set left it: file may be NULL. */
void base_place_get(const char **file, int *line);

#define QUERN_TRY(call)                                                                                                \
  do {                                                                                                                 \
    quern_status status_ = (call);                                                                                     \
    if (status_ != QUERN_STATUS_OK) return status_;                                                                    \
  } while (0)

#define QUERN_CHECK(cond, CODE, ...)                                                                                   \
  do {                                                                                                                 \
    if (!(cond)) {                                                                                                     \
      (void)base_error(QUERN_STATUS_##CODE, __VA_ARGS__);                                                              \
      return QUERN_STATUS_##CODE;                                                                                      \
    }                                                                                                                  \
  } while (0)

/* An invariant of Quern itself; checked in builds made for tests. */
#if QUERN_ASSERTS
#define QUERN_ASSERT(cond) ((cond) ? (void)0 : base_assert_failed(#cond, __FILE__, __LINE__))
_Noreturn void base_assert_failed(const char *cond, const char *file, int line);
#else
#define QUERN_ASSERT(cond) ((void)0)
#endif

/* ---- structs of the API that can grow (struct.c) ------------------------------------------------------------------ */

enum { BASE_STRUCT_MOST = 4096 }; /* bytes: more is no size, but memory that was not initialized */

/* dst, of the type T, becomes a caller's options: members that an older caller does not have are zero; what a newer one has
** besides must be zero. NULL is all defaults. what: the function, for messages. */
#define base_take(T, dst, caller, what) base_struct_take((dst), sizeof *(T *){(dst)}, (caller), #T, (what))
quern_status base_struct_take(void *dst, size_t known, const void *caller, const char *type,
                              const char *what) QUERN_NODISCARD;

/* Fills a caller's struct of type T from the library's: as many bytes as the caller's size says. src may lie in it. */
#define base_give(T, caller, src, what) base_struct_give((caller), (src), sizeof *(const T *){(src)}, #T, (what))
quern_status base_struct_give(void *caller, const void *src, size_t known, const char *type,
                              const char *what) QUERN_NODISCARD;
/* The same of a struct whose size is known to be good: an element of an array. */
void base_struct_put(void *caller, size_t size, const void *src, size_t known);

/* ---- heap (heap.c): the one allocator ------------------------------------------------------------------------------ */

struct base_heap {
  quern_allocator user;
  _Atomic size_t live, peak;
  _Atomic uint64_t count; /* allocations asked for */
  uint64_t fail_at;       /* the allocation of that number, and all later ones, fail; 0: none */
};

void base_heap_init(struct base_heap *heap, const quern_allocator *user);

/* 64-byte aligned, not cleared. NULL when there is none, with the error recorded. bytes 0 gives a unique pointer. */
void *base_alloc(struct base_heap *heap, size_t bytes);
void *base_alloc_zero(struct base_heap *heap, size_t bytes);

/* Frees what base_alloc gave for as many bytes. NULL is fine. */
void base_free(struct base_heap *heap, void *memory, size_t bytes);

/* n * size + extra, or false when that does not fit. */
bool base_size(size_t n, size_t size, size_t extra, size_t *bytes);

/* ---- arena (arena.c): memory freed all at once --------------------------------------------------------------------- */

struct base_arena {
  struct base_heap *heap;
  struct base_arena_chunk *chunks; /* newest first */
  size_t used;                     /* bytes of the newest chunk */
  size_t first;                    /* bytes of the first chunk; 0: 64 KiB. Of many small arenas, set it after init */
};

void base_arena_init(struct base_arena *arena, struct base_heap *heap);
void base_arena_fini(struct base_arena *arena);

/* Memory aligned to 16 bytes, cleared to zero, or NULL with the error recorded. */
void *base_arena_alloc(struct base_arena *arena, size_t bytes);
void *base_arena_copy(struct base_arena *arena, const void *src, size_t bytes);
char *base_arena_string(struct base_arena *arena, const char *text, size_t n);

#define base_arena_new(arena, T) ((T *)base_arena_alloc((arena), sizeof(T)))

/* A moment of an arena: rewinding to it frees everything that was allocated since, and nothing else. It holds until the arena
** is rewound to an earlier one. */
struct base_arena_mark {
  struct base_arena_chunk *newest, *next; /* next: behind the newest */
  size_t used;
};
struct base_arena_mark base_arena_mark(const struct base_arena *arena);
void base_arena_rewind(struct base_arena *arena, struct base_arena_mark mark);

/* Moves everything of an arena of the same heap into another. */
void base_arena_join(struct base_arena *arena, struct base_arena *from);

/* ---- vector (vec.c) ------------------------------------------------------------------------------------------------- */

#define BASE_VEC(T)                                                                                                    \
  struct {                                                                                                             \
    T *at;                                                                                                             \
    size_t n, cap;                                                                                                     \
  }

/* Makes room for `more` items; false when there is no memory (the vector is unchanged). */
#define base_vec_reserve(heap, vec, more)                                                                              \
  base_vec_grow((heap), &(vec)->at, (vec)->n, &(vec)->cap, sizeof *(vec)->at, (more))

/* Appends an item; false when there is no memory. */
#define base_vec_push(heap, vec, item)                                                                                 \
  (base_vec_reserve((heap), (vec), 1) ? ((vec)->at[(vec)->n++] = (item), true) : false)

#define base_vec_fini(heap, vec)                                                                                       \
  (base_free((heap), (vec)->at, (vec)->cap * sizeof *(vec)->at), (vec)->at = NULL, (vec)->n = (vec)->cap = 0)

bool base_vec_grow(struct base_heap *heap, void *at, size_t n, size_t *cap, size_t item, size_t more);

/* ---- hash map (map.c): hash and item, open addressing ------------------------------------------------------------- */

struct base_map_slot {
  uint64_t hash;
  void *item; /* NULL: empty */
};
struct base_map {
  struct base_heap *heap;
  struct base_map_slot *slots;
  size_t n, cap; /* cap is 0 or a power of two */
};
typedef bool base_map_equal(const void *item, const void *key);

void base_map_init(struct base_map *map, struct base_heap *heap);
void base_map_fini(struct base_map *map);

/* The item with that hash that equals key, or NULL. */
void *base_map_find(const struct base_map *map, uint64_t hash, base_map_equal *equal, const void *key);

/* Adds an item that is not there; false when there is no memory. */
bool base_map_add(struct base_map *map, uint64_t hash, void *item);

/* Takes out an item that is there, by its address. Adding one afterwards needs no memory. */
void base_map_remove(struct base_map *map, uint64_t hash, const void *item);

/* Takes out all items for which drop is true, called at least once for each; a map that is nearly empty then becomes
** small, if there is memory for that. */
typedef bool base_map_drop(void *user, void *item);
void base_map_sweep(struct base_map *map, base_map_drop *drop, void *user);

/* Hashes that are the same on every machine. Start with BASE_HASH_SEED and chain. */
#define BASE_HASH_SEED UINT64_C(0x243f6a8885a308d3)
uint64_t base_hash_u64(uint64_t hash, uint64_t word);
uint64_t base_hash_bytes(uint64_t hash, const void *bytes, size_t n);
uint64_t base_hash_string(uint64_t hash, const char *text);

/* ---- string builder (str.c) ------------------------------------------------------------------------------------------ */

struct base_str {
  struct base_heap *heap;
  char *at; /* terminated by 0 once something was added */
  size_t n, cap;
  bool failed; /* an allocation failed: the text is not whole */
};

void base_str_init(struct base_str *str, struct base_heap *heap);
void base_str_fini(struct base_str *str);
void base_str_add(struct base_str *str, const char *text);
void base_str_add_n(struct base_str *str, const char *text, size_t n);
void base_str_printf(struct base_str *str, const char *fmt, ...) BASE_PRINTF(2, 3);

/* The status of all that was added: OK, or MEMORY. */
quern_status base_str_status(const struct base_str *str) QUERN_NODISCARD;

/* Gives the text of a builder to the caller, who frees it with quern_free_text, also when the heap is gone (text.c). The
** builder is gone then, whatever the status. */
quern_status base_str_give(quern_status status, struct base_str *str, char **text) QUERN_NODISCARD;

/* A shape such as "(2, 3)", "(4,)" or "()" in a caller's buffer; returns buffer. */
char *base_shape_text(char *buffer, size_t bytes, int rank, const int64_t *dims);

/* ---- texts for people (shown.c) ---------------------------------------------------------------------------------- */

/* Bytes of the character at a text when it can be shown; 0 of one that a terminal would obey, of what is no UTF-8, of
** the end. */
size_t base_text_char(const char *text);
/* quern_text_shown; with lines, line ends and tabs stay. */
char *base_text_shown(char *buffer, size_t bytes, const char *text, bool lines);

/* ---- log (log.c) and environment (env.c, env.def) ------------------------------------------------------------------- */

enum base_env {
#define ENV(NAME, TEXT, DEFAULT, HELP) BASE_ENV_##NAME,
#include "base/env.def"
#undef ENV
  BASE_ENV_COUNT
};

/* The value of a declared variable as it was when first read; its default when unset. */
const char *base_env_get(enum base_env var);
int64_t base_env_int(enum base_env var);

/* True when a comma-separated variable holds that word. */
bool base_env_has(enum base_env var, const char *word);

/* Reads the environment once. Later calls fail with STATE when a variable has changed since, naming it; the first call
** warns about unknown QUERN_ variables, with the nearest known one, and fails on malformed values. */
quern_status base_env_read(void) QUERN_NODISCARD;

/* Writes a line to stderr when QUERN_DEBUG >= level (level 0: always, a warning). */
void base_log(int level, const char *fmt, ...) BASE_PRINTF(2, 3);

/* The nearest word of a list by edit distance, or NULL when none is near. */
const char *base_nearest(const char *word, const char *const *list, size_t n);

/* ---- the floating-point state (floats.c) ------------------------------------------------------------------------- */

/* Rounding, traps and denormals as IEEE 754 has them by default, in the calling thread, whatever the host has set;
** leave puts the host's back. Threads of base_thread_start always have them. */
struct base_floats {
  unsigned long long saved;
  bool changed;
};
struct base_floats base_floats_enter(void);
void base_floats_leave(struct base_floats floats);

/* ---- descriptors (descriptor.c) ---------------------------------------------------------------------------------- */

/* A descriptor above those of the standard streams, in place of one that may be 0, 1 or 2 because the host closed that
** stream and would print into the file. Closes the low one; -1 with errno when fd is -1 or no other is to be had. */
int base_fd_high(int fd);
/* fopen with such a descriptor. */
FILE *base_fopen(const char *path, const char *mode);

/* ---- clock, signals, threads (clock.c, signals.c, thread.c) ------------------------------------------------------------------ */

/* Seconds since some fixed moment. */
double base_clock(void);

/* Keeps signals from the calling thread, but those of its own faults, until they may come again. */
struct base_signals {
  _Alignas(16) unsigned char mask[128]; /* that was in force */
};
void base_signals_block(struct base_signals *before);
void base_signals_unblock(const struct base_signals *before);
/* The same, around calls of libraries that handle signals themselves: what the host had asked for before is in force again
** afterwards. What it asks for in another thread meanwhile is lost. */
void base_signals_hold(struct base_signals *before);
void base_signals_release(const struct base_signals *before);

struct base_thread {
  unsigned char handle[16];
  void (*run)(void *arg);
  void *arg;
};
/* Signals are for the host's threads: this one gets none but those of its own faults. */
quern_status base_thread_start(struct base_thread *thread, void (*run)(void *), void *arg) QUERN_NODISCARD;
void base_thread_join(struct base_thread *thread);

/* How many CPUs this process may use: at least 1. */
int base_thread_cpu_count(void);

/* A set of CPUs; empty where the system does not report it. */
struct base_cpu_set {
  uint64_t bits[16];
};
/* Those that the calling thread may run on. */
void base_thread_allowed(struct base_cpu_set *set);
/* The one that the calling thread runs on at the moment; -1: not known. */
int base_thread_cpu(void);
/* A thread that was kept off processor `before` of the set (-1: off none) is kept off another one instead, unless that leaves
** none. False when nothing was changed, since somebody else has said where it may run, or the system refuses. */
bool base_thread_keep_off(const struct base_thread *thread, const struct base_cpu_set *set, int before, int cpu);

/* ---- temporary files and locks (temporary.c) --------------------------------------------------------------------- */

/* Makes and locks a new file that a rename will give its name: <path>.<number>.tmp in name, of a folder's descriptor
** or AT_FDCWD. The number is the least that no living writer has: what a killed one left is removed. The lock lasts
** until the descriptor is closed, which is to be after the rename. -1, with errno set. */
int base_temporary_open(int folder, const char *path, char *name, size_t bytes);
/* Whether a name is that of a temporary file of a path. */
bool base_temporary_is(const char *name, const char *path);
/* Removes a temporary file that no living writer has; false: it stays, or was not there. */
bool base_temporary_remove(int folder, const char *name);

/* Takes a lock that one process has at a time: a file of that name in a folder, gone when it is released; a killed
** process releases it. -1, with errno set; EWOULDBLOCK: a process has it, whose pid is *holder (0: not known). */
int base_lock_take(int folder, const char *name, long *holder);
void base_lock_release(int folder, const char *name, int fd);

/* ---- targets: what passes and schedules may know of a device ------------------------------------------------------- */

struct base_target {
  const char *name;                     /* a row of codegen/targets.def: "avx512", "avx2", "sm_90", "opencl" */
  int vector_bytes;                     /* of a register */
  int registers;                        /* vector registers */
  bool fma, vnni, f16c;                 /* has instructions for: a b + c, dot4, f16 conversions */
  int64_t l1_bytes, l2_bytes, l3_bytes; /* of caches: of a core, of a core, of all */
  int threads;                          /* that a program may use; of a GPU: those that can have scratch at a time */
  bool gpu;                             /* a task is a thread, code is scalar, memory is the device's own */
  int capabilities;                     /* whose calls kernels may be, and other units they may use: a bit each */
  int64_t shared_bytes;                 /* of a GPU: that a thread block may have of the memory they share */
  int multiprocessors;                  /* of a GPU, as of the two below: how many it has; */
  int max_threads_per_sm;               /* threads that one of them holds at a time; */
  int registers_per_sm;                 /* of 4 bytes, for all of these */
};
enum { BASE_LIBRARY_BLAS = 1, BASE_LIBRARY_DNN = 2, BASE_TENSOR_CORES = 4 }; /* the last: those for matrices, by MMA */

/* ---- Philox-4x32-10 (philox.c): Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11 ------------- */

/* out = Philox-4x32-10(counter, key). */
void base_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Element i of a stream: word i % 4 of Philox(counter {i / 4, stream, step low, step high}, key {seed low, seed high}).
** i < 2^34. */
uint32_t base_random_bits(uint64_t seed, uint64_t step, uint32_t stream, uint64_t i);

/* Uniform in [0, 1): the top 24 bits times 2^-24. Exact. */
float base_random_uniform(uint32_t bits);

/* A standard normal by Box and Muller from two words, with own log, sine and cosine built of IEEE additions, products, a
** division-free polynomial and one square root only: the same bits on every machine. tensor/random.c builds the same
** sequence of operations as an expression; the test compares them bit for bit. */
float base_random_normal(uint32_t bits0, uint32_t bits1);

/* ---- dtypes (dtype.c, dtypes.def) --------------------------------------------------------------------------------------- */

enum base_dtype_class {
  BASE_FLOAT = 1,
  BASE_SIGNED = 2,
  BASE_UNSIGNED = 4,
  BASE_BOOL = 8,
  BASE_INT = 6,
  BASE_NUM = 7,
  BASE_BITS = 14,
  BASE_ANY = 15
};

struct base_dtype_info {
  const char *name;
  size_t size;
  enum base_dtype_class class;
  int bits;     /* integers: value bits with sign; floats: of the format */
  int mantissa; /* floats: explicit fraction bits */
  int exponent; /* floats: exponent bits */
  bool inf;     /* floats: has infinities */
};
extern const struct base_dtype_info base_dtypes[QUERN_DTYPE_COUNT];

static inline bool base_dtype_is(quern_dtype dtype, enum base_dtype_class class) {
  return (base_dtypes[dtype].class & class) != 0;
}

/* A dtype in hashes that are kept, as names of kernels are in caches and files of wisdom: f64 was the first when they began. */
static inline uint64_t base_dtype_code(quern_dtype dtype) {
  return dtype <= QUERN_DTYPE_F64 ? QUERN_DTYPE_F64 - (uint64_t)dtype : (uint64_t)dtype;
}

/* The bits of a float, and back. */
static inline uint32_t base_float_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
static inline float base_bits_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* One element, as the widest type of its class. Floats: exact into double. store rounds to nearest even; every NaN is
** stored as the positive quiet NaN of the format. */
double base_load_float(quern_dtype dtype, const void *data, size_t i);
void base_store_float(quern_dtype dtype, void *data, size_t i, double x);

/* Integers and bool as 64 bits, sign-extended for signed types; store keeps the low bits (bool: x != 0). */
uint64_t base_load_int(quern_dtype dtype, const void *data, size_t i);
void base_store_int(quern_dtype dtype, void *data, size_t i, uint64_t x);

/* One element of src's dtype into dst's, with at most one rounding: float to integer truncates and saturates, NaN gives 0;
** integer to narrower integer wraps; anything to bool is x != 0. */
void base_convert(quern_dtype dst_dtype, void *dst, size_t di, quern_dtype src_dtype, const void *src, size_t si);

/* Text of one element that parses back to the same bits: "1.5", "-0", "inf", "nan", "-3", "true". */
void base_element_print(struct base_str *str, quern_dtype dtype, const void *data, size_t i);
/* Reads one element; *end is left after it. False when the text is not a value of that dtype. */
bool base_element_parse(const char *text, const char *stop, const char **end, quern_dtype dtype, void *data, size_t i);

#endif
