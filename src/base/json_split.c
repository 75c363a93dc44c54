#include "base/json_split.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static size_t skip_space(const char *text, size_t len, size_t i)
{
    while (i < len && is_space(text[i]))
        i++;
    return i;
}

/* Past the string that begins at i, or len. A quote after an odd number of backslashes is part of it. */
static size_t skip_string(const char *text, size_t len, size_t i)
{
    const char *begin = text + i + 1, *quote;
    for (const char *at = begin; (quote = memchr(at, '"', (size_t)(text + len - at))); at = quote + 1) {
        const char *before = quote;
        while (before > begin && before[-1] == '\\')
            before--;
        if ((quote - before) % 2 == 0)
            return (size_t)(quote - text) + 1;
    }
    return len;
}

/* From i within an object to the next comma or closing bracket of its own level, or len. */
static size_t skip_member(const char *text, size_t len, size_t i)
{
    for (int depth = 0; i < len;) {
        char c = text[i];
        if (c == '"') {
            i = skip_string(text, len, i);
            continue;
        }
        if (depth == 0 && (c == ',' || c == '}' || c == ']'))
            return i;
        if (c == '{' || c == '[')
            depth++;
        else if (c == '}' || c == ']')
            depth--;
        i++;
    }
    return len;
}

/* Past the bracket that opens the object; 0: there is none. */
static size_t open_object(const char *text, size_t len)
{
    size_t i = skip_space(text, len, 0);
    return i < len && text[i] == '{' ? i + 1 : 0;
}

static void add_place(struct json_split *s, size_t at)
{
    if ((s->n & (s->n - 1)) == 0) /* full at powers of two */
        s->at = mem_grow(s->at, s->n ? 2 * (size_t)s->n : 1, sizeof(*s->at));
    s->at[s->n++] = at;
}

bool json_split(struct json_split *s, const char *text, size_t len, size_t bytes)
{
    size_t i = open_object(text, len);
    *s = (struct json_split){.text = text};
    if (i == 0 || len / (bytes + 1) >= INT_MAX - 1)
        return false;
    add_place(s, i);
    for (; (i = skip_member(text, len, i)) < len && text[i] == ','; i++)
        if (i - s->at[s->n - 1] >= bytes)
            add_place(s, i + 1);
    if (i < len && text[i] == '}' && skip_space(text, len, i + 1) == len) {
        add_place(s, i + 1);
        s->n--;
        return true;
    }
    json_split_free(s);
    return false;
}

json_t *json_split_read(const struct json_split *s, int i)
{
    size_t len = s->at[i + 1] - 1 - s->at[i];
    char *text = mem_try_alloc(len + 2, 1);
    json_t *object = NULL;
    if (!text)
        return NULL;
    text[0] = '{';
    memcpy(text + 1, s->text + s->at[i], len);
    text[len + 1] = '}';
    struct nyb_err unused;
    if (json_parse(&object, text, len + 2, "", &unused) == NYB_OK && json_object_size(object) == 0) {
        json_decref(object);
        object = NULL;
    }
    free(text);
    return object;
}

void json_split_free(struct json_split *s)
{
    free(s->at);
    *s = (struct json_split){0};
}

bool json_find_member(const char *text, size_t len, const char *key, size_t *begin, size_t *end)
{
    size_t i = open_object(text, len), n = strlen(key);
    int found = 0;
    if (i == 0)
        return false;
    for (bool more = true; more; i++) {
        size_t from = skip_space(text, len, i);
        i = skip_member(text, len, from);
        if (i - from > n + 2 && text[from] == '"' && !memcmp(text + from + 1, key, n) &&
            text[from + 1 + n] == '"') {
            size_t colon = skip_space(text, i, from + n + 2);
            if (colon == i || text[colon] != ':')
                return false;
            *begin = skip_space(text, i, colon + 1);
            *end = i;
            found++;
        }
        more = i < len && text[i] == ',';
    }
    return found == 1;
}
