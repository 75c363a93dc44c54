/* What a vector attention kernel computes with at a time, and a worker's memory. */
#ifndef NYB_KERNELS_CPU_ATTENTION_STEP_H
#define NYB_KERNELS_CPU_ATTENTION_STEP_H

#include "kernels/attention.h"

#define INLINE static inline __attribute__((always_inline))
#ifndef FETCH_LEVEL
#define FETCH_LEVEL 2
#endif
#define STEP_BLOCKS (ATTENTION_STEP / KV_BLOCK)

struct work;

/* One softmax step: n_key keys that all of its rows see. */
struct step {
    const uint8_t *k[STEP_BLOCKS], *v[STEP_BLOCKS];
    const uint8_t *next_k[STEP_BLOCKS], *next_v[STEP_BLOCKS]; /* of the step to come: to prefetch */
    int n_key;
    int first_row;    /* attention_products.h: rows from here to the next register tile prefetch */
    size_t word, pad; /* units of a block of keys; value dimensions with padding */
    float scale;
    size_t units; /* integer keys: where a block's units begin, in bytes */
    struct work *work;
    float *m, *acc; /* of the part                                             */
};

/* A worker's private memory. Rows are taken 16 at a time where they fill lanes, hence the padding. */
struct work {
    float score[ATTENTION_ROWS * ATTENTION_STEP];   /* (rows, STEP)                                        */
    uint32_t prob[ATTENTION_ROWS * ATTENTION_STEP]; /* (rows, STEP [/ 2])                                  */
    float sum[ATTENTION_ROWS * 16];                 /* (rows, 16): l, in parts                             */
    float top[ATTENTION_ROWS + 16];                 /* (rows): this step's largest score                   */
    float shrink[ATTENTION_ROWS + 16];              /* (rows): what the earlier steps are multiplied with  */
    float unit[ATTENTION_ROWS];                     /* (rows): integer queries' units, times the scale     */
    _Alignas(64) uint32_t q[]; /* (head_dim, ROWS), so that a tile's words are neighbours; then for FP8 the
                                  decoded blocks */
};

/* How q meets a unit of keys. */
enum query {
    QUERY_F32,     /* a word with each lane                                                   */
    QUERY_WHOLE,   /* bf16 keys: two words, which vec_score knows what to do with             */
    QUERY_ROUNDED, /* bf16 keys: one word of two bf16                                         */
    QUERY_INTEGER, /* integer keys: one word of two integers                                  */
};

#endif
