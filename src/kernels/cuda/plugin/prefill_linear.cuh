/* A dense product of many rows: D^T = W * X^T for tiles of rows, wgmma with W from registers. X lies in
 * panels as prefill_experts.cuh has them; so is why no access to a stage meets another, but that all of X
 * comes by bulk copies, which wgmma reads in the same proxy. */
#ifndef NYB_KERNELS_CUDA_PREFILL_LINEAR_CUH
#define NYB_KERNELS_CUDA_PREFILL_LINEAR_CUH

#include "kernels/cuda/plugin/prefill_multiply.cuh"

struct prefill_linear {
    weight_boxes weight;
    struct packed_linear w;
    const uint16_t *x; /* panels [K / 64][capacity] */
    const struct prefill_tile *tile;
    const int *n_tile;
    int n_unit, n_k; /* units of W's rows, K / 64 */
    size_t capacity;
};

/* A form with what this kernel has in shared memory besides the ring: what the groups of other k leave for
 * the one of the first, and bells. */
template <typename BASE> struct prefill_linear_form : BASE {
    static constexpr int SUMS_AT = BASE::STAGES * BASE::STAGE_BYTES;
    static constexpr int SUMS_BYTES =
        (BASE::GROUPS - BASE::GROUPS / BASE::DEPTH) * BASE::M * BASE::N_MAX * 256;
    static constexpr int BELLS_AT = SUMS_AT + SUMS_BYTES;
    static constexpr int SMEM = 1024 + BELLS_AT + 2 * 8 * BASE::STAGES;
    static_assert(BASE::DEPTH == 1 || BASE::M == 1, "sums of parts of k");
    static_assert(BASE::BLOCKS * (SMEM + 1024) <= 228 * 1024, "shared memory of an SM");
};

/* One thread: all copies. */
template <typename F>
static __device__ __forceinline__ void produce(const struct prefill_linear &p, uint32_t smem)
{
    const int n_m = (p.n_unit + F::UNITS - 1) / F::UNITS, n_item = *p.n_tile * n_m;
    const uint32_t full = smem + F::BELLS_AT, empty = full + 8 * F::STAGES;
    struct ring_place r = {0, 0};
    for (int item = (int)blockIdx.x; item < n_item; item += (int)gridDim.x) {
        const struct prefill_tile t = p.tile[item / n_m];
        const int unit = item % n_m * F::UNITS;
        const uint32_t x_bytes = tile_width<F>(t.n) * 128;
        const uint16_t *x = p.x + (size_t)t.row * 64;
        for (int k = 0; k < p.n_k; k += F::DEPTH) {
            const uint32_t at = smem + r.stage * F::STAGE_BYTES, bell = full + 8 * r.stage;
            bell_wait(empty + 8 * r.stage, r.parity ^ 1);
            bell_expect(bell, F::W_BYTES + x_bytes * F::DEPTH);
#pragma unroll
            for (int i = 0; i < F::DEPTH; i++) {
                copy_in_box(at + F::DEPTH * F::PANEL_BYTES + i * (F::UNITS * CUDA_UNIT_BYTES), p.weight,
                            k + i, unit, bell);
                copy_in_run(at + i * F::PANEL_BYTES, x, x_bytes, bell);
                x += p.capacity * 64;
            }
            next_stage<F>(r);
        }
    }
}

/* Sums over parts of k, in their order, in the group of the first. False: this group is another. */
template <typename F, int N>
static __device__ __forceinline__ bool sum_parts(float (&d)[N / 2], const prefill_place &my)
{
    const int part = my.group % F::DEPTH, others = F::DEPTH - 1, thread = my.warp * 32 + my.lane;
    const uint32_t room = my.smem + F::SUMS_AT + (my.group / F::DEPTH * others * F::N_MAX * 64 + thread) * 4;
    groups_sync(my.group, F::DEPTH); /* the sums of the tile before have been read */
    if (part > 0) {
        const uint32_t to = room + (part - 1) * F::N_MAX * 256;
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            store_shared(to + i * 512, __float_as_uint(d[i]));
    }
    groups_sync(my.group, F::DEPTH);
    if (part > 0)
        return false;
#pragma unroll
    for (int other = 0; other < others; other++)
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            uint32_t v[1];
            load_shared(v, room + other * F::N_MAX * 256 + i * 512);
            d[i] += __uint_as_float(v[0]);
        }
    return true;
}

/* Rows of W from block `block` of 64 on, straight to memory. */
template <typename F, int N>
static __device__ __forceinline__ void finish_linear(float (&d)[F::M][N / 2], const struct prefill_linear &p,
                                                     const struct prefill_tile &t, int block,
                                                     const prefill_place &my)
{
    if (F::DEPTH > 1 && !sum_parts<F, N>(d[0], my))
        return;
#pragma unroll
    for (int m = 0; m < F::M; m++) {
        const int first = (4 * (block + m) + my.warp) * CUDA_UNIT_ROWS;
        const struct packed_part &part = p.w.part[packed_part_of(p.w, first)];
        const float s = *part.scale * CUDA_SCALE_BACK;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int o = first + 8 * h + my.lane / 4 - part.first;
            if (o >= part.n_out)
                continue;
            const float bias = part.bias ? part.bias[o] : 0.0f;
            float *to = part.out + (size_t)t.row * part.n_out + o;
#pragma unroll
            for (int i = 0; i < N / 4; i++) {
                const int row = i / 2 * 8 + my.lane % 4 * 2 + i % 2;
                if (row < t.n)
                    to[(size_t)row * part.n_out] = d[m][i / 2 * 4 + 2 * h + i % 2] * s + bias;
            }
        }
    }
}

template <typename F, int N>
static __device__ __forceinline__ void consume_tile(const struct prefill_linear &p,
                                                    const struct prefill_tile &t, int item, uint32_t smem,
                                                    struct ring_place &r)
{
    const int thread = thread_anew(); /* not kept from tile to tile for all the cases */
    const prefill_place my = {smem, smem + F::BELLS_AT, thread / 128 - 1, thread % 128 / 32, thread % 32};
    float d[F::M][N / 2] = {};      /* left undefined, all the cases' registers would
                                       be live throughout */
    const uint32_t one = gridDim.y; /* the grid is a line: see unit.cuh */
    multiply<F, N>(d, r, p.n_k, my, {4 * one, 16 * one, 64 * one});
    finish_linear<F, N>(d, p, t, item * (F::UNITS / 4) + my.group / F::DEPTH * F::M, my);
}

template <typename F>
static __device__ __forceinline__ void consume(const struct prefill_linear &p, uint32_t smem)
{
    const int n_m = (p.n_unit + F::UNITS - 1) / F::UNITS, n_item = *p.n_tile * n_m;
    struct ring_place r = {0, 0};
    for (int item = (int)blockIdx.x; item < n_item; item += (int)gridDim.x) {
        const struct prefill_tile t = p.tile[item / n_m];
        const int m = item % n_m;
#define CASE(N) consume_tile<F, N>(p, t, m, smem, r)
        PREFILL_WIDTHS(F, tile_width<F>(t.n), CASE)
#undef CASE
    }
}

template <typename F>
static __global__ void __launch_bounds__(F::THREADS, F::BLOCKS)
    prefill_linear_kernel(const __grid_constant__ prefill_linear p)
{
#if PREFILL_CAN_RUN
    DYNAMIC_SHARED(raw);
    const uint32_t smem = (shared_offset(raw) + 1023) & ~1023u;
    const int t = (int)threadIdx.x;
    if (t < 2 * F::STAGES)
        bell_make(smem + F::BELLS_AT + 8 * t, t < F::STAGES ? 1 : 4 * F::GROUPS);
    bells_made();
    __syncthreads();
    gpu_wait_before();
    gpu_let_next();
    if (t < 128) {
        registers_fewer<F::PRODUCER_REGISTERS>();
        if (t == 0)
            produce<F>(p, smem);
    } else {
        registers_more<F::CONSUMER_REGISTERS>();
        consume<F>(p, smem);
    }
#else
    (void)p;
    __trap(); /* wgmma is Hopper's alone: prefill_linear_takes refuses others */
#endif
}

#endif
