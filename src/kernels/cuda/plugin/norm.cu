/* Residual addition and RMSNorm: a block a row. */
#include "kernels/cuda/plugin/norm.cuh"

#define EARLY_ROWS 64

/* All that an element needs is asked for before anything is written. */
template <bool ALIGNED>
static __global__ void __launch_bounds__(1024)
    add_norm_kernel(const cuda_add_norm a, const int32_t *count, int n_row)
{
    DYNAMIC_SHARED(memory);
    SHARED(float[32], room);
    const int t = blockIdx.x, n = a.n, mine = 4 * threadIdx.x;
    const float4 first_weight =
        mine < n ? norm_four<ALIGNED>(a.weight, mine, n) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const int n_real = OP_COUNT(count, n_row);
    if (!a.row && mine < n && threadIdx.x % 8 == 0)
        gpu_prefetch(a.residual + (size_t)t * n + mine);
    /* A product behind it, of up to so many rows, has its weights under way before they are there. A router,
     * which takes unrounded rows, does not gain by it, and experts behind it count on that: start_chosen in
     * work.cu. */
    if (n_row == 1 || (n_row <= EARLY_ROWS && !a.y_float))
        gpu_let_next();
    gpu_wait_before();
    gpu_let_next();
    if (t >= n_real)
        return;
    const size_t from = (size_t)(a.row ? a.row[t] : t) * n, to = (size_t)t * n;
    float *row = (float *)memory, sum = 0.0f;
    for (int i = mine; i < n; i += 4 * blockDim.x) {
        float4 v = norm_four<ALIGNED>(a.residual + from, i, n);
        if (a.delta[1]) {
            const float4 first = norm_four<ALIGNED>(a.delta[0] + from, i, n),
                         second = norm_four<ALIGNED>(a.delta[1] + from, i, n);
            v = norm_add(v, norm_add(second, first));
        } else if (a.delta[0]) {
            v = norm_add(v, norm_four<ALIGNED>(a.delta[0] + from, i, n));
        }
        if (!a.row && a.delta[0])
            norm_put<ALIGNED>(a.residual + from, i, n, v);
        sum = norm_keep(row, i, v, sum);
    }
    norm_end<ALIGNED>(a, row, sum, room, to, first_weight);
}

template <bool ALIGNED> static const char *start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_add_norm *a = &op->as.add_norm;
    const size_t bytes = norm_shared_bytes(a->n);
    const char *why = gpu_why(gpu_allow_shared(add_norm_kernel<ALIGNED>, bytes));
    return why ? why
               : gpu_why(gpu_launch(add_norm_kernel<ALIGNED>, op->n_row, norm_threads(a->n), bytes,
                                    at->stream, *a, op->count, op->n_row));
}

const char *add_norm_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_add_norm *a = &op->as.add_norm;
    if (a->n < 1 || a->n > NORM_N_MAX)
        return "norm: rows of 1 to 32768";
    if (add_norm_one_takes(op))
        return add_norm_one_start(op, at);
    return a->n % 4 ? start<false>(op, at) : start<true>(op, at);
}
