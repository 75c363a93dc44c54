#include "text/jinja.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "text/jinja_func.h"
#include "text/jinja_parse.h"
#include "text/jinja_run.h"
#include "text/utf8.h"

struct jinja_template {
    struct jheap heap; /* tree, names, constants */
    const struct jnode *body;
    const struct jname **name; /* (n_name) by id */
    size_t n_name;
};

static enum nyb_code report(const struct jheap *h, struct nyb_err *err)
{
    char where[64];
    if (h->is_message)
        return err_set(err, NYB_E_TEMPLATE, "%s", h->message);
    snprintf(where, sizeof(where), "chat template, line %d", h->line);
    return err_at(err, NYB_E_TEMPLATE, where, -1, "%s", h->message);
}

static void parse(struct jinja_template *t, const char *source, size_t len)
{
    struct jparser p = {.h = &t->heap};
    t->body = jparse_template(&p, source, len);
    t->n_name = p.n_name;
    t->name = jheap_alloc(&t->heap, p.n_name, sizeof(*t->name));
    for (const struct jname *n = p.names; n; n = n->next)
        t->name[n->id] = n;
}

enum nyb_code jinja_open(struct jinja_template **out, const char *source, size_t len, struct nyb_err *err)
{
    *out = NULL;
    if (len > JINJA_SOURCE_MAX)
        return err_at(err, NYB_E_TEMPLATE, "chat template", -1, "it has %zu bytes, the limit is %u", len,
                      JINJA_SOURCE_MAX);
    size_t valid = utf8_valid_prefix(source, len);
    if (valid != len)
        return err_at(err, NYB_E_TEMPLATE, "chat template", (int64_t)valid, "it is not valid UTF-8");
    struct jinja_template *t = mem_alloc(1, sizeof(*t));
    jheap_init(&t->heap, JINJA_HEAP_BASE + len * 400, JINJA_STEPS_BASE + len * 20);
    if (setjmp(t->heap.on_fail)) {
        enum nyb_code code = report(&t->heap, err);
        jinja_close(t);
        return code;
    }
    parse(t, source, len);
    *out = t;
    return NYB_OK;
}

void jinja_close(struct jinja_template *t)
{
    if (!t)
        return;
    jheap_free(&t->heap);
    free(t);
}

/* What the input asks for in bytes and in values, to set the limits by. */
static void measure(const json_t *json, size_t *bytes, size_t *values, int depth)
{
    ++*values;
    *bytes += 32;
    if (json_is_string(json))
        *bytes += json_string_length(json);
    if (depth > JINJA_VALUE_DEPTH_MAX)
        return; /* jval_from_json refuses it */
    size_t i;
    const char *key;
    json_t *item;
    if (json_is_array(json)) {
        json_array_foreach((json_t *)(uintptr_t)json, i, item) measure(item, bytes, values, depth + 1);
    } else if (json_is_object(json)) {
        json_object_foreach((json_t *)(uintptr_t)json, key, item)
        {
            *bytes += strlen(key);
            measure(item, bytes, values, depth + 1);
        }
    }
}

/* A constant that the template can look at, or what it calls. */
static struct jval global(const struct jname *name)
{
    const struct jfunc *func = jfunc_find(name->text);
    return func ? (struct jval){.type = J_FUNC, .func = func} : (struct jval){.type = J_MISSING};
}

/* Roles that every chat format knows are as good as the template's own words: "<|" + role + "|>" spells out
 * what the template means to, and a client can only choose among these words. Any other role stays input. */
static void trust_roles(struct jrun *r, struct jval messages)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    if (messages.type != J_LIST)
        return;
    struct jval key = jval_lit(&r->h, "role");
    for (size_t i = 0; i < messages.list->n; i++) {
        struct jval m = messages.list->at[i];
        const struct jval *role = m.type == J_DICT ? jdict_get(&r->h, m.dict, key) : NULL;
        for (size_t k = 0; role && role->type == J_STR && k < COUNT_OF(roles); k++)
            if (jstr_is(role->s, roles[k]))
                jdict_set(&r->h, m.dict, key, jval_lit(&r->h, roles[k]));
    }
}

static struct jval variable(struct jrun *r, const struct jinja_var *var)
{
    struct jval v = jval_from_json(&r->h, var->value, var->input);
    if (var->has_roles)
        trust_roles(r, v);
    return v;
}

static void bind_names(struct jrun *r, const struct jinja_template *t, const struct jinja_var *var,
                       size_t n_var)
{
    r->root = jheap_alloc(&r->h, t->n_name, sizeof(*r->root));
    for (size_t i = 0; i < t->n_name; i++) {
        const struct jname *name = t->name[i];
        r->root[i] = global(name);
        for (size_t v = 0; v < n_var; v++)
            if (!strcmp(var[v].name, name->text))
                r->root[i] = variable(r, &var[v]);
        if (!strcmp(name->text, "loop"))
            r->name_loop = name;
        else if (!strcmp(name->text, "caller"))
            r->name_caller = name;
        else if (!strcmp(name->text, "varargs"))
            r->name_varargs = name;
        else if (!strcmp(name->text, "kwargs"))
            r->name_kwargs = name;
    }
}

/* The text is complete: hand it to the caller in memory that outlives the heap. */
static void give_output(const struct jtext *text, struct jinja_output *out)
{
    buf_add(&out->text, text->p ? text->p : "", text->len);
    out->part = mem_alloc(text->n_seg, sizeof(*out->part));
    for (size_t i = 0; i < text->n_seg; i++)
        out->part[i] = (struct jinja_part){text->seg[i].len, text->seg[i].input};
    out->n_part = text->n_seg;
}

static void render(struct jrun *r, const struct jinja_template *t, const struct jinja_var *var, size_t n_var,
                   struct jinja_output *out)
{
    struct jtext text = {.h = &r->h};
    struct jscope root = {0};
    bind_names(r, t, var, n_var);
    r->out = &text;
    r->scope = &root;
    jexec(r, t->body);
    give_output(&text, out);
}

enum nyb_code jinja_render(const struct jinja_template *t, const struct jinja_var *var, size_t n_var,
                           int64_t now, struct jinja_output *out, struct nyb_err *err)
{
    size_t bytes = 0, values = 0;
    memset(out, 0, sizeof(*out));
    for (size_t i = 0; i < n_var; i++)
        if (var[i].value)
            measure(var[i].value, &bytes, &values, 0);
    struct jrun *r = mem_alloc(1, sizeof(*r));
    jheap_init(&r->h, JINJA_HEAP_BASE + bytes * JINJA_HEAP_PER_BYTE,
               JINJA_STEPS_BASE + (uint64_t)values * JINJA_STEPS_PER_VALUE + bytes);
    r->now = now ? now : (int64_t)time(NULL);
    r->utc = now != 0;
    enum nyb_code code = NYB_OK;
    if (setjmp(r->h.on_fail) == 0)
        render(r, t, var, n_var, out);
    else
        code = report(&r->h, err);
    json_decref(r->parsed);
    jheap_free(&r->h);
    free(r);
    return code;
}

void jinja_output_free(struct jinja_output *o)
{
    buf_free(&o->text);
    free(o->part);
    memset(o, 0, sizeof(*o));
}
