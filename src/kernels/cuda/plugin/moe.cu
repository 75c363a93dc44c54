/* A layer of experts for few tokens in one launch: gate and up, SwiGLU, down, sum over the experts of a
 * token.
 *
 * Every CTA sorts the routing for itself. Each expert's slots (token, place among the token's experts) become
 * passes of at most eight. Between the phases all CTAs meet (cooperative launch); their rings are full of the
 * next weights by then. h and y have a row a slot, and the last phase adds a token's rows in order: no sum
 * depends on timing. */
#include "internal.h"
#include "stream.cuh"

struct moe_params {
    struct packed_moe w;
    struct moe_scratch scratch;
    struct shared_plan plan;
};

struct routing {
    int n_pass;
    int16_t expert[CUDA_SLOTS_MAX];  /* [pass] */
    uint8_t n_slot[CUDA_SLOTS_MAX];  /* [pass] */
    uint8_t slot[CUDA_SLOTS_MAX][8]; /* [pass][row] */
    float scale[3][CUDA_SLOTS_MAX];  /* of gate, up, down: [pass], read at once and early */
    int warp_sum[N_WARP];
};

/* Passes by expert ascending, slots ascending within one. mask: [n_expert][8] and first: [n_expert] of shared
 * memory that is free until the end. All threads. */
__device__ void route(struct routing *r, const struct packed_moe &w, uint32_t *mask, int *first)
{
    const int t = threadIdx.x, n_slot = w.n_row * w.n_used, lane = t % 32, warp = t / 32;
    for (int i = t; i < w.n_expert * 8; i += N_THREAD)
        mask[i] = 0;
    __syncthreads();
    int e = t < n_slot ? w.id[t] : -1;
    if (e >= w.n_expert)
        e = -1;
    if (e >= 0)
        atomicOr(&mask[e * 8 + t / 32], 1u << lane);
    __syncthreads();
    int count = 0;
    if (t < w.n_expert)
        for (int i = 0; i < 8; i++)
            count += __popc(mask[t * 8 + i]);
    const int n = (count + 7) / 8;
    int sum = n; /* inclusive over the warp, then over all */
    for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(~0u, sum, d);
        sum += lane >= d ? other : 0;
    }
    if (lane == 31)
        r->warp_sum[warp] = sum;
    __syncthreads();
    for (int i = 0; i < warp; i++)
        sum += r->warp_sum[i];
    if (t == N_THREAD - 1)
        r->n_pass = sum;
    if (t < w.n_expert) {
        first[t] = sum - n;
        for (int i = 0; i < n; i++) {
            r->expert[sum - n + i] = (int16_t)t;
            r->n_slot[sum - n + i] = (uint8_t)min(8, count - 8 * i);
        }
    }
    __syncthreads();
    if (e >= 0) {
        int rank = __popc(mask[e * 8 + t / 32] & ((1u << lane) - 1));
        for (int i = 0; i < t / 32; i++)
            rank += __popc(mask[e * 8 + i]);
        r->slot[first[e] + rank / 8][rank % 8] = (uint8_t)t;
    }
    __syncthreads();
}

/* All CTAs. The top bit flips when the last arrives: CTA 0 adds what the others lack to 2^31. */
__device__ void meet(uint32_t *barrier)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        const uint32_t mine = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1;
        __threadfence();
        const uint32_t old = atomicAdd(barrier, mine);
        uint32_t now;
        do
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(barrier) : "memory");
        while (((old ^ now) & 0x80000000u) == 0);
        __threadfence();
    }
    __syncthreads();
}

/* A token's experts, so many of them asked for at once. */
#define TOGETHER 8

__device__ __forceinline__ void finalize(const moe_params &a)
{
    const int H = a.w.hidden, k = a.w.n_used, n = a.w.n_row * H;
    for (int i = blockIdx.x * N_THREAD + threadIdx.x; i < n; i += gridDim.x * N_THREAD) {
        const int t = i / H, c = i - t * H;
        float sum = 0.0f;
        for (int j0 = 0; j0 < k; j0 += TOGETHER) {
            int e[TOGETHER];
            float w[TOGETHER], y[TOGETHER];
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) { /* beyond the last: the last again, not added */
                const int slot = t * k + min(j0 + j, k - 1);
                e[j] = a.w.id[slot];
                w[j] = a.w.weight[slot];
                y[j] = __ldcg(&a.scratch.y[(size_t)slot * H + c]);
            }
#pragma unroll
            for (int j = 0; j < TOGETHER; j++)
                if (j0 + j < k && e[j] >= 0 && e[j] < a.w.n_expert)
                    sum += w[j] * y[j];
        }
        a.w.out[i] = sum;
    }
}

__global__ void __launch_bounds__(N_THREAD, 1) moe_kernel(const moe_params a)
{
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ uint64_t barriers[N_WARP * STAGES_MAX];
    __shared__ struct phase phases[2];
    __shared__ struct routing routing;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int H = a.w.hidden, I = a.w.inner;
    uint8_t *xs = memory + N_WARP * a.plan.n_stage * CHUNK_BYTES;
    float *head = (float *)(xs + a.plan.x_bytes);

    if (threadIdx.x < N_WARP * STAGES_MAX)
        barrier_init(shared_address(&barriers[threadIdx.x]));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    gpu_wait_before();
    route(&routing, a.w, (uint32_t *)xs, (int *)(xs + a.w.n_expert * 32));
    if (threadIdx.x < 2) {
        struct phase p;
        const int rows = threadIdx.x == 0 ? 2 * I : H, k = threadIdx.x == 0 ? H : I;
        p.weight = threadIdx.x == 0 ? a.w.gate_up : a.w.down;
        p.n_tile = rows / 16;
        p.n_unit = k / 64;
        p.matrix_bytes = (int64_t)p.n_tile * p.n_unit * CUDA_UNIT_BYTES;
        deal(&p, routing.n_pass);
        phases[threadIdx.x] = p;
    }
    float scale[3] = {};
    if (threadIdx.x < routing.n_pass) {
        const int e = routing.expert[threadIdx.x];
        scale[0] = a.w.gate_scale[e];
        scale[1] = a.w.up_scale[e];
        scale[2] = a.w.down_scale[e];
    }
    __syncthreads();

    struct ring ring = {memory + warp * a.plan.n_stage * CHUNK_BYTES,
                        shared_address(&barriers[warp * STAGES_MAX]), a.plan.n_stage};
    ring.phase = phases;
    ring.n_phase = 2;
    ring.at = phases[0].lo;
    ring.expert_of = routing.expert;
    /* Rows before weights: what is asked for behind those waits for all of them. */
    auto stage_x = [&](const struct segment &s) {
        const uint8_t *slot = routing.slot[s.pass];
        stage_rows(xs, routing.n_slot[s.pass], H,
                   [&](int r) { return a.w.x + (size_t)(slot[r] / a.w.n_used) * H; });
    };
    if (phases[0].lo < phases[0].hi)
        stage_x(segment_at(&phases[0], phases[0].lo));
    ring_fill(&ring, warp, lane);
    if (threadIdx.x < routing.n_pass)
        for (int i = 0; i < 3; i++)
            routing.scale[i][threadIdx.x] = scale[i] * CUDA_SCALE_BACK;
    __syncthreads();

    for (int at = phases[0].lo; at < phases[0].hi;) {
        const struct segment s = segment_at(&phases[0], at);
        const uint8_t *slot = routing.slot[s.pass];
        const int n_row = routing.n_slot[s.pass];
        const float gate = routing.scale[0][s.pass], up = routing.scale[1][s.pass];
        if (at > phases[0].lo)
            stage_x(s);
        __syncthreads();
        run_segment<1>(&phases[0], &s, &ring, xs, x_stride(H), head, warp, lane, [&](int tile, float(*c)[4]) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int r = (lane & 3) * 2 + i;
                if (r < n_row)
                    a.scratch.h[(size_t)slot[r] * I + tile * 8 + (lane >> 2)] =
                        __bfloat16_as_ushort(__float2bfloat16(swiglu(c[0][i] * gate, c[0][2 + i] * up)));
            }
        });
        at += s.n;
    }
    meet(a.scratch.barrier);
    for (int at = phases[1].lo; at < phases[1].hi;) {
        const struct segment s = segment_at(&phases[1], at);
        const uint8_t *slot = routing.slot[s.pass];
        const int n_row = routing.n_slot[s.pass];
        const float by = routing.scale[2][s.pass];
        stage_rows(xs, n_row, I, [&](int r) { return a.scratch.h + (size_t)slot[r] * I; });
        __syncthreads();
        run_segment<1>(&phases[1], &s, &ring, xs, x_stride(I), head, warp, lane, [&](int tile, float(*c)[4]) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int r = (lane & 3) * 2 + i % 2;
                if (r < n_row)
                    a.scratch.y[(size_t)slot[r] * H + tile * 16 + (lane >> 2) + i / 2 * 8] = c[0][i] * by;
            }
        });
        at += s.n;
    }
    if (a.w.each) /* which y is */
        return;
    meet(a.scratch.barrier);
    finalize(a);
}

const char *moe_start(const struct packed_moe *w, const struct moe_scratch *scratch,
                      const struct gpu_limits *limits, cudaStream_t stream)
{
    if (w->n_row < 1 || w->n_row > CUDA_ROWS_MAX || w->n_used < 1 || w->n_used > CUDA_SLOTS_MAX ||
        w->n_row * w->n_used > CUDA_SLOTS_MAX)
        return "moe: expected 1 to 32 tokens and at most 256 pairs of a token and an expert";
    if (w->n_expert < 1 || w->n_expert > CUDA_EXPERTS_MAX || w->hidden < 64 || w->hidden % 64 ||
        w->inner < 64 || w->inner % 64)
        return "moe: expected 1 to 512 experts, and hidden and inner sizes that are multiples of 64";
    moe_params a = {*w, *scratch, {}};
    if (!plan_shared(&a.plan, limits, w->hidden > w->inner ? w->hidden : w->inner, 1))
        return "moe: eight rows of this length do not fit in shared memory";
    /* The routing's masks lie where the rows will. */
    const size_t masks = (size_t)w->n_expert * 36;
    if (a.plan.x_bytes + a.plan.head_bytes < masks)
        a.plan.bytes += masks - a.plan.x_bytes - a.plan.head_bytes;
    /* Blocks wait for each other: only such a launch promises that all run at once, whatever else is on the
     * GPU. */
    const char *why = gpu_why(gpu_allow_shared(moe_kernel, a.plan.bytes));
    return why ? why
               : gpu_why(gpu_launch_together(moe_kernel, (unsigned)limits->n_sm, N_THREAD, a.plan.bytes,
                                             stream, a));
}
