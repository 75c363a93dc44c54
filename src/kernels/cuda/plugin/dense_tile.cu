/* Many rows times a matrix of bf16: tiles of 128 rows and 128 outputs in shared memory, 32 k at a time, three
 * stages; each of eight warps has 64 x 32 of a tile. As in dense_stream.cu a lane takes 8 k that lie side by
 * side for two steps of mma.m16n8k16. */
#include "kernels/cuda/plugin/dense.cuh"

#define WARPS       8
#define TILE        128
#define DEPTH       32
#define STAGES      3
#define ROW_BYTES   (2 * DEPTH)
#define STAGE_BYTES (2 * TILE * ROW_BYTES)

struct tile_params {
    struct cuda_linear_part part;
    const uint16_t *x;
    const int32_t *count;
    int n_row, K;
};

/* Rows from row0 on of both operands; rows beyond the end repeat the last, and are not stored. */
static __device__ __forceinline__ void copy_stage(const tile_params &p, int n_row, int row0, int o0, int k,
                                                  uint8_t *stage)
{
#pragma unroll
    for (int i = 0; i < 2 * TILE * ROW_BYTES / 16 / (32 * WARPS); i++) {
        const int e = threadIdx.x + i * 32 * WARPS, r = e / (ROW_BYTES / 16) % TILE,
                  part = e % (ROW_BYTES / 16);
        const bool is_x = e < TILE * ROW_BYTES / 16;
        const uint16_t *from =
            is_x ? p.x + (size_t)min(row0 + r, n_row - 1) * p.K
                 : (const uint16_t *)p.part.w.data + (size_t)min(o0 + r, p.part.n_out - 1) * p.K;
        copy_16(stage + 16 * e, from + k + 8 * part);
    }
}

static __global__ void __launch_bounds__(32 * WARPS) tile_kernel(const tile_params p)
{
    DYNAMIC_SHARED(memory);
    gpu_wait_before();
    gpu_let_next();
    const int n_row = OP_COUNT(p.count, p.n_row), row0 = blockIdx.y * TILE, o0 = blockIdx.x * TILE;
    if (row0 >= n_row)
        return;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
    const int m0 = warp / 4 * 64, n0 = warp % 4 * 32, n_step = p.K / DEPTH;
    float c[4][4][4] = {};
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < n_step)
            copy_stage(p, n_row, row0, o0, s * DEPTH, memory + s * STAGE_BYTES);
        copies_end();
    }
    for (int s = 0; s < n_step; s++) {
        copies_wait<STAGES - 2>();
        __syncthreads(); /* all have this stage, and are done with the one before it */
        const int next = s + STAGES - 1;
        if (next < n_step)
            copy_stage(p, n_row, row0, o0, next * DEPTH, memory + next % STAGES * STAGE_BYTES);
        copies_end();
        const uint8_t *xs = memory + s % STAGES * STAGE_BYTES + (m0 + g) * ROW_BYTES + 16 * q;
        const uint8_t *ws = memory + s % STAGES * STAGE_BYTES + (TILE + n0 + g) * ROW_BYTES + 16 * q;
        uint4 w[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            w[j] = *(const uint4 *)(ws + 8 * j * ROW_BYTES);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint4 u = *(const uint4 *)(xs + 16 * i * ROW_BYTES),
                        v = *(const uint4 *)(xs + (16 * i + 8) * ROW_BYTES);
            const uint32_t low[4] = {u.x, v.x, u.y, v.y}, high[4] = {u.z, v.z, u.w, v.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                mma_bf16(c[i][j], low, w[j].x, w[j].y);
                mma_bf16(c[i][j], high, w[j].z, w[j].w);
            }
        }
    }
    const float scale = *p.part.w.scale;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int row = row0 + m0 + 16 * i + g + e / 2 * 8, o = o0 + n0 + 8 * j + 2 * q + e % 2;
                if (row < n_row && o < p.part.n_out)
                    p.part.out[(size_t)row * p.part.n_out + o] =
                        c[i][j][e] * scale + (p.part.bias ? p.part.bias[o] : 0.0f);
            }
}

bool dense_tile_takes(const struct dense *d)
{
    return d->x && d->part[0].w.type == CUDA_BF16 && d->K % DEPTH == 0 && d->n_row > CUDA_ROWS_MAX &&
           d->n_row <= 65535 * TILE;
}

const char *dense_tile_start(const struct dense *d, const struct op_place *at)
{
    const char *why = gpu_why(gpu_allow_shared(tile_kernel, STAGES * STAGE_BYTES));
    for (int i = 0; i < d->n_part && !why; i++) {
        const tile_params p = {d->part[i], d->x, d->count, d->n_row, d->K};
        const dim3 grid((unsigned)(d->part[i].n_out + TILE - 1) / TILE,
                        (unsigned)(d->n_row + TILE - 1) / TILE);
        why = gpu_why(gpu_launch(tile_kernel, grid, 32 * WARPS, STAGES * STAGE_BYTES, at->stream, p));
    }
    return why;
}
