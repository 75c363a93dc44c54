/* Arithmetic on rows, written once and compiled for each CPU level.
 *
 * A vector here is as wide as the level's registers. (GCC keeps wider ones in memory: with 64 bytes a norm
 * took 3 to 4 times as long on AVX2.) Where the order of sums matters it does not depend on that width, so
 * the same bits come out on every level: each of 64 running sums takes the elements 64 apart, and they are
 * added as a tree. A file that includes this defines ROW_VARIANT; the plain files are the _ref variants. */
#ifndef NYB_KERNELS_ROW_H
#define NYB_KERNELS_ROW_H

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "fp4/fp4.h"
#include "kernels/cpu/unroll.h"

#ifndef ROW_VARIANT
#define ROW_VARIANT(op) op##_ref
#endif

#if defined(__AVX512F__)
#define ROW_LANES 16
#elif defined(__AVX__)
#define ROW_LANES 8
#else
#define ROW_LANES 4
#endif
typedef float row_lanes __attribute__((vector_size(4 * ROW_LANES), aligned(4), may_alias));

#define ROW_SUMS  64 /* running sums of a row                                      */
#define ROW_REST  16 /* of them take what is left when the whole 64s are over      */
#define ROW_GROUP 4  /* vectors that are on their way together                     */
#define ROW_LINE  16 /* of the cache                                               */

/* ((0 + 1) + (2 + 3)) of the four sixteens, then a tree of the sixteen. */
static inline float row_total(const row_lanes *square)
{
    float s[ROW_SUMS];
    memcpy(s, square, sizeof(s));
    for (size_t i = 0; i < ROW_REST; i++)
        s[i] = (s[i] + s[i + ROW_REST]) + (s[i + 2 * ROW_REST] + s[i + 3 * ROW_REST]);
    for (size_t width = ROW_REST / 2; width > 0; width /= 2)
        for (size_t i = 0; i < width; i++)
            s[i] += s[i + width];
    return s[0];
}

/* The n < ROW_REST last elements, zero filled. */
static inline void row_square_tail(row_lanes *square, const float *x, size_t n)
{
    float full[ROW_REST] = {0};
    row_lanes v[ROW_REST / ROW_LANES];
    memcpy(full, x, n * sizeof(float));
    memcpy(v, full, sizeof(full));
    for (size_t u = 0; u < ROW_REST / ROW_LANES; u++)
        square[u] += v[u] * v[u];
}

static inline float row_square_sum(const float *x, size_t n)
{
    row_lanes square[ROW_SUMS / ROW_LANES] = {0};
    size_t i = 0;
    for (; i + ROW_SUMS <= n; i += ROW_SUMS) {
        UNROLL(16)
        for (size_t u = 0; u < ROW_SUMS / ROW_LANES; u++) {
            row_lanes v = *(const row_lanes *)(x + i + u * ROW_LANES);
            square[u] += v * v;
        }
    }
    for (; i + ROW_REST <= n; i += ROW_REST) {
        UNROLL(4)
        for (size_t u = 0; u < ROW_REST / ROW_LANES; u++) {
            row_lanes v = *(const row_lanes *)(x + i + u * ROW_LANES);
            square[u] += v * v;
        }
    }
    row_square_tail(square, x + i, n - i);
    return row_total(square);
}

/* `count` <= ROW_GROUP vectors of residual += (part[0] + part[1]) + ..., and their squares. */
static inline void row_add_group(row_lanes *square, float *residual, const float *const *part, int n_part,
                                 size_t at, size_t count)
{
    row_lanes sum[ROW_GROUP] = {0}; /* all of them, for compilers that do not see that `count` stays */
    UNROLL(4)
    for (size_t u = 0; u < count; u++)
        sum[u] = *(const row_lanes *)(part[0] + at + u * ROW_LANES);
    for (int r = 1; r < n_part; r++) {
        UNROLL(4)
        for (size_t u = 0; u < count; u++)
            sum[u] += *(const row_lanes *)(part[r] + at + u * ROW_LANES);
    }
    UNROLL(4)
    for (size_t u = 0; u < count; u++) {
        row_lanes v = *(const row_lanes *)(residual + u * ROW_LANES) + sum[u];
        *(row_lanes *)(residual + u * ROW_LANES) = v;
        square[u] += v * v;
    }
}

/* residual += ((part[0] + part[1]) + part[2]) + ..., each from element `at` on; the sum of residual^2.
 * Meanwhile fetch the first half of the n floats that follow in the first n_next parts: memory has work all
 * the time if row_scale fetches the other half. */
static inline float row_add_square_sum(float *residual, const float *const *part, int n_part, size_t at,
                                       size_t n, int n_next)
{
    row_lanes square[ROW_SUMS / ROW_LANES] = {0};
    size_t i = 0;
    for (; i + ROW_SUMS <= n; i += ROW_SUMS) {
        for (int r = 0; r < n_next; r++) {
            __builtin_prefetch(part[r] + at + n + i / 2);
            __builtin_prefetch(part[r] + at + n + i / 2 + ROW_LINE);
        }
        UNROLL(4)
        for (size_t u = 0; u < ROW_SUMS / ROW_LANES; u += ROW_GROUP)
            row_add_group(square + u, residual + i + u * ROW_LANES, part, n_part, at + i + u * ROW_LANES,
                          ROW_GROUP);
    }
    for (; i + ROW_REST <= n; i += ROW_REST)
        row_add_group(square, residual + i, part, n_part, at + i, ROW_REST / ROW_LANES);
    for (size_t j = i; j < n; j++) {
        float sum = part[0][at + j];
        for (int r = 1; r < n_part; r++)
            sum += part[r][at + j];
        residual[j] += sum;
    }
    row_square_tail(square, residual + i, n - i);
    return row_total(square);
}

/* y = ((part[0] + part[1]) + part[2]) + ..., each from element `at` on; y may be one of them. */
static inline void row_sum(float *y, const float *const *part, int n_part, size_t at, size_t n)
{
    size_t i = 0;
    for (; i + ROW_LANES <= n; i += ROW_LANES) {
        row_lanes sum = *(const row_lanes *)(part[0] + at + i);
        for (int r = 1; r < n_part; r++)
            sum += *(const row_lanes *)(part[r] + at + i);
        *(row_lanes *)(y + i) = sum;
    }
    for (; i < n; i++) {
        float sum = part[0][at + i];
        for (int r = 1; r < n_part; r++)
            sum += part[r][at + i];
        y[i] = sum;
    }
}

/* y = x * rsqrt(square_sum / n + eps) * weight; y may be x. Meanwhile fetch the second half of the n floats
 * of each of n_next arrays from element `at` on. */
static inline void row_scale(float *y, const float *x, const float *weight, float square_sum, size_t n,
                             float eps, const float *const *next, int n_next, size_t at)
{
    float inverse = 1.0f / sqrtf(square_sum / (float)n + eps);
    size_t i = 0;
    for (; i + 2 * ROW_LINE <= n; i += 2 * ROW_LINE) {
        for (int r = 0; r < n_next; r++)
            __builtin_prefetch(next[r] + at + n / 2 + i / 2);
        UNROLL(8)
        for (size_t u = i; u < i + 2 * ROW_LINE; u += ROW_LANES)
            *(row_lanes *)(y + u) = *(const row_lanes *)(x + u) * inverse * *(const row_lanes *)(weight + u);
    }
    for (; i + ROW_LANES <= n; i += ROW_LANES)
        *(row_lanes *)(y + i) = *(const row_lanes *)(x + i) * inverse * *(const row_lanes *)(weight + i);
    for (; i < n; i++)
        y[i] = x[i] * inverse * weight[i];
}

/* The norm of x, or of residual += x. y may be x. */
static inline void row_norm(float *y, const float *x, float *residual, const float *weight, size_t n,
                            float eps)
{
    float square_sum = residual ? row_add_square_sum(residual, &x, 1, 0, n, 0) : row_square_sum(x, n);
    row_scale(y, residual ? residual : x, weight, square_sum, n, eps, NULL, 0, 0);
}

/* Rotate the pairs (i, i + half). */
static inline void row_rope_half(float *x, const float *cosine, const float *sine, size_t half)
{
    size_t i = 0;
    for (; i + ROW_LANES <= half; i += ROW_LANES) {
        row_lanes a = *(const row_lanes *)(x + i), b = *(const row_lanes *)(x + half + i);
        row_lanes c = *(const row_lanes *)(cosine + i), s = *(const row_lanes *)(sine + i);
        *(row_lanes *)(x + i) = a * c - b * s;
        *(row_lanes *)(x + half + i) = b * c + a * s;
    }
    for (; i < half; i++) {
        float a = x[i], b = x[half + i];
        x[i] = a * cosine[i] - b * sine[i];
        x[half + i] = b * cosine[i] + a * sine[i];
    }
}

/* Rotate the pairs (2i, 2i + 1). */
static inline void row_rope_interleaved(float *x, const float *cosine, const float *sine, size_t half)
{
    for (size_t i = 0; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cosine[i] - b * sine[i];
        x[2 * i + 1] = b * cosine[i] + a * sine[i];
    }
}

/* y += x * w */
static inline void row_add_scaled(float *y, const float *x, float w, size_t n)
{
    size_t i = 0;
    for (; i + ROW_LANES <= n; i += ROW_LANES)
        *(row_lanes *)(y + i) += *(const row_lanes *)(x + i) * w;
    for (; i < n; i++)
        y[i] += x[i] * w;
}

#endif
