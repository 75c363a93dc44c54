/* Attention of sequences that have one row in the step: a block for each KV head and each part of a sequence,
 * whose warps take turns with the spans (attention_span.cuh) of the part. A warp's keys and values go from
 * memory straight into the operands of the matrix instruction: keys, and then values transposed, are the
 * first operand; the query heads that share them are the eight columns. The next keys are asked for when the
 * last have been used, and values likewise, so that a warp always waits for one of them and works on the
 * other.
 *
 * Where few rows are in the step, blocks have more warps and parts are short: latency is all there is. */
#include "kernels/cuda/plugin/attention_walk.cuh"

#define WARPS_MANY 4

struct single_params {
    struct cuda_attention a;
    struct attention_parts parts;
    int n_part, long_from;
};

/* grid: (parts, KV heads x groups of 8 * NT query heads, rows) */
template <int HD, int TYPE, int NT, int WARPS>
static __global__ void __launch_bounds__(32 * WARPS, (NT == 1 ? 12 : 8) / WARPS)
    single_kernel(const single_params p)
{
    DYNAMIC_SHARED(memory);
    const bool few = WARPS == WARPS_FEW;
    const struct cuda_attention &a = p.a;
    warp_part<HD, NT> *part = (warp_part<HD, NT> *)memory;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, split = blockIdx.x, which = blockIdx.z;
    const int of_kv = a.n_head / a.kv.n_kv_head, groups = (of_kv + 8 * NT - 1) / (8 * NT);
    const int kv_head = (int)blockIdx.y / groups, at_head = (int)blockIdx.y % groups * 8 * NT;
    const int head = kv_head * of_kv + at_head, n_head = min(8 * NT, of_kv - at_head);
    /* What no operator writes, and where the cache is, before waiting for the operator before. */
    int row = 0, n = 0, block = 0, block_32 = 0;
    if (which < min(*a.single_count, a.n_single)) {
        const struct cuda_tile tile = a.single[which];
        row = tile.row;
        const int pos = a.pos[row], keys = attention_part_keys(p.long_from, pos);
        n = min(pos + 1 - split * keys, keys); /* keys of the part, if there are any */
        const int32_t *table = &a.block_table[(size_t)tile.seq * *a.stride + split * (keys / CUDA_KV_BLOCK)];
        if (lane * CUDA_KV_BLOCK < n)
            block = table[lane];
        if (!few && (32 + lane) * CUDA_KV_BLOCK < n)
            block_32 = table[32 + lane];
        if (few && n > 0)
            fetch_part<HD, TYPE>(a.kv, block, kv_head, (n - 1) / CUDA_KV_BLOCK, warp, lane);
    }
    gpu_wait_before();
    gpu_let_next();
    if (n <= 0)
        return;
    const float scale = a.scale * LOG2_E * (TYPE == CUDA_KV_FP8 ? a.kv.scale[0] : 1.0f);
    heads<HD, NT> h;
    part_walk<HD, TYPE, NT, WARPS> walk;
    ask_for_heads<HD, TYPE, NT>(h, a.q + ((size_t)row * a.n_head + head) * HD, n_head, lane);
    walk.begin(a.kv, block, block_32, kv_head, n, warp, lane);
    walk.run(a.kv, h, scale, warp, lane);
    put_part(h, &part[warp], lane); /* of a warp without a key: nothing, under a weight of zero */
    __syncthreads();
    for (int i = threadIdx.x; i < n_head * HD; i += 32 * WARPS) {
        const int t = i / HD, d = i % HD;
        const whole_part of = add_warps<HD, NT, WARPS>(part, t, d);
        if (p.n_part == 1) {
            const float by = (TYPE == CUDA_KV_FP8 ? a.kv.scale[1] : 1.0f) / of.sum;
            a.y[((size_t)row * a.n_head + head) * HD + i] = float_bf16(of.acc * by);
            continue;
        }
        const size_t to = ((size_t)which * a.n_head + head + t) * p.n_part + split;
        p.parts.acc[to * HD + d] = of.acc;
        if (d == 0) {
            p.parts.max[to] = of.max;
            p.parts.sum[to] = of.sum;
        }
    }
}

template <int HD, int TYPE, int NT, int WARPS>
static const char *start(const single_params &p, int groups, cudaStream_t stream)
{
    const size_t bytes = sizeof(warp_part<HD, NT>) * WARPS;
    const dim3 grid((unsigned)p.n_part, (unsigned)(p.a.kv.n_kv_head * groups), (unsigned)p.a.n_single);
    const char *why = gpu_why(gpu_allow_shared(single_kernel<HD, TYPE, NT, WARPS>, bytes));
    return why ? why
               : gpu_why(gpu_launch(single_kernel<HD, TYPE, NT, WARPS>, grid, 32 * WARPS, bytes, stream, p));
}

template <int HD, int TYPE> static const char *start_size(const single_params &p, cudaStream_t stream)
{
    const int of_kv = p.a.n_head / p.a.kv.n_kv_head, groups = (of_kv + 15) / 16;
    const bool few = p.long_from > 0;
    if (of_kv <= 8)
        return few ? start<HD, TYPE, 1, WARPS_FEW>(p, 1, stream)
                   : start<HD, TYPE, 1, WARPS_MANY>(p, 1, stream);
    return few ? start<HD, TYPE, 2, WARPS_FEW>(p, groups, stream)
               : start<HD, TYPE, 2, WARPS_MANY>(p, groups, stream);
}

const char *attention_single_start(const struct cuda_attention *a, const struct attention_parts *parts,
                                   cudaStream_t stream)
{
    const single_params p = {*a, *parts, attention_part_count(a), attention_long_from(a)};
    const char *why = nullptr;
#define CALL(HD, TYPE) start_size<HD, TYPE>(p, stream)
    ATTENTION_SWITCH(why, a->kv, CALL)
#undef CALL
    return why || p.n_part == 1 ? why : attention_merge_start(a, parts, stream);
}
