/* The scalar truth of one attention split: as written in attention.h, with every product in fp32. */
#include "kernels/attention.h"

#include <math.h>
#include <string.h>

#include "kernels/ops.h"

static size_t work_bytes(const struct kv_layer *kv)
{
    return 2 * sizeof(float) * ATTENTION_STEP * (size_t)kv->head_dim;
}

/* Keys [begin, begin + n) that are in step: k and v (n, head_dim) as floats. */
static void load_step(const struct attention_tile *t, int begin, int n, float *k, float *v)
{
    size_t d = (size_t)t->kv->head_dim;
    for (int j = 0; j < n; j++) {
        int pos = begin + j;
        int32_t slot = t->block[pos / KV_BLOCK] * KV_BLOCK + pos % KV_BLOCK;
        kv_load(t->kv, slot, t->kv_head, k + (size_t)j * d, v + (size_t)j * d);
    }
}

/* One row over the n keys that it sees. */
static void row_step(const float *q, const float *k, const float *v, size_t d, int n, float scale, float *m,
                     float *l, float *acc)
{
    float p[ATTENTION_STEP], m_new = *m;
    for (int j = 0; j < n; j++) {
        float s = 0;
        for (size_t i = 0; i < d; i++)
            s += q[i] * k[(size_t)j * d + i];
        p[j] = s * scale;
        if (!(p[j] <= m_new)) /* a NaN becomes the maximum, and so the result */
            m_new = p[j];
    }
    float shrink = exp2f(*m - m_new);
    *m = m_new;
    *l *= shrink;
    for (size_t i = 0; i < d; i++)
        acc[i] *= shrink;
    for (int j = 0; j < n; j++) {
        float e = exp2f(p[j] - m_new);
        *l += e;
        for (size_t i = 0; i < d; i++)
            acc[i] += e * v[(size_t)j * d + i];
    }
}

static void split(const struct attention_tile *t, int begin, int end, void *work, struct attention_part *out)
{
    size_t d = (size_t)t->kv->head_dim, pad = (size_t)kv_pad(t->kv->type, t->kv->head_dim);
    float *k = work, *v = k + ATTENTION_STEP * d;
    int n_row = t->n_tok * t->n_head;
    for (int r = 0; r < n_row; r++) {
        out->m[r] = -INFINITY;
        out->l[r] = 0;
        memset(out->acc + (size_t)r * pad, 0, pad * sizeof(float));
    }
    for (int k0 = begin; k0 < end; k0 += ATTENTION_STEP) {
        int n = end - k0 < ATTENTION_STEP ? end - k0 : ATTENTION_STEP;
        load_step(t, k0, n, k, v);
        for (int r = 0; r < n_row; r++) {
            int sees = t->pos[r / t->n_head] + 1 - k0;
            if (sees > 0)
                row_step(attention_query(t, r), k, v, d, sees < n ? sees : n, t->scale, &out->m[r],
                         &out->l[r], out->acc + (size_t)r * pad);
        }
    }
}

void attention_ref(struct pool *pool, struct arena *scratch, const struct attention_args *a)
{
    static const struct attention_kernel kernel = {work_bytes, split, ATTENTION_ROWS};
    attention_run(pool, scratch, a, &kernel);
}
