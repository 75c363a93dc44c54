/* Attention without its inner loop: who computes what, in which order the parts are merged.
 *
 * The keys of a sequence are cut at absolute positions into splits of ATTENTION_SPLIT keys. For each split a
 * level's kernel makes, row by row, the triple
 *     m = max of the scores, l = sum of 2^(score - m), acc = sum of 2^(score - m) * value
 * over the keys that the row may see, and the driver folds the triples from the first split to the last.
 * The cuts and the fold depend on positions alone, so a row's result is the same bit for bit whether one
 * worker walks all its splits or several take one each, and whatever else is in the batch.
 *
 * Scores are kept in units of log2: score = (q . k) * scale * log2(e). */
#ifndef NYB_KERNELS_ATTENTION_H
#define NYB_KERNELS_ATTENTION_H

#include "kernels/kv.h"

#define ATTENTION_SPLIT 512 /* keys of a partial result                                          */
#define ATTENTION_STEP  64  /* keys of one softmax step in a split: 4 cache blocks               */
#define ATTENTION_ROWS  32  /* (token, head) rows that share the loads of K and V: vector kernels */
#define ATTENTION_HEADS 16  /* of those, heads of one token                                       */

/* Rows of one sequence that read the same KV head: row r is token r / n_head, head r % n_head. */
struct attention_tile {
    const struct kv_layer *kv;
    const int32_t *block;          /* the sequence's row of the block table                      */
    const int32_t *pos;            /* (n_tok)                                                    */
    size_t key_bytes, value_bytes; /* of a head in a block */
    int kv_head, n_tok, n_head;
    const float *q; /* row r at q + r / n_head * ldq + r % n_head * head_dim       */
    size_t ldq;
    float scale;              /* scale * log2(e); for FP8 the kernel adds k_scale and v_scale */
    bool round_q;             /* as struct attention_args has it                              */
    int walk_begin, walk_end; /* keys that this worker walks in a row: what may be prefetched */
};

/* One split's result for the rows of a tile; rows that see no key of it are left with m = -inf, l = 0, acc =
 * 0. */
struct attention_part {
    float *m, *l; /* (rows of the kernel)      */
    float *acc;   /* (rows of the kernel, pad) */
};

struct attention_kernel {
    size_t (*work_bytes)(const struct kv_layer *kv); /* private memory of one worker */
    /* Keys [begin, end): begin is a multiple of ATTENTION_SPLIT. Key p is seen by tokens with pos >= p. */
    void (*split)(const struct attention_tile *t, int begin, int end, void *work, struct attention_part *out);
    int rows; /* of a tile at most, no fewer than ATTENTION_HEADS */
};

/* Whether attention can do what is to be done with q, k and v before it (attention_args.qkv): each item that
 * of its token and KV head, without a run of the pool in between. So where every sequence has one token and
 * its keys are one item. */
bool attention_may_rotate(const struct pool *pool, const struct attention_args *a);

void attention_run(struct pool *pool, struct arena *scratch, const struct attention_args *a,
                   const struct attention_kernel *kernel);

/* Which of all regions is this head's of the block that holds position `pos`. */
static inline size_t attention_region(const struct attention_tile *t, int pos)
{
    const struct kv_layer *kv = t->kv;
    int32_t block = t->block[pos / KV_BLOCK];
    ASSERT(block >= 0 && block < kv->n_block);
    return (size_t)block * (size_t)kv->n_kv_head + (size_t)t->kv_head;
}

static inline const uint8_t *attention_keys(const struct attention_tile *t, int pos)
{
    return t->kv->k + attention_region(t, pos) * t->key_bytes;
}

static inline const uint8_t *attention_values(const struct attention_tile *t, int pos)
{
    return t->kv->v + attention_region(t, pos) * t->value_bytes;
}

/* The same, or `otherwise` where the walk has no such position. */
static inline const uint8_t *attention_keys_or(const struct attention_tile *t, int pos,
                                               const uint8_t *otherwise)
{
    return pos < t->walk_end ? attention_keys(t, pos) : otherwise;
}

static inline const uint8_t *attention_values_or(const struct attention_tile *t, int pos,
                                                 const uint8_t *otherwise)
{
    return pos < t->walk_end ? attention_values(t, pos) : otherwise;
}

/* The float query of row r. */
static inline const float *attention_query(const struct attention_tile *t, int r)
{
    return t->q + (size_t)(r / t->n_head) * t->ldq + (size_t)(r % t->n_head) * (size_t)t->kv->head_dim;
}

#endif
