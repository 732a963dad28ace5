/* tests/runtime/fake_nvrtc.c -- a libnvrtc that compiles nothing, and refuses what it is set to
** FAKE_TEXT and FAKE_FLAG: programs whose text has the one are refused when a flag has the other; all others become a cubin without code.
** see: tests/driver/plant_nvrtc.sh
*/
#include <elf.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, COMPILATION = 6 };

struct program {
  bool has_text, refused;
};
static const Elf64_Ehdr cubin = {.e_ident = ELFMAG};
static const char message[] = "kernels.cu(1): error: planted";

int nvrtcVersion(int *major, int *minor);
int nvrtcCreateProgram(struct program **program, const char *text, const char *name, int n, const char *const *headers,
                       const char *const *names);
int nvrtcDestroyProgram(struct program **program);
int nvrtcCompileProgram(struct program *program, int n, const char *const *flags);
int nvrtcGetCUBINSize(const struct program *program, size_t *n);
int nvrtcGetCUBIN(const struct program *program, char *to);
int nvrtcGetPTXSize(const struct program *program, size_t *n);
int nvrtcGetPTX(const struct program *program, char *to);
int nvrtcGetProgramLogSize(const struct program *program, size_t *n);
int nvrtcGetProgramLog(const struct program *program, char *to);

static bool has(const char *text, const char *variable) {
  const char *word = getenv(variable);
  return word != NULL && strstr(text, word) != NULL;
}

int nvrtcVersion(int *major, int *minor) {
  *major = 99;
  *minor = 0;
  return OK;
}

int nvrtcCreateProgram(struct program **program, const char *text, const char *name, int n, const char *const *headers,
                       const char *const *names) {
  (void)name, (void)n, (void)headers, (void)names;
  *program = calloc(1, sizeof **program);
  if (*program == NULL) return 1;
  (*program)->has_text = has(text, "FAKE_TEXT");
  return OK;
}

int nvrtcDestroyProgram(struct program **program) {
  free(*program);
  *program = NULL;
  return OK;
}

int nvrtcCompileProgram(struct program *program, int n, const char *const *flags) {
  bool has_flag = false;
  for (int i = 0; i < n; i++) has_flag = has_flag || has(flags[i], "FAKE_FLAG");
  program->refused = program->has_text && has_flag;
  return program->refused ? COMPILATION : OK;
}

int nvrtcGetCUBINSize(const struct program *program, size_t *n) {
  *n = program->refused ? 0 : sizeof cubin;
  return OK;
}

int nvrtcGetCUBIN(const struct program *program, char *to) {
  if (!program->refused) memcpy(to, &cubin, sizeof cubin);
  return OK;
}

int nvrtcGetPTXSize(const struct program *program, size_t *n) { return nvrtcGetCUBINSize(program, n); }
int nvrtcGetPTX(const struct program *program, char *to) { return nvrtcGetCUBIN(program, to); }

int nvrtcGetProgramLogSize(const struct program *program, size_t *n) {
  *n = program->refused ? sizeof message : 1;
  return OK;
}

int nvrtcGetProgramLog(const struct program *program, char *to) {
  memcpy(to, program->refused ? message : "", program->refused ? sizeof message : 1);
  return OK;
}
