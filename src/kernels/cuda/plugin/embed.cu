/* Rows of a table. */
#include "kernels/cuda/plugin/operators.h"
#include "kernels/cuda/plugin/weight.cuh"

#define THREADS 256

template <int TYPE> static __global__ void embed_kernel(const cuda_embed a, const int32_t *count, int n_row)
{
    gpu_wait_before();
    gpu_let_next();
    const int t = blockIdx.x;
    if (t >= OP_COUNT(count, n_row))
        return;
    const int given = a.tok[t];
    const size_t token = given >= 0 && given < a.vocab ? (size_t)given : 0;
    const float scale = *a.table.scale;
    const int EACH =
        8; /* all read before the first is written: else each read waits for the write before it */
    for (int first = threadIdx.x; first < a.hidden; first += EACH * THREADS) {
        float v[EACH];
#pragma unroll
        for (int j = 0; j < EACH; j++)
            v[j] = weight_at<TYPE>(a.table, token, a.hidden, min(first + j * THREADS, a.hidden - 1));
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (first + j * THREADS < a.hidden)
                a.residual[(size_t)t * a.hidden + first + j * THREADS] = v[j] * scale;
    }
}

const char *embed_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_embed *a = &op->as.embed;
    const char *why = nullptr;
    if (a->hidden < 1 || a->vocab < 1 || (a->table.type == CUDA_NVFP4 && a->hidden % 16))
        return "embed: a table without rows, or columns";
#define CALL(T) \
    gpu_why(gpu_launch(embed_kernel<T>, op->n_row, THREADS, 0, at->stream, *a, op->count, op->n_row))
    WEIGHT_SWITCH(why, a->table.type, CALL)
#undef CALL
    return why;
}
