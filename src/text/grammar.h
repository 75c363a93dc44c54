/* Constrained texts: which texts an answer may be, and which tokens may come next in it.
 *
 *     grammar_open -> grammar_matcher_open -> [ grammar_mask, grammar_take ... ] -> grammar_matcher_close
 *
 * A constraint (a JSON schema, a regular expression, a grammar, ...) is compiled to automata over bytes that
 * call one another (grammar_auto.h). The state of a matcher is the set of places in them where the text may
 * stand, each with what is to follow once its rule is over. States are met again and again, so they are
 * numbered, and their successors and token masks kept (grammar_memo.h): most steps look one up.
 * docs/CONSTRAINTS.md tells the rest.
 *
 * A grammar may be shared by any number of matchers in any threads. */
#ifndef NYB_TEXT_GRAMMAR_H
#define NYB_TEXT_GRAMMAR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct grammar;
struct grammar_vocab;
struct tokenizer;

#define GRAMMAR_TEXT_MAX (1u << 20)       /* bytes of a constraint's text */
#define GRAMMAR_CONTENT  "content/schema" /* how errors call the schema of tags' content */

enum grammar_kind {
    GRAMMAR_JSON_OBJECT, /* any JSON object; no text                            */
    GRAMMAR_JSON_SCHEMA, /* a JSON schema                                       */
    GRAMMAR_REGEX,       /* a regular expression for the whole answer           */
    GRAMMAR_CHOICE,      /* a JSON array of strings, one of which the answer is */
    GRAMMAR_EBNF,        /* rules as llama.cpp's GBNF has them; "root" begins   */
    GRAMMAR_TAGS,        /* free text with constrained parts: grammar_tags.c    */
};

struct grammar_source {
    enum grammar_kind kind;
    const char *text;
    const char *whitespace;  /* regular expression for what may stand between JSON's tokens; NULL: at most a
                                space, or a newline and an indentation; "": nothing */
    const char *think_open;  /* the answer may begin with reasoning framed like this; NULL: see below     */
    const char *think_close; /* not NULL without think_open: the answer begins within reasoning. The
                                constraint holds for what follows the reasoning */
};

/* vocab may be NULL: then there are no masks. It must outlive the grammar. NYB_E_ARG, NYB_E_RANGE or
 * NYB_E_UNSUPPORTED name what is wrong and where in the text. */
enum nyb_code grammar_open(struct grammar **out, const struct grammar_source *source,
                           const struct grammar_vocab *vocab, struct nyb_err *err) NYB_MUST_CHECK;
struct grammar *grammar_retain(struct grammar *g);
void grammar_release(struct grammar *g); /* NULL is fine */

struct grammar_size {
    uint32_t rules, states, edges;   /* compiled                      */
    uint32_t configs, frames, masks; /* kept now                      */
    uint64_t mask_hits, mask_misses; /* masks looked up, and computed */
};
void grammar_size(struct grammar *g, struct grammar_size *out);

/* ---- matchers -------------------------------------------------------------------------------------- */

/* Registered with its grammar: do not move or copy it. One thread at a time. */
struct grammar_matcher {
    struct grammar *g;
    uint32_t at;    /* state; the grammar renumbers it when it clears out */
    uint32_t strip; /* leading spaces of the text that the decoder will still drop */
    uint32_t slot;  /* place among the grammar's matchers */
};

void grammar_matcher_open(struct grammar_matcher *m, struct grammar *g);
void grammar_matcher_clone(struct grammar_matcher *m, const struct grammar_matcher *from);
void grammar_matcher_close(struct grammar_matcher *m); /* a zeroed one is fine */

/* False: the text cannot go on like this; nothing changed. */
bool grammar_advance(struct grammar_matcher *m, const char *bytes, size_t len);
/* The same with a token's bytes. Tokens of which the mask says no are refused. */
bool grammar_take(struct grammar_matcher *m, int32_t token);
bool grammar_may_end(const struct grammar_matcher *m);  /* the text is complete     */
bool grammar_must_end(const struct grammar_matcher *m); /* and nothing may follow it */

/* The tokens that may come next, bit t & 31 of mask[t >> 5] (grammar_vocab_words long); tokens that end an
 * answer are the caller's affair. False: there are none. */
bool grammar_mask(struct grammar_matcher *m, uint32_t *mask);

/* ---- vocabularies ---------------------------------------------------------------------------------- */

/* What each token adds to a text, as a trie. n_vocab: ids the model has; those that the tokenizer lacks, and
 * tokens without bytes, are never allowed. NYB_E_UNSUPPORTED where tokens have no bytes of their own. */
enum nyb_code grammar_vocab_open(struct grammar_vocab **out, const struct tokenizer *t, int32_t n_vocab,
                                 struct nyb_err *err) NYB_MUST_CHECK;
void grammar_vocab_close(struct grammar_vocab *v);
size_t grammar_vocab_words(const struct grammar_vocab *v); /* of a mask */
/* A token's bytes, (*len); a special token's have the byte 0xFF before its spelling. NULL: none. */
const char *grammar_vocab_bytes(const struct grammar_vocab *v, int32_t token, size_t *len);

#endif
