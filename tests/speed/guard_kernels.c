/* The kernels, on shapes small enough to be stepped: 128 outputs are eight panels. */
#include <string.h>

#include "base/cpu.h"
#include "guard.h"
#include "kernels/checkkern.h"
#include "kernels/checkkern_gemm.h"
#include "kernels/gemm_tile.h"
#include "kernels/kv.h"
#include "kernels/ops.h"

#define N 128
#define K 512

#define HEADS    4
#define KV_HEADS 1
#define HEAD_DIM 128

static float *make_floats(struct arena *arena, size_t n)
{
    uint64_t seed = n;
    float *x = arena_alloc(arena, n, sizeof(*x));
    for (size_t i = 0; i < n; i++)
        x[i] = checkkern_float(&seed);
    return x;
}

/* ---- grouped products ---------------------------------------------------------------------------- */

struct product {
    const struct guard_env *env;
    enum compute mode;
    struct arena scratch;
    struct gemm_job job;
    struct operand op;
    const float *x;
    int m;
};

/* a: the weights' type, b: the mode, c: rows, d: 1 for gate and up. */
static void *open_product(const struct guard_env *env, const struct guard_case *c)
{
    struct product *p = arena_calloc(env->arena, 1, sizeof(*p));
    struct weight *w = arena_calloc(env->arena, 2, sizeof(*w));
    uint64_t seed = 1;
    for (int i = 0; i <= c->d; i++)
        checkkern_make_weight(env->arena, &seed, (enum weight_type)c->a, N, K, &w[i]);
    p->env = env;
    p->mode = (enum compute)c->b;
    p->m = c->c;
    p->x = checkkern_make_rows(env->arena, &seed, c->c, K);
    gemm_prepare_with(gemm_table_for(cpu_level()), env->pool, env->arena, p->mode, p->x, c->c, K, &p->op);
    p->job = (struct gemm_job){.w = &w[0],
                               .up = c->d ? &w[1] : NULL,
                               .x = &p->op,
                               .m = c->c,
                               .y = make_floats(env->arena, (size_t)c->c * N),
                               .ldy = N};
    arena_init(&p->scratch, 1 << 20);
    return p;
}

static void call_product(void *state)
{
    struct product *p = state;
    arena_reset(&p->scratch);
    gemm_run_with(gemm_table_for(cpu_level()), p->env->pool, &p->scratch, p->mode, &p->job, 1);
}

static void call_prepare(void *state)
{
    struct product *p = state;
    struct operand op;
    arena_reset(&p->scratch);
    gemm_prepare_with(gemm_table_for(cpu_level()), p->env->pool, &p->scratch, p->mode, p->x, p->m, K, &op);
}

static void close_product(void *state)
{
    struct product *p = state;
    arena_free(&p->scratch);
}

/* ---- rows ---------------------------------------------------------------------------------------- */

struct rows {
    const struct guard_env *env;
    const struct kernels *kernels;
    struct norm_args norm;
    struct router_args router;
    struct combine_args combine;
};

static void *open_rows(const struct guard_env *env, const struct guard_case *c)
{
    struct arena *a = env->arena;
    struct rows *r = arena_calloc(a, 1, sizeof(*r));
    size_t m = (size_t)c->a, n = 2048;
    int32_t *slot = arena_alloc(a, m * 8, sizeof(*slot));
    for (size_t i = 0; i < m * 8; i++)
        slot[i] = (int32_t)i;
    r->env = env;
    r->kernels = kernels_at(cpu_level());
    r->norm = (struct norm_args){.x = make_floats(a, m * n),
                                 .weight = make_floats(a, n),
                                 .residual = make_floats(a, m * n),
                                 .y = make_floats(a, m * n),
                                 .m = c->a,
                                 .n = (int)n,
                                 .eps = 1e-6f};
    r->router = (struct router_args){.logits = make_floats(a, m * 128),
                                     .m = c->a,
                                     .n_expert = 128,
                                     .top_k = 8,
                                     .n_group = 1,
                                     .normalize = true,
                                     .scaling = 1,
                                     .expert = arena_alloc(a, m * 8, sizeof(int32_t)),
                                     .weight = arena_alloc(a, m * 8, sizeof(float))};
    r->combine = (struct combine_args){.part = make_floats(a, m * 8 * n),
                                       .slot_row = slot,
                                       .weight = make_floats(a, m * 8),
                                       .y = make_floats(a, m * n),
                                       .m = c->a,
                                       .n = (int)n,
                                       .top_k = 8};
    return r;
}

static void call_norm(void *state)
{
    struct rows *r = state;
    r->kernels->rmsnorm(r->env->pool, &r->norm);
}

static void call_router(void *state)
{
    struct rows *r = state;
    r->kernels->router(r->env->pool, &r->router);
}

static void call_combine(void *state)
{
    struct rows *r = state;
    r->kernels->combine(r->env->pool, &r->combine);
}

/* ---- attention ----------------------------------------------------------------------------------- */

struct cache {
    const struct guard_env *env;
    const struct kernels *kernels;
    struct arena scratch;
    struct kv_layer layer;
    struct batch batch;
    struct qkv_args qkv;
    struct attention_args attention;
};

/* a: the cache's type, b: keys, c: of them, tokens of this step. */
static void *open_cache(const struct guard_env *env, const struct guard_case *c)
{
    struct arena *arena = env->arena;
    struct cache *s = arena_calloc(arena, 1, sizeof(*s));
    int n_block = (c->b + KV_BLOCK - 1) / KV_BLOCK, n_tok = c->c;
    const enum kv_type type = kv_kept(kernels_at(cpu_level()), (enum kv_type)c->a);
    size_t keys = kv_block_key_bytes(type, KV_HEADS, HEAD_DIM) * (size_t)n_block;
    size_t bytes = keys + kv_block_value_bytes(type, KV_HEADS, HEAD_DIM) * (size_t)n_block;
    uint8_t *k = arena_alloc(arena, bytes, 1);
    int32_t *table = arena_alloc(arena, (size_t)n_block, sizeof(*table));
    int32_t *pos = arena_alloc(arena, (size_t)n_tok, sizeof(*pos)),
            *start = arena_calloc(arena, 2, sizeof(*start));
    memset(k, 0x3c, bytes); /* about 0.01 in every type but FP8, where it is 1.5 */
    for (int i = 0; i < n_block; i++)
        table[i] = n_block - 1 - i;
    for (int t = 0; t < n_tok; t++)
        pos[t] = c->b - n_tok + t;
    start[1] = n_tok;
    s->env = env;
    s->kernels = kernels_at(cpu_level());
    s->layer = (struct kv_layer){type, k, k + keys, n_block, KV_HEADS, HEAD_DIM, 1, 1};
    s->batch = (struct batch){.n_seq = 1,
                              .n_tok = n_tok,
                              .n_block_max = n_block,
                              .pos = pos,
                              .seq_start = start,
                              .block_table = table};
    float *one = make_floats(arena, HEAD_DIM);
    s->qkv = (struct qkv_args){.q = make_floats(arena, (size_t)n_tok * HEADS * HEAD_DIM),
                               .k = make_floats(arena, (size_t)n_tok * KV_HEADS * HEAD_DIM),
                               .v = make_floats(arena, (size_t)n_tok * KV_HEADS * HEAD_DIM),
                               .q_norm = one,
                               .k_norm = one,
                               .norm_eps = 1e-6f,
                               .cos = make_floats(arena, (size_t)c->b * HEAD_DIM / 2),
                               .sin = make_floats(arena, (size_t)c->b * HEAD_DIM / 2),
                               .style = ROPE_HALF,
                               .rotary_dim = HEAD_DIM,
                               .n_head = HEADS,
                               .n_kv_head = KV_HEADS,
                               .head_dim = HEAD_DIM,
                               .n_tok = n_tok,
                               .pos = pos,
                               .slot = pos,
                               .kv = &s->layer};
    s->attention = (struct attention_args){.q = make_floats(arena, (size_t)n_tok * HEADS * HEAD_DIM),
                                           .y = make_floats(arena, (size_t)n_tok * HEADS * HEAD_DIM),
                                           .kv = &s->layer,
                                           .batch = &s->batch,
                                           .n_head = HEADS,
                                           .scale = 0.0883883f};
    arena_init(&s->scratch, 1 << 20);
    return s;
}

static void call_qkv(void *state)
{
    struct cache *s = state;
    s->kernels->qkv(s->env->pool, &s->qkv);
}

static void call_attention(void *state)
{
    struct cache *s = state;
    arena_reset(&s->scratch);
    s->kernels->attention(s->env->pool, &s->scratch, &s->attention);
}

static void close_cache(void *state)
{
    struct cache *s = state;
    arena_free(&s->scratch);
}

struct guard_list guard_kernels(void)
{
    static const struct guard_case list[] = {
        {"NVFP4 bf16 n=128 k=512 m=1", open_product, call_product, close_product, WEIGHT_NVFP4, COMPUTE_BF16,
         1, 0},
        {"NVFP4 bf16 n=128 k=512 m=3", open_product, call_product, close_product, WEIGHT_NVFP4, COMPUTE_BF16,
         3, 0},
        {"NVFP4 bf16 n=128 k=512 m=8", open_product, call_product, close_product, WEIGHT_NVFP4, COMPUTE_BF16,
         8, 0},
        {"NVFP4 bf16 gate+up n=128 k=512 m=1", open_product, call_product, close_product, WEIGHT_NVFP4,
         COMPUTE_BF16, 1, 1},
        {"NVFP4 int8 n=128 k=512 m=1", open_product, call_product, close_product, WEIGHT_NVFP4, COMPUTE_INT8,
         1, 0},
        {"NVFP4 int8 n=128 k=512 m=8", open_product, call_product, close_product, WEIGHT_NVFP4, COMPUTE_INT8,
         8, 0},
        {"NVFP4 strict n=128 k=512 m=1", open_product, call_product, close_product, WEIGHT_NVFP4,
         COMPUTE_STRICT, 1, 0},
        {"BF16 bf16 n=128 k=512 m=1", open_product, call_product, close_product, WEIGHT_BF16, COMPUTE_BF16, 1,
         0},
        {"BF16 bf16 n=128 k=512 m=8", open_product, call_product, close_product, WEIGHT_BF16, COMPUTE_BF16, 8,
         0},
        {"FP8 bf16 n=128 k=512 m=1", open_product, call_product, close_product, WEIGHT_FP8, COMPUTE_BF16, 1,
         0},
        {"prepare bf16 k=512 m=4", open_product, call_prepare, close_product, WEIGHT_NVFP4, COMPUTE_BF16, 4,
         0},
        {"prepare int8 k=512 m=4", open_product, call_prepare, close_product, WEIGHT_NVFP4, COMPUTE_INT8, 4,
         0},
        {"rmsnorm 1 x 2048", open_rows, call_norm, NULL, 1, 0, 0, 0},
        {"router 1 x 128, top 8", open_rows, call_router, NULL, 1, 0, 0, 0},
        {"combine 1 x 8 x 2048", open_rows, call_combine, NULL, 1, 0, 0, 0},
        {"qkv 1 token, bf16 cache", open_cache, call_qkv, close_cache, KV_BF16, 64, 1, 0},
        {"attention bf16 1 token, 128 keys", open_cache, call_attention, close_cache, KV_BF16, 128, 1, 0},
        {"attention fp8 1 token, 128 keys", open_cache, call_attention, close_cache, KV_FP8, 128, 1, 0},
        {"attention bf16 8 tokens, 32 keys", open_cache, call_attention, close_cache, KV_BF16, 32, 8, 0},
    };
    return (struct guard_list){list, sizeof(list) / sizeof(list[0])};
}
