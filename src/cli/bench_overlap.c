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
#include "cli/bench_seqs.h"
#include "cli/cli.h"
#include "cli/common.h"

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
    "  --prompt N       tokens of a prefill (default: 256; 0: none)\n"
    "  --batch N        decode with so many sequences instead (default: 0)\n"
    "  --depth N        tokens in the cache of each (default: 0)\n"
    "  --rounds N       (default: 100)\n"
    "  --seed N         of the tokens (default: 1)\n"
    "  --json           one JSON object on standard output\n" COMMON_HELP "\nexamples:\n"
    "  nybble bench overlap --tensor-parallel-size 2 --threads 1\n"
    "  mpirun --host a,b nybble bench overlap --prompt 1024 ~/models/Qwen3-30B-A3B-FP4\n";

enum { OFF, AUTO, ALWAYS, MODES };

static const enum overlap_mode mode_of[MODES] = {OVERLAP_OFF, OVERLAP_AUTO, OVERLAP_ALWAYS};
static const char *const mode_name[MODES] = {"off", "auto", "always"};

struct bench {
    struct common_options common;
    int64_t prompt, batch, depth, rounds, seed;
    bool json;
    /* while running */
    struct model *model;
    struct bench_seqs seqs;
    float *logits;
    double *ms[MODES]; /* (rounds) in the order in which they were measured */
};

struct result {
    double best_ms, median_ms, median_ratio, total_ratio;
};

static enum nyb_code run_step(struct bench *b, int mode, double *ms, struct nyb_err *err)
{
    int n_seq = b->batch > 0 ? (int)b->batch : 1, n = b->batch > 0 ? 1 : (int)b->prompt;
    bench_seqs_seed(&b->seqs, (uint64_t)b->seed);
    const struct batch batch = bench_seqs_batch(&b->seqs, 0, n_seq, (int)b->depth, n, true);
    model_set_overlap(b->model, mode_of[mode]);
    uint64_t begin = clock_ns();
    TRY(model_forward(b->model, &batch, b->logits, NULL, err));
    *ms = (double)(clock_ns() - begin) * 1e-6;
    return NYB_OK;
}

static enum nyb_code run_rounds(struct bench *b, struct nyb_err *err)
{
    double ms;
    while (bench_seqs_missing(&b->seqs, b->seqs.n_seq, (int)b->depth) > 0)
        TRY(bench_seqs_fill(&b->seqs, b->seqs.n_seq, (int)b->depth, 256, err));
    for (int mode = 0; mode < MODES; mode += ALWAYS) /* memory that is touched for the first time */
        TRY(run_step(b, mode, &ms, err));
    for (int64_t round = 0; round < b->rounds; round++)
        for (int i = 0; i < MODES; i++) {
            int mode = (int)((round + (round / MODES % 2 ? MODES - i : i)) % MODES);
            TRY(run_step(b, mode, &b->ms[mode][round], err));
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

static void report(const struct bench *b, int n_rank)
{
    char what[64];
    if (b->batch > 0)
        snprintf(what, sizeof(what), "decode of %lld sequences", (long long)b->batch);
    else
        snprintf(what, sizeof(what), "prefill of %lld tokens", (long long)b->prompt);
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
    json_t *o = json_pack("{s:i, s:s, s:I, s:o}", "ranks", n_rank, "step", what, "rounds",
                          (json_int_t)b->rounds, "overlap", modes);
    char *text = b->json && o ? json_dumps(o, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) : NULL;
    if (text)
        puts(text);
    free(text);
    json_decref(o);
}

static enum nyb_code measure(struct bench *b, struct nyb_err *err)
{
    const struct model_config *c = model_config(b->model);
    int n_seq = b->batch > 0 ? (int)b->batch : 1;
    int64_t len = b->depth + (b->batch > 0 ? 1 : b->prompt), rows = b->batch > 0 ? b->batch : b->prompt;
    if (model_ranks(b->model) < 2)
        return err_set(err, NYB_E_UNSUPPORTED,
                       "one rank has nothing to overlap: --tensor-parallel-size 2, or mpirun");
    if (len > c->max_position)
        return err_at(err, NYB_E_TOO_LONG, "--prompt and --depth", -1,
                      "%lld tokens; the model's context is %lld", (long long)len, (long long)c->max_position);
    b->logits = mem_try_alloc((size_t)n_seq * (size_t)c->vocab, sizeof(float));
    if (!b->logits)
        return err_set(err, NYB_E_MEMORY, "no memory for the logits of %d sequences", n_seq);
    for (int mode = 0; mode < MODES; mode++)
        b->ms[mode] = mem_alloc((size_t)b->rounds, sizeof(double));
    TRY(bench_seqs_open(&b->seqs, b->model, n_seq, (int)len, rows > 256 ? (int)rows : 256, err));
    TRY(run_rounds(b, err));
    report(b, model_ranks(b->model));
    return NYB_OK;
}

static enum nyb_code run(struct bench *b, struct nyb_err *err)
{
    char *folder = NULL;
    b->common.overlap = OVERLAP_AUTO;
    b->common.max_batched_tokens = b->batch > b->prompt ? b->batch : b->prompt;
    enum nyb_code code = ckpt_resolve(&folder, b->common.model, err);
    if (code == NYB_OK)
        code = common_open_model(&b->model, &b->common, folder, err);
    if (code == NYB_OK)
        code = measure(b, err);
    bench_seqs_close(&b->seqs);
    model_close(b->model);
    for (int mode = 0; mode < MODES; mode++)
        free(b->ms[mode]);
    free(b->logits);
    free(folder);
    return code;
}

enum { PROMPT = COMMON_OPTION_END, BATCH, DEPTH, ROUNDS, SEED, JSON };

static bool take(struct bench *b, int option, const char *arg)
{
    const char *name = "bench overlap";
    switch (option) {
    case PROMPT:
        return cli_parse_int(name, "--prompt", arg, 0, 1 << 20, &b->prompt);
    case BATCH:
        return cli_parse_int(name, "--batch", arg, 0, 1 << 16, &b->batch);
    case DEPTH:
        return cli_parse_int(name, "--depth", arg, 0, 1 << 20, &b->depth);
    case ROUNDS:
        return cli_parse_int(name, "--rounds", arg, 1, 1000000, &b->rounds);
    case SEED:
        return cli_parse_int(name, "--seed", arg, 0, INT64_MAX, &b->seed);
    case JSON:
        b->json = true;
        return true;
    default:
        return common_take(&b->common, name, option, arg);
    }
}

int bench_overlap(int argc, char **argv)
{
    static const struct option options[] = {
        {"prompt", required_argument, NULL, PROMPT},
        {"batch", required_argument, NULL, BATCH},
        {"depth", required_argument, NULL, DEPTH},
        {"rounds", required_argument, NULL, ROUNDS},
        {"seed", required_argument, NULL, SEED},
        {"json", no_argument, NULL, JSON},
        COMMON_OPTIONS,
        {0},
    };
    struct bench b = {.prompt = 256, .rounds = 100, .seed = 1};
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
    if (b.batch == 0 && b.prompt < 2)
        return cli_misuse("bench overlap",
                          "--prompt is %lld and --batch 0: expected two rows or more to cut apart",
                          (long long)b.prompt);
    return run(&b, &err) == NYB_OK ? 0 : cli_fail("bench overlap", &err);
}
