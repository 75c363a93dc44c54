#include "server/route.h"

#include <string.h>

#include "base/mem.h"

static const struct route table[] = {
#define ROUTE(method_, path_, auth_, kind_, run_) \
    {.method = (method_), .path = (path_), .auth = (auth_), .kind = (kind_), .run = (run_)},
#include "server/route.def"
#undef ROUTE
};

static bool path_matches(const char *pattern, const char *path)
{
    size_t n = strlen(pattern);
    if (pattern[n - 1] != '*')
        return !strcmp(pattern, path);
    return !strncmp(pattern, path, n - 1) && path[n - 1];
}

const struct route *route_find(const char *method, const char *path, const char **allow)
{
    bool get = false, post = false;
    if (!strcmp(method, "HEAD"))
        method = "GET";
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        if (!path_matches(table[i].path, path))
            continue;
        if (!strcmp(table[i].method, method)) {
            *allow = NULL;
            return &table[i];
        }
        get = get || !strcmp(table[i].method, "GET");
        post = post || !strcmp(table[i].method, "POST");
    }
    *allow = get && post ? "GET, HEAD, POST" : get ? "GET, HEAD" : post ? "POST" : NULL;
    return NULL;
}

/* A path of the table that is prefix and the first n bytes of path; NULL: none. */
static const char *known(const char *prefix, const char *path, size_t n)
{
    size_t skip = strlen(prefix);
    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (strlen(table[i].path) == skip + n && !strncmp(table[i].path, prefix, skip) &&
            !strncmp(table[i].path + skip, path, n))
            return table[i].path;
    return NULL;
}

const char *route_near(const char *path)
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
