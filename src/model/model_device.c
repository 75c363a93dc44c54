#include "model/model_device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "model/device.h"
#include "model/device_ep.h"
#include "model/ranks.h"

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

/* What one rank cannot do ends the job on all: the others wait for its GPU. */
static enum nyb_code tell_ranks(struct model *m, enum nyb_code code, struct nyb_err *err)
{
    char text[512];
    if (code == NYB_OK || comm_size(m->comm) == 1)
        return code;
    comm_fail(m->comm, "rank %d: %s", comm_rank(m->comm), err_format(err, text, sizeof(text)));
    return comm_status(m->comm, err); /* the first reason, the same everywhere */
}

enum nyb_code model_device_profile(struct model *m, const struct batch *b,
                                   void (*fn)(void *arg, const char *name, int n, double seconds), void *arg,
                                   struct nyb_err *err)
{
    if (!m->device)
        return err_set(err, NYB_E_ARG, "the model is not on a GPU");
    struct nyb_err own;
    err = err ? err : &own;
    ranks_profile(m, b);
    enum nyb_code code = tell_ranks(m, device_profile(m->device, b, fn, arg, err), err);
    arena_reset(&m->forward.step); /* what travelled */
    return code;
}

/* ---- opening ------------------------------------------------------------------------------------- */

/* Of expert parallelism what GPUs do. Rows go as the bf16 that their kernels read, whatever is asked for of
 * the two types that lose nothing of it. */
static enum nyb_code check_experts(const struct model *m, const struct model_options *o, struct nyb_err *err)
{
    const struct shard *s = &m->config.shard;
    if (s->ep_redundant > 0)
        return err_at(err, NYB_E_UNSUPPORTED, "num_redundant_experts", -1,
                      "is %d: on GPUs every expert is there once (--device cpu takes copies)",
                      s->ep_redundant);
    if (o->dispatch == DISPATCH_FP8 || o->dispatch == DISPATCH_NVFP4)
        return err_at(err, NYB_E_UNSUPPORTED, "dispatch_dtype", -1,
                      "is %s: GPUs send rows as the bf16 that their kernels read (f32 or bf16)",
                      ep_codec(o->dispatch)->name);
    if (m->compute != COMPUTE_BF16)
        return err_at(err, NYB_E_UNSUPPORTED, "compute", -1,
                      "%s: GPUs that share out experts compute in bf16 (--compute bf16)",
                      compute_name(m->compute));
    if (m->config.moe.n_expert > 0 && m->config.moe.n_expert < s->ep_size)
        return err_at(err, NYB_E_UNSUPPORTED, "expert_parallel", -1, "%d experts are fewer than the %d GPUs",
                      m->config.moe.n_expert, s->ep_size);
    return NYB_OK;
}

static enum nyb_code check_support(const struct model *m, const struct model_options *o, struct nyb_err *err)
{
    if (m->config.shard.ep_size > 1)
        TRY(check_experts(m, o, err));
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
    const struct device_peer_options peers = {
        .no_fusion = o->no_fusion, .overlap = o->overlap.mode != OVERLAP_OFF, .hidden = m->config.hidden};
    enum nyb_code code = check_support(m, o, err);
    if (code == NYB_OK)
        code = device_open(&m->device, &options, err);
    if (code == NYB_OK)
        code = check_backends(m, o, err);
    if (comm_size(m->comm) == 1)
        return code;
    code = ranks_agree(m->comm, code, err);
    if (code == NYB_OK && m->config.shard.ep_size > 1)
        device_ep_open(m->device, &m->config);
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

/* Each expert is on one rank, for good. */
static void add_up_ranks(const struct model *m)
{
    int n_expert = m->config.moe.n_expert, n_rank = m->config.shard.ep_size;
    for (int l = 0; l < m->config.n_layer; l++)
        for (int r = 0; r < n_rank; r++) {
            struct shard_range own = placement_slots(r, n_rank, n_expert);
            const atomic_ullong *load = m->expert_load + (size_t)l * (size_t)n_expert;
            uint64_t n = 0;
            for (int i = own.begin; i < own.begin + own.count; i++)
                n += atomic_load_explicit(&load[i], memory_order_relaxed);
            atomic_store_explicit(&m->ep.load.pairs[(size_t)l * (size_t)n_rank + (size_t)r], n,
                                  memory_order_relaxed);
        }
}

void model_device_look_at_load(const struct model *m)
{
    struct nyb_err err;
    if (!m->device || !m->expert_load)
        return;
    if (device_read_load(m->device, m->expert_load, &err) != NYB_OK)
        log_debug("%s", err.message); /* the next step says so to the requests */
    else if (m->ep.load.pairs)
        add_up_ranks(m);
}

/* A row to cut the step at, or 0: what is looked at between operators is not cut, and sequences that are on
 * one rank each are not yet. */
static int choose_cut(struct model *m, const struct batch *b, bool watched)
{
    if (m->following)
        return m->follow_cut;
    if (watched || m->config.shard.ep_size > 1 || !device_can_overlap(m->device))
        return 0;
    return overlap_choose(&m->overlap, b, comm_size(m->comm));
}

/* Of several ranks every one runs the same launches: a step that rank 0 watches is no graph anywhere. */
enum nyb_code model_device_forward(struct model *m, const struct batch *b, float *logits, int32_t *best,
                                   const struct model_probe *probe, struct nyb_err *err)
{
    static const struct model_probe looks_at_nothing;
    struct nyb_err own;
    bool watched = device_looks_inside(probe);
    int cut = choose_cut(m, b, watched);
    ranks_forward(m, b, watched, cut);
    if (m->following && m->watched)
        probe = &looks_at_nothing;
    err = err ? err : &own;
    enum nyb_code code = NYB_OK;
    if (cut > 0)
        code = device_keep_sm(m->device, b->n_tok, overlap_whole_ns(&m->overlap, b), err);
    uint64_t begin = clock_ns();
    if (code == NYB_OK)
        code = device_forward(m->device, b, cut, logits, best, m->want_draw, probe, err);
    code = tell_ranks(m, code, err);
    arena_reset(&m->forward.step); /* what travelled */
    TRY(code);
    if (!probe)
        overlap_learn(&m->overlap, b, cut, clock_ns() - begin);
    return NYB_OK;
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

enum nyb_code model_forward_draw(struct model *m, const struct batch *b, const struct draw *draw,
                                 int32_t *token, float *logits, struct nyb_err *err)
{
    ASSERT(m->device);
    m->want_best = token;
    m->want_draw = draw;
    enum nyb_code code = model_forward(m, b, logits, NULL, err);
    m->want_best = NULL;
    m->want_draw = NULL;
    return code;
}

int model_can_draw(const struct model *m)
{
    return m->device ? device_most_top_k(m->device) : 0;
}
