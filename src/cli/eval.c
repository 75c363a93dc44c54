/* Nats per token over a text: the ids, cut into windows of ctx + 1; in each, ids 1..ctx predicted from those
 * before them in the window. */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "cli/cli.h"
#include "cli/common.h"
#include "cli/sequence.h"
#include "text/tokenizer.h"

#define CHUNK 256 /* tokens a step: bounds the memory for logits, (256, vocab) */

static const char help[] =
    "nybble eval: nats per token and perplexity on a text\n\n"
    "usage: nybble eval --text FILE [OPTIONS] [MODEL]\n\n"
    "  --text FILE      UTF-8 text\n"
    "  --ctx N          predictions a window (default: 1024, at most the model's context)\n"
    "  --windows N      windows from the start of the text, 0 for all (default: 96)\n"
    "  --json           one JSON object on standard output\n" COMMON_HELP "\n"
    "examples:\n"
    "  nybble eval --text tales_test.txt\n"
    "  nybble eval --text wiki.test.raw --ctx 512 --windows 0 --compute strict ~/models/Qwen3-30B-A3B-FP4\n";

struct eval {
    struct common_options common;
    const char *text_path;
    int64_t ctx, windows;
    bool json;
};

/* -ln p(target) under softmax of the logits, summed in double. */
static double nats(const float *logits, int n, int32_t target)
{
    float max = logits[0];
    for (int i = 1; i < n; i++)
        if (logits[i] > max)
            max = logits[i];
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += exp((double)logits[i] - (double)max);
    return log(sum) + (double)max - (double)logits[target];
}

static enum nyb_code window_nats(struct sequence *s, const int32_t *ids, int ctx, float *logits,
                                 double *total, struct nyb_err *err)
{
    int vocab = model_config(s->model)->vocab;
    sequence_rewind(s, 0);
    for (int at = 0; at < ctx; at += CHUNK) {
        int n = ctx - at < CHUNK ? ctx - at : CHUNK;
        TRY(sequence_step(s, ids + at, n, n, logits, NULL, err));
        for (int i = 0; i < n; i++)
            *total += nats(logits + (size_t)i * (size_t)vocab, vocab, ids[at + i + 1]);
    }
    return NYB_OK;
}

static void report(const struct eval *e, double total, int64_t count, double seconds)
{
    double mean = total / (double)count;
    const char *form =
        e->json ? "{\"nats_per_token\": %.6f, \"perplexity\": %.4f, \"tokens\": %lld, \"ctx\": %lld, "
                  "\"tokens_per_second\": %.1f}\n"
                : "nats per token %.4f, perplexity %.3f, over %lld predictions in windows of %lld, "
                  "%.0f tokens/s\n";
    printf(form, mean, exp(mean), (long long)count, (long long)e->ctx, (double)count / seconds);
}

static enum nyb_code evaluate(struct eval *e, struct model *m, const struct tok_ids *ids, struct nyb_err *err)
{
    const struct model_config *c = model_config(m);
    if (e->ctx > c->max_position)
        e->ctx = c->max_position;
    int64_t fit = (int64_t)ids->n / (e->ctx + 1);
    if (fit == 0)
        return err_at(err, NYB_E_RANGE, e->text_path, -1,
                      "has %zu tokens; one window takes %lld (--ctx and one)", ids->n, (long long)e->ctx + 1);
    if (e->windows == 0 || e->windows > fit)
        e->windows = fit;
    for (size_t i = 0; i < (size_t)(e->windows * (e->ctx + 1)); i++)
        if (ids->id[i] < 0 || ids->id[i] >= c->vocab)
            return err_at(err, NYB_E_RANGE, e->text_path, -1,
                          "token id %d is outside the model's vocabulary of %d", ids->id[i], c->vocab);
    struct sequence s;
    float *logits = mem_alloc((size_t)CHUNK * (size_t)c->vocab, sizeof(float));
    enum nyb_code code = sequence_open(&s, m, (int)e->ctx, err);
    double total = 0;
    uint64_t start = clock_ns();
    struct cli_progress bar;
    cli_progress_start(&bar, "evaluating");
    for (int64_t w = 0; code == NYB_OK && w < e->windows; w++) {
        code = window_nats(&s, ids->id + w * (e->ctx + 1), (int)e->ctx, logits, &total, err);
        cli_progress_count(&bar, (uint64_t)w + 1, (uint64_t)e->windows, "windows");
    }
    cli_progress_end(&bar);
    if (code == NYB_OK)
        report(e, total, e->windows * e->ctx, (double)(clock_ns() - start) * 1e-9);
    sequence_close(&s);
    free(logits);
    return code;
}

static enum nyb_code run(struct eval *e, struct nyb_err *err)
{
    char *folder = NULL, *text = NULL;
    size_t len = 0;
    struct tokenizer *tok = NULL;
    struct tok_ids ids = {0};
    struct model *m = NULL;
    enum nyb_code code = file_read_all(e->text_path, (size_t)1 << 32, &text, &len, err);
    if (code == NYB_OK)
        code = ckpt_resolve(&folder, e->common.model, err);
    if (code == NYB_OK)
        code = tok_open(&tok, folder, err);
    if (code == NYB_OK)
        code = tok_encode(tok, text, len, false, &ids, err);
    if (code == NYB_OK)
        code = common_open_model(&m, &e->common, folder, err);
    if (code == NYB_OK)
        code = evaluate(e, m, &ids, err);
    model_close(m);
    tok_ids_free(&ids);
    tok_close(tok);
    free(folder);
    free(text);
    return code;
}

int cli_eval(int argc, char **argv)
{
    enum { TEXT = COMMON_OPTION_END, CTX, WINDOWS, JSON };
    static const struct option options[] = {
        {"text", required_argument, NULL, TEXT},
        {"ctx", required_argument, NULL, CTX},
        {"windows", required_argument, NULL, WINDOWS},
        {"json", no_argument, NULL, JSON},
        COMMON_OPTIONS,
        {0},
    };
    struct eval e = {.ctx = 1024, .windows = 96};
    common_init(&e.common);
    for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        bool fine = true;
        switch (c) {
        case TEXT:
            e.text_path = optarg;
            break;
        case CTX:
            fine = cli_parse_int("eval", "--ctx", optarg, 1, 1 << 24, &e.ctx);
            break;
        case WINDOWS:
            fine = cli_parse_int("eval", "--windows", optarg, 0, INT32_MAX, &e.windows);
            break;
        case JSON:
            e.json = true;
            break;
        case 'h':
            fputs(help, stdout);
            return 0;
        default:
            fine = common_take(&e.common, "eval", c, optarg);
        }
        if (!fine)
            return 2;
    }
    if (!e.text_path)
        return cli_misuse("eval", "--text FILE is missing");
    if (!common_take_model(&e.common, "eval", argc, argv, optind))
        return 2;
    struct nyb_err err;
    return run(&e, &err) == NYB_OK ? 0 : cli_fail("eval", &err);
}
