/* ir/text.h -- what printing and parsing share: numbered blocks (text_number.c), pieces of text (print.c), a cursor (lex.c)
** see: docs/ir.md, "The text form"
*/
#ifndef IR_TEXT_H
#define IR_TEXT_H
#include "ir/ir.h"

enum {
  IR_TEXT_VERSION = 1,
  IR_TEXT_BUFFER_BYTES = 4096, /* larger buffers are printed without their elements */
};

/* True of the characters of a word, such as an attribute's name. */
bool ir_text_is_word(char c);

/* The unsigned dtype of the same size: its integers are the bits. */
quern_dtype ir_text_bits_dtype(quern_dtype dtype);

/* ---- blocks (text_number.c): graphs as they are printed ------------------------------------------------------ */

/* A graph with the numbers its nodes get. */
struct ir_text_block {
  const struct ir_graph *graph; /* NULL: the main graph */
  size_t name;                  /* of a subgraph: @f<name> */
  size_t n_roots;
  quern_tensor *const *roots;
  struct ir_order order; /* the nodes by id; the arrays below go by place in it */
  uint64_t *hash;        /* of the node's meaning: equal in every context */
  size_t *number;
  size_t *sequence; /* places in the order of print, parameters excepted */
  size_t n;         /* of them */
};

struct ir_text_blocks {
  quern_context *ctx;
  struct base_arena scratch;
  BASE_VEC(struct ir_text_block *) found; /* subgraphs by id, the main graph last */
  struct base_map graphs;                 /* the blocks of subgraphs */
  struct ir_text_block **at;              /* in the order of print: inner ones first, the main graph last */
  size_t n;
};

/* The main graph of roots with all its subgraphs. Free with ir_text_blocks_fini, also after a failure. */
quern_status ir_text_blocks_init(struct ir_text_blocks *blocks, quern_context *ctx, size_t n,
                                 quern_tensor *const *roots) QUERN_NODISCARD;
void ir_text_blocks_fini(struct ir_text_blocks *blocks);

/* The block of a subgraph, and the number of a node of a block. */
const struct ir_text_block *ir_text_blocks_find(const struct ir_text_blocks *blocks, const struct ir_graph *graph);
size_t ir_text_block_number(const struct ir_text_block *block, const struct ir_node *node);

/* The sources of a node in the order they are printed: those of commutative ops by number. */
quern_tensor *ir_text_block_source(const struct ir_text_block *block, const struct ir_node *node, int i);

/* ---- pieces of text (print.c) --------------------------------------------------------------------------- */

void ir_text_add_type(struct base_str *str, const quern_tensor *t);                             /* f32[2,3] */
void ir_text_add_ref(struct base_str *str, const struct ir_text_block *block, quern_tensor *t); /* %2, %5.1 */
void ir_text_add_string(struct base_str *str, const char *text);                                /* "x" */

/* " name=value" of each attribute of a node; values of more than `most` elements are left out. */
void ir_text_add_attrs(struct base_str *str, const struct ir_text_blocks *blocks, const struct ir_node *node,
                       size_t most);

/* ---- the cursor (lex.c): each function takes what it reads, or fails with PARSE at line:column ---------- */

struct ir_cursor {
  quern_context *ctx;
  const char *begin, *at, *stop;
};

struct ir_span {
  const char *at;
  size_t n;
};

/* Fails at a place of the text: "3:8: ..." before the message. */
quern_status ir_cursor_error(const struct ir_cursor *cursor, const char *at, quern_status status, const char *fmt, ...)
    BASE_PRINTF(4, 5);
/* Fails with "expected <what>, found <what is there>". */
quern_status ir_cursor_expected(const struct ir_cursor *cursor, const char *what);

void ir_cursor_skip_space(struct ir_cursor *cursor); /* blanks and a comment */
void ir_cursor_skip_lines(struct ir_cursor *cursor); /* the same and ends of lines */

/* True when the next character is c; takes it. */
bool ir_cursor_take(struct ir_cursor *cursor, char c);
bool ir_cursor_is(const struct ir_cursor *cursor, char c);
quern_status ir_cursor_take_end_of_line(struct ir_cursor *cursor) QUERN_NODISCARD;

/* A word of letters, digits, _ and . */
quern_status ir_cursor_word(struct ir_cursor *cursor, const char *what, struct ir_span *word) QUERN_NODISCARD;
quern_status ir_cursor_int(struct ir_cursor *cursor, const char *what, int64_t least, int64_t most,
                           int64_t *x) QUERN_NODISCARD;
/* A quoted text, in the arena. */
quern_status ir_cursor_string(struct ir_cursor *cursor, struct base_arena *arena, const char **text) QUERN_NODISCARD;
/* Which of the names the next word is; the message tells the nearest. */
quern_status ir_cursor_name(struct ir_cursor *cursor, const char *what, size_t n, const char *const *names,
                            size_t *i) QUERN_NODISCARD;
/* One element of a dtype, as text or as its bits: 0x7fc00001. */
quern_status ir_cursor_element(struct ir_cursor *cursor, quern_dtype dtype, void *data) QUERN_NODISCARD;
quern_status ir_cursor_dtype(struct ir_cursor *cursor, quern_dtype *dtype) QUERN_NODISCARD;
/* A type such as f32[2,3]. */
quern_status ir_cursor_type(struct ir_cursor *cursor, struct ir_type *type) QUERN_NODISCARD;

/* The next item of a list that ends with `close`: false at the end, which it takes. first: none was read. */
quern_status ir_cursor_next(struct ir_cursor *cursor, bool first, char close, bool *more) QUERN_NODISCARD;

/* ---- the parser (parse.c, parse_attr.c) ----------------------------------------------------------------- */

struct ir_parser {
  struct ir_cursor cursor;
  struct base_arena scratch; /* freed when the text is read */
  struct base_map graphs;    /* struct ir_named_graph, by name */
  struct base_map values;    /* of the block being read, by number */
  BASE_VEC(int64_t) ints;    /* scratch lists */
  BASE_VEC(double) reals;
  BASE_VEC(unsigned char) bytes;
  BASE_VEC(quern_tensor *) operands;
  BASE_VEC(quern_tensor *) inputs;
  BASE_VEC(const char *) names;
};

struct ir_named_graph {
  struct ir_span name;
  const struct ir_graph *graph;
};

/* Fails at a place of the text with an error that was recorded before, in this thread or in the context. */
quern_status ir_parse_failed(struct ir_parser *p, const char *at, quern_status status);

/* Reads @name of a graph that the text has defined. */
quern_status ir_parse_graph_ref(struct ir_parser *p, const struct ir_graph **graph) QUERN_NODISCARD;

/* Reads the attributes of an op: those of its row, each once, in any order but dtype and shape before elements. */
quern_status ir_parse_attrs(struct ir_parser *p, enum ir_op op, struct ir_attrs *attrs) QUERN_NODISCARD;

#endif
