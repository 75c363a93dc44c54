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

/* Letters put in, left out, exchanged for others, or two neighbours in each other's place (optimal string
 * alignment). n: letters of a, at most TYPED_MAX. */
static size_t distance(const char *a, size_t n, const char *b)
{
    size_t rows[3][TYPED_MAX + 1], *before = rows[0], *above = rows[1], *row = rows[2];
    for (size_t i = 0; i <= n; i++)
        row[i] = i;
    for (size_t k = 0; b[k]; k++) {
        size_t *spare = before;
        before = above;
        above = row;
        row = spare;
        row[0] = k + 1;
        for (size_t i = 1; i <= n; i++) {
            bool same = plain(a[i - 1]) == plain(b[k]);
            row[i] = least(above[i - 1] + !same, least(above[i], row[i - 1]) + 1);
            if (i > 1 && k > 0 && plain(a[i - 1]) == plain(b[k - 1]) && plain(a[i - 2]) == plain(b[k]))
                row[i] = least(row[i], before[i - 2] + 1);
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
