/* One line of bench model: its runs, and the limits measured around and between them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/bench_beside.h"
#include "cli/bench_report.h"

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

static enum nyb_code run_repeats(struct bench_model *b, const struct bench_point *p, struct bench_run *run,
                                 struct nyb_err *err)
{
    struct bench_beside beside;
    enum nyb_code code = NYB_OK;
    if (!bench_beside_open(&beside, b->model, (int)b->repeat))
        return err_set(err, NYB_E_MEMORY, "no memory to measure the read bandwidth with");
    cli_progress_start(&b->bar, p->name);
    bench_beside_first(&beside);
    for (int i = 0; code == NYB_OK && i < b->repeat; i++) {
        double seconds;
        code = run_once(b, p, false, &seconds, err);
        if (code != NYB_OK)
            break;
        bench_beside_next(&beside, seconds, &b->work);
        run[i] = bench_beside_run(&beside, i, seconds, &b->work);
        cli_progress_count(&b->bar, (uint64_t)i + 1, (uint64_t)b->repeat, "runs");
    }
    cli_progress_end(&b->bar);
    bench_beside_close(&beside);
    return code;
}

enum nyb_code bench_point_run(struct bench_model *b, const struct bench_point *p, struct nyb_err *err)
{
    struct bench_run *run = mem_alloc((size_t)b->repeat, sizeof(*run));
    struct checkkern_roof roof = {0};
    enum nyb_code code = fill(b, p, err);
    if (code == NYB_OK) {
        measure_roof(b, &roof);
        code = run_repeats(b, p, run, err);
        measure_roof(b, &roof);
    }
    if (code == NYB_OK && !(roof.read_gbs > 0))
        code = err_set(err, NYB_E_MEMORY, "no memory to measure the read bandwidth with");
    if (code == NYB_OK && b->profile)
        code = profile_point(b, p, roof.n_thread, err);
    if (code == NYB_OK)
        bench_report_point(b, p, run, &roof);
    free(run);
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
