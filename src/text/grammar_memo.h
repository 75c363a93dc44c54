/* States of a grammar's matchers, numbered as they are met ("configurations"), with what is known of each:
 * where each byte leads, and the mask of tokens.
 *
 * A configuration is a set of items (state of an automaton, frame); a frame is what is to follow when that
 * automaton's rule is over: a set of items again, of the callers. Both are kept once: equal sets have equal
 * numbers. So a position in the text is one number, texts after which the same may follow share it, and
 * ambiguity costs no more than the number of different items. (This is Earley's algorithm with its item sets
 * made canonical: a frame stands for his "origin", without the position in the text.) */
#ifndef NYB_TEXT_GRAMMAR_MEMO_H
#define NYB_TEXT_GRAMMAR_MEMO_H

#include <pthread.h>

#include "text/grammar_auto.h"
#include "text/grammar_vocab.h"

#define GRAMMAR_ITEM_MAX                                                                                    \
    1024                       /* items of one configuration, and of one frame: beyond, the text is refused \
                                */
#define GRAMMAR_DEPTH_MAX 256  /* frames upon frames: beyond, the same */
#define GRAMMAR_WALK_MAX  2048 /* configurations that one mask looks at: tokens beyond are not allowed */
#define GRAMMAR_MASK_MAX  32   /* masks kept */
#define GRAMMAR_KEEP_MIN                                                              \
    4096 /* configurations kept, at least, before those without a matcher are dropped \
          */

enum { GRAMMAR_UNKNOWN, GRAMMAR_DEAD, GRAMMAR_FIRST }; /* numbers of configurations */

struct grammar_item {
    uint32_t state, frame;
};

/* Numbered sets of items. */
struct grammar_set {
    uint32_t first, n; /* in `item` */
    uint32_t hash;
    uint32_t tag; /* config: may the text end; frame: its depth */
};
struct grammar_sets {
    struct grammar_set *set; /* (n) */
    struct grammar_item *item;
    uint32_t *table; /* (mask + 1) number of a set, or 0 */
    uint32_t n, cap, n_item, item_cap, mask;
};

struct grammar_config {
    uint32_t stamp; /* of the last walk that came here                                 */
    uint32_t plain; /* where every plain character leads; DEAD: to different places    */
    int32_t mask;   /* among the masks, or -1                                          */
};

struct grammar_mask_slot {
    uint32_t *mask; /* (n_word), or NULL */
    uint32_t config;
    uint64_t used; /* when: the smallest goes first */
    bool any;
};

struct grammar_memo {
    const struct grammar_auto *a;
    const struct grammar_vocab *v;     /* or NULL */
    struct grammar_sets frame, config; /* frame 0: the text itself */
    struct grammar_config *info;       /* (config.cap) */
    uint32_t *next;                    /* (config.cap, n_class) */
    uint32_t keep_max;                 /* configurations before the next clearing out */
    uint32_t walk;                     /* number of the current walk */
    struct grammar_mask_slot slot[GRAMMAR_MASK_MAX];
    uint64_t clock, hits, misses;
    struct grammar_closure *work;
};

void grammar_memo_open(struct grammar_memo *m, const struct grammar_auto *a, const struct grammar_vocab *v);
void grammar_memo_close(struct grammar_memo *m);

uint32_t grammar_memo_start(struct grammar_memo *m);
uint32_t grammar_memo_next(struct grammar_memo *m, uint32_t config, uint8_t byte);
bool grammar_memo_may_end(const struct grammar_memo *m, uint32_t config);
bool grammar_memo_must_end(const struct grammar_memo *m, uint32_t config);

/* grammar_mask.c: valid until the next call. strip: grammar_matcher's. */
bool grammar_memo_mask(struct grammar_memo *m, uint32_t config, uint32_t strip, uint32_t *mask);

/* Drop all but what the roots (n) need, where there is much; they are renumbered. */
void grammar_memo_tidy(struct grammar_memo *m, uint32_t *const *root, uint32_t n);

#endif
