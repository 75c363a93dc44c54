/* The passes of sampler_ops.h, written once over sampler_lanes.h. A file that includes this defines
 * SAMPLER_OPS, the name of its set. */
#ifndef NYB_ENGINE_SAMPLER_ROWS_H
#define NYB_ENGINE_SAMPLER_ROWS_H

#include <math.h>
#include <string.h>

#include "engine/sampler_lanes.h"
#include "engine/sampler_ops.h"

static inline int rows_end(int begin, int n)
{
    return n - begin < SAMPLER_BLOCK ? n : begin + SAMPLER_BLOCK;
}

/* Where the step of LANES_STEP floats at i may be read: in the row, or for the last few in `tail`, filled up.
 */
static inline const float *rows_step(const float *x, int i, int n, float filling, float tail[LANES_STEP])
{
    if (n - i >= LANES_STEP)
        return x + i;
    for (int k = 0; k < LANES_STEP; k++)
        tail[k] = k < n - i ? x[i + k] : filling;
    return tail;
}

/* ---- the largest ------------------------------------------------------------------------------------- */

/* Of one block, but at least `floor`. */
static inline float rows_block_max(const float *x, int n, float floor)
{
    lanes_f m[LANES_COUNT];
    unsigned better = 0;
    float best = floor;
    int i = 0;
    LANES_EACH(v) m[v] = lanes_all(floor);
    for (; i + LANES_STEP <= n; i += LANES_STEP)
        LANES_EACH(v) m[v] = lanes_max(lanes_load(x + i + v * LANES_WIDTH), m[v]);
    LANES_EACH(v) better |= lanes_bits(lanes_gt(m[v], lanes_all(floor)));
    if (better) {
        float lane[LANES_STEP];
        LANES_EACH(v) lanes_store(lane + v * LANES_WIDTH, m[v]);
        for (int k = 0; k < LANES_STEP; k++)
            best = lane[k] > best ? lane[k] : best;
    }
    for (; i < n; i++)
        best = x[i] > best ? x[i] : best;
    return best;
}

static float rows_max(const float *x, int n, int *at, float *peak)
{
    float best = -INFINITY;
    int block = 0;
    for (int begin = 0; begin < n; begin += SAMPLER_BLOCK) {
        float here = rows_block_max(x + begin, rows_end(begin, n) - begin, peak ? -INFINITY : best);
        if (peak)
            peak[begin / SAMPLER_BLOCK] = here;
        if (here > best) {
            best = here;
            block = begin;
        }
    }
    *at = 0;
    for (int i = block; i < rows_end(block, n); i++)
        if (x[i] == best) {
            *at = i;
            break;
        }
    return best;
}

static int rows_next_above(const float *x, int n, int from, float bound)
{
    const lanes_f least = lanes_all(bound);
    int begin = from;
    for (; begin + SAMPLER_SCAN <= n; begin += SAMPLER_SCAN) {
        lanes_f m[LANES_COUNT];
        unsigned any = 0;
        LANES_EACH(v)
        {
            const float *p = x + begin + v * LANES_WIDTH;
            m[v] = lanes_max(lanes_load(p), least);
            m[v] = lanes_max(lanes_load(p + LANES_STEP), m[v]);
            m[v] = lanes_max(lanes_load(p + 2 * LANES_STEP), m[v]);
            m[v] = lanes_max(lanes_load(p + 3 * LANES_STEP), m[v]);
            any |= lanes_bits(lanes_gt(m[v], least));
        }
        if (any)
            return begin;
    }
    for (int i = begin; i < n; i++)
        if (x[i] > bound)
            return begin;
    return n;
}

static int rows_count_before(const float *x, int n, int at)
{
    const lanes_f value = lanes_all(x[at]);
    int count = 0, i = 0;
    for (; i + LANES_STEP <= at; i += LANES_STEP)
        LANES_EACH(v)
    count += __builtin_popcount(lanes_bits(lanes_ge(lanes_load(x + i + v * LANES_WIDTH), value)));
    for (int end = i + LANES_STEP < n ? i + LANES_STEP : n; i < end; i++)
        count += x[i] > x[at] || (x[i] == x[at] && i < at);
    for (; i + LANES_STEP <= n; i += LANES_STEP)
        LANES_EACH(v)
    count += __builtin_popcount(lanes_bits(lanes_gt(lanes_load(x + i + v * LANES_WIDTH), value)));
    for (; i < n; i++)
        count += x[i] > x[at];
    return count;
}

/* ---- weights ------------------------------------------------------------------------------------------ */

static double rows_weigh(const float *x, int n, float max, float scale, float least, float *e, double *sum)
{
    const lanes_f top = lanes_all(max), floor = lanes_all(least);
    const lanes_f factor = lanes_all(scale * 1.44269504f); /* 1 / ln 2 */
    double total = 0;
    for (int begin = 0; begin < n; begin += SAMPLER_BLOCK) {
        lanes_f s[LANES_COUNT];
        LANES_EACH(v) s[v] = lanes_all(0);
        for (int i = begin, end = rows_end(begin, n); i < end; i += LANES_STEP) {
            float tail[LANES_STEP], out[LANES_STEP];
            const float *from = rows_step(x, i, n, -INFINITY, tail);
            float *to = n - i >= LANES_STEP && e ? e + i : out;
            LANES_EACH(v)
            {
                lanes_f w = lanes_exp2((lanes_load(from + v * LANES_WIDTH) - top) * factor);
                w = lanes_keep(lanes_ge(w, floor), w);
                lanes_store(to + v * LANES_WIDTH, w);
                s[v] += w;
            }
            if (e && to == out)
                memcpy(e + i, out, (size_t)(n - i) * sizeof(*e));
        }
        double block = lanes_sum(s);
        if (sum)
            sum[begin / SAMPLER_BLOCK] = block;
        total += block;
    }
    return total;
}

static double rows_mass_from(const float *w, int n, float bound)
{
    const lanes_f least = lanes_all(bound);
    double total = 0;
    for (int begin = 0; begin < n; begin += SAMPLER_BLOCK) {
        lanes_f s[LANES_COUNT];
        LANES_EACH(v) s[v] = lanes_all(0);
        for (int i = begin, end = rows_end(begin, n); i < end; i += LANES_STEP) {
            float tail[LANES_STEP];
            const float *from = rows_step(w, i, n, 0, tail);
            LANES_EACH(v)
            {
                lanes_f e = lanes_load(from + v * LANES_WIDTH);
                s[v] += lanes_keep(lanes_ge(e, least), e);
            }
        }
        total += lanes_sum(s);
    }
    return total;
}

/* Those of e that the mask names, as LANES_WIDTH floats of which the others are to be overwritten; out may be
 * what they were loaded from. Returns how many. Of 16 some mostly are, so that nothing asks whether there are
 * any; with fewer lanes asking is worth it. */
static inline int rows_pack(float *out, lanes_m mask, lanes_f e)
{
#if LANES_WIDTH == 16
    _mm512_storeu_ps(
        out, _mm512_maskz_compress_ps(mask, e)); /* to memory it would take 50 times as long on Zen 4 */
    return __builtin_popcount(mask);
#elif LANES_WIDTH == 8
    static const _Alignas(16) int32_t front[16][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}, {1, 0, 0, 0}, {0, 1, 0, 0},
                                                      {2, 0, 0, 0}, {0, 2, 0, 0}, {1, 2, 0, 0}, {0, 1, 2, 0},
                                                      {3, 0, 0, 0}, {0, 3, 0, 0}, {1, 3, 0, 0}, {0, 1, 3, 0},
                                                      {2, 3, 0, 0}, {0, 2, 3, 0}, {1, 2, 3, 0}, {0, 1, 2, 3}};
    unsigned bits = lanes_bits(mask), low = bits % 16, high = bits / 16;
    if (!bits)
        return 0;
    int n_low = __builtin_popcount(low);
    __m128i to_low = _mm_load_si128((const __m128i *)(const void *)front[low]);
    __m128i to_high = _mm_load_si128((const __m128i *)(const void *)front[high]);
    _mm_storeu_ps(out, _mm_permutevar_ps(_mm256_castps256_ps128(e), to_low));
    _mm_storeu_ps(out + n_low, _mm_permutevar_ps(_mm256_extractf128_ps(e, 1), to_high));
    return n_low + __builtin_popcount(high);
#else
    int n = 0;
    float lane[LANES_WIDTH];
    lanes_store(lane, e);
    for (unsigned bits = lanes_bits(mask); bits; bits &= bits - 1)
        out[n++] = lane[__builtin_ctz(bits)];
    return n;
#endif
}

static int rows_band(const float *w, int n, float low, float high, float *out, double *above)
{
    const lanes_f from = lanes_all(low), to = lanes_all(high);
    int held = 0;
    *above = 0;
    for (int begin = 0; begin < n; begin += SAMPLER_BLOCK) {
        lanes_f s[LANES_COUNT];
        LANES_EACH(v) s[v] = lanes_all(0);
        for (int i = begin, end = rows_end(begin, n); i < end; i += LANES_STEP) {
            float tail[LANES_STEP];
            const float *step = rows_step(w, i, n, 0, tail);
            LANES_EACH(v)
            {
                lanes_f e = lanes_load(step + v * LANES_WIDTH);
                lanes_m above_it = lanes_ge(e, to);
                s[v] += lanes_keep(above_it, e);
                held += rows_pack(out + held, lanes_but(lanes_ge(e, from), above_it), e);
            }
        }
        *above += lanes_sum(s);
    }
    return held;
}

/* A block's weights stay in the first cache between the two. */
static int rows_weigh_band(const struct sampler_weights *w, float low, float high, float *out,
                           const struct sampler_sums *to)
{
    float e[SAMPLER_BLOCK];
    int held = 0;
    for (int begin = 0, b = 0; begin < w->n; begin += SAMPLER_BLOCK, b++) {
        int n = rows_end(begin, w->n) - begin;
        to->all[b] = rows_weigh(w->x + begin, n, w->max, w->scale, w->least, e, NULL);
        to->held[b] = rows_band(e, n, low, high, out + held, &to->above[b]);
        held += to->held[b];
    }
    return held;
}

static double rows_above(const float *w, int n, float cut, int32_t *n_eq)
{
    const lanes_f at = lanes_all(cut);
    lanes_f s[LANES_COUNT];
    int count = 0;
    LANES_EACH(v) s[v] = lanes_all(0);
    for (int i = 0; i < n; i += LANES_STEP) {
        float tail[LANES_STEP];
        const float *from = rows_step(w, i, n, 0, tail);
        LANES_EACH(v)
        {
            lanes_f e = lanes_load(from + v * LANES_WIDTH);
            s[v] += lanes_keep(lanes_gt(e, at), e);
            count += __builtin_popcount(lanes_bits(lanes_eq(e, at)));
        }
    }
    *n_eq = count;
    return lanes_sum(s);
}

/* ---- bans --------------------------------------------------------------------------------------------- */

static void rows_ban(float *x, int n)
{
    int i = 0;
    for (; i + LANES_WIDTH <= n; i += LANES_WIDTH)
        lanes_store(x + i, lanes_all(-INFINITY));
    for (; i < n; i++)
        x[i] = -INFINITY;
}

const struct sampler_ops SAMPLER_OPS = {rows_max,          rows_weigh,     rows_next_above,
                                        rows_count_before, rows_mass_from, rows_band,
                                        rows_weigh_band,   rows_above,     rows_ban};

#endif
