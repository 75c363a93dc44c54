/* What a checkpoint's folder says about its chat template: the source, and the special tokens as variables.
 */
#ifndef NYB_TEXT_CHAT_VARS_H
#define NYB_TEXT_CHAT_VARS_H

#include "base/json.h"

struct chat_source {
    char *text, *tool_text; /* NULL: none; tool_text is the template named tool_use */
    json_t *tokens;         /* object: "bos_token": "<s>", ... */
};

/* folder may be NULL where override_path is not. */
enum nyb_code chat_vars_load(struct chat_source *out, const char *folder, const char *override_path,
                             struct nyb_err *err) NYB_MUST_CHECK;
void chat_vars_free(struct chat_source *s);

#endif
