/* ir/label.c -- names of layers on nodes, for people who read profiles
** keeps: a label changes nothing but texts: equal nodes stay one, with the label of the first; labels stay as long as the
**        context, whatever is taken back
** tests: tests/ir/test_label.c
*/
#include <stdio.h>
#include <string.h>

#include "ir/ir.h"

static bool same_text(const void *item, const void *text) {
  return strcmp(((const struct ir_label *)item)->text, text) == 0;
}

quern_status ir_label_find(quern_context *ctx, const char *text, uint32_t *label) {
  uint64_t hash = base_hash_string(BASE_HASH_SEED, text);
  struct ir_label *found = base_map_find(&ctx->label_map, hash, same_text, text);
  if (found == NULL) {
    found = base_arena_new(&ctx->label_arena, struct ir_label);
    const char *copy = found != NULL ? base_arena_string(&ctx->label_arena, text, strlen(text)) : NULL;
    if (copy == NULL || !base_vec_reserve(&ctx->heap, &ctx->labels, 1)) return QUERN_STATUS_MEMORY;
    *found = (struct ir_label){.text = copy, .number = (uint32_t)ctx->labels.n + 1};
    if (!base_map_add(&ctx->label_map, hash, found)) return QUERN_STATUS_MEMORY;
    ctx->labels.at[ctx->labels.n++] = found;
  }
  *label = found->number;
  return QUERN_STATUS_OK;
}

const char *ir_label_text(const quern_context *ctx, uint32_t label) {
  return label != 0 ? ctx->labels.at[label - 1]->text : "";
}

quern_status ir_label_derivative(quern_context *ctx, uint32_t label, uint32_t *derivative) {
  *derivative = label;
  if (label == 0) return QUERN_STATUS_OK;
  struct ir_label *of = ctx->labels.at[label - 1];
  if (of->derivative == 0 && strncmp(of->text, "grad(", 5) == 0) of->derivative = label; /* of any order */
  if (of->derivative == 0) {
    char text[512];
    snprintf(text, sizeof text, "grad(%.500s)", of->text);
    QUERN_TRY(ir_label_find(ctx, text, &of->derivative));
  }
  *derivative = of->derivative;
  return QUERN_STATUS_OK;
}
