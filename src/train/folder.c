/* train/folder.c -- the folder of a run: one process trains in it, and nothing in it that is not the run's is replaced
** in:    the folder `out`                out: locked, without temporary files of killed runs; or what is in the way
** keeps: a lock that the kernel releases with the process; a folder is a run's when its config is one that a run has
**        written, or when it has checkpoints, and the run is this one when all keys agree that determine what is computed
** tests: tests/train/test_folder.c, tests/train/test_kill.c
*/
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/checkpoint.h"
#include "train/train.h"

#define LOCK ".lock"
#define CONFIG "config"
#define METRICS "metrics.jsonl"

/* What a run writes beside its checkpoints; from NAMES on under temporary names only. */
static const char *const files[] = {CONFIG,        METRICS,    "tokenizer.json", "run.json",
                                    "report.html", "data.bin", "eval_data.bin"};
enum { NAMES = 5 };

/* The first line of a config that a run has written. */
static const char mark[] = "# Written by a run, which replaces it: all of its keys.\n";

/* ---- one process ---------------------------------------------------------------------------------------- */

quern_status train_lock(quern_trainer *t, const char *out) {
  long holder;
  char who[48] = "";
  struct stat there;
  if (t->lock >= 0) return QUERN_STATUS_OK;
  t->made = stat(out, &there) != 0;
  QUERN_TRY(train_make_folder(out));
  if (t->folder < 0) t->folder = open(out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  QUERN_CHECK(t->folder >= 0, IO, "%s: cannot be opened: %s", out, strerror(errno));
  t->lock = base_lock_take(t->folder, LOCK, &holder);
  if (t->lock >= 0) return QUERN_STATUS_OK;
  QUERN_CHECK(errno == EWOULDBLOCK, IO, "%s/%s: cannot be made: %s", out, LOCK, strerror(errno));
  if (holder > 0 && holder != (long)getpid()) snprintf(who, sizeof who, " (pid %ld)", holder);
  return base_error(QUERN_STATUS_STATE, "%s: another %s%s trains in this folder HINT: another folder: out=FOLDER", out,
                    holder == (long)getpid() ? "run of this process" : "process", who);
}

void train_unlock(quern_trainer *t) {
  if (t->fresh)
    for (size_t i = 0; i < NAMES; i++) (void)unlinkat(t->folder, files[i], 0);
  base_lock_release(t->folder, LOCK, t->lock);
  if (t->fresh && t->made && t->config != NULL) (void)rmdir(quern_config_get(t->config, "out"));
  if (t->folder >= 0) close(t->folder);
  t->lock = t->folder = -1;
}

/* Removes what killed runs left of files that they were writing. */
static void remove_temporary(int folder, const char *out) {
  DIR *dir = opendir(out);
  for (const struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;)
    for (size_t i = 0; i < BASE_COUNT(files); i++)
      if (base_temporary_is(entry->d_name, files[i])) (void)base_temporary_remove(folder, entry->d_name);
  if (dir != NULL) closedir(dir);
}

/* ---- whose files these are ------------------------------------------------------------------------------ */

/* A run's folder as it was found. */
struct found {
  bool checkpoints, trained; /* it has checkpoints; or lines of steps */
  const char *file;          /* one that a run writes; NULL: it has none */
};

static quern_status look(struct found *found, struct base_heap *heap, int folder, const char *out) {
  struct io_saved_list saved;
  struct stat there;
  *found = (struct found){0};
  quern_status status = io_saved_list(&saved, heap, out);
  found->checkpoints = saved.list.n > 0;
  io_saved_fini(&saved);
  for (size_t i = NAMES; i-- > 0;)
    if (fstatat(folder, files[i], &there, AT_SYMLINK_NOFOLLOW) == 0) found->file = files[i];
  found->trained = fstatat(folder, METRICS, &there, 0) == 0 && there.st_size > 0;
  return status;
}

/* Keys that a run resolves as it begins: what is written of them may be more than what was asked for. */
static bool is_resolved(const char *key, const char *asked) {
  static const char *const keys[][2] = {
      {"vocabulary", "model"}, {"positions", "model"}, {"classes", "data"}, {"precision", "auto"}};
  for (size_t i = 0; i < BASE_COUNT(keys); i++)
    if (strcmp(key, keys[i][0]) == 0 && strcmp(asked, keys[i][1]) == 0) return true;
  return false;
}

/* The first key that determines what is computed and differs; NULL: it is the same run. */
static const char *find_difference(const quern_config *asked, const quern_config *written) {
  for (size_t i = 0; i < train_n_keys; i++) {
    const char *key = train_keys[i].name, *ours = quern_config_get(asked, key), *its = quern_config_get(written, key);
    if (train_key_is_same(i) && !is_resolved(key, ours) && !train_same_value(i, ours, its)) return key;
  }
  return NULL;
}

static quern_status in_the_way(const char *out, const char *file, const char *why) {
  return base_error(QUERN_STATUS_STATE,
                    "%s/%s: is there already, and %s: training would replace it HINT: another folder: out=FOLDER", out,
                    file, why);
}

/* A config is there, in memory: it must be that of this run, or of one that made no step. */
static quern_status check_config(const struct found *found, const quern_config *config, const char *path,
                                 const char *out, const char *text, size_t n) {
  quern_config *written;
  bool marked = n >= sizeof mark - 1 && memcmp(text, mark, sizeof mark - 1) == 0;
  if (!marked) return in_the_way(out, CONFIG, "no run has written it");
  QUERN_TRY(quern_train_config(&written, io_config_allocator(config)));
  quern_status status = quern_config_text(written, path, text, n);
  const char *key = status == QUERN_STATUS_OK ? find_difference(config, written) : NULL;
  if (key != NULL && found->trained)
    status = base_error(QUERN_STATUS_INVALID,
                        "%s: the run in this folder was made with %s = '%.100s', not '%.100s' HINT: another folder: "
                        "out=FOLDER; or begin it as it was: quern train %s/" CONFIG " out=%s",
                        out, key, quern_config_get(written, key), quern_config_get(config, key), out, out);
  quern_config_free(written);
  return status == QUERN_STATUS_PARSE ? in_the_way(out, CONFIG, "is no configuration of a run") : status;
}

static quern_status check(const struct found *found, struct base_heap *heap, const quern_config *config,
                          const char *out) {
  char path[IO_PATH_MOST];
  void *text;
  size_t n;
  if (found->file == NULL || found->checkpoints) return QUERN_STATUS_OK; /* the newest checkpoint has the say */
  if (strcmp(found->file, CONFIG) != 0) return in_the_way(out, found->file, "there is no config of a run beside it");
  QUERN_TRY(io_path_join(path, out, CONFIG));
  QUERN_TRY(io_file_read(path, heap, 1 << 20, &text, &n));
  quern_status status = check_config(found, config, path, out, text, n);
  base_free(heap, text, n);
  return status;
}

/* ---- the door ------------------------------------------------------------------------------------------- */

bool train_has_config(const char *dir) {
  char path[IO_PATH_MOST];
  return io_path_join(path, dir, CONFIG) == QUERN_STATUS_OK && access(path, R_OK) == 0;
}

quern_status train_config_write(const quern_config *config, const char *out) {
  char path[IO_PATH_MOST], *text;
  QUERN_TRY(io_path_join(path, out, CONFIG));
  QUERN_TRY(quern_config_print(config, true, &text));
  const struct io_piece pieces[] = {{mark, sizeof mark - 1}, {text, strlen(text)}};
  quern_status status = io_file_write("train", path, BASE_COUNT(pieces), pieces);
  quern_free_text(text);
  return status;
}

quern_status train_folder_open(quern_trainer *t, const quern_config *config) {
  const char *out = quern_config_get(config, "out");
  struct found found;
  if (out[0] == 0) return QUERN_STATUS_OK;
  QUERN_TRY(train_lock(t, out));
  remove_temporary(t->folder, out);
  QUERN_TRY(look(&found, &t->heap, t->folder, out));
  QUERN_TRY(check(&found, &t->heap, config, out));
  t->fresh = !found.checkpoints && found.file == NULL;
  /* from now on all that is written is known to be a run's, whenever it is killed */
  return found.checkpoints || found.trained ? QUERN_STATUS_OK : train_config_write(config, out);
}
