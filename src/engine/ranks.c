#include "engine/ranks.h"

#include <stdlib.h>

#include "base/log.h"
#include "checkpoint/checkpoint.h"

_Static_assert((int)NYB_LOAD_DUMMY == (int)LOAD_DUMMY, "same order");
_Static_assert((int)NYB_COMPUTE_BF16 == (int)COMPUTE_BF16 && (int)NYB_COMPUTE_STRICT == (int)COMPUTE_STRICT &&
                   (int)NYB_COMPUTE_INT8 == (int)COMPUTE_INT8 && (int)NYB_COMPUTE_W4A4 == (int)COMPUTE_W4A4,
               "same order");
_Static_assert((int)NYB_DISPATCH_F32 == (int)DISPATCH_F32 && (int)NYB_DISPATCH_BF16 == (int)DISPATCH_BF16 &&
                   (int)NYB_DISPATCH_FP8 == (int)DISPATCH_FP8 &&
                   (int)NYB_DISPATCH_NVFP4 == (int)DISPATCH_NVFP4,
               "same order");
_Static_assert((int)NYB_DEVICE_CPU == (int)DEVICE_CPU && (int)NYB_DEVICE_CUDA == (int)DEVICE_CUDA &&
                   (int)NYB_DEVICE_AUTO == (int)DEVICE_AUTO,
               "same order");
_Static_assert((int)NYB_BACKEND_SM90_W4A16 == (int)DEVICE_BACKEND_SM90_W4A16 &&
                   (int)NYB_BACKEND_CUBLASLT_NVFP4 == (int)DEVICE_BACKEND_CUBLASLT_NVFP4 &&
                   (int)NYB_BACKEND_REFERENCE == (int)DEVICE_BACKEND_REFERENCE,
               "same order");

#define SLOT_BYTES ((size_t)4 << 20) /* longer data travel in pieces */

struct comm *ranks_comm(struct nyb_ranks *r)
{
    return (struct comm *)(void *)r;
}

enum nyb_code nyb_ranks_open(struct nyb_ranks **out, const struct nyb_options *o, struct nyb_err *err)
{
    const struct comm_options options = {.slot_bytes = SLOT_BYTES, .timeout_ms = o->rank_timeout_ms};
    int asked = o->tensor_parallel_size;
    struct comm *c = NULL;
    *out = NULL;
    if (comm_mpi_started())
        TRY(comm_open_mpi(&c, &options, err));
    else if (asked > 1)
        TRY(comm_fork(&c, asked, &options, err));
    if (c && asked > 1 && comm_size(c) != asked) {
        int size = comm_size(c);
        comm_close(c);
        return err_at(err, NYB_E_ARG, "tensor_parallel_size", -1, "is %d, but mpirun has started %d ranks",
                      asked, size);
    }
    if (c && comm_rank(c) == 0)
        log_info("%d ranks (%s)", comm_size(c), comm_backend(c));
    *out = (struct nyb_ranks *)(void *)c;
    return NYB_OK;
}

int nyb_ranks_rank(const struct nyb_ranks *r)
{
    return r ? comm_rank((const struct comm *)(const void *)r) : 0;
}

void nyb_ranks_close(struct nyb_ranks *r)
{
    comm_close(ranks_comm(r));
}

/* A prompt in steps of 512 tokens goes at two thirds of its speed on a GPU in steps of 8192, in steps of 2048
 * at nine tenths; and the others' tokens wait for each step. */
int ranks_step_tokens(const struct nyb_options *o, bool gpu)
{
    int n = gpu ? 2048 : 512;
    if (o->max_num_batched_tokens > 0)
        return o->max_num_batched_tokens;
    return n < o->max_num_seqs ? o->max_num_seqs : n;
}

struct model_options ranks_model_options(const struct nyb_options *o, const char *folder, struct comm *comm)
{
    return (struct model_options){.folder = folder,
                                  .load_format = (enum load_format)o->load_format,
                                  .dummy_seed = o->dummy_seed,
                                  .compute = (enum compute)o->compute,
                                  .n_thread = o->threads,
                                  .kv_type =
                                      o->kv_dtype == NYB_KV_AUTO ? MODEL_KV_DECLARED : (int)o->kv_dtype,
                                  .max_model_len = o->max_model_len,
                                  .hf_overrides = o->hf_overrides,
                                  .device = (enum device_choice)o->device,
                                  .moe_backend = (enum device_backend)o->moe_backend,
                                  .gemm_backend = (enum device_backend)o->gemm_backend,
                                  .max_batched_tokens = ranks_step_tokens(o, o->device != NYB_DEVICE_CPU),
                                  .comm = comm,
                                  .expert_parallel = o->expert_parallel,
                                  .redundant_experts = o->num_redundant_experts,
                                  .dispatch = (enum dispatch_type)o->dispatch_dtype,
                                  .no_fusion = !o->allreduce_fusion,
                                  .overlap = {.mode = o->two_batch_overlap ? OVERLAP_AUTO : OVERLAP_OFF,
                                              .prefill_min = o->tbo_prefill_min,
                                              .decode_min = o->tbo_decode_min},
                                  .fusion_max_tokens = o->fusion_max_tokens};
}

enum nyb_code nyb_ranks_follow(struct nyb_ranks *r, const struct nyb_options *o, struct nyb_err *err)
{
    char *folder = NULL;
    struct model *m = NULL;
    enum nyb_code code = ckpt_resolve(&folder, o->model, err);
    const struct model_options options = ranks_model_options(o, folder, ranks_comm(r));
    if (code == NYB_OK)
        code = model_open(&m, &options, err);
    if (code != NYB_OK) { /* rank 0 has failed together with us, or will not wait when we are gone */
        free(folder);
        comm_close(ranks_comm(r));
        return code;
    }
    code = model_follow(m, err);
    model_close(m);
    free(folder);
    return code;
}
