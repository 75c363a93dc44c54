/* Between the files of the plug-in. */
#pragma once

#include "kernels/cuda/plugin/gpu.h"

#include "kernels/cuda/cuda_plugin.h"

struct gpu_limits {
    int n_sm, major;     /* compute capability */
    size_t shared_bytes; /* a block may have */
};

/* One packed matrix and rows of x. Its outputs may belong to several parts, one after the other, with a
 * multiple of 16 each but the last. */
struct packed_part {
    const float *scale, *bias; /* [1]; [n_out] or NULL */
    float *out;                /* [n_row][n_out] */
    int first, n_out;          /* rows of the matrix */
};
/* Half of an MLP. Gate and up: rows in pairs (cuda_layout.h), whose bf16 SwiGLU goes to h [n_row][n_out / 2]
 * in place of parts. Down: what a row's sums count where its id is 0; the other rows are zeros. */
struct packed_mlp {
    const float *gate_scale, *up_scale;
    uint16_t *h;         /* NULL: not of gate and up */
    const float *weight; /* [n_row]; NULL: not of down */
    const int32_t *id;
};
struct packed_linear {
    const uint8_t *weight;
    struct packed_part part[CUDA_PARTS_MAX];
    int n_part, n_out; /* of all parts */
    const uint16_t *x;
    int n_row, K;          /* K a multiple of 64; linear_start: at most 32 rows */
    struct packed_mlp mlp; /* zeros but in half of an MLP; linear_start and the kernels for many have none */
};
/* That has row `row` of the matrix; a multiple of 16 asks for its tile. */
__host__ __device__ __forceinline__ int packed_part_of(const struct packed_linear &w, int row)
{
    int which = 0;
    for (int i = 1; i < CUDA_PARTS_MAX; i++)
        which += i < w.n_part && row >= w.part[i].first;
    return which;
}

/* struct cuda_moe with its rows. */
struct packed_moe {
    const uint8_t *gate_up, *down;
    const float *gate_scale, *up_scale, *down_scale;
    const uint16_t *x;
    const int32_t *id;
    const float *weight;
    float *out;
    int n_row, n_used, n_expert, hidden, inner;
    void *each;   /* NULL: out */
    int n_shared; /* of n_used and of n_expert, the last */
};

/* Pairs of a token and an expert that a call of the kernel for few rows takes, at most. */
#define MOE_SLOTS_MAX 512

/* Memory between the phases of a call, the device's. */
struct moe_scratch {
    uint16_t *h; /* bf16 [slot][inner] */
    float *y;    /* [slot][hidden]     */
    uint32_t *barrier;
    bool early; /* h and y are nobody's while the launch in front is at work */
};

/* Start on the stream. NULL, or why not. */
const char *linear_start(const struct packed_linear *work, const struct gpu_limits *limits,
                         cudaStream_t stream);
/* Whether eight rows of this length fit its shared memory. */
bool linear_takes(const struct packed_linear *work, const struct gpu_limits *limits);
/* Whether the kernel for few rows takes so many pairs, and eight rows fit. */
bool moe_takes(const struct packed_moe *work, const struct gpu_limits *limits);
/* p with its rows in the device's memory. `first` and n_row are whole tiles, but for the last. */
const char *pack_start(const struct cuda_pack *p, const uint8_t *codes, const uint8_t *scales,
                       cudaStream_t stream);

const char *randomize_start(void *device, size_t bytes, uint64_t seed, cudaStream_t stream);
const char *read_all_start(const void *device, size_t bytes, uint32_t *sink, int n_sm, cudaStream_t stream);
