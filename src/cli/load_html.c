/* The report as one HTML page. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/load_result.h"

#define SVG_MAX    ((size_t)8 << 20)
#define CDF_POINTS 500

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

static void read_svg(FILE *from, struct buf *out)
{
    char part[4096];
    for (size_t n; out->len < SVG_MAX && (n = fread(part, 1, sizeof(part), from)) > 0;)
        buf_add(out, part, n);
}

/* The script's picture, from "<svg" on, appended to the page; nothing where gnuplot is missing or fails. */
static bool add_plot(struct buf *page, const struct buf *script)
{
    char path[] = "/tmp/nybble-plot-XXXXXX";
    int fd = mkstemp(path);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    struct buf svg = {0};
    if (!f) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    fwrite(script->data, 1, script->len, f);
    bool written = fclose(f) == 0;
    char *command = mem_printf("gnuplot %s 2>/dev/null", path);
    FILE *p = written ? popen(command, "r") : NULL;
    if (p)
        read_svg(p, &svg);
    bool fine = p && pclose(p) == 0;
    const char *start = svg.data ? strstr(svg.data, "<svg") : NULL;
    fine = fine && start;
    if (fine) {
        buf_add_str(page, "<figure>");
        buf_add_str(page, start);
        buf_add_str(page, "</figure>\n");
    }
    buf_free(&svg);
    free(command);
    unlink(path);
    return fine;
}

static const char plot_style[] = "set terminal svg size 560,320 dynamic font 'sans-serif,12'\n"
                                 "set grid lc rgb '#dddddd'\nset key bottom right\nset border 3\n"
                                 "set tics nomirror\n";

static void add_curve(struct buf *script, const struct load_list *l)
{
    size_t n = l->n < CDF_POINTS ? l->n : CDF_POINTS;
    for (size_t i = 0; i < n; i++) {
        double p = n > 1 ? 100.0 * (double)i / (double)(n - 1) : 100;
        buf_printf(script, "%g %g\n", load_metrics_percentile(l, p), p);
    }
    buf_add_str(script, "e\n");
}

static bool plot_distribution(struct buf *page, const struct load_result *r, enum load_metric i)
{
    const struct load_list *l = &r->metrics->sample[i];
    struct buf script = {0};
    buf_add_str(&script, plot_style);
    buf_printf(&script,
               "set title '%s'\nset xlabel '%s'\nset ylabel '%% of %s'\nset yrange [0:100]\n"
               "plot '-' with lines lw 2 lc rgb '#1f6feb' notitle\n",
               load_metric_table[i].name, load_metric_table[i].unit,
               i == METRIC_itl || i == METRIC_s_itl ? "gaps" : "requests");
    add_curve(&script, l);
    bool fine = add_plot(page, &script);
    buf_free(&script);
    return fine;
}

/* Output tokens in each second of the run. */
static bool plot_seconds(struct buf *page, const struct load_result *r)
{
    const struct load_list *l = &r->metrics->tokens_by_second;
    struct buf script = {0};
    buf_add_str(&script, plot_style);
    buf_add_str(&script, "set title 'output tokens by second'\nset xlabel 'second'\nset yrange [0:*]\n"
                         "plot '-' with steps lw 2 lc rgb '#1f6feb' notitle\n");
    for (size_t i = 0; i < l->n; i++)
        buf_printf(&script, "%zu %g\n", i, l->v[i]);
    if (l->n > 0)
        buf_printf(&script, "%zu %g\n", l->n, l->v[l->n - 1]);
    buf_add_str(&script, "e\n");
    bool fine = add_plot(page, &script);
    buf_free(&script);
    return fine;
}

static void add_plots(struct buf *page, const struct load_result *r)
{
    bool fine = r->metrics->tokens_by_second.n > 0 && plot_seconds(page, r);
    for (int i = 0; fine && i < METRIC_COUNT; i++)
        if (r->selected[i] && load_metric_table[i].is_ms && r->metrics->sample[i].n > 1)
            plot_distribution(page, r, (enum load_metric)i);
    if (!fine)
        buf_add_str(page, "<p>There are no plots: gnuplot was not found, or there is nothing to plot.</p>\n");
}

/* ---- tables -------------------------------------------------------------------------------------- */

static const char style[] =
    "<style>body{font:16px/1.5 system-ui,sans-serif;max-width:1180px;margin:2em auto;padding:0 1em;"
    "color:#1c2128;background:#fff}table{border-collapse:collapse;margin:1em 0}th,td{padding:.25em .8em;"
    "border-bottom:1px solid #d0d7de;text-align:right}th:first-child,td:first-child{text-align:left}"
    "figure{display:inline-block;margin:0 .5em .5em 0;max-width:100%}svg{max-width:100%;height:auto}"
    ".wide{overflow-x:auto}</style>";

static void add_fact(struct buf *b, const char *name, const char *value)
{
    buf_add_str(b, "<tr><td>");
    add_escaped(b, name);
    buf_add_str(b, "</td><td>");
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
            break; /* the metrics follow, and have a table of their own */
        if (json_is_string(v))
            add_fact(b, key, json_string_value(v));
        else if (json_is_number(v)) {
            snprintf(text, sizeof(text), "%.6g", json_number_value(v));
            add_fact(b, key, text);
        }
    }
    buf_add_str(b, "</table>\n");
    json_decref(o);
}

static void add_metrics(struct buf *b, const struct load_result *r)
{
    static const double p[] = {1, 10, 25, 50, 75, 90, 95, 99, 99.9, 100};
    buf_add_str(b, "<h2>Metrics</h2>\n<div class=\"wide\"><table>\n<tr><th>metric</th><th>unit</th>"
                   "<th>values</th><th>mean</th><th>std</th>");
    for (size_t i = 0; i < COUNT_OF(p); i++)
        buf_printf(b, "<th>p%g</th>", p[i]);
    buf_add_str(b, "</tr>\n");
    for (int i = 0; i < METRIC_COUNT; i++) {
        const struct load_list *l = &r->metrics->sample[i];
        if (!r->selected[i] || l->n == 0)
            continue;
        buf_printf(b, "<tr><td title=\"%s\">%s</td><td>%s</td><td>%zu</td><td>%.2f</td><td>%.2f</td>",
                   load_metric_table[i].label, load_metric_table[i].name, load_metric_table[i].unit, l->n,
                   load_metrics_mean(l), load_metrics_deviation(l));
        for (size_t k = 0; k < COUNT_OF(p); k++)
            buf_printf(b, "<td>%.2f</td>", load_metrics_percentile(l, p[k]));
        buf_add_str(b, "</tr>\n");
    }
    buf_add_str(b, "</table></div>\n");
}

static void add_failures(struct buf *b, const struct load_result *r)
{
    int left = 20;
    if (r->metrics->failed == 0)
        return;
    buf_printf(b, "<h2>Failures</h2>\n<p>%d of %d requests failed; the first ones:</p>\n<ul>\n",
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
    buf_add_str(&b,
                "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                "<meta name=\"viewport\" content=\"width=device-width\"><title>nybble bench serve</title>");
    buf_add_str(&b, style);
    buf_add_str(&b, "</head><body>\n<h1>Load on ");
    add_escaped(&b, r->model ? r->model : r->url);
    buf_add_str(&b, "</h1>\n");
    add_facts(&b, r);
    add_metrics(&b, r);
    add_plots(&b, r);
    add_failures(&b, r);
    buf_add_str(&b, "</body></html>\n");
    FILE *f = fopen(path, "w");
    bool fine = f && fwrite(b.data, 1, b.len, f) == b.len;
    fine &= f && fclose(f) == 0;
    buf_free(&b);
    return fine ? NYB_OK : err_at(err, NYB_E_IO, path, -1, "cannot be written: %s", strerror(errno));
}
