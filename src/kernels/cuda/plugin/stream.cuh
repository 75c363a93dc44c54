/* What the kernels for few rows over packed NVFP4 weights share: each warp streams its own part of the
 * weights through its own ring in shared memory, and multiplies them by rows of x with mma.m16n8k16, the
 * weights being A.
 *
 * The work of a launch is one or two phases; a phase is `n_pass` passes over matrices (an expert's, for at
 * most 8 * NT of its rows) of n_tile tiles each. A CTA takes one contiguous run of a phase's tiles, a round
 * is what of it has its rows of x in shared memory at once (mostly all of it), and the units of a round are
 * dealt evenly to the warps, again in contiguous runs. So all split points follow from the shapes and the
 * grid, and sums over them are made in their order: the same bits on every run. Only a tile that two or more
 * warps of a CTA share is summed through shared memory.
 *
 * Copies never wait for arithmetic: a warp's ring runs on into its next round, and from gate and up into
 * down. Within a round no warp waits for another. What a chunk needs besides its products is kept short, as
 * instructions are what holds these kernels (docs/SPEED.md): a ring's stages are groups of cp.async, so that
 * nothing has to be counted or named. */
#pragma once

#include "kernels/cuda/plugin/unit.cuh"

#define BLOCK_UNITS 4 /* multiplied without a decision between them */

/* The parts of dynamic shared memory, in this order: rings, rows of x, heads of tiles. */
template <typename Ring> static inline size_t ring_bytes()
{
    return (size_t)(N_WARP * Ring::stages) * Ring::bytes;
}
static inline size_t head_bytes(int nt)
{
    return (size_t)N_WARP * 4 * (size_t)nt * 32 * sizeof(float);
}

/* ---- divisions ------------------------------------------------------------------------------------- */

/* Division by a number that the host knows: a multiplication in place of some twenty instructions that wait
 * for each other. Right where v * by is below 2^32. */
struct divisor {
    int by;
    uint32_t part; /* 2^32 / by, rounded up; not of 1, which would not fit */
};
static inline struct divisor divisor_of(int by)
{
    return {by, by > 1 ? (uint32_t)(((1ull << 32) + (unsigned)by - 1) / (unsigned)by) : 0u};
}
__device__ __forceinline__ int divide(int v, const struct divisor &d)
{
    return d.by == 1 ? v : (int)(((uint64_t)(uint32_t)v * d.part) >> 32);
}

/* ---- rows of x in shared memory -------------------------------------------------------------------- */

/* 16 bytes beyond a row keep the lanes' loads in different banks. */
__host__ __device__ __forceinline__ uint32_t x_stride(int K)
{
    return 2u * (uint32_t)K + 16u;
}

/* Rows of K: eights load(r, at), so many of them asked for at once, which ready(v, r, at) finishes. by_unit:
 * a row's units of 64. All threads. */
template <int TOGETHER, typename Load, typename Ready>
__device__ __forceinline__ void stage_rows(uint8_t *xs, int n_row, int K, const struct divisor &by_unit,
                                           Load load, Ready ready)
{
    const int each = K / 8, rows_on = divide(N_THREAD / 8, by_unit), on = N_THREAD - rows_on * each;
    int r = divide((int)threadIdx.x / 8, by_unit), at = (int)threadIdx.x - r * each;
#pragma unroll 1
    while (r < n_row) {
        uint4 v[TOGETHER];
        int row[TOGETHER], place[TOGETHER];
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            row[j] = r;
            place[j] = at;
            if (r < n_row)
                v[j] = load(r, at);
            at += on;
            r += rows_on + (at >= each);
            at -= at >= each ? each : 0;
        }
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
            if (row[j] < n_row)
                *(uint4 *)(xs + (uint32_t)row[j] * x_stride(K) + 16 * place[j]) =
                    ready(v[j], row[j], place[j]);
    }
}

/* ---- dealing work ---------------------------------------------------------------------------------- */

struct phase {
    const uint8_t *weight;
    int64_t matrix_bytes; /* of one expert */
    int n_tile, n_unit;   /* tiles of a matrix, units of a tile */
    int lo, hi;           /* this CTA's, of n_pass * n_tile tiles */
    int room;             /* rows of x that fit */
    struct divisor by_tile, by_unit;
};

/* A matrix of n_row x K, with so many bytes for rows of x. */
static inline struct phase phase_of(const uint8_t *weight, int n_row, int K, size_t x_bytes)
{
    const int n_tile = (n_row + 15) / 16, n_unit = K / 64;
    return {weight,
            (int64_t)n_tile * n_unit * CUDA_UNIT_BYTES,
            n_tile,
            n_unit,
            0,
            0,
            (int)(x_bytes / x_stride(K)),
            divisor_of(n_tile),
            divisor_of(n_unit)};
}

__device__ __forceinline__ void deal(struct phase *p, int n_pass)
{
    const int all = n_pass * p->n_tile, grid = (int)gridDim.x, block = (int)blockIdx.x;
    const int each = all / grid, more = all - each * grid;
    p->lo = each * block + more * block / grid;
    p->hi = each * (block + 1) + more * (block + 1) / grid;
}

/* Where the round ends that begins at tile `lo` of all, lo < p->hi. passes.rows_before(pass): of all passes.
 */
template <typename Passes>
__device__ __forceinline__ int round_end(const struct phase *p, const Passes &passes, int lo)
{
    const int pass = divide(lo, p->by_tile), before = passes.rows_before(pass);
    int end = (pass + 1) * p->n_tile;
#pragma unroll 1
    for (int next = pass + 1; end < p->hi && passes.rows_before(next + 1) - before <= p->room; next++)
        end += p->n_tile;
    return min(end, p->hi);
}

/* Units of a round of n tiles before warp w's: whole blocks where tiles are, or whole pairs. */
__device__ __forceinline__ int warp_units(const struct phase *p, int n, int w)
{
    const int at = (int)((unsigned)(n * p->n_unit * w) / N_WARP);
    return w == N_WARP ? at : at & ~(p->n_unit % BLOCK_UNITS == 0 ? BLOCK_UNITS - 1 : p->n_unit % 2 == 0);
}

/* ---- a warp's ring --------------------------------------------------------------------------------- */

/* A chunk, or the n_unit units that there are of it, by all lanes, as one group. Weights are read once: they
 * should not push x out of the L2. `to` and `from` are the lane's own. */
#ifdef __CUDACC__
__device__ __forceinline__ void copy_16_once(shared_at to, const uint8_t *from, int at)
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to + at),
                 "l"(from + at), "l"(policy)
                 : "memory");
}
#else
static inline void copy_16_once(shared_at to, const uint8_t *from, int at)
{
    memcpy(to + at, from + at, 16);
}
#endif

template <int UNITS>
__device__ __forceinline__ void copy_chunk(shared_at to, const uint8_t *from, int n_unit, int lane)
{
    const int bytes = UNITS * CUDA_UNIT_BYTES;
    if (n_unit >= UNITS) {
#pragma unroll
        for (int i = 0; i < bytes / 512; i++)
            copy_16_once(to, from, 512 * i);
        if (bytes % 512 && lane < bytes % 512 / 16)
            copy_16_once(to, from, bytes / 512 * 512);
        return;
    }
#pragma unroll 1
    for (int at = 0; at + 16 * lane < n_unit * CUDA_UNIT_BYTES; at += 512)
        copy_16_once(to, from, at);
}

/* STAGES chunks of UNITS units, each a group of copies; a group may be empty. A stage is asked for again as
 * soon as it has been used, so one number says where the next chunk is and where it goes. */
template <int UNITS, int STAGES> struct ring {
    static constexpr int units = UNITS, stages = STAGES, bytes = UNITS * CUDA_UNIT_BYTES;
    uint8_t *data; /* [stages][bytes], this warp's */
    int stage;     /* bytes before the present one */
    /* What is to be asked for: */
    const uint8_t *from; /* this lane's */
    int left;            /* units of the present run */
    int phase;           /* of the round */
    int lo, hi;          /* tiles of the round */
    int at, end;         /* units of the round that are not in the present run */
};

/* The next run of units: up to the end of the pass or of the warp's part of the round. False: none. */
template <typename Ring, typename Passes>
__device__ __forceinline__ bool ring_next(Ring &r, const struct phase *phase, int n_phase,
                                          const Passes &passes, int warp, int lane)
{
#pragma unroll 1
    while (r.at >= r.end) {
        if (r.hi >= phase[r.phase].hi) {
            if (r.phase + 1 >= n_phase)
                return false;
            r.phase++;
            r.hi = phase[r.phase].lo;
            continue;
        }
        r.lo = r.hi;
        r.hi = round_end(&phase[r.phase], passes, r.lo);
        r.at = warp_units(&phase[r.phase], r.hi - r.lo, warp);
        r.end = warp_units(&phase[r.phase], r.hi - r.lo, warp + 1);
    }
    const struct phase *p = &phase[r.phase];
    const int tile = r.lo + divide(r.at, p->by_unit), pass = divide(tile, p->by_tile);
    const int pass_end = ((pass + 1) * p->n_tile - r.lo) * p->n_unit;
    r.left = min(r.end, pass_end) - r.at;
    r.from = p->weight + passes.matrix(pass) * p->matrix_bytes +
             (int64_t)(r.at + (r.lo - pass * p->n_tile) * p->n_unit) * CUDA_UNIT_BYTES + 16 * lane;
    r.at += r.left;
    return true;
}

/* Ask for a chunk, or for nothing, into the present stage, and go on to the next. All lanes. */
template <typename Ring, typename Passes>
__device__ __forceinline__ void ring_ask(Ring &r, const struct phase *phase, int n_phase,
                                         const Passes &passes, int warp, int lane)
{
    if (r.left > 0 || ring_next(r, phase, n_phase, passes, warp, lane)) {
        copy_chunk<Ring::units>(shared_address(r.data + r.stage + 16 * lane), r.from, r.left, lane);
        r.from += Ring::bytes;
        r.left = max(0, r.left - Ring::units);
    }
    copies_end();
    r.stage = r.stage == (Ring::stages - 1) * Ring::bytes ? 0 : r.stage + Ring::bytes;
}

/* Of which nothing is asked for yet; then ring_ask, Ring::stages times. */
template <typename Ring>
__device__ __forceinline__ Ring ring_make(uint8_t *memory, const struct phase *phase, int warp)
{
    Ring r = {};
    r.data = memory + warp * Ring::stages * Ring::bytes;
    r.hi = phase[0].lo;
    return r;
}

/* ---- one round ------------------------------------------------------------------------------------- */

template <int NT> __device__ __forceinline__ void clear(float (&c)[NT][4])
{
#pragma unroll
    for (int t = 0; t < NT; t++)
        c[t][0] = c[t][1] = c[t][2] = c[t][3] = 0.0f;
}

/* c += d, and d = 0 */
template <int NT> __device__ __forceinline__ void add(float (&c)[NT][4], float (&d)[NT][4])
{
#pragma unroll
    for (int i = 0; i < 4 * NT; i++)
        c[i / 4][i % 4] += d[i / 4][i % 4];
    clear<NT>(d);
}

/* Multiply the tiles lo to hi of phase `f` by the staged rows and hand each finished tile to done(to, tile,
 * c). c[t]: rows g and g + 8 of columns 8t + 2q and one more: c[0] c[1] row g, c[2] c[3] row g + 8.
 * x_of(pass): what this lane's rows, 8 and more apart, are in shared memory; to_of(pass): what done needs of
 * it, worked out once for all of its tiles. head: [N_WARP][NT * 4][32]. Begins after the staging and ends
 * with a barrier behind the products: xs may then be written. All threads. */
template <int NT, typename To, typename Ring, typename Passes, typename Row, typename ToOf, typename Done>
__device__ __forceinline__ void run_round(const struct phase *phase, int n_phase, int f, int lo, int hi,
                                          Ring &ring, const Passes &passes, float *head, int warp, int lane,
                                          Row x_of, ToOf to_of, Done done)
{
    const struct phase *p = &phase[f];
    const int S = p->n_unit, n_tile = p->n_tile, end = warp_units(p, hi - lo, warp + 1);
    const uint32_t x_step = 8u * x_stride(64 * S);
    const int first = warp_units(p, hi - lo, warp);
    int at = first, tile = lo + divide(first, p->by_unit), rest = S - (first - (tile - lo) * S),
        first_tile = 0;
    To to = {};
    bool whole = rest == S;   /* this warp has the present tile from its first unit on */
    float c[NT][4], d[NT][4]; /* two sums: products of one wait for each other */
    float *own_head = head + warp * 4 * NT * 32 + lane;
    clear<NT>(c);
    clear<NT>(d);
#pragma unroll 1
    while (at < end) { /* a run */
        const int pass = divide(tile, p->by_tile), run_end = min(end, ((pass + 1) * n_tile - lo) * S);
        first_tile = pass * n_tile;
        to = to_of(pass);
        const uint8_t *row = x_of(pass) + (uint32_t)(lane & 3) * 32u, *x = row + 128 * (S - rest);
#pragma unroll 1
        for (; at < run_end; at += Ring::units) {
            copies_wait<Ring::stages - 1>();
            __syncwarp();
            const uint8_t *unit = ring.data + ring.stage;
            int left = min(Ring::units, run_end - at);
#pragma unroll 1
            do {
                const int most = min(left, rest);
                int n = most >= BLOCK_UNITS ? BLOCK_UNITS : most >= 2 ? 2 : 1;
                if (NT == 1 && Ring::units > BLOCK_UNITS && most == Ring::units) { /* mostly */
                    n = Ring::units;
#pragma unroll
                    for (int i = 0; i < Ring::units; i++)
                        multiply_unit<NT>(i % 2 ? d : c, unit + i * CUDA_UNIT_BYTES, x + 128 * i, x_step,
                                          lane);
                } else if (n == BLOCK_UNITS) {
#pragma unroll
                    for (int i = 0; i < BLOCK_UNITS; i++)
                        multiply_unit<NT>(i % 2 ? d : c, unit + i * CUDA_UNIT_BYTES, x + 128 * i, x_step,
                                          lane);
                } else {
                    multiply_unit<NT>(c, unit, x, x_step, lane);
                    if (n == 2)
                        multiply_unit<NT>(d, unit + CUDA_UNIT_BYTES, x + 128, x_step, lane);
                }
                unit += n * CUDA_UNIT_BYTES;
                x += 128 * n;
                left -= n;
                rest -= n;
                if (rest > 0)
                    continue;
                add<NT>(c, d);
                if (whole)
                    done(to, tile - first_tile, c);
                else
                    for (int j = 0; j < 4 * NT; j++)
                        own_head[j * 32] = c[j / 4][j % 4];
                clear<NT>(c);
                whole = true;
                tile++;
                rest = S;
                x = row;
            } while (left > 0);
            __syncwarp(); /* all lanes have read the chunk: its place may be written */
            ring_ask(ring, phase, n_phase, passes, warp, lane);
        }
        at = run_end;
    }
    const bool tail = end > first && rest < S;
    add<NT>(c, d);
    if (tail && !whole) /* neither end of the tile: it counts as a head */
        for (int j = 0; j < 4 * NT; j++)
            own_head[j * 32] = c[j / 4][j % 4];
    __syncthreads();
    if (tail && whole) { /* the first part of a tile: add the others in their order */
        const int tile_end = (tile + 1 - lo) * S;
#pragma unroll 1
        for (int v = warp + 1; v < N_WARP && warp_units(p, hi - lo, v) < tile_end; v++)
            if (warp_units(p, hi - lo, v + 1) > warp_units(p, hi - lo, v))
                for (int j = 0; j < 4 * NT; j++)
                    c[j / 4][j % 4] += head[(v * 4 * NT + j) * 32 + lane];
        done(to, tile - first_tile, c);
    }
}
