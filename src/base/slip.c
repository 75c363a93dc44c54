#include "base/slip.h"

#include <ctype.h>
#include <string.h>

#define TYPED_MAX 64

static int plain(char c)
{
    return c == '_' ? '-' : tolower((unsigned char)c);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Levenshtein's; n: letters of a, at most TYPED_MAX. */
static size_t distance(const char *a, size_t n, const char *b)
{
    size_t row[TYPED_MAX + 1];
    for (size_t i = 0; i <= n; i++)
        row[i] = i;
    for (; *b; b++) {
        size_t corner = row[0]++;
        for (size_t i = 1; i <= n; i++) {
            size_t kept = corner + (plain(a[i - 1]) != plain(*b));
            corner = row[i];
            row[i] = least(kept, least(row[i], row[i - 1]) + 1);
        }
    }
    return row[n];
}

size_t slip_limit(const char *typed)
{
    size_t n = strlen(typed);
    return n <= TYPED_MAX ? n / 4 + 1 : 0;
}

bool slip_is_nearer(const char *typed, const char *name, size_t *limit)
{
    size_t d = *limit ? distance(typed, strlen(typed), name) : 0;
    bool nearer = d < *limit;
    *limit = nearer ? d : *limit;
    return nearer;
}
