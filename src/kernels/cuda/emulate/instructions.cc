/* The instructions of plugin/gpu.h that are more than a line of C++. */
#include "kernels/cuda/plugin/gpu.h"

#include <chrono>

uint16_t float_bf16(float f)
{
    const uint32_t u = __float_as_uint(f);
    if (f != f)
        return 0x7fff;
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

/* Nearest, ties to even; saturates; NaN stays one. */
uint8_t float_e4m3(float f)
{
    if (f != f)
        return 0x7f;
    const uint8_t sign = __float_as_uint(f) >> 31 ? 0x80 : 0;
    const float m = fabsf(f);
    if (m >= 448.0f)
        return sign | 0x7e;
    int exponent = 0;
    frexpf(m, &exponent); /* m = 0.5..1 * 2^exponent */
    const int step = std::max(exponent - 4, -9);
    const int units = (int)nearbyintf(ldexpf(m, -step)); /* 0 to 16 of 2^step */
    return (uint8_t)(sign | (((step + 9) << 3) + units));
}

float half_float(uint16_t h)
{
    const int exponent = h >> 10 & 31, mantissa = h & 1023;
    float m = exponent == 0    ? ldexpf((float)mantissa, -24)
              : exponent == 31 ? mantissa ? NAN : INFINITY
                               : ldexpf((float)(1024 + mantissa), exponent - 25);
    return h >> 15 ? -m : m;
}

void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    const uint32_t b[2] = {b0, b1};
    uint32_t all_a[32][4], all_b[32][2];
    const uint8_t(*given)[16] = simt::exchange(simt::SHUFFLE, a, sizeof(a));
    for (int l = 0; l < 32; l++)
        std::memcpy(all_a[l], given[l], 16);
    given = simt::exchange(simt::SHUFFLE, b, sizeof(b));
    for (int l = 0; l < 32; l++)
        std::memcpy(all_b[l], given[l], 8);
    const unsigned lane = simt::here->lane;
    for (unsigned i = 0; i < 4; i++) {
        const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        float sum = c[i];
        for (unsigned pair = 0; pair < 8; pair++) {
            const uint32_t x = all_a[row % 8 * 4 + pair % 4][row / 8 + pair / 4 * 2];
            const uint32_t y = all_b[column * 4 + pair % 4][pair / 4];
            sum += bf16_low(x) * bf16_low(y) + bf16_high(x) * bf16_high(y);
        }
        c[i] = sum;
    }
}

uint32_t transpose_8x8(uint32_t pair)
{
    const uint8_t(*given)[16] = simt::exchange(simt::SHUFFLE, &pair, sizeof(pair));
    const unsigned lane = simt::here->lane, row = lane / 4, column = lane % 4 * 2;
    uint32_t out = 0;
    for (unsigned i = 0; i < 2; i++) {
        uint32_t from;
        std::memcpy(&from, given[(column + i) * 4 + row / 2], 4);
        out |= (from >> row % 2 * 16 & 0xffffu) << i * 16;
    }
    return out;
}

/* Other threads and processes read and write the same memory: these are atomic for them, too. */
float4 gpu_load_system(const float4 *p)
{
    float4 v;
    __atomic_load(&p->x, &v.x, __ATOMIC_RELAXED);
    __atomic_load(&p->y, &v.y, __ATOMIC_RELAXED);
    __atomic_load(&p->z, &v.z, __ATOMIC_RELAXED);
    __atomic_load(&p->w, &v.w, __ATOMIC_RELAXED);
    return v;
}

void gpu_store_system(float4 *p, float4 v)
{
    __atomic_store(&p->x, &v.x, __ATOMIC_RELAXED);
    __atomic_store(&p->y, &v.y, __ATOMIC_RELAXED);
    __atomic_store(&p->z, &v.z, __ATOMIC_RELAXED);
    __atomic_store(&p->w, &v.w, __ATOMIC_RELAXED);
}

uint32_t gpu_load_system(const uint32_t *p)
{
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}

void gpu_store_system(uint32_t *p, uint32_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
}

uint64_t gpu_now_ns()
{
    return (uint64_t)std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}
