#include "cli/load_golden.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

#define EXCERPT 40 /* bytes of an answer in a message */

static char *key_of(const json_t *input, int64_t max_tokens)
{
    char *text = json_dumps(input, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
    char *key = mem_printf("%lld %s", (long long)max_tokens, text ? text : "");
    free(text);
    return key;
}

static char *request_key(const struct load_request *r)
{
    return key_of(r->input, r->max_tokens);
}

static enum nyb_code add_row(struct load_golden *g, const char *line, size_t len, const char *where,
                             struct nyb_err *err)
{
    json_t *row;
    TRY(json_parse(&row, line, len, where, err));
    const json_t *input = json_object_get(row, "input");
    json_t *text = json_object_get(row, "text");
    enum nyb_code code = NYB_OK;
    if (input && json_is_string(text)) {
        char *key = key_of(input, json_integer_value(json_object_get(row, "max_tokens")));
        json_object_set(g->text, key, text);
        free(key);
    } else {
        code = err_at(err, NYB_E_FORMAT, where, -1,
                      "expected {\"input\": prompt or messages, \"max_tokens\": N, \"text\": answer}");
    }
    json_decref(row);
    return code;
}

static enum nyb_code read_rows(struct load_golden *g, char *data, const char *path, struct nyb_err *err)
{
    char *save = NULL, where[300];
    int number = 0;
    for (char *line = strtok_r(data, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        snprintf(where, sizeof(where), "%.250s row %d", path, ++number);
        TRY(add_row(g, line, strlen(line), where, err));
    }
    return NYB_OK;
}

static const json_t *answer_of(const struct load_golden *g, const struct load_request *r)
{
    char *key = request_key(r);
    const json_t *text = json_object_get(g->text, key);
    free(key);
    return text;
}

enum nyb_code load_golden_open(struct load_golden *g, const char *path, const struct load_data *d,
                               struct nyb_err *err)
{
    char *data;
    size_t len;
    TRY(file_read_all(path, (size_t)1 << 30, &data, &len, err));
    g->text = json_object();
    enum nyb_code code = read_rows(g, data, path, err);
    free(data);
    for (int i = 0; code == NYB_OK && i < d->n; i++)
        if (!answer_of(g, &d->request[i]))
            code = err_at(err, NYB_E_NOT_FOUND, path, -1,
                          "has no answer for request %d; the data set, its seed and lengths must be those of "
                          "the run that saved it",
                          i + 1);
    return code;
}

void load_golden_close(struct load_golden *g)
{
    json_decref(g->text);
    g->text = NULL;
}

static bool check_one(const json_t *want, struct load_reply *r)
{
    const char *a = r->text.data ? r->text.data : "", *b = json_string_value(want);
    size_t n = json_string_length(want), at = 0;
    if (r->text.len == n && !memcmp(a, b, n))
        return true;
    while (at < n && at < r->text.len && a[at] == b[at])
        at++;
    r->ok = false;
    load_reply_fail(r, "not the golden answer: from byte %zu on \"%.*s\", expected \"%.*s\"", at, EXCERPT,
                    a + at, EXCERPT, b + at);
    return false;
}

int load_golden_check(const struct load_golden *g, const struct load_data *d, struct load_reply *reply)
{
    int wrong = 0;
    for (int i = 0; i < d->n; i++)
        if (reply[i].ok)
            wrong += !check_one(answer_of(g, &d->request[i]), &reply[i]);
    return wrong;
}

enum nyb_code load_golden_save(const char *path, const struct load_data *d, const struct load_reply *reply,
                               struct nyb_err *err)
{
    FILE *f = fopen(path, "w");
    if (!f)
        return err_at(err, NYB_E_IO, path, -1, "cannot be written: %s", strerror(errno));
    for (int i = 0; i < d->n; i++) {
        struct buf text = {0};
        if (!reply[i].ok)
            continue;
        json_add_string(&text, reply[i].text.data ? reply[i].text.data : "", reply[i].text.len);
        char *input = json_dumps(d->request[i].input, JSON_COMPACT | JSON_ENCODE_ANY);
        fprintf(f, "{\"input\": %s, \"max_tokens\": %d, \"text\": %s}\n", input ? input : "null",
                d->request[i].max_tokens, text.data);
        free(input);
        buf_free(&text);
    }
    bool bad = ferror(f);
    bad |= fclose(f) != 0;
    return bad ? err_at(err, NYB_E_IO, path, -1, "was not written in full: %s", strerror(errno)) : NYB_OK;
}
