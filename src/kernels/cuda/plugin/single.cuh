/* What a kernel for one row of x needs: units of packed weights (unit.cuh) dealt to blocks by tiles and to
 * warps by runs, a ring of copies for each warp, and the sums of tiles that warps share. The experts' has all
 * of it, the product of one matrix only the parameters.
 *
 * Rows of x are the eight columns of the matrix instruction. Here every lane reads the one row there is, so
 * all columns are the same, and nothing is staged that is not there.
 *
 * Such a launch is short, and most of its code runs once: code that has to be fetched first is a good part of
 * its time. So there is one loop for all phases, and what it needs to know is worked out by all lanes at
 * once, a lane a piece, before it. */
#pragma once

#include "kernels/cuda/plugin/bell.cuh"
#include "kernels/cuda/plugin/unit.cuh"

/* ---- parameters ------------------------------------------------------------------------------------- */

/* A kernel's parameters lie in memory for constants, whose lines are fetched when they are first looked at,
 * one after the other: as many as a whole product takes. So each warp looks at one of them first. */
#define PARAM_LINE 16 /* words */
template <typename T> union params {
    T a;
    uint32_t word[sizeof(T) / 4];
};
/* room: a word of the warp's that nobody reads; what is not kept would not be fetched. */
template <typename T>
static __device__ __forceinline__ void params_fetch(const params<T> &p, volatile float *room, int warp)
{
    *room = __uint_as_float(p.word[min(warp * PARAM_LINE, (int)(sizeof(T) / 4) - 1)]);
}

/* ---- dealing work ---------------------------------------------------------------------------------- */

#define N_PHASE    2
#define CHUNK_LONG 6  /* units of a chunk, in place of CHUNK_UNITS: fewer copies, and half the code */
#define PIECES_MAX 16 /* of a warp in one phase; a lane knows one */

/* A divisor that is known before the launch: one multiplication where a division takes some twenty
 * instructions. Exact while number times divisor is below 2^32. */
struct divisor {
    uint32_t by; /* 0: of one */
};
static inline struct divisor divisor_of(int d)
{
    return {d > 1 ? (uint32_t)(((uint64_t)1 << 32) / (uint64_t)d) + 1 : 0};
}
static __device__ __forceinline__ int divide(int n, struct divisor d)
{
    return d.by ? (int)((uint64_t)(uint32_t)n * d.by >> 32) : n;
}

/* A phase of this block: tiles of 16 rows, of which each has n_pass times n_unit units, dealt evenly to the
 * warps in runs. */
struct phase {
    const uint8_t *weight;
    int64_t matrix_bytes; /* of one expert */
    int n_unit, n_pass;   /* units of a tile in one matrix; matrices that a tile is summed over */
    int n_tile;           /* of a matrix */
    int lo, hi;           /* this block's: of all matrices' one after another, or of one where n_pass > 1 */
    struct divisor unit, pass, tile, whole; /* n_unit, n_pass, n_tile, n_unit * n_pass */
};

/* Of `all` tiles. */
static __device__ __forceinline__ void deal(struct phase &p, int all, int block, struct divisor blocks)
{
    p.lo = divide(all * block, blocks);
    p.hi = divide(all * block + all, blocks);
}

/* In pairs of units where chunks are multiplied so, if runs have such. */
template <int CHUNK> static __device__ __forceinline__ int warp_first(const struct phase &p, int warp)
{
    const int at = (int)((unsigned)((p.hi - p.lo) * p.n_pass * p.n_unit * warp) / N_WARP);
    return CHUNK < CHUNK_LONG || warp == N_WARP || p.n_unit % 2 ? at : at & ~1;
}

/* Units that lie side by side, of one tile's sum in one matrix; n may be 0. */
struct piece {
    const uint8_t *from;
    int n, tile, slot, k;
};

/* This lane's: number lane % PIECES_MAX of phase lane / PIECES_MAX, as if its expert were the first. */
template <int CHUNK>
static __device__ __forceinline__ struct piece piece_of(const struct phase (&phase)[N_PHASE], int warp,
                                                        int lane)
{
    const bool second = lane >= PIECES_MAX;
    struct phase p;
    p.weight = second ? phase[1].weight : phase[0].weight;
    p.n_unit = second ? phase[1].n_unit : phase[0].n_unit;
    p.n_pass = second ? phase[1].n_pass : phase[0].n_pass;
    p.n_tile = second ? phase[1].n_tile : phase[0].n_tile;
    p.lo = second ? phase[1].lo : phase[0].lo;
    p.hi = second ? phase[1].hi : phase[0].hi;
    p.unit.by = second ? phase[1].unit.by : phase[0].unit.by;
    p.pass.by = second ? phase[1].pass.by : phase[0].pass.by;
    p.tile.by = second ? phase[1].tile.by : phase[0].tile.by;
    const int first = warp_first<CHUNK>(p, warp), end = warp_first<CHUNK>(p, warp + 1);
    const int run = divide(first, p.unit) + lane % PIECES_MAX, at = max(first, run * p.n_unit),
              tile = divide(run, p.pass);
    struct piece s;
    s.n = max(0, min(end, (run + 1) * p.n_unit) - at);
    s.k = at - run * p.n_unit;
    s.tile = p.lo + tile;
    int in_matrix = s.tile;
    s.slot = run - tile * p.n_pass;
    if (!second) {
        s.slot = divide(s.tile, p.tile);
        in_matrix -= s.slot * p.n_tile;
    }
    s.from = p.weight + ((int64_t)in_matrix * p.n_unit + s.k) * CUDA_UNIT_BYTES;
    return s;
}

/* Of the expert that it is of: a lane knows a slot's. All lanes. */
static __device__ __forceinline__ void piece_choose(const struct phase (&phase)[N_PHASE], struct piece &s,
                                                    int expert, int lane)
{
    const int64_t bytes = lane >= PIECES_MAX ? phase[1].matrix_bytes : phase[0].matrix_bytes;
    s.from += __shfl_sync(ALL_LANES, expert, s.slot & 31) * bytes;
}

/* ---- a warp's ring --------------------------------------------------------------------------------- */

struct ring {
    uint8_t *data; /* [n_stage] chunks, this warp's */
    uint32_t bell; /* [n_stage] */
    int n_stage, put, taken, ahead;
    uint32_t parity;
    /* What is to be asked for: */
    uint32_t todo; /* pieces, by lane */
    const uint8_t *from;
    int left, slot; /* units of the present piece; whose it is */
};

/* A phase of a bell is one lane's arrival and the bytes of its copy. A place is copied to again only after
 * __syncwarp behind the last read of it. bells: RING_BELLS bytes of the block. All lanes. */
#define RING_BELLS (8 * N_WARP * STAGES_MAX)
template <int CHUNK>
static __device__ __forceinline__ struct ring ring_make(uint8_t *memory, uint8_t *bells, int n_stage,
                                                        int warp, int lane)
{
    struct ring r = {};
    r.data = memory + warp * n_stage * CHUNK * CUDA_UNIT_BYTES;
    r.bell = shared_offset(bells) + 8 * warp * STAGES_MAX;
    r.n_stage = n_stage;
    if (lane < n_stage)
        bell_make(r.bell + 8 * lane, 1);
    bells_made();
    __syncwarp();
    return r;
}

static __device__ __forceinline__ const uint8_t *lane_pointer(const uint8_t *p, int lane)
{
    return (const uint8_t *)(uintptr_t)__shfl_sync(ALL_LANES, (unsigned long long)(uintptr_t)p, lane);
}

/* The next chunk's units, of the present piece, to which `from` points; 0: nothing is left to ask for. */
template <int CHUNK>
static __device__ __forceinline__ int ring_next(struct ring &r, const struct piece &piece)
{
    if (r.left == 0 && r.todo) {
        const int next = __ffs((int)r.todo) - 1;
        r.todo &= r.todo - 1;
        r.from = lane_pointer(piece.from, next);
        r.left = __shfl_sync(ALL_LANES, piece.n, next);
        r.slot = __shfl_sync(ALL_LANES, piece.slot, next);
    }
    return min(CHUNK, r.left);
}

static __device__ __forceinline__ void ring_ask(const struct ring &r, int stage, const uint8_t *from, int n,
                                                int chunk_bytes, int lane)
{
    if (lane == 0) { /* one copy: instructions of all lanes are what a warp has too few of */
        bell_expect(r.bell + 8 * stage, (uint32_t)n * CUDA_UNIT_BYTES);
        copy_in_run_once(shared_offset(r.data + stage * chunk_bytes), from, (uint32_t)n * CUDA_UNIT_BYTES,
                         r.bell + 8 * stage);
    }
}

static __device__ __forceinline__ void ring_asked(struct ring &r, int n)
{
    r.from += n * CUDA_UNIT_BYTES;
    r.left -= n;
    r.put = r.put + 1 == r.n_stage ? 0 : r.put + 1;
    r.ahead++;
}

/* What a new ring asks for first, worked out before the experts are known: a lane has a stage. */
struct ring_plan {
    const uint8_t *from;
    int n, slot;
};
template <int CHUNK>
static __device__ __forceinline__ struct ring_plan ring_make_plan(struct ring &r, const struct piece &piece,
                                                                  int lane)
{
    struct ring_plan plan = {};
#pragma unroll 1
    while (r.ahead < r.n_stage) {
        const int n = ring_next<CHUNK>(r, piece);
        if (n == 0)
            break;
        if (lane == r.ahead)
            plan = {r.from, n, r.slot};
        ring_asked(r, n);
    }
    return plan;
}

/* expert: a lane knows a slot's; bytes: of one expert. All lanes. */
template <int CHUNK>
static __device__ __forceinline__ void ring_begin(struct ring &r, struct ring_plan plan, int expert,
                                                  int64_t bytes, int lane)
{
    plan.from += __shfl_sync(ALL_LANES, expert, plan.slot) * bytes;
#pragma unroll 1
    for (int stage = 0; stage < r.ahead; stage++)
        ring_ask(r, stage, lane_pointer(plan.from, stage), __shfl_sync(ALL_LANES, plan.n, stage),
                 CHUNK * CUDA_UNIT_BYTES, lane);
    r.from += __shfl_sync(ALL_LANES, expert, r.slot) * bytes;
}

/* All lanes. */
template <int CHUNK>
static __device__ __forceinline__ void ring_fill(struct ring &r, const struct piece &piece, int lane)
{
#pragma unroll 1
    while (r.ahead < r.n_stage) {
        const int n = ring_next<CHUNK>(r, piece);
        if (n == 0)
            return;
        ring_ask(r, r.put, r.from, n, CHUNK * CUDA_UNIT_BYTES, lane);
        ring_asked(r, n);
    }
}

/* ---- one phase ------------------------------------------------------------------------------------- */

/* A tile's sums of one lane: of rows g and g + 8, the same in all four lanes of a row. */
struct sums {
    float low, high;
};

/* c + d += a chunk, or the `left` units that there are of it. */
template <int CHUNK>
static __device__ __forceinline__ void multiply_chunk(float (&c)[1][4], float (&d)[1][4], const uint8_t *unit,
                                                      const uint8_t *x, int left, int lane)
{
    if (CHUNK == CHUNK_LONG) {
        const int n = min(left, CHUNK);
#pragma unroll 1
        for (int i = 2; i <= n; i += 2) {
            multiply_unit<1>(c, unit, x, 0, lane);
            multiply_unit<1>(d, unit + CUDA_UNIT_BYTES, x + 128, 0, lane);
            unit += 2 * CUDA_UNIT_BYTES;
            x += 2 * 128;
        }
        if (n % 2)
            multiply_unit<1>(c, unit, x, 0, lane);
    } else if (left >= CHUNK) {
#pragma unroll
        for (int i = 0; i < CHUNK; i++)
            multiply_unit<1>(i % 2 ? d : c, unit + i * CUDA_UNIT_BYTES, x + 128 * i, 0, lane);
    } else {
#pragma unroll 1
        for (int i = 0; i < left; i++)
            multiply_unit<1>(c, unit + i * CUDA_UNIT_BYTES, x + 128 * i, 0, lane);
    }
}

/* A warp's way through a phase, which can be worked out before what the weights multiply is there. */
struct course {
    int whole_tile, tile, next_tile,
        at;                /* units of a tile; the present one, and where it ends, and the place */
    bool begun;            /* this warp has the present tile from its first unit on */
    bool tail, tail_begun; /* the last tile goes on in other warps; it begins in this one */
    uint32_t others;       /* that have more of it */
};

template <int CHUNK>
static __device__ __forceinline__ struct course course_of(const struct phase &p, int warp, int lane)
{
    struct course c;
    c.whole_tile = p.n_pass * p.n_unit;
    const int first = warp_first<CHUNK>(p, warp), end = warp_first<CHUNK>(p, warp + 1);
    c.at = first;
    const int tile = divide(first, p.whole);
    c.tile = p.lo + tile;
    c.next_tile = (tile + 1) * c.whole_tile;
    c.begun = c.next_tile - c.whole_tile == first;
    const int last = divide(end, p.whole) * c.whole_tile; /* where the tail begins */
    c.tail = end > first && end != last;
    c.tail_begun = first <= last;
    const int their_first = warp_first<CHUNK>(p, lane), their_end = warp_first<CHUNK>(p, lane + 1);
    c.others = __ballot_sync(ALL_LANES, lane < N_WARP && lane > warp && their_first < last + c.whole_tile &&
                                            their_end > their_first);
    return c;
}

/* Every tile of the block: done(tile, slot, sums), by one whole warp. x_of(slot): the row that its weights
 * multiply; scaled(slot, c): what the sum c over its matrix adds. pieces: this phase's, by lane. part:
 * [N_WARP][2][32]. Begins after the staging; a barrier is in it. */
#define MORE 8 /* parts that are asked for at once */
template <int CHUNK, typename Row, typename Scaled, typename Done>
static __device__ __forceinline__ void run_phase(struct course c, const struct piece &piece, uint32_t pieces,
                                                 struct ring &ring, float (*part)[2][32], int warp, int lane,
                                                 Row x_of, Scaled scaled, Done done)
{
    struct sums sum = {0.0f, 0.0f};
    int slot = 0;
#pragma unroll 1
    for (; pieces; pieces &= pieces - 1) {
        const int which = __ffs((int)pieces) - 1, n = __shfl_sync(ALL_LANES, piece.n, which),
                  k = __shfl_sync(ALL_LANES, piece.k, which);
        slot = __shfl_sync(ALL_LANES, piece.slot, which);
        const uint8_t *x = x_of(slot) + 32 * (lane & 3) + 128 * k;
        float a[1][4] = {}, b[1][4] = {}; /* two sums: products of one wait for each other */
#pragma unroll 1
        for (int left = n; left > 0; left -= CHUNK) {
            bell_wait(ring.bell + 8 * ring.taken, ring.parity);
            const uint8_t *unit = ring.data + ring.taken * CHUNK * CUDA_UNIT_BYTES;
            multiply_chunk<CHUNK>(a, b, unit, x, left, lane);
            x += 128 * CHUNK;
            __syncwarp(); /* all lanes have read the chunk: its place may be written */
            if (++ring.taken == ring.n_stage) {
                ring.taken = 0;
                ring.parity ^= 1;
            }
            ring.ahead--;
            ring_fill<CHUNK>(ring, piece, lane);
        }
        const struct sums one = scaled(slot, {a[0][0] + b[0][0], a[0][2] + b[0][2]});
        sum.low += one.low;
        sum.high += one.high;
        c.at += n;
        if (c.at == c.next_tile) {
            if (c.begun)
                done(c.tile, slot, sum);
            else
                part[warp][0][lane] = sum.low, part[warp][1][lane] = sum.high;
            sum = {0.0f, 0.0f};
            c.begun = true;
            c.tile++;
            c.next_tile += c.whole_tile;
        }
    }
    if (c.tail && !c.tail_begun) /* neither end of the tile */
        part[warp][0][lane] = sum.low, part[warp][1][lane] = sum.high;
    __syncthreads();
    if (c.tail && c.tail_begun) { /* add the other parts in their order */
#pragma unroll 1
        for (int v = warp + 1; c.others >> v; v += MORE) {
            struct sums more[MORE]; /* none waits for another */
#pragma unroll
            for (int j = 0; j < MORE; j++) {
                const bool counts = c.others >> (v + j) & 1;
                more[j].low = counts ? part[v + j][0][lane] : 0.0f;
                more[j].high = counts ? part[v + j][1][lane] : 0.0f;
            }
#pragma unroll
            for (int j = 0; j < MORE; j++) {
                sum.low += more[j].low;
                sum.high += more[j].high;
            }
        }
        done(c.tile, slot, sum);
    }
}
