/* The body of a vector attention kernel, in terms of vectors of 16 floats that the including file defines.
 *
 * Scores have keys in their lanes, sums of values have dimensions; nothing crosses lanes but the max and the
 * sum of a row. K and V are walked in units of 64 bytes, q and the probabilities in words of 4: a word is one
 * float, or two bf16 that meet the two bf16 of each 4-byte lane. So one body serves both:
 *     scores  (16 keys)       += word w of q             x unit w of the block's K       w < head_dim [/ 2]
 *     acc     (16 dimensions) += word w of probabilities x unit w * pad / 16 + c of V    w < keys [/ 2]
 * Every element is a single chain of additions in the order of w, so the shape of a register tile (R rows by
 * C units) changes nothing in the result: through all steps in attention_products.h; from zero in each step,
 * and then added to what the steps before made, in attention_products_avx2.h, where probabilities stay
 * floats. FP8 blocks are decoded to bf16 first.
 *
 * With bf16 caches q keeps (nearly) all of its fp32 precision: as the sum of two bf16, or as it is. Rounding
 * it costs more in the logits than rounding the keys does, since all scores of a row then err together. Where
 * probabilities are rounded to bf16, rows are normalized by the sum of the rounded ones. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/attention_step.h"

static size_t q_bytes(const struct kv_layer *kv)
{
    return ATTENTION_ROWS * (size_t)kv->head_dim * sizeof(float);
}

static size_t work_bytes(const struct kv_layer *kv)
{
    size_t decoded = kv->type == KV_FP8 ? 2 * STEP_BLOCKS * kv_value_bytes(KV_FP8, kv->head_dim) : 0;
    return sizeof(struct work) + q_bytes(kv) + decoded;
}

/* The largest score of a row; those of keys that it does not see become -inf. */
INLINE float row_top(const struct step *s, int row)
{
    float *score = s->work->score + row * ATTENTION_STEP;
    for (int i = s->n_key; i < ATTENTION_STEP; i++)
        score[i] = -INFINITY;
    vec a = vec_max(vec_load(score), vec_load(score + 16));
    vec b = vec_max(vec_load(score + 32), vec_load(score + 48));
    return vec_max_lane(vec_max(a, b));
}

INLINE void row_probabilities(const struct step *s, int row, bool bf16)
{
    vec x[STEP_BLOCKS];
    VEC_UNROLL
    for (int b = 0; b < STEP_BLOCKS; b++) {
        x[b] = vec_load(s->work->score + row * ATTENTION_STEP + b * KV_BLOCK);
        x[b] = vec_sub(x[b], vec_set(s->m[row]));
        x[b] = bf16 ? vec_exp2_short(x[b]) : vec_exp2(x[b]);
        if (!bf16)
            vec_store((float *)(s->work->prob + row * ATTENTION_STEP) + b * KV_BLOCK, x[b]);
    }
    vec sum = vec_scale(vec_load(s->work->sum + row * 16), s->work->shrink[row]);
    if (bf16)
        sum = vec_store_rounded(s->work->prob + (size_t)row * prob_words(true), x, sum);
    else
        sum = vec_add(sum, vec_add(vec_add(x[0], x[1]), vec_add(x[2], x[3])));
    vec_store(s->work->sum + row * 16, sum);
}

/* Scores to probabilities; m, shrink and sum of the rows move on. */
INLINE void softmax_rows(const struct step *s, int row, int end, bool bf16)
{
    float *top = s->work->top;
    for (int r = row; r < end; r++)
        top[r] = row_top(s, r);
    for (int r = row; r < end; r += 16) {
        float m[16];
        vec old = vec_load(s->m + r); /* past the end: the part's l */
        vec new = vec_max(old, vec_load(top + r));
        vec_store(s->work->shrink + r, vec_exp2(vec_sub(old, new)));
        vec_store(m, new);
        for (int i = 0; i < 16 && r + i < end; i++)
            s->m[r + i] = m[i];
    }
    for (int r = row; r < end; r++)
        row_probabilities(s, r, bf16);
}

static void scores_f32(const struct step *s, int row, int end)
{
    score_rows(s, row, end, QUERY_F32);
    softmax_rows(s, row, end, false);
}

static void scores_bf16(const struct step *s, int row, int end)
{
    score_rows(s, row, end, QUERY_WHOLE);
    softmax_rows(s, row, end, true);
}

static void scores_rounded(const struct step *s, int row, int end)
{
    score_rows(s, row, end, QUERY_ROUNDED);
    softmax_rows(s, row, end, true);
}

static void scores_integer(const struct step *s, int row, int end)
{
    score_rows(s, row, end, QUERY_INTEGER);
    softmax_rows(s, row, end, true);
}

static void values_f32(const struct step *s, int row, int end)
{
    value_rows(s, row, end, false);
}

static void values_bf16(const struct step *s, int row, int end)
{
    value_rows(s, row, end, true);
}

/* Words of one row of q; returns how many. */
static size_t query_words(uint32_t *words, const float *x, size_t d, enum query query, float *unit)
{
    if (query == QUERY_INTEGER)
        *unit = vec_query_integers(words, x, d);
    else if (query == QUERY_ROUNDED)
        vec_query_rounded(words, x, d);
    else if (query == QUERY_WHOLE)
        vec_query(words, x, d);
    else
        memcpy(words, x, d * sizeof(*x));
    return query == QUERY_ROUNDED || query == QUERY_INTEGER ? d / 2 : d;
}

/* Four rows at a time, in squares of 4 x 4 words. Rows beyond n_row are not read by anybody. */
static void prepare_queries(const struct attention_tile *t, int n_row, enum query query, struct work *work)
{
    uint32_t *q = work->q;
    _Alignas(16) float row[4][KV_HEAD_DIM_MAX];
    for (int r = 0; r < n_row; r += 4) {
        size_t n = 0;
        for (int i = 0; i < 4; i++) {
            const float *x = attention_query(t, r + i < n_row ? r + i : r);
            float unit = 0;
            n = query_words((uint32_t *)row[i], x, (size_t)t->kv->head_dim, query, &unit);
            work->unit[r + i] = unit * t->scale;
        }
        for (size_t w = 0; w < n; w += 4) {
            __m128 a = _mm_load_ps(row[0] + w), b = _mm_load_ps(row[1] + w);
            __m128 c = _mm_load_ps(row[2] + w), d = _mm_load_ps(row[3] + w);
            _MM_TRANSPOSE4_PS(a, b, c, d);
            float *to = (float *)(q + w * ATTENTION_ROWS + r);
            _mm_storeu_ps(to, a);
            _mm_storeu_ps(to + ATTENTION_ROWS, b);
            _mm_storeu_ps(to + 2 * ATTENTION_ROWS, c);
            _mm_storeu_ps(to + 3 * ATTENTION_ROWS, d);
        }
    }
}

/* There are at least as many bytes of keys as of values. */
static void fetch(const struct attention_tile *t, const uint8_t *k, const uint8_t *v)
{
    size_t i = 0;
    for (; i < t->value_bytes; i += 64) {
        __builtin_prefetch(k + i, 0, FETCH_LEVEL);
        __builtin_prefetch(v + i, 0, FETCH_LEVEL);
    }
    for (; i < t->key_bytes; i += 64)
        __builtin_prefetch(k + i, 0, FETCH_LEVEL);
}

/* Where the step's blocks are, and those of the step after it, so that memory is read while this one is
 * computed. The first step of a walk has nobody who fetched for it. */
static void step_locate(struct step *s, const struct attention_tile *t, int k0, int end)
{
    for (int b = 0; b < STEP_BLOCKS; b++) {
        int key = k0 + b * KV_BLOCK, next = key + ATTENTION_STEP;
        if (key >= end) { /* never multiplied; what is prefetched must point somewhere */
            s->next_k[b] = s->k[0];
            s->next_v[b] = s->v[0];
            continue;
        }
        s->k[b] = attention_keys(t, key);
        s->v[b] = attention_values(t, key);
        s->next_k[b] = attention_keys_or(t, next, s->k[b]);
        s->next_v[b] = attention_values_or(t, next, s->v[b]);
        if (k0 == t->walk_begin)
            fetch(t, s->k[b], s->v[b]);
    }
}

/* FP8 regions to bf16 in a buffer that keys and values share: it stays in the first-level cache. */
static void step_decode(const uint8_t **region, const uint8_t **next, int n_key, size_t elements,
                        uint8_t *decoded)
{
    for (int b = 0; b * KV_BLOCK < n_key; b++) {
        uint8_t *dst = decoded + (size_t)b * 2 * elements;
        fp8_decode(dst, region[b], elements / 64, next[b]);
        region[b] = next[b] = dst; /* the source is fetched here, nothing is left to fetch */
    }
}

/* The rows that see all n keys of the step go together; a row on the diagonal goes with its token's heads. */
static void for_each_run(struct step *s, const struct attention_tile *t, int k0, int n,
                         void (*run)(const struct step *, int, int))
{
    for (int tok = 0, next; tok < t->n_tok; tok = next) {
        int sees = t->pos[tok] + 1 - k0;
        next = tok + 1;
        if (sees <= 0)
            continue;
        while (sees >= n && next < t->n_tok && t->pos[next] + 1 - k0 >= n)
            next++;
        s->n_key = sees < n ? sees : n;
        s->first_row = tok * t->n_head;
        run(s, tok * t->n_head, next * t->n_head);
    }
}

static enum query query_of(const struct attention_tile *t)
{
    if (t->kv->type == KV_F32)
        return QUERY_F32;
    if (t->kv->type == KV_I16)
        return QUERY_INTEGER;
    return VEC_ROUNDS_QUERY && t->round_q ? QUERY_ROUNDED : QUERY_WHOLE;
}

static void run_step(struct step *s, const struct attention_tile *t, int k0, int n)
{
    static void (*const scores[])(const struct step *, int, int) = {scores_f32, scores_bf16, scores_rounded,
                                                                    scores_integer};
    bool bf16 = t->kv->type != KV_F32, fp8 = t->kv->type == KV_FP8;
    uint8_t *decoded = (uint8_t *)s->work->q + q_bytes(t->kv);
    if (fp8)
        step_decode(s->k, s->next_k, n, KV_BLOCK * (size_t)t->kv->head_dim, decoded);
    for_each_run(s, t, k0, n, scores[query_of(t)]);
    if (fp8)
        step_decode(s->v, s->next_v, n, KV_BLOCK * s->pad, decoded);
    for_each_run(s, t, k0, n, bf16 ? values_bf16 : values_f32);
}

static void split(const struct attention_tile *t, int begin, int end, void *memory,
                  struct attention_part *out)
{
    struct work *w = memory;
    bool bf16 = t->kv->type != KV_F32, fp8 = t->kv->type == KV_FP8;
    size_t d = (size_t)t->kv->head_dim, pad = (size_t)kv_pad(t->kv->type, t->kv->head_dim);
    int n_row = t->n_tok * t->n_head;
    struct step s = {
        .word = bf16 ? d / 2 : d,
        .pad = pad,
        .units = t->value_bytes, /* behind as many bytes of keys */
        .scale = fp8 ? t->scale * t->kv->k_scale : t->scale,
        .work = w,
        .m = out->m,
        .acc = out->acc,
    };
    if (begin == t->walk_begin) /* the splits after it find them there */
        prepare_queries(t, n_row, query_of(t), w);
    for (int r = 0; r < n_row; r++)
        out->m[r] = -INFINITY;
    memset(w->sum, 0, (size_t)n_row * 16 * sizeof(float));
    memset(out->acc, 0, (size_t)n_row * pad * sizeof(float));
    for (int k0 = begin; k0 < end; k0 += ATTENTION_STEP) {
        int n = end - k0 < ATTENTION_STEP ? end - k0 : ATTENTION_STEP;
        step_locate(&s, t, k0, end);
        run_step(&s, t, k0, n);
    }
    for (int r = 0; r < n_row; r++)
        out->l[r] = vec_sum_lane(vec_load(w->sum + r * 16));
    if (fp8)
        for (size_t i = 0; i < (size_t)n_row * pad; i++)
            out->acc[i] *= t->kv->v_scale;
}
