#include "cli/load_result.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/load_pd.h"

#define FAILURE_KINDS 10 /* that the table names */

static double per_second(const struct load_metrics *m, double n)
{
    return m->duration > 0 ? n / m->duration : 0;
}

static double most_tokens_a_second(const struct load_metrics *m)
{
    double most = 0;
    for (size_t i = 0; i < m->tokens_by_second.n; i++)
        most = fmax(most, m->tokens_by_second.v[i]);
    return most;
}

/* ---- the table ----------------------------------------------------------------------------------- */

/* Of the first two columns. */
struct widths {
    int label, name;
};

static void print_metric(const struct load_result *r, enum load_metric i, const struct widths *w)
{
    const struct load_metric_row *row = &load_metric_table[i];
    const struct load_list *l = &r->metrics->sample[i];
    printf("%-*s  %-*s", w->label, row->label, w->name, row->name);
    if (l->n == 0) {
        printf("  the server did not say\n");
        return;
    }
    printf(" %10.2f %10.2f %10.2f", load_metrics_mean(l), load_metrics_percentile(l, 50),
           load_metrics_deviation(l));
    for (int p = 0; p < r->n_percentile; p++)
        printf(" %10.2f", load_metrics_percentile(l, r->percentile[p]));
    printf("  %s\n", row->unit);
}

static void print_metrics(const struct load_result *r)
{
    struct widths w = {0};
    for (int i = 0; i < METRIC_COUNT; i++) {
        int label = (int)strlen(load_metric_table[i].label), name = (int)strlen(load_metric_table[i].name);
        w.label = r->selected[i] && label > w.label ? label : w.label;
        w.name = r->selected[i] && name > w.name ? name : w.name;
    }
    printf("\n%-*s %10s %10s %10s", w.label + 2 + w.name, "", "mean", "median", "std");
    for (int p = 0; p < r->n_percentile; p++) {
        char name[16];
        snprintf(name, sizeof(name), "p%g", r->percentile[p]);
        printf(" %10s", name);
    }
    printf("\n");
    for (int i = 0; i < METRIC_COUNT; i++)
        if (r->selected[i])
            print_metric(r, (enum load_metric)i, &w);
}

/* Each kind of failure once, with how often it occurred. */
static void print_failures(const struct load_result *r)
{
    json_t *kinds = json_object(), *count;
    const char *error;
    int left = FAILURE_KINDS;
    for (int i = 0; i < r->data->n; i++)
        if (!r->reply[i].ok) {
            count = json_object_get(kinds, r->reply[i].error);
            json_object_set_new_nocheck(kinds, r->reply[i].error,
                                        json_integer(json_integer_value(count) + 1));
        }
    json_object_foreach(kinds, error, count)
    {
        if (left-- == 0)
            break;
        printf("  %lld failed: %s\n", (long long)json_integer_value(count), error);
    }
    json_decref(kinds);
}

void load_result_print(const struct load_result *r)
{
    const struct load_metrics *m = r->metrics;
    size_t n_server = json_array_size(r->servers);
    printf("%s at %s", r->model ? r->model : "(no model named)", r->url);
    if (n_server > 1)
        printf(" and %zu more", n_server - 1);
    printf(", data set %s\n", r->data_set);
    printf("%-36s %d completed, %d failed", "Requests", m->completed, m->failed);
    if (m->dropped > 0)
        printf(", %d left out at the start and the end", m->dropped);
    printf("\n");
    print_failures(r);
    if (r->golden)
        printf("%-36s %d of %d answers differ\n", "Golden answers", r->golden_wrong,
               m->completed + r->golden_wrong);
    printf("%-36s %.2f s\n", "Duration", m->duration);
    printf("%-36s %lld (%lld from the cache)\n", "Input tokens", (long long)m->input_tokens,
           (long long)m->cached_tokens);
    printf("%-36s %lld%s\n", "Output tokens", (long long)m->output_tokens,
           m->without_usage ? " (counted from chunks where usage is missing)" : "");
    printf("%-36s %.2f requests/s, %d in flight at most\n", "Request throughput", per_second(m, m->completed),
           m->most_open);
    if (r->n_goal > 0)
        printf("%-36s %.2f requests/s\n", "Request goodput", per_second(m, m->good));
    printf("%-36s %.2f tokens/s, %.0f in the best second\n", "Output throughput",
           per_second(m, (double)m->output_tokens), most_tokens_a_second(m));
    printf("%-36s %.2f tokens/s\n", "Total throughput",
           per_second(m, (double)(m->input_tokens + m->output_tokens)));
    if (m->latest > 0.05)
        printf("%-36s the load generator fell %.0f ms behind its schedule\n", "Beware", m->latest * 1e3);
    if (m->completed > 0)
        print_metrics(r);
}

/* ---- JSON ---------------------------------------------------------------------------------------- */

static json_t *number_or_inf(double v)
{
    return isfinite(v) ? json_real(v) : json_string("inf");
}

static void add_metric(json_t *o, const struct load_result *r, enum load_metric i)
{
    const struct load_list *l = &r->metrics->sample[i];
    const char *unit = load_metric_table[i].is_ms ? "_ms" : "";
    char key[64];
    if (l->n == 0)
        return;
    const struct {
        const char *name;
        double value;
    } figures[] = {{"mean", load_metrics_mean(l)},
                   {"median", load_metrics_percentile(l, 50)},
                   {"std", load_metrics_deviation(l)}};
    for (size_t f = 0; f < COUNT_OF(figures); f++) {
        snprintf(key, sizeof(key), "%s_%s%s", figures[f].name, load_metric_table[i].name, unit);
        json_object_set_new(o, key, json_real(figures[f].value));
    }
    for (int p = 0; p < r->n_percentile; p++) {
        snprintf(key, sizeof(key), "p%g_%s%s", r->percentile[p], load_metric_table[i].name, unit);
        json_object_set_new(o, key, json_real(load_metrics_percentile(l, r->percentile[p])));
    }
}

/* Seconds, 0 where there is no value; vLLM's lists are in seconds too. */
static json_t *seconds(const struct load_reply *r, enum load_metric metric)
{
    double v = r->ok ? load_metrics_value(r, metric) : 0;
    return json_real(isnan(v) ? 0 : v * 1e-3);
}

static json_t *gaps(const struct load_list *times)
{
    json_t *a = json_array();
    for (size_t i = 1; i < times->n; i++)
        json_array_append_new(a, json_real(times->v[i] - times->v[i - 1]));
    return a;
}

static json_t *times(const struct load_list *l)
{
    json_t *a = json_array();
    for (size_t i = 0; i < l->n; i++)
        json_array_append_new(a, json_real(l->v[i]));
    return a;
}

static json_t *count_or_zero(int64_t n)
{
    return json_integer(n > 0 ? n : 0);
}

/* Bytes that may begin or end within a character. */
static json_t *text_of(const char *bytes, size_t n)
{
    struct buf quoted = {0};
    json_add_string(&quoted, bytes ? bytes : "", bytes ? n : 0);
    json_t *text = json_loadb(quoted.data, quoted.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    buf_free(&quoted);
    return text ? text : json_string("");
}

/* One entry a request in every list, failed ones included: the lists can be read side by side. */
static void add_details(json_t *o, const struct load_result *r)
{
    static const char *const key[] = {
        "input_lens",      "infer_input_lens", "output_lens", "ttfts",          "res_ttfts",          "itls",
        "generated_texts", "input_texts",      "errors",      "reasoning_lens", "reasoning_contents", "e2els",
        "start_times",     "arrival_times",    "s_e2els",     "metrics"};
    json_t *list[COUNT_OF(key)];
    for (size_t k = 0; k < COUNT_OF(key); k++)
        json_object_set_new(o, key[k], list[k] = json_array());
    for (int i = 0; i < r->data->n; i++) {
        const struct load_reply *p = &r->reply[i];
        json_t *const value[] = {
            count_or_zero(p->cached_tokens),
            count_or_zero(p->prompt_tokens),
            json_integer(p->ok ? load_reply_tokens(p) : 0),
            seconds(p, METRIC_ttft),
            seconds(p, METRIC_res_ttft),
            gaps(&p->chunk),
            text_of(p->text.data, p->text.len),
            json_deep_copy(r->data->request[i].input),
            text_of(p->error, p->error ? strlen(p->error) : 0),
            count_or_zero(p->reasoning_tokens),
            text_of(p->reasoning.data, p->reasoning.len),
            seconds(p, METRIC_e2el),
            json_real(p->sent),
            times(&p->arrival),
            seconds(p, METRIC_s_e2el),
            load_pd_json(p),
        };
        for (size_t k = 0; k < COUNT_OF(key); k++)
            json_array_append_new(list[k], value[k]);
    }
}

static void add_totals(json_t *o, const struct load_result *r)
{
    const struct load_metrics *m = r->metrics;
    json_object_set_new(o, "duration", json_real(m->duration));
    json_object_set_new(o, "completed", json_integer(m->completed));
    json_object_set_new(o, "failed", json_integer(m->failed));
    if (r->drop > 0) {
        json_object_set_new(o, "drop_ratio", json_real(r->drop));
        json_object_set_new(o, "dropped", json_integer(m->dropped));
    }
    json_object_set_new(o, "total_input_tokens", json_integer(m->input_tokens));
    json_object_set_new(o, "total_cached_tokens", json_integer(m->cached_tokens));
    json_object_set_new(o, "total_output_tokens", json_integer(m->output_tokens));
    json_object_set_new(o, "request_throughput", json_real(per_second(m, m->completed)));
    json_object_set_new(o, "request_goodput", r->n_goal ? json_real(per_second(m, m->good)) : json_null());
    json_object_set_new(o, "output_throughput", json_real(per_second(m, (double)m->output_tokens)));
    json_object_set_new(o, "total_token_throughput",
                        json_real(per_second(m, (double)(m->input_tokens + m->output_tokens))));
    json_object_set_new(o, "max_output_tokens_per_s", json_real(most_tokens_a_second(m)));
    json_object_set_new(o, "max_concurrent_requests", json_integer(m->most_open));
    json_object_set_new(o, "concurrency", json_real(per_second(m, m->busy)));
    json_object_set_new(o, "without_usage", json_integer(m->without_usage));
    json_object_set_new(o, "latest_start_ms", json_real(m->latest * 1e3));
    if (r->golden)
        json_object_set_new(o, "golden_wrong", json_integer(r->golden_wrong));
}

json_t *load_result_json(const struct load_result *r, bool detailed)
{
    json_t *o = json_object();
    json_object_set_new(o, "date", json_string(r->date));
    json_object_set_new(o, "backend", json_string(r->backend));
    json_object_set_new(o, "model_id", r->model ? json_string(r->model) : json_null());
    const char *tokenizer = r->tokenizer ? r->tokenizer : r->model;
    json_object_set_new(o, "tokenizer_id", tokenizer ? json_string(tokenizer) : json_null());
    if (r->label)
        json_object_set_new(o, "label", json_string(r->label));
    if (r->servers)
        json_object_set(o, "servers", (json_t *)(uintptr_t)r->servers);
    json_object_set_new(o, "dataset_name", json_string(r->data_set));
    json_object_set_new(o, "num_prompts", json_integer(r->data->n));
    if (r->metadata)
        json_object_update(o, (json_t *)(uintptr_t)r->metadata);
    json_object_set_new(o, "request_rate", number_or_inf(r->request_rate));
    json_object_set_new(o, "burstiness", json_real(r->burstiness));
    if (r->ramp != LOAD_RAMP_NONE) {
        json_object_set_new(o, "ramp_up_strategy",
                            json_string(r->ramp == LOAD_RAMP_LINEAR ? "linear" : "exponential"));
        json_object_set_new(o, "ramp_up_start_rps", json_real(r->ramp_start));
        json_object_set_new(o, "ramp_up_end_rps", json_real(r->ramp_end));
    }
    json_object_set_new(o, "max_concurrency",
                        r->max_concurrency ? json_integer(r->max_concurrency) : json_null());
    add_totals(o, r);
    for (int i = 0; i < METRIC_COUNT; i++)
        if (r->selected[i])
            add_metric(o, r, (enum load_metric)i);
    if (detailed)
        add_details(o, r);
    return o;
}
