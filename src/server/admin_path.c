#include "server/admin_path.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"

enum nyb_code admin_roots_open(struct admin_roots *r, const struct config_list *roots, struct nyb_err *err)
{
    for (int i = 0; i < roots->n; i++) {
        char *resolved = realpath(roots->item[i], NULL);
        if (!resolved || !file_is_dir(resolved)) {
            free(resolved);
            return err_at(err, NYB_E_ARG, "weights-root", -1, "--weights-root %.300s is not a folder: %s",
                          roots->item[i], resolved ? "it is a file" : strerror(errno));
        }
        r->item[r->n++] = resolved;
    }
    return NYB_OK;
}

void admin_roots_serve(struct admin_roots *r, const char *folder)
{
    r->served = realpath(folder, NULL);
}

void admin_roots_close(struct admin_roots *r)
{
    for (int i = 0; i < r->n; i++)
        free(r->item[i]);
    free(r->served);
    *r = (struct admin_roots){0};
}

/* Is the resolved path this folder or below it? */
static bool is_within(const char *path, const char *folder)
{
    size_t n = strlen(folder);
    if (n > 0 && folder[n - 1] == '/') /* the root of all */
        return !strncmp(path, folder, n);
    return !strncmp(path, folder, n) && (path[n] == '/' || !path[n]);
}

static bool is_allowed(const struct admin_roots *r, const char *resolved)
{
    for (int i = 0; i < r->n; i++)
        if (is_within(resolved, r->item[i]))
            return true;
    return false;
}

static bool is_served(const struct admin_roots *r, const char *resolved)
{
    return r->served && !strcmp(resolved, r->served);
}

static char *resolve(const struct admin_roots *r, const char *path)
{
    if (path[0] == '/')
        return realpath(path, NULL);
    for (int i = 0; i < r->n; i++) {
        char *joined = path_join(r->item[i], path), *resolved = realpath(joined, NULL);
        free(joined);
        if (resolved)
            return resolved;
    }
    return NULL;
}

/* The name of an entry that leads out of the roots; NULL: there is none. Links of the served folder are those
 * that it was loaded through. */
static char *find_stray(const struct admin_roots *r, const char *folder)
{
    DIR *dir = opendir(folder);
    char *stray = NULL;
    for (const struct dirent *d; dir && !stray && (d = readdir(dir));) {
        struct stat st;
        char *path = path_join(folder, d->d_name);
        if (!lstat(path, &st) && S_ISLNK(st.st_mode)) {
            char *resolved = realpath(path, NULL);
            if (resolved && !is_allowed(r, resolved))
                stray = mem_strdup(d->d_name);
            free(resolved);
        }
        free(path);
    }
    if (dir)
        closedir(dir);
    return stray;
}

/* What exists outside is not told from what does not. */
static char *refuse(const char *path, int *status, struct nyb_err *err)
{
    *status = 403;
    (void)err_at(err, NYB_E_ARG, "model_path", -1,
                 "model_path \"%.300s\" is not a folder below --weights-root or the served one. "
                 "(parameter=model_path)",
                 path);
    return NULL;
}

char *admin_roots_find(const struct admin_roots *r, const char *path, int *status, struct nyb_err *err)
{
    char *resolved = path[0] && strlen(path) < PATH_MAX ? resolve(r, path) : NULL;
    bool served = resolved && is_served(r, resolved);
    if (!resolved || !(served || is_allowed(r, resolved))) {
        free(resolved);
        return refuse(path, status, err);
    }
    if (!file_is_dir(resolved)) {
        *status = 400;
        (void)err_at(err, NYB_E_ARG, "model_path", -1,
                     "model_path \"%.300s\" is a file, a folder is needed. (parameter=model_path)", path);
        free(resolved);
        return NULL;
    }
    char *stray = served ? NULL : find_stray(r, resolved);
    if (!stray)
        return resolved;
    *status = 403;
    (void)err_at(err, NYB_E_ARG, "model_path", -1,
                 "%.200s in model_path \"%.300s\" is a link that leads out of --weights-root. "
                 "(parameter=model_path)",
                 stray, path);
    free(stray);
    free(resolved);
    return NULL;
}
