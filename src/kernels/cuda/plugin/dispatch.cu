/* Rows of every rank to the ranks whose experts they chose. A row goes once to each of them, as the bf16 that
 * the experts' kernels read; its choice goes to all ranks, so that everybody knows what comes: a rank waits
 * for nothing but numbers, which say by themselves that they are there (peers.h). In a buffer a rank's rows
 * follow each other; in the area for all together are, of each rank, a sign that it is here, and choices.
 *
 * A warp moves a part of a row. Some of the blocks send and wait for nothing but, at the end, signs, and all
 * run at once, on every rank. What a launch has to know is asked for all at once, before anything is looked
 * at: few rows take the time of what follows one another, not of what is moved. */
#include "kernels/cuda/plugin/spread.cuh"

#define BATCH  4            /* fours of one lane under way at once        */
#define PART   (32 * BATCH) /* fours of a row that a warp moves in one go */
#define CHOICE 32           /* numbers of a choice that a warp looks at at once, one a lane */

/* Clerks made few rows slower: other code, which has to be fetched first, too. */
static constexpr spread_form FORM = {50, 0};

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
    l.n_part = (l.x_fours + PART - 1) / PART;
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

/* A choice as this rank's expert, counted. */
static __device__ __forceinline__ void keep_choice(const cuda_dispatch &a, const peer_memory &p, int place,
                                                   int j, int expert)
{
    const bool here = expert >= a.first[p.rank] && expert < a.first[p.rank + 1];
    a.local[(size_t)place * a.n_used + j] = here ? expert - a.first[p.rank] : -1;
    if (a.load && expert >= 0 && expert < a.first[p.size])
        atomicAdd((unsigned long long *)&a.load[expert], 1ull);
}

/* What a warp has asked for: a part of a row, and numbers of its choice. Where they are in buffers, in fours
 * behind a buffer's begin: this lane's first of the row, and of the choice. */
struct asked {
    float4 v[BATCH];
    size_t x_at, choice_at;
    int i, part, place, begin;
};

static __device__ __forceinline__ void find_unit(const peer_memory &p, const spread_launch &l,
                                                 const row_layout &row, int rank, int unit, int lane,
                                                 asked &q)
{
    q.i = unit / row.n_part;
    q.part = unit - q.i * row.n_part;
    q.begin = q.part * PART + lane;
    q.x_at = (size_t)rank * p.slot + (size_t)q.i * row.x_fours + q.begin;
    q.choice_at =
        (size_t)p.size * p.slot + (size_t)rank * sign_fours(row, l) + 1 + (size_t)q.i * row.id_fours + lane;
}

/* ---- rows of this rank ------------------------------------------------------------------------------ */

/* Number first + lane of the choice of row i; -1: there is none. */
static __device__ __forceinline__ int32_t own_choice(const cuda_dispatch &a, const spread_launch &l, int i,
                                                     int first, int lane)
{
    return first + lane < a.n_used ? a.expert[(size_t)(l.first + i) * a.n_used + first + lane] : -1;
}

static __device__ __forceinline__ int32_t ask_own(const cuda_dispatch &a, const peer_memory &p,
                                                  const spread_launch &l, const row_layout &row, int lane,
                                                  asked &q)
{
    const float4 *x = (const float4 *)(a.x + (size_t)(l.first + q.i) * a.n) + q.begin;
#pragma unroll
    for (int k = 0; k < BATCH; k++)
        if (q.begin + 32 * k < row.x_fours)
            q.v[k] = x[32 * k];
    q.place = spread_place(a.rows, l, p.rank, q.i);
    return a.expert ? own_choice(a, l, q.i, 0, lane) : -1;
}

/* Bits of the ranks that have one of these experts, one a lane. */
static __device__ __forceinline__ uint32_t ranks_of(const cuda_dispatch &a, int size, int32_t id)
{
    uint32_t mask = 0;
#pragma unroll 1
    for (int r = 0; r < size; r++)
        mask |= __any_sync(~0u, id >= a.first[r] && id < a.first[r + 1]) ? 1u << r : 0u;
    return mask;
}

/* Four numbers of the choice in each of the first lanes. */
static __device__ __forceinline__ float4 pack_choice(int32_t id, int lane)
{
    four_ids ids;
#pragma unroll
    for (int c = 0; c < 4; c++)
        ids.id[c] = __shfl_sync(~0u, id, (4 * lane + c) % 32);
    return peer_sendable(ids.four);
}

/* What is ready to go as soon as it is known to which buffer. */
struct ready {
    uint32_t mask;
    int32_t id;
    float4 choice;
};
static __device__ __forceinline__ ready make_ready(const cuda_dispatch &a, const peer_memory &p,
                                                   const spread_launch &l, int32_t id, int lane, asked &q)
{
    ready r = {(1u << p.size) - 1, id, make_float4(0.0f, 0.0f, 0.0f, 0.0f)};
    if (a.expert) {
        r.mask = ranks_of(a, p.size, id);
#pragma unroll 1
        for (int first = CHOICE; first < a.n_used; first += CHOICE)
            r.mask |= ranks_of(a, p.size, own_choice(a, l, q.i, first, lane));
        r.choice = pack_choice(id, lane);
    }
#pragma unroll
    for (int k = 0; k < BATCH; k++)
        q.v[k] = peer_sendable(q.v[k]);
    return r;
}

/* To the others first. The choice goes to everybody, with the row's first part. */
static __device__ __forceinline__ void send_part(const cuda_dispatch &a, const peer_memory &p, size_t turn_at,
                                                 const spread_launch &l, const row_layout &row,
                                                 const asked &q, const ready &r, int lane)
{
#pragma unroll 1
    for (int d = 1; d <= p.size; d++) { /* each begins with another */
        const int to = p.rank + d < p.size ? p.rank + d : p.rank + d - p.size;
        float4 *buffer = p.buffer[to] + turn_at;
        if (q.part == 0 && to != p.rank && lane < CHOICE / 4 && lane < row.id_fours)
            gpu_store_system(buffer + q.choice_at, r.choice);
        if (!(r.mask >> to & 1u))
            continue;
        float4 *x = to == p.rank ? (float4 *)(a.x_all + (size_t)q.place * a.n) + q.begin : buffer + q.x_at;
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (q.begin + 32 * k < row.x_fours)
                gpu_store_system(x + 32 * k, q.v[k]);
    }
    if (q.part > 0 || !a.expert)
        return;
    if (lane < a.n_used)
        keep_choice(a, p, q.place, lane, r.id);
#pragma unroll 1
    for (int first = CHOICE; first < a.n_used; first += CHOICE) {
        const int32_t id = own_choice(a, l, q.i, first, lane);
        const float4 choice = pack_choice(id, lane);
#pragma unroll 1
        for (int to = 0; to < p.size; to++)
            if (to != p.rank && lane < CHOICE / 4 && first / 4 + lane < row.id_fours)
                gpu_store_system(p.buffer[to] + turn_at + q.choice_at + first / 4, choice);
        if (first + lane < a.n_used)
            keep_choice(a, p, q.place, first + lane, id);
    }
}

/* ---- rows of the others ----------------------------------------------------------------------------- */

static __device__ __forceinline__ float4 ask_sent(const float4 *buffer, const row_layout &row, bool chooses,
                                                  asked &q)
{
#pragma unroll
    for (int k = 0; k < BATCH; k++)
        if (q.begin + 32 * k < row.x_fours)
            q.v[k] = gpu_load_system(buffer + q.x_at + 32 * k);
    return chooses ? gpu_load_system(buffer + q.choice_at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

/* A four of a choice, `first` numbers behind its begin, of which the first one has been asked for; -1 where
 * there is none. */
static __device__ __forceinline__ four_ids choice_four(const peer_memory &p, const row_layout &row,
                                                       const float4 *at, int from, int first, float4 four,
                                                       int lane)
{
    four_ids ids;
    ids.id[0] = ids.id[1] = ids.id[2] = ids.id[3] = -1;
    if (lane < CHOICE / 4 && first / 4 + lane < row.id_fours)
        ids.four = first == 0 ? four : peer_take(at + first / 4, p, from);
    return ids;
}

/* Whether a row of rank `from` is needed here, by its choice. */
static __device__ __forceinline__ bool is_needed(const cuda_dispatch &a, const peer_memory &p,
                                                 const row_layout &row, const float4 *at, int from,
                                                 float4 four, int lane)
{
    const int begin = a.first[p.rank], end = a.first[p.rank + 1];
    bool needed = false;
#pragma unroll 1
    for (int first = 0; first < a.n_used; first += CHOICE) {
        const four_ids ids = choice_four(p, row, at, from, first, four, lane);
#pragma unroll
        for (int c = 0; c < 4; c++)
            needed = needed || (ids.id[c] >= begin && ids.id[c] < end);
    }
    return __any_sync(~0u, needed);
}

static __device__ __forceinline__ void keep_choices(const cuda_dispatch &a, const peer_memory &p,
                                                    const row_layout &row, const float4 *at, int from,
                                                    int place, float4 four, int lane)
{
#pragma unroll 1
    for (int first = 0; first < a.n_used; first += CHOICE) {
        const four_ids ids = choice_four(p, row, at, from, first, four, lane);
        int id = -1;
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const int one = __shfl_sync(~0u, ids.id[c], lane / 4);
            id = lane % 4 == c ? one : id;
        }
        if (first + lane < a.n_used)
            keep_choice(a, p, place, first + lane, id);
    }
}

/* Waits for the choice and for the part itself, which come at the same time. The choice is kept with the
 * row's first part. */
static __device__ __forceinline__ void take_part(const cuda_dispatch &a, const peer_memory &p, float4 *buffer,
                                                 const row_layout &row, int from, asked &q, float4 four,
                                                 int lane)
{
    const float4 *choice = buffer + q.choice_at;
    float4 *x = buffer + q.x_at;
    bool choosing = a.expert && lane < CHOICE / 4 && lane < row.id_fours, known = !a.expert, needed = true,
         coming = true;
#pragma unroll 1
    for (int looks = 0;; looks++) {
        choosing = choosing && peer_is_empty(four);
        if (!known && !__any_sync(~0u, choosing)) {
            known = true;
            needed = is_needed(a, p, row, choice, from, four, lane);
        }
        int missing = -1;
#pragma unroll
        for (int k = BATCH - 1; k >= 0; k--)
            if (q.begin + 32 * k < row.x_fours && peer_is_empty(q.v[k]))
                missing = k;
        if (known && (!needed || !__any_sync(~0u, coming && missing >= 0)))
            break;
        gpu_wait_peer();
        if (looks == SPREAD_LOOKS) { /* with an eye on the clock */
            looks = 0;
            if ((choosing || (known && coming && missing >= 0)) &&
                peer_is_empty(peer_await(choosing ? choice : x + 32 * missing, p, from)))
                coming = choosing = false;
        }
        if (choosing)
            four = gpu_load_system(choice);
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (q.begin + 32 * k < row.x_fours && peer_is_empty(q.v[k]))
                q.v[k] = gpu_load_system(x + 32 * k);
    }
    float4 *to = (float4 *)(a.x_all + (size_t)q.place * a.n) + q.begin;
#pragma unroll
    for (int k = 0; k < BATCH; k++)
        if (needed && q.begin + 32 * k < row.x_fours) {
            to[32 * k] = q.v[k];
            peer_empty(x + 32 * k);
        }
    if (a.expert && q.part == 0)
        keep_choices(a, p, row, choice, from, q.place, four, lane);
}

/* ---- the launch ------------------------------------------------------------------------------------- */

/* Places behind all real rows are of no expert. */
static __device__ __forceinline__ void clear_rest(const cuda_dispatch &a, int size)
{
    int n = 0;
#pragma unroll 1
    for (int r = 0; r < size; r++)
        n += a.rows.count[r];
    const size_t end = (size_t)a.rows.n_all * a.n_used;
#pragma unroll 1
    for (size_t i = (size_t)n * a.n_used + blockIdx.x * blockDim.x + threadIdx.x; i < end;
         i += (size_t)gridDim.x * blockDim.x)
        a.local[i] = -1;
}

static __global__ void __launch_bounds__(SPREAD_THREADS, 1)
    dispatch_kernel(const __grid_constant__ cuda_dispatch a, const __grid_constant__ peer_memory p,
                    const spread_launch l)
{
    /* counts and places are there before the launch in front of this one begins */
    peer_now now = peer_look(p);
    const row_layout row = layout_of(a);
    const spread_role role = spread_role_of(l, FORM.clerks);
    const bool empty = spread_is_empty(a.rows, l, p.size);
    const int lane = threadIdx.x % 32, thread = blockIdx.x * blockDim.x + threadIdx.x;
    const bool chooses = lane < CHOICE / 4 && lane < row.id_fours;
    int from = role.sends            ? p.rank
               : p.rank + 1 < p.size ? p.rank + 1
                                     : 0,
        unit = role.warp, n = role.sends || p.size > 1 ? spread_rows(a.rows, l, from) * row.n_part : 0;
    asked q;
    ready r = {0, -1, make_float4(0.0f, 0.0f, 0.0f, 0.0f)};
    find_unit(p, l, row, from, unit, lane, q);
    gpu_wait_before();
    if (empty) {
        if (l.first == 0 && a.expert)
            clear_rest(a, p.size);
        return;
    }
    peer_settle(p, &now);
    if (threadIdx.x == 0)
        peer_begin(p, &now);
    int32_t id = -1;
    if (role.sends && unit < n)
        id = ask_own(a, p, l, row, lane, q);
    const bool failed = peer_has_failed(p);
    if (role.sends && unit < n)
        r = make_ready(a, p, l, id, lane, q);
    if (threadIdx.x == 0)
        peer_pass(p, now, 0u, (uint32_t)p.size * sign_fours(row, l));
    if (failed)
        return;
    const size_t turn_at = (size_t)now.turn * 2 * p.size * p.slot;
    float4 *buffer = p.buffer[p.rank] + turn_at;
    float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
    while (role.sends && unit < n) {
        send_part(a, p, turn_at, l, row, q, r, lane);
        unit += role.n_warp;
        if (unit < n) {
            find_unit(p, l, row, p.rank, unit, lane, q);
            r = make_ready(a, p, l, ask_own(a, p, l, row, lane, q), lane, q);
        }
    }
    if (thread < p.size)
        gpu_store_system(sign_of(p, p.buffer[thread] + turn_at, p.rank, row, l),
                         make_float4(1.0f, 1.0f, 1.0f, 1.0f));
    if (!role.sends && unit < n)
        four = ask_sent(buffer, row, chooses, q);
    peer_clear(p, now.turn, (uint32_t)thread, gridDim.x * blockDim.x);
    if (l.first == 0 && a.expert)
        clear_rest(a, p.size);
#pragma unroll 1
    for (int d = 1; d < p.size && !role.sends; d++) {
        if (d > 1) {
            from = p.rank + d < p.size ? p.rank + d : p.rank + d - p.size;
            n = spread_rows(a.rows, l, from) * row.n_part;
        }
#pragma unroll 1
        for (unit = role.warp; unit < n; unit += role.n_warp) {
            if (d > 1 || unit > role.warp) {
                find_unit(p, l, row, from, unit, lane, q);
                four = ask_sent(buffer, row, chooses, q);
            }
            q.place = spread_place(a.rows, l, from, q.i);
            take_part(a, p, buffer, row, from, q, four, lane);
        }
    }
    if (thread < p.size)
        peer_take(sign_of(p, buffer, thread, row, l), p, thread);
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
        spread_launch l = {first, min(in_slot, op->n_row - first), 0};
        const size_t units = (size_t)l.n_row * (size_t)row.n_part;
        const spread_grid grid = spread_grid_for(FORM, units, units * (size_t)max(p->size - 1, 1), at, &l);
        why = gpu_why(
            gpu_launch_resident(dispatch_kernel, grid.blocks, grid.threads, 0, at->stream, *a, *p, l));
    }
    return why;
}

cudaError_t dispatch_load(void)
{
    return gpu_load_kernel(dispatch_kernel);
}
