/* The sum over GPUs of what each has for every row, and what follows it: residual addition and RMSNorm, in
 * one pass. One-shot: everybody sends all its rows to everybody else. Two-shot: row t is added up by rank t %
 * size, which sends the sum to everybody else. Sums are in rank order and fp32 either way, so all ranks get
 * the same bits. What a rank has itself it reads where it is.
 *
 * Units are dealt out to blocks in turn. A block sends all of its own before it waits for any, and all blocks
 * run at once (reduce_blocks), on every rank: so whatever is waited for is on its way. */
#include "kernels/cuda/plugin/library.h"
#include "kernels/cuda/plugin/norm.cuh"
#include "kernels/cuda/plugin/sent.h"

#define THREADS_AN_SM 1024
#define BLOCKS_AN_SM  4
#define AT_ONCE       2 /* parts that a thread asks for before it looks at any: all of two ranks */

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

/* Of this rank's part `own` and of what the others have sent to these places, `stride` fours apart, which are
 * emptied. *complete is false from now on where one does not come any more. */
static __device__ __forceinline__ float4 sum_of_all(const peer_memory &p, float4 own, float4 *at,
                                                    size_t stride, bool *complete)
{
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int r = 0; r < p.size; r += AT_ONCE) {
        float4 part[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) /* all asked for before any is waited for */
            if (r + i < p.size && r + i != p.rank)
                part[i] = gpu_load_system(at + (size_t)(r + i) * stride);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (r + i >= p.size)
                continue;
            if (r + i == p.rank) {
                part[i] = own;
            } else {
                if (peer_is_empty(part[i])) {
                    part[i] = peer_await(at + (size_t)(r + i) * stride, p, r + i);
                    *complete = *complete && !peer_is_empty(part[i]);
                }
                peer_empty(at + (size_t)(r + i) * stride);
            }
            sum = r + i == 0 ? part[i] : norm_add(sum, part[i]);
        }
    }
    return sum;
}

static __device__ __forceinline__ void send_to_others(const peer_memory &p, uint32_t turn, bool whole,
                                                      size_t at, float4 v)
{
#pragma unroll 1
    for (int i = 1; i < p.size; i++) { /* each begins with another */
        const int r = p.rank + i < p.size ? p.rank + i : p.rank + i - p.size;
        float4 *buffer = peer_buffer(p, r, turn);
        gpu_store_system((whole ? peer_whole(p, buffer) : peer_slot(p, buffer, p.rank)) + at, v);
    }
}

/* Two-shot: rows that others add up are dealt out from the last block on, so that of few rows each block has
 * one. Row u of them, and who adds it up; from the number of rows on there is none. */
static __device__ __forceinline__ int others_row(const peer_memory &p, int u, int *owner)
{
    const int round = u / (p.size - 1), next = p.rank + 1 + u - round * (p.size - 1);
    *owner = next < p.size ? next : next - p.size;
    return round * p.size + *owner;
}

/* What the kernel knows of its launch. */
struct reducing {
    const cuda_all_reduce &op;
    const peer_memory &p;
    uint32_t turn;
    int first, rows;
    float4 first_weight;
    float *row, *room;
};

/* Where row t's deltas begin. */
static __device__ __forceinline__ size_t delta_at(const reducing &k, int t)
{
    const cuda_add_norm &a = k.op.norm;
    return (size_t)(a.row ? a.row[k.first + t] : k.first + t) * a.n;
}

/* The block's rows on their way. */
template <bool ALIGNED, bool TWO_SHOT> static __device__ __forceinline__ void send_rows(const reducing &k)
{
    const cuda_add_norm &a = k.op.norm;
    const int width = (a.n + 3) / 4;
    const bool failed = peer_has_failed(k.p);
    if (k.p.size == 1)
        return;
    for (int u = TWO_SHOT ? gridDim.x - 1 - blockIdx.x : blockIdx.x;; u += gridDim.x) {
        int owner = 0;
        const int t = TWO_SHOT ? others_row(k.p, u, &owner) : u;
        if (TWO_SHOT ? u / (k.p.size - 1) * k.p.size >= k.rows : t >= k.rows)
            return;
        if (t >= k.rows) /* others of this round may have rows */
            continue;
        const size_t from = delta_at(k, t);
        for (int i = threadIdx.x; i < width; i += blockDim.x) {
            const float4 v = own_part<ALIGNED>(a, from, 4 * i);
            if (failed)
                continue;
            if (TWO_SHOT)
                gpu_store_system(peer_slot(k.p, peer_buffer(k.p, owner, k.turn), k.p.rank) +
                                     (size_t)(t / k.p.size) * width + i,
                                 v);
            else
                send_to_others(k.p, k.turn, false, (size_t)t * width + i, v);
        }
    }
}

/* What follows the sum of row t, of which sum_at(i) are the fours. All threads. */
template <bool ALIGNED, typename Sum>
static __device__ __forceinline__ void put_row(const reducing &k, int t, Sum sum_at)
{
    const cuda_add_norm &a = k.op.norm;
    const int n = a.n;
    const size_t to = (size_t)(k.first + t) * n, from = delta_at(k, t);
    float square = 0.0f;
    for (int i = 4 * threadIdx.x; i < n; i += 4 * blockDim.x) {
        if (k.op.sum) {
            norm_put<ALIGNED>(k.op.sum + to, i, n, sum_at(i / 4));
            continue;
        }
        const float4 before = norm_four<ALIGNED>(a.residual + from, i, n),
                     v = norm_add(before, sum_at(i / 4));
        if (!a.row)
            norm_put<ALIGNED>(a.residual + from, i, n, v);
        square = norm_keep(k.row, i, v, square);
    }
    if (!k.op.sum)
        norm_end<ALIGNED>(a, k.row, square, k.room, to, k.first_weight);
    __syncthreads(); /* room is written again */
}

template <bool ALIGNED> static __device__ __forceinline__ void one_shot(const reducing &k)
{
    const int width = (k.op.norm.n + 3) / 4;
    float4 *sent = peer_slot(k.p, peer_buffer(k.p, k.p.rank, k.turn), 0);
    for (int t = blockIdx.x; t < k.rows; t += gridDim.x) {
        bool complete = true; /* or the step is lost */
        put_row<ALIGNED>(k, t, [&](int i) {
            const float4 own = own_part<ALIGNED>(k.op.norm, delta_at(k, t), 4 * i);
            return sum_of_all(k.p, own, sent + (size_t)t * width + i, k.p.slot, &complete);
        });
    }
}

template <bool ALIGNED> static __device__ __forceinline__ void two_shot(const reducing &k)
{
    const peer_memory &p = k.p;
    const int width = (k.op.norm.n + 3) / 4;
    float4 *buffer = peer_buffer(p, p.rank, k.turn), *sent = peer_slot(p, buffer, 0),
           *whole = peer_whole(p, buffer);
    for (int j = blockIdx.x; j * p.size + p.rank < k.rows; j += gridDim.x) {
        const int t = j * p.size + p.rank;
        put_row<ALIGNED>(k, t, [&](int i) {
            bool complete = true;
            const float4 own = own_part<ALIGNED>(k.op.norm, delta_at(k, t), 4 * i);
            const float4 sum =
                peer_sendable(sum_of_all(p, own, sent + (size_t)j * width + i, p.slot, &complete));
            if (complete)
                send_to_others(p, k.turn, true, (size_t)t * width + i, sum);
            return sum;
        });
    }
    for (int u = gridDim.x - 1 - blockIdx.x; p.size > 1 && u / (p.size - 1) * p.size < k.rows;
         u += gridDim.x) {
        int owner;
        const int t = others_row(p, u, &owner);
        if (t < k.rows)
            put_row<ALIGNED>(k, t, [&](int i) {
                float4 *at = whole + (size_t)t * width + i;
                const float4 sum = peer_take(at, p, owner);
                peer_empty(at);
                return sum;
            });
    }
}

template <bool ALIGNED, bool TWO_SHOT>
static __global__ void __launch_bounds__(1024, 1)
    all_reduce_kernel(const __grid_constant__ cuda_all_reduce op, const __grid_constant__ peer_memory p,
                      const reduce_launch launch)
{
    DYNAMIC_SHARED(memory);
    SHARED(float[32], room);
    const cuda_add_norm &a = op.norm;
    const int mine = 4 * threadIdx.x;
    const float4 first_weight =
        !op.sum && mine < a.n ? norm_four<ALIGNED>(a.weight, mine, a.n) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    peer_now now = peer_look(p);
    gpu_wait_before();
    const int rows = launch.count ? min(*launch.count - launch.first, launch.n_row) : launch.n_row;
    if (rows <= 0) /* on all ranks */
        return;
    peer_settle(p, &now);
    if (threadIdx.x == 0)
        peer_begin(p, &now);
    const reducing k = {op, p, now.turn, launch.first, rows, first_weight, (float *)memory, room};
    send_rows<ALIGNED, TWO_SHOT>(k);
    if (threadIdx.x == 0)
        peer_pass(p, now, 0u, 0u);
    peer_clear(p, now.turn, blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x);
    TWO_SHOT ? two_shot<ALIGNED>(k) : one_shot<ALIGNED>(k);
}

/* Where nothing else on the GPU waits for anything, short rows have several blocks an SM, so that as many
 * bytes are under way as of long ones. They are resident together: 64 registers a thread. */
static int reduce_blocks(const struct op_place *at, int threads)
{
    return at->alone ? at->limits->n_sm * min(BLOCKS_AN_SM, THREADS_AN_SM / threads) : peers_blocks(at);
}

template <bool ALIGNED, bool TWO_SHOT>
static const char *launch(const struct cuda_op *op, const struct op_place *at, int first, int n_row)
{
    const struct cuda_all_reduce *a = &op->as.all_reduce;
    const size_t bytes = a->sum ? 16 : norm_shared_bytes(a->norm.n);
    const int threads = norm_threads(a->norm.n), blocks = min(n_row, reduce_blocks(at, threads));
    const reduce_launch rows = {op->count, first, n_row};
    const char *why = gpu_why(gpu_allow_shared(all_reduce_kernel<ALIGNED, TWO_SHOT>, bytes));
    return why ? why
               : gpu_why(gpu_launch_resident(all_reduce_kernel<ALIGNED, TWO_SHOT>, blocks, threads, bytes,
                                             at->stream, *a, at->peers->memory, rows));
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
