#include "server/refuse.h"

#include <string.h>

#include "base/mem.h"
#include "server/params_json.h"

enum when { GIVEN, TRUE, FALSE, FILLED, NOT_ONE, NOT_ZERO, OTHER };

static const struct row {
    const char *name;
    enum when when;
    const char *word; /* of OTHER: the value that is fine */
    const char *why;
} table[] = {
#define REFUSE(name_, when_, why_)        {(name_), when_, NULL, (why_)},
#define REFUSE_UNLESS(name_, word_, why_) {(name_), OTHER, (word_), (why_)},
#include "server/refuse.def"
#undef REFUSE
#undef REFUSE_UNLESS
};

static bool is_empty(const json_t *v)
{
    return (json_is_array(v) && json_array_size(v) == 0) || (json_is_object(v) && json_object_size(v) == 0) ||
           (json_is_string(v) && json_string_length(v) == 0);
}

static bool is_word(const json_t *v, const char *word)
{
    return json_is_string(v) && !strcmp(json_string_value(v), word);
}

static bool is_only(const json_t *v, const char *word)
{
    size_t i;
    const json_t *item;
    if (!json_is_array(v))
        return is_word(v, word);
    json_array_foreach(v, i, item) if (!is_word(item, word)) return false;
    return true;
}

/* Is it asked for? Types are checked where the value is one that could be fine. */
static enum nyb_code look(const struct row *r, const json_t *body, const json_t *v, bool *asked,
                          struct nyb_err *err)
{
    bool value = r->when == FALSE;
    switch (r->when) {
    case TRUE:
    case FALSE:
        TRY(params_bool(body, r->name, &value, err));
        *asked = value == (r->when == TRUE);
        return NYB_OK;
    case FILLED:
        *asked = !is_empty(v);
        return NYB_OK;
    case NOT_ONE:
    case NOT_ZERO:
        if (!json_is_number(v))
            return params_wrong_type(err, r->name, "a number", v);
        *asked = json_number_value(v) != (r->when == NOT_ONE);
        return NYB_OK;
    case OTHER:
        *asked = !is_only(v, r->word);
        return NYB_OK;
    default:
        *asked = true;
        return NYB_OK;
    }
}

enum nyb_code refuse_check(const json_t *body, struct nyb_err *err)
{
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        const struct row *r = &table[i];
        const json_t *v = json_object_get(body, r->name);
        bool asked = false;
        if (!v || json_is_null(v))
            continue;
        TRY(look(r, body, v, &asked, err));
        if (asked)
            return err_at(err, NYB_E_UNSUPPORTED, r->name, -1, "%s is not supported: %s. (parameter=%s)",
                          r->name, r->why, r->name);
    }
    return NYB_OK;
}
