/* What becomes of the sums of a tile of experts: h between the products, or Y.
 */
#ifndef NYB_KERNELS_CUDA_PREFILL_FINISH_CUH
#define NYB_KERNELS_CUDA_PREFILL_FINISH_CUH

#include "kernels/cuda/plugin/prefill_work.cuh"

static __device__ __forceinline__ float silu_times(float g, float u)
{
    return g * u * reciprocal(1.0f + gpu_exp2(-1.4426950216293335f * g));
}

/* The buffer of a group, and the thread that copies it out. That one also counts what it has copied of h,
 * for those who wait for it, when it is sure to be written: the tile of h whose copies are not yet counted,
 * or -1, is a word of shared memory. */
template <typename F> struct prefill_buffer {
    uint32_t at, uncounted;
    int group;
    bool first;

    __device__ __forceinline__ prefill_buffer(const prefill_place &my)
    {
        at = my.smem + F::BUFFER_AT + my.group * F::PANEL_BYTES;
        uncounted = my.smem + F::UNCOUNTED_AT + my.group * 4;
        group = my.group;
        first = my.warp == 0 && my.lane == 0;
    }

    __device__ __forceinline__ void count_later(int tile) const
    {
        if (first)
            store_shared(uncounted, (uint32_t)tile);
    }

    /* The first thread: what has been copied of h is there for others. */
    __device__ __forceinline__ void count(uint32_t *ready) const
    {
        uint32_t tile[1];
        load_shared(tile, uncounted);
        if ((int)tile[0] < 0)
            return;
        copies_out_written();
        global_for_async();
        count_up(ready + tile[0]);
        store_shared(uncounted, ~0u);
    }

    /* It is free again. */
    __device__ __forceinline__ void wait(uint32_t *ready) const
    {
        if (first) {
            count(ready);
            copies_out_read();
        }
        groups_sync(group, 1);
    }

    /* One panel's rows to global memory. */
    __device__ __forceinline__ void out(uint16_t *to, const struct prefill_piece &w, size_t capacity,
                                        int panel, int n_panel) const
    {
        shared_for_async();
        groups_sync(group, 1);
        if (first && panel < n_panel)
            copy_out_run(to + ((size_t)panel * capacity + w.row) * 64, at, ((w.n + 7) & ~7) * 128);
    }
};

/* Gate in rows g, up in rows g + 8: 64 values between the products, in the order in which `down` meets them.
 * `block`: the number of this group's first 64 rows of W. */
template <typename F, int N>
static __device__ __forceinline__ void
finish_gate_up(float (&d)[F::M][N / 2], const struct prefill_experts &p, const struct prefill_piece &w,
               int block, const prefill_place &my)
{
    const float gate = w.scale * CUDA_SCALE_BACK, up = w.scale_2 * CUDA_SCALE_BACK;
    const prefill_buffer<F> buffer(my);
    const int warp = my.warp, lane = my.lane, pair = warp % 2 * 4 + lane % 4;
#pragma unroll
    for (int m = 0; m < F::M; m++) {
        const int chunk = pair ^ lane / 4, word = (block + m) % 2 * 2 + warp / 2; /* which 16 of 64 */
        const uint32_t at = buffer.at + lane / 4 * 128 + chunk * 16 + word * 4;
        if (m % 2 == 0)
            buffer.wait(p.ready);
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const float *c = &d[m][4 * j];
            const uint32_t h =
                float_bf16_pair(silu_times(c[0] * gate, c[2] * up), silu_times(c[1] * gate, c[3] * up));
            store_shared(at + j * 1024, transpose_8x8(h));
        }
        if (m % 2 == 1)
            buffer.out(p.h, w, p.capacity, (block + m) / 2, p.gate_up.n_panel);
    }
    buffer.count_later(w.tile);
}

/* A panel of Y for each 64 rows, one after the other. */
template <typename F, int N>
static __device__ __forceinline__ void finish_down(float (&d)[F::M][N / 2], const struct prefill_experts &p,
                                                   const struct prefill_piece &w, int block,
                                                   const prefill_place &my)
{
    const float s = w.scale * CUDA_SCALE_BACK;
    const prefill_buffer<F> buffer(my);
    const int lane = my.lane, chunk = (2 * my.warp + lane / 8 % 2) ^ lane % 8;
    const uint32_t at = buffer.at + (lane / 16 * 8 + lane % 8) * 128 + chunk * 16;
#pragma unroll
    for (int m = 0; m < F::M; m++) {
        buffer.wait(p.ready);
#pragma unroll
        for (int j = 0; j < (N + 15) / 16; j++) {
            uint32_t pair[4] = {}; /* the last eight may lack its second half, whose rows nobody copies out */
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (16 * j + i / 2 * 8 < N)
                    pair[i] = float_bf16_pair(d[m][8 * j + 2 * i] * s, d[m][8 * j + 2 * i + 1] * s);
            store_transposed(at + j * 2048, pair[0], pair[1], pair[2], pair[3]);
        }
        buffer.out(p.y, w, p.capacity, block + m, p.down.n_panel);
    }
}

#endif
