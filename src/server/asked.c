#include "server/asked.h"

#include <stdint.h>
#include <string.h>

json_t *asked_member(const json_t *asked, const char *name)
{
    json_t *v = json_object_get(asked, name);
    return v && !json_is_null(v) ? v : NULL;
}

void asked_copy_others(const json_t *asked, json_t *chat, const char *const *names, size_t n)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)asked, key, value)
    {
        bool own = false;
        for (size_t i = 0; i < n && !own; i++)
            own = !strcmp(key, names[i]);
        if (!own)
            json_object_set(chat, key, value);
    }
}

enum nyb_code asked_convert(const json_t *asked, asked_converter *convert, json_t **chat, struct nyb_err *err)
{
    *chat = json_object();
    enum nyb_code code = convert(asked, *chat, err);
    if (code == NYB_OK)
        return NYB_OK;
    json_decref(*chat);
    *chat = NULL;
    return code;
}
