/* The parts of the rows of `single` that are not whole put together: a block for each row and head, whose
 * warps take a quarter of the parts each, in order of position; then the quarters, in that order. */
#include "kernels/cuda/plugin/attention.cuh"

#define WARPS 4

struct merge_params {
    struct cuda_attention a;
    struct attention_parts parts;
    int n_part, long_from;
};

/* Weights of the parts [begin, end) under `max`: their sum, and the sum of what they weigh, of four
 * dimensions. */
static __device__ __forceinline__ float add_parts(const merge_params &p, size_t from, int begin, int end,
                                                  int d, float max, float4 *acc)
{
    float sum = 0.0f;
#pragma unroll 4
    for (int i = begin; i < end; i++) {
        const float by = gpu_exp2(__ldcg(&p.parts.max[from + i]) - max);
        const float4 v = __ldcg((const float4 *)&p.parts.acc[(from + i) * p.a.kv.head_dim + d]);
        sum = fmaf(by, __ldcg(&p.parts.sum[from + i]), sum);
        acc->x = fmaf(by, v.x, acc->x);
        acc->y = fmaf(by, v.y, acc->y);
        acc->z = fmaf(by, v.z, acc->z);
        acc->w = fmaf(by, v.w, acc->w);
    }
    return sum;
}

/* grid: (query heads, rows). A lane has four dimensions: heads have 128 at most (attention_has_mma). */
static __global__ void __launch_bounds__(32 * WARPS) merge_kernel(const merge_params p)
{
    SHARED(float4[WARPS][32], room);
    SHARED(float[WARPS], sums);
    const struct cuda_attention &a = p.a;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, which = blockIdx.y, head = blockIdx.x;
    int row = 0, n = 0;
    if (which < min(*a.single_count, a.n_single)) {
        row = a.single[which].row;
        const int pos = a.pos[row];
        if (pos >= ATTENTION_WHOLE)
            n = min(pos / attention_part_keys(p.long_from, pos) + 1, p.n_part);
    }
    gpu_wait_few(a.n_single);
    if (n == 0)
        return;
    const size_t from = ((size_t)which * a.n_head + head) * p.n_part;
    const int hd = a.kv.head_dim, d = 4 * lane < hd ? 4 * lane : 0;
    float max = -INFINITY;
    for (int i = lane; i < n; i += 32)
        max = fmaxf(max, __ldcg(&p.parts.max[from + i]));
    max = warp_max(max);
    float4 acc = {};
    const float sum = add_parts(p, from, n * warp / WARPS, n * (warp + 1) / WARPS, d, max, &acc);
    room[warp][lane] = acc;
    if (lane == 0)
        sums[warp] = sum;
    __syncthreads();
    if (warp > 0 || 4 * lane >= hd)
        return;
    float all = 0.0f;
    acc = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        const float4 v = room[w][lane];
        all += sums[w];
        acc.x += v.x;
        acc.y += v.y;
        acc.z += v.z;
        acc.w += v.w;
    }
    const float by = (a.kv.type == CUDA_KV_FP8 ? a.kv.scale[1] : 1.0f) / all;
    *(uint2 *)&a.y[((size_t)row * a.n_head + head) * hd + d] =
        make_uint2(float_bf16_pair(acc.x * by, acc.y * by), float_bf16_pair(acc.z * by, acc.w * by));
}

const char *attention_merge_start(const struct cuda_attention *a, const struct attention_parts *parts,
                                  cudaStream_t stream)
{
    const merge_params p = {*a, *parts, attention_part_count(a), attention_long_from(a)};
    const dim3 grid((unsigned)a->n_head, (unsigned)a->n_single);
    return gpu_why(gpu_launch(merge_kernel, grid, 32 * WARPS, 0, stream, p));
}
