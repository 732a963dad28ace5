/* runtime/cpu/module.h -- a module of the cpu device
 */
#ifndef RUNTIME_CPU_MODULE_H
#define RUNTIME_CPU_MODULE_H
#include "runtime/cpu/cpu_int.h"

enum { RT_SYMBOL_BYTES = 1024 };

struct rt_loaded {
  struct rt_key key;
  struct rt_bytes bytes;
  void *handle;
  int fd; /* the memory it was loaded from; -1: it was a file */
};

struct rt_entry { /* a kernel, ready */
  int n_phases;
  cg_entry *run[KERN_MAX_PHASES];
  struct kern_phase phases[KERN_MAX_PHASES];
};

struct rt_module {
  struct base_heap *heap;
  size_t bytes;
  struct rt_module *interpreted; /* by rt_interp, since there is no compiler; or NULL */
  BASE_VEC(struct rt_loaded) loaded;
  BASE_VEC(struct rt_object) objects; /* of the same numbers */
  size_t n;
  struct rt_entry entries[];
};

/* A module of n kernels, none of which is ready. */
quern_status rt_module_new(struct rt_module **module, struct base_heap *heap, size_t n) QUERN_NODISCARD;
void rt_module_free(struct rt_module *module);

/* Loads an object and takes its bytes: from path if that is not "", else through a file of its own, or memory. */
quern_status rt_module_load(struct rt_module *module, struct rt_bytes *bytes, const char *path,
                            const struct rt_key *key, size_t *number) QUERN_NODISCARD;
/* The number of the loaded object with that key. */
bool rt_module_find(const struct rt_module *module, const struct rt_key *key, size_t *number);
/* Makes kernel k ready with the functions of that object; false when they are not there. */
bool rt_module_resolve(struct rt_module *module, size_t k, const struct kern *kern, size_t number);

/* Makes all kernels ready, with cache and compiler. *compiler is false when there is none that works. */
quern_status rt_module_build(struct rt_module *module, const struct kern *const *kernels,
                             const struct cg_target *target, struct rt_stats *stats, bool *compiler) QUERN_NODISCARD;

#endif
