/* The choice of experts, as transformers makes it: Qwen3MoeSparseMoeBlock, MixtralSparseMoeBlock,
 * Glm4MoeMoE.route_tokens_to_experts, Ernie4_5_MoeSparseMoeBlock. */
#include "kernels/ops.h"

#include <math.h>
#include <string.h>

#define EXPERT_MAX 4096

struct scratch {
    float score[EXPERT_MAX];  /* probabilities; the weights come from here */
    float choice[EXPERT_MAX]; /* what is compared                          */
    bool taken[EXPERT_MAX];
};

/* NaN is worse than every number, so a broken row still chooses experts that exist. */
static bool better(float a, float b)
{
    return a > b || (isnan(b) && !isnan(a));
}

/* The best one not taken, the lowest index among equals; marks it. */
static int take_best(const float *x, bool *taken, int n)
{
    int best = -1;
    for (int i = 0; i < n; i++)
        if (!taken[i] && (best < 0 || better(x[i], x[best])))
            best = i;
    ASSERT(best >= 0);
    taken[best] = true;
    return best;
}

/* The k <= n best, best first, the lower index first among equals: each finds its place among those so far,
 * which most do not reach. */
static void take_all_best(const float *x, int n, int k, int32_t *best)
{
    int held = 0;
    for (int i = 0; i < n; i++) {
        if (held == k && !better(x[i], x[best[k - 1]]))
            continue;
        int at = held < k ? held++ : k - 1;
        for (; at > 0 && better(x[i], x[best[at - 1]]); at--)
            best[at] = best[at - 1];
        best[at] = i;
    }
}

static void score_softmax(const float *logit, float *score, int n)
{
    float max = logit[0], sum = 0;
    for (int i = 1; i < n; i++)
        max = logit[i] > max || isnan(max) ? logit[i] : max;
    for (int i = 0; i < n; i++) {
        score[i] = expf(logit[i] - max);
        sum += score[i];
    }
    for (int i = 0; i < n; i++)
        score[i] /= sum;
}

static void score_sigmoid(const float *logit, float *score, int n)
{
    for (int i = 0; i < n; i++)
        score[i] = 1.0f / (1.0f + expf(-logit[i]));
}

/* A group counts as much as its two best experts together. Experts of the groups that lose compete with
 * 0.0, not -inf: with negative biases they can still be chosen, as they can in transformers. */
static void mask_groups(const struct router_args *a, float *choice, bool *taken)
{
    float group_score[EXPERT_MAX];
    int size = a->n_expert / a->n_group;
    for (int g = 0; g < a->n_group; g++) {
        const float *in = choice + (size_t)g * (size_t)size;
        memset(taken, 0, (size_t)size * sizeof(*taken));
        group_score[g] = in[take_best(in, taken, size)];
        if (size > 1)
            group_score[g] += in[take_best(in, taken, size)];
    }
    memset(taken, 0, (size_t)a->n_group * sizeof(*taken));
    for (int i = 0; i < a->top_group; i++)
        take_best(group_score, taken, a->n_group);
    for (int e = 0; e < a->n_expert; e++)
        if (!taken[e / size])
            choice[e] = 0.0f;
}

static void weigh(const struct router_args *a, const struct scratch *s, const int32_t *expert, float *weight)
{
    float sum = 0;
    for (int i = 0; i < a->top_k; i++) {
        weight[i] = s->score[expert[i]];
        sum += weight[i];
    }
    if (a->normalize) {
        float by = a->norm_add ? sum + a->norm_min : sum < a->norm_min ? a->norm_min : sum;
        for (int i = 0; i < a->top_k; i++)
            weight[i] /= by;
    }
    for (int i = 0; i < a->top_k; i++)
        weight[i] *= a->scaling;
}

static void route_row(const struct router_args *a, size_t row, struct scratch *s)
{
    size_t n = (size_t)a->n_expert, k = (size_t)a->top_k;
    const float *logit = a->logits + row * n;
    int32_t *expert = a->expert + row * k;
    float *weight = a->weight + row * k;
    if (a->softmax_topk)
        memcpy(s->score, logit, n * sizeof(float));
    else if (a->score == ROUTER_SOFTMAX)
        score_softmax(logit, s->score, a->n_expert);
    else
        score_sigmoid(logit, s->score, a->n_expert);
    for (size_t e = 0; e < n; e++)
        s->choice[e] = a->bias ? s->score[e] + a->bias[e] : s->score[e];
    if (a->n_group > 1)
        mask_groups(a, s->choice, s->taken);
    take_all_best(s->choice, a->n_expert, a->top_k, expert);
    if (a->softmax_topk) { /* the chosen logits are in the scores: soften them among themselves */
        for (size_t i = 0; i < k; i++)
            s->choice[i] = logit[expert[i]];
        float chosen[EXPERT_MAX];
        score_softmax(s->choice, chosen, a->top_k);
        for (size_t i = 0; i < k; i++)
            s->score[expert[i]] = chosen[i];
    }
    weigh(a, s, expert, weight);
}

static void run_rows(void *arg, int begin, int end, int worker)
{
    (void)worker;
    const struct router_args *a = arg;
    struct scratch s;
    for (int row = begin; row < end; row++)
        route_row(a, (size_t)row, &s);
}

void router_ref(struct pool *pool, const struct router_args *a)
{
    ASSERT(a->n_expert >= 1 && a->n_expert <= EXPERT_MAX && a->top_k >= 1 && a->top_k <= a->n_expert);
    ASSERT(a->n_group <= 1 ||
           (a->n_expert % a->n_group == 0 && a->top_group >= 1 && a->top_group <= a->n_group));
    struct router_args copy = *a;
    pool_range(pool, a->m, 1, run_rows, &copy);
}
