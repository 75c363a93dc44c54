/* Products of all ranks' experts back to the ranks that the rows are of, where they are added up in the order
 * of choice: the sum that one GPU with all experts would come to, bit for bit. A product lies in its row's
 * home's buffer at the place of its row and choice, which only one rank writes to; products of the home's own
 * experts are read where they are. Everybody tells everybody that it is here, too (peers.h). */
#include "kernels/cuda/plugin/spread.cuh"

#define TOGETHER 8 /* products of one row under way at once */

/* Fours f of what this rank's experts have made of row i of rank `to`. */
static __device__ __forceinline__ void send_products(const cuda_combine &a, const peer_memory &p,
                                                     uint32_t turn, const spread_launch &l, int to, int width,
                                                     int i, int f)
{
    const size_t slot = (size_t)spread_place(a.rows, l, to, i) * a.n_used;
    const float4 *from = (const float4 *)a.each + slot * width + f;
    float4 *at = peer_whole(p, peer_buffer(p, to, turn)) + (size_t)i * a.n_used * width + f;
    for (int first = 0; first < a.n_used; first += TOGETHER) {
        bool here[TOGETHER];
        float4 v[TOGETHER];
#pragma unroll
        for (int k = 0; k < TOGETHER; k++)
            here[k] = first + k < a.n_used && a.local[slot + first + k] >= 0;
#pragma unroll
        for (int k = 0; k < TOGETHER; k++)
            if (here[k])
                v[k] = from[(size_t)(first + k) * width];
#pragma unroll
        for (int k = 0; k < TOGETHER; k++)
            if (here[k])
                gpu_store_system(at + (size_t)(first + k) * width, peer_sendable(v[k]));
    }
}

static __device__ __forceinline__ void add_product(float (&sum)[4], float weight, float4 v)
{
    sum[0] = fmaf(weight, v.x, sum[0]);
    sum[1] = fmaf(weight, v.y, sum[1]);
    sum[2] = fmaf(weight, v.z, sum[2]);
    sum[3] = fmaf(weight, v.w, sum[3]);
}
static __device__ __forceinline__ void add_product(float (&sum)[8], float weight, float4 v)
{
    const uint32_t pair[4] = {__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z),
                              __float_as_uint(v.w)};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sum[2 * i] = fmaf(weight, bf16_low(pair[i]), sum[2 * i]);
        sum[2 * i + 1] = fmaf(weight, bf16_high(pair[i]), sum[2 * i + 1]);
    }
}

/* Numbers of four f of row i of this rank. */
template <int N>
static __device__ __forceinline__ void add_row(const cuda_combine &a, const peer_memory &p, float4 *sent,
                                               const spread_launch &l, int i, int f)
{
    const int width = a.n / N;
    const size_t own = (size_t)(l.first + i);
    const int32_t *expert = a.expert + own * a.n_used;
    const float4 *here =
        (const float4 *)a.each + (size_t)spread_place(a.rows, l, p.rank, i) * a.n_used * width + f;
    sent += (size_t)i * a.n_used * width + f;
    float sum[N] = {};
    for (int first = 0; first < a.n_used; first += TOGETHER) {
        float4 v[TOGETHER];
        int from[TOGETHER];
#pragma unroll
        for (int k = 0; k < TOGETHER; k++)
            from[k] = first + k < a.n_used ? expert[first + k] : -1;
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
            from[k] = spread_owner(a.first, p.size, from[k]);
            if (from[k] == p.rank)
                v[k] = here[(size_t)(first + k) * width];
            else if (from[k] >= 0)
                v[k] = gpu_load_system(sent + (size_t)(first + k) * width);
        }
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
            if (from[k] < 0)
                continue;
            if (from[k] != p.rank) {
                float4 *at = sent + (size_t)(first + k) * width;
                if (peer_is_empty(v[k]))
                    v[k] = peer_await(at, p, from[k]);
                spread_empty(at);
            }
            add_product(sum, a.weight[own * a.n_used + first + k], v[k]);
        }
    }
    float4 *to = (float4 *)(a.out + own * a.n + (size_t)f * N);
#pragma unroll
    for (int k = 0; k < N / 4; k++)
        to[k] = make_float4(sum[4 * k], sum[4 * k + 1], sum[4 * k + 2], sum[4 * k + 3]);
}

/* N: numbers in a four. */
template <int N>
static __global__ void __launch_bounds__(SPREAD_THREADS, 1)
    combine_kernel(const __grid_constant__ cuda_combine a, const __grid_constant__ peer_memory p,
                   const spread_launch l)
{
    gpu_wait_before();
    gpu_let_next();
    const int thread = blockIdx.x * blockDim.x + threadIdx.x, width = a.n / N;
    const spread_role role = spread_role_of();
    const uint32_t turn = gpu_load_system(&p.state->turn);
    if (turn == PEER_BUFFERS || spread_is_empty(a.rows, l, p.size))
        return;
    float4 *buffer = peer_buffer(p, p.rank, turn);
    if (thread < p.size)
        gpu_store_system(peer_slot(p, peer_buffer(p, thread, turn), p.rank),
                         make_float4(1.0f, 1.0f, 1.0f, 1.0f));
    for (int d = 1; d < p.size && role.sends; d++) { /* each begins with another */
        const int to = (p.rank + d) % p.size, n = spread_rows(a.rows, l, to) * width;
        for (int u = role.thread; u < n; u += role.n_thread)
            send_products(a, p, turn, l, to, width, u / width, u % width);
    }
    const int n_own = spread_rows(a.rows, l, p.rank) * width;
    for (int u = role.thread; u < n_own && !role.sends; u += role.n_thread)
        add_row<N>(a, p, peer_whole(p, buffer), l, u / width, u % width);
    peer_clear(p, turn);
    if (thread < p.size)
        peer_take(peer_slot(p, buffer, thread), p, thread);
    peer_end(p, turn, 1u, 0u);
}

template <int N> static const char *launch_all(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_combine *a = &op->as.combine;
    const struct peer_memory *p = &at->peers->memory;
    const size_t row = (size_t)a->n_used * (size_t)(a->n / N);
    const size_t fit = (size_t)p->size * p->slot / row;
    const int in_whole = (int)(fit < (size_t)op->n_row ? fit : (size_t)op->n_row);
    const char *why = nullptr;
    if (in_whole == 0)
        return "combine: the products of a row do not fit a peer's buffer";
    for (int first = 0; first < op->n_row && !why; first += in_whole) {
        const spread_launch l = {first, min(in_whole, op->n_row - first)};
        const size_t threads = (size_t)l.n_row * (size_t)(a->n / N);
        why = gpu_why(gpu_launch_resident(combine_kernel<N>, spread_blocks(threads, at), SPREAD_THREADS, 0,
                                          at->stream, *a, *p, l));
    }
    return why;
}

const char *combine_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_combine *a = &op->as.combine;
    const char *why = peers_check(at);
    if (!why)
        why = spread_check(op, &a->rows, a->first, at->peers->memory.size);
    if (why)
        return why;
    if (a->n < 8 || a->n % 8 || a->n > (1 << 20) || a->n_used < 1 || a->n_used > 1024)
        return "combine: rows of a multiple of 8, and 1 to 1024 experts for each";
    return a->is_bf16 ? launch_all<8>(op, at) : launch_all<4>(op, at);
}

cudaError_t combine_load(void)
{
    const cudaError_t e = gpu_load_kernel(combine_kernel<4>);
    return e == cudaSuccess ? gpu_load_kernel(combine_kernel<8>) : e;
}
