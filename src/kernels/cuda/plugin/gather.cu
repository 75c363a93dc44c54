/* Columns of all ranks to rank 0, which alone needs them. A rank that only sends must still not run ahead of
 * the others (peers.h), so everybody sends everybody a sign of being here, too, and waits for all of them. */
#include <algorithm>

#include "kernels/cuda/plugin/peers.h"

#define GATHER_THREADS 512

struct gather_launch {
    const int32_t *count;
    int first, n_row;
};

/* Elements 4 i to 4 i + 3 of rows * columns, which lie one after the other; behind their end zeros. */
static __device__ __forceinline__ float4 read_four(const float *x, size_t i, size_t n)
{
    float v[4];
    if (4 * i + 4 <= n && (uintptr_t)(x + 4 * i) % 16 == 0)
        return *(const float4 *)(x + 4 * i);
    for (int j = 0; j < 4; j++)
        v[j] = 4 * i + j < n ? x[4 * i + j] : 0.0f;
    return make_float4(v[0], v[1], v[2], v[3]);
}

/* They are those of rank r. */
static __device__ __forceinline__ void place_four(const cuda_gather &a, const gather_launch &l, int size,
                                                  int r, size_t i, size_t n, float4 four)
{
    const size_t columns = (size_t)(a.first[r + 1] - a.first[r]), n_whole = (size_t)a.first[size];
    const float v[4] = {four.x, four.y, four.z, four.w};
    size_t row = 4 * i / columns, column = 4 * i % columns;
    float *at = a.out + ((size_t)l.first + row) * n_whole + (size_t)a.first[r] + column;
    if (column + 4 <= columns && (uintptr_t)at % 16 == 0) {
        *(float4 *)at = four;
        return;
    }
    for (size_t j = 0; j < 4 && 4 * i + j < n; j++) {
        a.out[((size_t)l.first + row) * n_whole + (size_t)a.first[r] + column] = v[j];
        if (++column == columns) {
            column = 0;
            row++;
        }
    }
}

static __global__ void __launch_bounds__(GATHER_THREADS)
    gather_kernel(const __grid_constant__ cuda_gather a, const __grid_constant__ peer_memory p,
                  const gather_launch l)
{
    peer_now now = peer_look(p);
    gpu_wait_before();
    const int rows = l.count ? min(*l.count - l.first, l.n_row) : l.n_row;
    if (rows <= 0) /* on all ranks */
        return;
    peer_settle(p, &now);
    if (threadIdx.x == 0) {
        peer_begin(p, &now);
        peer_pass(p, now, 0u, (uint32_t)p.size);
    }
    const uint32_t turn = now.turn;
    if (peer_has_failed(p))
        return;
    const size_t own = (size_t)(a.first[p.rank + 1] - a.first[p.rank]), n_own = (size_t)rows * own;
    const size_t thread = (size_t)blockIdx.x * blockDim.x + threadIdx.x,
                 step = (size_t)gridDim.x * blockDim.x;
    const float *x = a.x + (size_t)l.first * own;
    float4 *to = peer_slot(p, peer_buffer(p, 0, turn), p.rank);
    for (size_t i = thread; i < (n_own + 3) / 4; i += step) {
        const float4 v = read_four(x, i, n_own);
        if (p.rank == 0)
            place_four(a, l, p.size, 0, i, n_own, v);
        else
            gpu_store_system(to + i, peer_sendable(v));
    }
    if (thread < (size_t)p.size)
        gpu_store_system(peer_whole(p, peer_buffer(p, (int)thread, turn)) + p.rank,
                         make_float4(1.0f, 1.0f, 1.0f, 1.0f));
    peer_clear(p, turn, (uint32_t)thread, (uint32_t)step);
    float4 *buffer = peer_buffer(p, p.rank, turn);
    for (int r = 1; r < p.size && p.rank == 0; r++) {
        const size_t n = (size_t)rows * (size_t)(a.first[r + 1] - a.first[r]);
        for (size_t i = thread; i < (n + 3) / 4; i += step) {
            float4 *at = peer_slot(p, buffer, r) + i;
            place_four(a, l, p.size, r, i, n, peer_take(at, p, r));
            peer_empty(at);
        }
    }
    if (thread < (size_t)p.size)
        peer_take(peer_whole(p, buffer) + thread, p, (int)thread);
}

const char *gather_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_gather *a = &op->as.gather;
    const char *why = peers_check(at);
    if (why)
        return why;
    const struct peer_memory *p = &at->peers->memory;
    size_t widest = 1;
    for (int r = 0; r < p->size; r++) {
        if (a->first[r] < 0 || a->first[r + 1] < a->first[r])
            return "gather: columns that are not in order";
        widest = std::max(widest, (size_t)(a->first[r + 1] - a->first[r]));
    }
    const size_t in_slot = (size_t)p->slot * 4 / widest;
    if (in_slot == 0 || a->first[0] != 0)
        return "gather: a row's columns do not fit a peer's buffer, or do not begin with 0";
    const int most = (int)std::min(in_slot, (size_t)op->n_row);
    for (int first = 0; first < op->n_row && !why; first += most) {
        const gather_launch l = {op->count, first, min(most, op->n_row - first)};
        const size_t threads = ((size_t)l.n_row * widest + 3) / 4;
        const int blocks =
            (int)std::min((threads + GATHER_THREADS - 1) / GATHER_THREADS, (size_t)peers_blocks(at));
        why = gpu_why(gpu_launch_resident(gather_kernel, blocks, GATHER_THREADS, 0, at->stream, *a, *p, l));
    }
    return why;
}

cudaError_t gather_load(void)
{
    return gpu_load_kernel(gather_kernel);
}
