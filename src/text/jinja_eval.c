/* Expressions to values. */
#include <string.h>

#include "text/jinja.h"
#include "text/jinja_access.h"
#include "text/jinja_filter.h"
#include "text/jinja_op.h"
#include "text/jinja_repr.h"
#include "text/jinja_run.h"
#include "text/jinja_test.h"

void jeval_enter(struct jrun *r)
{
    jheap_spend(&r->h, 1);
    if (++r->h.depth > JINJA_DEPTH_MAX)
        jheap_fail(&r->h, "the template nests evaluations deeper than %d", JINJA_DEPTH_MAX);
}

/* Add the items of *value or the pairs of **value. */
static void spread(struct jrun *r, const struct jarg *arg, struct jlist *at, struct jkw **kw, size_t *n_kw)
{
    struct jval v = jeval(r, arg->value);
    if (arg->is_list) {
        const struct jlist *items = jval_items(&r->h, v);
        for (size_t i = 0; i < items->n; i++)
            jlist_add(&r->h, at, items->at[i]);
        return;
    }
    if (v.type != J_DICT)
        jheap_fail(&r->h, "argument after ** must be a mapping, not %s", jval_type_name(v));
    struct jkw *more = jheap_alloc(&r->h, *n_kw + v.dict->n, sizeof(*more));
    if (*n_kw)
        memcpy(more, *kw, *n_kw * sizeof(*more));
    for (size_t i = 0; i < v.dict->n; i++) {
        if (v.dict->key[i].type != J_STR)
            jheap_fail(&r->h, "keywords must be strings");
        more[(*n_kw)++] = (struct jkw){v.dict->key[i].s, v.dict->value[i]};
    }
    *kw = more;
}

void jeval_args(struct jrun *r, const struct jarg *arg, size_t n, struct jargs *out)
{
    memset(out, 0, sizeof(*out));
    if (n == 0)
        return;
    struct jlist *at = jlist_new(&r->h, n);
    struct jkw *kw = NULL;
    size_t n_kw = 0;
    for (size_t i = 0; i < n; i++) {
        if (arg[i].is_list || arg[i].is_dict) {
            spread(r, &arg[i], at, &kw, &n_kw);
        } else if (arg[i].name) {
            if (!kw)
                kw = jheap_alloc(&r->h, n, sizeof(*kw));
            kw[n_kw++] = (struct jkw){jval_lit(&r->h, arg[i].name->text).s, jeval(r, arg[i].value)};
        } else {
            jlist_add(&r->h, at, jeval(r, arg[i].value));
        }
    }
    *out = (struct jargs){at->at, at->n, kw, n_kw};
}

struct jval jeval_call(struct jrun *r, struct jval callee, const struct jargs *a)
{
    switch (callee.type) {
    case J_FUNC:
        return callee.func->call(r, a);
    case J_METHOD:
        return callee.bound->method->call(r, callee.bound->self, a);
    case J_MACRO:
        return jexec_macro(r, callee.macro, a);
    case J_LOOP:
        return jloop_call(r, callee.loop, a);
    case J_JOINER:
        jargs_none(r, a, "joiner");
        return callee.cycle->at++ ? jval_str(callee.cycle->separator) : jval_lit(&r->h, "");
    case J_UNDEFINED:
        jval_fail_undefined(&r->h, callee);
    default:
        jheap_fail(&r->h, "'%s' object is not callable", jval_type_name(callee));
    }
}

static struct jval eval_call(struct jrun *r, const struct jnode *node)
{
    struct jargs a;
    struct jval callee = jeval(r, node->a);
    jeval_args(r, node->arg, node->n_arg, &a);
    r->h.line = node->line;
    return jeval_call(r, callee, &a);
}

static struct jval apply_filter(struct jrun *r, const struct jnode *node, struct jval v)
{
    struct jargs a;
    if (!node->filter)
        jheap_fail(&r->h, "No filter named '%.80s'.", node->name->text);
    jeval_args(r, node->arg, node->n_arg, &a);
    r->h.line = node->line;
    return node->filter->call(r, v, &a);
}

struct jval jeval_filters(struct jrun *r, const struct jnode *filter, struct jval v)
{
    jeval_enter(r);
    if (filter->a)
        v = jeval_filters(r, filter->a, v);
    v = apply_filter(r, filter, v);
    r->h.depth--;
    return v;
}

static struct jval eval_test(struct jrun *r, const struct jnode *node)
{
    struct jargs a;
    struct jval v = jeval(r, node->a);
    if (!node->test)
        jheap_fail(&r->h, "No test named '%.80s'.", node->name->text);
    jeval_args(r, node->arg, node->n_arg, &a);
    return jval_bool(node->test->call(r, v, &a));
}

static struct jval eval_item(struct jrun *r, const struct jnode *node)
{
    struct jval v = jeval(r, node->a), part[3];
    if (node->b->kind != JN_SLICE)
        return jaccess_item(r, v, jeval(r, node->b));
    for (size_t i = 0; i < 3; i++)
        part[i] = node->b->list[i] ? jeval(r, node->b->list[i]) : JVAL_NONE;
    return jaccess_slice(r, v, part[0], part[1], part[2]);
}

static struct jval eval_compare(struct jrun *r, const struct jnode *node)
{
    struct jval left = jeval(r, node->a);
    for (size_t i = 0; i < node->n; i++) {
        struct jval right = jeval(r, node->list[i]);
        if (!jop_compare(r, (enum jop)node->ops[i], left, right))
            return jval_bool(false);
        left = right;
    }
    return jval_bool(true);
}

static struct jval eval_concat(struct jrun *r, const struct jnode *node)
{
    struct jlist *parts = jlist_new(&r->h, node->n);
    for (size_t i = 0; i < node->n; i++)
        parts->at[i] = jeval(r, node->list[i]);
    struct jtext t = {.h = &r->h};
    for (size_t i = 0; i < node->n; i++)
        jrepr_add_str(&t, parts->at[i]);
    return jval_str(jtext_take(&t));
}

static struct jval eval_sequence(struct jrun *r, const struct jnode *node)
{
    struct jlist *list = jlist_new(&r->h, node->n);
    for (; list->n < node->n; list->n++)
        list->at[list->n] = jeval(r, node->list[list->n]);
    return node->kind == JN_LIST ? jval_list(list) : jval_tuple(list);
}

static struct jval eval_dict(struct jrun *r, const struct jnode *node)
{
    struct jdict *d = jdict_new(&r->h, node->n / 2);
    for (size_t i = 0; i < node->n; i += 2) {
        struct jval key = jeval(r, node->list[i]);
        jdict_set(&r->h, d, key, jeval(r, node->list[i + 1]));
    }
    return jval_dict(d);
}

static struct jval eval_cond(struct jrun *r, const struct jnode *node)
{
    if (jval_truth(jeval(r, node->b)))
        return jeval(r, node->a);
    return node->c ? jeval(r, node->c) : jval_undefined("the inline if-expression without else");
}

static struct jval eval(struct jrun *r, const struct jnode *node)
{
    struct jval v;
    switch (node->kind) {
    case JN_CONST:
        return node->value;
    case JN_NAME:
        return jexec_lookup(r, node->name);
    case JN_TUPLE:
    case JN_LIST:
        return eval_sequence(r, node);
    case JN_DICT:
        return eval_dict(r, node);
    case JN_ATTR:
        return jaccess_attr(r, jeval(r, node->a), node->value.s);
    case JN_ITEM:
        return eval_item(r, node);
    case JN_CALL:
        return eval_call(r, node);
    case JN_FILTER:
        return apply_filter(r, node, jeval(r, node->a));
    case JN_TEST:
        return eval_test(r, node);
    case JN_COND:
        return eval_cond(r, node);
    case JN_OR:
        v = jeval(r, node->a);
        return jval_truth(v) ? v : jeval(r, node->b);
    case JN_AND:
        v = jeval(r, node->a);
        return jval_truth(v) ? jeval(r, node->b) : v;
    case JN_NOT:
        return jval_bool(!jval_truth(jeval(r, node->a)));
    case JN_COMPARE:
        return eval_compare(r, node);
    case JN_CONCAT:
        return eval_concat(r, node);
    case JN_UNARY:
        return jop_unary(r, (enum jop)node->op, jeval(r, node->a));
    default: /* JN_BINARY */
        v = jeval(r, node->a);
        return jop_binary(r, (enum jop)node->op, v, jeval(r, node->b));
    }
}

struct jval jeval(struct jrun *r, const struct jnode *node)
{
    jeval_enter(r);
    struct jval v = eval(r, node);
    r->h.depth--;
    return v;
}
