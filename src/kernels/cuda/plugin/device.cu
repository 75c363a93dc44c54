/* The plug-in's table: a device, its memory, and works in order on one stream. */
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

#include "internal.h"
#include "kernels/cuda/plugin/prefill.cuh"

struct cuda_gpu {
    int index;
    cudaDeviceProp properties;
    struct gpu_limits limits;
    cudaStream_t stream;
    struct moe_scratch scratch; /* of scratch_slots slots of scratch_width */
    int hidden, inner;          /* that scratch has room for */
    void *prefill;              /* scratch of many rows */
    size_t prefill_bytes;
    uint32_t *sink;
    char error[256];
};

static bool fail(struct cuda_gpu *g, const char *what, const char *why)
{
    snprintf(g->error, sizeof(g->error), "%s: %s", what, why);
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
    cudaFree(g->scratch.h);
    cudaFree(g->scratch.y);
    cudaFree(g->scratch.barrier);
    cudaFree(g->prefill);
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
    g->limits.shared_bytes = (size_t)shared;
    return check(g, "stream", cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking)) &&
           check(g, "memory", cudaMalloc(&g->scratch.barrier, 256)) &&
           check(g, "memory", cudaMemset(g->scratch.barrier, 0, 256)) &&
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
    snprintf(why, why_bytes, "%s", g->error);
    close_gpu(g);
    return NULL;
}

static void info(const struct cuda_gpu *g, struct cuda_gpu_info *out)
{
    memset(out, 0, sizeof(*out));
    snprintf(out->name, sizeof(out->name), "%s", g->properties.name);
    out->major = g->properties.major;
    out->minor = g->properties.minor;
    out->n_sm = g->properties.multiProcessorCount;
    out->memory_bytes = g->properties.totalGlobalMem;
    out->l2_bytes = (size_t)g->properties.l2CacheSize;
}

static const char *error(const struct cuda_gpu *g)
{
    return g->error;
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

/* More than one call of the kernel for few rows takes. */
static bool is_prefill(const struct cuda_moe *w)
{
    return w->n_row > CUDA_ROWS_MAX || (size_t)w->n_row * w->n_used > CUDA_SLOTS_MAX;
}

static bool reserve_prefill(struct cuda_gpu *g, const struct cuda_moe *w)
{
    const char *why = prefill_check(w);
    if (why)
        return fail(g, "moe", why);
    const size_t bytes = prefill_bytes(w);
    if (bytes <= g->prefill_bytes)
        return true;
    cudaStreamSynchronize(g->stream);
    cudaFree(g->prefill);
    g->prefill = NULL;
    g->prefill_bytes = 0;
    if (!check(g, "memory", cudaMalloc(&g->prefill, bytes)))
        return false;
    g->prefill_bytes = bytes;
    return true;
}

/* Room between the phases for any number of rows; never while a graph is recorded. */
static bool reserve(struct cuda_gpu *g, const struct cuda_moe *w)
{
    if (is_prefill(w))
        return reserve_prefill(g, w);
    if (w->hidden <= g->hidden && w->inner <= g->inner)
        return true;
    if (w->hidden < 1 || w->inner < 1 || w->hidden > 1 << 16 || w->inner > 1 << 16)
        return fail(g, "moe", "hidden or inner size out of range");
    cudaStreamSynchronize(g->stream);
    cudaFree(g->scratch.h);
    cudaFree(g->scratch.y);
    g->scratch.h = NULL;
    g->scratch.y = NULL;
    const int hidden = std::max(g->hidden, w->hidden), inner = std::max(g->inner, w->inner);
    g->hidden = g->inner = 0;
    if (!check(g, "memory", cudaMalloc(&g->scratch.h, (size_t)CUDA_SLOTS_MAX * inner * sizeof(uint16_t))) ||
        !check(g, "memory", cudaMalloc(&g->scratch.y, (size_t)CUDA_SLOTS_MAX * hidden * sizeof(float))))
        return false;
    g->hidden = hidden;
    g->inner = inner;
    return true;
}

static bool start_one(struct cuda_gpu *g, const struct cuda_work *w)
{
    const char *why = w->moe && is_prefill(w->moe) ? prefill_start(w->moe, g->prefill, g->stream)
                      : w->moe                     ? moe_start(w->moe, &g->scratch, &g->limits, g->stream)
                                                   : linear_start(w->linear, &g->limits, g->stream);
    return !why || fail(g, "launch", why);
}

static bool start(struct cuda_gpu *g, const struct cuda_work *work, int n_work)
{
    for (int i = 0; i < n_work; i++)
        if (work[i].moe && !reserve(g, work[i].moe))
            return false;
    for (int i = 0; i < n_work; i++)
        if (!start_one(g, &work[i]))
            return false;
    return true;
}

/* The stream's next works as a graph that can be replayed. */
static bool record(struct cuda_gpu *g, const struct cuda_work *work, int n_work, cudaGraphExec_t *out)
{
    cudaGraph_t graph = NULL;
    if (!check(g, "graph", cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeThreadLocal)))
        return false;
    bool ok = true;
    for (int i = 0; i < n_work && ok; i++)
        ok = start_one(g, &work[i]);
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

static double time_of(struct cuda_gpu *g, const struct cuda_work *work, int n_work, int rounds)
{
    cudaGraphExec_t graph = NULL;
    if (n_work < 1 || rounds < 1 || !start(g, work, n_work) ||
        !check(g, "run", cudaStreamSynchronize(g->stream)) || !record(g, work, n_work, &graph))
        return -1.0;
    double ms = median_ms(g, rounds, [&] { return check(g, "graph", cudaGraphLaunch(graph, g->stream)); });
    cudaGraphExecDestroy(graph);
    return ms < 0 ? ms : ms * 1e-3 / n_work;
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
const struct cuda_plugin cuda_plugin = {CUDA_PLUGIN_ABI, open_gpu,  close_gpu, info,      error,
                                        alloc,           release,   write_to,  read_from, start,
                                        time_of,         randomize, read_rate};
