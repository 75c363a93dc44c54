/* Arithmetic on rows, written once in lanes of 16 floats and compiled for each CPU level.
 *
 * The lanes are GCC vectors, so the same sums in the same order come out on every level: each of 16 running
 * sums takes the elements 16 apart, and the 16 are added as a tree. A file that includes this defines
 * ROW_VARIANT; the plain files are the _ref variants. */
#ifndef NYB_KERNELS_ROW_H
#define NYB_KERNELS_ROW_H

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "fp4/fp4.h"

#ifndef ROW_VARIANT
#define ROW_VARIANT(op) op##_ref
#endif

#define ROW_LANES 16
typedef float row_lanes __attribute__((vector_size(4 * ROW_LANES), aligned(4), may_alias));
typedef uint32_t row_bits __attribute__((vector_size(4 * ROW_LANES), aligned(4), may_alias));

/* The n < 16 last elements, zero filled. */
static inline void row_load_tail(row_lanes *lanes, const float *x, size_t n)
{
    float full[ROW_LANES] = {0};
    memcpy(full, x, n * sizeof(float));
    memcpy(lanes, full, sizeof(full));
}

static inline float row_lane_sum(const row_lanes *lanes)
{
    float s[ROW_LANES];
    memcpy(s, lanes, sizeof(s));
    for (size_t width = ROW_LANES / 2; width > 0; width /= 2)
        for (size_t i = 0; i < width; i++)
            s[i] += s[i + width];
    return s[0];
}

static inline float row_square_sum(const float *x, size_t n)
{
    row_lanes sum[4] = {0};
    size_t i = 0;
    for (; i + 4 * ROW_LANES <= n; i += 4 * ROW_LANES)
        for (size_t u = 0; u < 4; u++) {
            row_lanes v = *(const row_lanes *)(x + i + u * ROW_LANES);
            sum[u] += v * v;
        }
    for (; i + ROW_LANES <= n; i += ROW_LANES) {
        row_lanes v = *(const row_lanes *)(x + i);
        sum[0] += v * v;
    }
    if (i < n) {
        row_lanes v;
        row_load_tail(&v, x + i, n - i);
        sum[0] += v * v;
    }
    sum[0] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    return row_lane_sum(&sum[0]);
}

/* y = ((part[0] + part[1]) + part[2]) + ..., each from element `at` on. */
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

/* y = r * rsqrt(mean(r^2) + eps) * weight with r = x, or residual += x. y may be x. */
static inline void row_norm(float *y, const float *x, float *residual, const float *weight, size_t n,
                            float eps)
{
    if (residual) {
        size_t i = 0;
        for (; i + ROW_LANES <= n; i += ROW_LANES)
            *(row_lanes *)(residual + i) += *(const row_lanes *)(x + i);
        for (; i < n; i++)
            residual[i] += x[i];
        x = residual;
    }
    float inverse = 1.0f / sqrtf(row_square_sum(x, n) / (float)n + eps);
    size_t i = 0;
    for (; i + ROW_LANES <= n; i += ROW_LANES)
        *(row_lanes *)(y + i) = *(const row_lanes *)(x + i) * inverse * *(const row_lanes *)(weight + i);
    for (; i < n; i++)
        y[i] = x[i] * inverse * weight[i];
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
