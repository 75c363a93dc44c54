#include "cli/load_options.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"

static const char help[] =
    "nybble bench serve: load an OpenAI-compatible server and measure it\n\n"
    "usage: nybble bench serve [OPTIONS]\n\n"
    "The server:\n"
    "  --base-url URL       http://HOST:PORT is the default\n"
    "  --host NAME          (127.0.0.1)\n"
    "  --port N             (8180)\n"
    "  --backend NAME       openai-chat (default), or openai: /v1/completions\n"
    "  --endpoint PATH      another path than the backend's\n"
    "  --model NAME         default: the first that /v1/models lists\n"
    "  --api-key KEY        default: the environment variable OPENAI_API_KEY, if set\n"
    "  --insecure           take any TLS certificate (else the system or SSL_CERT_FILE must know it)\n"
    "  --timeout S          seconds for one request (600; 0: none)\n\n"
    "The requests (lengths of made-up text are in words: a token each, or a little more):\n"
    "  --dataset-name NAME  random (default), EBChat, ShareGPT, sonnet or trace\n"
    "  --dataset-path FILE  for all but random; trace: Azure's CSV or Mooncake's JSON lines\n"
    "  --num-prompts N      (1000; drawn again where a file has fewer, but not from a trace)\n"
    "  --random-input-len N, --random-output-len N, --random-prefix-len N   (200, 128, 0)\n"
    "  --random-range-ratio R   lengths uniform in L(1-R) to L(1+R) (0)\n"
    "  --sonnet-input-len N, --sonnet-output-len N, --sonnet-prefix-len N   (550, 150, 200)\n"
    "  --sharegpt-output-len N  for ShareGPT and EBChat rows that name none\n"
    "  --max-input-len N, --max-output-len N   cut a trace's prompts, and all answers, to this\n"
    "  --shuffle            rows of a file in random order\n"
    "  --seed N             of lengths, words, order and arrivals (0)\n"
    "  --temperature T, --top-p P, --top-k K, --min-p P, --ignore-eos, --logprobs N\n"
    "                       sent as given; the temperature is 0 where nothing says otherwise\n"
    "  --extra-body JSON    more members for every body\n\n"
    "When they are sent:\n"
    "  --request-rate R     a second (inf: all at once)\n"
    "  --burstiness B       shape of the gamma-distributed gaps (1: Poisson)\n"
    "  --max-concurrency N  requests in flight at most\n"
    "  --trace-speed X      replay X times as fast as recorded (1)\n"
    "  --num-warmups N      requests before the run, which must succeed (1)\n\n"
    "What is reported:\n"
    "  --percentile-metrics LIST  (ttft,tpot,itl,e2el); also s_ttft, s_itl, s_e2el, s_decode, input_len,\n"
    "                       s_input_len, output_len, res_ttft, reasoning_len; all: every one\n"
    "  --metric-percentiles LIST  (99)\n"
    "  --goodput NAME:LIMIT ...   count requests that keep every limit; milliseconds\n"
    "  --golden FILE        compare every answer with the one in FILE; another one is a failure\n"
    "  --save-golden FILE   write the answers for --golden\n"
    "  --json               JSON on standard output instead of the table\n"
    "  --save-result        JSON into a file; --save-detailed: with every request's figures\n"
    "  --result-dir DIR, --result-filename NAME, --metadata KEY=VALUE ...\n"
    "  --html FILE          a report with plots (gnuplot, where it is installed)\n"
    "  --help               this text\n\n"
    "The exit status is 1 when no request succeeds or a golden answer differs.\n\n"
    "examples:\n"
    "  nybble bench serve --num-prompts 64 --max-concurrency 8\n"
    "  nybble bench serve --port 8000 --backend openai --request-rate 4 --goodput ttft:500 tpot:100\n"
    "  nybble bench serve --dataset-name trace --dataset-path conv.csv --num-prompts 200 --trace-speed 10\n"
    "  nybble bench serve --num-prompts 50 --save-golden one.jsonl --max-concurrency 1\n"
    "  nybble bench serve --num-prompts 50 --golden one.jsonl --html report.html\n";

static bool take_set(struct load_options *s, const char *text)
{
    if (load_set_parse(text, &s->data.set))
        return true;
    cli_misuse(LOAD_OPTIONS_COMMAND,
               "--dataset-name takes random, EBChat, ShareGPT, sonnet or trace, got \"%s\"", text);
    return false;
}

static bool take_backend(struct load_options *s, const char *text)
{
    if (!strcmp(text, "openai-chat") || !strcmp(text, "openai") || !strcmp(text, "vllm")) {
        s->backend = text;
        return true;
    }
    cli_misuse(LOAD_OPTIONS_COMMAND, "--backend takes openai-chat, openai or vllm, got \"%s\"", text);
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
        for (int i = 0; i < METRIC_COUNT; i++)
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

static bool take_metadata(struct load_options *s, const char *text)
{
    const char *equals = strchr(text, '=');
    if (!equals || equals == text) {
        cli_misuse(LOAD_OPTIONS_COMMAND, "--metadata takes KEY=VALUE, got \"%s\"", text);
        return false;
    }
    char *key = mem_strndup(text, (size_t)(equals - text));
    s->metadata = s->metadata ? s->metadata : json_object();
    int bad = json_object_set_new(s->metadata, key, json_string(equals + 1));
    free(key);
    if (bad)
        cli_misuse(LOAD_OPTIONS_COMMAND, "--metadata: \"%s\" is not UTF-8", text);
    return !bad;
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
    {"shuffle", FLAG, AT(shuffle), 0, 0, NULL},
    {"seed", INT, AT(seed), 0, 0x1p62, NULL},
    {"temperature", REAL, AT(temperature), 0, 100, NULL},
    {"top-p", REAL, AT(top_p), 0, 1, NULL},
    {"top-k", INT, AT(top_k), -1, 1 << 30, NULL},
    {"min-p", REAL, AT(min_p), 0, 1, NULL},
    {"logprobs", INT, AT(logprobs), 0, 100, NULL},
    {"ignore-eos", FLAG, AT(ignore_eos), 0, 0, NULL},
    {"extra-body", CALL, 0, 0, 0, take_extra},
    {"request-rate", CALL, 0, 0, 0, take_rate},
    {"burstiness", REAL, AT(data.burstiness), 1e-3, 1e6, NULL},
    {"max-concurrency", INT, AT(concurrency), 1, 1 << 16, NULL},
    {"trace-speed", REAL, AT(data.trace_speed), 1e-6, 1e9, NULL},
    {"num-warmups", INT, AT(warmups), 0, 1000, NULL},
    {"percentile-metrics", CALL, 0, 0, 0, take_metrics},
    {"metric-percentiles", CALL, 0, 0, 0, take_percentiles},
    {"goodput", CALL, 0, 0, 0, take_goals},
    {"golden", TEXT, AT(golden), 0, 0, NULL},
    {"save-golden", TEXT, AT(save_golden), 0, 0, NULL},
    {"json", FLAG, AT(json), 0, 0, NULL},
    {"save-result", FLAG, AT(save), 0, 0, NULL},
    {"save-detailed", FLAG, AT(detailed), 0, 0, NULL},
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

/* Words that follow --goodput and --metadata belong to them. */
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
            fputs(help, stdout);
            return 0;
        }
        if (c == '?')
            return cli_misuse(LOAD_OPTIONS_COMMAND, "the call is wrong");
        if (c >= 256)
            last = &row_table[c - 256];
        else if (!last || (last->call != take_goals && last->call != take_metadata))
            return cli_misuse(LOAD_OPTIONS_COMMAND, "unexpected argument \"%s\"", optarg);
        if (!take_row(s, last, optarg))
            return 2;
    }
    s->model = s->served ? s->served : s->model;
    return optind < argc ? cli_misuse(LOAD_OPTIONS_COMMAND, "unexpected argument \"%s\"", argv[optind]) : -1;
}

void load_options_init(struct load_options *s)
{
    *s = (struct load_options){
        .host = "127.0.0.1",
        .port = 8180,
        .backend = "openai-chat",
        .api_key = getenv("OPENAI_API_KEY"),
        .timeout_s = 600,
        .data = {.set = LOAD_RANDOM, .request_rate = INFINITY, .burstiness = 1, .trace_speed = 1},
        .n = 1000,
        .input = 200,
        .output = 128,
        .sonnet_input = 550,
        .sonnet_output = 150,
        .sonnet_prefix = 200,
        .warmups = 1,
        .temperature = NAN,
        .top_p = NAN,
        .min_p = NAN,
        .top_k = -2,
        .logprobs = -1};
    s->result.percentile[s->result.n_percentile++] = 99;
    take_metrics(s, "ttft,tpot,itl,e2el");
}

void load_options_free(struct load_options *s)
{
    json_decref(s->extra);
    json_decref(s->metadata);
}
