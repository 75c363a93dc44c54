/* Files of JSON lines, and a folder for a test's own files. */
#ifndef NYB_JSONROWS_H
#define NYB_JSONROWS_H

#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "text/chat_json.h"

struct rows {
    char *data;
    size_t len, at;
    json_t *row; /* the current one */
};

static inline bool rows_open(struct rows *r, const char *path)
{
    struct nyb_err err;
    *r = (struct rows){0};
    return file_exists(path) && file_read_all(path, 1u << 30, &r->data, &r->len, &err) == NYB_OK;
}

static inline json_t *rows_next(struct rows *r)
{
    struct nyb_err err;
    json_decref(r->row);
    r->row = NULL;
    if (r->at >= r->len)
        return NULL;
    const char *line = r->data + r->at;
    const char *end = memchr(line, '\n', r->len - r->at);
    size_t n = end ? (size_t)(end - line) : r->len - r->at;
    r->at += n + 1;
    if (n == 0)
        return NULL;
    if (chat_json_parse(&r->row, line, n, "row", &err) != NYB_OK)
        fail_msg("%s", err.message);
    return r->row;
}

static inline void rows_close(struct rows *r)
{
    json_decref(r->row);
    free(r->data);
    *r = (struct rows){0};
}

static inline const char *rows_str(const json_t *row, const char *key)
{
    return json_string_value(json_object_get(row, key));
}

/* A fresh folder; the caller frees its name after rows_folder_remove. */
static inline char *rows_folder(void)
{
    char *folder = mem_strdup("/tmp/nybble-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
    return folder;
}

static inline void rows_write(const char *folder, const char *name, const char *text)
{
    char *path = path_join(folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    free(path);
}

static inline void rows_folder_remove(const char *folder)
{
    static const char *const names[] = {"tokenizer_config.json", "special_tokens_map.json",
                                        "chat_template.jinja", "tokenizer.json"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char *path = path_join(folder, names[i]);
        unlink(path);
        free(path);
    }
    assert_int_equal(rmdir(folder), 0);
}

#endif
