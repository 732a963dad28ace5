/* runtime/cpu/notes.c -- small texts by name, and bytes by key, in the cache of this process
** tests: tests/runtime/test_cpu.c
*/
#define _GNU_SOURCE /* dladdr */
#include "runtime/cpu/cpu_int.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "quern/version.h"

/* Opens the cache and gives the key of a name; notes of other versions of Quern are others. */
static struct rt_key open_for(struct rt_cache *cache, struct base_heap *heap, const char *name) {
  char place[RT_PATH_BYTES];
  rt_cache_path(place, sizeof place);
  rt_cache_open(cache, heap, place, RT_CACHE_LIMIT);
  struct rt_key key = rt_key_make(4, name, strlen(name));
  rt_key_add(&key, quern_version(), strlen(quern_version()));
  return key;
}

void rt_note_get(struct base_heap *heap, const char *name, char *text, size_t bytes) {
  struct rt_cache cache;
  struct rt_key key = open_for(&cache, heap, name);
  rt_cache_note_get(&cache, &key, text, bytes);
  rt_cache_close(&cache);
}

void rt_note_set(struct base_heap *heap, const char *name, const char *text) {
  struct rt_cache cache;
  struct rt_key key = open_for(&cache, heap, name);
  rt_cache_note_set(&cache, &key, text);
  rt_cache_close(&cache);
}

bool rt_notes_kept(struct base_heap *heap) {
  struct rt_cache cache;
  (void)open_for(&cache, heap, "");
  bool kept = cache.folder >= 0;
  rt_cache_close(&cache);
  return kept;
}

/* ---- bytes ---------------------------------------------------------------------------------------------- */

quern_status rt_blob_get(struct base_heap *heap, const uint64_t key[2], void **bytes, size_t *n, size_t *room) {
  struct rt_cache cache;
  struct rt_key name = open_for(&cache, heap, "blob");
  struct rt_bytes found = {0};
  char path[RT_PATH_BYTES];
  rt_key_add(&name, key, 2 * sizeof *key);
  quern_status status = rt_cache_read(&cache, &name, &found, path);
  rt_cache_close(&cache);
  *bytes = found.at;
  *n = found.n;
  *room = found.room;
  return status;
}

void rt_blob_set(struct base_heap *heap, const uint64_t key[2], const void *bytes, size_t n) {
  struct rt_cache cache;
  struct rt_key name = open_for(&cache, heap, "blob");
  rt_key_add(&name, key, 2 * sizeof *key);
  (void)rt_cache_add(&cache, &name, bytes, n);
  rt_cache_close(&cache);
}

bool rt_compiler_key(struct base_heap *heap, const struct cg_target *target, uint64_t key[2]) {
  struct rt_cache cache;
  struct rt_cc cc;
  const char *folders = getenv("PATH");
  (void)open_for(&cache, heap, "");
  bool found = cache.folder >= 0 && base_env_get(BASE_ENV_DUMP_DIR)[0] == 0 &&
               rt_cc_find(&cc, heap, &cache, base_env_get(BASE_ENV_CC), folders ? folders : "", 0) == QUERN_STATUS_OK &&
               cc.n_words > 0;
  if (found) {
    struct rt_key made = rt_cc_key(&cc, target, false);
    key[0] = made.word[0];
    key[1] = made.word[1];
  }
  rt_cache_close(&cache);
  return found;
}

bool rt_build_identity(uint64_t *identity) {
  Dl_info info;
  struct stat file;
  if (dladdr(&rt_cpu, &info) == 0 || info.dli_fname == NULL || stat(info.dli_fname, &file) != 0) return false;
  const uint64_t words[] = {(uint64_t)file.st_dev, (uint64_t)file.st_ino, (uint64_t)file.st_size,
                            (uint64_t)file.st_mtim.tv_sec, (uint64_t)file.st_mtim.tv_nsec};
  *identity = base_hash_bytes(BASE_HASH_SEED, words, sizeof words);
  return true;
}
