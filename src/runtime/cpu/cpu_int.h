/* runtime/cpu/cpu_int.h -- what the files of runtime/cpu/ share: child processes, compiler, cache, units
** see: runtime/README.md
*/
#ifndef RUNTIME_CPU_CPU_INT_H
#define RUNTIME_CPU_CPU_INT_H
#include "runtime/runtime_int.h"

enum { RT_PATH_BYTES = 4096 };

/* ---- child processes (process.c) ----------------------------------------------------------------------------- */

enum { RT_OUTPUT_BYTES = 4096 };

enum rt_ending {
  RT_NOT_STARTED,
  RT_EXITED,  /* code: of its exit */
  RT_KILLED,  /* code: the signal */
  RT_UNKNOWN, /* it ended, but the host's treatment of SIGCHLD hides how */
  RT_TOO_LONG /* it was killed, since the time was over */
};

struct rt_command {
  const char *const *argv; /* the program's path first, NULL last */
  enum rt_ending ending;
  int code;
  char output[RT_OUTPUT_BYTES]; /* the head of what it wrote to stdout and stderr */
};

/* Runs all commands to their ends, at most `side` at a time, each in a process group of its own and at most `seconds`
** long. Commands, and what they have started, end with this process, even when it is killed. They keep their own
** temporary files in folder (NULL: where they do anyway). How each ended is in it; an error means that one could not be
** started. The host's other children are not waited for. */
quern_status rt_commands_run(struct base_heap *heap, size_t n, struct rt_command *commands, int side, double seconds,
                             const char *folder) QUERN_NODISCARD;

/* How a command ended, in words. */
void rt_command_ending(const struct rt_command *command, char *text, size_t bytes);

/* ---- files (file.c) ------------------------------------------------------------------------------------------ */

struct rt_bytes {
  void *at;
  size_t n, room; /* room: as allocated */
};

/* Opens a folder, and gives its path without links; -1 and why: it cannot be opened, or others than root could exchange
** it or what is above it. */
int rt_folder_open(const char *name, char *path, const char **why);

enum { RT_NAME_BYTES = 32 };
#define RT_TEMPORARY "quern-tmp-" /* what names of temporary files and folders begin with */
/* A name for what is temporary, new for every call of every process; a new file of such a name, locked, or -1 with
** errno. */
void rt_name_make(char name[RT_NAME_BYTES]);
int rt_file_make(int in, char name[RT_NAME_BYTES]);
/* Locks a file or folder until it is closed; false when another process has it locked, or when locks do not work. */
bool rt_lock(int fd, bool *works);

struct rt_folder { /* a temporary one */
  int fd, in;      /* open: it, which is locked, and the one it is in; -1: there is none */
  char name[RT_NAME_BYTES], path[RT_PATH_BYTES];
};
/* A new private folder in an open one of that path; with -1 in TMPDIR, /tmp or /dev/shm, the first that is safe. */
quern_status rt_folder_make(struct rt_folder *folder, int in, const char *path) QUERN_NODISCARD;
/* Removes the files in a folder; a folder with them; leave forgets it, and it stays for so long, to be looked at. */
enum { RT_LEFT_SECONDS = 7200 };
void rt_folder_empty(int fd);
void rt_folder_remove(struct rt_folder *folder);
void rt_folder_leave(struct rt_folder *folder);
/* Removes what killed processes have left in an open folder, and in TMPDIR, /tmp and /dev/shm. */
void rt_folder_sweep(int fd);
void rt_temporary_sweep(void);
bool rt_write_all(int fd, const void *bytes, size_t n);
quern_status rt_file_write(const char *path, const void *bytes, size_t n) QUERN_NODISCARD;
/* Reads a whole open file. */
quern_status rt_file_read(struct base_heap *heap, int fd, const char *path, struct rt_bytes *bytes) QUERN_NODISCARD;
void rt_bytes_free(struct base_heap *heap, struct rt_bytes *bytes);
/* Makes a path of a folder and a name; false when it is too long. */
bool rt_path(char *path, const char *folder, const char *name);
/* A path of a name in an open folder, which means it wherever the folder is, as long as it is open. */
void rt_path_in(char *path, int folder, const char *name);
/* The absolute path of a file without links in it; false when there is none. */
bool rt_path_real(char *path, const char *name);

/* ---- the cache (cache.c): a private folder of objects -------------------------------------------------------- */

struct rt_key { /* of an object or a kernel: 128 bits */
  uint64_t word[2];
};
struct rt_key rt_key_make(uint64_t seed, const void *bytes, size_t n);
void rt_key_add(struct rt_key *key, const void *bytes, size_t n);
bool rt_key_equal(const struct rt_key *a, const struct rt_key *b);

struct rt_cache {
  struct base_heap *heap;
  int folder; /* an open directory; -1: there is no cache */
  char path[RT_PATH_BYTES];
  int64_t limit; /* bytes that all objects may have */
};

/* Where the cache is, by QUERN_CACHE, XDG_CACHE_HOME and HOME; "" when there is none. */
void rt_cache_path(char *path, size_t bytes);
/* Opens the cache in a folder, which is made when missing. One that cannot be used, or that others could write to or
** exchange, is left alone: there is no cache then, and a warning gives the reason, once per process. "": no cache. The first time
** in a process, what killed ones have left in it is removed. */
void rt_cache_open(struct rt_cache *cache, struct base_heap *heap, const char *path, int64_t limit);
void rt_cache_close(struct rt_cache *cache);
#define RT_CACHE_LIMIT (INT64_C(1) << 30)

/* The object of a kernel; false when it is not known. */
bool rt_cache_find_kernel(const struct rt_cache *cache, const struct rt_key *kernel, struct rt_key *object);
void rt_cache_add_kernel(const struct rt_cache *cache, const struct rt_key *kernel, const struct rt_key *object);

/* The bytes of an object, with a path to load it by while the cache is open, and marks it as used now; bytes NULL when
** it is not there. One that is damaged is removed. */
quern_status rt_cache_read(const struct rt_cache *cache, const struct rt_key *object, struct rt_bytes *bytes,
                           char *path) QUERN_NODISCARD;
void rt_cache_remove(const struct rt_cache *cache, const struct rt_key *object);

/* Puts bytes and their checksum into the cache; false when that is not possible, which is warned of once per process.
** */
bool rt_cache_add(const struct rt_cache *cache, const struct rt_key *object, const void *bytes, size_t n);

/* A small text by key, such as the compiler's version; "" when there is none. */
void rt_cache_note_get(const struct rt_cache *cache, const struct rt_key *key, char *text, size_t bytes);
void rt_cache_note_set(const struct rt_cache *cache, const struct rt_key *key, const char *text);

/* Removes what was not used for longest until the rest fits the limit, and what killed processes have left behind. */
quern_status rt_cache_trim(const struct rt_cache *cache) QUERN_NODISCARD;

/* ---- the compiler (toolchain.c) ------------------------------------------------------------------------------ */

enum { RT_CC_WORDS = 32 };

struct rt_cc {                    /* not to be copied: it points into itself */
  struct rt_key file;             /* of the program: path, size, time of change */
  const char *words[RT_CC_WORDS]; /* the program's path and its first arguments, in text */
  size_t n_words;                 /* 0: there is no compiler */
  char text[RT_PATH_BYTES];
  char version[RT_OUTPUT_BYTES];
};

/* How long a compiler may take to print its version. One that takes longer is not asked again in this process. */
extern double rt_version_seconds;

/* The compiler of that command (QUERN_CC), or, when it is "", the number-th of the usual names that is found; folders
** as in PATH. It has run with --version, or the cache has what it answered. A command that does not work is an error;
** with "" it is passed over. */
quern_status rt_cc_find(struct rt_cc *cc, struct base_heap *heap, const struct rt_cache *cache, const char *command,
                        const char *folders, int number) QUERN_NODISCARD;

struct rt_cc_job { /* absolute paths */
  char source[RT_PATH_BYTES], object[RT_PATH_BYTES];
};

/* Everything about the compiler that objects depend on. */
struct rt_key rt_cc_key(const struct rt_cc *cc, const struct cg_target *target, bool debug);

/* Bytes that its processes have in memory, at most, while they compile a unit of so many bytes of text: an estimate,
** from above. */
int64_t rt_cc_bytes(const struct rt_cc *cc, int64_t text);

/* Compiles all units, several side by side. *usable is false when it failed and fails on the smallest unit too: the
** compiler, and not the unit, is to blame. */
quern_status rt_cc_compile(const struct rt_cc *cc, struct base_heap *heap, const struct cg_target *target, bool debug,
                           size_t n, const struct rt_cc_job *jobs, bool *usable) QUERN_NODISCARD;

/* ---- translation units (translation_units.c): which kernels share one ---------------------------------------------------- */

/* Gives each kernel k with pick[k] the number of a unit, 0 .. *n - 1, of at most `most` unless they became too long for
** a compiler, so that they take about as long; kernels that call the same functions come together where that pays. */
quern_status rt_units_assign(struct base_heap *heap, size_t n, const struct kern *const *kernels, const bool *pick,
                             int most, int *unit, int *n_units) QUERN_NODISCARD;

#endif
