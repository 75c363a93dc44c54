/* The router of 2 to 64 rows in one launch, and the norm before it in the same where there is one. A cluster
 * of eight blocks has eight rows; its blocks share out K, the warps of a block share out its slice and the
 * experts; each block then adds up the slices of one row, and chooses its experts.
 *
 * With the norm, a block makes its slice of all eight rows' sums of residual and deltas, multiplies that by
 * the norm's weights, and leaves the factor of the norm, for which all of a row is needed, to whoever adds up
 * the row's logits: so both exchanges are one. That block has been sent the whole row, and writes what the
 * norm leaves behind. A slice is of whole runs of 128 elements, whose squares the norm alone adds up by a
 * warp: the factor has its bits. */
#include "kernels/cuda/plugin/cluster.cuh"
#include "kernels/cuda/plugin/norm.cuh"
#include "kernels/cuda/plugin/router.cuh"

#define MOST    64 /* rows */
#define SIZE    8  /* blocks of a cluster */
#define ROWS    8  /* of a cluster */
#define WARPS   16
#define THREADS (32 * WARPS)
#define RUN     128 /* elements: four a lane */
#define RUNS    32  /* of a row at most */
#define OWN     (RUNS / SIZE)
#define COUNTED 128 /* experts, which are chosen by counting */
#define EIGHTS  8   /* of experts of a warp */

struct rows_params {
    cuda_router r;
    cuda_add_norm norm;
    const int32_t *count;
    int n_row;
};

/* PARTS: of a block's slice of K. + 4: other banks */
template <int PARTS> struct rows_room {
    static const int EXPERTS = 8 * EIGHTS * WARPS / PARTS;
    float x[ROWS][OWN * RUN + 4];
    float sums[PARTS][ROWS][EXPERTS + 4];
    float logit[EXPERTS];
    /* from the blocks of the cluster, for this one's row: */
    float came[SIZE][EXPERTS], row[RUNS * RUN];
    float4 square[RUNS]; /* the first of each */
    uint64_t bell;
};

/* Experts are rows of the result, of which lane g has g and g + 8 of each 16; its columns are the rows of x.
 * x: this lane's eight k of row g. */
static __device__ __forceinline__ void multiply_rows(const float *x, const step_weights<EIGHTS> &o,
                                                     float (&sum)[EIGHTS / 2][4])
{
#pragma unroll
    for (int v = 0; v < 2; v++) {
        const float4 four = *(const float4 *)(x + 4 * v);
        const thirds low = split(four.x, four.y), high = split(four.z, four.w);
#pragma unroll
        for (int i = 2; i >= 0; i--) /* small parts first */
#pragma unroll
            for (int j = 0; j < EIGHTS / 2; j++) {
                const uint4 &a = o.w[2 * j], &b = o.w[2 * j + 1];
                const uint32_t w[4] = {v ? a.z : a.x, v ? b.z : b.x, v ? a.w : a.y, v ? b.w : b.y};
                mma_bf16(sum[j], w, low.part[i], high.part[i]);
            }
    }
}

/* What one lane has of a run of a row. */
struct run_part {
    float4 old, weight;
    bool there;
};

/* The run's share of the new residual, where it is needed: in xs times the norm's weight, in its row's block
 * as it is, with its squares; and in memory. */
template <int PARTS>
static __device__ __forceinline__ void put_run(rows_room<PARTS> &room, float4 v, float4 weight, int r,
                                               int run, int first, int lane)
{
    const int k = run * RUN + 4 * lane;
    const float square = warp_sum(fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, v.w * v.w))));
    *(float4 *)&room.x[r][k - first * RUN] =
        make_float4(v.x * weight.x, v.y * weight.y, v.z * weight.z, v.w * weight.w);
    const uint32_t bell = shared_offset(&room.bell);
    cluster_send(shared_offset(&room.row[k]), r, v, bell);
    if (lane == 0)
        cluster_send(shared_offset(&room.square[run]), r, make_float4(square, 0.0f, 0.0f, 0.0f), bell);
}

/* The choices of row t by one warp, up to 32 of up to COUNTED experts, without groups. In few instructions,
 * most of them in a loop: they are executed once in a launch, and what takes long is to fetch them. */
static __device__ __forceinline__ void choose(const cuda_router &a, int t, const float *logit,
                                              const float (&bias)[COUNTED / 32], int lane)
{
    const int V = COUNTED / 32;
    float score[V], sum = 0.0f, own = 0.0f;
    uint32_t key[V], largest = 0;
    bool none = false;
#pragma unroll
    for (int j = 0; j < V; j++) {
        score[j] = lane + 32 * j < a.n_expert ? logit[lane + 32 * j] : -INFINITY;
        largest = max(largest, sort_key(score[j]));
        none |= score[j] != score[j];
    }
    if (!a.softmax_topk && a.sigmoid) {
#pragma unroll
        for (int j = 0; j < V; j++)
            score[j] = 1.0f / (1.0f + expf(-score[j]));
    } else if (!a.softmax_topk) {
        /* an infinite one as any other */
        const float most = __any_sync(ALL_LANES, none) ? NAN : sort_number(warp_largest(largest));
#pragma unroll
        for (int j = 0; j < V; j++) {
            score[j] = lane + 32 * j < a.n_expert ? expf(score[j] - most) : 0.0f;
            sum += score[j];
        }
        sum = warp_sum(sum);
#pragma unroll
        for (int j = 0; j < V; j++)
            score[j] /= sum;
    }
#pragma unroll
    for (int j = 0; j < V; j++)
        key[j] = lane + 32 * j < a.n_expert ? sort_key(a.bias ? score[j] + bias[j] : score[j]) : 0u;
    int chosen = 0;
    sum = 0.0f;
#pragma unroll 1
    for (int i = 0; i < a.top_k; i++) {
        uint32_t best = key[0];
        int at = lane;
        float value = score[0];
#pragma unroll
        for (int j = 1; j < V; j++)
            if (key[j] > best) {
                best = key[j];
                at = lane + 32 * j;
                value = score[j];
            }
        const uint32_t top = warp_largest(best);
        const int e = (int)warp_smallest(best == top ? (uint32_t)at : ~0u);
        value = __shfl_sync(ALL_LANES, value, e % 32);
        sum += value; /* in order, in every lane */
#pragma unroll
        for (int j = 0; j < V; j++)
            key[j] = e == lane + 32 * j ? 0u : key[j];
        chosen = lane == i ? e : chosen;
        own = lane == i ? value : own;
    }
    if (a.softmax_topk) {
        own = route_weight(a, own, lane);
    } else {
        if (a.normalize)
            own /= a.norm_add ? sum + a.norm_min : sum < a.norm_min ? a.norm_min : sum;
        own *= a.scaling;
    }
    route_shared(a, t, true, lane);
    if (lane >= a.top_k)
        return;
    a.expert[(size_t)t * route_width(a) + lane] = chosen;
    a.weight[(size_t)t * route_width(a) + lane] = own;
    if (a.load)
        atomicAdd((unsigned long long *)&a.load[chosen], 1ull);
}

/* Row r of the cluster's is block r's. */
template <int PARTS, bool NORM>
static __global__ void __launch_bounds__(THREADS, 1) rows_kernel(const __grid_constant__ rows_params p)
{
    DYNAMIC_SHARED(memory);
    rows_room<PARTS> &room = *(rows_room<PARTS> *)memory;
    const cuda_router &a = p.r;
    const int HALVES = WARPS / PARTS, EXPERTS = rows_room<PARTS>::EXPERTS;
    const int warp = __shfl_sync(ALL_LANES, (int)threadIdx.x / 32, 0), lane = (int)threadIdx.x % 32;
    const int g = lane / 4, q = lane % 4, part = warp / HALVES, half = warp % HALVES;
    const int rank = (int)blockIdx.x % SIZE, row0 = (int)blockIdx.x / SIZE * ROWS;
    const int runs = a.K / RUN, first = runs * rank / SIZE, n_run = runs * (rank + 1) / SIZE - first;
    const int steps = n_run * (RUN / ROUTER_STEP), from = steps * part / PARTS,
              to = steps * (part + 1) / PARTS;
    if (threadIdx.x == 0) {
        const uint32_t bell = shared_offset(&room.bell);
        bell_make(bell, 1);
        bells_made();
        bell_expect(bell, (uint32_t)(SIZE * EXPERTS * 4 + (NORM ? 4 * a.K + runs * 16 : 0)));
    }
    cluster_arrive();

    /* What no kernel of the step writes, and the residual, which the norm before last did. */
    const int t = row0 + rank, n = OP_COUNT(p.count, p.n_row);
    const bool real = t < n;
    float bias[COUNTED / 32];
    route_bias<COUNTED / 32>(a, lane, bias);
    step_weights<EIGHTS> w = {};
    if (from < to)
        w = load_weights<EIGHTS>(a, 8 * EIGHTS * half, first * (RUN / ROUTER_STEP) + from, lane);
    const int r = warp % ROWS, r_at = min(row0 + r, p.n_row - 1);
    const float scale = *a.w.scale;
    run_part part_of[OWN / 2];
    const size_t at_row = (size_t)r_at * a.K + 4 * lane;
#pragma unroll
    for (int i = 0; i < OWN / 2; i++) {
        const int run = first + warp / ROWS + WARPS / ROWS * i;
        part_of[i].there = run < first + n_run;
        if (NORM && part_of[i].there) {
            part_of[i].old = __ldcg((const float4 *)(p.norm.residual + at_row + run * RUN));
            part_of[i].weight = *(const float4 *)(p.norm.weight + run * RUN + 4 * lane);
        }
    }
    gpu_let_next();
    gpu_wait_before();
    float4 delta[OWN / 2][2];
#pragma unroll
    for (int i = 0; i < OWN / 2; i++) {
        const size_t at = at_row + (first + warp / ROWS + WARPS / ROWS * i) * RUN;
        if (!part_of[i].there)
            continue;
        if (!NORM)
            part_of[i].old = __ldcg((const float4 *)(a.x + at));
        if (NORM && p.norm.delta[0])
            delta[i][0] = __ldcg((const float4 *)(p.norm.delta[0] + at));
        if (NORM && p.norm.delta[1])
            delta[i][1] = __ldcg((const float4 *)(p.norm.delta[1] + at));
    }
    cluster_wait(); /* all blocks of the cluster have begun */
#pragma unroll
    for (int i = 0; i < OWN / 2; i++) {
        const int run = first + warp / ROWS + WARPS / ROWS * i;
        float4 v = part_of[i].old;
        if (!part_of[i].there)
            continue;
        if (!NORM) {
            *(float4 *)&room.x[r][(run - first) * RUN + 4 * lane] = v;
            continue;
        }
        if (p.norm.delta[1])
            v = norm_add(v, norm_add(delta[i][1], delta[i][0]));
        else if (p.norm.delta[0])
            v = norm_add(v, delta[i][0]);
        put_run(room, v, part_of[i].weight, r, run, first, lane);
        if (p.norm.delta[0] && row0 + r < n)
            *(float4 *)(p.norm.residual + at_row + run * RUN) = v;
    }
    __syncthreads();
    float sum[EIGHTS / 2][4] = {};
#pragma unroll 1
    for (int s = from; s < to; s++) {
        if (s > from)
            w = load_weights<EIGHTS>(a, 8 * EIGHTS * half, first * (RUN / ROUTER_STEP) + s, lane);
        multiply_rows(&room.x[g][s * ROUTER_STEP + 8 * q], w, sum);
    }
#pragma unroll
    for (int j = 0; j < EIGHTS / 2; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            room.sums[part][2 * q + i % 2][8 * EIGHTS * half + 16 * j + g + i / 2 * 8] = sum[j][i];
    __syncthreads();
    {
        const int row = (int)threadIdx.x / (EXPERTS / 4), e = (int)threadIdx.x % (EXPERTS / 4) * 4;
        if (row < ROWS) {
            float4 whole = *(const float4 *)&room.sums[0][row][e];
#pragma unroll
            for (int j = 1; j < PARTS; j++)
                whole = norm_add(whole, *(const float4 *)&room.sums[j][row][e]);
            cluster_send(shared_offset(&room.came[rank][e]), row, whole, shared_offset(&room.bell));
        }
    }
    cluster_wait_sent(shared_offset(&room.bell));
    float by = 1.0f;
    if (NORM) {
        float all = 0.0f;
#pragma unroll 8
        for (int i = 0; i < runs; i++)
            all += room.square[i].x;
        by = 1.0f / sqrtf(all / (float)a.K + p.norm.eps);
    }
    if ((int)threadIdx.x < EXPERTS) {
        const int e = (int)threadIdx.x;
        float whole = 0.0f;
#pragma unroll
        for (int s = 0; s < SIZE; s++)
            whole += room.came[s][e];
        whole = NORM ? whole * scale * by : whole * scale;
        room.logit[e] = whole;
        if (real && e < a.n_expert)
            a.logits[(size_t)t * a.n_expert + e] = whole;
    } else if (NORM && real) {
#pragma unroll 1
        for (int i = 4 * ((int)threadIdx.x - EXPERTS); i < a.K; i += 4 * (THREADS - EXPERTS)) {
            const float4 v = *(const float4 *)&room.row[i], u = *(const float4 *)(p.norm.weight + i);
            const float4 y = make_float4(v.x * by * u.x, v.y * by * u.y, v.z * by * u.z, v.w * by * u.w);
            if (p.norm.y_float)
                *(float4 *)(p.norm.y_float + (size_t)t * a.K + i) = y;
            if (p.norm.y)
                *(uint2 *)(p.norm.y + (size_t)t * a.K + i) =
                    make_uint2(float_bf16_pair(y.x, y.y), float_bf16_pair(y.z, y.w));
        }
    }
    __syncthreads();
    if (warp == 0 && real)
        choose(a, t, room.logit, bias, lane);
    else if (warp == 0 && t < p.n_row)
        route_nothing(a, t, lane);
}

bool router_rows_takes(const struct cuda_op *op)
{
    const struct cuda_router *a = &op->as.router;
    return op->n_row > 1 && op->n_row <= MOST && a->w.type == CUDA_BF16 && a->K % RUN == 0 &&
           a->K <= RUN * RUNS && a->n_expert <= COUNTED && a->n_group <= 1 && a->top_k <= 32;
}

bool router_joined_takes(const struct cuda_op *op, int n_op)
{
    if (n_op < 2 || op[0].kind != CUDA_OP_ADD_NORM || op[1].kind != CUDA_OP_ROUTER)
        return false;
    const struct cuda_add_norm *norm = &op[0].as.add_norm;
    return router_rows_takes(&op[1]) && op[0].n_row == op[1].n_row && op[0].count == op[1].count &&
           norm->n == op[1].as.router.K && !norm->row && norm->y_float == op[1].as.router.x;
}

template <int PARTS, bool NORM>
static const char *start_parts(const rows_params &p, const struct op_place *at)
{
    const size_t bytes = sizeof(rows_room<PARTS>);
    const unsigned grid = (unsigned)((p.n_row + ROWS - 1) / ROWS * SIZE);
    const char *why = gpu_why(gpu_allow_shared(rows_kernel<PARTS, NORM>, bytes));
    return why ? why
               : gpu_why(gpu_launch_clusters(SIZE, rows_kernel<PARTS, NORM>, grid, THREADS, bytes, at->stream,
                                             p));
}

template <bool NORM> static const char *start(const rows_params &p, const struct op_place *at)
{
    return p.r.n_expert <= 8 * EIGHTS ? start_parts<WARPS, NORM>(p, at) : start_parts<WARPS / 2, NORM>(p, at);
}

const char *router_rows_start(const struct cuda_op *op, const struct op_place *at)
{
    return start<false>({op->as.router, {}, op->count, op->n_row}, at);
}

const char *router_joined_start(const struct cuda_op *op, const struct op_place *at)
{
    return start<true>({op[1].as.router, op[0].as.add_norm, op[1].count, op[1].n_row}, at);
}
