/* Peers' buffers: taken, handed out, opened. */
#include "kernels/cuda/plugin/sent.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

#include "kernels/cuda/plugin/library.h"
#include "kernels/cuda/plugin/state.h"

#define CLEAR_THREADS 256

static __global__ void clear_kernel(float4 *buffer, size_t n)
{
    const float empty = __uint_as_float(EMPTY_BITS);
    const size_t step = (size_t)gridDim.x * blockDim.x;
    gpu_wait_before();
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        gpu_store_system(buffer + i, make_float4(empty, empty, empty, empty));
}

/* Nobody's turn is that buffer, and all of it is empty. */
static __global__ void push_kernel(const __grid_constant__ peer_memory p, int times)
{
    const float empty = __uint_as_float(EMPTY_BITS);
    const size_t step = (size_t)gridDim.x * blockDim.x, n = (size_t)p.size * p.slot;
    gpu_wait_before();
    const uint32_t turn = (gpu_load_system(&p.state->begun) / PEER_TURN + 1) % PEER_BUFFERS;
    float4 *to = peer_whole(p, peer_buffer(p, (p.rank + 1) % p.size, turn));
    for (int i = 0; i < times; i++)
        for (size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x; at < n; at += step)
            gpu_store_system(to + at, make_float4(empty, empty, empty, empty));
}

cudaError_t peers_push_start(const struct gpu_peers *p, int n_sm, int times, cudaStream_t stream)
{
    return gpu_launch(push_kernel, 4 * n_sm, CLEAR_THREADS, 0, stream, p->memory, times);
}

/* Fours in all of a rank's buffers. */
static size_t buffer_fours(const struct peer_memory *p)
{
    return (size_t)PEER_BUFFERS * 2 * p->size * p->slot;
}

static bool clear(struct cuda_gpu *g, const struct peer_memory *p)
{
    return gpu_check(g, "peers",
                     gpu_launch(clear_kernel, 4 * g->limits.n_sm, CLEAR_THREADS, 0, g->stream,
                                p->buffer[p->rank], buffer_fours(p))) &&
           gpu_check(g, "peers", cudaStreamSynchronize(g->stream));
}

void gpu_peers_close(struct cuda_gpu *g)
{
    struct gpu_peers *p = g->peers;
    if (!p)
        return;
    library_close(p->library);
    for (int r = 0; r < p->memory.size; r++) {
        if (p->opened[r])
            cudaIpcCloseMemHandle(p->memory.buffer[r]);
        if (p->opened_parts[r])
            cudaIpcCloseMemHandle(p->memory.parts[r]);
    }
    cudaFree(p->memory.buffer[p->memory.rank]);
    cudaFree(p->memory.parts[p->memory.rank]);
    cudaFree(p->memory.state);
    cudaFreeHost(p->memory.word);
    delete p;
    g->peers = NULL;
}

static bool take_parts(struct cuda_gpu *g, struct peer_memory *p)
{
    void *parts = NULL;
    const size_t flag_bytes = sent_flag_fours(*p) * sizeof(float4);
    if (p->sent == 0)
        return true;
    if (!gpu_check(g, "memory for peers",
                   gpu_malloc_shared(&parts, sent_fours(*p) * sizeof(float4) + flag_bytes)))
        return false;
    p->parts[p->rank] = (float4 *)parts;
    return gpu_check(g, "memory for peers", cudaMemset(sent_flag(*p, p->rank, 0, 0), 0, flag_bytes));
}

static bool take_memory(struct cuda_gpu *g, struct peer_memory *p)
{
    void *buffer = NULL, *word = NULL;
    const uint32_t ready[SENT_KINDS] = {1 + SENT_PART, 1 + SENT_ZEROS};
    if (!gpu_check(g, "memory for peers", gpu_malloc_shared(&buffer, buffer_fours(p) * sizeof(float4))))
        return false;
    p->buffer[p->rank] = (float4 *)buffer;
    if (!gpu_check(g, "memory for peers", cudaMallocHost(&word, PEER_WORDS * sizeof(uint32_t))))
        return false;
    p->word = (uint32_t *)word;
    memset(word, 0, PEER_WORDS * sizeof(uint32_t));
    return gpu_check(g, "memory for peers", cudaMalloc(&p->state, sizeof(*p->state))) &&
           gpu_check(g, "memory for peers", cudaMemset(p->state, 0, sizeof(*p->state))) && take_parts(g, p) &&
           gpu_check(g, "memory for peers", /* this one is waited for */
                     cudaMemcpy(p->state->ready, ready, sizeof(ready), cudaMemcpyHostToDevice)) &&
           clear(g, p);
}

/* Loading a kernel may have to wait until the GPU is idle, which it is not while one waits for a peer. */
static bool load_kernels(struct cuda_gpu *g)
{
    return gpu_check(g, "peers", all_reduce_load()) && gpu_check(g, "peers", gather_load()) &&
           gpu_check(g, "peers", dispatch_load()) && gpu_check(g, "peers", combine_load()) &&
           gpu_check(g, "peers", echo_load()) && gpu_check(g, "peers", sent_load());
}

static bool hand_out(struct cuda_gpu *g, float4 *memory, uint64_t *address, uint8_t *ipc)
{
    cudaIpcMemHandle_t handle;
    static_assert(sizeof(handle) <= sizeof(((struct cuda_peer_handle *)0)->ipc), "a handle fits");
    *address = (uint64_t)(uintptr_t)memory;
    if (!gpu_check(g, "handing out memory", cudaIpcGetMemHandle(&handle, memory)))
        return false;
    memcpy(ipc, &handle, sizeof(handle));
    return true;
}

static bool describe(struct cuda_gpu *g, const struct cuda_peer_options *o, struct cuda_peer_handle *own)
{
    const struct peer_memory *p = &g->peers->memory;
    *own = cuda_peer_handle();
    own->process = (uint64_t)getpid();
    own->device = g->index;
    own->size = o->size;
    own->bytes = o->bytes;
    own->sent_bytes = o->sent_bytes;
    return hand_out(g, p->buffer[o->rank], &own->address, own->ipc) &&
           (!p->parts[o->rank] || hand_out(g, p->parts[o->rank], &own->sent_address, own->sent_ipc));
}

bool gpu_peers_open(struct cuda_gpu *g, const struct cuda_peer_options *o, struct cuda_peer_handle *own)
{
    if (!gpu_enter(g))
        return false;
    if (g->peers)
        return gpu_fail(g, "peers", "they have been opened before");
    if (o->size < 1 || o->size > CUDA_PEERS_MAX || o->rank < 0 || o->rank >= o->size || o->n_sharing < 1)
        return gpu_fail(g, "peers", "1 to 8 ranks can compute together");
    const size_t slot = o->bytes / sizeof(float4) / (size_t)o->size;
    if (slot == 0 || slot > UINT32_MAX / (2 * CUDA_PEERS_MAX) ||
        o->sent_bytes / sizeof(float4) > UINT32_MAX / (2 * CUDA_PEERS_MAX))
        return gpu_fail(g, "peers", "buffers too small or too large");
    struct gpu_peers *p = new (std::nothrow) gpu_peers();
    if (!p)
        return gpu_fail(g, "peers", "out of memory");
    g->peers = p;
    p->two_shot_bytes = o->bytes / (size_t)o->size;
    p->memory.rank = o->rank;
    p->memory.size = o->size;
    p->memory.is_shared = o->n_sharing > 1;
    p->memory.slot = (uint32_t)slot;
    p->memory.sent = (uint32_t)(o->sent_bytes / sizeof(float4));
    p->memory.timeout_ns = (uint64_t)(o->timeout_ms > 0 ? o->timeout_ms : 10000) * 1000000u;
    if (!take_memory(g, &p->memory) || !load_kernels(g) || !describe(g, o, own)) {
        gpu_peers_close(g);
        return false;
    }
    /* Launches whose blocks wait for each other, or for other ranks, fit side by side (lanes.cu). */
    g->limits.n_sm = std::max(1, g->limits.n_sm / o->n_sharing);
    g->n_side = std::max(1, std::min(g->n_side, g->limits.n_sm / 2));
    return true;
}

/* The same process: its addresses are good here, if the GPUs can reach each other. */
static bool reach(struct cuda_gpu *g, const struct cuda_peer_handle *peer)
{
    if (peer->device == g->index)
        return true;
    const cudaError_t e = cudaDeviceEnablePeerAccess(peer->device, 0);
    if (e != cudaErrorPeerAccessAlreadyEnabled)
        return gpu_check(g, "reaching a peer's memory", e);
    cudaGetLastError(); /* which is no failure */
    return true;
}

static bool open_memory(struct cuda_gpu *g, const uint8_t *ipc, float4 **memory, bool *opened)
{
    void *at = NULL;
    cudaIpcMemHandle_t handle;
    memcpy(&handle, ipc, sizeof(handle));
    if (!gpu_check(g, "opening a peer's memory",
                   cudaIpcOpenMemHandle(&at, handle, cudaIpcMemLazyEnablePeerAccess)))
        return false;
    *memory = (float4 *)at;
    *opened = true;
    return true;
}

/* Where this GPU finds what the handle names. */
static bool open_handle(struct cuda_gpu *g, struct gpu_peers *p, int rank, const struct cuda_peer_handle *h)
{
    struct peer_memory *m = &p->memory;
    if (h->process == (uint64_t)getpid()) {
        m->buffer[rank] = (float4 *)(uintptr_t)h->address;
        m->parts[rank] = (float4 *)(uintptr_t)h->sent_address;
        return reach(g, h);
    }
    return open_memory(g, h->ipc, &m->buffer[rank], &p->opened[rank]) &&
           (m->sent == 0 || open_memory(g, h->sent_ipc, &m->parts[rank], &p->opened_parts[rank]));
}

bool gpu_peers_connect(struct cuda_gpu *g, const struct cuda_peer_handle *all)
{
    struct gpu_peers *p = g->peers;
    if (!gpu_enter(g))
        return false;
    if (!p || p->connected)
        return gpu_fail(g, "peers", p ? "they have been connected before" : "they have not been opened");
    for (int r = 0; r < p->memory.size; r++) {
        if (all[r].size != p->memory.size ||
            all[r].bytes / sizeof(float4) / (size_t)all[r].size != p->memory.slot ||
            all[r].sent_bytes / sizeof(float4) != p->memory.sent)
            return gpu_fail(g, "peers", "ranks disagree about their number or their buffers");
        if (r != p->memory.rank && !open_handle(g, p, r, &all[r]))
            return false;
    }
    p->connected = true;
    return true;
}

void gpu_peers_stop(struct cuda_gpu *g)
{
    if (g->peers)
        __atomic_store_n(&g->peers->memory.word[PEER_STOP], 1u, __ATOMIC_RELEASE);
}

void gpu_peers_set_two_shot(struct cuda_gpu *g, size_t bytes)
{
    if (g->peers)
        g->peers->two_shot_bytes = bytes;
}

bool gpu_peers_drop_sent(struct cuda_gpu *g, bool others)
{
    struct gpu_peers *p = g->peers;
    if (!gpu_enter(g) || !gpu_sync(g))
        return false;
    if (!p || p->memory.sent == 0)
        return true;
    for (int r = 0; r < p->memory.size; r++) {
        if (others == (r == p->memory.rank))
            continue;
        if (others && p->opened_parts[r] &&
            !gpu_check(g, "closing a peer's memory", cudaIpcCloseMemHandle(p->memory.parts[r])))
            return false;
        if (!others && !gpu_check(g, "memory for peers", cudaFree(p->memory.parts[r])))
            return false;
        p->opened_parts[r] = false;
        p->memory.parts[r] = NULL;
    }
    if (!others)
        p->memory.sent = 0;
    return true;
}

bool gpu_peers_are_there(struct cuda_gpu *g)
{
    char why[96];
    if (!g->peers)
        return true;
    const uint32_t lost = __atomic_load_n(&g->peers->memory.word[PEER_LOST], __ATOMIC_ACQUIRE);
    if (!lost)
        return true;
    snprintf(why, sizeof(why), "rank %d's part has not come in time", (int)lost - 1);
    return gpu_fail(g, "peers", why);
}

const char *peers_check(const struct op_place *at)
{
    return at->peers && at->peers->connected ? nullptr
                                             : "an operator of several GPUs, which are not connected";
}

int peers_blocks(const struct op_place *at)
{
    return at->limits->n_sm;
}

/* ---- NCCL ------------------------------------------------------------------------------------------- */

bool gpu_library_id(struct cuda_gpu *g, uint8_t id[CUDA_LIBRARY_ID_BYTES])
{
    const char *why = library_make_id(id);
    return !why || gpu_fail(g, "NCCL", why);
}

bool gpu_library_open(struct cuda_gpu *g, const uint8_t id[CUDA_LIBRARY_ID_BYTES])
{
    struct gpu_peers *p = g->peers;
    if (!gpu_enter(g))
        return false;
    if (!p || p->library)
        return gpu_fail(g, "NCCL", p ? "it has been opened before" : "there are no peers");
    const char *why = library_join(&p->library, id, p->memory.rank, p->memory.size);
    return !why || gpu_fail(g, "NCCL", why);
}
