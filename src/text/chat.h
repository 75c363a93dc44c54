/* Conversations to prompt text through the checkpoint's Jinja chat template. JSON for it is best read by
 * chat_json_parse (chat_json.h), which keeps integers of any size.
 * A chat template is immutable after chat_open and may be used from any thread. */
#ifndef NYB_TEXT_CHAT_H
#define NYB_TEXT_CHAT_H

#include "base/json.h"
#include "text/tokenizer.h"

struct chat_template;

/* The template: override_path if given; else chat_template.jinja in the folder; else chat_template in
 * tokenizer_config.json (a string, or a list of named ones: `name`, else "default"; "tool_use" where tools
 * are given). *out is NULL with NYB_OK when the folder has none. */
enum nyb_code chat_open(struct chat_template **out, const char *folder, const char *override_path,
                        struct nyb_err *err) NYB_MUST_CHECK;
void chat_close(struct chat_template *t);

struct chat_input {
    const json_t *messages; /* array of {role, content, ...} as OpenAI clients send them */
    const json_t *tools;    /* array or NULL                                             */
    const json_t *kwargs;   /* object of extra template variables, or NULL               */
    bool add_generation_prompt;
    int64_t now;   /* Unix seconds for strftime_now; 0: the clock's             */
    bool verbatim; /* messages go to the template as they are, as transformers has it: no checks, no
                    * normalization of content (docs/TEXT.md) */
};

/* What came out, with its origin: text from message content must not become special tokens. */
struct chat_prompt {
    struct buf text;
    struct tok_span *span; /* point into text */
    size_t n_span;
};
enum nyb_code chat_render(const struct chat_template *t, const struct chat_input *in, struct chat_prompt *out,
                          struct nyb_err *err) NYB_MUST_CHECK;
void chat_prompt_free(struct chat_prompt *p);

#endif
