#include "cli/load_metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/load_pd.h"

const struct load_metric_row load_metric_table[METRIC_COUNT] = {
#define METRIC(name, unit, label) {#name, unit, label, sizeof(unit) == 3},
#include "cli/load_metrics.def"
#undef METRIC
};

bool load_metric_parse(const char *name, enum load_metric *out)
{
    for (int i = 0; i < METRIC_COUNT; i++)
        if (!strcmp(name, load_metric_table[i].name)) {
            *out = (enum load_metric)i;
            return true;
        }
    return false;
}

/* ---- of one request ------------------------------------------------------------------------------ */

static double tokens_or_nan(int64_t n)
{
    return n >= 0 ? (double)n : NAN;
}

/* Milliseconds from a to b; NAN where one did not happen. */
static double ms_between(double a, double b)
{
    return a >= 0 && b >= 0 ? (b - a) * 1e3 : NAN;
}

static double server_decode(const struct load_reply *r)
{
    if (r->arrival.n < 2 || !(r->arrival_last > r->arrival.v[0]))
        return NAN;
    return (double)(load_reply_tokens(r) - 1) / (r->arrival_last - r->arrival.v[0]);
}

double load_metrics_value(const struct load_reply *r, enum load_metric metric)
{
    int64_t n = load_reply_tokens(r);
    switch (metric) {
    case METRIC_ttft:
        return ms_between(r->sent, r->first);
    case METRIC_tpot:
        return n > 1 ? ms_between(r->first, r->last) / (double)(n - 1) : NAN;
    case METRIC_e2el:
        return ms_between(r->sent, r->last);
    case METRIC_s_ttft:
        return r->arrival.n > 0 ? r->arrival.v[0] * 1e3 : NAN;
    case METRIC_s_e2el:
        return r->arrival_last >= 0 ? r->arrival_last * 1e3 : NAN;
    case METRIC_s_decode:
        return server_decode(r);
    case METRIC_input_len:
        return tokens_or_nan(r->cached_tokens);
    case METRIC_s_input_len:
        return tokens_or_nan(r->prompt_tokens);
    case METRIC_output_len:
        return (double)n;
    case METRIC_res_ttft:
        return r->reasoning.len > 0 ? ms_between(r->sent, r->first_answer) : NAN;
    case METRIC_reasoning_len:
        return tokens_or_nan(r->reasoning_tokens);
    default:
        return metric >= LOAD_METRIC_PD ? load_pd_value(r, (enum load_pd)(metric - LOAD_METRIC_PD)) : NAN;
    }
}

static void add_gaps(struct load_list *out, const struct load_list *times)
{
    for (size_t i = 1; i < times->n; i++)
        load_list_add(out, (times->v[i] - times->v[i - 1]) * 1e3);
}

/* A request of which a goal's metric has no value meets that goal only where the metric is a mean over tokens
 * that it did not have. */
static bool is_good(const struct load_reply *r, const struct load_goal *goal, int n_goal)
{
    for (int i = 0; i < n_goal; i++) {
        double v = load_metrics_value(r, goal[i].metric);
        if (isnan(v) ? goal[i].metric != METRIC_tpot : v > goal[i].most)
            return false;
    }
    return true;
}

/* ---- of the run ---------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Each chunk carries an equal part of its answer's tokens. */
static void add_by_second(struct load_list *seconds, const struct load_reply *r)
{
    for (size_t i = 0; i < r->chunk.n; i++) {
        size_t at = (size_t)r->chunk.v[i];
        while (seconds->n <= at)
            load_list_add(seconds, 0);
        seconds->v[at] += (double)load_reply_tokens(r) / (double)r->chunk.n;
    }
}

static void add_reply(struct load_metrics *m, const struct load_reply *r)
{
    m->completed++;
    m->busy += r->last > r->sent ? r->last - r->sent : 0;
    m->without_usage += r->output_tokens < 0;
    m->input_tokens += r->prompt_tokens > 0 ? r->prompt_tokens : 0;
    m->cached_tokens += r->cached_tokens > 0 ? r->cached_tokens : 0;
    m->output_tokens += load_reply_tokens(r);
    for (int i = 0; i < METRIC_COUNT; i++) {
        double v = load_metrics_value(r, (enum load_metric)i);
        if (!isnan(v))
            load_list_add(&m->sample[i], v);
    }
    add_gaps(&m->sample[METRIC_itl], &r->chunk);
    add_gaps(&m->sample[METRIC_s_itl], &r->arrival);
    add_by_second(&m->tokens_by_second, r);
}

struct finish {
    double at;
    int reply;
};

static int by_finish(const void *a, const void *b)
{
    const struct finish *x = a, *y = b;
    return x->at != y->at ? (x->at > y->at) - (x->at < y->at) : (x->reply > y->reply) - (x->reply < y->reply);
}

/* keep (n): whether a reply counts. */
static void trim(struct load_metrics *m, const struct load_reply *reply, int n, double drop, bool *keep)
{
    struct finish *order = mem_alloc((size_t)n, sizeof(*order));
    int n_ok = 0;
    for (int i = 0; i < n; i++)
        if (reply[i].ok)
            order[n_ok++] = (struct finish){reply[i].last, i};
    qsort(order, (size_t)n_ok, sizeof(*order), by_finish);
    int half = (int)(n_ok * drop) / 2;
    for (int i = half; i < n_ok - half; i++)
        keep[order[i].reply] = true;
    m->dropped = 2 * half;
    if (half > 0)
        m->duration = order[n_ok - half - 1].at - order[half].at;
    free(order);
}

void load_metrics_make(struct load_metrics *m, const struct load_reply *reply, int n,
                       const struct load_run *run, const struct load_goal *goal, int n_goal, double drop)
{
    bool *keep = mem_alloc((size_t)n, sizeof(*keep));
    *m = (struct load_metrics){.duration = run->duration, .most_open = run->most_open, .latest = run->latest};
    trim(m, reply, n, drop, keep);
    for (int i = 0; i < n; i++) {
        m->failed += !reply[i].ok;
        if (!keep[i])
            continue;
        add_reply(m, &reply[i]);
        m->good += is_good(&reply[i], goal, n_goal);
    }
    free(keep);
    for (int i = 0; i < METRIC_COUNT; i++)
        if (m->sample[i].n > 0)
            qsort(m->sample[i].v, m->sample[i].n, sizeof(double), by_value);
}

void load_metrics_free(struct load_metrics *m)
{
    for (int i = 0; i < METRIC_COUNT; i++)
        load_list_free(&m->sample[i]);
    load_list_free(&m->tokens_by_second);
}

double load_metrics_mean(const struct load_list *l)
{
    double sum = 0;
    for (size_t i = 0; i < l->n; i++)
        sum += l->v[i];
    return l->n ? sum / (double)l->n : 0;
}

double load_metrics_deviation(const struct load_list *l)
{
    double mean = load_metrics_mean(l), sum = 0;
    for (size_t i = 0; i < l->n; i++)
        sum += (l->v[i] - mean) * (l->v[i] - mean);
    return l->n ? sqrt(sum / (double)l->n) : 0;
}

double load_metrics_percentile(const struct load_list *l, double p)
{
    if (l->n == 0)
        return 0;
    double at = p / 100 * (double)(l->n - 1);
    size_t low = (size_t)at, high = low + 1 < l->n ? low + 1 : low;
    return l->v[low] + (l->v[high] - l->v[low]) * (at - (double)low);
}
