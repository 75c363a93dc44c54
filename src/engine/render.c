/* Conversations for callers of the public interface: JSON in, token ids out. */
#include <stdlib.h>
#include <string.h>

#include "base/clocale.h"
#include "base/mem.h"
#include "engine/instance.h"
#include "text/chat_json.h"

static enum nyb_code parse_optional(json_t **out, const char *text, const char *where, struct nyb_err *err)
{
    *out = NULL;
    return text ? chat_json_parse(out, text, strlen(text), where, err) : NYB_OK;
}

static enum nyb_code refuse_final(struct nyb_err *err, const char *why)
{
    return err_at(err, NYB_E_ARG, "continue_final_message", -1,
                  "the last message cannot be continued: %s. (parameter=continue_final_message)", why);
}

static char *reversed(const char *s, size_t n)
{
    char *r = mem_alloc(n + 1, 1);
    for (size_t i = 0; i < n; i++)
        r[i] = s[n - 1 - i];
    return r;
}

/* Where `what` occurs last in text, in linear time; len: nowhere. */
static size_t find_last(const char *text, size_t len, const char *what, size_t n)
{
    char *r_text = reversed(text, len), *r_what = reversed(what, n);
    const char *found = memmem(r_text, len, r_what, n);
    size_t at = found ? len - n - (size_t)(found - r_text) : len;
    free(r_text);
    free(r_what);
    return at;
}

/* End the prompt behind the last message's content, as transformers does: found from the end, without the
 * blanks around it where the template strips those. */
static enum nyb_code cut_behind_content(struct chat_prompt *p, const json_t *messages, struct nyb_err *err)
{
    static const char blank[] = " \t\n\r\f\v";
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *content = json_string_value(json_object_get(last, "content"));
    size_t n = content ? strlen(content + strspn(content, blank)) : 0;
    if (n == 0 || p->text.len == 0)
        return refuse_final(err, "it has no text");
    content += strspn(content, blank);
    size_t with_blanks = n;
    while (strchr(blank, content[n - 1]))
        n--;
    size_t at = find_last(p->text.data, p->text.len, content, n), left = p->text.len - at;
    if (left == 0)
        return refuse_final(err, "the chat template changes its text");
    bool kept = left >= with_blanks && !memcmp(p->text.data + at, content, with_blanks);
    p->text.len = at + (kept ? with_blanks : n);
    size_t from = 0;
    for (size_t i = 0; i < p->n_span; i++) {
        left = p->text.len - from;
        p->span[i].len = p->span[i].len < left ? p->span[i].len : left;
        from += p->span[i].len;
    }
    return NYB_OK;
}

static enum nyb_code render(const struct nyb_engine *e, const struct chat_input *in, bool go_on,
                            int32_t **ids, size_t *n, char **text, struct nyb_err *err)
{
    struct chat_prompt prompt = {0};
    struct tok_ids list = {0};
    enum nyb_code code = chat_render(e->chat, in, &prompt, err);
    if (code == NYB_OK && go_on)
        code = cut_behind_content(&prompt, in->messages, err);
    if (code == NYB_OK)
        code = tok_encode_spans(e->tokenizer, prompt.span, prompt.n_span, false, &list, err);
    if (code == NYB_OK) {
        *ids = list.id;
        *n = list.n;
        if (text)
            *text = mem_strndup(prompt.text.data ? prompt.text.data : "", prompt.text.len);
    } else {
        tok_ids_free(&list);
    }
    chat_prompt_free(&prompt);
    return code;
}

static enum nyb_code render_texts(const struct nyb_engine *e, const struct nyb_chat *chat, int32_t **ids,
                                  size_t *n, char **text, struct nyb_err *err)
{
    json_t *messages = NULL, *tools = NULL, *kwargs = NULL;
    enum nyb_code code = parse_optional(&messages, chat->messages, "messages", err);
    if (code == NYB_OK)
        code = parse_optional(&tools, chat->tools, "tools", err);
    if (code == NYB_OK)
        code = parse_optional(&kwargs, chat->kwargs, "chat_template_kwargs", err);
    if (code == NYB_OK) {
        const struct chat_input in = {.messages = messages,
                                      .tools = tools,
                                      .kwargs = kwargs,
                                      .add_generation_prompt =
                                          chat->add_generation_prompt && !chat->continue_final_message,
                                      .now = chat->now};
        code = render(e, &in, chat->continue_final_message, ids, n, text, err);
    }
    json_decref(messages);
    json_decref(tools);
    json_decref(kwargs);
    return code;
}

enum nyb_code nyb_render_chat(const struct nyb_engine *e, const struct nyb_chat *chat, int32_t **ids,
                              size_t *n, char **text, struct nyb_err *err)
{
    *ids = NULL;
    *n = 0;
    if (text)
        *text = NULL;
    TRY(text_need_tokenizer(e, err));
    if (!e->chat)
        return err_at(err, NYB_E_TEMPLATE, e->folder, -1,
                      "the model has no chat template: use plain completions, or name a template");
    if (!chat->messages)
        return err_at(err, NYB_E_ARG, "messages", -1, "there are no messages");
    locale_t before = clocale_enter();
    enum nyb_code code = render_texts(e, chat, ids, n, text, err);
    clocale_leave(before);
    return code;
}
