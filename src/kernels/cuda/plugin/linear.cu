/* A dense NVFP4 product for few rows. */
#include "internal.h"
#include "stream.cuh"

bool plan_shared(struct shared_plan *plan, const struct gpu_limits *limits, int K, int nt)
{
    plan->x_bytes = (size_t)(8 * nt) * x_stride(K);
    plan->head_bytes = (size_t)N_WARP * 4 * (size_t)nt * 32 * sizeof(float);
    for (plan->n_stage = STAGES_MAX; plan->n_stage >= 2; plan->n_stage--) {
        plan->bytes = (size_t)(N_WARP * plan->n_stage) * CHUNK_BYTES + plan->x_bytes + plan->head_bytes;
        if (plan->bytes + 16384 <= limits->shared_bytes) /* what the kernels have of their own */
            return true;
    }
    return false;
}

struct linear_params {
    struct packed_linear w;
    struct shared_plan plan;
};

template <int NT> __global__ void __launch_bounds__(N_THREAD, 1) linear_kernel(const linear_params a)
{
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ uint64_t barriers[N_WARP * STAGES_MAX];
    __shared__ struct phase phase;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int K = a.w.K, n_pass = (a.w.n_row + 8 * NT - 1) / (8 * NT);
    uint8_t *xs = memory + N_WARP * a.plan.n_stage * CHUNK_BYTES;
    float *head = (float *)(xs + a.plan.x_bytes);

    if (threadIdx.x < N_WARP * STAGES_MAX)
        barrier_init(shared_address(&barriers[threadIdx.x]));
    if (threadIdx.x == 0) {
        phase.weight = a.w.weight;
        phase.matrix_bytes = 0;
        phase.n_tile = (a.w.n_out + 15) / 16;
        phase.n_unit = K / 64;
        deal(&phase, n_pass);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncthreads();

    struct ring ring = {memory + warp * a.plan.n_stage * CHUNK_BYTES,
                        shared_address(&barriers[warp * STAGES_MAX]), a.plan.n_stage};
    ring.phase = &phase;
    ring.n_phase = 1;
    ring.at = phase.lo;
    ring_fill(&ring, warp, lane);
    float scale[CUDA_PARTS_MAX];
#pragma unroll
    for (int i = 0; i < CUDA_PARTS_MAX; i++)
        scale[i] = i < a.w.n_part ? *a.w.part[i].scale * CUDA_SCALE_BACK : 0.0f;
    gpu_wait_before(); /* the weights do not change: they may come before x is there */
    gpu_let_next();
    for (int at = phase.lo; at < phase.hi;) {
        const struct segment s = segment_at(&phase, at);
        const int row = s.pass * 8 * NT, n_row = min(8 * NT, a.w.n_row - row);
        stage_rows(xs, n_row, K, [&](int r) { return a.w.x + (size_t)(row + r) * K; });
        __syncthreads();
        run_segment<NT>(&phase, &s, &ring, xs, x_stride(K), head, warp, lane, [&](int tile, float(*c)[4]) {
            const int which = packed_part_of(a.w, tile * 16);
            const struct packed_part &part = a.w.part[which];
            const int out = tile * 16 + (lane >> 2) - part.first;
            const float by = which == 0 ? scale[0] : which == 1 ? scale[1] : scale[2];
#pragma unroll
            for (int i = 0; i < 4 * NT; i++) {
                const int r = i / 4 * 8 + (lane & 3) * 2 + i % 2, o = out + i % 4 / 2 * 8;
                if (r < n_row && o < part.n_out)
                    part.out[(size_t)(row + r) * part.n_out + o] =
                        c[i / 4][i % 4] * by + (part.bias ? part.bias[o] : 0.0f);
            }
        });
        at += s.n;
    }
}

template <int NT> static const char *start(const linear_params *a, int grid, cudaStream_t stream)
{
    const char *why = gpu_why(gpu_allow_shared(linear_kernel<NT>, a->plan.bytes));
    return why ? why
               : gpu_why(gpu_launch(linear_kernel<NT>, (unsigned)grid, N_THREAD, a->plan.bytes, stream, *a));
}

bool linear_takes(const struct packed_linear *w, const struct gpu_limits *limits)
{
    struct shared_plan plan;
    return plan_shared(&plan, limits, w->K, 1);
}

const char *linear_start(const struct packed_linear *w, const struct gpu_limits *limits, cudaStream_t stream)
{
    if (w->n_row < 1 || w->n_row > CUDA_ROWS_MAX || w->n_out < 1 || w->K < 64 || w->K % 64)
        return "linear: expected 1 to 32 rows and K a multiple of 64";
    linear_params a = {*w, {}};
    /* More rows at once where they fit: otherwise the weights are read again. */
    int nt = w->n_row <= 8 ? 1 : w->n_row <= 16 ? 2 : 4;
    while (!plan_shared(&a.plan, limits, w->K, nt))
        if ((nt /= 2) == 0)
            return "linear: rows of x of this length do not fit in shared memory";
    if (nt == 1)
        return start<1>(&a, limits->n_sm, stream);
    return nt == 2 ? start<2>(&a, limits->n_sm, stream) : start<4>(&a, limits->n_sm, stream);
}
