#include "text/chat_input.h"

#include <stdio.h>
#include <string.h>

#include "text/chat_json.h"
#include "text/jinja.h"

#define WHERE_MAX 128

struct path {
    char text[WHERE_MAX]; /* "messages[3].content[0].text" */
};

static struct path path_of(size_t message, const char *rest)
{
    struct path p;
    snprintf(p.text, sizeof(p.text), "messages[%zu]%s%s", message, *rest ? "." : "", rest);
    return p;
}

static const char *type_name(const json_t *v)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a number",  [JSON_TRUE] = "a boolean",
        [JSON_FALSE] = "a boolean",  [JSON_NULL] = "null",
    };
    return v ? names[json_typeof(v)] : "missing";
}

static enum nyb_code fail_type(const struct path *p, const json_t *found, const char *expected,
                               struct nyb_err *err)
{
    return err_at(err, NYB_E_ARG, p->text, -1, "expected %s, found %s", expected, type_name(found));
}

/* The text of a part; NULL in *text is an error. */
static enum nyb_code part_text(const json_t *part, const struct path *p, const json_t **text,
                               struct nyb_err *err)
{
    static const char *const kinds[] = {"text", "input_text", "output_text", "refusal"};
    *text = part;
    if (json_is_string(part))
        return NYB_OK;
    if (!json_is_object(part))
        return fail_type(p, part, "a text part", err);
    const json_t *type = json_object_get(part, "type");
    const char *kind = json_is_string(type) ? json_string_value(type) : NULL;
    if (!kind)
        return err_at(err, NYB_E_ARG, p->text, -1, "the part has no type");
    bool known = false;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        known |= !strcmp(kind, kinds[i]);
    if (!known)
        return err_at(err, NYB_E_ARG, p->text, -1, "parts of type \"%.60s\" are not supported, only text",
                      kind);
    *text = json_object_get(part, strcmp(kind, "refusal") ? "text" : "refusal");
    if (!json_is_string(*text))
        return err_at(err, NYB_E_ARG, p->text, -1, "the part has no text");
    return NYB_OK;
}

static json_t *new_text(const char *text, size_t len)
{
    return json_stringn_nocheck(text ? text : "", len);
}

static json_t *new_part(const json_t *text)
{
    json_t *part = json_object();
    json_object_set_new(part, "type", json_string("text"));
    json_object_set_new(part, "text", new_text(json_string_value(text), json_string_length(text)));
    return part;
}

/* Content that is a list: kept as a list of text parts, or joined by newlines. */
static enum nyb_code parts_content(const json_t *parts, size_t message, bool keep, json_t **out,
                                   struct nyb_err *err)
{
    struct buf joined = {0};
    json_t *list = json_array();
    enum nyb_code code = NYB_OK;
    for (size_t i = 0; i < json_array_size(parts) && code == NYB_OK; i++) {
        char rest[64];
        const json_t *text = NULL;
        snprintf(rest, sizeof(rest), "content[%zu]", i);
        struct path p = path_of(message, rest);
        code = part_text(json_array_get(parts, i), &p, &text, err);
        if (code != NYB_OK)
            break;
        if (i)
            buf_add_byte(&joined, '\n');
        buf_add(&joined, json_string_value(text), json_string_length(text));
        json_array_append_new(list, new_part(text));
    }
    if (code == NYB_OK)
        *out = keep ? json_incref(list) : new_text(joined.data, joined.len);
    json_decref(list);
    buf_free(&joined);
    return code;
}

/* An assistant may leave its content out, others may not. */
static enum nyb_code absent_content(const struct chat_traits *t, const char *role, bool has_calls,
                                    const json_t *found, size_t message, json_t **out, struct nyb_err *err)
{
    if (strcmp(role, "assistant")) {
        struct path p = path_of(message, "content");
        return fail_type(&p, found, "a string or a list of text parts", err);
    }
    *out = has_calls && (t->takes_null || t->needs_null) ? json_null() : json_string("");
    return NYB_OK;
}

static enum nyb_code content(const struct chat_traits *t, const json_t *m, const char *role, bool has_calls,
                             size_t message, json_t **out, struct nyb_err *err)
{
    const json_t *c = json_object_get(m, "content");
    if (!c || json_is_null(c))
        return absent_content(t, role, has_calls, c, message, out, err);
    if (json_is_array(c)) {
        bool keep = !strcmp(role, "system")                               ? t->takes_parts_system
                    : !strcmp(role, "user") || !strcmp(role, "assistant") ? t->takes_parts_user
                                                                          : false;
        return parts_content(c, message, keep || t->needs_parts, out, err);
    }
    if (!json_is_string(c)) {
        struct path p = path_of(message, "content");
        return fail_type(&p, c, "a string or a list of text parts", err);
    }
    if (t->needs_parts) {
        *out = json_array();
        json_array_append_new(*out, new_part(c));
    } else if (t->needs_null && has_calls && json_string_length(c) == 0) {
        *out = json_null();
    } else {
        *out = new_text(json_string_value(c), json_string_length(c));
    }
    return NYB_OK;
}

/* As tojson of a template prints it. */
static enum nyb_code text_of_object(const json_t *object, json_t **out, struct nyb_err *err)
{
    static const char source[] = "{{ v | tojson }}";
    struct jinja_template *t;
    struct jinja_output o;
    const struct jinja_var var = {.name = "v", .value = object, .input = true};
    *out = NULL;
    TRY(jinja_open(&t, source, sizeof(source) - 1, err));
    enum nyb_code code = jinja_render(t, &var, 1, 1, &o, err);
    if (code == NYB_OK)
        *out = new_text(o.text.data, o.text.len);
    jinja_output_free(&o);
    jinja_close(t);
    return code;
}

/* Arguments as the template takes them; clients send a JSON text, some of them an object. */
static enum nyb_code arguments(const struct chat_traits *t, const json_t *a, const struct path *p,
                               json_t **out, struct nyb_err *err)
{
    bool empty = !a || json_is_null(a) || (json_is_string(a) && json_string_length(a) == 0);
    struct nyb_err why;
    if (!empty && !json_is_string(a) && !json_is_object(a))
        return fail_type(p, a, "a JSON object, or a string that holds one", err);
    if (empty) {
        *out = json_object();
    } else if (json_is_object(a)) {
        *out = json_incref((json_t *)(uintptr_t)a);
    } else if (chat_json_parse(out, json_string_value(a), json_string_length(a), "", &why) != NYB_OK) {
        return err_at(err, NYB_E_ARG, p->text, -1, "expected a JSON object in the string: %.300s",
                      why.message);
    } else if (!json_is_object(*out)) {
        enum nyb_code code = fail_type(p, *out, "a JSON object in the string", err);
        json_decref(*out);
        return code;
    }
    if (!t->arguments_as_text)
        return NYB_OK;
    json_t *object = *out;
    enum nyb_code code = NYB_OK;
    if (a && json_is_string(a) && !empty) {
        *out = new_text(json_string_value(a), json_string_length(a)); /* as the client spelled it */
    } else {
        code = text_of_object(object, out, err);
    }
    json_decref(object);
    return code;
}

static enum nyb_code tool_call(const struct chat_traits *t, const json_t *call, size_t message, size_t i,
                               json_t **out, struct nyb_err *err)
{
    char rest[80];
    snprintf(rest, sizeof(rest), "tool_calls[%zu]", i);
    struct path p = path_of(message, rest);
    if (!json_is_object(call))
        return fail_type(&p, call, "an object", err);
    const json_t *function = json_object_get(call, "function");
    snprintf(rest, sizeof(rest), "tool_calls[%zu].function", i);
    p = path_of(message, rest);
    if (!json_is_object(function))
        return fail_type(&p, function, "an object", err);
    const json_t *name = json_object_get(function, "name");
    snprintf(rest, sizeof(rest), "tool_calls[%zu].function.name", i);
    p = path_of(message, rest);
    if (!json_is_string(name))
        return fail_type(&p, name, "a string", err);
    json_t *args = NULL;
    snprintf(rest, sizeof(rest), "tool_calls[%zu].function.arguments", i);
    p = path_of(message, rest);
    TRY(arguments(t, json_object_get(function, "arguments"), &p, &args, err));
    json_t *f = json_copy((json_t *)(uintptr_t)function);
    json_object_set_new(f, "arguments", args);
    *out = json_copy((json_t *)(uintptr_t)call);
    json_object_set_new(*out, "function", f);
    if (!json_object_get(*out, "type"))
        json_object_set_new(*out, "type", json_string("function"));
    return NYB_OK;
}

static enum nyb_code tool_calls(const struct chat_traits *t, const json_t *calls, size_t message,
                                json_t **out, struct nyb_err *err)
{
    if (!json_is_array(calls)) {
        struct path p = path_of(message, "tool_calls");
        return fail_type(&p, calls, "an array", err);
    }
    *out = json_array();
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *call = NULL;
        enum nyb_code code = tool_call(t, json_array_get(calls, i), message, i, &call, err);
        if (code != NYB_OK) {
            json_decref(*out);
            *out = NULL;
            return code;
        }
        json_array_append_new(*out, call);
    }
    return NYB_OK;
}

/* The reasoning of an earlier turn, by the name that the template knows. */
static enum nyb_code reasoning(const struct chat_traits *t, json_t *m, bool has_calls, size_t message,
                               struct nyb_err *err)
{
    json_t *text = json_object_get(m, "reasoning_content");
    if (!text)
        text = json_object_get(m, "reasoning");
    if (!text)
        return NYB_OK;
    if (!json_is_string(text)) {
        struct path p = path_of(message, "reasoning_content");
        return fail_type(&p, text, "a string", err);
    }
    json_object_set(m, "reasoning_content", text);
    const json_t *c = json_object_get(m, "content");
    bool has_content = json_is_string(c) ? json_string_length(c) > 0 : json_array_size(c) > 0;
    /* Such templates refuse reasoning and content beside tool calls; the content then stays alone. */
    if (t->takes_thinking && !json_object_get(m, "thinking") && !(has_calls && has_content))
        json_object_set(m, "thinking", text);
    return NYB_OK;
}

/* A field that is null says the same as one that is not there, but templates ask whether it is there. */
static void drop_nulls(json_t *m)
{
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(m, next, key, value)
    {
        bool empty_calls = !strcmp(key, "tool_calls") && json_is_array(value) && !json_array_size(value);
        if (json_is_null(value) || empty_calls)
            json_object_del(m, key);
    }
}

static enum nyb_code fill_message(const struct chat_traits *t, const json_t *in, json_t *m, size_t i,
                                  struct nyb_err *err)
{
    const json_t *role = json_object_get(in, "role");
    if (!json_is_string(role) || !json_string_length(role)) {
        struct path p = path_of(i, "role");
        return json_is_string(role) ? err_at(err, NYB_E_ARG, p.text, -1, "the role is empty")
                                    : fail_type(&p, role, "a string", err);
    }
    const char *name = json_string_value(role);
    if (!strcmp(name, "developer") && !t->takes_developer) {
        name = "system";
        json_object_set_new(m, "role", json_string(name));
    }
    json_t *calls = json_object_get(m, "tool_calls"), *value = NULL;
    if (calls) {
        TRY(tool_calls(t, calls, i, &value, err));
        json_object_set_new(m, "tool_calls", value);
    }
    TRY(content(t, in, name, calls != NULL, i, &value, err));
    json_object_set_new(m, "content", value);
    return reasoning(t, m, calls != NULL, i, err);
}

enum nyb_code chat_input_normalize(const struct chat_traits *traits, const json_t *messages, json_t **out,
                                   struct nyb_err *err)
{
    *out = NULL;
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return err_at(err, NYB_E_ARG, "messages", -1, "expected an array of at least one message, found %s",
                      json_is_array(messages) ? "an empty one" : type_name(messages));
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *in = json_array_get(messages, i);
        enum nyb_code code = NYB_OK;
        if (!json_is_object(in)) {
            struct path p = path_of(i, "");
            code = fail_type(&p, in, "an object", err);
        } else {
            json_t *m = json_copy((json_t *)(uintptr_t)in);
            drop_nulls(m);
            json_array_append_new(list, m);
            code = fill_message(traits, in, m, i, err);
        }
        if (code != NYB_OK) {
            json_decref(list);
            return code;
        }
    }
    *out = list;
    return NYB_OK;
}

enum nyb_code chat_input_check_tools(const json_t *tools, struct nyb_err *err)
{
    if (!json_is_array(tools))
        return err_at(err, NYB_E_ARG, "tools", -1, "expected an array, found %s", type_name(tools));
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        char where[40];
        snprintf(where, sizeof(where), "tools[%zu]", i);
        if (!json_is_object(tool))
            return err_at(err, NYB_E_ARG, where, -1, "expected an object, found %s", type_name(tool));
    }
    return NYB_OK;
}
