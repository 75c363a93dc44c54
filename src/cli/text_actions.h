/* What `nybble text` does with a line: encode, decode, render or parse. */
#ifndef NYB_CLI_TEXT_ACTIONS_H
#define NYB_CLI_TEXT_ACTIONS_H

#include "base/buf.h"
#include "base/json.h"
#include "text/chat.h"
#include "text/parse.h"
#include "text/tokenizer.h"

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

struct text_action {
    const char *name;
    /* Once, before the first line: what the action needs. */
    enum nyb_code (*open)(struct text_cli *t, struct nyb_err *err);
    /* One object in; out: the object that answers it. */
    enum nyb_code (*line)(struct text_cli *t, const json_t *in, struct buf *out, struct nyb_err *err);
};

/* NULL: there is none of that name. */
const struct text_action *text_action_find(const char *name);

#endif
