#include "fp4/fp4.h"

#include <math.h>

#include "base/err.h"

const float fp4_e2m1_value[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                  -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

/* Eight values that share sign and exponent field e: (8 + m) 2^(e - 10), the subnormals m 2^-9. */
#define E4M3_ROW(sign, lead, ulp)                                                                           \
    sign((lead) + 0) * (ulp), sign((lead) + 1) * (ulp), sign((lead) + 2) * (ulp), sign((lead) + 3) * (ulp), \
        sign((lead) + 4) * (ulp), sign((lead) + 5) * (ulp), sign((lead) + 6) * (ulp)
#define E4M3_FULL_ROW(sign, lead, ulp) E4M3_ROW(sign, lead, ulp), sign((lead) + 7) * (ulp)
#define E4M3_HALF(sign)                                                                                    \
    E4M3_FULL_ROW(sign, 0.0F, 0x1p-9F), E4M3_FULL_ROW(sign, 8.0F, 0x1p-9F),                                \
        E4M3_FULL_ROW(sign, 8.0F, 0x1p-8F), E4M3_FULL_ROW(sign, 8.0F, 0x1p-7F),                            \
        E4M3_FULL_ROW(sign, 8.0F, 0x1p-6F), E4M3_FULL_ROW(sign, 8.0F, 0x1p-5F),                            \
        E4M3_FULL_ROW(sign, 8.0F, 0x1p-4F), E4M3_FULL_ROW(sign, 8.0F, 0x1p-3F),                            \
        E4M3_FULL_ROW(sign, 8.0F, 0x1p-2F), E4M3_FULL_ROW(sign, 8.0F, 0x1p-1F),                            \
        E4M3_FULL_ROW(sign, 8.0F, 1.0F), E4M3_FULL_ROW(sign, 8.0F, 2.0F), E4M3_FULL_ROW(sign, 8.0F, 4.0F), \
        E4M3_FULL_ROW(sign, 8.0F, 8.0F), E4M3_FULL_ROW(sign, 8.0F, 16.0F), E4M3_ROW(sign, 8.0F, 32.0F), NAN

const float fp4_e4m3_value[256] = {E4M3_HALF(+), E4M3_HALF(-)};

uint8_t fp4_e2m1_from_float(float x)
{
    float a = fabsf(x);
    uint8_t sign = x < 0 ? 8 : 0;

    if (isnan(x))
        return 7; /* what the PTX conversion does */
    /* Halfway points; <= where the even code lies below. */
    if (a <= 2.5F) {
        if (a <= 0.25F)
            return sign;
        if (a < 0.75F)
            return sign | 1;
        if (a <= 1.25F)
            return sign | 2;
        return a < 1.75F ? sign | 3 : sign | 4;
    }
    if (a < 3.5F)
        return sign | 5;
    return a <= 5.0F ? sign | 6 : sign | 7;
}

uint8_t fp4_e4m3_from_float(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    uint8_t sign = (uint8_t)(u >> 24 & 0x80);
    u &= 0x7fffffff;
    if (u > 0x7f800000)
        return 0x7f;

    float a = fabsf(x);
    if (a >= 448.0F)
        return sign | 0x7e;
    if (a <
        0x1p-6F) /* Subnormal: adding 2^14 leaves a grid of 2^-9 and the processor rounds to nearest even. */
        return (uint8_t)(sign | (uint8_t)((a + 0x1p14F - 0x1p14F) * 512.0F));
    u += 0x7ffff + (u >> 20 & 1); /* keep 3 of 23 mantissa bits */
    uint32_t code = (u >> 20) - ((127 - 7) << 3);
    return (uint8_t)(sign | (code > 0x7e ? 0x7e : code));
}

void fp4_dequantize_row(float *dst, const uint8_t *codes, const uint8_t *scales, float global, size_t n)
{
    ASSERT(n % FP4_GROUP == 0);
    for (size_t i = 0; i < n; i++) {
        unsigned code = codes[i / 2] >> (i % 2 * 4) & 15;
        float v = fp4_e2m1_value[code];
        /* A zero stays zero under a NaN scale, which some exporters put on all-zero blocks. */
        dst[i] = v == 0 ? v : v * fp4_e4m3_value[scales[i / FP4_GROUP]] * global;
    }
}

static float amax_of(const float *x, size_t n)
{
    float m = 0;
    for (size_t i = 0; i < n; i++)
        m = fmaxf(m, fabsf(x[i]));
    return m;
}

void fp4_quantize_row(uint8_t *codes, uint8_t *scales, const float *src, float global, size_t n)
{
    ASSERT(n % FP4_GROUP == 0 && global > 0);
    for (size_t g = 0; g < n / FP4_GROUP; g++) {
        const float *x = src + g * FP4_GROUP;
        float raw = amax_of(x, FP4_GROUP) / (6.0F * global);
        raw = raw == 0 ? 1.0F : fminf(fmaxf(raw, 0x1p-9F), 448.0F);
        scales[g] = fp4_e4m3_from_float(raw);

        float step = fp4_e4m3_value[scales[g]] * global; /* the rounded scale, as the reader will see it */
        for (size_t i = 0; i < FP4_GROUP; i += 2)
            codes[(g * FP4_GROUP + i) / 2] =
                (uint8_t)(fp4_e2m1_from_float(x[i] / step) | fp4_e2m1_from_float(x[i + 1] / step) << 4);
    }
}

float fp4_global_scale(const float *src, size_t n)
{
    float amax = amax_of(src, n);
    float global = amax / (6.0F * 448.0F);
    return global > 0 ? global : 1.0F;
}

void fp4_round_trip_row(float *dst, const float *src, float input_scale, size_t n)
{
    ASSERT(input_scale > 0);
    for (size_t start = 0; start < n; start += FP4_GROUP) {
        size_t len = n - start < FP4_GROUP ? n - start : FP4_GROUP;
        const float *x = src + start;
        float raw = amax_of(x, len) / (6.0F * input_scale);
        float step = fp4_e4m3_value[fp4_e4m3_from_float(fminf(raw, 448.0F))] * input_scale;
        for (size_t i = 0; i < len; i++)
            dst[start + i] = step == 0 ? 0.0F : fp4_e2m1_value[fp4_e2m1_from_float(x[i] / step)] * step;
    }
}

bool fp4_row_scales_ok(const uint8_t *codes, const uint8_t *scales, size_t n, size_t *bad_group)
{
    ASSERT(n % FP4_GROUP == 0);
    for (size_t g = 0; g < n / FP4_GROUP; g++) {
        if ((scales[g] & 0x7f) != 0x7f)
            continue;
        uint8_t magnitude = 0;
        for (size_t i = 0; i < FP4_GROUP / 2; i++)
            magnitude |= codes[g * (FP4_GROUP / 2) + i] & 0x77;
        if (magnitude) {
            *bad_group = g;
            return false;
        }
    }
    return true;
}
