/* How long operators take, and how fast the device reads its memory. */
#include <algorithm>
#include <vector>

#include "kernels/cuda/plugin/peers.h"
#include "kernels/cuda/plugin/state.h"

/* Milliseconds of each of `rounds` calls of once(). */
template <typename Once> static double median_ms(struct cuda_gpu *g, int rounds, Once once)
{
    cudaEvent_t a, b;
    std::vector<float> ms((size_t)rounds);
    if (!gpu_check(g, "event", cudaEventCreate(&a)))
        return -1.0;
    if (!gpu_check(g, "event", cudaEventCreate(&b))) {
        cudaEventDestroy(a);
        return -1.0;
    }
    bool ok = once() && once(); /* warm */
    for (int i = 0; i < rounds && ok; i++) {
        cudaEventRecord(a, g->stream);
        ok = once();
        cudaEventRecord(b, g->stream);
        ok = ok && gpu_check(g, "timing", cudaEventSynchronize(b)) &&
             gpu_check(g, "timing", cudaEventElapsedTime(&ms[(size_t)i], a, b));
    }
    cudaEventDestroy(a);
    cudaEventDestroy(b);
    std::sort(ms.begin(), ms.end());
    return ok ? ms[(size_t)rounds / 2] : -1.0;
}

double gpu_time(struct cuda_gpu *g, const struct cuda_op *op, int n_op, int rounds)
{
    cudaGraphExec_t graph = NULL;
    size_t bytes;
    if (!gpu_enter(g) || n_op < 1 || rounds < 1 || !gpu_scratch(g, op, n_op, &bytes) ||
        (bytes > g->scratch_bytes && !gpu_reserve(g, bytes)) || !gpu_run(g, op, n_op) || !gpu_sync(g) ||
        !gpu_record(g, op, n_op, &graph))
        return -1.0;
    double ms =
        median_ms(g, rounds, [&] { return gpu_check(g, "graph", cudaGraphLaunch(graph, g->stream)); });
    cudaGraphExecDestroy(graph);
    return ms < 0 || !gpu_peers_are_there(g) ? -1.0 : ms * 1e-3 / n_op;
}

bool gpu_profile(struct cuda_gpu *g, const struct cuda_op *op, int n_op, float *seconds)
{
    std::vector<cudaEvent_t> event((size_t)n_op + 1);
    int n = 0;
    bool ok = gpu_enter(g);
    for (; n <= n_op && ok; n++)
        ok = gpu_check(g, "event", cudaEventCreate(&event[(size_t)n]));
    ok = ok && gpu_check(g, "event", cudaEventRecord(event[0], g->stream));
    for (int i = 0; i < n_op && ok; i++)
        ok = gpu_start_one(g, &op[i]) &&
             gpu_check(g, "event", cudaEventRecord(event[(size_t)i + 1], g->stream));
    ok = ok && gpu_sync(g);
    for (int i = 0; i < n_op && ok; i++) {
        ok = gpu_check(g, "event", cudaEventElapsedTime(&seconds[i], event[(size_t)i], event[(size_t)i + 1]));
        seconds[i] *= 1e-3f;
    }
    for (int i = 0; i < n; i++)
        cudaEventDestroy(event[(size_t)i]);
    return ok;
}

bool gpu_randomize(struct cuda_gpu *g, void *device, size_t bytes, uint64_t seed)
{
    if (!gpu_enter(g))
        return false;
    const char *why = randomize_start(device, bytes, seed, g->stream);
    return !why || gpu_fail(g, "randomize", why);
}

double gpu_read_rate(struct cuda_gpu *g, const void *device, size_t bytes)
{
    if (!gpu_enter(g))
        return -1.0;
    double ms = median_ms(g, 15, [&] {
        const char *why = read_all_start(device, bytes, g->sink, g->limits.n_sm, g->stream);
        return !why || gpu_fail(g, "read", why);
    });
    return ms < 0 ? ms : (double)bytes / (ms * 1e-3);
}

double gpu_peers_rate(struct cuda_gpu *g)
{
    const int times = GPU_IS_EMULATED ? 1 : 8;
    const struct gpu_peers *p = g->peers;
    if (!gpu_enter(g))
        return -1.0;
    if (!p || !p->connected) {
        gpu_fail(g, "peers", "they are not connected");
        return -1.0;
    }
    double ms = median_ms(
        g, 9, [&] { return gpu_check(g, "peers", peers_push_start(p, g->limits.n_sm, times, g->stream)); });
    const double bytes = (double)p->memory.size * p->memory.slot * sizeof(float4) * times;
    return ms < 0 ? ms : bytes / (ms * 1e-3);
}
