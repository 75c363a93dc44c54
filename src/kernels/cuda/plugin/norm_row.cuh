/* Residual addition and norm of one row by every block of a launch for itself: what it multiplies is in its
 * shared memory then. n is a multiple of 4. */
#pragma once

#include "kernels/cuda/plugin/norm.cuh"
#include "kernels/cuda/plugin/unit.cuh"

static __device__ __forceinline__ float4 row_y(const float *row, int i, float by, float4 w)
{
    const float4 v = *(const float4 *)(row + i);
    return make_float4(v.x * by * w.x, v.y * by * w.y, v.z * by * w.z, v.w * by * w.w);
}

/* Four elements of the new residual, on their way. */
struct row_parts {
    float4 old, first, second;
};

static __device__ __forceinline__ row_parts row_ask(const cuda_add_norm &a, int i)
{
    const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    return {__ldcg((const float4 *)(a.residual + i)),
            a.delta[0] ? __ldcg((const float4 *)(a.delta[0] + i)) : none,
            a.delta[1] ? __ldcg((const float4 *)(a.delta[1] + i)) : none};
}

static __device__ __forceinline__ float4 row_new(const cuda_add_norm &a, const row_parts &p)
{
    if (a.delta[1])
        return norm_add(p.old, norm_add(p.second, p.first));
    return a.delta[0] ? norm_add(p.old, p.first) : p.old;
}

/* The new residual to `row`; returns the factor of the norm: the bits of norm.cu, whose threads are twice as
 * many where rows are long. other: the sum over all elements of what add(four, what ask(i) asked for, sum so
 * far) makes of them. ROUNDS: of four elements that a thread has at most; 0: any number. All threads; `room`
 * is ROW_ROOM floats of shared memory. */
#define ROW_ROOM (3 * N_WARP)
template <int ROUNDS, typename Ask, typename Add>
static __device__ __forceinline__ float row_norm(const cuda_add_norm &a, float *row, float *room,
                                                 float *other, Ask ask, Add add)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float sum[2] = {0.0f, 0.0f}, more = 0.0f;
    const int rounds = ROUNDS == 1 ? 1 : 2; /* side by side */
#pragma unroll 1
    for (int base = 4 * threadIdx.x; base < a.n; base = ROUNDS ? a.n : base + 8 * N_THREAD) {
        row_parts part[2]; /* all of both is asked for before any is waited for */
        decltype(ask(0)) beside[2];
#pragma unroll
        for (int odd = 0; odd < rounds; odd++)
            if (base + odd * 4 * N_THREAD < a.n) {
                part[odd] = row_ask(a, base + odd * 4 * N_THREAD);
                beside[odd] = ask(base + odd * 4 * N_THREAD);
            }
#pragma unroll
        for (int odd = 0; odd < rounds; odd++)
            if (base + odd * 4 * N_THREAD < a.n) {
                const float4 v = row_new(a, part[odd]);
                sum[odd] = norm_keep(row, base + odd * 4 * N_THREAD, v, sum[odd]);
                more = add(v, beside[odd], more);
            }
    }
    const int n = ROUNDS != 1 && a.n > 4 * N_THREAD ? 2 * N_WARP : N_WARP;
#pragma unroll
    for (int d = 16; d > 0; d /= 2) { /* three of warp_sum, side by side */
        sum[0] += __shfl_xor_sync(ALL_LANES, sum[0], d);
        sum[1] += __shfl_xor_sync(ALL_LANES, sum[1], d);
        more += __shfl_xor_sync(ALL_LANES, more, d);
    }
    if (lane == 0) {
        room[warp] = sum[0];
        room[N_WARP + warp] = sum[1];
        room[2 * N_WARP + warp] = more;
    }
    __syncthreads();
    float all = 0.0f;
#pragma unroll 8
    for (int i = 0; i < n; i++)
        all += room[i];
    float rest[4] = {};
#pragma unroll
    for (int i = 0; i < N_WARP; i++)
        rest[i % 4] += room[2 * N_WARP + i];
    *other = (rest[0] + rest[1]) + (rest[2] + rest[3]);
    return 1.0f / sqrtf(all / (float)a.n + a.eps);
}

/* Its bf16 to xs. first_weight: this thread's first four. */
template <bool SHORT>
static __device__ __forceinline__ void row_stage(const cuda_add_norm &a, const float *row, float by,
                                                 float4 first_weight, uint8_t *xs)
{
    const int mine = 4 * threadIdx.x;
#pragma unroll 1
    for (int i = mine; i < a.n; i = SHORT ? a.n : i + 4 * N_THREAD) {
        const float4 y =
            row_y(row, i, by, SHORT || i == mine ? first_weight : norm_four<true>(a.weight, i, a.n));
        *(uint2 *)(xs + 2 * i) = make_uint2(float_bf16_pair(y.x, y.y), float_bf16_pair(y.z, y.w));
    }
}

/* By one block: what the operator leaves behind. All threads. */
static __device__ __forceinline__ void row_put(const cuda_add_norm &a, const float *row, float by)
{
#pragma unroll 1
    for (int i = 4 * threadIdx.x; i < a.n; i += 4 * N_THREAD) {
        const float4 y = row_y(row, i, by, norm_four<true>(a.weight, i, a.n));
        if (a.delta[0])
            *(float4 *)(a.residual + i) = *(const float4 *)(row + i);
        if (a.y_float)
            *(float4 *)(a.y_float + i) = y;
        if (a.y)
            *(uint2 *)(a.y + i) = make_uint2(float_bf16_pair(y.x, y.y), float_bf16_pair(y.z, y.w));
    }
}
