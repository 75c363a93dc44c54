/* A layer of experts for one token in one launch: gate and up, SwiGLU, down, sum over the token's experts.
 *
 * Latency is all that counts here, so nothing is asked for later than it could be, and blocks meet once.
 * Every block knows the choice of experts and asks for all of its weights, those of down too, before it
 * multiplies any. Tiles of gate and up are dealt to blocks in runs. Of down a block has all experts' parts of
 * its tiles, so their sum never leaves it; all it needs is everybody's h.
 *
 * h goes from block to block as in exchange.cuh. Block 0 passes the turn on when it has all of it. */
#include <algorithm>

#include "kernels/cuda/plugin/moe_front.cuh"
#include "kernels/cuda/plugin/single.cuh"

#define USED_MAX 32 /* experts of a token: a lane knows one */

struct single_params {
    struct packed_moe w;
    struct exchange exchange; /* logits if there is a front, and h */
    int n_stage;
    struct divisor blocks, slots;   /* of the grid; of a token's experts */
    struct divisor hidden, inner;   /* units of a tile of gate and up, and of down */
    struct divisor neurons, a_tile; /* tiles of gate and up; units of down's tile in all matrices */
    struct moe_front front;
};

/* The tile's eight neurons, one of each row g, as four words. All lanes. */
static __device__ __forceinline__ void put_h(uint32_t *words, int tile, float h, int lane)
{
    const uint32_t own = float_bf16(h), next = __shfl_down_sync(ALL_LANES, own, 4);
    if (lane % 8 == 0)
        gpu_store_grid(words + tile * 4 + lane / 8, ~(own | next << 16));
}

/* Weights of experts that every token takes are known before the choice: they may be on their way to the L2.
 */
static __device__ __forceinline__ void ask_shared(const packed_moe &w)
{
    const size_t one = (size_t)(w.hidden / 16) * (w.inner / 64) * CUDA_UNIT_BYTES, n = w.n_shared * one;
    const size_t first = (size_t)(w.n_expert - w.n_shared) * one;
#pragma unroll 1
    for (size_t at = 128 * ((size_t)blockIdx.x * N_THREAD + threadIdx.x); at < 2 * n;
         at += 128 * N_THREAD * (size_t)gridDim.x) {
        gpu_prefetch(w.gate_up + 2 * first + at);
        if (at < n)
            gpu_prefetch(w.down + first + at);
    }
}

/* Units of a chunk: where rows are short, most of what is multiplied fits, and fewer copies and less code are
 * faster; else slower. */
#define CHUNK_OF(front) ((front) == FRONT_SHORT ? CHUNK_LONG : CHUNK_UNITS)

/* ---- the kernel ------------------------------------------------------------------------------------ */

template <int FRONT>
static __global__ void __launch_bounds__(N_THREAD, 1) single_kernel(const params<single_params> all)
{
    const single_params &a = all.a;
    constexpr int CHUNK = CHUNK_OF(FRONT);
    DYNAMIC_SHARED(memory);
    SHARED(float[N_WARP][2][32], part);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    params_fetch(all, &part[warp][0][0], warp);
    const int H = a.w.hidden, I = a.w.inner, n_used = a.w.n_used;
    const int n_logit = FRONT ? (a.front.router.n_expert + 3) / 4 * 4 : 0,
              n_word = n_logit + n_used * (I / 2);
    uint8_t *rings = memory + RING_BELLS, *xs = rings + N_WARP * a.n_stage * CHUNK * CUDA_UNIT_BYTES,
            *hs = xs + 2 * H;
    float *row = (float *)(hs + n_used * (2 * I)); /* of a norm */
    front_room &room = *(front_room *)(FRONT >= FRONT_NORM ? row + H : row);
    struct ring ring = ring_make<CHUNK>(rings, memory, a.n_stage, warp, lane);
    front_weights asked = {};
    if (FRONT)
        asked = front_ask<FRONT>(a.front);
    if (FRONT != FRONT_SHORT)
        ask_shared(a.w);
    float scales[3] = {}; /* of all experts, for they would come late if the chosen ones' were asked for */
    if (FRONT && (int)threadIdx.x < a.w.n_expert) {
        scales[0] = a.w.gate_scale[threadIdx.x];
        scales[1] = a.w.up_scale[threadIdx.x];
        scales[2] = a.w.down_scale[threadIdx.x];
    }
    gpu_wait_before();
    const exchange_now now = exchange_look(a.exchange);
    uint32_t *words = now.words;
    float by = 0.0f;
    if (FRONT >= FRONT_NORM)
        by = front_norm<FRONT>(a.front, asked, row, xs, words, room);
    else if (FRONT)
        front_logits(a.front, asked, words, room);
    /* What is of no expert is worked out while logits come, and not before: a block that begins late, as most
     * do, has everybody waiting for its own. The compiler does not know that zero is one. */
    const int zero = FRONT >= FRONT_NORM ? (int)(__float_as_uint(by) & (gridDim.z - 1)) : 0;
    struct phase phase[2] = {};
    phase[0].weight = a.w.gate_up;
    phase[0].matrix_bytes = (int64_t)(I / 8) * (H / 64) * CUDA_UNIT_BYTES;
    phase[0].n_unit = H / 64, phase[0].n_pass = 1, phase[0].n_tile = I / 8;
    phase[0].unit = a.hidden, phase[0].tile = a.neurons, phase[0].whole = a.hidden;
    phase[1].weight = a.w.down;
    phase[1].matrix_bytes = (int64_t)(H / 16) * (I / 64) * CUDA_UNIT_BYTES;
    phase[1].n_unit = I / 64, phase[1].n_pass = n_used, phase[1].n_tile = H / 16;
    phase[1].unit = a.inner, phase[1].pass = a.slots, phase[1].whole = a.a_tile;
    deal(phase[0], n_used * (I / 8), (int)blockIdx.x + zero, a.blocks);
    deal(phase[1], H / 16, (int)blockIdx.x + zero, a.blocks);
    struct piece piece = piece_of<CHUNK>(phase, warp, lane);
    const uint32_t pieces = __ballot_sync(ALL_LANES, piece.n > 0), first_pieces = (1u << PIECES_MAX) - 1;
    ring.todo = pieces & first_pieces;
    const struct ring_plan plan = ring_make_plan<CHUNK>(ring, piece, lane);
    if (FRONT && (int)threadIdx.x < a.w.n_expert)
#pragma unroll
        for (int i = 0; i < 3; i++)
            room.scale[i][threadIdx.x] = scales[i];
    bool scored = false;
    const int chosen = FRONT ? front_route(a.front, words, room, &scored, warp, lane) : -1;
    /* A lane knows one of the experts, in every warp. One that is of none here counts as the first, times
     * nothing. */
    const int id = lane < n_used ? FRONT ? chosen : a.w.id[lane] : -1;
    const bool is_here = id >= 0 && id < a.w.n_expert;
    const int expert = is_here ? id : 0;
    float gate_by = 0.0f, up_by = 0.0f, down_by = 0.0f;
    if (!FRONT) /* before weights, behind which they would come late */
        gate_by = a.w.gate_scale[expert], up_by = a.w.up_scale[expert], down_by = a.w.down_scale[expert];
    /* Down's weights are asked for when the first of gate and up have come: else those of a block that knows
     * its experts a little later would come behind all of down's, and every block waits for its h. */
    ring_begin<CHUNK>(ring, plan, expert, phase[0].matrix_bytes, lane);
    gpu_let_next();
    piece_choose(phase, piece, expert, lane);
    ring.todo |= pieces & ~first_pieces;
    float weight = !FRONT && is_here ? a.w.weight[lane] : 0.0f;
    if (FRONT)
        gate_by = room.scale[0][expert], up_by = room.scale[1][expert], down_by = room.scale[2][expert];
#pragma unroll 1
    for (int i = threadIdx.x; FRONT < FRONT_NORM && i < H / 8; i += N_THREAD)
        ((uint4 *)xs)[i] = __ldcg((const uint4 *)a.w.x + i);
    exchange_clear(now);
    if (FRONT && warp == N_WARP - 1) {
        front_weigh(a.front, room, scored, chosen, lane);
        if (blockIdx.x == 0)
            front_count(a.front.router, chosen, lane);
    }
    if (FRONT < FRONT_NORM) /* else x has been there since the choice */
        __syncthreads();
    const float gate_scale = gate_by * CUDA_SCALE_BACK, up_scale = up_by * CUDA_SCALE_BACK,
                down_scale = down_by * CUDA_SCALE_BACK;

    const int here = is_here;
#pragma unroll 1
    for (int f = 0; f < N_PHASE; f++) {
        struct phase p;
        p.n_unit = f ? phase[1].n_unit : phase[0].n_unit;
        p.n_pass = f ? phase[1].n_pass : phase[0].n_pass;
        p.lo = f ? phase[1].lo : phase[0].lo;
        p.hi = f ? phase[1].hi : phase[0].hi;
        p.whole.by = f ? phase[1].whole.by : phase[0].whole.by;
        const struct course course = course_of<CHUNK>(p, warp, lane);
        if (f) {
            ring_fill<CHUNK>(ring, piece, lane); /* a warp may have had none of gate and up */
            take_rows(hs, (const uint4 *)(words + n_logit), (n_word - n_logit) / 4);
            __syncthreads();
            if (FRONT)
                weight = is_here ? room.weight[lane] : 0.0f;
            if (FRONT && blockIdx.x == 0) /* every block has h, so it has read the residual */
                front_put<FRONT>(a.front, row, by, room, chosen);
            if (blockIdx.x == 0 && threadIdx.x == 0)
                exchange_pass(a.exchange, now, n_word);
        }
        run_phase<CHUNK>(
            course, piece, f ? pieces & ~first_pieces : pieces & first_pieces, ring, part, warp, lane,
            [&](int slot) { return f ? hs + slot * (2 * I) : xs; },
            [&](int slot, struct sums c) {
                if (f == 0)
                    return c;
                const float w = __shfl_sync(ALL_LANES, weight, slot),
                            s = __shfl_sync(ALL_LANES, down_scale, slot);
                const bool counts = __shfl_sync(ALL_LANES, here, slot);
                return counts ? sums{w * (c.low * s), w * (c.high * s)} : sums{0.0f, 0.0f};
            },
            [&](int tile, int slot, struct sums c) {
                if (f == 0) {
                    const float gate = c.low * __shfl_sync(ALL_LANES, gate_scale, slot),
                                up = c.high * __shfl_sync(ALL_LANES, up_scale, slot);
                    put_h(words + n_logit, tile, swiglu(gate, up), lane);
                } else if (lane % 4 == 0) {
                    a.w.out[tile * 16 + lane / 4] = c.low;
                    a.w.out[tile * 16 + lane / 4 + 8] = c.high;
                }
            });
    }
}

/* ---- which ----------------------------------------------------------------------------------------- */

static size_t room_bytes(const struct packed_moe *w, int front)
{
    return RING_BELLS + 2 * ((size_t)w->hidden + (size_t)w->n_used * (size_t)w->inner) +
           (front >= FRONT_NORM ? (size_t)w->hidden * sizeof(float) : 0) + (front ? sizeof(front_room) : 0);
}

/* Stages of the rings that fit beside the rest; 0: not even two. */
static int stages(const struct packed_moe *w, int front, const struct gpu_limits *limits)
{
    const size_t own = 8192; /* what the kernel has of its own */
    for (int n = STAGES_MAX; n >= 2; n--)
        if ((size_t)(N_WARP * n * CHUNK_OF(front)) * CUDA_UNIT_BYTES + room_bytes(w, front) + own <=
            limits->shared_bytes)
            return n;
    return 0;
}

/* Pieces of a warp where `tiles` of `runs` runs each are dealt to `grid` blocks. */
static bool few_pieces(int tiles, int runs, int grid)
{
    return ((tiles + grid - 1) / grid * runs + N_WARP - 1) / N_WARP + 1 <= PIECES_MAX;
}

/* Whether so many tiles of down, dealt whole, keep blocks busy: else the kernel for few rows is as fast,
 * though not as that and a router of its own. */
static bool fills(int tiles, int grid)
{
    return 4 * tiles >= 3 * ((tiles + grid - 1) / grid) * grid;
}

static bool takes(const struct packed_moe *w, int front, const struct gpu_limits *limits)
{
    return w->n_row == 1 && !w->each && w->n_used >= 1 && w->n_used <= USED_MAX && w->n_expert >= 1 &&
           w->hidden >= 64 && w->hidden % 64 == 0 && w->inner >= 64 && w->inner % 64 == 0 &&
           (size_t)w->n_used * (size_t)w->inner / 2 + CUDA_EXPERTS_MAX <= OP_SINGLE_WORDS &&
           (!front || w->n_expert <= FRONT_SCALES) && few_pieces(w->n_used * w->inner / 8, 1, limits->n_sm) &&
           few_pieces(w->hidden / 16, w->n_used, limits->n_sm) &&
           (front || fills(w->hidden / 16, limits->n_sm)) && stages(w, front, limits) > 0;
}

bool moe_single_takes(const struct packed_moe *w, const struct gpu_limits *limits)
{
    return takes(w, FRONT_NONE, limits);
}

static int grid_of(const struct packed_moe *w, const struct gpu_limits *limits)
{
    return std::min(limits->n_sm, w->n_used * (w->inner / 8)); /* all have some */
}

template <int FRONT> static const char *start(single_params *a, const struct op_place *at)
{
    const struct packed_moe *w = &a->w;
    a->exchange = {at->barrier + OP_SINGLE, at->barrier + OP_SINGLE_H, OP_SINGLE_WORDS};
    a->n_stage = stages(w, FRONT, at->limits);
    const size_t bytes =
        (size_t)(N_WARP * a->n_stage * CHUNK_OF(FRONT)) * CUDA_UNIT_BYTES + room_bytes(w, FRONT);
    const int grid = grid_of(w, at->limits);
    a->blocks = divisor_of(grid);
    a->hidden = divisor_of(w->hidden / 64);
    a->inner = divisor_of(w->inner / 64);
    a->slots = divisor_of(w->n_used);
    a->neurons = divisor_of(w->inner / 8);
    a->a_tile = divisor_of(w->n_used * (w->inner / 64));
    const char *why = gpu_why(gpu_allow_shared(single_kernel<FRONT>, bytes));
    return why ? why
               : gpu_why(gpu_launch_meeting(at->alone, single_kernel<FRONT>, (unsigned)grid, N_THREAD, bytes,
                                            at->stream, params<single_params>{*a}));
}

const char *moe_single_start(const struct packed_moe *w, const struct op_place *at)
{
    single_params a = {};
    a.w = *w;
    return start<FRONT_NONE>(&a, at);
}

/* Of one row, on one lane and not waiting for the other one. */
static bool are_one_row(const struct cuda_op *op, int n)
{
    for (int i = 0; i < n; i++)
        if (op[i].n_row != 1 || op[i].lane != op[0].lane || op[i].count != op[n - 1].count ||
            (i && op[i].back))
            return false;
    return true;
}

static bool is_router_of(const struct cuda_router *r, const struct packed_moe *w)
{
    return r->K == w->hidden && r->expert == w->id && r->weight == w->weight &&
           r->top_k + r->n_shared == w->n_used && front_takes(r);
}

int moe_joined_takes(const struct cuda_op *op, int n_op, const struct packed_moe *w,
                     const struct gpu_limits *limits)
{
    if (n_op >= 2 && op[0].kind == CUDA_OP_ROUTER && op[1].kind == CUDA_OP_MOE)
        return are_one_row(op, 2) && is_router_of(&op[0].as.router, w) && takes(w, FRONT_ROUTER, limits) ? 2
                                                                                                         : 0;
    if (n_op < 3 || op[0].kind != CUDA_OP_ADD_NORM || op[1].kind != CUDA_OP_ROUTER ||
        op[2].kind != CUDA_OP_MOE || !are_one_row(op, 3))
        return 0;
    const struct cuda_add_norm *n = &op[0].as.add_norm;
    const struct cuda_router *r = &op[1].as.router;
    return !n->row && n->n == w->hidden && n->y == w->x && n->y_float && n->y_float == r->x &&
                   is_router_of(r, w) && takes(w, FRONT_NORM, limits)
               ? 3
               : 0;
}

const char *moe_joined_start(const struct cuda_op *op, const struct packed_moe *w, const struct op_place *at)
{
    single_params a = {};
    a.w = *w;
    if (op[0].kind == CUDA_OP_ROUTER) {
        a.front.router = op[0].as.router;
        a.front.count = op[0].count;
        return start<FRONT_ROUTER>(&a, at);
    }
    a.front = {op[0].as.add_norm, op[1].as.router, op[1].count};
    const bool is_short =
        front_is_short(&a.front.router, grid_of(w, at->limits)) && stages(w, FRONT_SHORT, at->limits) > 0;
    if (is_short)
        return start<FRONT_SHORT>(&a, at);
    return front_is_lean(&a.front.router, grid_of(w, at->limits)) ? start<FRONT_LEAN>(&a, at)
                                                                  : start<FRONT_NORM>(&a, at);
}
