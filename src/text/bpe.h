/* Byte-pair encoding of one piece of text.
 *
 * The lowest-ranked mergeable neighbour pair is merged, leftmost first, until none is left: what the
 * tokenizers library calls a BPE model. Symbols start as bytes (byte-level vocabularies, whose keys spell
 * each byte as one printable character) or as characters with byte fallback (SentencePiece-style ones). */
#ifndef NYB_TEXT_BPE_H
#define NYB_TEXT_BPE_H

#include "base/err.h"
#include "text/strmap.h"
#include "text/tokenizer.h"

struct bpe_pair {
    uint32_t left, right; /* ids; left == UINT32_MAX: empty slot */
    uint32_t rank, id;    /* order of the merge; what comes out  */
};

struct bpe {
    struct strmap vocab;   /* keys as the file spells them                         */
    struct strmap bytes;   /* byte-level only: the bytes that a key stands for     */
    struct bpe_pair *pair; /* (pair_mask + 1) open addressing                      */
    uint64_t *filter;      /* a bit for each pair by its hash: most look-ups end here, without a cache miss */
    size_t pair_mask, n_pair;
    int32_t byte_id[256]; /* byte-level: symbol of a byte; else id of <0xNN>; -1  */
    int32_t unk;          /* -1: none                                             */
    bool byte_level, byte_fallback, fuse_unk, ignore_merges;
    bool splits_at_space; /* no merge crosses from another character into U+2581  */
    uint8_t *whole; /* (vocab.n_id) does the key's text encode to its id alone? 0: not tried yet, 1: yes,
                       2: no. Filled by readers, atomically; every reader would find the same. */
};

/* Work space of one call; zeroed before the first use. */
struct bpe_work {
    struct tok_ids start; /* symbols that a piece begins with         */
    int32_t *prev, *next; /* (cap) neighbours of a symbol, -1: none   */
    uint32_t *rank;       /* (cap) of (symbol, next); UINT32_MAX      */
    uint32_t *to;         /* (cap) what that merge makes              */
    uint64_t *heap;       /* (heap_cap) rank << 32 | symbol           */
    size_t cap, heap_cap;
};

/* vocab is filled, then: */
enum nyb_code bpe_add_merge(struct bpe *b, const char *left, size_t left_len, const char *right,
                            size_t right_len, uint32_t rank, struct nyb_err *err) NYB_MUST_CHECK;
/* Once vocabulary, merges and flags are in. byte_level: pieces are raw bytes. */
enum nyb_code bpe_finish(struct bpe *b, bool byte_level, struct nyb_err *err) NYB_MUST_CHECK;
void bpe_free(struct bpe *b);

/* Append the ids of one pre-tokenized piece, well-formed UTF-8 (a ByteLevel split may cut anywhere). */
void bpe_encode(const struct bpe *b, struct bpe_work *w, const char *piece, size_t len, struct tok_ids *out);
void bpe_work_free(struct bpe_work *w);

void bpe_push(struct tok_ids *ids, int32_t id);

#endif
