/* Numbers from block to block of one launch, whose blocks all run at once.
 *
 * They travel without fence or counter: words are stored complemented, and no number has all bits set, so
 * that a zero is "not there yet" and readers spin on the numbers themselves. Two buffers take turns, and each
 * launch clears what the one before it has left in the other. Whose turn it is lies in the GPU's memory:
 * graphs can be replayed. Block 0 passes the turn on when it has something of every block, for each had
 * looked at the turn before. */
#pragma once

#include "kernels/cuda/plugin/unit.cuh"

struct exchange {
    uint32_t *turn;  /* [0] whose, [1] and [2] the words that each buffer has */
    uint32_t *words; /* [2][size] */
    int size;
};

/* In a launch: this one's words, zeros where nothing has come yet, and those of the one before. */
struct exchange_now {
    uint32_t *words, *other;
    uint32_t turn, n_other;
};

static __device__ __forceinline__ exchange_now exchange_look(const exchange &x)
{
    exchange_now now;
    const uint32_t n[2] = {gpu_load_grid(x.turn + 1), gpu_load_grid(x.turn + 2)}; /* none waits for another */
    now.turn = gpu_load_grid(x.turn);
    now.n_other = now.turn ? n[0] : n[1];
    now.words = x.words + now.turn * x.size;
    now.other = x.words + (1 - now.turn) * x.size;
    return now;
}

/* All threads of all blocks. */
static __device__ __forceinline__ void exchange_clear(const exchange_now &now)
{
#pragma unroll 1
    for (uint32_t i = blockIdx.x * N_THREAD + threadIdx.x; i < now.n_other; i += gridDim.x * N_THREAD)
        now.other[i] = 0;
}

/* One thread. n: words that this launch writes, all of which the next but one will clear. */
static __device__ __forceinline__ void exchange_pass(const exchange &x, const exchange_now &now, int n)
{
    gpu_store_grid(x.turn + 1 + now.turn, (uint32_t)n);
    gpu_store_grid(x.turn, 1 - now.turn);
}

/* A NaN for a NaN. */
static __device__ __forceinline__ void put_float(uint32_t *to, float v)
{
    const uint32_t bits = __float_as_uint(v);
    gpu_store_grid(to, bits == ~0u ? 0x80000000u : ~bits);
}

/* What a warp's lanes have looked at, v[j] of each from[j], until it is there: all that is missing is asked
 * for at once. Words that are looked at one after the other would each cost a way to the L2 and back. */
template <int N>
static __device__ __forceinline__ void wait_words(uint32_t (&v)[N], const uint32_t *const (&from)[N])
{
    for (;;) {
        bool missing = false;
#pragma unroll
        for (int j = 0; j < N; j++)
            missing |= v[j] == 0;
        if (!__any_sync(ALL_LANES, missing))
            return;
        gpu_wait_block();
#pragma unroll
        for (int j = 0; j < N; j++)
            if (v[j] == 0)
                v[j] = gpu_load_grid(from[j]);
    }
}

/* A number as put_float has put it, of a word that is there. */
static __device__ __forceinline__ float put_as_float(uint32_t word)
{
    return __uint_as_float(~word);
}

static __device__ __forceinline__ bool is_there(uint4 v)
{
    return v.x != 0 && v.y != 0 && v.z != 0 && v.w != 0;
}

#define ASKED 2 /* vectors that a thread asks for at once */

/* n vectors of bf16 as they come, to rows in shared memory, one behind the other. All threads.
 */
static __device__ __forceinline__ void take_rows(uint8_t *rows, const uint4 *from, int n)
{
#pragma unroll 1
    for (int base = 0; base < n; base += ASKED * N_THREAD) {
        uint4 v[ASKED];
        int at[ASKED];
#pragma unroll
        for (int j = 0; j < ASKED; j++) {
            at[j] = min(base + j * N_THREAD + (int)threadIdx.x, n - 1);
            v[j] = gpu_load_grid(from + at[j]);
        }
        for (;;) { /* as wait_words */
            bool missing = false;
#pragma unroll
            for (int j = 0; j < ASKED; j++)
                missing |= !is_there(v[j]);
            if (!__any_sync(ALL_LANES, missing))
                break;
            gpu_wait_block();
#pragma unroll
            for (int j = 0; j < ASKED; j++)
                if (!is_there(v[j]))
                    v[j] = gpu_load_grid(from + at[j]);
        }
#pragma unroll
        for (int j = 0; j < ASKED; j++)
            if (base + j * N_THREAD + (int)threadIdx.x < n)
                ((uint4 *)rows)[at[j]] = make_uint4(~v[j].x, ~v[j].y, ~v[j].z, ~v[j].w);
    }
}
