#include "text/chat.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/chat_input.h"
#include "text/chat_vars.h"
#include "text/jinja.h"

struct chat_variant {
    struct jinja_template *jinja; /* NULL: none */
    struct chat_traits traits;
};

struct chat_template {
    struct chat_variant plain, with_tools;
    json_t *tokens; /* object */
};

/* ---- Rendering ---- */

struct vars {
    struct jinja_var *at;
    size_t n;
};

static void add_var(struct vars *v, const char *name, const json_t *value, bool input)
{
    v->at[v->n++] = (struct jinja_var){name, value, input, false};
}

/* Later ones win: the request may replace a special token, whose text then counts as input. */
static struct vars make_vars(const json_t *tokens, const struct chat_input *in, const json_t *messages,
                             const json_t *tools, const json_t *agp)
{
    struct vars v = {0};
    const char *key;
    json_t *value;
    v.at = mem_alloc(4 + json_object_size(tokens) + json_object_size(in->kwargs), sizeof(*v.at));
    add_var(&v, "documents", NULL, true);
    json_object_foreach((json_t *)(uintptr_t)tokens, key, value) add_var(&v, key, value, false);
    json_object_foreach((json_t *)(uintptr_t)in->kwargs, key, value) add_var(&v, key, value, true);
    add_var(&v, "messages", messages, true);
    v.at[v.n - 1].has_roles = true;
    add_var(&v, "tools", tools, true);
    add_var(&v, "add_generation_prompt", agp, true);
    return v;
}

static enum nyb_code run(const struct jinja_template *jinja, const json_t *tokens,
                         const struct chat_input *in, const json_t *messages, const json_t *tools,
                         struct jinja_output *out, struct nyb_err *err)
{
    json_t *agp = json_boolean(in->add_generation_prompt);
    struct vars v = make_vars(tokens, in, messages, tools, agp);
    enum nyb_code code = jinja_render(jinja, v.at, v.n, in->now, out, err);
    free(v.at);
    json_decref(agp);
    return code;
}

static void take_output(struct jinja_output *o, struct chat_prompt *out)
{
    size_t at = 0;
    out->text = o->text;
    out->n_span = o->n_part;
    out->span = mem_alloc(o->n_part, sizeof(*out->span));
    for (size_t i = 0; i < o->n_part; i++) {
        out->span[i] = (struct tok_span){out->text.data + at, o->part[i].len, !o->part[i].input};
        at += o->part[i].len;
    }
    o->text = (struct buf){0};
    jinja_output_free(o);
}

static enum nyb_code check_kwargs(const json_t *kwargs, struct nyb_err *err)
{
    static const char *const taken[] = {"messages", "tools", "add_generation_prompt"};
    if (kwargs && !json_is_object(kwargs))
        return err_at(err, NYB_E_ARG, "chat_template_kwargs", -1, "expected an object");
    for (size_t i = 0; i < COUNT_OF(taken); i++)
        if (json_object_get(kwargs, taken[i]))
            return err_at(err, NYB_E_ARG, "chat_template_kwargs", -1, "%s is a field of the request itself",
                          taken[i]);
    return NYB_OK;
}

enum nyb_code chat_render(const struct chat_template *t, const struct chat_input *in, struct chat_prompt *out,
                          struct nyb_err *err)
{
    memset(out, 0, sizeof(*out));
    TRY(check_kwargs(in->kwargs, err));
    const json_t *messages = in->messages, *tools = in->tools;
    json_t *fit = NULL;
    bool has_tools = json_array_size(tools) > 0;
    const struct chat_variant *variant =
        (has_tools && t->with_tools.jinja) || !t->plain.jinja ? &t->with_tools : &t->plain;
    if (!in->verbatim) {
        if (tools)
            TRY(chat_input_check_tools(tools, err));
        tools = has_tools ? tools : NULL;
        TRY(chat_input_normalize(&variant->traits, messages, &fit, err));
        messages = fit;
    }
    struct jinja_output o;
    enum nyb_code code = run(variant->jinja, t->tokens, in, messages, tools, &o, err);
    if (code == NYB_OK)
        take_output(&o, out);
    json_decref(fit);
    return code;
}

void chat_prompt_free(struct chat_prompt *p)
{
    buf_free(&p->text);
    free(p->span);
    memset(p, 0, sizeof(*p));
}

/* ---- What a template can take ---- */

/* Conversations that differ in one thing. Names are such as no template writes itself. */
#define CALL(arguments)                                                                                \
    "\"tool_calls\":[{\"id\":\"callqzqz1\",\"type\":\"function\",\"function\":{\"name\":\"qzcallqz\"," \
    "\"arguments\":" arguments "}}]"
#define HISTORY(content, arguments)                                                              \
    "[{\"role\":\"user\",\"content\":\"qzuserqz\"},{\"role\":\"assistant\",\"content\":" content \
    "," CALL(arguments) "},{\"role\":\"tool\",\"tool_call_id\":\"callqzqz1\",\"content\":\"qztoolqz\"}]"
#define PARTS(text)     "[{\"type\":\"text\",\"text\":\"" text "\"}]"
#define ARGUMENT_OBJECT "{\"k\":\"qzvalueqz\"}"
#define ARGUMENT_TEXT   "\"{\\\"k\\\": \\\"qzvalueqz\\\"}\""
#define PROBE_TOOLS                                                                                       \
    "[{\"type\":\"function\",\"function\":{\"name\":\"qzcallqz1\",\"description\":\"d\",\"parameters\":{" \
    "\"type\":\"object\",\"properties\":{\"k\":{\"type\":\"string\",\"description\":\"d\"}}}}}]"

/* Does the template render these messages, and do all the words (up to a NULL) come out? A word that begins
 * with '!' must not. */
static bool probe(const struct jinja_template *jinja, const json_t *tokens, const char *messages, bool tools,
                  const char *const *words)
{
    struct nyb_err err;
    struct jinja_output o = {0};
    struct chat_input in = {.now = 1};
    json_t *m = json_loads(messages, 0, NULL), *t = tools ? json_loads(PROBE_TOOLS, 0, NULL) : NULL;
    ASSERT(m);
    bool ok = run(jinja, tokens, &in, m, t, &o, &err) == NYB_OK;
    for (; ok && *words; words++) {
        bool absent = **words == '!';
        const char *word = *words + absent;
        ok = o.text.len && (memmem(o.text.data, o.text.len, word, strlen(word)) != NULL) != absent;
    }
    jinja_output_free(&o);
    json_decref(m);
    json_decref(t);
    return ok;
}

#define PROBE(messages, tools, ...) \
    probe(jinja, tokens, messages, tools, (const char *const[]){__VA_ARGS__, NULL})

static void find_content_traits(const struct jinja_template *jinja, const json_t *tokens,
                                struct chat_traits *t)
{
    t->takes_parts_user =
        PROBE("[{\"role\":\"user\",\"content\":" PARTS(
                  "qzaqz") "},"
                           "{\"role\":\"assistant\",\"content\":" PARTS(
                               "qzbqz") "},"
                                        "{\"role\":\"user\",\"content\":" PARTS("qzcqz") "}]",
              false, "qzaqz", "qzbqz", "qzcqz", "!'text'", "!\"text\"");
    t->takes_parts_system = PROBE(
        "[{\"role\":\"system\",\"content\":" PARTS("qzaqz") "},"
                                                            "{\"role\":\"user\",\"content\":\"qzbqz\"}]",
        false, "qzaqz", "qzbqz", "!'text'", "!\"text\"");
    t->needs_parts =
        t->takes_parts_user && !PROBE("[{\"role\":\"user\",\"content\":\"qzaqz\"}]", false, "qzaqz");
}

static void find_call_traits(const struct jinja_template *jinja, const json_t *tokens, struct chat_traits *t)
{
    bool object = PROBE(HISTORY("null", ARGUMENT_OBJECT), true, "qzcallqz", "qzvalueqz", "qztoolqz") ||
                  PROBE(HISTORY("\"\"", ARGUMENT_OBJECT), true, "qzcallqz", "qzvalueqz", "qztoolqz");
    bool text =
        !object && (PROBE(HISTORY("null", ARGUMENT_TEXT), true, "qzcallqz", "qzvalueqz", "qztoolqz") ||
                    PROBE(HISTORY("\"\"", ARGUMENT_TEXT), true, "qzcallqz", "qzvalueqz", "qztoolqz"));
    t->arguments_as_text = text;
    const char *null_history = text ? HISTORY("null", ARGUMENT_TEXT) : HISTORY("null", ARGUMENT_OBJECT);
    const char *empty_history = text ? HISTORY("\"\"", ARGUMENT_TEXT) : HISTORY("\"\"", ARGUMENT_OBJECT);
    t->takes_null = PROBE(null_history, true, "qzvalueqz", "!None", "!null");
    t->needs_null = t->takes_null && !PROBE(empty_history, true, "qzvalueqz");
}

static void find_traits(struct chat_variant *v, const char *source, const json_t *tokens)
{
    const struct jinja_template *jinja = v->jinja;
    find_content_traits(jinja, tokens, &v->traits);
    find_call_traits(jinja, tokens, &v->traits);
    /* Templates that print any role print this one too, though their models never saw it. */
    v->traits.takes_developer =
        strstr(source, "developer") && PROBE("[{\"role\":\"developer\",\"content\":\"qzaqz\"},"
                                             "{\"role\":\"user\",\"content\":\"qzbqz\"}]",
                                             false, "qzaqz", "qzbqz");
    v->traits.takes_thinking = strstr(source, ".thinking") && !strstr(source, "reasoning_content");
}

/* ---- Opening ---- */

static enum nyb_code open_variant(struct chat_variant *v, const char *source, const json_t *tokens,
                                  struct nyb_err *err)
{
    if (!source)
        return NYB_OK;
    TRY(jinja_open(&v->jinja, source, strlen(source), err));
    find_traits(v, source, tokens);
    return NYB_OK;
}

enum nyb_code chat_open(struct chat_template **out, const char *folder, const char *override_path,
                        struct nyb_err *err)
{
    struct chat_source source;
    *out = NULL;
    TRY(chat_vars_load(&source, folder, override_path, err));
    if (!source.text && !source.tool_text) {
        chat_vars_free(&source);
        return NYB_OK;
    }
    struct chat_template *t = mem_alloc(1, sizeof(*t));
    t->tokens = json_incref(source.tokens);
    enum nyb_code code = open_variant(&t->plain, source.text, t->tokens, err);
    if (code == NYB_OK)
        code = open_variant(&t->with_tools, source.tool_text, t->tokens, err);
    chat_vars_free(&source);
    if (code != NYB_OK) {
        chat_close(t);
        return code;
    }
    *out = t;
    return NYB_OK;
}

void chat_close(struct chat_template *t)
{
    if (!t)
        return;
    jinja_close(t->plain.jinja);
    jinja_close(t->with_tools.jinja);
    json_decref(t->tokens);
    free(t);
}
