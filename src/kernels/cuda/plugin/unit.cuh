/* Units of packed NVFP4 weights (cuda_layout.h): their products with rows of x by mma.m16n8k16, the weights
 * being A. For kernels of few rows, and for the emulator. */
#pragma once

#include "kernels/cuda/cuda_layout.h"
#include "kernels/cuda/plugin/gpu.h"

#define N_WARP      16
#define N_THREAD    (32 * N_WARP)
#define CHUNK_UNITS 4
#define CHUNK_BYTES (CHUNK_UNITS * CUDA_UNIT_BYTES)
#define STAGES_MAX  6

/* ---- shared memory and its barriers ----------------------------------------------------------------- */

#ifdef __CUDACC__

/* Where something lies in shared memory, as instructions take it. */
typedef uint32_t shared_at;

__device__ __forceinline__ shared_at shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Behind the last mbarrier that has been made, before a barrier of the block. */
__device__ __forceinline__ void barriers_made()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_wait(shared_at barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}\n" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

#else

typedef uint8_t *shared_at;

static inline shared_at shared_address(void *p)
{
    return (uint8_t *)p;
}

#endif

/* ---- one unit -------------------------------------------------------------------------------------- */

/* Shifts and masks run at half the rate of the rest and are what holds these kernels (docs/SPEED.md). So what
 * can be a multiplication is one, by `sixteen`, which the compiler does not know to be a power of two, and
 * products take the half of the scales that is their rows': instructions name halves. */

#ifdef __CUDACC__

__device__ __forceinline__ uint32_t multiply_add(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* Both halves of a, by one half of b. */
__device__ __forceinline__ uint32_t times_low(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("{\n"
        ".reg .b16 low, high;\n"
        ".reg .b32 both;\n"
        "mov.b32 {low, high}, %2;\n"
        "mov.b32 both, {low, low};\n"
        "mul.rn.bf16x2 %0, %1, both;\n"
        "}\n"
        : "=r"(d)
        : "r"(a), "r"(b));
    return d;
}

__device__ __forceinline__ uint32_t times_high(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("{\n"
        ".reg .b16 low, high;\n"
        ".reg .b32 both;\n"
        "mov.b32 {low, high}, %2;\n"
        "mov.b32 both, {high, high};\n"
        "mul.rn.bf16x2 %0, %1, both;\n"
        "}\n"
        : "=r"(d)
        : "r"(a), "r"(b));
    return d;
}

/* Bits of a where mask has them, and of b elsewhere: one instruction, which the compiler, looking at what is
 * needed of the result, would make two. */
__device__ __forceinline__ uint32_t choose_bits(uint32_t a, uint32_t b, uint32_t mask)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(d) : "r"(a), "r"(b), "r"(mask));
    return d;
}

#else

static inline uint32_t choose_bits(uint32_t a, uint32_t b, uint32_t mask)
{
    return (a & mask) | (b & ~mask);
}
static inline uint32_t multiply_add(uint32_t a, uint32_t b, uint32_t c)
{
    return a * b + c;
}
static inline uint32_t times_low(uint32_t a, uint32_t b)
{
    return bf16_pair_times(a, (b & 0xffffu) | b << 16);
}
static inline uint32_t times_high(uint32_t a, uint32_t b)
{
    return bf16_pair_times(a, b >> 16 | (b & 0xffff0000u));
}

#endif

/* Where a lane's two scales are in a unit. */
__device__ __forceinline__ const uint8_t *scales_at(const uint8_t *unit, int lane)
{
    return unit + CUDA_UNIT_CODES + 2 * lane;
}

/* They as the bf16 numbers scale * 2^107. */
__device__ __forceinline__ uint32_t scale_pair(uint32_t scales, uint32_t sixteen)
{
    return multiply_add(__byte_perm(scales, 0, 0x4140u), sixteen, 0x70007000u);
}

/* The A operand of 16 rows x 16 k of instruction f from a lane's words: see cuda_layout.h. */
__device__ __forceinline__ void expand(uint32_t (&a)[4], const uint32_t (&word)[4], int f, uint32_t scale,
                                       uint32_t sixteen)
{
    const uint32_t all = 0x81c081c0u, w = word[f];
    const uint32_t last = choose_bits(word[f & 2], multiply_add(word[f | 1], sixteen / 4, 0), 0x06030603u);
    a[0] = times_low(w & all, scale);
    a[1] = times_high(multiply_add(w, sixteen, 0) & all, scale);
    a[2] = times_low(__funnelshift_l(w, w, 10) & all, scale);
    a[3] = times_high((f % 2 ? __funnelshift_l(last, last, 28) : multiply_add(last, 4 * sixteen, 0)) & all,
                      scale);
}

__device__ __forceinline__ void expand_unit(uint32_t (&a)[4][4], uint4 code, uint32_t scales,
                                            uint32_t sixteen)
{
    const uint32_t word[4] = {code.x, code.y, code.z, code.w}, scale = scale_pair(scales, sixteen);
#pragma unroll
    for (int f = 0; f < 4; f++)
        expand(a[f], word, f, scale, sixteen);
}

/* c += unit * x. x: this lane's 32 bytes of each row of the 64 k; rows of 8 more are x_step apart. */
template <int NT>
__device__ __forceinline__ void multiply_unit(float (&c)[NT][4], const uint8_t *unit, const uint8_t *x,
                                              uint32_t x_step, int lane)
{
    const uint4 code = *(const uint4 *)(unit + 16 * lane);
    uint32_t a[4][4];
    expand_unit(a, code, *(const uint16_t *)scales_at(unit, lane), 16 * gridDim.y); /* grids here are lines */
#pragma unroll
    for (int t = 0; t < NT; t++) {
        const uint4 b = *(const uint4 *)(x + t * x_step), d = *(const uint4 *)(x + t * x_step + 16);
        mma_bf16(c[t], a[0], b.x, b.y);
        mma_bf16(c[t], a[1], b.z, b.w);
        mma_bf16(c[t], a[2], d.x, d.y);
        mma_bf16(c[t], a[3], d.z, d.w);
    }
}

__device__ __forceinline__ float swiglu(float gate, float up)
{
    return gate / (1.0f + __expf(-gate)) * up;
}
