#include "checkpoint/glob.h"

#include <stddef.h>
#include <string.h>

/* The bracket that closes the set opened at p[0] == '[', or NULL. A ']' first in the set is a member. */
static const char *set_end(const char *p)
{
    p++;
    if (*p == '!')
        p++;
    if (*p == ']')
        p++;
    return strchr(p, ']');
}

static bool set_has(const char *p, const char *end, unsigned char c)
{
    bool negated = p[1] == '!';
    for (p += negated ? 2 : 1; p < end; p++) {
        if (p + 2 < end && p[1] == '-') {
            if (c >= (unsigned char)p[0] && c <= (unsigned char)p[2])
                return !negated;
            p += 2;
        } else if (c == (unsigned char)*p) {
            return !negated;
        }
    }
    return negated;
}

/* Match one pattern element that is no star against c. Returns what follows it, or NULL. */
static const char *match_one(const char *pattern, char c)
{
    if (*pattern == '?')
        return pattern + 1;
    if (*pattern == '[') {
        const char *end = set_end(pattern);
        if (end)
            return set_has(pattern, end, (unsigned char)c) ? end + 1 : NULL;
    }
    return *pattern == c ? pattern + 1 : NULL;
}

bool glob_match(const char *pattern, const char *text)
{
    /* Only the last star can still take more characters: an earlier one has no match that a later one lacks.
     */
    const char *star = NULL, *resume = NULL;

    while (*text) {
        const char *next;
        if (*pattern == '*') {
            star = ++pattern;
            resume = text;
        } else if (*pattern && (next = match_one(pattern, *text))) {
            pattern = next;
            text++;
        } else if (star) {
            pattern = star;
            text = ++resume;
        } else {
            return false;
        }
    }
    return pattern[strspn(pattern, "*")] == 0;
}

bool glob_is_pattern(const char *pattern)
{
    return strpbrk(pattern, "*?[") != NULL;
}
