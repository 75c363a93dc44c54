/* cuBLASLt, loaded at run time: block-scaled products, their descriptors and algorithms kept for the next
 * call of the same shape. */
#include <dlfcn.h>
#include <stdlib.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <tuple>
#include <type_traits>

#include "kernels/cuda/plugin/cublaslt.h"
#include "kernels/cuda/plugin/cublaslt_api.h"
#include "kernels/cuda/plugin/state.h"

#define WORKSPACE_BYTES ((size_t)32 << 20) /* what NVIDIA advises from compute capability 9.0 on */
#define ALIGNMENT       256 /* of matrices, which cuBLASLt expects where nothing else is said */
#define PLANS_MAX       4096
#define LIBRARY_ENV     "NYBBLE_CUBLASLT"

/* What was written down by hand, beside NVIDIA's own. */
#if defined(__CUDACC__) && __has_include(<cublasLt.h>)
#include <cublasLt.h>
#define SAME(ours, theirs) static_assert((int)(ours) == (int)(theirs), #ours " is not " #theirs)
SAME(LT_R_32F, CUDA_R_32F);
SAME(LT_R_4F_E2M1, CUDA_R_4F_E2M1);
SAME(LT_COMPUTE_32F, CUBLAS_COMPUTE_32F);
SAME(LT_OP_N, CUBLAS_OP_N);
SAME(LT_OP_T, CUBLAS_OP_T);
SAME(LT_POINTER_DEVICE, CUBLASLT_POINTER_MODE_DEVICE);
SAME(LT_SCALE_VEC16_UE4M3, CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3);
SAME(LT_SUCCESS, CUBLAS_STATUS_SUCCESS);
SAME(LT_INVALID_VALUE, CUBLAS_STATUS_INVALID_VALUE);
SAME(LT_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED);
SAME(LT_DESC_POINTER_MODE, CUBLASLT_MATMUL_DESC_POINTER_MODE);
SAME(LT_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSA);
SAME(LT_DESC_TRANSB, CUBLASLT_MATMUL_DESC_TRANSB);
SAME(LT_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER);
SAME(LT_DESC_B_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
SAME(LT_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_A_SCALE_MODE);
SAME(LT_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE);
SAME(LT_PREF_MAX_WORKSPACE_BYTES, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SAME(sizeof(lt_algo), sizeof(cublasLtMatmulAlgo_t));
SAME(sizeof(lt_heuristic), sizeof(cublasLtMatmulHeuristicResult_t));
SAME(offsetof(lt_heuristic, workspace_bytes), offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
SAME(offsetof(lt_heuristic, state), offsetof(cublasLtMatmulHeuristicResult_t, state));
SAME(sizeof(cublasStatus_t), sizeof(int));
SAME(sizeof(cublasComputeType_t), sizeof(int));
SAME(sizeof(cudaDataType_t), sizeof(int));
SAME(sizeof(cublasLtMatmulDescAttributes_t), sizeof(int));
SAME(sizeof(cublasLtMatmulPreferenceAttributes_t), sizeof(int));
/* Each of our types against the prototype: pointers to a pointer and enums are as wide as in it, in order. */
template <typename Ours, typename Theirs> struct same_call;
template <typename R, typename... A, typename S, typename... B> struct same_call<R(A...), S(B...)> {
    static constexpr bool value =
        sizeof(R) == sizeof(S) && sizeof...(A) == sizeof...(B) &&
        ((sizeof(A) == sizeof(B) && std::is_pointer<A>::value == std::is_pointer<B>::value) && ...);
};
#define SAME_CALL(type, function) static_assert(same_call<type, decltype(function)>::value, #function)
SAME_CALL(lt_create_fn, cublasLtCreate);
SAME_CALL(lt_destroy_fn, cublasLtDestroy);
SAME_CALL(lt_status_fn, cublasLtGetStatusString);
SAME_CALL(lt_desc_create_fn, cublasLtMatmulDescCreate);
SAME_CALL(lt_destroy_fn, cublasLtMatmulDescDestroy);
SAME_CALL(lt_set_fn, cublasLtMatmulDescSetAttribute);
SAME_CALL(lt_layout_create_fn, cublasLtMatrixLayoutCreate);
SAME_CALL(lt_destroy_fn, cublasLtMatrixLayoutDestroy);
SAME_CALL(lt_pref_create_fn, cublasLtMatmulPreferenceCreate);
SAME_CALL(lt_destroy_fn, cublasLtMatmulPreferenceDestroy);
SAME_CALL(lt_set_fn, cublasLtMatmulPreferenceSetAttribute);
SAME_CALL(lt_heuristic_fn, cublasLtMatmulAlgoGetHeuristic);
SAME_CALL(lt_matmul_fn, cublasLtMatmul);
static_assert(sizeof(cublasLtGetVersion()) == sizeof(size_t), "cublasLtGetVersion");
#endif

/* Descriptors of one shape, and the algorithm for it. */
struct plan {
    const struct lt_api *api;
    void *desc = nullptr, *w = nullptr, *x = nullptr, *d = nullptr;
    struct lt_algo algo = {};

    explicit plan(const struct lt_api *api_) : api(api_)
    {
    }
    plan(const plan &) = delete;
    plan &operator=(const plan &) = delete;
    ~plan()
    {
        if (desc)
            api->desc_destroy(desc);
        for (void *layout : {w, x, d})
            if (layout)
                api->layout_destroy(layout);
    }
};

struct lt {
    struct lt_api api;
    void *library, *handle;
    uint8_t *workspace;
    float *zero; /* the device's: beta */
    int32_t *counts;
    std::map<std::tuple<int, int, int, int>, std::shared_ptr<plan>> plans; /* by m, n, K, ld */
};

/* ---- opening --------------------------------------------------------------------------------------- */

/* The environment's file is for tests: secure_getenv leaves it out where the program runs with others'
 * rights. */
static void *load(char *why, size_t why_bytes)
{
    const char *const name[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    const char *named = secure_getenv(LIBRARY_ENV);
    if (named && *named) {
        void *library = dlopen(named, RTLD_NOW | RTLD_LOCAL);
        if (!library)
            snprintf(why, why_bytes, "cannot load cuBLASLt: %s", dlerror());
        return library;
    }
    for (const char *one : name) {
        void *library = dlopen(one, RTLD_NOW | RTLD_LOCAL);
        if (library)
            return library;
    }
    snprintf(why, why_bytes, "neither %s nor %s can be loaded: %s", name[0], name[1], dlerror());
    return nullptr;
}

static bool find_functions(struct lt *lt, char *why, size_t why_bytes)
{
#define FIND(member, type, symbol)                                       \
    lt->api.member = (type *)dlsym(lt->library, symbol);                 \
    if (!lt->api.member) {                                               \
        snprintf(why, why_bytes, "cuBLASLt has no function %s", symbol); \
        return false;                                                    \
    }
    LT_FUNCTIONS(FIND)
#undef FIND
    const size_t version = lt->api.version();
    if (version >= LT_VERSION_MIN)
        return true;
    snprintf(why, why_bytes, "cuBLASLt %zu.%zu.%zu is too old for it: 12.8.0 is the first that can",
             version / 10000, version / 100 % 100, version % 100);
    return false;
}

static bool prepare(struct lt *lt, char *why, size_t why_bytes)
{
    const int status = lt->api.create(&lt->handle);
    if (status != LT_SUCCESS) {
        lt->handle = nullptr;
        snprintf(why, why_bytes, "cuBLASLt does not start: %s", lt->api.status(status));
        return false;
    }
    cudaError_t e = cudaMalloc(&lt->workspace, WORKSPACE_BYTES);
    if (e == cudaSuccess)
        e = cudaMalloc(&lt->zero, ALIGNMENT);
    if (e == cudaSuccess)
        e = cudaMemset(lt->zero, 0, ALIGNMENT);
    if (e == cudaSuccess)
        e = cudaMallocHost(&lt->counts, CUDA_EXPERTS_MAX * sizeof(int32_t));
    if (e != cudaSuccess)
        snprintf(why, why_bytes, "memory for cuBLASLt: %s", cudaGetErrorString(e));
    return e == cudaSuccess;
}

struct lt *lt_open(const cudaDeviceProp *device, char *why, size_t why_bytes)
{
    if (device->major < 10) {
        snprintf(
            why, why_bytes,
            "needs the block-scaled matrix units of compute capability 10.0 and later: this is %s, %d.%d",
            device->name, device->major, device->minor);
        return nullptr;
    }
    struct lt *lt = new (std::nothrow) struct lt();
    if (!lt) {
        snprintf(why, why_bytes, "out of memory");
        return nullptr;
    }
    lt->library = load(why, why_bytes);
    if (lt->library && find_functions(lt, why, why_bytes) && prepare(lt, why, why_bytes))
        return lt;
    lt_close(lt);
    return nullptr;
}

void lt_close(struct lt *lt)
{
    if (!lt)
        return;
    lt->plans.clear();
    if (lt->handle)
        lt->api.destroy(lt->handle);
    cudaFree(lt->workspace);
    cudaFree(lt->zero);
    if (lt->counts)
        cudaFreeHost(lt->counts);
    /* The library stays loaded: what it has registered with the driver does not survive being unloaded. */
    delete lt;
}

bool gpu_use_cublaslt(struct cuda_gpu *g)
{
    char why[256];
    if (g->lt)
        return true;
    if (!gpu_enter(g))
        return false;
    g->lt = lt_open(&g->properties, why, sizeof(why));
    return g->lt || gpu_fail(g, "cublaslt-nvfp4", why);
}

int32_t *lt_counts(struct lt *lt)
{
    return lt->counts;
}

/* ---- products -------------------------------------------------------------------------------------- */

static thread_local char last_failure[192];

static const char *failed(const struct lt *lt, const char *what, const struct lt_product *p, int status)
{
    snprintf(last_failure, sizeof(last_failure), "cuBLASLt: %s, %d x %d x %d: %s", what, p->m, p->n, p->K,
             lt->api.status(status));
    return last_failure;
}

static int set_number(const struct lt_api *api, void *desc, int attribute, int32_t value)
{
    return api->desc_set(desc, attribute, &value, sizeof(value));
}

/* Of the product that is started next. */
static int set_scales(const struct plan *plan, const struct lt_product *p)
{
    const void *w = p->w_scale, *x = p->x_scale;
    const int status = plan->api->desc_set(plan->desc, LT_DESC_A_SCALE_POINTER, &w, sizeof(w));
    return status ? status : plan->api->desc_set(plan->desc, LT_DESC_B_SCALE_POINTER, &x, sizeof(x));
}

/* Rows of K that lie one after the other are columns to cuBLASLt: A is w, transposed, B is x as it is, and D,
 * m x n in columns, is rows of m for each row of x. */
static int describe(struct plan *plan, const struct lt_product *p)
{
    const struct lt_api *api = plan->api;
    const uint64_t m = (uint64_t)p->m, n = (uint64_t)p->n, K = (uint64_t)p->K;
    const struct {
        int attribute, value;
    } number[] = {{LT_DESC_TRANSA, LT_OP_T},
                  {LT_DESC_TRANSB, LT_OP_N},
                  {LT_DESC_POINTER_MODE, LT_POINTER_DEVICE},
                  {LT_DESC_A_SCALE_MODE, LT_SCALE_VEC16_UE4M3},
                  {LT_DESC_B_SCALE_MODE, LT_SCALE_VEC16_UE4M3}};
    int status = api->desc_create(&plan->desc, LT_COMPUTE_32F, LT_R_32F);
    for (size_t i = 0; i < sizeof(number) / sizeof(number[0]) && !status; i++)
        status = set_number(api, plan->desc, number[i].attribute, number[i].value);
    if (!status)
        status = set_scales(plan, p); /* without which no algorithm is found */
    if (!status)
        status = api->layout_create(&plan->w, LT_R_4F_E2M1, K, m, (int64_t)K);
    if (!status)
        status = api->layout_create(&plan->x, LT_R_4F_E2M1, K, n, (int64_t)K);
    if (!status)
        status = api->layout_create(&plan->d, LT_R_32F, m, n, p->ld);
    return status;
}

static int choose(const struct lt *lt, struct plan *plan)
{
    const uint64_t bytes = WORKSPACE_BYTES;
    struct lt_heuristic found = {};
    void *pref = nullptr;
    int n = 0, status = lt->api.pref_create(&pref);
    if (!status)
        status = lt->api.pref_set(pref, LT_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes));
    if (!status)
        status = lt->api.heuristic(lt->handle, plan->desc, plan->w, plan->x, plan->d, plan->d, pref, 1,
                                   &found, &n);
    if (!status)
        status = n < 1 ? (int)LT_NOT_SUPPORTED : found.state;
    if (pref)
        lt->api.pref_destroy(pref);
    plan->algo = found.algo;
    return !status && found.workspace_bytes > WORKSPACE_BYTES ? (int)LT_NOT_SUPPORTED : status;
}

/* NULL: `why` says why not. */
static std::shared_ptr<plan> plan_of(struct lt *lt, const struct lt_product *p, const char **why)
{
    const auto key = std::make_tuple(p->m, p->n, p->K, p->ld);
    const auto there = lt->plans.find(key);
    if (there != lt->plans.end())
        return there->second;
    auto made = std::make_shared<plan>(&lt->api);
    int status = describe(made.get(), p);
    if (status) {
        *why = failed(lt, "cannot describe the product", p, status);
        return nullptr;
    }
    status = choose(lt, made.get());
    if (status) {
        *why = failed(lt, "no algorithm for the product", p, status);
        return nullptr;
    }
    if (lt->plans.size() >= PLANS_MAX)
        lt->plans.clear();
    lt->plans[key] = made;
    return made;
}

static bool aligned(const void *p)
{
    return (uintptr_t)p % ALIGNMENT == 0;
}

const char *lt_product_start(struct lt *lt, const struct lt_product *p, cudaStream_t stream)
{
    const char *why = nullptr;
    if (p->m < 1 || p->n < 1 || p->K < 1 || p->m % 4 || p->ld % 4 || p->ld < p->m || p->K % CUDA_TILED_K)
        return "cuBLASLt: sizes that a block-scaled product cannot have";
    if (!aligned(p->w) || !aligned(p->w_scale) || !aligned(p->x) || !aligned(p->x_scale) || !aligned(p->d))
        return "cuBLASLt: a matrix that is not aligned to 256 bytes";
    const std::shared_ptr<plan> plan = plan_of(lt, p, &why);
    if (!plan)
        return why;
    const struct lt_product one = *p;
    const auto status = std::make_shared<int>((int)LT_SUCCESS);
    const cudaError_t e = gpu_library(stream, [=] {
        *status = set_scales(plan.get(), &one);
        if (*status == LT_SUCCESS)
            *status = lt->api.matmul(lt->handle, plan->desc, one.alpha, one.w, plan->w, one.x, plan->x,
                                     lt->zero, one.d, plan->d, one.d, plan->d, &plan->algo, lt->workspace,
                                     WORKSPACE_BYTES, stream);
        return *status == LT_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
    });
    return *status != LT_SUCCESS ? failed(lt, "the product does not start", p, *status) : gpu_why(e);
}
