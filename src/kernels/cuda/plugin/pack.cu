/* NVFP4 rows as checkpoints have them to packed units (cuda_layout.h), on the device: one block a unit, one
 * thread a word of its codes. */
#include "internal.h"

#include <algorithm>

#include "kernels/cuda/cuda_layout.h"

#define N_WORD (CUDA_UNIT_CODES / 4)

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

/* The two codes of a byte as the bits of pair p of a word. */
static __device__ uint32_t spread(uint32_t byte, int p)
{
    const int turn = p == 0 ? 0 : p == 1 ? 4 : p == 2 ? 10 : 6;
    uint32_t out = 0;
    for (int h = 0; h < 2; h++)
        for (int b = 0; b < 4; b++) {
            const int target = b == 3 ? 15 : 6 + b, by = p == 3 && target == 8 ? 14 : turn;
            out |= (byte >> (4 * h + b) & 1u) << ((target + 16 * h - by) & 31);
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
    const int n_unit = a.K / CUDA_UNIT_K, word = threadIdx.x, lane = word / 4, f = word % 4, g = lane / 4;
    const int tile = a.first / (a.rows == CUDA_PACK_WHOLE ? CUDA_UNIT_ROWS : 8) + (int)blockIdx.x / n_unit;
    const int unit = (int)blockIdx.x % n_unit, block = unit * 4 + f;
    const int wide = n_unit / a.n_part, part = unit / wide; /* units of a part's tile */
    const size_t part_tile = (size_t)part * ((a.n_whole + CUDA_UNIT_ROWS - 1) / CUDA_UNIT_ROWS) + tile;
    uint8_t *to = a.device + (part_tile * wide + unit % wide) * CUDA_UNIT_BYTES;
    uint32_t bits = 0, mask = 0;
    for (int high = 0; high < 2; high++) {
        if (a.rows != CUDA_PACK_WHOLE && high != (a.rows == CUDA_PACK_UP))
            continue;
        const int row = source_row(a, tile, g + 8 * high);
        const size_t from = (size_t)(row - a.first);
        const int e4m3 = row < a.n_whole ? a.scales[from * (a.K / 16) + block] : 0, magnitude = e4m3 & 0x7f;
        for (int p = high; p < 4; p += 2) {
            const int k = block * 16 + lane % 4 * 4 + p / 2 * 2;
            const uint32_t byte =
                magnitude == 0 ? 0 : a.codes[from * (a.K / 2) + k / 2] ^ (e4m3 & 0x80 ? 0x88u : 0u);
            bits |= spread(byte, p);
            mask |= spread(0xff, p);
        }
        if (lane % 4 == 0)
            to[CUDA_UNIT_CODES + g * 8 + f * 2 + high] = scale_code(magnitude);
    }
    uint32_t *at = (uint32_t *)to + word;
    *at = (*at & ~mask) | bits;
}

const char *pack_start(const struct cuda_pack *p, const uint8_t *codes, const uint8_t *scales,
                       cudaStream_t stream)
{
    const int per_tile = p->rows == CUDA_PACK_WHOLE ? CUDA_UNIT_ROWS : 8;
    const pack_params a = {
        p->device, codes, scales, p->rows, p->first, p->n_row, p->n_whole, p->K, std::max(p->n_part, 1)};
    const unsigned n_tile = (unsigned)((p->n_row + per_tile - 1) / per_tile);
    return gpu_why(gpu_launch(pack_kernel, n_tile * (unsigned)(p->K / CUDA_UNIT_K), N_WORD, 0, stream, a));
}
