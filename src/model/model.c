#include "model/model.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "base/log.h"
#include "base/mem.h"
#include "model/budget.h"
#include "model/fill.h"
#include "model/forward.h"

struct model {
    struct hfconfig hf;
    struct hfconfig_generation generation;
    struct model_config config;
    struct quant *quant;
    struct weights weights;
    struct pool *pool;
    enum compute compute;
    struct rope rope;
    struct kv_layer *kv; /* (n_layer) or NULL */
    enum kv_type kv_type;
    uint8_t *kv_slab;
    size_t kv_bytes;
    struct forward forward;
};

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
    if (!size_add(slots_bytes(&m->weights.slots), fill_staging_bytes(&m->weights.slots, pool_size(m->pool)),
                  &need))
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

/* c NULL: random weights. */
static enum nyb_code open_weights(struct model *m, const struct model_options *o, struct ckpt *c,
                                  struct nyb_err *err)
{
    struct weights *w = &m->weights;
    weights_declare(w, &m->config, weights_own_head(&m->config, c));
    if (c) {
        TRY(source_resolve(&w->slots, c, m->quant, err));
        TRY(weights_read_kv_scales(w, &m->config, c, err));
    } else {
        TRY(source_resolve_dummy(&w->slots, m->quant, err));
    }
    if (m->compute == COMPUTE_W4A4)
        TRY(source_check_input_scales(&w->slots, err));
    TRY(check_memory(m, o->folder, err));
    TRY(slots_reserve(&w->slots, err));
    TRY(fill_weights(m, o, c, err));
    weights_link(w);
    if (c) {
        quant_log_differences(m->quant);
        ckpt_log_unused(c);
    }
    return NYB_OK;
}

static enum kv_type choose_kv_type(const struct model_options *o)
{
    if (o->kv_type >= 0)
        return (enum kv_type)o->kv_type;
    return o->compute == COMPUTE_STRICT || o->compute == COMPUTE_W4A4 ? KV_F32 : KV_BF16;
}

static enum nyb_code open_all(struct model *m, const struct model_options *o, struct nyb_err *err)
{
    struct ckpt *c = NULL;
    TRY(hfconfig_open(&m->hf, o->folder, err));
    TRY(model_config_parse(&m->config, &m->hf, err));
    TRY(settle_length(m, o->max_model_len, err));
    TRY(hfconfig_generation_read(&m->generation, &m->hf, o->folder, err));
    TRY(quant_parse(&m->quant, m->hf.root, o->folder, err));
    TRY(pool_open(&m->pool, o->n_thread, err));
    if (o->load_format == LOAD_AUTO)
        TRY(ckpt_open(&c, o->folder, err));
    enum nyb_code code = open_weights(m, o, c, err);
    ckpt_close(c);
    if (code != NYB_OK)
        return code;
    return rope_open(&m->rope, &m->config.rope, m->config.max_position, err);
}

enum nyb_code model_open(struct model **out, const struct model_options *o, struct nyb_err *err)
{
    struct model *m = mem_alloc(1, sizeof(*m));
    m->compute = o->compute;
    m->kv_type = choose_kv_type(o);
    forward_init(&m->forward);
    enum nyb_code code = open_all(m, o, err);
    if (code != NYB_OK) {
        model_close(m);
        m = NULL;
    }
    *out = m;
    return code;
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
    forward_free(&m->forward);
    free_kv(m);
    rope_close(&m->rope);
    weights_free(&m->weights);
    pool_close(m->pool);
    quant_free(m->quant);
    hfconfig_generation_free(&m->generation);
    model_config_free(&m->config);
    hfconfig_close(&m->hf);
    free(m);
}

/* ---- KV cache ------------------------------------------------------------------------------------ */

size_t model_kv_block_bytes(const struct model *m)
{
    const struct model_config *c = &m->config;
    return 2 * (size_t)c->n_layer * kv_block_bytes(m->kv_type, c->n_kv_head, c->head_dim);
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
    free_kv(m);
    if (!size_mul(model_kv_block_bytes(m), (size_t)n_block, &bytes))
        return err_set(err, NYB_E_MEMORY, "%d KV blocks are more than memory can address", n_block);
    TRY(budget_check(bytes, "the KV cache", err));
    void *slab =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (slab == MAP_FAILED)
        return err_set(err, NYB_E_MEMORY, "no memory for a KV cache of %.2f GB", (double)bytes * 1e-9);
    m->kv_slab = slab;
    m->kv_bytes = bytes;
    m->kv = mem_alloc((size_t)c->n_layer, sizeof(*m->kv));
    size_t half = bytes / (2 * (size_t)c->n_layer);
    for (int i = 0; i < c->n_layer; i++)
        m->kv[i] = (struct kv_layer){
            .type = m->kv_type,
            .k = m->kv_slab + 2 * (size_t)i * half,
            .v = m->kv_slab + (2 * (size_t)i + 1) * half,
            .n_block = n_block,
            .n_kv_head = c->n_kv_head,
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
    return m->weights.slots.slab_bytes;
}

enum nyb_code model_forward(struct model *m, const struct batch *b, float *logits,
                            const struct model_probe *probe, struct nyb_err *err)
{
    if (!m->kv)
        return err_set(err, NYB_E_INTERNAL, "no KV cache has been reserved");
    const struct pass pass = {
        .config = &m->config,
        .weights = &m->weights,
        .kernels = kernels_cpu(),
        .pool = m->pool,
        .compute = m->compute,
        .rope = &m->rope,
        .kv = m->kv,
        .batch = b,
        .probe = probe,
    };
    TRY(forward_check(&pass, err));
    int32_t last = 0;
    for (int i = 0; i < b->n_tok; i++)
        last = b->pos[i] > last ? b->pos[i] : last;
    rope_extend(&m->rope, last);
    forward_run(&m->forward, &pass, logits);
    return NYB_OK;
}
