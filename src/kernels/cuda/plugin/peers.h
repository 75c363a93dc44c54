/* GPUs that compute together: the memory through which their kernels speak.
 *
 * Every rank has three buffers, used in turn, one for each launch; the others write straight into the one
 * that is up, and its owner spins on the numbers themselves: what has not been written yet is EMPTY_BITS, a
 * negative zero, which nobody sends. A launch empties what it has taken, and what several of its threads have
 * looked at the launch behind it empties, before the buffer is used again two launches later. That needs no
 * further agreement: a launch ends only when every rank has sent its part of it, so a rank that sends parts
 * of launch k + 2 knows that everybody has begun k + 1 and is done with k, and k emptied what k + 2 writes
 * to. Whose turn it is lies in the device's memory, so that a recorded graph can be replayed.
 *
 * A rank that has missed another has no sums and would run ahead of the rest: it sends no sum that it does
 * not have, and nothing at all in later launches. So whoever waits for it fails too, rather than taking wrong
 * numbers for a sum. */
#pragma once

#include "kernels/cuda/plugin/operators.h"

#define EMPTY_BITS   0x80000000u
#define PEER_BUFFERS 3
#define PEER_TURN    65536u /* more than a launch has blocks */

/* What a rank sends by copy engines (sent.h): a part, or word that all of it is zeros. */
enum sent_kind { SENT_PART, SENT_ZEROS, SENT_KINDS };

/* One rank's, in its device's memory. All zero at first, but `ready`. */
struct peer_state {
    uint32_t begun;                   /* PEER_TURN times the buffer of the launch that begins  */
                                      /* next, or has; and how many of its blocks know that    */
    uint32_t failed;                  /* a peer has not come: nobody waits for anything again  */
    uint32_t used_slot[PEER_BUFFERS], /* fours that the last launch with this buffer may have  */
        used_whole[PEER_BUFFERS];     /* received and has not emptied                          */
    uint32_t ready[SENT_KINDS];       /* flags that copy engines write: 1 + the kind, or zeros */
                                      /* once a peer has not come                              */
    uint32_t n_added;                 /* blocks that have ended, of one that adds parts up     */
};

enum peer_word { PEER_STOP, PEER_LOST, PEER_WORDS }; /* LOST: 1 + the rank that has not come */

/* What a kernel needs. A buffer is [size][slot] from each rank, then [size * slot] for all together; slot is
 * in fours. */
struct peer_memory {
    float4 *buffer[CUDA_PEERS_MAX]; /* every rank's */
    float4 *parts[CUDA_PEERS_MAX];  /* of what copy engines send (sent.h); NULL: nothing is sent so */
    struct peer_state *state;
    uint32_t *word; /* (PEER_WORDS) the host's memory */
    int rank, size;
    bool is_shared; /* this GPU has kernels of other ranks, too */
    uint32_t slot;
    uint32_t sent; /* of what copy engines send, a rank's part in a slot (sent.h) */
    uint64_t timeout_ns;
};

struct nccl_library;

struct gpu_peers {
    struct peer_memory memory;
    bool connected;
    size_t two_shot_bytes;
    bool opened[CUDA_PEERS_MAX], opened_parts[CUDA_PEERS_MAX]; /* another process's, to be closed */
    struct nccl_library *library;                              /* library.h, or NULL */
};

#ifdef __CUDACC__
#define PEER_LOOKS 8192 /* at a number, between two at the clock and at the host's memory */
#else
#define PEER_LOOKS 128
#endif

static __device__ __forceinline__ float4 *peer_buffer(const peer_memory &p, int rank, uint32_t turn)
{
    return p.buffer[rank] + (size_t)turn * 2 * p.size * p.slot;
}
/* What rank `from` has sent. */
static __device__ __forceinline__ float4 *peer_slot(const peer_memory &p, float4 *buffer, int from)
{
    return buffer + (size_t)from * p.slot;
}
static __device__ __forceinline__ float4 *peer_whole(const peer_memory &p, float4 *buffer)
{
    return buffer + (size_t)p.size * p.slot;
}

static __device__ __forceinline__ bool peer_is_empty(float4 v)
{
    /* as bits: a comparison of floats may take tiny ones for zero */
    return __float_as_uint(v.x) == EMPTY_BITS || __float_as_uint(v.y) == EMPTY_BITS ||
           __float_as_uint(v.z) == EMPTY_BITS || __float_as_uint(v.w) == EMPTY_BITS;
}
static __device__ __forceinline__ float peer_sendable(float x)
{
    return __float_as_uint(x) == EMPTY_BITS ? 0.0f : x;
}
static __device__ __forceinline__ float4 peer_sendable(float4 v)
{
    return make_float4(peer_sendable(v.x), peer_sendable(v.y), peer_sendable(v.z), peer_sendable(v.w));
}

/* Whether a wait for a peer that began at `begin` is over without it: then the step is lost, nobody waits any
 * more, and nothing is sent. */
static __device__ __forceinline__ bool peer_is_lost(const peer_memory &p, int from, uint64_t begin)
{
    const bool stop = gpu_load_system(&p.word[PEER_STOP]);
    if (!stop && gpu_now_ns() - begin < p.timeout_ns)
        return false;
    if (!gpu_load_system(&p.word[PEER_LOST]))
        gpu_store_system(&p.word[PEER_LOST], 1u + (uint32_t)from);
    gpu_store_system(&p.state->failed, 1u);
    for (int i = 0; i < SENT_KINDS; i++)
        gpu_store_system(&p.state->ready[i], 0u);
    return true;
}

/* Until somebody has come, or nobody will: then it is still empty, and the step is lost. `from` is who is
 * waited for. */
static __device__ float4 peer_await(const float4 *at, const peer_memory &p, int from)
{
    uint64_t begin = 0; /* not at once: reading the clock takes longer than most waits */
    for (;;) {
        for (int i = 0; i < PEER_LOOKS; i++) {
            const float4 v = gpu_load_system(at);
            if (!peer_is_empty(v) || (i % 32 == 31 && gpu_load_system(&p.state->failed)))
                return v;
            gpu_wait_peer();
        }
        begin = begin ? begin : gpu_now_ns();
        peer_is_lost(p, from, begin);
    }
}
static __device__ __forceinline__ float4 peer_take(const float4 *at, const peer_memory &p, int from)
{
    const float4 v = gpu_load_system(at);
    return peer_is_empty(v) ? peer_await(at, p, from) : v;
}

/* A place whose number has been taken and is not looked at again in this launch is emptied at once. */
static __device__ __forceinline__ void peer_empty(float4 *at)
{
    const float empty = __uint_as_float(EMPTY_BITS);
    gpu_store_system(at, make_float4(empty, empty, empty, empty));
}

/* Empty what the launch before has received and not emptied itself. `n` threads of all blocks, of which this
 * is number `first`. */
static __device__ __forceinline__ void peer_clear(const peer_memory &p, uint32_t turn, uint32_t first,
                                                  uint32_t n)
{
    const uint32_t before = (turn + PEER_BUFFERS - 1) % PEER_BUFFERS,
                   slot = gpu_load_system(&p.state->used_slot[before]),
                   whole = gpu_load_system(&p.state->used_whole[before]);
    float4 *buffer = peer_buffer(p, p.rank, before);
#pragma unroll 1 /* short code is what few rows need */
    for (int r = 0; r < p.size; r++)
#pragma unroll 1
        for (uint32_t i = first; i < slot; i += n)
            peer_empty(peer_slot(p, buffer, r) + i);
#pragma unroll 1
    for (uint32_t i = first; i < whole; i += n)
        peer_empty(peer_whole(p, buffer) + i);
}

/* What a block knows of its launch: the buffer that is up; and, of one thread, how many blocks have begun
 * before. */
struct peer_now {
    uint32_t turn, n_before;
};

/* All threads, before gpu_wait_before(): a launch passes the turn on soon after it has begun, so it is mostly
 * known when the next one begins. PEER_BUFFERS: blocks have begun, which may still be those of the launch
 * before. */
static __device__ __forceinline__ peer_now peer_look(const peer_memory &p)
{
    SHARED(uint32_t, early);
    peer_now now = {0, 0};
    if (threadIdx.x == 0) {
        const uint32_t begun = gpu_load_system(&p.state->begun);
        early = begun % PEER_TURN == 0 ? begun / PEER_TURN : PEER_BUFFERS;
    }
    __syncthreads();
    now.turn = early;
    return now;
}

/* All threads, after it, each warp where it comes to it: those that have begun are of this launch. */
static __device__ __forceinline__ void peer_settle(const peer_memory &p, peer_now *now)
{
    SHARED(uint32_t, late);
    if (now->turn < PEER_BUFFERS)
        return;
    if (threadIdx.x == 0)
        late = gpu_load_system(&p.state->begun) / PEER_TURN;
    gpu_sync_anywhere();
    now->turn = late;
}

/* One thread of each block, after that: this block knows. */
static __device__ __forceinline__ void peer_begin(const peer_memory &p, peer_now *now)
{
    now->n_before = atomicAdd(&p.state->begun, 1u) % PEER_TURN;
}

/* After gpu_wait_before(): whether a peer is lost, so that nothing is to be sent any more. */
static __device__ __forceinline__ bool peer_has_failed(const peer_memory &p)
{
    return gpu_load_system(&p.state->failed) != 0;
}

/* The thread that called peer_begin, of each block, once and before it waits for anybody: lets the next
 * launch be scheduled, which finds in memory that this block has begun, as the answer is here; and where it
 * was the last passes the turn on, for all know it. Not where other ranks use the same GPU: what is scheduled
 * early keeps SMs until this launch has ended, and it may wait for a rank that needs them first. used_*:
 * fours that this launch receives, where it does not empty them itself. */
static __device__ __forceinline__ void peer_pass(const peer_memory &p, const peer_now &now,
                                                 uint32_t used_slot, uint32_t used_whole)
{
    const bool last = now.n_before + 1 == gridDim.x;
    if (last) {
        p.state->used_slot[now.turn] = used_slot;
        p.state->used_whole[now.turn] = used_whole;
        gpu_store_system(&p.state->begun, (now.turn + 1) % PEER_BUFFERS * PEER_TURN);
    }
    if (!p.is_shared && now.n_before < PEER_TURN) /* the comparison makes this thread wait for the add */
        gpu_let_next();
}

/* ---- the host's part -------------------------------------------------------------------------------- */

/* Before a launch: NULL, or why operators of peers cannot run. */
const char *peers_check(const struct op_place *at);
/* Blocks that run side by side for sure. */
int peers_blocks(const struct op_place *at);
/* Loads all kernels that may wait for a peer. */
cudaError_t all_reduce_load(void);
cudaError_t gather_load(void);
cudaError_t dispatch_load(void);
cudaError_t combine_load(void);
cudaError_t echo_load(void);
/* Writes the next rank's whole area of a buffer that is empty, to what it is already, `times` over. */
cudaError_t peers_push_start(const struct gpu_peers *p, int n_sm, int times, cudaStream_t stream);
