/* One line of bench model: runs, their figures beside the limits measured around them, the report. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/bench_model.h"

/* ---- running ------------------------------------------------------------------------------------------- */

static void count_experts(void *arg, int layer, const int32_t *expert, const float *weight, int n_tok,
                          int top_k)
{
    (void)weight;
    struct bench_model *b = arg;
    int n = 0;
    memset(b->seen, 0, (size_t)model_config(b->model)->moe.n_expert);
    for (size_t i = 0; i < (size_t)n_tok * (size_t)top_k; i++) {
        n += !b->seen[expert[i]];
        b->seen[expert[i]] = 1;
    }
    b->active[layer] = n;
}

static void profile_stage(void *arg, int layer, const char *name, uint64_t ns)
{
    struct bench_model *b = arg;
    bench_profile_stage(&b->stages, layer, name, ns);
}

static void profile_span(void *arg, int micro_batch, int layer, const char *name, bool communication,
                         uint64_t begin_ns, uint64_t end_ns)
{
    struct bench_model *b = arg;
    bench_profile_span(&b->stages, micro_batch, layer, name, communication, begin_ns, end_ns);
}

static enum nyb_code run_step(struct bench_model *b, const struct batch *batch, bool profile,
                              uint64_t *sum_ns, struct nyb_err *err)
{
    const struct model_probe probe = {.arg = b,
                                      .routing = count_experts,
                                      .stage = profile ? profile_stage : NULL,
                                      .span = profile ? profile_span : NULL};
    uint64_t begin = clock_ns();
    TRY(model_forward(b->model, batch, b->logits, &probe, err));
    uint64_t ns = clock_ns() - begin;
    *sum_ns += ns;
    if (profile)
        bench_profile_step(&b->stages, begin, ns);
    bench_work_add(&b->work, b->model, b->common.compute, batch, b->active);
    return NYB_OK;
}

/* One run of a point; the same tokens each time. */
static enum nyb_code run_once(struct bench_model *b, const struct bench_point *p, bool profile,
                              double *seconds, struct nyb_err *err)
{
    uint64_t ns = 0;
    b->work = (struct bench_work){0};
    bench_seqs_seed(&b->seqs, (uint64_t)b->seed);
    int step = p->prefill ? (int)b->chunk : 1;
    for (int at = 0; at < p->n_tok; at += step) {
        int n = p->n_tok - at < step ? p->n_tok - at : step;
        bool logits = !p->prefill || at + n == p->n_tok;
        const struct batch batch = bench_seqs_batch(&b->seqs, 0, p->batch, p->depth + at, n, logits);
        TRY(run_step(b, &batch, profile, &ns, err));
    }
    *seconds = (double)ns * 1e-9;
    return NYB_OK;
}

static void measure_roof(struct bench_model *b, struct checkkern_roof *best)
{
    const struct checkkern_env env = {.level = cpu_level(), .pool = model_pool(b->model)};
    struct checkkern_roof now;
    checkkern_measure(&env, &now);
    bench_work_best_roof(best, &now);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- reporting ----------------------------------------------------------------------------------------- */

struct figures {
    double tok_s, median_tok_s, gbs, gflops, of_read, of_peak, of_roof;
};

static struct figures figures_of(const struct bench_model *b, const struct bench_point *p,
                                 const double *sorted, int n, const struct checkkern_roof *roof)
{
    const struct bench_work *w = &b->work;
    double tokens = (double)p->n_tok * p->batch, best = sorted[0];
    return (struct figures){
        .tok_s = tokens / best,
        .median_tok_s = tokens / (n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2),
        .gbs = bench_work_bytes(w) / best * 1e-9,
        .gflops = bench_work_flops(w) / best * 1e-9,
        .of_read = bench_work_bytes(w) / (roof->read_gbs * 1e9) / best,
        .of_peak = bench_work_flop_seconds(w, roof) / best,
        .of_roof = bench_work_bound(w, roof) / best,
    };
}

static json_t *result_json(const struct bench_model *b, const struct bench_point *p, const struct figures *f,
                           const double *sorted, const struct checkkern_roof *roof)
{
    const struct bench_work *w = &b->work;
    json_t *runs = json_array();
    for (int i = 0; i < b->repeat; i++)
        json_array_append_new(runs, json_real(sorted[i]));
    json_t *o = json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "name",
                          p->name, "kind", p->prefill ? "prefill" : "decode", "threads", roof->n_thread,
                          "tokens", p->n_tok, "batch", p->batch, "depth", p->depth, "tokens_per_second",
                          f->tok_s, "median_tokens_per_second", f->median_tok_s, "gbs", f->gbs, "gflops",
                          f->gflops, "of_read", f->of_read, "of_peak", f->of_peak, "of_roofline", f->of_roof);
    json_object_set_new(o, "roofline",
                        json_pack("{s:f, s:f, s:f, s:f, s:f}", "read_gbs", roof->read_gbs, "f32_gflops",
                                  roof->f32_gflops, "bf16_gflops", roof->bf16_gflops, "i8_gops",
                                  roof->i8_gops, "tile_gflops", roof->tile_gflops));
    json_object_set_new(o, "a_step",
                        json_pack("{s:f, s:f, s:f, s:f}", "weight_bytes", w->weight_bytes / w->n_step,
                                  "kv_bytes", w->kv_bytes / w->n_step, "flops",
                                  bench_work_flops(w) / w->n_step, "experts_a_layer",
                                  w->n_moe_layer ? w->n_expert / w->n_step / w->n_moe_layer : 0));
    json_object_set_new(o, "run_seconds", runs);
    if (b->profile)
        json_object_set_new(o, "profile", bench_profile_json(&b->stages));
    return o;
}

void bench_point_header(void)
{
    printf("%-16s %7s %9s %9s  %7s %5s  %9s %5s  %9s  %s\n", "test", "threads", "tok/s", "median", "GB/s",
           "read", "GFLOP/s", "peak", "roofline", "measured limits");
}

static void print_point(const struct bench_model *b, const struct bench_point *p, const struct figures *f,
                        const struct checkkern_roof *roof)
{
    double peak = bench_work_flops(&b->work) / bench_work_flop_seconds(&b->work, roof) * 1e-9;
    printf("%-16s %7d %9.1f %9.1f  %7.1f %4.0f%%  %9.1f %4.0f%%  %8.0f%%  %.1f GB/s, %.0f GFLOP/s\n", p->name,
           roof->n_thread, f->tok_s, f->median_tok_s, f->gbs, 100 * f->of_read, f->gflops, 100 * f->of_peak,
           100 * f->of_roof, roof->read_gbs, peak);
    if (b->profile)
        bench_profile_print(&b->stages);
    fflush(stdout);
}

/* ---- one point ----------------------------------------------------------------------------------------- */

static enum nyb_code profile_point(struct bench_model *b, const struct bench_point *p, int n_thread,
                                   struct nyb_err *err)
{
    char name[80];
    double seconds;
    snprintf(name, sizeof(name), "%s, %d threads", p->name, n_thread);
    bench_profile_start(&b->stages, name);
    return run_once(b, p, true, &seconds, err);
}

/* The tokens before --depth: computed for real, since a cache of zeros is read faster. */
static enum nyb_code fill(struct bench_model *b, const struct bench_point *p, struct nyb_err *err)
{
    int64_t total = bench_seqs_missing(&b->seqs, p->batch, p->depth), left = total;
    if (total == 0)
        return NYB_OK;
    cli_progress_start(&b->bar, "filling the cache");
    enum nyb_code code = NYB_OK;
    while (code == NYB_OK && left > 0) {
        code = bench_seqs_fill(&b->seqs, p->batch, p->depth, (int)b->chunk, err);
        left = bench_seqs_missing(&b->seqs, p->batch, p->depth);
        cli_progress_count(&b->bar, (uint64_t)(total - left), (uint64_t)total, "tokens");
    }
    cli_progress_end(&b->bar);
    return code;
}

static enum nyb_code run_repeats(struct bench_model *b, const struct bench_point *p, double *seconds,
                                 struct nyb_err *err)
{
    TRY(fill(b, p, err));
    enum nyb_code code = NYB_OK;
    cli_progress_start(&b->bar, p->name);
    for (int i = 0; code == NYB_OK && i < b->repeat; i++) {
        code = run_once(b, p, false, &seconds[i], err);
        cli_progress_count(&b->bar, (uint64_t)i + 1, (uint64_t)b->repeat, "runs");
    }
    cli_progress_end(&b->bar);
    return code;
}

enum nyb_code bench_point_run(struct bench_model *b, const struct bench_point *p, struct nyb_err *err)
{
    double *seconds = mem_alloc((size_t)b->repeat, sizeof(*seconds));
    struct checkkern_roof roof = {0};
    measure_roof(b, &roof);
    enum nyb_code code = run_repeats(b, p, seconds, err);
    measure_roof(b, &roof);
    if (code == NYB_OK && !(roof.read_gbs > 0))
        code = err_set(err, NYB_E_MEMORY, "no memory to measure the read bandwidth with");
    if (code == NYB_OK && b->profile)
        code = profile_point(b, p, roof.n_thread, err);
    if (code == NYB_OK) {
        qsort(seconds, (size_t)b->repeat, sizeof(*seconds), by_value);
        const struct figures f = figures_of(b, p, seconds, (int)b->repeat, &roof);
        const struct bench_scan_point rate = {roof.n_thread, p->depth, p->batch, f.tok_s};
        if (b->scan && !p->prefill)
            bench_scan_add(&b->rates, &rate);
        if (b->json)
            json_array_append_new(b->results, result_json(b, p, &f, seconds, &roof));
        else
            print_point(b, p, &f, &roof);
    }
    free(seconds);
    return code;
}

struct bench_point bench_point_prefill(int n_tok)
{
    struct bench_point p = {.prefill = true, .n_tok = n_tok, .batch = 1};
    snprintf(p.name, sizeof(p.name), "pp%d", n_tok);
    return p;
}

struct bench_point bench_point_decode(int n_tok, int batch, int depth)
{
    struct bench_point p = {.n_tok = n_tok, .batch = batch, .depth = depth};
    int n = snprintf(p.name, sizeof(p.name), "tg%d", n_tok);
    if (batch > 1)
        n += snprintf(p.name + n, sizeof(p.name) - (size_t)n, "x%d", batch);
    if (depth > 0)
        snprintf(p.name + n, sizeof(p.name) - (size_t)n, "@%d", depth);
    return p;
}
