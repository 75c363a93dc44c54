#include "model/model_device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "model/device.h"
#include "model/ranks.h"

#define LOAD_EVERY_NS 1000000000u /* the GPU's counters of routers' choices are read */

bool model_parse_device(const char *text, enum device_choice *out)
{
    static const char *const name[] = {"cpu", "cuda", "auto"};
    for (size_t i = 0; i < COUNT_OF(name); i++)
        if (!strcmp(text, name[i])) {
            *out = (enum device_choice)i;
            return true;
        }
    return false;
}

bool model_parse_backend(const char *text, enum device_backend *out)
{
    static const char *const name[] = {"auto", "sm90-w4a16", "cublaslt-nvfp4", "reference"};
    for (size_t i = 0; i < COUNT_OF(name); i++)
        if (!strcmp(text, name[i])) {
            *out = (enum device_backend)i;
            return true;
        }
    return false;
}

const char *model_device_name(const struct model *m)
{
    return m->device ? device_name(m->device) : NULL;
}

enum nyb_code model_device_read_rate(struct model *m, double *rate, struct nyb_err *err)
{
    if (!m->device)
        return err_set(err, NYB_E_ARG, "the model is not on a GPU");
    return device_read_rate(m->device, rate, err);
}

enum nyb_code model_device_profile(struct model *m, const struct batch *b,
                                   void (*fn)(void *arg, const char *name, int n, double seconds), void *arg,
                                   struct nyb_err *err)
{
    if (!m->device)
        return err_set(err, NYB_E_ARG, "the model is not on a GPU");
    if (comm_size(m->comm) > 1)
        return err_set(err, NYB_E_UNSUPPORTED, "kernels are profiled on one GPU: there are %d",
                       comm_size(m->comm));
    return device_profile(m->device, b, fn, arg, err);
}

/* ---- opening ------------------------------------------------------------------------------------- */

static enum nyb_code check_support(const struct model *m, struct nyb_err *err)
{
    if (m->config.shard.ep_size > 1)
        return err_at(err, NYB_E_UNSUPPORTED, "device", -1,
                      "cuda: expert parallelism is the CPU's; GPUs share out features (tensor parallelism)");
    if (m->compute != COMPUTE_BF16 && m->compute != COMPUTE_W4A4)
        return err_at(err, NYB_E_UNSUPPORTED, "compute", -1,
                      "%s: a GPU computes in bf16 or w4a4 (--compute bf16, or --device cpu)",
                      compute_name(m->compute));
    return NYB_OK;
}

/* The kernels that are asked for compute in the mode that is: one of them for all NVFP4 products. */
static enum nyb_code check_backends(const struct model *m, const struct model_options *o, struct nyb_err *err)
{
    bool w4a4 = m->compute == COMPUTE_W4A4, gemm = o->gemm_backend == DEVICE_BACKEND_CUBLASLT_NVFP4,
         moe = o->moe_backend == DEVICE_BACKEND_CUBLASLT_NVFP4;
    if (!w4a4 && (gemm || moe))
        return err_at(
            err, NYB_E_UNSUPPORTED, gemm ? "gemm-backend" : "moe-backend", -1,
            "cublaslt-nvfp4 rounds the inputs of products to NVFP4: it takes --compute w4a4, not %s",
            compute_name(m->compute));
    if (w4a4 && (!gemm || (m->config.moe.n_expert > 0 && !moe)))
        return err_at(err, NYB_E_UNSUPPORTED, "compute", -1,
                      "w4a4: a GPU computes so with --gemm-backend and --moe-backend cublaslt-nvfp4 only");
    return NYB_OK;
}

/* What is in the way is an error, or with DEVICE_AUTO a line. */
static enum nyb_code settle(const struct model *m, const struct model_options *o, enum nyb_code code,
                            const struct nyb_err *why, struct nyb_err *err)
{
    char text[sizeof(why->message) + sizeof(why->where) + 32];
    if (code == NYB_OK)
        return code;
    if (o->device == DEVICE_AUTO && code != NYB_E_RANK) {
        if (comm_rank(m->comm) == 0)
            log_info("the CPU computes: %s", err_format(why, text, sizeof(text)));
        return NYB_OK;
    }
    if (err)
        *err = *why;
    return code;
}

/* Rank r has GPU r. All ranks come here, and either all get theirs or none keeps one. */
static enum nyb_code open_together(struct model *m, const struct model_options *o, struct nyb_err *err)
{
    const struct device_options options = {.moe_backend = o->moe_backend,
                                           .gemm_backend = o->gemm_backend,
                                           .max_tokens = o->max_batched_tokens,
                                           .no_graphs = o->no_graphs,
                                           .index = comm_rank(m->comm)};
    const struct device_peer_options peers = {.no_fusion = o->no_fusion};
    enum nyb_code code = check_support(m, err);
    if (code == NYB_OK)
        code = device_open(&m->device, &options, err);
    if (code == NYB_OK)
        code = check_backends(m, o, err);
    if (comm_size(m->comm) == 1)
        return code;
    code = ranks_agree(m->comm, code, err);
    return code == NYB_OK ? device_join(m->device, m->comm, &peers, err) : code;
}

enum nyb_code model_device_open(struct model *m, const struct model_options *o, struct nyb_err *err)
{
    struct nyb_err why;
    if (o->device == DEVICE_CPU)
        return NYB_OK;
    enum nyb_code code = open_together(m, o, &why);
    if (code != NYB_OK) {
        device_close(m->device);
        m->device = NULL;
    }
    return settle(m, o, code, &why, err);
}

enum nyb_code model_device_place(struct model *m, const struct model_options *o, struct nyb_err *err)
{
    struct nyb_err why;
    struct slots *s = &m->weights.slots;
    enum nyb_code code = rope_open(&m->rope, &m->config.rope, m->config.max_position, &why);
    if (code == NYB_OK)
        code = device_place_weights(m->device, &m->config, &m->weights, &why);
    if (code == NYB_OK)
        code = device_prepare(m->device, &m->rope, &why);
    code = ranks_agree_slowly(m->comm, code, &why);
    if (code == NYB_OK)
        return code;
    device_close(m->device);
    rope_close(&m->rope);
    m->device = NULL;
    for (int i = 0; i < s->n; i++) {
        s->slot[i].place = NULL;
        slot_set_address(&s->slot[i], NULL);
    }
    return settle(m, o, code, &why, err);
}

/* ---- cache and steps ----------------------------------------------------------------------------- */

/* The layers of m->kv have sizes and no memory: batches are checked against them. */
enum nyb_code model_device_kv_reserve(struct model *m, int n_block, struct nyb_err *err)
{
    const struct model_config *c = &m->config;
    TRY(device_kv_reserve(m->device, m->kv_type, n_block, err));
    m->kv = mem_alloc((size_t)c->n_layer, sizeof(*m->kv));
    for (int i = 0; i < c->n_layer; i++)
        m->kv[i] = (struct kv_layer){.type = m->kv_type,
                                     .n_block = n_block,
                                     .n_kv_head = c->shard.kv_head.count,
                                     .head_dim = c->head_dim};
    return NYB_OK;
}

/* Readers look on from other threads, so the GPU's counters are copied now and then. */
static enum nyb_code copy_load(struct model *m, struct nyb_err *err)
{
    uint64_t now = clock_ns();
    size_t n = (size_t)m->config.n_layer * (size_t)m->config.moe.n_expert;
    if (!m->expert_load || now - m->device_load_ns < LOAD_EVERY_NS)
        return NYB_OK;
    uint64_t *count = mem_alloc(n, sizeof(*count));
    enum nyb_code code = device_read_load(m->device, count, err);
    for (size_t i = 0; code == NYB_OK && i < n; i++)
        atomic_store_explicit(&m->expert_load[i], count[i], memory_order_relaxed);
    free(count);
    m->device_load_ns = now;
    return code;
}

/* What one rank cannot do ends the job on all: the others wait for its GPU. */
static enum nyb_code tell_ranks(struct model *m, enum nyb_code code, struct nyb_err *err)
{
    char text[512];
    if (code == NYB_OK || comm_size(m->comm) == 1)
        return code;
    comm_fail(m->comm, "rank %d: %s", comm_rank(m->comm), err_format(err, text, sizeof(text)));
    return comm_status(m->comm, err); /* the first reason, the same everywhere */
}

/* Of several ranks every one runs the same launches: a step that rank 0 watches is no graph anywhere. */
enum nyb_code model_device_forward(struct model *m, const struct batch *b, float *logits, int32_t *best,
                                   const struct model_probe *probe, struct nyb_err *err)
{
    static const struct model_probe looks_at_nothing;
    struct nyb_err own;
    ranks_forward(m, b, probe != NULL, 0);
    if (m->following && m->watched)
        probe = &looks_at_nothing;
    err = err ? err : &own;
    enum nyb_code code = tell_ranks(m, device_forward(m->device, b, logits, best, probe, err), err);
    arena_reset(&m->forward.step); /* what travelled */
    TRY(code);
    return copy_load(m, err);
}

float *model_logits_alloc(struct model *m, size_t bytes)
{
    return m->device ? device_host_alloc(m->device, bytes) : mem_try_aligned(bytes);
}

void model_logits_free(struct model *m, float *logits)
{
    if (m->device)
        device_host_free(m->device, logits);
    else
        free(logits);
}

static int32_t best_of(const float *x, int n)
{
    int32_t best = -1;
    for (int i = 0; i < n; i++)
        if (!isnan(x[i]) && (best < 0 || x[i] > x[best]))
            best = i;
    return best < 0 ? 0 : best;
}

enum nyb_code model_forward_best(struct model *m, const struct batch *b, int32_t *best, struct nyb_err *err)
{
    size_t vocab = (size_t)m->config.vocab, n = (size_t)b->n_out * vocab;
    m->want_best = m->device ? best : NULL; /* of the step that follows */
    float *logits = m->device || n == 0 ? NULL : mem_try_alloc(n, sizeof(*logits));
    if (!m->device && n > 0 && !logits)
        return err_set(err, NYB_E_MEMORY, "no memory for the logits of %d rows", b->n_out);
    enum nyb_code code = model_forward(m, b, logits, NULL, err);
    m->want_best = NULL;
    for (int i = 0; code == NYB_OK && logits && i < b->n_out; i++)
        best[i] = best_of(logits + (size_t)i * vocab, m->config.vocab);
    free(logits);
    return code;
}
