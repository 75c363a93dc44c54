/* How long a word takes from one GPU to another and its answer back: what no exchange can be shorter than. */
#include <algorithm>
#include <vector>

#include "kernels/cuda/plugin/peers.h"
#include "kernels/cuda/plugin/state.h"

#define STEPS  (GPU_IS_EMULATED ? 4u : 1000u) /* of a launch */
#define ROUNDS 5

/* Every rank sends the next one the numbers after `before`, each when it has got the same number of the one
 * in front of it. Words only grow, also from launch to launch, so that none is missed; the last launch leaves
 * the buffer, which is nobody's turn, empty. */
static __global__ void echo_kernel(const __grid_constant__ peer_memory p, uint32_t before, uint32_t steps,
                                   bool last)
{
    gpu_wait_before();
    const uint32_t turn = (gpu_load_system(&p.state->begun) / PEER_TURN + 1) % PEER_BUFFERS;
    const int from = (p.rank + p.size - 1) % p.size;
    uint32_t *to = (uint32_t *)peer_whole(p, peer_buffer(p, (p.rank + 1) % p.size, turn)),
             *own = (uint32_t *)peer_whole(p, peer_buffer(p, p.rank, turn));
    const uint64_t begin = gpu_now_ns();
    if (gpu_load_system(&p.state->failed))
        return;
    for (uint32_t i = before + 1; i <= before + steps; i++) {
        gpu_store_system(to, i);
        for (uint32_t looks = 1, v = gpu_load_system(own); v == EMPTY_BITS || v < i;
             v = gpu_load_system(own), looks++) {
            gpu_wait_peer();
            if (looks % PEER_LOOKS || !peer_is_lost(p, from, begin))
                continue;
            return;
        }
    }
    if (last)
        gpu_store_system(own, EMPTY_BITS);
}

static bool launch_timed(struct cuda_gpu *g, int round, cudaEvent_t begin, cudaEvent_t end, float *ms)
{
    const uint32_t steps = STEPS;
    return gpu_check(g, "event", cudaEventRecord(begin, g->stream)) &&
           gpu_check(g, "peers",
                     gpu_launch_resident(echo_kernel, 1, 1, 0, g->stream, g->peers->memory,
                                         (uint32_t)round * steps, steps, round + 1 == ROUNDS)) &&
           gpu_check(g, "event", cudaEventRecord(end, g->stream)) && gpu_sync(g) &&
           gpu_check(g, "timing", cudaEventElapsedTime(ms, begin, end));
}

double gpu_peers_round_trip(struct cuda_gpu *g)
{
    std::vector<float> ms(ROUNDS);
    cudaEvent_t begin, end;
    if (!gpu_enter(g))
        return -1.0;
    if (!g->peers || !g->peers->connected) {
        gpu_fail(g, "peers", "they are not connected");
        return -1.0;
    }
    if (!gpu_check(g, "event", cudaEventCreate(&begin)))
        return -1.0;
    bool ok = gpu_check(g, "event", cudaEventCreate(&end));
    for (int i = 0; i < ROUNDS && ok; i++)
        ok = launch_timed(g, i, begin, end, &ms[(size_t)i]);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    std::sort(ms.begin(), ms.end());
    return ok ? 2.0 * ms[ROUNDS / 2] * 1e-3 / STEPS : -1.0;
}

cudaError_t echo_load(void)
{
    return gpu_load_kernel(echo_kernel);
}
