#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/rng.h"

#define SUM_BLOCK  256 /* floats that are summed in fp32 before they join the fp64 sum */
#define RADIX_BITS 10
#define RADIX      (1 << RADIX_BITS)

/* Four lanes: SSE2, which every x86-64 has. */
typedef float v4f __attribute__((vector_size(16)));
typedef int32_t v4i __attribute__((vector_size(16)));

struct candidate {
    float x; /* logit, or weight exp((x - max) / temperature) */
    int32_t id;
};

struct scratch {
    float *row;             /* (vocab) a copy of the logits, where the raw ones are needed afterwards */
    struct candidate *list; /* (vocab) */
    double *sum;            /* (max(RADIX, blocks of SUM_BLOCK)) */
};

struct sampler {
    int vocab, n_worker;
    struct scratch *scratch; /* (n_worker) */
};

enum nyb_code sampler_open(struct sampler **out, int vocab, int n_worker, struct nyb_err *err)
{
    ASSERT(vocab > 0 && n_worker > 0);
    size_t n = (size_t)vocab, n_sum = n / SUM_BLOCK + 1;
    struct sampler *s = mem_alloc(1, sizeof(*s));
    *s = (struct sampler){
        .vocab = vocab, .n_worker = n_worker, .scratch = mem_alloc((size_t)n_worker, sizeof(*s->scratch))};
    for (int i = 0; i < n_worker; i++) {
        struct scratch *c = &s->scratch[i];
        c->row = mem_try_aligned(n * sizeof(*c->row));
        c->list = mem_try_aligned(n * sizeof(*c->list));
        c->sum = mem_try_aligned((n_sum > RADIX ? n_sum : RADIX) * sizeof(*c->sum));
        if (!c->row || !c->list || !c->sum) {
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
        free(s->scratch[i].sum);
    }
    free(s->scratch);
    free(s);
}

/* ---- passes over the row --------------------------------------------------------------------------- */

static v4f load4(const float *p)
{
    v4f v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static v4f select4(v4i mask, v4f yes, v4f no)
{
    return (v4f)((mask & (v4i)yes) | (~mask & (v4i)no));
}

/* NaNs never win. -INFINITY when there is nothing else. */
static float row_max(const float *x, int n)
{
    v4f m4 = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    int i = 0;
    for (; i + 4 <= n; i += 4) {
        v4f v = load4(x + i);
        m4 = select4(v > m4, v, m4);
    }
    float m = -INFINITY;
    for (int lane = 0; lane < 4; lane++)
        m = m4[lane] > m ? m4[lane] : m;
    for (; i < n; i++)
        m = x[i] > m ? x[i] : m;
    return m;
}

/* e^z for z <= 0: 2^k e^r with |r| <= ln 2 / 2 and the Taylor series to r^7, whose remainder is below 6e-9.
 * 0 below -87, where floats end, and for NaN. */
static v4f exp4(v4f z)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
    v4i in_range = z >= -87.0f;
    z = select4(in_range, z, (v4f){0});
    v4f t = z * 1.44269504089f + magic;
    v4i k = (v4i)t << 23;
    t -= magic;
    v4f r =
        z - t * 0.693359375f; /* ln 2 in two parts: the first has zeros at the end, so t times it is exact */
    r = r + t * 2.12194440054690583e-4f;
    v4f p = r * (1.0f / 5040) + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return select4(in_range, (v4f)((v4i)p + k), (v4f){0});
}

static v4f weight4(v4f x, float max, float scale, float least)
{
    v4f w = exp4((x - max) * scale);
    return select4(w >= least, w, (v4f){0});
}

/* The weights exp((x - max) * scale) into e (n; may be x itself, or NULL), the sum of each SUM_BLOCK into sum
 * (or NULL), and the total back. Weights below `least` count as 0. */
static double row_exp(const float *x, int n, float max, float scale, float least, float *e, double *sum)
{
    double total = 0;
    for (int begin = 0; begin < n; begin += SUM_BLOCK) {
        int end = begin + SUM_BLOCK < n ? begin + SUM_BLOCK : n;
        v4f s4 = {0};
        int i = begin;
        for (; i + 4 <= end; i += 4) {
            v4f v = weight4(load4(x + i), max, scale, least);
            s4 += v;
            if (e)
                memcpy(e + i, &v, sizeof(v));
        }
        if (i < end) { /* the row's last one to three */
            v4f v = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
            memcpy(&v, x + i, (size_t)(end - i) * sizeof(float));
            v = weight4(v, max, scale, least);
            s4 += v;
            if (e)
                memcpy(e + i, &v, (size_t)(end - i) * sizeof(float));
        }
        double s = ((double)s4[0] + (double)s4[1]) + ((double)s4[2] + (double)s4[3]);
        if (sum)
            sum[begin / SUM_BLOCK] = s;
        total += s;
    }
    return total;
}

static int32_t row_argmax(const float *x, int n)
{
    float max = row_max(x, n);
    if (!isfinite(max))
        return -1;
    for (int i = 0; i < n; i++)
        if (x[i] == max)
            return i;
    return -1;
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
static int select_top_k(const float *x, int n, int k, struct candidate *list)
{
    int held = 0, i = 0;
    for (; i < n && held < k; i++)
        if (x[i] > -INFINITY)
            list[held++] = (struct candidate){x[i], i};
    for (int at = held / 2 - 1; at >= 0; at--)
        heap_sink(list, held, at);
    for (; i < n && held; i++)
        if (x[i] > list[0].x) {
            list[0] = (struct candidate){x[i], i};
            heap_sink(list, held, 0);
        }
    for (int last = held - 1; last > 0; last--) {
        struct candidate worst = list[0];
        list[0] = list[last];
        list[last] = worst;
        heap_sink(list, last, 0);
    }
    return held;
}

/* ---- the smallest set that holds `target` of the mass ---------------------------------------------- */

struct cut {
    float x;  /* weights above it are in */
    int n_eq; /* and as many of those equal to it, lowest ids first */
};

static uint32_t float_bits(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof(b));
    return b;
}

/* Weights are in [0, 1], so their bits order as they do and fit in 30: three digits of RADIX_BITS, the
 * highest first. Each round keeps the digit in which the mass, counted from the top, crosses the target. */
static struct cut find_cut(const struct candidate *list, int n, double target, double *mass)
{
    uint32_t prefix = 0;
    double above = 0; /* mass of what is above the digits fixed so far */
    for (int shift = 2 * RADIX_BITS; shift >= 0; shift -= RADIX_BITS) {
        memset(mass, 0, RADIX * sizeof(*mass));
        for (int i = 0; i < n; i++) {
            uint32_t b = float_bits(list[i].x);
            if (b >> shift >> RADIX_BITS == prefix)
                mass[b >> shift & (RADIX - 1)] += (double)list[i].x;
        }
        /* Rounding may leave the target just out of reach: then the lowest digit that occurs is it. */
        int lowest = 0;
        double above_lowest = above;
        for (int digit = RADIX - 1; digit >= 0 && above < target; digit--) {
            if (mass[digit] <= 0)
                continue;
            lowest = digit;
            above_lowest = above;
            above += mass[digit];
        }
        above = above_lowest;
        prefix = prefix << RADIX_BITS | (uint32_t)lowest;
    }
    struct cut c;
    memcpy(&c.x, &prefix, sizeof(c.x));
    double n_eq = ceil((target - above) / (double)c.x);
    c.n_eq = n_eq < 1 ? 1 : n_eq > n ? n : (int)n_eq;
    return c;
}

/* Keep the nucleus of list, in place. It is in the order of ids; returns how many stay. */
static int keep_nucleus(struct candidate *list, int n, double target, double *mass)
{
    struct cut c = find_cut(list, n, target, mass);
    int held = 0;
    for (int i = 0; i < n; i++)
        if (list[i].x > c.x || (list[i].x == c.x && c.n_eq-- > 0))
            list[held++] = list[i];
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

/* The same over a whole row of weights; the sums of its blocks say where to look. */
static int32_t draw_from_row(const float *e, int n, const double *sum, double target)
{
    double before = 0; /* mass before `block` */
    int block = -1;
    double at = 0;
    for (int b = 0; b * SUM_BLOCK < n && at <= target; b++) {
        if (sum[b] <= 0)
            continue;
        block = b;
        before = at;
        at += sum[b];
    }
    /* The sums are fp32 and this walk is fp64: where they differ, the last possible one of the block is it.
     */
    int32_t last = -1;
    int end = (block + 1) * SUM_BLOCK < n ? (block + 1) * SUM_BLOCK : n;
    for (int i = block * SUM_BLOCK; block >= 0 && i < end && before <= target; i++) {
        if (e[i] <= 0)
            continue;
        last = i;
        before += (double)e[i];
    }
    return last;
}

static int32_t sample_top_k(const struct params *p, const float *x, int vocab, double u, struct scratch *c)
{
    struct candidate *list = c->list;
    int n = select_top_k(x, vocab, p->top_k, list);
    if (n == 0 || !isfinite(list[0].x))
        return -1;
    float max = list[0].x, scale = 1 / p->temperature;
    double total = 0;
    int held = 0;
    for (; held < n; held++) {
        v4f w = exp4((v4f){(list[held].x - max) * scale});
        if (w[0] < p->min_p || w[0] <= 0)
            break;
        list[held].x = w[0];
        total += (double)w[0];
    }
    if (p->top_p < 1) {
        double at = 0;
        for (int i = 0; i < held; i++) {
            at += (double)list[i].x;
            if (at >= total * (double)p->top_p)
                held = i + 1;
        }
    }
    return draw_from_list(list, held, u);
}

static int32_t sample_whole(const struct params *p, float *x, int vocab, double u, struct scratch *c)
{
    float max = row_max(x, vocab);
    if (!isfinite(max))
        return -1;
    double total = row_exp(x, vocab, max, 1 / p->temperature, p->min_p, x, c->sum);
    if (p->top_p >= 1)
        return draw_from_row(x, vocab, c->sum, u * total);
    /* All weights below this together are less than what top_p leaves out: the cut is not among them. */
    double target = total * (double)p->top_p;
    float least = (float)(0.999 * (total - target) / vocab);
    int n = 0;
    for (int i = 0; i < vocab; i++)
        if (x[i] > 0 && x[i] >= least)
            c->list[n++] = (struct candidate){x[i], i};
    n = keep_nucleus(c->list, n, target, c->sum);
    return draw_from_list(c->list, n, u);
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

static void change_logits(const struct sampler_input *in, int vocab, float *x)
{
    ban_bad_words(in, vocab, x);
    for (int i = 0; i < in->p->n_bias; i++)
        x[in->p->bias[i].token] += (float)in->p->bias[i].bias;
    if (in->n_out < in->p->min_tokens)
        ban_early_end(in->p, vocab, x);
    if (in->history)
        apply_penalties(in->p, in->history, x);
}

/* ---- exported ----------------------------------------------------------------------------------------- */

bool sampler_wants_history(const struct params *p)
{
    return p->repetition != 1 || p->presence != 0 || p->frequency != 0;
}

/* 1 + how many come before it: larger, or equal with a lower id. */
static int32_t rank_of(const float *x, int n, int32_t token)
{
    v4i count = {0};
    float at = x[token];
    int i = 0;
    for (; i + 4 <= n; i += 4)
        count -= load4(x + i) > at;
    int32_t rank = 1 + count[0] + count[1] + count[2] + count[3];
    for (; i < n; i++)
        rank += x[i] > at;
    for (i = 0; i < token; i++)
        rank += x[i] == at;
    return rank;
}

bool sampler_logprobs(struct sampler *s, int worker, const float *logits, int32_t token, int n,
                      struct nyb_logprob *logprob)
{
    ASSERT(worker >= 0 && worker < s->n_worker && token >= 0 && token < s->vocab);
    float max = row_max(logits, s->vocab);
    if (!isfinite(max))
        return false;
    double norm = (double)max + log(row_exp(logits, s->vocab, max, 1, 0, NULL, NULL));
    logprob[0] =
        (struct nyb_logprob){token, (float)((double)logits[token] - norm), rank_of(logits, s->vocab, token)};
    struct candidate *list = s->scratch[worker].list;
    int held = n > 0 ? select_top_k(logits, s->vocab, n, list) : 0;
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
    change_logits(in, s->vocab, x);
    double u = rng_uniform(p->seed, (uint64_t)in->n_out);
    int32_t token;
    if (p->temperature <= 0)
        token = row_argmax(x, s->vocab);
    else if (p->top_k > 0)
        token = sample_top_k(p, x, s->vocab, u, c);
    else
        token = sample_whole(p, x, s->vocab, u, c);
    if (token >= 0 && p->n_logprob >= 0 &&
        !sampler_logprobs(s, worker, in->logits, token, p->n_logprob, logprob))
        return -1;
    return token;
}
