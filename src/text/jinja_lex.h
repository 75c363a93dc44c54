/* Template source to tokens, with the whitespace rules of trim_blocks and lstrip_blocks. */
#ifndef NYB_TEXT_JINJA_LEX_H
#define NYB_TEXT_JINJA_LEX_H

#include "text/jinja_heap.h"

enum jtoken_kind {
    JT_DATA,
    JT_BLOCK_BEGIN,
    JT_BLOCK_END,
    JT_PRINT_BEGIN,
    JT_PRINT_END,
    JT_NAME,
    JT_STRING,
    JT_INT,
    JT_FLOAT,
    JT_OP, /* text is the operator */
    JT_EOF,
};

struct jtoken {
    enum jtoken_kind kind;
    int line;
    const char *text; /* (len): strings unescaped, numbers without underscores */
    size_t len;
};

/* All tokens, the last one JT_EOF. source is valid UTF-8. */
struct jtoken *jlex_tokens(struct jheap *h, const char *source, size_t len);

#endif
