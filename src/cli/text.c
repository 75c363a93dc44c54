/* The text room by hand: one JSON object a line in, one out. For tests, and for people who wonder what their
 * model reads and writes. */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "cli/cli.h"
#include "text/chat.h"
#include "text/chat_json.h"
#include "text/parse.h"
#include "text/tokenizer.h"

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

struct text_cli {
    const char *tokenizer_path, *template_path;
    const char *format_name;
    char *folder; /* resolved, or NULL: the files above are all there is */
    int64_t now;
    bool normalize;
    struct tokenizer *tok;
    struct chat_template *chat;
    const struct parse_format *format;
};

static enum nyb_code open_tokenizer(struct text_cli *t, struct nyb_err *err)
{
    if (t->tok)
        return NYB_OK;
    if (!t->tokenizer_path && !t->folder)
        return err_set(err, NYB_E_ARG, "no tokenizer: give a folder or --tokenizer FILE");
    return tok_open(&t->tok, t->tokenizer_path ? t->tokenizer_path : t->folder, err);
}

static enum nyb_code open_chat(struct text_cli *t, struct nyb_err *err)
{
    TRY(chat_open(&t->chat, t->folder, t->template_path, err));
    if (!t->chat)
        return err_at(
            err, NYB_E_NOT_FOUND, t->folder, -1,
            "no chat template in chat_template.jinja or tokenizer_config.json; --chat-template names one");
    return NYB_OK;
}

static enum nyb_code open_format(struct text_cli *t, struct nyb_err *err)
{
    if (!t->format_name)
        return parse_format_for_folder(&t->format, t->folder, t->template_path, err);
    t->format = parse_format_find(t->format_name);
    return t->format ? NYB_OK : err_set(err, NYB_E_ARG, "no format \"%s\"", t->format_name);
}

/* An optional boolean of the line. */
static enum nyb_code take_bool(const json_t *in, const char *key, bool *value, struct nyb_err *err)
{
    const json_t *v = json_object_get(in, key);
    if (!v || json_is_null(v))
        return NYB_OK;
    if (!json_is_boolean(v))
        return err_at(err, NYB_E_ARG, key, -1, "neither true nor false");
    *value = json_is_true(v);
    return NYB_OK;
}

static enum nyb_code take_text(const json_t *in, const char **text, size_t *len, struct nyb_err *err)
{
    const json_t *v = json_object_get(in, "text");
    if (!json_is_string(v))
        return err_at(err, NYB_E_ARG, "text", -1, "%s", v ? "not a string" : "missing");
    *text = json_string_value(v);
    *len = json_string_length(v);
    return NYB_OK;
}

/* An optional object or array; null counts as absent. */
static enum nyb_code take_value(const json_t *in, const char *key, json_type type, const json_t **value,
                                struct nyb_err *err)
{
    const json_t *v = json_object_get(in, key);
    *value = v && json_is_null(v) ? NULL : v;
    if (*value && json_typeof(*value) != type)
        return err_at(err, NYB_E_ARG, key, -1, "not an %s", type == JSON_ARRAY ? "array" : "object");
    return NYB_OK;
}

static void add_ids(struct buf *out, const struct tok_ids *ids)
{
    buf_add_str(out, "{\"ids\": [");
    for (size_t i = 0; i < ids->n; i++)
        buf_printf(out, i ? ", %d" : "%d", ids->id[i]);
    buf_add_str(out, "]}");
}

static void add_text(struct buf *out, const struct buf *text)
{
    buf_add_str(out, "{\"text\": ");
    json_add_string(out, text->data ? text->data : "", text->len);
    buf_add_byte(out, '}');
}

static enum nyb_code do_encode(struct text_cli *t, const json_t *in, struct buf *out, struct nyb_err *err)
{
    const char *text;
    size_t len;
    bool special = true;
    struct tok_ids ids = {0};
    TRY(take_text(in, &text, &len, err));
    TRY(take_bool(in, "add_special_tokens", &special, err));
    enum nyb_code code = tok_encode(t->tok, text, len, special, &ids, err);
    if (code == NYB_OK)
        add_ids(out, &ids);
    tok_ids_free(&ids);
    return code;
}

static enum nyb_code take_ids(const json_t *list, int32_t *id, struct nyb_err *err)
{
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v)
    {
        json_int_t value = json_is_integer(v) ? json_integer_value(v) : -1;
        if (value < 0 || value > INT32_MAX)
            return err_at(err, NYB_E_ARG, "ids", -1, "item %zu is not a token id", i);
        id[i] = (int32_t)value;
    }
    return NYB_OK;
}

static enum nyb_code do_decode(struct text_cli *t, const json_t *in, struct buf *out, struct nyb_err *err)
{
    const json_t *list;
    bool skip = false;
    TRY(take_value(in, "ids", JSON_ARRAY, &list, err));
    if (!list)
        return err_at(err, NYB_E_ARG, "ids", -1, "missing");
    TRY(take_bool(in, "skip_special_tokens", &skip, err));
    size_t n = json_array_size(list);
    int32_t *id = mem_alloc(n, sizeof(*id));
    enum nyb_code code = take_ids(list, id, err);
    struct buf text = {0};
    if (code == NYB_OK) {
        tok_decode(t->tok, id, n, skip, &text);
        add_text(out, &text);
    }
    buf_free(&text);
    free(id);
    return code;
}

static enum nyb_code add_prompt_ids(struct text_cli *t, const struct chat_prompt *prompt, struct buf *out,
                                    struct nyb_err *err)
{
    TRY(open_tokenizer(t, err));
    struct tok_ids ids = {0};
    enum nyb_code code = tok_encode_spans(t->tok, prompt->span, prompt->n_span, false, &ids, err);
    if (code == NYB_OK)
        add_ids(out, &ids);
    tok_ids_free(&ids);
    return code;
}

static enum nyb_code do_render(struct text_cli *t, const json_t *in, struct buf *out, struct nyb_err *err)
{
    struct chat_input input = {.now = t->now, .verbatim = !t->normalize};
    bool tokenize = false;
    TRY(take_value(in, "messages", JSON_ARRAY, &input.messages, err));
    TRY(take_value(in, "tools", JSON_ARRAY, &input.tools, err));
    TRY(take_value(in, "kwargs", JSON_OBJECT, &input.kwargs, err));
    TRY(take_bool(in, "add_generation_prompt", &input.add_generation_prompt, err));
    TRY(take_bool(in, "tokenize", &tokenize, err));
    if (!input.messages)
        return err_at(err, NYB_E_ARG, "messages", -1, "missing");
    struct chat_prompt prompt = {0};
    TRY(chat_render(t->chat, &input, &prompt, err));
    enum nyb_code code = NYB_OK;
    if (tokenize)
        code = add_prompt_ids(t, &prompt, out, err);
    else
        add_text(out, &prompt.text);
    chat_prompt_free(&prompt);
    return code;
}

static void add_message(struct buf *out, const struct parse_result *r)
{
    buf_add_str(out, "{\"content\": ");
    json_add_string(out, r->content.data ? r->content.data : "", r->content.len);
    buf_add_str(out, ", \"reasoning\": ");
    json_add_string(out, r->reasoning.data ? r->reasoning.data : "", r->reasoning.len);
    buf_add_str(out, ", \"tool_calls\": [");
    for (size_t i = 0; i < r->n_call; i++) {
        const struct parse_call *c = &r->call[i];
        buf_printf(out, "%s{\"id\": \"%s\", \"type\": \"function\", \"function\": {\"name\": ", i ? ", " : "",
                   c->id);
        json_add_string(out, c->name, strlen(c->name));
        buf_add_str(out, ", \"arguments\": ");
        json_add_string(out, c->arguments.data, c->arguments.len);
        buf_add_str(out, "}}");
    }
    buf_add_str(out, "]}");
}

static enum nyb_code do_parse(struct text_cli *t, const json_t *in, struct buf *out, struct nyb_err *err)
{
    const char *text;
    size_t len;
    struct parse_options options = {.format = t->format};
    TRY(take_text(in, &text, &len, err));
    const json_t *name = json_object_get(in, "format");
    if (name && !json_is_null(name)) {
        options.format = json_is_string(name) ? parse_format_find(json_string_value(name)) : NULL;
        if (!options.format)
            return err_at(err, NYB_E_ARG, "format", -1, "no such format; nybble text --help lists them");
    }
    TRY(take_value(in, "tools", JSON_ARRAY, &options.tools, err));
    options.starts_in_reasoning = parse_format_was_opened(options.format, text, len);
    TRY(take_bool(in, "starts_in_reasoning", &options.starts_in_reasoning, err));
    struct parse_result r;
    parse_all(&options, text, len, &r);
    add_message(out, &r);
    parse_result_free(&r);
    return NYB_OK;
}

static const struct action {
    const char *name;
    enum nyb_code (*open)(struct text_cli *t, struct nyb_err *err);
    enum nyb_code (*line)(struct text_cli *t, const json_t *in, struct buf *out, struct nyb_err *err);
} actions[] = {
    {"encode", open_tokenizer, do_encode},
    {"decode", open_tokenizer, do_decode},
    {"render", open_chat, do_render},
    {"parse", open_format, do_parse},
};

/* Answer one line; false when it could not be used. That a template refuses a conversation is an answer. */
static bool answer(struct text_cli *t, const struct action *action, const char *line, size_t len,
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

static int answer_all(struct text_cli *t, const struct action *action)
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

static const struct action *find_action(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(actions); i++)
        if (!strcmp(actions[i].name, name))
            return &actions[i];
    return NULL;
}

/* A named folder; else, unless files stand in for it, the default model's. A tokenizer's file also names its
 * folder, for the variables of a template. */
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

static int run(struct text_cli *t, const struct action *action, const char *named)
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
    const struct action *action = find_action(argv[optind]);
    if (!action)
        return cli_misuse("text", "no action \"%s\": encode, decode, render or parse", argv[optind]);
    if (argc - optind > 2)
        return cli_misuse("text", "one folder at a time: \"%s\" comes after \"%s\"", argv[optind + 2],
                          argv[optind + 1]);
    return run(&t, action, optind + 1 < argc ? argv[optind + 1] : NULL);
}
