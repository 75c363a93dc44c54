/* The command line of nybble run. */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "cli/cli.h"
#include "cli/common.h"
#include "cli/run.h"

static const char help[] =
    "nybble run: answer one prompt, or chat when no -p is given\n\n"
    "usage: nybble run [OPTIONS] [MODEL]\n\n"
    "  -p, --prompt TEXT      the prompt; - reads standard input\n"
    "  --model FOLDER         the same as naming it without a flag\n"
    "  --system TEXT          a system message before it\n"
    "  --raw                  continue the text as it is, without the chat template\n"
    "  --echo                 print the prompt before its continuation\n"
    "  --temperature X        0 is greedy; what is not given comes from generation_config.json\n"
    "  --top-p X  --top-k N  --min-p X  --repetition-penalty X\n"
    "  --seed N               the same answer every time\n"
    "  --max-tokens N         longest answer (default: what the context leaves)\n"
    "  --stop TEXT            end before this text; up to 64 times\n"
    "  --ignore-eos           do not end at the end-of-text token\n"
    "  --stats                tokens and speed on standard error\n"
    "  --chat-template FILE   in place of the checkpoint's\n"
    "  --compute MODE         bf16 (default), strict, int8 or w4a4\n"
    "  --threads N            default: as measured, at most one a core\n"
    "  --kv-cache-memory SIZE such as 2G (default: what one context needs)\n"
    "  --kv-cache-dtype T     auto (default: as the checkpoint declares), bf16, fp8 (or fp8_e4m3) or f32\n"
    "  --max-model-len N      longest context\n"
    "  --hf-overrides JSON    an object whose members replace those of config.json\n"
    "  --device D             cpu (default), cuda, or auto: docs/BACKENDS.md\n"
    "  --moe-backend B        a GPU's kernels for experts: auto, sm90-w4a16, cublaslt-nvfp4, reference\n"
    "  --gemm-backend B       and for all other products, the same names\n"
    "  --load-format F        auto (default), or dummy: random weights from config.json alone\n"
    "  --verbose, --help\n\n"
    "In a chat, Ctrl-C stops the answer; /clear forgets the conversation, /bye or Ctrl-D leaves. Lines "
    "between\n"
    "two lines of \"\"\" are one message. A model without a chat template continues each line as plain "
    "text.\n\n"
    "examples:\n"
    "  nybble run -p \"Once upon a time\" --echo\n"
    "  nybble run -p \"Why is the sky blue?\" --temperature 0 nvidia/Qwen3-30B-A3B-FP4\n"
    "  git diff | nybble run -p - --system \"Review this change.\" ~/models/Qwen3-Coder\n"
    "  nybble run ~/models/GLM-4.5-Air-NVFP4\n";

enum {
    MODEL = 256,
    SYSTEM,
    RAW,
    ECHO_PROMPT,
    TEMPERATURE,
    TOP_P,
    TOP_K,
    MIN_P,
    REPETITION_PENALTY,
    SEED,
    MAX_TOKENS,
    STOP,
    IGNORE_EOS,
    STATS,
    CHAT_TEMPLATE,
    COMPUTE,
    DEVICE,
    MOE_BACKEND,
    GEMM_BACKEND,
    THREADS,
    KV_CACHE_MEMORY,
    KV_CACHE_DTYPE,
    MAX_MODEL_LEN,
    HF_OVERRIDES,
    LOAD_FORMAT
};

static const struct option long_options[] = {
    {"prompt", required_argument, NULL, 'p'},
    {"model", required_argument, NULL, MODEL},
    {"system", required_argument, NULL, SYSTEM},
    {"raw", no_argument, NULL, RAW},
    {"echo", no_argument, NULL, ECHO_PROMPT},
    {"temperature", required_argument, NULL, TEMPERATURE},
    {"top-p", required_argument, NULL, TOP_P},
    {"top-k", required_argument, NULL, TOP_K},
    {"min-p", required_argument, NULL, MIN_P},
    {"repetition-penalty", required_argument, NULL, REPETITION_PENALTY},
    {"seed", required_argument, NULL, SEED},
    {"max-tokens", required_argument, NULL, MAX_TOKENS},
    {"stop", required_argument, NULL, STOP},
    {"ignore-eos", no_argument, NULL, IGNORE_EOS},
    {"stats", no_argument, NULL, STATS},
    {"chat-template", required_argument, NULL, CHAT_TEMPLATE},
    {"compute", required_argument, NULL, COMPUTE},
    {"device", required_argument, NULL, DEVICE},
    {"moe-backend", required_argument, NULL, MOE_BACKEND},
    {"gemm-backend", required_argument, NULL, GEMM_BACKEND},
    {"threads", required_argument, NULL, THREADS},
    {"kv-cache-memory", required_argument, NULL, KV_CACHE_MEMORY},
    {"kv-cache-dtype", required_argument, NULL, KV_CACHE_DTYPE},
    {"max-model-len", required_argument, NULL, MAX_MODEL_LEN},
    {"hf-overrides", required_argument, NULL, HF_OVERRIDES},
    {"load-format", required_argument, NULL, LOAD_FORMAT},
    {"verbose", no_argument, NULL, 'v'},
    {"help", no_argument, NULL, 'h'},
    {0},
};

/* The index of text among the n names, or a complaint and false. */
static bool take_name(const char *option, const char *text, const char *const *name, int n, int *out)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(text, name[i])) {
            *out = i;
            return true;
        }
    cli_misuse("run", "%s does not know \"%s\"", option, text);
    return false;
}

static bool take_int(const char *option, const char *text, int64_t lo, int64_t hi, int *out)
{
    int64_t value;
    if (!cli_parse_int("run", option, text, lo, hi, &value))
        return false;
    *out = (int)value;
    return true;
}

/* Ranges are the engine's to check: it names the parameter and the range. */
static bool take_sampling(struct nyb_sampling *s, int c, const char *arg)
{
    const double any = 1e30;
    switch (c) {
    case TEMPERATURE:
        return cli_parse_float("run", "--temperature", arg, -any, any, &s->temperature);
    case TOP_P:
        return cli_parse_float("run", "--top-p", arg, -any, any, &s->top_p);
    case MIN_P:
        return cli_parse_float("run", "--min-p", arg, -any, any, &s->min_p);
    case REPETITION_PENALTY:
        return cli_parse_float("run", "--repetition-penalty", arg, -any, any, &s->repetition_penalty);
    case TOP_K:
        return take_int("--top-k", arg, -1, INT32_MAX, &s->top_k);
    case SEED:
        return cli_parse_int("run", "--seed", arg, INT64_MIN, INT64_MAX, &s->seed);
    default:
        return take_int("--max-tokens", arg, 1, INT32_MAX, &s->max_tokens);
    }
}

static bool take_stop(struct run *r, const char *text)
{
    if (r->sampling.n_stop == RUN_STOP_MAX) {
        cli_misuse("run", "--stop may be given %d times", RUN_STOP_MAX);
        return false;
    }
    r->stop[r->sampling.n_stop++] = text;
    r->sampling.stop = r->stop;
    return true;
}

static bool take_engine_option(struct run *r, int c, const char *arg)
{
    static const char *const compute[] = {"bf16", "strict", "int8", "w4a4"};
    static const char *const format[] = {"auto", "dummy"};
    static const char *const device[] = {"cpu", "cuda", "auto"};
    static const char *const backend[] = {"auto", "sm90-w4a16", "cublaslt-nvfp4", "reference"};
    static const char *const kv_name[] = {"auto", "f32", "bf16", "fp8", "fp8_e4m3"};
    static const enum nyb_kv_dtype kv[] = {NYB_KV_AUTO, NYB_KV_F32, NYB_KV_BF16, NYB_KV_FP8, NYB_KV_FP8};
    int choice = 0;
    switch (c) {
    case CHAT_TEMPLATE:
        r->options.chat_template = arg;
        return true;
    case COMPUTE:
        if (!take_name("--compute", arg, compute, 4, &choice))
            return false;
        r->options.compute = (enum nyb_compute)choice;
        return true;
    case DEVICE:
        if (!take_name("--device", arg, device, 3, &choice))
            return false;
        r->options.device = (enum nyb_device)choice;
        return true;
    case MOE_BACKEND:
    case GEMM_BACKEND:
        if (!take_name(c == MOE_BACKEND ? "--moe-backend" : "--gemm-backend", arg, backend, 4, &choice))
            return false;
        *(c == MOE_BACKEND ? &r->options.moe_backend : &r->options.gemm_backend) = (enum nyb_backend)choice;
        return true;
    case LOAD_FORMAT:
        if (!take_name("--load-format", arg, format, 2, &choice))
            return false;
        r->options.load_format = (enum nyb_load_format)choice;
        return true;
    case THREADS:
        return take_int("--threads", arg, 1, 4096, &r->options.threads);
    case KV_CACHE_MEMORY:
        return cli_parse_bytes("run", "--kv-cache-memory", arg, &r->options.kv_cache_bytes);
    case KV_CACHE_DTYPE:
        if (!take_name("--kv-cache-dtype", arg, kv_name, 5, &choice))
            return false;
        r->options.kv_dtype = kv[choice];
        return true;
    case MAX_MODEL_LEN:
        return cli_parse_int("run", "--max-model-len", arg, 1, INT32_MAX, &r->options.max_model_len);
    case HF_OVERRIDES:
        r->options.hf_overrides = arg;
        return true;
    default: /* getopt has named it */
        cli_misuse("run", "the call is wrong");
        return false;
    }
}

static bool take_option(struct run *r, int c, const char *arg)
{
    switch (c) {
    case 'p':
        r->prompt = arg;
        return true;
    case SYSTEM:
        r->system = arg;
        return true;
    case RAW:
        r->raw = true;
        return true;
    case ECHO_PROMPT:
        r->echo = true;
        return true;
    case STATS:
        r->stats = true;
        return true;
    case IGNORE_EOS:
        r->sampling.ignore_eos = true;
        return true;
    case STOP:
        return take_stop(r, arg);
    case MODEL:
        r->options.model = arg;
        return r->named = true;
    case 'v':
        log_set_level(LOG_DEBUG);
        return true;
    case TEMPERATURE:
    case TOP_P:
    case TOP_K:
    case MIN_P:
    case REPETITION_PENALTY:
    case SEED:
    case MAX_TOKENS:
        return take_sampling(&r->sampling, c, arg);
    default:
        return take_engine_option(r, c, arg);
    }
}

/* False after a complaint about the environment. */
static bool init(struct run *r)
{
    enum device_choice device = DEVICE_CPU;
    enum device_backend moe = DEVICE_BACKEND_AUTO, gemm = DEVICE_BACKEND_AUTO;
    *r = (struct run){0};
    nyb_options_init(&r->options);
    nyb_sampling_init(&r->sampling);
    r->options.model = cli_default_model();
    r->options.max_num_seqs = 1; /* so that the KV cache defaults to one context */
    optind = 0;
    if (!common_device_defaults("run", &device, &moe, &gemm))
        return false;
    r->options.device = (enum nyb_device)device;
    r->options.moe_backend = (enum nyb_backend)moe;
    r->options.gemm_backend = (enum nyb_backend)gemm;
    return true;
}

bool run_options(struct run *r, int argc, char **argv, int *status)
{
    *status = 2;
    if (!init(r))
        return false;
    for (int c; (c = getopt_long(argc, argv, "p:hv", long_options, NULL)) != -1;) {
        if (c == 'h') {
            fputs(help, stdout);
            *status = 0;
            return false;
        }
        if (!take_option(r, c, optarg))
            return false;
    }
    const char *before = r->named ? r->options.model : argv[optind];
    int next = r->named ? optind : optind + 1;
    if (next < argc) {
        cli_misuse("run", "one model at a time: \"%s\" comes after \"%s\" (a prompt goes after -p)",
                   argv[next], before);
        return false;
    }
    if (optind < argc)
        r->options.model = argv[optind];
    return true;
}
