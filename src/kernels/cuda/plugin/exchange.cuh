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
    now.turn = gpu_load_grid(x.turn);
    now.n_other = gpu_load_grid(x.turn + 2 - now.turn);
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

static __device__ __forceinline__ float take_float(const uint32_t *from, uint32_t looked)
{
    while (looked == 0) {
        gpu_wait_block();
        looked = gpu_load_grid(from);
    }
    return __uint_as_float(~looked);
}

static __device__ __forceinline__ bool is_there(uint4 v)
{
    return v.x != 0 && v.y != 0 && v.z != 0 && v.w != 0;
}

/* As it was put, when all four have come. */
static __device__ __forceinline__ uint4 take_four(const uint4 *from, uint4 looked)
{
    while (!is_there(looked)) {
        gpu_wait_block();
        looked = gpu_load_grid(from);
    }
    return make_uint4(~looked.x, ~looked.y, ~looked.z, ~looked.w);
}

#define ASKED 2 /* vectors that a thread asks for at once */

/* n vectors of bf16 as they come, to rows in shared memory, one behind the other (stage_eight). All threads.
 */
static __device__ __forceinline__ void take_rows(uint8_t *rows, const uint4 *from, int n)
{
#pragma unroll 1
    for (int base = threadIdx.x; base < n; base += ASKED * N_THREAD) {
        uint4 v[ASKED];
#pragma unroll
        for (int j = 0; j < ASKED; j++)
            v[j] = gpu_load_grid(from + min(base + j * N_THREAD, n - 1));
#pragma unroll
        for (int j = 0; j < ASKED; j++) {
            const int i = base + j * N_THREAD;
            if (i < n)
                stage_eight(rows, i, take_four(from + i, v[j]));
        }
    }
}
