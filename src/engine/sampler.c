#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/nucleus.h"
#include "engine/rng.h"
#include "engine/sampler_choice.h"
#include "engine/sampler_together.h"
#include "engine/sampler_spread.h"

struct candidate {
    float x; /* logit, or weight exp((x - max) / temperature) */
    int32_t id;
};

struct scratch {
    float *row;             /* (vocab) a copy of the logits, where the raw ones are needed afterwards */
    struct candidate *list; /* (vocab) */
    struct nucleus_work work;
};

struct sampler {
    int vocab, n_worker;
    const struct sampler_ops *ops;
    struct scratch *scratch;      /* (n_worker) */
    struct sampler_row *together; /* (n_worker) */
};

enum nyb_code sampler_open(struct sampler **out, int vocab, int n_worker, struct nyb_err *err)
{
    ASSERT(vocab > 0 && n_worker > 0);
    size_t n = (size_t)vocab;
    struct sampler *s = mem_alloc(1, sizeof(*s));
    *s = (struct sampler){.vocab = vocab,
                          .n_worker = n_worker,
                          .ops = sampler_ops_at(cpu_level()),
                          .scratch = mem_alloc((size_t)n_worker, sizeof(*s->scratch)),
                          .together = mem_alloc((size_t)n_worker, sizeof(*s->together))};
    for (int i = 0; i < n_worker; i++) {
        struct scratch *c = &s->scratch[i];
        c->row = mem_try_aligned(n * sizeof(*c->row));
        c->list = mem_try_aligned(n * sizeof(*c->list));
        if (!nucleus_work_open(&c->work, vocab) || !c->row || !c->list) {
            sampler_close(s);
            return err_set(err, NYB_E_MEMORY, "no memory for sampling %d tokens on %d threads", vocab,
                           n_worker);
        }
    }
    *out = s;
    return NYB_OK;
}

void sampler_close(struct sampler *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->n_worker; i++) {
        free(s->scratch[i].row);
        free(s->scratch[i].list);
        nucleus_work_close(&s->scratch[i].work);
    }
    free(s->scratch);
    free(s->together);
    free(s);
}

void sampler_use(struct sampler *s, enum cpu_level level)
{
    s->ops = sampler_ops_at(level);
}

/* ---- the k largest --------------------------------------------------------------------------------- */

/* A heap whose root is the worst kept: smaller logit, or the same and a larger id. */
static bool is_worse(struct candidate a, struct candidate b)
{
    return a.x < b.x || (a.x == b.x && a.id > b.id);
}

static void heap_sink(struct candidate *h, int n, int at)
{
    struct candidate c = h[at];
    for (int child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && is_worse(h[child + 1], h[child]))
            child++;
        if (!is_worse(h[child], c))
            break;
        h[at] = h[child];
    }
    h[at] = c;
}

/* The k best of x (n) into list, best first. Fewer where fewer are above -INFINITY. */
static int select_top_k(const struct sampler_ops *ops, const float *x, int n, int k, struct candidate *list)
{
    int held = 0, i = 0;
    for (; i < n && held < k; i++)
        if (x[i] > -INFINITY)
            list[held++] = (struct candidate){x[i], i};
    for (int at = held / 2 - 1; at >= 0; at--)
        heap_sink(list, held, at);
    while (i < n && held) {
        if (i % SAMPLER_SCAN == 0 && (i = ops->next_above(x, n, i, list[0].x)) == n)
            break;
        int end = n - i < SAMPLER_SCAN ? n : (i / SAMPLER_SCAN + 1) * SAMPLER_SCAN;
        for (; i < end; i++)
            if (x[i] > list[0].x) {
                list[0] = (struct candidate){x[i], i};
                heap_sink(list, held, 0);
            }
    }
    for (int last = held - 1; last > 0; last--) {
        struct candidate worst = list[0];
        list[0] = list[last];
        list[last] = worst;
        heap_sink(list, last, 0);
    }
    return held;
}

/* ---- the draw --------------------------------------------------------------------------------------- */

static int32_t draw_from_list(const struct candidate *list, int n, double u)
{
    double total = 0, at = 0;
    for (int i = 0; i < n; i++)
        total += (double)list[i].x;
    for (int i = 0; i < n; i++) {
        at += (double)list[i].x;
        if (at > u * total)
            return list[i].id;
    }
    return n ? list[n - 1].id : -1;
}

static int32_t sample_top_k(const struct sampler *s, const struct draw *d, const float *x, struct scratch *c)
{
    struct candidate *list = c->list;
    int n = select_top_k(s->ops, x, s->vocab, d->top_k, list);
    if (n == 0 || !isfinite(list[0].x))
        return -1;
    for (int i = 0; i < n; i++)
        c->work.band[i] = list[i].x;
    s->ops->weigh(c->work.band, n, list[0].x, d->scale, d->min_p, c->work.band, NULL);
    double total = 0;
    int held = 0;
    for (; held < n && c->work.band[held] > 0; held++) {
        list[held].x = c->work.band[held];
        total += (double)c->work.band[held];
    }
    if (d->top_p < 1) {
        double at = 0;
        for (int i = 0; i < held; i++) {
            at += (double)list[i].x;
            if (at >= total * (double)d->top_p)
                held = i + 1;
        }
    }
    return draw_from_list(list, held, d->uniform);
}

static int32_t sample_whole(const struct sampler *s, const struct draw *d, const float *x, struct scratch *c,
                            struct pool *pool)
{
    const struct sampler_spread spread = {s->ops, pool};
    const struct sampler_glance glance = nucleus_glance(&c->work);
    bool look = d->top_p < 1 && nucleus_wants_sample(s->vocab);
    int at;
    struct sampler_weights w = {.x = x, .n = s->vocab, .scale = d->scale, .least = d->min_p};
    w.max = sampler_spread_max(&spread, x, s->vocab, &at, look ? &glance : NULL);
    if (!isfinite(w.max))
        return -1;
    struct sampler_choice from = {.ops = s->ops, .w = &w, .sum = c->work.sum.all};
    if (d->top_p >= 1)
        return sampler_choice_draw(&from, d->uniform * sampler_spread_weigh(&spread, &w, c->work.sum.all));
    struct nucleus in = nucleus_find(&spread, &w, d->top_p, &c->work);
    from.cut = in.cut;
    from.n_eq = in.n_eq;
    from.sum = in.above;
    from.n_eq_block = in.equal;
    return sampler_choice_draw(&from, d->uniform * (in.mass + in.n_eq * (double)in.cut));
}

/* ---- changes to the logits --------------------------------------------------------------------------- */

static void ban_bad_words(const struct sampler_input *in, int vocab, float *x)
{
    for (int i = 0; i < in->p->n_bad; i++) {
        const struct params_run *r = &in->p->bad[i];
        int before = r->n - 1;
        if (before < 0 || before > in->n_out || r->tok[before] < 0 || r->tok[before] >= vocab)
            continue;
        if (!memcmp(in->out + in->n_out - before, r->tok, (size_t)before * sizeof(*r->tok)))
            x[r->tok[before]] = -INFINITY;
    }
}

/* allowed (n): ascending. */
static void ban_all_but(const struct sampler_ops *ops, const int32_t *allowed, int n, int vocab, float *x)
{
    int at = 0;
    for (int i = 0; i < n; i++) {
        if (allowed[i] > at)
            ops->ban(x + at, allowed[i] - at);
        at = allowed[i] + 1;
    }
    if (at < vocab)
        ops->ban(x + at, vocab - at);
}

/* No end before min_tokens. */
static void ban_early_end(const struct params *p, int vocab, float *x)
{
    for (int i = 0; i < p->n_eos; i++)
        if (p->eos[i] >= 0 && p->eos[i] < vocab)
            x[p->eos[i]] = -INFINITY;
    for (int i = 0; i < p->n_stop_token; i++)
        x[p->stop_token[i]] = -INFINITY;
}

static void apply_penalties(const struct params *p, const struct history *h, float *x)
{
    for (int i = 0; i < h->n; i++) {
        const struct history_entry *e = &h->entry[i];
        float *l = &x[e->token];
        *l = *l > 0 ? *l / p->repetition : *l * p->repetition;
        if (e->n_out)
            *l -= p->frequency * (float)e->n_out + p->presence;
    }
}

static void change_logits(const struct sampler_ops *ops, const struct sampler_input *in, int vocab, float *x)
{
    bool over = false;
    if (in->constraint) {
        constraint_mask(in->constraint, in->p, x, vocab);
        over = constraint_is_over(in->constraint);
    }
    if (in->p->allowed)
        ban_all_but(ops, in->p->allowed, in->p->n_allowed, vocab, x);
    ban_bad_words(in, vocab, x);
    for (int i = 0; i < in->p->n_bias; i++)
        x[in->p->bias[i].token] += (float)in->p->bias[i].bias;
    if (in->n_out < in->p->min_tokens && !over)
        ban_early_end(in->p, vocab, x);
    if (in->history)
        apply_penalties(in->p, in->history, x);
}

static int32_t choose(const struct sampler *s, const struct draw *d, float *x, struct scratch *c,
                      struct pool *pool)
{
    if (d->scale == 0) {
        const struct sampler_spread spread = {s->ops, pool};
        int at;
        return isfinite(sampler_spread_max(&spread, x, s->vocab, &at, NULL)) ? at : -1;
    }
    return d->top_k > 0 ? sample_top_k(s, d, x, c) : sample_whole(s, d, x, c, pool);
}

static struct draw draw_of(const struct params *p, int n_out)
{
    bool greedy = p->temperature <= 0;
    return (struct draw){.uniform = greedy ? 0 : rng_uniform(p->seed, (uint64_t)n_out),
                         .scale = greedy ? 0 : 1 / p->temperature,
                         .top_p = p->top_p,
                         .min_p = p->min_p,
                         .top_k = p->top_k,
                         .wanted = true};
}

/* ---- exported ----------------------------------------------------------------------------------------- */

bool sampler_wants_history(const struct params *p)
{
    return p->repetition != 1 || p->presence != 0 || p->frequency != 0;
}

bool sampler_draw(const struct sampler_input *in, int most_top_k, struct draw *out)
{
    const struct params *p = in->p;
    bool changed =
        in->constraint || in->history || p->allowed || p->n_bad || p->n_bias || in->n_out < p->min_tokens;
    if (changed || p->n_logprob >= 0 || p->top_k > most_top_k ||
        params_forced_token(p, in->out, in->n_out) >= 0)
        return false;
    *out = draw_of(p, in->n_out);
    return true;
}

int32_t sampler_choose(struct sampler *s, int worker, const struct draw *d, float *logits)
{
    ASSERT(worker >= 0 && worker < s->n_worker);
    return choose(s, d, logits, &s->scratch[worker], NULL);
}

/* As many at a time as there is memory for. */
void sampler_choose_together(struct sampler *s, struct pool *pool, int n, struct sampler_drawn *row)
{
    for (int here; n > 0; n -= here, row += here) {
        here = n < s->n_worker ? n : s->n_worker;
        for (int i = 0; i < here; i++) {
            ASSERT(row[i].draw->top_k == 0);
            s->together[i].draw = row[i].draw;
            s->together[i].logits = row[i].logits;
            s->together[i].work = &s->scratch[i].work;
        }
        sampler_together(s->ops, pool, s->vocab, s->together, here);
        for (int i = 0; i < here; i++)
            row[i].token = s->together[i].token;
    }
}

bool sampler_logprobs(struct sampler *s, int worker, const float *logits, int32_t token, int n,
                      struct nyb_logprob *logprob)
{
    ASSERT(worker >= 0 && worker < s->n_worker && token >= 0 && token < s->vocab);
    int at;
    float max = s->ops->max(logits, s->vocab, &at, NULL);
    if (!isfinite(max))
        return false;
    double norm = (double)max + log(s->ops->weigh(logits, s->vocab, max, 1, 0, NULL, NULL));
    logprob[0] = (struct nyb_logprob){token, (float)((double)logits[token] - norm),
                                      1 + s->ops->count_before(logits, s->vocab, token)};
    struct candidate *list = s->scratch[worker].list;
    int held = n > 0 ? select_top_k(s->ops, logits, s->vocab, n, list) : 0;
    for (int i = 0; i < held; i++)
        logprob[1 + i] = (struct nyb_logprob){list[i].id, (float)((double)list[i].x - norm), i + 1};
    for (int i = held; i < n; i++) /* more were asked for than are possible */
        logprob[1 + i] = (struct nyb_logprob){-1, -INFINITY, 0};
    return true;
}

int32_t sampler_row(struct sampler *s, int worker, const struct sampler_input *in,
                    struct nyb_logprob *logprob)
{
    ASSERT(worker >= 0 && worker < s->n_worker);
    const struct params *p = in->p;
    struct scratch *c = &s->scratch[worker];
    float *x = in->logits;
    if (p->n_logprob >= 0) {
        memcpy(c->row, in->logits, (size_t)s->vocab * sizeof(*x));
        x = c->row;
    }
    change_logits(s->ops, in, s->vocab, x);
    int32_t token = params_forced_token(p, in->out, in->n_out);
    if (token < 0) {
        const struct draw d = draw_of(p, in->n_out);
        token = choose(s, &d, x, c, in->pool);
    }
    if (token >= 0 && p->n_logprob >= 0 &&
        !sampler_logprobs(s, worker, in->logits, token, p->n_logprob, logprob))
        return -1;
    return token;
}
