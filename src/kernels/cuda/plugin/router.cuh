/* Logits of bf16 routers by tensor cores, as exact as in fp32, for the kernels of some and of many rows. */
#pragma once

#include "kernels/cuda/plugin/route.cuh"

#define ROUTER_STEP 32 /* k of a step */

/* A number as three of bf16 whose sum it is, but for what lies 2^-27 below it: products with bf16 weights are
 * then as exact as in fp32. */
struct thirds {
    uint32_t part[3]; /* pairs */
};
static __device__ __forceinline__ thirds split(float low, float high)
{
    thirds s;
#pragma unroll
    for (int i = 0; i < 3; i++) {
        s.part[i] = float_bf16_pair(low, high);
        low -= bf16_low(s.part[i]);
        high -= bf16_high(s.part[i]);
    }
    return s;
}

/* What a step of 32 k takes of two rows of x, g and g + 8, and of EIGHTS * 8 experts. A lane of a group of
 * four has 8 k that lie side by side, for two steps of the instruction. */
struct step_rows {
    float4 x[2][2];
};
template <int EIGHTS> struct step_weights {
    uint4 w[EIGHTS];
};

static __device__ __forceinline__ step_rows load_rows(const float *const (&x)[2], int s, int lane)
{
    const int k = s * ROUTER_STEP + 8 * (lane % 4);
    step_rows r;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        r.x[h][0] = *(const float4 *)(x[h] + k);
        r.x[h][1] = *(const float4 *)(x[h] + k + 4);
    }
    return r;
}

/* Of experts from `first` on; those beyond the end repeat the last. */
template <int EIGHTS>
static __device__ __forceinline__ step_weights<EIGHTS> load_weights(const cuda_router &a, int first, int s,
                                                                    int lane)
{
    const int g = lane / 4, k = s * ROUTER_STEP + 8 * (lane % 4);
    step_weights<EIGHTS> o;
#pragma unroll
    for (int j = 0; j < EIGHTS; j++) {
        const int e = min(first + 8 * j + g, a.n_expert - 1);
        o.w[j] = *(const uint4 *)((const uint16_t *)a.w.data + (size_t)e * a.K + k);
    }
    return o;
}

template <int EIGHTS>
static __device__ __forceinline__ void multiply_step(const step_rows &r, const step_weights<EIGHTS> &o,
                                                     float (&sum)[EIGHTS][4])
{
#pragma unroll
    for (int v = 0; v < 2; v++) { /* of a lane's vectors: four k for one step of the instruction */
        thirds p[2][2];           /* of both pairs of k; rows g and g + 8 */
#pragma unroll
        for (int h = 0; h < 2; h++) {
            p[0][h] = split(r.x[h][v].x, r.x[h][v].y);
            p[1][h] = split(r.x[h][v].z, r.x[h][v].w);
        }
#pragma unroll
        for (int i = 2; i >= 0; i--) { /* small parts first */
            const uint32_t part[4] = {p[0][0].part[i], p[0][1].part[i], p[1][0].part[i], p[1][1].part[i]};
#pragma unroll
            for (int j = 0; j < EIGHTS; j++)
                mma_bf16(sum[j], part, v ? o.w[j].z : o.w[j].x, v ? o.w[j].w : o.w[j].y);
        }
    }
}

/* router_cluster.cu: 2 to 256 rows. */
bool router_cluster_takes(const struct cuda_op *op, const struct gpu_limits *limits);
const char *router_cluster_start(const struct cuda_op *op, const struct op_place *at);

/* router_rows.cu: 2 to 64 rows. */
bool router_rows_takes(const struct cuda_op *op);
const char *router_rows_start(const struct cuda_op *op, const struct op_place *at);
