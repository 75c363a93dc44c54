/* Attention of up to 64 rows of one sequence on Hopper: KEYS keys at a time, for each tile and each two query
 * heads that share a KV head. A producer warpgroup copies keys and values into two rings; each of two
 * consumer warpgroups has the rows of one head. A consumer's scores of the next keys are computed while it
 * adds the values of the last, and its exponentials while the other's products run.
 *
 * Keys lie as rows of a panel (attention_wgmma.cuh), values transposed: a dimension is a row. A cache of FP8
 * becomes f16 on the way, see attention_number.cuh. Where there is memory for images of both
 * (attention_images.cu), one thread has them copied, and draws the next tile and heads before the last ones
 * are done, so that a block's rings never run empty; else a block has one tile and its heads.
 *
 * A row's numbers come in steps of KEYS that begin at absolute positions, and a step of which it sees nothing
 * changes none of its bits: they do not depend on which rows share its tile. */
#include "kernels/cuda/plugin/attention_wgmma_copy.cuh"

/* ---- the producer ---------------------------------------------------------------------------------- */

/* Keys of step 0, keys of 1, values of 0, keys of 2, values of 1, ...: the order in which they are used. A
 * thread says that its copies of one are there when those of the next are on their way. */
template <int HD, int TYPE>
static __device__ __forceinline__ void produce(const struct cuda_attention &a, const work &w, uint32_t smem)
{
    typedef plan<HD> at;
    const int lane = threadIdx.x % 32;
    uint32_t pending = 0;
    int block = entries(w, 0, lane), before = 0;
    for (int step = 0; step <= w.n_step; step++) {
        const int stage = step % STAGES, parity = step / STAGES % 2 ^ 1;
        if (step < w.n_step) {
            bell_wait(smem + at::KEY_FREE + 8 * stage, parity);
            if (TYPE == CUDA_KV_FP8)
                put_keys<HD>(a, w, block, smem + at::KEY + stage * at::STEP);
            else
                copy_keys<HD>(a, w, block, smem + at::KEY + stage * at::STEP);
            copies_end();
            if (pending) {
                copies_wait<1>();
                shared_for_async();
                bell_ring(pending);
            }
            pending = smem + at::KEY_THERE + 8 * stage;
        }
        if (step > 0) {
            const int last = step - 1, its = last % STAGES;
            bell_wait(smem + at::VALUE_FREE + 8 * its, last / STAGES % 2 ^ 1);
            if (TYPE == CUDA_KV_FP8)
                put_values<HD>(a, w, before, w.end - last * KEYS, smem + at::VALUE + its * at::STEP);
            else
                copy_values<HD>(a, w, before, w.end - last * KEYS, smem + at::VALUE + its * at::STEP);
            copies_end();
            copies_wait<1>();
            shared_for_async();
            bell_ring(pending);
            pending = smem + at::VALUE_THERE + 8 * its;
        }
        before = block;
        if (step + 1 < w.n_step)
            block = entries(w, step + 1, lane);
    }
    copies_wait<0>();
    shared_for_async();
    bell_ring(pending);
}

/* The same from images, in two copies a step, behind `before` steps of other work. */
template <int HD>
static __device__ __forceinline__ void fetch(const struct cuda_attention &a, const work &w,
                                             const uint8_t *images, int before, uint32_t smem)
{
    typedef plan<HD> at;
    const uint8_t *from = images + image_at<HD>(a.kv, w.tile.image, w.kv_head);
    const size_t next = image_at<HD>(a.kv, 1, 0);
    for (int step = 0; step <= w.n_step; step++) {
        if (step < w.n_step) {
            const int i = before + step, stage = i % STAGES;
            bell_wait(smem + at::KEY_FREE + 8 * stage, i / STAGES % 2 ^ 1);
            bell_expect(smem + at::KEY_THERE + 8 * stage, at::STEP);
            copy_in_run(smem + at::KEY + stage * at::STEP, from + step * next, at::STEP,
                        smem + at::KEY_THERE + 8 * stage);
        }
        if (step > 0) {
            const int i = before + step - 1, stage = i % STAGES;
            bell_wait(smem + at::VALUE_FREE + 8 * stage, i / STAGES % 2 ^ 1);
            bell_expect(smem + at::VALUE_THERE + 8 * stage, at::STEP);
            copy_in_run(smem + at::VALUE + stage * at::STEP, from + (step - 1) * next + at::STEP, at::STEP,
                        smem + at::VALUE_THERE + 8 * stage);
        }
    }
}

/* The item-th piece of work, the last tiles first: of a sequence's, those that see the most keys. Without
 * steps behind the last piece. */
static __device__ __forceinline__ work work_of(const cuda_attention &a, int item)
{
    const int of_kv = a.n_head / a.kv.n_kv_head, pairs = (of_kv + 1) / 2, of_tile = a.kv.n_kv_head * pairs,
              which = min(*a.tile_count, a.n_tile) - 1 - item / of_tile;
    work w = {};
    if (which < 0)
        return w;
    w.tile = a.tile[which];
    w.table = a.block_table + (size_t)w.tile.seq * *a.stride;
    w.kv_head = item % of_tile / pairs;
    const int first = item % of_tile % pairs * 2;
    w.head = w.kv_head * of_kv + first;
    w.n_head = min(2, of_kv - first);
    w.pos = a.pos[w.tile.row];
    w.end = w.pos + w.tile.n_row;
    w.n_step = (w.end + KEYS - 1) / KEYS;
    return w;
}

static __device__ __forceinline__ work alike(work w)
{
    w.tile.row = warp_alike(w.tile.row);
    w.tile.n_row = warp_alike(w.tile.n_row);
    w.head = warp_alike(w.head);
    w.n_head = warp_alike(w.n_head);
    w.pos = warp_alike(w.pos);
    w.n_step = warp_alike(w.n_step);
    return w;
}

/* What of the work is under way. */
struct hands {
    work of[STAGES];
};

/* One thread: work as it is drawn, what it is put into `given` for the consumers, and its copies. */
template <int HD>
static __device__ __forceinline__ void hand_out(const cuda_attention &a, const uint8_t *images,
                                                uint32_t *ticket, hands &given, uint32_t smem)
{
    typedef plan<HD> at;
    int item = (int)atomicAdd(ticket, 1u), before = 0;
    for (int n = 0;; n++) {
        const work w = work_of(a, item);
        if (w.n_step > 0)
            item = (int)atomicAdd(ticket, 1u);
        bell_wait(smem + at::WORK_FREE + 8 * (n % STAGES), n / STAGES % 2 ^ 1);
        given.of[n % STAGES] = w;
        bell_ring(smem + at::WORK_THERE + 8 * (n % STAGES));
        if (w.n_step == 0)
            return;
        fetch<HD>(a, w, images, before, smem);
        before += w.n_step;
    }
}

/* ---- a consumer ------------------------------------------------------------------------------------ */

/* A head's rows into panels, two threads a row; rows behind the tile's last repeat it. */
template <int HD, int TYPE>
static __device__ __forceinline__ void put_queries(const struct cuda_attention &a, const work &w, int group,
                                                   uint32_t smem)
{
    const int t = threadIdx.x % GROUP, row = t / 2, half = t % 2;
    const uint16_t *from =
        a.q + ((size_t)(w.tile.row + min(row, w.tile.n_row - 1)) * a.n_head + w.head + group) * HD +
        half * (HD / 2);
    uint4 q[HD / 16];
#pragma unroll
    for (int i = 0; i < HD / 16; i++)
        q[i] = *(const uint4 *)(from + 8 * i);
    if (TYPE == CUDA_KV_FP8) {
        const float by = query_half<2>(q);
        shared_put(smem + plan<HD>::SCALE + 4 * (group * ROWS + row), by);
    }
#pragma unroll
    for (int i = 0; i < HD / 16; i++) {
        const int chunk = half * (HD / 16) + i;
        shared_put(smem + group * plan<HD>::QUERIES + chunk / 8 * plan<HD>::PANEL_Q +
                       panel_chunk(row, chunk % 8),
                   q[i]);
    }
}

/* A lane's two rows, g and g + 8 of its warp's sixteen. */
struct softmax {
    float max[2], sum[2], scale[2]; /* max: of scores as they come; sum: of this lane's keys */
};

/* Scores to weights. limit: keys of the step that each row sees; `all`: both see them all. by: what the sums
 * so far are to be multiplied with. */
template <int TYPE>
static __device__ __forceinline__ void weigh(float (&s)[KEYS / 2], softmax &r, const int (&limit)[2],
                                             bool all, float (&by)[2], int lane)
{
    if (!all)
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++)
            if (i / 4 * 8 + lane % 4 * 2 + i % 2 >= limit[i / 2 % 2])
                s[i] = -INFINITY;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float max = r.max[h], sum = 0.0f;
#pragma unroll
        for (int i = 0; i < KEYS / 8; i++)
            max = fmaxf(max, fmaxf(s[4 * i + 2 * h], s[4 * i + 2 * h + 1]));
        max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, 1));
        max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, 2)); /* a number: every row sees the first key */
        by[h] = gpu_exp2((r.max[h] - max) * r.scale[h]);
        r.max[h] = max;
        const float from = TYPE == CUDA_KV_FP8 ? FP8_WEIGHT_LOG2 - max * r.scale[h] : -max * r.scale[h];
#pragma unroll
        for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float &x = s[4 * i + 2 * h + j];
                x = gpu_exp2(fmaf(x, r.scale[h], from));
                sum += x;
            }
        r.sum[h] = fmaf(r.sum[h], by[h], sum);
    }
}

/* Weights as the other factor of values: the scores' registers are where that wants them. */
template <int TYPE>
static __device__ __forceinline__ void pack(uint32_t (&p)[KEYS / 4], const float (&s)[KEYS / 2])
{
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++)
        p[i] = kv_pair<TYPE>(s[2 * i], s[2 * i + 1]);
}

template <int HD, int TYPE>
static __device__ __forceinline__ void begin_scores(float (&s)[KEYS / 2], uint32_t queries, uint32_t keys)
{
    products_fence();
#pragma unroll
    for (int k = 0; k < HD / 16; k++)
        product<TYPE, KEYS>::run(s, panel_step(queries + k / 4 * plan<HD>::PANEL_Q, k % 4),
                                 panel_step(keys + k / 4 * plan<HD>::PANEL_K, k % 4), k > 0);
    products_begin();
}

template <int HD, int TYPE>
static __device__ __forceinline__ void begin_values(float (&o)[HD / 2], const uint32_t (&p)[KEYS / 4],
                                                    uint32_t values)
{
    products_fence();
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
        product<TYPE, HD>::run(o, &p[4 * k], panel_step(values + k / 4 * plan<HD>::PANEL_V, k % 4), 1);
    products_begin();
}

/* A warp has read a stage: when its products have ended. */
[[maybe_unused]] static __device__ __forceinline__ void leave(uint32_t bell, int lane)
{
    __syncwarp();
    if (lane == 0)
        bell_ring(bell);
}

template <int HD, int TYPE>
static __device__ __forceinline__ void consume(const struct cuda_attention &a, const work &w, int group,
                                               int before, uint32_t smem)
{
    typedef plan<HD> at;
    const int lane = threadIdx.x % 32, warp = threadIdx.x % GROUP / 32, g = lane / 4;
    const uint32_t queries = smem + group * at::QUERIES;
    put_queries<HD, TYPE>(a, w, group, smem);
    shared_for_async();
    bell_ring(smem + at::QUERIES_THERE + 8 * group);
    bell_wait(smem + at::QUERIES_THERE + 8 * group, 0);
    softmax r;
    int sees[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = 16 * warp + g + 8 * h;
        r.max[h] = -INFINITY;
        r.sum[h] = 0.0f;
        r.scale[h] = a.scale * LOG2_E;
        if (TYPE == CUDA_KV_FP8)
            r.scale[h] *= a.kv.scale[0] * shared_float(smem + at::SCALE + 4 * (group * ROWS + row));
        sees[h] = w.pos + min(row, w.tile.n_row - 1) + 1;
    }
    float s[KEYS / 2] = {}, o[HD / 2] = {}, by[2];
    uint32_t p[KEYS / 4];
    int stage = before % STAGES, parity = before / STAGES % 2;
    bell_wait(smem + at::KEY_THERE + 8 * stage, parity);
    begin_scores<HD, TYPE>(s, queries, smem + at::KEY + stage * at::STEP);
    products_wait<0>();
    products_there(s);
    leave(smem + at::KEY_FREE + 8 * stage, lane);
    weigh<TYPE>(s, r, sees, w.pos + 1 >= KEYS, by, lane);
    pack<TYPE>(p, s);
    for (int step = 1; step < w.n_step; step++) {
        const int its = stage;
        const int its_parity = parity;
        stage = (before + step) % STAGES;
        parity = (before + step) / STAGES % 2;
        bell_wait(smem + at::KEY_THERE + 8 * stage, parity);
        begin_scores<HD, TYPE>(s, queries, smem + at::KEY + stage * at::STEP);
        bell_wait(smem + at::VALUE_THERE + 8 * its, its_parity);
        begin_values<HD, TYPE>(o, p, smem + at::VALUE + its * at::STEP);
        products_wait<1>();
        products_there(s);
        leave(smem + at::KEY_FREE + 8 * stage, lane);
        const int limit[2] = {sees[0] - step * KEYS, sees[1] - step * KEYS};
        weigh<TYPE>(s, r, limit, w.pos + 1 - step * KEYS >= KEYS, by, lane);
        products_wait<0>();
        products_there(o);
        leave(smem + at::VALUE_FREE + 8 * its, lane);
#pragma unroll
        for (int i = 0; i < HD / 2; i++)
            o[i] *= by[i / 2 % 2];
        pack<TYPE>(p, s);
    }
    bell_wait(smem + at::VALUE_THERE + 8 * stage, parity);
    begin_values<HD, TYPE>(o, p, smem + at::VALUE + stage * at::STEP);
    products_wait<0>();
    products_there(o);
    leave(smem + at::VALUE_FREE + 8 * stage, lane);
    bell_ring(smem + at::QUERIES_THERE + 8 * group); /* nor does it read its queries any more */
    const float out_scale = TYPE == CUDA_KV_FP8 ? a.kv.scale[1] : 1.0f;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = r.sum[h];
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        const float factor = out_scale / sum;
        const int row = 16 * warp + g + 8 * h;
        if (row >= w.tile.n_row)
            continue;
        uint16_t *y = a.y + ((size_t)(w.tile.row + row) * a.n_head + w.head + group) * HD + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < HD / 8; i++)
            *(uint32_t *)(y + 8 * i) =
                float_bf16_pair(o[4 * i + 2 * h] * factor, o[4 * i + 2 * h + 1] * factor);
    }
}

/* A group that has no head of this work: the rings go on without it. */
template <int HD>
static __device__ __forceinline__ void pass(const work &w, int before, int lane, uint32_t smem)
{
    typedef plan<HD> at;
    for (int i = before; i < before + w.n_step; i++) {
        bell_wait(smem + at::KEY_THERE + 8 * (i % STAGES), i / STAGES % 2);
        leave(smem + at::KEY_FREE + 8 * (i % STAGES), lane);
        bell_wait(smem + at::VALUE_THERE + 8 * (i % STAGES), i / STAGES % 2);
        leave(smem + at::VALUE_FREE + 8 * (i % STAGES), lane);
    }
}

/* ticket: what of the work has been drawn, where there are images; else a block has one piece of it. */
template <int HD, int TYPE>
static __global__ void __launch_bounds__(THREADS, 1)
    wgmma_kernel(const cuda_attention a, const uint8_t *images, uint32_t *ticket)
{
#if GPU_IS_EMULATED || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef plan<HD> at;
    DYNAMIC_SHARED(memory);
    SHARED(hands, given);
    gpu_wait_before();
    gpu_let_next();
    const uint32_t smem = (shared_offset(memory) + 1023u) & ~1023u;
    if (threadIdx.x < at::N_BELL) { /* six rings, then the queries of each group */
        const int ring = (int)threadIdx.x / STAGES;
        bell_make(smem + at::BELLS + 8 * threadIdx.x, ring >= 6             ? GROUP
                                                      : ring % 2            ? 2 * GROUP / 32
                                                      : images || ring == 4 ? 1
                                                                            : GROUP);
    }
    bells_made();
    __syncthreads();
    const int group = warp_alike((int)threadIdx.x / GROUP) - 1, lane = threadIdx.x % 32;
    if (group < 0) {
        registers_fewer<TYPE == CUDA_KV_FP8 ? 56 : 40>();
        if (images) {
            if (threadIdx.x == 0)
                hand_out<HD>(a, images, ticket, given, smem);
            return;
        }
        const work w = work_of(a, (int)blockIdx.x);
        if (w.n_step > 0)
            produce<HD, TYPE>(a, w, smem);
        return;
    }
    registers_more<TYPE == CUDA_KV_FP8 ? 224 : 232>();
    for (int n = 0, before = 0, turn = 0;; n++) {
        if (images)
            bell_wait(smem + at::WORK_THERE + 8 * (n % STAGES), n / STAGES % 2);
        work w = {};
        if (!images)
            w = work_of(a, (int)blockIdx.x);
        else if (lane == 0) /* which says that it has been read, too */
            w = given.of[n % STAGES];
        w = alike(w);
        if (images)
            leave(smem + at::WORK_FREE + 8 * (n % STAGES), lane);
        if (w.n_step == 0)
            return;
        if (group >= w.n_head) {
            pass<HD>(w, before, lane, smem);
        } else {
            if (turn++ > 0) /* all of the group are done with its queries */
                bell_wait(smem + at::QUERIES_THERE + 8 * group, 1);
            consume<HD, TYPE>(a, w, group, before, smem);
        }
        before += w.n_step;
        if (!images)
            return;
    }
#else
    (void)a;
    (void)images;
    (void)ticket;
    __trap(); /* wgmma is Hopper's alone: attention_has_wgmma refuses others */
#endif
}

template <int HD, int TYPE>
static const char *start(const cuda_attention &a, uint8_t *images, int n_sm, cudaStream_t stream)
{
    const size_t bytes = plan<HD>::BYTES + 1023;
    const int pairs = (a.n_head / a.kv.n_kv_head + 1) / 2, items = a.kv.n_kv_head * pairs * a.n_tile;
    uint32_t *ticket = images ? attention_ticket(&a, images) : nullptr;
    const char *why = gpu_why(gpu_allow_shared(wgmma_kernel<HD, TYPE>, bytes));
    return why ? why
               : gpu_why(gpu_launch(wgmma_kernel<HD, TYPE>, images ? min(items, n_sm) : items, THREADS, bytes,
                                    stream, a, images, ticket));
}

bool attention_has_wgmma(const struct cuda_kv *kv, const struct gpu_limits *limits)
{
    return limits->major == 9 && (kv->head_dim == 64 || kv->head_dim == 128) && attention_has_mma(kv);
}

const char *attention_wgmma_start(const struct cuda_attention *a, uint8_t *images, const struct op_place *at)
{
    const bool fp8 = a->kv.type == CUDA_KV_FP8;
    const char *why = images ? attention_images_start(a, images, at->stream) : nullptr;
    const int n_sm = at->limits->n_sm;
    if (why)
        return why;
    if (a->kv.head_dim == 64)
        return fp8 ? start<64, CUDA_KV_FP8>(*a, images, n_sm, at->stream)
                   : start<64, CUDA_KV_BF16>(*a, images, n_sm, at->stream);
    return fp8 ? start<128, CUDA_KV_FP8>(*a, images, n_sm, at->stream)
               : start<128, CUDA_KV_BF16>(*a, images, n_sm, at->stream);
}
