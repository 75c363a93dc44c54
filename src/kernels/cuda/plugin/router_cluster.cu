/* The router of some rows in one launch. A cluster of blocks has 16 rows; its blocks share out K, so that x
 * is read and cut into thirds once, and the warps of a block share out its slice and the experts. Each block
 * then adds up the slices of two rows, and chooses their experts. */
#include "kernels/cuda/plugin/cluster.cuh"
#include "kernels/cuda/plugin/router.cuh"

#define MOST    256 /* rows */
#define SIZE    8   /* blocks of a cluster */
#define ROWS    16  /* of a cluster */
#define OWN     (ROWS / SIZE)
#define PARTS   8 /* of a block's slice of K */
#define HALVES  2 /* of the experts of a pass */
#define PASS    128
#define EIGHTS  (PASS / HALVES / 8)
#define THREADS (32 * PARTS * HALVES)
#define COUNTED 128 /* experts, up to which they are chosen by counting */

typedef float rows_of_sums[ROWS][PASS + 4];

/* What a block's choice needs. */
struct choice_room {
    uint32_t key[OWN][COUNTED];
    float score[OWN][COUNTED], weight[OWN][32];
    int32_t expert[OWN][32];
};

/* Rows of this block: choices of up to 32 of up to COUNTED experts, without groups. A choice at a time takes
 * longer than to count, for each expert, those that come before it. All threads. */
static __device__ __forceinline__ void choose(const cuda_router &a, int row0, int n, const float *logits,
                                              choice_room &room, int rank, int warp, int lane)
{
    if (warp < OWN) {
        float bias[COUNTED / 32], score[COUNTED / 32];
        uint32_t key[COUNTED / 32];
        route_bias<COUNTED / 32>(a, lane, bias);
        route_scores<COUNTED / 32>(a, logits + warp * a.n_expert, lane, bias, score, key);
#pragma unroll
        for (int j = 0; j < COUNTED / 32; j++) {
            room.key[warp][32 * j + lane] = key[j];
            room.score[warp][32 * j + lane] = score[j];
        }
    }
    __syncthreads();
    const int own = (int)threadIdx.x / (THREADS / OWN), e = (int)threadIdx.x % (THREADS / OWN) / 2,
              half = (int)threadIdx.x % 2;
    const uint32_t key = room.key[own][e];
    int before = 0;
#pragma unroll
    for (int i = 0; i < COUNTED; i += 8) {
        const int at = i + 4 * half;
        const uint4 k = *(const uint4 *)&room.key[own][at];
        before += k.x > key || (k.x == key && at < e);
        before += k.y > key || (k.y == key && at + 1 < e);
        before += k.z > key || (k.z == key && at + 2 < e);
        before += k.w > key || (k.w == key && at + 3 < e);
    }
    before += __shfl_xor_sync(ALL_LANES, before, 1);
    if (half == 0 && before < a.top_k) {
        room.expert[own][before] = e;
        room.weight[own][before] = room.score[own][e];
    }
    __syncthreads();
    const int t = row0 + rank + SIZE * warp;
    if (warp >= OWN || t >= n)
        return;
    const float weight = route_weight(a, lane < a.top_k ? room.weight[warp][lane] : 0.0f, lane);
    route_shared(a, t, true, lane);
    if (lane >= a.top_k)
        return;
    const int32_t expert = room.expert[warp][lane];
    a.expert[(size_t)t * route_width(a) + lane] = expert;
    a.weight[(size_t)t * route_width(a) + lane] = weight;
    if (a.load)
        atomicAdd((unsigned long long *)&a.load[expert], 1ull);
}
static_assert(THREADS == OWN * COUNTED * 2, "two threads an expert");

/* Row r of the cluster's is one of block r % SIZE. */
static __global__ void __launch_bounds__(THREADS, 1)
    cluster_kernel(const __grid_constant__ cuda_router a, const int32_t *count, int n_row)
{
    DYNAMIC_SHARED(memory); /* sums, then slices that came, logits; or, for choices, a warp's rooms */
    SHARED(choice_room, room);
    const int warp = __shfl_sync(ALL_LANES, (int)threadIdx.x / 32, 0), lane = (int)threadIdx.x % 32;
    const int g = lane / 4, q = lane % 4, part = warp / HALVES, half = warp % HALVES;
    const int rank = (int)blockIdx.x % SIZE, row0 = (int)blockIdx.x / SIZE * ROWS;
    const int E = a.n_expert, E4 = (E + 3) & ~3;
    const int steps = a.K / ROUTER_STEP, first = steps * rank / SIZE,
              slice = steps * (rank + 1) / SIZE - first;
    const int from = first + slice * part / PARTS, to = first + slice * (part + 1) / PARTS;
    cluster_arrive();
    rows_of_sums *sums = (rows_of_sums *)memory;
    float *came = (float *)(sums + PARTS), *logits = came + SIZE * OWN * E4; /* [SIZE][OWN][E4], [OWN][E] */

    const int lines = (slice * ROUTER_STEP * 2 + 127) / 128;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < E * lines; i += THREADS)
        gpu_prefetch(a.w.data + ((size_t)(i / lines) * a.K + first * ROUTER_STEP) * 2 + i % lines * 128);
    const float scale = *a.w.scale;
    gpu_let_next();
    gpu_wait_before(); /* weights do not change: they may come before x is there */
    const int n = OP_COUNT(count, n_row);
    const float *x[2];
#pragma unroll
    for (int h = 0; h < 2; h++) /* rows beyond the end repeat the last */
        x[h] = a.x + (size_t)min(row0 + g + 8 * h, n_row - 1) * a.K;
#pragma unroll 1
    for (int pass = 0; pass < E; pass += PASS) {
        float sum[EIGHTS][4] = {};
        const int e0 = half * (PASS / HALVES); /* this warp's, of the pass */
#pragma unroll 1
        for (int s = from; s < to; s++) {
            const step_weights<EIGHTS> w = load_weights<EIGHTS>(a, pass + e0, s, lane);
            multiply_step<EIGHTS>(load_rows(x, s, lane), w, sum);
        }
        if (pass > 0)
            __syncthreads(); /* the sums of the pass before have been read */
#pragma unroll
        for (int j = 0; j < EIGHTS; j++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                *(float2 *)&sums[part][g + 8 * i][e0 + 8 * j + 2 * q] =
                    make_float2(sum[j][2 * i], sum[j][2 * i + 1]);
        __syncthreads();
        if (pass == 0)
            cluster_wait(); /* all blocks of the cluster have begun */
        const int r = (int)threadIdx.x / (PASS / 4), e = (int)threadIdx.x % (PASS / 4) * 4;
        float4 whole = *(const float4 *)&sums[0][r][e];
#pragma unroll
        for (int j = 1; j < PARTS; j++) {
            const float4 v = *(const float4 *)&sums[j][r][e];
            whole = make_float4(whole.x + v.x, whole.y + v.y, whole.z + v.z, whole.w + v.w);
        }
        if (pass + e < E)
            *cluster_at((float4 *)(came + (size_t)(rank * OWN + r / SIZE) * E4 + pass + e), r % SIZE) = whole;
    }
    cluster_sync();
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < OWN * E; i += THREADS) {
        const int own = i / E, e = i - own * E, t = row0 + rank + SIZE * own;
        float whole = 0.0f;
#pragma unroll
        for (int s = 0; s < SIZE; s++)
            whole += came[(s * OWN + own) * E4 + e];
        logits[i] = whole * scale;
        if (t < n)
            a.logits[(size_t)t * E + e] = whole * scale;
    }
    __syncthreads();
    const int t = row0 + rank + SIZE * warp;
    if (warp < OWN && t >= n && t < n_row)
        route_nothing(a, t, lane);
    if (a.n_group <= 1 && a.top_k <= 32 && E <= COUNTED)
        choose(a, row0, n, logits, room, rank, warp, lane);
    else if (warp < OWN && t < n)
        route_row(a, t, logits + warp * E, ((route_room *)memory)[warp], lane);
}
static_assert(THREADS == ROWS * PASS / 4, "a thread four sums");
static_assert(OWN * sizeof(route_room) <= PARTS * sizeof(rows_of_sums), "rooms are where sums were");

/* Of a block's shared memory. */
static size_t shared_bytes(const cuda_router &a)
{
    const size_t E = ((size_t)a.n_expert + 3) & ~(size_t)3;
    return PARTS * sizeof(rows_of_sums) + (SIZE + 1) * OWN * E * sizeof(float);
}

bool router_cluster_takes(const struct cuda_op *op, const struct gpu_limits *limits)
{
    const struct cuda_router *a = &op->as.router;
    const size_t own = sizeof(choice_room) + 1024; /* the kernel's, the system's */
    return op->n_row > 1 && op->n_row <= MOST && a->w.type == CUDA_BF16 && a->K % ROUTER_STEP == 0 &&
           shared_bytes(*a) + own <= limits->shared_bytes;
}

const char *router_cluster_start(const struct cuda_op *op, const struct op_place *at)
{
    const size_t bytes = shared_bytes(op->as.router);
    const unsigned grid = (unsigned)((op->n_row + ROWS - 1) / ROWS * SIZE);
    const char *why = gpu_why(gpu_allow_shared(cluster_kernel, bytes));
    return why ? why
               : gpu_why(gpu_launch_clusters(SIZE, cluster_kernel, grid, THREADS, bytes, at->stream,
                                             op->as.router, op->count, op->n_row));
}
