#include "kernels/cuda/plugin/prefill.cuh"

#include "kernels/cuda/plugin/prefill_boxes.h"
#include "kernels/cuda/plugin/prefill_experts.cuh"
#include "kernels/cuda/plugin/prefill_sort.cuh"
#include "kernels/cuda/plugin/prefill_sum.cuh"

#define SUM_THREADS 128

/* Where the parts of scratch lie. */
struct prefill_scratch {
    uint16_t *x, *h, *y; /* x in the order of panels; panels */
    struct prefill_sorted sorted;
    size_t capacity, bytes; /* rows of a panel */
    int n_chunk;
};

static prefill_scratch layout(const struct packed_moe *m, void *base)
{
    prefill_scratch s = {};
    const int n_slot = m->n_row * m->n_used, most_tiles = m->n_expert + n_slot / PREFILL_N_SLIM;
    s.n_chunk = (n_slot + CHUNK - 1) / CHUNK;
    /* Each expert's rows are padded to 8; a tile's reads end at most N_MAX rows after its last. */
    s.capacity = (size_t)n_slot + 8 * (size_t)m->n_expert + PREFILL_N_MAX;
    auto take = [&](size_t bytes) {
        uint8_t *at = (uint8_t *)base + s.bytes;
        s.bytes += (bytes + 255) / 256 * 256;
        return at;
    };
    s.x = (uint16_t *)take(2 * (size_t)m->n_row * m->hidden);
    s.h = (uint16_t *)take(2 * s.capacity * m->inner);
    s.y = (uint16_t *)take(2 * s.capacity * m->hidden);
    s.sorted.count = (int *)take(sizeof(int) * s.n_chunk * m->n_expert);
    s.sorted.first = (int *)take(sizeof(int) * m->n_expert);
    s.sorted.row = (int *)take(sizeof(int) * n_slot);
    s.sorted.source = (int *)take(sizeof(int) * s.capacity);
    s.sorted.tile = (prefill_tile *)take(sizeof(prefill_tile) * most_tiles);
    s.sorted.n_tile = (int *)take(sizeof(int));
    s.sorted.ready = (uint32_t *)take(sizeof(uint32_t) * most_tiles);
    s.sorted.ticket = (uint32_t *)take(sizeof(uint32_t));
    return s;
}

size_t prefill_bytes(const struct packed_moe *m)
{
    return layout(m, nullptr).bytes;
}

template <typename F> static const char *phase_boxes(prefill_phase *p, const uint8_t *weight, int n_expert)
{
    const size_t n_row = (size_t)n_expert * p->n_unit;
    p->n_group = (p->n_unit + F::GROUP_UNITS - 1) / F::GROUP_UNITS;
    const char *e = weight_boxes_make(&p->weight, weight, p->n_k, n_row, F::UNITS);
    return e ? e : weight_boxes_make(&p->part, weight, p->n_k, n_row, F::GROUP_UNITS);
}

template <typename F>
static const char *launch(const struct packed_moe *m, prefill_experts p, const struct gpu_limits *limits,
                          cudaStream_t stream)
{
    const char *e = phase_boxes<F>(&p.gate_up, m->gate_up, m->n_expert);
    if (!e)
        e = phase_boxes<F>(&p.down, m->down, m->n_expert);
    /* A quarter of what all groups have at a time. */
    p.n_fine = F::FINE ? limits->n_sm * F::BLOCKS / 4 * F::GROUPS / p.down.n_group : 0;
    if (!e)
        e = gpu_why(gpu_allow_shared(prefill_experts_kernel<F>, F::SMEM));
    return e ? e
             : gpu_why(gpu_launch(prefill_experts_kernel<F>, (unsigned)(limits->n_sm * F::BLOCKS), F::THREADS,
                                  F::SMEM, stream, p));
}

/* Many tokens an expert: the widest tiles. Fewer: three groups, whose tiles of 384 rows fetch their tokens
 * less often than those of 256. Few: two blocks an SM, so that one decodes while the other's products run,
 * and its sums leave behind the other's loads; of very few, in finer steps. */
typedef prefill_experts_form<prefill_form<2, 1, 1, 2, 2, PREFILL_N_MAX, 7>> wide;
typedef prefill_experts_form<prefill_form<3, 1, 1, 2, 1, PREFILL_N_MIDDLE, 7>> middle;
typedef prefill_experts_form<prefill_form<2, 2, 1, 2, 1, PREFILL_N_NARROW, 6>> narrow;
typedef prefill_experts_form<prefill_form<2, 2, 1, 2, 1, PREFILL_N_SLIM, 7>> slim;

/* Tokens an expert on average, but for those that all take, up to which these tiles were faster on
 * an H200 (docs/SPEED.md): beyond, many experts have more than one tile of them. */
#define MIDDLE_TOKENS 72
#define NARROW_TOKENS 40
#define SLIM_TOKENS   20

/* Tokens of a tile, which say its form. */
static int most_tokens(const struct packed_moe *m)
{
    const int pairs = m->n_row * (m->n_used - m->n_shared), n_expert = m->n_expert - m->n_shared;
    return pairs <= SLIM_TOKENS * n_expert     ? PREFILL_N_SLIM
           : pairs <= NARROW_TOKENS * n_expert ? PREFILL_N_NARROW
           : pairs <= MIDDLE_TOKENS * n_expert ? PREFILL_N_MIDDLE
                                               : PREFILL_N_MAX;
}

static struct prefill_phase phase(int rows, int K, int n_panel)
{
    const int n_unit = rows / CUDA_UNIT_ROWS, n_k = K / CUDA_UNIT_K;
    return {{}, {}, n_unit, n_k, n_panel, 0};
}

static const char *products(const struct packed_moe *m, const prefill_scratch &s,
                            const struct gpu_limits *limits, cudaStream_t stream)
{
    prefill_experts p = {};
    p.gate_up = phase(2 * m->inner, m->hidden, m->inner / 64);
    p.down = phase(m->hidden, m->inner, m->hidden / 64);
    p.gate_scale = m->gate_scale;
    p.up_scale = m->up_scale;
    p.down_scale = m->down_scale;
    p.x = s.x;
    p.source = s.sorted.source;
    p.h = s.h;
    p.y = s.y;
    p.tile = s.sorted.tile;
    p.n_tile = s.sorted.n_tile;
    p.ticket = s.sorted.ticket;
    p.ready = s.sorted.ready;
    p.by = {4, 16, 64};
    p.hidden = m->hidden;
    p.capacity = s.capacity;
    switch (most_tokens(m)) {
    case PREFILL_N_SLIM:
        return launch<slim>(m, p, limits, stream);
    case PREFILL_N_NARROW:
        return launch<narrow>(m, p, limits, stream);
    case PREFILL_N_MIDDLE:
        return launch<middle>(m, p, limits, stream);
    default:
        return launch<wide>(m, p, limits, stream);
    }
}

static const char *sort(const struct packed_moe *m, const prefill_scratch &s, cudaStream_t stream)
{
    const prefill_routing q = {m->id, m->n_row * m->n_used, m->n_used, m->n_expert, most_tokens(m)};
    const uint4 *x = (const uint4 *)m->x;
    uint4 *ordered = (uint4 *)s.x;
    const int n = m->n_row * (m->hidden / 16), blocks = min(1024, (n + SORT_THREADS - 1) / SORT_THREADS);
    if (q.n_slot <= SORT_ALONE)
        return gpu_why(gpu_launch(sort_kernel, (unsigned)(1 + blocks), SORT_THREADS, 0, stream, q, s.sorted,
                                  x, ordered, n));
    const char *e = gpu_why(gpu_launch(count_kernel, (unsigned)(s.n_chunk + blocks), SORT_THREADS, 0, stream,
                                       q, s.sorted, s.n_chunk, x, ordered, n));
    if (!e)
        e = gpu_why(gpu_launch(plan_kernel, 1, CUDA_EXPERTS_MAX, 0, stream, q, s.sorted, s.n_chunk));
    return e ? e : gpu_why(gpu_launch(place_kernel, (unsigned)s.n_chunk, 32, 0, stream, q, s.sorted));
}

const char *prefill_check(const struct packed_moe *m)
{
    if (m->n_row < 1 || m->n_used < 1 || m->n_row > PREFILL_MAX_SLOTS / m->n_used)
        return "prefill: tokens x experts a token not in 1 to 2^24";
    if ((size_t)m->n_row * (size_t)max(m->hidden, 0) > (size_t)1 << 34)
        return "prefill: tokens x hidden size over 2^34";
    if (m->n_expert < 1 || m->n_expert > CUDA_EXPERTS_MAX)
        return "prefill: number of experts not in 1 to 512";
    if (m->n_shared < 0 || m->n_shared >= m->n_expert || m->n_shared > m->n_used)
        return "prefill: more experts that all tokens take than there are";
    if (m->hidden < 64 || m->inner < 64 || m->hidden > PREFILL_MAX_WIDTH || m->inner > PREFILL_MAX_WIDTH ||
        m->hidden % 64 || m->inner % 64)
        return "prefill: hidden or inner size not a multiple of 64 in 64 to 65536";
    return nullptr;
}

const char *prefill_start(const struct packed_moe *m, void *scratch, const struct gpu_limits *limits,
                          cudaStream_t stream)
{
    const char *e = prefill_check(m);
    if (e)
        return e;
    if (!GPU_IS_EMULATED && limits->major != 9)
        return "the prefill kernel uses wgmma: it needs compute capability 9.0";
    const prefill_scratch s = layout(m, scratch);
    e = sort(m, s, stream);
    if (!e)
        e = products(m, s, limits, stream);
    if (e)
        return e;
    const dim3 sums((unsigned)m->n_row, (unsigned)(m->hidden / 8 + SUM_THREADS - 1) / SUM_THREADS);
    if (m->each)
        return gpu_why(gpu_launch(each_kernel, sums, SUM_THREADS, 0, stream, s.y, s.sorted.row, m->n_used,
                                  m->hidden, s.capacity, (uint16_t *)m->each));
    return gpu_why(gpu_launch(finalize_kernel, sums, SUM_THREADS, 0, stream, s.y, s.sorted.row, m->weight,
                              m->n_used, m->hidden, s.capacity, m->out));
}
