/* Rows of experts from a routing: which rows of the panels are whose, and the tiles they make. Few slots are
 * sorted by one block, many by a warp for each CHUNK of them. */
#ifndef NYB_KERNELS_CUDA_PREFILL_SORT_CUH
#define NYB_KERNELS_CUDA_PREFILL_SORT_CUH

#include "kernels/cuda/plugin/prefill_form.cuh"

#define CHUNK 512 /* slots that one warp places */
#define BATCH 16  /* loads under way at once */

#define SORT_THREADS CUDA_EXPERTS_MAX
#define SORT_EACH    16 /* slots of a thread where one block sorts all */
#define SORT_ALONE   (SORT_THREADS * SORT_EACH)

/* Device memory of a sort. A slot is a token and one of its experts, a row a place in the panels. */
struct prefill_sorted {
    int *count;  /* [chunk][expert]: of the chunk, then of the chunks before */
    int *first;  /* [expert]: its first row */
    int *row;    /* [slot], -1: of no expert here */
    int *source; /* [row]: its token */
    struct prefill_tile *tile;
    int *n_tile;
    uint32_t *ready, *ticket; /* [tile] and [1], zero for the products */
};

/* Experts' ids (those that are not in 0 to n_expert - 1 are of no expert here) and how they are shared out
 * into tiles of at most n_max tokens. */
struct prefill_routing {
    const int32_t *id;
    int n_slot, n_used, n_expert, n_max;
};

/* Inclusive sums over a block of CUDA_EXPERTS_MAX threads. */
static __device__ int2 block_sums(int2 v)
{
    SHARED(int2[CUDA_EXPERTS_MAX], sum);
    const int i = threadIdx.x;
    sum[i] = v;
    for (int d = 1; d < CUDA_EXPERTS_MAX; d *= 2) {
        __syncthreads();
        const int2 o = i >= d ? sum[i - d] : make_int2(0, 0);
        __syncthreads();
        sum[i].x += o.x;
        sum[i].y += o.y;
    }
    return sum[i];
}

/* A slot's expert, or -1. */
static __device__ __forceinline__ int expert_of(const prefill_routing &q, int slot)
{
    const int e = slot < q.n_slot ? q.id[slot] : -1;
    return e < q.n_expert ? e : -1;
}

/* Experts ascending, a thread each with its number of tokens: tiles are written, the first row comes back. */
static __device__ int plan_tiles(const prefill_routing &q, const prefill_sorted &s, int e, int n)
{
    const int tiles = (n + q.n_max - 1) / q.n_max, rows = (n + 7) & ~7;
    const int2 end = block_sums(make_int2(rows, tiles));
    if (e == CUDA_EXPERTS_MAX - 1) {
        *s.n_tile = end.y;
        *s.ticket = 0;
    }
    if (tiles > 0) {
        const int step = ((n + tiles - 1) / tiles + 7) & ~7; /* at most n_max, a multiple of 8 */
        for (int i = 0; i < tiles; i++) {
            s.tile[end.y - tiles + i] = {e, end.x - rows + i * step, max(0, min(step, n - i * step))};
            s.ready[end.y - tiles + i] = 0;
        }
    }
    return end.x - rows;
}

/* Each 64 values of x in the order of panels: chunk c has pair c of each 16. n times 16 values; a thread
 * makes two chunks of a 64. */
static __device__ void order_x(const uint4 *x, uint4 *to, int n, int i, int step)
{
    const uint32_t *pair = (const uint32_t *)x;
    for (; i < n; i += step) {
        const uint32_t *from = pair + (size_t)(i / 4) * 32 + i % 4 * 2;
        const uint2 a = *(const uint2 *)from, b = *(const uint2 *)(from + 8), c = *(const uint2 *)(from + 16),
                    d = *(const uint2 *)(from + 24);
        to[2 * (size_t)i] = make_uint4(a.x, b.x, c.x, d.x);
        to[2 * (size_t)i + 1] = make_uint4(a.y, b.y, c.y, d.y);
    }
}

/* Block 0 sorts up to SORT_ALONE slots, the others put x in order: n times 16 values. An expert's rows are
 * in any order, which no number depends on. */
static __global__ void __launch_bounds__(SORT_THREADS, 1)
    sort_kernel(const prefill_routing q, const prefill_sorted s, const uint4 *x, uint4 *ordered, int n)
{
    SHARED(int[CUDA_EXPERTS_MAX], count);
    gpu_wait_before();
    gpu_let_next();
    const int t = (int)threadIdx.x;
    if (blockIdx.x > 0) {
        order_x(x, ordered, n, ((int)blockIdx.x - 1) * SORT_THREADS + t, ((int)gridDim.x - 1) * SORT_THREADS);
        return;
    }
    int expert[SORT_EACH], rank[SORT_EACH];
#pragma unroll
    for (int i = 0; i < SORT_EACH; i++) {
        const int slot = i * SORT_THREADS + t;
        expert[i] = expert_of(q, slot);
    }
    count[t] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SORT_EACH; i++)
        if (expert[i] >= 0)
            rank[i] = atomicAdd(&count[expert[i]], 1);
    __syncthreads();
    const int first = plan_tiles(q, s, t, count[t]);
    __syncthreads();
    count[t] = first;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SORT_EACH; i++) {
        const int slot = i * SORT_THREADS + t;
        if (slot >= q.n_slot)
            break;
        const int row = expert[i] >= 0 ? count[expert[i]] + rank[i] : -1;
        s.row[slot] = row;
        if (row >= 0)
            s.source[row] = slot / q.n_used;
    }
}

/* The first n_chunk blocks count a chunk each, the others put x in order. */
static __global__ void count_kernel(const prefill_routing q, const prefill_sorted s, int n_chunk,
                                    const uint4 *x, uint4 *ordered, int n)
{
    SHARED(int[CUDA_EXPERTS_MAX], of);
    gpu_wait_before();
    gpu_let_next();
    if ((int)blockIdx.x >= n_chunk) {
        order_x(x, ordered, n, ((int)blockIdx.x - n_chunk) * (int)blockDim.x + (int)threadIdx.x,
                ((int)gridDim.x - n_chunk) * (int)blockDim.x);
        return;
    }
    for (int e = (int)threadIdx.x; e < q.n_expert; e += (int)blockDim.x)
        of[e] = 0;
    __syncthreads();
    const int end = min(q.n_slot, (int)(blockIdx.x + 1) * CHUNK);
    for (int i = (int)(blockIdx.x * CHUNK + threadIdx.x); i < end; i += (int)blockDim.x)
        if (expert_of(q, i) >= 0)
            atomicAdd(&of[expert_of(q, i)], 1);
    __syncthreads();
    for (int e = (int)threadIdx.x; e < q.n_expert; e += (int)blockDim.x)
        s.count[(int)blockIdx.x * q.n_expert + e] = of[e];
}

/* A thread an expert: counts to sums over the chunks before, then first rows and tiles. */
static __global__ void plan_kernel(const prefill_routing q, const prefill_sorted s, int n_chunk)
{
    gpu_wait_before();
    gpu_let_next();
    const int e = (int)threadIdx.x;
    int n = 0;
    for (int c = 0; e < q.n_expert && c < n_chunk; c += BATCH) {
        int here[BATCH]; /* loads before stores, which they might alias */
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            here[i] = c + i < n_chunk ? s.count[(c + i) * q.n_expert + e] : 0;
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (c + i < n_chunk)
                s.count[(c + i) * q.n_expert + e] = n;
            n += here[i];
        }
    }
    const int first = plan_tiles(q, s, e, n);
    if (e < q.n_expert)
        s.first[e] = first;
}

/* A warp a chunk. */
static __global__ void place_kernel(const prefill_routing q, const prefill_sorted s)
{
    SHARED(int[CUDA_EXPERTS_MAX], next);
    gpu_wait_before();
    gpu_let_next();
    const int lane = (int)threadIdx.x;
    int expert[CHUNK / 32]; /* all asked for before the first is placed */
#pragma unroll
    for (int i = 0; i < CHUNK / 32; i++) {
        const int slot = (int)blockIdx.x * CHUNK + i * 32 + lane;
        expert[i] = expert_of(q, slot);
    }
    for (int e = lane; e < q.n_expert; e += 32)
        next[e] = s.first[e] + s.count[(int)blockIdx.x * q.n_expert + e];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < CHUNK / 32; i++) {
        const int slot = (int)blockIdx.x * CHUNK + i * 32 + lane, e = expert[i];
        const unsigned same = __match_any_sync(~0u, e), before = same & ((1u << lane) - 1);
        const int base = e >= 0 ? next[e] : -1;
        __syncwarp();
        if (e >= 0 && before == 0)
            next[e] = base + __popc(same);
        __syncwarp();
        const int row = e >= 0 ? base + __popc(before) : -1;
        if (slot < q.n_slot)
            s.row[slot] = row;
        if (row >= 0)
            s.source[row] = slot / q.n_used;
    }
}

#endif
