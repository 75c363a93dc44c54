/* The few functions, types and numbers of cuBLASLt that block-scaled products take, as its documentation has
 * them: the library is loaded at run time, and the plug-in is built where its header is not. Where that
 * header is there, cublaslt.cu compares every line of this with it. Also C, for the library that tests put in
 * its place. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define LT_VERSION_MIN 120800 /* major * 10000 + minor * 100 + patch: the first with e2m1 */

enum lt_type { LT_R_32F = 0, LT_R_4F_E2M1 = 33 }; /* cudaDataType          */
enum lt_compute { LT_COMPUTE_32F = 68 };          /* cublasComputeType_t   */
enum lt_operation { LT_OP_N = 0, LT_OP_T = 1 };   /* cublasOperation_t     */
enum lt_pointer_mode { LT_POINTER_DEVICE = 1 };   /* cublasLtPointerMode_t: alpha and beta */
enum lt_scale_mode { LT_SCALE_VEC16_UE4M3 = 1 };  /* cublasLtMatmulMatrixScale_t */
enum lt_status {                                  /* cublasStatus_t        */
                 LT_SUCCESS = 0,
                 LT_INVALID_VALUE = 7,
                 LT_NOT_SUPPORTED = 15,
};
enum lt_desc_attribute {                               /* cublasLtMatmulDescAttributes_t */
                         LT_DESC_POINTER_MODE = 2,     /* int32_t       */
                         LT_DESC_TRANSA = 3,           /* int32_t       */
                         LT_DESC_TRANSB = 4,           /* int32_t       */
                         LT_DESC_A_SCALE_POINTER = 17, /* const void * */
                         LT_DESC_B_SCALE_POINTER = 18, /* const void * */
                         LT_DESC_A_SCALE_MODE = 31,    /* int32_t       */
                         LT_DESC_B_SCALE_MODE = 32,    /* int32_t       */
};
enum lt_pref_attribute {
    LT_PREF_MAX_WORKSPACE_BYTES = 1
}; /* cublasLtMatmulPreferenceAttributes_t: uint64_t */

/* cublasLtMatmulAlgo_t, cublasLtMatmulHeuristicResult_t */
struct lt_algo {
    uint64_t data[8];
};
struct lt_heuristic {
    struct lt_algo algo;
    size_t workspace_bytes;
    int state; /* enum lt_status */
    float waves;
    int reserved[4];
};

/* Handles and descriptors are pointers to what only the library knows. Functions return enum lt_status. */
typedef int lt_create_fn(void **handle);
typedef int lt_destroy_fn(void *handle_or_descriptor);
typedef size_t lt_version_fn(void);
typedef const char *lt_status_fn(int status);
typedef int lt_desc_create_fn(void **desc, int compute, int scale_type);
typedef int lt_set_fn(void *descriptor, int attribute, const void *value, size_t bytes);
typedef int lt_layout_create_fn(void **layout, int type, uint64_t rows, uint64_t columns, int64_t ld);
typedef int lt_pref_create_fn(void **pref);
typedef int lt_heuristic_fn(void *handle, void *desc, void *a, void *b, void *c, void *d, void *pref, int n,
                            struct lt_heuristic *result, int *n_result);
/* D = alpha * op(A) * op(B) + beta * C, column-major, on a stream. */
typedef int lt_matmul_fn(void *handle, void *desc, const void *alpha, const void *A, void *a, const void *B,
                         void *b, const void *beta, const void *C, void *c, void *D, void *d,
                         const struct lt_algo *algo, void *workspace, size_t workspace_bytes, void *stream);

/* Each function: member of struct lt_api, its type, its name in the library. */
#define LT_FUNCTIONS(X)                                                 \
    X(create, lt_create_fn, "cublasLtCreate")                           \
    X(destroy, lt_destroy_fn, "cublasLtDestroy")                        \
    X(version, lt_version_fn, "cublasLtGetVersion")                     \
    X(status, lt_status_fn, "cublasLtGetStatusString")                  \
    X(desc_create, lt_desc_create_fn, "cublasLtMatmulDescCreate")       \
    X(desc_destroy, lt_destroy_fn, "cublasLtMatmulDescDestroy")         \
    X(desc_set, lt_set_fn, "cublasLtMatmulDescSetAttribute")            \
    X(layout_create, lt_layout_create_fn, "cublasLtMatrixLayoutCreate") \
    X(layout_destroy, lt_destroy_fn, "cublasLtMatrixLayoutDestroy")     \
    X(pref_create, lt_pref_create_fn, "cublasLtMatmulPreferenceCreate") \
    X(pref_destroy, lt_destroy_fn, "cublasLtMatmulPreferenceDestroy")   \
    X(pref_set, lt_set_fn, "cublasLtMatmulPreferenceSetAttribute")      \
    X(heuristic, lt_heuristic_fn, "cublasLtMatmulAlgoGetHeuristic")     \
    X(matmul, lt_matmul_fn, "cublasLtMatmul")

struct lt_api {
#define LT_MEMBER(name, type, symbol) type *name;
    LT_FUNCTIONS(LT_MEMBER)
#undef LT_MEMBER
};
