/* tests/train/test_report.c -- report.html and the summary of runs: whole, complete, of hostile and of missing parts
** tests/train/report_check.py reads the pages; where Chromium is installed it draws one.
*/
#include "../io/json_memory.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "quern/train.h"
#include "train/report.h"

static char folder[] = "/tmp/quern_report_XXXXXX";

static void put(const char *name, const char *text) {
  char path[256];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
  assert_int_equal(fclose(file), 0);
}

static void drop(const char *name) {
  char path[256];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  (void)unlink(path);
}

static int make_folder(void **state) {
  snprintf(folder, sizeof folder, "/tmp/quern_report_XXXXXX");
  return mkdtemp(folder) != NULL ? json_memory_setup(state) : -1;
}

static int clear_folder(void **state) {
  static const char *const names[] = {"metrics.jsonl", "run.json", "report.html", "report.png"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) drop(names[i]);
  return rmdir(folder) == 0 ? json_memory_teardown(state) : -1;
}
#define FOLDER_TEST(function) cmocka_unit_test_setup_teardown(function, make_folder, clear_folder)

/* What a command prints; its exit status. */
static int shell(const char *command, char text[4096]) {
  FILE *pipe = popen(command, "r");
  assert_non_null(pipe);
  size_t n = fread(text, 1, 4095, pipe);
  text[n] = 0;
  return pclose(pipe);
}

/* The page is well-formed and has the ids. */
static void check_page(const char *ids) {
  char command[512], text[4096];
  snprintf(command, sizeof command, "/usr/bin/python3 tests/train/report_check.py %s/report.html %s 2>&1", folder, ids);
  (void)shell(command, text);
  assert_string_equal(text, "whole\n");
}

/* The page's text; free() it. */
static char *read_page(void) {
  char path[256];
  snprintf(path, sizeof path, "%s/report.html", folder);
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  size_t room = 1 << 22;
  char *text = malloc(room);
  assert_non_null(text);
  text[fread(text, 1, room - 1, file)] = 0;
  fclose(file);
  return text;
}

static bool page_has(const char *words) {
  char *page = read_page();
  bool has = strstr(page, words) != NULL;
  free(page);
  return has;
}

/* ---- a run of n steps --------------------------------------------------------------------------------------------- */

static const char run_json[] =
    "{\"version\":\"0.1.0\",\"info\":{\"model\":\"gpt2 "
    "<b>&\\\"'</b>\",\"data\":\"text\",\"out\":\"x\",\"parameters\":4837120,"
    "\"steps\":40,\"batch\":32,\"length\":128,\"planned\":346030080,\"limit\":0,\"first_launch\":0.14,\"compiled\":0,"
    "\"memory\":{\"arena\":242221056,\"state\":60817408,\"constants\":1000,\"scratch\":0}},"
    "\"machine\":{\"target\":\"avx512\",\"caches\":[49152,2097152]},"
    "\"config\":{\"model\":\"lm\",\"data\":\"</script><script>alert(1)</script>\"},"
    "\"kernels\":[{\"name\":\"k_small\",\"ops\":\"add\",\"count\":4,\"total_ms\":10,\"share\":0.1,\"gflops\":1,\"gbs\":"
    "2,"
    "\"limit_pct\":50,\"lost_ms\":5},{\"name\":\"k_large\",\"ops\":\"dot+<gelu>\",\"count\":4,\"total_ms\":90,"
    "\"share\":0.9,"
    "\"gflops\":100,\"gbs\":2,\"limit_pct\":80,\"lost_ms\":18},{\"name\":\"k_odd\",\"ops\":\"neg\",\"count\":4,"
    "\"total_ms\":0,\"share\":0,\"gflops\":null,\"gbs\":null,\"limit_pct\":null,\"lost_ms\":null}],"
    "\"memory\":{\"peak\":200,\"timeline\":[[0,100],[1,200],[2,150]]},\"measured_peak_bytes\":346000000}";

/* Step i, with a loss that was not finite in step 7, and an evaluation every 10. */
static char *metrics_of(int n) {
  char *text = malloc(512 * (size_t)(n + 1));
  size_t at = 0;
  assert_non_null(text);
  text[0] = 0;
  for (int i = 1; i <= n; i++) {
    char loss[32];
    snprintf(loss, sizeof loss, "%.5f", 1 + 3 * exp(-i / 10.0));
    at += (size_t)sprintf(text + at,
                          "{\"step\":%d,\"loss\":%s,\"norm\":%.3f,\"lr\":%g,\"ms\":44.6,\"tok_s\":91886,\"peak\":0.52,"
                          "\"scale\":65536,\"skipped\":%s}\n",
                          i, i == 7 ? "null" : loss, 1.5 + sin(i), 1e-5 * i, i == 3 ? "true" : "false");
    if (i % 10 == 0)
      at +=
          (size_t)sprintf(text + at, "{\"step\":%d,\"eval_loss\":%s,\"accuracy\":0.%02d,\"ms\":3}\n", i, loss, i % 100);
  }
  return text;
}

static void put_metrics(int n) {
  char *text = metrics_of(n);
  put("metrics.jsonl", text);
  free(text);
}

/* ---- tests -------------------------------------------------------------------------------------------------------- */

static void whole(void **state) {
  (void)state;
  put("run.json", run_json);
  put_metrics(40);
  EXPECT_OK(quern_train_report(folder));
  check_page("loss accuracy lr throughput norm peak scale memory kernels config run machine");
  assert_true(page_has("gpt2 &lt;b&gt;&amp;&quot;&#39;&lt;/b&gt;"));
  assert_true(page_has("&lt;/script&gt;&lt;script&gt;alert(1)"));
  assert_true(page_has("of 40, 1 skipped"));
  assert_true(page_has("330.0 MiB"));
  char *page = read_page(); /* sorted by lost time */
  assert_true(strstr(page, "k_large") != NULL && strstr(page, "k_large") < strstr(page, "k_small"));
  free(page);
}

/* However little a run has left. */
static void little(void **state) {
  (void)state;
  EXPECT_ERROR(quern_train_report(folder), IO, "is no run's folder: it has neither metrics.jsonl nor run.json");
  put("metrics.jsonl", "");
  EXPECT_OK(quern_train_report(folder));
  check_page("loss lr throughput norm");
  assert_true(page_has("nothing to draw yet"));
  put_metrics(1);
  EXPECT_OK(quern_train_report(folder));
  check_page("loss lr throughput norm");
  assert_false(page_has("id=\"kernels\""));
  put("metrics.jsonl",
      "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"loss\":2.5}\n\n{\"step\":3}\n{\"st"); /* killed as it wrote */
  EXPECT_OK(quern_train_report(folder));
  check_page("loss lr throughput norm");
  put("metrics.jsonl", "{\"step\":1,\"loss\":-1e300,\"norm\":1e-300}\n{\"step\":1e15,\"loss\":1e300,\"norm\":1e300}\n");
  EXPECT_OK(quern_train_report(folder));
  check_page("loss");
  put("run.json", "{\"info\":3,\"kernels\":{},\"memory\":{\"timeline\":[1,[2],[3,null]]},\"config\":[]}");
  EXPECT_OK(quern_train_report(folder));
  check_page("loss");
}

static void damaged(void **state) {
  (void)state;
  put("metrics.jsonl", "{\"step\":1}\n{\"step\":}\n{\"step\":3}\n");
  EXPECT_ERROR(quern_train_report(folder), PARSE, "metrics.jsonl:2: line 1");
  put_metrics(3);
  put("run.json", "{");
  EXPECT_ERROR(quern_train_report(folder), PARSE, "run.json: line 1");
  EXPECT_ERROR(quern_train_report(NULL), INVALID, "train_report: the folder is null");
}

/* Of a long run some points are drawn, and no spike is lost. */
static void thinned(void **state) {
  (void)state;
  enum { N = 30000, SPIKE = 12345 };
  char *text = malloc(64 * N);
  size_t at = 0;
  assert_non_null(text);
  for (int i = 1; i <= N; i++)
    at += (size_t)sprintf(text + at, "{\"step\":%d,\"loss\":%d}\n", i, i == SPIKE ? 9 : 1 + i % 2);
  put("metrics.jsonl", text);
  free(text);
  EXPECT_OK(quern_train_report(folder));
  check_page("loss");
  char *page = read_page();
  assert_in_range(strlen(page), 10000, 200000);
  char spike[64];
  snprintf(spike, sizeof spike, "L%.1f %.1f", 1000.0 * SPIKE / N, 100.0); /* 9 on an axis to 10 */
  assert_non_null(strstr(page, spike));
  free(page);
}

struct lines {
  size_t n;
  char text[4096];
};

static void take_line(void *user, const char *text) {
  struct lines *lines = user;
  size_t n = strlen(lines->text);
  snprintf(lines->text + n, sizeof lines->text - n, "%s\n", text);
  lines->n++;
}

static void summary(void **state) {
  (void)state;
  struct lines lines = {0};
  put("run.json", run_json);
  put_metrics(40);
  EXPECT_OK(quern_train_summary(folder, take_line, &lines));
  assert_string_equal(lines.text, "loss: 3.7145 at step 1, 1.055 at step 40\n"
                                  "evaluation: 1.055 at step 40, 40.00% right, the best of 4\n"
                                  "memory: 330.0 MiB planned, 330.0 MiB used at most\n"
                                  "kernels that lost the most time against the machine's limits:\n"
                                  "     lost ms  total ms   share  of limit  kernel\n"
                                  "       18.00     90.00   90.0%     80.0%  k_large (dot+<gelu>)\n"
                                  "        5.00     10.00   10.0%     50.0%  k_small (add)\n"
                                  "           -      0.00    0.0%         -  k_odd (neg)\n");
  EXPECT_ERROR(quern_train_summary(folder, NULL, NULL), INVALID, "note is null");
  EXPECT_ERROR(quern_train_summary("/nowhere", take_line, &lines), IO, "is no run's folder");
}

static void faults(void **state) {
  (void)state;
  struct fault fault = {0};
  put("run.json", run_json);
  put_metrics(3);
  while (fault_next(&fault)) {
    fault_begin(&fault);
    quern_status status = train_report_write(folder, &memory_allocator);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    assert_int_equal(access(folder, F_OK), 0);
  }
  assert_true(fault.n > 20);
  struct fault other = {0};
  while (fault_next(&other)) {
    struct lines lines = {0};
    fault_begin(&other);
    quern_status status = train_summary_print(folder, take_line, &lines, &memory_allocator);
    fault_end(&other);
    EXPECT_FAULT(&other, status);
  }
  assert_true(other.n > 20);
}

/* A browser draws it. */
static void drawn(void **state) {
  (void)state;
  char command[1024], text[4096];
  if (shell("command -v chromium", text) != 0) skip();
  put("run.json", run_json);
  put_metrics(40);
  EXPECT_OK(quern_train_report(folder));
  snprintf(
      command, sizeof command,
      "timeout 120 chromium --headless --no-sandbox --disable-gpu --user-data-dir=%s/profile --window-size=390,2000 "
      "--screenshot=%s/report.png file://%s/report.html >/dev/null 2>&1; rm -rf %s/profile; wc -c <%s/report.png",
      folder, folder, folder, folder, folder);
  (void)shell(command, text);
  assert_true(atol(text) > 20000);
}

int main(void) {
  const struct CMUnitTest tests[] = {FOLDER_TEST(whole),   FOLDER_TEST(little),  FOLDER_TEST(damaged),
                                     FOLDER_TEST(thinned), FOLDER_TEST(summary), FOLDER_TEST(faults),
                                     FOLDER_TEST(drawn)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
