/* Prefill and decode speed of a model on this machine, beside the limits measured in the same run. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "cli/bench.h"
#include "cli/bench_device.h"
#include "cli/bench_engine.h"
#include "cli/bench_profile.h"
#include "cli/bench_scan.h"
#include "cli/bench_seqs.h"
#include "cli/bench_work.h"
#include "cli/cli.h"
#include "cli/common.h"

#define LIST_MAX 32

static const char help[] =
    "nybble bench model: prefill and decode speed, beside the limits of this machine\n\n"
    "usage: nybble bench model [OPTIONS] [MODEL]\n\n"
    "Measures tokens/s as the best of several runs, what that is in GB/s and GFLOP/s over the bytes and the\n"
    "arithmetic that a step cannot do without, and the share of the roofline that the same threads reach in\n"
    "the same run. Tokens are random; sampling is not part of it. Lists are separated by commas.\n\n"
    "  --prompt LIST    tokens of a prefill (default: 512; 0: none)\n"
    "  --gen N          tokens to decode for each sequence (default: 64; 0: none)\n"
    "  --depth LIST     tokens in the cache before decode begins (default: 0)\n"
    "  --batch LIST     sequences decoding together (default: 1)\n"
    "  --threads LIST   default: all cores\n"
    "  --repeat N       runs of each, the best counts (default: 5)\n"
    "  --chunk N        most prompt tokens in a step (default: 2048)\n"
    "  --seed N         of the tokens (default: 1)\n"
    "  --scan           decode with 1 to 64 sequences: does tokens/s fall anywhere? (--prompt 0 and a list "
    "for\n"
    "                   --batch, where none is given)\n"
    "  --engine         besides, whole steps of the engine: schedule, forward, sample, deliver, detokenize\n"
    "  --tokenizer PATH for --engine, where the model has none: a folder, or a tokenizer.json\n"
    "  --profile        where the time of a step goes, by stage (one more run of each)\n"
    "  --trace FILE     that run as a Chrome trace\n"
    "  --json           one JSON object on standard output\n"
    "  --compute MODE   bf16 (default), strict, int8 or w4a4: docs/NUMERICS.md\n"
    "  --load-format F  auto (default), or dummy: random weights from config.json alone\n"
    "  --max-model-len N  longest context (default: the model's)\n" COMMON_HELP_RANKS
    "  --device D       cpu (default), cuda, or auto: docs/BACKENDS.md; with --profile every kernel is "
    "timed\n"
    "  --moe-backend B, --gemm-backend B  a GPU's kernels: auto, sm90-w4a16, cublaslt-nvfp4, reference\n"
    "  --verbose        say more\n"
    "  --help           this text\n\n"
    "examples:\n"
    "  nybble bench model\n"
    "  nybble bench model --threads 1,2 --depth 0,4096 ~/models/Qwen3-30B-A3B-FP4\n"
    "  nybble bench model --prompt 0 --batch 1,4,8,16,32,64 --load-format dummy shapes/qwen3-30b-a3b\n"
    "  nybble bench model --profile --trace step.json --json > speed.json\n";

struct list {
    int v[LIST_MAX], n;
};

struct bench {
    struct common_options common;
    struct list prompt, depth, batch, threads;
    int64_t gen, repeat, chunk, seed;
    bool json, profile, scan, engine, prompt_given, batch_given;
    const char *trace, *tokenizer;
    /* while running */
    struct model *model;
    struct bench_seqs seqs;
    struct bench_profile stages;
    struct bench_work work;  /* of the run in progress */
    struct bench_scan rates; /* for --scan */
    struct tokenizer *tok;   /* for --engine; NULL: none */
    float *logits;           /* (largest batch, vocab) */
    int *active;             /* (n_layer) experts that the step visited */
    uint8_t *seen;           /* (n_expert)                              */
    json_t *results;
    struct cli_progress bar;
};

/* One line of the table. */
struct point {
    char name[48];
    bool prefill;
    int n_tok; /* of the prompt, or to generate */
    int batch, depth;
};

/* ---- running ------------------------------------------------------------------------------------- */

static void count_experts(void *arg, int layer, const int32_t *expert, const float *weight, int n_tok,
                          int top_k)
{
    (void)weight;
    struct bench *b = arg;
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
    struct bench *b = arg;
    bench_profile_stage(&b->stages, layer, name, ns);
}

static void profile_span(void *arg, int micro_batch, int layer, const char *name, bool communication,
                         uint64_t begin_ns, uint64_t end_ns)
{
    struct bench *b = arg;
    bench_profile_span(&b->stages, micro_batch, layer, name, communication, begin_ns, end_ns);
}

static enum nyb_code run_step(struct bench *b, const struct batch *batch, bool profile, uint64_t *sum_ns,
                              struct nyb_err *err)
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
static enum nyb_code run_once(struct bench *b, const struct point *p, bool profile, double *seconds,
                              struct nyb_err *err)
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

static void measure_roof(struct bench *b, struct checkkern_roof *best)
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

/* ---- reporting ----------------------------------------------------------------------------------- */

struct figures {
    double tok_s, median_tok_s, gbs, gflops, of_read, of_peak, of_roof;
};

static struct figures figures_of(const struct bench *b, const struct point *p, const double *sorted, int n,
                                 const struct checkkern_roof *roof)
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

static json_t *result_json(const struct bench *b, const struct point *p, const struct figures *f,
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

static void print_header(void)
{
    printf("%-16s %7s %9s %9s  %7s %5s  %9s %5s  %9s  %s\n", "test", "threads", "tok/s", "median", "GB/s",
           "read", "GFLOP/s", "peak", "roofline", "measured limits");
}

static void print_point(const struct bench *b, const struct point *p, const struct figures *f,
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

/* ---- one point ----------------------------------------------------------------------------------- */

static enum nyb_code profile_point(struct bench *b, const struct point *p, int n_thread, struct nyb_err *err)
{
    char name[80];
    double seconds;
    snprintf(name, sizeof(name), "%s, %d threads", p->name, n_thread);
    bench_profile_start(&b->stages, name);
    return run_once(b, p, true, &seconds, err);
}

/* The tokens before --depth: computed for real, since a cache of zeros is read faster. */
static enum nyb_code fill(struct bench *b, const struct point *p, struct nyb_err *err)
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

static enum nyb_code run_repeats(struct bench *b, const struct point *p, double *seconds, struct nyb_err *err)
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

static enum nyb_code run_point(struct bench *b, const struct point *p, struct nyb_err *err)
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

static struct point prefill_point(int n_tok)
{
    struct point p = {.prefill = true, .n_tok = n_tok, .batch = 1};
    snprintf(p.name, sizeof(p.name), "pp%d", n_tok);
    return p;
}

/* tg64, with 8 sequences tg64x8, after 4096 tokens tg64@4096. */
static struct point decode_point(int n_tok, int batch, int depth)
{
    struct point p = {.n_tok = n_tok, .batch = batch, .depth = depth};
    int n = snprintf(p.name, sizeof(p.name), "tg%d", n_tok);
    if (batch > 1)
        n += snprintf(p.name + n, sizeof(p.name) - (size_t)n, "x%d", batch);
    if (depth > 0)
        snprintf(p.name + n, sizeof(p.name) - (size_t)n, "@%d", depth);
    return p;
}

static enum nyb_code run_threads(struct bench *b, int n_thread, struct nyb_err *err)
{
    TRY(model_set_threads(b->model, n_thread, err));
    for (int i = 0; i < b->prompt.n; i++)
        if (b->prompt.v[i] > 0) {
            const struct point p = prefill_point(b->prompt.v[i]);
            TRY(run_point(b, &p, err));
        }
    for (int d = 0; b->gen > 0 && d < b->depth.n; d++)
        for (int i = 0; i < b->batch.n; i++) {
            const struct point p = decode_point((int)b->gen, b->batch.v[i], b->depth.v[d]);
            TRY(run_point(b, &p, err));
        }
    return NYB_OK;
}

/* ---- whole steps of the engine -------------------------------------------------------------------- */

static void report_engine(struct bench *b, const char *name, const struct bench_engine *e, int n_thread,
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

static enum nyb_code run_engine_point(struct bench *b, int n_thread, int batch, int depth,
                                      struct nyb_err *err)
{
    const struct point p = decode_point((int)b->gen, batch, depth);
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
static enum nyb_code run_engine(struct bench *b, const char *folder, struct nyb_err *err)
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

/* ---- the whole ----------------------------------------------------------------------------------- */

static int list_max(const struct list *l)
{
    int max = 0;
    for (int i = 0; i < l->n; i++)
        max = l->v[i] > max ? l->v[i] : max;
    return max;
}

static enum nyb_code prepare(struct bench *b, struct nyb_err *err)
{
    const struct model_config *c = model_config(b->model);
    int64_t decode = b->gen > 0 ? list_max(&b->depth) + b->gen : 0, prefill = list_max(&b->prompt);
    int64_t len = decode > prefill ? decode : prefill;
    if (len > c->max_position)
        return err_at(err, NYB_E_TOO_LONG, decode > prefill ? "--depth and --gen" : "--prompt", -1,
                      "%lld tokens; the model's context is %lld", (long long)len, (long long)c->max_position);
    int batch = b->gen > 0 ? list_max(&b->batch) : 1;
    int rows = len < b->chunk ? (int)len : (int)b->chunk;
    b->logits = mem_try_alloc((size_t)batch * (size_t)c->vocab, sizeof(float));
    if (!b->logits)
        return err_set(err, NYB_E_MEMORY, "no memory for the logits of %d sequences", batch);
    b->active = mem_alloc((size_t)c->n_layer, sizeof(*b->active));
    b->seen = mem_alloc((size_t)c->moe.n_expert + 1, 1);
    return bench_seqs_open(&b->seqs, b->model, batch, (int)len, rows > batch ? rows : batch, err);
}

static void print_json(const struct bench *b, const char *level)
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

static enum nyb_code measure(struct bench *b, const char *folder, struct nyb_err *err)
{
    const char *level = cpu_level_name(cpu_level());
    TRY(prepare(b, err));
    if (b->trace)
        TRY(bench_profile_open_trace(&b->stages, b->trace, err));
    if (!b->json) {
        printf("%s, %s; %s, %s, %.2f GB resident, compute %s; best of %d\n", cpu_model_name(), level,
               b->common.model, model_quant_text(b->model), (double)model_weight_bytes(b->model) * 1e-9,
               compute_name(b->common.compute), (int)b->repeat);
        print_header();
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

static enum nyb_code measure_device(struct bench *b, const char *folder, struct nyb_err *err)
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

static enum nyb_code run(struct bench *b, struct nyb_err *err)
{
    char *folder = NULL;
    struct nyb_err late;
    b->results = json_array();
    b->common.threads = list_max(&b->threads);
    b->common.max_batched_tokens = b->chunk > list_max(&b->batch) ? b->chunk : list_max(&b->batch);
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

static bool parse_list(const char *option, const char *text, int64_t lo, int64_t hi, struct list *out)
{
    char *copy = mem_strdup(text), *save = NULL;
    bool fine = true;
    out->n = 0;
    for (char *part = strtok_r(copy, ",", &save); fine && part; part = strtok_r(NULL, ",", &save)) {
        int64_t value;
        fine = cli_parse_int("bench model", option, part, lo, hi, &value);
        if (fine && out->n == LIST_MAX) {
            cli_misuse("bench model", "%s takes at most %d numbers", option, LIST_MAX);
            fine = false;
        }
        if (fine)
            out->v[out->n++] = (int)value;
    }
    if (fine && out->n == 0) {
        cli_misuse("bench model", "%s takes numbers separated by commas, got \"%s\"", option, text);
        fine = false;
    }
    free(copy);
    return fine;
}

enum {
    PROMPT = COMMON_OPTION_END,
    GEN,
    DEPTH,
    BATCH,
    REPEAT,
    CHUNK,
    SEED,
    PROFILE,
    TRACE,
    JSON,
    SCAN,
    ENGINE,
    TOKENIZER
};

static bool take(struct bench *b, int option, const char *arg)
{
    switch (option) {
    case PROMPT:
        b->prompt_given = true;
        return parse_list("--prompt", arg, 0, 1 << 24, &b->prompt);
    case DEPTH:
        return parse_list("--depth", arg, 0, 1 << 24, &b->depth);
    case BATCH:
        b->batch_given = true;
        return parse_list("--batch", arg, 1, 1 << 16, &b->batch);
    case COMMON_THREADS:
        return parse_list("--threads", arg, 1, 4096, &b->threads);
    case GEN:
        return cli_parse_int("bench model", "--gen", arg, 0, 1 << 20, &b->gen);
    case REPEAT:
        return cli_parse_int("bench model", "--repeat", arg, 1, 1000, &b->repeat);
    case CHUNK:
        return cli_parse_int("bench model", "--chunk", arg, 1, 1 << 20, &b->chunk);
    case SEED:
        return cli_parse_int("bench model", "--seed", arg, 0, INT64_MAX, &b->seed);
    case PROFILE:
        b->profile = true;
        return true;
    case TRACE:
        b->trace = arg;
        b->profile = true;
        return true;
    case SCAN:
        b->scan = true;
        return true;
    case ENGINE:
        b->engine = true;
        return true;
    case TOKENIZER:
        b->tokenizer = arg;
        return true;
    case JSON:
        b->json = true;
        return true;
    default:
        return common_take(&b->common, "bench model", option, arg);
    }
}

/* Around the borders of the tiles: 8 rows, two of them, four. */
static const struct list scan_batches = {{1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64}, 16};

int bench_model(int argc, char **argv)
{
    static const struct option options[] = {
        {"prompt", required_argument, NULL, PROMPT},
        {"gen", required_argument, NULL, GEN},
        {"depth", required_argument, NULL, DEPTH},
        {"batch", required_argument, NULL, BATCH},
        {"repeat", required_argument, NULL, REPEAT},
        {"chunk", required_argument, NULL, CHUNK},
        {"seed", required_argument, NULL, SEED},
        {"profile", no_argument, NULL, PROFILE},
        {"trace", required_argument, NULL, TRACE},
        {"scan", no_argument, NULL, SCAN},
        {"engine", no_argument, NULL, ENGINE},
        {"tokenizer", required_argument, NULL, TOKENIZER},
        {"json", no_argument, NULL, JSON},
        COMMON_OPTIONS,
        {0},
    };
    struct bench b = {.prompt = {{512}, 1},
                      .depth = {{0}, 1},
                      .batch = {{1}, 1},
                      .threads = {{cpu_count()}, 1},
                      .gen = 64,
                      .repeat = 5,
                      .chunk = 2048,
                      .seed = 1};
    common_init(&b.common);
    for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        if (c == 'h') {
            fputs(help, stdout);
            return 0;
        }
        if (!take(&b, c, optarg))
            return 2;
    }
    if (!common_take_model(&b.common, "bench model", argc, argv, optind))
        return 2;
    if (b.scan && !b.prompt_given)
        b.prompt.v[0] = 0;
    if (b.scan && !b.batch_given)
        b.batch = scan_batches;
    if (list_max(&b.prompt) == 0 && b.gen == 0)
        return cli_misuse("bench model", "--prompt 0 and --gen 0 leave nothing to measure");
    struct nyb_err err;
    return run(&b, &err) == NYB_OK ? 0 : cli_fail("bench model", &err);
}
