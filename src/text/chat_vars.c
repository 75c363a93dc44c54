#include "text/chat_vars.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "text/jinja.h"

/* Read folder/name where it exists; *out is NULL where not. */
static enum nyb_code read_optional(json_t **out, const char *folder, const char *name, struct nyb_err *err)
{
    *out = NULL;
    char *path = path_join(folder, name);
    enum nyb_code code = NYB_OK;
    if (file_exists(path))
        code = json_read_file(out, path, err);
    if (code == NYB_OK && *out && !json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        code = err_at(err, NYB_E_FORMAT, path, -1, "expected a JSON object");
    }
    free(path);
    return code;
}

static bool is_token_name(const char *key)
{
    size_t n = strlen(key);
    return n > 6 && !strcmp(key + n - 6, "_token");
}

/* Entries "..._token" that are strings, or objects with a "content". Those that are there already win. */
static void add_tokens(json_t *tokens, const json_t *config)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)config, key, value)
    {
        const json_t *text = json_is_object(value) ? json_object_get(value, "content") : value;
        if (is_token_name(key) && json_is_string(text) && !json_object_get(tokens, key))
            json_object_set_new(tokens, key,
                                json_stringn_nocheck(json_string_value(text), json_string_length(text)));
    }
}

static enum nyb_code take_text(char **out, const json_t *v, const char *folder, struct nyb_err *err)
{
    if (!json_is_string(v))
        return err_at(err, NYB_E_FORMAT, folder, -1,
                      "chat_template in tokenizer_config.json is not a string");
    if (json_string_length(v) != strlen(json_string_value(v)))
        return err_at(err, NYB_E_FORMAT, folder, -1, "chat_template in tokenizer_config.json holds a NUL");
    *out = mem_strdup(json_string_value(v));
    return NYB_OK;
}

/* chat_template: a string, or a list of {name, template}. */
static enum nyb_code take_template(struct chat_source *s, const json_t *config, const char *folder,
                                   struct nyb_err *err)
{
    const json_t *v = json_object_get(config, "chat_template");
    if (!v || json_is_null(v))
        return NYB_OK;
    if (!json_is_array(v))
        return take_text(&s->text, v, folder, err);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *row = json_array_get(v, i), *name = json_object_get(row, "name");
        char **to = !json_is_string(name)                          ? NULL
                    : !strcmp(json_string_value(name), "default")  ? &s->text
                    : !strcmp(json_string_value(name), "tool_use") ? &s->tool_text
                                                                   : NULL;
        if (to && !*to)
            TRY(take_text(to, json_object_get(row, "template"), folder, err));
    }
    if (!s->text && !s->tool_text && json_array_size(v))
        return err_at(err, NYB_E_FORMAT, folder, -1,
                      "chat_template in tokenizer_config.json names neither \"default\" nor \"tool_use\"");
    return NYB_OK;
}

static enum nyb_code load(struct chat_source *s, const char *folder, const char *override_path,
                          struct nyb_err *err)
{
    size_t len;
    json_t *config = NULL, *map = NULL;
    s->tokens = json_object();
    if (folder) {
        enum nyb_code code = read_optional(&config, folder, "tokenizer_config.json", err);
        if (code == NYB_OK)
            code = read_optional(&map, folder, "special_tokens_map.json", err);
        char *path = path_join(folder, "chat_template.jinja");
        if (code == NYB_OK && !override_path && file_exists(path))
            code = file_read_all(path, JINJA_SOURCE_MAX, &s->text, &len, err);
        else if (code == NYB_OK && !override_path && config)
            code = take_template(s, config, folder, err);
        free(path);
        add_tokens(s->tokens, config);
        add_tokens(s->tokens, map);
        json_decref(config);
        json_decref(map);
        TRY(code);
    }
    return override_path ? file_read_all(override_path, JINJA_SOURCE_MAX, &s->text, &len, err) : NYB_OK;
}

enum nyb_code chat_vars_load(struct chat_source *out, const char *folder, const char *override_path,
                             struct nyb_err *err)
{
    memset(out, 0, sizeof(*out));
    enum nyb_code code = load(out, folder, override_path, err);
    if (code != NYB_OK)
        chat_vars_free(out);
    return code;
}

void chat_vars_free(struct chat_source *s)
{
    free(s->text);
    free(s->tool_text);
    json_decref(s->tokens);
    memset(s, 0, sizeof(*s));
}
