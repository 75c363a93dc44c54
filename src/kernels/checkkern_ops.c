/* Checks of the operators beside the grouped product, except attention: random sizes against float64. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "fp4/fp4.h"
#include "kernels/checkkern.h"
#include "kernels/kv.h"
#include "kernels/ops.h"

static float *random_rows(const struct checkkern_env *env, uint64_t *seed, size_t n, float scale)
{
    float *x = arena_alloc(env->arena, n, sizeof(*x));
    for (size_t i = 0; i < n; i++)
        x[i] = scale * checkkern_float(seed);
    return x;
}

/* n floats and one more: all poison. */
static float *poisoned_rows(const struct checkkern_env *env, size_t n)
{
    float *y = arena_alloc(env->arena, n + 1, sizeof(*y));
    for (size_t i = 0; i <= n; i++)
        y[i] = checkkern_poison();
    return y;
}

/* What a norm's user saw: every row once, as it stayed. */
struct seen_rows {
    const float *y;
    int n;
    atomic_int *times; /* (m) */
};

static void see_row(void *own, int row, const float *y)
{
    const struct seen_rows *s = own;
    bool whole = y == s->y + (size_t)row * (size_t)s->n && !checkkern_is_poison(y[s->n - 1]);
    atomic_fetch_add(&s->times[row], whole ? 1 : 100);
}

bool checkkern_norm(const struct checkkern_env *env, struct checkkern_report *report)
{
    uint64_t seed = env->seed;
    for (int round = 0; round < env->rounds; round++, arena_reset(env->arena)) {
        int m = checkkern_int(&seed, 1, 9), n = checkkern_int(&seed, 1, round % 4 ? 300 : 5000);
        bool add = round % 2, ok = true;
        size_t count = (size_t)m * (size_t)n;
        float *x = random_rows(env, &seed, count, 3), *w = random_rows(env, &seed, (size_t)n, 1);
        float *r = random_rows(env, &seed, count, 2), *y = poisoned_rows(env, count);
        double *want = arena_alloc(env->arena, count, sizeof(*want));
        for (size_t i = 0; i < count; i++)
            want[i] = add ? (double)(x[i] + r[i]) : (double)x[i];
        struct seen_rows seen = {y, n, arena_calloc(env->arena, (size_t)m, sizeof(*seen.times))};
        const struct norm_use use = {see_row, &seen};
        struct norm_args a = {.x = x,
                              .weight = w,
                              .residual = add ? r : NULL,
                              .y = y,
                              .use = round % 3 ? &use : NULL,
                              .m = m,
                              .n = n,
                              .eps = 1e-6f};
        kernels_at(env->level)->rmsnorm(env->pool, &a);
        for (size_t t = 0; t < (size_t)m; t++) {
            double sum = 0;
            ok &= atomic_load(&seen.times[t]) == (a.use != NULL);
            for (size_t i = 0; i < (size_t)n; i++)
                sum += want[t * (size_t)n + i] * want[t * (size_t)n + i];
            for (size_t i = 0; i < (size_t)n; i++) {
                size_t at = t * (size_t)n + i;
                ok &= !add || (double)r[at] == want[at];
                ok &= checkkern_near(report, (double)y[at],
                                     want[at] / sqrt(sum / n + (double)a.eps) * (double)w[i], 2e-6);
            }
        }
        checkkern_case(report, ok && checkkern_is_poison(y[count]), "m %d, n %d, residual %d", m, n, add);
    }
    return !report->failed;
}

bool checkkern_combine(const struct checkkern_env *env, struct checkkern_report *report)
{
    uint64_t seed = env->seed;
    for (int round = 0; round < env->rounds; round++, arena_reset(env->arena)) {
        int m = checkkern_int(&seed, 1, 7), n = checkkern_int(&seed, 1, 3000), k = checkkern_int(&seed, 1, 8);
        size_t width = (size_t)n, count = (size_t)m * width, slots = (size_t)(m * k);
        bool add = round % 2, ok = true;
        float *part = random_rows(env, &seed, slots * width, 1), *w = random_rows(env, &seed, slots, 1);
        float *shared = random_rows(env, &seed, count, 1), *y = poisoned_rows(env, count);
        int32_t *slot = arena_alloc(env->arena, slots, sizeof(*slot));
        for (size_t i = 0; i < slots; i++)
            slot[i] = checkkern_int(&seed, 0, (int)slots - 1);
        struct combine_args a = {part, slot, w, add ? shared : NULL, y, m, n, k};
        kernels_at(env->level)->combine(env->pool, &a);
        for (size_t i = 0; i < count; i++) {
            double want = add ? (double)shared[i] : 0;
            for (size_t s = i / width * (size_t)k; s < (i / width + 1) * (size_t)k; s++)
                want += (double)w[s] * (double)part[(size_t)slot[s] * width + i % width];
            ok &= checkkern_near(report, (double)y[i], want, 2e-6);
        }
        checkkern_case(report, ok && checkkern_is_poison(y[count]), "m %d, n %d, top %d, shared %d", m, n, k,
                       add);
    }
    return !report->failed;
}

/* No groups here (the unit tests have them): the k best of score + bias, and weights that sum to `scaling`.
 */
static bool router_row_ok(struct checkkern_report *report, const struct router_args *a, int row)
{
    const float *logit = a->logits + row * a->n_expert;
    const int32_t *expert = a->expert + row * a->top_k;
    double total = 0, chosen = 0;
    bool ok = true;
    for (int e = 0; e < a->n_expert; e++)
        total += exp((double)logit[e]);
    if (a->score == ROUTER_SIGMOID)
        total = 0;
#define SCORE(e)  (total > 0 ? exp((double)logit[e]) / total : 1 / (1 + exp(-(double)logit[e])))
#define CHOICE(e) (SCORE(e) + (a->bias ? (double)a->bias[e] : 0))
    for (int i = 0; i < a->top_k; i++) {
        if (expert[i] < 0 || expert[i] >= a->n_expert)
            return false;
        chosen += SCORE(expert[i]);
    }
    for (int e = 0; e < a->n_expert; e++) {
        bool taken = false;
        for (int i = 0; i < a->top_k; i++)
            taken |= expert[i] == e;
        ok &= taken || CHOICE(e) <= CHOICE(expert[a->top_k - 1]) + 1e-6;
    }
    for (int i = 0; i < a->top_k; i++) {
        ok &= i == 0 || CHOICE(expert[i]) <= CHOICE(expert[i - 1]) + 1e-6;
        ok &= checkkern_near(report, (double)a->weight[row * a->top_k + i],
                             SCORE(expert[i]) / chosen * (double)a->scaling, 3e-6);
    }
#undef SCORE
#undef CHOICE
    return ok;
}

bool checkkern_router(const struct checkkern_env *env, struct checkkern_report *report)
{
    uint64_t seed = env->seed;
    for (int round = 0; round < env->rounds; round++, arena_reset(env->arena)) {
        struct router_args a = {.m = checkkern_int(&seed, 1, 20),
                                .n_expert = checkkern_int(&seed, 1, 200),
                                .n_group = 1,
                                .normalize = true,
                                .scaling = 1.5f};
        a.top_k = checkkern_int(&seed, 1, a.n_expert < 10 ? a.n_expert : 10);
        a.score = round % 2 ? ROUTER_SIGMOID : ROUTER_SOFTMAX;
        a.softmax_topk = round % 4 == 2;
        size_t slots = (size_t)(a.m * a.top_k);
        a.logits = random_rows(env, &seed, (size_t)(a.m * a.n_expert), 5);
        a.bias = round % 3 || a.softmax_topk ? NULL : random_rows(env, &seed, (size_t)a.n_expert, 0.2f);
        a.weight = poisoned_rows(env, slots);
        a.expert = arena_alloc(env->arena, slots, sizeof(*a.expert));
        for (size_t i = 0; i < slots; i++)
            a.expert[i] = -1;
        kernels_at(env->level)->router(env->pool, &a);
        bool ok = checkkern_is_poison(a.weight[slots]);
        for (int row = 0; row < a.m; row++)
            ok &= router_row_ok(report, &a, row);
        checkkern_case(report, ok, "m %d, %d experts, top %d, score %d", a.m, a.n_expert, a.top_k,
                       (int)a.score);
    }
    return !report->failed;
}

/* One head: norm, rotation. The tolerance covers the rounding to bf16 where it is asked for. */
static bool qkv_head_ok(struct checkkern_report *report, const struct qkv_args *a, const float *raw,
                        const float *norm, int t, const float *got, double tolerance)
{
    int d = a->head_dim, half = a->rotary_dim / 2;
    double x[256], sum = 0;
    bool ok = true;
    for (int i = 0; i < d; i++)
        sum += (double)raw[i] * (double)raw[i];
    for (int i = 0; i < d; i++)
        x[i] = norm ? (double)raw[i] / sqrt(sum / d + (double)a->norm_eps) * (double)norm[i] : (double)raw[i];
    for (int i = 0; i < half; i++) {
        int p = a->style == ROPE_HALF ? i : 2 * i, q = a->style == ROPE_HALF ? i + half : 2 * i + 1;
        double c = (double)a->cos[a->pos[t] * half + i], s = (double)a->sin[a->pos[t] * half + i];
        double xp = x[p], xq = x[q];
        x[p] = xp * c - xq * s;
        x[q] = xq * c + xp * s;
    }
    for (int i = 0; i < d; i++)
        ok &= checkkern_near(report, (double)got[i], x[i], tolerance * (1 + fabs(x[i])));
    return ok;
}

static bool qkv_round(const struct checkkern_env *env, struct checkkern_report *report, uint64_t *seed,
                      int round)
{
    enum { BLOCKS = 2, POSITIONS = 50 };
    int n_kv = checkkern_int(seed, 1, 3), heads = n_kv * checkkern_int(seed, 1, 4);
    int d = 8 * checkkern_int(seed, 1, 20), rotary = 2 * checkkern_int(seed, 0, d / 2),
        n = checkkern_int(seed, 1, 20);
    enum kv_type type = round % 3 == 0   ? KV_F32
                        : round % 3 == 1 ? KV_BF16
                                         : kv_kept(kernels_at(env->level), KV_BF16);
    size_t nq = (size_t)(heads * d), nk = (size_t)(n_kv * d), tok = (size_t)n;
    size_t keys = kv_block_key_bytes(type, n_kv, d) * BLOCKS,
           values = kv_block_value_bytes(type, n_kv, d) * BLOCKS;
    float *q0 = random_rows(env, seed, nq * tok, 2), *k0 = random_rows(env, seed, nk * tok, 2);
    float *q = arena_alloc(env->arena, nq * tok, 4), *k = arena_alloc(env->arena, nk * tok, 4);
    float *v = random_rows(env, seed, nk * tok, 2), key[256], value[256];
    memcpy(q, q0, nq * tok * 4);
    memcpy(k, k0, nk * tok * 4);
    float *v0 = arena_alloc(env->arena, nk * tok, 4), *norm = random_rows(env, seed, (size_t)d, 1);
    memcpy(v0, v, nk * tok * 4);
    struct kv_layer kv = {
        type, arena_alloc(env->arena, keys, 1), arena_alloc(env->arena, values, 1), BLOCKS, n_kv, d, 1, 1};
    int32_t *pos = arena_alloc(env->arena, tok, 4), *slot = arena_alloc(env->arena, tok, 4);
    for (int t = 0; t < n; t++) {
        pos[t] = checkkern_int(seed, 0, POSITIONS - 1);
        slot[t] = (t * 3 + round) % (BLOCKS * KV_BLOCK); /* 3 is prime to 32: all different */
    }
    size_t table = (size_t)(POSITIONS * (rotary / 2)) + 1;
    struct qkv_args a = {q,
                         k,
                         v,
                         round % 2 ? norm : NULL,
                         round % 2 ? norm : NULL,
                         1e-5f,
                         random_rows(env, seed, table, 1),
                         random_rows(env, seed, table, 1),
                         round % 4 < 2 ? ROPE_HALF : ROPE_INTERLEAVED,
                         rotary,
                         heads,
                         n_kv,
                         d,
                         n,
                         pos,
                         slot,
                         &kv};
    kernels_at(env->level)->qkv(env->pool, &a);
    double tolerance = 4e-6, kept = type == KV_F32 ? tolerance : 0x1.1p-8; /* q; k as the cache keeps it */
    bool ok = true;
    for (int t = 0; t < n; t++) {
        for (int h = 0; h < heads; h++) {
            size_t at = (size_t)t * nq + (size_t)(h * d);
            ok &= qkv_head_ok(report, &a, q0 + at, a.q_norm, t, q + at, tolerance);
        }
        for (int h = 0; h < n_kv; h++) {
            size_t at = (size_t)t * nk + (size_t)(h * d);
            kv_load(&kv, slot[t], h, key, value);
            ok &= qkv_head_ok(report, &a, k0 + at, a.k_norm, t, key, kept);
            for (int i = 0; i < d; i++)
                ok &= value[i] == (type != KV_F32 ? bf16_to_float(bf16_from_float(v0[at + (size_t)i]))
                                                  : v0[at + (size_t)i]);
        }
    }
    return checkkern_case(report, ok, "%d + %d heads of %d, rotary %d, %d tokens, %s", heads, n_kv, d, rotary,
                          n, kv_type_name(type));
}

bool checkkern_qkv(const struct checkkern_env *env, struct checkkern_report *report)
{
    uint64_t seed = env->seed;
    for (int round = 0; round < env->rounds; round++, arena_reset(env->arena))
        qkv_round(env, report, &seed, round);
    return !report->failed;
}
