/* Descriptors of packed matrices for copies of boxes (prefill_async.cuh). */
#pragma once

#include "kernels/cuda/plugin/prefill_async.cuh"

#if !GPU_IS_EMULATED

typedef CUresult (*encode_tiled)(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                 const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                                 const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                 CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                 CUtensorMapFloatOOBfill fill);

/* The driver's function, which this library is not linked with; NULL if it has none. */
static encode_tiled find_encode_tiled()
{
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                         &result) != cudaSuccess ||
        result != cudaDriverEntryPointSuccess)
        return nullptr;
    return (encode_tiled)found;
}

/* n_row unit rows of n_k units, of which boxes of `box` rows by one unit are copied. NULL, or why not. */
static const char *weight_boxes_make(weight_boxes *b, const uint8_t *weight, int n_k, size_t n_row, int box)
{
    static const encode_tiled encode = find_encode_tiled();
    const cuuint64_t size[2] = {(cuuint64_t)n_k * (CUDA_UNIT_BYTES / 4), n_row},
                     stride[1] = {(cuuint64_t)n_k * CUDA_UNIT_BYTES};
    const cuuint32_t boxes[2] = {CUDA_UNIT_BYTES / 4, (cuuint32_t)box}, step[2] = {1, 1};
    if (!encode)
        return "the driver has no cuTensorMapEncodeTiled";
    const CUresult r = encode(&b->map, CU_TENSOR_MAP_DATA_TYPE_INT32, 2, (void *)weight, size, stride, boxes,
                              step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? nullptr : "cuTensorMapEncodeTiled refuses the packed weights";
}

#else

static inline const char *weight_boxes_make(weight_boxes *b, const uint8_t *weight, int n_k, size_t n_row,
                                            int box)
{
    *b = {weight, (size_t)n_k * CUDA_UNIT_BYTES, n_row, box};
    return nullptr;
}

#endif
