/* for, and its variable `loop`. Items that a condition lets through are found one by one, as the body runs:
 * the condition may look at what the body has changed. */
#include <string.h>

#include "text/jinja_access.h"
#include "text/jinja_repr.h"
#include "text/jinja_run.h"

struct jloop {
    const struct jnode *node;
    struct jscope *scope; /* around the loop */
    struct jlist *source;
    size_t taken;       /* of source */
    struct jlist *kept; /* items that passed the condition so far */
    size_t next;        /* index of the next one to run; index0 is next - 1 */
    size_t depth0;
    bool has_changed; /* loop.changed() was asked before */
    struct jlist *last_changed;
};

static bool passes(struct jrun *r, struct jloop *l, struct jval item)
{
    if (!l->node->c)
        return true;
    struct jscope *outer = r->scope;
    r->scope = jscope_new(r, l->scope);
    jscope_assign(r, r->scope, l->node->a, item);
    bool ok = jval_truth(jeval(r, l->node->c));
    r->scope = outer;
    return ok;
}

/* Is there a kept item with this index? */
static bool fetch(struct jrun *r, struct jloop *l, size_t index)
{
    while (l->kept->n <= index && l->taken < l->source->n) {
        struct jval item = l->source->at[l->taken++];
        jheap_spend(&r->h, 1);
        if (passes(r, l, item))
            jlist_add(&r->h, l->kept, item);
    }
    return index < l->kept->n;
}

static enum jflow run_body(struct jrun *r, struct jloop *l, struct jscope *s)
{
    struct jscope *outer = r->scope;
    struct jval item = l->kept->at[l->next++];
    r->scope = s;
    jscope_assign(r, s, l->node->a, item);
    if (r->name_loop)
        jscope_set(r, s, r->name_loop, (struct jval){.type = J_LOOP, .loop = l});
    enum jflow flow = jexec(r, l->node->list[0]);
    r->scope = outer;
    return flow;
}

static enum jflow run(struct jrun *r, struct jloop *l)
{
    struct jscope *s = NULL;
    while (fetch(r, l, l->next)) {
        if (!s || s->captured)
            s = jscope_new(r, l->scope);
        s->n = 0;
        if (run_body(r, l, s) == JFLOW_BREAK)
            break;
    }
    if (l->next || !l->node->list[1])
        return JFLOW_NEXT;
    struct jscope *outer = r->scope;
    r->scope = jscope_new(r, l->scope);
    enum jflow flow = jexec(r, l->node->list[1]);
    r->scope = outer;
    return flow;
}

static struct jloop *new_loop(struct jrun *r, const struct jnode *node, struct jscope *scope, struct jval v)
{
    struct jloop *l = jheap_alloc(&r->h, 1, sizeof(*l));
    l->node = node;
    l->scope = scope;
    l->source = jval_items(&r->h, v);
    l->kept = node->c ? jlist_new(&r->h, 0) : l->source;
    l->taken = node->c ? 0 : l->source->n;
    return l;
}

enum jflow jloop_exec(struct jrun *r, const struct jnode *node)
{
    return run(r, new_loop(r, node, r->scope, jeval(r, node->b)));
}

struct jval jloop_call(struct jrun *r, struct jloop *loop, const struct jargs *a)
{
    struct jval v;
    jargs_bind(r, a, "loop", "iterable", 1, &v);
    if (!loop->node->recursive)
        jheap_fail(&r->h, "The loop must have the 'recursive' marker to be called recursively.");
    jeval_enter(r);
    struct jtext text = {.h = &r->h}, *out = r->out;
    struct jscope *outer = r->scope;
    struct jloop *inner = new_loop(r, loop->node, loop->scope, v);
    inner->depth0 = loop->depth0 + 1;
    r->out = &text;
    r->scope = loop->scope;
    run(r, inner);
    r->out = out;
    r->scope = outer;
    r->h.depth--;
    return jval_str(jtext_take(&text));
}

static struct jval count(size_t n)
{
    return jval_int((int64_t)n);
}

static size_t length(struct jrun *r, struct jloop *l)
{
    fetch(r, l, SIZE_MAX - 1);
    return l->kept->n;
}

struct jval jloop_attr(struct jrun *r, struct jloop *l, const struct jstr *name)
{
    if (jstr_is(name, "index"))
        return count(l->next);
    if (jstr_is(name, "index0"))
        return count(l->next - 1);
    if (jstr_is(name, "first"))
        return jval_bool(l->next == 1);
    if (jstr_is(name, "last"))
        return jval_bool(!fetch(r, l, l->next));
    if (jstr_is(name, "length"))
        return count(length(r, l));
    if (jstr_is(name, "revindex"))
        return count(length(r, l) - l->next + 1);
    if (jstr_is(name, "revindex0"))
        return count(length(r, l) - l->next);
    if (jstr_is(name, "depth"))
        return count(l->depth0 + 1);
    if (jstr_is(name, "depth0"))
        return count(l->depth0);
    if (jstr_is(name, "previtem"))
        return l->next > 1 ? l->kept->at[l->next - 2] : jval_undefined("there is no previous item");
    if (jstr_is(name, "nextitem"))
        return fetch(r, l, l->next) ? l->kept->at[l->next] : jval_undefined("there is no next item");
    return (struct jval){.type = J_MISSING};
}

static struct jval method_cycle(struct jrun *r, struct jval self, const struct jargs *a)
{
    if (a->n == 0 || a->n_kw)
        jheap_fail(&r->h, "no items for cycling given");
    return a->at[(self.loop->next - 1) % a->n];
}

static struct jval method_changed(struct jrun *r, struct jval self, const struct jargs *a)
{
    struct jloop *l = self.loop;
    bool same = l->has_changed && l->last_changed->n == a->n;
    for (size_t i = 0; same && i < a->n; i++)
        same = jval_equal(&r->h, a->at[i], l->last_changed->at[i]);
    if (same)
        return jval_bool(false);
    l->has_changed = true;
    l->last_changed = jlist_new(&r->h, a->n);
    for (size_t i = 0; i < a->n; i++)
        jlist_add(&r->h, l->last_changed, a->at[i]);
    return jval_bool(true);
}

const struct jmethod jloop_methods[] = {
    {"cycle", J_LOOP, method_cycle},
    {"changed", J_LOOP, method_changed},
    {NULL, J_MISSING, NULL},
};
