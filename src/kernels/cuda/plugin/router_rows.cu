/* The router of 2 to 64 rows in one launch. A cluster of eight blocks has eight rows; its blocks share out K,
 * the warps of a block share out its slice and the experts; each block then adds up the slices of one row,
 * and chooses its experts. Logits have the bits of router_cluster.cu, which has more rows and fewer blocks.
 */
#include "kernels/cuda/plugin/cluster.cuh"
#include "kernels/cuda/plugin/router.cuh"

#define MOST    64 /* rows */
#define SIZE    8  /* blocks of a cluster */
#define ROWS    8  /* of a cluster */
#define PARTS   8  /* of a block's slice of K */
#define HALVES  2  /* of the experts */
#define EIGHTS  8  /* of experts of a warp */
#define EXPERTS (8 * EIGHTS * HALVES)
#define THREADS (32 * PARTS * HALVES)
#define STEPS   16 /* of a slice, at most */

/* What a block's choice needs. */
struct choice_room {
    uint32_t key[EXPERTS];
    float score[EXPERTS], weight[32], max[4], sum[4];
    int32_t expert[32];
};
static_assert(EXPERTS == 4 * 32, "as many warps have an expert a lane");

/* + 4: other banks */
struct rows_room {
    float x[ROWS][STEPS * ROUTER_STEP + 4];
    float sums[PARTS][ROWS][EXPERTS + 4];
    float came[SIZE][EXPERTS]; /* from the blocks of the cluster, for this one's row */
    choice_room choice;
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

/* Choices of up to 32 of up to EXPERTS, without groups, for row t: for each expert those that come before it
 * are counted. Thread e < EXPERTS has the logit of expert e, if there is one, and what is added to its score.
 * All threads; room.weight is zeros. */
static __device__ __forceinline__ void choose(const cuda_router &a, int t, bool real, float logit, float bias,
                                              choice_room &room, int warp, int lane)
{
    const bool is = (int)threadIdx.x < a.n_expert;
    float score = logit;
    if (!a.softmax_topk && a.sigmoid) {
        score = 1.0f / (1.0f + expf(-logit));
    } else if (!a.softmax_topk) {
        if (warp < EXPERTS / 32) {
            const float max = warp_max_nan(is ? logit : -INFINITY);
            if (lane == 0)
                room.max[warp] = max;
        }
        __syncthreads();
        float max = room.max[0], sum = 0.0f;
#pragma unroll
        for (int i = 1; i < EXPERTS / 32; i++)
            max = room.max[i] > max || room.max[i] != room.max[i] ? room.max[i] : max;
        if (warp < EXPERTS / 32) {
            score = is ? expf(logit - max) : 0.0f;
            sum = warp_sum(score);
            if (lane == 0)
                room.sum[warp] = sum;
        }
        __syncthreads();
        sum = room.sum[0];
#pragma unroll
        for (int i = 1; i < EXPERTS / 32; i++)
            sum += room.sum[i];
        score /= sum;
    }
    if ((int)threadIdx.x < EXPERTS) {
        room.key[threadIdx.x] = is ? sort_key(a.bias ? score + bias : score) : 0u;
        room.score[threadIdx.x] = score;
    }
    __syncthreads();
    const int EACH = THREADS / EXPERTS, e = (int)threadIdx.x / EACH, part = (int)threadIdx.x % EACH;
    const uint32_t key = room.key[e];
    int before = 0;
#pragma unroll
    for (int i = 0; i < EXPERTS; i += 4 * EACH) {
        const int at = i + 4 * part;
        const uint4 k = *(const uint4 *)&room.key[at];
        before += k.x > key || (k.x == key && at < e);
        before += k.y > key || (k.y == key && at + 1 < e);
        before += k.z > key || (k.z == key && at + 2 < e);
        before += k.w > key || (k.w == key && at + 3 < e);
    }
#pragma unroll
    for (int i = 1; i < EACH; i *= 2)
        before += __shfl_xor_sync(ALL_LANES, before, i);
    if (part == 0 && before < a.top_k) {
        room.expert[before] = e;
        room.weight[before] = room.score[e];
    }
    __syncthreads();
    if (warp > 0 || !real)
        return;
    float weight = room.weight[lane];
    if (a.softmax_topk) {
        weight = route_weight(a, weight, lane);
    } else {
        float sum = 0.0f; /* in order, in every lane; zeros behind the last */
#pragma unroll 1
        for (int i = 0; i < a.top_k; i += 8)
#pragma unroll
            for (int j = 0; j < 8; j++)
                sum += room.weight[i + j];
        if (a.normalize)
            weight /= a.norm_add ? sum + a.norm_min : sum < a.norm_min ? a.norm_min : sum;
        weight *= a.scaling;
    }
    route_shared(a, t, true, lane);
    if (lane >= a.top_k)
        return;
    const int32_t expert = room.expert[lane];
    a.expert[(size_t)t * route_width(a) + lane] = expert;
    a.weight[(size_t)t * route_width(a) + lane] = weight;
    if (a.load)
        atomicAdd((unsigned long long *)&a.load[expert], 1ull);
}

/* Row r of the cluster's is block r's. */
static __global__ void __launch_bounds__(THREADS, 1)
    rows_kernel(const __grid_constant__ cuda_router a, const int32_t *count, int n_row)
{
    DYNAMIC_SHARED(memory);
    rows_room &room = *(rows_room *)memory;
    const int warp = __shfl_sync(ALL_LANES, (int)threadIdx.x / 32, 0), lane = (int)threadIdx.x % 32;
    const int g = lane / 4, q = lane % 4, part = warp / HALVES, half = warp % HALVES;
    const int rank = (int)blockIdx.x % SIZE, row0 = (int)blockIdx.x / SIZE * ROWS, t = row0 + rank;
    const int steps = a.K / ROUTER_STEP, first = steps * rank / SIZE,
              slice = steps * (rank + 1) / SIZE - first;
    const int e0 = 8 * EIGHTS * half, from = slice * part / PARTS,
              to = e0 < a.n_expert ? slice * (part + 1) / PARTS : from;
    const uint32_t bell = shared_offset(&room.bell);
    if (threadIdx.x == 0) {
        bell_make(bell, 1);
        bells_made();
        bell_expect(bell, sizeof(room.came));
    }
    cluster_arrive();

    /* What no kernel of the step writes. */
    step_weights<EIGHTS> w = {};
    if (from < to)
        w = load_weights<EIGHTS>(a, e0, first + from, lane);
    const float scale = *a.w.scale;
    const float bias = a.bias && (int)threadIdx.x < a.n_expert ? a.bias[threadIdx.x] : 0.0f;
    if (threadIdx.x < 32)
        room.choice.weight[threadIdx.x] = 0.0f;
    gpu_let_next();
    gpu_wait_before();
    const int n = OP_COUNT(count, n_row);
    const bool real = t < n;
    const int r = warp % ROWS; /* rows beyond the end repeat the last */
    const float *x = a.x + (size_t)min(row0 + r, n_row - 1) * a.K + first * ROUTER_STEP;
    const int fours = slice * (ROUTER_STEP / 4);
#pragma unroll
    for (int i = 0; i < STEPS * ROUTER_STEP / 4; i += 32 * PARTS * HALVES / ROWS) {
        const int at = i + warp / ROWS * 32 + lane;
        if (at < fours)
            *(float4 *)&room.x[r][4 * at] = __ldcg((const float4 *)x + at);
    }
    __syncthreads();
    float sum[EIGHTS / 2][4] = {};
#pragma unroll 1
    for (int s = from; s < to; s++) {
        if (s > from)
            w = load_weights<EIGHTS>(a, e0, first + s, lane);
        multiply_rows(&room.x[g][s * ROUTER_STEP + 8 * q], w, sum);
    }
#pragma unroll
    for (int j = 0; j < EIGHTS / 2; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            room.sums[part][2 * q + i % 2][e0 + 16 * j + g + i / 2 * 8] = sum[j][i];
    __syncthreads();
    cluster_wait(); /* all blocks of the cluster have begun */
    if ((int)threadIdx.x < ROWS * EXPERTS / 4) {
        const int row = (int)threadIdx.x / (EXPERTS / 4), e = (int)threadIdx.x % (EXPERTS / 4) * 4;
        float4 whole = *(const float4 *)&room.sums[0][row][e];
#pragma unroll
        for (int j = 1; j < PARTS; j++) {
            const float4 v = *(const float4 *)&room.sums[j][row][e];
            whole = make_float4(whole.x + v.x, whole.y + v.y, whole.z + v.z, whole.w + v.w);
        }
        cluster_send(shared_offset(&room.came[rank][e]), row, whole, bell);
    }
    cluster_wait_sent(bell);
    float logit = 0.0f;
    if ((int)threadIdx.x < EXPERTS) {
        const int e = (int)threadIdx.x;
#pragma unroll
        for (int s = 0; s < SIZE; s++)
            logit += room.came[s][e];
        logit *= scale;
        if (real && e < a.n_expert)
            a.logits[(size_t)t * a.n_expert + e] = logit;
    }
    if (warp == 0 && !real && t < n_row)
        route_nothing(a, t, lane);
    choose(a, t, real, logit, bias, room.choice, warp, lane);
}

bool router_rows_takes(const struct cuda_op *op)
{
    const struct cuda_router *a = &op->as.router;
    return op->n_row > 1 && op->n_row <= MOST && a->w.type == CUDA_BF16 && a->K % ROUTER_STEP == 0 &&
           a->K <= SIZE * STEPS * ROUTER_STEP && a->n_expert <= EXPERTS && a->n_group <= 1 && a->top_k <= 32;
}

const char *router_rows_start(const struct cuda_op *op, const struct op_place *at)
{
    const unsigned grid = (unsigned)((op->n_row + ROWS - 1) / ROWS * SIZE);
    const char *why = gpu_why(gpu_allow_shared(rows_kernel, sizeof(rows_room)));
    return why ? why
               : gpu_why(gpu_launch_clusters(SIZE, rows_kernel, grid, THREADS, sizeof(rows_room), at->stream,
                                             op->as.router, op->count, op->n_row));
}
