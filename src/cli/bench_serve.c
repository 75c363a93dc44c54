/* Load on an OpenAI-compatible server: requests at their times, and what came of them. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/load_golden.h"
#include "cli/load_options.h"

/* ---- running ------------------------------------------------------------------------------------- */

static json_t *make_params(const struct load_options *s, bool chat)
{
    json_t *o = json_object();
    if (!isnan(s->temperature))
        json_object_set_new(o, "temperature", json_real(s->temperature));
    if (!isnan(s->top_p))
        json_object_set_new(o, "top_p", json_real(s->top_p));
    if (!isnan(s->min_p))
        json_object_set_new(o, "min_p", json_real(s->min_p));
    if (s->top_k >= -1)
        json_object_set_new(o, "top_k", json_integer(s->top_k));
    if (s->ignore_eos)
        json_object_set_new(o, "ignore_eos", json_true());
    if (s->logprobs >= 0) {
        json_object_set_new(o, "logprobs", chat ? json_true() : json_integer(s->logprobs));
        if (chat)
            json_object_set_new(o, "top_logprobs", json_integer(s->logprobs));
    }
    if (s->extra)
        json_object_update(o, s->extra);
    return o;
}

struct progress {
    struct cli_progress bar;
    int n;
};

static void show_done(void *arg, int n_done)
{
    struct progress *p = arg;
    cli_progress_count(&p->bar, (uint64_t)n_done, (uint64_t)p->n, "requests");
}

static struct load_reply *make_replies(int n)
{
    struct load_reply *reply = mem_alloc((size_t)n, sizeof(*reply));
    for (int i = 0; i < n; i++)
        load_reply_init(&reply[i]);
    return reply;
}

static void free_replies(struct load_reply *reply, int n)
{
    for (int i = 0; i < n; i++)
        load_reply_free(&reply[i]);
    free(reply);
}

/* A run against a server that refuses is not worth its time. The prompt is none of the run's, or the server
 * would have it in its prefix cache. */
static enum nyb_code warm_up(const struct load_options *s, const struct load_target *t, struct nyb_err *err)
{
    json_t *prompt = json_string("Once more, to begin with:");
    struct load_request first = {.input = prompt, .max_tokens = 8};
    const struct load_data one = {.request = &first, .n = 1};
    enum nyb_code code = NYB_OK;
    for (int64_t i = 0; code == NYB_OK && i < s->warmups; i++) {
        struct load_run run;
        struct load_reply *reply = make_replies(1);
        code = load_client_run(t, &one, reply, &run, NULL, NULL, err);
        if (code == NYB_OK && !reply->ok)
            code = err_at(err, NYB_E_IO, t->url, -1, "the warm-up request failed: %s", reply->error);
        free_replies(reply, 1);
    }
    json_decref(prompt);
    return code;
}

static enum nyb_code send_all(const struct load_options *s, const struct load_target *t,
                              const struct load_data *d, struct load_reply *reply, struct load_run *run,
                              struct nyb_err *err)
{
    struct progress progress = {.n = d->n};
    TRY(warm_up(s, t, err));
    cli_progress_start(&progress.bar, "loading the server");
    enum nyb_code code = load_client_run(t, d, reply, run, s->quiet ? NULL : show_done, &progress, err);
    cli_progress_end(&progress.bar);
    return code;
}

/* ---- the report ---------------------------------------------------------------------------------- */

static char *result_path(const struct load_options *s)
{
    const struct load_result *r = &s->result;
    const char *model = r->model ? r->model : "model", *slash = strrchr(model, '/');
    char limit[32] = "";
    if (r->max_concurrency)
        snprintf(limit, sizeof(limit), "-concurrency%d", r->max_concurrency);
    char *name = s->file ? mem_strdup(s->file)
                         : mem_printf("%s-%gqps%s-%s-%s.json", r->backend, r->request_rate, limit,
                                      slash ? slash + 1 : model, r->date);
    char *path = s->dir ? mem_printf("%s/%s", s->dir, name) : mem_strdup(name);
    free(name);
    return path;
}

static enum nyb_code save_result(const struct load_options *s, struct nyb_err *err)
{
    char *path = result_path(s);
    json_t *o = load_result_json(&s->result, s->detailed);
    enum nyb_code code = NYB_OK;
    if (json_dump_file(o, path, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) != 0)
        code = err_at(err, NYB_E_IO, path, -1, "cannot be written: %s", strerror(errno));
    else
        fprintf(stderr, "nybble bench serve: the result is in %s\n", path);
    json_decref(o);
    free(path);
    return code;
}

static enum nyb_code report(const struct load_options *s, struct nyb_err *err)
{
    if (s->json) {
        json_t *o = load_result_json(&s->result, s->detailed);
        json_dumpf(o, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
        putchar('\n');
        json_decref(o);
    } else {
        load_result_print(&s->result);
    }
    if (s->save || s->file)
        TRY(save_result(s, err));
    if (s->html)
        TRY(load_html_write(s->html, &s->result, err));
    return NYB_OK;
}

static enum nyb_code run_and_report(struct load_options *s, const struct load_target *t,
                                    const struct load_data *d, int *status, struct nyb_err *err)
{
    struct load_golden golden = {0};
    struct load_reply *reply = make_replies(d->n);
    struct load_metrics metrics = {0};
    struct load_run run;
    struct load_result *r = &s->result;
    enum nyb_code code = s->golden ? load_golden_open(&golden, s->golden, d, err) : NYB_OK;
    if (code == NYB_OK)
        code = send_all(s, t, d, reply, &run, err);
    if (code == NYB_OK) {
        r->golden = s->golden != NULL;
        r->golden_wrong = s->golden ? load_golden_check(&golden, d, reply) : 0;
        load_metrics_make(&metrics, reply, d->n, &run, s->goal, r->n_goal);
        r->metrics = &metrics;
        r->data = d;
        r->reply = reply;
        code = report(s, err);
        *status = metrics.completed == 0 || r->golden_wrong > 0;
    }
    if (code == NYB_OK && s->save_golden)
        code = load_golden_save(s->save_golden, d, reply, err);
    load_metrics_free(&metrics);
    load_golden_close(&golden);
    free_replies(reply, d->n);
    return code;
}

static void settle_data(struct load_options *s)
{
    struct load_data_options *o = &s->data;
    o->n = (int)s->n;
    o->seed = (uint64_t)s->seed;
    o->shuffle = s->shuffle;
    o->random_input = (int)s->input;
    o->random_output = (int)s->output;
    o->random_prefix = (int)s->prefix;
    o->sonnet_input = (int)s->sonnet_input;
    o->sonnet_output = (int)s->sonnet_output;
    o->sonnet_prefix = (int)s->sonnet_prefix;
    o->file_output = (int)s->file_output;
    o->max_input = (int)s->max_input;
    o->max_output = (int)s->max_output;
}

/* OpenAI's clients are given a base that ends in /v1, vLLM's bench one without. */
static void trim_base(char *base)
{
    size_t n = strlen(base);
    while (n > 0 && base[n - 1] == '/')
        n--;
    if (n > 3 && !memcmp(base + n - 3, "/v1", 3))
        n -= 3;
    base[n] = 0;
}

static enum nyb_code run(struct load_options *s, int *status, struct nyb_err *err)
{
    struct load_data data = {0};
    bool chat = !strcmp(s->backend, "openai-chat");
    char *base = s->base_url ? mem_strdup(s->base_url) : mem_printf("http://%s:%d", s->host, (int)s->port);
    trim_base(base);
    char *url = mem_printf("%s%s", base,
                           s->endpoint ? s->endpoint
                           : chat      ? "/v1/chat/completions"
                                       : "/v1/completions");
    char *model = NULL;
    time_t now = time(NULL);
    struct tm tm;
    strftime(s->result.date, sizeof(s->result.date), "%Y%m%d-%H%M%S", localtime_r(&now, &tm));
    settle_data(s);
    enum nyb_code code = load_data_make(&data, &s->data, err);
    if (code == NYB_OK && !chat && json_is_array(data.request[0].input))
        code = err_set(err, NYB_E_ARG, "the data set %s holds conversations: it needs --backend openai-chat",
                       load_set_name(s->data.set));
    if (code == NYB_OK && !s->model)
        code = load_client_model(&model, base, s->api_key, s->insecure, err);
    if (code == NYB_OK) {
        const struct load_target target = {.url = url,
                                           .model = s->model ? s->model : model,
                                           .api_key = s->api_key,
                                           .chat = chat,
                                           .params = make_params(s, chat),
                                           .insecure = s->insecure,
                                           .timeout_s = s->timeout_s,
                                           .max_concurrency = (int)s->concurrency};
        struct load_result *r = &s->result;
        r->backend = s->backend;
        r->url = url;
        r->model = target.model;
        r->data_set = load_set_name(s->data.set);
        r->request_rate = s->data.request_rate;
        r->burstiness = s->data.burstiness;
        r->max_concurrency = target.max_concurrency;
        r->metadata = s->metadata;
        code = run_and_report(s, &target, &data, status, err);
        json_decref(target.params);
    }
    load_data_free(&data);
    free(base);
    free(url);
    free(model);
    return code;
}

int bench_serve(int argc, char **argv)
{
    struct load_options s;
    struct nyb_err err;
    load_options_init(&s);
    int status = load_options_parse(&s, argc, argv);
    if (status < 0 && run(&s, &status, &err) != NYB_OK)
        status = cli_fail(LOAD_OPTIONS_COMMAND, &err);
    load_options_free(&s);
    return status;
}
