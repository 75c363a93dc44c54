#include "checkpoint/dtype.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/err.h"

static const struct {
    const char *text;
    size_t bytes;
} table[DTYPE_COUNT] = {
#define DTYPE_ROW(name, text, bytes) [DTYPE_##name] = {text, bytes},
    DTYPE_TABLE(DTYPE_ROW)
#undef DTYPE_ROW
};

const char *dtype_name(enum dtype t)
{
    return t < DTYPE_COUNT ? table[t].text : "unknown";
}

size_t dtype_size(enum dtype t)
{
    return t < DTYPE_COUNT ? table[t].bytes : 0;
}

enum dtype dtype_parse(const char *text)
{
    int t = 0;
    while (t < DTYPE_COUNT && strcmp(table[t].text, text))
        t++;
    return (enum dtype)t;
}

bool dtype_is_float(enum dtype t)
{
    return t == DTYPE_F16 || t == DTYPE_BF16 || t == DTYPE_F32 || t == DTYPE_F64;
}

static float half_to_float(uint16_t h)
{
    int exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    float a;

    if (exponent == 31)
        a = mantissa ? NAN : INFINITY;
    else if (exponent == 0)
        a = ldexpf((float)mantissa, -24);
    else
        a = ldexpf((float)(mantissa + 1024), exponent - 25);
    return h & 0x8000 ? -a : a;
}

float dtype_to_float(enum dtype t, const void *element)
{
    uint16_t half;
    uint32_t bits;
    float single;
    double wide;

    ASSERT(dtype_is_float(t));
    switch (t) {
    case DTYPE_F64:
        memcpy(&wide, element, sizeof wide);
        return (float)wide;
    case DTYPE_F32:
        memcpy(&single, element, sizeof single);
        return single;
    case DTYPE_BF16:
        memcpy(&half, element, sizeof half);
        bits = (uint32_t)half << 16;
        memcpy(&single, &bits, sizeof single);
        return single;
    default:
        memcpy(&half, element, sizeof half);
        return half_to_float(half);
    }
}
