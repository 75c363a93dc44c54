#include "server/near.h"

#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/mem.h"

#define TYPED_MAX 64 /* longer paths are nobody's slip */

static const char *const table[] = {
#define ROUTE(method_, path_, auth_, kind_, run_) (path_),
#include "server/route.def"
#undef ROUTE
};

static const struct {
    const char *path, *ours, *why;
} foreign[] = {
#define FOREIGN(path_, ours_) {(path_), (ours_), NULL},
#define ABSENT(path_, why_)   {(path_), NULL, (why_)},
#include "server/foreign.def"
#undef FOREIGN
#undef ABSENT
};

/* A path of the table that is prefix and the first n bytes of path; NULL: none. */
static const char *known(const char *prefix, const char *path, size_t n)
{
    size_t skip = strlen(prefix);
    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (strlen(table[i]) == skip + n && !strncmp(table[i], prefix, skip) &&
            !strncmp(table[i] + skip, path, n))
            return table[i];
    return NULL;
}

/* /v1 and slashes: what a wrong base URL makes. */
static const char *other_base(const char *path)
{
    static const char version[] = "/v1";
    const char *given = path;
    while (path[0] == '/' && path[1] == '/') /* a base address with a slash at its end */
        path++;
    size_t n = strlen(path), skip = strlen(version);
    while (n > 1 && path[n - 1] == '/')
        n--;
    const char *found = path[n] || path != given ? known("", path, n) : NULL;
    if (!found)
        found = known(version, path, n);
    if (!found && !strncmp(path, version, skip) && n > skip)
        found = known("", path + skip, n - skip);
    return found;
}

static bool is_letter(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Letters to be put in, taken out or exchanged for others (Levenshtein's), n: of a, at most TYPED_MAX. */
static size_t distance(const char *a, size_t n, const char *b)
{
    size_t row[TYPED_MAX + 1];
    for (size_t i = 0; i <= n; i++)
        row[i] = i;
    for (; *b; b++) {
        size_t corner = row[0]++;
        for (size_t i = 1; i <= n; i++) {
            size_t kept = corner + !is_letter(a[i - 1], *b);
            corner = row[i];
            row[i] = least(kept, least(row[i], row[i - 1]) + 1);
        }
    }
    return row[n];
}

/* One letter in four may be wrong. */
static const char *slip(const char *path)
{
    const char *found = NULL;
    size_t n = strlen(path), most = n / 4;
    for (size_t i = 0; n <= TYPED_MAX && i < COUNT_OF(table); i++) {
        size_t d = distance(path, n, table[i]);
        if (d <= most && !strchr(table[i], '*')) {
            found = table[i];
            most = d - (d > 0); /* better ones only */
        }
    }
    return found;
}

const char *near_path(const char *path)
{
    const char *found = other_base(path);
    for (size_t i = 0; !found && i < COUNT_OF(foreign); i++)
        if (!strcmp(foreign[i].path, path))
            found = foreign[i].ours;
    return found || near_reason(path) ? found : slip(path);
}

const char *near_reason(const char *path)
{
    for (size_t i = 0; i < COUNT_OF(foreign); i++)
        if (foreign[i].why && !strncmp(foreign[i].path, path, strlen(foreign[i].path)))
            return foreign[i].why;
    return NULL;
}
