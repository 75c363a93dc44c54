#include "checkpoint/index.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/crew.h"
#include "base/file.h"
#include "base/json_split.h"
#include "base/mem.h"

#define SINGLE_FILE_NAME "model.safetensors"
#define SUFFIX           ".safetensors"
#define INDEX_MAX_FILE   65536

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void drop_map(struct index_set *set)
{
    for (int i = 0; i < set->n_map; i++)
        json_decref(set->map[i]);
    free(set->map);
    set->map = NULL;
    set->n_map = 0;
}

static void add_file(struct index_set *set, const char *name)
{
    if ((set->n_file & (set->n_file - 1)) == 0) /* full at powers of two */
        set->file = mem_grow(set->file, set->n_file ? 2 * (size_t)set->n_file : 1, sizeof *set->file);
    set->file[set->n_file++] = mem_strdup(name);
}

/* Sort, and drop repeated names. */
static void sort_files(struct index_set *set)
{
    int n = 0;
    if (set->n_file == 0)
        return;
    qsort(set->file, (size_t)set->n_file, sizeof *set->file, by_text);
    for (int i = 0; i < set->n_file; i++) {
        if (n > 0 && !strcmp(set->file[i], set->file[n - 1]))
            free(set->file[i]);
        else
            set->file[n++] = set->file[i];
    }
    set->n_file = n;
}

static bool starts_with(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

static bool ends_with(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && strcmp(s + n - m, suffix) == 0;
}

/* A shard lies in the folder itself: no name may lead out of it. */
static bool name_is_plain(const json_t *value)
{
    const char *name = json_string_value(value);
    return name && strlen(name) == json_string_length(value) && name[0] && name[0] != '.' &&
           !strchr(name, '/') && !strchr(name, '\\') && strlen(name) < 256;
}

/* ---- the index ----------------------------------------------------------------------------------- */

/* The files that a part of the map names: neighbours mostly share one. */
static enum nyb_code add_files(struct index_set *set, const json_t *map, const char *path,
                               struct nyb_err *err)
{
    json_t *value;
    const char *key, *last = "";
    json_object_foreach((json_t *)(uintptr_t)map, key, value)
    {
        if (!name_is_plain(value))
            return err_at(
                err, NYB_E_FORMAT, path, -1,
                "weight_map places tensor '%.200s' in '%.200s', expected a file name without a path", key,
                json_is_string(value) ? json_string_value(value) : "(not a string)");
        if (strcmp(json_string_value(value), last)) {
            last = json_string_value(value);
            add_file(set, last);
        }
        if (set->n_file >= INDEX_MAX_FILE)
            sort_files(set);
        if (set->n_file >= INDEX_MAX_FILE)
            return err_at(err, NYB_E_FORMAT, path, -1, "weight_map names more than %d files", INDEX_MAX_FILE);
    }
    return NYB_OK;
}

static enum nyb_code read_whole(struct index_set *set, const char *path, struct nyb_err *err)
{
    json_t *root;
    TRY(json_read_file(&root, path, err));
    set->map = mem_alloc(1, sizeof(*set->map));
    set->map[set->n_map++] = json_incref(json_object_get(root, "weight_map"));
    json_decref(root);
    if (!json_is_object(set->map[0]))
        return err_at(err, NYB_E_FORMAT, path, -1,
                      "has no weight_map, expected an object from tensor to file");
    return NYB_OK;
}

struct pieces {
    struct json_split split;
    json_t **map;
};

static void read_piece(void *arg, int i)
{
    struct pieces *p = arg;
    p->map[i] = json_split_read(&p->split, i);
}

/* Is what stands around the map an object? */
static bool frame_is_valid(const char *text, size_t len, size_t begin, size_t end)
{
    struct buf frame = {0};
    struct nyb_err unused;
    json_t *root = NULL;
    buf_add(&frame, text, begin);
    buf_add_str(&frame, "0");
    buf_add(&frame, text + end, len - end);
    bool valid = json_parse(&root, frame.data, frame.len, "", &unused) == NYB_OK;
    json_decref(root);
    buf_free(&frame);
    return valid;
}

/* False where the index is short, or has to be read whole for its error. */
static bool read_pieces(struct index_set *set, const char *text, size_t len, int n_thread)
{
    struct pieces p;
    size_t begin, end;
    if (len < 2 * JSON_SPLIT_BYTES || !json_find_member(text, len, "weight_map", &begin, &end) ||
        !frame_is_valid(text, len, begin, end) ||
        !json_split(&p.split, text + begin, end - begin, JSON_SPLIT_BYTES))
        return false;
    p.map = mem_alloc((size_t)p.split.n, sizeof(*p.map));
    crew_run(p.split.n, n_thread, read_piece, &p);
    bool ok = true;
    for (int i = 0; i < p.split.n; i++)
        ok &= p.map[i] != NULL;
    set->map = p.map;
    set->n_map = p.split.n;
    json_split_free(&p.split);
    return ok;
}

static enum nyb_code read_weight_map(struct index_set *set, const char *path, int n_thread,
                                     struct nyb_err *err)
{
    char *text;
    size_t len;
    TRY(file_read_all(path, JSON_FILE_MAX, &text, &len, err));
    bool ok = read_pieces(set, text, len, n_thread);
    free(text);
    if (!ok) {
        drop_map(set);
        TRY(read_whole(set, path, err));
    }
    for (int i = 0; i < set->n_map; i++)
        TRY(add_files(set, set->map[i], path, err));
    if (set->n_file == 0)
        return err_at(err, NYB_E_FORMAT, path, -1, "weight_map is empty");
    sort_files(set);
    return NYB_OK;
}

/* All shards that are missing belong in one message. */
static enum nyb_code check_shards(const struct index_set *set, const char *folder, struct nyb_err *err)
{
    const char *first = NULL;
    int missing = 0;

    for (int i = 0; i < set->n_file; i++) {
        char *path = path_join(folder, set->file[i]);
        if (!file_exists(path)) {
            first = first ? first : set->file[i];
            missing++;
        }
        free(path);
    }
    if (missing == 0)
        return NYB_OK;
    return err_at(err, NYB_E_NOT_FOUND, folder, -1, "%s names %d files of which %d %s missing, first '%s'",
                  INDEX_FILE_NAME, set->n_file, missing, missing == 1 ? "is" : "are", first);
}

static enum nyb_code list_folder(struct index_set *set, const char *folder, struct nyb_err *err)
{
    bool has_model = false, has_other = false;
    const struct dirent *entry;
    DIR *dir = opendir(folder);

    if (!dir)
        return err_at(err, errno == ENOENT ? NYB_E_NOT_FOUND : NYB_E_IO, folder, -1,
                      "cannot open the folder: %s", strerror(errno));
    while ((entry = readdir(dir)) != NULL && set->n_file < INDEX_MAX_FILE) {
        const char *name = entry->d_name;
        if (name[0] == '.' || !ends_with(name, SUFFIX) || !strcmp(name, "golden" SUFFIX))
            continue;
        add_file(set, name);
        has_model |= starts_with(name, "model-");
        has_other |= starts_with(name, "consolidated");
    }
    closedir(dir);
    if (has_model && has_other) {
        int n = 0;
        for (int i = 0; i < set->n_file; i++) {
            if (starts_with(set->file[i], "consolidated"))
                free(set->file[i]);
            else
                set->file[n++] = set->file[i];
        }
        set->n_file = n;
    }
    sort_files(set);
    if (set->n_file == 0)
        return err_at(err, NYB_E_NOT_FOUND, folder, -1, "holds no model: neither %s nor any *" SUFFIX " file",
                      INDEX_FILE_NAME);
    return NYB_OK;
}

static enum nyb_code choose_files(struct index_set *set, const char *folder, int n_thread,
                                  struct nyb_err *err)
{
    char *path = path_join(folder, INDEX_FILE_NAME);
    enum nyb_code code = NYB_OK;

    if (file_exists(path)) {
        code = read_weight_map(set, path, n_thread, err);
        if (code == NYB_OK)
            code = check_shards(set, folder, err);
        free(path);
        return code;
    }
    free(path);
    path = path_join(folder, SINGLE_FILE_NAME);
    if (file_exists(path))
        add_file(set, SINGLE_FILE_NAME);
    else
        code = list_folder(set, folder, err);
    free(path);
    return code;
}

enum nyb_code index_read(struct index_set *set, const char *folder, int n_thread, struct nyb_err *err)
{
    *set = (struct index_set){0};
    enum nyb_code code = choose_files(set, folder, n_thread, err);
    if (code != NYB_OK)
        index_free(set);
    return code;
}

void index_guess(struct index_set *set, const char *folder)
{
    struct nyb_err unused;
    char *path = path_join(folder, SINGLE_FILE_NAME);
    *set = (struct index_set){0};
    if (file_exists(path))
        add_file(set, SINGLE_FILE_NAME);
    else if (list_folder(set, folder, &unused) != NYB_OK || set->n_file > INDEX_GUESS_MAX)
        index_free(set);
    free(path);
}

void index_free(struct index_set *set)
{
    for (int i = 0; i < set->n_file; i++)
        free(set->file[i]);
    free(set->file);
    drop_map(set);
    *set = (struct index_set){0};
}
