/* Checks of attention: values against float64, and the same bits for a token alone and in company. */
#include <math.h>
#include <string.h>

#include "fp4/fp4.h"
#include "kernels/checkkern.h"
#include "kernels/kv.h"
#include "kernels/ops.h"

#define HEAD_DIM_MAX 160

/* One sequence of n_key cached tokens; the last n_tok of them ask. */
struct scene {
    struct kv_layer kv;
    int n_key, n_tok, n_head, n_block;
    bool round_q;
    int32_t *table, *pos;
    float *q, *y, *again; /* (n_tok, n_head * head_dim) */
};

static struct scene make_scene(const struct checkkern_env *env, uint64_t *seed, enum kv_type type, int round)
{
    int n_kv = checkkern_int(seed, 1, 3), d = 8 * checkkern_int(seed, 1, HEAD_DIM_MAX / 8);
    struct scene s = {.n_key = checkkern_int(seed, 1, round % 6 == 5 ? 1400 : 150)};
    s.n_tok = checkkern_int(seed, 1, s.n_key < 40 ? s.n_key : 40);
    s.round_q = round % 2;
    s.n_head = n_kv * checkkern_int(seed, 1, round % 5 == 4 ? 20 : 8);
    s.n_block = (s.n_key + KV_BLOCK - 1) / KV_BLOCK;
    size_t keys = kv_block_key_bytes(type, n_kv, d) * (size_t)s.n_block,
           values = kv_block_value_bytes(type, n_kv, d) * (size_t)s.n_block, width = (size_t)(s.n_head * d);
    s.kv = (struct kv_layer){
        type, arena_alloc(env->arena, keys, 1), arena_alloc(env->arena, values, 1), s.n_block, n_kv, d, 0.02f,
        0.03f};
    memset(s.kv.k, 0xff, keys); /* NaN in every type */
    memset(s.kv.v, 0xff, values);
    s.table = arena_alloc(env->arena, (size_t)s.n_block, sizeof(*s.table));
    for (int b = 0; b < s.n_block; b++)
        s.table[b] = s.n_block - 1 - b;
    float k[HEAD_DIM_MAX], v[HEAD_DIM_MAX];
    for (int p = 0; p < s.n_key; p++)
        for (int h = 0; h < n_kv; h++) {
            for (int i = 0; i < d; i++) {
                k[i] = checkkern_float(seed);
                v[i] = checkkern_float(seed);
            }
            kv_store(&s.kv, s.table[p / KV_BLOCK] * KV_BLOCK + p % KV_BLOCK, h, k, v);
        }
    s.pos = arena_alloc(env->arena, (size_t)s.n_tok, sizeof(*s.pos));
    for (int t = 0; t < s.n_tok; t++)
        s.pos[t] = s.n_key - s.n_tok + t;
    s.q = arena_alloc(env->arena, width * (size_t)s.n_tok, sizeof(float));
    s.y = arena_alloc(env->arena, width * (size_t)s.n_tok + 1, sizeof(float));
    s.again = arena_alloc(env->arena, width * (size_t)s.n_tok + 1, sizeof(float));
    for (size_t i = 0; i < width * (size_t)s.n_tok; i++) {
        s.q[i] = 2 * checkkern_float(seed);
        s.y[i] = s.again[i] = checkkern_poison();
    }
    s.y[width * (size_t)s.n_tok] = checkkern_poison();
    return s;
}

/* Tokens [from, to) in one call. */
static void attend(const struct checkkern_env *env, const struct scene *s, int from, int to, float *y)
{
    size_t width = (size_t)(s->n_head * s->kv.head_dim);
    int32_t start[] = {0, to - from};
    struct batch b = {.n_seq = 1,
                      .n_tok = to - from,
                      .n_block_max = s->n_block,
                      .pos = s->pos + from,
                      .seq_start = start,
                      .block_table = s->table};
    struct attention_args a = {.q = s->q + (size_t)from * width,
                               .y = y + (size_t)from * width,
                               .kv = &s->kv,
                               .batch = &b,
                               .n_head = s->n_head,
                               .scale = 1 / sqrtf((float)s->kv.head_dim),
                               .round_q = s->round_q};
    kernels_at(env->level)->attention(env->pool, env->arena, &a);
}

static bool row_ok(struct checkkern_report *report, const struct scene *s, int t, int head)
{
    int d = s->kv.head_dim, kv_head = head / (s->n_head / s->kv.n_kv_head);
    const float *q = s->q + (size_t)(t * s->n_head + head) * (size_t)d;
    const float *y = s->y + (size_t)(t * s->n_head + head) * (size_t)d;
    double want[HEAD_DIM_MAX] = {0}, sum = 0;
    float k[HEAD_DIM_MAX], v[HEAD_DIM_MAX];
    for (int p = 0; p <= s->pos[t]; p++) { /* |q . k| <= 2 sqrt(d): no maximum needed in float64 */
        kv_load(&s->kv, s->table[p / KV_BLOCK] * KV_BLOCK + p % KV_BLOCK, kv_head, k, v);
        double score = 0;
        for (int i = 0; i < d; i++)
            score += (double)q[i] * (double)k[i];
        double weight = exp(score / sqrt((double)d));
        sum += weight;
        for (int i = 0; i < d; i++)
            want[i] += weight * (double)v[i];
    }
    /* |v| <= 1; bf16: probabilities may be rounded by 2^-9, and elements of q */
    double tolerance = s->kv.type == KV_F32 ? 3e-6 : s->round_q ? 0x1p-7 : 0x1p-8;
    bool ok = true;
    for (int i = 0; i < d; i++)
        ok &= checkkern_near(report, (double)y[i], want[i] / sum, tolerance);
    return ok;
}

static bool check(const struct checkkern_env *env, struct checkkern_report *report, enum kv_type type)
{
    uint64_t seed = env->seed;
    for (int round = 0; round < env->rounds; round++, arena_reset(env->arena)) {
        struct scene s = make_scene(env, &seed, type, round);
        size_t n = (size_t)(s.n_tok * s.n_head * s.kv.head_dim);
        attend(env, &s, 0, s.n_tok, s.y);
        bool ok = checkkern_is_poison(s.y[n]);
        for (int t = 0; t < s.n_tok; t += t < 3 ? 1 : 7)
            for (int h = 0; h < s.n_head; h += 3)
                ok &= row_ok(report, &s, t, h);
        for (int t = 0; t < s.n_tok; t++)
            attend(env, &s, t, t + 1, s.again);
        bool same = memcmp(s.y, s.again, n * sizeof(float)) == 0;
        checkkern_case(report, ok && same, "%d keys, %d tokens, %d + %d heads of %d%s", s.n_key, s.n_tok,
                       s.n_head, s.kv.n_kv_head, s.kv.head_dim, same ? "" : ": alone and together differ");
    }
    return !report->failed;
}

bool checkkern_attention_f32(const struct checkkern_env *env, struct checkkern_report *report)
{
    return check(env, report, KV_F32);
}

bool checkkern_attention_bf16(const struct checkkern_env *env, struct checkkern_report *report)
{
    const enum kv_type kept = kv_kept(kernels_at(env->level), KV_BF16);
    return check(env, report, KV_BF16) && (kept == KV_BF16 || check(env, report, kept));
}

bool checkkern_attention_fp8(const struct checkkern_env *env, struct checkkern_report *report)
{
    return check(env, report, KV_FP8);
}
