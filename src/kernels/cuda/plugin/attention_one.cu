/* Attention of one row, and what precedes it: norm and rotation of its heads and its key, and their way into
 * the cache, in one launch.
 *
 * Such a launch is all latency. Its blocks are small, so that they find room beside those of the product of
 * q, k and v: what they look up, and all keys but the row's own, are on their way before q is there
 * (attention_single.cu says why they may be). Nothing of q goes through shared memory: a lane loads just what
 * the matrix instruction wants of it, and norms and rotates it in its registers, in every warp. The row's key
 * and value come beside it, and one warp puts them away.
 *
 * A sequence is a cluster's. Each block of it puts what its warps have together, and sends it to those that
 * put the row together, of which each has sixteen dimensions. */
#include "kernels/cuda/plugin/attention_fresh.cuh"
#include "kernels/cuda/plugin/attention_walk.cuh"
#include "kernels/cuda/plugin/cluster.cuh"

#define HD     128
#define TYPE   CUDA_KV_BF16
#define WARPS  4
#define OF_KV  8 /* query heads that share a KV head, at most: the columns of the matrix instruction */
#define PIECES (HD / 32) /* of 32 dimensions */
#define SLICES (HD / 16)

struct one_params {
    struct cuda_attention a;
    struct cuda_qkv qkv;
};

/* OWNERS: blocks of a cluster, of which each has a slice of some query heads: where they are twice as many as
 * slices, of every second. */
template <int OWNERS> struct one_room {
    static const int EVERY = OWNERS / SLICES, COLUMNS = OF_KV / EVERY;
    warp_part<HD, 1> part[WARPS];
    float4 acc[OWNERS][COLUMNS]
              [4]; /* of each block: this one's slice; the largest score, and the sum of weights */
    float2 stat[OWNERS][COLUMNS];
    float table[3 * HD];
    __align__(16) uint8_t key[2 * HD], value[2 * HD]; /* the row's own, as the cache has them */
};

/* ---- heads in registers ---------------------------------------------------------------------------- */

/* Lane c of a group of four has dimensions 32 i + 8 c + j of a query head, lane l of a warp 32 i + l of the
 * key: norm and rotation of both give the bits of head.cuh. */
struct one_heads {
    float q[PIECES][8], k[PIECES];
};

static __device__ __forceinline__ void norm_heads(one_heads &h, const cuda_qkv &a, const tables &t, int lane)
{
    const int c = lane % 4;
    float by_k = 0.0f, sum[8] = {};
#pragma unroll
    for (int i = 0; i < PIECES; i++)
        by_k = fmaf(h.k[i], h.k[i], by_k);
    by_k = warp_sum(by_k);
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            sum[j] = fmaf(h.q[i][j], h.q[i][j], sum[j]);
#pragma unroll
    for (int d = 2; d > 0; d /= 2) /* warp_sum's tree, whose last three steps are in the lane */
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum[j] += __shfl_xor_sync(ALL_LANES, sum[j], d);
#pragma unroll
    for (int d = 4; d > 0; d /= 2)
#pragma unroll
        for (int j = 0; j < d; j++)
            sum[j] += sum[j + d];
    const float by = 1.0f / sqrtf(sum[0] / (float)HD + a.eps);
    by_k = 1.0f / sqrtf(by_k / (float)HD + a.eps);
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const float4 u = *(const float4 *)(t.q_norm + 32 * i + 8 * c),
                     v = *(const float4 *)(t.q_norm + 32 * i + 8 * c + 4);
        const float w[8] = {u.x, u.y, u.z, u.w, v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 8; j++)
            h.q[i][j] = h.q[i][j] * by * w[j];
        h.k[i] = h.k[i] * by_k * t.k_norm[32 * i + lane];
    }
}

static __device__ __forceinline__ void rotate(float &u, float &v, float c, float s)
{
    const float x = u, y = v;
    u = fmaf(x, c, -y * s);
    v = fmaf(y, c, x * s);
}

/* Pairs 32 * HALF apart. */
template <int HALF>
static __device__ __forceinline__ void rotate_halves(one_heads &h, const tables &t, int lane)
{
#pragma unroll
    for (int i = 0; i < HALF; i++) {
#pragma unroll
        for (int k = 0; k < 8; k += 4) {
            const int at = 32 * i + 8 * (lane % 4) + k;
            const float4 c = *(const float4 *)(t.cos + at), s = *(const float4 *)(t.sin + at);
            const float cos[4] = {c.x, c.y, c.z, c.w}, sin[4] = {s.x, s.y, s.z, s.w};
#pragma unroll
            for (int j = 0; j < 4; j++)
                rotate(h.q[i][k + j], h.q[i + HALF][k + j], cos[j], sin[j]);
        }
        rotate(h.k[i], h.k[i + HALF], t.cos[32 * i + lane], t.sin[32 * i + lane]);
    }
}

static __device__ __forceinline__ void finish_one(one_heads &h, const cuda_qkv &a, const tables &t, int lane)
{
    norm_heads(h, a, t, lane);
    if (a.rotary_dim == HD)
        rotate_halves<2>(h, t, lane);
    else
        rotate_halves<1>(h, t, lane);
}

/* ---- what a cluster puts together ------------------------------------------------------------------ */

/* What the block's warps have, together, to those that put it together. */
template <int OWNERS>
static __device__ __forceinline__ void send_block(one_room<OWNERS> &room, int rank, int n_head)
{
    const int every = one_room<OWNERS>::EVERY;
#pragma unroll 1
    for (int i = threadIdx.x; i < n_head * (HD / 4); i += 32 * WARPS) {
        const int t = i / (HD / 4), d = i % (HD / 4), to = d / 4 + t % every * SLICES;
        const four_sums of = add_warps<HD, 1, WARPS>(room.part, t, 4 * d);
        *cluster_at(&room.acc[rank][t / every][d % 4], to) = of.acc;
        if (d % 4 == 0)
            *cluster_at(&room.stat[rank][t / every], to) = make_float2(of.max, of.sum);
    }
}

/* This block's slice of its heads, of what n blocks have sent. */
template <int OWNERS>
static __device__ __forceinline__ void put_slice(const one_room<OWNERS> &room, uint16_t *y, int rank,
                                                 int n_head, int n)
{
    const int every = one_room<OWNERS>::EVERY, column = threadIdx.x / 8, pair = threadIdx.x % 8,
              head = column * every + rank / SLICES;
    if (column >= one_room<OWNERS>::COLUMNS || head >= n_head)
        return;
    float2 stat[OWNERS], v[OWNERS];
    float max = -INFINITY, sum = 0.0f, x = 0.0f, z = 0.0f;
#pragma unroll
    for (int k = 0; k < OWNERS; k++) {
        stat[k] = k < n ? room.stat[k][column] : make_float2(-INFINITY, 0.0f);
        v[k] = k < n ? ((const float2 *)room.acc[k][column])[pair] : make_float2(0.0f, 0.0f);
        max = fmaxf(max, stat[k].x);
    }
#pragma unroll
    for (int k = 0; k < OWNERS; k++) {
        const float by = gpu_exp2(stat[k].x - max);
        sum = fmaf(by, stat[k].y, sum);
        x = fmaf(by, v[k].x, x);
        z = fmaf(by, v[k].y, z);
    }
    const float by = 1.0f / sum;
    *(uint32_t *)&y[head * HD + rank % SLICES * 16 + 2 * pair] = float_bf16_pair(x * by, z * by);
}

/* ---- the kernel ------------------------------------------------------------------------------------ */

/* grid: (OWNERS, KV heads), clusters along x */
template <int OWNERS> static __global__ void __launch_bounds__(32 * WARPS, 3) one_kernel(const one_params p)
{
    DYNAMIC_SHARED(memory);
    one_room<OWNERS> &room = *(one_room<OWNERS> *)memory;
    const struct cuda_attention &a = p.a;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = blockIdx.x, kv_head = blockIdx.y;
    const int n_head = a.n_head / a.kv.n_kv_head, w = rank * WARPS + warp;
    gpu_let_next();
    /* What no operator writes, and where the cache is, before waiting for the operator before. */
    span_walk<HD, TYPE, 1> walk;
    int row = 0, pos = 0, slot = 0;
    table_part part = {};
    walk.kv_head = kv_head;
    walk.own = {};
    /* No load waits for one that it could do without: the table is looked at before it is known how far. */
    const struct cuda_tile tile = a.single[0];
    const int stride = *a.stride, at = w + lane * OWNERS * WARPS;
    const bool real = min(*a.single_count, a.n_single) > 0;
    part.ask_norms(p.qkv, HD);
    if (real) {
        row = tile.row;
        const int block = at < stride ? a.block_table[(size_t)tile.seq * stride + at] : 0;
        pos = a.pos[row];
        slot = p.qkv.slot[row];
        part.ask_angles(p.qkv, pos);
        walk.own = {w, OWNERS * WARPS, pos + 1, block};
    }
    cluster_arrive(); /* all blocks of the cluster have begun */
    const int last = pos / span<TYPE>::KEYS, n_rank = min(OWNERS, last / WARPS + 1);
    const bool mine = real && rank < n_rank, holds = last % (OWNERS * WARPS) == w;
    walk.begin(a.kv, lane);
    walk.own.template fetch<HD>(a.kv, kv_head, 1, 4, lane);
    const tables table = part.put(p.qkv, HD, room.table);
    const size_t first_head = (size_t)row * a.n_head + kv_head * n_head;
    __syncthreads();
    gpu_wait_before();
    if (mine) {
        one_heads own;
        float v[PIECES];
        const float *q = p.qkv.q + (first_head + min(lane / 4, n_head - 1)) * HD + 8 * (lane % 4);
        const size_t kv = ((size_t)row * a.kv.n_kv_head + kv_head) * HD + lane;
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const float4 x = *(const float4 *)(q + 32 * i), y = *(const float4 *)(q + 32 * i + 4);
            own.q[i][0] = x.x, own.q[i][1] = x.y, own.q[i][2] = x.z, own.q[i][3] = x.w;
            own.q[i][4] = y.x, own.q[i][5] = y.y, own.q[i][6] = y.z, own.q[i][7] = y.w;
        }
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            own.k[i] = p.qkv.k[kv + 32 * i];
            v[i] = p.qkv.v[kv + 32 * i];
        }
        finish_one(own, p.qkv, table, lane);
        heads<HD, 1> h;
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            h.q[0][i] = make_uint4(
                float_bf16_pair(own.q[i][0], own.q[i][1]), float_bf16_pair(own.q[i][2], own.q[i][3]),
                float_bf16_pair(own.q[i][4], own.q[i][5]), float_bf16_pair(own.q[i][6], own.q[i][7]));
        fresh_last fresh = {};
        if (holds) {
            const size_t region = kv_region(a.kv, slot / CUDA_KV_BLOCK, kv_head);
            const int j = slot % CUDA_KV_BLOCK;
#pragma unroll
            for (int i = 0; i < PIECES; i++) {
                const int d = 32 * i + lane;
                kv_put(TYPE, room.key, (size_t)d, own.k[i], 1.0f);
                kv_put(TYPE, room.value, (size_t)d, v[i], 1.0f);
                kv_put(TYPE, a.kv.k, region + kv_key_at(HD, j, d), own.k[i], 1.0f);
                kv_put(TYPE, a.kv.v, region + kv_value_at(j, d), v[i], 1.0f);
            }
            fresh = {room.key, room.value};
            __syncwarp();
        }
        walk.run(a.kv, h, a.scale * LOG2_E, fresh, lane);
        put_part(h, &room.part[warp], lane); /* of a warp without a key: nothing, under a weight of zero */
    }
    __syncthreads();
    cluster_wait();
    if (mine)
        send_block<OWNERS>(room, rank, n_head);
    cluster_sync();
    if (real)
        put_slice<OWNERS>(room, a.y + first_head * HD, rank, n_head, n_rank);
}

/* ---- which ----------------------------------------------------------------------------------------- */

/* Where heads are not normed a launch of rotation's own is faster (docs/SPEED.md). */
bool attention_one_takes(const struct cuda_qkv *q, const struct cuda_attention *a)
{
    return a->n_single == 1 && a->n_tile == 0 && a->kv.head_dim == HD && a->kv.type == TYPE &&
           a->n_head / a->kv.n_kv_head <= OF_KV && attention_part_count(a) == 0 && q->q_norm && q->k_norm &&
           !q->interleaved && (q->rotary_dim == HD || q->rotary_dim == HD / 2);
}

template <int OWNERS> static const char *start(const one_params &p, const struct op_place *at)
{
    const dim3 grid(OWNERS, (unsigned)p.a.kv.n_kv_head);
    const size_t bytes = sizeof(one_room<OWNERS>);
    const char *why = gpu_why(gpu_allow_shared(one_kernel<OWNERS>, bytes));
    return why ? why
               : gpu_why(
                     gpu_launch_clusters(OWNERS, one_kernel<OWNERS>, grid, 32 * WARPS, bytes, at->stream, p));
}

/* Large clusters where the GPU has room for them all beside other kernels' blocks, one an SM. */
const char *attention_one_start(const struct cuda_qkv *q, const struct cuda_attention *a,
                                const struct op_place *at)
{
    const one_params p = {*a, *q};
    const bool large = 2 * SLICES * a->kv.n_kv_head <= at->limits->n_sm / 2 &&
                       gpu_allow_large_clusters(one_kernel<2 * SLICES>) == cudaSuccess &&
                       gpu_clusters(2 * SLICES, one_kernel<2 * SLICES>, 32 * WARPS,
                                    sizeof(one_room<2 * SLICES>), at->limits->n_sm) >= a->kv.n_kv_head;
    return large ? start<2 * SLICES>(p, at) : start<SLICES>(p, at);
}
