/* tests/api/test_wrong_contract.c -- wrong calls of contractions */
#include "api/wrong.h"

/* "[aaa...]" of 300 letters. */
static const char *long_name(void) {
  static char spec[303];
  memset(spec, 'a', 301);
  spec[0] = '[', spec[301] = ']';
  return spec;
}

/* Longer than a message can be. */
static const char *long_spec(void) {
  static char spec[5000];
  memset(spec, 'i', sizeof spec - 1);
  return spec;
}

#define ROWS "api/wrong_contract.def"
#include "api/rows.h"
