/* The plug-in's table: a device, its memory, and works in order on one stream. */
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

#include "kernels/cuda/plugin/operators.h"
#include "kernels/cuda/plugin/prefill.cuh"

#define STAGING_BYTES ((size_t)8 << 20)

struct cuda_gpu {
    int index;
    cudaDeviceProp properties;
    struct gpu_limits limits;
    cudaStream_t stream;
    uint32_t *barrier;
    void *scratch; /* of whichever operator runs */
    size_t scratch_bytes;
    uint8_t *staging; /* rows on their way to packed form, or NULL */
    std::mutex staging_lock;
    uint32_t *sink;
};

/* Of the last call of this thread that failed: several copy weights at a time. */
static thread_local char last_error[256];

static bool fail(struct cuda_gpu *, const char *what, const char *why)
{
    snprintf(last_error, sizeof(last_error), "%s: %s", what, why);
    return false;
}

static bool check(struct cuda_gpu *g, const char *what, cudaError_t e)
{
    return e == cudaSuccess || fail(g, what, cudaGetErrorString(e));
}

static void close_gpu(struct cuda_gpu *g)
{
    if (g->stream)
        cudaStreamDestroy(g->stream);
    cudaFree(g->barrier);
    cudaFree(g->scratch);
    cudaFree(g->staging);
    cudaFree(g->sink);
    delete g;
}

static bool prepare(struct cuda_gpu *g)
{
    int cooperative = 0, shared = 0;
    if (!check(g, "device", cudaSetDevice(g->index)) ||
        !check(g, "device", cudaGetDeviceProperties(&g->properties, g->index)))
        return false;
    if (g->properties.major < 9)
        return fail(g, g->properties.name, "compute capability below 9.0, which these kernels need");
    cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, g->index);
    if (!cooperative)
        return fail(g, g->properties.name, "no cooperative launches");
    if (!check(g, "device",
               cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, g->index)))
        return false;
    g->limits.n_sm = g->properties.multiProcessorCount;
    g->limits.major = g->properties.major;
    g->limits.shared_bytes = (size_t)shared;
    return check(g, "stream", cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking)) &&
           check(g, "memory", cudaMalloc(&g->barrier, OP_ARRIVED_WORDS * sizeof(uint32_t))) &&
           check(g, "memory", cudaMemset(g->barrier, 0, OP_ARRIVED_WORDS * sizeof(uint32_t))) &&
           check(g, "memory", cudaMalloc(&g->sink, 256));
}

static struct cuda_gpu *open_gpu(int index, char *why, size_t why_bytes)
{
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n == 0) {
        snprintf(why, why_bytes, "no usable GPU: %s",
                 e != cudaSuccess ? cudaGetErrorString(e) : "none found");
        return NULL;
    }
    if (index < 0 || index >= n) {
        snprintf(why, why_bytes, "no GPU %d: this machine has %d", index, n);
        return NULL;
    }
    struct cuda_gpu *g = new (std::nothrow) cuda_gpu();
    if (!g) {
        snprintf(why, why_bytes, "out of memory");
        return NULL;
    }
    g->index = index;
    if (prepare(g))
        return g;
    snprintf(why, why_bytes, "%s", last_error);
    close_gpu(g);
    return NULL;
}

static void info(const struct cuda_gpu *g, struct cuda_gpu_info *out)
{
    memset(out, 0, sizeof(*out));
    snprintf(out->name, sizeof(out->name), "%s", g->properties.name);
    out->major = GPU_IS_EMULATED ? 0 : g->properties.major;
    out->minor = GPU_IS_EMULATED ? 0 : g->properties.minor;
    out->n_sm = g->properties.multiProcessorCount;
    out->memory_bytes = g->properties.totalGlobalMem;
    out->l2_bytes = (size_t)g->properties.l2CacheSize;
    size_t total;
    if (cudaMemGetInfo(&out->free_bytes, &total) != cudaSuccess)
        out->free_bytes = 0;
}

static const char *error(const struct cuda_gpu *)
{
    return last_error;
}

static void *alloc(struct cuda_gpu *g, size_t bytes)
{
    void *p = NULL;
    return check(g, "memory", cudaMalloc(&p, bytes)) ? p : NULL;
}

static void release(struct cuda_gpu *g, void *device)
{
    (void)g;
    cudaFree(device);
}

static bool write_to(struct cuda_gpu *g, void *device, const void *host, size_t bytes)
{
    return check(g, "copy", cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, g->stream)) &&
           check(g, "copy", cudaStreamSynchronize(g->stream));
}

static bool read_from(struct cuda_gpu *g, void *host, const void *device, size_t bytes)
{
    return check(g, "copy", cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, g->stream)) &&
           check(g, "copy", cudaStreamSynchronize(g->stream));
}

static size_t align(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static bool write_zero(struct cuda_gpu *g, void *device, size_t bytes)
{
    return check(g, "memory", cudaMemsetAsync(device, 0, bytes, g->stream)) &&
           check(g, "memory", cudaStreamSynchronize(g->stream));
}

static void *alloc_host(struct cuda_gpu *g, size_t bytes)
{
    void *p = NULL;
    return check(g, "host memory", cudaMallocHost(&p, bytes)) ? p : NULL;
}

static void release_host(struct cuda_gpu *g, void *host)
{
    (void)g;
    cudaFreeHost(host);
}

static bool upload(struct cuda_gpu *g, void *device, const void *host, size_t bytes)
{
    return check(g, "copy", cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, g->stream));
}

static bool sync(struct cuda_gpu *g)
{
    return check(g, "run", cudaStreamSynchronize(g->stream));
}

/* A strip of rows that fits the staging memory. Copies from ordinary host memory have read it when they
 * return; the next strip's wait on the stream for this one's kernel. */
static bool pack_strip(struct cuda_gpu *g, const struct cuda_pack *p)
{
    const size_t code_bytes = (size_t)p->n_row * (p->K / 2), scale_bytes = (size_t)p->n_row * (p->K / 16);
    uint8_t *scales = g->staging + align(code_bytes);
    if (!check(g, "copy",
               cudaMemcpyAsync(g->staging, p->codes, code_bytes, cudaMemcpyHostToDevice, g->stream)) ||
        !check(g, "copy", cudaMemcpyAsync(scales, p->scales, scale_bytes, cudaMemcpyHostToDevice, g->stream)))
        return false;
    const char *why = pack_start(p, g->staging, scales, g->stream);
    return !why || fail(g, "pack", why);
}

static bool pack_rows(struct cuda_gpu *g, const struct cuda_pack *p)
{
    if (p->K < 64 || p->K % 64 || p->first % 16 || (p->rows != CUDA_PACK_WHOLE && p->n_whole % 8) ||
        p->first + p->n_row > p->n_whole || (p->n_row % 16 && p->first + p->n_row != p->n_whole))
        return fail(g, "pack", "rows or columns that are no whole units");
    const size_t row_bytes = (size_t)p->K / 2 + (size_t)p->K / 16;
    const int step = (int)std::min<size_t>((STAGING_BYTES - 512) / row_bytes / 16 * 16, 1u << 20);
    if (step == 0)
        return fail(g, "pack", "rows too long");
    std::lock_guard<std::mutex> lock(g->staging_lock);
    if (!g->staging && !check(g, "memory", cudaMalloc(&g->staging, STAGING_BYTES)))
        return false;
    for (int done = 0; done < p->n_row; done += step) {
        struct cuda_pack strip = *p;
        strip.first += done;
        strip.n_row = std::min(step, p->n_row - done);
        strip.codes += (size_t)done * (p->K / 2);
        strip.scales += (size_t)done * (p->K / 16);
        if (!pack_strip(g, &strip))
            return false;
    }
    return true;
}

/* ---- operators ---------------------------------------------------------------------------------------- */

static struct packed_moe moe_of(const struct cuda_op *op)
{
    const struct cuda_moe *m = &op->as.moe;
    return {m->gate_up, m->down, m->gate_scale, m->up_scale, m->down_scale, m->x,      m->id,
            m->weight,  m->out,  op->n_row,     m->n_used,   m->n_expert,   m->hidden, m->inner};
}

/* More than one call of the kernel for few rows takes. */
static bool is_prefill(const struct packed_moe *w)
{
    return w->n_row > CUDA_ROWS_MAX || (size_t)w->n_row * w->n_used > CUDA_SLOTS_MAX;
}

/* Of the kernel for few rows, at the beginning of the scratch. */
static size_t place_moe(const struct packed_moe *w, void *base, struct moe_scratch *s)
{
    const size_t h = align((size_t)CUDA_SLOTS_MAX * w->inner * sizeof(uint16_t));
    s->h = (uint16_t *)base;
    s->y = (float *)((uint8_t *)base + h);
    return h + align((size_t)CUDA_SLOTS_MAX * w->hidden * sizeof(float));
}

static bool scratch_of(struct cuda_gpu *g, const struct cuda_op *op, size_t *bytes)
{
    *bytes = 0;
    if (op->n_row < 1)
        return fail(g, "run", "an operator without rows");
    if (op->kind == CUDA_OP_LINEAR)
        *bytes = linear_op_scratch(op);
    else if (op->kind == CUDA_OP_ATTENTION)
        *bytes = attention_scratch(op);
    else if (op->kind == CUDA_OP_MOE_PLAIN)
        *bytes = moe_plain_scratch(op);
    if (op->kind != CUDA_OP_MOE)
        return true;
    const struct packed_moe w = moe_of(op);
    const char *why = prefill_check(&w);
    if (why)
        return fail(g, "moe", why);
    struct moe_scratch s;
    *bytes = is_prefill(&w) ? prefill_bytes(&w) : place_moe(&w, NULL, &s);
    return true;
}

static bool scratch(struct cuda_gpu *g, const struct cuda_op *op, int n_op, size_t *bytes)
{
    *bytes = 0;
    for (int i = 0; i < n_op; i++) {
        size_t one;
        if (!scratch_of(g, &op[i], &one))
            return false;
        *bytes = std::max(*bytes, one);
    }
    return true;
}

static bool reserve(struct cuda_gpu *g, size_t bytes)
{
    if (!sync(g))
        return false;
    cudaFree(g->scratch);
    g->scratch = NULL;
    g->scratch_bytes = 0;
    if (bytes > 0 && !check(g, "memory", cudaMalloc(&g->scratch, bytes)))
        return false;
    g->scratch_bytes = bytes;
    return true;
}

static const char *moe_start_either(const struct cuda_op *op, const struct op_place *at)
{
    const struct packed_moe w = moe_of(op);
    if (is_prefill(&w))
        return prefill_start(&w, at->scratch, at->stream);
    struct moe_scratch s = {NULL, NULL, at->barrier + OP_MEET};
    place_moe(&w, at->scratch, &s);
    return moe_start(&w, &s, at->limits, at->stream);
}

/* By kind. */
static const char *(*const op_table[CUDA_OP_KINDS])(const struct cuda_op *op, const struct op_place *at) = {
    embed_start,  add_norm_start,   linear_op_start, qkv_start,    attention_start,
    router_start, moe_start_either, moe_plain_start, swiglu_start, argmax_start};

static bool start_one(struct cuda_gpu *g, const struct cuda_op *op)
{
    size_t bytes;
    if (op->kind < 0 || op->kind >= CUDA_OP_KINDS)
        return fail(g, "run", "no such operator");
    if (!scratch_of(g, op, &bytes))
        return false;
    if (bytes > g->scratch_bytes)
        return fail(g, "run", "more scratch memory than was reserved");
    const struct op_place at = {&g->limits, (uint8_t *)g->scratch, g->barrier, g->stream};
    const char *why = op_table[op->kind](op, &at);
    return !why || fail(g, "launch", why);
}

static bool run(struct cuda_gpu *g, const struct cuda_op *op, int n_op)
{
    for (int i = 0; i < n_op; i++)
        if (!start_one(g, &op[i]))
            return false;
    return true;
}

/* The stream's next operators as a graph that can be replayed. */
static bool record(struct cuda_gpu *g, const struct cuda_op *op, int n_op, cudaGraphExec_t *out)
{
    cudaGraph_t graph = NULL;
    if (!check(g, "graph", cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeThreadLocal)))
        return false;
    bool ok = true;
    for (int i = 0; i < n_op && ok; i++)
        ok = start_one(g, &op[i]);
    if (!check(g, "graph", cudaStreamEndCapture(g->stream, &graph)) || !ok) {
        if (graph)
            cudaGraphDestroy(graph);
        return false;
    }
    ok = check(g, "graph", cudaGraphInstantiate(out, graph, 0));
    cudaGraphDestroy(graph);
    return ok;
}

/* Milliseconds of each of `rounds` calls of once(). */
template <typename Once> static double median_ms(struct cuda_gpu *g, int rounds, Once once)
{
    cudaEvent_t a, b;
    std::vector<float> ms((size_t)rounds);
    if (!check(g, "event", cudaEventCreate(&a)))
        return -1.0;
    if (!check(g, "event", cudaEventCreate(&b))) {
        cudaEventDestroy(a);
        return -1.0;
    }
    bool ok = once() && once(); /* warm */
    for (int i = 0; i < rounds && ok; i++) {
        cudaEventRecord(a, g->stream);
        ok = once();
        cudaEventRecord(b, g->stream);
        ok = ok && check(g, "timing", cudaEventSynchronize(b)) &&
             check(g, "timing", cudaEventElapsedTime(&ms[(size_t)i], a, b));
    }
    cudaEventDestroy(a);
    cudaEventDestroy(b);
    std::sort(ms.begin(), ms.end());
    return ok ? ms[(size_t)rounds / 2] : -1.0;
}

static double time_of(struct cuda_gpu *g, const struct cuda_op *op, int n_op, int rounds)
{
    cudaGraphExec_t graph = NULL;
    size_t bytes;
    if (n_op < 1 || rounds < 1 || !scratch(g, op, n_op, &bytes) ||
        (bytes > g->scratch_bytes && !reserve(g, bytes)) || !run(g, op, n_op) ||
        !check(g, "run", cudaStreamSynchronize(g->stream)) || !record(g, op, n_op, &graph))
        return -1.0;
    double ms = median_ms(g, rounds, [&] { return check(g, "graph", cudaGraphLaunch(graph, g->stream)); });
    cudaGraphExecDestroy(graph);
    return ms < 0 ? ms : ms * 1e-3 / n_op;
}

struct cuda_graph {
    cudaGraphExec_t exec;
};

static struct cuda_graph *graph_make(struct cuda_gpu *g, const struct cuda_op *op, int n_op)
{
    struct cuda_graph *graph = new (std::nothrow) cuda_graph();
    if (!graph) {
        fail(g, "graph", "out of memory");
        return NULL;
    }
    if (record(g, op, n_op, &graph->exec))
        return graph;
    delete graph;
    return NULL;
}

static bool graph_run(struct cuda_gpu *g, struct cuda_graph *graph)
{
    return check(g, "graph", cudaGraphLaunch(graph->exec, g->stream));
}

static void graph_free(struct cuda_gpu *g, struct cuda_graph *graph)
{
    (void)g;
    if (graph)
        cudaGraphExecDestroy(graph->exec);
    delete graph;
}

static bool profile(struct cuda_gpu *g, const struct cuda_op *op, int n_op, float *seconds)
{
    std::vector<cudaEvent_t> event((size_t)n_op + 1);
    int n = 0;
    bool ok = true;
    for (; n <= n_op && ok; n++)
        ok = check(g, "event", cudaEventCreate(&event[(size_t)n]));
    ok = ok && check(g, "event", cudaEventRecord(event[0], g->stream));
    for (int i = 0; i < n_op && ok; i++)
        ok = start_one(g, &op[i]) && check(g, "event", cudaEventRecord(event[(size_t)i + 1], g->stream));
    ok = ok && sync(g);
    for (int i = 0; i < n_op && ok; i++) {
        ok = check(g, "event", cudaEventElapsedTime(&seconds[i], event[(size_t)i], event[(size_t)i + 1]));
        seconds[i] *= 1e-3f;
    }
    for (int i = 0; i < n; i++)
        cudaEventDestroy(event[(size_t)i]);
    return ok;
}

static bool randomize(struct cuda_gpu *g, void *device, size_t bytes, uint64_t seed)
{
    const char *why = randomize_start(device, bytes, seed, g->stream);
    return !why || fail(g, "randomize", why);
}

static double read_rate(struct cuda_gpu *g, const void *device, size_t bytes)
{
    double ms = median_ms(g, 15, [&] {
        const char *why = read_all_start(device, bytes, g->sink, g->limits.n_sm, g->stream);
        return !why || fail(g, "read", why);
    });
    return ms < 0 ? ms : (double)bytes / (ms * 1e-3);
}

extern "C" __attribute__((visibility("default"))) const struct cuda_plugin cuda_plugin;
const struct cuda_plugin cuda_plugin = {CUDA_PLUGIN_ABI, open_gpu,  close_gpu,  info,         error,
                                        alloc,           release,   alloc_host, release_host, write_to,
                                        write_zero,      pack_rows, upload,     read_from,    sync,
                                        scratch,         reserve,   run,        graph_make,   graph_run,
                                        graph_free,      time_of,   profile,    randomize,    read_rate};
