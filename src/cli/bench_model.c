/* Prefill and decode speed of a model on this machine, beside the limits measured in the same run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "cli/bench.h"
#include "cli/bench_device.h"
#include "cli/bench_engine.h"
#include "cli/bench_model.h"
#include "cli/bench_report.h"

static enum nyb_code run_threads(struct bench_model *b, int n_thread, struct nyb_err *err)
{
    TRY(model_set_threads(b->model, n_thread, err));
    for (int i = 0; i < b->prompt.n; i++)
        if (b->prompt.v[i] > 0) {
            const struct bench_point p = bench_point_prefill(b->prompt.v[i]);
            TRY(bench_point_run(b, &p, err));
        }
    for (int d = 0; b->gen > 0 && d < b->depth.n; d++)
        for (int i = 0; i < b->batch.n; i++) {
            const struct bench_point p = bench_point_decode((int)b->gen, b->batch.v[i], b->depth.v[d]);
            TRY(bench_point_run(b, &p, err));
        }
    return NYB_OK;
}

/* ---- whole steps of the engine ------------------------------------------------------------------------- */

static void report_engine(struct bench_model *b, const char *name, const struct bench_engine *e, int n_thread,
                          const double *sorted, const struct bench_profile *profile)
{
    int n = e->repeat;
    double tokens = (double)e->gen * e->batch, tok_s = tokens / sorted[0];
    double median = tokens / (n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2);
    if (!b->json) {
        printf("%-16s %7d %9.1f %9.1f  whole steps of the engine, temperature %g, top_p %g%s\n", name,
               n_thread, tok_s, median, BENCH_ENGINE_TEMPERATURE, BENCH_ENGINE_TOP_P,
               e->tokenizer ? "" : "; no tokenizer");
        bench_profile_print(profile);
        fflush(stdout);
        return;
    }
    json_t *runs = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(runs, json_real(sorted[i]));
    json_array_append_new(b->results,
                          json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:f, s:f, s:b, s:o, s:o}", "name", name,
                                    "kind", "engine", "threads", n_thread, "tokens", e->gen, "batch",
                                    e->batch, "depth", e->depth, "tokens_per_second", tok_s,
                                    "median_tokens_per_second", median, "detokenized", e->tokenizer != NULL,
                                    "run_seconds", runs, "profile", bench_profile_json(profile)));
}

static enum nyb_code run_engine_point(struct bench_model *b, int n_thread, int batch, int depth,
                                      struct nyb_err *err)
{
    const struct bench_point p = bench_point_decode((int)b->gen, batch, depth);
    const struct bench_engine e = {.model = b->model,
                                   .tokenizer = b->tok,
                                   .batch = batch,
                                   .depth = depth,
                                   .gen = (int)b->gen,
                                   .repeat = (int)b->repeat,
                                   .chunk = (int)b->chunk,
                                   .seed = (uint64_t)b->seed};
    char name[64];
    snprintf(name, sizeof(name), "engine %s", p.name);
    double *seconds = mem_alloc((size_t)b->repeat, sizeof(*seconds));
    struct bench_profile best = {0};
    cli_progress_start(&b->bar, name);
    enum nyb_code code = bench_engine_run(&e, seconds, &best, err);
    cli_progress_end(&b->bar);
    if (code == NYB_OK)
        report_engine(b, name, &e, n_thread, seconds, &best);
    free(seconds);
    return code;
}

/* After all others: the engine takes the KV cache over. */
static enum nyb_code run_engine(struct bench_model *b, const char *folder, struct nyb_err *err)
{
    struct nyb_err none;
    if (b->tokenizer)
        TRY(tok_open(&b->tok, b->tokenizer, err));
    else if (tok_open(&b->tok, folder, &none) != NYB_OK)
        b->tok = NULL; /* a shape: config.json alone */
    bench_seqs_close(&b->seqs);
    for (int t = 0; t < b->threads.n; t++) {
        TRY(model_set_threads(b->model, b->threads.v[t], err));
        for (int d = 0; b->gen > 0 && d < b->depth.n; d++)
            for (int i = 0; i < b->batch.n; i++)
                TRY(run_engine_point(b, b->threads.v[t], b->batch.v[i], b->depth.v[d], err));
    }
    return NYB_OK;
}

/* ---- the whole ----------------------------------------------------------------------------------------- */

static enum nyb_code prepare(struct bench_model *b, struct nyb_err *err)
{
    const struct model_config *c = model_config(b->model);
    int64_t decode = b->gen > 0 ? bench_list_max(&b->depth) + b->gen : 0,
            prefill = bench_list_max(&b->prompt);
    int64_t len = decode > prefill ? decode : prefill;
    if (len > c->max_position)
        return err_at(err, NYB_E_TOO_LONG, decode > prefill ? "--depth and --gen" : "--prompt", -1,
                      "%lld tokens; the model's context is %lld", (long long)len, (long long)c->max_position);
    int batch = b->gen > 0 ? bench_list_max(&b->batch) : 1;
    int rows = len < b->chunk ? (int)len : (int)b->chunk;
    b->logits = mem_try_alloc((size_t)batch * (size_t)c->vocab, sizeof(float));
    if (!b->logits)
        return err_set(err, NYB_E_MEMORY, "no memory for the logits of %d sequences", batch);
    b->active = mem_alloc((size_t)c->n_layer, sizeof(*b->active));
    b->seen = mem_alloc((size_t)c->moe.n_expert + 1, 1);
    return bench_seqs_open(&b->seqs, b->model, batch, (int)len, rows > batch ? rows : batch, err);
}

static void print_json(const struct bench_model *b, const char *level)
{
    json_t *o =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:f, s:i, s:O}", "version", NYBBLE_VERSION, "cpu",
                  cpu_model_name(), "level", level, "model", b->common.model, "quantization",
                  model_quant_text(b->model), "compute", compute_name(b->common.compute), "resident_bytes",
                  (double)model_weight_bytes(b->model), "repeat", (int)b->repeat, "results", b->results);
    if (o && b->scan)
        json_object_set_new(o, "cliffs", bench_scan_json(&b->rates));
    char *text = o ? json_dumps(o, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : NULL;
    if (text)
        puts(text);
    free(text);
    json_decref(o);
}

static enum nyb_code measure(struct bench_model *b, const char *folder, struct nyb_err *err)
{
    const char *level = cpu_level_name(cpu_level());
    TRY(prepare(b, err));
    if (b->trace)
        TRY(bench_profile_open_trace(&b->stages, b->trace, err));
    if (!b->json) {
        printf("%s, %s; %s, %s, %.2f GB resident, compute %s; best of %d\n", cpu_model_name(), level,
               b->common.model, model_quant_text(b->model), (double)model_weight_bytes(b->model) * 1e-9,
               compute_name(b->common.compute), (int)b->repeat);
        bench_report_header();
    }
    for (int i = 0; i < b->threads.n; i++)
        TRY(run_threads(b, b->threads.v[i], err));
    if (b->scan && !b->json)
        bench_scan_print(&b->rates);
    if (b->engine)
        TRY(run_engine(b, folder, err));
    if (b->json)
        print_json(b, level);
    return NYB_OK;
}

static enum nyb_code measure_device(struct bench_model *b, const char *folder, struct nyb_err *err)
{
    const struct bench_device d = {.model = b->model,
                                   .name = b->common.model,
                                   .prompt = b->prompt.v,
                                   .batch = b->batch.v,
                                   .depth = b->depth.v,
                                   .n_prompt = b->prompt.n,
                                   .n_batch = b->batch.n,
                                   .n_depth = b->depth.n,
                                   .gen = (int)b->gen,
                                   .repeat = (int)b->repeat,
                                   .chunk = (int)b->chunk,
                                   .seed = (uint64_t)b->seed,
                                   .profile = b->profile,
                                   .json = b->json,
                                   .trace = b->trace ? &b->stages : NULL};
    if (b->scan || (b->engine && b->json))
        return err_set(err, NYB_E_UNSUPPORTED, "on a GPU there is no --scan, and no --engine with --json");
    if (b->trace)
        TRY(bench_profile_open_trace(&b->stages, b->trace, err));
    TRY(bench_device_run(&d, err));
    return b->engine ? run_engine(b, folder, err) : NYB_OK;
}

static enum nyb_code run(struct bench_model *b, struct nyb_err *err)
{
    char *folder = NULL;
    struct nyb_err late;
    b->results = json_array();
    b->common.threads = bench_list_max(&b->threads);
    b->common.max_batched_tokens =
        b->chunk > bench_list_max(&b->batch) ? b->chunk : bench_list_max(&b->batch);
    enum nyb_code code = ckpt_resolve(&folder, b->common.model, err);
    if (code == NYB_OK)
        code = common_open_model(&b->model, &b->common, folder, err);
    if (code == NYB_OK)
        code = model_device_name(b->model) ? measure_device(b, folder, err) : measure(b, folder, err);
    enum nyb_code closed = bench_profile_close_trace(&b->stages, b->trace, code == NYB_OK ? err : &late);
    bench_seqs_close(&b->seqs);
    model_close(b->model);
    json_decref(b->results);
    bench_scan_free(&b->rates);
    tok_close(b->tok);
    free(b->logits);
    free(b->active);
    free(b->seen);
    free(folder);
    return code != NYB_OK ? code : closed;
}

int bench_model(int argc, char **argv)
{
    struct bench_model b;
    struct nyb_err err;
    int status;
    if (!bench_model_options(&b, argc, argv, &status))
        return status;
    return run(&b, &err) == NYB_OK ? 0 : cli_fail("bench model", &err);
}
