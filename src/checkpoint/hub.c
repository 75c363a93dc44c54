/* ckpt_resolve: from what the user typed to a folder, without touching the network.
 *
 * The cache of the Hugging Face hub keeps a repository owner/name in models--owner--name: snapshots/COMMIT/
 * holds symbolic links into blobs/, and refs/main the commit that the branch pointed to when it was
 * downloaded. owner/name@REVISION asks for another ref, or a commit. */
#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/checkpoint.h"

#define MAX_ID  96 /* characters of a repository id, as the hub limits them */
#define MAX_REF 128

static bool is_name(const char *s, size_t n)
{
    if (n == 0 || strchr("-.", s[0]) || strchr("-.", s[n - 1]))
        return false;
    for (size_t i = 0; i < n; i++) {
        bool plain = (s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'z') ||
                     (s[i] >= 'A' && s[i] <= 'Z') || s[i] == '_' || s[i] == '-' || s[i] == '.';
        if (!plain || (i > 0 && s[i] == s[i - 1] && (s[i] == '.' || s[i] == '-')))
            return false;
    }
    return true;
}

/* owner/name, from which a folder name can be made that stays within the cache. */
static bool is_repository_id(const char *s, size_t len)
{
    const char *slash = memchr(s, '/', len);
    return slash && len <= MAX_ID && is_name(s, (size_t)(slash - s)) &&
           is_name(slash + 1, len - (size_t)(slash + 1 - s));
}

/* Parts of a path that are names: main, v1.0, refs/pr/1. */
static bool is_revision(const char *s)
{
    size_t n = strcspn(s, "/");
    return strlen(s) < MAX_REF && is_name(s, n) && (!s[n] || is_revision(s + n + 1));
}

static bool is_commit(const char *s)
{
    size_t n = strlen(s);
    return n > 0 && n < MAX_REF && strspn(s, "0123456789abcdefABCDEF") == n;
}

/* The snapshot that refs/NAME names, or NULL. Caller frees. */
static char *find_ref(const char *repository, const char *name)
{
    char *ref = mem_printf("%s/refs/%s", repository, name), *text = NULL, *snapshot = NULL;
    size_t len;

    if (file_exists(ref) && file_read_all(ref, MAX_REF, &text, &len, NULL) == NYB_OK) {
        text[strcspn(text, " \t\r\n")] = 0;
        if (is_commit(text))
            snapshot = mem_printf("%s/snapshots/%s", repository, text);
    }
    free(text);
    free(ref);
    if (snapshot && !file_is_dir(snapshot)) {
        free(snapshot);
        snapshot = NULL;
    }
    return snapshot;
}

/* A ref, as it is named or without the refs/ before it, or a commit in full; NULL: not here. Caller frees. */
static char *find_revision(const char *repository, const char *revision)
{
    static const char refs[] = "refs/";
    bool full = !strncmp(revision, refs, sizeof(refs) - 1);
    char *found = find_ref(repository, full ? revision + sizeof(refs) - 1 : revision);
    if (!found && is_commit(revision)) {
        found = mem_printf("%s/snapshots/%s", repository, revision);
        if (!file_is_dir(found)) {
            free(found);
            found = NULL;
        }
    }
    return found;
}

/* The snapshot written last, or NULL. Caller frees. */
static char *find_newest(const char *repository)
{
    char *folder = path_join(repository, "snapshots"), *best = NULL;
    DIR *dir = opendir(folder);
    struct timespec best_time = {0};
    const struct dirent *entry;

    while (dir && (entry = readdir(dir)) != NULL) {
        struct stat st;
        if (entry->d_name[0] == '.')
            continue;
        char *path = path_join(folder, entry->d_name);
        bool newer = stat(path, &st) == 0 && S_ISDIR(st.st_mode) &&
                     (!best || st.st_mtim.tv_sec > best_time.tv_sec ||
                      (st.st_mtim.tv_sec == best_time.tv_sec && st.st_mtim.tv_nsec > best_time.tv_nsec));
        if (!newer) {
            free(path);
            continue;
        }
        free(best);
        best = path;
        best_time = st.st_mtim;
    }
    if (dir)
        closedir(dir);
    free(folder);
    return best;
}

/* $variable/tail with a leading ~ expanded, or NULL when the variable is unset or empty. Caller frees. */
static char *folder_from(const char *variable, const char *tail)
{
    const char *value = getenv(variable), *home = getenv("HOME");

    if (!value || !value[0])
        return NULL;
    if (value[0] == '~' && (value[1] == '/' || value[1] == 0) && home)
        return mem_printf("%s%s%s", home, value + 1, tail);
    return mem_printf("%s%s", value, tail);
}

/* revision NULL: main, else what was downloaded last. */
static enum nyb_code find_in_caches(char **folder, const char *id, const char *revision, struct nyb_err *err)
{
    static const struct {
        const char *variable, *tail;
    } place[] = {
        {"HF_HUB_CACHE", ""}, {"HUGGINGFACE_HUB_CACHE", ""}, /* the older spelling */
        {"HF_HOME", "/hub"},  {"XDG_CACHE_HOME", "/huggingface/hub"}, {"HOME", "/.cache/huggingface/hub"},
    };
    const char *slash = strchr(id, '/');
    struct buf searched = {0};

    for (size_t i = 0; i < COUNT_OF(place); i++) {
        char *cache = folder_from(place[i].variable, place[i].tail);
        if (!cache)
            continue;
        char *repository = mem_printf("%s/models--%.*s--%s", cache, (int)(slash - id), id, slash + 1);
        char *found = revision ? find_revision(repository, revision) : find_ref(repository, "main");
        if (!found && !revision)
            found = find_newest(repository);
        buf_printf(&searched, "%s%.160s", searched.len ? ", " : "", cache);
        free(repository);
        free(cache);
        if (found) {
            buf_free(&searched);
            *folder = found;
            return NYB_OK;
        }
    }
    const char *places = searched.len ? searched.data : "none, since HOME and HF_HOME are not set";
    enum nyb_code code =
        revision
            ? err_at(err, NYB_E_NOT_FOUND, id, -1,
                     "has no revision %.130s in a local Hugging Face cache (searched: %.300s); nothing is "
                     "downloaded here, `hf download %.100s --revision %.130s` puts it there",
                     revision, places, id, revision)
            : err_at(err, NYB_E_NOT_FOUND, id, -1,
                     "is neither a folder nor in a local Hugging Face cache (searched: %.300s); nothing "
                     "is downloaded here, `hf download %.200s` puts it there",
                     places, id);
    buf_free(&searched);
    return code;
}

enum nyb_code ckpt_resolve(char **folder, const char *name_or_path, struct nyb_err *err)
{
    *folder = NULL;
    if (file_is_dir(name_or_path)) {
        *folder = realpath(name_or_path, NULL);
        return *folder ? NYB_OK : err_at(err, NYB_E_IO, name_or_path, -1, "cannot resolve this folder");
    }
    if (file_exists(name_or_path))
        return err_at(err, NYB_E_ARG, name_or_path, -1,
                      "is a file, expected the folder that holds config.json and the *.safetensors files");
    const char *at = strchr(name_or_path, '@');
    size_t len = at ? (size_t)(at - name_or_path) : strlen(name_or_path);
    if (!is_repository_id(name_or_path, len) || (at && !is_revision(at + 1)))
        return err_at(
            err, NYB_E_NOT_FOUND, name_or_path, -1,
            "no such folder, and not a repository id of the form owner/name or owner/name@revision");
    char *id = mem_strndup(name_or_path, len);
    enum nyb_code code = find_in_caches(folder, id, at ? at + 1 : NULL, err);
    free(id);
    return code;
}
