#include "cli/bench_report.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"

struct figures {
    double tok_s, gbs, gflops, of_read, of_peak, of_roof; /* of the best run, beside the best of moments */
    double peak_gflops;                                   /* of these, of the run's mixture of units      */
    double median_tok_s, of_limits;                       /* medians over the runs                        */
    double read_beside, peak_beside;
};

/* ---- figures ------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The member at that offset of all runs, ascending; the caller's to free. */
static double *sorted(const struct bench_run *run, int n, size_t member)
{
    double *v = mem_alloc((size_t)n, sizeof(*v));
    for (int i = 0; i < n; i++)
        v[i] = *(const double *)(const void *)((const char *)&run[i] + member);
    qsort(v, (size_t)n, sizeof(*v), by_value);
    return v;
}

static double median(const struct bench_run *run, int n, size_t member)
{
    double *v = sorted(run, n, member), middle = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
    free(v);
    return middle;
}

static double shortest(const struct bench_run *run, int n)
{
    double best = run[0].seconds;
    for (int i = 1; i < n; i++)
        best = run[i].seconds < best ? run[i].seconds : best;
    return best;
}

static struct figures figures_of(const struct bench_model *b, const struct bench_point *p,
                                 const struct bench_run *run, const struct checkkern_roof *roof)
{
    const struct bench_work *w = &b->work;
    const int n = (int)b->repeat;
    const double tokens = (double)p->n_tok * p->batch, best = shortest(run, n);
    return (struct figures){
        .tok_s = tokens / best,
        .gbs = bench_work_bytes(w) / best * 1e-9,
        .gflops = bench_work_flops(w) / best * 1e-9,
        .of_read = bench_work_bytes(w) / (roof->read_gbs * 1e9) / best,
        .of_peak = bench_work_flop_seconds(w, roof) / best,
        .of_roof = bench_work_bound(w, roof) / best,
        .peak_gflops = bench_work_flops(w) / bench_work_flop_seconds(w, roof) * 1e-9,
        .median_tok_s = tokens / median(run, n, offsetof(struct bench_run, seconds)),
        .of_limits = median(run, n, offsetof(struct bench_run, of_limits)),
        .read_beside = median(run, n, offsetof(struct bench_run, read_gbs)),
        .peak_beside = median(run, n, offsetof(struct bench_run, peak_gflops)),
    };
}

/* ---- JSON ---------------------------------------------------------------------------------------- */

static json_t *seconds_json(const struct bench_run *run, int n)
{
    json_t *list = json_array();
    double *v = sorted(run, n, offsetof(struct bench_run, seconds));
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_real(v[i]));
    free(v);
    return list;
}

static json_t *runs_json(const struct bench_run *run, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "seconds", run[i].seconds,
                                              "read_gbs", run[i].read_gbs, "peak_gflops", run[i].peak_gflops,
                                              "of_read", run[i].of_read, "of_peak", run[i].of_peak,
                                              "of_limits", run[i].of_limits));
    return list;
}

static json_t *result_json(const struct bench_model *b, const struct bench_point *p, const struct figures *f,
                           const struct bench_run *run, const struct checkkern_roof *roof)
{
    const struct bench_work *w = &b->work;
    json_t *o = json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "name",
                          p->name, "kind", p->prefill ? "prefill" : "decode", "threads", roof->n_thread,
                          "tokens", p->n_tok, "batch", p->batch, "depth", p->depth, "tokens_per_second",
                          f->tok_s, "median_tokens_per_second", f->median_tok_s, "gbs", f->gbs, "gflops",
                          f->gflops, "of_read", f->of_read, "of_peak", f->of_peak, "of_roofline", f->of_roof);
    json_object_set_new(o, "roofline",
                        json_pack("{s:f, s:f, s:f, s:f, s:f}", "read_gbs", roof->read_gbs, "f32_gflops",
                                  roof->f32_gflops, "bf16_gflops", roof->bf16_gflops, "i8_gops",
                                  roof->i8_gops, "tile_gflops", roof->tile_gflops));
    json_object_set_new(o, "median_of_limits_beside", json_real(f->of_limits));
    json_object_set_new(o, "runs_and_limits_beside", runs_json(run, (int)b->repeat));
    json_object_set_new(o, "a_step",
                        json_pack("{s:f, s:f, s:f, s:f}", "weight_bytes", w->weight_bytes / w->n_step,
                                  "kv_bytes", w->kv_bytes / w->n_step, "flops",
                                  bench_work_flops(w) / w->n_step, "experts_a_layer",
                                  w->n_moe_layer ? w->n_expert / w->n_step / w->n_moe_layer : 0));
    json_object_set_new(o, "run_seconds", seconds_json(run, (int)b->repeat));
    if (b->profile)
        json_object_set_new(o, "profile", bench_profile_json(&b->stages));
    return o;
}

/* ---- the table ----------------------------------------------------------------------------------- */

void bench_report_header(void)
{
    printf("%-16s %7s %9s %9s  %7s %5s  %9s %5s  %8s %7s  %s\n", "test", "threads", "tok/s", "median", "GB/s",
           "read", "GFLOP/s", "peak", "roofline", "beside", "best limits; beside");
}

static void print_point(const struct bench_model *b, const struct bench_point *p, const struct figures *f,
                        const struct checkkern_roof *roof)
{
    printf("%-16s %7d %9.1f %9.1f  %7.1f %4.0f%%  %9.1f %4.0f%%  %7.0f%% %6.0f%%  %.1f GB/s, %.0f GFLOP/s; "
           "%.1f, "
           "%.0f\n",
           p->name, roof->n_thread, f->tok_s, f->median_tok_s, f->gbs, 100 * f->of_read, f->gflops,
           100 * f->of_peak, 100 * f->of_roof, 100 * f->of_limits, roof->read_gbs, f->peak_gflops,
           f->read_beside, f->peak_beside);
    if (b->profile)
        bench_profile_print(&b->stages);
    fflush(stdout);
}

void bench_report_point(struct bench_model *b, const struct bench_point *p, const struct bench_run *run,
                        const struct checkkern_roof *roof)
{
    const struct figures f = figures_of(b, p, run, roof);
    const struct bench_scan_point rate = {roof->n_thread, p->depth, p->batch, f.tok_s};
    if (b->scan && !p->prefill)
        bench_scan_add(&b->rates, &rate);
    if (b->json)
        json_array_append_new(b->results, result_json(b, p, &f, run, roof));
    else
        print_point(b, p, &f, roof);
}
