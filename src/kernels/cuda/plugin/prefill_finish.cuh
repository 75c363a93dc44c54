/* What becomes of a tile's sums: h between the products, Y, or a dense product's outputs. */
#ifndef NYB_KERNELS_CUDA_PREFILL_FINISH_CUH
#define NYB_KERNELS_CUDA_PREFILL_FINISH_CUH

#include "kernels/cuda/plugin/prefill_form.cuh"

/* Where a thread stands among the consumers. */
struct prefill_place {
    uint32_t smem;
    int group, warp, lane;
};

static __device__ __forceinline__ uint32_t pack(float low, float high)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

static __device__ __forceinline__ float silu_times(float g, float u)
{
    return g * u * __frcp_rn(1.0f + __expf(-g));
}

/* All threads of `n` groups in a row. */
static __device__ __forceinline__ void groups_sync(int group, int n)
{
    asm volatile("bar.sync %0, %1;\n" ::"r"(group / n + 1), "r"(128 * n) : "memory");
}

/* The buffer of a group, or of the groups that share one, and the thread that copies it out. */
template <typename F> struct prefill_buffer {
    uint32_t at;
    int group;
    bool first;

    __device__ __forceinline__ prefill_buffer(const prefill_place &my)
    {
        at = my.smem + F::BUFFER_AT + my.group / F::SHARE * F::PANEL_BYTES;
        group = my.group;
        first = my.group % F::SHARE == 0 && my.warp == 0 && my.lane == 0;
    }

    /* It is free again. */
    __device__ __forceinline__ void wait() const
    {
        if (first)
            asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory");
        groups_sync(group, F::SHARE);
    }

    /* One panel's rows to global memory. */
    __device__ __forceinline__ void out(const struct prefill_gemm &p, const struct prefill_tile &t,
                                        int panel) const
    {
        asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
        groups_sync(group, F::SHARE);
        if (!first || panel >= p.n_out)
            return;
        asm volatile(
            "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;\n" ::
                "l"(p.out + ((size_t)panel * p.capacity + t.row) * 64),
            "r"(at), "r"(((t.n + 7) & ~7) * 128)
            : "memory");
    }
};

/* Gate in rows g, up in rows g + 8: 64 values between the products, in the order in which `down` meets them.
 * `block`: the number of this group's first 64 rows of W. */
template <typename F, int N>
static __device__ __forceinline__ void finish_gate_up(float (&d)[F::M][N / 2], const struct prefill_gemm &p,
                                                      const struct prefill_tile &t, int block,
                                                      const prefill_place &my)
{
    const float gate = p.scale[t.expert] * CUDA_SCALE_BACK, up = p.scale_2[t.expert] * CUDA_SCALE_BACK;
    const prefill_buffer<F> buffer(my);
    const int warp = my.warp, lane = my.lane, pair = warp % 2 * 4 + lane % 4;
    buffer.wait();
#pragma unroll
    for (int m = 0; m < F::M; m++) {
        const int chunk = ((block + m) % 2 * 4 + warp / 2 * 2 + pair % 2) ^ lane / 4;
        const uint32_t at = buffer.at + lane / 4 * 128 + chunk * 16 + pair / 2 * 4;
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const float *c = &d[m][4 * j];
            uint32_t h = pack(silu_times(c[0] * gate, c[2] * up), silu_times(c[1] * gate, c[3] * up));
            asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;\n" : "+r"(h));
            asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(at + j * 1024), "r"(h) : "memory");
        }
    }
    buffer.out(p, t, block / 2);
}

/* A panel of Y for each 64 rows, one after the other. */
template <typename F, int N>
static __device__ __forceinline__ void finish_down(float (&d)[F::M][N / 2], const struct prefill_gemm &p,
                                                   const struct prefill_tile &t, int block,
                                                   const prefill_place &my)
{
    const float s = p.scale[t.expert] * CUDA_SCALE_BACK;
    const prefill_buffer<F> buffer(my);
    const int lane = my.lane, chunk = (2 * my.warp + lane / 8 % 2) ^ lane % 8;
    const uint32_t at = buffer.at + (lane / 16 * 8 + lane % 8) * 128 + chunk * 16;
#pragma unroll
    for (int m = 0; m < F::M; m++) {
        buffer.wait();
#pragma unroll
        for (int j = 0; j < N / 16; j++) {
            const float *c = &d[m][8 * j];
            asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(
                             at + j * 2048),
                         "r"(pack(c[0] * s, c[1] * s)), "r"(pack(c[2] * s, c[3] * s)),
                         "r"(pack(c[4] * s, c[5] * s)), "r"(pack(c[6] * s, c[7] * s))
                         : "memory");
        }
        buffer.out(p, t, block + m);
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
            asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(to + i * 512), "f"(d[i]) : "memory");
    }
    groups_sync(my.group, F::DEPTH);
    if (part > 0)
        return false;
#pragma unroll
    for (int other = 0; other < others; other++)
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            float v;
            asm volatile("ld.shared.f32 %0, [%1];\n"
                         : "=f"(v)
                         : "r"(room + other * F::N_MAX * 256 + i * 512)
                         : "memory");
            d[i] += v;
        }
    return true;
}

/* A dense product's: rows of W from block `block` of 64 on, straight to memory. */
template <typename F, int N>
static __device__ __forceinline__ void finish_linear(float (&d)[F::M][N / 2], const struct prefill_gemm &p,
                                                     const struct prefill_tile &t, int block,
                                                     const prefill_place &my)
{
    if (F::DEPTH > 1 && !sum_parts<F, N>(d[0], my))
        return;
#pragma unroll
    for (int m = 0; m < F::M; m++) {
        const int first = (4 * (block + m) + my.warp) * CUDA_UNIT_ROWS;
        const struct packed_part &part = p.linear.part[packed_part_of(p.linear, first)];
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

#endif
