#include "server/near.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/mem.h"
#include "base/slip.h"

#define TIDY_MAX 128 /* bytes of a path that is looked at */

static const char version[] = "/v1";

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

/* The path without slashes too many: those beside another, and one at its end. False: it is too long to be
 * ours. */
static bool tidy(char *to, const char *path)
{
    size_t n = 0;
    for (; *path && n + 1 < TIDY_MAX; path++)
        if (*path != '/' || n == 0 || to[n - 1] != '/')
            to[n++] = *path;
    if (n > 1 && to[n - 1] == '/')
        n--;
    to[n] = 0;
    return !*path;
}

/* A path of the table that is both together; NULL: none. */
static const char *known(const char *prefix, const char *path)
{
    size_t skip = strlen(prefix);
    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (!strncmp(table[i], prefix, skip) && !strcmp(table[i] + skip, path))
            return table[i];
    return NULL;
}

/* The path behind /v1, if it begins so; else all of it. */
static const char *behind_version(const char *path)
{
    size_t skip = strlen(version);
    return !strncmp(path, version, skip) && (path[skip] == '/' || !path[skip]) ? path + skip : path;
}

/* With /v1 or without. */
static const char *any_version(const char *path)
{
    const char *found = known("", path);
    if (!found)
        found = known(version, path);
    return found ? found : known("", behind_version(path));
}

static const char *others(const char *path)
{
    for (size_t i = 0; i < COUNT_OF(foreign); i++)
        if (foreign[i].ours &&
            (!strcmp(foreign[i].path, path) || !strcmp(foreign[i].path, behind_version(path))))
            return foreign[i].ours;
    return NULL;
}

static const char *reason(const char *path)
{
    const char *bare = behind_version(path);
    for (size_t i = 0; i < COUNT_OF(foreign); i++)
        if (foreign[i].why && !strncmp(foreign[i].path, bare, strlen(foreign[i].path)))
            return foreign[i].why;
    return NULL;
}

/* What a base address with a path of its own makes: the beginning is another's. */
static const char *end(const char *path)
{
    const char *found = NULL;
    for (const char *at = path; !found && (at = strchr(at + 1, '/'));)
        found = any_version(at);
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
    char plain[TIDY_MAX];
    if (path[0] != '/' || !tidy(plain, path))
        return NULL;
    const char *found = any_version(plain);
    if (!found)
        found = others(plain);
    if (found || reason(plain))
        return found;
    found = end(plain);
    return found ? found : slip(plain);
}

const char *near_reason(const char *path)
{
    char plain[TIDY_MAX];
    return tidy(plain, path) && !others(plain) ? reason(plain) : NULL;
}
