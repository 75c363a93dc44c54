/* The sum over GPUs of what each has for every row, and what follows it: residual addition and RMSNorm, in
 * one pass. One-shot: everybody sends all its rows to everybody. Two-shot: row t is added up by rank t %
 * size, which sends the sum to everybody. Sums are in rank order and fp32 either way, so all ranks get the
 * same bits.
 *
 * A block works on rows t, t + gridDim.x, ... and sends all of them before it waits for any, and all blocks
 * run at once (peers_blocks), on every rank: so whatever is waited for is on its way. */
#include "kernels/cuda/plugin/library.h"
#include "kernels/cuda/plugin/norm.cuh"
#include "kernels/cuda/plugin/sent.h"

/* Of one launch: rows [first, first + n_row) of the operator. */
struct reduce_launch {
    const int32_t *count;
    int first, n_row;
};

/* This rank's part of elements i to i + 3 of row `from`. */
template <bool ALIGNED>
static __device__ __forceinline__ float4 own_part(const cuda_add_norm &a, size_t from, int i)
{
    const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const float4 first = a.delta[0] ? norm_four<ALIGNED>(a.delta[0] + from, i, a.n) : none;
    if (!a.delta[1])
        return peer_sendable(first);
    const float4 second = norm_four<ALIGNED>(a.delta[1] + from, i, a.n);
    return peer_sendable(a.delta[0] ? norm_add(second, first) : second);
}

/* Of what all ranks have sent to these places, `stride` fours apart. *complete is false from now on where one
 * does not come any more. */
static __device__ __forceinline__ float4 sum_of_all(const peer_memory &p, const float4 *at, size_t stride,
                                                    bool *complete)
{
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int r = 0; r < p.size; r += 4) {
        float4 part[4];
#pragma unroll
        for (int i = 0; i < 4; i++) /* all asked for before any is waited for */
            if (r + i < p.size)
                part[i] = gpu_load_system(at + (size_t)(r + i) * stride);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (r + i >= p.size)
                continue;
            if (peer_is_empty(part[i])) {
                part[i] = peer_await(at + (size_t)(r + i) * stride, p, r + i);
                *complete = *complete && !peer_is_empty(part[i]);
            }
            sum = r + i == 0 ? part[i] : norm_add(sum, part[i]);
        }
    }
    return sum;
}

static __device__ __forceinline__ void send_to_all(const peer_memory &p, uint32_t turn, bool whole, size_t at,
                                                   float4 v)
{
    for (int i = 1; i <= p.size; i++) { /* each begins with another */
        const int r = (p.rank + i) % p.size;
        float4 *buffer = peer_buffer(p, r, turn);
        gpu_store_system((whole ? peer_whole(p, buffer) : peer_slot(p, buffer, p.rank)) + at, v);
    }
}

/* The block's rows on their way. */
template <bool ALIGNED, bool TWO_SHOT>
static __device__ __forceinline__ void send_rows(const cuda_add_norm &a, const peer_memory &p, uint32_t turn,
                                                 int first, int rows)
{
    const int width = (a.n + 3) / 4;
    for (int t = blockIdx.x; t < rows; t += gridDim.x) {
        const size_t from = (size_t)(a.row ? a.row[first + t] : first + t) * a.n;
        for (int i = threadIdx.x; i < width; i += blockDim.x) {
            const float4 v = own_part<ALIGNED>(a, from, 4 * i);
            if (!TWO_SHOT) {
                send_to_all(p, turn, false, (size_t)t * width + i, v);
                continue;
            }
            float4 *to = peer_slot(p, peer_buffer(p, t % p.size, turn), p.rank);
            gpu_store_system(to + (size_t)(t / p.size) * width + i, v);
        }
    }
}

/* Two-shot: sums of the rows that are this rank's, to everybody. */
static __device__ __forceinline__ void send_sums(const peer_memory &p, uint32_t turn, int n, int rows)
{
    const int width = (n + 3) / 4;
    const float4 *own = peer_slot(p, peer_buffer(p, p.rank, turn), 0);
    for (int j = blockIdx.x; j * p.size + p.rank < rows; j += gridDim.x)
        for (int i = threadIdx.x; i < width; i += blockDim.x) {
            bool complete = true;
            const float4 sum = sum_of_all(p, own + (size_t)j * width + i, p.slot, &complete);
            if (complete)
                send_to_all(p, turn, true, (size_t)(j * p.size + p.rank) * width + i, peer_sendable(sum));
        }
}

template <bool ALIGNED, bool TWO_SHOT>
static __global__ void __launch_bounds__(1024)
    all_reduce_kernel(const __grid_constant__ cuda_all_reduce op, const __grid_constant__ peer_memory p,
                      const reduce_launch launch)
{
    DYNAMIC_SHARED(memory);
    SHARED(float[32], room);
    const cuda_add_norm &a = op.norm;
    const int n = a.n, mine = 4 * threadIdx.x, width = (n + 3) / 4;
    const float4 first_weight =
        !op.sum && mine < n ? norm_four<ALIGNED>(a.weight, mine, n) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    gpu_wait_before();
    gpu_let_next();
    const int rows = launch.count ? min(*launch.count - launch.first, launch.n_row) : launch.n_row;
    if (rows <= 0) /* on all ranks */
        return;
    const peer_now now = peer_begin(p);
    const uint32_t turn = now.turn;
    if (turn == PEER_BUFFERS)
        return;
    send_rows<ALIGNED, TWO_SHOT>(a, p, turn, launch.first, rows);
    peer_clear(p, turn);
    if (TWO_SHOT)
        send_sums(p, turn, n, rows);
    float4 *buffer = peer_buffer(p, p.rank, turn);
    const float4 *sent = TWO_SHOT ? peer_whole(p, buffer) : peer_slot(p, buffer, 0);
    float *row = (float *)memory;
    for (int t = blockIdx.x; t < rows; t += gridDim.x) {
        const size_t to = (size_t)(launch.first + t) * n;
        const size_t from = a.row ? (size_t)a.row[launch.first + t] * n : to;
        float square = 0.0f;
        bool complete = true; /* or the step is lost */
        for (int i = mine; i < n; i += 4 * blockDim.x) {
            const float4 *at = sent + (size_t)t * width + i / 4;
            const float4 sum = TWO_SHOT ? peer_take(at, p, t % p.size) : sum_of_all(p, at, p.slot, &complete);
            if (op.sum) {
                norm_put<ALIGNED>(op.sum + to, i, n, sum);
                continue;
            }
            const float4 v = norm_add(norm_four<ALIGNED>(a.residual + from, i, n), sum);
            if (!a.row)
                norm_put<ALIGNED>(a.residual + from, i, n, v);
            square = norm_keep(row, i, v, square);
        }
        if (!op.sum)
            norm_end<ALIGNED>(a, row, square, room, to, first_weight);
        __syncthreads(); /* room is written again */
    }
    peer_end(p, now, (uint32_t)((TWO_SHOT ? (rows + p.size - 1) / p.size : rows) * width),
             TWO_SHOT ? (uint32_t)(rows * width) : 0u);
}

template <bool ALIGNED, bool TWO_SHOT>
static const char *launch(const struct cuda_op *op, const struct op_place *at, int first, int n_row)
{
    const struct cuda_all_reduce *a = &op->as.all_reduce;
    const size_t bytes = a->sum ? 16 : norm_shared_bytes(a->norm.n);
    const int blocks = min(n_row, peers_blocks(at));
    const reduce_launch rows = {op->count, first, n_row};
    const char *why = gpu_why(gpu_allow_shared(all_reduce_kernel<ALIGNED, TWO_SHOT>, bytes));
    return why ? why
               : gpu_why(gpu_launch_resident(all_reduce_kernel<ALIGNED, TWO_SHOT>, blocks,
                                             norm_threads(a->norm.n), bytes, at->stream, *a,
                                             at->peers->memory, rows));
}

/* As many rows at a time as fit the buffers. */
template <bool ALIGNED>
static const char *launch_all(const struct cuda_op *op, const struct op_place *at, bool two_shot)
{
    const struct peer_memory *p = &at->peers->memory;
    const int in_slot = (int)(p->slot / (uint32_t)((op->as.all_reduce.norm.n + 3) / 4));
    const int step = two_shot ? in_slot * p->size : in_slot;
    const char *why = nullptr;
    for (int first = 0; first < op->n_row && !why; first += step) {
        const int n_row = min(step, op->n_row - first);
        why = two_shot ? launch<ALIGNED, true>(op, at, first, n_row)
                       : launch<ALIGNED, false>(op, at, first, n_row);
    }
    return why;
}

const char *all_reduce_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_all_reduce *a = &op->as.all_reduce;
    const int n = a->norm.n;
    const char *why = peers_check(at);
    if (why)
        return why;
    if (a->way == CUDA_REDUCE_LIBRARY)
        return library_start(op, at);
    if (a->way == CUDA_REDUCE_SENT)
        return sent_add_start(op, at);
    if (n < 1 || n > NORM_N_MAX || (n + 3) / 4 > (int)at->peers->memory.slot)
        return "all-reduce: rows of 1 to 32768, which a peer's buffer holds";
    const bool two_shot = a->way == CUDA_REDUCE_TWO_SHOT ||
                          (a->way == CUDA_REDUCE_AUTO &&
                           (size_t)op->n_row * (size_t)n * sizeof(float) >= at->peers->two_shot_bytes);
    return n % 4 ? launch_all<false>(op, at, two_shot) : launch_all<true>(op, at, two_shot);
}

cudaError_t all_reduce_load(void)
{
    cudaError_t e = gpu_load_kernel(all_reduce_kernel<false, false>);
    if (e == cudaSuccess)
        e = gpu_load_kernel(all_reduce_kernel<false, true>);
    if (e == cudaSuccess)
        e = gpu_load_kernel(all_reduce_kernel<true, false>);
    return e == cudaSuccess ? gpu_load_kernel(all_reduce_kernel<true, true>) : e;
}
