/* Products of all ranks' experts back to the ranks that the rows are of, where they are added up in the order
 * of choice: the sum that one GPU with all experts would come to, bit for bit. A product lies in its row's
 * home's buffer at the place of its row and choice, which only one rank writes to; products of the home's own
 * experts are read where they are. Everybody tells everybody that it is here, too (peers.h). */
#include "kernels/cuda/plugin/spread.cuh"

#define TOGETHER 8  /* products of one row under way at once                       */
#define CHOICE   32 /* numbers of a choice that a warp looks at at once, one a lane */

static constexpr spread_form FORM = {34, 1};

/* The work of one kind: 32 fours of a row are a warp's unit. */
struct piece {
    int width, n_part; /* fours of a row, units of a row */
    int lane;
};
static __device__ __forceinline__ int four_of(const piece &w, int unit)
{
    return unit % w.n_part * 32 + w.lane;
}

/* Four f of those of products [first, first + TOGETHER) that are among these bits. */
static __device__ __forceinline__ void ask_products(const cuda_combine &a, const piece &w, int place, int f,
                                                    int first, uint32_t bits, float4 (&v)[TOGETHER])
{
    const float4 *from = (const float4 *)a.each + ((size_t)place * a.n_used + first) * w.width + f;
#pragma unroll
    for (int k = 0; k < TOGETHER; k++)
        if (bits >> k & 1u && f < w.width)
            v[k] = from[(size_t)k * w.width];
}

/* ---- products of this rank's experts ---------------------------------------------------------------- */

/* What a warp has asked for: places of this unit's row and of the next one's, numbers of the choice of this
 * one's, one a lane, and products. */
struct outgoing {
    int place, next_place, taken;
    float4 v[TOGETHER];
};

/* Number first + lane of the choice of the row at this place, as this rank's expert; -1: it is not. */
static __device__ __forceinline__ int taken_at(const cuda_combine &a, int place, int first, int lane)
{
    return first + lane < a.n_used ? a.local[(size_t)place * a.n_used + first + lane] : -1;
}

static __device__ __forceinline__ void send_products(float4 *to, const piece &w, uint32_t bits, int f,
                                                     const float4 (&v)[TOGETHER])
{
#pragma unroll
    for (int k = 0; k < TOGETHER; k++)
        if (bits >> k & 1u && f < w.width)
            gpu_store_system(to + (size_t)k * w.width + f, peer_sendable(v[k]));
}

/* Units of rank `to`'s rows. `asked`: products of the first are under way, whether taken or not. */
static __device__ __forceinline__ void send_rows(const cuda_combine &a, const peer_memory &p, uint32_t turn,
                                                 const spread_launch &l, const spread_role &role,
                                                 const piece &w, int to, int n, bool asked, outgoing &q)
{
    float4 *whole = peer_whole(p, peer_buffer(p, to, turn));
    for (int u = role.warp; u < n; u += role.n_warp, asked = false) {
        const int place = q.place, f = four_of(w, u);
        uint32_t mask = __ballot_sync(~0u, q.taken >= 0);
        if (!asked)
            ask_products(a, w, place, f, 0, mask, q.v);
        q.place = q.next_place;
        if (u + role.n_warp < n)
            q.taken = taken_at(a, q.place, 0, w.lane);
        if (u + 2 * role.n_warp < n)
            q.next_place = spread_place(a.rows, l, to, (u + 2 * role.n_warp) / w.n_part);
        float4 *at = whole + (size_t)(u / w.n_part) * a.n_used * w.width;
        send_products(at, w, mask, f, q.v);
        for (int first = TOGETHER; first < a.n_used; first += TOGETHER) {
            if (first % CHOICE == 0)
                mask = __ballot_sync(~0u, taken_at(a, place, first, w.lane) >= 0);
            ask_products(a, w, place, f, first, mask >> first % CHOICE, q.v);
            send_products(at + (size_t)first * w.width, w, mask >> first % CHOICE, f, q.v);
        }
    }
}

static __device__ __forceinline__ void ask_places(const cuda_combine &a, const spread_launch &l,
                                                  const spread_role &role, const piece &w, int to, int n,
                                                  outgoing &q)
{
    if (role.warp < n)
        q.place = spread_place(a.rows, l, to, role.warp / w.n_part);
    if (role.warp + role.n_warp < n)
        q.next_place = spread_place(a.rows, l, to, (role.warp + role.n_warp) / w.n_part);
}

static __device__ __forceinline__ void send_all(const cuda_combine &a, const peer_memory &p,
                                                const spread_launch &l, const spread_role &role,
                                                const piece &w, peer_now now)
{
    outgoing q;
    int to = (p.rank + 1) % p.size, n = p.size > 1 ? spread_rows(a.rows, l, to) * w.n_part : 0;
    ask_places(a, l, role, w, to, n, q);
    gpu_wait_before();
    if (role.warp < n) {
        q.taken = taken_at(a, q.place, 0, w.lane);
        ask_products(a, w, q.place, four_of(w, role.warp), 0,
                     a.n_used < TOGETHER ? (1u << a.n_used) - 1 : (1u << TOGETHER) - 1, q.v);
    }
    peer_settle(p, &now);
    if (peer_has_failed(p))
        return;
    send_rows(a, p, now.turn, l, role, w, to, n, true, q);
    for (int d = 2; d < p.size; d++) { /* each begins with another */
        to = (p.rank + d) % p.size;
        n = spread_rows(a.rows, l, to) * w.n_part;
        ask_places(a, l, role, w, to, n, q);
        if (role.warp < n)
            q.taken = taken_at(a, q.place, 0, w.lane);
        send_rows(a, p, now.turn, l, role, w, to, n, false, q);
    }
}

/* ---- rows of this rank ------------------------------------------------------------------------------ */

static __device__ __forceinline__ void add_product(float (&sum)[4], float weight, float4 v)
{
    sum[0] = fmaf(weight, v.x, sum[0]);
    sum[1] = fmaf(weight, v.y, sum[1]);
    sum[2] = fmaf(weight, v.z, sum[2]);
    sum[3] = fmaf(weight, v.w, sum[3]);
}
static __device__ __forceinline__ void add_product(float (&sum)[8], float weight, float4 v)
{
    const uint32_t pair[4] = {__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z),
                              __float_as_uint(v.w)};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sum[2 * i] = fmaf(weight, bf16_low(pair[i]), sum[2 * i]);
        sum[2 * i + 1] = fmaf(weight, bf16_high(pair[i]), sum[2 * i + 1]);
    }
}

/* What a warp has asked for of its unit's row, numbers of the choice one a lane. */
struct incoming {
    int place, expert; /* -1: none */
    float weight;
};

static __device__ __forceinline__ incoming ask_row(const cuda_combine &a, const peer_memory &p,
                                                   const spread_launch &l, int i, int first, int lane)
{
    const size_t at = (size_t)(l.first + i) * a.n_used + first + lane;
    incoming q = {0, -1, 0.0f};
    q.place = spread_place(a.rows, l, p.rank, i);
    if (first + lane < a.n_used) {
        q.expert = a.expert[at];
        q.weight = a.weight[at];
    }
    return q;
}

/* Products [first, first + TOGETHER) of a row with this choice: `own` of these bits have been asked for,
 * `others` come from other ranks. Of lane j: the weight of number j of the choice. */
template <int N>
static __device__ __forceinline__ void add_products(const cuda_combine &a, const peer_memory &p,
                                                    const piece &w, const int32_t *expert, float4 *sent,
                                                    int f, uint32_t own, uint32_t others, int first,
                                                    float weight, float4 (&v)[TOGETHER], float (&sum)[N])
{
    sent += (size_t)first * w.width + f;
    const uint32_t there = f < w.width ? others & ((1u << TOGETHER) - 1) : 0u;
#pragma unroll
    for (int k = 0; k < TOGETHER; k++)
        if (there >> k & 1u)
            v[k] = gpu_load_system(sent + (size_t)k * w.width);
    spread_await(v, sent, (size_t)w.width, there, p,
                 [&](int k) { return spread_owner(a.first, p.size, expert[first + k]); });
#pragma unroll
    for (int k = 0; k < TOGETHER; k++) {
        const float by = __shfl_sync(~0u, weight, (first + k) % CHOICE);
        if (!((own | others) >> k & 1u) || f >= w.width)
            continue;
        if (there >> k & 1u)
            peer_empty(sent + (size_t)k * w.width);
        add_product(sum, by, v[k]);
    }
}

/* N: numbers in a four. */
template <int N>
static __device__ __forceinline__ void receive_all(const cuda_combine &a, const peer_memory &p,
                                                   const spread_launch &l, const spread_role &role,
                                                   const piece &w, peer_now now)
{
    const int n = spread_rows(a.rows, l, p.rank) * w.n_part;
    int u = role.warp;
    incoming next = ask_row(a, p, l, u < n ? u / w.n_part : 0, 0, u < n ? w.lane : a.n_used);
    float4 v[TOGETHER];
    gpu_wait_before();
    int owner = spread_owner(a.first, p.size, next.expert);
    uint32_t own = __ballot_sync(~0u, owner == p.rank);
    ask_products(a, w, next.place, four_of(w, u), 0, own, v);
    peer_settle(p, &now);
    float4 *whole = peer_whole(p, peer_buffer(p, p.rank, now.turn));
    for (; u < n; u += role.n_warp) {
        const int i = u / w.n_part, f = four_of(w, u), place = next.place;
        const bool asked = u == role.warp;
        float weight = next.weight, sum[N] = {};
        owner = spread_owner(a.first, p.size, next.expert);
        own = __ballot_sync(~0u, owner == p.rank);
        uint32_t others = __ballot_sync(~0u, owner >= 0) & ~own;
        if (!asked)
            ask_products(a, w, place, f, 0, own, v);
        if (u + role.n_warp < n)
            next = ask_row(a, p, l, (u + role.n_warp) / w.n_part, 0, w.lane);
        float4 *sent = whole + (size_t)i * a.n_used * w.width;
        const int32_t *expert = a.expert + (size_t)(l.first + i) * a.n_used;
        add_products<N>(a, p, w, expert, sent, f, own, others, 0, weight, v, sum);
        for (int first = TOGETHER; first < a.n_used; first += TOGETHER) {
            if (first % CHOICE == 0) {
                const incoming more = ask_row(a, p, l, i, first, w.lane);
                weight = more.weight;
                owner = spread_owner(a.first, p.size, more.expert);
                own = __ballot_sync(~0u, owner == p.rank);
                others = __ballot_sync(~0u, owner >= 0) & ~own;
            }
            ask_products(a, w, place, f, first, own >> first % CHOICE, v);
            add_products<N>(a, p, w, expert, sent, f, own >> first % CHOICE, others >> first % CHOICE, first,
                            weight, v, sum);
        }
        if (f >= w.width)
            continue;
        float4 *to = (float4 *)(a.out + (size_t)(l.first + i) * a.n + (size_t)f * N);
#pragma unroll
        for (int k = 0; k < N / 4; k++)
            to[k] = make_float4(sum[4 * k], sum[4 * k + 1], sum[4 * k + 2], sum[4 * k + 3]);
    }
}

/* A clerk, the last warp of each block: what has to be done besides, so that no row waits for that. Everybody
 * tells everybody that it is here (peers.h). */
static __device__ __forceinline__ void keep(const peer_memory &p, peer_now now)
{
    const int lane = threadIdx.x % 32;
    const bool signs = blockIdx.x == 0 && lane < p.size;
    if (lane == 0)
        peer_begin(p, &now);
    const bool failed = peer_has_failed(p);
    if (signs && !failed)
        gpu_store_system(peer_slot(p, peer_buffer(p, lane, now.turn), p.rank),
                         make_float4(1.0f, 1.0f, 1.0f, 1.0f));
    if (lane == 0)
        peer_pass(p, now, 1u, 0u);
    __syncwarp();
    peer_clear(p, now.turn, blockIdx.x * 32 + lane, gridDim.x * 32);
    if (signs && !failed)
        peer_take(peer_slot(p, peer_buffer(p, p.rank, now.turn), lane), p, lane);
}

/* Counts, places, choices and weights are there before the launch in front of this one begins (cuda_ops.h),
 * so they are asked for before it has ended. */
template <int N>
static __global__ void __launch_bounds__(SPREAD_THREADS, 1)
    combine_kernel(const __grid_constant__ cuda_combine a, const __grid_constant__ peer_memory p,
                   const spread_launch l)
{
    peer_now now = peer_look(p);
    const piece w = {a.n / N, (a.n / N + 31) / 32, (int)threadIdx.x % 32};
    const spread_role role = spread_role_of(l, FORM.clerks);
    if (spread_is_empty(a.rows, l, p.size)) {
        gpu_wait_before();
    } else if (role.is_clerk) {
        gpu_wait_before();
        peer_settle(p, &now);
        keep(p, now);
    } else if (role.sends) {
        send_all(a, p, l, role, w, now);
    } else {
        receive_all<N>(a, p, l, role, w, now);
    }
}

template <int N> static const char *launch_all(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_combine *a = &op->as.combine;
    const struct peer_memory *p = &at->peers->memory;
    const size_t row = (size_t)a->n_used * (size_t)(a->n / N);
    const size_t fit = (size_t)p->size * p->slot / row;
    const int in_whole = (int)(fit < (size_t)op->n_row ? fit : (size_t)op->n_row);
    const char *why = nullptr;
    if (in_whole == 0)
        return "combine: the products of a row do not fit a peer's buffer";
    for (int first = 0; first < op->n_row && !why; first += in_whole) {
        spread_launch l = {first, min(in_whole, op->n_row - first), 0};
        const size_t units = (size_t)l.n_row * (size_t)((a->n / N + 31) / 32);
        const spread_grid grid = spread_grid_for(FORM, units * (size_t)max(p->size - 1, 1), units, at, &l);
        why = gpu_why(
            gpu_launch_resident(combine_kernel<N>, grid.blocks, grid.threads, 0, at->stream, *a, *p, l));
    }
    return why;
}

const char *combine_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_combine *a = &op->as.combine;
    const char *why = peers_check(at);
    if (!why)
        why = spread_check(op, &a->rows, a->first, at->peers->memory.size);
    if (why)
        return why;
    if (a->n < 8 || a->n % 8 || a->n > (1 << 20) || a->n_used < 1 || a->n_used > 1024)
        return "combine: rows of a multiple of 8, and 1 to 1024 experts for each";
    return a->is_bf16 ? launch_all<8>(op, at) : launch_all<4>(op, at);
}

cudaError_t combine_load(void)
{
    const cudaError_t e = gpu_load_kernel(combine_kernel<4>);
    return e == cudaSuccess ? gpu_load_kernel(combine_kernel<8>) : e;
}
