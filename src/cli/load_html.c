/* The report as one HTML page. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/load_plot.h"
#include "cli/load_result.h"

#define CDF_POINTS 400
#define DOTS_MAX   4000

static void add_escaped(struct buf *b, const char *s)
{
    for (; *s; s++)
        switch (*s) {
        case '&':
            buf_add_str(b, "&amp;");
            break;
        case '<':
            buf_add_str(b, "&lt;");
            break;
        case '>':
            buf_add_str(b, "&gt;");
            break;
        case '"':
            buf_add_str(b, "&quot;");
            break;
        default:
            buf_add_byte(b, *s);
        }
}

/* ---- plots --------------------------------------------------------------------------------------- */

static bool per_gap(enum load_metric i)
{
    return i == METRIC_itl || i == METRIC_s_itl;
}

/* How many percent of the requests, or gaps, were at most so slow. */
static void plot_distribution(struct buf *page, const struct load_result *r, enum load_metric i)
{
    static const double percentile[] = {50, 90, 99};
    const struct load_metric_row *row = &load_metric_table[i];
    const struct load_list *l = &r->metrics->sample[i];
    struct load_point point[CDF_POINTS], mark[COUNT_OF(percentile)];
    char title[128], x_label[64], name[COUNT_OF(percentile)][32];
    const char *names[COUNT_OF(percentile)];
    size_t n = l->n < CDF_POINTS ? l->n : CDF_POINTS;
    for (size_t k = 0; k < n; k++) {
        double p = 100.0 * (double)k / (double)(n - 1);
        point[k] = (struct load_point){load_metrics_percentile(l, p), p};
    }
    for (size_t k = 0; k < COUNT_OF(percentile); k++) {
        mark[k] = (struct load_point){load_metrics_percentile(l, percentile[k]), percentile[k]};
        snprintf(name[k], sizeof(name[k]), "p%g %.4g", percentile[k], mark[k].x);
        names[k] = name[k];
    }
    snprintf(title, sizeof(title), "%s (%s)", row->label, row->name);
    snprintf(x_label, sizeof(x_label), "%s", row->is_ms ? "milliseconds" : row->unit);
    const struct load_plot plot = {.title = title,
                                   .x_label = x_label,
                                   .y_label = per_gap(i) ? "% of gaps, at most" : "% of requests, at most",
                                   .point = point,
                                   .n_point = n,
                                   .y_most = 100,
                                   .mark = mark,
                                   .mark_name = names,
                                   .n_mark = COUNT_OF(percentile)};
    load_plot_add(page, &plot);
}

/* Output tokens in each second of the run. */
static void plot_seconds(struct buf *page, const struct load_result *r)
{
    const struct load_list *l = &r->metrics->tokens_by_second;
    struct load_point *point = mem_alloc(l->n + 1, sizeof(*point));
    for (size_t i = 0; i <= l->n; i++)
        point[i] = (struct load_point){(double)i, l->v[i < l->n ? i : l->n - 1]};
    const struct load_plot plot = {.title = "Output by second",
                                   .x_label = "seconds since the start",
                                   .y_label = "output tokens",
                                   .style = LOAD_PLOT_STEPS,
                                   .point = point,
                                   .n_point = l->n + 1};
    load_plot_add(page, &plot);
    free(point);
}

/* Does the server fall behind? One dot a request; evenly left out where they are very many. */
static void plot_waiting(struct buf *page, const struct load_result *r)
{
    int n = r->data->n, step = n / DOTS_MAX + 1;
    struct load_point *point = mem_alloc((size_t)n, sizeof(*point));
    size_t used = 0;
    for (int i = 0; i < n; i += step) {
        double ms = load_metrics_value(&r->reply[i], METRIC_ttft);
        if (r->reply[i].ok && !isnan(ms))
            point[used++] = (struct load_point){r->reply[i].sent, ms};
    }
    const struct load_plot plot = {.title = "Time to first token, by when the request was sent",
                                   .x_label = "seconds since the start",
                                   .y_label = "milliseconds",
                                   .style = LOAD_PLOT_DOTS,
                                   .point = point,
                                   .n_point = used};
    load_plot_add(page, &plot);
    free(point);
}

static bool varies(const struct load_list *l)
{
    return l->n > 1 && l->v[l->n - 1] > l->v[0];
}

static void add_plots(struct buf *page, const struct load_result *r)
{
    if (r->metrics->completed == 0)
        return;
    buf_add_str(page, "<h2>Plots</h2>\n<div class=\"plots\">\n");
    if (r->metrics->tokens_by_second.n > 0)
        plot_seconds(page, r);
    plot_waiting(page, r);
    for (int i = 0; i < METRIC_COUNT; i++)
        if (r->selected[i] && varies(&r->metrics->sample[i]))
            plot_distribution(page, r, (enum load_metric)i);
    buf_add_str(page, "</div>\n");
}

/* ---- tables -------------------------------------------------------------------------------------- */

static const char style[] =
    ":root{color-scheme:light dark;--paper:#fff;--ink:#1c2128;--soft:#59636e;--line:#d9dee3;--accent:#1f6feb;"
    "--bad:#b3261e}@media(prefers-color-scheme:dark){:root{--paper:#14181d;--ink:#e3e8ee;--soft:#9aa5b1;"
    "--line:#343b44;--accent:#6cb0ff;--bad:#ff8a80}}"
    "body{font:16px/1.5 system-ui,sans-serif;max-width:1160px;margin:2em auto;padding:0 1em;color:var(--ink);"
    "background:var(--paper)}h1{margin-bottom:0}h2{margin-top:2em}.soft{color:var(--soft)}"
    "table{border-collapse:collapse;font-size:.94em}th,td{padding:.25em .5em;border-bottom:1px solid "
    "var(--line);text-align:right;"
    "font-variant-numeric:tabular-nums}th:first-child,td:first-child{text-align:left;padding-left:0}"
    "td code{color:var(--soft);font-size:.85em}td.text{text-align:left}.wide{overflow-x:auto}"
    ".cards{display:flex;flex-wrap:wrap;gap:.8em;margin:1.2em 0}.cards div{border:1px solid var(--line);"
    "border-radius:8px;padding:.5em 1em;min-width:9em}.cards b{display:block;font-size:1.4em}"
    ".cards span{color:var(--soft);font-size:.9em}.bad b,.bad h2{color:var(--bad)}"
    ".plots{display:flex;flex-wrap:wrap;gap:1em 1.5em}";

static void add_fact(struct buf *b, const char *name, const char *value)
{
    buf_add_str(b, "<tr><td>");
    add_escaped(b, name);
    buf_add_str(b, "</td><td class=\"text\">");
    add_escaped(b, value);
    buf_add_str(b, "</td></tr>\n");
}

/* The members of the JSON result that are numbers or texts of the run as a whole. */
static void add_facts(struct buf *b, const struct load_result *r)
{
    json_t *o = load_result_json(r, false), *v;
    const char *key;
    buf_add_str(b, "<h2>The run</h2>\n<table>\n");
    add_fact(b, "server", r->url);
    json_object_foreach(o, key, v)
    {
        char text[64];
        if (!strncmp(key, "mean_", 5))
            break; /* the metrics have a table of their own */
        if (json_is_string(v))
            add_fact(b, key, json_string_value(v));
        else if (json_is_integer(v) || json_is_real(v)) {
            snprintf(text, sizeof(text), json_is_integer(v) ? "%.0f" : "%.6g", json_number_value(v));
            add_fact(b, key, text);
        }
    }
    buf_add_str(b, "</table>\n");
    json_decref(o);
}

static void add_card(struct buf *b, bool bad, const char *what, const char *fmt, double value)
{
    char text[64];
    snprintf(text, sizeof(text), fmt, value);
    buf_printf(b, "<div%s><b>%s</b><span>%s</span></div>\n", bad ? " class=\"bad\"" : "", text, what);
}

/* What one looks for first. */
static void add_cards(struct buf *b, const struct load_result *r)
{
    const struct load_metrics *m = r->metrics;
    const struct load_list *ttft = &m->sample[METRIC_ttft], *tpot = &m->sample[METRIC_tpot];
    double s = m->duration > 0 ? m->duration : INFINITY;
    buf_add_str(b, "<div class=\"cards\">\n");
    add_card(b, false, "requests completed", "%.0f", m->completed);
    if (m->failed > 0)
        add_card(b, true, "requests failed", "%.0f", m->failed);
    add_card(b, false, "seconds", "%.2f", m->duration);
    add_card(b, false, "output tokens/s", "%.1f", (double)m->output_tokens / s);
    add_card(b, false, "requests/s", "%.2f", m->completed / s);
    if (r->n_goal > 0)
        add_card(b, m->good < m->completed, "good requests/s", "%.2f", m->good / s);
    if (ttft->n > 0) {
        add_card(b, false, "ms to the first token, median", "%.1f", load_metrics_percentile(ttft, 50));
        add_card(b, false, "ms to the first token, p99", "%.1f", load_metrics_percentile(ttft, 99));
    }
    if (tpot->n > 0)
        add_card(b, false, "ms for each further token, median", "%.1f", load_metrics_percentile(tpot, 50));
    buf_add_str(b, "</div>\n");
}

static void add_metrics(struct buf *b, const struct load_result *r)
{
    static const struct {
        const char *name;
        double p;
    } column[] = {{"least", 0}, {"p10", 10}, {"p50", 50},  {"p90", 90},
                  {"p95", 95},  {"p99", 99}, {"most", 100}};
    buf_add_str(b, "<h2>Metrics</h2>\n<div class=\"wide\"><table>\n<tr><th>metric</th><th>unit</th>"
                   "<th>values</th><th>mean</th><th>std</th>");
    for (size_t i = 0; i < COUNT_OF(column); i++)
        buf_printf(b, "<th>%s</th>", column[i].name);
    buf_add_str(b, "</tr>\n");
    for (int i = 0; i < METRIC_COUNT; i++) {
        const struct load_list *l = &r->metrics->sample[i];
        if (!r->selected[i] || l->n == 0)
            continue;
        buf_printf(b, "<tr><td>%s <code>%s</code></td><td>%s</td><td>%zu</td><td>%.2f</td><td>%.2f</td>",
                   load_metric_table[i].label, load_metric_table[i].name, load_metric_table[i].unit, l->n,
                   load_metrics_mean(l), load_metrics_deviation(l));
        for (size_t k = 0; k < COUNT_OF(column); k++)
            buf_printf(b, "<td>%.2f</td>", load_metrics_percentile(l, column[k].p));
        buf_add_str(b, "</tr>\n");
    }
    buf_add_str(b, "</table></div>\n");
}

static void add_failures(struct buf *b, const struct load_result *r)
{
    int left = 20;
    if (r->metrics->failed == 0)
        return;
    buf_printf(b,
               "<div class=\"bad\"><h2>Failures</h2></div>\n<p>%d of %d requests failed; the first "
               "ones:</p>\n<ul>\n",
               r->metrics->failed, r->data->n);
    for (int i = 0; i < r->data->n && left > 0; i++)
        if (!r->reply[i].ok) {
            buf_printf(b, "<li>request %d: ", i + 1);
            add_escaped(b, r->reply[i].error);
            buf_add_str(b, "</li>\n");
            left--;
        }
    buf_add_str(b, "</ul>\n");
}

enum nyb_code load_html_write(const char *path, const struct load_result *r, struct nyb_err *err)
{
    struct buf b = {0};
    buf_add_str(
        &b,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
        "<meta name=\"viewport\" content=\"width=device-width\"><title>nybble bench serve</title><style>");
    buf_add_str(&b, style);
    buf_add_str(&b, load_plot_css);
    buf_add_str(&b, "</style></head><body>\n<h1>Load on ");
    add_escaped(&b, r->model ? r->model : r->url);
    buf_add_str(&b, "</h1>\n<p class=\"soft\">");
    add_escaped(&b, r->data_set);
    buf_add_str(&b, " requests to ");
    add_escaped(&b, r->url);
    buf_printf(&b, ", %.4s-%.2s-%.2s %.2s:%.2s</p>\n", r->date, r->date + 4, r->date + 6, r->date + 9,
               r->date + 11);
    add_cards(&b, r);
    add_failures(&b, r);
    add_metrics(&b, r);
    add_plots(&b, r);
    add_facts(&b, r);
    buf_add_str(&b, "</body></html>\n");
    FILE *f = fopen(path, "w");
    bool fine = f && fwrite(b.data, 1, b.len, f) == b.len;
    fine &= f && fclose(f) == 0;
    buf_free(&b);
    return fine ? NYB_OK : err_at(err, NYB_E_IO, path, -1, "cannot be written: %s", strerror(errno));
}
