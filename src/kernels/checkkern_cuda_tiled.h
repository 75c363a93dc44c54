/* Weights in the tiles of cuBLASLt, for cases that multiply them. */
#ifndef NYB_KERNELS_CHECKKERN_CUDA_TILED_H
#define NYB_KERNELS_CHECKKERN_CUDA_TILED_H

#include "kernels/checkkern_cuda_case.h"

/* Matrices of n rows of K, one after another, as a checkpoint has them and on the device. */
struct gpu_tiled {
    struct cuda_weight w;
    float *value;  /* [n_matrix][n][K] without the scales of the matrices */
    float *global; /* [n_matrix] */
    float *input;  /* [n_matrix] */
};

/* Matrices of these codes and block scales, without `value` and the scales of the matrices. */
struct gpu_tiled gpu_tiled_put(struct gpu_case *c, int n_matrix, int n, int K, const uint8_t *codes,
                               const uint8_t *block);
/* m->global and m->input, as the device takes them: products, and inputs. */
void gpu_tiled_scales(struct gpu_case *c, struct gpu_tiled *m, int n_matrix);
/* Random ones. Scales of inputs lie around `input`. */
struct gpu_tiled gpu_tiled_make(struct gpu_case *c, uint64_t *seed, int n_matrix, int n, int K, float input);

#endif
