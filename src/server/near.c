#include "server/near.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/mem.h"
#include "base/slip.h"

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

static const char *slip(const char *path)
{
    const char *found = NULL;
    size_t limit = slip_limit(path);
    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (!strchr(table[i], '*') && slip_is_nearer(path, table[i], &limit))
            found = table[i];
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
