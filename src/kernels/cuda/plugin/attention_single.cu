/* Attention of sequences that have one row in the step. Warps take turns with the spans (attention_span.cuh)
 * of a sequence, or of a part of a long one. A warp's keys and values go from memory straight into the
 * operands of the matrix instruction: keys, and then values transposed, are the first operand; the query
 * heads that share them are the eight columns. The next keys are asked for when the last have been used, and
 * values likewise, so that a warp always waits for one of them and works on the other.
 *
 * A sequence that is not cut is a cluster's, as large as there are SMs for: each block puts its warps'
 * results together, and a share of the row's numbers is each block's to add up. What precedes attention may
 * be in the launch, too (attention_fresh.cuh): then keys are asked for, into the L2, before the product of q,
 * k and v has ended. All of them but the row's own are those of earlier steps, and no kernel of a step begins
 * before the copies of its input, which wait for all of the step before.
 */
#include <algorithm>

#include "kernels/cuda/plugin/attention_fresh.cuh"
#include "kernels/cuda/plugin/attention_walk.cuh"
#include "kernels/cuda/plugin/cluster.cuh"

#define CLUSTER_MAX 8
#define WARPS_FEW   8  /* of a block: where blocks are so few that each has an SM; */
#define WARPS_ALONE 12 /* where each has one, and all of a row, and not too many registers; */
#define WARPS_MANY  4  /* else */

struct single_params {
    struct cuda_attention a;
    struct attention_parts parts;
    int n_part, long_from, cluster;
    int ahead;                     /* spans of a warp for which it asks the L2 at once */
    bool takes_whole, takes_parts; /* rows of which kind */
    bool joined;
    struct cuda_qkv qkv; /* if joined */
};

static_assert(ATTENTION_WHOLE <= 32 * CUDA_KV_BLOCK * WARPS_MANY, "a lane knows each of a warp's blocks");

template <int HD, int NT, int WARPS> struct single_room {
    warp_part<HD, NT> part[WARPS];
    fresh_row<HD, NT> fresh;
    static_assert(HD <= 32 * WARPS && CLUSTER_MAX <= HD / 4, "a thread has one dimension, a head's a block");
    /* from the blocks of the cluster: four dimensions of this block's share each, and of all heads */
    float4 came[8 * NT * HD / 4 + CLUSTER_MAX];
    float max[CLUSTER_MAX][8 * NT], sum[CLUSTER_MAX][8 * NT];
};

/* What a block has of a row: of a whole sequence some spans, of a long one a part. */
struct share {
    int first, step, begin, end; /* spans of its first warp, and from one to a warp's next; keys */
    int rank, n_rank;            /* whole: this block of those that have keys */
    int split;                   /* else */
    bool whole, holds;           /* the last key is among them */
};

template <int TYPE, int WARPS>
static __device__ __forceinline__ share share_of(const single_params &p, int pos)
{
    const int n = span<TYPE>::KEYS, last = pos / n, x = blockIdx.x;
    share s = {};
    s.whole = pos < ATTENTION_WHOLE;
    if (s.whole) {
        s.rank = x;
        s.n_rank = min(p.cluster, last / WARPS + 1);
        s.first = x * WARPS;
        s.step = p.cluster * WARPS;
        s.begin = s.first * n;
        s.end = p.takes_whole && x < p.cluster ? pos + 1 : 0;
        s.holds = last / WARPS % p.cluster == x;
    } else {
        const int keys = attention_part_keys(p.long_from, pos);
        s.split = x;
        s.begin = x * keys;
        s.first = s.begin / n;
        s.step = WARPS;
        s.end = p.takes_parts ? min(pos + 1, s.begin + keys) : 0;
        s.holds = pos / keys == x;
    }
    return s;
}

static __device__ __forceinline__ void put_four(const struct cuda_attention &a, size_t at, float4 acc,
                                                float sum)
{
    const float by = (a.kv.type == CUDA_KV_FP8 ? a.kv.scale[1] : 1.0f) / sum;
    *(uint2 *)&a.y[at] =
        make_uint2(float_bf16_pair(acc.x * by, acc.y * by), float_bf16_pair(acc.z * by, acc.w * by));
}

/* What a block has of a row to where that is needed: all that there is of it to y, a share of it each to the
 * blocks of the cluster, a part to the launch that merges. */
template <int HD, int NT, int WARPS>
static __device__ __forceinline__ void put_block(const single_params &p, const share &s,
                                                 single_room<HD, NT, WARPS> &room, size_t at, int which,
                                                 int head, int n_head)
{
    const struct cuda_attention &a = p.a;
    const int all = n_head * (HD / 4), each = s.whole ? (all + s.n_rank - 1) / s.n_rank : 1;
    const float per =
        1.0f / (float)each; /* a quotient of small numbers by it is right, and takes no division */
    for (int i = threadIdx.x; i < all; i += 32 * WARPS) {
        const int t = i / (HD / 4), d = i % (HD / 4) * 4;
        const four_sums of = add_warps<HD, NT, WARPS>(room.part, t, d);
        if (s.whole && s.n_rank == 1) {
            put_four(a, at + 4 * i, of.acc, of.sum);
        } else if (s.whole) {
            const int to = (int)(((float)i + 0.5f) * per), r = i % (HD / 4);
            *cluster_at(&room.came[s.rank * each + i - to * each], to) = of.acc;
            if (r < s.n_rank) { /* a head's first threads have a block each */
                *cluster_at(&room.max[s.rank][t], r) = of.max;
                *cluster_at(&room.sum[s.rank][t], r) = of.sum;
            }
        } else {
            const size_t to = ((size_t)which * a.n_head + head + t) * p.n_part + s.split;
            *(float4 *)&p.parts.acc[to * HD + d] = of.acc;
            if (d == 0) {
                p.parts.max[to] = of.max;
                p.parts.sum[to] = of.sum;
            }
        }
    }
}

/* This block's share of what the cluster's blocks have sent. */
template <int HD, int NT, int WARPS>
static __device__ __forceinline__ void put_share(const single_params &p, const share &s,
                                                 const single_room<HD, NT, WARPS> &room, size_t at,
                                                 int n_head)
{
    const int all = n_head * (HD / 4), each = (all + s.n_rank - 1) / s.n_rank, first = s.rank * each;
#pragma unroll 1
    for (int k = threadIdx.x; k < min(each, all - first); k += 32 * WARPS) {
        const int t = (first + k) / (HD / 4);
        four_sums row = {};
        row.max = -INFINITY;
#pragma unroll
        for (int r = 0; r < CLUSTER_MAX; r++)
            if (r < s.n_rank)
                row.max = fmaxf(row.max, room.max[r][t]);
#pragma unroll
        for (int r = 0; r < CLUSTER_MAX; r++)
            if (r < s.n_rank)
                row.add(gpu_exp2(room.max[r][t] - row.max), room.sum[r][t], room.came[r * each + k]);
        put_four(p.a, at + 4 * (first + k), row.acc, row.sum);
    }
}

/* grid: (clusters, or parts, KV heads x groups of 8 * NT query heads, rows) */
template <int HD, int TYPE, int NT, int WARPS>
static __global__ void __launch_bounds__(32 * WARPS, (NT == 1 ? 12 : 8) / WARPS)
    single_kernel(const single_params p)
{
    DYNAMIC_SHARED(memory);
    single_room<HD, NT, WARPS> &room = *(single_room<HD, NT, WARPS> *)memory;
    const struct cuda_attention &a = p.a;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, which = blockIdx.z;
    const int of_kv = a.n_head / a.kv.n_kv_head, groups = (of_kv + 8 * NT - 1) / (8 * NT);
    const int kv_head = (int)blockIdx.y / groups, at_head = (int)blockIdx.y % groups * 8 * NT;
    const int head = kv_head * of_kv + at_head, n_head = min(8 * NT, of_kv - at_head);
    /* What no operator writes, and where the cache is, before waiting for the operator before. */
    span_walk<HD, TYPE, NT> walk;
    struct share s = {};
    int row = 0, pos = 0, slot = 0;
    const bool real = which < min(*a.single_count, a.n_single);
    walk.kv_head = kv_head;
    walk.own = {};
    table_part part = {};
    if (p.joined)
        part.ask_norms(p.qkv, HD);
    if (real) {
        const struct cuda_tile tile = a.single[which];
        row = tile.row;
        pos = a.pos[row];
        if (p.joined) {
            slot = p.qkv.slot[row];
            part.ask_angles(p.qkv, pos);
        }
        s = share_of<TYPE, WARPS>(p, pos);
        walk.own = {s.first + warp, s.step, s.end, 0};
        walk.own.look(a.block_table + (size_t)tile.seq * *a.stride, lane);
    }
    const bool mine = s.begin < s.end, clustered = s.whole && p.cluster > 1;
    if (clustered) /* all blocks of the cluster have begun */
        cluster_arrive();
    const fresh_heads f = {row, head, n_head, kv_head, s.holds, at_head == 0};
    const size_t at = ((size_t)row * a.n_head + head) * HD;
    const float scale = a.scale * LOG2_E * (TYPE == CUDA_KV_FP8 ? a.kv.scale[0] : 1.0f);
    heads<HD, NT> h;
    walk.own.template fetch<HD>(a.kv, kv_head, 0, p.ahead, lane);
    if (!p.joined) {
        gpu_wait_few(a.n_single);
        ask_for_heads<HD, TYPE, NT>(h, a.q + at, n_head, lane);
        walk.begin(a.kv, lane);
    }
    if (p.joined) {
        const tables table = part.put(p.qkv, HD, room.fresh.table);
        __syncthreads();
        gpu_wait_few(a.n_single);
        if (mine) {
            take_fresh<HD, NT, WARPS>(room.fresh, p.qkv, f, warp, lane);
            /* not before: what is loaded behind keys waits for them */
            if (walk.own.any(0))
                walk.load_keys(a.kv, 0, lane);
            finish_fresh<HD, TYPE, NT, WARPS>(room.fresh, p.qkv, table, f, slot, warp, lane);
            if (walk.own.any(0))
                walk.load_values(a.kv, 0, lane);
        }
        __syncthreads();
        if (mine)
            round_heads<HD, TYPE, NT>(h, &room.fresh.x[0][0], HD + 4, n_head, lane);
    }
    if (mine) {
        fresh_last fresh = {};
        if (p.joined && s.holds)
            fresh = {room.fresh.key, room.fresh.value};
        walk.run(a.kv, h, scale, fresh, lane);
        put_part(h, &room.part[warp], lane); /* of a warp without a key: nothing, under a weight of zero */
    }
    __syncthreads();
    if (clustered)
        cluster_wait();
    if (mine)
        put_block<HD, NT, WARPS>(p, s, room, at, which, head, n_head);
    if (!clustered)
        return;
    cluster_sync();
    if (mine && s.n_rank > 1)
        put_share<HD, NT, WARPS>(p, s, room, at, n_head);
}

/* The shared memory of a block that has need of `bytes`: where an even share is two blocks an SM, so much
 * that none has room for three. Those that are free first would take a third, and be the last to end. */
static size_t even_share(size_t bytes, unsigned blocks, const struct gpu_limits *limits)
{
    const size_t share = (blocks + (unsigned)limits->n_sm - 1) / (unsigned)limits->n_sm;
    return share == 2 ? std::max(bytes, limits->shared_bytes / 3 + 1024) : bytes;
}

template <int HD, int TYPE, int NT, int WARPS>
static const char *start(const single_params &p, int groups, const struct op_place *at)
{
    const int blocks = p.takes_parts ? p.n_part : p.cluster;
    const dim3 grid((unsigned)blocks, (unsigned)(p.a.kv.n_kv_head * groups), (unsigned)p.a.n_single);
    const size_t bytes = even_share(sizeof(single_room<HD, NT, WARPS>), grid.x * grid.y * grid.z, at->limits);
    const cudaStream_t stream = at->stream;
    const char *why = gpu_why(gpu_allow_shared(single_kernel<HD, TYPE, NT, WARPS>, bytes));
    if (why)
        return why;
    if (p.cluster == 1)
        return gpu_why(gpu_launch(single_kernel<HD, TYPE, NT, WARPS>, grid, 32 * WARPS, bytes, stream, p));
    return gpu_why(gpu_launch_clusters((unsigned)p.cluster, single_kernel<HD, TYPE, NT, WARPS>, grid,
                                       32 * WARPS, bytes, stream, p));
}

/* Blocks for each pair of a row and a KV head's query heads: as many as run at once on some 132 SMs, of which
 * large clusters of blocks that need an SM each cannot use all. It decides about the order of sums, and so is
 * the same on all GPUs. */
static int cluster_of(int pairs, int warps)
{
    int n = CLUSTER_MAX;
    const int most = warps == WARPS_FEW ? 128 : 256, large = warps == WARPS_FEW ? 64 : 256;
    while (n > 1 && pairs * n > (n > 2 ? large : most))
        n /= 2;
    return n;
}

/* Whole rows; and those that are cut, in a launch of their own unless both want the same blocks. Small heads
 * are rare, and have fewer kernels: each takes nvcc a second. */
template <int HD, int TYPE, int NT>
static const char *start_tiles(single_params p, int groups, const struct op_place *at)
{
    const int pairs = attention_rows(&p.a) * p.a.kv.n_kv_head * groups;
    const int few = HD == 128 ? WARPS_FEW : WARPS_MANY, warps = pairs <= 128 ? few : WARPS_MANY;
    const int alone = HD == 128 && NT == 1 ? WARPS_ALONE : few;
    const char *why = nullptr;
    p.cluster = cluster_of(pairs, warps);
    p.ahead = p.joined ? 1 : pairs <= 32 ? 4 : 0;
    p.takes_whole = true;
    p.takes_parts = p.n_part > 0 && p.cluster == 1 && warps == WARPS_MANY;
    why = warps != few    ? start<HD, TYPE, NT, WARPS_MANY>(p, groups, at)
          : p.cluster > 1 ? start<HD, TYPE, NT, few>(p, groups, at)
                          : start<HD, TYPE, NT, alone>(p, groups, at);
    if (why || p.n_part == 0 || p.takes_parts)
        return why;
    p.cluster = 1;
    p.takes_whole = false;
    p.takes_parts = true;
    return start<HD, TYPE, NT, WARPS_MANY>(p, groups, at);
}

template <int HD, int TYPE> static const char *start_size(const single_params &p, const struct op_place *at)
{
    const int of_kv = p.a.n_head / p.a.kv.n_kv_head, wide = HD == 128 ? 2 : 1;
    return of_kv > 8 ? start_tiles<HD, TYPE, wide>(p, (of_kv + 8 * wide - 1) / (8 * wide), at)
                     : start_tiles<HD, TYPE, 1>(p, 1, at);
}

const char *attention_single_start(const struct cuda_attention *a, const struct cuda_qkv *qkv,
                                   const struct attention_parts *parts, const struct op_place *at)
{
    single_params p = {
        *a, *parts, attention_part_count(a), attention_long_from(a), 1, 0, false, false, qkv != nullptr, {}};
    const char *why = nullptr;
    if (qkv)
        p.qkv = *qkv;
#define CALL(HD, TYPE) start_size<HD, TYPE>(p, at)
    ATTENTION_SWITCH(why, a->kv, CALL)
#undef CALL
    return why || p.n_part == 0 ? why : attention_merge_start(a, parts, at->stream);
}
