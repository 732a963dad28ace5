/* runtime/cpu/module.c -- objects that are loaded, and the kernels in them
** keeps: the bytes of each object stay with the module, so that it can be saved when the cache has forgotten it
** tests: tests/runtime/test_cpu.c
*/
#define _GNU_SOURCE /* memfd_create */
#include "runtime/cpu/module.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

quern_status rt_module_new(struct rt_module **module, struct base_heap *heap, size_t n) {
  size_t bytes;
  *module = NULL;
  QUERN_CHECK(base_size(n, sizeof(struct rt_entry), sizeof **module, &bytes), MEMORY, "no memory for %zu kernels", n);
  struct rt_module *made = base_alloc_zero(heap, bytes);
  if (!made) return QUERN_STATUS_MEMORY;
  made->heap = heap;
  made->bytes = bytes;
  made->n = n;
  *module = made;
  return QUERN_STATUS_OK;
}

void rt_module_free(struct rt_module *module) {
  if (!module) return;
  for (size_t i = 0; i < module->loaded.n; i++) {
    struct rt_loaded *loaded = &module->loaded.at[i];
    dlclose(loaded->handle);
    if (loaded->fd >= 0) close(loaded->fd);
    rt_bytes_free(module->heap, &loaded->bytes);
  }
  base_vec_fini(module->heap, &module->loaded);
  base_vec_fini(module->heap, &module->objects);
  base_free(module->heap, module, module->bytes);
}

/* ---- loading ------------------------------------------------------------------------------------------- */

static void *open_file(const char *path, char *why, size_t bytes) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const char *message = handle ? NULL : dlerror();
  if (message) snprintf(why, bytes, "%s", message);
  return handle;
}

/* Loads bytes through a file in a new folder, which is gone afterwards. */
static void *open_bytes(const struct rt_bytes *bytes, char *why, size_t room) {
  struct rt_folder folder;
  char path[RT_PATH_BYTES];
  void *handle = NULL;
  bool written = rt_folder_make(&folder, -1, "") == QUERN_STATUS_OK && rt_path(path, folder.path, "object.so") &&
                 rt_file_write(path, bytes->at, bytes->n) == QUERN_STATUS_OK;
  if (written)
    handle = open_file(path, why, room);
  else
    snprintf(why, room, "%s", quern_last_error());
  rt_folder_remove(&folder);
  return handle;
}

/* Loads bytes through memory that is a file as well, where no folder will do. It stays open: while an object is
** loaded, its name must be its own. */
static void *open_memory(const struct rt_bytes *bytes, int *fd, char *why, size_t room) {
#if defined(__linux__)
  char path[64];
  int memory = base_fd_high(memfd_create("quern", MFD_CLOEXEC));
  if (memory < 0) return NULL;
  snprintf(path, sizeof path, "/proc/self/fd/%d", memory);
  void *handle = rt_write_all(memory, bytes->at, bytes->n) ? open_file(path, why, room) : NULL;
  if (!handle) close(memory);
  if (handle) *fd = memory;
  return handle;
#else
  (void)bytes;
  (void)fd;
  (void)why;
  (void)room;
  return NULL;
#endif
}

quern_status rt_module_load(struct rt_module *module, struct rt_bytes *bytes, const char *path,
                            const struct rt_key *key, size_t *number) {
  char why[512] = "";
  if (!base_vec_reserve(module->heap, &module->loaded, 1) || !base_vec_reserve(module->heap, &module->objects, 1))
    return QUERN_STATUS_MEMORY;
  struct rt_loaded loaded = {.key = *key, .fd = -1};
  if (*path) loaded.handle = open_file(path, why, sizeof why);
  if (!loaded.handle) loaded.handle = open_bytes(bytes, why, sizeof why);
  if (!loaded.handle) loaded.handle = open_memory(bytes, &loaded.fd, why, sizeof why);
  QUERN_CHECK(loaded.handle, IO, "cannot load compiled kernels: %s", why);
  loaded.bytes = *bytes;
  *bytes = (struct rt_bytes){0};
  *number = module->loaded.n;
  module->objects.at[module->objects.n++] = (struct rt_object){loaded.bytes.at, loaded.bytes.n};
  module->loaded.at[module->loaded.n++] = loaded;
  return QUERN_STATUS_OK;
}

bool rt_module_find(const struct rt_module *module, const struct rt_key *key, size_t *number) {
  for (size_t i = 0; i < module->loaded.n; i++) {
    *number = i;
    if (rt_key_equal(&module->loaded.at[i].key, key)) return true;
  }
  return false;
}

bool rt_module_resolve(struct rt_module *module, size_t k, const struct kern *kern, size_t number) {
  struct rt_entry *entry = &module->entries[k];
  entry->n_phases = 0;
  for (int phase = 0; phase < kern->n_phases; phase++) {
    char symbol[RT_SYMBOL_BYTES];
    cg_symbol(symbol, sizeof symbol, kern, phase);
    void *address = dlsym(module->loaded.at[number].handle, symbol);
    if (!address) return false;
    memcpy(&entry->run[phase], &address, sizeof address);
    entry->phases[phase] = kern->phases[phase];
  }
  entry->n_phases = kern->n_phases;
  return true;
}
