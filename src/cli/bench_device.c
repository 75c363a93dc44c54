#include "cli/bench_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/bench_seqs.h"
#include "cli/bench_work.h"
#include "cli/cli.h"

#define KINDS_MAX 32

struct point {
    char name[48];
    bool prefill;
    int n_tok, batch, depth;
};

struct kind {
    const char *name;
    int n;
    double seconds; /* of one */
};

struct run {
    const struct bench_device *o;
    struct bench_seqs seqs;
    struct bench_work work; /* of one run of the point */
    int32_t *best;          /* (largest batch) */
    int *active;            /* (n_layer) */
    uint8_t *seen;          /* (n_expert) */
    float *logits;          /* (largest batch, vocab), where there is a trace */
    double read_rate;       /* bytes a second, the best of this run */
    struct kind kind[KINDS_MAX];
    int n_kind;
    json_t *results;
};

/* ---- running ------------------------------------------------------------------------------------- */

static void count_experts(void *arg, int layer, const int32_t *expert, const float *weight, int n_tok,
                          int top_k)
{
    (void)weight;
    struct run *r = arg;
    int n = 0;
    memset(r->seen, 0, (size_t)model_config(r->o->model)->moe.n_expert);
    for (size_t i = 0; i < (size_t)n_tok * (size_t)top_k; i++) {
        n += !r->seen[expert[i]];
        r->seen[expert[i]] = 1;
    }
    r->active[layer] = n;
}

/* The tokens of a run are a function of the seed: what is counted in one holds for the others. */
static enum nyb_code run_once(struct run *r, const struct point *p, bool count, double *seconds,
                              struct nyb_err *err)
{
    const struct model_probe probe = {.arg = r, .routing = count_experts};
    int step = p->prefill ? r->o->chunk : 1;
    uint64_t ns = 0;
    bench_seqs_seed(&r->seqs, r->o->seed);
    for (int at = 0; at < p->n_tok; at += step) {
        int n = p->n_tok - at < step ? p->n_tok - at : step;
        bool last = !p->prefill || at + n == p->n_tok;
        const struct batch b = bench_seqs_batch(&r->seqs, 0, p->batch, p->depth + at, n, last);
        uint64_t begin = clock_ns();
        if (!count) {
            TRY(model_forward_best(r->o->model, &b, r->best, err));
            ns += clock_ns() - begin;
            continue;
        }
        struct batch silent = b;
        silent.n_out = 0;
        TRY(model_forward(r->o->model, &silent, NULL, &probe, err));
        bench_work_add(&r->work, r->o->model, COMPUTE_BF16, &b, r->active);
    }
    *seconds = (double)ns * 1e-9;
    return NYB_OK;
}

static enum nyb_code measure_rate(struct run *r, struct nyb_err *err)
{
    double rate;
    TRY(model_device_read_rate(r->o->model, &rate, err));
    r->read_rate = rate > r->read_rate ? rate : r->read_rate;
    return NYB_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- the profile --------------------------------------------------------------------------------- */

static void add_kind(void *arg, const char *name, int n, double seconds)
{
    struct run *r = arg;
    if (r->n_kind < KINDS_MAX)
        r->kind[r->n_kind++] = (struct kind){name, n, seconds};
}

/* Of the last step of the point: the longest context. */
static enum nyb_code profile(struct run *r, const struct point *p, struct nyb_err *err)
{
    int n = p->prefill ? (p->n_tok < r->o->chunk ? p->n_tok : r->o->chunk) : 1;
    const struct batch b = bench_seqs_batch(&r->seqs, 0, p->batch, p->depth + p->n_tok - n, n, true);
    r->n_kind = 0;
    return model_device_profile(r->o->model, &b, add_kind, r, err);
}

/* Every kernel of a run, in the order and the lanes in which they run. */
static enum nyb_code trace(struct run *r, const struct point *p, struct nyb_err *err)
{
    const struct model_probe probe = {.arg = r->o->trace, .span = bench_profile_span};
    int step = p->prefill ? r->o->chunk : 1;
    bench_profile_start(r->o->trace, p->name);
    for (int at = 0; at < p->n_tok; at += step) {
        int n = p->n_tok - at < step ? p->n_tok - at : step;
        struct batch b = bench_seqs_batch(&r->seqs, 0, p->batch, p->depth + at, n, true);
        uint64_t begin = clock_ns();
        TRY(model_forward(r->o->model, &b, r->logits, &probe, err));
        bench_profile_step(r->o->trace, begin, clock_ns() - begin);
    }
    return NYB_OK;
}

static double profile_sum(const struct run *r)
{
    double sum = 0;
    for (int i = 0; i < r->n_kind; i++)
        sum += r->kind[i].n * r->kind[i].seconds;
    return sum;
}

static void print_profile(const struct run *r)
{
    double sum = profile_sum(r);
    for (int i = 0; i < r->n_kind; i++) {
        const struct kind *k = &r->kind[i];
        printf("    %-18s %4d x %9.2f us = %10.1f us  %5.1f %%\n", k->name, k->n, k->seconds * 1e6,
               k->n * k->seconds * 1e6, 100 * k->n * k->seconds / sum);
    }
    printf("    %-18s %30.1f us\n", "all kernels", sum * 1e6);
}

/* ---- reporting ----------------------------------------------------------------------------------- */

struct figures {
    double tok_s, median_tok_s, step_s, gbs, of_read, tflops;
};

static struct figures figures_of(const struct run *r, const struct point *p, const double *sorted)
{
    double tokens = (double)p->n_tok * p->batch, best = sorted[0];
    return (struct figures){.tok_s = tokens / best,
                            .median_tok_s = tokens / sorted[r->o->repeat / 2],
                            .step_s = best / r->work.n_step,
                            .gbs = bench_work_bytes(&r->work) / best * 1e-9,
                            .of_read = bench_work_bytes(&r->work) / r->read_rate / best,
                            .tflops = bench_work_flops(&r->work) / best * 1e-12};
}

static void print_point(const struct run *r, const struct point *p, const struct figures *f)
{
    printf("%-16s %10.1f %10.1f %10.1f  %8.1f %5.1f %%  %8.1f\n", p->name, f->tok_s, f->median_tok_s,
           f->step_s * 1e6, f->gbs, 100 * f->of_read, f->tflops);
    if (r->o->profile)
        print_profile(r);
    fflush(stdout);
}

static void add_result(struct run *r, const struct point *p, const struct figures *f)
{
    const struct bench_work *w = &r->work;
    json_t *o = json_pack("{s:s, s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "name",
                          p->name, "kind", p->prefill ? "prefill" : "decode", "tokens", p->n_tok, "batch",
                          p->batch, "depth", p->depth, "tokens_per_second", f->tok_s,
                          "median_tokens_per_second", f->median_tok_s, "step_us", f->step_s * 1e6, "gbs",
                          f->gbs, "of_read", f->of_read, "tflops", f->tflops, "weight_bytes_a_step",
                          w->weight_bytes / w->n_step, "kv_bytes_a_step", w->kv_bytes / w->n_step);
    json_t *kinds = json_array();
    for (int i = 0; r->o->profile && i < r->n_kind; i++)
        json_array_append_new(kinds, json_pack("{s:s, s:i, s:f}", "kernel", r->kind[i].name, "n",
                                               r->kind[i].n, "us", r->kind[i].seconds * 1e6));
    json_object_set_new(o, "profile", kinds);
    json_array_append_new(r->results, o);
}

static enum nyb_code fill_cache(struct run *r, const struct point *p, struct nyb_err *err)
{
    while (bench_seqs_missing(&r->seqs, p->batch, p->depth) > 0)
        TRY(bench_seqs_fill(&r->seqs, p->batch, p->depth, r->o->chunk, err));
    return NYB_OK;
}

static enum nyb_code run_repeats(struct run *r, const struct point *p, double *seconds, struct nyb_err *err)
{
    TRY(fill_cache(r, p, err));
    r->work = (struct bench_work){0};
    TRY(run_once(r, p, true, &seconds[0], err));  /* also warms up */
    TRY(run_once(r, p, false, &seconds[0], err)); /* records its graphs */
    for (int i = 0; i < r->o->repeat; i++)
        TRY(run_once(r, p, false, &seconds[i], err));
    TRY(measure_rate(r, err));
    if (r->o->trace)
        TRY(trace(r, p, err));
    return r->o->profile ? profile(r, p, err) : NYB_OK;
}

static enum nyb_code run_point(struct run *r, const struct point *p, struct nyb_err *err)
{
    double *seconds = mem_alloc((size_t)r->o->repeat, sizeof(*seconds));
    enum nyb_code code = run_repeats(r, p, seconds, err);
    if (code == NYB_OK) {
        qsort(seconds, (size_t)r->o->repeat, sizeof(*seconds), by_value);
        const struct figures f = figures_of(r, p, seconds);
        if (r->o->json)
            add_result(r, p, &f);
        else
            print_point(r, p, &f);
    }
    free(seconds);
    return code;
}

/* ---- the whole ----------------------------------------------------------------------------------- */

static enum nyb_code run_points(struct run *r, struct nyb_err *err)
{
    const struct bench_device *o = r->o;
    for (int i = 0; i < o->n_prompt; i++) {
        struct point p = {.prefill = true, .n_tok = o->prompt[i], .batch = 1};
        snprintf(p.name, sizeof(p.name), "pp%d", p.n_tok);
        if (p.n_tok > 0)
            TRY(run_point(r, &p, err));
    }
    for (int d = 0; o->gen > 0 && d < o->n_depth; d++)
        for (int i = 0; i < o->n_batch; i++) {
            struct point p = {.n_tok = o->gen, .batch = o->batch[i], .depth = o->depth[d]};
            snprintf(p.name, sizeof(p.name), "tg%dx%d@%d", p.n_tok, p.batch, p.depth);
            TRY(run_point(r, &p, err));
        }
    return NYB_OK;
}

static int most(const int *v, int n)
{
    int max = 0;
    for (int i = 0; i < n; i++)
        max = v[i] > max ? v[i] : max;
    return max;
}

static enum nyb_code open_run(struct run *r, struct nyb_err *err)
{
    const struct bench_device *o = r->o;
    const struct model_config *c = model_config(o->model);
    int batch = o->gen > 0 ? most(o->batch, o->n_batch) : 1, prompt = most(o->prompt, o->n_prompt);
    int64_t decode = o->gen > 0 ? (int64_t)most(o->depth, o->n_depth) + o->gen : 0;
    int64_t len = decode > prompt ? decode : prompt;
    if (len > c->max_position)
        return err_at(err, NYB_E_TOO_LONG, "--prompt, --depth and --gen", -1,
                      "%lld tokens; the model's context is %lld", (long long)len, (long long)c->max_position);
    int rows = len < o->chunk ? (int)len : o->chunk;
    r->best = mem_alloc((size_t)batch, sizeof(*r->best));
    r->active = mem_alloc((size_t)c->n_layer, sizeof(*r->active));
    r->seen = mem_alloc((size_t)c->moe.n_expert + 1, 1);
    r->results = json_array();
    if (o->trace) {
        r->logits = mem_try_alloc((size_t)batch * (size_t)c->vocab, sizeof(*r->logits));
        if (!r->logits)
            return err_set(err, NYB_E_MEMORY, "no memory for the logits of %d sequences", batch);
    }
    TRY(bench_seqs_open(&r->seqs, o->model, batch, (int)len, rows > batch ? rows : batch, err));
    return measure_rate(r, err);
}

static void print_json(const struct run *r)
{
    const struct bench_device *o = r->o;
    json_t *all =
        json_pack("{s:s, s:s, s:s, s:s, s:f, s:f, s:i, s:O}", "version", NYBBLE_VERSION, "device",
                  model_device_name(o->model), "model", o->name, "quantization", model_quant_text(o->model),
                  "resident_bytes", (double)model_weight_bytes(o->model), "read_gbs", r->read_rate * 1e-9,
                  "repeat", o->repeat, "results", r->results);
    char *text = all ? json_dumps(all, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : NULL;
    if (text)
        puts(text);
    free(text);
    json_decref(all);
}

enum nyb_code bench_device_run(const struct bench_device *o, struct nyb_err *err)
{
    struct run r = {.o = o};
    enum nyb_code code = open_run(&r, err);
    if (code == NYB_OK && !o->json) {
        printf("%s reads %.0f GB/s; %s, %s, %.2f GB resident; best of %d\n", model_device_name(o->model),
               r.read_rate * 1e-9, o->name, model_quant_text(o->model),
               (double)model_weight_bytes(o->model) * 1e-9, o->repeat);
        printf("%-16s %10s %10s %10s  %8s %7s  %8s\n", "test", "tok/s", "median", "us a step", "GB/s", "read",
               "TFLOP/s");
    }
    if (code == NYB_OK)
        code = run_points(&r, err);
    if (code == NYB_OK && o->json)
        print_json(&r);
    bench_seqs_close(&r.seqs);
    json_decref(r.results);
    free(r.best);
    free(r.active);
    free(r.seen);
    free(r.logits);
    return code;
}
