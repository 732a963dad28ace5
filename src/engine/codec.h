/* engine/codec.h -- a program as bytes; private to codec.c, validate.c, save.c, cache.c and compile.c */
#ifndef ENGINE_CODEC_H
#define ENGINE_CODEC_H
#include "engine/engine.h"

/* A walk that writes to out, or reads from at .. end into arena. */
struct codec {
  bool reading;
  struct base_str *out;
  const char *at, *end;
  struct base_arena *arena;
  struct base_heap *heap; /* of kernels */
  bool failed, no_memory; /* what was read cannot be a program; or there was no room for it */
};

void codec_raw(struct codec *c, void *data, size_t bytes);
void codec_i64(struct codec *c, int64_t *x);
void codec_int(struct codec *c, int *x);
void codec_size(struct codec *c, size_t *x);
void codec_string(struct codec *c, const char **text);

/* Everything of a program but its device, target, module and constants. */
void codec_program(struct codec *c, quern_program *program);
/* Whether a program that was read holds together: every number points at something, and everything has room (validate.c). */
bool codec_valid(const quern_program *program);

#endif
