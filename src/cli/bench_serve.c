/* Load on an OpenAI-compatible server: requests at their times, and what came of them. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/load_golden.h"
#include "cli/load_options.h"
#include "cli/load_yaml.h"

/* ---- running ------------------------------------------------------------------------------------- */

static json_t *make_params(const struct load_options *s, struct nyb_err *err)
{
    const struct {
        const char *name;
        double value;
    } given[] = {{"temperature", s->temperature},
                 {"top_p", s->top_p},
                 {"min_p", s->min_p},
                 {"frequency_penalty", s->frequency_penalty},
                 {"presence_penalty", s->presence_penalty},
                 {"repetition_penalty", s->repetition_penalty}};
    json_t *o = NULL;
    if (s->hyperparameters && load_yaml_read(&o, s->hyperparameters, err) != NYB_OK)
        return NULL;
    o = o ? o : json_object();
    for (size_t i = 0; i < COUNT_OF(given); i++)
        if (!isnan(given[i].value))
            json_object_set_new(o, given[i].name, json_real(given[i].value));
    if (s->top_k >= -1)
        json_object_set_new(o, "top_k", json_integer(s->top_k));
    if (s->ignore_eos)
        json_object_set_new(o, "ignore_eos", json_true());
    if (s->beam_search)
        json_object_set_new(o, "use_beam_search", json_true());
    if (s->pd)
        json_object_set_new(o, "collect_metrics", json_true());
    if (s->logprobs >= 0) {
        json_object_set_new(o, "logprobs", s->chat ? json_true() : json_integer(s->logprobs));
        if (s->chat)
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
    for (int64_t i = 0; code == NYB_OK && i < s->warmups * t->n_url; i++) {
        struct load_run run;
        struct load_reply *reply = make_replies(1);
        struct load_target to = *t;
        to.url = &t->url[i % t->n_url];
        to.n_url = 1;
        code = load_client_run(&to, &one, reply, &run, NULL, NULL, err);
        if (code == NYB_OK && !reply->ok)
            code = err_at(err, NYB_E_IO, *to.url, -1, "the warm-up request failed: %s", reply->error);
        free_replies(reply, 1);
    }
    json_decref(prompt);
    return code;
}

static enum nyb_code tell_profilers(const struct load_options *s, const struct load_target *t,
                                    const char *path, struct nyb_err *err)
{
    enum nyb_code code = NYB_OK;
    for (int i = 0; s->profile_server && code == NYB_OK && i < t->n_url; i++) {
        char *url = mem_printf("%s%s", t->base[i], path);
        code = load_client_post(url, t->api_key, t->insecure, err);
        free(url);
    }
    return code;
}

static enum nyb_code send_all(const struct load_options *s, const struct load_target *t,
                              const struct load_data *d, struct load_reply *reply, struct load_run *run,
                              struct nyb_err *err)
{
    struct progress progress = {.n = d->n};
    TRY(warm_up(s, t, err));
    TRY(tell_profilers(s, t, "/start_profile", err));
    cli_progress_start(&progress.bar, "loading the server");
    enum nyb_code code = load_client_run(t, d, reply, run, s->quiet ? NULL : show_done, &progress, err);
    cli_progress_end(&progress.bar);
    return code == NYB_OK ? tell_profilers(s, t, "/stop_profile", err) : code;
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
                         : mem_printf("%s-%gqps%s-%s-%s.json", s->label ? s->label : r->backend,
                                      r->request_rate, limit, slash ? slash + 1 : model, r->date);
    char *path = s->dir ? mem_printf("%s/%s", s->dir, name) : mem_strdup(name);
    free(name);
    return path;
}

static enum nyb_code save_result(const struct load_options *s, struct nyb_err *err)
{
    char *path = result_path(s);
    json_t *o = load_result_json(&s->result, s->detailed);
    enum nyb_code code = NYB_OK;
    FILE *f = fopen(path, s->append ? "a" : "w");
    bool bad =
        !f || json_dumpf(o, f, (s->append ? JSON_COMPACT : JSON_INDENT(1)) | JSON_REAL_PRECISION(9)) != 0;
    bad |= f && fputc('\n', f) == EOF;
    bad |= f && fclose(f) != 0;
    if (bad)
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
    if (s->save || s->append || s->file)
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
        load_metrics_make(&metrics, reply, d->n, &run, s->goal, r->n_goal, s->drop);
        if (metrics.dropped > 0 && metrics.completed < 2)
            code = err_set(err, NYB_E_ARG, "--drop-ratio %g leaves %d of %d answers: too few to measure",
                           s->drop, metrics.completed, metrics.completed + metrics.dropped);
    }
    if (code == NYB_OK) {
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
    o->custom_output = (int)s->custom_output;
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

/* The servers: --ip-list, or the one of --base-url or --host and --port. */
struct servers {
    char **base, **url; /* (n) */
    int n;
};

static void name_servers(struct servers *v, const struct load_options *s)
{
    const char *path = s->endpoint ? s->endpoint : s->chat ? "/v1/chat/completions" : "/v1/completions";
    v->n = s->servers ? (int)json_array_size(s->servers) : 1;
    v->base = mem_alloc((size_t)v->n, sizeof(*v->base));
    v->url = mem_alloc((size_t)v->n, sizeof(*v->url));
    for (int i = 0; i < v->n; i++) {
        const char *name = json_string_value(json_array_get(s->servers, (size_t)i));
        const char *host = name ? name : s->host, *close = strchr(host, ']'); /* [::1]:8000 */
        if (!name && s->base_url)
            v->base[i] = mem_strdup(s->base_url);
        else if (name && (strstr(name, "://") || strchr(close ? close : name, ':')))
            v->base[i] = mem_printf("%s%s", strstr(name, "://") ? "" : "http://", name);
        else
            v->base[i] = mem_printf("http://%s:%d", host, (int)s->port);
        trim_base(v->base[i]);
        v->url[i] = mem_printf("%s%s", v->base[i], path);
    }
}

static void free_servers(struct servers *v)
{
    for (int i = 0; i < v->n; i++) {
        free(v->base[i]);
        free(v->url[i]);
    }
    free(v->base);
    free(v->url);
}

/* The first server's first model, once all of them answer. A server that is not up within
 * --ready-check-timeout-sec is an error; where a name was given and there is no time to wait, nobody is
 * asked. */
static enum nyb_code find_model(char **model, const struct load_options *s, const struct servers *v,
                                struct nyb_err *err)
{
    const struct timespec pause = {.tv_nsec = 200 * 1000 * 1000};
    uint64_t until = clock_ns() + (uint64_t)(s->ready_s * 1e9);
    for (int i = 0; i < v->n && (s->ready_s > 0 || (i == 0 && !s->model)); i++) {
        char *name = NULL;
        enum nyb_code code = load_client_model(&name, v->base[i], s->api_key, s->insecure, err);
        while (code != NYB_OK && clock_ns() < until) {
            nanosleep(&pause, NULL);
            code = load_client_model(&name, v->base[i], s->api_key, s->insecure, err);
        }
        if (i == 0)
            *model = name;
        else
            free(name);
        if (code != NYB_OK)
            return code;
    }
    return NYB_OK;
}

static void describe(struct load_options *s, const struct load_target *t)
{
    struct load_result *r = &s->result;
    r->backend = s->backend;
    r->url = t->url[0];
    r->servers = s->servers;
    r->model = t->model;
    r->tokenizer = s->tokenizer;
    r->label = s->label;
    r->data_set = load_set_name(s->data.set);
    r->request_rate = s->data.request_rate;
    r->burstiness = s->data.burstiness;
    r->max_concurrency = t->max_concurrency;
    r->metadata = s->metadata;
    r->pd = s->pd;
    r->drop = s->drop;
    r->ramp = s->data.ramp;
    r->ramp_start = s->data.ramp_start;
    r->ramp_end = s->data.ramp_end;
}

static enum nyb_code run_on(struct load_options *s, const struct servers *v, const struct load_data *data,
                            int *status, struct nyb_err *err)
{
    char *model = NULL;
    const char **lora = NULL;
    json_t *params = make_params(s, err);
    enum nyb_code code = params ? find_model(&model, s, v, err) : NYB_E_ARG;
    int n_lora = (int)json_array_size(s->lora);
    if (n_lora > 0)
        lora = mem_alloc((size_t)n_lora, sizeof(*lora));
    for (int i = 0; i < n_lora; i++)
        lora[i] = json_string_value(json_array_get(s->lora, (size_t)i));
    if (code == NYB_OK) {
        const struct load_target target = {.url = (const char *const *)v->url,
                                           .base = (const char *const *)v->base,
                                           .n_url = v->n,
                                           .model = s->model ? s->model : model,
                                           .lora = lora,
                                           .n_lora = n_lora,
                                           .lora_seed = (uint64_t)s->seed,
                                           .api_key = s->api_key,
                                           .chat = s->chat,
                                           .params = params,
                                           .headers = s->headers,
                                           .id_prefix = s->id_prefix,
                                           .debug = s->debug,
                                           .insecure = s->insecure,
                                           .timeout_s = s->timeout_s,
                                           .max_concurrency = (int)s->concurrency};
        describe(s, &target);
        code = run_and_report(s, &target, data, status, err);
    }
    json_decref(params);
    free(lora);
    free(model);
    return code;
}

static enum nyb_code run(struct load_options *s, int *status, struct nyb_err *err)
{
    struct load_data data = {0};
    struct servers servers;
    time_t now = time(NULL);
    struct tm tm;
    strftime(s->result.date, sizeof(s->result.date), "%Y%m%d-%H%M%S", localtime_r(&now, &tm));
    settle_data(s);
    TRY(load_data_make(&data, &s->data, err));
    name_servers(&servers, s);
    enum nyb_code code = NYB_OK;
    if (!s->chat && json_is_array(data.request[0].input))
        code = err_set(err, NYB_E_ARG, "the data set %s holds conversations: it needs --backend openai-chat",
                       load_set_name(s->data.set));
    if (code == NYB_OK)
        code = run_on(s, &servers, &data, status, err);
    load_data_free(&data);
    free_servers(&servers);
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
