/* What happens to q, k and v between their projections and attention: one token an item. */
#include "kernels/kv.h"
#include "kernels/ops.h"
#include "kernels/row.h"

/* norm and rotation of the heads of one row, (n_head, head_dim) */
static void finish_heads(const struct qkv_args *a, float *x, int n_head, const float *norm, int32_t pos)
{
    size_t d = (size_t)a->head_dim, half = (size_t)a->rotary_dim / 2;
    const float *cosine = a->cos + (size_t)pos * half, *sine = a->sin + (size_t)pos * half;
    for (int h = 0; h < n_head; h++) {
        float *head = x + (size_t)h * d;
        if (norm)
            row_norm(head, head, NULL, norm, d, a->norm_eps);
        if (a->style == ROPE_HALF)
            row_rope_half(head, cosine, sine, half);
        else
            row_rope_interleaved(head, cosine, sine, half);
    }
}

void ROW_VARIANT(qkv_head)(const struct qkv_args *a, int tok, int kv_head)
{
    size_t d = (size_t)a->head_dim, kv_at = (size_t)tok * (size_t)a->n_kv_head + (size_t)kv_head;
    int group = a->n_head / a->n_kv_head;
    float *k = a->k + kv_at * d;
    finish_heads(a, a->q + kv_at * (size_t)group * d, group, a->q_norm, a->pos[tok]);
    finish_heads(a, k, 1, a->k_norm, a->pos[tok]);
    kv_store(a->kv, a->slot[tok], kv_head, k, a->v + kv_at * d);
}

static void run_tokens(void *arg, int begin, int end, int worker)
{
    (void)worker;
    const struct qkv_args *a = arg;
    size_t d = (size_t)a->head_dim, n_q = (size_t)a->n_head * d, n_kv = (size_t)a->n_kv_head * d;
    for (int t = begin; t < end; t++) {
        float *k = a->k + (size_t)t * n_kv, *v = a->v + (size_t)t * n_kv;
        finish_heads(a, a->q + (size_t)t * n_q, a->n_head, a->q_norm, a->pos[t]);
        finish_heads(a, k, a->n_kv_head, a->k_norm, a->pos[t]);
        for (int h = 0; h < a->n_kv_head; h++)
            kv_store(a->kv, a->slot[t], h, k + (size_t)h * d, v + (size_t)h * d);
    }
}

void ROW_VARIANT(qkv)(struct pool *pool, const struct qkv_args *a)
{
    ASSERT(a->rotary_dim >= 0 && a->rotary_dim % 2 == 0 && a->rotary_dim <= a->head_dim);
    struct qkv_args copy = *a;
    pool_range(pool, a->n_tok, 1, run_tokens, &copy);
}
