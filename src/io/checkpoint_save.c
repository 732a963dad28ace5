/* io/checkpoint_save.c -- saving a checkpoint
** out:   a folder step-... that is whole, or nothing
** keeps: what is made, renamed or removed is named within open folders, and no link is followed: a link of such a name
**        is removed itself, never what it leads to
** keeps: at every moment each folder named step-... is whole: it gets that name by a rename, when all of it is on the disk, and loses
**        it by a rename, before any of it is removed; names that begin with .step- are what a killed process left
** tests: tests/io/test_checkpoint.c, tests/io/test_checkpoint_kill.c
*/
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/checkpoint.h"

static const char hidden[] = ".step-", building_end[] = ".tmp", gone_end[] = ".gone";

enum { BUILDINGS = 256 };

/* A save on its way. */
struct saving {
  struct base_heap heap;
  const char *dir;
  const quern_checkpoint_contents *contents;
  struct io_layout model;                      /* of model.safetensors */
  struct io_sum *sums;                         /* of the model's tensors, in their order */
  struct base_str json;                        /* checkpoint.json */
  int fd;                                      /* of dir; -1: none */
  bool locked;                                 /* no other process saves into it */
  char name[IO_CHECKPOINT_NAME_MOST];          /* that the checkpoint gets */
  char building[IO_CHECKPOINT_NAME_MOST + 16]; /* the name of its folder as it is written */
  bool made;                                   /* that folder is there */
  int in;                                      /* its descriptor; -1: it is not open */
};

/* ---- folders -------------------------------------------------------------------------------------------- */

static bool begins(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }
static bool ends(const char *text, const char *with) {
  size_t n = strlen(text), m = strlen(with);
  return n >= m && strcmp(text + n - m, with) == 0;
}

/* A folder in a folder, or itself ("."), to be listed; NULL: it is none, or a link. */
static DIR *open_folder(int in, const char *name) {
  int fd = openat(in, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
  if (folder == NULL && fd >= 0) close(fd);
  return folder;
}

/* Removes a folder of files, or a link. What cannot be removed stays, under a name that means nothing. */
static void remove_folder(int in, const char *name) {
  DIR *folder = open_folder(in, name);
  if (folder == NULL) {
    (void)unlinkat(in, name, 0);
    return;
  }
  for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) (void)unlinkat(dirfd(folder), entry->d_name, 0);
  closedir(folder);
  (void)unlinkat(in, name, AT_REMOVEDIR);
}

/* Removes what killed processes left: folders that were being written or removed. */
static void remove_leftovers(const struct saving *saving) {
  DIR *folder = open_folder(saving->fd, ".");
  for (const struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;)
    if (begins(entry->d_name, hidden) && (ends(entry->d_name, building_end) || ends(entry->d_name, gone_end)))
      remove_folder(saving->fd, entry->d_name);
  if (folder != NULL) closedir(folder);
}

/* Takes a checkpoint's name away, then removes it. */
static void retire(const struct saving *saving, const char *name) {
  char gone[IO_CHECKPOINT_NAME_MOST + 8];
  snprintf(gone, sizeof gone, ".%s%s", name, gone_end);
  remove_folder(saving->fd, gone);
  if (renameat(saving->fd, name, saving->fd, gone) == 0) remove_folder(saving->fd, gone);
}

/* ---- the parts of a save -------------------------------------------------------------------------------- */

/* Makes the folder if it is missing, and sees to it that nobody else saves into it. */
static quern_status lock(struct saving *saving) {
  bool made = mkdir(saving->dir, 0777) == 0;
  QUERN_CHECK(made || errno == EEXIST, IO, "%s: cannot be made: %s", saving->dir, strerror(errno));
  if (made) QUERN_TRY(io_file_sync_folder(saving->dir));
  saving->fd = open(saving->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  QUERN_CHECK(saving->fd >= 0, IO, "%s: cannot be opened: %s", saving->dir, strerror(errno));
  saving->locked = flock(saving->fd, LOCK_EX | LOCK_NB) == 0; /* some file systems have no locks */
  QUERN_CHECK(saving->locked || errno != EWOULDBLOCK, STATE, "checkpoint_save: another process saves into %s",
              saving->dir);
  return QUERN_STATUS_OK;
}

static const quern_safetensor *tensor_at(const struct saving *saving, size_t i) {
  return &saving->contents->tensors[saving->model.order[i]];
}

/* Whether the caller gives the elements when they are written. */
static bool is_given(const struct saving *saving, const quern_safetensor *tensor) {
  return tensor->data == NULL && saving->contents->read != NULL && io_safetensor_bytes(tensor) > 0;
}

/* The bytes of the largest tensor that the caller gives; 0: there is none. */
static size_t most_given(const struct saving *saving) {
  size_t most = 0;
  for (size_t i = 0; i < saving->model.n; i++) {
    const quern_safetensor *tensor = tensor_at(saving, i);
    if (is_given(saving, tensor)) most = BASE_MAX(most, (size_t)io_safetensor_bytes(tensor));
  }
  return most;
}

/* The model's bytes, given tensors by way of the memory `at`; their digests become known. */
static quern_status add_tensors(struct saving *saving, struct io_out *out, void *at) {
  for (size_t i = 0; i < saving->model.n; i++) {
    const quern_safetensor *tensor = tensor_at(saving, i);
    size_t n = (size_t)io_safetensor_bytes(tensor);
    bool given = is_given(saving, tensor);
    if (given) QUERN_TRY(saving->contents->read(saving->contents->user, saving->model.order[i], at));
    if (given) saving->sums[i].digest = io_digest_of(at, n);
    QUERN_TRY(io_out_add(out, given ? at : tensor->data, n));
  }
  return QUERN_STATUS_OK;
}

/* An io_fill. */
static quern_status fill_model(struct io_out *out, void *user) {
  struct saving *saving = user;
  size_t most = most_given(saving);
  QUERN_TRY(io_out_add(out, saving->model.header.at, saving->model.header.n));
  void *at = most > 0 ? base_alloc(&saving->heap, most) : NULL;
  if (most > 0 && at == NULL) return QUERN_STATUS_MEMORY;
  quern_status status = add_tensors(saving, out, at);
  base_free(&saving->heap, at, most);
  return status;
}

static quern_status print_json(struct saving *saving) {
  const struct io_layout *model = &saving->model;
  base_str_fini(&saving->json);
  return io_checkpoint_print(&saving->json, saving->contents, saving->sums, model->header.n + model->bytes,
                             io_digest_of(model->header.at, model->header.n));
}

/* Makes the folder under its first name: another number where there are no locks, so that leftovers stay. */
static quern_status begin_building(struct saving *saving) {
  int made = -1;
  for (unsigned i = 0; made != 0 && i < BUILDINGS; i++) {
    snprintf(saving->building, sizeof saving->building, ".%s.%u%s", saving->name, i, building_end);
    made = mkdirat(saving->fd, saving->building, 0777);
    if (made != 0 && errno != EEXIST) break;
  }
  saving->made = made == 0;
  QUERN_CHECK(made == 0, IO, "%s/%s: cannot be made: %s", saving->dir, saving->building, strerror(errno));
  saving->in = openat(saving->fd, saving->building, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  QUERN_CHECK(saving->in >= 0, IO, "%s/%s: cannot be opened: %s", saving->dir, saving->building, strerror(errno));
  return QUERN_STATUS_OK;
}

/* Adds a file to the folder. */
static quern_status add_file(struct saving *saving, const char *name, io_fill *fill, void *user) {
  char path[IO_PATH_MOST + 256];
  snprintf(path, sizeof path, "%s/%s/%s", saving->dir, saving->building, name);
  return io_file_make(saving->in, name, path, fill, user);
}

/* Writes the folder under its first name. */
static quern_status build(struct saving *saving) {
  QUERN_TRY(begin_building(saving));
  QUERN_TRY(add_file(saving, IO_CHECKPOINT_MODEL, fill_model, saving));
  if (most_given(saving) > 0) QUERN_TRY(print_json(saving)); /* with their digests */
  struct io_piece json = {saving->json.at, saving->json.n};
  QUERN_TRY(add_file(saving, IO_CHECKPOINT_JSON, io_fill_piece, &json));
  return io_folder_sync(saving->in, saving->dir);
}

/* The name that this checkpoint gets: its step's, or with a number when there is one of that step. */
static quern_status choose_name(struct saving *saving) {
  struct io_saved_list saved;
  uint64_t number = 0;
  bool taken = false;
  quern_status status = io_saved_list(&saved, &saving->heap, saving->dir);
  for (size_t i = 0; i < saved.list.n; i++) {
    if (saved.list.at[i].step != saving->contents->step) continue;
    taken = true;
    number = BASE_MAX(number, saved.list.at[i].number);
  }
  io_saved_fini(&saved);
  QUERN_TRY(status);
  QUERN_CHECK(!taken || number < UINT64_MAX, OVERFLOW,
              "checkpoint_save: %s has a checkpoint of step %" PRIu64 " with the last number", saving->dir,
              saving->contents->step);
  int n = snprintf(saving->name, sizeof saving->name, "step-%08" PRIu64, saving->contents->step);
  if (taken) snprintf(saving->name + n, sizeof saving->name - (size_t)n, ".%" PRIu64, number + 1);
  return QUERN_STATUS_OK;
}

/* Gives the folder its name; when that may not last, takes it back. */
static quern_status publish(const struct saving *saving) {
  QUERN_CHECK(renameat(saving->fd, saving->building, saving->fd, saving->name) == 0, IO,
              "%s/%s: cannot be renamed to %s: %s", saving->dir, saving->building, saving->name, strerror(errno));
  quern_status status = io_folder_sync(saving->fd, saving->dir);
  if (status != QUERN_STATUS_OK) (void)renameat(saving->fd, saving->name, saving->fd, saving->building);
  return status;
}

/* ---- older ones ----------------------------------------------------------------------------------------- */

/* True when a checkpoint is whole, as far as that is seen without reading its elements. */
static bool seems_whole(const struct saving *saving, const char *name) {
  char path[IO_PATH_MOST];
  quern_checkpoint *checkpoint = NULL;
  int n = snprintf(path, sizeof path, "%s/%s", saving->dir, name);
  if (n < 0 || (size_t)n >= sizeof path) return false;
  bool whole = io_checkpoint_open(&checkpoint, path, &saving->contents->allocator) == QUERN_STATUS_OK;
  quern_checkpoint_close(checkpoint);
  return whole;
}

/* Removes the one that was replaced, and older ones when enough are kept. The checkpoint is saved by now: no memory for this means
** that more of them stay. */
static void prune(struct saving *saving) {
  struct io_saved_list saved;
  size_t keep = saving->contents->keep > 0 ? saving->contents->keep : SIZE_MAX, kept = 0;
  quern_status status = io_saved_list(&saved, &saving->heap, saving->dir);
  for (size_t i = 0; i < saved.list.n && status == QUERN_STATUS_OK; i++) {
    const struct io_saved *one = &saved.list.at[i];
    bool mine = strcmp(one->name, saving->name) == 0, older = one->step <= saving->contents->step;
    if (!mine && one->step == saving->contents->step)
      retire(saving, one->name);
    else if (mine || (older && kept < keep && keep != SIZE_MAX && seems_whole(saving, one->name)))
      kept++;
    else if (kept >= keep)
      retire(saving, one->name);
  }
  io_saved_fini(&saved);
}

/* ---- the whole ------------------------------------------------------------------------------------------ */

static quern_status check(struct saving *saving) {
  const quern_checkpoint_contents *contents = saving->contents;
  QUERN_CHECK(contents->step <= INT64_MAX, OVERFLOW, "checkpoint_save: step %" PRIu64 " exceeds 2^63 - 1",
              contents->step);
  QUERN_CHECK(contents->cursor <= INT64_MAX, OVERFLOW, "checkpoint_save: cursor %" PRIu64 " exceeds 2^63 - 1",
              contents->cursor);
  return io_safetensors_check("checkpoint_save", &saving->heap, contents->n_tensors, contents->tensors,
                              contents->read != NULL, contents->n_config, contents->config);
}

static size_t sums_bytes(const struct saving *saving) { return (saving->model.n + 1) * sizeof *saving->sums; }

/* Digests of the tensors that are there. */
static quern_status make_sums(struct saving *saving) {
  saving->sums = base_alloc_zero(&saving->heap, sums_bytes(saving));
  if (saving->sums == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < saving->model.n; i++) {
    const quern_safetensor *tensor = tensor_at(saving, i);
    saving->sums[i].name = tensor->name;
    if (!is_given(saving, tensor))
      saving->sums[i].digest = io_digest_of(tensor->data, (size_t)io_safetensor_bytes(tensor));
  }
  return QUERN_STATUS_OK;
}

/* Everything that can be wrong with the contents is found here, before anything is written. */
static quern_status prepare(struct saving *saving) {
  const quern_checkpoint_contents *contents = saving->contents;
  quern_status status =
      io_layout_make(&saving->model, &saving->heap, contents->n_tensors, NULL, contents->tensors, 0, NULL);
  if (status == QUERN_STATUS_OK) status = make_sums(saving);
  if (status == QUERN_STATUS_OK) status = print_json(saving);
  if (status == QUERN_STATUS_OK || status == QUERN_STATUS_MEMORY) return status;
  return base_error(status, "checkpoint_save: %s", quern_last_error());
}

static quern_status save_locked(struct saving *saving) {
  if (saving->locked) remove_leftovers(saving);
  QUERN_TRY(choose_name(saving));
  quern_status status = build(saving);
  if (status == QUERN_STATUS_OK) status = publish(saving);
  if (saving->in >= 0) close(saving->in);
  if (status == QUERN_STATUS_OK)
    prune(saving);
  else if (saving->made)
    remove_folder(saving->fd, saving->building);
  return status;
}

quern_status io_checkpoint_save(const char *dir, const quern_checkpoint_contents *contents,
                                char name[IO_CHECKPOINT_NAME_MOST]) {
  name[0] = 0;
  QUERN_CHECK(dir != NULL && dir[0] != 0, INVALID, "checkpoint_save: the path is %s", dir == NULL ? "null" : "empty");
  QUERN_CHECK(contents != NULL, INVALID, "checkpoint_save: the contents are null");
  quern_checkpoint_contents taken;
  QUERN_TRY(base_take(quern_checkpoint_contents, &taken, contents, "checkpoint_save"));
  contents = &taken;
  QUERN_CHECK((contents->allocator.alloc == NULL) == (contents->allocator.free == NULL), INVALID,
              "checkpoint_save: an allocator needs both alloc and free");
  QUERN_TRY(base_env_read());
  QUERN_TRY(io_safetensors_check_machine());
  struct saving saving = {.dir = dir, .contents = contents, .fd = -1, .in = -1};
  base_heap_init(&saving.heap, &contents->allocator);
  QUERN_TRY(check(&saving));
  base_str_init(&saving.json, &saving.heap);
  quern_status status = prepare(&saving);
  if (status == QUERN_STATUS_OK) status = lock(&saving);
  if (status == QUERN_STATUS_OK) status = save_locked(&saving);
  if (status == QUERN_STATUS_OK) memcpy(name, saving.name, sizeof saving.name);
  if (saving.fd >= 0) close(saving.fd);
  base_str_fini(&saving.json);
  if (saving.sums != NULL) base_free(&saving.heap, saving.sums, sums_bytes(&saving));
  io_layout_fini(&saving.model);
  return status;
}

quern_status quern_checkpoint_save(const char *dir, const quern_checkpoint_contents *contents) {
  char name[IO_CHECKPOINT_NAME_MOST];
  return io_checkpoint_save(dir, contents, name);
}
