/* IEEE binary16 by bit patterns: no compiler or processor support needed. */
#include "fp4/fp4.h"

float f16_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = h >> 10 & 31;
    uint32_t mantissa = h & 0x3ff;
    uint32_t u;
    float f;

    if (exponent == 0) { /* subnormal: an integer count of 2^-24 */
        f = (float)mantissa * 0x1p-24F;
        return sign ? -f : f;
    }
    if (exponent == 31)
        u = sign | 0x7f800000 | mantissa << 13;
    else
        u = sign | (exponent + 127 - 15) << 23 | mantissa << 13;
    memcpy(&f, &u, 4);
    return f;
}

uint16_t f16_from_float(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    u &= 0x7fffffff;

    if (u > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (u >> 13 & 0x3ff));
    if (u >= 0x477ff000) /* 65520: halfway to the value after the largest */
        return (uint16_t)(sign | 0x7c00);
    if (u < 0x38800000) { /* below 2^-14: adding 1/2 leaves a grid of 2^-24, rounded to nearest even */
        float a;
        memcpy(&a, &u, 4);
        a += 0.5F;
        memcpy(&u, &a, 4);
        return (uint16_t)(sign | (u - 0x3f000000));
    }
    u += 0xfff + (u >> 13 & 1);
    return (uint16_t)(sign | ((u >> 13) - ((127 - 15) << 10)));
}
