/* Compare a model with the answers of an independent implementation (golden.h), layer by layer. The bounds
 * and their reasons: docs/NUMERICS.md, "How far from the truth". */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "cli/cli.h"
#include "cli/common.h"
#include "cli/golden.h"
#include "cli/sequence.h"

static const char help[] = "nybble verify: compare a model layer by layer with the golden.safetensors and "
                           "golden.json in its folder\n\n"
                           "usage: nybble verify [OPTIONS] [MODEL]\n\n"
                           "  --json           one JSON object on standard output\n" COMMON_HELP "\n"
                           "The exit status is 0 only when the verdict is pass.\n\n"
                           "examples:\n"
                           "  nybble verify --compute strict\n"
                           "  nybble verify golden/qwen3_moe-modelopt --compute w4a4 --json\n";

/* What a compute mode must reach. Errors are relative: ||a - b|| / ||b||. */
static const struct bounds {
    double logits;   /* over all positions, or 0 */
    double median;   /* over the errors of single positions, or 0 */
    double outlier;  /* a position beyond this must be explained by its routing (cause_of), or 0 */
    double near_tie; /* a greedy step may differ when the two logits are closer than this */
} bounds[COMPUTE_COUNT] = {
    [COMPUTE_STRICT] = {.logits = 1e-4, .near_tie = 1e-3},
    [COMPUTE_BF16] = {.median = 3.5e-2, .outlier = 0.1, .near_tie = 0.25},
    [COMPUTE_INT8] = {.median = 0.2, .near_tie = 0.5},
    [COMPUTE_W4A4] = {.median = 1e-3, .near_tie = INFINITY},
};

struct errors {
    int n_tok, n_hidden;
    double *hidden;      /* (n_hidden) over all positions      */
    double *position;    /* (n_tok) of the logits              */
    bool *other_routing; /* (n_tok) differs from strict        */
    double logits, median, worst;
};

struct verify {
    struct common_options common;
    bool json;
    struct golden golden;
    struct errors errors;
    int n_step, n_equal; /* greedy steps                                             */
    double worst_tie;    /* largest logit distance at a step that differs            */
    json_t *chosen;      /* what this model takes at each step; NULL: not asked for  */
    bool pass;
    char reason[256]; /* of a failure */
};

static double relative_error(const float *a, const float *b, size_t n)
{
    double d2 = 0, b2 = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        d2 += d * d;
        b2 += (double)b[i] * (double)b[i];
    }
    return b2 > 0 ? sqrt(d2 / b2) : d2 > 0 ? INFINITY : 0;
}

/* ---- watching one pass --------------------------------------------------------------------------- */

struct trace {
    const struct golden *golden;
    double *hidden_error; /* (n_hidden) or NULL                         */
    int32_t *expert;      /* (n_layer, n_tok, top_k), -1 where dense    */
    int n_layer, top_k;
};

static void watch_hidden(void *arg, int layer, const float *h, int n_tok, int hidden_size)
{
    struct trace *t = arg;
    const struct golden *g = t->golden;
    /* The last golden state is the one after the final norm; the stream before it is not in the file. */
    int index = layer == t->n_layer ? t->n_layer : layer + 1 == t->n_layer ? -1 : layer + 1;
    if (t->hidden_error && index >= 0)
        t->hidden_error[index] = relative_error(h, g->hidden[index], (size_t)n_tok * (size_t)hidden_size);
}

static void watch_routing(void *arg, int layer, const int32_t *expert, const float *weight, int n_tok,
                          int top_k)
{
    (void)weight;
    struct trace *t = arg;
    size_t n = (size_t)n_tok * (size_t)top_k;
    memcpy(t->expert + (size_t)layer * (size_t)t->golden->n_tok * (size_t)t->top_k, expert,
           n * sizeof(*expert));
}

static bool contains(const int32_t *set, int n, int32_t x)
{
    for (int i = 0; i < n; i++)
        if (set[i] == x)
            return true;
    return false;
}

/* Whether some layer sent the token to other experts; their order does not matter. */
static bool routing_differs(const struct trace *a, const struct trace *b, int tok)
{
    for (int layer = 0; layer < a->n_layer; layer++) {
        size_t at = ((size_t)layer * (size_t)a->golden->n_tok + (size_t)tok) * (size_t)a->top_k;
        for (int s = 0; s < a->top_k; s++)
            if (!contains(b->expert + at, a->top_k, a->expert[at + (size_t)s]))
                return true;
    }
    return false;
}

static enum nyb_code trace_pass(struct trace *t, struct model *m, float *logits, struct nyb_err *err)
{
    const struct golden *g = t->golden;
    const struct model_config *c = model_config(m);
    t->n_layer = c->n_layer;
    t->top_k = c->moe.top_k;
    size_t n = (size_t)c->n_layer * (size_t)g->n_tok * (size_t)(c->moe.top_k > 0 ? c->moe.top_k : 1);
    t->expert = mem_alloc(n, sizeof(int32_t));
    memset(t->expert, 0xff, n * sizeof(int32_t));
    struct sequence s;
    enum nyb_code code = sequence_open(&s, m, g->n_tok, err);
    const struct model_probe probe = {.arg = t, .hidden = watch_hidden, .routing = watch_routing};
    if (code == NYB_OK)
        code = sequence_step(&s, g->ids, g->n_tok, g->n_tok, logits, &probe, err);
    sequence_close(&s);
    return code;
}

/* ---- logits and hidden states -------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void position_errors(struct errors *e, const float *logits, const float *want, int vocab)
{
    size_t n = (size_t)vocab;
    double *sorted = mem_alloc((size_t)e->n_tok, sizeof(double));
    for (int t = 0; t < e->n_tok; t++)
        sorted[t] = e->position[t] = relative_error(logits + (size_t)t * n, want + (size_t)t * n, n);
    qsort(sorted, (size_t)e->n_tok, sizeof(double), by_value);
    e->median = (sorted[e->n_tok / 2] + sorted[(e->n_tok - 1) / 2]) / 2;
    e->worst = sorted[e->n_tok - 1];
    e->logits = relative_error(logits, want, (size_t)e->n_tok * n);
    free(sorted);
}

/* The strict pass on the same checkpoint tells where a router chose otherwise. */
static enum nyb_code compare_routing(struct verify *v, const struct trace *trace, const char *folder,
                                     struct nyb_err *err)
{
    struct common_options strict = v->common;
    struct model *m;
    struct trace truth = {.golden = &v->golden};
    strict.compute = COMPUTE_STRICT;
    strict.device = DEVICE_CPU; /* the truth is computed there */
    TRY(common_open_model(&m, &strict, folder, err));
    float *logits = mem_alloc((size_t)v->golden.n_tok * (size_t)v->golden.vocab, sizeof(float));
    enum nyb_code code = trace_pass(&truth, m, logits, err);
    for (int t = 0; code == NYB_OK && t < v->golden.n_tok; t++)
        v->errors.other_routing[t] = routing_differs(trace, &truth, t);
    free(truth.expert);
    free(logits);
    model_close(m);
    return code;
}

static enum nyb_code compare_states(struct verify *v, struct model *m, const char *folder,
                                    struct nyb_err *err)
{
    const struct golden *g = &v->golden;
    struct errors *e = &v->errors;
    *e = (struct errors){.n_tok = g->n_tok, .n_hidden = g->n_hidden};
    e->hidden = mem_alloc((size_t)g->n_hidden, sizeof(double));
    e->position = mem_alloc((size_t)g->n_tok, sizeof(double));
    e->other_routing = mem_alloc((size_t)g->n_tok, sizeof(bool));
    struct trace trace = {.golden = g, .hidden_error = e->hidden};
    bool w4a4 = v->common.compute == COMPUTE_W4A4;
    if (w4a4 && !g->logits_w4a4)
        return err_at(err, NYB_E_NOT_FOUND, folder, -1, "golden.safetensors has no logits_w4a4");
    float *logits = mem_alloc((size_t)g->n_tok * (size_t)g->vocab, sizeof(float));
    enum nyb_code code = trace_pass(&trace, m, logits, err);
    if (code == NYB_OK)
        position_errors(e, logits, w4a4 ? g->logits_w4a4 : g->logits, g->vocab);
    if (code == NYB_OK && bounds[v->common.compute].outlier > 0)
        code = compare_routing(v, &trace, folder, err);
    free(trace.expert);
    free(logits);
    return code;
}

/* ---- greedy continuations ------------------------------------------------------------------------ */

/* Every step is compared with the golden history before it, so that one near tie does not hide the rest. */
static enum nyb_code compare_case(struct verify *v, struct model *m, const struct golden_case *c,
                                  struct nyb_err *err)
{
    int vocab = v->golden.vocab;
    struct sequence s;
    float *logits = mem_alloc((size_t)vocab, sizeof(float));
    enum nyb_code code = sequence_open(&s, m, c->n_prompt + c->n_greedy, err);
    if (code == NYB_OK)
        code = sequence_step(&s, c->prompt, c->n_prompt, 1, logits, NULL, err);
    for (int i = 0; code == NYB_OK && i < c->n_greedy; i++) {
        int32_t got = sequence_argmax(logits, vocab);
        double distance = (double)logits[got] - (double)logits[c->greedy[i]];
        v->n_step++;
        if (v->chosen)
            json_array_append_new(v->chosen, json_integer(got));
        if (got == c->greedy[i])
            v->n_equal++;
        else if (!(distance <= v->worst_tie))
            v->worst_tie = distance;
        code = sequence_step(&s, &c->greedy[i], 1, 1, logits, NULL, err);
    }
    sequence_close(&s);
    free(logits);
    return code;
}

/* ---- verdict ------------------------------------------------------------------------------------- */

/* The position whose routing differs from strict and so explains that t is off: t itself, or one before it,
 * whose values t attends to; then t is no further off than that one. -1: none. */
static int cause_of(const struct errors *e, int t)
{
    if (e->other_routing[t])
        return t;
    for (int before = t - 1; before >= 0; before--)
        if (e->other_routing[before] && e->position[t] <= e->position[before])
            return before;
    return -1;
}

static void judge(struct verify *v)
{
    const struct bounds *b = &bounds[v->common.compute];
    const struct errors *e = &v->errors;
    v->pass = true;
#define FAIL_IF(cond, ...)                                   \
    if (v->pass && (cond)) {                                 \
        v->pass = false;                                     \
        snprintf(v->reason, sizeof(v->reason), __VA_ARGS__); \
    }
    if (e->n_tok) {
        FAIL_IF(b->logits > 0 && !(e->logits <= b->logits), "logits are off by %.2e, at most %.0e is allowed",
                e->logits, b->logits);
        FAIL_IF(b->median > 0 && !(e->median <= b->median),
                "the median position is off by %.2e, at most %.1e is allowed", e->median, b->median);
        for (int t = 0; b->outlier > 0 && t < e->n_tok; t++)
            FAIL_IF(!(e->position[t] <= b->outlier) && cause_of(e, t) < 0,
                    "position %d is off by %.2e although every router chose as strict does, there and "
                    "wherever it is further off before",
                    t, e->position[t]);
    }
    /* Where rounding may tip a router, single steps are for the logits to judge. */
    bool judge_steps = b->logits > 0 || !e->n_tok;
    FAIL_IF(judge_steps && !(v->worst_tie <= b->near_tie),
            "a greedy step differs where the logits are %.3g apart", v->worst_tie);
    FAIL_IF(!e->n_tok && !v->n_step, "nothing was compared");
#undef FAIL_IF
}

static void print_outlier(const struct errors *e, int t)
{
    int cause = cause_of(e, t);
    printf("position %-3d relative error %.3e, ", t, e->position[t]);
    if (cause == t)
        printf("routing differs from strict\n");
    else if (cause >= 0)
        printf("attends to position %d, where routing differs from strict\n", cause);
    else
        printf("routing equals strict\n");
}

static void print_text(const struct verify *v, const char *folder)
{
    const struct errors *e = &v->errors;
    const struct bounds *b = &bounds[v->common.compute];
    printf("%s, compute %s\n", folder, compute_name(v->common.compute));
    for (int i = 0; i < e->n_hidden; i++) {
        char name[32];
        snprintf(name, sizeof(name), "layer %d", i - 1);
        if (i == e->n_hidden - 1)
            snprintf(name, sizeof(name), "final norm");
        printf("%-12s relative error %.3e\n", i == 0 ? "embedding" : name, e->hidden[i]);
    }
    if (e->n_tok) {
        printf("%-12s relative error %.3e, by position: median %.3e, worst %.3e\n", "logits", e->logits,
               e->median, e->worst);
        for (int t = 0; b->outlier > 0 && t < e->n_tok; t++)
            if (!(e->position[t] <= b->outlier))
                print_outlier(e, t);
    }
    if (v->n_step) {
        printf("greedy       %d of %d steps equal", v->n_equal, v->n_step);
        if (v->n_equal < v->n_step)
            printf(", at the others the logits are at most %.3g apart", v->worst_tie);
        putchar('\n');
    }
    printf("verdict      %s%s%s\n", v->pass ? "pass" : "FAIL", v->pass ? "" : ": ", v->reason);
}

/* JSON has no infinity and no NaN, which a broken model gives: null. */
static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static void print_json(const struct verify *v, const char *folder)
{
    const struct errors *e = &v->errors;
    json_t *hidden = json_array(), *position = json_array(), *routing = json_array();
    for (int i = 0; i < e->n_hidden; i++)
        json_array_append_new(hidden, number(e->hidden[i]));
    for (int t = 0; t < e->n_tok; t++) {
        json_array_append_new(position, number(e->position[t]));
        if (e->other_routing[t])
            json_array_append_new(routing, json_integer(t));
    }
    json_t *root =
        json_pack("{s:s, s:s, s:b, s:s, s:o, s:o, s:o, s:i, s:i, s:o, s:o, s:o, s:o, s:O}", "model", folder,
                  "compute", compute_name(v->common.compute), "pass", v->pass, "reason", v->reason,
                  "logits_error", number(e->logits), "logits_median", number(e->median), "logits_worst",
                  number(e->worst), "greedy_steps", v->n_step, "greedy_equal", v->n_equal, "greedy_worst_tie",
                  number(v->worst_tie), "hidden_error", hidden, "position_error", position, "routing_differs",
                  routing, "greedy_ids", v->chosen);
    json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(root);
}

static enum nyb_code run(struct verify *v, struct nyb_err *err)
{
    char *folder = NULL;
    struct model *m = NULL;
    TRY(ckpt_resolve(&folder, v->common.model, err));
    enum nyb_code code = common_open_model(&m, &v->common, folder, err);
    if (code == NYB_OK) {
        const struct model_config *c = model_config(m);
        code = golden_read(&v->golden, folder, c->vocab, c->hidden, c->n_layer, err);
    }
    if (code == NYB_OK && v->golden.n_tok)
        code = compare_states(v, m, folder, err);
    /* The greedy ids are those of fp32 activations: nothing to compare w4a4 with. */
    for (int i = 0; code == NYB_OK && v->common.compute != COMPUTE_W4A4 && i < v->golden.n_case; i++)
        code = compare_case(v, m, &v->golden.cases[i], err);
    if (code == NYB_OK) {
        judge(v);
        if (v->json)
            print_json(v, folder);
        else
            print_text(v, folder);
    }
    golden_free(&v->golden);
    free(v->errors.hidden);
    free(v->errors.position);
    free(v->errors.other_routing);
    model_close(m);
    free(folder);
    return code;
}

int cli_verify(int argc, char **argv)
{
    enum { JSON = COMMON_OPTION_END };
    static const struct option options[] = {{"json", no_argument, NULL, JSON}, COMMON_OPTIONS, {0}};
    struct verify v = {0};
    common_init(&v.common);
    for (int c; (c = getopt_long(argc, argv, "hv", options, NULL)) != -1;) {
        if (c == JSON) {
            v.json = true;
        } else if (c == 'h') {
            fputs(help, stdout);
            return 0;
        } else if (!common_take(&v.common, "verify", c, optarg)) {
            return 2;
        }
    }
    if (!common_take_model(&v.common, "verify", argc, argv, optind))
        return 2;
    struct nyb_err err;
    v.chosen = v.json ? json_array() : NULL;
    enum nyb_code code = run(&v, &err);
    json_decref(v.chosen);
    if (code != NYB_OK)
        return cli_fail("verify", &err);
    return v.pass ? 0 : 1;
}
