/* One prompt or a chat, streamed to standard output. Reaches the engine through nybble.h alone. */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/common.h"
#include "nybble.h"

#define MAX_STOP 4

static const char help[] =
    "nybble run: answer one prompt, or chat when no -p is given\n\n"
    "usage: nybble run [OPTIONS] [MODEL]\n\n"
    "  -p, --prompt TEXT      the prompt; - reads standard input\n"
    "  --system TEXT          a system message before it\n"
    "  --raw                  continue the text as it is, without the chat template\n"
    "  --echo                 print the prompt before its continuation\n"
    "  --temperature X        0 is greedy; what is not given comes from generation_config.json\n"
    "  --top-p X  --top-k N  --min-p X  --repetition-penalty X\n"
    "  --seed N               the same answer every time\n"
    "  --max-tokens N         longest answer (default: what the context leaves)\n"
    "  --stop TEXT            end before this text; up to 4 times\n"
    "  --ignore-eos           do not end at the end-of-text token\n"
    "  --stats                tokens and speed on standard error\n"
    "  --chat-template FILE   in place of the checkpoint's\n"
    "  --compute MODE         bf16 (default), strict, int8 or w4a4\n"
    "  --threads N            default: as measured, at most one a core\n"
    "  --kv-cache-memory SIZE such as 2G (default: what one context needs)\n"
    "  --kv-cache-dtype T     auto (default: as the checkpoint declares), bf16, fp8 (or fp8_e4m3) or f32\n"
    "  --max-model-len N      longest context\n"
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

struct run {
    struct nyb_options options;
    struct nyb_sampling sampling;
    const char *stop[MAX_STOP];
    const char *prompt, *system;
    bool raw, echo, stats;
    struct nyb_engine *engine;
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    if (interrupted) /* the second one means it */
        _exit(130);
    interrupted = 1;
}

static void catch_interrupt(void)
{
    struct sigaction action = {.sa_handler = on_interrupt};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL); /* no SA_RESTART: a waiting read returns */
}

/* ---- one answer ---------------------------------------------------------------------------------- */

struct answer {
    struct buf text;
    enum nyb_finish finish;
    struct nyb_usage usage;
    uint64_t submitted_ns, first_ns, last_ns;
};

static void print_stats(const struct answer *a)
{
    double first = (double)(a->first_ns - a->submitted_ns) * 1e-9;
    double rest = (double)(a->last_ns - a->first_ns) * 1e-9;
    fprintf(stderr, "\n%d prompt tokens (%d cached), first token after %.3f s; %d tokens",
            a->usage.prompt_tokens, a->usage.cached_tokens, first, a->usage.completion_tokens);
    if (a->usage.completion_tokens > 1 && rest > 0)
        fprintf(stderr, ", %.1f a second", (a->usage.completion_tokens - 1) / rest);
    fputc('\n', stderr);
}

/* Random weights come without a tokenizer: their tokens are numbers. */
static void print_event(const struct run *r, const struct nyb_event *ev)
{
    fwrite(ev->text, 1, ev->text_bytes, stdout);
    if (r->options.load_format == NYB_LOAD_DUMMY && ev->token >= 0 && ev->text_bytes == 0)
        printf("%d ", ev->token);
}

/* A prompt for a model without a tokenizer: each byte is an id. */
static void bytes_to_ids(const char *text, int32_t **ids, size_t *n)
{
    *n = strlen(text);
    *ids = mem_alloc(*n, sizeof(int32_t));
    for (size_t i = 0; i < *n; i++)
        (*ids)[i] = (unsigned char)text[i];
}

/* Print the answer as it comes. Ctrl-C cancels it; the engine then still sends its last event. */
static enum nyb_code stream_answer(const struct run *r, const int32_t *ids, size_t n, struct answer *a,
                                   struct nyb_err *err)
{
    const struct nyb_request request = {.prompt = ids, .n_prompt = n, .sampling = &r->sampling};
    struct nyb_stream *stream;
    struct nyb_event ev = {0};
    a->submitted_ns = clock_ns();
    enum nyb_code code = nyb_submit(r->engine, &request, &stream, err);
    if (code != NYB_OK)
        return code;
    bool cancelled = false;
    while (a->finish == NYB_FINISH_NONE) {
        if (interrupted && !cancelled) {
            nyb_cancel(stream);
            cancelled = true;
        }
        if (!nyb_next(stream, &ev, 50))
            continue;
        if (ev.token >= 0) {
            a->first_ns = a->first_ns ? a->first_ns : ev.time_ns;
            a->last_ns = ev.time_ns;
        }
        print_event(r, &ev);
        if (fflush(stdout) && !cancelled) { /* nobody reads: no use in going on */
            nyb_cancel(stream);
            cancelled = true;
        }
        buf_add(&a->text, ev.text, ev.text_bytes);
        a->finish = ev.finish;
        a->usage = ev.usage;
    }
    if (a->finish == NYB_FINISH_ERROR && ev.error) {
        code = ev.error->code;
        if (err)
            *err = *ev.error;
    }
    nyb_stream_free(stream);
    if (code == NYB_OK && r->stats)
        print_stats(a);
    return code;
}

/* messages: a JSON array, or NULL for plain text. */
static enum nyb_code answer(const struct run *r, const json_t *messages, const char *text, struct answer *a,
                            struct nyb_err *err)
{
    int32_t *ids = NULL;
    size_t n = 0;
    enum nyb_code code;
    if (messages) {
        char *dumped = json_dumps(messages, JSON_COMPACT);
        const struct nyb_chat chat = {.messages = dumped, .add_generation_prompt = true};
        code = nyb_render_chat(r->engine, &chat, &ids, &n, NULL, err);
        free(dumped);
    } else {
        code = nyb_tokenize(r->engine, text, strlen(text), true, &ids, &n, err);
        if (code == NYB_E_UNSUPPORTED && r->options.load_format == NYB_LOAD_DUMMY) {
            bytes_to_ids(text, &ids, &n);
            code = NYB_OK;
        }
    }
    if (code == NYB_OK && n == 0)
        code = err_at(err, NYB_E_ARG, "prompt", -1, "it has no tokens, at least one is needed");
    if (code == NYB_OK)
        code = stream_answer(r, ids, n, a, err);
    nyb_free(ids);
    return code;
}

static void add_message(json_t *messages, const char *role, const char *content, size_t len)
{
    json_array_append_new(
        messages, json_pack("{s:s, s:o}", "role", role, "content", json_stringn_nocheck(content, len)));
}

/* ---- one prompt ---------------------------------------------------------------------------------- */

static bool use_template(const struct run *r)
{
    return !r->raw && nyb_engine_info(r->engine)->has_chat_template;
}

static enum nyb_code read_stdin(struct buf *out, struct nyb_err *err)
{
    char piece[65536];
    for (size_t n; (n = fread(piece, 1, sizeof(piece), stdin)) > 0;) {
        if (out->len + n > 256u << 20)
            return err_at(err, NYB_E_TOO_LONG, "standard input", -1, "more than 256 MB");
        buf_add(out, piece, n);
    }
    if (ferror(stdin))
        return err_at(err, NYB_E_IO, "standard input", -1, "cannot read: %s", strerror(errno));
    buf_add(out, "", 0);
    if (strlen(out->data) != out->len)
        return err_at(err, NYB_E_ARG, "standard input", (int64_t)strlen(out->data), "a NUL byte is not text");
    return NYB_OK;
}

static enum nyb_code run_prompt(struct run *r, struct nyb_err *err)
{
    struct buf input = {0};
    struct answer a = {0};
    enum nyb_code code = NYB_OK;
    const char *text = r->prompt;
    if (!strcmp(text, "-")) {
        code = read_stdin(&input, err);
        text = input.data;
    }
    json_t *messages = code == NYB_OK && use_template(r) ? json_array() : NULL;
    if (messages) {
        if (r->system)
            add_message(messages, "system", r->system, strlen(r->system));
        add_message(messages, "user", text, strlen(text));
    } else if (code == NYB_OK && r->system) {
        code = err_at(err, NYB_E_ARG, "--system", -1,
                      "this model has no chat template to put a system message in");
    }
    if (code == NYB_OK && r->echo)
        fputs(text, stdout);
    if (code == NYB_OK)
        code = answer(r, messages, text, &a, err);
    if (code == NYB_OK)
        putchar('\n');
    json_decref(messages);
    buf_free(&a.text);
    buf_free(&input);
    return code;
}

/* ---- chat ---------------------------------------------------------------------------------------- */

/* One message: a line, or the lines between two lines of """. False at the end of input. */
static bool read_message(struct buf *out, bool terminal)
{
    char *line = NULL;
    size_t cap = 0;
    bool block = false, got = false;
    buf_clear(out);
    for (;;) {
        if (terminal)
            fputs(block ? "... " : ">>> ", stderr);
        ssize_t n = getline(&line, &cap, stdin);
        if (n < 0 && errno == EINTR && interrupted) { /* Ctrl-C at the prompt drops what was typed */
            interrupted = 0;
            clearerr(stdin);
            buf_clear(out);
            block = false;
            fputc('\n', stderr);
            continue;
        }
        if (n < 0)
            break;
        got = true;
        if (n > 0 && line[n - 1] == '\n')
            line[--n] = 0;
        if (!strcmp(line, "\"\"\"")) {
            if (block)
                break;
            block = true;
            continue;
        }
        if (block && out->len)
            buf_add_byte(out, '\n');
        buf_add(out, line, (size_t)n);
        if (!block)
            break;
    }
    free(line);
    return got;
}

static json_t *new_conversation(const struct run *r)
{
    json_t *messages = json_array();
    if (r->system)
        add_message(messages, "system", r->system, strlen(r->system));
    return messages;
}

/* A message that cannot be answered (too long, refused by the template) is dropped from the history, and the
 * chat goes on. */
static bool chat_turn(const struct run *r, json_t *messages, const struct buf *message)
{
    struct answer a = {0};
    struct nyb_err err;
    bool templated = use_template(r);
    if (templated)
        add_message(messages, "user", message->data, message->len);
    enum nyb_code code = answer(r, templated ? messages : NULL, message->data, &a, &err);
    fputs("\n", stdout);
    if (code != NYB_OK)
        cli_fail("run", &err);
    if (templated && code == NYB_OK)
        add_message(messages, "assistant", a.text.data ? a.text.data : "", a.text.len);
    else if (templated)
        json_array_remove(messages, json_array_size(messages) - 1);
    buf_free(&a.text);
    return code == NYB_OK;
}

static int chat(struct run *r)
{
    bool terminal = isatty(STDIN_FILENO) == 1, fine = true;
    struct buf message = {0};
    json_t *messages = new_conversation(r);
    if (terminal)
        fprintf(stderr, "%s. Ctrl-C stops an answer, /clear forgets, /bye leaves.\n",
                nyb_engine_info(r->engine)->model);
    interrupted = 0;
    while (!ferror(stdout) && read_message(&message, terminal)) {
        if (message.len == 0)
            continue;
        if (!strcmp(message.data, "/bye") || !strcmp(message.data, "/exit"))
            break;
        if (!strcmp(message.data, "/clear")) {
            json_decref(messages);
            messages = new_conversation(r);
            continue;
        }
        interrupted = 0;
        fine = chat_turn(r, messages, &message) && fine;
        interrupted = 0;
    }
    if (terminal)
        fputc('\n', stderr);
    json_decref(messages);
    buf_free(&message);
    if (ferror(stdin)) {
        struct nyb_err err;
        (void)err_at(&err, NYB_E_IO, "standard input", -1, "cannot be read");
        return cli_fail("run", &err);
    }
    return fine || terminal ? 0 : 1;
}

/* ---- options ------------------------------------------------------------------------------------- */

enum {
    SYSTEM = 256,
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
    LOAD_FORMAT
};

static const struct option long_options[] = {
    {"prompt", required_argument, NULL, 'p'},
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
    if (r->sampling.n_stop == MAX_STOP) {
        cli_misuse("run", "--stop may be given %d times", MAX_STOP);
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

int cli_run(int argc, char **argv)
{
    struct run r;
    struct nyb_err err;
    struct cli_progress bar;
    if (!init(&r))
        return 2;
    for (int c; (c = getopt_long(argc, argv, "p:hv", long_options, NULL)) != -1;) {
        if (c == 'h') {
            fputs(help, stdout);
            return 0;
        }
        if (!take_option(&r, c, optarg))
            return 2;
    }
    if (argc - optind > 1)
        return cli_misuse("run", "one model at a time: \"%s\" comes after \"%s\" (a prompt goes after -p)",
                          argv[optind + 1], argv[optind]);
    if (optind < argc)
        r.options.model = argv[optind];
    r.options.progress = cli_progress_update;
    r.options.progress_arg = &bar;
    cli_progress_start(&bar, "loading");
    enum nyb_code code = nyb_open(&r.engine, &r.options, &err);
    cli_progress_end(&bar);
    if (code != NYB_OK)
        return cli_fail("run", &err);
    catch_interrupt();
    int status = 0;
    if (!r.prompt)
        status = chat(&r);
    else if (run_prompt(&r, &err) != NYB_OK)
        status = cli_fail("run", &err);
    else if (interrupted)
        status = 130;
    nyb_close(r.engine);
    return status;
}
