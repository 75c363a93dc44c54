/* The plug-in's table: a device, its memory, and works in order on one stream. */
#include <cstdio>
#include <cstring>
#include <new>

#include "kernels/cuda/plugin/cublaslt.h"
#include "kernels/cuda/plugin/state.h"

/* Of the last call of this thread that failed: several copy weights at a time. */
static thread_local char last_error[256];

bool gpu_fail(struct cuda_gpu *, const char *what, const char *why)
{
    snprintf(last_error, sizeof(last_error), "%s: %s", what, why);
    return false;
}

bool gpu_check(struct cuda_gpu *g, const char *what, cudaError_t e)
{
    return e == cudaSuccess || gpu_fail(g, what, cudaGetErrorString(e));
}

/* GPUs on which some structure is alone: at most one each. */
static std::mutex alone_lock;
static uint64_t alone_on;

/* Other processes take turns with this one, unless there is a server that merges their work. */
static void claim(struct cuda_gpu *g)
{
    int merged = 0;
    if (g->index < 64 && cudaDeviceGetAttribute(&merged, cudaDevAttrMpsEnabled, g->index) == cudaSuccess &&
        !merged) {
        std::lock_guard<std::mutex> hold(alone_lock);
        g->alone = !(alone_on >> g->index & 1);
        alone_on |= 1ull << g->index;
    }
}

static void release_claim(struct cuda_gpu *g)
{
    std::lock_guard<std::mutex> hold(alone_lock);
    if (g->alone)
        alone_on &= ~(1ull << g->index);
}

bool gpu_enter(struct cuda_gpu *g)
{
    return gpu_check(g, "device", cudaSetDevice(g->index));
}

static void close_gpu(struct cuda_gpu *g)
{
    cudaSetDevice(g->index);
    gpu_peers_close(g);
    lt_close(g->lt);
    if (g->stream)
        cudaStreamDestroy(g->stream);
    if (g->aside)
        cudaStreamDestroy(g->aside);
    gpu_lanes_close(g);
    cudaFree(g->barrier);
    cudaFree(g->scratch);
    cudaFree(g->staging);
    cudaFree(g->sink);
    release_claim(g);
    delete g;
}

static bool prepare(struct cuda_gpu *g)
{
    int cooperative = 0, shared = 0;
    if (!gpu_enter(g) || !gpu_check(g, "device", cudaGetDeviceProperties(&g->properties, g->index)))
        return false;
    if (g->properties.major < 9)
        return gpu_fail(g, g->properties.name, "compute capability below 9.0, which these kernels need");
    cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, g->index);
    if (!cooperative)
        return gpu_fail(g, g->properties.name, "no cooperative launches");
    if (!gpu_check(g, "device",
                   cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, g->index)))
        return false;
    g->limits.n_sm = g->properties.multiProcessorCount;
    g->limits.major = g->properties.major;
    g->limits.shared_bytes = (size_t)shared;
    claim(g);
    return gpu_check(g, "stream", cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking)) &&
           gpu_check(g, "stream", cudaStreamCreateWithFlags(&g->aside, cudaStreamNonBlocking)) &&
           gpu_lanes_open(g) &&
           gpu_check(g, "memory", cudaMalloc(&g->barrier, OP_ARRIVED_WORDS * sizeof(uint32_t))) &&
           gpu_check(g, "memory", cudaMemset(g->barrier, 0, OP_ARRIVED_WORDS * sizeof(uint32_t))) &&
           gpu_check(g, "memory", cudaMalloc(&g->sink, 256));
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
    cudaSetDevice(g->index);
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
    return gpu_enter(g) && gpu_check(g, "memory", cudaMalloc(&p, bytes)) ? p : NULL;
}

static void release(struct cuda_gpu *g, void *device)
{
    cudaSetDevice(g->index);
    cudaFree(device);
}

static bool write_to(struct cuda_gpu *g, void *device, const void *host, size_t bytes)
{
    return gpu_enter(g) &&
           gpu_check(g, "copy", cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, g->stream)) &&
           gpu_check(g, "copy", cudaStreamSynchronize(g->stream));
}

static bool read_from(struct cuda_gpu *g, void *host, const void *device, size_t bytes)
{
    return gpu_enter(g) &&
           gpu_check(g, "copy", cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, g->stream)) &&
           gpu_sync(g);
}

/* On a stream of its own, so that a step that is being recorded does not record it. */
static bool peek_at(struct cuda_gpu *g, void *host, const void *device, size_t bytes)
{
    return gpu_enter(g) &&
           gpu_check(g, "copy", cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, g->aside)) &&
           gpu_check(g, "copy", cudaStreamSynchronize(g->aside));
}

static bool write_zero(struct cuda_gpu *g, void *device, size_t bytes)
{
    return gpu_enter(g) && gpu_check(g, "memory", cudaMemsetAsync(device, 0, bytes, g->stream)) &&
           gpu_check(g, "memory", cudaStreamSynchronize(g->stream));
}

static void *alloc_host(struct cuda_gpu *g, size_t bytes)
{
    void *p = NULL;
    return gpu_enter(g) && gpu_check(g, "host memory", cudaMallocHost(&p, bytes)) ? p : NULL;
}

static void release_host(struct cuda_gpu *g, void *host)
{
    (void)g;
    cudaFreeHost(host);
}

static bool upload(struct cuda_gpu *g, void *device, const void *host, size_t bytes)
{
    return gpu_enter(g) &&
           gpu_check(g, "copy", cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, g->stream));
}

bool gpu_sync(struct cuda_gpu *g)
{
    return gpu_enter(g) && gpu_check(g, "run", cudaStreamSynchronize(g->stream)) && gpu_peers_are_there(g);
}

extern "C" __attribute__((visibility("default"))) const struct cuda_plugin cuda_plugin;
/* clang-format off */
const struct cuda_plugin cuda_plugin = {
    CUDA_PLUGIN_ABI, open_gpu, close_gpu, info, error,
    alloc, release, alloc_host, release_host, write_to, write_zero, gpu_pack_rows, upload, read_from, peek_at, gpu_sync,
    gpu_scratch, gpu_reserve, gpu_run, gpu_graph_make, gpu_graph_run, gpu_graph_free,
    gpu_time, gpu_profile, gpu_randomize, gpu_read_rate,
    gpu_peers_open, gpu_peers_connect, gpu_peers_stop, gpu_peers_set_two_shot, gpu_peers_drop_sent, gpu_peers_rate, gpu_peers_round_trip, gpu_library_id, gpu_library_open,
    gpu_use_cublaslt, gpu_peers_reserve, gpu_trace,
};
/* clang-format on */
