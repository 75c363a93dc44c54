#include "text/jinja_func.h"

#include <string.h>
#include <time.h>

#include "text/jinja.h"
#include "text/jinja_repr.h"
#include "text/utf8.h"

static struct jval func_range(struct jrun *r, const struct jargs *a)
{
    if (a->n < 1 || a->n > 3 || a->n_kw)
        jheap_fail(&r->h, "range expected 1 to 3 arguments, got %zu", a->n + a->n_kw);
    struct jrange *range = jheap_alloc(&r->h, 1, sizeof(*range));
    range->start = a->n > 1 ? jargs_int(r, a->at[0], "range", 0) : 0;
    range->stop = jargs_int(r, a->at[a->n > 1], "range", 0);
    range->step = a->n > 2 ? jargs_int(r, a->at[2], "range", 1) : 1;
    const int64_t far = INT64_MAX / 4;
    if (range->step == 0)
        jheap_fail(&r->h, "range() arg 3 must not be zero");
    if (range->start > far || range->start < -far || range->stop > far || range->stop < -far ||
        range->step > far || range->step < -far || jrange_len(range) > JINJA_RANGE_MAX)
        jheap_fail(&r->h, "Range too big. The sandbox blocks ranges larger than %d.", JINJA_RANGE_MAX);
    return (struct jval){.type = J_RANGE, .range = range};
}

/* dict(mapping or pairs, name=value...) */
static struct jdict *make_dict(struct jrun *r, const struct jargs *a, const char *what)
{
    struct jdict *d = jdict_new(&r->h, a->n_kw);
    if (a->n > 1)
        jheap_fail(&r->h, "%s expected at most 1 argument, got %zu", what, a->n);
    if (a->n && a->at[0].type == J_DICT) {
        for (size_t i = 0; i < a->at[0].dict->n; i++)
            jdict_set(&r->h, d, a->at[0].dict->key[i], a->at[0].dict->value[i]);
    } else if (a->n) {
        const struct jlist *pairs = jval_items(&r->h, a->at[0]);
        for (size_t i = 0; i < pairs->n; i++) {
            const struct jlist *pair = jval_items(&r->h, pairs->at[i]);
            if (pair->n != 2)
                jheap_fail(&r->h, "dictionary update sequence element #%zu has length %zu; 2 is required", i,
                           pair->n);
            jdict_set(&r->h, d, pair->at[0], pair->at[1]);
        }
    }
    for (size_t i = 0; i < a->n_kw; i++)
        jdict_set(&r->h, d, jval_str(a->kw[i].name), a->kw[i].value);
    return d;
}

static struct jval func_dict(struct jrun *r, const struct jargs *a)
{
    return jval_dict(make_dict(r, a, "dict"));
}

static struct jval func_namespace(struct jrun *r, const struct jargs *a)
{
    return (struct jval){.type = J_NAMESPACE, .dict = make_dict(r, a, "namespace")};
}

static struct jval func_raise_exception(struct jrun *r, const struct jargs *a)
{
    struct jval message;
    jargs_bind(r, a, "raise_exception", "message", 1, &message);
    const struct jstr *s = jrepr_str(&r->h, message);
    size_t len = s->len;
    if (len >= sizeof(r->h.message)) /* cut before a character */
        for (len = sizeof(r->h.message) - 1; utf8_is_tail(s->p[len]); len--)
            ;
    r->h.is_message = true;
    jheap_fail(&r->h, "%.*s", (int)len, s->p);
}

static struct jval func_strftime_now(struct jrun *r, const struct jargs *a)
{
    struct jval v;
    char format[256], out[1024];
    struct tm tm;
    time_t now = (time_t)r->now;
    jargs_bind(r, a, "strftime_now", "format", 1, &v);
    const struct jstr *s = jargs_str(r, v, "strftime_now");
    if (s->len >= sizeof(format) || memchr(s->p, 0, s->len))
        jheap_fail(&r->h, "strftime_now: the format is longer than %zu bytes", sizeof(format) - 1);
    memcpy(format, s->p, s->len);
    format[s->len] = 0;
    if (!(r->utc ? gmtime_r(&now, &tm) : localtime_r(&now, &tm)))
        jheap_fail(&r->h, "strftime_now: the time is out of range");
    size_t n = strftime(out, sizeof(out), format, &tm);
    if (utf8_valid_prefix(out, n) != n)
        n = 0;
    return jval_str(jstr_new(&r->h, out, n, jstr_any_input(s)));
}

static struct jval func_joiner(struct jrun *r, const struct jargs *a)
{
    struct jval v;
    jargs_bind(r, a, "joiner", "sep", 0, &v);
    struct jcycle *c = jheap_alloc(&r->h, 1, sizeof(*c));
    c->separator = v.type == J_MISSING ? jval_lit(&r->h, ", ").s : jrepr_str(&r->h, v);
    return (struct jval){.type = J_JOINER, .cycle = c};
}

static struct jval func_cycler(struct jrun *r, const struct jargs *a)
{
    if (a->n == 0 || a->n_kw)
        jheap_fail(&r->h, "at least one item has to be provided");
    struct jcycle *c = jheap_alloc(&r->h, 1, sizeof(*c));
    c->items = jlist_new(&r->h, a->n);
    for (size_t i = 0; i < a->n; i++)
        jlist_add(&r->h, c->items, a->at[i]);
    return (struct jval){.type = J_CYCLER, .cycle = c};
}

/* It is defined in jinja2; random filler text has no place in a prompt. */
static struct jval func_lipsum(struct jrun *r, const struct jargs *a)
{
    (void)a;
    jheap_fail(&r->h, "lipsum is not supported");
}

const struct jfunc *jfunc_find(const char *name)
{
    static const struct jfunc table[] = {
        {"range", func_range},
        {"dict", func_dict},
        {"namespace", func_namespace},
        {"raise_exception", func_raise_exception},
        {"strftime_now", func_strftime_now},
        {"joiner", func_joiner},
        {"cycler", func_cycler},
        {"lipsum", func_lipsum},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (!strcmp(table[i].name, name))
            return &table[i];
    return NULL;
}
