/* Scores and sums of values on AVX2: tiles of some rows by some vectors of eight keys or dimensions. What
 * limits them is fma, two a clock with a latency of four, so that a tile wants more than eight sums, and
 * whatever else it does counts: a vector of keys or values is widened once for all its rows, and
 * probabilities lie there as floats (of bf16 values), ready to be broadcast. A tile of 12 sums, three vectors
 * and a broadcast fills the 16 registers. */
#include <immintrin.h>

#include "kernels/cpu/attention_step.h"
#include "kernels/cpu/fma_avx2.h"

/* Halves: vectors of eight of the 16 keys, or dimensions, of a unit of 64 bytes. */
#define HALF_BYTES 32
#define SUMS_MAX   12

/* Floats of a row of probabilities, whatever they were rounded to. */
INLINE size_t prob_words(bool bf16)
{
    (void)bf16;
    return ATTENTION_STEP;
}

/* Eight floats at p, or the first or second of eight pairs of bf16. */
INLINE __m256 widen(const uint8_t *p, const bool bf16, const int which)
{
    static const _Alignas(32) uint32_t upper[8] = {0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u,
                                                   0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u};
    typedef __m256i_u words __attribute__((may_alias));
    __m256 x;
    if (!bf16)
        return _mm256_loadu_ps((const float *)(const void *)p);
    if (which)
        __asm__("vmovdqu %1, %0\n\tvpand %2, %0, %0" : "=x"(x) : "m"(*(const words *)p), "m"(upper));
    else
        __asm__("vmovdqu %1, %0\n\tvpslld $16, %0, %0" : "=x"(x) : "m"(*(const words *)p));
    return x;
}

/* sum[R][H] += x[r] times vector h, which is number h % P from v[h / P] + offset on; rows of x lie `ldx`
 * apart. */
INLINE void madd_tile(__m256 *sum, const int R, const int H, const int P, const float *x, const size_t ldx,
                      const uint8_t *const *v, size_t offset, const bool bf16, const int which)
{
    __m256 w[SUMS_MAX], b[SUMS_MAX];
    if (H <= R) {
        VEC_UNROLL
        for (int h = 0; h < H; h++)
            w[h] = widen(v[h / P] + offset + HALF_BYTES * (h % P), bf16, which);
        VEC_UNROLL
        for (int r = 0; r < R; r++)
            fma_row(sum + r * H, x + (size_t)r * ldx, w, H);
    } else {
        VEC_UNROLL
        for (int r = 0; r < R; r++)
            b[r] = _mm256_broadcast_ss(x + (size_t)r * ldx);
        VEC_UNROLL
        for (int h = 0; h < H; h++) {
            w[0] = widen(v[h / P] + offset + HALF_BYTES * (h % P), bf16, which);
            VEC_UNROLL
            for (int r = 0; r < R; r++)
                fma_one(&sum[r * H + h], b[r], w[0]);
        }
    }
}

/* Both elements of a unit of bf16, or the one of floats; x of the second lies `second` behind that of the
 * first. Where few rows share a vector, it is loaded once for both. */
INLINE void madd_unit(__m256 *sum, const int R, const int H, const int P, const float *x, const size_t ldx,
                      const size_t second, const uint8_t *const *v, size_t offset, const bool bf16)
{
    if (!bf16 || R > 2) {
        madd_tile(sum, R, H, P, x, ldx, v, offset, bf16, 0);
        if (bf16)
            madd_tile(sum, R, H, P, x + second, ldx, v, offset, bf16, 1);
        return;
    }
    __m256 a[2], b[2];
    VEC_UNROLL
    for (int r = 0; r < R; r++) {
        a[r] = _mm256_broadcast_ss(x + (size_t)r * ldx);
        b[r] = _mm256_broadcast_ss(x + second + (size_t)r * ldx);
    }
    VEC_UNROLL
    for (int h = 0; h < H; h++) {
        __m256i pairs =
            _mm256_loadu_si256((const __m256i *)(const void *)(v[h / P] + offset + HALF_BYTES * (h % P)));
        __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
        __m256 other = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000u)));
        VEC_UNROLL
        for (int r = 0; r < R; r++) {
            fma_one(&sum[r * H + h], a[r], first);
            fma_one(&sum[r * H + h], b[r], other);
        }
    }
}

/* Which of the tiles of rows that share a step this is. Each sends for its part of the step to come, in turns
 * of TURN: memory then works all the time, and no tile waits for its misses. */
struct turn {
    int tile, of;
};

/* ---- scores -------------------------------------------------------------------------------------- */

#define TURN_WORDS 4 /* of keys: a head has a multiple of 8 dimensions */

/* Rows [row, row + R) against the keys [8 half, 8 (half + H)) of the step. */
INLINE void score_tile(const struct step *s, int row, struct turn turn, const int R, int half, const int H,
                       const bool bf16)
{
    const int P = H % 2 ? 1 : 2; /* an even number of halves is of whole blocks */
    const uint8_t *k[STEP_BLOCKS], *next[STEP_BLOCKS];
    const float *q = (const float *)s->work->q + row;
    const int each = bf16 ? 2 : 1;           /* elements of q in a word of a key      */
    const size_t lines = 64 * (s->word / 2); /* of the first half's share of a block  */
    size_t fetch = (size_t)turn.tile * TURN_WORDS;
    __m256 sum[SUMS_MAX];
    VEC_UNROLL
    for (int h = 0; h < H; h++) {
        int block = (half + h) / 2, second = (half + h) % 2;
        if (h % P)
            continue;
        k[h / P] = s->k[block] + HALF_BYTES * second;
        next[h / P] = s->next_k[block] + lines * (size_t)second;
    }
    VEC_UNROLL
    for (int i = 0; i < R * H; i++)
        sum[i] = _mm256_setzero_ps();
    for (size_t w = 0; w < s->word; w += TURN_WORDS) {
        if (w == fetch) {
            fetch += (size_t)turn.of * TURN_WORDS;
            VEC_UNROLL
            for (int h = 0; h < H; h++) {
                const uint8_t *line = next[h / P] + lines * (size_t)(h % P) + 32 * w;
                __builtin_prefetch(line, 0, FETCH_LEVEL);
                __builtin_prefetch(line + 64, 0, FETCH_LEVEL);
            }
        }
        VEC_UNROLL
        for (size_t i = 0; i < TURN_WORDS; i++, q += each * ATTENTION_ROWS)
            madd_unit(sum, R, H, P, q, 1, ATTENTION_ROWS, k, 64 * (w + i), bf16);
    }
    VEC_UNROLL
    for (int r = 0; r < R; r++) {
        float *to = s->work->score + (row + r) * ATTENTION_STEP + 8 * half;
        VEC_UNROLL
        for (int h = 0; h < H; h++)
            _mm256_storeu_ps(to + 8 * h, _mm256_mul_ps(sum[r * H + h], _mm256_set1_ps(s->scale)));
    }
}

/* ---- values -------------------------------------------------------------------------------------- */

/* y = y * shrink + sum */
INLINE void add_scaled(float *y, float shrink, __m256 sum)
{
    _mm256_storeu_ps(y, _mm256_fmadd_ps(_mm256_loadu_ps(y), _mm256_set1_ps(shrink), sum));
}

/* Rows [row, row + R), dimensions [8 half, 8 (half + H)): the step's values in addition to what there is,
 * shrunk. */
INLINE void value_tile(const struct step *s, int row, struct turn turn, const int R, int half, const int H,
                       const bool bf16)
{
    const float *prob = (const float *)s->work->prob + (size_t)row * ATTENTION_STEP;
    float *out = s->acc + (size_t)row * s->pad + 8 * (size_t)half;
    const int each = bf16 ? 2 : 1;                                       /* keys in a unit of values */
    const size_t unit = 4 * s->pad, lines = KV_BLOCK / (size_t)each / 2; /* of a half's share of a block */
    int fetch = turn.tile;
    __m256 sum[SUMS_MAX];
    VEC_UNROLL
    for (int i = 0; i < R * H; i++)
        sum[i] = _mm256_setzero_ps();
    for (int b = 0, left = s->n_key; left > 0; b++, left -= KV_BLOCK) {
        const float *end = prob + (left < KV_BLOCK ? left : KV_BLOCK) / each * each;
        const uint8_t *v = s->v[b] + HALF_BYTES * half;
        size_t at = 0;
        if (b == fetch) {
            const uint8_t *next = s->next_v[b] + 64 * lines * (size_t)half;
            fetch += turn.of;
            VEC_UNROLL
            for (size_t i = 0; i < lines * (size_t)H; i++)
                __builtin_prefetch(next + 64 * i, 0, FETCH_LEVEL);
        }
        for (; prob < end; prob += each, at += unit)
            madd_unit(sum, R, H, H, prob, ATTENTION_STEP, 1, &v, at, bf16);
        if (bf16 && left < KV_BLOCK &&
            left % 2) /* the second key of the last pair may be garbage, even NaN */
            madd_tile(sum, R, H, H, prob, ATTENTION_STEP, &v, at, bf16, 0);
    }
    VEC_UNROLL
    for (int r = 0; r < R; r++) {
        VEC_UNROLL
        for (int h = 0; h < H; h++)
            add_scaled(out + (size_t)r * s->pad + 8 * h, s->work->shrink[row + r], sum[r * H + h]);
    }
}

/* ---- tiles of every shape ------------------------------------------------------------------------ */

/* Each is a function of its own: in one of all, gcc finds no registers for some. */
typedef void tile_fn(const struct step *s, int row, struct turn turn, int half);

#define TILE(name, kind, R, H, bf16)                                                                        \
    static __attribute__((noinline)) void name##_##R##_##H(const struct step *s, int row, struct turn turn, \
                                                           int half)                                        \
    {                                                                                                       \
        kind##_tile(s, row, turn, R, half, H, bf16);                                                        \
    }
#define TILES(name, kind, bf16)                                         \
    TILE(name, kind, 1, 8, bf16)                                        \
    TILE(name, kind, 1, 2, bf16)                                        \
    TILE(name, kind, 2, 4, bf16)                                        \
    TILE(name, kind, 2, 2, bf16)                                        \
    TILE(name, kind, 3, 4, bf16)                                        \
    TILE(name, kind, 3, 2, bf16)                                        \
    TILE(name, kind, 4, 3, bf16)                                        \
    TILE(name, kind, 4, 2, bf16)                                        \
    /* by rows, and the narrower ones */                                \
    static tile_fn *const name[5][2] = {[1] = {name##_1_8, name##_1_2}, \
                                        {name##_2_4, name##_2_2},       \
                                        {name##_3_4, name##_3_2},       \
                                        {name##_4_3, name##_4_2}};

TILES(scores_f32_tile, score, false)
TILES(scores_bf16_tile, score, true)
TILES(values_f32_tile, value, false)
TILES(values_bf16_tile, value, true)

/* Vectors that some rows take next of an even number: four rows three, but not where one would be left over,
 * whose four sums are too few. */
INLINE int tile_width(int n_row, int left)
{
    if (n_row == 4)
        return left == 2 || left == 4 ? 2 : 3;
    int wide = n_row == 1 ? 8 : 4;
    return left < wide ? 2 : wide;
}

INLINE void tile_rows(const struct step *s, int row, int end, int n_half, tile_fn *const (*tile)[2])
{
    struct turn turn = {0, (end - row + 3) / 4};
    for (int n; row < end; row += n, turn.tile++) {
        n = end - row < 4 ? end - row : 4;
        for (int half = 0, width; half < n_half; half += width) {
            width = tile_width(n, n_half - half);
            tile[n][width == 2](s, row, turn, half);
        }
    }
}

INLINE void score_rows(const struct step *s, int row, int end, const enum query query)
{
    int n_half = 2 * ((s->n_key + KV_BLOCK - 1) / KV_BLOCK);
    tile_rows(s, row, end, n_half, query == QUERY_F32 ? scores_f32_tile : scores_bf16_tile);
}

INLINE void value_rows(const struct step *s, int row, int end, const bool bf16)
{
    tile_rows(s, row, end, (int)s->pad / 8, bf16 ? values_bf16_tile : values_f32_tile);
}
