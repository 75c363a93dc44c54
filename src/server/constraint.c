#include "server/constraint.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/params_json.h"
#include "server/tool_choice.h"
#include "text/grammar.h"
#include "text/parse_format.h"

/* A constraint as it is found in a request. */
struct found {
    struct request_job *j;
    const char *name; /* of the parameter; NULL: none so far */
    enum nyb_constraint kind;
    const char *text;
    const char *whitespace;
    struct nyb_err *err;
};

static bool given(const json_t *v)
{
    return v && !json_is_null(v);
}

static enum nyb_code take(struct found *f, const char *name, enum nyb_constraint kind, const char *text)
{
    if (f->name && !strcmp(f->name, name))
        return err_at(f->err, NYB_E_ARG, name, -1,
                      "%s must have one constraint only, for an answer cannot have more. (parameter=%s)",
                      name, name);
    if (f->name)
        return err_at(f->err, NYB_E_ARG, name, -1,
                      "%s and %s cannot be given together: an answer has one constraint. (parameter=%s)",
                      f->name, name, name);
    f->name = name;
    f->kind = kind;
    f->text = text;
    return NYB_OK;
}

static const char *dump(struct found *f, const json_t *v)
{
    char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    const char *kept = arena_strdup(&f->j->arena, text ? text : "null");
    free(text);
    return kept;
}

/* ---- one value each -------------------------------------------------------------------------------- */

/* A schema as JSON, or as a string that holds it. */
static enum nyb_code take_schema(struct found *f, const char *name, const json_t *v)
{
    if (!json_is_object(v) && !json_is_boolean(v) && !json_is_string(v))
        return params_wrong_type(f->err, name, "a JSON schema", v);
    return take(f, name, NYB_CONSTRAINT_JSON_SCHEMA, json_is_string(v) ? json_string_value(v) : dump(f, v));
}

static enum nyb_code take_text(struct found *f, const char *name, enum nyb_constraint kind, const json_t *v)
{
    if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
        return params_wrong_type(f->err, name, "a string without NUL characters", v);
    return take(f, name, kind, json_string_value(v));
}

static enum nyb_code take_choice(struct found *f, const char *name, const json_t *v)
{
    json_t *item;
    size_t i;
    if (!json_is_array(v) || json_array_size(v) == 0)
        return params_wrong_type(f->err, name, "a list of at least one string", v);
    json_array_foreach(v, i, item)
    {
        if (!json_is_string(item) || json_string_length(item) == 0)
            return params_wrong_type(f->err, name, "a list of strings that are not empty", item);
    }
    return take(f, name, NYB_CONSTRAINT_CHOICE, dump(f, v));
}

static enum nyb_code take_switch(struct found *f, const char *name, const json_t *v)
{
    if (!json_is_boolean(v))
        return params_wrong_type(f->err, name, "a boolean", v);
    return json_is_true(v) ? take(f, name, NYB_CONSTRAINT_JSON_OBJECT, NULL) : NYB_OK;
}

/* {"structures": [...], "triggers": [...]}, or a string that holds it. */
static enum nyb_code take_tags(struct found *f, const char *name, const json_t *v)
{
    if (json_is_string(v))
        return take(f, name, NYB_CONSTRAINT_TAGS, json_string_value(v));
    if (!json_is_object(v))
        return params_wrong_type(f->err, name, "an object with structures and triggers", v);
    return take(f, name, NYB_CONSTRAINT_TAGS, dump(f, v));
}

enum form { SCHEMA, REGEX, CHOICE, GRAMMAR, SWITCH, TAGS };

static enum nyb_code take_form(struct found *f, const char *name, enum form form, const json_t *v)
{
    switch (form) {
    case SCHEMA:
        return take_schema(f, name, v);
    case REGEX:
        return take_text(f, name, NYB_CONSTRAINT_REGEX, v);
    case CHOICE:
        return take_choice(f, name, v);
    case GRAMMAR:
        return take_text(f, name, NYB_CONSTRAINT_GRAMMAR, v);
    case SWITCH:
        return take_switch(f, name, v);
    default:
        return take_tags(f, name, v);
    }
}

static const char response_format[] = "response_format";

/* ---- response_format ------------------------------------------------------------------------------- */

static enum nyb_code read_response_format(struct found *f, const json_t *body)
{
    const char *const name = response_format;
    const json_t *v = json_object_get(body, name);
    if (!given(v))
        return NYB_OK;
    const char *type = json_string_value(json_object_get(v, "type"));
    if (!type)
        return params_wrong_type(f->err, name, "an object with a type", v);
    if (!strcmp(type, "text"))
        return NYB_OK;
    if (!strcmp(type, "json_object")) {
        const json_t *schema = json_object_get(v, "schema"); /* llama.cpp's; {} is any object */
        bool any = !given(schema) || (json_is_object(schema) && json_object_size(schema) == 0);
        return any ? take(f, name, NYB_CONSTRAINT_JSON_OBJECT, NULL) : take_schema(f, name, schema);
    }
    if (!strcmp(type, "structural_tag"))
        return take_tags(f, name, v);
    if (strcmp(type, "json_schema"))
        return err_at(f->err, NYB_E_ARG, name, -1,
                      "response_format must be of type text, json_object, json_schema or structural_tag, got "
                      "\"%.40s\". (parameter=response_format, value=%.40s)",
                      type, type);
    const json_t *outer = json_object_get(v, "json_schema"), *schema = json_object_get(outer, "schema");
    if (!json_is_object(outer))
        return err_at(f->err, NYB_E_ARG, name, -1,
                      "response_format of type json_schema must have a json_schema with a schema. "
                      "(parameter=response_format)");
    /* OpenAI lets the schema be absent: any object then. */
    return schema ? take_schema(f, name, schema) : take(f, name, NYB_CONSTRAINT_JSON_OBJECT, NULL);
}

/* ---- guided_*, other servers' names, and structured_outputs -------------------------------------------- */

static enum nyb_code read_guided(struct found *f, const json_t *body)
{
    static const struct {
        const char *name;
        enum form form;
    } table[] = {{"guided_json", SCHEMA},     {"guided_regex", REGEX},        {"guided_choice", CHOICE},
                 {"guided_grammar", GRAMMAR}, {"guided_json_object", SWITCH}, {"structural_tag", TAGS}};
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        const json_t *v = json_object_get(body, table[i].name);
        if (given(v))
            TRY(take_form(f, table[i].name, table[i].form, v));
    }
    const json_t *space = json_object_get(body, "guided_whitespace_pattern");
    if (given(space) && !json_is_string(space))
        return params_wrong_type(f->err, "guided_whitespace_pattern", "a string", space);
    f->whitespace = json_string_value(space);
    return NYB_OK;
}

/* llama.cpp's and SGLang's. Their clients send empty ones where they mean none. */
static enum nyb_code read_others(struct found *f, const json_t *body)
{
    static const struct {
        const char *name;
        enum form form;
    } table[] = {{"grammar", GRAMMAR}, {"json_schema", SCHEMA}, {"regex", REGEX}, {"ebnf", GRAMMAR}};
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        const json_t *v = json_object_get(body, table[i].name);
        if (given(v) && !(json_is_string(v) && json_string_length(v) == 0))
            TRY(take_form(f, table[i].name, table[i].form, v));
    }
    return NYB_OK;
}

/* vLLM's later form of the same. */
static enum nyb_code read_structured(struct found *f, const json_t *body)
{
    static const char name[] = "structured_outputs";
    static const struct {
        const char *key;
        enum form form;
    } table[] = {{"json", SCHEMA},     {"regex", REGEX},        {"choice", CHOICE},
                 {"grammar", GRAMMAR}, {"json_object", SWITCH}, {"structural_tag", TAGS}};
    const json_t *v = json_object_get(body, name), *space = json_object_get(v, "whitespace_pattern");
    bool compact = false;
    if (!given(v))
        return NYB_OK;
    if (!json_is_object(v))
        return params_wrong_type(f->err, name, "an object", v);
    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (given(json_object_get(v, table[i].key)))
            TRY(take_form(f, name, table[i].form, json_object_get(v, table[i].key)));
    if (given(space) && !json_is_string(space))
        return params_wrong_type(f->err, name, "an object whose whitespace_pattern is a string", space);
    TRY(params_bool(v, "disable_any_whitespace", &compact, f->err));
    if (given(space) || compact)
        f->whitespace = compact ? "" : json_string_value(space);
    return NYB_OK;
}

/* ---- tools ----------------------------------------------------------------------------------------- */

static bool has_format(const struct found *f)
{
    return f->name && !strcmp(f->name, response_format);
}

/* The schema of a response_format that was found; NULL: there is none, or its text cannot be read. */
static json_t *format_schema(const struct found *f)
{
    if (!has_format(f))
        return NULL;
    if (f->kind == NYB_CONSTRAINT_JSON_OBJECT)
        return json_pack("{s:s, s:b}", "type", "object", "additionalProperties", 1);
    return f->kind == NYB_CONSTRAINT_JSON_SCHEMA ? json_loads(f->text, JSON_DECODE_ANY, NULL) : NULL;
}

/* With a response_format an answer is calls, or what the format says: the two are one constraint. */
static enum nyb_code read_tools(struct found *f)
{
    struct request_job *j = f->j;
    const char *text = NULL, *name = NULL;
    if (!gen_is_chat(j->g))
        return NYB_OK;
    json_t *content = format_schema(f);
    if (!content && has_format(f) && f->kind == NYB_CONSTRAINT_JSON_SCHEMA)
        return NYB_OK; /* the engine refuses the schema, and says why */
    enum nyb_code code = tool_choice_constraint(j->g, j->body, content, &j->arena, &name, &text, f->err);
    j->format_joined = content && text;
    if (j->format_joined)
        f->name = NULL; /* it is part of the text */
    json_decref(content);
    TRY(code);
    return text ? take(f, name, NYB_CONSTRAINT_TAGS, text) : NYB_OK;
}

/* ---- reasoning ------------------------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' '))
        n--;
    return n >= m && !memcmp(text + n - m, end, m);
}

/* Three cases: the prompt opens the reasoning; it closed it, as templates do to turn it off; or the model
 * may begin it by itself. */
static void set_reasoning(struct request_job *j)
{
    const struct parse_format *format = j->s->format;
    const char *prompt = j->g->prompt_text ? j->g->prompt_text : "";
    struct nyb_sampling *s = &j->sampling;
    if (!gen_is_chat(j->g) || !format->think_close || ends_with(prompt, format->think_close))
        return;
    s->constraint_think_close = format->think_close;
    if (!parse_format_opens(format, prompt, strlen(prompt)))
        s->constraint_think_open = format->think_open;
}

/* ---- exported --------------------------------------------------------------------------------------- */

enum nyb_code constraint_read(struct request_job *j, struct nyb_err *err)
{
    struct found f = {.j = j, .err = err};
    TRY(read_response_format(&f, j->body));
    TRY(read_guided(&f, j->body));
    TRY(read_others(&f, j->body));
    TRY(read_structured(&f, j->body));
    TRY(read_tools(&f));
    if (!f.name)
        return NYB_OK;
    j->constraint_name = f.name;
    j->sampling.constraint = f.kind;
    j->sampling.constraint_text = f.text;
    j->sampling.constraint_whitespace = f.whitespace;
    set_reasoning(j);
    return NYB_OK;
}

enum nyb_code constraint_blame(const struct request_job *j, enum nyb_code code, struct nyb_err *err)
{
    if (code == NYB_OK || !err || strcmp(err->where, "constraint") || !j->constraint_name)
        return code;
    size_t n = strlen(err->message);
    bool format = j->format_joined && strstr(err->message, GRAMMAR_CONTENT "#");
    const char *name = format ? response_format : j->constraint_name;
    snprintf(err->where, sizeof(err->where), "%s", name);
    snprintf(err->message + n, sizeof(err->message) - n, ". (parameter=%s)", name);
    return code;
}
