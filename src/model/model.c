#include "model/model.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sysmem.h"
#include "base/topology.h"
#include "model/budget.h"
#include "model/checksum_ranks.h"
#include "model/device.h"
#include "model/fill.h"
#include "model/model_device.h"
#include "model/model_state.h"
#include "model/ranks.h"
#include "model/rebalance.h"
#include "model/update_ranks.h"
#include "model/threads.h"

/* The cache gets huge pages from this size on: a layer's blocks are scattered, so each is a page of its own
 * otherwise, and its first use a fault. What is touched but not used is at most a huge page for each layer's
 * keys and another for its values. */
#define KV_HUGE_MIN ((size_t)4 << 20)

/* ---- opening ------------------------------------------------------------------------------------- */

/* A sliding window is the same as full attention as long as no sequence is longer than it; longer ones are
 * not served. */
static enum nyb_code settle_length(struct model *m, int64_t asked, struct nyb_err *err)
{
    struct model_config *c = &m->config;
    if (asked > c->max_position)
        return err_at(err, NYB_E_RANGE, "max_model_len", -1, "is %lld, but the model's context is %lld",
                      (long long)asked, (long long)c->max_position);
    if (c->sliding_window > 0 && asked > c->sliding_window)
        return err_at(
            err, NYB_E_UNSUPPORTED, m->hf.path, -1,
            "sliding_window is %lld and a context of %lld is asked for: attention within a window is not "
            "supported, so the context can be at most that long",
            (long long)c->sliding_window, (long long)asked);
    if (asked > 0)
        c->max_position = asked;
    if (c->sliding_window > 0 && c->max_position > c->sliding_window) {
        log_warn("the context is cut from %lld to the model's sliding window of %lld",
                 (long long)c->max_position, (long long)c->sliding_window);
        c->max_position = c->sliding_window;
    }
    return NYB_OK;
}

static enum nyb_code check_memory(const struct model *m, const char *folder, struct nyb_err *err)
{
    size_t need;
    size_t slab = m->device ? 0 : slots_bytes(&m->weights.slots);
    if (!size_add(slab, fill_staging_bytes(&m->weights.slots, pool_size(m->pool)), &need))
        need = SIZE_MAX;
    return budget_check(need, folder, err);
}

static enum nyb_code fill_weights(struct model *m, const struct model_options *o, const struct ckpt *c,
                                  struct nyb_err *err)
{
    const struct fill_progress progress = {o->progress, o->progress_arg};
    const struct fill_source source = c ? fill_from_checkpoint(c) : fill_from_seed(&o->dummy_seed);
    return fill_slots(&m->weights.slots, &source, m->pool, &progress, err);
}

static enum nyb_code read_kv_scales(struct model *m, struct ckpt *c, struct nyb_err *err)
{
    size_t n = (size_t)m->config.n_layer;
    float *k = mem_alloc(2 * n, sizeof(*k)), *v = k + n;
    enum nyb_code code = weights_read_kv_scales(k, v, &m->config, c, NULL, NULL, err);
    int n_absent = 0;
    for (size_t i = 0; code == NYB_OK && i < n; i++) {
        n_absent += k[i] == 0 || v[i] == 0;
        m->weights.layer[i].k_scale = k[i] == 0 ? 1 : k[i];
        m->weights.layer[i].v_scale = v[i] == 0 ? 1 : v[i];
    }
    if (n_absent && m->kv_type == KV_FP8) /* as exporters leave it whose scales are all 1 */
        log_info("FP8 KV cache: the checkpoint stores no scales for %d of %zu layers, which get 1.0",
                 n_absent, n);
    free(k);
    return code;
}

/* c NULL: random weights. */
static enum nyb_code open_weights(struct model *m, const struct model_options *o, struct ckpt *c,
                                  struct nyb_err *err)
{
    struct weights *w = &m->weights;
    weights_declare(w, &m->config, weights_own_head(&m->config, c));
    if (c) {
        TRY(source_resolve(&w->slots, c, m->quant, m->pool, err));
        TRY(read_kv_scales(m, c, err));
    } else {
        TRY(source_resolve_dummy(&w->slots, m->quant, err));
    }
    if (m->compute == COMPUTE_W4A4)
        TRY(source_check_input_scales(&w->slots, err));
    if (m->device)
        TRY(model_device_place(m, o, err));
    TRY(check_memory(m, o->folder, err));
    if (!m->device) {
        TRY(slots_reserve(&w->slots, err));
        topology_interleave(pool_topology(m->pool), w->slots.slab.data, w->slots.slab.bytes);
        slots_mark_near(&w->slots, topology_last_cache(pool_topology(m->pool)));
    }
    TRY(fill_weights(m, o, c, err));
    weights_link(w, &m->config);
    if (c) {
        quant_log_differences(m->quant);
        name_set_collect_unused(&m->unused, c);
        if (m->config.shard.ep_size > 1)
            ep_claim_experts(&m->unused, w, m->config.moe.n_expert, c);
        ckpt_log_unused(c);
        m->unused_known = true;
    }
    return NYB_OK;
}

/* Every slot remembers the checkpoint, which stays open as long as one does. */
static void keep_origin(struct slots *s, struct ckpt *c)
{
    struct origin *o = origin_new(c, 0);
    for (int i = 0; i < s->n; i++)
        s->slot[i].origin = origin_share(o);
    origin_drop(o);
}

/* Nobody has said how many: as many as are worth it, found out on the weights. */
static enum nyb_code settle_threads(struct model *m, struct nyb_err *err)
{
    const struct pages *slab = &m->weights.slots.slab;
    int n_thread = threads_choose(m->pool, slab->data, slab->bytes);
    return n_thread == pool_size(m->pool) ? NYB_OK : model_set_threads(m, n_thread, err);
}

static enum kv_type choose_kv_type(const struct model *m, const struct model_options *o)
{
    if (o->kv_type >= 0)
        return (enum kv_type)o->kv_type;
    if (o->compute == COMPUTE_STRICT)
        return KV_F32;
    if (o->kv_type == MODEL_KV_DECLARED && quant_kv_is_fp8(m->quant))
        return KV_FP8;
    return o->compute == COMPUTE_W4A4 ? KV_F32 : KV_BF16;
}

/* From here on sizes are those of this rank. */
static enum nyb_code join_ranks(struct model *m, const struct model_options *o, struct nyb_err *err)
{
    struct model_config *c = &m->config;
    m->comm = o->comm;
    if (!m->comm) {
        TRY(comm_open_self(&m->comm, err));
        m->own_comm = true;
    }
    if (o->expert_parallel && comm_size(m->comm) > 1) {
        shard_set_experts(&c->shard, comm_rank(m->comm), comm_size(m->comm), c->n_head, c->n_kv_head);
        c->shard.ep_redundant = o->redundant_experts;
        return ep_open(&m->ep, c, m->comm, o->dispatch, o->dispatch_rows, err);
    }
    if (o->redundant_experts > 0)
        return err_at(err, NYB_E_ARG, "num_redundant_experts", -1,
                      "is %d: copies of experts need expert parallelism over several ranks",
                      o->redundant_experts);
    shard_set(&c->shard, comm_rank(m->comm), comm_size(m->comm), c->n_head, c->n_kv_head);
    c->shard.wide = o->device != DEVICE_CPU;
    if (c->shard.size > 1 && c->head_dim % SHARD_UNIT)
        return err_set(err, NYB_E_UNSUPPORTED,
                       "heads of %d elements cannot be shared out over ranks: expected a "
                       "multiple of %d",
                       c->head_dim, SHARD_UNIT);
    return NYB_OK;
}

static enum nyb_code open_all(struct model *m, const struct model_options *o, struct nyb_err *err)
{
    struct ckpt *c = NULL;
    TRY(hfconfig_open_with(&m->hf, o->folder, o->hf_overrides, err));
    TRY(model_config_parse(&m->config, &m->hf, err));
    TRY(settle_length(m, o->max_model_len, err));
    if (m->config.moe.n_expert > 0)
        m->expert_load =
            mem_alloc((size_t)m->config.n_layer * (size_t)m->config.moe.n_expert, sizeof(*m->expert_load));
    TRY(hfconfig_generation_read(&m->generation, &m->hf, o->folder, err));
    TRY(quant_parse(&m->quant, m->hf.root, o->folder, err));
    overlap_init(&m->overlap, &o->overlap);
    m->kv_type = choose_kv_type(m, o);
    TRY(join_ranks(m, o, err));
    TRY(pool_open(&m->pool, o->n_thread, err));
    TRY(model_device_open(m, o, err));
    if (!m->device && m->config.shard.ep_size > 1 && comm_rank(m->comm) == 0)
        ep_say(&m->ep, &m->config);
    if (o->load_format == LOAD_AUTO)
        TRY(ckpt_open(&c, o->folder, CKPT_THREADS, err));
    enum nyb_code code = open_weights(m, o, c, err);
    if (code != NYB_OK) {
        ckpt_close(c);
        return code;
    }
    if (c)
        keep_origin(&m->weights.slots, c);
    if (m->device)
        return device_settle_weights(m->device, err);
    if (o->n_thread <= 0)
        TRY(settle_threads(m, err));
    return rope_open(&m->rope, &m->config.rope, m->config.max_position, err);
}

enum nyb_code model_open(struct model **out, const struct model_options *o, struct nyb_err *err)
{
    struct model *m = mem_alloc(1, sizeof(*m));
    m->compute = o->compute;
    update_begin(m);
    forward_init(&m->forward);
    overlap_init(&m->overlap, &o->overlap);
    enum nyb_code code = ranks_agree(o->comm, open_all(m, o, err), err);
    if (code != NYB_OK) {
        m->following = true; /* nobody listens */
        model_close(m);
        m = NULL;
    } else {
        m->own_comm = true;
        rebalance_open(m);
        if (!m->device) /* GPUs do not send through it */
            comm_calibrate(m->comm, kernels_cpu(), m->pool, !o->no_fusion, o->fusion_max_tokens);
    }
    *out = m;
    return code;
}

void model_give_comm_back(struct model *m)
{
    m->own_comm = false;
}

static void free_kv(struct model *m)
{
    if (m->kv_slab)
        munmap(m->kv_slab, m->kv_bytes);
    free(m->kv);
    m->kv_slab = NULL;
    m->kv = NULL;
}

void model_close(struct model *m)
{
    if (!m)
        return;
    ranks_end(m);
    update_end(m);
    rebalance_close(m);
    checksum_end(m);
    forward_free(&m->forward);
    free(m->expert_load);
    free_kv(m);
    ep_close(&m->ep);
    device_close(m->device);
    rope_close(&m->rope);
    weights_free(&m->weights);
    name_set_free(&m->unused);
    pool_close(m->pool);
    quant_free(m->quant);
    hfconfig_generation_free(&m->generation);
    model_config_free(&m->config);
    hfconfig_close(&m->hf);
    if (m->own_comm)
        comm_close(m->comm);
    free(m);
}

/* ---- KV cache ------------------------------------------------------------------------------------ */

size_t model_kv_block_bytes(const struct model *m)
{
    const struct model_config *c = &m->config;
    int local = comm_local_size(m->comm);
    if (m->device)
        return device_kv_block_bytes(m->device, m->kv_type);
    const enum kv_type kept = kv_kept(kernels_cpu(), m->kv_type);
    const size_t one = kv_block_key_bytes(kept, c->shard.kv_head.count, c->head_dim) +
                       kv_block_value_bytes(kept, c->shard.kv_head.count, c->head_dim);
    return (size_t)c->n_layer * one * (size_t)local;
}

uint64_t model_kv_room(const struct model *m)
{
    return m->device ? device_kv_room(m->device) / 10 * 9 : sysmem_available() / 10 * 8;
}

int model_kv_blocks(const struct model *m)
{
    return m->kv ? m->kv[0].n_block : 0;
}

/* Pages come with first use: a long context that is not used costs nothing. */
enum nyb_code model_kv_reserve(struct model *m, int n_block, struct nyb_err *err)
{
    const struct model_config *c = &m->config;
    size_t bytes;
    if (n_block < 1 || n_block > INT32_MAX / KV_BLOCK)
        return err_set(err, NYB_E_RANGE, "a KV cache of %d blocks is asked for, expected 1 to %d", n_block,
                       INT32_MAX / KV_BLOCK);
    ranks_reserve(m, n_block);
    free_kv(m);
    if (m->device)
        return model_device_kv_reserve(m, n_block, err);
    if (!size_mul(model_kv_block_bytes(m), (size_t)n_block, &bytes))
        return err_set(err, NYB_E_MEMORY, "%d KV blocks are more than memory can address", n_block);
    TRY(budget_check(bytes, "the KV cache", err));
    bytes /= (size_t)comm_local_size(m->comm);
    void *slab =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (slab == MAP_FAILED)
        return err_set(err, NYB_E_MEMORY, "no memory for a KV cache of %.2f GB", (double)bytes * 1e-9);
    if (bytes >= KV_HUGE_MIN)
        madvise(slab, bytes, MADV_HUGEPAGE); /* best effort */
    topology_interleave(pool_topology(m->pool), slab, bytes);
    m->kv_slab = slab;
    m->kv_bytes = bytes;
    m->kv = mem_alloc((size_t)c->n_layer, sizeof(*m->kv));
    const enum kv_type kept = kv_kept(kernels_cpu(), m->kv_type);
    const size_t layer = bytes / (size_t)c->n_layer;
    const size_t keys = kv_block_key_bytes(kept, c->shard.kv_head.count, c->head_dim) * (size_t)n_block;
    for (int i = 0; i < c->n_layer; i++)
        m->kv[i] = (struct kv_layer){
            .type = kept,
            .k = m->kv_slab + (size_t)i * layer,
            .v = m->kv_slab + (size_t)i * layer + keys,
            .n_block = n_block,
            .n_kv_head = c->shard.kv_head.count,
            .head_dim = c->head_dim,
            .k_scale = m->weights.layer[i].k_scale,
            .v_scale = m->weights.layer[i].v_scale,
        };
    return NYB_OK;
}

/* ---- facts and the step -------------------------------------------------------------------------- */

const struct model_config *model_config(const struct model *m)
{
    return &m->config;
}

const struct hfconfig_generation *model_generation(const struct model *m)
{
    return &m->generation;
}

struct pool *model_pool(struct model *m)
{
    return m->pool;
}

enum nyb_code model_set_threads(struct model *m, int n_thread, struct nyb_err *err)
{
    struct pool *pool;
    TRY(pool_open(&pool, n_thread, err));
    pool_close(m->pool);
    m->pool = pool;
    return NYB_OK;
}

void model_set_overlap(struct model *m, enum overlap_mode mode)
{
    m->overlap.option.mode = mode;
}

const struct weights *model_weights(const struct model *m)
{
    return &m->weights;
}

enum kv_type model_kv_type(const struct model *m)
{
    return m->kv_type;
}

const char *model_quant_text(const struct model *m)
{
    return quant_describe(m->quant);
}

uint64_t model_weight_bytes(const struct model *m)
{
    return m->device ? device_weight_bytes(m->device) : m->weights.slots.slab.bytes;
}

bool model_expert_load(const struct model *m, int layer, uint64_t *count)
{
    const struct model_config *c = &m->config;
    if (layer < 0 || layer >= c->n_layer || !m->expert_load || !c->layer_is_moe[layer])
        return false;
    model_device_look_at_load(m);
    const atomic_ullong *load = m->expert_load + (size_t)layer * (size_t)c->moe.n_expert;
    for (int i = 0; i < c->moe.n_expert; i++)
        count[i] = atomic_load_explicit(&load[i], memory_order_relaxed);
    return true;
}

/* A row to cut the step at, or 0. */
static int choose_cut(struct model *m, const struct pass *p)
{
    if (m->following)
        return m->follow_cut;
    if (p->watched)
        return 0;
    bool always = m->overlap.option.mode == OVERLAP_ALWAYS;
    if (p->ep && !always && !ep_vote_to_cut(p->batch, model_ranks(m)))
        return 0;
    return overlap_choose(&m->overlap, p->batch, model_ranks(m));
}

enum nyb_code model_forward(struct model *m, const struct batch *b, float *logits,
                            const struct model_probe *probe, struct nyb_err *err)
{
    if (!m->kv)
        return err_set(err, NYB_E_INTERNAL, "no KV cache has been reserved");
    bool ep = m->config.shard.ep_size > 1;
    const struct pass pass = {
        .config = &m->config,
        .stages = layer_stages,
        .weights = &m->weights,
        .kernels = kernels_cpu(),
        .pool = m->pool,
        .compute = m->compute,
        .rope = &m->rope,
        .kv = m->kv,
        .batch = b,
        .probe = probe,
        .expert_load = m->expert_load,
        .comm = m->comm,
        .sums = ep ? m->ep.self : m->comm,
        .ep = ep ? &m->ep : NULL,
        .watched = ranks_watched(m, probe),
    };
    TRY(forward_check(&pass, err));
    if (m->device)
        return model_device_forward(m, b, logits, m->want_best, probe, err);
    int cut = choose_cut(m, &pass);
    ranks_forward(m, b, pass.watched, cut);
    uint64_t begin = clock_ns();
    int32_t last = 0;
    for (int i = 0; i < b->n_tok; i++)
        last = b->pos[i] > last ? b->pos[i] : last;
    rope_extend(&m->rope, last);
    forward_run(&m->forward, &pass, cut, logits);
    overlap_learn(&m->overlap, b, cut, clock_ns() - begin);
    return comm_status(m->comm, err);
}
