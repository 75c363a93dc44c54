/* Rows of every rank to the ranks whose experts they chose. A row goes once to each of them, as the bf16 that
 * the experts' kernels read; its choice goes to all ranks, so that everybody knows what comes: a rank waits
 * for nothing but numbers, which say by themselves that they are there (peers.h). In a buffer a rank's rows
 * follow each other; in the area for all together are, of each rank, a sign that it is here, and choices.
 *
 * A warp moves a part of a row. Half of the warps send and wait for nothing, and all blocks run at once, on
 * every rank. */
#include "kernels/cuda/plugin/spread.cuh"

#define TOGETHER 8 /* choices of a row under way at once */

/* A choice in a buffer. */
union four_ids {
    float4 four;
    int32_t id[4];
};

/* Fours of a row's choice and of its numbers, and its parts. */
struct row_layout {
    int id_fours, x_fours, n_part;
};

static __host__ __device__ __forceinline__ row_layout layout_of(const cuda_dispatch &a)
{
    row_layout l;
    l.id_fours = a.expert ? (a.n_used + 3) / 4 : 0;
    l.x_fours = a.n / 8;
    l.n_part = (l.x_fours + SPREAD_PART - 1) / SPREAD_PART;
    return l;
}

/* Of rank `from`, in the area for all together: its sign, then the choices of its rows. */
static __device__ __forceinline__ uint32_t sign_fours(const row_layout &row, const spread_launch &l)
{
    return 1u + (uint32_t)(l.n_row * row.id_fours);
}
static __device__ __forceinline__ float4 *sign_of(const peer_memory &p, float4 *buffer, int from,
                                                  const row_layout &row, const spread_launch &l)
{
    return peer_whole(p, buffer) + (size_t)from * sign_fours(row, l);
}

/* Bits of the ranks that need a row with this choice. */
static __device__ __forceinline__ uint32_t ranks_of(const cuda_dispatch &a, int size, const int32_t *expert)
{
    uint32_t mask = 0;
    if (!expert)
        return (1u << size) - 1;
    for (int first = 0; first < a.n_used; first += TOGETHER) {
        int id[TOGETHER];
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) /* all asked for before any is looked at */
            id[k] = first + k < a.n_used ? expert[first + k] : -1;
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
            const int r = spread_owner(a.first, size, id[k]);
            mask |= r >= 0 ? 1u << r : 0u;
        }
    }
    return mask;
}

/* A choice as this rank's expert, counted. */
static __device__ __forceinline__ void keep_choice(const cuda_dispatch &a, const peer_memory &p, int place,
                                                   int j, int expert)
{
    const bool here = expert >= a.first[p.rank] && expert < a.first[p.rank + 1];
    a.local[(size_t)place * a.n_used + j] = here ? expert - a.first[p.rank] : -1;
    if (a.load && expert >= 0 && expert < a.first[p.size])
        atomicAdd((unsigned long long *)&a.load[expert], 1ull);
}

/* Row i of this rank: its part number `part`, and with the first one its choice. */
static __device__ __forceinline__ void send_part(const cuda_dispatch &a, const peer_memory &p, uint32_t turn,
                                                 const spread_launch &l, const row_layout &row, int i,
                                                 int part, int lane)
{
    const size_t own = (size_t)(l.first + i);
    const int32_t *expert = a.expert ? a.expert + own * a.n_used : nullptr;
    const float4 *x = (const float4 *)(a.x + own * a.n);
    const int begin = part * SPREAD_PART + lane, place = spread_place(a.rows, l, p.rank, i);
    float4 v[SPREAD_BATCH];
#pragma unroll
    for (int k = 0; k < SPREAD_BATCH; k++)
        if (begin + 32 * k < row.x_fours)
            v[k] = x[begin + 32 * k];
    if (part == 0 && expert) {
        for (int q = lane; q < row.id_fours; q += 32) {
            four_ids ids;
            for (int c = 0; c < 4; c++)
                ids.id[c] = 4 * q + c < a.n_used ? expert[4 * q + c] : -1;
            ids.four = peer_sendable(ids.four);
            for (int d = 1; d < p.size; d++) {
                const int r = (p.rank + d) % p.size;
                gpu_store_system(sign_of(p, peer_buffer(p, r, turn), p.rank, row, l) + 1 +
                                     (size_t)i * row.id_fours + q,
                                 ids.four);
            }
        }
        for (int j = lane; j < a.n_used; j += 32)
            keep_choice(a, p, place, j, expert[j]);
    }
    const uint32_t mask = ranks_of(a, p.size, expert);
    float4 *here = (float4 *)(a.x_all + (size_t)place * a.n);
    for (int d = 1; d <= p.size; d++) { /* each begins with another */
        const int r = (p.rank + d) % p.size;
        if (!(mask >> r & 1u))
            continue;
        float4 *to = peer_slot(p, peer_buffer(p, r, turn), p.rank) + (size_t)i * row.x_fours;
#pragma unroll
        for (int k = 0; k < SPREAD_BATCH; k++) {
            const int f = begin + 32 * k;
            if (f < row.x_fours && r == p.rank)
                here[f] = peer_sendable(v[k]);
            else if (f < row.x_fours)
                gpu_store_system(to + f, peer_sendable(v[k]));
        }
    }
}

/* Whether a row of rank `from` is needed here, by its choice. Every lane: it has to know. */
static __device__ __forceinline__ bool take_choice(const cuda_dispatch &a, const peer_memory &p,
                                                   const float4 *at, const row_layout &row, int from,
                                                   int place, int part, int lane)
{
    bool needed = !a.expert;
    for (int q = 0; q < row.id_fours; q++) {
        four_ids ids;
        ids.four = peer_take(at + q, p, from);
        for (int c = 0; c < 4; c++)
            needed = needed || (ids.id[c] >= a.first[p.rank] && ids.id[c] < a.first[p.rank + 1]);
        const int j = 4 * q + lane;
        if (part == 0 && lane < 4 && j < a.n_used) {
            const int id = lane < 2 ? (lane ? ids.id[1] : ids.id[0]) : (lane == 2 ? ids.id[2] : ids.id[3]);
            keep_choice(a, p, place, j, id);
        }
    }
    return needed;
}

/* Row i of rank `from`. */
static __device__ __forceinline__ void take_part(const cuda_dispatch &a, const peer_memory &p, float4 *buffer,
                                                 const spread_launch &l, const row_layout &row, int from,
                                                 int i, int part, int lane)
{
    float4 *x = peer_slot(p, buffer, from) + (size_t)i * row.x_fours;
    const int begin = part * SPREAD_PART + lane, place = spread_place(a.rows, l, from, i);
    float4 v[SPREAD_BATCH];
#pragma unroll
    for (int k = 0; k < SPREAD_BATCH; k++) /* all asked for before anything is waited for */
        if (begin + 32 * k < row.x_fours)
            v[k] = gpu_load_system(x + begin + 32 * k);
    const float4 *choice = sign_of(p, buffer, from, row, l) + 1 + (size_t)i * row.id_fours;
    if (!take_choice(a, p, choice, row, from, place, part, lane))
        return;
    float4 *to = (float4 *)(a.x_all + (size_t)place * a.n);
#pragma unroll
    for (int k = 0; k < SPREAD_BATCH; k++) {
        const int f = begin + 32 * k;
        if (f >= row.x_fours)
            continue;
        if (peer_is_empty(v[k]))
            v[k] = peer_await(x + f, p, from);
        spread_empty(x + f);
        to[f] = v[k];
    }
}

/* Places behind all real rows are of no expert. */
static __device__ __forceinline__ void clear_rest(const cuda_dispatch &a, int size)
{
    int n = 0;
    for (int r = 0; r < size; r++)
        n += a.rows.count[r];
    const size_t end = (size_t)a.rows.n_all * a.n_used;
    for (size_t i = (size_t)n * a.n_used + blockIdx.x * blockDim.x + threadIdx.x; i < end;
         i += (size_t)gridDim.x * blockDim.x)
        a.local[i] = -1;
}

static __global__ void __launch_bounds__(SPREAD_THREADS, 1)
    dispatch_kernel(const __grid_constant__ cuda_dispatch a, const __grid_constant__ peer_memory p,
                    const spread_launch l)
{
    gpu_wait_before();
    gpu_let_next();
    const int thread = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    const spread_role role = spread_role_of();
    const uint32_t turn = gpu_load_system(&p.state->turn);
    if (l.first == 0 && a.expert)
        clear_rest(a, p.size);
    if (turn == PEER_BUFFERS || spread_is_empty(a.rows, l, p.size))
        return;
    const row_layout row = layout_of(a);
    const int warp = role.thread / 32, n_warp = role.n_thread / 32;
    float4 *buffer = peer_buffer(p, p.rank, turn);
    if (thread < p.size)
        gpu_store_system(sign_of(p, peer_buffer(p, thread, turn), p.rank, row, l),
                         make_float4(1.0f, 1.0f, 1.0f, 1.0f));
    const int n_own = role.sends ? spread_rows(a.rows, l, p.rank) * row.n_part : 0;
    for (int u = warp; u < n_own; u += n_warp)
        send_part(a, p, turn, l, row, u / row.n_part, u % row.n_part, lane);
    for (int d = 1; d < p.size && !role.sends; d++) {
        const int from = (p.rank + d) % p.size, n = spread_rows(a.rows, l, from) * row.n_part;
        for (int u = warp; u < n; u += n_warp)
            take_part(a, p, buffer, l, row, from, u / row.n_part, u % row.n_part, lane);
    }
    peer_clear(p, turn);
    if (thread < p.size)
        peer_take(sign_of(p, buffer, thread, row, l), p, thread);
    peer_end(p, turn, 0u, (uint32_t)p.size * sign_fours(row, l));
}

const char *dispatch_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_dispatch *a = &op->as.dispatch;
    const char *why = peers_check(at);
    if (!why)
        why = spread_check(op, &a->rows, a->expert ? a->first : nullptr, at->peers->memory.size);
    if (why)
        return why;
    if (a->n < 8 || a->n % 8 || a->n > (1 << 20) || (a->expert && (a->n_used < 1 || a->n_used > 1024)))
        return "dispatch: rows of a multiple of 8, and 1 to 1024 experts for each";
    const struct peer_memory *p = &at->peers->memory;
    const row_layout row = layout_of(*a);
    const int rows = (int)(p->slot / (uint32_t)row.x_fours),
              choices = row.id_fours ? (int)((p->slot - 1) / (uint32_t)row.id_fours) : rows,
              in_slot = min(rows, choices);
    if (in_slot == 0)
        return "dispatch: a row does not fit a peer's buffer";
    for (int first = 0; first < op->n_row && !why; first += in_slot) {
        const spread_launch l = {first, min(in_slot, op->n_row - first)};
        const size_t threads = 32 * (size_t)l.n_row * row.n_part * (size_t)max(p->size - 1, 1);
        why = gpu_why(gpu_launch_resident(dispatch_kernel, spread_blocks(threads, at), SPREAD_THREADS, 0,
                                          at->stream, *a, *p, l));
    }
    return why;
}

cudaError_t dispatch_load(void)
{
    return gpu_load_kernel(dispatch_kernel);
}
