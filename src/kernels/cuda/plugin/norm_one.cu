/* Residual addition and RMSNorm of one row.
 *
 * By few threads with few registers, so that a block of the product behind it finds room on this SM and all
 * of its blocks have begun when the row is there. A thread does what ROUNDS of norm.cu's do, for the same
 * bits; all of its row is in its registers, and there is little code, which takes as long as anything else
 * here. */
#include "kernels/cuda/plugin/norm.cuh"

#define WARPS 8
#define STEP  (4 * 32 * WARPS) /* elements of a round */

template <int ROUNDS>
static __global__ void __launch_bounds__(32 * WARPS, 4)
    add_norm_one_kernel(const cuda_add_norm a, const int32_t *count)
{
    SHARED(float[ROUNDS * WARPS], room);
    gpu_let_next();
    const int n = a.n, warp = threadIdx.x / 32, mine = 4 * threadIdx.x;
    float4 weight[ROUNDS], v[ROUNDS];
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) /* what is beyond the row repeats its end, and counts for nothing */
        weight[r] = *(const float4 *)(a.weight + min(mine + r * STEP, n - 4));
    const bool real = OP_COUNT(count, 1) > 0;
    gpu_wait_before();
    if (!real)
        return;
#pragma unroll
    for (int r = 0; r < ROUNDS; r++)
        v[r] = __ldcg((const float4 *)(a.residual + min(mine + r * STEP, n - 4)));
    if (a.delta[0]) {
        float4 u[ROUNDS];
#pragma unroll
        for (int r = 0; r < ROUNDS; r++)
            u[r] = __ldcg((const float4 *)(a.delta[0] + min(mine + r * STEP, n - 4)));
        if (a.delta[1])
#pragma unroll
            for (int r = 0; r < ROUNDS; r++)
                u[r] = norm_add(__ldcg((const float4 *)(a.delta[1] + min(mine + r * STEP, n - 4))), u[r]);
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) {
            v[r] = norm_add(v[r], u[r]);
            if (mine + r * STEP < n)
                *(float4 *)(a.residual + mine + r * STEP) = v[r];
        }
    }
    float sum[ROUNDS], all = 0.0f;
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        const float one = fmaf(v[r].x, v[r].x, fmaf(v[r].y, v[r].y, fmaf(v[r].z, v[r].z, v[r].w * v[r].w)));
        sum[r] = mine + r * STEP < n ? one : 0.0f;
    }
#pragma unroll
    for (int r = 0; r < ROUNDS; r++)
        sum[r] = warp_sum(sum[r]);
    if (threadIdx.x % 32 == 0)
#pragma unroll
        for (int r = 0; r < ROUNDS; r++)
            room[warp + r * WARPS] = sum[r];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ROUNDS * WARPS; i++)
        all += room[i];
    const float by = 1.0f / sqrtf(all / (float)n + a.eps);
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        const int i = mine + r * STEP;
        const float4 y = make_float4(v[r].x * by * weight[r].x, v[r].y * by * weight[r].y,
                                     v[r].z * by * weight[r].z, v[r].w * by * weight[r].w);
        if (a.y && i < n)
            *(uint2 *)(a.y + i) = make_uint2(float_bf16_pair(y.x, y.y), float_bf16_pair(y.z, y.w));
        if (a.y_float && i < n)
            *(float4 *)(a.y_float + i) = y;
    }
}

template <int ROUNDS> static const char *start(const struct cuda_op *op, const struct op_place *at)
{
    return gpu_why(
        gpu_launch(add_norm_one_kernel<ROUNDS>, 1, 32 * WARPS, 0, at->stream, op->as.add_norm, op->count));
}

bool add_norm_one_takes(const struct cuda_op *op)
{
    const struct cuda_add_norm *a = &op->as.add_norm;
    return op->n_row == 1 && !a->row && a->n >= 4 && a->n % 4 == 0 && a->n <= 4 * STEP;
}

const char *add_norm_one_start(const struct cuda_op *op, const struct op_place *at)
{
    const int n = op->as.add_norm.n;
    return n <= STEP       ? start<1>(op, at)
           : n <= 2 * STEP ? start<2>(op, at)
           : n <= 3 * STEP ? start<3>(op, at)
                           : start<4>(op, at);
}
