/* Many rows times a matrix of bf16 on Hopper: D^T = W * X^T by wgmma with both operands in shared memory.
 *
 * Four warps copy stages of 64 k ahead by cp.async, rows of 128 bytes with chunk c at c ^ (row % 8), which is
 * the 128-byte swizzle that wgmma reads; two warpgroups multiply, each either its own rows of W or its own
 * half of k. Rows beyond an end repeat the last, and are not stored.
 *
 * Filled before used: a phase of `full` has an arrival of each copying thread, which cp.async makes when all
 * of the thread's copies before it have been performed; the wait acquires them, and as cp.async writes in the
 * generic proxy and wgmma reads in the asynchronous one, each consumer fences between the two. Used before
 * filled again: as in prefill_experts.cuh. */
#include "kernels/cuda/plugin/dense.cuh"
#include "kernels/cuda/plugin/prefill.cuh"
#include "kernels/cuda/plugin/prefill_wgmma.cuh"
#include "kernels/cuda/plugin/unit.cuh"

#define COPIERS  128
#define GROUPS   2
#define THREADS  (COPIERS + 128 * GROUPS)
#define ROW_SIZE 128 /* bytes: 64 k */

/* M times 64 rows of W a group, N rows of x, DEPTH times 64 k a stage: its groups share them or the rows. */
template <int M_, int DEPTH_, int N_, int STAGES_> struct bf16_form {
    static constexpr int M = M_, DEPTH = DEPTH_, N = N_, STAGES = STAGES_;
    static constexpr int W_ROWS = 64 * M * GROUPS / DEPTH;
    static constexpr int PART_BYTES = (W_ROWS + N) * ROW_SIZE, STAGE_BYTES = DEPTH * PART_BYTES;
    static constexpr int W_COPIES = W_ROWS * 8 / COPIERS,
                         X_COPIES = N * 8 / COPIERS; /* a thread's of 16 bytes */
    static constexpr int SUMS_AT = STAGES * STAGE_BYTES, BARRIERS_AT = SUMS_AT + (DEPTH - 1) * M * N * 256;
    static constexpr int SMEM = 1024 + BARRIERS_AT + 2 * 8 * STAGES;
    static_assert(DEPTH == 1 || (DEPTH == GROUPS && M == 1), "parts of k");
    static_assert(SMEM <= 227 * 1024, "shared memory of a block");
};

struct bf16_params {
    struct cuda_linear_part part;
    const uint16_t *x;
    const int32_t *count;
    int n_row, K;
};

/* What a copying thread reads: the bytes from a tile's first row on to each of its chunks. */
template <int COPIES> static __device__ __forceinline__ void chunks(uint32_t (&from)[COPIES], int K, int last)
{
    const int row = (int)threadIdx.x / 8, chunk = (int)threadIdx.x % 8;
#pragma unroll
    for (int i = 0; i < COPIES; i++)
        from[i] = (uint32_t)min(row + i * (COPIERS / 8), last) * (uint32_t)K * 2u + (uint32_t)chunk * 16u;
}

template <int COPIES>
static __device__ __forceinline__ void copy_rows(uint32_t to, const uint8_t *base,
                                                 const uint32_t (&from)[COPIES])
{
#pragma unroll
    for (int i = 0; i < COPIES; i++)
        asm volatile(
            "cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to + i * (COPIERS / 8 * ROW_SIZE)),
            "l"(base + from[i])
            : "memory");
}

template <typename F>
static __device__ __forceinline__ void produce(const bf16_params &p, int n_row, int row0, int o0,
                                               uint32_t smem)
{
    const uint32_t full = smem + F::BARRIERS_AT, empty = full + 8 * F::STAGES;
    const uint32_t row = threadIdx.x / 8, chunk = threadIdx.x % 8,
                   place = row * ROW_SIZE + (chunk ^ (row & 7)) * 16;
    uint32_t w_from[F::W_COPIES], x_from[F::X_COPIES];
    chunks(w_from, p.K, p.part.n_out - 1 - o0);
    chunks(x_from, p.K, n_row - 1 - row0);
    const uint8_t *w = (const uint8_t *)p.part.w.data + (size_t)o0 * p.K * 2;
    const uint8_t *x = (const uint8_t *)(p.x + (size_t)row0 * p.K);
    int stage = 0, parity = 1;
    for (int k = 0; k < p.K; k += 64 * F::DEPTH) {
        barrier_wait(empty + 8 * stage, parity);
#pragma unroll
        for (int d = 0; d < F::DEPTH; d++) {
            const uint32_t to = smem + stage * F::STAGE_BYTES + d * F::PART_BYTES + place;
            copy_rows(to, w, w_from);
            copy_rows(to + F::W_ROWS * ROW_SIZE, x, x_from);
            w += ROW_SIZE;
            x += ROW_SIZE;
        }
        asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(full + 8 * stage)
                     : "memory");
        if (++stage == F::STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* What wgmma is told of rows of 128 bytes, swizzled, from this address on. */
[[maybe_unused]] static __device__ __forceinline__ uint64_t rows_at(uint32_t at)
{
    return (uint64_t)1 << 62 | (uint64_t)64 << 32 | (uint64_t)1 << 16 | (at & 0x3ffff) >> 4;
}

[[maybe_unused]] static __device__ __forceinline__ void arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

template <typename F>
static __device__ __forceinline__ void multiply(float (&d)[F::M][F::N / 2], int K, int group, int lane,
                                                uint32_t smem)
{
    const uint32_t full = smem + F::BARRIERS_AT, empty = full + 8 * F::STAGES;
    const uint32_t part = F::DEPTH > 1 ? group * F::PART_BYTES : 0,
                   w_at = F::DEPTH > 1 ? part : group * (64 * F::M * ROW_SIZE),
                   x_at = part + F::W_ROWS * ROW_SIZE;
    uint32_t last = 0;
    int stage = 0, parity = 0;
    for (int k = 0; k < K; k += 64 * F::DEPTH) {
        const uint32_t at = smem + stage * F::STAGE_BYTES;
        const uint64_t a = rows_at(at + w_at), b = rows_at(at + x_at);
        barrier_wait(full + 8 * stage, parity);
        asm volatile("fence.proxy.async.shared::cta;\nwgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int f = 0; f < 4; f++)
#pragma unroll
            for (int m = 0; m < F::M; m++)
                wgmma<F::N>::run(d[m], a + m * (64 * ROW_SIZE / 16) + 2 * f, b + 2 * f);
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (k > 0 && lane == 0)
            arrive(last);
        last = empty + 8 * stage;
        if (++stage == F::STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < F::N / 2; i++)
#pragma unroll
        for (int m = 0; m < F::M; m++)
            asm volatile("" : "+f"(d[m][i])::"memory");
}

/* The second group's sums onto the first's. False: this is the second. */
template <typename F>
static __device__ __forceinline__ bool sum_halves(float (&d)[F::N / 2], int group, int thread, uint32_t smem)
{
    const uint32_t room = smem + F::SUMS_AT + thread * 4;
    if (group > 0) {
#pragma unroll
        for (int i = 0; i < F::N / 2; i++)
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(room + i * 512), "f"(d[i]) : "memory");
    }
    asm volatile("bar.sync 1, 256;" ::: "memory");
    if (group > 0)
        return false;
#pragma unroll
    for (int i = 0; i < F::N / 2; i++) {
        float v;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(room + i * 512) : "memory");
        d[i] += v;
    }
    return true;
}

template <typename F>
static __device__ __forceinline__ void consume(const bf16_params &p, int n_row, int row0, int o0,
                                               uint32_t smem)
{
    const int thread = (int)threadIdx.x % 128, group = (int)threadIdx.x / 128 - 1, lane = thread % 32;
    float d[F::M][F::N / 2] = {};
    multiply<F>(d, p.K, group, lane, smem);
    if (F::DEPTH > 1 && !sum_halves<F>(d[0], group, thread, smem))
        return;
    const float scale = *p.part.w.scale;
    const int first = o0 + (F::DEPTH > 1 ? 0 : group * 64 * F::M) + thread / 32 * 16 + lane / 4;
#pragma unroll
    for (int m = 0; m < F::M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int o = first + 64 * m + 8 * h;
            if (o >= p.part.n_out)
                continue;
            const float bias = p.part.bias ? p.part.bias[o] : 0.0f;
            float *to = p.part.out + (size_t)row0 * p.part.n_out + o;
#pragma unroll
            for (int i = 0; i < F::N / 4; i++) {
                const int row = i / 2 * 8 + lane % 4 * 2 + i % 2;
                if (row0 + row < n_row)
                    to[(size_t)row * p.part.n_out] = d[m][i / 2 * 4 + 2 * h + i % 2] * scale + bias;
            }
        }
}

/* grid: (tiles of W, tiles of x). */
template <typename F>
static __global__ void __launch_bounds__(THREADS, 1) bf16_kernel(const __grid_constant__ bf16_params p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t raw[];
    const uint32_t smem = (shared_address(raw) + 1023) & ~1023u;
    if (threadIdx.x < 2 * F::STAGES)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem + F::BARRIERS_AT + 8 * threadIdx.x),
                     "r"(threadIdx.x < F::STAGES ? COPIERS : 4 * GROUPS)
                     : "memory");
    barriers_made();
    __syncthreads();
    gpu_wait_before();
    gpu_let_next();
    const int n_row = OP_COUNT(p.count, p.n_row), row0 = blockIdx.y * F::N, o0 = blockIdx.x * F::W_ROWS;
    if (row0 >= n_row)
        return;
    if (threadIdx.x < COPIERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 80;");
        produce<F>(p, n_row, row0, o0, smem);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
        consume<F>(p, n_row, row0, o0, smem);
    }
#else
    (void)p;
    __trap(); /* wgmma is Hopper's alone: prefill_bf16_takes refuses others */
#endif
}

bool prefill_bf16_takes(const struct dense *d, const struct gpu_limits *limits)
{
    return limits->major == 9 && d->x && d->part[0].w.type == CUDA_BF16 && d->K % 64 == 0 &&
           d->K <= 1 << 20 && d->n_row > 16 && d->n_row <= 65535 * 64;
}

template <typename F> static const char *start(const bf16_params &p, const struct op_place *at)
{
    const char *why = gpu_why(gpu_allow_shared(bf16_kernel<F>, F::SMEM));
    const dim3 grid((unsigned)(p.part.n_out + F::W_ROWS - 1) / F::W_ROWS,
                    (unsigned)(p.n_row + F::N - 1) / F::N);
    return why ? why : gpu_why(gpu_launch(bf16_kernel<F>, grid, THREADS, F::SMEM, at->stream, p));
}

/* How long tiles for up to 64 rows take, in rows of W and of x, which each tile reads again. */
template <typename F> static int turns(const bf16_params &p, int n_sm)
{
    const int tiles = (p.part.n_out + F::W_ROWS - 1) / F::W_ROWS;
    return (tiles + n_sm - 1) / n_sm * (F::W_ROWS + F::N);
}

const char *prefill_bf16_start(const struct dense *d, const struct op_place *at)
{
    typedef bf16_form<2, 1, 128, 4> large;
    typedef bf16_form<1, 1, 128, 6> middle;
    typedef bf16_form<2, 1, 64, 5> tall;
    typedef bf16_form<3, 1, 64, 4> taller;
    typedef bf16_form<2, 1, 32, 6> tall_few;
    typedef bf16_form<3, 1, 32, 4> taller_few;
    typedef bf16_form<1, 2, 64, 6> small;
    const char *why = nullptr;
    for (int i = 0; i < d->n_part && !why; i++) {
        const bf16_params p = {d->part[i], d->x, d->count, d->n_row, d->K};
        /* The largest tiles of which there is one for each SM. */
        const int high = (p.part.n_out + large::W_ROWS - 1) / large::W_ROWS, n_sm = at->limits->n_sm;
        if (p.n_row <= 64)
            why = high < n_sm && p.K % 128 == 0 ? start<small>(p, at)
                  : p.n_row > 32 ? (turns<tall>(p, n_sm) <= turns<taller>(p, n_sm) ? start<tall>(p, at)
                                                                                   : start<taller>(p, at))
                  : turns<tall_few>(p, n_sm) <= turns<taller_few>(p, n_sm) ? start<tall_few>(p, at)
                                                                           : start<taller_few>(p, at);
        else
            why = high * ((p.n_row + 127) / 128) >= n_sm ? start<large>(p, at) : start<middle>(p, at);
    }
    return why;
}
