/* NVFP4 rows as checkpoints have them to packed units (cuda_layout.h), on the device: one block a unit, one
 * thread two words of its codes. */
#include "internal.h"

#include <algorithm>

#include "kernels/cuda/cuda_layout.h"

#define PACK_THREADS (CUDA_UNIT_CODES / 8)

struct pack_params {
    uint8_t *device;
    const uint8_t *codes, *scales; /* of `first` on */
    int rows, first, n_row, n_whole, K, n_part;
};

/* As cuda_layout_scale. */
static __device__ uint8_t scale_code(int e4m3)
{
    int e = e4m3 >> 3 & 15, m = e4m3 & 7;
    if (e4m3 == 0)
        return 0;
    if (e > 0)
        return (uint8_t)((e + 3) << 3 | m);
    for (e = 4; m < 8; e--)
        m <<= 1;
    return (uint8_t)(e << 3 | (m & 7));
}

/* The two codes of a byte as the bits of pair p of an even word and the odd one behind it: `odd` of the one
 * that they belong to (see cuda_layout.c). */
static __device__ uint64_t spread(uint32_t byte, int p, int odd)
{
    const int turn = p == 0 ? 0 : p == 1 ? 4 : p == 2 ? 10 : odd ? 28 : 6;
    uint64_t out = 0;
    for (int h = 0; h < 2; h++)
        for (int b = 0; b < 4; b++) {
            const int at = ((b == 3 ? 15 : 6 + b) + 16 * h - turn) & 31;
            const bool second = p == 3 ? !(0x06030603u >> at & 1u) : odd;
            out |= (uint64_t)(byte >> (4 * h + b) & 1u) << (second ? p == 3 ? 30 + at : 32 + at : at);
        }
    return out;
}

/* Of the matrix's rows: the one that is row `at` of the tile. */
static __device__ int source_row(const pack_params &a, int tile, int at)
{
    return a.rows == CUDA_PACK_WHOLE ? tile * CUDA_UNIT_ROWS + at : tile * 8 + at % 8;
}

static __global__ void pack_kernel(const pack_params a)
{
    gpu_wait_before();
    const int n_unit = a.K / CUDA_UNIT_K, lane = threadIdx.x / 2, half = threadIdx.x % 2, g = lane / 4;
    const int tile = a.first / (a.rows == CUDA_PACK_WHOLE ? CUDA_UNIT_ROWS : 8) + (int)blockIdx.x / n_unit;
    const int unit = (int)blockIdx.x % n_unit, block = unit * 4 + lane % 4;
    const int wide = n_unit / a.n_part, part = unit / wide; /* units of a part's tile */
    const size_t part_tile = (size_t)part * ((a.n_whole + CUDA_UNIT_ROWS - 1) / CUDA_UNIT_ROWS) + tile;
    uint8_t *to = a.device + (part_tile * wide + unit % wide) * CUDA_UNIT_BYTES;
    uint64_t bits = 0, mask = 0;
    for (int high = 0; high < 2; high++) {
        if (a.rows != CUDA_PACK_WHOLE && high != (a.rows == CUDA_PACK_UP))
            continue;
        const int row = source_row(a, tile, g + 8 * high);
        const size_t from = (size_t)(row - a.first);
        const int e4m3 = row < a.n_whole ? a.scales[from * (a.K / 16) + block] : 0, magnitude = e4m3 & 0x7f;
        for (int i = 0; i < 4; i++) { /* bytes */
            const int k = block * 16 + half * 8 + 2 * i, p = i % 2 * 2 + high;
            const uint32_t byte =
                magnitude == 0 ? 0 : a.codes[from * (a.K / 2) + k / 2] ^ (e4m3 & 0x80 ? 0x88u : 0u);
            bits |= spread(byte, p, i / 2);
            mask |= spread(0xff, p, i / 2);
        }
        if (half == 0)
            to[CUDA_UNIT_CODES + lane * 2 + high] = scale_code(magnitude);
    }
    uint64_t *at = (uint64_t *)to + threadIdx.x;
    *at = (*at & ~mask) | bits;
}

const char *pack_start(const struct cuda_pack *p, const uint8_t *codes, const uint8_t *scales,
                       cudaStream_t stream)
{
    const int per_tile = p->rows == CUDA_PACK_WHOLE ? CUDA_UNIT_ROWS : 8;
    const pack_params a = {
        p->device, codes, scales, p->rows, p->first, p->n_row, p->n_whole, p->K, std::max(p->n_part, 1)};
    const unsigned n_tile = (unsigned)((p->n_row + per_tile - 1) / per_tile);
    return gpu_why(
        gpu_launch(pack_kernel, n_tile * (unsigned)(p->K / CUDA_UNIT_K), PACK_THREADS, 0, stream, a));
}
