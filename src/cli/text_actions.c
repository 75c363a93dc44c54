#include "cli/text_actions.h"

#include <string.h>

#include "base/mem.h"
#include "text/chat_json.h"

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
    const char *text = NULL;
    size_t len = 0;
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
    const char *text = NULL;
    size_t len = 0;
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

const struct text_action *text_action_find(const char *name)
{
    static const struct text_action actions[] = {
        {"encode", open_tokenizer, do_encode},
        {"decode", open_tokenizer, do_decode},
        {"render", open_chat, do_render},
        {"parse", open_format, do_parse},
    };
    for (size_t i = 0; i < COUNT_OF(actions); i++)
        if (!strcmp(name, actions[i].name))
            return &actions[i];
    return NULL;
}
