/* The vocabulary as grammar_memo.c walks it. */
#ifndef NYB_TEXT_GRAMMAR_VOCAB_H
#define NYB_TEXT_GRAMMAR_VOCAB_H

#include "text/grammar.h"

#define GRAMMAR_TOKEN_MAX 255 /* bytes of a token; longer ones are never allowed */
#define GRAMMAR_PLAIN_MAX 16  /* characters of a plain token; longer ones count as others */

/* A trie in the order of a depth-first walk: a node's subtree is [its index + 1, end). */
struct grammar_trie_node {
    uint32_t end;
    int32_t token; /* that ends here, or -1; others with the same bytes: grammar_vocab.same */
    uint8_t byte, depth;
};
struct grammar_trie {
    struct grammar_trie_node *node; /* (n) */
    uint32_t n;
};

/* Plain tokens are whole characters, none of them a control character, a quote or a backslash: most of any
 * vocabulary, and all alike to a place within a JSON string. */
struct grammar_vocab {
    int32_t n_vocab;
    size_t n_word;
    uint32_t strip;                              /* leading spaces that the decoder drops from a text */
    char *text;                                  /* the tokens' bytes, end to end                     */
    uint32_t *offset;                            /* (n_vocab + 1) */
    int32_t *same;                               /* (n_vocab) next token with the same bytes, or -1   */
    struct grammar_trie plain, other;            /* by what the tokens are */
    uint32_t *plain_mask[GRAMMAR_PLAIN_MAX + 1]; /* [n]: plain tokens of at most n characters          */
};

#endif
