/* Experts of many tokens in one launch: D^T = W * X^T for tiles of one expert's tokens, gate and up, then
 * down, wgmma with W from registers.
 *
 * Of a block's producer warpgroup one thread copies stages of weights ahead, and of h; three warps gather
 * tokens. Its consumer warpgroups have some 64 rows of W each (prefill_form.cuh). A consumer turns the codes
 * of one k-step into bf16 while the tensor cores work on the step before. Wide in W's rows, not in tokens:
 * weights cost 0.56 bytes, tokens 2.
 *
 * Pieces of work, all of gate and up before all of down, are taken in order, by whoever is free: one of down
 * waits for those of gate and up that make its tile of h, which others have taken before and which wait for
 * nobody. So blocks need not all run at once. Each number has the same sum whoever makes it.
 *
 * h and Y lie in "panels": [width / 64][row capacity][64] bf16, each row of 128 bytes with its 16-byte chunk
 * c at c ^ (row % 8): what wgmma's 128-byte swizzle reads, so a tile of h is one contiguous copy. In X and h
 * each 64 values stand in the order in which the packed weights meet them (cuda_layout.h): chunk c has
 * the pair c of each 16. An expert's rows begin at a multiple of 8.
 *
 * Why no access to a stage meets another; racecheck does not see the asynchronous proxy.
 *
 * Filled before used: a phase of `full` has an arrival of thread 0, with the bytes of its bulk copies, and
 * one of each gathering warp; it lasts until those bytes are there. A warp arrives when its cp.async have
 * been performed (wait_group), each lane has fenced between the generic proxy, in which they write, and the
 * asynchronous one, in which wgmma reads, and all have met (__syncwarp). So a consumer's try_wait that sees
 * the phase end acquires both; it reads weights with ld.shared, which bulk copies' bytes are there for when
 * they have been counted.
 *
 * Used before filled again: a phase of `empty` has an arrival of each consumer warp. Lane 0 makes it after
 * wgmma.wait_group has retired the wgmma that read the stage, and after __syncwarp, before which all lanes
 * have used what they loaded. Producers wait for that phase before they copy.
 *
 * The output buffers: st.shared, then each writer's fence.proxy.async, bar.sync, and one thread's bulk
 * store; written again only after that thread's wait_group.read and another bar.sync. A tile of h is read by
 * bulk copies after its writers' wait_group, fence and red.release, and the reader's ld.acquire and fence.
 *
 * A gathering warp rings for a stage some stages late, and for all that are left before it waits for
 * anything but an empty stage: that wait ends when older stages have been used, which it has rung for. */
#ifndef NYB_KERNELS_CUDA_PREFILL_EXPERTS_CUH
#define NYB_KERNELS_CUDA_PREFILL_EXPERTS_CUH

#include "kernels/cuda/plugin/prefill_finish.cuh"

/* Pieces of W's rows. */
template <typename F> static __device__ __forceinline__ int pieces(const struct prefill_phase &p)
{
    return (p.n_group + F::GROUPS - 1) / F::GROUPS;
}

static __device__ __forceinline__ struct prefill_piece read_piece(uint32_t at)
{
    uint32_t a[4], b[4];
    load_shared(a, at);
    load_shared(b, at + 16);
    return {(int)a[0],
            (int)a[1],
            (int)a[2],
            (int)a[3],
            (uint16_t)b[0],
            (uint16_t)(b[0] >> 16),
            (int)b[1],
            __uint_as_float(b[2]),
            __uint_as_float(b[3])};
}

/* What ticket `ticket` stands for. One thread. */
template <typename F>
static __device__ __forceinline__ void write_piece(const struct prefill_experts &p, uint32_t ticket,
                                                   struct prefill_piece *to)
{
    const int n_up = pieces<F>(p.gate_up), n_down = pieces<F>(p.down), n_tile = *p.n_tile,
              n_fine = F::FINE ? min(n_tile, p.n_fine) : 0;
    const uint32_t first_down = (uint32_t)n_tile * (uint32_t)n_up,
                   first_fine = first_down + (uint32_t)(n_tile - n_fine) * (uint32_t)n_down;
    if (ticket >= first_fine + (uint32_t)n_fine * (uint32_t)p.down.n_group) {
        to->kind = PIECE_NONE;
        return;
    }
    const bool down = ticket >= first_down, fine = F::FINE && ticket >= first_fine;
    uint32_t i = ticket, n_m = (uint32_t)n_up;
    if (down) {
        i -= fine ? first_fine : first_down;
        n_m = (uint32_t)(fine ? p.down.n_group : n_down);
    }
    const uint32_t of = i / n_m;
    const int tile = (int)of + (fine ? n_tile - n_fine : 0), groups = fine ? 1 : F::GROUPS,
              first = (int)(i - of * n_m) * groups;
    const struct prefill_tile t = p.tile[tile];
    *to = {t.expert,
           t.row,
           t.n,
           tile,
           (uint16_t)(down ? PIECE_DOWN : PIECE_GATE_UP),
           (uint16_t)min(groups, (down ? p.down.n_group : p.gate_up.n_group) - first),
           first,
           down ? p.down_scale[t.expert] : p.gate_scale[t.expert],
           down ? 0.0f : p.up_scale[t.expert]};
}

/* Thread 0: names pieces one ahead of their copies, so that nobody waits for the memory that says what they
 * are, and copies weights and, of down, the tile of h when it is there. */
template <typename F>
static __device__ __forceinline__ void produce(const struct prefill_experts &p, uint32_t smem,
                                               struct prefill_piece *piece)
{
    const uint32_t full = smem + F::BELLS_AT, empty = full + 8 * F::STAGES, named = empty + 8 * F::STAGES,
                   read = named + 8 * PREFILL_PIECES;
    const uint32_t all = (uint32_t)p.gate_up.n_group;
    struct ring_place r = {0, 0};
    write_piece<F>(p, atomicAdd(p.ticket, 1u), piece);
    bell_ring(named);
    uint32_t ticket = atomicAdd(p.ticket, 1u);
    for (int i = 0;; i++) {
        const int next = (i + 1) % PREFILL_PIECES;
        const struct prefill_piece w = piece[i % PREFILL_PIECES];
        bell_ring(read + 8 * (i % PREFILL_PIECES));
        if (w.kind == PIECE_NONE)
            break;
        bell_wait(read + 8 * next, ((i + 1) / PREFILL_PIECES & 1) ^ 1);
        write_piece<F>(p, ticket, piece + next);
        bell_ring(named + 8 * next);
        ticket = atomicAdd(p.ticket, 1u);

        const bool down = w.kind == PIECE_DOWN;
        const struct prefill_phase &phase = down ? p.down : p.gate_up;
        const int row = w.expert * phase.n_unit + w.first * F::GROUP_UNITS, n_k = phase.n_k,
                  groups = w.groups;
        const uint32_t w_bytes = (uint32_t)groups * F::GROUP_BYTES;
        const uint32_t x_bytes = down ? (uint32_t)tile_width<F>(w.n) * 128 : 0;
        const uint16_t *h = p.h + (size_t)w.row * 64;
        for (int k = 0; k < n_k; k++) {
            const uint32_t at = smem + r.stage * F::STAGE_BYTES, bell = full + 8 * r.stage;
            bell_wait(empty + 8 * r.stage, r.parity ^ 1);
            if (down && k == 0) { /* before expecting bytes: the emulator's bells do not count them */
                while (count_seen(p.ready + w.tile) < all)
                    gpu_wait_block();
                global_for_async();
            }
            if (down)
                bell_ring_for(bell, PREFILL_COPIERS / 32); /* who have nothing to copy */
            bell_expect(bell, w_bytes + x_bytes);
            if (groups < F::GROUPS) {
#pragma unroll 1
                for (int g = 0; g < groups; g++)
                    copy_in_box(at + F::PANEL_BYTES + g * F::GROUP_BYTES, phase.part, k,
                                row + g * F::GROUP_UNITS, bell);
            } else if (F::ONCE) {
                copy_in_box_once(at + F::PANEL_BYTES, phase.weight, k, row, bell);
            } else {
                copy_in_box(at + F::PANEL_BYTES, phase.weight, k, row, bell);
            }
            if (down)
                copy_in_run(at, h, x_bytes, bell);
            h += p.capacity * 64;
            next_stage<F>(r);
        }
    }
}

/* Stages whose tokens have been asked for, and not yet been rung for: `n` from `r` on. */
template <typename F> struct prefill_gathered {
    struct ring_place r;
    int n;

    __device__ __forceinline__ void ring(uint32_t full)
    {
        shared_for_async();
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            bell_ring(full + 8 * r.stage);
        next_stage<F>(r);
        n--;
    }
    /* All of them: before this warp waits for what may wait for them. */
    __device__ __forceinline__ void ring_all(uint32_t full)
    {
        copies_in_end();
        while (n > 0)
            ring(full);
    }
};

/* Three warps: the rows of x of pieces of gate and up, from wherever they are.
 */
template <typename F>
static __device__ __forceinline__ void gather(const struct prefill_experts &p, uint32_t smem)
{
    constexpr int STEP = PREFILL_COPIERS / 8; /* rows whose 128 bytes are copied at a time */
    const uint32_t full = smem + F::BELLS_AT, empty = full + 8 * F::STAGES, named = empty + 8 * F::STAGES,
                   read = named + 8 * PREFILL_PIECES;
    const int row = ((int)threadIdx.x - 32) / 8, chunk = (int)threadIdx.x % 8;
    const uint32_t to = (uint32_t)(row * 128 + (chunk ^ row % 8) * 16);
    struct ring_place r = {0, 0};
    prefill_gathered<F> gathered = {{0, 0}, 0};
    for (int i = 0;; i++) {
        const int at = i % PREFILL_PIECES;
        /* All lanes or none, as they meet in it. */
        if (!__all_sync(ALL_LANES, bell_has_rung(named + 8 * at, i / PREFILL_PIECES & 1)))
            gathered.ring_all(full);
        bell_wait(named + 8 * at, i / PREFILL_PIECES & 1);
        const struct prefill_piece w = read_piece(smem + F::PIECES_AT + at * (int)sizeof(prefill_piece));
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            bell_ring(read + 8 * at);
        if (w.kind != PIECE_GATE_UP) {
            gathered.ring_all(full);
            if (w.kind == PIECE_NONE)
                break;
            const int end = r.stage + p.down.n_k;
            r = {end % F::STAGES, r.parity ^ (end / F::STAGES & 1)};
            gathered.r = r;
            continue;
        }
        const int width = tile_width<F>(w.n);
        uint32_t offset[F::X_COPIES]; /* in 16 bytes */
#pragma unroll
        for (int j = 0; j < F::X_COPIES; j++)
            offset[j] = (uint32_t)p.source[w.row + min(row + j * STEP, w.n - 1)] * (uint32_t)(p.hidden / 8);
        const uint4 *x = (const uint4 *)p.x + chunk;
        for (int k = 0; k < p.gate_up.n_k; k++) {
            const uint32_t stage = smem + r.stage * F::STAGE_BYTES;
            bell_wait(empty + 8 * r.stage, r.parity ^ 1);
#pragma unroll
            for (int j = 0; j < F::X_COPIES; j++) {
                uint32_t from = offset[j];
                keep_in_loop(from);
                /* 12 rows on, bit 2 of the row is the other: so is chunk's. */
                if (row + j * STEP < width)
                    copy_in_16((stage + to + j * (STEP * 128)) ^ (j % 2 * 64), x + from);
            }
            copies_in_wait<F::X_AHEAD>();
            if (++gathered.n > F::X_AHEAD)
                gathered.ring(full);
            x += 8;
            next_stage<F>(r);
        }
    }
}

/* The piece at `piece` is read again when its products are done: registers are short until then. */
template <typename F, int N>
static __device__ __forceinline__ void consume_piece(const struct prefill_experts &p, uint32_t piece, int n_k,
                                                     uint32_t smem, struct ring_place &r)
{
    const int thread = thread_anew(); /* not kept from piece to piece for all the cases */
    const prefill_place my = {smem, smem + F::BELLS_AT, thread / 128 - 1, thread % 128 / 32, thread % 32};
    float d[F::M][N / 2] = {}; /* left undefined, all the cases' registers would
                                  be live throughout */
    multiply<F, N>(d, r, n_k, my, p.by);
    const struct prefill_piece w = read_piece(piece);
    const int block = (w.first + my.group) * F::M;
    if (w.kind == PIECE_DOWN)
        finish_down<F, N>(d, p, w, block, my);
    else
        finish_gate_up<F, N>(d, p, w, block, my);
}

/* A piece of which this group has no rows: its stages are empty as soon as they are full. */
template <typename F>
static __device__ __forceinline__ void let_pass(struct ring_place &r, int n_k, uint32_t bells)
{
    for (int k = 0; k < n_k; k++) {
        bell_wait(bells + 8 * r.stage, r.parity);
        __syncwarp();
        if (thread_anew() % 32 == 0)
            bell_ring(bells + 8 * F::STAGES + 8 * r.stage);
        next_stage<F>(r);
    }
}

template <typename F>
static __device__ __forceinline__ void consume(const struct prefill_experts &p, uint32_t smem)
{
    const uint32_t named = smem + F::BELLS_AT + 16 * F::STAGES, read = named + 8 * PREFILL_PIECES;
    struct ring_place r = {0, 0};
    {
        const int thread = thread_anew();
        prefill_buffer<F>({smem, 0, thread / 128 - 1, thread % 128 / 32, thread % 32}).count_later(-1);
    }
    for (int i = 0;; i++) {
        const int at = i % PREFILL_PIECES, thread = thread_anew();
        const uint32_t piece = smem + F::PIECES_AT + at * (int)sizeof(prefill_piece);
        bell_wait(named + 8 * at, i / PREFILL_PIECES & 1);
        const struct prefill_piece w = read_piece(piece);
        /* Before what may wait for others, what others may wait for. */
        if (w.kind != PIECE_GATE_UP) {
            const prefill_buffer<F> buffer({smem, 0, thread / 128 - 1, thread % 128 / 32, thread % 32});
            if (buffer.first)
                buffer.count(p.ready);
        }
        if (w.kind == PIECE_NONE)
            break;
        const int n_k = w.kind == PIECE_DOWN ? p.down.n_k : p.gate_up.n_k;
        /* A vote, as warps decide alike: else nothing behind it is uniform to the compiler. */
        if (__any_sync(ALL_LANES, thread / 128 - 1 >= w.groups)) {
            let_pass<F>(r, n_k, smem + F::BELLS_AT);
        } else {
#define CASE(N) consume_piece<F, N>(p, piece, n_k, smem, r)
            PREFILL_WIDTHS(F, tile_width<F>(w.n), CASE)
#undef CASE
        }
        __syncwarp();
        if (thread_anew() % 32 == 0)
            bell_ring(read + 8 * at);
    }
    copies_out_written();
}

template <typename F>
static __global__ void __launch_bounds__(F::THREADS, F::BLOCKS)
    prefill_experts_kernel(const __grid_constant__ prefill_experts p)
{
#if PREFILL_CAN_RUN
    DYNAMIC_SHARED(raw);
    const uint32_t smem = (shared_offset(raw) + 1023) & ~1023u, bells = smem + F::BELLS_AT;
    struct prefill_piece *piece = (struct prefill_piece *)(raw + (smem - shared_offset(raw)) + F::PIECES_AT);
    const int t = (int)threadIdx.x;
    if (t < F::BELLS)
        bell_make(bells + 8 * t, t < F::STAGES       ? 1 + PREFILL_COPIERS / 32
                                 : t < 2 * F::STAGES ? 4 * F::GROUPS
                                 : t < 2 * F::STAGES + PREFILL_PIECES
                                     ? 1
                                     : 4 * F::GROUPS + 1 + PREFILL_COPIERS / 32);
    bells_made();
    if (t == 0) {
        boxes_soon(p.gate_up.weight);
        boxes_soon(p.down.weight);
    }
    __syncthreads();
    gpu_wait_before();
    gpu_let_next();
    if (t < 128) {
        registers_fewer<F::PRODUCER_REGISTERS>();
        if (t == 0)
            produce<F>(p, smem, piece);
        else if (t >= 32)
            gather<F>(p, smem);
    } else {
        registers_more<F::CONSUMER_REGISTERS>();
        consume<F>(p, smem);
    }
#else
    (void)p;
    __trap(); /* wgmma is Hopper's alone: prefill_start refuses others */
#endif
}

#endif
