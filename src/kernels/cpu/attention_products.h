/* Scores and sums of values in register tiles of VEC_TILE_SCORES and VEC_TILE_VALUES vectors, in terms of
 * what the including file defines: vec_madd, vec_madd_first and vec_score multiply a word of q or of the
 * probabilities with a unit of a block. */
#include "kernels/cpu/attention_step.h"

/* Words of a row of probabilities: pairs of bf16, or floats. */
INLINE size_t prob_words(bool bf16)
{
    return bf16 ? ATTENTION_STEP / 2 : ATTENTION_STEP;
}

/* One word of n_row queries against a unit of each block. */
INLINE void score_word(const struct step *s, vec *acc, size_t w, const uint32_t *q, int n_row, int block,
                       int n_block, const enum query query)
{
    VEC_UNROLL
    for (int b = 0; b < n_block; b++) {
        const uint8_t *unit = s->k[block + b] + 64 * w;
        VEC_UNROLL
        for (int r = 0; r < n_row; r++) {
            vec *sum = acc + r * n_block + b;
            *sum = query == QUERY_INTEGER ? vec_madd_integers(*sum, q + r, unit)
                   : query == QUERY_WHOLE ? vec_score(*sum, q + r, q + ATTENTION_ROWS + r, unit)
                                          : vec_madd(*sum, q + r, unit, query == QUERY_ROUNDED);
        }
    }
}

INLINE void score_tile(const struct step *s, int row, int n_row, int block, int n_block,
                       const enum query query)
{
    vec acc[VEC_TILE_SCORES];
    const uint32_t *q = s->work->q + row;
    const size_t next_q = query == QUERY_WHOLE ? 2 * ATTENTION_ROWS : ATTENTION_ROWS;
    bool fetch = row == s->first_row;
    VEC_UNROLL
    for (int i = 0; i < n_row * n_block; i++)
        acc[i] = vec_zero();
    size_t w = 0;
    for (int b = 0; b < n_block; b++) { /* memory is fetched straight on, one block after another */
        const uint8_t *next = fetch ? s->next_k[block + b] : s->k[block];
        for (size_t end = (size_t)(b + 1) * s->word / (size_t)n_block; w < end; w++, q += next_q) {
            if (fetch) {
                VEC_UNROLL
                for (int i = 0; i < n_block; i++)
                    __builtin_prefetch(next + 64 * i, 0, FETCH_LEVEL);
                next += 64 * n_block;
            }
            score_word(s, acc, w, q, n_row, block, n_block, query);
        }
        if (query == QUERY_INTEGER && fetch)
            __builtin_prefetch(s->next_k[block + b] + s->units, 0, FETCH_LEVEL);
    }
    VEC_UNROLL
    for (int b = 0; b < n_block; b++) {
        VEC_UNROLL
        for (int r = 0; r < n_row; r++) {
            vec x = acc[r * n_block + b];
            x = query == QUERY_INTEGER
                    ? vec_of_integers(x, s->work->unit[row + r], s->k[block + b] + s->units)
                    : vec_scale(x, s->scale);
            vec_store(s->work->score + (row + r) * ATTENTION_STEP + (block + b) * KV_BLOCK, x);
        }
    }
}

#define SCORE_ROWS(R)                                                                                       \
    for (; row + R <= end; row += R) {                                                                      \
        int b = 0;                                                                                          \
        for (; b + (VEC_TILE_SCORES / R < STEP_BLOCKS ? VEC_TILE_SCORES / R : STEP_BLOCKS) <= n_block;      \
             b += VEC_TILE_SCORES / R < STEP_BLOCKS ? VEC_TILE_SCORES / R : STEP_BLOCKS)                    \
            score_tile(s, row, R, b, VEC_TILE_SCORES / R < STEP_BLOCKS ? VEC_TILE_SCORES / R : STEP_BLOCKS, \
                       query);                                                                              \
        for (; b < n_block; b++)                                                                            \
            score_tile(s, row, R, b, 1, query);                                                             \
    }

INLINE void score_rows(const struct step *s, int row, int end, const enum query query)
{
    int n_block = (s->n_key + KV_BLOCK - 1) / KV_BLOCK;
    VEC_ROWS(SCORE_ROWS)
}

/* What to prefetch while one block of the tile at unit c is multiplied. The tile takes its units with a
 * stride of a row, but memory is fetched straight on, block_words units of 64 bytes at a time: `at` of those
 * were fetched before, by the tiles to the left and by the blocks above. */
INLINE const uint8_t *next_values(const struct step *s, size_t at, size_t block_words)
{
    size_t row = s->pad / 16;
    return s->next_v[at / row] + at % row * block_words * 64;
}

INLINE void value_tile(const struct step *s, int row, int n_row, size_t c, int n_c, bool bf16)
{
    vec acc[VEC_TILE_VALUES];
    const size_t prob_row = prob_words(bf16);
    const int block_words = bf16 ? KV_BLOCK / 2 : KV_BLOCK;
    const uint32_t *prob = s->work->prob + (size_t)row * prob_row;
    float *out = s->acc + (size_t)row * s->pad + 16 * c;
    bool fetch = row == s->first_row;
    VEC_UNROLL
    for (int r = 0; r < n_row; r++) {
        VEC_UNROLL
        for (int i = 0; i < n_c; i++)
            acc[r * n_c + i] =
                vec_scale(vec_load(out + (size_t)r * s->pad + 16 * (size_t)i), s->work->shrink[row + r]);
    }
    int n_word = bf16 ? s->n_key / 2 : s->n_key; /* whole words */
    for (int b = 0; b * block_words < n_word; b++) {
        const uint8_t *unit = s->v[b] + 64 * c;
        size_t fetched = c * STEP_BLOCKS + (size_t)(b * n_c);
        const uint8_t *next = fetch ? next_values(s, fetched, (size_t)block_words) : unit;
        int last = n_word - b * block_words < block_words ? n_word - b * block_words : block_words;
        for (int w = 0; w < last; w++, unit += 4 * s->pad, next += 64 * n_c) {
            VEC_UNROLL
            for (int i = 0; i < n_c; i++) {
                if (fetch)
                    __builtin_prefetch(next + 64 * i, 0, FETCH_LEVEL);
                VEC_UNROLL
                for (int r = 0; r < n_row; r++)
                    acc[r * n_c + i] = vec_madd(acc[r * n_c + i],
                                                prob + (size_t)r * prob_row + (size_t)(b * block_words + w),
                                                unit + 64 * i, bf16);
            }
        }
    }
    if (bf16 && s->n_key % 2) { /* the second key of the last pair may be garbage, even NaN: mask it */
        const uint8_t *unit =
            s->v[n_word / block_words] + (size_t)(n_word % block_words) * 4 * s->pad + 64 * c;
        VEC_UNROLL
        for (int i = 0; i < n_c; i++) {
            VEC_UNROLL
            for (int r = 0; r < n_row; r++)
                acc[r * n_c + i] = vec_madd_first(
                    acc[r * n_c + i], prob + (size_t)r * prob_row + (size_t)n_word, unit + 64 * i);
        }
    }
    VEC_UNROLL
    for (int r = 0; r < n_row; r++) {
        VEC_UNROLL
        for (int i = 0; i < n_c; i++)
            vec_store(out + (size_t)r * s->pad + 16 * (size_t)i, acc[r * n_c + i]);
    }
}

#define VALUE_ROWS(R)                                                    \
    for (; row + R <= end; row += R) {                                   \
        size_t c = 0;                                                    \
        for (; c + VEC_TILE_VALUES / R <= n_c; c += VEC_TILE_VALUES / R) \
            value_tile(s, row, R, c, VEC_TILE_VALUES / R, bf16);         \
        for (; c < n_c; c++)                                             \
            value_tile(s, row, R, c, 1, bf16);                           \
    }

INLINE void value_rows(const struct step *s, int row, int end, bool bf16)
{
    size_t n_c = s->pad / 16;
    VEC_ROWS(VALUE_ROWS)
}
