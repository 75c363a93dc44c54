/* Statements. */
#include <string.h>

#include "text/jinja_op.h"
#include "text/jinja_repr.h"
#include "text/jinja_run.h"

struct jval jexec_capture(struct jrun *r, struct jscope *scope, const struct jnode *body)
{
    struct jtext text = {.h = &r->h}, *out = r->out;
    struct jscope *outer = r->scope;
    r->out = &text;
    r->scope = scope;
    jexec(r, body);
    r->out = out;
    r->scope = outer;
    return jval_str(jtext_take(&text));
}

/* A keyword argument of this name, once. */
static const struct jkw *take_kw(const struct jargs *a, bool *used, const char *name, size_t len)
{
    for (size_t i = 0; i < a->n_kw; i++)
        if (!used[i] && a->kw[i].name->len == len && !memcmp(a->kw[i].name->p, name, len)) {
            used[i] = true;
            return &a->kw[i];
        }
    return NULL;
}

/* What no parameter took, as the names varargs and kwargs. */
static void bind_rest(struct jrun *r, const struct jmacro_def *def, const struct jargs *a, const bool *used,
                      struct jval *varargs, struct jval *kwargs)
{
    const char *name = def->name ? def->name->text : "caller";
    struct jlist *rest = jlist_new(&r->h, 0);
    struct jdict *named = jdict_new(&r->h, 0);
    for (size_t i = def->n_param; i < a->n; i++)
        jlist_add(&r->h, rest, a->at[i]);
    for (size_t i = 0; i < a->n_kw; i++)
        if (!used[i])
            jdict_set(&r->h, named, jval_str(a->kw[i].name), a->kw[i].value);
    if (rest->n && !def->uses_varargs)
        jheap_fail(&r->h, "macro '%.80s' takes not more than %zu argument(s)", name, def->n_param);
    if (named->n && !def->uses_kwargs)
        jheap_fail(&r->h, "macro '%.80s' takes no keyword argument '%.*s'", name,
                   named->key[0].s->len < 60 ? (int)named->key[0].s->len : 60, named->key[0].s->p);
    *varargs = jval_tuple(rest);
    *kwargs = jval_dict(named);
}

/* Bind a name that the template may not even use. */
static void set_special(struct jrun *r, struct jscope *s, const struct jname *name, struct jval v)
{
    if (name)
        jscope_set(r, s, name, v);
}

static struct jval run_macro(struct jrun *r, const struct jmacro *m, const struct jargs *a)
{
    const struct jmacro_def *def = m->def;
    struct jscope *s = jscope_new(r, m->scope), *outer = r->scope;
    bool *used = jheap_alloc(&r->h, a->n_kw, sizeof(*used));
    struct jval varargs, kwargs;
    for (size_t i = 0; i < def->n_param; i++) {
        const struct jkw *kw = i < a->n ? NULL : take_kw(a, used, def->param[i]->text, def->param[i]->len);
        if (i < a->n || kw)
            jscope_set(r, s, def->param[i], kw ? kw->value : a->at[i]);
    }
    const struct jkw *caller = def->uses_caller ? take_kw(a, used, "caller", 6) : NULL;
    bind_rest(r, def, a, used, &varargs, &kwargs);
    set_special(r, s, r->name_caller, caller ? caller->value : jval_undefined("caller"));
    if (def->uses_varargs)
        set_special(r, s, r->name_varargs, varargs);
    if (def->uses_kwargs)
        set_special(r, s, r->name_kwargs, kwargs);
    r->scope = s; /* defaults see the parameters before them */
    for (size_t i = 0; i < def->n_param; i++) {
        bool given = i < a->n;
        for (size_t j = 0; j < s->n && !given; j++)
            given = s->at[j].name == def->param[i];
        if (!given)
            jscope_set(r, s, def->param[i],
                       def->preset[i] ? jeval(r, def->preset[i]) : jval_undefined(def->param[i]->text));
    }
    r->scope = outer;
    return jexec_capture(r, s, def->body);
}

struct jval jexec_macro(struct jrun *r, const struct jmacro *m, const struct jargs *a)
{
    jeval_enter(r);
    struct jval v = run_macro(r, m, a);
    r->h.depth--;
    return v;
}

static struct jval new_macro(struct jrun *r, const struct jmacro_def *def)
{
    struct jmacro *m = jheap_alloc(&r->h, 1, sizeof(*m));
    m->def = def;
    m->scope = r->scope;
    for (struct jscope *s = r->scope; s && !s->captured; s = s->up)
        s->captured = true;
    return (struct jval){.type = J_MACRO, .macro = m};
}

static void exec_call_block(struct jrun *r, const struct jnode *node)
{
    struct jargs a;
    const struct jnode *call = node->a;
    struct jval callee = jeval(r, call->a);
    jeval_args(r, call->arg, call->n_arg, &a);
    struct jkw *kw = jheap_alloc(&r->h, a.n_kw + 1, sizeof(*kw));
    if (a.n_kw)
        memcpy(kw, a.kw, a.n_kw * sizeof(*kw));
    kw[a.n_kw] = (struct jkw){jval_lit(&r->h, "caller").s, new_macro(r, node->macro)};
    a.kw = kw;
    a.n_kw++;
    jrepr_add_str(r->out, jeval_call(r, callee, &a));
}

static void set_attribute(struct jrun *r, const struct jnode *target, struct jval v)
{
    struct jval ns = jexec_lookup(r, target->name);
    if (ns.type != J_NAMESPACE)
        jheap_fail(&r->h, "cannot assign attribute on non-namespace object");
    jdict_set(&r->h, ns.dict, target->value, v);
}

static void assign(struct jrun *r, const struct jnode *target, struct jval v)
{
    if (target->kind == JN_NSREF)
        set_attribute(r, target, v);
    else
        jscope_assign(r, r->scope, target, v);
}

static enum jflow exec_if(struct jrun *r, const struct jnode *node)
{
    for (size_t i = 0; i < node->n; i += 2)
        if (jval_truth(jeval(r, node->list[i])))
            return jexec(r, node->list[i + 1]);
    return node->c ? jexec(r, node->c) : JFLOW_NEXT;
}

static enum jflow exec_scope(struct jrun *r, struct jscope *s, const struct jnode *body)
{
    struct jscope *outer = r->scope;
    r->scope = s;
    enum jflow flow = jexec(r, body);
    r->scope = outer;
    return flow;
}

/* Values see the names around the block, not those of the block. */
static enum jflow exec_with(struct jrun *r, const struct jnode *node)
{
    struct jscope *s = jscope_new(r, r->scope);
    for (size_t i = 0; i + 1 < node->n; i += 2)
        jscope_assign(r, s, node->list[i], jeval(r, node->list[i + 1]));
    return exec_scope(r, s, node->list[node->n - 1]);
}

static enum jflow exec_body(struct jrun *r, const struct jnode *node)
{
    for (size_t i = 0; i < node->n; i++) {
        enum jflow flow = jexec(r, node->list[i]);
        if (flow != JFLOW_NEXT)
            return flow;
    }
    return JFLOW_NEXT;
}

static enum jflow exec(struct jrun *r, const struct jnode *node)
{
    struct jval v;
    switch (node->kind) {
    case JN_BODY:
        return exec_body(r, node);
    case JN_DATA:
        jtext_add_str(r->out, node->value.s);
        return JFLOW_NEXT;
    case JN_OUTPUT:
        jrepr_add_str(r->out, jeval(r, node->a));
        return JFLOW_NEXT;
    case JN_IF:
        return exec_if(r, node);
    case JN_FOR:
        return jloop_exec(r, node);
    case JN_SET:
        assign(r, node->a, jeval(r, node->b));
        return JFLOW_NEXT;
    case JN_SET_BLOCK:
        v = jexec_capture(r, jscope_new(r, r->scope), node->list[0]);
        assign(r, node->a, node->b ? jeval_filters(r, node->b, v) : v);
        return JFLOW_NEXT;
    case JN_MACRO:
        jscope_set(r, r->scope, node->name, new_macro(r, node->macro));
        return JFLOW_NEXT;
    case JN_CALL_BLOCK:
        exec_call_block(r, node);
        return JFLOW_NEXT;
    case JN_FILTER_BLOCK:
        v = jexec_capture(r, jscope_new(r, r->scope), node->list[0]);
        jrepr_add_str(r->out, jeval_filters(r, node->b, v));
        return JFLOW_NEXT;
    case JN_WITH:
        return exec_with(r, node);
    case JN_SCOPE:
        return exec_scope(r, jscope_new(r, r->scope), node->list[0]);
    case JN_BREAK:
        return JFLOW_BREAK;
    default:
        return JFLOW_CONTINUE;
    }
}

enum jflow jexec(struct jrun *r, const struct jnode *node)
{
    jeval_enter(r);
    r->h.line = node->line;
    enum jflow flow = exec(r, node);
    r->h.depth--;
    return flow;
}
