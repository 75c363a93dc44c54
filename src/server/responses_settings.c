#include "server/responses_settings.h"

#include <string.h>

#include "base/mem.h"
#include "server/params_json.h"
#include "text/chat_json.h"

#define SETTINGS_MAX (1u << 20) /* bytes of all that is repeated */

/* OpenAI's limits; the last two in characters. */
enum { METADATA_PAIRS_MAX = 16, METADATA_KEY_MAX = 64, METADATA_VALUE_MAX = 512 };

static size_t characters(const char *text, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

static enum nyb_code refuse_metadata(struct nyb_err *err, const char *what, int most, size_t got)
{
    return err_at(err, NYB_E_RANGE, "metadata", -1,
                  "metadata must have at most %d %s, got %zu. (parameter=metadata)", most, what, got);
}

static enum nyb_code check_metadata(const json_t *v, struct nyb_err *err)
{
    const char *key;
    json_t *value;
    if (!v || json_is_null(v))
        return NYB_OK;
    if (!json_is_object(v))
        return params_wrong_type(err, "metadata", "an object", v);
    if (json_object_size(v) > METADATA_PAIRS_MAX)
        return refuse_metadata(err, "pairs", METADATA_PAIRS_MAX, json_object_size(v));
    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        if (!json_is_string(value))
            return params_wrong_type(err, "metadata", "an object whose values are strings", value);
        size_t n = characters(key, strlen(key)),
               m = characters(json_string_value(value), json_string_length(value));
        if (n > METADATA_KEY_MAX)
            return refuse_metadata(err, "characters in a key", METADATA_KEY_MAX, n);
        if (m > METADATA_VALUE_MAX)
            return refuse_metadata(err, "characters in a value", METADATA_VALUE_MAX, m);
    }
    return NYB_OK;
}

enum nyb_code responses_settings(const json_t *asked, struct buf *b, struct nyb_err *err)
{
    static const struct {
        const char *name, *otherwise;
    } table[] = {{"instructions", "null"},
                 {"max_output_tokens", "null"},
                 {"metadata", "{}"},
                 {"parallel_tool_calls", "true"},
                 {"reasoning", "null"},
                 {"temperature", "null"},
                 {"text", "{\"format\":{\"type\":\"text\"}}"},
                 {"tool_choice", "\"auto\""},
                 {"tools", "[]"},
                 {"top_logprobs", "0"},
                 {"top_p", "null"},
                 {"user", "null"}};
    size_t from = b->len;
    TRY(check_metadata(json_object_get(asked, "metadata"), err));
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        const json_t *v = json_object_get(asked, table[i].name);
        buf_printf(b, ",\"%s\":", table[i].name);
        if (v && !json_is_null(v))
            chat_json_add(b, v);
        else
            buf_add_str(b, table[i].otherwise);
        if (b->len - from > SETTINGS_MAX)
            return err_at(err, NYB_E_RANGE, table[i].name, -1,
                          "%s is too long: what an answer repeats of its request must be at most %u bytes "
                          "together. (parameter=%s)",
                          table[i].name, SETTINGS_MAX, table[i].name);
    }
    return NYB_OK;
}
