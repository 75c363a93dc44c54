/* How rows travel to the ranks of their experts. */
#include <string.h>

#include "fp4/fp4.h"
#include "model/ep.h"

static size_t f32_bytes(size_t n)
{
    return n * sizeof(float);
}

static void f32_encode(uint8_t *to, const float *x, size_t n)
{
    memcpy(to, x, n * sizeof(float));
}

static void f32_decode(float *to, const uint8_t *from, size_t n)
{
    memcpy(to, from, n * sizeof(float));
}

static size_t bf16_bytes(size_t n)
{
    return n * sizeof(uint16_t);
}

static void bf16_encode(uint8_t *to, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t b = bf16_from_float(x[i]);
        memcpy(to + i * sizeof(b), &b, sizeof(b));
    }
}

static void bf16_decode(float *to, const uint8_t *from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t b;
        memcpy(&b, from + i * sizeof(b), sizeof(b));
        to[i] = bf16_to_float(b);
    }
}

/* A scale for the row, then a byte for each element. */
static size_t fp8_bytes(size_t n)
{
    return sizeof(float) + n;
}

static void fp8_encode(uint8_t *to, const float *x, size_t n)
{
    float most = 0;
    for (size_t i = 0; i < n; i++)
        most = x[i] > most ? x[i] : -x[i] > most ? -x[i] : most;
    float scale = most > 0 ? most / 448.0f : 1.0f;
    memcpy(to, &scale, sizeof(scale));
    for (size_t i = 0; i < n; i++)
        to[sizeof(scale) + i] = fp4_e4m3_from_float(x[i] / scale);
}

static void fp8_decode(float *to, const uint8_t *from, size_t n)
{
    float scale;
    memcpy(&scale, from, sizeof(scale));
    for (size_t i = 0; i < n; i++)
        to[i] = fp4_e4m3_value[from[sizeof(scale) + i]] * scale;
}

/* A global scale for the row, a scale for each group of 16, then the codes. */
static size_t nvfp4_bytes(size_t n)
{
    size_t bytes = sizeof(float) + n / FP4_GROUP + n / 2;
    return (bytes + 3) & ~(size_t)3;
}

static void nvfp4_encode(uint8_t *to, const float *x, size_t n)
{
    float global = fp4_global_scale(x, n);
    memcpy(to, &global, sizeof(global));
    fp4_quantize_row(to + sizeof(global) + n / FP4_GROUP, to + sizeof(global), x, global, n);
}

static void nvfp4_decode(float *to, const uint8_t *from, size_t n)
{
    float global;
    memcpy(&global, from, sizeof(global));
    fp4_dequantize_row(to, from + sizeof(global) + n / FP4_GROUP, from + sizeof(global), global, n);
}

const struct dispatch_codec *ep_codec(enum dispatch_type type)
{
    static const struct dispatch_codec codec[] = {
        [DISPATCH_F32] = {"f32", f32_bytes, f32_encode, f32_decode},
        [DISPATCH_BF16] = {"bf16", bf16_bytes, bf16_encode, bf16_decode},
        [DISPATCH_FP8] = {"fp8", fp8_bytes, fp8_encode, fp8_decode},
        [DISPATCH_NVFP4] = {"nvfp4", nvfp4_bytes, nvfp4_encode, nvfp4_decode},
    };
    return &codec[type];
}

bool model_parse_dispatch(const char *text, enum dispatch_type *out)
{
    for (int i = DISPATCH_F32; i <= DISPATCH_NVFP4; i++)
        if (!strcmp(text, ep_codec((enum dispatch_type)i)->name)) {
            *out = (enum dispatch_type)i;
            return true;
        }
    return false;
}
