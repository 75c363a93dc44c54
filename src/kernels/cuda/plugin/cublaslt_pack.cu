/* NVFP4 rows as checkpoints have them to padded rows and tiles of scales (cuda_tiled.h), on the device: one
 * block a row, one thread a block of 16 at a time. */
#include "kernels/cuda/plugin/cublaslt.h"

#define THREADS 64

struct tile_params {
    uint8_t *codes_to, *scales_to;
    const uint8_t *codes, *scales; /* of `first` on */
    int first, n_row, K;
};

static __global__ void tile_kernel(const tile_params a)
{
    gpu_wait_before();
    const size_t K = (size_t)a.K, row_bytes = cuda_tiled_row(K) / 2,
                 across = cuda_tiled_across(K) * CUDA_TILE_BLOCKS;
    const size_t from = blockIdx.x, row = (size_t)a.first + from;
    const bool padding = from >= (size_t)a.n_row;
    const bool has_codes = row < cuda_tiled_up((size_t)a.first + (size_t)a.n_row, CUDA_TILED_ROWS);
    for (size_t block = threadIdx.x; block < across; block += THREADS) {
        const bool there = !padding && block < K / 16;
        uint8_t scale = there ? a.scales[from * (K / 16) + block] : 0;
        const bool nothing = scale == 0x7f; /* NaN, which is allowed over zeros and is none here */
        a.scales_to[cuda_tiled_scale_at(row, block, K)] = nothing ? 0 : scale;
        if (has_codes && block * 8 < row_bytes)
            *(uint2 *)(a.codes_to + row * row_bytes + block * 8) =
                there ? *(const uint2 *)(a.codes + from * (K / 2) + block * 8) : make_uint2(0, 0);
    }
}

const char *lt_pack_start(const struct cuda_pack *p, const uint8_t *codes, const uint8_t *scales,
                          cudaStream_t stream)
{
    const tile_params a = {p->device, p->block, codes, scales, p->first, p->n_row, p->K};
    const bool last = p->first + p->n_row == p->n_whole;
    const size_t end = (size_t)(p->first + p->n_row);
    const size_t rows = (last ? cuda_tiled_up(end, CUDA_TILE_ROWS) : end) - (size_t)p->first;
    return gpu_why(gpu_launch(tile_kernel, (unsigned)rows, THREADS, 0, stream, a));
}
