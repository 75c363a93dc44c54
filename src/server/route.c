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
