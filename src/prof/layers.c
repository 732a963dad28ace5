/* prof/layers.c -- the layers that a kernel works for, in few words: "h.*.mlp (12), ln_f"
** Numbers between dots become a * where that makes several layers one; so many patterns are reported, then "...".
** tests: tests/prof/test_report.c
*/
#include <stdio.h>

#include "prof/prof.h"

enum { MOST_PATTERNS = 3, PATTERN_BYTES = 512 };

struct pattern {
  char text[PATTERN_BYTES];
  const char *layer; /* the first */
  int n;             /* different layers */
};

static const char *layer_of(const struct prof_step *s) { return s->layer != NULL ? s->layer : ""; }

/* "h.3.mlp" as "h.*.mlp", "grad(h.3)" as "grad(h.*)": parts that are all digits. */
static void make_pattern(char text[PATTERN_BYTES], const char *layer) {
  size_t n = 0;
  for (const char *at = layer; *at != 0 && n + 1 < PATTERN_BYTES;) {
    size_t digits = strspn(at, "0123456789");
    bool begins = at == layer || at[-1] == '.' || at[-1] == '(', ends = strchr(".)", at[digits]) != NULL; /* or the 0 */
    if (digits > 0 && begins && ends) {
      text[n++] = '*';
      at += digits;
    } else {
      text[n++] = *at++;
    }
  }
  text[n] = 0;
}

/* Whether a step before it has the same kernel and layer. */
static bool was_met(const struct prof *prof, size_t i) {
  const struct prof_step *s = &prof->steps[i];
  for (size_t k = 0; k < i; k++)
    if (strcmp(prof->steps[k].kernel, s->kernel) == 0 && strcmp(layer_of(&prof->steps[k]), layer_of(s)) == 0)
      return true;
  return false;
}

/* Adds a layer to the patterns, of which there are *n; false when they are too many. */
static bool add_layer(struct pattern patterns[MOST_PATTERNS], int *n, const char *layer) {
  char text[PATTERN_BYTES];
  int i = 0;
  make_pattern(text, layer);
  while (i < *n && strcmp(patterns[i].text, text) != 0) i++;
  if (i == MOST_PATTERNS) return false;
  if (i == *n) {
    patterns[i] = (struct pattern){.layer = layer};
    memcpy(patterns[i].text, text, sizeof text);
    ++*n;
  }
  patterns[i].n++;
  return true;
}

void prof_layers(const struct prof *prof, const char *kernel, char *text, size_t bytes) {
  struct pattern patterns[MOST_PATTERNS];
  int n = 0;
  bool all = true;
  for (size_t i = 0; i < prof->n_steps; i++) {
    const char *layer = layer_of(&prof->steps[i]);
    if (layer[0] != 0 && strcmp(prof->steps[i].kernel, kernel) == 0 && !was_met(prof, i))
      all = add_layer(patterns, &n, layer) && all;
  }
  size_t used = 0;
  text[0] = 0;
  for (int i = 0; i < n && used < bytes; i++) {
    const struct pattern *p = &patterns[i];
    char number[24] = "";
    if (p->n > 1) snprintf(number, sizeof number, " (%d)", p->n);
    used +=
        (size_t)snprintf(text + used, bytes - used, "%s%s%s", i > 0 ? ", " : "", p->n > 1 ? p->text : p->layer, number);
  }
  if (!all && used < bytes) snprintf(text + used, bytes - used, ", ...");
}
