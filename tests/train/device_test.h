/* tests/train/device_test.h -- small runs on a device with memory of its own: OpenCL, where there is some */
#ifndef TESTS_TRAIN_DEVICE_TEST_H
#define TESTS_TRAIN_DEVICE_TEST_H
#include <unistd.h>

#include "runtime/runtime.h"
#include "train/train_test.h"

/* Skips a test where there is no device. */
static inline void need_device(void) {
  struct rt_stream *stream;
  struct base_heap heap;
  base_heap_init(&heap, NULL);
  if (rt_opencl.remote->open(rt_device_at(&rt_opencl, 0), &stream, &heap) != QUERN_STATUS_OK) {
    print_message("%s\n", quern_last_error());
    skip();
  }
  rt_opencl.remote->close(stream);
}

/* The same run for all tests, so that its kernels are compiled once. */
static inline quern_config *config_on(const char *device, const char *out) {
  quern_config *config = tiny_config(out);
  set(config, "device", device);
  set(config, "steps", "12");
  set(config, "log_every", "5");
  return config;
}

/* What a callback was told. */
struct heard {
  int steps, known;
  int64_t last, stop;            /* the last that was known; 0: go on */
  quern_train_record records[8]; /* that were known */
};

static inline bool on_step(void *user, const quern_train_record *record) {
  struct heard *heard = user;
  assert_int_equal(record->step, ++heard->steps);
  assert_true(record->lr > 0);
  if (record->known) {
    assert_true(record->loss > 0 && record->seconds > 0);
    heard->records[heard->known++ % 8] = *record;
    heard->last = record->step;
  }
  return record->step != heard->stop;
}

#endif
