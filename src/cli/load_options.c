#include "cli/load_options.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "cli/cli.h"

static bool take_set(struct load_options *s, const char *text)
{
    if (load_set_parse(text, &s->data.set))
        return true;
    cli_misuse(LOAD_OPTIONS_COMMAND,
               "--dataset-name takes random, EBChat, EB, custom, ShareGPT, sonnet or trace, got \"%s\"%s",
               text, strcmp(text, "hf") ? "" : ": write its rows to a file for custom");
    return false;
}

static bool take_backend(struct load_options *s, const char *text)
{
    static const char *const name[] = {"openai-chat", "openai", "vllm", "sglang", "lmdeploy", "scalellm"};
    for (size_t i = 0; i < COUNT_OF(name); i++)
        if (!strcmp(text, name[i])) {
            s->backend = text;
            s->chat = i == 0;
            return true;
        }
    cli_misuse(LOAD_OPTIONS_COMMAND,
               "--backend takes openai-chat, openai, vllm, sglang, lmdeploy or scalellm, got \"%s\"", text);
    return false;
}

static bool take_rate(struct load_options *s, const char *text)
{
    if (strcmp(text, "inf"))
        return cli_parse_float(LOAD_OPTIONS_COMMAND, "--request-rate", text, 1e-6, 1e6,
                               &s->data.request_rate);
    s->data.request_rate = INFINITY;
    return true;
}

static bool each_part(struct load_options *s, const char *text,
                      bool (*take)(struct load_options *, const char *part))
{
    char *copy = mem_strdup(text), *save = NULL;
    bool fine = true;
    for (char *p = strtok_r(copy, ", ", &save); fine && p; p = strtok_r(NULL, ", ", &save))
        fine = take(s, p);
    free(copy);
    return fine;
}

static bool take_metric(struct load_options *s, const char *part)
{
    enum load_metric m;
    if (!strcmp(part, "all")) {
        for (int i = 0; i < LOAD_METRIC_PD; i++)
            s->result.selected[i] = true;
        return true;
    }
    if (!load_metric_parse(part, &m)) {
        cli_misuse(LOAD_OPTIONS_COMMAND, "--percentile-metrics: there is no metric \"%s\"", part);
        return false;
    }
    s->result.selected[m] = true;
    return true;
}

static bool take_metrics(struct load_options *s, const char *text)
{
    memset(s->result.selected, 0, sizeof(s->result.selected));
    return each_part(s, text, take_metric);
}

static bool take_percentile(struct load_options *s, const char *part)
{
    struct load_result *r = &s->result;
    if (r->n_percentile == LOAD_PERCENTILE_MAX) {
        cli_misuse(LOAD_OPTIONS_COMMAND, "--metric-percentiles takes at most %d numbers",
                   LOAD_PERCENTILE_MAX);
        return false;
    }
    return cli_parse_float(LOAD_OPTIONS_COMMAND, "--metric-percentiles", part, 0, 100,
                           &r->percentile[r->n_percentile++]);
}

static bool take_percentiles(struct load_options *s, const char *text)
{
    s->result.n_percentile = 0;
    return each_part(s, text, take_percentile);
}

static bool take_goal(struct load_options *s, const char *part)
{
    const char *colon = strchr(part, ':');
    char name[32] = "";
    enum load_metric m;
    if (colon && (size_t)(colon - part) < sizeof(name))
        memcpy(name, part, (size_t)(colon - part));
    if (!load_metric_parse(name, &m) || m == METRIC_itl || m == METRIC_s_itl) {
        cli_misuse(LOAD_OPTIONS_COMMAND,
                   "--goodput takes a metric of a request and its limit, as ttft:500, got \"%s\"", part);
        return false;
    }
    if (s->result.n_goal == LOAD_GOAL_MAX) {
        cli_misuse(LOAD_OPTIONS_COMMAND, "--goodput takes at most %d limits", LOAD_GOAL_MAX);
        return false;
    }
    struct load_goal *goal = &s->goal[s->result.n_goal++];
    goal->metric = m;
    return cli_parse_float(LOAD_OPTIONS_COMMAND, "--goodput", colon + 1, 0, 1e12, &goal->most);
}

static bool take_goals(struct load_options *s, const char *text)
{
    return each_part(s, text, take_goal);
}

static bool take_pair(json_t **object, const char *option, const char *text)
{
    const char *equals = strchr(text, '=');
    if (!equals || equals == text) {
        cli_misuse(LOAD_OPTIONS_COMMAND, "%s takes KEY=VALUE, got \"%s\"", option, text);
        return false;
    }
    char *key = mem_strndup(text, (size_t)(equals - text));
    *object = *object ? *object : json_object();
    int bad = json_object_set_new(*object, key, json_string(equals + 1));
    free(key);
    if (bad)
        cli_misuse(LOAD_OPTIONS_COMMAND, "%s: \"%s\" is not UTF-8", option, text);
    return !bad;
}

static bool take_metadata(struct load_options *s, const char *text)
{
    return take_pair(&s->metadata, "--metadata", text);
}

static bool take_header(struct load_options *s, const char *text)
{
    if (!text[strcspn(text, "\r\n")])
        return take_pair(&s->headers, "--header", text);
    cli_misuse(LOAD_OPTIONS_COMMAND, "--header takes one line");
    return false;
}

static bool add_text(json_t **list, const char *option, const char *text)
{
    *list = *list ? *list : json_array();
    if (json_array_append_new(*list, json_string(text)) == 0)
        return true;
    cli_misuse(LOAD_OPTIONS_COMMAND, "%s: \"%s\" is not UTF-8", option, text);
    return false;
}

static bool take_server(struct load_options *s, const char *part)
{
    return add_text(&s->servers, "--ip-list", part);
}

static bool take_servers(struct load_options *s, const char *text)
{
    return each_part(s, text, take_server);
}

static bool take_lora(struct load_options *s, const char *text)
{
    return add_text(&s->lora, "--lora-modules", text);
}

static bool take_ramp(struct load_options *s, const char *text)
{
    bool linear = !strcmp(text, "linear");
    if (linear || !strcmp(text, "exponential")) {
        s->data.ramp = linear ? LOAD_RAMP_LINEAR : LOAD_RAMP_EXPONENTIAL;
        return true;
    }
    cli_misuse(LOAD_OPTIONS_COMMAND, "--ramp-up-strategy takes linear or exponential, got \"%s\"", text);
    return false;
}

static bool take_extra(struct load_options *s, const char *text)
{
    struct nyb_err err;
    char why[512];
    json_decref(s->extra);
    s->extra = NULL;
    if (json_parse(&s->extra, text, strlen(text), "--extra-body", &err) == NYB_OK && json_is_object(s->extra))
        return true;
    cli_misuse(LOAD_OPTIONS_COMMAND, "%s",
               s->extra ? "--extra-body takes a JSON object" : err_format(&err, why, sizeof(why)));
    return false;
}

enum kind { TEXT, INT, REAL, FLAG, CALL };
struct row {
    const char *name;
    enum kind kind;
    size_t at; /* of the member */
    double lo, hi;
    bool (*call)(struct load_options *s, const char *text);
};
#define AT(member) offsetof(struct load_options, member)
static const struct row row_table[] = {
    {"base-url", TEXT, AT(base_url), 0, 0, NULL},
    {"host", TEXT, AT(host), 0, 0, NULL},
    {"port", INT, AT(port), 1, 65535, NULL},
    {"backend", CALL, 0, 0, 0, take_backend},
    {"endpoint-type", CALL, 0, 0, 0, take_backend},
    {"endpoint", TEXT, AT(endpoint), 0, 0, NULL},
    {"ip-list", CALL, 0, 0, 0, take_servers},
    {"lora-modules", CALL, 0, 0, 0, take_lora},
    {"header", CALL, 0, 0, 0, take_header},
    {"request-id-prefix", TEXT, AT(id_prefix), 0, 0, NULL},
    {"ready-check-timeout-sec", REAL, AT(ready_s), 0, 1e6, NULL},
    {"profile", FLAG, AT(profile_server), 0, 0, NULL},
    {"tokenizer", TEXT, AT(tokenizer), 0, 0, NULL},
    {"tokenizer-mode", TEXT, AT(unused), 0, 0, NULL},
    {"trust-remote-code", FLAG, AT(unused_flag), 0, 0, NULL},
    {"model", TEXT, AT(model), 0, 0, NULL},
    {"served-model-name", TEXT, AT(served), 0, 0, NULL},
    {"api-key", TEXT, AT(api_key), 0, 0, NULL},
    {"insecure", FLAG, AT(insecure), 0, 0, NULL},
    {"timeout", REAL, AT(timeout_s), 0, 1e6, NULL},
    {"dataset-name", CALL, 0, 0, 0, take_set},
    {"dataset-path", TEXT, AT(data.path), 0, 0, NULL},
    {"num-prompts", INT, AT(n), 1, 1000000, NULL},
    {"random-input-len", INT, AT(input), 1, 1 << 22, NULL},
    {"random-output-len", INT, AT(output), 1, 1 << 22, NULL},
    {"random-prefix-len", INT, AT(prefix), 0, 1 << 22, NULL},
    {"random-range-ratio", REAL, AT(data.random_range), 0, 1, NULL},
    {"sonnet-input-len", INT, AT(sonnet_input), 1, 1 << 22, NULL},
    {"sonnet-output-len", INT, AT(sonnet_output), 1, 1 << 22, NULL},
    {"sonnet-prefix-len", INT, AT(sonnet_prefix), 0, 1 << 22, NULL},
    {"sharegpt-output-len", INT, AT(file_output), 1, 1 << 22, NULL},
    {"max-input-len", INT, AT(max_input), 1, 1 << 22, NULL},
    {"max-output-len", INT, AT(max_output), 1, 1 << 22, NULL},
    {"custom-output-len", INT, AT(custom_output), 1, 1 << 22, NULL},
    {"shuffle", FLAG, AT(shuffle), 0, 0, NULL},
    {"disable-shuffle", FLAG, AT(unused_flag), 0, 0, NULL},
    {"seed", INT, AT(seed), 0, 0x1p62, NULL},
    {"temperature", REAL, AT(temperature), 0, 100, NULL},
    {"top-p", REAL, AT(top_p), 0, 1, NULL},
    {"top-k", INT, AT(top_k), -1, 1 << 30, NULL},
    {"min-p", REAL, AT(min_p), 0, 1, NULL},
    {"frequency-penalty", REAL, AT(frequency_penalty), -2, 2, NULL},
    {"presence-penalty", REAL, AT(presence_penalty), -2, 2, NULL},
    {"repetition-penalty", REAL, AT(repetition_penalty), 0, 100, NULL},
    {"use-beam-search", FLAG, AT(beam_search), 0, 0, NULL},
    {"hyperparameter-path", TEXT, AT(hyperparameters), 0, 0, NULL},
    {"logprobs", INT, AT(logprobs), 0, 100, NULL},
    {"ignore-eos", FLAG, AT(ignore_eos), 0, 0, NULL},
    {"extra-body", CALL, 0, 0, 0, take_extra},
    {"request-rate", CALL, 0, 0, 0, take_rate},
    {"burstiness", REAL, AT(data.burstiness), 1e-3, 1e6, NULL},
    {"ramp-up-strategy", CALL, 0, 0, 0, take_ramp},
    {"ramp-up-start-rps", REAL, AT(data.ramp_start), 1e-6, 1e6, NULL},
    {"ramp-up-end-rps", REAL, AT(data.ramp_end), 1e-6, 1e6, NULL},
    {"max-concurrency", INT, AT(concurrency), 1, 1 << 16, NULL},
    {"trace-speed", REAL, AT(data.trace_speed), 1e-6, 1e9, NULL},
    {"num-warmups", INT, AT(warmups), 0, 1000, NULL},
    {"percentile-metrics", CALL, 0, 0, 0, take_metrics},
    {"metric-percentiles", CALL, 0, 0, 0, take_percentiles},
    {"goodput", CALL, 0, 0, 0, take_goals},
    {"drop-ratio", REAL, AT(drop), 0, 0.999999, NULL},
    {"pd-metrics", FLAG, AT(pd), 0, 0, NULL},
    {"debug", FLAG, AT(debug), 0, 0, NULL},
    {"golden", TEXT, AT(golden), 0, 0, NULL},
    {"save-golden", TEXT, AT(save_golden), 0, 0, NULL},
    {"json", FLAG, AT(json), 0, 0, NULL},
    {"save-result", FLAG, AT(save), 0, 0, NULL},
    {"save-detailed", FLAG, AT(detailed), 0, 0, NULL},
    {"append-result", FLAG, AT(append), 0, 0, NULL},
    {"label", TEXT, AT(label), 0, 0, NULL},
    {"result-dir", TEXT, AT(dir), 0, 0, NULL},
    {"result-filename", TEXT, AT(file), 0, 0, NULL},
    {"metadata", CALL, 0, 0, 0, take_metadata},
    {"html", TEXT, AT(html), 0, 0, NULL},
    {"disable-tqdm", FLAG, AT(quiet), 0, 0, NULL},
};

static bool take_row(struct load_options *s, const struct row *row, const char *arg)
{
    char option[64];
    void *member = (char *)s + row->at;
    snprintf(option, sizeof(option), "--%s", row->name);
    switch (row->kind) {
    case TEXT:
        *(const char **)member = arg;
        return true;
    case INT:
        return cli_parse_int(LOAD_OPTIONS_COMMAND, option, arg, (int64_t)row->lo, (int64_t)row->hi, member);
    case REAL:
        return cli_parse_float(LOAD_OPTIONS_COMMAND, option, arg, row->lo, row->hi, member);
    case FLAG:
        *(bool *)member = true;
        return true;
    default:
        return row->call(s, arg);
    }
}

/* Words that follow these belong to them. */
static bool takes_more(const struct row *row)
{
    return row && (row->call == take_goals || row->call == take_metadata || row->call == take_header ||
                   row->call == take_lora || row->call == take_servers);
}

/* What options must agree on. */
static int check(const struct load_options *s)
{
    const struct load_data_options *d = &s->data;
    int64_t n = (int64_t)json_array_size(s->servers);
    if (n > 0 && s->base_url)
        return cli_misuse(LOAD_OPTIONS_COMMAND, "--ip-list and --base-url both name the server");
    if (s->base_url && strncasecmp(s->base_url, "http://", 7) && strncasecmp(s->base_url, "https://", 8))
        return cli_misuse(LOAD_OPTIONS_COMMAND,
                          "--base-url takes http://HOST:PORT or https://..., got \"%s\"", s->base_url);
    if (n > 0 && s->concurrency < n)
        return cli_misuse(LOAD_OPTIONS_COMMAND,
                          "--ip-list needs --max-concurrency, at least one for each of the %lld servers",
                          (long long)n);
    int ramp = (d->ramp != LOAD_RAMP_NONE) + (d->ramp_start > 0) + (d->ramp_end > 0);
    if (ramp != 0 && ramp != 3)
        return cli_misuse(LOAD_OPTIONS_COMMAND,
                          "--ramp-up-strategy, --ramp-up-start-rps and --ramp-up-end-rps need each other");
    if (d->ramp != LOAD_RAMP_NONE && isfinite(d->request_rate))
        return cli_misuse(LOAD_OPTIONS_COMMAND, "--request-rate and --ramp-up-strategy exclude each other");
    return -1;
}

int load_options_parse(struct load_options *s, int argc, char **argv)
{
    struct option option[COUNT_OF(row_table) + 2] = {{0}};
    for (size_t i = 0; i < COUNT_OF(row_table); i++)
        option[i] =
            (struct option){row_table[i].name, row_table[i].kind == FLAG ? no_argument : required_argument,
                            NULL, 256 + (int)i};
    option[COUNT_OF(row_table)] = (struct option){"help", no_argument, NULL, 'h'};
    const struct row *last = NULL;
    optind = 0;
    for (int c; (c = getopt_long(argc, argv, "-h", option, NULL)) != -1;) {
        if (c == 'h') {
            fputs(load_options_help, stdout);
            return 0;
        }
        if (c == '?')
            return cli_misuse(LOAD_OPTIONS_COMMAND, "the call is wrong");
        if (c >= 256)
            last = &row_table[c - 256];
        else if (!takes_more(last))
            return cli_misuse(LOAD_OPTIONS_COMMAND, "unexpected argument \"%s\"", optarg);
        if (!take_row(s, last, optarg))
            return 2;
    }
    s->model = s->served ? s->served : s->model;
    for (int i = LOAD_METRIC_PD; s->pd && i < METRIC_COUNT; i++)
        s->result.selected[i] = true;
    if (optind < argc)
        return cli_misuse(LOAD_OPTIONS_COMMAND, "unexpected argument \"%s\"", argv[optind]);
    return check(s);
}

void load_options_init(struct load_options *s)
{
    *s = (struct load_options){
        .host = "127.0.0.1",
        .port = 8180,
        .backend = "openai-chat",
        .chat = true,
        .api_key = getenv("OPENAI_API_KEY"),
        .timeout_s = 600,
        .data = {.set = LOAD_RANDOM, .request_rate = INFINITY, .burstiness = 1, .trace_speed = 1},
        .n = 1000,
        .input = 200,
        .output = 128,
        .custom_output = 256,
        .sonnet_input = 550,
        .sonnet_output = 150,
        .sonnet_prefix = 200,
        .warmups = 1,
        .temperature = NAN,
        .top_p = NAN,
        .min_p = NAN,
        .frequency_penalty = NAN,
        .presence_penalty = NAN,
        .repetition_penalty = NAN,
        .top_k = -2,
        .logprobs = -1};
    s->result.percentile[s->result.n_percentile++] = 99;
    take_metrics(s, "ttft,tpot,itl,e2el");
}

void load_options_free(struct load_options *s)
{
    json_decref(s->extra);
    json_decref(s->metadata);
    json_decref(s->headers);
    json_decref(s->servers);
    json_decref(s->lora);
}
