/* Added tokens: strings that are cut out of the text before anything else looks at it.
 *
 * Leftmost-longest search over a byte trie. Two sets exist, as in the reference: tokens matched in the text
 * as it is, and tokens ("normalized": true) matched in normalized text. */
#ifndef NYB_TEXT_ADDED_H
#define NYB_TEXT_ADDED_H

#include "base/err.h"
#include "text/normalizer.h"

struct added_token {
    char *content;
    size_t len;
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
    bool control; /* must not come out of text that may not be special: `special`, or a role marker by its
                     form */
};

struct added_node;
struct added {
    struct added_token *token;
    size_t n, cap;
    struct added_node *node[2]; /* tries: [normalized]        */
    size_t n_node[2], node_cap[2];
    bool starts[2][256]; /* first bytes                */
};

/* Takes a copy of the content. added_finish once all are in: normalizes what is to be matched in normalized
 * text. */
void added_push(struct added *a, struct added_token token);
enum nyb_code added_finish(struct added *a, const struct normalizer *n, struct nyb_err *err) NYB_MUST_CHECK;
void added_free(struct added *a);

const struct added_token *added_find_content(const struct added *a, const char *content, size_t len);

/* The next token at or behind *at in t, with the white space that it strips: [*start, *end). *at advances.
 * `floor` is where the last token ended: nothing before it is stripped. NULL: none. */
const struct added_token *added_next(const struct added *a, bool normalized, const struct normalizer_text *t,
                                     size_t *at, size_t floor, size_t *start, size_t *end);
bool added_has(const struct added *a, bool normalized); /* is there any in that set? */

#endif
