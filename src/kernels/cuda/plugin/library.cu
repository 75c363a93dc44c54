#include "kernels/cuda/plugin/library.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

#include "kernels/cuda/plugin/peers.h"

#define LIBRARY_FILE "libnccl.so.2"
#define LIBRARY_ENV  "NYBBLE_NCCL" /* another file */
#define ADD_THREADS  256

/* What NCCL's interface says of these, of every version 2. */
struct nccl_id {
    char internal[CUDA_LIBRARY_ID_BYTES];
};
typedef struct nccl_comm_opaque *nccl_comm;
enum { NCCL_SUCCESS = 0, NCCL_FLOAT32 = 7, NCCL_SUM = 0 };

static struct {
    void *file;
    int (*get_unique_id)(struct nccl_id *id);
    int (*comm_init_rank)(nccl_comm *comm, int size, struct nccl_id id, int rank);
    int (*comm_abort)(nccl_comm comm);
    int (*all_reduce)(const void *from, void *to, size_t n, int type, int op, nccl_comm comm,
                      cudaStream_t stream);
    const char *(*error_string)(int result);
} nccl;
static std::mutex loading;
static thread_local char why_not[256];

struct nccl_library {
    nccl_comm comm;
};

static bool find(void *to, const char *name)
{
    void *symbol = dlsym(nccl.file, name);
    memcpy(to, &symbol, sizeof(symbol));
    if (!symbol)
        snprintf(why_not, sizeof(why_not), "%s has no %s", LIBRARY_FILE, name);
    return symbol;
}

/* Multicast of NVLink stays off unless somebody has asked for it: not every machine lends it. */
static const char *load(void)
{
    std::lock_guard<std::mutex> guard(loading);
    if (nccl.error_string)
        return nullptr;
    const char *named = secure_getenv(LIBRARY_ENV);
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    if (!nccl.file)
        nccl.file = dlopen(named && *named ? named : LIBRARY_FILE, RTLD_NOW | RTLD_LOCAL);
    if (!nccl.file) {
        snprintf(why_not, sizeof(why_not), "%s", dlerror());
        return why_not;
    }
    return find(&nccl.get_unique_id, "ncclGetUniqueId") && find(&nccl.comm_init_rank, "ncclCommInitRank") &&
                   find(&nccl.comm_abort, "ncclCommAbort") && find(&nccl.all_reduce, "ncclAllReduce") &&
                   find(&nccl.error_string, "ncclGetErrorString")
               ? nullptr
               : why_not;
}

const char *library_make_id(uint8_t id[CUDA_LIBRARY_ID_BYTES])
{
    struct nccl_id own;
    const char *why = load();
    if (why || !id)
        return why;
    const int result = nccl.get_unique_id(&own);
    if (result != NCCL_SUCCESS)
        return nccl.error_string(result);
    memcpy(id, &own, sizeof(own));
    return nullptr;
}

const char *library_join(struct nccl_library **out, const uint8_t id[CUDA_LIBRARY_ID_BYTES], int rank,
                         int size)
{
    struct nccl_id group;
    const char *why = load();
    if (why)
        return why;
    struct nccl_library *l = new (std::nothrow) nccl_library();
    if (!l)
        return "out of memory";
    memcpy(&group, id, sizeof(group));
    const int result = nccl.comm_init_rank(&l->comm, size, group, rank);
    if (result == NCCL_SUCCESS) {
        *out = l;
        return nullptr;
    }
    delete l;
    return nccl.error_string(result);
}

/* Not in step with the others, of whom some may be gone. */
void library_close(struct nccl_library *l)
{
    if (!l)
        return;
    nccl.comm_abort(l->comm);
    delete l;
}

static __global__ void add_kernel(float *sum, const float *first, const float *second, size_t n)
{
    const size_t step = (size_t)gridDim.x * blockDim.x;
    gpu_wait_before();
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        sum[i] = second && first ? second[i] + first[i] : second ? second[i] : first ? first[i] : 0.0f;
}

const char *library_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_all_reduce *a = &op->as.all_reduce;
    const float *const *delta = a->norm.delta;
    const size_t n = (size_t)op->n_row * (size_t)a->norm.n;
    if (!at->peers->library)
        return "all-reduce: NCCL has not been opened";
    if (!a->sum)
        return "all-reduce: NCCL only adds";
    if (delta[0] != a->sum || delta[1]) {
        const char *why = gpu_why(gpu_launch(add_kernel, peers_blocks(at), ADD_THREADS, 0, at->stream, a->sum,
                                             delta[0], delta[1], n));
        if (why)
            return why;
    }
    const int result =
        nccl.all_reduce(a->sum, a->sum, n, NCCL_FLOAT32, NCCL_SUM, at->peers->library->comm, at->stream);
    return result == NCCL_SUCCESS ? nullptr : nccl.error_string(result);
}
