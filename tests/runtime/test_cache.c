/* tests/runtime/test_cache.c -- the cache: damage, unsafe folders, the limit, many processes */
#define _GNU_SOURCE /* unshare */
#include "runtime/files.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

#include "runtime/cpu/cpu_int.h"

static struct base_heap heap;
static struct rt_cache cache;
static char text[4096];

static int setup(void **state) {
  (void)state;
  base_heap_init(&heap, &memory_allocator);
  files_remove(in_folder("cache"));
  rt_cache_open(&cache, &heap, in_folder("cache"), RT_CACHE_LIMIT);
  return cache.folder >= 0 ? 0 : -1;
}

static int teardown(void **state) {
  (void)state;
  rt_cache_close(&cache);
  return memory_live == 0 ? 0 : -1;
}

static struct rt_key key_of(int number) { return rt_key_make(77, &number, sizeof number); }

static const char *name_of(int number) {
  struct rt_key key = key_of(number);
  char name[128];
  snprintf(name, sizeof name, "cache/%016llx%016llx.so", (unsigned long long)key.word[0],
           (unsigned long long)key.word[1]);
  return in_folder(name);
}

/* Adds an object of n bytes that its number determines. */
static bool add(int number, size_t n) {
  static unsigned char bytes[1 << 16];
  struct rt_key key = key_of(number);
  for (size_t i = 0; i < n; i++) bytes[i] = (unsigned char)(i * 7 + (size_t)number);
  return rt_cache_add(&cache, &key, bytes, n);
}

/* The length of object number, whose bytes must be right; -1: it is not there. */
static int length_of(int number) {
  struct rt_bytes bytes;
  char path[RT_PATH_BYTES];
  struct rt_key key = key_of(number);
  EXPECT_OK(rt_cache_read(&cache, &key, &bytes, path));
  if (!bytes.at) return -1;
  assert_int_equal(access(path, R_OK), 0);
  int n = (int)bytes.n;
  for (int i = 0; i < n; i++) assert_int_equal(((unsigned char *)bytes.at)[i], (unsigned char)(i * 7 + number));
  rt_bytes_free(&heap, &bytes);
  return n;
}

static void age(const char *path, int seconds) {
  struct timespec times[2] = {{.tv_sec = time(NULL) - seconds}, {.tv_sec = time(NULL) - seconds}};
  assert_int_equal(utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW), 0);
}

static void objects(void **state) {
  (void)state;
  assert_int_equal(length_of(1), -1);
  assert_true(add(1, 1000));
  assert_true(add(2, 0));
  assert_int_equal(length_of(1), 1000);
  assert_int_equal(length_of(2), 0);
  assert_int_equal(length_of(3), -1);
  assert_true(add(1, 2000)); /* in place of the first */
  assert_int_equal(length_of(1), 2000);
  assert_int_equal(files_count(in_folder("cache"), "", NULL), 2);
  struct rt_key key = key_of(1);
  rt_cache_remove(&cache, &key);
  assert_int_equal(length_of(1), -1);
}

static void kernels_and_notes(void **state) {
  (void)state;
  struct rt_key kernel = key_of(10), object = key_of(20), other = key_of(21), got;
  assert_false(rt_cache_find_kernel(&cache, &kernel, &got));
  rt_cache_add_kernel(&cache, &kernel, &object);
  assert_true(rt_cache_find_kernel(&cache, &kernel, &got));
  assert_true(rt_key_equal(&got, &object));
  rt_cache_add_kernel(&cache, &kernel, &other); /* compiled anew */
  assert_true(rt_cache_find_kernel(&cache, &kernel, &got));
  assert_true(rt_key_equal(&got, &other));
  rt_cache_note_get(&cache, &kernel, text, sizeof text);
  assert_string_equal(text, "");
  rt_cache_note_set(&cache, &kernel, "a note\n");
  rt_cache_note_get(&cache, &kernel, text, sizeof text);
  assert_string_equal(text, "a note\n");
  rt_cache_note_get(&cache, &kernel, text, 4);
  assert_string_equal(text, "a n");
  rt_cache_note_set(&cache, &kernel, "another");
  rt_cache_note_get(&cache, &kernel, text, sizeof text);
  assert_string_equal(text, "another");
  assert_int_equal(files_count(in_folder("cache"), "quern-tmp-", NULL), 0);
}

/* ---- damage -------------------------------------------------------------------------------------------- */

/* Every way to spoil a byte or the length of an entry is noticed, and the entry removed. */
static void damaged(void **state) {
  (void)state;
  enum { N = 200 };
  char whole[1024];
  assert_true(add(5, N));
  FILE *file = fopen(name_of(5), "rb");
  assert_non_null(file);
  size_t n = fread(whole, 1, sizeof whole, file);
  fclose(file);
  assert_true(n > N && n < sizeof whole);
  for (size_t i = 0; i < n; i++) {
    char spoilt[1024];
    memcpy(spoilt, whole, n);
    spoilt[i] = (char)(spoilt[i] ^ (1 << i % 8));
    files_write_bytes(name_of(5), spoilt, n);
    assert_int_equal(length_of(5), -1);
    assert_int_equal(access(name_of(5), F_OK), -1);
  }
  for (size_t cut = 0; cut < n; cut += 3) {
    files_write_bytes(name_of(5), whole, cut);
    assert_int_equal(length_of(5), -1);
    assert_int_equal(access(name_of(5), F_OK), -1);
  }
  whole[n] = 0;
  files_write_bytes(name_of(5), whole, n + 1);
  assert_int_equal(length_of(5), -1);
  files_write_bytes(name_of(6), whole, n); /* under another's name */
  assert_int_equal(length_of(6), -1);
  files_write_bytes(name_of(5), whole, n);
  assert_int_equal(length_of(5), N);
}

static void strange_entries(void **state) {
  (void)state;
  struct rt_key kernel = key_of(10), got;
  char name[128];
  snprintf(name, sizeof name, "cache/%016llx%016llx.k", (unsigned long long)kernel.word[0],
           (unsigned long long)kernel.word[1]);
  static const char *const targets[] = {"/etc/passwd", "x.so", "0123456789abcdef0123456789abcdef.k",
                                        "0123456789abcdef0123456789abcdeF.so",
                                        "../0123456789abcdef0123456789abcdef.so"};
  for (size_t i = 0; i < BASE_COUNT(targets); i++) {
    assert_int_equal(symlink(targets[i], in_folder(name)), 0);
    assert_false(rt_cache_find_kernel(&cache, &kernel, &got));
    unlink(in_folder(name));
  }
  assert_int_equal(mkdir(name_of(7), 0700), 0);
  assert_int_equal(length_of(7), -1);
  files_write(in_folder("outside"), "secret");
  assert_int_equal(symlink(in_folder("outside"), name_of(8)), 0);
  assert_int_equal(length_of(8), -1);
  assert_int_equal(mkfifo(name_of(9), 0600), 0); /* nobody is going to write there */
  assert_int_equal(length_of(9), -1);
  assert_true(add(9, 100));
  assert_int_equal(length_of(9), 100);
  snprintf(name, sizeof name, "cache/%016llx%016llx.txt", (unsigned long long)kernel.word[0],
           (unsigned long long)kernel.word[1]);
  assert_int_equal(mkfifo(in_folder(name), 0600), 0);
  rt_cache_note_get(&cache, &kernel, text, sizeof text);
  assert_string_equal(text, "");
  assert_int_equal(mkfifo(in_folder("cache/quern-tmp-fifo"), 0600), 0);
  EXPECT_OK(rt_cache_trim(&cache));
  assert_int_equal(access(in_folder("cache/quern-tmp-fifo"), F_OK), -1);
  if (geteuid() == 0) {
    assert_int_equal(chown(name_of(9), 12345, 12345), 0); /* another user's */
    assert_int_equal(length_of(9), -1);
  }
}

/* ---- folders ------------------------------------------------------------------------------------------- */

static const char *opened_path;
static bool expect_usable;

static void open_once(void) {
  for (int i = 0; i < 2; i++) {
    struct rt_cache one;
    rt_cache_open(&one, &heap, opened_path, RT_CACHE_LIMIT);
    CHILD_CHECK((one.folder >= 0) == expect_usable);
    struct rt_key key = key_of(1), got;
    if (!expect_usable) { /* all of it does nothing */
      struct rt_bytes bytes;
      char path[RT_PATH_BYTES];
      CHILD_CHECK(!rt_cache_find_kernel(&one, &key, &got));
      CHILD_CHECK(rt_cache_read(&one, &key, &bytes, path) == QUERN_STATUS_OK && !bytes.at);
      CHILD_CHECK(!rt_cache_add(&one, &key, "x", 1));
      rt_cache_add_kernel(&one, &key, &key);
      rt_cache_note_set(&one, &key, "x");
      rt_cache_remove(&one, &key);
      CHILD_CHECK(rt_cache_trim(&one) == QUERN_STATUS_OK);
    }
    rt_cache_close(&one);
  }
}

/* Opens it twice in a process: usable, without a word; or not, with one warning that has these words. */
static void expect_folder(const char *path, const char *words) {
  opened_path = path;
  expect_usable = words == NULL;
  int status = in_child(open_once, text, sizeof text);
  if (status != 0) fail_msg("%s: child ended with %d: %s", path, status, text);
  if (!words) assert_string_equal(text, "");
  if (words && !strstr(text, words)) fail_msg("%s: \"%s\" is not in: %s", path, words, text);
  if (words) assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
}

static void folders(void **state) {
  (void)state;
  expect_folder(in_folder("new/and/deep"), NULL);
  struct stat info;
  assert_int_equal(stat(in_folder("new/and/deep"), &info), 0);
  assert_int_equal(info.st_mode & 0777, 0700);
  expect_folder(in_folder("new/and/deep/"), NULL);
  expect_folder(in_folder("new/and/deep///"), NULL);
  assert_int_equal(chmod(in_folder("new/and/deep"), 0750), 0);
  expect_folder(in_folder("new/and/deep"), "chmod 700");
  assert_int_equal(chmod(in_folder("new/and/deep"), 0701), 0);
  expect_folder(in_folder("new/and/deep"), "chmod 700");
  assert_int_equal(chmod(in_folder("new/and/deep"), 0500), 0);
  expect_folder(in_folder("new/and/deep"), "may not be written");
  assert_int_equal(chmod(in_folder("new/and/deep"), 0700), 0);
  expect_folder(in_folder("new/and/deep"), NULL);
  assert_int_equal(symlink(in_folder("new/and/deep"), in_folder("link")), 0);
  expect_folder(in_folder("link"), "a link");
  expect_folder(in_folder("link/"), "a link");
  files_write(in_folder("file"), "x");
  expect_folder(in_folder("file"), "not a folder");
  expect_folder(in_folder("file/below"), "not a folder");
  assert_int_equal(chmod(in_folder("new/and"), 0777), 0); /* others could put a folder of theirs there */
  expect_folder(in_folder("new/and/deep"), "others may write to a folder on its path");
  assert_int_equal(chmod(in_folder("new/and"), 01777), 0);
  expect_folder(in_folder("new/and/deep"), NULL);
  assert_int_equal(chmod(in_folder("new/and"), 0755), 0);
  if (geteuid() == 0) {
    assert_int_equal(chown(in_folder("new"), 12345, 12345), 0);
    expect_folder(in_folder("new/and/deep"), "a folder on its path belongs to another user");
    assert_int_equal(chown(in_folder("new"), 0, 0), 0);
    assert_int_equal(chown(in_folder("new/and/deep"), 12345, 12345), 0);
    expect_folder(in_folder("new/and/deep"), "another user");
  }
  memset(text, 'x', sizeof text);
  char *long_name = malloc(5001);
  memset(long_name, 'x', 5000);
  long_name[5000] = 0;
  expect_folder(long_name, "cannot be used");
  free(long_name);
}

static const char *variables[3]; /* QUERN_CACHE, XDG_CACHE_HOME, HOME */

static void one_place(void) {
  static const char *const names[] = {"QUERN_CACHE", "XDG_CACHE_HOME", "HOME"};
  for (int i = 0; i < 3; i++) {
    unsetenv(names[i]);
    if (variables[i]) setenv(names[i], variables[i], 1);
  }
  char place[RT_PATH_BYTES];
  rt_cache_path(place, sizeof place);
  fprintf(stderr, "%s", place);
}

static void expect_place(const char *quern, const char *xdg, const char *home, const char *place) {
  variables[0] = quern;
  variables[1] = xdg;
  variables[2] = home;
  assert_int_equal(in_child(one_place, text, sizeof text), 0);
  assert_string_equal(text, place);
}

static void places(void **state) {
  (void)state;
  expect_place("/a/b", "/x", "/h", "/a/b");
  expect_place("here", "/x", "/h", "here");
  expect_place("0", "/x", "/h", "");
  expect_place(NULL, "/x", "/h", "/x/quern");
  expect_place("", "", "/h", "/h/.cache/quern");
  expect_place(NULL, "not/absolute", "/h", "/h/.cache/quern");
  expect_place(NULL, NULL, NULL,
               "quern: warning: kernels are compiled at each start, since the cache cannot be used: "
               "neither XDG_CACHE_HOME nor HOME is set; see QUERN_CACHE\n");
}

/* The cache stays where it was opened. */
static void changed_directory(void **state) {
  (void)state;
  char before[4096];
  assert_non_null(getcwd(before, sizeof before));
  assert_int_equal(chdir(test_folder), 0);
  rt_cache_close(&cache);
  rt_cache_open(&cache, &heap, "cache", RT_CACHE_LIMIT);
  assert_int_equal(chdir(before), 0);
  assert_true(add(1, 10));
  assert_int_equal(length_of(1), 10);
  assert_int_equal(access(name_of(1), F_OK), 0);
}

/* ---- the limit ----------------------------------------------------------------------------------------- */

static void limit(void **state) {
  (void)state;
  struct rt_key kernels[10], object, got;
  cache.limit = 100000;
  for (int i = 0; i < 10; i++) {
    kernels[i] = key_of(100 + i);
    object = key_of(i);
    assert_true(add(i, 9950));
    rt_cache_add_kernel(&cache, &kernels[i], &object);
    age(name_of(i), 100000 - 1000 * i);
  }
  EXPECT_OK(rt_cache_trim(&cache)); /* just under it */
  for (int i = 0; i < 10; i++) assert_int_equal(access(name_of(i), F_OK), 0);
  assert_int_equal(length_of(0), 9950); /* the oldest is used */
  assert_true(add(10, 1000));
  EXPECT_OK(rt_cache_trim(&cache)); /* down to three quarters, the longest unused first */
  int there = 0;
  for (int i = 0; i <= 10; i++) there += access(name_of(i), F_OK) == 0;
  assert_int_equal(access(name_of(0), F_OK), 0);
  assert_int_equal(access(name_of(1), F_OK), -1);
  assert_int_equal(access(name_of(3), F_OK), -1);
  assert_int_equal(access(name_of(4), F_OK), 0);
  assert_int_equal(access(name_of(10), F_OK), 0);
  assert_int_equal(there, 8);
  assert_false(rt_cache_find_kernel(&cache, &kernels[1], &got)); /* nothing dangles */
  assert_true(rt_cache_find_kernel(&cache, &kernels[4], &got));
}

static void used_now(void **state) {
  (void)state;
  struct stat info;
  assert_true(add(1, 10));
  age(name_of(1), 5000);
  assert_int_equal(length_of(1), 10);
  assert_int_equal(stat(name_of(1), &info), 0);
  assert_true(time(NULL) - info.st_mtime < 100);
  age(name_of(1), -5000); /* a clock that went wrong */
  assert_int_equal(length_of(1), 10);
  assert_int_equal(stat(name_of(1), &info), 0);
  assert_true(info.st_mtime - time(NULL) < 100);
}

static void killed_while_compiling(void) {
  struct rt_folder folder;
  char path[RT_PATH_BYTES];
  CHILD_CHECK(rt_folder_make(&folder, cache.folder, cache.path) == QUERN_STATUS_OK);
  CHILD_CHECK(rt_path(path, folder.path, "unit.c"));
  files_write(path, "x");
  fprintf(stderr, "%s", path);
  kill(getpid(), SIGKILL);
}

static void open_and_be_killed(void) {
  rt_cache_open(&cache, &heap, in_folder("cache"), RT_CACHE_LIMIT);
  killed_while_compiling();
}

static void open_and_close(void) {
  rt_cache_open(&cache, &heap, in_folder("cache"), RT_CACHE_LIMIT);
  rt_cache_close(&cache);
}

/* A user who is alone in a namespace of users: root shows as nobody, and / belongs to it. */
static void make_in_namespace(void) {
  struct rt_folder folder;
  char map[64];
  if (geteuid() == 0 && (setresgid(65533, 65533, 65533) != 0 || setresuid(65533, 65533, 65533) != 0)) _exit(77);
  unsigned outside = geteuid();
  (void)prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); /* else /proc/self is not this user's */
  if (unshare(CLONE_NEWUSER) != 0) _exit(77);
  int fd = open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC), n = snprintf(map, sizeof map, "1000 %u 1", outside);
  if (fd < 0 || write(fd, map, (size_t)n) != n) _exit(77);
  close(fd);
  unsetenv("TMPDIR");
  CHILD_CHECK(geteuid() == 1000);
  CHILD_CHECK(rt_folder_make(&folder, -1, "") == QUERN_STATUS_OK);
  rt_folder_remove(&folder);
}

static void users_namespace(void **state) {
  (void)state;
  int status = in_child(make_in_namespace, text, sizeof text);
  if (status == 77) skip(); /* namespaces cannot be made here */
  if (status != 0) fail_msg("status %d: %s", status, text);
}

/* The first use of the cache in a process removes what killed ones have left, though nothing is compiled. */
static void swept_first(void **state) {
  (void)state;
  base_heap_init(&heap, &memory_allocator);
  assert_int_equal(in_child(open_and_be_killed, text, sizeof text), 128 + SIGKILL);
  assert_int_equal(files_count(in_folder("cache"), "quern-tmp-", NULL), 1);
  assert_int_equal(in_child(open_and_close, text, sizeof text), 0);
  assert_int_equal(files_count(in_folder("cache"), "quern-tmp-", NULL), 0);
}

/* What killed processes have left is removed at once, by the next one; what is in use is not, nor what people are to
** look at. */
static void left_behind(void **state) {
  (void)state;
  struct rt_folder used, kept;
  for (int round = 0; round < 2; round++) {
    EXPECT_OK(rt_folder_make(&used, cache.folder, cache.path));
    EXPECT_OK(rt_folder_make(&kept, cache.folder, cache.path));
    char used_path[RT_PATH_BYTES], kept_path[RT_PATH_BYTES];
    memcpy(used_path, used.path, sizeof used_path);
    memcpy(kept_path, kept.path, sizeof kept_path);
    rt_folder_leave(&kept);
    assert_int_equal(in_child(killed_while_compiling, text, sizeof text), 128 + SIGKILL);
    assert_int_equal(access(text, F_OK), 0);
    files_write(in_folder("cache/quern-tmp-file"), "x");
    files_write(in_folder("cache/mine"), "x");
    age(in_folder("cache/mine"), 10000);
    char left[sizeof text];
    memcpy(left, text, sizeof left);
    EXPECT_OK(rt_cache_trim(&cache));
    *strrchr(left, '/') = 0;
    assert_int_equal(access(left, F_OK), -1);
    assert_int_equal(access(in_folder("cache/quern-tmp-file"), F_OK), -1);
    assert_int_equal(access(used_path, F_OK), 0);
    assert_int_equal(access(kept_path, F_OK), 0);
    assert_int_equal(access(in_folder("cache/mine"), F_OK), 0);
    rt_folder_remove(&used);
    age(kept_path, 0);
    EXPECT_OK(rt_cache_trim(&cache));
    assert_int_equal(access(kept_path, F_OK), -1);
    assert_int_equal(files_count(in_folder("cache"), "quern-tmp-", NULL), 0);
  }
}

/* ---- many processes ------------------------------------------------------------------------------------ */

static int process_number;

/* Adds, reads and trims the same few objects as the others: what is found is whole. */
static void use_cache(void) {
  cache.limit = 20000;
  for (int i = 0; i < 150; i++) {
    int number = (i * 7 + process_number * 3) % 12;
    struct rt_bytes bytes;
    char path[RT_PATH_BYTES];
    struct rt_key key = key_of(number), kernel = key_of(100 + number), got;
    if (i % 3 == 0) CHILD_CHECK(add(number, 2000 + 10 * (size_t)number));
    if (i % 3 == 0) rt_cache_add_kernel(&cache, &kernel, &key);
    if (rt_cache_find_kernel(&cache, &kernel, &got)) CHILD_CHECK(rt_key_equal(&got, &key));
    CHILD_CHECK(rt_cache_read(&cache, &key, &bytes, path) == QUERN_STATUS_OK);
    if (bytes.at) CHILD_CHECK(bytes.n == 2000 + 10 * (size_t)number);
    rt_bytes_free(&heap, &bytes);
    if (i % 10 == 0) CHILD_CHECK(rt_cache_trim(&cache) == QUERN_STATUS_OK);
  }
}

static void many_processes(void **state) {
  (void)state;
  pid_t children[8];
  for (process_number = 0; process_number < 8; process_number++) {
    children[process_number] = fork();
    assert_true(children[process_number] >= 0);
    if (children[process_number] == 0) {
      use_cache();
      _exit(0);
    }
  }
  for (int i = 0; i < 8; i++) {
    int status;
    assert_int_equal(waitpid(children[i], &status, 0), children[i]);
    assert_int_equal(status, 0);
  }
  assert_int_equal(files_count(in_folder("cache"), "quern-tmp-", NULL), 0);
  assert_true(files_count(in_folder("cache"), "", ".so") >= 1);
}

static void faults(void **state) {
  (void)state;
  struct fault fault = {0};
  for (int i = 0; i < 20; i++) assert_true(add(i, 100));
  struct rt_key key = key_of(3);
  while (fault_next(&fault)) {
    struct rt_bytes bytes;
    char path[RT_PATH_BYTES];
    fault_begin(&fault);
    quern_status status = rt_cache_read(&cache, &key, &bytes, path);
    if (status == QUERN_STATUS_OK) status = rt_cache_trim(&cache);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    rt_bytes_free(&heap, &bytes);
    assert_int_equal(memory_live, 0);
    assert_int_equal(access(name_of(3), F_OK), 0);
  }
  assert_true(fault.n >= 4);
}

#define CACHE_TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(places),      /* first: the environment is read once */
      cmocka_unit_test(swept_first), /* before this process opens one */
      cmocka_unit_test(users_namespace),
      CACHE_TEST(objects),
      CACHE_TEST(kernels_and_notes),
      CACHE_TEST(damaged),
      CACHE_TEST(strange_entries),
      CACHE_TEST(folders),
      CACHE_TEST(changed_directory),
      CACHE_TEST(limit),
      CACHE_TEST(used_now),
      CACHE_TEST(left_behind),
      CACHE_TEST(many_processes),
      CACHE_TEST(faults),
  };
  unsetenv("QUERN_DEBUG");
  files_begin();
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  files_end();
  return failed;
}
