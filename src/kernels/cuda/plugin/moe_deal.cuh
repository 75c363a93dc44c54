/* Which tiles of gate and up a block of the experts' launch has where the rows of two passes may not fit
 * beside each other. A block that has parts of both needs a second round of rows, and gets fewer tiles, as if
 * there were ROUND_TILES more between the two passes. It follows from the routing: the same bits on every
 * run. */
#pragma once

#include "kernels/cuda/plugin/stream.cuh"

#define ROUND_TILES 12 /* a second round takes as long */

/* A block's part of all tiles, in 65536ths: known before the routing. */
struct moe_share {
    uint32_t lo, hi;
};
static __device__ __forceinline__ struct moe_share share_of_block()
{
    return {((uint32_t)blockIdx.x << 16) / gridDim.x, ((uint32_t)(blockIdx.x + 1) << 16) / gridDim.x};
}

/* A thread a pass; before: [n_pass + 1] rows before each; count: [N_WARP]. Returns those of the warp's passes
 * that do not fit beside the one before. All threads; then a barrier; then rounds_deal. */
static __device__ __forceinline__ uint32_t rounds_find(const int16_t *before, int n_pass, int room,
                                                       int *count)
{
    const int t = (int)threadIdx.x;
    const bool apart = t > 0 && t < n_pass && before[t + 1] - before[t - 1] > room;
    const uint32_t found = __ballot_sync(ALL_LANES, apart);
    if (t % 32 == 0)
        count[t / 32] = __popc(found);
    return found;
}

/* Two threads find that their pass has the block's first tile, and its end. */
static __device__ __forceinline__ void rounds_deal(struct phase *p, int n_pass, const struct moe_share &own,
                                                   uint32_t found, const int *count)
{
    const int t = (int)threadIdx.x, lane = t % 32, n_tile = p->n_tile;
    int before = 0, all = 0;
#pragma unroll
    for (int i = 0; i < N_WARP; i++) {
        before += i < t / 32 ? count[i] : 0;
        all += count[i];
    }
    if (t >= n_pass)
        return;
    before += __popc(found & ~(~1u << lane)); /* and this one */
    const uint64_t length = (uint64_t)(n_pass * n_tile + ROUND_TILES * all);
    const int lo = (int)(length * own.lo >> 16), hi = (int)(length * own.hi >> 16);
    const int begin = t * n_tile + ROUND_TILES * before,
              from = begin - (int)(found >> lane & 1) * ROUND_TILES,
              end = t == n_pass - 1 ? INT32_MAX : begin + n_tile;
    if (lo >= from && lo < end)
        p->lo = t * n_tile + min(max(lo - begin, 0), n_tile);
    if (hi >= from && hi < end)
        p->hi = t * n_tile + min(max(hi - begin, 0), n_tile);
}
