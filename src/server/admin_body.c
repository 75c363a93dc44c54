#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/admin.h"
#include "server/params_json.h"

/* Parameters of a query are strings, whatever they mean. */
static enum nyb_code take_bool(const struct admin_field *f, const json_t *v, struct nyb_err *err)
{
    const char *text = json_string_value(v);
    bool yes = json_is_true(v) || (text && (!strcmp(text, "true") || !strcmp(text, "1")));
    if (!yes && !json_is_false(v) && !(text && (!strcmp(text, "false") || !strcmp(text, "0"))))
        return params_wrong_type(err, f->name, "true or false", v);
    *(bool *)f->to = yes;
    return NYB_OK;
}

static bool number_of(const json_t *v, double *out)
{
    const char *text = json_string_value(v);
    char *end;
    if (!text) {
        *out = json_number_value(v);
        return json_is_number(v);
    }
    *out = strtod(text, &end);
    return end != text && !*end && isfinite(*out);
}

static enum nyb_code take_int(const struct admin_field *f, const json_t *v, struct nyb_err *err)
{
    double x;
    if (!number_of(v, &x) || x != floor(x) || fabs(x) > INT_MAX)
        return params_wrong_type(err, f->name, "an integer", v);
    *(int *)f->to = (int)x;
    return NYB_OK;
}

static enum nyb_code take_seconds(const struct admin_field *f, const json_t *v, struct nyb_err *err)
{
    double x;
    if (!number_of(v, &x) || x < 0 || x > 86400)
        return params_wrong_type(err, f->name, "seconds in [0, 86400]", v);
    *(double *)f->to = x;
    return NYB_OK;
}

static enum nyb_code take_strings(const struct admin_field *f, const json_t *v, struct nyb_err *err)
{
    struct admin_strings *to = f->to;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > ADMIN_STRINGS_MAX || n == 0)
        return err_at(err, NYB_E_RANGE, f->name, -1, "%s must be 1 to %d strings, got %zu. (parameter=%s)",
                      f->name, ADMIN_STRINGS_MAX, n, f->name);
    free(to->item);
    *to = (struct admin_strings){.item = mem_alloc(n, sizeof(*to->item))};
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(v) ? json_array_get(v, i) : v;
        if (!params_is_string(item))
            return params_wrong_type(err, f->name, "a list of strings", item);
        to->item[to->n++] = json_string_value(item);
    }
    return NYB_OK;
}

static enum nyb_code check_refused(const struct admin_field *f, const json_t *v, struct nyb_err *err)
{
    const char *text = json_string_value(v);
    if (json_is_false(v) || (json_is_integer(v) && json_integer_value(v) == 0) ||
        (text && (!*text || !strcmp(text, "false"))))
        return NYB_OK;
    return err_at(err, NYB_E_UNSUPPORTED, f->name, -1, "%s is not supported here. (parameter=%s)", f->name,
                  f->name);
}

static enum nyb_code take(const struct admin_field *f, const json_t *v, struct nyb_err *err)
{
    switch (f->kind) {
    case ADMIN_STRING:
        if (!params_is_string(v))
            return params_wrong_type(err, f->name, "a string", v);
        *(const char **)f->to = json_string_value(v);
        return NYB_OK;
    case ADMIN_BOOL:
        return take_bool(f, v, err);
    case ADMIN_INT:
        return take_int(f, v, err);
    case ADMIN_SECONDS:
        return take_seconds(f, v, err);
    case ADMIN_STRINGS:
        return take_strings(f, v, err);
    case ADMIN_REFUSED:
        return check_refused(f, v, err);
    default:
        return NYB_OK;
    }
}

enum nyb_code admin_read(const json_t *body, const struct admin_field *field, int n, struct nyb_err *err)
{
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)body, name, v)
    {
        const struct admin_field *f = NULL;
        for (int i = 0; i < n && !f; i++)
            f = strcmp(field[i].name, name) ? NULL : &field[i];
        if (!f)
            return err_at(err, NYB_E_ARG, name, -1,
                          "there is no parameter \"%.100s\" here. (parameter=%.100s)", name, name);
        if (!json_is_null(v))
            TRY(take(f, v, err));
    }
    return NYB_OK;
}
