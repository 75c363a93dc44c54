/* What the kernels over packed NVFP4 weights share: each warp streams its own part of the weights through its
 * own ring in shared memory, and multiplies them by rows of x with mma.m16n8k16, the weights being A.
 *
 * The work of a launch is one or two phases; a phase is `n_pass` passes over matrices (an expert's, for at
 * most 8 * NT of its rows) of n_tile tiles each. A CTA takes one contiguous run of a phase's tiles, a segment
 * is what of it lies in one pass, and the units of a segment are dealt evenly to the warps, again in
 * contiguous runs. So all split points follow from the shapes and the grid, and sums over them are made in
 * their order: the same bits on every run. Only a tile that two or more warps of a CTA share is summed
 * through shared memory.
 *
 * Copies never wait for arithmetic: a warp's ring runs on into its next segment, and from gate and up into
 * down. */
#pragma once

#include "kernels/cuda/plugin/unit.cuh"

/* ---- rows of x in shared memory -------------------------------------------------------------------- */

/* 16 bytes beyond a row keep the lanes' loads in different banks. */
__host__ __device__ __forceinline__ uint32_t x_stride(int K)
{
    return 2u * (uint32_t)K + 16u;
}

/* Rows of K bf16 in the order the lanes read. All threads, each some eights of some rows; row_of(i) is row i
 * in memory. Past the L1: other CTAs write h. */
template <typename Row> __device__ __forceinline__ void stage_rows(uint8_t *xs, int n_row, int K, Row row_of)
{
    const int n = K / 8;
    for (int i = threadIdx.x; i < n_row * n; i += N_THREAD) {
        const int r = i / n, at = i % n;
        stage_eight(xs + (uint32_t)r * x_stride(K), at, __ldcg((const uint4 *)row_of(r) + at));
    }
}

/* ---- dealing work ---------------------------------------------------------------------------------- */

struct phase {
    const uint8_t *weight;
    int64_t matrix_bytes; /* of one expert */
    int n_tile, n_unit;   /* tiles of a matrix, units of a tile */
    int lo, hi;           /* this CTA's, of n_pass * n_tile tiles */
};

struct segment {
    int pass, first, n; /* tiles first to first + n - 1 of the pass's matrix */
};

__device__ __forceinline__ void deal(struct phase *p, int n_pass)
{
    const int64_t all = (int64_t)n_pass * p->n_tile;
    p->lo = (int)(all * blockIdx.x / gridDim.x);
    p->hi = (int)(all * (blockIdx.x + 1) / gridDim.x);
}

__device__ __forceinline__ struct segment segment_at(const struct phase *p, int at)
{
    struct segment s;
    s.pass = at / p->n_tile;
    s.first = at - s.pass * p->n_tile;
    s.n = min(p->n_tile - s.first, p->hi - at);
    return s;
}

/* Units of the segment before warp w's. */
__device__ __forceinline__ int warp_units(const struct phase *p, const struct segment *s, int w)
{
    return s->n * p->n_unit * w / N_WARP;
}

/* ---- a warp's ring --------------------------------------------------------------------------------- */

struct ring {
    uint8_t *data;    /* [n_stage][CHUNK_BYTES], this warp's */
    uint32_t barrier; /* [n_stage], shared address           */
    int n_stage;
    int put, taken; /* stages of the next chunk to ask for and to use */
    int ahead;      /* chunks asked for and not used        */
    uint32_t parity;
    /* What is to be asked for: */
    const struct phase *phase;
    int n_phase, at; /* tiles of phase[0] asked for */
    const uint8_t *from;
    int left;                 /* units of the present segment */
    const int16_t *expert_of; /* [pass] in shared memory; NULL: one matrix */
};

/* The next segment that has units for this warp. False: none. */
__device__ __forceinline__ bool ring_next(struct ring *r, int warp)
{
    while (r->left == 0) {
        if (r->n_phase == 0)
            return false;
        const struct phase *p = r->phase;
        if (r->at >= p->hi) {
            r->phase++;
            if (--r->n_phase > 0)
                r->at = r->phase->lo;
            continue;
        }
        const struct segment s = segment_at(p, r->at);
        const int lo = warp_units(p, &s, warp), hi = warp_units(p, &s, warp + 1);
        const int64_t matrix = r->expert_of ? r->expert_of[s.pass] : 0;
        r->from =
            p->weight + matrix * p->matrix_bytes + ((int64_t)s.first * p->n_unit + lo) * CUDA_UNIT_BYTES;
        r->left = hi - lo;
        r->at += s.n;
    }
    return true;
}

__device__ __forceinline__ void ring_fill(struct ring *r, int warp, int lane)
{
    while (r->ahead < r->n_stage && ring_next(r, warp)) {
        const int n = min(CHUNK_UNITS, r->left);
        copy_weights(shared_address(r->data + r->put * CHUNK_BYTES), r->from, n * CUDA_UNIT_BYTES,
                     r->barrier + 8u * r->put, lane);
        r->from += n * CUDA_UNIT_BYTES;
        r->left -= n;
        r->put = r->put + 1 == r->n_stage ? 0 : r->put + 1;
        r->ahead++;
    }
}

__device__ __forceinline__ const uint8_t *ring_take(struct ring *r)
{
    barrier_wait(r->barrier + 8u * r->taken, r->parity);
    return r->data + r->taken * CHUNK_BYTES;
}

/* All lanes have read the chunk: its place may be written. */
__device__ __forceinline__ void ring_drop(struct ring *r, int warp, int lane)
{
    __syncwarp();
    if (++r->taken == r->n_stage) {
        r->taken = 0;
        r->parity ^= 1;
    }
    r->ahead--;
    ring_fill(r, warp, lane);
}

/* ---- one segment ----------------------------------------------------------------------------------- */

template <int NT> __device__ __forceinline__ void clear(float c[NT][4])
{
#pragma unroll
    for (int t = 0; t < NT; t++)
        c[t][0] = c[t][1] = c[t][2] = c[t][3] = 0.0f;
}

/* c += d, and d = 0 */
template <int NT> __device__ __forceinline__ void add(float c[NT][4], float d[NT][4])
{
#pragma unroll
    for (int i = 0; i < 4 * NT; i++)
        c[i / 4][i % 4] += d[i / 4][i % 4];
    clear<NT>(d);
}

/* Multiply the segment's tiles by the staged rows and hand each finished tile to done(tile, c). c[t]: rows g
 * and g + 8 of columns 8t + 2q and one more: c[0] c[1] row g, c[2] c[3] row g + 8. head: [N_WARP][NT *
 * 4][32]. Begins after the staging and ends with a barrier behind it: xs may then be written. */
template <int NT, typename Done>
__device__ __forceinline__ void run_segment(const struct phase *p, const struct segment *s, struct ring *ring,
                                            const uint8_t *xs, uint32_t stride, float *head, int warp,
                                            int lane, Done done)
{
    const int S = p->n_unit, lo = warp_units(p, s, warp), hi = warp_units(p, s, warp + 1);
    const uint8_t *x = xs + (uint32_t)(lane >> 2) * stride + (uint32_t)(lane & 3) * 32u;
    float c[NT][4], d[NT][4]; /* two sums: products of one wait for each other */
    int tile = lo / S, k = lo - tile * S;
    bool whole = k == 0; /* this warp has the present tile from its first unit on */
    clear<NT>(c);
    clear<NT>(d);
    auto flush = [&] {
        add<NT>(c, d);
        if (whole)
            done(s->first + tile, c);
        else
            for (int j = 0; j < 4 * NT; j++)
                head[(warp * 4 * NT + j) * 32 + lane] = c[j / 4][j % 4];
        clear<NT>(c);
        whole = true;
        tile++;
        k = 0;
    };
    for (int u = lo; u < hi;) {
        const int n = min(CHUNK_UNITS, hi - u);
        const uint8_t *unit = ring_take(ring);
        if (n == CHUNK_UNITS &&
            k + CHUNK_UNITS <= S) { /* the usual case, with nothing to decide between units */
#pragma unroll
            for (int i = 0; i < CHUNK_UNITS; i++)
                multiply_unit<NT>(i % 2 ? d : c, unit + i * CUDA_UNIT_BYTES, x + 128 * (k + i), 8 * stride,
                                  lane);
            k += CHUNK_UNITS;
            if (k == S)
                flush();
        } else {
            for (int i = 0; i < n; i++, unit += CUDA_UNIT_BYTES) {
                multiply_unit<NT>(c, unit, x + 128 * k, 8 * stride, lane);
                if (++k == S)
                    flush();
            }
        }
        u += n;
        ring_drop(ring, warp, lane);
    }
    const bool tail = hi > lo && k > 0;
    add<NT>(c, d);
    if (tail && !whole) /* neither end of the tile: it counts as a head */
        for (int j = 0; j < 4 * NT; j++)
            head[(warp * 4 * NT + j) * 32 + lane] = c[j / 4][j % 4];
    __syncthreads();
    if (tail && whole) { /* the first part of a tile: add the others in their order */
        const int end = (tile + 1) * S;
        for (int v = warp + 1; v < N_WARP && warp_units(p, s, v) < end; v++)
            if (warp_units(p, s, v + 1) > warp_units(p, s, v))
                for (int j = 0; j < 4 * NT; j++)
                    c[j / 4][j % 4] += head[(v * 4 * NT + j) * 32 + lane];
        done(s->first + tile, c);
    }
}
