/* The instructions of plugin/gpu.h that are more than a line of C++. */
#include "kernels/cuda/plugin/attention_number.cuh"

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
    if (m == 0.0f)
        return sign;
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

/* Nearest, ties to even; infinite beyond the largest. */
static uint16_t float_half(float f)
{
    const uint16_t sign = (uint16_t)(__float_as_uint(f) >> 16 & 0x8000u);
    const float m = fabsf(f);
    if (f != f)
        return 0x7fff;
    if (m >= 65520.0f) /* halfway from the largest to the next that there would be */
        return sign | 0x7c00;
    if (m == 0.0f)
        return sign;
    int exponent = 0;
    frexpf(m, &exponent);
    const int step = std::max(exponent - 11, -24);
    const int units = (int)nearbyintf(ldexpf(m, -step)); /* 0 to 2048 of 2^step */
    return (uint16_t)(sign | (((step + 24) << 10) + units));
}

uint32_t float_half_pair(float low, float high)
{
    return float_half(low) | (uint32_t)float_half(high) << 16;
}

uint32_t e4m3_half_pair(uint32_t two)
{
    uint32_t out = 0;
    for (int i = 0; i < 2; i++) {
        const uint8_t b = (uint8_t)(two >> 8 * i);
        const float f = (b & 0x7f) == 0x7f ? NAN : e4m3_float(b);
        out |= (uint32_t)float_half(f) << 16 * i;
    }
    return out;
}

/* The low and the high half of a pair as floats. */
typedef float (*half_of)(uint32_t pair);

template <half_of LOW, half_of HIGH>
static void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    struct operands {
        uint32_t a[4], b[2];
    };
    const operands mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    const uint8_t(*given)[simt::EXCHANGE_BYTES] = simt::exchange(simt::SHUFFLE, &mine, sizeof(mine));
    const unsigned lane = simt::here->lane;
    operands rows[4], columns[2][4]; /* of the lanes that have this lane's rows, and its two columns */
    for (unsigned l = 0; l < 4; l++) {
        std::memcpy(&rows[l], given[lane / 4 * 4 + l], sizeof(mine));
        for (unsigned i = 0; i < 2; i++)
            std::memcpy(&columns[i][l], given[(lane % 4 * 2 + i) * 4 + l], sizeof(mine));
    }
    for (unsigned i = 0; i < 4; i++) {
        float sum = c[i];
        for (unsigned pair = 0; pair < 8; pair++) {
            const uint32_t x = rows[pair % 4].a[i / 2 + pair / 4 * 2];
            const uint32_t y = columns[i % 2][pair % 4].b[pair / 4];
            sum += LOW(x) * LOW(y) + HIGH(x) * HIGH(y);
        }
        c[i] = sum;
    }
}

void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    mma<bf16_low, bf16_high>(c, a, b0, b1);
}

static float half_low(uint32_t pair)
{
    return half_float((uint16_t)pair);
}

static float half_high(uint32_t pair)
{
    return half_float((uint16_t)(pair >> 16));
}

void mma_half(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    mma<half_low, half_high>(c, a, b0, b1);
}

uint32_t transpose_8x8(uint32_t pair)
{
    const uint8_t(*given)[simt::EXCHANGE_BYTES] = simt::exchange(simt::SHUFFLE, &pair, sizeof(pair));
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

uint32_t gpu_acquire_system(const uint32_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
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
