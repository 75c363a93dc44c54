/* The text room by hand: one JSON object a line in, one out. For tests, and for people who wonder what their
 * model reads and writes. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "cli/cli.h"
#include "cli/text_actions.h"
#include "text/chat_json.h"

static const char help[] =
    "nybble text: what a model reads and writes, as JSON lines\n\n"
    "usage: nybble text encode|decode|render|parse [OPTIONS] [FOLDER]\n\n"
    "One object a line on standard input, one a line on standard output, in order:\n"
    "  encode   {text, add_special_tokens? (true)} -> {ids}\n"
    "  decode   {ids, skip_special_tokens? (false)} -> {text}\n"
    "  render   {messages, tools?, add_generation_prompt? (false), kwargs?, tokenize? (false)}\n"
    "           -> {text}, or {ids} with tokenize; {error} when the template refuses\n"
    "  parse    {text, format?, tools?, starts_in_reasoning?} -> {content, reasoning, tool_calls}\n"
    "A line that cannot be used gives {error}, and exit status 1 at the end.\n\n"
    "  --tokenizer FILE      tokenizer.json, in place of a folder\n"
    "  --chat-template FILE  in place of the folder's\n"
    "  --now TIME            the template's clock: seconds since 1970, or 2025-08-05T12:34:56 in UTC\n"
    "  --normalize           render: messages are made fit for the template first, as the engine does; "
    "without it\n"
    "                        they reach it as they are, as in transformers\n"
    "  --format NAME         parse: where a line names none (default: what the chat template teaches)\n"
    "  --help                this text\n\n"
    "formats:";
static const char help_examples[] =
    "\n\nexamples:\n"
    "  echo '{\"text\": \"Once upon a time\"}' | nybble text encode\n"
    "  echo '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}' | nybble text render "
    "~/models/Qwen3-30B-A3B-FP4\n"
    "  echo '{\"text\": \"<think>Hm.</think>Yes.\"}' | nybble text parse --format qwen3\n";

/* Answer one line; false when it could not be used. That a template refuses a conversation is an answer. */
static bool answer(struct text_cli *t, const struct text_action *action, const char *line, size_t len,
                   uint64_t number)
{
    struct buf out = {0};
    struct nyb_err err;
    json_t *in = NULL;
    char where[40];
    snprintf(where, sizeof(where), "line %llu", (unsigned long long)number);
    enum nyb_code code = chat_json_parse(&in, line, len, where, &err);
    if (code == NYB_OK && !json_is_object(in))
        code = err_at(&err, NYB_E_ARG, where, -1, "not a JSON object");
    if (code == NYB_OK)
        code = action->line(t, in, &out, &err);
    if (code != NYB_OK) {
        char message[1200];
        err_format(&err, message, sizeof(message));
        buf_clear(&out);
        buf_add_str(&out, "{\"error\": ");
        json_add_string(&out, message, strlen(message));
        buf_add_byte(&out, '}');
    }
    buf_add_byte(&out, '\n');
    fwrite(out.data, 1, out.len, stdout);
    buf_free(&out);
    json_decref(in);
    return code == NYB_OK || code == NYB_E_TEMPLATE;
}

static bool is_blank(const char *line, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return false;
    return true;
}

static int answer_all(struct text_cli *t, const struct text_action *action)
{
    char *line = NULL;
    size_t cap = 0;
    int status = 0;
    uint64_t number = 0;
    setvbuf(stdout, NULL, _IOLBF, 0); /* another program may wait for each answer */
    for (ssize_t n; !ferror(stdout) && (n = getline(&line, &cap, stdin)) >= 0;) {
        size_t len = (size_t)n - (n > 0 && line[n - 1] == '\n');
        number++;
        if (!is_blank(line, len) && !answer(t, action, line, len, number))
            status = 1;
    }
    free(line);
    if (!ferror(stdin))
        return status;
    struct nyb_err err;
    (void)err_at(&err, NYB_E_IO, "standard input", -1, "%s", strerror(errno));
    return cli_fail("text", &err);
}

/* Seconds since 1970, or an ISO date with or without a time, in UTC. */
static bool parse_time(const char *text, int64_t *out)
{
    static const char *const forms[] = {"%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d"};
    char *end;
    errno = 0;
    long long seconds = strtoll(text, &end, 10);
    if (end != text && !*end && !errno) {
        *out = seconds;
        return seconds > 0;
    }
    for (size_t i = 0; i < COUNT_OF(forms); i++) {
        struct tm tm = {0};
        end = strptime(text, forms[i], &tm);
        if (end && (!*end || !strcmp(end, "Z"))) {
            *out = timegm(&tm);
            return *out > 0;
        }
    }
    return false;
}

static void print_help(void)
{
    fputs(help, stdout);
    const struct parse_format *f;
    for (size_t i = 0; (f = parse_format_at(i)); i++)
        printf("%s %s (%s)", i ? "," : "", f->name, f->aliases);
    fputs(help_examples, stdout);
}

static enum nyb_code find_folder(struct text_cli *t, const char *named, struct nyb_err *err)
{
    if (named && file_exists(named) && !file_is_dir(named) && !t->tokenizer_path) {
        t->tokenizer_path = named;
        named = NULL;
    }
    if (named)
        return ckpt_resolve(&t->folder, named, err);
    if (t->tokenizer_path) {
        const char *slash = strrchr(t->tokenizer_path, '/');
        t->folder =
            slash ? mem_strndup(t->tokenizer_path, (size_t)(slash - t->tokenizer_path) + 1) : mem_strdup(".");
        return NYB_OK;
    }
    if (t->template_path)
        return NYB_OK;
    return ckpt_resolve(&t->folder, cli_default_model(), err);
}

static int run(struct text_cli *t, const struct text_action *action, const char *named)
{
    struct nyb_err err;
    enum nyb_code code = find_folder(t, named, &err);
    if (code == NYB_OK)
        code = action->open(t, &err);
    int status = code == NYB_OK ? answer_all(t, action) : cli_fail("text", &err);
    tok_close(t->tok);
    chat_close(t->chat);
    free(t->folder);
    return status;
}

int cli_text(int argc, char **argv)
{
    enum { TOKENIZER = 256, CHAT_TEMPLATE, NOW, NORMALIZE, FORMAT };
    static const struct option options[] = {
        {"tokenizer", required_argument, NULL, TOKENIZER},
        {"chat-template", required_argument, NULL, CHAT_TEMPLATE},
        {"now", required_argument, NULL, NOW},
        {"normalize", no_argument, NULL, NORMALIZE},
        {"format", required_argument, NULL, FORMAT},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    struct text_cli t = {0};
    optind = 0; /* getopt starts anew */
    for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        switch (c) {
        case TOKENIZER:
            t.tokenizer_path = optarg;
            break;
        case CHAT_TEMPLATE:
            t.template_path = optarg;
            break;
        case NOW:
            if (!parse_time(optarg, &t.now))
                return cli_misuse("text", "--now takes seconds since 1970 or 2025-08-05T12:34:56, got \"%s\"",
                                  optarg);
            break;
        case NORMALIZE:
            t.normalize = true;
            break;
        case FORMAT:
            if (!parse_format_find(optarg))
                return cli_misuse("text", "--format knows no \"%s\"", optarg);
            t.format_name = optarg;
            break;
        case 'h':
            print_help();
            return 0;
        default: /* getopt has named the option */
            return cli_misuse("text", "the call is wrong");
        }
    }
    if (optind == argc)
        return cli_misuse("text", "encode, decode, render or parse is missing");
    const struct text_action *action = text_action_find(argv[optind]);
    if (!action)
        return cli_misuse("text", "no action \"%s\": encode, decode, render or parse", argv[optind]);
    if (argc - optind > 2)
        return cli_misuse("text", "one folder at a time: \"%s\" comes after \"%s\"", argv[optind + 2],
                          argv[optind + 1]);
    return run(&t, action, optind + 1 < argc ? argv[optind + 1] : NULL);
}
