/* Attention of up to 64 rows of one sequence: a block for each tile and query head, a warp for 16 rows, 64
 * keys and values at a time through shared memory, the next ones on their way. The weights of the keys stay
 * in registers between the two products: what the first leaves in a lane is what the second wants there. */
#include "kernels/cuda/plugin/attention.cuh"

#define WARPS  4
#define KEYS   64 /* a step */
#define BLOCKS (KEYS / CUDA_KV_BLOCK)

/* Cache blocks of step `step` into a stage: keys, then values, each block as it lies in memory. */
template <int HD, int TYPE>
static __device__ __forceinline__ void copy_step(const struct cuda_attention &a, const int32_t *table,
                                                 int kv_head, int step, int last_block, uint8_t *stage)
{
    const int bytes = CUDA_KV_BLOCK * HD * (TYPE == CUDA_KV_BF16 ? 2 : 1), n = bytes / 16;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        if (step * BLOCKS + b > last_block)
            break;
        const size_t from =
            kv_region(a.kv, table[step * BLOCKS + b], kv_head) * (TYPE == CUDA_KV_BF16 ? 2 : 1);
        for (int i = threadIdx.x; i < n; i += 32 * WARPS) {
            copy_16(stage + b * bytes + 16 * i, a.kv.k + from + 16 * i);
            copy_16(stage + (BLOCKS + b) * bytes + 16 * i, a.kv.v + from + 16 * i);
        }
    }
}

/* What a warp keeps of its 16 rows: of rows g and g + 8 of each lane. */
template <int HD> struct rows {
    uint4 q[HD / 32][2];
    float o[HD / 16][2][4], max[2], sum[2];
};

/* Scores of KEYS keys, as weights: s[2b] and s[2b + 1] of cache block b. limit: keys that row g and row g + 8
 * see in this step. */
template <int HD, int TYPE>
static __device__ __forceinline__ void weigh(rows<HD> &r, const uint8_t *keys, float (&s)[2 * BLOCKS][4],
                                             const int (&limit)[2], float scale, int lane)
{
    const int g = lane / 4, c = lane % 4;
#pragma unroll
    for (int i = 0; i < 2 * BLOCKS; i++) {
        s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0.0f;
        const size_t at = (size_t)((i / 2 * CUDA_KV_BLOCK * HD) + (key_of(g) + i % 2 * 2) * 32 + 8 * c);
#pragma unroll
        for (int b = 0; b < HD / 32; b++) {
            const uint4 k = kv_vector<TYPE>(keys, at + (size_t)(b * CUDA_KV_BLOCK * 32));
            const uint32_t low[4] = {r.q[b][0].x, r.q[b][1].x, r.q[b][0].y, r.q[b][1].y};
            const uint32_t high[4] = {r.q[b][0].z, r.q[b][1].z, r.q[b][0].w, r.q[b][1].w};
            mma_bf16(s[i], low, k.x, k.y);
            mma_bf16(s[i], high, k.z, k.w);
        }
    }
    float max[2] = {r.max[0], r.max[1]};
#pragma unroll
    for (int i = 0; i < 2 * BLOCKS; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int key = i / 2 * CUDA_KV_BLOCK + 4 * c + i % 2 * 2 + j % 2;
            s[i][j] = key < limit[j / 2] ? s[i][j] * scale : -INFINITY;
            max[j / 2] = fmaxf(max[j / 2], s[i][j]);
        }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        max[h] = fmaxf(max[h], __shfl_xor_sync(ALL_LANES, max[h], 1));
        max[h] = fmaxf(max[h], __shfl_xor_sync(ALL_LANES, max[h], 2));
        const float by = gpu_exp2(r.max[h] - max[h]); /* every row sees the first key: max is a number */
        r.max[h] = max[h];
        r.sum[h] *= by;
#pragma unroll
        for (int b = 0; b < HD / 16; b++) {
            r.o[b][0][2 * h] *= by;
            r.o[b][0][2 * h + 1] *= by;
            r.o[b][1][2 * h] *= by;
            r.o[b][1][2 * h + 1] *= by;
        }
    }
#pragma unroll
    for (int i = 0; i < 2 * BLOCKS; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            s[i][j] = gpu_exp2(s[i][j] - max[j / 2]);
            r.sum[j / 2] += s[i][j]; /* of this lane's keys: the four lanes meet at the end */
        }
}

/* o += weights * values. n: keys of the step that have been written at all. */
template <int HD, int TYPE>
static __device__ __forceinline__ void add_values(rows<HD> &r, const uint8_t *values,
                                                  const float (&s)[2 * BLOCKS][4], int n, int lane)
{
    const int g = lane / 4, c = lane % 4;
#pragma unroll
    for (int k = 0; k < BLOCKS; k++) {
        const uint32_t p[4] = {float_bf16_pair(s[2 * k][0], s[2 * k][1]),
                               float_bf16_pair(s[2 * k][2], s[2 * k][3]),
                               float_bf16_pair(s[2 * k + 1][0], s[2 * k + 1][1]),
                               float_bf16_pair(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
        for (int b = 0; b < HD / 16; b++) {
            uint4 v = kv_vector<TYPE>(values, (size_t)(k * CUDA_KV_BLOCK * HD + (8 * b + g) * 32 + 8 * c));
            if (n < KEYS)
                v = kv_keep(v, n - k * CUDA_KV_BLOCK - 4 * c);
            mma_bf16(r.o[b][0], p, v.x, v.y);
            mma_bf16(r.o[b][1], p, v.z, v.w);
        }
    }
}

/* grid: (query heads, tiles), the tiles from the last on, as those see the most keys. */
template <int HD, int TYPE>
static __global__ void __launch_bounds__(32 * WARPS) tile_kernel(const cuda_attention a)
{
    DYNAMIC_SHARED(memory);
    gpu_wait_before();
    gpu_let_next();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    const int which = a.n_tile - 1 - (int)blockIdx.y, head = blockIdx.x;
    if (which >= min(*a.tile_count, a.n_tile))
        return;
    const int stage_bytes = 2 * KEYS * HD * (TYPE == CUDA_KV_BF16 ? 2 : 1);
    const struct cuda_tile tile = a.tile[which];
    const int32_t *table = a.block_table + (size_t)tile.seq * *a.stride;
    const int kv_head = head / (a.n_head / a.kv.n_kv_head);
    const int pos = a.pos[tile.row], end = pos + tile.n_row, last_block = (end - 1) / CUDA_KV_BLOCK;
    const int n_step = (end + KEYS - 1) / KEYS;
    const float scale = a.scale * LOG2_E * (TYPE == CUDA_KV_FP8 ? a.kv.scale[0] : 1.0f);
    rows<HD> r;
    int at[2]; /* rows of the tile; those beyond its end repeat the last and are not stored */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        at[h] = min(16 * warp + g + 8 * h, tile.n_row - 1);
        r.max[h] = -INFINITY;
        r.sum[h] = 0.0f;
        const uint16_t *q = a.q + ((size_t)(tile.row + at[h]) * a.n_head + head) * HD + 8 * c;
#pragma unroll
        for (int b = 0; b < HD / 32; b++)
            r.q[b][h] = *(const uint4 *)(q + 32 * b);
    }
#pragma unroll
    for (int i = 0; i < HD / 16 * 8; i++)
        r.o[i / 8][i / 4 % 2][i % 4] = 0.0f;

    copy_step<HD, TYPE>(a, table, kv_head, 0, last_block, memory);
    copies_end();
    for (int step = 0; step < n_step; step++) {
        uint8_t *stage = memory + step % 2 * stage_bytes;
        if (step + 1 < n_step)
            copy_step<HD, TYPE>(a, table, kv_head, step + 1, last_block,
                                memory + (step + 1) % 2 * stage_bytes);
        copies_end();
        copies_wait<1>();
        __syncthreads();
        if (16 * warp < tile.n_row) {
            const int limit[2] = {pos + at[0] + 1 - step * KEYS, pos + at[1] + 1 - step * KEYS};
            float s[2 * BLOCKS][4];
            weigh<HD, TYPE>(r, stage, s, limit, scale, lane);
            add_values<HD, TYPE>(r, stage + stage_bytes / 2, s, end - step * KEYS, lane);
        }
        __syncthreads();
    }
    const float out_scale = TYPE == CUDA_KV_FP8 ? a.kv.scale[1] : 1.0f;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = r.sum[h];
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        const float by = out_scale / sum;
        if (16 * warp + g + 8 * h >= tile.n_row)
            continue;
        uint16_t *y = a.y + ((size_t)(tile.row + at[h]) * a.n_head + head) * HD + 4 * c;
#pragma unroll
        for (int b = 0; b < HD / 16; b++)
            *(uint2 *)(y + 16 * b) =
                make_uint2(float_bf16_pair(r.o[b][0][2 * h] * by, r.o[b][1][2 * h] * by),
                           float_bf16_pair(r.o[b][0][2 * h + 1] * by, r.o[b][1][2 * h + 1] * by));
    }
}

template <int HD, int TYPE> static const char *start(const cuda_attention &a, cudaStream_t stream)
{
    const size_t bytes = (size_t)(4 * KEYS * HD * (TYPE == CUDA_KV_BF16 ? 2 : 1));
    const dim3 grid((unsigned)a.n_head, (unsigned)a.n_tile);
    const char *why = gpu_why(gpu_allow_shared(tile_kernel<HD, TYPE>, bytes));
    return why ? why : gpu_why(gpu_launch(tile_kernel<HD, TYPE>, grid, 32 * WARPS, bytes, stream, a));
}

const char *attention_tile_start(const struct cuda_attention *a, cudaStream_t stream)
{
    const char *why = nullptr;
#define CALL(HD, TYPE) start<HD, TYPE>(*a, stream)
    ATTENTION_SWITCH(why, a->kv, CALL)
#undef CALL
    return why;
}
