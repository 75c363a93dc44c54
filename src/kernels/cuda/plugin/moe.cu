/* A layer of experts for few tokens in one launch: gate and up, SwiGLU, down, sum over the experts of a
 * token.
 *
 * Every CTA sorts the routing for itself. Each expert's slots (token, place among the token's experts) become
 * passes of at most eight. h and y have a row a slot, and at the end a token's rows are added in order: no
 * sum depends on timing.
 *
 * Blocks hand h and y to each other without fence or counter: words are stored complemented (no number with
 * all bits set is ever made), so that a zero is "not there yet", and who needs a word spins on it. So a block
 * begins with down as soon as the few blocks that have its experts' h are done, and adds what it has to add
 * as it comes. The words are cleared at the beginning of the same launch, before it waits for the one in
 * front where that may be; before a block writes or reads one it has seen that all blocks have cleared
 * theirs, which is long past by then. */
#include <algorithm>

#include "kernels/cuda/plugin/moe_deal.cuh"
#include "kernels/cuda/plugin/operators.h"

#define N_PHASE     2
#define MASKS       (MOE_SLOTS_MAX / 32)
#define MASK_STRIDE (MASKS + 4) /* so that neighbours' lie in different banks */

/* Where the longer chunks do not fit beside eight rows, the shorter may. */
typedef struct ring<8, 2> long_ring;
typedef struct ring<4, 2> short_ring;

/* A thread a slot, and one an expert. */
static_assert(MOE_SLOTS_MAX == N_THREAD && CUDA_EXPERTS_MAX <= N_THREAD, "routing");
static_assert(CUDA_EXPERTS_MAX * (MASK_STRIDE + 1) * 4 <= N_WARP * short_ring::stages * short_ring::bytes,
              "masks lie where the ring comes");

struct moe_params {
    struct packed_moe w;
    struct moe_scratch scratch;
    size_t x_bytes;
    struct phase phase[N_PHASE]; /* lo and hi are for the kernel to say */
};

struct routing {
    int n_pass;
    int16_t expert[MOE_SLOTS_MAX];     /* [pass] */
    int16_t before[MOE_SLOTS_MAX + 1]; /* slots of the passes before */
    uint16_t slot[MOE_SLOTS_MAX];      /* in the order of the passes */
    uint16_t token[MOE_SLOTS_MAX];     /* of these */
    float scale[3][MOE_SLOTS_MAX];     /* of gate, up, down: [pass], read at once and early */
    int rounds[N_WARP];                /* rounds_find */
};

struct moe_passes {
    const struct routing *r;
    __device__ __forceinline__ int rows_before(int pass) const
    {
        return r->before[pass];
    }
    __device__ __forceinline__ int64_t matrix(int pass) const
    {
        return r->expert[pass];
    }
};

/* ---- rows of x ------------------------------------------------------------------------------------- */

/* All of them to shared memory, later, as one group of copies. All threads. */
static __device__ __forceinline__ void ask_for_x(uint8_t *xs, const struct packed_moe &w)
{
    const int each = w.hidden / 8, rows_on = N_THREAD / each, on = N_THREAD - rows_on * each;
    int r = (int)threadIdx.x / each, at = (int)threadIdx.x - r * each;
#pragma unroll 1
    while (r < w.n_row) {
        copy_16(xs + (uint32_t)r * x_stride(w.hidden) + 16 * at, (const uint4 *)w.x + (size_t)r * each + at);
        at += on;
        r += rows_on + (at >= each);
        at -= at >= each ? each : 0;
    }
    copies_end();
}

/* ---- weights before the routing -------------------------------------------------------------------- */

/* The weights that this block would begin with if all experts had a row go into the L2 before the routing is
 * known: the memory is idle until then, so that it pays even where two in five of them are needed by some
 * block. */
#define AHEAD 16 /* units of each warp */
static __device__ __forceinline__ void ask_ahead(const moe_params &a, int warp, int lane)
{
    if (2 * a.w.n_row * a.w.n_used < a.w.n_expert || lane > 0)
        return;
    struct phase p = a.phase[0];
    deal(&p, a.w.n_expert);
    const int at = warp_units(&p, p.hi - p.lo, warp), end = warp_units(&p, p.hi - p.lo, warp + 1);
    if (at < end)
        gpu_prefetch_bulk(p.weight + ((int64_t)p.lo * p.n_unit + at) * CUDA_UNIT_BYTES,
                          (uint32_t)(min(AHEAD, end - at) * CUDA_UNIT_BYTES));
}

/* ---- routing --------------------------------------------------------------------------------------- */

/* Passes by expert ascending, slots ascending within one; id: this thread's slot's, or -1. mask:
 * [n_expert][MASK_STRIDE], and count: [n_expert rounded up to RUN], zeros of shared memory. Every warp adds
 * up all experts for itself, which is quicker than to meet. meanwhile(): what is asked for behind the ids;
 * known(n_pass): what their number is enough for, before the last barrier. All threads. */
#define RUN 128 /* experts of a warp at a time */
template <typename Meanwhile, typename Known>
static __device__ __forceinline__ void route(struct routing *r, const struct packed_moe &w, int id,
                                             uint32_t *mask, int *count, Meanwhile meanwhile, Known known)
{
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    const int n_expert = w.n_expert, e = id < n_expert ? id : -1;
    if (e >= 0) {
        atomicOr(&mask[e * MASK_STRIDE + warp], 1u << lane);
        atomicAdd(&count[e], 1);
    }
    meanwhile();
    __syncthreads();
    int rank = 0;
    if (e >= 0) {
        rank = __popc(mask[e * MASK_STRIDE + warp] & ((1u << lane) - 1));
#pragma unroll
        for (int i = 0; i < MASKS; i += 4)
            if (i < warp) { /* what lies behind the warp's own is not counted */
                const uint4 m = *(const uint4 *)&mask[e * MASK_STRIDE + i];
                rank += __popc(m.x) + (i + 1 < warp ? __popc(m.y) : 0) + (i + 2 < warp ? __popc(m.z) : 0) +
                        (i + 3 < warp ? __popc(m.w) : 0);
            }
    }
    int all = 0; /* passes above, slots below, added up together */
#pragma unroll 1
    for (int e0 = 0; e0 < n_expert; e0 += RUN) {
        const uint4 four = *(const uint4 *)(count + e0 + 4 * lane);
        const int n[4] = {(int)four.x, (int)four.y, (int)four.z, (int)four.w};
        int own = 0, before[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            before[i] = own;
            own += (n[i] + 7) / 8 << 16 | n[i];
        }
        int sum = own;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const int other = __shfl_up_sync(ALL_LANES, sum, d);
            sum += lane >= d ? other : 0;
        }
        int first = 0; /* of the slot's expert */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            before[i] += all + sum - own;
            const int found = __shfl_sync(ALL_LANES, before[i], e % RUN / 4 & 31);
            first = e % 4 == i ? found : first;
        }
        if (e >= e0 && e < e0 + RUN) {
            const int at = (first & 0xffff) + rank;
            r->slot[at] = (uint16_t)t;
            r->token[at] = (uint16_t)(t / w.n_used);
        }
        if (warp < 4) { /* this one's of each lane */
            const int mine = warp == 0   ? before[0]
                             : warp == 1 ? before[1]
                             : warp == 2 ? before[2]
                                         : before[3];
            const int slots = warp == 0 ? n[0] : warp == 1 ? n[1] : warp == 2 ? n[2] : n[3];
#pragma unroll 1
            for (int i = 0; 8 * i < slots; i++) {
                r->expert[(mine >> 16) + i] = (int16_t)(e0 + 4 * lane + warp);
                r->before[(mine >> 16) + i] = (int16_t)((mine & 0xffff) + 8 * i);
            }
        }
        all += __shfl_sync(ALL_LANES, sum, 31);
    }
    const int n_pass = all >> 16;
    if (t == N_THREAD - 1) {
        r->n_pass = n_pass;
        r->before[n_pass] = (int16_t)(all & 0xffff);
    }
    known(n_pass);
    __syncthreads();
}

/* ---- words from block to block --------------------------------------------------------------------- */

/* One thread of each block, behind a barrier of it: what it cleared is there for whoever has waited. The top
 * bit flips when the last arrives: CTA 0 adds what the others lack to 2^31. */
static __device__ __forceinline__ void cleared(uint32_t *barrier, uint32_t *before)
{
    *before = gpu_add_release(barrier, blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u);
}

static __device__ __forceinline__ void all_cleared(const uint32_t *barrier, uint32_t before)
{
    while (((before ^ gpu_load_acquire(barrier)) & 0x80000000u) == 0)
        gpu_wait_block();
}

static __device__ __forceinline__ void clear_words(void *words, int n, int grid)
{
#pragma unroll 1
    for (int i = (int)blockIdx.x * N_THREAD + (int)threadIdx.x; i < n / 4; i += grid * N_THREAD)
        ((uint4 *)words)[i] = make_uint4(0, 0, 0, 0);
}

static __device__ __forceinline__ void clear(const moe_params &a, int n_slot)
{
    clear_words(a.scratch.h, n_slot * (a.w.inner / 2), (int)gridDim.x);
    if (!a.w.each)
        clear_words(a.scratch.y, n_slot * a.w.hidden, (int)gridDim.x);
}

/* v: what lay at p a moment ago. */
static __device__ __forceinline__ uint4 take_words(uint4 v, const uint4 *p)
{
    while (v.x == 0 || v.y == 0 || v.z == 0 || v.w == 0) {
        gpu_wait_block();
        v = gpu_load_grid(p);
    }
    return make_uint4(~v.x, ~v.y, ~v.z, ~v.w);
}

/* Two neurons, of rows g and g + 1, as a word, by every other g. All lanes. */
static __device__ __forceinline__ void put_h(uint32_t *word, bool there, float h, int lane)
{
    const uint32_t own = float_bf16(h), next = __shfl_down_sync(ALL_LANES, own, 4);
    if (lane % 8 < 4 && there)
        gpu_store_grid(word, ~(own | next << 16));
}

/* A token's experts, so many of them asked for at once. */
#define TOGETHER 8

static __device__ __forceinline__ uint32_t take_words(uint32_t v, const uint32_t *p)
{
    while (v == 0) {
        gpu_wait_block();
        v = gpu_load_grid(p);
    }
    return ~v;
}

static __device__ __forceinline__ void add_weighted(float &sum, float w, uint32_t y)
{
    sum += w * __uint_as_float(y);
}

static __device__ __forceinline__ void add_weighted(float4 &sum, float w, uint4 y)
{
    add_weighted(sum.x, w, y.x);
    add_weighted(sum.y, w, y.y);
    add_weighted(sum.z, w, y.z);
    add_weighted(sum.w, w, y.w);
}

/* Words, and outputs, that a thread takes at once: four where there are many, so that the blocks' shares are
 * one turn of their threads; else one, in as few blocks as it takes. */
template <typename Words, typename Sums> static __device__ __forceinline__ void finalize(const moe_params &a)
{
    const bool many = sizeof(Words) > 4;
    const int H = a.w.hidden / (int)(sizeof(Words) / 4), k = a.w.n_used, n = a.w.n_row * H;
    const int grid = (int)gridDim.x, run = many ? ((n + grid - 1) / grid + 7) & ~7 : N_THREAD,
              first = (int)blockIdx.x * run, end = many ? min(n, first + run) : n,
              step = many ? N_THREAD : grid * N_THREAD;
    const Words *y = (const Words *)a.scratch.y;
#pragma unroll 1
    for (int i = first + (int)threadIdx.x; i < end; i += step) {
        const int t = i / H, c = i - t * H;
        Sums sum = {};
#pragma unroll 1
        for (int j0 = 0; j0 < k; j0 += TOGETHER) {
            bool counts[TOGETHER];
            float w[TOGETHER];
            Words v[TOGETHER];
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) {
                const int slot = t * k + min(j0 + j, k - 1), e = a.w.id[slot];
                counts[j] = j0 + j < k && e >= 0 && e < a.w.n_expert;
                w[j] = a.w.weight[slot];
                v[j] = gpu_load_grid(y + (size_t)slot * H + c);
            }
#pragma unroll
            for (int j = 0; j < TOGETHER; j++)
                if (counts[j])
                    add_weighted(sum, w[j],
                                 take_words(v[j], y + (size_t)(t * k + min(j0 + j, k - 1)) * H + c));
        }
        ((Sums *)a.w.out)[i] = sum;
    }
}

/* Where a lane's two rows of a pass go, as words of h or y, or -1, and what they are multiplied by: gate and
 * up, or down. */
struct out_rows {
    int at[2];
    float scale[2];
};

/* ---- the kernel ------------------------------------------------------------------------------------ */

template <typename Ring> static __global__ void __launch_bounds__(N_THREAD, 1) moe_kernel(const moe_params a)
{
    DYNAMIC_SHARED(memory);
    SHARED(struct phase[N_PHASE], phases);
    SHARED(struct routing, routing);
    SHARED(uint32_t, met);
    const int warp = __shfl_sync(ALL_LANES, (int)threadIdx.x / 32, 0), lane = (int)threadIdx.x % 32;
    const int H = a.w.hidden, I = a.w.inner, n_slot = a.w.n_row * a.w.n_used;
    uint8_t *xs = memory + N_WARP * Ring::stages * Ring::bytes;
    float *head = (float *)(xs + a.x_bytes);
    uint32_t *mask = (uint32_t *)memory, *h = (uint32_t *)a.scratch.h, *y = (uint32_t *)a.scratch.y;

#pragma unroll 1
    for (int i = threadIdx.x; i < a.w.n_expert * MASK_STRIDE / 4 + (a.w.n_expert + RUN - 1) / RUN * (RUN / 4);
         i += N_THREAD)
        ((uint4 *)mask)[i] = make_uint4(0, 0, 0, 0);
    ask_ahead(a, warp, lane);
    const struct moe_share share = share_of_block();
    if (a.scratch.early) {
        clear(a, n_slot);
        __syncthreads();
        if (threadIdx.x == N_THREAD - 1)
            cleared(a.scratch.barrier, &met);
    }
    gpu_wait_before();
    const int id = (int)threadIdx.x < n_slot ? a.w.id[threadIdx.x] : -1;
    if (!a.scratch.early) {
        clear(a, n_slot);
        __syncthreads();
    }
    /* Where a block may have passes of experts that all rows take and of others, it has all rows if they fit:
     * else they would be two rounds. */
    const bool all_rows = a.w.n_shared > 0 && a.w.n_row <= a.phase[0].room;
    const bool two_rounds = !all_rows && a.phase[0].room < 16; /* two passes' rows */
    float scale[3] = {};
    route(
        &routing, a.w, id, mask, (int *)(mask + a.w.n_expert * MASK_STRIDE),
        [&]() {
            if (all_rows)
                ask_for_x(xs, a.w);
        },
        [&](int n_pass) {
            const int f = (int)threadIdx.x - (N_THREAD - 32); /* the last warp has least to do */
            if (f >= 0 && f < N_PHASE) {
                struct phase p = f == 0 ? a.phase[0] : a.phase[1];
                deal(&p, n_pass);
                if (f == 0 && all_rows)
                    p.room = MOE_SLOTS_MAX;
                phases[f] = p;
            }
        });
    if ((int)threadIdx.x < routing.n_pass) {
        const int e = routing.expert[threadIdx.x];
        scale[0] = a.w.gate_scale[e];
        scale[1] = a.w.up_scale[e];
        scale[2] = a.w.down_scale[e];
    }
    if (two_rounds) {
        const uint32_t apart = rounds_find(routing.before, routing.n_pass, a.phase[0].room, routing.rounds);
        __syncthreads();
        rounds_deal(&phases[0], routing.n_pass, share, apart, routing.rounds);
        __syncthreads();
    }
    if (!a.scratch.early &&
        threadIdx.x == N_THREAD - 1) /* now: behind weights it would wait for all of them */
        cleared(a.scratch.barrier, &met);
    const int n_pass = routing.n_pass;
    const moe_passes passes = {&routing};
    uint32_t met_before = 0;
    Ring ring = ring_make<Ring>(memory, phases, warp);
    bool begun = false, may_write = false;

#pragma unroll 1
    for (int f = 0, lo = phases[0].lo; f < N_PHASE;) {
        const int K = f == 0 ? H : I;
        int hi = lo, first_row = 0;
        if (lo < phases[f].hi)
            hi = round_end(&phases[f], passes, lo);
        if (lo < hi && !(f == 0 && all_rows)) {
            first_row = routing.before[divide(lo, phases[f].by_tile)];
            const uint4 *from = (const uint4 *)(f == 0 ? a.w.x : a.scratch.h);
            const uint16_t *row = (f == 0 ? routing.token : routing.slot) + first_row;
            stage_rows<4>(
                xs, routing.before[divide(hi - 1, phases[f].by_tile) + 1] - first_row, K, phases[f].by_unit,
                [&](int r, int at) { return gpu_load_grid(from + (size_t)row[r] * (K / 8) + at); },
                [&](uint4 v, int r, int at) {
                    return f == 0 ? v : take_words(v, from + (size_t)row[r] * (K / 8) + at);
                });
        }
        if (!begun) { /* what is asked for behind weights waits for all of them: rows of x go first */
#pragma unroll 1
            for (int i = 0; i < Ring::stages; i++)
                ring_ask(ring, phases, N_PHASE, passes, warp, lane);
            copies_wait<Ring::stages>(); /* x, if it was asked for: what came before the ring's */
            if ((int)threadIdx.x < n_pass)
#pragma unroll
                for (int i = 0; i < 3; i++)
                    routing.scale[i][threadIdx.x] = scale[i] * CUDA_SCALE_BACK;
        }
        __syncthreads();
        if (!begun)
            met_before = met;
        begun = true;
        if (lo < hi)
            run_round<1, out_rows>(
                phases, N_PHASE, f, lo, hi, ring, passes, head, warp, lane,
                [&](int pass) {
                    const int before = routing.before[pass], n = routing.before[pass + 1] - before,
                              at = before + min(lane >> 2, n - 1);
                    return xs +
                           (uint32_t)(f == 0 && all_rows ? routing.token[at] : at - first_row) * x_stride(K);
                },
                [&](int pass) {
                    const uint16_t *slot = routing.slot + routing.before[pass];
                    const int n_row = routing.before[pass + 1] - routing.before[pass], r = (lane & 3) * 2;
                    const int width = f == 0 ? I / 2 : H, own = f == 0 ? lane / 8 : lane / 4;
                    return out_rows{{r < n_row ? slot[r] * width + own : -1,
                                     r + 1 < n_row ? slot[r + 1] * width + own : -1},
                                    {routing.scale[f == 0 ? 0 : 2][pass], routing.scale[1][pass]}};
                },
                [&](const out_rows &to, int tile, float(&c)[1][4]) {
                    if (!may_write) {
                        if (lane == 0)
                            all_cleared(a.scratch.barrier, met_before);
                        __syncwarp();
                        may_write = true;
                    }
                    if (f == 0) {
#pragma unroll
                        for (int i = 0; i < 2; i++)
                            put_h(h + (to.at[i] + tile * 4), to.at[i] >= 0,
                                  swiglu(c[0][i] * to.scale[0], c[0][2 + i] * to.scale[1]), lane);
                        return;
                    }
                    const uint32_t turn = a.w.each ? 0u : ~0u;
#pragma unroll
                    for (int i = 0; i < 2; i++)
                        if (to.at[i] >= 0) {
                            uint32_t *at = y + (to.at[i] + tile * 16);
                            gpu_store_grid(at, __float_as_uint(c[0][i] * to.scale[0]) ^ turn);
                            gpu_store_grid(at + 8, __float_as_uint(c[0][2 + i] * to.scale[0]) ^ turn);
                        }
                });
        lo = hi;
        if (lo < phases[f].hi)
            continue;
        if (++f == N_PHASE)
            break;
        lo = phases[f].lo;
        gpu_let_next();
        if (threadIdx.x == 0)
            all_cleared(a.scratch.barrier, met_before);
        __syncthreads();
    }
    if (a.w.each) /* y is the result */
        return;
    if (a.w.n_row * H > (int)gridDim.x * N_THREAD)
        finalize<uint4, float4>(a);
    else
        finalize<uint32_t, float>(a);
}

/* ---- which ----------------------------------------------------------------------------------------- */

/* Bytes of rows: all that is left beside the rings; 0: not eight rows. */
template <typename Ring> static size_t x_room(const struct packed_moe *w, const struct gpu_limits *limits)
{
    const size_t others = ring_bytes<Ring>() + head_bytes(1) + 10752; /* the kernel's own */
    const size_t least = 8 * (size_t)x_stride(std::max(w->hidden, w->inner));
    return others + least <= limits->shared_bytes ? (limits->shared_bytes - others) & ~(size_t)127 : 0;
}

template <typename Ring>
static const char *start(const struct packed_moe *w, const struct moe_scratch *scratch, size_t x_bytes,
                         const struct op_place *at)
{
    const moe_params a = {*w,
                          *scratch,
                          x_bytes,
                          {phase_of(w->gate_up, 2 * w->inner, w->hidden, x_bytes),
                           phase_of(w->down, w->hidden, w->inner, x_bytes)}};
    const size_t bytes = ring_bytes<Ring>() + x_bytes + head_bytes(1);
    const char *why = gpu_why(gpu_allow_shared(moe_kernel<Ring>, bytes));
    return why ? why
               : gpu_why(gpu_launch_meeting(at->alone, moe_kernel<Ring>, (unsigned)at->limits->n_sm, N_THREAD,
                                            bytes, at->stream, a));
}

static bool is_in_range(const struct packed_moe *w)
{
    return w->n_row >= 1 && w->n_row <= MOE_SLOTS_MAX && w->n_used >= 1 &&
           w->n_used <= MOE_SLOTS_MAX / w->n_row;
}

bool moe_takes(const struct packed_moe *w, const struct gpu_limits *limits)
{
    return is_in_range(w) && x_room<short_ring>(w, limits) > 0;
}

const char *moe_start(const struct packed_moe *w, const struct moe_scratch *scratch,
                      const struct op_place *at)
{
    if (!is_in_range(w))
        return "moe: expected at least one token and at most 512 pairs of a token and an expert";
    if (w->n_expert < 1 || w->n_expert > CUDA_EXPERTS_MAX || w->hidden < 64 || w->hidden % 64 ||
        w->inner < 64 || w->inner % 64)
        return "moe: expected 1 to 512 experts, and hidden and inner sizes that are multiples of 64";
    size_t room = x_room<long_ring>(w, at->limits);
    if (room > 0)
        return start<long_ring>(w, scratch, room, at);
    if ((room = x_room<short_ring>(w, at->limits)) > 0)
        return start<short_ring>(w, scratch, room, at);
    return "moe: eight rows of this length do not fit in shared memory";
}
