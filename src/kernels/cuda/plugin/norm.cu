/* Residual addition and RMSNorm: a block a row. */
#include "kernels/cuda/plugin/operators.h"
#include "kernels/cuda/plugin/gpu.h"

#define N_MAX 32768 /* a row lies in shared memory */

/* The threads depend on n alone, and so does the order of the sum. */
static int threads_of(int n)
{
    const int quarters = (n + 3) / 4, threads = (quarters + 31) / 32 * 32;
    return threads < 1024 ? threads : 1024;
}

/* Elements i to i + 3 of a row of n; beyond its end zeros. ALIGNED: n is a multiple of 4. */
template <bool ALIGNED> static __device__ __forceinline__ float4 four(const float *row, int i, int n)
{
    if (ALIGNED)
        return *(const float4 *)(row + i);
    return make_float4(row[i], i + 1 < n ? row[i + 1] : 0.0f, i + 2 < n ? row[i + 2] : 0.0f,
                       i + 3 < n ? row[i + 3] : 0.0f);
}

static __device__ __forceinline__ float4 add(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

template <bool ALIGNED> static __device__ __forceinline__ void put(float *row, int i, int n, float4 v)
{
    if (ALIGNED) {
        *(float4 *)(row + i) = v;
        return;
    }
    const float part[4] = {v.x, v.y, v.z, v.w};
    for (int j = 0; j < 4 && i + j < n; j++)
        row[i + j] = part[j];
}

/* All that an element needs is asked for before anything is written. */
template <bool ALIGNED>
static __global__ void __launch_bounds__(1024)
    add_norm_kernel(const cuda_add_norm a, const int32_t *count, int n_row)
{
    DYNAMIC_SHARED(memory);
    SHARED(float[32], room);
    const int t = blockIdx.x, n = a.n, mine = 4 * threadIdx.x;
    const float4 first_weight =
        mine < n ? four<ALIGNED>(a.weight, mine, n) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    gpu_wait_before();
    gpu_let_next();
    if (t >= OP_COUNT(count, n_row))
        return;
    const size_t from = (size_t)(a.row ? a.row[t] : t) * n, to = (size_t)t * n;
    float *row = (float *)memory, sum = 0.0f;
    for (int i = mine; i < n; i += 4 * blockDim.x) {
        float4 v = four<ALIGNED>(a.residual + from, i, n);
        if (a.delta[1]) {
            const float4 first = four<ALIGNED>(a.delta[0] + from, i, n),
                         second = four<ALIGNED>(a.delta[1] + from, i, n);
            v = add(v, add(second, first));
        } else if (a.delta[0]) {
            v = add(v, four<ALIGNED>(a.delta[0] + from, i, n));
        }
        if (!a.row && a.delta[0])
            put<ALIGNED>(a.residual + from, i, n, v);
        *(float4 *)(row + i) = v; /* there is room for whole fours */
        sum = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, sum))));
    }
    sum = block_sum(sum, room);
    const float by = 1.0f / sqrtf(sum / (float)n + a.eps);
    for (int i = mine; i < n; i += 4 * blockDim.x) {
        const float4 v = *(const float4 *)(row + i),
                     w = i == mine ? first_weight : four<ALIGNED>(a.weight, i, n);
        const float4 y = make_float4(v.x * by * w.x, v.y * by * w.y, v.z * by * w.z, v.w * by * w.w);
        if (a.y_float)
            put<ALIGNED>(a.y_float + to, i, n, y);
        if (a.y && ALIGNED) {
            *(uint2 *)(a.y + to + i) = make_uint2(float_bf16_pair(y.x, y.y), float_bf16_pair(y.z, y.w));
        } else if (a.y) {
            const float part[4] = {y.x, y.y, y.z, y.w};
            for (int j = 0; j < 4 && i + j < n; j++)
                a.y[to + i + j] = float_bf16(part[j]);
        }
    }
}

template <bool ALIGNED> static const char *start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_add_norm *a = &op->as.add_norm;
    const size_t bytes = (size_t)(a->n + 3) / 4 * 4 * sizeof(float);
    const char *why = gpu_why(gpu_allow_shared(add_norm_kernel<ALIGNED>, bytes));
    return why ? why
               : gpu_why(gpu_launch(add_norm_kernel<ALIGNED>, op->n_row, threads_of(a->n), bytes, at->stream,
                                    *a, op->count, op->n_row));
}

const char *add_norm_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_add_norm *a = &op->as.add_norm;
    if (a->n < 1 || a->n > N_MAX)
        return "norm: rows of 1 to 32768";
    return a->n % 4 ? start<false>(op, at) : start<true>(op, at);
}
