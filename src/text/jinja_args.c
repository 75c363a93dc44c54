#include "text/jinja_args.h"

#include <string.h>

#include "text/jinja_run.h"

/* The index of a name in "a,b,c"; SIZE_MAX: not there. *n counts them. */
static size_t find_param(const char *params, const struct jstr *name, size_t *n)
{
    size_t found = SIZE_MAX;
    *n = 0;
    while (*params) {
        size_t len = strcspn(params, ",");
        if (name && name->len == len && !memcmp(name->p, params, len))
            found = *n;
        ++*n;
        params += len + (params[len] == ',');
    }
    return found;
}

void jargs_bind(struct jrun *r, const struct jargs *a, const char *what, const char *params, size_t n_need,
                struct jval *out)
{
    size_t n;
    find_param(params, NULL, &n);
    for (size_t i = 0; i < n; i++)
        out[i] = (struct jval){.type = J_MISSING};
    if (a->n > n)
        jheap_fail(&r->h, "%s takes at most %zu arguments (%zu given)", what, n, a->n);
    for (size_t i = 0; i < a->n; i++)
        out[i] = a->at[i];
    for (size_t i = 0; i < a->n_kw; i++) {
        const struct jstr *name = a->kw[i].name;
        size_t at = find_param(params, name, &n);
        int len = name->len < 60 ? (int)name->len : 60;
        if (at == SIZE_MAX)
            jheap_fail(&r->h, "%s got an unexpected keyword argument '%.*s'", what, len, name->p);
        if (out[at].type != J_MISSING)
            jheap_fail(&r->h, "%s got multiple values for argument '%.*s'", what, len, name->p);
        out[at] = a->kw[i].value;
    }
    for (size_t i = 0; i < n_need; i++)
        if (out[i].type == J_MISSING)
            jheap_fail(&r->h, "%s misses argument %zu of (%s)", what, i + 1, params);
}

void jargs_none(struct jrun *r, const struct jargs *a, const char *what)
{
    if (a->n || a->n_kw)
        jheap_fail(&r->h, "%s takes no arguments", what);
}

int64_t jargs_int(struct jrun *r, struct jval v, const char *what, int64_t otherwise)
{
    int64_t i;
    if (v.type == J_MISSING)
        return otherwise;
    if (v.type == J_UNDEFINED)
        jval_fail_undefined(&r->h, v);
    if (!jval_as_int(v, &i))
        jheap_fail(&r->h, "%s: '%s' object cannot be interpreted as an integer", what, jval_type_name(v));
    return i;
}

const struct jstr *jargs_str(struct jrun *r, struct jval v, const char *what)
{
    if (v.type == J_MISSING)
        return NULL;
    if (v.type == J_UNDEFINED)
        jval_fail_undefined(&r->h, v);
    if (v.type != J_STR)
        jheap_fail(&r->h, "%s: must be str, not %s", what, jval_type_name(v));
    return v.s;
}

bool jargs_bool(struct jval v, bool otherwise)
{
    return v.type == J_MISSING ? otherwise : jval_truth(v);
}
