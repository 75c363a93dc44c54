/* Products with matrices that are not packed. */
#pragma once

#include "kernels/cuda/plugin/operators.h"
#include "kernels/cuda/plugin/weight.cuh"

struct dense {
    struct cuda_linear_part part[CUDA_PARTS_MAX]; /* of one type */
    int n_part, K;
    const uint16_t *x; /* bf16 [n_row][K], or NULL and */
    const float *x_float;
    const int32_t *count; /* NULL: n_row */
    int n_row;
};

/* Any type and size. */
const char *dense_start(const struct dense *d, const struct op_place *at);

/* The kernel for few rows: bf16 and e4m3 weights, bf16 rows, K a multiple of 64. */
bool dense_stream_takes(const struct dense *d, const struct gpu_limits *limits);
const char *dense_stream_start(const struct dense *d, const struct op_place *at);

/* The kernel for many rows: bf16 weights and rows, K a multiple of 32. */
bool dense_tile_takes(const struct dense *d);
const char *dense_tile_start(const struct dense *d, const struct op_place *at);
