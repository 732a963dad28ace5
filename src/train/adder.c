/* train/adder.c -- three-digit addition as texts that are made: "123+456=" and the sum with its last digit first, "9750"
** Written from the last digit on, a digit of the sum needs only what is left of it. One pair of numbers in ten is held out for
** evaluation, whatever the seed.
** tests: tests/train/test_data.c, tests/train/test_adder.c
*/
#include "train/train.h"

enum { PROMPT = 8, ANSWER = 5, TEXT = PROMPT + ANSWER, NUMBERS = 1000, STREAM_HELD = 11, STREAM_PAIR = 12 };

bool train_adder_held(int64_t pair) { return base_random_bits(0x616464, 0, STREAM_HELD, (uint64_t)pair) % 10 == 0; }

void train_adder_text(int64_t pair, char text[TRAIN_ADDER_LENGTH + 2]) {
  static const char form[] = "aaa+bbb=ssss\n";
  int64_t a = pair / NUMBERS, b = pair % NUMBERS, sum = a + b;
  memcpy(text, form, sizeof form);
  for (int i = 3; i-- > 0; a /= 10, b /= 10) {
    text[i] = (char)('0' + a % 10);
    text[4 + i] = (char)('0' + b % 10);
  }
  for (int i = 0; i < 4; i++, sum /= 10) text[PROMPT + i] = (char)('0' + sum % 10);
}

/* The pair of a sample: the first one drawn that is on its side. */
static int64_t pair_of(const struct train_adder *adder, int64_t index) {
  for (uint64_t draw = 0;; draw++) {
    uint32_t bits = base_random_bits(adder->seed + (adder->held ? 1 : 0), draw, STREAM_PAIR, (uint64_t)index);
    int64_t pair = (int64_t)(((uint64_t)bits * NUMBERS * NUMBERS) >> 32);
    if (train_adder_held(pair) == adder->held) return pair;
  }
}

static quern_status read(void *self, int64_t index, void *const *fields) {
  const struct train_adder *adder = self;
  int32_t *inputs = fields[0], *labels = fields[1];
  char text[TEXT + 1];
  train_adder_text(pair_of(adder, index), text);
  for (int64_t i = 0; i < adder->length; i++) {
    inputs[i] = i < TEXT - 1 ? (unsigned char)text[i] : '\n';
    labels[i] = i >= PROMPT - 1 && i < TEXT - 1 ? (unsigned char)text[i + 1] : -1;
  }
  return QUERN_STATUS_OK;
}

quern_status train_adder_open(quern_source **source, struct train_adder *adder, uint64_t seed, int64_t length,
                              bool held, const quern_allocator *allocator) {
  enum { SAMPLES = 900000, HELD_SAMPLES = 4000 };
  QUERN_CHECK(length >= TRAIN_ADDER_LENGTH, INVALID, "length = %lld: the adder's texts have %d tokens",
              (long long)length, TRAIN_ADDER_LENGTH);
  *adder = (struct train_adder){seed * 2, length, held};
  quern_field fields[TRAIN_FIELDS] = {{"inputs", QUERN_DTYPE_I32, 1, {length}, 0},
                                      {"labels", QUERN_DTYPE_I32, 1, {length}, -1}};
  return quern_source_call(source, held ? HELD_SAMPLES : SAMPLES, TRAIN_FIELDS, fields, read, adder, allocator);
}
