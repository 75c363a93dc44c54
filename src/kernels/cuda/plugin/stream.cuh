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

#include <cuda_bf16.h>
#include <stdint.h>

#include "kernels/cuda/cuda_layout.h"

#define N_WARP      16
#define N_THREAD    (32 * N_WARP)
#define CHUNK_UNITS 4
#define CHUNK_BYTES (CHUNK_UNITS * CUDA_UNIT_BYTES)
#define STAGES_MAX  6

/* ---- mbarriers and copies -------------------------------------------------------------------------- */

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* A phase of a barrier is the arrivals of a warp's lanes. */
__device__ __forceinline__ void barrier_init(uint32_t barrier)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 32;" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}\n" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* A phase ends when each lane's cp.async have been performed, which its arrive.noinc waits for; the wait
 * acquires them for all lanes. A place is copied to again only after __syncwarp behind the last read of it.
 * racecheck does not see the former. */

/* A warp's copy of a chunk, 16 bytes a lane at a time; the barrier's phase ends when all of it is there. A
 * bulk copy of each chunk was as fast on an H200: copies are not what holds these kernels.
 * Weights are read once: they should not push x out of the L2. */
__device__ __forceinline__ void copy_weights(uint32_t to, const uint8_t *from, int bytes, uint32_t barrier,
                                             int lane)
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#pragma unroll
    for (int i = 0; i < (CHUNK_BYTES + 511) / 512; i++) {
        const int at = i * 512 + 16 * lane;
        if (at < bytes)
            asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to + at),
                         "l"(from + at), "l"(policy)
                         : "memory");
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/* ---- one unit -------------------------------------------------------------------------------------- */

/* Shifts and masks run at half the rate of the rest and are what holds these kernels (docs/SPEED.md). So what
 * can be a multiplication is one, by `sixteen`, which the compiler does not know to be a power of two, and
 * products take the half of the scales that is their rows': instructions name halves. */

__device__ __forceinline__ uint32_t multiply_add(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* Both halves of a, by one half of b. */
__device__ __forceinline__ uint32_t times_low(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("{\n"
        ".reg .b16 low, high;\n"
        ".reg .b32 both;\n"
        "mov.b32 {low, high}, %2;\n"
        "mov.b32 both, {low, low};\n"
        "mul.rn.bf16x2 %0, %1, both;\n"
        "}\n"
        : "=r"(d)
        : "r"(a), "r"(b));
    return d;
}

__device__ __forceinline__ uint32_t times_high(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("{\n"
        ".reg .b16 low, high;\n"
        ".reg .b32 both;\n"
        "mov.b32 {low, high}, %2;\n"
        "mov.b32 both, {high, high};\n"
        "mul.rn.bf16x2 %0, %1, both;\n"
        "}\n"
        : "=r"(d)
        : "r"(a), "r"(b));
    return d;
}

/* Bytes 0 and 1 of the scales, or 2 and 3, as the bf16 numbers scale * 2^107. */
template <int PAIR> __device__ __forceinline__ uint32_t scale_pair(uint32_t scales, uint32_t sixteen)
{
    return multiply_add(__byte_perm(scales, 0, PAIR ? 0x4342u : 0x4140u), sixteen, 0x70007000u);
}

/* The A operand of 16 rows x 16 k from a lane's word: see cuda_layout.h. */
__device__ __forceinline__ void expand(uint32_t a[4], uint32_t w, uint32_t scale, uint32_t sixteen)
{
    const uint32_t all = 0x81c081c0u;
    a[0] = times_low(w & all, scale);
    a[1] = times_high(multiply_add(w, sixteen, 0) & all, scale);
    a[2] = times_low(__funnelshift_l(w, w, 10) & all, scale);
    a[3] = times_high(
        (multiply_add(w, 4 * sixteen, 0) & 0x80c080c0u) | (__funnelshift_l(w, w, 14) & 0x01000100u), scale);
}

__device__ __forceinline__ void multiply(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* c += unit * x. x: this lane's 32 bytes of each row of the 64 k; rows of 8 more are x_step apart. */
template <int NT>
__device__ __forceinline__ void multiply_unit(float c[NT][4], const uint8_t *unit, const uint8_t *x,
                                              uint32_t x_step, int lane)
{
    const uint4 code = *(const uint4 *)(unit + 16 * lane);
    const uint2 scale = *(const uint2 *)(unit + CUDA_UNIT_CODES + 8 * (lane >> 2));
    uint32_t a[4][4];
    const uint32_t sixteen = 16 * gridDim.y; /* grids here are lines */
    expand(a[0], code.x, scale_pair<0>(scale.x, sixteen), sixteen);
    expand(a[1], code.y, scale_pair<1>(scale.x, sixteen), sixteen);
    expand(a[2], code.z, scale_pair<0>(scale.y, sixteen), sixteen);
    expand(a[3], code.w, scale_pair<1>(scale.y, sixteen), sixteen);
#pragma unroll
    for (int t = 0; t < NT; t++) {
        const uint4 b = *(const uint4 *)(x + t * x_step), d = *(const uint4 *)(x + t * x_step + 16);
        multiply(c[t], a[0], b.x, b.y);
        multiply(c[t], a[1], b.z, b.w);
        multiply(c[t], a[2], d.x, d.y);
        multiply(c[t], a[3], d.z, d.w);
    }
}

/* ---- rows of x in shared memory -------------------------------------------------------------------- */

/* 16 bytes beyond a row keep the lanes' loads in different banks. */
__host__ __device__ __forceinline__ uint32_t x_stride(int K)
{
    return 2u * (uint32_t)K + 16u;
}

/* A row of K bf16 in the order the lanes read: of each 64, four runs of 16, run q having k 4q to 4q + 3 of
 * each 16. All threads, each some eights of some rows; row_of(i) is row i in memory. Past the L1: other CTAs
 * write h. */
template <typename Row> __device__ __forceinline__ void stage_rows(uint8_t *xs, int n_row, int K, Row row_of)
{
    const int n = K / 8;
    for (int i = threadIdx.x; i < n_row * n; i += N_THREAD) {
        const int r = i / n, at = i % n; /* k from 8 * at: half of a 16, two quarters */
        const uint4 v = __ldcg((const uint4 *)row_of(r) + at);
        uint8_t *block = xs + (uint32_t)r * x_stride(K) + (uint32_t)(at / 8) * 128u;
        const int q = at % 2 * 2, f = at % 8 / 2;
        *(uint2 *)(block + 32 * q + 8 * f) = make_uint2(v.x, v.y);
        *(uint2 *)(block + 32 * q + 32 + 8 * f) = make_uint2(v.z, v.w);
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
