/* nybble bench overlap: what two-batch overlap gains or costs, measured in turn in one process. Runs that
 * follow one another differ by more than what is to be shown: a machine is not equally busy for minutes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "cli/bench.h"
#include "cli/bench_profile.h"
#include "cli/bench_seqs.h"
#include "cli/cli.h"
#include "cli/common.h"

#define LIST_MAX 16

static const char help[] =
    "nybble bench overlap: two-batch overlap between ranks, measured in turn\n\n"
    "usage: nybble bench overlap [OPTIONS] [MODEL]\n\n"
    "Each round computes the same step without overlap, left to itself (auto), and with it (always), in an "
    "order\n"
    "that changes from round to round. Prints the best and the median of each, and what one takes beside the "
    "step\n"
    "without overlap of the same round: the median of these ratios, and the ratio of all rounds' time. "
    "Rounds count\n"
    "from the first, so what auto tries out is in it.\n\n"
    "  --prompt LIST    tokens of a prefill (default: 256; without --batch)\n"
    "  --batch LIST     decode with so many sequences\n"
    "  --depth N        tokens in the cache of each (default: 0)\n"
    "  --rounds N       (default: 100)\n"
    "  --seed N         of the tokens (default: 1)\n"
    "  --trace FILE     besides, a step without overlap and one with it as a Chrome trace\n"
    "  --json           one JSON object on standard output; of several steps a list of them\n" COMMON_HELP
    "\nexamples:\n"
    "  nybble bench overlap --tensor-parallel-size 2 --threads 1\n"
    "  mpirun --host a,b nybble bench overlap --prompt 1024 ~/models/Qwen3-30B-A3B-FP4\n";

enum { OFF, AUTO, ALWAYS, MODES };

static const enum overlap_mode mode_of[MODES] = {OVERLAP_OFF, OVERLAP_AUTO, OVERLAP_ALWAYS};
static const char *const mode_name[MODES] = {"off", "auto", "always"};

/* A prefill of so many tokens, or, where batch is not 0, a step of so many sequences. */
struct point {
    int prompt, batch;
};

struct list {
    int v[LIST_MAX], n;
};

struct bench {
    struct common_options common;
    struct list prompt, batch;
    int64_t depth, rounds, seed;
    const char *trace;
    bool json;
    /* while running */
    struct model *model;
    struct point point[2 * LIST_MAX];
    int n_point;
    struct bench_seqs seqs;
    struct bench_profile stages;
    float *logits;     /* (most sequences, vocab) */
    int32_t *best;     /* (most sequences) */
    double *ms[MODES]; /* (rounds) in the order in which they were measured */
    json_t *results;
};

struct result {
    double best_ms, median_ms, median_ratio, total_ratio;
};

static int sequences(const struct point *p)
{
    return p->batch > 0 ? p->batch : 1;
}

static int rows(const struct point *p)
{
    return p->batch > 0 ? p->batch : p->prompt;
}

static enum nyb_code run_step(struct bench *b, const struct point *p, int mode,
                              const struct model_probe *probe, double *ms, struct nyb_err *err)
{
    int n_seq = sequences(p);
    bench_seqs_seed(&b->seqs, (uint64_t)b->seed);
    const struct batch batch = bench_seqs_batch(&b->seqs, 0, n_seq, (int)b->depth, rows(p) / n_seq, true);
    model_set_overlap(b->model, mode_of[mode]);
    uint64_t begin = clock_ns();
    if (model_device_name(b->model) && !probe) /* many logits would take longer to copy than the step takes */
        TRY(model_forward_best(b->model, &batch, b->best, err));
    else
        TRY(model_forward(b->model, &batch, b->logits, probe, err));
    *ms = (double)(clock_ns() - begin) * 1e-6;
    return NYB_OK;
}

static enum nyb_code run_rounds(struct bench *b, const struct point *p, struct nyb_err *err)
{
    double ms;
    while (bench_seqs_missing(&b->seqs, sequences(p), (int)b->depth) > 0)
        TRY(bench_seqs_fill(&b->seqs, sequences(p), (int)b->depth, 256, err));
    for (int mode = 0; mode < MODES; mode += ALWAYS) /* memory that is touched for the first time */
        TRY(run_step(b, p, mode, NULL, &ms, err));
    for (int64_t round = 0; round < b->rounds; round++)
        for (int i = 0; i < MODES; i++) {
            int mode = (int)((round + (round / MODES % 2 ? MODES - i : i)) % MODES);
            TRY(run_step(b, p, mode, NULL, &b->ms[mode][round], err));
        }
    return NYB_OK;
}

static void describe(const struct point *p, char *what, size_t size)
{
    if (p->batch > 0)
        snprintf(what, size, "decode of %d sequences", p->batch);
    else
        snprintf(what, size, "prefill of %d tokens", p->prompt);
}

/* A GPU's kernels are spans without overlap, too; stages of the CPU only with it. */
static enum nyb_code trace_point(struct bench *b, const struct point *p, struct nyb_err *err)
{
    const struct model_probe probe = {.arg = &b->stages,
                                      .stage = model_device_name(b->model) ? NULL : bench_profile_stage,
                                      .span = bench_profile_span};
    for (int mode = 0; mode < MODES && b->trace; mode += ALWAYS) {
        char what[64], name[96];
        double ms;
        describe(p, what, sizeof(what));
        snprintf(name, sizeof(name), "%s, overlap %s", what, mode_name[mode]);
        bench_profile_start(&b->stages, name);
        uint64_t begin = clock_ns();
        TRY(run_step(b, p, mode, &probe, &ms, err));
        bench_profile_step(&b->stages, begin, clock_ns() - begin);
    }
    return NYB_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of n values, which are left in order. */
static double median(double *v, int64_t n)
{
    qsort(v, (size_t)n, sizeof(*v), by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static struct result result_of(const struct bench *b, int mode)
{
    double *v = mem_alloc((size_t)b->rounds, sizeof(*v)), total = 0, total_off = 0;
    struct result r = {0};
    for (int64_t i = 0; i < b->rounds; i++) {
        v[i] = b->ms[mode][i] / b->ms[OFF][i];
        total += b->ms[mode][i];
        total_off += b->ms[OFF][i];
    }
    r.total_ratio = total / total_off;
    r.median_ratio = median(v, b->rounds);
    memcpy(v, b->ms[mode], (size_t)b->rounds * sizeof(*v));
    r.median_ms = median(v, b->rounds);
    r.best_ms = v[0];
    free(v);
    return r;
}

static void report(const struct bench *b, const struct point *p, int n_rank)
{
    char what[64];
    describe(p, what, sizeof(what));
    json_t *modes = json_object();
    if (!b->json)
        printf("%d ranks, %s; %lld rounds, ms\n%-8s %9s %9s   beside off: %9s %9s\n", n_rank, what,
               (long long)b->rounds, "overlap", "best", "median", "median", "all");
    for (int mode = 0; mode < MODES; mode++) {
        const struct result r = result_of(b, mode);
        if (!b->json)
            printf("%-8s %9.3f %9.3f               %9.3f %9.3f\n", mode_name[mode], r.best_ms, r.median_ms,
                   r.median_ratio, r.total_ratio);
        json_object_set_new(modes, mode_name[mode],
                            json_pack("{s:f, s:f, s:f, s:f}", "best_ms", r.best_ms, "median_ms", r.median_ms,
                                      "median_ratio", r.median_ratio, "total_ratio", r.total_ratio));
    }
    json_array_append_new(b->results, json_pack("{s:i, s:s, s:I, s:o}", "ranks", n_rank, "step", what,
                                                "rounds", (json_int_t)b->rounds, "overlap", modes));
    fflush(stdout);
}

static void print_json(const struct bench *b)
{
    const json_t *all = json_array_size(b->results) == 1 ? json_array_get(b->results, 0) : b->results;
    char *text = json_dumps(all, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    if (text)
        puts(text);
    free(text);
}

/* Room for all points. */
static enum nyb_code prepare(struct bench *b, struct nyb_err *err)
{
    const struct model_config *c = model_config(b->model);
    int n_seq = 1, longest = 1, most = 256;
    for (int i = 0; i < b->n_point; i++) {
        const struct point *p = &b->point[i];
        n_seq = sequences(p) > n_seq ? sequences(p) : n_seq;
        longest = rows(p) / sequences(p) > longest ? rows(p) / sequences(p) : longest;
        most = rows(p) > most ? rows(p) : most;
    }
    int64_t len = b->depth + longest;
    if (model_ranks(b->model) < 2)
        return err_set(err, NYB_E_UNSUPPORTED,
                       "one rank has nothing to overlap: --tensor-parallel-size 2, or mpirun");
    if (len > c->max_position)
        return err_at(err, NYB_E_TOO_LONG, "--prompt and --depth", -1,
                      "%lld tokens; the model's context is %lld", (long long)len, (long long)c->max_position);
    b->logits = mem_try_alloc((size_t)n_seq * (size_t)c->vocab, sizeof(float));
    if (!b->logits)
        return err_set(err, NYB_E_MEMORY, "no memory for the logits of %d sequences", n_seq);
    b->best = mem_alloc((size_t)n_seq, sizeof(*b->best));
    for (int mode = 0; mode < MODES; mode++)
        b->ms[mode] = mem_alloc((size_t)b->rounds, sizeof(double));
    if (b->trace)
        TRY(bench_profile_open_trace(&b->stages, b->trace, err));
    return bench_seqs_open(&b->seqs, b->model, n_seq, (int)len, most, err);
}

static enum nyb_code measure(struct bench *b, struct nyb_err *err)
{
    TRY(prepare(b, err));
    for (int i = 0; i < b->n_point; i++) {
        TRY(run_rounds(b, &b->point[i], err));
        report(b, &b->point[i], model_ranks(b->model));
        TRY(trace_point(b, &b->point[i], err));
    }
    if (b->json)
        print_json(b);
    return NYB_OK;
}

static enum nyb_code run(struct bench *b, struct nyb_err *err)
{
    char *folder = NULL;
    struct nyb_err late;
    b->results = json_array();
    b->common.overlap = OVERLAP_AUTO;
    for (int i = 0; i < b->n_point; i++)
        if (rows(&b->point[i]) > b->common.max_batched_tokens)
            b->common.max_batched_tokens = rows(&b->point[i]);
    enum nyb_code code = ckpt_resolve(&folder, b->common.model, err);
    if (code == NYB_OK)
        code = common_open_model(&b->model, &b->common, folder, err);
    if (code == NYB_OK)
        code = measure(b, err);
    enum nyb_code closed = bench_profile_close_trace(&b->stages, b->trace, code == NYB_OK ? err : &late);
    bench_seqs_close(&b->seqs);
    model_close(b->model);
    json_decref(b->results);
    for (int mode = 0; mode < MODES; mode++)
        free(b->ms[mode]);
    free(b->logits);
    free(b->best);
    free(folder);
    return code != NYB_OK ? code : closed;
}

enum { PROMPT = COMMON_OPTION_END, BATCH, DEPTH, ROUNDS, SEED, TRACE, JSON };

static bool take_list(const char *option, const char *text, int64_t most, struct list *out)
{
    char *copy = mem_strdup(text), *save = NULL;
    bool fine = true;
    out->n = 0;
    for (char *part = strtok_r(copy, ",", &save); fine && part; part = strtok_r(NULL, ",", &save)) {
        int64_t value = 0;
        fine = cli_parse_int("bench overlap", option, part, 0, most, &value);
        if (fine && out->n == LIST_MAX) {
            cli_misuse("bench overlap", "%s takes at most %d numbers", option, LIST_MAX);
            fine = false;
        }
        if (fine)
            out->v[out->n++] = (int)value;
    }
    free(copy);
    return fine;
}

static bool take(struct bench *b, int option, const char *arg)
{
    const char *name = "bench overlap";
    switch (option) {
    case PROMPT:
        return take_list("--prompt", arg, 1 << 20, &b->prompt);
    case BATCH:
        return take_list("--batch", arg, 1 << 16, &b->batch);
    case DEPTH:
        return cli_parse_int(name, "--depth", arg, 0, 1 << 20, &b->depth);
    case ROUNDS:
        return cli_parse_int(name, "--rounds", arg, 1, 1000000, &b->rounds);
    case SEED:
        return cli_parse_int(name, "--seed", arg, 0, INT64_MAX, &b->seed);
    case TRACE:
        b->trace = arg;
        return true;
    case JSON:
        b->json = true;
        return true;
    default:
        return common_take(&b->common, name, option, arg);
    }
}

/* All prompts and all batches that are asked for; 0 is none. False: there is nothing to cut apart. */
static bool list_points(struct bench *b)
{
    if (b->prompt.n == 0 && b->batch.n == 0)
        b->prompt = (struct list){{256}, 1};
    for (int i = 0; i < b->prompt.n + b->batch.n; i++) {
        bool prompt = i < b->prompt.n;
        const struct point p = {.prompt = prompt ? b->prompt.v[i] : 0,
                                .batch = prompt ? 0 : b->batch.v[i - b->prompt.n]};
        if (rows(&p) > 0)
            b->point[b->n_point++] = p;
        if (rows(&p) == 1) {
            cli_misuse("bench overlap", "one row cannot be cut apart: expected two or more of --prompt and "
                                        "--batch");
            return false;
        }
    }
    if (b->n_point == 0)
        cli_misuse("bench overlap", "neither --prompt nor --batch is above 0: there is nothing to measure");
    return b->n_point > 0;
}

int bench_overlap(int argc, char **argv)
{
    static const struct option options[] = {
        {"prompt", required_argument, NULL, PROMPT},
        {"batch", required_argument, NULL, BATCH},
        {"depth", required_argument, NULL, DEPTH},
        {"rounds", required_argument, NULL, ROUNDS},
        {"seed", required_argument, NULL, SEED},
        {"trace", required_argument, NULL, TRACE},
        {"json", no_argument, NULL, JSON},
        COMMON_OPTIONS,
        {0},
    };
    struct bench b = {.rounds = 100, .seed = 1};
    struct nyb_err err;
    common_init(&b.common);
    for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        if (c == 'h') {
            fputs(help, stdout);
            return 0;
        }
        if (c == COMMON_OVERLAP)
            return cli_misuse("bench overlap", "measures all three of --two-batch-overlap: leave it out");
        if (!take(&b, c, optarg))
            return 2;
    }
    if (!common_take_model(&b.common, "bench overlap", argc, argv, optind))
        return 2;
    if (!list_points(&b))
        return 2;
    return run(&b, &err) == NYB_OK ? 0 : cli_fail("bench overlap", &err);
}
