/* One case of a check on a GPU: buffers there, operators run twice and once more as a graph, all with the
 * same bits, and outputs back on the host. */
#ifndef NYB_KERNELS_CHECKKERN_CUDA_CASE_H
#define NYB_KERNELS_CHECKKERN_CUDA_CASE_H

#include "kernels/checkkern_cuda.h"

#define GPU_CASE_BUFFERS 40

struct gpu_case {
    const struct checkkern_gpu *g;
    struct checkkern_report *report;
    struct gpu_buffer {
        void *device;
        const void *before; /* what an output holds before each run; NULL: an input */
        uint8_t *result;
        size_t bytes;
    } buffer[GPU_CASE_BUFFERS];
    int n_buffer;
    bool no_graph; /* the operators cannot be recorded */
    bool failed;   /* the report says why */
};

void gpu_case_begin(struct gpu_case *c, const struct checkkern_gpu *g, struct checkkern_report *report);
void gpu_case_end(struct gpu_case *c);

/* Cases 0 to n - 1, each with buffers of its own, until one fails. */
typedef bool gpu_case_fn(struct gpu_case *c, uint64_t *seed, int round);
bool gpu_cases(const struct checkkern_gpu *g, struct checkkern_report *report, int n, gpu_case_fn *one);

/* Copies of the host's. After a failure NULL, and so is everything that follows. */
void *gpu_case_in(struct gpu_case *c, const void *host, size_t bytes);
void *gpu_case_f32(struct gpu_case *c, float value); /* one number */
/* Poisoned (a NaN in fp32, bf16 and e4m3), with a guard behind; or with these bytes before each run. */
void *gpu_case_out(struct gpu_case *c, size_t bytes);
void *gpu_case_in_out(struct gpu_case *c, const void *host, size_t bytes);

/* False: a run failed, two differ, or something was written behind an output. */
bool gpu_case_run(struct gpu_case *c, const struct cuda_op *op, int n_op);
/* What is in an output now: memory of the case's arena. */
const void *gpu_case_result(const struct gpu_case *c, const void *device);

/* Compares out[n] with expected[n] within allowed[n]; `what` and the index are reported. */
bool gpu_case_near(struct gpu_case *c, const char *what, const float *out, const double *expected,
                   const double *allowed, size_t n);

/* Random data in the case's arena. */
float *gpu_case_floats(struct gpu_case *c, uint64_t *seed, size_t n, float size);
uint16_t *gpu_case_bf16(struct gpu_case *c, uint64_t *seed, size_t n, float size);

/* n_group blocks of 16: codes [8] and a scale each, and what they are. */
void gpu_case_nvfp4(uint64_t *seed, uint8_t *codes, uint8_t *block, float *value, size_t n_group);

/* A matrix of any type but the packed one: n rows of K. `value` is what its elements are, in order. */
struct gpu_matrix {
    struct cuda_weight w;
    float *value, *scale; /* value [n_matrix][n][K], scale [n_matrix] */
};
struct gpu_matrix gpu_case_matrix(struct gpu_case *c, uint64_t *seed, enum cuda_weight_type type,
                                  int n_matrix, int n, int K);

typedef bool gpu_check_fn(const struct checkkern_gpu *g, struct checkkern_report *r);
gpu_check_fn checkkern_cuda_scales, checkkern_cuda_linear, checkkern_cuda_rows;
gpu_check_fn checkkern_cuda_moe, checkkern_cuda_moe_prefill;
gpu_check_fn checkkern_cuda_embed, checkkern_cuda_add_norm, checkkern_cuda_swiglu, checkkern_cuda_argmax;
gpu_check_fn checkkern_cuda_router, checkkern_cuda_chosen, checkkern_cuda_normed, checkkern_cuda_dense,
    checkkern_cuda_parts, checkkern_cuda_moe_plain, checkkern_cuda_pack;
gpu_check_fn checkkern_cuda_tiles, checkkern_cuda_quantize, checkkern_cuda_linear_w4a4,
    checkkern_cuda_moe_w4a4;
gpu_check_fn checkkern_cuda_qkv, checkkern_cuda_qkv_rows, checkkern_cuda_attention, checkkern_cuda_joined,
    checkkern_cuda_sample;
gpu_check_fn checkkern_cuda_all_reduce, checkkern_cuda_gather, checkkern_cuda_dispatch, checkkern_cuda_lanes,
    checkkern_cuda_sent, checkkern_cuda_lost_peer;

#endif
