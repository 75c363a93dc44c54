#include "text/parse_format.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/parse_syntax.h"
#include "text/tokenizer.h"

static const struct parse_format table[] = {
#define FORMAT(name_, aliases_, topen, tclose, aopen, aclose, copen, cclose, syntax_, ends, shortid, n0, n1) \
    {.name = (name_),                                                                                        \
     .aliases = (aliases_),                                                                                  \
     .think_open = (topen),                                                                                  \
     .think_close = (tclose),                                                                                \
     .answer_open = (aopen),                                                                                 \
     .answer_close = (aclose),                                                                               \
     .call_open = (copen),                                                                                   \
     .call_close = (cclose),                                                                                 \
     .syntax = (syntax_),                                                                                    \
     .call_ends_thinking = (ends),                                                                           \
     .short_ids = (shortid),                                                                                 \
     .needle = {(n0), (n1)}},
#include "text/parse_formats.def"
#undef FORMAT
};

const struct parse_format *parse_format_at(size_t i)
{
    return i < COUNT_OF(table) ? &table[i] : NULL;
}

/* Is name one of the comma-separated names in list? */
static bool listed(const char *list, const char *name)
{
    size_t len = strlen(name);
    for (const char *s = list; *s;) {
        size_t n = strcspn(s, ",");
        if (n == len && !strncmp(s, name, n))
            return true;
        s += n + (s[n] == ',');
    }
    return false;
}

const struct parse_format *parse_format_find(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (!strcmp(table[i].name, name) || listed(table[i].aliases, name))
            return &table[i];
    return NULL;
}

const struct parse_format *parse_format_plain(void)
{
    const struct parse_format *plain = parse_format_find("plain");
    ASSERT(plain);
    return plain;
}

const struct parse_format *parse_format_for_template(const char *source)
{
    for (size_t i = 0; source && i < COUNT_OF(table); i++) {
        const struct parse_format *f = &table[i];
        if (f->needle[0] && strstr(source, f->needle[0]) && (!f->needle[1] || strstr(source, f->needle[1])))
            return f;
    }
    return parse_format_plain();
}

static enum nyb_code from_file(const struct parse_format **out, const char *path, struct nyb_err *err)
{
    char *source;
    size_t len;
    TRY(file_read_all(path, JSON_FILE_MAX, &source, &len, err));
    *out = parse_format_for_template(source);
    free(source);
    return NYB_OK;
}

/* chat_template: a string, or a list of {name, template}. Only strings matter, so integers may be read as
 * reals: many files hold a model_max_length of 1e30 written out, which no json_int_t takes. */
static enum nyb_code from_config(const struct parse_format **out, const char *path, struct nyb_err *err)
{
    json_t *config, *item;
    json_error_t e;
    char *text;
    size_t len, i;
    TRY(file_read_all(path, JSON_FILE_MAX, &text, &len, err));
    config = json_loadb(text, len, JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, &e);
    free(text);
    if (!config)
        return err_at(err, NYB_E_FORMAT, path, e.position, "not valid JSON: %s", e.text);
    struct buf source = {0};
    const json_t *t = json_object_get(config, "chat_template");
    if (json_is_string(t))
        buf_add_str(&source, json_string_value(t));
    json_array_foreach(t, i, item)
    {
        const char *one = json_string_value(json_object_get(item, "template"));
        buf_add_str(&source, one ? one : "");
    }
    *out = parse_format_for_template(source.data);
    buf_free(&source);
    json_decref(config);
    return NYB_OK;
}

enum nyb_code parse_format_for_folder(const struct parse_format **out, const char *folder,
                                      const char *override_path, struct nyb_err *err)
{
    *out = parse_format_plain();
    if (override_path)
        return from_file(out, override_path, err);
    char *file = path_join(folder, "chat_template.jinja"),
         *config = path_join(folder, "tokenizer_config.json");
    enum nyb_code code = NYB_OK;
    if (file_exists(file))
        code = from_file(out, file, err);
    else if (file_exists(config))
        code = from_config(out, config, err);
    free(file);
    free(config);
    return code;
}

bool parse_format_needs_special(const struct parse_format *f, const struct tokenizer *tok)
{
    const char *const markers[] = {f->think_open,   f->think_close, f->answer_open,
                                   f->answer_close, f->call_open,   f->call_close};
    for (size_t i = 0; i < COUNT_OF(markers); i++) {
        int32_t id = markers[i] ? tok_id_of(tok, markers[i]) : -1;
        if (id >= 0 && tok_is_special(tok, id))
            return true;
    }
    return false;
}

bool parse_format_opens(const struct parse_format *f, const char *prompt, size_t len)
{
    if (!f->think_open)
        return false;
    while (len > 0 && (prompt[len - 1] == '\n' || prompt[len - 1] == ' '))
        len--;
    size_t n = strlen(f->think_open);
    return len >= n && !memcmp(prompt + len - n, f->think_open, n);
}

bool parse_format_was_opened(const struct parse_format *f, const char *answer, size_t len)
{
    if (!f->think_open || len == 0)
        return false;
    const char *close = memmem(answer, len, f->think_close, strlen(f->think_close));
    return close && !memmem(answer, (size_t)(close - answer), f->think_open, strlen(f->think_open));
}
