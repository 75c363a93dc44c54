/* Conversations for callers of the public interface: JSON in, token ids out. */
#include <string.h>

#include "base/mem.h"
#include "engine/instance.h"
#include "text/chat_json.h"

static enum nyb_code parse_optional(json_t **out, const char *text, const char *where, struct nyb_err *err)
{
    *out = NULL;
    return text ? chat_json_parse(out, text, strlen(text), where, err) : NYB_OK;
}

static enum nyb_code render(const struct nyb_engine *e, const struct chat_input *in, int32_t **ids, size_t *n,
                            char **text, struct nyb_err *err)
{
    struct chat_prompt prompt = {0};
    struct tok_ids list = {0};
    enum nyb_code code = chat_render(e->chat, in, &prompt, err);
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
                                      .add_generation_prompt = chat->add_generation_prompt,
                                      .now = chat->now};
        code = render(e, &in, ids, n, text, err);
    }
    json_decref(messages);
    json_decref(tools);
    json_decref(kwargs);
    return code;
}
