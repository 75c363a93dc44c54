/* Parts of sums to other GPUs by copy engines, and their sum, with what follows it. */
#include "kernels/cuda/plugin/sent.h"

#include "kernels/cuda/plugin/norm.cuh"

#define BLOCKS_AN_SM 2
#define AT_ONCE      2 /* parts that a thread asks for before it looks at any: all of two ranks */

/* ---- sending --------------------------------------------------------------------------------------- */

static const char *check_slot(const struct op_place *at, int slot, int n, int n_row)
{
    const char *why = peers_check(at);
    if (why)
        return why;
    if (slot < 0 || slot >= CUDA_SEND_SLOTS)
        return "send: no such slot";
    if (n < 1 || n > NORM_N_MAX || (size_t)n_row * (size_t)n > (size_t)at->peers->memory.sent * 4)
        return "send: rows of 1 to 32768, which a slot holds";
    return nullptr;
}

const char *send_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_send *s = &op->as.send;
    const char *why = check_slot(at, s->slot, s->n, op->n_row);
    if (why || gpu_only_check)
        return why;
    const struct peer_memory *p = &at->peers->memory;
    const uint32_t *ready = &p->state->ready[s->part ? SENT_PART : SENT_ZEROS];
    const size_t bytes = (size_t)op->n_row * (size_t)s->n * sizeof(float);
    for (int i = 1; i < p->size; i++) { /* each begins with another */
        const int to = (p->rank + i) % p->size;
        cudaError_t e = cudaSuccess;
        if (s->part)
            e = cudaMemcpyAsync(sent_part(*p, to, s->slot, p->rank), s->part, bytes, cudaMemcpyDeviceToDevice,
                                at->stream);
        if (e == cudaSuccess)
            e = cudaMemcpyAsync(sent_flag(*p, to, s->slot, p->rank), ready, sizeof(*ready),
                                cudaMemcpyDeviceToDevice, at->stream);
        if (e != cudaSuccess)
            return gpu_why(e);
    }
    return nullptr;
}

/* ---- adding up ------------------------------------------------------------------------------------- */

/* The flag of rank `from`, or 0: it does not come any more. */
static __device__ uint32_t await_flag(const peer_memory &p, int slot, int from)
{
    const uint32_t *at = sent_flag(p, p.rank, slot, from);
    const uint64_t begin = gpu_now_ns();
    for (;;) {
        for (int i = 0; i < PEER_LOOKS; i++) {
            const uint32_t flag = gpu_acquire_system(at);
            if (flag || (i % 32 == 31 && gpu_load_system(&p.state->failed)))
                return flag;
            gpu_wait_peer();
        }
        peer_is_lost(p, from, begin);
    }
}

/* All threads: where each rank's part begins, NULL: zeros. False: somebody does not come. */
static __device__ __forceinline__ bool await_all(const cuda_all_reduce &op, const peer_memory &p,
                                                 const float **source)
{
    SHARED(uint32_t, lost);
    const int from = (int)threadIdx.x;
    if (from == 0)
        lost = gpu_load_system(&p.state->failed);
    __syncthreads();
    if (from == p.rank) {
        source[from] = op.norm.delta[0] ? op.norm.delta[0] : op.norm.delta[1];
    } else if (from < p.size) {
        const uint32_t flag = lost ? 0u : await_flag(p, op.slot, from);
        source[from] = flag == 1 + SENT_PART ? sent_part(p, p.rank, op.slot, from) : nullptr;
        if (!flag)
            lost = 1;
    }
    __syncthreads();
    return !lost;
}

/* Elements i to i + 3 of the row that begins at `from`, of all ranks in their order. Parts are read past the
 * first cache, which may know older ones. */
template <bool ALIGNED>
static __device__ __forceinline__ float4 sum_of_parts(const float *const *source, int size, size_t from,
                                                      int i, int n)
{
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int r = 0; r < size; r += AT_ONCE) {
        float4 part[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) { /* all asked for before any is looked at */
            const float *row = r + j < size ? source[r + j] : nullptr;
            part[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (row)
                part[j] =
                    ALIGNED ? __ldcg((const float4 *)(row + from + i)) : norm_four<false>(row + from, i, n);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            if (r + j < size)
                sum = r + j == 0 ? peer_sendable(part[j]) : norm_add(sum, peer_sendable(part[j]));
    }
    return sum;
}

/* The block that ends last makes room for the parts that come next. All threads. */
static __device__ __forceinline__ void clear_flags(const peer_memory &p, int slot)
{
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    __threadfence();
    if (atomicAdd(&p.state->n_added, 1u) + 1 < gridDim.x)
        return;
    p.state->n_added = 0;
    for (int r = 0; r < p.size; r++)
        gpu_store_system(sent_flag(p, p.rank, slot, r), 0u);
}

template <bool ALIGNED>
static __global__ void __launch_bounds__(1024, BLOCKS_AN_SM)
    sent_add_kernel(const __grid_constant__ cuda_all_reduce op, const __grid_constant__ peer_memory p,
                    const int32_t *count, int n_row)
{
    DYNAMIC_SHARED(memory);
    SHARED(float[32], room);
    SHARED(const float *[CUDA_PEERS_MAX], source);
    const cuda_add_norm &a = op.norm;
    const int n = a.n, mine = 4 * threadIdx.x;
    const float4 first_weight =
        !op.sum && mine < n ? norm_four<ALIGNED>(a.weight, mine, n) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    gpu_wait_before();
    if (!p.is_shared) /* peer_pass has why */
        gpu_let_next();
    const bool come = await_all(op, p, source);
    const int rows = come ? OP_COUNT(count, n_row) : 0; /* else the step is lost */
    float *row = (float *)memory;
    for (int t = blockIdx.x; t < rows; t += gridDim.x) {
        const size_t at = (size_t)t * n;
        float square = 0.0f;
        for (int i = mine; i < n; i += 4 * blockDim.x) {
            const float4 before =
                op.sum ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : norm_four<ALIGNED>(a.residual + at, i, n);
            const float4 sum = sum_of_parts<ALIGNED>(source, p.size, at, i, n);
            if (op.sum) {
                norm_put<ALIGNED>(op.sum + at, i, n, sum);
                continue;
            }
            const float4 v = norm_add(before, sum);
            norm_put<ALIGNED>(a.residual + at, i, n, v);
            square = norm_keep(row, i, v, square);
        }
        if (!op.sum)
            norm_end<ALIGNED>(a, row, square, room, at, first_weight);
        __syncthreads(); /* room is written again */
    }
    clear_flags(p, op.slot);
}

template <bool ALIGNED> static const char *start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_all_reduce *a = &op->as.all_reduce;
    const size_t bytes = a->sum ? 16 : norm_shared_bytes(a->norm.n);
    const struct peer_memory *p = &at->peers->memory;
    const int most = p->is_shared ? peers_blocks(at) : BLOCKS_AN_SM * at->limits->n_sm;
    const char *why = gpu_why(gpu_allow_shared(sent_add_kernel<ALIGNED>, bytes));
    return why ? why
               : gpu_why(gpu_launch(sent_add_kernel<ALIGNED>, min(op->n_row, most), norm_threads(a->norm.n),
                                    bytes, at->stream, *a, *p, op->count, op->n_row));
}

const char *sent_add_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_all_reduce *a = &op->as.all_reduce;
    const char *why = check_slot(at, a->slot, a->norm.n, op->n_row);
    if (why)
        return why;
    if (a->norm.row || (a->norm.delta[0] && a->norm.delta[1]))
        return "all-reduce: what is sent is one part, and all rows of it";
    return a->norm.n % 4 ? start<false>(op, at) : start<true>(op, at);
}

cudaError_t sent_load(void)
{
    const cudaError_t e = gpu_load_kernel(sent_add_kernel<false>);
    return e == cudaSuccess ? gpu_load_kernel(sent_add_kernel<true>) : e;
}
