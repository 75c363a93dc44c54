/* Memory of a device besides its weights: the cache, the rows of a step, the batch. */
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "model/device_ep.h"

#define ROOM_ALIGN 256u
#define INPUT_MIN  ((size_t)1 << 20)
#define LEFT_OVER                                                                             \
    ((size_t)512 << 20)  /* of a GPU's memory: for the driver, graphs, and scratch that grows \
                          */
#define SPLIT_AT_OPEN 64 /* parts of split attention that there is scratch for from the start */

/* ---- the cache ----------------------------------------------------------------------------------- */

static int cuda_kv_type(enum kv_type t)
{
    return t == KV_F32 ? CUDA_KV_F32 : t == KV_BF16 ? CUDA_KV_BF16 : CUDA_KV_FP8;
}

static size_t layer_block_bytes(const struct device *d, enum kv_type type)
{
    size_t bytes =
        cuda_kv_block_bytes(cuda_kv_type(type), d->config->shard.kv_head.count, d->config->head_dim);
    return (bytes + ROOM_ALIGN - 1) / ROOM_ALIGN * ROOM_ALIGN;
}

size_t device_kv_block_bytes(const struct device *d, enum kv_type type)
{
    return 2 * (size_t)d->config->n_layer * layer_block_bytes(d, type);
}

uint64_t device_kv_room(const struct device *d)
{
    struct cuda_gpu_info now;
    d->plugin->info(d->gpu, &now);
    size_t keep = now.memory_bytes / 32 > LEFT_OVER ? LEFT_OVER : now.memory_bytes / 32;
    return now.free_bytes > keep ? now.free_bytes - keep : 0;
}

/* A block is padded only in its sum over layers: within a layer blocks follow each other without a gap. */
enum nyb_code device_kv_reserve(struct device *d, enum kv_type type, int n_block, struct nyb_err *err)
{
    const struct model_config *c = d->config;
    size_t one = cuda_kv_block_bytes(cuda_kv_type(type), c->shard.kv_head.count, c->head_dim), half, bytes;
    device_forget_graphs(d);
    if (d->kv_slab) {
        d->plugin->sync(d->gpu);
        d->plugin->release(d->gpu, d->kv_slab);
    }
    free(d->kv);
    d->kv_slab = NULL;
    d->kv = NULL;
    if (n_block == 0)
        return NYB_OK;
    if (!size_mul(one, (size_t)n_block, &half) || !size_add(half, ROOM_ALIGN, &half) ||
        !size_mul(half, 2 * (size_t)c->n_layer, &bytes))
        return err_set(err, NYB_E_MEMORY, "%d KV blocks are more than memory can address", n_block);
    half = half / ROOM_ALIGN * ROOM_ALIGN;
    TRY(device_alloc(d, (void **)&d->kv_slab, bytes, "the KV cache", err));
    /* No key that a row may see is ever read before it is written; zeros keep what is read beyond finite. */
    if (!d->plugin->zero(d->gpu, d->kv_slab, bytes))
        return device_failed(d, "clearing the KV cache", err);
    d->kv = mem_alloc((size_t)c->n_layer, sizeof(*d->kv));
    for (int i = 0; i < c->n_layer; i++)
        d->kv[i] = (struct cuda_kv){.k = d->kv_slab + 2 * (size_t)i * half,
                                    .v = d->kv_slab + (2 * (size_t)i + 1) * half,
                                    .scale = d->kv_scales + 2 * i,
                                    .type = cuda_kv_type(type),
                                    .n_kv_head = c->shard.kv_head.count,
                                    .head_dim = c->head_dim};
    return NYB_OK;
}

/* ---- rows ---------------------------------------------------------------------------------------- */

struct taking {
    uint8_t *base; /* NULL: only counting */
    size_t used;
    int row; /* addresses are of this one of each */
};

static void *take(struct taking *t, int n, int width, size_t size)
{
    size_t at = t->used;
    t->used = (at + (size_t)n * (size_t)width * size + ROOM_ALIGN - 1) / ROOM_ALIGN * ROOM_ALIGN;
    return t->base ? t->base + at + (size_t)t->row * (size_t)width * size : NULL;
}

int device_used(const struct device *d)
{
    int shared = 0;
    for (int i = 0; i < d->config->n_layer; i++)
        if (d->layer[i].experts.n_shared > shared)
            shared = d->layer[i].experts.n_shared;
    return d->config->moe.top_k + shared;
}

/* Whether some layer's shared experts are launches of their own. */
static bool has_shared(const struct device *d)
{
    for (int i = 0; i < d->config->n_layer; i++)
        if (d->layer[i].is_moe && d->layer[i].mlp.inner > 0)
            return true;
    return false;
}

/* Widest of the MLPs that are made of three products; 0: there is none. */
static int linear_inner(const struct device *d)
{
    int widest = 0;
    for (int i = 0; i < d->config->n_layer; i++) {
        const struct device_mlp *m = &d->layer[i].mlp;
        if (m->inner > widest && m->way == MLP_LINEAR)
            widest = m->inner;
    }
    return widest;
}

/* Of each product of so many rows' experts, what leaves most: few rows' are fp32 (cuda_ops.h). */
static size_t each_bytes(const struct device *d, int n_row)
{
    const struct model_config *c = d->config;
    size_t pairs = (size_t)n_row * (size_t)c->moe.top_k, few = pairs;
    bool packed = true;
    for (int i = 0; i < c->n_layer; i++)
        packed = packed && (!d->layer[i].is_moe || d->layer[i].experts.way == MLP_PACKED);
    if (packed)
        few = pairs < CUDA_SLOTS_MAX ? pairs : CUDA_SLOTS_MAX;
    size_t wide = few * sizeof(float), narrow = pairs * sizeof(uint16_t);
    return (wide > narrow ? wide : narrow) * (size_t)c->hidden;
}

/* What device_ep.h needs; nothing without it. */
static void lay_out_experts(const struct device *d, struct device_room *r, struct taking *t, int head)
{
    const struct model_config *c = d->config;
    int n = d->ep && c->moe.n_expert ? r->n_row : 0;
    r->x_all = take(t, n, c->hidden, sizeof(uint16_t));
    r->local = take(t, n, c->moe.top_k, sizeof(int32_t));
    r->each = take(t, 1, 1, n ? each_bytes(d, n) : 0);
    r->x_out_all = take(t, d->ep ? head : 0, c->hidden, sizeof(uint16_t));
}

static void lay_out(const struct device *d, struct device_room *r, struct taking *t)
{
    const struct model_config *c = d->config;
    int n = r->n_row, q = c->shard.head.count * c->head_dim, kv = c->shard.kv_head.count * c->head_dim,
        inner = linear_inner(d);
    int head = n < DEVICE_HEAD_ROWS ? n : DEVICE_HEAD_ROWS;
    r->residual = take(t, n, c->hidden, sizeof(float));
    r->delta = take(t, n, c->hidden, sizeof(float));
    r->shared = take(t, has_shared(d) ? n : 0, c->hidden, sizeof(float));
    r->x = take(t, n, c->hidden, sizeof(uint16_t));
    r->x_float = take(t, n, c->hidden, sizeof(float));
    r->q = take(t, n, q, sizeof(float));
    r->k = take(t, n, kv, sizeof(float));
    r->v = take(t, n, kv, sizeof(float));
    r->q_out = take(t, n, q, sizeof(uint16_t));
    r->attended = take(t, n, q, sizeof(uint16_t));
    r->router_logits = take(t, n, c->moe.n_expert, sizeof(float));
    r->expert = take(t, n, device_used(d), sizeof(int32_t));
    r->expert_weight = take(t, n, device_used(d), sizeof(float));
    r->gate = take(t, n, inner, sizeof(float));
    r->up = take(t, n, inner, sizeof(float));
    r->h = take(t, n, inner, sizeof(uint16_t));
    r->only = take(t, n, 1, sizeof(int32_t));
    r->ones = take(t, n, 1, sizeof(float));
    r->x_out = take(t, head, c->hidden, sizeof(uint16_t));
    r->x_out_float = take(t, device_quantizes(d) ? head : 0, c->hidden, sizeof(float));
    r->attended_float = take(t, device_quantizes(d) ? n : 0, q, sizeof(float));
    r->columns = take(t, device_has_peers(d) ? head : 0, device_columns(d).count, sizeof(float));
    bool first = d->ep ? d->ep->rank == 0 : c->shard.rank == 0;
    r->logits = take(t, first ? head : 0, c->vocab, sizeof(float));
    lay_out_experts(d, r, t, head);
}

struct device_room device_room_from(const struct device *d, int row)
{
    struct device_room r = d->room;
    struct taking t = {.base = r.slab, .row = row};
    lay_out(d, &r, &t);
    r.n_row -= row;
    return r;
}

static enum nyb_code write_ones(struct device *d, const struct device_room *r, struct nyb_err *err)
{
    float *ones = mem_alloc((size_t)r->n_row, sizeof(*ones));
    for (int i = 0; i < r->n_row; i++)
        ones[i] = 1.0f;
    bool ok = d->plugin->zero(d->gpu, r->slab, r->bytes) &&
              d->plugin->write(d->gpu, r->ones, ones, (size_t)r->n_row * sizeof(*ones));
    free(ones);
    return ok ? NYB_OK : device_failed(d, "clearing the room of steps", err);
}

enum nyb_code device_room_reserve(struct device *d, int n_row, struct nyb_err *err)
{
    struct device_room r = {.n_row = n_row};
    struct taking t = {0};
    lay_out(d, &r, &t);
    device_forget_graphs(d);
    if (d->room.slab) {
        d->plugin->sync(d->gpu);
        d->plugin->release(d->gpu, d->room.slab);
    }
    d->room = (struct device_room){0};
    TRY(device_alloc(d, (void **)&r.slab, t.used, "the room of a step", err));
    r.bytes = t.used;
    t = (struct taking){.base = r.slab};
    lay_out(d, &r, &t);
    d->room = r;
    return write_ones(d, &r, err);
}

enum nyb_code device_input_reserve(struct device *d, size_t bytes, struct nyb_err *err)
{
    bytes = bytes < INPUT_MIN ? INPUT_MIN : bytes;
    if (bytes <= d->input_bytes)
        return NYB_OK;
    device_forget_graphs(d);
    d->plugin->sync(d->gpu);
    if (d->input)
        d->plugin->release(d->gpu, d->input);
    if (d->staging)
        d->plugin->release_host(d->gpu, d->staging);
    d->input = d->staging = NULL;
    d->input_bytes = 0;
    TRY(device_alloc(d, (void **)&d->input, bytes, "a batch", err));
    d->staging = d->plugin->alloc_host(d->gpu, bytes);
    if (!d->staging)
        return device_failed(d, "taking memory for a batch", err);
    d->input_bytes = bytes;
    return NYB_OK;
}

void device_forget_graphs(struct device *d)
{
    for (int i = 0; i < d->n_graph; i++)
        d->plugin->graph_free(d->gpu, d->graph[i].graph);
    d->n_graph = 0;
}

/* ---- at the start -------------------------------------------------------------------------------- */

static enum nyb_code reserve_rope(struct device *d, struct rope *rope, struct nyb_err *err)
{
    size_t bytes = (size_t)rope->max_pos * (size_t)rope->half * sizeof(float);
    d->rope = rope;
    TRY(device_alloc(d, (void **)&d->cos, bytes, "rotary tables", err));
    return device_alloc(d, (void **)&d->sin, bytes, "rotary tables", err);
}

/* Of a step of one prompt that fills the room, and of a large step with one row of each sequence. */
static enum nyb_code reserve_scratch(struct device *d, struct nyb_err *err)
{
    int n = d->room.n_row, rows = n < DEVICE_GRAPH_ROWS ? n : DEVICE_GRAPH_ROWS;
    struct device_shape shape[] = {
        {.n_row = n, .n_tile = (n + CUDA_TILE_TOKENS - 1) / CUDA_TILE_TOKENS, .n_split = 1},
        {.n_row = rows, .n_out = rows, .n_single = rows, .n_split = SPLIT_AT_OPEN},
    };
    for (size_t i = 0; i < COUNT_OF(shape); i++) {
        size_t bytes;
        if (d->ep)
            device_ep_widen(d, &shape[i]);
        device_plan_clear(d);
        device_plan_layers(d, &shape[i]);
        if (shape[i].n_out)
            device_plan_head(d, &shape[i], 0, shape[i].n_out, false);
        if (!d->plugin->scratch(d->gpu, d->plan.op, d->plan.n, &bytes))
            return err_at(err, NYB_E_UNSUPPORTED, d->info.name, -1, "this model's steps: %s",
                          d->plugin->error(d->gpu));
        d->scratch_bytes = bytes > d->scratch_bytes ? bytes : d->scratch_bytes;
    }
    if (!d->plugin->reserve(d->gpu, d->scratch_bytes))
        return device_failed(d, "taking scratch memory", err);
    return NYB_OK;
}

static enum nyb_code reserve_best(struct device *d, struct nyb_err *err)
{
    d->best = d->plugin->alloc_host(d->gpu, DEVICE_HEAD_ROWS * sizeof(*d->best));
    return d->best ? NYB_OK : device_failed(d, "taking memory for tokens", err);
}

static enum nyb_code reserve_load(struct device *d, struct nyb_err *err)
{
    size_t bytes = (size_t)d->config->n_layer * (size_t)d->config->moe.n_expert * sizeof(*d->load);
    if (bytes == 0)
        return NYB_OK;
    TRY(device_alloc(d, (void **)&d->load, bytes, "counters", err));
    return d->plugin->zero(d->gpu, d->load, bytes) ? NYB_OK : device_failed(d, "clearing counters", err);
}

enum nyb_code device_prepare(struct device *d, struct rope *rope, struct nyb_err *err)
{
    int n_row = d->option.max_tokens > 0 ? d->option.max_tokens : DEVICE_ROWS_DEFAULT;
    if (n_row > DEVICE_ROWS_MAX)
        return err_at(err, NYB_E_UNSUPPORTED, d->info.name, -1,
                      "steps on a GPU have at most %d tokens, asked for were %d", DEVICE_ROWS_MAX, n_row);
    TRY(reserve_rope(d, rope, err));
    TRY(reserve_load(d, err));
    TRY(reserve_best(d, err));
    TRY(device_input_reserve(d, INPUT_MIN, err));
    TRY(device_room_reserve(d, n_row, err));
    /* The plan of a step names a cache: one block, until the real one is reserved. */
    TRY(device_kv_reserve(d, KV_F32, 1, err));
    enum nyb_code code = reserve_scratch(d, err);
    TRY(device_kv_reserve(d, KV_F32, 0, err));
    TRY(code);
    log_info("%s: weights %.2f GB, steps of up to %d tokens %.2f GB", d->info.name,
             (double)d->slab_bytes * 1e-9, n_row, (double)(d->room.bytes + d->scratch_bytes) * 1e-9);
    return NYB_OK;
}
