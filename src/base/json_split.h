/* Long JSON objects in pieces of a few KB, to be read by several threads, and by any number of them with
 * little memory that stays in a core's cache: the tree of a whole object takes thirty times its text.
 *
 * jansson reads every piece, as an object of its own; splitting looks at no more than quotes, brackets and
 * commas. A text whose pieces can all be read is valid JSON if no key is in two of them. Where anything of
 * that fails, the text is to be read whole: for the error that tells where, or for an empty object. */
#ifndef NYB_BASE_JSON_SPLIT_H
#define NYB_BASE_JSON_SPLIT_H

#include "base/json.h"

#define JSON_SPLIT_BYTES ((size_t)16 << 10) /* of a piece */

struct json_split {
    const char *text;
    int n;
    size_t *at; /* (n + 1) where pieces begin; each ends before the comma or bracket that precedes the next */
};

/* The object that `text` is, in pieces of about `bytes`. False: it is none. */
bool json_split(struct json_split *s, const char *text, size_t len, size_t bytes);
/* Piece i, an object with at least one member, or NULL: it cannot be read. Caller drops it. */
json_t *json_split_read(const struct json_split *s, int i);
void json_split_free(struct json_split *s);

/* Where in an object's text the value of a member lies: [*begin, *end). False: the object's own level does
 * not show exactly one key that is written so. */
bool json_find_member(const char *text, size_t len, const char *key, size_t *begin, size_t *end);

#endif
